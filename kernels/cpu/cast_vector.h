/* The casts with vectors, for AVX2 and AVX-512.
 *
 * A strip, some neighbouring blocks, is gone through three times, while it is in cache: for the largest magnitudes, for the scales of all its
 * blocks at once, and for the codes. Nothing is looked up and nothing branches on a value; blocks with NaN or infinity are left to
 * cast_element.h.
 *
 *   e4m3   With e the exponent of |y|, at least -6, |y| + 2^(e + 20) rounds |y| to a whole number n of steps of 2^(e - 3), to nearest
 *          even, once, subnormal codes included; n stands in the low bits of the sum and the code is 8 (e + 6) + n.
 *   e2m1   Adding one less than half of the last bit kept and cutting rounds to nearest, ties down, from 1 on; below, two comparisons.
 *
 * The including file defines LANES and the functions declared below.
 */
#ifndef DG_CPU_CAST_VECTOR_H
#define DG_CPU_CAST_VECTOR_H

#include "cast_element.h"

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef uint32_t bits __attribute__((vector_size(4 * LANES)));
typedef uint16_t words __attribute__((vector_size(4 * LANES)));

enum {
    STEP = 32,
    VECTORS = STEP / LANES,
    WORD_VECTORS = STEP / (2 * LANES),
    NARROW = 32, /* the largest magnitudes of blocks of fewer columns are sought column by column, and */
    MEDIUM = 64, /* blocks of up to so many are encoded several at a time, each column with an inverse scale of its own */
    STRIP = 1024, /* the most columns of a strip of several blocks, and of blocks */
    WORTH_A_THREAD = 65536 /* elements: about 20 us */
};

static inline vec load_f32(const void *p);
static inline vec load_bf16(const void *p); /* LANES of them, to f32 */
static inline vec load_f16(const void *p);
static inline words load_words(const void *p);
static inline void store_bits(void *p, bits x);

static inline bits larger_bits(bits x, bits y);
static inline bits smaller_bits(bits x, bits y);
static inline words larger_words(words x, words y);
static inline uint32_t largest_of_bits(bits x);
static inline uint16_t largest_of_words(words x);

static inline void store_bytes(uint8_t *out, const bits x[VECTORS]);       /* STEP numbers below 256 */
static inline void store_nibbles(uint8_t *out, const bits x[VECTORS]);     /* STEP numbers below 16, two to a byte */
static inline void load_f4e2m1(const uint8_t *pairs, vec values[VECTORS]); /* STEP of them, to f32 */

