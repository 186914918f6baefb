/* The logits kernels of this build, best first. The build defines DG_WITH_<NAME> for those that it compiled. */
#include "deep_gemm/deep_gemm.h"
#include "mqa_logits.h"

static bool always(void)
{
    return true;
}

const struct dg_mqa_logits_backend dg_mqa_logits_backends[] = {
#ifdef DG_WITH_CUDA
    {"sm80", DG_CUDA, always, NULL, dg_mqa_logits_sm80, dg_mqa_schedule_sm80},
#endif
#ifdef DG_WITH_AMX
    {"amx", DG_CPU, dg_mqa_logits_amx_can_run, dg_mqa_logits_amx_workspace, dg_mqa_logits_amx, dg_mqa_schedule_ref},
#endif
#ifdef DG_WITH_AVX512
    {"avx512", DG_CPU, dg_mqa_logits_avx512_can_run, dg_mqa_logits_avx512_workspace, dg_mqa_logits_avx512, dg_mqa_schedule_ref},
#endif
#ifdef DG_WITH_AVX2
    {"avx2", DG_CPU, dg_mqa_logits_avx2_can_run, dg_mqa_logits_avx2_workspace, dg_mqa_logits_avx2, dg_mqa_schedule_ref},
#endif
    {"ref", DG_CPU, always, NULL, dg_mqa_logits_ref, dg_mqa_schedule_ref},
};

const size_t dg_mqa_logits_backends_count = sizeof(dg_mqa_logits_backends) / sizeof(dg_mqa_logits_backends[0]);
