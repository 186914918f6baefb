#!/usr/bin/env python3
"""GPU time of the operators on CUDA, beside a table of DeepGEMM's times, torch, and what the card allows.

    python tests/bench/cuda.py [--baseline times.csv] [--json out.json] [--sections "bf16: GEMM,einsum"] [--seconds 230]
    python tests/bench/cuda.py --dry-run [--baseline times.csv]     # no GPU needed: checks the arguments of every case

With --baseline the rows are those of the table (columns: section, case, us, tflops, gb_per_s, ...), and shapes are read from the text of its cases;
casts, scale layouts and mega MoE, which no table has, are added. Without it the rows are a few for each section, in cuda_cases.py. A
row that is not measured is listed with the reason, at the end.

us is the median over the calls of a row. The time of a call is the sum of its kernels as the CUDA profiler reports them, with L2 flushed by a memset
of 8 GB before every call, on random normal data (zeros run faster). The clock of a card varies: at the head of each section a torch.mm, the
anchor, is timed, and times can be compared as multiples of it. The peer of a GEMM is torch.mm in bf16 of the same shape, or one for each group; that of
what moves memory is a copy that reads and writes as many bytes in all, so that 1 / (x peer) is the share of the bandwidth of a copy. Sections `whole op`
and `host` are other times: of a call in a CUDA graph of 20, with operands in L2, and until the call from Python returns.

The limit of a row is the greater of 2.6 us + bytes / bandwidth and flops / rate: bandwidth is that of a large copy, the rate in bf16 that of the
anchor, in FP8 that of the same product by torch._scaled_mm, in TF32 half of the one in bf16; all measured in the same run. A tuned GEMM of
another shape can be a little faster than the anchor, so the limit is a scale rather than a bound. The other times have none.

The exit status is 1 if a row failed; an operator that refuses CUDA tensors is no failure, but listed.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import faulthandler
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

# torch is imported in functions: as it loads it looks for `cuda`, a package of NVIDIA's, and comes by this file.
if TYPE_CHECKING:
    from cuda_cases import Case, Row

ANCHOR = (4096, 7168, 2048)  # m, n, k
FLUSH_BYTES = 8 << 30
COPY_BYTES = 4 << 30  # of the copy that gives the bandwidth: read and written
LEAST_CALLS, PEER_CALLS = 3, 10
CALLS_OF_GRAPH = 20
HOST_CALLS, HOST_BATCHES = 20, 10  # the device catches up after each batch
FIRST_BYTE_US = 2.6  # of any kernel that streams memory, measured on an H200
SLOWEST = 10
SECONDS_AT_THE_END = 2  # what --seconds keeps for the last row and the report


@dataclass
class Machine:
    """What this run measured of the card."""

    anchor_us: float
    copy_gb_per_s: float
    tflops: dict[str, float]  # by the unit of a case

    def limit_us(self, case: Case) -> float | None:
        if case.how != "kernels":
            return None
        by_bytes = FIRST_BYTE_US + 1e-3 * case.size / self.copy_gb_per_s
        return max(by_bytes, 1e-6 * case.flops / self.tflops[case.unit]) if case.unit else by_bytes


@dataclass
class Result:
    section: str
    case: str
    us: float
    least_us: float
    greatest_us: float
    calls: int
    kernels: int | None  # of a call, where they are seen
    tflops: float
    gb_per_s: float
    limit_us: float | None
    anchor_us: float
    peer_us: float | None
    baseline_us: float | None


class Unmeasured(Exception):
    """The profiler's record of a row cannot be used."""


# ---- time ------------------------------------------------------------------------------------------------------


