"""Random calls that are right by their contract.

Everything is drawn freely first: which optional arguments are given, the alternative and dtype of each tensor, sizes, values. Then
what the contract forbids is mended, condition by condition: of ``x == y``, one side is set to the value of the other; of ``x or y``,
one is made true. What cannot be mended is drawn again. Tensors are made last, from the sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Protocol, TypeVar

from .. import model as m
from .call import Call, Tensor, Value, bare, compact, list_size, member_type, root_contract
from .values import DividesByNothing, Names, evaluate, integer, limited, subject
from .verdict import COMPARE, NOT_SUPPORTED, is_dimension, results, verdict

_T = TypeVar("_T")

SIZES = (1, 2, 3, 4, 1, 2, 6, 8, 5, 16, 32, 64, 0, 128, 130)  # of dimensions; the first ones are the simplest
NUMBERS = (1, 2, 3, 4, 8, 16, 32, 64, 128, 0, 100)  # for integers, where the contract takes them
TEXTS = ("", "nk", "any text")  # for strings of which nothing is said
MOST_ELEMENTS = 1 << 16  # of a tensor, the results included
MOST_MEMBERS = 4  # of a list
TRIES, ROUNDS = 200, 8


class Source(Protocol):
    """Where choices come from."""

    def integer(self, least: int, most: int) -> int: ...

    def choice(self, of: Sequence[_T]) -> _T:
        """The first one is the simplest."""
        ...


class CannotDraw(Exception):
    pass


class Adjust(Protocol):
    """Makes a drawn call one that the operator takes, where the contract does not say all: the contents of integers, for one. None:
    draw another one."""

    def __call__(self, call: Call, source: Source) -> Call | None: ...


def unchanged(call: Call, source: Source) -> Call | None:
    return call


def draw(op: m.Operator, source: Source, adjust: Adjust = unchanged, *, tries: int = TRIES, fp4_elements: bool = False) -> Call:
    """A call that is right by its contract. fp4_elements: FP4 may also come by elements, which torch does not have."""
    for _ in range(tries):
        call = _attempt(op, source, fp4_elements)
        if call is not None and is_right(call):
            adjusted = adjust(call, source)
            if adjusted is not None and is_right(adjusted):
                return adjusted
    raise CannotDraw(f"{op.symbol}: no right call in {tries} tries; a function `adjust` can make one")


def is_right(call: Call) -> bool:
    found = verdict(call)
    if found is not None and found.status != NOT_SUPPORTED:
        return False
    return all(t.extent()[1] <= MOST_ELEMENTS for t in results(call))


def break_require(op: m.Operator, require: m.Require, source: Source, *, fp4_elements: bool = False) -> Call | None:
    """A call that breaks this condition, and no other one as far as it can be told."""
    state = State(op, source)
    for _ in range(ROUNDS):
        if not state.mend() or not state.make(require.expr, False):
            return None
        if state.holds_but_for(require):
            return _built(state, fp4_elements)
    return None


def _attempt(op: m.Operator, source: Source, fp4_elements: bool) -> Call | None:
    state = State(op, source)
    return _built(state, fp4_elements) if state.mend() else None


def _built(state: State, fp4_elements: bool) -> Call | None:
    try:
        return state.build(fp4_elements)
    except (CannotDraw, DividesByNothing):
        return None


# ---- values --------------------------------------------------------------------------------------------------


def draw_number(contract: m.ValueContract, is_float: bool, source: Source) -> int | float:
    """A number, or a member of a list. Limits that depend on others are mended later."""
    least, most = bounds(contract)
    inside = [n for n in NUMBERS if least <= n <= most]
    number: int | float
    kind = source.integer(0, 9)
    if kind < 8 and inside:
        number = source.choice(inside)
    elif kind == 8:
        number = source.integer(max(least, -3), min(most, max(least, -3) + 300))
    else:
        number = source.choice([n for n in (least, most) if abs(n) < 2**63] or [least])
    return number + source.choice((0.0, 0.5)) if is_float and number < most else float(number) if is_float else number


def bounds(contract: m.ValueContract) -> tuple[int, int]:
    """The least and the greatest integer that a contract takes, without what depends on other arguments."""
    least, most = -(2**63), 2**63 - 1
    for op, limit in contract.compares:
        if isinstance(limit, m.Literal) and isinstance(limit.value, int):
            least = max(least, limit.value + (op == ">")) if op in (">", ">=", "==") else least
            most = min(most, limit.value - (op == "<")) if op in ("<", "<=", "==") else most
    return least, most


def draw_value(arg: m.Argument, contract: m.ValueContract, source: Source) -> Value:
    kind = member_type(arg)
    if isinstance(bare(arg.type), m.List):
        fixed = list_size(arg)
        lengths = (fixed,) if fixed is not None else contract.lengths or tuple(range(1, MOST_MEMBERS + 1)) + (0,)
        return tuple(draw_member(kind, contract, source) for _ in range(source.choice(lengths)))
    return draw_member(kind, contract, source)


def draw_member(kind: str, contract: m.ValueContract, source: Source) -> Value:
    if contract.one_of:
        return source.choice(contract.one_of)  # type: ignore[return-value]
    if kind == "bool":
        return source.choice((False, True))
    if kind == "str":
        return source.choice(TEXTS)
    if kind == "ScalarType":
        return source.choice(list(m.DType))
    return draw_number(contract, kind == "float", source)


DEFAULT_DTYPES = {
    "float64": "f64", "double": "f64", "float32": "f32", "float": "f32", "float16": "f16", "half": "f16", "bfloat16": "bf16",
    "int64": "i64", "long": "i64", "int32": "i32", "int": "i32", "int16": "i16", "short": "i16", "int8": "i8", "uint8": "u8",
    "bool": "bool",
}  # fmt: skip


def default_value(arg: m.Argument) -> Value:
    assert arg.default is not None
    value = arg.default.value
    if member_type(arg) == "ScalarType" and value is not None:
        return m.DType(DEFAULT_DTYPES[arg.default.text])
    size = list_size(arg)
    if size is not None and value is not None and not isinstance(value, tuple):
        return (value,) * size
    return float(value) if member_type(arg) == "float" and isinstance(value, int) else value  # type: ignore[return-value]


# ---- the state before there are tensors ------------------------------------------------------------------------


class State(Names):
    """What has been drawn so far: values, sizes, and of tensors the alternative and the dtype."""

    def __init__(self, op: m.Operator, source: Source):
        self.op, self.source = op, source
        self.args = {a.name: a for a in op.schema.args}
        self.contracts = {c.name: c for c in op.contracts}
        self.lets = {let.name: let.expr for let in op.lets}
        self.values: dict[str, Value] = {}
        self.present: dict[str, bool] = {}
        self.chosen: dict[str, tuple[int, m.DType | None]] = {}  # alternative and dtype of tensors with one of their own
        self.sizes = {d.name: source.choice(SIZES) for d in op.dimensions}
        self.free: dict[tuple[str, str, int], int] = {}  # sizes and strides that say only that they are what they are
        self.asked: list[tuple[str, str, int]] = []  # those that are being worked out
        for arg in op.schema.args:
            contract = self.contracts[arg.name]
            if isinstance(contract, m.TensorContract):
                self.present[arg.name] = not arg.is_optional or source.choice((False, True))
            else:
                self.values[arg.name] = self.draw_value(arg, contract)
        for contract in op.contracts:
            if isinstance(contract, m.TensorContract) and contract.like is None:
                self.choose(contract)

    def draw_value(self, arg: m.Argument, contract: m.ValueContract) -> Value:
        if arg.default is not None and self.source.choice((True, False)):
            return default_value(arg)
        if arg.is_optional and self.source.choice((False, False, True)):
            return None
        return draw_value(arg, contract, self.source)

    def choose(self, contract: m.TensorContract) -> None:
        """An alternative whose condition holds, with one of its dtypes."""
        possible = [i for i, a in enumerate(contract.alternatives) if a.when is None or self.is_true(a.when)]
        if not possible:
            possible = list(range(len(contract.alternatives)))
        i = self.source.choice(possible)
        dtypes = contract.alternatives[i].dtypes
        self.chosen[contract.name] = i, self.source.choice(dtypes) if dtypes else None

    def is_true(self, e: m.Expr) -> bool:
        try:
            return bool(evaluate(self, e))
        except (DividesByNothing, KeyError):
            return False

    # -- names -------------------------------------------------------------------------------------------------

    def bound_to(self, e: m.NameRef) -> int:
        return integer(self, self.lets[e.name]) if e.role == "let" else self.sizes[e.name]

    def element(self, name: str) -> m.DType | None:
        if not self.present[name]:
            return None
        root = root_contract(self.op, name)
        index, dtype = self.chosen[root.name]
        return dtype if dtype is not None else self.dtype(root.alternatives[index].dtype_of or "")

    def is_given(self, name: str) -> bool:
        return self.present[name] if name in self.present else self.values[name] is not None

    def alternative(self, name: str) -> m.Alternative:
        root = root_contract(self.op, name)
        return root.alternatives[self.chosen[root.name][0]]

    def rank(self, name: str) -> int:
        return len(self.alternative(name).shape or ()) if self.present[name] else 0

    def size(self, name: str, axis: int) -> int:
        shape = self.alternative(name).shape or ()
        return self.measured("size", name, axis, shape)

    def stride(self, name: str, axis: int) -> int:
        strides = self.alternative(name).strides
        if strides is not None:
            return self.measured("stride", name, axis, strides)
        shape = self.alternative(name).shape or ()
        return prod(max(integer(self, e), 1) for e in shape[axis % len(shape) + 1 :]) if shape else 0

    def measured(self, what: str, name: str, axis: int, exprs: tuple[m.Expr, ...]) -> int:
        """What the contract says of an axis. Where it says itself, as in ``max(n, dim(x, 0))``, a free number stands in."""
        if not self.present[name] or not -len(exprs) <= axis < len(exprs):
            return 0
        key = what, name, axis % len(exprs)
        if key in self.asked:
            return self.freely(key)
        self.asked.append(key)
        try:
            value = integer(self, exprs[axis])
        finally:
            self.asked.pop()
        if key in self.free:
            self.free[key] = value
        return value

    def freely(self, key: tuple[str, str, int]) -> int:
        what, name, axis = key
        if key not in self.free:
            if what == "size":
                self.free[key] = self.source.choice(SIZES)
            else:  # at least what lies inside, and now and then more
                inner = prod(max(integer(self, e), 1) for e in (self.alternative(name).shape or ())[axis + 1 :])
                self.free[key] = -(-inner // 16) * 16 + 16 * self.source.choice((0, 1)) if self.source.choice((True, False)) else inner
        return self.free[key]

    # -- mending -----------------------------------------------------------------------------------------------

    def mend(self) -> bool:
        """Whether all conditions hold now."""
        for _ in range(ROUNDS):
            broken = [(e, True) for e in self.conditions() if not self.is_true(e)]
            for e, wanted in broken:
                if not self.is_true(e):
                    self.make(e, wanted)
            for contract in self.op.contracts:
                if isinstance(contract, m.TensorContract) and contract.like is None and self.present[contract.name]:
                    when = self.alternative(contract.name).when
                    if when is not None and not self.is_true(when):
                        self.choose(contract)
            if not broken and all(self.is_true(e) for e in self.conditions()):
                return True
        return False

    def conditions(self) -> list[m.Expr]:
        found = []
        for contract in self.op.contracts:
            if isinstance(contract, m.ValueContract) and self.values[contract.name] is not None and not contract.each:
                kind = m.Kind.float if member_type(self.args[contract.name]) == "float" else m.Kind.int
                value = m.NameRef(contract.name, "arg", kind)
                found += [m.Binary(op, value, limit) for op, limit in contract.compares if not isinstance(limit, m.Literal)]
        return [*found, *(require.expr for require in self.op.requires)]

    def holds_but_for(self, broken: m.Require) -> bool:
        return not self.is_true(broken.expr) and all(self.is_true(r.expr) for r in self.op.requires if r is not broken)

    def make(self, e: m.Expr, wanted: bool) -> bool:
        """Changes what has been drawn such that e becomes true, or false. Whether there was something to change."""
        try:
            return self._make(e, wanted)
        except DividesByNothing:
            return False

    def _make(self, e: m.Expr, wanted: bool) -> bool:
        if self.is_true(e) == wanted:
            return True
        match e:
            case m.Unary("not", operand):
                return self._make(operand, not wanted)
            case m.Binary("and" | "or" as op, left, right):
                if wanted == (op == "and"):
                    return self._make(left, wanted) and self._make(right, wanted)
                return self._make(self.source.choice((right, left)), wanted)
            case m.Binary(op, left, right) if op in COMPARE:
                return self._compare(op if wanted else _OPPOSITES[op], left, right)
            case m.Call("given", _):
                return self.give(subject(e), wanted)
            case m.NameRef(name, "arg"):
                self.values[name] = wanted
                return True
        return False

    def _compare(self, op: str, left: m.Expr, right: m.Expr) -> bool:
        """Either side is set to a value that is right beside the other's."""
        sides = [(op, left, right), (_MIRRORED[op], right, left)]
        for op, target, other in sides if self.source.choice((True, False)) else reversed(sides):
            if isinstance(other, m.Literal) and isinstance(target, m.Literal):
                continue
            value = evaluate(self, other)
            if isinstance(value, bool) or not isinstance(value, int):
                if self.set_word(target, op, value):
                    return True
            elif self.set_integer(target, value + {"<": -1, ">": 1, "!=": self.source.choice((1, 2))}.get(op, 0)):
                return True
        return False

    def set_word(self, target: m.Expr, op: str, value: object) -> bool:
        """A string or a dtype, equal to value or not."""
        match target:
            case m.NameRef(name, "arg"):
                contract = self.contracts[name]
                assert isinstance(contract, m.ValueContract)
                words = [w for w in contract.one_of or (value, "") if COMPARE[op](w, value)]  # type: ignore[arg-type]
                if words:
                    self.values[name] = self.source.choice(words)  # type: ignore[assignment]
                return bool(words)
            case m.Call("dtype", _):
                return self.set_dtype(subject(target), lambda dtype: (dtype is value) == (op == "=="))
        return False

    def set_dtype(self, name: str, is_right: Callable[[m.DType], bool]) -> bool:
        if name in self.values:
            contract = self.contracts[name]
            assert isinstance(contract, m.ValueContract)
            fit = [d for d in contract.one_of or tuple(m.DType) if isinstance(d, m.DType) and is_right(d)]
            if fit:
                self.values[name] = self.source.choice(fit)
            return bool(fit)
        root = root_contract(self.op, name)
        fits = [(i, d) for i, a in enumerate(root.alternatives) for d in a.dtypes if is_right(d)]
        if fits:
            self.chosen[root.name] = self.source.choice(fits)
        return bool(fits)

    def set_integer(self, target: m.Expr, value: int) -> bool:
        """Makes an expression have a value, where there is one thing in it to set."""
        match target:
            case m.NameRef(name, "dim"):
                self.sizes[name] = value
                return 0 <= value <= MOST_ELEMENTS
            case m.NameRef(name, "arg"):
                self.values[name] = value
                return True
            case m.NameRef(name, _):
                return self.set_let(self.lets[name], value)
            case m.Index(name, index):
                members = list(self.members(name))
                if index < len(members):
                    members[index] = value
                    self.values[name] = tuple(members)
                return index < len(members)
            case m.Binary("%", left, right) if value == 0:  # a multiple
                by, now = integer(self, right), integer(self, left)
                up, down = (now + -now % by, now // by * by) if by > 0 else (-1, -1)
                return by > 0 and self.set_integer(left, self.source.choice((up, up, down)))
            case m.Binary("%", left, right):
                by = integer(self, right)
                return by > value and self.set_integer(left, integer(self, left) // by * by + value)
            case m.Binary("*", left, right):
                return self.set_factor(left, right, value) or self.set_factor(right, left, value)
            case m.Binary("+", left, right):
                return self.set_integer(left, limited(value - integer(self, right)))
            case m.Call("ceil", (left, right)):
                return self.set_integer(left, limited(value * integer(self, right)))
            case m.Call("len", _):
                return self.set_length(subject(target), value)
            case m.Call("rank", _):
                return self.set_rank(subject(target), value)
            case m.Call("dim", (_, m.Literal(int() as axis))):
                return self.set_size(subject(target), axis, value)
            case m.Call("stride", (_, m.Literal(int() as axis))):
                key = "stride", subject(target), axis
                self.free[key] = value
                return True
        return False

    def set_let(self, e: m.Expr, value: int) -> bool:
        """``let n = CONDITION ? 1 : 0`` by its condition, others by what they are made of."""
        if isinstance(e, m.Conditional):
            for branch, wanted in ((e.then, True), (e.otherwise, False)):
                if branch == m.Literal(value):
                    return self._make(e.condition, wanted)
            return self.set_integer(e.then if self.is_true(e.condition) else e.otherwise, value)
        return self.set_integer(e, value)

    def set_factor(self, target: m.Expr, factor: m.Expr, value: int) -> bool:
        by = integer(self, factor)
        return by > 0 and value % by == 0 and self.set_integer(target, value // by)

    def set_length(self, name: str, length: int) -> bool:
        arg, contract = self.args[name], self.contracts[name]
        assert isinstance(contract, m.ValueContract)
        if list_size(arg) is not None or not 0 <= length <= MOST_ELEMENTS or contract.lengths and length not in contract.lengths:
            return False
        members = self.members(name)[:length]
        more = (draw_member(member_type(arg), contract, self.source) for _ in range(length - len(members)))
        self.values[name] = (*members, *more)
        return True

    def set_rank(self, name: str, rank: int) -> bool:
        root = root_contract(self.op, name)
        fits = [(i, d) for i, a in enumerate(root.alternatives) if len(a.shape or ()) == rank for d in a.dtypes]
        if fits:
            self.chosen[root.name] = self.source.choice(fits)
        return bool(fits)

    def set_size(self, name: str, axis: int, value: int) -> bool:
        shape = self.alternative(name).shape or ()
        if not -len(shape) <= axis < len(shape):
            return False
        expr, key = shape[axis], ("size", name, axis % len(shape))
        if is_dimension(expr):
            return self.set_integer(expr, value)
        self.free[key] = value
        return value >= 0

    def give(self, name: str, wanted: bool) -> bool:
        """Makes an optional argument be there or not."""
        if name in self.present:
            self.present[name] = wanted
            return True
        contract = self.contracts[name]
        assert isinstance(contract, m.ValueContract)
        self.values[name] = draw_value(self.args[name], contract, self.source) if wanted else None
        return True

    # -- tensors -----------------------------------------------------------------------------------------------

    def build(self, fp4_elements: bool) -> Call:
        values: dict[str, Value] = {}
        for arg, contract in zip(self.op.schema.args, self.op.contracts):
            if isinstance(contract, m.ValueContract):
                values[arg.name] = self.values[arg.name]
            elif not self.present[arg.name]:
                values[arg.name] = None
            elif contract.like is not None and contract.like in contract.may_alias and self.source.choice((False, True)):
                same = values[contract.like]
                assert isinstance(same, Tensor)
                values[arg.name] = Tensor(same.dtype, same.shape, same.strides, same.is_pairs, memory=contract.like)
            else:
                values[arg.name] = self.tensor(contract, fp4_elements)
        return Call(self.op, values)

    def tensor(self, contract: m.TensorContract, fp4_elements: bool) -> Tensor:
        a, dtype = self.alternative(contract.name), self.dtype(contract.name)
        if dtype is None:
            raise CannotDraw(f"{contract.name} has no dtype")
        if a.shape is None:
            shape = tuple(self.source.choice(SIZES) for _ in range(self.source.integer(0, 3)))
        else:
            shape = tuple(self.size(contract.name, axis) for axis in range(len(a.shape)))
        if any(n < 0 for n in shape) or prod(shape) > MOST_ELEMENTS:
            raise CannotDraw(f"{contract.name} would have shape {shape}")
        layout = a.layout if contract.like is None else "any"
        if layout == "strides":
            strides = tuple(self.stride(contract.name, axis) for axis in range(len(shape)))
            return Tensor(dtype, shape, strides)
        if dtype is m.DType.f4e2m1:
            return self.fp4(shape, layout, fp4_elements)
        return Tensor(dtype, shape, self.strides(shape, layout, contract.access == "in"))

    def strides(self, shape: tuple[int, ...], layout: str, may_repeat: bool) -> tuple[int, ...]:
        """Compact; with gaps between rows; transposed; or, of what is only read, the same elements again and again."""
        rank = len(shape)
        kind = self.source.choice(("compact", "gaps", "transposed", "repeated"))
        if layout == "contiguous" or kind == "compact" or rank == 0:
            return compact(shape)
        order = list(range(rank))  # from the outermost dimension to the innermost one
        if kind == "transposed" and layout == "any":
            order.reverse()
        elif kind == "transposed" and rank > 2:
            order = [*reversed(order[:-1]), rank - 1]
        gap = self.source.integer(0, 3) if kind != "compact" else 0
        strides, step = [0] * rank, 1
        for place, axis in enumerate(reversed(order)):
            strides[axis] = step
            step = step * max(shape[axis], 1) + (gap if place == 0 else 0)
        if kind == "repeated" and may_repeat and layout == "any":
            strides[self.source.integer(0, rank - 1)] = 0
        return tuple(strides)

    def fp4(self, shape: tuple[int, ...], layout: str, by_elements: bool) -> Tensor:
        """Pairs lie along a dimension of even size, in the form that comes by elements along any."""
        forms = [(m.DType.f4e2m1, True), (m.DType.i8, True), (m.DType.u8, True)]
        form, is_pairs = self.source.choice(forms + [(m.DType.f4e2m1, False)] * by_elements)
        axes = [i for i, n in enumerate(shape) if n % 2 == 0 or not is_pairs]
        if layout != "any":
            axes = [i for i in axes if i == len(shape) - 1]
        if not axes:
            raise CannotDraw("no dimension of even size for pairs")
        packed = axes[-1] if self.source.choice((True, True, False)) else self.source.choice(axes)
        counts = tuple(n // 2 if i == packed and is_pairs else n for i, n in enumerate(shape))
        order = [i for i in range(len(shape)) if i != packed] + [packed]
        strides, step = [0] * len(shape), 1
        for axis in reversed(order):
            strides[axis] = step
            step *= max(counts[axis], 1)
            if axis == packed and not is_pairs:
                step += step % 2
        return Tensor(form, counts, tuple(strides), is_pairs and form is m.DType.f4e2m1)


_OPPOSITES = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
