"""The indexer logits, contiguous and paged, against the formula in float64, for one row of the table: that of DG_BACKEND, or the best.

CMakeLists.txt runs this file once for each row. The bound is that of the arithmetic: sums of head_dim products and of heads terms in
f32 are off by at most 2^-24 * (head_dim + heads) * sum |scale * w * q * k|, and bf16 logits by half a unit more. DeepGEMM asks for a
calc_diff below 5e-6 of f32 logits and 3e-5 of bf16 ones; here f32 logits are held to 1e-11, bf16 ones to 1e-5.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import deep_gemm
from deep_gemm import _C
from deep_gemm.testing import calc_diff

FP8, BF16, F32, F64 = torch.float8_e4m3fn, torch.bfloat16, torch.float32, torch.float64
INF = math.inf
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=F64)
FORMATS = ("fp8", "fp8-mx", "fp4-mx")


def row_runs_here() -> bool:
    try:
        _C.get_paged_mqa_logits_metadata(torch.zeros(1, dtype=torch.int32), 64, 1)
    except NotImplementedError as error:
        if "cannot run on this machine" in str(error):
            return False
        raise
    return True


pytestmark = pytest.mark.skipif(not row_runs_here(), reason=f"this machine has no {os.environ.get('DG_BACKEND')}")


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    torch.manual_seed(0)
    yield


# ---- operands ------------------------------------------------------------------------------------------------


def ceil_div(x: int, y: int) -> int:
    return -(-x // y)


def i32(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


@dataclass
class Operand:
    """[.., head_dim]: codes, scales [..] as the operator takes them, and the values in float64 (of fp8 without its scales)."""

    codes: Tensor
    scales: Tensor | None
    values: Tensor


def mx_values(words: Tensor, head_dim: int) -> Tensor:
    """[..] words to [.., head_dim] scales; byte 255 is NaN."""
    exponents = words.contiguous().view(torch.uint8).view(*words.shape, 4).double()
    scales = torch.where(exponents == 255, math.nan, torch.exp2(exponents - 127))
    return scales.repeat_interleave(32, dim=-1)[..., :head_dim]


def code_values(codes: Tensor) -> Tensor:
    if codes.dtype is FP8:
        return codes.to(F64)
    pairs = codes.view(torch.uint8).long()
    return torch.stack([E2M1[pairs & 15], E2M1[pairs >> 4]], dim=-1).flatten(-2)


def operand(shape: tuple[int, ...], form: str) -> Operand:
    head_dim = shape[-1]
    if form == "fp4-mx":
        codes = torch.randint(0, 256, (*shape[:-1], head_dim // 2), dtype=torch.uint8).view(torch.int8)
    else:
        codes = (torch.randn(shape) * 3).to(FP8)
    if form == "fp8":
        return Operand(codes, None, code_values(codes))
    words = torch.randint(118, 130, (*shape[:-1], 4), dtype=torch.uint8).view(torch.int32).squeeze(-1)
    return Operand(codes, words, code_values(codes) * mx_values(words, head_dim))


@dataclass
class Case:
    q: Operand  # [queries, heads, head_dim]
    kv: Operand  # [keys, head_dim]
    kv_sf: Tensor  # f32 [keys], or the words of kv
    weights: Tensor

    def arguments(self) -> dict[str, Any]:
        return {"q": (self.q.codes, self.q.scales), "kv": (self.kv.codes, self.kv_sf), "weights": self.weights}


def case(queries: int, keys: int, heads: int, head_dim: int, form: str = "fp8", weights_dtype: torch.dtype = F32) -> Case:
    q, kv = operand((queries, heads, head_dim), form), operand((keys, head_dim), form)
    kv_sf = torch.rand(keys) + 0.1 if kv.scales is None else kv.scales
    return Case(q, kv, kv_sf, torch.randn(queries, heads).to(weights_dtype))


def scores(q: Tensor, kv: Tensor, weights: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The formula for all pairs in float64, and the sum of the magnitudes of all terms."""
    w = weights.double().unsqueeze(-1)
    logits = (torch.einsum("mhd,nd->mhn", q, kv).relu() * w).sum(1) * scale
    magnitudes = (torch.einsum("mhd,nd->mhn", q.abs(), kv.abs()) * w.abs()).sum(1) * scale.abs()
    return logits, magnitudes


