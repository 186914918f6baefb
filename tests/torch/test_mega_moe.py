"""Mega MoE on one rank against its formula in float64, step by step: what dispatch, SwiGLU and the second layer leave in the symmetric
buffer, then y. The layout of the buffer against the formulas of its documentation, and calls that are refused.

DG_BACKEND in the environment forces a row of the GEMMs; CMakeLists.txt runs this file once for each, and sm80 makes all tensors CUDA
tensors. Bounds follow from the arithmetic: a GEMM adds chains of at most 512 products in f32 and some tens of partial sums, so a sum is off
by at most 2^-24 * 600 * sum |a * b|. SwiGLU is exact to a rounding of f32 on the CPU, and to some of them on CUDA. A code of h may then differ
by one step from the formula's, where that is as close to h.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import deep_gemm
from deep_gemm import _C, mega
from deep_gemm.utils import expressions

FP8, BF16, F32, F64 = torch.float8_e4m3fn, torch.bfloat16, torch.float32, torch.float64
SUM_ERROR = 2.0**-24 * 600
NAN_CODE = 0x7F
ALIGNMENT = 384
IS_CUDA = os.environ.get("DG_BACKEND") == "sm80"
SWIGLU_ERROR = 2.0**-24 * (8 if IS_CUDA else 1)  # of h

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


needs_row = pytest.mark.skipif(not row_runs_here(), reason=f"this machine has no {os.environ.get('DG_BACKEND')}")


# ---- one layer -----------------------------------------------------------------------------------------------


@dataclass
class Case:
    """Sizes of a layer and of a call, and how tokens choose experts."""

    mma_type: str
    tokens: int
    experts: int
    topk: int
    hidden: int
    intermediate: int
    routes: str = "random"  # "masked": half of them -1; "one": all to one expert; "none": all -1; "twice": an expert twice per token
    clamp: float | None = None
    scale: float = 1.0  # of the weights of L1
    ring: str = "greatest"

    @property
    def is_fp8(self) -> bool:
        return self.mma_type == "fp8xfp4"

    def __str__(self) -> str:
        sizes = f"{self.tokens}x{self.experts}x{self.topk}x{self.hidden}x{self.intermediate}"
        return f"{self.mma_type}-{sizes}-{self.routes}-{self.clamp}-{self.ring}"


CASES = [
    Case(mma_type, *sizes, **more)  # type: ignore[arg-type]
    for mma_type in ("fp8xfp4", "bf16xbf16")
    for sizes, more in [
        ((1, 1, 1, 128, 128), {}),
        ((7, 4, 2, 256, 128), {}),
        ((7, 4, 2, 256, 128), {"ring": "least"}),
        ((33, 8, 3, 384, 256), {"clamp": 1.5}),
        ((33, 8, 3, 128, 640), {"routes": "masked", "clamp": 0.25}),
        ((40, 5, 2, 256, 256), {"routes": "one"}),
        ((300, 3, 4, 128, 128), {"routes": "twice", "ring": "least"}),
        ((9, 4, 2, 256, 128), {"routes": "none"}),
        ((5, 2, 2, 128, 128), {"clamp": 0.0}),
        ((17, 300, 2, 128, 128), {"scale": 1e-6}),  # most experts are empty, and the scales of h as small as they get
        ((0, 4, 2, 256, 128), {}),
        ((4, 2, 1, 0, 128), {}),
        ((4, 2, 1, 128, 0), {}),
    ]
]


@dataclass
class Layer:
    """Everything of one call: operands as callers have them, their values in float64, and the buffer."""

    case: Case
    buffer: mega.SymmBuffer
    l1: Any
    l2: Any
    x: Tensor  # values [tokens, hidden]
    w1: Tensor  # values [experts, 2 * intermediate, hidden], gate then up
    w2: Tensor
    topk_idx: Tensor
    topk_weights: Tensor
    y: Tensor = field(init=False)
    stats: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.y = torch.full((self.case.tokens, self.case.hidden), float("nan"), dtype=BF16)
        self.stats = torch.arange(self.case.experts, dtype=torch.int32)

    def run(self) -> None:
        operator: Any = deep_gemm.fp8_fp4_mega_moe if self.case.is_fp8 else deep_gemm.bf16_mega_moe
        operator(self.y, self.l1, self.l2, self.buffer, self.stats, activation_clamp=self.case.clamp)


def values_of(codes: Tensor, sf: Tensor) -> Tensor:
    """FP8 codes with packed scales, one per 32 columns."""
    scales = deep_gemm.unpack_ue8m0_from_int(sf).double() if sf.numel() else torch.ones(*sf.shape[:-1], 4 * sf.size(-1), dtype=F64)
    return codes.double() * scales.repeat_interleave(32, -1)[..., : codes.size(-1)]


def fp4_weights(w: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Pairs and packed scales of each expert, and their values."""
    experts, n, k = w.shape
    if w.numel() == 0:
        pair = (torch.empty(experts, n, k // 2, dtype=torch.int8), torch.empty(experts, n, k // 128, dtype=torch.int32))
        return pair, w.double()
    codes, sf = expressions.per_token_cast_to_fp4(w.view(-1, k), True, 32, True)
    values = expressions.cast_back_from_fp4(codes, sf, 32, True).double()
    return (codes.view(experts, n, k // 2), sf.view(experts, n, -1)), values.view(w.shape)


def routes_of(case: Case) -> Tensor:
    shape = (case.tokens, case.topk)
    match case.routes:
        case "random":
            return torch.rand(case.tokens, case.experts).topk(case.topk, dim=1).indices
        case "masked":
            return torch.where(torch.rand(shape) < 0.5, -1, torch.randint(case.experts, shape))
        case "one":
            return torch.cat([torch.full((case.tokens, 1), 3), torch.full((case.tokens, case.topk - 1), -1)], 1)
        case "none":
            return torch.full(shape, -1)
        case _:
            return torch.randint(case.experts, (case.tokens, 1)).expand(shape).contiguous()


def symm_buffer(case: Case, max_tokens: int = ALIGNMENT) -> mega.SymmBuffer:
    limits = _C.get_ring_limit_for_mega_moe(max_tokens, case.experts, case.topk, 1)
    ring = limits[case.ring == "greatest"]
    return mega.SymmBuffer(
        None, case.experts, max_tokens, case.topk, case.hidden, case.intermediate, ring, case.mma_type  # type: ignore[arg-type]
    )


def make(case: Case) -> Layer:
    torch.manual_seed(0)
    buffer = symm_buffer(case)
    buffer.buffer.fill_(-1)  # NaN in every format; whatever is not a token of the call must not be read
    x = torch.randn(case.tokens, case.hidden)
    w1 = torch.randn(case.experts, 2 * case.intermediate, case.hidden) * (case.scale / max(case.hidden, 1) ** 0.5)
    w2 = torch.randn(case.experts, case.hidden, case.intermediate)
    if case.is_fp8:
        assert buffer.x_sf is not None
        codes, sf = expressions.per_token_cast_to_fp8(x, True, 32, True)
        buffer.x[: case.tokens], buffer.x_sf[: case.tokens] = codes, sf
        x = values_of(codes, sf)
        l1, w1 = fp4_weights(w1)
        l2, w2 = fp4_weights(w2)
        l1, l2 = deep_gemm.transform_weights_for_mega_moe(l1, l2)
    else:
        buffer.x[: case.tokens] = x.bfloat16()
        x, w1, w2 = x.bfloat16().double(), w1.bfloat16(), w2.bfloat16()
        l1, l2 = deep_gemm.transform_weights_for_mega_moe(w1, w2)
        w1, w2 = w1.double(), w2.double()
    topk_idx = routes_of(case)
    topk_weights = torch.rand(case.tokens, case.topk).masked_fill(topk_idx < 0, float("nan"))
    buffer.topk_idx[: case.tokens], buffer.topk_weights[: case.tokens] = topk_idx, topk_weights
    return Layer(case, buffer, l1, l2, x, w1, w2, topk_idx, topk_weights)


@dataclass
class Rows:
    """The rows that one expert gets: places in the ring, experts one after the other and tokens in their order."""

    expert: int
    ring: slice
    tokens: Tensor
    ks: Tensor


def rows_of(layer: Layer) -> list[Rows]:
    found, begin = [], 0
    for expert in range(layer.case.experts):
        tokens, ks = (layer.topk_idx == expert).nonzero(as_tuple=True)
        if len(tokens):
            found.append(Rows(expert, slice(begin, begin + len(tokens)), tokens, ks))
            begin += len(tokens)
    return found


def activated(layer: Layer, rows: Rows) -> tuple[Tensor, Tensor]:
    """h of an expert's rows in float64, and how far an f32 kernel may be from it."""
    case, w, x = layer.case, layer.w1[rows.expert].T, layer.x[rows.tokens]
    n = case.intermediate
    gate, up = (x @ w)[:, :n], (x @ w)[:, n:]
    error = SUM_ERROR * (x.abs() @ w.abs())
    gate_error, up_error = error[:, :n], error[:, n:]
    if case.clamp is not None:
        gate, up = gate.clamp(max=case.clamp), up.clamp(-case.clamp, case.clamp)
    weight = layer.topk_weights[rows.tokens, rows.ks].double()[:, None]
    silu = gate * gate.sigmoid()
    error = weight * (1.1 * gate_error * up.abs() + silu.abs() * up_error + gate_error * up_error)  # |silu'| < 1.1
    h = silu * up * weight
    return h, error + SWIGLU_ERROR * h.abs() + 2.0**-150


def check_codes(codes: Tensor, sf: Tensor, h: Tensor, error: Tensor) -> None:
    """The codes are those of values within `error` of h: the scale fits the largest one, and each code is next to it."""
    blocks = (len(h), -1, 32)
    most, least = ((h.abs() + e).view(blocks).amax(2).float().clamp(min=1e-4) / 448 for e in (error, -error))
    scale = deep_gemm.unpack_ue8m0_from_int(sf)
    assert bool((deep_gemm.ceil_to_ue8m0(least) <= scale).all()), "a scale is too small"
    assert bool((scale <= deep_gemm.ceil_to_ue8m0(most)).all()), "a scale is too large"
    scale = scale.double().repeat_interleave(32, 1)
    step = (h.abs() / scale).log2().floor().clamp(min=-6).exp2() / 8  # between the codes around h
    assert bool(((codes.double() * scale - h).abs() <= step * scale * 0.5001 + error * 1.0001).all())


def rounded(layer: Layer, rows: Rows) -> tuple[Tensor, Tensor]:
    """What h is rounded to, and how far the kernel's may be from it. While the ring holds all rows, the buffer tells."""
    buffer, is_fp8 = layer.buffer, layer.case.is_fp8
    h, error = activated(layer, rows)
    if int((layer.topk_idx >= 0).sum()) <= buffer.num_ring_tokens:
        acts = buffer.l2_acts[rows.ring]
        assert torch.equal(buffer.l1_acts[rows.ring].view(torch.uint8), buffer.x[rows.tokens].view(torch.uint8))
        if is_fp8:
            assert buffer.x_sf is not None and buffer.l1_acts_sf is not None and buffer.l2_acts_sf is not None
            assert torch.equal(buffer.l1_acts_sf[rows.ring], buffer.x_sf[rows.tokens])
            if h.numel():
                check_codes(acts, buffer.l2_acts_sf[rows.ring], h, error)
            return values_of(acts, buffer.l2_acts_sf[rows.ring]), torch.zeros_like(h)
        assert bool(((acts.double() - h).abs() <= 2.0**-8 * (h.abs() + error) + error).all())
        return acts.double(), torch.zeros_like(h)
    if is_fp8:  # a code may be off by a step, an eighth of the value at most
        h = values_of(*expressions.per_token_cast_to_fp8(h.float(), True, 32, True))
        return h, h.abs() / 8 + error
    return h.bfloat16().double(), 2.0**-7 * h.abs() + error


def tensors_of(weights: Any) -> list[Tensor]:
    return list(weights) if isinstance(weights, tuple) else [weights]


@needs_row
@pytest.mark.parametrize("case", CASES, ids=str)
def test_layer(case: Case) -> None:
    layer = make(case)
    buffer = layer.buffer
    inputs = [*tensors_of(layer.l1), *tensors_of(layer.l2), buffer.topk_idx, buffer.topk_weights, buffer.x.view(torch.uint8)]
    inputs += [buffer.x_sf] if buffer.x_sf is not None else []
    before = [t.clone() for t in inputs]
    layer.run()
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(before, inputs))
    counts = torch.bincount(layer.topk_idx[layer.topk_idx >= 0].flatten(), minlength=case.experts)
    assert torch.equal(layer.stats, torch.arange(case.experts, dtype=torch.int32) + counts.int())

    terms = torch.zeros(case.tokens, case.topk, case.hidden, dtype=F64)
    errors = torch.zeros_like(terms)
    for rows in rows_of(layer):
        h, error = rounded(layer, rows)
        w = layer.w2[rows.expert].T
        term = h @ w
        error = (error + SUM_ERROR * h.abs()) @ w.abs()
        terms[rows.tokens, rows.ks] = term
        errors[rows.tokens, rows.ks] = error + 2.0**-8 * (term.abs() + error)  # half a unit of bf16
    expected, error = terms.sum(1), errors.sum(1)
    bound = error + 2.0**-8 * (expected.abs() + error) + 2.0**-22 * terms.abs().sum(1) + 2.0**-130
    assert bool(((layer.y.double() - expected).abs() <= bound).all())
    assert bool((layer.y[(layer.topk_idx < 0).all(1)] == 0).all())


@needs_row
@pytest.mark.parametrize("mma_type", ["fp8xfp4", "bf16xbf16"])
def test_threads_do_not_change_a_bit_and_neither_do_runs(mma_type: str) -> None:
    layer = make(Case(mma_type, 90, 6, 3, 384, 256))
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 5, 2):
            torch.set_num_threads(count)
            layer.y.fill_(float("nan"))
            layer.run()
            results.append(layer.y.clone())
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(results[0], y) for y in results[1:])


@needs_row
@pytest.mark.parametrize("mma_type", ["fp8xfp4", "bf16xbf16"])
def test_a_small_ring_gives_the_same_rows(mma_type: str) -> None:
    """More rows than the ring holds: four for each of 384 tokens."""
    sizes = (384, 6, 4, 128, 128)
    large, small = (make(Case(mma_type, *sizes, ring=ring)) for ring in ("greatest", "least"))
    assert small.buffer.num_ring_tokens == 384 < large.buffer.num_ring_tokens
    large.run()
    small.run()
    difference = (large.y.double() - small.y.double()).abs()
    assert bool((difference <= 2.0**-6 * large.y.double().abs() + 0.05 * large.y.double().std()).all())
    assert deep_gemm.testing.calc_diff(large.y, small.y) < 1e-5


@needs_row
@pytest.mark.parametrize("mma_type", ["fp8xfp4", "bf16xbf16"])
def test_values_of_one_token_reach_no_other(mma_type: str) -> None:
    case = Case(mma_type, 20, 4, 2, 256, 128)
    clean, dirty = make(case), make(case)
    if case.is_fp8:
        dirty.buffer.x[5].view(torch.uint8).fill_(NAN_CODE)
    else:
        dirty.buffer.x[5] = float("nan")
    clean.run()
    dirty.run()
    others = torch.arange(case.tokens) != 5
    assert bool(dirty.y[5].isnan().all()) and not bool(clean.y.isnan().any())
    assert torch.equal(dirty.y[others], clean.y[others])


@needs_row
@pytest.mark.parametrize("mma_type", ["fp8xfp4", "bf16xbf16"])
def test_weights_of_one_expert_reach_no_other(mma_type: str) -> None:
    layer = make(Case(mma_type, 20, 4, 2, 256, 128))
    layer.run()
    clean = layer.y.clone()
    for weights in (layer.l1, layer.l2):
        if layer.case.is_fp8:
            weights[1][2] = -1  # scales of 0xff are NaN
        else:
            weights[2] = float("nan")
    layer.run()
    others = (layer.topk_idx != 2).all(1)
    assert 0 < int(others.sum()) < 20
    assert torch.equal(layer.y[others], clean[others]) and bool(layer.y[~others].isnan().all())


@needs_row
@pytest.mark.parametrize("mma_type", ["fp8xfp4", "bf16xbf16"])
def test_nothing_is_written_outside_the_workspace(mma_type: str) -> None:
    """The bytes around the buffer, and in it the tokens, the rows of the ring that the call did not need, and the slots of other tokens."""
    layer = make(Case(mma_type, 9, 4, 2, 256, 128))
    inner, guard = layer.buffer.buffer, 256
    outer = torch.full((inner.numel() + 2 * guard,), 0x55, dtype=torch.int8)
    buffer = outer[guard:-guard].copy_(inner)
    before = outer.clone()
    arguments = {**arguments_of(layer), "sym_buffer": buffer, "sym_buffer_ptrs": [buffer.data_ptr()]}
    if layer.case.is_fp8:
        _C.fp8_fp4_mega_moe(**arguments)
    else:
        del arguments["recipe"]
        _C.bf16_mega_moe(**arguments)

    ring, rows, code = layer.buffer.num_ring_tokens, 18, 1 if layer.case.is_fp8 else 2
    _, info = _C.get_symm_buffer_size_for_mega_moe(1, 4, ALIGNMENT, 2, 256, 128, layer.case.mma_type, "swiglu", ring)  # type: ignore[arg-type]
    may_change = torch.zeros(inner.numel(), dtype=torch.bool)
    for offset, hidden in ((info[11], 256), (info[13], 128)):
        may_change[offset : offset + rows * hidden * code] = True
    for offset, words in ((info[12], 2), (info[14], 1)):
        if layer.case.is_fp8:
            may_change[offset : offset + words * info[5] * 4].view(words, -1)[:, : rows * 4] = True
    weights = up(info[12] + (info[5] * 2 * 4 if layer.case.is_fp8 else 0), 128)  # of the rows of the ring
    may_change[weights : weights + rows * 4] = True
    slots = inner.numel() - 128 - up(2 * ALIGNMENT * 4, 128)  # behind them the ends of 4 experts
    combine = slots - 2 * ALIGNMENT * 256 * 2
    may_change[combine:slots].view(2, ALIGNMENT, -1)[:, :9] = True
    if IS_CUDA:
        may_change[slots : slots + rows * 4] = True
        may_change[inner.numel() - 128 :][: 4 * 4] = True
    changed = outer != before
    assert not bool(changed[:guard].any()) and not bool(changed[-guard:].any())
    assert bool(changed[guard:-guard].any()) and not bool((changed[guard:-guard] & ~may_change).any())


def test_a_row_that_is_not_there_is_refused_before_anything_is_written() -> None:
    code = """
import torch, deep_gemm
buffer = deep_gemm.get_symm_buffer_for_mega_moe(None, 2, 5, 1, 128, 128, mma_type="bf16xbf16")
buffer.x.fill_(1)
before, y = buffer.buffer.clone(), torch.full((3, 128), 7, dtype=torch.bfloat16)
try:
    deep_gemm.bf16_mega_moe(y, torch.ones(2, 256, 128).bfloat16(), torch.ones(2, 128, 128).bfloat16(), buffer)
except NotImplementedError as error:
    print(error)
assert torch.equal(buffer.buffer, before) and bool((y == 7).all())
"""
    environment = {**os.environ, "DG_BACKEND": "sm80"}
    said = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True).stdout
    assert said.startswith('bf16_mega_moe: has no CPU row "sm80", which DG_BACKEND asks for; the CPU rows are ')


