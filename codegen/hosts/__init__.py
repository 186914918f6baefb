"""Hosts: one module each, from the model to files. See ``Host``.

A host spells the model in its target language with pure functions and hands the result to templates. Hosts know the model
and nothing else: not the parser, not files, not each other. Jinja2 is imported by whoever calls ``render``, so importing a host costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from ..model import Argument, Library, Operator, Return
from ..record import record


class Render(Protocol):
    def __call__(self, template: str, /, **context: object) -> str:
        """The text of ``templates/<template>``, whose variables are context. An undefined variable is an error."""


@record
class Edit:
    """An operator before and after, each with its library."""

    old_library: Library
    new_library: Library
    old: Operator
    new: Operator


@record
class Difference:
    """What an edit does to callers."""

    layer: str  # "C ABI", "C source", "C++ source", "torch backward", "torch forward", "torch C++", "Python", "stub"
    breaks: bool
    text: str


def trading_places(old: list[str], new: list[str]) -> str:
    """Which of the names stand elsewhere: a caller who gives them by position gives one for another, and no type need tell."""
    places = [(was, now) for was, now in zip(old, new) if was != now and (was in new or now in old)]
    return ", ".join(f"`{now}` stands where `{was}` stood" for was, now in places)


def no_differences(edit: Edit) -> Iterable[Difference]:
    return ()


def nothing_to_explain(library: Library, operator: Operator) -> Iterable[tuple[str, str]]:
    return ()


@record
class Host:
    name: str  # "c"
    summary: str  # one line for --help
    templates: tuple[str, ...]  # below codegen/templates, "c/ops.h.j2"
    render: Callable[[Library, Render], Mapping[str, str]]  # path below the output folder -> text
    refuse: Callable[[Argument | Return], str | None]  # why the host cannot carry this, or None
    compare: Callable[[Edit], Iterable[Difference]] = no_differences  # what an edit does to callers of this host
    explain: Callable[[Library, Operator], Iterable[tuple[str, str]]] = nothing_to_explain  # titles and texts: what follows from an operator
