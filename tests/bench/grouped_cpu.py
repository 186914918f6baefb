#!/usr/bin/env python3
"""The grouped GEMMs on the CPU beside what torch offers for the same job, all in one run.

    python tests/bench/grouped_cpu.py [--isa avx2] [--groups 8] [--rows 64,8] [--nk 4096x2048] [--seconds 1] [--threads N] [--cpu-time]

For FP8 the same job is to dequantise the weights in each call and multiply; the other peers keep a BF16 or F32 copy of the weights, two or
four times the memory. For BF16 the peer is torch's own grouped GEMM. Peers alternate, weights rotate over 160 MiB so that they come from
memory, and times are medians: on a noisy machine trust the ratios (time of the peer by ours, so above 1 is faster), not the times. Where
others use the processors too, --threads 1 --cpu-time counts only the time that this process runs.
--isa avx2 holds this library, torch and what torch calls to AVX2, as on a machine without AVX-512.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import TYPE_CHECKING

from peers import Measure, Rotation, hold_to_avx2, median_seconds, report

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 128


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", choices=["avx2"])
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--rows", default="64,8", help="of each group")
    parser.add_argument("--nk", default="4096x2048")
    parser.add_argument("--seconds", type=float, default=1.0, help="per peer, at least three calls")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--cpu-time", action="store_true")
    return parser.parse_args()


def bench_shape(groups: int, rows: int, n: int, k: int, measure: Measure) -> None:
    import torch

    import deep_gemm

    m = groups * rows
    flops = 2.0 * m * n * k
    layout = torch.arange(groups, dtype=torch.int32).repeat_interleave(rows)
    masked_m = torch.full((groups,), rows, dtype=torch.int32)
    ends = torch.arange(rows, m + 1, rows, dtype=torch.int32)
    deep_gemm.set_mk_alignment_for_contiguous_layout(rows)

    codes = [deep_gemm.per_block_cast_to_fp8(torch.randn(n, k) * 0.05, use_ue8m0=False) for _ in range(groups)]
    b8, sfb = Rotation(torch.stack([x for x, _ in codes])), torch.stack([sf for _, sf in codes])
    a8, sfa = deep_gemm.per_token_cast_to_fp8(torch.randn(m, k), use_ue8m0=False)

    def dequantised(x: Tensor, sf: Tensor, dtype: torch.dtype) -> Tensor:
        """One group of weights, block by block in one pass over them."""
        blocks = x.view(n // BLOCK, BLOCK, k // BLOCK, BLOCK).to(dtype)
        return (blocks * sf.to(dtype)[:, None, :, None]).view(n, k)

    a32 = (a8.float().view(m, k // BLOCK, BLOCK) * sfa[..., None]).view(m, k)
    a16 = a32.bfloat16()
    b32 = Rotation(torch.stack([dequantised(b8.copies[0][g], sfb[g], torch.float32) for g in range(groups)]))
    b16 = Rotation(b32.copies[0].bfloat16())
    d, d3 = torch.empty(m, n, dtype=torch.bfloat16), torch.empty(groups, rows, n, dtype=torch.bfloat16)
    parts = [slice(g * rows, (g + 1) * rows) for g in range(groups)]

    def dequantise_and_mm(a: Tensor) -> Tensor:
        b = b8()
        return torch.cat([a[parts[g]] @ dequantised(b[g], sfb[g], a.dtype).T for g in range(groups)])

    def mm(a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([a[parts[g]] @ b[g].T for g in range(groups)])

    contiguous = {
        "m_grouped_fp8_gemm_nt_contiguous": lambda: deep_gemm.m_grouped_fp8_gemm_nt_contiguous((a8, sfa), (b8(), sfb), d, layout),
        "same job: dequantise to f32, mm": lambda: dequantise_and_mm(a32),
        "same job: dequantise to bf16, mm": lambda: dequantise_and_mm(a16),
        "bf16 copy, mm per group": lambda: mm(a16, b16()),
        "bf16 copy, _grouped_mm": lambda: torch._grouped_mm(a16, b16().mT, ends),
        "f32 copy, mm per group": lambda: mm(a32, b32()),
    }
    masked = {
        "m_grouped_fp8_gemm_nt_masked": lambda: deep_gemm.m_grouped_fp8_gemm_nt_masked(
            (a8.view(groups, rows, k), sfa.view(groups, rows, -1)), (b8(), sfb), d3, masked_m, rows
        ),
    }
    bf16 = {
        "m_grouped_bf16_gemm_nt_contiguous": lambda: deep_gemm.m_grouped_bf16_gemm_nt_contiguous(a16, b16(), d, layout),
        "_grouped_mm": lambda: torch._grouped_mm(a16, b16().mT, ends),
        "mm per group": lambda: mm(a16, b16()),
        "f32 copy, mm per group": lambda: mm(a32, b32()),
    }
    shape = f"{groups} groups of {rows}, n={n}, k={k}"
    report(f"fp8, {shape}", flops, measure(contiguous))
    report(f"fp8 masked, {shape}", flops, measure(masked))
    report(f"bf16, {shape}", flops, measure(bf16))


def main() -> None:
    args = arguments()
    if args.isa == "avx2":
        hold_to_avx2()
    import torch

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {args.threads} threads")
    n, k = (int(x) for x in args.nk.split("x"))
    clock = time.process_time if args.cpu_time else time.perf_counter
    for rows in args.rows.split(","):
        bench_shape(args.groups, int(rows), n, k, lambda peers: median_seconds(peers, args.seconds, clock))


if __name__ == "__main__":
    main()
