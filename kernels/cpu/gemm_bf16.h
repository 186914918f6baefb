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
 *   b panel   [n / 16][k / 32][16 rows][32]           decoded by each worker for its piece, in its slot
 *   a tiles   [m / 16][k / 32][16 pairs][16 rows][2]
 *   totals    [blocks of 4 tiles][16][16]             rows of b by rows of a, so that vectors run along a
 *
 * With no more than DOT_M rows of a, and b k-major, there is a shorter way, the dot form: vectors run along k, rows of b are decoded in
 * registers and used there, with VDPBF16PS. Reading b is all that takes time then.
 *
 * The including file defines DOT_M, 2 or 4, and gives multiply(), which sums a block of up to 4 tiles, unit by unit, and whatever its threads
 * need around that in begin_tiles() and end_tiles(). Everything else that has to be done, adding the sums of the block before to its
 * totals and decoding the panel after this one, is done by do_aside(), which multiply() calls between its instructions, so
 * that it takes place in the shadow of the multiplications. Read gemm_operand.h first for what ROW_EXACT means.
 */
#ifndef DG_CPU_GEMM_BF16_H
#define DG_CPU_GEMM_BF16_H

#include "gemm_operand.h"
#include "gemm_output.h"
#include "gemm_split.h"
#include "gemm_transpose.h"

#include <immintrin.h>

enum {
    TILE = 16,                 /* rows of a tile */
    CHUNK = 32,                /* k of a tile */
    TILE_CODES = TILE * CHUNK, /* 1 KiB */
    UNIT_MAX = 256,            /* k per chain of f32 additions */
    PACK_K = 1024,             /* k of a job of packing a: a multiple of UNIT_MAX */
    TILE_FLOATS = TILE * TILE,
    BLOCK_TILES = 4, /* at most */
    BLOCK_FLOATS = BLOCK_TILES * TILE_FLOATS,
    DOT_ROWS = 4,        /* rows of b at a time, at most */
    DOT_K = 2 * CHUNK,   /* k at a time */
    DOT_PIECE = 32       /* rows of b of a piece */
};

/* A block of the product: what multiply() multiplies, and where the sums go. It is 2 tiles of b by 2 of a, where one of a may be
 * missing, or, if all of a is one tile, up to 4 tiles of b by that. Strides count elements. */
struct block {
    const uint16_t *b; /* for each chunk of k a tile; the next n-tile is b_tile_stride away */
    int64_t b_tile_stride;
    int b_tiles;
    const uint16_t *a;
    int64_t a_tile_stride;
    int a_tiles;
    bool is_narrow; /* the second form */
    int64_t chunks;
    int64_t unit_chunks;
    float *sums; /* [unit][b tile][a tile, of which there are 2 or, if is_narrow, 1][16][16] */

    const float *a_scales; /* [units][a_scales_stride], from this block's first row of a on */
    int64_t a_scales_stride;
    const float *b_scales; /* [rows][b_scales_stride], unit by unit */
    int64_t b_scales_stride;
    float *totals; /* as sums, one unit */
};

struct aside;
static inline void do_aside(struct aside *aside);

static void begin_tiles(void);
static void end_tiles(void);
/* Calls do_aside() once for each chunk of k. */
static void multiply(const struct block *x, struct aside *aside);

/* ---- the plan ---------------------------------------------------------------------------------------------- */

struct plan {
    const struct dg_gemm_args *args;
    struct limits a_limits, b_limits;
    bool folds_a, folds_b; /* scales go into the exponents of the codes */
    bool is_dot;
    bool is_narrow;         /* all of a is one tile: see struct block */
    int64_t n_step, m_step; /* rows of b and of a of a block */
    bool b_scales_are_even; /* all rows of a tile of b have the same ones */
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
    uint8_t *slots;
    int64_t slot_bytes;
    int64_t workspace_bytes;

    /* bytes of the bf16 of each e4m3 magnitude and each e2m1 code */
    uint8_t low[128], high[128];
    uint8_t f4e2m1_low[16], f4e2m1_high[16];

    /* the part in progress */
    int64_t m0, m_count;
    int64_t m_pieces;
    struct jobs packing;
    struct pieces pieces;
};

/* A panel of b: rows [n0, n0 + rows), k in [k0, k0 + count). */
struct panel {
    uint16_t *codes;   /* [n_block / 16][chunks][16][32] */
    float *scales;     /* [n_block][units of k_block] */
    int64_t n0, rows;
    int64_t padded_rows; /* to whole blocks, with zeros */
    int64_t k0, count;
    int64_t decoded;   /* rows that are done */
    int64_t scales_end; /* the first row whose scales differ from those of the row before decoded */
    uint32_t scale_reach; /* of the row before decoded */
    uint32_t *reach;   /* [n_block], over all panels of a piece */
    int64_t next_n, next_k; /* where the panel begins that will be decoded after this one */
};

/* One worker's part of the workspace. */
struct slot {
    struct panel panels[2]; /* one is multiplied while the other is decoded */
    uint8_t *gathered;      /* rows of codes, where an operand is not k-major */
    float *totals;          /* [n_block / 32][m_block / 32][BLOCK_FLOATS] */
    float *sums[2];         /* [units of k_block][BLOCK_FLOATS]; one is summed up while the other is added to totals */
    int16_t *shifts;        /* [chunks of k_block], of the row being decoded */
    uint32_t *reach[2];     /* [n_block], of this piece and of the next */
    uint8_t *b_kinds;       /* [n_block] */

