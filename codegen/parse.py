"""Schema strings to ``model.Schema``, as torch's parser reads them.

Recursive descent over the tokens of ``lex``. Where torch takes a string that then goes wrong (a hexadecimal integer reads as 0, a
default of the wrong type fails at the call), the parser goes on as torch does and notes an oddity; unless ``as_torch`` is asked
for, an oddity is an error. In a list of arguments the parser recovers at the next comma, so that one run finds all mistakes.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable
from dataclasses import dataclass

from . import model as m
from .diagnostics import Note, Report, Source, closest, quoted_list
from .lex import KEYWORDS, Token, number_of, tokenize
from .printing import format_type
from .torch_types import (
    BASE_NAMES,
    CLASSES,
    RENAMED,
    TypeNotMade,
    kind,
    make_dict,
    make_optional,
    make_union,
    underlying,
)

MAX_NESTING = 60
MAX_ARGUMENTS = 64  # what registration takes

C_KEYWORDS = frozenset(
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class compl concept const"
    " consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do double dynamic_cast"
    " else enum explicit export extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq"
    " nullptr operator or or_eq private protected public register reinterpret_cast requires restrict return short signed sizeof"
    " static static_assert static_cast struct switch template this thread_local throw true try typedef typeid typename union"
    " unsigned using virtual void volatile wchar_t while xor xor_eq _Alignas _Alignof _Atomic _Bool _Complex _Generic _Imaginary"
    " _Noreturn _Static_assert _Thread_local".split()
)

# Words that torch takes as a default of any type, and their numbers.
_WORDS = {"float": 6, "complex": 9, "long": 4, "strided": 0, "Mean": 1, "contiguous_format": 0}

# Words that it takes for ScalarType.
_DTYPES = {
    name: number
    for number, names in enumerate(
        "uint8;int8;int16 short;int32 int;int64 long;float16 half;float32 float;float64 double;complex32 chalf;complex64 cfloat;"
        "complex128 cdouble;bool;qint8;quint8;qint32;bfloat16;quint4x2;quint2x4;bits1x8;bits2x4;bits4x2;bits8;bits16;float8_e5m2;"
        "float8_e4m3fn;float8_e5m2fnuz;float8_e4m3fnuz;uint16;uint32;uint64;uint1 bit;uint2;uint3;uint4;uint5;uint6;uint7;int1;int2;"
        "int3;int4;int5;int6;int7;float8_e8m0fnu;float4_e2m1fn_x2".split(";")
    )
    for name in names.split()
}

_DEVICES = frozenset(
    "cpu cuda ipu xpu mkldnn opengl opencl ideep hip ve fpga maia xla lazy vulkan mps meta hpu mtia privateuseone".split()
)
_DEVICE = re.compile(r"([A-Za-z_]+)(?::(0|[1-9][0-9]*))?")

_SINGLE_CONSTANT = ("str", "Optional", "Scalar", "int", "bool", "float", "complex")
_LIST_ELEMENTS: dict[str, type] = {"int": int, "float": float, "bool": bool, "complex": complex}
_NONE_ONLY = ("Tensor", "Generator", "Quantizer")

# What people write for a type from another language.
_MEANT = {
    "string": "str", "double": "float", "int32_t": "int", "int64_t": "int", "size_t": "int", "long": "int", "tensor": "Tensor",
    "torch": "Tensor", "at": "Tensor", "boolean": "bool", "dtype": "ScalarType",
    "device": "Device", "string_view": "str", "list": "T[]", "optional": "T?",
    "half": "ScalarType", "void": "()", "number": "Scalar",
}  # fmt: skip

# Base types that no argument of a binding in C can have.
_NOT_CARRIED = frozenset("complex Stream Storage SymBool QScheme Quantizer NoneType Capsule Any AnyClassType AnyEnumType".split())


class _Failed(Exception):
    """The diagnostic is in the report; the nearest caller that can go on does."""


@dataclass(frozen=True, slots=True)
class _Oddity:
    code: str
    start: int
    end: int
    message: str
    fix: str
    notes: tuple[Note, ...]


def parse_schema(
    report: Report, start: int = 0, end: int | None = None, *, folded: bool = False, as_torch: bool = False
) -> m.Schema | None:
    """The schema in a range of the report's source, or None with what is wrong in the report."""
    parser = _Parser(report, start, len(report.source.text) if end is None else end, folded)
    schema = parser.schema()
    if not as_torch:
        for o in parser.oddities:
            report.error(o.code, report.source.span(o.start, o.end), o.message, o.fix, o.notes)
        if parser.oddities:
            return None
    return schema


