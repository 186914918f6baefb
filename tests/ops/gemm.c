/* The dense GEMM operators, called as a user calls them: the four layouts are one product, recipes choose the blocks, every form of FP4
 * is taken, and a row can be forced by name. That the rows compute the same is the matter of gemm_backends.c.
 */
#include "check.h"
#include "deep_gemm/deep_gemm.h"

#include <math.h>
#include <pthread.h>

enum { M = 5, N = 6, K = 256 };

static uint8_t a_codes[M * K];
static uint8_t b_codes[N * K];
static float sfa[M * 8]; /* [M, 2], and room for granularity 32 */
static float sfb[N * 8];
static float d[M * N];

/* FP8 codes of -1.875 .. 1.875, without NaN. */
static void fill_codes(uint8_t *codes, int count, int period)
{
    for (int i = 0; i < count; i++) {
        codes[i] = (uint8_t)(i % period * 2 % 0x40 | (i % 3 == 0 ? 0x80 : 0));
    }
}

static void fill_all(void)
{
    fill_codes(a_codes, M * K, 31);
    fill_codes(b_codes, N * K, 29);
    for (int i = 0; i < M * 8; i++) {
        sfa[i] = (float)(i % 7 + 1);
    }
    for (int i = 0; i < N * 8; i++) {
        sfb[i] = (float)(i % 5 + 1);
    }
}

/* The value of a code below 2, by its definition. */
static double value_of(uint8_t code)
{
    const int exponent = code >> 3 & 15;
    const double fraction = (code & 7) / 8.0;
    const double magnitude = exponent == 0 ? ldexp(fraction, -6) : ldexp(1 + fraction, exponent - 7);
    return code & 0x80 ? -magnitude : magnitude;
}

/* d[i, j] for scales in blocks of gran_mn_b rows of b, one row of a, and gran_k. */
static double expected_at(int i, int j, int gran_mn_b, int gran_k)
{
    const int blocks = (K + gran_k - 1) / gran_k;
    double sum = 0;
    for (int k = 0; k < K; k++) {
        sum += value_of(a_codes[i * K + k]) * (double)sfa[i * blocks + k / gran_k] * value_of(b_codes[j * K + k]) *
               (double)sfb[j / gran_mn_b * blocks + k / gran_k];
    }
    return sum;
}

/* Norm-wise error of d, [M, N]. */
static double error_of(const float *got, int gran_mn_b, int gran_k)
{
    double error = 0;
    double norm = 0;
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) {
            const double expected = expected_at(i, j, gran_mn_b, gran_k);
            const double difference = (double)got[i * N + j] - expected;
            error += difference * difference;
            norm += expected * expected;
        }
    }
    return sqrt(error / norm);
}

/* A matrix; its arrays live as long as the object. */
struct matrix {
    dg_tensor tensor;
    int64_t shape[2];
    int64_t strides[2];
};

static void matrix_init(struct matrix *x, void *data, dg_dtype dtype, int64_t rows, int64_t columns)
{
    *x = (struct matrix){{data, {DG_CPU, 0}, 2, dtype, NULL, NULL, 0}, {rows, columns}, {columns, 1}};
    x->tensor.shape = x->shape;
    x->tensor.strides = x->strides;
}

/* The same memory, seen as its transpose. */
static void matrix_transpose(struct matrix *x)
{
    for (int i = 0; i < 2; i++) {
        int64_t *pair = i == 0 ? x->shape : x->strides;
        const int64_t first = pair[0];
        pair[0] = pair[1];
        pair[1] = first;
    }
}

struct call {
    struct matrix a, sfa, b, sfb, d;
};

static void call_init(struct call *call, int64_t sfb_rows, int64_t k_blocks)
{
    const dg_dtype fp8 = {DG_F8E4M3};
    const dg_dtype f32 = {DG_F32};
    matrix_init(&call->a, a_codes, fp8, M, K);
    matrix_init(&call->sfa, sfa, f32, M, k_blocks);
    matrix_init(&call->b, b_codes, fp8, N, K);
    matrix_init(&call->sfb, sfb, f32, sfb_rows, k_blocks);
    matrix_init(&call->d, d, f32, M, N);
    for (int i = 0; i < M * N; i++) {
        d[i] = -1;
    }
}