def per_call(kernels: Sequence[tuple[str, float]], calls: int) -> list[list[float]]:
    """The durations of the kernels of each call, from the names and durations of all kernels in order of time: before each call L2 is flushed.

    A flush is one kernel or several in a row, of the first one's name and lasting about as long; an operator may fill small memory of its own.
    """
    if not kernels:
        raise Unmeasured("the profiler saw no kernel")
    flush, _ = kernels[0]
    longest = max(duration for name, duration in kernels if name == flush)
    found: list[list[float]] = []
    is_flushing = False
    for name, duration in kernels:
        was_flushing, is_flushing = is_flushing, name == flush and duration > longest / 2
        if is_flushing and not was_flushing:
            found.append([])
        if not is_flushing:
            found[-1].append(duration)
    if len(found) != calls:
        raise Unmeasured(f"the profiler saw {len(found)} of {calls} flushes of L2")
    counts = {len(call) for call in found}
    if 0 in counts:
        raise Unmeasured("the profiler saw no kernel of a call")
    if len(counts) != 1:
        raise Unmeasured(f"the profiler saw from {min(counts)} to {max(counts)} kernels in a call")
    return found


def two_events() -> tuple[Any, Any]:
    import torch

    new_event: Any = torch.cuda.Event
    return new_event(enable_timing=True), new_event(enable_timing=True)


class Clock:
    """Times calls on the current CUDA device."""

    def __init__(self, calls: int, seconds_per_row: float) -> None:
        import torch

        self.calls, self.seconds_per_row = calls, seconds_per_row
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")

    def kernels_us(self, call: Callable[[], object], most: int) -> list[list[float]]:
        """The durations of the kernels of each call. At least LEAST_CALLS, and no more than `most` and than fit the time of a row."""
        import torch

        call()  # what happens once happens here
        begin, end = two_events()
        begin.record()
        self.flush.zero_()
        call()
        end.record()
        torch.cuda.synchronize()
        calls = min(most, max(LEAST_CALLS, int(self.seconds_per_row / (1e-3 * begin.elapsed_time(end)))))
        try:
            return self._profile(call, calls)
        except Unmeasured:  # a record was lost, or its buffer was full
            return self._profile(call, calls)

    def us(self, call: Callable[[], object]) -> float:
        """The median of PEER_CALLS."""
        return statistics.median(map(sum, self.kernels_us(call, PEER_CALLS)))

    def graph_us(self, call: Callable[[], object]) -> list[float]:
        """The time of a call in a CUDA graph of CALLS_OF_GRAPH, for each replay."""
        import torch

        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(CALLS_OF_GRAPH):
                call()
        begin, end = two_events()
        times: list[float] = []
        stop = time.monotonic() + self.seconds_per_row
        graph.replay()
        while len(times) < LEAST_CALLS or (len(times) < self.calls and time.monotonic() < stop):
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(1e3 * begin.elapsed_time(end) / CALLS_OF_GRAPH)
        return times

    def host_us(self, call: Callable[[], object]) -> list[float]:
        """The time until the call returns, for each call."""
        import torch

        times: list[float] = []
        for _ in range(1 + HOST_BATCHES):
            torch.cuda.synchronize()
            for _ in range(HOST_CALLS):
                begin = time.perf_counter_ns()
                call()
                times.append(1e-3 * (time.perf_counter_ns() - begin))
        torch.cuda.synchronize()
        return times[HOST_CALLS:]  # the first batch warms up

    def _profile(self, call: Callable[[], object], calls: int) -> list[list[float]]:
        import torch
        from torch._C._autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for _ in range(calls):
                self.flush.zero_()
                call()
            torch.cuda.synchronize()
        # Some releases of the profiler also have the waits for the device in its record.
        events: Any = [x for x in profiler.events() if x.device_type == DeviceType.CUDA and not x.name.endswith(" Sync")]
        events.sort(key=lambda event: event.time_range.start)
        return per_call([(event.name, event.time_range.elapsed_us()) for event in events], calls)


