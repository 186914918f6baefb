"""How torch's type constructors normalise what was written: unions are flattened, unified and sorted, optionals never nest."""

from __future__ import annotations

from . import model as m
from .printing import format_type

BASE_NAMES = frozenset(
    "Generator ScalarType Layout MemoryFormat Storage QScheme Quantizer ConstQuantizerPtr Device DeviceIndex Stream Scalar str float"
    " complex int SymInt bool SymBool None NoneType Capsule Any AnyClassType AnyEnumType".split()
)
RENAMED = {"ConstQuantizerPtr": "int", "DeviceIndex": "int", "None": "NoneType"}

# Classes that torch itself registers; any other `__torch__.torch.classes.*` is unknown to its parser.
CLASSES = frozenset(
    "__torch__.torch.classes." + name
    for name in (
        "_nnapi.Compilation aten.OpaqueObject backendutils.BackendDebugInfo c10d.ProcessGroup c10d.ReduceOp c10d.SymmetricMemory"
        " c10d.Work dist_rpc.WorkerInfo mkldnn.ConvOpContext profiler._RecordFunction profiling.InstructionStats"
        " profiling.SourceRef profiling.SourceStats profiling._ScriptProfile quantized.Conv2dPackedParamsBase"
        " quantized.Conv3dPackedParamsBase quantized.EmbeddingPackedParamsBase quantized.LinearPackedParamsBase rnn.CellParamsBase"
        " rpc._Message sparse.LinearPackedParamsBase"
    ).split()
)

_INT_UNDERNEATH = frozenset(("ScalarType", "Layout", "MemoryFormat", "SymInt"))
_KEYS = frozenset(("int", "float", "complex", "bool", "str", "Tensor", "Device", "Any"))
_NONE, _ANY, _SCALAR, _INT = m.Base("NoneType"), m.Base("Any"), m.Base("Scalar"), m.Base("int")
_NUMBERS = (m.Base("int"), m.Base("float"), m.Base("complex"))

# The order of torch's kinds, by which the members of a union are sorted.
_KINDS = (
    "Any AnyEnumType Tensor Storage Tuple List Dict Scalar float complex Future Await RRef int NoneType str Generator Quantizer bool"
    " Optional Variable Device Stream Class Capsule QScheme ScalarType Layout MemoryFormat AnyClassType SymInt SymBool Union"
).split()
_RANK = {name: rank for rank, name in enumerate(_KINDS)}


class TypeNotMade(Exception):
    """torch cannot make the type; the text says why."""


def kind(t: m.Type) -> str:
    """The kind of a type: the name of a base type or generic, or "Optional List Class Variable"."""
    return t.name if isinstance(t, (m.Base, m.Generic)) else type(t).__name__


def underlying(t: m.Type) -> m.Type:
    """What torch stores values of the type as: `int` for enumerations and symbolic integers."""
    if isinstance(t, m.Base):
        return _INT if t.name in _INT_UNDERNEATH else t
    if isinstance(t, m.Optional):
        return m.Optional(underlying(t.elem))
    if isinstance(t, m.List):
        return m.List(underlying(t.elem), t.size)
    return t


def make_optional(elem: m.Type) -> m.Type:
    members = _standardise([elem, _NONE])
    if len(members) == 2:
        return m.Optional(members[0] if members[0] != _NONE else members[1])
    is_number = isinstance(elem, m.Generic) and elem.name == "Union" and len(elem.args) == 3 and set(_NUMBERS) <= set(elem.args)
    if elem == _SCALAR or is_number:
        return m.Optional(_SCALAR)
    return m.Optional(make_union([t for t in members if t != _NONE]))


def make_union(written: list[m.Type]) -> m.Type:
    members = _standardise(written)
    if _NONE in members:
        if len(members) == 4 and set(_NUMBERS) <= set(members):
            return m.Optional(_SCALAR)
        if len(members) == 2:
            return m.Optional(members[0] if members[0] != _NONE else members[1])
    return m.Generic("Union", tuple(members))


def make_dict(key: m.Type, value: m.Type) -> m.Type:
    if not (isinstance(key, m.Base) and key.name in _KEYS):
        raise TypeNotMade(f"a `Dict` cannot have the key type `{format_type(key)}`")
    return m.Generic("Dict", (key, value))


def _standardise(types: list[m.Type]) -> list[m.Type]:
    members = [member for t in types for member in _flatten(t)]
    # From right to left, what unifies with a member before it is merged into that one.
    end = len(members) - 1
    for i in range(len(members) - 1, 0, -1):
        for j in range(min(i - 1, end), -1, -1):
            if (is_subtype(members[i], _NONE)) != (is_subtype(members[j], _NONE)):
                continue
            unified = _unify(members[i], members[j])
            if unified is not None:
                members[j] = unified
                members[i] = members[end]
                end -= 1
                break
    members = members[: end + 1]
    if len(members) == 1:
        raise TypeNotMade(
            "a union needs two distinct members" if len(types) != 2 or types[1] != _NONE else "`NoneType` cannot be optional"
        )
    return sorted(members, key=lambda t: (_RANK[kind(t)], format_type(t).encode()))


def _flatten(t: m.Type) -> list[m.Type]:
    if isinstance(t, m.Generic) and t.name == "Union":
        return [member for arg in t.args for member in _flatten(arg)]
    if isinstance(t, m.Optional):
        return [*_flatten(t.elem), _NONE]
    return list(_NUMBERS) if t == _SCALAR else [t]


def _is_equal(a: m.Type, b: m.Type) -> bool:
    """Equality as torch sees it: all type variables are equal."""
    return a == b or isinstance(a, m.Variable) and isinstance(b, m.Variable)


def is_subtype(a: m.Type, b: m.Type) -> bool:
    """Whether every value of type a is one of type b, as torch sees it."""
    if b == _ANY or _is_equal(a, b):
        return True
    if isinstance(a, m.Generic) and a.name == "Union":
        return all(is_subtype(member, b) for member in a.args)
    if isinstance(a, m.Optional):
        return isinstance(b, m.Optional) and is_subtype(a.elem, b.elem)
    if isinstance(b, m.Optional):
        return a == _NONE or is_subtype(a, b.elem)
    if isinstance(b, m.Generic) and b.name == "Union":
        return any(is_subtype(a, member) for member in b.args)
    if b == _SCALAR:
        return a in _NUMBERS
    if isinstance(a, m.Class):
        return b == m.Base("AnyClassType")
    if isinstance(a, m.Generic) and isinstance(b, m.Generic) and a.name == b.name and a.name in ("Tuple", "Future", "Await"):
        return len(a.args) == len(b.args) and all(is_subtype(x, y) for x, y in zip(a.args, b.args))
    return False


def _unify(a: m.Type, b: m.Type) -> m.Type | None:
    """The type that holds both, where torch finds one."""
    if is_subtype(a, b):
        return b
    if is_subtype(b, a):
        return a
    if a == _NONE or b == _NONE:
        return make_optional(b if a == _NONE else a)
    for optional, other in ((a, b), (b, a)):
        if isinstance(optional, m.Optional):
            elem = _unify(optional.elem, other)
            return None if elem is None else make_optional(elem)
    if isinstance(a, m.Generic) and isinstance(b, m.Generic) and a.name == b.name and a.name in ("Tuple", "Future"):
        if len(a.args) != len(b.args):
            return None
        elems = [_unify(x, y) for x, y in zip(a.args, b.args)]
        return None if None in elems else m.Generic(a.name, tuple(e for e in elems if e is not None))
    return None