    /* of the dot form; then there are no panels, totals and sums */
    float *dot_scales;      /* [DOT_ROWS][units] */
    int16_t *dot_shifts;    /* [DOT_ROWS][chunks, rounded up to a multiple of 2] */
    float *dot_sums;        /* [DOT_M][DOT_PIECE] */
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
    const int64_t units = plan->k_block / plan->unit;
    const int64_t panel_codes = plan->is_dot ? 0 : max_i64(plan->n_block * plan->k_block, TILE * PACK_K);
    const bool is_gathered = !is_k_major(&plan->args->a) || !is_k_major(&plan->args->b);
    int64_t used = 0;
    for (int i = 0; i < 2; i++) {
        const int64_t codes = take_bytes(&used, panel_codes * 2);
        const int64_t scales = take_bytes(&used, plan->n_block * units * 4);
        const int64_t reach = take_bytes(&used, plan->n_block * 4);
        const int64_t sums = take_bytes(&used, plan->is_dot ? 0 : units * BLOCK_FLOATS * 4);
        if (base != NULL) {
            slot->panels[i] = (struct panel){.codes = (uint16_t *)(base + codes), .scales = (float *)(base + scales)};
            slot->reach[i] = (uint32_t *)(base + reach);
            slot->sums[i] = (float *)(base + sums);
        }
    }
    const int64_t gathered = take_bytes(&used, is_gathered ? max_i64(panel_codes, TILE * PACK_K) * 2 : 0);
    const int64_t blocks = plan->n_block / plan->n_step * (plan->m_block / plan->m_step);
    const int64_t totals = take_bytes(&used, plan->is_dot ? 0 : blocks * BLOCK_FLOATS * 4);
    const int64_t shifts = take_bytes(&used, max_i64(chunks, PACK_K / CHUNK) * 2);
    const int64_t b_kinds = take_bytes(&used, plan->n_block);
    const int64_t dot_scales = take_bytes(&used, plan->is_dot ? DOT_ROWS * plan->units * 4 : 0);
    const int64_t dot_shifts = take_bytes(&used, plan->is_dot && plan->folds_b ? DOT_ROWS * round_up(plan->chunks, 2) * 2 : 0);
    const int64_t dot_sums = take_bytes(&used, plan->is_dot ? DOT_M * DOT_PIECE * 4 : 0);
    if (base != NULL) {
        slot->dot_scales = (float *)(base + dot_scales);
        slot->dot_shifts = (int16_t *)(base + dot_shifts);
        slot->dot_sums = (float *)(base + dot_sums);
        slot->gathered = base + gathered;
        slot->totals = (float *)(base + totals);
        slot->shifts = (int16_t *)(base + shifts);
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
    plan->b_scales_are_even = plan->folds_b || args->sfb.type == DG_SCALE_NONE || args->sfb.gran_mn % TILE == 0;
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

    plan->is_dot = args->m <= DOT_M && is_k_major(&args->b);

    /* 32 MiB of packed a stay in a last-level cache, and b is read once for each such part. */
    const int64_t part_rows = ((int64_t)32 << 20) / max_i64(plan->chunks * CHUNK * 2, 1);
    plan->m_part = min_i64(round_up(args->m, TILE), max_i64(part_rows / TILE * TILE, TILE));
    plan->workers = max_i64(args->exec.num_threads, 1);

    /* A block of k: two tiles of a, 16 KiB, stay in L1 while those of b come from the panel in L2. One tile of a: small pieces,
     * because reading b is what takes time. Many: up to 512 rows share the work of decoding. */
    plan->is_narrow = plan->m_part == TILE;
    plan->k_block = plan->is_narrow ? 2 * UNIT_MAX : UNIT_MAX;
    plan->m_step = plan->is_narrow ? TILE : 2 * TILE;
    plan->n_step = plan->is_narrow ? even_block(args->n, TILE, BLOCK_TILES * TILE, 4 * plan->workers) : 2 * TILE;
    plan->m_block = even_block(plan->m_part, plan->m_step, 512, 1);
    plan->n_block = plan->is_narrow ? plan->n_step : even_block(args->n, plan->n_step, 128, 2 * plan->workers);
    if (plan->is_dot) {
        plan->n_block = even_block(args->n, DOT_ROWS, DOT_PIECE, plan->workers);
    }
    plan->workers = min_i64(plan->workers, ceil_div(args->n, plan->n_block) * ceil_div(plan->m_part, plan->m_block));

    int64_t used = 0;
    const int64_t a_tiles = take_bytes(&used, plan->m_part * round_up(plan->chunks, 2) * CHUNK * 2);
    const int64_t a_scales = take_bytes(&used, plan->m_part * plan->units * 4);
    const int64_t a_reach = take_bytes(&used, plan->m_part * plan->pack_jobs * 4);
    const int64_t slots = take_bytes(&used, 0);
    plan->slot_bytes = slot_layout(plan, NULL, NULL);
    plan->workspace_bytes = used + plan->slot_bytes * plan->workers;
    if (workspace != NULL) {
        plan->a_tiles = (uint16_t *)(workspace + a_tiles);
        plan->a_scales = (float *)(workspace + a_scales);
        plan->a_reach = (uint32_t *)(workspace + a_reach);
        plan->slots = workspace + slots;
        for (int code = 0; code < 128; code++) {
            const uint16_t bf16 = dg_bf16_from_f32(dg_f32_from_f8e4m3((uint8_t)code));
            plan->low[code] = (uint8_t)(bf16 & 0xffu);
            plan->high[code] = (uint8_t)(bf16 >> 8);
        }
        for (int code = 0; code < 16; code++) {
            const uint16_t bf16 = dg_bf16_from_f32(dg_f32_from_f4e2m1((uint8_t)code));
            plan->f4e2m1_low[code] = (uint8_t)(bf16 & 0xffu);
            plan->f4e2m1_high[code] = (uint8_t)(bf16 >> 8);
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
        reach = larger_reach(reach, reach_of_scale(limits, dg_f32_from_ue8m0((uint8_t)exponent)));
        out[x] = (int16_t)((exponent - 127) * 128);
        left -= CHUNK;
    }
    return reach;
}

/* ---- decoding ---------------------------------------------------------------------------------------------- */

/* Tables and constants. Interleaving bytes works within 128-bit lanes, so quadwords are put in `order` before. */
struct decoder {
    __m512i order;
    __m512i low[2]; /* bytes of the bf16 of each e4m3 magnitude */
    __m512i high[2];
    __m512i f4e2m1_low; /* bytes of the bf16 of each e2m1 code */
    __m512i f4e2m1_high;
};

static inline struct decoder make_decoder(const struct plan *plan)
{
    return (struct decoder){
        _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7),
        {_mm512_loadu_si512(plan->low), _mm512_loadu_si512(plan->low + 64)},
        {_mm512_loadu_si512(plan->high), _mm512_loadu_si512(plan->high + 64)},
        _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)plan->f4e2m1_low)),
        _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)plan->f4e2m1_high)),
    };
}

static inline void interleave(__m512i low, __m512i high, __m512i out[2])
{
    out[0] = _mm512_unpacklo_epi8(low, high);
    out[1] = _mm512_unpackhi_epi8(low, high);
}

/* 64 e4m3 codes to two vectors of 32 bf16: any codes. */
static inline void decode_f8e4m3(const struct decoder *t, __m512i codes, __m512i out[2])
{
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    const __m512i ordered = _mm512_permutexvar_epi64(t->order, codes);
    const __m512i low = _mm512_permutex2var_epi8(t->low[0], ordered, t->low[1]); /* bit 7 of an index is ignored */
    const __m512i magnitude = _mm512_permutex2var_epi8(t->high[0], ordered, t->high[1]);
    interleave(low, _mm512_ternarylogic_epi32(magnitude, ordered, sign, 0xf8), out); /* magnitude | (ordered & sign) */
}

/* The same for normal codes: not 0, subnormal or NaN. The bits s abcd efg of such a code become s aAAAAbcd efg0000 of bf16, A being the
 * complement of a: adding 120 to the exponent abcd, which is 1 to 15, is linear in bits. */
