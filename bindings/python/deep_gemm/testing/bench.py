"""Timing functions and kernels."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator
from typing import Any, overload

import torch

__all__ = ["bench", "bench_kineto"]

_FLUSH_BYTES = 256 << 20  # more than any cache between a kernel and memory


def bench(fn: Callable[[], Any], num_warmups: int = 5, num_tests: int = 10, high_precision: bool = False) -> float:
    """The mean time of a call of fn in seconds: on the GPU when there is one, else on the CPU. With high_precision, a long kernel runs
    ahead of the timed ones, so that the time of launching them does not show."""
    for _ in range(num_warmups):
        fn()
    if not torch.cuda.is_available():
        begin = time.perf_counter()
        for _ in range(num_tests):
            fn()
        return (time.perf_counter() - begin) / num_tests
    torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda").zero_()
    if high_precision:
        x = torch.randn((8192, 8192), dtype=torch.float32, device="cuda")
        torch.mm(x, x)
    new_event: Any = torch.cuda.Event
    begin_event, end_event = new_event(enable_timing=True), new_event(enable_timing=True)
    begin_event.record()
    for _ in range(num_tests):
        fn()
    end_event.record()
    torch.cuda.synchronize()
    return float(begin_event.elapsed_time(end_event)) / num_tests / 1e3


@overload
def bench_kineto(
    fn: Callable[[], Any],
    kernel_names: str,
    num_tests: int = 30,
    suppress_kineto_output: bool = False,
    trace_path: str | None = None,
    flush_l2: bool = True,
    with_multiple_kernels: bool = False,
    barrier: Callable[[], Any] | None = None,
) -> float: ...
@overload
def bench_kineto(
    fn: Callable[[], Any],
    kernel_names: tuple[str, ...],
    num_tests: int = 30,
    suppress_kineto_output: bool = False,
    trace_path: str | None = None,
    flush_l2: bool = True,
    with_multiple_kernels: bool = False,
    barrier: Callable[[], Any] | None = None,
) -> tuple[float, ...]: ...
def bench_kineto(
    fn: Callable[[], Any],
    kernel_names: str | tuple[str, ...],
    num_tests: int = 30,
    suppress_kineto_output: bool = False,
    trace_path: str | None = None,
    flush_l2: bool = True,
    with_multiple_kernels: bool = False,
    barrier: Callable[[], Any] | None = None,
) -> float | tuple[float, ...]:
    """The mean time in seconds, by torch's profiler, that kernels with these words in their names take per launch on the GPU.

    A word must match one kernel, or with_multiple_kernels any number of them, whose times per call of fn are added. flush_l2 writes a
    large tensor before each call; barrier, if given, is called then too. trace_path gets the profiler's trace.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("bench_kineto times kernels on a GPU, and this machine has none; bench() times calls on the CPU")
    names = (kernel_names,) if isinstance(kernel_names, str) else kernel_names
    fn()
    with _silenced() if suppress_kineto_output else contextlib.nullcontext():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            for _ in range(num_tests):
                if flush_l2:
                    torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda").zero_()
                if barrier is not None:
                    barrier()
                fn()
            torch.cuda.synchronize()
    if trace_path is not None:
        profiler.export_chrome_trace(trace_path)
    events: Any = profiler.key_averages()
    times: list[float] = []
    for name in names:
        matching: list[Any] = [event for event in events if name in event.key]
        if not matching or (len(matching) > 1 and not with_multiple_kernels):
            found = ", ".join(event.key for event in matching) or "none"
            raise ValueError(f"bench_kineto: {name!r} must match one kernel, it matches {found}")
        total = sum(event.device_time_total for event in matching) / 1e6
        launches = num_tests if with_multiple_kernels else matching[0].count
        times.append(total / launches)
    return times[0] if isinstance(kernel_names, str) else tuple(times)


@contextlib.contextmanager
def _silenced() -> Generator[None, None, None]:
    """Sends what is written to the standard streams, by C++ code too, to nowhere."""
    saved = [os.dup(fd) for fd in (1, 2)]
    try:
        with open(os.devnull, "wb") as nowhere:
            for fd in (1, 2):
                os.dup2(nowhere.fileno(), fd)
        yield
    finally:
        for fd, copy in zip((1, 2), saved):
            os.dup2(copy, fd)
            os.close(copy)
