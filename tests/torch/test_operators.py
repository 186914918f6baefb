"""Every implemented operator under torch's own checks, from torch.ops and from the Python function, on arguments made from its contract."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

import deep_gemm
from codegen import model as m
from deep_gemm import _C

from samples import Sample, all_operators, implemented_operators, of_another_type, samples

ALL = [sample for op in implemented_operators() for sample in samples(op)]
WITH_TENSORS = [sample for sample in ALL if sample.tensors]
# What is traced, which takes a second each: the first sample of every operator, and all of them in the test torch.operators_slow.
TRACED = ALL if "DG_SLOW" in os.environ else list({sample.name: sample for sample in reversed(ALL)}.values())
TRACED_WITH_TENSORS = [sample for sample in TRACED if sample.tensors]
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2)


def each(of: list[Sample]) -> Any:
    return pytest.mark.parametrize("sample", of, ids=lambda s: f"{s.name}[{s.label}]")


def has_float8(sample: Sample) -> bool:
    return any(x.dtype in FLOAT8 for x in sample.tensors.values())


def memory_of(x: Tensor) -> bytes:
    """All bytes of the storage that x is a view of."""
    return torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage()).cpu().numpy().tobytes()


def same_bits(x: Any, y: Any) -> bool:
    """Results: equal in their elements and layout. The padding between them may be anything."""
    if isinstance(x, tuple):
        return len(x) == len(y) and all(map(same_bits, x, y))
    if isinstance(x, Tensor):
        elements_are_equal = memory_of(x.contiguous()) == memory_of(y.contiguous())
        return x.dtype == y.dtype and x.shape == y.shape and x.stride() == y.stride() and elements_are_equal
    return bool(x == y)


def outcome(sample: Sample, call: Callable[..., Any], arguments: dict[str, Any]) -> tuple[Any, list[bytes]]:
    """What the call returns, and what it leaves in the tensors that it writes."""
    result = call(**arguments)
    return result, [memory_of(sample.arguments[name]) for name in sorted(sample.written) if sample.arguments[name] is not None]


def test_every_implemented_operator_has_a_sample() -> None:
    assert {op.symbol for op in implemented_operators()} == {sample.name for sample in ALL}


@pytest.mark.parametrize("op", all_operators(), ids=lambda op: op.symbol)
def test_every_operator_of_the_schema_runs_on_the_cpu(op: m.Operator) -> None:
    """None is refused with NotImplementedError, in any dtype and form that its contract has."""
    assert op.backends, f"{op.symbol} is only declared: {op.refusal}"
    calls = [sample.fresh() for sample in samples(op)]
    assert calls
    for call in calls:
        assert all(x.device.type == "cpu" for x in call.tensors.values())
        result = call.overload(**call.arguments)
        assert (result is None) == (not op.schema.returns)


@each(TRACED)
def test_opcheck_traces(sample: Sample) -> None:
    opcheck(sample.overload, (), sample.fresh().arguments, test_utils="test_aot_dispatch_dynamic")


@each(ALL)
@pytest.mark.parametrize("check", ["test_schema", "test_autograd_registration", "test_faketensor"])
def test_opcheck(sample: Sample, check: str) -> None:
    if check == "test_schema" and (has_float8(sample) or sample.op.returns_views):
        pytest.skip("torch's test_schema cannot copy float8 tensors, nor compare float8 views")
    opcheck(sample.overload, (), sample.fresh().arguments, test_utils=check)


@each(WITH_TENSORS)
def test_inputs_keep_every_bit(sample: Sample) -> None:
    call = sample.fresh()
    before = {name: memory_of(x) for name, x in call.tensors.items()}
    call.overload(**call.arguments)
    changed = {name for name, x in call.tensors.items() if memory_of(x) != before[name]}
    assert changed <= call.written


@each(list({sample.name: sample for sample in reversed(ALL)}.values()))
def test_value_of_another_type_is_refused_by_name(sample: Sample) -> None:
    arguments = sample.python_arguments()
    for name, value in of_another_type(sample):
        with pytest.raises(TypeError) as raised:
            getattr(_C, sample.name)(**{**arguments, name: value})
        assert re.match(rf"{sample.name}: {name} (is|has) ", str(raised.value)), (value, str(raised.value))


@each(WITH_TENSORS)
def test_written_arguments_are_written(sample: Sample) -> None:
    """Two fillings of an output that is never read end as the same bits, except where the operator leaves gaps."""
    call = sample.fresh()
    if not call.written:
        assert call.op.schema.returns, "an operator returns something or writes something"
        return
    before = {name: memory_of(call.arguments[name]) for name in call.written if call.arguments[name] is not None}
    call.overload(**call.arguments)
    assert all(memory_of(call.arguments[name]) != data for name, data in before.items())


@each(ALL)
def test_python_function_is_the_operator(sample: Sample) -> None:
    first, second = sample.fresh(), sample.fresh()
    expected = outcome(first, first.overload, first.arguments)
    got = outcome(second, getattr(_C, sample.name), second.python_arguments())
    assert same_bits(got[0], expected[0]) and got[1] == expected[1]


@each(TRACED_WITH_TENSORS)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compile_with_a_full_graph(sample: Sample, dynamic: bool) -> None:
    torch.compiler.reset()
    function = getattr(_C, sample.name)
    compiled = torch.compile(lambda arguments: function(**arguments), fullgraph=True, dynamic=dynamic, backend="aot_eager")
    first, second = sample.fresh(), sample.fresh()
    expected = outcome(first, function, first.python_arguments())
    got = outcome(second, lambda **arguments: compiled(arguments), second.python_arguments())
    assert same_bits(got[0], expected[0]) and got[1] == expected[1]


class Module(torch.nn.Module):
    def __init__(self, sample: Sample) -> None:
        super().__init__()
        self.function = getattr(_C, sample.name)
        self.rest = {name: value for name, value in sample.python_arguments().items() if not holds_tensors(value)}

    def forward(self, tensors: dict[str, Any]) -> Any:
        return self.function(**tensors, **self.rest)


def holds_tensors(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, tuple) and any(isinstance(x, Tensor) for x in value))


@each(TRACED_WITH_TENSORS)
def test_export(sample: Sample) -> None:
    first, second = sample.fresh(), sample.fresh()
    function = getattr(_C, sample.name)
    tensors = {name: value for name, value in second.python_arguments().items() if holds_tensors(value)}
    program = torch.export.export(Module(sample), (tensors,))
    if not sample.op.returns_views:  # of which torch sees the views that they make
        assert any(node.target is sample.overload for node in program.graph.nodes)
    expected = outcome(first, function, first.python_arguments())
    got = outcome(second, lambda **arguments: program.module()(arguments), tensors)
    assert same_bits(got[0], expected[0]) and got[1] == expected[1]


def test_package_has_every_operator() -> None:
    for op in implemented_operators():
        for name in (op.symbol, *op.aliases):
            assert callable(getattr(_C if name.startswith("_") else deep_gemm, name))