static inline void decode_normal_f8e4m3(const struct decoder *t, __m512i codes, __m512i out[2])
{
    const __m512i low_bits = _mm512_set1_epi64(0x0000000001020408);
    const __m512i high_bits = _mm512_set1_epi64(0x1020404040404080);
    const __m512i ordered = _mm512_permutexvar_epi64(t->order, codes);
    interleave(_mm512_gf2p8affine_epi64_epi8(ordered, low_bits, 0), _mm512_gf2p8affine_epi64_epi8(ordered, high_bits, 0x3c), out);
}

/* Gathers over codes what all_are_normal() wants to know: the largest 2 * magnitude - 16 mod 256, which is at least 0xee for a code
 * that is not normal, and less for one that is. */
static inline __m512i gather_abnormal(__m512i largest, __m512i codes)
{
    return _mm512_max_epu8(largest, _mm512_sub_epi8(_mm512_add_epi8(codes, codes), _mm512_set1_epi8(16)));
}

static inline bool all_are_normal(__m512i largest)
{
    return _mm512_cmpge_epu8_mask(largest, _mm512_set1_epi8((char)0xee)) == 0;
}

/* 64 e2m1 codes, two per byte. */
static inline void decode_f4e2m1(const struct decoder *t, __m256i pairs, __m512i out[2])
{
    const __m512i words = _mm512_permutexvar_epi64(t->order, _mm512_cvtepu8_epi16(pairs));
    const __m512i nibbles = _mm512_and_si512(_mm512_or_si512(words, _mm512_slli_epi16(words, 4)), _mm512_set1_epi8(0x0f));
    interleave(_mm512_shuffle_epi8(t->f4e2m1_low, nibbles), _mm512_shuffle_epi8(t->f4e2m1_high, nibbles), out);
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

/* Up to 64 codes to two vectors of 32 bf16, zeros behind them. */
static inline void decode_any(const struct decoder *t, struct code_row row, int64_t k, int64_t left, __m512i out[2])
{
    if (row.type == DG_GEMM_F8E4M3) {
        decode_f8e4m3(t, _mm512_maskz_loadu_epi8(first_bytes(left), row.codes + k), out);
        return;
    }
    const int64_t bytes = min_i64((left + 1) / 2, 32);
    __m256i pairs = _mm256_maskz_loadu_epi8((__mmask32)first_bytes(bytes), row.codes + k / 2);
    if (left < 64 && left % 2 != 0) { /* the last byte has a code that is not of this row */
        pairs = _mm256_and_si256(pairs, _mm256_mask_mov_epi8(_mm256_set1_epi8(-1), (__mmask32)1 << (bytes - 1), _mm256_set1_epi8(0x0f)));
    }
    decode_f4e2m1(t, pairs, out);
}

static inline void prefetch_codes(const uint8_t *next, enum dg_gemm_type type, int64_t k)
{
    _mm_prefetch((const char *)next + code_bytes(type, k), _MM_HINT_T1);
}

/* `count` e4m3 codes of a row to bf16, chunk by chunk, `stride` apart, if there are only normal ones, and whole DOT_K of them; or
 * returns false. */
static inline bool decode_normal_row(const struct decoder *t, const uint8_t *row, const uint8_t *next, int64_t count, const int16_t *shifts,
                                     uint16_t *out, int64_t stride)
{
    if (count % DOT_K != 0) {
        return false;
    }
    __m512i abnormal = _mm512_setzero_si512();
    for (int64_t k = 0; k < count; k += DOT_K, out += 2 * stride) {
        const __m512i codes = _mm512_loadu_si512(row + k);
        __m512i bf16[2];
        decode_normal_f8e4m3(t, codes, bf16);
        abnormal = gather_abnormal(abnormal, codes);
        prefetch_codes(next, DG_GEMM_F8E4M3, k);
        if (shifts != NULL) {
            bf16[0] = _mm512_add_epi16(bf16[0], _mm512_set1_epi16(shifts[k / CHUNK]));
            bf16[1] = _mm512_add_epi16(bf16[1], _mm512_set1_epi16(shifts[k / CHUNK + 1]));
        }
        _mm512_store_si512(out, bf16[0]);
        _mm512_store_si512(out + stride, bf16[1]);
    }
    return all_are_normal(abnormal);
}

/* The same for any e4m3 or e2m1 codes and any count; zeros fill the last chunk. `next` are codes that will be read later: as many are
 * fetched into L2 meanwhile. */
static void decode_codes(const struct decoder *t, struct code_row row, const uint8_t *next, int64_t count, const int16_t *shifts, uint16_t *out,
                         int64_t stride)
{
    if (row.type == DG_GEMM_F8E4M3 && decode_normal_row(t, row.codes, next, count, shifts, out, stride)) {
        return;
    }
    for (int64_t k = 0; k < count; k += DOT_K) {
        const bool has_second = count - k > CHUNK;
        __m512i bf16[2];
        decode_any(t, row, k, count - k, bf16);
        prefetch_codes(next, row.type, k);
        if (shifts != NULL) {
            bf16[0] = shift_exponents(bf16[0], shifts[k / CHUNK]);
            bf16[1] = shift_exponents(bf16[1], has_second ? shifts[k / CHUNK + 1] : 0);
        }
        uint16_t *chunk = out + k / CHUNK * stride;
        _mm512_store_si512(chunk, bf16[0]);
        if (has_second) {
            _mm512_store_si512(chunk + stride, bf16[1]);
        }
    }
}

/* The reach of a row from its magnitudes, gathered by 16 bits. */
static inline uint32_t reach_of_bf16(__m512i largest)
{
    const __m512i even = _mm512_slli_epi32(largest, 16);
    const __m512i odd = _mm512_and_si512(largest, _mm512_set1_epi32((int)0xffff0000u));
    return _mm512_reduce_max_epu32(_mm512_max_epu32(even, odd));
}

/* The same for bf16, which is only copied. Returns the reach of the row. */
static uint32_t copy_bf16(struct code_row row, const uint8_t *next, int64_t count, uint16_t *out, int64_t stride)
{
    __m512i largest = _mm512_setzero_si512();
    for (int64_t k = 0; k < count; k += CHUNK) {
        const __mmask32 is_code = (__mmask32)first_bytes(min_i64(count - k, CHUNK));
        const __m512i codes = count - k >= CHUNK ? _mm512_loadu_si512(row.codes + 2 * k) : _mm512_maskz_loadu_epi16(is_code, row.codes + 2 * k);
        _mm_prefetch((const char *)next + 2 * k, _MM_HINT_T1);
        largest = _mm512_max_epu16(largest, _mm512_and_si512(codes, _mm512_set1_epi16(0x7fff)));
        _mm512_store_si512(out + k / CHUNK * stride, codes);
    }
    return reach_of_bf16(largest);
}

static uint32_t decode_row(const struct decoder *t, struct code_row row, const uint8_t *next, int64_t count, const int16_t *shifts, uint16_t *out,
                           int64_t stride)
{
    if (row.type == DG_GEMM_BF16) {
        return copy_bf16(row, next, count, out, stride);
    }
    decode_codes(t, row, next, count, shifts, out, stride);
    return 0;
}

static void zero_row(int64_t count, uint16_t *out)
{
    for (int64_t k = 0; k < count; k += CHUNK) {
        _mm512_store_si512(out + k / CHUNK * TILE_CODES, _mm512_setzero_si512());
    }
}

/* ---- packing a --------------------------------------------------------------------------------------------- */

/* Row m of the part: its scales, and its codes to out, chunks `stride` apart. Returns its reach. */
static uint32_t pack_row(const struct plan *plan, const struct decoder *t, const struct slot *slot, struct code_row row, int64_t m, int64_t k0,
                         int64_t count, uint16_t *out, int64_t stride)
{
    const struct dg_gemm_args *args = plan->args;
    const int64_t i = plan->m0 + m;
    const int64_t units = ceil_div(count, plan->unit);
    float *scales = plan->a_scales + k0 / plan->unit * plan->m_part + m;
    uint32_t reach;
    if (plan->folds_a) {
        const struct dg_gemm_scale none = {.type = DG_SCALE_NONE};
        fill_scales(&none, &plan->a_limits, i, k0, plan->unit, units, scales, plan->m_part);
        reach = fill_shifts(&args->sfa, &plan->a_limits, i, k0, ceil_div(count, CHUNK), slot->shifts);
    } else {
        reach = fill_scales(&args->sfa, &plan->a_limits, i, k0, plan->unit, units, scales, plan->m_part);
    }
    return larger_reach(reach, decode_row(t, row, row.codes, count, plan->folds_a ? slot->shifts : NULL, out, stride));
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
        uint16_t *out = plan->is_dot ? plan->a_tiles + r * round_up(plan->chunks, 2) * CHUNK + k0 : slot->panels[0].codes + r * CHUNK;
        const int64_t stride = plan->is_dot ? CHUNK : TILE_CODES;
        uint32_t reach = 0;
        if (r < rows) {
            const struct code_row row = is_gathered ? (struct code_row){slot->gathered + r * 2 * PACK_K, gathered_type(args->a.type)}
                                                    : code_row_of(&args->a, plan->m0 + row0 + r, k0);
            reach = pack_row(plan, t, slot, row, row0 + r, k0, count, out, stride);
            if (plan->is_dot && ceil_div(count, CHUNK) % 2 != 0) {
                _mm512_store_si512(out + ceil_div(count, CHUNK) * CHUNK, _mm512_setzero_si512()); /* the dot form reads whole DOT_K */
            }
        } else if (!plan->is_dot) {
            zero_row(count, out);
            for (int64_t u = 0; u < units; u++) {
                plan->a_scales[(k0 / plan->unit + u) * plan->m_part + row0 + r] = 0;
            }
        }
        plan->a_reach[job * plan->m_part + row0 + r] = reach;
    }
    if (plan->is_dot) {
        return;
    }
    for (int64_t chunk = 0; chunk < ceil_div(count, CHUNK); chunk++) {
        const uint16_t *from = slot->panels[0].codes + chunk * TILE_CODES;
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
static void pack(struct plan *plan, const struct decoder *t, const struct slot *slot)
{
    for (int64_t job = take_job(&plan->packing); job < plan->packing.untaken.count; job = take_job(&plan->packing)) {
        pack_a(plan, t, slot, job / plan->pack_jobs, job % plan->pack_jobs);
        finish_job(&plan->packing);
    }
    wait_for_jobs(&plan->packing);
}

/* ---- panels of b ------------------------------------------------------------------------------------------- */

/* Begins a panel: nothing of it is decoded yet. next_n, next_k: the panel after it. */
static void open_panel(const struct plan *plan, const struct slot *slot, struct panel *panel, int64_t n0, int64_t k0, uint32_t *reach,
                       int64_t next_n, int64_t next_k)
{
    const struct dg_gemm_args *args = plan->args;
    panel->n0 = n0;
    panel->rows = min_i64(plan->n_block, args->n - n0);
    panel->padded_rows = round_up(panel->rows, plan->n_step);
    panel->k0 = k0;
    panel->count = min_i64(plan->k_block, args->k - k0);
    panel->decoded = 0;
    panel->scales_end = 0;
    panel->reach = reach;
    panel->next_n = next_n;
    panel->next_k = next_k;
    if (k0 == 0) {
        memset(reach, 0, (size_t)panel->rows * sizeof(*reach));
    }
    if (plan->folds_b) {
        for (int64_t x = 0; x < plan->n_block * (plan->k_block / plan->unit); x++) {
            panel->scales[x] = 1;
        }
    }
    if (!is_k_major(&args->b)) {
        gather_k_major(&args->b, n0, panel->rows, k0, panel->count, slot->gathered, plan->k_block * 2);
    }
}

/* The scales of row r of a panel, or, where they move into exponents, the slot's shifts. */
static void scale_panel_row(const struct plan *plan, const struct slot *slot, struct panel *panel, int64_t r)
{
    const struct dg_gemm_scale *sfb = &plan->args->sfb;
    const int64_t j = panel->n0 + r;
    if (plan->folds_b) {
        panel->scale_reach = fill_shifts(sfb, &plan->b_limits, j, panel->k0, ceil_div(panel->count, CHUNK), slot->shifts);
    } else {
        const int64_t units = ceil_div(panel->count, plan->unit);
        float *scales = panel->scales + r * (plan->k_block / plan->unit);
        panel->scale_reach = fill_scales(sfb, &plan->b_limits, j, panel->k0, plan->unit, units, scales, 1);
    }
    panel->scales_end = sfb->type == DG_SCALE_NONE ? INT64_MAX : r + sfb->gran_mn - j % sfb->gran_mn;
}

/* Row r has the scales of the row before, or of the tile before: those of the first row of a tile stand for all if they are even. */
static void repeat_scales(const struct plan *plan, const struct panel *panel, int64_t r)
{
    const int64_t units = plan->k_block / plan->unit;
    if (plan->b_scales_are_even && r % TILE != 0) {
        return;
    }
    const float *from = panel->scales + (r - (plan->b_scales_are_even ? TILE : 1)) * units;
    for (int64_t u = 0; u < units; u++) {
        panel->scales[r * units + u] = from[u];
    }
}

/* Decodes the rows of a panel up to `end`; those that fill up the last block are zeros. */
static void decode_panel(const struct plan *plan, const struct decoder *t, const struct slot *slot, struct panel *panel, int64_t end)
{
    const struct dg_gemm_args *args = plan->args;
    const struct dg_gemm_operand *b = &args->b;
    const int64_t tile_stride = ceil_div(panel->count, CHUNK) * TILE_CODES;
    const int16_t *shifts = plan->folds_b ? slot->shifts : NULL;
    const bool is_gathered = !is_k_major(b);
    const struct code_row first = code_row_of(b, panel->n0, panel->k0);
    const struct code_row first_next = code_row_of(b, panel->next_n, panel->next_k);
    for (int64_t r = panel->decoded; r < end; r++) {
        uint16_t *out = panel->codes + r / TILE * tile_stride + r % TILE * CHUNK;
        if (r >= panel->rows) {
            zero_row(panel->count, out);
            continue;
        }
        if (r >= panel->scales_end) {
            scale_panel_row(plan, slot, panel, r);
        } else if (!plan->folds_b) {
            repeat_scales(plan, panel, r);
        }
        const int64_t offset = r * b->stride_mn * code_bits(b->type) / 8; /* either sign; a whole number of bytes */
        struct code_row row = {first.codes + offset, b->type};
        const uint8_t *next = first_next.codes + offset;
        if (is_gathered) {
            row = (struct code_row){slot->gathered + r * plan->k_block * 2, gathered_type(b->type)};
            next = row.codes;
        }
        const uint32_t reach = decode_row(t, row, next, panel->count, shifts, out, TILE_CODES);
        panel->reach[r] = larger_reach(panel->reach[r], larger_reach(panel->scale_reach, reach));
    }
    panel->decoded = end;
}

/* ---- what is done aside ------------------------------------------------------------------------------------ */

struct aside {
    const struct plan *plan;
    const struct decoder *t;
    const struct slot *slot;

    const struct block *summed; /* the block before, whose sums are to be added to its totals, or NULL */
    int64_t added;              /* rows of b of it that are done */
    int64_t add_step;           /* rows for each call */

    struct panel *panel; /* to be decoded, or NULL */
    int64_t calls;       /* in which all of its rows have to be done */
    int64_t rows_due;    /* times calls */
};

/* totals += sums * scales for rows [begin, end) of b, all in one tile. is_even: their scales are those of the tile's first row. units
 * and is_even are constants of some calls. */
static inline __attribute__((always_inline)) void add_rows_of(const struct block *x, int64_t units, bool is_even, int64_t begin, int64_t end)
{
    const int64_t tile = begin / TILE;
    for (int i = 0; i < x->a_tiles; i++) {
        const int64_t first = (x->is_narrow ? tile : tile * 2 + i) * TILE_FLOATS;
        const float *a_scales = x->a_scales + i * TILE;
        __m512 scales[2];
        for (int64_t u = 0; u < units && u < 2; u++) {
            const float b_scale = x->b_scales[tile * TILE * x->b_scales_stride + u];
            scales[u] = _mm512_mul_ps(_mm512_loadu_ps(a_scales + u * x->a_scales_stride), _mm512_set1_ps(b_scale));
        }
        for (int64_t r = begin; r < end; r++) {
            const float *b_scales = x->b_scales + (is_even ? tile * TILE : r) * x->b_scales_stride;
            float *totals = x->totals + first + r % TILE * TILE;
            __m512 total = _mm512_loadu_ps(totals);
            for (int64_t u = 0; u < units; u++) {
                const __m512 sum = _mm512_loadu_ps(x->sums + u * BLOCK_FLOATS + first + r % TILE * TILE);
                __m512 scale;
                if (is_even && u < 2) {
                    scale = scales[u];
                } else {
                    scale = _mm512_mul_ps(_mm512_loadu_ps(a_scales + u * x->a_scales_stride), _mm512_set1_ps(b_scales[u]));
                }
                total = _mm512_fmadd_ps(sum, scale, total);
            }
            _mm512_storeu_ps(totals, total);
        }
    }
}

static void add_rows(const struct plan *plan, const struct block *x, int64_t begin, int64_t end)
{
    const int64_t units = ceil_div(x->chunks, x->unit_chunks);
    while (begin < end) {
        const int64_t tile_end = min_i64(end, (begin / TILE + 1) * TILE);
        if (plan->b_scales_are_even && units == 1) {
            add_rows_of(x, 1, true, begin, tile_end);
        } else if (plan->b_scales_are_even && units == 2) {
            add_rows_of(x, 2, true, begin, tile_end);
        } else if (plan->b_scales_are_even) {
            add_rows_of(x, units, true, begin, tile_end);
        } else {
            add_rows_of(x, units, false, begin, tile_end);
        }
        begin = tile_end;
    }
}

static inline void add_rest(struct aside *aside)
{
    if (aside->summed != NULL) {
        add_rows(aside->plan, aside->summed, aside->added, aside->plan->n_step);
        aside->summed = NULL;
    }
}

static inline void decode_rest(struct aside *aside)
{
    if (aside->panel != NULL) {
        decode_panel(aside->plan, aside->t, aside->slot, aside->panel, aside->panel->padded_rows);
    }
}

/* One share of it. */
static inline void do_aside(struct aside *aside)
{
    const int64_t n_step = aside->plan->n_step;
    if (aside->summed != NULL && aside->added < n_step) {
        const int64_t end = min_i64(n_step, aside->added + aside->add_step);
        add_rows(aside->plan, aside->summed, aside->added, end);
        aside->added = end;
    }
    if (aside->panel != NULL) {
        int64_t end = aside->panel->decoded;
        aside->rows_due += aside->panel->padded_rows;
        while (aside->rows_due >= aside->calls) {
            aside->rows_due -= aside->calls;
            end++;
        }
        if (end > aside->panel->decoded) {
            decode_panel(aside->plan, aside->t, aside->slot, aside->panel, end);
        }
    }
}

/* ---- pieces ------------------------------------------------------------------------------------------------ */

/* 16 sums rounded to bf16, to nearest, ties to even. */
static inline __m256i round_to_bf16(__m512 sums)
{
    const __m512i bits = _mm512_castps_si512(sums);
    const __m512i is_odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), is_odd);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(sums, sums, _CMP_UNORD_Q);
    const __m512i result = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(result, 16));
}