@needs_row
def test_y_may_have_a_row_stride_and_stats_be_left_out() -> None:
    case = Case("bf16xbf16", 6, 2, 1, 128, 128)
    layer = make(case)
    layer.run()
    wide = torch.full((case.tokens, 200), 7.0, dtype=BF16)
    deep_gemm.bf16_mega_moe(wide[:, 40:168], layer.l1, layer.l2, layer.buffer)
    assert torch.equal(wide[:, 40:168], layer.y)
    assert bool((wide[:, :40] == 7).all()) and bool((wide[:, 168:] == 7).all())


@needs_row
def test_scales_of_weights_may_be_mn_major() -> None:
    layer = make(Case("fp8xfp4", 12, 3, 2, 256, 128))
    layer.run()
    expected = layer.y.clone()
    layer.l1, layer.l2 = ((w, sf.transpose(1, 2).contiguous().transpose(1, 2)) for w, sf in (layer.l1, layer.l2))
    layer.run()
    assert torch.equal(layer.y, expected)


@needs_row
def test_compiled() -> None:
    layer = make(Case("fp8xfp4", 5, 2, 2, 128, 128))
    layer.run()
    expected = layer.y.clone()

    def call(y: Tensor, buffer: Tensor) -> Tensor:
        y.zero_()
        _C.fp8_fp4_mega_moe(
            y, layer.l1, layer.l2, None, buffer, [buffer_pointer], 0, ALIGNMENT, 2, 2, (1, 1, 32), "swiglu", None, True, ring
        )
        return y + 0

    buffer_pointer, ring = layer.buffer.buffer.data_ptr(), layer.buffer.num_ring_tokens
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(layer.y, layer.buffer.buffer), expected)


