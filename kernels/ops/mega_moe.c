/* fp8_fp4_mega_moe and bf16_mega_moe on one rank: from checked views to waves of rows, and from there to kernels. See mega_moe.h.
 *
 * Who goes to which expert stands in the symmetric buffer. On the CPU it is read and checked first, before anything is written. A wave takes
 * experts one after the other, whole where it can, until the ring or the workspace is full. On CUDA the buffer stays where it is, and one
 * kernel function enqueues all steps; it keeps its plan in the buffer, as it has no other memory.
 */
#include "c/calls.h"
#include "cast.h"
#include "choose.h"
#include "core/context.h"
#include "core/status.h"
#include "gemm_call.h"
#include "layout.h"
#include "mega_moe_call.h"
#include "run.h"

#include <math.h>
#include <string.h>

enum {
    WAVE_BYTES = 64 << 20, /* of workspace for a wave: results of L1 and the like stay near the caches, and a GEMM has many rows all the same */
    LEAST_ROWS = 256 /* of a wave even where these take more than that: a weight is decoded once per wave */
};

/* Rows [begin, end) of a wave, all of one expert. */
struct part {
    int64_t expert;
    int64_t begin, end;
};

struct mega_moe {
    const char *op;
    struct dg_mega_moe_sizes sizes;
    struct dg_mega_moe_args args; /* of the steps between the GEMMs */
    const struct dg_view *l1_weights, *l1_scales, *l2_weights, *l2_scales; /* scales: NULL for BF16 */

    int64_t *starts; /* [num_experts + 1]: the rows of expert e are starts[e] .. starts[e + 1] of slots */
    int64_t *slots;  /* token * topk + k of every row, expert after expert */

    struct part *parts; /* [num_experts], of one wave */
    int64_t num_parts;
    uint32_t *scales; /* of the wave's experts, in the order of rows: of part i from i * (l1_scale_words + l2_scale_words) on */
    int64_t l1_scale_words, l2_scale_words; /* of one expert; 0 for BF16 */
    uint32_t *h_scales; /* [rows, intermediate / 128], before they go to the ring */
    void *results;      /* of the GEMM that ran last: f32 [rows, 2 * intermediate] or bf16 [rows, hidden] */
    int64_t result_bytes; /* per row */
    int64_t row_bytes;    /* of workspace for a row: its result and its scales */
    int64_t workspace_bytes; /* for all scales and the results */
    const struct dg_cast_backend *cast;
};

/* ---- routes ----------------------------------------------------------------------------------------------- */

static int64_t num_slots(const struct mega_moe *x)
{
    return x->args.num_tokens * x->args.topk;
}

static dg_status check_routes(const struct mega_moe *x)
{
    const int64_t topk = x->args.topk;
    for (int64_t slot = 0; slot < num_slots(x); slot++) {
        const int64_t expert = x->args.topk_idx[slot];
        if (expert < -1 || expert >= x->sizes.num_experts) {
            return dg_fail(DG_ERR_INVALID_ARGUMENT, "%s: topk_idx[%lld, %lld] in sym_buffer is %lld, expected -1 .. %lld: there are %lld experts",
                           x->op, (long long)(slot / topk), (long long)(slot % topk), (long long)expert,
                           (long long)x->sizes.num_experts - 1, (long long)x->sizes.num_experts);
        }
    }
    return DG_OK;
}

/* Sorts the slots by expert; those of one expert stay in the order of tokens. */
static void sort_routes(struct mega_moe *x)
{
    const int64_t experts = x->sizes.num_experts;
    for (int64_t e = 0; e <= experts; e++) {
        x->starts[e] = 0;
    }
    for (int64_t slot = 0; slot < num_slots(x); slot++) {
        const int64_t expert = x->args.topk_idx[slot];
        if (expert >= 0) {
            x->starts[expert + 1]++;
        }
    }
    for (int64_t e = 0; e < experts; e++) {
        x->starts[e + 1] += x->starts[e];
    }
    for (int64_t slot = 0; slot < num_slots(x); slot++) {
        const int64_t expert = x->args.topk_idx[slot];
        if (expert >= 0) {
            x->slots[x->starts[expert]++] = slot;
        }
    }
    for (int64_t e = experts; e > 0; e--) { /* each start has moved to its end, which is the next one's start */
        x->starts[e] = x->starts[e - 1];
    }
    x->starts[0] = 0;
}

