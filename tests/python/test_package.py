"""The package as its users see it: every name that DeepGEMM's has, looked up lazily, and functions that Python's tools understand."""

from __future__ import annotations

import ast
import copy
import inspect
import os
import pickle
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import deep_gemm
from deep_gemm import _C, mega

PACKAGE = Path(deep_gemm.__file__).parent

# What DeepGEMM's package offers. Most of these call operators of the same name.
NAMES = """
    fp8_gemm_nt fp8_gemm_nn fp8_gemm_tn fp8_gemm_tt fp8_fp4_gemm_nt fp8_fp4_gemm_nn fp8_fp4_gemm_tn fp8_fp4_gemm_tt
    m_grouped_fp8_gemm_nt_contiguous m_grouped_fp8_gemm_nn_contiguous m_grouped_fp8_gemm_nt_masked
    m_grouped_fp8_fp4_gemm_nt_contiguous m_grouped_fp8_fp4_gemm_nn_contiguous m_grouped_fp8_fp4_gemm_nt_masked
    k_grouped_fp8_gemm_tn_contiguous k_grouped_fp8_gemm_nt_contiguous
    bf16_gemm_nt bf16_gemm_nn bf16_gemm_tn bf16_gemm_tt m_grouped_bf16_gemm_nt_contiguous m_grouped_bf16_gemm_nn_contiguous
    m_grouped_bf16_gemm_nt_masked k_grouped_bf16_gemm_tn_contiguous
    cublaslt_gemm_nt cublaslt_gemm_nn cublaslt_gemm_tn cublaslt_gemm_tt einsum fp8_einsum fp8_gemm_nt_skip_head_mid
    fp8_fp4_mqa_logits get_paged_mqa_logits_metadata fp8_fp4_paged_mqa_logits fp8_mqa_logits fp8_paged_mqa_logits
    tf32_hc_prenorm_gemm transform_sf_into_required_layout
    set_num_sms get_num_sms set_tc_util get_tc_util set_pdl get_pdl set_ignore_compile_dims set_block_size_multiple_of
    set_mk_alignment_for_contiguous_layout get_mk_alignment_for_contiguous_layout get_theoretical_mk_alignment_for_contiguous_layout
    fp8_m_grouped_gemm_nt_masked bf16_m_grouped_gemm_nt_masked
    SymmBuffer get_symm_buffer_for_mega_moe transform_weights_for_mega_moe fp8_fp4_mega_moe bf16_mega_moe
    ceil_div align ceil_to_ue8m0 pack_ue8m0_to_int unpack_ue8m0_from_int per_token_cast_to_fp8 per_channel_cast_to_fp8
    per_block_cast_to_fp8 per_custom_dims_cast_to_fp8 per_token_cast_to_fp4 transpose_packed_fp4 cast_back_from_fp4
    get_tma_aligned_size get_mn_major_tma_aligned_tensor get_mn_major_tma_aligned_packed_ue8m0_tensor
    get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor get_m_alignment_for_contiguous_layout
    get_k_alignment_for_contiguous_layout init_dist uneven_all_gather
    testing utils legacy mega
""".split()

# What it offers besides: what older releases of DeepGEMM had, its operators that only `_C` has there, and the submodules.
BEYOND = """
    get_compile_mode set_compile_mode
    init get_ring_limit_for_mega_moe get_symm_buffer_size_for_mega_moe get_token_alignment_for_mega_moe
    dist dlpack layout math settings
""".split()

SUBMODULE_NAMES = {
    "utils": """
        align cast_back_from_fp4 ceil_div ceil_to_ue8m0 dist get_k_alignment_for_contiguous_layout
        get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor get_m_alignment_for_contiguous_layout get_mk_alignment_for_contiguous_layout
        get_mn_major_tma_aligned_packed_ue8m0_tensor get_mn_major_tma_aligned_tensor get_tma_aligned_size init_dist layout math
        pack_ue8m0_to_int per_block_cast_to_fp8 per_channel_cast_to_fp8 per_custom_dims_cast_to_fp8 per_token_cast_to_fp4
        per_token_cast_to_fp8 set_mk_alignment_for_contiguous_layout transpose_packed_fp4 uneven_all_gather unpack_ue8m0_from_int
    """,
    "testing": "assert_bitwise_equal bench bench_kineto calc_diff count_bytes get_arch_major ignore_env numeric test_filter utils",
    "mega": "SymmBuffer bf16_mega_moe fp8_fp4_mega_moe get_symm_buffer_for_mega_moe transform_weights_for_mega_moe",
    "legacy": """
        a_fused_k_grouped_bf16_gemm_tn_contiguous_tl a_fused_m_grouped_bf16_gemm_nn_contiguous_tl
        a_fused_m_grouped_bf16_gemm_nt_contiguous_tl b_fused_k_grouped_bf16_gemm_tn_contiguous_tl
        m_grouped_bf16_gemm_nn_contiguous_tl m_grouped_bf16_gemm_nt_contiguous_tl
    """,
}

FUNCTIONS = [name for name in _C.__all__]


@pytest.mark.parametrize("name", NAMES)
def test_the_package_has(name: str) -> None:
    assert getattr(deep_gemm, name) is not None
    assert name in dir(deep_gemm)


