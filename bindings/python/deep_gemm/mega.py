"""Mega MoE: a whole MoE layer in one call, over a symmetric buffer that holds tokens, routes and all that is between the two GEMMs.

    buffer = get_symm_buffer_for_mega_moe(group, num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden)
    l1, l2 = transform_weights_for_mega_moe(l1, l2)              # once
    buffer.x[:n], buffer.x_sf[:n], buffer.topk_idx[:n], buffer.topk_weights[:n] = ...
    fp8_fp4_mega_moe(y, l1, l2, buffer)                          # y is [n, hidden]

There are kernels for one rank, on the CPU and on CUDA; a group of more ranks is refused with NotImplementedError.
"""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from . import _C  # pyright: ignore[reportPrivateUsage]
from ._torch import Tensor, torch
from .utils.scales import align, describe, require_tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = [
    "SymmBuffer",
    "bf16_mega_moe",
    "fp8_fp4_mega_moe",
    "get_symm_buffer_for_mega_moe",
    "transform_weights_for_mega_moe",
]

_Pair: TypeAlias = tuple[Tensor, Tensor]

_PREFILL_TOKENS = 6144  # a rank with as many tokens in a call does no decoding
_PREFILL_RING = 768 * 1024  # tokens; one expert at a time fits a budget of some GB
_DECODE_RING_OF = (4096, 432 // 72, 6, 72)  # tokens per rank, experts per rank, experts per token, ranks: a large decoding set-up


# ---- the buffer ----------------------------------------------------------------------------------------------


class SymmBuffer:
    """The symmetric memory of one rank, with eight views of it as attributes.

    `x`, `x_sf`, `topk_idx` and `topk_weights` are for the caller to fill, one row per token; the others are workspace, and hold what the
    last call left there. The buffer begins as zeros, on the current CUDA device for a group that communicates there (NCCL), otherwise on
    torch's default device. Without a group there is one rank.
    """

    x: Tensor
    """Tokens, FP8 or BF16 [num_max_tokens_per_rank, hidden]."""
    x_sf: Tensor | None
    """Scales of x, four UE8M0 bytes in an int32, [num_max_tokens_per_rank, hidden / 128]; None for BF16."""
    topk_idx: Tensor
    """The experts of each token, int64 [num_max_tokens_per_rank, num_topk]; -1: none."""
    topk_weights: Tensor
    """f32 [num_max_tokens_per_rank, num_topk]."""
    l1_acts: Tensor
    l1_acts_sf: Tensor | None
    l2_acts: Tensor
    l2_acts_sf: Tensor | None
    buffer: Tensor
    """All of it, int8."""
    handle: Any
    """Its `buffer_ptrs` are the addresses of the buffers of all ranks."""

    def __init__(
        self,
        group: ProcessGroup | None,
        num_experts: int,
        num_max_tokens_per_rank: int,
        num_topk: int,
        hidden: int,
        intermediate_hidden: int,
        num_ring_tokens: int,
        mma_type: Literal["fp8xfp4", "bf16xbf16"] = "fp8xfp4",
        activation: Literal["swiglu"] = "swiglu",
    ) -> None:
        self.group = group
        self.num_experts = num_experts
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        self.num_topk = num_topk
        self.hidden = hidden
        self.intermediate_hidden = intermediate_hidden
        self.num_ring_tokens = num_ring_tokens
        num_ranks = _num_ranks(group)
        if num_ranks != 1:
            raise NotImplementedError(f"SymmBuffer: group has {num_ranks} ranks, expected 1: there is no kernel for several ranks")
        num_bytes, layout = _C.get_symm_buffer_size_for_mega_moe(
            num_ranks,
            num_experts,
            num_max_tokens_per_rank,
            num_topk,
            hidden,
            intermediate_hidden,
            mma_type,
            activation,
            num_ring_tokens,
        )
        self.buffer = torch.zeros(num_bytes, dtype=torch.int8, device=_device_of(group))
        self.handle = SimpleNamespace(buffer_ptrs=[self.buffer.data_ptr()])
        views = _C._slice_symm_buffer_for_mega_moe(self.buffer, layout)  # pyright: ignore[reportPrivateUsage]
        self.x, x_sf, self.topk_idx, self.topk_weights, self.l1_acts, l1_acts_sf, self.l2_acts, l2_acts_sf = views
        has_scales = mma_type == "fp8xfp4"
        self.x_sf = x_sf if has_scales else None
        self.l1_acts_sf = l1_acts_sf if has_scales else None
        self.l2_acts_sf = l2_acts_sf if has_scales else None

    def destroy(self) -> None:
        """Lets go of the memory; the object cannot be used any more."""
        for name in ("group", "handle", "buffer"):
            setattr(self, name, None)
        for name in ("x", "x_sf", "topk_idx", "topk_weights", "l1_acts", "l1_acts_sf", "l2_acts", "l2_acts_sf"):
            setattr(self, name, None)


def _num_ranks(group: ProcessGroup | None) -> int:
    return 1 if group is None else group.size()


def _device_of(group: ProcessGroup | None) -> torch.device | None:
    if group is None or not torch.cuda.is_available() or "cuda" not in torch.distributed.get_backend_config(group):
        return None
    return torch.device("cuda", torch.cuda.current_device())


def get_symm_buffer_for_mega_moe(
    group: ProcessGroup | None,
    num_experts: int,
    num_max_tokens_per_rank: int,
    num_topk: int,
    hidden: int,
    intermediate_hidden: int,
    use_fp8_dispatch: bool | None = None,
    mma_type: Literal["fp8xfp4", "bf16xbf16"] = "fp8xfp4",
    activation: Literal["swiglu"] = "swiglu",
) -> SymmBuffer:
    """A buffer for at least num_max_tokens_per_rank tokens, with a ring of DeepGEMM's size: all experts at once for small
    calls, as much as fits a budget of some GB otherwise."""
    alignment = _C.get_token_alignment_for_mega_moe()
    tokens = align(num_max_tokens_per_rank, alignment)
    num_ranks = _num_ranks(group)
    least, greatest = _C.get_ring_limit_for_mega_moe(tokens, max(num_experts // num_ranks, 1), num_topk, num_ranks)
    if tokens >= _PREFILL_TOKENS:
        wanted = align(_PREFILL_RING, alignment)
    else:
        wanted = _C.get_ring_limit_for_mega_moe(align(_DECODE_RING_OF[0], alignment), *_DECODE_RING_OF[1:])[1]
    if use_fp8_dispatch is not None:
        if use_fp8_dispatch != mma_type.startswith("fp8"):
            raise ValueError(
                f"get_symm_buffer_for_mega_moe: use_fp8_dispatch is {use_fp8_dispatch}, but mma_type is {mma_type!r}"
            )
        warnings.warn("`use_fp8_dispatch` is deprecated, `mma_type` says it", DeprecationWarning, stacklevel=2)
    ring = min(max(wanted, least), greatest)
    return SymmBuffer(group, num_experts, tokens, num_topk, hidden, intermediate_hidden, ring, mma_type, activation)


# ---- weights -------------------------------------------------------------------------------------------------


@overload
def transform_weights_for_mega_moe(
    l1_weights: Tensor, l2_weights: Tensor, activation: Literal["swiglu"] = "swiglu"
) -> tuple[Tensor, Tensor]: ...


@overload
def transform_weights_for_mega_moe(
    l1_weights: _Pair, l2_weights: _Pair, activation: Literal["swiglu"] = "swiglu"
) -> tuple[_Pair, _Pair]: ...


def transform_weights_for_mega_moe(
    l1_weights: Tensor | _Pair, l2_weights: Tensor | _Pair, activation: Literal["swiglu"] = "swiglu"
) -> tuple[Tensor | _Pair, Tensor | _Pair]:
    """The weights as the kernels take them: gate and up rows of l1_weights [experts, gate then up, hidden] interleaved, and
    packed scales, where there are any, in the order of tensor cores. l1_weights and l2_weights are tensors, or pairs with scales."""
    if activation != "swiglu":
        raise ValueError(f"transform_weights_for_mega_moe: activation is {activation!r}, expected 'swiglu'")
    if isinstance(l1_weights, tuple) and isinstance(l2_weights, tuple):
        l1, l1_sf = l1_weights
        l2, l2_sf = l2_weights
        return (_interleave_weights(l1), _transpose_sf_for_utccp(_interleave_weights(l1_sf))), (l2, _transpose_sf_for_utccp(l2_sf))
    if isinstance(l1_weights, tuple) or isinstance(l2_weights, tuple):
        raise TypeError("transform_weights_for_mega_moe: l1_weights and l2_weights must both be tensors, or both pairs with scales")
    return _interleave_weights(l1_weights), l2_weights


def _interleave_weights(t: Tensor, gran: int = 8) -> Tensor:
    """[gate, up] along dimension 1 as gran rows of gate, gran rows of up, gran rows of gate, ...; strides stay."""
    require_tensor("_interleave_weights", "t", t)
    if t.dim() < 2 or t.size(1) % (2 * gran) != 0:
        raise ValueError(f"_interleave_weights: dimension 1 of t must be a multiple of {2 * gran}, got {describe(t)}")
    order = torch.arange(t.size(1), device=t.device).view(2, -1, gran).transpose(0, 1).reshape(-1)
    is_fp4 = t.dtype == torch.float4_e2m1fn_x2  # which torch can do little with
    source = t.view(torch.uint8) if is_fp4 else t
    result = torch.empty_like(source).copy_(source[:, order])
    return result.view(t.dtype) if is_fp4 else result


def _transpose_sf_for_utccp(sf: Tensor) -> Tensor:
    """Each 128 rows of packed scales [groups, mn, words] in the order 0, 32, 64, 96, 1, 33, ...; strides stay."""
    require_tensor("_transpose_sf_for_utccp", "sf", sf)
    if sf.dtype != torch.int32 or sf.dim() != 3 or sf.size(1) % 128 != 0:
        raise ValueError(f"_transpose_sf_for_utccp: sf must be int32 [groups, a multiple of 128, words], got {describe(sf)}")
    order = torch.arange(sf.size(1), device=sf.device).view(-1, 4, 32).transpose(1, 2).reshape(-1)
    return torch.empty_like(sf).copy_(sf[:, order])


_interleave_l1_weights = _interleave_weights  # callers look it up under both names


# ---- the layer -----------------------------------------------------------------------------------------------


def fp8_fp4_mega_moe(
    y: Tensor,
    l1_weights: tuple[Tensor, Tensor],
    l2_weights: tuple[Tensor, Tensor],
    sym_buffer: SymmBuffer,
    cumulative_local_expert_recv_stats: Tensor | None = None,
    recipe: tuple[int, int, int] = (1, 1, 32),
    activation: Literal["swiglu"] = "swiglu",
    activation_clamp: float | None = None,
    fast_math: bool = True,
) -> None:
    """The layer over the first y.size(0) tokens of sym_buffer, into y; FP8 activations, FP4 weights as
    `transform_weights_for_mega_moe` returns them. The operator of the same name has the formula."""
    _C.fp8_fp4_mega_moe(
        y,
        l1_weights,
        l2_weights,
        cumulative_local_expert_recv_stats,
        sym_buffer.buffer,
        sym_buffer.handle.buffer_ptrs,
        _rank(sym_buffer.group),
        sym_buffer.num_max_tokens_per_rank,
        sym_buffer.num_experts,
        sym_buffer.num_topk,
        recipe,
        activation,
        activation_clamp,
        fast_math,
        sym_buffer.num_ring_tokens,
    )


def bf16_mega_moe(
    y: Tensor,
    l1_weights: Tensor,
    l2_weights: Tensor,
    sym_buffer: SymmBuffer,
    cumulative_local_expert_recv_stats: Tensor | None = None,
    activation: Literal["swiglu"] = "swiglu",
    activation_clamp: float | None = None,
    fast_math: bool = True,
) -> None:
    """The layer over the first y.size(0) tokens of sym_buffer, into y, all in BF16."""
    _C.bf16_mega_moe(
        y,
        l1_weights,
        l2_weights,
        cumulative_local_expert_recv_stats,
        sym_buffer.buffer,
        sym_buffer.handle.buffer_ptrs,
        _rank(sym_buffer.group),
        sym_buffer.num_max_tokens_per_rank,
        sym_buffer.num_experts,
        sym_buffer.num_topk,
        activation,
        activation_clamp,
        fast_math,
        sym_buffer.num_ring_tokens,
    )


def _rank(group: ProcessGroup | None) -> int:
    return 0 if group is None else group.rank()
