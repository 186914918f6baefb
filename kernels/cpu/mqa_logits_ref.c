/* The reference of the logits family: the meaning of ops/mqa_logits.h, logit by logit, for every type, scale and stride, and the
 * work schedule of paged logits.
 *
 * All of it is in double. A value times its scale is exact there, products and sums round at 2^-53, and the result is rounded once to
 * the type of the logits. No product is skipped, so NaN and infinity go where arithmetic takes them, and NaN passes max(0, x). Faster
 * kernels are measured against this one; it is not measured against any clock.
 */
#include "core/dtype.h"
#include "ops/mqa_logits.h"

#include <math.h>

/* ---- logits ------------------------------------------------------------------------------------------------ */

enum { MX_GROUP = 32, SPLIT_KEYS = 256 };

static double code_value(enum dg_mqa_type type, const uint8_t *codes, int64_t index)
{
    return type == DG_MQA_F4E2M1 ? dg_f32_from_f4e2m1(dg_f4e2m1_at(codes, index)) : dg_f32_from_f8e4m3(codes[index]);
}

/* The scale of element x that a word of an MX format has. */
static double mx_scale(uint32_t word, int64_t x)
{
    return dg_f32_from_ue8m0((uint8_t)(word >> (8 * (x / MX_GROUP))));
}

static double weight(const struct dg_mqa_queries *q, int64_t row, int64_t h)
{
    const int64_t index = row * q->weights_stride_row + h * q->weights_stride_head;
    return q->has_bf16_weights ? dg_f32_from_bf16(((const uint16_t *)q->weights)[index]) : ((const float *)q->weights)[index];
}

static int64_t page_of(const struct dg_mqa_keys *keys, int64_t s, int64_t j)
{
    return keys->table == NULL ? 0 : keys->table[s * keys->table_stride_sequence + j / keys->page_keys * keys->table_stride_page];
}

double dg_mqa_logit(const struct dg_mqa_logits_args *args, int64_t s, int64_t t, int64_t j)
{
    const struct dg_mqa_queries *q = &args->q;
    const struct dg_mqa_keys *keys = &args->keys;
    const int64_t page = page_of(keys, s, j) * keys->page_bytes;
    const int64_t place = j % keys->page_keys;

    uint32_t key_word;
    float key_scale;
    memcpy(&key_word, keys->sf + page + place * keys->sf_stride_key * 4, 4);
    memcpy(&key_scale, &key_word, 4);

    double sum = 0;
    for (int64_t h = 0; h < args->heads; h++) {
        const int64_t q_index = s * q->stride_sequence + t * q->stride_token + h * q->stride_head;
        uint32_t q_word = 0;
        if (q->sf != NULL) {
            q_word = q->sf[s * q->sf_stride_sequence + t * q->sf_stride_token + h * q->sf_stride_head];
        }
        double dot = 0;
        for (int64_t x = 0; x < args->head_dim; x++) {
            double q_value = code_value(args->type, q->codes, q_index + x * q->stride_dim);
            double key_value = code_value(args->type, keys->codes + page, place * keys->stride_key + x * keys->stride_dim);
            if (q->sf != NULL) {
                q_value *= mx_scale(q_word, x);
                key_value *= mx_scale(key_word, x);
            }
            dot += q_value * key_value;
        }
        sum += weight(q, s * args->tokens + t, h) * (dot < 0 ? 0 : dot);
    }
    return q->sf != NULL ? sum : (double)key_scale * sum;
}

static void store(const struct dg_mqa_logits_args *args, int64_t row, int64_t column, double value)
{
    const int64_t index = row * args->stride_row + column;
    if (args->has_bf16_logits) {
        ((uint16_t *)args->logits)[index] = dg_bf16_from_f64(value);
    } else {
        ((float *)args->logits)[index] = (float)value;
    }
}

