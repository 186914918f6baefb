"""Grouped BF16 GEMMs under the names of DeepGEMM's Triton kernels for the A100, on the operators of this library.

They differ from ``deep_gemm.m_grouped_bf16_gemm_*_contiguous`` and ``deep_gemm.k_grouped_bf16_gemm_tn_contiguous`` in two ways: tiles of
padding become zeros, and the ``fused`` ones take one operand by row numbers, of which a negative one stands for a row of zeros. Here the
rows are gathered into a tensor of their own first. On CUDA the m-grouped ones wait for nothing; the k-grouped ones read where groups begin
and end on the host.
"""

from __future__ import annotations

from typing import Any

from ._torch import Tensor, torch

from . import _C  # pyright: ignore[reportPrivateUsage]

__all__ = [
    "a_fused_k_grouped_bf16_gemm_tn_contiguous_tl",
    "a_fused_m_grouped_bf16_gemm_nn_contiguous_tl",
    "a_fused_m_grouped_bf16_gemm_nt_contiguous_tl",
    "b_fused_k_grouped_bf16_gemm_tn_contiguous_tl",
    "m_grouped_bf16_gemm_nn_contiguous_tl",
    "m_grouped_bf16_gemm_nt_contiguous_tl",
]


def m_grouped_bf16_gemm_nt_contiguous_tl(a: Tensor, b: Tensor, d: Tensor, m_indices: Tensor) -> None:
    """d[i] = a[i] @ b[m_indices[i]].T, and 0 in tiles whose first index is negative."""
    _C.m_grouped_bf16_gemm_nt_contiguous(a, b, d, m_indices)
    _zero_padding_tiles(d, m_indices)


def m_grouped_bf16_gemm_nn_contiguous_tl(a: Tensor, b: Tensor, d: Tensor, m_indices: Tensor) -> None:
    """d[i] = a[i] @ b[m_indices[i]], and 0 in tiles whose first index is negative."""
    _C.m_grouped_bf16_gemm_nn_contiguous(a, b, d, m_indices)
    _zero_padding_tiles(d, m_indices)


def a_fused_m_grouped_bf16_gemm_nt_contiguous_tl(a: Tensor, b: Tensor, d: Tensor, mappings: tuple[Tensor, Tensor]) -> None:
    """d[i] = a[m_row_indices[i]] @ b[m_indices[i]].T, mappings being (m_indices, m_row_indices)."""
    m_indices, m_row_indices = mappings
    m_grouped_bf16_gemm_nt_contiguous_tl(_gathered(a, m_row_indices), b, d, m_indices)


def a_fused_m_grouped_bf16_gemm_nn_contiguous_tl(a: Tensor, b: Tensor, d: Tensor, mappings: tuple[Tensor, Tensor]) -> None:
    """d[i] = a[m_row_indices[i]] @ b[m_indices[i]], mappings being (m_indices, m_row_indices)."""
    m_indices, m_row_indices = mappings
    m_grouped_bf16_gemm_nn_contiguous_tl(_gathered(a, m_row_indices), b, d, m_indices)


def a_fused_k_grouped_bf16_gemm_tn_contiguous_tl(
    a: Tensor, b: Tensor, d: Tensor, handle: tuple[Tensor, Tensor, Tensor], acc: bool
) -> None:
    """d[g] = a[k_indices[k_start[g]:k_end[g]]].T @ b[k_start[g]:k_end[g]], added to d if acc.

    handle is (k_indices, k_start, k_end), with one index for each row of b.
    """
    k_indices, k_start, k_end = handle
    _k_grouped("a_fused_k_grouped_bf16_gemm_tn_contiguous_tl", _gathered(a, k_indices), b, d, k_start, k_end, acc)


def b_fused_k_grouped_bf16_gemm_tn_contiguous_tl(
    a: Tensor, b: Tensor, d: Tensor, handle: tuple[Tensor, Tensor, Tensor], acc: bool
) -> None:
    """d[g] = a[k_start[g]:k_end[g]].T @ b[k_indices[k_start[g]:k_end[g]]], added to d if acc.

    handle is (k_indices, k_start, k_end), with one index for each row of a.
    """
    k_indices, k_start, k_end = handle
    _k_grouped("b_fused_k_grouped_bf16_gemm_tn_contiguous_tl", a, _gathered(b, k_indices), d, k_start, k_end, acc)


def _zero_padding_tiles(d: Tensor, m_indices: Tensor) -> None:
    tile = _C.get_mk_alignment_for_contiguous_layout()
    is_padding = (m_indices[::tile] < 0).repeat_interleave(tile)[: d.shape[0]]
    d.masked_fill_(is_padding[:, None], 0)


def _gathered(x: Tensor, indices: Tensor) -> Tensor:
    """Rows of x by number; zeros for a negative one."""
    if x.shape[0] == 0:
        return x.new_zeros(indices.shape[0], x.shape[1])
    return x[indices.clamp(min=0).long()].masked_fill_((indices < 0)[:, None], 0)


def _k_grouped(op: str, a: Tensor, b: Tensor, d: Tensor, k_start: Tensor, k_end: Tensor, acc: bool) -> None:
    if a.shape[0] != b.shape[0]:
        raise ValueError(f"{op}: the operand that is not gathered needs one row for each of the k_indices, got {a.shape[0]} and {b.shape[0]}")
    if not d.shape[0] == k_start.shape[0] == k_end.shape[0]:
        raise ValueError(f"{op}: d has {d.shape[0]} groups, k_start {k_start.shape[0]}, k_end {k_end.shape[0]}")
    bounds: Any = torch.stack((k_start, k_end), dim=1)
    groups: list[tuple[int, int]] = bounds.tolist()
    for g, (start, end) in enumerate(groups):
        if start < end and not 0 <= start < end <= a.shape[0]:
            raise ValueError(f"{op}: group {g} has rows {start} to {end} of {a.shape[0]}")
    for (start, end), out in zip(groups, d):
        rows = slice(start, end) if start < end else slice(0, 0)
        _C.bf16_gemm_tn(a[rows], b[rows], out, out if acc else None)
