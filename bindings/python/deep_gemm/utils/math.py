"""Integer helpers, scales that are powers of two, and casts to FP8 and FP4 with block scales.

The casts are the operators of the same names; `expressions` has what they compute as torch expressions, whose bits they give.
"""

from __future__ import annotations

from torch import Tensor

from .. import _C  # pyright: ignore[reportPrivateUsage]
from . import expressions
from .scales import align, ceil_div, ceil_to_ue8m0, describe, pack_ue8m0_to_int, require_tensor, unpack_ue8m0_from_int

__all__ = [
    "align",
    "cast_back_from_fp4",
    "ceil_div",
    "ceil_to_ue8m0",
    "pack_ue8m0_to_int",
    "per_block_cast_to_fp8",
    "per_channel_cast_to_fp8",
    "per_custom_dims_cast_to_fp8",
    "per_token_cast_to_fp4",
    "per_token_cast_to_fp8",
    "transpose_packed_fp4",
    "unpack_ue8m0_from_int",
]


def per_token_cast_to_fp8(
    x: Tensor, use_ue8m0: bool, gran_k: int = 128, use_packed_ue8m0: bool = False
) -> tuple[Tensor, Tensor]:
    """Codes [m, n] of x [m, n] and one scale per row and gran_k columns, [m, ceil(n / gran_k)]; or packed, four in an int32."""
    require_tensor("per_token_cast_to_fp8", "x", x)
    return _C.per_token_cast_to_fp8(x, use_ue8m0, gran_k, use_packed_ue8m0)


def per_channel_cast_to_fp8(x: Tensor, use_ue8m0: bool, gran_k: int = 128) -> tuple[Tensor, Tensor]:
    """Codes [m, n] of x [m, n], m a multiple of gran_k, and one scale per gran_k rows and column, [m / gran_k, n]."""
    require_tensor("per_channel_cast_to_fp8", "x", x)
    return _C.per_channel_cast_to_fp8(x, use_ue8m0, gran_k)


def per_block_cast_to_fp8(x: Tensor, use_ue8m0: bool, gran_k: int = 128) -> tuple[Tensor, Tensor]:
    """Codes [m, n] of x [m, n] and one scale per gran_k x gran_k block, [ceil(m / gran_k), ceil(n / gran_k)]."""
    require_tensor("per_block_cast_to_fp8", "x", x)
    return _C.per_block_cast_to_fp8(x, use_ue8m0, gran_k)


def per_custom_dims_cast_to_fp8(x: Tensor, dims: tuple[int, ...], use_ue8m0: bool) -> tuple[Tensor, Tensor]:
    """Codes of x and one scale for every index of the dimensions dims; the others share it. sf has the sizes of dims other than 1."""
    require_tensor("per_custom_dims_cast_to_fp8", "x", x)
    for dim in dims:
        if not -x.dim() <= dim < x.dim():
            raise ValueError(f"per_custom_dims_cast_to_fp8: dims has {dim}, expected dimensions of x, which is {describe(x)}")
    return expressions.per_custom_dims_cast_to_fp8(x, dims, use_ue8m0)


def per_token_cast_to_fp4(
    x: Tensor, use_ue8m0: bool, gran_k: int = 128, use_packed_ue8m0: bool = False
) -> tuple[Tensor, Tensor]:
    """Pairs of FP4 codes, int8 [m, n / 2], of x [m, n], and one scale per row and gran_k columns, [m, ceil(n / gran_k)]; or packed
    to [m, ceil(n / (4 * gran_k))], filled up with 1."""
    require_tensor("per_token_cast_to_fp4", "x", x)
    return _C.per_token_cast_to_fp4(x, use_ue8m0, gran_k, use_packed_ue8m0)


def cast_back_from_fp4(packed: Tensor, sf: Tensor, gran_k: int = 128, use_packed_ue8m0: bool = False) -> Tensor:
    """The f32 values [m, n] of pairs [m, n / 2] and their scales."""
    require_tensor("cast_back_from_fp4", "packed", packed)
    # Contiguous, since the operator takes the pairs of a transposed view along its rows.
    return _C.cast_back_from_fp4(packed.contiguous(), sf, gran_k, use_packed_ue8m0)


def transpose_packed_fp4(a: Tensor) -> Tensor:
    """The pairs [n, m / 2] of the transposed matrix, for pairs [m, n / 2], m even."""
    require_tensor("transpose_packed_fp4", "a", a)
    if a.dim() != 2 or a.element_size() != 1 or a.size(0) % 2 != 0:
        raise ValueError(f"transpose_packed_fp4: a must be bytes [m, n / 2] with an even m, got {describe(a)}")
    return expressions.pack_fp4(expressions.unpack_fp4(a).T).view(a.dtype)
