"""What type checkers say: nothing on the package and on typical calls, exactly the expected errors on wrong calls, and the stub is
what the module is. Calls of every operator, right and wrong, are made of the schema."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import deep_gemm
from codegen.schema_file import parse_file

TYPING = Path(__file__).parent / "typing"
sys.path.insert(0, str(TYPING))
import calls  # noqa: E402

GOOD, BAD = TYPING / "good_calls.py", TYPING / "bad_calls.py"
PACKAGE = Path(deep_gemm.__file__).parent

# What stubtest may not look at, as regular expressions.
ALLOWED = """
deep_gemm\\.__all__ # made when it is asked for, of the names that test_package.py compares
deep_gemm\\.libdeep_gemm_torch # a library beside the modules, no module
deep_gemm\\.__main__\\..* # ctypes makes attributes of fields when the program runs
deep_gemm\\._torch\\.error # the name in an except clause, which Python deletes
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


def pyrefly(paths: str, folder: Path) -> str:
    """What pyrefly prints, one line an error."""
    config = folder / "pyrefly.toml"
    config.write_text(f"""
project-includes = ["{paths}"]
python-version = "3.10"
search-path = ["{PACKAGE.parent}"]
python-interpreter-path = "{sys.executable}"
""")
    command = [sys.executable, "-m", "pyrefly", "check", "--config", str(config), "--output-format", "min-text"]
    run = subprocess.run(command, capture_output=True, text=True, env=environment())
    errors = [line for line in run.stdout.splitlines() if line.startswith("ERROR ")]
    assert run.returncode == (1 if errors else 0), run.stdout + run.stderr
    return "\n".join(errors)


def ty(path: Path) -> str:
    """What ty prints, one line an error."""
    command = [sys.executable, "-m", "ty", "check", "--python", sys.executable, "--python-version", "3.10", "--output-format", "concise"]
    run = subprocess.run([*command, "--extra-search-path", PACKAGE.parent, path], capture_output=True, text=True, env=environment())
    assert run.returncode in (0, 1), run.stderr
    return run.stdout


def error_lines(path: Path, output: str) -> set[int]:
    return {int(line) for line in re.findall(rf"{path.name}:(\d+):.*\berror\b", output, re.IGNORECASE)} | {
        int(line) for line in re.findall(rf"ERROR .*{path.name}:(\d+):", output)
    }


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


# ---- the quick ones ----------------------------------------------------------------------------------------------


def test_pyrefly_finds_nothing_in_the_package(tmp_path: Path) -> None:
    assert pyrefly(f"{PACKAGE}/**/*.py*", tmp_path) == ""


def test_ty_finds_nothing_in_the_package() -> None:
    assert ty(PACKAGE).splitlines() == ["All checks passed!"]


def test_pyrefly_takes_good_calls_and_refuses_bad_ones(tmp_path: Path) -> None:
    assert pyrefly(str(GOOD), tmp_path) == ""
    assert error_lines(BAD, pyrefly(str(BAD), tmp_path)) == set(expected_errors(BAD, 0))


def test_ty_takes_good_calls_and_refuses_bad_ones() -> None:
    assert ty(GOOD).splitlines() == ["All checks passed!"]
    assert error_lines(BAD, ty(BAD)) == set(expected_errors(BAD, 0))


# ---- every operator ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Right calls, wrong calls."""
    schema = Path(os.environ["DG_SOURCE_DIR"], "schema", "ops.schema")
    library, _ = parse_file(str(schema), schema.read_bytes())
    assert library is not None
    right, wrong = (tmp_path_factory.mktemp("calls") / name for name in ("right.py", "wrong.py"))
    for path, text in zip((right, wrong), calls.calls(library)):
        path.write_text(text)
    return right, wrong


def errors_of_mypy(path: Path, folder: Path) -> set[int]:
    run = mypy(path, "--no-error-summary", "--hide-error-context", cache=folder)
    return error_lines(path, run.stdout)


def errors_of_basedpyright(path: Path, folder: Path) -> set[int]:
    return {d["range"]["start"]["line"] + 1 for d in basedpyright(path, folder)}  # type: ignore[index]


def errors_of_pyrefly(path: Path, folder: Path) -> set[int]:
    return error_lines(path, pyrefly(str(path), folder))


def errors_of_ty(path: Path, folder: Path) -> set[int]:
    return error_lines(path, ty(path))


CHECKERS = [errors_of_mypy, errors_of_basedpyright, errors_of_pyrefly, errors_of_ty]


@pytest.mark.parametrize("errors", CHECKERS, ids=lambda checker: checker.__name__.removeprefix("errors_of_"))
def test_right_and_wrong_calls_of_every_operator(errors: Callable[[Path, Path], set[int]], programs: tuple[Path, Path], tmp_path: Path) -> None:
    right, wrong = programs
    lines = wrong.read_text().splitlines()
    expected = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert len(expected) > 500
    assert not errors(right, tmp_path)
    found = errors(wrong, tmp_path)
    assert not [lines[number - 1] for number in expected - found], "these were let through"
    assert not [lines[number - 1] for number in found - expected], "these are right"
