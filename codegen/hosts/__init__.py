"""Hosts: one module each, from the model to files. See ``Host``.

A host spells the model in its target language with pure functions and hands the result to templates. Hosts know the model
and nothing else: not the parser, not files, not each other. Jinja2 is imported by whoever calls ``render``, so importing a host costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ..model import Argument, Library, Return


class Render(Protocol):
    def __call__(self, template: str, /, **context: object) -> str:
        """The text of ``templates/<template>``, whose variables are context. An undefined variable is an error."""


@dataclass(frozen=True)
class Host:
    name: str  # "c"
    summary: str  # one line for --help
    templates: tuple[str, ...]  # below codegen/templates, "c/ops.h.j2"
    render: Callable[[Library, Render], Mapping[str, str]]  # path below the output folder -> text
    refuse: Callable[[Argument | Return], str | None]  # why the host cannot carry this, or None
