"""What type checkers say: nothing on the package and on typical calls, exactly the expected errors on wrong calls, and the stub is
what the module is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import deep_gemm

TYPING = Path(__file__).parent / "typing"
GOOD, BAD = TYPING / "good_calls.py", TYPING / "bad_calls.py"
PACKAGE = Path(deep_gemm.__file__).parent

# What stubtest may not look at, as regular expressions.
ALLOWED = """
deep_gemm\\.__all__ # made when it is asked for, of the names that test_package.py compares
deep_gemm\\.libdeep_gemm_torch # a library beside the modules, no module
"""

Errors = Mapping[int, set[str]]  # by line


def mypy(*arguments: str | Path, cache: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.10", "--cache-dir", cache, *arguments]
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, env=environment())


def basedpyright(path: Path, folder: Path) -> list[dict[str, object]]:
    """What basedpyright reports on path in strict mode."""
    config = {
        "include": [str(path)],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.10",
        "extraPaths": [str(PACKAGE.parent)],
        "venvPath": str(Path(sys.prefix).parent),
        "venv": Path(sys.prefix).name,
    }
    project = folder / "pyrightconfig.json"
    project.write_text(json.dumps(config))
    command = [sys.executable, "-m", "basedpyright", "--project", str(project), "--pythonpath", sys.executable, "--outputjson"]
    run = subprocess.run(command, capture_output=True, text=True, env=environment())
    report = json.loads(run.stdout)
    assert report["summary"]["filesAnalyzed"] > 0, run.stderr
    diagnostics: list[dict[str, object]] = report["generalDiagnostics"]
    return diagnostics


def environment() -> dict[str, str]:
    return {**os.environ, "MYPYPATH": str(PACKAGE.parent), "PYTHONPATH": str(PACKAGE.parent)}


def expected_errors(path: Path, tool: int) -> Errors:
    """The codes in the comments: the first is mypy's, the second basedpyright's."""
    result: dict[int, set[str]] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := re.search(r"# error: (.*)$", line):
            result[number] = set(match[1].split(", ")[tool].split())
    assert result
    return result


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mypy")


def test_mypy_finds_nothing_in_the_package(cache: Path) -> None:
    run = mypy("-p", "deep_gemm", cache=cache)
    assert run.returncode == 0, run.stdout + run.stderr


def test_mypy_takes_good_calls(cache: Path) -> None:
    run = mypy(GOOD, cache=cache)
    assert run.returncode == 0, run.stdout + run.stderr


def test_mypy_refuses_bad_calls(cache: Path) -> None:
    run = mypy(BAD, "--no-error-summary", "--hide-error-context", cache=cache)
    found: dict[int, set[str]] = {}
    for match in re.finditer(r"bad_calls\.py:(\d+): error: .*\[([a-z-]+)\]$", run.stdout, re.MULTILINE):
        found.setdefault(int(match[1]), set()).add(match[2])
    assert found == expected_errors(BAD, 0), run.stdout + run.stderr


def test_basedpyright_finds_nothing_in_the_package(tmp_path: Path) -> None:
    assert basedpyright(PACKAGE, tmp_path) == []


def test_basedpyright_takes_good_calls(tmp_path: Path) -> None:
    assert basedpyright(GOOD, tmp_path) == []


def test_basedpyright_refuses_bad_calls(tmp_path: Path) -> None:
    found: dict[int, set[str]] = {}
    diagnostics = basedpyright(BAD, tmp_path)
    for d in diagnostics:
        line = d["range"]["start"]["line"] + 1  # type: ignore[index]
        found.setdefault(line, set()).add(str(d["rule"]))
    assert found == expected_errors(BAD, 1), diagnostics


def test_stubtest_finds_no_difference(cache: Path, tmp_path: Path) -> None:
    config = tmp_path / "mypy.ini"
    config.write_text(f"[mypy]\ncache_dir = {cache}\n")
    allowed = tmp_path / "allowed.txt"
    allowed.write_text(ALLOWED)
    options = ["--mypy-config-file", str(config), "--allowlist", str(allowed)]
    command = [sys.executable, "-m", "mypy.stubtest", "deep_gemm", *options]
    run = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert run.returncode == 0, run.stdout + run.stderr
