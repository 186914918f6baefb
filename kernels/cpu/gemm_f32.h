/* The f32 form of the GEMM: codes and scales become f32, products are summed in f32. For AVX2 and AVX-512.
 *
 * A value times its scale is rounded once, when it is decoded, so no scale is seen again whatever its blocks are. Chains of f32
 * additions end every K_BLOCK. Two ways to multiply:
 *
 *   dot    up to DOT_ROWS rows of a, b k-major: vectors run along k, b is decoded in registers and used there. Reads of b from
 *          memory are all that takes time.
 *   outer  otherwise: vectors run along m. b is decoded into a panel as it lies, k-major, and its elements are broadcast;
 *          a, smaller and used by every row of b, is packed once per call.
 *
 *   b panel   [n][k]                    by each worker for its piece, in its slot
 *   a panels  [m / width][k][width]     width is two vectors; one, in the last panel, where no more rows are left
 *   totals    [n][m]
 *
 * k is permuted within groups of GROUP, in a and b alike, so that decoding needs no shuffles: first the even k, then the odd.
 *
 * The including file defines LANES, WIDE_ROWS (rows of b in a tile WIDTH wide; a divisor of N_STEP), vec, struct reach_lanes, which
 * gathers the reach of a row vector by vector, and the functions declared below.
 */
#ifndef DG_CPU_GEMM_F32_H
#define DG_CPU_GEMM_F32_H

#include "gemm_operand.h"
#include "gemm_output.h"
#include "gemm_split.h"
#include "gemm_transpose.h"

enum {
    GROUP = 4 * LANES,
    SCALE_K = 32, /* k per scale of a row */
    HALVES = GROUP / SCALE_K,
    WIDTH = 2 * LANES,
    K_BLOCK = 256, /* k of a panel of b, and of a chain of additions */
    PACK_K = 1024, /* k of a job of packing a */
    N_STEP = 12,
    DOT_ROWS = 4,
    DOT_STEP = 2,  /* rows of b at a time */
    DOT_UNIT = 512 /* k of chains of additions, at most */
};

static inline vec vec_zero(void);
static inline vec vec_set(float x);
static inline vec vec_load(const float *p);
static inline void vec_store(float *p, vec x);
static inline vec vec_mul(vec x, vec y);
static inline vec vec_add(vec x, vec y);
static inline vec vec_fma(vec x, vec y, vec z); /* x * y + z */
static inline float vec_sum(vec x);             /* in an order of its own, always the same */

/* Decodes GROUP codes: out[0] and out[1] are those of the even k, out[2] and out[3] those of the odd; FP8 and FP4 come out as
 * value / code_factor(). FP4 codes are already widened to FP8. */
static inline void decode_group(enum dg_gemm_type type, const uint8_t *codes, vec out[4], struct reach_lanes *reach);
static inline uint32_t reach_of_lanes(enum dg_gemm_type type, const struct reach_lanes *reach);
static inline struct reach_lanes no_reach(void);

/* GROUP nibbles, two per byte, to as many e4m3 codes. */
static inline void widen_f4e2m1(const uint8_t *pairs, uint8_t *codes);

/* to[c][r] = from[r][c] for LANES x LANES; strides in floats. */
static inline void transpose_lanes(const float *from, int64_t from_stride, float *to, int64_t to_stride);

/* sum0 += *b * a0; sum1 += *b * a1 */
static inline void add_wide_row(const float *b, vec a0, vec a1, vec *sum0, vec *sum1);
static inline void add_narrow_row(const float *b, vec a0, vec *sum0);

/* FP8 decodes by way of f16, whose exponents have another bias: 2^8. */
static inline float code_factor(enum dg_gemm_type type)
{
    return type == DG_GEMM_F8E4M3 ? 256 : 1;
}

/* Place within its group of the k-th of the group. */
static inline int64_t place_in_group(int64_t k)
{
    return k / 2 + k % 2 * (GROUP / 2);
}

/* ---- the plan ---------------------------------------------------------------------------------------------- */

struct plan {
    const struct dg_gemm_args *args;
    struct limits a_limits, b_limits;
    bool a_has_rows, b_has_rows; /* scales are constant over SCALE_K; otherwise elements are decoded one by one */
    bool is_dot;
    int64_t dot_unit; /* k over which the scales of b are constant, a power of two */
    int64_t k_padded; /* to a multiple of GROUP */
    int64_t pack_jobs;
    int64_t workers;
    int64_t m_part;   /* rows of a packed at a time, a multiple of WIDTH */
    int64_t m_block;  /* of a piece */
    int64_t n_block;

