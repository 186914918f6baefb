"""Source texts, and what is wrong with them: codes, spans, and how they are shown.

Every message has a stable code. ``CODES`` says for each what it means and how to mend it; ``python -m codegen explain CODE`` prints it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from typing import TypeVar, cast

from .model import Span
from .record import record

_Made = TypeVar("_Made")

CODES = {
    # torch's grammar
    "DG0101": "A character or string that begins no token. Outside strings a schema is ASCII; a string ends on its line unless it is tripled.",
    "DG0102": "The schema does not follow torch's grammar: something else was expected here.",
    "DG0103": "The type is not one that torch knows.",
    "DG0104": "torch reserves the overload name `default` and those that begin with `__`.",
    "DG0105": "`...` stands last, and excludes default values.",
    "DG0106": "The default is not one that torch takes for this type.",
    "DG0107": "A number that does not fit: integers are 64 bits, floats are doubles that are neither infinite nor subnormal.",
    "DG0108": "A required argument follows one with a default. Give it a default too, move it before, or make both keyword-only with `*`.",
    "DG0109": "An escape that torch does not know. It takes \\\\ \\' \\\" \\a \\b \\f \\n \\t \\v and three octal digits.",
    "DG0110": "The type makes no sense to torch: a union needs two distinct members, a `Dict` a key of a simple type.",
    "DG0111": "Types nest deeper than any real signature.",
    # stricter than torch: each is taken by torch's parser and then goes wrong
    "DG0201": "Two arguments of one name: the second can never be given by keyword.",
    "DG0202": "Two results of one name: nothing can tell them apart.",
    "DG0203": "The name is a keyword of C, C++ or Python, so some host cannot spell it.",
    "DG0204": "The default is not of the argument's type: torch registers it, and then every call that uses it fails.",
    "DG0205": "The default list has not as many members as the type says.",
    "DG0206": "A hexadecimal number: torch reads a hexadecimal integer as 0.",
    "DG0207": "A capital E without a point: torch reads an integer and drops the exponent, so `1E5` is 1.",
    "DG0208": "A list size that is not a plain positive decimal number.",
    "DG0209": "A required list after an argument with a default: torch takes it, C and Python cannot spell it.",
    "DG0210": "A `*` too many, or one with no argument after it, which changes nothing.",
    "DG0211": "`...`: torch refuses every call that uses it.",
    "DG0212": "An alias mark on something that is no tensor and no list of tensors means nothing.",
    "DG0213": "An alias mark that no host but torch's own interpreter can honour: a wildcard, several sets, or `->`.",
    "DG0214": "A result that is marked as aliasing something, but no argument has this set.",
    "DG0215": "A type that neither C nor torch's stable interface can carry.",
    "DG0216": "A type variable: torch's parser takes any lower-case word, but registration refuses it.",
    "DG0217": "Text that does not survive: bytes above 127 or NUL in a string default.",
    "DG0218": "More than 64 arguments: registration refuses them.",
    "DG0219": "`T??` is `T?`, `DeviceIndex` and `ConstQuantizerPtr` are `int`: write what torch will print.",
    # the file
    "DG0301": "The file is not UTF-8, or contains a control character.",
    "DG0302": "A line of an unresolved merge.",
    "DG0303": "The line is none of the kinds that a schema file has.",
    "DG0304": "`namespace`, `prefix` and `version` stand once each, before the first operator.",
    "DG0305": "Something that belongs to an operator, but none follows.",
    "DG0306": "Two operators of the same name, or whose names become the same symbol (`f_out` and `f.out`).",
    "DG0307": "The operator names another namespace than the file.",
    "DG0308": "The schema ends before its parentheses are closed.",
    "DG0309": "An indented line continues the line before it, and there is none.",
    "DG0310": "torch.ops takes an argument named `self` by position only: a caller cannot give it by keyword.",
    "DG0311": "A namespace that torch has itself: what is registered in it is treated as torch's own, and can clash with a later release.",
    "DG0312": "torch parses an optional or nested list of written tensors, and then torch.compile cannot functionalise it.",
    # contracts
    "DG0401": "An argument without a contract. Every argument has one line; `NAME: any` is one for values.",
    "DG0402": "A contract for something that is not an argument of the operator.",
    "DG0403": "A second contract for the same argument, or a second `let` or `check` of the same name.",
    "DG0404": "The contract does not follow its grammar (section 2 and 3 of schema/README.md).",
    "DG0405": "Not the word of an element type.",
    "DG0406": "A dimension that nothing defines: no required tensor has it as a bare name in all its alternatives.",
    "DG0407": "A name that stands for two things: an argument, a dimension, a `let`, or a result.",
    "DG0408": "`out` or `inout` is needed for what the schema marks with `!`, and nowhere else.",
    "DG0409": "`may alias NAME`, `like NAME`, `dtype(NAME)`: NAME must be another argument that fits.",
    "DG0410": "An alternative that can never be chosen: one before it takes the same dtypes and rank.",
    "DG0411": "A condition on a dtype that the tensor never has.",
    "DG0412": "A contract of a kind that does not fit the type of the argument.",
    "DG0413": "The default value breaks the argument's own contract.",
    "DG0414": "A result without a contract, or a contract without a result.",
    "DG0415": "The contract of a result: one dtype per alternative, a shape, no attributes but `at EXPR`, which a view needs and nothing else has.",
    "DG0416": "A `when` that depends on a dimension which is known only after the alternative was chosen.",
    "DG0417": "Strides must have one entry per dimension of the shape.",
    "DG0418": "More dimensions than a tensor can have: the checks keep shapes and strides in arrays of 8.",
    # expressions
    "DG0501": "The expression does not follow its grammar (section 3 of schema/README.md).",
    "DG0502": "A name that is no argument, `let` or dimension.",
    "DG0503": "Operands or results of the wrong kind: integers, booleans, strings and dtypes do not mix.",
    "DG0504": "An optional argument is read where it may be absent. Read it behind `given(NAME)`.",
    "DG0505": "A list member, or an axis, that may not exist.",
    "DG0506": "A division by the constant 0, or by less than 1 in `ceil` and `align`.",
    "DG0507": "A `let` is used before it is defined.",
    "DG0508": "Only `ceil(x / y)` divides with `/`; `//` rounds down.",
    # directives
    "DG0601": "Not a directive, or not its form (section 4 of schema/README.md).",
    "DG0602": "A directive that names something that the operator does not have.",
    "DG0603": "A directive given twice, or two that exclude each other.",
    "DG0604": "`@like` names an operator that does not exist, or one that is like this one.",
    "DG0605": "A Python name that is taken already.",
    "DG0606": "`@lint allow RULE: REASON` needs the name of a rule (`lint --rules` lists them) and a reason.",
    # hosts
    "DG0701": "A host cannot carry the type of this argument or result.",
    # lint: correct, and yet likely to hurt; each has a name that `@lint allow NAME: REASON` takes
    "DG0801": "Nothing says what the argument is for: neither a comment behind its contract nor a word of the documentation.",
    "DG0802": "`any` for a number, a string or a list checks nothing. Write the range, the words or the length; or say in a comment why every"
    " value is right.",
    "DG0803": "An operator without a line of documentation (`## ...`).",
    "DG0804": "Several booleans in a row: `f(x, True, False)` says nothing at the call. Make them keyword-only with `*`, or one `str` with words.",
    "DG0805": "A list of any length as the default: in Python one object serves all calls, and C has no initialiser for it. Write `None`, and"
    " say what it means; or a list of fixed length.",
    "DG0806": "The name is a keyword of another host language, or a name that its headers or compiler take: the host would have to rename it.",
    "DG0807": "Two overloads that take the same call: torch picks the one registered first, and a caller cannot tell which.",
    "DG0808": "A result that aliases an argument: no C function can return it, fakes and functionalization have to treat it apart, and its"
    " lifetime is that of the argument. Return a new tensor, or write into an argument.",
    "DG0809": "`Tensor!` has no name for its alias set: torch makes one up that differs from print to print, so that schemas do not compare equal.",
    "DG0810": "An `int` that the shape of a tensor says already: it can be wrong, and under `torch.compile` every new value is compiled again."
    " Leave it out and read the shape.",
    "DG0811": "An `@lint allow` for a rule that the operator does not break: remove it, so that it does not hide the next one.",
    "DG0812": "A dimension that stands in one place only, of one letter or named almost as another: nothing is checked against it, so its"
    " name may be a slip. A size that may be anything has a word of its own, or is written `dim(NAME, AXIS)`.",
    "DG0813": "A backend that no other operator has, and whose name is close to one that others have: a slip, probably.",
}

# The names of the lint rules, by their codes.
RULES = {
    "DG0801": "undocumented-argument",
    "DG0802": "contract-missing",
    "DG0803": "undocumented-operator",
    "DG0804": "boolean-trap",
    "DG0805": "mutable-default",
    "DG0806": "host-keyword",
    "DG0807": "ambiguous-overload",
    "DG0808": "returns-alias",
    "DG0809": "bare-write",
    "DG0810": "int-from-shape",
    "DG0811": "unused-allow",
    "DG0812": "lone-dimension",
    "DG0813": "lone-backend",
}


_WIDEST = 240  # characters of a line that are shown


class Source:
    """A text and where its lines begin. Offsets count characters."""

    def __init__(self, name: str, text: str):
        self.name = name
        self.text = text
        self._made: dict[tuple[str, int, int], object] = {}
        self._starts = [0]
        at = text.find("\n")
        while at >= 0:
            self._starts.append(at + 1)
            at = text.find("\n", at + 1)

    def span(self, start: int, end: int) -> Span:
        """The range from start to end, cut at the end of the line."""
        row = bisect_right(self._starts, start) - 1
        begin = self._starts[row]
        line_end = self._starts[row + 1] - 1 if row + 1 < len(self._starts) else len(self.text)
        end = max(min(end, line_end), start + 1)
        return Span(self.name, row + 1, start - begin + 1, end - begin + 1)

    def once(self, what: str, start: int, end: int, make: Callable[[], _Made]) -> _Made:
        """What make() makes of a range, made once: operators that are like one another share their contracts."""
        key = (what, start, end)
        if key not in self._made:
            self._made[key] = make()
        return cast("_Made", self._made[key])

    def offset(self, span: Span) -> int:
        """The offset at which a span begins."""
        return self._starts[span.line - 1] + span.column - 1

    def line(self, number: int) -> str:
        start = self._starts[number - 1]
        end = self._starts[number] - 1 if number < len(self._starts) else len(self.text)
        return self.text[start:end]

    def prose(self, start: int, end: int) -> str:
        """The text of a range on one line, without comments."""
        rows = self.text[start:end].split("\n")
        return " ".join(" ".join(re.sub(r"(?:^|[ \t])#.*", "", row).split()) for row in rows).strip()


@record
class Note:
    text: str
    span: Span | None = None


@record
class Diagnostic:
    code: str
    span: Span
    message: str
    fix: str = ""  # what to write instead, as a sentence
    notes: tuple[Note, ...] = ()
    severity: str = "error"  # or "warning"

    @property
    def label(self) -> str:
        """The code, and the name of a lint rule."""
        return f"{self.code} {RULES[self.code]}" if self.code in RULES else self.code


# What a terminal shows in colour, as its escape sequences (ECMA-48, SGR) say it.
_COLOURS = {"error": "\x1b[1;31m", "warning": "\x1b[1;33m", "note": "\x1b[1;36m", "fix": "\x1b[1;32m", "place": "\x1b[1m"}
_PLAIN = "\x1b[0m"


class Report:
    """The diagnostics of a run over one source. It is true when there is an error; warnings alone leave it false."""

    def __init__(self, source: Source):
        self.source = source
        self._found: dict[tuple[str, Span, str], Diagnostic] = {}

    def __bool__(self) -> bool:
        return any(d.severity == "error" for d in self._found.values())

    def error(self, code: str, span: Span, message: str, fix: str = "", notes: tuple[Note, ...] = ()) -> None:
        """Adds a diagnostic; the same one twice (two operators can share a contract) counts once."""
        assert code in CODES, code
        self._found.setdefault((code, span, message), Diagnostic(code, span, message, fix, notes))

    def warning(self, code: str, span: Span, message: str, fix: str = "", notes: tuple[Note, ...] = ()) -> None:
        """Adds what is no error: what `lint` finds."""
        assert code in CODES, code
        self._found.setdefault((code, span, message), Diagnostic(code, span, message, fix, notes, "warning"))

    def diagnostics(self) -> list[Diagnostic]:
        return sorted(self._found.values(), key=lambda d: (d.span.line, d.span.column, d.span.end, d.code, d.message))

    def render(self, *, colour: bool = False) -> str:
        """Every diagnostic with its line and a caret under what it is about, and how many there are."""
        paint = _painted if colour else _unpainted
        blocks = []
        for d in self.diagnostics():
            blocks.append(self._block(d.span, d.severity, f"{d.message} [{d.label}]", paint))
            if d.fix:
                blocks.append(f"  {paint('fix', 'fix:')} {d.fix}\n")
            for note in d.notes:
                if note.span is None:
                    blocks.append(f"  {paint('note', 'note:')} {note.text}\n")
                else:
                    blocks.append(self._block(note.span, "note", note.text, paint))
        return "".join(blocks) + f"{self.summary()}\n"

    def summary(self) -> str:
        """``2 errors, 1 warning``."""
        severities = [d.severity for d in self._found.values()]
        counts = [(word, severities.count(word)) for word in ("error", "warning")]
        return ", ".join(f"{n} {word}{'s' * (n != 1)}" for word, n in counts if n) or "0 errors"

    def _block(self, span: Span, severity: str, text: str, paint: Callable[[str, str], str]) -> str:
        line, column, end = self.source.line(span.line), span.column - 1, span.end - 1
        if len(line) > _WIDEST:  # a part of the line around the place
            start = max(0, column - _WIDEST // 2)
            line, column, end = line[start : start + _WIDEST], column - start, min(end - start, _WIDEST)
        visible = "".join(c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in line)
        before = "".join("\t" if c == "\t" else " " for c in line[:column])
        caret = paint(severity, "^" + "~" * (end - column - 1))
        place = paint("place", f"{span.file}:{span.line}:{span.column}:")
        return f"{place} {paint(severity, severity + ':')} {text}\n{visible}\n{before}{caret}\n"


def _painted(kind: str, text: str) -> str:
    return f"{_COLOURS[kind]}{text}{_PLAIN}"


def _unpainted(kind: str, text: str) -> str:
    return text


def closest(word: str, known: object, likeness: float = 0.6) -> str:
    """The known word that a typing error is most likely to have meant, or "". likeness: 1 means equal."""
    from difflib import get_close_matches

    words = [str(k) for k in known]  # type: ignore[attr-defined]
    lower = [w for w in words if w.lower() == word.lower()]
    return (lower or get_close_matches(word, words, n=1, cutoff=likeness) or [""])[0]


def quoted_list(words: object) -> str:
    """`a`, `b` or `c`."""
    texts = [f"`{w}`" for w in words]  # type: ignore[attr-defined]
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " or " + texts[-1]
