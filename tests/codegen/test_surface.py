"""The operators of schema/ops.schema are those that callers of DeepGEMM rely on: names, arguments, order and defaults.

The lists below are written from the published surface of the package, not from the schema file. A change here is a break for callers, except a
defaulted argument appended at the end.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from codegen.model import Operator
from codegen.parse import check_string
from codegen.schema_file import parse_file

SCHEMA_FILE = Path(__file__).parents[2] / "schema" / "ops.schema"

FP8_GEMM = (
    "Tensor a, Tensor sfa, Tensor b, Tensor sfb, Tensor(d!) d, Tensor? c=None, int[3]? recipe=None, int[2]? recipe_a=None, "
    "int[2]? recipe_b=None, str compiled_dims={dims}, bool disable_ue8m0_cast=False"
)
FP8_M_GROUPED = (
    "Tensor a, Tensor sfa, Tensor b, Tensor sfb, Tensor(d!) d, Tensor grouped_layout, int[3]? recipe=None, int[2]? recipe_a=None, "
    'int[2]? recipe_b=None, str compiled_dims="nk", bool disable_ue8m0_cast=False, bool use_psum_layout=False, '
    "bool ensure_zero_padding=True"
)
FP8_K_GROUPED = (
    "Tensor a, Tensor sfa, Tensor b, Tensor sfb, Tensor(d!) d, int[]? ks_cpu, Tensor grouped_layout, Tensor? c=None, "
    'int[3] recipe=[1, 1, 128], str compiled_dims="mn", bool use_psum_layout=False'
)
BF16_GEMM = "Tensor a, Tensor b, Tensor(d!) d, Tensor? c=None, str compiled_dims={dims}"
BF16_M_GROUPED = (
    'Tensor a, Tensor b, Tensor(d!) d, Tensor grouped_layout, str compiled_dims="nk", bool use_psum_layout=False, '
    "bool ensure_zero_padding=True"
)
EXPECTED_M = ", int? expected_m_for_psum_layout=None"
CUBLASLT = "Tensor a, Tensor b, Tensor(d!) d, Tensor? c=None"

# name: (arguments, returns)
SURFACE = {
    "fp8_fp4_gemm_nt": (FP8_GEMM.format(dims='"nk"'), "()"),
    "fp8_fp4_gemm_nn": (FP8_GEMM.format(dims='"nk"'), "()"),
    "fp8_fp4_gemm_tn": (FP8_GEMM.format(dims='"mn"'), "()"),
    "fp8_fp4_gemm_tt": (FP8_GEMM.format(dims='"mn"'), "()"),
    "m_grouped_fp8_fp4_gemm_nt_contiguous": (FP8_M_GROUPED + EXPECTED_M, "()"),
    "m_grouped_fp8_fp4_gemm_nn_contiguous": (FP8_M_GROUPED, "()"),
    "m_grouped_fp8_fp4_gemm_nt_masked": (
        "Tensor a, Tensor sfa, Tensor b, Tensor sfb, Tensor(d!) d, Tensor masked_m, int expected_m, int[3]? recipe=None, "
        'int[2]? recipe_a=None, int[2]? recipe_b=None, str compiled_dims="nk", bool disable_ue8m0_cast=False',
        "()",
    ),
    "k_grouped_fp8_gemm_tn_contiguous": (FP8_K_GROUPED, "()"),
    "k_grouped_fp8_gemm_nt_contiguous": (FP8_K_GROUPED, "()"),
    "bf16_gemm_nt": (BF16_GEMM.format(dims='"nk"'), "()"),
    "bf16_gemm_nn": (BF16_GEMM.format(dims='"nk"'), "()"),
    "bf16_gemm_tn": (BF16_GEMM.format(dims='"mn"'), "()"),
    "bf16_gemm_tt": (BF16_GEMM.format(dims='"mn"'), "()"),
    "m_grouped_bf16_gemm_nt_contiguous": (BF16_M_GROUPED + EXPECTED_M, "()"),
    "m_grouped_bf16_gemm_nn_contiguous": (BF16_M_GROUPED, "()"),
    "m_grouped_bf16_gemm_nt_masked": (
        'Tensor a, Tensor b, Tensor(d!) d, Tensor masked_m, int expected_m, str compiled_dims="nk"',
        "()",
    ),
    "k_grouped_bf16_gemm_tn_contiguous": (
        "Tensor a, Tensor b, Tensor(d!) d, int[]? ks_cpu, Tensor grouped_layout, Tensor? c=None, "
        'str compiled_dims="mn", bool use_psum_layout=False',
        "()",
    ),
    "cublaslt_gemm_nt": (CUBLASLT, "()"),
    "cublaslt_gemm_nn": (CUBLASLT, "()"),
    "cublaslt_gemm_tn": (CUBLASLT, "()"),
    "cublaslt_gemm_tt": (CUBLASLT, "()"),
    "einsum": ("str expr, Tensor a, Tensor b, Tensor(d!) d, Tensor? c=None, bool use_cublaslt=False", "()"),
    "fp8_einsum": (
        "str expr, Tensor a, Tensor sfa, Tensor b, Tensor sfb, Tensor(d!) d, Tensor? c=None, int[3] recipe=[1, 128, 128]",
        "()",
    ),
    "fp8_gemm_nt_skip_head_mid": (
        "Tensor a, Tensor sfa, Tensor b, Tensor sfb, Tensor(d!) d, int[3] head_splits, int[3]? recipe=None, "
        'str compiled_dims="nk", bool disable_ue8m0_cast=False',
        "()",
    ),
    "fp8_fp4_mqa_logits": (
        "Tensor q, Tensor? q_sf, Tensor kv, Tensor kv_sf, Tensor weights, Tensor cu_seq_len_k_start, Tensor cu_seq_len_k_end, "
        "bool clean_logits=True, int max_seqlen_k=0, ScalarType logits_dtype=float32",
        "Tensor",
    ),
    "get_paged_mqa_logits_metadata": ("Tensor context_lens, int block_kv, int num_sms, Tensor? indices=None", "Tensor"),
    "fp8_fp4_paged_mqa_logits": (
        "Tensor q, Tensor? q_sf, Tensor kv_cache, Tensor weights, Tensor context_lens, Tensor block_table, Tensor schedule_meta, "
        "int max_context_len, bool clean_logits=False, ScalarType logits_dtype=float32, Tensor? indices=None",
        "Tensor",
    ),
    "fp8_mqa_logits": (
        "Tensor q, Tensor kv, Tensor kv_sf, Tensor weights, Tensor cu_seq_len_k_start, Tensor cu_seq_len_k_end, "
        "bool clean_logits=True, int max_seqlen_k=0",
        "Tensor",
    ),
    "fp8_paged_mqa_logits": (
        "Tensor q, Tensor kv_cache, Tensor weights, Tensor context_lens, Tensor block_table, Tensor schedule_meta, "
        "int max_context_len, bool clean_logits=False, Tensor? indices=None",
        "Tensor",
    ),
    "tf32_hc_prenorm_gemm": ("Tensor a, Tensor b, Tensor(d!) d, Tensor(s!) sqr_sum, int? num_splits=None", "()"),
    "transform_sf_into_required_layout": (
        "Tensor sf, int mn, int k, int[] recipe, int? num_groups=None, bool? is_sfa=None, bool disable_ue8m0_cast=False, "
        "Tensor? psum_layout=None",
        "Tensor",
    ),
    "get_tma_aligned_size": ("int x, int element_size", "int"),
    "get_mn_major_tma_aligned_tensor": ("Tensor sf", "Tensor"),
    "get_mn_major_tma_aligned_packed_ue8m0_tensor": ("Tensor sf, Tensor? psum_layout=None", "Tensor"),
    "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor": (
        "Tensor sf, Tensor grouped_layout, int[]? ks_cpu, int gran_k, int k_alignment, bool use_psum_layout=False",
        "Tensor",
    ),
    "set_mk_alignment_for_contiguous_layout": ("int new_value", "()"),
    "get_mk_alignment_for_contiguous_layout": ("", "int"),
    "get_theoretical_mk_alignment_for_contiguous_layout": ("int? expected_m=None", "int"),
    "get_token_alignment_for_mega_moe": ("", "int"),
    "get_ring_limit_for_mega_moe": ("int num_max_tokens_per_rank, int num_experts_per_rank, int num_topk, int num_ranks", "(int, int)"),
    "get_symm_buffer_size_for_mega_moe": (
        "int num_ranks, int num_experts, int num_max_tokens_per_rank, int num_topk, int hidden, int intermediate_hidden, "
        "str mma_type, str activation, int num_ring_tokens",
        "(int, int[])",
    ),
    "_slice_symm_buffer_for_mega_moe": ("Tensor(a) buffer, int[] layout_info", f"({', '.join(['Tensor(a)'] * 8)})"),
    "fp8_fp4_mega_moe": (
        "Tensor(y!) y, Tensor l1_weights, Tensor l1_weights_sf, Tensor l2_weights, Tensor l2_weights_sf, "
        "Tensor(stats!)? cumulative_local_expert_recv_stats, Tensor(sym!) sym_buffer, int[] sym_buffer_ptrs, int rank_idx, "
        "int num_max_tokens_per_rank, int num_experts, int num_topk, int[3] recipe, str activation, float? activation_clamp, "
        "bool fast_math, int num_ring_tokens",
        "()",
    ),
    "bf16_mega_moe": (
        "Tensor(y!) y, Tensor l1_weights, Tensor l2_weights, Tensor(stats!)? cumulative_local_expert_recv_stats, "
        "Tensor(sym!) sym_buffer, int[] sym_buffer_ptrs, int rank_idx, int num_max_tokens_per_rank, int num_experts, int num_topk, "
        "str activation, float? activation_clamp, bool fast_math, int num_ring_tokens",
        "()",
    ),
    "set_num_sms": ("int new_num_sms", "()"),
    "get_num_sms": ("", "int"),
    "set_tc_util": ("int new_tc_util", "()"),
    "get_tc_util": ("", "int"),
    "set_pdl": ("bool new_enable_pdl", "()"),
    "get_pdl": ("", "bool"),
    "set_ignore_compile_dims": ("bool new_value", "()"),
    "set_block_size_multiple_of": ("int[2] new_value", "()"),
    "init": ("str library_root_path, str cuda_home_path_by_python", "()"),
    "per_token_cast_to_fp8": ("Tensor x, bool use_ue8m0, int gran_k=128, bool use_packed_ue8m0=False", "(Tensor, Tensor)"),
    "per_channel_cast_to_fp8": ("Tensor x, bool use_ue8m0, int gran_k=128", "(Tensor, Tensor)"),
    "per_block_cast_to_fp8": ("Tensor x, bool use_ue8m0, int gran_k=128", "(Tensor, Tensor)"),
    "per_token_cast_to_fp4": ("Tensor x, bool use_ue8m0, int gran_k=128, bool use_packed_ue8m0=False", "(Tensor, Tensor)"),
    "cast_back_from_fp4": ("Tensor packed, Tensor sf, int gran_k=128, bool use_packed_ue8m0=False", "Tensor"),
}

# Python's view: pairs are one argument, and some functions have further names.
PAIRS = {"a": ("a", "sfa"), "b": ("b", "sfb")}
PAIRS_OF = {
    "fp8_fp4_mqa_logits": {"q": ("q", "q_sf"), "kv": ("kv", "kv_sf")},
    "fp8_mqa_logits": {"kv": ("kv", "kv_sf")},
    "fp8_fp4_paged_mqa_logits": {"q": ("q", "q_sf")},
    "fp8_fp4_mega_moe": {"l1_weights": ("l1_weights", "l1_weights_sf"), "l2_weights": ("l2_weights", "l2_weights_sf")},
}
ALIASES = {
    "fp8_gemm_nt": "fp8_fp4_gemm_nt",
    "fp8_gemm_nn": "fp8_fp4_gemm_nn",
    "fp8_gemm_tn": "fp8_fp4_gemm_tn",
    "fp8_gemm_tt": "fp8_fp4_gemm_tt",
    "m_grouped_fp8_gemm_nt_contiguous": "m_grouped_fp8_fp4_gemm_nt_contiguous",
    "m_grouped_fp8_gemm_nn_contiguous": "m_grouped_fp8_fp4_gemm_nn_contiguous",
    "m_grouped_fp8_gemm_nt_masked": "m_grouped_fp8_fp4_gemm_nt_masked",
}
OLD_KEYWORDS = {
    name: (("m_indices", "grouped_layout"),)
    for name in SURFACE
    if name.startswith("m_grouped_") and name.endswith("_contiguous")
}


@pytest.fixture(scope="module")
def operators() -> dict[str, Operator]:
    library, report = parse_file(SCHEMA_FILE.name, SCHEMA_FILE.read_bytes())
    assert library is not None, report.render()
    return {op.schema.name: op for op in library.operators}


def test_names_are_those_of_the_surface(operators: dict[str, Operator]) -> None:
    assert set(operators) == set(SURFACE)


@pytest.mark.parametrize("name", SURFACE)
def test_arguments_order_and_defaults(operators: dict[str, Operator], name: str) -> None:
    arguments, returns = SURFACE[name]
    expected, report = check_string(f"{name}({arguments}) -> {returns}", as_torch=False)
    assert expected is not None, report.render()
    assert str(operators[name].schema) == str(expected)
    assert operators[name].schema.args == expected.args  # the print folds [1, 1] into 1


@pytest.mark.parametrize("name", SURFACE)
def test_pairs(operators: dict[str, Operator], name: str) -> None:
    arguments = {a.name for a in operators[name].schema.args}
    expected = PAIRS_OF.get(name, PAIRS if {"sfa", "sfb"} <= arguments else {})
    assert {p.name: p.args for p in operators[name].pairs} == expected


def test_aliases(operators: dict[str, Operator]) -> None:
    assert {alias: name for name, op in operators.items() for alias in op.aliases} == ALIASES


def test_old_keywords(operators: dict[str, Operator]) -> None:
    assert {name: op.keywords for name, op in operators.items() if op.keywords} == OLD_KEYWORDS


def test_python_takes_an_int_for_block_sizes(operators: dict[str, Operator]) -> None:
    assert {name: op.scalars for name, op in operators.items() if op.scalars} == {"set_block_size_multiple_of": ("new_value",)}


def test_every_operator_is_implemented(operators: dict[str, Operator]) -> None:
    assert [name for name, op in operators.items() if not op.backends] == []


def test_every_operator_is_documented_and_has_a_release(operators: dict[str, Operator]) -> None:
    for name, op in operators.items():
        assert op.doc, f"{name} has no documentation"
        assert op.section, f"{name} stands in no section"
        assert op.since, f"{name} does not say since when"


def test_written_arguments_say_how(operators: dict[str, Operator]) -> None:
    """d and the like are only written; what accumulates or keeps a part is also read."""
    inout = {
        (name, contract.name)
        for name, op in operators.items()
        for contract in op.contracts
        if getattr(contract, "access", "in") == "inout"
    }
    assert inout == {
        ("fp8_gemm_nt_skip_head_mid", "d"),
        *((moe, arg) for moe in ("fp8_fp4_mega_moe", "bf16_mega_moe") for arg in ("cumulative_local_expert_recv_stats", "sym_buffer")),
    }
