/* Logits with AMX tiles: TDPBF16PS on 16 heads by 16 keys, 32 of the head at a time.
 *
 * Idea: mqa_logits_fast.h. A word is two bf16, so that a panel of keys is a column of right operands as it is, and the heads of a query
 * are a column of left ones. Tile: 32 heads by 32 keys in four tile registers, two more for each operand. In flight: while the tile unit
 * multiplies, the vector units clamp, weigh and add the dots before.
 */
#include "core/cpu.h"

enum {
    TILE = 16,
    KEY_STEP = 2 * TILE,
    PARTS = 2, /* of a panel: queries come from L2 once for all of them, and the panel stays in L1 */
    KEYS = PARTS * KEY_STEP,
    WORD_CODES = 2,
    DEPTH_STEP = 2 * TILE, /* codes of a row of a tile */
    HEAD_STEP = 2 * TILE,
    HEAD_MIN = HEAD_STEP,
    DOTS = HEAD_STEP * KEY_STEP,
    SCRATCH_BYTES = 2 * DOTS * 4 /* two blocks of dots: one that is multiplied, one that is added */
};

#include "mqa_logits_fast.h"

/* ---- decoding ---------------------------------------------------------------------------------------------- */

/* 32 e4m3 codes, shifted into the places of f16, to bf16: value / 256. f32 is on the way, because VCVTPH2PS takes subnormals without a
 * penalty. */
static inline __m512i carriers_of_codes(__m256i codes)
{
    const __m512i words = _mm512_slli_epi16(_mm512_cvtepu8_epi16(codes), 8);
    const __m512i f16 = _mm512_and_si512(_mm512_srai_epi16(words, 1), _mm512_set1_epi16((short)0xbf80));
    const __m512 low = _mm512_cvtph_ps(_mm512_castsi512_si256(f16));
    const __m512 high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(f16, 1));
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* Carriers times 256 and powers of two: only values other than 0 have an exponent to add to. */
static inline __m512i words_of_carriers(__m512i carriers, __m512 scales)
{
    const __m512i exponents = _mm512_sub_epi32(_mm512_castps_si512(scales), _mm512_castps_si512(_mm512_set1_ps(1.0f / 256)));
    const __m512i both = _mm512_or_si512(exponents, _mm512_and_si512(_mm512_srli_epi32(exponents, 16), _mm512_set1_epi32(0xffff)));
    const __mmask32 has_exponent = _mm512_test_epi16_mask(carriers, _mm512_set1_epi16(0x7fff));
    return _mm512_mask_add_epi16(carriers, has_exponent, carriers, both);
}

static void decode_query(const uint8_t *codes, const float *scales, int64_t depth, uint32_t *words)
{
    for (int64_t x = 0; x < depth; x += MX_GROUP) {
        const __m512i carriers = carriers_of_codes(_mm256_loadu_si256((const __m256i *)(codes + x)));
        _mm512_store_si512(words + x / WORD_CODES, words_of_carriers(carriers, _mm512_set1_ps(scales[x / MX_GROUP])));
    }
}

static void decode_keys(const uint8_t *codes, const float *scales, int64_t depth, uint32_t *panel)
{
    uint8_t transposed[8 * 32]; /* [8 words of depth][16 keys][2 codes] */
    for (int64_t key = 0; key < KEYS; key += TILE) {
        for (int64_t x = 0; x < depth; x += 16) {
            transpose_8x8_words(codes + key * depth + x, depth, transposed, 32);
            transpose_8x8_words(codes + (key + 8) * depth + x, depth, transposed + 16, 32);
            const __m512 group_scales = _mm512_loadu_ps(scales + x / MX_GROUP * KEYS + key);
            for (int64_t i = 0; i < 8; i++) {
                const __m512i carriers = carriers_of_codes(_mm256_loadu_si256((const __m256i *)(transposed + 32 * i)));
                _mm512_store_si512(panel + (x / WORD_CODES + i) * KEYS + key, words_of_carriers(carriers, group_scales));
            }
        }
    }
}

/* ---- tiles ------------------------------------------------------------------------------------------------- */

