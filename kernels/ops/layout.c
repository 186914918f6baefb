/* The scale layout operators: from checked views to the structs of layout.h, and from there to a row of dg_layout_backends. */
#include "layout.h"

#include "c/calls.h"
#include "choose.h"
#include "core/context.h"
#include "core/status.h"
#include "run.h"

/* ---- views as matrices ------------------------------------------------------------------------------------ */

/* A view of [mn, k] or [groups, mn, k]. */
static struct dg_scale_matrix matrix(const struct dg_view *x)
{
    const int32_t mn = x->ndim - 2;
    return (struct dg_scale_matrix){x->data, mn > 0 ? x->strides[0] : 0, x->strides[mn], x->strides[mn + 1]};
}

static int64_t groups_of(const struct dg_view *x)
{
    return x->ndim == 3 ? x->shape[0] : 1;
}

static int64_t mn_of(const struct dg_view *x)
{
    return x->shape[x->ndim - 2];
}

static int64_t k_of(const struct dg_view *x)
{
    return x->shape[x->ndim - 1];
}

static bool is_empty(const struct dg_view *x)
{
    return groups_of(x) == 0 || mn_of(x) == 0 || k_of(x) == 0;
}

/* Fills exec and gives the row that runs. */
static dg_status choose(struct dg_run *run, const char *op, dg_context *ctx, dg_device device, struct dg_exec *exec,
                        const struct dg_layout_backend **backend)
{
    dg_run_prepare(run, op, ctx, device, exec);
    struct dg_row rows[DG_MAX_ROWS];
    for (size_t i = 0; i < dg_layout_backends_count; i++) {
        rows[i] = (struct dg_row){dg_layout_backends[i].name, dg_layout_backends[i].device_type, true, NULL};
    }
    size_t chosen = 0;
    const dg_status status = dg_choose_row(op, ctx, device, rows, dg_layout_backends_count, &chosen);
    *backend = &dg_layout_backends[chosen];
    return status;
}

/* ---- copy ------------------------------------------------------------------------------------------------- */

static dg_status copy(const char *op, dg_context *ctx, const struct dg_view *sf, const struct dg_view *out)
{
    if (is_empty(out)) {
        return DG_OK;
    }
    struct dg_scale_copy_args args = {
        .groups = groups_of(out),
        .mn = mn_of(out),
        .k_blocks = k_of(out),
        .from = matrix(sf),
        .to = matrix(out),
    };
    struct dg_run run;
    const struct dg_layout_backend *backend;
    dg_status status = choose(&run, op, ctx, out->device, &args.exec, &backend);
    if (status == DG_OK) {
        status = dg_run_begin(&run, 0, &args.exec);
    }
    if (status == DG_OK) {
        status = dg_run_end(&run, backend->copy(&args));
    }
    return status;
}

/* ---- pack ------------------------------------------------------------------------------------------------- */

/* On the CPU, where the host can read it: the ends of groups in a psum layout do not decrease and do not exceed the rows of sf. */
static dg_status check_psum(const char *op, const struct dg_view *psum_layout, int64_t mn)
{
    if (!psum_layout->is_given || psum_layout->device.type != DG_CPU) {
        return DG_OK;
    }
    int64_t end = 0;
    for (int64_t g = 0; g < psum_layout->shape[0]; g++) {
        const int64_t before = end;
        end = ((const int32_t *)psum_layout->data)[g * psum_layout->strides[0]];
        if (end < before || end > mn) {
            return dg_fail(DG_ERR_INVALID_ARGUMENT,
                           "%s: psum_layout[%lld] is %lld, expected %lld .. %lld: the ends of groups do not decrease and do not exceed the "
                           "rows of the result",
                           op, (long long)g, (long long)end, (long long)before, (long long)mn);
        }
    }
    return DG_OK;
}

