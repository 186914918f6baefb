"""A call as data, which a test turns into tensors of its own kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from .. import model as m
from ..record import record, replace

BITS = {
    "f64": 64, "f32": 32, "f16": 16, "bf16": 16, "f8e4m3": 8, "f8e5m2": 8, "ue8m0": 8, "f4e2m1": 4, "i64": 64, "i32": 32, "i16": 16,
    "i8": 8, "u8": 8, "bool": 8,
}  # fmt: skip
MOST_DIMENSIONS = 8
ELSEWHERE = 99  # the type of a device that DLPack does not know


@record
class Tensor:
    """A tensor as its caller passes it. FP4 comes with is_pairs, or without: then shape and strides count elements."""

    dtype: m.DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    is_pairs: bool = False
    memory: str = ""  # the argument whose memory it shares, from the first element on; "": it has its own
    is_elsewhere: bool = False  # on a device that no library has
    has_data: bool = True
    contents: tuple[int, ...] | None = None  # of integers, in row-major order; None: any that are finite

    def __repr__(self) -> str:
        shape, strides = (",".join(map(str, numbers)) for numbers in (self.shape, self.strides))
        notes = ["pairs"] * self.is_pairs + [f"memory of {self.memory}"] * bool(self.memory)
        notes += ["elsewhere"] * self.is_elsewhere + ["no data"] * (not self.has_data)
        notes += [f"contents {self.contents}"] * (self.contents is not None)
        return " ".join((f"{self.dtype.value}[{shape}:{strides}]", *notes))

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape

    @property
    def bits(self) -> int:
        """Of what a stride of 1 steps over."""
        return 8 if self.dtype is m.DType.f4e2m1 and self.is_pairs else BITS[self.dtype.value]

    def extent(self) -> tuple[int, int]:
        """How far the elements reach below and above the first one, the last one included; (0, 0) without elements."""
        if self.is_empty or any(n < 0 for n in self.shape):
            return 0, 0
        steps = [(n - 1) * s for n, s in zip(self.shape, self.strides)]
        return -sum(min(s, 0) for s in steps), sum(max(s, 0) for s in steps) + 1


Value = Tensor | bool | int | float | str | m.DType | tuple[object, ...] | None


@record
class Call:
    """values: of every argument by name; None for one that is not given."""

    op: m.Operator
    values: Mapping[str, Value]

    def __repr__(self) -> str:
        shown = ((name, value.value if isinstance(value, m.DType) else repr(value)) for name, value in self.values.items())
        return f"{self.op.symbol}({', '.join(f'{name}={text}' for name, text in shown)})"

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, value) for name, value in self.values.items() if isinstance(value, Tensor))

    def with_value(self, name: str, value: Value) -> Call:
        """With another value of one argument. What shared the memory of a tensor that is gone has its own then."""
        values = {**self.values, name: value}
        if value is None:
            for other, t in self.tensors():
                if t.memory == name:
                    values[other] = replace(t, memory="")
        return Call(self.op, values)


def compact(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides; a dimension of size 0 counts as one of size 1."""
    return tuple(prod(max(n, 1) for n in shape[i + 1 :]) for i in range(len(shape)))


def root_contract(op: m.Operator, name: str) -> m.TensorContract:
    """The contract that says the alternatives of a tensor: its own, or that of the tensor that it is like."""
    contract = next(c for c in op.contracts if c.name == name)
    assert isinstance(contract, m.TensorContract)
    return contract if contract.like is None else root_contract(op, contract.like)


def bare(t: m.Type) -> m.Type:
    return t.elem if isinstance(t, m.Optional) else t


def member_type(arg: m.Argument) -> str:
    """ "int", "float", "bool", "str", "ScalarType": of a value, or of the members of a list."""
    t = bare(arg.type)
    t = t.elem if isinstance(t, m.List) else t
    assert isinstance(t, m.Base)
    return "int" if t.name == "SymInt" else t.name


def list_size(arg: m.Argument) -> int | None:
    """The fixed length of a list."""
    t = bare(arg.type)
    return t.size if isinstance(t, m.List) else None
