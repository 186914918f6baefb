"""The verbs of ``python -m codegen``. Only what every run needs is imported here: a run with nothing to do must be quick."""

from __future__ import annotations

import argparse
import os
import sys

from .stamp import (
    HOST_NAMES,
    ROOT,
    GeneratorError,
    depfile_text,
    inputs_digest,
    is_current,
    read_bytes,
    stamp_text,
)

_REPOSITORY = os.path.dirname(ROOT)

_DESCRIPTION = """\
Reads a schema file (schema/README.md is its grammar) and writes everything that repeats a signature: C prototypes and checks, the
torch registration, the Python module with its stub, the reference."""

_EPILOG = """\
verbs:
  generate       write what changed below --out, and remove what no longer belongs there
  check          say whether generate would change anything: the diff, and the command that mends it
  json           print the model of the schema file as JSON
  parse          read schema strings as JSON, one a line, and print what they mean, one JSON object a line
  explain CODE   what a diagnostic such as DG0203 means, and what to do

an operator, in ten lines of a schema file:
  ## y = scale * x, element by element.
  x: f32 | bf16 [n]
  y: like x, out
  scale: > 0                     # a value contract; `any` allows everything
  @backends ref
  scaled(Tensor x, Tensor(y!) y, int scale=1) -> ()

stricter than torch: what torch's parser takes and then goes wrong is an error (`parse --as-torch` takes it): duplicate names,
keywords of C, C++ and Python, defaults of another type or length, hexadecimal numbers, `1E5`, marks on what is no tensor, wildcard
alias sets, `...`, type variables, types that C cannot carry. `explain DG0201` to `explain DG0219` say why, one by one.

exit status: 0 all is well; 1 the schema has errors, or check found outputs that are not current; 2 the generator itself failed."""


def main(argv: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
    options = _arguments(argv)
    try:
        return int(options.run(options))
    except GeneratorError as e:
        print(f"codegen: {e}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except Exception as e:
        if os.environ.get("CODEGEN_TRACEBACK"):
            raise
        print(f"codegen: internal error: {type(e).__name__}: {e} (CODEGEN_TRACEBACK=1 shows where)", file=sys.stderr)
        return 2


def _arguments(argv: list[str]) -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m codegen", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=formatter)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    def verb(name: str, run: object, summary: str) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=summary, description=summary)
        sub.set_defaults(run=run)
        return sub

    generate = verb("generate", _generate, "Writes the outputs that changed.")
    check = verb("check", _check, "Fails with a diff when the outputs are not what generate would write.")
    json_verb = verb("json", _json, "Prints the model of the schema file as JSON.")
    for sub in (generate, check, json_verb):
        sub.add_argument("--schema", metavar="FILE", help="the schema file (schema/ops.schema of this repository)")
    for sub in (generate, check):
        sub.add_argument("--out", metavar="FOLDER", help="the output folder (generated/ of this repository)")
        sub.add_argument("--hosts", metavar="LIST", type=_hosts, default=HOST_NAMES, help=f"a comma list out of {','.join(HOST_NAMES)} (all)")
    generate.add_argument("--depfile", metavar="FILE", help="write a Make rule with everything that the outputs depend on")
    generate.add_argument("--depfile-target", metavar="PATH", help="the target of that rule (the stamp of the output folder)")
    parse = verb("parse", _parse, "Reads schema strings as JSON, one a line; prints one JSON object a line.")
    parse.add_argument("--as-torch", action="store_true", help="take what torch's parser takes, also where it goes wrong later")
    explain = verb("explain", _explain, "Prints what a diagnostic means.")
    explain.add_argument("code", metavar="CODE", help="for example DG0203")
    return parser.parse_args(argv)


def _hosts(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in HOST_NAMES]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"hosts are {', '.join(HOST_NAMES)}")
    return tuple(name for name in HOST_NAMES if name in names)


def _schema_path(options: argparse.Namespace) -> str:
    return str(options.schema or os.path.join(_REPOSITORY, "schema", "ops.schema"))


def _out_path(options: argparse.Namespace) -> str:
    return str(options.out or os.path.join(_REPOSITORY, "generated"))


def _shown(path: str) -> str:
    """A path as messages show it: relative where that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(path) else path


# ---- generate, check -----------------------------------------------------------------------------------------


def _generate(options: argparse.Namespace) -> int:
    schema_path, out = _schema_path(options), _out_path(options)
    schema = read_bytes(schema_path)
    inputs = inputs_digest(schema, options.hosts)
    written = removed = 0
    if not is_current(out, inputs):
        from . import emit

        outputs = _outputs(options, schema)
        if outputs is None:
            return 1
        found = emit.changes(out, outputs)
        emit.apply(out, found)
        for change in found:
            verb = "removed" if change.new is None else "wrote"
            print(f"{verb} {_shown(os.path.join(out, change.path))}")
        removed = sum(change.new is None for change in found)
        written = len(found) - removed
        emit.write_stamp(out, stamp_text(inputs, outputs))
    if options.depfile:
        from .emit import write_whole

        target = options.depfile_target or os.path.join(out, ".stamp")
        try:
            write_whole(options.depfile, depfile_text(target, schema_path))
        except OSError as e:
            raise GeneratorError(f"cannot write {options.depfile}: {e.strerror}") from None
    print(f"{_count(written)} written" + (f", {_count(removed)} removed" if removed else ""))
    return 0


def _count(n: int) -> str:
    return f"{n} file{'s' * (n != 1)}"


def _outputs(options: argparse.Namespace, schema: bytes) -> dict[str, bytes] | None:
    """Every output, or None after the errors of the schema were printed."""
    from . import emit

    hosts = emit.load_hosts(options.hosts)
    library, report = emit.parse_library(_shown(_schema_path(options)), schema, hosts)
    if library is None:
        sys.stderr.write(report.render())
        return None
    return emit.render_outputs(library, hosts)


def _check(options: argparse.Namespace) -> int:
    schema, out = read_bytes(_schema_path(options)), _out_path(options)
    if is_current(out, inputs_digest(schema, options.hosts)):
        return 0
    from . import check, emit

    outputs = _outputs(options, schema)
    if outputs is None:
        return 1
    found = emit.changes(out, outputs)
    if not found:
        return 0
    sys.stdout.write(check.diff(_shown(out), found))
    print(check.command(options))
    return 1


# ---- the other verbs -----------------------------------------------------------------------------------------


def _json(options: argparse.Namespace) -> int:
    from .json_model import library_json
    from .schema_file import parse_file

    path = _schema_path(options)
    library, report = parse_file(_shown(path), read_bytes(path))
    if library is None:
        sys.stderr.write(report.render())
        return 1
    sys.stdout.write(library_json(library))
    return 0


def _parse(options: argparse.Namespace) -> int:
    from .parse import parse_line

    for line in sys.stdin.buffer:
        print(parse_line(line, as_torch=options.as_torch))
    return 0


def _explain(options: argparse.Namespace) -> int:
    from .diagnostics import CODES, closest

    code = options.code.upper()
    if code not in CODES:
        meant = closest(code, CODES)
        raise GeneratorError(f"there is no diagnostic {options.code}" + (f"; did you mean {meant}?" if meant else ""))
    print(f"{code}: {CODES[code]}")
    return 0
