"""The indexer of sparse attention in a prefill: logits of each query for each key that it may see, then the best keys.

    python indexer.py [cpu|cuda]
"""

from __future__ import annotations

import sys

import deep_gemm
import torch
from deep_gemm.utils import per_custom_dims_cast_to_fp8, per_token_cast_to_fp8

TOKENS, HEADS, DIM, TOP_K = 192, 32, 128, 16


def main(device: str) -> None:
    torch.manual_seed(0)
    q, k = torch.randn(TOKENS, HEADS, DIM, device=device), torch.randn(TOKENS, DIM, device=device)
    weights = torch.rand(TOKENS, HEADS, device=device)
    # One scale for a query's head, which goes into its weight, and one for a key.
    q_codes, q_scales = per_token_cast_to_fp8(q.view(-1, DIM), use_ue8m0=False)
    kv = per_custom_dims_cast_to_fp8(k, (0,), False)
    # Two sequences side by side: a query sees the keys of its own up to itself.
    position = torch.arange(TOKENS, dtype=torch.int32, device=device)
    start = torch.where(position < TOKENS // 3, 0, TOKENS // 3).int()
    logits = deep_gemm.fp8_mqa_logits(q_codes.view(q.shape), kv, weights * q_scales.view(TOKENS, HEADS), start, position + 1)

    wanted = torch.einsum("th,ths->ts", weights, torch.einsum("thd,sd->ths", q, k).relu())
    is_visible = (position >= start[:, None]) & (position <= position[:, None])
    assert logits[~is_visible].isneginf().all()
    error = float((logits - wanted)[is_visible].norm() / wanted[is_visible].norm())
    best = logits.topk(TOP_K).indices[-1]
    same = len(set(best.tolist()) & set(wanted.masked_fill(~is_visible, -torch.inf).topk(TOP_K).indices[-1].tolist()))
    print(f"logits of {TOKENS} queries with {HEADS} heads, on {device}: relative error {error:.4f}; {same} of the last query's {TOP_K} best keys are the same")
    assert error < 0.05 and same > TOP_K // 2


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
