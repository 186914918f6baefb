"""Outputs: rendered by the hosts, compared with what is on disk, written whole or not at all."""

from __future__ import annotations

import os
from dataclasses import dataclass

from . import model as m
from .diagnostics import Report
from .hosts import Host, Render
from .registry import load_hosts
from .schema_file import parse_file
from .stamp import BANNER, ROOT, STAMP, GeneratorError, existing_files, has_banner


@dataclass(frozen=True, slots=True)
class Change:
    """An output that differs from the file on disk. old is None for a new file, new is None for one to remove."""

    path: str  # below the output folder, with "/"
    old: bytes | None
    new: bytes | None


def parse_library(schema_name: str, data: bytes, hosts: list[Host]) -> tuple[m.Library | None, Report]:
    """The library, or None with every error in the report, those of the hosts included."""
    library, report = parse_file(schema_name, data)
    if library is not None:
        check_hosts(library, report, hosts)
    return (None if report else library), report


def check_hosts(library: m.Library, report: Report, hosts: list[Host]) -> None:
    """Reports types that a host cannot carry, with all the hosts that stand in the way."""
    for operator in library.operators:
        for part in (*operator.schema.args, *operator.schema.returns):
            reasons = {host.name: reason for host in hosts if (reason := host.refuse(part))}
            if reasons:
                what = f"`{part.name}`" if part.name else "this result"
                texts = list(dict.fromkeys(reasons.values()))
                names = ", ".join(reasons)
                message = f"{what} of `{operator.symbol}` cannot be carried by the host{'s' * (len(reasons) > 1)} {names}: {'; '.join(texts)}"
                report.error("DG0701", part.span, message)


def render_outputs(library: m.Library, hosts: list[Host]) -> dict[str, bytes]:
    """Every output: path below the output folder -> bytes."""
    render = _renderer()
    outputs: dict[str, bytes] = {}
    for host in hosts:
        for path, text in host.render(library, render).items():
            if path in outputs:
                raise GeneratorError(f"two hosts write {path}, one of them is `{host.name}`")
            if path.startswith("/") or "\\" in path or any(part in ("", ".", "..") for part in path.split("/")):
                raise GeneratorError(f"the host `{host.name}` would write outside the output folder: {path!r}")
            if BANNER not in text[:500]:
                raise GeneratorError(f"{path} of the host `{host.name}` does not begin with the banner: {BANNER}")
            outputs[path] = (text.rstrip("\n") + "\n").encode("utf-8")
    return outputs


def _renderer() -> Render:
    try:
        import jinja2
    except ModuleNotFoundError:
        raise GeneratorError("Jinja2 is missing: python -m pip install jinja2") from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(os.path.join(ROOT, "templates"), encoding="utf-8"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        newline_sequence="\n",
    )

    def render(template: str, /, **context: object) -> str:
        try:
            return environment.get_template(template).render(**context)
        except jinja2.TemplateSyntaxError as e:
            raise GeneratorError(f"codegen/templates/{e.filename or template}:{e.lineno}: {e.message}") from None
        except jinja2.TemplateNotFound as e:
            raise GeneratorError(f"there is no template codegen/templates/{e}") from None
        except jinja2.UndefinedError as e:
            raise GeneratorError(f"codegen/templates/{template}:{_line_of(e)}: {e.message}") from None

    return render


def _line_of(error: BaseException) -> int:
    """The line of the template in which an error was raised: Jinja2 rewrites tracebacks to say so."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.endswith(".j2"):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


# ---- the output folder ---------------------------------------------------------------------------------------


def changes(out: str, outputs: dict[str, bytes]) -> list[Change]:
    """What a run would change, in the order of paths: files that differ, and orphans that an earlier run wrote."""
    found = []
    for path, new in outputs.items():
        old = _read(os.path.join(out, path))
        if old != new:
            found.append(Change(path, old, new))
    for path in existing_files(out):
        full = os.path.join(out, path)
        if path not in outputs and has_banner(full):
            found.append(Change(path, _read(full), None))
    return sorted(found, key=lambda c: c.path)


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as f:
            return f.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise GeneratorError(f"cannot read {path}: {e.strerror}") from None


def apply(out: str, found: list[Change]) -> None:
    """Writes what differs and removes orphans. Each file is the old one or the new one, never a part."""
    root = os.path.realpath(out)
    for change in found:
        path = os.path.join(out, change.path)
        folder = os.path.dirname(path)
        try:
            if change.new is None:
                os.remove(path)
                _remove_empty(folder, root)
                continue
            os.makedirs(folder, exist_ok=True)
            if os.path.commonpath([root, os.path.realpath(folder)]) != root:
                raise GeneratorError(f"{folder} leads outside the output folder")
            write_whole(path, change.new)
        except OSError as e:
            raise GeneratorError(f"cannot write {path}: {e.strerror}") from None


def _remove_empty(folder: str, root: str) -> None:
    while os.path.realpath(folder) != root and not os.listdir(folder):
        os.rmdir(folder)
        folder = os.path.dirname(folder)


def write_whole(path: str, data: bytes) -> None:
    """Replaces a file by way of a temporary one in the same folder."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        with open(descriptor, "wb") as f:
            f.write(data)
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise


def write_stamp(out: str, data: bytes) -> None:
    """The stamp only saves time: where it cannot be written, the run is as good."""
    try:
        write_whole(os.path.join(out, STAMP), data)
    except OSError:
        pass


__all__ = ["Change", "apply", "changes", "check_hosts", "load_hosts", "parse_library", "render_outputs", "write_stamp", "write_whole"]
