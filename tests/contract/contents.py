"""What the contracts of schema/ops.schema do not say and an operator still needs: chiefly what lies in tensors of integers.

Where nothing stands here, integers are 0 and everything else is finite. A function gets a call that is right by its contract, and
gives the one that the operator takes, or None: draw another one. The conditions are those that the schema tells with ``check``.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from math import prod

from codegen.record import replace
from codegen.samples.call import Call, Tensor, compact
from codegen.samples.draw import MOST_ELEMENTS, Source
from codegen.samples.verdict import fp4_geometry

ALIGNMENT = 128  # of groups, until it is set
BUFFER_BYTES = 4096  # more than a symmetric buffer of no token has


def with_contents(call: Call, name: str, contents: list[int]) -> Call:
    tensor = call.values[name]
    assert isinstance(tensor, Tensor)
    repeats = any(s == 0 and n > 1 for s, n in zip(tensor.strides, tensor.shape))
    strides = compact(tensor.shape) if repeats else tensor.strides
    return call.with_value(name, replace(tensor, contents=tuple(contents), strides=strides))


def shape(call: Call, name: str) -> tuple[int, ...]:
    tensor = call.values[name]
    assert isinstance(tensor, Tensor)
    return tensor.shape


def some_ends(groups: int, most: int, source: Source) -> list[int]:
    """Ends of groups, which do not decrease."""
    return sorted(source.integer(0, most) for _ in range(groups))


def has_pairs_along_groups(call: Call, *names: str) -> bool:
    """Whether FP4 pairs span two groups, or two rows of a group: kernels cannot begin in the middle of a byte."""
    for name in names:
        tensor = call.values[name]
        assert isinstance(tensor, Tensor)
        if tensor.bits == 4 or tensor.dtype.value in ("f4e2m1", "i8", "u8"):
            _, strides = fp4_geometry(name, tensor)
            if any(s % 2 for s in strides[:-2]) or name == "a" and strides[0] == 1:
                return True
    return False


def m_grouped(call: Call, source: Source) -> Call | None:
    if has_pairs_along_groups(call, "a", "b"):
        return None
    m, groups = shape(call, "a")[0], shape(call, "b")[0]
    if call.values["use_psum_layout"]:
        return with_contents(call, "grouped_layout", some_ends(groups, m, source))
    tiles = [source.integer(-1, groups - 1) for _ in range(-(-m // ALIGNMENT))]
    return with_contents(call, "grouped_layout", [tiles[i // ALIGNMENT] for i in range(m)])


def m_grouped_masked(call: Call, source: Source) -> Call | None:
    if has_pairs_along_groups(call, "a", "b"):
        return None
    groups, max_m = shape(call, "a")[:2]
    return with_contents(call, "masked_m", [source.integer(0, max_m) for _ in range(groups)])


def k_grouped(call: Call, source: Source) -> Call | None:
    (groups,) = shape(call, "grouped_layout")
    if call.values["use_psum_layout"]:
        return with_contents(call, "grouped_layout", [0] * groups)  # scales have rows for none at least
    sizes = call.values["ks_cpu"]
    assert isinstance(sizes, tuple)
    return with_contents(call, "grouped_layout", [int(str(size)) for size in sizes])


def k_grouped_flat(call: Call, source: Source) -> Call | None:
    sizes = call.values["ks_cpu"]
    assert isinstance(sizes, tuple)
    rows = sum(int(str(size)) for size in sizes)
    for name, scales in (("a", "sfa"), ("b", "sfb")):
        tensor = call.values[name]
        assert isinstance(tensor, Tensor)
        flat = (rows * shape(call, scales)[0],)
        if flat[0] > MOST_ELEMENTS:
            return None
        call = call.with_value(name, replace(tensor, shape=flat, strides=compact(flat)))
    return k_grouped(call, source)


def contiguous_keys(call: Call, source: Source) -> Call | None:
    queries, keys = shape(call, "cu_seq_len_k_start")[0], shape(call, "kv")[0]
    for name in ("cu_seq_len_k_start", "cu_seq_len_k_end"):
        call = with_contents(call, name, [source.integer(-1, keys + 1) for _ in range(queries)])
    return call


def paged_keys(call: Call, source: Source) -> Call | None:
    """Contexts that the table has pages for, and pages that there are."""
    pages, block_kv = shape(call, "kv_cache")[:2]
    batch, most = shape(call, "block_table")
    lengths = [source.integer(0, most * block_kv) for _ in range(prod(shape(call, "context_lens")))]
    call = with_contents(call, "context_lens", lengths)
    table = [source.integer(-1, pages - 1) for _ in range(most)] * batch  # all alike, since entries may share their index
    call = with_contents(call, "block_table", table)
    if call.values["indices"] is not None:
        call = with_contents(call, "indices", [source.integer(0, batch - 1) for _ in range(batch)])
    return call


def metadata(call: Call, source: Source) -> Call | None:
    call = with_contents(call, "context_lens", [source.integer(0, 600) for _ in range(prod(shape(call, "context_lens")))])
    if call.values["indices"] is not None:
        batch = shape(call, "indices")[0]
        call = with_contents(call, "indices", list(accumulate(source.integer(0, 1) for _ in range(batch))))
    return call


def ends_of_rows(call: Call, source: Source) -> Call | None:
    if call.values["psum_layout"] is None:
        return call
    (groups,) = shape(call, "psum_layout")
    rows = call.values.get("mn", shape(call, "sf")[0])
    assert isinstance(rows, int)
    return with_contents(call, "psum_layout", some_ends(groups, rows, source))


def default_alignment(call: Call, source: Source) -> Call | None:
    """The setting holds for the whole process: it stays what it is, for the other tests."""
    return call.with_value("new_value", ALIGNMENT)


def no_tokens(call: Call, source: Source) -> Call | None:
    """A layer of one rank without a token. The layout of the symmetric buffer, and what lies in it, is more than can be said here:
    tests/ops and tests/python have calls with tokens."""
    for name, value in (("num_max_tokens_per_rank", 0), ("num_ring_tokens", 0)):
        if name in call.values:
            call = call.with_value(name, value)
    if "y" not in call.values:
        return call
    hidden = shape(call, "y")[1]
    experts = shape(call, "l1_weights")[0]
    y, buffer = call.values["y"], call.values["sym_buffer"]
    assert isinstance(y, Tensor) and isinstance(buffer, Tensor)
    call = call.with_value("y", replace(y, shape=(0, hidden), strides=compact((0, hidden))))
    call = call.with_value("sym_buffer", replace(buffer, shape=(BUFFER_BYTES,), strides=(1,)))
    for name, value in (("sym_buffer_ptrs", (128,)), ("rank_idx", 0), ("num_experts", experts)):
        call = call.with_value(name, value)
    return call if experts > 0 else None


ADJUST: dict[str, Callable[[Call, Source], Call | None]] = {
    "m_grouped_fp8_fp4_gemm_nt_contiguous": m_grouped,
    "m_grouped_fp8_fp4_gemm_nn_contiguous": m_grouped,
    "m_grouped_fp8_fp4_gemm_nt_masked": m_grouped_masked,
    "k_grouped_fp8_gemm_tn_contiguous": k_grouped,
    "k_grouped_fp8_gemm_nt_contiguous": k_grouped_flat,
    "m_grouped_bf16_gemm_nt_contiguous": m_grouped,
    "m_grouped_bf16_gemm_nn_contiguous": m_grouped,
    "m_grouped_bf16_gemm_nt_masked": m_grouped_masked,
    "k_grouped_bf16_gemm_tn_contiguous": k_grouped,
    "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor": k_grouped,
    "fp8_fp4_mqa_logits": contiguous_keys,
    "fp8_mqa_logits": contiguous_keys,
    "fp8_fp4_paged_mqa_logits": paged_keys,
    "fp8_paged_mqa_logits": paged_keys,
    "get_paged_mqa_logits_metadata": metadata,
    "get_mn_major_tma_aligned_packed_ue8m0_tensor": ends_of_rows,
    "transform_sf_into_required_layout": ends_of_rows,
    "get_ring_limit_for_mega_moe": no_tokens,
    "get_symm_buffer_size_for_mega_moe": no_tokens,
    "fp8_fp4_mega_moe": no_tokens,
    "bf16_mega_moe": no_tokens,
    "set_mk_alignment_for_contiguous_layout": default_alignment,
}


def adjust(call: Call, source: Source) -> Call | None:
    function = ADJUST.get(call.op.symbol)
    return call if function is None else function(call, source)
