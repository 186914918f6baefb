"""Completions for shells, made from the parser of the arguments: they cannot say anything else than ``--help``."""

from __future__ import annotations

import argparse

from .diagnostics import CODES, RULES
from .record import record


@record
class Verb:
    name: str
    help: str
    flags: tuple[str, ...]
    values: dict[str, tuple[str, ...]]  # of flags that take one of some words
    words: tuple[str, ...]  # of the positional argument


def script(shell: str, command: str, parser: argparse.ArgumentParser) -> str:
    verbs = _verbs(parser)
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](command, verbs)


def _verbs(parser: argparse.ArgumentParser) -> list[Verb]:
    actions = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    helps = {a.dest: a.help or "" for a in actions._choices_actions}
    found = []
    for name, sub in actions.choices.items():
        flags = [flag for a in sub._actions for flag in a.option_strings if flag.startswith("--")]
        values = {flag: tuple(map(str, a.choices)) for a in sub._actions if a.choices for flag in a.option_strings}
        words = [str(w) for a in sub._actions if not a.option_strings for w in a.choices or ()]
        if name == "explain":
            words = [*CODES, *RULES.values()]
        found.append(Verb(name, helps[name], tuple(flags), values, tuple(words)))
    return found


def _bash(command: str, verbs: list[Verb]) -> str:
    function = f"_{command.replace('-', '_')}"
    cases = "".join(
        f"    {v.name}) words={_quoted(' '.join([*v.flags, *v.words]))} ;;\n" for v in verbs
    )
    values = dict(pair for v in verbs for pair in v.values.items())
    flag_cases = "".join(f"    {flag}) words={_quoted(' '.join(words))} ;;\n" for flag, words in values.items())
    return f"""\
{function}() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} words=
  COMPREPLY=()
  case $previous in
{flag_cases}    --schema|--out|--depfile|--against) COMPREPLY=($(compgen -f -- "$current")); return ;;
  esac
  if [ -z "$words" ]; then
    if [ "$COMP_CWORD" -eq 1 ]; then
      words={_quoted(' '.join(['--help', *(v.name for v in verbs)]))}
    else
      case ${{COMP_WORDS[1]}} in
{_indented(cases, 4)}      esac
    fi
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F {function} {command}
"""


def _zsh(command: str, verbs: list[Verb]) -> str:
    names = "".join(f"    {_quoted(f'{v.name}:{v.help}')}\n" for v in verbs)
    cases = ""
    for v in verbs:
        specs = [f"{flag}:value:({' '.join(v.values[flag])})" if flag in v.values else flag for flag in v.flags]
        if v.words:
            specs.append(f"*:word:({' '.join(v.words)})")
        else:
            specs.append("*:file:_files")
        cases += f"    {v.name}) _arguments {' '.join(_quoted(s) for s in specs)} ;;\n"
    return f"""\
#compdef {command}
_{command.replace('-', '_')}() {{
  local -a verbs=(
{names}  )
  if (( CURRENT == 2 )); then
    _describe 'verb' verbs
    return
  fi
  local verb=$words[2]
  shift words
  (( CURRENT-- ))
  case $verb in
{cases}  esac
}}
compdef _{command.replace('-', '_')} {command}
"""


def _fish(command: str, verbs: list[Verb]) -> str:
    text = f"complete -c {command} -f -n __fish_use_subcommand -l help -d 'show the manual'\n"
    for v in verbs:
        text += f"complete -c {command} -f -n __fish_use_subcommand -a {v.name} -d {_quoted(v.help)}\n"
    for v in verbs:
        seen = f"'__fish_seen_subcommand_from {v.name}'"
        for flag in v.flags:
            words = f" -x -a {_quoted(' '.join(v.values[flag]))}" if flag in v.values else ""
            text += f"complete -c {command} -n {seen} -l {flag.removeprefix('--')}{words}\n"
        if v.words:
            text += f"complete -c {command} -f -n {seen} -a {_quoted(' '.join(v.words))}\n"
    return text


def _quoted(text: str) -> str:
    """A word of a shell, in single quotes."""
    return "'" + text.replace("'", "'\\''") + "'"


def _indented(text: str, columns: int) -> str:
    return "".join(" " * columns + line for line in text.splitlines(keepends=True))
