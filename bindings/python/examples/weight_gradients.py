"""Weight gradients of a grouped layer: dW[g] = x[g].T @ dy[g], added up over steps, with FP8 operands and an f32 sum.

Group g has its own number of tokens. Scales run along the tokens, one for each 128 of them in a column, because that is the dimension
that is summed over.

    python weight_gradients.py [cpu|cuda]
"""

from __future__ import annotations

import sys

import deep_gemm
import torch
from deep_gemm.utils import per_channel_cast_to_fp8

TOKENS = [256, 128, 0, 384]  # of each group: multiples of the alignment, so that no block of scales has rows of two groups
N_IN, N_OUT, STEPS = 192, 160, 3


def main(device: str) -> None:
    torch.manual_seed(0)
    assert all(count % deep_gemm.get_mk_alignment_for_contiguous_layout() == 0 for count in TOKENS)
    sizes = torch.tensor(TOKENS, dtype=torch.int32, device=device)
    gradient = torch.zeros(len(TOKENS), N_IN, N_OUT, device=device)
    wanted = torch.zeros_like(gradient)
    for _ in range(STEPS):
        x, dy = torch.randn(sum(TOKENS), N_IN, device=device), torch.randn(sum(TOKENS), N_OUT, device=device)
        a, b = per_channel_cast_to_fp8(x, use_ue8m0=False), per_channel_cast_to_fp8(dy, use_ue8m0=False)
        # c is d: the product is added to what is there.
        deep_gemm.k_grouped_fp8_gemm_tn_contiguous(a, b, gradient, TOKENS, sizes, c=gradient)
        for group, (rows, columns) in enumerate(zip(x.split(TOKENS), dy.split(TOKENS))):
            wanted[group] += rows.T @ columns
    error = float((gradient - wanted).norm() / wanted.norm())
    print(f"gradients of {len(TOKENS)} groups with {TOKENS} tokens over {STEPS} steps, on {device}: relative error {error:.4f}")
    assert error < 0.05 and gradient[TOKENS.index(0)].eq(0).all()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
