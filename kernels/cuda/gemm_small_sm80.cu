/* The GEMM for m <= 16: bound by reading b, which it streams from memory into registers, past the L1 cache.
 *
 * A warp computes all rows of 8 or 16 columns of d. Lane l has row l / 4 of a and of b in an mma.sync.m16n8k16; of every 128 bytes of k
 * it reads two chunks of 16 bytes of each of its rows, and feeds them to the instruction in the order in which they come: a permutation
 * of k, the same in a and b. So there is no shared memory in the loop, and no barrier. The warps of a block share columns and take turns
 * along k; in the end they add their sums in a fixed order, so the same arguments give the same bits.
 *
 * In flight: `depth` times 128 bytes of k of every row, for each of up to 16 warps of a multiprocessor: 64 KiB of b. Scales
 * come with the chunks, one word for each lane, and go where they are needed by shuffles. A chain of additions in the tensor cores,
 * which truncate, is at most 128 of k long (of bf16: 64); what it gives is added in f32.
 *
 * Distance from the limit, on an H200, with cold caches: e4m3 takes 9.2 us for (m, n, k) = (1, 2112, 7168), 36.8 us (3.2 TB/s) for
 * (1, 7168, 16384) and 40.5 us for m = 16, which is 0.53 to 0.9 of the time of torch.mm in bf16; bf16 0.8 to 1.03 of it. With f32 d the
 * norm-wise error is 1.5e-7 at k = 32768.
 *
 * Read gemm_small() first. Meaning: kernels/cpu/gemm_ref.c.
 */
#include "gemm_device.cuh"
#include "gemm_small.h"

#include <limits.h>

namespace {

/* ---- shapes -------------------------------------------------------------------------------------------------- */

enum {
    step_bytes = 128, /* of k that a warp takes at a time */
    chunk_bytes = 16, /* of a row, that a lane reads at once */
    step_chunks = 2,  /* of a row that a lane reads in a step; the four lanes of a row read neighbours */
    most_rows = 16,   /* of a */
    most_warps = 16   /* of a block, and of a multiprocessor: a thread may use 128 registers */
};

/* The compile-time knobs of a kernel. */
template <bool bf16, int halves, int tiles, int steps>
struct config {
    static constexpr bool is_bf16 = bf16;
    static constexpr int halves_m = halves; /* eights of rows of a: 1 or 2 */
    static constexpr int tiles_n = tiles;   /* eights of columns of d that a warp computes: 1 or 2 */
    static constexpr int depth = steps;     /* steps in flight */
    static constexpr int cols = 8 * tiles;
    /* Sums of a row in shared memory. Padded so that the four rows that half a warp writes lie in different banks. */
    static constexpr int sum_stride = tiles == 1 ? 8 : 24;
};

struct scale_side { /* the scales of a or b */
    struct dg_gemm_scale scale;
    int64_t group_stride; /* in words */
    int steps_per_block; /* along k */
};

struct problem {
    const unsigned char *a, *b;
    int64_t a_stride_bytes, b_stride_bytes;
    int64_t a_group_bytes, b_group_bytes, d_group_stride, c_group_stride; /* from group to group, d and c in elements */
    int64_t m, n;
    int64_t k_bytes; /* a multiple of chunk_bytes */
    int steps;
    struct scale_side scales[2]; /* of a, of b */
    struct output out;
    int64_t tiles;
    int warps_k, warps_n; /* of a block: those that share columns, and how many such groups there are */
};

/* ---- loading ------------------------------------------------------------------------------------------------- */

/* Of a matrix that is read once. */
__device__ __forceinline__ uint4 load_streamed(const unsigned char *source)
{
    uint4 value;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(source));
    return value;
}

__device__ __forceinline__ uint4 load_cached(const unsigned char *source)
{
    uint4 value;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(source));
    return value;
}

/* Byte of a row at which a chunk of a lane begins. */
__device__ __forceinline__ int64_t offset_of(int lane, int step, int chunk)
{
    return static_cast<int64_t>(step) * step_bytes + (lane % 4 + 4 * chunk) * chunk_bytes;
}

/* What a lane holds of one step. */
template <class Config>
struct fragments {
    uint4 a[Config::halves_m][step_chunks], b[Config::tiles_n][step_chunks];
    uint32_t scale; /* the word of its row of a, lanes 0 to 15, or of its column of d, the others */
};

