"""What type checkers say of the stub of deep_gemm.dlpack: it is what the module is, takes good calls, and refuses wrong ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "python"))

from test_typing import basedpyright, environment, expected_errors, mypy  # noqa: E402

TYPING = Path(__file__).parent / "typing"
GOOD, BAD = TYPING / "good_calls.py", TYPING / "bad_calls.py"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mypy")


def test_mypy_takes_good_calls(cache: Path) -> None:
    run = mypy(GOOD, cache=cache)
    assert run.returncode == 0, run.stdout + run.stderr


def test_mypy_refuses_bad_calls(cache: Path) -> None:
    run = mypy(BAD, "--no-error-summary", "--hide-error-context", cache=cache)
    found: dict[int, set[str]] = {}
    for match in re.finditer(r"bad_calls\.py:(\d+): error: .*\[([a-z-]+)\]$", run.stdout, re.MULTILINE):
        found.setdefault(int(match[1]), set()).add(match[2])
    assert found == expected_errors(BAD, 0), run.stdout + run.stderr


def test_basedpyright_takes_good_calls(tmp_path: Path) -> None:
    assert basedpyright(GOOD, tmp_path) == []


def test_basedpyright_refuses_bad_calls(tmp_path: Path) -> None:
    found: dict[int, set[str]] = {}
    diagnostics = basedpyright(BAD, tmp_path)
    for d in diagnostics:
        line = d["range"]["start"]["line"] + 1  # type: ignore[index]
        found.setdefault(line, set()).add(str(d["rule"]))
    assert found == expected_errors(BAD, 1), diagnostics


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_arrays_of_other_libraries(library: str, cache: Path, tmp_path: Path) -> None:
    pytest.importorskip(library)
    array = {"jax": "jax.Array", "torch": "torch.Tensor"}[library]
    calls = tmp_path / "calls.py"
    calls.write_text(
        f"import {library}\nfrom deep_gemm import dlpack\n\n\ndef f(x: {array}) -> None:\n"
        "    dlpack.bf16_gemm_nt(x, x, x)\n    print(dlpack.get_mn_major_tma_aligned_tensor(x))\n"
    )
    run = mypy(calls, cache=cache)
    assert run.returncode == 0, run.stdout + run.stderr
    assert basedpyright(calls, tmp_path) == []


def test_stubtest_finds_no_difference(cache: Path, tmp_path: Path) -> None:
    config = tmp_path / "mypy.ini"
    config.write_text(f"[mypy]\ncache_dir = {cache}\n")
    command = [sys.executable, "-m", "mypy.stubtest", "deep_gemm.dlpack", "--mypy-config-file", str(config)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert run.returncode == 0, run.stdout + run.stderr
