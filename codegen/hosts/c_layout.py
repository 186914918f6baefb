"""Breaks the long lines of generated C, so that templates can hold one statement or prototype per line."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

WIDTH = 130  # columns of a line


class Bracket(NamedTuple):
    column: int  # where its content begins
    is_call: bool  # it has arguments or members, which stay whole as long as that is possible


class Place(NamedTuple):
    """Where a line can be broken; the outermost place is the best."""

    rank: int
    end: int  # of what stays
    open: tuple[Bracket, ...]


def wrap(text: str) -> str:
    """text with each line of code that is wider than WIDTH broken, outermost bracket first."""
    lines: list[str] = []
    is_macro = False
    for line in text.splitlines():
        is_macro = is_macro or line.startswith("#define")
        if len(line) <= WIDTH or line.lstrip().startswith(("/*", "*")):
            lines.append(line)
        else:
            lines += wrap_line(line, is_macro)
        is_macro = is_macro and line.endswith("\\")
    return "\n".join(lines) + "\n"


@lru_cache(maxsize=4096)
def wrap_line(line: str, is_macro: bool) -> tuple[str, ...]:
    """One long line. Operators that are like one another have many in common."""
    lines: list[str] = []
    width = WIDTH - 2 if is_macro else WIDTH
    indent = len(line) - len(line.lstrip()) + 4  # of what goes on outside of brackets
    brackets: tuple[Bracket, ...] = ()
    while len(line) > width:
        place = best_place(line, brackets, width)
        if place is None:
            break
        lines.append(line[: place.end] + (" \\" if is_macro else ""))
        brackets = place.open
        line = " " * (brackets[-1].column if brackets else indent) + line[place.end :].lstrip()
    return (*lines, line)


TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[(\[{]|[)\]}]|,(?=.)|(?<= )(?:&&|\|\||\|)(?= )|[?:](?= )')


def best_place(line: str, brackets: tuple[Bracket, ...], width: int) -> Place | None:
    """After a comma or an operator in brackets, or before a part of a conditional outside of them: the last one of the best that fit
    into width, or else the first one."""
    best: Place | None = None
    start = len(line) - len(line.lstrip())
    for token in TOKENS.finditer(line, start):
        at, end = token.span()
        match line[at]:
            case "(" | "[" | "{":
                is_call = line[at] == "{" or line[at - 1].isalnum() or line[at - 1] == "_"
                brackets = (*brackets, Bracket(end, is_call))
                continue
            case ")" | "]" | "}":
                brackets = brackets[:-1]
                continue
            case "," if brackets:
                rank = 2 * len(brackets)
            case "&" | "|" if brackets:
                rank = 2 * len(brackets) + brackets[-1].is_call
            case "?" | ":" if not brackets and at > start:
                rank, end = 0, at - 1
            case _:
                continue
        if end > width:
            return best or Place(rank, end, brackets)
        if best is None or rank <= best.rank:
            best = Place(rank, end, brackets)
    return best
