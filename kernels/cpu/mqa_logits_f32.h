/* The f32 form of the logits family: a word is an f32, and heads are multiplied in tiles of WIDE_HEADS heads by VECTORS vectors of
 * keys, whose dots stay in registers. For AVX2 and AVX-512. Read mqa_logits_fast.h first.
 *
 * The including file gives vec and its functions, decode_16() and add_head(), and LANES, VECTORS and WIDE_HEADS.
 */
#ifndef DG_CPU_MQA_LOGITS_F32_H
#define DG_CPU_MQA_LOGITS_F32_H

enum {
    KEYS = VECTORS * LANES,
    WORD_CODES = 1,
    DEPTH_STEP = 16, /* of transposition */
    NARROW_HEADS = 4,
    HEAD_MIN = NARROW_HEADS,
    SCRATCH_BYTES = 0
};

#include "mqa_logits_fast.h"

static void begin_work(void)
{
}

static void end_work(void)
{
}

static void decode_query(const uint8_t *codes, const float *scales, int64_t depth, uint32_t *words)
{
    float same_scale[16];
    for (int64_t x = 0; x < depth; x += 16) {
        fill_floats(same_scale, 16, scales[x / MX_GROUP]);
        decode_16(codes + x, same_scale, (float *)(void *)words + x);
    }
}

static void decode_keys(const uint8_t *codes, const float *scales, int64_t depth, uint32_t *panel)
{
    uint8_t transposed[16 * 16]; /* [16 of depth][16 keys] */
    for (int64_t key = 0; key < KEYS; key += 16) {
        for (int64_t x = 0; x < depth; x += 16) {
            transpose_16x16_bytes(codes + key * depth + x, depth, transposed, 16);
            const float *group_scales = scales + x / MX_GROUP * KEYS + key;
            for (int64_t i = 0; i < 16; i++) {
                decode_16(transposed + 16 * i, group_scales, (float *)(void *)panel + (x + i) * KEYS + key);
            }
        }
    }
}

/* Adds `count` heads from number h on to the sums; count is a constant where it is called, so that the tile is unrolled. */
static inline __attribute__((always_inline)) void add_tile(const struct heads *x, int64_t h, int count, vec sums[VECTORS])
{
    const float *q = (const float *)(const void *)x->q + h * x->steps;
    const float *panel = (const float *)(const void *)x->panel;
    vec dots[WIDE_HEADS][VECTORS];
    for (int i = 0; i < count; i++) {
        for (int v = 0; v < VECTORS; v++) {
            dots[i][v] = vec_zero();
        }
    }
    for (int64_t step = 0; step < x->steps; step++) {
        vec keys[VECTORS];
        for (int v = 0; v < VECTORS; v++) {
            keys[v] = vec_load(panel + step * KEYS + v * LANES);
        }
        for (int i = 0; i < count; i++) {
            add_head(q + i * x->steps + step, keys, dots[i]);
        }
    }
    for (int i = 0; i < count; i++) {
        const vec weight = vec_set(x->weights[h + i]);
        for (int v = 0; v < VECTORS; v++) {
            sums[v] = vec_fma(weight, vec_max(vec_zero(), dots[i][v]), sums[v]);
        }
    }
}

/* HEAD_STEP is such that wide and narrow tiles together always come out even. */
static void add_heads(const struct heads *x, float *sums)
{
    vec totals[VECTORS];
    for (int v = 0; v < VECTORS; v++) {
        totals[v] = vec_zero();
    }
    int64_t h = 0;
    while (h < x->count) {
        if ((x->count - h) % WIDE_HEADS == 0) {
            add_tile(x, h, WIDE_HEADS, totals);
            h += WIDE_HEADS;
        } else {
            add_tile(x, h, NARROW_HEADS, totals);
            h += NARROW_HEADS;
        }
    }
    for (int v = 0; v < VECTORS; v++) {
        vec_store(sums + v * LANES, totals[v]);
    }
}

#endif
