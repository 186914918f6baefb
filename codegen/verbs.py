"""The verbs beside ``generate`` and ``check``. Each imports what it needs, so that none waits for another."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from .cli import generate, names, schema_path, shown
from .stamp import HOST_NAMES, GeneratorError, generator_files, read_bytes

if TYPE_CHECKING:
    from . import model as m
    from .diagnostics import Diagnostic, Report
    from .samples.draw import Adjust


# ---- what is printed -----------------------------------------------------------------------------------------


def has_colour(stream: TextIO) -> bool:
    """NO_COLOR and FORCE_COLOR decide when they are set and not empty (no-color.org); else a terminal has colour."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty() and os.environ.get("TERM") != "dumb"


def print_report(report: Report, options: argparse.Namespace) -> None:
    """For people on standard error, for programs on standard output."""
    if getattr(options, "diagnostics", "text") == "json":
        print_log(report.diagnostics())
    else:
        sys.stderr.write(report.render(colour=has_colour(sys.stderr)))


def print_log(found: Iterable[Diagnostic]) -> None:
    from .sarif import log

    sys.stdout.write(log(found))


def print_stale(paths: list[str], mend: str) -> None:
    from .sarif import log

    sys.stdout.write(log((), paths, mend))


def _library(options: argparse.Namespace) -> m.Library | None:
    """The library of the schema file, or None after its errors were printed."""
    from .emit import rename
    from .schema_file import parse_file

    path = schema_path(options)
    library, report = parse_file(shown(path), read_bytes(path))
    if library is None:
        print_report(report, options)
        return None
    return rename(library, names(options)) if hasattr(options, "namespace") else library


# ---- fmt, lint, breaking -------------------------------------------------------------------------------------


def fmt(options: argparse.Namespace) -> int:
    from .emit import write_whole
    from .format import format_file
    from .schema_file import parse_file

    is_filter = options.schema == "-"
    path = schema_path(options)
    name = "<stdin>" if is_filter else shown(path)
    data = sys.stdin.buffer.read() if is_filter else read_bytes(path)
    library, report = parse_file(name, data)
    if library is None:
        print_report(report, options)
        return 1
    text = format_file(name, data)
    if options.check:
        return _show_format(name, data, text)
    if is_filter:
        sys.stdout.write(text.decode("utf-8"))
    elif text != data:
        try:
            write_whole(os.path.realpath(path), text)
        except OSError as e:
            raise GeneratorError(f"cannot write {path}: {e.strerror}") from None
        print(f"formatted {name}")
    return 0


def _show_format(name: str, old: bytes, new: bytes) -> int:
    from .check import diff_of

    sys.stdout.write(diff_of(name, old, name, new))
    return int(old != new)


def lint(options: argparse.Namespace) -> int:
    from .diagnostics import CODES, RULES
    from .lint import lint as find
    from .schema_file import parse_what_is_right

    if options.rules:
        width = max(map(len, RULES.values()))
        for code, name in RULES.items():
            print(f"{code}  {name:<{width}}  {CODES[code]}")
        return 0
    path = schema_path(options)
    library, report = parse_what_is_right(shown(path), read_bytes(path))
    find(library, report)
    found = report.diagnostics()
    if found or options.diagnostics == "json":
        print_report(report, options)
    return 1 if found else 0


def breaking(options: argparse.Namespace) -> int:
    from .breaking import SEVERITIES, compare, load_old, render, worst
    from .registry import load_hosts

    new = _library(options)
    if new is None:
        return 1
    old, report = load_old(options.against, schema_path(options), new)
    if old is None:
        assert report is not None
        print_report(report, options)
        return 2  # no verdict
    changes = compare(old, new, load_hosts(HOST_NAMES))
    sys.stdout.write(render(changes, old, new))
    severity = SEVERITIES.index(worst(changes))
    if options.exit_code:
        return severity + 9 if severity else 0
    return int(severity >= SEVERITIES.index(options.fail_on))


# ---- explain, new, init --------------------------------------------------------------------------------------


def explain(options: argparse.Namespace) -> int:
    from .diagnostics import CODES, RULES, closest

    what = options.what
    code = next((code for code, name in RULES.items() if name == what), what.upper())
    if code in CODES:
        print(f"{code}{f' {RULES[code]}' if code in RULES else ''}: {CODES[code]}")
        return 0
    if code.startswith("DG") and code[2:].isdecimal():
        meant = closest(code, CODES)
        raise GeneratorError(f"there is no diagnostic {what}" + (f"; did you mean {meant}?" if meant else ""))
    from .describe import describe
    from .registry import load_hosts

    library = _library(options)
    if library is None:
        return 1
    known = {name: op for op in library.operators for name in (op.symbol, *op.aliases, _torch_name(op))}
    if what not in known:
        meant = closest(what, [*known, *RULES.values()])
        raise GeneratorError(f"there is no operator, code or rule `{what}`" + (f"; did you mean `{meant}`?" if meant else ""))
    sys.stdout.write(describe(library, known[what], load_hosts(HOST_NAMES)))
    return 0


