/* The fast form of the logits family: scores stay in registers or L1 from the product to the sum over heads.
 *
 * A piece is a block of queries of one sequence and a block of keys. Its queries are decoded once, then keys in panels: KEYS of them
 * side by side, so that vectors run along keys, the sum over heads needs no shuffles, and a panel in L1 serves all heads of all queries
 * of the piece.
 *
 *   queries   [tokens][heads][steps]        of 32-bit words: an f32 or two bf16 of the head
 *   panel     [steps][KEYS]                 of the same words
 *   sums      [KEYS]                        sum over h of weights[h] * max(0, q . key)
 *
 * The including file says what a word is (KEYS, WORD_CODES and how to decode) and gives add_heads(). FP4 codes are widened to FP8 first, of
 * which every one is exact in f32 and bf16. MX scales, powers of two, are multiplied into the words, exactly.
 *
 * f32 has not the range of mqa_logits_ref.c, and decoders here know no NaN. So each query and each key has a kind: where one leaves the
 * limits below, its logits come from dg_mqa_logit(), one by one: slow, right, and rare.
 */
#ifndef DG_CPU_MQA_LOGITS_FAST_H
#define DG_CPU_MQA_LOGITS_FAST_H

#include "gemm_operand.h"
#include "gemm_split.h"
#include "ops/mqa_logits.h"

#include <immintrin.h>
#include <math.h>

/* The including file defines, before it includes this one: KEYS, of a panel, a multiple of 16; WORD_CODES; DEPTH_STEP, HEAD_STEP and
 * HEAD_MIN, to whose multiples heads and their lengths are filled up with zeros; SCRATCH_BYTES. */

enum {
    MX_GROUP = 32,
    QUERY_BYTES = 256 << 10, /* of decoded queries in a piece: they stay in L2 */
    KEY_BLOCK = 4096,        /* keys of a piece at most, about */
    WORKER_PIECES = 8,       /* pieces for each worker, where there are keys for that: the last one to end is not late by much */
    ROW_MISSING = ROW_EXACT + 1 /* a key without a page */
};

struct heads {
    const uint32_t *q;    /* [count][steps] */
    const float *weights; /* [count] */
    int64_t count;
    int64_t steps;
    const uint32_t *panel; /* [steps][KEYS] */
    uint8_t *scratch;      /* SCRATCH_BYTES */
};

static void begin_work(void);
static void end_work(void);

/* codes: [depth] of e4m3; scales: [depth / MX_GROUP], powers of two. */
static void decode_query(const uint8_t *codes, const float *scales, int64_t depth, uint32_t *words);

/* codes: [KEYS][depth] of e4m3; scales: [depth / MX_GROUP][KEYS]. */
static void decode_keys(const uint8_t *codes, const float *scales, int64_t depth, uint32_t *panel);

/* sums[key] = sum over h of weights[h] * max(0, q[h] . key) */
static void add_heads(const struct heads *x, float *sums);

/* ---- the plan ---------------------------------------------------------------------------------------------- */

struct plan {
    const struct dg_mqa_logits_args *args;
    int64_t heads, depth, steps; /* filled up */
    int64_t groups;              /* MX_GROUPs of depth, the last one may be cut */
    int64_t query_block, key_block;
    int64_t query_blocks, key_blocks;
    int64_t workers;
    uint8_t *slots;
    int64_t slot_bytes;
    int64_t workspace_bytes;
    struct pieces pieces;
};

/* One worker's part of the workspace. */
struct slot {
    uint32_t *q;
    float *weights;
    struct dg_mqa_range *ranges; /* [query_block] */
    uint8_t *query_kinds;        /* [query_block] */
    uint32_t *panel;
    float *sums;
    float *key_scales;  /* [KEYS] */
    uint8_t *key_kinds; /* [KEYS] */
    uint8_t *codes;     /* [KEYS][depth]: e4m3 on the way to words */
    float *mx_scales;   /* [groups][KEYS] */
    uint8_t *scratch;
};

