/* The library's own threads, for contexts that bring none. */
#ifndef DG_CORE_PARALLEL_H
#define DG_CORE_PARALLEL_H

#include "deep_gemm/deep_gemm.h"

/* As many threads as the process may use: the CPUs of its affinity mask. At least 1. */
int32_t dg_usable_threads(void);

/* A dg_parallel_for on at most *limit threads, the calling one among them. limit is a const int32_t *; NULL or a value
 * below 1 means dg_usable_threads().
 *
 * The threads of the pool start when first needed and stay. Any number of threads may call at once; a task that calls
 * again runs its inner loop itself. A child process of fork() begins without threads and starts its own. At exit, and
 * when the library is unloaded, they are joined. */
void dg_pool_parallel_for(void *limit, int64_t count, int64_t grain, dg_task task, void *arg);

#endif