def check_string(text: str, *, as_torch: bool) -> tuple[m.Schema | None, Report]:
    """Parses a schema string on its own."""
    report = Report(Source("<schema>", text))
    try:
        text.encode()
    except UnicodeEncodeError as e:
        report.error("DG0101", report.source.span(e.start, e.end), "a lone surrogate, which UTF-8 cannot encode")
        return None, report
    return parse_schema(report, as_torch=as_torch), report


class _Parser:
    def __init__(self, report: Report, start: int, end: int, folded: bool):
        self.report = report
        self.source = report.source
        self.folded = folded
        self.start, self.stop = start, end
        self.tokens = tokenize(self.source.text, start, end, folded=folded)
        self.index = 0
        self.nesting = 0
        self.fresh_sets = 0
        self.failed = False
        self.oddities: list[_Oddity] = []
        self.written: dict[int, tuple[int, int]] = {}  # start of a name -> range of what stands before it, its type

    # -- tokens ------------------------------------------------------------------------------------------------

    @property
    def token(self) -> Token:
        return self.tokens[self.index]

    def next(self) -> Token:
        token = self.token
        if token.kind != "eof":
            self.index += 1
        return token

    def accept(self, kind_: str) -> Token | None:
        return self.next() if self.token.kind == kind_ else None

    def fail(self, code: str, token: Token, message: str, fix: str = "") -> _Failed:
        self.failed = True
        self.report.error(code, self.source.span(token.start, token.end), message, fix)
        return _Failed()

    def expect(self, kind_: str, what: str = "") -> Token:
        if self.token.kind == kind_:
            return self.next()
        raise self.unexpected(what or f"`{kind_}`")

    def unexpected(self, what: str, fix: str = "") -> _Failed:
        token = self.token
        if token.kind == "error":
            return self.fail("DG0101", token, *_describe_bad(token.text))
        if not fix and what == "a name" and (token.kind in KEYWORDS):
            fix = f"`{token.text}` is a keyword to torch: take another name"
        found = {
            "eof": "the end",
            "newline": "a new line",
            "indent": "an indented line",
            "dedent": "a less indented line",
            "ident": f"the name `{token.text}`",
        }.get(token.kind, f"`{token.text}`")
        if token.kind == "eof" and self.folded and self.depth() > 0:
            return self.fail("DG0308", token, f"expected {what}, found the end of the schema: a parenthesis is not closed")
        return self.fail("DG0102", token, f"expected {what}, found {found}", fix)

    def depth(self) -> int:
        opened = sum(t.kind in ("(", "[", "{") for t in self.tokens)
        return opened - sum(t.kind in (")", "]", "}") for t in self.tokens)

    def odd(self, code: str, start: int, end: int, message: str, fix: str = "", notes: tuple[Note, ...] = ()) -> None:
        self.oddities.append(_Oddity(code, start, end, message, fix, notes))

    # -- the schema --------------------------------------------------------------------------------------------

    def schema(self) -> m.Schema | None:
        try:
            first = self.token
            namespace, name, overload, name_span = self.name()
            args, vararg = self.arguments()
            self.expect("->", "`->` and the results")
            returns, varret = self.returns()
            self.accept("newline")
            if self.token.kind != "eof":
                raise self.unexpected("the end of the schema")
        except _Failed:
            return None
        if self.failed:
            return None
        text = self.folded_text(first.start)
        schema = m.Schema(namespace, name, overload, tuple(args), tuple(returns), vararg, varret, text, name_span)
        if not self.check_order(schema):
            return None
        self.check_strictly(schema)
        return schema

    def name(self) -> tuple[str, str, str, m.Span]:
        first = self.expect("ident", "the name of the operator")
        namespace, name = "", first
        if self.accept(":"):
            self.expect(":", "a second `:`")
            namespace, name = first.text, self.expect("ident", "the name of the operator")
        last, overload = name, ""
        if self.accept("."):
            last = self.expect("ident", "the name of the overload")
            overload = last.text
            if overload == "default" or overload.startswith("__"):
                raise self.fail("DG0104", last, f"`{overload}` is not allowed as the name of an overload")
        if self.token.kind == "eof":
            raise self.fail("DG0102", self.token, "expected the arguments: this is only the name of an operator")
        return namespace, name.text, overload, self.source.span(first.start, last.end)

    def in_parentheses(self, item: Callable[[], None]) -> None:
        """``( item , item )``. After an error in one item, goes on behind the next comma of this level."""
        self.expect("(")
        if self.accept(")"):
            return
        while True:
            begin = self.index
            try:
                item()
                if self.token.kind not in (",", ")"):
                    raise self.unexpected("`,` or `)`")
            except _Failed:
                self.index = begin
                self.skip_item()
                if self.token.kind not in (",", ")"):
                    raise
            if not self.accept(","):
                self.expect(")")
                return

    def skip_item(self) -> None:
        level = 0
        while self.token.kind != "eof":
            kind_ = self.token.kind
            if level == 0 and kind_ in (",", ")"):
                return
            level += (kind_ in ("(", "[", "{")) - (kind_ in (")", "]", "}"))
            self.next()

    def arguments(self) -> tuple[list[m.Argument], bool]:
        args: list[m.Argument] = []
        stars: list[Token] = []
        dots: list[Token] = []

        def item() -> None:
            if dots:
                raise self.fail("DG0105", self.token, "`...` must be the last argument")
            star = self.accept("*")
            if star:
                stars.append(star)
                self.written[star.start] = (len(args), 0)
                return
            ellipsis = self.accept("...")
            if ellipsis:
                dots.append(ellipsis)
                return
            args.append(self.argument(kw_only=bool(stars)))

        self.in_parentheses(item)
        if dots:
            self.odd("DG0211", dots[0].start, dots[0].end, "`...`: torch refuses every call with further arguments")
            if any(a.default is not None for a in args):
                raise self.fail("DG0105", dots[0], "`...` and default values exclude each other")
        for i, star in enumerate(stars):
            if i > 0:
                self.odd("DG0210", star.start, star.end, "a second `*`", "remove it")
            elif self.written[star.start][0] == len(args):
                self.odd("DG0210", star.start, star.end, "no argument follows `*`", "remove it")
        return args, bool(dots)

    def returns(self) -> tuple[list[m.Return], bool]:
        returns: list[m.Return] = []
        dots: list[Token] = []

        def item() -> None:
            if dots:
                raise self.fail("DG0105", self.token, "`...` must be the last result")
            ellipsis = self.accept("...")
            if ellipsis:
                dots.append(ellipsis)
            else:
                returns.append(self.result())

        if self.token.kind == "...":
            dots.append(self.next())
        elif self.token.kind == "(":
            self.in_parentheses(item)
        else:
            returns.append(self.result())
        if dots:
            self.odd("DG0211", dots[0].start, dots[0].end, "`...`: a number of results that depends on the call")
        return returns, bool(dots)

    def argument(self, *, kw_only: bool) -> m.Argument:
        start = self.token.start
        type_, alias = self.sized_type()
        if self.token.kind == "(" and isinstance(type_, m.Optional) and alias is None:
            raise self.unexpected("a name", f"the alias mark stands before the `?`: `{format_type(type_.elem)}(a!)?`")
        name = self.expect("ident", "a name")
        self.written[name.start] = (start, name.start)
        default = self.default(type_) if self.accept("=") else None
        return m.Argument(name.text, type_, default, kw_only, alias, self.source.span(name.start, name.end))

    def result(self) -> m.Return:
        start = self.token
        type_, alias = self.sized_type()
        name = self.accept("ident")
        span = self.source.span(start.start, self.tokens[self.index - 1].end)
        self.written[start.start] = (start.start, self.tokens[self.index - 1].end)
        return m.Return(name.text if name else "", type_, alias, span)

    def folded_text(self, start: int) -> str:
        """The schema as written from start on: blanks, newlines and comments outside strings become single blanks."""
        text, previous = "", None
        for token in self.tokens:
            if token.start < start or not token.text:
                continue
            is_tight = previous is None or previous.kind in ("(", "[") or token.kind in (")", "]", ",")
            if previous is not None and token.start > previous.end and not is_tight:
                text += " "
            elif previous is not None and previous.kind == "," and token.start > previous.end:
                text += " "
            text += token.text
            previous = token
        return text

    # -- types -------------------------------------------------------------------------------------------------

    def sized_type(self) -> tuple[m.Type, m.Alias | None]:
        """A type, or ``T[N]``, which stands outermost only."""
        type_, alias = self.type()
        if not self.accept("["):
            return type_, alias
        number = self.expect("number", "the size of the list or `]`")
        size = self.integer(number, number.text)
        is_wrapped = self.folded and size >= 2**31  # torch keeps 32 bits
        if not number.text.isdigit() or size == 0 or is_wrapped:
            self.odd("DG0208", number.start, number.end, f"`{number.text}` is not a plain positive list size")
        self.expect("]")
        type_ = m.List(type_, (size + 2**31) % 2**32 - 2**31)
        alias = self.list_alias(alias)
        if self.accept("?"):
            type_ = self.make(self.token, lambda: make_optional(type_))
        return type_, alias

    def type(self) -> tuple[m.Type, m.Alias | None]:
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise self.fail("DG0111", self.token, f"types nest more than {MAX_NESTING} deep")
        type_, alias = self.core_type()
        was_optional, suffixes = False, 0
        while True:
            suffixes += 1
            if self.nesting + suffixes > MAX_NESTING:
                raise self.fail("DG0111", self.token, f"types nest more than {MAX_NESTING} deep")
            if self.token.kind == "[" and self.tokens[self.index + 1].kind == "]":
                self.next()
                self.next()
                type_ = m.List(type_)
                alias = self.list_alias(alias)
                was_optional = False
            elif self.token.kind == "?":
                mark = self.next()
                if was_optional:
                    self.odd("DG0219", mark.start, mark.end, "`??` is the same as `?`", "write one `?`")
                inner = type_
                type_ = self.make(mark, lambda: make_optional(inner))
                was_optional = True
            else:
                break
        self.nesting -= 1
        return type_, alias

    def make(self, token: Token, constructor: Callable[[], m.Type]) -> m.Type:
        try:
            return constructor()
        except TypeNotMade as e:
            raise self.fail("DG0110", token, str(e)) from None

    def core_type(self) -> tuple[m.Type, m.Alias | None]:
        token = self.token
        if token.kind == "(":
            return m.Generic("Tuple", tuple(self.types_in_parentheses())), None
        if token.kind not in ("ident", "None", "NoneType"):
            raise self.unexpected("a type")
        if token.text in ("Future", "RRef", "Await"):
            self.next()
            self.expect("(")
            inner, _ = self.type()
            self.expect(")")
            return m.Generic(token.text, (underlying(inner),)), None
        if token.text == "__torch__":
            return self.class_type(), None
        if token.text == "Tensor":
            self.next()
            return m.Base("Tensor"), self.alias()
        if token.text == "Dict":
            self.next()
            self.expect("(")
            key, _ = self.type()
            self.expect(",")
            value, _ = self.type()
            self.expect(")")
            alias = self.alias()
            return self.make(token, lambda: make_dict(underlying(key), underlying(value))), alias
        if token.text == "Union":
            self.next()
            self.expect("(")
            members = [self.type()[0]]
            while self.token.kind != ")":
                self.expect(",", "`,` or `)`")
                members.append(self.type()[0])
            self.next()
            alias = self.alias()
            return self.make(token, lambda: make_union([underlying(t) for t in members])), alias
        return self.base_type(), self.alias()

    def types_in_parentheses(self) -> list[m.Type]:
        self.expect("(")
        types: list[m.Type] = []
        if self.accept(")"):
            return types
        while True:
            types.append(underlying(self.type()[0]))
            if not self.accept(","):
                self.expect(")", "`,` or `)`")
                return types

    def class_type(self) -> m.Type:
        first = self.next()
        name, last = first.text, first
        for expected in ("torch", "classes", None, None):
            self.expect(".")
            last = self.expect("ident", f"`{expected}`" if expected else "a name")
            if expected and last.text != expected:
                raise self.fail("DG0103", last, f"expected `{expected}` in the name of a class, found `{last.text}`")
            name += "." + last.text
        if name not in CLASSES:
            token = Token("ident", name, first.start, last.end)
            raise self.fail("DG0103", token, f"`{name}` is not a class that torch registers")
        return m.Class(name)

    def base_type(self) -> m.Type:
        first = self.next()
        name, end = first.text, first.end
        while self.accept("."):
            part = self.expect("ident", "a name")
            name, end = f"{name}.{part.text}", part.end
        if name in BASE_NAMES:
            if name in ("ConstQuantizerPtr", "DeviceIndex"):
                self.odd("DG0219", first.start, end, f"torch prints `{name}` as `int`", "write `int`")
            return m.Base(RENAMED.get(name, name))
        whole = Token("ident", name, first.start, end)
        meant = _MEANT.get(name.split(".")[0].lower()) or closest(name, sorted(BASE_NAMES | {"Tensor"}))
        fix = f"did you mean `{meant}`?" if meant else ""
        if not name[0].islower():
            raise self.fail("DG0103", whole, f"`{name}` is not a type", fix)
        self.odd("DG0216", first.start, end, f"`{name}` is not a type: registration refuses type variables", fix)
        return m.Variable(name)

    # -- alias marks -------------------------------------------------------------------------------------------

    def alias(self) -> m.Alias | None:
        mark = self.accept("!")
        if mark:
            name = f"${self.fresh_sets}"
            self.fresh_sets += 1
            return m.Alias((name,), (), True)
        if not self.accept("("):
            return None
        before = self.alias_set()
        write = self.accept("!") is not None
        after = self.alias_set() if self.accept("->") else before
        self.expect(")")
        return m.Alias(before, after, write)

    def alias_set(self) -> tuple[str, ...]:
        members: set[str] = set()
        while True:
            if self.accept("*"):
                members.add("*")
            elif "*" not in members:
                members.add(self.expect("ident", "the name of an alias set or `*`").text)
            bar = self.accept("|")
            if not bar:
                return tuple(sorted(members))
            if "*" in members and self.token.kind != "*":
                self.odd("DG0213", bar.start, bar.end, "nothing may follow `*` in an alias set", "write `(*)`")

    def list_alias(self, elem: m.Alias | None) -> m.Alias | None:
        """The mark after ``[]``, which holds the mark of the elements."""
        own = self.alias()
        if elem is None:
            return own
        if own is None:
            return m.Alias((), (), elem.write, elem)
        return m.Alias(own.before, own.after, own.write, elem)

    # -- defaults ----------------------------------------------------------------------------------------------

    def default(self, type_: m.Type) -> m.Default:
        first = self.token
        value = self.default_value(type_)
        last = self.tokens[self.index - 1]
        text = self.source.text[first.start : last.end]
        default = m.Default(value, text, is_device=underlying(type_) == m.Base("Device"))
        self.check_default(type_, value, first.start, last.end)
        return default

    def default_value(self, type_: m.Type) -> object:
        stored, token = underlying(type_), self.token
        what = kind(stored)
        if what in _NONE_ONLY:
            self.expect("None", f"`None`, the only default of a `{what}`")
            return None
        if what in _SINGLE_CONSTANT:
            return self.constant(what, type_)
        if what == "Device":
            return self.device()
        if isinstance(stored, m.List):
            assert isinstance(type_, m.List)
            return self.list_default(type_, kind(stored.elem))
        raise self.fail("DG0106", token, f"`{format_type(type_)}` cannot have a default", f"make it `{format_type(type_)}? ...=None`")

    def list_default(self, type_: m.List, elem: str) -> tuple[object, ...]:
        token = self.token
        if token.kind == "ident":
            raise self.fail("DG0106", token, f"a list cannot have the default `{token.text}`", "write a list: `[...]`")
        if elem not in _LIST_ELEMENTS:
            raise self.fail("DG0106", token, f"torch knows no default for `{format_type(type_)}`")
        values: list[object] = []
        if type_.size is not None and token.kind != "[":
            value = self.constant(elem, type_.elem)
            if not 0 <= type_.size <= 2**20:
                raise self.fail("DG0106", token, f"a list of {type_.size} equal members")
            values = [value] * type_.size
        else:
            self.expect("[", "`[` and the members of the list")
            if self.token.kind != "]":
                values.append(self.constant(elem, type_.elem))
                while self.accept(","):
                    values.append(self.constant(elem, type_.elem))
            self.expect("]", "`,` or `]`")
        return tuple(self.member(token, elem, v) for v in values)

    def member(self, token: Token, elem: str, value: object) -> object:
        if not isinstance(value, _LIST_ELEMENTS[elem]) or isinstance(value, bool) != (elem == "bool"):
            raise self.fail("DG0106", token, f"the members of this list must be of type `{elem}`")
        return value

    def device(self) -> str:
        token = self.expect("string", "a string that names a device")
        text = self.string(token)
        match = _DEVICE.fullmatch(text)
        if not match or match[1] not in _DEVICES or match[2] is not None and int(match[2]) >= 2**31:
            raise self.fail("DG0106", token, f"{token.text} is not a device", 'write a device such as `"cuda"` or `"cuda:0"`')
        if match[2] is None:
            return match[1]
        index = (int(match[2]) + 128) % 256 - 128  # torch keeps eight bits, and -1 means none
        return match[1] if index == -1 else f"{match[1]}:{index}"

    def constant(self, what: str, type_: m.Type) -> object:
        token = self.token
        for word, value in (("True", True), ("False", False), ("None", None)):
            if self.accept(word):
                return value
        if token.kind == "string":
            self.next()
            return self.string(token)
        if token.kind == "ident":
            self.next()
            if token.text in _WORDS:
                return _WORDS[token.text]
            if _is_scalar_type(type_) and token.text in _DTYPES:
                return _DTYPES[token.text]
            raise self.fail("DG0106", token, f"`{token.text}` is not a default for `{format_type(type_)}`", _meant_constant(token.text, type_))
        minus = self.accept("-")
        number = self.expect("number", "a value")
        self.check_number(number)
        text = ("-" if minus else "") + number.text
        whole = Token("number", text, token.start, number.end)
        if what == "complex" or "j" in text:
            return complex(0.0, self.double(whole, text[:-1]))
        if what == "float" or "." in text or "e" in text:
            return self.double(whole, text)
        return self.integer(whole, text)

    def check_number(self, number: Token) -> None:
        if number.text[:2] in ("0x", "0X"):
            self.odd("DG0206", number.start, number.end, f"torch misreads the hexadecimal number `{number.text}`", "write it in decimal")
        elif re.match(r"[0-9]+E", number.text):
            self.odd("DG0207", number.start, number.end, f"torch may drop the exponent of `{number.text}`", f"write `{number.text.replace('E', 'e')}`")

    def integer(self, token: Token, text: str) -> int:
        """As C's strtoll reads it: up to the first character that is no digit."""
        digits = re.match(r"-?[0-9]+", text)
        value = int(digits[0]) if digits and len(digits[0]) <= 20 else 2**63
        if not -(2**63) <= value < 2**63:
            raise self.fail("DG0107", token, f"`{token.text}` is not a 64-bit integer")
        return value

    def double(self, token: Token, text: str) -> float:
        """As C's strtod reads it, which reports overflow, and underflow where digits are lost."""
        sign, text = (-1.0, text[1:]) if text.startswith("-") else (1.0, text)
        text = number_of(text)
        value = _double(text) if text else None
        if value is None:
            raise self.fail("DG0107", token, f"`{token.text}` is not a number that a double holds")
        return sign * value

    def string(self, token: Token) -> str:
        quote = token.text[0]
        width = 3 if token.text.startswith(quote * 3) and len(token.text) >= 6 else 1
        body = token.text[width:-width]
        out, at = b"", 0
        while at < len(body):
            c = body[at]
            if c != "\\":
                out += c.encode()
                at += 1
                continue
            escape = body[at + 1 : at + 2]
            octal = re.match(r"[0-3][0-7][0-7]", body[at + 1 : at + 4])
            if escape in _SIMPLE_ESCAPES:
                out += _SIMPLE_ESCAPES[escape]
                at += 2
            elif octal:
                out += bytes([int(octal[0], 8)])
                at += 4
            else:
                raise self.fail("DG0109", token, f"torch does not know the escape `\\{escape}`")
        return out.decode("utf-8", "surrogateescape")

    # -- what torch checks after parsing -----------------------------------------------------------------------

    def check_order(self, schema: m.Schema) -> bool:
        with_default: m.Argument | None = None
        for a in schema.args:
            if a.default is not None:
                with_default = with_default or a
            elif with_default is not None and not a.kw_only:
                first = with_default
                note = (Note(f"`{first.name}` has a default", first.span),)
                if not isinstance(a.type, m.List):
                    self.report.error("DG0108", a.span, f"`{a.name}` needs a default: it follows an argument that has one", "", note)
                    return False
                start, end = self.name_range(a.span)
                self.odd("DG0209", start, end, f"the list `{a.name}` is required, but follows an argument with a default", "", note)
        return True

    def name_range(self, span: m.Span) -> tuple[int, int]:
        offset = self.source.offset(span)
        return offset, offset + span.end - span.column

    # -- what is stricter than torch ---------------------------------------------------------------------------

    def check_strictly(self, schema: m.Schema) -> None:
        if len(schema.args) > MAX_ARGUMENTS:
            extra = schema.args[MAX_ARGUMENTS]
            self.odd("DG0218", *self.name_range(extra.span), f"more than {MAX_ARGUMENTS} arguments")
        seen: dict[str, m.Argument | m.Return] = {}
        for a in schema.args:
            at = self.name_range(a.span)
            if a.name in seen:
                self.odd("DG0201", *at, f"a second argument named `{a.name}`", "", (Note("first declared here", seen[a.name].span),))
            seen.setdefault(a.name, a)
            languages = [l for l, words in (("Python", keyword.kwlist), ("C or C++", C_KEYWORDS)) if a.name in words]
            if languages:
                self.odd("DG0203", *at, f"`{a.name}` is a keyword of {' and '.join(languages)}", f"write `{a.name}_`")
            self.check_type(a.type, *self.written[at[0]])
            self.check_alias(a, *self.written[at[0]])
        sets = {s for a in schema.args if a.alias for s in a.alias.before}
        seen = {}
        for r in schema.returns:
            start = self.source.offset(r.span)
            where = self.written[start]
            if r.name and r.name in seen:
                self.odd("DG0202", *where, f"a second result named `{r.name}`", "", (Note("first declared here", seen[r.name].span),))
            seen.setdefault(r.name, r)
            self.check_type(r.type, *where)
            self.check_alias(r, *where)
            own = r.alias.before if r.alias else ()
            missing = [s for s in own if s not in sets and s != "*"]
            if missing and missing[0].startswith("$"):
                self.odd("DG0214", *where, "a fresh alias set on a result: it aliases no argument", "name the set of an argument")
            elif missing:
                self.odd("DG0214", *where, f"no argument has the alias set {quoted_list(missing)}")

    def check_type(self, type_: m.Type, start: int, end: int) -> None:
        refused = _not_carried(type_)
        if refused is not None and not isinstance(refused, m.Variable):
            what = format_type(refused)
            fix = "pass its members as arguments of their own" if kind(refused) == "Tuple" and start < end else ""
            if refused == m.Base("NoneType"):
                fix = "write `-> ()` for no result"
            self.odd("DG0215", start, max(end, start + 1), f"neither C nor torch's stable interface can carry `{what}`", fix)

    def check_alias(self, a: m.Argument | m.Return, start: int, end: int) -> None:
        marks = [mark for mark in (a.alias, a.alias.contained if a.alias else None) if mark]
        if not marks:
            return
        bare = a.type
        while isinstance(bare, (m.Optional, m.List)):
            bare = bare.elem
        if bare != m.Base("Tensor"):
            self.odd("DG0212", start, end, f"an alias mark on `{format_type(a.type)}`, which is no tensor", "remove the mark")
        for mark in marks:
            if "*" in mark.before + mark.after:
                self.odd("DG0213", start, end, "a wildcard alias set", "name a set")
            elif len(mark.before) > 1:
                self.odd("DG0213", start, end, "an alias mark with several sets", "name one set")
            elif mark.before != mark.after and not mark.before[0].startswith("$"):
                self.odd("DG0213", start, end, "an alias mark with `->`", "leave out `->` and what follows")

    def check_default(self, type_: m.Type, value: object, start: int, end: int) -> None:
        written = self.source.text[start:end]
        if isinstance(value, str) and (not written.isascii() or "\0" in written):
            self.odd("DG0217", start, end, "torch changes bytes above 127, and NUL, in a string default")
        if isinstance(type_, m.List) and isinstance(value, tuple):
            if type_.size is not None and len(value) != type_.size:
                self.odd("DG0205", start, end, f"{len(value)} member{'s' * (len(value) != 1)} for `{format_type(type_)}`")
        elif not _fits(type_, value):
            fix = ""
            if value is None:
                fix = f"write `{format_type(type_)}?`"
            elif kind(_without_optional(type_)) == "float" and isinstance(value, int) and not isinstance(value, bool):
                fix = f"write `{written}.0`"
            self.odd("DG0204", start, end, f"the default `{written}` is not of the type `{format_type(type_)}`", fix)