/* ---- waves ------------------------------------------------------------------------------------------------ */

static int64_t expert_bytes(const struct mega_moe *x)
{
    return (x->l1_scale_words + x->l2_scale_words) * 4;
}

/* Fills parts with the rows from `first` on, and returns where the next wave begins. */
static int64_t plan_wave(struct mega_moe *x, int64_t first)
{
    int64_t rows = 0;
    int64_t free_bytes = x->workspace_bytes;
    x->num_parts = 0;
    for (int64_t e = 0; e < x->sizes.num_experts; e++) {
        const int64_t wanted = x->starts[e + 1] - dg_max(x->starts[e], first + rows);
        if (wanted <= 0) {
            continue;
        }
        const int64_t fitting = dg_min(x->sizes.ring - rows, (free_bytes - expert_bytes(x)) / x->row_bytes);
        if (fitting < wanted && rows > 0) {
            break; /* the next wave has more room for it */
        }
        const int64_t taken = dg_min(wanted, fitting);
        x->parts[x->num_parts++] = (struct part){e, rows, rows + taken};
        rows += taken;
        free_bytes -= expert_bytes(x) + taken * x->row_bytes;
        if (taken < wanted) {
            break;
        }
    }
    x->args.rows = rows;
    x->args.slots = x->slots + first;
    x->results = x->scales + x->num_parts * (x->l1_scale_words + x->l2_scale_words);
    x->h_scales = (void *)((uint8_t *)x->results + rows * x->result_bytes);
    x->args.gate_up = x->results;
    x->args.terms = x->results;
    return first + rows;
}

/* What plan_wave() may count on: enough for LEAST_ROWS of one expert, and no more than all rows of all experts need. */
static int64_t workspace_bytes(const struct mega_moe *x)
{
    const int64_t rows = dg_min(num_slots(x), x->sizes.ring);
    const int64_t experts = dg_min(num_slots(x), x->sizes.num_experts);
    const int64_t all = dg_add(dg_mul(experts, expert_bytes(x)), dg_mul(rows, x->row_bytes));
    const int64_t least = dg_add(expert_bytes(x), dg_mul(LEAST_ROWS, x->row_bytes));
    return dg_min(all, dg_max(WAVE_BYTES, least));
}

/* ---- one wave --------------------------------------------------------------------------------------------- */

/* Scales of a weight come in the order of tensor cores: of each 128 rows, 0, 32, 64, 96, 1, 33, ... Here they get the order of the rows:
 *
 *   to[128 b + 32 j + i, q] = from[128 b + 4 i + j, q]        i < 32, j < 4 */
static void order_scales(const struct mega_moe *x, const struct dg_view *scales, int64_t expert, uint32_t *to)
{
    uint32_t *from = (uint32_t *)scales->data + expert * scales->strides[0];
    const int64_t row = scales->strides[1];
    const int64_t words = scales->shape[2];
    for (int64_t j = 0; j < 4; j++) {
        const struct dg_scale_copy_args copy = {
            .groups = scales->shape[1] / 128,
            .mn = 32,
            .k_blocks = words,
            .from = {from + j * row, 128 * row, 4 * row, scales->strides[2]},
            .to = {to + j * 32 * words, 128 * words, words, 1},
            .exec = x->args.exec,
        };
        dg_scale_copy_ref(&copy);
    }
}

static uint32_t *scales_of_part(const struct mega_moe *x, int64_t i)
{
    return x->scales + i * (x->l1_scale_words + x->l2_scale_words);
}

static void order_all_scales(const struct mega_moe *x)
{
    for (int64_t i = 0; i < x->num_parts && x->args.with_sf; i++) {
        order_scales(x, x->l1_scales, x->parts[i].expert, scales_of_part(x, i));
        order_scales(x, x->l2_scales, x->parts[i].expert, scales_of_part(x, i) + x->l1_scale_words);
    }
}

