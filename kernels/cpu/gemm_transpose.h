/* Transposition of squares of dwords in registers, for the vector length of the including file.
 */
#ifndef DG_CPU_GEMM_TRANSPOSE_H
#define DG_CPU_GEMM_TRANSPOSE_H

#include <immintrin.h>

#ifdef __AVX512F__

/* x[r][c] = x[c][r] for 16 x 16 dwords. */
static inline void transpose_16x16(__m512i x[16])
{
    __m512i y[16];
    for (int i = 0; i < 16; i += 2) {
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) { /* now x[i + c]: column c of each 4 x 4 block of rows i .. i + 3 */
        x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    for (int i = 0; i < 4; i++) { /* transposes the 4 x 4 matrix of 128-bit lanes */
        const __m512i a = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
        const __m512i b = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
        const __m512i c = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
        const __m512i d = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
        y[i] = _mm512_shuffle_i32x4(a, c, 0x88);
        y[i + 8] = _mm512_shuffle_i32x4(a, c, 0xdd);
        y[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88);
        y[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
    for (int i = 0; i < 16; i++) {
        x[i] = y[i];
    }
}

#else

/* x[r][c] = x[c][r] for 8 x 8 dwords. */
static inline void transpose_8x8(__m256i x[8])
{
    __m256i y[8];
    for (int i = 0; i < 8; i += 2) {
        y[i] = _mm256_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm256_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) { /* now x[i + c]: column c of each 4 x 4 block of rows i .. i + 3 */
        x[i] = _mm256_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm256_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm256_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm256_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    for (int i = 0; i < 4; i++) { /* exchanges the 128-bit lanes */
        y[i] = _mm256_permute2x128_si256(x[i], x[i + 4], 0x20);
        y[i + 4] = _mm256_permute2x128_si256(x[i], x[i + 4], 0x31);
    }
    for (int i = 0; i < 8; i++) {
        x[i] = y[i];
    }
}

#endif

#endif
