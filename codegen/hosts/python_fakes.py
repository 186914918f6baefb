"""Fakes of operators that return tensors: Python functions that compute shape, strides and dtype of the results from the contracts.

Sizes stay what torch hands over, symbolic or not: nothing is turned into an int, so that one compiled graph serves every size.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..model import (
    TENSOR, Alternative, Argument, Base, Binary, Call, Conditional, Dimension, DType, Expr, Index, Literal, NameRef, Operator, Optional,
    TensorContract, Unary,
)  # fmt: skip
from ..record import record
from ..tree import expressions, names_in

DTYPES = {
    DType.f64: "torch.float64", DType.f32: "torch.float32", DType.f16: "torch.float16", DType.bf16: "torch.bfloat16",
    DType.f8e4m3: "torch.float8_e4m3fn", DType.f8e5m2: "torch.float8_e5m2", DType.ue8m0: "torch.float8_e8m0fnu",
    DType.f4e2m1: "torch.float4_e2m1fn_x2", DType.i64: "torch.int64", DType.i32: "torch.int32", DType.i16: "torch.int16",
    DType.i8: "torch.int8", DType.u8: "torch.uint8", DType.bool: "torch.bool",
}  # fmt: skip


@record
class Branch:
    """One alternative of a result. condition is "" for the one that is left."""

    condition: str
    expression: str


@record
class Result:
    name: str
    branches: tuple[Branch, ...]


@record
class Fake:
    parameters: tuple[str, ...]  # as they are declared
    tensors: tuple[str, ...]  # those that have to be on one device
    names: tuple[tuple[str, str], ...]  # dimensions and lets that the results need: name, expression
    results: tuple[Result, ...]


def fake(op: Operator) -> Fake | None:
    """The fake of an operator that returns new tensors and nothing else; None for the others."""
    returns = op.schema.returns
    if not returns or op.returns_views or any(r.type != TENSOR for r in returns):
        return None
    results = [c for c in op.results if isinstance(c, TensorContract)]
    definitions = definitions_of(op)
    needed = needed_names(results, definitions)
    return Fake(
        parameters=tuple(parameter(a) for a in op.schema.args),
        tensors=tuple(c.name for c in op.contracts if isinstance(c, TensorContract) and not c.on_cpu),
        names=tuple((name, text) for name, (_, text) in definitions.items() if name in needed),
        results=tuple(Result(c.name, branches(op, c)) for c in results),
    )


def parameter(arg: Argument) -> str:
    if arg.default is None:
        return f"{arg.name}: Any"
    bare = arg.type.elem if isinstance(arg.type, Optional) else arg.type
    is_dtype = bare == Base("ScalarType") and arg.default.value is not None
    return f"{arg.name}: Any = {f'torch.{arg.default.text}' if is_dtype else repr(arg.default.value)}"


# ---- names ---------------------------------------------------------------------------------------------------


def definitions_of(op: Operator) -> dict[str, tuple[tuple[Expr, ...], str]]:
    """Every dimension and let: the expressions it depends on, and how Python computes it."""
    contracts = {c.name: c for c in op.contracts if isinstance(c, TensorContract)}
    result: dict[str, tuple[tuple[Expr, ...], str]] = {}
    for d in op.dimensions:
        result[d.name] = ((), size(d, contracts[d.arg]))
    for let in op.lets:
        result[let.name] = ((let.expr,), spell(let.expr))
    return result


def size(d: Dimension, contract: TensorContract) -> str:
    """A dimension, read off the tensor that defines it: the same axis in every alternative, counted from either end."""
    has_fp4 = any(DType.f4e2m1 in a.dtypes for a in contract.alternatives)
    shape = f"_binding.shape_in_elements({d.arg})" if has_fp4 else f"{d.arg}.shape"
    ranks = [len(a.shape) if a.shape is not None else 0 for a in contract.alternatives]
    if len(set(d.axes)) == 1:
        return f"{shape}[{d.axes[0]}]"
    from_end = {axis - rank for axis, rank in zip(d.axes, ranks)}
    if len(from_end) == 1:
        return f"{shape}[{from_end.pop()}]"
    text = f"{shape}[{d.axes[-1]}]"
    for axis, alternative in reversed(list(zip(d.axes, contract.alternatives))[:-1]):
        text = f"{shape}[{axis}] if {is_chosen(d.arg, alternative)} else {text}"
    return text


def is_chosen(arg: str, alternative: Alternative) -> str:
    """The condition that makes this alternative of an argument the one that counts."""
    parts = [f"{arg}.dim() == {len(alternative.shape)}"] if alternative.shape is not None else []
    if alternative.dtypes:
        parts.append(f"{arg}.dtype in ({', '.join(DTYPES[d] for d in alternative.dtypes)},)")
    if alternative.when is not None:
        parts.append(f"({spell(alternative.when)})")
    return " and ".join(parts)


def needed_names(
    results: list[TensorContract], definitions: dict[str, tuple[tuple[Expr, ...], str]], others: Iterable[Expr] = ()
) -> set[str]:
    """What shapes, strides and conditions of the results use, and other expressions, directly or through a let."""
    roots = [*(e for c in results for a in c.alternatives for e in expressions(a)), *others]
    todo = [name for e in roots for name in names_in(e)]
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        if name in definitions and name not in seen:
            seen.add(name)
            todo += [n for e in definitions[name][0] for n in names_in(e)]
    return seen


# ---- results -------------------------------------------------------------------------------------------------


def branches(op: Operator, contract: TensorContract) -> tuple[Branch, ...]:
    """The alternatives in order. The last one has no condition: the library refuses what none of them allows."""
    device = first_tensor(op)
    if contract.like is not None:
        return (Branch("", f"torch.empty({contract.like}.shape, dtype={contract.like}.dtype, device={device}.device)"),)
    result: list[Branch] = []
    for i, a in enumerate(contract.alternatives):
        is_last = i == len(contract.alternatives) - 1
        result.append(Branch("" if is_last or a.when is None else spell(a.when), empty(a, device)))
        if a.when is None:
            break
    return tuple(result)


def first_tensor(op: Operator) -> str:
    """The argument whose device is that of the call."""
    required = [c for a, c in zip(op.schema.args, op.contracts) if isinstance(c, TensorContract) and not a.is_optional]
    return next((c.name for c in required if not c.on_cpu), required[0].name)


def empty(a: Alternative, device: str) -> str:
    assert a.shape is not None, "the parser refuses a result of any rank"
    shape = f"({', '.join(spell(e) for e in a.shape)}{',' if len(a.shape) == 1 else ''})"
    dtype = f"_binding.dtype_of({a.dtype_of})" if a.dtype_of is not None else DTYPES[a.dtypes[0]]
    where = f"dtype={dtype}, device={device}.device"
    if a.strides is None:
        return call("torch.empty", [shape, where])
    strides = f"({', '.join(spell(e) for e in a.strides)}{',' if len(a.strides) == 1 else ''})"
    return call("torch.empty_strided", [shape, strides, where])


def call(function: str, arguments: list[str]) -> str:
    """A call on one line, or with its arguments on lines of their own when that would be long."""
    line = f"{function}({', '.join(arguments)})"
    return line if len(line) <= 100 else "\n".join([f"{function}(", *(f"    {a}," for a in arguments), ")"])


# ---- expressions ---------------------------------------------------------------------------------------------

CONDITIONAL, OR, AND, NOT, COMPARE, SUM, PRODUCT, UNARY, ATOM = range(9)
LEVELS = {"or": OR, "and": AND, "+": SUM, "-": SUM, "*": PRODUCT, "//": PRODUCT, "%": PRODUCT}


def spell(e: Expr, level: int = CONDITIONAL) -> str:
    """The expression in Python; in parentheses when it binds less than level asks for."""
    text, own = spell_and_level(e)
    return f"({text})" if own < level else text


def spell_and_level(e: Expr) -> tuple[str, int]:
    if isinstance(e, Literal):
        if isinstance(e.value, DType):
            return DTYPES[e.value], ATOM
        is_negative = isinstance(e.value, int) and not isinstance(e.value, bool) and e.value < 0
        return repr(e.value), UNARY if is_negative else ATOM
    if isinstance(e, NameRef):
        return e.name, ATOM
    if isinstance(e, Index):
        return f"{e.name}[{e.index}]", ATOM
    if isinstance(e, Call):
        return spell_call(e)
    if isinstance(e, Unary):
        if e.op == "not" and isinstance(e.operand, Call) and e.operand.function == "given":
            return f"{named(e.operand)} is None", COMPARE
        return (f"not {spell(e.operand, NOT)}", NOT) if e.op == "not" else (f"-{spell(e.operand, UNARY)}", UNARY)
    if isinstance(e, Conditional):
        text = f"{spell(e.then, OR)} if {spell(e.condition, OR)} else {spell(e.otherwise)}"
        return text, CONDITIONAL
    fp4 = fp4_tensor(e)
    if fp4 is not None:
        return f"{'not ' if e.op == '!=' else ''}_binding.is_fp4({fp4})", NOT if e.op == "!=" else ATOM
    own = LEVELS.get(e.op, COMPARE)
    left = COMPARE + 1 if own == COMPARE else own
    return f"{spell(e.left, left)} {e.op} {spell(e.right, own + 1)}", own


def fp4_tensor(e: Binary) -> str | None:
    """x of ``dtype(x) == f4e2m1``, where x may also be bytes that hold pairs."""
    is_fp4 = e.right == Literal(DType.f4e2m1)
    if e.op in ("==", "!=") and is_fp4 and isinstance(e.left, Call) and e.left.function == "dtype":
        return named(e.left)
    return None


def named(e: Call) -> str:
    """The argument that ``dim(x, 0)`` and its like speak of."""
    name = e.args[0]
    assert isinstance(name, Literal)
    return str(name.value)


def spell_call(e: Call) -> tuple[str, int]:
    if e.function == "ceil":
        return ceil(spell(e.args[0], UNARY), spell(e.args[1], UNARY)), UNARY
    if e.function == "align":
        y = spell(e.args[1], UNARY)
        return f"{ceil(spell(e.args[0], UNARY), y)} * {y}", PRODUCT
    if e.function in ("min", "max"):
        return f"torch.sym_{e.function}({spell(e.args[0])}, {spell(e.args[1])})", ATOM
    x = named(e)
    if e.function == "sum_ceil":
        return f"_binding.sum_ceil({x}, {spell(e.args[1])})", ATOM
    if e.function == "given":
        return f"{x} is not None", COMPARE
    if e.function == "len":
        return f"len({x})", ATOM
    if e.function == "dtype":
        return f"_binding.dtype_of({x})", ATOM
    if e.function == "rank":
        return f"{x}.dim()", ATOM
    axis = spell(e.args[1])
    return (f"{x}.shape[{axis}]" if e.function == "dim" else f"{x}.stride({axis})"), ATOM


def ceil(x: str, y: str) -> str:
    return f"-(-{x} // {y})"
