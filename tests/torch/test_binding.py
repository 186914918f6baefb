"""The binding itself: errors and their classes, what is freed, threads, loading, and what torch.compile makes of it."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import deep_gemm
from deep_gemm import _C

PACKAGE = Path(deep_gemm.__file__).parent


def bf16(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


def fp8_pair(rows: int, k: int, sf_rows: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, k).to(torch.float8_e4m3fn), torch.ones(sf_rows, -(-k // 128))


A, B = fp8_pair(4, 256, 4), fp8_pair(8, 256, 1)


def d() -> Tensor:
    return torch.full((4, 8), 7.0)


# ---- errors --------------------------------------------------------------------------------------------------

ERRORS: list[tuple[type[Exception], str, Callable[[], Any]]] = [
    # a value: ValueError, with the argument as the caller wrote it
    (ValueError, "fp8_fp4_gemm_nt: b[0] has k = 128, expected 256 to match a", lambda: _C.fp8_gemm_nt(A, fp8_pair(8, 128, 1), d())),
    (ValueError, "fp8_fp4_gemm_nt: recipe needs 3 ints, got 2", lambda: _C.fp8_gemm_nt(A, B, d(), recipe=(1, 128))),
    (ValueError, "fp8_fp4_gemm_nt: recipe_a needs 2 ints, got 3", lambda: _C.fp8_gemm_nt(A, B, d(), recipe_a=(1, 1, 128))),
    (ValueError, "set_block_size_multiple_of: new_value needs 2 ints, got 3", lambda: _C.set_block_size_multiple_of((1, 2, 3))),
    # a dtype or a thing of another kind: TypeError
    (TypeError, "fp8_fp4_gemm_nt: a must be the pair (a, sfa), got Tensor", lambda: _C.fp8_gemm_nt(A[0], B, d())),
    (TypeError, "fp8_fp4_gemm_nt: b must be the pair (b, sfb), got 3 values", lambda: _C.fp8_gemm_nt(A, (*B, None), d())),
    (TypeError, "fp8_fp4_gemm_nt: a[0] is None, expected a tensor", lambda: _C.fp8_gemm_nt((None, A[1]), B, d())),
    (TypeError, "fp8_fp4_gemm_nt: recipe is 'x' (str), expected a sequence of int or None", lambda: _C.fp8_gemm_nt(A, B, d(), recipe="x")),
    (
        TypeError,
        "set_block_size_multiple_of: new_value is '64' (str), expected a sequence of int",
        lambda: _C.set_block_size_multiple_of("64"),
    ),
    (TypeError, "fp8_fp4_gemm_nt: a[1] is 'one scale' (str), expected Tensor", lambda: _C.fp8_gemm_nt((A[0], "one scale"), B, d())),
    (
        TypeError,
        "get_theoretical_mk_alignment_for_contiguous_layout() takes from 0 to 1 positional arguments but 2 were given",
        lambda: _C.get_theoretical_mk_alignment_for_contiguous_layout(128, 4),
    ),
    (TypeError, "m_grouped_bf16_gemm_nt_contiguous() is missing the argument 'grouped_layout'",
     lambda: _C.m_grouped_bf16_gemm_nt_contiguous(bf16(4, 8), bf16(1, 8, 8), bf16(4, 8))),
    # devices
    (
        ValueError,
        "fp8_fp4_gemm_nt: a[0] is a tensor with data, expected one on the meta device as another argument is",
        lambda: _C.fp8_gemm_nt(A, (B[0], B[1].to("meta")), d()),
    ),
    (
        ValueError,
        "get_mn_major_tma_aligned_packed_ue8m0_tensor: the tensors are on different devices: cpu, meta",
        lambda: _C.get_mn_major_tma_aligned_packed_ue8m0_tensor(torch.ones(4, 4), torch.zeros(2, dtype=torch.int32, device="meta")),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "call"), ERRORS, ids=[text[:60] for _, text, _ in ERRORS])
def test_errors_say_what_is_wrong(kind: type[Exception], text: str, call: Callable[[], Any]) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value) == text
    assert type(caught.value) is kind
    assert caught.value.__cause__ is None


def test_a_dtype_that_torch_has_and_we_do_not() -> None:
    for dtype in (torch.complex64, torch.uint16, torch.float8_e4m3fnuz, torch.float64):
        with pytest.raises(TypeError, match="^bf16_gemm_nt: a has dtype "):
            _C.bf16_gemm_nt(torch.zeros(4, 8, dtype=dtype), bf16(8, 8), bf16(4, 8))


def test_failed_calls_write_nothing() -> None:
    out = d()
    with pytest.raises(ValueError):
        _C.fp8_gemm_nt(A, fp8_pair(8, 128, 1), out)
    assert bool((out == 7).all())


def test_a_legacy_keyword_is_the_same_argument() -> None:
    a, b, layout = bf16(128, 8), bf16(1, 8, 8), torch.zeros(128, dtype=torch.int32)
    first, second = bf16(128, 8), bf16(128, 8)
    _C.m_grouped_bf16_gemm_nt_contiguous(a, b, first, layout)
    _C.m_grouped_bf16_gemm_nt_contiguous(a, b, second, m_indices=layout)
    assert torch.equal(first, second)
    with pytest.raises(TypeError, match="which are the same argument"):
        _C.m_grouped_bf16_gemm_nt_contiguous(a, b, first, layout, m_indices=layout)


@pytest.mark.parametrize("value", [True, np.int64(1), torch.tensor(1)])
def test_what_counts_as_an_int(value: Any) -> None:
    for call in (_C.get_tma_aligned_size, torch.ops.deep_gemm.get_tma_aligned_size):
        assert call(value, 4) == 4


@pytest.mark.parametrize("value", [1.0, 2**63, "1", None])
def test_what_does_not_count_as_an_int(value: Any) -> None:
    with pytest.raises(TypeError):
        _C.get_tma_aligned_size(value, 4)
    with pytest.raises(RuntimeError):  # torch.ops has no TypeError for it
        torch.ops.deep_gemm.get_tma_aligned_size(value, 4)


# ---- arguments -----------------------------------------------------------------------------------------------


def test_pairs_and_recipes_may_be_lists() -> None:
    first, second = d(), d()
    _C.fp8_gemm_nt(A, B, first, None, (1, 128, 128))
    _C.fp8_gemm_nt(list(A), list(B), second, c=None, recipe=[1, 128, 128], compiled_dims="mnk")
    assert torch.equal(first, second) and not torch.equal(first, d())


def test_settings_are_those_of_the_process() -> None:
    before = _C.get_tc_util()
    try:
        _C.set_tc_util(50)
        assert _C.get_tc_util() == 50
        with pytest.raises(ValueError):
            _C.set_tc_util(101)
        assert _C.get_tc_util() == 50
    finally:
        _C.set_tc_util(before)
    for value in (64, (64, 128), [64, 128]):
        _C.set_block_size_multiple_of(value)
    _C.set_block_size_multiple_of(1)


# ---- memory and threads --------------------------------------------------------------------------------------

CALLS: list[Callable[[Tensor], Any]] = [
    lambda x: _C.fp8_gemm_nt(A, B, x),
    lambda x: _C.fp8_gemm_nt(A, B, x, c=x, recipe=(1, 128, 128), recipe_a=(1, 128), compiled_dims="n" * 100),
    lambda x: _C.fp8_gemm_nt(A, B, x, recipe=(1, 2)),
    lambda x: _C.fp8_gemm_nt((x, x), B, x),
    lambda x: _C.get_mn_major_tma_aligned_tensor(x),
    lambda x: _C.transform_sf_into_required_layout(x, 4, 1024, (1, 128), None, None, True, x),
    lambda x: torch.ops.deep_gemm.fp8_fp4_gemm_nt(x, x, x, x, x.to("meta"), x, [1, 2, 3]),
    lambda x: torch.ops.deep_gemm.bf16_gemm_nt(x.to("meta"), x.to("meta"), x.to("meta")),
]


def run(call: Callable[[Tensor], Any], x: Tensor) -> None:
    try:
        call(x)
    except (ValueError, TypeError, RuntimeError):
        pass


@pytest.mark.parametrize("call", CALLS)
def test_no_tensor_is_kept(call: Callable[[Tensor], Any]) -> None:
    x = d()
    alive = weakref.ref(x)
    run(call, x)
    del x
    gc.collect()
    assert alive() is None


def test_nothing_leaks() -> None:
    x = d()

    def round(times: int) -> int:
        for _ in range(times):
            for call in CALLS:
                run(call, x)
            _C.get_num_sms()
            _C.get_tma_aligned_size(5, 4)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = round(500)
    assert round(3000) - before < 512, "KiB: 3000 rounds of a string of 100 bytes alone would be 300"


def test_the_work_runs_on_threads_of_torch() -> None:
    """The number of threads of the process does not grow beyond torch's."""
    code = """
import os, torch
torch.set_num_threads(2)
torch.randn(512, 512) @ torch.randn(512, 512)
from deep_gemm import _C
a, b, d = torch.randn(256, 512).bfloat16(), torch.randn(256, 512).bfloat16(), torch.empty(256, 256)
before = len(os.listdir("/proc/self/task"))
_C.bf16_gemm_nt(a, b, d)
two = d.clone()
torch.set_num_threads(1)
_C.bf16_gemm_nt(a, b, d)
assert torch.equal(d, two)
print(len(os.listdir("/proc/self/task")) - before)
"""
    assert int(python(code)) <= 1  # the second thread of torch's own pool, when nothing before it was parallel


