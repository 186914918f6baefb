/* How operators call the GEMM family. See gemm_call.h. */
#include "gemm_call.h"

#include "choose.h"
#include "run.h"

#include <stdatomic.h>

/* ---- views as operands ------------------------------------------------------------------------------------ */

static enum dg_gemm_type gemm_type(enum dg_type type)
{
    switch (type) {
    case DG_TYPE_BF16: return DG_GEMM_BF16;
    case DG_TYPE_F8E4M3: return DG_GEMM_F8E4M3;
    case DG_TYPE_F4E2M1: return DG_GEMM_F4E2M1;
    default: return DG_GEMM_F32; /* the contracts allow no other */
    }
}

struct dg_gemm_side dg_gemm_plain(const struct dg_view *x, enum dg_gemm_order order)
{
    const int first = x->ndim - 2;
    const int mn = order == DG_MN_FIRST ? first : first + 1;
    const int k = order == DG_MN_FIRST ? first + 1 : first;
    return (struct dg_gemm_side){
        .operand = {x->data, gemm_type(x->type), x->strides[mn], x->strides[k]},
        .scale = {.type = DG_SCALE_NONE, .gran_mn = 1, .gran_k = 1},
        .mn = x->shape[mn],
        .k = x->shape[k],
    };
}

struct dg_gemm_side dg_gemm_scaled(const struct dg_view *x, const struct dg_view *sf, enum dg_gemm_order order, int64_t gran_mn,
                                   int64_t gran_k)
{
    const int first = sf->ndim - 2;
    const int mn = order == DG_MN_FIRST ? first : first + 1;
    const int k = order == DG_MN_FIRST ? first + 1 : first;
    const enum dg_gemm_scale_type type = sf->type == DG_TYPE_F32 ? DG_SCALE_F32 : DG_SCALE_UE8M0;
    struct dg_gemm_side side = dg_gemm_plain(x, order);
    side.scale = (struct dg_gemm_scale){sf->data, type, gran_mn, gran_k, sf->strides[mn], sf->strides[k]};
    return side;
}

struct dg_gemm_args dg_gemm_args_of(struct dg_gemm_side a, struct dg_gemm_side b, const struct dg_view *d, const struct dg_view *c)
{
    struct dg_gemm_args args = {
        .m = a.mn,
        .n = b.mn,
        .k = a.k,
        .a = a.operand,
        .b = b.operand,
        .sfa = a.scale,
        .sfb = b.scale,
        .d = d->data,
        .d_type = gemm_type(d->type),
        .d_stride_m = d->strides[d->ndim - 2],
        .d_stride_n = 1, /* the contract's rows; a single column may have any stride */
    };
    if (c != NULL && c->is_given) {
        args.c = c->data;
        args.c_stride_m = c->strides[c->ndim - 2];
        args.c_stride_n = c->strides[c->ndim - 1];
    }
    return args;
}

/* ---- one -------------------------------------------------------------------------------------------------- */

static void get_only(const void *source, int64_t i, struct dg_gemm_args *args)
{
    (void)i;
    *args = *(const struct dg_gemm_args *)source;
}

dg_status dg_gemm_run(const char *op, dg_context *ctx, dg_device device, struct dg_gemm_args args)
{
    return dg_gemm_run_list(op, ctx, device, &(struct dg_gemm_list){1, get_only, &args});
}

/* ---- many ------------------------------------------------------------------------------------------------- */

/* A GEMM is small when it is at most this part of one thread's share of the whole: large ones would leave threads idle at the end. */
enum { SMALL_PARTS = 4 };

struct batch {
    const struct dg_gemm_list *list;
    const struct dg_gemm_backend *backend;
    const struct dg_exec *exec;
    double large_work;      /* a GEMM of more than this is large */
    int64_t small_count;
    size_t large_workspace; /* of one */
    size_t small_workspace; /* of one */
    int64_t workers;        /* for the small ones */
    _Atomic int64_t next;   /* of the list, for them to take */
    _Atomic int result;
};

/* A measure of the time of a GEMM: to read and decode an element of b takes about as long as to multiply it with 8 rows of a. */
static double work_of(const struct dg_gemm_args *args)
{
    return ((double)args->m + 8) * (double)args->n * (double)args->k;
}

static bool is_empty(const struct dg_gemm_args *args)
{
    return args->m == 0 || args->n == 0;
}

static bool is_large(const struct batch *batch, const struct dg_gemm_args *args)
{
    return work_of(args) > batch->large_work;
}

static void run_alone(void *user, int64_t count, int64_t grain, void (*task)(void *arg, int64_t begin, int64_t end), void *arg)
{
    (void)user;
    (void)grain;
    if (count > 0) {
        task(arg, 0, count);
    }
}

/* The i-th GEMM, ready to run. False: there is nothing to do. */
static bool get_gemm(const struct batch *batch, int64_t i, struct dg_gemm_args *args)
{
    batch->list->get(batch->list->source, i, args);
    args->exec = *batch->exec;
    if (is_empty(args)) {
        return false;
    }
    if (!is_large(batch, args)) {
        args->exec.parallel_for = run_alone;
        args->exec.num_threads = 1;
    }
    return true;
}

