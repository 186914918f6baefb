/* The logits operators: from checked views to the structs of mqa_logits.h, and from there to a row of dg_mqa_logits_backends.
 *
 * The operators with FP8 only are those with FP8 and FP4, called without q_sf and with f32 logits.
 */
#include "mqa_logits.h"

#include "c/calls.h"
#include "choose.h"
#include "core/status.h"
#include "run.h"

#include <stdio.h>

/* ---- what all of them do ----------------------------------------------------------------------------------- */

/* Fills exec and gives the row that runs. */
static dg_status choose(struct dg_run *run, const char *op, dg_context *ctx, dg_device device, struct dg_exec *exec,
                        const struct dg_mqa_logits_backend **backend)
{
    dg_run_prepare(run, op, ctx, device, exec);
    struct dg_row rows[DG_MAX_ROWS];
    for (size_t i = 0; i < dg_mqa_logits_backends_count; i++) {
        const struct dg_mqa_logits_backend *row = &dg_mqa_logits_backends[i];
        rows[i] = (struct dg_row){row->name, row->device_type, row->device_type == device.type && row->can_run(), NULL};
    }
    size_t chosen = 0;
    const dg_status status = dg_choose_row(op, ctx, device, rows, dg_mqa_logits_backends_count, &chosen);
    *backend = &dg_mqa_logits_backends[chosen];
    return status;
}

static dg_status run_logits(const char *op, dg_context *ctx, dg_device device, struct dg_mqa_logits_args args)
{
    if (args.sequences == 0 || args.tokens == 0 || args.columns == 0) {
        return DG_OK;
    }
    struct dg_run run;
    const struct dg_mqa_logits_backend *backend;
    dg_status status = choose(&run, op, ctx, device, &args.exec, &backend);
    if (status == DG_OK) {
        status = dg_run_begin(&run, backend->workspace != NULL ? backend->workspace(&args) : 0, &args.exec);
    }
    if (status == DG_OK) {
        status = dg_run_end(&run, backend->run(&args));
    }
    return status;
}

/* q is [.., heads, head_dim] and q_sf [.., heads], the dots being tokens or sequences and tokens. */
static struct dg_mqa_queries queries(const struct dg_view *q, const struct dg_view *q_sf, const struct dg_view *weights)
{
    const int32_t head = q->ndim - 2;
    struct dg_mqa_queries result = {
        .codes = q->data,
        .stride_sequence = head == 2 ? q->strides[0] : 0,
        .stride_token = q->strides[head - 1],
        .stride_head = q->strides[head],
        .stride_dim = q->strides[head + 1],
        .weights = weights->data,
        .has_bf16_weights = weights->type == DG_TYPE_BF16,
        .weights_stride_row = weights->strides[0],
        .weights_stride_head = weights->strides[1],
    };
    if (q_sf != NULL && q_sf->is_given) {
        result.sf = q_sf->data;
        result.sf_stride_sequence = head == 2 ? q_sf->strides[0] : 0;
        result.sf_stride_token = q_sf->strides[head - 1];
        result.sf_stride_head = q_sf->strides[head];
    }
    return result;
}

static enum dg_mqa_type mqa_type(const struct dg_view *q)
{
    return q->type == DG_TYPE_F4E2M1 ? DG_MQA_F4E2M1 : DG_MQA_F8E4M3;
}

/* ---- contiguous keys --------------------------------------------------------------------------------------- */