# ---- the buffer ----------------------------------------------------------------------------------------------


def up(x: int, y: int) -> int:
    return -(-x // y) * y


@pytest.mark.parametrize(
    ("tokens", "experts", "topk", "ranks"),
    [(384, 1, 1, 1), (384, 1, 8, 4), (384, 4, 2, 1), (384, 64, 8, 2), (4224, 6, 6, 72), (0, 4, 2, 1), (8448, 256, 8, 1)],
)
def test_ring_limits(tokens: int, experts: int, topk: int, ranks: int) -> None:
    everything = tokens * ranks
    most = everything if experts == 1 else min(everything * experts, up(everything * topk + experts * 383, 384))
    assert _C.get_ring_limit_for_mega_moe(tokens, experts, topk, ranks) == (everything, most)


@pytest.mark.parametrize("mma_type", ["fp8xfp4", "bf16xbf16"])
@pytest.mark.parametrize(
    ("ranks", "experts", "tokens", "topk", "hidden", "intermediate", "ring"),
    [(1, 8, 384, 2, 256, 256, 384), (1, 8, 384, 2, 256, 256, 768), (2, 8, 768, 3, 384, 128, 1536), (1, 2, 384, 1, 7168, 2048, 768)],
)
def test_layout(
    ranks: int, experts: int, tokens: int, topk: int, hidden: int, intermediate: int, ring: int, mma_type: Any
) -> None:
    size, info = _C.get_symm_buffer_size_for_mega_moe(
        ranks, experts, tokens, topk, hidden, intermediate, mma_type, "swiglu", ring
    )
    is_fp8 = mma_type == "fp8xfp4"
    code, words, l2_words, sf_ring = (1, hidden // 128, intermediate // 128, 16 * ring) if is_fp8 else (2, 0, 0, 0)
    assert info[:7] == [tokens, hidden, intermediate, topk, ring, sf_ring, int(is_fp8)]
    parts = {  # bytes, in the order of the buffer
        "x": tokens * hidden * code,
        "x_sf": tokens * words * 4,
        "topk_idx": tokens * topk * 8,
        "topk_weights": tokens * topk * 4,
        "l1_acts": ring * hidden * code,
        "l1_acts_sf": sf_ring * words * 4,
        "l1_weights": ring * 4,
        "l2_acts": ring * intermediate * code,
        "l2_acts_sf": sf_ring * l2_words * 4,
        "combine": topk * tokens * hidden * 2,
        "row_slots": topk * tokens * 4,
        "row_ends": experts // ranks * 4,
    }
    begin, offsets = 0, {}
    for name, num_bytes in parts.items():
        offsets[name] = begin
        begin = up(begin + num_bytes, 128)
    assert size == begin
    names = ("x", "x_sf", "topk_idx", "topk_weights", "l1_acts", "l1_acts_sf", "l2_acts", "l2_acts_sf")
    assert info[7:] == [offsets[name] for name in names]

    buffer = torch.empty(size, dtype=torch.int8)
    views = dict(zip(names, _C._slice_symm_buffer_for_mega_moe(buffer, info)))
    codes = FP8 if is_fp8 else BF16
    rows = tokens if is_fp8 else 0
    expected: dict[str, tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]] = {
        "x": (codes, (tokens, hidden), (hidden, 1)),
        "x_sf": (torch.int32, (rows, words), (words, 1)),
        "topk_idx": (torch.int64, (tokens, topk), (topk, 1)),
        "topk_weights": (F32, (tokens, topk), (topk, 1)),
        "l1_acts": (codes, (ring, hidden), (hidden, 1)),
        "l1_acts_sf": (torch.int32, (sf_ring, words), (1, sf_ring)),
        "l2_acts": (codes, (ring, intermediate), (intermediate, 1)),
        "l2_acts_sf": (torch.int32, (sf_ring, l2_words), (1, sf_ring)),
    }
    for name, (dtype, shape, strides) in expected.items():
        view = views[name]
        assert (view.dtype, tuple(view.shape)) == (dtype, shape), name
        assert view.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr(), name
        if view.numel():
            assert view.stride() == strides, name
            assert view.data_ptr() == buffer.data_ptr() + offsets[name], name


def test_views_write_through() -> None:
    buffer = deep_gemm.get_symm_buffer_for_mega_moe(None, 2, 5, 2, 128, 128)
    assert buffer.num_max_tokens_per_rank == ALIGNMENT
    buffer.topk_idx[3, 1] = 9
    place = _C.get_symm_buffer_size_for_mega_moe(1, 2, ALIGNMENT, 2, 128, 128, "fp8xfp4", "swiglu", buffer.num_ring_tokens)[1][9]
    assert int(buffer.buffer[place : place + 8 * 2 * ALIGNMENT].view(torch.int64)[3 * 2 + 1]) == 9
    buffer.destroy()
    assert buffer.buffer is None and buffer.x is None and buffer.handle is None


def test_views_inside_a_compiled_function() -> None:
    size, info = _C.get_symm_buffer_size_for_mega_moe(1, 2, 384, 2, 128, 128, "fp8xfp4", "swiglu", 384)
    buffer = torch.zeros(size, dtype=torch.int8)

    def call(buffer: Tensor) -> Tensor:
        views = _C._slice_symm_buffer_for_mega_moe(buffer, info)
        views[2].fill_(4)
        return views[3] + 1

    result = torch.compile(call, fullgraph=True, backend="aot_eager")(buffer)
    assert result.shape == (384, 2) and bool((result == 1).all())
    assert bool((_C._slice_symm_buffer_for_mega_moe(buffer, info)[2] == 4).all())


def test_bf16_has_no_scale_views() -> None:
    buffer = deep_gemm.get_symm_buffer_for_mega_moe(None, 2, 5, 2, 128, 128, mma_type="bf16xbf16")
    assert buffer.x_sf is None and buffer.l1_acts_sf is None and buffer.l2_acts_sf is None
    assert buffer.x.dtype == BF16


@pytest.mark.parametrize(("tokens", "wanted"), [(384, 1824768), (6144, 768 * 1024)])
def test_size_of_the_ring(tokens: int, wanted: int) -> None:
    """What a small call and a large one ask for, within the limits. On the meta device, where it costs nothing."""
    with torch.device("meta"):
        buffer = deep_gemm.get_symm_buffer_for_mega_moe(None, 6000, tokens, 300, 128, 128)
    least, greatest = _C.get_ring_limit_for_mega_moe(tokens, 6000, 300, 1)
    assert buffer.num_ring_tokens == min(max(wanted, least), greatest)


def test_use_fp8_dispatch_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="use_fp8_dispatch"):
        deep_gemm.get_symm_buffer_for_mega_moe(None, 2, 5, 2, 128, 128, True)
    with pytest.raises(ValueError, match="use_fp8_dispatch is False, but mma_type is 'fp8xfp4'"):
        deep_gemm.get_symm_buffer_for_mega_moe(None, 2, 5, 2, 128, 128, False)


