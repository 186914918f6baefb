/* The grouped GEMM operators: one GEMM per group, over its rows of a (m-grouped, masked) or over its part of k (k-grouped).
 *
 * Where groups begin and end stands in a tensor. On the CPU it is read and checked first, before anything is written, and becomes a list of
 * parts; each is one GEMM of the list that gemm_call.h runs. A part sees nothing but its own rows, so padding may hold anything.
 *
 * On CUDA the tensor stays where it is: one launch reads it there (struct dg_gemm_groups), nothing waits for it, and what it says is cut to
 * what there is instead of being refused. Only the flat layout of k-grouped GEMMs, whose distance between rows is another in each group,
 * takes the sizes from the host there, and a launch per group.
 */
#include "c/calls.h"
#include "core/context.h"
#include "core/status.h"
#include "gemm_call.h"

/* An entry of grouped_layout or masked_m. */
static int64_t entry(const struct dg_view *x, int64_t i)
{
    return ((const int32_t *)x->data)[i * x->strides[0]];
}

/* Ends of groups in a psum layout: entry i, which comes after `end`. */
static dg_status check_end(const char *op, const struct dg_view *layout, int64_t i, int64_t end, int64_t most)
{
    if (entry(layout, i) >= end && entry(layout, i) <= most) {
        return DG_OK;
    }
    return dg_fail(DG_ERR_INVALID_ARGUMENT,
                   "%s: grouped_layout[%lld] is %lld, expected %lld .. %lld: the ends of groups do not decrease and do not exceed the rows of a",
                   op, (long long)i, (long long)entry(layout, i), (long long)end, (long long)most);
}

/* ---- m-grouped: parts ------------------------------------------------------------------------------------- */

enum { PADDING = -1 };

/* Rows [begin, end) of a and d that are multiplied with b[group], or become 0 if group is PADDING. */
struct part {
    int64_t group;
    int64_t begin, end;
};

struct m_grouped {
    const char *op;
    dg_device device;
    struct dg_gemm_args gemm; /* of all rows of the first group */
    enum dg_gemm_grouping kind;
    int64_t groups;
    int64_t expected_rows; /* of a group, a hint; 0: none */
    int64_t b_stride, sfb_stride; /* from group to group */
    int64_t a_stride, sfa_stride, d_stride; /* masked: from group to group; otherwise 0, the groups share a and d */
    struct part *parts; /* NULL while they are counted */
    int64_t num_parts;
};

static void add_part(struct m_grouped *x, int64_t group, int64_t begin, int64_t end)
{
    if (begin >= end) {
        return;
    }
    if (x->parts != NULL) {
        x->parts[x->num_parts] = (struct part){group, begin, end};
    }
    x->num_parts++;
}

/* A GEMM counts blocks of sfa from its own first row, so rows that begin inside a block are cut where the next one begins. */
static void add_rows(struct m_grouped *x, int64_t group, int64_t begin, int64_t end)
{
    const int64_t next_block = dg_align(begin, x->gemm.sfa.gran_mn);
    add_part(x, group, begin, dg_min(next_block, end));
    add_part(x, group, dg_max(next_block, begin), end);
}

/* With grouped_layout of one entry per row: tiles one after the other that have the same group are one part. */
static void add_tiles(struct m_grouped *x, const struct dg_view *layout, int64_t tile)
{
    const int64_t m = x->gemm.m;
    for (int64_t begin = 0; begin < m;) {
        const int64_t group = entry(layout, begin);
        int64_t end = begin + tile;
        while (end < m && entry(layout, end) == group) {
            end += tile;
        }
        if (group >= 0) {
            add_rows(x, group, begin, dg_min(end, m));
        }
        begin = end;
    }
}

