"""Calls that type checkers must take without a word: those of documentation and of programs that use DeepGEMM."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import deep_gemm
from deep_gemm import _C  # pyright: ignore[reportPrivateUsage]
from deep_gemm import bf16_gemm_nt, fp8_gemm_nt
from deep_gemm.testing import assert_bitwise_equal, calc_diff, count_bytes
from deep_gemm.utils import align, ceil_div, per_block_cast_to_fp8, per_token_cast_to_fp8
from deep_gemm.utils.layout import get_mn_major_tma_aligned_tensor, get_tma_aligned_size
from deep_gemm.utils.math import per_token_cast_to_fp4


def dense(x: Tensor, weight: Tensor) -> Tensor:
    a: tuple[Tensor, Tensor] = per_token_cast_to_fp8(x, use_ue8m0=False)
    b = per_block_cast_to_fp8(weight, False)
    d = torch.empty((x.size(0), weight.size(0)), dtype=torch.bfloat16)
    fp8_gemm_nt(a, b, d)
    deep_gemm.fp8_gemm_nt(a, b, d, None)
    deep_gemm.fp8_gemm_nt(a, b, d, c=d, recipe=(1, 128, 128), compiled_dims="", disable_ue8m0_cast=True)
    deep_gemm.fp8_fp4_gemm_nt(a, per_token_cast_to_fp4(weight, True, gran_k=32), d, recipe_a=(1, 128), recipe_b=(1, 32))
    deep_gemm.fp8_gemm_nn(a, b, d)
    deep_gemm.fp8_gemm_tn(a, b, d, compiled_dims="mn")
    deep_gemm.fp8_gemm_tt(a, b, d)
    return d


def more(x: Tensor, y: Tensor, d: Tensor) -> float:
    bf16_gemm_nt(x, y, d)
    bf16_gemm_nt(x, y, d, c=None)
    deep_gemm.bf16_gemm_nn(x, y, d, d)
    deep_gemm.fp8_gemm_nt_skip_head_mid((x, y), (x, y), d, (128, 64, 128), recipe=(1, 128, 128))
    sf = deep_gemm.transform_sf_into_required_layout(x, 128, 256, (1, 128))
    sf = deep_gemm.transform_sf_into_required_layout(sf, mn=128, k=256, recipe=(1, 128, 128), num_groups=4, is_sfa=True)
    sf = get_mn_major_tma_aligned_tensor(sf)
    sf = _C.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf, psum_layout=None)
    assert_bitwise_equal(sf, sf, label="sf")
    rows: int = get_tma_aligned_size(ceil_div(7, 2), 4) + align(3, 4) + count_bytes(x, (y, d), None)
    return calc_diff(x, y) * rows


def settings() -> tuple[int, bool, str]:
    deep_gemm.set_num_sms(deep_gemm.get_num_sms())
    deep_gemm.set_tc_util(deep_gemm.get_tc_util())
    deep_gemm.set_pdl(True)
    deep_gemm.set_block_size_multiple_of(64)
    deep_gemm.set_block_size_multiple_of((64, 128))
    deep_gemm.set_mk_alignment_for_contiguous_layout(deep_gemm.get_theoretical_mk_alignment_for_contiguous_layout())
    deep_gemm.get_theoretical_mk_alignment_for_contiguous_layout(expected_m=64)
    gemm: Callable[[Tensor, Tensor, Tensor], None] = deep_gemm.bf16_gemm_nt
    assert callable(gemm)
    return deep_gemm.utils.get_m_alignment_for_contiguous_layout(), deep_gemm.get_pdl(), deep_gemm.__version__