/* Up to OUTPUT_TILE columns, from row n of the piece on, of row m of the part; all_are_plain: of these rows of b. */
static void store_row(const struct plan *plan, const struct slot *slot, int64_t m, uint8_t a_kind, int64_t n0, int64_t n, bool all_are_plain,
                      __m512 sums)
{
    const struct dg_gemm_args *args = plan->args;
    const int64_t i = plan->m0 + m;
    const int64_t j = n0 + n;
    const int64_t count = min_i64(OUTPUT_TILE, min_i64(n0 + plan->n_block, args->n) - j);
    const bool is_plain = a_kind == ROW_PLAIN && all_are_plain;
    if (is_plain && args->c == NULL && args->head_mid == 0) {
        const __mmask16 is_column = (__mmask16)first_bytes(count);
        const int64_t index = i * args->d_stride_m + j;
        if (args->d_type == DG_GEMM_F32) {
            _mm512_mask_storeu_ps((float *)args->d + index, is_column, sums);
        } else {
            _mm256_mask_storeu_epi16((uint16_t *)args->d + index, is_column, round_to_bf16(sums));
        }
        return;
    }
    float row[OUTPUT_TILE];
    _mm512_storeu_ps(row, sums);
    if (is_plain) {
        store_sums(args, i, j, count, row);
    } else {
        store_kinds(args, i, j, count, row, a_kind, slot->b_kinds + n);
    }
}

