"""Calls that follow from contracts: that every operator has right ones, that every condition can be broken, and what each fault says.

The library's own answer to such calls is asked for in tests/contract.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from codegen import model as m
from codegen.cli import main
from codegen.record import replace
from codegen.samples.call import Call, Tensor, Value
from codegen.samples.draw import CannotDraw, break_require, draw
from codegen.samples.faults import faults
from codegen.samples.program import Seeded
from codegen.samples.verdict import Verdict, results, verdict
from codegen.schema_file import parse_file

REPOSITORY = Path(__file__).parents[2]
SCHEMA = REPOSITORY / "schema" / "ops.schema"

SMALL = """\
namespace wave
prefix wv
version 0.1.0

let rows = given(split) ? split : 1
x: f32 | bf16 [m, n]
w: dtype(x) [n, ceil(m / block)] | i8 [n, 4]
y: like x, out
z: like y, may alias y
s: f32 [rows, m] strides [m + 2, 1] when given(split) | f32 [m] contiguous when not given(split)
codes: f4e2m1 [m, k]
block: >= 1, <= 64
split: 1 .. 3
mode: "sum" | "max"
ends: length 2 | 3, each 0 .. 9
scale: >= 0, < n
kind: f32 | bf16
require m % block == 0 or mode == "max" else "m must be a multiple of block"
require len(ends) < 3 or ends[2] >= ends[0]
-> out: dtype(kind) [m, n] strides [align(n, 8), 1]
@backends ref
f(Tensor x, Tensor w, Tensor(y!) y, Tensor? z, Tensor s, Tensor codes, int block, int[] ends, float scale, str mode="sum", int? split=None,
    ScalarType kind=float32) -> Tensor

