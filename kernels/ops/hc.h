/* The hyperconnection prenorm: a skinny product and the sums of squares of its left operand, in one pass over it.
 *
 *   d[s, i, j] = sum of a[i, k] * tf32(b[j, k])        sqr_sum[s, i] = sum of a[i, k]^2        over k in part s of num_splits
 *
 * tf32 rounds to 11 significant bits, to nearest, ties to even. A bf16 times a tf32 has 19 bits, so products are exact in f32.
 * kernels/ops/hc.c fills the struct from checked views and picks a row of dg_hc_backends; kernels/cpu/hc_ref.c is the meaning.
 */
#ifndef DG_OPS_HC_H
#define DG_OPS_HC_H

#include "exec.h"

#include <stdbool.h>

struct dg_hc_args {
    int64_t m, n, k;
    const uint16_t *a; /* [m, k] of bf16; strides count elements, any value */
    int64_t a_stride_m, a_stride_k;
    const float *b; /* [n, k] */
    int64_t b_stride_n, b_stride_k;

    int64_t num_splits;
    float *d; /* [num_splits, m, n] */
    int64_t d_stride_split, d_stride_m;
    float *sqr_sum; /* [num_splits, m] */
    int64_t sqr_sum_stride_split, sqr_sum_stride_m;

    struct dg_exec exec;
};

enum { DG_HC_SPLIT_STEP = 64 }; /* parts of k begin at multiples of this */

/* Where part `split` of k begins; part num_splits begins where the last one ends. */
static inline int64_t dg_hc_split_begin(const struct dg_hc_args *args, int64_t split)
{
    const int64_t steps = (args->k + DG_HC_SPLIT_STEP - 1) / DG_HC_SPLIT_STEP;
    /* split / num_splits of the steps, without a product that might not fit */
    const int64_t step = steps / args->num_splits * split + steps % args->num_splits * split / args->num_splits;
    return step * DG_HC_SPLIT_STEP < args->k ? step * DG_HC_SPLIT_STEP : args->k;
}

/* A row of the table. m > 0 when a kernel is called. */
struct dg_hc_backend {
    const char *name;
    int32_t device_type; /* DG_CPU = 1 or DG_CUDA = 2 */
    bool (*can_run)(const struct dg_hc_args *args);
    size_t (*workspace)(const struct dg_hc_args *args); /* bytes; NULL: none */
    dg_kernel_result (*run)(const struct dg_hc_args *args);
    const char *takes; /* see struct dg_row */
};

/* Best first; the last row of each device always runs. */
extern const struct dg_hc_backend dg_hc_backends[];
extern const size_t dg_hc_backends_count;

/* Kernels, kernels/cpu/hc_<isa>.c and kernels/cuda/hc_<arch>.cu. */
dg_kernel_result dg_hc_ref(const struct dg_hc_args *args);

bool dg_hc_avx2_can_run(const struct dg_hc_args *args);
size_t dg_hc_avx2_workspace(const struct dg_hc_args *args);
dg_kernel_result dg_hc_avx2(const struct dg_hc_args *args);

bool dg_hc_avx512_can_run(const struct dg_hc_args *args);
size_t dg_hc_avx512_workspace(const struct dg_hc_args *args);
dg_kernel_result dg_hc_avx512(const struct dg_hc_args *args);

dg_kernel_result dg_hc_sm80(const struct dg_hc_args *args);

bool dg_hc_sm90_can_run(const struct dg_hc_args *args);
dg_kernel_result dg_hc_sm90(const struct dg_hc_args *args);

#endif
