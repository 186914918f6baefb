"""Tensors of more than 2^31 elements, which 32-bit indices do not reach, for the families other than the GEMMs (test_grouped.py has those).

The first and the last part of such a tensor hold data, and all between zeros, in memory that is there only once it is written. The result
of each end is that of a call of this end alone, which the other tests hold to the formulas; what belongs to the zeros shows that nothing
went astray. Each test takes at most 12 GB and says so when the machine has less. DG_BACKEND in the environment forces a row.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from deep_gemm import _C
from deep_gemm.mega import transform_weights_for_mega_moe

FP8, BF16, F32, F64 = torch.float8_e4m3fn, torch.bfloat16, torch.float32, torch.float64
LIMIT = 2**31


def available_gb() -> float:
    with open("/proc/meminfo", encoding="ascii") as file:
        kib = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
    return kib * 1024 / 1e9


def takes_gb(needed: float) -> pytest.MarkDecorator:
    """Of memory, with what a test allocates and the operator returns."""
    reason = f"takes {needed} GB of memory, {available_gb():.1f} are available"
    return pytest.mark.skipif(available_gb() < needed + 1, reason=reason)


def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
    """Zeros in pages that come when they are written."""
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(shape)


def run(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except NotImplementedError as error:
        if "cannot run on this machine" in str(error) or "has no CPU row" in str(error):
            pytest.skip(str(error))
        raise


def i32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def same(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8))


# ---- casts ---------------------------------------------------------------------------------------------------

GRAN = 128
ENDS = (slice(None, GRAN), slice(-GRAN, None))
BETWEEN = slice(GRAN, -GRAN)


def matrix() -> Tensor:
    """bf16 [m, n], GRAN rows of data at each end."""
    m, n = 2**18 + GRAN, 8192
    assert m * n > LIMIT
    x = zeros(m, n, dtype=BF16)
    for end in ENDS:
        x[end] = torch.randn(GRAN, n)
    return x


@takes_gb(4)
@pytest.mark.parametrize(
    ("name", "rows_per_scale"),
    [("per_token_cast_to_fp8", 1), ("per_channel_cast_to_fp8", GRAN), ("per_block_cast_to_fp8", GRAN), ("per_token_cast_to_fp4", 1)],
)
def test_casts(name: str, rows_per_scale: int) -> None:
    x, cast = matrix(), getattr(_C, name)
    codes, sf = run(lambda: cast(x, False, GRAN))
    scales = GRAN // rows_per_scale
    for end, end_of_sf in zip(ENDS, (slice(None, scales), slice(-scales, None))):
        expected = cast(x[end].clone(), False, GRAN)
        assert same(codes[end], expected[0]) and same(sf[end_of_sf], expected[1])
    assert not bool(codes[BETWEEN].view(torch.uint8).any())
    between = sf[scales:-scales]
    assert bool(between.amin() == between.amax()) and float(between[0, 0]) < 1e-4


@takes_gb(10)
def test_cast_back() -> None:
    m, n = 2**18 + GRAN, 8192
    packed, sf = zeros(m, n // 2, dtype=torch.int8), zeros(m, n // GRAN, dtype=F32)
    for end in ENDS:
        packed[end] = torch.randint(-128, 128, (GRAN, n // 2), dtype=torch.int8)
        sf[end] = torch.rand(GRAN, n // GRAN)
    values = run(lambda: _C.cast_back_from_fp4(packed, sf, GRAN))
    assert values.numel() > LIMIT
    for end in ENDS:
        assert same(values[end], _C.cast_back_from_fp4(packed[end].clone(), sf[end].clone(), GRAN))
    assert not bool(values[BETWEEN].any())


# ---- scale layouts -------------------------------------------------------------------------------------------


def scales() -> Tensor:
    """f32 [mn, k blocks], powers of two at the ends."""
    sf = zeros(2**25 + 2 * GRAN + 3, 64, dtype=F32)
    assert sf.numel() > LIMIT
    for end in ENDS:
        sf[end] = torch.randint(-10, 10, (GRAN, 64)).float().exp2()
    return sf


@takes_gb(10)
def test_mn_major() -> None:
    sf = scales()
    out = run(lambda: _C.get_mn_major_tma_aligned_tensor(sf))
    assert all(same(out[end], sf[end]) for end in ENDS)
    assert not bool(out.T[:, BETWEEN].any())


@takes_gb(4)
@pytest.mark.parametrize("recipe", [None, (1, 32)], ids=["pack", "transform"])
def test_packed_scales(recipe: tuple[int, int] | None) -> None:
    def pack(sf: Tensor) -> Tensor:
        if recipe is None:
            return _C.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf)
        return _C.transform_sf_into_required_layout(sf, sf.size(0), 64 * 32, recipe)

    sf = scales()
    out = run(lambda: pack(sf))
    assert all(same(out[end], pack(sf[end].clone())) for end in ENDS)
    assert not bool(out.T[:, BETWEEN].any())


@takes_gb(4)
def test_k_grouped_scales() -> None:
    mn, ks = 2**19, [4096 * GRAN, 4 * GRAN]
    sf = zeros(4100, mn, dtype=F32)
    assert sf.numel() > LIMIT
    for end in (slice(None, 4), slice(-4, None)):
        sf[end] = torch.randint(-10, 10, (4, mn)).float().exp2()
    out = run(lambda: _C.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(sf, i32(*ks), ks, GRAN, GRAN))
    for end, row in ((slice(None, 4), 0), (slice(-4, None), -1)):
        assert same(out[row], _C.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf[end].T.contiguous())[:, 0])
    assert not bool(out[1:-1].any())


# ---- hyperconnection -----------------------------------------------------------------------------------------


def check_prenorm(a: Tensor, b: Tensor, d: Tensor, sqr_sum: Tensor) -> None:
    """b has TF32 numbers. The bound is that of test_hyperconnection.py."""
    a, b = a.double(), b.double()
    bound = 2.0**-24 * 600
    assert bool(((d.double() - a @ b.T).abs() <= bound * (a.abs() @ b.abs().T)).all())
    assert bool(((sqr_sum.double() - (a * a).sum(1)).abs() <= bound * (a * a).sum(1)).all())


@takes_gb(2)
def test_hyperconnection_of_many_rows() -> None:
    m, n, k = 2**17 + 1, 4, 2**14
    assert m * k > LIMIT
    a, b = zeros(m, k, dtype=BF16), torch.randn(n, k).bfloat16().float()
    ends = (slice(None, 3), slice(-3, None))
    for end in ends:
        a[end] = torch.randn(3, k)
    d, sqr_sum = torch.empty(m, n), torch.empty(m)
    run(lambda: _C.tf32_hc_prenorm_gemm(a, b, d, sqr_sum))
    for end in ends:
        check_prenorm(a[end], b, d[end], sqr_sum[end])
    assert not bool(d[3:-3].any()) and not bool(sqr_sum[3:-3].any())


@takes_gb(1)
@pytest.mark.parametrize(("m", "num_splits"), [(33, None), (2, 17)])
def test_hyperconnection_with_results_far_apart(m: int, num_splits: int | None) -> None:
    n, k, stride = 24, 512, 2**26
    assert (m * (num_splits or 1) - 1) * stride >= LIMIT
    a, b = torch.randn(m, k).bfloat16(), torch.randn(n, k).bfloat16().float()
    splits = () if num_splits is None else (num_splits,)
    wide, sqr_sum = zeros(*splits, m, stride, dtype=F32), torch.empty(*splits, m)
    run(lambda: _C.tf32_hc_prenorm_gemm(a, b, wide[..., :n], sqr_sum, num_splits))
    d = wide[..., :n]
    check_prenorm(a, b, d if num_splits is None else d.sum(0), sqr_sum if num_splits is None else sqr_sum.sum(0))
    assert not bool(wide[..., n : 4096].any())


# ---- indexer logits ------------------------------------------------------------------------------------------

HEADS, KEYS = 8, 64


def fp8(*shape: int) -> Tensor:
    return torch.randn(shape).to(FP8)


def expected_logits(q: Tensor, kv: Tensor, kv_sf: Tensor, weights: Tensor) -> Tensor:
    """[keys] of one token: q [heads, head_dim], kv [keys, head_dim]."""
    return (weights.double() @ (q.double() @ kv.double().T).relu()) * kv_sf.double()


def close(x: Tensor, y: Tensor) -> bool:
    return bool(((x.double() - y).abs() <= 1e-4 * (1 + y.abs())).all())


@takes_gb(2)
def test_logits_of_many_keys() -> None:
    count, dim = 2**24 + KEYS, 128
    kv, kv_sf = zeros(count, dim, dtype=FP8), torch.rand(count)
    assert kv.numel() > LIMIT
    kv[:KEYS], kv[-KEYS:] = fp8(KEYS, dim), fp8(KEYS, dim)
    q, weights = fp8(2, HEADS, dim), torch.rand(2, HEADS)
    starts, ends = i32(0, count - KEYS), i32(KEYS, count)
    logits = run(lambda: _C.fp8_mqa_logits(q, (kv, kv_sf), weights, starts, ends))
    assert close(logits[0, :KEYS], expected_logits(q[0], kv[:KEYS], kv_sf[:KEYS], weights[0]))
    assert close(logits[1, -KEYS:], expected_logits(q[1], kv[-KEYS:], kv_sf[-KEYS:], weights[1]))
    assert float(logits[0, KEYS:].amax()) == float(logits[1, :-KEYS].amax()) == -math.inf


@pytest.mark.parametrize(
    "dtype", [pytest.param(F32, id="f32", marks=takes_gb(10)), pytest.param(BF16, id="bf16", marks=takes_gb(6))]
)
def test_many_logits(dtype: torch.dtype) -> None:
    rows, count, dim = 2**15 + 1, 2**16, 32
    q, kv, kv_sf, weights = fp8(rows, HEADS, dim), fp8(count, dim), torch.rand(count), torch.rand(rows, HEADS)
    starts, ends = torch.zeros(rows, dtype=torch.int32), torch.zeros(rows, dtype=torch.int32)
    ends[0], starts[-1], ends[-1] = KEYS, count - KEYS, count
    logits = run(lambda: _C.fp8_fp4_mqa_logits((q, None), (kv, kv_sf), weights, starts, ends, logits_dtype=dtype))
    assert logits.numel() > LIMIT
    rounding = 1 if dtype is F32 else 1 + 2.0**-8
    for row, keys in ((0, slice(None, KEYS)), (-1, slice(-KEYS, None))):
        expected = expected_logits(q[row], kv[keys], kv_sf[keys], weights[row])
        got = logits[row, keys].double()
        assert bool(((got - expected).abs() <= 1e-4 * (1 + expected.abs()) + (rounding - 1) * expected.abs()).all())
    assert float(logits[0, KEYS:].amax()) == float(logits[-1, :-KEYS].amax()) == -math.inf
    assert float(logits[1:-1].amax()) == -math.inf


@pytest.mark.parametrize(
    ("batch", "pages", "max_context_len"),
    [
        pytest.param(2, LIMIT // (KEYS * 132) + 2, KEYS, id="pages", marks=takes_gb(2)),
        pytest.param(33, 2, 2**26, id="logits", marks=takes_gb(2)),
    ],
)
def test_paged_logits(batch: int, pages: int, max_context_len: int) -> None:
    dim = 128
    cache = zeros(pages, KEYS, 1, dim + 4, dtype=torch.uint8)
    assert max(cache.numel(), batch * max_context_len) > LIMIT
    kv, kv_sf = fp8(2, KEYS, dim), torch.rand(2, KEYS)
    for page, index in ((0, 0), (-1, 1)):  # codes of all keys of a page, then their scales
        flat = cache[page].view(-1)
        flat[: KEYS * dim] = kv[index].view(torch.uint8).view(-1)
        flat[KEYS * dim :] = kv_sf[index].view(torch.uint8).view(-1)
    q, weights = fp8(batch, 1, HEADS, dim), torch.rand(batch, HEADS)
    lens = torch.full((batch, 1), KEYS, dtype=torch.int32)
    table = torch.full((batch, max_context_len // KEYS), -1, dtype=torch.int32)
    table[:, 0] = torch.arange(batch) % 2 * (pages - 1)
    logits = run(
        lambda: _C.fp8_paged_mqa_logits(
            q, cache, weights, lens, table, _C.get_paged_mqa_logits_metadata(lens, KEYS, 2), max_context_len
        )
    )
    for row in range(batch):
        assert close(logits[row, :KEYS], expected_logits(q[row, 0], kv[row % 2], kv_sf[row % 2], weights[row])), row


# ---- mega MoE ------------------------------------------------------------------------------------------------


def bf16_mega_moe(l1: Tensor, l2: Tensor, x: Tensor, topk_idx: Tensor, max_tokens: int) -> Tensor:
    """y of the last token, the only one with experts; x [hidden], topk_idx [topk]."""
    experts, hidden, intermediate, topk = len(l1), l2.size(1), l2.size(2), len(topk_idx)
    ring = _C.get_ring_limit_for_mega_moe(max_tokens, experts, topk, 1)[0]
    size, layout = _C.get_symm_buffer_size_for_mega_moe(
        1, experts, max_tokens, topk, hidden, intermediate, "bf16xbf16", "swiglu", ring
    )
    buffer = zeros(size, dtype=torch.int8)
    views = _C._slice_symm_buffer_for_mega_moe(buffer, layout)
    views[0][-1] = x
    views[2].fill_(-1)
    views[2][-1] = topk_idx
    views[3][-1] = 0.5
    y = torch.empty(max_tokens, hidden, dtype=BF16)
    run(
        lambda: _C.bf16_mega_moe(
            y, l1, l2, None, buffer, [buffer.data_ptr()], 0, max_tokens, experts, topk, "swiglu", None, True, ring
        )
    )
    assert not bool(y[:-1].any())
    return y[-1]


@takes_gb(4)
def test_mega_moe_in_a_large_buffer() -> None:
    """[topk, tokens, hidden] terms."""
    topk, tokens, hidden = 4, 98304, 8192
    assert (topk - 1) * tokens * hidden > LIMIT
    l1, l2 = transform_weights_for_mega_moe(torch.randn(4, 256, hidden).bfloat16() / 90, torch.randn(4, hidden, 128).bfloat16())
    x, topk_idx = torch.randn(hidden), torch.tensor([2, 0, 3, 1])
    y = bf16_mega_moe(l1, l2, x, topk_idx, tokens)
    assert bool(y.any()) and same(y, bf16_mega_moe(l1, l2, x, topk_idx, 384))


@takes_gb(3)
def test_mega_moe_of_many_experts() -> None:
    experts, hidden, intermediate = 257, 4096, 2048
    l1, l2 = zeros(experts, 2 * intermediate, hidden, dtype=BF16), zeros(experts, hidden, intermediate, dtype=BF16)
    assert l1[:-1].numel() > LIMIT and l2[:-1].numel() >= LIMIT
    l1[-1], l2[-1] = torch.randn(2 * intermediate, hidden) / 64, torch.randn(hidden, intermediate)
    x = torch.randn(hidden)
    y = bf16_mega_moe(l1, l2, x, torch.tensor([experts - 1, 0]), 384)
    assert bool(y.any()) and same(y, bf16_mega_moe(l1[-1:].clone(), l2[-1:].clone(), x, torch.tensor([0, -1]), 384))
