"""Faults that users of torch extensions have reported in public, each as a test of its kind; the docstring says where. Those of generators are
in tests/codegen/test_reported.py."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import deep_gemm

F8 = torch.float8_e4m3fn


def bf16(*shape: int) -> Tensor:
    return torch.randn(*shape).bfloat16()


def test_a_written_argument_inside_a_nested_region() -> None:
    """Failed with a message about outputs: pytorch/pytorch#186807. Whether the region may write is torch's to say; what it computes is ours."""

    @torch.compiler.nested_compile_region
    def region(a: Tensor, b: Tensor) -> Tensor:
        d = torch.zeros(a.size(0), b.size(0))
        deep_gemm.bf16_gemm_nt(a, b, d)
        return d + 1

    def function(a: Tensor, b: Tensor) -> Tensor:
        return region(a, b) + region(a * 2, b)

    a, b = bf16(4, 64), bf16(8, 64)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)(a, b)
    assert torch.equal(compiled, function(a, b))


@pytest.mark.parametrize("from_shape, most", [(False, 2), (True, 4)])
def test_recompilations(from_shape: bool, most: int) -> None:
    """Plain ints fed from shapes compile again for every value: pytorch/pytorch#121080. So does `expected_m`, an int in the signature that this
    library keeps; a constant one does not, since sizes stay symbolic."""
    graphs = 0

    def count(module: torch.fx.GraphModule, _: list[Any]) -> Any:
        nonlocal graphs
        graphs += 1
        return module.forward

    def function(a: Tensor, b: Tensor, d: Tensor, rows: Tensor) -> None:
        deep_gemm.m_grouped_bf16_gemm_nt_masked(a, b, d, rows, a.size(1) if from_shape else 32)

    torch.compiler.reset()
    compiled = torch.compile(function, backend=count, dynamic=True)
    for m in (8, 16, 24, 40):
        compiled(bf16(2, m, 64), bf16(2, 8, 64), torch.zeros(2, m, 8).bfloat16(), torch.tensor([m, 3], dtype=torch.int32))
    assert graphs == most if from_shape else graphs <= most


def test_the_fake_has_the_strides_of_the_result() -> None:
    """A fake with contiguous strides where the kernel pads its rows: pytorch/pytorch#101015."""

    def call(mode: Any) -> Tensor:
        with mode:
            q, kv = torch.zeros(5, 32, 128).to(F8), torch.zeros(70, 128).to(F8)
            bounds = torch.zeros(5, dtype=torch.int32), torch.full((5,), 70, dtype=torch.int32)
            return deep_gemm.fp8_mqa_logits(q, (kv, torch.ones(70)), torch.ones(5, 32), *bounds)

    real, fake = call(torch.no_grad()), call(FakeTensorMode())
    assert real.shape == fake.shape == (5, 70) and real.dtype == fake.dtype == torch.float32
    assert real.stride() == fake.stride() and real.stride(0) > 70 and real.device == fake.device


def test_padded_scales_keep_their_strides_in_a_graph() -> None:
    """A compiler made the stride of an aligned scale the smallest, and the kernel read beyond it: vllm-project/vllm#49928."""
    m = 7

    def function(x: Tensor, b: Tensor, sfb: Tensor) -> Tensor:
        codes, sf = deep_gemm.per_token_cast_to_fp8(x, False)
        sfa = deep_gemm.get_mn_major_tma_aligned_tensor(sf)
        d = torch.zeros(m, b.size(0))
        deep_gemm.fp8_gemm_nt((codes, sfa), (b, sfb), d)
        return d

    x, (b, sfb) = torch.randn(m, 256), deep_gemm.per_block_cast_to_fp8(torch.randn(128, 256), False)
    assert deep_gemm.get_mn_major_tma_aligned_tensor(torch.zeros(m, 2)).stride() == (1, 8)
    assert torch.equal(torch.compile(function, backend="aot_eager", fullgraph=True)(x, b, sfb), function(x, b, sfb))


@pytest.mark.parametrize("value, is_int", [(5, True), (True, True), (5.0, False), ("5", False), (2**63, False), (None, False)])
def test_what_is_an_int(value: object, is_int: bool) -> None:
    """Booleans become ints in silence, floats and what does not fit in 64 bits are refused: pytorch/pytorch#83583, #27714."""
    call = lambda: deep_gemm.get_tma_aligned_size(value, 4)  # type: ignore[arg-type]  # noqa: E731
    if is_int:
        assert call() == (8 if value == 5 else 4)
    else:
        with pytest.raises(TypeError, match=r"^get_tma_aligned_size(\(\))?"):
            call()


def test_errors_are_raised_and_not_printed() -> None:
    """Errors of shim calls were printed and could not be caught: pytorch/pytorch#174507."""
    program = (
        "import torch, deep_gemm\n"
        "try:\n    deep_gemm.bf16_gemm_nt(torch.zeros(4, 8), torch.zeros(4, 8), torch.zeros(4, 4))\n"
        "except TypeError as error:\n    print(error)\n"
        "try:\n    torch.ops.deep_gemm.bf16_gemm_nt(torch.zeros(4).bfloat16(), torch.zeros(4, 8).bfloat16(), torch.zeros(4, 4))\n"
        "except Exception as error:\n    print(type(error).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[0] == "bf16_gemm_nt: a has dtype f32, expected bf16 [m, k]"
    assert done.returncode == 0 and "deep_gemm" not in done.stderr and "expected" not in done.stderr
