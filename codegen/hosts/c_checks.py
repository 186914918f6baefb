"""What the generated checks do, and in which order.

A contract becomes steps. A step belongs to a stage, needs facts and provides facts; steps run in the order of their stages, but
whatever a step needs runs before it. So the order of messages is the same for every operator, and an alternative may depend on
a string that is checked just before the tensor is.

    take      copy plain values into the call struct
    tensors   pointer, dtype, rank, device of each tensor; its alternative
    values    strings, lists, ranges
    bind      the dimensions, from the tensors that define them
    agree     the other tensors have these dimensions
    lets      the computed integers
    shapes    computed shapes, layouts, ``like``
    limits    values that are bounded by a dimension or a let
    requires
    overlaps  of written tensors
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import ClassVar

from ..model import (
    Alternative,
    Call,
    DType,
    Expr,
    Index,
    Kind,
    Literal,
    NameRef,
    Require,
    TensorContract,
    ValueContract,
)
from ..printing import format_expr
from ..record import record, replace
from ..tree import ARITHMETIC, children
from .c_expr import (
    EQUALITY,
    OPPOSITES,
    TERM,
    Scope,
    c_dtype,
    c_format,
    c_string,
    divisions,
    facts,
    given,
    kind,
    negated,
    spell,
    spell_length,
)

STAGES = ("take", "tensors", "values", "bind", "agree", "lets", "limits", "requires", "shapes", "overlaps")


# ---- what the templates print --------------------------------------------------------------------------------


@record
class Set:
    """A statement."""

    kind: ClassVar[str] = "set"
    statement: str


@record
class Check:
    """A call of a helper of core/check.h, which must return true, under a condition ("": always)."""

    kind: ClassVar[str] = "check"
    call: str
    condition: str = ""
    guarded: str = ""  # of a guard: the divisor that is positive when the check holds

    @property
    def fails(self) -> str:
        """C that is true on failure."""
        return joined((self.condition, f"!{self.call}"))


def any_of(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({' || '.join(parts)})"


def any_fails(checks: Sequence[Check]) -> tuple[str, ...]:
    """The parts of a disjunction, C that is true when one of the checks fails. Neighbours share their condition."""
    if len(checks) == 1:
        return (checks[0].fails,)
    parts: list[str] = []
    for condition, group in groupby(checks, key=lambda check: check.condition):
        calls = [f"!{check.call}" for check in group]
        if condition:
            parts.append(f"({condition} && {any_of(calls)})")
        else:
            parts += calls
    return tuple(parts)


@record
class Fail:
    """A failure with a message of its own, under a condition. format is a printf format, in C."""

    kind: ClassVar[str] = "fail"
    condition: str
    format: str
    args: tuple[str, ...]


@record
class Each:
    """Checks and failures of member i of a list."""

    kind: ClassVar[str] = "each"
    items: tuple[Check | Fail, ...]
    length: str
    condition: str = ""

    @property
    def range(self) -> str:
        return joined((self.condition, f"i < {self.length}"))

    @property
    def checks(self) -> tuple[str, ...]:
        return any_fails([item for item in self.items if isinstance(item, Check)])

    @property
    def failures(self) -> tuple[Fail, ...]:
        return tuple(item for item in self.items if isinstance(item, Fail))


Item = Set | Check | Fail | Each


@record
class Block:
    """Neighbouring items of one kind."""

    kind: str  # "set" | "check" | "fail" | "each"
    items: tuple[Item, ...]
    begins_stage: bool

    @property
    def checks(self) -> tuple[str, ...]:
        return any_fails([item for item in self.items if isinstance(item, Check)])


@record
class Row:
    types: str
    ndim: int
    text: str


@record
class Table:
    """The alternatives of a tensor, an array in C."""

    name: str
    rows: tuple[Row, ...]


@record
class Choice:
    """The specification of a result when condition holds ("": always)."""

    condition: str
    fill: Check


@record
class Specification:
    name: str
    guards: tuple[Check, ...]
    choices: tuple[Choice, ...]
    mismatch: str  # a printf format, in C: no choice fits; "" when one always does

    @property
    def guard_checks(self) -> tuple[str, ...]:
        return any_fails(self.guards)

    @property
    def uses_call(self) -> bool:
        """Whether it depends on the arguments."""
        texts = [*self.guard_checks, *(text for choice in self.choices for text in (choice.condition, choice.fill.call))]
        return any("call->" in text for text in texts)


# ---- steps ---------------------------------------------------------------------------------------------------


@record
class Step:
    stage: str
    items: tuple[Item, ...]
    needs: frozenset[str] = frozenset()
    provides: str = ""


def argument_blocks(scope: Scope) -> tuple[tuple[Block, ...], frozenset[str]]:
    """The body of the function that checks the arguments of an operator, and the divisors that are positive after it."""
    blocks: list[Block] = []
    stage, guarded = "", set[str]()
    for step in in_order(list(argument_steps(scope))):
        for item_kind, items in groupby(without_repeats(step.items, guarded), key=lambda item: item.kind):
            last = blocks[-1] if blocks else None
            if last is not None and last.kind == item_kind and step.stage == stage and item_kind in ("set", "check"):
                blocks[-1] = Block(item_kind, (*last.items, *items), last.begins_stage)
            else:
                blocks.append(Block(item_kind, tuple(items), step.stage != stage))
            stage = step.stage
    return tuple(blocks), frozenset(guarded)


def in_order(steps: list[Step]) -> list[Step]:
    """By stage, but what a step needs comes before it."""
    providers = {step.provides: step for step in steps if step.provides}
    seen: set[int] = set()
    ordered: list[Step] = []

    def run(step: Step) -> None:
        if id(step) in seen:
            return
        seen.add(id(step))
        for fact in sorted(step.needs):
            if fact in providers:
                run(providers[fact])
        ordered.append(step)

    for step in sorted(steps, key=lambda step: STAGES.index(step.stage)):
        run(step)
    return ordered


def argument_steps(scope: Scope) -> Iterator[Step]:
    for arg in scope.op.schema.args:
        if arg.is_tensor:
            yield from tensor_steps(scope, arg.name)
        else:
            yield from value_steps(scope, arg.name)
    for dimension in scope.op.dimensions:
        target = f"call->{dimension.name} = call->{dimension.arg}.shape[{axis_of(dimension.arg, dimension.axes)}];"
        yield Step("bind", (Set(target),), frozenset({f"tensor:{dimension.arg}"}), f"dim:{dimension.name}")
    for let in scope.op.lets:
        target = f"call->{let.name} = {spell(scope, let.expr)};"
        yield Step("lets", (*guards(scope, let.expr), Set(target)), facts(scope, let.expr), f"let:{let.name}")
    for require in scope.op.requires:
        yield Step("requires", (*guards(scope, require.expr), require_fail(scope, require)), facts(scope, require.expr))
    yield from overlap_steps(scope)


def axis_of(name: str, axes: tuple[int, ...]) -> str:
    """The axis of a dimension, which may depend on the alternative."""
    text = str(axes[-1])
    for i in reversed(range(len(axes) - 1)):
        if axes[i] != axes[i + 1]:
            text = f"call->{name}.alternative {'<=' if i else '=='} {i} ? {axes[i]} : {text}"
    return text


def helper(scope: Scope, function: str, *args: str) -> str:
    """A call of a check, whose first argument is the checker."""
    return f"{scope.prefix}_check_{function}({', '.join(('chk', *args))})"


def source(scope: Scope, name: str) -> str:
    """Where the caller's value of an argument stands."""
    return name if scope.args[name].default is None else f"opt.{name}"


