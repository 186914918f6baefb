"""What the names of an operator's contracts mean: kinds of expressions, and what is known where an expression is read.

``Facts`` is the small part of logic that keeps contracts safe to run: behind ``given(x)`` an optional argument may be read, behind
``len(x) == 3`` its third member, behind ``rank(t) == 3`` its third axis.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field

from . import model as m
from .diagnostics import Report, closest, quoted_list
from .expression import Failed, Node
from .printing import format_type
from .record import record

_KINDS = {"int": m.Kind.int, "SymInt": m.Kind.int, "bool": m.Kind.bool, "float": m.Kind.float, "str": m.Kind.str}
_NUMBERS = (m.Kind.int, m.Kind.float)
_WORDS = {
    m.Kind.int: "an integer",
    m.Kind.bool: "a condition",
    m.Kind.str: "a string",
    m.Kind.dtype: "a dtype",
    m.Kind.float: "a float",
}
_COMPARE = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_NEGATED = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}


def without_optional(t: m.Type) -> m.Type:
    return t.elem if isinstance(t, m.Optional) else t


@record
class Size:
    """What is known of a length or a rank: at least low, and one of allowed if that is not None."""

    low: int = 0
    allowed: frozenset[int] | None = None

    def minimum(self) -> int:
        if self.allowed is None:
            return self.low
        return max(self.low, min(self.allowed, default=2**63))  # nothing allowed: this place is never reached

    def where(self, op: str, value: int) -> "Size":
        """This size, knowing that ``size op value`` holds."""
        allowed = self.allowed
        if op == "==":
            allowed = frozenset((value,))
        elif allowed is not None:
            allowed = frozenset(n for n in allowed if _COMPARE[op](n, value))
        low = {">": value + 1, ">=": value}.get(op, 1 if (op, value) == ("!=", 0) else 0)
        return Size(max(self.low, low), allowed)


@record
class Facts:
    given: frozenset[str] = frozenset()
    sizes: tuple[tuple[tuple[str, str], Size], ...] = ()  # (("len" or "rank", argument), size)

    def with_given(self, name: str) -> "Facts":
        return Facts(self.given | {name}, self.sizes)

    def size(self, function: str, name: str) -> Size:
        return dict(self.sizes).get((function, name), Size())

    def with_size(self, function: str, name: str, size: Size) -> "Facts":
        return Facts(self.given, tuple({**dict(self.sizes), (function, name): size}.items()))


@dataclass(slots=True)
class Scope:
    """The names that an operator's contracts may use."""

    report: Report
    args: dict[str, m.Argument]
    lets: dict[str, Node] = field(default_factory=dict)
    dims: dict[str, m.Dimension] = field(default_factory=dict)
    shape_names: frozenset[str] = frozenset()  # bare names of shapes, also those that define nothing
    dtypes: dict[str, frozenset[m.DType]] = field(default_factory=dict)  # of tensors and dtypes whose contract lists them
    facts: Facts = Facts()  # what holds everywhere
    unsure: set[str] = field(default_factory=set)  # names of lines that did not parse: they may define anything

    def fail(self, code: str, node: Node, message: str, fix: str = "") -> Failed:
        self.report.error(code, self.report.source.span(node.start, node.end), message, fix)
        return Failed()

    # -- expressions -------------------------------------------------------------------------------------------

    def of_kind(self, node: Node, facts: Facts, wanted: m.Kind, what: str) -> m.Expr:
        expr, kind = self.resolve(node, facts)
        if kind != wanted:
            raise self.fail("DG0503", node, f"{what} must be {_WORDS[wanted]}, this is {_WORDS[kind]}")
        return expr

    def resolve(self, node: Node, facts: Facts) -> tuple[m.Expr, m.Kind]:
        value = node.value
        if node.kind == "literal":
            assert isinstance(value, (bool, int, str, m.DType))
            kind = {bool: m.Kind.bool, int: m.Kind.int, str: m.Kind.str}.get(type(value), m.Kind.dtype)
            return m.Literal(value), kind
        if node.kind == "name":
            return self._name(node, facts)
        if node.kind == "index":
            return self._index(node, facts)
        if node.kind == "call":
            return self._call(node, facts)
        if node.kind == "unary":
            return self._unary(node, facts)
        if node.kind == "binary":
            return self._binary(node, facts)
        return self._conditional(node, facts)

    def _name(self, node: Node, facts: Facts) -> tuple[m.Expr, m.Kind]:
        name = str(node.value)
        if name in self.args:
            type_ = without_optional(self.args[name].type)
            kind = _KINDS.get(type_.name) if isinstance(type_, m.Base) else None
            if kind is None:
                fix = ""
                if type_ == m.TENSOR:
                    fix = f"read `dim({name}, i)`, `rank({name})` or `dtype({name})`"
                elif isinstance(type_, m.List):
                    fix = f"read `{name}[i]` or `len({name})`"
                raise self.fail(
                    "DG0503", node, f"`{name}` is of type `{format_type(type_)}`, which has no value in an expression", fix
                )
            self._check_given(node, name, facts)
            return m.NameRef(name, "arg", kind), kind
        if name in self.lets:
            return m.NameRef(name, "let", m.Kind.int), m.Kind.int
        if name in self.dims:
            return m.NameRef(name, "dim", m.Kind.int), m.Kind.int
        if name in self.unsure:
            raise Failed
        if name in self.shape_names:
            message = f"dimension `{name}` is never defined: no required tensor has it as a bare name in all its alternatives"
            raise self.fail("DG0406", node, message)
        meant = closest(name, [*self.args, *self.lets, *self.dims])
        fix = f"did you mean `{meant}`?" if meant else ""
        raise self.fail("DG0502", node, f"`{name}` is no argument, `let` or dimension", fix)

    def _check_given(self, node: Node, name: str, facts: Facts) -> None:
        if self.args[name].is_optional and name not in facts.given:
            fix = f"write `given({name}) ? ... : ...`, or `given({name}) and ...`"
            raise self.fail("DG0504", node, f"`{name}` is read where it may be absent", fix)

    def _argument(self, node: Node, what: str) -> m.Argument:
        name = str(node.value)
        if name not in self.args:
            if name in self.unsure:
                raise Failed
            meant = closest(name, self.args)
            fix = f"did you mean `{meant}`?" if meant else ""
            raise self.fail("DG0502", node, f"`{name}` is no argument, so it cannot be {what}", fix)
        return self.args[name]

    def _list(self, node: Node, facts: Facts) -> m.List:
        a = self._argument(node, "a list")
        type_ = without_optional(a.type)
        if not isinstance(type_, m.List):
            raise self.fail("DG0503", node, f"`{a.name}` is of type `{format_type(a.type)}`, not a list")
        self._check_given(node, a.name, facts)
        return type_

    def _tensor(self, node: Node, facts: Facts) -> m.Argument:
        a = self._argument(node, "a tensor")
        if not a.is_tensor:
            raise self.fail("DG0503", node, f"`{a.name}` is of type `{format_type(a.type)}`, not a tensor")
        self._check_given(node, a.name, facts)
        return a

    def _index(self, node: Node, facts: Facts) -> tuple[m.Expr, m.Kind]:
        name, index = str(node.value), node.children[0].value
        assert isinstance(index, int)
        type_ = self._list(node, facts)
        kind = _KINDS.get(type_.elem.name) if isinstance(type_.elem, m.Base) else None
        if kind is None:
            raise self.fail("DG0503", node, f"the members of `{name}` have no value in an expression")
        if type_.size is not None:
            if index >= type_.size:
                raise self.fail("DG0505", node, f"`{name}` has {type_.size} members, the last is `{name}[{type_.size - 1}]`")
        elif facts.size("len", name).minimum() <= index:
            fix = f"give it `length {index + 1}`, or read it behind `len({name}) > {index}`"
            raise self.fail("DG0505", node, f"`{name}` may have fewer than {index + 1} members", fix)
        return m.Index(name, index), kind

    def _call(self, node: Node, facts: Facts) -> tuple[m.Expr, m.Kind]:
        function, children = str(node.value), node.children
        name = m.Literal(str(children[0].value))
        if function in ("dim", "stride"):
            axis = children[1].value
            tensor = self._tensor(children[0], facts)
            if children[1].kind != "literal" or not isinstance(axis, int) or isinstance(axis, bool):
                raise self.fail("DG0503", children[1], "an axis must be a number")
            needed = axis + 1 if axis >= 0 else -axis
            if facts.size("rank", tensor.name).minimum() < needed:
                fix = f"read it behind `rank({tensor.name}) >= {needed}`"
                raise self.fail("DG0505", children[1], f"`{tensor.name}` may have no axis {axis}", fix)
            return m.Call(function, (name, m.Literal(axis))), m.Kind.int
        if function == "rank":
            self._tensor(children[0], facts)
            return m.Call(function, (name,)), m.Kind.int
        if function == "dtype":
            a = self._argument(children[0], "a tensor")
            if without_optional(a.type) == m.Base("ScalarType"):
                self._check_given(children[0], a.name, facts)
            else:
                self._tensor(children[0], facts)
            return m.Call(function, (name,)), m.Kind.dtype
        if function == "len":
            self._list(children[0], facts)
            return m.Call(function, (name,)), m.Kind.int
        if function == "given":
            a = self._argument(children[0], "given or not")
            if not a.is_optional:
                raise self.fail("DG0503", children[0], f"`{a.name}` is always given")
            return m.Call(function, (name,)), m.Kind.bool
        if function == "sum_ceil":
            type_ = self._list(children[0], facts)
            if not (isinstance(type_.elem, m.Base) and _KINDS.get(type_.elem.name) == m.Kind.int):
                raise self.fail("DG0503", children[0], f"`{children[0].value}` is no list of integers")
            return m.Call(function, (name, self._divisor(children[1], facts))), m.Kind.int
        if function in ("ceil", "align"):
            dividend = self.of_kind(children[0], facts, m.Kind.int, "a dividend")
            return m.Call(function, (dividend, self._divisor(children[1], facts))), m.Kind.int
        values = tuple(self.of_kind(c, facts, m.Kind.int, f"an operand of `{function}`") for c in children)
        return m.Call(function, values), m.Kind.int

    def _divisor(self, node: Node, facts: Facts, low: int = 1) -> m.Expr:
        divisor = self.of_kind(node, facts, m.Kind.int, "a divisor")
        if isinstance(divisor, m.Literal) and isinstance(divisor.value, int) and (divisor.value < low or divisor.value == 0):
            raise self.fail("DG0506", node, f"a division by {divisor.value}")
        return divisor

    def _unary(self, node: Node, facts: Facts) -> tuple[m.Expr, m.Kind]:
        op = str(node.value)
        kind = m.Kind.int if op == "-" else m.Kind.bool
        return m.Unary(op, self.of_kind(node.children[0], facts, kind, f"the operand of `{op}`")), kind

    def _binary(self, node: Node, facts: Facts) -> tuple[m.Expr, m.Kind]:
        op, (left, right) = str(node.value), node.children
        if op in ("and", "or"):
            first = self.of_kind(left, facts, m.Kind.bool, f"an operand of `{op}`")
            second_facts = self.assume(left, op == "and", facts)
            return m.Binary(op, first, self.of_kind(right, second_facts, m.Kind.bool, f"an operand of `{op}`")), m.Kind.bool
        if op in ("+", "-", "*", "//", "%"):
            first = self.of_kind(left, facts, m.Kind.int, f"an operand of `{op}`")
            if op in ("//", "%"):
                return m.Binary(op, first, self._divisor(right, facts, low=-(2**63))), m.Kind.int
            return m.Binary(op, first, self.of_kind(right, facts, m.Kind.int, f"an operand of `{op}`")), m.Kind.int
        first, kind = self.resolve(left, facts)
        second, other = self.resolve(right, facts)
        both_numbers = kind in _NUMBERS and other in _NUMBERS
        if kind != other and not both_numbers:
            raise self.fail("DG0503", node, f"{_WORDS[kind]} and {_WORDS[other]} cannot be compared")
        if op not in ("==", "!=") and not both_numbers:
            raise self.fail("DG0503", node, f"`{op}` compares numbers, not {_WORDS[kind].removeprefix('a ')}s")
        self._check_dtype(first, second, right)
        self._check_dtype(second, first, left)
        return m.Binary(op, first, second), m.Kind.bool

    def _check_dtype(self, call: m.Expr, literal: m.Expr, at: Node) -> None:
        """``dtype(x) == WORD`` must be possible."""
        if not (isinstance(call, m.Call) and call.function == "dtype" and isinstance(literal, m.Literal)):
            return
        name = call.args[0]
        assert isinstance(name, m.Literal) and isinstance(literal.value, m.DType)
        known = self.dtypes.get(str(name.value))
        if known and literal.value not in known:
            words = quoted_list(d.value for d in m.DType if d in known)
            raise self.fail("DG0411", at, f"`{name.value}` is never `{literal.value.value}`: its contract says {words}")

    def _conditional(self, node: Node, facts: Facts) -> tuple[m.Expr, m.Kind]:
        condition, then, otherwise = node.children
        test = self.of_kind(condition, facts, m.Kind.bool, "what stands before `?`")
        first, kind = self.resolve(then, self.assume(condition, True, facts))
        second, other = self.resolve(otherwise, self.assume(condition, False, facts))
        if kind != other:
            raise self.fail(
                "DG0503", node, f"the values of `? :` must be of one kind, these are {_WORDS[kind]} and {_WORDS[other]}"
            )
        return m.Conditional(test, first, second), kind

    # -- what follows from a condition -------------------------------------------------------------------------

    def assume(self, node: Node, truth: bool, facts: Facts) -> Facts:
        """The facts where a condition is known to hold (truth) or not to hold."""
        if node.kind == "unary" and node.value == "not":
            return self.assume(node.children[0], not truth, facts)
        if node.kind == "binary" and node.value in ("and", "or"):
            if truth == (node.value == "and"):
                for child in node.children:
                    facts = self.assume(child, truth, facts)
            return facts
        if node.kind == "call" and node.value == "given" and truth:
            return facts.with_given(str(node.children[0].value))
        if node.kind == "binary" and node.value in _MIRRORED:
            left, right = node.children
            op = str(node.value)
            if left.kind == "literal":
                left, right, op = right, left, _MIRRORED[op]
            if right.kind == "literal" and isinstance(right.value, int) and not isinstance(right.value, bool):
                return self._assume_comparison(left, op if truth else _NEGATED[op], right.value, facts)
        return facts

    def _assume_comparison(self, node: Node, op: str, value: int, facts: Facts) -> Facts:
        if node.kind == "call" and node.value in ("len", "rank"):
            function, name = str(node.value), str(node.children[0].value)
            return facts.with_size(function, name, facts.size(function, name).where(op, value))
        if node.kind == "name" and node.value in self.lets and node.value not in self.args:
            return self._assume_let(self.lets[str(node.value)], op, value, facts)
        return facts

    def _assume_let(self, let: Node, op: str, value: int, facts: Facts) -> Facts:
        """``let n = CONDITION ? 1 : 0``: then ``n == 1`` says that the condition holds."""
        if let.kind != "conditional" or any(c.kind != "literal" for c in let.children[1:]):
            return facts
        condition, then, otherwise = let.children
        possible = (
            Size(allowed=frozenset(c.value for c in (then, otherwise) if isinstance(c.value, int))).where(op, value).allowed
        )
        if possible is None or len(possible) != 1 or then.value == otherwise.value:
            return facts
        return self.assume(condition, then.value in possible, facts)
