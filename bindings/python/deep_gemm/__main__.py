"""``python -m deep_gemm``: what is installed, what runs each operator here, and a self-check of about a second.

The exit status is 0 when the checks pass. The library is asked directly, so this works without torch, too; what needs torch is then left
out, and said to be.
"""

from __future__ import annotations

import argparse
import ctypes
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import __path__, __version__
from ._release import RELEASE

CPU, CUDA = 1, 2  # DLPack's numbers
MOST_GPUS = 64


def main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--prefix", action="store_true", help="print only the folder with include/ and lib/, for CMake and pkg-config")
    parser.add_argument("--no-check", action="store_true", help="leave the self-check out")
    options = parser.parse_args()
    if options.prefix:
        print(prefix())
        return 0
    library = Library(library_file())
    torch, reason = find_torch()
    describe(library, torch, reason)
    return 0 if options.no_check else self_check(library, torch)


# ---- where things are --------------------------------------------------------------------------------------------


def library_file() -> Path:
    name = f"libdeep_gemm.so.{RELEASE.partition('.')[0]}"
    for folder in __path__:
        if (file := Path(folder, name)).exists():
            return file
    raise SystemExit(f"{__package__}: no {name} in {', '.join(__path__)}")


def prefix() -> Path:
    """Where a C program finds the headers, the CMake package and the pkg-config files."""
    for folder in __path__:
        if Path(folder, "include").is_dir():
            return Path(folder)
    raise SystemExit(f"{__package__}: no include/ in {', '.join(__path__)}: only an installed package has the headers")


def find_torch() -> tuple[Any, str]:
    """torch, or why there is none."""
    try:
        from ._torch import torch
    except ImportError as error:
        return None, str(error)
    return torch, ""


# ---- the C library -----------------------------------------------------------------------------------------------


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]

    def __str__(self) -> str:
        return "cpu" if self.type == CPU else f"cuda:{self.id}"


class Operator(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("schema", ctypes.c_char_p), ("backends", ctypes.POINTER(ctypes.c_char_p))]


class DType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", DType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class ContextOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("device", Device),
        ("stream", ctypes.c_void_p),
        ("backend", ctypes.c_char_p),
        ("num_threads", ctypes.c_int32),
        ("use_process_settings", ctypes.c_bool),
        ("callbacks", ctypes.c_void_p * 5),
    ]


class Library:
    """The few functions of the C library that are called here."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.c = ctypes.CDLL(str(file))
        self.c.dg_version.restype = ctypes.c_char_p
        self.c.dg_last_error.restype = ctypes.c_char_p
        self.c.dg_schema_hash.restype = ctypes.c_uint64
        self.c.dg_has_cuda.restype = ctypes.c_bool
        self.c.dg_operators.restype = ctypes.POINTER(Operator)
        self.c.dg_backend_available.restype = ctypes.c_bool
        self.c.dg_backend_available.argtypes = [ctypes.c_char_p, Device]
        self.c.dg_bf16_gemm_nt.argtypes = [ctypes.c_void_p, *[ctypes.POINTER(Tensor)] * 3, ctypes.c_void_p]

    def operators(self) -> Iterator[tuple[str, list[str]]]:
        """Names and backends."""
        count = ctypes.c_size_t()
        table = self.c.dg_operators(ctypes.byref(count))
        for row in table[: count.value]:
            backends: list[str] = []
            while (name := row.backends[len(backends)]) is not None:
                backends.append(name.decode())
            yield row.name.decode(), backends

    def runs(self, backend: str, device: Device) -> bool:
        return bool(self.c.dg_backend_available(backend.encode(), device))

    def devices(self) -> list[Device]:
        """Those that some backend runs on."""
        names = {name for _, backends in self.operators() for name in backends}
        found = [Device(CPU, 0)]
        for index in range(MOST_GPUS):
            device = Device(CUDA, index)
            if not any(self.runs(name, device) for name in names):
                break
            found.append(device)
        return found


# ---- the description ---------------------------------------------------------------------------------------------


def describe(library: Library, torch: Any, reason: str) -> None:
    c, devices = library.c, library.devices()
    print(f"deep_gemm {__version__}")
    row("library", f"{c.dg_version().decode()}, {library.file}")
    row("schema", f"{c.dg_schema_hash():016x}")
    row("Python", f"{platform.python_version()}, {sys.executable}")
    row("torch", torch.__version__ if torch else reason)
    row("CUDA", "the library has CUDA kernels" if c.dg_has_cuda() else "the library was built without CUDA kernels")
    for device in devices:
        row(str(device), processor() if device.type == CPU else gpu(torch, device.id))

    print("\nwhat runs an operator here, best last")
    operators = list(library.operators())
    width = max(len(name) for name, _ in operators)
    for name, backends in operators:
        parts = [f"{device}: {' '.join(found)}" for device in devices if (found := [b for b in backends if library.runs(b, device)])]
        print(f"  {name:{width}}  {'   '.join(parts) or ('nothing' if backends else 'no kernel in this release')}")


def row(name: str, value: str) -> None:
    print(f"  {name:9} {value}")


def processor() -> str:
    """The name that Linux has for it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return f"{names[0]}, {len(names)} processors" if names else platform.machine()


def gpu(torch: Any, index: int) -> str:
    if torch is None or index >= torch.cuda.device_count():
        return "a GPU"
    major, minor = torch.cuda.get_device_capability(index)
    return f"{torch.cuda.get_device_name(index)}, compute capability {major}.{minor}"


