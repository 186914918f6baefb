"""The cookbook: every program of bindings/python/examples runs, and so does every piece of Python in the pages about the package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BINDINGS = Path(os.environ["DG_SOURCE_DIR"]) / "bindings" / "python"
EXAMPLES = BINDINGS / "examples"
PAGES = [BINDINGS / "README.md", BINDINGS / "MIGRATION.md", BINDINGS.parents[1] / "README.md"]

# The tour and its model are what `cmake --workflow --preset demo` runs.
ELSEWHERE = {"demo.py", "quantized_encoder.py"}
PROGRAMS = sorted(path.name for path in EXAMPLES.glob("*.py") if path.name not in ELSEWHERE)


def run(*arguments: str | Path) -> str:
    done = subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_runs_on_the_cpu(program: str) -> None:
    assert "on cpu: relative error" in run(EXAMPLES / program)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_runs_on_a_gpu(program: str) -> None:
    assert "on cuda: relative error" in run(EXAMPLES / program, "cuda")


def test_the_page_lists_the_programs() -> None:
    listed = re.findall(r"^\| \[(\w+\.py)\]\(examples/(\w+\.py)\)", PAGES[0].read_text(), re.MULTILINE)
    assert sorted(name for name, _ in listed) == sorted([*PROGRAMS, "quantized_encoder.py"])
    assert all(name == path for name, path in listed)


def snippets() -> list[tuple[str, str]]:
    found = [(page, code) for page in PAGES for code in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)]
    assert len(found) >= 4
    return [(f"{page.relative_to(BINDINGS.parents[1])}-{index}", code) for index, (page, code) in enumerate(found)]


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in snippets()])
def test_the_python_of_the_pages_runs(code: str) -> None:
    if "dlpack" in code:
        pytest.importorskip("ml_dtypes")
    exec(code, {})


def test_links_of_the_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page}: {target}"