/* With grouped_layout of the end of each group. */
static void add_psum_groups(struct m_grouped *x, const struct dg_view *layout, int64_t alignment, bool with_padding)
{
    int64_t end = 0;
    for (int64_t g = 0; g < x->groups; g++) {
        const int64_t begin = dg_align(end, alignment);
        end = entry(layout, g);
        add_rows(x, g, begin, end);
        if (with_padding) {
            add_part(x, PADDING, dg_max(begin, end), dg_min(dg_align(end, alignment), x->gemm.m));
        }
    }
}

static void add_masked_groups(struct m_grouped *x, const struct dg_view *masked_m)
{
    for (int64_t g = 0; g < x->groups; g++) {
        add_rows(x, g, 0, entry(masked_m, g));
    }
}

/* ---- m-grouped: checks ------------------------------------------------------------------------------------ */

static dg_status check_tiles(const struct m_grouped *x, const struct dg_view *layout, int64_t tile)
{
    for (int64_t i = 0; i < x->gemm.m; i++) {
        const int64_t group = entry(layout, i);
        const int64_t first_row = i - i % tile;
        const int64_t tile_group = entry(layout, first_row);
        if (group < -1 || group >= x->groups) {
            return dg_fail(DG_ERR_INVALID_ARGUMENT, "%s: grouped_layout[%lld] is %lld, expected -1 .. %lld: b has %lld groups", x->op,
                           (long long)i, (long long)group, (long long)x->groups - 1, (long long)x->groups);
        }
        if (group >= 0 && group != tile_group) {
            return dg_fail(DG_ERR_INVALID_ARGUMENT,
                           "%s: grouped_layout[%lld] is %lld, but the tile that begins with row %lld is of %lld: rows are taken in tiles of "
                           "get_mk_alignment_for_contiguous_layout() = %lld, expected the group of the first row, or -1",
                           x->op, (long long)i, (long long)group, (long long)first_row, (long long)tile_group, (long long)tile);
        }
    }
    return DG_OK;
}

static dg_status check_psum_groups(const struct m_grouped *x, const struct dg_view *layout)
{
    dg_status status = DG_OK;
    for (int64_t g = 0; g < x->groups && status == DG_OK; g++) {
        status = check_end(x->op, layout, g, g == 0 ? 0 : entry(layout, g - 1), x->gemm.m);
    }
    return status;
}

static dg_status check_masked_groups(const struct m_grouped *x, const struct dg_view *masked_m)
{
    for (int64_t g = 0; g < x->groups; g++) {
        if (entry(masked_m, g) < 0 || entry(masked_m, g) > x->gemm.m) {
            return dg_fail(DG_ERR_INVALID_ARGUMENT, "%s: masked_m[%lld] is %lld, expected 0 .. %lld: a has so many rows per group", x->op,
                           (long long)g, (long long)entry(masked_m, g), (long long)x->gemm.m);
        }
    }
    return DG_OK;
}

static const char pairs_expected[] = "expected pairs within each group";

/* A group begins with a whole byte. FP4 pairs along the groups do not always let it, */
static dg_status check_pairs_of_groups(const struct m_grouped *x)
{
    if (x->gemm.b.type == DG_GEMM_F4E2M1 && x->groups > 1 && x->b_stride % 2 != 0) {
        return dg_fail(DG_ERR_INVALID_ARGUMENT, "%s: b has FP4 pairs along its groups, %s", x->op, pairs_expected);
    }
    if (x->gemm.a.type == DG_GEMM_F4E2M1 && x->groups > 1 && x->a_stride % 2 != 0) {
        return dg_fail(DG_ERR_INVALID_ARGUMENT, "%s: a has FP4 pairs along its groups, %s", x->op, pairs_expected);
    }
    return DG_OK;
}

/* nor do pairs along the rows, for a kernel that takes the rows of a part alone. */
static dg_status check_pairs_of_parts(const struct m_grouped *x)
{
    const struct dg_gemm_operand *a = &x->gemm.a;
    for (int64_t i = 0; i < x->num_parts && a->type == DG_GEMM_F4E2M1; i++) {
        if (x->parts[i].begin * a->stride_mn % 2 != 0) {
            return dg_fail(DG_ERR_INVALID_ARGUMENT, "%s: a has FP4 pairs along its rows, and group %lld begins at row %lld, %s", x->op,
                           (long long)x->parts[i].group, (long long)x->parts[i].begin, pairs_expected);
        }
    }
    return DG_OK;
}

