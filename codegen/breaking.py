"""``breaking``: what the edits between two versions of a schema do to callers, host by host, and which release that asks for.

The hosts say what becomes of their callers (``Host.compare``); what contracts do to all of them alike is decided here.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence

from . import model as m
from .diagnostics import Report
from .hosts import Difference, Edit, Host
from .printing import format_argument
from .record import record
from .schema_file import parse_file
from .stamp import GeneratorError

SEVERITIES = ("none", "patch", "minor", "major")
BEHAVIOUR = "behaviour"  # the layer of what all hosts share: contracts, defaults, what is implemented


@record
class Change:
    """What happened to one operator, or to the library as a whole."""

    subject: str
    edits: tuple[str, ...]
    differences: tuple[Difference, ...]
    severity: str


def compare(old: m.Library, new: m.Library, hosts: list[Host]) -> list[Change]:
    """Every operator that differs, in the order of the new file; those that are gone come last."""
    found = []
    header = _header_edits(old, new)
    if header:
        found.append(Change("the library", tuple(header), (), _severity(header, ())))
    before = {op.symbol: op for op in old.operators}
    after = {op.symbol: op for op in new.operators}
    for symbol, op in after.items():
        was = before.get(symbol)
        if was is None:
            found.append(Change(symbol, ("new",), (Difference("torch forward", False, "older releases do not have it"),), "minor"))
            continue
        edits = tuple(_edits(was, op))
        differences = [d for host in hosts for d in host.compare(Edit(old, new, was, op))] + list(_behaviour(was, op))
        if edits or differences:
            found.append(Change(symbol, edits, tuple(differences), _severity(edits, differences)))
    for symbol in before:
        if symbol not in after:
            gone = [Difference(layer, True, "it is gone") for layer in ("C ABI", "C source", "C++ source", "torch backward", "torch C++", "Python")]
            found.append(Change(symbol, ("removed",), tuple(gone), "major"))
    return found


def _severity(edits: Sequence[str], differences: Sequence[Difference]) -> str:
    """A release of today need not run on an older one, so that forward compatibility alone breaks nobody. Typed handles of torch break
    with every new argument, defaulted or not: whoever writes one down has to look at each release."""
    if any(d.breaks and d.layer not in ("torch forward", "torch C++") for d in differences):
        return "major"
    if any(d.layer != "stub" or d.breaks for d in differences):
        return "minor"
    return "patch" if differences or edits else "none"


def worst(changes: list[Change]) -> str:
    return max((c.severity for c in changes), key=SEVERITIES.index, default="none")


def next_version(version: str, severity: str) -> str:
    """Semantic versioning; before 1.0.0 the second number says what breaks."""
    major, minor, patch = (int(part) for part in version.split("."))
    if severity == "none":
        return version
    if severity == "major":
        return f"0.{minor + 1}.0" if major == 0 else f"{major + 1}.0.0"
    if severity == "minor" and major > 0:
        return f"{major}.{minor + 1}.0"
    return f"{major}.{minor}.{patch + 1}"


# ---- edits ---------------------------------------------------------------------------------------------------


def _header_edits(old: m.Library, new: m.Library) -> list[str]:
    pairs = [("namespace", old.namespace, new.namespace), ("prefix", old.prefix, new.prefix)]
    return [f"the {what} is `{now}`, it was `{was}`" for what, was, now in pairs if was != now]


def _edits(old: m.Operator, new: m.Operator) -> Iterator[str]:
    """The edits of a signature and of what stands above it, one sentence each."""
    yield from _argument_edits(old.schema, new.schema)
    was = [format_argument(r) for r in old.schema.returns]
    now = [format_argument(r) for r in new.schema.returns]
    if was != now:
        yield f"returns ({', '.join(now)}), it was ({', '.join(was)})"
    contracts = {c.name: c for c in old.contracts}
    for contract in new.contracts:
        before = contracts.get(contract.name)
        if before is not None and before.text != contract.text:
            yield f"contract `{contract.name}: {contract.text}`, it was `{before.text}`"
    for before, result in zip(old.results, new.results):
        if (before.name, before.text) != (result.name, result.text):
            yield f"result `{result.name}: {result.text}`, it was `{before.name}: {before.text}`"
    yield from _set_edits("require", [r.text for r in old.requires], [r.text for r in new.requires])
    yield from _set_edits("check", [c.name for c in old.checks], [c.name for c in new.checks])
    yield from _set_edits("@alias", list(old.aliases), list(new.aliases))
    yield from _set_edits("@keyword", [f"{a} = {b}" for a, b in old.keywords], [f"{a} = {b}" for a, b in new.keywords])
    yield from _set_edits("@pair", [_pair(p) for p in old.pairs], [_pair(p) for p in new.pairs])
    yield from _set_edits("@scalar", list(old.scalars), list(new.scalars))
    if old.backends != new.backends:
        yield f"@backends {' '.join(new.backends) or 'none'}, it was {' '.join(old.backends) or 'none'}"
    if old.doc != new.doc:
        yield "documentation"


def _pair(pair: m.Pair) -> str:
    return f"{pair.name} = {', '.join(pair.args)}"


def _set_edits(what: str, old: list[str], new: list[str]) -> Iterator[str]:
    yield from (f"`{what} {text}` is new" for text in new if text not in old)
    yield from (f"`{what} {text}` is gone" for text in old if text not in new)


def _argument_edits(old: m.Schema, new: m.Schema) -> Iterator[str]:
    was = {a.name: (i, a) for i, a in enumerate(old.args)}
    now = {a.name: (i, a) for i, a in enumerate(new.args)}
    renamed = {
        a.name: b.name for a, b in zip(old.args, new.args) if a.name not in now and b.name not in was and a.type == b.type
    }
    for name, (_, a) in was.items():
        if name in renamed:
            yield f"argument `{name}` renamed to `{renamed[name]}`"
        elif name not in now:
            yield f"argument `{name}` removed"
        else:
            yield from _one_argument(a, now[name][1])
    for i, b in enumerate(new.args):
        if b.name not in was and b.name not in renamed.values():
            is_last = all(c.name not in was for c in new.args[i:])
            place = "appended" if is_last else "inserted"
            yield f"argument `{b.name}` {place}, {'required' if b.default is None else f'default {b.default.text}'}"
    kept = [a.name for a in old.args if a.name in now]
    if kept != [b.name for b in new.args if b.name in was]:
        yield "arguments in another order"


def _one_argument(old: m.Argument, new: m.Argument) -> Iterator[str]:
    name = new.name
    plain_old = format_argument(m.Argument(name, old.type, None, False, old.alias, old.span))
    plain_new = format_argument(m.Argument(name, new.type, None, False, new.alias, new.span))
    if plain_old != plain_new:
        yield f"argument `{plain_new}`, it was `{plain_old}`"
    if old.kw_only != new.kw_only:
        yield f"argument `{name}` has become {'keyword-only' if new.kw_only else 'positional'}"
    if (old.default is None) != (new.default is None):
        yield f"argument `{name}` {'lost its default' if new.default is None else f'got the default {new.default.text}'}"
    elif old.default is not None and new.default is not None and old.default.value != new.default.value:
        yield f"default of `{name}` is {new.default.text}, it was {old.default.text}"


# ---- what contracts do to callers ----------------------------------------------------------------------------


def _behaviour(old: m.Operator, new: m.Operator) -> Iterator[Difference]:
    contracts = {c.name: c for c in old.contracts}
    for contract in new.contracts:
        before = contracts.get(contract.name)
        if before is None or before.text == contract.text:
            continue
        if _takes_more(before, contract):
            yield Difference(BEHAVIOUR, False, f"`{contract.name}` takes more than it did")
        elif _takes_more(contract, before):
            yield Difference(BEHAVIOUR, True, f"`{contract.name}` refuses what it took")
        else:
            yield Difference(BEHAVIOUR, True, f"`{contract.name}` may refuse what it took")
    for before, result in zip(old.results, new.results):
        if before.text != result.text:
            yield Difference(BEHAVIOUR, True, f"the result `{result.name}` looks different")
    required = {r.text for r in old.requires}
    for require in new.requires:
        if require.text not in required:
            yield Difference(BEHAVIOUR, True, f"refuses calls without `{require.text}`")
    for check in new.checks:
        if check.name not in {c.name for c in old.checks}:
            yield Difference(BEHAVIOUR, True, f"refuses calls that fail the check `{check.name}`")
    if old.backends and not new.backends:
        yield Difference(BEHAVIOUR, True, "it is not implemented any more")
    elif new.backends and not old.backends:
        yield Difference(BEHAVIOUR, False, "it is implemented now")
    defaults = {a.name: a.default for a in old.schema.args}
    for arg in new.schema.args:
        default = defaults.get(arg.name)
        if default is not None and arg.default is not None and default.value != arg.default.value:
            yield Difference(BEHAVIOUR, False, f"calls that leave `{arg.name}` out do something else")


def _takes_more(old: m.TensorContract | m.ValueContract, new: m.TensorContract | m.ValueContract) -> bool:
    """Whether everything that fits the old contract is known to fit the new one."""
    if isinstance(old, m.TensorContract) and isinstance(new, m.TensorContract):
        same = (old.like, old.access, old.on_cpu) == (new.like, new.access, new.on_cpu)
        return same and set(old.may_alias) <= set(new.may_alias) and _combinations(old) <= _combinations(new)
    if isinstance(old, m.ValueContract) and isinstance(new, m.ValueContract):
        words = not new.one_of or bool(old.one_of) and set(old.one_of) <= set(new.one_of)
        lengths = not new.lengths or bool(old.lengths) and set(old.lengths) <= set(new.lengths)
        return words and lengths and _bounds(new) <= _bounds(old)
    return False


def _combinations(contract: m.TensorContract) -> set[tuple[str, str]]:
    """Every element type with the shape, layout and condition that go with it."""
    found = set()
    for a in contract.alternatives:
        rest = a.text[a.text.index("[", 0 if a.dtype_of is None else len(a.dtype_of)) :]
        found |= {(d.value, rest) for d in a.dtypes} or {(a.dtype_of or "", rest)}
    return found


def _bounds(contract: m.ValueContract) -> set[str]:
    return {part for part in contract.text.split(", ") if part != "any" and not part.startswith("length") and not contract.one_of}


# ---- the other version ---------------------------------------------------------------------------------------


def load_old(against: str, schema_path: str, new: m.Library) -> tuple[m.Library | None, Report | None]:
    """The library to compare with: a file, a revision of git, or what is installed. None with a report when it has errors."""
    if against == "installed":
        return _installed(new), None
    if os.path.isfile(against):
        with open(against, "rb") as f:
            return parse_file(against, f.read())
    folder, name = os.path.split(os.path.abspath(schema_path))
    try:
        done = subprocess.run(["git", "-C", folder, "show", f"{against}:./{name}"], capture_output=True, check=False)
    except OSError as e:
        raise GeneratorError(f"there is no file {against}, and git cannot be run: {e.strerror}") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().split("\n")[0]
        raise GeneratorError(f"{against} is no file, and git has no such revision of {name}: {said}")
    return parse_file(f"{against}:{name}", done.stdout)


def _installed(new: m.Library) -> m.Library:
    """The operators of the installed package, from the schemas that its generated module carries. It has no contracts: they
    are taken to be those of today."""
    import ast
    from importlib.util import find_spec

    spec = find_spec(new.namespace)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    path = next((p for p in (os.path.join(place, "_C.py") for place in places) if os.path.isfile(p)), None)
    if path is None:
        raise GeneratorError(f"the Python package `{new.namespace}` is not installed for this interpreter")
    with open(path, encoding="utf-8") as f:
        tree = ast.parse(f.read())
    values = [n.value for n in tree.body if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "SCHEMAS"]
    if not values:
        raise GeneratorError(f"{path} has no SCHEMAS")
    texts: tuple[str, ...] = ast.literal_eval(values[0])
    operators = tuple(_bare_operator(text, new) for text in texts)
    return m.Library(new.namespace, new.prefix, _installed_release(os.path.dirname(path)) or new.version, operators)


def _installed_release(folder: str) -> str:
    try:
        with open(os.path.join(folder, "_release.py"), encoding="utf-8") as f:
            found = re.search(r'"([0-9]+\.[0-9]+\.[0-9]+)"', f.read())
    except OSError:
        return ""
    return found[1] if found else ""


def _bare_operator(text: str, library: m.Library) -> m.Operator:
    from .parse import check_string

    schema, _ = check_string(text, as_torch=True)
    if schema is None:
        raise GeneratorError(f"the installed package has a schema that does not parse: {text}")
    symbol = f"{schema.name}_{schema.overload}" if schema.overload else schema.name
    now = next((op for op in library.operators if op.symbol == symbol), None)
    known = {c.name: c for c in now.contracts} if now is not None else {}
    results = now.results if now is not None and len(now.results) == len(schema.returns) else ()
    names = {a.name for a in schema.args}
    return m.Operator(
        schema=schema,
        doc=now.doc if now is not None else "",
        section="",
        contracts=tuple(known.get(a.name) or _any(a.name, a.span) for a in schema.args),
        results=results or tuple(_any(r.name or f"out{i}", r.span) for i, r in enumerate(schema.returns)),
        dimensions=(),
        lets=(),
        requires=now.requires if now is not None else (),
        checks=now.checks if now is not None else (),
        pairs=tuple(p for p in (now.pairs if now is not None else ()) if names.issuperset(p.args)),
        aliases=now.aliases if now is not None else (),
        keywords=tuple(k for k in (now.keywords if now is not None else ()) if k[1] in names),
        scalars=tuple(s for s in (now.scalars if now is not None else ()) if s in names),
        backends=now.backends if now is not None else ("",),
        refusal="",
        since="",
        allows=(),
        span=schema.span,
    )


def _any(name: str, span: m.Span) -> m.ValueContract:
    return m.ValueContract(name, (), (), False, (), "any", "", span)


# ---- what is printed -----------------------------------------------------------------------------------------


def render(changes: list[Change], old: m.Library, new: m.Library) -> str:
    """Operator by operator: the edits, then every layer that they touch; at the end the release to make."""
    text = ""
    for change in changes:
        text += f"{change.subject}: {change.severity}\n"
        text += "".join(f"  edit: {edit}\n" for edit in change.edits)
        for d in change.differences:
            text += f"  {d.layer:<15} {'breaks' if d.breaks else 'changes'}: {d.text}\n"
    severity = worst(changes)
    if severity == "none":
        return text + "nothing differs\n"
    count = len(changes)
    wanted = next_version(old.version, severity)
    is_enough = _release(new.version) >= _release(wanted)
    verdict = f"the file has {new.version}, which is enough" if is_enough else f"the file has {new.version}: write `version {wanted}`"
    return text + f"{count} difference{'s' * (count != 1)}, {severity}: {old.version} -> {wanted}; {verdict}\n"


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
