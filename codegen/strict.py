"""What is stricter than torch: schemas that its parser takes, and that then go wrong in some host.

Every rule here has a code from DG0201 on; ``explain`` gives its reason. Those that concern single tokens (hexadecimal numbers, a second
``*``, defaults) are found while parsing.
"""

from __future__ import annotations

import keyword

from . import model as m
from .diagnostics import Note, Source, quoted_list
from .printing import format_type
from .reader import Oddity
from .torch_types import kind

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

# Base types that no argument of a binding in C can have.
_NOT_CARRIED = frozenset("complex Stream Storage SymBool QScheme Quantizer NoneType Capsule Any AnyClassType AnyEnumType".split())


def find_oddities(schema: m.Schema, source: Source, types: dict[int, tuple[int, int]]) -> list[Oddity]:
    """The oddities of a schema. types: where the name of an argument, or a result, begins -> the range of its type."""
    checker = _Checker(source, types)
    checker.check(schema)
    return checker.found


class _Checker:
    def __init__(self, source: Source, types: dict[int, tuple[int, int]]):
        self.source = source
        self.types = types
        self.found: list[Oddity] = []

    def odd(self, code: str, start: int, end: int, message: str, fix: str = "", notes: tuple[Note, ...] = ()) -> None:
        self.found.append(Oddity(code, start, end, message, fix, notes))

    def range_of(self, span: m.Span) -> tuple[int, int]:
        offset = self.source.offset(span)
        return offset, offset + span.end - span.column

    def check(self, schema: m.Schema) -> None:
        if len(schema.args) > MAX_ARGUMENTS:
            extra = schema.args[MAX_ARGUMENTS]
            self.odd("DG0218", *self.range_of(extra.span), f"more than {MAX_ARGUMENTS} arguments")
        seen: dict[str, m.Argument | m.Return] = {}
        for a in schema.args:
            at = self.range_of(a.span)
            if a.name in seen:
                self.odd(
                    "DG0201", *at, f"a second argument named `{a.name}`", "", (Note("first declared here", seen[a.name].span),)
                )
            seen.setdefault(a.name, a)
            languages = [l for l, words in (("Python", keyword.kwlist), ("C or C++", C_KEYWORDS)) if a.name in words]
            if languages:
                self.odd("DG0203", *at, f"`{a.name}` is a keyword of {' and '.join(languages)}", f"write `{a.name}_`")
            self.check_type(a.type, *self.types[at[0]])
            self.check_alias(a, *self.types[at[0]])
        sets = {s for a in schema.args if a.alias for s in a.alias.before}
        seen = {}
        for r in schema.returns:
            start = self.source.offset(r.span)
            where = self.types[start]
            if r.name and r.name in seen:
                self.odd(
                    "DG0202", *where, f"a second result named `{r.name}`", "", (Note("first declared here", seen[r.name].span),)
                )
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
        if bare != m.TENSOR:
            self.odd("DG0212", start, end, f"an alias mark on `{format_type(a.type)}`, which is no tensor", "remove the mark")
        for mark in marks:
            if "*" in mark.before + mark.after:
                self.odd("DG0213", start, end, "a wildcard alias set", "name a set")
            elif len(mark.before) > 1:
                self.odd("DG0213", start, end, "an alias mark with several sets", "name one set")
            elif mark.before != mark.after and not mark.before[0].startswith("$"):
                self.odd("DG0213", start, end, "an alias mark with `->`", "leave out `->` and what follows")


def _not_carried(t: m.Type) -> m.Type | None:
    """The part of a type that no binding in C can carry."""
    if isinstance(t, (m.Optional, m.List)):
        return _not_carried(t.elem)
    if isinstance(t, m.Base):
        return t if t.name in _NOT_CARRIED else None
    return t
