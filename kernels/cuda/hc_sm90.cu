/* The hyperconnection prenorm on compute capability 9.0: one pass over a at the speed of memory.
 *
 * A block owns some rows and a part of k, of which a stage of its ring holds 64. One thread keeps bulk copies of a and b under way; cutting warps
 * cut the b of each stage into two bf16, once for all rows; math warps multiply 16 rows each by that, and add up their squares from the same
 * registers. Where there are fewer tiles of 16 rows than math warps, several share a tile and divide the k of a stage. Nobody waits but for a
 * stage. The blocks of a cluster divide the k of a tile and add up through distributed shared memory; where nobody has to add up, a block goes
 * on to its next tile while the stores of this one are under way. The order of every sum is fixed: the same call gives the same bits.
 */
#include "hc_device.cuh"
#include "hopper.cuh"
#include "tensor_map.h"

#include <cooperative_groups.h>

extern "C" {
#include "device.h"
}

namespace {

namespace cg = cooperative_groups;

enum {
    warp = 32,
    chunk = DG_HC_SPLIT_STEP, /* of k in a stage: 128 bytes of a */
    most_parts = 8,
    most_stages = 8,
    chunks_in_a_chain = 8, /* of which the tensor cores make one sum; longer chains lose bits */
};

/* The warps of a block; the one after these starts the copies. */
template <int math_warps_, int cut_warps_, int blocks_per_sm_>
struct shape {
    static constexpr int math_warps = math_warps_, cut_warps = cut_warps_, blocks_per_sm = blocks_per_sm_;
    static constexpr int cut_threads = warp * cut_warps, threads = warp * (math_warps + cut_warps + 1);
    static constexpr int most_rows = 16 * math_warps;
};

struct job {
    CUtensorMap a, b;
    struct dg_hc_args args;
    uint32_t chunks;        /* of k */
    uint32_t tiles;         /* of rows */
    uint32_t column_blocks; /* of 8 * tiles_n */
    uint32_t items;         /* what clusters do one after another: a tile, some columns, a split */
    uint32_t clusters;
    uint32_t parts; /* blocks that divide the k of one item: the cluster */
    int rows;       /* of a tile, a multiple of 16 */
    int stages;
};

struct item {
    int64_t tile_row, first_column;
    uint32_t split_index, first_of_split, end_of_split; /* chunks */
    uint32_t first, count;                              /* chunks of this block */
};

__device__ __forceinline__ struct item item_of(const struct job &job, uint32_t index, uint32_t part, int columns)
{
    const uint32_t num_splits = static_cast<uint32_t>(job.args.num_splits);
    struct item item;
    item.tile_row = static_cast<int64_t>(index % job.tiles) * job.rows;
    index /= job.tiles;
    item.first_column = static_cast<int64_t>(index % job.column_blocks) * columns;
    item.split_index = index / job.column_blocks;
    item.first_of_split = split_begin(job.chunks, num_splits, item.split_index);
    item.end_of_split = split_begin(job.chunks, num_splits, item.split_index + 1);
    const uint32_t in_split = item.end_of_split - item.first_of_split;
    item.first = item.first_of_split + split_begin(in_split, job.parts, part);
    item.count = item.first_of_split + split_begin(in_split, job.parts, part + 1) - item.first;
    return item;
}

/* Stores a result of a row of the tile: of d, or in the column after these the sum of squares. */
__device__ __forceinline__ void store(const struct dg_hc_args &args, const struct item &item, int row, int column, int columns, float x)
{
    const int64_t i = item.tile_row + row, j = item.first_column + column;
    if (i >= args.m) {
        return;
    }
    if (column == columns) {
        if (item.first_column == 0) {
            args.sqr_sum[item.split_index * args.sqr_sum_stride_split + i * args.sqr_sum_stride_m] = x;
        }
    } else if (j < args.n) {
        if (isnan(x)) {
            x = product_of_row(args, i, j, static_cast<int64_t>(item.first_of_split) * chunk, min(static_cast<int64_t>(item.end_of_split) * chunk, args.k));
        }
        args.d[item.split_index * args.d_stride_split + i * args.d_stride_m + j] = x;
    }
}

/* Shared memory, from an address that is a multiple of 1024: stages, of a and of b, which is cut in its place; then [groups][rows][width] sums. */
template <int tiles_n>
struct layout {
    static constexpr int columns = 8 * tiles_n;
    static constexpr int width = columns + 1; /* results of a row: d and the squares */
    static constexpr int b_bytes = columns * chunk * 4;

