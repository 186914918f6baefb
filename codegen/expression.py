"""Expressions of contracts: text to nodes with places. ``resolve`` gives the nodes their meaning."""

from __future__ import annotations

import re
from typing import NamedTuple

from . import model as m
from .diagnostics import Report
from .lex import Token

MAX_NESTING = 40  # of parentheses and conditionals
MAX_DEPTH = 100  # of the tree: a chain of operators is a deep one

_TOKEN = re.compile(
    r"(?:[ \t\r\v\f\n]+|#[^\n]*)*"
    r"(?:(?P<ident>[A-Za-z_][A-Za-z0-9_]*)|(?P<number>[0-9][0-9A-Za-z_]*)"
    r'|(?P<string>"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\')'
    r"|(?P<mark>\.\.\.|\.\.|->|==|!=|<=|>=|//|[][()|,:?+\-*/%<>=@.!&^])|(?P<error>.)|$)"
)

DTYPE_WORDS = frozenset(d.value for d in m.DType)

# What people write for an element type.
MEANT_DTYPES = {
    "float": "f32", "float32": "f32", "float16": "f16", "half": "f16", "bfloat16": "bf16", "double": "f64", "float64": "f64",
    "int": "i32", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "long": "i64", "uint8": "u8", "byte": "u8",
    "fp8": "f8e4m3", "e4m3": "f8e4m3", "f8": "f8e4m3", "float8_e4m3fn": "f8e4m3", "e5m2": "f8e5m2", "float8_e5m2": "f8e5m2",
    "fp4": "f4e2m1", "f4": "f4e2m1", "e2m1": "f4e2m1", "e8m0": "ue8m0", "float8_e8m0fnu": "ue8m0", "fp32": "f32", "fp16": "f16",
    "s32": "i32", "s64": "i64", "b8": "bool",
}  # fmt: skip

OVER_NAMES = {"dim": 2, "stride": 2, "rank": 1, "len": 1, "given": 1, "dtype": 1}
_OVER_VALUES = ("align", "min", "max")
FUNCTIONS = frozenset(OVER_NAMES) | {"ceil", "sum_ceil", *_OVER_VALUES}
WORDS = frozenset(("and", "or", "not", "true", "false", "when"))  # never names


class Failed(Exception):
    """The diagnostic is in the report; the rest of the line is given up."""


class Name(NamedTuple):
    """A name of the source and where it stands."""

    text: str
    start: int
    end: int


class Node(NamedTuple):
    """kind "literal name index call binary unary conditional"; value is the literal, the name, the function or the operator."""

    kind: str
    value: object
    children: tuple["Node", ...]
    start: int
    end: int
    depth: int = 1

    def names(self) -> set[str]:
        """Every name that the expression mentions."""
        own = {str(self.value)} if self.kind in ("name", "index") else set()
        return own.union(*(c.names() for c in self.children))


def tokenize(text: str, start: int, end: int) -> list[Token]:
    """The tokens of text[start:end]. The last is "eof"; it stands behind the last word, not behind its comment."""
    tokens, last = [], start
    for match in _TOKEN.finditer(text, start, end):
        kind = match.lastgroup
        if kind is None:
            break
        word, last = match[kind], match.end()
        tokens.append(Token(word if kind == "mark" else kind, word, last - len(word), last))
    tokens.append(Token("eof", "", last, last))
    return tokens


