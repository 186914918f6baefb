"""What a call must come to, by its contract: nothing to object, or a status and a message.

The claims of a contract are checked in stages. Within a stage they come in the order of the arguments, except that what a claim
depends on is checked before it. So every call, whatever is wrong with it, has one message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .. import model as m
from ..printing import format_expr, format_literal
from ..record import record
from ..tree import ARITHMETIC, children, walk
from .call import ELSEWHERE, MOST_DIMENSIONS, Call, Tensor, bare, compact, list_size, member_type, root_contract
from .values import DividesByNothing, Names, evaluate, integer, subject

INVALID_ARGUMENT, INVALID_DTYPE, NOT_SUPPORTED = "INVALID_ARGUMENT", "INVALID_DTYPE", "NOT_SUPPORTED"

STAGES = ("take", "tensors", "values", "bind", "agree", "lets", "limits", "requires", "shapes", "overlaps")
MOST_ELEMENTS = (2**63 - 1) // 128  # offsets in bits fit in 64 bits too
SHOWN_TEXT = 64  # bytes of a string that a message shows


@record
class Verdict:
    status: str
    message: str


class Refused(Exception):
    def __init__(self, message: str, status: str = INVALID_ARGUMENT):
        super().__init__(message)
        self.verdict = Verdict(status, message)


def verdict(call: Call) -> Verdict | None:
    """None: the call is right by its contract. An operator without an implementation says so then."""
    try:
        results(call)
    except Refused as refused:
        return Verdict(refused.verdict.status, f"{call.op.symbol}: {refused.verdict.message}")
    except DividesByNothing as e:
        text = f"{format_expr(e.divisor)} is {e.got}, expected > 0, since {format_expr(e.division)} divides by it"
        return Verdict(INVALID_ARGUMENT, f"{call.op.symbol}: {text}")
    if not call.op.backends:
        return Verdict(NOT_SUPPORTED, f"{call.op.symbol}: not implemented: {call.op.refusal}")
    return None


def results(call: Call) -> list[Tensor]:
    """What a valid call returns, as far as it is tensors."""
    checker = _Checker(call)
    checker.run()
    return [checker.result(c) for c in call.op.results if isinstance(c, m.TensorContract)]


# ---- tensors as contracts see them ---------------------------------------------------------------------------


@record
class View:
    """A tensor that has passed its own checks. FP4 counts elements, whatever form it came in."""

    dtype: m.DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    alternative: int
    tensor: Tensor

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape


def bracketed(values: tuple[int, ...] | list[int]) -> str:
    return f"[{', '.join(map(str, values))}]"


def expressions_text(exprs: tuple[m.Expr, ...]) -> str:
    return f"[{', '.join(format_expr(e) for e in exprs)}]"


def words_or(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


def value_text(value: object) -> str:
    """A value in a message."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "none"  # the dtype of what is not there
    if isinstance(value, float):
        return f"{value:g}"
    return f'"{value}"' if isinstance(value, str) else value.value if isinstance(value, m.DType) else str(value)


def alternatives_text(members: tuple[object, ...]) -> str:
    return words_or([format_literal(member) for member in members])


COMPARE: dict[str, Callable[[float, float], bool]] = {
    "==": lambda x, y: x == y, "!=": lambda x, y: x != y, "<": lambda x, y: x < y, "<=": lambda x, y: x <= y,
    ">": lambda x, y: x > y, ">=": lambda x, y: x >= y,
}  # fmt: skip


# ---- the checks ----------------------------------------------------------------------------------------------


