"""What the functions of the generated ``_C.py`` share: loading the library, unpacking arguments, translating errors, fakes."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from ._torch import Tensor, torch

_Function = TypeVar("_Function", bound=Callable[..., Any])


# ---- loading -------------------------------------------------------------------------------------------------


def load(release: str, schemas: Sequence[str]) -> None:
    """Loads the extension beside this file, which registers the operators with torch, and checks that it is the one that the
    Python files were generated with."""
    from . import _C_extension as extension

    if extension.version() != release:
        raise ImportError(
            f"the Python files of deep_gemm are of release {release}, the library that this process has loaded is {extension.version()}; "
            "one process can use one release"
        )
    loaded = extension.schemas()
    if loaded != tuple(schemas):
        different = next((f"{a!r} and {b!r}" for a, b in zip(schemas, loaded) if a != b), "one has more operators than the other")
        raise ImportError(f"the Python files of deep_gemm and the library beside them have different operators: {different}")


def operator(namespace: str, name: str) -> Callable[..., Any]:
    """An operator of torch.ops, looked up once: calling the overload itself is faster than calling its packet."""
    name, _, overload = name.partition(".")
    found: Callable[..., Any] = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
    return found


def unknown_name(module: str, name: str, known: Sequence[str]) -> AttributeError:
    """The error of a module's ``__getattr__``, with the name that was probably meant."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close and not name.startswith("__") else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}", name=name)


# ---- arguments -----------------------------------------------------------------------------------------------


def pair(op: str, name: str, members: str, value: Sequence[Any]) -> Sequence[Any]:
    """The members of a pair. A tensor is no pair, although it could be unpacked."""
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return value
    got = f"{len(value)} values" if isinstance(value, (tuple, list)) else type(value).__name__
    raise TypeError(f"{op}: {name} must be the pair ({members}), got {got}")


def renamed(op: str, name: str, value: Any, old_name: str, old_value: Any) -> Any:
    """A required argument that older callers pass by another keyword."""
    if old_value is None:
        if value is None:
            raise TypeError(f"{op}() is missing the argument {name!r}")
        return value
    if value is not None:
        raise TypeError(f"{op}() got {name!r} and {old_name!r}, which are the same argument")
    return old_value


def check_dtype(op: str, name: str, value: Any, or_none: bool = False) -> None:
    """Refuses what is no dtype, or list of dtypes: torch itself takes any integer, for the dtype of that number."""
    if value is None and or_none:
        return
    for item in _items(value):
        if not isinstance(item, torch.dtype):
            expected = "torch.dtype or None" if or_none else "torch.dtype"
            raise TypeError(f"{op}: {name} is {shortened(repr(value))} ({type(value).__name__}), expected {expected}")


def _items(value: Any) -> Sequence[Any]:
    """Of a list the members, of anything else itself."""
    return cast("Sequence[Any]", value) if isinstance(value, (tuple, list)) else (value,)


# ---- errors --------------------------------------------------------------------------------------------------

_CLASSES: dict[str, type[Exception]] = {"TypeError": TypeError, "NotImplementedError": NotImplementedError}


def translated(error: Exception, names: Mapping[str, str]) -> Exception:
    """What the caller sees of an exception out of torch.ops: the class that its prefix names, and the argument as the caller
    wrote it, ``a[1]`` for the ``sfa`` of the operator."""
    text = str(error)
    if text.startswith("deep_gemm::"):  # torch itself could not convert an argument
        return TypeError(_with_names(_conversion(text), names))
    prefix, _, rest = text.partition(": ")
    kind = _CLASSES.get(prefix) if type(error) is RuntimeError else None
    if kind is None and type(error) is not ValueError:
        return error
    return (kind or ValueError)(_with_names(rest if kind is not None else text, names))


_CONVERSION = re.compile(
    r"deep_gemm::(?P<op>\w+)[.\w]*\(\) Expected a value of type '(?P<type>[^']+)' for argument '(?P<name>\w+)' "
    r"but instead found type '(?P<found>[^']+)'\.\nPosition: .*?\nValue: (?P<value>.*)\nDeclaration: ",
    re.DOTALL,
)
_LONGEST_VALUE = 60  # characters of a value in a message


def shortened(value: str) -> str:
    text = " ".join(value.split())
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def _conversion(text: str) -> str:
    """torch's sentence about an argument of the wrong type, in the form of the library's own: operator, argument, value, expectation."""
    found = _CONVERSION.match(text)
    if found is None:
        return text.partition("\nPosition:")[0].removeprefix("deep_gemm::").replace("()", ":", 1)
    expected = re.sub(r"^Optional\[(.*)\]$", r"\1 or None", found["type"])
    expected = re.sub(r"List\[(\w+)\]", r"a sequence of \1", expected)
    beyond = " that fits 64 bits" if found["found"] == found["type"] == "int" else ""
    return f"{found['op']}: {found['name']} is {shortened(found['value'])} ({found['found']}), expected {expected}{beyond}"


def _with_names(text: str, names: Mapping[str, str]) -> str:
    op, _, message = text.partition(": ")
    subject, blank, rest = message.partition(" ")
    for name, written in names.items():
        if not written.startswith(f"{name}["):  # `a` is a word of English too
            rest = re.sub(rf"\b{name}\b", written, rest)
    return f"{op}: {names.get(subject, subject)}{blank}{rest}"