/* Whether the rows of b of the tile that begins with row n of the piece are all plain. */
static bool tile_is_plain(const struct slot *slot, int64_t n, int64_t rows)
{
    bool is_plain = true;
    for (int64_t x = n; x < min_i64(n + TILE, rows); x++) {
        is_plain = is_plain && slot->b_kinds[x] == ROW_PLAIN;
    }
    return is_plain;
}

/* The block of a piece that holds its rows n of b and m of a. */
static int64_t block_index(const struct plan *plan, int64_t n, int64_t m)
{
    return n / plan->n_step * (plan->m_block / plan->m_step) + m / plan->m_step;
}

/* Totals of a piece to d. */
static void store_piece(const struct plan *plan, const struct slot *slot, const uint32_t *reach, int64_t n0, int64_t rows, int64_t m0,
                        int64_t m_rows)
{
    for (int64_t n = 0; n < rows; n++) {
        slot->b_kinds[n] = (uint8_t)kind_of_reach(&plan->b_limits, reach[n]);
    }
    for (int64_t m = 0; m < m_rows; m += TILE) {
        const int64_t tile_rows = min_i64(TILE, m_rows - m);
        uint8_t a_kinds[TILE];
        for (int64_t x = 0; x < tile_rows; x++) {
            a_kinds[x] = kind_of_a_row(plan, m0 + m + x);
        }
        for (int64_t n = 0; n < rows; n += TILE) {
            const int64_t tile = plan->is_narrow ? n % plan->n_step / TILE : n / TILE % 2 * 2 + m / TILE % 2;
            const float *totals = slot->totals + block_index(plan, n, m) * BLOCK_FLOATS + tile * TILE_FLOATS;
            const bool all_are_plain = tile_is_plain(slot, n, rows);
            __m512i sums[TILE];
            for (int64_t x = 0; x < TILE; x++) {
                sums[x] = _mm512_loadu_si512(totals + x * TILE);
            }
            transpose_16x16(sums);
            for (int64_t x = 0; x < tile_rows; x++) {
                store_row(plan, slot, m0 + m + x, a_kinds[x], n0, n, all_are_plain, _mm512_castsi512_ps(sums[x]));
            }
        }
    }
}