    float *a_panels;
    uint32_t *a_reach; /* [pack_jobs][m_part] */
    uint8_t *slots;
    int64_t slot_bytes;
    int64_t workspace_bytes;

    /* the part in progress */
    int64_t m0, m_count;
    int64_t m_pieces;
    struct jobs packing;
    struct pieces pieces;
};

/* One worker's part of the workspace. */
struct slot {
    float *panel;      /* [n_block][PANEL_STRIDE]; [WIDTH][PACK_STRIDE] while a is packed */
    uint8_t *gathered; /* rows of codes, where an operand is not k-major */
    float *totals;     /* [n_block][m_block]; of dot: [DOT_ROWS][n_block] */
    float *scales;     /* of a row, or, in the dot form, of DOT_STEP rows over all k */
    uint32_t *b_reach; /* [n_block] */
    uint8_t *b_kinds;  /* [n_block] */
};

enum { /* rows of a panel begin in different sets of the L1 cache */
    PANEL_STRIDE = K_BLOCK + 16,
    PACK_STRIDE = PACK_K + 16
};

static int64_t slot_layout(const struct plan *plan, uint8_t *base, struct slot *slot)
{
    const int64_t widest = 4; /* bytes of a code */
    const int64_t panel_floats = plan->is_dot ? 0 : max_i64(plan->n_block * PANEL_STRIDE, WIDTH * PACK_STRIDE);
    const int64_t gathered_codes = max_i64(plan->n_block * K_BLOCK, WIDTH * PACK_K);
    const bool is_gathered = !is_k_major(&plan->args->a) || !is_k_major(&plan->args->b);
    const int64_t totals_floats = plan->n_block * (plan->is_dot ? DOT_ROWS : plan->m_block);
    const int64_t scale_floats = plan->is_dot ? DOT_STEP * ceil_div(plan->args->k, plan->dot_unit) : 0;
    int64_t used = 0;
    const int64_t panel = take_bytes(&used, panel_floats * 4);
    const int64_t gathered = take_bytes(&used, is_gathered ? gathered_codes * widest : 0);
    const int64_t totals = take_bytes(&used, totals_floats * 4);
    const int64_t scales = take_bytes(&used, max_i64(scale_floats, PACK_K / SCALE_K) * 4);
    const int64_t b_reach = take_bytes(&used, plan->n_block * 4);
    const int64_t b_kinds = take_bytes(&used, plan->n_block);
    if (base != NULL) {
        slot->panel = (float *)(base + panel);
        slot->gathered = base + gathered;
        slot->totals = (float *)(base + totals);
        slot->scales = (float *)(base + scales);
        slot->b_reach = (uint32_t *)(base + b_reach);
        slot->b_kinds = base + b_kinds;
    }
    return used;
}

/* Sizes, and with workspace != NULL pointers too. */
static void make_plan(struct plan *plan, const struct dg_gemm_args *args, uint8_t *workspace)
{
    plan->args = args;
    plan->a_limits = operand_limits(&args->a, &args->sfa);
    plan->b_limits = operand_limits(&args->b, &args->sfb);
    plan->a_has_rows = has_long_blocks(&args->sfa, args->k, SCALE_K);
    plan->b_has_rows = has_long_blocks(&args->sfb, args->k, SCALE_K);
    plan->is_dot = args->m <= DOT_ROWS && is_k_major(&args->b) && plan->b_has_rows;
    plan->dot_unit = args->sfb.type == DG_SCALE_NONE || args->sfb.gran_k >= args->k ? DOT_UNIT : gcd_i64(DOT_UNIT, args->sfb.gran_k);
    plan->k_padded = round_up(args->k, GROUP);
    plan->pack_jobs = ceil_div(args->k, PACK_K);

    /* 32 MiB of packed a stay in a last-level cache, and b is read once for each such part. */
    const int64_t part_rows = ((int64_t)32 << 20) / max_i64(plan->k_padded * 4, 1);
    plan->m_part = min_i64(round_up(args->m, WIDTH), max_i64(part_rows / WIDTH * WIDTH, WIDTH));
    plan->m_block = even_block(plan->m_part, WIDTH, 256, 1);

    /* A panel of 96 rows is 100 KB: it stays in L2 beside a panel of a, and decoding it is shared by up to 256 rows of a. */
    plan->workers = max_i64(args->exec.num_threads, 1);
    plan->n_block = plan->is_dot ? even_block(args->n, DOT_STEP, 32, plan->workers) : even_block(args->n, N_STEP, 96, 2 * plan->workers);
    plan->workers = min_i64(plan->workers, ceil_div(args->n, plan->n_block) * ceil_div(plan->m_part, plan->m_block));

    int64_t used = 0;
    const int64_t a_panels = take_bytes(&used, plan->m_part * plan->k_padded * 4);
    const int64_t a_reach = take_bytes(&used, plan->m_part * plan->pack_jobs * 4);
    const int64_t slots = take_bytes(&used, 0);
    plan->slot_bytes = slot_layout(plan, NULL, NULL);
    plan->workspace_bytes = used + plan->slot_bytes * plan->workers;
    if (workspace != NULL) {
        plan->a_panels = (float *)(workspace + a_panels);
        plan->a_reach = (uint32_t *)(workspace + a_reach);
        plan->slots = workspace + slots;
    }
}

