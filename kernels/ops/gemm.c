/* The dense GEMM operators. Each is one call of the GEMM family, gemm_call.h. */
#include "gemm_call.h"

#include "c/calls.h"

/* ---- FP8 and FP4 ------------------------------------------------------------------------------------------ */

dg_status dg_fp8_fp4_gemm_nt_impl(dg_context *ctx, const struct dg_fp8_fp4_gemm_nt_call *call)
{
    const struct dg_gemm_side a = dg_gemm_scaled(&call->a, &call->sfa, DG_MN_FIRST, call->gran_mn_a, call->gran_k_a);
    const struct dg_gemm_side b = dg_gemm_scaled(&call->b, &call->sfb, DG_MN_FIRST, call->gran_mn_b, call->gran_k_b);
    return dg_gemm_run("fp8_fp4_gemm_nt", ctx, call->d.device, dg_gemm_args_of(a, b, &call->d, &call->c));
}

dg_status dg_fp8_fp4_gemm_nn_impl(dg_context *ctx, const struct dg_fp8_fp4_gemm_nn_call *call)
{
    const struct dg_gemm_side a = dg_gemm_scaled(&call->a, &call->sfa, DG_MN_FIRST, call->gran_mn_a, call->gran_k_a);
    const struct dg_gemm_side b = dg_gemm_scaled(&call->b, &call->sfb, DG_K_FIRST, call->gran_mn_b, call->gran_k_b);
    return dg_gemm_run("fp8_fp4_gemm_nn", ctx, call->d.device, dg_gemm_args_of(a, b, &call->d, &call->c));
}

dg_status dg_fp8_fp4_gemm_tn_impl(dg_context *ctx, const struct dg_fp8_fp4_gemm_tn_call *call)
{
    const struct dg_gemm_side a = dg_gemm_scaled(&call->a, &call->sfa, DG_K_FIRST, call->gran_mn_a, call->gran_k_a);
    const struct dg_gemm_side b = dg_gemm_scaled(&call->b, &call->sfb, DG_K_FIRST, call->gran_mn_b, call->gran_k_b);
    return dg_gemm_run("fp8_fp4_gemm_tn", ctx, call->d.device, dg_gemm_args_of(a, b, &call->d, &call->c));
}

dg_status dg_fp8_fp4_gemm_tt_impl(dg_context *ctx, const struct dg_fp8_fp4_gemm_tt_call *call)
{
    const struct dg_gemm_side a = dg_gemm_scaled(&call->a, &call->sfa, DG_K_FIRST, call->gran_mn_a, call->gran_k_a);
    const struct dg_gemm_side b = dg_gemm_scaled(&call->b, &call->sfb, DG_MN_FIRST, call->gran_mn_b, call->gran_k_b);
    return dg_gemm_run("fp8_fp4_gemm_tt", ctx, call->d.device, dg_gemm_args_of(a, b, &call->d, &call->c));
}

dg_status dg_fp8_gemm_nt_skip_head_mid_impl(dg_context *ctx, const struct dg_fp8_gemm_nt_skip_head_mid_call *call)
{
    const struct dg_gemm_side a = dg_gemm_scaled(&call->a, &call->sfa, DG_MN_FIRST, call->gran_mn_a, call->gran_k_a);
    const struct dg_gemm_side b = dg_gemm_scaled(&call->b, &call->sfb, DG_MN_FIRST, call->gran_mn_b, call->gran_k_b);
    struct dg_gemm_args args = dg_gemm_args_of(a, b, &call->d, NULL);
    args.head_left = call->head_splits[0];
    args.head_mid = call->head_splits[1];
    args.head_right = call->head_splits[2];
    return dg_gemm_run("fp8_gemm_nt_skip_head_mid", ctx, call->d.device, args);
}

/* ---- without scales --------------------------------------------------------------------------------------- */

