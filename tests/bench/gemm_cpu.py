#!/usr/bin/env python3
"""The dense GEMMs on the CPU beside what torch offers for the same job, and beside reading the weights, all in one run.

    python tests/bench/gemm_cpu.py [--isa avx2] [--m 1,4,16,64,128,512] [--nk 2112x7168,576x7168] [--seconds 1] [--threads N] [--json FILE]

For FP8 the same job is to dequantise the weights in each call and multiply; the other peers keep a BF16 or F32 copy of the weights, two or
four times the memory. `read` is the sum of as many bytes as the FP8 weights have, the fastest that torch reads memory. Peers take turns and
weights rotate over 160 MiB, so that they come from memory. Each ratio is the median over the rounds of the peer's time by ours, so above 1
is faster; on a machine whose speed drifts trust the ratios, not the times. DG_BACKEND chooses the row, --isa avx2 holds this library, torch
and what torch calls to AVX2.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import TYPE_CHECKING

from peers import Peers, Rotation, hold_to_avx2

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 128
OURS = "deep_gemm"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", choices=["avx2"])
    parser.add_argument("--m", default="1,4,16,64,128,512")
    parser.add_argument("--nk", default="2112x7168")
    parser.add_argument("--types", default="fp8,bf16")
    parser.add_argument("--seconds", type=float, default=1.0, help="per peer, at least three rounds")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", help="file that gets one object per line and row")
    return parser.parse_args()


def rounds(peers: Peers, seconds: float) -> dict[str, list[float]]:
    """Seconds of each peer in each round. A call that is not timed goes before each that is, so that its threads are awake."""
    times: dict[str, list[float]] = {name: [] for name in peers}
    while len(times[OURS]) < 3 or sum(map(sum, times.values())) < seconds * len(peers):
        for name, call in peers.items():
            call()
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
    return times


def fp8_peers(m: int, n: int, k: int) -> Peers:
    import torch

    import deep_gemm
    from deep_gemm.utils import per_block_cast_to_fp8, per_token_cast_to_fp8

    x, w = torch.randn(m, k), torch.randn(n, k)
    a, (codes, sf) = per_token_cast_to_fp8(x, False), per_block_cast_to_fp8(w, False)
    d = torch.empty(m, n, dtype=torch.bfloat16)
    weights, bf16, f32 = Rotation(codes), Rotation(w.bfloat16()), Rotation(w)
    x16 = x.bfloat16()
    wide = torch.empty(n, k)

    def dequantise_and_mm() -> Tensor:
        wide.copy_(weights())
        wide.view(n, k // BLOCK, BLOCK).mul_(sf.repeat_interleave(BLOCK, 0)[:n].unsqueeze(2))
        return x @ wide.T

    return {
        OURS: lambda: deep_gemm.fp8_gemm_nt(a, (weights(), sf), d),
        "dequantise and mm": dequantise_and_mm,
        "mm, bf16 copy": lambda: torch.mm(x16, bf16().T),
        "mm, f32 copy": lambda: torch.mm(x, f32().T),
        "read": lambda: weights().view(torch.float32).sum(),
    }


def bf16_peers(m: int, n: int, k: int) -> Peers:
    import torch

    import deep_gemm

    a = torch.randn(m, k).bfloat16()
    weights, d = Rotation(torch.randn(n, k).bfloat16()), torch.empty(m, n, dtype=torch.bfloat16)
    return {
        OURS: lambda: deep_gemm.bf16_gemm_nt(a, weights(), d),
        "mm": lambda: torch.mm(a, weights().T),
        "read": lambda: weights().view(torch.float32).sum(),
    }


def main() -> None:
    args = arguments()
    if args.isa == "avx2":
        hold_to_avx2()
    import torch

    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    row_name = os.environ.get("DG_BACKEND", "best row")
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {args.threads} threads; deep_gemm: {row_name}", flush=True)
    makers = {"fp8": fp8_peers, "bf16": bf16_peers}
    for kind in args.types.split(","):
        for nk in args.nk.split(","):
            n, k = map(int, nk.split("x"))
            for m in map(int, args.m.split(",")):
                times = rounds(makers[kind](m, n, k), args.seconds)
                ours = statistics.median(times[OURS])
                ratios = {
                    name: statistics.median(theirs / own for theirs, own in zip(values, times[OURS]))
                    for name, values in times.items()
                    if name != OURS
                }
                size = n * k * (1 if kind == "fp8" else 2)
                peers = ", ".join(f"{ratio:.2f} x {name}" for name, ratio in ratios.items() if name != "read")
                print(
                    f"{kind} {m} x {n} x {k}: {1e3 * ours:.2f} ms, {2e-9 * m * n * k / ours:.0f} GFLOP/s, {1e-9 * size / ours:.1f} GB/s of weights; "
                    f"{peers}; {ratios['read']:.2f} of reading",
                    flush=True,
                )
                if args.json:
                    with open(args.json, "a", encoding="utf-8") as f:
                        f.write(json.dumps({"type": kind, "m": m, "n": n, "k": k, "row": row_name, "seconds": ours, "ratios": ratios}) + "\n")


if __name__ == "__main__":
    main()