/* rows [begin, end) of a ring @ weights[expert].T */
static struct dg_gemm_args layer(const struct mega_moe *x, const struct part *part, const void *acts, const uint32_t *acts_sf,
                                 const struct dg_view *weights, const uint32_t *scales)
{
    const int64_t n = weights->shape[1];
    const int64_t k = weights->shape[2];
    const enum dg_gemm_type type = x->args.with_sf ? DG_GEMM_F8E4M3 : DG_GEMM_BF16;
    const enum dg_gemm_scale_type scale_type = x->args.with_sf ? DG_SCALE_UE8M0 : DG_SCALE_NONE;
    struct dg_gemm_args args = {
        .m = part->end - part->begin,
        .n = n,
        .k = k,
        .a = {acts, type, k, 1},
        .b = {weights->data, x->args.with_sf ? DG_GEMM_F4E2M1 : DG_GEMM_BF16, k, 1}, /* contiguous */
        .sfa = {acts_sf, scale_type, 1, DG_MEGA_MOE_GRAN, 1, x->args.sf_ring},
        .sfb = {scales, scale_type, 1, DG_MEGA_MOE_GRAN, k / 128, 1},
        .d = x->results,
        .d_stride_m = n,
        .d_stride_n = 1,
    };
    dg_gemm_move(&args.a, part->begin * k);
    dg_gemm_move_scale(&args.sfa, part->begin);
    dg_gemm_move(&args.b, part->expert * n * k);
    return args;
}

static void get_l1(const void *source, int64_t i, struct dg_gemm_args *args)
{
    const struct mega_moe *x = source;
    *args = layer(x, &x->parts[i], x->args.l1_acts, x->args.l1_acts_sf, x->l1_weights, scales_of_part(x, i));
    args->d_type = DG_GEMM_F32;
    dg_gemm_move_output(args, x->parts[i].begin * args->n, 0);
}

static void get_l2(const void *source, int64_t i, struct dg_gemm_args *args)
{
    const struct mega_moe *x = source;
    *args = layer(x, &x->parts[i], x->args.l2_acts, x->args.l2_acts_sf, x->l2_weights, scales_of_part(x, i) + x->l1_scale_words);
    args->d_type = DG_GEMM_BF16;
    dg_gemm_move_output(args, x->parts[i].begin * args->n, 0);
}

/* h to FP8, and its scales to the ring. */
static void quantise(const struct mega_moe *x)
{
    const int64_t words = x->args.intermediate / 128;
    const struct dg_cast_args cast = {
        .m = x->args.rows,
        .n = x->args.intermediate,
        .x = x->args.gate_up,
        .type = DG_CAST_F32,
        .stride_m = 2 * x->args.intermediate,
        .stride_n = 1,
        .gran_m = 1,
        .gran_n = DG_MEGA_MOE_GRAN,
        .code_type = DG_CAST_F8E4M3,
        .codes = x->args.l2_acts,
        .scale_type = DG_CAST_SCALE_PACKED,
        .sf = x->h_scales,
        .exec = x->args.exec,
    };
    const struct dg_scale_copy_args copy = {
        .groups = 1,
        .mn = x->args.rows,
        .k_blocks = words,
        .from = {x->h_scales, 0, words, 1},
        .to = {x->args.l2_acts_sf, 0, 1, x->args.sf_ring},
        .exec = x->args.exec,
    };
    if (words > 0) {
        x->cast->cast(&cast);
        dg_scale_copy_ref(&copy);
    }
}

static const dg_device cpu = {DG_CPU, 0};

/* Whether there is a row for the GEMMs of a wave. All waves are alike in what rows ask for. */
static dg_status check_rows(const struct mega_moe *x, dg_context *ctx)
{
    const dg_status status = dg_gemm_check_list(x->op, ctx, cpu, &(struct dg_gemm_list){x->num_parts, get_l1, x});
    return status != DG_OK ? status : dg_gemm_check_list(x->op, ctx, cpu, &(struct dg_gemm_list){x->num_parts, get_l2, x});
}

