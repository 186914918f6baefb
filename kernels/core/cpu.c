/* CPUID, XGETBV and, for AMX, the permission of the operating system. */
#define _GNU_SOURCE
#include "cpu.h"

#include <pthread.h>

static struct dg_cpu cpu;
static pthread_once_t cpu_once = PTHREAD_ONCE_INIT;

#if defined(__x86_64__)

#include <cpuid.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ARCH_REQUEST_STATE_PERMISSION = 0x1023, STATE_XTILEDATA = 18 }; /* arch_prctl(ARCH_REQ_XCOMP_PERM), Linux 5.16 */

/* Which register files the operating system saves: XCR0. */
static uint64_t saved_states(void)
{
    uint32_t low;
    uint32_t high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool may_use_tiles(void)
{
    return syscall(SYS_arch_prctl, ARCH_REQUEST_STATE_PERMISSION, STATE_XTILEDATA) == 0;
}

static void ask_cpu(void)
{
    const uint64_t ymm_states = 0x6;     /* SSE and AVX */
    const uint64_t zmm_states = 0xe6;    /* and the mask registers and both halves of the zmm ones */
    const uint64_t tile_states = 0x60000; /* tile configuration and data */

    uint32_t eax;
    uint32_t ebx;
    uint32_t ecx;
    uint32_t edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & bit_OSXSAVE)) {
        return;
    }
    const bool has_fma_and_f16c = (ecx & bit_FMA) && (ecx & bit_F16C) && (ecx & bit_AVX);
    const uint64_t states = saved_states();

    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
        return;
    }
    const bool has_vbmi = (ecx & bit_AVX512VBMI) != 0;
    const bool has_gfni = (ecx & bit_GFNI) != 0;
    const bool has_amx_bf16 = (edx & 1u << 22) && (edx & 1u << 24); /* AMX-BF16 and AMX-TILE */
    const uint32_t avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;

    cpu.has_avx2 = has_fma_and_f16c && (ebx & bit_AVX2) && (states & ymm_states) == ymm_states;
    cpu.has_avx512 = cpu.has_avx2 && (ebx & avx512) == avx512 && has_vbmi && (states & zmm_states) == zmm_states;
    if (!cpu.has_avx512 || !__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) {
        return;
    }
    cpu.has_avx512_bf16 = has_gfni && (eax & 1u << 5) != 0;
    cpu.has_amx_bf16 = cpu.has_avx512_bf16 && has_amx_bf16 && (states & tile_states) == tile_states && may_use_tiles();
}

#else

static void ask_cpu(void)
{
    /* No other architecture has kernels of its own: the reference runs. */
}

#endif

const struct dg_cpu *dg_cpu(void)
{
    pthread_once(&cpu_once, ask_cpu);
    return &cpu;
}
