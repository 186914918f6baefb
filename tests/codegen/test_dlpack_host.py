"""The DLPack host: an extension with every type that a schema can carry, under another library's names, compiled and called."""

from __future__ import annotations

import importlib.util
import inspect
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2")

from codegen.cli import main  # noqa: E402
from codegen.emit import parse_library  # noqa: E402
from codegen.registry import load_hosts  # noqa: E402

SCHEMA = """\
namespace wave
prefix wv
version 1.2.3

## Every value as numbers, strings by their bytes; -1 is what is not given.
x: f32 [n]
z: f32 [n]
i: any
oi: any
f: any
of: any
b: any
ob: any
s: any
t: any
ot: any
li: any
oli: any
lf: any
lb: any
ai: any
oai: any
af: any
oab: any
@scalar ai
@scalar oab
-> ints: any
-> floats: any
-> bools: any
echo(Tensor x, Tensor? z, int i, int? oi, float f, float? of, bool b, bool? ob, str s, ScalarType t, ScalarType? ot, int[] li, int[]? oli,
    float[] lf, bool[] lb, int[2] ai, int[2]? oai, float[3] af, bool[2]? oab) -> (int[] ints, float[] floats, bool[] bools)

## The same with defaults.
@like echo
defaults(Tensor x, Tensor? z=None, int i=-7, int? oi=None, float f=1.5, float? of=0.25, bool b=True, bool? ob=False, str s="a\\"b",
    ScalarType t=float32, ScalarType? ot=bfloat16, int[] li=[], int[]? oli=None, float[] lf=[], bool[] lb=[], int[2] ai=[1, 2],
    int[2]? oai=None, float[3] af=0.5, bool[2]? oab=None) -> (int[] ints, float[] floats, bool[] bools)

## Numbers. Names that C or the extension might use for themselves.
values: any
args: any
module: any
-> a: any
-> c: any
-> d: any
numbers(int values, *, float args, bool module=False) -> (int a, float c, bool d)

## A name of the C library.
-> out: any
@backends none: it is not written yet
abort() -> int
"""

# dg_type's numbers follow the contracts' words, so the kernel tells dtypes by bits of their own.
KERNEL = """\
#include "c/calls.h"
#include <string.h>

static void put(int64_t value, int64_t *items, size_t *len) { items[(*len)++] = value; }

wv_status wv_numbers_impl(wv_context *ctx, const struct wv_numbers_call *call)
{
    (void)ctx;
    *call->a = call->values;
    *call->c = call->args;
    *call->d = call->module;
    return WV_OK;
}
"""

ECHO = """
wv_status wv_NAME_impl(wv_context *ctx, const struct wv_NAME_call *call)
{
    (void)ctx;
    size_t n = 0;
    int64_t *ints = call->ints.data;
    put(call->z.is_given, ints, &n);
    put(call->i, ints, &n);
    put(call->oi.has ? call->oi.value : -1, ints, &n);
    put(call->t, ints, &n);
    put(call->ot, ints, &n);
    for (size_t i = 0; i < call->s.len; i++)
        put(call->s.data[i], ints, &n);
    put(-2, ints, &n);
    for (size_t i = 0; i < call->li.len; i++)
        put(call->li.data[i], ints, &n);
    put(-3, ints, &n);
    if (call->oli == NULL)
        put(-1, ints, &n);
    for (size_t i = 0; call->oli != NULL && i < call->oli->len; i++)
        put(call->oli->data[i], ints, &n);
    put(-4, ints, &n);
    for (size_t i = 0; i < 2; i++)
        put(call->ai[i], ints, &n);
    for (size_t i = 0; i < 2; i++)
        put(call->oai.has ? call->oai.value[i] : -1, ints, &n);
    *call->ints.len = n;

    n = 0;
    call->floats.data[n++] = call->f;
    call->floats.data[n++] = call->of.has ? call->of.value : -1;
    for (size_t i = 0; i < 3; i++)
        call->floats.data[n++] = call->af[i];
    for (size_t i = 0; i < call->lf.len; i++)
        call->floats.data[n++] = call->lf.data[i];
    *call->floats.len = n;

    n = 0;
    call->bools.data[n++] = call->b;
    call->bools.data[n++] = call->ob.has && call->ob.value;
    call->bools.data[n++] = call->oab.has;
    call->bools.data[n++] = call->oab.has && call->oab.value[1];
    for (size_t i = 0; i < call->lb.len; i++)
        call->bools.data[n++] = call->lb.data[i];
    *call->bools.len = n;
    return WV_OK;
}
"""


