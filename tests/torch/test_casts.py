"""The casts, bit by bit against the torch expressions that define them, for one row of the table: that of DG_BACKEND, or the best.

A NaN may have any sign and payload: the two NaN codes of FP8 count as one, and so do all NaNs of a scale.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from deep_gemm import _C, utils
from deep_gemm.utils import expressions

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
SCALES = {"f32": (False, False), "power": (True, False), "packed": (True, True)}  # use_ue8m0, use_packed_ue8m0


def row_runs_here() -> bool:
    try:
        _C.per_token_cast_to_fp8(torch.zeros(1, 1), False)
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


# ---- comparison ----------------------------------------------------------------------------------------------


def comparable(x: Tensor) -> Tensor:
    """Bits, with one NaN."""
    if x.dtype == torch.float8_e4m3fn:
        codes = x.view(torch.uint8)
        return torch.where((codes & 0x7F) == 0x7F, 0x7F, codes)
    if x.dtype == torch.float32:
        return torch.where(x.isnan(), 0x7FC00000, x.view(torch.int32))
    return x


def assert_same(got: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    assert len(got) == len(expected)
    for name, x, y in zip(("result", "scales"), got, expected):
        assert x.dtype == y.dtype and x.shape == y.shape and x.is_contiguous(), name
        different = (comparable(x) != comparable(y)).nonzero()
        if different.numel():
            at = tuple(different[0].tolist())
            pytest.fail(f"{name}{list(at)} is {comparable(x)[at].item()}, expected {comparable(y)[at].item()}; {len(different)} differ")


def check_all(x: Tensor, gran_k: int) -> None:
    """Every cast that takes x with this granularity."""
    before = x.clone()
    m, n = x.shape
    for use_ue8m0, packed in SCALES.values():
        if not packed or -(-n // gran_k) % 4 == 0:
            assert_same(_C.per_token_cast_to_fp8(x, use_ue8m0, gran_k, packed), expressions.per_token_cast_to_fp8(x, use_ue8m0, gran_k, packed))
        if n % 2 == 0:
            assert_same(_C.per_token_cast_to_fp4(x, use_ue8m0, gran_k, packed), expressions.per_token_cast_to_fp4(x, use_ue8m0, gran_k, packed))
        if not packed:
            assert_same(_C.per_block_cast_to_fp8(x, use_ue8m0, gran_k), expressions.per_block_cast_to_fp8(x, use_ue8m0, gran_k))
        if not packed and m % gran_k == 0:
            assert_same(_C.per_channel_cast_to_fp8(x, use_ue8m0, gran_k), expressions.per_channel_cast_to_fp8(x, use_ue8m0, gran_k))
    assert torch.equal(x.nan_to_num(1.5), before.nan_to_num(1.5)), "x was written"


# ---- values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("m, n, gran_k", [
    (1, 1, 128), (1, 2, 1), (3, 130, 128), (64, 512, 32), (128, 384, 128), (130, 258, 128), (7, 1030, 16), (5, 2100, 100), (9, 90, 3),
    (33, 66, 33), (6, 40, 1000), (256, 70, 2), (2, 5000, 1024), (4, 64, 31), (2, 4100, 1025),
])  # fmt: skip
def test_normal_values(dtype: torch.dtype, m: int, n: int, gran_k: int) -> None:
    spread = torch.randint(-10, 10, (m, n)).float().exp2()  # far apart: small codes are subnormal, or 0
    check_all((torch.randn(m, n) * spread).to(dtype), gran_k)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_16_bit_value_as_amax(dtype: torch.dtype) -> None:
    """Blocks whose largest magnitude is each value of bf16 in turn: NaNs, infinities and subnormals too."""
    values = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16 if dtype == torch.float32 else dtype).to(dtype)
    x = torch.zeros(2**16, 32, dtype=dtype)
    x[:, 5] = values
    x[:, 6] = values / 3
    x[:, 7] = -values / 117
    for use_ue8m0 in (False, True):
        assert_same(_C.per_token_cast_to_fp8(x, use_ue8m0, 32), expressions.per_token_cast_to_fp8(x, use_ue8m0, 32, False))
        assert_same(_C.per_token_cast_to_fp4(x, use_ue8m0, 32), expressions.per_token_cast_to_fp4(x, use_ue8m0, 32, False))


def around(values: Tensor) -> Tensor:
    """All values, the middles between them, their neighbours in f32, and the negatives of all of these."""
    x = torch.cat([values, (values[1:] + values[:-1]) / 2])
    infinity = torch.full_like(x, torch.inf)
    x = torch.cat([x, x.nextafter(infinity), x.nextafter(-infinity)])
    x = x[x.abs() <= values[-1]]
    return torch.cat([x, -x])


def test_every_rounding_of_fp8() -> None:
    """With 448 in each block the scale is 1, and what is rounded is x itself."""
    x = around(torch.arange(0, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float())
    x = torch.cat([x, torch.tensor([-0.0, 1e-45, -1e-45, 2.0**-126])])
    x = torch.nn.functional.pad(x, (0, -len(x) % 31)).view(-1, 31)
    x = torch.cat([torch.full((len(x), 1), 448.0), x], dim=1)
    codes, sf = _C.per_token_cast_to_fp8(x, False, 32)
    assert bool((sf == 1).all())
    assert_same((codes, sf), (x.to(torch.float8_e4m3fn), sf))
    check_all(x, 32)


def test_every_rounding_of_fp4() -> None:
    """With 6 in each block the scale is 1; ties go to the smaller magnitude."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    x = torch.cat([around(values), torch.tensor([-0.0, 1e-45, -1e-45, 0.125, -0.125])])
    x = torch.nn.functional.pad(x, (0, -len(x) % 31)).view(-1, 31)
    x = torch.cat([torch.full((len(x), 1), 6.0), x], dim=1)
    packed, sf = _C.per_token_cast_to_fp4(x, False, 32)
    assert bool((sf == 1).all())
    magnitude = (x.abs().unsqueeze(2) > torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])).sum(2)
    codes = torch.where((x < 0) & (magnitude > 0), magnitude + 8, magnitude)
    expected = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8).view(torch.int8)
    assert torch.equal(packed, expected)
    assert torch.equal(_C.cast_back_from_fp4(packed, sf, 32).signbit(), codes > 7)
    check_all(x, 32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf, "largest", "subnormal", 0.0, -0.0])
