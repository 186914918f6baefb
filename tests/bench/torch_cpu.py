#!/usr/bin/env python3
"""The casts and the hyperconnection prenorm on the CPU, beside what a user of torch would write.

All forms of a row take turns in one process, so that a busy machine slows all of them; trust ratios within a run. Inputs rotate over
160 MiB, so they come from memory. The limits of the machine, to compare GB/s and GFLOP/s with, are what bench_gemm_cpu prints first.

    python tests/bench/torch_cpu.py [--seconds 1] [--threads N] [--compile] [--only cast,hc] [--json out.json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

import deep_gemm

Form = Callable[[], object]
COLD_BYTES = 160 << 20


@dataclass(frozen=True)
class Row:
    operator: str
    case: str
    milliseconds: dict[str, float]  # by form; "deep_gemm" is this library
    gb_per_s: float  # of this library: what has to be read and written, once
    gflop_per_s: float

    def ratio(self, form: str) -> float:
        return self.milliseconds[form] / self.milliseconds["deep_gemm"]

    @property
    def best_of_torch(self) -> str:
        return min((form for form in self.milliseconds if form != "deep_gemm"), key=self.milliseconds.__getitem__)


class Rotating:
    """Copies of a tensor in turn, so that none is in cache when it comes up again."""

    def __init__(self, x: Tensor) -> None:
        copies = max(2, -(-COLD_BYTES // (x.numel() * x.element_size())))
        self.copies = [x.clone() for _ in range(min(copies, 64))]
        self.next = 0

    def __call__(self) -> Tensor:
        self.next = (self.next + 1) % len(self.copies)
        return self.copies[self.next]


def medians(forms: dict[str, Form], seconds: float) -> dict[str, float]:
    """Milliseconds of each form. Every timed call follows an untimed one, which wakes the threads."""
    times: dict[str, list[float]] = {name: [] for name in forms}
    end = time.perf_counter() + seconds * len(forms)
    while time.perf_counter() < end or len(times["deep_gemm"]) < 3:
        for name, form in forms.items():
            form()
            begin = time.perf_counter()
            form()
            times[name].append(time.perf_counter() - begin)
    return {name: 1e3 * statistics.median(values) for name, values in times.items()}


def cast_row(args: argparse.Namespace) -> Row:
    m, k = 4096, 7168
    x = Rotating(torch.randn(m, k).bfloat16())

    def eager(v: Tensor) -> tuple[Tensor, Tensor]:
        blocks = v.view(m, -1, 128)
        amax = blocks.abs().float().amax(2).clamp(1e-4)
        return (blocks * (448.0 / amax.unsqueeze(2))).to(torch.float8_e4m3fn).view(m, k), amax / 448

    def by_rows(v: Tensor, rows: int = 64) -> tuple[Tensor, Tensor]:
        codes, sf = torch.empty(m, k, dtype=torch.float8_e4m3fn), torch.empty(m, k // 128)
        for i in range(0, m, rows):
            blocks = v[i : i + rows].view(rows, -1, 128).float()
            amax = blocks.abs().amax(2).clamp(1e-4)
            codes[i : i + rows] = blocks.mul_(448.0 / amax.unsqueeze(2)).view(rows, k).to(torch.float8_e4m3fn)
            sf[i : i + rows] = amax / 448
        return codes, sf

    forms: dict[str, Form] = {
        "deep_gemm": lambda: deep_gemm.per_token_cast_to_fp8(x(), False),
        "eager": lambda: eager(x()),
        "by rows": lambda: by_rows(x()),
    }
    if args.compile:
        compiled = torch.compile(eager, dynamic=False)
        forms["compiled"] = lambda: compiled(x())
    times = medians(forms, args.seconds)
    return Row("per_token_cast_to_fp8", f"{m} x {k}", times, 1e-6 * (3 * m * k + 4 * m * k // 128) / times["deep_gemm"], 0)


def hc_row(m: int, args: argparse.Namespace) -> Row:
    n, k = 24, 28672
    a, b = Rotating(torch.randn(m, k).bfloat16()), torch.randn(n, k) * 0.01
    d, sqr_sum = torch.empty(m, n), torch.empty(m)

    def eager(v: Tensor) -> tuple[Tensor, Tensor]:
        y = v.float()
        return y @ b.T, y.square().sum(-1)

    def by_rows(v: Tensor, rows: int = 32) -> None:
        for i in range(0, m, rows):
            y = v[i : i + rows].float()
            torch.mm(y, b.T, out=d[i : i + rows])
            torch.linalg.vecdot(y, y, out=sqr_sum[i : i + rows])

    forms: dict[str, Form] = {
        "deep_gemm": lambda: deep_gemm.tf32_hc_prenorm_gemm(a(), b, d, sqr_sum),
        "eager": lambda: eager(a()),
        "by rows": lambda: by_rows(a()),
    }
    if args.compile:
        compiled = torch.compile(eager, dynamic=False)
        forms["compiled"] = lambda: compiled(a())
    times = medians(forms, args.seconds)
    size = 2 * m * k + 4 * n * k + 4 * m * (n + 1)
    return Row("tf32_hc_prenorm_gemm", f"{m} x {n} x {k}", times, 1e-6 * size / times["deep_gemm"], 2e-6 * m * (n + 1) * k / times["deep_gemm"])


def show(row: Row) -> None:
    forms = "  ".join(f"{form} {milliseconds:.2f}" for form, milliseconds in row.milliseconds.items())
    print(f"{row.operator} {row.case}: ms: {forms}", flush=True)
    ratios = f"{row.ratio('eager'):.1f} x eager, {row.ratio(row.best_of_torch):.1f} x the best of torch ({row.best_of_torch})"
    flops = f", {row.gflop_per_s:.0f} GFLOP/s" if row.gflop_per_s else ""
    print(f"    {ratios}; {row.gb_per_s:.1f} GB/s{flops}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1, help="for each form of a row")
    parser.add_argument("--threads", type=int, help="instead of torch's default")
    parser.add_argument("--compile", action="store_true", help="also torch.compile, which needs a C++ compiler")
    parser.add_argument("--only", default="cast,hc", help="which operators")
    parser.add_argument("--json", help="file that gets all numbers")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads")

    rows: list[Row] = []
    if "cast" in args.only.split(","):
        rows.append(cast_row(args))
        show(rows[-1])
    for m in (13, 128, 1024) if "hc" in args.only.split(",") else ():
        rows.append(hc_row(m, args))
        show(rows[-1])
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump([asdict(row) for row in rows], file, indent=1)


if __name__ == "__main__":
    main()
