/* The reference GEMM: the meaning of ops/gemm.h, element by element, for every type, scale and stride.
 *
 * All of it is in double. The value of an operand times its scale is exact there (at most 8 + 24 bits), the product and
 * the sum round at 2^-53, and the result is rounded once to the type of d. No product is skipped, so NaN and infinity
 * go where arithmetic takes them. Faster kernels are measured against this one; it is not measured against any clock.
 */
#include "core/dtype.h"
#include "ops/gemm.h"

/* Element (mn, k) of an operand. */
static double element(const struct dg_gemm_operand *x, int64_t mn, int64_t k)
{
    const int64_t index = mn * x->stride_mn + k * x->stride_k;
    switch (x->type) {
    case DG_GEMM_BF16: return dg_f32_from_bf16(((const uint16_t *)x->data)[index]);
    case DG_GEMM_F8E4M3: return dg_f32_from_f8e4m3(((const uint8_t *)x->data)[index]);
    case DG_GEMM_F4E2M1: return dg_f32_from_f4e2m1(dg_f4e2m1_at(x->data, index));
    case DG_GEMM_F32: return ((const float *)x->data)[index];
    }
    return 0;
}

/* The scale of the block that holds the element (mn, k). */
static double scale(const struct dg_gemm_scale *s, int64_t mn, int64_t k)
{
    if (s->type == DG_SCALE_NONE) {
        return 1;
    }
    const int64_t row = mn / s->gran_mn;
    const int64_t block = k / s->gran_k;
    if (s->type == DG_SCALE_F32) {
        return ((const float *)s->data)[row * s->stride_mn + block * s->stride_k];
    }
    const uint32_t word = ((const uint32_t *)s->data)[row * s->stride_mn + block / 4 * s->stride_k];
    return dg_f32_from_ue8m0((uint8_t)(word >> (8 * (block % 4))));
}

/* Column of d that holds column j of the product. */
static int64_t stored_column(const struct dg_gemm_args *args, int64_t j)
{
    if (args->head_mid == 0) {
        return j;
    }
    return j + (j + args->head_right) / (args->head_left + args->head_right) * args->head_mid;
}

static double load_c(const struct dg_gemm_args *args, int64_t i, int64_t j)
{
    const int64_t index = i * args->c_stride_m + j * args->c_stride_n;
    if (args->d_type == DG_GEMM_F32) {
        return ((const float *)args->c)[index];
    }
    return dg_f32_from_bf16(((const uint16_t *)args->c)[index]);
}

static void store_d(const struct dg_gemm_args *args, int64_t i, int64_t j, double value)
{
    const int64_t index = i * args->d_stride_m + stored_column(args, j) * args->d_stride_n;
    if (args->d_type == DG_GEMM_F32) {
        ((float *)args->d)[index] = (float)value;
    } else {
        ((uint16_t *)args->d)[index] = dg_bf16_from_f64(value);
    }
}

/* Elements [begin, end) of the product, counted row by row. */
static void compute(void *arg, int64_t begin, int64_t end)
{
    const struct dg_gemm_args *args = *(const struct dg_gemm_args **)arg;
    for (int64_t index = begin; index < end; index++) {
        const int64_t i = index / args->n;
        const int64_t j = index % args->n;
        double sum = args->c != NULL ? load_c(args, i, j) : 0;
        for (int64_t k = 0; k < args->k; k++) {
            const double a = element(&args->a, i, k) * scale(&args->sfa, i, k);
            const double b = element(&args->b, j, k) * scale(&args->sfb, j, k);
            sum += a * b;
        }
        store_d(args, i, j, sum);
    }
}

dg_kernel_result dg_gemm_ref(const struct dg_gemm_args *args)
{
    const int64_t worth_a_thread = 4096; /* products: about 50 us */
    const int64_t grain = worth_a_thread / (args->k + 1) + 1;
    args->exec.parallel_for(args->exec.parallel_for_user, args->m * args->n, grain, compute, &args);
    return 0;
}
