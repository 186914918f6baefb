"""The torch host: a table of operators over the glue of bindings/torch, which calls torch's stable C shim.

For each operator the file has the owners of its slots, and a boxed function that reads them, calls the C library, and hands the results
back. What a slot holds and how it is read stands in bindings/torch/glue.h.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping

from ..model import TENSOR, Argument, Base, Library, List, Operator, Optional, Return, TensorContract, Type
from ..printing import format_type
from ..record import record
from . import Difference, Edit, Host, Render

WIDTH = 120  # columns of a line

SCALARS = {"Tensor": "Tensor", "int": "Int", "float": "Float", "bool": "Bool", "str": "Str", "ScalarType": "Dtype"}
LISTS = {"int": "Ints", "float": "Floats", "bool": "Bools"}
C_TYPES = {"int": "int64_t", "float": "double", "bool": "bool"}
TAKEN = "slots"  # by the constructor that takes the arguments


# ---- what torch's stable interface can carry -----------------------------------------------------------------


def refuse(item: Argument | Return) -> str | None:
    """Why torch's stable C shim cannot carry this argument or return, or None."""
    if item.name == TAKEN:
        return f"`{TAKEN}` is a name that the registration uses itself"
    if item.type == Base("SymInt"):
        return "torch's stable interface carries `SymInt` only since 2.13: write `int`"
    if isinstance(item, Return):
        if item.alias is not None or item.type == TENSOR or c_type(item.type) is not None:
            return None
        return f"torch's stable interface, as this host uses it, cannot return a `{format_type(item.type)}`"
    if owner(item.type) is None:
        return f"torch's stable interface, as this host uses it, cannot carry a `{format_type(item.type)}`"
    return None


def owner(t: Type) -> str | None:
    """The class of glue.h that owns a slot of this type."""
    if isinstance(t, Base):
        return SCALARS.get(t.name)
    if isinstance(t, List):
        return LISTS.get(t.elem.name) if isinstance(t.elem, Base) else None
    if isinstance(t, Optional):
        inner = owner(t.elem)
        return f"Optional<{inner}>" if inner is not None else None
    return None


def c_type(t: Type) -> str | None:
    """How the C library returns this: a number, or the items of a list."""
    t = t.elem if isinstance(t, List) and t.size is None else t
    return C_TYPES.get(t.name) if isinstance(t, Base) else None


# ---- operators -----------------------------------------------------------------------------------------------


@record
class Field:
    name: str
    owner: str


@record
class Function:
    """One operator as the template sees it."""

    name: str
    torch_name: str  # with the overload after a dot
    schema: tuple[str, ...]  # C strings that are one
    keys: str
    fields: tuple[Field, ...]
    initialisers: str  # of the fields
    call: str  # arguments of glue::Call's constructor
    options: tuple[str, ...]  # statements that fill the options struct
    results: tuple[str, ...]  # declarations
    spec_call: str  # of dg_<op>_out, "" when no tensor is returned
    run_call: str
    returns: tuple[str, ...]  # expressions for the slots of the results
    meta_call: str  # of an operator that takes tensors and returns nothing; "": Python has a fake, or none is needed
    refusal: str  # a C string, of an operator that C does not have
    is_in_python: bool  # views: the Python host implements them for every torch host


def function(p: str, op: Operator) -> Function:
    args, name = op.schema.args, f"{p}_{op.symbol}"
    required = [a for a in args if a.default is None]
    defaulted = [a for a in args if a.default is not None]
    has_tensors = any(a.is_tensor for a in args)
    passed = ["call.ctx()", *(read(p, a) for a in required)]
    options = ["&options"] if defaulted else []
    tensors = [f"result_{i}" for i, r in enumerate(op.schema.returns) if r.type == TENSOR]
    outs = [out for i, r in enumerate(op.schema.returns) for out in result_arguments(i, r)]
    return Function(
        name=op.symbol,
        torch_name=op.schema.name + (f".{op.schema.overload}" if op.schema.overload else ""),
        schema=c_strings(op.schema.text),
        keys="views" if op.returns_views else "devices" if has_tensors else "settings",
        fields=tuple(Field(a.name, owner(a.type) or "") for a in args),
        initialisers=fill("        : ", [f"{a.name}(slots[{i}])" for i, a in enumerate(args)], "") if args else "",
        call=call_arguments(op) if has_tensors else c_string(op.symbol),
        options=tuple(option(p, a) for a in defaulted),
        results=tuple(declaration(i, r) for i, r in enumerate(op.schema.returns)),
        spec_call=fill(f"    call.check({name}_out(", [*passed, *(f"{t}.spec()" for t in tensors), *options], "));")
        if tensors
        else "",
        run_call=fill(f"    call.check({name}(", [*passed, *outs, *options], "));"),
        returns=tuple(returned(i, r) for i, r in enumerate(op.schema.returns)),
        meta_call=fill(
            f'    check_all_meta("{op.symbol}", {{', [f'{{"{a.name}", args.{a.name}}}' for a in args if a.is_tensor], "});"
        )
        if has_tensors and not op.schema.returns
        else "",
        refusal=c_string(f"not implemented: {op.refusal}") if op.returns_views else "",
        is_in_python=op.returns_views and bool(op.backends),
    )


