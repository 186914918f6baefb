/* Random calls of the logits family, and what is expected of them: for tests of kernels that run on the CPU and on GPUs. */
#ifndef TESTS_OPS_MQA_LOGITS_CASES_H
#define TESTS_OPS_MQA_LOGITS_CASES_H

#include "check.h"
#include "core/dtype.h"
#include "ops/mqa_logits.h"
#include "random.h"

#include <math.h>

/* ---- random numbers ---------------------------------------------------------------------------------------- */

static void begin_case(int64_t index)
{
    random_state = 88172645463325252u + (uint64_t)index * 7919u;
    for (int i = 0; i < 4; i++) {
        random_bits();
    }
}

/* ---- cases ------------------------------------------------------------------------------------------------- */

enum { MAX_BUFFERS = 16 };

enum content {
    USUAL,     /* as quantised data are */
    ANY_CODE,  /* all codes, NaN among them */
    ANY_SCALE, /* scales and weights that leave f32, infinities, NaN */
    CONTENT_COUNT
};

struct memory {
    uint8_t *bytes;
    size_t size;
    uint64_t sum; /* before the call */
};

static struct memory buffers[MAX_BUFFERS];
static int buffer_count;

static uint8_t *new_buffer(int64_t size)
{
    uint8_t *bytes = malloc((size_t)(size > 0 ? size : 1));
    if (bytes == NULL || buffer_count == MAX_BUFFERS) {
        fprintf(stderr, "no memory\n");
        exit(1);
    }
    buffers[buffer_count++] = (struct memory){bytes, (size_t)size, 0};
    return bytes;
}

static uint64_t checksum(const struct memory *memory)
{
    uint64_t sum = 14695981039346656037u;
    for (size_t i = 0; i < memory->size; i++) {
        sum = (sum ^ memory->bytes[i]) * 1099511628211u;
    }
    return sum;
}

static int64_t at_least_one(int64_t x)
{
    return x < 1 ? 1 : x;
}

/* Strides of a dense array of these sizes, the dimension `inner` innermost and the others in order, rows longer than needed. With is_fp4
 * only the innermost stride is odd. Returns the extent. */
static int64_t choose_strides(const int64_t *sizes, int64_t *const *strides, int count, int inner, bool is_fp4)
{
    int64_t stride = is_fp4 || !one_in(8) ? 1 : 2;
    int64_t extent = 1 + (at_least_one(sizes[inner]) - 1) * stride;
    *strides[inner] = stride;
    stride *= at_least_one(sizes[inner]) + (one_in(2) ? random_below(5) : 0);
    for (int i = count - 1; i >= 0; i--) {
        if (i == inner) {
            continue;
        }
        stride += is_fp4 && stride % 2 != 0;
        const bool is_broadcast = one_in(12);
        *strides[i] = is_broadcast ? 0 : stride;
        extent += is_broadcast ? 0 : (at_least_one(sizes[i]) - 1) * stride;
        stride *= is_broadcast ? 1 : at_least_one(sizes[i]);
    }
    return extent;
}

static void fill_codes(uint8_t *codes, int64_t count, enum dg_mqa_type type, enum content content)
{
    for (int64_t i = 0; i < count; i++) {
        const bool is_any = type == DG_MQA_F4E2M1 || content == ANY_CODE;
        codes[i] = is_any ? (uint8_t)random_bits() : dg_f8e4m3_from_f32(random_normal() * 60);
        if (type == DG_MQA_F8E4M3 && (codes[i] & 0x7f) == 0x7f && !one_in(20)) {
            codes[i] = 0x3c; /* few NaN, or there is nothing else */
        }
    }
}

static uint32_t random_mx_word(enum content content)
{
    if (content == ANY_SCALE && one_in(6)) {
        return (uint32_t)random_bits();
    }
    uint32_t word = 0;
    for (int g = 0; g < 4; g++) {
        word = word << 8 | (uint32_t)(120 + random_below(10));
    }
    return word;
}

/* One edge of each kind in a case: of several, the worst would hide the others. */
static float scale_edge;
static float weight_edge;
static int64_t weight_edge_one_in;

