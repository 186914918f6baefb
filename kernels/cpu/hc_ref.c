/* The reference of ops/hc.h: sums in double, each result rounded once. */
#include "core/dtype.h"
#include "ops/hc.h"

enum { WORTH_A_THREAD = 4096 }; /* products: about 20 us */

static double a_at(const struct dg_hc_args *args, int64_t i, int64_t k)
{
    return dg_f32_from_bf16(args->a[i * args->a_stride_m + k * args->a_stride_k]);
}

static double b_at(const struct dg_hc_args *args, int64_t j, int64_t k)
{
    return dg_tf32_from_f32(args->b[j * args->b_stride_n + k * args->b_stride_k]);
}

/* Rows [begin, end), counted over all splits. */
static void compute(void *arg, int64_t begin, int64_t end)
{
    const struct dg_hc_args *args = *(const struct dg_hc_args **)arg;
    for (int64_t row = begin; row < end; row++) {
        const int64_t split = row / args->m;
        const int64_t i = row % args->m;
        const int64_t k_begin = dg_hc_split_begin(args, split);
        const int64_t k_end = dg_hc_split_begin(args, split + 1);
        double squares = 0;
        for (int64_t k = k_begin; k < k_end; k++) {
            squares += a_at(args, i, k) * a_at(args, i, k);
        }
        args->sqr_sum[split * args->sqr_sum_stride_split + i * args->sqr_sum_stride_m] = (float)squares;
        for (int64_t j = 0; j < args->n; j++) {
            double sum = 0;
            for (int64_t k = k_begin; k < k_end; k++) {
                sum += a_at(args, i, k) * b_at(args, j, k);
            }
            args->d[split * args->d_stride_split + i * args->d_stride_m + j] = (float)sum;
        }
    }
}

dg_kernel_result dg_hc_ref(const struct dg_hc_args *args)
{
    const int64_t row_products = (args->k / args->num_splits + 1) * (args->n + 1);
    args->exec.parallel_for(args->exec.parallel_for_user, args->num_splits * args->m, WORTH_A_THREAD / row_products + 1, compute, &args);
    return 0;
}