def joined(conditions: Iterable[str]) -> str:
    return " && ".join(c for c in conditions if c)


def guards(scope: Scope, expr: Expr, conditions: tuple[str, ...] = ()) -> tuple[Check, ...]:
    """Checks that no division of expr divides by zero, or by a negative number."""
    checks = []
    for division in divisions(scope, expr, conditions):
        divisor = division.divisor
        name, index = (divisor.name, divisor.index) if isinstance(divisor, Index) else (format_expr(divisor), -1)
        got = spell(scope, divisor)
        expected = c_string(f"> 0, since {division.text} divides by it")
        holds = f"{spell(scope, divisor, EQUALITY)} > 0"
        call = helper(scope, "int", c_string(name), str(index), got, holds, expected)
        checks.append(Check(call, joined(division.conditions), got))
    return tuple(checks)


def without_repeats(items: Iterable[Item], guarded: set[str]) -> tuple[Item, ...]:
    """items without guards of what has been guarded before, unconditionally or under the same condition. guarded grows."""
    kept = []
    for item in items:
        if isinstance(item, Check) and item.guarded:
            if guarded & {item.guarded, f"{item.condition}: {item.guarded}"}:
                continue
            guarded.add(f"{item.condition}: {item.guarded}" if item.condition else item.guarded)
        kept.append(item)
    return tuple(kept)


