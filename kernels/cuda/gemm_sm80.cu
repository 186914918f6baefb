/* The GEMM that runs on every GPU since Ampere: tiles of gemm_tile.cuh, on every shape, stride and scale of struct dg_gemm_args.
 *
 * Distance from the limit, on an H200: 4096 x 4096 x 4096 runs at 0.42 (bf16) and 0.29 (e4m3) of the rate of torch.mm in bf16. mma.sync
 * alone, with its sums cut at k64, reaches 0.75; the sums of a warp, 64 x 64 and 64 x 32 of a stage, leave so few registers that the
 * compiler lets multiplications wait for each other. 128 x 256 tiles and smaller warps were slower.
 *
 * Few rows of a go to gemm_small_sm80.cu, groups to gemm_grouped_sm80.cu.
 */
#include "gemm_grouped.h"
#include "gemm_small.h"
#include "gemm_tile.cuh"

namespace {

/* ---- the kernel ---------------------------------------------------------------------------------------------- */

template <class Config>
__global__ void __launch_bounds__(shape<Config>::threads, Config::blocks_per_sm) gemm(const __grid_constant__ struct problem p)
{
    extern __shared__ __align__(128) unsigned char ring[];
    const int64_t tiles = p.tiles_m * p.tiles_n;
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const struct tile_index at = place_tile(tile, p.tiles_m, p.tiles_n);
        compute_tile<Config>(p, at.m * Config::tile_m, at.n * Config::tile_n, ring, store_output{});
    }
}

/* ---- launching ----------------------------------------------------------------------------------------------- */

template <class Config>
cudaError_t launch(struct problem *p, const struct dg_cuda_device *device, const struct dg_exec *exec)
{
    static uint64_t prepared_devices;
    prepare<Config>(p, device, 0);
    int64_t blocks = p->tiles_m * p->tiles_n;
    if (exec->num_sms > 0) {
        blocks = min(blocks, static_cast<int64_t>(exec->num_sms));
    }
    return launch_blocks(reinterpret_cast<const void *>(&gemm<Config>), &prepared_devices, blocks, shape<Config>::threads,
                         static_cast<int64_t>(p->stages) * shape<Config>::stage_bytes, p, exec, device);
}

cudaError_t run_dense(const struct dg_gemm_args *args, const struct dg_cuda_device *device)
{
    struct problem p = make_problem(args);
    bool is_large = wants_large_tiles(1, args->m, args->n, &args->exec, device);
    if (args->a.type == DG_GEMM_BF16) {
        return is_large ? launch<config_bf16_large>(&p, device, &args->exec) : launch<config_bf16_small>(&p, device, &args->exec);
    }
    return is_large ? launch<config_f8_large>(&p, device, &args->exec) : launch<config_f8_small>(&p, device, &args->exec);
}

} // namespace

extern "C" bool dg_gemm_sm80_can_run(const struct dg_gemm_args *args)
{
    bool is_bf16 = args->a.type == DG_GEMM_BF16 && args->b.type == DG_GEMM_BF16 && args->sfa.type == DG_SCALE_NONE &&
                   args->sfb.type == DG_SCALE_NONE;
    return (is_bf16 || (is_8_bit(args->a) && is_8_bit(args->b))) && (args->d_type == DG_GEMM_BF16 || args->d_type == DG_GEMM_F32) &&
           dg_cuda_available(args->exec.device_id);
}

extern "C" dg_kernel_result dg_gemm_sm80(const struct dg_gemm_args *args)
{
    const struct dg_cuda_device *device = dg_cuda_find_device(args->exec.device_id);
    if (!device) {
        return cudaErrorInvalidDevice;
    }
    if (args->groups.kind != DG_GROUPS_NONE && args->groups.count == 0) {
        return cudaSuccess;
    }
    int error;
    if (dg_gemm_small_sm80_can_run(args)) {
        error = dg_gemm_small_sm80(args, device);
    } else if (args->groups.kind != DG_GROUPS_NONE) {
        error = dg_gemm_grouped_sm80(args, device);
    } else {
        error = run_dense(args, device);
    }
    return launched(static_cast<cudaError_t>(error));
}