def all_scores(x: Case) -> tuple[Tensor, Tensor]:
    scale = x.kv_sf.double() if x.kv.scales is None else torch.ones(len(x.kv_sf), dtype=F64)
    return scores(x.q.values, x.kv.values, x.weights, scale)


def assert_near(got: Tensor, expected: tuple[Tensor, Tensor], where: Tensor, heads: int, head_dim: int) -> None:
    """Where `where`."""
    logits, magnitudes = (x[where] for x in expected)
    values = got[where].double()
    unit = (2.0**-8 if got.dtype is BF16 else 2.0**-23) * logits.abs()
    error = (values - logits).abs()
    assert bool((error <= 2.0**-24 * (heads + head_dim + 4) * magnitudes + unit).all())
    assert calc_diff(values, logits) < (1e-11 if got.dtype is F32 else 1e-5)


def in_range(start: Tensor, end: Tensor, keys: int) -> Tensor:
    positions = torch.arange(keys)
    return (positions >= start[:, None]) & (positions < end[:, None])


def same_bits(x: Tensor, y: Tensor) -> bool:
    return x.stride() == y.stride() and x.contiguous().view(torch.uint8).equal(y.contiguous().view(torch.uint8))


# ---- contiguous keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("heads", "head_dim"), [(1, 32), (8, 64), (16, 128), (32, 128), (64, 128), (64, 32), (12, 96), (63, 128), (128, 64)]
)
def test_contiguous(form: str, heads: int, head_dim: int) -> None:
    x = case(9, 133, heads, head_dim, form)
    start, end = i32([0, 0, 5, 60, 0, 131, 40, 0, 7]), i32([133, 1, 50, 60, 64, 133, 88, 0, 132])
    logits = deep_gemm.fp8_fp4_mqa_logits(**x.arguments(), cu_seq_len_k_start=start, cu_seq_len_k_end=end)
    inside = in_range(start, end, 133)
    assert logits.dtype is F32 and logits.shape == (9, 133) and logits.stride() == (512, 1)
    assert bool((logits[~inside] == -INF).all())
    assert_near(logits, all_scores(x), inside, heads, head_dim)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("weights_dtype", [F32, BF16])
@pytest.mark.parametrize("logits_dtype", [F32, BF16])
def test_dtypes(form: str, weights_dtype: torch.dtype, logits_dtype: torch.dtype) -> None:
    x = case(5, 100, 32, 64, form, weights_dtype)
    start, end = torch.zeros(5, dtype=torch.int32), i32([100, 99, 64, 1, 33])
    logits = deep_gemm.fp8_fp4_mqa_logits(**x.arguments(), cu_seq_len_k_start=start, cu_seq_len_k_end=end, logits_dtype=logits_dtype)
    assert logits.dtype is logits_dtype and logits.stride() == (512, 1)
    inside = in_range(start, end, 100)
    assert bool((logits[~inside] == -INF).all())
    assert_near(logits, all_scores(x), inside, 32, 64)


def test_many_queries_and_keys() -> None:
    """Several blocks of each."""
    x = case(150, 9001, 2, 32)
    start = torch.randint(0, 6000, (150,), dtype=torch.int32)
    end = start + torch.randint(0, 3000, (150,), dtype=torch.int32)
    logits = deep_gemm.fp8_fp4_mqa_logits(**x.arguments(), cu_seq_len_k_start=start, cu_seq_len_k_end=end)
    inside = in_range(start, end, 9001)
    assert bool((logits[~inside] == -INF).all())
    assert_near(logits, all_scores(x), inside, 2, 32)


BOUNDS = [(-5, 3), (0, 0), (9, 4), (0, 1000), (69, 1000), (70, 70), (200, 300), (-9, -2), (2**31 - 1, -(2**31)), (-(2**31), 2**31 - 1)]


