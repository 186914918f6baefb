"""The frozen model of a schema file: what the parser makes and every host reads.

It knows no target language. ``str(operator.schema)`` is the canonical schema, as torch prints it; types and
expressions are printed by ``printing``.
"""

from __future__ import annotations

from enum import Enum

from .record import field, record


@record
class Span:
    """A range of one line of a source file. line and column count from 1, column in characters; end is exclusive."""

    file: str
    line: int
    column: int
    end: int


# ---- types ---------------------------------------------------------------------------------------------------


@record
class Base:
    """A type without parts: ``Tensor int SymInt float bool str ScalarType Device ...``."""

    name: str


TENSOR = Base("Tensor")


@record
class Optional:
    elem: "Type"


@record
class List:
    elem: "Type"
    size: int | None = None


@record
class Generic:
    """``Tuple Dict Union Future RRef Await`` with their members; a ``Tuple`` prints as ``(a, b)``."""

    name: str
    args: tuple["Type", ...]


@record
class Class:
    """A registered class, ``__torch__.torch.classes.ns.Name``."""

    name: str


@record
class Variable:
    """Any other name: a type variable to torch's parser, refused by registration."""

    name: str


Type = Base | Optional | List | Generic | Class | Variable


@record
class Alias:
    before: tuple[str, ...]  # sorted
    after: tuple[str, ...]
    write: bool
    contained: "Alias | None" = None


# ---- the schema ----------------------------------------------------------------------------------------------


@record
class Default:
    """A default value. value is None, bool, int, float, complex, str, or a tuple of these; text is its source."""

    value: object
    text: str
    is_device: bool = False


@record
class Argument:
    name: str
    type: Type
    default: Default | None
    kw_only: bool
    alias: Alias | None
    span: Span = field(compare=False)

    @property
    def is_written(self) -> bool:
        return self.alias is not None and self.alias.write

    @property
    def is_tensor(self) -> bool:
        """A ``Tensor`` or ``Tensor?``; not a list of tensors."""
        t = self.type.elem if isinstance(self.type, Optional) else self.type
        return t == TENSOR

    @property
    def is_optional(self) -> bool:
        return isinstance(self.type, Optional)


@record
class Return:
    name: str  # "" when it has none
    type: Type
    alias: Alias | None
    span: Span = field(compare=False)


@record
class Schema:
    namespace: str  # "" when the string has none
    name: str
    overload: str  # "" when it has none
    args: tuple[Argument, ...]
    returns: tuple[Return, ...]
    vararg: bool
    varret: bool
    text: str = field(compare=False)  # as written, white space outside strings folded to single blanks: what m.def gets
    span: Span = field(compare=False)  # of the name

    def __str__(self) -> str:
        from .printing import format_schema

        return format_schema(self)


# ---- expressions of contracts --------------------------------------------------------------------------------


class DType(Enum):
    """Element types, by their word in contracts."""

    f64 = "f64"
    f32 = "f32"
    f16 = "f16"
    bf16 = "bf16"
    f8e4m3 = "f8e4m3"
    f8e5m2 = "f8e5m2"
    ue8m0 = "ue8m0"
    f4e2m1 = "f4e2m1"
    i64 = "i64"
    i32 = "i32"
    i16 = "i16"
    i8 = "i8"
    u8 = "u8"
    bool = "bool"


class Kind(Enum):
    """The type of an expression's value."""

    int = "int"
    bool = "bool"
    str = "str"
    dtype = "dtype"
    float = "float"


@record
class Literal:
    value: int | bool | str | DType


@record
class NameRef:
    """A dimension, a let, or an argument of type int, bool, float or str; role says which."""

    name: str
    role: str  # "dim" | "let" | "arg"
    kind: Kind


@record
class Index:
    """A member of a list argument."""

    name: str
    index: int


@record
class Call:
    """``ceil align min max`` over expressions (ceil(x / y) has the two arguments x, y), or ``dim stride rank len given dtype
    sum_ceil`` whose first argument is the NAME of an argument, kept as a Literal str."""

    function: str
    args: tuple["Expr", ...]


