/* The bf16 form of the GEMM: products of bf16 codes, summed in f32, scaled in f32. For AMX and AVX-512 BF16.
 *
 * FP8 and FP4 codes are exact in bf16; scales are not, so they never enter it. k is cut into units, the longest stretches over
 * which both scales are constant; a unit is summed from codes alone, and total += sum * (sfa * sfb) in f32. That also keeps
 * chains of f32 additions short. UE8M0 scales are powers of two, so those of FP8 and FP4 move into the exponents of the codes
 * instead, exactly, and units stay long however fine the blocks are.
 *
 * Operands swap sides: rows of b are the left operand of a tile, as they lie in memory once decoded, and a, smaller and
 * used by every row of b, is packed once per call into pairs of k:
 *
 *   b panel   [n / 16][k / 32][16 rows][32]        decoded by each worker for its piece, in its slot
 *   a tiles   [m / 16][k / 32][16 pairs][16 rows][2]
 *   totals    [n][m]                               so that vectors run along m
 *
 * The including file gives multiply(), which adds a block of 32 rows of b and up to 32 of a to the totals, and whatever its
 * threads need around that in begin_tiles() and end_tiles(). Read gemm_operand.h first for what ROW_EXACT means.
 */
#ifndef DG_CPU_GEMM_BF16_H
#define DG_CPU_GEMM_BF16_H

#include "gemm_operand.h"
#include "gemm_output.h"
#include "gemm_split.h"

#include <immintrin.h>

enum {
    TILE = 16,                 /* rows of a tile */
    CHUNK = 32,                /* k of a tile */
    TILE_CODES = TILE * CHUNK, /* 1 KiB */
    UNIT_MAX = 512,            /* k per chain of f32 additions */
    PACK_K = 1024,             /* k of a job of packing a: a multiple of UNIT_MAX */
    N_STEP = 2 * TILE,
    SCRATCH_FLOATS = 2 * 4 * TILE * TILE
};

/* What multiply() multiplies. Strides count elements. */
struct block {
    const uint16_t *b; /* two tiles of b for each chunk of k; the second n-tile is b_tile_stride away */
    int64_t b_tile_stride;
    const uint16_t *a; /* one or two tiles of a for each chunk */
    int64_t a_tile_stride;
    int m_tiles;
    int64_t chunks;
    int64_t unit_chunks;
    const float *a_scales; /* [unit][a_scales_stride], from this block's first row of a on */
    int64_t a_scales_stride;
    const float *b_scales; /* [32 rows][b_scales_stride], unit by unit */
    int64_t b_scales_stride;
    float *totals; /* [32][totals_stride] */
    int64_t totals_stride;
    float *scratch; /* SCRATCH_FLOATS, 64-byte aligned */
};

static void begin_tiles(void);
static void end_tiles(void);
static void multiply(const struct block *x);

/* ---- the plan ---------------------------------------------------------------------------------------------- */

struct plan {
    const struct dg_gemm_args *args;
    struct limits a_limits, b_limits;
    bool folds_a, folds_b; /* scales go into the exponents of the codes */
    int64_t unit;          /* k */
    int64_t chunks;        /* of all k */
    int64_t units;
    int64_t pack_jobs; /* along k */
    int64_t workers;

    int64_t m_part;         /* rows of a packed at a time, a multiple of TILE */
    int64_t m_block;        /* rows of a, rows of b and k of a piece */
    int64_t n_block;
    int64_t k_block;

    uint16_t *a_tiles;
    float *a_scales;   /* [units][m_part] */
    uint32_t *a_reach; /* [pack_jobs][m_part] */
    uint8_t *a_kinds;  /* [m_part] */
    uint8_t *slots;
    int64_t slot_bytes;
    int64_t workspace_bytes;

    /* bytes of the bf16 of each e4m3 magnitude */
    uint8_t low[128];
    uint8_t high[128];

    /* the part in progress */
    int64_t m0, m_count;
    int64_t m_pieces;
    struct pieces pieces;
};

/* One worker's part of the workspace. */
struct slot {
    uint16_t *panel;    /* [n_block / 16][k_block / 32][16][32] */
    uint8_t *gathered;  /* rows of codes, where b is not k-major */
    float *totals;      /* [n_block][m_block] */
    float *scratch;
    float *b_scales;    /* [n_block][units of k_block] */
    int16_t *shifts;    /* [chunks of k_block], of the row being decoded */
    uint32_t *b_reach;  /* [n_block] */
    uint8_t *b_kinds;   /* [n_block] */
};

