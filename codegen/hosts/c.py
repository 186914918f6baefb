"""The C host: the public header, the contract checks in front of every operator, and the table of operators.

This module has what the four files say of a signature: types, prototypes, options, comments. What a check does stands in
``c_checks.py``, how a contract's expression reads in C in ``c_expr.py``.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from ..model import Argument, Base, Library, List, NameRef, Operator, Optional, Return, TensorContract, Type, ValueContract
from ..printing import format_expr, format_type
from ..record import record
from . import Difference, Edit, Host, Render
from .c_checks import Block, Specification, Table, argument_blocks, is_shaped_at_once, result_overlaps, specifications, tables
from .c_expr import Scope, Spelling, c_format, c_integer, c_string, known, spelling
from .c_layout import WIDTH, wrap

KEYWORDS = frozenset(
    """alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class co_await co_return
    co_yield compl concept const const_cast consteval constexpr constinit continue decltype default delete do double dynamic_cast
    else enum explicit export extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq
    nullptr operator or or_eq private protected public register reinterpret_cast requires restrict return short signed sizeof
    static static_assert static_cast struct switch template this thread_local throw true try typedef typeid typename typeof union
    unsigned using virtual void volatile wchar_t while xor xor_eq NULL""".split()
)
TAKEN = frozenset("ctx options struct_size chk call opt".split())  # by the generated functions themselves

DTYPES = {  # torch's words for dtypes that C has a macro for
    "float64": "F64", "double": "F64", "float32": "F32", "float": "F32", "float16": "F16", "half": "F16", "bfloat16": "BF16",
    "float8_e4m3fn": "F8E4M3", "float8_e5m2": "F8E5M2", "float8_e8m0fnu": "UE8M0", "float4_e2m1fn_x2": "F4E2M1X2",
    "int64": "I64", "long": "I64", "int32": "I32", "int": "I32", "int16": "I16", "short": "I16", "int8": "I8", "uint8": "U8",
    "bool": "BOOL",
}  # fmt: skip

INSTEAD = {  # what to write for a type that C does not carry
    "Scalar": "write `float` or `int`",
    "Generator": "pass the seed and the offset as `int`",
    "Device": "the tensors and the context carry the device",
    "Layout": "pass a `str`",
    "MemoryFormat": "pass a `str`",
    "Stream": "the context carries the stream",
    "complex": "pass the parts as two `float`",
    "Tuple": "write its members as arguments of their own",
}


# ---- what C can carry ----------------------------------------------------------------------------------------


def refuse(item: Argument | Return) -> str | None:
    """Why C cannot carry this argument or return, or None."""
    if isinstance(item, Return):
        return refuse_return(item)
    if item.name in KEYWORDS:
        return f"`{item.name}` is a keyword of C or C++"
    if item.name in TAKEN:
        return f"`{item.name}` is a name that every generated C function uses itself"
    if spelling(item.type) is None:
        return refuse_type(item.type)
    if item.default is not None and initialiser("", item) is None:
        return f"C has no initialiser for the default `{item.default.text}` of a `{format_type(item.type)}`"
    return None


def refuse_return(item: Return) -> str | None:
    if item.alias is not None:
        return None  # a view of an argument: the operator is left out of C
    if item.name in KEYWORDS:
        return f"`{item.name}` is a keyword of C or C++"
    if item.name in TAKEN:
        return f"`{item.name}` is a name that every generated C function uses itself"
    s = spelling(item.type)
    if s is None:
        return refuse_type(item.type)
    if s.is_optional or s.form not in ("tensor", "scalar", "list"):
        return f"C cannot return a `{format_type(item.type)}`: it returns `Tensor`, `int`, `float`, `bool` and lists of numbers"
    return None


def refuse_type(t: Type) -> str:
    if isinstance(t, List) and innermost(t) == "Tensor":
        return f"C cannot carry a `{format_type(t)}`, since a list of tensors has no contract: write the tensors as arguments of their own"
    if t == Optional(Base("str")):
        return "C cannot carry a `str?`: write `str` with an empty default"
    instead = INSTEAD.get(innermost(t), "write a type of the table in schema/README.md")
    return f"C cannot carry a `{format_type(t)}`: {instead}"


def innermost(t: Type) -> str:
    """The name of the type without its lists and question marks."""
    while isinstance(t, (Optional, List)):
        t = t.elem
    return t.name


# ---- types and names -----------------------------------------------------------------------------------------


def value_type(p: str, s: Spelling) -> str:
    """The type of a value that is no tensor and no array of fixed length."""
    if s.form == "str":
        return f"{p}_str"
    if s.form == "dtype":
        return f"{p}_opt_dtype" if s.is_optional else f"{p}_dtype"
    if s.form == "list":
        return f"const {p}_{s.word}s *" if s.is_optional else f"{p}_{s.word}s"
    if s.form == "array":
        return f"{p}_opt_{s.word}{s.size}"
    return f"{p}_opt_{s.word}" if s.is_optional else s.ctype


def declare(ctype: str, name: str) -> str:
    return ctype + name if ctype.endswith("*") else f"{ctype} {name}"


def parameter(p: str, arg: Argument) -> str:
    """An argument as a parameter of its operator: ``const dg_tensor *a``, ``const int64_t recipe[3]``."""
    s = known(arg.type)
    if s.form == "tensor":
        return f"{p}_tensor *{arg.name}" if arg.is_written else f"const {p}_tensor *{arg.name}"
    if s.form == "array" and not s.is_optional:
        return f"const {s.ctype} {arg.name}[{s.size}]"
    return declare(value_type(p, s), arg.name)


def read_parameter(p: str, arg: Argument) -> str:
    """The same in a function that writes nothing."""
    return f"const {p}_tensor *{arg.name}" if arg.is_tensor else parameter(p, arg)


def option_member(p: str, arg: Argument) -> str:
    """A defaulted argument in the options struct."""
    s = known(arg.type)
    if s.form == "array" and not s.is_optional:
        return f"{s.ctype} {arg.name}[{s.size}]"
    return parameter(p, arg)


def call_member(p: str, arg: Argument) -> str:
    """An argument in the call struct, after its check."""
    s = known(arg.type)
    if s.form == "tensor":
        return f"struct {p}_view {arg.name}"
    if s.form == "dtype":
        return f"enum {p}_type {arg.name}"
    return option_member(p, arg)


def result_parameters(p: str, name: str, s: Spelling) -> tuple[str, ...]:
    if s.form == "tensor":
        return (f"{p}_tensor *{name}",)
    if s.form == "list":
        return (f"{s.ctype} *{name}", f"size_t {name}_capacity", f"size_t *{name}_len")
    return (f"{s.ctype} *{name}",)


def result_member(p: str, name: str, s: Spelling) -> tuple[str, ...]:
    """Lines of a result in the call struct."""
    if s.form == "tensor":
        return (f"struct {p}_view {name};",)
    if s.form == "list":
        return ("struct {", f"    {s.ctype} *data;", "    size_t capacity;", "    size_t *len;", f"}} {name};")
    return (f"{s.ctype} *{name};",)


# ---- defaults ------------------------------------------------------------------------------------------------


def initialiser(p: str, arg: Argument) -> str | None:
    """The default in the positional initialiser of the options struct; None: C has no spelling for it."""
    assert arg.default is not None
    s, value = known(arg.type), arg.default.value
    if s.form == "tensor":
        return "NULL" if value is None else None
    if s.form == "list":
        if s.is_optional:
            return "NULL" if value is None else None
        return "{NULL, 0}" if value == () else None
    if s.form == "array":
        zeros = "{" + ", ".join([number(s.word, zero(s.word)) or ""] * (s.size or 0)) + "}"
        if value is None:
            return f"{{false, {zeros}}}" if s.is_optional else None
        members = array_members(s, value)
        return f"{{true, {members}}}" if members and s.is_optional else members
    if s.form == "str":
        return f"{p.upper()}_STR_INIT({c_string(value)})" if isinstance(value, str) else None
    if s.form == "dtype":
        if value is None:
            return "{false, {0, 0, 0}}" if s.is_optional else None
        word = DTYPES.get(arg.default.text)
        macro = word and f"{{{p.upper()}_{word}}}"
        return f"{{true, {macro}}}" if macro and s.is_optional else macro
    if value is None:
        return f"{{false, {number(s.word, zero(s.word))}}}" if s.is_optional else None
    text = number(s.word, value)
    return f"{{true, {text}}}" if text and s.is_optional else text


def array_members(s: Spelling, value: object) -> str | None:
    """``int[3] x=[1, 2, 3]``, or one value for all members."""
    values = value if isinstance(value, tuple) else (value,) * (s.size or 0)
    texts = [number(s.word, v) for v in values]
    if len(texts) != s.size or None in texts:
        return None
    return "{" + ", ".join(t or "" for t in texts) + "}"


def zero(word: str) -> object:
    return {"int": 0, "float": 0.0, "bool": False}[word]


def number(word: str, value: object) -> str | None:
    """A literal of type int64_t, double or bool."""
    if word == "bool":
        return str(value).lower() if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, int if word == "int" else (int, float)):
        return None
    if word == "float":
        return repr(float(value))
    return c_integer(int(value))


# ---- comments ------------------------------------------------------------------------------------------------


def comment_lines(p: str, op: Operator, *, lists_are_returned: bool = False) -> tuple[str, ...]:
    """The documentation of an operator in a header, without the comment's own marks. lists_are_returned: not written where the caller says."""
    lines = op.doc.split("\n") if op.doc else [op.symbol]
    rows = [(contract.name, argument_notes(arg, contract)) for arg, contract in zip(op.schema.args, op.contracts)]
    rows += [(contract.name, result_notes(r, contract, lists_are_returned)) for r, contract in zip(op.schema.returns, op.results)]
    if rows:
        indent = max(len(name) for name, _ in rows) + 4
        lines.append("")
        for name, notes in rows:
            for i, text in enumerate(notes):
                lines += hang(f"  {'' if i else name}".ljust(indent), text)
    if op.lets:
        lines += ["", "where"]
        for let in op.lets:
            lines += hang("  ", f"{let.name} = {format_expr(let.expr)}")
    if op.requires or op.checks:
        lines += ["", f"{p.upper()}_ERR_INVALID_ARGUMENT also when one of these does not hold:"]
        for require in op.requires:
            lines += hang("  - ", f"{require.message}: {require.text}" if require.message else require.text)
        for check in op.checks:
            lines += hang("  - ", f"{check.name}: {check.text}")
    lines.append("")
    if op.backends:
        lines += hang("", f"Backends: {' '.join(op.backends)}.")
    else:
        lines += hang("", f"{p.upper()}_ERR_NOT_SUPPORTED for every valid call, not implemented: {op.refusal}.")
    return tuple(line.replace("*/", "* /").replace("/*", "/ *") for line in lines)


