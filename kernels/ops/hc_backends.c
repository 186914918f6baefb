/* The hyperconnection kernels of this build, best first. The build defines DG_WITH_<NAME> for those that it compiled. */
#include "deep_gemm/deep_gemm.h"
#include "hc.h"

static bool always(void)
{
    return true;
}

const struct dg_hc_backend dg_hc_backends[] = {
#ifdef DG_WITH_CUDA
    {"sm80", DG_CUDA, always, NULL, dg_hc_sm80},
#endif
#ifdef DG_WITH_AVX512
    {"avx512", DG_CPU, dg_hc_avx512_can_run, dg_hc_avx512_workspace, dg_hc_avx512},
#endif
#ifdef DG_WITH_AVX2
    {"avx2", DG_CPU, dg_hc_avx2_can_run, dg_hc_avx2_workspace, dg_hc_avx2},
#endif
    {"ref", DG_CPU, always, NULL, dg_hc_ref},
};

const size_t dg_hc_backends_count = sizeof(dg_hc_backends) / sizeof(dg_hc_backends[0]);
