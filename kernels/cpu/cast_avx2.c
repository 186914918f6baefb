/* Casts with AVX2 and F16C. The idea is in cast_vector.h. */
#include <immintrin.h>

enum { LANES = 8 };

#include "cast_vector.h"
#include "core/cpu.h"

static inline vec load_f32(const void *p)
{
    return _mm256_loadu_ps(p);
}

static inline vec load_bf16(const void *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}

static inline vec load_f16(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}

static inline words load_words(const void *p)
{
    return (words)_mm256_loadu_si256(p);
}

static inline void store_bits(void *p, bits x)
{
    _mm256_storeu_si256(p, (__m256i)x);
}

static inline bits larger_bits(bits x, bits y)
{
    return (bits)_mm256_max_epu32((__m256i)x, (__m256i)y);
}

static inline bits smaller_bits(bits x, bits y)
{
    return (bits)_mm256_min_epu32((__m256i)x, (__m256i)y);
}

static inline words larger_words(words x, words y)
{
    return (words)_mm256_max_epu16((__m256i)x, (__m256i)y);
}

static inline uint32_t largest_of_bits(bits x)
{
    __m128i y = _mm_max_epu32(_mm256_castsi256_si128((__m256i)x), _mm256_extracti128_si256((__m256i)x, 1));
    y = _mm_max_epu32(y, _mm_shuffle_epi32(y, 0x4e));
    y = _mm_max_epu32(y, _mm_shuffle_epi32(y, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(y);
}

static inline uint16_t largest_of_words(words x)
{
    const __m128i y = _mm_max_epu16(_mm256_castsi256_si128((__m256i)x), _mm256_extracti128_si256((__m256i)x, 1));
    const __m128i smallest = _mm_minpos_epu16(_mm_xor_si128(y, _mm_set1_epi16(-1))); /* there is an instruction for the smallest */
    return (uint16_t)~_mm_cvtsi128_si32(smallest);
}

static inline __m256i bytes_of(const bits x[VECTORS])
{
    const __m256i ab = _mm256_packs_epi32((__m256i)x[0], (__m256i)x[1]);
    const __m256i cd = _mm256_packs_epi32((__m256i)x[2], (__m256i)x[3]);
    /* packing works on the halves of registers: this order undoes it */
    return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(ab, cd), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

static inline void store_bytes(uint8_t *out, const bits x[VECTORS])
{
    _mm256_storeu_si256((__m256i *)(void *)out, bytes_of(x));
}

static inline void store_nibbles(uint8_t *out, const bits x[VECTORS])
{
    const __m256i bytes = bytes_of(x);
    const __m256i pairs = _mm256_maddubs_epi16(bytes, _mm256_set1_epi16(0x1001)); /* even + 16 odd, in 16 bits */
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0x08);
    _mm_storeu_si128((__m128i *)(void *)out, _mm256_castsi256_si128(packed));
}

static inline void load_f4e2m1(const uint8_t *pairs, vec values[VECTORS])
{
    const __m256 magnitudes = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
    const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    for (int v = 0; v < VECTORS; v++) {
        int32_t eight;
        memcpy(&eight, pairs + 4 * v, sizeof(eight));
        const __m256i codes = _mm256_srlv_epi32(_mm256_set1_epi32(eight), shifts); /* the lookup sees the low three bits only */
        const __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(codes, 3), 31);
        values[v] = _mm256_xor_ps(_mm256_permutevar8x32_ps(magnitudes, codes), _mm256_castsi256_ps(sign));
    }
}

/* ---- the row of the table ---------------------------------------------------------------------------------- */

bool dg_cast_avx2_can_run(void)
{
    return dg_cpu()->has_avx2;
}

dg_kernel_result dg_cast_avx2(const struct dg_cast_args *args)
{
    run_cast(args);
    return 0;
}

dg_kernel_result dg_cast_back_avx2(const struct dg_cast_back_args *args)
{
    run_cast_back(args);
    return 0;
}
