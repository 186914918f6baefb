"""The C++ host: one header over the C API, for C++17 and newer. It needs the C headers and the standard library.

Types that C spells with pointers and lengths have value types there (``TensorView``, ``List``, ``std::optional``, ``std::string_view``),
options are structs with the schema's defaults, results are returned, and a status that is no success is thrown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ..model import TENSOR, Argument, Library, Operator, Return, TensorContract, ValueContract
from ..record import record
from . import Difference, Edit, Host, Render
from .c import comment_lines, initialiser, refuse
from .c_expr import Spelling, c_string, known
from .c_layout import wrap

LISTS = {"int": "Ints", "float": "Floats", "bool": "Bools"}

# ---- types ---------------------------------------------------------------------------------------------------


def value_type(p: str, s: Spelling) -> str:
    """The type of a value that is given, tensors apart."""
    if s.form == "str":
        return "std::string_view"
    if s.form == "dtype":
        return f"{p}_dtype"
    if s.form == "list":
        return LISTS[s.word]
    return f"std::array<{s.ctype}, {s.size}>" if s.form == "array" else s.ctype


def option_type(p: str, arg: Argument) -> str:
    s = known(arg.type)
    inner = value_type(p, s) if s.form != "tensor" else "TensorRef" if arg.is_written else "TensorView"
    return f"std::optional<{inner}>" if s.is_optional else inner


def parameter(p: str, arg: Argument) -> str:
    """A required argument. What is larger than two words is passed by reference."""
    s, t = known(arg.type), option_type(p, arg)
    return f"const {t} &{arg.name}" if s.is_optional or s.form in ("tensor", "array") else f"{t} {arg.name}"


def default(p: str, arg: Argument) -> str:
    """The default as a member's initialiser, "" when a std::optional is empty."""
    assert arg.default is not None
    s, value = known(arg.type), arg.default.value
    if value is None:
        return ""
    if s.form == "str":
        return f" = {c_string(str(value))}"
    text = initialiser(p, arg) or ""
    if s.is_optional:
        text = text.removeprefix("{true, ").removesuffix("}")
    if s.form == "list":
        return ""  # the empty list
    if s.form == "array":
        return f" = {option_type(p, arg)}{{{text}}}"
    return f" = {p}_dtype{text}" if s.form == "dtype" else f" = {text}"


# ---- arguments on their way to C -----------------------------------------------------------------------------


def passed(p: str, arg: Argument) -> str:
    """A required argument, as an expression of the C parameter's type."""
    s = known(arg.type)
    return f"{arg.name}.data()" if s.form == "array" and not s.is_optional else converted(p, s, arg.name)


def converted(p: str, s: Spelling, name: str) -> str:
    if s.form == "tensor":
        return f"detail::pointer_to({name})" if s.is_optional else f"{name}.get()"
    if s.form == "str":
        return f"detail::text({name})"
    if s.form == "list":
        return f"detail::pointer_to({name})" if s.is_optional else f"*{name}.get()"
    if s.is_optional:
        struct = f"{p}_opt_dtype" if s.form == "dtype" else f"{p}_opt_{s.word}{s.size or ''}"
        return f"detail::{'optional_array' if s.form == 'array' else 'optional'}<{struct}>({name})"
    return name


def option_statement(p: str, arg: Argument) -> str:
    s = known(arg.type)
    if s.form == "array" and not s.is_optional:
        return f"std::copy(options.{arg.name}.begin(), options.{arg.name}.end(), opt.{arg.name});"
    return f"opt.{arg.name} = {converted(p, s, f'options.{arg.name}')};"


# ---- operators -----------------------------------------------------------------------------------------------


@record
class Result:
    name: str
    form: str  # "tensor" | "scalar" | "list"
    type: str  # of what is returned
    ctype: str  # of a number, or of the members of a list


@record
class Function:
    """An operator as the template sees it."""

    name: str
    comment: tuple[str, ...]
    members: tuple[str, ...]  # of the options struct
    statements: tuple[str, ...]  # that fill the C options struct
    required: tuple[str, ...]  # parameters
    passed: tuple[str, ...]  # their values in C
    names: tuple[str, ...]  # their names
    results: tuple[Result, ...]

    @property
    def tensors(self) -> tuple[Result, ...]:
        return tuple(r for r in self.results if r.form == "tensor")

    @property
    def tail(self) -> tuple[str, ...]:
        """The last parameters."""
        options = (f"const {self.name}_options &options = {{}}",) if self.members else ()
        return (*options, "Handle ctx = {}")

    @property
    def return_type(self) -> str:
        types = [r.type for r in self.results]
        return types[0] if len(types) == 1 else f"std::tuple<{', '.join(types)}>" if types else "void"

    @property
    def rest(self) -> tuple[str, ...]:
        """What a function hands on to another of the same operator, behind the arguments."""
        return (*(("options",) if self.members else ()), "ctx")

    @property
    def specs(self) -> tuple[str, ...]:
        """What the results that are tensors look like, as the function that says so returns it."""
        if len(self.tensors) == 1:
            return ("spec",)
        return tuple(f"std::get<{i}>(spec)" for i in range(len(self.tensors)))


def function(p: str, op: Operator) -> Function:
    required = [a for a in op.schema.args if a.default is None]
    defaulted = [a for a in op.schema.args if a.default is not None]
    return Function(
        name=op.symbol,
        comment=comment_lines(p, op, lists_are_returned=True),
        members=tuple(f"{option_type(p, a)} {a.name}{default(p, a)};" for a in defaulted),
        statements=tuple(option_statement(p, a) for a in defaulted),
        required=tuple(parameter(p, a) for a in required),
        passed=tuple(passed(p, a) for a in required),
        names=tuple(a.name for a in required),
        results=tuple(result(r, c) for r, c in zip(op.schema.returns, op.results)),
    )


def result(returned: Return, contract: TensorContract | ValueContract) -> Result:
    if returned.type == TENSOR:
        return Result(contract.name, "tensor", "Tensor", "")
    s = known(returned.type)
    return Result(contract.name, s.form, f"std::vector<{s.ctype}>" if s.form == "list" else s.ctype, s.ctype)


def render(library: Library, render_template: Render) -> Mapping[str, str]:
    p, namespace = library.prefix, library.namespace
    ops = [function(p, op) for op in library.operators if not op.returns_views]
    text = render_template(
        "cpp/library.hpp.j2", p=p, P=p.upper(), namespace=namespace, NAMESPACE=namespace.upper(), ops=ops
    )
    return {f"include/{namespace}/{namespace}.hpp": wrap(text)}


def explain(library: Library, op: Operator) -> Iterator[tuple[str, str]]:
    if op.returns_views:
        return
    f = function(library.prefix, op)
    text = f"{f.return_type} {library.namespace}::{f.name}({', '.join((*f.required, *f.tail))});"
    yield "C++", wrap(text).rstrip("\n")


def compare(edit: Edit) -> Iterable[Difference]:
    from .cpp_compare import differences  # only `breaking` needs it

    return differences(edit)


HOST = Host(
    name="cpp",
    summary="C++17: one header over the C API, with value types, options and exceptions",
    templates=("cpp/library.hpp.j2",),
    render=render,
    refuse=refuse,
    compare=compare,
    explain=explain,
)
