/* The dense GEMM operators: from checked views to struct dg_gemm_args, and from there to a row of dg_gemm_backends.
 *
 * nt, nn, tn and tt are one formula: a transposed operand, and its scales, only swaps strides.
 */
#include "gemm.h"

#include "c/calls.h"
#include "choose.h"
#include "run.h"

/* How an operand and its scales are given: [mn, k], or transposed, [k, mn]. */
enum order { MN_FIRST, K_FIRST };

/* One side of the product. */
struct side {
    struct dg_gemm_operand operand;
    struct dg_gemm_scale scale;
    int64_t mn, k;
};

static enum dg_gemm_type gemm_type(enum dg_type type)
{
    switch (type) {
    case DG_TYPE_BF16: return DG_GEMM_BF16;
    case DG_TYPE_F8E4M3: return DG_GEMM_F8E4M3;
    case DG_TYPE_F4E2M1: return DG_GEMM_F4E2M1;
    default: return DG_GEMM_F32; /* the contracts allow no other */
    }
}

static struct side plain(const struct dg_view *x, enum order order)
{
    const int mn = order == MN_FIRST ? 0 : 1;
    const int k = 1 - mn;
    return (struct side){
        .operand = {x->data, gemm_type(x->type), x->strides[mn], x->strides[k]},
        .scale = {.type = DG_SCALE_NONE, .gran_mn = 1, .gran_k = 1},
        .mn = x->shape[mn],
        .k = x->shape[k],
    };
}

static struct side scaled(const struct dg_view *x, const struct dg_view *sf, enum order order, int64_t gran_mn, int64_t gran_k)
{
    const int mn = order == MN_FIRST ? 0 : 1;
    const enum dg_gemm_scale_type type = sf->type == DG_TYPE_F32 ? DG_SCALE_F32 : DG_SCALE_UE8M0;
    struct side side = plain(x, order);
    side.scale = (struct dg_gemm_scale){sf->data, type, gran_mn, gran_k, sf->strides[mn], sf->strides[1 - mn]};
    return side;
}

static struct dg_gemm_args gemm_args(struct side a, struct side b, const struct dg_view *d, const struct dg_view *c)
{
    struct dg_gemm_args args = {
        .m = a.mn,
        .n = b.mn,
        .k = a.k,
        .a = a.operand,
        .b = b.operand,
        .sfa = a.scale,
        .sfb = b.scale,
        .d = d->data,
        .d_type = gemm_type(d->type),
        .d_stride_m = d->strides[0],
        .d_stride_n = 1, /* the contract's rows; a single column may have any stride */
    };
    if (c != NULL && c->is_given) {
        args.c = c->data;
        args.c_stride_m = c->strides[0];
        args.c_stride_n = c->strides[1];
    }
    return args;
}

/* Chooses a row and runs it. */
static dg_status run(const char *op, dg_context *ctx, dg_device device, struct dg_gemm_args args)
{
    if (args.m == 0 || args.n == 0) {
        return DG_OK;
    }
    struct dg_run run;
    dg_run_prepare(&run, op, ctx, device, &args.exec);

    struct dg_row rows[DG_MAX_ROWS];
    for (size_t i = 0; i < dg_gemm_backends_count; i++) {
        const struct dg_gemm_backend *backend = &dg_gemm_backends[i];
        const bool can_run = backend->device_type == device.type && backend->can_run(&args);
        rows[i] = (struct dg_row){backend->name, backend->device_type, can_run};
    }
    size_t chosen;
    dg_status status = dg_choose_row(op, ctx, device, rows, dg_gemm_backends_count, &chosen);
    if (status != DG_OK) {
        return status;
    }

    const struct dg_gemm_backend *backend = &dg_gemm_backends[chosen];
    status = dg_run_begin(&run, backend->workspace != NULL ? backend->workspace(&args) : 0, &args.exec);
    if (status == DG_OK) {
        status = dg_run_end(&run, backend->run(&args));
    }
    return status;
}

/* ---- FP8 and FP4 ------------------------------------------------------------------------------------------ */

