"""The operators on CUDA tensors: results, the caller's stream and device, capture, and errors that leave everything usable."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

import deep_gemm
from deep_gemm.mega import SymmBuffer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

Pair = tuple[Tensor, Tensor]

SHAPES = [(1, 129, 256), (70, 90, 7168), (128, 256, 512), (130, 200, 300), (33, 7, 1000), (2000, 1400, 192)]


def quantize(x: Tensor, rows: int) -> Pair:
    """e4m3 codes and one f32 scale for each block of rows x 128."""
    mn, k = x.shape
    padded = torch.zeros(-(-mn // rows) * rows, -(-k // 128) * 128, device=x.device)
    padded[:mn, :k] = x
    blocks = padded.view(-1, rows, padded.shape[1] // 128, 128)
    scale = blocks.abs().amax((1, 3)).clamp(1e-4) / 448
    codes = (blocks / scale[:, None, :, None]).view(padded.shape)[:mn, :k]
    return codes.to(torch.float8_e4m3fn).contiguous(), scale


def exact(pair: Pair, rows: int) -> Tensor:
    codes, scale = pair
    mn, k = codes.shape
    return codes.double() * scale.double().repeat_interleave(rows, 0)[:mn].repeat_interleave(128, 1)[:, :k]


def relative_error(got: Tensor, expected: Tensor) -> float:
    return float((got.double() - expected).norm() / expected.norm())


def operands(m: int, n: int, k: int) -> tuple[Pair, Pair]:
    return quantize(torch.randn(m, k, device="cuda"), 1), quantize(torch.randn(n, k, device="cuda"), 128)


def bf16(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype, limit", [(torch.float32, 1e-6), (torch.bfloat16, 3e-3)])
@pytest.mark.parametrize("m, n, k", SHAPES)
def test_fp8(m: int, n: int, k: int, dtype: torch.dtype, limit: float) -> None:
    a, b = operands(m, n, k)
    before = [x.clone().view(torch.uint8) for x in (*a, *b)]
    d = torch.full((m, n), float("nan"), device="cuda", dtype=dtype)
    deep_gemm.fp8_gemm_nt(a, b, d)
    expected = exact(a, 1) @ exact(b, 128).T
    assert relative_error(d, expected) < limit
    assert all(torch.equal(x.view(torch.uint8), y) for x, y in zip((*a, *b), before))

    c = torch.randn(m, n, device="cuda").to(dtype)
    deep_gemm.fp8_gemm_nt(a, b, d, c=c)
    assert relative_error(d, expected + c.double()) < limit
    accumulated = c.clone()
    deep_gemm.fp8_gemm_nt(a, b, accumulated, c=accumulated)
    assert torch.equal(accumulated, d)


@pytest.mark.parametrize("m, n, k", SHAPES)
@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
def test_bf16(layout: str, m: int, n: int, k: int) -> None:
    a = bf16(m, k) if layout[0] == "n" else bf16(k, m)
    b = bf16(n, k) if layout[1] == "t" else bf16(k, n)
    expected = (a if layout[0] == "n" else a.T).double() @ (b if layout[1] == "n" else b.T).double()
    run: Callable[..., None] = getattr(deep_gemm, f"bf16_gemm_{layout}")
    for dtype, limit in ((torch.float32, 1e-6), (torch.bfloat16, 3e-3)):
        d = torch.empty(m, n, device="cuda", dtype=dtype)
        run(a, b, d)
        assert relative_error(d, expected) < limit


def test_same_as_on_the_cpu() -> None:
    a, b = operands(70, 90, 400)
    d = torch.empty(70, 90, device="cuda")
    deep_gemm.fp8_gemm_nt(a, b, d)
    d_cpu = torch.empty(70, 90)
    deep_gemm.fp8_gemm_nt((a[0].cpu(), a[1].cpu()), (b[0].cpu(), b[1].cpu()), d_cpu)
    assert relative_error(d.cpu(), d_cpu.double()) < 1e-6


def test_same_bits_every_time() -> None:
    a, b = operands(300, 400, 900)
    results = []
    for _ in range(5):
        d = torch.empty(300, 400, device="cuda")
        deep_gemm.fp8_gemm_nt(a, b, d)
        results.append(d)
    assert all(torch.equal(results[0], d) for d in results)


def test_runs_on_the_current_stream_and_does_not_wait() -> None:
    a, b, other = bf16(256, 256), bf16(256, 256), bf16(256, 256)
    d = torch.zeros(256, 256, device="cuda")
    stream, done = torch.cuda.Stream(), torch.cuda.Event()
    deep_gemm.bf16_gemm_nt(a, b, d)  # kernels are loaded
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)  # cycles: a fifth of a second
        a.copy_(other)
        deep_gemm.bf16_gemm_nt(a, b, d)
        done.record()
    assert not done.query(), "the call waited for the device"
    stream.synchronize()
    assert relative_error(d, other.double() @ b.double().T) < 1e-6


def test_allocates_nothing() -> None:
    a, b = operands(256, 256, 512)
    d = torch.empty(256, 256, device="cuda")
    deep_gemm.fp8_gemm_nt(a, b, d)
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0], torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(10):
        deep_gemm.fp8_gemm_nt(a, b, d)
    torch.cuda.synchronize()
    assert (torch.cuda.mem_get_info()[0], torch.cuda.memory_stats()["allocation.all.allocated"]) == before


def test_graph_capture() -> None:
    a, b = operands(130, 200, 300)
    d = torch.empty(130, 200, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        deep_gemm.fp8_gemm_nt(a, b, d)
    for _ in range(2):
        new = quantize(torch.randn(130, 300, device="cuda"), 1)
        a[0].view(torch.uint8).copy_(new[0].view(torch.uint8))
        a[1].copy_(new[1])
        graph.replay()
        assert relative_error(d, exact(a, 1) @ exact(b, 128).T) < 1e-6


def test_another_thread() -> None:
    a, b = bf16(64, 128), bf16(96, 128)
    d = torch.zeros(64, 96, device="cuda")
    torch.cuda.synchronize()

    def run() -> None:
        deep_gemm.bf16_gemm_nt(a, b, d)
        torch.cuda.synchronize()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert relative_error(d, a.double() @ b.double().T) < 1e-6


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_device_that_is_not_current() -> None:
    with torch.cuda.device(1):
        a, b = bf16(64, 128), bf16(96, 128)
        d = torch.empty(64, 96, device="cuda")
    assert torch.cuda.current_device() == 0
    deep_gemm.bf16_gemm_nt(a, b, d)
    assert torch.cuda.current_device() == 0
    assert relative_error(d, a.double() @ b.double().T) < 1e-6
    with pytest.raises(ValueError, match="bf16_gemm_nt: b"):
        deep_gemm.bf16_gemm_nt(a, b.to("cuda:0"), d)
    assert torch.cuda.current_device() == 0


@pytest.mark.parametrize(
    "change, argument",
    [
        (lambda a, b, d: (a.cpu(), b, d), "(a|b)"),
        (lambda a, b, d: (a, b.cpu(), d), "b"),
        (lambda a, b, d: (a, b, d.cpu()), "d"),
        (lambda a, b, d: (a, b[:, 1:], d), "b"),
        (lambda a, b, d: (a, b, d[1:]), "d"),
        (lambda a, b, d: (a, b, d.T.contiguous().T), "d"),
    ],
)
def test_errors_leave_everything_usable(change: Callable[..., tuple[Any, Any, Any]], argument: str) -> None:
    a, b = bf16(64, 128), bf16(96, 128)
    d = torch.full((64, 96), 7.0, device="cuda")
    with pytest.raises(ValueError, match=rf"bf16_gemm_nt: {argument}\b"):
        deep_gemm.bf16_gemm_nt(*change(a, b, d))
    torch.cuda.synchronize()
    assert bool((d == 7.0).all())
    deep_gemm.bf16_gemm_nt(a, b, d)
    assert relative_error(d, a.double() @ b.double().T) < 1e-6


def test_opcheck_and_compile() -> None:
    a, b = bf16(64, 128), bf16(96, 128)
    opcheck(torch.ops.deep_gemm.bf16_gemm_nt.default, (a, b, torch.zeros(64, 96, device="cuda")))

    @torch.compile(fullgraph=True, backend="aot_eager")
    def doubled(a: Tensor, b: Tensor) -> Tensor:
        d = torch.empty(a.shape[0], b.shape[0], device=a.device)
        deep_gemm.bf16_gemm_nt(a, b, d)
        return d * 2

    assert relative_error(doubled(a, b), 2 * (a.double() @ b.double().T)) < 1e-6


CASTS: list[Callable[[Tensor], tuple[Tensor, ...]]] = [
    lambda x: deep_gemm.per_token_cast_to_fp8(x, False),
    lambda x: deep_gemm.per_token_cast_to_fp8(x, True, 32, True),
    lambda x: deep_gemm.per_channel_cast_to_fp8(x, True, 4),
    lambda x: deep_gemm.per_block_cast_to_fp8(x, False, 128),
    lambda x: deep_gemm.per_token_cast_to_fp4(x, True, 32),
    lambda x: deep_gemm.per_token_cast_to_fp4(x, True, 16, True),
]


@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_casts_have_the_bits_of_the_cpu(cast: Callable[[Tensor], tuple[Tensor, ...]], dtype: torch.dtype) -> None:
    whole = torch.randn(260, 1100, dtype=torch.float32) * torch.logspace(-8, 4, 1100)
    whole[3, 5], whole[7, 600] = float("inf"), float("nan")
    for x in (whole[:256, :1024], whole[1:5, 3:503], whole[:0, :1024], whole[:4, :0]):
        x = x.to(dtype).contiguous()
        for on_gpu, on_cpu in zip(cast(x.cuda()), cast(x)):
            assert on_gpu.dtype == on_cpu.dtype and on_gpu.shape == on_cpu.shape and on_gpu.stride() == on_cpu.stride()
            assert torch.equal(on_gpu.cpu().view(torch.uint8), on_cpu.view(torch.uint8))


def test_strided_casts_have_the_bits_of_the_cpu() -> None:
    whole = torch.randn(300, 700, device="cuda")
    for x in (whole[:, 1:513], whole.T[:512, :256], whole[::2, 0:512:2]):
        for cast in CASTS:
            x = x[: x.size(0) // 4 * 4, : x.size(1) // 2 * 2]
            for on_gpu, on_cpu in zip(cast(x), cast(x.cpu())):
                assert torch.equal(on_gpu.cpu().view(torch.uint8), on_cpu.view(torch.uint8))


def test_fp4_and_back() -> None:
    x = torch.randn(130, 514, device="cuda")
    packed, sf = deep_gemm.per_token_cast_to_fp4(x, True, 32)
    back = deep_gemm.utils.cast_back_from_fp4(packed, sf, 32)
    assert torch.equal(back.cpu(), deep_gemm.utils.cast_back_from_fp4(packed.cpu(), sf.cpu(), 32))
    assert relative_error(back, x.double()) < 0.2


@pytest.mark.parametrize("m, n, k", [(13, 24, 7168), (137, 24, 7680), (1, 24, 64), (300, 9, 1000), (5000, 32, 640), (70, 60, 130)])
@pytest.mark.parametrize("splits", [None, 1, 16])
def test_prenorm(m: int, n: int, k: int, splits: int | None) -> None:
    a, b = bf16(m, k), torch.randn(n, k, device="cuda")
    shape = (m,) if splits is None else (splits, m)
    d, squares = torch.full((*shape, n), float("nan"), device="cuda"), torch.full(shape, float("nan"), device="cuda")
    deep_gemm.tf32_hc_prenorm_gemm(a, b, d, squares, num_splits=splits)
    bits = b.view(torch.int32)
    tf32 = ((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).view(torch.float32).double()
    sums = (d, squares) if splits is None else (d.double().sum(0), squares.double().sum(0))
    assert relative_error(sums[0], a.double() @ tf32.T) < 1e-5
    assert relative_error(sums[1], a.double().square().sum(1)) < 1e-6
    again = torch.empty_like(d)
    deep_gemm.tf32_hc_prenorm_gemm(a, b, again, squares, num_splits=splits)
    assert torch.equal(again, d)


def random_fp8(*shape: int) -> Tensor:
    return (torch.randn(*shape, device="cuda") * 60).clamp(-448, 448).to(torch.float8_e4m3fn)


def random_mx(*shape: int) -> Tensor:
    """Four UE8M0 bytes about 1 in each word."""
    return torch.randint(120, 130, (*shape, 4), device="cuda", dtype=torch.uint8).view(torch.int32).squeeze(-1)


def on_cpu(x: Any) -> Any:
    return x.cpu() if isinstance(x, Tensor) else tuple(on_cpu(y) for y in x) if isinstance(x, tuple) else x


def assert_as_on_the_cpu(call: Callable[..., Tensor], *args: Any, **options: Any) -> None:
    """Within the sums of f32, and -inf in the same places; the same bits when called again."""
    got, expected = call(*args, **options), call(*map(on_cpu, args), **{name: on_cpu(x) for name, x in options.items()})
    assert got.is_cuda and got.shape == expected.shape and got.stride() == expected.stride()
    assert torch.equal(got, call(*args, **options))
    limit = 1e-5 if got.dtype == torch.float32 else 1e-2
    torch.testing.assert_close(got.cpu(), expected, rtol=limit, atol=limit * float(expected[expected.isfinite()].abs().max()))


@pytest.mark.parametrize("logits_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_mx", [False, True])
@pytest.mark.parametrize("heads, head_dim", [(1, 32), (32, 64), (64, 128), (100, 72)])
def test_mqa_logits(heads: int, head_dim: int, is_mx: bool, logits_dtype: torch.dtype) -> None:
    tokens, keys = 40, 700
    q = random_fp8(tokens, heads, head_dim), random_mx(tokens, heads) if is_mx else None
    kv = random_fp8(keys, head_dim), random_mx(keys) if is_mx else torch.rand(keys, device="cuda")
    start = torch.randint(0, 300, (tokens,), device="cuda", dtype=torch.int32)
    end = start + torch.randint(1, 400, (tokens,), device="cuda", dtype=torch.int32)
    weights = torch.randn(tokens, heads, device="cuda")
    assert_as_on_the_cpu(deep_gemm.fp8_fp4_mqa_logits, q, kv, weights, start, end, clean_logits=True, logits_dtype=logits_dtype)


@pytest.mark.parametrize("block_kv", [32, 64, 128])
@pytest.mark.parametrize("next_n", [1, 2, 5])
def test_paged_mqa_logits(next_n: int, block_kv: int) -> None:
    batch, heads, head_dim, longest = 3, 64, 128, 900
    max_pages = -(-longest // block_kv)
    pages = batch * max_pages
    codes = random_fp8(pages, block_kv * head_dim).view(torch.uint8)
    scales = torch.rand(pages, block_kv, device="cuda").view(torch.uint8)
    cache = torch.cat((codes, scales), 1).view(pages, block_kv, 1, head_dim + 4)
    table = torch.randperm(pages, device="cuda").to(torch.int32).view(batch, max_pages)
    table[1, 0] = -1
    lens = torch.tensor([[longest], [500], [next_n]], device="cuda", dtype=torch.int32) - torch.arange(next_n - 1, -1, -1, device="cuda", dtype=torch.int32)
    q, weights = random_fp8(batch, next_n, heads, head_dim), torch.randn(batch * next_n, heads, device="cuda")
    schedule = deep_gemm.get_paged_mqa_logits_metadata(lens, block_kv, 132)
    assert torch.equal(schedule.cpu(), deep_gemm.get_paged_mqa_logits_metadata(lens.cpu(), block_kv, 132))
    assert_as_on_the_cpu(deep_gemm.fp8_paged_mqa_logits, q, cache, weights, lens, table, schedule, longest, clean_logits=True)


def test_memory_operators_allocate_only_results_and_can_be_captured() -> None:
    x, b = bf16(64, 1024), torch.randn(24, 1024, device="cuda")
    d, squares = torch.empty(64, 24, device="cuda"), torch.empty(64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        codes, sf = deep_gemm.per_token_cast_to_fp8(x, False)
        deep_gemm.tf32_hc_prenorm_gemm(x, b, d, squares)
    x.copy_(bf16(64, 1024))
    graph.replay()
    expected = deep_gemm.per_token_cast_to_fp8(x, False)
    assert torch.equal(codes.view(torch.uint8), expected[0].view(torch.uint8)) and torch.equal(sf, expected[1])
    assert relative_error(squares, x.double().square().sum(1)) < 1e-6


EXPRESSIONS = [
    ("bhr,hdr->bhd", (5, 3, 200), (3, 70, 200)),
    ("bhr,hdr->bhd", (16, 128, 512), (128, 128, 512)),
    ("bhr,hdr->bhd", (300, 40, 64), (40, 128, 64)),
    ("bhd,hdr->bhr", (130, 4, 64), (4, 64, 33)),
    ("bmk,bnk->mn", (6, 70, 40), (6, 33, 40)),
]


@pytest.mark.parametrize("dtype, limit", [(torch.float32, 1e-6), (torch.bfloat16, 3e-3)])
@pytest.mark.parametrize("expr, a_shape, b_shape", EXPRESSIONS)
def test_einsum(expr: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...], dtype: torch.dtype, limit: float) -> None:
    a, b = bf16(*a_shape), bf16(*b_shape)
    exact = torch.einsum(expr, a.double(), b.double())
    d = torch.full(exact.shape, float("nan"), device="cuda", dtype=dtype)
    if expr == "bmk,bnk->mn" and dtype == torch.bfloat16:
        with pytest.raises(NotImplementedError, match="^einsum: no CUDA kernel sums 6 batches for bf16 d, expected f32 d$"):
            deep_gemm.einsum(expr, a, b, d)
        a, b, exact = a[:1], b[:1], torch.einsum(expr, a[:1].double(), b[:1].double())
    deep_gemm.einsum(expr, a, b, d)
    assert relative_error(d, exact) < limit
    c = torch.randn(exact.shape, device="cuda").to(dtype)
    deep_gemm.einsum(expr, a, b, d, c=c)
    assert relative_error(d, exact + c.double()) < limit
    deep_gemm.einsum(expr, a, b, c, c=c)
    assert torch.equal(c, d)


@pytest.mark.parametrize("expr, a_shape, b_shape", [("bhr,hdr->bhd", (9, 3, 256), (3, 128, 256)), ("bhd,hdr->bhr", (130, 2, 128), (2, 128, 256))])
def test_fp8_einsum(expr: str, a_shape: tuple[int, int, int], b_shape: tuple[int, int, int]) -> None:
    rows, heads, k = a_shape
    codes, sf = deep_gemm.per_token_cast_to_fp8(torch.randn(rows * heads, k, device="cuda"), False)
    a, sfa = codes.view(a_shape), sf.view(rows, heads, k // 128)
    blocks = [deep_gemm.per_block_cast_to_fp8(torch.randn(b_shape[1:], device="cuda"), False) for _ in range(heads)]
    b, sfb = torch.stack([x for x, _ in blocks]), torch.stack([x for _, x in blocks])
    exact_a = a.double() * sfa.double().repeat_interleave(128, 2)
    exact_b = b.double() * sfb.double().repeat_interleave(128, 1).repeat_interleave(128, 2)
    exact = torch.einsum(expr, exact_a, exact_b)
    d = torch.full(exact.shape, float("nan"), device="cuda")
    deep_gemm.fp8_einsum(expr, (a, sfa), (b, sfb), d)
    assert relative_error(d, exact) < 1e-6
    cpu = torch.empty(exact.shape)
    deep_gemm.fp8_einsum(expr, (a.cpu(), sfa.cpu()), (b.cpu(), sfb.cpu()), cpu)
    assert relative_error(d.cpu(), cpu.double()) < 1e-6


def grouped_operands(groups: int, rows: int, n: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    return bf16(groups * rows, k), bf16(groups, n, k), torch.empty(groups * rows, n, device="cuda")


@pytest.mark.parametrize("kind", ["index", "psum", "masked", "k"])
def test_grouped_graphs_follow_their_layouts(kind: str) -> None:
    """One captured call serves any layout: nothing of it is read on the host, so nothing waits, and nothing is allocated."""
    groups, rows, n, k = 3, 256, 72, 128
    a, b, d = grouped_operands(groups, rows, n, k)
    layout = torch.zeros(groups * rows if kind == "index" else groups, device="cuda", dtype=torch.int32)
    dk = torch.empty(groups, k, n, device="cuda")
    y = bf16(groups * rows, n)

    def call() -> None:
        if kind == "masked":
            deep_gemm.m_grouped_bf16_gemm_nt_masked(a.view(groups, rows, k), b, d.view(groups, rows, n), layout, rows)
        elif kind == "k":
            deep_gemm.k_grouped_bf16_gemm_tn_contiguous(a, y, dk, None, layout, use_psum_layout=True)
        else:
            deep_gemm.m_grouped_bf16_gemm_nt_contiguous(a, b, d, layout, use_psum_layout=kind == "psum")

    call()
    allocated = torch.cuda.memory_stats()["allocation.all.allocated"]
    call()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocated
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for sizes in ([256, 0, 100], [0, 256, 256], [7, 200, 0]):
        begins = [g * rows for g in range(groups)]
        if kind == "index":
            entries = [[g if size > 0 else -1] * rows for g, size in enumerate(sizes)]
            layout.copy_(torch.tensor(entries, dtype=torch.int32).flatten())
        elif kind == "masked":
            layout.copy_(torch.tensor(sizes, dtype=torch.int32))
        else:
            ends, end = [], 0
            for g, size in enumerate(sizes):
                begins[g] = -(-end // 128) * 128
                end = begins[g] + size
                ends.append(end)
            layout.copy_(torch.tensor(ends, dtype=torch.int32))
        graph.replay()
        for g, (begin, size) in enumerate(zip(begins, sizes)):
            own = slice(begin, begin + size)
            if kind == "k":
                exact = a[own].double().T @ y[own].double()
                assert bool((dk[g] == 0).all()) if size == 0 else relative_error(dk[g], exact) < 1e-6
            elif size > 0:
                assert relative_error(d[own], a[own].double() @ b[g].double().T) < 1e-6


def test_grouped_layouts_that_lie_touch_nothing_else() -> None:
    groups, rows, n, k = 3, 128, 40, 64
    a, b, _ = grouped_operands(groups, rows, n, k)
    whole = torch.full((groups * rows + 2, n), 7.0, device="cuda")
    d = whole[1:-1]
    for psum in (False, True):
        layout = torch.tensor([3, 1 << 30, -(1 << 31)], device="cuda", dtype=torch.int32)
        deep_gemm.m_grouped_bf16_gemm_nt_contiguous(a, b, d, layout if psum else layout.repeat_interleave(rows), use_psum_layout=psum)
    deep_gemm.m_grouped_bf16_gemm_nt_masked(a.view(groups, rows, k), b, d.view(groups, rows, n), layout, rows)
    torch.cuda.synchronize()
    assert bool((whole[0] == 7.0).all() and (whole[-1] == 7.0).all())


def moe_buffer(mma_type: str, device: str, experts: int, topk: int, hidden: int, intermediate: int) -> Any:
    limits = deep_gemm._C.get_ring_limit_for_mega_moe(384, experts, topk, 1)
    with torch.device(device):
        return SymmBuffer(None, experts, 384, topk, hidden, intermediate, limits[1], mma_type)  # type: ignore[arg-type]


def run_moe(y: Tensor, l1: Any, l2: Any, buffer: Any, stats: Tensor | None = None) -> None:
    (deep_gemm.fp8_fp4_mega_moe if isinstance(l1, tuple) else deep_gemm.bf16_mega_moe)(y, l1, l2, buffer, stats)


def moe_weights(mma_type: str, experts: int, hidden: int, intermediate: int) -> Any:
    l1 = torch.randn(experts, 2 * intermediate, hidden, device="cuda") / hidden**0.5
    l2 = torch.randn(experts, hidden, intermediate, device="cuda")
    if mma_type == "bf16xbf16":
        return deep_gemm.transform_weights_for_mega_moe(l1.bfloat16(), l2.bfloat16())
    pairs = []
    for w in (l1, l2):
        codes, sf = deep_gemm.per_token_cast_to_fp4(w.flatten(0, 1), True, 32, True)
        pairs.append((codes.view(*w.shape[:2], -1), sf.view(*w.shape[:2], -1)))
    return deep_gemm.transform_weights_for_mega_moe(*pairs)


def fill_moe(buffer: Any, tokens: int, experts: int, topk: int) -> None:
    x = torch.randn(tokens, buffer.hidden, device="cuda")
    if buffer.x_sf is None:
        buffer.x[:tokens] = x
    else:
        codes, buffer.x_sf[:tokens] = deep_gemm.per_token_cast_to_fp8(x, True, 32, True)
        buffer.x.view(torch.uint8)[:tokens] = codes.view(torch.uint8)
    buffer.topk_idx[:tokens] = torch.rand(tokens, experts, device="cuda").topk(topk, dim=1).indices
    buffer.topk_idx[:tokens][torch.rand(tokens, topk, device="cuda") < 0.2] = -1
    buffer.topk_weights[:tokens] = torch.rand(tokens, topk, device="cuda")


@pytest.mark.parametrize("mma_type", ["fp8xfp4", "bf16xbf16"])
@pytest.mark.parametrize("tokens, experts, topk, hidden, intermediate", [(3, 8, 2, 512, 256), (384, 6, 4, 1024, 640)])
def test_mega_moe_is_that_of_the_cpu(mma_type: str, tokens: int, experts: int, topk: int, hidden: int, intermediate: int) -> None:
    """The rows and their order are the same; a code of h may be the next one where its f32 value is another, so y is close."""
    buffer, own = (moe_buffer(mma_type, device, experts, topk, hidden, intermediate) for device in ("cuda", "cpu"))
    l1, l2 = moe_weights(mma_type, experts, hidden, intermediate)
    fill_moe(buffer, tokens, experts, topk)
    own.buffer.copy_(buffer.buffer)
    y = torch.empty(tokens, hidden, device="cuda", dtype=torch.bfloat16)
    y_cpu, stats, stats_cpu = y.cpu(), torch.ones(experts, device="cuda", dtype=torch.int32), torch.ones(experts, dtype=torch.int32)
    run_moe(y, l1, l2, buffer, stats)
    run_moe(y_cpu, on_cpu(l1), on_cpu(l2), own, stats_cpu)
    assert torch.equal(stats.cpu(), stats_cpu)
    rows = int(stats_cpu.sum()) - experts
    assert torch.equal(buffer.l1_acts[:rows].cpu().view(torch.uint8), own.l1_acts[:rows].view(torch.uint8))
    different = (buffer.l2_acts[:rows].cpu().view(torch.uint8) != own.l2_acts[:rows].view(torch.uint8)).double().mean()
    assert different < 1e-2
    assert relative_error(y.cpu(), y_cpu.double()) < 3e-3


def test_mega_moe_quantises_with_the_bits_of_the_cpu() -> None:
    """All that comes before is exact: small integers, and gates so large that silu(gate) is the gate."""
    experts, topk, hidden, intermediate, tokens = 3, 2, 128, 256, 200
    buffer, own = (moe_buffer("fp8xfp4", device, experts, topk, hidden, intermediate) for device in ("cuda", "cpu"))
    (l1, l1_sf), l2 = moe_weights("fp8xfp4", experts, hidden, intermediate)
    groups = l1.view(experts, -1, 2, 8, hidden // 2)  # gate, up
    groups[:, :, 0].copy_(torch.tensor([0x22, 0x24, 0x42, 0x44], device="cuda", dtype=torch.int8)[torch.randint(4, groups[:, :, 0].shape, device="cuda")])
    groups[:, :, 1].view(torch.uint8).random_()
    l1_sf.fill_(0x7F7F7F7F)
    fill_moe(buffer, tokens, experts, topk)
    buffer.x[:tokens] = torch.randint(1, 4, (tokens, hidden), device="cuda").float()
    buffer.x_sf[:tokens] = 0x7F7F7F7F
    buffer.topk_weights[:tokens] = torch.randint(-6, 3, (tokens, topk), device="cuda").float().exp2()
    own.buffer.copy_(buffer.buffer)
    y = torch.empty(tokens, hidden, device="cuda", dtype=torch.bfloat16)
    run_moe(y, (l1, l1_sf), l2, buffer)
    run_moe(y.cpu(), on_cpu((l1, l1_sf)), on_cpu(l2), own)
    rows = int((own.topk_idx[:tokens] >= 0).sum())
    assert torch.equal(buffer.l2_acts[:rows].cpu().view(torch.uint8), own.l2_acts[:rows].view(torch.uint8))
    assert torch.equal(buffer.l2_acts_sf[:rows].cpu(), own.l2_acts_sf[:rows])
    assert bool(own.l2_acts[:rows].view(torch.uint8).any())


@pytest.mark.parametrize("mma_type", ["fp8xfp4", "bf16xbf16"])
def test_mega_moe_graphs_follow_the_routes(mma_type: str) -> None:
    """Nothing waits, nothing is allocated, and one captured call serves any tokens: with the same bits as a call, 20 times over."""
    experts, topk, hidden, intermediate, tokens = 7, 3, 256, 384, 150
    buffer, (l1, l2) = moe_buffer(mma_type, "cuda", experts, topk, hidden, intermediate), moe_weights(mma_type, experts, hidden, intermediate)
    y, stats = torch.empty(tokens, hidden, device="cuda", dtype=torch.bfloat16), torch.zeros(experts, device="cuda", dtype=torch.int32)
    fill_moe(buffer, tokens, experts, topk)
    run_moe(y, l1, l2, buffer, stats)
    allocated = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda._sleep(400_000_000)  # cycles: a fifth of a second
    run_moe(y, l1, l2, buffer, stats)
    done = torch.cuda.Event()
    done.record()
    assert not done.query(), "the call waited for the device"
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocated
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run_moe(y, l1, l2, buffer, stats)
    for used in (experts, 1):
        fill_moe(buffer, tokens, experts, topk)
        buffer.topk_idx.clamp_(max=used - 1)
        stats.zero_()
        graph.replay()
        replayed = y.clone()
        assert torch.equal(stats, torch.bincount(buffer.topk_idx[:tokens][buffer.topk_idx[:tokens] >= 0], minlength=experts).int())
        for _ in range(20):
            y.fill_(float("nan"))
            run_moe(y, l1, l2, buffer)
            assert torch.equal(y, replayed)


def test_the_mega_moe_buffer_of_an_nccl_group_is_on_the_gpu() -> None:
    if not torch.distributed.is_nccl_available():
        pytest.skip("needs NCCL")
    torch.distributed.init_process_group("nccl", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        group = torch.distributed.group.WORLD
        assert deep_gemm.get_symm_buffer_for_mega_moe(group, 2, 5, 2, 128, 128).buffer.device.type == "cuda"
    finally:
        torch.distributed.destroy_process_group()


def test_scales_whose_product_is_beyond_f32() -> None:
    for m in (8, 150):
        a, b = operands(m, 40, 256)
        a[0][0].zero_()
        sfa, sfb = torch.full_like(a[1], 2.0**100), torch.full_like(b[1], 2.0**-110)
        sfa[0], sfb[:, 1] = 2.0**100, 2.0**40
        a[0][1:, 128:].zero_()
        d = torch.empty(m, 40, device="cuda")
        deep_gemm.fp8_gemm_nt((a[0], sfa), (b[0], sfb), d)
        assert bool((d[0] == 0).all()), "zeros stay zeros"
        assert relative_error(d[1:], (exact((a[0], sfa), 1) @ exact((b[0], sfb), 128).T)[1:]) < 1e-6


def test_einsum_is_one_launch() -> None:
    a, b, d = bf16(4, 8, 64), bf16(8, 128, 64), torch.empty(4, 8, 128, device="cuda")
    call: Callable[[], None] = lambda: deep_gemm.einsum("bhr,hdr->bhd", a, b, d)
    call()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    assert sum(event.count for event in profiler.key_averages() if "gemm" in event.key) == 1
