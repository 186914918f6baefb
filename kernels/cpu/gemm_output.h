/* From sums to d: adds c, converts, and stores. Plain C; the compiler vectorises it for the instruction set of each file that
 * includes it.
 */
#ifndef DG_CPU_GEMM_OUTPUT_H
#define DG_CPU_GEMM_OUTPUT_H

#include "gemm_operand.h"

#include <math.h>

enum { OUTPUT_TILE = 16 }; /* sums leave the kernels in blocks of so many rows and columns of d */

/* Column of d that holds column j of the product. */
static inline int64_t stored_column(const struct dg_gemm_args *args, int64_t j)
{
    if (args->head_mid == 0) {
        return j;
    }
    return j + (j + args->head_right) / (args->head_left + args->head_right) * args->head_mid;
}

static inline float load_c(const struct dg_gemm_args *args, int64_t i, int64_t j)
{
    const int64_t index = i * args->c_stride_m + j * args->c_stride_n;
    return args->d_type == DG_GEMM_F32 ? ((const float *)args->c)[index] : dg_f32_from_bf16(((const uint16_t *)args->c)[index]);
}

/* Rounds to nearest, ties to even; dg_bf16_from_f32() without a branch. */
static inline uint16_t rounded_bf16(float value)
{
    const uint32_t bits = dg_bits_of_f32(value);
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16 | 0x40u) : rounded);
}

static inline void store_element(const struct dg_gemm_args *args, int64_t i, int64_t j, double value)
{
    const int64_t index = i * args->d_stride_m + stored_column(args, j) * args->d_stride_n;
    if (args->d_type == DG_GEMM_F32) {
        ((float *)args->d)[index] = (float)value;
    } else {
        ((uint16_t *)args->d)[index] = dg_bf16_from_f64(value);
    }
}

/* Up to OUTPUT_TILE sums of row i from column j on, all of PLAIN rows. sums has OUTPUT_TILE elements and is overwritten. */
static inline void store_sums(const struct dg_gemm_args *args, int64_t i, int64_t j, int64_t count, float *sums)
{
    if (args->c != NULL) {
        for (int64_t x = 0; x < count; x++) {
            sums[x] += load_c(args, i, j + x);
        }
    }
    const int64_t column = stored_column(args, j);
    if (stored_column(args, j + count - 1) != column + count - 1) { /* the gap is among them */
        for (int64_t x = 0; x < count; x++) {
            store_element(args, i, j + x, (double)sums[x]);
        }
        return;
    }
    const int64_t index = i * args->d_stride_m + column;
    if (args->d_type == DG_GEMM_F32) {
        memcpy((float *)args->d + index, sums, (size_t)count * sizeof(float));
        return;
    }
    uint16_t rounded[OUTPUT_TILE];
    for (int x = 0; x < OUTPUT_TILE; x++) {
        rounded[x] = rounded_bf16(sums[x]);
    }
    uint16_t *d = (uint16_t *)args->d + index;
    if (count == OUTPUT_TILE) {
        memcpy(d, rounded, sizeof(rounded));
    } else {
        memcpy(d, rounded, (size_t)count * sizeof(*rounded));
    }
}

/* Up to OUTPUT_TILE elements of row i from column j on, by the kinds of the rows of a and b that they come from. */
static inline void store_kinds(const struct dg_gemm_args *args, int64_t i, int64_t j, int64_t count, const float *sums, uint8_t a_kind,
                               const uint8_t *b_kinds)
{
    for (int64_t x = 0; x < count; x++) {
        const double c = args->c != NULL ? (double)load_c(args, i, j + x) : 0;
        double sum = (double)sums[x];
        if (a_kind == ROW_NAN || b_kinds[x] == ROW_NAN) {
            sum = (double)NAN;
        } else if (a_kind == ROW_EXACT || b_kinds[x] == ROW_EXACT) {
            sum = exact_sum(args, i, j + x);
        }
        store_element(args, i, j + x, c + sum);
    }
}

#endif