static dg_status run_wave(const struct mega_moe *x, dg_context *ctx)
{
    dg_mega_moe_dispatch_ref(&x->args);
    order_all_scales(x);
    dg_status status = dg_gemm_run_list(x->op, ctx, cpu, &(struct dg_gemm_list){x->num_parts, get_l1, x});
    if (status != DG_OK) {
        return status;
    }
    dg_mega_moe_activate_ref(&x->args);
    if (x->args.with_sf) {
        quantise(x);
    }
    status = dg_gemm_run_list(x->op, ctx, cpu, &(struct dg_gemm_list){x->num_parts, get_l2, x});
    if (status != DG_OK) {
        return status;
    }
    dg_mega_moe_scatter_ref(&x->args);
    return DG_OK;
}

/* ---- the whole -------------------------------------------------------------------------------------------- */

static dg_status run_layer(struct mega_moe *x, dg_context *ctx, const struct dg_view *recv_stats)
{
    sort_routes(x);
    const int64_t rows = x->starts[x->sizes.num_experts];
    for (int64_t first = 0; first < rows;) {
        const int64_t next = plan_wave(x, first);
        dg_status status = first == 0 ? check_rows(x, ctx) : DG_OK; /* nothing is written before */
        if (status == DG_OK) {
            status = run_wave(x, ctx);
        }
        if (status != DG_OK) {
            return status;
        }
        first = next;
    }
    dg_mega_moe_combine_ref(&x->args);
    for (int64_t e = 0; e < x->sizes.num_experts && recv_stats->is_given; e++) {
        uint32_t *total = (uint32_t *)recv_stats->data + e; /* of an int32 that may wrap */
        *total += (uint32_t)(x->starts[e + 1] - x->starts[e]);
    }
    return DG_OK;
}

/* All rows give the same bits. That of the GEMMs' forced name, where the casts have one of it; otherwise the best. */
static const struct dg_cast_backend *cast_row(const dg_context *ctx)
{
    const char *source;
    const char *forced = dg_forced_backend(ctx, &source);
    const struct dg_cast_backend *best = NULL;
    for (size_t i = 0; i < dg_cast_backends_count; i++) {
        const struct dg_cast_backend *row = &dg_cast_backends[i];
        if (row->device_type != DG_CPU || !row->can_run()) {
            continue;
        }
        if (forced != NULL && strcmp(row->name, forced) == 0) {
            return row;
        }
        best = best == NULL ? row : best;
    }
    return best;
}