_SIMPLE_ESCAPES = {
    "\\": b"\\", "'": b"'", '"': b'"', "\n": b"\n", "a": b"\a", "b": b"\b", "f": b"\f", "n": b"\n", "t": b"\t", "v": b"\v",
}  # fmt: skip


def _describe_bad(c: str) -> tuple[str, str]:
    if c == "":
        return "an indentation that matches no line before", ""
    if c in "'\"":
        return "a string that does not end", f"close it with {c}"
    if not c.isascii():
        return f"`{c}` (U+{ord(c):04X}) may stand in strings and comments only", ""
    return f"{c!r} begins no token", ""


def _double(text: str) -> float | None:
    """The double that C's strtod reads, or None where it reports that the value is out of range."""
    if text[:2] in ("0x", "0X"):
        try:
            return float.fromhex(text)
        except OverflowError:
            return None
    value = float(text)
    if value == float("inf"):
        return None
    if value < 2.2250738585072014e-308:  # the smallest normal double
        from decimal import Decimal

        is_zero = not re.search(r"[1-9]", re.split(r"[eE]", text)[0])
        if not is_zero and (value == 0.0 or Decimal(text) != Decimal(value)):
            return None
    return value


def _is_scalar_type(t: m.Type) -> bool:
    return t == m.Base("ScalarType") or isinstance(t, m.Optional) and _is_scalar_type(t.elem)


