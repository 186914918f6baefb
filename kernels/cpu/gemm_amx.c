/* GEMM with AMX tiles: TDPBF16PS on 16 x 16 sums, 32 of k at a time.
 *
 * Idea: gemm_bf16.h. Tile: 32 rows of b by 32 of a in four tile registers, two more for each operand, all loads of 1 KiB in
 * a row from panels in L1 and L2. In flight: while the tile unit sums one unit of k, the vector units scale the sums
 * of the unit before and add them to the totals.
 */
#include "core/cpu.h"
#include "gemm_bf16.h"

/* The tile instructions as functions, because the compilers' own do not say that they touch memory. */
struct tile_config {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static void begin_tiles(void)
{
    struct tile_config config = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        config.row_bytes[tile] = 64;
        config.rows[tile] = TILE;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
}

static void end_tiles(void)
{
    __asm__ volatile("tilerelease" : : : "memory");
}

/* tmm0 .. tmm3 are the sums of (b0, a0), (b0, a1), (b1, a0), (b1, a1). */
static inline void zero_sums(void)
{
    __asm__ volatile("tilezero %%tmm0\n\t"
                     "tilezero %%tmm1\n\t"
                     "tilezero %%tmm2\n\t"
                     "tilezero %%tmm3"
                     :
                     :
                     : "memory");
}

static inline void multiply_2x2(const uint16_t *b0, const uint16_t *b1, const uint16_t *a0, const uint16_t *a1)
{
    __asm__ volatile("tileloadd (%[b0], %[stride]), %%tmm4\n\t"
                     "tileloadd (%[a0], %[stride]), %%tmm6\n\t"
                     "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\t"
                     "tileloadd (%[b1], %[stride]), %%tmm5\n\t"
                     "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n\t"
                     "tileloadd (%[a1], %[stride]), %%tmm7\n\t"
                     "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n\t"
                     "tdpbf16ps %%tmm7, %%tmm5, %%tmm3"
                     :
                     : [b0] "r"(b0), [b1] "r"(b1), [a0] "r"(a0), [a1] "r"(a1), [stride] "r"((int64_t)64)
                     : "memory");
}

static inline void multiply_2x1(const uint16_t *b0, const uint16_t *b1, const uint16_t *a0)
{
    __asm__ volatile("tileloadd (%[b0], %[stride]), %%tmm4\n\t"
                     "tileloadd (%[a0], %[stride]), %%tmm6\n\t"
                     "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\t"
                     "tileloadd (%[b1], %[stride]), %%tmm5\n\t"
                     "tdpbf16ps %%tmm6, %%tmm5, %%tmm2"
                     :
                     : [b0] "r"(b0), [b1] "r"(b1), [a0] "r"(a0), [stride] "r"((int64_t)64)
                     : "memory");
}

/* sums: [b0, b1][a0, a1][16][16]. */
static inline void store_sum_tiles(float *sums)
{
    __asm__ volatile("tilestored %%tmm0, (%[sums], %[stride])\n\t"
                     "tilestored %%tmm1, 1024(%[sums], %[stride])\n\t"
                     "tilestored %%tmm2, 2048(%[sums], %[stride])\n\t"
                     "tilestored %%tmm3, 3072(%[sums], %[stride])"
                     :
                     : [sums] "r"(sums), [stride] "r"((int64_t)64)
                     : "memory");
}

/* totals += sums * scales for rows [begin, end) of b. */
static inline void add_rows(const struct block *x, int64_t unit, const float *sums, int64_t begin, int64_t end)
{
    const float *a_scales = x->a_scales + unit * x->a_scales_stride;
    const __m512 a0 = _mm512_loadu_ps(a_scales);
    const __m512 a1 = x->m_tiles == 2 ? _mm512_loadu_ps(a_scales + TILE) : a0;
    for (int64_t r = begin; r < end; r++) {
        const __m512 b = _mm512_set1_ps(x->b_scales[r * x->b_scales_stride + unit]);
        const float *row = sums + r / TILE * 2 * TILE * TILE + r % TILE * TILE;
        float *totals = x->totals + r * x->totals_stride;
        _mm512_store_ps(totals, _mm512_fmadd_ps(_mm512_load_ps(row), _mm512_mul_ps(a0, b), _mm512_load_ps(totals)));
        if (x->m_tiles == 2) {
            row += TILE * TILE;
            totals += TILE;
            _mm512_store_ps(totals, _mm512_fmadd_ps(_mm512_load_ps(row), _mm512_mul_ps(a1, b), _mm512_load_ps(totals)));
        }
    }
}

static void multiply(const struct block *x)
{
    const uint16_t *b0 = x->b;
    const uint16_t *b1 = x->b + x->b_tile_stride;
    const uint16_t *a0 = x->a;
    const uint16_t *a1 = x->a + x->a_tile_stride;
    const int64_t units = ceil_div(x->chunks, x->unit_chunks);
    for (int64_t unit = 0; unit < units; unit++) {
        const int64_t chunks = min_i64(x->unit_chunks, x->chunks - unit * x->unit_chunks);
        float *sums = x->scratch + unit % 2 * (SCRATCH_FLOATS / 2);
        const float *sums_before = x->scratch + (unit + 1) % 2 * (SCRATCH_FLOATS / 2);
        int64_t added = 0;
        zero_sums();
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            if (x->m_tiles == 2) {
                multiply_2x2(b0, b1, a0, a1);
            } else {
                multiply_2x1(b0, b1, a0);
            }
            b0 += TILE_CODES;
            b1 += TILE_CODES;
            a0 += TILE_CODES;
            a1 += TILE_CODES;
            if (unit > 0) {
                const int64_t end = N_STEP * (chunk + 1) / chunks;
                add_rows(x, unit - 1, sums_before, added, end);
                added = end;
            }
        }
        store_sum_tiles(sums);
    }
    add_rows(x, units - 1, x->scratch + (units + 1) % 2 * (SCRATCH_FLOATS / 2), 0, N_STEP);
}

bool dg_gemm_amx_can_run(const struct dg_gemm_args *args)
{
    return dg_cpu()->has_amx_bf16 && bf16_form_fits(args);
}

size_t dg_gemm_amx_workspace(const struct dg_gemm_args *args)
{
    return bf16_form_workspace(args);
}

dg_kernel_result dg_gemm_amx(const struct dg_gemm_args *args)
{
    run_bf16_form(args);
    return 0;
}