static size_t aligned(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Takes the workspace apart, and runs. */
static dg_status run_on_cpu(struct mega_moe *x, dg_context *ctx, const struct dg_view *recv_stats)
{
    x->workspace_bytes = workspace_bytes(x);
    const size_t starts_bytes = aligned(((size_t)x->sizes.num_experts + 1) * sizeof(*x->starts));
    const size_t slots_bytes = aligned((size_t)num_slots(x) * sizeof(*x->slots));
    const size_t parts_bytes = aligned((size_t)x->sizes.num_experts * sizeof(*x->parts));

    struct dg_run run;
    dg_run_prepare(&run, x->op, ctx, cpu, &x->args.exec);
    dg_status status = dg_run_begin(&run, starts_bytes + slots_bytes + parts_bytes + (size_t)x->workspace_bytes, &x->args.exec);
    if (status != DG_OK) {
        return status;
    }
    uint8_t *workspace = x->args.exec.workspace;
    x->starts = (void *)workspace;
    x->slots = (void *)(workspace + starts_bytes);
    x->parts = (void *)(workspace + starts_bytes + slots_bytes);
    x->scales = (void *)(workspace + starts_bytes + slots_bytes + parts_bytes);
    status = run_layer(x, ctx, recv_stats);
    const dg_status end = dg_run_end(&run, 0);
    return status != DG_OK ? status : end;
}

#if defined(DG_WITH_CUDA)

static const struct dg_row cuda_rows[] = {{"sm80", DG_CUDA, true, NULL}};

static struct dg_mega_moe_weights weights_of(const struct dg_view *weights, const struct dg_view *scales)
{
    struct dg_mega_moe_weights of = {.data = weights->data};
    if (scales != NULL) {
        of.sf = scales->data;
        of.sf_stride_expert = scales->strides[0];
        of.sf_stride_row = scales->strides[1];
        of.sf_stride_word = scales->strides[2];
    }
    return of;
}

static dg_status run_on_cuda(const struct mega_moe *x, dg_context *ctx, dg_device device, const struct dg_view *buffer,
                             const struct dg_mega_moe_layout *layout, const struct dg_view *recv_stats)
{
    struct dg_mega_moe_layer_args args = {
        .steps = x->args,
        .num_experts = x->sizes.num_experts,
        .ring = x->sizes.ring,
        .l1_weights = weights_of(x->l1_weights, x->l1_scales),
        .l2_weights = weights_of(x->l2_weights, x->l2_scales),
        .recv_stats = recv_stats->is_given ? recv_stats->data : NULL,
        .row_slots = (void *)((uint8_t *)buffer->data + layout->row_slots),
        .row_ends = (void *)((uint8_t *)buffer->data + layout->row_ends),
    };
    if (num_slots(x) > INT32_MAX) {
        return dg_fail(DG_ERR_NOT_SUPPORTED, "%s: y has %lld tokens of num_topk = %lld experts, expected at most %d rows for experts in all",
                       x->op, (long long)x->args.num_tokens, (long long)x->args.topk, INT32_MAX);
    }
    struct dg_run run;
    dg_run_prepare(&run, x->op, ctx, device, &args.steps.exec);
    size_t chosen;
    dg_status status = dg_choose_row(x->op, ctx, device, cuda_rows, 1, &chosen);
    if (status == DG_OK) {
        status = dg_run_begin(&run, 0, &args.steps.exec);
    }
    if (status == DG_OK) {
        status = dg_run_end(&run, dg_mega_moe_sm80(&args));
    }
    return status;
}

#else /* no tensor gets here: dg_check_tensor() refuses CUDA devices */

static dg_status run_on_cuda(const struct mega_moe *x, dg_context *ctx, dg_device device, const struct dg_view *buffer,
                             const struct dg_mega_moe_layout *layout, const struct dg_view *recv_stats)
{
    (void)ctx, (void)device, (void)buffer, (void)layout, (void)recv_stats;
    return dg_fail(DG_ERR_NOT_SUPPORTED, "%s: this library was built without CUDA", x->op);
}

#endif

static dg_status check_buffer(const struct mega_moe *x, const struct dg_view *buffer, const struct dg_mega_moe_layout *layout)
{
    if (buffer->shape[0] < layout->num_bytes) {
        return dg_fail(DG_ERR_INVALID_ARGUMENT, "%s: sym_buffer has %lld bytes, expected %lld or more, as get_symm_buffer_size_for_mega_moe() says",
                       x->op, (long long)buffer->shape[0], (long long)layout->num_bytes);
    }
    if ((uintptr_t)buffer->data % 16 != 0) {
        return dg_fail(DG_ERR_INVALID_ARGUMENT, "%s: sym_buffer begins at the address %p, expected a multiple of 16", x->op, buffer->data);
    }
    return DG_OK;
}

static void find_parts_of_buffer(struct dg_mega_moe_args *args, uint8_t *buffer, const struct dg_mega_moe_layout *layout)
{
    args->x = buffer + layout->x;
    args->x_sf = (const void *)(buffer + layout->x_sf);
    args->topk_idx = (const void *)(buffer + layout->topk_idx);
    args->topk_weights = (const void *)(buffer + layout->topk_weights);
    args->l1_acts = buffer + layout->l1_acts;
    args->l1_acts_sf = (void *)(buffer + layout->l1_acts_sf);
    args->l1_weights = (void *)(buffer + layout->l1_weights);
    args->l2_acts = buffer + layout->l2_acts;
    args->l2_acts_sf = (void *)(buffer + layout->l2_acts_sf);
    args->sf_ring = layout->sf_ring;
    args->combine = (void *)(buffer + layout->combine);
}

/* x has op, sizes and weights. */
static dg_status run_mega_moe(struct mega_moe *x, dg_context *ctx, const struct dg_view *y, const struct dg_view *buffer,
                              const dg_opt_float *clamp, const struct dg_view *recv_stats)
{
    if (x->sizes.num_ranks != 1) {
        return dg_fail(DG_ERR_NOT_SUPPORTED, "%s: sym_buffer_ptrs has the buffers of %lld ranks, expected 1: there is no kernel for several ranks",
                       x->op, (long long)x->sizes.num_ranks);
    }
    struct dg_mega_moe_layout layout;
    dg_status status = dg_mega_moe_check_sizes(x->op, &x->sizes, &layout);
    if (status == DG_OK) {
        status = check_buffer(x, buffer, &layout);
    }
    if (status != DG_OK) {
        return status;
    }
    x->args = (struct dg_mega_moe_args){
        .num_tokens = y->shape[0],
        .max_tokens = x->sizes.max_tokens,
        .topk = x->sizes.topk,
        .hidden = x->sizes.hidden,
        .intermediate = x->sizes.intermediate,
        .with_sf = x->sizes.with_sf,
        .clamp = clamp->has ? (float)clamp->value : INFINITY,
        .y = y->data,
        .y_stride = y->strides[0],
    };
    find_parts_of_buffer(&x->args, buffer->data, &layout);
    if (y->device.type == DG_CUDA) {
        return x->args.num_tokens == 0 ? DG_OK : run_on_cuda(x, ctx, y->device, buffer, &layout, recv_stats);
    }
    x->result_bytes = dg_max(8, dg_max(8 * x->sizes.intermediate, 2 * x->sizes.hidden));
    x->row_bytes = x->result_bytes + x->sizes.intermediate / DG_MEGA_MOE_GRAN;
    x->cast = cast_row(ctx);
    status = check_routes(x);
    if (status != DG_OK || x->args.num_tokens == 0) {
        return status;
    }
    return run_on_cpu(x, ctx, recv_stats);
}

static int64_t scale_words(const struct dg_view *scales)
{
    return scales->shape[1] * scales->shape[2];
}

dg_status dg_fp8_fp4_mega_moe_impl(dg_context *ctx, const struct dg_fp8_fp4_mega_moe_call *call)
{
    struct mega_moe x = {
        .op = "fp8_fp4_mega_moe",
        .sizes = {(int64_t)call->sym_buffer_ptrs.len, call->num_experts, call->num_max_tokens_per_rank, call->num_topk, call->hidden,
                  call->intermediate, call->num_ring_tokens, true},
        .l1_weights = &call->l1_weights,
        .l1_scales = &call->l1_weights_sf,
        .l2_weights = &call->l2_weights,
        .l2_scales = &call->l2_weights_sf,
        .l1_scale_words = scale_words(&call->l1_weights_sf),
        .l2_scale_words = scale_words(&call->l2_weights_sf),
    };
    return run_mega_moe(&x, ctx, &call->y, &call->sym_buffer, &call->activation_clamp, &call->cumulative_local_expert_recv_stats);
}

dg_status dg_bf16_mega_moe_impl(dg_context *ctx, const struct dg_bf16_mega_moe_call *call)
{
    struct mega_moe x = {
        .op = "bf16_mega_moe",
        .sizes = {(int64_t)call->sym_buffer_ptrs.len, call->num_experts, call->num_max_tokens_per_rank, call->num_topk, call->hidden,
                  call->intermediate, call->num_ring_tokens, false},
        .l1_weights = &call->l1_weights,
        .l2_weights = &call->l2_weights,
    };
    return run_mega_moe(&x, ctx, &call->y, &call->sym_buffer, &call->activation_clamp, &call->cumulative_local_expert_recv_stats);
}