/* Width of the panel of a that begins with row m of the part. */
static int64_t panel_width(const struct plan *plan, int64_t m)
{
    return plan->m_count - m > LANES ? WIDTH : LANES;
}

/* ---- rows to f32 ------------------------------------------------------------------------------------------- */

/* The next GROUP codes of a row, `left` of which exist, FP4 widened: where they lie, or copied to buffer with zeros behind. */
static inline __attribute__((always_inline)) const uint8_t *group_codes(const enum dg_gemm_type type, const uint8_t *row, int64_t k,
                                                                        int64_t left, uint8_t *buffer)
{
    const uint8_t *codes = row + code_bytes(type, k);
    if (type == DG_GEMM_F4E2M1) {
        if (left >= GROUP) {
            widen_f4e2m1(codes, buffer);
            return buffer;
        }
        uint8_t pairs[GROUP / 2] = {0};
        memcpy(pairs, codes, (size_t)code_bytes(type, left));
        widen_f4e2m1(pairs, buffer);
        memset(buffer + left, 0, (size_t)(GROUP - left));
        return buffer;
    }
    if (left >= GROUP) {
        return codes;
    }
    memset(buffer, 0, GROUP * 4);
    memcpy(buffer, codes, (size_t)code_bytes(type, left));
    return buffer;
}

static inline __attribute__((always_inline)) void prefetch_codes(const enum dg_gemm_type type, const uint8_t *codes)
{
    for (int64_t line = 0; line < code_bytes(type, GROUP); line += 64) {
        __builtin_prefetch(codes + line);
    }
}

/* One group of a row, `left` codes of which exist, to f32, times its scales. type is a constant of each call, and left is where it is
 * GROUP. */
static inline __attribute__((always_inline)) void decode_scaled(const enum dg_gemm_type type, const uint8_t *row, int64_t k, int64_t left,
                                                                const float *scales, float *out, struct reach_lanes *reach)
{
    _Alignas(64) uint8_t buffer[GROUP * 4];
    vec values[4];
    decode_group(gathered_type(type), group_codes(type, row, k, left, buffer), values, reach);
    const float factor = code_factor(gathered_type(type));
    const vec first = vec_set(scales[k / SCALE_K] * factor);
    const vec second = HALVES == 1 || left <= SCALE_K ? first : vec_set(scales[k / SCALE_K + 1] * factor);
    vec_store(out + k, vec_mul(values[0], first));
    vec_store(out + k + LANES, vec_mul(values[1], second));
    vec_store(out + k + 2 * LANES, vec_mul(values[2], first));
    vec_store(out + k + 3 * LANES, vec_mul(values[3], second));
}

/* `count` codes of a row to f32, times the scales of each SCALE_K; zeros fill the last group. Returns the reach of the row. type is
 * a constant of each call. */
static inline __attribute__((always_inline)) uint32_t decode_row_of(const enum dg_gemm_type type, const uint8_t *row, int64_t count,
                                                                    const float *scales, float *out)
{
    struct reach_lanes reach = no_reach();
    int64_t k = 0;
    for (; k + GROUP <= count; k += GROUP) {
        decode_scaled(type, row, k, GROUP, scales, out, &reach);
    }
    if (k < count) {
        decode_scaled(type, row, k, count - k, scales, out, &reach);
    }
    return reach_of_lanes(gathered_type(type), &reach);
}

static uint32_t decode_row(struct code_row row, int64_t count, const float *scales, float *out)
{
    switch (row.type) {
    case DG_GEMM_BF16: return decode_row_of(DG_GEMM_BF16, row.codes, count, scales, out);
    case DG_GEMM_F8E4M3: return decode_row_of(DG_GEMM_F8E4M3, row.codes, count, scales, out);
    case DG_GEMM_F4E2M1: return decode_row_of(DG_GEMM_F4E2M1, row.codes, count, scales, out);
    case DG_GEMM_F32: return decode_row_of(DG_GEMM_F32, row.codes, count, scales, out);
    }
    return 0;
}

