"""The DLPack host: a CPython extension in C over the C API, for the tensors of every library that has ``__dlpack__``, and its stub.

It needs no torch. For each operator the file has a table of its parameters and a function that reads them, calls the C library and hands
the results back; what these are written in stands in bindings/dlpack/glue.h. Names, defaults and documentation are those of the host
``python``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ..model import TENSOR, Argument, Library, Operator, Return
from ..record import record, replace
from . import Host, Render, c, python
from .c_expr import Spelling, c_string, known
from .c_layout import wrap
from .python import Parameter, Words, definition, doc_lines, old_signature, parameters, signature, split

OWN = "py_"  # begins the names of what a generated function has beside its arguments

WORDS = Words(types={**python.SCALARS, "Tensor": "_Array", "ScalarType": "_DType"}, written="_Output", dtype='"{}"')
NUMPY = "_NumPy"  # the annotation of a NumPy array


def refuse(item: Argument | Return) -> str | None:
    """Why the extension cannot carry this argument or return, or None."""
    if item.name.startswith(OWN):
        return f"names that begin with `{OWN}` belong to the generated functions"
    return c.refuse(item) or python.refuse(item)


# ---- reading arguments ---------------------------------------------------------------------------------------


def declaration(p: str, arg: Argument) -> str:
    """A required argument as a local variable, before it is read; "" when the reader's result initialises it."""
    s = known(arg.type)
    if s.form == "tensor" or (s.form == "list" and s.is_optional):
        return ""
    if s.form == "array":
        return f"{p}_opt_{s.word}{s.size} {arg.name} = {{0}};" if s.is_optional else f"{s.ctype} {arg.name}[{s.size}] = {{0}};"
    return f"{c.declare(c.value_type(p, s), arg.name)} = {'0' if s.form == 'scalar' and not s.is_optional else '{0}'};"


def reading(p: str, arg: Argument, index: int, target: str, is_repeated: bool) -> tuple[str, ...]:
    """Statements that read an argument into target, which has its default already."""
    s = known(arg.type)
    if s.form == "tensor":
        call = f"glue_{'write' if arg.is_written else 'read'}{'_optional' if s.is_optional else ''}(&call, {index})"
        ctype = "" if "." in target else f"{p}_tensor *" if arg.is_written else f"const {p}_tensor *"
        return (f"{ctype}{target} = {call};",)
    if s.form == "list" and s.is_optional:
        ctype = "" if "." in target else f"const {p}_{s.word}s *"
        members = f"{OWN}{arg.name}"
        return (f"{p}_{s.word}s {members} = {{0}};", f"{ctype}{target} = glue_optional_{s.word}s(&call, {index}, &{members});")
    optional = "optional_" if s.is_optional else ""
    if s.form == "array":
        into = f"&{target}.has, {target}.value" if s.is_optional else target
        repeat = "GLUE_REPEATED" if is_repeated else "GLUE_AS_GIVEN"
        return (f"glue_{optional}{s.word}_array(&call, {index}, {repeat}, {s.size}, {into});",)
    return (f"glue_{optional}{reader_word(s)}(&call, {index}, &{target});",)


def reader_word(s: Spelling) -> str:
    return f"{s.word}s" if s.form == "list" else s.word if s.form == "scalar" else s.form


# ---- results -------------------------------------------------------------------------------------------------


@record
class Result:
    """A result as the template sees it."""

    name: str  # of the local variable
    form: str  # "tensor" | "scalar" | "list"
    word: str  # "int" | "float" | "bool"
    ctype: str
    passed: str  # to the C function


def result(index: int, returned: Return) -> Result:
    s, name = known(returned.type), f"{OWN}result_{index}"
    passed = {"tensor": name, "scalar": f"&{name}", "list": f"{name}, GLUE_LIST_CAPACITY, &{name}_len"}[s.form]
    return Result(name, s.form, s.word, s.ctype, passed)


# ---- operators -----------------------------------------------------------------------------------------------


@record
class Function:
    """One operator as the templates see it."""

    name: str
    schema: tuple[str, ...]  # C strings that are one
    arguments: tuple[str, ...]  # rows of the tables
    parameters: tuple[str, ...]
    num_positional: int
    doc: str  # C strings, a line each
    num_tensors: int  # arguments and results
    has_tensors: bool
    has_options: bool
    statements: tuple[str, ...]  # that read the arguments
    results: tuple[Result, ...]
    specification: str  # the call that says what the results look like
    call: str
    aliases: tuple[str, ...]
    stubs: tuple[str, ...]  # definitions; several are overloads
    stub_doc: str

    @property
    def tensors(self) -> tuple[Result, ...]:
        return tuple(r for r in self.results if r.form == "tensor")