def argument_notes(arg: Argument, contract: TensorContract | ValueContract) -> list[str]:
    """What stands beside the name of an argument, a list of lines."""
    words = {"None": "none", "True": "true", "False": "false"}
    default = f"default {words.get(arg.default.text, arg.default.text)}" if arg.default is not None else ""
    attributes = [contract.access] if isinstance(contract, TensorContract) and contract.access != "in" else []
    if isinstance(contract, TensorContract):
        attributes += [f"may alias {name}" for name in contract.may_alias] + ["cpu"] * contract.on_cpu
    return notes(contract, attributes, [default, contract.comment])


def result_notes(returned: Return, contract: TensorContract | ValueContract, is_returned: bool) -> list[str]:
    name, s = contract.name, known(returned.type)
    is_written = s.form == "list" and not is_returned
    ends = f"at most {name}_capacity members are written, *{name}_len gets their number" if is_written else ""
    first, *others = notes(contract, [], [contract.comment, ends])
    return ["result" if first == "any" else f"result: {first}", *others]


def notes(contract: TensorContract | ValueContract, attributes: list[str], remarks: list[str]) -> list[str]:
    """The contract and the remarks that are not empty on one line; several alternatives have lines of their own."""
    remarks = [remark for remark in remarks if remark]
    if not isinstance(contract, TensorContract) or len(contract.alternatives) < 2:
        text = "" if contract.text == "any" and remarks else contract.text
        return ["; ".join(part for part in (text, *remarks) if part)]
    lines = [contract.alternatives[0].text, *(f"| {a.text}" for a in contract.alternatives[1:])]
    ends = "; ".join(part for part in (", ".join(attributes), *remarks) if part)
    return [*lines, ends] if ends else lines