static void choose_edges(void)
{
    static const float weight_edges[] = {0, INFINITY, NAN, 1e-44f, 3e38f, 1e-20f, -1e30f, -0.0f};
    static const float scale_edges[] = {0, INFINITY, NAN, 3e38f, 1e-30f, 1e-40f, -2, -INFINITY}; /* some bring the weights back into f32 */
    const int64_t edge = random_below(8);
    weight_edge = weight_edges[edge];
    scale_edge = scale_edges[one_in(2) ? edge : random_below(8)];
    weight_edge_one_in = one_in(3) ? 1 : 50;
}

static float random_scale(enum content content)
{
    return content == ANY_SCALE && one_in(3) ? scale_edge : 0.001f * (0.1f + (float)random_below(100) / 100);
}

static float random_weight(enum content content)
{
    return content == ANY_SCALE && one_in(weight_edge_one_in) ? weight_edge : random_normal();
}

static void fill_words(uint8_t *bytes, int64_t count, bool is_mx, enum content content)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t word = random_mx_word(content);
        if (!is_mx) {
            word = dg_bits_of_f32(random_scale(content));
        }
        memcpy(bytes + 4 * i, &word, 4);
    }
}

static void make_queries(struct dg_mqa_logits_args *args, bool is_mx, enum content content)
{
    struct dg_mqa_queries *q = &args->q;
    const bool is_fp4 = args->type == DG_MQA_F4E2M1;
    const int64_t sizes[] = {args->sequences, args->tokens, args->heads, args->head_dim};
    int64_t *const strides[] = {&q->stride_sequence, &q->stride_token, &q->stride_head, &q->stride_dim};
    const int64_t extent = choose_strides(sizes, strides, 4, one_in(5) ? 2 : 3, is_fp4);
    const int64_t bytes = is_fp4 ? (extent + 1) / 2 : extent;
    uint8_t *codes = new_buffer(bytes);
    fill_codes(codes, bytes, args->type, content);
    q->codes = codes;

    if (is_mx) {
        int64_t *const sf_strides[] = {&q->sf_stride_sequence, &q->sf_stride_token, &q->sf_stride_head};
        const int64_t words = choose_strides(sizes, sf_strides, 3, 2, false);
        uint8_t *sf = new_buffer(4 * words);
        fill_words(sf, words, true, content);
        q->sf = (const uint32_t *)(const void *)sf;
    }

    const int64_t weight_sizes[] = {args->sequences * args->tokens, args->heads};
    int64_t *const weight_strides[] = {&q->weights_stride_row, &q->weights_stride_head};
    const int64_t count = choose_strides(weight_sizes, weight_strides, 2, (int)random_below(2), false);
    q->has_bf16_weights = one_in(3);
    uint8_t *weights = new_buffer(count * (q->has_bf16_weights ? 2 : 4));
    for (int64_t i = 0; i < count; i++) {
        const float weight = random_weight(content);
        const uint16_t rounded = dg_bf16_from_f32(weight);
        if (q->has_bf16_weights) {
            memcpy(weights + 2 * i, &rounded, 2);
        } else {
            memcpy(weights + 4 * i, &weight, 4);
        }
    }
    q->weights = weights;
}

static void make_contiguous_keys(struct dg_mqa_logits_args *args, bool is_mx, enum content content)
{
    struct dg_mqa_keys *keys = &args->keys;
    const bool is_fp4 = args->type == DG_MQA_F4E2M1;
    const int64_t sizes[] = {args->ranges.num_keys, args->head_dim};
    int64_t *const strides[] = {&keys->stride_key, &keys->stride_dim};
    const int64_t extent = choose_strides(sizes, strides, 2, one_in(5) ? 0 : 1, is_fp4);
    const int64_t bytes = is_fp4 ? (extent + 1) / 2 : extent;
    uint8_t *codes = new_buffer(bytes);
    fill_codes(codes, bytes, args->type, content);
    keys->codes = codes;
    keys->sf_stride_key = 1 + random_below(3);
    const int64_t words = 1 + (args->ranges.num_keys - 1) * keys->sf_stride_key;
    uint8_t *sf = new_buffer(4 * words);
    fill_words(sf, words, is_mx, content);
    keys->sf = sf;
    keys->page_keys = args->ranges.num_keys;
}

