"""The docs host: what the reference says of an operator."""

from __future__ import annotations

import pytest

from codegen.emit import parse_library, render_outputs
from codegen.registry import load_hosts

SCHEMA = """
namespace my_lib
prefix my
version 1.2.3

section First | part

## Scales a
## matrix. In place, if asked.
##
##     y = x * s
x: f32 | bf16 [m, n] rows
s: f32 [m] | i32 [ceil(m / 4)]    # one per row | or packed
y: like x, out
wide: any
block: each >= 1
dt: f32
let big = wide ? 2 : 1
require n % big == 0 else "n must be even"
require m > 0
check s: every scale is positive
@pair x = x, s
@alias scale_rows rescale
@keyword out = y
@scalar block
@backends ref avx2
@since 1.1.0
scale(Tensor x, Tensor? s, Tensor(y!) y, bool wide=False, int[2] block=[1, 2], ScalarType dt=float32) -> ()

section Second

## Not there.
x: f32 [n]
-> y: f32 [n, 2]
@backends none: it comes later
later(Tensor x) -> Tensor

## A view.
buffer: u8 [n]
-> part: u8 [n]
@backends ref
view(Tensor(a) buffer) -> Tensor(a)
"""


@pytest.fixture(scope="module")
def text() -> str:
    hosts = load_hosts(("docs",))
    library, report = parse_library("ops.schema", SCHEMA.encode(), hosts)
    assert library is not None, [str(error) for error in report.errors]
    return render_outputs(library, hosts)["docs/operators.md"].decode()


@pytest.mark.parametrize(
    "line",
    [
        "# Operators of my_lib 1.2.3",
        "- First | part",
        "  - [`scale`](#scale): Scales a matrix.",
        "### `scale`",
        "    y = x * s",
        "| `x` | `Tensor` |  | `f32 \\| bf16 [m, n] rows` |  |",
        "| `s` | `Tensor?` |  | `f32 [m] \\| i32 [ceil(m / 4)]` | one per row \\| or packed |",
        "| `wide` | `bool` | `False` | `any` |  |",
        "| `block` | `int[2]` | `[1, 2]` | `each >= 1` |  |",
        "- `big = wide ? 2 : 1`",
        "- n must be even (`n % big == 0`)",
        "- `m > 0`",
        "- s: every scale is positive",
        "**Python:** `my_lib._C.scale(x, y, wide=False, block=(1, 2), dt=torch.float32)`. `x` is the pair `(x, s or None)`. "
        "An int is taken for `block` and repeated. `out=` is an older keyword for `y=`. Also called `scale_rows` and `rescale`.",
        "**C:** `my_scale`.",
        "**Backends:** ref, avx2.",
        "Since 1.1.0.",
        "**Not implemented yet:** it comes later. A call is checked, and then fails with `MY_ERR_NOT_SUPPORTED` "
        "(`NotImplementedError` in Python).",
        "| `y` | `Tensor` | `f32 [n, 2]` |  |",
        "**C:** `my_later`, and `my_later_out` for the shape of the result.",
        "**C:** not there, since its results are views of an argument.",
    ],
)
def test_line(text: str, line: str) -> None:
    assert line in text.splitlines()


def test_blank_lines(text: str) -> None:
    assert "\n\n\n" not in text
