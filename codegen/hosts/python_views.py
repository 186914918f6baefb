"""Operators whose results are views of an argument: Python functions that check the arguments and cut the views, as the contracts say.

torch decomposes such an operator into the views that it is made of, so one implementation in Python serves every torch host.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..model import Alternative, Argument, Operator, Return, TensorContract, ValueContract
from ..record import record
from .python_fakes import DTYPES, Branch, Result, call, definitions_of, is_chosen, needed_names, parameter, spell


@record
class ArgumentCheck:
    """A call of a function of _binding.py, behind the name of the operator."""

    function: str
    arguments: tuple[str, ...]


@record
class Views:
    parameters: tuple[str, ...]  # as they are declared
    checks: tuple[ArgumentCheck, ...]
    names: tuple[tuple[str, str], ...]  # dimensions and lets: name, expression
    requires: tuple[tuple[str, str], ...]  # condition, text in quotes
    results: tuple[Result, ...]


def views(op: Operator) -> Views | None:
    """None for an operator that returns no views, or has no implementation."""
    if not op.returns_views or not op.backends:
        return None
    pairs = zip(op.schema.args, op.contracts)
    contracts = [c for c in op.results if isinstance(c, TensorContract)]
    definitions = definitions_of(op)
    needed = needed_names(contracts, definitions, [*(c.at for c in contracts if c.at is not None), *(r.expr for r in op.requires)])
    return Views(
        parameters=tuple(parameter(a) for a in op.schema.args),
        checks=tuple(check for a, c in pairs if (check := argument_check(a, c)) is not None),
        names=tuple((name, text) for name, (_, text) in definitions.items() if name in needed),
        requires=tuple((spell(r.expr), repr(r.message or f"{r.text} does not hold")) for r in op.requires),
        results=tuple(result(op, r, c) for r, c in zip(op.schema.returns, contracts)),
    )


# ---- arguments -----------------------------------------------------------------------------------------------


def argument_check(arg: Argument, contract: TensorContract | ValueContract) -> ArgumentCheck | None:
    subject = (f'"{contract.name}"', contract.name)
    if isinstance(contract, ValueContract):
        condition = value_condition(contract)
        condition = f"{contract.name} is None or {condition}" if condition and arg.is_optional else condition
        return ArgumentCheck("check_value", (*subject, condition, repr(contract.text))) if condition else None
    dtypes = tuple_of(dict.fromkeys(DTYPES[d] for a in contract.alternatives for d in a.dtypes))
    fits = " or ".join(alternative_condition(contract.name, a) for a in contract.alternatives)
    return ArgumentCheck("check_tensor", (*subject, dtypes, f"lambda: {fits}", repr(contract.text)))


def alternative_condition(name: str, alternative: Alternative) -> str:
    layout = {"contiguous": f" and {name}.is_contiguous()", "rows": f" and {name}.stride(-1) == 1"}.get(alternative.layout, "")
    return is_chosen(name, alternative) + layout


def value_condition(contract: ValueContract) -> str:
    name, parts = contract.name, []
    if contract.one_of:
        parts.append(f"{name} in {tuple_of(map(repr, contract.one_of))}")
    if contract.lengths:
        parts.append(f"len({name}) in {tuple_of(map(str, contract.lengths))}")
    for comparison, limit in contract.compares:
        one = f"x {comparison} {spell(limit)}"
        parts.append(f"all({one} for x in {name})" if contract.each else f"{name} {comparison} {spell(limit)}")
    return " and ".join(parts)


# ---- results -------------------------------------------------------------------------------------------------


def result(op: Operator, returned: Return, contract: TensorContract) -> Result:
    """The alternatives in order; the last one has no condition."""
    base = viewed(op, returned)
    branches: list[Branch] = []
    for i, a in enumerate(contract.alternatives):
        is_last = i == len(contract.alternatives) - 1
        branches.append(Branch("" if is_last or a.when is None else spell(a.when), view(op, contract, a, base)))
        if a.when is None:
            break
    return Result(contract.name, tuple(branches))


def viewed(op: Operator, returned: Return) -> str:
    """The argument that a result aliases."""
    assert returned.alias is not None
    sets = {name: a.name for a in op.schema.args if a.alias is not None for name in a.alias.before}
    return next(sets[name] for name in returned.alias.before)


def view(op: Operator, contract: TensorContract, a: Alternative, base: str) -> str:
    assert a.shape is not None and contract.at is not None, "the parser asks for both"
    dtype = f"_binding.dtype_of({a.dtype_of})" if a.dtype_of is not None else DTYPES[a.dtypes[0]]
    strides = [f"strides={tuple_of(spell(e) for e in a.strides)}"] if a.strides is not None else []
    where = [f'"{op.symbol}"', f'"{contract.name}"', f'"{base}"', base, f"at={spell(contract.at)}"]
    return call("_binding.view", [*where, f"shape={tuple_of(spell(e) for e in a.shape)}", *strides, f"dtype={dtype}"])


def tuple_of(items: Iterable[str]) -> str:
    texts = list(items)
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"