static inline bool bf16_form_fits(const struct dg_gemm_args *args)
{
    return args->a.type != DG_GEMM_F32 && args->b.type != DG_GEMM_F32 && has_long_blocks(&args->sfa, args->k, CHUNK) &&
           has_long_blocks(&args->sfb, args->k, CHUNK);
}

/* bf16 values of a row may be so small that a shift of their exponent would leave bf16; FP8 and FP4 values are not. */
static inline bool can_fold(const struct dg_gemm_operand *x, const struct dg_gemm_scale *s)
{
    return s->type == DG_SCALE_UE8M0 && x->type != DG_GEMM_BF16;
}

static int64_t slot_layout(const struct plan *plan, uint8_t *base, struct slot *slot)
{
    const int64_t chunks = plan->k_block / CHUNK;
    const int64_t panel_codes = max_i64(plan->n_block * plan->k_block, TILE * PACK_K);
    const bool is_gathered = !is_k_major(&plan->args->a) || !is_k_major(&plan->args->b);
    int64_t used = 0;
    const int64_t panel = take_bytes(&used, panel_codes * 2);
    const int64_t gathered = take_bytes(&used, is_gathered ? panel_codes * 2 : 0);
    const int64_t totals = take_bytes(&used, plan->n_block * plan->m_block * 4);
    const int64_t scratch = take_bytes(&used, SCRATCH_FLOATS * 4);
    const int64_t b_scales = take_bytes(&used, plan->n_block * ceil_div(plan->k_block, plan->unit) * 4);
    const int64_t shifts = take_bytes(&used, max_i64(chunks, PACK_K / CHUNK) * 2);
    const int64_t b_reach = take_bytes(&used, plan->n_block * 4);
    const int64_t b_kinds = take_bytes(&used, plan->n_block);
    if (base != NULL) {
        slot->panel = (uint16_t *)(base + panel);
        slot->gathered = base + gathered;
        slot->totals = (float *)(base + totals);
        slot->scratch = (float *)(base + scratch);
        slot->b_scales = (float *)(base + b_scales);
        slot->shifts = (int16_t *)(base + shifts);
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
    plan->folds_a = can_fold(&args->a, &args->sfa);
    plan->folds_b = can_fold(&args->b, &args->sfb);
    plan->unit = UNIT_MAX;
    if (!plan->folds_a && args->sfa.type != DG_SCALE_NONE && args->sfa.gran_k < args->k) {
        plan->unit = gcd_i64(plan->unit, args->sfa.gran_k);
    }
    if (!plan->folds_b && args->sfb.type != DG_SCALE_NONE && args->sfb.gran_k < args->k) {
        plan->unit = gcd_i64(plan->unit, args->sfb.gran_k);
    }
    plan->chunks = ceil_div(args->k, CHUNK);
    plan->units = ceil_div(args->k, plan->unit);
    plan->pack_jobs = ceil_div(args->k, PACK_K);

    /* 32 MiB of packed a stay in a last-level cache, and b is read once for each such part. */
    const int64_t part_rows = ((int64_t)32 << 20) / max_i64(plan->chunks * CHUNK * 2, 1);
    plan->m_part = min_i64(round_up(args->m, TILE), max_i64(part_rows / TILE * TILE, TILE));
    plan->workers = max_i64(args->exec.num_threads, 1);

    /* Few rows of a: the time is that of reading b, so long runs of each row, and pieces just large enough to be worth their
     * start. Many: the panel and one block of totals stay in L2, and decoding b is shared by many rows of a. */
    const bool is_narrow = plan->m_part <= 2 * TILE;
    plan->k_block = min_i64(is_narrow ? 4096 : UNIT_MAX, round_up(max_i64(args->k, 1), UNIT_MAX));
    plan->m_block = even_block(plan->m_part, 2 * TILE, 512, 1);
    plan->n_block = even_block(args->n, N_STEP, is_narrow ? N_STEP : 8 * TILE, 2 * plan->workers);
    plan->workers = min_i64(plan->workers, ceil_div(args->n, plan->n_block) * ceil_div(plan->m_part, plan->m_block));

    int64_t used = 0;
    const int64_t a_tiles = take_bytes(&used, plan->m_part * plan->chunks * CHUNK * 2);
    const int64_t a_scales = take_bytes(&used, plan->m_part * plan->units * 4);
    const int64_t a_reach = take_bytes(&used, plan->m_part * plan->pack_jobs * 4);
    const int64_t a_kinds = take_bytes(&used, plan->m_part);
    const int64_t slots = take_bytes(&used, 0);
    plan->slot_bytes = slot_layout(plan, NULL, NULL);
    plan->workspace_bytes = used + plan->slot_bytes * plan->workers;
    if (workspace != NULL) {
        plan->a_tiles = (uint16_t *)(workspace + a_tiles);
        plan->a_scales = (float *)(workspace + a_scales);
        plan->a_reach = (uint32_t *)(workspace + a_reach);
        plan->a_kinds = workspace + a_kinds;
        plan->slots = workspace + slots;
        for (int code = 0; code < 128; code++) {
            const uint16_t bf16 = dg_bf16_from_f32(dg_f32_from_f8e4m3((uint8_t)code));
            plan->low[code] = (uint8_t)(bf16 & 0xffu);
            plan->high[code] = (uint8_t)(bf16 >> 8);
        }
    }
}

/* ---- scales ------------------------------------------------------------------------------------------------ */

/* fill_scales() for scales that move into exponents: what to add to a bf16 code, for each chunk of k. */
static uint32_t fill_shifts(const struct dg_gemm_scale *s, const struct limits *limits, int64_t mn, int64_t k0, int64_t count, int16_t *out)
{
    uint32_t reach = 0;
    int64_t block = k0 / s->gran_k;
    int64_t left = s->gran_k - k0 % s->gran_k;
    const int64_t row = mn / s->gran_mn;
    for (int64_t x = 0; x < count; x++) {
        if (left <= 0) {
            block++;
            left += s->gran_k;
        }
        const int exponent = ue8m0_at(s, row, block);
        reach = scale_is_plain(limits, dg_f32_from_ue8m0((uint8_t)exponent)) ? reach : REACH_EXACT;
        out[x] = (int16_t)((exponent - 127) * 128);
        left -= CHUNK;
    }
    return reach;
}

/* ---- decoding ---------------------------------------------------------------------------------------------- */

struct decoder {
    __m512i low[2];
    __m512i high[2];
    __m512i order; /* of quadwords, so that interleaving low and high bytes within lanes ends in order */
    __m512i f4e2m1;
};

static inline struct decoder make_decoder(const struct plan *plan)
{
    return (struct decoder){
        {_mm512_loadu_si512(plan->low), _mm512_loadu_si512(plan->low + 64)},
        {_mm512_loadu_si512(plan->high), _mm512_loadu_si512(plan->high + 64)},
        _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7),
        _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)f8e4m3_of_f4e2m1)),
    };
}

