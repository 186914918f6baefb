/* What the CPU can do, asked once. */
#ifndef DG_CORE_CPU_H
#define DG_CORE_CPU_H

#include <stdbool.h>

struct dg_cpu {
    bool has_avx2;        /* AVX2, FMA and F16C, and the OS saves the registers */
    bool has_avx512;      /* AVX-512 F, BW, DQ, VL and VBMI, and the OS saves the registers */
    bool has_avx512_bf16; /* with has_avx512: AVX-512 BF16 and GFNI */
    bool has_amx_bf16;    /* with has_avx512_bf16: AMX-BF16 tiles, and the OS lets this process use them */
};

/* Threads may call it at any time; the first call asks the CPU and the OS. */
const struct dg_cpu *dg_cpu(void);

#endif