static void check_layouts(void)
{
    struct call x;
    call_init(&x, 1, 2);
    CHECK_INT(dg_fp8_fp4_gemm_nt(NULL, &x.a.tensor, &x.sfa.tensor, &x.b.tensor, &x.sfb.tensor, &x.d.tensor, NULL), DG_OK);
    CHECK(error_of(d, 128, 128) < 1e-6);

    call_init(&x, 1, 2);
    matrix_transpose(&x.b);
    matrix_transpose(&x.sfb);
    CHECK_INT(dg_fp8_fp4_gemm_nn(NULL, &x.a.tensor, &x.sfa.tensor, &x.b.tensor, &x.sfb.tensor, &x.d.tensor, NULL), DG_OK);
    CHECK(error_of(d, 128, 128) < 1e-6);

    call_init(&x, 1, 2);
    matrix_transpose(&x.a);
    matrix_transpose(&x.sfa);
    matrix_transpose(&x.b);
    matrix_transpose(&x.sfb);
    CHECK_INT(dg_fp8_fp4_gemm_tn(NULL, &x.a.tensor, &x.sfa.tensor, &x.b.tensor, &x.sfb.tensor, &x.d.tensor, NULL), DG_OK);
    CHECK(error_of(d, 128, 128) < 1e-6);

    call_init(&x, 1, 2);
    matrix_transpose(&x.a);
    matrix_transpose(&x.sfa);
    CHECK_INT(dg_fp8_fp4_gemm_tt(NULL, &x.a.tensor, &x.sfa.tensor, &x.b.tensor, &x.sfb.tensor, &x.d.tensor, NULL), DG_OK);
    CHECK(error_of(d, 128, 128) < 1e-6);
}

static void check_recipes(void)
{
    dg_fp8_fp4_gemm_nt_options options = DG_FP8_FP4_GEMM_NT_OPTIONS_INIT;
    struct call x;
    options.recipe = (dg_opt_int3){true, {1, 1, 128}};
    call_init(&x, N, 2);
    CHECK_INT(dg_fp8_fp4_gemm_nt(NULL, &x.a.tensor, &x.sfa.tensor, &x.b.tensor, &x.sfb.tensor, &x.d.tensor, &options), DG_OK);
    CHECK(error_of(d, 1, 128) < 1e-6);

    options.recipe_a = (dg_opt_int2){true, {1, 32}}; /* takes precedence for its operand */
    options.recipe_b = (dg_opt_int2){true, {2, 32}};
    call_init(&x, N / 2, 8);
    CHECK_INT(dg_fp8_fp4_gemm_nt(NULL, &x.a.tensor, &x.sfa.tensor, &x.b.tensor, &x.sfb.tensor, &x.d.tensor, &options), DG_OK);
    CHECK(error_of(d, 2, 32) < 1e-6);

    /* packed scales, no recipe: (1, 1, 128). Blocks 0 and 1 in the two low bytes. */
    int32_t words_a[M];
    int32_t words_b[N];
    for (int i = 0; i < M; i++) {
        sfa[i * 2] = 2;
        sfa[i * 2 + 1] = 0.5f;
        words_a[i] = 128 | 126 << 8;
    }
    for (int j = 0; j < N; j++) {
        sfb[j * 2] = ldexpf(1, j);
        sfb[j * 2 + 1] = 4;
        words_b[j] = (127 + j) | 129 << 8;
    }
    call_init(&x, N, 2);
    matrix_init(&x.sfa, words_a, (dg_dtype){DG_I32}, M, 1);
    matrix_init(&x.sfb, words_b, (dg_dtype){DG_I32}, N, 1);
    CHECK_INT(dg_fp8_fp4_gemm_nt(NULL, &x.a.tensor, &x.sfa.tensor, &x.b.tensor, &x.sfb.tensor, &x.d.tensor, NULL), DG_OK);
    CHECK(error_of(d, 1, 128) < 1e-6);
    fill_all();
}