def hang(head: str, text: str) -> list[str]:
    """head and text on one line, or on several whose text is aligned."""
    width = WIDTH - len(" * ")
    if len(head) + len(text) <= width and text.isprintable() and text[:1].strip() and text[-1:].strip():
        return [head + text]  # nearly always
    return textwrap.wrap(
        text, width, initial_indent=head, subsequent_indent=" " * len(head), break_long_words=False, break_on_hyphens=False
    )


# ---- operators -----------------------------------------------------------------------------------------------


@record
class Option:
    """A defaulted argument as a member of the options struct."""

    name: str
    declaration: str
    initialiser: str


@record
class Result:
    name: str
    form: str  # "tensor" | "scalar" | "list"
    parameters: tuple[str, ...]
    member: tuple[str, ...]  # lines of the call struct

@record
class Function:
    """An operator as the templates see it."""

    prefix: str
    name: str
    comment: tuple[str, ...]
    required: tuple[str, ...]  # parameters
    reads: tuple[str, ...]  # the same in a function that writes nothing
    passed: tuple[str, ...]  # their names
    options: tuple[Option, ...]
    members: tuple[str, ...]  # of the call struct
    integers: tuple[str, ...]  # of the call struct: dimensions and lets
    results: tuple[Result, ...]
    tables: tuple[Table, ...]
    blocks: tuple[Block, ...]
    specifications: tuple[Specification, ...]
    overlaps: tuple[tuple[str, str], ...]
    refusal: str  # a printf format, in C; "" when it is implemented

    @property
    def has_call(self) -> bool:
        """Whether the call struct has members."""
        return bool(self.members or self.results)

    @property
    def tensors(self) -> tuple[Result, ...]:
        """The results that the caller can ask the specification of."""
        return tuple(r for r in self.results if r.form == "tensor")

    @property
    def uses_checker(self) -> bool:
        """Whether there is anything to check in the arguments."""
        return bool(self.options) or any(block.kind != "set" for block in self.blocks)

    # ---- parameters

    @property
    def options_parameter(self) -> tuple[str, ...]:
        return (f"const {self.prefix}_{self.name}_options *options",) if self.options else ()

    @property
    def parameters(self) -> tuple[str, ...]:
        """Of the operator."""
        results = (parameter for r in self.results for parameter in r.parameters)
        return (f"{self.prefix}_context *ctx", *self.required, *results, *self.options_parameter)

    @property
    def out_parameters(self) -> tuple[str, ...]:
        """Of the function that specifies its results."""
        return (f"{self.prefix}_context *ctx", *self.reads, *self.spec_parameters, *self.options_parameter)

    @property
    def spec_parameters(self) -> tuple[str, ...]:
        return tuple(f"{self.prefix}_tensor_spec *{r.name}" for r in self.tensors)

    # ---- what is checked, each a C expression that is true on failure

    @property
    def argument_check(self) -> tuple[str, ...]:
        passed = ("&chk", *self.passed, *(("options",) if self.options else ()), "&call")
        return (f"!check_{self.name}({', '.join(passed)})",) if self.members else ()

    @property
    def out_checks(self) -> tuple[str, ...]:
        """Of the function that specifies the results."""
        pointers = (f'!{self.prefix}_check_pointer(&chk, "{r.name}", {r.name})' for r in self.tensors)
        specs = ", ".join(r.name for r in self.tensors)
        return (*self.argument_check, *pointers, f"!spec_{self.name}(&chk, &call, {specs})")

    @property
    def call_checks(self) -> tuple[str, ...]:
        """Of the operator."""
        p, checks = self.prefix, [*self.argument_check]
        if self.tensors:
            checks.append(f"!spec_{self.name}(&chk, &call, {', '.join(f'&{r.name}_spec' for r in self.tensors)})")
        for r in self.results:
            if r.form == "tensor":
                checks.append(f'!{p}_check_result(&chk, "{r.name}", {r.name}, &{r.name}_spec, &call.{r.name})')
            elif r.form == "list":
                checks.append(f'({r.name}_capacity > 0 && !{p}_check_pointer(&chk, "{r.name}", {r.name}))')
                checks.append(f'!{p}_check_pointer(&chk, "{r.name}_len", {r.name}_len)')
            else:
                checks.append(f'!{p}_check_pointer(&chk, "{r.name}", {r.name})')
        checks += (f'!{p}_check_no_overlap(&chk, "{a}", &call.{a}, "{b}", &call.{b})' for a, b in self.overlaps)
        return tuple(checks)


