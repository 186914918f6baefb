/* The GEMM of many groups in one launch, as the row sm80 chooses it; gemm_grouped_sm80.cu. */
#ifndef DG_CUDA_GEMM_GROUPED_H
#define DG_CUDA_GEMM_GROUPED_H

#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif
#include "ops/gemm.h"

/* Takes what dg_gemm_sm80_can_run() says, with at least one group, of any kind but DG_GROUPS_NONE. */
dg_kernel_result dg_gemm_grouped_sm80(const struct dg_gemm_args *args, const struct dg_cuda_device *device);

#ifdef __cplusplus
}
#endif

#endif
