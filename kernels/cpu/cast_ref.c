/* The reference casts: the formulas of ops/cast.h, block by block. */
#include "cast_element.h"

enum { WORTH_A_THREAD = 4096 }; /* elements: about 50 us */

static int64_t min_i64(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

static int64_t ceil_div(int64_t x, int64_t y)
{
    return x / y + (x % y > 0);
}

static void cast_block(const struct dg_cast_args *args, int64_t row, int64_t block)
{
    const int64_t i_end = min_i64((row + 1) * args->gran_m, args->m);
    const int64_t j_end = min_i64((block + 1) * args->gran_n, args->n);
    uint32_t largest = 0;
    for (int64_t i = row * args->gran_m; i < i_end; i++) {
        for (int64_t j = block * args->gran_n; j < j_end; j++) {
            const uint32_t magnitude = magnitude_bits(cast_element(args, i, j));
            largest = magnitude > largest ? magnitude : largest;
        }
    }
    const float sf = scale_of_block(args, largest);
    store_scales(args, row, block, 1, &sf);
    for (int64_t i = row * args->gran_m; i < i_end; i++) {
        for (int64_t j = block * args->gran_n; j < j_end; j++) {
            store_code(args, i, j, 1 / sf);
        }
    }
}

/* Pairs of neighbouring blocks [begin, end): the pairs of FP4 codes may lie across blocks, but not across these. */
static void cast_blocks(void *arg, int64_t begin, int64_t end)
{
    const struct dg_cast_args *args = *(const struct dg_cast_args **)arg;
    const int64_t blocks = ceil_div(args->n, args->gran_n);
    const int64_t pairs = ceil_div(blocks, 2);
    for (int64_t item = begin; item < end; item++) {
        const int64_t first = item % pairs * 2;
        for (int64_t block = first; block < min_i64(first + 2, blocks); block++) {
            cast_block(args, item / pairs, block);
        }
    }
}

dg_kernel_result dg_cast_ref(const struct dg_cast_args *args)
{
    const int64_t pairs = ceil_div(ceil_div(args->n, args->gran_n), 2);
    const int64_t block_elements = min_i64(args->gran_m, args->m) * min_i64(2 * args->gran_n, args->n);
    args->exec.parallel_for(args->exec.parallel_for_user, ceil_div(args->m, args->gran_m) * pairs, WORTH_A_THREAD / block_elements + 1,
                            cast_blocks, &args);
    return 0;
}

static void cast_back_rows(void *arg, int64_t begin, int64_t end)
{
    const struct dg_cast_back_args *args = *(const struct dg_cast_back_args **)arg;
    for (int64_t i = begin; i < end; i++) {
        for (int64_t j = 0; j < args->n; j++) {
            args->values[i * args->n + j] = cast_back_element(args, i, j) * cast_back_scale(args, i, j / args->gran_n);
        }
    }
}

dg_kernel_result dg_cast_back_ref(const struct dg_cast_back_args *args)
{
    args->exec.parallel_for(args->exec.parallel_for_user, args->m, WORTH_A_THREAD / args->n + 1, cast_back_rows, &args);
    return 0;
}
