#!/usr/bin/env python3
"""The indexer logits on the CPU beside what torch offers for the same job, all in one run.

    python tests/bench/mqa_logits_cpu.py [--isa avx2] [--shape 128x4096x64x128] [--seconds 1] [--threads N] [--cpu-time]

A shape is queries x keys x heads x head_dim. The forms of torch are the formula as one einsum over all pairs, as DeepGEMM's tests have it, and four
queries at a time over only the keys that they see, in f32 and in bf16; all decode keys and queries in each call. Paged: eight sequences of two
tokens over as many keys; torch gathers the pages of a sequence first.

Forms alternate and times are medians: on a noisy machine trust the ratios (time of the form by ours, so above 1 is faster), not the
times. Where others use the processors too, --threads 1 --cpu-time counts only the time that this process runs. --isa avx2 holds
this library, torch and what torch calls to AVX2, as on a machine without AVX-512. GFLOP/s count products of pairs in the ranges; the peaks of the
machine, to compare them with, are what bench_gemm_cpu prints first.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from typing import TYPE_CHECKING

from peers import Measure, Peers, hold_to_avx2, median_seconds

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 4  # queries of torch's chunked forms
BLOCK_KV = 64
SEQUENCES, TOKENS = 8, 2


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", choices=["avx2"])
    parser.add_argument("--shape", default="128x4096x64x128")
    parser.add_argument("--seconds", type=float, default=1.0, help="per form, at least three calls")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--cpu-time", action="store_true")
    return parser.parse_args()


def report(title: str, flops: float, seconds: dict[str, float]) -> None:
    ours = next(iter(seconds.values()))
    print(title)
    for name, value in seconds.items():
        ratio = f"{value / ours:8.2f}x" if value is not ours else ""
        print(f"    {name:<38}{value * 1e3:10.2f} ms {flops / value * 1e-9:9.1f} GFLOP/s {ratio}", flush=True)


def chunked(q: Tensor, kv: Tensor, kv_sf: Tensor, weights: Tensor, ranges: list[tuple[int, int]], dtype: object) -> Tensor:
    """CHUNK queries at a time over the keys that one of them sees."""
    import torch

    queries, heads, head_dim = q.shape
    k = (kv.float() * kv_sf[:, None]).to(dtype)
    logits = torch.full((queries, len(kv)), -math.inf)
    for i in range(0, queries, CHUNK):
        begin = min(b for b, _ in ranges[i : i + CHUNK])
        end = max(e for _, e in ranges[i : i + CHUNK])
        scores = (q[i : i + CHUNK].to(dtype).view(-1, head_dim) @ k[begin:end].T).view(-1, heads, end - begin).relu_()
        sums = torch.bmm(weights[i : i + CHUNK].to(dtype).unsqueeze(1), scores).squeeze(1).float()
        positions = torch.arange(begin, end)
        for row, (b, e) in zip(sums, ranges[i : i + CHUNK], strict=True):
            row.masked_fill_((positions < b) | (positions >= e), -math.inf)
        logits[i : i + CHUNK, begin:end] = sums
    return logits


def check(forms: Peers, tolerance: dict[str, float]) -> None:
    """All forms do the same job."""
    import torch

    from deep_gemm.testing import calc_diff

    results = {name: call() for name, call in forms.items()}
    ours = next(iter(results.values()))
    assert isinstance(ours, torch.Tensor)
    for name, result in results.items():
        assert isinstance(result, torch.Tensor)
        assert (result == -math.inf).equal(ours == -math.inf), name
        difference = calc_diff(result.masked_fill(result == -math.inf, 0), ours.masked_fill(ours == -math.inf, 0))
        assert difference < tolerance.get(name, 1e-10), (name, difference)


def bench_contiguous(queries: int, keys: int, heads: int, head_dim: int, measure: Measure) -> None:
    import torch

    import deep_gemm

    q = torch.randn(queries, heads, head_dim).to(torch.float8_e4m3fn)
    kv, kv_sf = deep_gemm.per_token_cast_to_fp8(torch.randn(keys, head_dim), use_ue8m0=False, gran_k=head_dim)
    kv_sf = kv_sf.squeeze(1)
    weights = torch.randn(queries, heads)
    start = torch.zeros(queries, dtype=torch.int32)
    positions = torch.arange(keys)
    for name, end in (
        ("all keys but the later queries", torch.arange(queries, dtype=torch.int32) + (keys - queries) + 1),
        ("half of the keys", (torch.arange(queries, dtype=torch.int32) + 1) * (keys // queries)),
    ):
        ranges = list(zip(start.tolist(), end.tolist(), strict=True))
        mask = (positions >= start[:, None]) & (positions < end[:, None])

        def einsum(mask: Tensor = mask) -> Tensor:
            scores = torch.einsum("mhd,nd->hmn", q.float(), kv.float() * kv_sf[:, None])
            return (scores.relu() * weights.T.unsqueeze(-1)).sum(0).masked_fill(~mask, -math.inf)

        forms: Peers = {
            "fp8_mqa_logits": lambda end=end: deep_gemm.fp8_mqa_logits(q, (kv, kv_sf), weights, start, end),
            "torch einsum": einsum,
            "torch chunked f32": lambda ranges=ranges: chunked(q, kv, kv_sf, weights, ranges, torch.float32),
            "torch chunked bf16": lambda ranges=ranges: chunked(q, kv, kv_sf, weights, ranges, torch.bfloat16),
        }
        check(forms, {"torch chunked bf16": 1e-4})
        flops = 2.0 * sum(e - b for b, e in ranges) * heads * head_dim
        report(f"{queries} queries, {keys} keys, {heads} heads of {head_dim}, {name}", flops, measure(forms))


def bench_paged(keys: int, heads: int, head_dim: int, measure: Measure) -> None:
    import torch

    import deep_gemm

    pages = keys // BLOCK_KV
    kv, kv_sf = deep_gemm.per_token_cast_to_fp8(torch.randn(SEQUENCES * keys, head_dim), use_ue8m0=False, gran_k=head_dim)
    codes = kv.view(torch.uint8).view(-1, BLOCK_KV * head_dim)
    cache = torch.cat([codes, kv_sf.view(-1, BLOCK_KV).view(torch.uint8)], dim=1).view(-1, BLOCK_KV, 1, head_dim + 4)
    table = torch.randperm(SEQUENCES * pages, dtype=torch.int32).view(SEQUENCES, pages)
    lens = torch.full((SEQUENCES, TOKENS), keys, dtype=torch.int32)
    q = torch.randn(SEQUENCES, TOKENS, heads, head_dim).to(torch.float8_e4m3fn)
    weights = torch.randn(SEQUENCES * TOKENS, heads)
    schedule = deep_gemm.get_paged_mqa_logits_metadata(lens, BLOCK_KV, 8)

    def gathered(dtype: torch.dtype) -> Tensor:
        rows = []
        for s in range(SEQUENCES):
            flat = cache[table[s].long()].view(pages, -1)
            k = flat[:, : BLOCK_KV * head_dim].view(torch.float8_e4m3fn).reshape(keys, head_dim)
            sf = flat[:, BLOCK_KV * head_dim :].contiguous().view(torch.float32).reshape(keys)
            rows.append(chunked(q[s], k, sf, weights[s * TOKENS : (s + 1) * TOKENS], [(0, keys)] * TOKENS, dtype))
        return torch.cat(rows)

    forms: Peers = {
        "fp8_paged_mqa_logits": lambda: deep_gemm.fp8_paged_mqa_logits(q, cache, weights, lens, table, schedule, keys),
        "torch gather, chunked f32": lambda: gathered(torch.float32),
        "torch gather, chunked bf16": lambda: gathered(torch.bfloat16),
    }
    check(forms, {"torch gather, chunked bf16": 1e-4})
    flops = 2.0 * SEQUENCES * TOKENS * keys * heads * head_dim
    report(f"paged, {SEQUENCES} sequences of {TOKENS} tokens, {keys} keys each, {heads} heads of {head_dim}", flops, measure(forms))


def main() -> None:
    options = arguments()
    if options.isa == "avx2":  # before torch is loaded
        hold_to_avx2()
    os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    import torch

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    clock = time.process_time if options.cpu_time else time.perf_counter
    queries, keys, heads, head_dim = map(int, options.shape.split("x"))

    def measure(forms: Peers) -> dict[str, float]:
        return median_seconds(forms, options.seconds, clock)

    bench_contiguous(queries, keys, heads, head_dim, measure)
    bench_paged(keys, heads, head_dim, measure)


if __name__ == "__main__":
    main()
