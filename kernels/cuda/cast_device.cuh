/* The arithmetic of the casts on CUDA, for kernels that quantise. kernels/cpu/cast_element.h is its meaning, and the bits are the same. */
#ifndef DG_CUDA_CAST_DEVICE_CUH
#define DG_CUDA_CAST_DEVICE_CUH

#include "common.cuh"

#include <cuda_fp8.h>

extern "C" {
#include "ops/cast.h"
}

namespace {

__device__ __forceinline__ uint32_t magnitude_bits(float value)
{
    return __float_as_uint(value) & 0x7fffffffu;
}

__device__ __forceinline__ bool is_nan(float value)
{
    return magnitude_bits(value) > 0x7f800000u;
}

struct scale {
    float sf, inverse;
};

/* Of a block whose largest magnitude has these bits. NaN keeps its payload, as CPUs do, where a division here would not. */
template <bool is_fp8>
__device__ __forceinline__ struct scale scale_of_block(uint32_t largest, enum dg_cast_scale type)
{
    float amax = __uint_as_float(largest);
    uint32_t bits = largest > 0x7f800000u ? largest | 0x00400000u
                                          : __float_as_uint(__fdiv_rn(amax < 1e-4f ? 1e-4f : amax, is_fp8 ? 448.0f : 6.0f));
    if (type != DG_CAST_SCALE_F32) {
        uint32_t exponent = (bits >> 23 & 0xffu) + ((bits & 0x007fffffu) != 0);
        bits = min(max(exponent, 1u), 254u) << 23;
    }
    struct scale scale;
    scale.sf = __uint_as_float(bits);
    scale.inverse = __fdiv_rn(1.0f, scale.sf);
    return scale;
}

/* Two codes, the first in the low byte. */
__device__ __forceinline__ uint32_t fp8_codes(float first, float second)
{
#if __CUDA_ARCH__ >= 890
    return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, __NV_E4M3); /* one instruction; NaN is 0x7f */
#else
    const uint32_t low = is_nan(first) ? 0x7fu : __nv_cvt_float_to_fp8(first, __NV_SATFINITE, __NV_E4M3);
    const uint32_t high = is_nan(second) ? 0x7fu : __nv_cvt_float_to_fp8(second, __NV_SATFINITE, __NV_E4M3);
    return low | high << 8;
#endif
}

/* To nearest, ties to the smaller magnitude; no negative zero; NaN is 6. From 1 on the codes are the exponent and the first bit of the mantissa
 * of an f32, counted from 2; a tie is below half by the 1 that is missing. */
__device__ __forceinline__ uint32_t fp4_code(float value)
{
    const uint32_t magnitude = magnitude_bits(value), half = 1u << 21, two_below_1 = (0x3f800000u >> 22) - 2;
    const uint32_t above = min((magnitude + (half - 1) >> 22) - two_below_1, 7u);
    const uint32_t below = (magnitude > 0x3e800000u) + (magnitude > 0x3f400000u); /* 0.25, 0.75 */
    const uint32_t code = magnitude >= 0x3f800000u ? above : below;
    return value < 0 && code != 0 ? code | 8u : code;
}

} // namespace

#endif