/* [1, 4] by [1, 4]: 0.5 1 1.5 2 and 1 2 3 4, each form of FP4, along the row and, given transposed, along the column. */
static void check_fp4(void)
{
    uint8_t a_pairs[2] = {0x21, 0x43};
    uint8_t b_pairs[2] = {0x42, 0x65};
    float one = 1;
    float result;
    const dg_dtype forms[] = {{DG_U8}, {DG_I8}, {DG_F4E2M1X2}, {DG_F4E2M1}};
    for (int form_a = 0; form_a < 4; form_a++) {
        for (int form_b = 0; form_b < 4; form_b++) {
            struct matrix a, b, scale_a, scale_b, out;
            matrix_init(&a, a_pairs, forms[form_a], 1, form_a == 3 ? 4 : 2);
            matrix_init(&b, b_pairs, forms[form_b], 1, form_b == 3 ? 4 : 2);
            matrix_init(&scale_a, &one, (dg_dtype){DG_F32}, 1, 1);
            matrix_init(&scale_b, &one, (dg_dtype){DG_F32}, 1, 1);
            matrix_init(&out, &result, (dg_dtype){DG_F32}, 1, 1);
            result = -1;
            CHECK_INT(dg_fp8_fp4_gemm_nt(NULL, &a.tensor, &scale_a.tensor, &b.tensor, &scale_b.tensor, &out.tensor, NULL), DG_OK);
            CHECK(result == 0.5f + 2 + 4.5f + 8);
            matrix_transpose(&a);
            matrix_transpose(&b);
            result = -1;
            CHECK_INT(dg_fp8_fp4_gemm_tn(NULL, &a.tensor, &scale_a.tensor, &b.tensor, &scale_b.tensor, &out.tensor, NULL), DG_OK);
            CHECK(result == 0.5f + 2 + 4.5f + 8);
        }
    }
}

static void check_gaps(void)
{
    /* heads of 2 + 1 columns with a gap of 2 */
    float wide[M * (N + 4)];
    for (int i = 0; i < M * (N + 4); i++) {
        wide[i] = -1;
    }
    struct call x;
    call_init(&x, 1, 2);
    matrix_init(&x.d, wide, (dg_dtype){DG_F32}, M, N + 4);
    const int64_t head_splits[3] = {2, 2, 1};
    CHECK_INT(dg_fp8_gemm_nt_skip_head_mid(NULL, &x.a.tensor, &x.sfa.tensor, &x.b.tensor, &x.sfb.tensor, &x.d.tensor, head_splits, NULL),
              DG_OK);
    const int columns[N] = {0, 1, 4, 5, 6, 9};
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) {
            d[i * N + j] = wide[i * (N + 4) + columns[j]];
        }
        CHECK(wide[i * (N + 4) + 2] == -1 && wide[i * (N + 4) + 3] == -1);
        CHECK(wide[i * (N + 4) + 7] == -1 && wide[i * (N + 4) + 8] == -1);
    }
    CHECK(error_of(d, 128, 128) < 1e-6);
}

/* a [2, 3], b [2, 3] of small numbers; the product is [14, 32], [32, 77]. */
static void check_bf16(void)
{
    uint16_t numbers[6] = {0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0}; /* 1 .. 6 */
    const dg_dtype bf16 = {DG_BF16};
    uint16_t out[4];
    struct matrix a, b, result;
    const uint16_t expected[4] = {0x4160, 0x4200, 0x4200, 0x429a};
    for (int form = 0; form < 4; form++) {
        matrix_init(&a, numbers, bf16, 2, 3);
        matrix_init(&b, numbers, bf16, 2, 3);
        matrix_init(&result, out, bf16, 2, 2);
        memset(out, 0xff, sizeof(out));
        if (form & 1) {
            matrix_transpose(&a);
        }
        if (form & 2) {
            matrix_transpose(&b);
        }
        const dg_tensor *x = &a.tensor;
        const dg_tensor *y = &b.tensor;
        dg_tensor *z = &result.tensor;
        CHECK_INT(form == 0   ? dg_bf16_gemm_nt(NULL, x, y, z, NULL)
                  : form == 1 ? dg_bf16_gemm_tt(NULL, x, y, z, NULL)
                  : form == 2 ? dg_bf16_gemm_nn(NULL, x, y, z, NULL)
                              : dg_bf16_gemm_tn(NULL, x, y, z, NULL),
                  DG_OK);
        CHECK(memcmp(out, expected, sizeof(out)) == 0);
    }

    /* accumulate into d, twice */
    float sum[4] = {0};
    matrix_init(&a, numbers, bf16, 2, 3);
    matrix_init(&b, numbers, bf16, 2, 3);
    matrix_init(&result, sum, (dg_dtype){DG_F32}, 2, 2);
    dg_bf16_gemm_nt_options options = DG_BF16_GEMM_NT_OPTIONS_INIT;
    options.c = &result.tensor;
    CHECK_INT(dg_bf16_gemm_nt(NULL, &a.tensor, &b.tensor, &result.tensor, &options), DG_OK);
    CHECK_INT(dg_bf16_gemm_nt(NULL, &a.tensor, &b.tensor, &result.tensor, &options), DG_OK);
    CHECK(sum[0] == 28 && sum[1] == 64 && sum[3] == 154);

    /* k = 0: d is c, or zeros; m = 0 or n = 0: nothing, and data may be NULL */
    float c_data[4] = {1, -2, 3, -4};
    struct matrix c;
    matrix_init(&c, c_data, (dg_dtype){DG_F32}, 2, 2);
    matrix_init(&a, NULL, bf16, 2, 0);
    matrix_init(&b, NULL, bf16, 2, 0);
    options.c = &c.tensor;
    CHECK_INT(dg_bf16_gemm_nt(NULL, &a.tensor, &b.tensor, &result.tensor, &options), DG_OK);
    CHECK(memcmp(sum, c_data, sizeof(sum)) == 0);
    CHECK_INT(dg_bf16_gemm_nt(NULL, &a.tensor, &b.tensor, &result.tensor, NULL), DG_OK);
    CHECK(sum[0] == 0 && sum[3] == 0);
    sum[0] = 9;
    matrix_init(&a, NULL, bf16, 0, 3);
    matrix_init(&b, numbers, bf16, 2, 3);
    matrix_init(&result, NULL, (dg_dtype){DG_F32}, 0, 2);
    CHECK_INT(dg_bf16_gemm_nt(NULL, &a.tensor, &b.tensor, &result.tensor, NULL), DG_OK);
    CHECK(sum[0] == 9);
}

