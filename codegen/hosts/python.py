"""The Python host: ``_C.py``, one typed function per operator over ``torch.ops``, its stub ``_C.pyi``, and the release.

A function unpacks pairs, leaves out trailing arguments that have their default, and names the argument that its caller wrote when
the library refuses one. What all of them share is hand-written, in _binding.py of the package. Operators that return tensors
also get a fake, which computes the results' shapes from their contracts; see ``python_fakes.py``.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Iterator, Mapping

from ..model import Argument, Base, Library, List, Operator, Optional, Return, TensorContract, Type, ValueContract
from ..printing import format_type
from ..record import record
from . import Difference, Edit, Host, Render
from .python_fakes import Fake, fake
from .python_views import Views, views

TAKEN = frozenset({"self", "error"})  # `self` cannot be passed by keyword through torch.ops; `error` is used by the functions


# ---- what Python can carry -----------------------------------------------------------------------------------


@record
class Words:
    """How annotations and defaults are spelled."""

    types: Mapping[str, str]
    written: str  # a tensor that is written
    dtype: str  # a dtype as a default, where {} is torch's word


SCALARS = {"Tensor": "Tensor", "int": "int", "float": "float", "bool": "bool", "str": "str", "ScalarType": "torch.dtype"}
TORCH = Words(types=SCALARS, written="Tensor", dtype="torch.{}")


def refuse(item: Argument | Return) -> str | None:
    """Why Python cannot carry this argument or return, or None."""
    if keyword.iskeyword(item.name):
        return f"`{item.name}` is a keyword of Python"
    if item.name in TAKEN:
        return f"`{item.name}` cannot be the name of an argument in Python"
    if annotation(item.type, None) is None:
        return f"Python has no annotation for a `{format_type(item.type)}` here"
    return None


# ---- types ---------------------------------------------------------------------------------------------------


LONGEST_TUPLE = 8  # in an annotation: whoever passes more members has them in a list


def annotation(t: Type, contract: TensorContract | ValueContract | None, words: Words = TORCH) -> str | None:
    """The annotation of an argument, exact as far as its contract says."""
    if isinstance(t, Optional):
        inner = annotation(t.elem, contract, words)
        return f"{inner} | None" if inner is not None else None
    value = contract if isinstance(contract, ValueContract) else None
    if isinstance(t, List):
        item = words.types.get(t.elem.name) if isinstance(t.elem, Base) else None
        if item is None:
            return None
        lengths = (t.size,) if t.size is not None else value.lengths if value is not None else ()
        if max(lengths, default=0) > LONGEST_TUPLE:
            return f"Sequence[{item}]"
        return " | ".join(f"tuple[{', '.join([item] * length)}]" for length in lengths) or f"Sequence[{item}]"
    if not isinstance(t, Base) or t.name not in words.types:
        return None
    if isinstance(contract, TensorContract) and contract.access != "in":
        return words.written
    # Strings stand in the source of a call, which checkers can see; an int mostly comes out of a computation, which they cannot follow.
    if value is not None and value.one_of and all(isinstance(v, str) for v in value.one_of):
        return f"Literal[{', '.join(literal(v) for v in value.one_of)}]"
    return words.types[t.name]


def returned(op: Operator) -> str:
    """The annotation of what an operator returns."""
    items = [result_annotation(r.type) for r in op.schema.returns]
    if not items:
        return "None"
    return items[0] if len(items) == 1 else f"tuple[{', '.join(items)}]"


def result_annotation(t: Type) -> str:
    if isinstance(t, List):
        return f"list[{result_annotation(t.elem)}]"
    assert isinstance(t, Base), f"{t} was refused"
    return SCALARS[t.name]


def literal(value: object) -> str:
    """A value of the schema in Python, strings in double quotes."""
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    if isinstance(value, tuple):
        return "(" + ", ".join(literal(v) for v in value) + ("," if len(value) == 1 else "") + ")"
    return repr(value)


def default_of(arg: Argument, words: Words = TORCH) -> str:
    assert arg.default is not None
    value, t = arg.default.value, arg.type.elem if isinstance(arg.type, Optional) else arg.type
    if value is None:
        return "None"
    if t == Base("ScalarType"):
        return words.dtype.format(arg.default.text)
    if isinstance(t, List) and t.size is not None and not isinstance(value, tuple):
        return literal((value,) * t.size)
    return literal(value)


def holds_dtypes(t: Type) -> bool:
    return holds_dtypes(t.elem) if isinstance(t, (Optional, List)) else t == Base("ScalarType")


# ---- parameters ----------------------------------------------------------------------------------------------


@record
class Parameter:
    """A parameter of the Python function: an argument of the operator, or a pair of them."""

    name: str
    annotation: str
    default: str  # "" when it has none
    kw_only: bool
    members: tuple[str, ...]  # arguments of the operator; more than one: a pair
    locals: tuple[str, ...]  # what the members are called in the function
    legacy: str  # an old keyword for it, or ""

    @property
    def declaration(self) -> str:
        return f"{self.name}: {self.annotation}" + (f" = {self.default}" if self.default else "")

    @property
    def is_pair(self) -> bool:
        return len(self.members) > 1


def parameters(op: Operator, words: Words = TORCH) -> list[Parameter]:
    arguments = {a.name: a for a in op.schema.args}
    contracts = {c.name: c for c in op.contracts}
    pair_of = {member: pair for pair in op.pairs for member in pair.args}
    legacy = {new: old for old, new in op.keywords}
    result: list[Parameter] = []
    for arg in op.schema.args:
        pair = pair_of.get(arg.name)
        members = pair.args if pair is not None else (arg.name,)
        if arg.name != members[0]:
            continue
        types = [annotation(arguments[m].type, contracts[m], words) or "" for m in members]
        name = pair.name if pair is not None else arg.name
        result.append(
            Parameter(
                name=name,
                annotation=pair_annotation(types) if pair is not None else repeated(types[0], arg.name in op.scalars),
                default=default_of(arg, words) if arg.default is not None else "",
                kw_only=arg.kw_only,
                members=members,
                locals=tuple(f"{m}_" if m == name else m for m in members) if pair is not None else members,
                legacy=legacy.get(name, ""),
            )
        )
    return result


def pair_annotation(types: list[str]) -> str:
    return f"tuple[{', '.join(types)}]"


def repeated(types: str, is_scalar: bool) -> str:
    return f"int | {types}" if is_scalar else types


WIDTH = 120  # columns of a line


def definition(name: str, declarations: list[str], returns: str, tail: str) -> str:
    """``def name(...) -> returns:``, with one parameter a line when it is long."""
    line = f"def {name}({', '.join(declarations)}) -> {returns}:{tail}"
    if len(line) <= WIDTH:
        return line
    return f"def {name}(\n" + "".join(f"    {d},\n" for d in declarations) + f") -> {returns}:{tail}"


def split(positional: list[str], keyword_only: list[str]) -> list[str]:
    return [*positional, "*", *keyword_only] if keyword_only else positional


# A parameter with an old keyword is None when the old one is given. The stub says so with two overloads, one for each keyword; the function
# itself takes both.


def signature(params: list[Parameter]) -> list[str]:
    old = [f"{p.legacy}: None = None" for p in params if p.legacy]
    return split([p.declaration for p in params if not p.kw_only], [p.declaration for p in params if p.kw_only] + old)


def old_signature(params: list[Parameter]) -> list[str]:
    now = [(p, f"{p.name}: None = None" if p.legacy else p.declaration) for p in params]
    old = [f"{p.legacy}: {p.annotation}" for p in params if p.legacy]
    return split([text for p, text in now if not p.kw_only], [text for p, text in now if p.kw_only] + old)


def runtime_signature(params: list[Parameter]) -> list[str]:
    now = [(p, f"{p.name}: {optional(p.annotation)} = None" if p.legacy else p.declaration) for p in params]
    old = [f"{p.legacy}: {optional(p.annotation)} = None" for p in params if p.legacy]
    return split([text for p, text in now if not p.kw_only], [text for p, text in now if p.kw_only] + old)


def optional(text: str) -> str:
    return text if text.endswith("| None") else f"{text} | None"


# ---- documentation -------------------------------------------------------------------------------------------


def doc_lines(op: Operator, params: list[Parameter]) -> tuple[str, ...]:
    """The docstring: documentation, then every parameter and result with its contract."""
    arguments = {a.name: a for a in op.schema.args}
    contracts = {c.name: c for c in op.contracts}
    lines = op.doc.split("\n") if op.doc else [op.symbol]
    if params:
        lines += ["", "Args:"]
    for p in params:
        if p.is_pair:
            lines.append(f"    {p.name}: the pair ({', '.join(p.members)})")
            lines += [f"        {described(m, contracts[m])}" for m in p.members]
        else:
            written = " (written)" if arguments[p.members[0]].is_written else ""
            lines.append(f"    {described(p.name + written, contracts[p.members[0]])}")
        if p.legacy:
            lines.append(f"        Old callers may say `{p.legacy}=`.")
    if op.results:
        lines += ["", "Returns:"] + [f"    {described(r.name, r)}" for r in op.results]
    if op.requires or op.checks:
        lines += ["", "Raises:", "    ValueError: also unless all of this holds:"]
        lines += [f"        {r.text}" for r in op.requires] + [f"        {c.text}" for c in op.checks]
    if not op.backends:
        lines += ["", f"Not implemented: {op.refusal} A call raises NotImplementedError."]
    return tuple(line.rstrip().replace("\\", "\\\\").replace('"""', '\\"\\"\\"') for line in lines)