/* What a lane needs to load its part of any step. Rows beyond the end are read as the last row, and their sums are not stored. */
template <class Config>
struct loader {
    const unsigned char *a[Config::halves_m], *b[Config::tiles_n];
    const uint32_t *scales; /* NULL: 1 */
    int64_t scale_stride;
    int steps_per_block;
    enum dg_gemm_scale_type scale_type;

    __device__ __forceinline__ loader(const struct problem &p, int lane, int64_t group, int64_t n0)
    {
#pragma unroll
        for (int h = 0; h < Config::halves_m; ++h) {
            a[h] = p.a + group * p.a_group_bytes + min(static_cast<int64_t>(8 * h + lane / 4), p.m - 1) * p.a_stride_bytes;
        }
#pragma unroll
        for (int j = 0; j < Config::tiles_n; ++j) {
            b[j] = p.b + group * p.b_group_bytes + min(n0 + 8 * j + lane / 4, p.n - 1) * p.b_stride_bytes;
        }
        if constexpr (!Config::is_bf16) {
            bool is_of_a = lane < most_rows;
            const struct scale_side &side = p.scales[is_of_a ? 0 : 1];
            int64_t row = is_of_a ? min(static_cast<int64_t>(lane), p.m - 1) : min(n0 + lane - most_rows, p.n - 1);
            scale_type = side.scale.type;
            scales = scale_type == DG_SCALE_NONE
                         ? nullptr
                         : static_cast<const uint32_t *>(side.scale.data) + group * side.group_stride +
                               row / side.scale.gran_mn * side.scale.stride_mn;
            scale_stride = side.scale.stride_k;
            steps_per_block = side.steps_per_block;
        }
    }

    /* The block of k that a step lies in. */
    __device__ __forceinline__ int block_of(int step) const
    {
        return steps_per_block == 1 ? step : step / steps_per_block;
    }

    __device__ __forceinline__ void load(struct fragments<Config> &to, const struct problem &p, int lane, int step) const
    {
        if constexpr (!Config::is_bf16) {
            to.scale = 0;
            if (scales) {
                int block = block_of(step);
                to.scale = __ldg(scales + (scale_type == DG_SCALE_UE8M0 ? block / 4 : block) * scale_stride);
            }
        }
#pragma unroll
        for (int c = 0; c < step_chunks; ++c) {
            int64_t offset = min(offset_of(lane, step, c), p.k_bytes - chunk_bytes);
#pragma unroll
            for (int j = 0; j < Config::tiles_n; ++j) {
                to.b[j][c] = load_streamed(b[j] + offset);
            }
#pragma unroll
            for (int h = 0; h < Config::halves_m; ++h) {
                to.a[h][c] = load_cached(a[h] + offset);
            }
        }
    }

    /* The value of this lane's scale. */
    __device__ __forceinline__ float scale_of(const struct fragments<Config> &from, int step) const
    {
        return decode_scale(scale_type, from.scale, scale_type == DG_SCALE_UE8M0 ? block_of(step) % 4 : 0);
    }
};

/* Clears the chunks of a step in which k ends that lie beyond the end. */
template <class Config>
__device__ __forceinline__ void clear_beyond_k(struct fragments<Config> &step_of_lane, const struct problem &p, int lane, int step)
{
#pragma unroll
    for (int c = 0; c < step_chunks; ++c) {
        if (offset_of(lane, step, c) < p.k_bytes) {
            continue;
        }
#pragma unroll
        for (int j = 0; j < Config::tiles_n; ++j) {
            step_of_lane.b[j][c] = make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int h = 0; h < Config::halves_m; ++h) {
            step_of_lane.a[h][c] = make_uint4(0, 0, 0, 0);
        }
    }
}

/* ---- computing ----------------------------------------------------------------------------------------------- */

/* Element 0 and 1 of a sum are row lane / 4, columns lane % 4 * 2 and the next; 2 and 3 are row lane / 4 + 8. */
template <class Config>
struct sums {
    float at[Config::tiles_n][4];
};

__device__ __forceinline__ uint32_t word_of(const uint4 &chunk, int i)
{
    return i == 0 ? chunk.x : i == 1 ? chunk.y : i == 2 ? chunk.z : chunk.w;
}

