"""tf32_hc_prenorm_gemm against its formula in float64, for one row of the table: that of DG_BACKEND, or the best.

b is rounded to TF32 in integer arithmetic here. Products are exact in f32, and chains of f32 additions are at most 512 long, so an element is
off by at most 2^-24 * 600 * sum |a * b|.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from deep_gemm import _C, testing

BF16 = torch.bfloat16


def row_runs_here() -> bool:
    try:
        _C.tf32_hc_prenorm_gemm(torch.zeros(1, 1, dtype=BF16), torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1))
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


def tf32(x: Tensor) -> Tensor:
    """The nearest numbers with 11 significant bits, ties to even."""
    bits = x.contiguous().view(torch.int32)
    rounded = ((bits + 0x0FFF + (bits >> 13 & 1)) & ~0x1FFF).view(torch.float32)
    return torch.where(x.isnan(), x, rounded)


def call(a: Tensor, b: Tensor, num_splits: int | None = None) -> tuple[Tensor, Tensor]:
    """d and sqr_sum, after a look at what surrounds them."""
    splits = () if num_splits is None else (num_splits,)
    m, n = a.size(0), b.size(0)
    d = torch.full((*splits, m + 1, n + 9), 7.0)
    sqr_sum = torch.full((*splits, m + 3), 7.0)
    inner_d, inner_sqr_sum = d[..., 1:, 4 : 4 + n], sqr_sum[..., 2 : 2 + m]
    before = a.clone(), b.clone()
    _C.tf32_hc_prenorm_gemm(a, b, inner_d, inner_sqr_sum, num_splits)
    assert testing.assert_bitwise_equal(a, before[0]) is None and testing.assert_bitwise_equal(b, before[1]) is None
    results = inner_d.clone(), inner_sqr_sum.clone()
    inner_d.fill_(7)
    inner_sqr_sum.fill_(7)
    assert bool((d == 7).all()) and bool((sqr_sum == 7).all())
    return results


def check(a: Tensor, b: Tensor, d: Tensor, sqr_sum: Tensor) -> None:
    x, y = a.double(), tf32(b).double()
    exact = x @ y.T
    assert d.shape == exact.shape
    assert bool(((d.double() - exact).abs() <= 600 * 2.0**-24 * (x.abs() @ y.abs().T)).all())
    squares = x.square().sum(1)
    assert bool(((sqr_sum.double() - squares).abs() <= 600 * 2.0**-24 * squares).all())
    assert testing.calc_diff(d, exact) < 1e-11 and testing.calc_diff(sqr_sum, squares) < 1e-11


SHAPES = [
    (1, 1, 1), (1, 24, 7168), (13, 24, 28672), (5, 8, 64), (3, 32, 100), (130, 24, 513), (25, 7, 2049), (7, 100, 300), (2, 1, 4097), (49, 25, 255),
]  # fmt: skip


@pytest.mark.parametrize("m, n, k", SHAPES)
@pytest.mark.parametrize("num_splits", [None, 1, 3, 16])
def test_values(m: int, n: int, k: int, num_splits: int | None) -> None:
    a, b = torch.randn(m, k).to(BF16), torch.randn(n, k)
    d, sqr_sum = call(a, b, num_splits)
    if num_splits is None:
        check(a, b, d, sqr_sum)
        return
    check(a, b, d.double().sum(0).float(), sqr_sum.double().sum(0).float())
    # A slice has the sums over some k of its own: with a single k that is not 0, one slice has everything.
    only = torch.zeros(m, k, dtype=BF16)
    only[:, k // 2] = a[:, k // 2]
    d, sqr_sum = call(only, b, num_splits)
    assert int((sqr_sum != 0).any(1).sum()) <= 1 and int((d != 0).any(2).any(1).sum()) <= 1


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.T.contiguous().T,
    "rows apart": lambda x: torch.nn.functional.pad(x, (3, 5), value=torch.nan)[:, 3:-5],
    "columns apart": lambda x: torch.stack([x, torch.full_like(x, torch.nan)], dim=2).flatten(1)[:, ::2],
    "one row for all": lambda x: x[:1].expand(x.shape),
    "one column for all": lambda x: x[:, :1].expand(x.shape),
}


@pytest.mark.parametrize("of_a", VIEWS)
@pytest.mark.parametrize("of_b", VIEWS)
def test_strides(of_a: str, of_b: str) -> None:
    a, b = VIEWS[of_a](torch.randn(19, 700).to(BF16)), VIEWS[of_b](torch.randn(24, 700))
    check(a, b, *call(a, b))
    d, sqr_sum = call(a, b, 2)
    check(a, b, d.sum(0), sqr_sum.sum(0))


def test_rounds_to_tf32() -> None:
    """One product each: what is left of b. Ties, carries, subnormals, the largest numbers."""
    bits = torch.randint(0, 2**31 - 1, (4096,), dtype=torch.int32)
    bits = torch.cat([bits, bits & ~0x1FFF | 0x1000, bits & ~0x3FFF | 0x1000, bits | 0x7FFFFF, bits & 0x7FFFFF])
    b = torch.cat([bits.view(torch.float32), -bits.view(torch.float32), torch.tensor([0.0, -0.0, torch.inf, -torch.inf])])
    b = b[~b.isnan()][:, None]
    d, _ = call(torch.ones(1, 1, dtype=BF16), b)
    assert torch.equal(d[0], tf32(b)[:, 0])
    payloads = torch.tensor([0x7F800001, 0x7FFFFFFF, 0x7FC00000, 0x7F801000], dtype=torch.int64).to(torch.int32).view(torch.float32)
    d, _ = call(torch.ones(1, 1, dtype=BF16), torch.cat([payloads, -payloads])[:, None])
    assert bool(d.isnan().all())


@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
def test_special_values_stay_in_their_row(special: float) -> None:
    a, b = torch.randn(13, 777).to(BF16), torch.randn(24, 777)
    d, sqr_sum = call(a, b)
    a[5, 600] = special
    got, squares = call(a, b)
    others = torch.arange(13) != 5
    assert torch.equal(got[others], d[others]) and torch.equal(squares[others], sqr_sum[others])
    assert not bool(got[5].isfinite().any()) and not bool(squares[5].isfinite())
    a[5, 600] = 0
    b[3, 7] = special
    got, squares = call(a, b)
    assert not bool(got[:, 3].isfinite().any()) and bool(got[:, [0, 1, 2, 4]].isfinite().all()) and bool(squares.isfinite().all())


def test_threads_and_other_rows_do_not_show() -> None:
    a, b = torch.randn(100, 5000).to(BF16), torch.randn(24, 5000)
    results = []
    for threads in (1, 2, 3, 2):
        torch.set_num_threads(threads)
        results.append(call(a, b, 3))
    torch.set_num_threads(2)
    for d, sqr_sum in results[1:]:
        assert torch.equal(d, results[0][0]) and torch.equal(sqr_sum, results[0][1])
    d, sqr_sum = call(a[40:43], b, 3)
    assert torch.equal(d, results[0][0][:, 40:43]) and torch.equal(sqr_sum, results[0][1][:, 40:43])


@pytest.mark.parametrize("m, n, k", [(0, 24, 64), (3, 0, 64), (3, 24, 0), (0, 0, 0)])
@pytest.mark.parametrize("num_splits", [None, 2])
def test_empty(m: int, n: int, k: int, num_splits: int | None) -> None:
    a = torch.randn(m, k).to(BF16)
    d, sqr_sum = call(a, torch.randn(n, k), num_splits)
    if num_splits is not None:
        d, sqr_sum = d.sum(0), sqr_sum.sum(0)
    assert d.shape == (m, n) and not d.any()
    torch.testing.assert_close(sqr_sum, a.float().square().sum(1))


ERRORS: list[tuple[str, Callable[[], Any]]] = [
    ("tf32_hc_prenorm_gemm: b has k = 5, expected 4 to match a",
     lambda: _C.tf32_hc_prenorm_gemm(torch.ones(2, 4, dtype=BF16), torch.ones(3, 5), torch.ones(2, 3), torch.ones(2))),
    ("tf32_hc_prenorm_gemm: num_splits is 0, expected",
     lambda: _C.tf32_hc_prenorm_gemm(torch.ones(2, 4, dtype=BF16), torch.ones(3, 4), torch.ones(0, 2, 3), torch.ones(0, 2), 0)),
    ("tf32_hc_prenorm_gemm: d has shape [2, 2, 3], expected [4, 2, 3]",
     lambda: _C.tf32_hc_prenorm_gemm(torch.ones(2, 4, dtype=BF16), torch.ones(3, 4), torch.ones(2, 2, 3), torch.ones(2, 2), 4)),
]  # fmt: skip


@pytest.mark.parametrize("text, function", ERRORS, ids=[text[22:60] for text, _ in ERRORS])
def test_errors(text: str, function: Callable[[], Any]) -> None:
    with pytest.raises(ValueError) as error:
        function()
    assert text in str(error.value)
