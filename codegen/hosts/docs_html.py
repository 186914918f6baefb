"""The Markdown of documentation comments as HTML: paragraphs, indented code, lists, tables, `code`, **bold** and *emphasis*. Anything
else is text, and all text is escaped: a schema cannot put markup into the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from html import escape
from itertools import groupby

_CODE = re.compile(r"`([^`]+)`")
_ITEM = re.compile(r"[-*] +")


@lru_cache(maxsize=4096)
def inline(text: str) -> str:
    """One line or cell. Operators that are like one another have many in common."""
    parts = _CODE.split(text)  # text and code in turn
    return "".join(f"<code>{escape(part)}</code>" if i % 2 else _emphasised(escape(part)) for i, part in enumerate(parts))


def _emphasised(text: str) -> str:
    if "*" not in text:
        return text
    text = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)
    return re.sub(r"(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])", r"<em>\1</em>", text)


def blocks(markdown: str) -> str:
    return "\n".join(html for lines in _paragraphs(markdown) for html in _block(lines))


def _paragraphs(markdown: str) -> Iterator[list[str]]:
    for is_empty, lines in groupby(markdown.split("\n"), key=lambda line: not line.strip()):
        if not is_empty:
            yield list(lines)


def _block(lines: list[str]) -> Iterator[str]:
    """The lines between two empty ones: runs of code, of table rows, of list items and of prose."""
    for kind, run in groupby(_kinds(lines), key=lambda pair: pair[0]):
        texts = [text for _, text in run]
        if kind == "code":
            indent = min(len(text) - len(text.lstrip()) for text in texts)
            yield f"<pre>{escape(chr(10).join(text[indent:] for text in texts))}</pre>"
        elif kind == "table":
            yield _table(texts)
        elif kind == "list":
            yield "<ul>" + "".join(f"<li>{inline(item)}</li>" for item in _items(texts)) + "</ul>"
        else:
            yield f"<p>{inline(' '.join(text.strip() for text in texts))}</p>"


def _kinds(lines: list[str]) -> Iterator[tuple[str, str]]:
    kind = "prose"
    for line in lines:
        if line.startswith("    ") and kind in ("prose", "code") and (kind == "code" or line is lines[0]):
            kind = "code"
        elif line.startswith("|"):
            kind = "table"
        elif _ITEM.match(line):
            kind = "list"
        elif kind != "list" or not line.startswith(" "):
            kind = "prose"
        yield kind, line


def _items(lines: list[str]) -> list[str]:
    """List items, each with the lines that continue it."""
    items: list[str] = []
    for line in lines:
        start = _ITEM.match(line)
        if start:
            items.append(line[start.end() :])
        else:
            items[-1] += " " + line.strip()
    return items


def _table(lines: list[str]) -> str:
    rows = [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))] for line in lines]
    has_head = len(rows) > 1 and all(set(cell) <= set("-: ") for cell in rows[1])
    head = "<tr>" + "".join(f"<th>{inline(cell)}</th>" for cell in rows[0]) + "</tr>" if has_head else ""
    body = "".join("<tr>" + "".join(f"<td>{inline(cell)}</td>" for cell in row) + "</tr>" for row in rows[2 if has_head else 0 :])
    return f'<div class="wide"><table>{head}{body}</table></div>'


def cell(text: str) -> str:
    """A cell of a Markdown table as the docs host makes it."""
    return inline(text.replace("\\|", "|"))