/* Columns [begin, end) of the result, counted row by row. */
static void compute(void *arg, int64_t begin, int64_t end)
{
    const struct dg_mqa_logits_args *args = *(const struct dg_mqa_logits_args **)arg;
    for (int64_t index = begin; index < end; index++) {
        const int64_t row = index / args->columns;
        const int64_t column = index % args->columns;
        const int64_t s = row / args->tokens;
        const int64_t t = row % args->tokens;
        const struct dg_mqa_range range = dg_mqa_range_of(&args->ranges, args->tokens, s, t);
        const int64_t j = args->is_compressed ? range.begin + column : column;
        if (j >= range.begin && j < range.end) {
            store(args, row, column, page_of(&args->keys, s, j) < 0 ? -(double)INFINITY : dg_mqa_logit(args, s, t, j));
        } else if (args->fills_rest) {
            store(args, row, column, -(double)INFINITY);
        }
    }
}

dg_kernel_result dg_mqa_logits_ref(const struct dg_mqa_logits_args *args)
{
    const int64_t worth_a_thread = 4096; /* products: about 50 us */
    const int64_t grain = worth_a_thread / (args->heads * args->head_dim + 1) + 1;
    args->exec.parallel_for(args->exec.parallel_for_user, args->sequences * args->tokens * args->columns, grain, compute, &args);
    return 0;
}

/* ---- schedule ---------------------------------------------------------------------------------------------- */

/* Entries of one pass over keys: `entries` of them from `first` on, whose work is counted `repeats` times, for atoms numbered
 * `first_atom` and on. */
struct pass {
    int64_t first, entries;
    int64_t first_atom;
    int64_t repeats;
    int64_t splits;
};

/* The pass that begins at entry i. */
static struct pass pass_at(const struct dg_mqa_schedule_args *args, int64_t i)
{
    struct pass pass = {.first = i, .entries = 1, .repeats = 1};
    if (args->indices == NULL) {
        pass.repeats = (args->next_n + 1) / 2;
    } else if (i + 1 < args->batch && args->indices[i * args->indices_stride] == args->indices[(i + 1) * args->indices_stride]) {
        pass.entries = 2;
    }
    pass.first_atom = i * pass.repeats;
    const int64_t keys = args->lens[(i + pass.entries - 1) * args->lens_stride];
    pass.splits = keys > 0 ? (keys + SPLIT_KEYS - 1) / SPLIT_KEYS : 0;
    return pass;
}

/* Slots get total / num_slots splits each, and the last total % num_slots of them one more. A slot without work begins where the first
 * work is; when there is no work at all, every one begins at the end. */
dg_kernel_result dg_mqa_schedule_ref(const struct dg_mqa_schedule_args *args)
{
    int64_t total = 0;
    for (int64_t i = 0; i < args->batch;) {
        const struct pass pass = pass_at(args, i);
        total += pass.splits * pass.repeats;
        i += pass.entries;
    }
    const int64_t share = total / args->num_slots;
    const int64_t first_larger = args->num_slots - total % args->num_slots;

    int64_t before = 0; /* splits of the passes before this one */
    int64_t slot = 0;
    for (int64_t i = 0; i < args->batch;) {
        const struct pass pass = pass_at(args, i);
        const int64_t after = before + pass.splits * pass.repeats;
        for (; slot < args->num_slots; slot++) {
            const int64_t start = slot * share + (slot > first_larger ? slot - first_larger : 0);
            if (start >= after) {
                break;
            }
            args->schedule[2 * slot] = (int32_t)(pass.first_atom + (start - before) / pass.splits);
            args->schedule[2 * slot + 1] = (int32_t)((start - before) % pass.splits);
        }
        before = after;
        i += pass.entries;
    }
    const int64_t end = args->indices == NULL ? args->batch * ((args->next_n + 1) / 2) : args->batch;
    for (; slot <= args->num_slots; slot++) {
        args->schedule[2 * slot] = (int32_t)end;
        args->schedule[2 * slot + 1] = 0;
    }
    return 0;
}
