"""The schema file (schema/README.md): lines to statements, statements to operators.

The file is split into logical lines, the schema of each operator is parsed, ``@like`` is filled in, and ``resolve`` gives every
contract its meaning. Nothing here stops at the first error: a line that is wrong is left out, and the rest goes on.
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass

from . import model as m
from .diagnostics import Note, Report, Source, closest
from .expression import ExpressionParser, Name
from .lex import tokenize
from .parse import parse_schema
from .printing import format_type
from .resolve import resolve_operator
from .statements import VERSION, Entry, Header, Statement, check_syntax

_CONFLICT = re.compile(r"(<{7}|={7}|>{7}|\|{7})(?:[ \t]|$)")
_WORD = re.compile(r"(namespace|prefix|version|section|let|require|check)[ \t]+(?=\S)|(let|require)\(")
_NAMED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)[ \t]*:(?!:)")
_RESULT = re.compile(r"->[ \t]*([A-Za-z_][A-Za-z0-9_]*)[ \t]*:(?!:)")
_LET = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)[ \t]*=(?!=)")
_DIRECTIVE = re.compile(r"@([A-Za-z_][A-Za-z0-9_]*)")
_OPERATOR = re.compile(r"[A-Za-z_]")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STARTS_ENTRY = re.compile(
    r"##|@[a-z]|->[ \t]*\w+[ \t]*:|(?:let|require|check|section)[ \t]|[A-Za-z_]\w*[ \t]*:(?!:)|[A-Za-z_][\w.:]*[ \t]*\("
)
_STARTS_TYPE = re.compile(r"(?:Tensor|Dict|Union|Future|RRef|Await)\b")
_QUOTES_OR_COMMENT = re.compile(r"[\"'#\\]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")  # all but tab and line feed

_DIRECTIVES = ("pair", "alias", "keyword", "scalar", "backends", "like", "since", "lint")
_TORCH_NAMESPACES = frozenset("aten prim prims quantized c10d onnx mkl mkldnn inductor export profiler sparse symm_mem _test _native".split())
_HEADERS = ("namespace", "prefix", "version")
_LISTS = ("pair", "keyword", "scalar")  # directives that `@like` takes over name by name


@dataclass(slots=True)
class Line:
    """A logical line: a range of the file. kind "operator doc section namespace prefix version contract result let require check
    directive"; at is where its first line begins, start where its body does."""

    kind: str
    at: int
    start: int
    end: int
    name: Name | None = None


@dataclass(slots=True, eq=False)
class _Draft:
    """An operator whose `@like` is not filled in yet."""

    schema: m.Schema | None
    doc: str
    section: str
    own: list[Statement]
    like: Name | None
    at: Name  # the operator's line, for messages
    key: str  # NAME or NAME.OVERLOAD
    full: list[Statement] | None = None
    is_lost: bool = False  # an error keeps `full` from being known


def read_source(name: str, data: bytes) -> tuple[Source, Report]:
    """The text of a file, with line ends of one kind and without a byte order mark, and a report for it."""
    text = data.decode("utf-8", "replace").removeprefix("\ufeff").replace("\r\n", "\n")
    source = Source(name, text)
    report = Report(source)
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as e:
        before = data[: e.start].decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n")
        byte = data[e.start]
        report.error(
            "DG0301", source.span(len(before), len(before) + 1), f"the byte 0x{byte:02x} is not UTF-8", "save the file as UTF-8"
        )
    for match in _CONTROL.finditer(text):
        span = source.span(match.start(), match.end())
        report.error("DG0301", span, f"the control character U+{ord(match.group()):04X}", "remove it")
    return source, report


def parse_file(name: str, data: bytes) -> tuple[m.Library | None, Report]:
    """The library that a schema file declares, or None with what is wrong in the report."""
    library, report = parse_what_is_right(name, data)
    return (None if report else library), report


def parse_what_is_right(name: str, data: bytes) -> tuple[m.Library, Report]:
    """The library without the operators that have an error; those are in the report."""
    _, report = read_source(name, data)
    return _File(report).library(), report


def logical_lines(report: Report) -> list[Line]:
    """The logical lines of a source, in order. Rows between them are blank or comments."""
    return _File(report).split()


