/* GEMM with AMX tiles: TDPBF16PS on 16 x 16 sums, 32 of k at a time.
 *
 * Idea: gemm_bf16.h. Tile: 32 rows of b by 32 of a in four tile registers, two more for each operand, all loads of 1 KiB in
 * a row from panels in L1 and L2. In flight: while the tile unit sums one block, the vector units scale the sums of the block
 * before and add them to the totals, and decode the panel of b that comes next.
 */
#include "core/cpu.h"

#define DOT_M 2 /* from 3 rows of a on, tiles are faster */
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

/* One tile of a, in tmm6, by up to four of b: their sums are tmm0 to tmm3. */
static inline void load_narrow_a(const uint16_t *a)
{
    __asm__ volatile("tileloadd (%[a], %[stride]), %%tmm6" : : [a] "r"(a), [stride] "r"((int64_t)64) : "memory");
}

static inline void multiply_1x1_0(const uint16_t *b)
{
    __asm__ volatile("tileloadd (%[b], %[stride]), %%tmm4\n\t"
                     "tdpbf16ps %%tmm6, %%tmm4, %%tmm0"
                     :
                     : [b] "r"(b), [stride] "r"((int64_t)64)
                     : "memory");
}

static inline void multiply_1x1_1(const uint16_t *b)
{
    __asm__ volatile("tileloadd (%[b], %[stride]), %%tmm5\n\t"
                     "tdpbf16ps %%tmm6, %%tmm5, %%tmm1"
                     :
                     : [b] "r"(b), [stride] "r"((int64_t)64)
                     : "memory");
}

static inline void multiply_1x1_2(const uint16_t *b)
{
    __asm__ volatile("tileloadd (%[b], %[stride]), %%tmm7\n\t"
                     "tdpbf16ps %%tmm6, %%tmm7, %%tmm2"
                     :
                     : [b] "r"(b), [stride] "r"((int64_t)64)
                     : "memory");
}

static inline void multiply_1x1_3(const uint16_t *b)
{
    __asm__ volatile("tileloadd (%[b], %[stride]), %%tmm4\n\t"
                     "tdpbf16ps %%tmm6, %%tmm4, %%tmm3"
                     :
                     : [b] "r"(b), [stride] "r"((int64_t)64)
                     : "memory");
}

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

/* One chunk of k of a block. */
static inline void multiply_chunk(const struct block *x, int64_t chunk)
{
    const uint16_t *a = x->a + chunk * TILE_CODES;
    const uint16_t *b = x->b + chunk * TILE_CODES;
    if (x->is_narrow) {
        load_narrow_a(a);
        multiply_1x1_0(b);
        if (x->b_tiles > 1) {
            multiply_1x1_1(b + x->b_tile_stride);
        }
        if (x->b_tiles > 2) {
            multiply_1x1_2(b + 2 * x->b_tile_stride);
        }
        if (x->b_tiles > 3) {
            multiply_1x1_3(b + 3 * x->b_tile_stride);
        }
    } else if (x->a_tiles == 2) {
        multiply_2x2(b, b + x->b_tile_stride, a, a + x->a_tile_stride);
    } else {
        multiply_2x1(b, b + x->b_tile_stride, a);
    }
}

static void multiply(const struct block *x, struct aside *aside)
{
    float *sums = x->sums;
    for (int64_t begin = 0; begin < x->chunks; begin += x->unit_chunks) {
        const int64_t end = min_i64(begin + x->unit_chunks, x->chunks);
        zero_sums();
        for (int64_t chunk = begin; chunk < end; chunk++) {
            multiply_chunk(x, chunk);
            do_aside(aside);
        }
        store_sum_tiles(sums);
        sums += BLOCK_FLOATS;
    }
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