# ---- the self-check ----------------------------------------------------------------------------------------------


def self_check(library: Library, torch: Any) -> int:
    """Prints one line a check; 0 when all pass."""
    print("\nself-check")
    checks = list(library_checks(library))
    if torch is None:
        print("  left out: all that needs torch")
    else:
        checks += torch_checks(torch, [str(device) for device in library.devices()])
    failed, begin = 0, time.perf_counter()
    for name, check in checks:
        try:
            check()
        except Exception as error:
            failed += 1
            print(f"  FAILED  {name}: {type(error).__name__}: {error}")
        else:
            print(f"  passed  {name}")
    print(f"{len(checks) - failed} of {len(checks)} checks passed in {time.perf_counter() - begin:.2f} s")
    return 1 if failed else 0


def library_checks(library: Library) -> Iterator[tuple[str, Callable[[], None]]]:
    """A GEMM of the C library with each backend of this processor."""
    backends = dict(library.operators())["bf16_gemm_nt"]
    for backend in backends:
        if library.runs(backend, Device(CPU, 0)):
            yield f"C bf16_gemm_nt, {backend}", lambda backend=backend: check_c_gemm(library, backend)  # type: ignore[misc]


def check_c_gemm(library: Library, backend: str) -> None:
    """Small integers, so that the result is exact."""
    m, n, k = 5, 7, 64
    a = [[(3 * i + j) % 5 - 2 for j in range(k)] for i in range(m)]
    b = [[(2 * i + 3 * j) % 7 - 3 for j in range(k)] for i in range(n)]
    d = (ctypes.c_float * (m * n))()
    options = ContextOptions(struct_size=ctypes.sizeof(ContextOptions), device=Device(CPU, 0), backend=backend.encode())
    context = ctypes.c_void_p()
    try:
        require_ok(library, library.c.dg_context_create(ctypes.byref(options), ctypes.byref(context)))
        operands = bf16(a), bf16(b), tensor(d, (m, n), DType(2, 32, 1))
        require_ok(library, library.c.dg_bf16_gemm_nt(context, *map(ctypes.byref, operands), None))
    finally:
        library.c.dg_context_destroy(context)
    expected = [float(sum(x * y for x, y in zip(row, column))) for row in a for column in b]
    if list(d) != expected:
        raise ArithmeticError(f"the result differs from the exact one, the first element is {d[0]}, expected {expected[0]}")


def bf16(rows: list[list[int]]) -> Tensor:
    """The upper halves of the f32 numbers."""
    numbers = [float(x) for row in rows for x in row]
    words = (ctypes.c_uint32 * len(numbers)).from_buffer_copy((ctypes.c_float * len(numbers))(*numbers))
    return tensor((ctypes.c_uint16 * len(numbers))(*[word >> 16 for word in words]), (len(rows), len(rows[0])), DType(4, 16, 1))


def tensor(data: Any, shape: tuple[int, int], dtype: DType) -> Tensor:
    result = Tensor(ctypes.cast(data, ctypes.c_void_p), Device(CPU, 0), 2, dtype, (ctypes.c_int64 * 2)(*shape), None, 0)
    result.keep = data  # a pointer keeps nothing alive
    return result


def require_ok(library: Library, status: int) -> None:
    if status != 0:
        raise RuntimeError(library.c.dg_last_error().decode())


def torch_checks(torch: Any, devices: list[str]) -> Iterator[tuple[str, Callable[[], None]]]:
    from . import _C, testing, utils  # pyright: ignore[reportPrivateUsage]

    def gemm(device: str) -> None:
        torch.manual_seed(0)
        x, w = torch.randn(48, 512, device=device), torch.randn(160, 512, device=device)
        d = torch.empty(48, 160, dtype=torch.bfloat16, device=device)
        _C.fp8_gemm_nt(utils.per_token_cast_to_fp8(x, use_ue8m0=False), utils.per_block_cast_to_fp8(w, use_ue8m0=False), d)
        require_close(d, x @ w.T, 1e-3)

    def cast(device: str) -> None:
        x = torch.linspace(-3, 3, 4 * 128, device=device).view(4, 128)
        require_close(utils.cast_back_from_fp4(*utils.per_token_cast_to_fp4(x, use_ue8m0=True, gran_k=32), gran_k=32), x, 1e-2)

    def refusal(device: str) -> None:
        x = torch.ones(4, 64, dtype=torch.bfloat16, device=device)
        try:
            _C.bf16_gemm_nt(x, x[:, :32], torch.empty(4, 4, device=device))
        except ValueError as error:
            if str(error) == "bf16_gemm_nt: b has k = 32, expected 64 to match a":
                return
            raise
        raise AssertionError("operands that do not fit were let through")

    def require_close(got: Any, wanted: Any, limit: float) -> None:
        difference = testing.calc_diff(got, wanted)
        if not difference < limit:
            raise ArithmeticError(f"the difference to the expected result is {difference:.2e}, allowed is {limit:.0e}")

    for device in devices:
        for name, check in (("fp8_gemm_nt after casts", gemm), ("a cast to FP4 and back", cast), ("a wrong shape is refused", refusal)):
            yield f"{name}, {device}", lambda check=check, device=device: check(device)  # type: ignore[misc]


if __name__ == "__main__":
    sys.exit(main())
