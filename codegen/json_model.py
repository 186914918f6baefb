"""What the verbs ``json`` and ``parse`` print."""

from __future__ import annotations

import json
import types
import typing
from enum import Enum

from . import model as m
from .parse import check_string
from .printing import format_type
from .record import fields, is_record

VERSION = 1  # grows when the meaning of a field changes


def library_json(library: m.Library) -> str:
    """The model: every record an object with its ``kind``, every field under its own name. Places are left out."""
    whole = {"format": VERSION, **_value(library)}  # type: ignore[dict-item]
    return json.dumps(whole, indent=2, ensure_ascii=True) + "\n"


def _value(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if is_record(value):
        out: dict[str, object] = {"kind": type(value).__name__}
        for name in fields(value):
            part = getattr(value, name)
            if not isinstance(part, m.Span):
                out[name] = _value(part)
        if isinstance(value, m.Schema):
            out["canonical"] = str(value)
        return out
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, (tuple, list)):
        return [_value(v) for v in value]
    return value


# ---- its JSON Schema -----------------------------------------------------------------------------------------


def json_schema() -> str:
    """What ``library_json`` prints, in the words of JSON Schema: it follows from the annotations of the model."""
    definitions: dict[str, object] = {}
    _define(m.Library, definitions)
    library = typing.cast("dict[str, typing.Any]", definitions.pop("Library"))
    library["properties"] = {"format": {"const": VERSION}, **library["properties"]}
    library["required"] = ["format", *library["required"]]
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The model of a schema file, as `python -m codegen json` prints it",
        **library,
        "$defs": dict(sorted(definitions.items())),
    }
    return json.dumps(whole, indent=2, ensure_ascii=True) + "\n"


def _define(kind: type, definitions: dict[str, object]) -> None:
    """Adds the schema of a record, and of those that its fields have."""
    if kind.__name__ in definitions:
        return
    definitions[kind.__name__] = {}  # so that a type may contain itself
    hints = typing.get_type_hints(kind, vars(m))
    properties: dict[str, object] = {"kind": {"const": kind.__name__}}
    for name in fields(kind):
        if hints[name] is not m.Span:
            properties[name] = _schema_of(hints[name], definitions)
    if kind is m.Schema:
        properties["canonical"] = {"type": "string"}
    definitions[kind.__name__] = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}


def _schema_of(hint: typing.Any, definitions: dict[str, object]) -> object:
    """The schema of a value of an annotated type."""
    if isinstance(hint, (str, typing.ForwardRef)):
        hint = typing.get_type_hints(type("_", (), {"__annotations__": {"x": hint}}), vars(m))["x"]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema_of(arg, definitions) for arg in args]}
    if origin is tuple:
        if args[-1] is Ellipsis:
            return {"type": "array", "items": _schema_of(args[0], definitions)}
        items = [_schema_of(arg, definitions) for arg in args]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if hint is object:  # a default, or a value that a contract names
        return {}
    if issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    _define(hint, definitions)
    return {"$ref": f"#/$defs/{hint.__name__}"}


# ---- what the verb `parse` prints ----------------------------------------------------------------------------


def parse_line(line: bytes, *, as_torch: bool) -> str:
    """The answer to one line of input: a schema as a JSON string."""
    try:
        text = json.loads(line)
    except (ValueError, RecursionError):
        text = None
    if not isinstance(text, str):
        return json.dumps({"ok": False, "error": "not a JSON string"})
    schema, report = check_string(text, as_torch=as_torch)
    if schema is not None:
        return json.dumps(schema_fields(schema))
    first = report.diagnostics()[0]
    return json.dumps({"ok": False, "error": first.message, "code": first.code, "column": first.span.column})


def schema_fields(s: m.Schema) -> dict[str, object]:
    """A schema as a JSON object."""
    return {
        "ok": True,
        "name": f"{s.namespace}::{s.name}" if s.namespace else s.name,
        "overload": s.overload,
        "args": [_argument_fields(a) for a in s.args],
        "returns": [_common_fields(r) for r in s.returns],
        "vararg": s.vararg,
        "varret": s.varret,
        "canonical": str(s),
    }


def _common_fields(a: m.Argument | m.Return) -> dict[str, object]:
    return {
        "name": a.name,
        "type": format_type(a.type),
        "alias": _alias_fields(a.alias),
        "write": a.alias is not None and a.alias.write,
    }


def _argument_fields(a: m.Argument) -> dict[str, object]:
    default = None if a.default is None else _value_fields(a.default)
    return {**_common_fields(a), "has_default": a.default is not None, "default": default, "kw_only": a.kw_only}


def _alias_fields(alias: m.Alias | None) -> dict[str, object] | None:
    if alias is None:
        return None
    inner = alias.contained
    return {
        "before": list(alias.before),
        "after": list(alias.after),
        "write": alias.write,
        "contained": None if inner is None else {"before": list(inner.before), "after": list(inner.after), "write": inner.write},
    }


def _value_fields(default: m.Default) -> object:
    def fields(value: object) -> object:
        if isinstance(value, tuple):
            return [fields(v) for v in value]
        return {"complex": [value.real, value.imag]} if isinstance(value, complex) else value

    return {"device": default.value} if default.is_device else fields(default.value)