def call_arguments(op: Operator) -> str:
    """The name and the argument that says where the call runs: the first tensor that is not pinned to the CPU."""
    required = [
        (a.name, c) for a, c in zip(op.schema.args, op.contracts) if isinstance(c, TensorContract) and not a.is_optional
    ]
    free = [name for name, contract in required if not contract.on_cpu] or [name for name, _ in required]
    if not free:
        raise ValueError(f"{op.symbol}: an operator with tensors needs one that is always given, to know the device")
    return f'"{op.symbol}", "{free[0]}", args.{free[0]}'


def read(p: str, arg: Argument) -> str:
    """The argument as a parameter of the C function."""
    t = arg.type
    if isinstance(t, List) and t.size is not None:
        return f'call.read_array<{t.size}>("{arg.name}", args.{arg.name})'
    if isinstance(t, Optional) and isinstance(t.elem, List) and t.elem.size is not None:
        word = LISTS[t.elem.elem.name].removesuffix("s").lower() if isinstance(t.elem.elem, Base) else ""
        return f'call.read_array<{t.elem.size}, {p}_opt_{word}{t.elem.size}>("{arg.name}", args.{arg.name})'
    return f'call.read("{arg.name}", args.{arg.name})'


def option(p: str, arg: Argument) -> str:
    """The statement that puts a defaulted argument into the options struct."""
    if isinstance(arg.type, List) and arg.type.size is not None:
        return f"std::copy_n({read(p, arg)}, {arg.type.size}, options.{arg.name});"
    return f"options.{arg.name} = {read(p, arg)};"


def declaration(index: int, item: Return) -> str:
    if item.type == TENSOR:
        return f"Result result_{index};"
    ctype = c_type(item.type)
    return f"ListResult<{ctype}> result_{index};" if isinstance(item.type, List) else f"{ctype} result_{index} = {{}};"


def result_arguments(index: int, item: Return) -> tuple[str, ...]:
    if item.type == TENSOR:
        return (f"result_{index}.allocate()",)
    if isinstance(item.type, List):
        return (f"result_{index}.data()", f"result_{index}.capacity()", f"result_{index}.len()")
    return (f"&result_{index}",)


def returned(index: int, item: Return) -> str:
    return f"result_{index}.release()" if isinstance(item.type, List) or item.type == TENSOR else f"slot_of(result_{index})"


# ---- text ----------------------------------------------------------------------------------------------------


def c_string(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def c_strings(text: str) -> tuple[str, ...]:
    """A long text as several literals, which the compiler joins."""
    lines = textwrap.wrap(text, WIDTH - 16, break_long_words=False, break_on_hyphens=False)
    return tuple(c_string(line if i == len(lines) else f"{line} ") for i, line in enumerate(lines, 1))


def fill(head: str, items: list[str], tail: str) -> str:
    """head, the items with commas between, and tail, on lines that are aligned behind head."""
    lines, line = [], head
    for i, item in enumerate(items):
        text = item + (tail if i == len(items) - 1 else ",")
        if line != head and len(line) + 1 + len(text) > WIDTH:
            lines.append(line)
            line = " " * len(head) + text
        else:
            line += text if line == head else f" {text}"
    return "\n".join([*lines, line])


def render(library: Library, render: Render) -> Mapping[str, str]:
    text = render(
        "torch/register.cpp.j2",
        prefix=library.prefix,
        namespace=library.namespace,
        functions=[function(library.prefix, op) for op in library.operators],
    )
    return {"torch/register.cpp": text}


# ---- for people ----------------------------------------------------------------------------------------------


def compare(edit: Edit) -> Iterable[Difference]:
    from .torch_compare import differences  # only `breaking` needs it

    return differences(edit)


def explain(library: Library, op: Operator) -> Iterator[tuple[str, str]]:
    f = function(library.prefix, op)
    keys = {"devices": "CPU, CUDA and Meta", "settings": "CompositeExplicitAutograd", "views": "CompositeImplicitAutograd"}[f.keys]
    by = ", by the Python host" if f.is_in_python else ""
    yield "torch", f"torch.ops.{library.namespace}.{f.torch_name}, registered for {keys}{by}"


HOST = Host(
    name="torch",
    summary="registration of the operators with torch, over its stable C shim",
    templates=("torch/register.cpp.j2",),
    render=render,
    refuse=refuse,
    compare=compare,
    explain=explain,
)