/* ---- rows by name ----------------------------------------------------------------------------------------- */

static dg_status run_on(const char *backend, int32_t threads)
{
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.backend = backend;
    options.num_threads = threads;
    dg_context *ctx;
    dg_status status = dg_context_create(&options, &ctx);
    if (status != DG_OK) {
        return status;
    }
    struct call x;
    call_init(&x, 1, 2);
    status = dg_fp8_fp4_gemm_nt(ctx, &x.a.tensor, &x.sfa.tensor, &x.b.tensor, &x.sfb.tensor, &x.d.tensor, NULL);
    dg_context_destroy(ctx);
    return status;
}

static void check_rows(void)
{
    const char *const *backends = dg_find_operator("fp8_fp4_gemm_nt")->backends;
    const dg_device cpu = {DG_CPU, 0};
    for (int i = 0; backends[i] != NULL; i++) {
        if (dg_backend_available(backends[i], cpu)) {
            CHECK_INT(run_on(backends[i], 3), DG_OK);
            CHECK(error_of(d, 128, 128) < 1e-6);
            continue;
        }
        CHECK_INT(run_on(backends[i], 3), DG_ERR_NOT_SUPPORTED);
        CHECK_CONTAINS(dg_last_error(), backends[i]);
        CHECK_CONTAINS(dg_last_error(), "ref");
        CHECK(d[0] == -1);
    }
    CHECK_INT(run_on("avx1024", 3), DG_ERR_NOT_SUPPORTED);
    CHECK_TEXT(dg_last_error(), "dg_context_create: options->backend is \"avx1024\", expected one of ref, avx2, avx512, amx, sm80 or sm90");

    /* an operator without the row */
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.backend = "avx2";
    dg_context *ctx;
    CHECK_INT(dg_context_create(&options, &ctx), DG_OK);
    float scales[2] = {1, 2};
    float copy[8];
    struct matrix sf, out;
    matrix_init(&sf, scales, (dg_dtype){DG_F32}, 2, 1);
    matrix_init(&out, copy, (dg_dtype){DG_F32}, 2, 1);
    out.strides[0] = 1;
    CHECK_INT(dg_get_mn_major_tma_aligned_tensor(ctx, &sf.tensor, &out.tensor), DG_ERR_NOT_SUPPORTED);
    CHECK_TEXT(dg_last_error(), "get_mn_major_tma_aligned_tensor: has no CPU row \"avx2\", which dg_context_options.backend asks for; the "
                                "CPU rows are ref");
    dg_context_destroy(ctx);
}

/* ---- contexts shared by threads, own loops and allocators -------------------------------------------------- */

struct counts {
    int loops;
    int allocations;
    int frees;
};

static void count_loop(void *user, int64_t count, int64_t grain, dg_task task, void *arg)
{
    (void)grain;
    ((struct counts *)user)->loops++;
    for (int64_t i = count - 1; i >= 0; i--) { /* backwards, one by one: any order will do */
        task(arg, i, i + 1);
    }
}

static void *count_alloc(void *user, size_t size)
{
    ((struct counts *)user)->allocations++;
    return aligned_alloc(64, (size + 63) / 64 * 64);
}

