/* The GEMM of many groups in one launch: tiles of gemm_tile.cuh, of groups whose bounds stand in device memory.
 *
 * As many blocks as run at once take tiles in turn. A tile belongs to one group: its place among all tiles is found by a scan over the
 * groups, which every warp does for itself, 32 groups at a time; the layout is small and stays in L1. Then one thread writes the
 * problem of this group to shared memory, as the dense kernel has it in its arguments, and the block computes the tile of it. Rows
 * keep their numbers in a and d where groups share them, so blocks of scales may span groups.
 *
 * What the layout says is cut to what there is before it is used: rows to m, k to the words of scales; a group that is not there is
 * padding. The scan ends after the last group whatever it finds.
 *
 * Read gemm_grouped() first. gemm_grouped_sm80.cu has the grouped operators, mega_moe_sm80.cu the layers of mega MoE, which store otherwise.
 */
#ifndef DG_CUDA_GEMM_GROUPED_CUH
#define DG_CUDA_GEMM_GROUPED_CUH

#include "gemm_tile.cuh"

namespace {

struct grouped_problem {
    struct problem first; /* of the first group, with the rows and the k of all */
    struct dg_gemm_groups groups;
};

template <class Store>
struct grouped_job {
    struct grouped_problem problem;
    Store store;
};

/* ---- groups of rows ------------------------------------------------------------------------------------------ */

__device__ __forceinline__ int64_t round_up(int64_t x, int64_t step)
{
    return (x + step - 1) / step * step;
}

/* An entry of the layout, cut to 0 to most. */
__device__ __forceinline__ int64_t entry(const struct dg_gemm_groups &groups, int64_t i, int64_t most)
{
    const int64_t said = static_cast<int64_t>(__ldg(groups.layout + i * groups.layout_stride)) - groups.layout_base;
    return max(int64_t{0}, min(said, most));
}

template <int tile_m>
__device__ __forceinline__ int64_t tiles_of(int64_t rows)
{
    return rows > 0 ? (rows + tile_m - 1) / tile_m : 0;
}

/* Rows [begin, end) of d that a group has, and those behind them that become 0. */
struct bounds {
    int64_t begin, end;
    int64_t padding_begin, padding_end;
};

__device__ __forceinline__ struct bounds bounds_of(const struct dg_gemm_groups &groups, int64_t m, int64_t group)
{
    struct bounds of = {0, 0, 0, 0};
    if (group >= groups.count) {
        return of;
    }
    of.end = entry(groups, group, m);
    if (groups.kind == DG_GROUPS_MASKED) {
        return of;
    }
    of.begin = group == 0 ? 0 : round_up(entry(groups, group - 1, m), groups.alignment);
    if (groups.kind == DG_GROUPS_PADDED_PSUM) {
        of.padding_begin = max(of.begin, of.end);
        of.padding_end = min(round_up(of.end, groups.alignment), m);
    }
    return of;
}

/* The rows of a tile: from its first one to the end of what it may take of them. */
struct tile_rows {
    int64_t group;
    int64_t begin, end; /* begin >= end: the tile is skipped */
    bool is_padding;
};

/* Tile `tile` of those groups whose rows the layout counts; all lanes of a warp call it. */
template <int tile_m>
__device__ __forceinline__ struct tile_rows scan_for_tile(const struct dg_gemm_groups &groups, int64_t m, int64_t tile)
{
    const unsigned all = 0xffffffffu;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int64_t first = 0; first < groups.count; first += 32) {
        const struct bounds of = bounds_of(groups, m, first + lane);
        const int64_t own = tiles_of<tile_m>(of.end - of.begin);
        int64_t up_to = own + tiles_of<tile_m>(of.padding_end - of.padding_begin); /* this group, then also those before it */
        const int64_t of_group = up_to;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int64_t before = __shfl_up_sync(all, up_to, step);
            up_to += lane >= step ? before : 0;
        }
        const unsigned reached = __ballot_sync(all, up_to > tile);
        if (reached) {
            const int found = __ffs(static_cast<int>(reached)) - 1;
            const int64_t within = tile - (up_to - of_group); /* counts on the lane that was found */
            const bool is_padding = within >= own;
            const int64_t begin = is_padding ? of.padding_begin + (within - own) * tile_m : of.begin + within * tile_m;
            const int64_t end = is_padding ? of.padding_end : of.end;
            return {first + found, __shfl_sync(all, begin, found), __shfl_sync(all, end, found),
                    __shfl_sync(all, static_cast<int>(is_padding), found) != 0};
        }
        tile -= __shfl_sync(all, up_to, 31);
    }
    return {0, 0, 0, false};
}

/* Whether all groups have m rows. */
__device__ __forceinline__ bool are_whole(const struct dg_gemm_groups &groups)
{
    return groups.kind == DG_GROUPS_WHOLE || groups.kind == DG_GROUPS_K || groups.kind == DG_GROUPS_PSUM_K;
}

