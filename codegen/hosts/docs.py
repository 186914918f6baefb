"""The docs host: the reference of all operators, in Markdown and as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from ..model import TENSOR, Argument, Library, Operator, Return, TensorContract, ValueContract
from ..printing import format_expr, format_type
from ..record import record
from . import Host, Render
from .docs_html import blocks, inline
from .docs_html import cell as html_cell

# ---- rows of tables ------------------------------------------------------------------------------------------


@record
class Row:
    """One argument or result. Cells are Markdown; an empty one has no text."""

    name: str
    type: str
    default: str
    contract: str
    note: str


def argument_row(arg: Argument, contract: TensorContract | ValueContract) -> Row:
    default = code(arg.default.text) if arg.default is not None else ""
    return Row(code(arg.name), code(format_type(arg.type)), default, code(contract.text), cell(contract.comment))


def result_row(returned: Return, contract: TensorContract | ValueContract) -> Row:
    return Row(code(contract.name), code(format_type(returned.type)), "", code(contract.text), cell(contract.comment))


def code(text: str) -> str:
    return f"`{cell(text)}`"


def cell(text: str) -> str:
    """text in a cell of a table, where a bar would end the cell."""
    return text.replace("|", "\\|")


# ---- Python --------------------------------------------------------------------------------------------------


def python_call(op: Operator) -> str:
    """How Python spells a call: pairs are one argument, defaults are shown."""
    members = {arg: pair for pair in op.pairs for arg in pair.args}
    words = []
    for arg in op.schema.args:
        pair = members.get(arg.name)
        if pair is None:
            words.append(f"{arg.name}={python_default(arg)}" if arg.default is not None else arg.name)
        elif arg.name == pair.args[0]:
            words.append(pair.name)
    return f"{op.symbol}({', '.join(words)})"


def python_default(arg: Argument) -> str:
    assert arg.default is not None
    value, text = arg.default.value, arg.default.text
    if isinstance(value, tuple):
        return f"({', '.join(map(str, value))}{',' if len(value) == 1 else ''})"
    return f"torch.{text}" if "ScalarType" in format_type(arg.type) and value is not None else text


def python_notes(op: Operator) -> tuple[str, ...]:
    """What differs between the schema and the Python function, one sentence each."""
    optional = {arg.name for arg in op.schema.args if arg.is_optional}
    notes = []
    for pair in op.pairs:
        members = ", ".join(f"{name} or None" if name in optional else name for name in pair.args)
        notes.append(f"`{pair.name}` is the pair `({members})`.")
    if op.scalars:
        notes.append(f"An int is taken for {words(op.scalars)} and repeated.")
    notes += (f"`{old}=` is an older keyword for `{new}=`." for old, new in op.keywords)
    if op.aliases:
        notes.append(f"Also called {words(op.aliases)}.")
    return tuple(notes)


def words(names: tuple[str, ...]) -> str:
    *first, last = [f"`{name}`" for name in names]
    return f"{', '.join(first)} and {last}" if first else last


# ---- operators -----------------------------------------------------------------------------------------------


@record
class Entry:
    """An operator as the template sees it."""

    name: str
    summary: str
    doc: str
    schema: str
    arguments: tuple[Row, ...]
    results: tuple[Row, ...]
    lets: tuple[str, ...]
    conditions: tuple[str, ...]
    python: str
    python_notes: tuple[str, ...]
    in_c: bool
    returns_tensor: bool
    backends: tuple[str, ...]
    refusal: str
    since: str


def entry(op: Operator) -> Entry:
    args = zip(op.schema.args, op.contracts)
    results = zip(op.schema.returns, op.results)
    return Entry(
        name=op.symbol,
        summary=summary(op.doc),
        doc=op.doc,
        schema=op.schema.text,
        arguments=tuple(argument_row(arg, contract) for arg, contract in args),
        results=tuple(result_row(returned, contract) for returned, contract in results),
        lets=tuple(f"{let.name} = {format_expr(let.expr)}" for let in op.lets),
        conditions=conditions(op),
        python=python_call(op),
        python_notes=python_notes(op),
        in_c=not op.returns_views,
        returns_tensor=any(r.type == TENSOR for r in op.schema.returns),
        backends=() if op.returns_views else op.backends,  # which are of kernels
        refusal=op.refusal,
        since=op.since,
    )


def summary(doc: str) -> str:
    """The first sentence."""
    paragraph = " ".join(doc.split("\n\n")[0].split())
    end = paragraph.find(". ")
    return paragraph if end < 0 else paragraph[: end + 1]


def conditions(op: Operator) -> tuple[str, ...]:
    """What holds beyond the contracts of single arguments, one sentence each."""
    required = (f"{r.message} (`{r.text}`)" if r.message else f"`{r.text}`" for r in op.requires)
    return (*required, *(f"{check.name}: {check.text}" for check in op.checks))


# ---- file ----------------------------------------------------------------------------------------------------


def render(library: Library, render_template: Render) -> Mapping[str, str]:
    sections = [
        (title, [entry(op) for op in ops]) for title, ops in groupby(library.operators, key=lambda op: op.section)
    ]
    context = {"namespace": library.namespace, "prefix": library.prefix, "version": library.version, "sections": sections}
    return {
        "docs/operators.md": render_template("docs/operators.md.j2", **context),
        "docs/operators.html": render_template("docs/operators.html.j2", **context, blocks=blocks, inline=inline, cell=html_cell),
    }


def refuse(item: Argument | Return) -> str | None:
    """Documentation can tell of anything."""
    return None


HOST = Host(
    name="docs",
    summary="the reference of all operators, as Markdown and as one HTML page",
    templates=("docs/operators.md.j2", "docs/operators.html.j2"),
    render=render,
    refuse=refuse,
)
