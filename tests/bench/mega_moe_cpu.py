#!/usr/bin/env python3
"""Mega MoE on the CPU beside the same layer written with torch, all in one run.

    python tests/bench/mega_moe_cpu.py [--isa avx2] [--experts 8] [--topk 2] [--tokens 4,64,512] [--sizes 2048x1024] [--seconds 1]
                                       [--threads N] [--cpu-time]

The layer of torch sorts tokens by expert, multiplies, applies SwiGLU and the routing weight, multiplies again and adds the terms of each
token. For FP8 x FP4 the same job is to dequantise the weights of an expert when it comes up, and to round h to FP8 between the layers;
the other peers keep a BF16 or F32 copy of the weights, four or eight times the memory, and round nothing to FP8. Peers alternate, weights
rotate over 160 MiB so that they come from memory, and times are medians: on a noisy machine trust the ratios (time of the peer by ours, so
above 1 is faster), not the times. Where others use the processors too, --threads 1 --cpu-time counts only the time that this process runs.
--isa avx2 holds this library, torch and what torch calls to AVX2, as on a machine without AVX-512.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from peers import Measure, Peers, Rotation, hold_to_avx2, median_seconds, report

if TYPE_CHECKING:
    from torch import Tensor

    from deep_gemm.mega import SymmBuffer

Expert = Callable[[int], "Tensor"]  # its weights, [n, k]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", choices=["avx2"])
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--topk", type=int, default=2)
    parser.add_argument("--tokens", default="4,64,512")
    parser.add_argument("--sizes", default="2048x1024", help="hidden x intermediate")
    parser.add_argument("--seconds", type=float, default=1.0, help="per peer, at least three calls")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--cpu-time", action="store_true")
    return parser.parse_args()


def layer_of_torch(buffer: SymmBuffer, x: Tensor, l1: Expert, l2: Expert, round_h: Callable[[Tensor], Tensor]) -> Tensor:
    import torch

    count = len(x)
    topk_idx, topk_weights = buffer.topk_idx[:count], buffer.topk_weights[:count]
    y = torch.zeros(x.shape)
    for expert in range(buffer.num_experts):
        tokens, ks = (topk_idx == expert).nonzero(as_tuple=True)
        if len(tokens):
            gate, up = (x[tokens] @ l1(expert).T).chunk(2, dim=1)
            h = torch.nn.functional.silu(gate) * up * topk_weights[tokens, ks, None].to(x.dtype)
            y.index_add_(0, tokens, (round_h(h) @ l2(expert).T).float())
    return y.bfloat16()


def rounded_to_fp8(h: Tensor) -> Tensor:
    """As values: blocks of 32 columns by a power of two, to codes and back."""
    import torch

    blocks = h.view(len(h), -1, 32)
    scale = (blocks.abs().amax(2, keepdim=True).float().clamp(1e-4) / 448).log2().ceil().exp2()
    return ((blocks / scale).to(torch.float8_e4m3fn).to(h.dtype) * scale.to(h.dtype)).view(h.shape)


def bench(experts: int, topk: int, count: int, hidden: int, intermediate: int, measure: Measure) -> None:
    import torch

    import deep_gemm

    def buffer_for(mma_type: str) -> SymmBuffer:
        buffer = deep_gemm.get_symm_buffer_for_mega_moe(None, experts, count, topk, hidden, intermediate, mma_type=mma_type)
        buffer.topk_idx[:count] = torch.rand(count, experts).topk(topk, dim=1).indices
        buffer.topk_weights[:count] = torch.rand(count, topk)
        return buffer

    x = torch.randn(count, hidden)
    y = torch.empty(count, hidden, dtype=torch.bfloat16)
    w1, w2 = torch.randn(experts, 2 * intermediate, hidden) * hidden**-0.5, torch.randn(experts, hidden, intermediate) * intermediate**-0.5
    pairs = [
        tuple(t.view(experts, n, -1) for t in deep_gemm.per_token_cast_to_fp4(w.view(experts * n, -1), True, 32, True))
        for w, n in ((w1, 2 * intermediate), (w2, hidden))
    ]
    (codes1, sf1), (codes2, sf2) = pairs
    (l1_codes, l1_sf), (l2_codes, l2_sf) = deep_gemm.transform_weights_for_mega_moe((codes1, sf1), (codes2, sf2))
    fp4_1, fp4_2, stored1, stored2 = (Rotation(t) for t in (l1_codes, l2_codes, codes1, codes2))
    f32_1, f32_2 = Rotation(w1), Rotation(w2)
    bf16_1, bf16_2 = Rotation(w1.bfloat16()), Rotation(w2.bfloat16())
    l1_bf16, _ = deep_gemm.transform_weights_for_mega_moe(bf16_1.copies[0], bf16_2.copies[0])
    fused1 = Rotation(l1_bf16)

    fp8, bf16 = buffer_for("fp8xfp4"), buffer_for("bf16xbf16")
    assert fp8.x_sf is not None
    fp8.x[:count], fp8.x_sf[:count] = deep_gemm.per_token_cast_to_fp8(x, True, 32, True)
    bf16.x[:count] = x.bfloat16()

    def same(h: Tensor) -> Tensor:
        return h

    def dequantised(codes: Tensor, sf: Tensor, dtype: torch.dtype) -> Expert:
        return lambda e: deep_gemm.cast_back_from_fp4(codes[e], sf[e], 32, True).to(dtype)

    def copy(weights: Tensor) -> Expert:
        return lambda e: weights[e]

    def same_job(dtype: torch.dtype) -> Tensor:
        l1, l2 = dequantised(stored1(), sf1, dtype), dequantised(stored2(), sf2, dtype)
        return layer_of_torch(fp8, x.to(dtype), l1, l2, rounded_to_fp8)

    bf16_copy = lambda: layer_of_torch(bf16, x.bfloat16(), copy(bf16_1()), copy(bf16_2()), same)  # noqa: E731
    f32_copy = lambda: layer_of_torch(bf16, x, copy(f32_1()), copy(f32_2()), same)  # noqa: E731
    peers: dict[str, Peers] = {
        "fp8 x fp4": {
            "fp8_fp4_mega_moe": lambda: deep_gemm.fp8_fp4_mega_moe(y, (fp4_1(), l1_sf), (fp4_2(), l2_sf), fp8),
            "same job: dequantise to f32": lambda: same_job(torch.float32),
            "same job: dequantise to bf16": lambda: same_job(torch.bfloat16),
            "bf16 copy": bf16_copy,
            "f32 copy": f32_copy,
        },
        "bf16": {
            "bf16_mega_moe": lambda: deep_gemm.bf16_mega_moe(y, fused1(), bf16_2(), bf16),
            "bf16 copy": bf16_copy,
            "f32 copy": f32_copy,
        },
    }
    flops = 2.0 * count * topk * hidden * intermediate * 3
    for name, calls in peers.items():
        title = f"{name}, {count} tokens, {topk} of {experts} experts, hidden={hidden}, intermediate={intermediate}"
        report(title, flops, measure(calls))


def main() -> None:
    args = arguments()
    if args.isa == "avx2":
        hold_to_avx2()
    import torch

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {args.threads} threads")
    hidden, intermediate = (int(x) for x in args.sizes.split("x"))
    clock = time.process_time if args.cpu_time else time.perf_counter
    for count in args.tokens.split(","):
        bench(args.experts, args.topk, int(count), hidden, intermediate, lambda peers: median_seconds(peers, args.seconds, clock))


if __name__ == "__main__":
    main()