/* Fails when a scale in use has no UE8M0 code, on backends that can look. NaN passes: it packs as NaN. */
static dg_status check_codes(const char *op, const struct dg_layout_backend *backend, const struct dg_scale_pack_args *args,
                             const struct dg_view *sf)
{
    const int64_t index = backend->find_unpackable == NULL ? -1 : backend->find_unpackable(args);
    if (index < 0) {
        return DG_OK;
    }
    const int64_t rows = dg_ceil_div(args->mn, args->gran_mn);
    const int64_t g = index / args->k_blocks / rows;
    const int64_t i = index / args->k_blocks % rows;
    const int64_t q = index % args->k_blocks;
    const struct dg_scale_matrix *from = &args->from;
    const double value = ((const float *)from->data)[g * from->stride_group + i * from->stride_mn + q * from->stride_k];
    const char *expected = "expected a power of two from 2^-127 to 2^127, or 0, or NaN: UE8M0 has no code for other scales";
    if (sf->ndim == 3) {
        return dg_fail(DG_ERR_INVALID_ARGUMENT, "%s: sf[%lld, %lld, %lld] is %.9g, %s", op, (long long)g, (long long)i, (long long)q,
                       value, expected);
    }
    return dg_fail(DG_ERR_INVALID_ARGUMENT, "%s: sf[%lld, %lld] is %.9g, %s", op, (long long)i, (long long)q, value, expected);
}

static dg_status pack(const char *op, dg_context *ctx, const struct dg_view *sf, const struct dg_view *out, int64_t gran_mn,
                      const struct dg_view *psum_layout)
{
    if (is_empty(out)) {
        return DG_OK;
    }
    struct dg_scale_pack_args args = {
        .groups = groups_of(out),
        .mn = mn_of(out),
        .k_blocks = k_of(sf),
        .gran_mn = gran_mn,
        .from = matrix(sf),
        .to = matrix(out),
    };
    dg_status status = check_psum(op, psum_layout, args.mn);
    if (status != DG_OK) {
        return status;
    }
    static const int32_t no_ends[1];
    if (psum_layout->is_given) {
        args.ends = psum_layout->shape[0] > 0 ? psum_layout->data : no_ends; /* no group: no row is in use */
        args.num_ends = psum_layout->shape[0];
        args.ends_stride = psum_layout->strides[0];
        args.alignment = dg_settings_of(ctx)->mk_alignment;
    }
    struct dg_run run;
    const struct dg_layout_backend *backend;
    status = choose(&run, op, ctx, out->device, &args.exec, &backend);
    if (status == DG_OK) {
        status = check_codes(op, backend, &args, sf);
    }
    if (status == DG_OK) {
        status = dg_run_begin(&run, 0, &args.exec);
    }
    if (status == DG_OK) {
        status = dg_run_end(&run, backend->pack(&args));
    }
    return status;
}

/* ---- pack, k-grouped -------------------------------------------------------------------------------------- */

/* The ends of groups do not decrease, sf has rows for all groups, and so has the result. Gives the rows of sf that they use. */
static dg_status check_groups(const char *op, const struct dg_scale_pack_k_grouped_args *args, int64_t *from_rows)
{
    int64_t end = 0;
    int64_t to_rows = 0;
    *from_rows = 0;
    for (int64_t g = 0; g < args->groups; g++) {
        const int64_t end_before = end;
        const int64_t size = dg_k_group_size(args, g, &end);
        if (end < end_before) {
            return dg_fail(DG_ERR_INVALID_ARGUMENT, "%s: grouped_layout[%lld] is %lld, expected >= %lld: the ends of groups do not decrease",
                           op, (long long)g, (long long)end, (long long)end_before);
        }
        const int64_t blocks = dg_ceil_div(size, args->gran_k);
        *from_rows += blocks;
        to_rows += dg_ceil_div(blocks, 4);
        if (*from_rows > args->from_rows) {
            return dg_fail(DG_ERR_INVALID_ARGUMENT, "%s: grouped_layout needs %lld rows of sf up to group %lld, but sf has %lld", op,
                           (long long)*from_rows, (long long)g, (long long)args->from_rows);
        }
        if (to_rows > args->to_rows) {
            return dg_fail(DG_ERR_INVALID_ARGUMENT,
                           "%s: grouped_layout needs %lld rows of the result up to group %lld, but with this ks_cpu it has %lld", op,
                           (long long)to_rows, (long long)g, (long long)args->to_rows);
        }
    }
    return DG_OK;
}

