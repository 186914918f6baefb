"""Integer helpers, and scales that are powers of two."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["align", "ceil_div", "ceil_to_ue8m0", "pack_ue8m0_to_int", "unpack_ue8m0_from_int"]

BYTES_PER_WORD = 4  # UE8M0 scales in an int32


def ceil_div(x: int, y: int) -> int:
    """x / y, rounded up. y is not 0."""
    if y == 0:
        raise ValueError("ceil_div: y is 0, expected another number")
    return -(-x // y)


def align(x: int, y: int) -> int:
    """x rounded up to a multiple of y, which is not 0."""
    if y == 0:
        raise ValueError("align: y is 0, expected another number")
    return -(-x // y) * y


def ceil_to_ue8m0(x: Tensor) -> Tensor:
    """The smallest powers of two that are no less than |x|, for f32 x, from 2^-126 to 2^127."""
    require_tensor("ceil_to_ue8m0", "x", x)
    bits = x.float().abs().view(torch.int32)
    exponent = (bits >> 23) + (bits & 0x7FFFFF).bool().int()
    return (exponent.clamp(1, 254) << 23).view(torch.float32)


def pack_ue8m0_to_int(x: Tensor) -> Tensor:
    """Packs the exponents of powers of two [.., n], n a multiple of 4, into int32 [.., n / 4], the first in the lowest byte."""
    require_tensor("pack_ue8m0_to_int", "x", x)
    if x.dtype != torch.float32 or x.dim() == 0 or x.size(-1) % BYTES_PER_WORD != 0:
        raise ValueError(f"pack_ue8m0_to_int: x must be f32 with a last dimension that is a multiple of 4, got {describe(x)}")
    bits = x.contiguous().view(torch.int32)
    if bool((bits & ~0x7F800000).any()):
        raise ValueError("pack_ue8m0_to_int: x must be positive powers of two")
    words = (*x.shape[:-1], x.size(-1) // BYTES_PER_WORD, BYTES_PER_WORD)
    return (bits >> 23).to(torch.uint8).view(words).view(torch.int32).squeeze(-1)


def unpack_ue8m0_from_int(packed: Tensor) -> Tensor:
    """The f32 scales [.., 4 * n] of packed exponents [.., n]."""
    require_tensor("unpack_ue8m0_from_int", "packed", packed)
    if packed.dtype != torch.int32 or packed.dim() == 0:
        raise ValueError(f"unpack_ue8m0_from_int: packed must be int32, got {describe(packed)}")
    compact = packed.clone(memory_format=torch.contiguous_format)  # contiguous() keeps odd strides of size-1 dimensions
    return (compact.view(torch.uint8).to(torch.int32) << 23).view(torch.float32)


def require_tensor(function: str, name: str, x: object) -> None:
    """Says so when an argument is no tensor, where Python would speak of a missing attribute."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{function}: {name} is {x!r:.60} ({type(x).__name__}), expected a tensor")


def describe(x: Tensor) -> str:
    """Dtype and shape, for messages."""
    return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"
