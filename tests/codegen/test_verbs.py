"""``explain``, ``json``, ``completion``, ``watch``, machine-readable diagnostics, colour, and other names than those of the file."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

jinja2 = pytest.importorskip("jinja2")

from codegen import verbs  # noqa: E402
from codegen.cli import arguments, main  # noqa: E402
from codegen.stamp import ROOT  # noqa: E402

REPOSITORY = Path(ROOT).parent
SCHEMA = """\
namespace lib
prefix l
version 1.2.0

## y = scale * x.
##
## Summed pairwise.
let rows = given(tile) ? tile[0] : 1
x: f32 | bf16 [m, n]
y: f32 [m, ceil(n / rows)] rows, out
scale: 1 .. 7                                      # a factor
tile: each >= 1
require n > rows else "n must be more than a tile"
@pair p = x, y
@alias scale_it
@keyword factor = scale
@backends ref
@since 1.2.0
scaled(Tensor x, Tensor(y!) y, int scale=1, int[2]? tile=None) -> ()

## Sums.
x: f32 [m, n]
-> s: f32 [m]
@backends none: it is not written yet
row_sum(Tensor  x) -> Tensor
"""


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "ops.schema"
    path.write_text(SCHEMA)
    return path


# ---- explain -------------------------------------------------------------------------------------------------


def test_explain_an_operator(schema: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "scaled", "--schema", str(schema)]) == 0
    text = capsys.readouterr().out
    assert text == (Path(__file__).parent / "explained.txt").read_text("utf-8")
    for name in ("scale_it", "scaled"):
        assert main(["explain", name, "--schema", str(schema)]) == 0
        assert capsys.readouterr().out == text


def test_explain_a_result(schema: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "row_sum", "--schema", str(schema), "--prefix", "q"]) == 0
    text = capsys.readouterr().out
    assert "Backends:\n    none: it is not written yet\n" in text
    assert "    q_status q_row_sum_out(q_context *ctx, const q_tensor *x, q_tensor_spec *s);\n" in text
    assert "    row_sum: not implemented: it is not written yet\n" in text
    assert "Fake kernel:\n    m = x.shape[0]\n    s = torch.empty" in text


def test_explain_nothing(schema: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "scald", "--schema", str(schema)]) == 2
    assert capsys.readouterr().err == "codegen: there is no operator, code or rule `scald`; did you mean `scaled`?\n"


# ---- json ----------------------------------------------------------------------------------------------------


def fits(value: object, schema: object, definitions: dict[str, object]) -> bool:
    """Whether a value fits a JSON Schema, as far as ours goes."""
    assert isinstance(schema, dict)
    if "$ref" in schema:
        return fits(value, definitions[schema["$ref"].rsplit("/", 1)[1]], definitions)
    if "anyOf" in schema:
        return any(fits(value, option, definitions) for option in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return value in schema.get("enum", [schema.get("const")])
    kind = schema.get("type")
    if kind == "object":
        return (
            isinstance(value, dict)
            and set(schema["required"]) <= set(value) <= set(schema["properties"])
            and all(fits(v, schema["properties"][k], definitions) for k, v in value.items())
        )
    if kind == "array":
        items = schema.get("prefixItems")
        if not isinstance(value, list) or items and len(value) != len(items):
            return False
        return all(fits(v, s, definitions) for v, s in zip(value, items or [schema["items"]] * len(value)))
    python = {"integer": int, "number": (int, float), "string": str, "boolean": bool, "null": type(None)}
    return kind is None or isinstance(value, python[kind]) and (kind != "integer" or not isinstance(value, bool))


def test_the_json_schema(schema: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["json", "--json-schema"]) == 0
    text = capsys.readouterr().out
    assert text == (REPOSITORY / "codegen" / "model.schema.json").read_text("utf-8")
    described = json.loads(text)
    for path in (schema, REPOSITORY / "schema" / "ops.schema"):
        assert main(["json", "--schema", str(path)]) == 0
        model = json.loads(capsys.readouterr().out)
        assert model["format"] == 1
        assert fits(model, described, described["$defs"])
    assert not fits({**model, "version": 1}, described, described["$defs"])
    assert not fits({**model, "more": 1}, described, described["$defs"])
    model["operators"][0]["contracts"][0]["kind"] = "ValueContract"
    assert not fits(model, described, described["$defs"])


# ---- machine-readable diagnostics ----------------------------------------------------------------------------


def test_sarif(schema: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema.write_text(SCHEMA.replace("f32 | bf16 [m, n]", "f33 [m, n]").replace("Tensor  x", "Tensor x, Tensor x"))
    assert main(["generate", "--schema", str(schema), "--out", str(schema.parent / "out"), "--diagnostics", "json"]) == 1
    said = capsys.readouterr()
    assert said.err == ""
    log = json.loads(said.out)
    assert log["version"] == "2.1.0" and "sarif-2.1.0" in log["$schema"]
    (run,) = log["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == sorted({r["ruleId"] for r in run["results"]})
    first, second = run["results"]
    assert first == {
        "ruleId": "DG0405",
        "level": "error",
        "message": {"text": "`f33` is no element type\nfix: did you mean `f32`?"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": f"file://{schema}"},
                    "region": {"startLine": 9, "startColumn": 4, "endLine": 9, "endColumn": 7},
                }
            }
        ],
    }
    (related,) = second["relatedLocations"]
    assert related["message"] == {"text": "first declared here"}
    assert related["physicalLocation"]["region"]["startColumn"] == 16


def test_sarif_of_check(schema: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--schema", str(schema), "--out", str(schema.parent / "out"), "--diagnostics", "json"]
    assert main(["generate", *options]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["runs"][0]["results"] == []
    assert said.err.endswith("files written\n")
    assert main(["check", *options]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["results"] == []
    page = schema.parent / "out" / "docs" / "operators.md"
    page.write_text(page.read_text().replace("scale", "skale"))
    assert main(["check", *options]) == 1
    (result,) = json.loads(capsys.readouterr().out)["runs"][0]["results"]
    assert result["ruleId"] == "stale"
    assert result["message"]["text"].startswith("not what generate would write\nfix: python -m codegen generate --schema ")
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == f"file://{page}"


# ---- colour --------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "on_terminal", "in_pipe"),
    [
        ({}, True, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": ""}, True, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False, False),
        ({"TERM": "dumb"}, False, False),
    ],
)
def test_colour(variables: dict[str, str], on_terminal: bool, in_pipe: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert verbs.has_colour(Terminal()) == on_terminal
    assert verbs.has_colour(io.StringIO()) == in_pipe


def test_coloured_text(schema: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema.write_text(SCHEMA.replace("f32 | bf16 [m, n]", "f33 [m, n]"))
    texts = []
    for stream in (io.StringIO(), Terminal()):
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.delenv("FORCE_COLOR", raising=False)
        monkeypatch.setattr(sys, "stderr", stream)
        assert main(["lint", "--schema", str(schema)]) == 1
        texts.append(stream.getvalue())
    plain, coloured = texts
    assert "\x1b" not in plain
    assert f"\x1b[1m{schema}:9:4:\x1b[0m \x1b[1;31merror:\x1b[0m `f33` is no element type [DG0405]" in coloured
    assert "   \x1b[1;31m^~~\x1b[0m\n" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


# ---- completions ---------------------------------------------------------------------------------------------


def completed(script: Path, *words: str) -> list[str]:
    """What bash offers for the last of the words."""
    quoted = " ".join(f"'{w}'" for w in words)
    code = f"source {script}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _codegen; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    return subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_bash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "codegen.bash"
    script.write_text(capsys.readouterr().out)
    assert completed(script, "codegen", "ge") == ["generate"]
    assert completed(script, "codegen", "fmt", "--") == ["--help", "--schema", "--diagnostics", "--check"]
    assert completed(script, "codegen", "lint", "--diagnostics", "j") == ["json"]
    assert completed(script, "codegen", "explain", "bool") == ["boolean-trap"]
    assert completed(script, "codegen", "completion", "") == ["--help", "--command", "bash", "zsh", "fish"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell, "--command", "kernels"]) == 0
    text = capsys.readouterr().out
    parser = arguments()
    verbs_of_parser = next(a for a in parser._actions if a.choices and "generate" in a.choices)
    assert verbs_of_parser.choices is not None
    for verb in verbs_of_parser.choices:
        assert re.search(rf"\b{verb}\b", text)
    assert "kernels" in text and "boolean-trap" in text
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed: its syntax is not checked")
    script = tmp_path / "script"
    script.write_text(text)
    subprocess.run([program, "-n", str(script)], check=True)


# ---- help ----------------------------------------------------------------------------------------------------


def test_every_verb_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    parser = arguments()
    choices = next(a.choices for a in parser._actions if a.choices and "generate" in a.choices)
    assert choices is not None
    for verb in choices:
        with pytest.raises(SystemExit) as stop:
            main([verb, "--help"])
        assert stop.value.code == 0
        text = capsys.readouterr().out
        assert "example" in text and f"codegen {verb}" in text, verb


# ---- other names ---------------------------------------------------------------------------------------------


def test_other_names(schema: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of the old names is left, and the output is what the schema with these names gives."""
    out, other = schema.parent / "out", schema.parent / "other"
    options = ["--schema", str(schema), "--out", str(out), "--namespace", "wave", "--prefix", "wv"]
    assert main(["generate", *options]) == 0
    assert main(["check", *options]) == 0
    capsys.readouterr()
    assert main(["generate", *options]) == 0
    assert capsys.readouterr().out == "0 files written\n"
    assert main(["check", "--schema", str(schema), "--out", str(out)]) == 1
    renamed = schema.parent / "renamed.schema"
    renamed.write_text(SCHEMA.replace("namespace lib\nprefix l\n", "namespace wave\nprefix wv\n"))
    assert main(["generate", "--schema", str(renamed), "--out", str(other)]) == 0
    names = [p.relative_to(out) for p in sorted(out.rglob("*")) if p.is_file() and p.name != ".stamp"]
    assert names
    for name in names:
        text = (out / name).read_bytes()
        assert text == (other / name).read_bytes()
        assert not re.search(rb"\bl_|\bL_|\blib\b", text)
    (out / names[0]).write_text("")
    capsys.readouterr()
    assert main(["check", *options]) == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith("--namespace wave --prefix wv")


