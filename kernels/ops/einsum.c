/* The einsum operators: one GEMM per head, or one sum over batches.
 *
 * With a head axis, each head is a GEMM of its own over views with that axis taken out, and the list of them runs as gemm_call.h says; on CUDA
 * they are the groups of one launch.
 * bmk,bnk->mn has one result for all batches. Its k are few, so on the CPU batches are laid side by side, STEP_K elements at a time, and one GEMM
 * after the other adds its products to f32. CUDA has no memory to lay them out in: there each batch is a GEMM that adds to d, which must be f32
 * then, since the sum is rounded once.
 */
#include "c/calls.h"
#include "core/context.h"
#include "core/dtype.h"
#include "core/status.h"
#include "gemm_call.h"
#include "run.h"

/* ---- a GEMM per head -------------------------------------------------------------------------------------- */

/* Which axis is what. */
struct axes {
    int head, rows, columns;
};

struct product {
    const char *expr;
    struct axes a, b; /* rows are the axis that is not summed over, columns the one that is */
    struct axes d;    /* rows are those of a, columns the rows of b */
};

static const struct product products[] = {
    {"bhr,hdr->bhd", {1, 0, 2}, {0, 1, 2}, {1, 0, 2}},
    {"bhd,hdr->bhr", {1, 0, 2}, {0, 2, 1}, {1, 0, 2}},
    {"bhd,bhr->hdr", {1, 2, 0}, {1, 2, 0}, {0, 1, 2}},
};

static const struct product *product_of(dg_str expr)
{
    const struct product *product = products;
    while (!dg_str_equal(expr, product->expr)) { /* the contract allows no other */
        product++;
    }
    return product;
}

struct heads {
    const struct product *product;
    const struct dg_view *a, *sfa, *b, *sfb; /* scales may be NULL */
    const struct dg_view *d, *c;
    int64_t gran_m, gran_n, gran_k;
};

/* x at one head, as a matrix. */
static struct dg_view matrix_of(const struct dg_view *x, struct axes axes, int64_t head)
{
    struct dg_view matrix = *x;
    if (x->is_given) {
        matrix.data = (uint8_t *)x->data + head * x->strides[axes.head] * (dg_type_bits(x->type) / 8);
    }
    matrix.ndim = 2;
    matrix.shape[0] = x->shape[axes.rows];
    matrix.shape[1] = x->shape[axes.columns];
    matrix.strides[0] = x->strides[axes.rows];
    matrix.strides[1] = x->strides[axes.columns];
    return matrix;
}

static struct dg_gemm_side side_of(const struct dg_view *x, const struct dg_view *sf, struct axes axes, int64_t head, int64_t gran_mn, int64_t gran_k)
{
    const struct dg_view matrix = matrix_of(x, axes, head);
    if (sf == NULL) {
        return dg_gemm_plain(&matrix, DG_MN_FIRST);
    }
    const struct dg_view scales = matrix_of(sf, axes, head);
    return dg_gemm_scaled(&matrix, &scales, DG_MN_FIRST, gran_mn, gran_k);
}

static void get_head(const void *source, int64_t head, struct dg_gemm_args *args)
{
    const struct heads *x = source;
    const struct product *product = x->product;
    const struct dg_gemm_side a = side_of(x->a, x->sfa, product->a, head, x->gran_m, x->gran_k);
    const struct dg_gemm_side b = side_of(x->b, x->sfb, product->b, head, x->gran_n, x->gran_k);
    const struct dg_view d = matrix_of(x->d, product->d, head);
    const struct dg_view c = matrix_of(x->c, product->d, head);
    *args = dg_gemm_args_of(a, b, &d, &c);
}

static int64_t stride_of(const struct dg_view *x, int axis)
{
    return x != NULL && x->is_given ? x->strides[axis] : 0;
}

static dg_status run_heads_on_cuda(const char *op, dg_context *ctx, const struct heads *x)
{
    const struct product *product = x->product;
    struct dg_gemm_args args;
    get_head(x, 0, &args);
    args.groups = (struct dg_gemm_groups){
        .kind = DG_GROUPS_WHOLE,
        .count = x->d->shape[product->d.head],
        .a_stride = stride_of(x->a, product->a.head),
        .sfa_stride = stride_of(x->sfa, product->a.head),
        .b_stride = stride_of(x->b, product->b.head),
        .sfb_stride = stride_of(x->sfb, product->b.head),
        .d_stride = stride_of(x->d, product->d.head),
        .c_stride = stride_of(x->c, product->d.head),
    };
    return dg_gemm_run(op, ctx, x->d->device, args);
}