# ---- torch.compile -------------------------------------------------------------------------------------------


def test_getters_are_constants_of_a_graph() -> None:
    @torch.compile(fullgraph=True, backend="eager")
    def f(x: Tensor) -> Tensor:
        return x * _C.get_tc_util() * _C.get_tma_aligned_size(7, 4)

    assert float(f(torch.ones(1))) == _C.get_tc_util() * 8


def test_setters_stay_outside_graphs() -> None:
    def f(x: Tensor, value: int) -> Tensor:
        y = x + 1
        _C.set_tc_util(value)
        return y * 2

    torch.compiler.reset()
    compiled = torch.compile(f, backend="eager")
    try:
        for value in (10, 20, 30, 10):  # the last one is compiled already
            assert float(compiled(torch.ones(1), value)) == 4
            assert _C.get_tc_util() == value
    finally:
        _C.set_tc_util(100)
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="it changes a setting of the process"):
        torch.compile(f, fullgraph=True, backend="eager")(torch.ones(1), 10)


@pytest.mark.parametrize(
    "call",
    [
        lambda n: (_C.get_mn_major_tma_aligned_tensor, (torch.ones(n, 9),)),
        lambda n: (_C.bf16_gemm_nt, (torch.ones(n, 16).bfloat16(), torch.ones(8, 16).bfloat16(), torch.empty(n, 8))),
    ],
    ids=["returns", "writes"],
)
def test_one_graph_serves_every_size(call: Callable[[int], Any]) -> None:
    torch.compiler.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    function = call(3)[0]
    compiled = torch.compile(lambda *args: function(*args), fullgraph=True, dynamic=True, backend=counter)
    for n in range(3, 20):
        compiled(*call(n)[1])
    assert counter.frame_count == 1


