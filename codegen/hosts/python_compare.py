"""What an edit of an operator does to Python callers, and to those that only type checkers see."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Argument, Optional, Type
from ..torch_types import is_subtype, underlying
from . import Difference, Edit
from .python import Parameter, function, parameters


def differences(edit: Edit) -> Iterator[Difference]:
    if edit.old_library.namespace != edit.new_library.namespace:
        yield Difference("Python", True, f"the package `{edit.old_library.namespace}` is called `{edit.new_library.namespace}`")
    old, new = parameters(edit.old), parameters(edit.new)
    yield from _names(edit)
    yield from _positions(old, new)
    yield from _keywords(old, new)
    yield from _types(edit, old, new)
    before, after = function(edit.old), function(edit.new)
    if before.returns != after.returns:
        yield Difference("Python", True, f"it returns {after.returns}, it returned {before.returns}")
    if before.doc != after.doc:
        yield Difference("stub", False, "the docstring changes")


def _names(edit: Edit) -> Iterator[Difference]:
    now = {edit.new.symbol, *edit.new.aliases}
    for name in (edit.old.symbol, *edit.old.aliases):
        if name not in now:
            yield Difference("Python", True, f"the name `{name}` is gone")


def _positions(old: list[Parameter], new: list[Parameter]) -> Iterator[Difference]:
    was = [p.name for p in old if not p.kw_only]
    now = [p.name for p in new if not p.kw_only]
    all_now = {p.name for p in new}
    for i, name in enumerate(was):
        other = now[i] if i < len(now) else None
        if other == name or name not in all_now and other not in was and other is not None:
            continue  # a new name in the old place is said of the keyword
        what = f"is `{other}` now" if other is not None else "is not taken any more"
        yield Difference("Python", True, f"positional argument {i}, `{name}`, {what}")


def _keywords(old: list[Parameter], new: list[Parameter]) -> Iterator[Difference]:
    now = {p.name: p for p in new} | {p.legacy: p for p in new if p.legacy}
    for p in old:
        for name in filter(None, (p.name, p.legacy)):
            if name not in now:
                yield Difference("Python", True, f"the keyword `{name}=` is gone")
    was = {p.name for p in old}
    for p in new:
        if not p.default and p.name not in was and p.legacy not in was:
            yield Difference("Python", True, f"`{p.name}` is new and has to be given")


def _types(edit: Edit, old: list[Parameter], new: list[Parameter]) -> Iterator[Difference]:
    now = {p.name: p for p in new} | {p.legacy: p for p in new if p.legacy}
    old_args = {a.name: a for a in edit.old.schema.args}
    new_args = {a.name: a for a in edit.new.schema.args}
    for was in old:
        p = now.get(was.name)
        if p is None:
            continue
        if was.default and not p.default:
            yield Difference("Python", True, f"`{p.name}` has no default any more")
        elif was.default != p.default and was.default:
            yield Difference("Python", False, f"the default of `{p.name}` is {p.default}, it was {was.default}")
        if was.annotation == p.annotation:
            continue
        is_wider = len(was.members) == len(p.members) and all(
            a in old_args and b in new_args and _is_wider(old_args[a], new_args[b]) for a, b in zip(was.members, p.members)
        )
        takes_less = was.annotation.startswith("int | ") and not p.annotation.startswith("int | ")
        text = f"`{p.name}` is {p.annotation}, it was {was.annotation}"
        yield Difference("stub" if is_wider and not takes_less else "Python", not is_wider or takes_less, text)


def _is_wider(old: Argument, new: Argument) -> bool:
    """Whether the new type takes all that the old one took. What contracts say is told apart from it."""
    return _core(old.type) == _core(new.type) or is_subtype(underlying(old.type), underlying(new.type))


def _core(t: Type) -> tuple[Type, bool]:
    is_optional = isinstance(t, Optional)
    return (underlying(t.elem) if isinstance(t, Optional) else underlying(t)), is_optional