static int64_t slot_layout(const struct plan *plan, uint8_t *base, struct slot *slot)
{
    int64_t used = 0;
    const int64_t q = take_bytes(&used, plan->query_block * plan->heads * plan->steps * 4);
    const int64_t weights = take_bytes(&used, plan->query_block * plan->heads * 4);
    const int64_t ranges = take_bytes(&used, plan->query_block * (int64_t)sizeof(*slot->ranges));
    const int64_t query_kinds = take_bytes(&used, plan->query_block);
    const int64_t panel = take_bytes(&used, plan->steps * KEYS * 4);
    const int64_t sums = take_bytes(&used, KEYS * 4);
    const int64_t key_scales = take_bytes(&used, KEYS * 4);
    const int64_t key_kinds = take_bytes(&used, KEYS);
    const int64_t codes = take_bytes(&used, KEYS * plan->depth);
    const int64_t mx_scales = take_bytes(&used, plan->groups * KEYS * 4);
    const int64_t scratch = take_bytes(&used, SCRATCH_BYTES);
    if (base != NULL) {
        slot->q = (uint32_t *)(void *)(base + q);
        slot->weights = (float *)(void *)(base + weights);
        slot->ranges = (struct dg_mqa_range *)(void *)(base + ranges);
        slot->query_kinds = base + query_kinds;
        slot->panel = (uint32_t *)(void *)(base + panel);
        slot->sums = (float *)(void *)(base + sums);
        slot->key_scales = (float *)(void *)(base + key_scales);
        slot->key_kinds = base + key_kinds;
        slot->codes = base + codes;
        slot->mx_scales = (float *)(void *)(base + mx_scales);
        slot->scratch = base + scratch;
    }
    return used;
}

static struct plan make_plan(const struct dg_mqa_logits_args *args)
{
    struct plan plan = {.args = args};
    plan.heads = max_i64(round_up(args->heads, HEAD_STEP), HEAD_MIN);
    plan.depth = max_i64(round_up(args->head_dim, DEPTH_STEP), DEPTH_STEP);
    plan.steps = plan.depth / WORD_CODES;
    plan.groups = ceil_div(plan.depth, MX_GROUP);
    plan.workers = max_i64(args->exec.num_threads, 1);

    const int64_t most_queries = max_i64(QUERY_BYTES / (plan.heads * plan.steps * 4), 1);
    plan.query_block = even_block(args->tokens, 1, most_queries, 1);
    plan.query_blocks = ceil_div(args->tokens, plan.query_block);

    const int64_t wanted = ceil_div(WORKER_PIECES * plan.workers, args->sequences * plan.query_blocks);
    plan.key_block = even_block(args->ranges.num_keys, KEYS, round_up(KEY_BLOCK, KEYS), wanted);
    plan.key_blocks = ceil_div(args->ranges.num_keys, plan.key_block);

    plan.pieces.count = args->sequences * plan.query_blocks * plan.key_blocks;
    plan.workers = max_i64(min_i64(plan.workers, plan.pieces.count), 1);
    plan.slot_bytes = slot_layout(&plan, NULL, NULL);
    plan.workspace_bytes = plan.slot_bytes * plan.workers;
    plan.slots = args->exec.workspace;
    return plan;
}

/* ---- codes and scales of a row ----------------------------------------------------------------------------- */

/* Elements index, index + stride, .. of codes, `count` of them, as e4m3; zeros up to depth. */
static inline void copy_codes(enum dg_mqa_type type, const uint8_t *codes, int64_t index, int64_t stride, int64_t count, int64_t depth,
                              uint8_t *out)
{
    int64_t x = 0;
    if (type == DG_MQA_F8E4M3 && stride == 1 && count > 0) { /* without elements there may be no memory either */
        memcpy(out, codes + index, (size_t)count);
        x = count;
    } else if (type == DG_MQA_F4E2M1 && stride == 1 && index % 2 == 0) {
        const __m128i table = _mm_loadu_si128((const __m128i *)f8e4m3_of_f4e2m1);
        const __m128i low_bits = _mm_set1_epi8(0x0f);
        for (; x + 32 <= count; x += 32) {
            const __m128i pairs = _mm_loadu_si128((const __m128i *)(codes + (index + x) / 2));
            const __m128i even = _mm_shuffle_epi8(table, _mm_and_si128(pairs, low_bits));
            const __m128i odd = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(pairs, 4), low_bits));
            _mm_storeu_si128((__m128i *)(out + x), _mm_unpacklo_epi8(even, odd));
            _mm_storeu_si128((__m128i *)(out + x + 16), _mm_unpackhi_epi8(even, odd));
        }
    }
    for (; x < count; x++) {
        const int64_t at = index + x * stride;
        out[x] = type == DG_MQA_F8E4M3 ? codes[at] : f8e4m3_of_f4e2m1[dg_f4e2m1_at(codes, at)];
    }
    memset(out + count, 0, (size_t)(depth - count));
}

