"""The classic torch host: TORCH_LIBRARY and TORCH_LIBRARY_IMPL over the glue of bindings/torch_library. It is compiled against the headers
of one torch and serves that one; the host `torch` serves every torch >= 2.10 from one file.

Both spell an operator alike: what differs is what a slot is, here a c10::IValue of the dispatcher's stack.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..model import Library
from . import Difference, Edit, Host, Render
from .torch import function, refuse


def render(library: Library, render_template: Render) -> Mapping[str, str]:
    functions = [function(library.prefix, op) for op in library.operators]
    text = render_template(
        "torch_library/register.cpp.j2", prefix=library.prefix, namespace=library.namespace, functions=functions
    )
    return {"torch_library/register.cpp": text}


def compare(edit: Edit) -> Iterable[Difference]:
    from .torch_library_compare import differences  # only `breaking` needs it

    return differences(edit)


HOST = Host(
    name="torch_library",
    summary="registration of the operators with one torch >= 2.4, over its C++ headers",
    templates=("torch_library/register.cpp.j2",),
    render=render,
    refuse=refuse,
    compare=compare,
)