# ---- tensors -------------------------------------------------------------------------------------------------


def root(scope: Scope, name: str) -> TensorContract:
    """The contract that says the alternatives of a tensor: its own, or that of the tensor that it is like."""
    contract = scope.tensor(name)
    return contract if contract.like is None else root(scope, contract.like)


def tables(scope: Scope) -> tuple[Table, ...]:
    """The tables that are constant."""
    return tuple(
        table(scope, c) for c in scope.op.contracts if isinstance(c, TensorContract) and c.like is None and is_constant(c)
    )


def is_constant(contract: TensorContract) -> bool:
    return all(a.dtype_of is None for a in contract.alternatives)


def table(scope: Scope, contract: TensorContract) -> Table:
    rows = (
        Row(type_bits(scope, a), -1 if a.shape is None else len(a.shape), c_string(a.text)) for a in contract.alternatives
    )
    return Table(contract.name, tuple(rows))


def type_bits(scope: Scope, alternative: Alternative) -> str:
    bit = f"{scope.prefix.upper()}_TYPE_BIT"
    if alternative.dtype_of is not None:
        return f"{bit}({spell(scope, Call('dtype', (Literal(alternative.dtype_of),)))})"
    return " | ".join(f"{bit}({c_dtype(scope.prefix, dtype)})" for dtype in alternative.dtypes)


def tensor_steps(scope: Scope, name: str) -> Iterator[Step]:
    contract, alternatives = scope.tensor(name), root(scope, name)
    items: list[Item] = []
    before: set[str] = set()
    if not is_constant(alternatives):
        row_names = [a.dtype_of for a in alternatives.alternatives if a.dtype_of is not None]
        before |= {f"{'tensor' if scope.args[n].is_tensor else 'value'}:{n}" for n in row_names}
        if contract.like is None:
            rows = ", ".join(f"{{{r.types}, {r.ndim}, {r.text}}}" for r in table(scope, contract).rows)
            items.append(Set(f"const struct {scope.prefix}_alternative {name}_alternatives[] = {{{rows}}};"))
        else:
            before.add(f"tensor:{alternatives.name}")
    if contract.like is None:
        for a in contract.alternatives:
            if a.when is not None:
                before |= facts(scope, a.when)
                items += guards(scope, a.when)
    items.append(Check(helper(scope, "tensor", *tensor_arguments(scope, contract, alternatives))))
    yield Step("tensors", tuple(items), frozenset(before), f"tensor:{name}")

    own = frozenset({f"tensor:{name}"})
    if contract.like is not None:
        like = helper(scope, "like", c_string(name), f"&call->{name}", c_string(contract.like), f"&call->{contract.like}")
        condition = joined((given(scope, name), given(scope, contract.like)))
        yield Step("shapes", (Check(like, condition),), own | {f"tensor:{contract.like}"})
        return
    named = own.union(*(facts(scope, e) for a in contract.alternatives for e in a.shape or () if is_dimension(e)))
    computed = own.union(*(facts(scope, e) for a in contract.alternatives for e in sizes_and_strides(a)))
    kinds = [("shapes", computed, shape_checks), ("shapes", computed, layout_checks)]
    if not is_shaped_at_once(scope, contract):
        kinds.insert(0, ("agree", named, dimension_checks))
    for stage, needs, checks_of in kinds:
        found = per_alternative(scope, name, [checks_of(scope, contract, i) for i in range(len(contract.alternatives))])
        if found:
            yield Step(stage, found, needs)


def is_shaped_at_once(scope: Scope, contract: TensorContract) -> bool:
    """Whether rank and sizes of a tensor are checked together, where all sizes are known: nothing else is derived from its shape,
    and each alternative computes it."""
    return (
        contract.like is None
        and all(d.arg != contract.name for d in scope.op.dimensions)
        and all(is_computed(contract.name, a) for a in contract.alternatives)
        and contract.name not in scope.measured
    )


def sizes_and_strides(alternative: Alternative) -> tuple[Expr, ...]:
    return (*(alternative.shape or ()), *(alternative.strides or ()))


