/* The GEMM for few rows of a, as the row sm80 chooses it; gemm_small_sm80.cu. */
#ifndef DG_CUDA_GEMM_SMALL_H
#define DG_CUDA_GEMM_SMALL_H

#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif
#include "ops/gemm.h"

/* Whether it takes these arguments: a subset of what dg_gemm_sm80_can_run() says. */
bool dg_gemm_small_sm80_can_run(const struct dg_gemm_args *args);

dg_kernel_result dg_gemm_small_sm80(const struct dg_gemm_args *args, const struct dg_cuda_device *device);

#ifdef __cplusplus
}
#endif

#endif
