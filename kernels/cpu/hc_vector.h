/* The hyperconnection prenorm with vectors, for AVX2 and AVX-512.
 *
 * Vectors run along k, where both operands lie; nothing is transposed. A unit of work is row_block rows of a by n_block of b over K_PIECE of k:
 *
 *   for each K_BLOCK:   b to tf32, [n_block][K_BLOCK], 24 KiB: it stays in the L1 cache, and in L2 for the next unit of the same piece
 *     for ROWS of a:    to f32, [ROWS][K_BLOCK], and their squares to a sum on the way: a is read from memory once
 *       for COLUMNS:    ROWS x COLUMNS sums in registers, LANES of each
 *   totals              [row_block][n_block] vectors; their lanes are added up at the end of the piece, the pieces of a split in order, in double
 *
 * Neither the number of threads nor that of the rows shows in a result. Within groups of 2 * LANES, first come the even k, then the odd, in a
 * and b alike, so that the two bf16 of a word are widened where they are.
 *
 * The including file defines LANES, ROWS, COLUMNS, vec and the functions declared below.
 */
#ifndef DG_CPU_HC_VECTOR_H
#define DG_CPU_HC_VECTOR_H

#include "core/dtype.h"
#include "gemm_split.h"
#include "ops/hc.h"

enum {
    GROUP = 2 * LANES,
    K_BLOCK = 256,
    K_PIECE = 2048,
    ROW_STEP = 12,  /* a multiple of each ROWS */
    ROW_BLOCK = 24, /* at most: with 24 columns the totals are 20 or 38 KB */
    N_BLOCK = 24,   /* at most; a multiple of each COLUMNS, and the n that this operator is called with */
    M_PART = 128 * ROW_BLOCK /* rows at a time: the sums of their pieces are kept */
};

static inline vec vec_zero(void);
static inline vec vec_load(const float *p);
static inline void vec_store(float *p, vec x);
static inline vec vec_fma(vec x, vec y, vec z); /* x * y + z */
static inline float vec_sum(vec x);             /* in an order of its own, always the same */

/* GROUP elements to f32, those of even k before those of odd k; of b, to tf32. */
static inline void widen_group(const uint16_t *from, vec *even, vec *odd);
static inline void round_group(const float *from, vec *even, vec *odd);

/* ---- plan -------------------------------------------------------------------------------------------------- */

struct plan {
    const struct dg_hc_args *args;
    int64_t row_block, n_block;
    int64_t n_blocks;          /* 1 when n is 0: the squares belong to the first */
    int64_t split_pieces;      /* pieces of a split */
    int64_t m_part;
    int64_t workers;
    float *sums; /* [splits * split_pieces][m_part][n + 1], the squares last */
    uint8_t *slots;
    int64_t slot_bytes, workspace_bytes;

    int64_t m0, m_count; /* the part at hand */
    struct pieces units;
};

/* One worker's part of the workspace. */
struct slot {
    float *b;        /* [K_PIECE / K_BLOCK][n_block][K_BLOCK] */
    float *a;        /* [ROWS][K_BLOCK] */
    float *gathered; /* [K_BLOCK] */
    float *totals;   /* [row_block][n_block + 1][LANES], the squares last */
    int64_t b_of;    /* the piece and block of columns that b has, as the units count them */
};

static int64_t slot_layout(const struct plan *plan, uint8_t *base, struct slot *slot)
{
    int64_t used = 0;
    const int64_t b = take_bytes(&used, plan->n_block * K_PIECE * 4);
    const int64_t a = take_bytes(&used, ROWS * K_BLOCK * 4);
    const int64_t gathered = take_bytes(&used, K_BLOCK * 4);
    const int64_t totals = take_bytes(&used, plan->row_block * (plan->n_block + 1) * LANES * 4);
    if (base != NULL) {
        *slot = (struct slot){(float *)(base + b), (float *)(base + a), (float *)(base + gathered), (float *)(base + totals), -1};
    }
    return used;
}