def tensor_arguments(scope: Scope, contract: TensorContract, alternatives: TensorContract) -> Iterator[str]:
    p, name = scope.prefix.upper(), contract.name
    rules = [f"{p}_OPTIONAL"] * scope.args[name].is_optional + [f"{p}_ON_CPU"] * contract.on_cpu
    rules += [f"{p}_RANK_LATER"] * is_shaped_at_once(scope, contract)
    array = f"{alternatives.name}_alternatives"
    yield c_string(name)
    yield source(scope, name)
    yield " | ".join(rules) or f"{p}_REQUIRED"
    yield array
    yield f"COUNT({array})"
    yield enabled(scope, contract)
    yield f"&call->{name}"


def enabled(scope: Scope, contract: TensorContract) -> str:
    """The alternatives whose ``when`` holds, a set of bits."""
    if all(a.when is None for a in contract.alternatives):
        return "UINT32_MAX"
    bits = []
    for i, a in enumerate(contract.alternatives):
        bit = f"1u << {i}"
        bits.append(f"({bit})" if a.when is None else f"({spell(scope, a.when, EQUALITY)} ? {bit} : 0)")
    return " | ".join(bits)


def per_alternative(scope: Scope, name: str, parts: list[tuple[Check, ...]]) -> tuple[Check, ...]:
    """The checks of all alternatives: those that all share, then those that depend on the alternative."""
    shared = [check for check in parts[0] if all(check in part for part in parts)]
    found = [replace(c, condition=joined((given(scope, name), c.condition))) for c in shared]
    own = [tuple(check for check in part if check not in shared) for part in parts]
    for checks in dict.fromkeys(own):
        chosen = any_of([f"call->{name}.alternative == {i}" for i, part in enumerate(own) if part == checks])
        found += [replace(c, condition=joined((given(scope, name), chosen, c.condition))) for c in checks]
    return tuple(found)


def dimension_checks(scope: Scope, contract: TensorContract, i: int) -> tuple[Check, ...]:
    dimensions = {d.name: d for d in scope.op.dimensions}
    checks = []
    for axis, expr in enumerate(contract.alternatives[i].shape or ()):
        if not isinstance(expr, NameRef) or expr.role != "dim":
            continue
        dimension = dimensions[expr.name]
        if dimension.arg == contract.name and dimension.axes[i] == axis:
            continue
        got = f"call->{contract.name}.shape[{axis}]"
        words = c_string(contract.name), c_string(expr.name), got, f"call->{expr.name}", c_string(dimension.arg)
        checks.append(Check(helper(scope, "dim", *words)))
    return tuple(checks)


def is_dimension(expr: Expr) -> bool:
    return isinstance(expr, NameRef) and expr.role == "dim"


def is_own_dimension(name: str, axis: int, expr: Expr) -> bool:
    """``dim(x, 0)`` as the first size of x: any size is right."""
    return expr == Call("dim", (Literal(name), Literal(axis)))


def is_computed(name: str, alternative: Alternative) -> bool:
    """Whether some size of the tensor is an expression."""
    shape = alternative.shape or ()
    return any(not is_dimension(expr) and not is_own_dimension(name, axis, expr) for axis, expr in enumerate(shape))


def shape_checks(scope: Scope, contract: TensorContract, i: int) -> tuple[Check, ...]:
    if not is_computed(contract.name, contract.alternatives[i]):
        return ()
    shape = contract.alternatives[i].shape or ()
    found = [guard for expr in shape for guard in guards(scope, expr)]
    words = c_string(contract.name), f"&call->{contract.name}", str(len(shape)), integers(scope, shape), c_string(bracketed(shape))
    return (*found, Check(helper(scope, "shape", *words)))


def layout_checks(scope: Scope, contract: TensorContract, i: int) -> tuple[Check, ...]:
    alternative = contract.alternatives[i]
    name, view = c_string(contract.name), f"&call->{contract.name}"
    if alternative.layout == "any":
        return ()
    if alternative.layout != "strides":
        return (Check(helper(scope, alternative.layout, name, view)),)
    strides = alternative.strides or ()
    found = [guard for expr in strides for guard in guards(scope, expr)]
    return (*found, Check(helper(scope, "strides", name, view, integers(scope, strides), c_string(bracketed(strides)))))


def integers(scope: Scope, exprs: tuple[Expr, ...]) -> str:
    """An array of the values; C has no empty one."""
    return f"(const int64_t[]){{{', '.join(spell(scope, e) for e in exprs)}}}" if exprs else "NULL"