def test_export_with_a_dynamic_size() -> None:
    class Module(torch.nn.Module):
        def forward(self, sf: Tensor) -> Tensor:
            return deep_gemm.get_mn_major_tma_aligned_tensor(sf)

    rows = torch.export.Dim("rows", min=2, max=1000)
    program = torch.export.export(Module(), (torch.ones(6, 9),), dynamic_shapes=({0: rows},))
    for n in (2, 7, 33):
        sf = torch.rand(n, 9)
        assert torch.equal(program.module()(sf), sf)


def test_inductor_compiles_a_function_around_an_operator() -> None:
    def f(a: Tensor, b: Tensor) -> Tensor:
        out = torch.empty(a.size(0), b.size(0))
        _C.bf16_gemm_nt(a * 2, b, out)
        return out + 1

    torch.compiler.reset()
    a, b = bf16(5, 32), bf16(7, 32)
    assert torch.equal(torch.compile(f, fullgraph=True)(a, b), f(a, b))


# ---- loading -------------------------------------------------------------------------------------------------


def python(code: str, *options: str, path: Path = PACKAGE.parent) -> str:
    environment = {**os.environ, "PYTHONPATH": str(path)}
    run = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_load_library_registers_without_the_python_module() -> None:
    code = f"""
import torch
torch.ops.load_library({str(PACKAGE / "libdeep_gemm_torch.so")!r})
a, d = torch.ones(4, 8).bfloat16(), torch.empty(4, 4)
torch.ops.deep_gemm.bf16_gemm_nt(a, a, d)
print(float(d.sum()))
import deep_gemm
deep_gemm.bf16_gemm_nt(a, a, d)
"""
    assert python(code) == "128.0"