/* The product of a step: of four bytes of e4m3 or of eight of bf16, which are a k16 of mma, after the other. */
template <class Config>
__device__ __forceinline__ void multiply_step(struct sums<Config> &product, const struct fragments<Config> &of)
{
#pragma unroll
    for (int c = 0; c < step_chunks; ++c) {
#pragma unroll
        for (int i = 0; i < 4; i += Config::is_bf16 ? 2 : 1) {
            uint32_t a[4] = {0, 0, 0, 0}; /* rows 0 to 7, 8 to 15, of one half of k16; again of the other */
#pragma unroll
            for (int h = 0; h < Config::halves_m; ++h) {
                if constexpr (Config::is_bf16) {
                    a[h] = word_of(of.a[h][c], i);
                    a[h + 2] = word_of(of.a[h][c], i + 1);
                } else {
                    decode_e4m3(word_of(of.a[h][c], i), &a[h], &a[h + 2]);
                }
            }
#pragma unroll
            for (int j = 0; j < Config::tiles_n; ++j) {
                uint32_t b[2];
                if constexpr (Config::is_bf16) {
                    b[0] = word_of(of.b[j][c], i);
                    b[1] = word_of(of.b[j][c], i + 1);
                } else {
                    decode_e4m3(word_of(of.b[j][c], i), &b[0], &b[1]);
                }
                multiply<Config::is_bf16>(product.at[j], a, b);
            }
        }
    }
}

/* total += product * sfa * sfb; `scale` is this lane's. */
template <class Config>
__device__ __forceinline__ void add_product(struct sums<Config> &total, const struct sums<Config> &product, float scale, int lane)
{
    const unsigned all = 0xffffffffu;
    float scale_a[2] = {__shfl_sync(all, scale, lane / 4), 0.0f};
    if constexpr (Config::halves_m == 2) {
        scale_a[1] = __shfl_sync(all, scale, 8 + lane / 4);
    }
#pragma unroll
    for (int j = 0; j < Config::tiles_n; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            float scale_b = __shfl_sync(all, scale, most_rows + 8 * j + lane % 4 * 2 + e);
#pragma unroll
            for (int h = 0; h < Config::halves_m; ++h) {
                total.at[j][2 * h + e] = add_scaled(total.at[j][2 * h + e], product.at[j][2 * h + e], scale_a[h], scale_b);
            }
        }
    }
}

/* ---- the kernel ---------------------------------------------------------------------------------------------- */

/* Adds the sums of the warps that share columns, the first ones first, and stores them. all_sums: [warp][row][sum_stride]. */
template <class Config>
__device__ __forceinline__ void store(const struct problem &p, const float *all_sums, int first_warp, int thread, int64_t group, int64_t n0)
{
    struct output out = p.out;
    move_output(out, group * p.d_group_stride, group * p.c_group_stride);
    constexpr int warp_stride = 8 * Config::halves_m * Config::sum_stride;
    const float *first = all_sums + first_warp * warp_stride;
    for (int i = thread; i < p.m * Config::cols; i += 32 * p.warps_k) {
        int row = i / Config::cols, col = i % Config::cols;
        if (n0 + col >= p.n) {
            continue;
        }
        float value = 0;
        for (int w = 0; w < p.warps_k; ++w) {
            value += first[w * warp_stride + row * Config::sum_stride + col];
        }
        store_element(out, row, n0 + col, value);
    }
}

