/* What the fast GEMM kernels share about operands: where codes lie, what a scale is worth, which rows fit f32 arithmetic.
 *
 * The kernels compute in f32 (gemm_f32.h) or in products of bf16 summed in f32 (gemm_bf16.h); gemm_ref.c has the range of
 * double. So every row of a, and every row of b, has a kind. Rows whose values and scales are in the limits below are PLAIN:
 * no product or partial sum of them overflows, and none becomes so small that f32 would round it as a subnormal. Where one
 * that is EXACT meets any other, the element is computed as gemm_ref.c does, one by one: slow, right, and rare.
 */
#ifndef DG_CPU_GEMM_OPERAND_H
#define DG_CPU_GEMM_OPERAND_H

#include "core/dtype.h"
#include "ops/gemm.h"

#include <emmintrin.h>

/* ---- elements and scales, one by one ----------------------------------------------------------------------- */

static inline float operand_at(const struct dg_gemm_operand *x, int64_t mn, int64_t k)
{
    const int64_t index = mn * x->stride_mn + k * x->stride_k;
    switch (x->type) {
    case DG_GEMM_BF16: return dg_f32_from_bf16(((const uint16_t *)x->data)[index]);
    case DG_GEMM_F8E4M3: return dg_f32_from_f8e4m3(((const uint8_t *)x->data)[index]);
    case DG_GEMM_F4E2M1: return dg_f32_from_f4e2m1(dg_f4e2m1_at(x->data, index));
    case DG_GEMM_F32: return ((const float *)x->data)[index];
    }
    return 0;
}

/* The biased exponent of block (row, block) of a UE8M0 scale. */
static inline int ue8m0_at(const struct dg_gemm_scale *s, int64_t row, int64_t block)
{
    const uint32_t word = ((const uint32_t *)s->data)[row * s->stride_mn + block / 4 * s->stride_k];
    return (int)(word >> (8 * (block % 4)) & 0xffu);
}

/* The scale of block (row, block): of element (row * gran_mn, block * gran_k). */
static inline float scale_at(const struct dg_gemm_scale *s, int64_t row, int64_t block)
{
    if (s->type == DG_SCALE_NONE) {
        return 1;
    }
    if (s->type == DG_SCALE_F32) {
        return ((const float *)s->data)[row * s->stride_mn + block * s->stride_k];
    }
    return dg_f32_from_ue8m0((uint8_t)ue8m0_at(s, row, block));
}

/* Sum over k of the products of row i of a and row j of b, as gemm_ref.c has it. */
static inline double exact_sum(const struct dg_gemm_args *args, int64_t i, int64_t j)
{
    const int64_t a_row = i / args->sfa.gran_mn;
    const int64_t b_row = j / args->sfb.gran_mn;
    double sum = 0;
    for (int64_t k = 0; k < args->k; k++) {
        const double a = (double)operand_at(&args->a, i, k) * (double)scale_at(&args->sfa, a_row, k / args->sfa.gran_k);
        const double b = (double)operand_at(&args->b, j, k) * (double)scale_at(&args->sfb, b_row, k / args->sfb.gran_k);
        sum += a * b;
    }
    return sum;
}

/* ---- which rows fit f32 ------------------------------------------------------------------------------------ */

enum row_kind {
    ROW_PLAIN,
    ROW_NAN,  /* holds a NaN, which the kernel's decoder may not represent: all its results are NaN */
    ROW_EXACT /* leaves the limits */
};

/* The limits of an operand. A scale is in them when it is 0 or of a magnitude from scale_min to scale_max. A row of values is,
 * when its largest magnitude is 0 or from value_min to value_max (bits of f32, which order like the numbers).
 *
 * A value times its scale is then at most 2^49, so 2^29 products sum up below 2^127, and the largest products of two rows
 * are at least 2^-118. What f32 or VDPBF16PS lose of smaller ones, at most 2^-126 each, is nothing beside these: bf16 values
 * below 2^-126, which VDPBF16PS and TDPBF16PS take for 0, included. */
struct limits {
    float scale_min, scale_max;
    uint32_t value_min, value_max;
};

static inline struct limits operand_limits(const struct dg_gemm_operand *x, const struct dg_gemm_scale *s)
{
    if (x->type == DG_GEMM_F8E4M3 || x->type == DG_GEMM_F4E2M1) { /* 2^-9 .. 448: only the scales matter */
        return (struct limits){0x1p-50f, 0x1p40f, 0, UINT32_MAX};
    }
    if (s->type == DG_SCALE_NONE) {
        return (struct limits){1, 1, dg_bits_of_f32(0x1p-48f), dg_bits_of_f32(0x1p48f)};
    }
    return (struct limits){0x1p-24f, 0x1p24f, dg_bits_of_f32(0x1p-24f), dg_bits_of_f32(0x1p24f)};
}

