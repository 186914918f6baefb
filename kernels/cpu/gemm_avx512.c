/* GEMM with AVX-512 F, BW, DQ, VL and VBMI.
 *
 * Idea: gemm_f32.h. Tile of the outer form: 12 rows of b by 32 of a in 24 of the 32 registers. Codes are decoded as in
 * gemm_avx2.c, twice as many at a time.
 */
#include "core/cpu.h"
#include "gemm_avx512_bf16.h"
#include "ops/gemm.h"

#include <immintrin.h>

enum {
    LANES = 16,
    WIDE_ROWS = 12 /* of b in a tile WIDTH wide: 24 of 32 registers hold sums */
};
typedef __m512 vec;

struct reach_lanes {
    __m512i largest; /* FP8: of the codes' bytes with the sign set; BF16: of the magnitudes' 16 bits; F32: of their 32 bits */
};

#include "gemm_f32.h"

static inline vec vec_zero(void)
{
    return _mm512_setzero_ps();
}

static inline vec vec_set(float x)
{
    return _mm512_set1_ps(x);
}

static inline vec vec_load(const float *p)
{
    return _mm512_load_ps(p);
}

static inline void vec_store(float *p, vec x)
{
    _mm512_store_ps(p, x);
}

static inline vec vec_mul(vec x, vec y)
{
    return _mm512_mul_ps(x, y);
}

static inline vec vec_add(vec x, vec y)
{
    return _mm512_add_ps(x, y);
}

static inline vec vec_fma(vec x, vec y, vec z)
{
    return _mm512_fmadd_ps(x, y, z);
}

static inline float vec_sum(vec x)
{
    return _mm512_reduce_add_ps(x);
}

static inline struct reach_lanes no_reach(void)
{
    return (struct reach_lanes){_mm512_setzero_si512()};
}

static inline uint32_t reach_of_lanes(enum dg_gemm_type type, const struct reach_lanes *reach)
{
    if (type == DG_GEMM_F8E4M3) {
        return _mm512_cmpeq_epi8_mask(reach->largest, _mm512_set1_epi8(-1)) != 0 ? REACH_NAN : 0;
    }
    __m512i largest = reach->largest;
    if (type == DG_GEMM_BF16) {
        largest = _mm512_max_epu32(_mm512_slli_epi32(largest, 16), _mm512_and_si512(largest, _mm512_set1_epi32((int)0xffff0000u)));
    }
    const uint32_t value = _mm512_reduce_max_epu32(largest);
    return value < REACH_NAN ? value : REACH_EXACT;
}

/* 16 bits each, an e4m3 code in the upper half, to 32 times value / 256. */
static inline void decode_words(__m512i words, vec out[2])
{
    const __m512i f16 = _mm512_and_si512(_mm512_srai_epi16(words, 1), _mm512_set1_epi16((short)0xbf80));
    out[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(f16));
    out[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(f16, 1));
}

static inline void decode_group(enum dg_gemm_type type, const uint8_t *codes, vec out[4], struct reach_lanes *reach)
{
    if (type == DG_GEMM_F8E4M3) {
        const __m512i bytes = _mm512_loadu_si512(codes);
        decode_words(_mm512_slli_epi16(bytes, 8), out);
        decode_words(bytes, out + 2);
        reach->largest = _mm512_max_epu8(reach->largest, _mm512_or_si512(bytes, _mm512_set1_epi8((char)0x80)));
        return;
    }
    for (int half = 0; half < 2; half++) {
        if (type == DG_GEMM_BF16) {
            const __m512i words = _mm512_loadu_si512(codes + 64 * half);
            out[half] = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
            out[half + 2] = _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32((int)0xffff0000u)));
            reach->largest = _mm512_max_epu16(reach->largest, _mm512_and_si512(words, _mm512_set1_epi16(0x7fff)));
        } else {
            const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
            const __m512 x = _mm512_loadu_ps(codes + 128 * half);
            const __m512 y = _mm512_loadu_ps(codes + 128 * half + 64);
            out[half] = _mm512_permutex2var_ps(x, even, y);
            out[half + 2] = _mm512_permutex2var_ps(x, odd, y);
            const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
            reach->largest = _mm512_max_epu32(reach->largest, _mm512_and_si512(_mm512_castps_si512(x), magnitude));
            reach->largest = _mm512_max_epu32(reach->largest, _mm512_and_si512(_mm512_castps_si512(y), magnitude));
        }
    }
}

static inline void widen_f4e2m1(const uint8_t *pairs, uint8_t *codes)
{
    const __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)f8e4m3_of_f4e2m1));
    const __m512i words = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)pairs));
    const __m512i nibbles = _mm512_and_si512(_mm512_or_si512(words, _mm512_slli_epi16(words, 4)), _mm512_set1_epi8(0x0f));
    _mm512_store_si512(codes, _mm512_shuffle_epi8(table, nibbles));
}

static inline void transpose_lanes(const float *from, int64_t from_stride, float *to, int64_t to_stride)
{
    __m512i rows[LANES];
    for (int64_t r = 0; r < LANES; r++) {
        rows[r] = _mm512_load_si512(from + r * from_stride);
    }
    transpose_16x16(rows);
    for (int64_t r = 0; r < LANES; r++) {
        _mm512_store_si512(to + r * to_stride, rows[r]);
    }
}

/* Assembly, because gcc 12 loads all broadcasts of a tile ahead and spills the sums. */
static inline void add_wide_row(const float *b, vec a0, vec a1, vec *sum0, vec *sum1)
{
    __asm__("vbroadcastss %[b], %%zmm31\n\t"
            "vfmadd231ps %[a0], %%zmm31, %[sum0]\n\t"
            "vfmadd231ps %[a1], %%zmm31, %[sum1]"
            : [sum0] "+v"(*sum0), [sum1] "+v"(*sum1)
            : [b] "m"(*b), [a0] "v"(a0), [a1] "v"(a1)
            : "xmm31");
}

static inline void add_narrow_row(const float *b, vec a0, vec *sum0)
{
    __asm__("vfmadd231ps %[b]%{1to16%}, %[a0], %[sum0]" : [sum0] "+v"(*sum0) : [b] "m"(*b), [a0] "v"(a0));
}

/* ---- the row of the table ---------------------------------------------------------------------------------- */

/* Whether VDPBF16PS is the better way. On the CPUs with AMX it does half the multiply-adds of VFMADD in the same time, which matters from 3
 * rows of a on; where there is no AMX (Zen 4 and later) it does as many, and its operands are half as long. */
static bool prefers_bf16(const struct dg_gemm_args *args)
{
    return dg_gemm_avx512_bf16_can_run(args) && (args->m <= 2 || !dg_cpu()->has_amx_bf16);
}

bool dg_gemm_avx512_can_run(const struct dg_gemm_args *args)
{
    (void)args;
    return dg_cpu()->has_avx512;
}

size_t dg_gemm_avx512_workspace(const struct dg_gemm_args *args)
{
    return prefers_bf16(args) ? dg_gemm_avx512_bf16_workspace(args) : f32_form_workspace(args);
}

dg_kernel_result dg_gemm_avx512(const struct dg_gemm_args *args)
{
    if (prefers_bf16(args)) {
        return dg_gemm_avx512_bf16(args);
    }
    run_f32_form(args);
    return 0;
}
