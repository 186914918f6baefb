"""deep_gemm.dlpack on CUDA tensors of torch: in torch's current stream, on the tensors' device, with results of torch.

It needs a GPU, a build with nvcc and a torch with CUDA: `ctest --test-dir build -R dlpack.cuda --output-on-failure`, or without ctest

    PYTHONPATH=build/python build/venv/bin/python -m pytest -rs tests/dlpack/test_cuda.py
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deep_gemm import _C, dlpack

if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)


def operands(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    a = torch.randn(rows, 512, device="cuda").bfloat16()
    return a, torch.randn(128, 512, device="cuda").bfloat16(), torch.zeros(rows, 128, device="cuda")


def test_the_result_is_that_of_the_torch_host() -> None:
    a, b, d = operands(64)
    expected = torch.zeros_like(d)
    _C.bf16_gemm_nt(a, b, expected)
    dlpack.bf16_gemm_nt(a, b, d)
    assert torch.equal(d, expected)
    sf = torch.rand(64, 4, device="cuda")
    made = dlpack.get_mn_major_tma_aligned_tensor(sf)
    assert made.device == sf.device and made.stride() == _C.get_mn_major_tma_aligned_tensor(sf).stride() and torch.equal(made, sf)


def test_a_call_waits_for_what_its_stream_does_before() -> None:
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            a, b, d = operands(64)
            expected = a.float() @ b.float().T
            late = torch.zeros_like(a)
            torch.cuda._sleep(50_000_000)
            late.copy_(a)
            dlpack.bf16_gemm_nt(late, b, d)
            later = d.clone()
        stream.synchronize()
        assert torch.allclose(later, expected, rtol=1e-3, atol=1e-2)


def test_results_are_made_in_the_stream_of_the_call() -> None:
    x = torch.randn(64, 512, device="cuda")
    codes, sf = _C.per_token_cast_to_fp8(x, False)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        late = torch.zeros_like(x)
        torch.cuda._sleep(50_000_000)
        late.copy_(x)
        made, made_sf = dlpack.per_token_cast_to_fp8(late, False)
    stream.synchronize()
    assert made.device == x.device and torch.equal(made.view(torch.uint8), codes.view(torch.uint8)) and torch.equal(made_sf, sf)


def test_a_call_is_captured_in_a_graph() -> None:
    a, b, d = operands(64)
    dlpack.bf16_gemm_nt(a, b, d)
    expected = d.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dlpack.bf16_gemm_nt(a, b, d)
    d.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(d, expected)


def test_devices_are_not_mixed() -> None:
    a, b, d = operands(64)
    with pytest.raises(ValueError, match="^bf16_gemm_nt: b is on .*, expected .* to match a$"):
        dlpack.bf16_gemm_nt(a, b.cpu(), d)
    with pytest.raises(ValueError, match="^bf16_gemm_nt: d is on .*, expected .* to match a$"):
        dlpack.bf16_gemm_nt(a, b, np.zeros((64, 128), np.float32))
