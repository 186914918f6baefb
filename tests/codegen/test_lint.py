"""``lint``: the text of every rule (lint.txt), leave by `@lint allow`, and the verb."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from codegen.cli import main
from codegen.diagnostics import CODES, RULES
from codegen.lint import lint
from codegen.schema_file import parse_file, parse_what_is_right

HEADER = "namespace lib\nprefix l\nversion 1.2.0\n"
CASES = re.findall(
    r"=== ([a-z-]+)\n(.*?)--- says\n(.*?)(?==== [a-z]|\Z)",
    (Path(__file__).parent / "lint.txt").read_text("utf-8"),
    re.DOTALL,
)
TRAP = """\
## Sorts x, descending when down, keeping the order of equals when stable.
x: f32 [n]
down: any
stable: any
f(Tensor x, bool down, bool stable) -> ()
"""


@pytest.mark.parametrize(("rule", "text", "expected"), CASES)
def test_text(rule: str, text: str, expected: str) -> None:
    library, report = parse_file("f.schema", (HEADER + text).encode())
    assert library is not None, report.render()
    lint(library, report)
    assert report.render() == expected
    assert not report  # warnings are no errors
    assert rule in expected or expected == "0 errors\n"


def test_every_rule_has_a_case_and_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert {rule for rule, _, expected in CASES if rule in expected} == set(RULES.values())
    for code, rule in RULES.items():
        assert main(["explain", rule]) == 0
        assert capsys.readouterr().out == f"{code} {rule}: {CODES[code]}\n"


@pytest.mark.parametrize("rule", [rule for rule in RULES.values() if rule != "unused-allow"])
def test_leave(rule: str) -> None:
    """Every rule is silent when the operator has leave, and then nothing is said of the leave either."""
    text = next(text for name, text, expected in CASES if name == rule and f" {rule}]" in expected)
    operators = re.split(r"(?m)^(?=f[.(]|loop)", text)
    allowed = f"@lint allow {rule}: it has to be so\n".join(operators)
    library, report = parse_file("f.schema", (HEADER + allowed).encode())
    assert library is not None, report.render()
    lint(library, report)
    rules = {d.label.split()[1] for d in report.diagnostics()}
    assert rule not in rules
    assert library.operators[-1].allows[0].reason == "it has to be so"


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ops.schema"
    path.write_text(HEADER + TRAP)
    assert main(["lint", "--schema", str(path)]) == 1
    assert capsys.readouterr().err.endswith("1 warning\n")
    path.write_text(HEADER + TRAP.replace("f(", "@lint allow boolean-trap: as in the first release\nf("))
    assert main(["lint", "--schema", str(path)]) == 0
    assert capsys.readouterr() == ("", "")


def test_errors_and_warnings_in_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ops.schema"
    path.write_text(HEADER + "x: f32 [n]\ng(Strin x) -> ()\n\n" + TRAP + "\nx: f32 [n]\nf(Tensor x) -> ()\n")
    assert main(["lint", "--schema", str(path), "--diagnostics", "json"]) == 1
    results = json.loads(capsys.readouterr().out)["runs"][0]["results"]
    assert [r["ruleId"] for r in results] == ["DG0103", "DG0804", "DG0801", "DG0306", "DG0803"]
    assert [r["level"] for r in results] == ["error", "warning", "warning", "error", "warning"]
    library, report = parse_what_is_right("f", path.read_bytes())
    lint(library, report)
    assert report.summary() == "2 errors, 3 warnings"


def test_the_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "--rules"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [[code, rule] for code, rule in RULES.items()]
    readme = (Path(__file__).parents[2] / "schema" / "README.md").read_text("utf-8")
    assert all(f"`{rule}`" in readme for rule in RULES.values())
