"""deep_gemm.dlpack on torch tensors: through the C exchange API, with the words of the torch host, and what that API does not tell."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import deep_gemm
from arrays import to_numpy
from deep_gemm import _C, dlpack

HAS_EXCHANGE = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")


def bf16(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


def fp8_pair(rows: int, k: int, sf_rows: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, k).to(torch.float8_e4m3fn), torch.ones(sf_rows, -(-k // 128))


A, B = fp8_pair(4, 256, 4), fp8_pair(8, 256, 1)


def d() -> Tensor:
    return torch.full((4, 8), 7.0)


# What is wrong in the same words in both hosts, whatever the module.
SAME: list[Callable[[Any], Any]] = [
    lambda m: m.fp8_gemm_nt(A, fp8_pair(8, 128, 1), d()),
    lambda m: m.fp8_gemm_nt(A, B, d(), recipe=(1, 128)),
    lambda m: m.fp8_gemm_nt(A, B, d(), recipe=(1, 4, 128)),
    lambda m: m.fp8_gemm_nt(A, B, d(), recipe=(1, 0, 128)),
    lambda m: m.fp8_gemm_nt(A, B, d(), recipe_a=(1, 1, 128)),
    lambda m: m.fp8_gemm_nt(A, B, d(), recipe="x"),
    lambda m: m.fp8_gemm_nt(A, B, d(), recipe=(1, 1.0, 128)),
    lambda m: m.fp8_gemm_nt(A, B, d(), disable_ue8m0_cast="no"),
    lambda m: m.fp8_gemm_nt(A, B, d(), disable_ue8m0_cast=[]),
    lambda m: m.fp8_gemm_nt(A, B, d(), compiled_dims=3),
    lambda m: m.fp8_gemm_nt(A, B, d()[:, ::2]),
    lambda m: m.fp8_gemm_nt(A, B, d(), torch.zeros(4, 4)),
    lambda m: m.fp8_gemm_nt(A[0], B, d()),
    lambda m: m.fp8_gemm_nt(A, (*B, None), d()),
    lambda m: m.fp8_gemm_nt(A, None, d()),
    lambda m: m.fp8_gemm_nt((None, A[1]), B, d()),
    lambda m: m.fp8_gemm_nt((A[1], A[0]), B, d()),
    lambda m: m.fp8_gemm_nt((A[0], "one scale"), B, d()),
    lambda m: m.fp8_gemm_nt((A[0], A[1][:3]), B, d()),
    lambda m: m.bf16_gemm_nt(None, bf16(8, 8), d()),
    lambda m: m.bf16_gemm_nt([1.0], bf16(8, 8), d()),
    lambda m: m.bf16_gemm_nt(bf16(4, 8), bf16(8, 8), d(), "c"),
    lambda m: m.bf16_gemm_nt(bf16(4), bf16(8, 8), d()),
    lambda m: m.bf16_gemm_nt(bf16(4, 8), bf16(8, 8), torch.zeros(1, 8).expand(4, 8)),
    lambda m: m.bf16_gemm_nt(torch.zeros(4, 8, dtype=torch.complex64), bf16(8, 8), d()),
    lambda m: m.bf16_gemm_nt(torch.zeros(4, 8, dtype=torch.uint16), bf16(8, 8), d()),
    lambda m: m.bf16_gemm_nt(torch.zeros(4, 8, dtype=torch.float8_e4m3fnuz), bf16(8, 8), d()),
    lambda m: m.einsum("bmk,bnk->bmn", bf16(2, 4, 8), bf16(2, 8, 8), d()),
    lambda m: m.set_block_size_multiple_of((1, 2, 3)),
    lambda m: m.set_block_size_multiple_of("64"),
    lambda m: m.get_tma_aligned_size(2**63, 4),
    lambda m: m.get_tma_aligned_size(-1, 4),
    lambda m: m.get_tma_aligned_size("1", 4),
    lambda m: m.get_tma_aligned_size(1),
    lambda m: m.get_tma_aligned_size(1, 2, 3),
    lambda m: m.bf16_gemm_nt(bf16(4, 8), b=bf16(4, 8)),
    lambda m: m.bf16_gemm_nt(bf16(4, 8), bf16(4, 8), d(), recipe=3),
    lambda m: m.m_grouped_bf16_gemm_nt_contiguous(bf16(4, 8), bf16(1, 8, 8), bf16(4, 8)),
    lambda m: m.per_token_cast_to_fp4(torch.ones(2, 3), False),
    lambda m: m.get_ring_limit_for_mega_moe(1, 1, 1, 1),
]


@pytest.mark.parametrize("call", SAME, ids=range(len(SAME)))
def test_errors_are_those_of_the_torch_host(call: Callable[[Any], Any]) -> None:
    with pytest.raises(Exception) as expected:
        call(_C)
    with pytest.raises(Exception) as caught:
        call(dlpack)
    assert (type(caught.value), str(caught.value)) == (type(expected.value), str(expected.value))


def test_no_object_is_made_of_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    if not HAS_EXCHANGE:
        pytest.skip("this torch has no C exchange API")
    monkeypatch.setattr(torch.Tensor, "__dlpack__", None)
    a, b, out = bf16(4, 8), bf16(8, 8), d()
    dlpack.bf16_gemm_nt(a, b, out)
    assert torch.allclose(out, a.float() @ b.float().T, atol=1e-5)
    assert type(dlpack.get_mn_major_tma_aligned_tensor(torch.ones(3, 2))) is Tensor


def test_libraries_can_be_mixed() -> None:
    a, b, out = bf16(4, 8), bf16(8, 8), np.zeros((4, 8), np.float32)
    dlpack.bf16_gemm_nt(a, to_numpy(b), out)
    assert np.allclose(out, (a.float() @ b.float().T).numpy(), atol=1e-5)
    codes, _ = dlpack.per_token_cast_to_fp8(torch.ones(4, 128), False)
    assert type(codes) is Tensor
    assert type(dlpack.cast_back_from_fp4(np.zeros((4, 64), np.uint8), torch.ones(4, 1))) is np.ndarray  # as the first tensor is


@pytest.mark.parametrize("dtype", [torch.float32, "float32", np.float32])
def test_dtypes_of_torch(dtype: Any) -> None:
    q, kv = (torch.ones(2, 8, 32).to(torch.float8_e4m3fn), None), (torch.ones(4, 32).to(torch.float8_e4m3fn), torch.ones(4))
    start, end = torch.zeros(2, dtype=torch.int32), torch.tensor([1, 4], dtype=torch.int32)
    assert dlpack.fp8_fp4_mqa_logits(q, kv, torch.ones(2, 8), start, end, logits_dtype=dtype).dtype == torch.float32
    assert dlpack.fp8_fp4_mqa_logits(q, kv, torch.ones(2, 8), start, end, logits_dtype=torch.bfloat16).dtype == torch.bfloat16


def test_a_parameter_is_a_tensor() -> None:
    weight, a, out = torch.nn.Parameter(bf16(8, 8)), bf16(4, 8), d()
    dlpack.bf16_gemm_nt(a, weight, out)
    assert torch.allclose(out, a.float() @ weight.detach().float().T, atol=1e-5)


class Named(Tensor):
    """A subclass with memory as any tensor has it."""


def test_a_subclass_is_a_tensor() -> None:
    a, b, out = bf16(4, 8), bf16(8, 8), d()
    dlpack.bf16_gemm_nt(a.as_subclass(Named), b, out)
    assert torch.allclose(out, a.float() @ b.float().T, atol=1e-5)


class Wrapper(Tensor):
    """A subclass that dispatches by itself, and has no memory."""

    @staticmethod
    def __new__(cls, shape: tuple[int, ...]) -> Wrapper:
        made: Wrapper = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bfloat16)  # type: ignore[attr-defined]
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"{function} on a wrapper")


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_what_has_no_memory_is_refused() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(4, 8, dtype=torch.bfloat16)
    sparse = torch.zeros(4, 8).bfloat16().to_sparse()
    for a in (fake, Wrapper((4, 8)), sparse, torch.empty(4, 8, dtype=torch.bfloat16, device="meta")):
        out = d()
        with pytest.raises((ValueError, TypeError), match="^bf16_gemm_nt: a "):
            dlpack.bf16_gemm_nt(a, bf16(8, 8), out)
        assert bool((out == 7).all())


def test_negative_views_are_refused() -> None:
    """torch keeps the sign of such a view apart from its memory, and no protocol tells of it."""
    negative = torch.randn(3, 2, dtype=torch.complex64).conj().imag
    assert negative.is_neg()
    for sf in (negative, negative.t(), negative[:, :1], negative[1:2, 1:]):
        with pytest.raises(ValueError, match=r"^get_mn_major_tma_aligned_tensor: sf is a view of the negative of its memory, expected x.resolve_neg\(\)$"):
            dlpack.get_mn_major_tma_aligned_tensor(sf)
    plain = negative.resolve_neg()
    assert torch.equal(dlpack.get_mn_major_tma_aligned_tensor(plain), plain)
    real = torch.randn(3, 2, dtype=torch.complex64).real
    assert torch.equal(dlpack.get_mn_major_tma_aligned_tensor(real), real)


def test_references_are_given_back() -> None:
    a, b, out = bf16(4, 8), bf16(8, 8), d()
    counts = [sys.getrefcount(x) for x in (a, b, out)]
    for _ in range(1000):
        dlpack.bf16_gemm_nt(a, b, out, c=out)
        with pytest.raises(ValueError):
            dlpack.bf16_gemm_nt(a, b[:, :4], out)
    assert [sys.getrefcount(x) for x in (a, b, out)] == counts
    result = dlpack.get_mn_major_tma_aligned_tensor(out)
    assert sys.getrefcount(result) == 2


def test_settings_are_those_of_the_process() -> None:
    before = deep_gemm.get_tc_util()
    try:
        dlpack.set_tc_util(37)
        assert deep_gemm.get_tc_util() == 37
    finally:
        dlpack.set_tc_util(before)
