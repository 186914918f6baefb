"""``new`` and ``init``: skeletons to files.

A skeleton is a template whose first line says where its text goes:

    {# writes kernels/ops/{{ op }}.c #}                        a new file
    {# appends to tests/CMakeLists.txt #}                      behind the last line
    {# inserts into kernels/CMakeLists.txt behind "TEXT" #}    directly behind the first TEXT
    {# sorts into tests/symbols.txt #}                         one line, in a file whose lines are sorted

Paths are below the root of the library, the folder above that of the schema file; `schema` is the schema file itself. Those of a
folder new/ beside the schema file take the place of the generator's own: a library that has another layout says so there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from . import emit
from . import model as m
from .record import record
from .schema_file import parse_file
from .stamp import ROOT, GeneratorError, inputs_digest, read_bytes, stamp_text

_HEAD = re.compile(r'\{# (writes|appends to|inserts into|sorts into) (\S.*?)(?: behind "(.*)")? #\}\n')


@record
class Piece:
    action: str
    path: str
    behind: str
    text: str


# ---- new -----------------------------------------------------------------------------------------------------


def add_operator(schema_path: str, library: m.Library, name: str) -> list[str]:
    """Writes everything that a new operator needs; gives the paths. Nothing is written when any part of it cannot be."""
    taken = {n for op in library.operators for n in (op.symbol, *op.aliases)}
    if name in taken:
        raise GeneratorError(f"there is an operator `{name}` already")
    folder = os.path.dirname(os.path.abspath(schema_path))
    root = os.path.dirname(folder)
    own = os.path.join(folder, "new")
    skeletons = own if os.path.isdir(own) else os.path.join(ROOT, "templates", "new")
    context = {"op": name, "p": library.prefix, "P": library.prefix.upper(), "namespace": library.namespace, "version": library.version}
    changed: dict[str, bytes] = {}
    for piece in _pieces(skeletons, context):
        path = os.path.abspath(schema_path) if piece.path == "schema" else _below(root, piece.path)
        changed[path] = _put(path, piece, changed.get(path))
    _check_schema(schema_path, changed[os.path.abspath(schema_path)])
    return _write(changed)


def _check_schema(path: str, data: bytes) -> None:
    library, report = parse_file(path, data)
    if library is None:
        raise GeneratorError(f"the skeleton makes no valid schema:\n{report.render()}")


def _pieces(folder: str, context: Mapping[str, str]) -> Iterator[Piece]:
    names = sorted(n for n in os.listdir(folder) if n.endswith(".j2"))
    if not names:
        raise GeneratorError(f"{folder} has no skeletons, files named *.j2")
    for name in names:
        path = os.path.join(folder, name)
        text = read_bytes(path).decode("utf-8")
        head = _HEAD.match(text)
        if head is None:
            raise GeneratorError(f"{path}: the first line does not say where the text goes, as in `{{# writes PATH #}}`")
        action, target, behind = head.groups()
        yield Piece(action, emit.render_text(target, context), behind or "", emit.render_text(text[head.end() :], context))


def _below(root: str, path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise GeneratorError(f"a skeleton would write outside the library: {path}")
    return os.path.join(root, *path.split("/"))


def _put(path: str, piece: Piece, earlier: bytes | None) -> bytes:
    """The file with the piece in its place."""
    if piece.action == "writes":
        if os.path.exists(path) or earlier is not None:
            raise GeneratorError(f"{path} is there already")
        return piece.text.encode("utf-8")
    old = (read_bytes(path) if earlier is None else earlier).decode("utf-8")
    if piece.action == "appends to":
        return (old.rstrip("\n") + "\n" + piece.text).encode("utf-8")
    if piece.action == "sorts into":
        return "".join(sorted({*old.splitlines(keepends=True), piece.text})).encode("utf-8")
    at = old.find(piece.behind)
    if at < 0:
        raise GeneratorError(f"{path} has no `{piece.behind}` to insert behind")
    at += len(piece.behind)
    return (old[:at] + piece.text.rstrip("\n") + old[at:]).encode("utf-8")


def _write(files: Mapping[str, bytes]) -> list[str]:
    for path, data in files.items():
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            emit.write_whole(path, data)
        except OSError as e:
            raise GeneratorError(f"cannot write {path}: {e.strerror}") from None
    return [os.path.relpath(path) for path in files]


# ---- init ----------------------------------------------------------------------------------------------------

_INIT_HOSTS = ("c", "docs")


def start_library(name: str, prefix: str, folder: str) -> list[str]:
    """A library with one operator in a new folder, its generated files included; gives the paths."""
    root = os.path.abspath(folder)
    if os.path.isdir(root) and os.listdir(root):
        raise GeneratorError(f"{folder} is not empty")
    context = {"namespace": name, "p": prefix, "P": prefix.upper(), "version": "0.1.0"}
    runtime = _runtime(_origin(name, prefix))
    sources = "\n".join(f"  {path}" for path in runtime if path.endswith(".c"))
    files: dict[str, bytes] = {}
    skeletons = os.path.join(ROOT, "templates", "init")
    for piece in _pieces(skeletons, {**context, "runtime": sources}):
        files[_below(root, piece.path)] = piece.text.encode("utf-8")
    files |= {_below(root, path): data for path, data in runtime.items()}
    schema = files[_below(root, "schema/ops.schema")]
    hosts = emit.load_hosts(_INIT_HOSTS)
    library, report = emit.parse_library("schema/ops.schema", schema, hosts)
    if library is None:
        raise AssertionError(report.render())
    outputs = emit.render_outputs(library, hosts)
    out = os.path.join(root, "generated")
    files |= {os.path.join(out, *path.split("/")): data for path, data in outputs.items()}
    written = _write(files)
    emit.write_stamp(out, stamp_text(inputs_digest(schema, _INIT_HOSTS), outputs))
    return written


@record
class _Origin:
    """Where the runtime of generated files comes from, and the names, namespace and prefix, that change on the way."""

    folder: str
    own: tuple[str, str]
    new: tuple[str, str]

    def path(self, *parts: str) -> str:
        return os.path.join(self.folder, *parts)

    def renamed(self, source: bytes) -> bytes:
        return _renamed(source.decode("utf-8"), self.own, self.new).encode("utf-8")


def _origin(name: str, prefix: str) -> _Origin:
    """Inside an installed generator, beside that of a source tree."""
    inside = os.path.join(ROOT, "runtime")
    folder = inside if os.path.isdir(inside) else os.path.dirname(ROOT)
    return _Origin(folder, _known_names(folder), (name, prefix))


# Hosts whose hand-written part is also made of another one's.
_SHARED_PARTS = {"torch_library": ("torch",)}


def write_runtime(library: m.Library, hosts: tuple[str, ...], out: str) -> list[str]:
    """Writes what the generated files of these hosts call, under the names of the library, into the folder out; gives the paths of all
    of its files, below out. Files that are right already stay as they are."""
    origin = _origin(library.namespace, library.prefix)
    files = _runtime(origin) | _device_runtime(origin)
    for host in hosts:
        for part in (host, *_SHARED_PARTS.get(host, ())):
            files |= _host_runtime(origin, part)
    stale = {}
    for path, data in files.items():
        target = _below(out, path)
        if not os.path.exists(target) or read_bytes(target) != data:
            stale[target] = data
    _write(stale)
    return sorted(files)


def _device_runtime(origin: _Origin) -> dict[str, bytes]:
    """The part of the core that is compiled for CUDA."""
    folder = origin.path("kernels", "cuda")
    files = [n for n in sorted(os.listdir(folder)) if n.startswith("device.")] if os.path.isdir(folder) else []
    return {f"kernels/cuda/{n}": origin.renamed(read_bytes(os.path.join(folder, n))) for n in files}


def _host_runtime(origin: _Origin, host: str) -> dict[str, bytes]:
    """The hand-written part of a host: the sources in bindings/HOST, and of a Python package there the modules with a leading
    underscore, which generated modules import."""
    folder = origin.path("bindings", host)
    package = os.path.join(folder, origin.own[0])
    found: dict[str, str] = {}
    if os.path.isdir(folder):
        found |= {n: os.path.join(folder, n) for n in os.listdir(folder) if n.endswith((".c", ".h", ".cpp", ".hpp"))}
    if os.path.isdir(package):
        modules = (n for n in os.listdir(package) if n.startswith("_") and not n.startswith("__") and n.endswith((".py", ".pyi")))
        found |= {f"{origin.new[0]}/{n}": os.path.join(package, n) for n in modules}
    return {f"bindings/{host}/{n}": origin.renamed(read_bytes(path)) for n, path in sorted(found.items())}


def _runtime(origin: _Origin) -> dict[str, bytes]:
    """What generated checks call, under the names of the new library: the core of the library that this generator comes with, and
    every header that it includes."""
    kernels = origin.path("kernels")
    core = os.path.join(kernels, "core")
    if not os.path.isdir(core):
        raise GeneratorError(f"the runtime of generated checks is missing: {core}")
    todo = [os.path.join("core", n) for n in sorted(os.listdir(core)) if n.endswith((".c", ".h"))]
    files: dict[str, bytes] = {}
    while todo:
        path = todo.pop(0)
        source = read_bytes(os.path.join(kernels, path))
        files[_new_path(origin, path)] = origin.renamed(source)
        for included in re.findall(r'^#include "([^"]+)"', source.decode("utf-8"), re.MULTILINE):
            found = next(
                (p for p in (os.path.join(os.path.dirname(path), included), included, os.path.join("include", included))
                 if os.path.isfile(os.path.join(kernels, p))),
                None,
            )  # fmt: skip
            if found is not None and found not in todo and _new_path(origin, found) not in files:
                todo.append(found)
    return files


def _new_path(origin: _Origin, path: str) -> str:
    """Where a file below kernels goes."""
    return os.path.join("kernels", path).replace(origin.own[0], origin.new[0]).replace(os.sep, "/")


def _known_names(origin: str) -> tuple[str, str]:
    """The namespace and the prefix in the runtime's own source. Only the head of the schema file is read: parsing all of it takes longer."""
    path = os.path.join(origin, "schema", "ops.schema")
    if not os.path.isfile(path):
        raise GeneratorError(f"the runtime of generated files is missing: {path}")
    head = read_bytes(path).decode("utf-8")
    found = [re.search(rf"^{word} (\w+)", head, re.MULTILINE) for word in ("namespace", "prefix")]
    if found[0] is None or found[1] is None:
        raise GeneratorError(f"{path} names no namespace or no prefix")
    return found[0][1], found[1][1]


def _renamed(text: str, old: tuple[str, str], new: tuple[str, str]) -> str:
    for was, now in zip(old, new):
        pattern = "(?<![A-Za-z0-9]){}(?![A-Za-z0-9])"
        text = re.sub(pattern.format(re.escape(was)), now, text)
        text = re.sub(pattern.format(re.escape(was.upper())), now.upper(), text)
    return text