static void make_paged_keys(struct dg_mqa_logits_args *args, bool is_mx, enum content content)
{
    static const int64_t page_sizes[] = {1, 7, 32, 64, 128};
    struct dg_mqa_keys *keys = &args->keys;
    const bool is_fp4 = args->type == DG_MQA_F4E2M1;
    const int64_t key_bytes = is_fp4 ? (args->head_dim + 1) / 2 : args->head_dim;
    keys->page_keys = page_sizes[random_below(5)];
    keys->stride_key = is_fp4 ? 2 * key_bytes : key_bytes;
    keys->stride_dim = 1;
    keys->sf_stride_key = 1;
    const int64_t used_bytes = keys->page_keys * (key_bytes + 4);
    keys->page_bytes = used_bytes + random_below(3) * 4;

    const int64_t table_pages = (args->ranges.num_keys + keys->page_keys - 1) / keys->page_keys;
    const int64_t pages = table_pages * args->sequences / 2 + 1;
    uint8_t *cache = new_buffer((pages - 1) * keys->page_bytes + used_bytes);
    for (int64_t page = 0; page < pages; page++) {
        fill_codes(cache + page * keys->page_bytes, keys->page_keys * key_bytes, args->type, content);
        fill_words(cache + page * keys->page_bytes + keys->page_keys * key_bytes, keys->page_keys, is_mx, content);
    }
    keys->codes = cache;
    keys->sf = cache + keys->page_keys * key_bytes;

    const int64_t sizes[] = {args->sequences, table_pages};
    int64_t *const strides[] = {&keys->table_stride_sequence, &keys->table_stride_page};
    const int64_t entries = choose_strides(sizes, strides, 2, (int)random_below(2), false);
    int32_t *table = (int32_t *)(void *)new_buffer(4 * entries);
    for (int64_t i = 0; i < entries; i++) {
        table[i] = one_in(10) ? -1 : (int32_t)random_below(pages);
    }
    keys->table = table;
}

/* Mostly within the keys; sometimes inverted or beyond them. */
static int32_t random_bound(int64_t num_keys)
{
    return (int32_t)(one_in(6) ? random_below(4 * num_keys + 8) - 2 * num_keys - 4 : random_below(num_keys + 1));
}

static void make_ranges(struct dg_mqa_logits_args *args, bool is_paged)
{
    struct dg_mqa_ranges *ranges = &args->ranges;
    const int64_t sizes[] = {args->sequences, args->tokens};
    int64_t *const strides[] = {&ranges->end_stride_sequence, &ranges->end_stride_token};
    const int64_t count = choose_strides(sizes, strides, 2, 1, false);
    int32_t *end = (int32_t *)(void *)new_buffer(4 * count);
    for (int64_t i = 0; i < count; i++) {
        end[i] = random_bound(ranges->num_keys);
    }
    ranges->end = end;
    if (is_paged) {
        if (one_in(2)) {
            ranges->end_is_of_last_token = true;
            ranges->end_stride_token = 0;
        }
        return;
    }
    ranges->begin_stride_token = 1 + random_below(2);
    int32_t *begin = (int32_t *)(void *)new_buffer(4 * (1 + (args->tokens - 1) * ranges->begin_stride_token));
    for (int64_t t = 0; t < args->tokens; t++) {
        begin[t * ranges->begin_stride_token] = one_in(2) ? 0 : random_bound(ranges->num_keys);
    }
    ranges->begin = begin;
}