    static __host__ __device__ constexpr int a_bytes(int rows) { return rows * 128; }
    static __host__ __device__ constexpr int stage_bytes(int rows) { return a_bytes(rows) + b_bytes; }
    static __host__ __device__ constexpr int sums_bytes(int rows, int groups) { return groups * rows * width * 4; }
};

/* Cuts the b of a stage, [columns][chunk], in its place: row j then holds the first bf16 of column j, row columns + j the second. `thread` counts
 * within the cutting warps. */
template <class Shape, int columns>
__device__ __forceinline__ void cut(uint8_t *b, int thread)
{
    constexpr int fours = columns * chunk / 4, passes = (fours + Shape::cut_threads - 1) / Shape::cut_threads;
    float4 of_b[passes];
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) {
        of_b[pass] = reinterpret_cast<const float4 *>(b)[min(thread + pass * Shape::cut_threads, fours - 1)];
    }
    asm volatile("bar.sync 1, %0;" ::"r"(+Shape::cut_threads) : "memory"); /* all have read */
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) {
        const int four = thread + pass * Shape::cut_threads, column = four / (chunk / 4), k = four % (chunk / 4) * 4;
        uint32_t high[4], low[4];
        split(of_b[pass].x, &high[0], &low[0]);
        split(of_b[pass].y, &high[1], &low[1]);
        split(of_b[pass].z, &high[2], &low[2]);
        split(of_b[pass].w, &high[3], &low[3]);
        uint8_t *to = b + swizzled(column, k / 8) + k % 8 * 2; /* and `columns` rows on, swizzled alike */
        if (four < fours) {
            *reinterpret_cast<uint2 *>(to) = make_uint2(upper_halves(high[0], high[1]), upper_halves(high[2], high[3]));
            *reinterpret_cast<uint2 *>(to + columns * 128) = make_uint2(upper_halves(low[0], low[1]), upper_halves(low[2], low[3]));
        }
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* before the next copy to here */
}

__device__ __forceinline__ float sum_of_quad(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Writes the sums of a warp to shared memory, [16][width]. */
template <int tiles_n>
__device__ __forceinline__ void keep(float *sums, const float (&d)[tiles_n][4], const float (&squares)[2], int lane)
{
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float *row = sums + (8 * half + lane / 4) * layout<tiles_n>::width;
        const float square = sum_of_quad(squares[half]);
        if (lane % 4 == 0) {
            row[layout<tiles_n>::columns] = square;
        }
#pragma unroll
        for (int x = 0; x < 2 * tiles_n; ++x) {
            row[x / 2 * 8 + lane % 4 * 2 + x % 2] = d[x / 2][2 * half + x % 2];
        }
    }
}

/* Where a thread is in the ring. */
struct position {
    int stage = 0, parity = 0;

