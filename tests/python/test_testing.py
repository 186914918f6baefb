"""``deep_gemm.testing`` and the helpers for several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import deep_gemm
from deep_gemm import testing


def test_calc_diff() -> None:
    x = torch.tensor([1.0, 2.0, 2.0])
    assert testing.calc_diff(x, x) == 0
    assert testing.calc_diff(torch.zeros(3), torch.zeros(3)) == 0
    assert testing.calc_diff(x, torch.zeros(3)) == 1
    assert testing.calc_diff(x, -x) == 2
    assert testing.calc_diff(x, x * 1.001) == pytest.approx(0.001**2 / 2, rel=1e-2)
    assert testing.calc_diff(x.bfloat16(), x) == 0


def test_assert_bitwise_equal() -> None:
    x = torch.tensor([1.0, float("nan"), -0.0])
    testing.assert_bitwise_equal(x, x.clone())
    with pytest.raises(AssertionError, match="^out: 1 of 3 elements differ, the first at flat index 2: -0.0 and 0.0$"):
        testing.assert_bitwise_equal(x, torch.tensor([1.0, float("nan"), 0.0]), label="out")
    with pytest.raises(AssertionError):
        testing.assert_bitwise_equal(x, x.double())
    testing.assert_bitwise_equal(torch.zeros(0), torch.zeros(0))


def test_count_bytes() -> None:
    x = torch.zeros(3, 5)
    assert testing.count_bytes(x, x.half(), None, (x, [x, None])) == 60 + 30 + 60 + 60


def test_bench_times_on_the_cpu() -> None:
    calls: list[int] = []
    seconds = testing.bench(lambda: calls.append(1), num_warmups=2, num_tests=5)
    assert len(calls) == 7 and 0 <= seconds < 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_bench_kineto_needs_a_gpu() -> None:
    with pytest.raises(RuntimeError, match="this machine has none"):
        testing.bench_kineto(lambda: None, "gemm")
    assert testing.get_arch_major() == 0


def test_filters(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    @testing.test_filter(lambda: False)
    def left_out() -> int:
        return 1

    @testing.test_filter(lambda: True)
    def kept() -> int:
        return 1

    assert (left_out(), kept()) == (None, 1)
    assert "left_out" in capsys.readouterr().out

    monkeypatch.setenv("DG_TESTING", "1")
    for condition in (True, False):

        @testing.ignore_env("DG_TESTING", lambda: condition)
        def read() -> str | None:
            return os.environ.get("DG_TESTING")

        assert read() == (None if condition else "1")
        assert os.environ["DG_TESTING"] == "1"


def test_two_processes_gather_what_they_have() -> None:
    code = """
import sys, torch
from deep_gemm.utils import init_dist, uneven_all_gather
from deep_gemm.utils.dist import dist_print
rank, count, group = init_dist(int(sys.argv[1]), 2)
x = torch.full((2, rank + 1), float(rank))
assert uneven_all_gather(x, dim=1, group=group).tolist() == [[0.0, 1.0, 1.0]] * 2
assert uneven_all_gather(x.T, group=group).tolist() == [[0.0] * 2, [1.0] * 2, [1.0] * 2]
dist_print("done", once_in_node=True)
torch.distributed.destroy_process_group()
"""
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(deep_gemm.__file__).parent.parent),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "1",
        "RANK": "0",
        "CUDA_VISIBLE_DEVICES": "",
    }
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(i)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    outputs = [p.communicate(timeout=120) for p in processes]
    assert [p.returncode for p in processes] == [0, 0], outputs
    assert [out for out, _ in outputs] == ["[rank 0] done\n", ""]