# ---- torch.compile -------------------------------------------------------------------------------------------


def constant(function: _Function) -> _Function:
    """A function of plain values, which torch.compile evaluates once while it traces.

    This is ``torch.compiler.assume_constant_result`` without its import of torch._dynamo, which takes longer than all else here.
    """
    setattr(function, "_dynamo_marked_constant", True)
    return function


def setter(function: _Function) -> _Function:
    """A function with an effect outside tensors, which torch.compile leaves out of its graphs: ``torch.compiler.disable`` without
    its import of torch._dynamo."""
    setattr(function, "_torchdynamo_disable", True)
    setattr(function, "_torchdynamo_disable_msg", "it changes a setting of the process")
    return function


def fake(name: str) -> Callable[[_Function], _Function]:
    """Registers a function that says what tensors an operator returns, without their data."""

    def decorate(function: _Function) -> _Function:
        cast(Any, torch.library).register_fake(name)(function)  # which has no annotations
        return function

    return decorate


def check_one_device(op: str, *tensors: Tensor | None) -> None:
    """One meta tensor among others brings a call to the fake, where nothing else would say that the devices differ."""
    devices = {str(x.device) for x in tensors if x is not None}
    if len(devices) > 1:
        raise ValueError(f"{op}: the tensors are on different devices: {', '.join(sorted(devices))}")


# ---- views of an argument ------------------------------------------------------------------------------------

_LIBRARIES: list[Any] = []  # a registration lasts as long as its library


def views(namespace: str, name: str) -> Callable[[_Function], _Function]:
    """Registers a function that makes views of an argument: the whole operator, of which torch sees what it is made of."""

    def register(function: _Function) -> _Function:
        new_library: Callable[[str, str], Any] = getattr(torch.library, "Library")
        library = new_library(namespace, "IMPL")
        library.impl(name, function, "CompositeImplicitAutograd")
        _LIBRARIES.append(library)
        return function

    return register


def check_tensor(
    op: str, name: str, x: Tensor, dtypes: Sequence[torch.dtype], fits: Callable[[], bool], contract: str
) -> None:
    if x.dtype in dtypes and fits():
        return
    layout = "" if x.is_contiguous() else f" strides {list(x.stride())}"
    kind = ValueError if x.dtype in dtypes else TypeError
    raise kind(f"{op}: {name} is {str(x.dtype).removeprefix('torch.')} {list(x.shape)}{layout}, expected {contract}")


def check_value(op: str, name: str, value: object, holds: bool, contract: str) -> None:
    if not holds:
        raise ValueError(f"{op}: {name} is {value}, expected {contract}")


def check_condition(op: str, holds: bool, text: str) -> None:
    if not holds:
        raise ValueError(f"{op}: {text}")


def view(
    op: str,
    name: str,
    base_name: str,
    base: Tensor,
    *,
    at: int,
    shape: Sequence[int],
    strides: Sequence[int] | None = None,
    dtype: torch.dtype,
) -> Tensor:
    """The tensor of this shape and dtype that begins ``at`` bytes behind the begin of base, which is contiguous."""
    is_empty = 0 in shape
    if strides is None or is_empty:
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    elements = 0 if is_empty else 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))
    end = at + elements * dtype.itemsize
    num_bytes = base.numel() * base.element_size()
    if at < 0 or end > num_bytes:
        raise ValueError(f"{op}: {name} is bytes {at} .. {end} of {base_name}, which has {num_bytes}")
    if at % dtype.itemsize != 0:
        raise ValueError(f"{op}: {name} begins at byte {at} of {base_name}, expected a multiple of {dtype.itemsize}")
    flat = base.view(-1).view(torch.uint8)[at:end].view(dtype)
    # Compact with its axes in another order, as most are: torch.compile cannot write through as_strided().
    order = sorted(range(len(shape)), key=lambda axis: strides[axis], reverse=True)
    permuted = [shape[axis] for axis in order]
    if all(strides[axis] == math.prod(permuted[i + 1 :]) for i, axis in enumerate(order)):
        return flat.view(permuted).permute(sorted(range(len(shape)), key=lambda axis: order[axis]))
    return flat.as_strided(shape, strides, flat.storage_offset())


# ---- for fakes and views -------------------------------------------------------------------------------------


def dtype_of(x: Tensor | torch.dtype) -> torch.dtype:
    return x if isinstance(x, torch.dtype) else x.dtype


def sum_ceil(items: Any, y: int) -> int:
    """The sum of ceil(item / y)."""
    return sum(-(-item // y) for item in items)


def is_fp4(x: Tensor) -> bool:
    """Whether an operand that may be FP4 is: as torch's own pairs, or as bytes."""
    return x.dtype in (torch.float4_e2m1fn_x2, torch.int8, torch.uint8)


def shape_in_elements(x: Tensor) -> Sequence[int]:
    """The shape of an operand that may be FP4. Pairs lie along the last dimension of stride 1."""
    shape = list(x.shape)
    if is_fp4(x):
        packed = max((axis for axis in range(x.dim()) if x.stride(axis) == 1), default=-1)
        shape[packed] *= 2
    return shape