def described(name: str, contract: TensorContract | ValueContract) -> str:
    return f"{name}: {contract.text}" + (f"; {contract.comment}" if contract.comment else "")


# ---- operators -----------------------------------------------------------------------------------------------


@record
class Function:
    """One operator as the templates see it."""

    name: str
    torch_name: str  # as torch registers it, with the overload after a dot
    aliases: tuple[str, ...]
    decorator: str  # "" or what keeps the function out of compiled graphs
    definition: str  # its def line, or lines
    stub: str  # the same in the stub
    legacy_stub: str  # the overload with old keywords, "" when there are none
    returns: str
    doc: tuple[str, ...]
    legacy: tuple[Parameter, ...]
    pairs: tuple[Parameter, ...]
    dtypes: tuple[tuple[str, str, bool], ...]  # arguments that hold dtypes: local name, what the caller wrote, whether it may be None
    is_default: tuple[str, ...]  # conditions under which only required arguments are passed
    required: str  # what is passed then
    passed: str  # what is passed otherwise
    names: str  # a dict display: argument of the operator -> what the caller wrote
    fake: Fake | None
    fake_definition: str
    views: Views | None
    views_definition: str


def function(op: Operator) -> Function:
    params = parameters(op)
    returns = returned(op)
    has_tensors = any(a.is_tensor for a in op.schema.args)
    local = {member: name for p in params for member, name in zip(p.members, p.locals)}
    args = op.schema.args
    renamed = {m: f"{p.name}[{i}]" for p in params if p.is_pair for i, m in enumerate(p.members)}
    decorator = "" if has_tensors else "_binding.constant" if op.schema.returns else "_binding.setter"
    fake_of_op = fake(op)
    views_of_op = views(op)
    return Function(
        name=op.symbol,
        torch_name=op.schema.name + (f".{op.schema.overload}" if op.schema.overload else ""),
        aliases=op.aliases,
        decorator=decorator,
        definition=definition(op.symbol, runtime_signature(params), returns, ""),
        stub=definition(op.symbol, signature(params), returns, ""),
        legacy_stub=definition(op.symbol, old_signature(params), returns, " ...") if any(p.legacy for p in params) else "",
        returns=returns,
        doc=doc_lines(op, params),
        legacy=tuple(p for p in params if p.legacy),
        pairs=tuple(p for p in params if p.is_pair),
        dtypes=tuple((local[a.name], renamed.get(a.name, a.name), isinstance(a.type, Optional)) for a in args if holds_dtypes(a.type)),
        is_default=tuple(is_default(p) for p in params if p.default),
        required=", ".join(local[a.name] for a in args if a.default is None),
        passed=", ".join((f"{a.name}=" if a.kw_only else "") + local[a.name] for a in args),
        names="{" + ", ".join(f'"{m}": "{text}"' for m, text in renamed.items()) + "}",
        fake=fake_of_op,
        fake_definition=definition(f"_fake_{op.symbol}", list(fake_of_op.parameters), "Any", "") if fake_of_op else "",
        views=views_of_op,
        views_definition=definition(f"_views_{op.symbol}", list(views_of_op.parameters), "Any", "") if views_of_op else "",
    )