@record
class Binary:
    """op is one of ``+ - * // % == != < <= > >= and or``."""

    op: str
    left: "Expr"
    right: "Expr"


@record
class Unary:
    """op is ``-`` or ``not``."""

    op: str
    operand: "Expr"


@record
class Conditional:
    condition: "Expr"
    then: "Expr"
    otherwise: "Expr"


Expr = Literal | NameRef | Index | Call | Binary | Unary | Conditional
# printing.format_expr gives the source form, with the least parentheses.


# ---- contracts -----------------------------------------------------------------------------------------------


@record
class Alternative:
    dtypes: tuple[DType, ...]  # empty: dtype_of decides
    dtype_of: str | None  # ``dtype(NAME)``
    shape: tuple[Expr, ...] | None  # None: any rank
    layout: str  # "any" | "rows" | "contiguous" | "strides"
    strides: tuple[Expr, ...] | None
    when: Expr | None
    text: str  # "f32 [m, ceil(k / 128)] rows", normalised


@record
class TensorContract:
    """Of an argument or of a result."""

    name: str
    like: str | None  # then alternatives is empty
    alternatives: tuple[Alternative, ...]
    access: str  # "in" | "out" | "inout"; results: "out"
    may_alias: tuple[str, ...]
    on_cpu: bool
    at: Expr | None  # of a result that is a view: the bytes of the argument before it
    text: str  # the whole contract, normalised
    comment: str  # what followed ``#`` on the line
    span: Span = field(compare=False)


@record
class ValueContract:
    """Of an argument or result that is no tensor. All parts hold together; an empty contract is ``any``."""

    name: str
    one_of: tuple[object, ...]  # str, int, or DType values; empty: any
    compares: tuple[tuple[str, Expr], ...]  # (">=", expr): the value, or each member when each is set
    each: bool
    lengths: tuple[int, ...]
    text: str
    comment: str
    span: Span = field(compare=False)


@record
class Dimension:
    """A named dimension: axis axes[i] of the tensor argument arg, when its alternative i was chosen."""

    name: str
    arg: str
    axes: tuple[int, ...]


@record
class Let:
    name: str
    expr: Expr
    span: Span = field(compare=False)


@record
class Require:
    expr: Expr
    message: str | None
    text: str
    span: Span = field(compare=False)


@record
class Check:
    """A hand-written check in the operator's own source."""

    name: str
    text: str


# ---- operators -----------------------------------------------------------------------------------------------


@record
class Pair:
    """Python passes the tuple of args as one argument name."""

    name: str
    args: tuple[str, ...]


@record
class Allow:
    """A lint rule that the operator may break, and why."""

    rule: str
    reason: str
    span: Span = field(compare=False)  # of the rule's name


@record
class Operator:
    schema: Schema
    doc: str  # Markdown, lines joined with "\n"
    section: str
    contracts: tuple[TensorContract | ValueContract, ...]  # one per argument, in schema order
    results: tuple[TensorContract | ValueContract, ...]  # one per return, in order
    dimensions: tuple[Dimension, ...]  # in the order of their definition
    lets: tuple[Let, ...]
    requires: tuple[Require, ...]
    checks: tuple[Check, ...]
    pairs: tuple[Pair, ...]
    aliases: tuple[str, ...]
    keywords: tuple[tuple[str, str], ...]  # (old, new)
    scalars: tuple[str, ...]
    backends: tuple[str, ...]  # empty: declared, not implemented; refusal says why
    refusal: str
    since: str
    allows: tuple[Allow, ...]
    span: Span = field(compare=False)

    @property
    def symbol(self) -> str:
        """The name of the operator in C and Python: ``f`` or, of an overload, ``f_out``."""
        s = self.schema
        return f"{s.name}_{s.overload}" if s.overload else s.name

    @property
    def returns_views(self) -> bool:
        """Some result aliases an argument: such an operator exists in torch only."""
        return any(r.alias is not None for r in self.schema.returns)


@record
class Library:
    namespace: str
    prefix: str
    version: str
    operators: tuple[Operator, ...]
