/* The arithmetic of the casts, one element and one block at a time: their meaning, to the bit.
 *
 * cast_ref.c uses nothing else. The vector kernels compute the same with other operations, and come back to these functions for blocks
 * that hold NaN or infinity.
 */
#ifndef DG_CPU_CAST_ELEMENT_H
#define DG_CPU_CAST_ELEMENT_H

#include "core/dtype.h"
#include "ops/cast.h"

enum { INFINITY_BITS = 0x7f800000 }; /* magnitudes of finite f32 have smaller bits */

static inline float cast_element(const struct dg_cast_args *args, int64_t i, int64_t j)
{
    const int64_t index = i * args->stride_m + j * args->stride_n;
    switch (args->type) {
    case DG_CAST_BF16: return dg_f32_from_bf16(((const uint16_t *)args->x)[index]);
    case DG_CAST_F16: return dg_f32_from_f16(((const uint16_t *)args->x)[index]);
    case DG_CAST_F32: return ((const float *)args->x)[index];
    }
    return 0;
}

/* Bits of |value|. They order as the magnitudes do, with NaN above infinity, so that the largest of a block shows a NaN in it. */
static inline uint32_t magnitude_bits(float value)
{
    return dg_bits_of_f32(value) & 0x7fffffffu;
}

/* The scale of a block whose largest magnitude has these bits; 1 / sf is what its elements are multiplied by. */
static inline float scale_of_block(const struct dg_cast_args *args, uint32_t largest_bits)
{
    const float least = 1e-4f;
    const float largest_code = args->code_type == DG_CAST_F8E4M3 ? 448.0f : 6.0f;
    const float amax = dg_f32_of_bits(largest_bits);
    const float sf = (amax < least ? least : amax) / largest_code; /* NaN is not less */
    return args->scale_type == DG_CAST_SCALE_F32 ? sf : dg_f32_of_bits((uint32_t)dg_ue8m0_above_f32(sf) << 23);
}

/* Stores the scales of `count` blocks of block row `row`, from `block` on. Whoever has the last ones of a packed row fills up its last word. */
static inline void store_scales(const struct dg_cast_args *args, int64_t row, int64_t block, int64_t count, const float *sf)
{
    const int64_t blocks = (args->n + args->gran_n - 1) / args->gran_n;
    if (args->scale_type != DG_CAST_SCALE_PACKED) {
        memcpy((float *)args->sf + row * blocks + block, sf, (size_t)count * sizeof(float));
        return;
    }
    const int64_t row_bytes = (blocks + 3) / 4 * 4;
    uint8_t *bytes = (uint8_t *)args->sf + row * row_bytes; /* of little-endian words */
    for (int64_t q = 0; q < count; q++) {
        bytes[block + q] = (uint8_t)(dg_bits_of_f32(sf[q]) >> 23);
    }
    if (block + count == blocks) {
        memset(bytes + blocks, 127, (size_t)(row_bytes - blocks));
    }
}

/* Stores the code of x(i, j). The other nibble of an FP4 pair is kept, so one thread writes both. */
static inline void store_code(const struct dg_cast_args *args, int64_t i, int64_t j, float inverse)
{
    const float scaled = cast_element(args, i, j) * inverse;
    const int64_t index = i * args->n + j;
    if (args->code_type == DG_CAST_F8E4M3) {
        args->codes[index] = magnitude_bits(scaled) > INFINITY_BITS ? 0x7f : dg_f8e4m3_from_f32(scaled);
        return;
    }
    const uint32_t code = dg_f4e2m1_from_f32(scaled);
    uint8_t *pair = &args->codes[index / 2];
    *pair = (uint8_t)(index % 2 == 0 ? (*pair & 0xf0u) | code : (*pair & 0x0fu) | code << 4);
}

static inline float cast_back_element(const struct dg_cast_back_args *args, int64_t i, int64_t j)
{
    return dg_f32_from_f4e2m1(dg_f4e2m1_at(args->codes, i * args->stride_m + j * args->stride_n));
}

/* The scale of column block q of row i. */
static inline float cast_back_scale(const struct dg_cast_back_args *args, int64_t i, int64_t q)
{
    if (!args->is_packed) {
        return ((const float *)args->sf)[i * args->sf_stride_m + q * args->sf_stride_n];
    }
    const uint32_t word = ((const uint32_t *)args->sf)[i * args->sf_stride_m + q / 4 * args->sf_stride_n];
    return dg_f32_from_ue8m0((uint8_t)(word >> (8 * (q % 4))));
}

#endif
