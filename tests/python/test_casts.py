"""The casts of ``deep_gemm.utils`` against their definition, written out element by element in exact arithmetic."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from deep_gemm import utils
from deep_gemm.utils import expressions

# The casts of the package, and the expressions that say what they compute.
both = pytest.mark.parametrize("casts", [utils, expressions], ids=["package", "expressions"])

E4M3 = [x for x in torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().tolist() if math.isfinite(x) and x >= 0]
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def f32(x: float | Fraction) -> float:
    """Rounded to f32, to nearest even. Fractions are rounded once: the double in between is exact to more bits than matter only when odd."""
    if isinstance(x, Fraction):
        x = round_to_odd_double(x)
    return float(struct.unpack("f", struct.pack("f", x))[0])


def round_to_odd_double(x: Fraction) -> float:
    """A double that rounds to the same f32 as x does: with its last bit set when it is not exact."""
    y = float(x)
    if Fraction(y) == x:
        return y
    if abs(Fraction(y)) > abs(x):
        y = math.nextafter(y, 0.0)
    bits = struct.unpack("q", struct.pack("d", y))[0] | 1
    return float(struct.unpack("d", struct.pack("q", bits))[0])


def scale(values: list[float], largest: int, use_ue8m0: bool) -> float:
    amax = max([abs(v) for v in values] + [f32(1e-4)])
    sf = f32(Fraction(amax) / largest)
    if not use_ue8m0:
        return sf
    mantissa, exponent = math.frexp(sf)
    return math.ldexp(1.0, exponent - 1 if mantissa == 0.5 else exponent)


def scaled(x: float, sf: float) -> float:
    """x * (1 / sf), product and reciprocal in f32."""
    return f32(Fraction(x) * Fraction(f32(1 / Fraction(sf))))


def e4m3(x: float) -> float:
    """To nearest, ties to the even code."""
    index = min(range(len(E4M3)), key=lambda i: (abs(E4M3[i] - abs(x)), i % 2))
    return math.copysign(E4M3[index], x)


def e2m1(x: float) -> float:
    """To nearest, ties to the smaller magnitude, no negative zero."""
    value = min(E2M1, key=lambda v: (abs(v - abs(x)), v))
    return -value if x < 0 and value else value


def values(m: int, n: int, dtype: torch.dtype) -> Tensor:
    torch.manual_seed(m * 1000 + n)
    x = torch.randn(m, n) * torch.logspace(-6, 3, m).unsqueeze(1)
    x[0] = 0
    return x.to(dtype)


@both
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("use_ue8m0", [False, True])
@pytest.mark.parametrize("shape", [(5, 96), (3, 40), (4, 1)])
def test_per_token_cast_to_fp8(casts: Any, shape: tuple[int, int], use_ue8m0: bool, dtype: torch.dtype) -> None:
    x = values(*shape, dtype)
    codes, sf = casts.per_token_cast_to_fp8(x, use_ue8m0, gran_k=32, use_packed_ue8m0=False)
    assert codes.dtype == torch.float8_e4m3fn and codes.shape == x.shape and codes.is_contiguous()
    assert sf.shape == (shape[0], -(-shape[1] // 32))
    for i, row in enumerate(x.float().tolist()):
        for q in range(sf.size(1)):
            block = row[32 * q : 32 * q + 32]
            expected = scale(block, 448, use_ue8m0)
            assert sf[i, q].item() == expected
            assert codes[i, 32 * q : 32 * q + 32].float().tolist() == [e4m3(scaled(v, expected)) for v in block]


@both
@pytest.mark.parametrize("use_ue8m0", [False, True])
def test_per_channel_cast_to_fp8(casts: Any, use_ue8m0: bool) -> None:
    x = values(64, 7, torch.bfloat16)
    codes, sf = casts.per_channel_cast_to_fp8(x, use_ue8m0, gran_k=32)
    transposed, sf_transposed = casts.per_token_cast_to_fp8(x.T.contiguous(), use_ue8m0, gran_k=32, use_packed_ue8m0=False)
    assert sf.shape == (2, 7) and torch.equal(sf, sf_transposed.T)
    assert torch.equal(codes.view(torch.uint8), transposed.T.contiguous().view(torch.uint8))
    with pytest.raises(ValueError, match="^per_channel_cast_to_fp8: .* must be a multiple of gran_k|expected a multiple of gran_k = 32$"):
        casts.per_channel_cast_to_fp8(x[:63], use_ue8m0, gran_k=32)


@both
@pytest.mark.parametrize("use_ue8m0", [False, True])
def test_per_block_cast_to_fp8(casts: Any, use_ue8m0: bool) -> None:
    x = values(40, 70, torch.float32)
    codes, sf = casts.per_block_cast_to_fp8(x, use_ue8m0, gran_k=32)
    assert codes.shape == x.shape and sf.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            block = x[32 * i : 32 * i + 32, 32 * j : 32 * j + 32]
            expected = scale(block.flatten().tolist(), 448, use_ue8m0)
            assert sf[i, j].item() == expected
            got = codes[32 * i : 32 * i + 32, 32 * j : 32 * j + 32].float().flatten().tolist()
            assert got == [e4m3(scaled(v, expected)) for v in block.flatten().tolist()]


def test_per_custom_dims_cast_to_fp8() -> None:
    x = values(6, 20, torch.bfloat16).view(2, 3, 20)
    codes, sf = utils.per_custom_dims_cast_to_fp8(x, (0, 1), False)
    flat, sf_flat = utils.per_token_cast_to_fp8(x.view(6, 20), False, gran_k=20)
    assert sf.shape == (2, 3) and torch.equal(sf.flatten(), sf_flat.flatten())
    assert torch.equal(codes.view(6, 20).view(torch.uint8), flat.view(torch.uint8))


@both
@pytest.mark.parametrize("use_ue8m0", [False, True])
def test_per_token_cast_to_fp4_and_back(casts: Any, use_ue8m0: bool) -> None:
    x = values(5, 72, torch.float32)
    x[1, :8] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    x[1, 8:32] = 0
    packed, sf = casts.per_token_cast_to_fp4(x, use_ue8m0, gran_k=32, use_packed_ue8m0=False)
    assert packed.dtype == torch.int8 and packed.shape == (5, 36) and sf.shape == (5, 3)
    back = casts.cast_back_from_fp4(packed, sf, gran_k=32, use_packed_ue8m0=False)
    assert back.dtype == torch.float32 and not bool(((back == 0) & back.signbit()).any())
    for i, row in enumerate(x.tolist()):
        for q in range(3):
            block = row[32 * q : 32 * q + 32]
            expected = scale(block, 6, use_ue8m0)
            assert sf[i, q].item() == expected
            values_of_block = [f32(Fraction(e2m1(scaled(v, expected))) * Fraction(expected)) for v in block]
            assert back[i, 32 * q : 32 * q + 32].tolist() == values_of_block
    assert [v / sf[1, 0].item() for v in back[1, :8].tolist()] == [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert casts.cast_back_from_fp4(torch.tensor([[0x71]], dtype=torch.int8), torch.ones(1, 1), gran_k=128, use_packed_ue8m0=False).tolist() == [[0.5, 6.0]]


def test_transpose_packed_fp4() -> None:
    packed, _ = utils.per_token_cast_to_fp4(values(6, 32, torch.float32), False, gran_k=32)
    ones = torch.ones(6, 1), torch.ones(32, 1)
    transposed = utils.transpose_packed_fp4(packed)
    assert transposed.shape == (32, 3)
    assert torch.equal(utils.cast_back_from_fp4(transposed, ones[1]), utils.cast_back_from_fp4(packed, ones[0]).T)


def test_packed_scales() -> None:
    x = values(3, 260, torch.bfloat16)
    _, sf = utils.per_token_cast_to_fp4(x, True, gran_k=32)
    _, packed = utils.per_token_cast_to_fp4(x, True, gran_k=32, use_packed_ue8m0=True)
    assert packed.dtype == torch.int32 and packed.shape == (3, 3)
    unpacked = utils.unpack_ue8m0_from_int(packed)
    assert torch.equal(unpacked[:, :9], sf) and unpacked[:, 9:].eq(1).all()
    assert utils.pack_ue8m0_to_int(torch.tensor([[1.0, 2.0, 4.0, 0.5]])).tolist() == [[127 | 128 << 8 | 129 << 16 | 126 << 24]]
    for wrong in (torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([-1.0, 1, 1, 1])):
        with pytest.raises(ValueError, match="powers of two"):
            utils.pack_ue8m0_to_int(wrong)
    assert utils.pack_ue8m0_to_int(torch.empty(3, 0)).shape == (3, 0)
    odd_strides = torch.tensor([[127]], dtype=torch.int32).as_strided((1, 1), (1, 9))  # contiguous() keeps them
    assert utils.unpack_ue8m0_from_int(odd_strides)[0, 0] == 1
    with pytest.raises(ValueError, match="use_packed_ue8m0 needs use_ue8m0"):
        utils.per_token_cast_to_fp8(x, False, use_packed_ue8m0=True)


def test_ceil_to_ue8m0() -> None:
    x = torch.tensor([0.0, 1e-45, 2.0**-126, 1.0, 1.0000001, 1.5, 2.0, 3e38, -3.0])
    assert utils.ceil_to_ue8m0(x).tolist() == [2.0**-126, 2.0**-126, 2.0**-126, 1.0, 2.0, 2.0, 2.0, 2.0**127, 4.0]


def test_integers() -> None:
    assert [utils.ceil_div(x, 4) for x in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert [utils.align(x, 4) for x in (0, 1, 4, 5)] == [0, 4, 4, 8]


@pytest.mark.parametrize("shape", [(0, 64), (3, 0), (0, 0)])
def test_empty_matrices(shape: tuple[int, int]) -> None:
    x = torch.empty(shape)
    for cast in (utils.per_token_cast_to_fp8, utils.per_channel_cast_to_fp8, utils.per_block_cast_to_fp8, utils.per_token_cast_to_fp4):
        if cast is utils.per_channel_cast_to_fp8 and shape[0] % 32:
            continue
        codes, sf = cast(x, True, 32)
        assert codes.numel() == 0 and sf.numel() == 0


def test_inputs_of_the_wrong_kind() -> None:
    with pytest.raises(TypeError, match=r"^per_token_cast_to_fp8: x has dtype i32, expected bf16 \| f16 \| f32 \[m, n\]$"):
        utils.per_token_cast_to_fp8(torch.zeros(2, 2, dtype=torch.int32), False)
    with pytest.raises(ValueError, match=r"^per_token_cast_to_fp4: x needs an even number of columns"):
        utils.per_token_cast_to_fp4(torch.zeros(2, 3), False)


@pytest.mark.parametrize(
    ("name", "argument", "call"),
    [
        ("per_token_cast_to_fp8", "x", lambda x: utils.per_token_cast_to_fp8(x, True)),
        ("per_channel_cast_to_fp8", "x", lambda x: utils.per_channel_cast_to_fp8(x, True)),
        ("per_block_cast_to_fp8", "x", lambda x: utils.per_block_cast_to_fp8(x, True)),
        ("per_custom_dims_cast_to_fp8", "x", lambda x: utils.per_custom_dims_cast_to_fp8(x, (0,), True)),
        ("per_token_cast_to_fp4", "x", lambda x: utils.per_token_cast_to_fp4(x, True)),
        ("cast_back_from_fp4", "packed", lambda x: utils.cast_back_from_fp4(x, torch.ones(2, 1))),
        ("transpose_packed_fp4", "a", utils.transpose_packed_fp4),
        ("ceil_to_ue8m0", "x", utils.ceil_to_ue8m0),
        ("pack_ue8m0_to_int", "x", utils.pack_ue8m0_to_int),
        ("unpack_ue8m0_from_int", "packed", utils.unpack_ue8m0_from_int),
    ],
)
def test_what_is_no_tensor(name: str, argument: str, call: Callable[[Any], Any]) -> None:
    for value, words in ((3, r"3 \(int\)"), ([1.0], r"\[1\.0\] \(list\)"), (None, r"None \(NoneType\)")):
        with pytest.raises(TypeError, match=rf"^{name}: {argument} is {words}, expected a tensor$"):
            call(value)


def test_custom_dims_of_no_values_and_beyond_the_rank() -> None:
    codes, sf = utils.per_custom_dims_cast_to_fp8(torch.zeros(0, 4), (1,), True)
    assert codes.shape == (0, 4) and sf.shape == (4,)
    for dims, x in (((2,), torch.zeros(3, 4)), ((-3,), torch.zeros(3, 4)), ((0,), torch.zeros(()))):
        with pytest.raises(ValueError, match=rf"^per_custom_dims_cast_to_fp8: dims has {dims[0]}, expected dimensions of x"):
            utils.per_custom_dims_cast_to_fp8(x, dims, False)


def test_no_division_by_zero() -> None:
    with pytest.raises(ValueError, match=r"^ceil_div: y is 0"):
        utils.ceil_div(3, 0)
    with pytest.raises(ValueError, match=r"^align: y is 0"):
        utils.align(3, 0)