@pytest.mark.parametrize("gran_k", [16, 32, 128])
def test_one_special_value(dtype: torch.dtype, special: float | str, gran_k: int) -> None:
    info = torch.finfo(dtype)
    value = {"largest": info.max, "subnormal": info.smallest_normal / 4}.get(special, special) if isinstance(special, str) else special
    for rest in (0.0, 1.0):
        x = torch.randn(max(gran_k, 32), 2 * gran_k).to(dtype) * rest
        x[17, gran_k + 9] = value
        check_all(x, gran_k)
        codes, sf = _C.per_token_cast_to_fp8(x, False, gran_k)
        is_nan = (codes.view(torch.uint8) & 0x7F) == 0x7F
        is_bad_block = torch.zeros_like(sf, dtype=torch.bool)
        is_bad_block[17, 1] = True
        assert not bool(is_nan[~is_bad_block.repeat_interleave(gran_k, 1)].any()) and bool(sf[~is_bad_block].isfinite().all())
        assert bool(is_nan[17, gran_k + 9]) == (value != value or abs(value) == torch.inf)  # infinity times 1 / infinity


def test_flushing_denormals_changes_nothing() -> None:
    x = torch.randn(4, 256) * 2.0**-100
    x[0, 0] = 1e38
    expected = _C.per_token_cast_to_fp8(x, True)
    torch.set_flush_denormal(True)
    try:
        got = _C.per_token_cast_to_fp8(x, True)
    finally:
        torch.set_flush_denormal(False)
    assert_same(got, expected)


# ---- views ---------------------------------------------------------------------------------------------------

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.T.contiguous().T,
    "rows apart": lambda x: torch.nn.functional.pad(x, (3, 5), value=torch.nan)[:, 3:-5],
    "columns apart": lambda x: torch.stack([x, torch.full_like(x, torch.nan)], dim=2).flatten(1)[:, ::2],
    "upside down": lambda x: x.flip(0).as_strided(x.shape, x.stride()),
    "one row for all": lambda x: x[:1].expand(x.shape),
    "one column for all": lambda x: x[:, :1].expand(x.shape),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("gran_k", [16, 64])
def test_strides(dtype: torch.dtype, view: str, gran_k: int) -> None:
    x = VIEWS[view](torch.randn(64, 150).to(dtype))
    check_all(x, gran_k)


