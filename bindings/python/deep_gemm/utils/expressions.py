"""The casts as torch expressions: what the operators compute, to the bit.

All of it is in f32:

    amax = max |x| of the block, at least 1e-4        sf = amax / 448 (FP8) or amax / 6 (FP4), rounded up to a power of two with use_ue8m0
    code = x * (1 / sf), rounded to nearest even (FP8), or to nearest with ties to the smaller magnitude (FP4)       value = code * sf
"""

from __future__ import annotations

import torch
from torch import Tensor

from .scales import BYTES_PER_WORD, ceil_div, ceil_to_ue8m0, describe, pack_ue8m0_to_int, unpack_ue8m0_from_int

_FP8_MAX = 448.0
_FP4_MAX = 6.0
_FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_FP4_THRESHOLDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def per_token_cast_to_fp8(x: Tensor, use_ue8m0: bool, gran_k: int, use_packed_ue8m0: bool) -> tuple[Tensor, Tensor]:
    _check_matrix("per_token_cast_to_fp8", x)
    _check_packing("per_token_cast_to_fp8", use_ue8m0, use_packed_ue8m0)
    m, n = x.shape
    padded = _padded(x, 1, gran_k)
    blocks = padded.view(m, padded.size(1) // gran_k, gran_k)
    sf = _scale(blocks.abs().amax(dim=2), _FP8_MAX, use_ue8m0)
    codes = _to_fp8(blocks * (1.0 / sf).unsqueeze(2)).view_as(padded)[:, :n].contiguous()
    return codes, pack_ue8m0_to_int(sf) if use_packed_ue8m0 else sf


def per_channel_cast_to_fp8(x: Tensor, use_ue8m0: bool, gran_k: int) -> tuple[Tensor, Tensor]:
    _check_matrix("per_channel_cast_to_fp8", x)
    m, n = x.shape
    if m % gran_k != 0:
        raise ValueError(f"per_channel_cast_to_fp8: x has m = {m}, expected a multiple of gran_k = {gran_k}")
    blocks = x.float().reshape(m // gran_k, gran_k, n)
    sf = _scale(blocks.abs().amax(dim=1), _FP8_MAX, use_ue8m0)
    return _to_fp8(blocks * (1.0 / sf).unsqueeze(1)).view(m, n), sf


def per_block_cast_to_fp8(x: Tensor, use_ue8m0: bool, gran_k: int) -> tuple[Tensor, Tensor]:
    _check_matrix("per_block_cast_to_fp8", x)
    m, n = x.shape
    padded = _padded(_padded(x, 1, gran_k), 0, gran_k)
    blocks = padded.view(padded.size(0) // gran_k, gran_k, padded.size(1) // gran_k, gran_k)
    sf = _scale(blocks.abs().amax(dim=(1, 3)), _FP8_MAX, use_ue8m0)
    codes = _to_fp8(blocks * (1.0 / sf)[:, None, :, None])
    return codes.view_as(padded)[:m, :n].contiguous(), sf


def per_custom_dims_cast_to_fp8(x: Tensor, dims: tuple[int, ...], use_ue8m0: bool) -> tuple[Tensor, Tensor]:
    kept = {dim % x.dim() for dim in dims}
    shared = tuple(dim for dim in range(x.dim()) if dim not in kept)
    values = x.float()
    if x.numel() == 0:  # the largest of no values is not defined, and no scale is needed
        amax = values.new_zeros([x.size(dim) if dim in kept else 1 for dim in range(x.dim())])
    else:
        amax = values.abs().amax(dim=shared, keepdim=True) if shared else values.abs()
    sf = _scale(amax, _FP8_MAX, use_ue8m0)
    return _to_fp8(values * (1.0 / sf)), sf.squeeze()


def per_token_cast_to_fp4(x: Tensor, use_ue8m0: bool, gran_k: int, use_packed_ue8m0: bool) -> tuple[Tensor, Tensor]:
    _check_matrix("per_token_cast_to_fp4", x)
    _check_packing("per_token_cast_to_fp4", use_ue8m0, use_packed_ue8m0)
    m, n = x.shape
    if n % 2 != 0:
        raise ValueError(f"per_token_cast_to_fp4: x has n = {n}, expected an even number")
    padded = _padded(x, 1, gran_k)
    blocks = padded.view(m, padded.size(1) // gran_k, gran_k)
    sf = _scale(blocks.abs().amax(dim=2), _FP4_MAX, use_ue8m0)
    codes = _to_fp4(blocks * (1.0 / sf).unsqueeze(2)).view_as(padded)[:, :n]
    if use_packed_ue8m0:
        sf = pack_ue8m0_to_int(torch.nn.functional.pad(sf, (0, -sf.size(1) % BYTES_PER_WORD), value=1.0))
    return pack_fp4(codes), sf


def cast_back_from_fp4(packed: Tensor, sf: Tensor, gran_k: int, use_packed_ue8m0: bool) -> Tensor:
    codes = unpack_fp4(packed)
    m, n = codes.shape
    magnitudes = torch.tensor(_FP4_VALUES, dtype=torch.float32, device=packed.device)
    values = magnitudes[(codes & 7).long()]
    values = torch.where(codes >= 8, -values, values)
    scales = unpack_ue8m0_from_int(sf) if use_packed_ue8m0 else sf
    block = torch.arange(n, device=packed.device) // gran_k
    if scales.size(0) != m or scales.size(1) < ceil_div(n, gran_k):
        raise ValueError(f"cast_back_from_fp4: sf has shape {tuple(sf.shape)}, which does not cover {m} x {n} values in blocks of {gran_k}")
    return values * scales[:, block]


def pack_fp4(codes: Tensor) -> Tensor:
    """Bytes [m, n / 2] of codes [m, n], the even one in the low four bits."""
    return (codes[:, 0::2] | (codes[:, 1::2] << 4)).contiguous().view(torch.int8)


def unpack_fp4(packed: Tensor) -> Tensor:
    """Codes, uint8 [m, n], of bytes [m, n / 2]."""
    bits = packed.contiguous().view(torch.uint8)
    return torch.stack((bits & 15, bits >> 4), dim=-1).view(bits.size(0), 2 * bits.size(1))


def _scale(amax: Tensor, largest: float, use_ue8m0: bool) -> Tensor:
    amax = amax.clamp(min=1e-4)
    # By a tensor: dividing by a number is a multiplication by its rounded reciprocal on CUDA.
    sf = amax / torch.full_like(amax, largest)
    return ceil_to_ue8m0(sf) if use_ue8m0 else sf


def _to_fp8(x: Tensor) -> Tensor:
    """Only infinity is beyond 448, and not every torch saturates it."""
    return x.clamp(-_FP8_MAX, _FP8_MAX).to(torch.float8_e4m3fn)


def _to_fp4(x: Tensor) -> Tensor:
    """FP4 codes, uint8, of f32 values. There is no negative zero."""
    code = torch.bucketize(x.abs().contiguous(), torch.tensor(_FP4_THRESHOLDS, device=x.device)).to(torch.uint8)
    return torch.where((x < 0) & (code > 0), code | 8, code)


def _padded(x: Tensor, dim: int, multiple: int) -> Tensor:
    """x as f32, filled up with zeros to a multiple along dim."""
    missing = -x.size(dim) % multiple
    padding = (0, missing) if dim == 1 else (0, 0, 0, missing)
    return torch.nn.functional.pad(x.float(), padding)


def _check_matrix(function: str, x: Tensor) -> None:
    if x.dim() != 2 or x.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"{function}: x must be bf16, f16 or f32 [m, n], got {describe(x)}")


def _check_packing(function: str, use_ue8m0: bool, use_packed_ue8m0: bool) -> None:
    if use_packed_ue8m0 and not use_ue8m0:
        raise ValueError(f"{function}: use_packed_ue8m0 needs use_ue8m0, since only powers of two can be packed")