@pytest.mark.parametrize("clean_logits", [True, False])
def test_ranges_are_cut_to_the_keys(clean_logits: bool) -> None:
    x = case(len(BOUNDS), 70, 8, 32)
    start, end = i32([b[0] for b in BOUNDS]), i32([b[1] for b in BOUNDS])
    logits = deep_gemm.fp8_fp4_mqa_logits(**x.arguments(), cu_seq_len_k_start=start, cu_seq_len_k_end=end, clean_logits=clean_logits)
    inside = in_range(start, end, 70)
    assert_near(logits, all_scores(x), inside, 8, 32)
    assert not clean_logits or bool((logits[~inside] == -INF).all())


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("max_seqlen_k", [1, 40, 70, 1000])
def test_compressed(form: str, max_seqlen_k: int) -> None:
    """Row i begins at key start[i]; keys that find no column are left out."""
    x = case(len(BOUNDS), 70, 16, 64, form)
    start, end = i32([b[0] for b in BOUNDS]), i32([b[1] for b in BOUNDS])
    logits = deep_gemm.fp8_fp4_mqa_logits(
        **x.arguments(), cu_seq_len_k_start=start, cu_seq_len_k_end=end, clean_logits=False, max_seqlen_k=max_seqlen_k
    )
    assert logits.shape == (len(BOUNDS), max_seqlen_k) and logits.stride(0) == ceil_div(max_seqlen_k, 256) * 256
    values, magnitudes = all_scores(x)
    for i in range(len(BOUNDS)):
        first = min(max(int(start[i]), 0), 70)
        last = min(max(int(end[i]), first), 70, first + max_seqlen_k)
        row = slice(first, last)
        everywhere = torch.ones(1, last - first, dtype=torch.bool)
        if last > first:
            assert_near(logits[i : i + 1, : last - first], (values[i : i + 1, row], magnitudes[i : i + 1, row]), everywhere, 16, 64)


def test_strided_arguments() -> None:
    """Every tensor as a view with gaps; the key scales also as [keys, 1]."""
    x = case(6, 50, 8, 64)
    start, end = i32([0] * 6), i32([50, 3, 20, 50, 0, 49])
    expected = deep_gemm.fp8_fp4_mqa_logits(**x.arguments(), cu_seq_len_k_start=start, cu_seq_len_k_end=end)

    def spread(t: Tensor) -> Tensor:
        wide = torch.empty(*(2 * n for n in t.shape), dtype=t.dtype)
        view = wide[tuple(slice(0, None, 2) for _ in t.shape)]
        return view.copy_(t)

    got = deep_gemm.fp8_fp4_mqa_logits(
        (spread(x.q.codes), None),
        (x.kv.codes.t().contiguous().t(), spread(x.kv_sf.unsqueeze(1))),
        spread(x.weights),
        spread(start),
        spread(end),
    )
    assert same_bits(got, expected)


def test_packed_along_another_dimension() -> None:
    """FP4 pairs lie along the dimension of stride 1, here the keys."""
    x = case(4, 40, 8, 64, "fp4-mx")
    start, end = i32([0] * 4), i32([40] * 4)
    expected = deep_gemm.fp8_fp4_mqa_logits(**x.arguments(), cu_seq_len_k_start=start, cu_seq_len_k_end=end)
    nibbles = torch.stack([x.kv.codes.view(torch.uint8) & 15, x.kv.codes.view(torch.uint8) >> 4], dim=-1).flatten(-2).t()
    pairs = (nibbles[:, 0::2] | nibbles[:, 1::2] << 4).contiguous().view(torch.int8)  # [head_dim, keys / 2]
    got = deep_gemm.fp8_fp4_mqa_logits((x.q.codes, x.q.scales), (pairs.t(), x.kv_sf), x.weights, start, end)
    assert same_bits(got, expected)


def test_fp8_operator_is_the_same() -> None:
    x = case(7, 90, 64, 128)
    start, end = i32([0, 1, 2, 3, 4, 5, 6]), i32([90, 80, 70, 60, 50, 40, 30])
    expected = deep_gemm.fp8_fp4_mqa_logits(**x.arguments(), cu_seq_len_k_start=start, cu_seq_len_k_end=end)
    assert same_bits(deep_gemm.fp8_mqa_logits(x.q.codes, (x.kv.codes, x.kv_sf), x.weights, start, end), expected)
    expected = deep_gemm.fp8_fp4_mqa_logits(
        **x.arguments(), cu_seq_len_k_start=start, cu_seq_len_k_end=start + 20, clean_logits=False, max_seqlen_k=20
    )
    got = deep_gemm.fp8_mqa_logits(x.q.codes, (x.kv.codes, x.kv_sf), x.weights, start, start + 20, clean_logits=False, max_seqlen_k=20)
    assert same_bits(got, expected)


