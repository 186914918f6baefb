"""``breaking``: what an edit does, host by host; torch's verdicts are torch's own."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from codegen.breaking import Change, compare, next_version, render, worst
from codegen.cli import main
from codegen.hosts.torch_compare import backward, forward
from codegen.parse import check_string
from codegen.registry import load_hosts
from codegen.schema_file import parse_file

HOSTS = load_hosts(("c", "cpp", "torch", "torch_library", "python"))
HEADER = "namespace lib\nprefix l\nversion 0.3.0\n\n"
OPERATOR = """\
## y = x.
x: f32 [n]
y: like x, out
a: >= 0
b: any
f(Tensor x, Tensor(y!) y, int a=1, bool b=False) -> ()
"""
OLD = HEADER + OPERATOR


def changes(new: str, old: str = OLD) -> list[Change]:
    libraries = []
    for text in (old, new):
        library, report = parse_file("f", text.encode())
        assert library is not None, report.render()
        libraries.append(library)
    return compare(*libraries, HOSTS)


def broken(new: str, old: str = OLD) -> set[str]:
    """The layers that break."""
    return {d.layer for change in changes(new, old) for d in change.differences if d.breaks}


def edited(*pairs: str) -> str:
    text = OLD
    for old, new in zip(pairs[::2], pairs[1::2]):
        assert old in text
        text = text.replace(old, new)
    return text


def test_nothing() -> None:
    assert changes(OLD) == [] and worst([]) == "none"


# What torch's rules for schemas say (test_function_schema of PyTorch), and what C and Python callers see.
CASES = {
    "appended with a default": (("b: any", "b: any\nc: any", "b=False)", "b=False, int c=2)"), {"torch C++"}),
    "inserted with a default": (
        ("b: any", "b: any\nc: any", "bool b", "int c=2, bool b"),
        {"C ABI", "C++ source", "torch backward", "torch forward", "torch C++", "Python"},
    ),
    "renamed": (
        ("b: any", "c: any", "bool b", "bool c"),
        {"C source", "C++ source", "torch backward", "torch forward", "Python"},
    ),
    "positional to keyword-only": (("bool b", "*, bool b"), {"torch backward", "torch forward", "Python"}),
    "int to int?": (("int a=1", "int? a=1"), {"C ABI", "C source", "torch forward", "torch C++"}),
    "default dropped": (
        ("int a=1, bool b=False", "int a, bool b=False"),
        {"C ABI", "C source", "C++ source", "torch backward", "torch forward", "Python"},
    ),
    "default changed": (("a=1", "a=2"), {"torch backward", "torch forward"}),
    "required argument": (
        ("b: any", "b: any\nc: any", "Tensor(y!) y,", "Tensor(y!) y, int c,"),
        {"C ABI", "C source", "C++ source", "torch backward", "torch forward", "torch C++", "Python"},
    ),
    "argument removed": (
        ("b: any\n", "", ", bool b=False", ""),
        {"C ABI", "C source", "C++ source", "torch backward", "torch C++", "Python"},
    ),
    "the last default removed": (
        ("a: >= 0\nb: any\n", "", ", int a=1, bool b=False", ""),
        {"C ABI", "C source", "C++ source", "torch backward", "torch C++", "Python"},
    ),
    "written": (
        ("x: f32 [n]", "x: f32 [n], inout", "Tensor x", "Tensor(x!) x"),
        {"C source", "C++ source", "torch backward", "torch forward", "torch C++", "behaviour"},
    ),
    "dtype added": (("f32 [n]", "f32 | bf16 [n]"), set()),
    "layout narrower": (("f32 [n]", "f32 [n] rows"), {"behaviour"}),
    "bound added": (("b: any", "b: any\nrequire n > 0"), {"behaviour"}),
    "bound removed": ((">= 0", "any"), set()),
    "documentation": (("y = x.", "y is x."), set()),
    "no longer implemented": (("f(", "@backends none: it was wrong\nf("), {"behaviour"}),
    "prefix": (("prefix l", "prefix m"), {"C ABI", "C source"}),
    "namespace": (("namespace lib", "namespace bil"), {"C++ source", "torch backward", "torch forward", "Python"}),
    "removed": ((OPERATOR, OPERATOR.replace("f(", "g(")), {"C ABI", "C source", "C++ source", "torch backward", "torch C++", "Python"}),
}


@pytest.mark.parametrize(("edit", "expected"), CASES.values(), ids=CASES)
def test_layers(edit: tuple[str, ...], expected: set[str]) -> None:
    assert broken(edited(*edit)) == expected


def test_severities() -> None:
    assert worst(changes(edited("y = x.", "y is x."))) == "patch"
    assert worst(changes(edited("f32 [n]", "f32 | bf16 [n]"))) == "minor"
    assert worst(changes(edited("b: any", "b: any\nc: any", "b=False)", "b=False, int c=2)"))) == "minor"
    assert worst(changes(OLD + "\n" + OPERATOR.replace("f(", "g("))) == "minor"
    assert worst(changes(edited("b: any", "c: any", "bool b", "bool c"))) == "major"
    assert worst(changes(edited("prefix l", "prefix m"))) == "major"


def test_an_old_keyword_keeps_callers() -> None:
    new = edited("b: any", "c: any", "bool b", "bool c", "f(", "@keyword b = c\nf(")
    assert broken(new) == {"C source", "C++ source", "torch backward", "torch forward"}
    assert broken(OLD, new) == {"C source", "C++ source", "torch backward", "torch forward", "Python"}


def test_python_names() -> None:
    with_names = OLD.replace("f(", "@alias g\n@pair p = x, y\nf(")
    texts = [d.text for change in changes(OLD, with_names) for d in change.differences if d.layer == "Python" and d.breaks]
    assert texts == [
        "the name `g` is gone",
        "positional argument 1, `a`, is `y` now",
        "positional argument 2, `b`, is `a` now",
        "the keyword `p=` is gone",
        "`x` is new and has to be given",
        "`y` is new and has to be given",
    ]


def test_results() -> None:
    old = HEADER + "x: f32 [n]\n-> y: f32 [n]\nf(Tensor x) -> Tensor\n"
    assert broken(old.replace("-> y: f32", "-> y: bf16"), old) == {"behaviour"}
    two = old.replace("-> y: f32 [n]", "-> y: f32 [n]\n-> z: f32 [n]").replace("-> Tensor", "-> (Tensor, Tensor)")
    assert broken(two, old) == {"C ABI", "C source", "C++ source", "torch backward", "torch forward", "torch C++", "Python"}


def texts(layer: str, new: str, old: str = OLD) -> list[str]:
    return [d.text for change in changes(new, old) for d in change.differences if d.layer == layer and d.breaks]


def test_cpp_source() -> None:
    def of(*edit: str) -> list[str]:
        return texts("C++ source", edited(*edit))

    assert of("int a=1", "int? a=1") == []  # a std::optional takes a value
    assert of("int a=1", "float a=1.0") == ["`a` of `lib::f_options` is a `double`, it was a `int64_t`"]
    assert of("Tensor x, Tensor(y!) y", "Tensor(y!) y, Tensor x") == ["`lib::f` takes TensorRef, TensorView, it took TensorView, TensorRef"]
    assert of("int a=1, bool b=False", "bool b=False, int a=1") == [
        "the members of `lib::f_options` stand elsewhere: initialisers that list them set other ones"
    ]
    without = OLD.replace("a: >= 0\nb: any\n", "").replace(", int a=1, bool b=False", "")
    assert texts("C++ source", without) == ["`lib::f` has no options any more"]
    assert texts("C++ source", OLD, without) == [
        "`lib::f` has options before the context now: a call that passes a context does not compile"
    ]
    assert texts("C++ source", OLD, edited("x: f32 [n]", "x: f32 [n], inout", "Tensor x", "Tensor(x!) x")) == []  # it is read only now


def test_typed_handles() -> None:
    old = HEADER + "x: f32 [2]\nl: any\nd: f32 | bf16\ns: any\n-> r: any\nf(Tensor? x, int[]? l, ScalarType d, str s) -> int\n"
    new = old.replace("-> int", "-> (int, int[])").replace("r: any", "r: any\n-> t: any\nm: any").replace(" s)", " s, float[] m=[])")
    assert texts("torch C++", new, old) == [
        "typed handles are of `std::tuple<int64_t, std::vector<int64_t>> (const std::optional<at::Tensor> &, at::OptionalIntArrayRef, at::ScalarType, "
        "c10::string_view, at::ArrayRef<double>)`, they were of `int64_t (const std::optional<at::Tensor> &, at::OptionalIntArrayRef, "
        "at::ScalarType, c10::string_view)`"
    ]
    assert texts("torch C++", OLD.replace("Tensor x", "Tensor z").replace("x:", "z:").replace("like x", "like z")) == []  # names are none of it


def test_text() -> None:
    old, _ = parse_file("f", OLD.encode())
    new, _ = parse_file("f", edited("b: any", "b: any\nc: any", "bool b", "int c=2, bool b", "f32 [n]", "f32 | bf16 [n]").encode())
    assert old is not None and new is not None
    assert render(compare(old, new, HOSTS), old, new) == (
        "f: major\n"
        "  edit: argument `c` inserted, default 2\n"
        "  edit: contract `x: f32 | bf16 [n]`, it was `f32 [n]`\n"
        "  C ABI           breaks: the members of `l_f_options` move: compiled programs set the wrong ones\n"
        "  C++ source      breaks: the members of `lib::f_options` stand elsewhere: initialisers that list them set other ones\n"
        "  torch backward  breaks: `c` stands where `b` stood\n"
        "  torch forward   breaks: `c` stands where `b` stood\n"
        "  torch C++       breaks: typed handles are of `void (const at::Tensor &, at::Tensor &, int64_t, int64_t, bool)`, "
        "they were of `void (const at::Tensor &, at::Tensor &, int64_t, bool)`\n"
        "  Python          breaks: positional argument 3, `b`, is `c` now\n"
        "  stub            changes: the docstring changes\n"
        "  behaviour       changes: `x` takes more than it did\n"
        "1 difference, major: 0.3.0 -> 0.4.0; the file has 0.3.0: write `version 0.4.0`\n"
    )


def test_versions() -> None:
    assert [next_version("0.3.1", s) for s in ("none", "patch", "minor", "major")] == ["0.3.1", "0.3.2", "0.3.2", "0.4.0"]
    assert [next_version("2.3.1", s) for s in ("none", "patch", "minor", "major")] == ["2.3.1", "2.3.2", "2.4.0", "3.0.0"]


# ---- torch's own verdict -------------------------------------------------------------------------------------

TYPES = ["Tensor", "Tensor?", "Tensor(a!)", "int", "int?", "float", "bool", "str", "int[]", "int[]?", "int[2]", "int[3]", "int[2]?",
         "ScalarType", "ScalarType?", "Scalar", "Scalar?", "SymInt", "Tensor[]", "Tensor?[]", "float[]"]  # fmt: skip
DEFAULTS = {"int": ["1", "2"], "int?": ["None", "1"], "float": ["1.0"], "bool": ["True"], "int[]": ["[]", "[1]"], "int[2]": ["1", "[1, 1]"],
            "Tensor?": ["None"], "int[2]?": ["None", "[1, 2]"], "str": ["'a'"], "Scalar?": ["None"]}  # fmt: skip


def random_schema(rng: random.Random) -> tuple[list[str], list[str]]:
    args, has_default = [], False
    for name in rng.sample("pqrst", rng.randint(0, 4)):
        kind = rng.choice(TYPES)
        default = rng.choice(DEFAULTS[kind]) if kind in DEFAULTS and (has_default or rng.random() < 0.4) else None
        if has_default and default is None:
            continue
        has_default = has_default or default is not None
        args.append(f"{kind} {name}" + (f"={default}" if default is not None else ""))
    return args, [rng.choice(["Tensor", "int", "int?", "Tensor y", "float"]) for _ in range(rng.randint(0, 2))]


def mutated(args: list[str], returns: list[str], rng: random.Random) -> tuple[list[str], list[str]]:
    args, returns = list(args), list(returns)
    other_args, other_returns = random_schema(rng)
    kind = rng.random()
    if kind < 0.3 and args:
        args[rng.randrange(len(args))] = rng.choice(other_args or args)
    elif kind < 0.5:
        args.insert(rng.randint(0, len(args)), rng.choice(["int u=3", "int[] u=[]", "int u", "*"]))
    elif kind < 0.6:
        args = args + ["*", "Tensor(b!) o"]
    elif kind < 0.7 and args:
        del args[rng.randrange(len(args))]
    elif kind < 0.85:
        returns = other_returns
    elif args:
        i = rng.randrange(len(args))
        head, _, default = args[i].partition("=")
        args[i] = head if default else f"{head}=None"
    return args, returns


@pytest.mark.parametrize("seed", range(4))
def test_torch_agrees(seed: int) -> None:
    torch = pytest.importorskip("torch")
    rng = random.Random(seed)
    compared = 0
    while compared < 250:
        args, returns = random_schema(rng)
        pair = [(args, returns), mutated(args, returns, rng)]
        texts = [f"n::f({', '.join(a)}) -> ({', '.join(r)})" for a, r in pair]
        ours = [check_string(text, as_torch=True)[0] for text in texts]
        old, new = ours
        if old is None or new is None:
            continue
        theirs = [torch._C.parse_schema(text) for text in texts]
        assert (not list(backward(old, new))) == theirs[1].is_backward_compatible_with(theirs[0]), texts
        assert (not list(forward(old, new))) == theirs[1].check_forward_compatible_with(theirs[0])[0], texts
        compared += 1


# ---- the verb ------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Path:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True)

    (tmp_path / "ops.schema").write_text(OLD)
    git("init", "-q")
    git("add", "ops.schema")
    git("commit", "-q", "-m", "old")
    (tmp_path / "old.schema").write_text(OLD)
    return tmp_path


@pytest.mark.parametrize("against", ["HEAD", "old.schema"])
def test_the_verb(project: Path, against: str, capsys: pytest.CaptureFixture[str]) -> None:
    schema = project / "ops.schema"

    def status(*options: str) -> int:
        where = str(project / against) if against.endswith("schema") else against
        return main(["breaking", "--schema", str(schema), "--against", where, *options])

    assert status() == 0 and capsys.readouterr().out == "nothing differs\n"
    assert status("--exit-code") == 0
    schema.write_text(edited("y = x.", "y is x.", "version 0.3.0", "version 0.3.1"))
    assert (status(), status("--exit-code"), status("--fail-on", "patch"), status("--fail-on", "minor")) == (0, 10, 1, 0)
    assert capsys.readouterr().out.splitlines()[-1] == "1 difference, patch: 0.3.0 -> 0.3.1; the file has 0.3.1, which is enough"
    schema.write_text(edited("f32 [n]", "f32 | bf16 [n]"))
    assert (status(), status("--exit-code"), status("--fail-on", "minor")) == (0, 11, 1)
    schema.write_text(edited("a=1", "a=2"))
    assert (status(), status("--exit-code")) == (1, 12)


def test_no_verdict(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = ["breaking", "--schema", str(project / "ops.schema"), "--against"]
    assert main([*schema, "no-such-thing"]) == 2
    assert "no-such-thing is no file, and git has no such revision of ops.schema" in capsys.readouterr().err
    assert main([*schema, "installed"]) == 2
    assert capsys.readouterr().err == "codegen: the Python package `lib` is not installed for this interpreter\n"
    (project / "old.schema").write_text("f(")
    assert main([*schema, str(project / "old.schema")]) == 2
    assert "error" in capsys.readouterr().err


def test_installed(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--schema", str(project / "ops.schema"), "--out", str(project / "out")]) == 0
    package = project / "packages" / "lib"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('it is not imported')\n")
    for name in ("_C.py", "_release.py"):
        (package / name).write_bytes((project / "out" / "python" / name).read_bytes())
    monkeypatch.syspath_prepend(str(package.parent))
    against = ["breaking", "--schema", str(project / "ops.schema"), "--against", "installed"]
    capsys.readouterr()
    assert main(against) == 0
    assert capsys.readouterr().out == "nothing differs\n"
    (project / "ops.schema").write_text(edited("b: any", "c: any", "bool b", "bool c", "version 0.3.0", "version 0.4.0"))
    assert main(against) == 1
    said = capsys.readouterr().out
    assert "edit: argument `b` renamed to `c`" in said
    assert said.splitlines()[-1] == "1 difference, major: 0.3.0 -> 0.4.0; the file has 0.4.0, which is enough"


def test_arguments_of_one_type_that_trade_places() -> None:
    """Nothing but the program's results tells: each host that takes arguments by position says so."""
    old = HEADER + "x: f32 [n]\nz: f32 [n]\ny: like x, out\na: any\nb: any\nf(Tensor x, Tensor z, Tensor(y!) y, int a=1, int b=1) -> ()\n"
    new = old.replace("f(Tensor x, Tensor z", "f(Tensor z, Tensor x")
    taken = "one for another: `z` stands where `x` stood, `x` stands where `z` stood"
    assert taken in "".join(texts("C ABI", new, old)) and taken in "".join(texts("C source", new, old))
    assert taken in "".join(texts("C++ source", new, old)) and taken in "".join(texts("torch C++", new, old))
    options = old.replace("int a=1, int b=1", "int b=1, int a=1")
    assert texts("C ABI", options, old) == ["the members of `l_f_options` move: compiled programs set the wrong ones"]
