/* Logits with AVX-512 F, BW, DQ, VL and VBMI.
 *
 * Idea: mqa_logits_f32.h. Tile: 8 heads by 48 keys in 24 of the 32 registers, three more for keys, one for the broadcast head: the usual
 * numbers of heads are multiples of 8. VDPBF16PS is not used: where it was measured (Sapphire Rapids), it multiplies 0.56 times as
 * fast as two VFMADD231PS.
 */
#include "core/cpu.h"

#include <immintrin.h>
#include <stdint.h>

enum {
    LANES = 16,
    VECTORS = 3,
    WIDE_HEADS = 8,
    HEAD_STEP = 4
};
typedef __m512 vec;

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

static inline vec vec_max(vec x, vec y)
{
    return _mm512_max_ps(x, y);
}

static inline vec vec_fma(vec x, vec y, vec z)
{
    return _mm512_fmadd_ps(x, y, z);
}

/* out = 16 e4m3 codes, each times its scale; see mqa_logits_avx2.c. */
static inline void decode_16(const uint8_t *codes, const float *scales, float *out)
{
    const __m256i words = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)codes)), 8);
    const __m256i f16 = _mm256_and_si256(_mm256_srai_epi16(words, 1), _mm256_set1_epi16((short)0xbf80));
    const __m512 values = _mm512_mul_ps(_mm512_cvtph_ps(f16), _mm512_set1_ps(256));
    _mm512_storeu_ps(out, _mm512_mul_ps(values, _mm512_loadu_ps(scales)));
}

/* dots += *q * keys. Assembly, because gcc 12 loads the broadcasts of all heads ahead and spills the sums. */
static inline void add_head(const float *q, const vec keys[3], vec dots[3])
{
    __asm__("vbroadcastss %[q], %%zmm31\n\t"
            "vfmadd231ps %[keys0], %%zmm31, %[dots0]\n\t"
            "vfmadd231ps %[keys1], %%zmm31, %[dots1]\n\t"
            "vfmadd231ps %[keys2], %%zmm31, %[dots2]"
            : [dots0] "+v"(dots[0]), [dots1] "+v"(dots[1]), [dots2] "+v"(dots[2])
            : [q] "m"(*q), [keys0] "v"(keys[0]), [keys1] "v"(keys[1]), [keys2] "v"(keys[2])
            : "xmm31");
}

#include "mqa_logits_f32.h"

bool dg_mqa_logits_avx512_can_run(void)
{
    return dg_cpu()->has_avx512;
}

size_t dg_mqa_logits_avx512_workspace(const struct dg_mqa_logits_args *args)
{
    return fast_form_workspace(args);
}

dg_kernel_result dg_mqa_logits_avx512(const struct dg_mqa_logits_args *args)
{
    run_fast_form(args);
    return 0;
}