class _File:
    def __init__(self, report: Report):
        self.report = report
        self.source = report.source
        self.header = Header()
        self.drafts: list[_Draft] = []
        self.by_name: dict[str, _Draft] = {}

    def error(self, code: str, start: int, end: int, message: str, fix: str = "", note: Note | None = None) -> None:
        self.report.error(code, self.source.span(start, end), message, fix, (note,) if note else ())

    def library(self) -> m.Library:
        self.group(self.split())
        for draft in reversed(self.drafts):  # the first of a name counts
            self.by_name |= {draft.key.replace(".", "_"): draft, draft.key: draft}
        operators = []
        for draft in self.drafts:
            statements = self.fill_in(draft)
            if statements is None or draft.schema is None:
                check_syntax(self.report, draft.own)
            else:
                operator = resolve_operator(self.report, self.header, Entry(draft.schema, draft.doc, draft.section, statements))
                if operator is not None:
                    operators.append(operator)
        self.check_names()
        return m.Library(self.header.namespace, self.header.prefix, self.header.version, tuple(operators))

    # -- logical lines -----------------------------------------------------------------------------------------

    def split(self) -> list[Line]:
        lines: list[Line] = []
        text, at = self.source.text, 0
        current: Line | None = None  # what an indented line continues
        open_parentheses = 0
        while at < len(text):
            newline = text.find("\n", at)
            end = len(text) if newline < 0 else newline
            row = text[at:end]
            is_comment = row.lstrip().startswith("#")
            if open_parentheses > 0 and current is not None and not self.ends_operator(row):
                current.end = end
                open_parentheses += self.parentheses(at, end)
            elif not row.strip():
                current = None
            elif row[0].isspace():
                if current is not None:
                    current.end = end
                    if current.kind == "operator":
                        open_parentheses += self.parentheses(at, end)
                elif not is_comment:
                    first = at + len(row) - len(row.lstrip())
                    self.error(
                        "DG0309",
                        first,
                        end,
                        "an indented line, and no line before it that it could continue",
                        "remove the indentation",
                    )
            else:
                open_parentheses = 0
                current = self.line(at, end, row)
                if current is not None:
                    lines.append(current)
                    if current.kind == "operator":
                        open_parentheses = self.parentheses(at, end)
            at = end + 1
        return lines

    def ends_operator(self, row: str) -> bool:
        """Whether a row inside open parentheses looks like the start of the next thing: then a parenthesis is missing."""
        return bool(_CONFLICT.match(row) or _STARTS_ENTRY.match(row) and not _STARTS_TYPE.match(row))

    def parentheses(self, start: int, end: int) -> int:
        row = self.source.text[start:end]
        if not _QUOTES_OR_COMMENT.search(row):
            return sum(row.count(c) for c in "([{") - sum(row.count(c) for c in ")]}")
        kinds = [t.kind for t in tokenize(self.source.text, start, end, folded=True)]
        return sum(k in ("(", "[", "{") for k in kinds) - sum(k in (")", "]", "}") for k in kinds)

    def line(self, at: int, end: int, row: str) -> Line | None:
        """The logical line that begins with a row, or None for comments and what is no line at all."""
        if row.startswith("##"):
            return Line("doc", at, at + 2, end)
        if row.startswith("#"):
            return None
        if _CONFLICT.match(row):
            self.error("DG0302", at, end, "an unresolved merge: choose one side and remove the marks")
            return None
        word = _WORD.match(row)
        if word:
            return self.word_line(word, at, end, row)
        result = _RESULT.match(row)
        if result:
            return Line("result", at, at + result.end(), end, self.name_of(result, at))
        if row.startswith("->"):
            self.error("DG0303", at, end, "a result needs a name", "write `-> NAME: DTYPE [SHAPE]`, or `-> NAME: any`")
            return None
        directive = _DIRECTIVE.match(row)
        if directive:
            return Line("directive", at, at + directive.end(), end, self.name_of(directive, at))
        named = _NAMED.match(row)
        if named:
            return Line("contract", at, at + named.end(), end, self.name_of(named, at))
        if _OPERATOR.match(row):
            return Line("operator", at, at, end)
        self.error("DG0303", at, end, "this is no line of a schema file", "a continuation is indented, a comment begins with `#`")
        return None

    def name_of(self, match: re.Match[str], at: int) -> Name:
        return Name(match[1], at + match.start(1), at + match.end(1))

    def word_line(self, word: re.Match[str], at: int, end: int, row: str) -> Line | None:
        kind = word[1] or word[2]
        start = at + (word.end() if word[1] else word.end() - 1)
        name = Name(kind, at, at + len(kind))
        rest = row[start - at :]
        if kind in ("namespace", "prefix", "version", "section"):
            return Line("operator", at, at, end) if rest.startswith("(") else Line(kind, at, start, end, name)
        if kind == "let":
            match = _LET.match(rest)
            if not match:
                self.error("DG0501", at, end, "a `let` has the form `let NAME = EXPR`")
                return None
            return Line(kind, at, start + match.end(), end, self.name_of(match, start))
        if kind == "check":
            match = _NAMED.match(rest)
            if not match:
                self.error("DG0404", at, end, "a check has the form `check NAME: text`")
                return None
            return Line(kind, at, start + match.end(), end, self.name_of(match, start))
        return Line(kind, at, start, end, name)

    def comment_of(self, start: int, end: int) -> str:
        """What follows ``#`` on the lines of a range, outside strings."""
        comments = []
        for row in self.source.text[start:end].split("\n"):
            match = re.match(r"(?:[^#\"']|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[\"'])*#(.*)", row)
            if match:
                comments.append(match[1].strip())
        return " ".join(c for c in comments if c)

    # -- header, sections, operators ---------------------------------------------------------------------------

    def group(self, lines: list[Line]) -> None:
        given: dict[str, Name] = {}
        section, doc = "", list[str]()
        own: list[Statement] = []
        like: Name | None = None
        pending: Line | None = None  # the first line that waits for its operator
        for line in lines:
            if line.kind in _HEADERS:
                self.header_line(line, given)
            elif line.kind == "section":
                section = self.body(line)
            elif line.kind == "doc":
                first, *more = self.source.text[line.start : line.end].split("\n")
                doc.append(" ".join([first.removeprefix(" ").rstrip(), *(part.strip() for part in more)]))
                pending = pending or line
            elif line.kind == "operator":
                self.operator_line(line, "\n".join(doc).strip("\n"), section, own, like)
                doc, own, like, pending = [], [], None, None
            else:
                pending = pending or line
                assert line.name is not None
                if line.kind == "directive" and line.name.text == "like":
                    like = self.like_line(line, like)
                elif line.kind == "directive" and line.name.text not in _DIRECTIVES:
                    meant = closest(line.name.text, _DIRECTIVES)
                    fix = f"did you mean `@{meant}`?" if meant else f"directives are {', '.join('@' + d for d in _DIRECTIVES)}"
                    self.error("DG0601", line.at, line.name.end, f"`@{line.name.text}` is no directive", fix)
                else:
                    own.append(Statement(line.kind, line.name, line.start, line.end, self.comment_of(line.start, line.end)))
        if pending is not None:
            self.error("DG0305", pending.at, pending.end, "this belongs to the operator below it, and there is none")
        for kind in _HEADERS:
            if kind not in given:
                example = {"namespace": "namespace my_library", "prefix": "prefix my", "version": "version 0.1.0"}[kind]
                self.error(
                    "DG0304", 0, 1, f"the file has no `{kind}`", f"write a line such as `{example}` before the first operator"
                )

    def body(self, line: Line) -> str:
        return self.source.prose(line.start, line.end)

    def header_line(self, line: Line, given: dict[str, Name]) -> None:
        assert line.name is not None
        kind, value = line.kind, self.body(line)
        if kind in given:
            first = given[kind]
            note = Note("first given here", self.source.span(first.start, first.end))
            self.error("DG0304", line.at, line.end, f"a second `{kind}`", "", note)
            return
        given[kind] = line.name
        if self.drafts:
            self.error("DG0304", line.at, line.end, f"`{kind}` stands before the first operator")
        if kind == "version":
            if not VERSION.fullmatch(value):
                self.error("DG0304", line.start, line.end, f"`{value}` is no version", "write `version X.Y.Z`")
        elif not _IDENTIFIER.fullmatch(value) or keyword.iskeyword(value):
            self.error("DG0304", line.start, line.end, f"`{value}` is no name")
        elif kind == "namespace" and value in _TORCH_NAMESPACES:
            start = self.source.text.find(value, line.start)
            self.error("DG0311", start, start + len(value), f"`{value}` is a namespace of torch itself", f"write `namespace my_{value}`")
        setattr(self.header, kind, value)

    def like_line(self, line: Line, before: Name | None) -> Name | None:
        text = self.body(line)
        start = self.source.text.find(text, line.start) if text else line.start
        name = Name(text, start, start + len(text))
        if before is not None:
            self.error(
                "DG0603",
                line.at,
                line.end,
                "a second `@like`",
                "",
                Note("first given here", self.source.span(before.start, before.end)),
            )
            return before
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", text):
            self.error("DG0601", line.at, line.end, "`@like` has the form `@like OP`")
            return None
        return name

    def operator_line(self, line: Line, doc: str, section: str, own: list[Statement], like: Name | None) -> None:
        schema = parse_schema(self.report, line.start, line.end, folded=True)
        first = self.source.text[line.at : line.end].split("\n")[0]
        name_length = len(re.match(r"[\w.:]*", first).group())  # type: ignore[union-attr]
        at = Name(first[:name_length], line.at, line.at + max(name_length, 1))
        if schema is not None and schema.namespace and self.header.namespace and schema.namespace != self.header.namespace:
            self.error(
                "DG0307",
                at.start,
                at.end,
                f"the namespace is `{self.header.namespace}`, not `{schema.namespace}`",
                f"write `{schema.name}`",
            )
        key = at.text.rpartition("::")[2]
        self.drafts.append(_Draft(schema, doc, section, own, like, at, key))

    # -- @like -------------------------------------------------------------------------------------------------

    def fill_in(self, draft: _Draft) -> list[Statement] | None:
        """The statements of an operator, with those that `@like` takes over. None: an error keeps them from being known, its own or
        that of an operator which it is like; one mistake is told once."""
        chain = [draft]
        while chain[-1].full is None:
            last = chain[-1]
            if last.like is None and last.schema is not None:
                last.full = last.own
                break
            base = None if last.like is None or last.schema is None or last.is_lost else self.base_of(last.like, last, chain)
            if base is None:
                for lost in chain:
                    lost.is_lost = True
                return None
            chain.append(base)
        base = chain.pop()
        for derived in reversed(chain):
            derived.full = _Inheritance(self.source, derived, base).statements()
            base = derived
        return draft.full

    def base_of(self, like: Name, draft: _Draft, chain: list[_Draft]) -> _Draft | None:
        """The operator that another one is like."""
        base = self.by_name.get(like.text)
        if base is None:
            meant = closest(like.text, [d.key for d in self.drafts if d is not draft])
            self.error(
                "DG0604", like.start, like.end, f"there is no operator `{like.text}`", f"did you mean `{meant}`?" if meant else ""
            )
        elif base in chain:
            self.error("DG0604", like.start, like.end, f"`{base.key}` is like itself")
        else:
            return base
        return None

    # -- names across operators --------------------------------------------------------------------------------

    def check_names(self) -> None:
        symbols: dict[str, tuple[_Draft, str]] = {}
        for draft in self.drafts:
            if draft.schema is None:
                continue
            symbol = draft.key.replace(".", "_")
            if keyword.iskeyword(symbol):
                self.error("DG0203", draft.at.start, draft.at.end, f"`{symbol}` is a keyword of Python", f"write `{symbol}_`")
            self.claim(symbols, symbol, draft, f"the operator `{draft.key}`")
        for draft in self.drafts:
            returns = draft.schema.returns if draft.schema else ()
            if any(format_type(r.type) == "Tensor" and r.alias is None for r in returns):
                symbol = draft.key.replace(".", "_") + "_out"
                if symbol in symbols:
                    other, _ = symbols[symbol]
                    note = Note(f"`{draft.key}` returns a tensor", self.source.span(draft.at.start, draft.at.end))
                    self.error(
                        "DG0306",
                        other.at.start,
                        other.at.end,
                        f"`{symbol}` is the C function that describes the results of `{draft.key}`",
                        "take another name",
                        note,
                    )
        self.check_aliases({s: d for s, (d, _) in symbols.items()})

    def claim(self, symbols: dict[str, tuple[_Draft, str]], symbol: str, draft: _Draft, what: str) -> None:
        if symbol not in symbols:
            symbols[symbol] = (draft, what)
            return
        other, _ = symbols[symbol]
        note = Note("first declared here", self.source.span(other.at.start, other.at.end))
        if other.key == draft.key:
            message = f"a second operator `{draft.key}`"
        else:
            message = f"`{draft.key}` and `{other.key}` have the same symbol, `{symbol}`"
        self.error("DG0306", draft.at.start, draft.at.end, message, "", note)

    def check_aliases(self, symbols: dict[str, _Draft]) -> None:
        taken = {symbol: self.source.span(d.at.start, d.at.end) for symbol, d in symbols.items()}
        for draft in self.drafts:
            for s in draft.own:
                if s.kind == "directive" and s.name.text == "alias":
                    for match in _IDENTIFIER.finditer(self.source.prose(s.start, s.end)):
                        at = self.source.text.find(match.group(), s.start)
                        if match.group() in taken:
                            note = Note("first used here", taken[match.group()])
                            self.error(
                                "DG0605", at, at + len(match.group()), f"the Python name `{match.group()}` is taken", "", note
                            )
                        taken.setdefault(match.group(), self.source.span(at, at + len(match.group())))