static dg_status mqa_logits(const char *op, dg_context *ctx, const struct dg_fp8_fp4_mqa_logits_call *call)
{
    const struct dg_mqa_logits_args args = {
        .sequences = 1,
        .tokens = call->seq_len,
        .heads = call->heads,
        .head_dim = call->head_dim,
        .type = mqa_type(&call->q),
        .q = queries(&call->q, &call->q_sf, &call->weights),
        .keys = {
            .codes = call->kv.data,
            .stride_key = call->kv.strides[0],
            .stride_dim = call->kv.strides[1],
            .sf = call->kv_sf.data,
            .sf_stride_key = call->kv_sf.strides[0],
            .page_keys = call->seq_len_kv > 0 ? call->seq_len_kv : 1,
        },
        .ranges = {
            .begin = call->cu_seq_len_k_start.data,
            .begin_stride_token = call->cu_seq_len_k_start.strides[0],
            .end = call->cu_seq_len_k_end.data,
            .end_stride_token = call->cu_seq_len_k_end.strides[0],
            .num_keys = call->seq_len_kv,
        },
        .logits = call->logits.data,
        .has_bf16_logits = call->logits.type == DG_TYPE_BF16,
        .stride_row = call->logits.strides[0],
        .columns = call->columns,
        .is_compressed = call->max_seqlen_k > 0,
        .fills_rest = call->clean_logits,
    };
    return run_logits(op, ctx, call->logits.device, args);
}

dg_status dg_fp8_fp4_mqa_logits_impl(dg_context *ctx, const struct dg_fp8_fp4_mqa_logits_call *call)
{
    return mqa_logits("fp8_fp4_mqa_logits", ctx, call);
}

dg_status dg_fp8_mqa_logits_impl(dg_context *ctx, const struct dg_fp8_mqa_logits_call *call)
{
    const struct dg_fp8_fp4_mqa_logits_call same = {
        .q = call->q,
        .kv = call->kv,
        .kv_sf = call->kv_sf,
        .weights = call->weights,
        .cu_seq_len_k_start = call->cu_seq_len_k_start,
        .cu_seq_len_k_end = call->cu_seq_len_k_end,
        .clean_logits = call->clean_logits,
        .max_seqlen_k = call->max_seqlen_k,
        .seq_len = call->seq_len,
        .heads = call->heads,
        .head_dim = call->head_dim,
        .seq_len_kv = call->seq_len_kv,
        .columns = call->columns,
        .logits = call->logits,
    };
    return mqa_logits("fp8_mqa_logits", ctx, &same);
}

/* ---- paged keys -------------------------------------------------------------------------------------------- */

/* On the CPU: block_table has a page for every key of a context, and the cache has that page. */
static dg_status check_pages(const char *op, const struct dg_mqa_logits_args *args, int64_t max_pages, int64_t pages,
                             bool has_lens_of_tokens)
{
    for (int64_t s = 0; s < args->sequences; s++) {
        int64_t keys = 0;
        for (int64_t t = 0; t < args->tokens; t++) {
            const int64_t end = dg_mqa_range_of(&args->ranges, args->tokens, s, t).end;
            if ((end + args->keys.page_keys - 1) / args->keys.page_keys > max_pages) {
                char place[64];
                snprintf(place, sizeof(place), has_lens_of_tokens ? "%lld, %lld" : "%lld", (long long)s, (long long)t);
                return dg_fail(DG_ERR_INVALID_ARGUMENT,
                               "%s: context_lens[%s] has %lld keys below max_context_len, but block_table has only %lld pages of %lld keys", op,
                               place, (long long)end, (long long)max_pages, (long long)args->keys.page_keys);
            }
            keys = end > keys ? end : keys;
        }
        for (int64_t i = 0; i * args->keys.page_keys < keys; i++) {
            const int32_t page = args->keys.table[s * args->keys.table_stride_sequence + i * args->keys.table_stride_page];
            if (page < -1 || page >= pages) {
                return dg_fail(DG_ERR_INVALID_ARGUMENT,
                               "%s: block_table[%lld, %lld] is %d, expected a page of kv_cache, 0 .. %lld, or -1", op, (long long)s,
                               (long long)i, (int)page, (long long)pages - 1);
            }
        }
    }
    return DG_OK;
}