def test_calls_repeat_bit_by_bit_and_leave_their_inputs() -> None:
    x = case(10, 300, 64, 128)
    start, end = torch.zeros(10, dtype=torch.int32), torch.arange(10, dtype=torch.int32) * 30 + 1
    inputs = (x.q.codes, x.kv.codes, x.kv_sf, x.weights, start, end)
    before = [t.clone() for t in inputs]
    first = deep_gemm.fp8_mqa_logits(x.q.codes, (x.kv.codes, x.kv_sf), x.weights, start, end)
    for _ in range(20):
        assert same_bits(deep_gemm.fp8_mqa_logits(x.q.codes, (x.kv.codes, x.kv_sf), x.weights, start, end), first)
    assert all(same_bits(t, b) for t, b in zip(inputs, before, strict=True))


@pytest.mark.parametrize(("queries", "keys", "heads", "head_dim"), [(0, 5, 8, 32), (5, 0, 8, 32), (5, 6, 0, 32), (5, 6, 8, 0), (0, 0, 0, 0)])
def test_empty(queries: int, keys: int, heads: int, head_dim: int) -> None:
    x = case(queries, keys, heads, head_dim)
    start, end = torch.zeros(queries, dtype=torch.int32), torch.full((queries,), keys, dtype=torch.int32)
    logits = deep_gemm.fp8_fp4_mqa_logits(**x.arguments(), cu_seq_len_k_start=start, cu_seq_len_k_end=end)
    assert logits.shape == (queries, keys) and bool((logits == 0).all())


# ---- values at the edges -------------------------------------------------------------------------------------


def test_every_code() -> None:
    """All 256 codes of a key against ones; the two NaN codes make their key NaN."""
    codes = torch.arange(256, dtype=torch.uint8).view(FP8)
    q = torch.zeros(1, 2, 32)
    q[0, 0, 3], q[0, 1, 3] = 1, -1
    kv = torch.zeros(256, 32, dtype=torch.uint8)
    kv[:, 3] = codes.view(torch.uint8)
    weights = torch.tensor([[1.0, -1.0]])  # max(0, x) - max(0, -x) = x
    logits = deep_gemm.fp8_mqa_logits(q.to(FP8), (kv.view(FP8), torch.ones(256)), weights, i32([0]), i32([256]))
    torch.testing.assert_close(logits[0], codes.float(), rtol=0, atol=0, equal_nan=True)


def test_nan_stays_in_its_query_and_key() -> None:
    x = case(4, 60, 8, 64)
    start, end = i32([0] * 4), i32([60] * 4)
    clean = deep_gemm.fp8_fp4_mqa_logits(**x.arguments(), cu_seq_len_k_start=start, cu_seq_len_k_end=end)
    x.q.codes.view(torch.uint8)[1, 7, 63] = 0x7F
    x.kv.codes.view(torch.uint8)[33, 0] = 0xFF
    x.kv_sf[44] = math.nan
    x.weights[2, 5] = math.nan
    logits = deep_gemm.fp8_fp4_mqa_logits(**x.arguments(), cu_seq_len_k_start=start, cu_seq_len_k_end=end)
    is_nan = torch.zeros(4, 60, dtype=torch.bool)
    is_nan[1], is_nan[2], is_nan[:, 33], is_nan[:, 44] = True, True, True, True
    assert logits.isnan().equal(is_nan)
    assert logits[~is_nan].equal(clean[~is_nan])


def test_nan_outside_of_the_ranges_is_not_seen() -> None:
    """Keys behind the range, and scales and codes of keys that no query sees, may be anything."""
    x = case(3, 200, 8, 64)
    start, end = i32([10, 20, 30]), i32([90, 80, 70])
    expected = deep_gemm.fp8_fp4_mqa_logits(**x.arguments(), cu_seq_len_k_start=start, cu_seq_len_k_end=end)
    for unseen in (slice(0, 10), slice(90, 200)):
        x.kv.codes.view(torch.uint8)[unseen] = 0x7F
        x.kv_sf[unseen] = math.nan
    assert same_bits(deep_gemm.fp8_fp4_mqa_logits(**x.arguments(), cu_seq_len_k_start=start, cu_seq_len_k_end=end), expected)


