"""The cases of cuda.py: from a row of a table of times to a call of an operator with inputs of that shape.

A row is a section and the text of a case, as DeepGEMM's own tests print it: `m=1, n=2112, k=7168, 1D2D, layout=NT, BF16, acc=0`. The text is
all that is known of a shape, so every word of it must be understood. ROWS are the rows that are measured without a table, and those that no
table has: casts, scale layouts and mega MoE.

What DeepGEMM's tests draw at random (sizes of groups, lengths of contexts) is drawn here too, always the same for a row, and brought to the total that
the row's time and TFLOP/s tell, so that both do the same work.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

import deep_gemm

BLOCK = 128  # elements of k per scale; rows of a weight per scale
HEAD_SPLITS = (128, 64, 128)  # columns: left, mid, right
MAX_M = 4096  # rows per group of a masked GEMM
PAGE: Literal[64] = 64  # keys of a page
SCALE_BYTES = 4
SLOTS = 132  # of the schedule of paged logits: the multiprocessors of an H200


@dataclass(frozen=True)
class Row:
    section: str
    case: str
    us: float | None = None
    tflops: float | None = None
    gb_per_s: float | None = None

    @property
    def flops(self) -> float:
        """What the table says, as far as its digits go; 0 when it does not say."""
        return 1e6 * self.us * self.tflops if self.us and self.tflops else 0.0


# What the time of a row is: the kernels of a call with operands that are not in L2, a call in a CUDA graph with operands that are, or the time
# until a call returns.
How = Literal["kernels", "graph", "host"]


@dataclass(frozen=True)
class Case:
    call: Callable[[], object]
    size: int  # bytes that have to be read and written, once
    flops: int = 0
    unit: str = ""  # whose rate limits the flops: "fp8", "bf16" or "tf32"
    peer: Callable[[], object] | None = None  # the same job by torch, or a copy of as many bytes
    how: How = "kernels"


# ---- what a row says -------------------------------------------------------------------------------------------


class Fields:
    """The words of a case, each of which must be read: `m=1`, `BF16`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.words: dict[str, str] = {}
        for name, value in re.findall(r"([\w-]+)(?: *= *([\w-]+))?", text):
            self.words[name] = value

    def word(self, name: str) -> str:
        if name not in self.words:
            raise ValueError(f"{self.text!r} has no {name!r}")
        return self.words.pop(name)

    def number(self, name: str) -> int:
        return int(self.word(name))

    def numbers(self, *names: str) -> list[int]:
        return [self.number(name) for name in names]

    def one_of(self, *names: str) -> str:
        """The word, without a value, that the text has of these."""
        found = [name for name in names if name in self.words]
        if len(found) != 1:
            raise ValueError(f"{self.text!r} has {found or 'none'} of {', '.join(names)}, expected one")
        self.words.pop(found[0])
        return found[0]

    def has(self, name: str) -> bool:
        return self.words.pop(name, None) is not None

    def expect(self, name: str, value: str) -> None:
        got = self.word(name)
        if got != value:
            raise ValueError(f"{self.text!r}: {name} is {got}, expected {value}: there is no case for another one")

    def end(self) -> None:
        if self.words:
            raise ValueError(f"{self.text!r}: nothing here understands {', '.join(self.words)}")


# ---- inputs ----------------------------------------------------------------------------------------------------