class _Checker(Names):
    def __init__(self, call: Call):
        self.op, self.values, self.plan = call.op, call.values, _plan(call.op)
        self.args = self.plan.args
        self.dimensions = {d.name: d for d in self.op.dimensions}
        self.views: dict[str, View] = {}
        self.bound: dict[str, int] = {}  # dimensions and lets

    def run(self) -> None:
        for step in self.plan.ordered:
            step.run(self)

    # -- names -------------------------------------------------------------------------------------------------

    def bound_to(self, e: m.NameRef) -> int:
        return self.bound[e.name]

    def element(self, name: str) -> m.DType | None:
        return self.views[name].dtype if name in self.views else None

    def is_given(self, name: str) -> bool:
        return self.values[name] is not None

    def rank(self, name: str) -> int:
        return len(self.views[name].shape) if name in self.views else 0

    def size(self, name: str, axis: int) -> int:
        return self.along(name, axis, lambda view: view.shape)

    def stride(self, name: str, axis: int) -> int:
        return self.along(name, axis, lambda view: view.strides)

    def along(self, name: str, axis: int, numbers: Callable[[View], tuple[int, ...]]) -> int:
        of = numbers(self.views[name]) if name in self.views else ()
        i = axis + len(of) if axis < 0 else axis
        return of[i] if 0 <= i < len(of) else 0

    def integers(self, exprs: tuple[m.Expr, ...]) -> tuple[int, ...]:
        return tuple(integer(self, e) for e in exprs)

    # -- tensors -----------------------------------------------------------------------------------------------

    def tensor(self, contract: m.TensorContract, root: m.TensorContract) -> None:
        name, tensor = contract.name, self.values[contract.name]
        enabled = [
            i
            for i, a in enumerate(root.alternatives)
            if contract.like is not None or a.when is None or evaluate(self, a.when) is True
        ]
        expected = " | ".join(root.alternatives[i].text for i in enabled) or "no tensor with these other arguments"
        if tensor is None:
            if not self.args[name].is_optional:
                raise Refused(f"{name} is NULL, expected {expected}")
            return
        assert isinstance(tensor, Tensor)
        self.geometry(name, tensor)
        fits = [(i, taken) for i in enabled if (taken := self.taken_as(root.alternatives[i], tensor.dtype)) is not None]
        of_rank = [(i, taken) for i, taken in fits if has_rank(root.alternatives[i], len(tensor.shape))]
        if not fits:
            raise Refused(f"{name} has dtype {tensor.dtype.value}, expected {expected}", INVALID_DTYPE)
        if not of_rank and not (len(fits) == 1 and contract.name in self.plan.shaped_at_once):
            raise Refused(f"{name} has shape {bracketed(tensor.shape)}, expected {expected}")
        alternative, dtype = (of_rank or fits)[0]
        if tensor.is_elsewhere:
            raise Refused(f"{name} is on a device of type {ELSEWHERE}, expected the CPU or a CUDA device")
        shape, strides = tensor.shape, tensor.strides
        if dtype is m.DType.f4e2m1:
            shape, strides = fp4_geometry(name, tensor)
        if 0 not in shape and not tensor.has_data:
            raise Refused(f"{name} has data NULL, expected memory for shape {bracketed(tensor.shape)}")
        self.views[name] = View(dtype, shape, strides, alternative, tensor)

    def geometry(self, name: str, tensor: Tensor) -> None:
        rank = len(tensor.shape)
        if rank > MOST_DIMENSIONS:
            raise Refused(f"{name} has ndim = {rank}, expected 0 to {MOST_DIMENSIONS}")
        count, reach = 1, 0
        for n, stride in reversed(list(zip(tensor.shape, tensor.strides))):
            if n < 0:
                raise Refused(f"{name} has shape {bracketed(tensor.shape)}, expected no negative size")
            count *= max(n, 1)
            reach += (n - 1) * abs(stride) if n > 1 else 0
            if count > MOST_ELEMENTS or reach > MOST_ELEMENTS or n > 1 and abs(stride) > MOST_ELEMENTS:
                shape, strides = bracketed(tensor.shape), bracketed(tensor.strides)
                raise Refused(f"{name} has shape {shape} and strides {strides}, too large for 64-bit offsets")

    def taken_as(self, a: m.Alternative, dtype: m.DType) -> m.DType | None:
        """The element type under which an alternative takes a tensor: FP4 also comes as bytes."""
        takes = a.dtypes if a.dtype_of is None else (self.dtype(a.dtype_of),)
        if dtype in takes:
            return dtype
        return m.DType.f4e2m1 if dtype in (m.DType.i8, m.DType.u8) and m.DType.f4e2m1 in takes else None

    def alternative(self, contract: m.TensorContract) -> m.Alternative | None:
        """The one that was chosen for a tensor that is there."""
        view = self.views.get(contract.name)
        return None if view is None else contract.alternatives[view.alternative]

    def agree(self, contract: m.TensorContract) -> None:
        """The dimensions that other tensors have defined: first those that stand at the same place in all alternatives."""
        chosen = self.alternative(contract)
        if chosen is None:
            return
        view = self.views[contract.name]
        claims = [self.claims(contract, i) for i in range(len(contract.alternatives))]
        shared = [claim for claim in claims[0] if all(claim in other for other in claims)]
        own = [claim for claim in claims[view.alternative] if claim not in shared]
        for axis, name in (*shared, *own):
            if view.shape[axis] != self.bound[name]:
                got, source = view.shape[axis], self.dimensions[name].arg
                raise Refused(f"{contract.name} has {name} = {got}, expected {self.bound[name]} to match {source}")

    def claims(self, contract: m.TensorContract, i: int) -> list[tuple[int, str]]:
        found = []
        for axis, e in enumerate(contract.alternatives[i].shape or ()):
            if isinstance(e, m.NameRef) and e.role == "dim":
                d = self.dimensions[e.name]
                if not (d.arg == contract.name and d.axes[i] == axis):
                    found.append((axis, e.name))
        return found

    def shape(self, contract: m.TensorContract) -> None:
        chosen = self.alternative(contract)
        if chosen is None or not is_computed(contract.name, chosen):
            return
        view, sizes = self.views[contract.name], chosen.shape or ()
        expected = self.integers(sizes)
        if view.shape != expected:
            got, text = bracketed(view.shape), expressions_text(sizes)
            raise Refused(f"{contract.name} has shape {got}, expected {bracketed(expected)} = {text}")

    def layout(self, contract: m.TensorContract) -> None:
        chosen = self.alternative(contract)
        if chosen is None or chosen.layout == "any":
            return
        view = self.views[contract.name]
        got = f"{contract.name} has strides {bracketed(view.strides)}"
        if chosen.layout == "rows":
            if view.shape and view.shape[-1] > 1 and view.strides[-1] != 1 and not view.is_empty:
                raise Refused(f"{got}, expected stride 1 in the last dimension")
            return
        expected, text = compact(view.shape), "contiguous"
        if chosen.layout == "strides":
            expected, text = self.integers(chosen.strides or ()), expressions_text(chosen.strides or ())
        is_right = all(n <= 1 or s == e for n, s, e in zip(view.shape, view.strides, expected))
        if not is_right and not view.is_empty:
            raise Refused(f"{got}, expected {bracketed(expected)} = {text}")

    def like(self, name: str, other: str) -> None:
        view, model = self.views.get(name), self.views.get(other)
        if view is None or model is None:
            return
        if view.dtype is not model.dtype:
            raise Refused(f"{name} has dtype {view.dtype.value}, expected {model.dtype.value} to match {other}", INVALID_DTYPE)
        if view.shape != model.shape:
            raise Refused(f"{name} has shape {bracketed(view.shape)}, expected {bracketed(model.shape)} to match {other}")

    def overlaps(self, tensors: list[m.TensorContract]) -> None:
        """Tensors share memory from the first element on, or not at all: calls as data have no other way."""
        written = [c for c in tensors if c.access != "in"]
        for i, contract in enumerate(written):
            view = self.views.get(contract.name)
            if view is None or view.is_empty:
                continue
            if overlaps_itself(view):
                shape, strides = bracketed(view.shape), bracketed(view.strides)
                raise Refused(f"{contract.name} has shape {shape} and strides {strides}, expected elements that do not overlap")
            for other in tensors:
                there = self.views.get(other.name)
                if other is contract or other in written[:i] or there is None or there.is_empty:
                    continue
                if (view.tensor.memory or contract.name) != (there.tensor.memory or other.name):
                    continue
                may_alias = contract.name in other.may_alias or other.name in contract.may_alias
                if not may_alias:
                    raise Refused(f"{contract.name} overlaps {other.name}, expected separate memory")
                if not is_same(view, there):
                    raise Refused(f"{contract.name} overlaps {other.name}, expected separate memory or exactly the same tensor")

    def result(self, contract: m.TensorContract) -> Tensor:
        if contract.like is not None:
            view = self.views[contract.like]
            return Tensor(view.dtype, view.shape, compact(view.shape))
        fitting = [a for a in contract.alternatives if a.when is None or evaluate(self, a.when)]
        if not fitting:
            raise Refused(f"{contract.name} has no alternative in its contract for these arguments")
        a = fitting[0]
        dtype = self.dtype(a.dtype_of) if a.dtype_of is not None else a.dtypes[0]
        shape = self.integers(a.shape or ())
        assert dtype is not None
        for axis, n in enumerate(shape):
            if n < 0:
                raise Refused(f"the result would have size {n} in dimension {axis}")
        return Tensor(dtype, shape, compact(shape) if a.strides is None else self.integers(a.strides))

    # -- values ------------------------------------------------------------------------------------------------

    def take(self, arg: m.Argument) -> None:
        """A list of fixed length. In C there is no other; torch leaves the length to its host."""
        value, size = self.values[arg.name], list_size(arg)
        if isinstance(value, tuple) and len(value) != size:
            raise Refused(f"{arg.name} needs {size} ints, got {len(value)}")

    def value(self, arg: m.Argument, contract: m.ValueContract, compares: list[tuple[str, m.Expr]]) -> None:
        name, value = contract.name, self.values[contract.name]
        if value is None:
            return
        if member_type(arg) == "ScalarType":
            if contract.one_of and value not in contract.one_of:
                raise Refused(f"{name} is {value_text(value)}, expected {alternatives_text(contract.one_of)}", INVALID_DTYPE)
            return
        if isinstance(bare(arg.type), m.List):
            assert isinstance(value, tuple)
            if contract.lengths and len(value) not in contract.lengths:
                raise Refused(f"{name} has length {len(value)}, expected {words_or([str(n) for n in contract.lengths])}")
        members = [(f"{name}[{i}]", v) for i, v in enumerate(value)] if contract.each and isinstance(value, tuple) else [(name, value)]
        for called, member in members:
            if compares and not all(COMPARE[op](member, integer(self, limit)) for op, limit in compares):  # type: ignore[arg-type]
                raise Refused(f"{called} is {value_text(member)}, expected {range_text(compares)}")
            if contract.one_of and member not in contract.one_of:
                shown = value_text(member)
                if isinstance(member, str) and len(member) > SHOWN_TEXT:
                    shown = f'"{member[:SHOWN_TEXT]}..."'
                raise Refused(f"{called} is {shown}, expected {alternatives_text(contract.one_of)}")

    def limits(self, contract: m.ValueContract, compares: list[tuple[str, m.Expr]]) -> None:
        value = self.values[contract.name]
        if value is None:
            return
        called = f"{contract.name}[i]" if contract.each else contract.name
        for op, limit in compares:
            bound = integer(self, limit)
            for member in value if contract.each and isinstance(value, tuple) else (value,):
                if not COMPARE[op](member, bound):  # type: ignore[arg-type]
                    got = [f"{called} = {value_text(member)}", *self.leaves(limit)]
                    raise Refused(f"requires {called} {op} {format_expr(limit)}, got {', '.join(got)}")

    def bind(self, d: m.Dimension) -> None:
        view = self.views.get(d.arg)
        self.bound[d.name] = view.shape[d.axes[view.alternative]] if view is not None else 0

    def compute(self, let: m.Let) -> None:
        self.bound[let.name] = integer(self, let.expr)

    def require(self, require: m.Require) -> None:
        if not evaluate(self, require.expr):
            got = self.leaves(require.expr)
            text = require.message or f"requires {require.text}"
            raise Refused(text + (f", got {', '.join(got)}" if got else ""))

    def leaves(self, expr: m.Expr) -> list[str]:
        """The names of an expression with their values, each once, in order."""
        found: dict[str, str] = {}

        def visit(e: m.Expr) -> None:
            if isinstance(e, (m.NameRef, m.Index)) or isinstance(e, m.Call) and e.function not in ARITHMETIC:
                found.setdefault(format_expr(e), value_text(evaluate(self, e)))
                return
            for child in children(e):
                visit(child)

        visit(expr)
        return [f"{name} = {value}" for name, value in found.items()]