/* The same, element by element, for any blocks of scales and any strides. */
static uint32_t decode_row_slowly(const struct dg_gemm_operand *x, const struct dg_gemm_scale *s, const struct limits *limits, int64_t mn,
                                  int64_t k0, int64_t count, float *out)
{
    const bool is_code = x->type == DG_GEMM_F8E4M3 || x->type == DG_GEMM_F4E2M1;
    uint32_t reach = 0;
    memset(out, 0, (size_t)round_up(count, GROUP) * sizeof(float));
    for (int64_t k = 0; k < count; k++) {
        const float value = operand_at(x, mn, k0 + k);
        const float scale = scale_at(s, mn / s->gran_mn, (k0 + k) / s->gran_k);
        reach = larger_reach(reach, reach_of_scale(limits, scale));
        if (!is_code) {
            const uint32_t magnitude = dg_bits_of_f32(value) & 0x7fffffffu;
            reach = larger_reach(reach, magnitude < REACH_NAN ? magnitude : REACH_EXACT);
        }
        out[k / GROUP * GROUP + place_in_group(k % GROUP)] = value * scale;
    }
    return reach;
}

/* ---- packing a --------------------------------------------------------------------------------------------- */

/* Packs rows [m, m + WIDTH) of the part over PACK_K of k. */
static void pack_a(struct plan *plan, const struct slot *slot, int64_t m, int64_t job)
{
    const struct dg_gemm_args *args = plan->args;
    const int64_t k0 = job * PACK_K;
    const int64_t count = min_i64(PACK_K, args->k - k0);
    const int64_t padded = round_up(count, GROUP);
    const int64_t rows = min_i64(WIDTH, plan->m_count - m);
    const int64_t width = panel_width(plan, m);
    const bool is_gathered = !is_k_major(&args->a) && plan->a_has_rows;
    if (is_gathered) {
        gather_k_major(&args->a, plan->m0 + m, rows, k0, count, slot->gathered, 4 * PACK_K);
    }
    for (int64_t r = 0; r < (plan->is_dot ? rows : width); r++) {
        const int64_t i = plan->m0 + m + r;
        float *out = plan->is_dot ? plan->a_panels + r * plan->k_padded + k0 : slot->panel + r * PACK_STRIDE;
        uint32_t reach = 0;
        if (r >= rows) {
            memset(out, 0, (size_t)padded * sizeof(float));
        } else if (plan->a_has_rows) {
            const struct code_row row = is_gathered ? (struct code_row){slot->gathered + r * 4 * PACK_K, gathered_type(args->a.type)}
                                                    : code_row_of(&args->a, i, k0);
            reach = fill_scales(&args->sfa, &plan->a_limits, i, k0, SCALE_K, ceil_div(count, SCALE_K), slot->scales, 1);
            reach = larger_reach(reach, decode_row(row, count, slot->scales, out));
        } else {
            reach = decode_row_slowly(&args->a, &args->sfa, &plan->a_limits, i, k0, count, out);
        }
        plan->a_reach[job * plan->m_part + m + r] = reach;
    }
    if (plan->is_dot) {
        return;
    }
    float *panel = plan->a_panels + m * plan->k_padded + k0 * width;
    for (int64_t k = 0; k < padded; k += LANES) {
        for (int64_t r = 0; r < width; r += LANES) {
            transpose_lanes(slot->panel + r * PACK_STRIDE + k, PACK_STRIDE, panel + k * width + r, width);
        }
    }
}

/* What the reaches of all jobs say of row m of the part. */
static uint8_t kind_of_a_row(const struct plan *plan, int64_t m)
{
    uint32_t reach = 0;
    for (int64_t job = 0; job < plan->pack_jobs; job++) {
        reach = larger_reach(reach, plan->a_reach[job * plan->m_part + m]);
    }
    return (uint8_t)kind_of_reach(&plan->a_limits, reach);
}

/* Packs a together with the other workers. */
static void pack(struct plan *plan, const struct slot *slot)
{
    for (int64_t job = take_job(&plan->packing); job < plan->packing.untaken.count; job = take_job(&plan->packing)) {
        pack_a(plan, slot, job / plan->pack_jobs * WIDTH, job % plan->pack_jobs);
        finish_job(&plan->packing);
    }
    wait_for_jobs(&plan->packing);
}

/* ---- output ------------------------------------------------------------------------------------------------ */

