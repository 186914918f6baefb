"""The docs host: what the reference says of an operator."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from codegen.emit import parse_library, render_outputs
from codegen.hosts.docs_html import blocks
from codegen.registry import load_hosts
from codegen.stamp import ROOT

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
-> part: u8 [n // 2], at n // 2
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
        "| `part` | `Tensor` | `u8 [n // 2], at n // 2` |  |",
        "**C:** not there, since its results are views of an argument, which Python cuts on any device.",
    ],
)
def test_line(text: str, line: str) -> None:
    assert line in text.splitlines()


def test_blank_lines(text: str) -> None:
    assert "\n\n\n" not in text


# ---- the HTML page -------------------------------------------------------------------------------------------

VOID = {"meta", "input", "br", "hr", "link", "img"}


class Page(HTMLParser):
    """Ids, links, attributes that load something, and whether every element is closed where it should be."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name == "href":
                self.links.append(value or "")
            elif name in ("src", "srcset", "action", "data"):
                self.loads.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes another element, line {self.getpos()[0]}"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data


def html_of(schema: str) -> str:
    hosts = load_hosts(("docs",))
    library, report = parse_library("ops.schema", schema.encode(), hosts)
    assert library is not None, report.render()
    return render_outputs(library, hosts)["docs/operators.html"].decode()


@pytest.fixture(scope="module", params=["small", "this library"])
def page(request: pytest.FixtureRequest) -> str:
    own = Path(ROOT).parent / "schema" / "ops.schema"
    return html_of(SCHEMA if request.param == "small" else own.read_text("utf-8"))


def test_page_is_well_formed_and_complete(page: str) -> None:
    parsed = Page(page)
    assert parsed.open == []
    assert len(parsed.ids) == len(set(parsed.ids))
    anchors = [link[1:] for link in parsed.links]
    assert anchors and all(link.startswith("#") for link in parsed.links) and set(anchors) <= set(parsed.ids)


def test_page_needs_no_network(page: str) -> None:
    parsed = Page(page)
    assert parsed.loads == []
    assert not re.search(r"https?://|//[a-z]|@import|url\(|fetch\(|XMLHttpRequest", re.sub(r"//.*", "", page.split("<script>")[1]))
    assert not re.search(r"@import|url\(", page.split("</style>")[0])


def test_page_says_what_the_markdown_says(text: str) -> None:
    parsed = Page(html_of(SCHEMA))
    for words in ("Scales a matrix. In place, if asked.", "one per row | or packed", "n must be even", "Not implemented yet:", "Since 1.1.0.",
                  "f32 [m] | i32 [ceil(m / 4)]", "my_scale", "its results are views of an argument"):  # fmt: skip
        assert words in parsed.text, words


def test_schema_text_cannot_be_markup() -> None:
    evil = SCHEMA.replace("## A view.", "## </p><script>alert(1)</script> `<b>` & \"x\" | {{ 1 }}").replace("section Second", "section <i>Second")
    page = html_of(evil)
    parsed = Page(page)
    assert parsed.open == [] and page.count("<script>") == 1 and "<i>" not in page and "<b>" not in page
    assert "</p><script>alert(1)</script> <b> & \"x\" | {{ 1 }}" in parsed.text


def test_blocks_of_markdown() -> None:
    assert blocks("a *b* **c** `d<`\ne\n\n    x < y\n      z") == (
        "<p>a <em>b</em> <strong>c</strong> <code>d&lt;</code> e</p>\n<pre>x &lt; y\n  z</pre>"
    )
    assert blocks("- one\n  more\n- two") == "<ul><li>one more</li><li>two</li></ul>"
    assert blocks("| a | b |\n| - | - |\n| `1` | 2 |") == (
        '<div class="wide"><table><tr><th>a</th><th>b</th></tr><tr><td><code>1</code></td><td>2</td></tr></table></div>'
    )


def test_page_in_a_browser(tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium: the page was parsed, not run")
    file = tmp_path / "operators.html"
    file.write_text(html_of(SCHEMA))

    def dom(query: str, *flags: str) -> str:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", *flags]
        done = subprocess.run([*command, "--dump-dom", f"file://{file}{query}"], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    whole, found = dom(""), dom("?q=matrix+asked")
    assert "3 operators</p>" in whole and 'data-operator="scale" hidden' not in whole
    assert "1 of 3</p>" in found
    assert re.search(r'<section class="operator" id="later"[^>]* hidden', found)
    assert not re.search(r'<section class="operator" id="scale"[^>]* hidden', found)
    assert ">Dark</button>" in whole and ">Light</button>" in dom("", "--blink-settings=preferredColorScheme=0")
