"""Calls that type checkers must take without a word."""

from __future__ import annotations

from typing import Any

import numpy as np

from deep_gemm import dlpack

Array = np.ndarray[Any, np.dtype[Any]]


class Foreign:
    """An array of a library that is not known here."""

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None) -> object: ...

    def __setitem__(self, key: object, value: float) -> None: ...


def dense(x: Array, weight: Array) -> Array:
    a = dlpack.per_token_cast_to_fp8(x, use_ue8m0=False)
    b = dlpack.per_block_cast_to_fp8(weight, False)
    d = np.empty((x.shape[0], weight.shape[0]), np.float32)
    dlpack.fp8_gemm_nt(a, b, d)
    dlpack.fp8_gemm_nt(a, b, d, c=d, recipe=(1, 128, 128), compiled_dims="", disable_ue8m0_cast=True)
    dlpack.bf16_gemm_nt(x, weight, d, None)
    return d


def foreign(x: Foreign, layout: Array) -> object:
    dlpack.bf16_gemm_nt(x, x, x)
    dlpack.m_grouped_bf16_gemm_nt_contiguous(x, x, x, layout)
    dlpack.m_grouped_bf16_gemm_nt_contiguous(x, x, x, m_indices=layout)
    result: object = dlpack.get_mn_major_tma_aligned_tensor(x)
    return result


def logits(q: Array, sf: Array, ends: Array) -> Array:
    strided: Array = dlpack.transform_sf_into_required_layout(sf, 128, 256, (1, 128))
    for dtype in ("float32", np.float32, np.dtype("f4")):
        strided = dlpack.fp8_fp4_mqa_logits((q, None), (q, sf), strided, ends, ends, logits_dtype=dtype)
    return strided


def settings() -> tuple[int, bool]:
    dlpack.set_num_sms(dlpack.get_num_sms())
    dlpack.set_block_size_multiple_of(64)
    dlpack.set_block_size_multiple_of((64, 128))
    return dlpack.get_theoretical_mk_alignment_for_contiguous_layout(expected_m=64), dlpack.get_pdl()
