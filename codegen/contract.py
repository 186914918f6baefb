"""Contract lines to raw contracts. What their names mean is decided in ``resolve``, where the operator is known."""

from __future__ import annotations

from dataclasses import dataclass, field

from . import model as m
from .diagnostics import closest
from .expression import DTYPE_WORDS, MEANT_DTYPES, ExpressionParser, Name, Node

_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_LAYOUTS = ("rows", "contiguous", "strides")
_ATTRIBUTES = ("out", "inout", "may alias NAME", "cpu", "at EXPR")


@dataclass(slots=True)
class RawAlternative:
    dtypes: list[Name]
    dtype_of: Name | None
    shape: list[Node] | None
    layout: str
    strides: list[Node] | None
    when: Node | None
    start: int
    end: int


@dataclass(slots=True)
class RawTensor:
    like: Name | None = None
    alternatives: list[RawAlternative] = field(default_factory=list)
    access: Name | None = None
    may_alias: list[Name] = field(default_factory=list)
    cpu: Name | None = None
    at: Node | None = None


@dataclass(slots=True)
class RawValue:
    one_of: list[tuple[object, int, int]] = field(default_factory=list)
    compares: list[tuple[str, Node]] = field(default_factory=list)
    each: Name | None = None
    lengths: list[tuple[int, int, int]] = field(default_factory=list)


