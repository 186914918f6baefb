"""Every operator through torch, on calls that follow from its contract: right ones are taken and write nothing but their results; ones
with a single fault raise exactly what the contract says, and write nothing at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

from codegen import model as m
from codegen.samples.call import Call, Tensor
from codegen.samples.faults import Fault
from codegen.samples.strategies import faulty_calls, valid_calls
from codegen.samples.verdict import INVALID_ARGUMENT, INVALID_DTYPE, NOT_SUPPORTED, Verdict, results, verdict
from codegen.schema_file import parse_file
from deep_gemm import _C

from contents import adjust

SCHEMA = Path(os.environ["DG_SOURCE_DIR"], "schema", "ops.schema")
EXAMPLES = int(os.environ.get("DG_EXAMPLES", "8"))  # of each operator, right and wrong

DTYPES = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2, "ue8m0": torch.float8_e8m0fnu, "f4e2m1": torch.float4_e2m1fn_x2, "i64": torch.int64,
    "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool,
}  # fmt: skip
# What torch.ops raises: the class, and what stands before the message. The Python package turns the last two into classes of their own.
ERRORS: dict[str, tuple[type[Exception], str]] = {
    INVALID_ARGUMENT: (ValueError, ""),
    INVALID_DTYPE: (RuntimeError, "TypeError: "),
    NOT_SUPPORTED: (RuntimeError, "NotImplementedError: "),
}

GUARD = 64  # bytes of other memory on each side of a tensor
FILL = 0xA5  # a byte that is nobody's result


def operators() -> tuple[m.Operator, ...]:
    library, report = parse_file(str(SCHEMA), SCHEMA.read_bytes())
    assert library is not None, report
    return library.operators


OPERATORS = [op for op in operators() if not op.returns_views]  # a function of views is torch's own code
WITH_FAULTS = [op for op in OPERATORS if any(c.text != "any" for c in op.contracts)]


def each(of: list[m.Operator]) -> Callable[[Any], Any]:
    return pytest.mark.parametrize("op", of, ids=lambda op: op.symbol)


# ---- calls with memory -----------------------------------------------------------------------------------------------


class Made:
    """The tensors of a call, with the memory around them."""

    def __init__(self, call: Call):
        self.call = call
        self.written = {a.name for a in call.op.schema.args if a.is_written}
        sizes: dict[str, int] = {}
        for name, t in call.tensors():
            owner = t.memory or name
            sizes[owner] = max(sizes.get(owner, 0), t.extent()[1] * DTYPES[t.dtype.value].itemsize)
        self.memory = {name: torch.full((GUARD + size + GUARD,), FILL, dtype=torch.uint8) for name, size in sizes.items()}
        self.arguments = {name: self.argument(name, value) for name, value in call.values.items()}
        self.before = {name: x.clone() for name, x in self.memory.items()}

    def argument(self, name: str, value: object) -> Any:
        if isinstance(value, Tensor):
            return self.tensor(name, value)
        if isinstance(value, m.DType):
            return DTYPES[value.value]
        return list(value) if isinstance(value, tuple) else value

    def tensor(self, name: str, t: Tensor) -> torch.Tensor:
        element = DTYPES[t.dtype.value]
        inside = self.memory[t.memory or name][GUARD:]
        elements = inside[: t.extent()[1] * element.itemsize].view(element)
        x = elements.as_strided(t.shape, t.strides)
        if name not in self.written and not t.memory:
            fill(elements, x, t)
        return x

    def covered(self, name: str) -> torch.Tensor:
        """The bytes of a tensor's memory that are its elements."""
        t = self.call.values[name]
        assert isinstance(t, Tensor)
        mask = torch.zeros_like(self.memory[name], dtype=torch.bool)
        size = DTYPES[t.dtype.value].itemsize
        for byte in range(size):
            mask.as_strided(t.shape, [s * size for s in t.strides], GUARD + byte).fill_(True)
        return mask

    def changed(self, name: str) -> torch.Tensor:
        return self.memory[name] != self.before[name]


def fill(elements: torch.Tensor, x: torch.Tensor, t: Tensor) -> None:
    """Contents that are finite whatever they stand for: powers of two, or small integers. elements: all that x is a view of."""
    if t.contents is not None:
        x.copy_(torch.tensor(t.contents, dtype=x.dtype).view(t.shape))
    elif t.dtype in (m.DType.f4e2m1, m.DType.i8, m.DType.u8):
        elements.view(torch.uint8).copy_(torch.arange(elements.numel()).remainder(7))
    elif x.is_floating_point():
        elements.copy_(torch.arange(elements.numel()).remainder(5).sub(2).float().exp2())
    else:
        elements.zero_()


def overload(op: m.Operator) -> Any:
    return getattr(getattr(torch.ops.deep_gemm, op.schema.name), op.schema.overload or "default")


def check_refusal(made: Made, expected: Verdict) -> None:
    """The call fails as expected, and nothing is written."""
    error, before = ERRORS[expected.status]
    with pytest.raises(error) as raised:
        overload(made.call.op)(**made.arguments)
    assert str(raised.value) == before + expected.message
    for name in made.memory:
        assert not made.changed(name).any(), f"{name} is written"


def some(count: int) -> Any:
    """The same examples in every run, without the search for simpler ones when they pass."""
    quiet = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    phases = (Phase.explicit, Phase.generate, Phase.shrink)
    return settings(max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=quiet, phases=phases)


# ---- tests -----------------------------------------------------------------------------------------------------------


@each(OPERATORS)
def test_a_right_call(op: m.Operator) -> None:
    @some(EXAMPLES)
    @given(valid_calls(op, adjust))
    def run(call: Call) -> None:
        made = Made(call)
        if not op.backends:
            expected = verdict(call)
            assert expected is not None and expected.status == NOT_SUPPORTED
            check_refusal(made, expected)
            return
        returned = overload(op)(**made.arguments)
        for name in made.memory:
            outside = made.changed(name) & ~made.covered(name) if name in made.written else made.changed(name)
            assert not outside.any(), f"{name}: bytes are written that are not its elements"
        tensors = [x for x in (returned if isinstance(returned, tuple) else (returned,)) if isinstance(x, torch.Tensor)]
        for x, expected in zip(tensors, results(call), strict=True):
            assert (x.dtype, tuple(x.shape)) == (DTYPES[expected.dtype.value], expected.shape)
            assert all(n <= 1 or s == e for n, s, e in zip(x.shape, x.stride(), expected.strides)) or x.numel() == 0

    run()


@each(WITH_FAULTS)
def test_a_call_with_one_fault(op: m.Operator) -> None:
    @some(4 * EXAMPLES)
    @given(faulty_calls(op, adjust))
    def run(fault: Fault) -> None:
        check_refusal(Made(fault.call), fault.expected)

    run()


def test_the_package_is_the_one_under_test() -> None:
    assert os.path.realpath(_C.__file__).startswith(os.path.realpath(os.environ["DG_BUILD_DIR"]))