class TwoRanks:
    def size(self) -> int:
        return 2


def test_a_group_of_two_ranks_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="^SymmBuffer: group has 2 ranks, expected 1: there is no kernel for several ranks$"):
        deep_gemm.get_symm_buffer_for_mega_moe(TwoRanks(), 2, 5, 2, 128, 128)  # type: ignore[arg-type]


# ---- weights -------------------------------------------------------------------------------------------------


def test_weights_are_interleaved_in_groups_of_eight() -> None:
    w1 = torch.arange(32).view(1, 32, 1).expand(2, 32, 128).to(BF16)
    l1, l2 = deep_gemm.transform_weights_for_mega_moe(w1, torch.zeros(2, 128, 16, dtype=BF16))
    assert l1[1, :, 5].tolist() == [*range(8), *range(16, 24), *range(8, 16), *range(24, 32)]
    assert l2.shape == (2, 128, 16)


def test_scales_follow_the_weights_and_go_to_the_order_of_tensor_cores() -> None:
    sf = torch.arange(256, dtype=torch.int32).view(1, 256, 1)
    order = mega._transpose_sf_for_utccp(sf).flatten().tolist()
    assert order[:6] == [0, 32, 64, 96, 1, 33] and order[128:132] == [128, 160, 192, 224]
    mn_major = sf.expand(2, 256, 3).transpose(1, 2).contiguous().transpose(1, 2)
    assert mega._transpose_sf_for_utccp(mn_major).stride() == mn_major.stride()
    pairs = torch.zeros(1, 256, 64, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    (w, l1_sf), _ = deep_gemm.transform_weights_for_mega_moe((pairs, sf), (pairs, sf))
    assert w.dtype == torch.float4_e2m1fn_x2
    gate_first = [row // 8 * 16 + row % 8 if row < 128 else (row - 128) // 8 * 16 + 8 + row % 8 for row in range(256)]
    stored = [place // 128 * 128 + place % 32 * 4 + place % 128 // 32 for place in gate_first]
    assert [l1_sf[0, place, 0].item() for place in stored] == list(range(256))


def test_weights_of_different_kinds_are_refused() -> None:
    w = torch.zeros(1, 128, 128, dtype=BF16)
    with pytest.raises(TypeError, match="must both be tensors, or both pairs"):
        deep_gemm.transform_weights_for_mega_moe(w, (w, w))  # type: ignore[type-var]
    with pytest.raises(ValueError, match="dimension 1 of t must be a multiple of 16"):
        deep_gemm.transform_weights_for_mega_moe(w[:, :8], w)
    with pytest.raises(ValueError, match="sf must be int32"):
        mega._transpose_sf_for_utccp(w)
    with pytest.raises(ValueError, match="activation is 'gelu', expected 'swiglu'"):
        deep_gemm.transform_weights_for_mega_moe(w, w, "gelu")  # type: ignore[arg-type]


# ---- misuse --------------------------------------------------------------------------------------------------


def arguments_of(layer: Layer) -> dict[str, Any]:
    buffer = layer.buffer
    return {
        "y": layer.y,
        "l1_weights": layer.l1,
        "l2_weights": layer.l2,
        "cumulative_local_expert_recv_stats": layer.stats,
        "sym_buffer": buffer.buffer,
        "sym_buffer_ptrs": [buffer.buffer.data_ptr()],
        "rank_idx": 0,
        "num_max_tokens_per_rank": ALIGNMENT,
        "num_experts": 4,
        "num_topk": 2,
        "recipe": (1, 1, 32),
        "activation": "swiglu",
        "activation_clamp": None,
        "fast_math": True,
        "num_ring_tokens": buffer.num_ring_tokens,
    }


MISUSE: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"y": torch.zeros(7, 256)}, TypeError, r"y has dtype f32, expected bf16 \[num_tokens, hidden\]"),
    ({"y": torch.zeros(7, 128, dtype=BF16)}, ValueError, r"l1_weights\[0\] has hidden = 256, expected 128 to match y"),
    ({"y": lambda a: a["sym_buffer"][128 : 128 + 7 * 512].view(BF16).view(7, 256)}, ValueError, "y overlaps sym_buffer"),
    ({"sym_buffer": lambda a: a["sym_buffer"][:-128]}, ValueError,
     r"sym_buffer has \d+ bytes, expected \d+ or more, as get_symm_buffer_size_for_mega_moe\(\) says"),
    ({"sym_buffer": lambda a: torch.zeros(a["sym_buffer"].numel() + 8, dtype=torch.int8)[8:]}, ValueError,
     "sym_buffer begins at the address 0x[0-9a-f]+8, expected a multiple of 16"),
    ({"sym_buffer": lambda a: a["sym_buffer"].view(torch.int32)}, TypeError, "sym_buffer has dtype i32, expected i8 | u8"),
    ({"num_max_tokens_per_rank": 400}, ValueError,
     r"num_max_tokens_per_rank is 400, expected a multiple of get_token_alignment_for_mega_moe\(\) = 384"),
    ({"num_max_tokens_per_rank": 6}, ValueError, "num_max_tokens_per_rank >= num_tokens, got num_max_tokens_per_rank = 6, num_tokens = 7"),
    ({"num_ring_tokens": 385}, ValueError, "num_ring_tokens is 385, expected a multiple of 384 in 384 .. 1536"),
    ({"num_ring_tokens": 1920}, ValueError, "num_ring_tokens is 1920, expected a multiple of 384 in 384 .. 1536"),
    ({"num_ring_tokens": 0}, ValueError, "num_ring_tokens is 0, expected a multiple of 384 in 384 .. 1536"),
    ({"num_experts": 5}, ValueError, "num_experts must be the experts of l1_weights times the number of ranks"),
    ({"sym_buffer_ptrs": [1, 1], "num_experts": 8}, NotImplementedError,
     "sym_buffer_ptrs has the buffers of 2 ranks, expected 1: there is no kernel for several ranks"),
    ({"sym_buffer_ptrs": []}, ValueError, r"rank_idx < len\(sym_buffer_ptrs\), got rank_idx = 0, len\(sym_buffer_ptrs\) = 0"),
    ({"rank_idx": 1}, ValueError, r"rank_idx < len\(sym_buffer_ptrs\), got rank_idx = 1, len\(sym_buffer_ptrs\) = 1"),
    ({"recipe": (1, 1, 128)}, ValueError, r"the recipe of mega MoE is \(1, 1, 32\)"),
    ({"activation": "gelu"}, ValueError, 'activation is "gelu", expected "swiglu"'),
    ({"activation_clamp": -1.0}, ValueError, "activation_clamp is -1, expected >= 0"),
    ({"activation_clamp": float("nan")}, ValueError, "activation_clamp is -?nan, expected >= 0"),
    ({"cumulative_local_expert_recv_stats": torch.zeros(3, dtype=torch.int32)}, ValueError,
     "cumulative_local_expert_recv_stats has local_experts = 3, expected 4 to match l1_weights"),
    ({"cumulative_local_expert_recv_stats": torch.zeros(4, dtype=torch.int64)}, TypeError,
     "cumulative_local_expert_recv_stats has dtype i64"),
    ({"l1_weights": lambda a: (a["l1_weights"][0], a["l1_weights"][1].float())}, TypeError, r"l1_weights\[1\] has dtype f32"),
    ({"l2_weights": lambda a: (a["l2_weights"][0], a["l2_weights"][1][:, :128])}, ValueError, r"l2_weights\[1\] has shape"),
]  # fmt: skip