@pytest.mark.parametrize("form", ["fp8-mx", "fp4-mx"])
def test_mx_scales_of_any_size(form: str) -> None:
    """From 2^-127 to 2^127: products far outside of f32, whose logits may still be in it."""
    x = case(6, 40, 4, 128, form)
    words = torch.randint(0, 255, (6, 4, 4), dtype=torch.uint8)
    assert x.q.scales is not None and x.kv.scales is not None
    x.q.scales.copy_(words.view(torch.int32).squeeze(-1))
    key_words = (252 - torch.randint(0, 253, (40, 4), dtype=torch.uint8)).contiguous()
    key_words[0] = 0xFF
    x.kv_sf.copy_(key_words.view(torch.int32).squeeze(-1))
    logits = deep_gemm.fp8_fp4_mqa_logits(**x.arguments(), cu_seq_len_k_start=i32([0] * 6), cu_seq_len_k_end=i32([40] * 6))
    q_values = code_values(x.q.codes) * mx_values(x.q.scales, 128)
    kv_values = code_values(x.kv.codes) * mx_values(x.kv_sf, 128)
    expected, magnitudes = scores(q_values, kv_values, x.weights, torch.ones(40, dtype=F64))
    assert bool(logits[:, 0].isnan().all())
    rounded = expected.float()
    finite = rounded.isfinite()
    assert logits.isnan().equal(rounded.isnan()) and logits[rounded.isinf()].equal(rounded[rounded.isinf()])
    error = (logits.double() - expected)[finite].abs()
    assert bool((error <= 2.0**-24 * 140 * magnitudes[finite] + 2.0**-23 * expected[finite].abs() + 2.0**-148).all())


# ---- paged keys ----------------------------------------------------------------------------------------------


@dataclass
class Paged:
    q: Operand  # [batch, next_n, heads, head_dim]
    cache: Tensor
    kv_values: Tensor  # [pages, block_kv, head_dim]
    kv_scales: Tensor  # float64 [pages, block_kv]
    weights: Tensor
    block_table: Tensor


def paged(
    batch: int,
    next_n: int,
    heads: int,
    head_dim: int,
    block_kv: int,
    max_pages: int,
    form: str = "fp8",
    gap: int = 0,
    weights_dtype: torch.dtype = F32,
) -> Paged:
    """Every page of a sequence is another one; `gap` bytes lie between pages."""
    pages = batch * max_pages + 1
    q, kv = operand((batch, next_n, heads, head_dim), form), operand((pages, block_kv, head_dim), form)
    key_bytes = kv.codes.shape[-1]
    page_bytes = block_kv * (key_bytes + 4)
    storage = torch.full((pages * (page_bytes + gap),), 0xFF, dtype=torch.uint8)
    flat = storage.as_strided((pages, page_bytes), (page_bytes + gap, 1))
    flat[:, : block_kv * key_bytes] = kv.codes.view(torch.uint8).reshape(pages, -1)
    scales = torch.rand(pages, block_kv) + 0.1 if kv.scales is None else kv.scales
    flat[:, block_kv * key_bytes :] = scales.contiguous().view(torch.uint8).reshape(pages, -1)
    cache = storage.as_strided((pages, block_kv, 1, key_bytes + 4), (page_bytes + gap, key_bytes + 4, key_bytes + 4, 1))
    kv_scales = scales.double() if kv.scales is None else torch.ones(pages, block_kv, dtype=F64)
    table = torch.randperm(pages, dtype=torch.int32)[: batch * max_pages].view(batch, max_pages)
    return Paged(q, cache, kv.values, kv_scales, torch.randn(batch * next_n, heads).to(weights_dtype), table)


def metadata(context_lens: Tensor, block_kv: int = 64, indices: Tensor | None = None) -> Tensor:
    return deep_gemm.get_paged_mqa_logits_metadata(context_lens, block_kv, 8, indices)


