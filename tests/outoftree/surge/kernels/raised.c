/* raised: on the CPU here, on a GPU by the launch function of raised.cu. */
#include "c/calls.h"
#include "core/context.h"
#include "raised.h"

sg_status sg_raised_impl(sg_context *ctx, const struct sg_raised_call *call)
{
    const float *x = call->x.data;
    float *y = call->y.data;
    if (call->x.device.type == SG_CUDA) {
        return surge_raise_on_gpu(x, y, call->n, (float)call->amount, ctx != NULL ? ctx->stream : NULL) == 0 ? SG_OK : SG_ERR_CUDA;
    }
    for (int64_t i = 0; i < call->n; i++) {
        y[i] = x[i] + (float)call->amount;
    }
    return SG_OK;
}