def _torch_name(op: m.Operator) -> str:
    return f"{op.schema.name}.{op.schema.overload}" if op.schema.overload else op.schema.name


def new(options: argparse.Namespace) -> int:
    from .scaffold import add_operator

    library = _library(options)
    if library is None:
        return 1
    for path in add_operator(schema_path(options), library, options.operator):
        print(path)
    return 0


def init(options: argparse.Namespace) -> int:
    from .scaffold import start_library

    prefix = options.prefix or options.name[:2].strip("_") or options.name
    for path in start_library(options.name, prefix, options.folder or options.name):
        print(path)
    return 0


def runtime(options: argparse.Namespace) -> int:
    from .scaffold import write_runtime

    library = _library(options)
    if library is None:
        return 1
    if not options.out:
        raise GeneratorError("runtime needs --out: the folder to write to")
    for path in write_runtime(library, options.hosts, options.out):
        print(path)
    return 0


# ---- json, samples, parse, completion ---------------------------------------------------------------------------------


def json(options: argparse.Namespace) -> int:
    from .json_model import json_schema, library_json

    if options.json_schema:
        sys.stdout.write(json_schema())
        return 0
    library = _library(options)
    if library is None:
        return 1
    sys.stdout.write(library_json(library))
    return 0


def samples(options: argparse.Namespace) -> int:
    from .emit import renderer, write_whole
    from .samples.draw import CannotDraw, unchanged
    from .samples.program import program

    library = _library(options)
    if library is None:
        return 1
    adjust = _adjust(options.adjust) if options.adjust else unchanged
    try:
        text = program(library, renderer(), seed=options.seed, count=options.count, adjust=adjust)
    except CannotDraw as e:
        raise GeneratorError(str(e)) from None
    if not options.out:
        sys.stdout.write(text)
        return 0
    try:
        write_whole(options.out, text.encode())
    except OSError as e:
        raise GeneratorError(f"cannot write {options.out}: {e.strerror}") from None
    return 0


def _adjust(path: str) -> Adjust:
    """The function of this name in a Python file."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("adjust", path)
    if spec is None or spec.loader is None or not os.path.isfile(path):
        raise GeneratorError(f"{path} is no Python file")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, "adjust", None)
    if not callable(function):
        raise GeneratorError(f"{path} has no function `adjust(call, source)`")
    return function  # type: ignore[no-any-return]


def parse(options: argparse.Namespace) -> int:
    from .json_model import parse_line

    for line in sys.stdin.buffer:
        print(parse_line(line, as_torch=options.as_torch))
    return 0


def completion(options: argparse.Namespace) -> int:
    from .cli import arguments
    from .completion import script

    sys.stdout.write(script(options.shell, options.command, arguments()))
    return 0


# ---- watch ---------------------------------------------------------------------------------------------------

_PAUSE = 0.1  # seconds between two looks


def watch(options: argparse.Namespace) -> int:
    """Runs generate, and again whenever the schema is another one. The generator itself starts anew when it is edited."""
    import time

    options.diagnostics, options.depfile = "text", None
    path, seen, runs = schema_path(options), b"", 0
    own = _times(generator_files())
    while True:
        schema = _read_if_there(path)
        if schema is not None and (schema != seen or runs == 0):
            seen = schema
            start = time.perf_counter()
            status = generate(options, sys.stdout)
            runs += 1
            seconds = time.perf_counter() - start
            print(f"{shown(path)}: {'generated' if status == 0 else 'errors'}, {seconds:.2f} s", flush=True)
            if runs == options.runs:
                return status
        time.sleep(_PAUSE)
        if _times(generator_files()) != own:
            print("the generator was edited: starting anew", flush=True)
            os.execv(sys.executable, [sys.executable, "-m", __package__ or "codegen", *sys.argv[1:]])


def _read_if_there(path: str) -> bytes | None:
    """An editor may be replacing the file at this moment."""
    try:
        with open(path, "rb") as f:
            return f.read()
    except FileNotFoundError:
        return None


def _times(paths: list[str]) -> list[tuple[str, int]]:
    return [(path, os.stat(path).st_mtime_ns) for path in paths if os.path.exists(path)]