@pytest.mark.parametrize("name", ["", "a-b", "class", "1a", "\u00e9"])
def test_names_that_are_none(name: str, schema: Path) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["generate", "--schema", str(schema), "--out", str(schema.parent / "out"), "--prefix", name])
    assert stop.value.code == 2


# ---- watch ---------------------------------------------------------------------------------------------------


def test_watch(schema: Path) -> None:
    out = schema.parent / "out"
    command = [sys.executable, "-m", "codegen", "watch", "--schema", str(schema), "--out", str(out), "--runs", "3"]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None

    def next_verdict() -> str:
        for line in process.stdout or ():
            if line.startswith(str(schema)) or "ops.schema: " in line:
                return line.split(": ")[1].split(",")[0]
        raise AssertionError("it ended")

    page = out / "docs" / "operators.md"
    try:
        assert next_verdict() == "generated" and "a factor" in page.read_text()
        schema.write_text(SCHEMA.replace("f32 | bf16", "f33"))
        assert next_verdict() == "errors" and "a factor" in page.read_text()
        schema.unlink()  # as an editor that writes anew
        time.sleep(0.3)
        schema.write_text(SCHEMA.replace("a factor", "the factor"))
        assert next_verdict() == "generated" and "the factor" in page.read_text()
        assert process.wait(30) == 0
        assert "`f33` is no element type" in process.stderr.read()
    finally:
        process.kill()
        process.communicate()


def test_the_environment_does_not_matter(schema: Path) -> None:
    """No verb needs a home, a terminal or a locale."""
    for verb in (["fmt", "--check"], ["lint"], ["json"], ["explain", "scaled"]):
        command = [sys.executable, "-m", "codegen", *verb, "--schema", str(schema)]
        done = subprocess.run(command, cwd=REPOSITORY, env={"PATH": os.environ["PATH"]}, capture_output=True)
        assert done.returncode in (0, 1) and b"internal error" not in done.stderr
