"""torch, for the modules of this package that need it: an ImportError says which torch is missing and what works without."""

from __future__ import annotations

import os
from importlib.util import find_spec

FOLDER = os.path.dirname(os.path.abspath(__file__))

# The library beside this file serves every torch from 2.10 on, or, as TORCH_LIBRARY, the one that it was compiled for.
OLDEST = (2, 4) if os.path.exists(os.path.join(FOLDER, "_torch_library")) else (2, 10)


def _refuse(found: str) -> ImportError:
    oldest = ".".join(str(part) for part in OLDEST)
    without = f"the C library in {FOLDER} works without torch"
    if find_spec(f"{__package__}.dlpack") is not None:
        without = f"deep_gemm.dlpack and {without}"
    return ImportError(f"deep_gemm needs torch >= {oldest}, found {found}; {without}", name="torch")


try:
    import torch as torch
    from torch import Tensor as Tensor
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise _refuse("none") from None

if tuple(int(part) for part in str(torch.__version__).split(".")[:2]) < OLDEST:
    raise _refuse(str(torch.__version__))
