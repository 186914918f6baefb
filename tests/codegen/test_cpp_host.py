"""The C++ host: a header for every type that a schema can carry, under another library's names, compiled as C++17 and C++20."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("jinja2")

from codegen.emit import parse_library, render_outputs  # noqa: E402
from codegen.registry import load_hosts  # noqa: E402
from codegen.stamp import ROOT  # noqa: E402

SCHEMA = """\
namespace wave
prefix wv
version 1.2.3

## All that can be given.
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
y: like x, out
@backends ref
all_types(Tensor x, Tensor? z, int i, int? oi, float f, float? of, bool b, bool? ob, str s, ScalarType t, ScalarType? ot, int[] li,
    int[]? oli, float[] lf, bool[] lb, int[2] ai, int[2]? oai, float[3] af, Tensor(y!) y) -> ()

## All that can have a default.
x: f32 [n]
z: f32 [n]
i: any
oi: any
oj: any
f: any
of: any
b: any
ob: any
s: any
t: any
ot: any
ou: any
li: any
oli: any
ai: any
oai: any
af: any
ab: any
@backends ref
all_defaults(Tensor x, Tensor? z=None, int i=-7, int? oi=None, int? oj=3, float f=1.5, float? of=0.25, bool b=True, bool? ob=False, str s="a\\"b",
    ScalarType t=float32, ScalarType? ot=None, ScalarType? ou=bfloat16, int[] li=[], int[]? oli=None, int[2] ai=[1, 2], int[2]? oai=None,
    float[3] af=0.5, bool[2] ab=True) -> ()

## All that can be returned.
x: f32 [n]
i: any
-> p: f32 [n]
-> q: i32 [2]
-> r: any
-> s: any
-> t: any
-> u: any
-> v: any
@backends ref
several(Tensor x, int i=1) -> (Tensor p, Tensor q, int r, float s, bool t, int[] u, bool[] v)

## A number.
-> out: any
@backends ref
number() -> int

## Numbers.
i: any
-> out: any
@backends ref
numbers(int i) -> float[]
"""

USE = """\
#include "wave/wave.hpp"
#include <type_traits>
int main()
{
    const wave::all_defaults_options o;
    static_assert(std::is_same_v<decltype(wave::several(std::declval<wave::TensorView>())),
                                 std::tuple<wave::Tensor, wave::Tensor, int64_t, double, bool, std::vector<int64_t>, std::vector<bool>>>);
    static_assert(std::is_same_v<decltype(wave::number()), int64_t>);
    static_assert(std::is_same_v<decltype(wave::numbers(1)), std::vector<double>>);
    const bool right = !o.z && o.i == -7 && !o.oi && o.oj == 3 && o.f == 1.5 && o.of == 0.25 && o.b && o.ob == false && o.s == "a\\"b" &&
                       o.t.bits == 32 && !o.ot && o.ou && o.ou->bits == 16 && o.li.size() == 0 && !o.oli && o.ai[1] == 2 && !o.oai &&
                       o.af[2] == 0.5 && o.ab[1];
    try {
        const wave::Extents nine{1, 2, 3, 4, 5, 6, 7, 8, 9};
    } catch (const wave::Error &e) {
        return right && e.status() == WV_ERR_INVALID_ARGUMENT ? 0 : 1;
    }
    return 2;
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The generated headers beside the core header under the names of another library."""
    folder = tmp_path_factory.mktemp("cpp")
    hosts = load_hosts(("c", "cpp"))
    library, report = parse_library("ops.schema", SCHEMA.encode(), hosts)
    assert library is not None, report.render()
    for path, data in render_outputs(library, hosts).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    core = (Path(ROOT).parent / "kernels" / "include" / "deep_gemm" / "deep_gemm.h").read_text()
    core = core.replace("deep_gemm", "wave").replace("DEEP_GEMM", "WAVE")
    core = re.sub(r"\bdg_", "wv_", core)
    (folder / "include" / "wave" / "wave.h").write_text(re.sub(r"\bDG_", "WV_", core))
    (folder / "use.cpp").write_text(USE)
    return folder


def compilers() -> list[str]:
    return [name for name in ("g++", "clang++", "clang++-14") if shutil.which(name)]


@pytest.mark.parametrize("standard", ["17", "20"])
def test_every_type_compiles_without_a_warning(folder: Path, standard: str) -> None:
    if not compilers():
        pytest.skip("no C++ compiler")
    flags = [f"-std=c++{standard}", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror", "-fsyntax-only"]
    for compiler in compilers():
        done = subprocess.run([compiler, *flags, "-Iinclude", "use.cpp"], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, f"{compiler}: {done.stderr}"


def test_defaults_are_those_of_the_schema(folder: Path) -> None:
    if not compilers():
        pytest.skip("no C++ compiler")
    # Nothing of the C library runs before the error: what the header refers to may stay undefined.
    link = ["-O1", "-Wl,--unresolved-symbols=ignore-all", "-o", "use"]
    subprocess.run([compilers()[0], "-std=c++17", "-Iinclude", "use.cpp", *link], cwd=folder, check=True, capture_output=True)
    assert subprocess.run([folder / "use"]).returncode == 0


def test_nothing_of_c_lists_in_the_comments(folder: Path) -> None:
    text = (folder / "include" / "wave" / "wave.hpp").read_text()
    assert "_capacity members" not in text
    assert "inline std::vector<double> numbers(int64_t i, Handle ctx = {})" in text
