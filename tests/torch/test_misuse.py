"""Malformed calls from Python: each raises exactly the error in its row, and touches no memory.

A row takes the valid call of its operator, replaces some of its arguments, and says what must come of it; a replacement may be a function
of the valid arguments. The same from C: tests/ops/misuse_test.c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from deep_gemm import _C

# ---- tensors ---------------------------------------------------------------------------------------------------------


def fp8(*shape: int) -> Tensor:
    return torch.ones(shape).to(torch.float8_e4m3fn)


def bf16(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.bfloat16)


def f32(*shape: int) -> Tensor:
    return torch.ones(shape)


def i32(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.int32)


def guarded(dtype: torch.dtype, *shape: int) -> Tensor:
    """A tensor for results, with 16 elements of other memory on each side."""
    size = torch.Size(shape).numel()
    return torch.full((size + 32,), 7.0, dtype=dtype)[16 : 16 + size].view(shape)


def shifted(x: Tensor, elements: int) -> Tensor:
    """The tensor that lies some elements behind x in the same memory."""
    return x.as_strided(x.shape, x.stride(), x.storage_offset() + elements)


# ---- valid calls -----------------------------------------------------------------------------------------------------


def valid_fp8_gemm() -> dict[str, Any]:
    """a [4, 256], b [6, 256], d bf16 [4, 6]"""
    return {"a": (fp8(4, 256), f32(4, 2)), "b": (fp8(6, 256), f32(1, 2)), "d": guarded(torch.bfloat16, 4, 6)}


def valid_bf16_gemm() -> dict[str, Any]:
    return {"a": bf16(4, 256), "b": bf16(6, 256), "d": guarded(torch.float32, 4, 6)}


def valid_skip_head_mid() -> dict[str, Any]:
    """Heads of 2 + 1 columns with a gap of 1."""
    return valid_fp8_gemm() | {"d": guarded(torch.bfloat16, 4, 8), "head_splits": (2, 1, 1)}


def valid_transform() -> dict[str, Any]:
    return {"sf": f32(5, 3), "mn": 5, "k": 384, "recipe": (1, 128)}


def valid_k_grouped_packed() -> dict[str, Any]:
    grouped_layout = torch.tensor([64, 96], dtype=torch.int32)
    return {"sf": f32(5, 8), "grouped_layout": grouped_layout, "ks_cpu": [64, 96], "gran_k": 32, "k_alignment": 128}


def valid_m_grouped() -> dict[str, Any]:
    return {
        "a": (fp8(4, 256), f32(4, 2)),
        "b": (fp8(2, 6, 256), f32(2, 1, 2)),
        "d": guarded(torch.bfloat16, 4, 6),
        "grouped_layout": torch.zeros(4, dtype=torch.int32),
    }


def valid_mqa_logits() -> dict[str, Any]:
    """Three queries of 32 heads of 64, ten keys."""
    return {
        "q": (fp8(3, 32, 64), None),
        "kv": (fp8(10, 64), f32(10)),
        "weights": f32(3, 32),
        "cu_seq_len_k_start": i32(3),
        "cu_seq_len_k_end": i32(3),
    }


def valid_paged_mqa_logits() -> dict[str, Any]:
    """Two sequences of two tokens, 8 heads of 64, four pages of 32 keys."""
    return {
        "q": fp8(2, 2, 8, 64),
        "kv_cache": torch.zeros(4, 32, 1, 68, dtype=torch.uint8),
        "weights": f32(4, 8),
        "context_lens": torch.full((2, 2), 40, dtype=torch.int32),
        "block_table": torch.tensor([[0, 1], [2, 3]], dtype=torch.int32),
        "schedule_meta": i32(5, 2),
        "max_context_len": 100,
    }


def valid_fp8_einsum() -> dict[str, Any]:
    """b 4, h 2, r 256, d 128"""
    return {
        "expr": "bhr,hdr->bhd",
        "a": (fp8(4, 2, 256), f32(4, 2, 2)),
        "b": (fp8(2, 128, 256), f32(2, 1, 2)),
        "d": guarded(torch.bfloat16, 4, 2, 128),
    }


VALID: dict[str, Callable[[], dict[str, Any]]] = {
    "fp8_gemm_nt": valid_fp8_gemm,
    "bf16_gemm_nt": valid_bf16_gemm,
    "fp8_gemm_nt_skip_head_mid": valid_skip_head_mid,
    "get_mn_major_tma_aligned_tensor": lambda: {"sf": f32(5, 3)},
    "get_mn_major_tma_aligned_packed_ue8m0_tensor": lambda: {"sf": f32(5, 6)},
    "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor": valid_k_grouped_packed,
    "transform_sf_into_required_layout": valid_transform,
    "get_tma_aligned_size": lambda: {"x": 5, "element_size": 4},
    "set_num_sms": lambda: {"new_num_sms": 64},
    "set_tc_util": lambda: {"new_tc_util": 80},
    "set_mk_alignment_for_contiguous_layout": lambda: {"new_value": 128},
    "set_block_size_multiple_of": lambda: {"new_value": (1, 1)},
    "get_theoretical_mk_alignment_for_contiguous_layout": lambda: {},
    "m_grouped_fp8_gemm_nt_contiguous": valid_m_grouped,
    "fp8_fp4_mqa_logits": valid_mqa_logits,
    "fp8_paged_mqa_logits": valid_paged_mqa_logits,
    "get_paged_mqa_logits_metadata": lambda: {"context_lens": i32(4, 2), "block_kv": 64, "num_sms": 8},
    "fp8_einsum": valid_fp8_einsum,
}

# ---- malformed calls -------------------------------------------------------------------------------------------------

# The contracts of the scales, which several texts quote.
SFB = "f32 [ceil(n / gran_mn_b), ceil(k / gran_k_b)] | i32 [ceil(n / gran_mn_b), ceil(k / (gran_k_b * 4))]"

# The text is what follows "<op>: "; where Python or torch refuse the call themselves, "<op>()" in it, it is the whole text.
MALFORMED: dict[str, list[tuple[dict[str, Any], type[Exception], str]]] = {
    "fp8_gemm_nt": [
        # pairs
        ({"a": fp8(4, 256)}, TypeError, "a must be the pair (a, sfa), got Tensor"),
        ({"a": (fp8(4, 256),)}, TypeError, "a must be the pair (a, sfa), got 1 values"),
        ({"b": (fp8(6, 256), f32(1, 2), 1)}, TypeError, "b must be the pair (b, sfb), got 3 values"),
        ({"a": (None, f32(4, 2))}, TypeError, "a[0] is None, expected a tensor"),
        ({"a": (fp8(4, 256), None)}, TypeError, "a[1] is None, expected a tensor"),
        # ranks and sizes
        ({"a": (fp8(4, 256), f32(128))}, ValueError, "a[1] has shape [128], expected [4, 2] = [ceil(m / gran_mn_a), ceil(k / gran_k_a)]"),
        ({"a": (fp8(256), f32(4, 2))}, ValueError, "a[0] has shape [256], expected f8e4m3 | f4e2m1 [m, k]"),
        ({"b": (fp8(1, 6, 256), f32(1, 2))}, ValueError, "b[0] has shape [1, 6, 256], expected f8e4m3 | f4e2m1 [n, k]"),
        ({"b": (fp8(6, 255), f32(1, 2))}, ValueError, "b[0] has k = 255, expected 256 to match a"),
        ({"a": (fp8(4, 256), f32(4, 1))}, ValueError, "a[1] has shape [4, 1], expected [4, 2] = [ceil(m / gran_mn_a), ceil(k / gran_k_a)]"),
        (
            {"a": (fp8(4, 256), f32(2, 4).T[:3])},
            ValueError,
            "a[1] has shape [3, 2], expected [4, 2] = [ceil(m / gran_mn_a), ceil(k / gran_k_a)]",
        ),
        ({"b": (fp8(6, 256), f32(2, 1))}, ValueError, "b[1] has shape [2, 1], expected [1, 2] = [ceil(n / gran_mn_b), ceil(k / gran_k_b)]"),
        ({"b": (fp8(6, 256), f32(6, 2))}, ValueError, "b[1] has shape [6, 2], expected [1, 2] = [ceil(n / gran_mn_b), ceil(k / gran_k_b)]"),
        ({"d": bf16(6, 4)}, ValueError, "d has m = 6, expected 4 to match a"),
        ({"d": bf16(24)}, ValueError, "d has shape [24], expected bf16 | f32 [m, n] rows"),
        ({"c": bf16(4, 1)}, ValueError, "c has shape [4, 1], expected [4, 6] to match d"),
        ({"a": (fp8(0, 256), f32(0, 2))}, ValueError, "d has m = 4, expected 0 to match a"),
        # dtypes
        ({"a": (bf16(4, 256), f32(4, 2))}, TypeError, "a[0] has dtype bf16, expected f8e4m3 | f4e2m1 [m, k]"),
        ({"a": (torch.ones(4, 256, dtype=torch.uint8), f32(4, 2))}, ValueError, "b[0] has k = 256, expected 512 to match a"),
        ({"b": (fp8(6, 256).view(torch.float8_e5m2), f32(1, 2))}, TypeError, "b[0] has dtype f8e5m2, expected f8e4m3 | f4e2m1 [n, k]"),
        ({"b": (fp8(6, 256), bf16(1, 2))}, TypeError, "b[1] has dtype bf16, expected " + SFB),
        (
            {"a": (fp8(4, 256), i32(4, 2))},
            ValueError,
            "a[1] has shape [4, 2], expected [4, 1] = [ceil(m / gran_mn_a), ceil(k / (gran_k_a * 4))]",
        ),
        (
            {"b": (fp8(6, 256), i32(1, 2))},
            ValueError,
            "b[1] has shape [1, 2], expected [6, 1] = [ceil(n / gran_mn_b), ceil(k / (gran_k_b * 4))]",
        ),
        ({"d": torch.zeros(4, 6, dtype=torch.float16)}, TypeError, "d has dtype f16, expected bf16 | f32 [m, n] rows"),
        ({"c": f32(4, 6)}, TypeError, "c has dtype f32, expected bf16 to match d"),
        (
            {"d": torch.zeros(4, 6, dtype=torch.complex64)},
            TypeError,
            "d has dtype {code 5, bits 64, lanes 1}, expected bf16 | f32 [m, n] rows",
        ),
        # strides and overlap
        ({"d": bf16(6, 4).T}, ValueError, "d has strides [1, 4], expected stride 1 in the last dimension"),
        ({"d": bf16(1, 6).expand(4, 6)}, ValueError, "d has shape [4, 6] and strides [0, 1], expected elements that do not overlap"),
        ({"d": bf16(4, 12)[:, ::2]}, ValueError, "d has strides [12, 2], expected stride 1 in the last dimension"),
        (
            {"d": bf16(16).as_strided((4, 6), (3, 1))},
            ValueError,
            "d has shape [4, 6] and strides [3, 1], expected elements that do not overlap",
        ),
        ({"d": lambda v: v["a"][0].view(torch.bfloat16)[:, :6]}, ValueError, "d overlaps a, expected separate memory"),
        ({"d": lambda v: v["b"][0].view(torch.bfloat16)[:4, :6]}, ValueError, "d overlaps b, expected separate memory"),
        (
            {"c": lambda v: v["d"].flatten()[:24].view(6, 4).T},
            ValueError,
            "d overlaps c, expected separate memory or exactly the same tensor",
        ),
        ({"c": lambda v: shifted(v["d"], 1)}, ValueError, "d overlaps c, expected separate memory or exactly the same tensor"),
        # recipes
        ({"recipe": (1, 128)}, ValueError, "recipe needs 3 ints, got 2"),
        ({"recipe": (1, 128, 0)}, ValueError, "recipe[2] is 0, expected 1 .. 1073741824"),
        ({"recipe": (-1, 128, 128)}, ValueError, "recipe[0] is -1, expected 1 .. 1073741824"),
        ({"recipe": (1, 1, 128)}, ValueError, "b[1] has shape [1, 2], expected [6, 2] = [ceil(n / gran_mn_b), ceil(k / gran_k_b)]"),
        ({"recipe": (1, 128, 32)}, ValueError, "a[1] has shape [4, 2], expected [4, 8] = [ceil(m / gran_mn_a), ceil(k / gran_k_a)]"),
        ({"recipe": "x"}, TypeError, "recipe is 'x' (str), expected a sequence of int or None"),
        ({"a": (fp8(4, 256), 3)}, TypeError, "a[1] is 3 (int), expected Tensor"),
        ({"recipe": (1, 128, 2**40)}, ValueError, "recipe[2] is 1099511627776, expected 1 .. 1073741824"),
        ({"recipe_a": (1, 32)}, ValueError, "a[1] has shape [4, 2], expected [4, 8] = [ceil(m / gran_mn_a), ceil(k / gran_k_a)]"),
        ({"recipe_b": (0, 128)}, ValueError, "recipe_b[0] is 0, expected 1 .. 1073741824"),
        ({"compiled_dims": 3}, TypeError, "compiled_dims is 3 (int), expected str"),
    ],
    "bf16_gemm_nt": [
        ({"a": f32(4, 256)}, TypeError, "a has dtype f32, expected bf16 [m, k]"),
        ({"b": bf16(6, 128)}, ValueError, "b has k = 128, expected 256 to match a"),
        ({"b": bf16(256, 6)}, ValueError, "b has k = 6, expected 256 to match a"),
        ({"d": f32(4, 5)}, ValueError, "d has n = 5, expected 6 to match b"),
        ({"d": torch.zeros(4, 6, dtype=torch.int32)}, TypeError, "d has dtype i32, expected bf16 | f32 [m, n] rows"),
        ({"d": lambda v: v["b"].view(torch.float32)[:4, :6]}, ValueError, "d overlaps b, expected separate memory"),
        ({"c": bf16(4, 6)}, TypeError, "c has dtype bf16, expected f32 to match d"),
        ({"c": f32(4, 6, 1)}, ValueError, "c has shape [4, 6, 1], expected bf16 | f32 [m, n] rows"),
        ({"c": lambda v: shifted(v["d"], -6)}, ValueError, "d overlaps c, expected separate memory or exactly the same tensor"),
        ({"a": None}, TypeError, "a is None, expected a tensor"),
        ({"d": None}, TypeError, "d is None, expected a tensor"),
    ],
    "fp8_gemm_nt_skip_head_mid": [
        ({"d": bf16(4, 6)}, ValueError, "d has shape [4, 6], expected [4, 8] = [m, n + n // head * head_splits[1]]"),
        ({"head_splits": (2, 2, 1)}, ValueError, "d has shape [4, 8], expected [4, 10] = [m, n + n // head * head_splits[1]]"),
        ({"head_splits": (4, 1, 1)}, ValueError, "n must be a multiple of left + right of head_splits, got n = 6, head = 5"),
        ({"head_splits": (0, 1, 0)}, ValueError, "head_splits needs left + right >= 1, got head_splits[0] = 0, head_splits[2] = 0"),
        ({"head_splits": (-1, 1, 4)}, ValueError, "head_splits[0] is -1, expected 0 .. 1048576"),
        ({"head_splits": (2, 1)}, ValueError, "head_splits needs 3 ints, got 2"),
        ({"a": (torch.ones(4, 128, dtype=torch.uint8), f32(4, 2))}, TypeError, "a[0] has dtype u8, expected f8e4m3 [m, k]"),
    ],
    "get_mn_major_tma_aligned_tensor": [
        ({"sf": f32(5)}, ValueError, "sf has shape [5], expected f32 [mn, sf_k] | f32 [groups, mn, sf_k]"),
        ({"sf": f32(1, 2, 5, 3)}, ValueError, "sf has shape [1, 2, 5, 3], expected f32 [mn, sf_k] | f32 [groups, mn, sf_k]"),
        ({"sf": i32(5, 3)}, TypeError, "sf has dtype i32, expected f32 [mn, sf_k] | f32 [groups, mn, sf_k]"),
        ({"sf": torch.ones(5, 3, dtype=torch.float64)}, TypeError, "sf has dtype f64, expected f32 [mn, sf_k] | f32 [groups, mn, sf_k]"),
    ],
    "get_mn_major_tma_aligned_packed_ue8m0_tensor": [
        ({"sf": f32(5)}, ValueError, "sf has shape [5], expected f32 [mn, sf_k] | f32 [groups, mn, sf_k]"),
        ({"sf": bf16(5, 6)}, TypeError, "sf has dtype bf16, expected f32 [mn, sf_k] | f32 [groups, mn, sf_k]"),
        (
            {"sf": f32(5, 6) * 3},
            ValueError,
            "sf[0, 0] is 3, expected a power of two from 2^-127 to 2^127, or 0, or NaN: UE8M0 has no code for other scales",
        ),
        (
            {"sf": f32(2, 5, 6) * -1},
            ValueError,
            "sf[0, 0, 0] is -1, expected a power of two from 2^-127 to 2^127, or 0, or NaN: UE8M0 has no code for other scales",
        ),
        ({"psum_layout": torch.zeros(2, dtype=torch.int64)}, TypeError, "psum_layout has dtype i64, expected i32 [dim(psum_layout, 0)]"),
        ({"psum_layout": i32(1, 2)}, ValueError, "psum_layout has shape [1, 2], expected i32 [dim(psum_layout, 0)]"),
        (
            {"sf": f32(2, 5, 6), "psum_layout": i32(2)},
            ValueError,
            "psum_layout needs sf of two dimensions, got given(psum_layout) = true, rank(sf) = 3",
        ),
    ],
    "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor": [
        (
            {"sf": f32(4, 8)},
            ValueError,
            "sf needs ceil(k_g / gran_k) rows for each group of ks_cpu, got has_ks = 1, sum_ceil(ks_cpu / gran_k) = 5, sf_k = 4, "
            "use_psum_layout = false",
        ),
        ({"ks_cpu": [64]}, ValueError, "ks_cpu needs one entry per group, got has_ks = 1, len(ks_cpu) = 1, groups = 2"),
        ({"ks_cpu": None}, ValueError, "ks_cpu may be absent or empty only with use_psum_layout, got has_ks = 0, use_psum_layout = false"),
        ({"ks_cpu": []}, ValueError, "ks_cpu may be absent or empty only with use_psum_layout, got has_ks = 0, use_psum_layout = false"),
        ({"ks_cpu": [-64, 96]}, ValueError, "ks_cpu[0] is -64, expected 0 .. 1099511627776"),
        ({"gran_k": 64}, ValueError, "gran_k is 64, expected 32 or 128"),
        ({"k_alignment": 0}, ValueError, "k_alignment is 0, expected 1 .. 1048576"),
        ({"grouped_layout": torch.tensor([64, 96])}, TypeError, "grouped_layout has dtype i64, expected i32 [groups]"),
    ],
    "transform_sf_into_required_layout": [
        ({"mn": 6}, ValueError, "sf has shape [5, 3], expected [6, 3] = [ceil(mn / gran_mn), ceil(k / gran_k)]"),
        ({"mn": -5}, ValueError, "mn is -5, expected 0 .. 2147483647"),
        ({"k": 512}, ValueError, "sf has shape [5, 3], expected [5, 4] = [ceil(mn / gran_mn), ceil(k / gran_k)]"),
        ({"recipe": (1,)}, ValueError, "recipe has length 1, expected 2 or 3"),
        ({"recipe": (1, 128, 128)}, ValueError, "a recipe of three needs is_sfa, got len(recipe) = 3, given(is_sfa) = false"),
        ({"recipe": (0, 128)}, ValueError, "recipe[0] is 0, expected 1 .. 1073741824"),
        (
            {"num_groups": 2},
            ValueError,
            "sf has shape [5, 3], expected [2, 5, 3] = [groups, ceil(mn / gran_mn), ceil(k / gran_k)]",
        ),
        (
            {"sf": f32(2, 5, 3), "num_groups": 3},
            ValueError,
            "sf has shape [2, 5, 3], expected [3, 5, 3] = [groups, ceil(mn / gran_mn), ceil(k / gran_k)]",
        ),
        ({"sf": i32(5, 3)}, ValueError, "sf has shape [5, 3], expected [5, 1] = [ceil(mn / gran_mn), ceil(k / (gran_k * 4))]"),
        (
            {"psum_layout": i32(2), "num_groups": 1, "sf": f32(1, 5, 3)},
            ValueError,
            "psum_layout excludes num_groups, got given(psum_layout) = true, given(num_groups) = true",
        ),
    ],
    "get_tma_aligned_size": [
        ({"x": -1}, ValueError, "x is -1, expected 0 .. 4611686018427387904"),
        ({"element_size": 3}, ValueError, "element_size is 3, expected 1, 2, 4, 8 or 16"),
        ({"x": "5"}, TypeError, "x is '5' (str), expected int"),
        ({"x": 2**64}, TypeError, "x is 18446744073709551616 (int), expected int that fits 64 bits"),
    ],
    "set_num_sms": [
        ({"new_num_sms": 0}, ValueError, "new_num_sms is 0, expected 1 .. 1024"),
        ({"new_num_sms": 10**9}, ValueError, "new_num_sms is 1000000000, expected 1 .. 1024"),
        ({"new_num_sms": "64"}, TypeError, "new_num_sms is '64' (str), expected int"),
    ],
    "set_tc_util": [
        ({"new_tc_util": -1}, ValueError, "new_tc_util is -1, expected 0 .. 100"),
        ({"new_tc_util": 101}, ValueError, "new_tc_util is 101, expected 0 .. 100"),
    ],
    "set_mk_alignment_for_contiguous_layout": [
        ({"new_value": 0}, ValueError, "new_value is 0, expected 1 .. 65536"),
    ],
    "set_block_size_multiple_of": [
        ({"new_value": 0}, ValueError, "new_value[0] is 0, expected 1 .. 1024"),
        ({"new_value": (64, 0)}, ValueError, "new_value[1] is 0, expected 1 .. 1024"),
        ({"new_value": (64, 64, 64)}, ValueError, "new_value needs 2 ints, got 3"),
        ({"new_value": "64"}, TypeError, "new_value is '64' (str), expected a sequence of int"),
    ],
    "get_theoretical_mk_alignment_for_contiguous_layout": [
        (
            {"expected_m": 128, "groups": 4},
            TypeError,
            "get_theoretical_mk_alignment_for_contiguous_layout() got an unexpected keyword argument 'groups'",
        ),
    ],
    "m_grouped_fp8_gemm_nt_contiguous": [
        ({"grouped_layout": i32(255)}, ValueError, "grouped_layout has m = 255, expected 4 to match a"),
        (
            {"grouped_layout": torch.zeros(4, dtype=torch.int64)},
            TypeError,
            "grouped_layout has dtype i64, expected i32 [m] when not use_psum_layout",
        ),
        (
            {"b": (torch.ones(2, 6, 128, dtype=torch.uint8), torch.ones(2, 6, 8, dtype=torch.uint8)), "recipe_b": (1, 32)},
            TypeError,
            "b[1] has dtype u8, expected f32 [groups, ceil(n / gran_mn_b), ceil(k / gran_k_b)] | i32 [groups, ceil(n / gran_mn_b), "
            "ceil(k / (gran_k_b * 4))]",
        ),
        ({"use_psum_layout": True}, ValueError, "grouped_layout has groups = 4, expected 2 to match b"),
        (
            {"m_indices": i32(4)},
            TypeError,
            "m_grouped_fp8_fp4_gemm_nt_contiguous() got 'grouped_layout' and 'm_indices', which are the same argument",
        ),
        ({"grouped_layout": None}, TypeError, "m_grouped_fp8_fp4_gemm_nt_contiguous() is missing the argument 'grouped_layout'"),
    ],
    "fp8_fp4_mqa_logits": [
        ({"q": fp8(3, 32, 64)}, TypeError, "q must be the pair (q, q_sf), got Tensor"),
        ({"kv": (fp8(10, 32), f32(10))}, ValueError, "kv[0] has head_dim = 32, expected 64 to match q"),
        ({"kv": (fp8(10, 64), f32(9))}, ValueError, "kv[1] has seq_len_kv = 9, expected 10 to match kv"),
        ({"weights": f32(3, 16)}, ValueError, "weights has heads = 16, expected 32 to match q"),
        ({"max_seqlen_k": 8}, ValueError, "max_seqlen_k > 0 needs clean_logits=False, got max_seqlen_k = 8, clean_logits = true"),
        ({"logits_dtype": torch.float16}, TypeError, "logits_dtype is f16, expected f32 or bf16"),
        ({"logits_dtype": 99}, TypeError, "logits_dtype is 99 (int), expected torch.dtype"),
        ({"logits_dtype": "bfloat16"}, TypeError, "logits_dtype is 'bfloat16' (str), expected torch.dtype"),
        (
            {"q": (fp8(3, 32, 64).view(torch.int8), None), "kv": (fp8(10, 64).view(torch.int8), f32(10))},
            ValueError,
            "FP4 q needs q[1], got given(q[1]) = false, dtype(q) = f4e2m1",
        ),
    ],
    "fp8_paged_mqa_logits": [
        (
            {"kv_cache": torch.zeros(4, 32, 1, 64, dtype=torch.uint8)},
            ValueError,
            "kv_cache has shape [4, 32, 1, 64], expected [4, 32, 1, 68] = [pages, block_kv, 1, head_dim + 4]",
        ),
        (
            {"kv_cache": torch.zeros(4, 0, 1, 68, dtype=torch.uint8)},
            ValueError,
            "kv_cache needs pages of at least one key, got block_kv = 0",
        ),
        (
            {"kv_cache": torch.zeros(4, 32, 2, 68, dtype=torch.uint8)[:, :, :1]},
            ValueError,
            "kv_cache has strides [4352, 136, 68, 1], expected [4352, 68, 68, 1] = [stride(kv_cache, 0), head_dim + 4, head_dim + 4, 1]",
        ),
        (
            {"context_lens": torch.zeros(2, 2, dtype=torch.int64)},
            TypeError,
            "context_lens has dtype i64, expected i32 [batch] | i32 [batch, next_n]",
        ),
        ({"context_lens": i32(2, 3)}, ValueError, "context_lens has next_n = 3, expected 2 to match q"),
        ({"block_table": i32(3, 3)}, ValueError, "block_table has batch = 3, expected 2 to match q"),
        ({"weights": f32(2, 8)}, ValueError, "weights has shape [2, 8], expected [4, 8] = [batch * next_n, heads]"),
        ({"indices": i32(2)}, ValueError, "indices needs next_n == 1, got given(indices) = true, next_n = 2"),
        ({"max_context_len": -1}, ValueError, "max_context_len is -1, expected 0 .. 2147483647"),
        (
            {"context_lens": torch.full((2, 2), 65, dtype=torch.int32)},
            ValueError,
            "context_lens[0, 0] has 65 keys below max_context_len, but block_table has only 2 pages of 32 keys",
        ),
        (
            {"block_table": torch.full((2, 2), 4, dtype=torch.int32)},
            ValueError,
            "block_table[0, 0] is 4, expected a page of kv_cache, 0 .. 3, or -1",
        ),
    ],
    "get_paged_mqa_logits_metadata": [
        (
            {"context_lens": torch.zeros(4, 2, dtype=torch.int64)},
            TypeError,
            "context_lens has dtype i64, expected i32 [batch] | i32 [batch, dim(context_lens, 1)]",
        ),
        (
            {"context_lens": torch.zeros(4, 2, 1, dtype=torch.int32)},
            ValueError,
            "context_lens has shape [4, 2, 1], expected i32 [batch] | i32 [batch, dim(context_lens, 1)]",
        ),
        ({"block_kv": 48}, ValueError, "block_kv is 48, expected 32, 64 or 128"),
        ({"num_sms": 0}, ValueError, "num_sms is 0, expected 1 .. 65536"),
        (
            {"indices": i32(4)},
            ValueError,
            "indices needs one length per entry, got given(indices) = true, rank(context_lens) = 2, dim(context_lens, 1) = 2",
        ),
    ],
    "fp8_einsum": [
        ({"expr": "bhr,hdr->bdh"}, ValueError, 'expr is "bhr,hdr->bdh", expected "bhr,hdr->bhd", "bhd,hdr->bhr" or "bhd,bhr->hdr"'),
        (
            {"a": (fp8(4, 2, 256), f32(4, 2))},
            ValueError,
            "a[1] has shape [4, 2], expected [4, 2, 2] = [ceil(a0 / gran_m), a1, ceil(a2 / gran_k)]",
        ),
        ({"b": (fp8(2, 128, 128), f32(2, 1, 2))}, ValueError, "b[0] has a2 = 128, expected 256 to match a"),
        ({"expr": "bhd,hdr->bhr"}, ValueError, "b[0] has a2 = 128, expected 256 to match a"),
    ],
}

ROWS = [(op, i) for op, rows in MALFORMED.items() for i in range(len(rows))]

# ---- the tests -------------------------------------------------------------------------------------------------------


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for member in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(member)


def bytes_of(tensor: Tensor) -> bytes:
    """All memory of the tensor's storage, guards included."""
    storage = tensor.untyped_storage()
    return bytes(torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,)).tolist())


