"""What ``lint`` warns of: signatures that are correct, and yet likely to hurt somebody.

A rule is a function from an operator to findings. ``diagnostics.RULES`` has the names, ``explain NAME`` the reasons; an operator may
break a rule by `@lint allow NAME: REASON`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from . import model as m
from .diagnostics import RULES, Note, Report, closest, quoted_list
from .printing import format_type
from .record import record
from .scope import without_optional
from .tree import expressions, names_in

_BOOL = m.Base("bool")
_NUMBERS = (m.Base("int"), m.Base("SymInt"), m.Base("float"))

# Names that some host would have to rename. Keywords of C, C++ and Python are errors (DG0203); these are of the others.
_RESERVED = {
    "Python (a soft keyword)": "match case type",
    "Python (a built-in function that it hides)": "id input hash iter",
    "Rust": "as box crate dyn enum extern fn impl let loop mod move mut pub ref self super trait unsafe use where yield",
    "Go": "chan defer fallthrough func go interface map package range select var",
    "Julia": "baremodule begin end function local macro module quote",
    "Java": "abstract boolean byte extends final implements instanceof native strictfp synchronized throws transient",
    "JavaScript": "arguments debugger eval export let of undefined",
    "C#": "checked decimal delegate event fixed internal lock object override params readonly sbyte sealed stackalloc string uint",
    "Windows headers": "far near small interface min max",
    "complex.h": "I complex imaginary",
    "gcc": "linux unix",
}
RESERVED = {word: host for host, words in reversed(_RESERVED.items()) for word in words.split()}


@record
class Finding:
    rule: str
    span: m.Span
    message: str
    fix: str = ""
    notes: tuple[Note, ...] = ()


Rule = Callable[[m.Operator, "Documentation"], Iterable[Finding]]
Documentation = Mapping[str, str]  # of every operator, by its symbol


def lint(library: m.Library, report: Report) -> None:
    """Adds a warning for every rule that an operator breaks without leave."""
    codes = {name: code for code, name in RULES.items()}
    documentation = {op.symbol: op.doc for op in library.operators}
    used: set[tuple[str, m.Span]] = set()

    def warn(operator: m.Operator, finding: Finding) -> None:
        allow = next((a for a in operator.allows if a.rule == finding.rule), None)
        if allow is not None:
            used.add((allow.rule, allow.span))
        else:
            report.warning(codes[finding.rule], finding.span, finding.message, finding.fix, finding.notes)

    for operator in library.operators:
        for rule in _RULES:
            for finding in rule(operator, documentation):
                warn(operator, finding)
    for operator, finding in (*_ambiguous_overloads(library), *_lone_backends(library)):
        warn(operator, finding)
    # `@like` takes over what may be broken, so one place can serve several operators.
    for operator in library.operators:
        for allow in operator.allows:
            if (allow.rule, allow.span) not in used:
                warn(operator, Finding("unused-allow", allow.span, f"nothing here breaks the rule `{allow.rule}`", "remove the line"))


# ---- one operator --------------------------------------------------------------------------------------------


def _undocumented_operator(op: m.Operator, _: Documentation) -> Iterator[Finding]:
    if not op.doc.strip():
        yield Finding(
            "undocumented-operator", op.span, f"`{op.symbol}` has no documentation", "write `## WHAT IT DOES.` above its contracts"
        )


def _undocumented_arguments(op: m.Operator, documentation: Documentation) -> Iterator[Finding]:
    """A text that says "as `other`" says what the text of the other operator says."""
    texts = [op.doc, *(documentation.get(name, "") for name in re.findall(r"`(\w+)`", op.doc))]
    mentioned = {word for text in texts for word in re.findall(r"\w+", text)}
    for arg, contract in zip(op.schema.args, op.contracts):
        if not contract.comment and arg.name not in mentioned:
            yield Finding(
                "undocumented-argument",
                contract.span,
                f"nothing says what `{arg.name}` of `{op.symbol}` is for",
                "write a comment behind its contract, or mention it in the documentation",
            )


def _missing_contracts(op: m.Operator, _: Documentation) -> Iterator[Finding]:
    for arg, contract in zip(op.schema.args, op.contracts):
        t = without_optional(arg.type)
        is_open = t in _NUMBERS or t == m.Base("str") or isinstance(t, m.List)
        if contract.text == "any" and is_open and not contract.comment:
            yield Finding(
                "contract-missing",
                contract.span,
                f"`{arg.name}: any` lets every `{format_type(t)}` through",
                _example_of(arg.name, t),
            )


def _example_of(name: str, t: m.Type) -> str:
    if isinstance(t, m.List):
        text = f"{name}: {'' if t.size is not None else 'length 3, '}each >= 0"
    else:
        text = f'{name}: "a" | "b"' if t == m.Base("str") else f"{name}: >= 0"
    return f"write a contract such as `{text}`, or a comment that says why every value is right"


def _boolean_traps(op: m.Operator, _: Documentation) -> Iterator[Finding]:
    booleans = [a for a in op.schema.args if not a.kw_only and without_optional(a.type) == _BOOL]
    if len(booleans) > 1:
        names = quoted_list(a.name for a in booleans).replace(" or ", " and ")
        yield Finding(
            "boolean-trap",
            booleans[1].span,
            f"{len(booleans)} positional booleans: a call of `{op.symbol}` does not say which of {names} is which",
            "put `*` before them, so that callers give them by keyword",
        )


def _mutable_defaults(op: m.Operator, _: Documentation) -> Iterator[Finding]:
    for arg in op.schema.args:
        t = without_optional(arg.type)
        if isinstance(t, m.List) and t.size is None and arg.default is not None and arg.default.value is not None:
            yield Finding(
                "mutable-default",
                arg.span,
                f"the default of `{arg.name}` is a list of any length",
                f"write `{format_type(t)}? {arg.name}=None`",
            )


def _host_keywords(op: m.Operator, _: Documentation) -> Iterator[Finding]:
    names = [(op.schema.name, op.span), *((a.name, a.span) for a in op.schema.args)]
    names += [(r.name, r.span) for r in op.results]
    for name, span in names:
        if name in RESERVED:
            yield Finding("host-keyword", span, f"`{name}` is taken in {RESERVED[name]}", f"write `{name}_`, or a longer name")


def _alias_returns(op: m.Operator, _: Documentation) -> Iterator[Finding]:
    returned = next((r for r in op.schema.returns if r.alias is not None), None)
    if returned is not None:
        message = f"a result of `{op.symbol}` is a view of an argument, so C does not have this operator"
        yield Finding("returns-alias", returned.span, message)


def _bare_writes(op: m.Operator, _: Documentation) -> Iterator[Finding]:
    for arg in op.schema.args:
        if arg.alias is not None and any(name.startswith("$") for name in arg.alias.before):
            yield Finding(
                "bare-write",
                arg.span,
                f"`!` of `{arg.name}` without a name for its alias set",
                f"did you mean `Tensor({arg.name}!){'?' if arg.is_optional else ''} {arg.name}`?",
            )


def _ints_from_shapes(op: m.Operator, _: Documentation) -> Iterator[Finding]:
    """An int argument that is the whole size of an axis of a required input."""
    ints = {a.name: a for a in op.schema.args if without_optional(a.type) == m.Base("int")}
    for contract in op.contracts:
        if not isinstance(contract, m.TensorContract):
            continue
        for alternative in contract.alternatives:
            for axis, size in enumerate(alternative.shape or ()):
                arg = ints.get(size.name) if isinstance(size, m.NameRef) else None
                if arg is not None:
                    yield Finding(
                        "int-from-shape",
                        arg.span,
                        f"`{arg.name}` of `{op.symbol}` is dim({contract.name}, {axis}) over again",
                        f"leave it out: contracts read it as `dim({contract.name}, {axis})` or by naming the dimension",
                        (Note("here", contract.span),),
                    )
                    del ints[arg.name]


def _lone_dimensions(op: m.Operator, _: Documentation) -> Iterator[Finding]:
    """A dimension that only the axis which defines it has, and whose name looks like a slip: that of a word may be meant to document."""
    uses: dict[str, int] = {}
    contracts = (*op.contracts, *op.results)
    tensors = [c for c in contracts if isinstance(c, m.TensorContract)]
    for contract in tensors:
        mentioned = (name for a in contract.alternatives for e in expressions(a) for name in names_in(e))
        for name in set(mentioned):
            uses[name] = uses.get(name, 0) + 1
    limits = [limit for c in contracts if isinstance(c, m.ValueContract) for _, limit in c.compares]
    for expr in (*limits, *(let.expr for let in op.lets), *(require.expr for require in op.requires)):
        for name in names_in(expr):
            uses[name] = uses.get(name, 0) + 1
    spans = {c.name: c.span for c in tensors}
    for dimension in op.dimensions if len(tensors) > 1 else ():
        if uses[dimension.name] > 1 or any(dimension.arg == c.like for c in tensors):
            continue
        axis = dimension.axes[0]
        meant = closest(dimension.name, [d.name for d in op.dimensions if d is not dimension], 0.8)
        if len(dimension.name) > 1 and not meant:
            continue
        alternatives = f", or did you mean `{meant}`?" if meant else ""
        yield Finding(
            "lone-dimension",
            spans[dimension.arg],
            f"nothing else of `{op.symbol}` is checked against `{dimension.name}` of `{dimension.arg}`",
            f"write `dim({dimension.arg}, {axis})`{alternatives}",
        )


_RULES: tuple[Rule, ...] = (
    _undocumented_operator,
    _undocumented_arguments,
    _missing_contracts,
    _boolean_traps,
    _mutable_defaults,
    _host_keywords,
    _alias_returns,
    _bare_writes,
    _ints_from_shapes,
    _lone_dimensions,
)


# ---- backends ------------------------------------------------------------------------------------------------


def _lone_backends(library: m.Library) -> Iterator[tuple[m.Operator, Finding]]:
    counts: dict[str, int] = {}
    for op in library.operators:
        for name in op.backends:
            counts[name] = counts.get(name, 0) + 1
    usual = [name for name, count in counts.items() if count > 1]
    for op in library.operators:
        for name in op.backends:
            meant = closest(name, usual) if counts[name] == 1 else ""
            if meant and _letters(meant) != _letters(name):  # `sm90` beside `sm80` is meant
                message = f"no operator but `{op.symbol}` has the backend `{name}`"
                yield op, Finding("lone-backend", op.span, message, f"did you mean `{meant}`?")


def _letters(name: str) -> str:
    return re.sub(r"[0-9]", "", name)


# ---- overloads -----------------------------------------------------------------------------------------------


def _ambiguous_overloads(library: m.Library) -> Iterator[tuple[m.Operator, Finding]]:
    earlier: dict[str, list[m.Operator]] = {}
    for op in library.operators:
        others = earlier.setdefault(op.schema.name, [])
        for other in others:
            count = _common_call(other.schema, op.schema)
            if count is not None:
                call = f"a call with {count} positional argument{'s' * (count != 1)}" if count else "a call without arguments"
                yield (
                    op,
                    Finding(
                        "ambiguous-overload",
                        op.span,
                        f"{call} fits `{_full_name(op)}` and `{_full_name(other)}`",
                        "give them arguments of different types, or another required one",
                        (Note("the other overload", other.span),),
                    ),
                )
        others.append(op)


def _full_name(op: m.Operator) -> str:
    return f"{op.schema.name}.{op.schema.overload}" if op.schema.overload else op.schema.name


def _common_call(a: m.Schema, b: m.Schema) -> int | None:
    """The number of positional arguments of a call that both take, if there is one."""
    ranges = []
    for schema in (a, b):
        positional = [x for x in schema.args if not x.kw_only]
        if any(x.kw_only and x.default is None for x in schema.args):
            return None  # the required keyword tells them apart
        ranges.append((sum(x.default is None for x in positional), len(positional)))
    for count in range(max(low for low, _ in ranges), min(high for _, high in ranges) + 1):
        if all(_overlap(x.type, y.type) for x, y in zip(a.args[:count], b.args[:count])):
            return count
    return None


def _overlap(a: m.Type, b: m.Type) -> bool:
    """Whether some Python value is taken for both types."""
    if isinstance(a, m.Optional) and isinstance(b, m.Optional):
        return True
    a, b = without_optional(a), without_optional(b)
    if isinstance(a, m.List) and isinstance(b, m.List):
        return (a.size is None or b.size is None or a.size == b.size) and _overlap(a.elem, b.elem)
    if isinstance(a, m.List) or isinstance(b, m.List):
        return False
    return a == b or {format_type(a), format_type(b)} <= {"int", "SymInt", "float", "Scalar"}