x: i32 [n]
pair: any
@backends none: it is not written yet
g(Tensor x, int[2] pair=[1, 2]) -> ()
"""


def operators(text: bytes) -> dict[str, m.Operator]:
    library, report = parse_file("ops.schema", text)
    assert library is not None, report.render()
    return {op.symbol: op for op in library.operators}


F, G = operators(SMALL.encode()).values()
OPERATORS = list(operators(SCHEMA.read_bytes()).values())


def tensor(dtype: m.DType, *shape: int, **more: object) -> Tensor:
    strides = [1] * len(shape)
    for i in reversed(range(len(shape) - 1)):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return replace(Tensor(dtype, shape, tuple(strides)), **more)


F32, BF16, I32, F64, FP4 = m.DType.f32, m.DType.bf16, m.DType.i32, m.DType.f64, m.DType.f4e2m1

RIGHT: dict[str, Value] = {
    "x": tensor(F32, 4, 6), "w": tensor(F32, 6, 2), "y": tensor(F32, 4, 6), "z": None, "s": tensor(F32, 4),
    "codes": tensor(FP4, 4, 5, is_pairs=True), "block": 2, "ends": (1, 2), "scale": 1.5, "mode": "sum", "split": None, "kind": BF16,
}  # fmt: skip

# What is changed, and the message; written by hand.
MESSAGES: list[tuple[dict[str, Value], str]] = [
    ({"x": None}, "x is NULL, expected f32 | bf16 [m, n]"),
    ({"x": tensor(F64, 4, 6)}, "x has dtype f64, expected f32 | bf16 [m, n]"),
    ({"x": tensor(F32, 4)}, "x has shape [4], expected f32 | bf16 [m, n]"),
    ({"x": tensor(F32, 1, 1, 1, 1, 1, 1, 1, 4, 6)}, "x has ndim = 9, expected 0 to 8"),
    ({"x": tensor(F32, -4, 6)}, "x has shape [-4, 6], expected no negative size"),
    ({"x": tensor(F32, 4, 2**60)}, f"x has shape [4, {2**60}] and strides [{2**60}, 1], too large for 64-bit offsets"),
    ({"x": tensor(F32, 4, 6, is_elsewhere=True)}, "x is on a device of type 99, expected the CPU or a CUDA device"),
    ({"x": tensor(F32, 4, 6, has_data=False)}, "x has data NULL, expected memory for shape [4, 6]"),
    ({"w": tensor(F32, 6, 3)}, "w has shape [6, 3], expected [6, 2] = [n, ceil(m / block)]"),
    ({"w": tensor(BF16, 6, 2)}, "w has dtype bf16, expected dtype(x) [n, ceil(m / block)] | i8 [n, 4]"),
    ({"w": tensor(m.DType.i8, 5, 4)}, "w has shape [5, 4], expected [6, 4] = [n, 4]"),
    ({"y": tensor(BF16, 4, 6)}, "y has dtype bf16, expected f32 to match x"),
    ({"y": tensor(F32, 4, 7)}, "y has shape [4, 7], expected [4, 6] to match x"),
    ({"y": tensor(F32, 4, 6, strides=(0, 1))}, "y has shape [4, 6] and strides [0, 1], expected elements that do not overlap"),
    ({"x": tensor(F32, 4, 6, memory="y")}, "y overlaps x, expected separate memory"),
    (
        {"z": tensor(F32, 4, 6, memory="y", strides=(1, 4))},
        "y overlaps z, expected separate memory or exactly the same tensor",
    ),
    ({"s": tensor(F32, 4, strides=(2,))}, "s has strides [2], expected [1] = contiguous"),
    ({"split": 2}, "s has shape [4], expected f32 [rows, m] strides [m + 2, 1] when given(split)"),
    ({"split": 2, "s": tensor(F32, 2, 4)}, "s has strides [4, 1], expected [6, 1] = [m + 2, 1]"),
    (
        {"codes": tensor(FP4, 4, 5, is_pairs=True, strides=(10, 2))},
        "codes has strides [10, 2], expected 1 along the dimension that holds the pairs of f4e2m1",
    ),
    (
        {"codes": tensor(FP4, 4, 5)},
        "codes has strides [5, 1], expected even ones except along the dimension that holds the pairs of f4e2m1",
    ),
    ({"codes": tensor(m.DType.u8, 3, 5)}, "codes has m = 3, expected 4 to match x"),
    ({"block": 0}, "block is 0, expected 1 .. 64"),
    ({"block": 65}, "block is 65, expected 1 .. 64"),
    ({"block": 3}, 'm must be a multiple of block, got m = 4, block = 3, mode = "sum"'),
    ({"split": 4}, "split is 4, expected 1 .. 3"),
    ({"mode": "mean"}, 'mode is "mean", expected "sum" or "max"'),
    ({"mode": "x" * 65}, f'mode is "{"x" * 64}...", expected "sum" or "max"'),
    ({"ends": (1,)}, "ends has length 1, expected 2 or 3"),
    ({"ends": (1, 10)}, "ends[1] is 10, expected 0 .. 9"),
    ({"ends": (3, 4, 2)}, "requires len(ends) < 3 or ends[2] >= ends[0], got len(ends) = 3, ends[2] = 2, ends[0] = 3"),
    ({"scale": -0.5}, "scale is -0.5, expected >= 0"),
    ({"scale": 6.0}, "requires scale < n, got scale = 6, n = 6"),
    ({"kind": I32}, "kind is i32, expected f32 or bf16"),
]


def test_a_right_call_has_no_message() -> None:
    call = Call(F, RIGHT)
    assert verdict(call) is None
    assert results(call) == [Tensor(BF16, (4, 6), (8, 1))]


@pytest.mark.parametrize(("changed", "message"), MESSAGES, ids=lambda x: x if isinstance(x, str) else "")
def test_the_message_of_a_fault(changed: dict[str, Value], message: str) -> None:
    found = verdict(Call(F, {**RIGHT, **changed}))
    assert found is not None and found.message == f"f: {message}"
    is_dtype = " dtype " in message or message.startswith("kind")
    assert found.status == ("INVALID_DTYPE" if is_dtype else "INVALID_ARGUMENT")


def test_without_an_implementation_a_right_call_is_refused() -> None:
    values: dict[str, Value] = {"x": tensor(I32, 3), "pair": (1, 2)}
    assert verdict(Call(G, values)) == Verdict("NOT_SUPPORTED", "g: not implemented: it is not written yet")
    assert verdict(Call(G, {**values, "pair": (1, 2, 3)})) == Verdict("INVALID_ARGUMENT", "g: pair needs 2 ints, got 3")


def test_a_tensor_that_is_gone_leaves_its_memory_to_others() -> None:
    call = Call(F, {**RIGHT, "z": tensor(F32, 4, 6, memory="y")})
    assert verdict(call) is None
    z = call.with_value("y", None).values["z"]
    assert isinstance(z, Tensor) and z.memory == ""


def some_faults(op: m.Operator, runs: int) -> Iterator[str]:
    for i in range(runs):
        source = Seeded(f"{op.symbol} {i}")
        yield from (fault.label for fault in faults(draw(op, source), source, is_c=True))


def test_every_kind_of_fault_is_found() -> None:
    found = set(some_faults(F, 60))
    for name in ("x", "w", "y", "z", "s", "codes"):
        kinds = {"dtype", "a dimension more", "nine dimensions", "a negative size", "another device", "no data", "too large for 64 bits"}
        assert {f"{name}: {kind}" for kind in kinds} <= found, name
        assert f"{name}: missing" in found or name == "z"
    assert {f"w: size {axis} too {way}" for axis in (0, 1) for way in ("large", "small")} <= found
    assert {"y: one place for all of dimension 0", "y: one place for all of dimension 1", "x: the memory of y"} <= found
    assert {"s: strides twice as large", "block: too small", "block: too large", "split: too small", "split: too large"} <= found
    assert {"mode: of no known word", "mode: of many characters", "kind: of another dtype", "scale: too small"} <= found
    assert {"ends: a member more", "ends: a member less", "ends: a member too small", "ends: a member too large"} <= found
    assert {f"require {require.text}" for require in F.requires} <= found


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.symbol)
def test_every_operator_has_right_calls_and_every_condition_can_be_broken(op: m.Operator) -> None:
    source = Seeded(op.symbol)
    calls = [draw(op, source) for _ in range(100)]
    for name, contract in ((c.name, c) for c in op.contracts if isinstance(c, m.TensorContract)):
        drawn = [call.values[name] for call in calls]
        assert any(isinstance(t, Tensor) and not t.is_empty for t in drawn), f"{name} is always empty"
        if next(a for a in op.schema.args if a.name == name).is_optional:
            assert any(t is None for t in drawn), f"{name} is always given"
        assert contract.on_cpu is False
    for require in op.requires:
        messages = (verdict(call) for _ in range(50) if (call := break_require(op, require, source)) is not None)
        assert any(found is not None and (require.message or require.text) in found.message for found in messages), require.text


def test_what_cannot_be_drawn_says_so() -> None:
    op = operators(b"namespace wave\nprefix wv\nversion 0.1.0\n\nn: 1 .. 3\nrequire n * n == 7\n@backends ref\nf(int n) -> ()\n")["f"]
    with pytest.raises(CannotDraw, match="f: no right call in 5 tries"):
        draw(op, Seeded("1"), tries=5)


def test_a_library_without_operators_in_c_has_no_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jinja2")
    (tmp_path / "ops.schema").write_text("namespace wave\nprefix wv\nversion 0.1.0\n\nx: f32 [n]\n-> y: f32 [n]\n@backends none: no\nf(Tensor(a) x) -> Tensor(a)\n")
    assert main(["samples", "--schema", str(tmp_path / "ops.schema")]) == 2
    assert capsys.readouterr().err == "codegen: no operator of this library exists in C\n"


# ---- the verb --------------------------------------------------------------------------------------------------------


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "codegen", "samples", *words]
    return subprocess.run(command, cwd=REPOSITORY, env={"PYTHONPATH": ":".join(sys.path), **environment}, capture_output=True, text=True)


def test_the_same_seed_gives_the_same_program(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    (tmp_path / "ops.schema").write_text(SMALL)
    words = ("--schema", str(tmp_path / "ops.schema"), "--count", "2")
    first = run(*words, "--seed", "3", PYTHONHASHSEED="1")
    assert first.returncode == 0, first.stderr
    assert first.stdout == run(*words, "--seed", "3", PYTHONHASHSEED="2").stdout
    assert first.stdout != run(*words, "--seed", "4").stdout
    assert "wv_f(NULL, x, w, y, " in first.stdout
    assert run(*words, "--seed", "3", "--out", str(tmp_path / "calls.c")).returncode == 0
    assert (tmp_path / "calls.c").read_text() == first.stdout


def test_a_file_mends_what_contracts_do_not_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jinja2")
    (tmp_path / "ops.schema").write_text("namespace wave\nprefix wv\nversion 0.1.0\n\nn: 0 .. 9\n@backends ref\nf(int n) -> ()\n")
    words = ["samples", "--schema", str(tmp_path / "ops.schema"), "--adjust", str(tmp_path / "mend.py")]
    assert main(words) == 2
    assert capsys.readouterr().err == f"codegen: {tmp_path / 'mend.py'} is no Python file\n"
    (tmp_path / "mend.py").write_text("def other(): pass\n")
    assert main(words) == 2
    assert capsys.readouterr().err == f"codegen: {tmp_path / 'mend.py'} has no function `adjust(call, source)`\n"
    (tmp_path / "mend.py").write_text("def adjust(call, source):\n    return call.with_value('n', 7)\n")
    assert main(words) == 0
    assert "ends_with(wv_f(NULL, 7), WV_OK" in capsys.readouterr().out
    (tmp_path / "mend.py").write_text("def adjust(call, source):\n    return None\n")
    assert main(words) == 2
    assert capsys.readouterr().err == "codegen: f: no right call in 200 tries; a function `adjust` can make one\n"
