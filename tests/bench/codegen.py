#!/usr/bin/env python3
"""The generator in figures: how long it takes, how it agrees with torch's parser, what its diagnostics and outputs amount to.

    python tests/bench/codegen.py [--corpus strings.jsonl ...] [--runs 7]

Times are wall clock, the median of the runs, of whole processes with compiled modules in place, as a user has them; the time of a bare
interpreter is printed beside. Agreement is measured against torch._C.parse_schema on the strings of tests/codegen/schema_strings.py and of the
corpus files (JSON lines with a member "schema"), for this parser with --as-torch and for torchgen's, where torch is installed. Times of
torchgen and of DeepGEMM 2.6.1's stub script on work of the same kind, one run each on a server core: 12.3 s from cold and 10.4 s with nothing
changed; 2.9 s.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests" / "codegen")]


def seconds(command: list[str], environment: dict[str, str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, env=environment, cwd=REPOSITORY, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def show_times(runs: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPYCACHEPREFIX": f"{folder}/compiled"}

        def generate(out: str) -> list[str]:
            return [sys.executable, "-m", "codegen", "generate", "--out", f"{folder}/{out}"]

        seconds(generate("first"), environment)  # compiles the modules
        cold = [seconds(generate(f"out{i}"), environment) for i in range(runs)]
        unchanged = [seconds(generate("first"), environment) for _ in range(runs)]
        bare = [seconds([sys.executable, "-c", ""], environment) for _ in range(runs)]
        for name, values in (("everything, from cold", cold), ("nothing changed", unchanged), ("a bare interpreter", bare)):
            print(f"{name:42} {statistics.median(values):8.3f} s   (fastest {min(values):.3f})")
        lines = sum(len(p.read_bytes().splitlines()) for p in Path(folder, "first").rglob("*") if p.is_file())
        schema_lines = len((REPOSITORY / "schema" / "ops.schema").read_bytes().splitlines())
        print(f"{'lines generated / lines of schema':42} {lines:8} / {schema_lines} = {lines / schema_lines:.1f}")
    print(f"{'torchgen, from cold / nothing changed':42}     12.3 s / 10.4 s")
    print(f"{'the stub script of DeepGEMM 2.6.1':42}      2.9 s")


def show_diagnostics() -> None:
    from codegen.diagnostics import CODES

    tested = set()
    for name in ("diagnostics.txt", "lint.txt"):
        tested |= set(re.findall(r"\[(DG\d{4})[ \]]", (REPOSITORY / "tests" / "codegen" / name).read_bytes().decode("utf-8")))
    tested |= {"DG0701"}  # in tests/codegen/test_diagnostics.py, since it needs a host of its own
    print(f"{'diagnostics, with a test of their text':42} {len(CODES):8}, {len(tested & set(CODES))}")


def accepts(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def accepted(text: str) -> bool:
        try:
            parse(text)
        except Exception:
            return False
        return True

    return accepted


def show_agreement(corpora: list[str]) -> None:
    import torch
    from schema_strings import ACCEPTED, REJECTED, STRICT  # type: ignore[import-not-found]

    from codegen.diagnostics import Report, Source
    from codegen.parse import parse_schema

    def parse(text: str) -> None:
        report = Report(Source("schema", text))
        if parse_schema(report, as_torch=True) is None or report:
            raise ValueError

    parsers: dict[str, Callable[[str], object]] = {"this parser": parse}
    try:
        from torchgen.model import FunctionSchema

        parsers["torchgen's"] = FunctionSchema.parse
    except ImportError:
        print("torchgen is not installed")
    strings = [*ACCEPTED, *STRICT, *REJECTED]
    for path in corpora:
        with open(path, encoding="utf-8") as file:
            strings += [json.loads(line)["schema"] for line in file]
    verdict = accepts(torch._C.parse_schema)
    expected = [verdict(text) for text in strings]
    for name, parser in parsers.items():
        accepted = accepts(parser)
        agreed = sum(accepted(text) == right for text, right in zip(strings, expected))
        print(f"{name + ' agrees with torch on':42} {agreed:8} of {len(strings)} strings")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", nargs="*", default=[])
    parser.add_argument("--runs", type=int, default=7)
    args = parser.parse_args()
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores")
    show_times(args.runs)
    show_diagnostics()
    try:
        import torch  # noqa: F401
    except ImportError:
        print("torch is not installed: no agreement")
        return
    show_agreement(args.corpus)


if __name__ == "__main__":
    main()