    __device__ __forceinline__ void advance(int stages)
    {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

/* Multiplies 16 rows by 16 * steps of one stage. The first bf16 of b and the second have sums of their own, so that six products are under way. */
template <int tiles_n, int steps>
__device__ __forceinline__ void multiply_stage(float (&d)[2 * tiles_n][4], float (&squares)[2], const uint8_t *a, const uint8_t *halves, int first_row, int first_step,
                                               int lane)
{
    uint32_t of_a[2][4], of_b[2][tiles_n][4]; /* of this step and of the next */
    const auto load = [&](int s) {
        const int piece = 2 * (first_step + s);
        load_matrices(of_a[s % 2], a + swizzled(first_row + lane % 16, piece + lane / 16));
#pragma unroll
        for (int pair = 0; pair < tiles_n; ++pair) {
            load_matrices(of_b[s % 2][pair], halves + swizzled(16 * pair + lane / 16 * 8 + lane % 8, piece + lane / 8 % 2));
        }
    };
    load(0);
#pragma unroll
    for (int s = 0; s < steps; ++s) {
        if (s + 1 < steps) {
            load(s + 1);
        }
        const uint32_t(&words)[4] = of_a[s % 2];
#pragma unroll
        for (int tile = 0; tile < 2 * tiles_n; ++tile) {
            multiply<true>(d[tile], words, &of_b[s % 2][tile / 2][tile % 2 * 2]);
        }
        squares[0] = add_squares(add_squares(squares[0], words[0]), words[2]);
        squares[1] = add_squares(add_squares(squares[1], words[1]), words[3]);
    }
}

/* steps: of 16 k that a warp multiplies in each stage, 4 where every warp has rows of its own. */
template <class Shape, int tiles_n, int steps>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks_per_sm) prenorm(const __grid_constant__ struct job job)
{
    using memory = layout<tiles_n>;
    extern __shared__ uint8_t raw[];
    __shared__ uint64_t full[most_stages], cut_done[most_stages], empty[most_stages];

    const struct dg_hc_args &args = job.args;
    const int lane = static_cast<int>(threadIdx.x) % warp, warp_index = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / warp, 0);
    uint8_t *const stages = raw + (-shared_address(raw) & 1023u);
    const int a_bytes = memory::a_bytes(job.rows), stage_bytes = memory::stage_bytes(job.rows);

    const uint32_t part = blockIdx.x % job.parts, first_item = blockIdx.x / job.parts;
    constexpr int groups = 4 / steps; /* of warps, which divide the k of a stage */
    const bool is_alone = groups == 1 && job.parts == 1; /* whoever multiplies has all of a sum. Otherwise there is one item for a block */

    constexpr int copying_warp = Shape::math_warps + Shape::cut_warps;
    const bool starts_copies = threadIdx.x == copying_warp * warp;
    if (starts_copies) {
        for (int stage = 0; stage < job.stages; ++stage) {
            barrier_init(&full[stage], 1);
            barrier_init(&cut_done[stage], Shape::cut_threads);
            barrier_init(&empty[stage], Shape::math_warps);
        }
        barriers_are_initialised();
    }
    __syncthreads();

    const int row_tiles = job.rows / 16;
    const int group = warp_index / row_tiles, first_row = warp_index % row_tiles * 16;
    float *const sums = reinterpret_cast<float *>(stages + job.stages * stage_bytes);
    position at;
    if (warp_index == copying_warp) {
        bool is_first_round = true;
        for (uint32_t index = first_item; index < job.items && starts_copies; index += job.clusters) {
            const struct item item = item_of(job, index, part, memory::columns);
            for (uint32_t i = 0; i < item.count; ++i) {
                if (!is_first_round) {
                    barrier_wait(&empty[at.stage], at.parity ^ 1);
                }
                uint8_t *to = stages + at.stage * stage_bytes;
                barrier_expect(&full[at.stage], a_bytes + memory::b_bytes);
                copy_box(to, &job.a, static_cast<int>(item.tile_row), static_cast<int>(item.first + i) * chunk, &full[at.stage]);
                copy_box(to + a_bytes, &job.b, static_cast<int>(item.first_column), static_cast<int>(item.first + i) * chunk, &full[at.stage]);
                at.advance(job.stages);
                is_first_round = is_first_round && at.stage != 0;
            }
        }
    } else if (warp_index >= Shape::math_warps) {
        const int thread = static_cast<int>(threadIdx.x) - Shape::math_warps * warp;
        for (uint32_t index = first_item; index < job.items; index += job.clusters) {
            for (uint32_t count = item_of(job, index, part, memory::columns).count; count > 0; --count) {
                barrier_wait(&full[at.stage], at.parity);
                cut<Shape, memory::columns>(stages + at.stage * stage_bytes + a_bytes, thread);
                barrier_arrive(&cut_done[at.stage]);
                at.advance(job.stages);
            }
        }
    } else {
        for (uint32_t index = first_item; index < job.items; index += job.clusters) {
            const struct item item = item_of(job, index, part, memory::columns);
            float d[2 * tiles_n][4] = {}, total[tiles_n][4] = {}, squares[2] = {};
            for (uint32_t i = 0; i < item.count; ++i) {
                const uint8_t *a = stages + at.stage * stage_bytes;
                barrier_wait(&full[at.stage], at.parity);
                barrier_wait(&cut_done[at.stage], at.parity);
                if (group < groups) {
                    multiply_stage<tiles_n, steps>(d, squares, a, a + a_bytes, first_row, group * steps, lane);
                }
                __syncwarp();
                if (lane == 0) {
                    barrier_arrive(&empty[at.stage]);
                }
                at.advance(job.stages);
                if (i % chunks_in_a_chain == chunks_in_a_chain - 1 || i == item.count - 1) {
#pragma unroll
                    for (int x = 0; x < 4 * tiles_n; ++x) {
                        total[x / 4][x % 4] += d[x / 4][x % 4] + d[tiles_n + x / 4][x % 4];
                        d[x / 4][x % 4] = d[tiles_n + x / 4][x % 4] = 0;
                    }
                }
            }
            if (group < groups) {
                keep<tiles_n>(sums + (group * job.rows + first_row) * memory::width, total, squares, lane);
            }
            if (!is_alone) {
                break;
            }
            __syncwarp();
            for (int element = lane; element < 16 * memory::width && group < groups; element += warp) {
                store(args, item, first_row + element / memory::width, element % memory::width, memory::columns, sums[first_row * memory::width + element]);
            }
            __syncwarp();
        }
    }
    if (is_alone) {
        return;
    }

