"""The grouped GEMMs against sums in float64: m-grouped by index and by psum, masked, k-grouped, and the GEMMs without scales.

DG_BACKEND in the environment forces a row of the table; CMakeLists.txt runs this file once for each, and sm80 makes all tensors CUDA tensors.
Bounds follow from the arithmetic: a kernel adds chains of at most 512 products in f32 and some tens of partial sums, so an element is off by at most
2^-24 * 600 * sum |a * b|, and by half a unit of bf16 where d is bf16; norm-wise an f32 result is good to 1e-6.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import deep_gemm
from deep_gemm import legacy

FP8, BF16, F32 = torch.float8_e4m3fn, torch.bfloat16, torch.float32
UNTOUCHED = 7.0
ALIGNMENT = 128
IS_CUDA = os.environ.get("DG_BACKEND") == "sm80"

if IS_CUDA:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device", allow_module_level=True)
    torch.set_default_device("cuda")


def row_runs_here() -> bool:
    try:
        deep_gemm.bf16_gemm_nt(torch.zeros(1, 1, dtype=BF16), torch.zeros(1, 1, dtype=BF16), torch.zeros(1, 1))
    except NotImplementedError as error:
        if "cannot run on this machine" in str(error):
            return False
        raise
    return True


pytestmark = pytest.mark.skipif(not row_runs_here(), reason=f"this machine has no {os.environ.get('DG_BACKEND')}")


@pytest.fixture(autouse=True)
def seeded_and_aligned() -> Iterator[None]:
    torch.manual_seed(0)
    deep_gemm.set_mk_alignment_for_contiguous_layout(ALIGNMENT)
    yield
    deep_gemm.set_mk_alignment_for_contiguous_layout(ALIGNMENT)


# ---- operands ------------------------------------------------------------------------------------------------

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def ceil_div(x: int, y: int) -> int:
    return -(-x // y)


@dataclass(frozen=True)
class Format:
    """How an operand [..., mn, k] is given: codes, and scales of blocks of gran_mn x gran_k."""

    codes: str  # "fp8", "fp4", "bf16"
    scales: str = "f32"  # "f32", "packed", "none"
    gran_mn: int = 1
    gran_k: int = 128

    @property
    def recipe(self) -> tuple[int, int]:
        return self.gran_mn, self.gran_k


BF16_FORMAT = Format("bf16", "none")
TOKENS = [
    (Format("fp8"), Format("fp8", gran_mn=128)),
    (Format("fp8", "packed", gran_k=32), Format("fp8", "packed", gran_k=32)),
    (Format("fp8", "packed"), Format("fp8", gran_mn=128)),
    (Format("fp8", "packed", gran_k=32), Format("fp4", "packed", gran_k=32)),
    (Format("fp4", gran_k=32), Format("fp4", gran_k=64)),
    (BF16_FORMAT, BF16_FORMAT),
]
LABELS = [f"{a.codes}-{a.scales}-{a.gran_k}-{b.codes}-{b.scales}-{b.gran_k}" for a, b in TOKENS]
each_format = pytest.mark.parametrize(("a_format", "b_format"), TOKENS, ids=LABELS)


@dataclass
class Operand:
    """What a call gets, and the exact values in float64."""

    codes: Tensor
    scales: Tensor | None
    values: Tensor

    @property
    def argument(self) -> Any:
        return self.codes if self.scales is None else (self.codes, self.scales)

    def with_nan(self, rows: Tensor) -> Operand:
        """The same with NaN wherever the code and the scale of these rows (of the second to last dimension) can say so."""
        codes, scales = self.codes.clone(), None if self.scales is None else self.scales.clone()
        if codes.dtype is BF16:
            codes[..., rows, :] = float("nan")
        else:
            codes.view(torch.uint8)[..., rows, :] = 0x7F
        if scales is not None and scales.shape[-2] == codes.shape[-2]:
            scales[..., rows, :] = -1 if scales.dtype is torch.int32 else float("nan")
        return Operand(codes, scales, self.values)


def make(shape: Sequence[int], form: Format) -> Operand:
    """Random codes and scales: [..., mn, k]."""
    *batch, mn, k = shape
    if form.codes == "bf16":
        codes = torch.randn(*shape).to(BF16)
        return Operand(codes, None, codes.double())
    if form.codes == "fp8":
        codes = torch.randn(*shape).to(FP8)
        values = codes.double()
    else:
        codes = torch.randint(0, 256, (*batch, mn, ceil_div(k, 2)), dtype=torch.uint8)
        values = torch.stack((E2M1[(codes & 15).long()], E2M1[(codes >> 4).long()]), -1).flatten(-2)[..., :k]
        codes = codes.view(torch.int8)
    blocks = (*batch, ceil_div(mn, form.gran_mn), ceil_div(k, form.gran_k))
    if form.scales == "f32":
        scales = torch.rand(blocks) + 0.5
        exact = scales.double()
    else:
        words = ceil_div(blocks[-1], 4)
        exponents = torch.randint(120, 134, (*blocks[:-1], words * 4), dtype=torch.uint8)
        exact = torch.exp2(exponents[..., : blocks[-1]].double() - 127)
        scales = exponents.view(torch.int32) if words > 0 else torch.zeros((*blocks[:-1], 0), dtype=torch.int32)
    full = exact.repeat_interleave(form.gran_mn, -2)[..., :mn, :].repeat_interleave(form.gran_k, -1)[..., :k]
    return Operand(codes, scales, values * full)


def transposed(x: Operand) -> Operand:
    """The last two dimensions exchanged, as compact tensors where the codes allow it (FP4 pairs stay along k)."""
    codes = x.codes.mT if x.codes.dtype is torch.int8 else x.codes.mT.contiguous()
    return Operand(codes, None if x.scales is None else x.scales.mT.contiguous(), x.values.mT)


def output(shape: Sequence[int], dtype: torch.dtype) -> tuple[Tensor, Callable[[], bool]]:
    """A tensor filled with UNTOUCHED inside a larger one, and whether all around it is as it was."""
    whole = torch.full((shape[0] + 2, *shape[1:-1], shape[-1] + 16), UNTOUCHED, dtype=dtype)
    inside = whole[1:-1, ..., 8:-8]

    def is_intact() -> bool:
        around = torch.ones_like(whole, dtype=torch.bool)
        around[1:-1, ..., 8:-8] = False
        return bool((whole[around] == UNTOUCHED).all())

    return inside, is_intact


def check(got: Tensor, a: Tensor, b: Tensor, c: Tensor | None = None) -> None:
    """got = a @ b.T (+ c), a and b in float64."""
    exact = a @ b.mT + (0 if c is None else c.double())
    size = a.abs() @ b.abs().mT + (0 if c is None else c.double().abs())
    bound = 600 * 2.0**-24 * size + (2.0**-8 * exact.abs() if got.dtype is BF16 else 0)
    error = (got.double() - exact).abs()
    assert bool((error <= bound).all()), f"off by {float((error - bound).max())} too much"
    if got.dtype is F32 and exact.numel() > 0:
        assert float(error.norm()) <= 1e-6 * float(size.norm())


def bits(x: Tensor) -> bytes:
    return bytes(x.contiguous().view(torch.uint8).flatten().tolist())


def recipes(a: Format, b: Format) -> dict[str, Any]:
    return {} if a.scales == "none" else {"recipe_a": a.recipe, "recipe_b": b.recipe}


def m_grouped(name: str, a: Format) -> Callable[..., Any]:
    """The operator of this layout: "nt_contiguous", "nn_contiguous", "nt_masked"."""
    return getattr(deep_gemm, f"m_grouped_{'bf16' if a.codes == 'bf16' else 'fp8_fp4'}_gemm_{name}")


# ---- m-grouped, grouped_layout of one entry per row ----------------------------------------------------------


def index_layout(sizes: Sequence[tuple[int, int]], alignment: int = ALIGNMENT) -> Tensor:
    """For (group, rows): the rows, padded with -1 to the alignment."""
    parts = [torch.tensor([g] * rows + [-1] * (-rows % alignment), dtype=torch.int32) for g, rows in sizes]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int32)


@each_format
@pytest.mark.parametrize("order", ["nt", "nn"])
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_index_layout(a_format: Format, b_format: Format, order: str, dtype: torch.dtype) -> None:
    layout = index_layout([(2, 130), (0, 1), (2, 128), (-1, 128), (3, 77)])
    groups, n, k = 4, 70, 328
    a, b = make((len(layout), k), a_format), make((groups, n, k), b_format)
    d, is_intact = output((len(layout), n), dtype)
    tile_groups = layout[::ALIGNMENT].repeat_interleave(ALIGNMENT)
    given = a.with_nan((layout == -1).nonzero().flatten())
    before = [bits(x) for x in (given.codes, b.codes, layout)]
    m_grouped(f"{order}_contiguous", a_format)(
        given.argument, (b if order == "nt" else transposed(b)).argument, d, layout, **recipes(a_format, b_format)
    )
    for g in range(groups):
        rows = layout == g
        check(d[rows], a.values[rows], b.values[g])
    assert bool((d[tile_groups == -1] == UNTOUCHED).all()), "a tile of padding is left alone"
    assert is_intact()
    assert before == [bits(x) for x in (given.codes, b.codes, layout)]


@each_format
def test_a_tile_is_written_to_its_end(a_format: Format, b_format: Format) -> None:
    """The first row of a tile speaks for it: rows marked -1 behind it are products too, and zeros of zero rows."""
    layout = index_layout([(1, 3), (0, 128)])
    a, b = make((256, 136), a_format), make((2, 17, 136), b_format)
    a.codes.view(torch.uint8)[100:128] = 0
    a.values[100:128] = 0
    d = torch.full((256, 17), float("nan"))
    m_grouped("nt_contiguous", a_format)(a.argument, b.argument, d, layout, **recipes(a_format, b_format))
    check(d[:128], a.values[:128], b.values[1])
    assert bool((d[100:128] == 0).all())


@pytest.mark.parametrize("alignment", [1, 8, 40, 224])
def test_the_alignment_is_the_setting(alignment: int) -> None:
    deep_gemm.set_mk_alignment_for_contiguous_layout(alignment)
    layout = index_layout([(0, 3), (1, 50), (-1, alignment), (1, 1), (2, 225)], alignment)
    a, b = make((len(layout), 256), Format("fp8")), make((3, 20, 256), Format("fp8", gran_mn=128))
    d = torch.full((len(layout), 20), UNTOUCHED)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a.argument, b.argument, d, layout)
    for g in range(3):
        check(d[layout == g], a.values[layout == g], b.values[g])


def test_the_last_tile_may_be_cut() -> None:
    layout = torch.zeros(140, dtype=torch.int32)
    a, b = make((140, 96), BF16_FORMAT), make((1, 5, 96), BF16_FORMAT)
    d, is_intact = output((140, 5), F32)
    deep_gemm.m_grouped_bf16_gemm_nt_contiguous(a.argument, b.argument, d, layout)
    check(d, a.values, b.values[0])
    assert is_intact()


@pytest.mark.parametrize("gran_mn", [3, 32, 1000])
def test_blocks_of_scales_may_span_groups(gran_mn: int) -> None:
    deep_gemm.set_mk_alignment_for_contiguous_layout(8)
    a_format = Format("fp8", gran_mn=gran_mn, gran_k=64)
    layout = index_layout([(0, 8), (1, 40), (0, 8), (2, 16)], 8)
    a, b = make((72, 200), a_format), make((3, 12, 200), Format("fp8", gran_mn=4, gran_k=64))
    d = torch.zeros(72, 12)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a.argument, b.argument, d, layout, recipe=(gran_mn, 4, 64))
    for g in range(3):
        check(d[layout == g], a.values[layout == g], b.values[g])


def test_a_group_sees_no_other() -> None:
    layout = index_layout([(0, 128), (1, 128), (2, 128)])
    a, b = make((384, 256), Format("fp8")), make((3, 40, 256), Format("fp8", gran_mn=128))
    d = torch.zeros(384, 40)
    b.codes[1].view(torch.uint8).fill_(0x7F)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a.argument, b.argument, d, layout)
    assert bool(d[128:256].isnan().all())
    check(d[:128], a.values[:128], b.values[0])
    check(d[256:], a.values[256:], b.values[2])


def test_views() -> None:
    """Rows of a, of scales, of weights and of d at distances of their own."""
    layout = index_layout([(1, 128), (0, 20)])
    m, n, k = len(layout), 24, 264
    a, b = make((m, k), Format("fp8")), make((2, n, k), Format("fp8", gran_mn=128))
    assert a.scales is not None and b.scales is not None
    wide_a, wide_b = torch.zeros(m, k + 5).to(FP8), torch.zeros(n, 2, k + 3).to(FP8)
    wide_a[:, 5:], wide_b[..., 3:] = a.codes, b.codes.transpose(0, 1)
    mn_major = a.scales.T.contiguous().T
    spread = torch.zeros(2, n // 128 + 1, 9)
    spread[..., ::3] = b.scales
    interleaved = torch.stack((layout, torch.full_like(layout, 99)), 1)[:, 0]
    d, is_intact = output((m, n), BF16)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(
        (wide_a[:, 5:], mn_major), (wide_b[..., 3:].transpose(0, 1), spread[..., ::3]), d, interleaved
    )
    for g in range(2):
        check(d[layout == g], a.values[layout == g], b.values[g])
    assert is_intact()


# ---- m-grouped, psum -----------------------------------------------------------------------------------------


def psum_layout(sizes: Sequence[int], alignment: int = ALIGNMENT) -> tuple[Tensor, list[slice], int]:
    """Ends, the rows of each group, and all rows with padding."""
    ends, rows, end = [], [], 0
    for size in sizes:
        begin = ceil_div(end, alignment) * alignment
        end = begin + size
        ends.append(end)
        rows.append(slice(begin, end))
    return torch.tensor(ends, dtype=torch.int32), rows, ceil_div(end, alignment) * alignment


@each_format
@pytest.mark.parametrize("order", ["nt", "nn"])
@pytest.mark.parametrize("ensure_zero_padding", [True, False])
def test_psum_layout(a_format: Format, b_format: Format, order: str, ensure_zero_padding: bool) -> None:
    deep_gemm.set_mk_alignment_for_contiguous_layout(32)
    ends, groups, used = psum_layout([5, 0, 64, 0, 33, 1, 0], 32)
    m, n, k = used + 32, 30, 200
    is_gap = torch.ones(m, dtype=torch.bool)
    for rows in groups:
        is_gap[rows] = False
    a, b = make((m, k), a_format), make((len(groups), n, k), b_format)
    d, is_intact = output((m, n), BF16)
    m_grouped(f"{order}_contiguous", a_format)(
        a.with_nan(is_gap.nonzero().flatten()).argument,
        (b if order == "nt" else transposed(b)).argument,
        d,
        ends,
        use_psum_layout=True,
        ensure_zero_padding=ensure_zero_padding,
        **recipes(a_format, b_format),
    )
    for g, rows in enumerate(groups):
        check(d[rows], a.values[rows], b.values[g])
    if ensure_zero_padding:
        assert bool((d[:used][is_gap[:used]] == 0).all())
    assert bool((d[used:] == UNTOUCHED).all()), "rows behind the last group are nobody's"
    assert is_intact()


def test_psum_ends() -> None:
    """An empty group may repeat the end before it; sizes may be aligned ones; the last padding ends with d."""
    a, b = make((150, 64), BF16_FORMAT), make((4, 8, 64), BF16_FORMAT)
    d = torch.full((150, 8), UNTOUCHED)
    ends = torch.tensor([100, 100, 128, 140], dtype=torch.int32)
    deep_gemm.m_grouped_bf16_gemm_nt_contiguous(a.argument, b.argument, d, ends, use_psum_layout=True, expected_m_for_psum_layout=3)
    check(d[:100], a.values[:100], b.values[0])
    check(d[128:140], a.values[128:140], b.values[3])
    assert bool((d[100:128] == 0).all() and (d[140:] == 0).all())


# ---- masked --------------------------------------------------------------------------------------------------


@each_format
@pytest.mark.parametrize("groups", [1, 3, 5, 7])
def test_masked(a_format: Format, b_format: Format, groups: int) -> None:
    max_m, n, k = 37, 33, 264
    masked_m = torch.randint(0, max_m + 1, (groups,), dtype=torch.int32)
    masked_m[0], masked_m[-1] = 0, max_m
    a, b = make((groups, max_m, k), a_format), make((groups, n, k), b_format)
    given = Operand(a.codes.clone(), None if a.scales is None else a.scales.clone(), a.values)
    for g, rows in enumerate(masked_m.tolist()):
        hidden = Operand(a.codes[g], None if a.scales is None else a.scales[g], a.values[g]).with_nan(torch.arange(rows, max_m))
        given.codes[g] = hidden.codes
        if given.scales is not None and hidden.scales is not None:
            given.scales[g] = hidden.scales
    d, is_intact = output((groups, max_m, n), BF16)
    m_grouped("nt_masked", a_format)(given.argument, b.argument, d, masked_m, 1000, **recipes(a_format, b_format))
    for g, rows in enumerate(masked_m.tolist()):
        check(d[g, :rows], a.values[g, :rows], b.values[g])
        assert bool((d[g, rows:] == UNTOUCHED).all()), "masked rows are left alone"
    assert is_intact()


def test_masked_with_all_groups_empty() -> None:
    a, b = make((2, 8, 64), BF16_FORMAT), make((2, 4, 64), BF16_FORMAT)
    d = torch.full((2, 8, 4), UNTOUCHED)
    deep_gemm.m_grouped_bf16_gemm_nt_masked(a.argument, b.argument, d, torch.zeros(2, dtype=torch.int32), 8)
    assert bool((d == UNTOUCHED).all())


# ---- k-grouped -----------------------------------------------------------------------------------------------


@dataclass
class KGrouped:
    """One side of a k-grouped product in float64, [size, mn] by group, and its codes and scales by group."""

    codes: list[Tensor]
    scales: list[Tensor]
    values: list[Tensor]

    def stacked(self, begins: Sequence[int], rows: int) -> Tensor:
        """All groups one below the other, the rows between them NaN."""
        whole = torch.full((rows, self.codes[0].shape[1]), float("nan")).to(self.codes[0].dtype)
        for begin, codes in zip(begins, self.codes):
            whole[begin : begin + len(codes)] = codes
        return whole

    def flat(self) -> Tensor:
        """Group after group, each a compact [mn, size]."""
        return torch.cat([codes.T.contiguous().flatten() for codes in self.codes])


def k_grouped_side(sizes: Sequence[int], mn: int, form: Format) -> KGrouped:
    sides = [make((mn, size), form) for size in sizes]
    scales = [x.scales.T.contiguous() for x in sides if x.scales is not None]
    return KGrouped([x.codes.T.contiguous() for x in sides], scales, [x.values for x in sides])


def check_groups(d: Tensor, a: KGrouped, b: KGrouped, c: Tensor | None) -> None:
    for g, (x, y) in enumerate(zip(a.values, b.values)):
        check(d[g], x, y, None if c is None else c[g])


K_FORMATS = [Format("fp8"), Format("fp8", gran_k=32), Format("fp8", "packed"), Format("fp8", "packed", gran_k=32), BF16_FORMAT]
each_k_format = pytest.mark.parametrize("form", K_FORMATS, ids=lambda f: f"{f.codes}-{f.scales}-{f.gran_k}")
each_c = pytest.mark.parametrize("with_c", ["none", "other", "same"])


def k_grouped_tn(a: KGrouped, b: KGrouped, form: Format, begins: Sequence[int], rows: int, d: Tensor, *rest: Any, **named: Any) -> None:
    x, y = a.stacked(begins, rows), b.stacked(begins, rows)
    if form.codes == "bf16":
        deep_gemm.k_grouped_bf16_gemm_tn_contiguous(x, y, d, *rest, **named)
    else:
        pairs = (x, torch.cat(a.scales)), (y, torch.cat(b.scales))
        deep_gemm.k_grouped_fp8_gemm_tn_contiguous(*pairs, d, *rest, recipe=(1, 1, form.gran_k), **named)


def result_and_c(shape: Sequence[int], dtype: torch.dtype, with_c: str) -> tuple[Tensor, Callable[[], bool], Tensor | None, Tensor | None]:
    """d, whether its surroundings are intact, c as given, and what it held."""
    d, is_intact = output(shape, dtype)
    if with_c == "none":
        return d, is_intact, None, None
    start = torch.randn(*shape).to(dtype) * 8
    d.copy_(start) if with_c == "same" else None
    return d, is_intact, d if with_c == "same" else start, start.clone()


@each_k_format
@each_c
@pytest.mark.parametrize("sizes", [[128, 0, 640, 256], [0, 128, 100, 0], [0, 0], [1, 33, 7]], ids=str)
def test_k_grouped_tn(form: Format, with_c: str, sizes: list[int]) -> None:
    a, b = k_grouped_side(sizes, 21, form), k_grouped_side(sizes, 18, form)
    begins = [sum(sizes[:g]) for g in range(len(sizes))]
    dtype = BF16 if form.gran_k == 32 else F32
    d, is_intact, c, start = result_and_c((len(sizes), 21, 18), dtype, with_c)
    layout = torch.tensor(sizes, dtype=torch.int32)
    k_grouped_tn(a, b, form, begins, sum(sizes), d, sizes, layout, c)
    check_groups(d, a, b, start)
    assert is_intact()


@pytest.mark.parametrize("form", [f for f in K_FORMATS if f.codes == "fp8"], ids=lambda f: f"{f.codes}-{f.scales}-{f.gran_k}")
@each_c
@pytest.mark.parametrize("shape", [(24, 768, [128, 256, 128, 512]), (19, 40, [0, 128, 64, 0]), (192, 30, [128, 256]), (5, 9, [3, 130])], ids=str)
def test_k_grouped_nt(form: Format, with_c: str, shape: tuple[int, int, list[int]]) -> None:
    m, n, sizes = shape
    a, b = k_grouped_side(sizes, m, form), k_grouped_side(sizes, n, form)
    d, is_intact, c, start = result_and_c((len(sizes), m, n), F32, with_c)
    layout = torch.tensor(sizes, dtype=torch.int32)
    pairs = (a.flat(), torch.cat(a.scales).T), (b.flat(), torch.cat(b.scales).T)
    deep_gemm.k_grouped_fp8_gemm_nt_contiguous(*pairs, d, sizes, layout, c, recipe=(1, 1, form.gran_k))
    check_groups(d, a, b, start)
    assert is_intact()


@each_k_format
@each_c
@pytest.mark.parametrize("ks", ["absent", "empty", "aligned"])
def test_k_grouped_psum(form: Format, with_c: str, ks: str) -> None:
    sizes = [70, 0, 128, 1, 0, 200]
    ends, groups, rows = psum_layout(sizes)
    a, b = k_grouped_side(sizes, 21, form), k_grouped_side(sizes, 18, form)
    d, is_intact, c, start = result_and_c((len(sizes), 21, 18), F32, with_c)
    ks_cpu = {"absent": None, "empty": [], "aligned": [ceil_div(size, ALIGNMENT) * ALIGNMENT for size in sizes]}[ks]
    k_grouped_tn(a, b, form, [g.start for g in groups], rows, d, ks_cpu, ends, c, use_psum_layout=True)
    check_groups(d, a, b, start)
    assert is_intact()


@pytest.mark.parametrize("m", [1, 133, 1538])
def test_k_grouped_with_odd_m(m: int) -> None:
    a, b = k_grouped_side([512], m, BF16_FORMAT), k_grouped_side([512], 64, BF16_FORMAT)
    start = torch.randn(1, m, 64)
    d = start.clone()
    k_grouped_tn(a, b, BF16_FORMAT, [0], 512, d, [512], torch.tensor([512], dtype=torch.int32), d)
    check_groups(d, a, b, start)


# ---- many and few --------------------------------------------------------------------------------------------


def test_bits_do_not_depend_on_threads_or_on_the_call() -> None:
    """Groups of very different sizes: some have all threads, others share them."""
    deep_gemm.set_mk_alignment_for_contiguous_layout(1)
    layout = index_layout([(0, 300)] + [(g, 1 + g % 5) for g in range(1, 40)], 1)
    a, b = make((len(layout), 384), Format("fp8")), make((40, 100, 384), Format("fp8", gran_mn=128))
    results = []
    threads = torch.get_num_threads()
    for count in (threads, 1, 3, threads):
        torch.set_num_threads(count)
        d = torch.zeros(len(layout), 100)
        deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a.argument, b.argument, d, layout)
        results.append(bits(d))
    torch.set_num_threads(threads)
    assert len(set(results)) == 1
    for g in range(40):
        check(d[layout == g], a.values[layout == g], b.values[g])


@pytest.mark.skipif(IS_CUDA, reason="on CUDA a GEMM of few rows has a kernel of its own")
def test_a_group_alone_and_among_others_is_the_same() -> None:
    a, b = make((3, 16, 256), Format("fp8")), make((3, 50, 256), Format("fp8", gran_mn=128))
    assert a.scales is not None and b.scales is not None
    d, one = torch.zeros(3, 16, 50), torch.zeros(16, 50)
    deep_gemm.m_grouped_fp8_gemm_nt_masked(a.argument, b.argument, d, torch.full((3,), 16, dtype=torch.int32), 16)
    deep_gemm.fp8_gemm_nt((a.codes[1], a.scales[1]), (b.codes[1], b.scales[1]), one)
    assert bits(d[1]) == bits(one)


EMPTY = [(0, 2, 8, 64), (128, 0, 8, 64), (128, 2, 0, 64), (128, 2, 8, 0)]


@pytest.mark.parametrize(("m", "groups", "n", "k"), EMPTY)
def test_empty(m: int, groups: int, n: int, k: int) -> None:
    a, b = make((m, k), BF16_FORMAT), make((groups, n, k), BF16_FORMAT)
    d = torch.full((m, n), UNTOUCHED)
    deep_gemm.m_grouped_bf16_gemm_nt_contiguous(a.argument, b.argument, d, torch.full((m,), -1 if groups == 0 else 0, dtype=torch.int32))
    assert bool((d == (UNTOUCHED if groups == 0 else 0)).all())
    d3 = torch.full((groups, m, n), UNTOUCHED)
    sizes = torch.full((groups,), m, dtype=torch.int32)
    deep_gemm.m_grouped_bf16_gemm_nt_masked(torch.zeros(groups, m, k, dtype=BF16), b.argument, d3, sizes, 1)
    assert bool((d3 == 0).all())
    dk = torch.full((groups, m, n), UNTOUCHED)
    ks = [k] * groups
    x, y = torch.zeros(k * groups, m, dtype=BF16), torch.zeros(k * groups, n, dtype=BF16)
    if groups > 0:  # without groups there is no ks_cpu to give
        deep_gemm.k_grouped_bf16_gemm_tn_contiguous(x, y, dk, ks, torch.tensor(ks, dtype=torch.int32))
    assert bool((dk == 0).all())


@pytest.mark.skipif("DG_SLOW" not in os.environ, reason="2.3 GB; the test torch.grouped_slow has it")
def test_weights_beyond_2_31_elements() -> None:
    groups, n, k = 33, 8192, 8192
    b = torch.zeros(groups, n, k, dtype=torch.uint8).view(FP8)
    last = make((n, k), Format("fp8", gran_mn=128))
    b[-1] = last.codes
    a = make((groups, 2, k), Format("fp8"))
    assert last.scales is not None
    d = torch.full((groups, 2, n), UNTOUCHED)
    masked_m = torch.zeros(groups, dtype=torch.int32)
    masked_m[-1] = 2
    scales = torch.ones(groups, n // 128, k // 128)
    scales[-1] = last.scales
    deep_gemm.m_grouped_fp8_gemm_nt_masked(a.argument, (b, scales), d, masked_m, 2)
    check(d[-1], a.values[-1], last.values)
    assert bool((d[:-1] == UNTOUCHED).all())


# ---- errors --------------------------------------------------------------------------------------------------


def i32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def m_call(layout: Tensor, **named: Any) -> Callable[[Tensor], None]:
    a, b = torch.zeros(256, 32, dtype=BF16), torch.zeros(2, 8, 32, dtype=BF16)
    return lambda d: deep_gemm.m_grouped_bf16_gemm_nt_contiguous(a, b, d, layout, **named)


def masked_call(masked_m: Tensor) -> Callable[[Tensor], None]:
    a, b = torch.zeros(2, 128, 32, dtype=BF16), torch.zeros(2, 8, 32, dtype=BF16)
    return lambda d: deep_gemm.m_grouped_bf16_gemm_nt_masked(a, b, d.view(2, 128, 8), masked_m, 128)


def k_call(ks_cpu: list[int] | None, layout: Tensor, **named: Any) -> Callable[[Tensor], None]:
    a, b = torch.zeros(256, 128, dtype=BF16), torch.zeros(256, 8, dtype=BF16)
    return lambda d: deep_gemm.k_grouped_bf16_gemm_tn_contiguous(a, b, d.view(2, 128, 8), ks_cpu, layout, **named)


def k_fp8_call(sf_rows: int, layout: Tensor) -> Callable[[Tensor], None]:
    a, b = torch.zeros(256, 128).to(FP8), torch.zeros(256, 8).to(FP8)
    pairs = (a, torch.ones(2, 128)), (b, torch.ones(sf_rows, 8))
    return lambda d: deep_gemm.k_grouped_fp8_gemm_tn_contiguous(*pairs, d.view(2, 128, 8), None, layout, use_psum_layout=True)


def flat_call(a_size: int, ks_cpu: list[int] | None, **named: Any) -> Callable[[Tensor], None]:
    a, b = torch.zeros(a_size).to(FP8), torch.zeros(8 * 256).to(FP8)
    pairs = (a, torch.ones(128, 2)), (b, torch.ones(8, 2))
    return lambda d: deep_gemm.k_grouped_fp8_gemm_nt_contiguous(*pairs, d.view(2, 128, 8), ks_cpu, i32(128, 128), **named)


def fp4_call() -> Callable[[Tensor], None]:
    """FP4 pairs along the rows of a, and a group that begins at an odd one."""

    def call(d: Tensor) -> None:
        deep_gemm.set_mk_alignment_for_contiguous_layout(3)
        a = torch.zeros(32, 128, dtype=torch.int8).T
        b = torch.zeros(2, 8, 16, dtype=torch.int8)
        layout = torch.tensor([0] * 3 + [1] * 253, dtype=torch.int32)
        pairs = (a, torch.ones(256, 1)), (b, torch.ones(2, 8, 1))
        deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(*pairs, d, layout, recipe=(1, 1, 32))

    return call


MIXED = torch.zeros(256, dtype=torch.int32).index_fill(0, torch.tensor([130]), 1)
BEHIND = torch.full((256,), -1, dtype=torch.int32).index_fill(0, torch.tensor([5]), 1)
TILES = "rows are taken in tiles of get_mk_alignment_for_contiguous_layout() = 128, expected the group of the first row, or -1"
ENDS = "the ends of groups do not decrease and do not exceed the rows of a"
ERRORS: list[tuple[Callable[[Tensor], None], str]] = [
    (m_call(torch.full((256,), 2, dtype=torch.int32)), "grouped_layout[0] is 2, expected -1 .. 1: b has 2 groups"),
    (m_call(torch.full((256,), -2, dtype=torch.int32)), "grouped_layout[0] is -2, expected -1 .. 1: b has 2 groups"),
    (m_call(MIXED), f"grouped_layout[130] is 1, but the tile that begins with row 128 is of 0: {TILES}"),
    (m_call(BEHIND), f"grouped_layout[5] is 1, but the tile that begins with row 0 is of -1: {TILES}"),
    (m_call(i32(128, 127), use_psum_layout=True), f"grouped_layout[1] is 127, expected 128 .. 256: {ENDS}"),
    (m_call(i32(-1, 127), use_psum_layout=True), f"grouped_layout[0] is -1, expected 0 .. 256: {ENDS}"),
    (m_call(i32(128, 257), use_psum_layout=True), f"grouped_layout[1] is 257, expected 128 .. 256: {ENDS}"),
    (masked_call(i32(128, 129)), "masked_m[1] is 129, expected 0 .. 128: a has so many rows per group"),
    (masked_call(i32(-1, 0)), "masked_m[0] is -1, expected 0 .. 128: a has so many rows per group"),
    (k_call([128, 128], i32(128, 64)), "grouped_layout[1] is 64, expected 128 to match ks_cpu"),
    (k_call([128, 64], i32(128, 64)), "the entries of ks_cpu must sum up to the rows of a, got has_ks = 1, sum_ceil(ks_cpu / 1) = 192, sum_k = 256"),
    (k_call([256], i32(128, 128)), "ks_cpu needs one entry per group, got has_ks = 1, len(ks_cpu) = 1, groups = 2"),
    (k_call(None, i32(128, 128)), "ks_cpu may be absent or empty only with use_psum_layout, got has_ks = 0, use_psum_layout = false"),
    (k_call(None, i32(128, 300), use_psum_layout=True), f"grouped_layout[1] is 300, expected 128 .. 256: {ENDS}"),
    (k_fp8_call(1, i32(128, 256)), "b[1] has 1 rows, expected 2 or more for the groups of grouped_layout"),
    (flat_call(128 * 256 - 1, [128, 128]), "a[0] has 32767 elements, expected 256 * 128 = (sum of ks_cpu) * m"),
    (flat_call(128 * 256, None), "ks_cpu is needed: the groups have no fixed distance between rows, got given(ks_cpu) = false"),
    (flat_call(128 * 256, [128, 128], use_psum_layout=True), "use_psum_layout needs the tn layout, got use_psum_layout = true"),
    (fp4_call(), "a[0] has FP4 pairs along its rows, and group 1 begins at row 3, expected pairs within each group"),
]


READ_FROM_LAYOUTS = ("grouped_layout[", "masked_m[", "b[1] has 1 rows", "a[0] has FP4 pairs along its rows")


@pytest.mark.parametrize(("call", "text"), ERRORS, ids=range(len(ERRORS)))
def test_errors_before_anything_is_written(call: Callable[[Tensor], None], text: str) -> None:
    if IS_CUDA and text.startswith(READ_FROM_LAYOUTS):
        pytest.skip("on CUDA layouts are not read on the host")
    d = torch.full((256, 8), UNTOUCHED)
    with pytest.raises(ValueError) as caught:
        call(d)
    assert str(caught.value).partition(": ")[2] == text
    assert bool((d == UNTOUCHED).all())


# ---- without scales ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("codes", [BF16, FP8])
@pytest.mark.parametrize("dtype", [BF16, F32])
@each_c
def test_cublaslt(order: str, codes: torch.dtype, dtype: torch.dtype, with_c: str) -> None:
    a, b = torch.randn(37, 300).to(codes), torch.randn(50, 300).to(codes)
    d, is_intact, c, start = result_and_c((37, 50), dtype, with_c)
    x = a if order[0] == "n" else a.T.contiguous()
    y = b if order[1] == "t" else b.T.contiguous()
    getattr(deep_gemm, f"cublaslt_gemm_{order}")(x, y, d, c)
    check(d, a.double(), b.double(), start)
    assert is_intact()


# ---- deep_gemm.legacy ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["nt", "nn"])
@pytest.mark.parametrize("is_fused", [False, True])
def test_legacy_m_grouped(order: str, is_fused: bool) -> None:
    layout = index_layout([(1, 128), (-1, 128), (0, 30), (2, 200)])
    b = make((3, 24, 80), BF16_FORMAT)
    rows = torch.randint(-1, 50, (len(layout),), dtype=torch.int32) if is_fused else torch.arange(len(layout), dtype=torch.int32)
    source = make((50 if is_fused else len(layout), 80), BF16_FORMAT)
    a = torch.where((rows >= 0)[:, None], source.values[rows.long()], 0)
    d = torch.full((len(layout), 24), float("nan"), dtype=BF16)
    given_b = b.codes if order == "nt" else b.codes.mT.contiguous()
    if is_fused:
        getattr(legacy, f"a_fused_m_grouped_bf16_gemm_{order}_contiguous_tl")(source.codes, given_b, d, (layout, rows))
    else:
        getattr(legacy, f"m_grouped_bf16_gemm_{order}_contiguous_tl")(source.codes, given_b, d, layout)
    for g in range(3):
        check(d[layout == g], a[layout == g], b.values[g])
    assert bool((d[layout[::ALIGNMENT].repeat_interleave(ALIGNMENT) == -1] == 0).all()), "tiles of padding become 0"


@pytest.mark.parametrize("fused", ["a", "b"])
@pytest.mark.parametrize("acc", [False, True])
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_legacy_k_grouped(fused: str, acc: bool, dtype: torch.dtype) -> None:
    k_start, k_end = i32(0, 128, 128, 256), i32(128, 128, 256, 500)
    k_indices = torch.randint(-1, 60, (512,), dtype=torch.int32)
    gathered, plain = make((60, 20), BF16_FORMAT), make((512, 20), BF16_FORMAT)
    values = torch.where((k_indices >= 0)[:, None], gathered.values[k_indices.long()], 0)
    x, y = (gathered.codes, plain.codes) if fused == "a" else (plain.codes, gathered.codes)
    left, right = (values, plain.values) if fused == "a" else (plain.values, values)
    start = torch.randn(4, 20, 20).to(dtype)
    d = start.clone()
    getattr(legacy, f"{fused}_fused_k_grouped_bf16_gemm_tn_contiguous_tl")(x, y, d, (k_indices, k_start, k_end), acc)
    for g, (begin, end) in enumerate(zip(k_start.tolist(), k_end.tolist())):
        check(d[g], left[begin:end].T, right[begin:end].T, start[g] if acc else None)
