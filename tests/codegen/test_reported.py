"""Faults that users of binding generators and kernel libraries have reported in public, each as a test of its kind; the name says what was
reported, the docstring where. What concerns calls at run time is in tests/torch/test_reported.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("jinja2")

from codegen.cli import main  # noqa: E402
from codegen.model import Library  # noqa: E402
from codegen.printing import format_schema  # noqa: E402
from codegen.schema_file import parse_file  # noqa: E402
from codegen.stamp import ROOT  # noqa: E402

REPOSITORY = Path(ROOT).parent


def codes(text: str, namespace: str = "lib") -> list[str]:
    _, report = parse_file("f.schema", f"namespace {namespace}\nprefix l\nversion 1.0.0\n{text}".encode())
    return [f"{d.span.line}: {d.code}" for d in report.diagnostics()]


@pytest.fixture(scope="module")
def library() -> Library:
    found, report = parse_file("ops.schema", (REPOSITORY / "schema" / "ops.schema").read_bytes())
    assert found is not None, report.render()
    return found


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a library with one operator that has a list default."""
    folder = tmp_path_factory.mktemp("library")
    schema = folder / "ops.schema"
    schema.write_text(
        "namespace lib\nprefix l\nversion 1.0.0\n## Scales x.\nx: f32 [n], inout\nrecipe: each >= 1\nf(Tensor(x!) x, int[3] recipe=[1,1,128]) -> ()\n"
    )
    assert main(["generate", "--schema", str(schema), "--out", str(folder / "out")]) == 0
    return folder / "out"


def test_only_what_is_written_is_marked(library: Library) -> None:
    """Every tensor marked as mutated, and the compiler fails in a later pass: ROCm/aiter#2780, pytorch/pytorch#132972. A kernel gets what it
    may write as `void *`, so that the C compiler knows the difference too."""
    written = {a.name for op in library.operators for a in op.schema.args if a.is_written}
    assert written <= {"d", "sqr_sum", "y", "sym_buffer", "cumulative_local_expert_recv_stats"}
    header = (REPOSITORY / "generated" / "include" / "deep_gemm" / "ops.h").read_text()
    assert "const dg_tensor *a" in header


def test_optional_lists_of_written_tensors() -> None:
    """Legal to parse, impossible to functionalise: pytorch/pytorch#144072."""
    assert codes("x: f32 [n]\nouts: any\nf(Tensor x, Tensor(a!)[]? outs) -> ()\n") == ["6: DG0312"]
    assert codes("x: f32 [n]\nouts: any\nf(Tensor x, Tensor(a!)[][] outs) -> ()\n") == ["6: DG0312"]


def test_namespaces() -> None:
    """A namespace inside the schema string that clashes with the block around it, and those that are torch's: pytorch/pytorch#40725, #77138."""
    assert codes("-> n: any\nlib::f() -> int\n") == []
    assert codes("-> n: any\nother::f() -> int\n") == ["5: DG0307"]
    assert codes("f() -> ()\n", "prim") == codes("f() -> ()\n", "aten") == ["1: DG0311"]


def test_an_argument_named_self() -> None:
    """It cannot be passed by keyword through torch.ops: pytorch/pytorch#67254."""
    assert codes("self: f32 [n]\nn: any\nf(Tensor self, int n) -> ()\n") == ["6: DG0310"]


def test_overload_names() -> None:
    """`default` is reserved, `out` is a symbol that another operator may have: pytorch/pytorch#72206."""
    operator = "x: f32 [n]\nf{}(Tensor x) -> ()\n\n"
    assert codes(operator.format(".default")) == ["5: DG0104"]
    assert codes(operator.format(".X.Y")) == ["5: DG0102"]
    assert codes(operator.format(".a") + operator.format(".a")) == ["8: DG0306"]
    assert codes(operator.format("_out") + operator.format(".out")) == ["8: DG0306"]
    assert codes(operator.format("") + operator.format(".out")) == []


def test_alias_marks_before_and_after_a_list() -> None:
    """Both stand in one line of real registrations: pytorch/pytorch#64057."""
    both = "k: any\nv: any\nf(Tensor(a!)[] k, Tensor[](b!) v) -> ()\n"
    found, report = parse_file("f.schema", b"namespace lib\nprefix l\nversion 1.0.0\n" + both.encode())
    assert found is not None, report.render()
    assert format_schema(found.operators[0].schema) == "f(Tensor(a!)[] k, Tensor[](b!) v) -> ()"
    assert codes("x: any\nf(Tensor?(a!) x) -> ()\n") == ["5: DG0102"]


def test_the_default_of_a_list(outputs: Path) -> None:
    """`[0,1]` was copied as text into a stub: pytorch/pytorch#129884."""
    assert "recipe: tuple[int, int, int] = (1, 1, 128)" in (outputs / "python" / "_C.pyi").read_text()
    assert "{1, 1, 128}" in (outputs / "include" / "lib" / "ops.h").read_text()


def test_marks_and_types_that_exist_in_the_wild() -> None:
    """A write mark on an int, an optional tuple (vLLM), a required list behind a default (ExecuTorch): errors that say so, no crash."""
    assert codes("x: any\nf(int!? x) -> ()\n") == ["5: DG0212"]
    assert codes("x: any\nf((int, int)? x=None) -> ()\n") == ["5: DG0215"]
    assert codes("a: any\nb: any\nf(int a=1, int[] b) -> ()\n") == ["6: DG0209"]
    assert codes("a: any\nb: any\nf(int a=1, int b) -> ()\n") == ["6: DG0108"]
    assert codes("a: any\nb: any\nf(*, int a=1, int b) -> ()\n") == []


def test_every_registration_has_its_schema(library: Library) -> None:
    """Registration that relied on inference broke with the next torch: deepmodeling/deepmd-kit#5046."""
    for host in ("torch", "torch_library"):
        text = (REPOSITORY / "generated" / host / "register.cpp").read_text()
        strings = {re.sub(r'"\s*"', "", s).replace('\\"', '"') for s in re.findall(r'"((?:[^"\\]|\\.|"\s*")*\) -> (?:[^"\\]|\\.|"\s*")*)"', text)}
        assert {op.schema.name for op in library.operators} == {s.partition("(")[0].partition(".")[0] for s in strings}
        assert all(s.count("(") >= 1 and " -> " in s for s in strings)


def test_what_an_edit_breaks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Renaming, inserting, keyword-only: the verdicts of torch's own rules."""

    def verdict(args: str) -> bool:
        for name, text in (("old", "int a, int b=1"), ("new", args)):
            contracts = "".join(f"{n}: any\n" for n in re.findall(r"(\w+)(?:=[^,]*)?(?:,|$)", text))
            (tmp_path / name).write_text(f"namespace lib\nprefix l\nversion 1.0.0\n{contracts}f({text}) -> ()\n")
        main(["breaking", "--schema", str(tmp_path / "new"), "--against", str(tmp_path / "old")])
        return "torch backward  breaks" in capsys.readouterr().out

    for compatible in ("int a, int b=1", "int a, int b=1, int x=2", "int? a, int b=1"):
        assert not verdict(compatible), compatible
    for breaking in ("int a, int x=2, int b=1", "int c, int b=1", "int a, *, int b=1", "int a, int b"):
        assert verdict(breaking), breaking