class ExpressionParser:
    """Recursive descent over one logical line."""

    def __init__(self, report: Report, start: int, end: int):
        self.report = report
        self.source = report.source
        self.tokens = self.source.once("tokens", start, end, lambda: tokenize(self.source.text, start, end))
        self.index = 0
        self.token = self.tokens[0]
        self.nesting = 0

    # -- tokens ------------------------------------------------------------------------------------------------

    @property
    def last(self) -> Token:
        return self.tokens[self.index - 1]

    def next(self) -> Token:
        token = self.token
        if token.kind != "eof":
            self.index += 1
            self.token = self.tokens[self.index]
        return token

    def accept(self, kind: str) -> Token | None:
        return self.next() if self.token.kind == kind else None

    def at_word(self, word: str) -> bool:
        return self.token.kind == "ident" and self.token.text == word

    def accept_word(self, word: str) -> Token | None:
        return self.next() if self.at_word(word) else None

    def fail(self, code: str, start: int, end: int, message: str, fix: str = "") -> Failed:
        self.report.error(code, self.source.span(start, end), message, fix)
        return Failed()

    def unexpected(self, what: str, code: str = "DG0501", fix: str = "") -> Failed:
        token = self.token
        if token.kind == "error":
            shown = "a string that does not end" if token.text in "'\"" else f"`{token.text}` begins nothing"
            return self.fail(code, token.start, token.end, shown, fix)
        found = "the end of the line" if token.kind == "eof" else f"`{token.text}`"
        return self.fail(code, token.start, token.end, f"expected {what}, found {found}", fix)

    def expect(self, kind: str, what: str = "", code: str = "DG0501") -> Token:
        if self.token.kind == kind:
            return self.next()
        raise self.unexpected(what or f"`{kind}`", code)

    def name(self, what: str, code: str = "DG0501") -> Name:
        token = self.token
        if token.kind != "ident" or token.text in WORDS:
            raise self.unexpected(what, code)
        self.next()
        return Name(token.text, token.start, token.end)

    def end(self, what: str = "the end of the line", code: str = "DG0501") -> None:
        if self.token.kind != "eof":
            raise self.unexpected(what, code)

    def node(self, kind: str, value: object, children: tuple[Node, ...], start: int, end: int) -> Node:
        depth = 1 + max(child.depth for child in children)
        if depth > MAX_DEPTH:
            raise self.fail("DG0501", start, end, f"an expression of more than {MAX_DEPTH} levels", "split it with `let`")
        return Node(kind, value, children, start, end, depth)

    def binary(self, op: str, left: Node, right: Node) -> Node:
        return self.node("binary", op, (left, right), left.start, right.end)

    # -- expressions -------------------------------------------------------------------------------------------

    def expression(self) -> Node:
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise self.fail("DG0501", self.token.start, self.token.end, f"expressions nest more than {MAX_NESTING} deep")
        condition = self.disjunction()
        if self.accept("?"):
            then = self.expression()
            self.expect(":", "`:` and the value otherwise")
            otherwise = self.expression()
            condition = self.node("conditional", None, (condition, then, otherwise), condition.start, otherwise.end)
        self.nesting -= 1
        return condition

    def disjunction(self) -> Node:
        left = self.conjunction()
        while self.accept_word("or"):
            left = self.binary("or", left, self.conjunction())
        return left

    def conjunction(self) -> Node:
        left = self.negation()
        while self.accept_word("and"):
            left = self.binary("and", left, self.negation())
        return left

    def negation(self) -> Node:
        word = self.accept_word("not")
        if not word:
            return self.comparison()
        operand = self.comparison()
        return self.node("unary", "not", (operand,), word.start, operand.end)

    def comparison(self) -> Node:
        left = self.sum()
        if self.token.kind in ("==", "!=", "<", "<=", ">", ">="):
            op = self.next().kind
            left = self.binary(op, left, self.sum())
            if self.token.kind in ("==", "!=", "<", "<=", ">", ">="):
                raise self.unexpected("the end of the comparison", fix="join comparisons with `and`")
        elif self.token.kind == "=":
            raise self.unexpected("an operator", fix="equality is `==`")
        return left

    def sum(self) -> Node:
        left = self.product()
        while self.token.kind in ("+", "-"):
            op = self.next().kind
            left = self.binary(op, left, self.product())
        return left

    def product(self) -> Node:
        left = self.unary()
        while self.token.kind in ("*", "//", "%"):
            op = self.next().kind
            left = self.binary(op, left, self.unary())
        return left

    def unary(self) -> Node:
        minus = self.accept("-")
        if not minus:
            return self.atom()
        if self.token.kind == "number":
            number = self.atom()
            assert isinstance(number.value, int)
            return Node("literal", -number.value, (), minus.start, number.end)
        operand = self.atom()
        return self.node("unary", "-", (operand,), minus.start, operand.end)

    def atom(self) -> Node:
        token = self.token
        if token.kind == "number":
            return Node("literal", self.integer(), (), token.start, token.end)
        if token.kind == "string":
            return Node("literal", self.string(), (), token.start, token.end)
        if self.accept("("):
            inner = self.expression()
            self.no_slash()
            self.expect(")", "`)`")
            return inner._replace(start=token.start, end=self.last.end)
        if token.kind != "ident" or token.text in ("and", "or", "not", "when"):
            raise self.unexpected("a value")
        self.next()
        if token.text in ("true", "false"):
            return Node("literal", token.text == "true", (), token.start, token.end)
        if self.token.kind == "(":
            return self.call(token)
        if token.text in DTYPE_WORDS:
            return Node("literal", m.DType(token.text), (), token.start, token.end)
        if self.accept("["):
            index = self.token
            if index.kind == "-":
                raise self.unexpected("a number from 0", fix="count from the front")
            number = self.integer()
            self.expect("]")
            child = Node("literal", number, (), index.start, index.end)
            return self.node("index", token.text, (child,), token.start, self.last.end)
        return Node("name", token.text, (), token.start, token.end)

    def integer(self) -> int:
        token = self.expect("number", "a number")
        if not token.text.isdigit() or (len(token.text) > 1 and token.text[0] == "0"):
            raise self.fail("DG0501", token.start, token.end, f"`{token.text}` is not a decimal integer")
        if len(token.text) > 19 or int(token.text) >= 2**63:
            raise self.fail("DG0501", token.start, token.end, f"`{token.text}` does not fit in 64 bits")
        return int(token.text)

    def string(self) -> str:
        token = self.next()
        bad = re.search(r"\\[^\\\"']", token.text)
        if bad:
            at = token.start + bad.start()
            raise self.fail("DG0501", at, at + 2, f"`{bad.group()}` is no escape here: strings have `\\\\`, `\\\"` and `\\'`")
        return re.sub(r"\\(.)", r"\1", token.text[1:-1])

    def no_slash(self) -> None:
        if self.token.kind == "/":
            raise self.unexpected("an operator", "DG0508", "`x // y` rounds down, `ceil(x / y)` rounds up")

    def call(self, function: Token) -> Node:
        name = function.text
        if name not in FUNCTIONS:
            from .diagnostics import closest

            meant = closest(name, sorted(FUNCTIONS))
            raise self.fail(
                "DG0501", function.start, function.end, f"`{name}` is no function", f"did you mean `{meant}`?" if meant else ""
            )
        self.expect("(")
        children: list[Node] = []
        if name == "ceil":
            children = [self.product(), self.divisor("ceil((...) / y)")]
        elif name == "sum_ceil":
            children = [self.name_node("the name of a list"), self.divisor("sum_ceil(list / x)")]
        elif name in OVER_NAMES:
            children = [self.name_node("the name of an argument")]
            if OVER_NAMES[name] == 2:
                self.expect(",", "`,` and the axis")
                children.append(self.unary())
        else:
            children = [self.expression()]
            self.expect(",", "`,` and the second value")
            children.append(self.expression())
        self.no_slash()
        self.expect(")", "`)`")
        return self.node("call", name, tuple(children), function.start, self.last.end)

    def name_node(self, what: str) -> Node:
        name = self.name(what)
        return Node("name", name.text, (), name.start, name.end)

    def divisor(self, form: str) -> Node:
        """``/ y``; both sides bind tighter than ``+``, so that a sum is in parentheses."""
        if self.token.kind in ("+", "-"):
            raise self.unexpected("`/`", fix=f"put the sum in parentheses: `{form}`")
        if self.token.kind in (",", "//"):
            raise self.unexpected("`/`", fix="it takes a quotient: `x / y`")
        self.expect("/")
        divisor = self.unary()
        if self.token.kind in ("*", "//", "%", "+", "-"):
            raise self.unexpected("`)`", fix="put the divisor in parentheses")
        return divisor