dg_status dg_bf16_gemm_nt_impl(dg_context *ctx, const struct dg_bf16_gemm_nt_call *call)
{
    const struct dg_gemm_side a = dg_gemm_plain(&call->a, DG_MN_FIRST);
    const struct dg_gemm_side b = dg_gemm_plain(&call->b, DG_MN_FIRST);
    return dg_gemm_run("bf16_gemm_nt", ctx, call->d.device, dg_gemm_args_of(a, b, &call->d, &call->c));
}

dg_status dg_bf16_gemm_nn_impl(dg_context *ctx, const struct dg_bf16_gemm_nn_call *call)
{
    const struct dg_gemm_side a = dg_gemm_plain(&call->a, DG_MN_FIRST);
    const struct dg_gemm_side b = dg_gemm_plain(&call->b, DG_K_FIRST);
    return dg_gemm_run("bf16_gemm_nn", ctx, call->d.device, dg_gemm_args_of(a, b, &call->d, &call->c));
}

dg_status dg_bf16_gemm_tn_impl(dg_context *ctx, const struct dg_bf16_gemm_tn_call *call)
{
    const struct dg_gemm_side a = dg_gemm_plain(&call->a, DG_K_FIRST);
    const struct dg_gemm_side b = dg_gemm_plain(&call->b, DG_K_FIRST);
    return dg_gemm_run("bf16_gemm_tn", ctx, call->d.device, dg_gemm_args_of(a, b, &call->d, &call->c));
}

dg_status dg_bf16_gemm_tt_impl(dg_context *ctx, const struct dg_bf16_gemm_tt_call *call)
{
    const struct dg_gemm_side a = dg_gemm_plain(&call->a, DG_K_FIRST);
    const struct dg_gemm_side b = dg_gemm_plain(&call->b, DG_MN_FIRST);
    return dg_gemm_run("bf16_gemm_tt", ctx, call->d.device, dg_gemm_args_of(a, b, &call->d, &call->c));
}

dg_status dg_cublaslt_gemm_nt_impl(dg_context *ctx, const struct dg_cublaslt_gemm_nt_call *call)
{
    const struct dg_gemm_side a = dg_gemm_plain(&call->a, DG_MN_FIRST);
    const struct dg_gemm_side b = dg_gemm_plain(&call->b, DG_MN_FIRST);
    return dg_gemm_run("cublaslt_gemm_nt", ctx, call->d.device, dg_gemm_args_of(a, b, &call->d, &call->c));
}

dg_status dg_cublaslt_gemm_nn_impl(dg_context *ctx, const struct dg_cublaslt_gemm_nn_call *call)
{
    const struct dg_gemm_side a = dg_gemm_plain(&call->a, DG_MN_FIRST);
    const struct dg_gemm_side b = dg_gemm_plain(&call->b, DG_K_FIRST);
    return dg_gemm_run("cublaslt_gemm_nn", ctx, call->d.device, dg_gemm_args_of(a, b, &call->d, &call->c));
}

dg_status dg_cublaslt_gemm_tn_impl(dg_context *ctx, const struct dg_cublaslt_gemm_tn_call *call)
{
    const struct dg_gemm_side a = dg_gemm_plain(&call->a, DG_K_FIRST);
    const struct dg_gemm_side b = dg_gemm_plain(&call->b, DG_K_FIRST);
    return dg_gemm_run("cublaslt_gemm_tn", ctx, call->d.device, dg_gemm_args_of(a, b, &call->d, &call->c));
}

dg_status dg_cublaslt_gemm_tt_impl(dg_context *ctx, const struct dg_cublaslt_gemm_tt_call *call)
{
    const struct dg_gemm_side a = dg_gemm_plain(&call->a, DG_K_FIRST);
    const struct dg_gemm_side b = dg_gemm_plain(&call->b, DG_MN_FIRST);
    return dg_gemm_run("cublaslt_gemm_tt", ctx, call->d.device, dg_gemm_args_of(a, b, &call->d, &call->c));
}