template <class Config>
__global__ void __launch_bounds__(32 * most_warps) gemm_small(const __grid_constant__ struct problem p)
{
    extern __shared__ float all_sums[];
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int warp_n = warp / p.warps_k, warp_k = warp % p.warps_k;
    const int64_t group = blockIdx.y;

    const int64_t tile_step = static_cast<int64_t>(gridDim.x) * p.warps_n;
    for (int64_t tile = static_cast<int64_t>(blockIdx.x) * p.warps_n; tile < p.tiles; tile += tile_step) {
        const int64_t n0 = (tile + warp_n) * Config::cols;
        const struct loader<Config> loader(p, lane, group, n0);
        struct fragments<Config> ring[Config::depth];
        struct sums<Config> total = {};

#pragma unroll
        for (int d = 0; d < Config::depth; ++d) {
            int step = warp_k + d * p.warps_k;
            if (step < p.steps) {
                loader.load(ring[d], p, lane, step);
            }
        }
        for (int first = warp_k; first < p.steps; first += Config::depth * p.warps_k) {
#pragma unroll
            for (int d = 0; d < Config::depth; ++d) {
                int step = first + d * p.warps_k;
                if (step >= p.steps) {
                    break;
                }
                if (step == p.steps - 1) {
                    clear_beyond_k(ring[d], p, lane, step);
                }
                struct sums<Config> product = {};
                multiply_step(product, ring[d]);
                if constexpr (Config::is_bf16) {
#pragma unroll
                    for (int j = 0; j < Config::tiles_n; ++j) {
#pragma unroll
                        for (int e = 0; e < 2 * Config::halves_m; ++e) {
                            total.at[j][e] += product.at[j][e];
                        }
                    }
                } else {
                    add_product(total, product, loader.scale_of(ring[d], step), lane);
                }
                int next = step + Config::depth * p.warps_k;
                if (next < p.steps) {
                    loader.load(ring[d], p, lane, next);
                }
            }
        }

        constexpr int rows = 8 * Config::halves_m;
#pragma unroll
        for (int j = 0; j < Config::tiles_n; ++j) {
#pragma unroll
            for (int h = 0; h < Config::halves_m; ++h) {
                float *to = all_sums + (warp * rows + 8 * h + lane / 4) * Config::sum_stride + 8 * j + lane % 4 * 2;
                *reinterpret_cast<float2 *>(to) = make_float2(total.at[j][2 * h], total.at[j][2 * h + 1]);
            }
        }
        __syncthreads();
        store<Config>(p, all_sums, warp - warp_k, 32 * warp_k + lane, group, n0);
        __syncthreads(); /* before the sums of the next tile */
    }
}

/* ---- launching ----------------------------------------------------------------------------------------------- */

int64_t element_bytes(enum dg_gemm_type type)
{
    return type == DG_GEMM_BF16 ? 2 : 1;
}

const int64_t most_k = int64_t{1} << 36; /* steps are counted in 32 bits */

/* Whether chunks of its rows can be read. */
bool has_chunks(const struct dg_gemm_operand &x, int64_t rows, int64_t k, int64_t group_stride)
{
    bool is_contiguous = x.stride_k == 1 || k == 1;
    bool is_aligned = is_multiple(x.data, chunk_bytes) && (rows == 1 || x.stride_mn * element_bytes(x.type) % chunk_bytes == 0) &&
                      group_stride * element_bytes(x.type) % chunk_bytes == 0;
    return is_contiguous && is_aligned && k * element_bytes(x.type) % chunk_bytes == 0;
}

/* Whether the grid can have them: all in one launch, which keeps no limit on multiprocessors when there are several. */
bool takes_groups(const struct dg_gemm_args *args)
{
    const int64_t most_groups = 65535;
    return args->groups.kind == DG_GROUPS_NONE ||
           (args->groups.kind == DG_GROUPS_WHOLE && args->groups.count <= most_groups && (args->groups.count == 1 || args->exec.num_sms == 0));
}

/* Whether no step has more than one scale. */
bool has_whole_steps(const struct dg_gemm_scale &scale, int64_t k)
{
    return scale.type == DG_SCALE_NONE || scale.gran_k >= k || scale.gran_k % step_bytes == 0;
}

struct scale_side make_scale_side(const struct dg_gemm_scale &scale, int64_t group_stride, int64_t k, int steps)
{
    struct scale_side side;
    side.scale = scale;
    side.group_stride = group_stride;
    side.steps_per_block = scale.gran_k >= k ? steps : static_cast<int>(scale.gran_k / step_bytes);
    return side;
}

struct problem make_problem(const struct dg_gemm_args *args)
{
    const int64_t bytes = element_bytes(args->a.type);
    struct problem p;
    p.a = static_cast<const unsigned char *>(args->a.data);
    p.b = static_cast<const unsigned char *>(args->b.data);
    p.a_stride_bytes = args->m == 1 ? 0 : args->a.stride_mn * bytes;
    p.b_stride_bytes = args->n == 1 ? 0 : args->b.stride_mn * bytes;
    p.a_group_bytes = args->groups.a_stride * bytes;
    p.b_group_bytes = args->groups.b_stride * bytes;
    p.d_group_stride = args->groups.d_stride;
    p.c_group_stride = args->groups.c_stride;
    p.m = args->m;
    p.n = args->n;
    p.k_bytes = args->k * bytes;
    p.steps = static_cast<int>(ceil_div(p.k_bytes, step_bytes));
    p.scales[0] = make_scale_side(args->sfa, args->groups.sfa_stride, args->k, p.steps);
    p.scales[1] = make_scale_side(args->sfb, args->groups.sfb_stride, args->k, p.steps);
    p.out = make_output(args);
    return p;
}

