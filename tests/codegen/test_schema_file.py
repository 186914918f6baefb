"""The schema file: what a line means, and that layout does not change it."""

from __future__ import annotations

import pytest

from codegen import model as m
from codegen.model import DType, Operator, TensorContract, ValueContract
from codegen.printing import format_expr
from codegen.record import fields, replace
from codegen.schema_file import parse_file

HEADER = "namespace lib\nprefix l\nversion 1.2.0\n"

SCALED = """
## y = scale * x.
##
##     y[i] = scale * x[i]
x: f32 | bf16 [n]          # any strides
y: like x, out
scale: 1 .. 7
@backends ref avx2
@since 1.0.0
scaled(Tensor x, Tensor(y!) y, int scale=1) -> ()
"""


def parse(text: str, header: str = HEADER) -> tuple[Operator, ...]:
    library, report = parse_file("test.schema", (header + text).encode())
    assert library is not None, report.render()
    return library.operators


def errors(text: str) -> list[str]:
    library, report = parse_file("test.schema", (HEADER + text).encode())
    assert library is None
    return [f"{d.span.line - 3}:{d.span.column} {d.code}" for d in report.diagnostics()]


def tensor(op: Operator, index: int) -> TensorContract:
    contract = op.contracts[index]
    assert isinstance(contract, TensorContract)
    return contract


def value(op: Operator, index: int) -> ValueContract:
    contract = op.contracts[index]
    assert isinstance(contract, ValueContract)
    return contract


def test_header() -> None:
    library, _ = parse_file("s", HEADER.encode())
    assert library is not None
    assert (library.namespace, library.prefix, library.version, library.operators) == ("lib", "l", "1.2.0", ())


def test_an_operator() -> None:
    [op] = parse("section Scaling things\n" + SCALED)
    assert str(op.schema) == "scaled(Tensor x, Tensor(y!) y, int scale=1) -> ()"
    assert op.section == "Scaling things"
    assert op.doc == "y = scale * x.\n\n    y[i] = scale * x[i]"
    assert [c.name for c in op.contracts] == ["x", "y", "scale"]
    assert [c.text for c in op.contracts] == ["f32 | bf16 [n]", "like x, out", "1 .. 7"]
    assert op.contracts[0].comment == "any strides"
    assert [(d.name, d.arg, d.axes) for d in op.dimensions] == [("n", "x", (0,))]
    assert op.backends == ("ref", "avx2") and op.since == "1.0.0"
    assert tensor(op, 1).access == "out" and tensor(op, 1).like == "x"
    assert tensor(op, 0).alternatives[0].dtypes == (DType.f32, DType.bf16)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: text.replace("          # any", "\t# any"),
        lambda text: text.replace("f32 | bf16 [n] ", "f32\n  | bf16\n\t[n] "),
        lambda text: text.replace("Tensor x, ", "\n    Tensor x,\n    ").replace("int scale=1)", "int scale=1\n)"),
        lambda text: text.replace("Tensor x, ", "\nTensor x, # the input\n\n"),
        lambda text: text.replace(" -> ()", "\n    -> ()"),
        lambda text: text.replace("\n@", "\n\n# a remark\n@"),
        lambda text: text.rstrip("\n"),
    ],
)
def test_layout_changes_nothing(change: object) -> None:
    assert callable(change)
    library, report = parse_file("s", change(HEADER + SCALED).encode())
    assert library is not None, report.render()
    assert library.operators == parse(SCALED)


def test_the_schema_text_pastes_into_cpp() -> None:
    [op] = parse("x: any\ny: any\nf(int x, # one\n    int y  = 3\n) -> ()\n")
    assert op.schema.text == "f(int x, int y = 3) -> ()"


