"""Programs that use DeepGEMM, in what they rely on beyond the names: how they look functions up, processes, copies, the environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import deep_gemm

PACKAGE = Path(deep_gemm.__file__).parent
CALLERS = Path(__file__).parent / "callers"

# What DeepGEMM reads, and this package does not.
ENVIRONMENT = """
    DG_JIT_CACHE_DIR DG_JIT_USE_NVRTC DG_JIT_NVCC_COMPILER DG_JIT_CPP_STANDARD DG_JIT_DEBUG DG_JIT_PRINT_COMPILER_COMMAND
    DG_JIT_PRINT_LOAD_TIME DG_JIT_PTXAS_CHECK DG_JIT_PTXAS_VERBOSE DG_JIT_WITH_LINEINFO DG_JIT_DUMP_ASM DG_JIT_DUMP_PTX DG_JIT_DUMP_SASS
    DG_JIT_USE_RUNTIME_API DG_JIT_USE_LIBRARY_ENUM_KERNELS DG_PRINT_CONFIGS DG_USE_NVIDIA_TOOLS DG_USE_TEMP_CUBLASLT_WORKSPACE
    DG_USE_PYTORCH_CUBLASLT_HANDLE DG_COMM_KERNEL_DEBUG
""".split()


def run(*arguments: str | Path, path: Path = PACKAGE.parent, without: tuple[str, ...] = (), **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in without} | {"PYTHONPATH": str(path)} | variables
    done = subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.parametrize("caller", ["vllm", "sglang"])
def test_a_caller_works_unchanged(caller: str) -> None:
    assert run(CALLERS / f"{caller}.py", "deep_gemm").endswith("is there and works")


@pytest.mark.parametrize("caller", ["vllm", "sglang"])
def test_a_caller_works_with_a_copy_under_another_name(caller: str, tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "third_party" / "gemm", ignore=shutil.ignore_patterns("__pycache__"))
    assert run(CALLERS / f"{caller}.py", "third_party.gemm", path=tmp_path).startswith("third_party.gemm: everything")


def test_the_environment_variables_of_deepgemm_change_nothing() -> None:
    variables = {name: "1" for name in ENVIRONMENT} | {"DG_JIT_CACHE_DIR": "/nonexistent/cache"}
    text = run(CALLERS / "sglang.py", "deep_gemm", without=("HOME", "CUDA_HOME", "CUDA_PATH"), **variables)
    assert text == "deep_gemm: everything that SGLang uses is there and works"


def test_a_function_reaches_a_spawned_worker(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import functools, multiprocessing, torch, deep_gemm

def call(gemm):
    d = torch.empty(4, 4)
    gemm(d)
    return float(d.sum())

if __name__ == "__main__":
    a = torch.ones(4, 8).bfloat16()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(call, [functools.partial(deep_gemm.bf16_gemm_nt, a, a)]))
""")
    assert run(program) == "[128.0]"


def test_compile_modes_are_remembered_and_change_no_result() -> None:
    assert deep_gemm.get_compile_mode() == 0
    a, d = torch.ones(4, 8).bfloat16(), torch.empty(4, 4)
    try:
        deep_gemm.set_compile_mode(1)
        assert deep_gemm.get_compile_mode() == 1
        deep_gemm.bf16_gemm_nt(a, a, d)
        assert d.eq(8).all()
        with pytest.raises(ValueError, match="^set_compile_mode: mode is 2, expected 0 or 1$"):
            deep_gemm.set_compile_mode(2)
        assert deep_gemm.get_compile_mode() == 1
    finally:
        deep_gemm.set_compile_mode(0)


@pytest.mark.parametrize("compiled_dims", ["nk", "mn", "mnk", "k", ""])
def test_compiled_dims_may_be_anything_anywhere(compiled_dims: str) -> None:
    a, d = torch.ones(4, 8).bfloat16(), torch.empty(4, 4)
    deep_gemm.bf16_gemm_nt(a, a, d, None, compiled_dims)
    deep_gemm.bf16_gemm_tn(a, a, torch.empty(8, 8), c=None, compiled_dims=compiled_dims)
    assert d.eq(8).all()


def test_packed_scales_without_a_recipe_are_one_for_128_of_a_row() -> None:
    codes, word = torch.ones(4, 512).to(torch.float8_e4m3fn), 127 | 128 << 8 | 129 << 16 | 127 << 24  # 1, 2, 4, 1
    packed, f32 = torch.full((4, 1), word, dtype=torch.int32), torch.tensor([[1.0, 2, 4, 1]]).expand(4, 4)
    got, wanted = torch.empty(4, 4), torch.empty(4, 4)
    deep_gemm.fp8_gemm_nt((codes, packed), (codes, packed), got)
    deep_gemm.fp8_gemm_nt((codes, f32), (codes, f32), wanted, recipe=(1, 1, 128))
    assert torch.equal(got, wanted) and got[0, 0] == 128 * (1 + 4 + 16 + 1)


# ---- python -m deep_gemm -----------------------------------------------------------------------------------------


def test_the_description_says_what_is_there() -> None:
    text = run("-m", "deep_gemm")
    lines = text.splitlines()
    assert lines[0] == f"deep_gemm {deep_gemm.__version__}"
    assert any(line.startswith("  torch ") and line.endswith(str(torch.__version__)) for line in lines)
    assert any(line.startswith("  schema ") and len(line.split()[1]) == 16 for line in lines)
    for schema in deep_gemm._C.SCHEMAS:
        assert any(line.startswith(f"  {schema.partition('(')[0]} ") for line in lines)
    assert " FAILED " not in text and lines[-1].partition(" of ")[0] == lines[-1].split()[2]


def test_a_check_that_fails_is_the_exit_status(tmp_path: Path) -> None:
    copy = tmp_path / "deep_gemm"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    module = copy / "utils" / "math.py"
    text = module.read_text() + "\n\ndef cast_back_from_fp4(packed: Tensor, sf: Tensor, gran_k: int = 128) -> Tensor:\n    return sf\n"
    module.write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-m", "deep_gemm"], capture_output=True, text=True, env=environment)
    assert done.returncode == 1 and "FAILED  a cast to FP4 and back, cpu: " in done.stdout
    assert subprocess.run([sys.executable, "-m", "deep_gemm", "--no-check"], capture_output=True, env=environment).returncode == 0
