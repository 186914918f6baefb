/* GEMM with AVX2, FMA and F16C.
 *
 * Idea: gemm_f32.h. Tile of the outer form: 6 rows of b by 16 of a in 12 of the 16 registers, two more for a, one for b;.
 * An e4m3 code shifted into the place of an f16 is value / 256, and
 * VCVTPH2PS takes subnormals without the penalty that arithmetic on subnormal f32 costs on Intel CPUs. It cannot make NaN of
 * a NaN code; the codes' maximum tells whether a row has one.
 */
#include "core/cpu.h"
#include "ops/gemm.h"

#include <immintrin.h>

enum {
    LANES = 8,
    WIDE_ROWS = 6 /* of b in a tile WIDTH wide: 12 of 16 registers hold sums */
};
typedef __m256 vec;

struct reach_lanes {
    __m256i largest; /* FP8: of the codes' bytes with the sign set; BF16: of the magnitudes' 16 bits; F32: of their 32 bits */
};

#include "gemm_f32.h"

static inline vec vec_zero(void)
{
    return _mm256_setzero_ps();
}

static inline vec vec_set(float x)
{
    return _mm256_set1_ps(x);
}

static inline vec vec_load(const float *p)
{
    return _mm256_load_ps(p);
}

static inline void vec_store(float *p, vec x)
{
    _mm256_store_ps(p, x);
}

static inline vec vec_mul(vec x, vec y)
{
    return _mm256_mul_ps(x, y);
}

static inline vec vec_add(vec x, vec y)
{
    return _mm256_add_ps(x, y);
}

static inline vec vec_fma(vec x, vec y, vec z)
{
    return _mm256_fmadd_ps(x, y, z);
}

static inline float vec_sum(vec x)
{
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    sum = _mm_add_ss(sum, _mm_movehdup_ps(sum));
    return _mm_cvtss_f32(sum);
}

static inline struct reach_lanes no_reach(void)
{
    return (struct reach_lanes){_mm256_setzero_si256()};
}

static inline uint32_t reach_of_lanes(enum dg_gemm_type type, const struct reach_lanes *reach)
{
    uint32_t words[8];
    uint32_t largest = 0;
    if (type == DG_GEMM_F8E4M3) {
        const __m256i is_nan = _mm256_cmpeq_epi8(reach->largest, _mm256_set1_epi8(-1));
        return _mm256_movemask_epi8(is_nan) != 0 ? REACH_NAN : 0;
    }
    _mm256_storeu_si256((__m256i *)words, reach->largest);
    for (int i = 0; i < 8; i++) {
        if (type == DG_GEMM_BF16) {
            largest = larger_reach(largest, larger_reach(words[i] & 0xffff0000u, words[i] << 16));
        } else {
            largest = larger_reach(largest, words[i]);
        }
    }
    return largest < REACH_NAN ? largest : REACH_EXACT;
}

/* 16 bits each, an e4m3 code in the upper half, to 16 times value / 256. */
static inline void decode_words(__m256i words, vec out[2])
{
    const __m256i f16 = _mm256_and_si256(_mm256_srai_epi16(words, 1), _mm256_set1_epi16((short)0xbf80));
    out[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(f16));
    out[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(f16, 1));
}

static inline void decode_group(enum dg_gemm_type type, const uint8_t *codes, vec out[4], struct reach_lanes *reach)
{
    if (type == DG_GEMM_F8E4M3) {
        const __m256i bytes = _mm256_loadu_si256((const __m256i *)codes);
        decode_words(_mm256_slli_epi16(bytes, 8), out);
        decode_words(bytes, out + 2);
        reach->largest = _mm256_max_epu8(reach->largest, _mm256_or_si256(bytes, _mm256_set1_epi8((char)0x80)));
        return;
    }
    for (int half = 0; half < 2; half++) {
        if (type == DG_GEMM_BF16) {
            const __m256i words = _mm256_loadu_si256((const __m256i *)(codes + 32 * half));
            out[half] = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
            out[half + 2] = _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000u)));
            reach->largest = _mm256_max_epu16(reach->largest, _mm256_and_si256(words, _mm256_set1_epi16(0x7fff)));
        } else {
            const __m256 x = _mm256_loadu_ps((const float *)(const void *)(codes + 64 * half));
            const __m256 y = _mm256_loadu_ps((const float *)(const void *)(codes + 64 * half + 32));
            const __m256 even = _mm256_shuffle_ps(x, y, 0x88); /* x0 x2 y0 y2 | x4 x6 y4 y6 */
            const __m256 odd = _mm256_shuffle_ps(x, y, 0xdd);
            out[half] = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), 0xd8));
            out[half + 2] = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odd), 0xd8));
            const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
            reach->largest = _mm256_max_epu32(reach->largest, _mm256_and_si256(_mm256_castps_si256(x), magnitude));
            reach->largest = _mm256_max_epu32(reach->largest, _mm256_and_si256(_mm256_castps_si256(y), magnitude));
        }
    }
}

static inline void widen_f4e2m1(const uint8_t *pairs, uint8_t *codes)
{
    const __m128i table = _mm_loadu_si128((const __m128i *)f8e4m3_of_f4e2m1);
    const __m128i bytes = _mm_loadu_si128((const __m128i *)pairs);
    const __m128i low_bits = _mm_set1_epi8(0x0f);
    const __m128i even = _mm_shuffle_epi8(table, _mm_and_si128(bytes, low_bits));
    const __m128i odd = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(bytes, 4), low_bits));
    _mm_store_si128((__m128i *)codes, _mm_unpacklo_epi8(even, odd));
    _mm_store_si128((__m128i *)(codes + 16), _mm_unpackhi_epi8(even, odd));
}

static inline void transpose_lanes(const float *from, int64_t from_stride, float *to, int64_t to_stride)
{
    __m256i rows[LANES];
    for (int64_t r = 0; r < LANES; r++) {
        rows[r] = _mm256_load_si256((const __m256i *)(const void *)(from + r * from_stride));
    }
    transpose_8x8(rows);
    for (int64_t r = 0; r < LANES; r++) {
        _mm256_store_si256((__m256i *)(void *)(to + r * to_stride), rows[r]);
    }
}

/* Assembly, because gcc 12 loads all broadcasts of a tile ahead and spills the sums. */
static inline void add_wide_row(const float *b, vec a0, vec a1, vec *sum0, vec *sum1)
{
    __asm__("vbroadcastss %[b], %%ymm15\n\t"
            "vfmadd231ps %[a0], %%ymm15, %[sum0]\n\t"
            "vfmadd231ps %[a1], %%ymm15, %[sum1]"
            : [sum0] "+x"(*sum0), [sum1] "+x"(*sum1)
            : [b] "m"(*b), [a0] "x"(a0), [a1] "x"(a1)
            : "xmm15");
}

static inline void add_narrow_row(const float *b, vec a0, vec *sum0)
{
    __asm__("vbroadcastss %[b], %%ymm15\n\t"
            "vfmadd231ps %[a0], %%ymm15, %[sum0]"
            : [sum0] "+x"(*sum0)
            : [b] "m"(*b), [a0] "x"(a0)
            : "xmm15");
}

/* ---- the row of the table ---------------------------------------------------------------------------------- */

bool dg_gemm_avx2_can_run(const struct dg_gemm_args *args)
{
    (void)args;
    return dg_cpu()->has_avx2;
}

size_t dg_gemm_avx2_workspace(const struct dg_gemm_args *args)
{
    return f32_form_workspace(args);
}

dg_kernel_result dg_gemm_avx2(const struct dg_gemm_args *args)
{
    run_f32_form(args);
    return 0;
}