/* The `rows` columns of a piece, of row m of the part: column x is at sums[x * stride]. */
static void store_row(const struct plan *plan, const struct slot *slot, int64_t m, int64_t n0, int64_t rows, const float *sums, int64_t stride)
{
    const uint8_t a_kind = kind_of_a_row(plan, m);
    for (int64_t n = 0; n < rows; n += OUTPUT_TILE) {
        const int64_t count = min_i64(OUTPUT_TILE, rows - n);
        float tile[OUTPUT_TILE] = {0};
        bool is_plain = a_kind == ROW_PLAIN;
        for (int64_t x = 0; x < count; x++) {
            tile[x] = sums[(n + x) * stride];
            is_plain = is_plain && slot->b_kinds[n + x] == ROW_PLAIN;
        }
        if (is_plain) {
            store_sums(plan->args, plan->m0 + m, n0 + n, count, tile);
        } else {
            store_kinds(plan->args, plan->m0 + m, n0 + n, count, tile, a_kind, slot->b_kinds + n);
        }
    }
}

static void find_b_kinds(const struct plan *plan, const struct slot *slot, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++) {
        slot->b_kinds[r] = (uint8_t)kind_of_reach(&plan->b_limits, slot->b_reach[r]);
    }
}

/* ---- outer form -------------------------------------------------------------------------------------------- */

/* Decodes rows [n0, n0 + rows) of b and k in [k0, k0 + count) into the panel. */
static void decode_b(const struct plan *plan, const struct slot *slot, int64_t n0, int64_t rows, int64_t k0, int64_t count)
{
    const struct dg_gemm_args *args = plan->args;
    const bool is_gathered = !is_k_major(&args->b) && plan->b_has_rows;
    if (is_gathered) {
        gather_k_major(&args->b, n0, rows, k0, count, slot->gathered, 4 * K_BLOCK);
    }
    uint32_t scale_reach = 0;
    for (int64_t r = 0; r < round_up(rows, N_STEP); r++) {
        const int64_t j = n0 + r;
        float *out = slot->panel + r * PANEL_STRIDE;
        if (r >= rows) {
            memset(out, 0, (size_t)round_up(count, GROUP) * sizeof(float));
            continue;
        }
        uint32_t reach;
        if (plan->b_has_rows) {
            const bool has_same_scales = r > 0 && j / args->sfb.gran_mn == (j - 1) / args->sfb.gran_mn;
            if (!has_same_scales) {
                scale_reach = fill_scales(&args->sfb, &plan->b_limits, j, k0, SCALE_K, ceil_div(count, SCALE_K), slot->scales, 1);
            }
            const struct code_row row = is_gathered ? (struct code_row){slot->gathered + r * 4 * K_BLOCK, gathered_type(args->b.type)}
                                                    : code_row_of(&args->b, j, k0);
            reach = larger_reach(scale_reach, decode_row(row, count, slot->scales, out));
        } else {
            reach = decode_row_slowly(&args->b, &args->sfb, &plan->b_limits, j, k0, count, out);
        }
        slot->b_reach[r] = larger_reach(slot->b_reach[r], reach);
    }
}

