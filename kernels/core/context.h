/* Inside of a dg_context, and how an operator runs on one. */
#ifndef DG_CORE_CONTEXT_H
#define DG_CORE_CONTEXT_H

#include "deep_gemm/deep_gemm.h"

/* What the setters of the library set. Each is one atomic: threads that set and read at once see one value or the other. */
struct dg_settings {
    _Atomic int64_t num_sms; /* 0: not set */
    _Atomic int64_t tc_util; /* percent */
    _Atomic int64_t mk_alignment;
    _Atomic int64_t block_m_multiple_of;
    _Atomic int64_t block_n_multiple_of;
    _Atomic bool pdl;
    _Atomic bool ignore_compile_dims;
};

enum { DG_MAX_BACKEND_NAME = 15 };

struct dg_context {
    dg_device device;
    void *stream;
    char backend[DG_MAX_BACKEND_NAME + 1]; /* forced row; "": none */
    int32_t num_threads;                   /* 0: as many as the process may use */
    dg_parallel_for parallel_for;          /* NULL: the library's own pool */
    void *parallel_for_user;
    dg_alloc alloc; /* NULL: the C library's */
    dg_free free;
    void *alloc_user;
    bool use_process_settings;
    struct dg_settings settings;
};

/* The settings that ctx reads and writes: its own, or those of the process. */
struct dg_settings *dg_settings_of(dg_context *ctx);

/* The row that ctx, or DG_BACKEND in the environment, forces; NULL: none. *source gets what to call it in an error:
 * "dg_context_options.backend" or "DG_BACKEND". The environment is read once. */
const char *dg_forced_backend(const dg_context *ctx, const char **source);

/* How many tasks can run at once, at least 1. */
int32_t dg_context_threads(const dg_context *ctx);

/* Host workspace of at least size_bytes > 0 bytes, 64-byte aligned; NULL when there is none. */
void *dg_context_alloc(const dg_context *ctx, size_t size_bytes);
void dg_context_free(const dg_context *ctx, void *memory, size_t size_bytes);

#endif
