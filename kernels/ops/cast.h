/* The cast family: a matrix to FP8 or FP4 with one scale per block, and FP4 back to f32.
 *
 *   amax = max |x| over a block, at least 1e-4         sf = amax / largest code, with power scales the next power of two
 *   code(i, j) = x(i, j) * (1 / sf), rounded           value(i, j) = code(i, j) * sf
 *
 * Each step is one operation of f32, so every kernel gives the same bits: kernels/cpu/cast_element.h has them one by one.
 * kernels/ops/cast.c fills the structs from checked views and picks a row of dg_cast_backends.
 */
#ifndef DG_OPS_CAST_H
#define DG_OPS_CAST_H

#include "exec.h"

#include <stdbool.h>

enum dg_cast_type { DG_CAST_BF16, DG_CAST_F16, DG_CAST_F32 };

enum dg_cast_code {
    DG_CAST_F8E4M3, /* to nearest, ties to even; infinity becomes 448 with its sign, NaN the code 0x7f */
    DG_CAST_F4E2M1  /* to nearest, ties to the smaller magnitude, no negative zero; infinity becomes 6 with its sign, NaN 6 */
};

enum dg_cast_scale {
    DG_CAST_SCALE_F32,   /* f32 */
    DG_CAST_SCALE_POWER, /* f32, rounded up to a power of two */
    DG_CAST_SCALE_PACKED /* the same as its exponent byte; four bytes of a row make a word, the lowest block in the lowest byte */
};

/* Codes of x in blocks of gran_m x gran_n; those at the right and lower edges may be cut. All that is written is compact. */
struct dg_cast_args {
    int64_t m, n;
    const void *x; /* [m, n] */
    enum dg_cast_type type;
    int64_t stride_m, stride_n; /* elements; any value */

    int64_t gran_m, gran_n;
    enum dg_cast_code code_type;
    uint8_t *codes; /* [m, n]; FP4: pairs [m, n / 2], the even column low; n is even */

    enum dg_cast_scale scale_type;
    void *sf; /* [ceil(m / gran_m), ceil(n / gran_n)] of f32; packed: of bytes, rows filled up to whole words with 127, the byte of 1 */

    struct dg_exec exec;
};

/* values(i, j) = code(i, j) * sf(i, j / gran_n), for FP4 codes. */
struct dg_cast_back_args {
    int64_t m, n;
    const uint8_t *codes; /* element (i, j) is nibble i * stride_m + j * stride_n, the even one low */
    int64_t stride_m, stride_n;

    int64_t gran_n;
    const void *sf; /* (i, q) at i * sf_stride_m + q * sf_stride_n; packed: byte q % 4 of the word with q / 4 in place of q */
    bool is_packed;
    int64_t sf_stride_m, sf_stride_n;

    float *values; /* [m, n], compact */
    struct dg_exec exec;
};

/* A row of the table. m, n > 0 when a kernel is called. */
struct dg_cast_backend {
    const char *name;
    int32_t device_type; /* DG_CPU = 1 or DG_CUDA = 2 */
    bool (*can_run)(void);
    dg_kernel_result (*cast)(const struct dg_cast_args *args);
    dg_kernel_result (*cast_back)(const struct dg_cast_back_args *args);
};

/* Best first; the last row of each device always runs. */
extern const struct dg_cast_backend dg_cast_backends[];
extern const size_t dg_cast_backends_count;

/* Kernels, kernels/cpu/cast_<isa>.c and kernels/cuda/cast_<arch>.cu. */
dg_kernel_result dg_cast_ref(const struct dg_cast_args *args);
dg_kernel_result dg_cast_back_ref(const struct dg_cast_back_args *args);

bool dg_cast_avx2_can_run(void);
dg_kernel_result dg_cast_avx2(const struct dg_cast_args *args);
dg_kernel_result dg_cast_back_avx2(const struct dg_cast_back_args *args);

bool dg_cast_avx512_can_run(void);
dg_kernel_result dg_cast_avx512(const struct dg_cast_args *args);
dg_kernel_result dg_cast_back_avx512(const struct dg_cast_back_args *args);

dg_kernel_result dg_cast_sm80(const struct dg_cast_args *args);
dg_kernel_result dg_cast_back_sm80(const struct dg_cast_back_args *args);

#endif
