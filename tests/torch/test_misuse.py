"""Malformed calls from Python: each raises exactly the error in its row, and touches no memory.

A row takes the valid call of its operator, replaces some of its arguments, and says what must come of it; a replacement may be a function of
the valid arguments. The same from C: tests/ops/misuse_test.c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from deep_gemm import _C

# ---- tensors ---------------------------------------------------------------------------------------------------------


def fp8(*shape: int) -> Tensor:
    return torch.ones(shape).to(torch.float8_e4m3fn)


def bf16(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.bfloat16)


def f32(*shape: int) -> Tensor:
    return torch.ones(shape)


def i32(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.int32)


def guarded(dtype: torch.dtype, *shape: int) -> Tensor:
    """A tensor for results, with 16 elements of other memory on each side."""
    size = torch.Size(shape).numel()
    return torch.full((size + 32,), 7.0, dtype=dtype)[16 : 16 + size].view(shape)


# ---- valid calls -----------------------------------------------------------------------------------------------------


def valid_fp8_gemm() -> dict[str, Any]:
    """a [4, 256], b [6, 256], d bf16 [4, 6]"""
    return {"a": (fp8(4, 256), f32(4, 2)), "b": (fp8(6, 256), f32(1, 2)), "d": guarded(torch.bfloat16, 4, 6)}


def valid_bf16_gemm() -> dict[str, Any]:
    return {"a": bf16(4, 256), "b": bf16(6, 256), "d": guarded(torch.float32, 4, 6)}


def valid_skip_head_mid() -> dict[str, Any]:
    """Heads of 2 + 1 columns with a gap of 1."""
    return valid_fp8_gemm() | {"d": guarded(torch.bfloat16, 4, 8), "head_splits": (2, 1, 1)}


def valid_transform() -> dict[str, Any]:
    return {"sf": f32(5, 3), "mn": 5, "k": 384, "recipe": (1, 128)}


def valid_k_grouped_packed() -> dict[str, Any]:
    return {"sf": f32(5, 8), "grouped_layout": torch.tensor([64, 96], dtype=torch.int32), "ks_cpu": [64, 96], "gran_k": 32, "k_alignment": 128}


def valid_m_grouped() -> dict[str, Any]:
    return {
        "a": (fp8(4, 256), f32(4, 2)),
        "b": (fp8(2, 6, 256), f32(2, 1, 2)),
        "d": guarded(torch.bfloat16, 4, 6),
        "grouped_layout": torch.zeros(4, dtype=torch.int32),
    }


def valid_mqa_logits() -> dict[str, Any]:
    """Three queries of 32 heads of 64, ten keys."""
    return {
        "q": (fp8(3, 32, 64), None),
        "kv": (fp8(10, 64), f32(10)),
        "weights": f32(3, 32),
        "cu_seq_len_k_start": i32(3),
        "cu_seq_len_k_end": i32(3),
    }


def valid_fp8_einsum() -> dict[str, Any]:
    """b 4, h 2, r 256, d 128"""
    return {
        "expr": "bhr,hdr->bhd",
        "a": (fp8(4, 2, 256), f32(4, 2, 2)),
        "b": (fp8(2, 128, 256), f32(2, 1, 2)),
        "d": guarded(torch.bfloat16, 4, 2, 128),
    }


NO_KERNEL = NotImplementedError

VALID: dict[str, Callable[[], dict[str, Any]]] = {
    "fp8_gemm_nt": valid_fp8_gemm,
    "bf16_gemm_nt": valid_bf16_gemm,
    "fp8_gemm_nt_skip_head_mid": valid_skip_head_mid,
    "get_mn_major_tma_aligned_tensor": lambda: {"sf": f32(5, 3)},
    "get_mn_major_tma_aligned_packed_ue8m0_tensor": lambda: {"sf": f32(5, 6)},
    "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor": valid_k_grouped_packed,
    "transform_sf_into_required_layout": valid_transform,
    "get_tma_aligned_size": lambda: {"x": 5, "element_size": 4},
    "set_num_sms": lambda: {"new_num_sms": 64},
    "set_tc_util": lambda: {"new_tc_util": 80},
    "set_mk_alignment_for_contiguous_layout": lambda: {"new_value": 128},
    "set_block_size_multiple_of": lambda: {"new_value": (1, 1)},
    "get_theoretical_mk_alignment_for_contiguous_layout": lambda: {},
    "m_grouped_fp8_gemm_nt_contiguous": valid_m_grouped,
    "fp8_fp4_mqa_logits": valid_mqa_logits,
    "fp8_einsum": valid_fp8_einsum,
}

# ---- malformed calls -------------------------------------------------------------------------------------------------

MALFORMED: dict[str, list[tuple[dict[str, Any], type[Exception], str]]] = {
    "fp8_gemm_nt": [
        # pairs
        ({"a": fp8(4, 256)}, TypeError, ""),
        ({"a": (fp8(4, 256),)}, TypeError, ""),
        ({"b": (fp8(6, 256), f32(1, 2), 1)}, TypeError, ""),
        ({"a": (None, f32(4, 2))}, TypeError, ""),
        ({"a": (fp8(4, 256), None)}, TypeError, ""),
        # ranks and sizes
        ({"a": (fp8(4, 256), f32(128))}, ValueError, ""),
        ({"a": (fp8(256), f32(4, 2))}, ValueError, ""),
        ({"b": (fp8(1, 6, 256), f32(1, 2))}, ValueError, ""),
        ({"b": (fp8(6, 255), f32(1, 2))}, ValueError, ""),
        ({"a": (fp8(4, 256), f32(4, 1))}, ValueError, ""),
        ({"a": (fp8(4, 256), f32(2, 4).T[:3])}, ValueError, ""),
        ({"b": (fp8(6, 256), f32(2, 1))}, ValueError, ""),
        ({"b": (fp8(6, 256), f32(6, 2))}, ValueError, ""),
        ({"d": bf16(6, 4)}, ValueError, ""),
        ({"d": bf16(24)}, ValueError, ""),
        ({"c": bf16(4, 1)}, ValueError, ""),
        ({"a": (fp8(0, 256), f32(0, 2))}, ValueError, ""),
        # dtypes
        ({"a": (bf16(4, 256), f32(4, 2))}, TypeError, ""),
        ({"a": (torch.ones(4, 256, dtype=torch.uint8), f32(4, 2))}, ValueError, ""),
        ({"b": (fp8(6, 256).view(torch.float8_e5m2), f32(1, 2))}, TypeError, ""),
        ({"b": (fp8(6, 256), bf16(1, 2))}, TypeError, ""),
        ({"a": (fp8(4, 256), i32(4, 2))}, ValueError, ""),
        ({"b": (fp8(6, 256), i32(1, 2))}, ValueError, ""),
        ({"d": torch.zeros(4, 6, dtype=torch.float16)}, TypeError, ""),
        ({"c": f32(4, 6)}, TypeError, ""),
        ({"d": torch.zeros(4, 6, dtype=torch.complex64)}, TypeError, ""),
        # strides and overlap
        ({"d": bf16(6, 4).T}, ValueError, ""),
        ({"d": bf16(1, 6).expand(4, 6)}, ValueError, ""),
        ({"d": bf16(4, 12)[:, ::2]}, ValueError, ""),
        ({"d": bf16(16).as_strided((4, 6), (3, 1))}, ValueError, ""),
        ({"d": lambda v: v["a"][0].view(torch.bfloat16)[:, :6]}, ValueError, ""),
        ({"d": lambda v: v["b"][1].view(torch.bfloat16).expand(4, 4)[:, :6]}, ValueError, ""),
        ({"c": lambda v: v["d"].flatten()[:24].view(6, 4).T}, ValueError, ""),
        ({"d": lambda v: v["d"][:, :5], "b": (fp8(5, 256), f32(1, 2)), "c": lambda v: v["d"][:, 1:]}, ValueError, ""),
        # recipes
        ({"recipe": (1, 128)}, TypeError, ""),
        ({"recipe": (1, 128, 0)}, ValueError, ""),
        ({"recipe": (-1, 128, 128)}, ValueError, ""),
        ({"recipe": (1, 1, 128)}, ValueError, ""),
        ({"recipe": (1, 128, 32)}, ValueError, ""),
        ({"recipe": "x"}, TypeError, ""),
        ({"recipe": (1, 128, 2**40)}, ValueError, ""),
        ({"recipe_a": (1, 32)}, ValueError, ""),
        ({"recipe_b": (0, 128)}, ValueError, ""),
        ({"compiled_dims": 3}, TypeError, ""),
    ],
    "bf16_gemm_nt": [
        ({"a": f32(4, 256)}, TypeError, ""),
        ({"b": bf16(6, 128)}, ValueError, ""),
        ({"b": bf16(256, 6)}, ValueError, ""),
        ({"d": f32(4, 5)}, ValueError, ""),
        ({"d": torch.zeros(4, 6, dtype=torch.int32)}, TypeError, ""),
        ({"d": lambda v: v["b"].view(torch.float32)[:4, :6]}, ValueError, ""),
        ({"c": bf16(4, 6)}, TypeError, ""),
        ({"c": f32(4, 6, 1)}, ValueError, ""),
        ({"c": lambda v: v["d"].flatten()[:12].view(2, 6).repeat(1, 1).as_strided((4, 6), (2, 1))[:3]}, ValueError, ""),
        ({"a": None}, TypeError, ""),
        ({"d": None}, TypeError, ""),
    ],
    "fp8_gemm_nt_skip_head_mid": [
        ({"d": bf16(4, 6)}, ValueError, ""),
        ({"head_splits": (2, 2, 1)}, ValueError, ""),
        ({"head_splits": (4, 1, 1)}, ValueError, ""),
        ({"head_splits": (0, 1, 0)}, ValueError, ""),
        ({"head_splits": (-1, 1, 4)}, ValueError, ""),
        ({"head_splits": (2, 1)}, TypeError, ""),
        ({"a": (torch.ones(4, 128, dtype=torch.uint8), f32(4, 2))}, TypeError, ""),
    ],
    "get_mn_major_tma_aligned_tensor": [
        ({"sf": f32(5)}, ValueError, ""),
        ({"sf": f32(1, 2, 5, 3)}, ValueError, ""),
        ({"sf": i32(5, 3)}, TypeError, ""),
        ({"sf": torch.ones(5, 3, dtype=torch.float64)}, TypeError, ""),
    ],
    "get_mn_major_tma_aligned_packed_ue8m0_tensor": [
        ({"sf": f32(5)}, ValueError, ""),
        ({"sf": bf16(5, 6)}, TypeError, ""),
        ({"sf": f32(5, 6) * 3}, ValueError, ""),
        ({"sf": f32(2, 5, 6) * -1}, ValueError, ""),
        ({"psum_layout": torch.zeros(2, dtype=torch.int64)}, TypeError, ""),
        ({"psum_layout": i32(1, 2)}, ValueError, ""),
        ({"sf": f32(2, 5, 6), "psum_layout": i32(2)}, ValueError, ""),
    ],
    "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor": [
        ({"sf": f32(4, 8)}, ValueError, ""),
        ({"ks_cpu": [64]}, ValueError, ""),
        ({"ks_cpu": None}, ValueError, ""),
        ({"ks_cpu": []}, ValueError, ""),
        ({"ks_cpu": [-64, 96]}, ValueError, ""),
        ({"gran_k": 64}, ValueError, ""),
        ({"k_alignment": 0}, ValueError, ""),
        ({"grouped_layout": torch.tensor([64, 96])}, TypeError, ""),
    ],
    "transform_sf_into_required_layout": [
        ({"mn": 6}, ValueError, ""),
        ({"mn": -5}, ValueError, ""),
        ({"k": 512}, ValueError, ""),
        ({"recipe": (1,)}, ValueError, ""),
        ({"recipe": (1, 128, 128)}, ValueError, ""),
        ({"recipe": (0, 128)}, ValueError, ""),
        ({"num_groups": 2}, ValueError, ""),
        ({"sf": f32(2, 5, 3), "num_groups": 3}, ValueError, ""),
        ({"sf": i32(5, 3)}, ValueError, ""),
        ({"psum_layout": i32(2), "num_groups": 1, "sf": f32(1, 5, 3)}, ValueError, ""),
    ],
    "get_tma_aligned_size": [
        ({"x": -1}, ValueError, ""),
        ({"element_size": 3}, ValueError, ""),
        ({"x": "5"}, TypeError, ""),
    ],
    "set_num_sms": [
        ({"new_num_sms": 0}, ValueError, ""),
        ({"new_num_sms": 10**9}, ValueError, ""),
        ({"new_num_sms": "64"}, TypeError, ""),
    ],
    "set_tc_util": [
        ({"new_tc_util": -1}, ValueError, ""),
        ({"new_tc_util": 101}, ValueError, ""),
    ],
    "set_mk_alignment_for_contiguous_layout": [
        ({"new_value": 0}, ValueError, ""),
    ],
    "set_block_size_multiple_of": [
        ({"new_value": 0}, ValueError, ""),
        ({"new_value": (64, 0)}, ValueError, ""),
        ({"new_value": (64, 64, 64)}, TypeError, ""),
        ({"new_value": "64"}, TypeError, ""),
    ],
    "get_theoretical_mk_alignment_for_contiguous_layout": [
        ({"expected_m": 128, "groups": 4}, TypeError, ""),
    ],
    "m_grouped_fp8_gemm_nt_contiguous": [
        ({"grouped_layout": i32(255)}, ValueError, ""),
        ({"grouped_layout": torch.zeros(4, dtype=torch.int64)}, TypeError, ""),
        ({"b": (torch.ones(2, 6, 128, dtype=torch.uint8), torch.ones(2, 6, 8, dtype=torch.uint8)), "recipe_b": (1, 32)}, TypeError, ""),
        ({"use_psum_layout": True}, ValueError, ""),
        ({"m_indices": i32(4)}, TypeError, ""),
        ({"grouped_layout": None}, TypeError, ""),
        ({}, NO_KERNEL, ""),
    ],
    "fp8_fp4_mqa_logits": [
        ({"q": fp8(3, 32, 64)}, TypeError, ""),
        ({"kv": (fp8(10, 32), f32(10))}, ValueError, ""),
        ({"kv": (fp8(10, 64), f32(9))}, ValueError, ""),
        ({"weights": f32(3, 16)}, ValueError, ""),
        ({"max_seqlen_k": 8}, ValueError, ""),
        ({"logits_dtype": torch.float16}, TypeError, ""),
        ({}, NO_KERNEL, ""),
    ],
    "fp8_einsum": [
        ({"expr": "bhr,hdr->bdh"}, ValueError, ""),
        ({"a": (fp8(4, 2, 256), f32(4, 2))}, ValueError, ""),
        ({"b": (fp8(2, 128, 128), f32(2, 1, 2))}, ValueError, ""),
        ({"expr": "bhd,hdr->bhr"}, ValueError, ""),
    ],
}

ROWS = [(op, i) for op, rows in MALFORMED.items() for i in range(len(rows))]

# ---- the tests -------------------------------------------------------------------------------------------------------


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for member in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(member)


def bytes_of(tensor: Tensor) -> bytes:
    """All memory of the tensor's storage, guards included."""
    storage = tensor.untyped_storage()
    return bytes(torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,)).tolist())


