"""Arguments for every implemented operator, right by construction: made from the contracts of schema/ops.schema.

An operator that nothing here can make arguments for fails the tests that use this file, so that a new one cannot go untested. What a
contract leaves open and a kernel needs (which sizes, what a list holds) stands in CHOICES.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from codegen import model as m
from codegen.schema_file import parse_file

SCHEMA = Path(os.environ["DG_SOURCE_DIR"], "schema", "ops.schema")

# By operator: values of arguments, sizes of dimensions, and shapes that a contract leaves open.
M_GROUPED = {"m": 256, "groups": 2, "grouped_layout": [0] * 128 + [1] * 128}
MASKED = {"groups": 3, "max_m": 6, "masked_m": [3, 0, 6]}
K_GROUPED = {"groups": 3, "ks_cpu": [128, 0, 136], "sum_k": 264, "grouped_layout": [128, 0, 136]}
MQA = {
    "seq_len": 4,
    "seq_len_kv": 12,
    "heads": 8,
    "head_dim": 32,
    "cu_seq_len_k_start": [0, 0, 2, 3],
    "cu_seq_len_k_end": [3, 5, 12, 12],
}
PAGED = {
    "batch": 2,
    "next_n": 1,
    "heads": 8,
    "head_dim": 32,
    "pages": 4,
    "block_kv": 32,
    "max_pages": 2,
    "slots": 4,
    "max_context_len": 64,
    "context_lens": [20, 50],
    "indices": [0, 1],
    "block_table": [[2, 0], [1, 3]],
    "schedule_meta": [[0, 0], [0, 1], [1, 0], [2, 0]],
    "clean_logits": True,
}
MEGA_MOE = {
    "num_tokens": 3,
    "local_experts": 2,
    "num_experts": 2,
    "num_topk": 1,
    "hidden": 128,
    "intermediate": 128,
    "sym_buffer_ptrs": [64],
    "rank_idx": 0,
    "num_max_tokens_per_rank": 384,
    "recipe": [1, 1, 32],
    "num_ring_tokens": 384,
    "num_bytes": 410_000,
    "sym_buffer": [1] * 40_000 + [0] * 370_000,  # some of x; everything goes to expert 0
    "cumulative_local_expert_recv_stats": [0],
}
CHOICES: dict[str, dict[str, Any]] = {
    "m_grouped_fp8_fp4_gemm_nt_contiguous": M_GROUPED,
    "m_grouped_fp8_fp4_gemm_nn_contiguous": M_GROUPED,
    "m_grouped_bf16_gemm_nt_contiguous": M_GROUPED,
    "m_grouped_bf16_gemm_nn_contiguous": M_GROUPED,
    "m_grouped_fp8_fp4_gemm_nt_masked": MASKED,
    "m_grouped_bf16_gemm_nt_masked": MASKED,
    "k_grouped_fp8_gemm_tn_contiguous": K_GROUPED,
    "k_grouped_fp8_gemm_nt_contiguous": {**K_GROUPED, "m": 6, "n": 10, "a": [264 * 6], "b": [264 * 10]},
    "k_grouped_bf16_gemm_tn_contiguous": K_GROUPED,
    "fp8_gemm_nt_skip_head_mid": {"head_splits": [4, 2, 3], "n": 14},
    "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor": {
        "groups": 3,
        "ks_cpu": [128, 0, 640],
        "sf_k": 6,
        "gran_k": 128,
        "grouped_layout": [128, 0, 640],
    },
    "get_mn_major_tma_aligned_packed_ue8m0_tensor": {"psum_layout": [2, 6]},
    "transform_sf_into_required_layout": {"psum_layout": [2, 6], "recipe": [1, 128], "mn": 6, "k": 260},
    "fp8_fp4_mqa_logits": MQA,
    "fp8_mqa_logits": MQA,
    "get_paged_mqa_logits_metadata": {"num_sms": 3, **PAGED},
    "fp8_fp4_paged_mqa_logits": PAGED,
    "fp8_paged_mqa_logits": PAGED,
    "per_channel_cast_to_fp8": {"gran_k": 2},
    "get_ring_limit_for_mega_moe": {"num_max_tokens_per_rank": 768},
    "get_symm_buffer_size_for_mega_moe": {
        "num_experts": 4,
        "num_max_tokens_per_rank": 384,
        "hidden": 256,
        "intermediate_hidden": 128,
        "num_ring_tokens": 768,
    },
    "_slice_symm_buffer_for_mega_moe": {
        "num_bytes": 2432,
        "buffer": [1],
        "layout_info": [2, 128, 256, 1, 4, 4, 1, 0, 256, 384, 512, 640, 1152, 1280, 2304],
    },
    "fp8_fp4_mega_moe": MEGA_MOE,
    "bf16_mega_moe": MEGA_MOE,
    "get_tma_aligned_size": {"x": 7, "element_size": 4},
    "set_mk_alignment_for_contiguous_layout": {"new_value": 128},
    "set_num_sms": {"new_num_sms": 100},
    "set_tc_util": {"new_tc_util": 100},
    "set_block_size_multiple_of": {"new_value": [1, 1]},
}

FREE_SIZE = 2  # of a dimension that says only that it is what it is

# What else these operators do, as changes of the choices above.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "fp8_fp4_gemm_nt": [{"recipe": [1, 1, 32]}, {"recipe_a": [1, 64], "recipe_b": [64, 128]}],
    "m_grouped_fp8_fp4_gemm_nt_contiguous": [{"use_psum_layout": True, "grouped_layout": [100, 256]}],
    "m_grouped_bf16_gemm_nt_contiguous": [{"use_psum_layout": True, "grouped_layout": [100, 256], "ensure_zero_padding": False}],
    "einsum": [{"expr": "bhr,hdr->bhd"}, {"expr": "bhd,hdr->bhr"}],
    "fp8_einsum": [{"expr": "bhd,hdr->bhr"}, {"expr": "bhd,bhr->hdr"}],
    "transform_sf_into_required_layout": [
        {"recipe": [1, 32]},
        {"recipe": [128, 128]},
        {"recipe": [1, 128, 128], "is_sfa": True, "num_groups": 2},
        {"recipe": [1, 32], "num_groups": 2},
    ],
}

SIZES = {"m": 6, "n": 10, "k": 264, "mn": 6, "sf_k": 8, "groups": 3}  # any other one is 4

DTYPES = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2, "ue8m0": torch.float8_e8m0fnu, "f4e2m1": torch.float4_e2m1fn_x2, "i64": torch.int64,
    "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool,
}  # fmt: skip


@functools.cache
def all_operators() -> tuple[m.Operator, ...]:
    library, report = parse_file(str(SCHEMA), SCHEMA.read_bytes())
    assert library is not None, report
    return library.operators


def implemented_operators() -> tuple[m.Operator, ...]:
    return tuple(op for op in all_operators() if op.backends)


@dataclass
class Sample:
    """Arguments of one call, by name, in schema order. label says which alternatives of the contracts were taken."""

    op: m.Operator
    label: str
    arguments: dict[str, Any]

    @property
    def name(self) -> str:
        return self.op.symbol

    @property
    def overload(self) -> Any:
        return getattr(getattr(torch.ops.deep_gemm, self.op.schema.name), self.op.schema.overload or "default")

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.arguments.items() if isinstance(value, Tensor)}

    @property
    def written(self) -> set[str]:
        return {a.name for a in self.op.schema.args if a.is_written}

    def python_arguments(self) -> dict[str, Any]:
        """The same as keywords of the Python function: pairs are tuples."""
        result = dict(self.arguments)
        for pair in self.op.pairs:
            result[pair.name] = tuple(self.arguments[member] for member in pair.args)
            for member in set(pair.args) - {pair.name}:
                del result[member]
        return {name: tuple(value) if isinstance(value, list) else value for name, value in result.items()}

    def fresh(self) -> Sample:
        """The same with copies of all tensors, strides kept."""
        copies = {name: copy_of(value) if isinstance(value, Tensor) else value for name, value in self.arguments.items()}
        return Sample(self.op, self.label, copies)


def copy_of(x: Tensor) -> Tensor:
    """A copy with the same strides, and of the same bits where the dtype has no copy of its own."""
    size = sum((n - 1) * s for n, s in zip(x.shape, x.stride())) + 1 if x.numel() else 0
    storage = torch.empty(size, dtype=x.dtype)
    storage.view(torch.uint8).copy_(torch.as_strided(x, (size,), (1,)).view(torch.uint8))
    return torch.as_strided(storage, x.shape, x.stride())


def samples(op: m.Operator) -> Iterator[Sample]:
    """One sample for every dtype of every alternative of every tensor argument, the other tensors staying at their first one wherever
    the contract lets them; and the variants."""
    contracts = {c.name: c for c in op.contracts if isinstance(c, m.TensorContract) and c.like is None}
    seen: set[tuple[tuple[str, m.DType | str, int], ...]] = set()
    first = {name: options(contract)[0] for name, contract in contracts.items()}
    optional = {name for name in contracts if argument(op, name).is_optional}
    base = CHOICES.get(op.symbol, {})
    for name, contract in contracts.items():
        for option in options(contract):
            made = nearest(op, base, contracts, {**first, name: option}, name, optional - {name})
            if made is not None and made[0] not in seen:
                seen.add(made[0])
                yield made[1]
    if not contracts:
        sample = make(op, base, {}, set())
        assert sample is not None, op.symbol
        yield sample
    for number, variant in enumerate(VARIANTS.get(op.symbol, []), 1):
        made = nearest(op, {**base, **variant}, contracts, first, "", optional)
        assert made is not None, f"{op.symbol}: variant {number} is not valid"
        yield Sample(op, f"variant {number}", made[1].arguments)


def nearest(
    op: m.Operator,
    choices: dict[str, Any],
    contracts: Mapping[str, m.TensorContract],
    wanted: Mapping[str, Option],
    fixed: str,
    absent: set[str],
) -> tuple[tuple[tuple[str, m.DType | str, int], ...], Sample] | None:
    """The valid call that differs from the wanted one in the fewest tensors, the fixed one excepted, and has at most one optional
    tensor more; with a key of what was taken."""
    others = [name for name in contracts if name != fixed]
    takes = [dict(zip(others, taken)) for taken in itertools.product(*(options(contracts[name]) for name in others))]
    takes.sort(key=lambda taken: sum(taken[name] != wanted[name] for name in others))
    for more in (set[str](), *({name} for name in sorted(absent))):
        for taken in takes:
            chosen = {**wanted, **taken}
            sample = make(op, choices, chosen, absent - more)
            if sample is not None:
                return tuple((n, d, i) for n, (d, i) in chosen.items() if n not in absent - more), sample
    return None


Option = tuple[m.DType | str, int]  # dtype, or the argument that has it; index of the alternative


def options(contract: m.TensorContract) -> list[Option]:
    result: list[Option] = []
    for i, alternative in enumerate(contract.alternatives):
        result += [(dtype, i) for dtype in alternative.dtypes or (alternative.dtype_of or "",)]
    return result


def argument(op: m.Operator, name: str) -> m.Argument:
    return next(a for a in op.schema.args if a.name == name)


@dataclass
class Scope:
    """What expressions see: values of arguments, sizes, lets, and of tensors dtype and rank before they exist."""

    op: m.Operator
    choices: dict[str, Any]
    values: dict[str, Any]
    chosen: Mapping[str, Option]
    absent: set[str]
    lets: dict[str, m.Expr] = field(default_factory=dict)
    asked: set[tuple[str, int]] = field(default_factory=set)  # sizes on their way

    def dtype(self, name: str) -> m.DType:
        dtype = self.chosen[name][0]
        return self.dtype(dtype) if isinstance(dtype, str) else dtype

    def value(self, e: m.Expr) -> Any:
        if isinstance(e, m.Literal):
            return e.value
        if isinstance(e, m.NameRef):
            return self.value(self.lets[e.name]) if e.role == "let" else self.values[e.name]
        if isinstance(e, m.Index):
            return self.values[e.name][e.index]
        if isinstance(e, m.Conditional):
            return self.value(e.then if self.value(e.condition) else e.otherwise)
        if isinstance(e, m.Unary):
            return not self.value(e.operand) if e.op == "not" else -self.value(e.operand)
        if isinstance(e, m.Binary):
            if e.op in ("and", "or"):
                left = self.value(e.left)
                return self.value(e.right) if bool(left) == (e.op == "and") else left
            return OPERATIONS[e.op](self.value(e.left), self.value(e.right))
        return self.call(e)

    def call(self, e: m.Call) -> Any:
        if e.function in ("ceil", "align", "min", "max"):
            x, y = (self.value(a) for a in e.args)
            return {"ceil": -(-x // y), "align": -(-x // y) * y, "min": min(x, y), "max": max(x, y)}[e.function]
        subject = e.args[0]
        assert isinstance(subject, m.Literal)
        name = str(subject.value)
        if e.function == "given":
            return name not in self.absent and self.values.get(name, True) is not None
        if e.function == "dtype":
            return self.dtype(name)
        if e.function == "rank":
            return len(self.shape_of(name))
        if e.function == "len":
            return len(self.values[name])
        if e.function == "sum_ceil":
            y = self.value(e.args[1])
            return sum(-(-x // y) for x in self.values[name])
        if e.function == "stride":
            shape = [int(self.value(size)) for size in self.shape_of(name)]
            return math.prod(shape[self.value(e.args[1]) + 1 :])
        assert e.function == "dim", e.function
        axis = self.value(e.args[1])
        if (name, axis) in self.asked:
            return FREE_SIZE  # `psum_layout: i32 [dim(psum_layout, 0)]`
        self.asked.add((name, axis))
        size = self.value(self.shape_of(name)[axis])
        self.asked.remove((name, axis))
        return size

    def shape_of(self, name: str) -> tuple[m.Expr, ...]:
        contract = next(c for c in self.op.contracts if c.name == name)
        assert isinstance(contract, m.TensorContract)
        shape = contract.alternatives[self.chosen[name][1]].shape
        assert shape is not None
        return shape


OPERATIONS = {
    "+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y, "//": lambda x, y: x // y, "%": lambda x, y: x % y,
    "==": lambda x, y: x == y, "!=": lambda x, y: x != y, "<": lambda x, y: x < y, "<=": lambda x, y: x <= y,
    ">": lambda x, y: x > y, ">=": lambda x, y: x >= y,
}  # fmt: skip


def make(op: m.Operator, choices: dict[str, Any], chosen: Mapping[str, Option], absent: set[str]) -> Sample | None:
    """The call with these choices, dtypes and alternatives; None when conditions of the contracts exclude it."""
    values: dict[str, Any] = {d.name: choices.get(d.name, SIZES.get(d.name, 4)) for d in op.dimensions}
    for arg, contract in zip(op.schema.args, op.contracts):
        if isinstance(contract, m.ValueContract):
            values[arg.name] = choices[arg.name] if arg.name in choices else value_of(op, arg, contract)
    scope = Scope(op, choices, values, chosen, absent, {let.name: let.expr for let in op.lets})
    for name, (_, index) in chosen.items():
        contract = next(c for c in op.contracts if c.name == name)
        assert isinstance(contract, m.TensorContract)
        alternative = contract.alternatives[index]
        if name not in absent and alternative.when is not None and not scope.value(alternative.when):
            return None
        earlier = contract.alternatives[:index]
        if any(scope.dtype(name) in a.dtypes and (a.when is None or scope.value(a.when)) and same_rank(a, alternative) for a in earlier):
            return None
    if not all(scope.value(r.expr) for r in op.requires):
        return None
    arguments: dict[str, Any] = {}
    for arg, contract in zip(op.schema.args, op.contracts):
        if isinstance(contract, m.ValueContract):
            arguments[arg.name] = values[arg.name]
        elif contract.like is not None:
            arguments[arg.name] = None if arg.is_optional else copy_of(arguments[contract.like])
        elif arg.name in absent:
            arguments[arg.name] = None
        else:
            arguments[arg.name] = tensor_of(scope, arg.name)
    label = "-".join(f"{name}:{scope.dtype(name).value}{index or ''}" for name, (_, index) in chosen.items() if name not in absent)
    return Sample(op, label or "call", arguments)


def same_rank(a: m.Alternative, b: m.Alternative) -> bool:
    return a.shape is None or b.shape is None or len(a.shape) == len(b.shape)


def value_of(op: m.Operator, arg: m.Argument, contract: m.ValueContract) -> Any:
    if arg.default is not None:
        value = getattr(torch, arg.default.text) if arg.type == m.Base("ScalarType") else arg.default.value
        return list(value) if isinstance(value, tuple) else value
    if arg.is_optional:
        return None
    if contract.one_of:
        return contract.one_of[0]
    by_type = {"int": 1, "bool": False, "str": "", "float": 1.0}
    assert isinstance(arg.type, m.Base) and arg.type.name in by_type, f"{op.symbol}: add {arg.name} to CHOICES"
    return by_type[arg.type.name]


# Values of another type than the argument's. torch takes more than its types say: a dtype for an int, a float for a bool.
OF_ANOTHER_TYPE = {
    "Tensor": (3, "x"), "int": ("x", 1.5, None), "float": ("x", [1.0]), "bool": ("x", [True]), "str": (3, None),
    "ScalarType": (99, 6, -1, 2**40, 1.5, "x", None, float, True), "list": ("x", 1.5, ["x"]),
}  # fmt: skip


def of_another_type(sample: Sample) -> Iterator[tuple[str, Any]]:
    """The arguments that are in no pair, each with values of another type than its own."""
    paired = {name for pair in sample.op.pairs for name in (pair.name, *pair.args)}
    for arg in sample.op.schema.args:
        bare = arg.type.elem if isinstance(arg.type, m.Optional) else arg.type
        for value in OF_ANOTHER_TYPE["list" if isinstance(bare, m.List) else str(bare.name)]:
            if arg.name not in paired and not (value is None and arg.is_optional):
                yield arg.name, value


def tensor_of(scope: Scope, name: str) -> Tensor:
    """A tensor with contents that are valid whatever the operator does with them: chosen ones, or random ones."""
    dtype, index = scope.dtype(name), scope.chosen[name][1]
    contract = next(c for c in scope.op.contracts if c.name == name)
    assert isinstance(contract, m.TensorContract)
    alternative = contract.alternatives[index]
    chosen = scope.choices.get(name)
    if alternative.shape is None:
        assert chosen is not None, f"{scope.op.symbol}: add a shape of {name} to CHOICES"
        shape = list(chosen)
    else:
        shape = [int(scope.value(e)) for e in alternative.shape]
    if alternative.shape is not None and chosen is not None:
        x = torch.tensor(chosen, dtype=DTYPES[dtype.value])
        x = x.view(*x.shape, *[1] * (len(shape) - x.dim())).expand(shape).contiguous()
    elif dtype is m.DType.f4e2m1:
        shape[-1] = -(-shape[-1] // 2)  # pairs
        x = torch.randint(0, 256, shape, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    elif dtype is m.DType.f8e4m3:
        x = torch.randn(shape).to(torch.float8_e4m3fn)
    elif dtype is m.DType.f32 and "sf" in name:
        x = torch.randint(-3, 3, shape).float().exp2()  # powers of two: they can be packed
    elif dtype is m.DType.i32 and "sf" in name:
        x = torch.randint(124, 131, [*shape, 4], dtype=torch.uint8).view(torch.int32).squeeze(-1)
    elif dtype is m.DType.u8:
        x = torch.randint(0, 64, shape, dtype=torch.uint8)  # finite whether they are codes or parts of f32
    else:
        assert dtype.value.startswith(("f", "bf")), f"{scope.op.symbol}: add the contents of {name} to CHOICES"
        x = torch.randn(shape).to(DTYPES[dtype.value])
    if alternative.strides is None:
        return x
    strides = [int(scope.value(e)) for e in alternative.strides]
    storage = torch.zeros(sum((n - 1) * s for n, s in zip(shape, strides)) + 1, dtype=x.dtype)
    return torch.as_strided(storage, shape, strides).copy_(x)
