"""``explain OP``: everything that follows from one operator, for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from . import model as m
from .hosts import Host
from .printing import format_expr, format_type


def describe(library: m.Library, op: m.Operator, hosts: list[Host]) -> str:
    """Titles with the texts under them, indented."""
    parts = [*_of_schema(op), *_of_contract(op), *(part for host in hosts for part in host.explain(library, op))]
    text = f"{op.symbol}\n\n"
    if op.doc:
        text += op.doc + "\n\n"
    for title, body in parts:
        text += f"{title}:\n{textwrap.indent(body, '    ')}\n\n"
    return text.rstrip("\n") + "\n"


def _of_schema(op: m.Operator) -> Iterator[tuple[str, str]]:
    yield "Schema", op.schema.text
    if str(op.schema) != op.schema.text:
        yield "Canonical schema, as torch prints it", str(op.schema)
    backends = " ".join(op.backends) if op.backends else f"none: {op.refusal}"
    yield "Backends", backends + (f" (since {op.since})" if op.since else "")


def _of_contract(op: m.Operator) -> Iterator[tuple[str, str]]:
    arguments = [
        (a.name, f"{format_type(a.type)}{f' = {a.default.text}' if a.default is not None else ''}", c.text, c.comment)
        for a, c in zip(op.schema.args, op.contracts)
    ]
    if arguments:
        yield "Arguments", _table(arguments)
    if op.dimensions:
        yield "Dimensions", "\n".join(f"{d.name} = {_source(d)}" for d in op.dimensions)
    if op.lets:
        yield "Computed", "\n".join(f"{let.name} = {format_expr(let.expr)}" for let in op.lets)
    conditions = [r.text for r in op.requires] + [f"{c.name}: {c.text}" for c in op.checks]
    if conditions:
        yield "Conditions", "\n".join(conditions)
    results = [(c.name, format_type(r.type), c.text, c.comment) for r, c in zip(op.schema.returns, op.results)]
    if results:
        yield "Results", _table(results)
    if op.allows:
        yield "Lint rules that it may break", "\n".join(f"{a.rule}: {a.reason}" for a in op.allows)


def _source(d: m.Dimension) -> str:
    places = sorted(set(d.axes))
    return " or ".join(f"dim({d.arg}, {axis})" for axis in places)


def _table(rows: Iterable[tuple[str, ...]]) -> str:
    """Columns of equal width, the last one ragged."""
    rows = list(rows)
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join("  ".join([*(f"{cell:<{w}}" for cell, w in zip(row, widths)), row[3]]).rstrip() for row in rows)