class _Inheritance:
    """What `@like` takes over: statements of the other operator, unless given here, and unless they are for names that are not here."""

    def __init__(self, source: Source, draft: _Draft, base: _Draft):
        assert draft.schema is not None and base.schema is not None and base.full is not None
        self.source = source
        self.own = draft.own
        self.inherited = base.full
        self.args = {a.name for a in draft.schema.args}
        self.missing = {a.name for a in base.schema.args} - self.args  # arguments that only the other operator has

    def statements(self) -> list[Statement]:
        own_names = {(s.kind, s.name.text) for s in self.own}
        has_results = any(s.kind == "result" for s in self.own)
        own_directives = {(s.name.text, self.first_name(s)) for s in self.own if s.kind == "directive"}
        lets = {s.name.text: s for s in self.inherited if s.kind == "let"}
        gone = self.lost_lets(lets)
        kept = []
        for s in self.inherited:
            if s.kind == "contract" and (s.name.text not in self.args or ("contract", s.name.text) in own_names):
                continue
            if s.kind in ("let", "check") and (s.kind, s.name.text) in own_names:
                continue
            if s.kind == "let" and s.name.text in gone:
                continue
            if s.kind == "result" and has_results:
                continue
            if s.kind == "require" and self.names(s) & (self.missing | gone):
                continue
            if s.kind == "directive" and not self.keeps(s, own_directives):
                continue
            kept.append(s)
        return kept + self.own

    def lost_lets(self, lets: dict[str, Statement]) -> set[str]:
        """The lets that read an argument which is not here, or another such let."""
        own = {s.name.text for s in self.own if s.kind == "let"}
        gone: set[str] = set()
        while True:
            more = {n for n, s in lets.items() if n not in gone | own and self.names(s) & (self.missing | gone)}
            if not more:
                return gone
            gone |= more

    def keeps(self, s: Statement, own_directives: set[tuple[str, str]]) -> bool:
        word = s.name.text
        if word == "backends":
            return not any(w == "backends" for w, _ in own_directives)
        if word == "lint":
            return True
        if word not in _LISTS or (word, self.first_name(s)) in own_directives:
            return False
        return not self.names(s) & self.missing

    def first_name(self, s: Statement) -> str:
        match = _IDENTIFIER.search(self.source.text, s.start, s.end)
        return match.group() if match else ""

    def names(self, s: Statement) -> set[str]:
        """Every name that the body of a statement mentions."""
        parser = ExpressionParser(Report(self.source), s.start, s.end)
        return {t.text for t in parser.tokens if t.kind == "ident"}
