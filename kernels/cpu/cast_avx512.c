/* Casts with AVX-512. The idea is in cast_vector.h. */
#include <immintrin.h>

enum { LANES = 16 };

#include "cast_vector.h"
#include "core/cpu.h"

static inline vec load_f32(const void *p)
{
    return _mm512_loadu_ps(p);
}

static inline vec load_bf16(const void *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}

static inline vec load_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}

static inline words load_words(const void *p)
{
    return (words)_mm512_loadu_si512(p);
}

static inline void store_bits(void *p, bits x)
{
    _mm512_storeu_si512(p, (__m512i)x);
}

static inline bits larger_bits(bits x, bits y)
{
    return (bits)_mm512_max_epu32((__m512i)x, (__m512i)y);
}

static inline bits smaller_bits(bits x, bits y)
{
    return (bits)_mm512_min_epu32((__m512i)x, (__m512i)y);
}

static inline words larger_words(words x, words y)
{
    return (words)_mm512_max_epu16((__m512i)x, (__m512i)y);
}

static inline uint32_t largest_of_bits(bits x)
{
    return _mm512_reduce_max_epu32((__m512i)x);
}

static inline uint16_t largest_of_words(words x)
{
    const __m256i half = _mm256_max_epu16(_mm512_castsi512_si256((__m512i)x), _mm512_extracti64x4_epi64((__m512i)x, 1));
    const __m128i y = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const __m128i smallest = _mm_minpos_epu16(_mm_xor_si128(y, _mm_set1_epi16(-1))); /* there is an instruction for the smallest */
    return (uint16_t)~_mm_cvtsi128_si32(smallest);
}

static inline __m256i bytes_of(const bits x[VECTORS])
{
    return _mm256_set_m128i(_mm512_cvtepi32_epi8((__m512i)x[1]), _mm512_cvtepi32_epi8((__m512i)x[0]));
}

static inline void store_bytes(uint8_t *out, const bits x[VECTORS])
{
    _mm256_storeu_si256((__m256i *)(void *)out, bytes_of(x));
}

static inline void store_nibbles(uint8_t *out, const bits x[VECTORS])
{
    const __m256i pairs = _mm256_maddubs_epi16(bytes_of(x), _mm256_set1_epi16(0x1001)); /* even + 16 odd, in 16 bits */
    _mm_storeu_si128((__m128i *)(void *)out, _mm256_cvtepi16_epi8(pairs));
}

static inline void load_f4e2m1(const uint8_t *pairs, vec values[VECTORS])
{
    const __m512 table = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    for (int v = 0; v < VECTORS; v++) {
        const __m512i bytes = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)(const void *)(pairs + 8 * v)));
        const __m512i codes = _mm512_or_si512(bytes, _mm512_slli_epi64(bytes, 28)); /* the lookup sees the low four bits only */
        values[v] = _mm512_permutexvar_ps(codes, table);
    }
}

/* ---- the row of the table ---------------------------------------------------------------------------------- */

bool dg_cast_avx512_can_run(void)
{
    return dg_cpu()->has_avx512;
}

dg_kernel_result dg_cast_avx512(const struct dg_cast_args *args)
{
    run_cast(args);
    return 0;
}

dg_kernel_result dg_cast_back_avx512(const struct dg_cast_back_args *args)
{
    run_cast_back(args);
    return 0;
}