def test_alternatives() -> None:
    [op] = parse(
        "x: f32 [m, n] rows | f32 | i32 [b, m, n] strides [m * n, n, 1] when big | bf16 [...] contiguous\n"
        "y: dtype(x) [m], inout, may alias z, cpu\n"
        "z: f32 [m], out\n"
        "m_of: f32 [m]\n"
        "big: any\n"
        "let b = rank(x) == 3 ? dim(x, -3) : 1\n"
        "f(Tensor x, Tensor(y!) y, Tensor(z!) z, Tensor m_of, bool big) -> ()\n".replace(
            "[m, n] rows", "[dim(m_of, 0), 3] rows"
        ).replace("[b, m, n] strides [m * n, n, 1]", "[b, m, 3] strides [m * 3, 3, 1]")
    )
    first, second, third = tensor(op, 0).alternatives
    assert first.layout == "rows" and first.when is None
    assert second.dtypes == (DType.f32, DType.i32) and second.strides is not None and len(second.strides) == 3
    assert second.text == "f32 | i32 [b, m, 3] strides [m * 3, 3, 1] when big"
    assert third.shape is None and third.text == "bf16 [...] contiguous"
    y = tensor(op, 1)
    assert (y.access, y.may_alias, y.on_cpu, y.alternatives[0].dtype_of) == ("inout", ("z",), True, "x")
    assert y.text == "dtype(x) [m], inout, may alias z, cpu"


def test_a_dimension_is_defined_by_the_first_required_tensor_that_has_it_everywhere() -> None:
    [op] = parse(
        "a: f32 [k, m] | f32 [g, m, k]\nb: f32 [g, n]\nc: f32 [q]\nd: f32 [q]\nf(Tensor a, Tensor b, Tensor? c, Tensor d) -> ()\n"
    )
    assert [(d.name, d.arg, d.axes) for d in op.dimensions] == [
        ("k", "a", (0, 2)),
        ("m", "a", (1, 1)),
        ("g", "b", (0,)),
        ("n", "b", (1,)),
        ("q", "d", (0,)),
    ]


def test_value_contracts() -> None:
    [op] = parse(
        's: "nk" | "mn"\ni: 1 | -2\nj: >= 0, < n\nk: 0 .. 7\nl: length 2 | 3, each >= 1\nt: f32 | bf16\nx: f32 [n]\ne: each 0 .. n\n'
        "f(str s, int i, int j, int k, int[] l, ScalarType t, Tensor x, int[2]? e) -> ()\n"
    )
    assert value(op, 0).one_of == ("nk", "mn")
    assert value(op, 1).one_of == (1, -2)
    assert [(c, format_expr(e)) for c, e in value(op, 2).compares] == [(">=", "0"), ("<", "n")]
    assert value(op, 4).each and value(op, 4).lengths == (2, 3)
    assert value(op, 5).one_of == (DType.f32, DType.bf16)
    assert [c.text for c in op.contracts] == [
        '"nk" | "mn"', "1 | -2", ">= 0, < n", "0 .. 7", "each >= 1, length 2 | 3", "f32 | bf16", "f32 [n]", "each 0 .. n",
    ]  # fmt: skip


def test_results() -> None:
    [op] = parse(
        "x: f32 [m, n]\nt: f32 | bf16\n-> y: dtype(t) [m] strides [n]\n-> z: i32 [m] when n > 3 | f32 [n]\n-> count: any\n"
        "f(Tensor x, ScalarType t) -> (Tensor, Tensor, int)\n"
    )
    assert [r.name for r in op.results] == ["y", "z", "count"]
    assert [r.text for r in op.results] == ["dtype(t) [m] strides [n]", "i32 [m] when n > 3 | f32 [n]", "any"]


def test_lets_requires_and_checks() -> None:
    [op] = parse(
        "let late = early * 2\nlet early = n + 1\nx: f32 [n]\n"
        'require early > 1 and n % 2 == 0 else "n must be even"\nrequire n < 9\ncheck order: rows are sorted   # by hand\n'
        "f(Tensor x) -> ()\n"
    )
    assert [let.name for let in op.lets] == ["early", "late"]
    assert [(r.text, r.message) for r in op.requires] == [("early > 1 and n % 2 == 0", "n must be even"), ("n < 9", None)]
    assert [(c.name, c.text) for c in op.checks] == [("order", "rows are sorted")]


