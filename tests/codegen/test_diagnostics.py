"""The text of every diagnostic: ``diagnostics.txt`` has, for each code, a schema file and what is said of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from codegen.cli import main
from codegen.diagnostics import CODES, RULES
from codegen.emit import check_hosts
from codegen.hosts import Host
from codegen.model import Base
from codegen.registry import load_hosts
from codegen.schema_file import parse_file
from codegen.stamp import HOST_NAMES

HEADER = "namespace lib\nprefix l\nversion 1.2.0\n"
CASES = re.findall(
    r"=== (DG\d{4})( whole file)?\n(.*?)--- says\n(.*?)(?==== DG|\Z)",
    (Path(__file__).parent / "diagnostics.txt").read_bytes().decode("utf-8"),  # as it is: some lines have odd ends
    re.DOTALL,
)


@pytest.mark.parametrize(("code", "whole", "text", "expected"), CASES)
def test_text(code: str, whole: str, text: str, expected: str) -> None:
    library, report = parse_file("f.schema", ("" if whole else HEADER).encode() + text.encode())
    assert library is None
    assert report.render() == expected
    assert f"[{code}]" in expected


def test_every_code_has_a_case() -> None:
    """The lint rules have theirs in lint.txt."""
    assert {code for code, _, _, _ in CASES} | {"DG0701"} == set(CODES) - set(RULES)


def test_a_type_that_hosts_cannot_carry() -> None:
    library, report = parse_file("f.schema", (HEADER + "x: any\nf(Scalar x) -> ()\n").encode())
    assert library is not None

    def host(name: str, reason: str | None) -> Host:
        return Host(name, "", (), lambda library, render: {}, lambda part: reason if part.type == Base("Scalar") else None)

    check_hosts(library, report, [host("one", "no `Scalar`"), host("two", None), host("three", "no `Scalar`")])
    assert report.render() == (
        "f.schema:5:10: error: `x` of `f` cannot be carried by the hosts one, three: no `Scalar` [DG0701]\n"
        "f(Scalar x) -> ()\n"
        "         ^\n"
        "1 error\n"
    )


def test_not_utf8() -> None:
    library, report = parse_file("f.schema", HEADER.encode() + b"# caf\xe9\n")
    assert library is None
    assert report.render().startswith("f.schema:4:6: error: the byte 0xe9 is not UTF-8 [DG0301]\n")


def test_a_caret_under_a_tab() -> None:
    _, report = parse_file("f.schema", (HEADER + "x:\tf32\t[q; n]\nf(Tensor x) -> ()\n").encode())
    lines = report.render().split("\n")
    assert lines[1:3] == ["x:\tf32\t[q; n]", "  \t   \t  ^"]


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "dg0206"]) == 0
    assert capsys.readouterr().out == f"DG0206: {CODES['DG0206']}\n"
    assert main(["explain", "DG9999"]) == 2
    assert "there is no diagnostic DG9999" in capsys.readouterr().err


def test_hosts_say_which_type_they_cannot_carry() -> None:
    """As the schema spells it, whatever the type and the host."""
    hosts = load_hosts(HOST_NAMES)
    for argument, shown in (("Tensor[]", "Tensor[]"), ("Tensor(a!)[]", "Tensor[]"), ("str[]", "str[]"), ("Tensor?[]", "Tensor?[]")):
        library, report = parse_file("f.schema", (HEADER + f"x: any\nf({argument} x) -> ()\n").encode())
        assert library is not None, report.render()
        check_hosts(library, report, hosts)
        assert f"carry a `{shown}`" in report.render() and "(elem=" not in report.render()
