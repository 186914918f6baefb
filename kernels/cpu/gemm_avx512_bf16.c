/* GEMM with AVX-512 BF16: VDPBF16PS, two products of bf16 added to an f32.
 *
 * Idea: gemm_bf16.h. Tile: 8 rows of b by 32 of a, or 16 by 16, in 16 registers; pairs of b are broadcast from the panel as memory
 * operands. In flight: nothing aside, panels are decoded between tiles.
 */
#include "gemm_avx512_bf16.h"

#include "core/cpu.h"

#define DOT_M 4
#include "gemm_bf16.h"

static void begin_tiles(void)
{
}

static void end_tiles(void)
{
}

/* sum0 += b a0, sum1 += b a1, where b is one pair for all lanes. */
static inline void add_pair(const uint16_t *b, __m512i a, __m512 *sum)
{
    __asm__("vdpbf16ps %[b]%{1to16%}, %[a], %[sum]" : [sum] "+v"(*sum) : [b] "m"(*(const uint16_t(*)[2])b), [a] "v"(a));
}

/* sums = b a for `rows` rows of b, all in one tile, and a_tiles tiles of a; both are constants of each call. Tiles of sums lie one behind
 * the other. */
static inline __attribute__((always_inline)) void multiply_rows(const int rows, const int a_tiles, const uint16_t *b, const uint16_t *a,
                                                                int64_t a_tile_stride, int64_t chunks, float *sums)
{
    __m512 lanes[TILE][2];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        lanes[r][0] = lanes[r][1] = _mm512_setzero_ps();
    }
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        for (int64_t pair = 0; pair < TILE; pair++) {
            const uint16_t *a_pair = a + chunk * TILE_CODES + pair * CHUNK;
            const uint16_t *b_pair = b + chunk * TILE_CODES + pair * 2;
            const __m512i a0 = _mm512_loadu_si512(a_pair);
            const __m512i a1 = a_tiles == 2 ? _mm512_loadu_si512(a_pair + a_tile_stride) : a0;
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++) {
                add_pair(b_pair + r * CHUNK, a0, &lanes[r][0]);
                if (a_tiles == 2) {
                    add_pair(b_pair + r * CHUNK, a1, &lanes[r][1]);
                }
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        _mm512_storeu_ps(sums + r * TILE, lanes[r][0]);
        if (a_tiles == 2) {
            _mm512_storeu_ps(sums + TILE_FLOATS + r * TILE, lanes[r][1]);
        }
    }
}

static void multiply(const struct block *x, struct aside *aside)
{
    float *sums = x->sums;
    for (int64_t begin = 0; begin < x->chunks; begin += x->unit_chunks) {
        const int64_t chunks = min_i64(x->unit_chunks, x->chunks - begin);
        for (int64_t tile = 0; tile < x->b_tiles; tile++) {
            const uint16_t *b = x->b + tile * x->b_tile_stride + begin * TILE_CODES;
            const uint16_t *a = x->a + begin * TILE_CODES;
            float *tile_sums = sums + tile * (x->is_narrow ? 1 : 2) * TILE_FLOATS;
            if (x->a_tiles == 2) {
                multiply_rows(8, 2, b, a, x->a_tile_stride, chunks, tile_sums);
                multiply_rows(8, 2, b + 8 * CHUNK, a, x->a_tile_stride, chunks, tile_sums + 8 * TILE);
            } else {
                multiply_rows(16, 1, b, a, x->a_tile_stride, chunks, tile_sums);
            }
        }
        sums += BLOCK_FLOATS;
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            do_aside(aside);
        }
    }
}

bool dg_gemm_avx512_bf16_can_run(const struct dg_gemm_args *args)
{
    return dg_cpu()->has_avx512_bf16 && bf16_form_fits(args);
}

size_t dg_gemm_avx512_bf16_workspace(const struct dg_gemm_args *args)
{
    return bf16_form_workspace(args);
}

dg_kernel_result dg_gemm_avx512_bf16(const struct dg_gemm_args *args)
{
    run_bf16_form(args);
    return 0;
}