/* Chooses the row that runs all GEMMs of the list. */
static dg_status choose_row(const struct dg_run *run, const struct batch *batch, size_t *chosen)
{
    struct dg_row rows[DG_MAX_ROWS];
    for (size_t r = 0; r < dg_gemm_backends_count; r++) {
        const struct dg_gemm_backend *backend = &dg_gemm_backends[r];
        rows[r] = (struct dg_row){backend->name, backend->device_type, backend->device_type == run->device.type, backend->takes};
    }
    for (int64_t i = 0; i < batch->list->count; i++) {
        struct dg_gemm_args args;
        if (!get_gemm(batch, i, &args)) {
            continue;
        }
        for (size_t r = 0; r < dg_gemm_backends_count; r++) {
            rows[r].can_run = rows[r].can_run && dg_gemm_backends[r].can_run(&args);
        }
    }
    return dg_choose_row(run->op, run->ctx, run->device, rows, dg_gemm_backends_count, chosen);
}

/* Which GEMMs are small, and what workspace they all need. */
static void plan_batch(struct batch *batch)
{
    size_t (*const workspace)(const struct dg_gemm_args *) = batch->backend->workspace;
    for (int64_t i = 0; i < batch->list->count; i++) {
        struct dg_gemm_args args;
        if (!get_gemm(batch, i, &args)) {
            continue;
        }
        const bool large = is_large(batch, &args);
        size_t *most = large ? &batch->large_workspace : &batch->small_workspace;
        const size_t bytes = workspace != NULL ? (workspace(&args) + 63) / 64 * 64 : 0;
        *most = bytes > *most ? bytes : *most;
        batch->small_count += large ? 0 : 1;
    }
    batch->workers = dg_min(batch->exec->num_threads, batch->small_count);
}

static void run_small(void *arg, int64_t begin, int64_t end)
{
    struct batch *batch = arg;
    for (int64_t worker = begin; worker < end; worker++) {
        for (int64_t i = atomic_fetch_add(&batch->next, 1); i < batch->list->count; i = atomic_fetch_add(&batch->next, 1)) {
            struct dg_gemm_args args;
            if (!get_gemm(batch, i, &args) || is_large(batch, &args)) {
                continue;
            }
            args.exec.workspace = (uint8_t *)batch->exec->workspace + (size_t)worker * batch->small_workspace;
            const dg_kernel_result result = batch->backend->run(&args);
            if (result != 0) {
                atomic_store(&batch->result, result);
            }
        }
    }
}

static dg_kernel_result run_batch(struct batch *batch)
{
    for (int64_t i = 0; i < batch->list->count; i++) {
        struct dg_gemm_args args;
        if (!get_gemm(batch, i, &args) || !is_large(batch, &args)) {
            continue;
        }
        const dg_kernel_result result = batch->backend->run(&args);
        if (result != 0) {
            return result;
        }
    }
    if (batch->small_count > 0) {
        batch->exec->parallel_for(batch->exec->parallel_for_user, batch->workers, 1, run_small, batch);
    }
    return batch->result;
}

/* The sum of work_of(), and whether any GEMM has something to do. */
static double total_work(const struct dg_gemm_list *list, bool *has_work)
{
    double total = 0;
    *has_work = false;
    for (int64_t i = 0; i < list->count; i++) {
        struct dg_gemm_args args;
        list->get(list->source, i, &args);
        total += is_empty(&args) ? 0 : work_of(&args);
        *has_work = *has_work || !is_empty(&args);
    }
    return total;
}

dg_status dg_gemm_check_list(const char *op, dg_context *ctx, dg_device device, const struct dg_gemm_list *list)
{
    struct dg_exec exec;
    struct dg_run run;
    dg_run_prepare(&run, op, ctx, device, &exec);
    const struct batch batch = {.list = list, .exec = &exec};
    size_t chosen;
    return choose_row(&run, &batch, &chosen);
}

dg_status dg_gemm_run_list(const char *op, dg_context *ctx, dg_device device, const struct dg_gemm_list *list)
{
    bool has_work;
    const double work = total_work(list, &has_work);
    if (!has_work) {
        return DG_OK;
    }
    struct dg_exec exec;
    struct dg_run run;
    dg_run_prepare(&run, op, ctx, device, &exec);

    const bool runs_small = device.type == DG_CPU && list->count > 1;
    struct batch batch = {.list = list, .exec = &exec, .large_work = runs_small ? work / exec.num_threads / SMALL_PARTS : -1};
    size_t chosen;
    dg_status status = choose_row(&run, &batch, &chosen);
    if (status != DG_OK) {
        return status;
    }
    batch.backend = &dg_gemm_backends[chosen];
    plan_batch(&batch);

    const size_t small_workspace = (size_t)batch.workers * batch.small_workspace;
    const size_t workspace = small_workspace > batch.large_workspace ? small_workspace : batch.large_workspace;
    status = dg_run_begin(&run, workspace, &exec);
    if (status == DG_OK) {
        status = dg_run_end(&run, run_batch(&batch));
    }
    return status;
}
