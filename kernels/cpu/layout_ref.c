/* The scale layout kernels on the CPU. Read ops/layout.h first: it has the formulas.
 *
 * The rows of a result are contiguous along mn while those of most inputs are contiguous along k, so the loops go over tiles of rows:
 * a tile's lines of input stay in the L1 cache while its columns are written one by one.
 */
#include "ops/layout.h"

#include <stdatomic.h>

enum {
    TILE_ROWS = 64,       /* 64 rows x 1 line of 64 bytes is 4 KiB */
    WORTH_A_THREAD = 16384 /* words: about 20 us */
};

static int64_t min_i64(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

static int64_t ceil_div(int64_t x, int64_t y)
{
    return x / y + (x % y > 0);
}

static uint32_t *word_at(const struct dg_scale_matrix *x, int64_t g, int64_t i, int64_t q)
{
    return (uint32_t *)x->data + (g * x->stride_group + i * x->stride_mn + q * x->stride_k);
}

/* Tiles that are worth a thread, when a row has this many words. */
static int64_t tile_grain(int64_t words_per_row)
{
    return WORTH_A_THREAD / (TILE_ROWS * (words_per_row + 1)) + 1;
}

/* ---- copy ------------------------------------------------------------------------------------------------- */

static void copy_tiles(void *arg, int64_t begin, int64_t end)
{
    const struct dg_scale_copy_args *args = *(const struct dg_scale_copy_args **)arg;
    const int64_t tiles_per_group = ceil_div(args->mn, TILE_ROWS);
    for (int64_t tile = begin; tile < end; tile++) {
        const int64_t g = tile / tiles_per_group;
        const int64_t first = tile % tiles_per_group * TILE_ROWS;
        const int64_t last = min_i64(first + TILE_ROWS, args->mn);
        for (int64_t q = 0; q < args->k_blocks; q++) {
            for (int64_t i = first; i < last; i++) {
                *word_at(&args->to, g, i, q) = *word_at(&args->from, g, i, q);
            }
        }
    }
}

dg_kernel_result dg_scale_copy_ref(const struct dg_scale_copy_args *args)
{
    const int64_t tiles = args->groups * ceil_div(args->mn, TILE_ROWS);
    args->exec.parallel_for(args->exec.parallel_for_user, tiles, tile_grain(args->k_blocks), copy_tiles, &args);
    return 0;
}

/* ---- pack ------------------------------------------------------------------------------------------------- */

/* The UE8M0 code of the f32 with these bits. */
static uint32_t ue8m0_code(uint32_t bits)
{
    const uint32_t is_nan = 0xffu;
    if ((bits & 0x007fffffu) == 0 && bits < 0x7f800000u) {
        return bits >> 23; /* a power of two from 2^-126 up, or 0 */
    }
    return bits == 0x00400000u ? 0 : is_nan; /* 2^-127 is a subnormal f32 */
}

/* One word: the codes of up to four consecutive blocks of a row, stride_k apart. */
static uint32_t pack_word(const uint32_t *from, int64_t stride_k, int64_t blocks)
{
    uint32_t word = 0;
    for (int64_t j = 0; j < blocks; j++) {
        word |= ue8m0_code(from[j * stride_k]) << (8 * j);
    }
    return word;
}

/* Whether some group of the psum layout has this row of to. */
static bool is_row_used(const struct dg_scale_pack_args *args, int64_t row)
{
    if (args->ends == NULL) {
        return true;
    }
    int64_t end = 0;
    for (int64_t p = 0; p < args->num_ends; p++) {
        const int64_t begin = ceil_div(end, args->alignment) * args->alignment;
        end = args->ends[p * args->ends_stride];
        if (begin <= row && row < end) {
            return true;
        }
    }
    return false;
}

static void pack_tiles(void *arg, int64_t begin, int64_t end)
{
    const struct dg_scale_pack_args *args = *(const struct dg_scale_pack_args **)arg;
    const int64_t tiles_per_group = ceil_div(args->mn, TILE_ROWS);
    for (int64_t tile = begin; tile < end; tile++) {
        const int64_t g = tile / tiles_per_group;
        const int64_t first = tile % tiles_per_group * TILE_ROWS;
        const int64_t rows = min_i64(TILE_ROWS, args->mn - first);
        bool is_used[TILE_ROWS];
        for (int64_t i = 0; i < rows; i++) {
            is_used[i] = is_row_used(args, first + i);
        }
        for (int64_t q = 0; 4 * q < args->k_blocks; q++) {
            const int64_t blocks = min_i64(4, args->k_blocks - 4 * q);
            for (int64_t i = 0; i < rows; i++) {
                const uint32_t *from = word_at(&args->from, g, (first + i) / args->gran_mn, 4 * q);
                *word_at(&args->to, g, first + i, q) = is_used[i] ? pack_word(from, args->from.stride_k, blocks) : 0;
            }
        }
    }
}

dg_kernel_result dg_scale_pack_ref(const struct dg_scale_pack_args *args)
{
    const int64_t tiles = args->groups * ceil_div(args->mn, TILE_ROWS);
    args->exec.parallel_for(args->exec.parallel_for_user, tiles, tile_grain(args->k_blocks), pack_tiles, &args);
    return 0;
}

/* ---- scales without a code -------------------------------------------------------------------------------- */

struct search {
    const struct dg_scale_pack_args *args;
    _Atomic int64_t first; /* lowest index of a scale without a code so far */
};

static bool has_code(uint32_t bits)
{
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return is_nan || ue8m0_code(bits) != 0xffu;
}

/* Rows [begin, end) of from, counted over all groups. */
static void search_rows(void *arg, int64_t begin, int64_t end)
{
    struct search *search = arg;
    const struct dg_scale_pack_args *args = search->args;
    const int64_t rows_per_group = ceil_div(args->mn, args->gran_mn);
    for (int64_t row = begin; row < end; row++) {
        const int64_t g = row / rows_per_group;
        const int64_t i = row % rows_per_group;
        bool is_used = false;
        for (int64_t r = i * args->gran_mn; r < min_i64((i + 1) * args->gran_mn, args->mn) && !is_used; r++) {
            is_used = is_row_used(args, r);
        }
        for (int64_t q = 0; q < args->k_blocks && is_used; q++) {
            if (!has_code(*word_at(&args->from, g, i, q))) {
                const int64_t index = row * args->k_blocks + q;
                int64_t first = search->first;
                while (index < first && !atomic_compare_exchange_weak(&search->first, &first, index)) {
                }
                return;
            }
        }
    }
}

int64_t dg_scale_find_unpackable_ref(const struct dg_scale_pack_args *args)
{
    struct search search = {args, INT64_MAX};
    const int64_t rows = args->groups * ceil_div(args->mn, args->gran_mn);
    const int64_t grain = WORTH_A_THREAD / (args->k_blocks + 1) + 1;
    args->exec.parallel_for(args->exec.parallel_for_user, rows, grain, search_rows, &search);
    return search.first == INT64_MAX ? -1 : search.first;
}

/* ---- pack, k-grouped -------------------------------------------------------------------------------------- */

/* Columns [begin, end) of all groups. */
static void pack_k_grouped_columns(void *arg, int64_t begin, int64_t end)
{
    const struct dg_scale_pack_k_grouped_args *args = *(const struct dg_scale_pack_k_grouped_args **)arg;
    int64_t from_row = 0;
    int64_t to_row = 0;
    int64_t group_end = 0;
    for (int64_t g = 0; g < args->groups; g++) {
        const int64_t blocks = ceil_div(dg_k_group_size(args, g, &group_end), args->gran_k);
        for (int64_t q = 0; 4 * q < blocks; q++) {
            for (int64_t i = begin; i < end; i++) {
                const uint32_t *from = word_at(&args->from, 0, i, from_row + 4 * q);
                *word_at(&args->to, 0, i, to_row + q) = pack_word(from, args->from.stride_k, min_i64(4, blocks - 4 * q));
            }
        }
        from_row += blocks;
        to_row += ceil_div(blocks, 4);
    }
    for (; to_row < args->to_rows; to_row++) {
        for (int64_t i = begin; i < end; i++) {
            *word_at(&args->to, 0, i, to_row) = 0;
        }
    }
}

dg_kernel_result dg_scale_pack_k_grouped_ref(const struct dg_scale_pack_k_grouped_args *args)
{
    const int64_t grain = WORTH_A_THREAD / (args->to_rows + args->groups + 1) + 1;
    args->exec.parallel_for(args->exec.parallel_for_user, args->mn, grain, pack_k_grouped_columns, &args);
    return 0;
}
