/* The grouped GEMMs: one launch of gemm_grouped.cuh, whose tiles go to d.
 *
 * Distance from the limit, on an H200: 283 TFLOP/s in bf16 and 236 in e4m3 with many rows, a third of torch.mm in bf16; groups of 20 rows
 * read b at 2.5 TB/s in bf16 and half of that in e4m3. An operand that lies along m or n, as those of k-grouped GEMMs do, is gathered element
 * by element: 35 TFLOP/s.
 *
 * Meaning: kernels/ops/grouped.c, which does the same on the CPU with one GEMM per group.
 */
#include "gemm_grouped.h"
#include "gemm_grouped.cuh"

extern "C" dg_kernel_result dg_gemm_grouped_sm80(const struct dg_gemm_args *args, const struct dg_cuda_device *device)
{
    return launch_grouped(args, store_output{}, device);
}