static inline int64_t min_i64(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

static inline int64_t ceil_div(int64_t x, int64_t y)
{
    return x / y + (x % y > 0);
}

/* ---- elements ---------------------------------------------------------------------------------------------- */

static inline int64_t element_bytes(enum dg_cast_type type)
{
    return type == DG_CAST_F32 ? 4 : 2;
}

/* A run of elements of row i from column j on, which the loops below take in whole steps: as many steps as lie one after the other, or
 * one step that is copied to buffer with zeros behind. Returns the elements of the row in the run. */
static inline int64_t next_run(const struct dg_cast_args *args, int64_t i, int64_t j, int64_t left, void *buffer, const void **run)
{
    const int64_t size = element_bytes(args->type);
    const uint8_t *from = (const uint8_t *)args->x + (i * args->stride_m + j * args->stride_n) * size;
    if (left >= STEP && args->stride_n == 1) {
        *run = from;
        return left / STEP * STEP;
    }
    const int64_t count = min_i64(left, STEP);
    memset(buffer, 0, (size_t)(STEP * size));
    for (int64_t c = 0; c < count; c++) {
        memcpy((uint8_t *)buffer + c * size, from + c * args->stride_n * size, (size_t)size);
    }
    *run = buffer;
    return count;
}

static inline void load_step(enum dg_cast_type type, const void *step, vec x[VECTORS])
{
    for (int v = 0; v < VECTORS; v++) {
        const uint8_t *p = (const uint8_t *)step + v * LANES * element_bytes(type);
        x[v] = type == DG_CAST_BF16 ? load_bf16(p) : type == DG_CAST_F16 ? load_f16(p) : load_f32(p);
    }
}

/* ---- largest magnitudes ------------------------------------------------------------------------------------ */

static inline bits largest_f32(const float *run, int64_t count, bits largest)
{
    for (int64_t c = 0; c < count; c += LANES) {
        largest = larger_bits(largest, (bits)load_f32(run + c) & 0x7fffffffu);
    }
    return largest;
}

/* Magnitudes of f16 and bf16 order as their bits do. */
static inline words largest_16(const uint16_t *run, int64_t count, words largest)
{
    for (int64_t c = 0; c < count; c += 2 * LANES) {
        largest = larger_words(largest, load_words(run + c) & 0x7fffu);
    }
    return largest;
}

/* The largest magnitude, as bits of f32, in rows [i, i_end) and columns [j, j_end). */
static uint32_t largest_of_block(const struct dg_cast_args *args, int64_t i, int64_t i_end, int64_t j, int64_t j_end)
{
    _Alignas(64) uint32_t buffer[STEP];
    bits largest_bits = {0};
    words largest_words = {0};
    for (; i < i_end; i++) {
        int64_t count;
        for (int64_t c = j; c < j_end; c += count) {
            const void *run;
            count = next_run(args, i, c, j_end - c, buffer, &run);
            const int64_t whole = ceil_div(count, STEP) * STEP;
            if (args->type == DG_CAST_F32) {
                largest_bits = largest_f32(run, whole, largest_bits);
            } else {
                largest_words = largest_16(run, whole, largest_words);
            }
        }
    }
    if (args->type == DG_CAST_F32) {
        return largest_of_bits(largest_bits);
    }
    const uint16_t word = largest_of_words(largest_words);
    return dg_bits_of_f32(args->type == DG_CAST_BF16 ? dg_f32_from_bf16(word) : dg_f32_from_f16(word));
}

/* The same for each of the narrow blocks in these columns, of which there are at most STRIP. */
static void largest_of_narrow_blocks(const struct dg_cast_args *args, int64_t i, int64_t i_end, int64_t j, int64_t j_end, uint32_t *largest)
{
    uint32_t of_columns[STRIP] = {0};
    for (; i < i_end; i++) {
        int64_t count;
        for (int64_t c = j; c < j_end; c += count) {
            _Alignas(64) uint32_t buffer[STEP];
            const void *run;
            count = next_run(args, i, c, j_end - c, buffer, &run);
            for (int64_t s = 0; s < count; s += STEP) {
                vec x[VECTORS];
                load_step(args->type, (const uint8_t *)run + s * element_bytes(args->type), x);
                for (int v = 0; v < VECTORS; v++) {
                    uint32_t *columns = &of_columns[c - j + s + v * LANES];
                    const bits so_far = (bits)load_f32(columns);
                    store_bits(columns, larger_bits(so_far, (bits)x[v] & 0x7fffffffu));
                }
            }
        }
    }
    for (int64_t c = 0; c < j_end - j; c += args->gran_n, largest++) {
        *largest = 0;
        for (int64_t x = c; x < min_i64(c + args->gran_n, j_end - j); x++) {
            *largest = of_columns[x] > *largest ? of_columns[x] : *largest;
        }
    }
}

/* ---- scales ------------------------------------------------------------------------------------------------ */

/* scale_of_block() for `count` blocks, and the inverses. The arrays are read and written in whole vectors. */
static void scales_of_blocks(const struct dg_cast_args *args, int64_t count, const uint32_t *largest, float *sf, float *inverses)
{
    const vec least = (vec){0} + 1e-4f;
    const bits highest = (bits){0} + 254u;
    const float largest_code = args->code_type == DG_CAST_F8E4M3 ? 448.0f : 6.0f;
    for (int64_t q = 0; q < count; q += LANES) {
        vec scale = (vec)larger_bits((bits)load_f32(largest + q), (bits)least) / largest_code;
        if (args->scale_type != DG_CAST_SCALE_F32) {
            const bits exponent = ((bits)scale >> 23) - (bits)(((bits)scale & 0x7fffffu) != 0u); /* true is -1 */
            scale = (vec)(smaller_bits(exponent, highest) << 23); /* amax is at least 1e-4, so the exponent is above 0 */
        }
        store_bits(sf + q, (bits)scale);
        store_bits(inverses + q, (bits)(1.0f / scale));
    }
}

/* ---- codes ------------------------------------------------------------------------------------------------- */

/* y is finite, |y| below 464. */
static inline bits f8e4m3_of(vec y)
{
    const bits magnitude = (bits)y & 0x7fffffffu;
    const bits smallest_normal = (bits){0} + (127u - 6u) * (1u << 23);
    const bits exponent = larger_bits(magnitude & 0x7f800000u, smallest_normal);
    /* Exponent e + 127 + 20, and 24 in the low bits, which makes 8 (e + 147) + 24 the same as 8 (e + 6) in the low seven bits. */
    const bits sum = (bits)((vec)magnitude + (vec)(exponent + ((20u << 23) + 24u)));
    const bits code = (sum >> 20) + sum;
    return (code & 0x7fu) | ((bits)y >> 24 & ~0x7fu);
}

/* y is finite, |y| below 7. */
static inline bits f4e2m1_of(vec y)
{
    const bits magnitude = (bits)y & 0x7fffffffu;
    /* 252 + code, twice; of magnitudes below 1 the first is never more than the second, and from 1 on never less */
    const bits from_one = (magnitude + 0x1fffffu) >> 22;
    const bits below_one = 252u - (bits)((vec)magnitude > 0.25f) - (bits)((vec)magnitude > 0.75f); /* true is -1 */
    const bits code = larger_bits(from_one, below_one) - 252u;
    const bits sign = (bits)y >> 28 & 8u;
    return code | (sign & -code); /* bit 3 of -code is 0 for code 0 only */
}

/* The codes of `count` contiguous elements, a multiple of STEP, each times the inverse scale of its own, or, with is_shared, all times
 * inverses[0]. type, code_type and is_shared are constants of each call. */
static inline __attribute__((always_inline)) void encode_run_of(const enum dg_cast_type type, const enum dg_cast_code code_type,
                                                                const bool is_shared, const void *run, int64_t count, const float *inverses,
                                                                uint8_t *out)
{
    const vec shared = (vec){0} + inverses[0];
    for (int64_t c = 0; c < count; c += STEP) {
        vec x[VECTORS];
        bits codes[VECTORS];
        load_step(type, (const uint8_t *)run + c * element_bytes(type), x);
        for (int v = 0; v < VECTORS; v++) {
            const vec y = x[v] * (is_shared ? shared : load_f32(inverses + c + v * LANES));
            codes[v] = code_type == DG_CAST_F8E4M3 ? f8e4m3_of(y) : f4e2m1_of(y);
        }
        if (code_type == DG_CAST_F8E4M3) {
            store_bytes(out + c, codes);
        } else {
            store_nibbles(out + c / 2, codes);
        }
    }
}

static inline __attribute__((always_inline)) void encode_run_typed(const enum dg_cast_code code_type, const bool is_shared,
                                                                   enum dg_cast_type type, const void *run, int64_t count,
                                                                   const float *inverses, uint8_t *out)
{
    switch (type) {
    case DG_CAST_BF16: encode_run_of(DG_CAST_BF16, code_type, is_shared, run, count, inverses, out); break;
    case DG_CAST_F16: encode_run_of(DG_CAST_F16, code_type, is_shared, run, count, inverses, out); break;
    case DG_CAST_F32: encode_run_of(DG_CAST_F32, code_type, is_shared, run, count, inverses, out); break;
    }
}

static void encode_run(const struct dg_cast_args *args, bool is_shared, const void *run, int64_t count, const float *inverses, uint8_t *out)
{
    if (args->code_type == DG_CAST_F8E4M3) {
        if (is_shared) {
            encode_run_typed(DG_CAST_F8E4M3, true, args->type, run, count, inverses, out);
        } else {
            encode_run_typed(DG_CAST_F8E4M3, false, args->type, run, count, inverses, out);
        }
    } else if (is_shared) {
        encode_run_typed(DG_CAST_F4E2M1, true, args->type, run, count, inverses, out);
    } else {
        encode_run_typed(DG_CAST_F4E2M1, false, args->type, run, count, inverses, out);
    }
}

/* Columns [j, j_end) of row i, which are no part of a pair. inverses has those of each column, or of all. */
static void encode_row(const struct dg_cast_args *args, int64_t i, int64_t j, int64_t j_end, bool is_shared, const float *inverses)
{
    const int64_t codes_per_byte = args->code_type == DG_CAST_F8E4M3 ? 1 : 2;
    int64_t count;
    for (int64_t c = j; c < j_end; c += count) {
        _Alignas(64) uint32_t buffer[STEP];
        const void *run;
        count = next_run(args, i, c, j_end - c, buffer, &run);
        uint8_t *out = args->codes + (i * args->n + c) / codes_per_byte;
        const float *from = is_shared ? inverses : inverses + (c - j);
        if (count % STEP == 0) {
            encode_run(args, is_shared, run, count, from, out);
        } else {
            uint8_t last[STEP];
            encode_run(args, is_shared, run, STEP, from, last);
            memcpy(out, last, (size_t)(count / codes_per_byte));
        }
    }
}

/* ---- blocks ------------------------------------------------------------------------------------------------ */

/* Blocks of a strip. FP4 pairs do not lie across strips. */
static int64_t blocks_of_strip(const struct dg_cast_args *args)
{
    const int64_t columns = args->gran_m == 1 ? STRIP : STRIP / 4; /* 128 rows of 256 columns are 64 KiB of bf16 */
    const int64_t blocks = columns / args->gran_n;
    return blocks < 2 ? 2 : blocks / 2 * 2;
}

/* Rows [i0, i_end) of one block. */
static void encode_block(const struct dg_cast_args *args, int64_t i0, int64_t i_end, int64_t j0, int64_t j_end, bool is_finite, float inverse)
{
    const bool has_pairs = args->code_type == DG_CAST_F8E4M3 || (j0 % 2 == 0 && j_end % 2 == 0);
    for (int64_t i = i0; i < i_end; i++) {
        if (is_finite && has_pairs) {
            encode_row(args, i, j0, j_end, true, &inverse);
            continue;
        }
        for (int64_t j = j0; j < j_end; j++) {
            store_code(args, i, j, inverse);
        }
    }
}

/* `count` blocks of block row `row`, from `block` on. */
static void cast_strip(const struct dg_cast_args *args, int64_t row, int64_t block, int64_t count)
{
    const int64_t i0 = row * args->gran_m;
    const int64_t i_end = min_i64(i0 + args->gran_m, args->m);
    const int64_t j0 = block * args->gran_n;
    const int64_t j_end = min_i64(j0 + count * args->gran_n, args->n);
    uint32_t largest[STRIP];
    float sf[STRIP];
    float inverses[STRIP];
    if (args->gran_n < NARROW) {
        largest_of_narrow_blocks(args, i0, i_end, j0, j_end, largest);
    } else {
        for (int64_t q = 0; q < count; q++) {
            const int64_t j = j0 + q * args->gran_n;
            largest[q] = largest_of_block(args, i0, i_end, j, min_i64(j + args->gran_n, j_end));
        }
    }
    for (int64_t q = count; q % LANES != 0; q++) {
        largest[q] = 0;
    }
    scales_of_blocks(args, count, largest, sf, inverses);
    store_scales(args, row, block, count, sf);

    bool is_finite = true;
    for (int64_t q = 0; q < count; q++) {
        is_finite = is_finite && largest[q] < INFINITY_BITS;
    }
    if (args->gran_n <= MEDIUM && is_finite) {
        float of_columns[STRIP + STEP];
        memset(of_columns + (j_end - j0) / STEP * STEP, 0, STEP * sizeof(float)); /* behind the last column */
        for (int64_t q = 0; q < count; q++) {
            const int64_t first = q * args->gran_n;
            for (int64_t c = first; c < min_i64(first + args->gran_n, j_end - j0); c++) {
                of_columns[c] = inverses[q];
            }
        }
        for (int64_t i = i0; i < i_end; i++) {
            encode_row(args, i, j0, j_end, false, of_columns);
        }
        return;
    }
    for (int64_t q = 0; q < count; q++) {
        const int64_t j = j0 + q * args->gran_n;
        encode_block(args, i0, i_end, j, min_i64(j + args->gran_n, j_end), largest[q] < INFINITY_BITS, inverses[q]);
    }
}

/* Strips [begin, end), counted along the rows of blocks. */
static void cast_strips(void *arg, int64_t begin, int64_t end)
{
    const struct dg_cast_args *args = *(const struct dg_cast_args **)arg;
    const int64_t blocks = ceil_div(args->n, args->gran_n);
    const int64_t most = blocks_of_strip(args);
    const int64_t strips = ceil_div(blocks, most);
    for (int64_t item = begin; item < end; item++) {
        const int64_t block = item % strips * most;
        cast_strip(args, item / strips, block, min_i64(most, blocks - block));
    }
}

static void run_cast(const struct dg_cast_args *args)
{
    const int64_t most = blocks_of_strip(args);
    const int64_t strips = ceil_div(ceil_div(args->n, args->gran_n), most);
    const int64_t strip_elements = min_i64(most * args->gran_n, args->n) * min_i64(args->gran_m, args->m);
    args->exec.parallel_for(args->exec.parallel_for_user, strips * ceil_div(args->m, args->gran_m), WORTH_A_THREAD / strip_elements + 1,
                            cast_strips, &args);
}

/* ---- back -------------------------------------------------------------------------------------------------- */

/* Columns [j, j_end) of row i, all of one block. */
static inline void cast_back_block(const struct dg_cast_back_args *args, int64_t i, int64_t j, int64_t j_end)
{
    const float sf = cast_back_scale(args, i, j / args->gran_n);
    const bool has_pairs = args->stride_n == 1 && (i * args->stride_m + j) % 2 == 0;
    float *out = args->values + i * args->n;
    for (; has_pairs && j + STEP <= j_end; j += STEP) {
        vec values[VECTORS];
        load_f4e2m1(args->codes + (i * args->stride_m + j) / 2, values);
        for (int v = 0; v < VECTORS; v++) {
            const vec product = values[v] * sf;
            memcpy(out + j + v * LANES, &product, sizeof(product));
        }
    }
    for (; j < j_end; j++) {
        out[j] = cast_back_element(args, i, j) * sf;
    }
}

static void cast_back_rows(void *arg, int64_t begin, int64_t end)
{
    const struct dg_cast_back_args *args = *(const struct dg_cast_back_args **)arg;
    for (int64_t i = begin; i < end; i++) {
        for (int64_t j = 0; j < args->n; j += args->gran_n) {
            cast_back_block(args, i, j, min_i64(j + args->gran_n, args->n));
        }
    }
}

static void run_cast_back(const struct dg_cast_back_args *args)
{
    args->exec.parallel_for(args->exec.parallel_for_user, args->m, WORTH_A_THREAD / args->n + 1, cast_back_rows, &args);
}

#endif
