/* The GEMM kernels of this build, best first. The build defines DG_WITH_<NAME> for those that it compiled. */
#include "deep_gemm/deep_gemm.h"
#include "gemm.h"

static bool always(const struct dg_gemm_args *args)
{
    (void)args;
    return true;
}

const struct dg_gemm_backend dg_gemm_backends[] = {
#ifdef DG_WITH_CUDA
    {"sm80", DG_CUDA, dg_gemm_sm80_can_run, NULL, dg_gemm_sm80, NULL},
#endif
#ifdef DG_WITH_AMX
    {"amx", DG_CPU, dg_gemm_amx_can_run, dg_gemm_amx_workspace, dg_gemm_amx,
     "scales of whole rows or of blocks of a multiple of 32 along k"},
#endif
#ifdef DG_WITH_AVX512
    {"avx512", DG_CPU, dg_gemm_avx512_can_run, dg_gemm_avx512_workspace, dg_gemm_avx512, NULL},
#endif
#ifdef DG_WITH_AVX2
    {"avx2", DG_CPU, dg_gemm_avx2_can_run, dg_gemm_avx2_workspace, dg_gemm_avx2, NULL},
#endif
    {"ref", DG_CPU, always, NULL, dg_gemm_ref, NULL},
};

const size_t dg_gemm_backends_count = sizeof(dg_gemm_backends) / sizeof(dg_gemm_backends[0]);