@needs_row
@pytest.mark.parametrize(("replaced", "kind", "text"), MISUSE)
def test_misuse(replaced: dict[str, Any], kind: type[Exception], text: str) -> None:
    layer = make(Case("fp8xfp4", 7, 4, 2, 256, 128))
    arguments = arguments_of(layer)
    for name, value in replaced.items():
        arguments[name] = value(arguments) if callable(value) else value
    before = layer.buffer.buffer.clone(), layer.stats.clone()
    with pytest.raises(kind, match=f"^fp8_fp4_mega_moe: .*{text}"):
        _C.fp8_fp4_mega_moe(**arguments)
    assert torch.equal(layer.buffer.buffer, before[0]) and torch.equal(layer.stats, before[1])


@pytest.mark.skipif(IS_CUDA, reason="routes are not read on the host")
@needs_row
@pytest.mark.parametrize("expert", [4, -2, 2**40])
def test_an_expert_that_is_not_there_is_refused(expert: int) -> None:
    layer = make(Case("bf16xbf16", 7, 4, 2, 256, 128))
    layer.buffer.topk_idx[6, 1] = expert
    layer.buffer.topk_idx[7, 0] = 99  # of no token of the call
    before = layer.buffer.buffer.clone()
    with pytest.raises(ValueError, match=rf"^bf16_mega_moe: topk_idx\[6, 1\] in sym_buffer is {expert}, expected -1 .. 3: there are 4"):
        layer.run()
    assert torch.equal(layer.buffer.buffer, before) and bool(layer.y.isnan().all())


