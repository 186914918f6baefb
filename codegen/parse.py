"""Schema strings to ``model.Schema``, as torch's parser reads them.

Recursive descent over the tokens of ``lex``. Where torch takes a string that then goes wrong (a hexadecimal integer reads as 0, a
default of the wrong type fails at the call), the parser goes on as torch does and notes an oddity; unless ``as_torch`` is asked
for, an oddity is an error. In a list of arguments the parser recovers at the next comma, so that one run finds all mistakes.
"""

from __future__ import annotations

from collections.abc import Callable

from . import model as m
from .defaults import DefaultReader
from .diagnostics import Note, Report, Source, closest
from .lex import Token
from .printing import format_type
from .reader import Failed
from .strict import find_oddities
from .torch_types import BASE_NAMES, CLASSES, RENAMED, TypeNotMade, make_dict, make_optional, make_union, underlying

MAX_NESTING = 60

# What people write for a type from another language.
_MEANT = {
    "string": "str", "double": "float", "int32_t": "int", "int64_t": "int", "size_t": "int", "long": "int", "tensor": "Tensor",
    "torch": "Tensor", "at": "Tensor", "boolean": "bool", "dtype": "ScalarType",
    "device": "Device", "string_view": "str", "list": "T[]", "optional": "T?",
    "half": "ScalarType", "void": "()", "number": "Scalar",
}  # fmt: skip


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


class _Parser(DefaultReader):
    def __init__(self, report: Report, start: int, end: int, folded: bool):
        super().__init__(report, start, end, folded)
        self.nesting = 0
        self.fresh_sets = 0
        self.types: dict[int, tuple[int, int]] = {}  # where an argument's name, or a result, begins -> range of its type

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
        except Failed:
            return None
        if self.failed:
            return None
        text = self.folded_text(first.start)
        schema = m.Schema(namespace, name, overload, tuple(args), tuple(returns), vararg, varret, text, name_span)
        if not self.check_order(schema):
            return None
        self.oddities += find_oddities(schema, self.source, self.types)
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
            except Failed:
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
        stars: list[tuple[Token, int]] = []  # and how many arguments stand before it
        dots: list[Token] = []

        def item() -> None:
            if dots:
                raise self.fail("DG0105", self.token, "`...` must be the last argument")
            star = self.accept("*")
            if star:
                stars.append((star, len(args)))
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
        for i, (star, before) in enumerate(stars):
            if i > 0:
                self.odd("DG0210", star.start, star.end, "a second `*`", "remove it")
            elif before == len(args):
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
        type_end = self.tokens[self.index - 1].end
        name = self.expect("ident", "a name")
        self.types[name.start] = (start, type_end)
        default = self.default(type_) if self.accept("=") else None
        return m.Argument(name.text, type_, default, kw_only, alias, self.source.span(name.start, name.end))

    def result(self) -> m.Return:
        start = self.token
        type_, alias = self.sized_type()
        self.types[start.start] = (start.start, self.tokens[self.index - 1].end)
        name = self.accept("ident")
        span = self.source.span(start.start, self.tokens[self.index - 1].end)
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
            return m.TENSOR, self.alias()
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
                    self.report.error(
                        "DG0108", a.span, f"`{a.name}` needs a default: it follows an argument that has one", "", note
                    )
                    return False
                start = self.source.offset(a.span)
                self.odd(
                    "DG0209",
                    start,
                    start + len(a.name),
                    f"the list `{a.name}` is required, but follows an argument with a default",
                    "",
                    note,
                )
        return True
