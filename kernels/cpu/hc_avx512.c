/* The hyperconnection prenorm with AVX-512. The idea is in hc_vector.h; 24 of 32 registers hold sums, four a, one b. */
#include <immintrin.h>

enum { LANES = 16, ROWS = 4, COLUMNS = 6 };
typedef __m512 vec;

#include "core/cpu.h"
#include "hc_vector.h"

static inline vec vec_zero(void)
{
    return _mm512_setzero_ps();
}

static inline vec vec_load(const float *p)
{
    return _mm512_load_ps(p);
}

static inline void vec_store(float *p, vec x)
{
    _mm512_store_ps(p, x);
}

static inline vec vec_fma(vec x, vec y, vec z)
{
    return _mm512_fmadd_ps(x, y, z);
}

static inline float vec_sum(vec x)
{
    return _mm512_reduce_add_ps(x);
}

static inline void widen_group(const uint16_t *from, vec *even, vec *odd)
{
    const __m512i words = _mm512_loadu_si512(from);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32((int)0xffff0000u)));
}

/* dg_tf32_from_f32() for LANES elements. */
static inline vec round_to_tf32(vec x)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i is_odd = _mm512_and_si512(_mm512_srli_epi32(bits, 13), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x0fff)), is_odd);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i chosen = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x00400000));
    return _mm512_castsi512_ps(_mm512_and_si512(chosen, _mm512_set1_epi32(~0x1fff)));
}

static inline void round_group(const float *from, vec *even, vec *odd)
{
    const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
    const vec x = _mm512_loadu_ps(from);
    const vec y = _mm512_loadu_ps(from + LANES);
    *even = round_to_tf32(_mm512_permutex2var_ps(x, evens, y));
    *odd = round_to_tf32(_mm512_permutex2var_ps(x, odds, y));
}

/* ---- the row of the table ---------------------------------------------------------------------------------- */

bool dg_hc_avx512_can_run(const struct dg_hc_args *args)
{
    (void)args;
    return dg_cpu()->has_avx512;
}

size_t dg_hc_avx512_workspace(const struct dg_hc_args *args)
{
    return hc_workspace(args);
}

dg_kernel_result dg_hc_avx512(const struct dg_hc_args *args)
{
    run_hc(args);
    return 0;
}