def function(p: str, op: Operator) -> Function:
    scope = Scope.of(p, op)
    blocks, guarded = argument_blocks(scope)
    required = [a for a in op.schema.args if a.default is None]
    defaulted = [a for a in op.schema.args if a.default is not None]
    return Function(
        prefix=p,
        name=op.symbol,
        comment=comment_lines(p, op),
        required=tuple(parameter(p, a) for a in required),
        reads=tuple(read_parameter(p, a) for a in required),
        passed=tuple(a.name for a in required),
        options=tuple(Option(a.name, option_member(p, a), initialiser(p, a) or "") for a in defaulted),
        members=tuple(call_member(p, a) for a in op.schema.args),
        integers=(*(d.name for d in op.dimensions), *(let.name for let in op.lets)),
        results=tuple(result(p, r, c) for r, c in zip(op.schema.returns, op.results)),
        tables=tables(scope),
        blocks=blocks,
        specifications=specifications(scope, guarded),
        overlaps=tuple(result_overlaps(scope)),
        refusal="" if op.backends else c_string(c_format(f"not implemented: {op.refusal}")),
    )


def result(p: str, returned: Return, contract: TensorContract | ValueContract) -> Result:
    s = known(returned.type)
    name = contract.name
    return Result(name, s.form, result_parameters(p, name, s), result_member(p, name, s))