/* 64 e4m3 codes to two vectors of 32 bf16. */
static inline void decode_f8e4m3(const struct decoder *t, __m512i codes, __m512i out[2])
{
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    const __m512i ordered = _mm512_permutexvar_epi64(t->order, codes);
    const __m512i low = _mm512_permutex2var_epi8(t->low[0], ordered, t->low[1]); /* bit 7 of an index is ignored */
    const __m512i magnitude = _mm512_permutex2var_epi8(t->high[0], ordered, t->high[1]);
    const __m512i high = _mm512_ternarylogic_epi32(magnitude, ordered, sign, 0xf8); /* magnitude | (ordered & sign) */
    out[0] = _mm512_unpacklo_epi8(low, high);
    out[1] = _mm512_unpackhi_epi8(low, high);
}

/* 64 nibbles, two per byte, to 64 e4m3 codes. */
static inline __m512i widen_f4e2m1(const struct decoder *t, __m256i pairs)
{
    const __m512i words = _mm512_cvtepu8_epi16(pairs);
    const __m512i nibbles = _mm512_and_si512(_mm512_or_si512(words, _mm512_slli_epi16(words, 4)), _mm512_set1_epi8(0x0f));
    return _mm512_shuffle_epi8(t->f4e2m1, nibbles);
}

