"""einsum and fp8_einsum against torch.einsum in float64, for one row of the GEMM table: that of DG_BACKEND, or the best.

Bounds follow from the arithmetic, as in test_grouped.py: a kernel adds chains of at most 512 products in f32 and some tens of partial
sums, so an element is off by at most 2^-24 * 600 * sum |a * b|, and by half a unit of bf16 where d is bf16.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from deep_gemm import _C, testing
from deep_gemm.utils import expressions

BF16, F32, E4M3 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
UNTOUCHED = 7.0


def row_runs_here() -> bool:
    try:
        _C.einsum("bmk,bnk->mn", torch.zeros(1, 1, 1, dtype=BF16), torch.zeros(1, 1, 1, dtype=BF16), torch.zeros(1, 1))
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


def apart(*shape: int, dtype: torch.dtype) -> tuple[Tensor, Callable[[], bool]]:
    """An output with gaps between and around its rows, and whether the gaps are as they were."""
    storage = torch.full((*shape[:-1], shape[-1] + 11), UNTOUCHED, dtype=dtype)
    view = storage[..., 3 : 3 + shape[-1]]
    view.fill_(torch.nan)
    return view, lambda: bool((storage[..., :3] == UNTOUCHED).all()) and bool((storage[..., 3 + shape[-1] :] == UNTOUCHED).all())


def check(d: Tensor, exact: Tensor, sum_of_magnitudes: Tensor) -> None:
    bound = 600 * 2.0**-24 * sum_of_magnitudes + 1e-30
    if d.dtype == BF16:
        bound = bound + 2.0**-8 * exact.abs()
    assert bool(((d.double() - exact).abs() <= bound).all())


def strided(x: Tensor, how: str) -> Tensor:
    if how == "padded":
        return torch.nn.functional.pad(x.float(), (5, 8), value=torch.nan).to(x.dtype)[..., 5:-8]
    if how == "transposed":
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if how == "permuted":
        return x.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    return x


# ---- bf16 ----------------------------------------------------------------------------------------------------

HEADS = {"bhr,hdr->bhd": "bhd", "bhd,hdr->bhr": "bhr"}


def heads_shapes(expr: str, b: int, h: int, d: int, r: int) -> tuple[tuple[int, ...], ...]:
    size = {"b": b, "h": h, "d": d, "r": r}
    left, out = expr.split("->")
    return tuple(tuple(size[axis] for axis in names) for names in (*left.split(","), out))


@pytest.mark.parametrize("expr", HEADS)
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("b, h, d, r", [(1, 1, 1, 1), (3, 5, 33, 70), (17, 2, 128, 512), (4, 16, 64, 128), (130, 3, 40, 33)])
@pytest.mark.parametrize("how", ["contiguous", "padded", "transposed", "permuted"])
def test_heads(expr: str, dtype: torch.dtype, b: int, h: int, d: int, r: int, how: str) -> None:
    a_shape, b_shape, d_shape = heads_shapes(expr, b, h, d, r)
    x, y = strided(torch.randn(a_shape).to(BF16), how), strided(torch.randn(b_shape).to(BF16), how)
    out, gaps_hold = apart(*d_shape, dtype=dtype)
    _C.einsum(expr, x, y, out)
    exact, magnitudes = (torch.einsum(expr, f(x), f(y)) for f in (lambda v: v.double(), lambda v: v.double().abs()))
    check(out, exact, magnitudes)
    assert gaps_hold()

    c = strided(torch.randn(d_shape).to(dtype), how)
    _C.einsum(expr, x, y, out, c)
    check(out, exact + c.double(), magnitudes + c.double().abs())
    aliased = c.contiguous()
    _C.einsum(expr, x, y, aliased, aliased)
    assert torch.equal(aliased, out)


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("b, m, n, k", [
    (1, 1, 1, 1), (3, 5, 33, 70), (129, 40, 48, 64), (33, 20, 24, 1000), (2, 7, 9, 5000), (70, 3, 2, 4096), (5000, 2, 3, 8),
])  # fmt: skip
@pytest.mark.parametrize("how", ["contiguous", "padded", "transposed", "permuted"])
def test_batches(dtype: torch.dtype, b: int, m: int, n: int, k: int, how: str) -> None:
    x, y = strided(torch.randn(b, m, k).to(BF16), how), strided(torch.randn(b, n, k).to(BF16), how)
    out, gaps_hold = apart(m, n, dtype=dtype)
    _C.einsum("bmk,bnk->mn", x, y, out)
    exact, magnitudes = (torch.einsum("bmk,bnk->mn", f(x), f(y)) for f in (lambda v: v.double(), lambda v: v.double().abs()))
    check(out, exact, magnitudes)
    assert gaps_hold()
    assert testing.calc_diff(out, exact) < 1e-5

    c = torch.randn(n, m).to(dtype).T
    _C.einsum("bmk,bnk->mn", x, y, out, c)
    check(out, exact + c.double(), magnitudes + c.double().abs())
    aliased = c.contiguous()
    _C.einsum("bmk,bnk->mn", x, y, aliased, aliased)
    assert torch.equal(aliased, out)


@pytest.mark.parametrize("expr", HEADS)
def test_few_elements_round_another_way(expr: str) -> None:
    """The sums are near enough to exact for nearly every bf16 to be the one nearest to the exact sum."""
    a_shape, b_shape, d_shape = heads_shapes(expr, 64, 8, 128, 512)
    x, y = torch.randn(a_shape).to(BF16), torch.randn(b_shape).to(BF16)
    out = torch.empty(d_shape, dtype=BF16)
    _C.einsum(expr, x, y, out)
    exact = torch.einsum(expr, x.double(), y.double())
    assert float((out != exact.to(BF16)).double().mean()) < 1e-3
    assert testing.calc_diff(out, exact.to(BF16)) < 1e-8


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_do_not_show(threads: int) -> None:
    x, y = torch.randn(33, 6, 200).to(BF16), torch.randn(6, 50, 200).to(BF16)
    results = []
    for count in (2, threads, threads):
        torch.set_num_threads(count)
        heads, batches = torch.empty(33, 6, 50), torch.empty(6, 50)
        _C.einsum("bhr,hdr->bhd", x, y, heads)
        _C.einsum("bmk,bnk->mn", x[:, :, :], torch.randn(33, 50, 200, generator=torch.Generator().manual_seed(1)).to(BF16), batches)
        results.append((heads, batches))
    torch.set_num_threads(2)
    for heads, batches in results[1:]:
        assert torch.equal(heads, results[0][0]) and torch.equal(batches, results[0][1])


def test_heads_do_not_mix() -> None:
    x, y = torch.randn(4, 3, 64).to(BF16), torch.randn(3, 32, 64).to(BF16)
    x[:, 1], y[2, 5] = torch.nan, torch.inf
    out = torch.empty(4, 3, 32)
    _C.einsum("bhr,hdr->bhd", x, y, out)
    assert bool(out[:, 1].isnan().all()) and bool(out[:, 0].isfinite().all())
    assert not bool(out[:, 2, 5].isfinite().any()) and bool(out[:, 2, :5].isfinite().all())


# ---- FP8 -----------------------------------------------------------------------------------------------------


def fp8_operand(shape: tuple[int, ...], grans: tuple[int, ...], k_axis: int, packed: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales, and their product in float64."""
    codes = torch.randn(shape).to(E4M3)
    blocks = [-(-n // gran) for n, gran in zip(shape, grans)]
    if packed:
        blocks[k_axis] = -(-blocks[k_axis] // 4) * 4
        exponents = torch.randint(120, 132, blocks, dtype=torch.uint8)
        words = exponents.movedim(k_axis, -1).clone(memory_format=torch.contiguous_format).view(torch.int32).movedim(-1, k_axis)
        scales, argument = (exponents.double() - 127).exp2(), words
    else:
        argument = torch.rand(blocks) + 0.5
        scales = argument.double()
    for axis, (n, gran) in enumerate(zip(shape, grans)):
        scales = scales.repeat_interleave(gran, axis).narrow(axis, 0, n)
    return codes, argument, codes.double() * scales


EXPRESSIONS = ["bhr,hdr->bhd", "bhd,hdr->bhr", "bhd,bhr->hdr"]
CASES = [
    ((1, 128, 128), False), ((1, 1, 128), False), ((1, 128, 128), True), ((1, 1, 32), True), ((128, 128, 128), False), ((3, 5, 7), False),
]  # fmt: skip


@pytest.mark.parametrize("expr", EXPRESSIONS)
@pytest.mark.parametrize("recipe, packed", CASES)
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("b, h, d, r", [(1, 2, 5, 3), (33, 3, 130, 140), (4, 4, 256, 300)])
def test_fp8(expr: str, recipe: tuple[int, int, int], packed: bool, dtype: torch.dtype, b: int, h: int, d: int, r: int) -> None:
    a_shape, b_shape, d_shape = heads_shapes(expr, b, h, d, r)
    a_axes, b_axes = expr.split("->")[0].split(",")
    (k_axis,) = set(a_axes) & set(b_axes) - {"h"}
    grans = [tuple(1 if axis == "h" else recipe[2] if axis == k_axis else gran for axis in axes) for axes, gran in ((a_axes, recipe[0]), (b_axes, recipe[1]))]
    a, sfa, exact_a = fp8_operand(a_shape, grans[0], a_axes.index(k_axis), packed)
    y, sfb, exact_b = fp8_operand(b_shape, grans[1], b_axes.index(k_axis), packed)
    out, gaps_hold = apart(*d_shape, dtype=dtype)
    try:
        _C.fp8_einsum(expr, (a, sfa), (y, sfb), out, recipe=recipe)
    except NotImplementedError as error:
        assert recipe == (3, 5, 7) and "does not take these arguments, only scales of whole rows or of blocks of a multiple of 32 along k" in str(error)
        pytest.skip("this row has no blocks of 7")
    exact, magnitudes = torch.einsum(expr, exact_a, exact_b), torch.einsum(expr, exact_a.abs(), exact_b.abs())
    check(out, exact, magnitudes)
    assert gaps_hold()

    c = torch.randn(d_shape).to(dtype)
    _C.fp8_einsum(expr, (a, sfa), (y, sfb), out, c, recipe)
    check(out, exact + c.double(), magnitudes + c.double().abs())


def test_fp8_after_casts() -> None:
    """As an engine calls it: weights in 128 x 128 blocks, activations per token, compared before quantising."""
    b, h, d, r = 32, 4, 256, 512
    x, w = torch.randn(b, h, r).to(BF16), torch.randn(h, d, r).to(BF16)
    codes, sfa = expressions.per_token_cast_to_fp8(x.view(b * h, r), True, 128, False)
    weights = [expressions.per_block_cast_to_fp8(head, True, 128) for head in w]
    out = torch.empty(b, h, d, dtype=BF16)
    _C.fp8_einsum("bhr,hdr->bhd", (codes.view(b, h, r), sfa.view(b, h, -1)), tuple(torch.stack(t) for t in zip(*weights)), out)
    assert testing.calc_diff(out, torch.einsum("bhr,hdr->bhd", x.double(), w.double())) < 1e-3


# ---- edges ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("b, h, d, r", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0)])
@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_empty(expr: str, b: int, h: int, d: int, r: int) -> None:
    a_shape, b_shape, d_shape = heads_shapes(expr, b, h, d, r)
    c = torch.randn(d_shape)
    out = torch.full(d_shape, UNTOUCHED)
    if expr in HEADS:
        x, y = torch.ones(a_shape, dtype=BF16), torch.ones(b_shape, dtype=BF16)
        expected = torch.einsum(expr, x.float(), y.float())
        _C.einsum(expr, x, y, out)
        assert torch.equal(out, expected)
        _C.einsum(expr, x, y, out, c)
        assert torch.equal(out, expected + c)
    x8, y8 = torch.ones(a_shape).to(E4M3), torch.ones(b_shape).to(E4M3)
    scales = [torch.ones([-(-n // 1) for n in shape]) for shape in (a_shape, b_shape)]
    _C.fp8_einsum(expr, (x8, scales[0]), (y8, scales[1]), out, c, (1, 1, 1))
    assert torch.equal(out, torch.einsum(expr, x8.float(), y8.float()) + c)


@pytest.mark.parametrize("b, m, n, k", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0)])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_empty_batches(dtype: torch.dtype, b: int, m: int, n: int, k: int) -> None:
    x, y, c = torch.ones(b, m, k, dtype=BF16), torch.ones(b, n, k, dtype=BF16), torch.randn(m, n).to(dtype)
    out = torch.full((m, n), UNTOUCHED, dtype=dtype)
    _C.einsum("bmk,bnk->mn", x, y, out)
    assert not out.any()
    _C.einsum("bmk,bnk->mn", x, y, out, c)
    assert torch.equal(out, c)


def ones(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.ones(shape).to(dtype)


ERRORS: list[tuple[str, Callable[[], Any]]] = [
    ('einsum: expr is "abc", expected "bmk,bnk->mn", "bhr,hdr->bhd" or "bhd,hdr->bhr"',
     lambda: _C.einsum("abc", ones(1, 1, 1), ones(1, 1, 1), ones(1, 1))),
    ("einsum: b has a2 = 6, expected 5 to match a", lambda: _C.einsum("bhr,hdr->bhd", ones(2, 3, 5), ones(3, 4, 6), ones(2, 3, 4))),
    ("einsum: d has a1 = 4, expected 3 to match a", lambda: _C.einsum("bhr,hdr->bhd", ones(2, 3, 5), ones(3, 4, 5), ones(2, 4, 3))),
    ("einsum: c has dtype bf16, expected f32 to match d",
     lambda: _C.einsum("bmk,bnk->mn", ones(2, 3, 5), ones(2, 4, 5), ones(3, 4, dtype=F32), ones(3, 4))),
    ("fp8_einsum: a[1] has shape [2, 1], expected [2, 3, 1] = [ceil(a0 / gran_m), a1, ceil(a2 / gran_k)]", lambda: _C.fp8_einsum(
        "bhr,hdr->bhd", (ones(2, 3, 5, dtype=E4M3), ones(2, 1, dtype=F32)), (ones(3, 4, 5, dtype=E4M3), ones(3, 1, 1, dtype=F32)), ones(2, 3, 4))),
]  # fmt: skip


@pytest.mark.parametrize("text, call", ERRORS, ids=[text[:40] for text, _ in ERRORS])
def test_errors(text: str, call: Callable[[], Any]) -> None:
    with pytest.raises((ValueError, TypeError)) as error:
        call()
    assert text in str(error.value)
