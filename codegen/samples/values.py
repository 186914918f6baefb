"""What the expressions of contracts mean. Integers stay within 64 bits: a result beyond them is the nearest value that fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .. import model as m
from .call import Value, list_size

LEAST, MOST = -(2**63), 2**63 - 1


class DividesByNothing(Exception):
    """A division by zero, or by a negative number."""

    def __init__(self, division: m.Expr, divisor: m.Expr, got: int):
        super().__init__(got)
        self.division, self.divisor, self.got = division, divisor, got


class Names:
    """What the names of an expression stand for. What is not there reads as 0, or as its like."""

    args: Mapping[str, m.Argument]
    values: Mapping[str, Value]  # of the arguments that are no tensors

    def name(self, e: m.NameRef) -> object:
        if e.role != "arg":
            return self.bound_to(e)
        value = self.values[e.name]
        return _ABSENT[e.kind] if value is None else value

    def member(self, name: str, index: int) -> object:
        members = self.members(name)
        return members[index] if index < len(members) else 0

    def length(self, name: str) -> int:
        return list_size(self.args[name]) or len(self.members(name))

    def members(self, name: str) -> tuple[int, ...]:
        value = self.values[name]
        return value if isinstance(value, tuple) else ()  # type: ignore[return-value]

    def dtype(self, name: str) -> m.DType | None:
        if self.args[name].is_tensor:
            return self.element(name)
        value = self.values[name]
        return value if isinstance(value, m.DType) else None

    def bound_to(self, e: m.NameRef) -> int:
        """A dimension or a let."""
        raise NotImplementedError

    def element(self, name: str) -> m.DType | None:
        """The dtype of a tensor."""
        raise NotImplementedError

    def is_given(self, name: str) -> bool:
        raise NotImplementedError

    def rank(self, name: str) -> int:
        raise NotImplementedError

    def size(self, name: str, axis: int) -> int:
        raise NotImplementedError

    def stride(self, name: str, axis: int) -> int:
        raise NotImplementedError


_ABSENT: dict[m.Kind, object] = {m.Kind.int: 0, m.Kind.bool: False, m.Kind.float: 0.0, m.Kind.str: ""}


def limited(x: int) -> int:
    return max(LEAST, min(MOST, x))


def ceil_div(x: int, y: int) -> int:
    return -(-x // y)


_BINARY: dict[str, Callable[..., object]] = {
    "+": lambda x, y: limited(x + y), "-": lambda x, y: limited(x - y), "*": lambda x, y: limited(x * y),
    "//": lambda x, y: x // y, "%": lambda x, y: x % y,
    "==": lambda x, y: x == y, "!=": lambda x, y: x != y, "<": lambda x, y: x < y, "<=": lambda x, y: x <= y,
    ">": lambda x, y: x > y, ">=": lambda x, y: x >= y,
}  # fmt: skip


def integer(names: Names, e: m.Expr) -> int:
    value = evaluate(names, e)
    assert isinstance(value, int)
    return value


def evaluate(names: Names, e: m.Expr) -> object:
    match e:
        case m.Literal(value):
            return value
        case m.NameRef():
            return names.name(e)
        case m.Index(name, index):
            return names.member(name, index)
        case m.Unary("not", operand):
            return not evaluate(names, operand)
        case m.Unary(_, operand):
            return limited(-integer(names, operand))
        case m.Conditional(condition, then, otherwise):
            return evaluate(names, then if evaluate(names, condition) else otherwise)
        case m.Binary("and", left, right):
            return bool(evaluate(names, left)) and bool(evaluate(names, right))
        case m.Binary("or", left, right):
            return bool(evaluate(names, left)) or bool(evaluate(names, right))
        case m.Binary("//" | "%" as op, left, right):
            dividend = integer(names, left)
            return _BINARY[op](dividend, divisor(names, e, right))
        case m.Binary(op, left, right):
            return _BINARY[op](evaluate(names, left), evaluate(names, right))
        case m.Call("ceil" | "align" as function, (left, right)):
            dividend, by = integer(names, left), divisor(names, e, right)
            return ceil_div(dividend, by) if function == "ceil" else limited(ceil_div(dividend, by) * by)
        case m.Call("min" | "max" as function, args):
            numbers = [integer(names, a) for a in args]
            return min(numbers) if function == "min" else max(numbers)
        case m.Call():
            return _of_argument(names, e)


def divisor(names: Names, division: m.Expr, e: m.Expr) -> int:
    value = integer(names, e)
    if value <= 0:
        raise DividesByNothing(division, e, value)
    return value


def subject(call: m.Call) -> str:
    """The argument that ``dim(x, 0)``, ``len(x)``, ... speak of."""
    assert isinstance(call.args[0], m.Literal)
    return str(call.args[0].value)


def _of_argument(names: Names, e: m.Call) -> object:
    name = subject(e)
    match e.function:
        case "given":
            return names.is_given(name)
        case "dtype":
            return names.dtype(name)
        case "rank":
            return names.rank(name)
        case "len":
            return names.length(name)
        case "dim":
            return names.size(name, integer(names, e.args[1]))
        case "stride":
            return names.stride(name, integer(names, e.args[1]))
        case _:
            by = divisor(names, e, e.args[1])
            total = 0
            for member in names.members(name):
                total = limited(total + ceil_div(member, by))
            return total
