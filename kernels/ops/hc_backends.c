/* The hyperconnection kernels of this build, best first. The build defines DG_WITH_<NAME> for those that it compiled. */
#include "deep_gemm/deep_gemm.h"
#include "hc.h"

static bool always(const struct dg_hc_args *args)
{
    (void)args;
    return true;
}

const struct dg_hc_backend dg_hc_backends[] = {
#ifdef DG_WITH_CUDA
#ifdef DG_WITH_SM90
    {"sm90", DG_CUDA, dg_hc_sm90_can_run, NULL, dg_hc_sm90, "rows of a and b that begin at multiples of 16 bytes"},
#endif
    {"sm80", DG_CUDA, always, NULL, dg_hc_sm80, NULL},
#endif
#ifdef DG_WITH_AVX512
    {"avx512", DG_CPU, dg_hc_avx512_can_run, dg_hc_avx512_workspace, dg_hc_avx512, NULL},
#endif
#ifdef DG_WITH_AVX2
    {"avx2", DG_CPU, dg_hc_avx2_can_run, dg_hc_avx2_workspace, dg_hc_avx2, NULL},
#endif
    {"ref", DG_CPU, always, NULL, dg_hc_ref, NULL},
};

const size_t dg_hc_backends_count = sizeof(dg_hc_backends) / sizeof(dg_hc_backends[0]);
