/* What kernels of compute capability 9.0 are made of: barriers in shared memory that count bytes, and bulk tensor copies. A ring of stages
 * has two barriers for each: `full`, which the copies complete, and `empty`, at which those who have read a stage arrive. */
#ifndef DG_CUDA_HOPPER_CUH
#define DG_CUDA_HOPPER_CUH

#include <cuda.h>
#include <stdint.h>

namespace {

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void barrier_init(uint64_t *barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}

/* Makes initialised barriers known to the copy engine. */
__device__ __forceinline__ void barriers_are_initialised()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void barrier_expect(uint64_t *barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

/* Waits until the phase of this parity has ended. */
__device__ __forceinline__ void barrier_wait(uint64_t *barrier, int parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra end;\n"
                 "bra again;\n"
                 "end:\n"
                 "}" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

/* Copies the box of a matrix that begins at (row, column) to shared memory; its bytes count towards the barrier. */
__device__ __forceinline__ void copy_box(void *to, const CUtensorMap *map, int row, int column, uint64_t *barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
                 "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier))
                 : "memory");
}

/* Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8. It stays in order with barriers, but not with other
 * loads and stores. */
__device__ __forceinline__ void load_matrices(uint32_t (&words)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(shared_address(row)));
}

/* The offset in bytes of 16-byte piece `piece` of a row of 128 bytes, in memory that begins at a multiple of 1024 and is swizzled as
 * CU_TENSOR_MAP_SWIZZLE_128B does: eight rows at the same piece lie in different banks. */
__device__ __forceinline__ int swizzled(int row, int piece)
{
    return row * 128 + ((piece ^ (row & 7)) << 4);
}

} // namespace

#endif
