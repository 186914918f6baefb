#!/usr/bin/env python3
"""How long importing the package takes on top of torch, in milliseconds of wall clock.

    PYTHONPATH=build/python python tests/bench/import_time.py [--runs 7] [--json FILE]

Each run is a process of its own that has imported torch already; compiled modules are in place, as a user has them. The goal is 100 ms for
all of it together.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

STEPS = {
    "deep_gemm": "import deep_gemm",
    "deep_gemm._C": "from deep_gemm import _C",
    "the other modules": "from deep_gemm import legacy, mega, settings, testing, utils",
}

PROGRAM = """
import json, sys, time
import torch
times = []
for step in json.loads(sys.argv[1]):
    begin = time.perf_counter()
    exec(step)
    times.append(1e3 * (time.perf_counter() - begin))
print(json.dumps(times))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the medians there, too")
    options = parser.parse_args()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", PROGRAM, json.dumps(list(STEPS.values()))]
    runs = [json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout) for _ in range(options.runs + 1)]
    runs = runs[1:]  # the first one compiles
    medians = dict(zip(STEPS, (statistics.median(times) for times in zip(*runs)))) | {"all": statistics.median(map(sum, runs))}
    for name, value in medians.items():
        print(f"{name:20} {value:7.1f} ms")
    if options.json:
        options.json.write_text(json.dumps(medians, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
