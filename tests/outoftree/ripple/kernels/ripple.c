/* The five operators: arguments have been checked when these are called. */
#include "c/calls.h"

rp_status rp_scaled_impl(rp_context *ctx, const struct rp_scaled_call *call)
{
    (void)ctx;
    for (int64_t i = 0; i < call->n; i++) {
        const float x = ((const float *)call->x.data)[i * call->x.strides[0]];
        ((float *)call->y.data)[i * call->y.strides[0]] = (float)(call->scale * (double)x);
    }
    return RP_OK;
}

rp_status rp_added_impl(rp_context *ctx, const struct rp_added_call *call)
{
    (void)ctx;
    const float offset = call->offset.has ? (float)call->offset.value : 0.0f;
    for (int64_t i = 0; i < call->n; i++) {
        const float a = ((const float *)call->a.data)[i * call->a.strides[0]];
        const float b = ((const float *)call->b.data)[i * call->b.strides[0]];
        ((float *)call->y.data)[i * call->y.strides[0]] = a + b + offset;
    }
    return RP_OK;
}

rp_status rp_row_sums_impl(rp_context *ctx, const struct rp_row_sums_call *call)
{
    (void)ctx;
    for (int64_t i = 0; i < call->m; i++) {
        double sum = 0.0;
        for (int64_t j = 0; j < call->n; j++) {
            sum += (double)((const float *)call->x.data)[i * call->x.strides[0] + j];
        }
        ((float *)call->sums.data)[i * call->sums.strides[0]] = (float)sum;
    }
    return RP_OK;
}

rp_status rp_largest_impl(rp_context *ctx, const struct rp_largest_call *call)
{
    (void)ctx;
    const float *x = call->x.data;
    float largest = x[0];
    for (int64_t i = 1; i < call->n; i++) {
        const float value = x[i * call->x.strides[0]];
        largest = value > largest ? value : largest;
    }
    *call->out = (double)largest;
    return RP_OK;
}

rp_status rp_filled_impl(rp_context *ctx, const struct rp_filled_call *call)
{
    (void)ctx;
    for (int64_t i = 0; i < call->n; i++) {
        ((float *)call->x.data)[i * call->x.strides[0]] = (float)call->value;
    }
    return RP_OK;
}
