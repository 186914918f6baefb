"""What an edit of an operator does to C++ programs that are compiled anew. The header is all there is of this host: compiled ones call C."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Library, Operator
from ..record import record
from . import Difference, Edit, trading_places
from .cpp import function, option_type

LAYER = "C++ source"


@record
class Signature:
    """A function and its options struct, as far as callers depend on them."""

    name: str
    parameters: tuple[tuple[str, str], ...]  # type and name, options and context left out
    members: tuple[tuple[str, str], ...]  # of the options struct: type and name
    returns: str


def signature(library: Library, op: Operator) -> Signature:
    p = library.prefix
    return Signature(
        name=f"{library.namespace}::{op.symbol}",
        parameters=tuple((option_type(p, a), a.name) for a in op.schema.args if a.default is None),
        members=tuple((option_type(p, a), a.name) for a in op.schema.args if a.default is not None),
        returns=function(p, op).return_type,
    )


def differences(edit: Edit) -> Iterator[Difference]:
    if edit.old.returns_views or edit.new.returns_views:
        if not edit.old.returns_views:
            yield Difference(LAYER, True, f"`{edit.old.symbol}` returns views now, so C++ does not have it")
        return
    old, new = signature(edit.old_library, edit.old), signature(edit.new_library, edit.new)
    if old.name != new.name:
        yield Difference(LAYER, True, f"`{old.name}` is called `{new.name}`")
        return
    old_types, new_types = [t for t, _ in old.parameters], [t for t, _ in new.parameters]
    if len(old_types) != len(new_types) or not all(map(takes, old_types, new_types)):
        was, now = ", ".join(old_types) or "nothing", ", ".join(new_types) or "nothing"
        yield Difference(LAYER, True, f"`{old.name}` takes {now}, it took {was}")
    elif moved := trading_places([name for _, name in old.parameters], [name for _, name in new.parameters]):
        yield Difference(LAYER, True, f"`{old.name}` compiles as before, and takes one for another: {moved}")
    if old.returns != new.returns:
        yield Difference(LAYER, True, f"`{old.name}` returns {new.returns}, it returned {old.returns}")
    yield from _options(old, new)


def takes(old: str, new: str) -> bool:
    """Whether a parameter, or a member, of the new type takes what one of the old type took: an optional also takes a value, and what is
    only read also something that may be written."""
    read = old.replace("TensorRef", "TensorView")
    return new in (old, read, f"std::optional<{old}>", f"std::optional<{read}>")


def _options(old: Signature, new: Signature) -> Iterator[Difference]:
    if not old.members and new.members:
        yield Difference(LAYER, True, f"`{old.name}` has options before the context now: a call that passes a context does not compile")
    if old.members and not new.members:
        yield Difference(LAYER, True, f"`{old.name}` has no options any more")
    if not old.members or not new.members:
        return
    now = {name: text for text, name in new.members}
    for text, name in old.members:
        if name not in now:
            yield Difference(LAYER, True, f"`{old.name}_options` has no member `{name}` any more")
        elif not takes(text, now[name]):
            yield Difference(LAYER, True, f"`{name}` of `{old.name}_options` is a `{now[name]}`, it was a `{text}`")
    kept = [name for _, name in old.members if name in now]
    if kept != [name for _, name in new.members][: len(kept)]:
        yield Difference(LAYER, True, f"the members of `{old.name}_options` stand elsewhere: initialisers that list them set other ones")