/* ---- m-grouped: operators --------------------------------------------------------------------------------- */

static void get_part(const void *source, int64_t i, struct dg_gemm_args *args)
{
    const struct m_grouped *x = source;
    const struct part *part = &x->parts[i];
    *args = x->gemm;
    args->m = part->end - part->begin;
    dg_gemm_move_output(args, part->begin * args->d_stride_m, 0);
    if (part->group == PADDING) {
        args->k = 0; /* a sum of nothing */
        return;
    }
    dg_gemm_move_output(args, part->group * x->d_stride, 0);
    dg_gemm_move(&args->a, part->group * x->a_stride + part->begin * args->a.stride_mn);
    dg_gemm_move_scale(&args->sfa, part->group * x->sfa_stride + part->begin / args->sfa.gran_mn * args->sfa.stride_mn);
    dg_gemm_move(&args->b, part->group * x->b_stride);
    dg_gemm_move_scale(&args->sfb, part->group * x->sfb_stride);
}

static dg_status check_layout(const struct m_grouped *x, const struct dg_view *layout, int64_t alignment)
{
    switch (x->kind) {
    case DG_GROUPS_INDEX: return check_tiles(x, layout, alignment);
    case DG_GROUPS_MASKED: return check_masked_groups(x, layout);
    default: return check_psum_groups(x, layout);
    }
}

static void add_parts(struct m_grouped *x, const struct dg_view *layout, int64_t alignment)
{
    x->num_parts = 0;
    switch (x->kind) {
    case DG_GROUPS_INDEX: add_tiles(x, layout, alignment); break;
    case DG_GROUPS_MASKED: add_masked_groups(x, layout); break;
    default: add_psum_groups(x, layout, alignment, x->kind == DG_GROUPS_PADDED_PSUM); break;
    }
}

static dg_status run_parts(dg_context *ctx, struct m_grouped *x, const struct dg_view *layout, int64_t alignment)
{
    dg_status status = check_layout(x, layout, alignment);
    if (status != DG_OK) {
        return status;
    }
    add_parts(x, layout, alignment);
    if (x->num_parts == 0) {
        return DG_OK;
    }
    const size_t bytes = (size_t)x->num_parts * sizeof(*x->parts);
    x->parts = dg_context_alloc(ctx, bytes);
    if (x->parts == NULL) {
        return dg_fail(DG_ERR_OUT_OF_MEMORY, "%s: no memory for a list of %zu bytes", x->op, bytes);
    }
    add_parts(x, layout, alignment);
    status = check_pairs_of_groups(x);
    if (status == DG_OK) {
        status = check_pairs_of_parts(x);
    }
    if (status == DG_OK) {
        status = dg_gemm_run_list(x->op, ctx, x->device, &(struct dg_gemm_list){x->num_parts, get_part, x});
    }
    dg_context_free(ctx, x->parts, bytes);
    return status;
}

static dg_status run_on_cuda(dg_context *ctx, const struct m_grouped *x, const struct dg_view *layout, int64_t alignment)
{
    const dg_status status = check_pairs_of_groups(x);
    if (status != DG_OK || x->groups == 0) {
        return status;
    }
    struct dg_gemm_args args = x->gemm;
    args.groups = (struct dg_gemm_groups){
        .kind = x->kind,
        .count = x->groups,
        .layout = layout->data,
        .layout_stride = layout->strides[0],
        .alignment = x->kind == DG_GROUPS_INDEX ? dg_min(alignment, x->gemm.m) : alignment,
        .expected_rows = x->expected_rows,
        .a_stride = x->a_stride,
        .sfa_stride = x->sfa_stride,
        .b_stride = x->b_stride,
        .sfb_stride = x->sfb_stride,
        .d_stride = x->d_stride,
    };
    return dg_gemm_run(x->op, ctx, x->device, args);
}

