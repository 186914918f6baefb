"""What a call costs before and behind the kernel: deep_gemm.dlpack beside torch.ops and the Python function over it. Nothing is computed, since m is 0,
but by the two that return tensors. Nanoseconds per call, the minimum of several runs.

    PYTHONPATH=build/python build/venv/bin/python tests/bench/dlpack.py
"""

from __future__ import annotations

import timeit
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import torch

import deep_gemm
from deep_gemm import _C, dlpack

CALLS, RUNS = 2_000, 150  # many short runs: one of them finds the machine quiet

Row = tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def arrays() -> dict[str, Any]:
    """By library: bf16 [0, 256], [8, 256]; f32 [0, 8], [4, 256]; FP8 pairs of the first two shapes."""
    numpy = {
        "a": np.zeros((0, 256), ml_dtypes.bfloat16),
        "b": np.zeros((8, 256), ml_dtypes.bfloat16),
        "d": np.zeros((0, 8), np.float32),
        "x": np.ones((4, 256), np.float32),
        "qa": (np.zeros((0, 256), ml_dtypes.float8_e4m3fn), np.zeros((0, 2), np.float32)),
        "qb": (np.zeros((8, 256), ml_dtypes.float8_e4m3fn), np.zeros((1, 2), np.float32)),
    }
    fp8 = torch.float8_e4m3fn
    tensors = {
        "a": torch.zeros(0, 256, dtype=torch.bfloat16),
        "b": torch.zeros(8, 256, dtype=torch.bfloat16),
        "d": torch.zeros(0, 8),
        "x": torch.ones(4, 256),
        "qa": (torch.zeros(0, 256).to(fp8), torch.zeros(0, 2)),
        "qb": (torch.zeros(8, 256).to(fp8), torch.zeros(1, 2)),
    }
    found = {"NumPy": numpy, "torch": tensors}
    try:
        import jax.numpy as jnp
    except ImportError:
        print("JAX is not there: left out")
    else:  # outputs stay NumPy's: JAX's arrays are immutable
        found["JAX"] = {**numpy, **{name: jnp.asarray(numpy[name]) for name in ("a", "b", "x")}}
    return found


def rows() -> Iterator[Row]:
    for library, of in arrays().items():
        gemm, pairs = (of["a"], of["b"], of["d"]), (of["qa"], of["qb"], of["d"])
        yield f"dlpack.bf16_gemm_nt, 3 tensors of {library}", dlpack.bf16_gemm_nt, gemm, {}
        if library == "torch":
            yield "torch.ops, the same", torch.ops.deep_gemm.bf16_gemm_nt.default, gemm, {}
            yield "deep_gemm.bf16_gemm_nt, the same", deep_gemm.bf16_gemm_nt, gemm, {}
        if library != "JAX":
            yield f"dlpack.fp8_gemm_nt, 5 tensors of {library}, recipe", dlpack.fp8_gemm_nt, pairs, {"recipe": (1, 128, 128)}
        if library == "torch":
            yield "deep_gemm.fp8_gemm_nt, the same", deep_gemm.fp8_gemm_nt, pairs, {"recipe": (1, 128, 128)}
        yield f"dlpack.per_token_cast_to_fp8, 4 x 256 of {library}", dlpack.per_token_cast_to_fp8, (of["x"], False), {}
        if library == "torch":
            yield "deep_gemm._C.per_token_cast_to_fp8, the same", _C.per_token_cast_to_fp8, (of["x"], False), {}
    yield "dlpack.get_pdl", dlpack.get_pdl, (), {}


def nanoseconds(row: Row) -> float:
    _, function, args, keywords = row
    timer = timeit.Timer("f(*args, **keywords)", globals={"f": function, "args": args, "keywords": keywords})
    return min(timer.repeat(RUNS, CALLS)) / CALLS * 1e9


def main() -> None:
    torch.set_num_threads(1)
    empty = nanoseconds(("", lambda *args, **keywords: None, (1, 2, 3), {}))
    print(f"{empty:8.0f}  a Python function that does nothing, as a measure of this machine")
    for row in rows():
        print(f"{nanoseconds(row):8.0f}  {row[0]}", flush=True)


if __name__ == "__main__":
    main()
