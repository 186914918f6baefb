/* tf32_hc_prenorm_gemm: from checked views to struct dg_hc_args, and from there to a row of dg_hc_backends. */
#include "hc.h"

#include "c/calls.h"
#include "choose.h"
#include "run.h"

dg_status dg_tf32_hc_prenorm_gemm_impl(dg_context *ctx, const struct dg_tf32_hc_prenorm_gemm_call *call)
{
    const char *op = "tf32_hc_prenorm_gemm";
    const struct dg_view *d = &call->d;
    const struct dg_view *sqr_sum = &call->sqr_sum;
    const int32_t split_dims = call->num_splits.has ? 1 : 0;
    struct dg_hc_args args = {
        .m = call->m,
        .n = call->n,
        .k = call->k,
        .a = call->a.data,
        .a_stride_m = call->a.strides[0],
        .a_stride_k = call->a.strides[1],
        .b = call->b.data,
        .b_stride_n = call->b.strides[0],
        .b_stride_k = call->b.strides[1],
        .num_splits = call->splits,
        .d = d->data,
        .d_stride_split = split_dims == 1 ? d->strides[0] : 0,
        .d_stride_m = d->strides[split_dims],
        .sqr_sum = sqr_sum->data,
        .sqr_sum_stride_split = split_dims == 1 ? sqr_sum->strides[0] : 0,
        .sqr_sum_stride_m = sqr_sum->strides[split_dims],
    };
    if (args.m == 0) {
        return DG_OK;
    }
    struct dg_run run;
    dg_run_prepare(&run, op, ctx, d->device, &args.exec);
    struct dg_row rows[DG_MAX_ROWS];
    for (size_t i = 0; i < dg_hc_backends_count; i++) {
        const struct dg_hc_backend *row = &dg_hc_backends[i];
        rows[i] = (struct dg_row){row->name, row->device_type, row->device_type == d->device.type && row->can_run(&args), row->takes};
    }
    size_t chosen = 0;
    dg_status status = dg_choose_row(op, ctx, d->device, rows, dg_hc_backends_count, &chosen);
    if (status != DG_OK) {
        return status;
    }
    const struct dg_hc_backend *backend = &dg_hc_backends[chosen];
    status = dg_run_begin(&run, backend->workspace != NULL ? backend->workspace(&args) : 0, &args.exec);
    if (status == DG_OK) {
        status = dg_run_end(&run, backend->run(&args));
    }
    return status;
}