/* How far a row reaches, gathered while it is decoded: the largest magnitude of its values (bits of f32; 0 for FP8 and FP4), or
 * one of these two. The larger of two reaches is that of both together. */
enum { REACH_NAN = 0x7ffffffe, REACH_EXACT = 0x7fffffff };

static inline uint32_t larger_reach(uint32_t x, uint32_t y)
{
    return x > y ? x : y;
}

static inline bool scale_is_plain(const struct limits *limits, float scale)
{
    const float magnitude = scale < 0 ? -scale : scale;
    return magnitude == 0 || (magnitude >= limits->scale_min && magnitude <= limits->scale_max); /* false for NaN */
}

static inline uint32_t reach_of_scale(const struct limits *limits, float scale)
{
    if (scale_is_plain(limits, scale)) {
        return 0;
    }
    return scale != scale ? REACH_NAN : REACH_EXACT;
}

static inline enum row_kind kind_of_reach(const struct limits *limits, uint32_t reach)
{
    const uint32_t infinity = 0x7f800000u; /* beyond it are the bits of NaN */
    if (reach > infinity && reach != REACH_EXACT) {
        return ROW_NAN;
    }
    if (reach == REACH_EXACT || (reach != 0 && (reach < limits->value_min || reach > limits->value_max))) {
        return ROW_EXACT;
    }
    return ROW_PLAIN;
}

/* ---- scales along k ---------------------------------------------------------------------------------------- */

/* Whether blocks of scales along k are whole multiples of `step`. */
static inline bool has_long_blocks(const struct dg_gemm_scale *s, int64_t k, int64_t step)
{
    return s->type == DG_SCALE_NONE || s->gran_k >= k || s->gran_k % step == 0;
}

/* out[x * out_stride] = the scale of row mn at k0 + x * step, for x < count. No step spans two blocks. Returns a reach. */
static inline uint32_t fill_scales(const struct dg_gemm_scale *s, const struct limits *limits, int64_t mn, int64_t k0, int64_t step, int64_t count,
                            float *out, int64_t out_stride)
{
    if (s->type == DG_SCALE_NONE) {
        for (int64_t x = 0; x < count; x++) {
            out[x * out_stride] = 1;
        }
        return 0;
    }
    uint32_t reach = 0;
    int64_t block = k0 / s->gran_k;
    int64_t left = s->gran_k - k0 % s->gran_k; /* of the block */
    float scale = 0;
    bool is_known = false;
    for (int64_t x = 0; x < count; x++) {
        if (left <= 0) {
            block++;
            left += s->gran_k;
            is_known = false;
        }
        if (!is_known) {
            scale = scale_at(s, mn / s->gran_mn, block);
            is_known = true;
            reach = larger_reach(reach, reach_of_scale(limits, scale));
        }
        out[x * out_stride] = scale;
        left -= step;
    }
    return reach;
}

/* ---- codes along k ----------------------------------------------------------------------------------------- */

/* Bits of one code. */
static inline int64_t code_bits(enum dg_gemm_type type)
{
    switch (type) {
    case DG_GEMM_BF16: return 16;
    case DG_GEMM_F8E4M3: return 8;
    case DG_GEMM_F4E2M1: return 4;
    case DG_GEMM_F32: return 32;
    }
    return 0;
}

/* Bytes of `count` >= 0 codes that lie one after the other; count is even for FP4, or its last byte counts whole. */
static inline int64_t code_bytes(enum dg_gemm_type type, int64_t count)
{
    return (count * code_bits(type) + 7) / 8;
}

/* A row of codes that lie one after the other along k. */
struct code_row {
    const uint8_t *codes;
    enum dg_gemm_type type;
};

static inline bool is_k_major(const struct dg_gemm_operand *x)
{
    return x->stride_k == 1;
}

/* Row mn of a k-major operand, from k0 on; k0 is even for FP4. */
static inline struct code_row code_row_of(const struct dg_gemm_operand *x, int64_t mn, int64_t k0)
{
    const int64_t index = mn * x->stride_mn + k0 * x->stride_k;
    return (struct code_row){(const uint8_t *)x->data + index * code_bits(x->type) / 8, x->type};
}

/* The e4m3 code of each e2m1 code: every FP4 value is an FP8 value. */
static const uint8_t f8e4m3_of_f4e2m1[16] = {0x00, 0x30, 0x38, 0x3c, 0x40, 0x44, 0x48, 0x4c,
                                             0x80, 0xb0, 0xb8, 0xbc, 0xc0, 0xc4, 0xc8, 0xcc};

/* ---- other layouts: copied along k first ------------------------------------------------------------------- */

/* FP4 is widened to FP8 on the way. */
static inline enum dg_gemm_type gathered_type(enum dg_gemm_type type)
{
    return type == DG_GEMM_F4E2M1 ? DG_GEMM_F8E4M3 : type;
}

