"""deep_gemm.dlpack without torch: what it takes and refuses, in which words, and what it leaves behind."""

from __future__ import annotations

import copy
import ctypes
import gc
import inspect
import os
import pickle
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from deep_gemm import dlpack

BF16 = np.dtype(ml_dtypes.bfloat16)
FP8 = np.dtype(ml_dtypes.float8_e4m3fn)


def bf16(*shape: int) -> Any:
    return np.random.default_rng(1).standard_normal(shape, np.float32).astype(BF16)


def fp8_pair(rows: int, k: int, sf_rows: int) -> tuple[Any, Any]:
    return np.ones((rows, k), FP8), np.ones((sf_rows, -(-k // 128)), np.float32)


def product(a: Any, b: Any) -> Any:
    return a.astype(np.float32) @ b.astype(np.float32).T


A, B = fp8_pair(4, 256, 4), fp8_pair(8, 256, 1)


def d() -> Any:
    return np.full((4, 8), 7, np.float32)


# ---- the module ----------------------------------------------------------------------------------------------


def run(code: str) -> str:
    folders = [str(Path(dlpack.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_importing_it_imports_neither_torch_nor_numpy() -> None:
    run("import deep_gemm.dlpack, sys; assert not {'torch', 'numpy', 'ml_dtypes', 'deep_gemm._C'} & set(sys.modules)")
    run("import deep_gemm, sys; deep_gemm.dlpack.get_num_sms(); assert not {'torch', 'numpy', 'deep_gemm._C'} & set(sys.modules)")


def test_it_is_linked_with_no_torch() -> None:
    program = subprocess.run(["readelf", "-d", dlpack.__file__], capture_output=True, text=True)
    if program.returncode != 0:
        pytest.skip("no readelf")
    needed = [line for line in program.stdout.splitlines() if "NEEDED" in line]
    assert any("libdeep_gemm.so" in line for line in needed)
    assert not any(word in line for line in needed for word in ("torch", "libpython", "stdc++", "cuda"))


def test_functions_are_functions_to_python_tools() -> None:
    for name in dlpack.__all__:
        function = getattr(dlpack, name)
        assert function.__module__ == "deep_gemm.dlpack"
        assert pickle.loads(pickle.dumps(function)) is function and copy.deepcopy(function) is function
        documentation = inspect.getdoc(function) or ""
        for parameter in inspect.signature(function).parameters:
            assert any(f"{parameter}{end}" in documentation for end in (":", " (written):", "=`")), (name, parameter)


def test_signatures() -> None:
    assert dlpack.fp8_gemm_nt is dlpack.fp8_fp4_gemm_nt
    assert str(inspect.signature(dlpack.bf16_gemm_nt)) == "(a, b, d, c=None, compiled_dims='nk')"
    assert "logits_dtype='float32'" in str(inspect.signature(dlpack.fp8_fp4_mqa_logits))
    assert str(inspect.signature(dlpack.m_grouped_bf16_gemm_nt_contiguous)).endswith("expected_m_for_psum_layout=None, *, m_indices=None)")


def test_two_modules_have_states_of_their_own() -> None:
    from importlib.util import module_from_spec

    assert dlpack.__spec__ is not None and dlpack.__spec__.loader is not None
    other = module_from_spec(dlpack.__spec__)
    dlpack.__spec__.loader.exec_module(other)
    assert other.bf16_gemm_nt is not dlpack.bf16_gemm_nt
    out = d()
    other.bf16_gemm_nt(bf16(4, 8), bf16(8, 8), out)
    del other
    gc.collect()
    dlpack.bf16_gemm_nt(bf16(4, 8), bf16(8, 8), out)


def mega_moe_of_two_ranks() -> None:
    num_bytes, _ = dlpack.get_symm_buffer_size_for_mega_moe(2, 8, 384, 2, 256, 256, "bf16xbf16", "swiglu", 768)
    buffer = np.zeros(num_bytes, np.int8)
    weights = bf16(4, 512, 256), bf16(4, 256, 256)
    dlpack.bf16_mega_moe(bf16(4, 256), *weights, None, buffer, [buffer.ctypes.data] * 2, 0, 384, 8, 2, "swiglu", None, False, 768)


# ---- values --------------------------------------------------------------------------------------------------

VALUES: list[tuple[type[Exception], str, Callable[[], Any]]] = [
    (ValueError, "fp8_fp4_gemm_nt: b[0] has k = 128, expected 256 to match a", lambda: dlpack.fp8_gemm_nt(A, fp8_pair(8, 128, 1), d())),
    (ValueError, "bf16_gemm_nt: a has shape [4], expected bf16 [m, k]", lambda: dlpack.bf16_gemm_nt(bf16(4), bf16(8, 8), d())),
    (TypeError, "bf16_gemm_nt: a has dtype f32, expected bf16 [m, k]", lambda: dlpack.bf16_gemm_nt(d(), bf16(8, 8), d())),
    (ValueError, "fp8_fp4_gemm_nt: recipe needs 3 ints, got 2", lambda: dlpack.fp8_gemm_nt(A, B, d(), recipe=(1, 128))),
    (ValueError, "set_block_size_multiple_of: new_value needs 2 ints, got 3", lambda: dlpack.set_block_size_multiple_of((1, 2, 3))),
    (TypeError, "fp8_fp4_gemm_nt: a must be the pair (a, sfa), got ndarray", lambda: dlpack.fp8_gemm_nt(A[0], B, d())),
    (TypeError, "fp8_fp4_gemm_nt: b must be the pair (b, sfb), got 3 values", lambda: dlpack.fp8_gemm_nt(A, (*B, None), d())),
    (TypeError, "fp8_fp4_gemm_nt: a[0] is None, expected a tensor", lambda: dlpack.fp8_gemm_nt((None, A[1]), B, d())),
    (TypeError, "fp8_fp4_gemm_nt: recipe is 'x' (str), expected a sequence of int or None", lambda: dlpack.fp8_gemm_nt(A, B, d(), recipe="x")),
    (TypeError, "fp8_fp4_gemm_nt: recipe is (1, 'x', 3) (tuple), expected a sequence of int or None", lambda: dlpack.fp8_gemm_nt(A, B, d(), recipe=(1, "x", 3))),
    (TypeError, "set_block_size_multiple_of: new_value is '64' (str), expected a sequence of int", lambda: dlpack.set_block_size_multiple_of("64")),
    (TypeError, "fp8_fp4_gemm_nt: a[1] is 'one scale' (str), expected Tensor", lambda: dlpack.fp8_gemm_nt((A[0], "one scale"), B, d())),
    (TypeError, "bf16_gemm_nt: c is [1.0] (list), expected Tensor or None", lambda: dlpack.bf16_gemm_nt(bf16(4, 8), bf16(8, 8), d(), [1.0])),
    (TypeError, "fp8_fp4_gemm_nt: disable_ue8m0_cast is 'no' (str), expected bool", lambda: dlpack.fp8_gemm_nt(A, B, d(), disable_ue8m0_cast="no")),
    (TypeError, "fp8_fp4_gemm_nt: disable_ue8m0_cast is None (NoneType), expected bool", lambda: dlpack.fp8_gemm_nt(A, B, d(), disable_ue8m0_cast=None)),
    (TypeError, "bf16_gemm_nt: compiled_dims is b'nk' (bytes), expected str", lambda: dlpack.bf16_gemm_nt(bf16(4, 8), bf16(8, 8), d(), compiled_dims=b"nk")),
    (TypeError, "get_tma_aligned_size: x is 1.0 (float), expected int", lambda: dlpack.get_tma_aligned_size(1.0, 4)),
    (TypeError, "get_tma_aligned_size: x is 9223372036854775808 (int), expected int that fits 64 bits", lambda: dlpack.get_tma_aligned_size(2**63, 4)),
    (ValueError, "get_tma_aligned_size: x is -1, expected 0 .. 4611686018427387904", lambda: dlpack.get_tma_aligned_size(-1, 4)),
    (NotImplementedError, "bf16_mega_moe: sym_buffer_ptrs has the buffers of 2 ranks, expected 1: there is no kernel for several ranks",
     lambda: mega_moe_of_two_ranks()),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "call"), VALUES, ids=[text[:60] for _, text, _ in VALUES])
def test_errors_say_what_is_wrong(kind: type[Exception], text: str, call: Callable[[], Any]) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert (type(caught.value), str(caught.value), caught.value.__cause__) == (kind, text, None)


def test_a_long_value_is_cut() -> None:
    with pytest.raises(TypeError) as caught:
        dlpack.bf16_gemm_nt(bf16(4, 8), bf16(8, 8), d(), list(range(100)))
    shown = str(caught.value).removeprefix("bf16_gemm_nt: c is ").partition(" (list)")[0]
    assert len(shown) == 60 and shown.endswith("...")


# Calls of functions that Python itself refuses, with the functions that these stand for.


def bf16_gemm_nt(a, b, d, c=None, compiled_dims="nk"): ...  # type: ignore[no-untyped-def]
def get_tma_aligned_size(x, element_size): ...  # type: ignore[no-untyped-def]
def set_pdl(new_enable_pdl): ...  # type: ignore[no-untyped-def]
def get_pdl(): ...  # type: ignore[no-untyped-def]
def m_grouped_bf16_gemm_nn_contiguous(a, b, d, grouped_layout=None, compiled_dims="nk", use_psum_layout=False, ensure_zero_padding=True, *, m_indices=None): ...  # type: ignore[no-untyped-def]  # fmt: skip


CALLS: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (bf16_gemm_nt, (), {}),
    (bf16_gemm_nt, (1,), {}),
    (bf16_gemm_nt, (1, 2), {"c": 3}),
    (bf16_gemm_nt, (1, 2, 3), {"recipe": 4}),
    (bf16_gemm_nt, (1, 2, 3), {"a": 4}),
    (bf16_gemm_nt, tuple(range(7)), {}),
    (get_tma_aligned_size, (1,), {}),
    (get_tma_aligned_size, (1, 2, 3), {}),
    (get_tma_aligned_size, (1, 2, 3), {"x": 3}),
    (set_pdl, (1, 2), {}),
    (get_pdl, (1,), {}),
    (get_pdl, (), {"x": 1}),
    (m_grouped_bf16_gemm_nn_contiguous, tuple(range(8)), {"m_indices": 3}),
    (m_grouped_bf16_gemm_nn_contiguous, (), {"m_indices": 3}),
]


@pytest.mark.parametrize(("function", "args", "keywords"), CALLS)
def test_wrong_calls_get_the_words_of_python(function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    with pytest.raises(TypeError) as expected:
        function(*args, **keywords)
    with pytest.raises(TypeError) as caught:
        getattr(dlpack, function.__name__)(*args, **keywords)
    assert str(caught.value) == str(expected.value).partition(". Did you mean")[0]


@pytest.mark.parametrize("value", [True, np.int64(1), np.uint8(1), np.array(1)])
def test_what_counts_as_an_int(value: Any) -> None:
    assert dlpack.get_tma_aligned_size(value, 4) == 4


@pytest.mark.parametrize("value", [True, 1, np.True_, np.array(True)])
def test_what_counts_as_a_bool(value: Any) -> None:
    before = dlpack.get_pdl()
    try:
        dlpack.set_pdl(value)
        assert dlpack.get_pdl() is True
    finally:
        dlpack.set_pdl(before)


@pytest.mark.parametrize("recipe", [(1, 128, 128), [1, 128, 128], np.array([1, 128, 128]), (np.int64(1), 128, 128), None])
def test_what_counts_as_a_list(recipe: Any) -> None:
    out = d()
    dlpack.fp8_gemm_nt(A, B, out, recipe=recipe)
    assert np.all(out == 256)


def test_one_number_for_a_list_that_may_be_one() -> None:
    dlpack.set_block_size_multiple_of(1)
    dlpack.set_block_size_multiple_of((1, 1))


@pytest.mark.parametrize("dtype", ["bfloat16", BF16, ml_dtypes.bfloat16, "torch.bfloat16"])
def test_what_counts_as_a_dtype(dtype: Any) -> None:
    assert logits(dtype).dtype == BF16
    assert logits("float32").dtype == logits(np.float32).dtype == logits(np.dtype("f4")).dtype == np.float32


def test_what_does_not_count_as_a_dtype() -> None:
    for value in ("x", "x.float32", "torch.", None, 6, 99, -1, 2**40, 1.5, True, ["float32"], np.dtype(">f4"), float):
        with pytest.raises(TypeError, match=r"^fp8_fp4_mqa_logits: logits_dtype is .*, expected a dtype such as \"float32\"$"):
            logits(value)
    with pytest.raises(TypeError, match=r"^fp8_fp4_mqa_logits: logits_dtype is 99 \(int\), expected "):
        logits(99)
    with pytest.raises(TypeError, match="^fp8_fp4_mqa_logits: logits_dtype is f16, expected f32 or bf16$"):
        logits("float16")


def logits(dtype: Any) -> Any:
    q, kv = (np.ones((2, 8, 32), FP8), None), (np.ones((4, 32), FP8), np.ones(4, np.float32))
    ends = np.array([1, 4], np.int32)
    return dlpack.fp8_fp4_mqa_logits(q, kv, np.ones((2, 8), np.float32), np.zeros(2, np.int32), ends, logits_dtype=dtype)


def test_an_old_keyword_is_the_same_argument() -> None:
    a, b, layout = bf16(128, 8), bf16(1, 8, 8), np.zeros(128, np.int32)
    outs = [np.empty((128, 8), BF16) for _ in range(3)]
    dlpack.m_grouped_bf16_gemm_nt_contiguous(a, b, outs[0], layout)
    dlpack.m_grouped_bf16_gemm_nt_contiguous(a, b, outs[1], m_indices=layout)
    dlpack.m_grouped_bf16_gemm_nt_contiguous(a, b, outs[2], None, m_indices=layout)
    assert np.array_equal(outs[0], outs[1]) and np.array_equal(outs[0], outs[2])
    same = r"^m_grouped_bf16_gemm_nt_contiguous\(\) got 'grouped_layout' and 'm_indices', which are the same argument$"
    for args, keywords in ((4, {"m_indices": layout}), (3, {"grouped_layout": layout, "m_indices": layout})):
        with pytest.raises(TypeError, match=same):
            dlpack.m_grouped_bf16_gemm_nt_contiguous(*(a, b, outs[0], layout)[:args], **keywords)
    for layouts in ((), (None,)):
        with pytest.raises(TypeError, match=r"^m_grouped_bf16_gemm_nt_contiguous\(\) is missing the argument 'grouped_layout'$"):
            dlpack.m_grouped_bf16_gemm_nt_contiguous(a, b, outs[0], *layouts)


def test_a_pair_may_be_a_list() -> None:
    out = d()
    dlpack.fp8_gemm_nt(list(A), list(B), out)
    assert np.all(out == 256)


# ---- arrays --------------------------------------------------------------------------------------------------


class Exporter:
    """An object whose `__dlpack__` is an array's, or what a test puts in its place."""

    def __init__(self, array: Any, **keywords: Any):
        self.array, self.keywords = array, keywords
        self.calls: list[dict[str, Any]] = []

    def __dlpack__(self, **keywords: Any) -> Any:
        self.calls.append(keywords)
        return self.array.__dlpack__(**keywords | self.keywords)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_any_stride_that_is_a_number_of_elements() -> None:
    a, b = bf16(8, 4), bf16(6, 16)
    out = np.zeros((6, 4), np.float32).T
    with pytest.raises(ValueError, match=r"^bf16_gemm_nt: d has strides \[1, 4\], expected stride 1 in the last dimension$"):
        dlpack.bf16_gemm_nt(a.T, b[:, ::2], out)
    out = np.zeros((4, 6), np.float32)
    for x, y in ((a.T, b[:, ::2]), (a.T[::-1], b[::-1, 14::-2]), (np.broadcast_to(a.T[:1], (4, 8)), b[:, 8:])):
        dlpack.bf16_gemm_nt(x, y, out)
        assert np.allclose(out, product(x, y), atol=1e-5)


def test_what_numpy_can_have_and_a_tensor_cannot() -> None:
    record = np.zeros((4, 8), np.dtype([("x", "i1"), ("y", "<f4")]))["y"]
    swapped = np.zeros((4, 8), ">f4")
    misaligned = np.frombuffer(bytearray(4 * 8 * 2 + 1), np.uint8)[1:].view(BF16).reshape(4, 8)
    assert misaligned.ctypes.data % 2 == 1
    b = bf16(8, 8)
    for a, kind, text in (
        (swapped, ValueError, "a is not in the byte order of this machine"),
        (swapped.view(np.uint16).byteswap().view(">u2")[:, ::2], ValueError, "a is not in the byte order of this machine"),
        (record, ValueError, "a has a stride of 5 bytes, expected a multiple of its element's 4"),
        (misaligned, ValueError, "a has data at "),
        (np.zeros((4, 8), "M8[s]"), TypeError, "a has dtype datetime64[s], which no operator takes"),
        (np.zeros((4, 8), np.complex64), TypeError, "a has dtype complex64, which no operator takes"),
        (np.zeros((4, 8), object), TypeError, "a has dtype object, which no operator takes"),
        (np.zeros((4, 8), ml_dtypes.float8_e4m3fnuz), TypeError, "a has dtype float8_e4m3fnuz, which no operator takes"),
        (np.zeros((4, 8), ml_dtypes.float4_e2m1fn), TypeError, "a has one FP4 element in each byte, expected pairs: pack two into each uint8"),
        (np.zeros((4, 8), np.uint16), TypeError, "a has dtype {code 1, bits 16, lanes 1}, expected bf16 [m, k]"),
        (np.zeros((1,) * 9, BF16), ValueError, "a has ndim = 9, expected 0 to 8"),
        (np.float32(1), TypeError, "a has dtype f32, expected bf16 [m, k]"),
    ):
        out = d()
        with pytest.raises(kind) as caught:
            dlpack.bf16_gemm_nt(a, b, out)
        assert str(caught.value).startswith(f"bf16_gemm_nt: {text}")
        assert np.all(out == 7)


@pytest.mark.parametrize("name", [n for n in dir(ml_dtypes) if isinstance(getattr(ml_dtypes, n), type) and issubclass(getattr(ml_dtypes, n), np.generic)])
def test_every_type_of_ml_dtypes_is_itself_or_refused(name: str) -> None:
    """None is taken for a type of NumPy's own that has the same size."""
    words = {"bfloat16": "bf16", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2", "float8_e8m0fnu": "ue8m0"}
    with pytest.raises(TypeError) as caught:
        dlpack.get_mn_major_tma_aligned_tensor(np.zeros((4, 4), getattr(ml_dtypes, name)))
    text = str(caught.value).removeprefix("get_mn_major_tma_aligned_tensor: sf has ")
    if name in words:
        assert text.startswith(f"dtype {words[name]}, expected f32")
    elif name == "float4_e2m1fn":
        assert text.startswith("one FP4 element in each byte")
    else:
        assert text == f"dtype {name}, which no operator takes"


def test_read_only_arrays_are_inputs_only() -> None:
    a, b, out = bf16(4, 8), bf16(8, 8), d()
    for array in (a, b):
        array.flags.writeable = False
    dlpack.bf16_gemm_nt(a, b, out)
    assert np.allclose(out, product(a, b), atol=1e-5)
    before = out.copy()
    out.flags.writeable = False
    for written in (out, Exporter(out)):
        with pytest.raises(ValueError, match="^bf16_gemm_nt: d is read-only, expected a tensor that can be written$"):
            dlpack.bf16_gemm_nt(b[:4], b, written)
    assert np.array_equal(out, before)


def test_arrays_without_elements() -> None:
    dlpack.bf16_gemm_nt(np.zeros((0, 8), BF16), bf16(8, 8), np.zeros((0, 8), np.float32))
    dlpack.bf16_gemm_nt(bf16(4, 8), np.zeros((0, 8), BF16), np.zeros((4, 0), np.float32))
    out = d()
    dlpack.bf16_gemm_nt(np.zeros((4, 0), BF16), np.zeros((8, 0), BF16), out)
    assert np.all(out == 0)
    assert dlpack.get_mn_major_tma_aligned_tensor(np.zeros((0, 4), np.float32)).shape == (0, 4)


def test_results_are_arrays_that_own_their_memory() -> None:
    codes, sf = dlpack.per_token_cast_to_fp8(np.ones((4, 256), np.float32), False)
    assert type(codes) is type(sf) is np.ndarray and codes.dtype == FP8 and codes.flags.owndata and codes.flags.c_contiguous
    strided = dlpack.get_mn_major_tma_aligned_tensor(np.arange(6, dtype=np.float32).reshape(3, 2))
    assert strided.strides == (4, 16) and strided.tolist() == [[0, 1], [2, 3], [4, 5]]
    gc.collect()
    assert strided.base is not None and strided.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_aliasing_is_what_the_contract_says() -> None:
    a, b, out = bf16(4, 8), bf16(8, 8), d()
    dlpack.bf16_gemm_nt(a, b, out, c=out)
    assert np.allclose(out, product(a, b) + 7, atol=1e-5)
    square = bf16(8, 8)
    with pytest.raises(ValueError, match="^bf16_gemm_nt: d overlaps a"):
        dlpack.bf16_gemm_nt(square, bf16(8, 8), square)


# ---- __dlpack__ ----------------------------------------------------------------------------------------------


def test_an_exporter_is_asked_for_a_version() -> None:
    a, b, out = Exporter(np.ones((3, 2), np.float32)), bf16(8, 8), d()
    assert dlpack.get_mn_major_tma_aligned_tensor(a).tolist() == [[1, 1]] * 3
    assert a.calls == [{"max_version": (1, 1)}]
    written = Exporter(out)
    dlpack.bf16_gemm_nt(bf16(4, 8), b, written)
    assert np.allclose(out, product(bf16(4, 8), b), atol=1e-5)


class Old(Exporter):
    """One that knows no version."""

    def __dlpack__(self, stream: Any = None) -> Any:  # type: ignore[override]
        self.calls.append({"stream": stream})
        return self.array.__dlpack__()


class OldOnCuda(Old):
    """As CuPy's arrays are, but for the device."""

    read_only: Any = False

    @property
    def __cuda_array_interface__(self) -> Any:
        return {"data": (0, self.read_only)}


def test_an_exporter_without_versions() -> None:
    for _ in range(2):
        old = Old(np.ones((3, 2), np.float32))
        assert dlpack.get_mn_major_tma_aligned_tensor(old).tolist() == [[1, 1]] * 3
        assert old.calls == [{"stream": None}]
    a, b, out = bf16(4, 8), bf16(8, 8), d()
    read_only = OldOnCuda(out)
    read_only.read_only = True
    for written in (Old(out), read_only):
        with pytest.raises(ValueError, match="^bf16_gemm_nt: d does not say whether it is read-only, expected a tensor that can be written$"):
            dlpack.bf16_gemm_nt(a, b, written)
    assert np.all(out == 7)
    dlpack.bf16_gemm_nt(a, b, OldOnCuda(out))
    assert np.allclose(out, product(a, b), atol=1e-5)


def test_a_copy_is_no_output() -> None:
    out = d()
    with pytest.raises(ValueError, match="^bf16_gemm_nt: d comes as a copy, expected a tensor that can be written$"):
        dlpack.bf16_gemm_nt(bf16(4, 8), bf16(8, 8), Exporter(out, copy=True))
    assert np.all(out == 7)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (BufferError("no"), "sf cannot be read through DLPack: no"),
        (RuntimeError("a device is gone"), "sf cannot be read through DLPack: a device is gone"),
        (TypeError("own"), "sf cannot be read through DLPack: own"),
    ],
)
def test_an_exporter_that_fails(error: Exception, text: str) -> None:
    class Failing(Exporter):
        def __dlpack__(self, **keywords: Any) -> Any:
            raise error

    with pytest.raises(ValueError) as caught:
        dlpack.get_mn_major_tma_aligned_tensor(Failing(d()))
    assert str(caught.value) == f"get_mn_major_tma_aligned_tensor: {text}" and caught.value.__cause__ is error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError("none")])
def test_what_says_nothing_of_the_tensor_passes(error: BaseException) -> None:
    class Failing(Exporter):
        def __dlpack_device__(self) -> Any:
            raise error

    with pytest.raises(type(error)) as caught:
        dlpack.get_mn_major_tma_aligned_tensor(Failing(d()))
    assert caught.value is error


def test_what_is_no_capsule() -> None:
    class Wrong(Exporter):
        def __dlpack__(self, **keywords: Any) -> Any:
            return self.array

        def __dlpack_device__(self) -> Any:
            return 1, 0

    used = np.ones((2, 2), np.float32).__dlpack__()
    np.from_dlpack(type("Once", (), {"__dlpack__": lambda self, **keywords: used, "__dlpack_device__": lambda self: (1, 0)})())
    for value, shown in ((1, "1"), (None, "None"), (used, "<capsule object \"used_dltensor")):
        with pytest.raises(ValueError) as caught:
            dlpack.get_mn_major_tma_aligned_tensor(Wrong(value))
        text = "get_mn_major_tma_aligned_tensor: sf cannot be read through DLPack: __dlpack__() returned "
        assert str(caught.value).startswith(text + shown) and str(caught.value).endswith(", expected a fresh capsule")


# A capsule made by hand, to see what becomes of it.


class Managed(ctypes.Structure):
    pass


DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
Managed._fields_ = [
    ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p), ("deleter", DELETER), ("flags", ctypes.c_uint64),
    ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
    ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
    ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
]  # fmt: skip

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class HandMade:
    """f32 [2, 2] in a versioned capsule; deleted counts the calls of its deleter."""

    def __init__(self, **members: Any):
        self.deleted = 0
        self.array = np.arange(4, dtype=np.float32)
        self.deleter = DELETER(self.delete)
        self.shape = (ctypes.c_int64 * 2)(2, 2)
        self.managed = Managed(1, 1, None, self.deleter, 0, self.array.ctypes.data, 1, 0, 2, 2, 32, 1, self.shape, None, 0)
        for name, value in members.items():
            setattr(self.managed, name, value)
        self.capsules: list[Any] = []

    def delete(self, managed: Any) -> None:
        self.deleted += 1

    def __dlpack__(self, **keywords: Any) -> Any:
        self.capsules.append(new_capsule(ctypes.addressof(self.managed), b"dltensor_versioned", None))
        return self.capsules[-1]


def test_a_capsule_is_consumed_once() -> None:
    made = HandMade()
    assert dlpack.get_mn_major_tma_aligned_tensor(made).tolist() == [[0, 1], [2, 3]]
    assert made.deleted == 1 and "used_dltensor_versioned" in repr(made.capsules[0])
    with pytest.raises(ValueError):
        dlpack.get_mn_major_tma_aligned_packed_ue8m0_tensor(made, psum_layout=np.zeros((3, 3), np.int32))
    assert made.deleted == 2


@pytest.mark.parametrize(
    ("members", "kind", "text"),
    [
        ({"major": 2, "minor": 5}, ValueError, "sf comes as DLPack 2.5, expected version 1"),
        ({"device_type": 10}, ValueError, "sf is on a device of type 10, expected the CPU or a CUDA device"),
        ({"flags": 4, "code": 17, "bits": 4}, TypeError, "sf has one FP4 element in each byte, expected pairs: pack two into each uint8"),
        ({"lanes": 4}, TypeError, "sf has dtype {code 2, bits 32, lanes 4}, expected f32"),
        ({"data": None}, ValueError, "sf has data NULL, expected memory for shape [2, 2]"),
        ({"ndim": 100}, ValueError, "sf has ndim = 100, expected 0 to 8"),
    ],
)
def test_a_capsule_that_is_refused(members: dict[str, Any], kind: type[Exception], text: str) -> None:
    made = HandMade(**members)
    with pytest.raises(kind) as caught:
        dlpack.get_mn_major_tma_aligned_tensor(made)
    assert str(caught.value).startswith(f"get_mn_major_tma_aligned_tensor: {text}")
    assert made.deleted == 1


# ---- where a call runs ---------------------------------------------------------------------------------------

# These need no GPU: the call is refused for its rank, behind the questions that it asks.


class Foreign(HandMade):
    """f32 [2], said to be on a GPU; calls has the keywords that it was asked with."""

    def __init__(self) -> None:
        super().__init__(device_type=2, ndim=1)
        self.calls: list[dict[str, Any]] = []

    def __dlpack__(self, **keywords: Any) -> Any:
        self.calls.append(keywords)
        return super().__dlpack__()

    def __dlpack_device__(self) -> Any:
        return 2, 0


class Api(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p), ("allocate", ctypes.c_void_p),
        ("managed_from_object", ctypes.c_void_p), ("object_from_managed", ctypes.c_void_p), ("tensor_from_object", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
    ]  # fmt: skip


STREAM = 0x1234
API_NAME = b"dlpack_exchange_api"  # a capsule only borrows its name
MANAGED_FROM_OBJECT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))
CURRENT_STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


