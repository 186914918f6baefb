"""The statements above an operator: lines to raw forms. What their names mean is decided in ``resolve``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from . import model as m
from .contract import ContractParser, RawAlternative, RawTensor, RawValue
from .diagnostics import RULES, Note, Report, closest
from .expression import Failed, Name, Node
from .printing import format_type
from .record import record
from .scope import Scope, without_optional

VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+")


@record
class Statement:
    """A logical line that belongs to an operator."""

    kind: str  # "contract result let require check directive"
    name: Name  # what it is about; of a require, the word itself
    start: int  # of its body
    end: int
    comment: str


@dataclass(slots=True)
class Entry:
    """An operator of the file: its schema and what stands above it."""

    schema: m.Schema
    doc: str
    section: str
    statements: list[Statement]


@dataclass(slots=True)
class Header:
    namespace: str = ""
    prefix: str = ""
    version: str = ""


@dataclass(slots=True)
class Directives:
    """The directives of an operator, in raw form."""

    pairs: list[tuple[Name, list[Name]]] = field(default_factory=list)
    aliases: list[Name] = field(default_factory=list)
    keywords: list[tuple[Name, Name]] = field(default_factory=list)
    scalars: list[Name] = field(default_factory=list)
    backends: tuple[str, ...] | None = None
    refusal: str = ""
    since: str = ""
    allows: list[m.Allow] = field(default_factory=list)


def check_syntax(report: Report, statements: list[Statement]) -> None:
    """Reports what is wrong in the statements of an operator whose schema did not parse, as far as that can be told."""
    for s in statements:
        parser = ContractParser(report, s.start, s.end)
        try:
            if s.kind in ("contract", "result"):
                parser.tensor() if parser.looks_like_tensor() else parser.value()
            elif s.kind in ("let", "require"):
                parser.expression()
                parser.no_slash()
        except Failed:
            pass


class StatementReader:
    """An operator's statements in raw form, each mistake in the report."""

    def __init__(self, report: Report, header: Header, entry: Entry):
        self.report = report
        self.source = report.source
        self.header = header
        self.entry = entry
        self.schema = entry.schema
        self.args = {a.name: a for a in entry.schema.args}
        self.scope = Scope(report, self.args)
        self.failed = False
        self.tensors: dict[str, RawTensor] = {}
        self.values: dict[str, RawValue] = {}
        self.statements: dict[str, Statement] = {}  # of arguments
        self.results: list[tuple[Statement, RawTensor | RawValue]] = []
        self.requires: list[tuple[Statement, Node, str | None]] = []
        self.checks: list[m.Check] = []
        self.let_statements: dict[str, Statement] = {}
        self.directives = Directives()
        self.lacks_tensor = False  # then a dimension that nothing defines says nothing new

    def error(
        self,
        code: str,
        at: Name | Node | Statement | RawAlternative | m.Span,
        message: str,
        fix: str = "",
        note: Note | None = None,
    ) -> None:
        self.failed = True
        if isinstance(at, Statement):
            at = at.name
        span = at if isinstance(at, m.Span) else self.source.span(at.start, at.end)
        self.report.error(code, span, message, fix, (note,) if note else ())

    def stands_here(self, statement: Statement, text: str = "first given here") -> Note:
        return Note(text, self.source.span(statement.name.start, statement.name.end))

    def symbol(self) -> str:
        s = self.schema
        return f"{s.name}.{s.overload}" if s.overload else s.name

    def read_statements(self) -> None:
        checks: dict[str, Statement] = {}
        for s in self.entry.statements:
            parser = ContractParser(self.report, s.start, s.end)
            try:
                if s.kind == "contract":
                    self.read_contract(s, parser)
                elif s.kind == "result":
                    self.results.append((s, self.read_result(s, parser)))
                elif s.kind == "let":
                    self.read_let(s, parser)
                elif s.kind == "require":
                    self.read_require(s, parser)
                elif s.kind == "check":
                    self.read_check(s, checks)
                else:
                    self.read_directive(s, parser)
            except Failed:
                self.failed = True
                if s.kind == "result":
                    self.results.append((s, RawValue()))  # so that those behind it keep their place
                self.scope.unsure |= {s.name.text} | {t.text for t in parser.tokens if t.kind == "ident"}

    def read_contract(self, s: Statement, parser: ContractParser) -> None:
        name = s.name.text
        if name not in self.args:
            meant = closest(name, [n for n in self.args if n not in self.statements])
            self.error("DG0402", s, f"`{self.symbol()}` has no argument `{name}`", f"did you mean `{meant}`?" if meant else "")
            return
        if name in self.statements:
            self.error("DG0403", s, f"a second contract for `{name}`", "", self.stands_here(self.statements[name]))
            return
        self.statements[name] = s
        argument = self.args[name]
        if argument.is_tensor:
            self.tensors[name] = self.source.once("tensor", s.start, s.end, parser.tensor)
            return
        self.check_for_value(argument, parser)
        self.values[name] = self.source.once("value", s.start, s.end, parser.value)

    def check_for_value(self, a: m.Argument | m.Return, parser: ContractParser) -> None:
        """A tensor's contract for something that is none."""
        if parser.looks_like_tensor():
            first = parser.token
            fix = "write a value contract, `any` allows every value"
            raise parser.fail(
                "DG0412",
                first.start,
                first.end,
                f"`{a.name}` is of type `{format_type(a.type)}`, this is the contract of a tensor",
                fix,
            )

    def read_result(self, s: Statement, parser: ContractParser) -> RawTensor | RawValue:
        index = len(self.results)
        if index < len(self.schema.returns):
            returned = self.schema.returns[index]
            is_view = returned.alias is not None
            if without_optional(returned.type) == m.TENSOR and not (is_view and parser.at_word("any")):
                return parser.tensor()
            self.check_for_value(m.Argument(s.name.text, returned.type, None, False, None, returned.span), parser)
        elif parser.looks_like_tensor():  # one result too many, which `resolve` reports
            return parser.tensor()
        return parser.value()

    def read_let(self, s: Statement, parser: ContractParser) -> None:
        name = s.name.text
        if name in self.scope.lets:
            self.error("DG0403", s, f"a second `let {name}`", "", self.stands_here(self.let_statements[name]))
            return
        self.let_statements[name] = s
        self.scope.lets[name] = self.source.once("let", s.start, s.end, lambda: _let(parser))

    def read_require(self, s: Statement, parser: ContractParser) -> None:
        self.requires.append((s, *self.source.once("require", s.start, s.end, lambda: _require(parser))))

    def read_check(self, s: Statement, checks: dict[str, Statement]) -> None:
        name = s.name.text
        if name in checks:
            self.error("DG0403", s, f"a second `check {name}`", "", self.stands_here(checks[name]))
            return
        checks[name] = s
        text = self.source.prose(s.start, s.end)
        if not text:
            self.error("DG0404", s, f"`check {name}` needs a text that says what is checked")
        self.checks.append(m.Check(name, text))

    def read_directive(self, s: Statement, parser: ContractParser) -> None:
        d, word = self.directives, s.name.text
        if word == "pair":
            name = parser.name("the name of the pair", "DG0601")
            parser.expect("=", "`=` and the arguments of the pair", "DG0601")
            parts = [parser.name("an argument", "DG0601")]
            while parser.accept(","):
                parts.append(parser.name("an argument", "DG0601"))
            d.pairs.append((name, parts))
        elif word == "alias":
            d.aliases.append(parser.name("a name", "DG0601"))
            while parser.token.kind == "ident":
                d.aliases.append(parser.name("a name", "DG0601"))
        elif word == "keyword":
            old = parser.name("the old keyword", "DG0601")
            parser.expect("=", "`=` and the argument that it stands for", "DG0601")
            d.keywords.append((old, parser.name("an argument", "DG0601")))
        elif word == "scalar":
            d.scalars.append(parser.name("a list argument", "DG0601"))
        elif word == "backends":
            self.read_backends(s, parser)
            return
        elif word == "since":
            self.read_since(s)
            return
        elif word == "lint":
            self.read_lint(s)
            return
        parser.end("the end of the directive", "DG0601")

    def read_backends(self, s: Statement, parser: ContractParser) -> None:
        d = self.directives
        if d.backends is not None:
            self.error("DG0603", s, "a second `@backends`")
            return
        none = re.match(r"none\b(?: ?: ?(.*))?", self.source.prose(s.start, s.end))
        if none:
            d.backends = ()
            d.refusal = none[1] or ""
            if not d.refusal:
                self.error(
                    "DG0601",
                    s,
                    "`@backends none` needs a reason",
                    "write `@backends none: TEXT`, the text of the error that callers get",
                )
            return
        names = [parser.name("the name of an implementation", "DG0601")]
        while parser.token.kind == "ident":
            names.append(parser.name("the name of an implementation", "DG0601"))
        parser.end("the name of an implementation", "DG0601")
        for i, n in enumerate(names):
            if n.text in [other.text for other in names[:i]]:
                self.error("DG0603", n, f"`{n.text}` stands twice")
        d.backends = tuple(n.text for n in names)

    def read_since(self, s: Statement) -> None:
        text = self.source.prose(s.start, s.end)
        if self.directives.since:
            self.error("DG0603", s, "a second `@since`")
        elif not VERSION.fullmatch(text):
            self.error("DG0601", s, f"`{text}` is no release", "write `@since X.Y.Z`")
        elif VERSION.fullmatch(self.header.version) and _release(text) > _release(self.header.version):
            self.error("DG0601", s, f"`@since {text}` is later than the version of the file, {self.header.version}")
        self.directives.since = text

    def read_lint(self, s: Statement) -> None:
        """``@lint allow RULE: REASON``."""
        text = self.source.text[s.start : s.end]
        match = re.match(r"[ \t]*allow[ \t]+([\w-]+)[ \t]*(?::|$)", text)
        if not match:
            self.error("DG0606", s, "`@lint` has the form `@lint allow RULE: REASON`")
            return
        rule = match[1]
        at = Name(rule, s.start + match.start(1), s.start + match.end(1))
        reason = self.source.prose(s.start + match.end(), s.end)
        if rule not in RULES.values():
            meant = closest(rule, RULES.values())
            self.error("DG0606", at, f"there is no lint rule `{rule}`", f"did you mean `{meant}`?" if meant else "")
        elif not reason:
            self.error("DG0606", at, "a rule is allowed to be broken for a reason", f"write `@lint allow {rule}: REASON`")
        elif rule not in [allow.rule for allow in self.directives.allows]:  # one that `@like` took over may stand before it
            self.directives.allows.append(m.Allow(rule, reason, self.source.span(at.start, at.end)))


def _let(parser: ContractParser) -> Node:
    node = parser.expression()
    parser.no_slash()
    parser.end("an operator or the end of the line")
    return node


def _require(parser: ContractParser) -> tuple[Node, str | None]:
    """The condition, and the words of the error."""
    node = parser.expression()
    parser.no_slash()
    message = None
    if parser.accept_word("else"):
        if parser.token.kind != "string":
            raise parser.unexpected("the words of the error in quotes")
        message = parser.string()
    parser.end("an operator, `else` or the end of the line")
    return node, message


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