def test_a_taken_namespace_is_an_import_error() -> None:
    if (PACKAGE / "_torch_library").exists():
        pytest.skip("TORCH_LIBRARY throws while the library is loaded, which ends the process: only the stable host can report it")
    code = """
import torch
taken = torch.library.Library("deep_gemm", "DEF")
try:
    from deep_gemm import _C
except ImportError as error:
    print(error)
"""
    text = python(code)
    assert text.startswith("deep_gemm could not register its operators with torch: ")
    assert "Only a single TORCH_LIBRARY can be used to register the namespace deep_gemm" in text or torch.__version__ < (2, 13)


def test_a_second_copy_shares_the_first_ones_library(tmp_path: Path) -> None:
    copy_package(tmp_path / "vendor" / "gemm")
    code = f"""
import sys
import torch
import deep_gemm
sys.path.insert(0, {str(tmp_path)!r})
from vendor import gemm
a, d = torch.ones(4, 8).bfloat16(), torch.empty(4, 4)
deep_gemm.bf16_gemm_nt(a, a, d)
gemm.bf16_gemm_nt(a, a, d)
deep_gemm.set_tc_util(50)
print(float(d.sum()), gemm.get_tc_util(), gemm._C.__file__.startswith({str(tmp_path)!r}))
"""
    assert python(code) == "128.0 50 True"


def copy_package(to: Path) -> None:
    import shutil

    shutil.copytree(PACKAGE, to, ignore=shutil.ignore_patterns("__pycache__"))


def test_the_package_can_be_vendored_under_another_name(tmp_path: Path) -> None:
    copy_package(tmp_path / "vendor" / "third_party" / "gemm")
    code = """
import torch
from vendor.third_party import gemm
from vendor.third_party.gemm import utils
a, d = torch.ones(4, 8).bfloat16(), torch.empty(4, 4)
gemm.bf16_gemm_nt(a, a, d)
print(float(d.sum()), gemm.utils.align(5, 4), gemm._C.__name__)
"""
    assert python(code, path=tmp_path) == "128.0 8 vendor.third_party.gemm._C"


def test_a_library_of_another_schema_is_an_import_error(tmp_path: Path) -> None:
    copy_package(tmp_path / "deep_gemm")
    module = tmp_path / "deep_gemm" / "_C.py"
    text = module.read_text()
    assert "get_pdl() -> bool" in text
    module.write_text(text.replace("get_pdl() -> bool", "get_pdl() -> int", 1))
    code = """
try:
    from deep_gemm import _C
except ImportError as error:
    print(error)
"""
    expected = "the Python files of deep_gemm and the library beside them have different operators: 'get_pdl() -> int' and 'get_pdl() -> bool'"
    assert python(code, path=tmp_path) == expected


def test_a_forked_child_can_call() -> None:
    code = """
import os, torch
from deep_gemm import _C
a, d = torch.ones(4, 8).bfloat16(), torch.empty(4, 4)
child = os.fork()
_C.bf16_gemm_nt(a, a, d)
assert float(d.sum()) == 128
if child:
    print(os.waitpid(child, 0)[1])
"""
    assert python(code) == "0"


def test_exit_is_clean() -> None:
    code = "import sys, gc; from deep_gemm import _C; del sys.modules['deep_gemm._C'], _C; gc.collect()"
    for _ in range(3):
        assert python(code) == ""


def test_our_prototypes_are_those_of_torch(tmp_path: Path) -> None:
    source = Path(os.environ["DG_SOURCE_DIR"])
    compiler = os.environ.get("CXX", "c++")
    include = Path(torch.__file__).parent / "include"
    command = [compiler, "-std=c++17", "-fsyntax-only", f"-I{source / 'bindings' / 'torch'}", f"-isystem{include}"]
    good = subprocess.run([*command, str(Path(__file__).parent / "shim_matches_torch.cpp")], capture_output=True, text=True)
    assert good.returncode == 0, good.stderr

    wrong = tmp_path / "shim.h"
    text = (source / "bindings" / "torch" / "shim.h").read_text()
    assert text.count("int64_t *ret_dim") == 1
    wrong.write_text(text.replace("int64_t *ret_dim", "int32_t *ret_dim"))
    command[3] = f"-I{tmp_path}"
    bad = subprocess.run([*command, str(Path(__file__).parent / "shim_matches_torch.cpp")], capture_output=True, text=True)
    assert bad.returncode != 0 and "aoti_torch_get_dim" in bad.stderr