/* Whether one of depth e4m3 codes, a multiple of 16, is NaN. */
static inline bool has_nan(const uint8_t *codes, int64_t depth)
{
    __m128i largest = _mm_setzero_si128(); /* 0xff for NaN, whatever its sign */
    for (int64_t x = 0; x < depth; x += 16) {
        const __m128i sixteen = _mm_loadu_si128((const __m128i *)(codes + x));
        largest = _mm_max_epu8(largest, _mm_or_si128(sixteen, _mm_set1_epi8((char)0x80)));
    }
    return _mm_movemask_epi8(_mm_cmpeq_epi8(largest, _mm_set1_epi8(-1))) != 0;
}

/* NaN decides all logits of a row, whatever else is in it. */
static inline enum row_kind worse_kind(enum row_kind x, enum row_kind y)
{
    return x == ROW_NAN || y == ROW_NAN ? ROW_NAN : x == ROW_EXACT || y == ROW_EXACT ? ROW_EXACT : ROW_PLAIN;
}

/* The limits. e4m3 codes are 0 or 2^-9 to 2^9, and MX scales, of at most 128 elements, 2^-30 to 2^20: products are 0 or 2^-78 to 2^58, and
 * their sums below 2^65. The largest weight of a query is 0 or 2^-24 to 2^40, so sums over heads are far below 2^127, and what f32 loses of
 * products below 2^-126 is nothing beside that of the largest weight. */

/* out[g * out_stride] = scale of group g. */
static inline enum row_kind copy_mx_scales(uint32_t word, int64_t head_dim, float *out, int64_t out_stride)
{
    enum row_kind kind = ROW_PLAIN;
    for (int64_t g = 0; g < ceil_div(head_dim, MX_GROUP); g++) {
        const uint8_t code = (uint8_t)(word >> (8 * g));
        kind = worse_kind(kind, code == 0xff ? ROW_NAN : code < 127 - 30 || code > 127 + 20 ? ROW_EXACT : ROW_PLAIN);
        out[g * out_stride] = dg_f32_from_ue8m0(code);
    }
    return kind;
}

static inline enum row_kind copy_weights(const struct dg_mqa_queries *q, int64_t row, int64_t heads, float *out)
{
    float largest = 0;
    enum row_kind kind = ROW_PLAIN;
    for (int64_t h = 0; h < heads; h++) {
        const int64_t index = row * q->weights_stride_row + h * q->weights_stride_head;
        out[h] = q->has_bf16_weights ? dg_f32_from_bf16(((const uint16_t *)q->weights)[index]) : ((const float *)q->weights)[index];
        const float magnitude = fabsf(out[h]);
        largest = magnitude > largest ? magnitude : largest;
        kind = magnitude != magnitude ? ROW_NAN : kind;
    }
    return worse_kind(kind, largest == 0 || (largest >= 0x1p-24f && largest <= 0x1p40f) ? ROW_PLAIN : ROW_EXACT);
}

/* ---- packing ----------------------------------------------------------------------------------------------- */

static inline void fill_floats(float *out, int64_t count, float value)
{
    for (int64_t x = 0; x < count; x++) {
        out[x] = value;
    }
}

/* Decodes token t of sequence s as query number `query` of the slot. */
static void pack_query(const struct plan *plan, const struct slot *slot, int64_t s, int64_t t, int64_t query)
{
    const struct dg_mqa_logits_args *args = plan->args;
    const struct dg_mqa_queries *q = &args->q;
    float *weights = slot->weights + query * plan->heads;
    uint32_t *words = slot->q + query * plan->heads * plan->steps;
    const int64_t codes = s * q->stride_sequence + t * q->stride_token;
    const int64_t sf = s * q->sf_stride_sequence + t * q->sf_stride_token;
    const bool rows_are_ready = args->type == DG_MQA_F8E4M3 && q->stride_dim == 1 && args->head_dim == plan->depth;

    enum row_kind kind = args->heads > 0 ? ROW_PLAIN : ROW_EXACT; /* an empty sum is no sum of zeros times NaN */
    kind = worse_kind(kind, copy_weights(q, s * args->tokens + t, args->heads, weights));
    fill_floats(slot->mx_scales, plan->groups, 1);
    for (int64_t h = 0; h < args->heads; h++) {
        const int64_t index = codes + h * q->stride_head;
        const uint8_t *row = slot->codes;
        if (rows_are_ready) {
            row = q->codes + index;
        } else {
            copy_codes(args->type, q->codes, index, q->stride_dim, args->head_dim, plan->depth, slot->codes);
        }
        kind = worse_kind(kind, has_nan(row, plan->depth) ? ROW_NAN : ROW_PLAIN);
        if (q->sf != NULL) {
            kind = worse_kind(kind, copy_mx_scales(q->sf[sf + h * q->sf_stride_head], args->head_dim, slot->mx_scales, 1));
        }
        decode_query(row, slot->mx_scales, plan->depth, words + h * plan->steps);
    }
    fill_floats(weights + args->heads, plan->heads - args->heads, 0);
    memset(words + args->heads * plan->steps, 0, (size_t)((plan->heads - args->heads) * plan->steps) * sizeof(*words));
    slot->query_kinds[query] = (uint8_t)kind;
}

