"""Mega MoE: dispatch, two grouped GEMMs and combine in one kernel over symmetric memory.

Its kernels are not in this release. The names are here, so that callers can look them up, and each says so when it is called.
"""

from __future__ import annotations

from typing import Any, NoReturn

from torch import Tensor

__all__ = [
    "SymmBuffer",
    "bf16_mega_moe",
    "fp8_fp4_mega_moe",
    "get_symm_buffer_for_mega_moe",
    "transform_weights_for_mega_moe",
]


def _not_implemented(name: str) -> NoReturn:
    raise NotImplementedError(f"{name}: not implemented: mega MoE has no kernel in this release")


class SymmBuffer:
    """The symmetric memory of one rank, with eight views of it as attributes."""

    x: Tensor
    x_sf: Tensor | None
    topk_idx: Tensor
    topk_weights: Tensor
    l1_acts: Tensor
    l1_acts_sf: Tensor | None
    l2_acts: Tensor
    l2_acts_sf: Tensor | None

    def __init__(
        self,
        group: Any,
        num_experts: int,
        num_max_tokens_per_rank: int,
        num_topk: int,
        hidden: int,
        intermediate_hidden: int,
        num_ring_tokens: int,
        mma_type: str = "fp8xfp4",
        activation: str = "swiglu",
    ) -> None:
        _not_implemented("SymmBuffer")

    def destroy(self) -> None:
        _not_implemented("SymmBuffer.destroy")


def get_symm_buffer_for_mega_moe(
    group: Any,
    num_experts: int,
    num_max_tokens_per_rank: int,
    num_topk: int,
    hidden: int,
    intermediate_hidden: int,
    use_fp8_dispatch: bool | None = None,
    mma_type: str = "fp8xfp4",
    activation: str = "swiglu",
) -> SymmBuffer:
    _not_implemented("get_symm_buffer_for_mega_moe")


def transform_weights_for_mega_moe(l1_weights: Any, l2_weights: Any, activation: str = "swiglu") -> tuple[Any, Any]:
    _not_implemented("transform_weights_for_mega_moe")


def fp8_fp4_mega_moe(
    y: Tensor,
    l1_weights: tuple[Tensor, Tensor],
    l2_weights: tuple[Tensor, Tensor],
    sym_buffer: SymmBuffer,
    cumulative_local_expert_recv_stats: Tensor | None = None,
    recipe: tuple[int, int, int] = (1, 1, 32),
    activation: str = "swiglu",
    activation_clamp: float | None = None,
    fast_math: bool = True,
) -> None:
    _not_implemented("fp8_fp4_mega_moe")


def bf16_mega_moe(
    y: Tensor,
    l1_weights: Tensor,
    l2_weights: Tensor,
    sym_buffer: SymmBuffer,
    cumulative_local_expert_recv_stats: Tensor | None = None,
    activation: str = "swiglu",
    activation_clamp: float | None = None,
    fast_math: bool = True,
) -> None:
    _not_implemented("bf16_mega_moe")


# Looked up by callers, under both names of the first one.


def _interleave_weights(*args: Any, **kwargs: Any) -> Any:
    _not_implemented("_interleave_weights")


def _transpose_sf_for_utccp(*args: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportUnusedFunction]
    _not_implemented("_transpose_sf_for_utccp")


_interleave_l1_weights = _interleave_weights