    /* Each block of the cluster adds up its share of the rows. */
    const struct item item = item_of(job, first_item, part, memory::columns);
    const cg::cluster_group cluster = cg::this_cluster();
    cluster.sync();
    const int parts = static_cast<int>(job.parts), share = (job.rows + parts - 1) / parts, begin = static_cast<int>(part) * share, end = min(begin + share, job.rows);
    constexpr int most_mine = (Shape::most_rows * memory::width + Shape::threads - 1) / Shape::threads;
    float mine[most_mine];
#pragma unroll
    for (int x = 0; x < most_mine; ++x) {
        const int element = begin * memory::width + x * Shape::threads + static_cast<int>(threadIdx.x);
        mine[x] = 0;
        for (int other = 0; other < parts * groups && element < end * memory::width; ++other) {
            mine[x] += cluster.map_shared_rank(sums, static_cast<unsigned>(other / groups))[other % groups * job.rows * memory::width + element];
        }
    }
    cluster.sync(); /* all have read */
#pragma unroll
    for (int x = 0; x < most_mine; ++x) {
        const int element = begin * memory::width + x * Shape::threads + static_cast<int>(threadIdx.x);
        if (element < end * memory::width) {
            sums[element] = mine[x];
        }
    }
    for (int element = begin * memory::width + static_cast<int>(threadIdx.x); element < end * memory::width; element += Shape::threads) {
        store(args, item, element / memory::width, element % memory::width, memory::columns, sums[element]);
    }
}

/* ---- launch ---------------------------------------------------------------------------------------------------- */

using low = shape<4, 7, 2>;   /* up to 64 rows: the cutting is most of the work */
using tall = shape<16, 3, 1>; /* up to 256 */

constexpr int reserved_bytes = 2048; /* for barriers, and what the system keeps of each block's shared memory */

template <class Shape>
int most_bytes(const struct dg_cuda_device *device)
{
    return device->shared_per_sm_bytes / Shape::blocks_per_sm - reserved_bytes;
}

/* A launch of `blocks` blocks in clusters of `parts`. */
template <class Shape>
void configure(cudaLaunchConfig_t *config, cudaLaunchAttribute *cluster, int64_t blocks, int parts, int bytes)
{
    cluster->id = cudaLaunchAttributeClusterDimension;
    cluster->val.clusterDim.x = static_cast<unsigned>(parts);
    cluster->val.clusterDim.y = 1;
    cluster->val.clusterDim.z = 1;
    *config = {};
    config->gridDim = dim3(static_cast<unsigned>(blocks));
    config->blockDim = dim3(Shape::threads);
    config->dynamicSmemBytes = static_cast<size_t>(bytes);
    config->attrs = cluster;
    config->numAttrs = 1;
}