static dg_status run_m_grouped(dg_context *ctx, struct m_grouped *x, const struct dg_view *layout)
{
    const int64_t alignment = dg_settings_of(ctx)->mk_alignment;
    return x->device.type == DG_CPU ? run_parts(ctx, x, layout, alignment) : run_on_cuda(ctx, x, layout, alignment);
}

static enum dg_gemm_grouping contiguous_kind(bool use_psum_layout, bool ensure_zero_padding)
{
    if (!use_psum_layout) {
        return DG_GROUPS_INDEX;
    }
    return ensure_zero_padding ? DG_GROUPS_PADDED_PSUM : DG_GROUPS_PSUM;
}

dg_status dg_m_grouped_fp8_fp4_gemm_nt_contiguous_impl(dg_context *ctx, const struct dg_m_grouped_fp8_fp4_gemm_nt_contiguous_call *call)
{
    const struct dg_gemm_side a = dg_gemm_scaled(&call->a, &call->sfa, DG_MN_FIRST, call->gran_mn_a, call->gran_k_a);
    const struct dg_gemm_side b = dg_gemm_scaled(&call->b, &call->sfb, DG_MN_FIRST, call->gran_mn_b, call->gran_k_b);
    struct m_grouped x = {
        .op = "m_grouped_fp8_fp4_gemm_nt_contiguous",
        .device = call->d.device,
        .gemm = dg_gemm_args_of(a, b, &call->d, NULL),
        .kind = contiguous_kind(call->use_psum_layout, call->ensure_zero_padding),
        .groups = call->groups,
        .expected_rows = call->expected_m_for_psum_layout.has ? call->expected_m_for_psum_layout.value : 0,
        .b_stride = call->b.strides[0],
        .sfb_stride = call->sfb.strides[0],
    };
    return run_m_grouped(ctx, &x, &call->grouped_layout);
}

dg_status dg_m_grouped_fp8_fp4_gemm_nn_contiguous_impl(dg_context *ctx, const struct dg_m_grouped_fp8_fp4_gemm_nn_contiguous_call *call)
{
    const struct dg_gemm_side a = dg_gemm_scaled(&call->a, &call->sfa, DG_MN_FIRST, call->gran_mn_a, call->gran_k_a);
    const struct dg_gemm_side b = dg_gemm_scaled(&call->b, &call->sfb, DG_K_FIRST, call->gran_mn_b, call->gran_k_b);
    struct m_grouped x = {
        .op = "m_grouped_fp8_fp4_gemm_nn_contiguous",
        .device = call->d.device,
        .gemm = dg_gemm_args_of(a, b, &call->d, NULL),
        .kind = contiguous_kind(call->use_psum_layout, call->ensure_zero_padding),
        .groups = call->groups,
        .b_stride = call->b.strides[0],
        .sfb_stride = call->sfb.strides[0],
    };
    return run_m_grouped(ctx, &x, &call->grouped_layout);
}

dg_status dg_m_grouped_fp8_fp4_gemm_nt_masked_impl(dg_context *ctx, const struct dg_m_grouped_fp8_fp4_gemm_nt_masked_call *call)
{
    const struct dg_gemm_side a = dg_gemm_scaled(&call->a, &call->sfa, DG_MN_FIRST, call->gran_mn_a, call->gran_k_a);
    const struct dg_gemm_side b = dg_gemm_scaled(&call->b, &call->sfb, DG_MN_FIRST, call->gran_mn_b, call->gran_k_b);
    struct m_grouped x = {
        .op = "m_grouped_fp8_fp4_gemm_nt_masked",
        .device = call->d.device,
        .gemm = dg_gemm_args_of(a, b, &call->d, NULL),
        .kind = DG_GROUPS_MASKED,
        .groups = call->groups,
        .expected_rows = call->expected_m,
        .b_stride = call->b.strides[0],
        .sfb_stride = call->sfb.strides[0],
        .a_stride = call->a.strides[0],
        .sfa_stride = call->sfa.strides[0],
        .d_stride = call->d.strides[0],
    };
    return run_m_grouped(ctx, &x, &call->masked_m);
}

