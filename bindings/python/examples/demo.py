"""The tour that `cmake --workflow --preset demo` ends with: from the schema to every host, a C program, a real model.

CMake has built everything before it runs this. Nothing here writes outside the work folder.
"""

from __future__ import annotations

import argparse
import difflib
import os
import subprocess
import sys
import time
from pathlib import Path

NEW_OPERATOR = """
section Demo

## y = x * factor, element by element.
##
## The operator that the demo adds to a copy of the schema.
x: bf16 | f32 [m, n]
y: like x, out
factor: any                                        # multiplies every element
@backends ref
@since 0.1.0
scale_rows(Tensor x, Tensor(y!) y, float factor=1.0) -> ()
"""

# Which host each generated file belongs to, in the order in which the tour shows them.
HOSTS = [
    ("C", ["include/deep_gemm/ops.h", "c/calls.h", "c/checks.c", "c/operators.c"]),
    ("torch", ["torch/register.cpp"]),
    ("Python", ["python/_C.py", "python/_C.pyi"]),
    ("documentation", ["docs/operators.md"]),
]
LINES_SHOWN = 60  # of the diff of one file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, required=True, help="the root of the source tree")
    parser.add_argument("--work", type=Path, required=True, help="a folder for what the tour writes")
    parser.add_argument("--c-program", type=Path, required=True, help="the built bindings/c/examples/fp8_gemm.c")
    parser.add_argument("--packages", type=Path, required=True, help="the folder with the built package deep_gemm")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)

    step(1, "the schema, and what is generated from it")
    generate(args.source, [])

    step(2, "one more operator, in a copy of the schema: what changes in every host")
    schema = args.work / "ops.schema"
    schema.write_text((args.source / "schema/ops.schema").read_text(encoding="utf-8") + NEW_OPERATOR, encoding="utf-8")
    print(NEW_OPERATOR)
    generate(args.source, ["--schema", str(schema), "--out", str(args.work / "generated")])
    for host, files in HOSTS:
        for file in files:
            show_diff(host, args.source / "generated" / file, args.work / "generated" / file)
    print("\nNothing but insertions. The build would now ask for one function by name: dg_scale_rows_impl().")

    step(3, "a C program: one header, one library")
    run([str(args.c_program)])

    step(4, "a real model: a sentence encoder with all its linear layers in FP8, through the Python package")
    environment = os.environ | {"PYTHONPATH": str(args.packages)}
    run([sys.executable, str(args.source / "bindings/python/examples/quantized_encoder.py")], environment)


def step(number: int, title: str) -> None:
    print(f"\n==== {number}/4  {title}\n", flush=True)


def run(command: list[str], environment: dict[str, str] | None = None) -> None:
    if subprocess.run(command, env=environment).returncode != 0:
        raise SystemExit(f"demo: this failed: {' '.join(command)}")


def generate(source: Path, arguments: list[str]) -> None:
    command = [sys.executable, "-m", "codegen", "generate", *arguments]
    print("$ " + " ".join(["python", *command[1:]]), flush=True)
    start = time.perf_counter()
    if subprocess.run(command, cwd=source).returncode != 0:
        raise SystemExit("demo: the generator failed")
    print(f"{time.perf_counter() - start:.2f} s")


def show_diff(host: str, old: Path, new: Path) -> None:
    """Prints the changed lines, without context; refuses to call an edit an insertion."""
    before, after = (path.read_text(encoding="utf-8").splitlines() for path in (old, new))
    lines = [line for line in difflib.unified_diff(before, after, n=0, lineterm="") if not line.startswith(("---", "+++", "@@"))]
    removed = [line for line in lines if line.startswith("-")]
    if removed:
        raise SystemExit(f"demo: adding an operator took lines away from {old}:\n" + "\n".join(removed))
    print(f"\n---- {host}: generated/{'/'.join(old.parts[old.parts.index('generated') + 1:])}, {len(lines)} lines more")
    print("\n".join(lines[:LINES_SHOWN]))
    if len(lines) > LINES_SHOWN:
        print(f"... and {len(lines) - LINES_SHOWN} more")


if __name__ == "__main__":
    main()