def test_directives() -> None:
    [op] = parse(
        "a: f32 [n]\nsa: f32 [n]\nr: each >= 1\n@pair a = a, sa\n@alias g h\n@keyword scale_a = a\n@scalar r\n"
        "@backends none: not yet\nf(Tensor a, Tensor sa, int[2] r) -> ()\n"
    )
    assert [(p.name, p.args) for p in op.pairs] == [("a", ("a", "sa"))]
    assert (op.aliases, op.keywords, op.scalars) == (("g", "h"), (("scale_a", "a"),), ("r",))
    assert (op.backends, op.refusal) == ((), "not yet")


def test_without_backends_there_is_the_reference() -> None:
    [op] = parse("f() -> ()\n")
    assert (op.backends, op.refusal) == (("ref",), "")


LIKE = """
let twice = k * 2
let of_r = r * 2
x: f32 [n]
y: f32 [n], out
k: >= 0
r: any
require twice > 1
require of_r > 1
check sorted: by hand
@pair p = x, z
z: f32 [n]
@scalar s
s: any
@backends ref sm80
@since 1.0.0
@alias other
f(Tensor x, Tensor z, Tensor(y!) y, int k, int r, int[2] s) -> ()

@like f
x: bf16 [n]
g(Tensor x, Tensor(y!) y, int k) -> ()

@like g
@backends ref
h(Tensor x, Tensor(y!) y, int k) -> ()
"""


def test_like() -> None:
    _, g, h = parse(LIKE)
    assert [c.text for c in g.contracts] == ["bf16 [n]", "f32 [n], out", ">= 0"]
    assert [let.name for let in g.lets] == ["twice"]  # of_r reads an argument that g does not have
    assert [r.text for r in g.requires] == ["twice > 1"]
    assert [c.name for c in g.checks] == ["sorted"]
    assert (g.pairs, g.scalars, g.aliases, g.since) == ((), (), (), "")
    assert (g.backends, h.backends) == (("ref", "sm80"), ("ref",))
    assert h.contracts == g.contracts


def test_like_may_stand_before() -> None:
    first, second = parse("@like g\nf(int x) -> ()\n\nx: >= 0\ng(int x) -> ()\n")
    assert first.contracts == second.contracts


def test_like_in_a_circle() -> None:
    assert errors("@like g\nf() -> ()\n\n@like f\ng() -> ()\n") == ["4:7 DG0604"]


@pytest.mark.parametrize(
    "source",
    [
        "1 + 2 * 3",
        "(1 + n) * 3",
        "n - (m - 1)",
        "n - m - 1",
        "-n + 1",
        "-(n + 1) * 2",
        "n // 2 % 3",
        "n // (2 % 3)",
        "ceil(n / 128)",
        "ceil((n + m) / (2 * 3))",
        "ceil(n * 2 / -(-m))",
        "align(max(n, m), 4)",
        "n > 3 ? n : m",
        "n > 3 and m > 3 or not n == 4 ? 1 : 2",
        "(n > 3 or m > 3) and n != 4 ? 1 : 2",
        "n > 3 ? m > 3 ? 1 : 2 : 3",
        "(n > 3 ? 1 : 2) + 1",
        'not s == "a\\"b" ? 1 : 2',
        "given(o) and o > 0 ? o : stride(x, -1)",
        "dtype(x) == f32 ? len(l) : rank(x)",
        "sum_ceil(l / 4)",
    ],
)
def test_expressions_print_as_they_were_written(source: str) -> None:
    [op] = parse(f"let e = {source}\nx: f32 | i32 [n, m]\ns: any\no: any\nl: any\nf(Tensor x, str s, int? o, int[] l) -> ()\n")
    assert format_expr(op.lets[0].expr) == source