static void count_free(void *user, void *memory, size_t size)
{
    (void)size;
    ((struct counts *)user)->frees++;
    free(memory);
}

static void *no_memory(void *user, size_t size)
{
    (void)size;
    ((struct counts *)user)->allocations++;
    return NULL;
}

static void check_callbacks(void)
{
    struct counts counts = {0};
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.parallel_for = count_loop;
    options.parallel_for_user = &counts;
    options.alloc = count_alloc;
    options.free = count_free;
    options.alloc_user = &counts;
    dg_context *ctx;
    CHECK_INT(dg_context_create(&options, &ctx), DG_OK);
    struct call x;
    call_init(&x, 1, 2);
    CHECK_INT(dg_fp8_fp4_gemm_nt(ctx, &x.a.tensor, &x.sfa.tensor, &x.b.tensor, &x.sfb.tensor, &x.d.tensor, NULL), DG_OK);
    CHECK(error_of(d, 128, 128) < 1e-6);
    CHECK_INT(counts.allocations, counts.frees);
    const bool uses_workspace = counts.allocations > 0;
    dg_context_destroy(ctx);

    options.backend = "ref"; /* the other rows do small products on the calling thread */
    CHECK_INT(dg_context_create(&options, &ctx), DG_OK);
    call_init(&x, 1, 2);
    CHECK_INT(dg_fp8_fp4_gemm_nt(ctx, &x.a.tensor, &x.sfa.tensor, &x.b.tensor, &x.sfb.tensor, &x.d.tensor, NULL), DG_OK);
    CHECK(error_of(d, 128, 128) < 1e-6);
    CHECK(counts.loops > 0);
    dg_context_destroy(ctx);
    options.backend = NULL;

    options.alloc = no_memory;
    CHECK_INT(dg_context_create(&options, &ctx), DG_OK);
    call_init(&x, 1, 2);
    const dg_status status = dg_fp8_fp4_gemm_nt(ctx, &x.a.tensor, &x.sfa.tensor, &x.b.tensor, &x.sfb.tensor, &x.d.tensor, NULL);
    CHECK_INT(status, uses_workspace ? DG_ERR_OUT_OF_MEMORY : DG_OK);
    if (uses_workspace) {
        CHECK_CONTAINS(dg_last_error(), "fp8_fp4_gemm_nt: no memory for a workspace of ");
        CHECK(d[0] == -1);
    }
    dg_context_destroy(ctx);
}

static void *call_many_times(void *argument)
{
    dg_context *ctx = argument;
    float out[M * N];
    long wrong = 0;
    for (int round = 0; round < 50; round++) {
        struct call x;
        matrix_init(&x.a, a_codes, (dg_dtype){DG_F8E4M3}, M, K);
        matrix_init(&x.sfa, sfa, (dg_dtype){DG_F32}, M, 2);
        matrix_init(&x.b, b_codes, (dg_dtype){DG_F8E4M3}, N, K);
        matrix_init(&x.sfb, sfb, (dg_dtype){DG_F32}, 1, 2);
        matrix_init(&x.d, out, (dg_dtype){DG_F32}, M, N);
        const dg_status status = dg_fp8_fp4_gemm_nt(ctx, &x.a.tensor, &x.sfa.tensor, &x.b.tensor, &x.sfb.tensor, &x.d.tensor, NULL);
        wrong += status != DG_OK || error_of(out, 128, 128) > 1e-6;
        x.b.shape[1] = K - 1; /* and an error, whose text is this thread's own */
        wrong += dg_fp8_fp4_gemm_nt(ctx, &x.a.tensor, &x.sfa.tensor, &x.b.tensor, &x.sfb.tensor, &x.d.tensor, NULL) == DG_OK;
        wrong += strcmp(dg_last_error(), "fp8_fp4_gemm_nt: b has k = 255, expected 256 to match a") != 0;
    }
    return (void *)wrong;
}

static void check_threads(void)
{
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.num_threads = 3;
    dg_context *ctx;
    CHECK_INT(dg_context_create(&options, &ctx), DG_OK);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        pthread_create(&threads[i], NULL, call_many_times, ctx);
    }
    for (int i = 0; i < 4; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        CHECK_INT((intptr_t)wrong, 0);
    }
    dg_context_destroy(ctx);
}

int main(void)
{
    fill_all();
    check_layouts();
    check_recipes();
    check_fp4();
    check_gaps();
    check_bf16();
    check_rows();
    check_callbacks();
    check_threads();
    return check_report("ops.gemm");
}