/* dst[r][c] = src[c][r] for 16 x 16 bytes; strides in bytes. */
static inline void transpose_16x16_bytes(const uint8_t *src, int64_t src_stride, uint8_t *dst, int64_t dst_stride)
{
    __m128i x[16];
    __m128i y[16];
    for (int64_t i = 0; i < 16; i++) {
        x[i] = _mm_loadu_si128((const __m128i *)(src + i * src_stride));
    }
    /* Interleaving row i with row i + 8 moves each bit of the row number into the place of a bit of the column number: four
     * rounds exchange all of them. */
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 8; i++) {
            y[2 * i] = _mm_unpacklo_epi8(x[i], x[i + 8]);
            y[2 * i + 1] = _mm_unpackhi_epi8(x[i], x[i + 8]);
        }
        for (int i = 0; i < 16; i++) {
            x[i] = y[i];
        }
    }
    for (int64_t i = 0; i < 16; i++) {
        _mm_storeu_si128((__m128i *)(dst + i * dst_stride), x[i]);
    }
}

/* dst[r][c] = src[c][r] for 8 x 8 16-bit codes; strides in bytes. */
static inline void transpose_8x8_words(const uint8_t *src, int64_t src_stride, uint8_t *dst, int64_t dst_stride)
{
    __m128i x[8];
    __m128i y[8];
    for (int64_t i = 0; i < 8; i++) {
        x[i] = _mm_loadu_si128((const __m128i *)(src + i * src_stride));
    }
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 4; i++) {
            y[2 * i] = _mm_unpacklo_epi16(x[i], x[i + 4]);
            y[2 * i + 1] = _mm_unpackhi_epi16(x[i], x[i + 4]);
        }
        for (int i = 0; i < 8; i++) {
            x[i] = y[i];
        }
    }
    for (int64_t i = 0; i < 8; i++) {
        _mm_storeu_si128((__m128i *)(dst + i * dst_stride), x[i]);
    }
}

/* One block of codes, any strides, one by one. */
static inline void gather_block(const struct dg_gemm_operand *x, int64_t mn0, int64_t rows, int64_t k0, int64_t count,
                                uint8_t *dst, int64_t dst_stride)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < count; c++) {
            const int64_t index = (mn0 + r) * x->stride_mn + (k0 + c) * x->stride_k;
            switch (x->type) {
            case DG_GEMM_BF16: memcpy(dst + r * dst_stride + 2 * c, (const uint8_t *)x->data + 2 * index, 2); break;
            case DG_GEMM_F8E4M3: dst[r * dst_stride + c] = ((const uint8_t *)x->data)[index]; break;
            case DG_GEMM_F4E2M1: dst[r * dst_stride + c] = f8e4m3_of_f4e2m1[dg_f4e2m1_at(x->data, index)]; break;
            case DG_GEMM_F32: memcpy(dst + r * dst_stride + 4 * c, (const uint8_t *)x->data + 4 * index, 4); break;
            }
        }
    }
}

/* Copies the codes of rows [mn0, mn0 + rows) and k in [k0, k0 + count) so that k is contiguous: row r at dst + r * dst_stride
 * bytes, in gathered_type(). Fast where the rows are contiguous instead (the nn, tn and tt layouts of FP8 and BF16). */
static inline void gather_k_major(const struct dg_gemm_operand *x, int64_t mn0, int64_t rows, int64_t k0, int64_t count,
                                  uint8_t *dst, int64_t dst_stride)
{
    const bool is_mn_major = x->stride_mn == 1;
    const bool has_fast_block = is_mn_major && (x->type == DG_GEMM_F8E4M3 || x->type == DG_GEMM_BF16);
    const int64_t block = x->type == DG_GEMM_BF16 ? 8 : 16;
    const int64_t size = x->type == DG_GEMM_BF16 ? 2 : 1;
    const int64_t fast_rows = has_fast_block ? rows - rows % block : 0;
    const int64_t fast_count = count - count % block;

    for (int64_t c = 0; c < fast_count; c += block) {
        for (int64_t r = 0; r < fast_rows; r += block) {
            const uint8_t *from = (const uint8_t *)x->data + (mn0 + r + (k0 + c) * x->stride_k) * size;
            uint8_t *to = dst + r * dst_stride + c * size;
            if (size == 2) {
                transpose_8x8_words(from, x->stride_k * size, to, dst_stride);
            } else {
                transpose_16x16_bytes(from, x->stride_k * size, to, dst_stride);
            }
        }
    }
    if (fast_rows > 0) {
        gather_block(x, mn0, fast_rows, k0 + fast_count, count - fast_count, dst + fast_count * size, dst_stride);
    }
    gather_block(x, mn0 + fast_rows, rows - fast_rows, k0, count, dst + fast_rows * dst_stride, dst_stride);
}

#endif