/* The tile instructions as functions, because the compilers' own do not say that they touch memory. */
struct tile_config {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static void begin_work(void)
{
    struct tile_config config = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        config.row_bytes[tile] = 64;
        config.rows[tile] = TILE;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
}

static void end_work(void)
{
    __asm__ volatile("tilerelease" : : : "memory");
}

/* tmm0 .. tmm3 are the dots of (heads 0, keys 0), (heads 0, keys 1), (heads 1, keys 0), (heads 1, keys 1), 16 of each. */
static inline void zero_dots(void)
{
    __asm__ volatile("tilezero %%tmm0\n\t"
                     "tilezero %%tmm1\n\t"
                     "tilezero %%tmm2\n\t"
                     "tilezero %%tmm3"
                     :
                     :
                     : "memory");
}

/* q: 32 heads, q_bytes apart; keys: 16 rows of a panel. */
static inline void multiply_2x2(const uint32_t *q, int64_t q_bytes, const uint32_t *keys)
{
    const uint8_t *q1 = (const uint8_t *)q + TILE * q_bytes;
    __asm__ volatile("tileloadd (%[q0], %[q_bytes]), %%tmm4\n\t"
                     "tileloadd (%[keys], %[row_bytes]), %%tmm6\n\t"
                     "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\t"
                     "tileloadd (%[q1], %[q_bytes]), %%tmm5\n\t"
                     "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n\t"
                     "tileloadd 64(%[keys], %[row_bytes]), %%tmm7\n\t"
                     "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n\t"
                     "tdpbf16ps %%tmm7, %%tmm5, %%tmm3"
                     :
                     : [q0] "r"(q), [q1] "r"(q1), [q_bytes] "r"(q_bytes), [keys] "r"(keys), [row_bytes] "r"((int64_t)KEYS * 4)
                     : "memory");
}

/* dots: [32 heads][KEY_STEP]. */
static inline void store_dots(float *dots)
{
    float *dots1 = dots + TILE * KEY_STEP;
    __asm__ volatile("tilestored %%tmm0, (%[dots0], %[row_bytes])\n\t"
                     "tilestored %%tmm1, 64(%[dots0], %[row_bytes])\n\t"
                     "tilestored %%tmm2, (%[dots1], %[row_bytes])\n\t"
                     "tilestored %%tmm3, 64(%[dots1], %[row_bytes])"
                     :
                     : [dots0] "r"(dots), [dots1] "r"(dots1), [row_bytes] "r"((int64_t)KEY_STEP * 4)
                     : "memory");
}

/* sums += weights * max(0, dots) over HEAD_STEP heads. */
static inline void add_dots(const float *weights, const float *dots, __m512 sums[2])
{
    const __m512 zero = _mm512_setzero_ps();
    __m512 sum[4] = {sums[0], sums[1], zero, zero}; /* even and odd heads apart: the additions of one wait for each other */
    for (int h = 0; h < HEAD_STEP; h += 2) {
        const __m512 even = _mm512_set1_ps(weights[h]);
        const __m512 odd = _mm512_set1_ps(weights[h + 1]);
        const float *row = dots + h * KEY_STEP;
        sum[0] = _mm512_fmadd_ps(even, _mm512_max_ps(zero, _mm512_load_ps(row)), sum[0]);
        sum[1] = _mm512_fmadd_ps(even, _mm512_max_ps(zero, _mm512_load_ps(row + TILE)), sum[1]);
        sum[2] = _mm512_fmadd_ps(odd, _mm512_max_ps(zero, _mm512_load_ps(row + KEY_STEP)), sum[2]);
        sum[3] = _mm512_fmadd_ps(odd, _mm512_max_ps(zero, _mm512_load_ps(row + KEY_STEP + TILE)), sum[3]);
    }
    sums[0] = _mm512_add_ps(sum[0], sum[2]);
    sums[1] = _mm512_add_ps(sum[1], sum[3]);
}

static void add_heads(const struct heads *x, float *sums)
{
    __m512 totals[PARTS][2];
    for (int part = 0; part < PARTS; part++) {
        totals[part][0] = _mm512_setzero_ps();
        totals[part][1] = _mm512_setzero_ps();
    }
    float *dots = (float *)(void *)x->scratch; /* of the part before */
    float *next_dots = dots + DOTS;
    const int64_t blocks = x->count / HEAD_STEP;
    for (int64_t block = 0; block < blocks; block++) {
        const uint32_t *q = x->q + block * HEAD_STEP * x->steps;
        const float *weights = x->weights + block * HEAD_STEP;
        for (int part = 0; part < PARTS; part++) {
            zero_dots();
            for (int64_t step = 0; step < x->steps; step += TILE) {
                multiply_2x2(q + step, x->steps * 4, x->panel + step * KEYS + part * KEY_STEP);
            }
            if (part > 0) {
                add_dots(weights, dots, totals[part - 1]);
            } else if (block > 0) {
                add_dots(weights - HEAD_STEP, dots, totals[PARTS - 1]);
            }
            store_dots(next_dots);
            float *free_dots = dots;
            dots = next_dots;
            next_dots = free_dots;
        }
    }
    add_dots(x->weights + (blocks - 1) * HEAD_STEP, dots, totals[PARTS - 1]);
    for (int part = 0; part < PARTS; part++) {
        _mm512_store_ps(sums + part * KEY_STEP, totals[part][0]);
        _mm512_store_ps(sums + part * KEY_STEP + TILE, totals[part][1]);
    }
}

/* ---- the row of the table ---------------------------------------------------------------------------------- */

bool dg_mqa_logits_amx_can_run(void)
{
    return dg_cpu()->has_amx_bf16;
}

size_t dg_mqa_logits_amx_workspace(const struct dg_mqa_logits_args *args)
{
    return fast_form_workspace(args);
}

dg_kernel_result dg_mqa_logits_amx(const struct dg_mqa_logits_args *args)
{
    run_fast_form(args);
    return 0;
}