static dg_status paged_mqa_logits(const char *op, dg_context *ctx, const struct dg_fp8_fp4_paged_mqa_logits_call *call)
{
    const bool has_lens_of_tokens = call->context_lens.ndim == 2;
    const bool is_fp4 = call->q.type == DG_TYPE_F4E2M1;
    const struct dg_mqa_logits_args args = {
        .sequences = call->batch,
        .tokens = call->next_n,
        .heads = call->heads,
        .head_dim = call->head_dim,
        .type = mqa_type(&call->q),
        .q = queries(&call->q, &call->q_sf, &call->weights),
        .keys = {
            .codes = call->kv_cache.data,
            .stride_key = is_fp4 ? 2 * call->key_bytes : call->key_bytes,
            .stride_dim = 1,
            .sf = call->pages > 0 ? (const uint8_t *)call->kv_cache.data + call->block_kv * call->key_bytes : NULL,
            .sf_stride_key = 1,
            .page_keys = call->block_kv,
            .page_bytes = call->kv_cache.strides[0],
            .table = call->block_table.data,
            .table_stride_sequence = call->block_table.strides[0],
            .table_stride_page = call->block_table.strides[1],
        },
        .ranges = {
            .end = call->context_lens.data,
            .end_stride_sequence = call->context_lens.strides[0],
            .end_stride_token = has_lens_of_tokens ? call->context_lens.strides[1] : 0,
            .end_is_of_last_token = !has_lens_of_tokens,
            .num_keys = call->max_context_len,
        },
        .logits = call->logits.data,
        .has_bf16_logits = call->logits.type == DG_TYPE_BF16,
        .stride_row = call->logits.strides[0],
        .columns = call->max_context_len,
        .fills_rest = call->clean_logits,
    };
    if (call->logits.device.type == DG_CPU) {
        const dg_status status = check_pages(op, &args, call->max_pages, call->pages, has_lens_of_tokens);
        if (status != DG_OK) {
            return status;
        }
    }
    return run_logits(op, ctx, call->logits.device, args);
}

dg_status dg_fp8_fp4_paged_mqa_logits_impl(dg_context *ctx, const struct dg_fp8_fp4_paged_mqa_logits_call *call)
{
    return paged_mqa_logits("fp8_fp4_paged_mqa_logits", ctx, call);
}

dg_status dg_fp8_paged_mqa_logits_impl(dg_context *ctx, const struct dg_fp8_paged_mqa_logits_call *call)
{
    const struct dg_fp8_fp4_paged_mqa_logits_call same = {
        .q = call->q,
        .kv_cache = call->kv_cache,
        .weights = call->weights,
        .context_lens = call->context_lens,
        .block_table = call->block_table,
        .schedule_meta = call->schedule_meta,
        .max_context_len = call->max_context_len,
        .clean_logits = call->clean_logits,
        .indices = call->indices,
        .batch = call->batch,
        .next_n = call->next_n,
        .heads = call->heads,
        .head_dim = call->head_dim,
        .pages = call->pages,
        .block_kv = call->block_kv,
        .max_pages = call->max_pages,
        .slots = call->slots,
        .key_bytes = call->head_dim,
        .logits = call->logits,
    };
    return paged_mqa_logits("fp8_paged_mqa_logits", ctx, &same);
}

/* ---- schedule ---------------------------------------------------------------------------------------------- */

dg_status dg_get_paged_mqa_logits_metadata_impl(dg_context *ctx, const struct dg_get_paged_mqa_logits_metadata_call *call)
{
    const char *op = "get_paged_mqa_logits_metadata";
    const struct dg_view *lens = &call->context_lens;
    const int64_t next_n = lens->ndim == 2 ? lens->shape[1] : 1;
    struct dg_mqa_schedule_args args = {
        .batch = next_n > 0 ? call->batch : 0,
        .next_n = next_n,
        .lens = lens->data,
        .lens_stride = lens->strides[0],
        .num_slots = call->num_sms,
        .schedule = call->schedule_meta.data,
    };
    if (args.batch > 0 && next_n > 1) {
        args.lens += (next_n - 1) * lens->strides[1];
    }
    if (args.batch > 0 && call->indices.is_given) {
        args.indices = call->indices.data;
        args.indices_stride = call->indices.strides[0];
    }
    struct dg_run run;
    const struct dg_mqa_logits_backend *backend;
    dg_status status = choose(&run, op, ctx, call->schedule_meta.device, &args.exec, &backend);
    if (status == DG_OK) {
        status = dg_run_begin(&run, 0, &args.exec);
    }
    if (status == DG_OK) {
        status = dg_run_end(&run, backend->schedule(&args));
    }
    return status;
}
