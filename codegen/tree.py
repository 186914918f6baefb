"""Walking the expressions of contracts."""

from __future__ import annotations

from collections.abc import Iterator

from .model import Alternative, Binary, Call, Conditional, Expr, NameRef, Unary

ARITHMETIC = frozenset(("ceil", "align", "min", "max"))  # calls whose arguments are all expressions; others begin with a name


def children(expr: Expr) -> tuple[Expr, ...]:
    match expr:
        case Call(function, args):
            return args if function in ARITHMETIC else args[1:]
        case Binary(_, left, right):
            return left, right
        case Unary(_, operand):
            return (operand,)
        case Conditional(condition, then, otherwise):
            return condition, then, otherwise
    return ()


def walk(expr: Expr) -> Iterator[Expr]:
    """expr and all that it is made of."""
    yield expr
    for child in children(expr):
        yield from walk(child)


def names_in(expr: Expr) -> Iterator[str]:
    """The dimensions, lets and arguments that stand in expr by their bare names."""
    return (e.name for e in walk(expr) if isinstance(e, NameRef))


def expressions(a: Alternative) -> tuple[Expr, ...]:
    """All expressions of an alternative."""
    return (*(a.shape or ()), *(a.strides or ()), *((a.when,) if a.when is not None else ()))
