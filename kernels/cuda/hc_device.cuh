/* What the hyperconnection kernels share; ops/hc.h has the formulas.
 *
 * A tf32 has 11 significant bits, so it is the sum of two bf16, exactly: b = high + low, and a * b = a * high + a * low on bf16 tensor
 * cores, with the products of tf32 and sums in f32.
 */
#ifndef DG_CUDA_HC_DEVICE_CUH
#define DG_CUDA_HC_DEVICE_CUH

#include "common.cuh"

extern "C" {
#include "ops/hc.h"
}

namespace {

/* x as tf32, to nearest, ties to even. */
__device__ __forceinline__ float to_tf32(float x)
{
#if __CUDA_ARCH__ >= 900
    uint32_t rounded;
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
    return __uint_as_float(rounded);
#endif
    uint32_t bits = __float_as_uint(x);
    bits = isnan(x) ? bits | 0x00400000u : bits + 0x0fffu + (bits >> 13 & 1u);
    return __uint_as_float(bits & ~0x1fffu);
}

/* x as tf32, cut into two bf16 in the upper halves. An infinite or NaN x is all in the first. */
__device__ __forceinline__ void split(float x, uint32_t *high, uint32_t *low)
{
    const float rounded = to_tf32(x);
    const uint32_t bits = __float_as_uint(rounded);
    *high = bits & 0xffff0000u;
    *low = (bits & 0x7f800000u) == 0x7f800000u ? 0 : __float_as_uint(__fsub_rn(rounded, __uint_as_float(*high)));
}

__device__ __forceinline__ uint32_t upper_halves(uint32_t first, uint32_t second)
{
    return __byte_perm(first, second, 0x7632);
}

/* sum + the squares of a pair of bf16. */
__device__ __forceinline__ float add_squares(float sum, uint32_t pair)
{
    const float even = __uint_as_float(pair << 16), odd = __uint_as_float(pair & 0xffff0000u);
    return fmaf(odd, odd, fmaf(even, even, sum));
}

/* Where part `split` of k begins, in chunks. As dg_hc_split_begin(). */
template <class Int>
__device__ __forceinline__ Int split_begin(Int chunks, Int num_splits, Int split)
{
    return chunks / num_splits * split + chunks % num_splits * split / num_splits;
}

/* The sum of a[i, k] * tf32(b[j, k]) over [begin, end). For rows that have an infinite a, which the cut of b turns into NaN: inf * high
 * + inf * low is NaN where low is zero or of the other sign. A result that is NaN is computed again this way. */
__device__ __noinline__ float product_of_row(const struct dg_hc_args &args, int64_t i, int64_t j, int64_t begin, int64_t end)
{
    double sum = 0;
    for (int64_t k = begin; k < end; ++k) {
        const float a = __uint_as_float(static_cast<uint32_t>(args.a[i * args.a_stride_m + k * args.a_stride_k]) << 16);
        sum += static_cast<double>(a) * static_cast<double>(to_tf32(args.b[j * args.b_stride_n + k * args.b_stride_k]));
    }
    return static_cast<float>(sum);
}

} // namespace

#endif