dg_status dg_m_grouped_bf16_gemm_nt_contiguous_impl(dg_context *ctx, const struct dg_m_grouped_bf16_gemm_nt_contiguous_call *call)
{
    const struct dg_gemm_side a = dg_gemm_plain(&call->a, DG_MN_FIRST);
    const struct dg_gemm_side b = dg_gemm_plain(&call->b, DG_MN_FIRST);
    struct m_grouped x = {
        .op = "m_grouped_bf16_gemm_nt_contiguous",
        .device = call->d.device,
        .gemm = dg_gemm_args_of(a, b, &call->d, NULL),
        .kind = contiguous_kind(call->use_psum_layout, call->ensure_zero_padding),
        .groups = call->groups,
        .expected_rows = call->expected_m_for_psum_layout.has ? call->expected_m_for_psum_layout.value : 0,
        .b_stride = call->b.strides[0],
    };
    return run_m_grouped(ctx, &x, &call->grouped_layout);
}

dg_status dg_m_grouped_bf16_gemm_nn_contiguous_impl(dg_context *ctx, const struct dg_m_grouped_bf16_gemm_nn_contiguous_call *call)
{
    const struct dg_gemm_side a = dg_gemm_plain(&call->a, DG_MN_FIRST);
    const struct dg_gemm_side b = dg_gemm_plain(&call->b, DG_K_FIRST);
    struct m_grouped x = {
        .op = "m_grouped_bf16_gemm_nn_contiguous",
        .device = call->d.device,
        .gemm = dg_gemm_args_of(a, b, &call->d, NULL),
        .kind = contiguous_kind(call->use_psum_layout, call->ensure_zero_padding),
        .groups = call->groups,
        .b_stride = call->b.strides[0],
    };
    return run_m_grouped(ctx, &x, &call->grouped_layout);
}

dg_status dg_m_grouped_bf16_gemm_nt_masked_impl(dg_context *ctx, const struct dg_m_grouped_bf16_gemm_nt_masked_call *call)
{
    const struct dg_gemm_side a = dg_gemm_plain(&call->a, DG_MN_FIRST);
    const struct dg_gemm_side b = dg_gemm_plain(&call->b, DG_MN_FIRST);
    struct m_grouped x = {
        .op = "m_grouped_bf16_gemm_nt_masked",
        .device = call->d.device,
        .gemm = dg_gemm_args_of(a, b, &call->d, NULL),
        .kind = DG_GROUPS_MASKED,
        .groups = call->groups,
        .expected_rows = call->expected_m,
        .b_stride = call->b.strides[0],
        .a_stride = call->a.strides[0],
        .d_stride = call->d.strides[0],
    };
    return run_m_grouped(ctx, &x, &call->masked_m);
}

/* ---- k-grouped: groups ------------------------------------------------------------------------------------ */

/* The part of k of one group. Its scales are those from `block` on where they are f32, and from `word` on where they are packed. */
struct k_group {
    int64_t begin, size;
    int64_t block, word;
};

struct k_grouped {
    const char *op;
    dg_device device;
    struct dg_gemm_args gemm; /* of the first group; k is that of all groups together */
    int64_t num_groups;
    int64_t gran_k;
    int64_t d_stride, c_stride; /* from group to group */
    bool is_flat; /* a and b are one compact [mn, k_g] after the other */
    bool is_psum;
    const struct dg_view *sfa, *sfb; /* of groups one below the other; NULL: none, or flat */
    struct k_group *groups;
};

