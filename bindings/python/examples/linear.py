"""A linear layer in FP8: the weight is quantised once, the input at every call.

    python linear.py [cpu|cuda]
"""

from __future__ import annotations

import sys

import deep_gemm
import torch
from deep_gemm.utils import per_block_cast_to_fp8, per_token_cast_to_fp8
from torch import Tensor, nn


class Fp8Linear(nn.Module):
    """Takes the place of an nn.Linear, for inference."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight, scales = per_block_cast_to_fp8(linear.weight.detach(), use_ue8m0=False)
        self.register_buffer("weight", weight)  # e4m3 [out_features, in_features]
        self.register_buffer("scales", scales)  # f32, one for each block of 128 x 128
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().bfloat16())

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        codes, scales = per_token_cast_to_fp8(rows, use_ue8m0=False)  # a scale for each 128 elements of a row
        out = torch.empty(rows.shape[0], self.weight.shape[0], dtype=torch.bfloat16, device=x.device)
        deep_gemm.fp8_gemm_nt((codes, scales), (self.weight, self.scales), out)
        if self.bias is not None:
            out += self.bias
        return out.view(*x.shape[:-1], -1)


def main(device: str) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(1024, 768, device=device)
    x = torch.randn(4, 24, 1024, device=device).bfloat16()
    layer = Fp8Linear(linear)
    with torch.inference_mode():
        wanted = linear(x.float())
        got = layer(x)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")  # one graph: the operators are torch's
        assert torch.equal(compiled(x), got)
    error = float((got - wanted).norm() / wanted.norm())
    print(f"[96, 1024] @ [768, 1024].T on {device}: relative error {error:.4f}")
    assert error < 0.05


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
