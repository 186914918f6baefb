"""Calls as one program in C, which needs the library and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

from .. import model as m
from ..hosts import Render
from ..hosts.c_expr import c_integer, c_string, known
from ..record import record
from .call import ELSEWHERE, Call, Tensor, Value
from .draw import Adjust, CannotDraw, draw
from .faults import faults
from .verdict import NOT_SUPPORTED, Verdict, results, verdict

_T = TypeVar("_T")
MOST_BYTES = 1 << 30


class Seeded(random.Random):
    """Choices by a seed: the same ones in every Python."""

    def integer(self, least: int, most: int) -> int:
        return least + self.getrandbits(80) % (most - least + 1)

    def choice(self, of: Sequence[_T]) -> _T:  # type: ignore[override]
        return of[self.integer(0, len(of) - 1)]


@record
class Case:
    """A call as the template sees it."""

    label: str
    operator: str
    tensors: tuple[str, ...]  # declarations of arguments
    options: tuple[tuple[str, str], ...]  # member and value
    before: tuple[str, ...]  # what stands before the results in a call
    declarations: tuple[str, ...]  # of results that are no tensors
    outs: tuple[tuple[str, str], ...]  # name of a result that is a tensor, and what it looks like; "" when the call is wrong
    results: tuple[str, ...]  # what stands in a call for the results
    has_options: bool
    status: str
    message: str


def program(library: m.Library, render: Render, *, seed: int, count: int, adjust: Adjust) -> str:
    """count right calls of each operator, and the single faults of one of them."""
    found = [case for op in library.operators if not op.returns_views for case in cases(library.prefix, op, seed, count, adjust)]
    if not found:
        raise CannotDraw("no operator of this library exists in C")
    p = library.prefix
    return render(
        "samples/calls.c.j2", p=p, P=p.upper(), namespace=library.namespace, seed=seed, cases=found, elsewhere=ELSEWHERE
    )


def cases(p: str, op: m.Operator, seed: int, count: int, adjust: Adjust) -> Iterator[Case]:
    source = Seeded(f"{seed} {op.symbol}")
    for i in range(count):
        call = draw(op, source, adjust, fp4_elements=True)
        yield case(p, call, "right", verdict(call))
        if i == 0:
            for fault in faults(call, source, is_c=True):
                yield case(p, fault.call, fault.label, fault.expected)


def case(p: str, call: Call, label: str, expected: Verdict | None) -> Case:
    required = [a for a in call.op.schema.args if a.default is None]
    defaulted = [a for a in call.op.schema.args if a.default is not None]
    is_right = expected is None or expected.status == NOT_SUPPORTED
    specs = iter(results(call) if is_right else ())
    declarations: list[str] = []
    outs: list[tuple[str, str]] = []
    passed: list[str] = []
    for returned, contract in zip(call.op.schema.returns, call.op.results):
        s, name = known(returned.type), contract.name
        if s.form == "tensor":
            outs.append((name, place(p, name, next(specs), True) if is_right else ""))
            passed.append(name if is_right else "NULL")
        elif s.form == "list":
            declarations += [f"{s.ctype} {name}[MOST_MEMBERS];", f"size_t {name}_len;"]
            passed.append(f"{name}, MOST_MEMBERS, &{name}_len")
        else:
            declarations.append(f"{s.ctype} {name};")
            passed.append(f"&{name}")
    return Case(
        label=c_string(f"{call.op.symbol}, {label}"),
        operator=call.op.symbol,
        tensors=tuple(tensor_declarations(p, call)),
        options=tuple((a.name, spelled(p, a, call.values[a.name], is_member=True)) for a in defaulted),
        before=tuple(spelled(p, a, call.values[a.name], is_member=False) for a in required),
        declarations=tuple(declarations),
        outs=tuple(outs),
        results=tuple(passed),
        has_options=bool(defaulted),
        status=f"{p.upper()}_{'OK' if expected is None else f'ERR_{expected.status}'}",
        message=c_string(expected.message if expected is not None else ""),
    )


def tensor_declarations(p: str, call: Call) -> Iterator[str]:
    """Owners of memory before those that share it."""
    sizes: dict[str, int] = {}
    for name, t in call.tensors():
        size = (t.extent()[1] * t.bits + 7) // 8
        owner = t.memory or name
        sizes[owner] = max(sizes.get(owner, 0), size if size <= MOST_BYTES else 0)  # beyond that, it is refused by its size
    written = {a.name for a in call.op.schema.args if a.is_written}
    for name, t in sorted(call.tensors(), key=lambda item: bool(item[1].memory)):
        text = place(p, name, t, name in written, sizes.get(name, 0))
        yield f"{p}_tensor *{name} = {text};"


def place(p: str, name: str, t: Tensor, is_written: bool, size: int = 0) -> str:
    pairs = "X2" if t.is_pairs else ""
    members = [
        f".name = {c_string(name)}",
        f".dtype = {{{p.upper()}_{t.dtype.name.upper()}{pairs}}}",
        f".ndim = {len(t.shape)}",
        *([f".shape = {braced(t.shape)}", f".strides = {braced(t.strides)}"] if t.shape else []),
        *([f".size = {size}"] if size else []),
        *([".is_written = true"] if is_written else []),
        *([f".memory_of = {t.memory}"] if t.memory else []),
        *([".is_elsewhere = true"] if t.is_elsewhere else []),
        *([".has_no_data = true"] if not t.has_data else []),
        *([f".contents = (const int64_t[]){braced(t.contents)}"] if t.contents else []),
    ]
    return f"place(&(struct place){{{', '.join(members)}}})"


def braced(values: tuple[int, ...]) -> str:
    return f"{{{', '.join(c_integer(v) for v in values)}}}"


def spelled(p: str, arg: m.Argument, value: Value, *, is_member: bool) -> str:
    """A value as an expression; of a list of fixed length in the options struct, as an initialiser of an array."""
    s = known(arg.type)
    if s.form == "tensor":
        return "NULL" if value is None else arg.name
    if s.form == "list":
        if value is None:
            return "NULL"
        assert isinstance(value, tuple)
        data = f"(const {s.ctype}[]){{{', '.join(map(number, value))}}}" if value else "NULL"
        return f"{'&' if s.is_optional else ''}({p}_{s.word}s){{{data}, {len(value)}}}"
    if s.form == "array":
        assert value is None or isinstance(value, tuple)
        members = f"{{{', '.join(number(v) for v in value)}}}" if value is not None else "{0}"
        if s.is_optional:
            return f"({p}_opt_{s.word}{s.size}){{{'false' if value is None else 'true'}, {members}}}"
        return members if is_member else f"(const {s.ctype}[]){members}"
    if s.form == "str":
        text = str(value)
        return f"({p}_str){{{c_string(text)}, {len(text.encode())}}}"
    if s.form == "dtype":
        inner = f"{{{p.upper()}_{value.name.upper()}}}" if isinstance(value, m.DType) else "{0, 0, 0}"
        return f"({p}_opt_dtype){{{'false' if value is None else 'true'}, {inner}}}" if s.is_optional else f"({p}_dtype){inner}"
    if s.is_optional:
        return f"({p}_opt_{s.word}){{{'false, 0' if value is None else f'true, {number(value)}'}}}"
    return number(value)


def number(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return c_integer(value) if isinstance(value, int) else repr(value)