/* Multiplies one panel with rows [m0, m0 + m_rows) of a, and meanwhile decodes the next panel, if there is one. */
static void compute_panel(const struct plan *plan, const struct decoder *t, const struct slot *slot, const struct panel *panel, struct panel *next,
                          int64_t m0, int64_t m_rows)
{
    const int64_t chunks = ceil_div(panel->count, CHUNK);
    const int64_t blocks = ceil_div(m_rows, plan->m_step) * ceil_div(panel->rows, plan->n_step);
    struct aside aside = {.plan = plan, .t = t, .slot = slot, .add_step = ceil_div(plan->n_step, chunks), .panel = next, .calls = blocks * chunks};
    struct block two_blocks[2];
    int64_t index = 0;
    for (int64_t m = 0; m < m_rows; m += plan->m_step) {
        for (int64_t n = 0; n < panel->rows; n += plan->n_step) {
            struct block *block = &two_blocks[index % 2];
            *block = (struct block){
                .b = panel->codes + n / TILE * chunks * TILE_CODES,
                .b_tile_stride = chunks * TILE_CODES,
                .b_tiles = (int)(plan->n_step / TILE),
                .a = plan->a_tiles + ((m0 + m) / TILE * plan->chunks + panel->k0 / CHUNK) * TILE_CODES,
                .a_tile_stride = plan->chunks * TILE_CODES,
                .a_tiles = m_rows - m > TILE ? 2 : 1,
                .is_narrow = plan->is_narrow,
                .chunks = chunks,
                .unit_chunks = plan->unit / CHUNK,
                .sums = slot->sums[index % 2],
                .a_scales = plan->a_scales + panel->k0 / plan->unit * plan->m_part + m0 + m,
                .a_scales_stride = plan->m_part,
                .b_scales = panel->scales + n * (plan->k_block / plan->unit),
                .b_scales_stride = plan->k_block / plan->unit,
                .totals = slot->totals + block_index(plan, n, m) * BLOCK_FLOATS,
            };
            multiply(block, &aside);
            add_rest(&aside);
            aside.summed = block;
            aside.added = 0;
            index++;
        }
    }
    add_rest(&aside);
    decode_rest(&aside);
}

static void compute_worker(void *arg, int64_t begin, int64_t end)
{
    struct plan *plan = arg;
    const struct dg_gemm_args *args = plan->args;
    const struct decoder t = make_decoder(plan);
    begin_tiles();
    for (int64_t worker = begin; worker < end; worker++) {
        struct slot slot;
        slot_layout(plan, plan->slots + worker * plan->slot_bytes, &slot);
        pack(plan, &t, &slot);
        int current = 0;  /* of the two panels */
        int64_t taken = 0;
        int64_t piece = take_piece(&plan->pieces);
        while (piece < plan->pieces.count) {
            const int64_t next_piece = take_piece(&plan->pieces);
            const bool has_next = next_piece < plan->pieces.count;
            const int64_t n0 = piece / plan->m_pieces * plan->n_block;
            const int64_t n1 = has_next ? next_piece / plan->m_pieces * plan->n_block : n0;
            const int64_t m0 = piece % plan->m_pieces * plan->m_block;
            const int64_t rows = min_i64(plan->n_block, args->n - n0);
            const int64_t m_rows = min_i64(plan->m_block, plan->m_count - m0);
            uint32_t *reach = slot.reach[taken % 2];
            uint32_t *next_reach = slot.reach[(taken + 1) % 2];
            memset(slot.totals, 0, (size_t)(block_index(plan, round_up(rows, plan->n_step), 0) * BLOCK_FLOATS) * sizeof(float));
            if (args->k == 0) {
                memset(reach, 0, (size_t)rows * sizeof(*reach));
            } else if (taken == 0) { /* later pieces find their first panel decoded */
                struct aside first = {.plan = plan, .t = &t, .slot = &slot, .panel = &slot.panels[current]};
                const bool is_only = plan->k_block >= args->k;
                open_panel(plan, &slot, first.panel, n0, 0, reach, is_only ? n1 : n0, is_only ? 0 : plan->k_block);
                decode_rest(&first);
            }
            for (int64_t k0 = 0; k0 < args->k; k0 += plan->k_block) {
                const bool is_last = k0 + plan->k_block >= args->k;
                struct panel *next = &slot.panels[1 - current];
                if (!is_last) {
                    const bool is_last_after = k0 + 2 * plan->k_block >= args->k;
                    open_panel(plan, &slot, next, n0, k0 + plan->k_block, reach, is_last_after ? n1 : n0, is_last_after ? 0 : k0 + 2 * plan->k_block);
                } else if (has_next) {
                    const bool is_only = plan->k_block >= args->k;
                    open_panel(plan, &slot, next, n1, 0, next_reach, n1, is_only ? 0 : plan->k_block);
                } else {
                    next = NULL;
                }
                compute_panel(plan, &t, &slot, &slot.panels[current], next, m0, m_rows);
                current = 1 - current;
            }
            store_piece(plan, &slot, reach, n0, rows, m0, m_rows);
            piece = next_piece;
            taken++;
        }
    }
    end_tiles();
}