# ---- their order ---------------------------------------------------------------------------------------------


@record
class _Step:
    stage: str
    run: Callable[[_Checker], None]
    needs: frozenset[str]
    provides: str = ""


class _Plan:
    """The checks of an operator in their order."""

    def __init__(self, op: m.Operator):
        self.op = op
        self.args = {a.name: a for a in op.schema.args}
        self.contracts = {c.name: c for c in op.contracts}
        self.measured = {
            subject(e)
            for root in self.all_expressions()
            for e in walk(root)
            if isinstance(e, m.Call) and e.function in ("dim", "stride", "rank")
        }
        self.shaped_at_once = {c.name for c in op.contracts if isinstance(c, m.TensorContract) and self.is_shaped_at_once(c)}
        steps = sorted(self.steps(), key=lambda step: STAGES.index(step.stage))
        providers = {step.provides: step for step in steps if step.provides}
        self.ordered: list[_Step] = []
        seen: set[int] = set()

        def put(step: _Step) -> None:
            if id(step) in seen:
                return
            seen.add(id(step))
            for need in sorted(step.needs & providers.keys()):
                put(providers[need])
            self.ordered.append(step)

        for step in steps:
            put(step)

    def steps(self) -> Iterator[_Step]:
        for arg in self.op.schema.args:
            contract = self.contracts[arg.name]
            if isinstance(contract, m.TensorContract):
                yield from self.tensor_steps(contract)
            else:
                yield from self.value_steps(arg, contract)
        for d in self.op.dimensions:
            yield _Step("bind", lambda c, d=d: c.bind(d), frozenset({f"tensor:{d.arg}"}), f"dim:{d.name}")  # type: ignore[misc]
        for let in self.op.lets:
            yield _Step("lets", lambda c, let=let: c.compute(let), self.needs(let.expr), f"let:{let.name}")  # type: ignore[misc]
        for require in self.op.requires:
            yield _Step("requires", lambda c, r=require: c.require(r), self.needs(require.expr))  # type: ignore[misc]
        tensors = [c for c in self.op.contracts if isinstance(c, m.TensorContract)]
        yield _Step("overlaps", lambda c: c.overlaps(tensors), frozenset(f"tensor:{c.name}" for c in tensors))

    def tensor_steps(self, contract: m.TensorContract) -> Iterator[_Step]:
        name, root = contract.name, root_contract(self.op, contract.name)
        before = {f"{'tensor' if self.args[a.dtype_of].is_tensor else 'value'}:{a.dtype_of}" for a in root.alternatives if a.dtype_of}
        if contract.like is not None and before:
            before.add(f"tensor:{root.name}")
        before |= self.needs(*(a.when for a in contract.alternatives if a.when is not None))
        yield _Step("tensors", lambda c: c.tensor(contract, root), frozenset(before), f"tensor:{name}")
        own = frozenset({f"tensor:{name}"})
        if contract.like is not None:
            yield _Step("shapes", lambda c: c.like(name, contract.like or ""), own | {f"tensor:{contract.like}"})
            return
        sizes = [e for a in contract.alternatives for e in a.shape or ()]
        strides = [e for a in contract.alternatives for e in a.strides or ()]
        computed = own | self.needs(*sizes, *strides)
        if name not in self.shaped_at_once:
            named = self.needs(*(e for e in sizes if is_dimension(e)))
            yield _Step("agree", lambda c: c.agree(contract), own | named)
        yield _Step("shapes", lambda c: c.shape(contract), computed)
        yield _Step("shapes", lambda c: c.layout(contract), computed)

    def value_steps(self, arg: m.Argument, contract: m.ValueContract) -> Iterator[_Step]:
        if list_size(arg) is not None:
            yield _Step("take", lambda c: c.take(arg), frozenset())
        later = [(op, limit) for op, limit in contract.compares if self.needs(limit)]
        now = [(op, limit) for op, limit in contract.compares if not self.needs(limit)]
        yield _Step("values", lambda c: c.value(arg, contract, now), frozenset(), f"value:{arg.name}")
        if later:
            needs = self.needs(*(limit for _, limit in later)) | {f"value:{arg.name}"}
            yield _Step("limits", lambda c: c.limits(contract, later), needs)

    def is_shaped_at_once(self, contract: m.TensorContract) -> bool:
        """Whether rank and sizes are checked together: all alternatives compute some size, and nothing is derived from the shape."""
        return (
            contract.like is None
            and contract.name not in self.measured
            and all(d.arg != contract.name for d in self.op.dimensions)
            and all(is_computed(contract.name, a) for a in contract.alternatives)
        )

    def all_expressions(self) -> Iterator[m.Expr]:
        for contract in (*self.op.contracts, *self.op.results):
            if isinstance(contract, m.ValueContract):
                yield from (limit for _, limit in contract.compares)
                continue
            for a in contract.alternatives:
                yield from (*(a.shape or ()), *(a.strides or ()), *((a.when,) if a.when is not None else ()))
        yield from (let.expr for let in self.op.lets)
        yield from (require.expr for require in self.op.requires)

    def needs(self, *exprs: m.Expr) -> frozenset[str]:
        """What has to be known before the expressions have a value."""
        found = set()
        for e in (e for expr in exprs for e in walk(expr)):
            match e:
                case m.NameRef(name, "arg") | m.Index(name, _):
                    found.add(f"value:{name}")
                case m.NameRef(name, role):
                    found.add(f"{role}:{name}")
                case m.Call(function) if function not in ARITHMETIC:
                    name = subject(e)
                    found.add(f"{'tensor' if self.args[name].is_tensor else 'value'}:{name}")
        return frozenset(found)