def test_the_public_names_are_these_and_no_others() -> None:
    assert sorted(deep_gemm.__all__) == sorted(NAMES + BEYOND)
    for module, names in SUBMODULE_NAMES.items():
        assert sorted(getattr(deep_gemm, module).__all__) == sorted(names.split())


def test_submodules_that_callers_import() -> None:
    from deep_gemm.testing import bench, bench_kineto, calc_diff, get_arch_major, ignore_env, test_filter
    from deep_gemm.testing.bench import bench as same_bench
    from deep_gemm.testing.numeric import calc_diff as same_calc_diff
    from deep_gemm.testing.utils import get_arch_major as same_get_arch_major
    from deep_gemm.utils.dist import dist_print
    from deep_gemm.utils.layout import get_tma_aligned_size
    from deep_gemm.utils.math import per_token_cast_to_fp8

    assert bench is same_bench and calc_diff is same_calc_diff and get_arch_major is same_get_arch_major
    assert all(map(callable, (bench_kineto, ignore_env, test_filter, dist_print, get_tma_aligned_size, per_token_cast_to_fp8)))
    assert callable(mega._interleave_weights) and callable(mega._interleave_l1_weights) and callable(mega._transpose_sf_for_utccp)


def test_the_version_has_the_surface_and_the_release() -> None:
    from deep_gemm._release import RELEASE

    assert deep_gemm.__version__ == f"2.6.1+c{RELEASE}"


def test_an_unknown_name_comes_with_a_hint() -> None:
    with pytest.raises(AttributeError, match=r"^module 'deep_gemm' has no attribute 'fp8_gem_nt'; did you mean 'fp8_gemm_nt'\?$"):
        deep_gemm.fp8_gem_nt
    with pytest.raises(AttributeError, match=r"^module 'deep_gemm._C' has no attribute 'fp8_gem_nt'; did you mean"):
        _C.fp8_gem_nt
    for name in ("__self__", "__wrapped__", "__origin__", "__does_not_exist__"):
        assert not hasattr(deep_gemm, name) and not hasattr(_C, name)


def test_a_star_import_has_every_public_name() -> None:
    names: dict[str, object] = {}
    exec("from deep_gemm import *", names)
    assert set(NAMES) <= set(names)
    assert set(deep_gemm.__all__) == set(names) - {"__builtins__"}


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, deep_gemm; assert 'torch' not in sys.modules; deep_gemm.align; assert 'torch' in sys.modules"
    run(code)


def test_importing_everything_initialises_no_device_and_no_compiler() -> None:
    code = (
        "import sys, torch; from deep_gemm import _C, utils, testing; "
        "assert 'torch._dynamo' not in sys.modules; assert not torch.cuda.is_initialized()"
    )
    run(code)


def run(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert process.returncode == 0, process.stderr
    return process.stdout


# ---- functions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_one_to_python_tools(name: str) -> None:
    function = getattr(_C, name)
    assert inspect.isfunction(function) and function.__module__ == "deep_gemm._C"
    assert pickle.loads(pickle.dumps(function)) is function and copy.deepcopy(function) is function
    parameters = inspect.signature(function).parameters
    assert set(typing.get_type_hints(function)) == {*parameters, "return"}
    documentation = inspect.getdoc(function) or ""
    assert all(f"{parameter}:" in documentation or f"{parameter} (written):" in documentation or f"`{parameter}=`" in documentation
               for parameter in parameters)  # fmt: skip


def test_defaults_are_immutable() -> None:
    for name in FUNCTIONS:
        for parameter in inspect.signature(getattr(_C, name)).parameters.values():
            assert not isinstance(parameter.default, (list, dict, set))


def test_files_are_python_3_10() -> None:
    for file in PACKAGE.rglob("*.py*"):
        if file.suffix == ".pyc":
            continue
        ast.parse(file.read_text(), feature_version=(3, 10))


def test_the_stub_keeps_none_and_zero_apart() -> None:
    tree = ast.parse((PACKAGE / "_C.pyi").read_text())
    functions = {node.name: ast.unparse(node.args) for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert "c: Tensor | None=None" in functions["bf16_gemm_nt"]
    assert "max_seqlen_k: int=0" in functions["fp8_mqa_logits"]
    assert "num_splits: int | None=None" in functions["tf32_hc_prenorm_gemm"]
    assert "recipe: tuple[int, int, int]=(1, 1, 128)" in functions["k_grouped_fp8_gemm_tn_contiguous"]
    assert "q: tuple[Tensor, Tensor | None], kv: tuple[Tensor, Tensor]" in functions["fp8_fp4_mqa_logits"]


def test_every_operator_and_alias_is_exported() -> None:
    schema = Path(os.environ["DG_SOURCE_DIR"], "schema", "ops.schema")
    from codegen.schema_file import parse_file

    library, _ = parse_file(str(schema), schema.read_bytes())
    assert library is not None
    expected = {name for op in library.operators for name in (op.symbol, *op.aliases)}
    assert set(_C.__all__) == expected
    assert list(_C.__all__) == sorted(_C.__all__)
    assert len(_C.SCHEMAS) == len(library.operators)