@pytest.fixture(autouse=True)
def settings_are_restored() -> Iterator[None]:
    sms, util, alignment = _C.get_num_sms(), _C.get_tc_util(), _C.get_mk_alignment_for_contiguous_layout()
    yield
    _C.set_num_sms(sms)
    _C.set_tc_util(util)
    _C.set_mk_alignment_for_contiguous_layout(alignment)


@pytest.mark.parametrize("op", VALID)
def test_valid_call_is_accepted(op: str) -> None:
    """The rows fail for the reason they give: without a replacement the call passes every check."""
    getattr(_C, op)(**VALID[op]())


@pytest.mark.parametrize(("op", "row"), ROWS)
def test_malformed_call_is_refused(op: str, row: int) -> None:
    replaced, kind, text = MALFORMED[op][row]
    arguments = VALID[op]()
    for name, value in replaced.items():
        arguments[name] = value(arguments) if callable(value) else value
    tensors = list(tensors_in(arguments))
    before = [bytes_of(t) for t in tensors]
    settings = (_C.get_num_sms(), _C.get_tc_util(), _C.get_mk_alignment_for_contiguous_layout())

    with pytest.raises(kind) as raised:
        getattr(_C, op)(**arguments)

    assert type(raised.value) is kind
    assert str(raised.value) == (text if "() " in text else f"{getattr(_C, op).__name__}: {text}")
    assert [bytes_of(t) for t in tensors] == before
    assert (_C.get_num_sms(), _C.get_tc_util(), _C.get_mk_alignment_for_contiguous_layout()) == settings