/* The number of warps that share columns: the fewest that fill the device, a power of two, and no more than there are steps. */
int choose_warps_k(int64_t tiles, int steps, int64_t sms)
{
    int warps = 1;
    while (2 * warps <= most_warps && 2 * warps <= steps && 4 * tiles * warps < 3 * most_warps * sms) {
        warps *= 2;
    }
    return warps;
}

/* No groups are one group. */
int64_t groups_of(const struct dg_gemm_args *args)
{
    return args->groups.kind == DG_GROUPS_NONE ? 1 : args->groups.count;
}

template <class Config>
cudaError_t launch(struct problem *p, int64_t groups, const struct dg_cuda_device *device, const struct dg_exec *exec)
{
    const int64_t sms = exec->num_sms > 0 ? min(exec->num_sms, device->num_sms) : device->num_sms;
    p->tiles = ceil_div(p->n, Config::cols);
    p->warps_k = choose_warps_k(p->tiles * groups, p->steps, sms);
    const int least_warps = exec->num_sms > 0 ? most_warps : 4; /* one block fills a multiprocessor where those are limited */
    p->warps_n = max(1, least_warps / p->warps_k);
    const int warps = p->warps_k * p->warps_n;

    int64_t blocks = ceil_div(p->tiles, p->warps_n);
    blocks = min(blocks, exec->num_sms > 0 ? sms : static_cast<int64_t>(INT_MAX));
    const size_t shared_bytes = static_cast<size_t>(warps) * 8 * Config::halves_m * Config::sum_stride * sizeof(float);
    void *arguments[] = {p};
    return cudaLaunchKernel(reinterpret_cast<const void *>(&gemm_small<Config>), dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(groups)),
                            dim3(static_cast<unsigned>(32 * warps)), arguments, shared_bytes, static_cast<cudaStream_t>(exec->stream));
}

/* Columns of 16 read a half as often; where those are too few for the multiprocessors, columns of 8. */
template <bool is_bf16>
cudaError_t launch_for_shape(struct problem *p, int64_t groups, const struct dg_cuda_device *device, const struct dg_exec *exec)
{
    const bool is_narrow = 4 * groups * ceil_div(p->n, 16) < 3 * device->num_sms;
    if (p->m <= 8) {
        return is_narrow ? launch<config<is_bf16, 1, 1, 4>>(p, groups, device, exec) : launch<config<is_bf16, 1, 2, 3>>(p, groups, device, exec);
    }
    return is_narrow ? launch<config<is_bf16, 2, 1, 3>>(p, groups, device, exec) : launch<config<is_bf16, 2, 2, 2>>(p, groups, device, exec);
}

} // namespace

extern "C" bool dg_gemm_small_sm80_can_run(const struct dg_gemm_args *args)
{
    const bool is_bf16 = args->a.type == DG_GEMM_BF16;
    const bool is_type_taken = args->a.type == args->b.type && (is_bf16 || args->a.type == DG_GEMM_F8E4M3);
    return is_type_taken && takes_groups(args) && args->m <= most_rows && args->k > 0 && args->k <= most_k &&
           has_chunks(args->a, args->m, args->k, args->groups.a_stride) && has_chunks(args->b, args->n, args->k, args->groups.b_stride) &&
           has_whole_steps(args->sfa, args->k) && has_whole_steps(args->sfb, args->k);
}

extern "C" dg_kernel_result dg_gemm_small_sm80(const struct dg_gemm_args *args, const struct dg_cuda_device *device)
{
    struct problem p = make_problem(args);
    return args->a.type == DG_GEMM_BF16 ? launch_for_shape<true>(&p, groups_of(args), device, &args->exec)
                                        : launch_for_shape<false>(&p, groups_of(args), device, &args->exec);
}