@record
class Entry:
    """An operator in the table that other hosts check themselves against; torch-only operators are in it too."""

    name: str
    schema: tuple[str, ...]  # C strings
    backends: tuple[str, ...]


def entry(op: Operator) -> Entry:
    return Entry(op.symbol, schema_strings(op.schema.text), (*(c_string(b) for b in op.backends), "NULL"))


@lru_cache(maxsize=4096)
def schema_strings(schema: str) -> tuple[str, ...]:
    """The schema as C strings that are one, each on a line. More than one host needs them."""
    lines = textwrap.wrap(schema, WIDTH - 16, break_long_words=False, break_on_hyphens=False)
    return (*(c_string(line + " ") for line in lines[:-1]), *(c_string(line) for line in lines[-1:]))


# ---- files ---------------------------------------------------------------------------------------------------


def render(library: Library, render_template: Render) -> Mapping[str, str]:
    p = library.prefix
    ops = tuple(function(p, op) for op in library.operators if not op.returns_views)
    context = {"p": p, "P": p.upper(), "namespace": library.namespace, "NAMESPACE": library.namespace.upper()}
    texts = {
        f"include/{library.namespace}/ops.h": render_template(
            "c/ops.h.j2", **context, version=c_string(library.version), arrays=optional_arrays(library), ops=ops
        ),
        "c/calls.h": render_template("c/calls.h.j2", **context, ops=ops),
        "c/checks.c": render_template("c/checks.c.j2", **context, ops=ops),
        "c/operators.c": render_template("c/operators.c.j2", **context, ops=[entry(op) for op in library.operators]),
    }
    return {path: wrap(text) for path, text in texts.items()}