def is_default(p: Parameter) -> str:
    if p.default in ("None", "True", "False") or p.default.startswith("torch."):
        return f"{p.name} is {p.default}"
    return f"{p.name} == {p.default}"


def render(library: Library, render: Render) -> Mapping[str, str]:
    functions = [function(op) for op in library.operators]
    context = {
        "namespace": library.namespace,
        "version": library.version,
        "schemas": [repr(op.schema.text) for op in library.operators],
        "names": sorted(name for f in functions for name in (f.name, *f.aliases)),
        "functions": functions,
    }
    return {
        "python/_C.py": render("python/_C.py.j2", **context),
        "python/_C.pyi": render("python/_C.pyi.j2", **context),
        "python/_release.py": render("python/_release.py.j2", version=library.version),
    }


# ---- for people ----------------------------------------------------------------------------------------------


def compare(edit: Edit) -> Iterable[Difference]:
    from .python_compare import differences  # only `breaking` needs it

    return differences(edit)


def explain(library: Library, op: Operator) -> Iterator[tuple[str, str]]:
    """The signature, its other names and keywords, and how the fake computes the results."""
    params = parameters(op)
    lines = [definition(op.symbol, signature(params), returned(op), "")]
    lines += [f"{name} is {op.symbol}" for name in op.aliases]
    lines += [f"{p.legacy}= is an older keyword for {p.name}=" for p in params if p.legacy]
    lines += [f"{p.name} is the pair ({', '.join(p.members)})" for p in params if p.is_pair]
    yield "Python", "\n".join(lines)
    yield "Fake kernel", "\n".join(fake_lines(op))


def fake_lines(op: Operator) -> Iterator[str]:
    computed = fake(op)
    if computed is None:
        yield "none of its own: it computes no shape" if not op.schema.returns else "none: its results are not new tensors alone"
        return
    yield from (f"{name} = {expression}" for name, expression in computed.names)
    for result in computed.results:
        for branch in result.branches:
            yield f"{result.name} = {branch.expression}" + (f" if {branch.condition}" if branch.condition else "")


HOST = Host(
    name="python",
    summary="typed Python functions over torch.ops, their stub, and fakes for tracing",
    templates=("python/_C.py.j2", "python/_C.pyi.j2", "python/_release.py.j2"),
    render=render,
    refuse=refuse,
    compare=compare,
    explain=explain,
)