/* Sizes, and with workspace != NULL pointers too. */
static void make_plan(struct plan *plan, const struct dg_hc_args *args, uint8_t *workspace)
{
    const int64_t longest_split = ceil_div(ceil_div(args->k, DG_HC_SPLIT_STEP), args->num_splits) * DG_HC_SPLIT_STEP;
    const int64_t n_block = even_block(args->n, COLUMNS, N_BLOCK, 1);
    const int64_t m_part = min_i64(args->m, M_PART);
    *plan = (struct plan){
        .args = args,
        .row_block = even_block(m_part, ROW_STEP, ROW_BLOCK, 1),
        .n_block = n_block,
        .n_blocks = max_i64(ceil_div(args->n, n_block), 1),
        .split_pieces = max_i64(ceil_div(longest_split, K_PIECE), 1),
        .m_part = m_part,
    };
    const int64_t units = args->num_splits * plan->split_pieces * plan->n_blocks * ceil_div(m_part, plan->row_block);
    plan->workers = min_i64(max_i64(args->exec.num_threads, 1), units);
    plan->slot_bytes = slot_layout(plan, NULL, NULL);
    int64_t used = 0;
    const int64_t sums = take_bytes(&used, args->num_splits * plan->split_pieces * m_part * (args->n + 1) * 4);
    const int64_t slots = take_bytes(&used, plan->workers * plan->slot_bytes);
    plan->workspace_bytes = used;
    if (workspace != NULL) {
        plan->sums = (float *)(workspace + sums);
        plan->slots = workspace + slots;
    }
}

/* ---- operands ---------------------------------------------------------------------------------------------- */

/* `count` elements of size bytes, stride apart: where they lie, or, when they are apart or are no whole groups, copied to buffer with
 * zeros behind. */
static inline const void *contiguous(const void *from, int64_t size, int64_t stride, int64_t count, void *buffer)
{
    if (stride == 1 && count % GROUP == 0) {
        return from;
    }
    memset(buffer, 0, (size_t)(round_up(count, GROUP) * size));
    for (int64_t k = 0; k < count; k++) {
        memcpy((uint8_t *)buffer + k * size, (const uint8_t *)from + k * stride * size, (size_t)size);
    }
    return buffer;
}

/* Columns [n0, n0 + n_block) of b over k in [k0, k0 + count), to tf32; zeros beyond n. Fetches what comes next along k. */
static void round_b(const struct plan *plan, const struct slot *slot, int64_t n0, int64_t k0, int64_t count, float *out)
{
    const struct dg_hc_args *args = plan->args;
    for (int64_t j = 0; j < plan->n_block; j++, out += K_BLOCK) {
        if (n0 + j >= args->n) {
            memset(out, 0, (size_t)round_up(count, GROUP) * sizeof(float));
            continue;
        }
        const float *b = args->b + (n0 + j) * args->b_stride_n + k0 * args->b_stride_k;
        b = contiguous(b, sizeof(float), args->b_stride_k, count, slot->gathered);
        for (int64_t k = 0; k < count; k += GROUP) {
            vec even;
            vec odd;
            round_group(b + k, &even, &odd);
            vec_store(out + k, even);
            vec_store(out + k + LANES, odd);
            __builtin_prefetch(b + k + K_BLOCK, 0, 2);
            __builtin_prefetch(b + k + K_BLOCK + LANES, 0, 2);
        }
    }
}

/* One row of a over k in [k0, k0 + count), to f32; its squares are added to `squares`. */
static void widen_a(const struct plan *plan, const struct slot *slot, int64_t i, int64_t k0, int64_t count, float *out, float *squares)
{
    const struct dg_hc_args *args = plan->args;
    const uint16_t *a = args->a + i * args->a_stride_m + k0 * args->a_stride_k;
    a = contiguous(a, sizeof(uint16_t), args->a_stride_k, count, slot->gathered);
    vec even_squares = vec_load(squares);
    vec odd_squares = vec_zero();
    for (int64_t k = 0; k < count; k += GROUP) {
        vec even;
        vec odd;
        widen_group(a + k, &even, &odd);
        vec_store(out + k, even);
        vec_store(out + k + LANES, odd);
        even_squares = vec_fma(even, even, even_squares);
        odd_squares = vec_fma(odd, odd, odd_squares);
    }
    vec_store(squares, even_squares + odd_squares);
}

/* ---- sums -------------------------------------------------------------------------------------------------- */