def check_paged(x: Paged, lens: Tensor, logits: Tensor, columns: int, is_clean: bool) -> None:
    """lens: [batch, next_n], the keys of each token."""
    batch, next_n, heads, head_dim = x.q.values.shape
    block_kv = x.cache.shape[1]
    assert logits.shape == (batch * next_n, columns)
    assert logits.stride() == (ceil_div(columns, 1024 // logits.element_size()) * (1024 // logits.element_size()), 1)
    for i in range(batch):
        keys = min(int(lens[i].max()), columns)
        pages = x.block_table[i, : ceil_div(keys, block_kv)].long()
        is_missing = (pages == -1).repeat_interleave(block_kv)[:keys]
        kv = x.kv_values[pages].reshape(-1, head_dim)[:keys]
        rows = slice(i * next_n, (i + 1) * next_n)
        expected = scores(x.q.values[i], kv, x.weights[rows], x.kv_scales[pages].reshape(-1)[:keys])
        got = logits[rows]
        inside = torch.arange(columns) < lens[i][:, None]
        is_missing = torch.cat([is_missing, torch.zeros(columns - keys, dtype=torch.bool)])
        assert bool((got[inside & is_missing] == -INF).all())
        seen = (inside & ~is_missing)[:, :keys]
        assert_near(got[:, :keys], expected, seen, heads, head_dim)
        assert not is_clean or bool((got[~inside] == -INF).all())


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("block_kv", [32, 64, 128])
@pytest.mark.parametrize("next_n", [1, 2, 3, 4, 8])
def test_paged(form: str, block_kv: int, next_n: int) -> None:
    x = paged(5, next_n, 16, 64, block_kv, 4, form)
    lens = torch.randint(0, 4 * block_kv + 1, (5, next_n), dtype=torch.int32)
    lens[2] = 0
    lens[3] = 4 * block_kv
    columns = 4 * block_kv + 9
    for clean_logits in (True, False):
        logits = deep_gemm.fp8_fp4_paged_mqa_logits(
            (x.q.codes, x.q.scales), x.cache, x.weights, lens, x.block_table, metadata(lens), columns, clean_logits
        )
        check_paged(x, lens, logits, columns, clean_logits)


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 128), (8, 128), (32, 128), (64, 128), (64, 32), (20, 96)])
def test_paged_heads(heads: int, head_dim: int) -> None:
    x = paged(3, 2, heads, head_dim, 64, 3, gap=12)
    lens = i32([[10, 150], [192, 192], [0, 1]])
    logits = deep_gemm.fp8_paged_mqa_logits(x.q.codes, x.cache, x.weights, lens, x.block_table, metadata(lens), 192, True)
    check_paged(x, lens, logits, 192, True)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("weights_dtype", [F32, BF16])
def test_paged_bf16_logits(form: str, weights_dtype: torch.dtype) -> None:
    x = paged(3, 1, 32, 128, 64, 3, form, weights_dtype=weights_dtype)
    lens = i32([[100], [192], [1]])
    logits = deep_gemm.fp8_fp4_paged_mqa_logits(
        (x.q.codes, x.q.scales), x.cache, x.weights, lens, x.block_table, metadata(lens), 200, True, logits_dtype=BF16
    )
    assert logits.dtype is BF16
    check_paged(x, lens, logits, 200, True)


@pytest.mark.parametrize("next_n", [1, 2, 3])
def test_one_length_per_sequence(next_n: int) -> None:
    """The tokens are the last ones of the context."""
    x = paged(4, next_n, 8, 32, 32, 4)
    lens = i32([128, 100, 1, 0])
    of_tokens = (lens[:, None] - next_n + 1 + torch.arange(next_n)).clamp(min=0)
    logits = deep_gemm.fp8_paged_mqa_logits(x.q.codes, x.cache, x.weights, lens, x.block_table, metadata(lens), 130, True)
    check_paged(x, of_tokens, logits, 130, True)


@pytest.mark.parametrize("heads", [32, 64])
def test_more_sequences_than_heads(heads: int) -> None:
    x = paged(65, 1, heads, 128, 64, 2)
    lens = torch.randint(0, 129, (65, 1), dtype=torch.int32)
    logits = deep_gemm.fp8_paged_mqa_logits(x.q.codes, x.cache, x.weights, lens, x.block_table, metadata(lens), 256, True)
    check_paged(x, lens, logits, 256, True)


def test_missing_pages_and_entries_behind_the_context() -> None:
    x = paged(3, 2, 8, 64, 32, 5)
    lens = i32([[150, 160], [40, 33], [64, 64]])
    x.block_table[0, 2] = -1
    x.block_table[1, 2:] = i32([2**31 - 1, -(2**31), 10**6])
    x.block_table[2, :] = -1
    logits = deep_gemm.fp8_paged_mqa_logits(x.q.codes, x.cache, x.weights, lens, x.block_table, metadata(lens), 160, True)
    check_paged(x, lens, logits, 160, True)
    assert bool((logits[4:] == -INF).all())


def test_context_beyond_the_result_is_left_out() -> None:
    x = paged(2, 1, 8, 64, 32, 3)
    lens = i32([[96], [10**9]])
    logits = deep_gemm.fp8_paged_mqa_logits(x.q.codes, x.cache, x.weights, lens, x.block_table, metadata(lens), 70)
    check_paged(x, lens.clamp(max=70), logits, 70, True)


