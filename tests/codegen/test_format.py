"""``fmt``: one form, the same meaning, and every comment kept."""

from __future__ import annotations

import io
import random
import re
import sys
from pathlib import Path

import pytest

from codegen.cli import main
from codegen.format import format_file
from codegen.schema_file import parse_file

REPOSITORY = Path(__file__).parents[2]

MESSY = """\
\ufeff# The operators.
namespace   lib
prefix l
version 1.2.0   # the first
section   Scaling  of things


##   indented text
##
## y = x * scale;   two blanks stay.
  and it goes on here
let  q=given( r )?r[0]:-1
x :f32|bf16 [ m,n ]   rows|i32[m , n,ceil( n/(4*q) )] strides[1,align(m,4) , -q+ 2] when   b  and not (q==2)
#a comment of its own
y: like x,out,may alias   z#behind
z:like x , inout      # the other one
r: each>=1
s:"n  k"|"mn"  # not a # break
b: any
require   m-1>=-2   else "m  is small"
check  tiles:  it's  a tile   # really
@pair  p=x,y
@backends   ref   avx2
@lint allow   boolean-trap :  one  reason
@since 1.0.0
f( Tensor x,Tensor( y! ) y , Tensor(z!) z,int[2]?  r = None,
      str s = "n  k", bool b=False)->()
# behind
## doc
a: f32 [a0,        # the first
   a1]   # the second
g(Tensor a) -> ( )
## long
x: f32 [aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa, bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb] when t > 1 | bf16 [aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa, bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb] when t <= 1
t: any
h(Tensor x, int t) -> ()
"""

TIDY = """\
# The operators.
namespace lib
prefix l
version 1.2.0                                      # the first

section Scaling of things

##   indented text
##
## y = x * scale;   two blanks stay. and it goes on here
let q = given(r) ? r[0] : -1
x: f32 | bf16 [m, n] rows | i32 [m, n, ceil(n / (4 * q))] strides [1, align(m, 4), -q + 2] when b and not (q == 2)
# a comment of its own
y: like x, out, may alias z                        # behind
z: like x, inout                                   # the other one
r: each >= 1
s: "n  k" | "mn"                                   # not a # break
b: any
require m - 1 >= -2 else "m  is small"
check tiles: it's a tile                           # really
@pair p = x, y
@backends ref avx2
@lint allow boolean-trap : one reason
@since 1.0.0
f(Tensor x, Tensor(y!) y, Tensor(z!) z, int[2]? r=None, str s="n  k", bool b=False) -> ()

# behind
## doc
a: f32 [a0,                                        # the first
    a1]                                            # the second
g(Tensor a) -> ()

## long
x: f32 [aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa, bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb] when t > 1
    | bf16 [aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa, bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb] when t <= 1
t: any
h(Tensor x, int t) -> ()
"""


def test_text() -> None:
    assert format_file("f", MESSY.encode()).decode() == TIDY
    assert format_file("f", TIDY.encode()).decode() == TIDY
    assert format_file("f", MESSY.replace("\n", "\r\n").encode()).decode() == TIDY
    assert parse_file("f", MESSY.encode())[0] == parse_file("f", TIDY.encode())[0]


def test_long_rows() -> None:
    arguments = ", ".join(f"int argument_{i}=0" for i in range(20))
    contracts = "".join(f"argument_{i}: any\n" for i in range(20))
    text = f"namespace lib\nprefix l\nversion 1.2.0\n\n{contracts}f({arguments}) -> ()\n"
    rows = format_file("f", text.encode()).decode().splitlines()
    assert max(map(len, rows)) <= 140
    assert [len(row) for row in rows[-3:]] == [127, 133, 123]
    assert rows[-3].startswith("f(int argument_0=0, ") and rows[-2].startswith("    int argument_7=0, ")


def test_this_library_is_formatted() -> None:
    """What everybody writes is what everybody reads."""
    data = (REPOSITORY / "schema" / "ops.schema").read_bytes()
    assert format_file("schema/ops.schema", data) == data


def comments(text: str) -> list[str]:
    return re.findall(r"# ?(c[0-9]+)", text)


@pytest.mark.parametrize("seed", range(4))
def test_any_layout_has_one_form(seed: int) -> None:
    """Blanks, blank rows and comments at random: the meaning stays, every comment stays, formatting twice changes nothing."""
    rng = random.Random(seed)
    lines = TIDY.split("\n")
    for _ in range(60):
        text, count = "", 0
        for line in lines:
            if not line.startswith(("#", " ")) and rng.random() < 0.3:
                text += "\n" * rng.randint(0, 2)
                text += f"#{' ' * rng.randint(0, 1)}c{count}\n"
                count += 1
            if not line.startswith("#") and not ('"' in line or "'" in line):
                line = "".join(c * rng.randint(1, 3) if c == " " and i > 12 else c for i, c in enumerate(line))
            if line and not line.startswith("#") and "#" not in line and rng.random() < 0.3:
                line += f"  # c{count}"
                count += 1
            text += line + " " * rng.randint(0, 2) + "\n"
        before, report = parse_file("f", text.encode())
        if before is None:  # a blank line ended what was to go on
            continue
        once = format_file("f", text.encode())
        assert comments(once.decode()) == comments(text)
        assert format_file("f", once) == once
        assert parse_file("f", once)[0] == before


ONE = "namespace lib\nprefix l\nversion 1.2.0\n\n## y = x.\nx: f32 [n]\ny: like x, out\nf(Tensor x, Tensor(y!) y) -> ()\n"


@pytest.mark.parametrize("blank", ["\n", "\n\n", " \n", " \n\t\n"])
def test_blank_rows_between_contracts(blank: str) -> None:
    """One for several, whatever they consist of, and it stays."""
    once = format_file("f", ONE.replace("y: like", f"{blank}y: like").encode()).decode()
    assert once == ONE.replace("y: like", "\ny: like")
    assert format_file("f", once.encode()).decode() == once


def test_an_indented_comment_does_not_become_documentation() -> None:
    once = format_file("f", ONE.replace("\nx: f32", "\n\n  ## not documentation\nx: f32").encode()).decode()
    assert once == ONE.replace("\nx: f32", "\n\n# # not documentation\nx: f32")


def test_a_backslash_at_the_end_of_a_row() -> None:
    """As C++ programs have it, from where a schema may be pasted. The row goes on without it."""
    assert format_file("f", ONE.replace("x, Tensor", "x, \\\n  Tensor").encode()).decode() == ONE


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ops.schema"
    path.write_text(TIDY.replace("r: each >= 1", "r: each>=1"), "utf-8")
    assert main(["fmt", "--check", "--schema", str(path)]) == 1
    said = capsys.readouterr().out
    assert f"--- {path}\n+++ {path}\n" in said and "-r: each>=1\n+r: each >= 1\n" in said
    assert main(["fmt", "--schema", str(path)]) == 0
    assert capsys.readouterr().out == f"formatted {path}\n"
    assert path.read_text("utf-8") == TIDY
    assert main(["fmt", "--check", "--schema", str(path)]) == 0
    assert main(["fmt", "--schema", str(path)]) == 0
    assert capsys.readouterr().out == ""


def test_a_file_with_errors_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ops.schema"
    path.write_text(TIDY.replace("r: each >= 1", "r:  each >= f33"), "utf-8")
    before = path.read_bytes()
    assert main(["fmt", "--schema", str(path)]) == 1
    assert "error" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_as_a_filter(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MESSY.encode())))
    assert main(["fmt", "--schema", "-"]) == 0
    assert capsys.readouterr().out == TIDY
