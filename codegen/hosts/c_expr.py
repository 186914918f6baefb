"""How types and contract expressions read in C, and what can be said of an expression before it is evaluated.

An expression is spelled over the call struct: a dimension or a let is ``call->m``, an argument ``call->recipe.value[2]``. Sums and
products go through saturating helpers, divisions through helpers that round as the contract language does; where the operands
cannot be negative these are C's own ``/`` and ``%``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache

from ..model import (
    Argument,
    Base,
    Binary,
    Call,
    Conditional,
    DType,
    Expr,
    Index,
    Kind,
    Let,
    List,
    Literal,
    NameRef,
    Operator,
    Optional,
    TensorContract,
    Type,
    Unary,
    ValueContract,
)
from ..printing import format_expr
from ..record import record
from ..tree import ARITHMETIC, children, expressions, walk

# ---- types ---------------------------------------------------------------------------------------------------


@record
class Spelling:
    """What C makes of a schema type: a form, and for numbers their word and C type."""

    form: str  # "tensor" | "scalar" | "str" | "dtype" | "list" | "array"
    is_optional: bool
    word: str = ""  # "int" | "float" | "bool"
    ctype: str = ""  # of one number
    size: int | None = None  # of an array


NUMBERS = {"int": ("int", "int64_t"), "SymInt": ("int", "int64_t"), "float": ("float", "double"), "bool": ("bool", "bool")}


@cache
def spelling(t: Type) -> Spelling | None:
    """None: C cannot carry the type."""
    is_optional = isinstance(t, Optional)
    if isinstance(t, Optional):
        t = t.elem
    if isinstance(t, List):
        if not isinstance(t.elem, Base) or t.elem.name not in NUMBERS:
            return None
        word, ctype = NUMBERS[t.elem.name]
        return Spelling("list" if t.size is None else "array", is_optional, word, ctype, t.size)
    if not isinstance(t, Base):
        return None
    if t.name in NUMBERS:
        return Spelling("scalar", is_optional, *NUMBERS[t.name])
    if t.name == "str" and not is_optional:
        return Spelling("str", False)
    form = {"Tensor": "tensor", "ScalarType": "dtype"}.get(t.name)
    return Spelling(form, is_optional) if form else None


def known(t: Type) -> Spelling:
    """The spelling of a type that refuse() has let through."""
    s = spelling(t)
    assert s is not None, f"C cannot carry {t}"
    return s


# ---- literals ------------------------------------------------------------------------------------------------

ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
ESCAPED = re.compile(r'["\\]|[^ -~]')


def c_string(text: str) -> str:
    """A C string literal. Anything but printable ASCII is spelled in octal, which needs no source character set."""
    return f'"{ESCAPED.sub(lambda found: ESCAPES.get(found[0]) or octal(found[0]), text)}"'


def octal(char: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in char.encode())


def c_format(text: str) -> str:
    """text as a part of a printf format."""
    return text.replace("%", "%%")


def c_integer(value: int) -> str:
    return "INT64_MIN" if value == -(2**63) else str(value)


def c_dtype(prefix: str, dtype: DType) -> str:
    return f"{prefix.upper()}_TYPE_{dtype.name.upper()}"


# ---- scope ---------------------------------------------------------------------------------------------------


@record
class Scope:
    """What the expressions of one operator may name."""

    prefix: str
    op: Operator
    args: Mapping[str, Argument]
    contracts: Mapping[str, TensorContract | ValueContract]
    lets: Mapping[str, Let]
    measured: frozenset[str]  # the tensors whose shape or strides some expression asks for

    @classmethod
    def of(cls, prefix: str, op: Operator) -> Scope:
        return cls(
            prefix,
            op,
            {a.name: a for a in op.schema.args},
            {c.name: c for c in op.contracts},
            {let.name: let for let in op.lets},
            measured(op),
        )

    def spelling(self, name: str) -> Spelling:
        return known(self.args[name].type)

    def tensor(self, name: str) -> TensorContract:
        contract = self.contracts[name]
        assert isinstance(contract, TensorContract)
        return contract

    def rank(self, name: str) -> int | None:
        """The rank of a tensor when all its alternatives agree on one."""
        contract = self.tensor(name)
        if contract.like is not None:
            return self.rank(contract.like)
        ranks = {None if a.shape is None else len(a.shape) for a in contract.alternatives}
        return ranks.pop() if len(ranks) == 1 else None


def measured(op: Operator) -> frozenset[str]:
    """The tensors whose shape or strides some expression asks for."""
    tensors = [c for c in (*op.contracts, *op.results) if isinstance(c, TensorContract)]
    values = [c for c in (*op.contracts, *op.results) if isinstance(c, ValueContract)]
    alternatives = [a for contract in tensors for a in contract.alternatives]
    roots = [
        *(e for a in alternatives for e in expressions(a)),
        *(limit for contract in values for _, limit in contract.compares),
        *(let.expr for let in op.lets),
        *(require.expr for require in op.requires),
    ]
    calls = (e for root in roots for e in walk(root) if isinstance(e, Call))
    return frozenset(argument_of(call) for call in calls if call.function in ("dim", "stride", "rank"))


# ---- spelling ------------------------------------------------------------------------------------------------

CONDITIONAL, OR, AND, EQUALITY, RELATION, TERM, PRODUCT, UNARY, ATOM = range(9)  # how tightly C binds

COMPARISONS = {"==": EQUALITY, "!=": EQUALITY, "<": RELATION, "<=": RELATION, ">": RELATION, ">=": RELATION}
SATURATING = {"+": "add", "-": "sub", "*": "mul"}
ROUNDING = {"//": ("/", "floor_div"), "%": ("%", "floor_mod")}
FUNCTIONS = {"ceil": "ceil_div", "align": "align", "min": "min", "max": "max"}


def spell(scope: Scope, expr: Expr, least: int = CONDITIONAL) -> str:
    """expr in C, in parentheses when it binds less tightly than least."""
    text, binds = spell_bound(scope, expr)
    return text if binds >= least else f"({text})"


def spell_bound(scope: Scope, expr: Expr) -> tuple[str, int]:
    p = scope.prefix
    match expr:
        case Literal(bool() as value):
            return str(value).lower(), ATOM
        case Literal(int() as value):
            return c_integer(value), ATOM if value >= 0 else UNARY
        case Literal(DType() as value):
            return c_dtype(p, value), ATOM
        case Literal(str() as value):
            return c_string(value), ATOM
        case NameRef(name, "arg"):
            s = scope.spelling(name)
            return f"call->{name}.value" if s.form == "scalar" and s.is_optional else f"call->{name}", ATOM
        case NameRef(name):
            return f"call->{name}", ATOM
        case Index(name, i):
            return spell_member(scope, name, i), ATOM
        case Call("given", _):
            return spell_given(scope, argument_of(expr))
        case Call():
            return spell_call(scope, expr), ATOM
        case Unary("not", operand):
            return "!" + spell(scope, operand, UNARY), UNARY
        case Unary(_, operand):
            return f"{p}_sub(0, {spell(scope, operand)})", ATOM
        case Conditional(condition, then, otherwise):
            return (
                f"{spell(scope, condition, OR)} ? {spell(scope, then, OR)} : {spell(scope, otherwise, CONDITIONAL)}",
                CONDITIONAL,
            )
        case Binary("or", left, right):
            return f"{spell_operand(scope, left, 'or')} || {spell_operand(scope, right, 'or')}", OR
        case Binary("and", left, right):
            return f"{spell_operand(scope, left, 'and')} && {spell_operand(scope, right, 'and')}", AND
        case Binary(op, left, right) if op in SATURATING:
            return f"{p}_{SATURATING[op]}({spell(scope, left)}, {spell(scope, right)})", ATOM
        case Binary(op, left, right) if op in ROUNDING:
            operator, helper = ROUNDING[op]
            if is_at_least(scope, left, 0):
                return f"{spell(scope, left, PRODUCT)} {operator} {spell(scope, right, UNARY)}", PRODUCT
            return f"{p}_{helper}({spell(scope, left)}, {spell(scope, right)})", ATOM
        case Binary(op, left, right):
            if kind(left) is Kind.str:
                return spell_str_comparison(scope, op, left, right), UNARY
            return f"{spell(scope, left, TERM)} {op} {spell(scope, right, TERM)}", COMPARISONS[op]
    raise AssertionError(expr)


def spell_operand(scope: Scope, expr: Expr, op: str) -> str:
    """An operand of && or ||: compilers ask for parentheses where the two mix."""
    return spell(scope, expr, OR if isinstance(expr, Binary) and expr.op == op else EQUALITY)


OPPOSITES = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def negated(expr: Expr) -> Expr:
    """An expression that is true when expr is not. Comparisons of floats are not turned round: NaN fails both ways."""
    match expr:
        case Unary("not", operand):
            return operand
        case Binary("or", left, right):
            return Binary("and", negated(left), negated(right))
        case Binary("and", left, right):
            return Binary("or", negated(left), negated(right))
        case Binary(op, left, right) if op in OPPOSITES and Kind.float not in (kind(left), kind(right)):
            return Binary(OPPOSITES[op], left, right)
    return Unary("not", expr)


def spell_str_comparison(scope: Scope, op: str, left: Expr, right: Expr) -> str:
    """One side is a literal; contracts compare strings with == and != only."""
    text, literal = (right, left) if isinstance(left, Literal) else (left, right)
    return f"{'!' if op == '!=' else ''}{scope.prefix}_str_equal({spell(scope, text)}, {spell(scope, literal)})"


def spell_member(scope: Scope, name: str, i: int) -> str:
    s = scope.spelling(name)
    if s.form == "array":
        return f"call->{name}.value[{i}]" if s.is_optional else f"call->{name}[{i}]"
    return f"{scope.prefix}_int_at({spell_list(scope, name)}, {i})"


def spell_list(scope: Scope, name: str) -> str:
    """A pointer to the list of integers; NULL when an optional one is not given."""
    s = scope.spelling(name)
    if s.form == "list":
        return f"call->{name}" if s.is_optional else f"&call->{name}"
    data = f"call->{name}.value" if s.is_optional else f"call->{name}"
    return f"&(const {scope.prefix}_ints){{{data}, {s.size}}}"


def spell_call(scope: Scope, call: Call) -> str:
    p = scope.prefix
    if call.function in ARITHMETIC:
        return f"{p}_{FUNCTIONS[call.function]}({', '.join(spell(scope, a) for a in call.args)})"
    name = argument_of(call)
    if call.function in ("dim", "stride"):
        return spell_axis(scope, call.function, name, call.args[1])
    if call.function == "rank":
        return f"call->{name}.ndim"
    if call.function == "sum_ceil":
        return f"{p}_sum_ceil({spell_list(scope, name)}, {spell(scope, call.args[1])})"
    if call.function == "len":
        return spell_length(scope, name)
    assert call.function == "dtype"
    return f"call->{name}.type" if scope.args[name].is_tensor else f"call->{name}"


def spell_axis(scope: Scope, function: str, name: str, axis: Expr) -> str:
    member = {"dim": "shape", "stride": "strides"}[function]
    rank = scope.rank(name)
    if isinstance(axis, Literal) and isinstance(axis.value, int) and rank is not None and -rank <= axis.value < rank:
        return f"call->{name}.{member}[{axis.value % rank}]"
    return f"{scope.prefix}_view_{function}(&call->{name}, {spell(scope, axis)})"


def spell_length(scope: Scope, name: str) -> str:
    s = scope.spelling(name)
    if s.form == "array":
        return str(s.size)
    if s.is_optional:
        return f"{scope.prefix}_len_of(call->{name})" if s.word == "int" else f"(call->{name} != NULL ? (int64_t)call->{name}->len : 0)"
    return f"(int64_t)call->{name}.len"


def spell_given(scope: Scope, name: str) -> tuple[str, int]:
    s = scope.spelling(name)
    if not s.is_optional:
        return "true", ATOM
    if s.form == "tensor":
        return f"call->{name}.is_given", ATOM
    if s.form == "dtype":
        return f"call->{name} != {scope.prefix.upper()}_TYPE_NONE", EQUALITY
    return (f"call->{name} != NULL", EQUALITY) if s.form == "list" else (f"call->{name}.has", ATOM)


def given(scope: Scope, name: str) -> str:
    """The condition under which an argument has a value, as a part of a conjunction; "" when it always has."""
    return spell_given(scope, name)[0] if scope.args[name].is_optional else ""


def argument_of(call: Call) -> str:
    """The argument that ``dim(x, 0)``, ``len(x)``, ... speak of."""
    name = call.args[0]
    assert isinstance(name, Literal) and isinstance(name.value, str)
    return name.value


def kind(expr: Expr) -> Kind:
    """The type of the value of expr."""
    match expr:
        case Literal(bool()):
            return Kind.bool
        case Literal(int()):
            return Kind.int
        case Literal(DType()):
            return Kind.dtype
        case Literal(str()):
            return Kind.str
        case NameRef(_, _, k):
            return k
        case Call("given", _):
            return Kind.bool
        case Call("dtype", _):
            return Kind.dtype
        case Binary(op) if op in COMPARISONS or op in ("and", "or"):
            return Kind.bool
        case Unary("not"):
            return Kind.bool
        case Conditional(_, then, _):
            return kind(then)
    return Kind.int


# ---- analysis ------------------------------------------------------------------------------------------------


def is_at_least(scope: Scope, expr: Expr, bound: int) -> bool:
    least = lower_bound(scope, expr)
    return least is not None and least >= bound


def lower_bound(scope: Scope, expr: Expr) -> int | None:
    """A number that expr cannot be below, as far as contracts say; None: nothing is known."""
    match expr:
        case Literal(int() as value):
            return int(value)
        case NameRef(_, "dim"):
            return 0
        case NameRef(name, "let"):
            return lower_bound(scope, scope.lets[name].expr)
        case NameRef(name, _):
            return value_bound(scope, name, is_member=False)
        case Index(name, i):
            return value_bound(scope, name, is_member=True) if i < shortest(scope, name) else None
        case Call("dim" | "rank" | "len", _):
            return 0
        case Call("sum_ceil", (Literal(name), _)):
            least = value_bound(scope, str(name), is_member=True)
            return 0 if least is not None and least >= 0 else None
        case Call("ceil" | "align", (numerator, _)):
            least = lower_bound(scope, numerator)
            return None if least is None or least < 0 else min(least, 1)
        case Call("min", args):
            return lowest([lower_bound(scope, a) for a in args])
        case Call("max", args):
            return max((b for b in (lower_bound(scope, a) for a in args) if b is not None), default=None)
        case Binary("+", left, right):
            a, b = lower_bound(scope, left), lower_bound(scope, right)
            return a + b if a is not None and b is not None else None
        case Binary("*", left, right):
            a, b = lower_bound(scope, left), lower_bound(scope, right)
            return a * b if a is not None and b is not None and a >= 0 and b >= 0 else None
        case Binary("//", left, _):
            return 0 if is_at_least(scope, left, 0) else None
        case Binary("%", _, _):
            return 0
        case Conditional(_, then, otherwise):
            return lowest([lower_bound(scope, then), lower_bound(scope, otherwise)])
    return None


def shortest(scope: Scope, name: str) -> int:
    """The least number of members that a list has when it is given."""
    contract = scope.contracts[name]
    lengths = contract.lengths if isinstance(contract, ValueContract) else ()
    return scope.spelling(name).size or min(lengths, default=0)


def lowest(bounds: list[int | None]) -> int | None:
    return None if None in bounds else min(b for b in bounds if b is not None)


def value_bound(scope: Scope, name: str, is_member: bool) -> int | None:
    """What the contract of an int, or of each member of a list, says."""
    contract = scope.contracts.get(name)
    if not isinstance(contract, ValueContract):
        return None
    bounds = [
        limit.value + (op == ">")
        for op, limit in contract.compares
        if op in (">", ">=", "==") and contract.each == is_member and isinstance(limit, Literal) and isinstance(limit.value, int)
    ]
    members = [v for v in contract.one_of if isinstance(v, int)]
    if members and not is_member:
        bounds.append(min(members))
    return max(bounds, default=None)


@record
class Division:
    """A division whose divisor may be zero as far as contracts say, and the C conditions under which it is evaluated."""

    text: str
    divisor: Expr
    conditions: tuple[str, ...]


def divisions(scope: Scope, expr: Expr, conditions: tuple[str, ...] = ()) -> Iterator[Division]:
    """The unsafe divisions of expr, innermost first."""
    match expr:
        case Conditional(condition, then, otherwise):
            yield from divisions(scope, condition, conditions)
            yield from divisions(scope, then, (*conditions, spell(scope, condition, EQUALITY)))
            yield from divisions(scope, otherwise, (*conditions, "!" + spell(scope, condition, UNARY)))
        case Binary("and" | "or" as op, left, right):
            yield from divisions(scope, left, conditions)
            evaluated = spell(scope, left, EQUALITY) if op == "and" else "!" + spell(scope, left, UNARY)
            yield from divisions(scope, right, (*conditions, evaluated))
        case _:
            for child in children(expr):
                yield from divisions(scope, child, conditions)
            divisor = divisor_of(expr)
            if divisor is not None and not is_at_least(scope, divisor, 1):
                yield Division(format_expr(expr), divisor, conditions)


def divisor_of(expr: Expr) -> Expr | None:
    match expr:
        case Binary("//" | "%", _, right):
            return right
        case Call("ceil" | "align" | "sum_ceil", (_, right)):
            return right
    return None


def facts(scope: Scope, expr: Expr) -> frozenset[str]:
    """What must have been checked or computed before expr can be evaluated: "tensor:a", "value:x", "dim:m", "let:y"."""
    found = set()
    for e in walk(expr):
        match e:
            case NameRef(name, "arg") | Index(name, _):
                found.add(f"value:{name}")
            case NameRef(name, role):
                found.add(f"{role}:{name}")
            case Call(function) if function not in ARITHMETIC:
                name = argument_of(e)
                found.add(f"{'tensor' if scope.args[name].is_tensor else 'value'}:{name}")
    return frozenset(found)
