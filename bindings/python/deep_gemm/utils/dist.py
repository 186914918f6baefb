"""Helpers for programs of several processes, one per device."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.distributed import ProcessGroup

__all__ = ["init_dist", "uneven_all_gather"]

dist: Any = torch.distributed  # most of its functions have no annotations

_local_rank = 0


def init_dist(local_rank: int, num_local_ranks: int) -> tuple[int, int, ProcessGroup]:
    """Joins the process group that MASTER_ADDR, MASTER_PORT, WORLD_SIZE (nodes) and RANK (of this node) describe, as process
    local_rank of num_local_ranks on this node. Returns the rank, the number of ranks and a group of all."""
    global _local_rank
    _local_rank = local_rank
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    port = os.environ.get("MASTER_PORT", "8361")
    nodes = int(os.environ.get("WORLD_SIZE", "1"))
    node = int(os.environ.get("RANK", "0"))
    has_cuda = torch.cuda.is_available()
    if has_cuda:
        torch.cuda.set_device(local_rank)
    dist.init_process_group(
        backend="nccl" if has_cuda else "gloo",
        init_method=f"tcp://{address}:{port}",
        world_size=nodes * num_local_ranks,
        rank=node * num_local_ranks + local_rank,
    )
    return dist.get_rank(), dist.get_world_size(), dist.new_group(list(range(dist.get_world_size())))


def uneven_all_gather(tensor: Tensor, dim: int = 0, group: ProcessGroup | None = None) -> Tensor:
    """The tensors of all ranks behind each other along dim; their sizes along it may differ."""
    sizes = [torch.zeros(1, dtype=torch.int64, device=tensor.device) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, torch.tensor([tensor.size(dim)], device=tensor.device), group=group)
    lengths = [int(size.item()) for size in sizes]
    first = tensor.transpose(0, dim)
    padded = torch.zeros((max(lengths), *first.shape[1:]), dtype=tensor.dtype, device=tensor.device)
    padded[: first.size(0)] = first
    gathered = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(gathered, padded, group=group)
    return torch.cat([part[:length] for part, length in zip(gathered, lengths)]).transpose(0, dim).contiguous()


def dist_print(s: str = "", once_in_node: bool = False) -> None:
    """Prints s with the rank in front; with once_in_node, on the first process of each node only."""
    if not once_in_node or _local_rank == 0:
        print(f"[rank {dist.get_rank()}] {s}", flush=True)