template <int tile_m>
__device__ __forceinline__ struct tile_rows find_tile(const struct grouped_problem &p, int64_t tile)
{
    const struct dg_gemm_groups &groups = p.groups;
    const int64_t m = p.first.side[0].rows;
    if (groups.kind == DG_GROUPS_INDEX) {
        const int64_t tiles = tiles_of<tile_m>(groups.alignment);
        const int64_t first_row = tile / tiles * groups.alignment;
        const int64_t group = __ldg(groups.layout + first_row * groups.layout_stride);
        const bool is_group = group >= 0 && group < groups.count;
        return {group, first_row + tile % tiles * tile_m, is_group ? min(first_row + groups.alignment, m) : 0, false};
    }
    if (are_whole(groups)) {
        const int64_t tiles = tiles_of<tile_m>(m);
        return {tile / tiles, tile % tiles * tile_m, m, false};
    }
    return scan_for_tile<tile_m>(groups, m, tile);
}

/* The number of tiles along m, of all groups; all lanes of a warp call it. */
template <int tile_m>
__device__ __forceinline__ int64_t count_tiles(const struct grouped_problem &p)
{
    const struct dg_gemm_groups &groups = p.groups;
    const int64_t m = p.first.side[0].rows;
    if (groups.kind == DG_GROUPS_INDEX) {
        return (m + groups.alignment - 1) / groups.alignment * tiles_of<tile_m>(groups.alignment);
    }
    if (are_whole(groups)) {
        return groups.count * tiles_of<tile_m>(m);
    }
    int64_t tiles = 0;
    for (int64_t group = threadIdx.x % 32; group < groups.count; group += 32) {
        const struct bounds of = bounds_of(groups, m, group);
        tiles += tiles_of<tile_m>(of.end - of.begin) + tiles_of<tile_m>(of.padding_end - of.padding_begin);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        tiles += __shfl_xor_sync(0xffffffffu, tiles, step);
    }
    return tiles;
}

/* ---- groups of k --------------------------------------------------------------------------------------------- */

/* The part of k of one group. Its scales are those from `block` on where they are f32, and from `word` on where they are packed. */
struct k_group {
    int64_t begin, size;
    int64_t block, word;
};

__device__ __forceinline__ int64_t k_size_of(const struct grouped_problem &p, int64_t group)
{
    if (p.groups.kind == DG_GROUPS_K) {
        return entry(p.groups, group, p.first.k);
    }
    const struct bounds of = bounds_of(p.groups, p.first.k, group);
    return max(of.end - of.begin, int64_t{0});
}

/* All lanes of a warp call it. */
__device__ __forceinline__ struct k_group find_k_group(const struct grouped_problem &p, int64_t group)
{
    const int64_t gran_k = p.first.side[0].scale.gran_k;
    struct k_group before = {0, 0, 0, 0};
    for (int64_t g = threadIdx.x % 32; g < group; g += 32) {
        const int64_t size = k_size_of(p, g), blocks = (size + gran_k - 1) / gran_k;
        before.begin += size;
        before.block += blocks;
        before.word += (blocks + 3) / 4;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        before.begin += __shfl_xor_sync(0xffffffffu, before.begin, step);
        before.block += __shfl_xor_sync(0xffffffffu, before.block, step);
        before.word += __shfl_xor_sync(0xffffffffu, before.word, step);
    }
    const int64_t begin = p.groups.kind == DG_GROUPS_K ? before.begin : bounds_of(p.groups, p.first.k, group).begin;
    return {begin, max(min(k_size_of(p, group), p.first.k - begin), int64_t{0}), before.block, before.word};
}

/* ---- the problem of a group ---------------------------------------------------------------------------------- */

__device__ __forceinline__ void move_side(struct side &side, int64_t elements, int64_t words)
{
    side.operand.data = move(side.operand.data, elements, side.operand.type);
    if (side.scale.type != DG_SCALE_NONE) {
        side.scale.data = static_cast<const uint32_t *>(side.scale.data) + words;
    }
}

/* A side of a group of k. What has no scales is left out. */
__device__ __forceinline__ void cut_k(struct problem &to, struct side &side, const struct k_group &of, int64_t words)
{
    const struct dg_gemm_scale &scale = side.scale;
    const bool is_packed = scale.type == DG_SCALE_UE8M0;
    const int64_t first = is_packed ? of.word : of.block;
    move_side(side, of.begin * side.operand.stride_k, first * scale.stride_k);
    if (scale.type != DG_SCALE_NONE) {
        to.k = min(to.k, max(words - first, int64_t{0}) * (is_packed ? 4 : 1) * scale.gran_k);
    }
}

__device__ __forceinline__ void make_problem_of(struct problem &to, const struct grouped_problem &p, const struct tile_rows &rows,
                                                const struct k_group &k)
{
    const struct dg_gemm_groups &groups = p.groups;
    to = p.first;
    to.side[0].rows = rows.end;
    if (rows.is_padding) {
        to.k = 0; /* a sum of nothing */
        return;
    }
    if (groups.kind == DG_GROUPS_K || groups.kind == DG_GROUPS_PSUM_K) {
        to.k = k.size;
        cut_k(to, to.side[0], k, groups.sfa_words);
        cut_k(to, to.side[1], k, groups.sfb_words);
    } else {
        move_side(to.side[0], rows.group * groups.a_stride, rows.group * groups.sfa_stride);
        move_side(to.side[1], rows.group * groups.b_stride, rows.group * groups.sfb_stride);
    }
    move_output(to.out, rows.group * groups.d_stride, rows.group * groups.c_stride);
}

