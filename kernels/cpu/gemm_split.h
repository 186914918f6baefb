/* How the fast GEMM kernels share the work among threads.
 *
 * parallel_for runs one item per worker, once per call: starting and joining threads costs as much as a small product. Each worker takes
 * pieces of the product from a counter until none is left, so a slow or late thread costs no more than a piece. A worker has a slot of the workspace of its own. Every element of d belongs to
 * one piece and is summed in one order, so neither the number of threads nor the size of the pieces shows in the result.
 */
#ifndef DG_CPU_GEMM_SPLIT_H
#define DG_CPU_GEMM_SPLIT_H

#include "ops/exec.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

static inline int64_t min_i64(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

static inline int64_t max_i64(int64_t x, int64_t y)
{
    return x > y ? x : y;
}

static inline int64_t ceil_div(int64_t x, int64_t y)
{
    return (x + y - 1) / y;
}

static inline int64_t round_up(int64_t x, int64_t multiple)
{
    return ceil_div(x, multiple) * multiple;
}

static inline int64_t gcd_i64(int64_t x, int64_t y)
{
    while (y != 0) {
        const int64_t rest = x % y;
        x = y;
        y = rest;
    }
    return x;
}

/* Blocks of at most `most`, a multiple of `step`, that cover size: as even as steps allow, and, if the step allows it, at least
 * `wanted` of them. Returns the size of a block. */
static inline int64_t even_block(int64_t size, int64_t step, int64_t most, int64_t wanted)
{
    const int64_t count = max_i64(ceil_div(size, most), min_i64(wanted, ceil_div(size, step)));
    return max_i64(step, round_up(ceil_div(size, max_i64(count, 1)), step));
}

/* Takes the next `bytes` of the workspace, 64-byte aligned. Returns their offset. */
static inline int64_t take_bytes(int64_t *used, int64_t bytes)
{
    const int64_t offset = *used;
    *used += round_up(bytes, 64);
    return offset;
}

/* Pieces still to be taken. */
struct pieces {
    _Atomic int64_t next;
    int64_t count;
};

/* The next piece, or pieces->count or more when there is none. */
static inline int64_t take_piece(struct pieces *pieces)
{
    return atomic_fetch_add_explicit(&pieces->next, 1, memory_order_relaxed);
}

/* Jobs that all have to be done before the pieces are begun. */
struct jobs {
    struct pieces untaken;
    _Atomic int64_t done;
};

/* The next job, or jobs->untaken.count or more when there is none. */
static inline int64_t take_job(struct jobs *jobs)
{
    return take_piece(&jobs->untaken);
}

static inline void finish_job(struct jobs *jobs)
{
    atomic_fetch_add_explicit(&jobs->done, 1, memory_order_release);
}

/* Waits for the jobs that other workers have taken. They are at work on them, so this ends however few threads there are: also when one
 * thread is all workers in turn, which then finds every job done. */
static inline void wait_for_jobs(struct jobs *jobs)
{
    while (atomic_load_explicit(&jobs->done, memory_order_acquire) < jobs->untaken.count) {
        sched_yield();
    }
}

static inline void run_workers(const struct dg_exec *exec, int64_t workers, void (*work)(void *arg, int64_t begin, int64_t end), void *arg)
{
    if (workers == 1) {
        work(arg, 0, 1);
    } else {
        exec->parallel_for(exec->parallel_for_user, workers, 1, work, arg);
    }
}

#endif
