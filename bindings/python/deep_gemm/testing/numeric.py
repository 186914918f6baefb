"""Comparing results."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["assert_bitwise_equal", "calc_diff", "count_bytes"]


def calc_diff(x: Tensor, y: Tensor) -> float:
    """1 - 2<x, y> / (<x, x> + <y, y>), in double: about half the squared relative error; 0 when both are all zero."""
    x, y = x.double(), y.double()
    denominator = (x * x + y * y).sum()
    return 0.0 if denominator == 0 else float(1 - 2 * (x * y).sum() / denominator)


def assert_bitwise_equal(x: Tensor, y: Tensor, label: str = "") -> None:
    """Raises AssertionError with the first difference unless x and y have the same dtype, shape and bits, NaNs included."""
    name = f"{label}: " if label else ""
    if x.dtype != y.dtype or x.shape != y.shape:
        raise AssertionError(f"{name}{x.dtype} {tuple(x.shape)} and {y.dtype} {tuple(y.shape)}")
    difference = (_bytes(x) != _bytes(y)).any(dim=-1)
    if bool(difference.any()):
        first = int(difference.nonzero()[0].item())
        a, b = x.flatten()[first], y.flatten()[first]
        raise AssertionError(
            f"{name}{int(difference.sum())} of {x.numel()} elements differ, the first at flat index {first}: {a.item()} and {b.item()}"
        )


def _bytes(x: Tensor) -> Tensor:
    return x.contiguous().view(-1).view(torch.uint8).view(-1, x.element_size())


def count_bytes(*tensors: Tensor | Iterable[Tensor] | None) -> int:
    """The bytes of all elements of the tensors, of those in tuples and lists too; None counts nothing."""
    total = 0
    for tensor in tensors:
        if isinstance(tensor, Tensor):
            total += tensor.numel() * tensor.element_size()
        elif tensor is not None:
            total += count_bytes(*tensor)
    return total
