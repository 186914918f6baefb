"""The verbs of ``python -m codegen``. Only what every run needs is imported here: a run with nothing to do must be quick. What the
verbs beside ``generate`` and ``check`` do stands in ``verbs``; what ``--help`` says, in ``manual``."""

from __future__ import annotations

import argparse
import os
import sys

from .stamp import (
    COMMAND,
    HOST_NAMES,
    MODULE,
    ROOT,
    GeneratorError,
    depfile_text,
    inputs_digest,
    is_current,
    read_bytes,
    stamp_text,
)

_REPOSITORY = os.path.dirname(ROOT)


def run() -> int:
    """The command that an installed generator has."""
    return main(sys.argv[1:])


def main(argv: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
    options = arguments().parse_args(argv)
    try:
        return int(options.run(options))
    except GeneratorError as e:
        print(f"codegen: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except Exception as e:
        if os.environ.get("CODEGEN_TRACEBACK"):
            raise
        print(f"codegen: internal error: {type(e).__name__}: {e} (CODEGEN_TRACEBACK=1 shows where)", file=sys.stderr)
        return 2


# ---- arguments -----------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Takes its texts from ``manual``, which is imported when help is asked for."""

    def format_help(self) -> str:
        from . import manual

        name = self.prog.rpartition(" ")[2]
        epilog = manual.EPILOGS.get(name, manual.EPILOG if name not in manual.DESCRIPTIONS else "")
        self.description = manual.DESCRIPTIONS.get(name, manual.DESCRIPTION).replace(MODULE, COMMAND)
        self.epilog = epilog.replace(MODULE, COMMAND) or None
        return super().format_help()


def arguments() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog=COMMAND, formatter_class=formatter)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Parser)

    def verb(name: str, run: object, summary: str) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=summary, formatter_class=formatter)
        sub.set_defaults(run=run)
        return sub

    generate = verb("generate", _generate, "write the outputs that changed")
    check = verb("check", _check, "fail with a diff when the outputs are not what generate would write")
    watch = verb("watch", _later("watch"), "generate, and again whenever the schema is saved")
    fmt = verb("fmt", _later("fmt"), "lay out the schema file in its one form")
    lint = verb("lint", _later("lint"), "warn of signatures that are likely to hurt")
    breaking = verb("breaking", _later("breaking"), "say what the edits since another version break, host by host")
    explain = verb("explain", _later("explain"), "print all that follows from an operator, or what a diagnostic means")
    new = verb("new", _later("new"), "add an operator: schema entry, kernel, reference, and a test that fails until it is right")
    init = verb("init", _later("init"), "start a library that builds and passes its test")
    runtime = verb("runtime", _later("runtime"), "write what the generated files call, under the names of the library")
    json_verb = verb("json", _later("json"), "print the model of the schema file as JSON")
    samples = verb("samples", _later("samples"), "write a C program of calls that follow from the contracts, right ones and wrong ones")
    parse = verb("parse", _later("parse"), "read schema strings as JSON, one a line; print one JSON object a line")
    completion = verb("completion", _later("completion"), "print the completions for a shell")

    for sub in (generate, check, watch, fmt, lint, breaking, explain, new, runtime, json_verb, samples):
        sub.add_argument("--schema", metavar="FILE", help="the schema file (schema/ops.schema of this repository)")
    for sub in (generate, check, watch, explain, runtime, json_verb, samples):
        sub.add_argument("--namespace", metavar="NAME", type=_name, help="instead of the file's: torch.ops.NAME, the package")
        sub.add_argument("--prefix", metavar="NAME", type=_name, help="instead of the file's: NAME_... and NAME_... in C")
    for sub in (generate, check, watch, runtime):
        sub.add_argument("--out", metavar="FOLDER", help="the output folder (generated/ of this repository)")
        hosts = f"only these out of {','.join(HOST_NAMES)} (all); files of the others do not belong in the folder"
        sub.add_argument("--hosts", metavar="LIST", type=_hosts, default=HOST_NAMES, help=hosts)
    for sub in (generate, check, fmt, lint, breaking, json_verb, samples):
        form = "json: a SARIF 2.1.0 log on standard output, for editors and CI"
        sub.add_argument("--diagnostics", choices=("text", "json"), default="text", help=form)
    generate.add_argument("--depfile", metavar="FILE", help="write a Make rule with everything that the outputs depend on")
    generate.add_argument("--depfile-target", metavar="PATH", help="the target of that rule (the stamp of the output folder)")
    watch.add_argument("--runs", metavar="N", type=int, default=0, help="end after N runs (0: never)")
    fmt.add_argument("--check", action="store_true", help="change nothing; print the diff, exit 1 when there is one")
    lint.add_argument("--rules", action="store_true", help="list the rules and their reasons")
    breaking.add_argument(
        "--against", metavar="REV|FILE|installed", required=True, help="a revision of git, a schema file, or the installed package"
    )
    breaking.add_argument("--fail-on", choices=("patch", "minor", "major"), default="major", help="from which severity on to exit 1 (major)")
    breaking.add_argument("--exit-code", action="store_true", help="exit 0, 10, 11 or 12: no difference, patch, minor, major")
    explain.add_argument("what", metavar="OP|CODE|RULE", help="an operator, a code such as DG0203, or a lint rule")
    new.add_argument("operator", metavar="OP", type=_name, help="its name")
    init.add_argument("name", metavar="NAME", type=_name, help="the namespace of the library")
    init.add_argument("folder", metavar="FOLDER", nargs="?", help="where (a new folder NAME)")
    init.add_argument("--prefix", metavar="NAME", type=_name, help="of its C names (the first letters of NAME)")
    json_verb.add_argument("--json-schema", action="store_true", help="print the JSON Schema of the output instead")
    samples.add_argument("--out", metavar="FILE", help="the program (standard output)")
    samples.add_argument("--seed", metavar="N", type=int, default=1, help="other calls for every number (1)")
    samples.add_argument("--count", metavar="N", type=int, default=5, help="right calls of each operator (5)")
    adjust = "a Python file: its adjust(call, source) mends what the contracts do not say, as what lies in tensors of integers"
    samples.add_argument("--adjust", metavar="FILE", help=adjust)
    parse.add_argument("--as-torch", action="store_true", help="take what torch's parser takes, also where it goes wrong later")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    completion.add_argument("--command", metavar="NAME", default="codegen", help="the command to complete (codegen)")
    return parser


