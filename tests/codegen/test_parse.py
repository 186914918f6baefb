"""The parser of schema strings agrees with torch's, and is stricter only where it says why."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from schema_strings import ACCEPTED, REJECTED, STRICT

from codegen.json_model import schema_fields
from codegen.lex import tokenize
from codegen.parse import check_string

ROOT = Path(__file__).parents[2]
CORPUS = os.environ.get(
    "SCHEMA_CORPUS", ""
)  # a folder with *.jsonl: one object a line with `schema`, `ok`, `canonical`, `strict`


def fields(text: str) -> dict[str, object]:
    schema, report = check_string(text, as_torch=True)
    assert schema is not None, report.render()
    return schema_fields(schema)


@pytest.mark.parametrize("text", ACCEPTED)
def test_accepts_what_torch_accepts(text: str) -> None:
    schema, report = check_string(text, as_torch=True)
    assert schema is not None, report.render()
    assert str(schema) == ACCEPTED[text]


@pytest.mark.parametrize("text", REJECTED)
def test_rejects_what_torch_rejects(text: str) -> None:
    schema, report = check_string(text, as_torch=True)
    assert schema is None
    assert len(report.diagnostics()) >= 1


@pytest.mark.parametrize("text", ACCEPTED)
def test_is_stricter_where_it_says_so(text: str) -> None:
    schema, report = check_string(text, as_torch=False)
    codes = " ".join(sorted({d.code for d in report.diagnostics()}))
    assert codes == STRICT.get(text, "")
    assert (schema is None) == (text in STRICT)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed: its parser is not asked")
def test_the_strings_above_are_what_torch_says() -> None:
    import torch

    def sorted_sets(text: str) -> str:
        """torch prints alias sets in hash order."""

        def one(match: re.Match[str]) -> str:
            before, write, after = match.groups()
            after = f" -> {'|'.join(sorted(after[4:].split('|')))}" if after else ""
            return f"({'|'.join(sorted(before.split('|')))}{write}{after})"

        return re.sub(r"\(([\w$*|]+)(!?)( -> [\w$*|]*)?\)", one, text)

    for text, canonical in ACCEPTED.items():
        assert sorted_sets(str(torch._C.parse_schema(text))) == canonical
    for text in REJECTED:
        with pytest.raises((RuntimeError, UnicodeDecodeError, ValueError, IndexError)):
            torch._C.parse_schema(text)


@pytest.mark.skipif(not CORPUS, reason="SCHEMA_CORPUS names no folder with a corpus of schema strings")
@pytest.mark.parametrize("as_torch", [True, False])
def test_agrees_with_the_corpus(as_torch: bool) -> None:
    rows = [json.loads(line) for path in sorted(Path(CORPUS).glob("*.jsonl")) for line in path.read_text("utf-8").splitlines()]
    assert rows
    for row in rows:
        schema, report = check_string(row["schema"], as_torch=as_torch)
        if not as_torch and row.get("strict"):
            continue
        assert (schema is not None) == row["ok"], (row["schema"], report.render())
        if schema is not None:
            found = schema_fields(schema)
            for key in ("name", "overload", "canonical"):
                assert found[key] == row[key], row["schema"]
            for found_arg, arg in zip(found["args"], row["args"], strict=True):  # type: ignore[call-overload]
                for key in ("name", "type", "has_default", "kw_only", "write"):
                    assert found_arg[key] == arg[key], row["schema"]


# ---- structure -----------------------------------------------------------------------------------------------


def test_arguments() -> None:
    args = fields("f(Tensor(a!)? x=None, *, int[2] y=3, SymInt z) -> ()")["args"]
    assert isinstance(args, list)
    assert [a["name"] for a in args] == ["x", "y", "z"]
    assert [a["type"] for a in args] == ["Tensor?", "int[2]", "SymInt"]
    assert [a["kw_only"] for a in args] == [False, True, True]
    assert [a["has_default"] for a in args] == [True, True, False]
    assert [a["default"] for a in args] == [None, [3, 3], None]
    assert args[0]["alias"] == {"before": ["a"], "after": ["a"], "write": True, "contained": None}


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("int x=7", 7),
        ("float x=7", 7.0),
        ("float x=1e-5", 1e-5),
        ("bool x=True", True),
        ("str x='a\\n'", "a\n"),
        ("str x='\\303\\251'", "é"),
        ("Scalar x=2j", {"complex": [0.0, 2.0]}),
        ("Device x='cuda:1'", {"device": "cuda:1"}),
        ("ScalarType x=bfloat16", 15),
        ("ScalarType[] x=[half, float]", [5, 6]),
        ("float[2] x=0.5", [0.5, 0.5]),
        ("int? x=None", None),
    ],
)
def test_default_values(argument: str, value: object) -> None:
    args = fields(f"f({argument}) -> ()")["args"]
    assert isinstance(args, list)
    assert repr(args[0]["default"]) == repr(value)


def test_a_list_holds_the_mark_of_its_elements() -> None:
    args = fields("f(Tensor(a!)[] x, Tensor(b)[](c!) y) -> ()")["args"]
    assert isinstance(args, list)
    inner = {"before": ["a"], "after": ["a"], "write": True}
    assert args[0]["alias"] == {"before": [], "after": [], "write": True, "contained": inner}
    assert args[1]["alias"]["before"] == ["c"] and args[1]["alias"]["contained"]["before"] == ["b"]


def test_text_is_what_was_written_on_one_line() -> None:
    schema, _ = check_string("f(Tensor   x, # the input\n    int k = 3,\n  str s='a  b') ->   Tensor", as_torch=False)
    assert schema is not None
    assert schema.text == "f(Tensor x, int k = 3, str s='a  b') -> Tensor"


def test_every_error_of_a_list_is_found() -> None:
    _, report = check_string("f(String a, int b, Tensor, int c=half) -> Foo", as_torch=False)
    assert [d.code for d in report.diagnostics()] == ["DG0103", "DG0102", "DG0106", "DG0103"]


def test_deep_types_are_an_error() -> None:
    for text in ("f(" + "(" * 5000 + ") -> ()", "f(int" + "[]" * 5000 + " x) -> ()", "f(" + "Future(" * 5000 + " x) -> ()"):
        schema, report = check_string(text, as_torch=True)
        assert schema is None and report.diagnostics()[0].code == "DG0111"


def test_tokens_cover_the_text() -> None:
    text = "f(Tensor x) -> () # end"
    assert "".join(t.text for t in tokenize(text)) == "f(Tensorx)->()"


# ---- the verb ------------------------------------------------------------------------------------------------


def ask(lines: bytes, *options: str) -> list[dict[str, object]]:
    command = [sys.executable, "-m", "codegen", "parse", *options]
    done = subprocess.run(command, input=lines, capture_output=True, cwd=ROOT, check=True)
    assert done.stderr == b""
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_parse_answers_line_by_line() -> None:
    answers = ask(b'"f(int x=0x10) -> ()"\n\xff\n7\n"\\ud800"\n' + b"[" * 5000 + b'\n"f() -> Tensor"\n')
    assert [a["ok"] for a in answers] == [False, False, False, False, False, True]
    assert answers[0] == {"ok": False, "error": "torch misreads the hexadecimal number `0x10`", "code": "DG0206", "column": 9}
    assert answers[1]["error"] == "not a JSON string"
    assert answers[5]["canonical"] == "f() -> Tensor"


def test_parse_as_torch() -> None:
    [answer] = ask(b'"f(int x=0x10) -> ()"', "--as-torch")
    assert answer["ok"] is True and answer["args"][0]["default"] == 0  # type: ignore[index]