@pytest.mark.skipif(not IS_CUDA, reason="an error on the CPU")
@pytest.mark.parametrize("expert", [4, -2, 2**40, -(2**40)])
def test_an_expert_that_is_not_there_is_none(expert: int) -> None:
    results = []
    for chosen in (-1, expert):
        layer = make(Case("bf16xbf16", 7, 4, 2, 256, 128))
        layer.buffer.topk_idx[6, 1] = chosen
        layer.run()
        results.append((layer.y, layer.stats))
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])
    assert not bool(results[0][0].isnan().any())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((1, 8, 385, 2, 256, 256, "fp8xfp4", "swiglu", 384), "num_max_tokens_per_rank is 385, expected a multiple of"),
        ((1, 8, 384, 2, 256, 256, "fp8xfp4", "swiglu", 400), "num_ring_tokens is 400, expected a multiple of 384 in 384 .. 3072"),
        ((1, 8, 384, 2, 256, 256, "fp8xfp8", "swiglu", 384), 'mma_type is "fp8xfp8", expected "fp8xfp4" or "bf16xbf16"'),
        ((3, 8, 384, 2, 256, 256, "fp8xfp4", "swiglu", 384), "num_experts must be a multiple of num_ranks"),
        ((1, 8, 384, 2, 200, 256, "fp8xfp4", "swiglu", 384), "hidden and intermediate_hidden must be multiples of 128"),
        ((65536, 65536, 2147483520, 65536, 2147483520, 128, "bf16xbf16", "swiglu", 384), "num_ring_tokens is 384, expected"),
    ],
)
def test_sizes_that_are_refused(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(ValueError, match=f"^get_symm_buffer_size_for_mega_moe: {text}"):
        _C.get_symm_buffer_size_for_mega_moe(*arguments)


def test_a_size_beyond_64_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="the size of the symmetric buffer is beyond 64 bits$"):
        _C.get_symm_buffer_size_for_mega_moe(1, 1, 2147483520, 65536, 2147483520, 128, "bf16xbf16", "swiglu", 2147483520)