def _without_optional(t: m.Type) -> m.Type:
    return t.elem if isinstance(t, m.Optional) else t


def _not_carried(t: m.Type) -> m.Type | None:
    """The part of a type that no binding in C can carry."""
    if isinstance(t, (m.Optional, m.List)):
        return _not_carried(t.elem)
    if isinstance(t, m.Base):
        return t if t.name in _NOT_CARRIED else None
    return t


def _fits(type_: m.Type, value: object) -> bool:
    """Whether torch can pass the default of an argument that is no list."""
    if isinstance(type_, m.Optional):
        return value is None or type_.elem != m.Base("Device") and _fits(type_.elem, value)
    stored = underlying(type_)
    what = kind(stored)
    is_bool = isinstance(value, bool)
    return {
        "int": isinstance(value, int) and not is_bool,
        "float": isinstance(value, float),
        "bool": is_bool,
        "str": isinstance(value, str),
        "complex": isinstance(value, complex),
        "Scalar": isinstance(value, (int, float, complex)),
        "Device": isinstance(value, str),
    }.get(what, False)


def _meant_constant(word: str, type_: m.Type) -> str:
    spelled = {"true": "True", "false": "False", "none": "None", "null": "None", "nullptr": "None", "nil": "None", "NULL": "None"}
    if word in spelled:
        return f"write `{spelled[word]}`"
    if _is_scalar_type(type_):
        meant = closest(word, sorted(_DTYPES))
        return "write the dtype alone, `float32` for `torch.float32`" if word == "torch" else f"did you mean `{meant}`?" if meant else ""
    if word in ("inf", "nan", "Infinity"):
        return "torch has no infinity and no NaN as a default: make the argument optional"
    return f"write it as a string: `\"{word}\"`" if _without_optional(type_) == m.Base("str") else ""


