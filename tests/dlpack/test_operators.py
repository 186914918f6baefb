"""Every implemented operator through deep_gemm.dlpack, against the torch host, bit for bit: NumPy arrays, torch tensors, and NumPy arrays in a
process without torch. The arguments are those of tests/torch/samples.py, made from the contracts."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from arrays import bits_of, to_numpy
from deep_gemm import _C, dlpack
from samples import Sample, implemented_operators, of_another_type, samples

ALL = [sample for op in implemented_operators() if not op.returns_views for sample in samples(op)]


def python_call(module: Any, sample: Sample, arguments: dict[str, Any]) -> tuple[Any, Any]:
    """What the call returns, and what it leaves in the tensors that it writes; as bits."""
    result = getattr(module, sample.name)(**arguments)
    return bits_of(result), [bits_of(arguments[name]) for name in sorted(sample.written) if arguments[name] is not None]


def numpy_arguments_of(sample: Sample) -> dict[str, Any]:
    """Keywords of a call with arrays of its own."""
    return {name: to_numpy(value) for name, value in sample.fresh().python_arguments().items()}


each = pytest.mark.parametrize("sample", ALL, ids=lambda s: f"{s.name}[{s.label}]")


def test_every_implemented_operator_has_a_sample() -> None:
    assert {sample.name for sample in ALL} == {op.symbol for op in implemented_operators() if not op.returns_views}
    assert {sample.name for sample in ALL} <= set(dlpack.__all__) <= set(_C.__all__)


@each
def test_numpy_arrays(sample: Sample) -> None:
    expected = python_call(_C, sample, sample.fresh().python_arguments())
    assert python_call(dlpack, sample, numpy_arguments_of(sample)) == expected


@each
def test_torch_tensors(sample: Sample) -> None:
    """Through the exchange API; results are torch's."""
    expected = python_call(_C, sample, sample.fresh().python_arguments())
    arguments = sample.fresh().python_arguments()
    assert python_call(dlpack, sample, arguments) == expected
    if sample.tensors:
        made = getattr(dlpack, sample.name)(**arguments)
        results = made if isinstance(made, tuple) else () if made is None else (made,)
        assert all(isinstance(result, torch.Tensor) for result in results)


@pytest.mark.parametrize("sample", list({sample.name: sample for sample in reversed(ALL)}.values()), ids=lambda s: s.name)
def test_value_of_another_type_is_refused_by_name(sample: Sample) -> None:
    arguments = numpy_arguments_of(sample)
    for name, value in of_another_type(sample):
        with pytest.raises(TypeError) as raised:
            getattr(dlpack, sample.name)(**{**arguments, name: value})
        assert re.match(rf"{sample.name}: {name} is .*, expected ", str(raised.value)), (value, str(raised.value))


WITHOUT_TORCH = """
import pickle, sys
sys.modules["torch"] = None  # any import of it fails
from deep_gemm import dlpack
calls = pickle.load(sys.stdin.buffer)
done = [(getattr(dlpack, name)(**arguments), {n: arguments[n] for n in written}) for name, arguments, written in calls]
assert not [name for name in sys.modules if name.startswith("torch.")]
pickle.dump(done, sys.stdout.buffer)
"""


def test_a_process_without_torch() -> None:
    calls = [
        (sample.name, numpy_arguments_of(sample), [n for n in sample.written if sample.arguments[n] is not None])
        for sample in ALL
    ]
    run = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], input=pickle.dumps(calls), capture_output=True, env=environment())
    assert run.returncode == 0, run.stderr.decode()
    done = pickle.loads(run.stdout)
    assert len(done) == len(ALL)
    for sample, (result, written) in zip(ALL, done):
        expected = python_call(_C, sample, sample.fresh().python_arguments())
        assert (bits_of_copies(result), [bits_of_copies(written[n]) for n in sorted(written)]) == without_strides(expected), sample.label


def bits_of_copies(value: Any) -> Any:
    """Pickling makes arrays compact."""
    return without_strides(bits_of(value))


def without_strides(bits: Any) -> Any:
    if isinstance(bits, tuple) and len(bits) == 4:
        return bits[0], bits[1], bits[3]
    return type(bits)(map(without_strides, bits)) if isinstance(bits, (tuple, list)) else bits


def environment() -> dict[str, str]:
    folders = [str(Path(dlpack.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
