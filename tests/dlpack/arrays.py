"""torch tensors as NumPy arrays of the same memory, and back: NumPy and torch do it for neither bf16 nor FP8."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent / "torch"))  # samples.py

# By torch's dtype: the dtype of the same bits that both libraries have, and NumPy's. FP4 pairs are bytes to NumPy.
DTYPES: dict[torch.dtype, tuple[torch.dtype, Any]] = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
    torch.float8_e8m0fnu: (torch.uint8, ml_dtypes.float8_e8m0fnu),
    torch.float4_e2m1fn_x2: (torch.uint8, np.uint8),
}


def to_numpy(value: Any) -> Any:
    """A tensor as an array over the same memory, and a dtype of torch by its name, in tuples and lists as well; anything else as it is."""
    if isinstance(value, (tuple, list)):
        return type(value)(map(to_numpy, value))
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if not isinstance(value, Tensor):
        return value
    bits, dtype = DTYPES.get(value.dtype, (value.dtype, None))
    array = value.view(bits).numpy()
    return array if dtype is None else array.view(dtype)


def bits_of(value: Any) -> Any:
    """What is compared: of tensors and arrays the shape, and the elements as bytes; the name of the dtype, FP4 pairs as bytes."""
    if isinstance(value, (tuple, list)):
        return [bits_of(item) for item in value]
    array = to_numpy(value)
    if not isinstance(array, np.ndarray):
        return array
    strides = [stride for size, stride in zip(array.shape, array.strides) if size > 1] if array.size else []
    return array.dtype.name, array.shape, strides, array.tobytes()
