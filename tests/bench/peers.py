"""What the benchmarks of the CPU share: cold operands, peers that take turns, and a machine held to AVX2."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

COLD_BYTES = 160 << 20

Peers = dict[str, Callable[[], object]]
Measure = Callable[[Peers], dict[str, float]]


def hold_to_avx2() -> None:
    """This library, torch and what torch calls, when they are loaded after this."""
    os.environ.update(DG_BACKEND="avx2", ATEN_CPU_CAPABILITY="avx2", ONEDNN_MAX_CPU_ISA="AVX2", MKL_ENABLE_INSTRUCTIONS="AVX2")


class Rotation:
    """Copies of a tensor, a different one each time, so that none is in a cache."""

    def __init__(self, x: Tensor) -> None:
        count = max(2, -(-COLD_BYTES // (x.numel() * x.element_size())))
        self.copies = [x, *(x.clone() for _ in range(count - 1))]
        self.next = 0

    def __call__(self) -> Tensor:
        self.next = (self.next + 1) % len(self.copies)
        return self.copies[self.next]


def median_seconds(peers: Peers, seconds: float, clock: Callable[[], float]) -> dict[str, float]:
    """Peers take turns. A call that is not timed goes before each that is, so that its threads are awake and those of others asleep."""
    times: dict[str, list[float]] = {name: [] for name in peers}
    while any(sum(t) < seconds or len(t) < 3 for t in times.values()):
        for name, call in peers.items():
            if sum(times[name]) >= seconds and len(times[name]) >= 3:
                continue
            call()
            start = clock()
            call()
            times[name].append(clock() - start)
    return {name: statistics.median(t) for name, t in times.items()}


def report(title: str, flops: float, seconds: dict[str, float]) -> None:
    """Of each peer its time and what it makes of it; the first one is this library, the others have their ratio to it."""
    ours = next(iter(seconds.values()))
    print(title)
    for name, value in seconds.items():
        ratio = f"{value / ours:8.2f}x" if value is not ours else ""
        print(f"    {name:<38}{value * 1e3:10.2f} ms {flops / value * 1e-9:9.1f} GFLOP/s {ratio}", flush=True)