@pytest.mark.parametrize(
    ("edit", "kind", "text"),
    [
        (lambda b, i: (b, i[:-1]), ValueError, r"layout_info is \[.*\], expected each >= 0, length 15"),
        (lambda b, i: (b, [*i[:-1], -4]), ValueError, r"layout_info is \[.*\], expected each >= 0, length 15"),
        (lambda b, i: (b, [*i[:6], 2, *i[7:]]), ValueError, r"layout_info\[6\] must be 0 or 1"),
        (lambda b, i: (b[:-200000], i), ValueError, r"\w+ is bytes \d+ .. \d+ of buffer, which has \d+"),
        (lambda b, i: (b, [*i[:9], i[9] + 4, *i[10:]]), ValueError, r"topk_idx begins at byte \d+ of buffer, expected a multiple of 8"),
        (lambda b, i: (b[::2], i), ValueError, r"buffer is int8 \[\d+\] strides \[2\], expected i8 | u8 \[num_bytes\] contiguous"),
        (lambda b, i: (b.view(2, -1), i), ValueError, r"buffer is int8 \[2, \d+\], expected i8 | u8"),
        (lambda b, i: (b.view(torch.int16), i), TypeError, r"buffer is int16 \[\d+\], expected i8 | u8"),
    ],
)
def test_views_that_are_refused(edit: Any, kind: type[Exception], text: str) -> None:
    size, info = _C.get_symm_buffer_size_for_mega_moe(1, 2, 384, 2, 128, 128, "fp8xfp4", "swiglu", 384)
    buffer, layout = edit(torch.zeros(size, dtype=torch.int8), info)
    with pytest.raises(kind, match=f"^_slice_symm_buffer_for_mega_moe: {text}"):
        _C._slice_symm_buffer_for_mega_moe(buffer, layout)