/* Codes times 2^(shift / 128): only finite values other than 0 have an exponent to add to. */
static inline __m512i shift_exponents(__m512i bf16, int16_t shift)
{
    const __m512i magnitude = _mm512_and_si512(bf16, _mm512_set1_epi16(0x7fff));
    const __mmask32 is_finite = _mm512_cmplt_epu16_mask(_mm512_sub_epi16(magnitude, _mm512_set1_epi16(1)), _mm512_set1_epi16(0x7f7f));
    return _mm512_mask_add_epi16(bf16, is_finite, bf16, _mm512_set1_epi16(shift));
}

static inline __mmask64 first_bytes(int64_t count)
{
    return count >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << count) - 1;
}

/* `count` e4m3 or e2m1 codes of a row to bf16, chunk by chunk, TILE_CODES apart; zeros fill the last chunk. `next` is a row of
 * the same length that will be read after this one: it is fetched meanwhile. */
static void decode_codes(const struct decoder *t, struct code_row row, const uint8_t *next, int64_t count, const int16_t *shifts, uint16_t *out)
{
    for (int64_t k = 0; k < count; k += 2 * CHUNK) {
        const __mmask64 is_code = first_bytes(count - k);
        __m512i codes;
        if (row.type == DG_GEMM_F8E4M3) {
            codes = _mm512_maskz_loadu_epi8(is_code, row.codes + k);
            _mm_prefetch((const char *)next + k, _MM_HINT_T0);
        } else {
            const __m256i pairs = _mm256_maskz_loadu_epi8((__mmask32)first_bytes((count - k + 1) / 2), row.codes + k / 2);
            codes = _mm512_maskz_mov_epi8(is_code, widen_f4e2m1(t, pairs));
            _mm_prefetch((const char *)next + k / 2, _MM_HINT_T0);
        }
        __m512i bf16[2];
        decode_f8e4m3(t, codes, bf16);
        const bool has_second = count - k > CHUNK;
        if (shifts != NULL) {
            bf16[0] = shift_exponents(bf16[0], shifts[k / CHUNK]);
            bf16[1] = shift_exponents(bf16[1], has_second ? shifts[k / CHUNK + 1] : 0);
        }
        uint16_t *chunk = out + k / CHUNK * TILE_CODES;
        _mm512_store_si512(chunk, bf16[0]);
        if (has_second) {
            _mm512_store_si512(chunk + TILE_CODES, bf16[1]);
        }
    }
}

/* The same for bf16, which is only copied. Returns the reach of the row. */
static uint32_t copy_bf16(struct code_row row, const uint8_t *next, int64_t count, uint16_t *out)
{
    __m512i largest = _mm512_setzero_si512();
    for (int64_t k = 0; k < count; k += CHUNK) {
        const __mmask32 is_code = count - k >= CHUNK ? ~(__mmask32)0 : ((__mmask32)1 << (count - k)) - 1;
        const __m512i codes = _mm512_maskz_loadu_epi16(is_code, row.codes + 2 * k);
        _mm_prefetch((const char *)next + 2 * k, _MM_HINT_T0);
        largest = _mm512_max_epu16(largest, _mm512_and_si512(codes, _mm512_set1_epi16(0x7fff)));
        _mm512_store_si512(out + k / CHUNK * TILE_CODES, codes);
    }
    const __m512i even = _mm512_slli_epi32(largest, 16);
    const __m512i odd = _mm512_and_si512(largest, _mm512_set1_epi32((int)0xffff0000u));
    return _mm512_reduce_max_epu32(_mm512_max_epu32(even, odd));
}

static uint32_t decode_row(const struct decoder *t, struct code_row row, const uint8_t *next, int64_t count, const int16_t *shifts, uint16_t *out)
{
    if (row.type == DG_GEMM_BF16) {
        return copy_bf16(row, next, count, out);
    }
    decode_codes(t, row, next, count, shifts, out);
    return 0;
}

static void zero_row(int64_t count, uint16_t *out)
{
    for (int64_t k = 0; k < count; k += CHUNK) {
        _mm512_store_si512(out + k / CHUNK * TILE_CODES, _mm512_setzero_si512());
    }
}

/* ---- packing a --------------------------------------------------------------------------------------------- */

