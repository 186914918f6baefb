"""What ``check`` says when outputs are not current."""

from __future__ import annotations

import argparse
import shlex
from difflib import unified_diff

from .emit import Change
from .stamp import COMMAND, HOST_NAMES


def diff(out: str, found: list[Change]) -> str:
    """A unified diff from the files on disk to what generate would write."""
    text = ""
    for change in found:
        path = f"{out}/{change.path}"
        before = "/dev/null" if change.old is None else path
        after = "/dev/null" if change.new is None else path
        text += diff_of(before, change.old, after, change.new)
    return text


def diff_of(before: str, old: bytes | None, after: str, new: bytes | None) -> str:
    """The unified diff of two files; None is one that is not there."""
    text = ""
    for line in unified_diff(_lines(old), _lines(new), before, after):
        text += line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"
    return text


def _lines(data: bytes | None) -> list[str]:
    text = (data or b"").decode("utf-8", "backslashreplace")
    return [line + "\n" for line in text.split("\n")[:-1]] + [text.rpartition("\n")[2]] * (not text.endswith("\n") and text != "")


def command(options: argparse.Namespace) -> str:
    """The command that brings the outputs up to date."""
    words = [*COMMAND.split(), "generate"]
    for name in ("schema", "out", "namespace", "prefix"):
        value = getattr(options, name)
        if value:
            words += [f"--{name}", value]
    if options.hosts != HOST_NAMES:
        words += ["--hosts", ",".join(options.hosts)]
    return shlex.join(words)