static dg_status run_heads(const char *op, dg_context *ctx, const struct heads *heads)
{
    if (heads->d->device.type == DG_CUDA) {
        return run_heads_on_cuda(op, ctx, heads);
    }
    const struct dg_gemm_list list = {heads->d->shape[heads->product->d.head], get_head, heads};
    return dg_gemm_run_list(op, ctx, heads->d->device, &list);
}

/* ---- bmk,bnk->mn ------------------------------------------------------------------------------------------ */

enum {
    STEP_K = 4096, /* of a GEMM: long enough to hide what a call costs, short enough for both operands to stay in cache */
    WORTH_A_THREAD = 65536 /* elements to move: about 20 us */
};

/* Batches of x [batches, mn, k] side by side: to[mn][batch][k]. */
struct gathering {
    const struct dg_view *x;
    int64_t first, count; /* batches */
    uint16_t *to;
};

/* Rows [begin, end). */
static void gather_rows(void *arg, int64_t begin, int64_t end)
{
    const struct gathering *g = arg;
    const struct dg_view *x = g->x;
    const int64_t k = x->shape[2];
    for (int64_t i = begin; i < end; i++) {
        for (int64_t batch = 0; batch < g->count; batch++) {
            const uint16_t *from = (const uint16_t *)x->data + (g->first + batch) * x->strides[0] + i * x->strides[1];
            uint16_t *to = g->to + (i * g->count + batch) * k;
            if (x->strides[2] == 1) {
                memcpy(to, from, (size_t)k * sizeof(*to));
                continue;
            }
            for (int64_t p = 0; p < k; p++) {
                to[p] = from[p * x->strides[2]];
            }
        }
    }
}

/* d = sums + c, for bf16 d. */
struct storing {
    const float *sums; /* [m, n] */
    const struct dg_view *d, *c;
};

static void store_rows(void *arg, int64_t begin, int64_t end)
{
    const struct storing *s = arg;
    const struct dg_view *c = s->c;
    const int64_t n = s->d->shape[1];
    for (int64_t i = begin; i < end; i++) {
        uint16_t *d = (uint16_t *)s->d->data + i * s->d->strides[0];
        for (int64_t j = 0; j < n; j++) {
            const float sum = s->sums[i * n + j];
            const float added = c->is_given ? dg_f32_from_bf16(((const uint16_t *)c->data)[i * c->strides[0] + j * c->strides[1]]) : 0;
            d[j] = dg_bf16_from_f32(c->is_given ? added + sum : sum);
        }
    }
}

struct batch_sum {
    const char *op;
    dg_context *ctx;
    const struct dg_einsum_call *call;
    int64_t m, n, k, batches;
    int64_t step;   /* batches of a GEMM */
    struct dg_run run;
    struct dg_exec exec;
    uint16_t *a, *b; /* [m or n][step][k], when step > 1 */
    float *sums;     /* [m, n], when d is bf16 and there are several GEMMs */
};

/* One side of a GEMM over batches [first, first + count). */
static struct dg_gemm_side gathered(const struct batch_sum *x, const struct dg_view *view, uint16_t *buffer, int64_t first, int64_t count)
{
    struct dg_view matrix = matrix_of(view, (struct axes){0, 1, 2}, first);
    if (count > 1) {
        struct gathering gathering = {view, first, count, buffer};
        const int64_t row = count * x->k;
        x->exec.parallel_for(x->exec.parallel_for_user, matrix.shape[0], WORTH_A_THREAD / row + 1, gather_rows, &gathering);
        matrix.data = buffer;
        matrix.shape[1] = row;
        matrix.strides[0] = row;
        matrix.strides[1] = 1;
    }
    return dg_gemm_plain(&matrix, DG_MN_FIRST);
}

/* The product of some batches, added to what is there of d, or of its sums. */
static dg_status add_batches(const struct batch_sum *x, int64_t first, int64_t count)
{
    const struct dg_view *d = &x->call->d;
    struct dg_gemm_args args =
        dg_gemm_args_of(gathered(x, &x->call->a, x->a, first, count), gathered(x, &x->call->b, x->b, first, count), d, &x->call->c);
    if (x->sums != NULL) {
        args.d = x->sums;
        args.d_type = DG_GEMM_F32;
        args.d_stride_m = x->n;
        args.c = NULL; /* added at the end */
    }
    if (first > 0) {
        args.c = args.d;
        args.c_stride_m = args.d_stride_m;
        args.c_stride_n = args.d_stride_n;
    }
    return dg_gemm_run(x->op, x->ctx, d->device, args);
}