/* x[r][c] = x[c][r] for 16 x 16 dwords. */
static inline void transpose_16x16(__m512i x[16])
{
    __m512i y[16];
    for (int i = 0; i < 16; i += 2) {
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) { /* now x[i + c]: column c of each 4 x 4 block of rows i .. i + 3 */
        x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    for (int i = 0; i < 4; i++) { /* transposes the 4 x 4 matrix of 128-bit lanes */
        const __m512i a = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
        const __m512i b = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
        const __m512i c = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
        const __m512i d = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
        y[i] = _mm512_shuffle_i32x4(a, c, 0x88);
        y[i + 8] = _mm512_shuffle_i32x4(a, c, 0xdd);
        y[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88);
        y[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
    for (int i = 0; i < 16; i++) {
        x[i] = y[i];
    }
}

/* Packs TILE rows of a over PACK_K of k. */
static void pack_a(struct plan *plan, const struct decoder *t, const struct slot *slot, int64_t tile, int64_t job)
{
    const struct dg_gemm_args *args = plan->args;
    const int64_t k0 = job * PACK_K;
    const int64_t count = min_i64(PACK_K, args->k - k0);
    const int64_t row0 = tile * TILE;
    const int64_t rows = min_i64(TILE, plan->m_count - row0);
    const int64_t units = ceil_div(count, plan->unit);
    const bool is_gathered = !is_k_major(&args->a);
    if (is_gathered) {
        gather_k_major(&args->a, plan->m0 + row0, rows, k0, count, slot->gathered, 2 * PACK_K);
    }
    for (int64_t r = 0; r < TILE; r++) {
        uint16_t *out = slot->panel + r * CHUNK;
        float *scales = plan->a_scales + k0 / plan->unit * plan->m_part + row0 + r;
        uint32_t reach = 0;
        if (r >= rows) {
            zero_row(count, out);
            for (int64_t u = 0; u < units; u++) {
                scales[u * plan->m_part] = 0;
            }
        } else {
            const int64_t i = plan->m0 + row0 + r;
            const struct code_row row = is_gathered ? (struct code_row){slot->gathered + r * 2 * PACK_K, gathered_type(args->a.type)}
                                                    : code_row_of(&args->a, i, k0);
            if (plan->folds_a) {
                reach = fill_shifts(&args->sfa, &plan->a_limits, i, k0, ceil_div(count, CHUNK), slot->shifts);
                const struct dg_gemm_scale none = {.type = DG_SCALE_NONE};
                fill_scales(&none, &plan->a_limits, i, k0, plan->unit, units, scales, plan->m_part);
            } else {
                reach = fill_scales(&args->sfa, &plan->a_limits, i, k0, plan->unit, units, scales, plan->m_part);
            }
            reach = larger_reach(reach, decode_row(t, row, row.codes, count, plan->folds_a ? slot->shifts : NULL, out));
        }
        plan->a_reach[job * plan->m_part + row0 + r] = reach;
    }
    for (int64_t chunk = 0; chunk < ceil_div(count, CHUNK); chunk++) {
        const uint16_t *from = slot->panel + chunk * TILE_CODES;
        uint16_t *to = plan->a_tiles + (tile * plan->chunks + k0 / CHUNK + chunk) * TILE_CODES;
        __m512i pairs[TILE];
        for (int r = 0; r < TILE; r++) {
            pairs[r] = _mm512_load_si512(from + r * CHUNK);
        }
        transpose_16x16(pairs);
        for (int r = 0; r < TILE; r++) {
            _mm512_store_si512(to + r * CHUNK, pairs[r]);
        }
    }
}

static void pack_worker(void *arg, int64_t begin, int64_t end)
{
    struct plan *plan = arg;
    const struct decoder t = make_decoder(plan);
    for (int64_t worker = begin; worker < end; worker++) {
        struct slot slot;
        slot_layout(plan, plan->slots + worker * plan->slot_bytes, &slot);
        int64_t piece;
        while (take_piece(&plan->pieces, &piece)) {
            pack_a(plan, &t, &slot, piece / plan->pack_jobs, piece % plan->pack_jobs);
        }
    }
}

/* ---- pieces ------------------------------------------------------------------------------------------------ */

/* The codes of row r of a piece of b at k0; for r == rows those that are read next. */
static struct code_row b_codes(const struct plan *plan, const struct slot *slot, int64_t n0, int64_t r, int64_t k0)
{
    const struct dg_gemm_operand *b = &plan->args->b;
    if (!is_k_major(b)) {
        return (struct code_row){slot->gathered + r * plan->k_block * 2, gathered_type(b->type)};
    }
    return code_row_of(b, n0 + r, k0);
}

/* Decodes rows [n0, n0 + rows) of b and k in [k0, k0 + count) into the panel. */
static void decode_b(const struct plan *plan, const struct decoder *t, const struct slot *slot, int64_t n0, int64_t rows, int64_t k0, int64_t count)
{
    const struct dg_gemm_args *args = plan->args;
    const int64_t units = ceil_div(count, plan->unit);
    const int64_t units_stride = ceil_div(plan->k_block, plan->unit);
    const int64_t tile_stride = ceil_div(count, CHUNK) * TILE_CODES;
    if (!is_k_major(&args->b)) {
        gather_k_major(&args->b, n0, rows, k0, count, slot->gathered, plan->k_block * 2);
    }
    uint32_t scale_reach = 0;
    for (int64_t r = 0; r < round_up(rows, N_STEP); r++) {
        uint16_t *out = slot->panel + r / TILE * tile_stride + r % TILE * CHUNK;
        float *scales = slot->b_scales + r * units_stride;
        if (r >= rows) {
            zero_row(count, out);
            memset(scales, 0, (size_t)units * sizeof(*scales));
            continue;
        }
        const int64_t j = n0 + r;
        const bool has_same_scales = r > 0 && j / args->sfb.gran_mn == (j - 1) / args->sfb.gran_mn;
        if (has_same_scales) {
            memcpy(scales, scales - units_stride, (size_t)units * sizeof(*scales));
        } else if (plan->folds_b) {
            const struct dg_gemm_scale none = {.type = DG_SCALE_NONE};
            fill_scales(&none, &plan->b_limits, j, k0, plan->unit, units, scales, 1);
            scale_reach = fill_shifts(&args->sfb, &plan->b_limits, j, k0, ceil_div(count, CHUNK), slot->shifts);
        } else {
            scale_reach = fill_scales(&args->sfb, &plan->b_limits, j, k0, plan->unit, units, scales, 1);
        }
        const struct code_row row = b_codes(plan, slot, n0, r, k0);
        const bool is_last = r + 1 == rows && k0 + count < args->k;
        const uint8_t *next = is_last ? b_codes(plan, slot, n0, 0, k0 + count).codes : b_codes(plan, slot, n0, r + 1, k0).codes;
        const uint32_t reach = decode_row(t, row, next, count, plan->folds_b ? slot->shifts : NULL, out);
        slot->b_reach[r] = larger_reach(slot->b_reach[r], larger_reach(scale_reach, reach));
    }
}

/* Totals of a piece to d. */
static void store_piece(const struct plan *plan, const struct slot *slot, int64_t n0, int64_t rows, int64_t m0, int64_t m_rows)
{
    const struct dg_gemm_args *args = plan->args;
    bool b_is_plain[512 / TILE];
    for (int64_t n = 0; n < rows; n += TILE) {
        bool is_plain = true;
        for (int64_t x = n; x < min_i64(n + TILE, rows); x++) {
            slot->b_kinds[x] = (uint8_t)kind_of_reach(&plan->b_limits, slot->b_reach[x]);
            is_plain = is_plain && slot->b_kinds[x] == ROW_PLAIN;
        }
        b_is_plain[n / TILE] = is_plain;
    }
    for (int64_t m = 0; m < m_rows; m += TILE) {
        for (int64_t n = 0; n < rows; n += TILE) {
            __m512i sums[TILE];
            for (int64_t x = 0; x < TILE; x++) {
                sums[x] = _mm512_load_si512(slot->totals + (n + x) * plan->m_block + m);
            }
            transpose_16x16(sums);
            for (int64_t x = 0; x < min_i64(TILE, m_rows - m); x++) {
                _Alignas(64) float row[OUTPUT_TILE];
                _mm512_store_si512(row, sums[x]);
                const int64_t i = plan->m0 + m0 + m + x;
                const int64_t count = min_i64(TILE, rows - n);
                const uint8_t a_kind = plan->a_kinds[m0 + m + x];
                if (a_kind == ROW_PLAIN && b_is_plain[n / TILE]) {
                    store_sums(args, i, n0 + n, count, row);
                } else {
                    store_kinds(args, i, n0 + n, count, row, a_kind, slot->b_kinds + n);
                }
            }
        }
    }
}

static void compute_piece(const struct plan *plan, const struct decoder *t, const struct slot *slot, int64_t n0, int64_t m0)
{
    const struct dg_gemm_args *args = plan->args;
    const int64_t rows = min_i64(plan->n_block, args->n - n0);
    const int64_t m_rows = min_i64(plan->m_block, plan->m_count - m0);
    memset(slot->totals, 0, (size_t)(round_up(rows, N_STEP) * plan->m_block) * sizeof(float));
    memset(slot->b_reach, 0, (size_t)rows * sizeof(*slot->b_reach));

    for (int64_t k0 = 0; k0 < args->k; k0 += plan->k_block) {
        const int64_t count = min_i64(plan->k_block, args->k - k0);
        const int64_t chunks = ceil_div(count, CHUNK);
        decode_b(plan, t, slot, n0, rows, k0, count);
        for (int64_t m = 0; m < m_rows; m += 2 * TILE) {
            for (int64_t n = 0; n < rows; n += N_STEP) {
                const struct block block = {
                    .b = slot->panel + n / TILE * chunks * TILE_CODES,
                    .b_tile_stride = chunks * TILE_CODES,
                    .a = plan->a_tiles + ((m0 + m) / TILE * plan->chunks + k0 / CHUNK) * TILE_CODES,
                    .a_tile_stride = plan->chunks * TILE_CODES,
                    .m_tiles = m_rows - m > TILE ? 2 : 1,
                    .chunks = chunks,
                    .unit_chunks = plan->unit / CHUNK,
                    .a_scales = plan->a_scales + k0 / plan->unit * plan->m_part + m0 + m,
                    .a_scales_stride = plan->m_part,
                    .b_scales = slot->b_scales + n * ceil_div(plan->k_block, plan->unit),
                    .b_scales_stride = ceil_div(plan->k_block, plan->unit),
                    .totals = slot->totals + n * plan->m_block + m,
                    .totals_stride = plan->m_block,
                    .scratch = slot->scratch,
                };
                multiply(&block);
            }
        }
    }
    store_piece(plan, slot, n0, rows, m0, m_rows);
}

static void compute_worker(void *arg, int64_t begin, int64_t end)
{
    struct plan *plan = arg;
    const struct decoder t = make_decoder(plan);
    begin_tiles();
    for (int64_t worker = begin; worker < end; worker++) {
        struct slot slot;
        slot_layout(plan, plan->slots + worker * plan->slot_bytes, &slot);
        int64_t piece;
        while (take_piece(&plan->pieces, &piece)) {
            compute_piece(plan, &t, &slot, piece / plan->m_pieces * plan->n_block, piece % plan->m_pieces * plan->m_block);
        }
    }
    end_tiles();
}

/* ---- the whole ---------------------------------------------------------------------------------------------- */

static size_t bf16_form_workspace(const struct dg_gemm_args *args)
{
    struct plan plan;
    make_plan(&plan, args, NULL);
    return (size_t)plan.workspace_bytes;
}

static void run_bf16_form(const struct dg_gemm_args *args)
{
    struct plan plan;
    make_plan(&plan, args, args->exec.workspace);
    for (plan.m0 = 0; plan.m0 < args->m; plan.m0 += plan.m_part) {
        plan.m_count = min_i64(plan.m_part, args->m - plan.m0);

        const int64_t tiles = ceil_div(plan.m_count, TILE);
        plan.pieces = (struct pieces){0, tiles * plan.pack_jobs};
        run_workers(&args->exec, min_i64(plan.workers, plan.pieces.count), pack_worker, &plan);
        for (int64_t i = 0; i < tiles * TILE; i++) {
            uint32_t reach = 0;
            for (int64_t job = 0; job < plan.pack_jobs; job++) {
                reach = larger_reach(reach, plan.a_reach[job * plan.m_part + i]);
            }
            plan.a_kinds[i] = (uint8_t)kind_of_reach(&plan.a_limits, reach);
        }

        plan.m_pieces = ceil_div(plan.m_count, plan.m_block);
        plan.pieces = (struct pieces){0, ceil_div(args->n, plan.n_block) * plan.m_pieces};
        run_workers(&args->exec, min_i64(plan.workers, plan.pieces.count), compute_worker, &plan);
    }
}

#endif
