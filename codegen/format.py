"""``fmt``: one way to lay out a schema file. Comments and documentation stay; the model of the file stays the same.

A logical line that has comments between its rows keeps its rows; every other one is joined, spaced anew and broken where it is too
long. Formatting twice changes nothing more.
"""

from __future__ import annotations

import re

from . import expression, lex
from .diagnostics import Source
from .expression import DTYPE_WORDS
from .lex import Token
from .schema_file import Line, logical_lines, parse_file, read_source
from .stamp import GeneratorError

WIDTH = 140  # columns of a row, unless it has no place to break
COMMENT_COLUMN = 51  # where comments behind contracts stand, or two blanks behind what is longer
INDENT = "    "

_PROSE = ("check", "section", "namespace", "prefix", "version")
_HEADERS = ("namespace", "prefix", "version")
_PROSE_DIRECTIVES = ("backends", "since", "lint")
_OPERATORS = frozenset("+ * // % / == != < <= > >= | ? : = -> ..".split())
_BEFORE_SIGN = frozenset("( [ , ? : | = -> ..".split()) | _OPERATORS
_SIGN_WORDS = frozenset("and or not when each else".split())


def format_file(name: str, data: bytes) -> bytes:
    """The file in its one form. It has to be free of errors."""
    source, report = read_source(name, data)
    text = _Formatter(source, logical_lines(report)).text()
    before, _ = parse_file(name, data)
    after, _ = parse_file(name, text.encode("utf-8"))
    if before is None or before != after:
        raise GeneratorError(f"formatting {name} would change what it means; the file is left alone")
    return text.encode("utf-8")


class _Formatter:
    def __init__(self, source: Source, lines: list[Line]):
        self.source = source
        self.lines = lines
        self.rows: list[str] = []
        self.last = ""  # the kind of the last logical line

    def text(self) -> str:
        at = 0
        for line in self.lines:
            if line.at > at:
                self.between(self.source.text[at : line.at - 1])
            self.separate(line)
            self.rows += _Rows(self.source.text, line).formatted()
            self.last = line.kind
            at = min(line.end + 1, len(self.source.text))  # behind the end of the row
        self.between(self.source.text[at:])
        while self.rows and not self.rows[-1]:
            self.rows.pop()
        return "".join(row + "\n" for row in self.rows)

    def between(self, text: str) -> None:
        """Blank rows and comments: one blank row for several. text has no newline at its end."""
        is_first = True
        for row in text.split("\n"):
            if not row.strip():
                self.blank()
                continue
            if is_first and self.last == "operator":
                self.blank()
            comment = _comment(row.strip())
            self.rows.append(f"# {comment[1:]}" if comment.startswith("##") else comment)  # `##` in column 1 is documentation
            is_first = False

    def separate(self, line: Line) -> None:
        """A blank row behind an operator, around a section, and behind the header."""
        ends_part = self.last in ("operator", "section") or self.last in _HEADERS and line.kind not in _HEADERS
        is_comment = bool(self.rows) and self.rows[-1].startswith("#") and not self.rows[-1].startswith("##")
        if (ends_part or line.kind == "section" and self.last) and not is_comment:
            self.blank()

    def blank(self) -> None:
        if self.rows and self.rows[-1]:
            self.rows.append("")


class _Rows:
    """One logical line."""

    def __init__(self, text: str, line: Line):
        self.source = text
        self.line = line

    def formatted(self) -> list[str]:
        line = self.line
        rows = self.source[line.start : line.end].split("\n")
        if line.kind == "doc":
            first, *more = rows
            text = " ".join([first.removeprefix(" ").rstrip(), *(part.strip() for part in more)]).rstrip()
            return [f"## {text}" if text else "##"]
        is_prose = line.kind in _PROSE or line.kind == "directive" and line.name is not None and line.name.text in _PROSE_DIRECTIVES
        if line.kind == "operator":
            rows = [*(_without_backslash(row) for row in rows[:-1]), rows[-1]]
        parts = [_split_prose(row) if is_prose else _split_code(row) for row in rows]
        if any(comment for _, comment in parts[:-1]):
            return self.kept(parts, is_prose)
        code, comment = " ".join(code for code, _ in parts if code), parts[-1][1]
        rows = self.broken(self.head() + self.spaced(code, is_prose))
        if comment:
            rows[-1] = _with_comment(rows[-1], comment)
        return rows

    def kept(self, parts: list[tuple[str, str]], is_prose: bool) -> list[str]:
        """Comments stand between: every row stays one."""
        rows = []
        for i, (code, comment) in enumerate(parts):
            spaced = self.spaced(code, is_prose).strip() if code else ""
            row = (self.head() if i == 0 else INDENT) + spaced
            if comment and not code and i > 0:
                row = INDENT + comment
            elif comment:
                row = _with_comment(row.rstrip(), comment)
            if row.strip():
                rows.append(row.rstrip())
        return rows

    def head(self) -> str:
        """What stands before the body of the line, with the blank that follows."""
        line, name = self.line, self.line.name.text if self.line.name else ""
        return {
            "operator": "",
            "contract": f"{name}: ",
            "result": f"-> {name}: ",
            "let": f"let {name} = ",
            "check": f"check {name}: ",
            "directive": f"@{name} ",
        }.get(line.kind, f"{line.kind} ")

    def spaced(self, code: str, is_prose: bool) -> str:
        if is_prose:
            return " ".join(code.split())
        if self.line.kind == "operator":
            tokens = lex.tokenize(code, folded=True)
            return _join([t for t in tokens if t.kind != "eof"], _is_spaced_in_schema)
        tokens = expression.tokenize(code, 0, len(code))
        return _join([t for t in tokens if t.kind != "eof"], _is_spaced_in_contract)

    def broken(self, row: str) -> list[str]:
        """The row, or several: one per alternative of a tensor's contract, and each as long as it can be."""
        row, kind = row.rstrip(), self.line.kind
        is_long = len(row) > WIDTH and kind in ("contract", "result")
        return [part for row in (_alternatives(row) if is_long else [row]) for part in _broken(row, kind)]