/* Inputs of a random call, in buffers. */
static struct dg_mqa_logits_args draw_case(void)
{
    static const int64_t heads[] = {0, 0, 1, 2, 3, 4, 6, 8, 12, 16, 18, 32, 33, 64, 70};
    static const int64_t head_dims[] = {0, 1, 2, 16, 31, 32, 64, 96, 128, 130, 300};
    const bool is_paged = one_in(2);
    const bool is_mx = one_in(2);
    const enum content content = one_in(2) ? USUAL : (enum content)random_below(CONTENT_COUNT);
    struct dg_mqa_logits_args args = {
        .sequences = is_paged ? 1 + random_below(4) : 1,
        .tokens = is_paged ? 1 + random_below(4) : 1 + random_below(20),
        .heads = heads[random_below(15)],
        .head_dim = head_dims[random_below(is_mx ? 9 : 11)],
        .type = is_mx && one_in(2) ? DG_MQA_F4E2M1 : DG_MQA_F8E4M3,
        .ranges.num_keys = 1 + (one_in(4) ? random_below(8) : random_below(300)),
        .has_bf16_logits = one_in(3),
    };
    choose_edges();
    make_queries(&args, is_mx, content);
    if (is_paged) {
        make_paged_keys(&args, is_mx, content);
    } else {
        make_contiguous_keys(&args, is_mx, content);
    }
    make_ranges(&args, is_paged);
    args.is_compressed = !is_paged && one_in(3);
    args.fills_rest = !args.is_compressed && one_in(2);
    args.columns = args.is_compressed ? 1 + random_below(args.ranges.num_keys + 20) : args.ranges.num_keys;
    args.stride_row = args.columns + random_below(9);
    return args;
}

/* Bytes of the result of a call that has rows. */
static int64_t logits_size(const struct dg_mqa_logits_args *args)
{
    const int64_t rows = args->sequences * args->tokens;
    return ((rows - 1) * args->stride_row + args->columns) * (args->has_bf16_logits ? 2 : 4);
}

static void remember_buffers(void)
{
    for (int i = 0; i < buffer_count; i++) {
        buffers[i].sum = checksum(&buffers[i]);
    }
}

/* They must be as they were. */
static void free_buffers(void)
{
    for (int i = 0; i < buffer_count; i++) {
        CHECK(checksum(&buffers[i]) == buffers[i].sum);
        free(buffers[i].bytes);
    }
    buffer_count = 0;
}

static void describe(const char *name, const struct dg_mqa_logits_args *args)
{
    fprintf(stderr, "    %s: %lld sequences of %lld tokens, %lld heads of %lld, %lld keys, %s%s%s%s\n", name,
            (long long)args->sequences, (long long)args->tokens, (long long)args->heads, (long long)args->head_dim,
            (long long)args->ranges.num_keys, args->type == DG_MQA_F4E2M1 ? "fp4" : "fp8", args->q.sf != NULL ? " mx" : "",
            args->keys.table != NULL ? " paged" : "", args->is_compressed ? " compressed" : "");
}

/* ---- what is expected -------------------------------------------------------------------------------------- */

/* A logit in double, and the sum of the magnitudes of all that was added. */
struct expected {
    double value;
    double magnitude;
};

static double code_at(enum dg_mqa_type type, const uint8_t *codes, int64_t index)
{
    if (type == DG_MQA_F8E4M3) {
        return dg_f32_from_f8e4m3(codes[index]);
    }
    return dg_f32_from_f4e2m1((uint8_t)(codes[index / 2] >> (index % 2 * 4)));
}

static double byte_scale(uint32_t word, int64_t x)
{
    return dg_f32_from_ue8m0((uint8_t)(word >> (x / 32 * 8)));
}

/* The page of key j, -1 when there is none. */
static int64_t page_of(const struct dg_mqa_logits_args *args, int64_t s, int64_t j)
{
    const struct dg_mqa_keys *keys = &args->keys;
    return keys->table == NULL ? 0 : keys->table[s * keys->table_stride_sequence + j / keys->page_keys * keys->table_stride_page];
}

static struct expected expect(const struct dg_mqa_logits_args *args, int64_t s, int64_t t, int64_t j)
{
    const struct dg_mqa_queries *q = &args->q;
    const struct dg_mqa_keys *keys = &args->keys;
    const uint8_t *page_codes = keys->codes + page_of(args, s, j) * keys->page_bytes;
    uint32_t key_word;
    memcpy(&key_word, keys->sf + page_of(args, s, j) * keys->page_bytes + j % keys->page_keys * keys->sf_stride_key * 4, 4);

