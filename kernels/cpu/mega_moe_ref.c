/* The steps of mega MoE between its GEMMs, on the CPU. Read ops/mega_moe.h first: it has the formulas.
 *
 * SwiGLU is in double and rounded once, to f32. Every row is made by one task from that row alone, so results do not depend on how many
 * threads there are.
 */
#include "core/dtype.h"
#include "ops/mega_moe.h"

#include <math.h>

enum {
    WORTH_A_THREAD = 16384, /* bytes to copy: a few microseconds */
    WORTH_A_THREAD_EXP = 1024, /* elements of SwiGLU: about 20 us */
    GROUP = 8 /* columns of gate, then as many of up */
};

static int64_t code_bytes(const struct dg_mega_moe_args *args)
{
    return args->with_sf ? 1 : 2;
}

/* How many rows are worth a thread. */
static int64_t row_grain(int64_t worth, int64_t per_row)
{
    return worth / (per_row + 1) + 1;
}

/* ---- dispatch --------------------------------------------------------------------------------------------- */

static void dispatch_rows(void *arg, int64_t begin, int64_t end)
{
    const struct dg_mega_moe_args *args = *(const struct dg_mega_moe_args **)arg;
    const int64_t row_bytes = args->hidden * code_bytes(args);
    const int64_t words = args->hidden / 128;
    for (int64_t row = begin; row < end; row++) {
        const int64_t token = args->slots[row] / args->topk;
        memcpy(args->l1_acts + row * row_bytes, args->x + token * row_bytes, (size_t)row_bytes);
        for (int64_t q = 0; args->with_sf && q < words; q++) {
            args->l1_acts_sf[q * args->sf_ring + row] = args->x_sf[token * words + q];
        }
        args->l1_weights[row] = args->topk_weights[args->slots[row]];
    }
}

dg_kernel_result dg_mega_moe_dispatch_ref(const struct dg_mega_moe_args *args)
{
    const int64_t grain = row_grain(WORTH_A_THREAD, args->hidden * code_bytes(args));
    args->exec.parallel_for(args->exec.parallel_for_user, args->rows, grain, dispatch_rows, &args);
    return 0;
}

/* ---- activate --------------------------------------------------------------------------------------------- */

/* Both keep NaN. */
static double at_most(double x, double limit)
{
    return x > limit ? limit : x;
}

static double at_least(double x, double limit)
{
    return x < limit ? limit : x;
}

/* h of a row. It may be the gate_up that it is computed from: column j lies at or before those that it reads. */
static void activate_row(const struct dg_mega_moe_args *args, const float *gate_up, double weight, float *h)
{
    for (int64_t j = 0; j < args->intermediate; j++) {
        const int64_t column = j / GROUP * 2 * GROUP + j % GROUP;
        const double gate = at_most(gate_up[column], args->clamp);
        const double up = at_least(at_most(gate_up[column + GROUP], args->clamp), -args->clamp);
        h[j] = (float)(gate / (1 + exp(-gate)) * up * weight);
    }
}

static void activate_rows(void *arg, int64_t begin, int64_t end)
{
    const struct dg_mega_moe_args *args = *(const struct dg_mega_moe_args **)arg;
    for (int64_t row = begin; row < end; row++) {
        float *h = args->gate_up + row * 2 * args->intermediate;
        activate_row(args, h, args->l1_weights[row], h);
        uint16_t *rounded = (uint16_t *)args->l2_acts + row * args->intermediate;
        for (int64_t j = 0; !args->with_sf && j < args->intermediate; j++) {
            rounded[j] = dg_bf16_from_f32(h[j]);
        }
    }
}

dg_kernel_result dg_mega_moe_activate_ref(const struct dg_mega_moe_args *args)
{
    const int64_t grain = row_grain(WORTH_A_THREAD_EXP, args->intermediate);
    args->exec.parallel_for(args->exec.parallel_for_user, args->rows, grain, activate_rows, &args);
    return 0;
}

/* ---- scatter and combine ---------------------------------------------------------------------------------- */

/* The place of a token's k-th term. */
static uint16_t *slot_of(const struct dg_mega_moe_args *args, int64_t token, int64_t k)
{
    return args->combine + (k * args->max_tokens + token) * args->hidden;
}

static void scatter_rows(void *arg, int64_t begin, int64_t end)
{
    const struct dg_mega_moe_args *args = *(const struct dg_mega_moe_args **)arg;
    for (int64_t row = begin; row < end; row++) {
        const int64_t slot = args->slots[row];
        memcpy(slot_of(args, slot / args->topk, slot % args->topk), args->terms + row * args->hidden, (size_t)args->hidden * 2);
    }
}

dg_kernel_result dg_mega_moe_scatter_ref(const struct dg_mega_moe_args *args)
{
    args->exec.parallel_for(args->exec.parallel_for_user, args->rows, row_grain(WORTH_A_THREAD, args->hidden * 2), scatter_rows, &args);
    return 0;
}

static void combine_columns(const struct dg_mega_moe_args *args, int64_t token, int64_t begin, int64_t count)
{
    float sums[64] = {0};
    for (int64_t k = 0; k < args->topk; k++) {
        if (args->topk_idx[token * args->topk + k] < 0) {
            continue;
        }
        const uint16_t *terms = slot_of(args, token, k) + begin;
        for (int64_t j = 0; j < count; j++) {
            sums[j] += dg_f32_from_bf16(terms[j]);
        }
    }
    uint16_t *y = args->y + token * args->y_stride + begin;
    for (int64_t j = 0; j < count; j++) {
        y[j] = dg_bf16_from_f32(sums[j]);
    }
}

static void combine_tokens(void *arg, int64_t begin, int64_t end)
{
    const struct dg_mega_moe_args *args = *(const struct dg_mega_moe_args **)arg;
    for (int64_t token = begin; token < end; token++) {
        for (int64_t j = 0; j < args->hidden; j += 64) { /* hidden is a multiple of 128 */
            combine_columns(args, token, j, 64);
        }
    }
}

dg_kernel_result dg_mega_moe_combine_ref(const struct dg_mega_moe_args *args)
{
    const int64_t grain = row_grain(WORTH_A_THREAD, args->topk * args->hidden * 2);
    args->exec.parallel_for(args->exec.parallel_for_user, args->num_tokens, grain, combine_tokens, &args);
    return 0;
}
