"""The hosts by name. A host is one module of ``hosts`` that exports ``HOST``; adding one is its module, its templates and its name here."""

from __future__ import annotations

from importlib import import_module

from .hosts import Host
from .stamp import HOST_NAMES, GeneratorError


def load_hosts(names: tuple[str, ...]) -> list[Host]:
    return [_load(name) for name in names]


def _load(name: str) -> Host:
    module_name = f"{__package__}.hosts.{name}"
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as e:
        if e.name != module_name:
            raise
        others = ", ".join(n for n in HOST_NAMES if n != name)
        raise GeneratorError(
            f"the host `{name}` has no module codegen/hosts/{name}.py; leave it out with --hosts (others: {others})"
        ) from None
    host = getattr(module, "HOST", None)
    if not isinstance(host, Host):
        raise GeneratorError(f"codegen/hosts/{name}.py exports no HOST")
    return host