/* More dynamic shared memory than 48 KiB must be asked for, once per kernel and device. */
template <class Shape, int tiles_n, int steps>
cudaError_t prepare(const struct dg_cuda_device *device, int32_t device_id)
{
    static uint64_t prepared_devices; /* bit: done there */
    const uint64_t bit = uint64_t{1} << device_id;
    if (__atomic_load_n(&prepared_devices, __ATOMIC_RELAXED) & bit) {
        return cudaSuccess;
    }
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void *>(&prenorm<Shape, tiles_n, steps>), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   most_bytes<Shape>(device));
    if (error == cudaSuccess) {
        __atomic_fetch_or(&prepared_devices, bit, __ATOMIC_RELAXED);
    }
    return error;
}

/* How many blocks the device runs at once in clusters of `parts`: the fewer, the less a cluster divides the multiprocessors of a part of the chip
 * that it has to fit in. Asked once. */
template <class Shape>
int64_t blocks_at_once(const struct dg_cuda_device *device, int32_t device_id, int parts)
{
    static int32_t known[64][most_parts + 1];
    int32_t clusters = __atomic_load_n(&known[device_id][parts], __ATOMIC_RELAXED);
    if (clusters == 0) {
        cudaLaunchConfig_t config;
        cudaLaunchAttribute attribute;
        configure<Shape>(&config, &attribute, parts, parts, most_bytes<Shape>(device));
        if (prepare<Shape, 3, 2>(device, device_id) != cudaSuccess ||
            cudaOccupancyMaxActiveClusters(&clusters, &prenorm<Shape, 3, 2>, &config) != cudaSuccess || clusters < 1) {
            cudaGetLastError();
            clusters = 1;
        }
        __atomic_store_n(&known[device_id][parts], clusters, __ATOMIC_RELAXED);
    }
    return static_cast<int64_t>(clusters) * parts;
}

/* Takes rows for a tile, and blocks that divide its k, when the call would take less than with what was tried before. In hundredths of a microsecond,
 * as measured on an H200: what a block takes to begin and end, more for each that it has to add up with; and for each stage, as long as the copies
 * do not take longer than all else. */
template <class Shape>
void try_rows(struct job *job, int64_t rows, const struct dg_cuda_device *device, int64_t *least)
{
    const struct dg_hc_args *args = &job->args;
    const int64_t chunks = ceil_div(job->chunks, args->num_splits);
    const int64_t items = args->num_splits * job->column_blocks * ceil_div(args->m, rows);
    for (int parts = 1; parts <= most_parts && parts <= chunks; ++parts) {
        const int64_t limit = args->exec.num_sms > 0 ? max(args->exec.num_sms, parts) : device->num_sms;
        const int64_t room = min(blocks_at_once<Shape>(device, args->exec.device_id, parts), limit * Shape::blocks_per_sm);
        const int64_t rounds = ceil_div(items * parts, room);
        const int64_t beside = items * parts > limit ? Shape::blocks_per_sm : 1; /* on one multiprocessor */
        const int64_t block_time = 400 + 32 * parts, stages_time = ceil_div(chunks, parts) * beside * (28 + rows / 4);
        const bool goes_on = parts == 1 && rows > Shape::most_rows / 2;
        const int64_t time = goes_on ? block_time + rounds * stages_time : rounds * (block_time + stages_time);
        if (time < *least) {
            *least = time;
            job->rows = static_cast<int>(rows);
            job->parts = static_cast<uint32_t>(parts);
            job->items = static_cast<uint32_t>(items);
            job->clusters = static_cast<uint32_t>(goes_on ? min(items, room) : items);
        }
    }
}

void choose_tiles(struct job *job, const struct dg_cuda_device *device)
{
    const int64_t m = job->args.m, all = ceil_div(m, 16) * 16;
    int64_t least = INT64_MAX;
    for (int64_t rows = 16; rows <= low::most_rows && rows < all; rows *= 2) {
        try_rows<low>(job, rows, device, &least);
    }
    if (all <= low::most_rows) {
        try_rows<low>(job, all, device, &least);
    } else {
        for (int64_t rows = tall::most_rows / 2; rows <= tall::most_rows && rows - 16 < all; rows += 16) {
            try_rows<tall>(job, min(all, rows), device, &least);
        }
    }
    job->tiles = static_cast<uint32_t>(ceil_div(m, job->rows));
}

