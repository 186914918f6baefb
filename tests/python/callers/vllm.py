"""Looks functions up as vLLM does, and calls each as it does there: by name on the package, which may be vendored, with a fallback when one
is missing. The name of the package is the argument."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

import torch
from torch import Tensor

NAME = sys.argv[1]
FUNCTIONS = [
    "fp8_gemm_nt",
    "m_grouped_fp8_gemm_nt_contiguous",
    "fp8_m_grouped_gemm_nt_masked",
    "fp8_mqa_logits",
    "fp8_paged_mqa_logits",
    "get_paged_mqa_logits_metadata",
    "get_mn_major_tma_aligned_tensor",
    "get_mk_alignment_for_contiguous_layout",
    "transform_sf_into_required_layout",
]
E4M3 = torch.float8_e4m3fn


def close(got: Tensor, wanted: Tensor) -> None:
    assert float((got.float() - wanted.float()).norm()) <= 0.01 * float(wanted.float().norm())


def operand(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, a scale for each 128 of a row, the values."""
    codes = torch.randn(shape).to(E4M3)
    scales = torch.rand(*shape[:-1], shape[-1] // 128) + 0.5
    return codes, scales, codes.float() * scales.repeat_interleave(128, -1)


def weight(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, a scale for each 128 x 128 block, the values."""
    codes = torch.randn(shape).to(E4M3)
    scales = torch.rand(*shape[:-2], shape[-2] // 128, shape[-1] // 128) + 0.5
    return codes, scales, codes.float() * scales.repeat_interleave(128, -2).repeat_interleave(128, -1)


os.environ.setdefault("DG_JIT_CACHE_DIR", "/nonexistent/deep_gemm")
assert importlib.util.find_spec(NAME) is not None
package = importlib.import_module(NAME)
found = {name: getattr(package, name, None) for name in FUNCTIONS}
assert all(found.values()), [name for name, function in found.items() if function is None]
assert getattr(package, "a_function_of_a_later_release", None) is None

# Linear layers. Scales of activations may already be in the layout that the kernels like best.
a, sfa, a_values = operand(24, 256)
b, sfb, b_values = weight(128, 256)
d = torch.empty(24, 128, dtype=torch.bfloat16)
found["fp8_gemm_nt"]((a, found["get_mn_major_tma_aligned_tensor"](sfa)), (b, sfb), d, disable_ue8m0_cast=True)
close(d, a_values @ b_values.T)
transformed = found["transform_sf_into_required_layout"](sf=sfb, mn=128, k=256, recipe=(1, 128, 128), num_groups=None, is_sfa=False)
found["fp8_gemm_nt"]((a, sfa), (b, transformed), d, disable_ue8m0_cast=True)
close(d, a_values @ b_values.T)

# Experts, in a prefill: rows sorted by expert, each expert's rows a multiple of the alignment.
block = found["get_mk_alignment_for_contiguous_layout"]()
experts = 3
b, sfb, b_values = weight(experts, 128, 256)
a, sfa, a_values = operand(experts * block, 256)
expert_ids = torch.arange(experts, dtype=torch.int32).repeat_interleave(block)
d = torch.empty(experts * block, 128, dtype=torch.bfloat16)
found["m_grouped_fp8_gemm_nt_contiguous"]((a, sfa), (b, sfb), d, expert_ids, disable_ue8m0_cast=True)
close(d, torch.einsum("emk,enk->emn", a_values.view(experts, block, 256), b_values).reshape(d.shape))

# Experts, in a decode: some rows of each expert.
a, sfa, a_values = operand(experts, 8, 256)
rows = torch.tensor([3, 0, 8], dtype=torch.int32)
d = torch.zeros(experts, 8, 128, dtype=torch.bfloat16)
found["fp8_m_grouped_gemm_nt_masked"]((a, sfa), (b, sfb), d, rows, 4, disable_ue8m0_cast=True)
for expert, count in enumerate(rows.tolist()):
    close(d[expert, :count], a_values[expert, :count] @ b_values[expert].T)

# The indexer of sparse attention.
q, kv = torch.randn(5, 32, 128).to(E4M3), torch.randn(70, 128).to(E4M3)
weights, ends = torch.rand(5, 32), torch.arange(66, 71, dtype=torch.int32)
logits = found["fp8_mqa_logits"](q, (kv, torch.ones(70)), weights, torch.zeros(5, dtype=torch.int32), ends, clean_logits=False)
wanted = torch.einsum("qh,qhk->qk", weights, torch.einsum("qhd,kd->qhk", q.float(), kv.float()).relu())
close(logits[:, :66], wanted[:, :66])

# The same over a cache in pages: 64 keys of 128 bytes, then 64 scales.
pages = torch.zeros(2, 64, 1, 132, dtype=torch.uint8)
flat = pages.view(2, 64 * 132)
keys = torch.cat([kv.view(torch.uint8), torch.zeros(58, 128, dtype=torch.uint8)]).view(2, 64 * 128)
flat[:, : 64 * 128], flat[:, 64 * 128 :] = keys, torch.ones(2, 64).view(torch.uint8)
lengths, table = torch.tensor([70], dtype=torch.int32), torch.tensor([[0, 1]], dtype=torch.int32)
schedule = found["get_paged_mqa_logits_metadata"](lengths, 64, package.get_num_sms())
paged = found["fp8_paged_mqa_logits"](q[:1].unsqueeze(0), pages, weights[:1], lengths, table, schedule, 128, clean_logits=False)
close(paged[:, :70], wanted[:1])

print(f"{NAME}: everything that vLLM looks up is there and works")