static struct k_group next_group(const struct k_grouped *x, struct k_group group, int64_t begin, int64_t size)
{
    const int64_t blocks = dg_ceil_div(group.size, x->gran_k);
    return (struct k_group){begin, size, group.block + blocks, group.word + dg_ceil_div(blocks, 4)};
}

/* The sizes of the groups are ks_cpu, which grouped_layout repeats. */
static dg_status find_groups(struct k_grouped *x, const struct dg_view *layout, const dg_ints *ks_cpu)
{
    struct k_group group = {0};
    for (int64_t g = 0; g < x->num_groups; g++) {
        const int64_t size = ks_cpu->data[g];
        if (entry(layout, g) != size) {
            return dg_fail(DG_ERR_INVALID_ARGUMENT, "%s: grouped_layout[%lld] is %lld, expected %lld to match ks_cpu", x->op, (long long)g,
                           (long long)entry(layout, g), (long long)size);
        }
        group = next_group(x, group, group.begin + group.size, size);
        x->groups[g] = group;
    }
    return DG_OK;
}

/* grouped_layout has the ends of the groups. A group whose end is not behind its begin is empty. */
static dg_status find_psum_groups(struct k_grouped *x, const struct dg_view *layout, int64_t alignment)
{
    struct k_group group = {0};
    int64_t end = 0;
    for (int64_t g = 0; g < x->num_groups; g++) {
        const dg_status status = check_end(x->op, layout, g, end, x->gemm.k);
        if (status != DG_OK) {
            return status;
        }
        const int64_t begin = dg_align(end, alignment);
        end = entry(layout, g);
        group = next_group(x, group, begin, dg_max(end - begin, 0));
        x->groups[g] = group;
    }
    return DG_OK;
}

/* sf has rows for all groups, `scale` being how the GEMM sees it. */
static dg_status check_scale_rows(const struct k_grouped *x, const char *name, const struct dg_view *sf, const struct dg_gemm_scale *scale)
{
    const struct k_group last = next_group(x, x->groups[x->num_groups - 1], 0, 0); /* one after the last */
    const int64_t rows = scale->type == DG_SCALE_F32 ? last.block : last.word;
    if (rows > sf->shape[0]) {
        return dg_fail(DG_ERR_INVALID_ARGUMENT, "%s: %s has %lld rows, expected %lld or more for the groups of grouped_layout", x->op, name,
                       (long long)sf->shape[0], (long long)rows);
    }
    return DG_OK;
}

/* ---- k-grouped: operators --------------------------------------------------------------------------------- */

/* The GEMM of the i-th group. */
static void make_k_group(const struct k_grouped *x, int64_t i, const struct k_group *group, struct dg_gemm_args *args)
{
    *args = x->gemm;
    args->k = group->size;
    dg_gemm_move_output(args, i * x->d_stride, i * x->c_stride);
    if (x->is_flat) {
        dg_gemm_move(&args->a, group->begin * args->m);
        dg_gemm_move(&args->b, group->begin * args->n);
        args->a.stride_mn = group->size;
        args->b.stride_mn = group->size;
    } else {
        dg_gemm_move(&args->a, group->begin * args->a.stride_k);
        dg_gemm_move(&args->b, group->begin * args->b.stride_k);
    }
    dg_gemm_move_scale(&args->sfa, (args->sfa.type == DG_SCALE_F32 ? group->block : group->word) * args->sfa.stride_k);
    dg_gemm_move_scale(&args->sfb, (args->sfb.type == DG_SCALE_F32 ? group->block : group->word) * args->sfb.stride_k);
}

static void get_k_group(const void *source, int64_t i, struct dg_gemm_args *args)
{
    const struct k_grouped *x = source;
    make_k_group(x, i, &x->groups[i], args);
}

