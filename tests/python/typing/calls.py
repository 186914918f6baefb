"""Right and wrong calls of every operator, made of the schema: two programs for type checkers. In the wrong one each line that ends in
``# wrong`` has to be refused, and no other line.

What is right follows from the types of the schema string and from the contracts alone; what the stub says is what is tested.
"""

from __future__ import annotations

from codegen import model as m

HEAD = """from __future__ import annotations

import torch
from torch import Tensor

from deep_gemm import _C  # pyright: ignore[reportPrivateUsage]
"""

LONGEST_TUPLE = 8  # longer ones come as lists, whose length types do not know

RIGHT = {"Tensor": "x", "int": "1", "SymInt": "1", "float": "1.5", "bool": "True", "str": '"nk"', "ScalarType": "torch.float32"}
WRONG = {"Tensor": "1", "int": '"1"', "SymInt": '"1"', "float": '"1.5"', "bool": '"no"', "str": "3", "ScalarType": '"float32"'}
RESULTS = {"Tensor": "Tensor", "int": "int", "SymInt": "int", "bool": "bool", "float": "float"}


class Parameter:
    """A parameter of the Python function, with values that fit it and values that do not."""

    def __init__(self, name: str, right: list[str], wrong: list[str], required: bool, old_name: str | None) -> None:
        self.name, self.right, self.wrong, self.required, self.old_name = name, right, wrong, required, old_name


def calls(library: m.Library) -> tuple[str, str]:
    right, wrong = [HEAD], [HEAD]
    for op in library.operators:
        for name in (op.symbol, *op.aliases):
            right.append(function(f"right_{name}", right_calls(op, name)))
            wrong.append(function(f"wrong_{name}", wrong_calls(op, name)))
    return "\n".join(right), "\n".join(wrong)


def function(name: str, lines: list[str]) -> str:
    return f"\ndef {name}(x: Tensor, n: int) -> None:\n" + "".join(f"    {line}\n" for line in lines)


def right_calls(op: m.Operator, name: str) -> list[str]:
    params = parameters(op)
    first = [p.right[0] for p in params]
    lines = [call(name, [p.right[0] for p in params if p.required]), call(name, first), call(name, named(params))]
    for p in params:
        lines += [call(name, named(params, {p.name: value})) for value in p.right[1:]]
        if p.old_name is not None:
            lines.append(call(name, [f"{p.old_name}={p.right[0]}" if q is p else text for q, text in zip(params, named(params))]))
    if op.schema.returns:
        results = [result(r.type) for r in op.schema.returns]
        annotation = results[0] if len(results) == 1 else f"tuple[{', '.join(results)}]"
        lines += [f"value: {annotation} = {call(name, first)}", "print(value)"]
    return lines


def wrong_calls(op: m.Operator, name: str) -> list[str]:
    params = parameters(op)
    lines = [call(name, [*named(params), "no_such_argument=1"])]
    if any(p.required for p in params):
        lines.append(call(name, []))
    lines.append(call(name, [p.right[0] for p in params] + ["x"]))
    for p in params:
        lines += [call(name, named(params, {p.name: value})) for value in p.wrong]
    if op.schema.returns:
        lines.append(f"value: str = {call(name, named(params))}")
    return [f"{line}  # wrong" for line in lines] + (["print(value)"] if op.schema.returns else [])


def call(name: str, arguments: list[str]) -> str:
    return f"_C.{name}({', '.join(arguments)})"


def named(params: list[Parameter], other: dict[str, str] | None = None) -> list[str]:
    return [f"{p.name}={(other or {}).get(p.name, p.right[0])}" for p in params]


def result(t: m.Type) -> str:
    if isinstance(t, m.List):
        return f"list[{result(t.elem)}]"
    assert isinstance(t, m.Base)
    return RESULTS[t.name]


def parameters(op: m.Operator) -> list[Parameter]:
    arguments = {a.name: a for a in op.schema.args}
    contracts = {c.name: c for c in op.contracts}
    pair_of = {member: pair for pair in op.pairs for member in pair.args}
    old = {new: name for name, new in op.keywords}
    found: list[Parameter] = []
    for arg in op.schema.args:
        pair = pair_of.get(arg.name)
        if pair is None:
            right, wrong = values(arg, contracts[arg.name])
            if arg.name in op.scalars:
                right.append("1")
                wrong = [text for text in wrong if text != "1"]
            found.append(Parameter(arg.name, right, wrong, arg.default is None, old.get(arg.name)))
        elif arg.name == pair.args[0]:
            members = [values(arguments[member], contracts[member]) for member in pair.args]
            right = [joined([r[0] for r, _ in members])]
            right += [joined([*(r[0] for r, _ in members[:i]), value, *(r[0] for r, _ in members[i + 1 :])])
                      for i, (r, _) in enumerate(members) for value in r[1:]]  # fmt: skip
            wrong = ["x", joined(["x"] * (len(members) + 1))]
            wrong += [joined([*(r[0] for r, _ in members[:i]), w[0], *(r[0] for r, _ in members[i + 1 :])]) for i, (_, w) in enumerate(members)]
            found.append(Parameter(pair.name, right, wrong, arguments[pair.args[0]].default is None, old.get(pair.name)))
    return found


def values(arg: m.Argument, contract: m.TensorContract | m.ValueContract) -> tuple[list[str], list[str]]:
    t = arg.type.elem if isinstance(arg.type, m.Optional) else arg.type
    if isinstance(t, m.List):
        assert isinstance(t.elem, m.Base) and isinstance(contract, m.ValueContract)
        one = RIGHT[t.elem.name]
        lengths = (t.size,) if t.size is not None else contract.lengths
        if max(lengths, default=0) > LONGEST_TUPLE:
            right, wrong = [f"[{', '.join([one] * n)}]" for n in lengths], ["1"]
        elif lengths:
            right, wrong = [joined([one] * n) for n in lengths], [joined([one] * (max(lengths) + 1)), "1"]
        else:
            right, wrong = [f"[{one}, {one}]", joined([one, one]), "[]"], ["1"]
    else:
        assert isinstance(t, m.Base)
        right, wrong = [RIGHT[t.name]], [WRONG[t.name]]
        one_of = contract.one_of if isinstance(contract, m.ValueContract) else ()
        if t.name == "str" and one_of:
            right, wrong = [f'"{value}"' for value in one_of], ['"none of these"', "3"]
        elif t.name in ("int", "SymInt"):
            right = [str(value) for value in one_of] or right
            right.append("n")  # also one that is not known before the program runs
    if arg.is_optional:
        return [*right, "None"], wrong
    return right, [*wrong, "None"]


def joined(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
