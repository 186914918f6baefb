"""Grouped BF16 GEMMs that were Triton kernels for the A100.

Their kernels are not in this release. The names are here, so that callers can look them up, and each says so when it is called.
"""

from __future__ import annotations

from typing import NoReturn

from torch import Tensor

__all__ = [
    "a_fused_k_grouped_bf16_gemm_tn_contiguous_tl",
    "a_fused_m_grouped_bf16_gemm_nn_contiguous_tl",
    "a_fused_m_grouped_bf16_gemm_nt_contiguous_tl",
    "b_fused_k_grouped_bf16_gemm_tn_contiguous_tl",
    "m_grouped_bf16_gemm_nn_contiguous_tl",
    "m_grouped_bf16_gemm_nt_contiguous_tl",
]


def _not_implemented(name: str) -> NoReturn:
    raise NotImplementedError(f"{name}: not implemented: the legacy grouped GEMMs have no kernel in this release")


def m_grouped_bf16_gemm_nt_contiguous_tl(a: Tensor, b: Tensor, d: Tensor, m_indices: Tensor) -> None:
    _not_implemented("m_grouped_bf16_gemm_nt_contiguous_tl")


def m_grouped_bf16_gemm_nn_contiguous_tl(a: Tensor, b: Tensor, d: Tensor, m_indices: Tensor) -> None:
    _not_implemented("m_grouped_bf16_gemm_nn_contiguous_tl")


def a_fused_m_grouped_bf16_gemm_nt_contiguous_tl(a: Tensor, b: Tensor, d: Tensor, m_row_indices: tuple[Tensor, Tensor]) -> None:
    _not_implemented("a_fused_m_grouped_bf16_gemm_nt_contiguous_tl")


def a_fused_m_grouped_bf16_gemm_nn_contiguous_tl(a: Tensor, b: Tensor, d: Tensor, m_row_indices: tuple[Tensor, Tensor]) -> None:
    _not_implemented("a_fused_m_grouped_bf16_gemm_nn_contiguous_tl")


def a_fused_k_grouped_bf16_gemm_tn_contiguous_tl(
    a: Tensor, b: Tensor, d: Tensor, k_indices: tuple[Tensor, Tensor, Tensor], acc: bool
) -> None:
    _not_implemented("a_fused_k_grouped_bf16_gemm_tn_contiguous_tl")


def b_fused_k_grouped_bf16_gemm_tn_contiguous_tl(
    a: Tensor, b: Tensor, d: Tensor, k_indices: tuple[Tensor, Tensor, Tensor], acc: bool
) -> None:
    _not_implemented("b_fused_k_grouped_bf16_gemm_tn_contiguous_tl")
