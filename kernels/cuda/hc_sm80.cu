/* The hyperconnection prenorm on any GPU since compute capability 8.0.
 *
 * A warp reads a and b straight from memory, 64 of k at a time. Which k a thread has is
 * free as long as it is the same for a and b: a thread of a quad takes 16 neighbours, so that it loads 16 bytes at a time, in place of the
 * pairs that mma.sync would have.
 *
 * Few rows are a matter of latency: all warps of a block share a tile of rows and divide k; on compute capability 9.0 so do the blocks of a
 * cluster, which add their sums up through distributed shared memory. With many rows, four warps beside one another share what they read
 * of b through the L1 cache. The order of every sum is fixed: the same call gives the same bits.
 */
#include "hc_device.cuh"

#include <cooperative_groups.h>

extern "C" {
#include "device.h"
}

namespace {

enum { warp = 32, chunk = DG_HC_SPLIT_STEP, most_columns = 32, most_parts = 8 };

struct job {
    struct dg_hc_args args;
    int64_t tiles;         /* of rows */
    int64_t column_blocks; /* of most_columns */
    int parts;             /* blocks that divide the k of one tile: the cluster */
};

/* How the warps of a block divide a tile: tiles_m of 16 rows each, warps_m beside one another, warps_k along k. */
template <int tiles_m_, int warps_m_, int warps_k_>
struct shape {
    static constexpr int tiles_m = tiles_m_, warps_m = warps_m_, warps_k = warps_k_;
    static constexpr int threads = warp * warps_m * warps_k;
    static constexpr int rows = 16 * tiles_m * warps_m;
};
using few_rows = shape<1, 1, 16>;
using many_rows = shape<2, 4, 4>;

/* ---- loads ----------------------------------------------------------------------------------------------------- */

/* 16 neighbours of k in a row of a, as pairs. Aligned: in whole chunks, without a branch, so that all loads of a chunk are under way at once;
 * rows that do not exist repeat the last. */
template <bool is_aligned>
__device__ __forceinline__ void load_a(uint32_t (&words)[8], const struct dg_hc_args &args, int64_t i, int64_t k)
{
    if constexpr (is_aligned) {
        const uint4 *from = reinterpret_cast<const uint4 *>(args.a + min(i, args.m - 1) * args.a_stride_m + k);
        const uint4 low = __ldg(from), high = __ldg(from + 1);
        words[0] = low.x, words[1] = low.y, words[2] = low.z, words[3] = low.w;
        words[4] = high.x, words[5] = high.y, words[6] = high.z, words[7] = high.w;
    } else {
        const uint16_t *from = args.a + i * args.a_stride_m + k * args.a_stride_k;
#pragma unroll
        for (int w = 0; w < 8; ++w) {
            words[w] = 0;
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                if (i < args.m && k + 2 * w + e < args.k) {
                    words[w] |= static_cast<uint32_t>(from[(2 * w + e) * args.a_stride_k]) << (16 * e);
                }
            }
        }
    }
}

/* Four neighbours of k in a row of b. */
template <bool is_aligned>
__device__ __forceinline__ void load_b(float (&values)[4], const struct dg_hc_args &args, int64_t j, int64_t k)
{
    if constexpr (is_aligned) {
        const float4 four = __ldg(reinterpret_cast<const float4 *>(args.b + min(j, args.n - 1) * args.b_stride_n + k));
        values[0] = four.x, values[1] = four.y, values[2] = four.z, values[3] = four.w;
    } else {
        const float *from = args.b + j * args.b_stride_n + k * args.b_stride_k;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            values[e] = j < args.n && k + e < args.k ? from[e * args.b_stride_k] : 0;
        }
    }
}

/* ---- kernel ---------------------------------------------------------------------------------------------------- */

/* What a thread sums up. */
template <class Shape, int tiles_n>
struct sums {
    static constexpr int count = Shape::tiles_m * (4 * tiles_n + 2);
    float d[Shape::tiles_m][tiles_n][4];
    float squares[Shape::tiles_m][2]; /* rows lane / 4 and lane / 4 + 8 */

    /* Calls action(sum, index) for all of them; by name, so that they stay in registers. */
    template <class Action>
    __device__ __forceinline__ void each(Action action)
    {
#pragma unroll
        for (int tile = 0; tile < Shape::tiles_m; ++tile) {
#pragma unroll
            for (int x = 0; x < 4 * tiles_n; ++x) {
                action(d[tile][x / 4][x % 4], tile * 4 * tiles_n + x);
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                action(squares[tile][half], Shape::tiles_m * 4 * tiles_n + tile * 2 + half);
            }
        }
    }
};