def bracketed(exprs: tuple[Expr, ...]) -> str:
    return f"[{', '.join(format_expr(e) for e in exprs)}]"


# ---- values --------------------------------------------------------------------------------------------------


def value_steps(scope: Scope, name: str) -> Iterator[Step]:
    contract = scope.contracts[name]
    assert isinstance(contract, ValueContract)
    is_array = scope.spelling(name).form == "array" and not scope.spelling(name).is_optional
    has_default = scope.args[name].default is not None
    now = [(op, limit) for op, limit in contract.compares if not facts(scope, limit)]
    later = [(op, limit) for op, limit in contract.compares if facts(scope, limit)]
    checks = (*length_checks(scope, contract), *member_checks(scope, contract, now))

    match scope.spelling(name).form:
        case "str":
            src = source(scope, name)
            pointer = Check(helper(scope, "pointer", c_string(name), f"{src}.data"), f"{src}.len != 0")
            taken: tuple[Item, ...] = (pointer, Set(f"call->{name} = {scope.prefix}_str_resolve({src});"))
        case "dtype":
            taken = dtype_items(scope, contract)
        case "array" if is_array and not has_default:
            copy = Set(f"memcpy(call->{name}, {name}, sizeof call->{name});")
            taken = (Check(helper(scope, "pointer", c_string(name), name)), copy)
        case "array" if is_array:
            yield Step("take", (Set(f"memcpy(call->{name}, opt.{name}, sizeof call->{name});"),), provides=f"take:{name}")
            taken = ()
        case _:
            yield Step("take", (Set(f"call->{name} = {source(scope, name)};"),), provides=f"take:{name}")
            taken = ()
    yield Step("values", (*taken, *checks), frozenset({f"take:{name}"}), f"value:{name}")
    if later:
        needs = facts(scope, later[0][1]).union(*(facts(scope, limit) for _, limit in later))
        yield Step("limits", limit_checks(scope, contract, later), needs | {f"value:{name}"})


def dtype_items(scope: Scope, contract: ValueContract) -> tuple[Item, ...]:
    p, name, src = scope.prefix, contract.name, source(scope, contract.name)
    dtypes = [v for v in contract.one_of if isinstance(v, DType)] or list(DType)
    bits = " | ".join(f"{p.upper()}_TYPE_BIT({c_dtype(p, dtype)})" for dtype in dtypes)
    expected = c_string(alternatives_text(contract.one_of) if contract.one_of else "a dtype of the contract language")
    is_optional = scope.args[name].is_optional
    value = f"{src}.value" if is_optional else src
    check = helper(scope, "dtype", c_string(name), value, bits, expected, f"&call->{name}")
    if not is_optional:
        return (Check(check),)
    return (Set(f"call->{name} = {p.upper()}_TYPE_NONE;"), Check(check, f"{src}.has"))


def length_checks(scope: Scope, contract: ValueContract) -> Iterator[Check]:
    name, s = contract.name, scope.spelling(contract.name)
    if s.form != "list":
        return
    condition, access = given(scope, name), "->" if s.is_optional else "."
    length = f"call->{name}{access}len"
    if contract.lengths:
        holds = " || ".join(f"{length} == {n}" for n in contract.lengths)
        yield Check(helper(scope, "len", c_string(name), length, holds, c_string(words_or(contract.lengths))), condition)
    data = f"call->{name}{access}data"
    yield Check(helper(scope, "pointer", c_string(name), data), joined((condition, f"{length} > 0")))


@record
class Part:
    """One claim about a value: how it reads in C, and in messages."""

    holds: str
    expected: str


def member_checks(scope: Scope, contract: ValueContract, compares: list[tuple[str, Expr]]) -> tuple[Item, ...]:
    """The parts of the contract that need nothing but the value itself."""
    name, s = contract.name, scope.spelling(contract.name)
    if s.form == "dtype":
        return ()
    value, condition = value_text(scope, contract)
    parts = []
    if compares:
        holds = " && ".join(f"{value} {op} {spell(scope, limit, TERM)}" for op, limit in compares)
        parts.append(Part(holds, range_text(compares)))
    if contract.one_of:
        parts.append(Part(one_of(scope, value, contract.one_of), alternatives_text(contract.one_of)))
    if s.form == "str":
        return tuple(Check(helper(scope, "str", c_string(name), value, p.holds, c_string(p.expected))) for p in parts)
    function, index = "float" if s.word == "float" else "int", "i" if contract.each else "-1"
    calls = [helper(scope, function, c_string(name), index, value, p.holds, c_string(p.expected)) for p in parts]
    if contract.each and calls:
        return (Each(tuple(Check(call) for call in calls), member_count(scope, name), condition),)
    return tuple(Check(call, condition) for call in calls)