@pytest.fixture(scope="module")
def wave(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The extension, with the library inside."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    include = sysconfig.get_path("include")
    if compiler is None or not Path(include, "Python.h").exists():
        pytest.skip("no C compiler, or no headers of Python")
    pytest.importorskip("numpy")
    folder = tmp_path_factory.mktemp("wave")
    schema = folder / "ops.schema"
    schema.write_text(SCHEMA)
    options = ["--schema", str(schema), "--hosts", "c,dlpack", "--out"]
    assert main(["generate", *options, str(folder / "generated")]) == 0
    assert main(["runtime", *options, str(folder / "runtime")]) == 0
    (folder / "kernel.c").write_text(KERNEL + "".join(ECHO.replace("NAME", name) for name in ("echo", "defaults")))
    sources = [
        *folder.glob("runtime/kernels/core/*.c"), *folder.glob("generated/c/*.c"), *folder.glob("runtime/bindings/dlpack/*.c"),
        folder / "generated/dlpack/module.c", folder / "kernel.c",
    ]  # fmt: skip
    folders = ["runtime/kernels", "runtime/kernels/include", "runtime/bindings/dlpack", "generated", "generated/include"]
    flags = ["-std=c11", "-fPIC", "-shared", "-Wall", "-Wextra", "-Wpedantic", "-Wno-overlength-strings", "-Wconversion", "-Wshadow", "-Werror"]
    command = [compiler, *flags, *(f"-I{folder / f}" for f in folders), "-isystem", include, *map(str, sources), "-lpthread", "-lm"]
    built = subprocess.run([*command, "-o", str(folder / "dlpack.abi3.so")], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    spec = importlib.util.spec_from_file_location("wave.dlpack", folder / "dlpack.abi3.so")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def x() -> Any:
    import numpy as np

    return np.zeros(2, np.float32)


def given() -> dict[str, Any]:
    return {
        "x": x(), "z": None, "i": 5, "oi": 6, "f": 2.5, "of": 3, "b": False, "ob": True, "s": "hé", "t": "int8", "ot": None, "li": [7, 8],
        "oli": (), "lf": [1, 0.5], "lb": (True, False), "ai": (9, 10), "oai": (11, 12), "af": [1.0, 2, 3.0], "oab": [False, True],
    }  # fmt: skip


def test_every_type_arrives(wave: Any) -> None:
    ints, floats, bools = wave.echo(**given())
    i8, none = 12, 0  # as kernels see dtypes
    text = [byte - 256 if byte > 127 else byte for byte in "hé".encode()]
    assert ints == [0, 5, 6, i8, none, *text, -2, 7, 8, -3, -4, 9, 10, 11, 12]
    assert floats == [2.5, 3.0, 1.0, 2.0, 3.0, 1.0, 0.5]
    assert bools == [False, True, True, True, True, False]
    assert wave.echo(**given() | {"z": x()})[0][0] == 1
    none_of_them = wave.echo(**given() | {"oi": None, "of": None, "ob": None, "oli": None, "oai": None, "oab": None})
    assert none_of_them[0][2] == -1 and none_of_them[0][-6:] == [-1, -4, 9, 10, -1, -1]
    assert none_of_them[1][1] == -1 and none_of_them[2][:4] == [False] * 4


def test_defaults_are_those_of_the_schema(wave: Any) -> None:
    f32, bf16 = 2, 4
    ints, floats, bools = wave.defaults(x())
    assert ints == [0, -7, -1, f32, bf16, *b'a"b', -2, -3, -1, -4, 1, 2, -1, -1]
    assert floats == [1.5, 0.25, 0.5, 0.5, 0.5] and bools == [True, False, False, False]
    assert wave.defaults(**given()) == wave.echo(**given())
    signature = str(inspect.signature(wave.defaults))
    assert signature == (
        "(x, z=None, i=-7, oi=None, f=1.5, of=0.25, b=True, ob=False, s='a\"b', t='float32', ot='bfloat16', li=(), oli=None, lf=(), lb=(), "
        "ai=(1, 2), oai=None, af=(0.5, 0.5, 0.5), oab=None)"
    )


def test_a_number_may_stand_for_a_list_where_the_schema_says_so(wave: Any) -> None:
    assert wave.echo(**given() | {"ai": 4})[0][-4:-2] == [4, 4]
    assert wave.echo(**given() | {"oab": True})[2][2:4] == [True, True]
    with pytest.raises(TypeError, match=r"^echo: af is 1.0 \(float\), expected a sequence of float$"):
        wave.echo(**given() | {"af": 1.0})


@pytest.mark.parametrize(
    ("name", "value", "kind", "text"),
    [
        ("i", None, TypeError, "i is None (NoneType), expected int"),
        ("oi", "1", TypeError, "oi is '1' (str), expected int or None"),
        ("oi", 2**63, TypeError, "oi is 9223372036854775808 (int), expected int or None that fits 64 bits"),
        ("f", "1", TypeError, "f is '1' (str), expected float"),
        ("of", [], TypeError, "of is [] (list), expected float or None"),
        ("b", "no", TypeError, "b is 'no' (str), expected bool"),
        ("ob", (), TypeError, "ob is () (tuple), expected bool or None"),
        ("s", None, TypeError, "s is None (NoneType), expected str"),
        ("s", "\ud800", TypeError, "s is '\\ud800' (str), expected str"),
        ("t", "f32", TypeError, 't is \'f32\' (str), expected a dtype such as "float32"'),
        ("ot", 3, TypeError, "ot is 3 (int), expected a dtype or None"),
        ("li", 3, TypeError, "li is 3 (int), expected a sequence of int"),
        ("li", "12", TypeError, "li is '12' (str), expected a sequence of int"),
        ("oli", [1.5], TypeError, "oli is [1.5] (list), expected a sequence of int or None"),
        ("lf", ["1"], TypeError, "lf is ['1'] (list), expected a sequence of float"),
        ("lb", [None], TypeError, "lb is [None] (list), expected a sequence of bool"),
        ("ai", (1, 2, 3), ValueError, "ai needs 2 ints, got 3"),
        ("oai", [1], ValueError, "oai needs 2 ints, got 1"),
        ("af", (1, 2), ValueError, "af needs 3 floats, got 2"),
        ("oab", [True] * 3, ValueError, "oab needs 2 bools, got 3"),
    ],
)
@pytest.mark.parametrize("function", ["echo", "defaults"])
def test_a_wrong_value_is_named(wave: Any, function: str, name: str, value: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        getattr(wave, function)(**given() | {name: value})
    assert (type(caught.value), str(caught.value)) == (kind, f"{function}: {text}")


def test_keywords_only(wave: Any) -> None:
    assert wave.numbers(3, args=2.5) == (3, 2.5, False)
    assert wave.numbers(args=2, module=True, values=4) == (4, 2.0, True)
    assert str(inspect.signature(wave.numbers)) == "(values, *, args, module=False)"

    def numbers(values: Any, *, args: Any, module: Any = False) -> None: ...

    for positional, keywords in (((1,), {}), ((1, 2), {"args": 1}), ((1, 2, 3), {"args": 1, "module": 2}), ((), {"args": 1})):
        with pytest.raises(TypeError) as expected:
            numbers(*positional, **keywords)  # type: ignore[arg-type]
        with pytest.raises(TypeError) as caught:
            wave.numbers(*positional, **keywords)
        assert str(caught.value) == str(expected.value).rpartition(".<locals>.")[2]


def test_a_name_of_the_c_library(wave: Any) -> None:
    with pytest.raises(NotImplementedError, match="^abort: not implemented: it is not written yet$"):
        wave.abort()


def test_the_name_of_a_local_variable_is_refused() -> None:
    schema = "namespace wave\nprefix wv\nversion 1.0.0\n\npy_values: any\nf(int py_values) -> ()\n"
    _, report = parse_library("ops.schema", schema.encode(), load_hosts(("c", "dlpack")))
    texts = [d.message for d in report.diagnostics()]
    assert texts == ["`py_values` of `f` cannot be carried by the host dlpack: names that begin with `py_` belong to the generated functions"]
