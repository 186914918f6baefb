/* Contexts and the settings of the process. */
#include "context.h"

#include "backend.h"
#include "check.h"
#include "parallel.h"
#include "status.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { WORKSPACE_ALIGNMENT = 64 };

static const struct dg_settings default_settings = {
    .tc_util = 100,
    .mk_alignment = 128,
    .block_m_multiple_of = 1,
    .block_n_multiple_of = 1,
};

static struct dg_settings process_settings;
static pthread_once_t process_once = PTHREAD_ONCE_INIT;

static void begin_process_settings(void)
{
    process_settings = default_settings;
}

struct dg_settings *dg_settings_of(dg_context *ctx)
{
    if (ctx != NULL && !ctx->use_process_settings) {
        return &ctx->settings;
    }
    pthread_once(&process_once, begin_process_settings);
    return &process_settings;
}

/* ---- creation --------------------------------------------------------------------------------------------- */

static bool check_options(struct dg_checker *chk, const dg_context_options *options)
{
    if (options->device.type != DG_CPU && options->device.type != DG_CUDA) {
        return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "options->device.type is %d, expected DG_CPU (1) or DG_CUDA (2)",
                             (int)options->device.type);
    }
    if (options->device.type == DG_CUDA && !dg_has_cuda()) {
        return dg_check_fail(chk, DG_ERR_NOT_SUPPORTED, "options->device is a CUDA device, but this library was built without CUDA");
    }
    if (options->device.id < 0) {
        return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "options->device.id is %d, expected >= 0", (int)options->device.id);
    }
    if (options->num_threads < 0) {
        return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "options->num_threads is %d, expected >= 0", (int)options->num_threads);
    }
    if ((options->alloc == NULL) != (options->free == NULL)) {
        return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "options->%s is NULL, expected alloc and free together",
                             options->alloc == NULL ? "alloc" : "free");
    }
    if (options->backend != NULL && !dg_backend_exists(options->backend)) {
        return dg_check_fail(chk, DG_ERR_NOT_SUPPORTED, "options->backend is \"%.64s\", expected one of %s", options->backend,
                             dg_backend_names);
    }
    return true;
}

dg_status dg_context_create(const dg_context_options *caller_options, dg_context **out)
{
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    struct dg_checker chk = dg_checker_begin("dg_context_create", NULL);
    if (!dg_check_pointer(&chk, "out", out)) {
        return chk.status;
    }
    *out = NULL;
    if (!dg_check_options(&chk, caller_options, NULL, 0, &options, sizeof(options), "DG_CONTEXT_OPTIONS_INIT") ||
        !check_options(&chk, &options)) {
        return chk.status;
    }

    dg_context *ctx = calloc(1, sizeof(*ctx));
    if (ctx == NULL) {
        return dg_fail(DG_ERR_OUT_OF_MEMORY, "dg_context_create: no memory for a context of %zu bytes", sizeof(*ctx));
    }
    if (options.backend != NULL) {
        strncpy(ctx->backend, options.backend, DG_MAX_BACKEND_NAME);
    }
    ctx->num_threads = options.num_threads;
    ctx->parallel_for = options.parallel_for;
    ctx->parallel_for_user = options.parallel_for_user;
    ctx->alloc = options.alloc;
    ctx->free = options.free;
    ctx->alloc_user = options.alloc_user;
    ctx->use_process_settings = options.use_process_settings;
    ctx->settings = default_settings;
    dg_context_set_stream(ctx, options.device, options.stream);
    *out = ctx;
    return DG_OK;
}

void dg_context_destroy(dg_context *ctx)
{
    free(ctx);
}

void dg_context_set_stream(dg_context *ctx, dg_device device, void *stream)
{
    ctx->device.type = device.type;
    ctx->device.id = device.type == DG_CPU ? 0 : device.id;
    ctx->stream = stream;
}

/* ---- what an operator asks -------------------------------------------------------------------------------- */

static char environment_backend[DG_MAX_BACKEND_NAME + 1];
static pthread_once_t environment_once = PTHREAD_ONCE_INIT;

static void read_environment(void)
{
    const char *value = getenv("DG_BACKEND");
    if (value != NULL) {
        strncpy(environment_backend, value, DG_MAX_BACKEND_NAME); /* longer than any row: still no row's name when cut */
    }
}

const char *dg_forced_backend(const dg_context *ctx, const char **source)
{
    if (ctx != NULL && ctx->backend[0] != '\0') {
        *source = "dg_context_options.backend";
        return ctx->backend;
    }
    pthread_once(&environment_once, read_environment);
    *source = "DG_BACKEND";
    return environment_backend[0] == '\0' ? NULL : environment_backend;
}

int32_t dg_context_threads(const dg_context *ctx)
{
    return ctx != NULL && ctx->num_threads > 0 ? ctx->num_threads : dg_usable_threads();
}

void *dg_context_alloc(const dg_context *ctx, size_t size_bytes)
{
    if (ctx != NULL && ctx->alloc != NULL) {
        return ctx->alloc(ctx->alloc_user, size_bytes);
    }
    if (size_bytes > SIZE_MAX - (WORKSPACE_ALIGNMENT - 1)) {
        return NULL;
    }
    const size_t rounded = (size_bytes + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT;
    return aligned_alloc(WORKSPACE_ALIGNMENT, rounded);
}

void dg_context_free(const dg_context *ctx, void *memory, size_t size_bytes)
{
    if (ctx != NULL && ctx->free != NULL) {
        ctx->free(ctx->alloc_user, memory, size_bytes);
    } else {
        free(memory);
    }
}