dg_status dg_fp8_fp4_gemm_nt_impl(dg_context *ctx, const struct dg_fp8_fp4_gemm_nt_call *call)
{
    const struct side a = scaled(&call->a, &call->sfa, MN_FIRST, call->gran_mn_a, call->gran_k_a);
    const struct side b = scaled(&call->b, &call->sfb, MN_FIRST, call->gran_mn_b, call->gran_k_b);
    return run("fp8_fp4_gemm_nt", ctx, call->d.device, gemm_args(a, b, &call->d, &call->c));
}

dg_status dg_fp8_fp4_gemm_nn_impl(dg_context *ctx, const struct dg_fp8_fp4_gemm_nn_call *call)
{
    const struct side a = scaled(&call->a, &call->sfa, MN_FIRST, call->gran_mn_a, call->gran_k_a);
    const struct side b = scaled(&call->b, &call->sfb, K_FIRST, call->gran_mn_b, call->gran_k_b);
    return run("fp8_fp4_gemm_nn", ctx, call->d.device, gemm_args(a, b, &call->d, &call->c));
}

dg_status dg_fp8_fp4_gemm_tn_impl(dg_context *ctx, const struct dg_fp8_fp4_gemm_tn_call *call)
{
    const struct side a = scaled(&call->a, &call->sfa, K_FIRST, call->gran_mn_a, call->gran_k_a);
    const struct side b = scaled(&call->b, &call->sfb, K_FIRST, call->gran_mn_b, call->gran_k_b);
    return run("fp8_fp4_gemm_tn", ctx, call->d.device, gemm_args(a, b, &call->d, &call->c));
}

dg_status dg_fp8_fp4_gemm_tt_impl(dg_context *ctx, const struct dg_fp8_fp4_gemm_tt_call *call)
{
    const struct side a = scaled(&call->a, &call->sfa, K_FIRST, call->gran_mn_a, call->gran_k_a);
    const struct side b = scaled(&call->b, &call->sfb, MN_FIRST, call->gran_mn_b, call->gran_k_b);
    return run("fp8_fp4_gemm_tt", ctx, call->d.device, gemm_args(a, b, &call->d, &call->c));
}

dg_status dg_fp8_gemm_nt_skip_head_mid_impl(dg_context *ctx, const struct dg_fp8_gemm_nt_skip_head_mid_call *call)
{
    const struct side a = scaled(&call->a, &call->sfa, MN_FIRST, call->gran_mn_a, call->gran_k_a);
    const struct side b = scaled(&call->b, &call->sfb, MN_FIRST, call->gran_mn_b, call->gran_k_b);
    struct dg_gemm_args args = gemm_args(a, b, &call->d, NULL);
    args.head_left = call->head_splits[0];
    args.head_mid = call->head_splits[1];
    args.head_right = call->head_splits[2];
    return run("fp8_gemm_nt_skip_head_mid", ctx, call->d.device, args);
}

/* ---- BF16 ------------------------------------------------------------------------------------------------- */

dg_status dg_bf16_gemm_nt_impl(dg_context *ctx, const struct dg_bf16_gemm_nt_call *call)
{
    return run("bf16_gemm_nt", ctx, call->d.device, gemm_args(plain(&call->a, MN_FIRST), plain(&call->b, MN_FIRST), &call->d, &call->c));
}

dg_status dg_bf16_gemm_nn_impl(dg_context *ctx, const struct dg_bf16_gemm_nn_call *call)
{
    return run("bf16_gemm_nn", ctx, call->d.device, gemm_args(plain(&call->a, MN_FIRST), plain(&call->b, K_FIRST), &call->d, &call->c));
}

dg_status dg_bf16_gemm_tn_impl(dg_context *ctx, const struct dg_bf16_gemm_tn_call *call)
{
    return run("bf16_gemm_tn", ctx, call->d.device, gemm_args(plain(&call->a, K_FIRST), plain(&call->b, K_FIRST), &call->d, &call->c));
}

dg_status dg_bf16_gemm_tt_impl(dg_context *ctx, const struct dg_bf16_gemm_tt_call *call)
{
    return run("bf16_gemm_tt", ctx, call->d.device, gemm_args(plain(&call->a, K_FIRST), plain(&call->b, MN_FIRST), &call->d, &call->c));
}
