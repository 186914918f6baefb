"""The C host, end to end: a schema is generated, compiled with every warning on, and called through kernels/core/check.c.

The program prints one line per case, "STATUS: message", or what the implementation got; each case is a test of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ["check.c", "types.c", "status.c"]
COMPILERS = [cc for cc in ("gcc", "clang") if shutil.which(cc)]
WARNINGS = "-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror".split()

SCHEMA = """
namespace deep_gemm
prefix dg
version 1.2.3

section Products

## d = a @ b.T (+ c). The text ends no comment: */, and 100% stays as it is.
a: bf16 [m, k]
sfa: f32 [m, ceil(k / gran_k)] | i32 [m, ceil(k / (gran_k * 4))]
b: dtype(a) [n, k]
d: bf16 | f32 [m, n] rows, out
c: like d, may alias d            # added
let gran_k = given(recipe) ? recipe[1] : 128
recipe: each >= 1
mode: "nk" | "mn"
expected_m: <= m
@backends ref
scaled(Tensor a, Tensor sfa, Tensor b, Tensor(d!) d, Tensor? c=None, int[2]? recipe=None, str mode="nk", int expected_m=0) -> ()

## Cuts x into parts.
x: f32 [n, 4] contiguous
parts: any
sizes: length 2 | 3, each >= 0
weights: any
scale: >= 0
require n % parts == 0 else "n must be 100% a multiple of parts"
require sizes[0] <= n
-> out: f32 [n // parts, 4] strides [align(4, parts), 1]
-> rest: f32 [n] when parts == 1 | i32 [parts] when parts == 2
-> count: any
-> members: any
@backends ref
cut(Tensor x, int parts, int[] sizes, int[]? weights=None, float scale=1.5) -> (Tensor, Tensor, int, int[])

## An alternative that a string chooses.
x: f32 [dim(x, 0), n] when form == "matrix" | f32 [n] when form == "vector"
y: f32 [2, n] rows, inout
form: "matrix" | "vector"
@backends ref
choose(Tensor x, Tensor(y!) y, str form) -> ()

## Arguments that another argument makes a divisor.
count: >= 0
size: any
let blocks = size != 0 ? ceil(count / size) : 0
require sum_ceil(sizes / 4) == blocks
sizes: each >= 0
-> value: any
@backends ref
divide(int count, int size, int[] sizes) -> int

## Not there.
x: f32 [...]
wanted: f32 | bf16
flag: any
@backends none: it takes 100% of a year
later(Tensor x, ScalarType wanted=bfloat16, bool? flag=None) -> ()

## A getter.
-> value: any
@backends ref
get_it() -> bool
"""

PRELUDE = r"""
#include "c/calls.h"

#include <inttypes.h>
#include <stdio.h>

bool dg_has_cuda(void) { return false; }

dg_status dg_scaled_impl(dg_context *ctx, const struct dg_scaled_call *call)
{
    (void)ctx;
    printf("scaled m=%" PRId64 " k=%" PRId64 " n=%" PRId64 " gran_k=%" PRId64 " c=%d mode=%.*s; ", call->m, call->k, call->n,
           call->gran_k, call->c.is_given, (int)call->mode.len, call->mode.data);
    return DG_OK;
}

dg_status dg_cut_impl(dg_context *ctx, const struct dg_cut_call *call)
{
    (void)ctx;
    printf("cut n=%" PRId64 " parts=%" PRId64 " scale=%g weights=%d capacity=%zu; ", call->n, call->parts, call->scale,
           call->weights != NULL, call->members.capacity);
    *call->count = 7;
    return DG_OK;
}

dg_status dg_choose_impl(dg_context *ctx, const struct dg_choose_call *call)
{
    (void)ctx;
    printf("choose n=%" PRId64 " alternative=%d; ", call->n, (int)call->x.alternative);
    return DG_OK;
}

dg_status dg_divide_impl(dg_context *ctx, const struct dg_divide_call *call)
{
    (void)ctx;
    printf("divide blocks=%" PRId64 "; ", call->blocks);
    return DG_OK;
}

dg_status dg_get_it_impl(dg_context *ctx, const struct dg_get_it_call *call)
{
    (void)ctx;
    *call->value = true;
    printf("get_it; ");
    return DG_OK;
}

static float memory[8][4096];

/* A tensor over part `which` of the memory; shape may be cut to ndim. */
static dg_tensor tensor(int which, dg_dtype dtype, int32_t ndim, int64_t *shape)
{
    dg_tensor t = {memory[which], {DG_CPU, 0}, ndim, dtype, shape, NULL, 0};
    return t;
}

static void report(dg_status status)
{
    if (status == DG_OK) {
        printf("ok\n");
    } else {
        printf("%s: %s\n", dg_status_name(status), dg_last_error());
    }
}

static const dg_dtype bf16 = {DG_BF16}, f32 = {DG_F32}, i32 = {DG_I32}, f16 = {DG_F16};

/* What the cases use and change: m = 4, k = 300, n = 8. */
static int64_t mk[2], nk[2], mn[2], blocks[2], n4[2], n_[1], two[2], sizes_data[3], members[4], count;
static dg_tensor a, sfa, b, d, c, x, y, v;
static dg_scaled_options so;
static dg_cut_options co;
static dg_ints sizes;
static dg_tensor_spec out_spec, rest_spec;
static size_t members_len;
static bool value;
static dg_str matrix, vector;

static void fill(int64_t *shape, int64_t first, int64_t second)
{
    shape[0] = first;
    shape[1] = second;
}

static void reset(void)
{
    const dg_scaled_options scaled_defaults = DG_SCALED_OPTIONS_INIT;
    const dg_cut_options cut_defaults = DG_CUT_OPTIONS_INIT;
    fill(mk, 4, 300), fill(nk, 8, 300), fill(mn, 4, 8), fill(blocks, 4, 3), fill(n4, 8, 4), fill(two, 2, 8);
    n_[0] = 8;
    a = tensor(0, bf16, 2, mk), sfa = tensor(1, f32, 2, blocks), b = tensor(2, bf16, 2, nk), d = tensor(3, f32, 2, mn);
    c = tensor(4, f32, 2, mn), x = tensor(5, f32, 2, n4), y = tensor(6, f32, 2, two), v = tensor(7, f32, 1, n_);
    so = scaled_defaults, co = cut_defaults;
    fill(sizes_data, 2, 3), sizes_data[2] = 4;
    sizes.data = sizes_data, sizes.len = 3;
    matrix = dg_str_from("matrix"), vector = dg_str_from("vector");
}

int main(void)
{
"""

SCALED = "dg_scaled(NULL, &a, &sfa, &b, &d, &so)"
CUT = """
        const dg_status spec_status = dg_cut_out(NULL, &x, parts, sizes, &out_spec, &rest_spec, &co);
        if (spec_status != DG_OK) { report(spec_status); break; }
        dg_tensor out = dg_tensor_from_spec(&out_spec, memory[3]), rest = dg_tensor_from_spec(&rest_spec, memory[4]);
"""
CUT_CALL = "dg_cut(NULL, &x, parts, sizes, &out, &rest, &count, members, 4, &members_len, &co)"
INVALID, DTYPE = "DG_ERR_INVALID_ARGUMENT: ", "DG_ERR_INVALID_DTYPE: "

# name -> (statements, call, what the program prints)
CASES: dict[str, tuple[str, str, str]] = {
    "all defaults": ("", "dg_scaled(NULL, &a, &sfa, &b, &d, NULL)", "scaled m=4 k=300 n=8 gran_k=128 c=0 mode=nk; ok"),
    "options": (
        'so.c = &c; so.recipe.has = true; so.recipe.value[1] = 100; so.recipe.value[0] = 1; so.mode = dg_str_from("mn");',
        SCALED,
        "scaled m=4 k=300 n=8 gran_k=100 c=1 mode=mn; ok",
    ),
    "c may be d": ("so.c = &d;", SCALED, "scaled m=4 k=300 n=8 gran_k=128 c=1 mode=nk; ok"),
    "empty": ("mk[0] = 0; mn[0] = 0; blocks[0] = 0;", SCALED, "scaled m=0 k=300 n=8 gran_k=128 c=0 mode=nk; ok"),
    "NULL tensor": ("", "dg_scaled(NULL, NULL, &sfa, &b, &d, &so)", INVALID + "scaled: a is NULL, expected bf16 [m, k]"),
    "dtype": ("a.dtype = f16;", SCALED, DTYPE + "scaled: a has dtype f16, expected bf16 [m, k]"),
    "dtype of another": ("b.dtype = f32;", SCALED, DTYPE + "scaled: b has dtype f32, expected dtype(a) [n, k]"),
    "rank": ("a.ndim = 1;", SCALED, INVALID + "scaled: a has shape [4], expected bf16 [m, k]"),
    "dimension": ("nk[1] = 256;", SCALED, INVALID + "scaled: b has k = 256, expected 300 to match a"),
    "computed shape": (
        "blocks[1] = 2;",
        SCALED,
        INVALID + "scaled: sfa has shape [4, 2], expected [4, 3] = [m, ceil(k / gran_k)]",
    ),
    "computed shape of another alternative": (
        "sfa.dtype = i32;",
        SCALED,
        INVALID + "scaled: sfa has shape [4, 3], expected [4, 1] = [m, ceil(k / (gran_k * 4))]",
    ),
    "layout": (
        "int64_t strides[] = {1, 4}; d.strides = strides;",
        SCALED,
        INVALID + "scaled: d has strides [1, 4], expected stride 1 in the last dimension",
    ),
    "like": ("so.c = &x;", SCALED, INVALID + "scaled: c has shape [8, 4], expected [4, 8] to match d"),
    "like, dtype": ("so.c = &c; c.dtype = bf16;", SCALED, DTYPE + "scaled: c has dtype bf16, expected f32 to match d"),
    "overlap": ("d.data = memory[0] + 4;", SCALED, INVALID + "scaled: d overlaps a"),
    "shifted alias": ("so.c = &c; c.data = memory[3] + 1;", SCALED, INVALID + "scaled: d overlaps c"),
    "self overlap": ("int64_t strides[] = {4, 1}; d.strides = strides;", SCALED, INVALID + "scaled: d has shape"),
    "string": (
        'so.mode = dg_str_from("km");',
        SCALED,
        INVALID + 'scaled: mode is "km", expected "nk" or "mn"',
    ),
    "string without memory": ("so.mode.data = NULL;", SCALED, INVALID + "scaled: mode is NULL"),
    "member of a list": (
        "so.recipe.has = true;",
        SCALED,
        INVALID + "scaled: recipe[0] is 0, expected >= 1",
    ),
    "limit by a dimension": (
        "so.expected_m = 5;",
        SCALED,
        INVALID + "scaled: requires expected_m <= m, got expected_m = 5, m = 4",
    ),
    "options of no size": ("so.struct_size = 0;", SCALED, INVALID + "scaled: options->struct_size is 0"),
    "options cut in a member": ("so.struct_size -= 1;", SCALED, INVALID + "scaled: options->struct_size is"),
    "options too large": ("so.struct_size = sizeof so + 8;", SCALED, INVALID + "scaled: options->struct_size is"),
    "options of an older caller": (
        'so.struct_size = DG_END_OF(dg_scaled_options, recipe); so.mode = dg_str_from("km"); so.expected_m = 99;',
        SCALED,
        "scaled m=4 k=300 n=8 gran_k=128 c=0 mode=nk; ok",
    ),
    "options of full size": ("so.struct_size = sizeof so;", SCALED, "scaled m=4 k=300 n=8 gran_k=128 c=0 mode=nk; ok"),
    "results": (
        f"int64_t parts = 2; {CUT}",
        CUT_CALL,
        "cut n=8 parts=2 scale=1.5 weights=0 capacity=4; ok",
    ),
    "result dtype": (
        f"int64_t parts = 2; {CUT} out.dtype = i32;",
        CUT_CALL,
        DTYPE + "cut: out has dtype i32, expected f32",
    ),
    "result shape": (
        f"int64_t parts = 2; {CUT} out.shape[0] = 3;",
        CUT_CALL,
        INVALID + "cut: out has shape [3, 4], expected [4, 4]",
    ),
    "result overlaps input": (f"int64_t parts = 2; {CUT} out.data = x.data;", CUT_CALL, INVALID + "cut: out overlaps x"),
    "results overlap": (f"int64_t parts = 2; {CUT} rest.data = out.data;", CUT_CALL, INVALID + "cut: rest overlaps out"),
    "result NULL": (
        f"int64_t parts = 2; {CUT}",
        "dg_cut(NULL, &x, parts, sizes, NULL, &rest, &count, members, 4, &members_len, NULL)",
        INVALID + "cut: out is NULL",
    ),
    "count NULL": (
        f"int64_t parts = 2; {CUT}",
        "dg_cut(NULL, &x, parts, sizes, &out, &rest, NULL, members, 4, &members_len, NULL)",
        INVALID + "cut: count is NULL",
    ),
    "list result NULL": (
        f"int64_t parts = 2; {CUT}",
        "dg_cut(NULL, &x, parts, sizes, &out, &rest, &count, NULL, 4, &members_len, NULL)",
        INVALID + "cut: members is NULL",
    ),
    "no alternative of a result": (
        f"int64_t parts = 4; {CUT}",
        CUT_CALL,
        INVALID + "cut: rest has no alternative in its contract for these arguments",
    ),
    "require": (
        f"int64_t parts = 3; {CUT}",
        CUT_CALL,
        INVALID + "cut: n must be 100% a multiple of parts, got n = 8, parts = 3",
    ),
    "require without words": (
        f"sizes_data[0] = 9; int64_t parts = 2; {CUT}",
        CUT_CALL,
        INVALID + "cut: requires sizes[0] <= n, got sizes[0] = 9, n = 8",
    ),
    "division by zero": (
        f"int64_t parts = 0; {CUT}",
        CUT_CALL,
        INVALID + "cut: parts is 0, expected > 0, since n % parts divides by it",
    ),
    "length": (f"sizes.len = 1; int64_t parts = 2; {CUT}", CUT_CALL, INVALID + "cut: sizes has length 1, expected 2 or 3"),
    "list without memory": (f"sizes.data = NULL; int64_t parts = 2; {CUT}", CUT_CALL, INVALID + "cut: sizes is NULL"),
    "empty list": (
        f"dg_ints weights = {{NULL, 0}}; co.weights = &weights; int64_t parts = 2; {CUT}",
        CUT_CALL,
        "cut n=8 parts=2 scale=1.5 weights=1 capacity=4; ok",
    ),
    "not a number": (f"co.scale = 0.0 / 0.0; int64_t parts = 2; {CUT}", CUT_CALL, INVALID + "cut: scale is"),
    "contiguous": (
        f"int64_t strides[] = {{8, 1}}; x.strides = strides; int64_t parts = 2; {CUT}",
        CUT_CALL,
        INVALID + "cut: x has strides [8, 1], expected",
    ),
    "a string chooses": ("n4[0] = 3; n4[1] = 8;", "dg_choose(NULL, &x, &y, matrix)", "choose n=8 alternative=0; ok"),
    "another string chooses": ("", "dg_choose(NULL, &v, &y, vector)", "choose n=8 alternative=1; ok"),
    "the chosen rank": (
        "",
        "dg_choose(NULL, &v, &y, matrix)",
        INVALID + 'choose: x has shape [8], expected f32 [dim(x, 0), n] when form == "matrix"',
    ),
    "the string before the tensor that it chooses": (
        "matrix.len = 3;",
        "dg_choose(NULL, NULL, &y, matrix)",
        INVALID + 'choose: form is "mat", expected "matrix" or "vector"',
    ),
    "a dimension in a list of literals": (
        "two[0] = 3;",
        "dg_choose(NULL, &v, &y, vector)",
        INVALID + "choose: y has shape [3, 8], expected [2, 8] = [2, n]",
    ),
    "guarded division": ("", "dg_divide(NULL, 12, 4, sizes, &count)", "divide blocks=3; ok"),
    "division that is not evaluated": (
        "sizes.len = 0;",
        "dg_divide(NULL, 12, 0, sizes, &count)",
        "divide blocks=0; ok",
    ),
    "negative divisor": (
        "",
        "dg_divide(NULL, 12, -4, sizes, &count)",
        INVALID + "divide: size is -4, expected > 0, since ceil(count / size) divides by it",
    ),
    "call in a require": (
        "",
        "dg_divide(NULL, 12, 12, sizes, &count)",
        INVALID + "divide: requires sum_ceil(sizes / 4) == blocks, got sum_ceil(sizes / 4) = 3, blocks = 1",
    ),
    "sum beyond 64 bits": (
        "sizes_data[0] = sizes_data[1] = INT64_MAX;",
        "dg_divide(NULL, INT64_MAX, 1, sizes, &count)",
        INVALID + "divide: requires sum_ceil(sizes / 4) == blocks, got sum_ceil(sizes / 4) = 4611686018427387905,",
    ),
    "not implemented": ("", "dg_later(NULL, &x, NULL)", "DG_ERR_NOT_SUPPORTED: later: not implemented: it takes 100% of a year"),
    "not implemented, and wrong": ("", "dg_later(NULL, &a, NULL)", DTYPE + "later: x has dtype bf16, expected f32 [...]"),
    "dtype argument": (
        "dg_later_options lo = DG_LATER_OPTIONS_INIT; lo.wanted = f16;",
        "dg_later(NULL, &x, &lo)",
        DTYPE + "later: wanted is f16, expected f32 or bf16",
    ),
    "getter": ("", "dg_get_it(NULL, &value)", "get_it; ok"),
    "getter without memory": ("", "dg_get_it(NULL, NULL)", INVALID + "get_it: value is NULL"),
}


def generate(schema: str, folder: Path) -> Path:
    """The generated files of a schema."""
    source, out = folder / "ops.schema", folder / "generated"
    source.write_text(schema, encoding="utf-8")
    command = [sys.executable, "-m", "codegen", "generate", "--schema", str(source), "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def run(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def includes(out: Path) -> list[str]:
    return [f"-I{path}" for path in (ROOT / "kernels", ROOT / "kernels/include", out / "include", out)]


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(SCHEMA, tmp_path_factory.mktemp("c_host"))


@pytest.fixture(scope="module")
def lines(generated: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the program prints for each case."""
    folder = tmp_path_factory.mktemp("program")
    body = "".join(
        f"    do {{\n        reset();\n        {before}\n        report({call});\n    }} while (0);\n"
        for before, call, _ in CASES.values()
    )
    (folder / "main.c").write_text(PRELUDE + body + "    return 0;\n}\n", encoding="utf-8")
    sources = [folder / "main.c", generated / "c/checks.c", *(ROOT / "kernels/core" / name for name in CORE)]
    cc = os.environ.get("CC", COMPILERS[0])
    sanitize = ["-fsanitize=undefined,address", "-fno-sanitize-recover=all"]
    run(cc, "-std=c11", "-g", *sanitize, *includes(generated), *sources, "-o", folder / "main", "-lm")
    printed = run(folder / "main").splitlines()
    assert len(printed) == len(CASES)
    return dict(zip(CASES, printed))


@pytest.mark.parametrize("name", CASES)
def test_call(lines: dict[str, str], name: str) -> None:
    expected = CASES[name][2]
    assert lines[name][: len(expected)] == expected


@pytest.mark.parametrize("cc", COMPILERS)
@pytest.mark.parametrize("file", ["c/checks.c", "c/operators.c"])
def test_compiles_without_a_warning(generated: Path, cc: str, file: str) -> None:
    run(cc, "-std=c11", *WARNINGS, *includes(generated), "-fsyntax-only", generated / file)


@pytest.mark.parametrize("cc", COMPILERS)
@pytest.mark.parametrize("standard", ["c99", "c++11", "c++17", "c++20"])
def test_header(generated: Path, tmp_path: Path, cc: str, standard: str) -> None:
    names = re.findall(r"#define (DG_\w+)_OPTIONS_INIT", (generated / "include/deep_gemm/ops.h").read_text())
    inits = "".join(f"{name.lower()}_options {name.lower()}_defaults = {name}_OPTIONS_INIT;\n" for name in names)
    source = tmp_path / "header.c"
    source.write_text(f"#include <deep_gemm/ops.h>\n{inits}")
    language = ["-x", "c++"] if standard.startswith("c++") else []
    run(cc, *language, f"-std={standard}", *WARNINGS, *includes(generated), "-fsyntax-only", source)
    assert len(names) == 3


def test_adding_an_operator_only_inserts(generated: Path, tmp_path: Path) -> None:
    added = "## New.\nx: f32 [n]\nsizes: any\n@backends ref\nadded(Tensor x, int[3]? sizes=None) -> ()\n"
    grown = generate(SCHEMA.replace("## An alternative", f"{added}\n## An alternative"), tmp_path)
    names = ["include/deep_gemm/ops.h", "c/calls.h", "c/checks.c", "c/operators.c", "docs/operators.md"]
    for name in names:
        before, after = (generated / name).read_text().splitlines(), iter((grown / name).read_text().splitlines())
        missing = [line for line in before if line not in after]
        assert not missing, f"{name} lost or moved {missing[:3]}"


def test_nothing_of_this_library_is_wired_in(tmp_path: Path) -> None:
    schema = SCHEMA.replace("namespace deep_gemm", "namespace other_lib").replace("prefix dg", "prefix zz")
    out = generate(schema, tmp_path)
    ours = re.compile(r"\b(dg|DG|deep_gemm|DEEP_GEMM)(_|\b)")
    for name in ["include/other_lib/ops.h", "c/calls.h", "c/checks.c", "c/operators.c", "docs/operators.md"]:
        assert not ours.search((out / name).read_text()), name


def test_refusals(tmp_path: Path) -> None:
    """Each type that C cannot carry is an error that says what to write instead."""
    schema = SCHEMA.split("section")[0] + "section Refused\n\n"
    refused = {"Scalar s": "`Scalar`", "Tensor[] s": "list of tensors", "str? s": "empty default", "int[] s=[1, 2]": "initialiser"}
    for argument, words in refused.items():
        text = f"{schema}## Refused.\ns: any\n@backends ref\nf({argument}) -> ()\n"
        source = tmp_path / "ops.schema"
        source.write_text(text)
        command = [sys.executable, "-m", "codegen", "generate", "--schema", str(source), "--out", str(tmp_path / "out")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode != 0 and words in done.stderr + done.stdout, (argument, done.stderr + done.stdout)


@pytest.mark.parametrize("name", ["ctx", "options", "opt"])
def test_a_result_cannot_have_a_name_of_the_generated_functions(name: str) -> None:
    from codegen.emit import parse_library
    from codegen.registry import load_hosts

    text = f"namespace lib\nprefix l\nversion 0.1.0\n\n-> {name}: any\nf() -> int\n"
    library, report = parse_library("f", text.encode(), load_hosts(("c",)))
    assert library is None
    expected = f"the result `{name}` of `f` cannot be carried by the host c: `{name}` is a name that every generated C function uses itself"
    assert [d.message for d in report.diagnostics()] == [expected]
