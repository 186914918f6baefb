"""Decoding with an indexer over a key cache in pages: each step appends a key to every sequence and scores all of its keys.

On a GPU the step is captured in a CUDA graph once and replayed: all shapes are those of the longest context, and what changes from step to
step, lengths and queries, is written into tensors that the graph reads.

    python paged_decode.py [cpu|cuda]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import deep_gemm
import torch
from deep_gemm.utils import per_custom_dims_cast_to_fp8, per_token_cast_to_fp8
from torch import Tensor

HEADS, DIM, PAGE = 32, 128, 64  # keys in a page
PAGES_OF_ONE, STEPS = 4, 5
MOST_KEYS = PAGES_OF_ONE * PAGE


class Cache:
    """Pages of PAGE keys: their codes, then their f32 scales. Sequences get them in any order."""

    def __init__(self, sequences: int, device: str) -> None:
        pages = sequences * PAGES_OF_ONE
        self.pages = torch.zeros(pages, PAGE, 1, DIM + 4, dtype=torch.uint8, device=device)
        self.table = torch.randperm(pages, device=device).int().view(sequences, PAGES_OF_ONE)
        flat = self.pages.view(pages, PAGE * (DIM + 4))
        self.codes = flat[:, : PAGE * DIM].view(pages, PAGE, DIM)
        self.scales = flat[:, PAGE * DIM :].view(pages, PAGE, 4)

    def write(self, keys: Tensor, position: Tensor) -> None:
        """keys [sequences, DIM], each at its position."""
        codes, scales = per_custom_dims_cast_to_fp8(keys, (0,), False)
        page = self.table.gather(1, (position // PAGE)[:, None]).squeeze(1).long()
        self.codes[page, position % PAGE] = codes.view(torch.uint8)
        self.scales[page, position % PAGE] = scales.view(-1, 1).view(torch.uint8)


def captured(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The step as a CUDA graph, whose result is the same tensor at every replay."""
    step()  # what a first call sets up is not part of the graph
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


def main(device: str) -> None:
    torch.manual_seed(0)
    length = torch.tensor([70, 200, 5], device=device)
    sequences = length.numel()
    cache, all_keys = Cache(sequences, device), torch.randn(sequences, MOST_KEYS, DIM, device=device)
    for position in range(int(length.max())):
        cache.write(all_keys[:, position], torch.full_like(length, position))

    # What a step reads.
    q = torch.empty(sequences, 1, HEADS, DIM, dtype=torch.float8_e4m3fn, device=device)
    weights = torch.empty(sequences, HEADS, device=device)
    lengths = length.int()
    num_sms = deep_gemm.get_num_sms()

    def step() -> Tensor:
        schedule = deep_gemm.get_paged_mqa_logits_metadata(lengths, PAGE, num_sms)
        return deep_gemm.fp8_paged_mqa_logits(q, cache.pages, weights, lengths, cache.table, schedule, MOST_KEYS, clean_logits=True)

    run = captured(step) if device == "cuda" else step
    for _ in range(STEPS):
        cache.write(all_keys[torch.arange(sequences, device=device), length], length)
        length += 1
        lengths.copy_(length)
        query, head_weights = torch.randn(sequences, HEADS, DIM, device=device), torch.rand(sequences, HEADS, device=device)
        codes, scales = per_token_cast_to_fp8(query.view(-1, DIM), use_ue8m0=False)
        q.copy_(codes.view(q.shape))
        weights.copy_(head_weights * scales.view(sequences, HEADS))
        logits = run()

        wanted = torch.einsum("bh,bhs->bs", head_weights, torch.einsum("bhd,bsd->bhs", query, all_keys).relu())
        is_key = torch.arange(MOST_KEYS, device=device) < length[:, None]
        assert logits[~is_key].isneginf().all()
        error = float((logits - wanted)[is_key].norm() / wanted[is_key].norm())
        print(f"contexts {length.tolist()}, on {device}: relative error {error:.4f}")
        assert error < 0.05


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
