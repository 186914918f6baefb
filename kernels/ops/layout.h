/* The layout family: kernels that bring block scales into the layout that GEMMs read fastest. They move 4-byte words between
 * strided matrices, and pack f32 scales into UE8M0 words on the way where asked.
 *
 * kernels/ops/layout.c fills the structs from checked views and picks a row of dg_layout_backends.
 */
#ifndef DG_OPS_LAYOUT_H
#define DG_OPS_LAYOUT_H

#include "exec.h"

#include <stdbool.h>

/* Word (g, i, q), of group g, row i of the operand, block or word q along k, is at data[g * stride_group + i * stride_mn +
 * q * stride_k]. Strides count words of 4 bytes; any value. */
struct dg_scale_matrix {
    void *data;
    int64_t stride_group;
    int64_t stride_mn;
    int64_t stride_k;
};

/* to(g, i, q) = from(g, i, q), bit by bit, for [groups, mn, k_blocks]. */
struct dg_scale_copy_args {
    int64_t groups, mn, k_blocks;
    struct dg_scale_matrix from, to;
    struct dg_exec exec;
};

/* Byte j of to(g, i, q) = UE8M0 code of from(g, i / gran_mn, 4 * q + j), lowest byte first; 0 beyond k_blocks.
 * to is [groups, mn, ceil(k_blocks / 4)] of u32, from is f32 [groups, ceil(mn / gran_mn), k_blocks].
 *
 * Codes: 2^e has e + 127 for e in -127 .. 127; 0 has 0. Everything else has 255, which is NaN. */
struct dg_scale_pack_args {
    int64_t groups, mn, k_blocks;
    int64_t gran_mn; /* rows of to that share a row of from */
    struct dg_scale_matrix from, to;

    /* Which rows are in use; ends == NULL: all. Group p of a psum layout has the rows from the end of group p - 1, rounded up to
     * alignment, to ends[p * ends_stride]. Other rows of from are not read, and pack as 0. */
    const int32_t *ends;
    int64_t num_ends, ends_stride;
    int64_t alignment;

    struct dg_exec exec;
};

/* k-grouped: from is f32 [from_rows, mn], the scales of all groups one below the other, group g with ceil(k_g / gran_k) rows. Each group
 * is packed on its own into ceil(k_g / (4 * gran_k)) rows of to, [to_rows, mn]; rows of to beyond the last group are 0. stride_k is that of
 * rows, stride_mn that of columns; stride_group is not used.
 *
 * layout, in memory of the device, has the sizes k_g; sizes has the same in host memory. With is_psum, layout has the end of each group
 * instead, which begins at the end of the one before rounded up to k_alignment, and sizes is NULL. */
struct dg_scale_pack_k_grouped_args {
    int64_t groups, mn;
    int64_t from_rows, to_rows;
    struct dg_scale_matrix from, to;
    const int64_t *sizes;
    const int32_t *layout;
    int64_t layout_stride;
    bool is_psum;
    int64_t gran_k, k_alignment;
    struct dg_exec exec;
};

/* Size k_g of group g, on the host. Groups are asked in order; *end carries the end of the group before, 0 at first. With psum, a
 * group whose end is not behind its begin is empty, as in the grouped GEMMs. */
static inline int64_t dg_k_group_size(const struct dg_scale_pack_k_grouped_args *args, int64_t g, int64_t *end)
{
    if (!args->is_psum) {
        return args->sizes[g];
    }
    const int64_t begin = (*end + args->k_alignment - 1) / args->k_alignment * args->k_alignment;
    *end = args->layout[g * args->layout_stride];
    return *end > begin ? *end - begin : 0;
}

/* A row of the table: all kernels of the family for one backend. */
struct dg_layout_backend {
    const char *name;
    int32_t device_type; /* DG_CPU = 1 or DG_CUDA = 2 */
    dg_kernel_result (*copy)(const struct dg_scale_copy_args *args);
    dg_kernel_result (*pack)(const struct dg_scale_pack_args *args);
    /* Index, in from [groups, ceil(mn / gran_mn), k_blocks], of the first scale in use that is neither NaN nor has a code of its own; -1: none.
     * NULL: this backend cannot look at data before it returns. */
    int64_t (*find_unpackable)(const struct dg_scale_pack_args *args);
    dg_kernel_result (*pack_k_grouped)(const struct dg_scale_pack_k_grouped_args *args);
};

/* Best first; any row runs on any machine of its device. */
extern const struct dg_layout_backend dg_layout_backends[];
extern const size_t dg_layout_backends_count;

/* Kernels, kernels/cpu/layout_ref.c. */
dg_kernel_result dg_scale_copy_ref(const struct dg_scale_copy_args *args);
dg_kernel_result dg_scale_pack_ref(const struct dg_scale_pack_args *args);
int64_t dg_scale_find_unpackable_ref(const struct dg_scale_pack_args *args);
dg_kernel_result dg_scale_pack_k_grouped_ref(const struct dg_scale_pack_k_grouped_args *args);

/* kernels/cuda/layout_sm80.cu. */
dg_kernel_result dg_scale_copy_sm80(const struct dg_scale_copy_args *args);
dg_kernel_result dg_scale_pack_sm80(const struct dg_scale_pack_args *args);
dg_kernel_result dg_scale_pack_k_grouped_sm80(const struct dg_scale_pack_k_grouped_args *args);

#endif
