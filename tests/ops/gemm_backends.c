/* Every row of the GEMM table against the reference: types, scales, layouts, ragged sizes, c, gaps, NaN; the same bits for any
 * number of threads; nothing written outside of d; caller's floating-point modes without influence and left as they were.
 *
 * Rows that this machine cannot run are skipped, and named. Inputs repeat with prime periods, so that a wrong index shows.
 */
#include "check.h"
#include "core/context.h"
#include "core/dtype.h"
#include "ops/gemm.h"
#include "ops/run.h"

#include <fenv.h>
#include <math.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

enum layout { K_CONTIGUOUS, MN_CONTIGUOUS, PADDED, BACKWARDS };
enum c_form { NO_C, OTHER_C, D_IS_C };
enum special { NOTHING, NAN_CODES, NAN_SCALES, FAR_SCALES };

struct side_case {
    enum dg_gemm_type type;
    enum layout layout;
    enum dg_gemm_scale_type scale;
    int64_t gran_mn, gran_k;
};

struct gemm_case {
    const char *name;
    int64_t m, n, k;
    struct side_case a, b;
    enum dg_gemm_type d_type;
    enum c_form c;
    int64_t head_left, head_mid, head_right;
    enum special special;
};

/* Short words for the columns of the table of cases. */
#define BF16 DG_GEMM_BF16
#define F8 DG_GEMM_F8E4M3
#define F4 DG_GEMM_F4E2M1
#define F32 DG_GEMM_F32
#define NONE DG_SCALE_NONE
#define PLAIN DG_SCALE_F32
#define PACKED DG_SCALE_UE8M0

enum { GUARD = 64 }; /* bytes before and behind each allocation */

/* ---- memory ----------------------------------------------------------------------------------------------- */

struct block {
    uint8_t *memory;
    size_t bytes; /* between the guards */
};

static struct block block_new(size_t bytes)
{
    struct block block = {malloc(bytes + 2 * GUARD), bytes};
    memset(block.memory, 0xa5, bytes + 2 * GUARD);
    return block;
}

static void *block_data(struct block block)
{
    return block.memory + GUARD;
}

static bool block_guards_hold(struct block block)
{
    for (size_t i = 0; i < GUARD; i++) {
        if (block.memory[i] != 0xa5 || block.memory[GUARD + block.bytes + i] != 0xa5) {
            return false;
        }
    }
    return true;
}

/* ---- inputs ----------------------------------------------------------------------------------------------- */

static uint32_t state;

