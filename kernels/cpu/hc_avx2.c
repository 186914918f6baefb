/* The hyperconnection prenorm with AVX2 and FMA. The idea is in hc_vector.h; 12 of 16 registers hold sums, three a, one b. */
#include <immintrin.h>

enum { LANES = 8, ROWS = 3, COLUMNS = 4 };
typedef __m256 vec;

#include "core/cpu.h"
#include "hc_vector.h"

static inline vec vec_zero(void)
{
    return _mm256_setzero_ps();
}

static inline vec vec_load(const float *p)
{
    return _mm256_load_ps(p);
}

static inline void vec_store(float *p, vec x)
{
    _mm256_store_ps(p, x);
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

static inline void widen_group(const uint16_t *from, vec *even, vec *odd)
{
    const __m256i words = _mm256_loadu_si256((const __m256i *)(const void *)from);
    *even = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
    *odd = _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000u)));
}

/* dg_tf32_from_f32() for LANES elements. */
static inline vec round_to_tf32(vec x)
{
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 13), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x0fff)), is_odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
    const vec is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    const vec chosen = _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), is_nan);
    return _mm256_and_ps(chosen, _mm256_castsi256_ps(_mm256_set1_epi32(~0x1fff)));
}

static inline void round_group(const float *from, vec *even, vec *odd)
{
    const vec x = _mm256_loadu_ps(from);
    const vec y = _mm256_loadu_ps(from + LANES);
    const __m256d evens = _mm256_castps_pd(_mm256_shuffle_ps(x, y, 0x88)); /* x0 x2 y0 y2 | x4 x6 y4 y6 */
    const __m256d odds = _mm256_castps_pd(_mm256_shuffle_ps(x, y, 0xdd));
    *even = round_to_tf32(_mm256_castpd_ps(_mm256_permute4x64_pd(evens, 0xd8)));
    *odd = round_to_tf32(_mm256_castpd_ps(_mm256_permute4x64_pd(odds, 0xd8)));
}

/* ---- the row of the table ---------------------------------------------------------------------------------- */

bool dg_hc_avx2_can_run(const struct dg_hc_args *args)
{
    (void)args;
    return dg_cpu()->has_avx2;
}

size_t dg_hc_avx2_workspace(const struct dg_hc_args *args)
{
    return hc_workspace(args);
}

dg_kernel_result dg_hc_avx2(const struct dg_hc_args *args)
{
    run_hc(args);
    return 0;
}