@MANAGED_FROM_OBJECT
def managed_from_object(thing: Any, out: Any) -> int:
    out[0] = ctypes.addressof(thing.managed)
    return 0


@CURRENT_STREAM
def current_stream(device_type: int, device_id: int, out: Any) -> int:
    assert (device_type, device_id) == (2, 0)
    out[0] = STREAM
    return 0


API = Api(1, 3, None, None, ctypes.cast(managed_from_object, ctypes.c_void_p), None, None, ctypes.cast(current_stream, ctypes.c_void_p))
NEWER = Api(2, 0, ctypes.addressof(API), None, None, None, None, None)  # another layout, with the one that is known behind it


class Native(HandMade):
    """Of a library with a C exchange API, whose current stream is STREAM."""

    __dlpack_c_exchange_api__ = new_capsule(ctypes.addressof(API), API_NAME, None)

    def __init__(self) -> None:
        super().__init__(device_type=2, ndim=1)


class NativeOfTwoVersions(Native):
    __dlpack_c_exchange_api__ = new_capsule(ctypes.addressof(NEWER), API_NAME, None)


@pytest.mark.parametrize("native", [None, Native, NativeOfTwoVersions])
def test_exporters_are_asked_for_the_stream_of_the_call(native: type[HandMade] | None) -> None:
    a, b = Foreign(), Foreign() if native is None else native()
    with pytest.raises((ValueError, TypeError), match="^bf16_gemm_nt: a has "):
        dlpack.bf16_gemm_nt(a, b, Foreign())
    assert a.calls == [{"stream": 1 if native is None else STREAM, "max_version": (1, 1)}]
    assert a.deleted == b.deleted == 1