def member_count(scope: Scope, name: str) -> str:
    """The length of a list that is given."""
    s = scope.spelling(name)
    return f"(int64_t)call->{name}->len" if s.form == "list" and s.is_optional else spell_length(scope, name)


def range_text(compares: list[tuple[str, Expr]]) -> str:
    """">= 1", or, as contracts write a closed range, "0 .. 7"."""
    if [op for op, _ in compares] == [">=", "<="]:
        return " .. ".join(format_expr(limit) for _, limit in compares)
    return " and ".join(f"{op} {format_expr(limit)}" for op, limit in compares)


def value_text(scope: Scope, contract: ValueContract) -> tuple[str, str]:
    """The value that the contract speaks of, or member i of it, and the condition under which there is one."""
    name, s = contract.name, scope.spelling(contract.name)
    value = f"call->{name}"
    if s.form == "list":
        value += "->data" if s.is_optional else ".data"
    elif s.is_optional:
        value += ".value"
    return f"{value}[i]" if contract.each else value, given(scope, name)


def one_of(scope: Scope, value: str, members: tuple[object, ...]) -> str:
    if isinstance(members[0], str):
        return " || ".join(f"{scope.prefix}_str_equal({value}, {c_string(str(m))})" for m in members)
    return " || ".join(f"{value} == {m}" for m in members)


def limit_checks(scope: Scope, contract: ValueContract, compares: list[tuple[str, Expr]]) -> tuple[Item, ...]:
    """The parts that compare with something that has to be computed: their messages give its value."""
    value, condition = value_text(scope, contract)
    name = f"{contract.name}[i]" if contract.each else contract.name
    value_kind = contract_kind(scope, contract)
    items: list[Item] = []
    for op, limit in compares:
        items += guards(scope, limit, (condition,) if condition else ())
        bound = spell(scope, limit, TERM)
        fails = f"!({value} {op} {bound})" if value_kind is Kind.float else f"{value} {OPPOSITES[op]} {bound}"
        values = [(name, value, value_kind), *leaves(scope, limit)]
        fail = failure(scope, joined((condition, fails)), f"requires {name} {op} {format_expr(limit)}", values)
        items.append(Each((fail,), member_count(scope, contract.name), condition) if contract.each else fail)
    return tuple(items)


def contract_kind(scope: Scope, contract: ValueContract) -> Kind:
    return Kind.float if scope.spelling(contract.name).word == "float" else Kind.int


def alternatives_text(members: tuple[object, ...]) -> str:
    return words_or([c_string(m) if isinstance(m, str) else m.value if isinstance(m, DType) else str(m) for m in members])


def words_or(words: Iterable[object]) -> str:
    """"a", "a or b", "a, b or c"."""
    *first, last = [str(w) for w in words]
    return f"{', '.join(first)} or {last}" if first else last


# ---- requires ------------------------------------------------------------------------------------------------

Value = tuple[str, str, Kind]  # how messages call it, how it reads in C, its type


def require_fail(scope: Scope, require: Require) -> Fail:
    text = require.message or f"requires {require.text}"
    return failure(scope, spell(scope, negated(require.expr)), text, leaves(scope, require.expr))


def failure(scope: Scope, condition: str, text: str, values: list[Value]) -> Fail:
    """"TEXT, got k = 5, n = 7"."""
    formats: list[str] = []
    args: list[str] = []
    for name, value, value_kind in values:
        directive, printed = print_value(scope, value, value_kind)
        formats.append(c_format(f"{name} = ") + directive)
        args += printed
    got = f", got {', '.join(formats)}" if formats else ""
    return Fail(condition, c_string(c_format(text) + got).replace(INT64, '%" PRId64 "').removesuffix(' ""'), tuple(args))


INT64 = "%PRId64"  # stands for the directive of an int64_t until the format has become a C string