template <class Shape, int tiles_n, int steps>
cudaError_t start(struct job *job, const struct dg_cuda_device *device)
{
    using memory = layout<tiles_n>;
    const struct dg_hc_args *args = &job->args;
    cudaError_t error = prepare<Shape, tiles_n, steps>(device, args->exec.device_id);
    if (error != cudaSuccess) {
        return error;
    }
    const int stage_bytes = memory::stage_bytes(job->rows), other_bytes = 1024 + memory::sums_bytes(job->rows, 4 / steps); /* and to align the stages */
    job->stages = min(static_cast<int>(most_stages), (most_bytes<Shape>(device) - other_bytes) / stage_bytes);
    cudaLaunchConfig_t config;
    cudaLaunchAttribute attribute;
    configure<Shape>(&config, &attribute, int64_t{job->clusters} * job->parts, static_cast<int>(job->parts), other_bytes + job->stages * stage_bytes);
    config.stream = static_cast<cudaStream_t>(args->exec.stream);
    void *arguments[] = {job};
    return cudaLaunchKernelExC(&config, reinterpret_cast<const void *>(&prenorm<Shape, tiles_n, steps>), arguments);
}

template <int tiles_n>
cudaError_t launch(struct job *job, const struct dg_cuda_device *device)
{
    using memory = layout<tiles_n>;
    const struct dg_hc_args *args = &job->args;
    job->chunks = static_cast<uint32_t>(ceil_div(args->k, chunk));
    job->column_blocks = static_cast<uint32_t>(ceil_div(args->n, memory::columns));
    choose_tiles(job, device);
    const struct dg_matrix_map a = {CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, args->a, args->m, args->k, args->m > 1 ? args->a_stride_m : ceil_div(args->k, 8) * 8, job->rows, chunk,
                                    CU_TENSOR_MAP_SWIZZLE_128B};
    const struct dg_matrix_map b = {CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, args->b, args->n, args->k, args->n > 1 ? args->b_stride_n : ceil_div(args->k, 4) * 4, memory::columns, chunk,
                                    CU_TENSOR_MAP_SWIZZLE_NONE};
    cudaError_t error = dg_cuda_encode_map(&job->a, &a);
    if (error == cudaSuccess) {
        error = dg_cuda_encode_map(&job->b, &b);
    }
    if (error != cudaSuccess) {
        return error;
    }
    if (job->rows > low::most_rows) {
        return job->rows > tall::most_rows / 2 ? start<tall, tiles_n, 4>(job, device) : start<tall, tiles_n, 2>(job, device);
    }
    return job->rows > 32 ? start<low, tiles_n, 4>(job, device) : job->rows > 16 ? start<low, tiles_n, 2>(job, device) : start<low, tiles_n, 1>(job, device);
}

} // namespace

extern "C" bool dg_hc_sm90_can_run(const struct dg_hc_args *args)
{
    const struct dg_cuda_device *device = dg_cuda_find_device(args->exec.device_id);
    const int64_t most = INT32_MAX - tall::most_rows; /* coordinates of the copies are int, and so is the number of blocks */
    return device && device->compute_capability == 90 && args->n > 0 && args->k > 0 && args->m <= most && args->n <= most && args->k <= most &&
           args->num_splits <= UINT16_MAX && ceil_div(args->m, 16) * ceil_div(args->n, 24) <= most / most_parts / args->num_splits &&
           args->a_stride_k == 1 && args->b_stride_k == 1 && is_multiple(args->a, 16) && is_multiple(args->b, 16) &&
           (args->m == 1 || (args->a_stride_m > 0 && args->a_stride_m % 8 == 0)) && (args->n == 1 || (args->b_stride_n > 0 && args->b_stride_n % 4 == 0));
}

extern "C" dg_kernel_result dg_hc_sm90(const struct dg_hc_args *args)
{
    const struct dg_cuda_device *device = dg_cuda_find_device(args->exec.device_id);
    struct job job;
    job.args = *args;
    return launched(args->n <= 24 ? launch<3>(&job, device) : launch<4>(&job, device));
}