def _without_backslash(row: str) -> str:
    """torch takes a backslash at the end of a row for a blank; here the row goes on anyhow."""
    return row if _split_code(row)[1] else row.removesuffix("\\")


# ---- comments ------------------------------------------------------------------------------------------------


def _split_code(row: str) -> tuple[str, str]:
    """What stands before ``#`` outside strings, and the comment from there."""
    match = re.match(r"(?:[^#\"']|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[\"'])*", row)
    assert match is not None
    return row[: match.end()].strip(), _comment(row[match.end() :].strip())


def _split_prose(row: str) -> tuple[str, str]:
    match = re.search(r"(?:^|[ \t])(#.*)", row)
    return (row[: match.start()].strip(), _comment(match[1].strip())) if match else (row.strip(), "")


def _comment(text: str) -> str:
    return f"# {text[1:]}" if len(text) > 1 and text[1].isalnum() else text


def _with_comment(row: str, comment: str) -> str:
    return f"{row:<{COMMENT_COLUMN}}{comment}" if len(row) < COMMENT_COLUMN else f"{row}  {comment}"


# ---- blanks --------------------------------------------------------------------------------------------------


def _join(tokens: list[Token], is_spaced: object) -> str:
    assert callable(is_spaced)
    text = ""
    for i, token in enumerate(tokens):
        if i > 0 and is_spaced(tokens[:i], token):
            text += " "
        text += token.text
    return text


def _is_word(token: Token) -> bool:
    return token.kind in ("ident", "number", "string", "error") or token.text[:1].isalpha()


def _is_spaced_in_schema(before: list[Token], token: Token) -> bool:
    last = before[-1]
    if last.kind == "," or "->" in (last.kind, token.kind):
        return True
    return _is_word(token) and (_is_word(last) or last.kind in (")", "]", "?", "!"))


def _is_spaced_in_contract(before: list[Token], token: Token) -> bool:
    last = before[-1]
    if token.kind in (",", ")", "]") or last.kind in ("(", "[", "...") or token.kind == "...":
        return False
    if token.kind == "[":
        is_layout = last.text == "strides" and len(before) > 1 and before[-2].kind == "]"
        return last.text in DTYPE_WORDS or last.kind == ")" or is_layout
    if token.kind == "(":
        return last.kind != "ident" or last.text in _SIGN_WORDS
    if last.kind == "-":  # a sign, or a difference
        return len(before) > 1 and not _is_sign(before[:-1])
    return True


def _is_sign(before: list[Token]) -> bool:
    """Whether a `-` behind these tokens is a sign."""
    last = before[-1]
    return last.kind in _BEFORE_SIGN or last.kind == "-" or last.text in _SIGN_WORDS


# ---- long rows -----------------------------------------------------------------------------------------------


def _alternatives(row: str) -> list[str]:
    """A contract with its alternatives on rows of their own."""
    places, depth = [0], 0
    for token in expression.tokenize(row, 0, len(row)):
        depth += (token.kind in ("(", "[")) - (token.kind in (")", "]"))
        before = row[: token.start].split()
        if token.kind == "|" and depth == 0 and before[-1] not in DTYPE_WORDS and not _is_dtype_of(before[-1]):
            places.append(token.start)
    parts = [row[start:end].strip() for start, end in zip(places, [*places[1:], len(row)])]
    return [parts[0], *(INDENT + part for part in parts[1:])]


def _is_dtype_of(word: str) -> bool:
    return re.fullmatch(r"dtype\(\w+\)", word) is not None


def _broken(row: str, kind: str) -> list[str]:
    """The row, or several: broken where parentheses are the least deep."""
    rows: list[str] = []
    while len(row) > WIDTH:
        fitting = [(depth, at) for depth, at in _break_places(row, kind) if len(INDENT) < at <= WIDTH]
        if not fitting:
            break
        lowest = min(depth for depth, _ in fitting)
        at = max(at for depth, at in fitting if depth == lowest)
        rows.append(row[:at].rstrip())
        row = INDENT + row[at:].lstrip()
    return [*rows, row]


def _break_places(row: str, kind: str) -> list[tuple[int, int]]:
    """Where a row may be broken: the depth of parentheses, and the offset of the part that goes to the next row."""
    places, depth, quote = [], 0, ""
    is_prose = kind in _PROSE or kind == "directive"
    for at, c in enumerate(row):
        if quote:
            quote = "" if c == quote and row[at - 1] != "\\" else quote
        elif c in "\"'" and not is_prose:
            quote = c
        elif c in "([":
            depth += 1
        elif c in ")]":
            depth -= 1
        elif c == " " and _may_break(row, at, kind, is_prose):
            places.append((0 if is_prose else depth, at + 1))
    return places


def _may_break(row: str, at: int, kind: str, is_prose: bool) -> bool:
    if is_prose:
        return not row.startswith("#", at + 1)  # where it would begin a comment
    if kind == "operator":
        return row[at - 1] == ","
    return row[at - 1] == "," or re.match(r" (?:\||\?|:|and|or|when|else|[+*/-]) ", row[at:]) is not None
