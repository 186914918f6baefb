"""Immutable records: ``@record`` makes of an annotated class what ``dataclass(frozen=True, slots=True)`` would.

A dataclass compiles six functions of its own, which takes a millisecond; for the hundred classes here that is longer than it takes to parse a
schema, and a run of the generator should not be noticed. Here ``__init__`` alone is compiled, and the others are shared.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: object) -> Callable[[Any], Any]:
        return lambda function: function


_Record = TypeVar("_Record")


class _Field:
    def __init__(self, compare: bool):
        self.compare = compare


def field(*, compare: bool = True) -> Any:
    """As the value of a member: whether it counts when records are compared."""
    return _Field(compare)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[_Record]) -> type[_Record]:
    hints = dict(cls.__annotations__)
    names = tuple(name for name, hint in hints.items() if not str(hint).startswith("ClassVar"))
    given = {name: vars(cls)[name] for name in names if name in vars(cls)}
    compared = [name for name in names if not isinstance(given.get(name), _Field) or given[name].compare]
    defaults = {name: value for name, value in given.items() if not isinstance(value, _Field)}

    left_out = {*names, "__dict__", "__weakref__", "__annotate__", "__annotate_func__", "__annotations_cache__"}
    namespace = {name: value for name, value in vars(cls).items() if name not in left_out}
    shared = {"__eq__": _equal, "__hash__": _hash, "__repr__": _repr, "__setattr__": _refuse, "__delattr__": _refuse}
    namespace |= {name: function for name, function in shared.items() if name not in vars(cls) or name == "__hash__"}
    namespace |= {
        "__annotations__": hints,
        "__slots__": names,
        "__match_args__": names,
        "__init__": _initialiser(names, defaults),
        "_key": staticmethod(attrgetter(*compared) if compared else _no_key),
    }
    return type(cls.__name__, cls.__bases__, namespace)


def fields(kind: type | object) -> tuple[str, ...]:
    """The names of the members of a record, or of a class of records."""
    names: tuple[str, ...] = getattr(kind, "__match_args__", ())
    return names


def is_record(value: object) -> bool:
    return hasattr(value, "_key") and not isinstance(value, type)


def replace(value: _Record, /, **changes: object) -> _Record:
    """A copy with other values for some members."""
    return type(value)(**{name: changes[name] if name in changes else getattr(value, name) for name in fields(value)})


def _initialiser(names: tuple[str, ...], defaults: dict[str, object]) -> Callable[..., None]:
    parameters = ", ".join(f"{name}=_defaults[{name!r}]" if name in defaults else name for name in names)
    body = "".join(f"\n    _set(self, {name!r}, {name})" for name in names) or "\n    pass"
    made: dict[str, Callable[..., None]] = {}
    exec(f"def __init__(self, {parameters}):{body}", {"_defaults": defaults, "_set": object.__setattr__}, made)
    return made["__init__"]


def _no_key(_: object) -> tuple[()]:
    return ()


def _equal(self: Any, other: Any) -> bool:
    if self is other:
        return True
    return bool(self._key(self) == self._key(other)) if type(self) is type(other) else NotImplemented


def _hash(self: Any) -> int:
    return hash(self._key(self))


def _repr(self: Any) -> str:
    return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in fields(self))})"


def _refuse(self: Any, name: str, *_: object) -> NoReturn:
    raise AttributeError(f"{type(self).__name__} is a record: {name} cannot change")