def _later(name: str) -> object:
    """The verb of this name, imported when it runs."""

    def run(options: argparse.Namespace) -> int:
        from . import verbs

        return int(getattr(verbs, name)(options))

    return run


def _hosts(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in HOST_NAMES]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"hosts are {', '.join(HOST_NAMES)}")
    return tuple(name for name in HOST_NAMES if name in names)


def _name(text: str) -> str:
    from keyword import iskeyword

    if not text.isidentifier() or not text.isascii() or iskeyword(text):
        raise argparse.ArgumentTypeError(f"`{text}` is no name")
    return text


def schema_path(options: argparse.Namespace) -> str:
    return str(options.schema or os.path.join(_REPOSITORY, "schema", "ops.schema"))


def out_path(options: argparse.Namespace) -> str:
    return str(options.out or os.path.join(_REPOSITORY, "generated"))


def names(options: argparse.Namespace) -> tuple[str, str]:
    return options.namespace or "", options.prefix or ""


def shown(path: str) -> str:
    """A path as messages show it: relative where that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(path) else path


# ---- generate, check -----------------------------------------------------------------------------------------


def _generate(options: argparse.Namespace) -> int:
    is_log = options.diagnostics == "json"  # then standard output is for the log
    status = generate(options, sys.stderr if is_log else sys.stdout)
    if is_log and status == 0:
        from .verbs import print_log

        print_log([])
    return status


def generate(options: argparse.Namespace, told: object) -> int:
    """Writes what changed, and tells what it did."""
    path, out = schema_path(options), out_path(options)
    schema = read_bytes(path)
    inputs = inputs_digest(schema, options.hosts, names(options))
    written = removed = 0
    if not is_current(out, inputs):
        from . import emit

        outputs = _outputs(options, schema)
        if outputs is None:
            return 1
        with emit.locked(out):
            emit.remove_stale(out)
            found = emit.changes(out, outputs)
            emit.apply(out, found)
            emit.write_stamp(out, stamp_text(inputs, outputs))
        for change in found:
            word = "removed" if change.new is None else "wrote"
            print(f"{word} {shown(os.path.join(out, change.path))}", file=told)  # type: ignore[call-overload]
        removed = sum(change.new is None for change in found)
        written = len(found) - removed
    if options.depfile:
        from .emit import write_whole

        target = options.depfile_target or os.path.join(out, ".stamp")
        try:
            write_whole(options.depfile, depfile_text(target, path))
        except OSError as e:
            raise GeneratorError(f"cannot write {options.depfile}: {e.strerror}") from None
    print(f"{_count(written)} written" + (f", {_count(removed)} removed" if removed else ""), file=told)  # type: ignore[call-overload]
    return 0


def _count(n: int) -> str:
    return f"{n} file{'s' * (n != 1)}"


def _outputs(options: argparse.Namespace, schema: bytes) -> dict[str, bytes] | None:
    """Every output, or None after the errors of the schema were printed."""
    import gc

    from . import emit

    gc.disable()  # the run is short, and keeps nearly all that it makes
    try:
        hosts = emit.load_hosts(options.hosts)
        library, report = emit.parse_library(shown(schema_path(options)), schema, hosts, names(options))
        if library is not None:
            return emit.render_outputs(library, hosts)
    finally:
        gc.enable()
    from .verbs import print_report

    print_report(report, options)
    return None


def _check(options: argparse.Namespace) -> int:
    schema, out = read_bytes(schema_path(options)), out_path(options)
    is_log = options.diagnostics == "json"
    found, diff, command = [], "", ""
    if not is_current(out, inputs_digest(schema, options.hosts, names(options))):
        from . import check, emit

        outputs = _outputs(options, schema)
        if outputs is None:
            return 1
        found = emit.changes(out, outputs)
        if found:
            diff, command = check.diff(shown(out), found), check.command(options)
    if is_log:
        from .verbs import print_stale

        print_stale([shown(os.path.join(out, change.path)) for change in found], command)
    elif found:
        sys.stdout.write(diff)
        print(command)
    return 1 if found else 0
