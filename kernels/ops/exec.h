/* How a kernel runs: the part of every struct dg_<family>_args that is not about the operands. Plain C types only, so that
 * kernels/cpu and kernels/cuda need no tensors, contexts or status.
 */
#ifndef DG_OPS_EXEC_H
#define DG_OPS_EXEC_H

#include <stddef.h>
#include <stdint.h>

struct dg_exec {
    /* CPU: runs task(arg, begin, end) over a partition of [0, count); see deep_gemm.h. */
    void (*parallel_for)(void *user, int64_t count, int64_t grain, void (*task)(void *arg, int64_t begin, int64_t end), void *arg);
    void *parallel_for_user;
    int32_t num_threads; /* hint: how many tasks can run at once, at least 1 */

    /* CUDA: */
    int32_t device_id; /* current for this thread while a kernel's run function runs */
    int32_t num_sms; /* limit of set_num_sms(), 0: all */
    void *stream;    /* a cudaStream_t */

    void *workspace; /* of the size that the kernel's workspace function asked for; CPU: 64-byte aligned */
};

/* What a kernel returns: 0, or a positive cudaError_t. */
typedef int dg_kernel_result;

#endif
