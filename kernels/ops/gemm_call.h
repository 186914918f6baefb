/* How operators call the GEMM family: from checked views to struct dg_gemm_args, and from there to a row of dg_gemm_backends.
 *
 * nt, nn, tn and tt are one formula: a transposed operand, and its scales, only swaps strides. An operator of many products, one per group
 * or head, is a list of GEMMs that differ in pointers and sizes.
 */
#ifndef DG_OPS_GEMM_CALL_H
#define DG_OPS_GEMM_CALL_H

#include "core/check.h"
#include "gemm.h"

/* How the last two dimensions of an operand and of its scales are given: [mn, k], or transposed, [k, mn]. */
enum dg_gemm_order { DG_MN_FIRST, DG_K_FIRST };

/* One side of the product. */
struct dg_gemm_side {
    struct dg_gemm_operand operand;
    struct dg_gemm_scale scale;
    int64_t mn, k;
};

/* The last two dimensions of x; of more dimensions, those at index 0. */
struct dg_gemm_side dg_gemm_plain(const struct dg_view *x, enum dg_gemm_order order);
struct dg_gemm_side dg_gemm_scaled(const struct dg_view *x, const struct dg_view *sf, enum dg_gemm_order order, int64_t gran_mn,
                                   int64_t gran_k);

/* d = c + a b, everything but exec. d and c are taken like the operands; c may be NULL or not given. */
struct dg_gemm_args dg_gemm_args_of(struct dg_gemm_side a, struct dg_gemm_side b, const struct dg_view *d, const struct dg_view *c);

/* The address of an element that lies `elements` behind data. For F4E2M1 an even number of them. */
static inline const void *dg_gemm_address(const void *data, enum dg_gemm_type type, int64_t elements)
{
    switch (type) {
    case DG_GEMM_BF16: return (const uint8_t *)data + elements * 2;
    case DG_GEMM_F8E4M3: return (const uint8_t *)data + elements;
    case DG_GEMM_F4E2M1: return (const uint8_t *)data + elements / 2;
    case DG_GEMM_F32: return (const uint8_t *)data + elements * 4;
    }
    return data;
}

/* Moves an operand, scales (whose words have 4 bytes of either kind), or d and c with it. */
static inline void dg_gemm_move(struct dg_gemm_operand *x, int64_t elements)
{
    x->data = dg_gemm_address(x->data, x->type, elements);
}

static inline void dg_gemm_move_scale(struct dg_gemm_scale *s, int64_t words)
{
    if (s->type != DG_SCALE_NONE) {
        s->data = (const uint8_t *)s->data + words * 4;
    }
}

static inline void dg_gemm_move_output(struct dg_gemm_args *args, int64_t d_elements, int64_t c_elements)
{
    args->d = (uint8_t *)args->d + d_elements * (args->d_type == DG_GEMM_F32 ? 4 : 2);
    if (args->c != NULL) {
        args->c = dg_gemm_address(args->c, args->d_type, c_elements);
    }
}

/* Runs one GEMM, in the best row that takes it. One of m or n = 0 is nothing to do. */
DG_MUST_USE dg_status dg_gemm_run(const char *op, dg_context *ctx, dg_device device, struct dg_gemm_args args);

/* `count` GEMMs. get() gives the i-th, everything but exec; any number of threads may call it at once. */
struct dg_gemm_list {
    int64_t count;
    void (*get)(const void *source, int64_t i, struct dg_gemm_args *args);
    const void *source;
};

/* Runs them all in one row, the best that takes every one; their order is not specified, so none may write what another reads or writes.
 * On the CPU a large GEMM has all threads, and small ones run side by side, one thread each. The results are those of dg_gemm_run(). */
DG_MUST_USE dg_status dg_gemm_run_list(const char *op, dg_context *ctx, dg_device device, const struct dg_gemm_list *list);

/* Fails as dg_gemm_run_list() would where no row takes the GEMMs: for operators that write something before they come to them. */
DG_MUST_USE dg_status dg_gemm_check_list(const char *op, dg_context *ctx, dg_device device, const struct dg_gemm_list *list);

#endif
