"""deep_gemm: deep-learning kernels with block scales, on the CPU and on GPUs, with the Python surface of DeepGEMM.

Everything is looked up when it is first used, so importing the package imports no torch and touches no device. The operators are in
``_C``, and in ``dlpack`` for NumPy arrays and for tensors of other libraries than torch, which it does not need; ``utils`` has casts and
layouts, ``testing`` what tests and benchmarks need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._release import RELEASE

__version__ = f"2.6.1+c{RELEASE}"
"""The DeepGEMM release whose surface this is, and our own release as its local part."""

_SUBMODULES = ("_C", "dlpack", "legacy", "mega", "settings", "testing", "utils")

# Where a name is looked for, in this order: `mega` and `utils` have some names of operators too, with friendlier signatures.
_SOURCES = ("settings", "mega", "utils", "_C")

# What some functions were called before.
_OLD_NAMES = {
    "bf16_m_grouped_gemm_nt_masked": "m_grouped_bf16_gemm_nt_masked",
    "fp8_m_grouped_gemm_nt_masked": "m_grouped_fp8_gemm_nt_masked",
}

if TYPE_CHECKING:
    from . import dlpack as dlpack
    from . import legacy as legacy
    from . import mega as mega
    from . import settings as settings
    from . import testing as testing
    from . import utils as utils
    from ._C import *  # two names of it are replaced below, by functions of `mega`
    from .mega import SymmBuffer as SymmBuffer
    from .mega import bf16_mega_moe as bf16_mega_moe  # type: ignore[assignment]
    from .mega import fp8_fp4_mega_moe as fp8_fp4_mega_moe  # type: ignore[assignment]
    from .mega import get_symm_buffer_for_mega_moe as get_symm_buffer_for_mega_moe
    from .mega import transform_weights_for_mega_moe as transform_weights_for_mega_moe
    from .settings import get_compile_mode as get_compile_mode
    from .settings import set_compile_mode as set_compile_mode
    from .utils import *

    bf16_m_grouped_gemm_nt_masked = m_grouped_bf16_gemm_nt_masked
    fp8_m_grouped_gemm_nt_masked = m_grouped_fp8_gemm_nt_masked
else:  # type checkers would take any name for one of a module with a __getattr__

    def __getattr__(name: str) -> Any:
        if name in _SUBMODULES:
            return import_module(f".{name}", __name__)
        if name == "__all__":
            return _public_names()
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        wanted = _OLD_NAMES.get(name, name)
        for source in _SOURCES:
            module = import_module(f".{source}", __name__)
            if wanted in module.__all__:
                value = globals()[name] = getattr(module, wanted)
                return value
        from . import _binding

        raise _binding.unknown_name(__name__, name, _public_names())

    def __dir__() -> list[str]:
        return sorted({*globals(), *_public_names()})

    def _public_names() -> list[str]:
        names = {name for source in _SOURCES for name in import_module(f".{source}", __name__).__all__}
        return sorted(name for name in names.union(_SUBMODULES, _OLD_NAMES) if not name.startswith("_"))