class Inputs:
    """Makes tensors on a device: random ones, or with `is_real` false ones of the right kind that nobody has written, whose memory costs
    nothing on the CPU until somebody does. Draws of sizes depend on the row only."""

    def __init__(self, device: str, row: Row, is_real: bool = True) -> None:
        self.device, self.row, self.is_real = device, row, is_real
        self.draw = random.Random(f"{row.section}: {row.case}")

    def empty(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def normal(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(shape, dtype=dtype, device=self.device) if self.is_real else self.empty(*shape, dtype=dtype)

    def codes(self, *shape: int) -> Tensor:
        """E4M3 codes as quantised normal data has them: the greatest of a block is near 448."""
        if not self.is_real:
            return self.empty(*shape, dtype=torch.float8_e4m3fn)
        return self.normal(*shape).mul_(150).clamp_(-448, 448).to(torch.float8_e4m3fn)

    def scales(self, *shape: int) -> Tensor:
        scales = self.empty(*shape, dtype=torch.float32)
        return scales.uniform_(0.9 / 150, 1.1 / 150) if self.is_real else scales

    def powers_of_two(self, *shape: int) -> Tensor:
        scales = self.normal(*shape, dtype=torch.float32)
        return scales.round_().exp2_() if self.is_real else scales

    def integers(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32).to(self.device)

    def copy_of(self, size: int) -> Callable[[], object]:
        """A copy that moves `size` bytes: half of them read, half of them written."""
        source, target = (self.empty(max(size // 2, 1), dtype=torch.int8) for _ in range(2))
        if self.is_real:
            source.random_()
        return partial(target.copy_, source)

    def sizes(self, count: int, total: int, unit: int = 1) -> list[int]:
        """Sizes around their mean (0.7 to 1.3 of it) that add up to `total`, all of them multiples of `unit`, as `total` is."""
        weights = [self.draw.uniform(0.7, 1.3) for _ in range(count)]
        ends = [round(sum(weights[: i + 1]) / sum(weights) * (total // unit)) * unit for i in range(count)]
        return [end - begin for begin, end in zip([0, *ends], ends)]

    def total(self, mean_total: int, flops_each: int) -> int:
        """Rows, or keys, of all groups together: as many as the table's row had, if that is known."""
        return round(self.row.flops / flops_each) or mean_total


def ceil_div(x: int, y: int) -> int:
    return -(-x // y)


def bytes_of(*tensors: Tensor) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def dtype_of(word: str) -> torch.dtype:
    return {"BF16": torch.bfloat16, "FP32": torch.float32}[word]


# ---- dense GEMMs -----------------------------------------------------------------------------------------------


def torch_mm(inputs: Inputs, m: int, n: int, k: int, layout: str = "NT") -> Callable[[], object]:
    a = inputs.normal(m, k) if layout[0] == "N" else inputs.normal(k, m).T
    b = inputs.normal(n, k).T if layout[1] == "T" else inputs.normal(k, n)
    return partial(torch.mm, a, b, out=inputs.empty(m, n))


def torch_mm_of_groups(inputs: Inputs, shapes: list[tuple[int, int, int]], layout: str = "NT") -> Callable[[], object]:
    """A product of torch's for each group."""
    calls = [torch_mm(inputs, *shape, layout) for shape in shapes]

    def run() -> None:
        for call in calls:
            call()

    return run


def fp8_gemm(fields: Fields, inputs: Inputs) -> Case:
    m, n, k = fields.numbers("m", "n", "k")
    kernel = fields.one_of("1D1D", "1D2D")
    fields.expect("layout", "NT")
    d = inputs.normal(m, n, dtype=dtype_of(fields.one_of("BF16", "FP32")))
    c = d if fields.number("acc") else None
    rows = 1 if kernel == "1D1D" else BLOCK  # of b per scale
    a = inputs.codes(m, k), inputs.scales(m, ceil_div(k, BLOCK))
    b = inputs.codes(n, k), inputs.scales(ceil_div(n, rows), ceil_div(k, BLOCK))
    call = partial(deep_gemm.fp8_gemm_nt, a, b, d, c, recipe=(1, rows, BLOCK))
    size = bytes_of(*a, *b, d) + (bytes_of(c) if c is not None else 0)
    return Case(call, size, 2 * m * n * k, "fp8", torch_mm(inputs, m, n, k))


def bf16_gemm(name: str, fields: Fields, inputs: Inputs) -> Case:
    m, n, k = fields.numbers("m", "n", "k")
    layout = fields.word("layout")
    d = inputs.normal(m, n, dtype=dtype_of(fields.one_of("BF16", "FP32")))
    c = d if fields.number("acc") else None
    a = inputs.normal(m, k) if layout[0] == "N" else inputs.normal(k, m)
    b = inputs.normal(n, k) if layout[1] == "T" else inputs.normal(k, n)
    call = partial(getattr(deep_gemm, f"{name}_{layout.lower()}"), a, b, d, c)
    size = bytes_of(a, b, d) + (bytes_of(c) if c is not None else 0)
    return Case(call, size, 2 * m * n * k, "bf16", torch_mm(inputs, m, n, k, layout))


def whole_gemm(name: str, how: How, fields: Fields, inputs: Inputs) -> Case:
    """A row that has nothing but the shape, and is no time of kernels."""
    m, n, k = fields.numbers("m", "n", "k")
    rest = "1D2D, layout=NT, BF16, acc=0" if name == "fp8_gemm" else "layout=NT, BF16, acc=0"
    gemm = Fields(f"m={m}, n={n}, k={k}, {rest}")
    case = fp8_gemm(gemm, inputs) if name == "fp8_gemm" else bf16_gemm(name, gemm, inputs)
    gemm.end()
    return replace(case, how=how)


def skip_head_mid(fields: Fields, inputs: Inputs) -> Case:
    m, n, k = fields.numbers("m", "n", "k")
    fields.one_of("1D2D")
    left, mid, right = HEAD_SPLITS
    a = inputs.codes(m, k), inputs.scales(m, ceil_div(k, BLOCK))
    b = inputs.codes(n, k), inputs.scales(ceil_div(n, BLOCK), ceil_div(k, BLOCK))
    d = inputs.normal(m, n + n // (left + right) * mid)
    return Case(partial(deep_gemm.fp8_gemm_nt_skip_head_mid, a, b, d, HEAD_SPLITS), bytes_of(*a, *b) + 2 * m * n, 2 * m * n * k, "fp8")


# ---- grouped GEMMs ---------------------------------------------------------------------------------------------


def grouped_weights(kind: str, inputs: Inputs, groups: int, n: int, k: int, layout: str = "NT") -> tuple[object, int]:
    """The argument b, and its bytes."""
    if kind == "bf16":
        b = inputs.normal(groups, n, k) if layout == "NT" else inputs.normal(groups, k, n)
        return b, bytes_of(b)
    pair = inputs.codes(groups, n, k), inputs.scales(groups, ceil_div(n, BLOCK), ceil_div(k, BLOCK))
    return pair, bytes_of(*pair)


def grouped_rows(kind: str, inputs: Inputs, *shape: int) -> object:
    """The argument a, [.., k]."""
    if kind == "bf16":
        return inputs.normal(*shape)
    return inputs.codes(*shape), inputs.scales(*shape[:-1], ceil_div(shape[-1], BLOCK))


def grouped_row_bytes(kind: str, n: int, k: int) -> int:
    """What a row of a, with its scales, and of d takes."""
    return 2 * (n + k) if kind == "bf16" else k + 4 * ceil_div(k, BLOCK) + 2 * n


def m_grouped_contiguous(kind: str, fields: Fields, inputs: Inputs) -> Case:
    groups, m, n, k = fields.numbers("num_groups", "m", "n", "k")
    layout, is_psum = fields.word("layout"), fields.word("psum") == "True"
    if kind == "fp8":
        fields.one_of("1D2D")
    fields.expect("zero_pad", "False")
    alignment = deep_gemm.get_mk_alignment_for_contiguous_layout()
    sizes = inputs.sizes(groups, m, alignment)
    ends: list[int] = []
    rows: list[int] = []
    begin = 0
    for group, aligned in enumerate(sizes):
        used = aligned - inputs.draw.randrange(min(alignment, aligned + 1))
        ends.append(begin + used)
        rows += [group] * used + [-1] * (aligned - used)
        begin += aligned
    b, b_bytes = grouped_weights(kind, inputs, groups, n, k, layout)
    operator = getattr(deep_gemm, f"m_grouped_{kind}_gemm_{layout.lower()}_contiguous")
    grouped_layout = inputs.integers(ends if is_psum else rows)
    call = partial(operator, grouped_rows(kind, inputs, m, k), b, inputs.empty(m, n), grouped_layout,
                   use_psum_layout=is_psum, ensure_zero_padding=False)  # fmt: skip
    peer = torch_mm_of_groups(inputs, [(size, n, k) for size in sizes], layout)
    return Case(call, b_bytes + m * grouped_row_bytes(kind, n, k), 2 * m * n * k, kind, peer)


def m_grouped_masked(kind: str, fields: Fields, inputs: Inputs) -> Case:
    groups, expected, n, k = fields.numbers("num_groups", "expected_m_per_group", "n", "k")
    is_psum = fields.number("psum") == 1
    if kind == "fp8":
        fields.one_of("1D2D")
    total = inputs.total(groups * expected, 2 * n * k)
    sizes = inputs.sizes(groups, total)
    b, b_bytes = grouped_weights(kind, inputs, groups, n, k)
    if is_psum:
        alignment = deep_gemm.get_mk_alignment_for_contiguous_layout()
        ends: list[int] = []
        begin = 0
        for size in sizes:
            ends.append(begin + size)
            begin = ceil_div(begin + size, alignment) * alignment
        operator = getattr(deep_gemm, f"m_grouped_{kind}_gemm_nt_contiguous")
        call = partial(operator, grouped_rows(kind, inputs, begin, k), b, inputs.empty(begin, n), inputs.integers(ends),
                       use_psum_layout=True, ensure_zero_padding=False, expected_m_for_psum_layout=expected)  # fmt: skip
    else:
        operator = getattr(deep_gemm, f"m_grouped_{kind}_gemm_nt_masked")
        call = partial(operator, grouped_rows(kind, inputs, groups, MAX_M, k), b, inputs.empty(groups, MAX_M, n), inputs.integers(sizes), expected)
    peer = torch_mm_of_groups(inputs, [(size, n, k) for size in sizes])
    return Case(call, b_bytes + total * grouped_row_bytes(kind, n, k), 2 * total * n * k, kind, peer)


def k_grouped(kind: str, fields: Fields, inputs: Inputs) -> Case:
    groups, m, n, k = fields.numbers("num_groups", "m", "n", "k")
    alignment = fields.number("align" if kind == "bf16" else "k_alignment")
    fields.expect("psum", "0")
    sizes = inputs.sizes(groups, k, alignment)
    d = inputs.normal(groups, m, n, dtype=torch.float32)  # is c as well
    layout = inputs.integers(sizes)
    call: Callable[[], object]
    if kind == "bf16":
        a, b = inputs.normal(k, m), inputs.normal(k, n)
        operand_bytes = bytes_of(a, b)
        call = partial(deep_gemm.k_grouped_bf16_gemm_tn_contiguous, a, b, d, sizes, layout, d)
    else:
        fields.expect("gran_k", str(BLOCK))
        a8 = inputs.codes(k * m), inputs.scales(k // BLOCK, m).T
        b8 = inputs.codes(k * n), inputs.scales(k // BLOCK, n).T
        operand_bytes = bytes_of(*a8, *b8)
        call = partial(deep_gemm.k_grouped_fp8_gemm_nt_contiguous, a8, b8, d, sizes, layout, d)
    peer = torch_mm_of_groups(inputs, [(m, n, size) for size in sizes], "TN" if kind == "bf16" else "NT")
    return Case(call, operand_bytes + 2 * bytes_of(d), 2 * m * n * k, kind, peer)


# ---- einsum ----------------------------------------------------------------------------------------------------


def einsum_bmk(fields: Fields, inputs: Inputs) -> Case:
    b, m, n, k = fields.numbers("b", "m", "n", "k")
    x, y = inputs.normal(b, m, k), inputs.normal(b, n, k)
    d = inputs.normal(m, n, dtype=dtype_of(fields.one_of("BF16", "FP32")))
    c = d if d.dtype == torch.float32 else None
    return Case(partial(deep_gemm.einsum, "bmk,bnk->mn", x, y, d, c), bytes_of(x, y, d), 2 * b * m * n * k, "bf16")


def einsum_heads(expression: Literal["bhr,hdr->bhd", "bhd,hdr->bhr"], fields: Fields, inputs: Inputs) -> Case:
    b, h, r, d = fields.numbers("b", "h", "r", "d")
    weights = inputs.normal(h, d, r + 128)[:, :, :r]  # rows further apart than they are long
    of = {"b": b, "h": h, "r": r, "d": d}
    left, _, right = expression.replace("->", ",").split(",")
    x, out = inputs.normal(*(of[axis] for axis in left)), inputs.empty(*(of[axis] for axis in right))
    return Case(partial(deep_gemm.einsum, expression, x, weights, out), bytes_of(x, weights, out), 2 * b * h * r * d, "bf16")


def fp8_einsum(fields: Fields, inputs: Inputs) -> Case:
    b, h, r, d = fields.numbers("b", "h", "r", "d")
    x = inputs.codes(b, h, r), inputs.scales(b, h, ceil_div(r, BLOCK))
    weights = inputs.codes(h, d, r), inputs.scales(h, ceil_div(d, BLOCK), ceil_div(r, BLOCK))
    out = inputs.empty(b, h, d)
    return Case(partial(deep_gemm.fp8_einsum, "bhr,hdr->bhd", x, weights, out), bytes_of(*x, *weights, out), 2 * b * h * r * d, "fp8")


# ---- indexer logits --------------------------------------------------------------------------------------------


def key_ranges(queries: int, keys: int, is_split: bool) -> list[int]:
    """One past the last key of each query, which sees all keys before: the queries are the last tokens of a sequence; or, split among the ranks
    of context parallelism, one piece of the first half of the sequence and its counterpart of the second."""
    if not is_split:
        return [keys - queries + i for i in range(queries)]
    piece, ranks = queries // 2, keys // queries
    rank = ranks // 3
    begins = (rank * piece, (2 * ranks - 1 - rank) * piece)
    return [begin + i for begin in begins for i in range(piece)]


def mqa_logits(fields: Fields, inputs: Inputs) -> Case:
    """Without cleaning, which is another kernel at DeepGEMM, that its table does not count."""
    fields.expect("FP4", "0")
    fields.expect("Reduce", "FP32")
    dtype, is_compressed = dtype_of(fields.word("Logits")), fields.number("CMP") == 1
    queries, keys, heads, head_dim = fields.numbers("SQ", "SK", "H", "D")
    ends = key_ranges(queries, keys, fields.number("CP") == 1)
    q, kv, kv_sf = inputs.codes(queries, heads, head_dim), inputs.codes(keys, head_dim), inputs.scales(keys)
    weights = inputs.normal(queries, heads, dtype=torch.float32)
    start, end = inputs.integers([0] * queries), inputs.integers(ends)
    call = partial(deep_gemm.fp8_fp4_mqa_logits, (q, None), (kv, kv_sf), weights, start, end,
                   clean_logits=False, max_seqlen_k=max(ends) if is_compressed else 0, logits_dtype=dtype)  # fmt: skip
    return Case(call, bytes_of(q, kv, kv_sf, weights) + sum(ends) * dtype.itemsize, 2 * sum(ends) * heads * head_dim, "fp8")


def paged_mqa_logits(fields: Fields, inputs: Inputs) -> Case:
    fields.expect("FP4", "0")
    fields.expect("Reduce", "FP32")
    fields.expect("VAR", "0")
    fields.expect("PAGE_KV", str(PAGE))
    dtype = dtype_of(fields.word("Logits"))
    batch, next_n, heads, head_dim, mean = fields.numbers("BSZ", "NextN", "H", "D", "L")
    flops_of_key = 2 * next_n * heads * head_dim
    lens = inputs.sizes(batch, inputs.total(batch * mean, flops_of_key))
    pages = [ceil_div(length, PAGE) for length in lens]
    cache = inputs.empty(sum(pages), PAGE, 1, head_dim + SCALE_BYTES, dtype=torch.uint8)
    table = torch.zeros(batch, max(pages), dtype=torch.int32)
    order = torch.randperm(sum(pages), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    begin = 0
    for row, count in zip(table, pages):
        row[:count] = order[begin : begin + count]
        begin += count
    if inputs.is_real:
        flat = cache.view(sum(pages), -1)
        flat[:, : PAGE * head_dim] = inputs.codes(sum(pages), PAGE * head_dim).view(torch.uint8)
        flat[:, PAGE * head_dim :] = inputs.scales(sum(pages), PAGE).view(torch.uint8)
    context_lens = inputs.integers(lens).view(-1, 1) - torch.arange(next_n - 1, -1, -1, dtype=torch.int32, device=inputs.device)
    schedule = deep_gemm.get_paged_mqa_logits_metadata(context_lens, PAGE, SLOTS) if inputs.is_real else inputs.integers([0, 0] * (SLOTS + 1)).view(-1, 2)
    q = inputs.codes(batch, next_n, heads, head_dim)
    weights = inputs.normal(batch * next_n, heads, dtype=torch.float32)
    call = partial(deep_gemm.fp8_fp4_paged_mqa_logits, (q, None), cache, weights, context_lens, table.to(inputs.device), schedule,
                   max(lens), clean_logits=False, logits_dtype=dtype)  # fmt: skip
    keys = sum(lens)
    size = bytes_of(q, weights, context_lens) + 4 * sum(pages) + keys * (head_dim + SCALE_BYTES) + keys * next_n * dtype.itemsize
    return Case(call, size, keys * flops_of_key, "fp8")


# ---- what moves memory -----------------------------------------------------------------------------------------


def prenorm(fields: Fields, inputs: Inputs) -> Case:
    m, n, k, splits = fields.numbers("m", "n", "k", "num_splits")
    shape = (splits, m) if splits else (m,)
    a, b = inputs.normal(m, k), inputs.normal(n, k, dtype=torch.float32)
    d, squares = inputs.empty(*shape, n, dtype=torch.float32), inputs.empty(*shape, dtype=torch.float32)
    size = bytes_of(a, b, d, squares)
    call = partial(deep_gemm.tf32_hc_prenorm_gemm, a, b, d, squares, num_splits=splits or None)
    return Case(call, size, 2 * m * n * k, "tf32", inputs.copy_of(size))


def cast(fields: Fields, inputs: Inputs) -> Case:
    name = fields.one_of("per_token_cast_to_fp8", "per_channel_cast_to_fp8", "per_block_cast_to_fp8", "per_token_cast_to_fp4", "cast_back_from_fp4")
    m, n, gran_k = fields.numbers("m", "n", "gran_k")
    blocks = ceil_div(n, gran_k)
    if name == "cast_back_from_fp4":
        codes = inputs.empty(m, n // 2, dtype=torch.int8)
        if inputs.is_real:
            codes.random_(-128, 128)
        scales = inputs.powers_of_two(m, blocks)
        size = bytes_of(codes, scales) + 4 * m * n
        return Case(partial(deep_gemm.cast_back_from_fp4, codes, scales, gran_k), size, peer=inputs.copy_of(size))
    x, is_packed = inputs.normal(m, n, dtype=dtype_of(fields.one_of("BF16", "FP32"))), fields.has("packed")
    scales_of = {"per_channel_cast_to_fp8": m // gran_k * n, "per_block_cast_to_fp8": ceil_div(m, gran_k) * blocks}
    size = bytes_of(x) + m * n // (2 if name.endswith("fp4") else 1) + scales_of.get(name, m * blocks) * (1 if is_packed else 4)
    arguments = (x, True, gran_k, True) if is_packed else (x, name.endswith("fp4"), gran_k)
    return Case(partial(getattr(deep_gemm, name), *arguments), size, peer=inputs.copy_of(size))


def scale_layout(fields: Fields, inputs: Inputs) -> Case:
    name = fields.one_of("get_mn_major_tma_aligned_tensor", "get_mn_major_tma_aligned_packed_ue8m0_tensor",
                         "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor", "transform_sf_into_required_layout")  # fmt: skip
    mn, blocks = fields.numbers("mn", "blocks")
    operator = getattr(deep_gemm, name)
    if name.startswith("get_k_grouped"):
        groups = fields.number("num_groups")
        scales = inputs.powers_of_two(blocks, mn)
        sizes = [BLOCK * size for size in inputs.sizes(groups, blocks)]
        call = partial(operator, scales, inputs.integers(sizes), sizes, BLOCK, BLOCK)
        written = sum(ceil_div(size, 4 * BLOCK) for size in sizes) * mn * 4
    elif name.startswith("transform"):
        gran_mn = fields.number("gran_mn")
        scales = inputs.powers_of_two(ceil_div(mn, gran_mn), blocks)
        call = partial(operator, scales, mn, 32 * blocks, (gran_mn, 32))
        written = mn * ceil_div(blocks, 4) * 4
    else:
        scales = inputs.powers_of_two(blocks, mn).T if fields.has("MN-major") else inputs.powers_of_two(mn, blocks)
        call = partial(operator, scales)
        written = mn * ceil_div(blocks, 4) * 4 if "packed" in name else bytes_of(scales)
    size = bytes_of(scales) + written
    return Case(call, size, peer=inputs.copy_of(size))


# ---- mega MoE --------------------------------------------------------------------------------------------------


def mega_moe(fields: Fields, inputs: Inputs) -> Case:
    """One rank. The limit counts the weights of all experts, once, and the rows that come and go."""
    kind = fields.one_of("FP8xFP4", "BF16")
    tokens, experts, topk, hidden, intermediate = fields.numbers("tokens", "experts", "topk", "hidden", "intermediate")
    with torch.device(inputs.device):
        buffer = deep_gemm.get_symm_buffer_for_mega_moe(
            None, experts, tokens, topk, hidden, intermediate, mma_type="fp8xfp4" if kind == "FP8xFP4" else "bf16xbf16"
        )
    buffer.topk_idx[:tokens] = torch.rand(tokens, experts).topk(topk, dim=1).indices
    buffer.topk_weights[:tokens] = 1 / topk
    y = inputs.empty(tokens, hidden)
    sizes = ((experts, 2 * intermediate, hidden), (experts, hidden, intermediate))
    flops = 6 * tokens * topk * hidden * intermediate
    if kind == "BF16":
        if inputs.is_real:
            buffer.x[:tokens].normal_()
        l1, l2 = (inputs.normal(*shape) for shape in sizes)
        call = partial(deep_gemm.mega.bf16_mega_moe, y, l1, l2, buffer)
        return Case(call, bytes_of(l1, l2, y) + 2 * tokens * hidden, flops, "bf16")
    l1_pair, l2_pair = (fp4_weights(inputs, *shape) for shape in sizes)
    assert buffer.x_sf is not None
    if inputs.is_real:
        buffer.x[:tokens], buffer.x_sf[:tokens] = deep_gemm.per_token_cast_to_fp8(inputs.normal(tokens, hidden), True, 32, True)
    call = partial(deep_gemm.mega.fp8_fp4_mega_moe, y, l1_pair, l2_pair, buffer)
    return Case(call, bytes_of(*l1_pair, *l2_pair, y) + tokens * hidden * 33 // 32, flops, "fp8")


def fp4_weights(inputs: Inputs, experts: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    """Random pairs, and packed scales from 2^-8 to 2^-5; MN-major, as the layout operators return them."""
    codes, words = inputs.empty(experts, n, k // 2, dtype=torch.int8), inputs.empty(experts, k // 128, n, 4, dtype=torch.uint8)
    if inputs.is_real:
        codes.random_(-128, 128)
        words.random_(119, 123)
    return codes, words.view(torch.int32).squeeze(-1).mT


# ---- sections --------------------------------------------------------------------------------------------------

Maker = Callable[[Fields, Inputs], Case]

SECTIONS: dict[str, Maker] = {
    "fp8_fp4: GEMM": fp8_gemm,
    "fp8_fp4: m-grouped contiguous GEMM": partial(m_grouped_contiguous, "fp8"),
    "fp8_fp4: m-grouped masked GEMM": partial(m_grouped_masked, "fp8"),
    "fp8_fp4: k-grouped contiguous GEMM": partial(k_grouped, "fp8"),
    "bf16: GEMM": partial(bf16_gemm, "bf16_gemm"),
    "bf16: m-grouped contiguous GEMM": partial(m_grouped_contiguous, "bf16"),
    "bf16: m-grouped masked GEMM": partial(m_grouped_masked, "bf16"),
    "bf16: k-grouped contiguous GEMM": partial(k_grouped, "bf16"),
    "bf16: cuBLASLt GEMM": partial(bf16_gemm, "cublaslt_gemm"),
    "attention: GEMM skip head mid": skip_head_mid,
    "attention: FP8 MQA Logits": mqa_logits,
    "attention: FP8/FP4 Paged MQA Logits": paged_mqa_logits,
    'einsum: "bmk, bnk -> mn"': einsum_bmk,
    'einsum: "bhr, hdr -> bhd"': partial(einsum_heads, "bhr,hdr->bhd"),
    'einsum: "bhd, hdr -> bhr"': partial(einsum_heads, "bhd,hdr->bhr"),
    'einsum: FP8 "bhr, hdr -> bhd"': fp8_einsum,
    "hyperconnection: hyperconnection prenorm GEMM": prenorm,
    "whole op: fp8_gemm_nt in a CUDA graph (scale transform + GEMM, warm L2)": partial(whole_gemm, "fp8_gemm", "graph"),
    "whole op: bf16_gemm_nt in a CUDA graph (warm L2)": partial(whole_gemm, "bf16_gemm", "graph"),
    "host: fp8_gemm_nt, Python call until it returns": partial(whole_gemm, "fp8_gemm", "host"),
    "host: bf16_gemm_nt, Python call until it returns": partial(whole_gemm, "bf16_gemm", "host"),
    "casts": cast,
    "scale layouts": scale_layout,
    "mega MoE": mega_moe,
}

MEMORY_SECTIONS = ("hyperconnection: hyperconnection prenorm GEMM", "casts", "scale layouts")  # whose peer is a copy

# Sections of a table that have no operator, by how their names begin.
OTHER_TIMES = {
    "whole op: torch.mm": "torch.mm is no operator of this library",
    "host: torch.mm": "torch.mm is no operator of this library",
    "host: first": "nothing is compiled in the first call of a process, whose time is that of loading kernels: tests/bench/host_cuda.cu",
}


def why_not(row: Row) -> str | None:
    """Why there is no case for a row, or None if there is one."""
    if row.section in SECTIONS:
        return None
    for beginning, reason in OTHER_TIMES.items():
        if row.section.startswith(beginning):
            return reason
    return "there is no operator for this section"


def make_case(row: Row, device: str, is_real: bool = True) -> Case:
    """The call of a row of one of the SECTIONS. ValueError if its text is not understood."""
    fields = Fields(row.case)
    case = SECTIONS[row.section](fields, Inputs(device, row, is_real))
    fields.end()
    return case


# ---- rows without a table --------------------------------------------------------------------------------------


def own_rows() -> Iterator[Row]:
    """What no table of DeepGEMM has."""
    for dtype in ("BF16", "FP32"):
        for name in ("per_token_cast_to_fp8", "per_channel_cast_to_fp8", "per_block_cast_to_fp8"):
            yield Row("casts", f"{name}, m=16384, n=7168, gran_k=128, {dtype}")
        yield Row("casts", f"per_token_cast_to_fp8, m=16384, n=7168, gran_k=32, packed, {dtype}")
        yield Row("casts", f"per_token_cast_to_fp4, m=16384, n=7168, gran_k=32, {dtype}")
    yield Row("casts", "cast_back_from_fp4, m=16384, n=7168, gran_k=32")
    for blocks in (56, 57):
        for major in ("", ", MN-major"):
            yield Row("scale layouts", f"get_mn_major_tma_aligned_tensor, mn=1048576, blocks={blocks}{major}")
            yield Row("scale layouts", f"get_mn_major_tma_aligned_packed_ue8m0_tensor, mn=1048576, blocks={blocks}{major}")
    yield Row("scale layouts", "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor, mn=7168, blocks=8192, num_groups=64")
    for gran_mn in (1, 128):
        yield Row("scale layouts", f"transform_sf_into_required_layout, mn=1048576, blocks=56, gran_mn={gran_mn}")
    for kind in ("FP8xFP4", "BF16"):
        for tokens in (64, 2048):
            yield Row("mega MoE", f"{kind}, tokens={tokens}, experts=32, topk=8, hidden=4096, intermediate=2048")


def shapes_of_deepgemm() -> Iterator[Row]:
    """A few of DeepGEMM's shapes for each section of its tests."""
    for m in (1, 8, 16, 128, 4096):
        for n, k in ((2112, 7168), (576, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048)):
            yield Row("fp8_fp4: GEMM", f"m={m}, n={n}, k={k}, 1D2D, layout=NT, BF16, acc=0")
            yield Row("bf16: GEMM", f"m={m}, n={n}, k={k}, layout=NT, BF16, acc=0")
    yield Row("fp8_fp4: GEMM", "m=4096, n=4096, k=7168, 1D1D, layout=NT, FP32, acc=1")
    yield Row("bf16: GEMM", "m=4096, n=7168, k=2112, layout=NN, BF16, acc=0")
    yield Row("bf16: GEMM", "m=4096, n=4096, k=7168, layout=TN, FP32, acc=1")
    yield Row("bf16: cuBLASLt GEMM", "m=128, n=4096, k=7168, layout=NT, BF16, acc=0")
    for kind, kernel in (("fp8_fp4", "1D2D, "), ("bf16", "")):
        for psum in ("True", "False"):
            shape = "num_groups=4, m=32896, n=4096, k=2048"
            yield Row(f"{kind}: m-grouped contiguous GEMM", f"{shape}, {kernel}layout=NT, psum={psum}, zero_pad=False")
        for groups, rows in ((32, 192), (6, 1024), (32, 20)):
            for psum in ("1", "0"):
                shape = f"num_groups={groups}, expected_m_per_group={rows}, n=4096, k=2048"
                yield Row(f"{kind}: m-grouped masked GEMM", f"{shape}, {kernel}psum={psum}")
    yield Row("fp8_fp4: k-grouped contiguous GEMM", "num_groups=4, m=7168, n=2048, k=31744, gran_k=128, k_alignment=128, psum=0")
    yield Row("bf16: k-grouped contiguous GEMM", "num_groups=4, m=7168, n=2048, k=31744, align=128, psum=0")
    for m in (128, 4096):
        yield Row("attention: GEMM skip head mid", f"m={m}, n=8192, k=512, 1D2D")
    for logits, compressed, split in (("BF16", 0, 1), ("FP32", 1, 0)):
        for dim in (32, 64, 128):
            shape = f"CMP={compressed}, SQ=2048, SK=8192, H=64, D={dim}, CP={split}"
            yield Row("attention: FP8 MQA Logits", f"FP4=0, Logits={logits}, Reduce=FP32, {shape}")
        for next_n in (1, 2):
            shape = f"VAR=0, PAGE_KV=64, BSZ=256, NextN={next_n}, H=64, D=128, L=8192"
            yield Row("attention: FP8/FP4 Paged MQA Logits", f"FP4=0, Logits={logits}, Reduce=FP32, {shape}")
    for dtype in ("FP32", "BF16"):
        yield Row('einsum: "bmk, bnk -> mn"', f"b=4096, m=128, n=384, k=128, {dtype}")
    for b in (4, 128, 4096):
        yield Row('einsum: "bhr, hdr -> bhd"', f"b={b}, h=128, r=512, d=128")
        yield Row('einsum: "bhd, hdr -> bhr"', f"b={b}, h=128, r=512, d=128")
        yield Row('einsum: FP8 "bhr, hdr -> bhd"', f"b={b}, h=8, r=4096, d=1024")
    for m in (13, 137, 4096, 8192):
        for k in (28672, 7680, 7168):
            for splits in (0, 16):
                yield Row("hyperconnection: hyperconnection prenorm GEMM", f"m={m}, n=24, k={k}, num_splits={splits}")
    for section in SECTIONS:
        if section.startswith(("whole op", "host")):
            yield Row(section, "m=128 n=4096 k=7168")
