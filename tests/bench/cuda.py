#!/usr/bin/env python3
"""GPU time of the operators on CUDA, beside a peer of torch and, if given, a table of earlier times.

The peer of a GEMM is torch.mm in bf16 of the same shape, of a grouped one so many as it has groups; that of a cast or of the hyperconnection prenorm, which move memory, is a copy that
reads and writes as many bytes in all. Time is the mean duration of the call's kernels as the CUDA profiler reports it, with L2 flushed before
every call, on random normal data (zeros run faster). The clock of a card varies: a fixed torch.mm, the anchor, is timed in the same run, and
times can be compared as multiples of it. Prints a table with a geometric mean per section, and JSON to --json.

    python tests/bench/cuda.py [--baseline times.csv] [--json out.json] [--calls 30] [--filter hyper]

The columns of a baseline file are section, case, us, ...; rows are found by the case text that the table shows.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial

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
    peer_us: float
    baseline_us: float | None


@dataclass(frozen=True)
class Case:
    section: str
    name: str
    call: Callable[[], object]
    flops: int
    size: int  # bytes that have to be read and written, once
    peer: Callable[[], object]


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


def gemm_cases() -> Iterator[Case]:
    for m, n, k in SHAPES:
        a, b = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
        d = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        a16, b16, flops = a.bfloat16(), b.bfloat16(), 2 * m * n * k
        peer = partial(torch.mm, a16, b16.T, out=torch.empty_like(d))
        size = 2 * (a.numel() + b.numel() + d.numel())
        name = f"m={m}, n={n}, k={k}, layout=NT, BF16, acc=0"
        yield Case("bf16: GEMM", name, partial(deep_gemm.bf16_gemm_nt, a16, b16, d), flops, size, peer)
        a8, b8 = quantize(a, 1), quantize(b, 128)
        size = a.numel() + b.numel() + 4 * (a8[1].numel() + b8[1].numel()) + 2 * d.numel()
        name = f"m={m}, n={n}, k={k}, 1D2D, layout=NT, BF16, acc=0"
        yield Case("fp8_fp4: GEMM", name, partial(deep_gemm.fp8_gemm_nt, a8, b8, d), flops, size, peer)


def group_sizes(groups: int, rows: int) -> list[int]:
    """Rows of groups that have `rows` on the average."""
    return [int(rows * factor) for factor in torch.empty(groups).uniform_(0.7, 1.3).tolist()]


def peers_of(a: list[torch.Tensor], b: list[torch.Tensor]) -> Callable[[], None]:
    """torch.mm of each a with its b, into memory of its own."""
    results = [torch.empty(x.shape[0], y.shape[1], device="cuda", dtype=torch.bfloat16) for x, y in zip(a, b)]

    def run() -> None:
        for x, y, result in zip(a, b, results):
            torch.mm(x, y, out=result)

    return run


def stacked(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.stack([codes for codes, _ in pairs]), torch.stack([scales for _, scales in pairs])


def m_grouped_cases() -> Iterator[Case]:
    alignment = deep_gemm.get_mk_alignment_for_contiguous_layout()
    for groups, rows in ((4, 8192), (8, 4096)):
        for n, k in ((6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048)):
            sizes = [-(-size // alignment) * alignment for size in group_sizes(groups, rows)]
            m = sum(sizes)
            a, b = torch.randn(m, k, device="cuda"), torch.randn(groups, n, k, device="cuda")
            layout = torch.arange(groups, device="cuda", dtype=torch.int32).repeat_interleave(torch.tensor(sizes, device="cuda"))
            d = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
            a16, b16, flops = a.bfloat16(), b.bfloat16(), 2 * m * n * k
            peer = peers_of(list(a16.split(sizes)), list(b16.mT))
            name = f"num_groups={groups}, mean rows={rows}, n={n}, k={k}"
            size = 2 * (a.numel() + b.numel() + d.numel())
            yield Case("bf16: m-grouped contiguous", name, partial(deep_gemm.m_grouped_bf16_gemm_nt_contiguous, a16, b16, d, layout), flops, size, peer)
            a8, b8 = quantize(a, 1), stacked([quantize(x, 128) for x in b])
            call = partial(deep_gemm.m_grouped_fp8_gemm_nt_contiguous, a8, b8, d, layout)
            yield Case("fp8_fp4: m-grouped contiguous", name, call, flops, a.numel() + b.numel() + 2 * d.numel(), peer)


def masked_cases() -> Iterator[Case]:
    max_m = 4096
    for groups, rows in ((6, 1024), (32, 192), (6, 20), (32, 20)):
        for n, k in ((6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048)):
            sizes = group_sizes(groups, rows)
            a = torch.randn(groups * max_m, k, device="cuda")
            b = torch.randn(groups, n, k, device="cuda")
            d = torch.empty(groups, max_m, n, device="cuda", dtype=torch.bfloat16)
            masked_m = torch.tensor(sizes, device="cuda", dtype=torch.int32)
            a16, b16, flops = a.view(groups, max_m, k).bfloat16(), b.bfloat16(), 2 * sum(sizes) * n * k
            peer = peers_of([x[:size] for x, size in zip(a16, sizes)], list(b16.mT))
            used = sum(sizes) * k + b.numel()
            name = f"num_groups={groups}, expected_m_per_group={rows}, n={n}, k={k}"
            call = partial(deep_gemm.m_grouped_bf16_gemm_nt_masked, a16, b16, d, masked_m, rows)
            yield Case("bf16: m-grouped masked GEMM", f"{name}, psum=0", call, flops, 2 * (used + sum(sizes) * n), peer)
            codes, scales = quantize(a, 1)
            a8 = codes.view(groups, max_m, k), scales.view(groups, max_m, -1)
            call = partial(deep_gemm.m_grouped_fp8_gemm_nt_masked, a8, stacked([quantize(x, 128) for x in b]), d, masked_m, rows)
            yield Case("fp8_fp4: m-grouped masked GEMM", f"{name}, 1D2D, psum=0", call, flops, used + 2 * sum(sizes) * n, peer)


def k_grouped_cases() -> Iterator[Case]:
    for groups, rows in ((4, 8192), (8, 4096)):
        for m, n in ((4096, 7168), (7168, 2048)):
            ks = [-(-size // 128) * 128 for size in group_sizes(groups, rows)]
            k = sum(ks)
            a, b = torch.randn(k, m, device="cuda").bfloat16(), torch.randn(k, n, device="cuda").bfloat16()
            d = torch.zeros(groups, m, n, device="cuda")
            layout = torch.tensor(ks, device="cuda", dtype=torch.int32)
            flops, peer = 2 * m * n * k, peers_of([x.T for x in a.split(ks)], list(b.split(ks)))
            name = f"num_groups={groups}, m={m}, n={n}, mean k={rows}"
            call = partial(deep_gemm.k_grouped_bf16_gemm_tn_contiguous, a, b, d, ks, layout, d)
            yield Case("bf16: k-grouped contiguous", name, call, flops, 2 * (a.numel() + b.numel()) + 8 * d.numel(), peer)
            sides = []
            for x in (a, b):
                pairs = [quantize(part.T.float(), 1) for part in x.split(ks)]
                sides.append((torch.cat([codes.flatten() for codes, _ in pairs]), torch.cat([scales for _, scales in pairs], 1)))
            call = partial(deep_gemm.k_grouped_fp8_gemm_nt_contiguous, *sides, d, ks, layout, d)
            yield Case("fp8_fp4: k-grouped contiguous", name, call, flops, a.numel() + b.numel() + 8 * d.numel(), peer)


def prenorm_cases() -> Iterator[Case]:
    n = 24
    for m in (13, 137, 4096, 8192):
        for k in (28672, 7680, 7168):
            for splits in (0, 16):
                a, b = torch.randn(m, k, device="cuda", dtype=torch.bfloat16), torch.randn(n, k, device="cuda")
                shape = (splits, m) if splits else (m,)
                d, squares = torch.empty(*shape, n, device="cuda"), torch.empty(shape, device="cuda")
                size = 2 * a.numel() + 4 * (b.numel() + d.numel() + squares.numel())
                call = partial(deep_gemm.tf32_hc_prenorm_gemm, a, b, d, squares, num_splits=splits or None)
                name = f"m={m}, n={n}, k={k}, num_splits={splits}"
                yield Case("hyperconnection: hyperconnection prenorm GEMM", name, call, 2 * m * (n + 1) * k, size, copy_of(size))


def cast_cases() -> Iterator[Case]:
    m, n = 16384, 7168
    for dtype in (torch.bfloat16, torch.float32):
        x = torch.randn(m, n, device="cuda").to(dtype)
        read = x.numel() * x.element_size()
        for name, call, written in (
            ("per_token_cast_to_fp8", partial(deep_gemm.per_token_cast_to_fp8, x, False), m * n + m * n // 32),
            ("per_token_cast_to_fp8, gran_k=32, packed", partial(deep_gemm.per_token_cast_to_fp8, x, True, 32, True), m * n + m * n // 32),
            ("per_channel_cast_to_fp8", partial(deep_gemm.per_channel_cast_to_fp8, x, False), m * n + m * n // 32),
            ("per_block_cast_to_fp8", partial(deep_gemm.per_block_cast_to_fp8, x, False), m * n + m * n // 4096),
            ("per_token_cast_to_fp4", partial(deep_gemm.per_token_cast_to_fp4, x, True, 32), m * n // 2 + m * n // 8),
        ):
            size = read + written
            yield Case("casts", f"{name}, m={m}, n={n}, {str(dtype).removeprefix('torch.')}", call, 0, size, copy_of(size))
    packed, sf = deep_gemm.per_token_cast_to_fp4(torch.randn(m, n, device="cuda"), True, 32)
    size = m * n // 2 + m * n // 8 + 4 * m * n
    yield Case("casts", f"cast_back_from_fp4, m={m}, n={n}", partial(deep_gemm._C.cast_back_from_fp4, packed, sf, 32), 0, size, copy_of(size))


def copy_of(size: int) -> Callable[[], object]:
    """A copy that moves `size` bytes: half of them read, half of them written."""
    source = torch.empty(max(size // 2, 1), device="cuda", dtype=torch.int8).random_()
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


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
    m, n, k = ANCHOR
    a, b = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(n, k, device="cuda").bfloat16()
    anchor = kernel_us(lambda: torch.mm(a, b.T), args.calls, flush)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; anchor: torch.mm bf16 {ANCHOR} {anchor:.1f} us")
    print(f"{'case':75} {'us':>8} {'TFLOP/s':>8} {'GB/s':>6} {'x peer':>8} {'x anchor':>8} {'x baseline':>10}")

    rows: list[Row] = []
    for cases in (prenorm_cases, cast_cases, gemm_cases, m_grouped_cases, masked_cases, k_grouped_cases):
        for case in cases():
            if args.filter not in case.section:
                continue
            us, peer = kernel_us(case.call, args.calls, flush), kernel_us(case.peer, args.calls, flush)
            row = Row(case.section, case.name, us, 1e-6 * case.flops / us, 1e-3 * case.size / us, peer, baseline.get((case.section, case.name)))
            rows.append(row)
            ratio = f"{us / row.baseline_us:10.2f}" if row.baseline_us else f"{'-':>10}"
            name = f"{case.section.split(':')[0]} {case.name}"
            print(f"{name:75} {us:8.1f} {row.tflops:8.0f} {row.gb_per_s:6.0f} {us / peer:8.2f} {us / anchor:8.3f} {ratio}", flush=True)
    for section in dict.fromkeys(row.section for row in rows):
        own = [row for row in rows if row.section == section]
        peers = statistics.geometric_mean(row.us / row.peer_us for row in own)
        known = [row.us / row.baseline_us for row in own if row.baseline_us]
        against = f", {statistics.geometric_mean(known):.2f} x baseline ({len(known)} rows)" if known else ""
        print(f"{section}: geometric mean {peers:.2f} x peer{against}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"device": torch.cuda.get_device_name(), "anchor_us": anchor, "rows": [asdict(row) for row in rows]}, file, indent=1)


if __name__ == "__main__":
    main()
