/* DG_BACKEND: read once, forces a row where the context does not, and is an error where no row has that name. */
#define _GNU_SOURCE
#include "check.h"
#include "deep_gemm/deep_gemm.h"

static uint16_t numbers[4] = {0x3f80, 0x4000, 0x4040, 0x4080};

static dg_status multiply(dg_context *ctx)
{
    float out[4];
    int64_t shape[2] = {2, 2};
    const dg_tensor a = {numbers, {DG_CPU, 0}, 2, {DG_BF16}, shape, NULL, 0};
    dg_tensor d = {out, {DG_CPU, 0}, 2, {DG_F32}, shape, NULL, 0};
    return dg_bf16_gemm_nt(ctx, &a, &a, &d, NULL);
}

int main(void)
{
    CHECK_INT(setenv("DG_BACKEND", "sm80", 1), 0);
    CHECK_INT(multiply(NULL), DG_ERR_NOT_SUPPORTED);
    CHECK_CONTAINS(dg_last_error(), "bf16_gemm_nt: has no CPU row \"sm80\", which DG_BACKEND asks for; the CPU rows are ");
    CHECK_CONTAINS(dg_last_error(), "ref");

    CHECK_INT(setenv("DG_BACKEND", "ref", 1), 0); /* too late */
    CHECK_INT(multiply(NULL), DG_ERR_NOT_SUPPORTED);

    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    dg_context *ctx;
    CHECK_INT(dg_context_create(&options, &ctx), DG_OK);
    CHECK_INT(multiply(ctx), DG_ERR_NOT_SUPPORTED);
    dg_context_destroy(ctx);
    options.backend = "ref";
    CHECK_INT(dg_context_create(&options, &ctx), DG_OK);
    CHECK_INT(multiply(ctx), DG_OK);
    dg_context_destroy(ctx);

    /* nothing is chosen where nothing is computed */
    CHECK_INT(dg_set_num_sms(NULL, 5), DG_OK);
    return check_report("ops.backend_environment");
}