def print_value(scope: Scope, value: str, value_kind: Kind) -> tuple[str, tuple[str, ...]]:
    """The directive of printf for a value, and its arguments."""
    match value_kind:
        case Kind.int:
            return INT64, (value,)
        case Kind.float:
            return "%g", (value,)
        case Kind.bool:
            return "%s", (f'{value} ? "true" : "false"',)
        case Kind.dtype:
            return "%s", (f"{scope.prefix}_type_name({value})",)
        case Kind.str:
            return '"%.*s"', (f"(int){value}.len", f"{value}.data")


def leaves(scope: Scope, expr: Expr) -> list[Value]:
    """The names of an expression with their values, each once, in order."""
    found: dict[str, Value] = {}

    def visit(e: Expr) -> None:
        if isinstance(e, (NameRef, Index)) or (isinstance(e, Call) and e.function not in ARITHMETIC):
            value = f"(int64_t){spell(scope, e)}" if isinstance(e, Call) and e.function == "rank" else spell(scope, e)
            found.setdefault(format_expr(e), (format_expr(e), value, kind(e)))
            return
        for child in children(e):
            visit(child)

    visit(expr)
    return list(found.values())


# ---- written tensors -----------------------------------------------------------------------------------------


def overlap_steps(scope: Scope) -> Iterator[Step]:
    tensors = [c for c in scope.op.contracts if isinstance(c, TensorContract)]
    written = [c for c in tensors if c.access != "in"]
    for i, contract in enumerate(written):
        name = contract.name
        checks = [Check(helper(scope, "no_self_overlap", c_string(name), f"&call->{name}"))]
        for other in tensors:
            if other is not contract and other not in written[:i]:
                may_alias = name in other.may_alias or other.name in contract.may_alias
                function = "same_or_no_overlap" if may_alias else "no_overlap"
                args = c_string(name), f"&call->{name}", c_string(other.name), f"&call->{other.name}"
                checks.append(Check(helper(scope, function, *args)))
        yield Step("overlaps", tuple(checks), frozenset(f"tensor:{c.name}" for c in tensors))


# ---- results -------------------------------------------------------------------------------------------------


def specifications(scope: Scope, guarded: frozenset[str]) -> tuple[Specification, ...]:
    """What dg_<op>_out() says of the results that are tensors."""
    return tuple(specification(scope, c, set(guarded)) for c in scope.op.results if isinstance(c, TensorContract))


def specification(scope: Scope, contract: TensorContract, guarded: set[str]) -> Specification:
    if contract.like is not None:
        like = f"call->{contract.like}"
        fill = spec_fill(scope, contract.name, f"{like}.type", f"{like}.ndim", f"{like}.shape", "NULL")
        return Specification(contract.name, (), (Choice("", fill),), "")
    choices: list[Choice] = []
    found: list[Check] = []
    for a in contract.alternatives:
        condition = "" if a.when is None else spell(scope, a.when)
        path = () if a.when is None else (spell(scope, a.when, EQUALITY),)
        found += guards(scope, a.when) if a.when is not None else ()
        found += [guard for expr in sizes_and_strides(a) for guard in guards(scope, expr, path)]
        strides = "NULL" if a.strides is None else integers(scope, a.strides)
        shape = a.shape or ()
        fill = spec_fill(scope, contract.name, type_of(scope, a), str(len(shape)), integers(scope, shape), strides)
        choices.append(Choice(condition, fill))
        if not condition:
            break
    mismatch = f"{contract.name} has no alternative in its contract for these arguments"
    return Specification(
        contract.name,
        tuple(guard for guard in without_repeats(found, guarded) if isinstance(guard, Check)),
        tuple(choices),
        c_string(c_format(mismatch)) if choices[-1].condition else "",
    )


def type_of(scope: Scope, alternative: Alternative) -> str:
    if alternative.dtype_of is not None:
        return spell(scope, Call("dtype", (Literal(alternative.dtype_of),)))
    return c_dtype(scope.prefix, alternative.dtypes[0])


def spec_fill(scope: Scope, name: str, element: str, ndim: str, shape: str, strides: str) -> Check:
    return Check(f"{scope.prefix}_spec_fill({', '.join(('chk', name, element, ndim, shape, strides))})")


def result_overlaps(scope: Scope) -> Iterator[tuple[str, str]]:
    """Each result that is a tensor with every tensor that it may not overlap: the arguments, and the results before it."""
    before = [c.name for c in scope.op.contracts if isinstance(c, TensorContract)]
    for contract in scope.op.results:
        if isinstance(contract, TensorContract):
            yield from ((contract.name, other) for other in before)
            before.append(contract.name)
