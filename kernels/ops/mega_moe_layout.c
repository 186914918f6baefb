/* Where everything lies in the symmetric buffer of mega MoE: the only place that computes it. See mega_moe.h. */
#include "c/calls.h"
#include "core/status.h"
#include "mega_moe_call.h"

/* ---- sizes ------------------------------------------------------------------------------------------------ */

void dg_mega_moe_ring_limit(int64_t max_tokens, int64_t experts_per_rank, int64_t topk, int64_t num_ranks, int64_t *least, int64_t *greatest)
{
    const int64_t all_tokens = dg_mul(max_tokens, num_ranks);
    const int64_t each_to_all = dg_mul(all_tokens, experts_per_rank);
    const int64_t padding = dg_mul(experts_per_rank, DG_MEGA_MOE_ALIGNMENT - 1);
    const int64_t routed = dg_align(dg_add(dg_mul(all_tokens, topk), padding), DG_MEGA_MOE_ALIGNMENT);
    *least = all_tokens;
    *greatest = experts_per_rank == 1 ? all_tokens : dg_min(each_to_all, routed);
}

/* Takes `count` elements from the buffer, and says where they begin. */
static int64_t take(int64_t *end, int64_t count, int64_t element_bytes)
{
    const int64_t begin = *end;
    *end = dg_align(dg_add(begin, dg_mul(count, element_bytes)), 128);
    return begin;
}

struct dg_mega_moe_layout dg_mega_moe_layout_of(const struct dg_mega_moe_sizes *sizes)
{
    const int64_t code_bytes = sizes->with_sf ? 1 : 2;
    const int64_t words = sizes->with_sf ? sizes->hidden / 128 : 0;
    const int64_t l2_words = sizes->with_sf ? sizes->intermediate / 128 : 0;
    const int64_t slots = dg_mul(sizes->max_tokens, sizes->topk);
    const int64_t sf_ring = sizes->with_sf ? dg_mul(sizes->ring, DG_MEGA_MOE_SF_BLOCK) : 0;
    int64_t end = 0;
    struct dg_mega_moe_layout layout = {.sf_ring = sf_ring};
    layout.x = take(&end, dg_mul(sizes->max_tokens, sizes->hidden), code_bytes);
    layout.x_sf = take(&end, dg_mul(sizes->max_tokens, words), 4);
    layout.topk_idx = take(&end, slots, 8);
    layout.topk_weights = take(&end, slots, 4);
    layout.l1_acts = take(&end, dg_mul(sizes->ring, sizes->hidden), code_bytes);
    layout.l1_acts_sf = take(&end, dg_mul(sf_ring, words), 4);
    layout.l1_weights = take(&end, sizes->ring, 4);
    layout.l2_acts = take(&end, dg_mul(sizes->ring, sizes->intermediate), code_bytes);
    layout.l2_acts_sf = take(&end, dg_mul(sf_ring, l2_words), 4);
    layout.combine = take(&end, dg_mul(slots, sizes->hidden), 2);
    layout.row_slots = take(&end, slots, 4);
    layout.row_ends = take(&end, sizes->num_experts / sizes->num_ranks, 4);
    layout.num_bytes = end;
    return layout;
}

/* ---- checks ----------------------------------------------------------------------------------------------- */

static dg_status check_max_tokens(const char *op, int64_t max_tokens)
{
    if (max_tokens % DG_MEGA_MOE_ALIGNMENT == 0) {
        return DG_OK;
    }
    return dg_fail(DG_ERR_INVALID_ARGUMENT,
                   "%s: num_max_tokens_per_rank is %lld, expected a multiple of get_token_alignment_for_mega_moe() = %d", op,
                   (long long)max_tokens, DG_MEGA_MOE_ALIGNMENT);
}