static dg_status run_k_groups(dg_context *ctx, struct k_grouped *x, const struct dg_view *layout, const dg_ints *ks_cpu)
{
    dg_status status = x->is_psum ? find_psum_groups(x, layout, dg_settings_of(ctx)->mk_alignment) : find_groups(x, layout, ks_cpu);
    if (status == DG_OK && x->is_psum && x->sfa != NULL) { /* without psum the contracts say how many rows there are */
        status = check_scale_rows(x, "sfa", x->sfa, &x->gemm.sfa);
    }
    if (status == DG_OK && x->is_psum && x->sfb != NULL) {
        status = check_scale_rows(x, "sfb", x->sfb, &x->gemm.sfb);
    }
    if (status == DG_OK) {
        status = dg_gemm_run_list(x->op, ctx, x->device, &(struct dg_gemm_list){x->num_groups, get_k_group, x});
    }
    return status;
}

static dg_status run_k_groups_on_cpu(dg_context *ctx, struct k_grouped *x, const struct dg_view *layout, const dg_ints *ks_cpu)
{
    const size_t bytes = (size_t)x->num_groups * sizeof(*x->groups);
    x->groups = dg_context_alloc(ctx, bytes);
    if (x->groups == NULL) {
        return dg_fail(DG_ERR_OUT_OF_MEMORY, "%s: no memory for a list of %zu bytes", x->op, bytes);
    }
    const dg_status status = run_k_groups(ctx, x, layout, ks_cpu);
    dg_context_free(ctx, x->groups, bytes);
    return status;
}

/* One launch, which finds the groups in the layout. */
static dg_status run_k_groups_on_cuda(dg_context *ctx, const struct k_grouped *x, const struct dg_view *layout)
{
    struct dg_gemm_args args = x->gemm;
    args.groups = (struct dg_gemm_groups){
        .kind = x->is_psum ? DG_GROUPS_PSUM_K : DG_GROUPS_K,
        .count = x->num_groups,
        .layout = layout->data,
        .layout_stride = layout->strides[0],
        .alignment = x->is_psum ? dg_settings_of(ctx)->mk_alignment : 1,
        .d_stride = x->d_stride,
        .c_stride = x->c_stride,
        .sfa_words = x->sfa != NULL ? x->sfa->shape[0] : 0,
        .sfb_words = x->sfb != NULL ? x->sfb->shape[0] : 0,
    };
    return dg_gemm_run(x->op, ctx, x->device, args);
}

/* A launch for each group, of the sizes on the host. */
static dg_status run_flat_groups_on_cuda(dg_context *ctx, const struct k_grouped *x, const dg_ints *ks_cpu)
{
    struct k_group group = {0};
    dg_status status = DG_OK;
    for (int64_t g = 0; g < x->num_groups && status == DG_OK; g++) {
        struct dg_gemm_args args;
        group = next_group(x, group, group.begin + group.size, ks_cpu->data[g]);
        make_k_group(x, g, &group, &args);
        status = dg_gemm_run(x->op, ctx, x->device, args);
    }
    return status;
}

static dg_status run_k_grouped(dg_context *ctx, struct k_grouped *x, const struct dg_view *layout, const dg_ints *ks_cpu)
{
    if (x->num_groups == 0) {
        return DG_OK;
    }
    if (x->device.type == DG_CPU) {
        return run_k_groups_on_cpu(ctx, x, layout, ks_cpu);
    }
    return x->is_flat ? run_flat_groups_on_cuda(ctx, x, ks_cpu) : run_k_groups_on_cuda(ctx, x, layout);
}