static uint32_t next_random(void)
{
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

/* An operand of rows x k elements, and the block that holds it. */
static struct dg_gemm_operand operand_new(const struct side_case *side, int64_t rows, int64_t k, enum special special, struct block *block)
{
    struct dg_gemm_operand x = {.type = side->type};
    const bool is_fp4 = side->type == DG_GEMM_F4E2M1;
    int64_t elements = 0;
    int64_t first = 0; /* index of element (0, 0) */
    switch (side->layout) {
    case K_CONTIGUOUS:
        x.stride_k = 1;
        x.stride_mn = is_fp4 ? k + k % 2 : k;
        elements = rows * x.stride_mn;
        break;
    case MN_CONTIGUOUS:
        x.stride_mn = 1;
        x.stride_k = is_fp4 ? rows + rows % 2 : rows;
        elements = k * x.stride_k;
        break;
    case PADDED: /* a view of wider rows */
        x.stride_k = is_fp4 ? 1 : 2;
        x.stride_mn = 2 * k + 6;
        elements = rows * x.stride_mn;
        break;
    case BACKWARDS: /* rows from the last to the first */
        x.stride_k = 1;
        x.stride_mn = -(k + k % 2 + 4);
        elements = -rows * x.stride_mn;
        first = elements + x.stride_mn;
        break;
    }
    const size_t bits = side->type == DG_GEMM_BF16 ? 16 : is_fp4 ? 4 : 8;
    *block = block_new(((size_t)elements * bits + 7) / 8 + 1);
    uint8_t *bytes = block_data(*block);
    for (int64_t i = 0; i < (int64_t)block->bytes; i++) {
        bytes[i] = (uint8_t)next_random();
    }
    for (int64_t i = 0; i < elements && side->type == DG_GEMM_F8E4M3; i++) {
        if ((bytes[i] & 0x7f) == 0x7f) {
            bytes[i] ^= 1;
        }
    }
    for (int64_t i = 0; i < elements && side->type == DG_GEMM_BF16; i++) {
        const float value = (float)((int)(next_random() % 2003) - 1001) / 256.0f;
        ((uint16_t *)(void *)bytes)[i] = dg_bf16_from_f32(value);
    }
    if (special == NAN_CODES && rows > 1 && k > 0) { /* in row 1, the last element of k */
        const int64_t index = first + x.stride_mn + (k - 1) * x.stride_k;
        if (side->type == DG_GEMM_F8E4M3) {
            bytes[index] = 0xff;
        } else if (side->type == DG_GEMM_BF16) {
            ((uint16_t *)(void *)bytes)[index] = 0x7fc0;
        }
    }
    x.data = bytes + (size_t)first * bits / 8;
    return x;
}

/* A float that is no power of two, or a code of UE8M0, near 1; or far from it, the other way on the other side. */
static float random_scale(enum special special, bool is_b)
{
    const float near_one = (float)(next_random() % 1009 + 1) / 512.0f;
    return special == FAR_SCALES ? ldexpf(near_one, is_b ? 90 : -90) : near_one;
}

static uint8_t random_exponent(enum special special, bool is_b)
{
    const uint32_t near = 120 + next_random() % 13;
    if (special == FAR_SCALES) {
        return is_b ? (uint8_t)(240 + next_random() % 15) : (uint8_t)(next_random() % 15);
    }
    return (uint8_t)near;
}

static struct dg_gemm_scale scale_new(const struct side_case *side, int64_t rows, int64_t k, enum special special, bool is_b,
                                      struct block *block)
{
    struct dg_gemm_scale s = {.type = side->scale, .gran_mn = 1, .gran_k = 1};
    *block = block_new(0);
    if (side->scale == DG_SCALE_NONE) {
        return s;
    }
    free(block->memory);
    s.gran_mn = side->gran_mn;
    s.gran_k = side->gran_k;
    const int64_t blocks_mn = (rows + s.gran_mn - 1) / s.gran_mn;
    const int64_t blocks_k = (k + s.gran_k - 1) / s.gran_k;
    const int64_t words_k = side->scale == DG_SCALE_UE8M0 ? (blocks_k + 3) / 4 : blocks_k;
    const bool is_mn_major = side->layout == MN_CONTIGUOUS;
    s.stride_mn = is_mn_major ? 1 : words_k;
    s.stride_k = is_mn_major ? (blocks_mn + 3) / 4 * 4 : 1;
    const int64_t words = is_mn_major ? words_k * s.stride_k : blocks_mn * words_k;
    *block = block_new((size_t)words * 4);
    for (int64_t i = 0; i < words; i++) {
        if (side->scale == DG_SCALE_F32) {
            ((float *)block_data(*block))[i] = random_scale(special, is_b);
        } else {
            uint32_t word = 0;
            for (int j = 0; j < 4; j++) {
                word |= (uint32_t)random_exponent(special, is_b) << (8 * j);
            }
            ((uint32_t *)block_data(*block))[i] = word;
        }
    }
    if (special == NAN_SCALES && words > 0) { /* the first block of the last row */
        const int64_t index = (blocks_mn - 1) * s.stride_mn;
        ((uint32_t *)block_data(*block))[index] |= side->scale == DG_SCALE_F32 ? 0x7fc00000u : 0xffu;
    }
    s.data = block_data(*block);
    return s;
}

/* ---- one case --------------------------------------------------------------------------------------------- */

struct instance {
    struct dg_gemm_args args;
    struct block blocks[6];
    int64_t d_columns; /* with gaps */
    int64_t d_elements;
};

static size_t d_size(const struct gemm_case *t)
{
    return t->d_type == DG_GEMM_F32 ? 4 : 2;
}

static struct instance instance_new(const struct gemm_case *t)
{
    state = 12345;
    struct instance x;
    memset(&x, 0, sizeof(x));
    struct dg_gemm_args *args = &x.args;
    args->m = t->m;
    args->n = t->n;
    args->k = t->k;
    args->a = operand_new(&t->a, t->m, t->k, t->special, &x.blocks[0]);
    args->b = operand_new(&t->b, t->n, t->k, t->special, &x.blocks[1]);
    args->sfa = scale_new(&t->a, t->m, t->k, t->special, false, &x.blocks[2]);
    args->sfb = scale_new(&t->b, t->n, t->k, t->special, true, &x.blocks[3]);
    args->head_left = t->head_left;
    args->head_mid = t->head_mid;
    args->head_right = t->head_right;
    x.d_columns = t->n + (t->head_mid > 0 ? t->n / (t->head_left + t->head_right) * t->head_mid : 0);
    args->d_type = t->d_type;
    args->d_stride_m = x.d_columns + 5; /* the five hold guard words */
    args->d_stride_n = 1;
    x.d_elements = t->m * args->d_stride_m;
    x.blocks[4] = block_new((size_t)x.d_elements * d_size(t));
    args->d = block_data(x.blocks[4]);
    x.blocks[5] = block_new((size_t)(t->m * t->n) * d_size(t));
    return x;
}

/* Puts d, and c, back to what they were before the first run. */
static void instance_reset(const struct gemm_case *t, struct instance *x)
{
    memset(block_data(x->blocks[4]), 0xa5, x->blocks[4].bytes);
    struct dg_gemm_args *args = &x->args;
    args->c = NULL;
    if (t->c == NO_C) {
        return;
    }
    const bool is_d = t->c == D_IS_C;
    args->c = is_d ? args->d : block_data(x->blocks[5]);
    args->c_stride_m = is_d ? args->d_stride_m : 1; /* the other c is transposed */
    args->c_stride_n = is_d ? 1 : t->m;
    void *c = is_d ? args->d : block_data(x->blocks[5]);
    for (int64_t i = 0; i < t->m; i++) {
        for (int64_t j = 0; j < t->n; j++) {
            const float value = (float)((i * 31 + j * 17) % 101 - 50);
            const int64_t index = i * args->c_stride_m + j * args->c_stride_n;
            if (t->d_type == DG_GEMM_F32) {
                ((float *)c)[index] = value;
            } else {
                ((uint16_t *)c)[index] = dg_bf16_from_f32(value);
            }
        }
    }
}

static void instance_free(struct instance *x)
{
    for (int i = 0; i < 6; i++) {
        free(x->blocks[i].memory);
    }
}

/* Runs a row as its operator would, on `threads` threads. Returns d, a copy. */
static uint8_t *run_row(const struct gemm_case *t, struct instance *x, const struct dg_gemm_backend *row, int32_t threads)
{
    instance_reset(t, x);
    dg_context *ctx;
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.num_threads = threads;
    CHECK_INT(dg_context_create(&options, &ctx), DG_OK);
    struct dg_run run;
    const dg_device cpu = {DG_CPU, 0};
    dg_run_prepare(&run, t->name, ctx, cpu, &x->args.exec);
    CHECK(row->can_run(&x->args));
    CHECK_INT(dg_run_begin(&run, row->workspace != NULL ? row->workspace(&x->args) : 0, &x->args.exec), DG_OK);
    CHECK_INT(dg_run_end(&run, row->run(&x->args)), DG_OK);
    dg_context_destroy(ctx);

    for (int i = 0; i < 6; i++) {
        CHECK(block_guards_hold(x->blocks[i]));
    }
    uint8_t *copy = malloc(x->blocks[4].bytes + 1);
    memcpy(copy, block_data(x->blocks[4]), x->blocks[4].bytes);
    return copy;
}

static double d_at(const struct gemm_case *t, const uint8_t *d, int64_t index)
{
    if (t->d_type == DG_GEMM_F32) {
        float value;
        memcpy(&value, d + 4 * index, 4);
        return (double)value;
    }
    uint16_t code;
    memcpy(&code, d + 2 * index, 2);
    return (double)dg_f32_from_bf16(code);
}

static bool is_gap(const struct gemm_case *t, const struct instance *x, int64_t column)
{
    if (column >= x->d_columns) {
        return true;
    }
    if (t->head_mid == 0) {
        return false;
    }
    const int64_t within = column % (t->head_left + t->head_mid + t->head_right);
    return within >= t->head_left && within < t->head_left + t->head_mid;
}

/* d against the reference: norm-wise 1e-6; bf16 elements beside that half a unit of their last place more; the same NaN; untouched gaps. */
static void compare(const struct gemm_case *t, const struct instance *x, const uint8_t *got, const uint8_t *expected)
{
    double norm = 0;
    int64_t counted = 0;
    for (int64_t i = 0; i < x->d_elements; i++) {
        const double value = d_at(t, expected, i);
        if (!is_gap(t, x, i % x->args.d_stride_m) && isfinite(value)) {
            norm += value * value;
            counted++;
        }
    }
    const double typical = counted > 0 ? sqrt(norm / (double)counted) : 0;
    double error = 0;
    int64_t wrong = 0;
    int64_t first_wrong = -1;
    for (int64_t i = 0; i < x->d_elements; i++) {
        const size_t size = d_size(t);
        if (is_gap(t, x, i % x->args.d_stride_m)) {
            const uint8_t untouched[4] = {0xa5, 0xa5, 0xa5, 0xa5};
            if (memcmp(got + (size_t)i * size, untouched, size) != 0) {
                wrong++;
                first_wrong = first_wrong < 0 ? i : first_wrong;
            }
            continue;
        }
        const double a = d_at(t, got, i);
        const double b = d_at(t, expected, i);
        if (!isfinite(a) || !isfinite(b)) {
            const bool is_same = isnan(b) ? isnan(a) : a == b;
            if (!is_same) {
                wrong++;
                first_wrong = first_wrong < 0 ? i : first_wrong;
            }
            continue;
        }
        error += (a - b) * (a - b);
        const double allowed = t->d_type == DG_GEMM_F32 ? 1e-5 * typical : ldexp(fabs(b), -7) + 1e-5 * typical;
        if (fabs(a - b) > allowed) {
            wrong++;
            first_wrong = first_wrong < 0 ? i : first_wrong;
        }
    }
    const double relative = norm > 0 ? sqrt(error / norm) : error;
    const bool is_close = t->d_type == DG_GEMM_F32 ? relative < 1e-6 : relative < 2e-3;
    if (!CHECK(wrong == 0) || !CHECK(is_close)) {
        const int64_t i = first_wrong < 0 ? 0 : first_wrong;
        fprintf(stderr, "    %s: relative error %.3g, %" PRId64 " wrong elements, d[%" PRId64 ", %" PRId64 "] is %g, expected %g\n", t->name,
                relative, wrong, i / x->args.d_stride_m, i % x->args.d_stride_m, d_at(t, got, i), d_at(t, expected, i));
    }
}

static void check_case(const struct gemm_case *t, const struct dg_gemm_backend *row)
{
    struct instance x = instance_new(t);
    instance_reset(t, &x);
    if (!row->can_run(&x.args)) {
        printf("    %s does not take %s\n", row->name, t->name);
        instance_free(&x);
        return;
    }
    const struct dg_gemm_backend ref_row = {"ref", DG_CPU, row->can_run, NULL, dg_gemm_ref, NULL};
    uint8_t *expected = run_row(t, &x, &ref_row, 1);
    uint8_t *one_thread = run_row(t, &x, row, 1);
    uint8_t *five_threads = run_row(t, &x, row, 5);
    compare(t, &x, one_thread, expected);
    CHECK(memcmp(one_thread, five_threads, x.blocks[4].bytes) == 0);

#if defined(__SSE2__)
    /* A caller that flushes subnormals and rounds down. */
    const unsigned before = _mm_getcsr();
    fesetround(FE_DOWNWARD);
    _mm_setcsr(_mm_getcsr() | 0x8040u);
    const unsigned caller = _mm_getcsr();
    uint8_t *other_modes = run_row(t, &x, row, 2);
    CHECK_INT(_mm_getcsr() & ~0x3fu, caller & ~0x3fu);
    fesetround(FE_TONEAREST);
    _mm_setcsr(before);
    CHECK(memcmp(one_thread, other_modes, x.blocks[4].bytes) == 0);
    free(other_modes);
#endif
    free(expected);
    free(one_thread);
    free(five_threads);
    instance_free(&x);
}

/* ---- the cases -------------------------------------------------------------------------------------------- */

/* clang-format off */
static const struct gemm_case cases[] = {
    /* the usual recipes */
    {"fp8 1D2D",            33, 200, 384, {F8, K_CONTIGUOUS, PLAIN, 1, 128},  {F8, K_CONTIGUOUS, PLAIN, 128, 128}, BF16, NO_C, 0, 0, 0, NOTHING},
    {"fp8 1D2D f32",        33, 200, 384, {F8, K_CONTIGUOUS, PLAIN, 1, 128},  {F8, K_CONTIGUOUS, PLAIN, 128, 128}, F32, NO_C, 0, 0, 0, NOTHING},
    {"fp8 1D1D f32 +=",     40, 70, 512,  {F8, K_CONTIGUOUS, PLAIN, 1, 128},  {F8, K_CONTIGUOUS, PLAIN, 1, 128},   F32, D_IS_C, 0, 0, 0, NOTHING},
    {"fp8 packed",          17, 65, 640,  {F8, K_CONTIGUOUS, PACKED, 1, 128}, {F8, K_CONTIGUOUS, PACKED, 1, 128},  F32, NO_C, 0, 0, 0, NOTHING},
    {"fp8 packed gran 32",  17, 65, 352,  {F8, MN_CONTIGUOUS, PACKED, 1, 32}, {F8, K_CONTIGUOUS, PACKED, 1, 32},   F32, OTHER_C, 0, 0, 0, NOTHING},
    {"fp8 x fp4",           12, 66, 256,  {F8, K_CONTIGUOUS, PACKED, 1, 128}, {F4, K_CONTIGUOUS, PACKED, 1, 32},   F32, NO_C, 0, 0, 0, NOTHING},
    {"fp4 x fp4",           31, 34, 320,  {F4, K_CONTIGUOUS, PLAIN, 1, 32},   {F4, MN_CONTIGUOUS, PACKED, 1, 32},  F32, NO_C, 0, 0, 0, NOTHING},
    {"fp4 x fp8 tn",        30, 37, 129,  {F4, MN_CONTIGUOUS, PLAIN, 1, 128}, {F8, MN_CONTIGUOUS, PLAIN, 1, 128},  BF16, OTHER_C, 0, 0, 0, NOTHING},
    {"bf16",                33, 70, 257,  {BF16, K_CONTIGUOUS, NONE, 1, 1},   {BF16, K_CONTIGUOUS, NONE, 1, 1},    F32, NO_C, 0, 0, 0, NOTHING},
    {"bf16 nn",             33, 70, 100,  {BF16, K_CONTIGUOUS, NONE, 1, 1},   {BF16, MN_CONTIGUOUS, NONE, 1, 1},   BF16, OTHER_C, 0, 0, 0, NOTHING},
    {"bf16 tt",             64, 48, 96,   {BF16, MN_CONTIGUOUS, NONE, 1, 1},  {BF16, K_CONTIGUOUS, NONE, 1, 1},    F32, D_IS_C, 0, 0, 0, NOTHING},
    {"bf16 tn",             19, 23, 300,  {BF16, MN_CONTIGUOUS, NONE, 1, 1},  {BF16, MN_CONTIGUOUS, NONE, 1, 1},   BF16, D_IS_C, 0, 0, 0, NOTHING},

    /* few rows, and one of everything */
    {"fp8 m = 1",           1, 300, 1000, {F8, K_CONTIGUOUS, PLAIN, 1, 128},  {F8, K_CONTIGUOUS, PLAIN, 128, 128}, F32, NO_C, 0, 0, 0, NOTHING},
    {"fp8 m = 4",           4, 129, 513,  {F8, K_CONTIGUOUS, PLAIN, 1, 128},  {F8, K_CONTIGUOUS, PLAIN, 128, 128}, BF16, NO_C, 0, 0, 0, NOTHING},
    {"fp8 m = 9",           9, 77, 131,   {F8, K_CONTIGUOUS, PLAIN, 1, 128},  {F8, K_CONTIGUOUS, PLAIN, 128, 128}, F32, NO_C, 0, 0, 0, NOTHING},
    {"bf16 m = 1",          1, 300, 1000, {BF16, K_CONTIGUOUS, NONE, 1, 1},   {BF16, K_CONTIGUOUS, NONE, 1, 1},    F32, NO_C, 0, 0, 0, NOTHING},
    {"bf16 n = 1",          70, 1, 515,   {BF16, K_CONTIGUOUS, NONE, 1, 1},   {BF16, K_CONTIGUOUS, NONE, 1, 1},    F32, NO_C, 0, 0, 0, NOTHING},
    {"fp8 1 x 1 x 1",       1, 1, 1,      {F8, K_CONTIGUOUS, PLAIN, 1, 128},  {F8, K_CONTIGUOUS, PLAIN, 128, 128}, F32, NO_C, 0, 0, 0, NOTHING},
    {"fp8 n = 1",           50, 1, 300,   {F8, K_CONTIGUOUS, PLAIN, 1, 128},  {F8, K_CONTIGUOUS, PLAIN, 128, 128}, BF16, NO_C, 0, 0, 0, NOTHING},
    {"fp8 k = 0",           5, 7, 0,      {F8, K_CONTIGUOUS, PLAIN, 1, 128},  {F8, K_CONTIGUOUS, PLAIN, 128, 128}, F32, NO_C, 0, 0, 0, NOTHING},
    {"fp8 k = 0 with c",    5, 7, 0,      {F8, K_CONTIGUOUS, PLAIN, 1, 128},  {F8, K_CONTIGUOUS, PLAIN, 128, 128}, BF16, OTHER_C, 0, 0, 0, NOTHING},
    {"bf16 k = 0",          5, 7, 0,      {BF16, K_CONTIGUOUS, NONE, 1, 1},   {BF16, K_CONTIGUOUS, NONE, 1, 1},    BF16, NO_C, 0, 0, 0, NOTHING},

    /* other granularities, also such that blocks of a and b do not line up */
    {"gran 7 x 5 and 3 x 11", 25, 31, 97, {F8, K_CONTIGUOUS, PLAIN, 7, 5},    {F8, K_CONTIGUOUS, PLAIN, 3, 11},    F32, NO_C, 0, 0, 0, NOTHING},
    {"gran 1 x 1",          10, 20, 70,   {F8, K_CONTIGUOUS, PLAIN, 1, 1},    {F8, K_CONTIGUOUS, PACKED, 1, 1},    F32, NO_C, 0, 0, 0, NOTHING},
    {"gran larger than all", 10, 20, 70,  {F8, K_CONTIGUOUS, PLAIN, 1 << 30, 1 << 30}, {F8, K_CONTIGUOUS, PACKED, 64, 1 << 30}, F32, NO_C, 0, 0, 0, NOTHING},
    {"gran 128 and 32",     20, 40, 300,  {F8, K_CONTIGUOUS, PLAIN, 1, 128},  {F8, K_CONTIGUOUS, PLAIN, 128, 32},  F32, NO_C, 0, 0, 0, NOTHING},

    /* views */
    {"padded views",        21, 45, 200,  {F8, PADDED, PLAIN, 1, 128},        {F8, PADDED, PLAIN, 128, 128},       F32, OTHER_C, 0, 0, 0, NOTHING},
    {"padded bf16 views",   21, 45, 200,  {BF16, PADDED, NONE, 1, 1},         {BF16, PADDED, NONE, 1, 1},          F32, OTHER_C, 0, 0, 0, NOTHING},
    {"padded fp4 views",    21, 45, 200,  {F4, PADDED, PLAIN, 1, 128},        {F4, PADDED, PLAIN, 128, 128},       F32, OTHER_C, 0, 0, 0, NOTHING},
    {"backwards",           21, 45, 200,  {F8, BACKWARDS, PLAIN, 1, 128},     {BF16, BACKWARDS, NONE, 1, 1},       F32, NO_C, 0, 0, 0, NOTHING},

    /* gaps */
    {"gaps",                19, 90, 256,  {F8, K_CONTIGUOUS, PLAIN, 1, 128},  {F8, K_CONTIGUOUS, PLAIN, 128, 128}, BF16, NO_C, 10, 7, 5, NOTHING},
    {"gaps without a left", 3, 96, 130,   {F8, K_CONTIGUOUS, PLAIN, 1, 128},  {F8, K_CONTIGUOUS, PLAIN, 128, 128}, F32, NO_C, 0, 3, 16, NOTHING},
    {"gaps without a right", 40, 128, 130, {F8, K_CONTIGUOUS, PLAIN, 1, 128}, {F8, K_CONTIGUOUS, PLAIN, 128, 128}, F32, NO_C, 64, 64, 0, NOTHING},

    /* NaN stays NaN, and spreads no further than its row or column; scales at both ends of their range */
    {"NaN codes",           20, 40, 256,  {F8, K_CONTIGUOUS, PLAIN, 1, 128},  {F8, K_CONTIGUOUS, PLAIN, 128, 128}, F32, NO_C, 0, 0, 0, NAN_CODES},
    {"NaN codes, few rows", 3, 40, 256,   {F8, K_CONTIGUOUS, PLAIN, 1, 128},  {F8, K_CONTIGUOUS, PLAIN, 128, 128}, BF16, NO_C, 0, 0, 0, NAN_CODES},
    {"NaN codes tn",        20, 40, 256,  {F8, MN_CONTIGUOUS, PLAIN, 1, 128}, {F8, MN_CONTIGUOUS, PLAIN, 1, 128},  F32, NO_C, 0, 0, 0, NAN_CODES},
    {"NaN in bf16",         20, 40, 256,  {BF16, K_CONTIGUOUS, NONE, 1, 1},   {BF16, K_CONTIGUOUS, NONE, 1, 1},    F32, NO_C, 0, 0, 0, NAN_CODES},
    {"NaN scales",          20, 200, 256, {F8, K_CONTIGUOUS, PLAIN, 1, 128},  {F8, K_CONTIGUOUS, PLAIN, 128, 128}, F32, NO_C, 0, 0, 0, NAN_SCALES},
    {"NaN packed scales",   20, 40, 256,  {F8, K_CONTIGUOUS, PACKED, 1, 128}, {F8, K_CONTIGUOUS, PACKED, 1, 128},  F32, NO_C, 0, 0, 0, NAN_SCALES},
    {"far scales",          20, 200, 256, {F8, K_CONTIGUOUS, PLAIN, 1, 128},  {F8, K_CONTIGUOUS, PLAIN, 128, 128}, F32, NO_C, 0, 0, 0, FAR_SCALES},
    {"far scales, few rows", 2, 200, 256, {F8, K_CONTIGUOUS, PLAIN, 1, 128},  {F8, K_CONTIGUOUS, PLAIN, 128, 128}, F32, NO_C, 0, 0, 0, FAR_SCALES},
    {"far packed scales",   20, 40, 256,  {F8, K_CONTIGUOUS, PACKED, 1, 128}, {F8, K_CONTIGUOUS, PACKED, 1, 128},  F32, NO_C, 0, 0, 0, FAR_SCALES},
    {"far packed fp4",      2, 40, 256,   {F4, K_CONTIGUOUS, PACKED, 1, 32},  {F4, K_CONTIGUOUS, PACKED, 1, 32},   F32, NO_C, 0, 0, 0, FAR_SCALES},

    /* long k: one f32 chain per element would miss 1e-6 */
    {"fp8 long k",          5, 33, 16384, {F8, K_CONTIGUOUS, PLAIN, 1, 128},  {F8, K_CONTIGUOUS, PLAIN, 128, 128}, F32, NO_C, 0, 0, 0, NOTHING},
    {"fp8 long k, rows",    40, 33, 8192, {F8, K_CONTIGUOUS, PLAIN, 1, 128},  {F8, K_CONTIGUOUS, PLAIN, 128, 128}, F32, NO_C, 0, 0, 0, NOTHING},
    {"bf16 long k",         20, 33, 8192, {BF16, K_CONTIGUOUS, NONE, 1, 1},   {BF16, K_CONTIGUOUS, NONE, 1, 1},    F32, NO_C, 0, 0, 0, NOTHING},
};
/* clang-format on */

int main(void)
{
    const dg_device cpu = {DG_CPU, 0};
    for (size_t r = 0; r < dg_gemm_backends_count; r++) {
        const struct dg_gemm_backend *row = &dg_gemm_backends[r];
        if (row->device_type != DG_CPU) {
            continue;
        }
        if (!dg_backend_available(row->name, cpu)) {
            printf("skipped: %s, which this machine cannot run\n", row->name);
            continue;
        }
        const long failed = checks_failed;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            check_case(&cases[i], row);
        }
        printf("%s: %zu cases, %ld failed checks\n", row->name, sizeof(cases) / sizeof(cases[0]), checks_failed - failed);
    }
    return check_report("ops.gemm_backends");
}
