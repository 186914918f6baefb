"""The version of the distribution for its build backend: `__version__` of the package, from the two places where its parts stand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[3]


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, str]:
    surface = _found(r'^__version__ = f"([0-9.]+)\+c\{RELEASE\}"$', SOURCE / "bindings/python/deep_gemm/__init__.py")
    release = _found(r"^version ([0-9]+\.[0-9]+\.[0-9]+)", SOURCE / "schema/ops.schema")
    return {"version": f"{surface}+c{release}"}


def _found(pattern: str, file: Path) -> str:
    match = re.search(pattern, file.read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise ValueError(f"{file} has no line that matches {pattern}")
    return match[1]