dg_status dg_k_grouped_fp8_gemm_tn_contiguous_impl(dg_context *ctx, const struct dg_k_grouped_fp8_gemm_tn_contiguous_call *call)
{
    const struct dg_gemm_side a = dg_gemm_scaled(&call->a, &call->sfa, DG_K_FIRST, 1, call->gran_k);
    const struct dg_gemm_side b = dg_gemm_scaled(&call->b, &call->sfb, DG_K_FIRST, 1, call->gran_k);
    struct k_grouped x = {
        .op = "k_grouped_fp8_gemm_tn_contiguous",
        .device = call->d.device,
        .gemm = dg_gemm_args_of(a, b, &call->d, &call->c),
        .num_groups = call->groups,
        .gran_k = call->gran_k,
        .d_stride = call->d.strides[0],
        .c_stride = call->c.strides[0],
        .is_psum = call->use_psum_layout,
        .sfa = &call->sfa,
        .sfb = &call->sfb,
    };
    return run_k_grouped(ctx, &x, &call->grouped_layout, call->ks_cpu);
}

dg_status dg_k_grouped_bf16_gemm_tn_contiguous_impl(dg_context *ctx, const struct dg_k_grouped_bf16_gemm_tn_contiguous_call *call)
{
    const struct dg_gemm_side a = dg_gemm_plain(&call->a, DG_K_FIRST);
    const struct dg_gemm_side b = dg_gemm_plain(&call->b, DG_K_FIRST);
    struct k_grouped x = {
        .op = "k_grouped_bf16_gemm_tn_contiguous",
        .device = call->d.device,
        .gemm = dg_gemm_args_of(a, b, &call->d, &call->c),
        .num_groups = call->groups,
        .gran_k = 1, /* of scales that are not there */
        .d_stride = call->d.strides[0],
        .c_stride = call->c.strides[0],
        .is_psum = call->use_psum_layout,
    };
    return run_k_grouped(ctx, &x, &call->grouped_layout, call->ks_cpu);
}

/* One side of the flat layout; all of it but the distance between rows, which differs from group to group. */
static struct dg_gemm_side flat_side(const struct dg_view *x, const struct dg_view *sf, int64_t mn, int64_t sum_k, int64_t gran_k)
{
    const struct dg_view matrix = {.data = x->data, .type = x->type, .ndim = 2, .shape = {mn, sum_k}, .strides = {0, 1}};
    return dg_gemm_scaled(&matrix, sf, DG_MN_FIRST, 1, gran_k);
}

static dg_status check_flat_size(const char *op, const char *name, const struct dg_view *x, const char *mn_name, int64_t mn, int64_t sum_k)
{
    int64_t size = 1;
    for (int32_t axis = 0; axis < x->ndim; axis++) {
        size *= x->shape[axis]; /* of a tensor that exists: no overflow */
    }
    if (size != dg_mul(sum_k, mn)) {
        return dg_fail(DG_ERR_INVALID_ARGUMENT, "%s: %s has %lld elements, expected %lld * %lld = (sum of ks_cpu) * %s", op, name,
                       (long long)size, (long long)sum_k, (long long)mn, mn_name);
    }
    return DG_OK;
}

dg_status dg_k_grouped_fp8_gemm_nt_contiguous_impl(dg_context *ctx, const struct dg_k_grouped_fp8_gemm_nt_contiguous_call *call)
{
    const char *op = "k_grouped_fp8_gemm_nt_contiguous";
    dg_status status = check_flat_size(op, "a", &call->a, "m", call->m, call->sum_k);
    if (status == DG_OK) {
        status = check_flat_size(op, "b", &call->b, "n", call->n, call->sum_k);
    }
    if (status != DG_OK) {
        return status;
    }
    const struct dg_gemm_side a = flat_side(&call->a, &call->sfa, call->m, call->sum_k, call->gran_k);
    const struct dg_gemm_side b = flat_side(&call->b, &call->sfb, call->n, call->sum_k, call->gran_k);
    struct k_grouped x = {
        .op = op,
        .device = call->d.device,
        .gemm = dg_gemm_args_of(a, b, &call->d, &call->c),
        .num_groups = call->groups,
        .gran_k = call->gran_k,
        .d_stride = call->d.strides[0],
        .c_stride = call->c.strides[0],
        .is_flat = true,
    };
    return run_k_grouped(ctx, &x, &call->grouped_layout, call->ks_cpu);
}