/* What is checked before anything is written, where the host can look at the data. */
static dg_status check_k_grouped(const char *op, const struct dg_layout_backend *backend,
                                 const struct dg_scale_pack_k_grouped_args *args, const struct dg_view *sf)
{
    if (backend->find_unpackable == NULL) {
        return DG_OK;
    }
    int64_t rows;
    const dg_status status = check_groups(op, args, &rows);
    if (status != DG_OK) {
        return status;
    }
    /* The rows in use as one plain matrix whose first dimension is that of sf, so that its indices are those of sf. */
    const struct dg_scale_pack_args used = {
        .groups = 1,
        .mn = rows,
        .k_blocks = args->mn,
        .gran_mn = 1,
        .from = {args->from.data, 0, args->from.stride_k, args->from.stride_mn},
        .exec = args->exec,
    };
    return check_codes(op, backend, &used, sf);
}

dg_status dg_get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor_impl(
    dg_context *ctx, const struct dg_get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor_call *call)
{
    const char *op = "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor";
    const struct dg_view *sf = &call->sf;
    const struct dg_view *out = &call->out;
    if (is_empty(out)) {
        return DG_OK;
    }
    struct dg_scale_pack_k_grouped_args args = {
        .groups = call->groups,
        .mn = out->shape[1],
        .from_rows = sf->shape[0],
        .to_rows = out->shape[0],
        .from = {sf->data, 0, sf->strides[1], sf->strides[0]},
        .to = {out->data, 0, out->strides[1], out->strides[0]},
        .sizes = call->use_psum_layout ? NULL : call->ks_cpu->data, /* ks_cpu may be left out only with psum */
        .layout = call->grouped_layout.data,
        .layout_stride = call->grouped_layout.strides[0],
        .is_psum = call->use_psum_layout,
        .gran_k = call->gran_k,
        .k_alignment = call->k_alignment,
    };
    struct dg_run run;
    const struct dg_layout_backend *backend;
    dg_status status = choose(&run, op, ctx, out->device, &args.exec, &backend);
    if (status == DG_OK) {
        status = check_k_grouped(op, backend, &args, sf);
    }
    if (status == DG_OK) {
        status = dg_run_begin(&run, 0, &args.exec);
    }
    if (status == DG_OK) {
        status = dg_run_end(&run, backend->pack_k_grouped(&args));
    }
    return status;
}

/* ---- operators -------------------------------------------------------------------------------------------- */

dg_status dg_get_mn_major_tma_aligned_tensor_impl(dg_context *ctx, const struct dg_get_mn_major_tma_aligned_tensor_call *call)
{
    return copy("get_mn_major_tma_aligned_tensor", ctx, &call->sf, &call->out);
}

dg_status
dg_get_mn_major_tma_aligned_packed_ue8m0_tensor_impl(dg_context *ctx,
                                                     const struct dg_get_mn_major_tma_aligned_packed_ue8m0_tensor_call *call)
{
    return pack("get_mn_major_tma_aligned_packed_ue8m0_tensor", ctx, &call->sf, &call->out, 1, &call->psum_layout);
}

dg_status dg_transform_sf_into_required_layout_impl(dg_context *ctx, const struct dg_transform_sf_into_required_layout_call *call)
{
    const char *op = "transform_sf_into_required_layout";
    if (call->packs) {
        return pack(op, ctx, &call->sf, &call->out, call->gran_mn, &call->psum_layout);
    }
    return copy(op, ctx, &call->sf, &call->out);
}

dg_status dg_get_tma_aligned_size_impl(dg_context *ctx, const struct dg_get_tma_aligned_size_call *call)
{
    (void)ctx;
    *call->aligned = dg_align(call->x, 16 / call->element_size);
    return DG_OK;
}