def test_the_cpu_has_no_stream() -> None:
    on_cpu = Exporter(np.ones((3, 2), np.float32))
    dlpack.get_mn_major_tma_aligned_tensor(on_cpu)
    assert on_cpu.calls == [{"max_version": (1, 1)}]


# ---- what is left behind -------------------------------------------------------------------------------------


class Callback:
    """A sequence that does something in the middle of a call."""

    def __init__(self, action: Callable[[], None]):
        self.action = action

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        self.action()
        return (1, 128, 128)[index]


def test_the_caller_may_change_a_pair_during_the_call() -> None:
    a: list[Any] = [np.ones((4, 256), FP8), np.ones((4, 2), np.float32)]
    out = d()
    dlpack.fp8_gemm_nt(a, B, out, recipe=Callback(lambda: (a.clear(), gc.collect())[0]))
    assert a == [] and np.all(out == 256)


def calls_of_every_kind() -> None:
    x = np.ones((4, 256), np.float32)
    dlpack.fp8_gemm_nt(A, list(B), d(), recipe=[1, 128, 128])
    dlpack.per_token_cast_to_fp8(x, False)
    dlpack.get_mn_major_tma_aligned_tensor(Exporter(x))
    dlpack.get_mn_major_tma_aligned_tensor(Old(x))
    dlpack.get_theoretical_mk_alignment_for_contiguous_layout(300)
    dlpack.set_num_sms(dlpack.get_num_sms())
    dlpack.transform_sf_into_required_layout(x, 4, 256 * 128, [1, 128])
    logits("bfloat16")
    for kind, _, call in VALUES:
        with pytest.raises(kind):
            call()
    for call in (
        lambda: dlpack.fp8_gemm_nt(A, B, x[:, :3]),
        lambda: dlpack.get_mn_major_tma_aligned_tensor(Exporter(np.zeros(1))),
        lambda: dlpack.get_mn_major_tma_aligned_tensor(HandMade(lanes=3)),
        lambda: dlpack.bf16_gemm_nt(bf16(4, 8), bf16(8, 8), Old(d())),
        lambda: dlpack.bf16_gemm_nt(1, 2, 3, 4, 5, 6),
    ):
        with pytest.raises((TypeError, ValueError)):
            call()


