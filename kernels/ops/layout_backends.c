/* The layout kernels of this build, best first. */
#include "deep_gemm/deep_gemm.h"
#include "layout.h"

const struct dg_layout_backend dg_layout_backends[] = {
#ifdef DG_WITH_CUDA
    {"sm80", DG_CUDA, dg_scale_copy_sm80, dg_scale_pack_sm80, NULL, dg_scale_pack_k_grouped_sm80},
#endif
    {"ref", DG_CPU, dg_scale_copy_ref, dg_scale_pack_ref, dg_scale_find_unpackable_ref, dg_scale_pack_k_grouped_ref},
};

const size_t dg_layout_backends_count = sizeof(dg_layout_backends) / sizeof(dg_layout_backends[0]);