/* ---- the kernel ---------------------------------------------------------------------------------------------- */

template <class Config, class Store>
__global__ void __launch_bounds__(shape<Config>::threads, Config::blocks_per_sm) gemm_grouped(const __grid_constant__ struct grouped_job<Store> job)
{
    const struct grouped_problem &p = job.problem;
    extern __shared__ __align__(128) unsigned char ring[]; /* and behind its stages the problem of the tile */
    struct problem &of_tile = *reinterpret_cast<struct problem *>(ring + p.first.stages * shape<Config>::stage_bytes);
    const int64_t tiles_m = count_tiles<Config::tile_m>(p);
    for (int64_t tile = blockIdx.x; tile < tiles_m * p.first.tiles_n; tile += gridDim.x) {
        const struct tile_index at = place_tile(tile, tiles_m, p.first.tiles_n);
        const struct tile_rows rows = find_tile<Config::tile_m>(p, at.m);
        if (rows.begin >= rows.end) {
            continue;
        }
        struct k_group k = {};
        if (p.groups.kind == DG_GROUPS_K || p.groups.kind == DG_GROUPS_PSUM_K) {
            k = find_k_group(p, rows.group);
        }
        if (threadIdx.x == 0) {
            make_problem_of(of_tile, p, rows, k);
        }
        __syncthreads();
        compute_tile<Config>(of_tile, rows.begin, at.n * Config::tile_n, ring, job.store);
    }
}

/* ---- launching ----------------------------------------------------------------------------------------------- */

/* The rows that a launch expects, by which it chooses the size of tiles. */
struct expectation {
    int64_t parts, rows;
};

struct expectation expect(const struct dg_gemm_args *args)
{
    const struct dg_gemm_groups &groups = args->groups;
    switch (groups.kind) {
    case DG_GROUPS_INDEX: return {ceil_div(args->m, groups.alignment), groups.alignment};
    case DG_GROUPS_MASKED: return {groups.count, max(int64_t{1}, min(groups.expected_rows, args->m))};
    case DG_GROUPS_PSUM:
    case DG_GROUPS_PADDED_PSUM: {
        const int64_t rows = groups.expected_rows > 0 ? groups.expected_rows : ceil_div(args->m, groups.count);
        return {groups.count, max(int64_t{1}, min(rows, args->m))};
    }
    default: return {groups.count, args->m};
    }
}

/* The most tiles that count_tiles() can say. */
int64_t most_tiles(const struct dg_gemm_args *args, int64_t tile_m)
{
    const struct dg_gemm_groups &groups = args->groups;
    switch (groups.kind) {
    case DG_GROUPS_INDEX: return ceil_div(args->m, groups.alignment) * ceil_div(groups.alignment, tile_m);
    case DG_GROUPS_PSUM:
    case DG_GROUPS_PADDED_PSUM: return args->m / tile_m + 2 * groups.count;
    default: return groups.count * ceil_div(args->m, tile_m);
    }
}

template <class Config, class Store>
cudaError_t launch_config(struct grouped_job<Store> *job, const struct dg_gemm_args *args, const struct dg_cuda_device *device)
{
    static uint64_t prepared_devices;
    struct problem &first = job->problem.first;
    prepare<Config>(&first, device, sizeof(struct problem));
    const int64_t at_once = args->exec.num_sms > 0 ? args->exec.num_sms : static_cast<int64_t>(device->num_sms) * Config::blocks_per_sm;
    const int64_t blocks = min(most_tiles(args, Config::tile_m) * first.tiles_n, at_once);
    const int64_t shared_bytes = static_cast<int64_t>(first.stages) * shape<Config>::stage_bytes + static_cast<int64_t>(sizeof(struct problem));
    return launch_blocks(reinterpret_cast<const void *>(&gemm_grouped<Config, Store>), &prepared_devices, blocks, shape<Config>::threads,
                         shared_bytes, job, &args->exec, device);
}

/* Launches the GEMM of args, whose types dg_gemm_sm80_can_run() takes, with at least one group, of any kind but DG_GROUPS_NONE. */
template <class Store>
cudaError_t launch_grouped(const struct dg_gemm_args *args, const Store &store, const struct dg_cuda_device *device)
{
    struct grouped_job<Store> job = {{make_problem(args), args->groups}, store};
    const struct expectation expected = expect(args);
    const bool is_large = wants_large_tiles(expected.parts, expected.rows, args->n, &args->exec, device);
    if (args->a.type == DG_GEMM_BF16) {
        return is_large ? launch_config<config_bf16_large>(&job, args, device) : launch_config<config_bf16_small>(&job, args, device);
    }
    return is_large ? launch_config<config_f8_large>(&job, args, device) : launch_config<config_f8_small>(&job, args, device);
}

} // namespace

#endif