class ContractParser(ExpressionParser):
    """The part of a contract line behind its colon."""

    def looks_like_tensor(self) -> bool:
        """Whether this begins as the contract of a tensor does."""
        words = [t.text for t in self.tokens[self.index :] if t.kind == "ident"]
        first = words[0] if words else ""
        has_shape = any(t.kind == "[" for t in self.tokens)
        return first == "like" or has_shape and (first in DTYPE_WORDS or first == "dtype")

    def tensor(self) -> RawTensor:
        raw = RawTensor()
        if self.at_word("any"):
            fix = "write dtypes and a shape; `[...]` is a shape of any rank"
            raise self.unexpected("the contract of a tensor", "DG0404", fix)
        if self.accept_word("like"):
            raw.like = self.name("the name of a tensor", "DG0404")
        else:
            raw.alternatives.append(self.alternative())
            while self.accept("|"):
                raw.alternatives.append(self.alternative())
        while self.accept(","):
            self.attribute(raw)
        self.end("`|`, `,` or the end of the contract", "DG0404")
        return raw

    def alternative(self) -> RawAlternative:
        start = self.token.start
        dtypes: list[Name] = []
        dtype_of: Name | None = None
        if self.at_word("dtype"):
            self.next()
            self.expect("(", code="DG0404")
            dtype_of = self.name("the name of an argument", "DG0404")
            self.expect(")", code="DG0404")
        else:
            dtypes.append(self.dtype())
            while self.accept("|"):
                dtypes.append(self.dtype())
        shape = self.shape()
        layout, strides = "any", None
        if self.token.kind == "ident" and self.token.text in _LAYOUTS:
            layout = self.next().text
            if layout == "strides":
                strides = self.expressions("strides")
        when = self.expression() if self.accept_word("when") else None
        if self.token.kind not in ("|", ",", "eof"):
            known = (*_LAYOUTS, "when")
            meant = closest(self.token.text, known) if self.token.kind == "ident" else ""
            fix = f"did you mean `{meant}`?" if meant else ""
            if self.token.kind == "ident" and self.token.text in ("out", "inout", "may", "cpu", "at"):
                fix = f"attributes stand behind a comma: `, {self.token.text}`"
            raise self.unexpected("a layout, `when`, `|`, `,` or the end of the contract", "DG0404", fix)
        return RawAlternative(dtypes, dtype_of, shape, layout, strides, when, start, self.last.end)

    def dtype(self) -> Name:
        token = self.token
        if token.kind != "ident":
            raise self.unexpected("an element type such as `f32`", "DG0404")
        if token.text not in DTYPE_WORDS:
            meant = MEANT_DTYPES.get(token.text) or closest(token.text, sorted(DTYPE_WORDS))
            fix = f"did you mean `{meant}`?" if meant else ""
            raise self.fail("DG0405", token.start, token.end, f"`{token.text}` is no element type", fix)
        self.next()
        return Name(token.text, token.start, token.end)

    def shape(self) -> list[Node] | None:
        if self.token.kind != "[":
            raise self.unexpected("a shape such as `[m, k]`", "DG0404")
        if self.tokens[self.index + 1].kind == "...":
            self.next()
            self.next()
            self.expect("]", code="DG0404")
            return None
        return self.expressions("a shape")

    def expressions(self, what: str) -> list[Node]:
        self.expect("[", f"`[` and {what}", "DG0404")
        found: list[Node] = []
        if self.accept("]"):
            return found
        while True:
            found.append(self.expression())
            self.no_slash()
            if not self.accept(","):
                self.expect("]", "`,` or `]`", "DG0404")
                return found

    def attribute(self, raw: RawTensor) -> None:
        token = self.token
        if token.kind == "ident" and token.text in ("out", "inout"):
            self.next()
            if raw.access:
                raise self.fail("DG0404", token.start, token.end, f"`{raw.access.text}` was given already")
            raw.access = Name(token.text, token.start, token.end)
        elif self.accept_word("may"):
            if not self.accept_word("alias"):
                raise self.unexpected("`alias NAME`", "DG0404")
            raw.may_alias.append(self.name("the name of a written tensor", "DG0404"))
        elif self.accept_word("cpu"):
            raw.cpu = Name(token.text, token.start, token.end)
        elif self.accept_word("at"):
            if raw.at:
                raise self.fail("DG0404", token.start, token.end, "`at` was given already")
            raw.at = self.expression()
            self.no_slash()
        else:
            meant = closest(token.text, ("out", "inout", "cpu", "at")) if token.kind == "ident" else ""
            fix = f"did you mean `{meant}`?" if meant else f"attributes are {', '.join(_ATTRIBUTES)}"
            raise self.unexpected("an attribute", "DG0404", fix)

    # -- values ------------------------------------------------------------------------------------------------

    def value(self) -> RawValue:
        raw = RawValue()
        if self.accept_word("any"):
            self.end("the end of the contract: `any` stands alone", "DG0404")
            return raw
        self.value_part(raw)
        while self.accept(","):
            self.value_part(raw)
        self.end("`,` or the end of the contract", "DG0404")
        return raw

    def value_part(self, raw: RawValue) -> None:
        token = self.token
        each = self.accept_word("each")
        if each:
            if raw.each is None and raw.compares:
                raise self.fail("DG0404", each.start, each.end, "`each` and a comparison without it")
            raw.each = Name("each", each.start, each.end)
        elif raw.each and token.kind in (*_COMPARISONS, "number", "-"):
            raise self.unexpected("`each`", "DG0404", f"write `each {token.text} ...`")
        if self.token.kind in _COMPARISONS:
            op = self.next()
            if op.kind in ("==", "!="):
                raise self.fail(
                    "DG0404", op.start, op.end, f"`{op.kind}` is no value contract", "write the allowed values: `1 | 2`"
                )
            raw.compares.append((op.kind, self.sum()))
            self.no_slash()
            return
        if not each and self.accept_word("length"):
            self.lengths(raw)
            return
        first = self.constant()
        if self.accept(".."):
            value, start, end = first
            if not isinstance(value, int) or isinstance(value, bool):
                raise self.fail("DG0404", start, end, "a range is of integers")
            raw.compares.append((">=", Node("literal", value, (), start, end)))
            raw.compares.append(("<=", self.sum()))
            return
        if each:
            raise self.unexpected("a comparison or a range behind `each`", "DG0404")
        if raw.one_of:
            raise self.fail("DG0404", first[1], first[2], "a second list of allowed values", "join them with `|`")
        raw.one_of.append(first)
        while self.accept("|"):
            raw.one_of.append(self.constant())

    def lengths(self, raw: RawValue) -> None:
        while True:
            token = self.token
            raw.lengths.append((self.integer(), token.start, token.end))
            if not self.accept("|"):
                return

    def constant(self) -> tuple[object, int, int]:
        """A number, a string or a dtype."""
        token = self.token
        minus = self.accept("-")
        if self.token.kind == "number":
            value: object = -self.integer() if minus else self.integer()
            return value, token.start, self.last.end
        if not minus and token.kind == "string":
            return self.string(), token.start, token.end
        if not minus and token.kind == "ident":
            if token.text in DTYPE_WORDS:
                self.next()
                return m.DType(token.text), token.start, token.end
            meant = closest(token.text, ("any", "each", "length", *sorted(DTYPE_WORDS)))
            fix = f"did you mean `{meant}`?" if meant else "values are numbers, strings in quotes, or dtypes"
            raise self.unexpected("a value contract", "DG0404", fix)
        raise self.unexpected("a value contract", "DG0404", "`any` allows every value")
