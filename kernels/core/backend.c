/* Which backends exist, and what each needs of the build and of the machine. The build defines DG_WITH_<NAME>=1 for those
 * that it compiled; ref is always there. */
#include "backend.h"

#include "cpu.h"
#include "cuda/device.h"

#include <string.h>

#ifndef DG_WITH_AVX2
#define DG_WITH_AVX2 0
#endif
#ifndef DG_WITH_AVX512
#define DG_WITH_AVX512 0
#endif
#ifndef DG_WITH_AMX
#define DG_WITH_AMX 0
#endif
#ifndef DG_WITH_CUDA
#define DG_WITH_CUDA 0
#endif
#ifndef DG_WITH_SM90
#define DG_WITH_SM90 0
#endif

static bool is_any(int32_t device_id)
{
    (void)device_id;
    return true;
}

static bool has_avx2(int32_t device_id)
{
    (void)device_id;
    return dg_cpu()->has_avx2;
}

static bool has_avx512(int32_t device_id)
{
    (void)device_id;
    return dg_cpu()->has_avx512;
}

static bool has_amx(int32_t device_id)
{
    (void)device_id;
    return dg_cpu()->has_amx_bf16;
}

static bool has_sm80(int32_t device_id)
{
#if DG_WITH_CUDA
    return dg_cuda_available(device_id) && dg_cuda_compute_capability(device_id) >= 80;
#else
    (void)device_id;
    return false;
#endif
}

static bool has_sm90(int32_t device_id)
{
#if DG_WITH_SM90
    return dg_cuda_compute_capability(device_id) == 90;
#else
    (void)device_id;
    return false;
#endif
}

static const struct {
    const char *name;
    int32_t device_type;
    bool is_built;
    bool (*can_run)(int32_t device_id);
} backends[] = {
    {"ref", DG_CPU, true, is_any},
    {"avx2", DG_CPU, DG_WITH_AVX2, has_avx2},
    {"avx512", DG_CPU, DG_WITH_AVX512, has_avx512},
    {"amx", DG_CPU, DG_WITH_AMX, has_amx},
    {"sm80", DG_CUDA, DG_WITH_CUDA, has_sm80},
    {"sm90", DG_CUDA, DG_WITH_SM90, has_sm90},
};

const char *const dg_backend_names = "ref, avx2, avx512, amx, sm80 or sm90";

enum { NUM_BACKENDS = sizeof(backends) / sizeof(backends[0]) };

bool dg_backend_exists(const char *name)
{
    for (int i = 0; i < NUM_BACKENDS; i++) {
        if (strcmp(backends[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

bool dg_backend_available(const char *backend, dg_device device)
{
    for (int i = 0; backend != NULL && i < NUM_BACKENDS; i++) {
        if (backends[i].device_type == device.type && strcmp(backends[i].name, backend) == 0) {
            return backends[i].is_built && backends[i].can_run(device.id);
        }
    }
    return false;
}

bool dg_has_cuda(void)
{
    return DG_WITH_CUDA;
}
