"""deep_gemm.dlpack on arrays of JAX: inputs of every dtype, NumPy results, and no output, since JAX's arrays are immutable."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from deep_gemm import dlpack


def test_inputs_of_every_dtype() -> None:
    x = np.random.default_rng(1).standard_normal((16, 256), np.float32)
    codes, sf = dlpack.per_token_cast_to_fp8(x, False)
    w_codes, w_sf = dlpack.per_block_cast_to_fp8(x, False)
    expected, found = np.zeros((16, 16), np.float32), np.zeros((16, 16), np.float32)
    dlpack.fp8_gemm_nt((codes, sf), (w_codes, w_sf), expected)
    dlpack.fp8_gemm_nt((jnp.asarray(codes), jnp.asarray(sf)), (jnp.asarray(w_codes), jnp.asarray(w_sf)), found)
    assert np.array_equal(found, expected)
    bf16 = x.astype(ml_dtypes.bfloat16)
    dlpack.bf16_gemm_nt(bf16, bf16, expected)
    dlpack.bf16_gemm_nt(jnp.asarray(bf16), jnp.asarray(bf16), found)
    assert np.array_equal(found, expected)


def test_fp4_is_packed_in_jax() -> None:
    x = np.random.default_rng(1).standard_normal((4, 64), np.float32)
    packed, sf = dlpack.per_token_cast_to_fp4(x, False, gran_k=32)
    pairs = packed.view(np.uint8)
    elements = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(4, 64).view(ml_dtypes.float4_e2m1fn)
    expected = dlpack.cast_back_from_fp4(packed, sf, gran_k=32)
    assert np.array_equal(dlpack.cast_back_from_fp4(jnp.asarray(elements), jnp.asarray(sf), gran_k=32), expected)


def test_results_are_numpy_arrays() -> None:
    result: Any = dlpack.get_mn_major_tma_aligned_tensor(jnp.ones((3, 2)))
    assert type(result) is np.ndarray and result.tolist() == [[1, 1]] * 3


def test_an_immutable_array_is_no_output() -> None:
    a, out = jnp.ones((4, 8), jnp.bfloat16), jnp.zeros((4, 4))
    with pytest.raises(ValueError, match="^bf16_gemm_nt: d does not say whether it is read-only, expected a tensor that can be written$"):
        dlpack.bf16_gemm_nt(a, a, out)
    assert not out.any()


def test_a_traced_array_has_no_memory() -> None:
    import jax

    with pytest.raises(ValueError, match="^get_mn_major_tma_aligned_tensor: sf cannot be read through DLPack: "):
        jax.jit(dlpack.get_mn_major_tma_aligned_tensor)(jnp.ones((3, 2)))
