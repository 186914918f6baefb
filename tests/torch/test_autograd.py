"""Operators have no derivatives: what autograd and torch.func make of that, which is said in bindings/python/README.md, and what else torch
can turn on around a call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

import deep_gemm
from deep_gemm import utils

A, B = torch.randn(4, 64).bfloat16(), torch.randn(8, 64).bfloat16()
X = torch.randn(4, 128)


def gemm(a: Tensor) -> Tensor:
    d = torch.empty(4, 8)
    deep_gemm.bf16_gemm_nt(a, B, d)
    return d


EXPECTED = gemm(A)


def test_a_written_argument_needs_no_gradient() -> None:
    a = A.clone().requires_grad_()
    d = gemm(a)
    assert torch.equal(d, EXPECTED) and not d.requires_grad and d.grad_fn is None and a.grad is None
    with torch.inference_mode():
        assert torch.equal(gemm(a), EXPECTED)


def test_backward_through_a_result_warns_and_gives_nothing() -> None:
    x = X.clone().requires_grad_()
    scales = utils.per_token_cast_to_fp8(x, False)[1]
    assert scales.requires_grad
    with pytest.warns(UserWarning, match="deep_gemm::per_token_cast_to_fp8: an autograd kernel was not registered"):
        scales.sum().backward()
    assert x.grad is None
    with torch.no_grad():
        assert not utils.per_token_cast_to_fp8(x, False)[1].requires_grad


def test_an_autograd_function_trains_through_an_operator() -> None:
    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, weight: Tensor) -> Tensor:
            ctx.save_for_backward(x, weight)
            out = torch.empty(x.shape[0], weight.shape[0])
            deep_gemm.bf16_gemm_nt(x, weight, out)
            return out

        @staticmethod
        def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> tuple[Tensor, Tensor]:
            x, weight = ctx.saved_tensors  # type: ignore[attr-defined]
            (gradient,) = (g.bfloat16() for g in gradients)
            dx, dw = torch.empty_like(x, dtype=torch.float32), torch.empty_like(weight, dtype=torch.float32)
            deep_gemm.bf16_gemm_nn(gradient, weight, dx)
            deep_gemm.bf16_gemm_tn(gradient, x, dw)
            return dx.bfloat16(), dw.bfloat16()

    x, weight = A.clone().requires_grad_(), B.clone().requires_grad_()
    Linear.apply(x, weight).sum().backward()
    ones = torch.ones(4, 8)
    assert x.grad is not None and torch.allclose(x.grad.float(), ones @ B.float(), rtol=0.01, atol=0.01)
    assert weight.grad is not None and torch.allclose(weight.grad.float(), ones.T @ A.float(), rtol=0.01, atol=0.01)


def test_vmap_refuses_to_write_and_maps_what_returns() -> None:
    with pytest.raises(RuntimeError, match="Batching rule not implemented for deep_gemm::bf16_gemm_nt"):
        torch.vmap(gemm)(A.expand(3, 4, 64))
    x = torch.randn(3, 4, 128)
    codes, scales = torch.vmap(lambda one: utils.per_token_cast_to_fp8(one, False))(x)
    for one, some_codes, some_scales in zip(x, codes, scales):
        wanted_codes, wanted_scales = utils.per_token_cast_to_fp8(one, False)
        assert torch.equal(some_codes.view(torch.uint8), wanted_codes.view(torch.uint8)) and torch.equal(some_scales, wanted_scales)


def test_functionalize_refuses_to_write() -> None:
    with pytest.raises(RuntimeError, match="deep_gemm::bf16_gemm_nt"):
        torch.func.functionalize(gemm)(A)


def test_grad_and_jvp_see_a_constant() -> None:
    assert torch.func.grad(lambda a: gemm(a).sum())(A).eq(0).all()
    value, tangent = torch.func.jvp(gemm, (A,), (torch.ones_like(A),))
    assert torch.equal(value, EXPECTED) and tangent.eq(0).all()


# ---- modes of torch ----------------------------------------------------------------------------------------------


@contextmanager
def deterministic(fill: bool) -> Iterator[None]:
    was_on, was_filling = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = fill
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_on)
        torch.utils.deterministic.fill_uninitialized_memory = was_filling


@pytest.mark.parametrize("fill", [False, True])
def test_deterministic_mode_changes_nothing(fill: bool) -> None:
    """Not the result, and with `fill` not an element outside of it: everything of a result is written."""
    with deterministic(fill):
        assert torch.equal(gemm(A), EXPECTED)
        assert torch.equal(utils.per_token_cast_to_fp8(X, False)[1], utils.per_token_cast_to_fp8(X.clone(), False)[1])


def test_a_default_device_is_for_new_tensors_only() -> None:
    with torch.device("meta"):
        assert utils.per_token_cast_to_fp8(X, False)[1].device.type == "cpu"
        d = torch.empty(4, 8)
        with pytest.raises(ValueError, match="^bf16_gemm_nt: a is a tensor with data, expected one on the meta device"):
            deep_gemm.bf16_gemm_nt(A, B, d)
        a = torch.empty(4, 64, dtype=torch.bfloat16)
        deep_gemm.bf16_gemm_nt(a, a, torch.empty(4, 4))


class Subclass(Tensor):
    pass


def test_subclasses_pass_through() -> None:
    sf = torch.rand(4, 2).as_subclass(Subclass)
    got = deep_gemm.get_mn_major_tma_aligned_tensor(sf)
    assert type(got) is Subclass and torch.equal(got.as_subclass(Tensor), sf.as_subclass(Tensor))
    weight = torch.nn.Parameter(B)
    d = torch.empty(4, 8)
    deep_gemm.bf16_gemm_nt(A, weight, d)
    assert torch.equal(d, EXPECTED)
