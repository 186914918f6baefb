/* What the CUDA kernels of all families share: sizes, the tensor core instruction, and what a launch returns. */
#ifndef DG_CUDA_COMMON_CUH
#define DG_CUDA_COMMON_CUH

#include <cuda_runtime.h>
#include <stdint.h>

namespace {

inline int64_t ceil_div(int64_t x, int64_t y)
{
    return x / y + (x % y > 0);
}

inline bool is_multiple(const void *address, int64_t size)
{
    return reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(size) == 0;
}

/* The error of a launch, which is returned to the caller: the runtime need not remember it too. */
inline cudaError_t launched(cudaError_t error)
{
    if (error != cudaSuccess) {
        cudaGetLastError();
    }
    return error;
}

/* sum += the product of 16 x k16 of a and 8 x k16 of b; b is two registers. */
template <bool is_bf16>
__device__ __forceinline__ void multiply(float (&sum)[4], const uint32_t (&a)[4], const uint32_t *b)
{
    if constexpr (is_bf16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
}

} // namespace

#endif
