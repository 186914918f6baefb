"""What an edit does to torch programs that were traced or saved, by torch's own rules for function schemas.

Backward: a call that was right for the old schema is right for the new one. Forward: a program of today runs where the old
schema is registered. torch checks the same with ``is_backward_compatible_with`` and ``check_forward_compatible_with``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..model import Argument, List, Optional, Return, Schema, Type
from ..printing import format_type
from ..torch_types import is_subtype, underlying
from . import Difference, Edit


def differences(edit: Edit) -> Iterator[Difference]:
    old, new = edit.old.schema, edit.new.schema
    if (edit.old_library.namespace, old.name, old.overload) != (edit.new_library.namespace, new.name, new.overload):
        text = f"`{edit.old_library.namespace}::{old.name}` is called `{edit.new_library.namespace}::{new.name}`"
        yield Difference("torch backward", True, text)
        yield Difference("torch forward", True, text)
        return
    for text in backward(old, new):
        yield Difference("torch backward", True, text)
    for text in forward(old, new):
        yield Difference("torch forward", True, text)


def backward(old: Schema, new: Schema) -> Iterator[str]:
    """Why calls of the old schema are not right for the new one. torch does not count a new output argument."""
    if len(old.returns) != len(new.returns):
        yield f"it returns {len(new.returns)} values, it returned {len(old.returns)}"
    else:
        for i, (was, now) in enumerate(zip(old.returns, new.returns)):
            if not _is_backward(was, now):  # of a result, the old one has to take the new one
                yield f"result {i} is `{format_type(now.type)}`, it was `{format_type(was.type)}`"
    if len(new.args) < len(old.args):
        gone = [f"`{a.name}`" for a in old.args if a.name not in {b.name for b in new.args}]
        yield f"{', '.join(gone) or 'an argument'} is gone"
        return
    yield from _arguments(old, new, _first_out(old), _is_backward)
    for arg in new.args[_first_out(old) : _first_out(new)]:
        if arg.default is None:
            yield f"the new argument `{arg.name}` has no default"


def forward(old: Schema, new: Schema) -> Iterator[str]:
    """Why calls of the new schema are not right for the old one."""
    if len(old.returns) != len(new.returns):
        yield f"it returns {len(new.returns)} values, it returned {len(old.returns)}"
    if len(old.args) - _first_out(old) != len(new.args) - _first_out(new):
        yield "the output arguments are not as many"
    yield from _arguments(old, new, min(_first_out(old), _first_out(new)), _is_forward)
    for arg in new.args[_first_out(old) : _first_out(new)]:
        if arg.default is None:
            yield f"the new argument `{arg.name}` has no default"
        elif isinstance(arg.default.value, tuple):
            yield f"the default of the new argument `{arg.name}` is a list"


def _first_out(schema: Schema) -> int:
    """Where the output arguments begin: keyword-only and written."""
    return next((i for i, a in enumerate(schema.args) if a.kw_only and a.is_written), len(schema.args))


def _arguments(old: Schema, new: Schema, count: int, is_fit: Callable[[Argument, Argument], bool]) -> Iterator[str]:
    """The first count arguments one by one, then the output arguments one by one."""
    pairs = [*zip(new.args[:count], old.args[:count]), *zip(new.args[_first_out(new) :], old.args[_first_out(old) :])]
    yield from (_why(now, was) for now, was in pairs if not is_fit(now, was))


def _why(now: Argument, was: Argument) -> str:
    if now.name != was.name:
        return f"`{now.name}` stands where `{was.name}` stood"
    if now.alias != was.alias:
        return f"the alias mark of `{now.name}` is another one"
    if now.kw_only and not was.kw_only:
        return f"`{now.name}` has become keyword-only"
    if _value(now) != _value(was):
        return f"the default of `{now.name}` {'is gone' if now.default is None else 'is another one'}"
    return f"`{now.name}` is `{format_type(now.type)}`, it was `{format_type(was.type)}`"


def _is_backward(now: Argument | Return, was: Argument | Return) -> bool:
    if isinstance(now, Argument) and isinstance(was, Argument):
        if now.kw_only and not was.kw_only or was.default is not None and _value(was) != _value(now):
            return False
    return _is_same_place(now, was) and _fits(was.type, now.type)


def _is_forward(now: Argument, was: Argument) -> bool:
    if now.kw_only and not was.kw_only or _value(was) != _value(now):
        return False
    return _is_same_place(now, was) and _fits(now.type, was.type)


def _is_same_place(a: Argument | Return, b: Argument | Return) -> bool:
    return a.name == b.name and a.alias == b.alias and _size(a.type) == _size(b.type)


def _fits(a: Type, b: Type) -> bool:
    """Whether every value of type a is one of type b, as torch sees it."""
    return is_subtype(_without_size(underlying(a)), _without_size(underlying(b)))


def _without_size(t: Type) -> Type:
    """torch keeps the size of a list beside its type."""
    if isinstance(t, Optional):
        return Optional(_without_size(t.elem))
    return List(_without_size(t.elem)) if isinstance(t, List) else t


def _size(t: Type) -> int | None:
    t = t.elem if isinstance(t, Optional) else t
    return t.size if isinstance(t, List) else None


def _value(arg: Argument) -> object:
    """The default as torch compares it, types included."""
    if arg.default is None:
        return None
    value = arg.default.value
    t = arg.type.elem if isinstance(arg.type, Optional) else arg.type
    if isinstance(t, List) and t.size is not None and value is not None and not isinstance(value, tuple):
        value = (value,) * t.size
    return type(value), value, tuple(map(type, value)) if isinstance(value, tuple) else ()