/* totals += a b for `rows` rows of a and COLUMNS of b, over k, whole groups. rows is a constant of each call. */
static inline __attribute__((always_inline)) void multiply_rows(const int rows, const float *a, const float *b, int64_t k, float *totals,
                                                                int64_t totals_stride)
{
    vec sums[ROWS][COLUMNS];
#pragma GCC unroll ROWS
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll COLUMNS
        for (int c = 0; c < COLUMNS; c++) {
            sums[r][c] = vec_load(totals + r * totals_stride + c * LANES);
        }
    }
    for (const float *end = a + k; a < end; a += LANES, b += LANES) {
        vec x[ROWS];
#pragma GCC unroll ROWS
        for (int r = 0; r < rows; r++) {
            x[r] = vec_load(a + r * K_BLOCK);
        }
#pragma GCC unroll COLUMNS
        for (int c = 0; c < COLUMNS; c++) {
            const vec y = vec_load(b + c * K_BLOCK);
#pragma GCC unroll ROWS
            for (int r = 0; r < rows; r++) {
                sums[r][c] = vec_fma(x[r], y, sums[r][c]);
            }
        }
    }
#pragma GCC unroll ROWS
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll COLUMNS
        for (int c = 0; c < COLUMNS; c++) {
            vec_store(totals + r * totals_stride + c * LANES, sums[r][c]);
        }
    }
}

static void multiply(int64_t rows, const float *a, const float *b, int64_t k, float *totals, int64_t totals_stride)
{
    switch (rows) {
    case 1: multiply_rows(1, a, b, k, totals, totals_stride); break;
    case 2: multiply_rows(2, a, b, k, totals, totals_stride); break;
    case 3: multiply_rows(3, a, b, k, totals, totals_stride); break;
    default: multiply_rows(ROWS, a, b, k, totals, totals_stride); break;
    }
}

/* Brings what lies in rows [i, i_end) and k in [k0, k_end) to the cache. Rows are far apart, and the processor does not foresee them. */
static void fetch_a(const struct dg_hc_args *args, int64_t i, int64_t i_end, int64_t k0, int64_t k_end)
{
    const int64_t line = 32;
    for (; args->a_stride_k == 1 && i < i_end; i++) {
        for (int64_t k = k0; k < k_end; k += line) {
            __builtin_prefetch(args->a + i * args->a_stride_m + k);
        }
    }
}

/* The sums of rows [i0, i_end) and columns [n0, n0 + n_block) over k in [k_begin, k_end), to the totals. */
static void add_piece(const struct plan *plan, const struct slot *slot, int64_t i0, int64_t i_end, int64_t n0, int64_t k_begin, int64_t k_end,
                      bool has_b)
{
    const int64_t totals_stride = (plan->n_block + 1) * LANES;
    float *b = slot->b;
    for (int64_t k0 = k_begin; k0 < k_end; k0 += K_BLOCK, b += plan->n_block * K_BLOCK) {
        const int64_t count = min_i64(K_BLOCK, k_end - k0);
        if (!has_b) {
            round_b(plan, slot, n0, k0, count, b);
        }
        for (int64_t i = i0; i < i_end; i += ROWS) {
            const int64_t rows = min_i64(ROWS, i_end - i);
            float *totals = slot->totals + (i - i0) * totals_stride;
            for (int64_t r = 0; r < rows; r++) {
                widen_a(plan, slot, i + r, k0, count, slot->a + r * K_BLOCK, totals + r * totals_stride + plan->n_block * LANES);
            }
            for (int64_t j = 0; j < plan->n_block; j += COLUMNS) {
                /* some rows before each multiplication: all at once would fill the queues of the memory system and stall */
                const int64_t first = j * rows / plan->n_block;
                const int64_t end = (j + COLUMNS) * rows / plan->n_block;
                fetch_a(plan->args, i + ROWS + first, min_i64(i + ROWS + end, i_end), k0, k0 + count);
                multiply(rows, slot->a, b + j * K_BLOCK, round_up(count, GROUP), totals + j * LANES, totals_stride);
            }
        }
    }
}