def measure_machine(clock: Clock) -> Machine:
    import torch

    m, n, k = ANCHOR
    flops = 2e-6 * m * n * k
    a, b = torch.randn(m, k, device="cuda", dtype=torch.bfloat16), torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    anchor = clock.us(lambda: torch.mm(a, b.T))
    bf16 = flops / anchor
    try:
        a8, b8, one = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn), torch.ones((), device="cuda")
        fp8 = flops / clock.us(lambda: torch._scaled_mm(a8, b8.T, one, one, out_dtype=torch.bfloat16))
    except (RuntimeError, ValueError) as error:  # a card without FP8: what is stored in it is multiplied in 16 bits
        progress(f"torch._scaled_mm: {error}; the limit in FP8 is that in bf16")
        fp8 = bf16
    source = torch.empty(COPY_BYTES // 2, dtype=torch.int8, device="cuda").random_()
    target = torch.empty_like(source)
    copy = 1e-3 * COPY_BYTES / clock.us(lambda: target.copy_(source))
    return Machine(anchor, copy, {"bf16": bf16, "fp8": fp8, "tf32": bf16 / 2})


def measure(clock: Clock, machine: Machine, row: Row, with_peer: bool) -> Result:
    from cuda_cases import make_case

    case = make_case(row, "cuda")
    kernels = None
    if case.how == "graph":
        times = clock.graph_us(case.call)
    elif case.how == "host":
        times = clock.host_us(case.call)
    else:
        calls = clock.kernels_us(case.call, clock.calls)
        times, kernels = [sum(each) for each in calls], len(calls[0])
    us = statistics.median(times)
    peer = clock.us(case.peer) if with_peer and case.peer is not None and case.how == "kernels" else None
    return Result(
        row.section, row.case, us, min(times), max(times), len(times), kernels, 1e-6 * case.flops / us, 1e-3 * case.size / us,
        machine.limit_us(case), machine.anchor_us, peer, row.us,
    )  # fmt: skip


# ---- rows ------------------------------------------------------------------------------------------------------


def number(text: str | None) -> float | None:
    return float(text) if text else None


def read_rows(baseline: str | None, sections: Sequence[str]) -> list[Row]:
    """The rows of the sections that contain one of `sections`, section by section."""
    from cuda_cases import Row, own_rows, shapes_of_deepgemm

    if baseline is None:
        rows = list(shapes_of_deepgemm())
    else:
        with open(baseline, newline="", encoding="utf-8") as file:
            rows = [Row(x["section"], x["case"], number(x["us"]), number(x["tflops"]), number(x["gb_per_s"])) for x in csv.DictReader(file)]
    rows += own_rows()
    wanted = [row for row in rows if any(word.strip() in row.section for word in sections)]
    return [row for section in dict.fromkeys(row.section for row in wanted) for row in wanted if row.section == section]


# ---- report ----------------------------------------------------------------------------------------------------


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def mean_or_dash(values: Sequence[float]) -> str:
    return f"{statistics.geometric_mean(values):.2f}" if values else "-"


@dataclass
class Report:
    """Everything a run found, which is printed as it comes and written to a file after each row."""

    head: dict[str, Any]
    path: str | None
    results: list[Result]
    left_out: list[tuple[Row, str]]
    failed: list[tuple[Row, str]]

    def write(self) -> None:
        if self.path is None:
            return
        text = json.dumps(
            {
                **self.head,
                "rows": [{name: round(x, 3) if isinstance(x, float) else x for name, x in asdict(row).items()} for row in self.results],
                "not_measured": [{"section": row.section, "case": row.case, "why": why} for row, why in self.left_out],
                "failed": [{"section": row.section, "case": row.case, "why": why} for row, why in self.failed],
            },
            indent=1,
        )
        with open(f"{self.path}.part", "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.replace(f"{self.path}.part", self.path)

    def print_row(self, x: Result) -> None:
        def ratio(other: float | None) -> str:
            return f"{x.us / other:8.2f}" if other else f"{'-':>8}"

        print(
            f"  {x.case:95} {x.us:9.1f} {x.tflops:8.0f} {x.gb_per_s:6.0f} {ratio(x.limit_us)} {ratio(x.peer_us)} "
            f"{x.us / x.anchor_us:8.3f} {ratio(x.baseline_us)}",
            flush=True,
        )

    def print_end(self) -> None:
        from cuda_cases import MEMORY_SECTIONS

        print("\nGeometric means per section")
        print(f"  {'section':70} {'rows':>5} {'x limit':>8} {'x peer':>8} {'x table':>8} {'(rows)':>7} {'share of a copy':>16}")
        for section in dict.fromkeys(row.section for row in self.results):
            own = [row for row in self.results if row.section == section]
            peers = [row.us / row.peer_us for row in own if row.peer_us]
            known = [row.us / row.baseline_us for row in own if row.baseline_us]
            limits = [row.us / row.limit_us for row in own if row.limit_us]
            shares = [1 / peer for peer in peers] if section in MEMORY_SECTIONS else []
            print(f"  {section:70} {len(own):5} {mean_or_dash(limits):>8} {mean_or_dash(peers):>8} "
                  f"{mean_or_dash(known):>8} {len(known):7} {mean_or_dash(shares):>16}")  # fmt: skip
        slowest = sorted((row for row in self.results if row.baseline_us), key=lambda row: -row.us / (row.baseline_us or 1))[:SLOWEST]
        if slowest:
            print(f"\nThe {len(slowest)} slowest, as multiples of the table")
            for row in slowest:
                print(f"  {row.us / (row.baseline_us or 1):8.2f}  {row.section}: {row.case}: {row.us:.1f} us, table {row.baseline_us} us")
        for title, rows in (("Not measured", self.left_out), ("FAILED", self.failed)):
            print(f"\n{title}: {len(rows)} rows")
            for why in dict.fromkeys(why for _, why in rows):
                print(f"  {why}:")
                for left in (row for row, reason in rows if reason == why):
                    print(f"    {left.section}: {left.case}")


def output_of(*command: str) -> str:
    """What a command prints, or why it did not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True, cwd=os.path.dirname(os.path.abspath(__file__)))
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({type(error).__name__})"
    return done.stdout.strip()


def describe_card() -> dict[str, Any]:
    fields = "driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu"
    return dict(zip(fields.split(","), output_of("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "--id=0").split(", ")))


def describe_run(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    import deep_gemm

    properties = torch.cuda.get_device_properties(0)
    return {
        "commit": args.commit or output_of("git", "describe", "--always", "--dirty"),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "device": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "card": describe_card(),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "deep_gemm": deep_gemm.__version__,
        "backend": os.environ.get("DG_BACKEND", ""),
        "baseline": os.path.basename(args.baseline) if args.baseline else None,
        "calls": args.calls,
        "seconds_per_row": args.seconds_per_row,
    }


# ---- runs ------------------------------------------------------------------------------------------------------


def run(args: argparse.Namespace, rows: Sequence[Row]) -> int:
    import torch
    from cuda_cases import why_not

    if not torch.cuda.is_available():
        sys.exit("needs a CUDA device; --dry-run does not")
    stop = time.monotonic() + args.seconds - SECONDS_AT_THE_END if args.seconds else None
    torch.manual_seed(0)
    report = Report(describe_run(args), args.json, [], [], [])
    clock = Clock(args.calls, args.seconds_per_row)
    section, machine, is_lost = "", None, False
    for i, row in enumerate(rows):
        reason = why_not(row)
        if reason is None and stop is not None and time.monotonic() > stop:
            reason = f"the {args.seconds} s of --seconds were over"
        if reason is not None:
            report.left_out.append((row, reason))
            continue
        if is_lost:
            report.failed.append((row, "the device was lost in an earlier row"))
            continue
        progress(f"[{i + 1}/{len(rows)}] {row.section}: {row.case}")
        faulthandler.dump_traceback_later(args.watchdog, exit=True, file=sys.__stderr__ or sys.stderr)
        try:
            if machine is None or row.section != section:
                section, machine = row.section, measure_machine(clock)
                report.head["machine"] = [*report.head.get("machine", []), {"section": section, **asdict(machine), "card": describe_card()}]
                print_head(section, machine)
            report.results.append(measure(clock, machine, row, not args.no_peers))
            report.print_row(report.results[-1])
        except NotImplementedError as refusal:
            report.left_out.append((row, str(refusal)))
        except Exception as error:  # one row does not end the run
            report.failed.append((row, f"{type(error).__name__}: {error}"))
            progress(f"  failed: {type(error).__name__}: {error}")
            is_lost = not is_usable()
        faulthandler.cancel_dump_traceback_later()
        report.write()
    report.head["card_at_the_end"] = describe_card()
    report.write()
    report.print_end()
    return 1 if report.failed else 0


def print_head(section: str, machine: Machine) -> None:
    rates = ", ".join(f"{unit} {rate:.0f} TFLOP/s" for unit, rate in machine.tflops.items())
    print(f"\n{section}: anchor {machine.anchor_us:.1f} us; limits: {rates}, copy {machine.copy_gb_per_s:.0f} GB/s")
    print(f"  {'case':95} {'us':>9} {'TFLOP/s':>8} {'GB/s':>6} {'x limit':>8} {'x peer':>8} {'x anchor':>8} {'x table':>8}")


def is_usable() -> bool:
    """Whether the device still works after an error: a fault of a kernel takes the context with it."""
    import torch

    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True


def dry_run(rows: Sequence[Row]) -> int:
    """Makes each case at its full size on the CPU, from memory that nobody touches, and calls the operator with a row of its table that the CPU
    does not have: the call is refused, and only after the arguments have been checked."""
    from cuda_cases import make_case, why_not

    failed = left_out = 0
    for row in rows:
        reason = why_not(row)
        if reason is not None:
            left_out += 1
            print(f"not measured  {row.section}: {row.case}: {reason}")
            continue
        try:
            case = make_case(row, "cpu", is_real=False)
            try:
                case.call()
                raise AssertionError("the call was not refused")
            except NotImplementedError as refusal:
                if "DG_BACKEND" not in str(refusal):
                    raise
        except Exception as error:  # one row does not end the run
            failed += 1
            print(f"FAILED        {row.section}: {row.case}: {type(error).__name__}: {error}")
            continue
        work = f"{1e-9 * case.flops:.1f} GFLOP, {1e-6 * case.size:.1f} MB"
        if row.flops and row.gb_per_s and row.us:
            work += f"; of the table's work: {case.flops / row.flops:.2f}, {case.size / (1e3 * row.gb_per_s * row.us):.2f}"
        print(f"would run     {row.section}: {row.case}: {work}")
    print(f"{len(rows)} rows: {len(rows) - failed - left_out} would run, {left_out} are not measured, {failed} failed")
    return 1 if failed else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baseline", help="CSV file of times to compare with")
    parser.add_argument("--json", help="file that gets all numbers")
    parser.add_argument("--sections", default="", help="only sections that contain one of these words, with commas between them")
    parser.add_argument("--calls", type=int, default=30, help="timed calls per row, at the most")
    parser.add_argument("--seconds-per-row", type=float, default=0.15, help="GPU time for the calls of a row; there are three calls at least")
    parser.add_argument("--seconds", type=float, help="time for everything; rows that do not fit are listed")
    parser.add_argument("--watchdog", type=float, default=60, help="seconds after which a row that hangs ends the run")
    parser.add_argument("--no-peers", action="store_true", help="without the times of torch")
    parser.add_argument("--commit", help="what the JSON says was measured; git tells without it")
    parser.add_argument("--dry-run", action="store_true", help="check the arguments of every case, on the CPU")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    if args.dry_run:
        os.environ["DG_BACKEND"] = "sm80"  # read when the first operator is called
    rows = read_rows(args.baseline, args.sections.split(","))
    if not rows:
        sys.exit(f"no section contains {args.sections!r}")
    return dry_run(rows) if args.dry_run else run(args, rows)


if __name__ == "__main__":
    sys.exit(main())
