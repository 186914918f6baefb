/* The cast operators: from checked views to the structs of cast.h, and from there to a row of dg_cast_backends. */
#include "cast.h"

#include "c/calls.h"
#include "choose.h"
#include "run.h"

static enum dg_cast_type cast_type(enum dg_type type)
{
    switch (type) {
    case DG_TYPE_BF16: return DG_CAST_BF16;
    case DG_TYPE_F16: return DG_CAST_F16;
    default: return DG_CAST_F32; /* the contracts allow no other */
    }
}

static enum dg_cast_scale scale_type(bool use_ue8m0, bool is_packed)
{
    return is_packed ? DG_CAST_SCALE_PACKED : use_ue8m0 ? DG_CAST_SCALE_POWER : DG_CAST_SCALE_F32;
}

/* Fills exec and gives the row that runs. */
static dg_status choose(struct dg_run *run, const char *op, dg_context *ctx, dg_device device, struct dg_exec *exec,
                        const struct dg_cast_backend **backend)
{
    dg_run_prepare(run, op, ctx, device, exec);
    struct dg_row rows[DG_MAX_ROWS];
    for (size_t i = 0; i < dg_cast_backends_count; i++) {
        const struct dg_cast_backend *row = &dg_cast_backends[i];
        rows[i] = (struct dg_row){row->name, row->device_type, row->device_type == device.type && row->can_run(), NULL};
    }
    size_t chosen = 0;
    const dg_status status = dg_choose_row(op, ctx, device, rows, dg_cast_backends_count, &chosen);
    *backend = &dg_cast_backends[chosen];
    return status;
}

static dg_status cast(const char *op, dg_context *ctx, const struct dg_view *x, int64_t gran_m, int64_t gran_n, enum dg_cast_code code_type,
                      enum dg_cast_scale scale_type, const struct dg_view *codes, const struct dg_view *sf)
{
    struct dg_cast_args args = {
        .m = x->shape[0],
        .n = x->shape[1],
        .x = x->data,
        .type = cast_type(x->type),
        .stride_m = x->strides[0],
        .stride_n = x->strides[1],
        .gran_m = gran_m,
        .gran_n = gran_n,
        .code_type = code_type,
        .codes = codes->data,
        .scale_type = scale_type,
        .sf = sf->data,
    };
    if (args.m == 0 || args.n == 0) {
        return DG_OK;
    }
    struct dg_run run;
    const struct dg_cast_backend *backend;
    dg_status status = choose(&run, op, ctx, x->device, &args.exec, &backend);
    if (status == DG_OK) {
        status = dg_run_begin(&run, 0, &args.exec);
    }
    if (status == DG_OK) {
        status = dg_run_end(&run, backend->cast(&args));
    }
    return status;
}

dg_status dg_per_token_cast_to_fp8_impl(dg_context *ctx, const struct dg_per_token_cast_to_fp8_call *call)
{
    return cast("per_token_cast_to_fp8", ctx, &call->x, 1, call->gran_k, DG_CAST_F8E4M3,
                scale_type(call->use_ue8m0, call->use_packed_ue8m0), &call->codes, &call->sf);
}

dg_status dg_per_channel_cast_to_fp8_impl(dg_context *ctx, const struct dg_per_channel_cast_to_fp8_call *call)
{
    return cast("per_channel_cast_to_fp8", ctx, &call->x, call->gran_k, 1, DG_CAST_F8E4M3, scale_type(call->use_ue8m0, false), &call->codes,
                &call->sf);
}

dg_status dg_per_block_cast_to_fp8_impl(dg_context *ctx, const struct dg_per_block_cast_to_fp8_call *call)
{
    return cast("per_block_cast_to_fp8", ctx, &call->x, call->gran_k, call->gran_k, DG_CAST_F8E4M3, scale_type(call->use_ue8m0, false),
                &call->codes, &call->sf);
}

dg_status dg_per_token_cast_to_fp4_impl(dg_context *ctx, const struct dg_per_token_cast_to_fp4_call *call)
{
    return cast("per_token_cast_to_fp4", ctx, &call->x, 1, call->gran_k, DG_CAST_F4E2M1,
                scale_type(call->use_ue8m0, call->use_packed_ue8m0), &call->codes, &call->sf);
}

dg_status dg_cast_back_from_fp4_impl(dg_context *ctx, const struct dg_cast_back_from_fp4_call *call)
{
    const char *op = "cast_back_from_fp4";
    struct dg_cast_back_args args = {
        .m = call->m,
        .n = call->n,
        .codes = call->packed.data,
        .stride_m = call->packed.strides[0],
        .stride_n = call->packed.strides[1],
        .gran_n = call->gran_k,
        .sf = call->sf.data,
        .is_packed = call->use_packed_ue8m0,
        .sf_stride_m = call->sf.strides[0],
        .sf_stride_n = call->sf.strides[1],
        .values = call->values.data,
    };
    if (args.m == 0 || args.n == 0) {
        return DG_OK;
    }
    struct dg_run run;
    const struct dg_cast_backend *backend;
    dg_status status = choose(&run, op, ctx, call->values.device, &args.exec, &backend);
    if (status == DG_OK) {
        status = dg_run_begin(&run, 0, &args.exec);
    }
    if (status == DG_OK) {
        status = dg_run_end(&run, backend->cast_back(&args));
    }
    return status;
}