/* totals += b a for WIDE_ROWS rows of b and a panel of a WIDTH wide. */
static inline void multiply_wide(const float *a, const float *b, int64_t k, float *totals, int64_t totals_stride)
{
    vec sums[WIDE_ROWS][2];
#pragma GCC unroll 12
    for (int r = 0; r < WIDE_ROWS; r++) {
        sums[r][0] = vec_zero();
        sums[r][1] = vec_zero();
    }
    for (const float *end = b + k; b < end; b++, a += WIDTH) {
        const vec a0 = vec_load(a);
        const vec a1 = vec_load(a + LANES);
#pragma GCC unroll 12
        for (int r = 0; r < WIDE_ROWS; r++) {
            add_wide_row(b + r * PANEL_STRIDE, a0, a1, &sums[r][0], &sums[r][1]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < WIDE_ROWS; r++) {
        float *row = totals + r * totals_stride;
        vec_store(row, vec_add(vec_load(row), sums[r][0]));
        vec_store(row + LANES, vec_add(vec_load(row + LANES), sums[r][1]));
    }
}

/* totals += b a for N_STEP rows of b and a panel of a LANES wide. */
static inline void multiply_narrow(const float *a, const float *b, int64_t k, float *totals, int64_t totals_stride)
{
    vec sums[N_STEP];
#pragma GCC unroll 12
    for (int r = 0; r < N_STEP; r++) {
        sums[r] = vec_zero();
    }
    for (const float *end = b + k; b < end; b++, a += LANES) {
        const vec a0 = vec_load(a);
#pragma GCC unroll 12
        for (int r = 0; r < N_STEP; r++) {
            add_narrow_row(b + r * PANEL_STRIDE, a0, &sums[r]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < N_STEP; r++) {
        float *row = totals + r * totals_stride;
        vec_store(row, vec_add(vec_load(row), sums[r]));
    }
}

/* totals += b a for N_STEP rows of b and one panel of a. */
static void multiply(const float *a, const float *b, int64_t k, bool is_wide, float *totals, int64_t totals_stride)
{
    if (!is_wide) {
        multiply_narrow(a, b, k, totals, totals_stride);
        return;
    }
    for (int64_t r = 0; r < N_STEP; r += WIDE_ROWS) {
        multiply_wide(a, b + r * PANEL_STRIDE, k, totals + r * totals_stride, totals_stride);
    }
}

/* Fetches rows [begin, end) of b over one block of k from k0 on. */
static void prefetch_b(const struct plan *plan, int64_t begin, int64_t end, int64_t k0)
{
    const struct dg_gemm_args *args = plan->args;
    for (int64_t j = begin; j < end; j++) {
        const struct code_row row = code_row_of(&args->b, j, k0);
        for (int64_t line = 0; line < code_bytes(row.type, min_i64(K_BLOCK, args->k - k0)); line += 64) {
            __builtin_prefetch(row.codes + line);
        }
    }
}

/* n1: the first row of b of this worker's next piece. */
static void compute_piece(const struct plan *plan, const struct slot *slot, int64_t n0, int64_t m0, int64_t n1)
{
    const struct dg_gemm_args *args = plan->args;
    const int64_t rows = min_i64(plan->n_block, args->n - n0);
    const int64_t m_rows = min_i64(plan->m_block, plan->m_count - m0);
    memset(slot->totals, 0, (size_t)(round_up(rows, N_STEP) * plan->m_block) * sizeof(float));
    memset(slot->b_reach, 0, (size_t)rows * sizeof(*slot->b_reach));

    for (int64_t k0 = 0; k0 < args->k; k0 += K_BLOCK) {
        const int64_t count = min_i64(K_BLOCK, args->k - k0);
        /* What decoding will read next is fetched in time, in shares between multiplications: all at once would fill the queues
         * of the memory system and stall. */
        const bool is_last = k0 + K_BLOCK >= args->k;
        const int64_t next_n = is_last ? n1 : n0;
        const int64_t next_k = is_last ? 0 : k0 + K_BLOCK;
        const bool fetches = is_k_major(&args->b) && next_n < args->n;
        const int64_t shares = ceil_div(m_rows, WIDTH) * ceil_div(rows, N_STEP);
        int64_t share = 0;
        decode_b(plan, slot, n0, rows, k0, count);
        for (int64_t m = 0; m < m_rows; m += WIDTH) {
            const int64_t width = panel_width(plan, m0 + m);
            const float *a = plan->a_panels + (m0 + m) * plan->k_padded + k0 * width;
            for (int64_t n = 0; n < rows; n += N_STEP) {
                if (fetches) {
                    const int64_t next_rows = min_i64(rows, args->n - next_n);
                    prefetch_b(plan, next_n + next_rows * share / shares, next_n + next_rows * (share + 1) / shares, next_k);
                    share++;
                }
                multiply(a, slot->panel + n * PANEL_STRIDE, round_up(count, GROUP), width == WIDTH, slot->totals + n * plan->m_block + m,
                         plan->m_block);
            }
        }
    }
    find_b_kinds(plan, slot, rows);
    for (int64_t m = 0; m < m_rows; m++) {
        store_row(plan, slot, m0 + m, n0, rows, slot->totals + m, plan->m_block);
    }
}

/* ---- dot form ---------------------------------------------------------------------------------------------- */

/* DOT_STEP rows of b, and what they need. */
struct dot_rows {
    const uint8_t *codes[DOT_STEP];
    const uint8_t *next[DOT_STEP]; /* rows that will be read later: they are fetched meanwhile */
    const float *scales[DOT_STEP]; /* of each unit, times code_factor() */
    struct reach_lanes reach[DOT_STEP];
    float sums[DOT_ROWS][DOT_STEP];
};

/* The sums of a unit, and what is gathered of the reach of each row of b. */
struct dot_sums {
    vec sums[DOT_ROWS][DOT_STEP][2];
    struct reach_lanes reach[DOT_STEP];
};

/* The two halves of a group have chains of their own where they may belong to two units, and where few rows of a would leave additions
 * waiting for one another. */
static inline __attribute__((always_inline)) int dot_chains(const int m)
{
    return HALVES == 2 || m <= 2 ? 2 : 1;
}

/* Adds the products over one group of k, `left` codes of which exist. m and type are constants of each call, and left is where it is
 * GROUP. */
static inline __attribute__((always_inline)) void dot_group(const int m, const enum dg_gemm_type type, const struct plan *plan,
                                                            const struct dot_rows *b, int64_t k, int64_t left, struct dot_sums *x)
{
    _Alignas(64) uint8_t buffers[DOT_STEP][GROUP * 4];
    vec values[DOT_STEP][4];
#pragma GCC unroll 2
    for (int r = 0; r < DOT_STEP; r++) {
        decode_group(gathered_type(type), group_codes(type, b->codes[r], k, left, buffers[r]), values[r], &x->reach[r]);
        prefetch_codes(type, b->next[r] + code_bytes(type, k));
    }
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
#pragma GCC unroll 4
        for (int i = 0; i < m; i++) {
            const vec a = vec_load(plan->a_panels + i * plan->k_padded + k + v * LANES);
#pragma GCC unroll 2
            for (int r = 0; r < DOT_STEP; r++) {
                x->sums[i][r][v % dot_chains(m)] = vec_fma(a, values[r][v], x->sums[i][r][v % dot_chains(m)]);
            }
        }
    }
}

/* Sums of the products of m rows of a and DOT_STEP rows of b. They are summed unit by unit, and the scale of b enters once for each; that
 * of a is in a already. m and type are constants of each call. */
static inline __attribute__((always_inline)) void dot_rows_of(const int m, const enum dg_gemm_type type, const struct plan *plan,
                                                              struct dot_rows *b)
{
    const int64_t k_end = plan->args->k;
    const int64_t step = max_i64(plan->dot_unit, GROUP);
    vec totals[DOT_ROWS][DOT_STEP];
    struct dot_sums x;
#pragma GCC unroll 2
    for (int r = 0; r < DOT_STEP; r++) {
        x.reach[r] = no_reach();
#pragma GCC unroll 4
        for (int i = 0; i < m; i++) {
            totals[i][r] = x.sums[i][r][0] = x.sums[i][r][1] = vec_zero();
        }
    }
    int64_t unit = 0;
    for (int64_t k0 = 0; k0 < k_end; k0 += step) {
        const int64_t end = min_i64(k0 + step, k_end);
        int64_t k = k0;
        for (; k + GROUP <= end; k += GROUP) {
            dot_group(m, type, plan, b, k, GROUP, &x);
        }
        if (k < end) {
            dot_group(m, type, plan, b, k, end - k, &x);
        }
        const bool has_two_units = plan->dot_unit < GROUP && k_end - k0 > plan->dot_unit;
#pragma GCC unroll 2
        for (int r = 0; r < DOT_STEP; r++) {
            const vec scale = vec_set(b->scales[r][unit]);
            const vec second_scale = has_two_units ? vec_set(b->scales[r][unit + 1]) : scale;
#pragma GCC unroll 4
            for (int i = 0; i < m; i++) {
                totals[i][r] = vec_fma(x.sums[i][r][0], scale, totals[i][r]);
                x.sums[i][r][0] = vec_zero();
                if (dot_chains(m) == 2) {
                    totals[i][r] = vec_fma(x.sums[i][r][1], second_scale, totals[i][r]);
                    x.sums[i][r][1] = vec_zero();
                }
            }
        }
        unit += has_two_units ? 2 : 1;
    }
#pragma GCC unroll 2
    for (int r = 0; r < DOT_STEP; r++) {
        b->reach[r] = x.reach[r];
#pragma GCC unroll 4
        for (int i = 0; i < m; i++) {
            b->sums[i][r] = vec_sum(totals[i][r]);
        }
    }
}

static inline __attribute__((always_inline)) void dot_type_of(const enum dg_gemm_type type, const struct plan *plan, struct dot_rows *b)
{
    switch (plan->args->m) {
    case 1: dot_rows_of(1, type, plan, b); break;
    case 2: dot_rows_of(2, type, plan, b); break;
    case 3: dot_rows_of(3, type, plan, b); break;
    default: dot_rows_of(4, type, plan, b); break;
    }
}

static void dot(const struct plan *plan, struct dot_rows *b)
{
    switch (plan->args->b.type) {
    case DG_GEMM_BF16: dot_type_of(DG_GEMM_BF16, plan, b); break;
    case DG_GEMM_F8E4M3: dot_type_of(DG_GEMM_F8E4M3, plan, b); break;
    case DG_GEMM_F4E2M1: dot_type_of(DG_GEMM_F4E2M1, plan, b); break;
    case DG_GEMM_F32: dot_type_of(DG_GEMM_F32, plan, b); break;
    }
}

/* n1: the first row of b of this worker's next piece. */
static void dot_piece(const struct plan *plan, const struct slot *slot, int64_t n0, int64_t n1)
{
    const struct dg_gemm_args *args = plan->args;
    const int64_t rows = min_i64(plan->n_block, args->n - n0);
    const int64_t units = ceil_div(args->k, plan->dot_unit);
    const float factor = code_factor(gathered_type(args->b.type));
    int64_t scaled_row = -1; /* of sfb, if the slot holds its scales for each of the rows */
    uint32_t scale_reach[DOT_STEP] = {0};

    for (int64_t n = 0; n < rows; n += DOT_STEP) {
        struct dot_rows b = {0};
        for (int64_t r = 0; r < DOT_STEP; r++) {
            const int64_t j = n0 + min_i64(n + r, rows - 1); /* an odd last row is multiplied twice */
            float *scales = slot->scales + r * units;
            if (j / args->sfb.gran_mn != scaled_row) {
                scale_reach[r] = fill_scales(&args->sfb, &plan->b_limits, j, 0, plan->dot_unit, units, scales, 1);
                for (int64_t u = 0; u < units; u++) {
                    scales[u] *= factor;
                }
            }
            b.scales[r] = scales;
            b.codes[r] = code_row_of(&args->b, j, 0).codes;
            b.next[r] = code_row_of(&args->b, n + DOT_STEP < rows ? j + DOT_STEP : n1 + r, 0).codes;
        }
        const int64_t first_scaled = (n0 + n) / args->sfb.gran_mn;
        const int64_t last_scaled = (n0 + min_i64(n + DOT_STEP, rows) - 1) / args->sfb.gran_mn;
        scaled_row = first_scaled == last_scaled ? first_scaled : -1;

        dot(plan, &b);
        for (int64_t r = 0; r < min_i64(DOT_STEP, rows - n); r++) {
            slot->b_reach[n + r] = larger_reach(scale_reach[r], reach_of_lanes(gathered_type(args->b.type), &b.reach[r]));
            for (int64_t i = 0; i < args->m; i++) {
                slot->totals[i * plan->n_block + n + r] = b.sums[i][r];
            }
        }
    }

    find_b_kinds(plan, slot, rows);
    for (int64_t i = 0; i < args->m; i++) {
        store_row(plan, slot, i, n0, rows, slot->totals + i * plan->n_block, 1);
    }
}

/* ---- the whole ---------------------------------------------------------------------------------------------- */

static void compute_worker(void *arg, int64_t begin, int64_t end)
{
    struct plan *plan = arg;
    for (int64_t worker = begin; worker < end; worker++) {
        struct slot slot;
        slot_layout(plan, plan->slots + worker * plan->slot_bytes, &slot);
        pack(plan, &slot);
        int64_t piece = take_piece(&plan->pieces);
        while (piece < plan->pieces.count) {
            const int64_t next = take_piece(&plan->pieces);
            const int64_t n0 = piece / plan->m_pieces * plan->n_block;
            const int64_t n1 = next / plan->m_pieces * plan->n_block;
            if (plan->is_dot) {
                dot_piece(plan, &slot, n0, n1);
            } else {
                compute_piece(plan, &slot, n0, piece % plan->m_pieces * plan->m_block, n1);
            }
            piece = next;
        }
    }
}

static size_t f32_form_workspace(const struct dg_gemm_args *args)
{
    struct plan plan;
    make_plan(&plan, args, NULL);
    return (size_t)plan.workspace_bytes;
}

static void run_f32_form(const struct dg_gemm_args *args)
{
    struct plan plan;
    make_plan(&plan, args, args->exec.workspace);
    for (plan.m0 = 0; plan.m0 < args->m; plan.m0 += plan.m_part) {
        plan.m_count = min_i64(plan.m_part, args->m - plan.m0);

        plan.packing = (struct jobs){.untaken = {0, ceil_div(plan.m_count, WIDTH) * plan.pack_jobs}};
        plan.m_pieces = plan.is_dot ? 1 : ceil_div(plan.m_count, plan.m_block);
        plan.pieces = (struct pieces){0, ceil_div(args->n, plan.n_block) * plan.m_pieces};
        run_workers(&args->exec, plan.workers, compute_worker, &plan);
    }
}

#endif
