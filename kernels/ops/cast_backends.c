/* The cast kernels of this build, best first. The build defines DG_WITH_<NAME> for those that it compiled. */
#include "cast.h"
#include "deep_gemm/deep_gemm.h"

static bool always(void)
{
    return true;
}

const struct dg_cast_backend dg_cast_backends[] = {
#ifdef DG_WITH_CUDA
    {"sm80", DG_CUDA, always, dg_cast_sm80, dg_cast_back_sm80},
#endif
#ifdef DG_WITH_AVX512
    {"avx512", DG_CPU, dg_cast_avx512_can_run, dg_cast_avx512, dg_cast_back_avx512},
#endif
#ifdef DG_WITH_AVX2
    {"avx2", DG_CPU, dg_cast_avx2_can_run, dg_cast_avx2, dg_cast_back_avx2},
#endif
    {"ref", DG_CPU, always, dg_cast_ref, dg_cast_back_ref},
};

const size_t dg_cast_backends_count = sizeof(dg_cast_backends) / sizeof(dg_cast_backends[0]);
