/* What every operator does around its kernel: where it runs, with what workspace, on which device, and what its result means.
 *
 *     struct dg_run run;
 *     dg_run_prepare(&run, "op", ctx, device, &args.exec);       args are now complete but for the workspace: choose a row
 *     status = dg_run_begin(&run, workspace_bytes, &args.exec);
 *     if (status == DG_OK) status = dg_run_end(&run, kernel(&args));
 */
#ifndef DG_OPS_RUN_H
#define DG_OPS_RUN_H

#include "deep_gemm/deep_gemm.h"
#include "exec.h"

#include <fenv.h>

struct dg_run {
    const char *op;
    dg_context *ctx;
    dg_device device;
    dg_parallel_for parallel_for;
    void *parallel_for_user;
    void *workspace;
    size_t workspace_bytes;
    int32_t previous_device;
    fenv_t caller_floats;
};

/* Fills exec for calls on this device. run must stay where it is while exec is used. */
void dg_run_prepare(struct dg_run *run, const char *op, dg_context *ctx, dg_device device, struct dg_exec *exec);

/* Directly before the kernel. On the CPU: takes workspace_bytes (0: none) of workspace, and gives this thread the default floating-point
 * environment; the threads of exec->parallel_for have it too. On CUDA: makes the device current. When it fails there is nothing to end. */
DG_MUST_USE dg_status dg_run_begin(struct dg_run *run, size_t workspace_bytes, struct dg_exec *exec);

/* Directly after the kernel: undoes dg_run_begin() and turns the kernel's result into a status. */
DG_MUST_USE dg_status dg_run_end(struct dg_run *run, dg_kernel_result result);

#endif
