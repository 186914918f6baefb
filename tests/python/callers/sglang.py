"""Uses the package as SGLang does: imports of functions and submodules, a compile mode and a number of SMs for a while, old names and
keywords, and an arity that it asks for. The name of the package is the argument."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

NAME = sys.argv[1]
os.environ["DG_JIT_CACHE_DIR"] = "/nonexistent/deep_gemm"
os.environ["DG_JIT_USE_NVRTC"] = "0"

deep_gemm = importlib.import_module(NAME)
layout = importlib.import_module(f"{NAME}.utils.layout")
for name in ("ceil_div", "get_tma_aligned_size", "einsum", "tf32_hc_prenorm_gemm", "fp8_einsum"):
    assert callable(getattr(deep_gemm, name)), name
assert layout.get_mn_major_tma_aligned_tensor is deep_gemm.get_mn_major_tma_aligned_tensor


@contextmanager
def compile_mode(mode: int) -> Iterator[None]:
    before = deep_gemm.get_compile_mode()
    deep_gemm.set_compile_mode(mode)
    try:
        yield
    finally:
        deep_gemm.set_compile_mode(before)


@contextmanager
def num_sms(count: int) -> Iterator[None]:
    before = deep_gemm.get_num_sms()
    deep_gemm.set_num_sms(count)
    try:
        yield
    finally:
        deep_gemm.set_num_sms(before)


# Warming up goes over all m of a model with one set of buffers.
k, n, most = 256, 128, 64
codes, scales = torch.ones(most, k).to(torch.float8_e4m3fn), torch.ones(most, k // 128)
weight, weight_scales = torch.ones(n, k).to(torch.float8_e4m3fn), torch.ones(n // 128, k // 128)
out = torch.empty(most, n, dtype=torch.bfloat16)
with compile_mode(1):
    for m in (1, 16, most):
        deep_gemm.fp8_gemm_nt((codes[:m], scales[:m]), (weight, weight_scales), out[:m])
assert deep_gemm.get_compile_mode() == 0
with num_sms(2):
    assert deep_gemm.get_num_sms() == 2
    deep_gemm.fp8_gemm_nt((codes, scales), (weight, weight_scales), out)
assert out.eq(k).all()

# A fallback for older releases is taken when this raises TypeError.
try:
    deep_gemm.get_theoretical_mk_alignment_for_contiguous_layout(128, 4)
except TypeError:
    block = deep_gemm.get_mk_alignment_for_contiguous_layout()

experts = 2
a, sfa = torch.ones(experts * block, k).to(torch.float8_e4m3fn), torch.ones(experts * block, k // 128)
b, sfb = weight.expand(experts, n, k).contiguous(), weight_scales.expand(experts, n // 128, k // 128).contiguous()
m_indices = torch.arange(experts, dtype=torch.int32).repeat_interleave(block)
out = torch.empty(experts * block, n, dtype=torch.bfloat16)
deep_gemm.m_grouped_fp8_gemm_nt_contiguous((a, sfa), (b, sfb), out, m_indices)
assert out.eq(k).all()
deep_gemm.m_grouped_fp8_gemm_nt_contiguous([a, sfa], [b, sfb], out.zero_(), m_indices=m_indices)
assert out.eq(k).all()
deep_gemm.m_grouped_bf16_gemm_nt_contiguous(a.bfloat16(), b.bfloat16(), out.zero_(), m_indices)
assert out.eq(k).all()

masked = torch.empty(experts, 8, n, dtype=torch.bfloat16)
a, sfa = torch.ones(experts, 8, k).to(torch.float8_e4m3fn), torch.ones(experts, 8, k // 128)
rows = torch.tensor([8, 8], dtype=torch.int32)
for function, operands in (
    (deep_gemm.fp8_m_grouped_gemm_nt_masked, ((a, sfa), (b, sfb))),
    (deep_gemm.bf16_m_grouped_gemm_nt_masked, (a.bfloat16(), b.bfloat16())),
):
    function(*operands, masked.zero_(), rows, 4)
    assert masked.eq(k).all()

# Packed scales in the layout of the kernels, and no recipe.
packed = deep_gemm.transform_sf_into_required_layout(torch.ones(64, 8), 64, 256, (1, 32))
assert packed.dtype == torch.int32 and packed.shape == (64, 2) and packed.stride() == (1, 64)

print(f"{NAME}: everything that SGLang uses is there and works")