def optional_arrays(library: Library) -> tuple[Spelling, ...]:
    """The ``int[N]?`` in use: C needs a struct for each N."""
    types = [a.type for op in library.operators if not op.returns_views for a in op.schema.args]
    arrays = {s for s in map(spelling, types) if s is not None and s.form == "array" and s.is_optional}
    return tuple(sorted(arrays, key=lambda s: (s.word, s.size)))


# ---- for people ----------------------------------------------------------------------------------------------


def compare(edit: Edit) -> Iterable[Difference]:
    from .c_compare import differences  # only `breaking` needs it

    return differences(edit)


def explain(library: Library, op: Operator) -> Iterator[tuple[str, str]]:
    """The prototypes and options of an operator, and what its checks say."""
    p = library.prefix
    if op.returns_views:
        yield "C", "not in C: a result is a view of an argument"
        return
    f = function(p, op)
    prototypes = [f"{p}_status {p}_{f.name}({', '.join(f.parameters)});"]
    if f.tensors:
        prototypes.append(f"{p}_status {p}_{f.name}_out({', '.join(f.out_parameters)});")
    yield "C prototype", wrap("\n".join(prototypes) + "\n").rstrip("\n")
    if f.options:
        width = max(len(option.declaration) for option in f.options) + 1
        rows = [f"{option.declaration + ';':<{width}}  default {option.initialiser}" for option in f.options]
        yield f"C options, {p}_{f.name}_options", "\n".join(rows)
    yield "Messages", "\n".join(messages(Scope.of(p, op))) or "none"


def messages(scope: Scope) -> Iterator[str]:
    """What a refused call is told; `...` stands for what it gave."""
    op = scope.op
    texts = [text for contract in op.contracts for text in contract_messages(scope, contract)]
    texts += [f"{require.message or f'requires {require.text}'}, got ..." for require in op.requires]
    texts += [check.text for check in op.checks]
    if not op.backends:
        texts.append(f"not implemented: {op.refusal}")
    yield from (f"{op.symbol}: {text}" for text in texts)


def contract_messages(scope: Scope, contract: TensorContract | ValueContract) -> Iterator[str]:
    name = contract.name
    if isinstance(contract, ValueContract):
        if contract.text != "any":
            subject = f"{name}[...]" if contract.each else name
            yield f"{subject} is ..., expected {contract.text.replace('each ', '')}"
        return
    shaped_at_once = is_shaped_at_once(scope, contract)
    if contract.like:
        yield f"{name} has dtype ..., expected ... to match {contract.like}"
        yield f"{name} has shape ..., expected ... to match {contract.like}"
    else:
        expected = " | ".join(a.text for a in contract.alternatives)
        yield f"{name} has dtype ..., expected {expected}"
        if not shaped_at_once:
            yield f"{name} has shape ..., expected {expected}"
    sizes = [size for a in contract.alternatives for size in a.shape or ()]
    for d in scope.op.dimensions:
        if not shaped_at_once and d.arg != name and any(isinstance(size, NameRef) and size.name == d.name for size in sizes):
            yield f"{name} has {d.name} = ..., expected ... to match {d.arg}"
    for a in contract.alternatives:
        if any(not isinstance(size, NameRef) for size in a.shape or ()):
            yield f"{name} has shape ..., expected ... = [{', '.join(format_expr(size) for size in a.shape or ())}]"
        if a.strides is not None:
            yield f"{name} has strides ..., expected ... = [{', '.join(format_expr(stride) for stride in a.strides)}]"
    layouts = {a.layout for a in contract.alternatives}
    if "rows" in layouts:
        yield f"{name} has strides ..., expected stride 1 in the last dimension"
    if "contiguous" in layouts:
        yield f"{name} has strides ..., expected ... = contiguous"
    if contract.access != "in":
        yield f"{name} has shape ... and strides ..., expected elements that do not overlap"
        yield f"{name} overlaps ..., expected separate memory"


HOST = Host(
    name="c",
    summary="C: public header, contract checks, table of operators",
    templates=("c/ops.h.j2", "c/calls.h.j2", "c/checks.c.j2", "c/operators.c.j2"),
    render=render,
    refuse=refuse,
    compare=compare,
    explain=explain,
)