dg_status dg_mega_moe_check_sizes(const char *op, const struct dg_mega_moe_sizes *sizes, struct dg_mega_moe_layout *layout)
{
    const dg_status status = check_max_tokens(op, sizes->max_tokens);
    if (status != DG_OK) {
        return status;
    }
    int64_t least, greatest;
    dg_mega_moe_ring_limit(sizes->max_tokens, sizes->num_experts / sizes->num_ranks, sizes->topk, sizes->num_ranks, &least, &greatest);
    if (sizes->ring % DG_MEGA_MOE_ALIGNMENT != 0 || sizes->ring < least || sizes->ring > greatest) {
        return dg_fail(DG_ERR_INVALID_ARGUMENT,
                       "%s: num_ring_tokens is %lld, expected a multiple of %d in %lld .. %lld, as get_ring_limit_for_mega_moe() says", op,
                       (long long)sizes->ring, DG_MEGA_MOE_ALIGNMENT, (long long)least, (long long)greatest);
    }
    *layout = dg_mega_moe_layout_of(sizes);
    if (layout->num_bytes == INT64_MAX) {
        return dg_fail(DG_ERR_INVALID_ARGUMENT, "%s: the size of the symmetric buffer is beyond 64 bits", op);
    }
    return DG_OK;
}

/* ---- operators -------------------------------------------------------------------------------------------- */

dg_status dg_get_token_alignment_for_mega_moe_impl(dg_context *ctx, const struct dg_get_token_alignment_for_mega_moe_call *call)
{
    (void)ctx;
    *call->alignment = DG_MEGA_MOE_ALIGNMENT;
    return DG_OK;
}

dg_status dg_get_ring_limit_for_mega_moe_impl(dg_context *ctx, const struct dg_get_ring_limit_for_mega_moe_call *call)
{
    (void)ctx;
    const dg_status status = check_max_tokens("get_ring_limit_for_mega_moe", call->num_max_tokens_per_rank);
    if (status == DG_OK) {
        dg_mega_moe_ring_limit(call->num_max_tokens_per_rank, call->num_experts_per_rank, call->num_topk, call->num_ranks,
                               call->min_ring_tokens, call->max_ring_tokens);
    }
    return status;
}

dg_status dg_get_symm_buffer_size_for_mega_moe_impl(dg_context *ctx, const struct dg_get_symm_buffer_size_for_mega_moe_call *call)
{
    (void)ctx;
    const char *op = "get_symm_buffer_size_for_mega_moe";
    const struct dg_mega_moe_sizes sizes = {
        .num_ranks = call->num_ranks,
        .num_experts = call->num_experts,
        .max_tokens = call->num_max_tokens_per_rank,
        .topk = call->num_topk,
        .hidden = call->hidden,
        .intermediate = call->intermediate_hidden,
        .ring = call->num_ring_tokens,
        .with_sf = dg_str_equal(call->mma_type, "fp8xfp4"),
    };
    struct dg_mega_moe_layout layout;
    const dg_status status = dg_mega_moe_check_sizes(op, &sizes, &layout);
    if (status != DG_OK) {
        return status;
    }
    const int64_t info[] = { /* as _slice_symm_buffer_for_mega_moe reads it */
        sizes.max_tokens, sizes.hidden, sizes.intermediate, sizes.topk, sizes.ring, layout.sf_ring, sizes.with_sf,
        layout.x, layout.x_sf, layout.topk_idx, layout.topk_weights, layout.l1_acts, layout.l1_acts_sf, layout.l2_acts, layout.l2_acts_sf,
    };
    const size_t count = sizeof(info) / sizeof(info[0]);
    if (call->layout_info.capacity < count) {
        return dg_fail(DG_ERR_INVALID_ARGUMENT, "%s: layout_info has room for %zu members, expected %zu", op, call->layout_info.capacity,
                       count);
    }
    for (size_t i = 0; i < count; i++) {
        call->layout_info.data[i] = info[i];
    }
    *call->layout_info.len = count;
    *call->num_bytes = layout.num_bytes;
    return DG_OK;
}