/* Decodes keys [j0, j0 + count) of sequence s, count <= KEYS, into the panel. Returns whether all of them are plain. */
static bool pack_keys(const struct plan *plan, const struct slot *slot, int64_t s, int64_t j0, int64_t count)
{
    const struct dg_mqa_logits_args *args = plan->args;
    const struct dg_mqa_keys *keys = &args->keys;
    const bool is_mx = args->q.sf != NULL;
    bool all_plain = true;
    fill_floats(slot->mx_scales, plan->groups * KEYS, 1);
    for (int64_t x = 0; x < count; x++) {
        const int64_t page_index = (j0 + x) / keys->page_keys;
        const int64_t place = (j0 + x) % keys->page_keys;
        const int32_t page = keys->table == NULL ? 0 : keys->table[s * keys->table_stride_sequence + page_index * keys->table_stride_page];
        uint8_t *codes = slot->codes + x * plan->depth;
        slot->key_scales[x] = 1;
        if (page < 0) {
            memset(codes, 0, (size_t)plan->depth);
            slot->key_kinds[x] = ROW_MISSING;
            all_plain = false;
            continue;
        }
        const int64_t page_start = page * keys->page_bytes;
        copy_codes(args->type, keys->codes + page_start, place * keys->stride_key, keys->stride_dim, args->head_dim, plan->depth, codes);
        uint32_t word;
        memcpy(&word, keys->sf + page_start + place * keys->sf_stride_key * 4, sizeof(word));
        enum row_kind kind = has_nan(codes, plan->depth) ? ROW_NAN : ROW_PLAIN;
        if (is_mx) {
            kind = worse_kind(kind, copy_mx_scales(word, args->head_dim, slot->mx_scales + x, KEYS));
        } else {
            slot->key_scales[x] = dg_f32_of_bits(word); /* of any value: the last multiplication is as good in f32 */
        }
        kind = args->heads > 0 ? kind : ROW_PLAIN; /* nothing of a key is in an empty sum */
        slot->key_kinds[x] = (uint8_t)kind;
        all_plain = all_plain && kind == ROW_PLAIN;
    }
    memset(slot->codes + count * plan->depth, 0, (size_t)((KEYS - count) * plan->depth));
    decode_keys(slot->codes, slot->mx_scales, plan->depth, slot->panel);
    return all_plain;
}

/* ---- results ----------------------------------------------------------------------------------------------- */

static inline void store_logits(const struct dg_mqa_logits_args *args, int64_t row, int64_t column, int64_t count, const float *values)
{
    const int64_t index = row * args->stride_row + column;
    if (!args->has_bf16_logits) {
        memcpy((float *)args->logits + index, values, (size_t)count * sizeof(*values));
        return;
    }
    uint16_t *out = (uint16_t *)args->logits + index;
    for (int64_t x = 0; x < count; x++) {
        out[x] = dg_bf16_from_f32(values[x]);
    }
}

/* Columns [begin, end) of a row become -inf. */
static void fill_rest(const struct dg_mqa_logits_args *args, int64_t row, int64_t begin, int64_t end)
{
    for (int64_t column = begin; column < end; column++) {
        const int64_t index = row * args->stride_row + column;
        if (args->has_bf16_logits) {
            ((uint16_t *)args->logits)[index] = 0xff80;
        } else {
            ((float *)args->logits)[index] = -INFINITY;
        }
    }
}

/* The logit of one query and one key, where not both are plain. */
static float odd_logit(const struct plan *plan, const struct slot *slot, int64_t s, int64_t t, int64_t query, int64_t j, int64_t x)
{
    if (slot->key_kinds[x] == ROW_MISSING) {
        return -INFINITY;
    }
    switch (worse_kind((enum row_kind)slot->query_kinds[query], (enum row_kind)slot->key_kinds[x])) {
    case ROW_NAN: return NAN;
    case ROW_EXACT: return (float)dg_mqa_logit(plan->args, s, t, j);
    case ROW_PLAIN: break;
    }
    return slot->sums[x];
}