@pytest.mark.parametrize("m, n", [(0, 256), (4, 0), (0, 0)])
def test_empty(m: int, n: int) -> None:
    check = torch.empty(m, n, dtype=torch.bfloat16)
    codes, sf = _C.per_token_cast_to_fp8(check, False)
    assert codes.shape == (m, n) and sf.shape == (m, n // 128)
    assert [x.shape for x in _C.per_block_cast_to_fp8(check, False)] == [(m, n), (-(-m // 128), n // 128)]
    assert [x.shape for x in _C.per_channel_cast_to_fp8(check, False, 4)] == [(m, n), (m // 4, n)]
    assert [x.shape for x in _C.per_token_cast_to_fp4(check, True, 32, True)] == [(m, n // 2), (m, n // 128)]
    assert _C.cast_back_from_fp4(codes.new_empty(m, n // 2, dtype=torch.int8), torch.empty(m, n // 128)).shape == (m, n)


# ---- back ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m, n, gran_k", [(1, 2, 128), (5, 256, 32), (3, 130, 128), (8, 66, 1), (4, 300, 33), (2, 2050, 1024)])
def test_cast_back(m: int, n: int, gran_k: int) -> None:
    packed = torch.randint(-128, 128, (m, n // 2), dtype=torch.int8)
    sf = torch.randn(m, -(-n // gran_k))
    expected = expressions.cast_back_from_fp4(packed, sf, gran_k, False)
    assert_same((_C.cast_back_from_fp4(packed, sf, gran_k),), (expected,))
    assert_same((_C.cast_back_from_fp4(packed, sf.T.contiguous().T, gran_k),), (expected,))
    assert_same((_C.cast_back_from_fp4(packed.view(torch.float4_e2m1fn_x2), sf, gran_k),), (expected,))
    apart = torch.nn.functional.pad(packed, (1, 2))[:, 1:-2]
    assert_same((_C.cast_back_from_fp4(apart, sf, gran_k),), (expected,))
    assert_same((utils.cast_back_from_fp4(packed.T.contiguous().T, sf, gran_k),), (expected,))

    words = torch.randint(0, 256, (m, -(-n // (4 * gran_k)), 4), dtype=torch.uint8)
    exponents = words.flatten(1)[:, : sf.size(1)]
    scales = torch.where(exponents == 255, torch.nan, (exponents.double() - 127).exp2()).float()
    expected = expressions.cast_back_from_fp4(packed, scales, gran_k, False)
    assert_same((_C.cast_back_from_fp4(packed, words.view(torch.int32).squeeze(2), gran_k, True),), (expected,))


def test_round_trip() -> None:
    x = torch.randn(100, 512)
    for use_ue8m0, packed in SCALES.values():
        back = utils.cast_back_from_fp4(*utils.per_token_cast_to_fp4(x, use_ue8m0, 32, packed), 32, packed)
        step = 2 * x.abs().view(100, 16, 32).amax(2, keepdim=True) / 6 * (2 if use_ue8m0 else 1)  # between 4 and 6, the widest
        assert bool(((back - x).abs().view(100, 16, 32) <= step / 2 * 1.0001).all())


# ---- utils ---------------------------------------------------------------------------------------------------


def test_utils_call_the_operators() -> None:
    x = torch.randn(128, 512).bfloat16()
    assert_same(utils.per_token_cast_to_fp8(x, True, 128, True), _C.per_token_cast_to_fp8(x, True, 128, True))
    assert_same(utils.per_channel_cast_to_fp8(x, True), _C.per_channel_cast_to_fp8(x, True))
    assert_same(utils.per_block_cast_to_fp8(x, False), _C.per_block_cast_to_fp8(x, False))
    assert_same(utils.per_token_cast_to_fp4(x, True, gran_k=32, use_packed_ue8m0=True), _C.per_token_cast_to_fp4(x, True, 32, True))


def test_custom_dims() -> None:
    x = torch.randn(3, 5, 7, 64)
    codes, sf = utils.per_custom_dims_cast_to_fp8(x, (0, 2), True)
    assert codes.shape == x.shape and sf.shape == (3, 7)
    for i in range(3):
        rows = x[i].transpose(0, 1).reshape(7, -1)
        expected = _C.per_token_cast_to_fp8(rows, True, rows.size(1))
        assert_same((codes[i].transpose(0, 1).reshape(7, -1), sf[i : i + 1].T.contiguous()), expected)
    codes, sf = utils.per_custom_dims_cast_to_fp8(x, (0, 1, 2, 3), False)
    assert sf.shape == x.shape and bool((codes.float() * sf - x).abs().max() <= x.abs().max() * 2**-20)


ERRORS: list[tuple[str, Callable[[], Any]]] = [
    ("per_token_cast_to_fp8: use_packed_ue8m0 needs use_ue8m0", lambda: _C.per_token_cast_to_fp8(torch.ones(2, 512), False, 128, True)),
    ("per_token_cast_to_fp8: use_packed_ue8m0 needs a multiple of four blocks in a row", lambda: _C.per_token_cast_to_fp8(torch.ones(2, 128), True, 128, True)),
    ("per_token_cast_to_fp8: gran_k is 0, expected", lambda: _C.per_token_cast_to_fp8(torch.ones(2, 128), True, 0)),
    ("per_channel_cast_to_fp8: the rows of x must be a multiple of gran_k", lambda: _C.per_channel_cast_to_fp8(torch.ones(100, 8), True)),
    ("per_token_cast_to_fp4: x needs an even number of columns", lambda: _C.per_token_cast_to_fp4(torch.ones(2, 3), True)),
    ("cast_back_from_fp4: sf has shape [2, 3], expected [2, 2]", lambda: _C.cast_back_from_fp4(torch.ones(2, 32, dtype=torch.int8), torch.ones(2, 3), 32)),
]  # fmt: skip


@pytest.mark.parametrize("text, call", ERRORS, ids=[text[:50] for text, _ in ERRORS])
def test_errors(text: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError) as error:
        call()
    assert text in str(error.value)
