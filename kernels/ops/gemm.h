/* The GEMM family: one argument struct for every dense GEMM kernel, on the CPU and on CUDA.
 *
 *   d[i, j] = c[i, j] + sum over k of (a[i, k] * sfa(i, k)) * (b[j, k] * sfb(j, k))
 *
 * All four layouts (nt, nn, tn, tt) are this one formula with other strides. kernels/ops/gemm.c fills the struct from checked
 * views and picks a row of dg_gemm_backends; read kernels/cpu/gemm_ref.c first, it is the meaning of the formula.
 */
#ifndef DG_OPS_GEMM_H
#define DG_OPS_GEMM_H

#include "exec.h"

#include <stdbool.h>

enum dg_gemm_type { DG_GEMM_BF16, DG_GEMM_F8E4M3, DG_GEMM_F4E2M1, DG_GEMM_F32 };

/* a is [m, k], b is [n, k]: "mn" is the dimension that is not k. Strides count elements; any value, also 0 and negative.
 * F4E2M1: element (i, k) is nibble i * stride_mn + k * stride_k from data, the even one low; one stride is 1, the other even. */
struct dg_gemm_operand {
    const void *data;
    enum dg_gemm_type type;
    int64_t stride_mn;
    int64_t stride_k;
};

enum dg_gemm_scale_type {
    DG_SCALE_NONE,  /* 1 */
    DG_SCALE_F32,   /* one f32 per gran_mn x gran_k block, at data[(mn / gran_mn) * stride_mn + (k / gran_k) * stride_k] */
    DG_SCALE_UE8M0  /* int32 words of four exponent bytes e: 2^(e - 127), 255 is NaN; block q = k / gran_k is byte q % 4,
                     * lowest first, of the word at data[(mn / gran_mn) * stride_mn + (q / 4) * stride_k] */
};

struct dg_gemm_scale {
    const void *data;
    enum dg_gemm_scale_type type;
    int64_t gran_mn; /* rows per scale, >= 1 */
    int64_t gran_k;  /* elements of k per scale, >= 1 */
    int64_t stride_mn;
    int64_t stride_k;
};

/* One launch for many groups, each a GEMM of its own: on CUDA only; on the CPU every group is a call. Where they begin and end stands in
 * `layout`, which the kernel reads on the device. It cannot refuse what stands there, so whatever it is, nothing is read or written
 * out of bounds: an index that is no group is padding, and an end is cut to the rows that there are. */
enum dg_gemm_grouping {
    DG_GROUPS_NONE,
    DG_GROUPS_WHOLE,       /* all of them have m rows; no layout */
    DG_GROUPS_MASKED,      /* layout[count]: of m rows, how many the group has */
    DG_GROUPS_INDEX,       /* layout[m]: rows go in tiles of `alignment`, each of the group that its first row names, or skipped: < 0 */
    DG_GROUPS_PSUM,        /* layout[count]: the end row of each, which begins at the end before rounded up to `alignment` */
    DG_GROUPS_PADDED_PSUM, /* ... and rows from the end to the rounded end become 0; then c is NULL */
    DG_GROUPS_K,           /* layout[count]: how much of k the group has, which begins where the one before ends */
    DG_GROUPS_PSUM_K       /* as PSUM, of k */
};

struct dg_gemm_groups {
    enum dg_gemm_grouping kind;
    int64_t count;
    const int32_t *layout;
    int64_t layout_stride;
    int64_t layout_base; /* taken off every entry of a layout of ends or sizes: groups of which some rows come in an earlier launch */
    int64_t alignment;
    int64_t expected_rows; /* of a group: a hint */
    /* From group to group. 0 where a matrix is not cut by groups, or as layout says. */
    int64_t a_stride, sfa_stride, b_stride, sfb_stride, d_stride, c_stride;
    int64_t sfa_words, sfb_words; /* groups of k, whose scales stand one after the other: how many words there are along k */
};

struct dg_gemm_args {
    int64_t m, n, k; /* of all groups together where they share m or k */
    struct dg_gemm_operand a, b;
    struct dg_gemm_scale sfa, sfb;

    const void *c; /* [m, n] of d_type, or NULL; may be d itself with the same strides */
    int64_t c_stride_m, c_stride_n;
    void *d; /* [m, n] */
    enum dg_gemm_type d_type; /* DG_GEMM_BF16 or DG_GEMM_F32 */
    int64_t d_stride_m, d_stride_n; /* d_stride_n is 1 */

    /* Columns of d with a gap (fp8_gemm_nt_skip_head_mid): logical column j is stored at
     * j + (j + head_right) / (head_left + head_right) * head_mid. head_mid == 0: no gap. */
    int64_t head_left, head_mid, head_right;

    struct dg_gemm_groups groups; /* pointers are those of the first */

    struct dg_exec exec;
};

/* A row of the table. can_run says whether this kernel takes these arguments on this machine; run may rely on it.
 * m, n > 0 and k >= 0 when it is called: empty outputs never get here. */
struct dg_gemm_backend {
    const char *name;    /* "ref", "avx2", "avx512", "amx", "sm80", "sm90" */
    int32_t device_type; /* DG_CPU = 1 or DG_CUDA = 2 */
    bool (*can_run)(const struct dg_gemm_args *args);
    size_t (*workspace)(const struct dg_gemm_args *args); /* bytes; NULL: none */
    dg_kernel_result (*run)(const struct dg_gemm_args *args);
    const char *takes; /* what it takes, as messages say it; NULL: everything */
};

/* Best first; the last row of each device always runs. */
extern const struct dg_gemm_backend dg_gemm_backends[];
extern const size_t dg_gemm_backends_count;

/* Kernels, one per file kernels/cpu/gemm_<isa>.c or kernels/cuda/gemm_<arch>.cu. The CPU checks its features in can_run by
 * kernels/core/cpu.h. */
dg_kernel_result dg_gemm_ref(const struct dg_gemm_args *args);

bool dg_gemm_avx2_can_run(const struct dg_gemm_args *args);
size_t dg_gemm_avx2_workspace(const struct dg_gemm_args *args);
dg_kernel_result dg_gemm_avx2(const struct dg_gemm_args *args);

bool dg_gemm_avx512_can_run(const struct dg_gemm_args *args); /* AVX-512 BF16 where the CPU has it, AVX-512 F/BW/VL otherwise */
size_t dg_gemm_avx512_workspace(const struct dg_gemm_args *args);
dg_kernel_result dg_gemm_avx512(const struct dg_gemm_args *args);

bool dg_gemm_amx_can_run(const struct dg_gemm_args *args);
size_t dg_gemm_amx_workspace(const struct dg_gemm_args *args);
dg_kernel_result dg_gemm_amx(const struct dg_gemm_args *args);

bool dg_gemm_sm80_can_run(const struct dg_gemm_args *args);
dg_kernel_result dg_gemm_sm80(const struct dg_gemm_args *args);

#endif
