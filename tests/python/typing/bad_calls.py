"""Calls that type checkers must refuse. A comment at the end of a line names the errors of that line, mypy's, then
basedpyright's; any other error, and any that is missing, fails the test."""

from __future__ import annotations

import torch
from torch import Tensor

import deep_gemm
from deep_gemm import _C  # pyright: ignore[reportPrivateUsage]


def gemms(x: Tensor, sf: Tensor, d: Tensor) -> None:
    deep_gemm.fp8_gemm_nt(x, (x, sf), d)  # error: arg-type, reportArgumentType
    deep_gemm.fp8_gemm_nt((x, sf, d), (x, sf), d)  # error: arg-type, reportArgumentType
    deep_gemm.fp8_gemm_nt((x, None), (x, sf), d)  # error: arg-type, reportArgumentType
    deep_gemm.fp8_gemm_nt((x, sf), (x, sf))  # error: call-arg, reportCallIssue
    deep_gemm.fp8_gemm_nt((x, sf), (x, sf), d, recipe=(1, 128))  # error: arg-type, reportArgumentType
    deep_gemm.fp8_gemm_nt((x, sf), (x, sf), d, recipe="x")  # error: arg-type, reportArgumentType
    deep_gemm.fp8_gemm_nt((x, sf), (x, sf), d, recipe_a=(1, 1, 128))  # error: arg-type, reportArgumentType
    deep_gemm.fp8_gemm_nt((x, sf), (x, sf), d, recipes=(1, 1, 128))  # error: call-arg, reportCallIssue
    deep_gemm.fp8_gemm_nt((x, sf), (x, sf), d, disable_ue8m0_cast="no")  # error: arg-type, reportArgumentType
    deep_gemm.bf16_gemm_nt(x, x, None)  # error: arg-type, reportArgumentType
    deep_gemm.bf16_gemm_nt(x, x, d, compiled_dims=3)  # error: arg-type, reportArgumentType
    result: Tensor = deep_gemm.bf16_gemm_nt(x, x, d)  # error: func-returns-value assignment, reportAssignmentType
    deep_gemm.bf16_gemm_xt(x, x, result)  # error: attr-defined, reportAttributeAccessIssue reportUnknownMemberType


def others(sf: Tensor) -> None:
    deep_gemm.transform_sf_into_required_layout(sf, 128, 256, 128)  # error: arg-type, reportArgumentType
    deep_gemm.transform_sf_into_required_layout(sf, 128, 256, (1, 1, 128, 1))  # error: arg-type, reportArgumentType
    deep_gemm.set_num_sms("all")  # error: arg-type, reportArgumentType
    deep_gemm.set_block_size_multiple_of((64, 64, 64))  # error: arg-type, reportArgumentType
    deep_gemm.set_block_size_multiple_of("64")  # error: arg-type, reportArgumentType
    deep_gemm.get_theoretical_mk_alignment_for_contiguous_layout(128, 4)  # error: call-arg, reportCallIssue
    _C.get_mn_major_tma_aligned_tensor(torch.float32)  # error: arg-type, reportArgumentType
    name: str = deep_gemm.get_num_sms()  # error: assignment, reportAssignmentType
    print(name)
