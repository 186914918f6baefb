"""What an edit of an operator does to C++ programs that call it through torch's dispatcher: they write down its C++ signature, in
``findSchemaOrThrow("ns::op", "").typed<R (A...)>()``, and defaults are none of it. Python and traced programs are told of by the host
``torch``, which registers the same schemas.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..model import TENSOR, Argument, List, Optional, Schema, Type
from ..printing import format_type
from . import Difference, Edit, trading_places

LAYER = "torch C++"

VALUES = {
    "int": "int64_t", "SymInt": "c10::SymInt", "float": "double", "bool": "bool", "str": "c10::string_view",
    "ScalarType": "at::ScalarType", "Tensor": "at::Tensor", "Scalar": "at::Scalar", "Device": "at::Device", "Layout": "at::Layout",
}  # fmt: skip
LISTS = {"int": "at::IntArrayRef", "SymInt": "c10::SymIntArrayRef", "Tensor": "at::TensorList"}


def differences(edit: Edit) -> Iterator[Difference]:
    old, new = edit.old.schema, edit.new.schema
    if (edit.old_library.namespace, old.name, old.overload) != (edit.new_library.namespace, new.name, new.overload):
        return  # told by the host `torch`
    was, now = cpp_signature(old), cpp_signature(new)
    if was != now:
        yield Difference(LAYER, True, f"typed handles are of `{now}`, they were of `{was}`")
    elif moved := trading_places([a.name for a in old.args], [a.name for a in new.args]):
        yield Difference(LAYER, True, f"typed handles compile as before, and take one for another: {moved}")


def cpp_signature(schema: Schema) -> str:
    """The function type of a typed handle."""
    returns = [returned(r.type) for r in schema.returns]
    result = returns[0] if len(returns) == 1 else f"std::tuple<{', '.join(returns)}>" if returns else "void"
    if [r.alias is not None and r.alias.write for r in schema.returns] == [True] and schema.returns[0].type == TENSOR:
        result += " &"
    return f"{result} ({', '.join(map(parameter, schema.args))})"


def parameter(arg: Argument) -> str:
    if arg.type == TENSOR:
        return "at::Tensor &" if arg.is_written else "const at::Tensor &"
    if arg.type == Optional(TENSOR):
        return "const std::optional<at::Tensor> &"
    if isinstance(arg.type, Optional) and isinstance(arg.type.elem, List) and value(arg.type.elem) == LISTS["int"]:
        return "at::OptionalIntArrayRef"
    return value(arg.type)


def returned(t: Type) -> str:
    return f"std::vector<{value(t.elem)}>" if isinstance(t, List) else value(t)


def value(t: Type) -> str:
    """A type by value; what has no name here stands for itself, as the schema spells it."""
    if isinstance(t, Optional):
        return f"std::optional<{value(t.elem)}>"
    if isinstance(t, List):
        name = format_type(t.elem)
        return LISTS.get(name) or f"at::ArrayRef<{value(t.elem)}>"
    name = format_type(t)
    return VALUES.get(name, name)
