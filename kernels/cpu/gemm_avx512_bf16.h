/* The part of the row "avx512" that needs AVX-512 BF16: gemm_avx512.c hands over what it is faster for.
 */
#ifndef DG_CPU_GEMM_AVX512_BF16_H
#define DG_CPU_GEMM_AVX512_BF16_H

#include "ops/gemm.h"

#ifdef DG_WITH_AVX512_BF16

bool dg_gemm_avx512_bf16_can_run(const struct dg_gemm_args *args);
size_t dg_gemm_avx512_bf16_workspace(const struct dg_gemm_args *args);
dg_kernel_result dg_gemm_avx512_bf16(const struct dg_gemm_args *args);

#else /* the compiler does not know it */

static inline bool dg_gemm_avx512_bf16_can_run(const struct dg_gemm_args *args)
{
    (void)args;
    return false;
}

static inline size_t dg_gemm_avx512_bf16_workspace(const struct dg_gemm_args *args)
{
    (void)args;
    return 0;
}

static inline dg_kernel_result dg_gemm_avx512_bf16(const struct dg_gemm_args *args)
{
    (void)args;
    return 0;
}

#endif

#endif