def test_indices_change_nothing() -> None:
    """Entries of one sequence have the same pages and lengths of their own."""
    x = paged(6, 1, 16, 64, 64, 3)
    indices = i32([0, 0, 1, 2, 2, 2])
    x.block_table = x.block_table[indices.long()]
    lens = i32([50, 51, 192, 128, 129, 130])
    schedule = metadata(lens, indices=indices)
    logits = deep_gemm.fp8_paged_mqa_logits(x.q.codes, x.cache, x.weights, lens, x.block_table, schedule, 192, True, indices)
    check_paged(x, lens[:, None], logits, 192, True)


def test_sliced_and_strided_tables() -> None:
    x = paged(4, 2, 8, 64, 32, 4)
    lens = i32([[30, 31], [128, 127], [64, 5], [0, 90]])
    expected = deep_gemm.fp8_paged_mqa_logits(x.q.codes, x.cache, x.weights, lens, x.block_table, metadata(lens), 128, True)
    wide_lens = torch.full((8, 5), 77, dtype=torch.int32)
    wide_lens[::2, 1:5:3] = lens
    wide_table = torch.full((8, 9), -7, dtype=torch.int32)
    wide_table[1::2, 0:8:2] = x.block_table
    lens_view, table_view = wide_lens[::2, 1:5:3], wide_table[1::2, 0:8:2]
    assert metadata(lens_view).equal(metadata(lens))
    got = deep_gemm.fp8_paged_mqa_logits(x.q.codes, x.cache, x.weights, lens_view, table_view, metadata(lens_view), 128, True)
    assert same_bits(got, expected)


