"""The CUDA benchmark as far as it goes without a GPU: its cases run on the CPU, its loop with a clock that does not look."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_cases
import plot_cuda
import pytest
import torch
from cuda_cases import Case, Fields, Inputs, Row, make_case

HERE = Path(__file__).parent


def load_program() -> Any:
    """cuda.py under another name: `cuda` is also a package of NVIDIA's."""
    spec = importlib.util.spec_from_file_location("bench_cuda", HERE / "cuda.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


program = load_program()

# Each form of a case, in small: section, case, GEMM-like work in products, bytes or None.
SMALL = [
    ("fp8_fp4: GEMM", "m=3, n=130, k=256, 1D2D, layout=NT, BF16, acc=0", 3 * 130 * 256, 3 * 256 + 130 * 256 + 4 * (3 * 2 + 2 * 2) + 2 * 390),
    ("fp8_fp4: GEMM", "m=3, n=130, k=256, 1D1D, layout=NT, FP32, acc=1", 3 * 130 * 256, 3 * 256 + 130 * 256 + 4 * (3 * 2 + 130 * 2) + 8 * 390),
    ("bf16: GEMM", "m=3, n=40, k=64, layout=NT, BF16, acc=1", 3 * 40 * 64, 2 * (3 * 64 + 40 * 64 + 2 * 120)),
    ("bf16: GEMM", "m=3, n=40, k=64, layout=NN, FP32, acc=0", 3 * 40 * 64, 2 * (3 * 64 + 40 * 64) + 4 * 120),
    ("bf16: GEMM", "m=3, n=40, k=64, layout=TN, FP32, acc=1", 3 * 40 * 64, 2 * (3 * 64 + 40 * 64) + 8 * 120),
    ("bf16: cuBLASLt GEMM", "m=3, n=40, k=64, layout=TN, BF16, acc=0", 3 * 40 * 64, 2 * (3 * 64 + 40 * 64 + 120)),
    ("fp8_fp4: m-grouped contiguous GEMM", "num_groups=2, m=512, n=64, k=128, 1D2D, layout=NT, psum=True, zero_pad=False", 512 * 64 * 128, None),
    ("fp8_fp4: m-grouped contiguous GEMM", "num_groups=2, m=512, n=64, k=128, 1D2D, layout=NT, psum=False, zero_pad=False", 512 * 64 * 128, None),
    ("bf16: m-grouped contiguous GEMM", "num_groups=2, m=512, n=64, k=32, layout=NN, psum=True, zero_pad=False", 512 * 64 * 32, None),
    ("bf16: m-grouped contiguous GEMM", "num_groups=2, m=512, n=64, k=32, layout=NT, psum=False, zero_pad=False", 512 * 64 * 32, None),
    ("fp8_fp4: m-grouped masked GEMM", "num_groups=2, expected_m_per_group=5, n=32, k=128, 1D2D, psum=0", 10 * 32 * 128, None),
    ("fp8_fp4: m-grouped masked GEMM", "num_groups=2, expected_m_per_group=5, n=32, k=128, 1D2D, psum=1", 10 * 32 * 128, None),
    ("bf16: m-grouped masked GEMM", "num_groups=2, expected_m_per_group=5, n=32, k=16, psum=0", 10 * 32 * 16, None),
    ("bf16: m-grouped masked GEMM", "num_groups=2, expected_m_per_group=5, n=32, k=16, psum=1", 10 * 32 * 16, None),
    ("fp8_fp4: k-grouped contiguous GEMM", "num_groups=2, m=8, n=24, k=512, gran_k=128, k_alignment=128, psum=0", 8 * 24 * 512, None),
    ("bf16: k-grouped contiguous GEMM", "num_groups=2, m=8, n=24, k=512, align=128, psum=0", 8 * 24 * 512, None),
    ("attention: GEMM skip head mid", "m=3, n=512, k=128, 1D2D", 3 * 512 * 128, None),
    ("attention: FP8 MQA Logits", "FP4=0, Logits=BF16, Reduce=FP32, CMP=0, SQ=8, SK=32, H=4, D=32, CP=1", sum((*range(4, 8), *range(24, 28))) * 4 * 32, None),
    ("attention: FP8 MQA Logits", "FP4=0, Logits=FP32, Reduce=FP32, CMP=1, SQ=8, SK=32, H=4, D=32, CP=0", sum(range(24, 32)) * 4 * 32, None),
    ("attention: FP8/FP4 Paged MQA Logits", "FP4=0, Logits=FP32, Reduce=FP32, VAR=0, PAGE_KV=64, BSZ=3, NextN =2, H=4, D=32, L=100", 300 * 2 * 4 * 32, None),
    ('einsum: "bmk, bnk -> mn"', "b=3, m=8, n=24, k=16, FP32", 3 * 8 * 24 * 16, None),
    ('einsum: "bmk, bnk -> mn"', "b=3, m=8, n=24, k=16, BF16", 3 * 8 * 24 * 16, None),
    ('einsum: "bhr, hdr -> bhd"', "b=3, h=2, r=16, d=8", 3 * 2 * 16 * 8, None),
    ('einsum: "bhd, hdr -> bhr"', "b=3, h=2, r=16, d=8", 3 * 2 * 16 * 8, None),
    ('einsum: FP8 "bhr, hdr -> bhd"', "b=3, h=2, r=256, d=130", 3 * 2 * 256 * 130, None),
    ("hyperconnection: hyperconnection prenorm GEMM", "m=5, n=24, k=64, num_splits=0", 5 * 24 * 64, 2 * 320 + 4 * (24 * 64 + 5 * 25)),
    ("hyperconnection: hyperconnection prenorm GEMM", "m=5, n=24, k=64, num_splits=4", 5 * 24 * 64, 2 * 320 + 4 * (24 * 64 + 4 * 5 * 25)),
    ("whole op: fp8_gemm_nt in a CUDA graph (scale transform + GEMM, warm L2)", "m=3 n=40 k=128", 3 * 40 * 128, None),
    ("whole op: bf16_gemm_nt in a CUDA graph (warm L2)", "m=3 n=40 k=64", 3 * 40 * 64, None),
    ("host: fp8_gemm_nt, Python call until it returns", "m=3 n=40 k=128", 3 * 40 * 128, None),
    ("host: bf16_gemm_nt, Python call until it returns", "m=3 n=40 k=64", 3 * 40 * 64, None),
    ("casts", "per_token_cast_to_fp8, m=4, n=512, gran_k=32, packed, BF16", 0, 2 * 2048 + 2048 + 4 * 16),
    ("casts", "per_token_cast_to_fp8, m=4, n=512, gran_k=128, FP32", 0, 4 * 2048 + 2048 + 4 * 4 * 4),
    ("casts", "per_channel_cast_to_fp8, m=128, n=32, gran_k=128, BF16", 0, 3 * 4096 + 4 * 32),
    ("casts", "per_block_cast_to_fp8, m=130, n=32, gran_k=128, BF16", 0, 3 * 4160 + 4 * 2),
    ("casts", "per_token_cast_to_fp4, m=4, n=64, gran_k=32, BF16", 0, 2 * 256 + 128 + 4 * 8),
    ("casts", "cast_back_from_fp4, m=4, n=64, gran_k=32", 0, 128 + 4 * 8 + 4 * 256),
    ("scale layouts", "get_mn_major_tma_aligned_tensor, mn=8, blocks=6", 0, 2 * 4 * 48),
    ("scale layouts", "get_mn_major_tma_aligned_packed_ue8m0_tensor, mn=8, blocks=6, MN-major", 0, 4 * 48 + 4 * 16),
    ("scale layouts", "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor, mn=8, blocks=16, num_groups=2", 0, None),
    ("scale layouts", "transform_sf_into_required_layout, mn=256, blocks=6, gran_mn=128", 0, 4 * 12 + 4 * 512),
    ("mega MoE", "FP8xFP4, tokens=3, experts=4, topk=2, hidden=256, intermediate=128", 9 * 2 * 256 * 128, None),
    ("mega MoE", "BF16, tokens=3, experts=4, topk=2, hidden=256, intermediate=128", 9 * 2 * 256 * 128, None),
]  # fmt: skip


@pytest.mark.parametrize("section, text, products, size", SMALL, ids=[f"{section}: {text}" for section, text, *_ in SMALL])
def test_cases_run(section: str, text: str, products: int, size: int | None) -> None:
    case = make_case(Row(section, text), "cpu")
    case.call()
    if case.peer is not None:
        case.peer()
    assert case.flops == 2 * products
    assert case.size > 0 if size is None else case.size == size
    assert (case.unit == "") == (products == 0)


def test_every_section_runs_in_small() -> None:
    assert {section for section, *_ in SMALL} == set(cuda_cases.SECTIONS)


@pytest.mark.parametrize(
    "text, says",
    [
        ("m=1, n=8, k=8, layout=NT, BF16", "has no 'acc'"),
        ("m=1, n=8, k=8, layout=NT, BF16, FP32, acc=0", "expected one"),
        ("m=1, n=8, k=8, layout=NT, BF16, acc=0, turbo=1", "nothing here understands turbo"),
    ],
)
def test_text_that_is_not_understood(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make_case(Row("bf16: GEMM", text), "cpu")


def test_values_without_a_case() -> None:
    with pytest.raises(ValueError, match="FP4 is 1, expected 0"):
        Fields("FP4=1").expect("FP4", "0")


def test_sizes_do_the_work_of_the_table() -> None:
    text = "num_groups=6, expected_m_per_group=20, n=64, k=64, psum=0"
    flops = 2 * 131 * 64 * 64
    row = Row("bf16: m-grouped masked GEMM", text, us=1.0, tflops=1e-6 * flops)
    assert make_case(row, "cpu", is_real=False).flops == flops
    inputs = Inputs("cpu", row)
    sizes = inputs.sizes(6, 6 * 128 * 5, 128)
    assert sum(sizes) == 6 * 128 * 5 and all(size % 128 == 0 for size in sizes)
    assert sizes == Inputs("cpu", row).sizes(6, 6 * 128 * 5, 128)


# ---- the profiler's record -------------------------------------------------------------------------------------


def test_kernels_of_each_call() -> None:
    flush, part, small = ("fill", 2000.0), ("fill", 1900.0), ("fill", 1.5)
    record = [flush, part, small, ("gemm", 10.0), flush, part, small, ("gemm", 12.0)]
    assert program.per_call(record, 2) == [[1.5, 10.0], [1.5, 12.0]]
    for broken, calls, says in (
        ([], 1, "no kernel"),
        (record, 3, "2 of 3 flushes"),
        (record[:-1], 2, "from 1 to 2 kernels"),
        (record[:4] + record[6:], 2, "1 of 2 flushes"),
        (record[:6], 2, "no kernel of a call"),
    ):
        with pytest.raises(program.Unmeasured, match=says):
            program.per_call(broken, calls)


# ---- whole runs ------------------------------------------------------------------------------------------------


def dry_run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "cuda.py", "--dry-run", *options], cwd=HERE, capture_output=True, text=True, check=False)


