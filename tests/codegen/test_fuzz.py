"""Any bytes end in diagnostics: no traceback, no hang. Mutations of valid input with fixed seeds, within a time per KiB."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from schema_strings import ACCEPTED, REJECTED

from codegen.parse import check_string
from codegen.schema_file import parse_file

# Generous: about fifty times what a slow machine takes. It is there to catch what grows faster than its input.
SECONDS_PER_KIB = 0.5

PIECES = [
    *"()[]{}!?*|,.=:'\"\\#\n \t-+<>&@$;\0\r\x0b%/0123456789eExj_",
    "->", "...", "# type:", "##", "'''", "\\\n", "None", "Tensor", "int[2]", "like", "when", "given(", "ceil(", "@like f", "@pair",
    "let a = ", "require ", "<<<<<<< ", "\ufeff", "\u00e9", "\U0001f600", "not", "f32", " : ", "[...]", "namespace x\n", "-> y: ", "\r\n",
]  # fmt: skip

FILE = (Path(__file__).parents[2] / "schema" / "ops.schema").read_text("utf-8")
SMALL = """namespace lib
prefix l
version 1.2.0
section One
## doc
let q = given(r) ? r[0] : 1
require n > 1 and (not given(c) or dim(c, 0) == n) else "no"
x: f32 | bf16 [m, n] rows | i32 [m, n] strides [1, align(m, 4)] when b
w: dtype(x) [ceil(n / q), m] | i8 [...] contiguous
y: like x, out
c: f32 [n], may alias y
r: each >= 1
s: "nk" | "mn"
b: any
-> z: f32 [m] when b | i32 [n]
@pair p = x, c
@backends ref
f(Tensor x, Tensor w, Tensor(y!) y, Tensor? c=None, int[2]? r=None, str s="nk", bool b=False) -> Tensor

@like f
g(Tensor x, Tensor w, Tensor(y!) y, int[2]? r=None, bool b=False) -> Tensor
"""


def mutate(text: str, rng: random.Random) -> str:
    for _ in range(rng.randint(1, 4)):
        at, kind = rng.randint(0, len(text)), rng.random()
        if kind < 0.4:
            text = text[:at] + rng.choice(PIECES) + text[at:]
        elif kind < 0.7:
            text = text[:at] + text[at + rng.randint(1, 12) :]
        elif kind < 0.85:
            other = rng.randint(0, len(text))
            text = text[:at] + text[other : other + rng.randint(1, 30)] + text[at:]
        else:
            text = text[:at] + text[at : at + 5] * rng.randint(2, 9) + text[at:]
    return text


def test_the_small_file_is_right() -> None:
    """So that its mutations are now and then, and what comes after the parser is reached."""
    library, report = parse_file("f", SMALL.encode())
    assert library is not None, report.render()


def timed(run: object, size: int) -> None:
    assert callable(run)
    start = time.process_time()
    run()
    assert time.process_time() - start < SECONDS_PER_KIB * (1 + size / 1024)


@pytest.mark.parametrize("seed", range(3))
def test_schema_strings(seed: int) -> None:
    rng = random.Random(seed)
    strings = [*ACCEPTED, *REJECTED]
    for _ in range(600):
        text = mutate(rng.choice(strings), rng)

        def run(text: str = text) -> None:
            for as_torch in (True, False):
                schema, report = check_string(text, as_torch=as_torch)
                assert (schema is None) == bool(report)
                report.render()
                if schema is not None:
                    str(schema)

        timed(run, len(text))


@pytest.mark.parametrize("seed", range(3))
def test_small_files(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(150):
        data = mutate(SMALL, rng).encode("utf-8")
        if rng.random() < 0.3:
            at = rng.randint(0, len(data))
            data = data[:at] + bytes(rng.randrange(256) for _ in range(rng.randint(1, 4))) + data[at:]

        def run(data: bytes = data) -> None:
            library, report = parse_file("f", data)
            assert (library is None) == bool(report)
            report.render()

        timed(run, len(data))


def test_the_real_file() -> None:
    rng = random.Random(7)
    for _ in range(4):
        data = mutate(FILE, rng).encode("utf-8")
        timed(lambda data=data: parse_file("f", data)[1].render(), len(data))


@pytest.mark.parametrize(
    "text",
    [
        "(" * 20000,
        "f(" * 5000,
        "x: f32 [" + "(" * 20000,
        "let a = " + "-" * 20000 + "1",
        "let a = " + "not " * 20000,
        "let a = " + "1 ? 1 : " * 5000 + "1",
        "let a = " + "1 + " * 5000 + "1\nf() -> ()",
        "x: " + "f32 | " * 5000 + "f32 [n]\nf(Tensor x) -> ()",
        "f(" + "int x, " * 3000 + "int y) -> ()",
        "f(str s='" + "\\" * 20001 + "') -> ()",
        "@like f\n" * 3000 + "f() -> ()",
        "".join(f"@like f{i + 1}\nf{i}() -> ()\n" for i in range(1500)),
        "".join(f"let a{i} = a{i + 1}\n" for i in range(1500)) + "f() -> ()",
        "#" * 50000,
        " #" * 20000 + "\nx",
        "\n" * 50000,
        "x:" * 20000,
        "f(int x=" + "9" * 20000 + ", float y=1e" + "9" * 20000 + ") -> ()",
        "f(float y=0." + "0" * 20000 + "1) -> ()",
        "f(int[" + "9" * 5000 + "] x) -> ()",
        "f(Union(" + "int, str, Tensor, " * 300 + "int) x) -> ()",
    ],
    ids=range(21),
)
def test_hostile_input(text: str) -> None:
    header = "namespace lib\nprefix l\nversion 1.2.0\n"
    timed(lambda: parse_file("f", (header + text).encode())[1].render(), len(text))
    timed(lambda: check_string(text, as_torch=True)[1].render(), len(text))


def test_random_bytes() -> None:
    rng = random.Random(3)
    for _ in range(200):
        data = bytes(rng.randrange(256) for _ in range(rng.randint(0, 400)))
        library, report = parse_file("f", data)
        assert library is None and report
        report.render()
