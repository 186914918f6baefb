"""Reading the tokens of a schema string: one at a time, with every mistake in the report."""

from __future__ import annotations

from .diagnostics import Note, Report
from .lex import KEYWORDS, Token, tokenize
from .record import record


class Failed(Exception):
    """The diagnostic is in the report; the nearest caller that can go on does."""


@record
class Oddity:
    """Something that torch's parser takes and that then goes wrong."""

    code: str
    start: int
    end: int
    message: str
    fix: str
    notes: tuple[Note, ...]


class TokenReader:
    def __init__(self, report: Report, start: int, end: int, folded: bool):
        self.report = report
        self.source = report.source
        self.folded = folded
        self.tokens = tokenize(self.source.text, start, end, folded=folded)
        last = self.tokens[-2].end if len(self.tokens) > 1 else start
        self.tokens[-1] = Token("eof", "", last, last)  # not behind a comment or empty lines
        self.index = 0
        self.failed = False
        self.oddities: list[Oddity] = []

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

    def fail(self, code: str, token: Token, message: str, fix: str = "") -> Failed:
        self.failed = True
        self.report.error(code, self.source.span(token.start, token.end), message, fix)
        return Failed()

    def expect(self, kind_: str, what: str = "") -> Token:
        if self.token.kind == kind_:
            return self.next()
        raise self.unexpected(what or f"`{kind_}`")

    def unexpected(self, what: str, fix: str = "") -> Failed:
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
        self.oddities.append(Oddity(code, start, end, message, fix, notes))


def _describe_bad(c: str) -> tuple[str, str]:
    if c == "":
        return "an indentation that matches no line before", ""
    if c in "'\"":
        return "a string that does not end", f"close it with {c}"
    if not c.isascii():
        return f"`{c}` (U+{ord(c):04X}) may stand in strings and comments only", ""
    return f"{c!r} begins no token", ""