def test_dry_run_of_the_own_rows() -> None:
    done = dry_run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 are not measured, 0 failed" in done.stdout.splitlines()[-1]


def test_dry_run_finds_what_is_wrong(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text(
        "section,case,us,tflops,gb_per_s,ratio\n"
        'bf16: GEMM,"m=128, n=256, k=512, layout=NT, BF16, acc=0",10,3,50,1\n'
        'attention: GEMM skip head mid,"m=128, n=100, k=512, 1D2D",10,1,1,\n'
        'bf16: GEMM,"m=128, n=256",10,1,1,\n'
        '"host: bf16_gemm_nt, Python call until it returns",m=1 n=576 k=7168,24.3,,,\n'
        '"host: torch.mm(out=), Python call until it returns",m=1 n=576 k=7168,24.3,,,\n'
        "convolution,m=1,24.3,,,\n"
    )
    done = dry_run("--baseline", str(table), "--sections", "GEMM,host,convolution")
    assert done.returncode == 1
    assert "would run     bf16: GEMM: m=128, n=256, k=512" in done.stdout and "of the table's work: 1.12, 0.92" in done.stdout
    assert "ValueError: fp8_gemm_nt_skip_head_mid: n must be a multiple of left + right" in done.stdout
    assert "'m=128, n=256' has no 'k'" in done.stdout
    assert "torch.mm is no operator" in done.stdout and "there is no operator for this section" in done.stdout
    assert done.stdout.splitlines()[-1] == "6 rows: 2 would run, 2 are not measured, 2 failed"


class FakeClock:
    """Runs each call once, and says that it took 10 us and one kernel more."""

    def __init__(self, calls: int, seconds_per_row: float) -> None:
        self.calls = calls

    def kernels_us(self, call: Callable[[], object], most: int) -> list[list[float]]:
        call()
        return [[8.0, 2.0]] * most

    def us(self, call: Callable[[], object]) -> float:
        return 10.0

    def graph_us(self, call: Callable[[], object]) -> list[float]:
        call()
        return [11.0]

    def host_us(self, call: Callable[[], object]) -> list[float]:
        call()
        return [12.0, 13.0, 14.0]


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    head = {"commit": "0123456", "date": "2000-01-01", "device": "a card <1>", "cuda": "13.0", "torch": "2.13"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(program, "Clock", FakeClock)
    monkeypatch.setattr(program, "describe_run", lambda args: dict(head))
    monkeypatch.setattr(program, "describe_card", dict)
    monkeypatch.setattr(program, "measure_machine", lambda clock: program.Machine(100.0, 4000.0, {"bf16": 800.0, "fp8": 1600.0, "tf32": 400.0}))
    make = cuda_cases.make_case

    def make_on_cpu(row: Row, device: str) -> Case:
        assert device == "cuda"
        if "refused" in row.case:
            raise NotImplementedError("this operator has no CUDA row")
        return make(row, "cpu")

    monkeypatch.setattr(cuda_cases, "make_case", make_on_cpu)


def options(**changed: object) -> argparse.Namespace:
    values = {"json": None, "calls": 3, "seconds_per_row": 0.1, "seconds": None, "watchdog": 60, "no_peers": False}
    return argparse.Namespace(**{**values, **changed})


@pytest.mark.usefixtures("without_gpu")
def test_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        Row("bf16: GEMM", "m=128, n=40, k=64, layout=NT, BF16, acc=0", us=5.0),
        Row("bf16: GEMM", "m=129, n=40, k=64, layout=NT, BF16, acc=0", us=20.0),
        Row("bf16: GEMM", "m=3, nonsense"),
        Row("mega MoE", "refused"),
        Row("casts", "per_block_cast_to_fp8, m=256, n=32, gran_k=128, BF16"),
        Row("host: first call", "m=1"),
        Row("whole op: bf16_gemm_nt in a CUDA graph (warm L2)", "m=3 n=40 k=64"),
        Row("host: bf16_gemm_nt, Python call until it returns", "m=3 n=40 k=64", us=26.0),
    ]
    path = tmp_path / "out.json"
    assert program.run(options(json=str(path)), rows) == 1
    printed = capsys.readouterr().out
    found = json.loads(path.read_text())
    assert [(row["us"], row["kernels"], row["calls"], row["baseline_us"]) for row in found["rows"]] == [
        (10, 2, 3, 5),
        (10, 2, 3, 20),
        (10, 2, 3, None),
        (11, None, 1, None),
        (13, None, 3, 26),
    ]
    assert [row["case"] for row in found["not_measured"]] == ["refused", "m=1"]
    assert [row["why"] for row in found["failed"]] == ["ValueError: 'm=3, nonsense' has no 'n'"]
    assert [machine["section"] for machine in found["machine"]] == ["bf16: GEMM", "mega MoE", "casts", rows[6].section, rows[7].section]
    size = 2 * (128 * 64 + 40 * 64 + 128 * 40)
    assert found["rows"][0]["limit_us"] == pytest.approx(2.6 + size / 4e6, abs=1e-3)
    assert "2.00  bf16: GEMM: m=128" in printed and "FAILED: 1 rows" in printed and "this operator has no CUDA row" in printed
    means = next(line for line in printed.splitlines() if line.split()[:2] == ["bf16:", "GEMM"])
    assert means.split()[2] == "2" and means.split()[-3:] == ["1.00", "2", "-"]

    picture = plot_cuda.picture(found)
    root = ElementTree.fromstring(picture)
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "bf16: GEMM (2)" in words and "casts (1)" in words
    assert any(word is not None and word.endswith("1.00 x DeepGEMM's time") for word in words)
    assert not any(word is not None and word.startswith("host") for word in words)  # it has no limit


@pytest.mark.usefixtures("without_gpu")
def test_rows_beyond_the_time_are_listed(tmp_path: Path) -> None:
    rows = [Row("bf16: GEMM", "m=3, n=40, k=64, layout=NT, BF16, acc=0")]
    path = tmp_path / "out.json"
    assert program.run(options(json=str(path), seconds=0.001), rows) == 0
    assert "of --seconds were over" in json.loads(path.read_text())["not_measured"][0]["why"]


@pytest.mark.usefixtures("without_gpu")
def test_a_lost_device_fails_the_rest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def lose() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", lose)
    rows = [Row("bf16: GEMM", "nonsense"), Row("bf16: GEMM", "m=3, n=40, k=64, layout=NT, BF16, acc=0")]
    path = tmp_path / "out.json"
    assert program.run(options(json=str(path)), rows) == 1
    assert "the device was lost" in json.loads(path.read_text())["failed"][1]["why"]


def test_needs_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run([sys.executable, "cuda.py"], cwd=HERE, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 1 and "needs a CUDA device" in done.stderr
