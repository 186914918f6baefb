"""Diagnostics as a SARIF 2.1.0 log, which editors and CI services read to annotate lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping

from .diagnostics import CODES, RULES, Diagnostic
from .model import Span

_STALE = "stale"


def log(found: Iterable[Diagnostic], stale: Iterable[str] = (), mend: str = "") -> str:
    """stale: outputs that are not what generate would write, and mend: the command that writes them."""
    results: list[Mapping[str, object]] = [_result(d) for d in found]
    results += [_stale(path, mend) for path in stale]
    used = {str(r["ruleId"]) for r in results}
    rules = [_rule(code, text) for code, text in CODES.items() if code in used]
    if _STALE in used:
        rules.append(_rule(_STALE, "A generated file that is not what generate would write."))
    run = {
        "tool": {"driver": {"name": "codegen", "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    whole = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return json.dumps(whole, indent=2, ensure_ascii=True) + "\n"


def _rule(code: str, text: str) -> dict[str, object]:
    rule: dict[str, object] = {"id": code, "shortDescription": {"text": text.split(". ")[0]}, "fullDescription": {"text": text}}
    return {**rule, "name": RULES[code]} if code in RULES else rule


def _result(d: Diagnostic) -> dict[str, object]:
    loose = [note.text for note in d.notes if note.span is None]
    text = "\n".join([d.message, *([f"fix: {d.fix}"] if d.fix else []), *(f"note: {note}" for note in loose)])
    result: dict[str, object] = {
        "ruleId": d.code,
        "level": d.severity,
        "message": {"text": text},
        "locations": [_location(d.span)],
    }
    related = [{**_location(note.span), "message": {"text": note.text}} for note in d.notes if note.span is not None]
    return {**result, "relatedLocations": related} if related else result


def _location(span: Span) -> dict[str, object]:
    region = {"startLine": span.line, "startColumn": span.column, "endLine": span.line, "endColumn": span.end}
    return {"physicalLocation": {"artifactLocation": {"uri": _uri(span.file)}, "region": region}}


def _stale(path: str, mend: str) -> dict[str, object]:
    return {
        "ruleId": _STALE,
        "level": "error",
        "message": {"text": f"not what generate would write\nfix: {mend}"},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": _uri(path)}}}],
    }


def _uri(path: str) -> str:
    from urllib.parse import quote

    text = quote(path.replace(os.sep, "/"))
    return f"file://{text}" if text.startswith("/") else text