def test_references_are_given_back() -> None:
    a, b, out = bf16(4, 8), bf16(8, 8), d()
    exporter, recipe = Exporter(out), [1, 128, 128]
    watched = [a, b, out, exporter, recipe, A, B, *A, *B, None, True]
    for _ in range(3):
        calls_of_every_kind()
    before = [sys.getrefcount(x) for x in watched]
    for _ in range(50):
        dlpack.bf16_gemm_nt(a, b, exporter, c=out)
        dlpack.fp8_gemm_nt(A, B, out, recipe=recipe)
        with pytest.raises(ValueError):
            dlpack.fp8_gemm_nt(A, (A[0], A[1]), out, recipe=recipe, c=out)
        with pytest.raises(TypeError):
            dlpack.bf16_gemm_nt(a, b, exporter, c=recipe)
        exporter.calls.clear()
    after = [sys.getrefcount(x) for x in watched]
    assert [y - x for x, y in zip(before, after)][:9] == [0] * 9
    assert abs(after[-1] - before[-1]) < 20 and abs(after[-2] - before[-2]) < 20  # of None and True, which others use too


def test_memory_stays() -> None:
    for _ in range(20):
        calls_of_every_kind()
    gc.collect()
    objects, memory = len(gc.get_objects()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(200):
        calls_of_every_kind()
    gc.collect()
    assert len(gc.get_objects()) - objects < 50
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 4096  # KiB


def test_threads_work_at_the_same_time() -> None:
    errors: list[str] = []

    def work(seed: int) -> None:
        a, b = bf16(8 + seed, 64), bf16(16, 64)
        expected = product(a, b)
        for i in range(200):
            out = np.zeros((8 + seed, 16), np.float32)
            dlpack.bf16_gemm_nt(a, b, out)
            if not np.allclose(out, expected, atol=1e-4):
                errors.append(f"thread {seed}, call {i}: another result")
            try:
                dlpack.bf16_gemm_nt(a, b[:, : 8 + seed], out)
            except ValueError as error:
                if str(error) != f"bf16_gemm_nt: b has k = {8 + seed}, expected 64 to match a":
                    errors.append(f"thread {seed}, call {i}: {error}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_other_threads_run_during_a_call() -> None:
    """While one thread is in a kernel, another one counts, although nobody is made to give Python's lock away."""
    n = 768
    a, b, out = np.ones((n, 4096), BF16), np.ones((n, 4096), BF16), np.zeros((n, n), np.float32)
    count, is_done = 0, threading.Event()

    def call() -> None:
        dlpack.bf16_gemm_nt(a, b, out)
        is_done.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        thread = threading.Thread(target=call)
        thread.start()
        while count < 100 and not is_done.is_set():
            count += 1
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert count == 100 and np.all(out == 4096)