template <class Shape, int tiles_n, bool is_aligned>
__global__ void __launch_bounds__(Shape::threads) prenorm(const __grid_constant__ struct job job)
{
    sums<Shape, tiles_n> sum;
    __shared__ float shared[Shape::warps_k / 2][Shape::warps_m][sums<Shape, tiles_n>::count][warp];

    const struct dg_hc_args &args = job.args;
    const int lane = static_cast<int>(threadIdx.x) % warp, row = lane / 4, quad = lane % 4;
    const int warp_m = static_cast<int>(threadIdx.x) / warp % Shape::warps_m, warp_k = static_cast<int>(threadIdx.x) / warp / Shape::warps_m;
    int64_t index = blockIdx.x;
    const int part = static_cast<int>(index % job.parts);
    index /= job.parts;
    const int64_t first_row = index % job.tiles * Shape::rows + warp_m * (16 * Shape::tiles_m);
    index /= job.tiles;
    const int64_t first_column = index % job.column_blocks * most_columns, split_index = index / job.column_blocks;

    sum.each([](float &x, int) { x = 0; });
    const int64_t chunks = (args.k + chunk - 1) / chunk;
    const int64_t end = split_begin(chunks, args.num_splits, split_index + 1);
    for (int64_t c = split_begin(chunks, args.num_splits, split_index) + part * Shape::warps_k + warp_k; c < end; c += job.parts * Shape::warps_k) {
        const int64_t k = c * chunk + quad * 16;
        uint32_t a[Shape::tiles_m][2][8];
#pragma unroll
        for (int tile = 0; tile < Shape::tiles_m; ++tile) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                load_a<is_aligned>(a[tile][half], args, first_row + tile * 16 + half * 8 + row, k);
            }
        }
        float b[4][tiles_n][4];
#pragma unroll
        for (int step = 0; step < 4; ++step) {
#pragma unroll
            for (int tile_n = 0; tile_n < tiles_n; ++tile_n) {
                load_b<is_aligned>(b[step][tile_n], args, first_column + tile_n * 8 + row, k + step * 4);
            }
        }
#pragma unroll
        for (int step = 0; step < 4; ++step) {
#pragma unroll
            for (int tile_n = 0; tile_n < tiles_n; ++tile_n) {
                uint32_t high[4], low[4];
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    split(b[step][tile_n][e], &high[e], &low[e]);
                }
                const uint32_t of_high[2] = {upper_halves(high[0], high[1]), upper_halves(high[2], high[3])};
                const uint32_t of_low[2] = {upper_halves(low[0], low[1]), upper_halves(low[2], low[3])};
#pragma unroll
                for (int tile = 0; tile < Shape::tiles_m; ++tile) {
                    const uint32_t of_a[4] = {a[tile][0][2 * step], a[tile][1][2 * step], a[tile][0][2 * step + 1], a[tile][1][2 * step + 1]};
                    multiply<true>(sum.d[tile][tile_n], of_a, of_high);
                    multiply<true>(sum.d[tile][tile_n], of_a, of_low);
                }
            }
        }
#pragma unroll
        for (int tile = 0; tile < Shape::tiles_m; ++tile) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
#pragma unroll
                for (uint32_t pair : a[tile][half]) {
                    sum.squares[tile][half] = add_squares(sum.squares[tile][half], pair);
                }
            }
        }
    }

    /* The warps of a block, in halves: those above give to those below. */
#pragma unroll 1
    for (int below = Shape::warps_k / 2; below > 0; below /= 2) {
        if (warp_k >= below && warp_k < 2 * below) {
            sum.each([&](float &x, int i) { shared[warp_k - below][warp_m][i][lane] = x; });
        }
        __syncthreads();
        if (warp_k < below) {
            sum.each([&](float &x, int i) { x += shared[warp_k][warp_m][i][lane]; });
        }
        __syncthreads();
    }
#if __CUDA_ARCH__ >= 900
    if (job.parts > 1) { /* the blocks of a cluster, to the first */
        namespace cg = cooperative_groups;
        const cg::cluster_group cluster = cg::this_cluster();
        if (warp_k == 0) {
            sum.each([&](float &x, int i) { shared[0][warp_m][i][lane] = x; });
        }
        cluster.sync();
        if (part == 0 && warp_k == 0) {
            for (int other = 1; other < job.parts; ++other) {
                const float *theirs = cluster.map_shared_rank(&shared[0][warp_m][0][lane], static_cast<unsigned>(other));
                sum.each([&](float &x, int i) { x += theirs[i * warp]; });
            }
        }
        cluster.sync(); /* shared memory stays until it is read */
    }
#endif
    if (part != 0 || warp_k != 0) {
        return;
    }
