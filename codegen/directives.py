"""The directives of an operator, checked against its arguments."""

from __future__ import annotations

import keyword
from typing import TypedDict

from . import model as m
from .diagnostics import closest
from .expression import Name
from .printing import format_type
from .scope import without_optional
from .statements import StatementReader

DEFAULT_BACKENDS = ("ref",)


class Fields(TypedDict):
    """The fields of ``model.Operator`` that come from directives."""

    pairs: tuple[m.Pair, ...]
    aliases: tuple[str, ...]
    keywords: tuple[tuple[str, str], ...]
    scalars: tuple[str, ...]
    backends: tuple[str, ...]
    refusal: str
    since: str
    allows: tuple[m.Allow, ...]


class DirectiveResolver(StatementReader):
    def resolve_directives(self) -> Fields:
        d = self.directives
        in_pair: dict[str, str] = {}
        for name, parts in d.pairs:
            for part in parts:
                if part.text not in self.args:
                    self.unknown_argument(part, "@pair")
                elif part.text in in_pair:
                    self.error("DG0603", part, f"`{part.text}` is a part of the pair `{in_pair[part.text]}` already")
                in_pair.setdefault(part.text, name.text)
            if len(parts) < 2:
                self.error(
                    "DG0601", name, "a pair has two arguments at least", f"write `@pair {name.text} = {parts[0].text}, OTHER`"
                )
            if name.text in self.args and name.text not in [p.text for p in parts]:
                self.error("DG0605", name, f"`{name.text}` is an argument that is no part of the pair")
        pair_names = [name.text for name, _ in d.pairs]
        for name, _ in d.pairs:
            if pair_names.count(name.text) > 1:
                self.error("DG0603", name, f"two pairs named `{name.text}`")
        in_python = {n for n in self.args if n not in in_pair} | set(pair_names)
        old_names: list[str] = []
        for old, new in d.keywords:
            if new.text not in in_python:
                if new.text in in_pair:
                    self.error(
                        "DG0602", new, f"Python has no keyword `{new.text}`: it is a part of the pair `{in_pair[new.text]}`"
                    )
                else:
                    self.unknown_argument(new, "@keyword")
            if old.text in in_python or old.text in old_names:
                self.error("DG0605", old, f"`{old.text}` is a keyword of this operator already")
            old_names.append(old.text)
        for name in d.scalars:
            a = self.args.get(name.text)
            type_ = without_optional(a.type) if a else None
            if a is None:
                self.unknown_argument(name, "@scalar")
            elif not isinstance(type_, m.List) or type_.size is None:
                self.error("DG0602", name, f"`{name.text}` is of type `{format_type(a.type)}`, not a list of fixed length")
        for name in (*(n for n, _ in d.pairs), *d.aliases, *(old for old, _ in d.keywords)):
            if keyword.iskeyword(name.text):
                self.error("DG0203", name, f"`{name.text}` is a keyword of Python")
        return {
            "pairs": tuple(m.Pair(name.text, tuple(p.text for p in parts)) for name, parts in d.pairs),
            "aliases": tuple(name.text for name in d.aliases),
            "keywords": tuple((old.text, new.text) for old, new in d.keywords),
            "scalars": tuple(name.text for name in d.scalars),
            "backends": DEFAULT_BACKENDS if d.backends is None else d.backends,
            "refusal": d.refusal,
            "since": d.since,
            "allows": tuple(d.allows),
        }

    def unknown_argument(self, name: Name, directive: str) -> None:
        meant = closest(name.text, self.args)
        fix = f"did you mean `{meant}`?" if meant else ""
        self.error("DG0602", name, f"`{directive}` names `{name.text}`, which is no argument of `{self.symbol()}`", fix)