/* ---- dot form ---------------------------------------------------------------------------------------------- */

/* Rows of b, and what they need. */
struct dot_rows {
    struct code_row codes[DOT_ROWS];
    const uint8_t *next[DOT_ROWS];   /* rows that will be read later: they are fetched meanwhile */
    const float *scales[DOT_ROWS];   /* [units] */
    const int16_t *shifts[DOT_ROWS]; /* [chunks], or NULL */
    uint32_t reach[DOT_ROWS];
    float sums[DOT_M][DOT_ROWS];
};

/* How rows of b are decoded. */
enum dot_decoding { DOT_BF16, DOT_NORMAL_F8E4M3, DOT_F8E4M3, DOT_F4E2M1 };

/* DOT_K codes of row r from k on, `left` of which exist, to two vectors of bf16. */
static inline __attribute__((always_inline)) void dot_codes(const enum dot_decoding decoding, const struct decoder *t, const struct dot_rows *b,
                                                            int r, int64_t k, int64_t left, __m512i bf16[2])
{
    const struct code_row row = b->codes[r];
    if (decoding == DOT_BF16) {
        for (int64_t half = 0; half < 2; half++) {
            const uint8_t *codes = row.codes + 2 * (k + half * CHUNK);
            const int64_t rest = left - half * CHUNK;
            bf16[half] = rest >= CHUNK ? _mm512_loadu_si512(codes) : _mm512_maskz_loadu_epi16((__mmask32)first_bytes(max_i64(rest, 0)), codes);
            _mm_prefetch((const char *)b->next[r] + 2 * (k + half * CHUNK), _MM_HINT_T0);
        }
        return;
    }
    if (decoding == DOT_NORMAL_F8E4M3) {
        decode_normal_f8e4m3(t, _mm512_loadu_si512(row.codes + k), bf16);
    } else {
        decode_any(t, (struct code_row){row.codes, decoding == DOT_F4E2M1 ? DG_GEMM_F4E2M1 : DG_GEMM_F8E4M3}, k, left, bf16);
    }
    _mm_prefetch((const char *)b->next[r] + (decoding == DOT_F4E2M1 ? k / 2 : k), _MM_HINT_T0);
    if (b->shifts[r] != NULL) {
        for (int64_t half = 0; half < 2; half++) {
            bf16[half] = shift_exponents(bf16[half], b->shifts[r][k / CHUNK + half]);
        }
    }
}

/* The sums of a unit, by halves of DOT_K: chains of their own and, if they are so short, units. */
struct dot_sums {
    __m512 sums[DOT_ROWS][DOT_M][2];
};

/* Adds the products over DOT_K of k. m, rows and decoding are constants of each call. */
static inline __attribute__((always_inline)) void dot_step(const int m, const int rows, const enum dot_decoding decoding, const struct decoder *t,
                                                           const struct dot_rows *b, const uint16_t *a, int64_t a_stride, int64_t k, int64_t left,
                                                           struct dot_sums *sums, __m512i *largest)
{
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        __m512i bf16[2];
        dot_codes(decoding, t, b, r, k, left, bf16);
        if (decoding == DOT_BF16) {
            const __m512i magnitude = _mm512_set1_epi16(0x7fff);
            largest[r] = _mm512_max_epu16(largest[r], _mm512_and_si512(bf16[0], magnitude));
            largest[r] = _mm512_max_epu16(largest[r], _mm512_and_si512(bf16[1], magnitude));
        }
#pragma GCC unroll 4
        for (int i = 0; i < m; i++) {
            const uint16_t *x = a + i * a_stride + k;
            sums->sums[r][i][0] = _mm512_dpbf16_ps(sums->sums[r][i][0], (__m512bh)bf16[0], (__m512bh)_mm512_load_si512(x));
            sums->sums[r][i][1] = _mm512_dpbf16_ps(sums->sums[r][i][1], (__m512bh)bf16[1], (__m512bh)_mm512_load_si512(x + CHUNK));
        }
    }
}

/* Sums of the products of m rows of a and `rows` rows of b. m, rows and decoding are constants of each call; DOT_F8E4M3 takes the
 * shorter way where all codes are normal. */
static inline __attribute__((always_inline)) void dot_rows_of(const int m, const int rows, const enum dot_decoding decoding,
                                                              const struct plan *plan, const struct decoder *t, struct dot_rows *b)
{
    const int64_t k_end = plan->args->k;
    const int64_t a_stride = round_up(plan->chunks, 2) * CHUNK;
    __m512 totals[DOT_ROWS][DOT_M];
    struct dot_sums unit_sums;
    __m512i largest[DOT_ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        largest[r] = _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int i = 0; i < m; i++) {
            totals[r][i] = unit_sums.sums[r][i][0] = unit_sums.sums[r][i][1] = _mm512_setzero_ps();
        }
    }
    const int64_t step = max_i64(plan->unit, DOT_K);
    int64_t unit = 0;
    for (int64_t k0 = 0; k0 < k_end; k0 += step) {
        for (int64_t k = k0; k < min_i64(k0 + step, k_end); k += DOT_K) {
            bool is_normal = false;
            if (decoding == DOT_F8E4M3 && k_end - k >= DOT_K) {
                __m512i abnormal = _mm512_setzero_si512();
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) {
                    abnormal = gather_abnormal(abnormal, _mm512_loadu_si512(b->codes[r].codes + k));
                }
                is_normal = all_are_normal(abnormal);
            }
            if (is_normal) {
                dot_step(m, rows, DOT_NORMAL_F8E4M3, t, b, plan->a_tiles, a_stride, k, k_end - k, &unit_sums, largest);
            } else {
                dot_step(m, rows, decoding, t, b, plan->a_tiles, a_stride, k, k_end - k, &unit_sums, largest);
            }
        }
        const bool has_two_units = plan->unit < DOT_K && unit + 1 < plan->units;
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
            for (int i = 0; i < m; i++) {
                const float *a_scales = plan->a_scales + unit * plan->m_part + i;
                __m512 *sums = unit_sums.sums[r][i];
                const __m512 scale = _mm512_set1_ps(b->scales[r][unit] * a_scales[0]);
                if (has_two_units) {
                    const __m512 second_scale = _mm512_set1_ps(b->scales[r][unit + 1] * a_scales[plan->m_part]);
                    totals[r][i] = _mm512_fmadd_ps(sums[0], scale, totals[r][i]);
                    totals[r][i] = _mm512_fmadd_ps(sums[1], second_scale, totals[r][i]);
                } else {
                    totals[r][i] = _mm512_fmadd_ps(_mm512_add_ps(sums[0], sums[1]), scale, totals[r][i]);
                }
                sums[0] = sums[1] = _mm512_setzero_ps();
            }
        }
        unit += has_two_units ? 2 : 1;
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        b->reach[r] = decoding == DOT_BF16 ? reach_of_bf16(largest[r]) : 0;
#pragma GCC unroll 4
        for (int i = 0; i < m; i++) {
            b->sums[i][r] = _mm512_reduce_add_ps(totals[r][i]);
        }
    }
}

