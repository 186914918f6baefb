/* The logits family: scores of a sparse-attention indexer, whose query heads share one key head.
 *
 *   logits[r, j] = key_scale(j) * sum over h of weights[r, h] * max(0, sum over x of q(r, h, x) * key(j, x)),    begin(r) <= j < end(r)
 *
 * Row r of the result is token t of sequence s, r = s * tokens + t. A contiguous key buffer is one sequence whose keys lie on one
 * page. kernels/ops/mqa_logits.c fills the struct from checked views and picks a row of dg_mqa_logits_backends; read
 * kernels/cpu/mqa_logits_ref.c first, it is the meaning of the formula.
 *
 * max(0, NaN) is NaN, so a NaN in a key makes all logits of the key NaN, and one in a query all of the query.
 */
#ifndef DG_OPS_MQA_LOGITS_H
#define DG_OPS_MQA_LOGITS_H

#include "exec.h"

#include <stdbool.h>

enum dg_mqa_type { DG_MQA_F8E4M3, DG_MQA_F4E2M1 };

/* FP4 counts nibbles, the even one low. Strides count elements; any value. */
struct dg_mqa_queries {
    const uint8_t *codes; /* [sequences, tokens, heads, head_dim] */
    int64_t stride_sequence, stride_token, stride_head, stride_dim;

    /* MX formats: a word for each head, byte g of which, lowest first, is the UE8M0 scale of elements 32 * g .. 32 * g + 31. NULL: no
     * scales of queries, and keys have one f32 scale each. Otherwise keys have such words too and no other scale. */
    const uint32_t *sf; /* [sequences, tokens, heads] */
    int64_t sf_stride_sequence, sf_stride_token, sf_stride_head;

    const void *weights; /* [rows, heads] of f32 or bf16 */
    bool has_bf16_weights;
    int64_t weights_stride_row, weights_stride_head;
};

/* Key j of sequence s is number j % page_keys on the page table[s * table_stride_sequence + j / page_keys * table_stride_page]. Entry -1
 * means that there is no such key: its logits are -inf. table == NULL: all keys of the one sequence are on page 0. */
struct dg_mqa_keys {
    const uint8_t *codes; /* [page_keys, head_dim] of page 0 */
    int64_t stride_key, stride_dim;
    const uint8_t *sf; /* [page_keys] of page 0: f32, or words as in dg_mqa_queries; no alignment is assumed */
    int64_t sf_stride_key;
    int64_t page_keys;
    int64_t page_bytes; /* from page to page, of codes and of sf */
    const int32_t *table;
    int64_t table_stride_sequence, table_stride_page;
};

/* begin(r) is cut to 0 .. num_keys and end(r) to begin(r) .. num_keys. */
struct dg_mqa_ranges {
    const int32_t *begin; /* [tokens] of one sequence; NULL: 0 */
    int64_t begin_stride_token;
    const int32_t *end; /* [sequences, tokens] */
    int64_t end_stride_sequence, end_stride_token;
    bool end_is_of_last_token; /* the last token sees all end keys, each one before it one key less */
    int64_t num_keys;
};

struct dg_mqa_logits_args {
    int64_t sequences, tokens, heads, head_dim;
    enum dg_mqa_type type; /* of queries and keys */
    struct dg_mqa_queries q;
    struct dg_mqa_keys keys;
    struct dg_mqa_ranges ranges;

    void *logits; /* [sequences * tokens, columns] of f32 or bf16 */
    bool has_bf16_logits;
    int64_t stride_row, columns;

    /* Compressed: key j of row r is in column j - begin(r), and has none from `columns` on. Otherwise it is in column j, and columns ==
     * num_keys. Columns without a key stay as they are, or, with fills_rest (never compressed), become -inf. */
    bool is_compressed;
    bool fills_rest;

    struct dg_exec exec;
};

struct dg_mqa_range {
    int64_t begin, end;
};