@pytest.fixture(autouse=True)
def settings_are_restored() -> Iterator[None]:
    sms, util, alignment = _C.get_num_sms(), _C.get_tc_util(), _C.get_mk_alignment_for_contiguous_layout()
    yield
    _C.set_num_sms(sms)
    _C.set_tc_util(util)
    _C.set_mk_alignment_for_contiguous_layout(alignment)


@pytest.mark.parametrize("op", VALID)
def test_valid_call_is_accepted(op: str) -> None:
    """The rows fail for the reason they give: without a replacement the call passes every check."""
    try:
        getattr(_C, op)(**VALID[op]())
    except NotImplementedError:
        assert any(kind is NO_KERNEL for _, kind, _ in MALFORMED[op]), f"{op} has a row for this"


@pytest.mark.parametrize(("op", "row"), ROWS)
def test_malformed_call_is_refused(op: str, row: int) -> None:
    replaced, kind, text = MALFORMED[op][row]
    arguments = VALID[op]()
    for name, value in replaced.items():
        arguments[name] = value(arguments) if callable(value) else value
    tensors = list(tensors_in(arguments))
    before = [bytes_of(t) for t in tensors]
    settings = (_C.get_num_sms(), _C.get_tc_util(), _C.get_mk_alignment_for_contiguous_layout())

    with pytest.raises(kind) as raised:
        getattr(_C, op)(**arguments)

    assert type(raised.value) is kind
    assert str(raised.value) == text
    assert [bytes_of(t) for t in tensors] == before
    assert (_C.get_num_sms(), _C.get_tc_util(), _C.get_mk_alignment_for_contiguous_layout()) == settings
