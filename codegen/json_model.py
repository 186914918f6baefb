"""The model as JSON: every dataclass an object with its ``kind``, every field under its own name. Places are left out."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from enum import Enum

from .model import Library, Schema, Span

VERSION = 1  # grows when the meaning of a field changes


def library_json(library: Library) -> str:
    whole = {"format": VERSION, **_value(library)}  # type: ignore[dict-item]
    return json.dumps(whole, indent=2, ensure_ascii=True) + "\n"


def _value(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        out: dict[str, object] = {"kind": type(value).__name__}
        for f in fields(value):
            part = getattr(value, f.name)
            if not isinstance(part, Span):
                out[f.name] = _value(part)
        if isinstance(value, Schema):
            out["canonical"] = str(value)
        return out
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, (tuple, list)):
        return [_value(v) for v in value]
    return value
