/* The run-time getters and setters. A setter acts on the context of the call when that has settings of its own, otherwise on the
 * process. None of them has a kernel, so no row is chosen and DG_BACKEND has no say. */
#include "c/calls.h"
#include "core/context.h"
#include "cuda/device.h"

dg_status dg_set_mk_alignment_for_contiguous_layout_impl(dg_context *ctx,
                                                         const struct dg_set_mk_alignment_for_contiguous_layout_call *call)
{
    dg_settings_of(ctx)->mk_alignment = call->new_value;
    return DG_OK;
}

dg_status dg_get_mk_alignment_for_contiguous_layout_impl(dg_context *ctx,
                                                         const struct dg_get_mk_alignment_for_contiguous_layout_call *call)
{
    *call->value = dg_settings_of(ctx)->mk_alignment;
    return DG_OK;
}

dg_status
dg_get_theoretical_mk_alignment_for_contiguous_layout_impl(dg_context *ctx,
                                                           const struct dg_get_theoretical_mk_alignment_for_contiguous_layout_call *call)
{
    (void)ctx;
    *call->value = 128; /* rows of the tallest tile of any kernel */
    return DG_OK;
}

dg_status dg_set_num_sms_impl(dg_context *ctx, const struct dg_set_num_sms_call *call)
{
    dg_settings_of(ctx)->num_sms = call->new_num_sms;
    return DG_OK;
}

/* Multiprocessors of the device that ctx means; 0: it means the CPU. A call without a context may be about any device: it gets those of
 * the first GPU where there is one. */
static int64_t multiprocessors(const dg_context *ctx)
{
#ifdef DG_WITH_CUDA
    if (ctx == NULL) {
        return dg_cuda_num_sms(0);
    }
    return ctx->device.type == DG_CUDA ? dg_cuda_num_sms(ctx->device.id) : 0;
#else
    (void)ctx;
    return 0;
#endif
}

dg_status dg_get_num_sms_impl(dg_context *ctx, const struct dg_get_num_sms_call *call)
{
    const int64_t limit = dg_settings_of(ctx)->num_sms;
    const int64_t all = limit > 0 ? 0 : multiprocessors(ctx);
    *call->num_sms = limit > 0 ? limit : all > 0 ? all : dg_context_threads(ctx);
    return DG_OK;
}

dg_status dg_set_tc_util_impl(dg_context *ctx, const struct dg_set_tc_util_call *call)
{
    dg_settings_of(ctx)->tc_util = call->new_tc_util > 0 ? call->new_tc_util : 100;
    return DG_OK;
}

dg_status dg_get_tc_util_impl(dg_context *ctx, const struct dg_get_tc_util_call *call)
{
    *call->tc_util = dg_settings_of(ctx)->tc_util;
    return DG_OK;
}

dg_status dg_set_pdl_impl(dg_context *ctx, const struct dg_set_pdl_call *call)
{
    dg_settings_of(ctx)->pdl = call->new_enable_pdl;
    return DG_OK;
}

dg_status dg_get_pdl_impl(dg_context *ctx, const struct dg_get_pdl_call *call)
{
    *call->enable_pdl = dg_settings_of(ctx)->pdl;
    return DG_OK;
}

dg_status dg_set_ignore_compile_dims_impl(dg_context *ctx, const struct dg_set_ignore_compile_dims_call *call)
{
    dg_settings_of(ctx)->ignore_compile_dims = call->new_value;
    return DG_OK;
}

dg_status dg_set_block_size_multiple_of_impl(dg_context *ctx, const struct dg_set_block_size_multiple_of_call *call)
{
    struct dg_settings *settings = dg_settings_of(ctx);
    settings->block_m_multiple_of = call->new_value[0];
    settings->block_n_multiple_of = call->new_value[1];
    return DG_OK;
}

dg_status dg_init_impl(dg_context *ctx, const struct dg_init_call *call)
{
    (void)ctx;
    (void)call;
    return DG_OK;
}
