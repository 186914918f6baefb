"""A module that calls operators, exported: saved and loaded, compiled ahead of time, and run from Python and from C++ without Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import deep_gemm
from deep_gemm import utils

PACKAGE = Path(deep_gemm.__file__).parent
RUNNER = Path(os.environ["DG_SOURCE_DIR"]) / "bindings/torch/examples/run_package.cpp"
TORCH = Path(torch.__file__).parent
ROWS, N, K = 8, 128, 256


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        codes, scales = utils.per_block_cast_to_fp8(torch.randn(N, K), use_ue8m0=False)
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)

    def forward(self, x: Tensor) -> Tensor:
        d = torch.empty(x.shape[0], N, dtype=torch.bfloat16)
        deep_gemm.fp8_gemm_nt(utils.per_token_cast_to_fp8(x, use_ue8m0=False), (self.codes, self.scales), d)
        return d.float() + 1


@pytest.fixture(scope="module")
def layer() -> Layer:
    return Layer().eval()


@pytest.fixture(scope="module")
def program(layer: Layer) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(layer, (torch.randn(ROWS, K),), dynamic_shapes={"x": {0: torch.export.Dim("m", min=2, max=512)}})


def run(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_saved_program_is_the_same_in_another_process(layer: Layer, program: torch.export.ExportedProgram, tmp_path: Path) -> None:
    torch.export.save(program, tmp_path / "layer.pt2")
    code = f"import torch, deep_gemm._C; p = torch.export.load({str(tmp_path / 'layer.pt2')!r}); print(p.module()(torch.ones(5, {K})).sum().item())"
    assert float(run(sys.executable, "-W", "ignore", "-c", code)) == layer(torch.ones(5, K)).sum().item()


@pytest.mark.skipif("DG_SLOW" not in os.environ, reason="compiles for a minute; test-all runs it")
def test_a_package_of_aotinductor_needs_no_python(layer: Layer, program: torch.export.ExportedProgram, tmp_path: Path) -> None:
    compiler = shutil.which("g++") or pytest.skip("AOTInductor and the runner need g++")
    package = tmp_path / "layer.pt2"
    torch._inductor.aoti_compile_and_package(program, package_path=str(package))
    loaded = torch._inductor.aoti_load_package(str(package))
    for rows in (ROWS, 5):
        x = torch.randn(rows, K)
        assert torch.equal(loaded(x), layer(x))

    include, lib = TORCH / "include", TORCH / "lib"
    headers = ["-isystem", include, "-isystem", include / "torch/csrc/api/include"]
    libraries = [f"-L{lib}", f"-Wl,-rpath,{lib},--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-ldl"]
    run(compiler, "-std=c++20", *headers, RUNNER, *libraries, "-o", tmp_path / "run_package")
    text = run(tmp_path / "run_package", PACKAGE / "libdeep_gemm_torch.so", package, "5", str(K))
    assert float(text) == pytest.approx(layer(torch.ones(5, K)).double().sum().item(), rel=1e-6)
