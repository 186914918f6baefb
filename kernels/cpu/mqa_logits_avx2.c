/* Logits with AVX2, FMA and F16C.
 *
 * Idea: mqa_logits_f32.h. Tile: 6 heads by 16 keys in 12 of the 16 registers, two more for keys, one for the broadcast head. An e4m3
 * code shifted into the place of an f16 is value / 256, and VCVTPH2PS takes subnormals without a penalty.
 */
#include "core/cpu.h"

#include <immintrin.h>
#include <stdint.h>

enum {
    LANES = 8,
    VECTORS = 2,
    WIDE_HEADS = 6,
    HEAD_STEP = 2
};
typedef __m256 vec;

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

static inline vec vec_max(vec x, vec y)
{
    return _mm256_max_ps(x, y);
}

static inline vec vec_fma(vec x, vec y, vec z)
{
    return _mm256_fmadd_ps(x, y, z);
}

/* out = 16 e4m3 codes, each times its scale. */
static inline void decode_16(const uint8_t *codes, const float *scales, float *out)
{
    const __m256i words = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)codes)), 8);
    const __m256i f16 = _mm256_and_si256(_mm256_srai_epi16(words, 1), _mm256_set1_epi16((short)0xbf80));
    const __m256 f16_unit = _mm256_set1_ps(256);
    const __m256 low = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(f16)), f16_unit);
    const __m256 high = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(f16, 1)), f16_unit);
    _mm256_storeu_ps(out, _mm256_mul_ps(low, _mm256_loadu_ps(scales)));
    _mm256_storeu_ps(out + 8, _mm256_mul_ps(high, _mm256_loadu_ps(scales + 8)));
}

/* dots += *q * keys. Assembly, because gcc 12 loads the broadcasts of all heads ahead and spills the sums. */
static inline void add_head(const float *q, const vec keys[2], vec dots[2])
{
    __asm__("vbroadcastss %[q], %%ymm15\n\t"
            "vfmadd231ps %[keys0], %%ymm15, %[dots0]\n\t"
            "vfmadd231ps %[keys1], %%ymm15, %[dots1]"
            : [dots0] "+x"(dots[0]), [dots1] "+x"(dots[1])
            : [q] "m"(*q), [keys0] "x"(keys[0]), [keys1] "x"(keys[1])
            : "xmm15");
}

#include "mqa_logits_f32.h"

bool dg_mqa_logits_avx2_can_run(void)
{
    return dg_cpu()->has_avx2;
}

size_t dg_mqa_logits_avx2_workspace(const struct dg_mqa_logits_args *args)
{
    return fast_form_workspace(args);
}

dg_kernel_result dg_mqa_logits_avx2(const struct dg_mqa_logits_args *args)
{
    run_fast_form(args);
    return 0;
}