def function(p: str, op: Operator) -> Function:
    params = parameters(op, WORDS)
    args = op.schema.args
    places = {a.name: i for i, a in enumerate(args)}
    required = [a for a in args if a.default is None]
    results = tuple(result(i, r) for i, r in enumerate(op.schema.returns))
    options = ["&options"] if len(required) < len(args) else []
    specs = [f"&{OWN}specs[{i}]" for i, _ in enumerate(r for r in results if r.form == "tensor")]
    passed = ["call.ctx", *(a.name for a in required)]
    lines = doc_lines(op, params)
    positional = [x for x in params if not x.kw_only]
    keyword_only = [x for x in params if x.kw_only]
    return Function(
        name=op.symbol,
        schema=c.schema_strings(op.schema.text),
        arguments=tuple(f"{{{c_string(name)}, {c_string(written)}}}" for name, written in written_names(op, params)),
        parameters=tuple(parameter_row(x, places) for x in [*positional, *keyword_only]),
        num_positional=len(positional),
        doc="\n    ".join(c_string(f"{line}\n") for line in [text_signature(op.symbol, ["$module", *shown(params)]), "--", "", *unescaped(lines)]),
        num_tensors=sum(a.is_tensor for a in args) + len(specs),
        has_tensors=bool(specs) or any(a.is_tensor for a in args),
        has_options=bool(options),
        statements=tuple(statement for a in args for statement in argument_statements(p, a, places[a.name], a.name in op.scalars)),
        results=results,
        specification=f"{p}_{op.symbol}_out({', '.join([*passed, *specs, *options])})" if specs else "",
        call=f"{p}_{op.symbol}({', '.join([*passed, *(r.passed for r in results), *options])})",
        aliases=op.aliases,
        stubs=stubs(op, params),
        stub_doc="\n    ".join(lines).replace("\n    \n", "\n\n"),
    )


def argument_statements(p: str, arg: Argument, index: int, is_repeated: bool) -> Iterator[str]:
    if arg.default is not None:
        yield from reading(p, arg, index, f"options.{arg.name}", is_repeated)
        return
    if declared := declaration(p, arg):
        yield declared
    yield from reading(p, arg, index, arg.name, is_repeated)


def written_names(op: Operator, params: list[Parameter]) -> Iterator[tuple[str, str]]:
    """Every argument and how the caller writes it."""
    written = {m: f"{x.name}[{i}]" for x in params if x.is_pair for i, m in enumerate(x.members)}
    return ((a.name, written.get(a.name, a.name)) for a in op.schema.args)


def parameter_row(x: Parameter, places: Mapping[str, int]) -> str:
    need = "GLUE_DEFAULTED" if x.default else "GLUE_RENAMED" if x.legacy else "GLUE_REQUIRED"
    second = places[x.members[1]] if x.is_pair else -1
    return f"{{{c_string(x.name)}, {c_string(x.legacy) if x.legacy else 'NULL'}, {need}, {places[x.members[0]]}, {second}}}"


# ---- for Python ----------------------------------------------------------------------------------------------


def text_signature(name: str, params: list[str]) -> str:
    """What `inspect` reads in front of a docstring."""
    return f"{name}({', '.join(params)})"


def shown(params: list[Parameter]) -> list[str]:
    """Names and defaults without annotations. One that has an old name may be left out for it."""
    texts = [(x, f"{x.name}=None" if x.legacy else f"{x.name}={x.default}" if x.default else x.name) for x in params]
    old = [f"{x.legacy}=None" for x in params if x.legacy]
    return split([text for x, text in texts if not x.kw_only], [text for x, text in texts if x.kw_only] + old)


def unescaped(lines: tuple[str, ...]) -> list[str]:
    """The lines of a docstring as they are in memory."""
    return [line.replace('\\"\\"\\"', '"""').replace("\\\\", "\\") for line in lines]


def stubs(op: Operator, params: list[Parameter]) -> tuple[str, ...]:
    """The definitions of the stub: with old keywords apart, and where tensors are returned, with NumPy arrays apart, whose results are known
    to be arrays."""
    variants = [(params, returned(op, "Any"))]
    if any(r.type == TENSOR for r in op.schema.returns):
        variants.insert(0, (with_numpy(op, params), returned(op, NUMPY)))
    made = []
    for variant, returns in variants:
        made.append(definition(op.symbol, signature(variant), returns, ""))
        if any(x.legacy for x in variant):
            made.append(definition(op.symbol, old_signature(variant), returns, ""))
    return tuple(made)


def with_numpy(op: Operator, params: list[Parameter]) -> list[Parameter]:
    """The first tensor, which decides of what library the results are, as a NumPy array."""
    first = next((a.name for a in op.schema.args if a.is_tensor and not a.is_optional), None)
    return [
        replace(x, annotation=re.sub(r"_Array\b|_Output\b", NUMPY, x.annotation, count=1)) if first in x.members else x for x in params
    ]


def returned(op: Operator, tensor: str) -> str:
    items = [tensor if r.type == TENSOR else python.result_annotation(r.type) for r in op.schema.returns]
    if not items:
        return "None"
    return items[0] if len(items) == 1 else f"tuple[{', '.join(items)}]"


# ---- files ---------------------------------------------------------------------------------------------------


def render(library: Library, render_template: Render) -> Mapping[str, str]:
    p = library.prefix
    functions = [function(p, op) for op in library.operators if not op.returns_views]
    context = {
        "p": p,
        "P": p.upper(),
        "namespace": library.namespace,
        "functions": functions,
        "aliases": [(alias, f.name) for f in functions for alias in f.aliases],
        "names": sorted(name for f in functions for name in (f.name, *f.aliases)),
    }
    return {
        "dlpack/module.c": wrap(render_template("dlpack/module.c.j2", **context)),
        "dlpack/dlpack.pyi": render_template("dlpack/dlpack.pyi.j2", **context),
    }


def explain(library: Library, op: Operator) -> Iterator[tuple[str, str]]:
    if op.returns_views:
        return
    yield "DLPack", text_signature(f"{library.namespace}.dlpack.{op.symbol}", shown(parameters(op, WORDS)))


HOST = Host(
    name="dlpack",
    summary="a CPython extension for NumPy arrays and every tensor with __dlpack__, and its stub",
    templates=("dlpack/module.c.j2", "dlpack/dlpack.pyi.j2"),
    render=render,
    refuse=refuse,
    explain=explain,
)