# ---- what is known where -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "let a = given(r) ? r[1] : 0",
        "let a = given(r) and r[0] > 1 ? r[1] : 0",
        "let a = not given(r) ? 0 : r[1]",
        "let a = not given(r) or r[0] > 1 ? 1 : 0",
        "require not given(c) or dim(c, 0) == n",
        "let a = len(l) == 3 ? l[2] : 0",
        "let a = len(l) > 2 ? l[2] : 0",
        "let a = 3 <= len(l) ? l[2] : 0",
        "let a = len(l) != 0 ? l[0] : 0",
        "let a = len(m) == 2 ? 0 : m[2]",
        "let a = m[1]",
        "let has = given(r) ? 1 : 0\nlet a = has == 1 ? r[0] : 0",
        "let has = given(r) ? 1 : 0\nlet a = has == 0 ? 0 : r[0]",
        "let has = given(r) ? 1 : 0\nrequire has != 1 or r[0] > 0",
        "let a = rank(x) == 2 ? dim(x, 1) : 0",
    ],
)
def test_guarded_reads(line: str) -> None:
    parse(
        f"{line}\nx: f32 [n] | f32 [n, 2]\nc: f32 [n]\nr: any\nl: any\nm: length 2 | 3\n"
        "f(Tensor x, int[2]? r, Tensor? c, int[] l, int[] m) -> ()\n"
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("let a = r[1]", "1:9 DG0504"),
        ("let a = given(r) or r[0] > 1 ? 1 : 0", "1:21 DG0504"),
        ("let a = given(r) ? 0 : r[1]", "1:24 DG0504"),
        ("require dim(c, 0) == n", "1:13 DG0504"),
        ("let a = len(l) == 2 ? l[2] : 0", "1:23 DG0505"),
        ("let a = len(l) < 3 ? 0 : l[3]", "1:26 DG0505"),
        ("let a = m[2]", "1:9 DG0505"),
        ("let a = dim(x, 1)", "1:16 DG0505"),
        ("let a = dim(x, -2)", "1:16 DG0505"),
        ("let has = given(r) ? 1 : 0\nlet a = has == 0 ? r[0] : 0", "2:20 DG0504"),
    ],
)
def test_unguarded_reads(line: str, expected: str) -> None:
    text = (
        f"{line}\nx: f32 [n] | f32 [n, 2]\nc: f32 [n]\nr: any\nl: any\nm: length 2 | 3\n"
        "f(Tensor x, int[2]? r, Tensor? c, int[] l, int[] m) -> ()\n"
    )
    assert errors(text) == [expected]


# ---- recovery ------------------------------------------------------------------------------------------------


def test_errors_of_every_level_are_found_in_one_run() -> None:
    found = errors(
        "x: f32 [n\n"  # contract
        "f(Tensor x, String y) -> ()\n"  # argument
        "\n"
        "y: float32 [n]\n"
        "g(Tensor y, int k) -> ()\n"  # operator
        "\n"
        "@pears a\n"
        "h() -> ()\n"  # file
    )
    assert found == ["1:10 DG0404", "2:13 DG0103", "4:4 DG0405", "5:17 DG0401", "7:1 DG0601"]


def test_a_missing_parenthesis_ends_with_its_operator() -> None:
    assert errors("x: any\nf(int x\n\n## next\ny: >= \ng(int y) -> ()\n") == ["2:8 DG0308", "5:6 DG0501"]


def test_a_line_that_does_not_parse_makes_no_further_noise() -> None:
    assert errors("x: f32 [n;]\ny: f32 [n]\nrequire n > 1\nf(Tensor x, Tensor? y) -> ()\n") == ["1:10 DG0404"]


def test_records() -> None:
    """What the model is made of behaves as frozen dataclasses do."""
    span = m.Span("f", 1, 2, 3)
    arg = m.Argument("x", m.Base("int"), None, False, None, span)
    same = replace(arg, span=m.Span("f", 9, 9, 9))
    assert arg == same and hash(arg) == hash(same) and arg.span != same.span  # spans do not count
    assert arg != replace(arg, name="y") and arg != ("x",)
    assert repr(m.Base("int")) == "Base(name='int')"
    assert fields(arg) == ("name", "type", "default", "kw_only", "alias", "span")
    with pytest.raises(AttributeError, match="name cannot change"):
        arg.name = "y"  # type: ignore[misc]
    with pytest.raises(TypeError):
        m.Base()  # type: ignore[call-arg]
    match arg:
        case m.Argument(name, m.Base(kind)):
            assert (name, kind) == ("x", "int")
        case _:
            raise AssertionError