/* Logits of one query and the keys of the panel, [j0, j0 + count), from slot->sums. */
static void finish_panel(const struct plan *plan, const struct slot *slot, int64_t s, int64_t t, int64_t query, int64_t j0, int64_t count,
                         bool keys_are_plain)
{
    const struct dg_mqa_logits_args *args = plan->args;
    const struct dg_mqa_range range = slot->ranges[query];
    const int64_t first_column = args->is_compressed ? range.begin : 0;
    const int64_t begin = max_i64(range.begin, j0);
    const int64_t end = min_i64(min_i64(range.end, j0 + count), first_column + args->columns);
    for (int64_t x = 0; x < KEYS; x++) {
        slot->sums[x] *= slot->key_scales[x];
    }
    if (!keys_are_plain || slot->query_kinds[query] != ROW_PLAIN) {
        for (int64_t j = begin; j < end; j++) {
            slot->sums[j - j0] = odd_logit(plan, slot, s, t, query, j, j - j0);
        }
    }
    if (begin < end) {
        store_logits(args, s * args->tokens + t, begin - first_column, end - begin, slot->sums + begin - j0);
    }
}

/* ---- pieces ------------------------------------------------------------------------------------------------ */

/* Queries [t0, ..) and keys [j0, ..) of sequence s, a block of each. */
static void compute_piece(const struct plan *plan, const struct slot *slot, int64_t s, int64_t t0, int64_t j0)
{
    const struct dg_mqa_logits_args *args = plan->args;
    const int64_t queries = min_i64(plan->query_block, args->tokens - t0);
    const int64_t j_end = min_i64(j0 + plan->key_block, args->ranges.num_keys);
    int64_t begin = j_end; /* of the keys that any query needs */
    int64_t end = j0;
    for (int64_t query = 0; query < queries; query++) {
        struct dg_mqa_range *range = &slot->ranges[query];
        *range = dg_mqa_range_of(&args->ranges, args->tokens, s, t0 + query);
        const int64_t first = min_i64(max_i64(range->begin, j0), j_end);
        const int64_t last = min_i64(max_i64(range->end, j0), j_end);
        if (first < last) {
            begin = min_i64(begin, first);
            end = max_i64(end, last);
        }
        if (args->fills_rest) {
            const int64_t row = s * args->tokens + t0 + query;
            fill_rest(args, row, j0, first);
            fill_rest(args, row, max_i64(first, last), j_end);
        }
    }
    if (begin >= end) {
        return;
    }
    for (int64_t query = 0; query < queries; query++) {
        pack_query(plan, slot, s, t0 + query, query);
    }
    for (int64_t j = begin; j < end; j += KEYS) {
        const int64_t count = min_i64(KEYS, end - j);
        const bool keys_are_plain = pack_keys(plan, slot, s, j, count);
        for (int64_t query = 0; query < queries; query++) {
            if (slot->ranges[query].begin >= j + count || slot->ranges[query].end <= j) {
                continue;
            }
            const struct heads heads = {
                .q = slot->q + query * plan->heads * plan->steps,
                .weights = slot->weights + query * plan->heads,
                .count = plan->heads,
                .steps = plan->steps,
                .panel = slot->panel,
                .scratch = slot->scratch,
            };
            add_heads(&heads, slot->sums);
            finish_panel(plan, slot, s, t0 + query, query, j, count, keys_are_plain);
        }
    }
}

static void compute_worker(void *arg, int64_t begin, int64_t end)
{
    struct plan *plan = arg;
    begin_work();
    for (int64_t worker = begin; worker < end; worker++) {
        struct slot slot = {0};
        slot_layout(plan, plan->slots + worker * plan->slot_bytes, &slot);
        for (int64_t piece = take_piece(&plan->pieces); piece < plan->pieces.count; piece = take_piece(&plan->pieces)) {
            const int64_t key_block = piece % plan->key_blocks;
            const int64_t query_block = piece / plan->key_blocks % plan->query_blocks;
            const int64_t s = piece / plan->key_blocks / plan->query_blocks;
            compute_piece(plan, &slot, s, query_block * plan->query_block, key_block * plan->key_block);
        }
    }
    end_work();
}

static size_t fast_form_workspace(const struct dg_mqa_logits_args *args)
{
    return (size_t)make_plan(args).workspace_bytes;
}

static void run_fast_form(const struct dg_mqa_logits_args *args)
{
    struct plan plan = make_plan(args);
    run_workers(&args->exec, plan.workers, compute_worker, &plan);
}

#endif
