"""How long the generator takes, in CPU time of an idle core: work of known cost says how much slower this machine is now."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

jinja2 = pytest.importorskip("jinja2")
resource = pytest.importorskip("resource")

from codegen.stamp import ROOT  # noqa: E402

REPOSITORY = Path(ROOT).parent
SECONDS_OF_WORK = 0.4  # of the work below, on a server core of 2023 with little else to do


def slowness() -> float:
    """How many times slower than that core, 1 at least. The work is of the generator's kind: strings, matches, small objects."""
    start = time.process_time()
    text = " ".join(f"name_{i % 997} = align(x{i}, {i})" for i in range(60_000))
    found: dict[tuple[str | None, str], list[int]] = {}
    for match in re.finditer(r"(?P<word>[A-Za-z_]\w*)|(?P<number>[0-9]+)|(?P<mark>[(),=])", text):
        found.setdefault((match.lastgroup, match.group()), []).append(match.start())
    return max(1.0, (time.process_time() - start) / SECONDS_OF_WORK)


def fastest(run: Callable[[], float]) -> float:
    """The best of three runs, in seconds of that core."""
    times = []
    for _ in range(3):
        before = slowness()
        seconds = run()
        times.append(seconds / max(before, slowness()))
    return min(times)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Compiled modules and templates are kept, as they are for every user, but not in the source tree."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}
    return {**kept, "PYTHONPYCACHEPREFIX": str(tmp_path_factory.mktemp("compiled")), "PYTHONPATH": str(REPOSITORY)}


def cpu_seconds(command: list[str], environment: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return float(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def generate(schema: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "codegen", "generate", "--schema", str(schema), "--out", str(out)]


def test_from_cold_and_unchanged(tmp_path: Path, environment: dict[str, str]) -> None:
    schema = REPOSITORY / "schema" / "ops.schema"
    cpu_seconds(generate(schema, tmp_path / "first"), environment)  # compiles the modules
    outs = iter(tmp_path / f"out{i}" for i in range(3))
    assert fastest(lambda: cpu_seconds(generate(schema, next(outs)), environment)) < 0.5
    bare = fastest(lambda: cpu_seconds([sys.executable, "-c", ""], environment))
    unchanged = fastest(lambda: cpu_seconds(generate(schema, tmp_path / "first"), environment))
    assert unchanged - bare < 0.1


def test_a_thousand_operators(tmp_path: Path, environment: dict[str, str]) -> None:
    text = (REPOSITORY / "schema" / "ops.schema").read_text("utf-8")
    header, section, operators = text.partition("\nsection ")
    names = {*re.findall(r"(?m)^(\w+)\(", text), *re.findall(r"\w+", " ".join(re.findall(r"(?m)^@alias (.*)", text)))}
    copies = -(-1000 // len(re.findall(r"(?m)^\w+\(", text)))
    pattern = re.compile(rf"\b({'|'.join(sorted(names, key=len, reverse=True))})\b")
    whole = header + "".join(section + pattern.sub(rf"\1_{i}", operators) for i in range(copies))
    schema = tmp_path / "ops.schema"
    schema.write_text(whole, "utf-8")
    outs = iter(tmp_path / f"out{i}" for i in range(3))
    assert fastest(lambda: cpu_seconds(generate(schema, next(outs)), environment)) < 3.0
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 400 * 1024  # KiB


def test_a_run_keeps_compiled_templates(tmp_path: Path, environment: dict[str, str]) -> None:
    """Beside the compiled modules, and only where those are kept."""
    schema = REPOSITORY / "schema" / "ops.schema"

    def kept(name: str, **more: str) -> list[Path]:
        folder = tmp_path / name
        cpu_seconds(generate(schema, tmp_path / f"{name}-out"), {**environment, "PYTHONPYCACHEPREFIX": str(folder), **more})
        return list(folder.rglob("*.jinja2-*.pyc"))

    assert kept("with")
    assert not kept("without", PYTHONDONTWRITEBYTECODE="1")
    for path in (tmp_path / "with").rglob("*.jinja2-*.pyc"):
        path.write_bytes(path.read_bytes()[:40])  # cut off: as good as none
    cpu_seconds(generate(schema, tmp_path / "again"), {**environment, "PYTHONPYCACHEPREFIX": str(tmp_path / "with")})
    outputs = {p.relative_to(tmp_path / "again"): p.read_bytes() for p in (tmp_path / "again").rglob("*") if p.is_file()}
    assert all((tmp_path / "with-out" / path).read_bytes() == data for path, data in outputs.items())
