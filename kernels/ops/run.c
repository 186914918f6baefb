/* Around a kernel. See run.h. */
#include "run.h"

#include "core/context.h"
#include "core/parallel.h"
#include "core/status.h"
#include "cuda/device.h"

/* ---- CPU -------------------------------------------------------------------------------------------------- */

/* A caller may have set its threads to flush subnormals to zero or to round another way (torch.set_flush_denormal()). Kernels decode FP8 and
 * scales through subnormal floats, so each of their tasks runs in the default environment. This is the only place that sees to it. */
struct default_floats_task {
    dg_task task;
    void *arg;
};

static void run_with_default_floats(void *arg, int64_t begin, int64_t end)
{
    const struct default_floats_task *inner = arg;
    fenv_t before;
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
    inner->task(inner->arg, begin, end);
    fesetenv(&before);
}

static void parallel_for_with_default_floats(void *user, int64_t count, int64_t grain, dg_task task, void *arg)
{
    const struct dg_run *run = user;
    struct default_floats_task inner = {task, arg};
    run->parallel_for(run->parallel_for_user, count, grain, run_with_default_floats, &inner);
}

static dg_status begin_on_cpu(struct dg_run *run, size_t workspace_bytes, struct dg_exec *exec)
{
    if (workspace_bytes > 0) {
        run->workspace = dg_context_alloc(run->ctx, workspace_bytes);
        if (run->workspace == NULL) {
            return dg_fail(DG_ERR_OUT_OF_MEMORY, "%s: no memory for a workspace of %zu bytes", run->op, workspace_bytes);
        }
        run->workspace_bytes = workspace_bytes;
        exec->workspace = run->workspace;
    }
    fegetenv(&run->caller_floats);
    fesetenv(FE_DFL_ENV);
    return DG_OK;
}

static dg_status end_on_cpu(const struct dg_run *run, dg_kernel_result result)
{
    fesetenv(&run->caller_floats);
    if (run->workspace != NULL) {
        dg_context_free(run->ctx, run->workspace, run->workspace_bytes);
    }
    if (result != 0) {
        return dg_fail(DG_ERR_INTERNAL, "%s: the kernel failed with %d", run->op, result);
    }
    return DG_OK;
}

/* ---- CUDA ------------------------------------------------------------------------------------------------- */

#if defined(DG_WITH_CUDA)

static dg_status cuda_error(const struct dg_run *run, int code)
{
    return dg_fail(DG_ERR_CUDA, "%s: cuda:%d: %s", run->op, (int)run->device.id, dg_cuda_error_text(code));
}

static dg_status begin_on_cuda(struct dg_run *run)
{
    const int code = dg_cuda_enter_device(run->device.id, &run->previous_device);
    return code == 0 ? DG_OK : cuda_error(run, code);
}

static dg_status end_on_cuda(const struct dg_run *run, dg_kernel_result result)
{
    const dg_status status = result == 0 ? DG_OK : cuda_error(run, result);
    dg_cuda_leave_device(run->previous_device);
    return status;
}

#else /* no tensor gets here: dg_check_tensor() refuses CUDA devices */

static dg_status begin_on_cuda(struct dg_run *run)
{
    return dg_fail(DG_ERR_NOT_SUPPORTED, "%s: this library was built without CUDA", run->op);
}

static dg_status end_on_cuda(const struct dg_run *run, dg_kernel_result result)
{
    (void)result;
    return dg_fail(DG_ERR_NOT_SUPPORTED, "%s: this library was built without CUDA", run->op);
}

#endif

/* ---- both ------------------------------------------------------------------------------------------------- */

void dg_run_prepare(struct dg_run *run, const char *op, dg_context *ctx, dg_device device, struct dg_exec *exec)
{
    *run = (struct dg_run){.op = op, .ctx = ctx, .device = device};
    if (ctx != NULL && ctx->parallel_for != NULL) {
        run->parallel_for = ctx->parallel_for;
        run->parallel_for_user = ctx->parallel_for_user;
    } else {
        run->parallel_for = dg_pool_parallel_for;
        run->parallel_for_user = ctx != NULL ? &ctx->num_threads : NULL;
    }

    *exec = (struct dg_exec){.parallel_for = parallel_for_with_default_floats, .parallel_for_user = run};
    exec->num_threads = dg_context_threads(ctx);
    exec->device_id = device.id;
    exec->num_sms = (int32_t)dg_settings_of(ctx)->num_sms;
    exec->stream = ctx != NULL ? ctx->stream : NULL;
}

dg_status dg_run_begin(struct dg_run *run, size_t workspace_bytes, struct dg_exec *exec)
{
    if (run->device.type == DG_CUDA) {
        return begin_on_cuda(run);
    }
    return begin_on_cpu(run, workspace_bytes, exec);
}

dg_status dg_run_end(struct dg_run *run, dg_kernel_result result)
{
    if (run->device.type == DG_CUDA) {
        return end_on_cuda(run, result);
    }
    return end_on_cpu(run, result);
}
