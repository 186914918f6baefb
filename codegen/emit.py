"""Outputs: rendered by the hosts, compared with what is on disk, written whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import cache_from_source
from typing import TYPE_CHECKING

from . import model as m
from .diagnostics import Report
from .hosts import Host, Render
from .record import record, replace
from .registry import load_hosts
from .schema_file import parse_file
from .stamp import BANNER, COMMAND, ROOT, STAMP, TEMPORARY, GeneratorError, existing_files, has_banner, stale_temporaries

if TYPE_CHECKING:
    import jinja2


@record
class Change:
    """An output that differs from the file on disk. old is None for a new file, new is None for one to remove."""

    path: str  # below the output folder, with "/"
    old: bytes | None
    new: bytes | None


def parse_library(
    schema_name: str, data: bytes, hosts: list[Host], names: tuple[str, str] = ("", "")
) -> tuple[m.Library | None, Report]:
    """The library, or None with every error in the report, those of the hosts included. names: another namespace and prefix than
    those of the file, "" for the file's."""
    library, report = parse_file(schema_name, data)
    if library is not None:
        library = rename(library, names)
        check_hosts(library, report, hosts)
    return (None if report else library), report


def rename(library: m.Library, names: tuple[str, str]) -> m.Library:
    return replace(library, namespace=names[0] or library.namespace, prefix=names[1] or library.prefix)


def check_hosts(library: m.Library, report: Report, hosts: list[Host]) -> None:
    """Reports types and names that a host cannot carry, with all the hosts that stand in the way."""
    for operator in library.operators:
        results = (replace(r, name=c.name) for r, c in zip(operator.schema.returns, operator.results))  # as hosts call them
        parts: list[m.Argument | m.Return] = [*operator.schema.args, *results]
        for part in parts:
            reasons = {host.name: reason for host in hosts if (reason := host.refuse(part))}
            if reasons:
                what = f"`{part.name}`" if isinstance(part, m.Argument) else f"the result `{part.name}`"
                texts = list(dict.fromkeys(reasons.values()))
                names = ", ".join(reasons)
                message = f"{what} of `{operator.symbol}` cannot be carried by the host{'s' * (len(reasons) > 1)} {names}: {'; '.join(texts)}"
                report.error("DG0701", part.span, message)


def render_outputs(library: m.Library, hosts: list[Host]) -> dict[str, bytes]:
    """Every output: path below the output folder -> bytes."""
    render = renderer()
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


def _environment() -> jinja2.Environment:
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
        auto_reload=False,
        bytecode_cache=_bytecode_cache(),
    )
    environment.globals["command"] = COMMAND
    return environment


def render_text(text: str, context: Mapping[str, str]) -> str:
    """A template that is no file of this package."""
    import jinja2

    try:
        return _environment().from_string(text).render(**context)
    except (jinja2.TemplateSyntaxError, jinja2.UndefinedError) as e:
        raise GeneratorError(f"a skeleton does not render: {e.message}") from None


def renderer() -> Render:
    environment = _environment()
    import jinja2

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


def _bytecode_cache() -> jinja2.BytecodeCache:
    """Keeps compiled templates where Python keeps compiled modules, and only where it does. Each is as valid as the source that
    it was made from, which Jinja2 checks."""
    import jinja2

    folder = os.path.dirname(cache_from_source(os.path.join(ROOT, "templates", "any.py")))

    class Cache(jinja2.BytecodeCache):
        def path(self, bucket: jinja2.bccache.Bucket) -> str:
            return os.path.join(folder, f"{bucket.key}.jinja2-{jinja2.__version__}.{sys.implementation.cache_tag}.pyc")

        def load_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
            with suppress(Exception), open(self.path(bucket), "rb") as f:  # one that is damaged is as good as none
                bucket.load_bytecode(f)

        def dump_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
            if not sys.dont_write_bytecode:
                with suppress(OSError):
                    os.makedirs(folder, exist_ok=True)
                    write_whole(self.path(bucket), bucket.bytecode_to_string())

    return Cache()


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


@contextmanager
def locked(out: str) -> Iterator[None]:
    """Keeps other runs away from the output folder, so that what it holds is always what one run wrote. Where folders cannot be
    locked, every file is still a whole one."""
    with suppress(OSError):
        os.makedirs(out, exist_ok=True)
    try:
        import fcntl

        descriptor = os.open(out, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def apply(out: str, found: list[Change]) -> None:
    """Writes what differs and removes orphans. All new files lie beside the old ones before the first takes its place, so that a
    full disk changes nothing; each file is the old one or the new one, never a part."""
    root = os.path.realpath(out)
    written: list[tuple[str, str]] = []
    path = out
    try:
        for change in found:
            path = os.path.join(out, change.path)
            if change.new is not None:
                written.append((_write_beside(path, change.new, root), path))
        while written:
            temporary, path = written[0]
            os.replace(temporary, path)
            del written[0]
        for change in found:
            path = os.path.join(out, change.path)
            if change.new is None:
                _remove(path, os.path.dirname(path), root)
    except OSError as e:
        raise GeneratorError(f"cannot write {path}: {e.strerror}") from None
    finally:
        for temporary, _ in written:
            with suppress(OSError):
                os.remove(temporary)


def _write_beside(path: str, data: bytes, root: str) -> str:
    """Writes a temporary file in the folder of path, and gives its name."""
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    if os.path.commonpath([root, os.path.realpath(folder)]) != root:
        raise GeneratorError(f"{folder} leads outside the output folder")
    return _write_temporary(path, data)


def remove_stale(out: str) -> None:
    """Removes what killed runs have left: temporary files whose process is gone."""
    for path in stale_temporaries(out):
        with suppress(OSError):
            os.remove(os.path.join(out, path))


def _remove(path: str, folder: str, root: str) -> None:
    """Removes a file and the folders that it leaves empty. Another run may do the same at this moment."""
    with suppress(FileNotFoundError):
        os.remove(path)
    with suppress(OSError):
        while os.path.realpath(folder) != root:
            os.rmdir(folder)  # fails where something is left
            folder = os.path.dirname(folder)


def write_whole(path: str, data: bytes) -> None:
    """Replaces a file by way of a temporary one in the same folder."""
    temporary = _write_temporary(path, data)
    try:
        os.replace(temporary, path)
    except BaseException:
        os.remove(temporary)
        raise


def _write_temporary(path: str, data: bytes) -> str:
    temporary = f"{path}.{os.getpid()}{TEMPORARY}"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        with open(descriptor, "wb") as f:
            f.write(data)
    except BaseException:
        with suppress(FileNotFoundError):
            os.remove(temporary)
        raise
    return temporary


def write_stamp(out: str, data: bytes) -> None:
    """The stamp only saves time: where it cannot be written, the run is as good."""
    with suppress(OSError):
        write_whole(os.path.join(out, STAMP), data)


__all__ = [
    "Change",
    "apply",
    "changes",
    "check_hosts",
    "load_hosts",
    "locked",
    "parse_library",
    "remove_stale",
    "render_outputs",
    "renderer",
    "write_stamp",
    "write_whole",
]
