"""The generator serves any library: it knows no name of this one, and it can be installed and used from anywhere."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

pytest.importorskip("jinja2")

from codegen.schema_file import parse_file  # noqa: E402
from codegen.stamp import ROOT  # noqa: E402

REPOSITORY = Path(ROOT).parent


def own_words() -> list[str]:
    """The namespace, the prefix and the operators of this library."""
    library, _ = parse_file("ops.schema", (REPOSITORY / "schema" / "ops.schema").read_bytes())
    assert library is not None
    operators = {name for op in library.operators for name in (op.symbol, *op.aliases) if "_" in name}
    return [library.namespace, f"{library.prefix}_", *sorted(operators)]


def program_text(path: Path) -> str:
    """The text without comments and, of Python, without docstrings, where examples are welcome."""
    text = path.read_text("utf-8")
    if path.suffix == ".j2":
        return re.sub(r"\{#.*?#\}", "", text, flags=re.DOTALL)
    kept = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_docstring = token.type == tokenize.STRING and token.line.lstrip().startswith(('"""', 'r"""'))
        if token.type != tokenize.COMMENT and not is_docstring:
            kept.append(token.string)
    return " ".join(kept)


def test_the_generator_names_nothing_of_this_library() -> None:
    words = own_words()
    pattern = re.compile(rf"(?<![A-Za-z0-9_])({'|'.join(map(re.escape, words))})", re.IGNORECASE)
    files = [p for p in Path(ROOT).rglob("*") if p.suffix in (".py", ".j2") and p.name != "setup.py"]
    assert len(files) > 40
    found = [f"{path.relative_to(ROOT)}: {match[0]}" for path in files for match in pattern.finditer(program_text(path))]
    # Diagnostics are DG0101 and so on, for every library: a letter, not an underscore, follows the prefix.
    assert found == []


def test_the_search_finds_what_it_looks_for(tmp_path: Path) -> None:
    sample = tmp_path / "sample.py"
    sample.write_text('"""dg_example() may stand here."""\nx = "dg_example"  # and dg_example here\n')
    assert program_text(sample).count("dg_example") == 1


def test_the_runtime_has_the_names_of_the_library(tmp_path: Path) -> None:
    (tmp_path / "ops.schema").write_text("namespace wave\nprefix wv\nversion 0.1.0\n\nx: any\nf(int x) -> ()\n")
    command = [sys.executable, "-m", "codegen", "runtime", "--schema", str(tmp_path / "ops.schema"), "--hosts", "c,torch,python"]
    done = subprocess.run([*command, "--out", str(tmp_path / "out")], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    paths = done.stdout.split()
    assert "kernels/include/wave/wave.h" in paths and "bindings/torch/glue.cpp" in paths and "bindings/python/wave/_binding.py" in paths
    assert sorted(paths) == sorted(p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*") if p.is_file())
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")}
    subprocess.run([*command, "--out", str(tmp_path / "out")], cwd=REPOSITORY, check=True, capture_output=True)
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")}
    names = [re.compile(rf"(?<![a-z0-9]){word}") for word in own_words()[:2]]
    for path in (tmp_path / "out").rglob("*.[ch]*"):
        assert not any(name.search(path.read_text("utf-8").lower()) for name in names), path


def test_the_classic_torch_host_shares_the_module_of_the_other(tmp_path: Path) -> None:
    (tmp_path / "ops.schema").write_text("namespace wave\nprefix wv\nversion 0.1.0\n\nx: any\nf(int x) -> ()\n")
    command = [sys.executable, "-m", "codegen", "runtime", "--schema", str(tmp_path / "ops.schema"), "--hosts", "torch_library"]
    done = subprocess.run([*command, "--out", str(tmp_path / "out")], cwd=REPOSITORY, capture_output=True, text=True)
    assert {"bindings/torch_library/glue.cpp", "bindings/torch/module.h", "bindings/torch/module.c"} <= set(done.stdout.split())


def test_pip_installs_a_command(tmp_path: Path) -> None:
    """Built by the setuptools of this Python, without looking anything up."""
    pytest.importorskip("setuptools")
    install = ["-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(tmp_path / "site"), ROOT]
    done = subprocess.run([sys.executable, *install], capture_output=True, text=True)
    if "No module named pip" in done.stderr or "No module named 'wheel'" in done.stderr or "invalid command 'bdist_wheel'" in done.stderr:
        pytest.skip("this Python has no pip, or no wheel for its old setuptools")
    assert done.returncode == 0, done.stderr
    environment = {"PYTHONPATH": ":".join([str(tmp_path / "site"), *(p for p in sys.path if p.endswith("site-packages"))]), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, str(tmp_path / "site" / "bin" / "opschema")]
    (tmp_path / "work").mkdir()
    schema, out = ["--schema", "wave/schema/ops.schema"], ["--out", "wave/generated", "--hosts", "c,docs"]
    verbs = (["init", "wave", "--prefix", "wv"], ["check", *schema, *out], ["samples", *schema, "--out", "wave/calls.c"], ["check", "--help"])
    said = ""
    for words in verbs:
        ran = subprocess.run([*command, *words], cwd=tmp_path / "work", env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        said += ran.stdout
    assert "opschema check --diagnostics=json" in said
    # What it writes names the command that wrote it.
    written = [p.read_text("utf-8") for p in (tmp_path / "work").rglob("*") if p.is_file()]
    assert not any("m codegen" in text for text in [said, *written])
    assert sum("`opschema generate`" in text[:600] for text in written) >= 6
    assert not (Path(ROOT) / "build").exists() and not list(Path(ROOT).glob("*.egg-info"))