    struct expected sum = {0, 0};
    for (int64_t h = 0; h < args->heads; h++) {
        const int64_t q_index = s * q->stride_sequence + t * q->stride_token + h * q->stride_head;
        const uint32_t q_word = q->sf == NULL ? 0 : q->sf[s * q->sf_stride_sequence + t * q->sf_stride_token + h * q->sf_stride_head];
        struct expected dot = {0, 0};
        for (int64_t x = 0; x < args->head_dim; x++) {
            const double scale = q->sf == NULL ? 1 : byte_scale(q_word, x) * byte_scale(key_word, x);
            const double product = code_at(args->type, q->codes, q_index + x * q->stride_dim) *
                                   code_at(args->type, page_codes, j % keys->page_keys * keys->stride_key + x * keys->stride_dim) * scale;
            dot.value += product;
            dot.magnitude += fabs(product);
        }
        const int64_t w_index = (s * args->tokens + t) * q->weights_stride_row + h * q->weights_stride_head;
        const double w = q->has_bf16_weights ? dg_f32_from_bf16(((const uint16_t *)q->weights)[w_index])
                                             : ((const float *)q->weights)[w_index];
        sum.value += w * (isnan(dot.value) ? dot.value : fmax(dot.value, 0));
        sum.magnitude += fabs(w) * dot.magnitude;
    }
    const double scale = q->sf == NULL ? dg_f32_of_bits(key_word) : 1;
    return (struct expected){scale * sum.value, fabs(scale) * sum.magnitude};
}

/* Chains of head_dim and heads additions in f32, and one rounding to the type of the logits. */
static bool is_near(const struct dg_mqa_logits_args *args, double got, struct expected expected)
{
    const float rounded = (float)expected.value;
    const double wanted = args->has_bf16_logits ? dg_f32_from_bf16(dg_bf16_from_f32(rounded)) : rounded;
    if (isnan(expected.value) || isinf(wanted)) {
        return isnan(expected.value) ? isnan(got) : got == wanted;
    }
    const double unit = args->has_bf16_logits ? 0x1p-8 * fabs(expected.value) + 0x1p-133 : 0x1p-23 * fabs(expected.value) + 0x1p-148;
    return fabs(got - expected.value) <= 0x1p-24 * (double)(args->head_dim + args->heads + 4) * expected.magnitude + unit;
}

static const uint8_t untouched = 0xa5;

static void check_logits(const struct dg_mqa_logits_args *args, const uint8_t *logits, int64_t size)
{
    const int64_t element = args->has_bf16_logits ? 2 : 4;
    uint8_t *is_written = calloc((size_t)size + 1, 1);
    for (int64_t row = 0; row < args->sequences * args->tokens && is_written != NULL; row++) {
        const int64_t s = row / args->tokens;
        const int64_t t = row % args->tokens;
        const struct dg_mqa_range range = dg_mqa_range_of(&args->ranges, args->tokens, s, t);
        for (int64_t column = 0; column < args->columns; column++) {
            const int64_t j = column + (args->is_compressed ? range.begin : 0);
            const bool has_key = j >= range.begin && j < range.end;
            if (!has_key && !args->fills_rest) {
                continue;
            }
            const int64_t at = (row * args->stride_row + column) * element;
            memset(is_written + at, 1, (size_t)element);
            float got;
            uint16_t got_bf16;
            memcpy(&got_bf16, logits + at, 2);
            if (args->has_bf16_logits) {
                got = dg_f32_from_bf16(got_bf16);
            } else {
                memcpy(&got, logits + at, 4);
            }
            const bool is_right = has_key && page_of(args, s, j) >= 0 ? is_near(args, got, expect(args, s, t, j)) : got == -INFINITY;
            if (!CHECK(is_right)) {
                fprintf(stderr, "    row %lld, key %lld: got %.9g, expected %.9g\n", (long long)row, (long long)j, got,
                        has_key && page_of(args, s, j) >= 0 ? expect(args, s, t, j).value : -(double)INFINITY);
            }
        }
    }
    bool others_are_untouched = is_written != NULL;
    for (int64_t i = 0; i < size && others_are_untouched; i++) {
        others_are_untouched = is_written[i] || logits[i] == untouched;
    }
    CHECK(others_are_untouched);
    free(is_written);
}

#endif