/* How many rows of b at a time: as many as there are registers for sums. */
static int dot_rows_at_once(const struct plan *plan)
{
    return plan->args->m <= 2 ? DOT_ROWS : 2;
}

static inline __attribute__((always_inline)) void dot_decoded(const enum dot_decoding decoding, const struct plan *plan, const struct decoder *t,
                                                              struct dot_rows *b)
{
    switch (plan->args->m) {
    case 1: dot_rows_of(1, 4, decoding, plan, t, b); break;
    case 2: dot_rows_of(2, 4, decoding, plan, t, b); break;
#if DOT_M == 4
    case 3: dot_rows_of(3, 2, decoding, plan, t, b); break;
    case 4: dot_rows_of(4, 2, decoding, plan, t, b); break;
#endif
    }
}

static void dot(const struct plan *plan, const struct decoder *t, struct dot_rows *b)
{
    switch (plan->args->b.type) {
    case DG_GEMM_BF16: dot_decoded(DOT_BF16, plan, t, b); break;
    case DG_GEMM_F4E2M1: dot_decoded(DOT_F4E2M1, plan, t, b); break;
    default: dot_decoded(DOT_F8E4M3, plan, t, b); break;
    }
}

/* n1: the first row of b of this worker's next piece. */
static void dot_piece(const struct plan *plan, const struct decoder *t, const struct slot *slot, int64_t n0, int64_t n1)
{
    const struct dg_gemm_args *args = plan->args;
    const int64_t rows = min_i64(plan->n_block, args->n - n0);
    const int64_t step = dot_rows_at_once(plan);
    const int64_t shifts_stride = round_up(plan->chunks, 2);
    uint32_t scale_reach[DOT_ROWS] = {0};
    int64_t scaled_row = -1; /* of sfb, if the slot holds its scales for each of the rows */
    for (int64_t n = 0; n < rows; n += step) {
        struct dot_rows b = {0};
        for (int64_t r = 0; r < step; r++) {
            const int64_t j = n0 + min_i64(n + r, rows - 1); /* the last row fills up */
            float *scales = slot->dot_scales + r * plan->units;
            int16_t *shifts = slot->dot_shifts + r * shifts_stride;
            if (j / args->sfb.gran_mn != scaled_row) {
                const struct dg_gemm_scale none = {.type = DG_SCALE_NONE};
                const struct dg_gemm_scale *s = plan->folds_b ? &none : &args->sfb;
                scale_reach[r] = fill_scales(s, &plan->b_limits, j, 0, plan->unit, plan->units, scales, 1);
                if (plan->folds_b) {
                    scale_reach[r] = fill_shifts(&args->sfb, &plan->b_limits, j, 0, plan->chunks, shifts);
                    memset(shifts + plan->chunks, 0, (size_t)(shifts_stride - plan->chunks) * sizeof(*shifts));
                }
            }
            b.codes[r] = code_row_of(&args->b, j, 0);
            b.next[r] = code_row_of(&args->b, n + step < rows ? j + step : n1 + r, 0).codes;
            b.scales[r] = scales;
            b.shifts[r] = plan->folds_b ? shifts : NULL;
        }
        const int64_t first_scaled = (n0 + n) / args->sfb.gran_mn;
        const int64_t last_scaled = (n0 + min_i64(n + step, rows) - 1) / args->sfb.gran_mn;
        scaled_row = first_scaled == last_scaled ? first_scaled : -1;

        dot(plan, t, &b);
        for (int64_t r = 0; r < min_i64(step, rows - n); r++) {
            slot->b_kinds[n + r] = (uint8_t)kind_of_reach(&plan->b_limits, larger_reach(scale_reach[r], b.reach[r]));
            for (int64_t i = 0; i < args->m; i++) {
                slot->dot_sums[i * DOT_PIECE + n + r] = b.sums[i][r];
            }
        }
    }
    for (int64_t i = 0; i < args->m; i++) {
        const uint8_t a_kind = kind_of_a_row(plan, i);
        for (int64_t n = 0; n < rows; n += OUTPUT_TILE) {
            store_row(plan, slot, i, a_kind, n0, n, tile_is_plain(slot, n, rows), _mm512_loadu_ps(slot->dot_sums + i * DOT_PIECE + n));
        }
    }
}

static void dot_worker(void *arg, int64_t begin, int64_t end)
{
    struct plan *plan = arg;
    const struct decoder t = make_decoder(plan);
    for (int64_t worker = begin; worker < end; worker++) {
        struct slot slot;
        slot_layout(plan, plan->slots + worker * plan->slot_bytes, &slot);
        pack(plan, &t, &slot);
        int64_t piece = take_piece(&plan->pieces);
        while (piece < plan->pieces.count) {
            const int64_t next = take_piece(&plan->pieces);
            dot_piece(plan, &t, &slot, piece * plan->n_block, next * plan->n_block);
            piece = next;
        }
    }
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

        plan.packing = (struct jobs){.untaken = {0, ceil_div(plan.m_count, TILE) * plan.pack_jobs}};
        plan.m_pieces = plan.is_dot ? 1 : ceil_div(plan.m_count, plan.m_block);
        plan.pieces = (struct pieces){0, ceil_div(args->n, plan.n_block) * plan.m_pieces};
        run_workers(&args->exec, plan.workers, plan.is_dot ? dot_worker : compute_worker, &plan);
    }
}

#endif
