#!/usr/bin/env python3
"""Host time of calls on CUDA tensors: from torch.ops, from the typed functions, and from torch's own torch.mm in the same run.

    python tests/bench/host_cuda.py

Prints nanoseconds for each call, the least and the median of batches of 200 calls into a stream that is never full. A launch alone takes some
microseconds, and is in all of these: host_cuda.cu measures it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

import deep_gemm

M, N, K = 16, 128, 256
BATCH, BATCHES = 200, 60


def measure(name: str, call: Callable[[], object]) -> None:
    times = []
    call()
    torch.cuda.synchronize()
    for _ in range(BATCHES):
        begin = time.perf_counter_ns()
        for _ in range(BATCH):
            call()
        times.append((time.perf_counter_ns() - begin) / BATCH)
        torch.cuda.synchronize()
    print(f"{name:<44}{min(times):8.0f}{statistics.median(times):8.0f}")


def main() -> None:
    a, b = (torch.zeros(rows, K, dtype=torch.bfloat16, device="cuda") for rows in (M, N))
    a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    sfa, sfb = torch.ones(M, K // 128, device="cuda"), torch.ones(N // 128, K // 128, device="cuda")
    d = torch.empty(M, N, dtype=torch.bfloat16, device="cuda")
    hc_b, hc_d, squares = torch.zeros(24, K, device="cuda"), torch.empty(M, 24, device="cuda"), torch.empty(M, device="cuda")
    deep_gemm.get_num_sms()  # the operators are registered with the first use of the package
    ops = torch.ops.deep_gemm
    bt = b.T
    print(f"{'ns per call':<44}{'least':>8}{'median':>8}")
    measure("torch.mm, bf16, out=", lambda: torch.mm(a, bt, out=d))
    measure("torch.ops: bf16_gemm_nt.default", lambda: ops.bf16_gemm_nt.default(a, b, d))
    measure("deep_gemm.bf16_gemm_nt", lambda: deep_gemm.bf16_gemm_nt(a, b, d))
    measure("torch.ops: fp8_fp4_gemm_nt.default", lambda: ops.fp8_fp4_gemm_nt.default(a8, sfa, b8, sfb, d))
    measure("deep_gemm.fp8_gemm_nt", lambda: deep_gemm.fp8_gemm_nt((a8, sfa), (b8, sfb), d))
    measure("torch.ops: tf32_hc_prenorm_gemm.default", lambda: ops.tf32_hc_prenorm_gemm.default(a, hc_b, hc_d, squares))
    measure("deep_gemm.tf32_hc_prenorm_gemm", lambda: deep_gemm.tf32_hc_prenorm_gemm(a, hc_b, hc_d, squares))


if __name__ == "__main__":
    main()
