"""A valid call with one thing changed, and what it must come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from .. import model as m
from ..record import record, replace
from .call import MOST_DIMENSIONS, Call, Tensor, Value, bare, list_size, member_type
from .draw import Source, bounds, break_require
from .verdict import NOT_SUPPORTED, Verdict, verdict

STRANGE_DTYPES = (m.DType.f64, m.DType.i64, m.DType.bool, m.DType.f16, m.DType.i16)  # few contracts take these


@record
class Fault:
    label: str  # "b: rank"
    call: Call
    expected: Verdict


def faults(call: Call, source: Source, *, is_c: bool = False) -> Iterator[Fault]:
    """One of each kind that this call can have, in the order of its arguments. is_c: also what only C can pass, such as NULL; and not
    what C cannot, such as a list of another length than the type has."""
    for change in changes(call, source, is_c):
        fault = change()
        if fault is not None:
            yield fault


Change = Callable[[], Fault | None]  # None: the call is still right


def changes(call: Call, source: Source, is_c: bool) -> list[Change]:
    """What can be changed. The calls are made one by one, as they are asked for."""
    found: list[Change] = []
    for arg, contract in zip(call.op.schema.args, call.op.contracts):
        value = call.values[arg.name]
        others: list[tuple[str, Value]] = []
        if isinstance(value, Tensor):
            assert isinstance(contract, m.TensorContract)
            others += tensor_changes(call, contract, value, source, is_c)
            others += [("missing", None)] * is_c
        elif isinstance(contract, m.ValueContract) and value is not None:
            others += value_changes(arg, contract, value, source, is_c)
        found += (partial(with_value, call, arg.name, what, other) for what, other in others)
    found += (partial(without_require, call.op, require, source, is_c) for require in call.op.requires)
    return found


def with_value(call: Call, name: str, what: str, value: Value) -> Fault | None:
    changed = call.with_value(name, value)
    found = verdict(changed)
    return None if found is None or found.status == NOT_SUPPORTED else Fault(f"{name}: {what}", changed, found)


def without_require(op: m.Operator, require: m.Require, source: Source, is_c: bool) -> Fault | None:
    """Another call, which breaks this condition and no other one."""
    broken = break_require(op, require, source, fp4_elements=is_c)
    found = verdict(broken) if broken is not None else None
    if broken is None or found is None or (require.message or require.text) not in found.message:
        return None
    return Fault(f"require {require.text}", broken, found)


def tensor_changes(call: Call, contract: m.TensorContract, t: Tensor, source: Source, is_c: bool) -> Iterator[tuple[str, Tensor]]:
    own = replace(t, memory="", contents=None)
    yield "dtype", replace(own, dtype=source.choice(STRANGE_DTYPES), is_pairs=False)
    yield "a dimension more", replace(own, shape=(1, *t.shape), strides=(0, *t.strides))
    missing = MOST_DIMENSIONS + 1 - len(t.shape)
    yield "nine dimensions", replace(own, shape=(1,) * missing + t.shape, strides=(0,) * missing + t.strides)
    if t.shape:
        yield "a dimension less", replace(own, shape=t.shape[1:], strides=t.strides[1:])
    for axis, n in enumerate(t.shape):
        yield f"size {axis} too large", resized(own, axis, n + 1)
        if n > 0:
            yield f"size {axis} too small", resized(own, axis, n - 1)
    yield "strides twice as large", replace(own, strides=tuple(2 * s for s in t.strides))
    if is_c:
        if t.shape:
            yield "a negative size", resized(own, source.integer(0, len(t.shape) - 1), -1)
            yield "too large for 64 bits", replace(resized(own, 0, 2**62), strides=(3, *t.strides[1:]))
        yield "another device", replace(own, is_elsewhere=True)
        yield "no data", replace(own, has_data=False)
    if contract.access != "in":
        for axis, n in enumerate(t.shape):
            if n > 1:
                yield f"one place for all of dimension {axis}", replace(own, strides=with_item(t.strides, axis, 0))
    else:
        for other, written in call.tensors():
            if other != contract.name and next(a for a in call.op.schema.args if a.name == other).is_written and not written.memory:
                yield f"the memory of {other}", replace(own, memory=other)


def resized(t: Tensor, axis: int, size: int) -> Tensor:
    """With another size of an axis, the elements still apart from each other."""
    step = t.strides[axis]
    grown = size > t.shape[axis]
    strides = tuple(s + abs(step) * 2 if grown and i != axis and abs(s) > abs(step) else s for i, s in enumerate(t.strides))
    return replace(t, shape=with_item(t.shape, axis, size), strides=strides)


def with_item(values: tuple[int, ...], i: int, value: int) -> tuple[int, ...]:
    return (*values[:i], value, *values[i + 1 :])


def value_changes(arg: m.Argument, contract: m.ValueContract, value: Value, source: Source, is_c: bool) -> Iterator[tuple[str, Value]]:
    kind = member_type(arg)
    if isinstance(bare(arg.type), m.List):
        assert isinstance(value, tuple)
        if not (is_c and list_size(arg) is not None):
            yield "a member more", (*value, value[-1] if value else 1)
            if value:
                yield "a member less", value[:-1]
        if value and contract.each:
            i = source.integer(0, len(value) - 1)
            for what, member in member_changes(kind, contract):
                yield f"a member {what}", (*value[:i], member, *value[i + 1 :])
        return
    yield from member_changes(kind, contract)


def member_changes(kind: str, contract: m.ValueContract) -> Iterator[tuple[str, Value]]:
    if kind in ("int", "float"):
        least, most = bounds(contract)
        for what, number in (("too small", least - 1), ("too large", most + 1)):
            if -(2**63) <= number < 2**63:
                yield what, float(number) if kind == "float" else number
        if kind == "int" and any(not isinstance(limit, m.Literal) for _, limit in contract.compares):
            yield "beyond its limit", min(most, 2**31 - 1)
    if contract.one_of:
        if kind == "str":
            yield "of no known word", f"{contract.one_of[0]}?"
            yield "of many characters", "x" * 70
        elif kind == "ScalarType":
            yield "of another dtype", next(d for d in m.DType if d not in contract.one_of)
        elif kind == "int":
            yield "of no known number", max(int(str(n)) for n in contract.one_of) + 1


