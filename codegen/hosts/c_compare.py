"""What an edit of an operator does to C programs: those that are compiled, and those that are compiled anew."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Library, Operator
from ..record import record
from . import Difference, Edit, trading_places
from .c import initialiser, option_member, parameter, result_parameters
from .c_expr import known


@record
class Signature:
    """The C functions of an operator, as far as callers depend on them."""

    name: str
    parameters: tuple[tuple[str, str], ...]  # type and name, options and context left out
    members: tuple[tuple[str, str], ...]  # of the options struct
    defaults: tuple[str, ...]
    has_out: bool


def signature(library: Library, op: Operator) -> Signature:
    p = library.prefix
    required = [a for a in op.schema.args if a.default is None]
    defaulted = [a for a in op.schema.args if a.default is not None]
    results = [text for r, c in zip(op.schema.returns, op.results) for text in result_parameters(p, c.name, known(r.type))]
    return Signature(
        name=f"{p}_{op.symbol}",
        parameters=tuple(_split(text) for text in [*(parameter(p, a) for a in required), *results]),
        members=tuple(_split(option_member(p, a)) for a in defaulted),
        defaults=tuple(initialiser(p, a) or "" for a in defaulted),
        has_out=any(known(r.type).form == "tensor" for r in op.schema.returns),
    )


def _split(declaration: str) -> tuple[str, str]:
    """``const dg_tensor *a`` to its type and its name; the length of an array belongs to the type."""
    head, bracket, length = declaration.partition("[")
    at = max(head.rfind(" "), head.rfind("*")) + 1
    return head[:at].strip() + bracket + length, head[at:]


def differences(edit: Edit) -> Iterator[Difference]:
    if edit.old.returns_views or edit.new.returns_views:
        if not edit.old.returns_views:
            yield from _both(f"`{edit.old.symbol}` returns views now, so C does not have it")
        return
    old, new = signature(edit.old_library, edit.old), signature(edit.new_library, edit.new)
    if old.name != new.name:
        yield from _both(f"`{old.name}` is called `{new.name}`")
        return
    yield from _parameters(old, new)
    yield from _options(old, new)


def _both(text: str) -> Iterator[Difference]:
    """What breaks programs as they are, and when they are compiled again."""
    yield Difference("C ABI", True, text)
    yield Difference("C source", True, text)


def _parameters(old: Signature, new: Signature) -> Iterator[Difference]:
    old_types, new_types = [t for t, _ in old.parameters], [t for t, _ in new.parameters]
    if [_unqualified(t) for t in old_types] != [_unqualified(t) for t in new_types]:
        was, now = ", ".join(old_types) or "nothing", ", ".join(new_types) or "nothing"
        yield from _both(f"`{old.name}` takes {now} behind the context, it took {was}")
    else:
        for (was, name), now in zip(old.parameters, new_types):
            if was.startswith("const ") and not now.startswith("const "):
                yield Difference("C source", True, f"`{name}` is no longer const: a caller with a const pointer does not compile")
        if moved := trading_places([name for _, name in old.parameters], [name for _, name in new.parameters]):
            yield from _both(f"`{old.name}` compiles as before, and takes one for another: {moved}")
    if bool(old.members) != bool(new.members):
        word = "has an options parameter now" if new.members else "has no options parameter any more"
        yield from _both(f"`{old.name}` {word}")
    if old.has_out and not new.has_out:
        yield from _both(f"`{old.name}_out` is gone")


def _unqualified(ctype: str) -> str:
    return ctype.removeprefix("const ")


def _options(old: Signature, new: Signature) -> Iterator[Difference]:
    if not old.members or not new.members:
        return
    old_types, new_types = [t for t, _ in old.members], [t for t, _ in new.members]
    moved = trading_places([name for _, name in old.members], [name for _, name in new.members])
    if moved or old_types != new_types[: len(old_types)]:
        yield Difference("C ABI", True, f"the members of `{old.name}_options` move: compiled programs set the wrong ones")
    elif len(new.members) > len(old.members):
        yield Difference("C ABI", False, f"`{old.name}_options` grows at its end")
    now = {name: ctype for ctype, name in new.members}
    for ctype, name in old.members:
        if name not in now:
            yield Difference("C source", True, f"`{old.name}_options` has no member `{name}` any more")
        elif now[name] != ctype:
            yield Difference("C source", True, f"`{name}` of `{old.name}_options` is a `{now[name]}`, it was a `{ctype}`")
    defaults = dict(zip([name for _, name in new.members], new.defaults))
    for (_, name), text in zip(old.members, old.defaults):
        if name in defaults and defaults[name] != text:
            message = f"compiled programs that use the initialiser keep the old default of `{name}`"
            yield Difference("C ABI", False, message)