_PLANS: dict[int, _Plan] = {}


def _plan(op: m.Operator) -> _Plan:
    """Made once: an operator has thousands of calls. A plan keeps its operator, so that no other one gets its id."""
    if id(op) not in _PLANS:
        _PLANS[id(op)] = _Plan(op)
    return _PLANS[id(op)]


# ---- claims that need no call ---------------------------------------------------------------------------------


def is_dimension(e: m.Expr) -> bool:
    return isinstance(e, m.NameRef) and e.role == "dim"


def is_computed(name: str, a: m.Alternative) -> bool:
    """Whether some size is more than a dimension, or than itself."""
    return any(
        not is_dimension(e) and e != m.Call("dim", (m.Literal(name), m.Literal(axis))) for axis, e in enumerate(a.shape or ())
    )


def has_rank(a: m.Alternative, rank: int) -> bool:
    return a.shape is None or len(a.shape) == rank


def range_text(compares: list[tuple[str, m.Expr]]) -> str:
    if [op for op, _ in compares] == [">=", "<="]:
        return " .. ".join(format_expr(limit) for _, limit in compares)
    return " and ".join(f"{op} {format_expr(limit)}" for op, limit in compares)


def fp4_geometry(name: str, tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides in elements. The pairs lie along the last dimension of stride 1, or one of size 1 where none has it."""
    shape, strides = list(tensor.shape), list(tensor.strides)
    along = [i for i, s in enumerate(strides) if s == 1] or [i for i, n in enumerate(shape) if n <= 1]
    if not along:
        raise Refused(f"{name} has strides {bracketed(strides)}, expected 1 along the dimension that holds the pairs of f4e2m1")
    packed = along[-1]
    counts_pairs = tensor.dtype is not m.DType.f4e2m1 or tensor.is_pairs
    for i in range(len(shape)):
        if counts_pairs:
            shape[i] *= 2 if i == packed else 1
            strides[i] *= 2
        elif i != packed and strides[i] % 2 != 0:
            if shape[i] > 1:
                even = "expected even ones except along the dimension that holds the pairs of f4e2m1"
                raise Refused(f"{name} has strides {bracketed(tensor.strides)}, {even}")
            strides[i] = 0
    strides[packed] = 1
    return tuple(shape), tuple(strides)


def overlaps_itself(view: View) -> bool:
    """Walking the dimensions from the smallest stride up, each must step over all that the smaller ones cover."""
    covered = 1
    for stride, n in sorted((abs(s), n) for s, n in zip(view.strides, view.shape)):
        if n > 1:
            if stride < covered:
                return True
            covered += (n - 1) * stride
    return False


def is_same(x: View, y: View) -> bool:
    strides_are_same = all(n <= 1 or s == t for n, s, t in zip(x.shape, x.strides, y.strides))
    return x.dtype is y.dtype and x.shape == y.shape and strides_are_same