static void compute_unit(const struct plan *plan, struct slot *slot, int64_t unit)
{
    const struct dg_hc_args *args = plan->args;
    const int64_t row_blocks = ceil_div(plan->m_count, plan->row_block);
    const int64_t i0 = unit % row_blocks * plan->row_block;
    const int64_t i_end = min_i64(i0 + plan->row_block, plan->m_count);
    const int64_t b_of = unit / row_blocks;
    const int64_t n0 = b_of % plan->n_blocks * plan->n_block;
    const int64_t piece = b_of / plan->n_blocks;
    const int64_t split = piece / plan->split_pieces;
    const int64_t split_end = dg_hc_split_begin(args, split + 1);
    const int64_t k_begin = min_i64(dg_hc_split_begin(args, split) + piece % plan->split_pieces * K_PIECE, split_end);
    const int64_t k_end = min_i64(k_begin + K_PIECE, split_end);
    const int64_t totals_stride = (plan->n_block + 1) * LANES;

    memset(slot->totals, 0, (size_t)((i_end - i0) * totals_stride) * sizeof(float));
    add_piece(plan, slot, plan->m0 + i0, plan->m0 + i_end, n0, k_begin, k_end, b_of == slot->b_of);
    slot->b_of = b_of;
    for (int64_t i = i0; i < i_end; i++) {
        const float *totals = slot->totals + (i - i0) * totals_stride;
        float *sums = plan->sums + (piece * plan->m_part + i) * (args->n + 1);
        for (int64_t j = 0; j < min_i64(plan->n_block, args->n - n0); j++) {
            sums[n0 + j] = vec_sum(vec_load(totals + j * LANES));
        }
        if (n0 == 0) {
            sums[args->n] = vec_sum(vec_load(totals + plan->n_block * LANES));
        }
    }
}

static void compute_worker(void *arg, int64_t begin, int64_t end)
{
    struct plan *plan = arg;
    for (int64_t worker = begin; worker < end; worker++) {
        struct slot slot = {0};
        slot_layout(plan, plan->slots + worker * plan->slot_bytes, &slot);
        for (int64_t unit = take_piece(&plan->units); unit < plan->units.count; unit = take_piece(&plan->units)) {
            compute_unit(plan, &slot, unit);
        }
    }
}

/* ---- results ----------------------------------------------------------------------------------------------- */

/* Rows [begin, end) of the part, counted over all splits. */
static void store_rows(void *arg, int64_t begin, int64_t end)
{
    const struct plan *plan = arg;
    const struct dg_hc_args *args = plan->args;
    const int64_t piece_stride = plan->m_part * (args->n + 1);
    for (int64_t row = begin; row < end; row++) {
        const int64_t split = row / plan->m_count;
        const int64_t i = row % plan->m_count;
        const float *sums = plan->sums + split * plan->split_pieces * piece_stride + i * (args->n + 1);
        float *d = args->d + split * args->d_stride_split + (plan->m0 + i) * args->d_stride_m;
        for (int64_t j = 0; j <= args->n; j++) {
            double sum = 0;
            for (int64_t piece = 0; piece < plan->split_pieces; piece++) {
                sum += (double)sums[piece * piece_stride + j];
            }
            if (j < args->n) {
                d[j] = (float)sum;
            } else {
                args->sqr_sum[split * args->sqr_sum_stride_split + (plan->m0 + i) * args->sqr_sum_stride_m] = (float)sum;
            }
        }
    }
}

static size_t hc_workspace(const struct dg_hc_args *args)
{
    struct plan plan;
    make_plan(&plan, args, NULL);
    return (size_t)plan.workspace_bytes;
}

static void run_hc(const struct dg_hc_args *args)
{
    struct plan plan;
    make_plan(&plan, args, args->exec.workspace);
    const int64_t worth_a_thread = 16384; /* sums to add: about 10 us */
    const int64_t grain = worth_a_thread / (plan.split_pieces * (args->n + 1)) + 1;
    for (plan.m0 = 0; plan.m0 < args->m; plan.m0 += plan.m_part) {
        plan.m_count = min_i64(plan.m_part, args->m - plan.m0);
        const int64_t row_blocks = ceil_div(plan.m_count, plan.row_block);
        plan.units = (struct pieces){0, args->num_splits * plan.split_pieces * plan.n_blocks * row_blocks};
        run_workers(&args->exec, min_i64(plan.workers, plan.units.count), compute_worker, &plan);
        args->exec.parallel_for(args->exec.parallel_for_user, args->num_splits * plan.m_count, grain, store_rows, &plan);
    }
}

#endif