# ---- what the verb `parse` prints ----------------------------------------------------------------------------


def parse_line(line: bytes, *, as_torch: bool) -> str:
    """The answer to one line of input: a schema as a JSON string."""
    try:
        text = json.loads(line)
    except (ValueError, RecursionError):
        text = None
    if not isinstance(text, str):
        return json.dumps({"ok": False, "error": "not a JSON string"})
    schema, report = check_string(text, as_torch=as_torch)
    if schema is not None:
        return json.dumps(schema_fields(schema))
    first = report.diagnostics()[0]
    return json.dumps({"ok": False, "error": first.message, "code": first.code, "column": first.span.column})


def schema_fields(s: m.Schema) -> dict[str, object]:
    """A schema as a JSON object."""
    return {
        "ok": True,
        "name": f"{s.namespace}::{s.name}" if s.namespace else s.name,
        "overload": s.overload,
        "args": [_argument_fields(a) for a in s.args],
        "returns": [_common_fields(r) for r in s.returns],
        "vararg": s.vararg,
        "varret": s.varret,
        "canonical": str(s),
    }


def _common_fields(a: m.Argument | m.Return) -> dict[str, object]:
    return {
        "name": a.name,
        "type": format_type(a.type),
        "alias": _alias_fields(a.alias),
        "write": a.alias is not None and a.alias.write,
    }


def _argument_fields(a: m.Argument) -> dict[str, object]:
    default = None if a.default is None else _value_fields(a.default)
    return {**_common_fields(a), "has_default": a.default is not None, "default": default, "kw_only": a.kw_only}


def _alias_fields(alias: m.Alias | None) -> dict[str, object] | None:
    if alias is None:
        return None
    inner = alias.contained
    return {
        "before": list(alias.before),
        "after": list(alias.after),
        "write": alias.write,
        "contained": None if inner is None else {"before": list(inner.before), "after": list(inner.after), "write": inner.write},
    }


def _value_fields(default: m.Default) -> object:
    def fields(value: object) -> object:
        if isinstance(value, tuple):
            return [fields(v) for v in value]
        return {"complex": [value.real, value.imag]} if isinstance(value, complex) else value

    return {"device": default.value} if default.is_device else fields(default.value)