#pragma unroll
    for (int tile = 0; tile < Shape::tiles_m; ++tile) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int64_t i = first_row + tile * 16 + half * 8 + row;
            float squares = sum.squares[tile][half];
            squares += __shfl_xor_sync(0xffffffffu, squares, 1);
            squares += __shfl_xor_sync(0xffffffffu, squares, 2);
            if (i >= args.m) {
                continue;
            }
            if (first_column == 0 && quad == 0) {
                args.sqr_sum[split_index * args.sqr_sum_stride_split + i * args.sqr_sum_stride_m] = squares;
            }
            float *d = args.d + split_index * args.d_stride_split + i * args.d_stride_m;
#pragma unroll
            for (int tile_n = 0; tile_n < tiles_n; ++tile_n) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int64_t j = first_column + tile_n * 8 + quad * 2 + e;
                    if (j < args.n) {
                        const float x = sum.d[tile][tile_n][2 * half + e];
                        d[j] = isnan(x) ? product_of_row(args, i, j, split_begin(chunks, args.num_splits, split_index) * chunk, min(end * chunk, args.k)) : x;
                    }
                }
            }
        }
    }
}

/* ---- launch ---------------------------------------------------------------------------------------------------- */

template <class Shape, int tiles_n, bool is_aligned>
dg_kernel_result launch(struct job *job)
{
    const struct dg_hc_args *args = &job->args;
    job->tiles = ceil_div(args->m, Shape::rows);
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute;
    config.gridDim = dim3(static_cast<unsigned>(args->num_splits * job->column_blocks * job->tiles * job->parts));
    config.blockDim = dim3(Shape::threads);
    config.stream = static_cast<cudaStream_t>(args->exec.stream);
    if (job->parts > 1) {
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = static_cast<unsigned>(job->parts);
        attribute.val.clusterDim.y = 1;
        attribute.val.clusterDim.z = 1;
        config.attrs = &attribute;
        config.numAttrs = 1;
    }
    void *arguments[] = {job};
    cudaError_t error = cudaLaunchKernelExC(&config, reinterpret_cast<const void *>(&prenorm<Shape, tiles_n, is_aligned>), arguments);
    return launched(error);
}

/* The most blocks that may divide k without more blocks than the device runs at once, or warps without a chunk; a power of two. */
int choose_parts(int64_t blocks, int64_t chunks, int warps_k, int64_t room)
{
    int parts = 1;
    while (2 * parts <= most_parts && blocks * 2 * parts <= room && chunks > static_cast<int64_t>(parts) * warps_k) {
        parts *= 2;
    }
    return parts;
}

template <class Shape>
dg_kernel_result run(struct job *job, bool is_aligned)
{
    const bool is_narrow = job->args.n <= 24;
    if (!is_aligned) {
        return is_narrow ? launch<Shape, 3, false>(job) : launch<Shape, 4, false>(job);
    }
    return is_narrow ? launch<Shape, 3, true>(job) : launch<Shape, 4, true>(job);
}

} // namespace

extern "C" dg_kernel_result dg_hc_sm80(const struct dg_hc_args *args)
{
    const struct dg_cuda_device *device = dg_cuda_find_device(args->exec.device_id);
    struct job job;
    job.args = *args;
    job.column_blocks = args->n > 0 ? ceil_div(args->n, most_columns) : 1; /* without columns there are squares */
    const bool is_aligned = args->n > 0 && args->k % chunk == 0 && args->a_stride_k == 1 && args->b_stride_k == 1 && is_multiple(args->a, 16) && is_multiple(args->b, 16) &&
                            (args->m == 1 || args->a_stride_m % 8 == 0) && (args->n <= 1 || args->b_stride_n % 4 == 0);
    const int64_t groups = args->num_splits * job.column_blocks; /* that have tiles of rows */
    const int64_t chunks = ceil_div(ceil_div(args->k, chunk), args->num_splits);
    const int64_t sms = args->exec.num_sms > 0 && args->exec.num_sms < device->num_sms ? args->exec.num_sms : device->num_sms;
    const bool has_clusters = device->compute_capability == 90; /* what is compiled for 8.0, newer devices run too */
    const bool are_many = has_clusters && groups * ceil_div(args->m, few_rows::rows) > 2 * sms;
    if (are_many) {
        job.parts = choose_parts(groups * ceil_div(args->m, many_rows::rows), chunks, many_rows::warps_k, sms);
        return run<many_rows>(&job, is_aligned);
    }
    job.parts = has_clusters ? choose_parts(groups * ceil_div(args->m, few_rows::rows), chunks, few_rows::warps_k, sms) : 1;
    return run<few_rows>(&job, is_aligned);
}
