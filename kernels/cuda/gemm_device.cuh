/* What the CUDA GEMM kernels share: number formats, and the output. Meaning: kernels/cpu/gemm_ref.c. */
#ifndef DG_CUDA_GEMM_DEVICE_CUH
#define DG_CUDA_GEMM_DEVICE_CUH

#include "common.cuh"

#include <cuda_bf16.h>

extern "C" {
#include "ops/gemm.h"
}

namespace {

/* ---- number formats ------------------------------------------------------------------------------------------ */

/* Four e4m3 codes to two pairs of f16 with the same values, NaN codes to NaN. */
__device__ __forceinline__ void decode_e4m3(uint32_t codes, uint32_t *low, uint32_t *high)
{
#if __CUDA_ARCH__ >= 890
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h; }"
        : "=r"(*low), "=r"(*high)
        : "r"(codes));
#else
    /* Sign to bit 15 and magnitude to bits 7 to 13 is 2^-8 times the value, subnormals included. The NaN magnitude, 0x7f, is the one
     * to which adding 1 sets bit 7; that bit lands on the top bit of the f16 exponent, beside four ones: a NaN. */
    uint32_t magnitude = codes & 0x7f7f7f7fu;
    magnitude |= (magnitude + 0x01010101u) & 0x80808080u;
    uint32_t low_bits = (__byte_perm(magnitude, 0, 0x4140) << 7) | (__byte_perm(codes, 0, 0x1404) & 0x80008000u);
    uint32_t high_bits = (__byte_perm(magnitude, 0, 0x4342) << 7) | (__byte_perm(codes, 0, 0x3424) & 0x80008000u);
    const uint32_t two_to_8 = 0x5c005c00u;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(*low) : "r"(low_bits), "r"(two_to_8));
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(*high) : "r"(high_bits), "r"(two_to_8));
#endif
}

/* The value of a scale from its word; `byte` says which of the four exponents of a UE8M0 word. */
__device__ __forceinline__ float decode_scale(enum dg_gemm_scale_type type, uint32_t word, int byte)
{
    if (type == DG_SCALE_NONE) {
        return 1.0f;
    }
    if (type == DG_SCALE_F32) {
        return __uint_as_float(word);
    }
    uint32_t exponent = (word >> (8 * byte)) & 0xffu;
    bool is_subnormal_or_nan = exponent == 0 || exponent == 0xff;
    return __uint_as_float((exponent << 23) | (is_subnormal_or_nan ? 1u << 22 : 0u));
}

/* sum + product * scale_a * scale_b, one scale after the other: the product of both may leave the range of f32 where the result does not.
 * A product is a sum of at most 128 of two codes, 0 or 2^-18 to 2^25, so scale_a may be 2^-108 to 2^103. */
__device__ __forceinline__ float add_scaled(float sum, float product, float scale_a, float scale_b)
{
    return fmaf(product * scale_a, scale_b, sum);
}

/* ---- output -------------------------------------------------------------------------------------------------- */

struct output { /* as in struct dg_gemm_args */
    const void *c;
    int64_t c_stride_m, c_stride_n;
    void *d;
    int64_t d_stride_m;
    int64_t head_left, head_mid, head_right;
    bool is_d_f32;
    bool can_store_four; /* four neighbours of d at a time */
};

inline struct output make_output(const struct dg_gemm_args *args)
{
    struct output out;
    out.c = args->c;
    out.c_stride_m = args->c_stride_m;
    out.c_stride_n = args->c_stride_n;
    out.d = args->d;
    out.d_stride_m = args->d_stride_m;
    out.head_left = args->head_left;
    out.head_mid = args->head_mid;
    out.head_right = args->head_right;
    out.is_d_f32 = args->d_type == DG_GEMM_F32;
    const uintptr_t alignment = out.is_d_f32 ? 16 : 8;
    const bool is_aligned = reinterpret_cast<uintptr_t>(out.d) % alignment == 0 && (out.d_stride_m % 4 == 0 || args->m == 1) &&
                            (args->groups.d_stride % 4 == 0 || args->groups.count == 1);
    out.can_store_four = out.head_mid == 0 && is_aligned;
    return out;
}

/* Where logical column j is stored. */
__device__ __forceinline__ int64_t stored_column(const struct output &out, int64_t j)
{
    return out.head_mid == 0 ? j : j + (j + out.head_right) / (out.head_left + out.head_right) * out.head_mid;
}

__device__ __forceinline__ float load_c(const struct output &out, int64_t i, int64_t j)
{
    int64_t index = i * out.c_stride_m + j * out.c_stride_n;
    return out.is_d_f32 ? static_cast<const float *>(out.c)[index] : __bfloat162float(static_cast<const __nv_bfloat16 *>(out.c)[index]);
}

__device__ __forceinline__ void store_element(const struct output &out, int64_t i, int64_t j, float value)
{
    int64_t index = i * out.d_stride_m + stored_column(out, j);
    if (out.c) {
        value += load_c(out, i, j);
    }
    if (out.is_d_f32) {
        static_cast<float *>(out.d)[index] = value;
    } else {
        static_cast<__nv_bfloat16 *>(out.d)[index] = __float2bfloat16_rn(value);
    }
}

/* d[i, j] to d[i, j + 3] of a problem without a gap, at an address that allows one store. */
__device__ __forceinline__ void store_four(const struct output &out, int64_t i, int64_t j, float4 value)
{
    if (out.c) {
        value.x += load_c(out, i, j);
        value.y += load_c(out, i, j + 1);
        value.z += load_c(out, i, j + 2);
        value.w += load_c(out, i, j + 3);
    }
    int64_t index = i * out.d_stride_m + j;
    if (out.is_d_f32) {
        *reinterpret_cast<float4 *>(static_cast<float *>(out.d) + index) = value;
    } else {
        __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(value.x, value.y), __floats2bfloat162_rn(value.z, value.w)};
        *reinterpret_cast<uint2 *>(static_cast<__nv_bfloat16 *>(out.d) + index) = *reinterpret_cast<const uint2 *>(pairs);
    }
}

/* ---- groups -------------------------------------------------------------------------------------------------- */

/* The address of an element that lies `elements` behind data. For F4E2M1 an even number of them. */
__device__ __forceinline__ const void *move(const void *data, int64_t elements, enum dg_gemm_type type)
{
    const int64_t half_bytes = type == DG_GEMM_F32 ? 8 : type == DG_GEMM_BF16 ? 4 : type == DG_GEMM_F8E4M3 ? 2 : 1; /* of an element */
    return static_cast<const char *>(data) + elements * half_bytes / 2;
}

__device__ __forceinline__ void move_output(struct output &out, int64_t d_elements, int64_t c_elements)
{
    const enum dg_gemm_type type = out.is_d_f32 ? DG_GEMM_F32 : DG_GEMM_BF16;
    out.d = const_cast<void *>(move(out.d, d_elements, type));
    if (out.c) {
        out.c = move(out.c, c_elements, type);
    }
}

} // namespace

#endif