/* The keys of token t of sequence s. */
static inline struct dg_mqa_range dg_mqa_range_of(const struct dg_mqa_ranges *x, int64_t tokens, int64_t s, int64_t t)
{
    int64_t begin = x->begin != NULL ? x->begin[t * x->begin_stride_token] : 0;
    int64_t end = x->end[s * x->end_stride_sequence + t * x->end_stride_token];
    if (x->end_is_of_last_token) {
        end -= tokens - 1 - t;
    }
    begin = begin < 0 ? 0 : begin > x->num_keys ? x->num_keys : begin;
    end = end < begin ? begin : end > x->num_keys ? x->num_keys : end;
    return (struct dg_mqa_range){begin, end};
}

/* The work schedule of paged logits: where each of num_slots slots begins, and, in row num_slots, one past the end of all work.
 *
 * An atom is up to two tokens that share a pass over keys: of the next_n tokens of a sequence, or, with indices, two entries in
 * a row of equal index. Its work is that of its last token, in splits of 256 keys. Atoms are numbered one by one, or, with indices, by
 * their first entry. */
struct dg_mqa_schedule_args {
    int64_t batch, next_n;
    const int32_t *lens; /* [batch], the last of each sequence */
    int64_t lens_stride;
    const int32_t *indices; /* [batch], or NULL; next_n is 1 with it */
    int64_t indices_stride;
    int64_t num_slots;
    int32_t *schedule; /* [num_slots + 1, 2], compact: atom, split */
    struct dg_exec exec;
};

/* A row of the table. can_run says whether this machine has the instructions; run may rely on it. There are rows and columns when run
 * is called: empty outputs never get here. */
struct dg_mqa_logits_backend {
    const char *name;    /* "ref", "avx2", "avx512", "amx", "sm80" */
    int32_t device_type; /* DG_CPU = 1 or DG_CUDA = 2 */
    bool (*can_run)(void);
    size_t (*workspace)(const struct dg_mqa_logits_args *args); /* bytes; NULL: none */
    dg_kernel_result (*run)(const struct dg_mqa_logits_args *args);
    dg_kernel_result (*schedule)(const struct dg_mqa_schedule_args *args);
};

/* Best first; the last row of each device always runs. */
extern const struct dg_mqa_logits_backend dg_mqa_logits_backends[];
extern const size_t dg_mqa_logits_backends_count;

/* Kernels, one per file kernels/cpu/mqa_logits_<isa>.c or kernels/cuda/mqa_logits_<isa>.cu. */
dg_kernel_result dg_mqa_logits_ref(const struct dg_mqa_logits_args *args);
dg_kernel_result dg_mqa_schedule_ref(const struct dg_mqa_schedule_args *args);

/* One logit as dg_mqa_logits_ref() computes it, before it is rounded; the key is on a page. For values that leave the range of f32. */
double dg_mqa_logit(const struct dg_mqa_logits_args *args, int64_t s, int64_t t, int64_t j);

bool dg_mqa_logits_avx2_can_run(void);
size_t dg_mqa_logits_avx2_workspace(const struct dg_mqa_logits_args *args);
dg_kernel_result dg_mqa_logits_avx2(const struct dg_mqa_logits_args *args);

bool dg_mqa_logits_avx512_can_run(void);
size_t dg_mqa_logits_avx512_workspace(const struct dg_mqa_logits_args *args);
dg_kernel_result dg_mqa_logits_avx512(const struct dg_mqa_logits_args *args);

bool dg_mqa_logits_amx_can_run(void);
size_t dg_mqa_logits_amx_workspace(const struct dg_mqa_logits_args *args);
dg_kernel_result dg_mqa_logits_amx(const struct dg_mqa_logits_args *args);

/* Read lengths and pages on the device only; a page that the cache lacks is undefined behaviour there. */
dg_kernel_result dg_mqa_logits_sm80(const struct dg_mqa_logits_args *args);
dg_kernel_result dg_mqa_schedule_sm80(const struct dg_mqa_schedule_args *args);

#endif
