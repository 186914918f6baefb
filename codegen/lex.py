"""Tokens of schema strings, by the rules of torch's lexer.

A schema string is a fragment of Python to torch: newlines count outside brackets, where they make NEWLINE, INDENT and DEDENT tokens.
In a schema file (``folded``) a newline is a blank and ``#`` always begins a comment: what ``m.def`` gets has neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

KEYWORDS = frozenset(
    "and as assert break class continue def del elif Ellipsis else False for global if import in is None NoneType not or pass"
    " raise return True while with".split()
)

# Longest first where one begins with another.
_MARKS = "... <<= >>= **= <=> -> ** != == <= >= // << >> += -= *= /= %= |= &= ^= + - * / % @ ( ) [ ] : , = { } > < . ? ! & ^ | ~"
_MARK = re.compile("|".join(re.escape(mark) for mark in ["# type:", *_MARKS.split()]))

_NUMBER = re.compile(
    r"(?:0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?[0-9]+)?"
    r"|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)j?"
)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TWO_WORDS = re.compile(r"is not|not in")  # tokens with a blank inside
# In a schema file: blanks and comments, and the token behind them unless it is a string.
_FOLDED = re.compile(
    rf"(?:[ \t\r\v\f\n]+|#[^\n]*|\\\n)*(?:(?P<number>{_NUMBER.pattern})|(?P<ident>{_IDENTIFIER.pattern})|(?P<mark>{_MARK.pattern}))?"
)
_BLANKS = re.compile(r"[ \t\r\v\f]*")


class Token(NamedTuple):
    kind: str  # "ident number string newline indent dedent eof error", else the token's own text
    text: str
    start: int
    end: int


def tokenize(text: str, start: int = 0, end: int | None = None, *, folded: bool = False) -> list[Token]:
    """The tokens of text[start:end], an "eof" last. What begins no token becomes one "error" token of one character."""
    lexer = _Lexer(text, start, len(text) if end is None else end, folded)
    return list(lexer.run_folded() if folded else lexer.run())


class _Lexer:
    def __init__(self, text: str, at: int, end: int, folded: bool):
        self.text, self.at, self.end, self.folded = text, at, end, folded
        self.nesting = 0
        self.indents: list[int] = []

    def run(self) -> Iterator[Token]:
        line_start = None if self.folded else self._skip_blanks(at_line_start=True)
        if line_start is not None:
            self.indents.append(self.at - line_start)
        while True:
            line_start = self._skip_blanks(at_line_start=False)
            if line_start is not None:
                yield from self._indentation(line_start)
                continue
            token = self._token()
            yield token
            if token.kind == "eof":
                return
            self.nesting += (token.kind in ("(", "[", "{")) - (token.kind in (")", "]", "}"))
            self.at = token.end

    def run_folded(self) -> Iterator[Token]:
        """What run() yields, faster: newlines are blanks."""
        text, end = self.text, self.end
        while True:
            match = _FOLDED.match(text, self.at, end)
            assert match is not None  # every part of it is optional
            kind, self.at = match.lastgroup, match.end()
            word = match[kind] if kind else ""
            if kind is None or word in ("is", "not"):  # a string, the end, an error, or perhaps two words
                self.at -= len(word)
                token = self._token()
                self.at = token.end
            else:
                token = Token(word if kind == "mark" or word in KEYWORDS else kind, word, self.at - len(word), self.at)
            yield token
            if token.kind == "eof":
                return

    def _skip_blanks(self, *, at_line_start: bool) -> int | None:
        """Skips blanks and comments. Where a line begins that counts: the offset of its first character, else None."""
        text = self.text
        while True:
            line_start = self.at
            at = self.at = _BLANKS.match(text, line_start, self.end).end()  # type: ignore[union-attr]
            first = text[at] if at < self.end else ""
            if first == "#" and (self.folded or not text.startswith("# type:", at) or at + 7 > self.end):
                newline = text.find("\n", at, self.end)
                self.at = self.end if newline < 0 else newline
            elif first == "\\" and not at_line_start and text.startswith("\\\n", at) and at + 2 <= self.end:
                self.at += 2
            elif first == "\n":
                self.at += 1
                at_line_start = self.nesting <= 0 and not self.folded
            else:
                return line_start if at_line_start else None

    def _indentation(self, line_start: int) -> Iterator[Token]:
        is_end = self.at >= self.end
        depth = self.indents[0] if is_end else self.at - line_start  # blanks before the end do not matter

        def token(kind: str) -> Token:
            return Token(kind, "", self.at, self.at)

        if depth > self.indents[-1]:
            self.indents.append(depth)
            yield token("indent")
            return
        yield token("newline")
        while self.indents and self.indents[-1] != depth:
            self.indents.pop()
            yield token("dedent")
        if not self.indents:
            yield token("error")
            self.indents.append(depth)

    def _token(self) -> Token:
        text, at, end = self.text, self.at, self.end
        if at >= end:
            return Token("eof", "", at, at)
        number = _NUMBER.match(text, at, end)
        if number:
            return Token("number", number.group(), at, number.end())
        if text[at] in "'\"":
            closed = _string_end(text, at, end)
            if closed:
                return Token("string", text[at:closed], at, closed)
        word = _IDENTIFIER.match(text, at, end)
        if word:
            two = _TWO_WORDS.match(text, at, end)
            if two and two.end() > word.end():
                return Token(two.group(), two.group(), at, two.end())
            return Token(word.group() if word.group() in KEYWORDS else "ident", word.group(), at, word.end())
        mark = _MARK.match(text, at, end)
        if mark:
            return Token(mark.group(), mark.group(), at, mark.end())
        return Token("error", text[at], at, at + 1)


def _string_end(text: str, start: int, end: int) -> int:
    """The offset after the string literal that begins at start, or 0 when it does not end."""
    quote = text[start]
    width = 3 if text.startswith(quote * 3, start) and start + 3 <= end else 1
    at = start + width
    while at < end and not (text.startswith(quote * width, at) and at + width <= end):
        if text[at] == "\n" and width == 1:
            return 0
        at += 2 if text[at] == "\\" else 1
    return at + width if at < end else 0


def number_of(pattern_text: str) -> str:
    """The longest beginning of the text that is a number without a final j, or ""."""
    match = _NUMBER.match(pattern_text)
    return match.group().removesuffix("j") if match else ""
