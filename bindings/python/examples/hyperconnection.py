"""The projection of a hyperconnection: RMS-normalised residual streams times a small matrix, without writing the normalised streams.

A row's norm is a factor of its result, so one pass over the streams gives both the product and the sum of squares.

    python hyperconnection.py [cpu|cuda]
"""

from __future__ import annotations

import sys

import deep_gemm
import torch
from torch import Tensor

TOKENS, STREAMS, HIDDEN = 96, 4, 512
OUTPUTS = STREAMS * STREAMS + 2 * STREAMS  # a matrix that mixes the streams, and the weights of reading and writing them
EPSILON = 1e-6


def project(x: Tensor, weight: Tensor, num_splits: int | None = None) -> Tensor:
    """rms_norm(x) @ weight.T for x bf16 [tokens, k] and weight f32 [n, k]. With splits, parts of k are summed apart, which keeps a GPU busy
    when there are few tokens."""
    splits = [] if num_splits is None else [num_splits]
    product = torch.empty(*splits, x.shape[0], weight.shape[0], device=x.device)
    squares = torch.empty(*splits, x.shape[0], device=x.device)
    deep_gemm.tf32_hc_prenorm_gemm(x, weight, product, squares, num_splits)
    if num_splits is not None:
        product, squares = product.sum(0), squares.sum(0)
    return product * (squares / x.shape[1] + EPSILON).rsqrt()[:, None]


def main(device: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(TOKENS, STREAMS * HIDDEN, device=device).bfloat16()
    weight = torch.randn(OUTPUTS, STREAMS * HIDDEN, device=device) / (STREAMS * HIDDEN) ** 0.5
    wanted = torch.nn.functional.rms_norm(x.double(), x.shape[1:], eps=EPSILON) @ weight.double().T
    for num_splits in (None, 4):
        error = float((project(x, weight, num_splits) - wanted).norm() / wanted.norm())
        print(f"{STREAMS} streams of [{TOKENS}, {HIDDEN}], num_splits {num_splits}, on {device}: relative error {error:.1e}")
        assert error < 1e-3


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
