"""``init`` makes a library that builds and passes; ``new`` adds an operator that builds and fails until its kernel is right."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

jinja2 = pytest.importorskip("jinja2")

from codegen.cli import main  # noqa: E402
from codegen.schema_file import parse_file  # noqa: E402
from codegen.stamp import ROOT  # noqa: E402

REPOSITORY = Path(ROOT).parent


def needs_cmake() -> None:
    if shutil.which("cmake") is None or shutil.which("ctest") is None:
        pytest.skip("cmake is not installed: nothing can be built")


def build(library: Path) -> None:
    folder = library / "build"
    subprocess.run(["cmake", "-S", library, "-B", folder, "-DCMAKE_C_FLAGS=-Wall -Wextra -Werror -Wshadow"], check=True, capture_output=True)
    done = subprocess.run(["cmake", "--build", folder, "--parallel", "2"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def outcome(library: Path) -> tuple[int, str]:
    command = ["ctest", "--test-dir", str(library / "build"), "--output-on-failure"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout


def codegen(library: Path, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    options = ["--schema", "schema/ops.schema"] if verb != "init" else []
    command = [sys.executable, "-m", "codegen", verb, *words, *options]
    return subprocess.run(command, cwd=library, env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True)


def test_a_library_from_nothing(tmp_path: Path) -> None:
    needs_cmake()
    done = codegen(tmp_path, "init", "wave", "--prefix", "wv")
    assert done.returncode == 0, done.stderr
    library = tmp_path / "wave"
    written = done.stdout.split()
    assert "wave/schema/ops.schema" in written and "wave/generated/include/wave/ops.h" in written
    assert sorted(written) == sorted(str(p.relative_to(tmp_path)) for p in library.rglob("*") if p.is_file() and p.name != ".stamp")
    build(library)
    assert outcome(library)[0] == 0
    outputs = ["--out", "generated", "--hosts", "c,docs"]
    assert codegen(library, "check", *outputs).returncode == 0
    for verb in (["lint"], ["fmt", "--check"]):
        assert codegen(library, *verb).returncode == 0

    done = codegen(library, "new", "doubled")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["CMakeLists.txt", "kernels/ops/doubled.c", "schema/ops.schema", "tests/doubled.c"]
    assert codegen(library, "generate", *outputs).returncode == 0
    for verb in (["lint"], ["fmt", "--check"]):
        assert codegen(library, *verb).returncode == 0
    build(library)
    status, said = outcome(library)
    assert status != 0 and "doubled: y[0] is -2.75, expected 6.875" in said and "1 tests failed out of 2" in said
    kernel = library / "kernels" / "ops" / "doubled.c"
    text = kernel.read_text()
    kernel.write_text(re.sub(r"= (x\[.*?\]); /\*.*\*/", r"= (float)(call->scale * \1);", text))
    build(library)
    assert outcome(library)[0] == 0


def test_nothing_of_the_library_that_the_runtime_comes_from(tmp_path: Path) -> None:
    assert main(["init", "wave", str(tmp_path / "w")]) == 0
    own, _ = parse_file("ops.schema", (REPOSITORY / "schema" / "ops.schema").read_bytes())
    assert own is not None
    names = [own.namespace, f"{own.prefix}_"]
    for path in (tmp_path / "w").rglob("*"):
        if path.is_file():
            text = path.read_text("utf-8").lower()
            assert not any(re.search(rf"(?<![a-z0-9]){name}", text) for name in names), path


def test_init_takes_no_folder_with_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("")
    assert main(["init", "wave", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"codegen: {tmp_path} is not empty\n"
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


# ---- new -----------------------------------------------------------------------------------------------------


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A library with skeletons of its own."""
    for folder in ("schema/new", "kernels", "tests"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "schema" / "ops.schema").write_text("namespace lib\nprefix l\nversion 1.2.0\n\nx: any\nf(int x) -> ()\n")
    (tmp_path / "sources.txt").write_text("set(kernels\n  f.c)\n")
    (tmp_path / "symbols.txt").write_text("l_a\nl_f\nl_z\n")
    skeletons = {
        "entry": "{# appends to schema #}\n\nx: any\n{{ op }}(int x) -> ()\n",
        "kernel": "{# writes kernels/{{ op }}.c #}\nint {{ p }}_{{ op }};\n",
        "sources": '{# inserts into sources.txt behind "set(kernels" #}\n\n  {{ op }}.c\n',
        "symbols": "{# sorts into symbols.txt #}\n{{ p }}_{{ op }}\n",
    }
    for name, text in skeletons.items():
        (tmp_path / "schema" / "new" / f"{name}.j2").write_text(text)
    return tmp_path


def files(library: Path) -> dict[str, str]:
    return {str(p.relative_to(library)): p.read_text() for p in library.rglob("*") if p.is_file()}


def add(library: Path, name: str) -> int:
    return main(["new", name, "--schema", str(library / "schema" / "ops.schema")])


def test_own_skeletons(library: Path) -> None:
    before = files(library)
    assert add(library, "m") == 0
    after = files(library)
    assert {path: text for path, text in after.items() if before.get(path) != text} == {
        "schema/ops.schema": before["schema/ops.schema"] + "\nx: any\nm(int x) -> ()\n",
        "kernels/m.c": "int l_m;\n",
        "sources.txt": "set(kernels\n  m.c\n  f.c)\n",
        "symbols.txt": "l_a\nl_f\nl_m\nl_z\n",
    }


BAD = {
    "f": ("", "", "there is an operator `f` already"),
    "taken": ("kernels/taken.c", "mine\n", "kernels/taken.c is there already"),
    "no_place": ("sources.txt", "nothing\n", "sources.txt has no `set(kernels` to insert behind"),
    "no_head": ("schema/new/kernel.j2", "int x;\n", "the first line does not say where the text goes, as in `{# writes PATH #}`"),
    "outside": ("schema/new/kernel.j2", "{# writes ../x #}\n", "a skeleton would write outside the library: ../x"),
    "unknown": ("schema/new/kernel.j2", "{# writes x #}\n{{ oops }}\n", "a skeleton does not render: 'oops' is undefined"),
    "wrong": ("schema/new/entry.j2", "{# appends to schema #}\n{{ op }}(int x) -> ()\n", "the skeleton makes no valid schema:"),
}


@pytest.mark.parametrize(("name", "case"), BAD.items())
def test_nothing_is_written_when_something_is_wrong(
    name: str, case: tuple[str, str, str], library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, text, message = case
    if path:
        (library / path).write_text(text)
    before = files(library)
    assert add(library, name) == 2
    assert message in capsys.readouterr().err
    assert files(library) == before


def test_a_name_that_is_none(library: Path) -> None:
    with pytest.raises(SystemExit) as stop:
        add(library, "a-b")
    assert stop.value.code == 2


def test_the_skeletons_of_this_library(tmp_path: Path) -> None:
    """They find their places in the files of today, and what they make is formatted."""
    for folder in ("schema", "kernels", "tests"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    schema = str(tmp_path / "schema" / "ops.schema")
    assert main(["new", "an_operator_of_the_test", "--schema", schema]) == 0
    assert main(["fmt", "--check", "--schema", schema]) == 0
    symbols = (tmp_path / "tests" / "abi" / "symbols.txt").read_text().splitlines()
    old = (REPOSITORY / "tests" / "abi" / "symbols.txt").read_text().splitlines()
    assert [s for s in symbols if "an_operator_of_the_test" not in s] == old and len(symbols) == len(old) + 1
