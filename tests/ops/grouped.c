/* The grouped GEMMs where Python does not reach: contexts with loops, memory and settings of their own. What they compute is the matter of
 * tests/torch/test_grouped.py.
 *
 * One group has most of the rows, so that it is run by all threads, and many have few, which are run side by side.
 */
#include "check.h"
#include "deep_gemm/deep_gemm.h"

enum { GROUPS = 24, FIRST_ROWS = 50, M = FIRST_ROWS + (GROUPS - 1) * 2, N = 40, K = 96 };

static uint16_t a[M * K];
static uint16_t b[GROUPS * N * K];
static int32_t grouped_layout[M];
static float d[M * N];

static const dg_dtype bf16 = {DG_BF16};
static const dg_dtype f32 = {DG_F32};
static const dg_dtype i32 = {DG_I32};

static dg_tensor compact(void *data, dg_dtype dtype, int32_t ndim, int64_t *shape)
{
    return (dg_tensor){.data = data, .device = {DG_CPU, 0}, .ndim = ndim, .dtype = dtype, .shape = shape};
}

/* Small multiples of 1/8, exact in BF16: the sums of products are exact in f32, whatever their order. */
static void fill_all(void)
{
    static const uint16_t values[] = {0x0000, 0x3e00, 0x3e80, 0x3ec0, 0x3f00, 0xbe00, 0xbe80, 0xbf00}; /* 0 .125 .25 .375 .5 -.125 -.25 -.5 */
    for (int i = 0; i < M * K; i++) {
        a[i] = values[i % 31 % 8];
    }
    for (int i = 0; i < GROUPS * N * K; i++) {
        b[i] = values[i % 29 % 8];
    }
    for (int i = 0; i < M; i++) {
        grouped_layout[i] = i < FIRST_ROWS ? 0 : 1 + (i - FIRST_ROWS) / 2;
    }
}

static double value_of(uint16_t code)
{
    const uint32_t bits = (uint32_t)code << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return (double)value;
}

static bool is_right(void)
{
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int k = 0; k < K; k++) {
                sum += value_of(a[i * K + k]) * value_of(b[(grouped_layout[i] * N + j) * K + k]);
            }
            if ((double)d[i * N + j] != sum) {
                return false;
            }
        }
    }
    return true;
}

static bool is_untouched(void)
{
    for (int i = 0; i < M * N; i++) {
        if (d[i] != -1) {
            return false;
        }
    }
    return true;
}

static dg_status run(dg_context *ctx)
{
    for (int i = 0; i < M * N; i++) {
        d[i] = -1;
    }
    const dg_tensor a_tensor = compact(a, bf16, 2, (int64_t[]){M, K});
    const dg_tensor b_tensor = compact(b, bf16, 3, (int64_t[]){GROUPS, N, K});
    const dg_tensor layout = compact(grouped_layout, i32, 1, (int64_t[]){M});
    dg_tensor d_tensor = compact(d, f32, 2, (int64_t[]){M, N});
    return dg_m_grouped_bf16_gemm_nt_contiguous(ctx, &a_tensor, &b_tensor, &d_tensor, &layout, NULL);
}

/* ---- contexts ---------------------------------------------------------------------------------------------- */

struct counts {
    int loops;
    int allocations_allowed;
    int live;
};

/* Backwards, one by one: any order will do. */
static void loop_backwards(void *user, int64_t count, int64_t grain, dg_task task, void *arg)
{
    (void)grain;
    ((struct counts *)user)->loops++;
    for (int64_t i = count - 1; i >= 0; i--) {
        task(arg, i, i + 1);
    }
}

static void *count_alloc(void *user, size_t size)
{
    struct counts *counts = user;
    if (counts->allocations_allowed == 0) {
        return NULL;
    }
    counts->allocations_allowed--;
    counts->live++;
    return aligned_alloc(64, (size + 63) / 64 * 64);
}

static void count_free(void *user, void *memory, size_t size)
{
    (void)size;
    ((struct counts *)user)->live--;
    free(memory);
}

static dg_context *context_of(struct counts *counts, int32_t num_threads)
{
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.num_threads = num_threads;
    options.parallel_for = loop_backwards;
    options.parallel_for_user = counts;
    options.alloc = count_alloc;
    options.free = count_free;
    options.alloc_user = counts;
    dg_context *ctx;
    CHECK_INT(dg_context_create(&options, &ctx), DG_OK);
    return ctx;
}

/* Groups begin at any row; the setting is the context's own, so the process keeps 128. */
static void check_threads_and_settings(void)
{
    const int32_t threads[] = {1, 2, 7};
    for (size_t i = 0; i < sizeof(threads) / sizeof(threads[0]); i++) {
        struct counts counts = {.allocations_allowed = 100};
        dg_context *ctx = context_of(&counts, threads[i]);
        CHECK_INT(run(ctx), DG_ERR_INVALID_ARGUMENT);
        CHECK_CONTAINS(dg_last_error(), "grouped_layout[50] is 1, but the tile that begins with row 0 is of 0");
        CHECK(is_untouched());
        CHECK_INT(dg_set_mk_alignment_for_contiguous_layout(ctx, 1), DG_OK);
        CHECK_INT(run(ctx), DG_OK);
        CHECK(is_right());
        CHECK(counts.loops > 0);
        CHECK_INT(counts.live, 0);
        dg_context_destroy(ctx);
    }
    CHECK_INT(run(NULL), DG_ERR_INVALID_ARGUMENT);
}

/* Whichever allocation fails, nothing is written and nothing is kept. */
static void check_without_memory(void)
{
    for (int allowed = 0;; allowed++) {
        struct counts counts = {.allocations_allowed = allowed};
        dg_context *ctx = context_of(&counts, 2);
        CHECK_INT(dg_set_mk_alignment_for_contiguous_layout(ctx, 1), DG_OK);
        const dg_status status = run(ctx);
        const int live = counts.live;
        dg_context_destroy(ctx);
        CHECK_INT(live, 0);
        if (status == DG_OK) {
            CHECK(allowed > 0);
            return;
        }
        CHECK_INT(status, DG_ERR_OUT_OF_MEMORY);
        CHECK_CONTAINS(dg_last_error(), "m_grouped_bf16_gemm_nt_contiguous: no memory for ");
        CHECK(is_untouched());
    }
}

int main(void)
{
    fill_all();
    check_threads_and_settings();
    check_without_memory();
    return check_report("ops.grouped");
}
