/* Mega MoE: a whole MoE layer over a symmetric buffer, and where everything lies in that buffer.
 *
 *   dispatch   the rows of x that an expert is to see are copied into the ring, expert after expert
 *   L1         [gate | up] = ring row @ l1_weights[expert].T, in f32
 *   activate   h = weight * silu(gate) * up, in f32; into the ring of the second layer as BF16, or by the cast family as FP8 with scales
 *   L2         row of terms = h @ l2_weights[expert].T, in bf16
 *   scatter    terms go to the slot [k][token] of the combine buffer
 *   combine    y[token] = sum over k of its slots, in f32
 *
 * When the rows do not fit the ring, all but the last step go over them in waves. On the CPU kernels/ops/mega_moe.c plans the waves; both
 * layers are lists of GEMMs, one per expert, in the best row of dg_gemm_backends. The other steps are below, and kernels/cpu/mega_moe_ref.c
 * has them. On CUDA the routes stay on the device, and kernels/cuda/mega_moe_sm80.cu has the whole.
 */
#ifndef DG_OPS_MEGA_MOE_H
#define DG_OPS_MEGA_MOE_H

#include "exec.h"

#include <stdbool.h>

/* ---- the symmetric buffer --------------------------------------------------------------------------------- */

enum {
    DG_MEGA_MOE_ALIGNMENT = 384, /* of token counts: the least common multiple of all block heights that kernels may have, 8 to 192 */
    DG_MEGA_MOE_SF_BLOCK = 128 / 8, /* rows of a scale ring per row of the ring: a block of 8 rows may keep its scales as one of 128 */
    DG_MEGA_MOE_GRAN = 32 /* columns per scale */
};

struct dg_mega_moe_sizes {
    int64_t num_ranks;
    int64_t num_experts; /* of all ranks */
    int64_t max_tokens;  /* per rank */
    int64_t topk;
    int64_t hidden;
    int64_t intermediate;
    int64_t ring; /* tokens */
    bool with_sf; /* FP8 with scales; otherwise BF16 */
};

/* Byte offsets. Each part begins at a multiple of 128. */
struct dg_mega_moe_layout {
    int64_t sf_ring;      /* rows of the scales of the rings */
    int64_t x;            /* codes [max_tokens, hidden] */
    int64_t x_sf;         /* int32 words of four UE8M0 bytes, [max_tokens, hidden / 128] */
    int64_t topk_idx;     /* int64 [max_tokens, topk] */
    int64_t topk_weights; /* f32 [max_tokens, topk] */
    int64_t l1_acts;      /* codes [ring, hidden] */
    int64_t l1_acts_sf;   /* words [hidden / 128, sf_ring] */
    int64_t l1_weights;   /* f32 [ring], the routing weight of each row */
    int64_t l2_acts;      /* codes [ring, intermediate] */
    int64_t l2_acts_sf;   /* words [intermediate / 128, sf_ring] */
    int64_t combine;      /* bf16 [topk, max_tokens, hidden] */
    int64_t row_slots;    /* int32 [max_tokens, topk]: token * topk + k of each row, expert after expert; on CUDA */
    int64_t row_ends;     /* int32 [experts of the rank]: where the rows of each end; on CUDA */
    int64_t num_bytes;    /* of all; INT64_MAX when it does not fit */
};

struct dg_mega_moe_layout dg_mega_moe_layout_of(const struct dg_mega_moe_sizes *sizes);

/* The least ring, which holds all tokens for one expert, and the greatest, which holds all that the experts of a rank can receive. */
void dg_mega_moe_ring_limit(int64_t max_tokens, int64_t experts_per_rank, int64_t topk, int64_t num_ranks, int64_t *least, int64_t *greatest);

/* ---- kernels ---------------------------------------------------------------------------------------------- */

/* The steps between the GEMMs, for the rows of one wave; combine is for all tokens. */
struct dg_mega_moe_args {
    int64_t num_tokens, max_tokens, topk, hidden, intermediate;
    bool with_sf;

    /* in the symmetric buffer, as in struct dg_mega_moe_layout */
    const uint8_t *x;
    const uint32_t *x_sf;
    const int64_t *topk_idx;
    const float *topk_weights;
    uint8_t *l1_acts;
    uint32_t *l1_acts_sf;
    float *l1_weights;
    uint8_t *l2_acts;
    uint32_t *l2_acts_sf;
    int64_t sf_ring;
    uint16_t *combine;

    int64_t rows;         /* of the wave, in [0, rows) of both rings */
    const int64_t *slots; /* [rows]: token * topk + k of each */
    float *gate_up;       /* [rows, 2 * intermediate], the result of L1: 8 columns of gate, 8 of up, 8 of gate, ...; then h, in the first
                           * half of each row */
    float clamp;          /* gate is at most this, |up| too; infinity: no limit */
    const uint16_t *terms; /* bf16 [rows, hidden], the result of L2 */

    uint16_t *y; /* bf16 [num_tokens, hidden], rows y_stride elements apart */
    int64_t y_stride;

    struct dg_exec exec;
};

dg_kernel_result dg_mega_moe_dispatch_ref(const struct dg_mega_moe_args *args);
dg_kernel_result dg_mega_moe_activate_ref(const struct dg_mega_moe_args *args);
dg_kernel_result dg_mega_moe_scatter_ref(const struct dg_mega_moe_args *args);
dg_kernel_result dg_mega_moe_combine_ref(const struct dg_mega_moe_args *args);

/* The whole, for a device on which the routes stay: it counts an index that is no expert as -1. */

struct dg_mega_moe_weights {
    const void *data;    /* [experts, n, k], contiguous: F4E2M1 with scales, BF16 otherwise */
    const uint32_t *sf;  /* words [experts, n, k / 128]; of each 128 rows in the order 0, 32, 64, 96, 1, 33, ... */
    int64_t sf_stride_expert, sf_stride_row, sf_stride_word;
};

struct dg_mega_moe_layer_args {
    struct dg_mega_moe_args steps; /* but for what is of a wave */
    int64_t num_experts, ring;
    struct dg_mega_moe_weights l1_weights; /* n = 2 * intermediate, k = hidden */
    struct dg_mega_moe_weights l2_weights; /* n = hidden, k = intermediate */
    uint32_t *recv_stats; /* [num_experts], of int32 that may wrap: the rows of each are added; NULL: none */
    int32_t *row_slots, *row_ends; /* in the symmetric buffer */
};

/* num_tokens > 0; num_tokens * topk fits an int32. */
dg_kernel_result dg_mega_moe_sm80(const struct dg_mega_moe_layer_args *args);

#endif
