#!/usr/bin/env python3
"""GPU time of the dense GEMMs on CUDA, beside torch.mm of the same shape and, if given, a table of earlier times.

Time is the mean duration of the call's kernels as the CUDA profiler reports it, with L2 flushed before every call, on random
normal data (zeros run faster). The clock of a card varies: a fixed torch.mm, the anchor, is timed in the same run, and times can be
compared as multiples of it. Prints a table, and JSON to --json.

    python tests/bench/gemm_cuda.py [--baseline times.csv] [--json out.json] [--calls 30] [--filter bf16]

The columns of a baseline file are section, case, us, ...; rows are found by the case text that the table shows.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch.profiler import ProfilerActivity, profile

import deep_gemm

ANCHOR = (4096, 7168, 2048)  # m, n, k
FLUSH_BYTES = 8 << 30

SHAPES = [
    (m, n, k)
    for m in (1, 8, 16, 128, 4096)
    for n, k in ((2112, 7168), (576, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))
] + [(4096, 4096, 4096)]


@dataclass(frozen=True)
class Row:
    section: str
    case: str
    us: float
    tflops: float
    gb_per_s: float
    torch_mm_us: float
    baseline_us: float | None


def kernel_us(call: Callable[[], object], calls: int, flush: torch.Tensor) -> float:
    """Mean device time of one call: the sum of its kernels."""
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(calls):
            flush.zero_()
            call()
        torch.cuda.synchronize()
    total = 0.0
    for event in profiler.key_averages():
        if "Memset" not in event.key and "FillFunctor" not in event.key:
            total += event.self_device_time_total
    if total == 0:
        sys.exit("the profiler saw no kernel")
    return total / calls


def quantize(x: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 codes and one f32 scale for each block of rows x 128."""
    mn, k = x.shape
    padded = torch.zeros(-(-mn // rows) * rows, -(-k // 128) * 128, device=x.device)
    padded[:mn, :k] = x
    blocks = padded.view(-1, rows, padded.shape[1] // 128, 128)
    scale = blocks.abs().amax((1, 3)).clamp(1e-4) / 448
    codes = (blocks / scale[:, None, :, None]).view(padded.shape)[:mn, :k]
    return codes.to(torch.float8_e4m3fn).contiguous(), scale


def fp8_call(m: int, n: int, k: int) -> tuple[str, str, Callable[[], None], int]:
    a = quantize(torch.randn(m, k, device="cuda"), 1)
    b = quantize(torch.randn(n, k, device="cuda"), 128)
    d = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    size = a[0].numel() + b[0].numel() + 4 * (a[1].numel() + b[1].numel()) + 2 * d.numel()
    return "fp8_fp4: GEMM", f"m={m}, n={n}, k={k}, 1D2D, layout=NT, BF16, acc=0", lambda: deep_gemm.fp8_gemm_nt(a, b, d), size


def bf16_call(m: int, n: int, k: int) -> tuple[str, str, Callable[[], None], int]:
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    d = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    size = 2 * (a.numel() + b.numel() + d.numel())
    return "bf16: GEMM", f"m={m}, n={n}, k={k}, layout=NT, BF16, acc=0", lambda: deep_gemm.bf16_gemm_nt(a, b, d), size


def torch_mm_us(m: int, n: int, k: int, calls: int, flush: torch.Tensor) -> float:
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    d = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    return kernel_us(lambda: torch.mm(a, b.T, out=d), calls, flush)


def read_baseline(path: str | None) -> dict[tuple[str, str], float]:
    if path is None:
        return {}
    with open(path, newline="", encoding="utf-8") as file:
        return {(row["section"], row["case"]): float(row["us"]) for row in csv.DictReader(file)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baseline", help="CSV file of times to compare with")
    parser.add_argument("--json", help="file that gets all numbers")
    parser.add_argument("--calls", type=int, default=30, help="timed calls per case")
    parser.add_argument("--filter", default="", help="only sections that contain this")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("needs a CUDA device")

    torch.manual_seed(0)
    baseline = read_baseline(args.baseline)
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    anchor = torch_mm_us(*ANCHOR, args.calls, flush)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; anchor: torch.mm bf16 {ANCHOR} {anchor:.1f} us")
    print(f"{'case':66} {'us':>8} {'TFLOP/s':>8} {'GB/s':>6} {'x torch.mm':>10} {'x anchor':>8} {'x baseline':>10}")

    rows: list[Row] = []
    for m, n, k in SHAPES:
        mm = torch_mm_us(m, n, k, args.calls, flush)
        for make in (bf16_call, fp8_call):
            section, case, call, size = make(m, n, k)
            if args.filter not in section:
                continue
            us = kernel_us(call, args.calls, flush)
            row = Row(section, case, us, 2e-6 * m * n * k / us, 1e-3 * size / us, mm, baseline.get((section, case)))
            rows.append(row)
            ratio = f"{us / row.baseline_us:10.2f}" if row.baseline_us else f"{'-':>10}"
            name = f"{section.split(':')[0]} {case}"
            print(f"{name:66} {us:8.1f} {row.tflops:8.0f} {row.gb_per_s:6.0f} {us / mm:10.2f} {us / anchor:8.3f} {ratio}", flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"device": torch.cuda.get_device_name(), "anchor_us": anchor, "rows": [asdict(row) for row in rows]}, file, indent=1)


if __name__ == "__main__":
    main()