static dg_status add_all(const struct batch_sum *x)
{
    dg_status status = DG_OK;
    for (int64_t first = 0; first < x->batches && status == DG_OK; first += x->step) {
        status = add_batches(x, first, dg_min(x->step, x->batches - first));
    }
    if (status == DG_OK && x->sums != NULL) {
        struct storing storing = {x->sums, &x->call->d, &x->call->c};
        x->exec.parallel_for(x->exec.parallel_for_user, x->m, WORTH_A_THREAD / x->n + 1, store_rows, &storing);
    }
    return status;
}

/* One of the batches, which adds to those before it. */
static void get_batch(const void *source, int64_t batch, struct dg_gemm_args *args)
{
    const struct dg_einsum_call *call = source;
    const struct axes axes = {0, 1, 2};
    const struct dg_view a = matrix_of(&call->a, axes, batch);
    const struct dg_view b = matrix_of(&call->b, axes, batch);
    *args = dg_gemm_args_of(dg_gemm_plain(&a, DG_MN_FIRST), dg_gemm_plain(&b, DG_MN_FIRST), &call->d, batch == 0 ? &call->c : &call->d);
}

static dg_status add_batches_in_place(const char *op, dg_context *ctx, const struct dg_einsum_call *call)
{
    if (call->d.type == DG_TYPE_BF16 && call->a0 > 1) {
        return dg_fail(DG_ERR_NOT_SUPPORTED, "%s: no CUDA kernel sums %lld batches for bf16 d, expected f32 d", op, (long long)call->a0);
    }
    return dg_gemm_run_list(op, ctx, call->d.device, &(struct dg_gemm_list){call->a0, get_batch, call});
}

static dg_status sum_batches(const char *op, dg_context *ctx, const struct dg_einsum_call *call)
{
    struct batch_sum x = {.op = op, .ctx = ctx, .call = call, .m = call->a1, .n = call->n, .k = call->a2, .batches = call->a0};
    const dg_device device = call->d.device;
    if (x.m == 0 || x.n == 0) {
        return DG_OK;
    }
    if (x.batches == 0 || x.k == 0) {
        struct dg_gemm_args args = dg_gemm_args_of(dg_gemm_plain(&call->a, DG_MN_FIRST), dg_gemm_plain(&call->b, DG_MN_FIRST), &call->d, &call->c);
        args.k = 0; /* a sum of nothing */
        return dg_gemm_run(op, ctx, device, args);
    }
    if (device.type != DG_CPU) {
        return add_batches_in_place(op, ctx, call);
    }
    x.step = dg_min(dg_max(STEP_K / x.k, 1), x.batches);
    const bool has_sums = call->d.type == DG_TYPE_BF16 && x.step < x.batches;
    const size_t a_bytes = x.step > 1 ? (size_t)dg_align(x.m * x.step * x.k * 2, 64) : 0;
    const size_t b_bytes = x.step > 1 ? (size_t)dg_align(x.n * x.step * x.k * 2, 64) : 0;
    const size_t sums_bytes = has_sums ? (size_t)(x.m * x.n) * sizeof(float) : 0;

    dg_run_prepare(&x.run, op, ctx, device, &x.exec);
    dg_status status = dg_run_begin(&x.run, a_bytes + b_bytes + sums_bytes, &x.exec);
    if (status != DG_OK) {
        return status;
    }
    uint8_t *workspace = x.exec.workspace;
    if (x.step > 1) {
        x.a = (uint16_t *)(void *)workspace;
        x.b = (uint16_t *)(void *)(workspace + a_bytes);
    }
    if (has_sums) {
        x.sums = (float *)(void *)(workspace + a_bytes + b_bytes);
    }
    status = add_all(&x);
    const dg_status ended = dg_run_end(&x.run, 0);
    return status != DG_OK ? status : ended;
}

/* ---- operators -------------------------------------------------------------------------------------------- */

dg_status dg_einsum_impl(dg_context *ctx, const struct dg_einsum_call *call)
{
    if (dg_str_equal(call->expr, "bmk,bnk->mn")) {
        return sum_batches("einsum", ctx, call);
    }
    const struct heads heads = {
        .product = product_of(call->expr),
        .a = &call->a,
        .b = &call->b,
        .d = &call->d,
        .c = &call->c,
    };
    return run_heads("einsum", ctx, &heads);
}

dg_status dg_fp8_einsum_impl(dg_context *ctx, const struct dg_fp8_einsum_call *call)
{
    const struct heads heads = {
        .product = product_of(call->expr),
        .a = &call->a,
        .sfa = &call->sfa,
        .b = &call->b,
        .sfb = &call->sfb,
        .d = &call->d,
        .c = &call->c,
        .gran_m = call->gran_m,
        .gran_n = call->gran_n,
        .gran_k = call->gran_k,
    };
    return run_heads("fp8_einsum", ctx, &heads);
}
