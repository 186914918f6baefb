"""Calls that type checkers must refuse. A comment at the end of a line names the errors of that line, mypy's, then basedpyright's; any other
error, and any that is missing, fails the test."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep_gemm import dlpack

Array = np.ndarray[Any, np.dtype[Any]]


class ReadOnly:
    def __dlpack__(self) -> object: ...


def calls(x: Array, sf: Array, d: Array, read_only: ReadOnly) -> None:
    dlpack.fp8_gemm_nt(x, (x, sf), d)  # error: arg-type, reportArgumentType
    dlpack.fp8_gemm_nt((x, None), (x, sf), d)  # error: arg-type, reportArgumentType
    dlpack.fp8_gemm_nt((x, sf), (x, sf), d, recipe=(1, 128))  # error: arg-type, reportArgumentType
    dlpack.fp8_gemm_nt((x, sf), (x, sf), d, recipes=(1, 1, 128))  # error: call-arg, reportCallIssue
    dlpack.bf16_gemm_nt(x, x)  # error: call-arg, reportCallIssue
    dlpack.bf16_gemm_nt(x, x, None)  # error: arg-type, reportArgumentType
    dlpack.bf16_gemm_nt(x, x, read_only)  # error: arg-type, reportArgumentType
    dlpack.bf16_gemm_nt([[1.0]], x, d)  # error: arg-type, reportArgumentType
    dlpack.bf16_gemm_nt(x, x, d, compiled_dims=3)  # error: arg-type, reportArgumentType
    result: Array = dlpack.bf16_gemm_nt(x, x, d)  # error: func-returns-value assignment, reportAssignmentType
    text: str = dlpack.get_mn_major_tma_aligned_tensor(result)  # error: assignment, reportAssignmentType
    dlpack.set_num_sms("all")  # error: arg-type, reportArgumentType
    print(text)
