"""The expert GEMMs of a mixture of experts: a prefill with the rows of each expert one below the other, a decode with a few rows of each.

    python moe.py [cpu|cuda]
"""

from __future__ import annotations

import sys

import deep_gemm
import torch
from deep_gemm.utils import align, per_block_cast_to_fp8, per_token_cast_to_fp8
from torch import Tensor

EXPERTS, HIDDEN, INNER, TOP_K = 4, 512, 384, 2


def quantized_weights(weights: Tensor) -> tuple[Tensor, Tensor]:
    """[experts, n, k] as codes and scales of 128 x 128 blocks."""
    codes, scales = zip(*(per_block_cast_to_fp8(w, use_ue8m0=False) for w in weights))
    return torch.stack(codes), torch.stack(scales)


def prefill(x: Tensor, expert_of: Tensor, weights: tuple[Tensor, Tensor]) -> Tensor:
    """x [tokens, k] and expert_of [tokens, TOP_K] to [tokens, TOP_K, n]."""
    alignment = deep_gemm.get_mk_alignment_for_contiguous_layout()
    experts, n = weights[0].shape[:2]
    # Sorted by expert; each expert's rows begin at a multiple of the alignment, and the rows between belong to nobody.
    order = expert_of.flatten().argsort(stable=True)
    counts = expert_of.flatten().bincount(minlength=experts).tolist()
    rows = sum(align(count, alignment) for count in counts)
    owner = torch.full((rows,), -1, dtype=torch.int32, device=x.device)
    place = torch.empty(order.numel(), dtype=torch.int64, device=x.device)
    first, sorted_first = 0, 0
    for expert, count in enumerate(counts):
        owner[first : first + count] = expert
        place[order[sorted_first : sorted_first + count]] = torch.arange(first, first + count, device=x.device)
        first, sorted_first = first + align(count, alignment), sorted_first + count
    a = x.new_zeros(rows, x.shape[1])
    a[place] = x.repeat_interleave(expert_of.shape[1], dim=0)
    d = torch.empty(rows, n, dtype=torch.bfloat16, device=x.device)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(per_token_cast_to_fp8(a, use_ue8m0=False), weights, d, owner)
    return d[place].view(*expert_of.shape, n)


def decode(x: Tensor, expert_of: Tensor, weights: tuple[Tensor, Tensor], capacity: int) -> Tensor:
    """The same for few tokens. Every expert has room for `capacity` rows, so that all shapes stay the same from step to step, as a CUDA
    graph needs them."""
    experts, n, k = weights[0].shape
    flat = expert_of.flatten()
    is_of = flat[:, None] == torch.arange(experts, device=x.device)
    slot = (is_of.cumsum(0) - 1).gather(1, flat[:, None]).squeeze(1)  # how many before it have the same expert
    a = x.new_zeros(experts, capacity, k)
    a[flat, slot] = x.repeat_interleave(expert_of.shape[1], dim=0)
    codes, scales = per_token_cast_to_fp8(a.view(-1, k), use_ue8m0=False)
    d = torch.empty(experts, capacity, n, dtype=torch.bfloat16, device=x.device)
    operand = codes.view(experts, capacity, k), scales.view(experts, capacity, -1)
    expected_m = -(-flat.numel() // experts)  # a hint: rows of a usual expert
    deep_gemm.m_grouped_fp8_gemm_nt_masked(operand, weights, d, is_of.sum(0).int(), expected_m)
    return d[flat, slot].view(*expert_of.shape, n)


def main(device: str) -> None:
    torch.manual_seed(0)
    weights = torch.randn(EXPERTS, INNER, HIDDEN, device=device) / HIDDEN**0.5
    quantized = quantized_weights(weights)
    for name, tokens in (("prefill", 200), ("decode", 6)):
        x = torch.randn(tokens, HIDDEN, device=device)
        expert_of = torch.rand(tokens, EXPERTS, device=device).topk(TOP_K).indices
        got = prefill(x, expert_of, quantized) if name == "prefill" else decode(x, expert_of, quantized, capacity=tokens)
        wanted = torch.einsum("tk,tenk->ten", x, weights[expert_of])
        error = float((got - wanted).norm() / wanted.norm())
        print(f"{name}, {tokens} tokens to {TOP_K} of {EXPERTS} experts each, on {device}: relative error {error:.4f}")
        assert error < 0.05


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