def test_unused_pages_and_keys_may_hold_nan() -> None:
    x = paged(2, 1, 8, 64, 32, 3, gap=4)
    lens = i32([[40], [65]])
    arguments = (x.q.codes, x.cache, x.weights, lens, x.block_table, metadata(lens), 96, True)
    expected = deep_gemm.fp8_paged_mqa_logits(*arguments)
    flat = x.cache.as_strided((x.cache.shape[0], 32 * 68), (x.cache.stride(0), 1))
    used = torch.zeros(x.cache.shape[0], 32, dtype=torch.bool)
    for i in range(2):
        for j in range(int(lens[i, 0])):
            used[x.block_table[i, j // 32], j % 32] = True
    codes, scales = flat[:, : 32 * 64].unflatten(1, (32, 64)), flat[:, 32 * 64 :].unflatten(1, (32, 4))
    codes[~used], scales[~used] = 0x7F, 0xFF
    assert same_bits(deep_gemm.fp8_paged_mqa_logits(*arguments), expected)


@pytest.mark.parametrize(("batch", "next_n", "pages", "columns"), [(0, 1, 1, 64), (2, 0, 1, 64), (2, 1, 0, 64), (2, 1, 2, 0)])
def test_paged_empty(batch: int, next_n: int, pages: int, columns: int) -> None:
    q = torch.zeros(batch, next_n, 8, 32).to(FP8)
    cache = torch.zeros(pages, 32, 1, 36, dtype=torch.uint8)
    lens = torch.zeros(batch, next_n, dtype=torch.int32)
    table = torch.zeros(batch, 0, dtype=torch.int32)
    logits = deep_gemm.fp8_paged_mqa_logits(q, cache, torch.zeros(batch * next_n, 8), lens, table, metadata(lens), columns, True)
    assert logits.shape == (batch * next_n, columns) and bool((logits == -INF).all())


REFUSED = [
    ({"lens": i32([[33], [97]])}, "context_lens[1, 0] has 97 keys below max_context_len, but block_table has only 3 pages of 32 keys"),
    ({"lens": i32([33, 2**30])}, "context_lens[1] has 128 keys below max_context_len, but block_table has only 3 pages of 32 keys"),
    ({"table": i32([[0, 1, 2], [3, 7, 5]])}, "block_table[1, 1] is 7, expected a page of kv_cache, 0 .. 6, or -1"),
    ({"table": i32([[0, -2, 2], [3, 4, 5]])}, "block_table[0, 1] is -2, expected a page of kv_cache, 0 .. 6, or -1"),
]  # fmt: skip


@pytest.mark.parametrize(("replaced", "text"), REFUSED, ids=[text.split(",")[0] for _, text in REFUSED])
def test_pages_that_are_not_there_are_refused(replaced: dict[str, Tensor], text: str) -> None:
    x = paged(2, 1, 8, 64, 32, 3)
    lens, table = replaced.get("lens", i32([[33], [96]])), replaced.get("table", x.block_table)
    with pytest.raises(ValueError) as raised:
        deep_gemm.fp8_paged_mqa_logits(x.q.codes, x.cache, x.weights, lens, table, metadata(lens), 128)
    assert str(raised.value) == f"fp8_paged_mqa_logits: {text}"


# ---- the schedule --------------------------------------------------------------------------------------------


def expected_schedule(lens: list[int], atoms: int, slots: int, indices: list[int] | None = None) -> list[list[int]]:
    """All splits of 256 keys in order, dealt to the slots, and the first of each slot."""
    passes: list[tuple[int, int]] = []  # number of the atom, keys
    i = 0
    while i < len(lens):
        is_pair = indices is not None and i + 1 < len(lens) and indices[i] == indices[i + 1]
        passes += [(i * atoms + a, lens[i + is_pair]) for a in range(atoms)]
        i += 1 + is_pair
    work = [[atom, split] for atom, keys in passes for split in range(ceil_div(max(keys, 0), 256))]
    end = [len(lens) * atoms, 0]
    larger = len(work) % slots
    counts = [len(work) // slots + (slot >= slots - larger) for slot in range(slots)]
    starts = [sum(counts[:slot]) for slot in range(slots)]
    return [work[start] if start < len(work) else end for start in starts] + [end]


def test_schedule_by_hand() -> None:
    """3, 0, 1 and 2 splits on four slots: 1, 1, 2, 2."""
    schedule = deep_gemm.get_paged_mqa_logits_metadata(i32([[700], [0], [1], [512]]), 64, 4)
    assert schedule.dtype is torch.int32 and schedule.is_contiguous()
    assert schedule.tolist() == [[0, 0], [0, 1], [0, 2], [3, 0], [4, 0]]


@pytest.mark.parametrize("next_n", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("slots", [1, 2, 7, 78, 132])
def test_schedule(next_n: int, slots: int) -> None:
    for batch in (0, 1, 2, 13, 64):
        lens = torch.randint(0, 3000, (batch, next_n), dtype=torch.int32)
        lens[batch // 2 : batch // 2 + 1] = 0
        schedule = deep_gemm.get_paged_mqa_logits_metadata(lens, 64, slots)
        assert schedule.tolist() == expected_schedule(lens[:, -1].tolist(), ceil_div(next_n, 2), slots)


@pytest.mark.parametrize("slots", [1, 5, 132])
def test_schedule_with_indices(slots: int) -> None:
    indices = i32([0, 0, 1, 2, 2, 2, 3, 3, 3, 3, 9, 0])
    lens = torch.randint(0, 2000, (12,), dtype=torch.int32)
    expected = expected_schedule(lens.tolist(), 1, slots, indices.tolist())
    assert deep_gemm.get_paged_mqa_logits_metadata(lens, 64, slots, indices).tolist() == expected
    assert deep_gemm.get_paged_mqa_logits_metadata(lens[:, None], 64, slots, indices=indices).tolist() == expected


def test_schedule_without_work_begins_at_the_end() -> None:
    for lens in (i32([[0], [0], [-5]]), torch.zeros(3, 2, dtype=torch.int32)):
        assert deep_gemm.get_paged_mqa_logits_metadata(lens, 64, 3).tolist() == [[3, 0]] * 4


def test_schedule_of_sliced_lengths() -> None:
    """A slice of a wider table, and one length per sequence, count as their contiguous copies; other dtypes are refused."""
    lens = torch.arange(8, dtype=torch.int32).view(4, 2)[:, :1] * 300
    expected = deep_gemm.get_paged_mqa_logits_metadata(lens.contiguous(), 64, 132)
    assert deep_gemm.get_paged_mqa_logits_metadata(lens, 64, 132).equal(expected)
    assert deep_gemm.get_paged_mqa_logits_metadata(lens.squeeze(1), 64, 132).equal(expected)
    with pytest.raises(TypeError, match="context_lens has dtype i64, expected i32"):
        deep_gemm.get_paged_mqa_logits_metadata(lens.long(), 64, 132)
    with pytest.raises(ValueError, match="indices needs one length per entry"):
        deep_gemm.get_paged_mqa_logits_metadata(torch.zeros(4, 2, dtype=torch.int32), 64, 132, i32([0, 0, 1, 1]))
