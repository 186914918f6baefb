#!/usr/bin/env python3
"""A picture of the JSON that cuda.py writes: how near to the limit each section comes, beside DeepGEMM.

    python tests/bench/plot_cuda.py results.json results.svg

A bar is the geometric mean, over the rows of a section, of limit / time, so that a bar that reaches 1 is as fast as the card allows (cuda.py
says how the limit is measured). Beside the bars stand this figure and the geometric mean of our time by DeepGEMM's: below 1, ours is faster.
Sections without a limit, host times for example, are left to the report of cuda.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP = 1040, 360, 220, 84  # the bars lie between LEFT and WIDTH - RIGHT
SECTION, BAR = 40, 13  # heights
TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)

# Colours of both modes have a contrast of at least 3 to 1 with their ground.
STYLE = """
    text { font: 13px system-ui, sans-serif; fill: #24292f }
    .title { font-size: 16px; font-weight: 600 }
    .note { fill: #57606a; font-size: 12px }
    .ours { fill: #0969da }
    .table { fill: #bc6c00 }
    .grid { stroke: #d0d7de }
    .limit { stroke: #57606a; stroke-width: 2 }
    .ground { fill: #ffffff }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 }
      .note { fill: #9198a1 }
      .ours { fill: #4493f8 }
      .table { fill: #d29922 }
      .grid { stroke: #3d444d }
      .limit { stroke: #9198a1 }
      .ground { fill: #0d1117 }
    }
"""


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'  <text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def bar(x: float, y: float, width: float, kind: str, title: str) -> str:
    return f'  <rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{BAR}" rx="2" class="{kind}"><title>{escape(title)}</title></rect>'


def line(x: float, top: float, bottom: float, kind: str) -> str:
    return f'  <line x1="{x:.1f}" y1="{top:.1f}" x2="{x:.1f}" y2="{bottom:.1f}" class="{kind}"/>'


def share(rows: Sequence[dict[str, Any]], time: str) -> float:
    """Of the limit."""
    return statistics.geometric_mean(row["limit_us"] / row[time] for row in rows)


def section_lines(name: str, rows: Sequence[dict[str, Any]], y: float, scale: float) -> list[str]:
    """The label, bars and figures of a section whose top is at y."""
    known = [row for row in rows if row["baseline_us"]]
    ours = share(known or rows, "us")
    lines = [
        text(LEFT - 10, y + SECTION / 2 + 1, f"{name} ({len(known or rows)})", anchor="end"),
        bar(LEFT, y + 5, ours * scale, "ours", f"{name}: {ours:.2f} of the limit"),
    ]
    if known:
        theirs = share(known, "baseline_us")
        lines.append(bar(LEFT, y + 5 + BAR + 2, theirs * scale, "table", f"{name}: DeepGEMM {theirs:.2f} of the limit"))
        times = statistics.geometric_mean(row["us"] / row["baseline_us"] for row in known)
        figure = f"{ours:.2f}, {times:.2f} x DeepGEMM's time"
    else:
        figure = f"{ours:.2f}"
    return [*lines, text(WIDTH - RIGHT + 12, y + SECTION / 2 + 1, figure)]


def picture(results: dict[str, Any]) -> str:
    rows = [row for row in results["rows"] if row["limit_us"]]
    sections: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        sections.setdefault(row["section"], []).append(row)
    greatest = max([1.0, *(share(own, "us") for own in sections.values())])
    known = [row for row in rows if row["baseline_us"]]
    for name in dict.fromkeys(row["section"] for row in known):
        greatest = max(greatest, share([row for row in known if row["section"] == name], "baseline_us"))
    scale = (WIDTH - LEFT - RIGHT) / greatest
    bottom = TOP + SECTION * len(sections)
    height = bottom + 48
    title = f"{results['device']}: share of the limit, geometric mean per section"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
        f"  <title>{escape(title)}</title>",
        f"  <style>{STYLE}  </style>",
        f'  <rect width="{WIDTH}" height="{height}" class="ground"/>',
        text(20, 28, title, "title"),
        text(20, 48, f"commit {results['commit']}, {results['date']}, CUDA {results['cuda']}, torch {results['torch']}; rows in parentheses", "note"),
        bar(LEFT, 58, BAR, "ours", "this library"),
        text(LEFT + BAR + 6, 69, "this library"),
    ]
    if known:
        lines += [bar(LEFT + 110, 58, BAR, "table", "DeepGEMM"), text(LEFT + 110 + BAR + 6, 69, "DeepGEMM, from the table of its times")]
    for tick in TICKS:
        x = LEFT + tick * scale
        lines += [line(x, TOP, bottom, "limit" if tick == 1 else "grid"), text(x, bottom + 18, f"{tick:g}", "note", "middle")]
    lines.append(text(LEFT + scale, bottom + 36, "limit of the card", "note", "middle"))
    for i, (name, own) in enumerate(sections.items()):
        lines += section_lines(name, own, TOP + i * SECTION, scale)
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", help="what cuda.py --json wrote")
    parser.add_argument("svg", help="file to write")
    args = parser.parse_args()
    with open(args.json, encoding="utf-8") as file:
        results = json.load(file)
    if not any(row["limit_us"] for row in results["rows"]):
        parser.error(f"{args.json} has no row that was measured and has a limit")
    with open(args.svg, "w", encoding="utf-8") as file:
        file.write(picture(results))


if __name__ == "__main__":
    main()
