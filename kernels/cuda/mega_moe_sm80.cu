/* Mega MoE on one rank, as a chain of kernels: all that a call does is to enqueue them. ops/mega_moe.h has the steps.
 *
 *   plan       sorts the rows by expert, in the order of their slots, as the CPU does: what each expert gets, and where
 *   dispatch   copies tokens into the ring                                    }
 *   L1         a grouped GEMM whose tiles become h: activated, quantised      } for every wave of as many rows as the ring holds
 *   L2         a grouped GEMM whose rows go to their slots                    }
 *   combine    adds up the slots of each token
 *
 * The host knows only how many rows there can be. It launches the waves that they would need; those that have no rows end at once. Both
 * GEMMs read on the device which rows each expert has. What lies between the layers never leaves the block that made it but as h: a tile
 * has whole groups of gate and up, and whole blocks of columns that share a scale.
 *
 * An index of an expert that is not there counts as -1. Every element is computed by one warp in a fixed order: the same arguments give the
 * same bits.
 */
#include "cast_device.cuh"
#include "gemm_grouped.cuh"

extern "C" {
#include "ops/mega_moe.h"
}

namespace {

enum {
    threads = 256,
    warp = 32,
    warps = threads / warp,
    dispatch_rows = warps, /* of a block: each warp copies one */
    eight = 8              /* columns that a thread takes at once; gate and up are interleaved in groups of as many */
};

__device__ __forceinline__ int lane_index()
{
    return static_cast<int>(threadIdx.x) % warp;
}

__device__ __forceinline__ int warp_index()
{
    return static_cast<int>(threadIdx.x) / warp;
}

/* ---- plan ---------------------------------------------------------------------------------------------------- */

struct plan_job {
    const int64_t *topk_idx;
    int64_t num_slots;
    int num_experts;
    int32_t *row_ends, *row_slots;
    uint32_t *recv_stats;
};

__device__ __forceinline__ int sum_of_warp(int value)
{
#pragma unroll
    for (int step = warp / 2; step > 0; step /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, step);
    }
    return value;
}

/* A block has an expert, and each warp a part of all slots. It counts the slots of earlier experts, behind which the rows of this one
 * begin, and its own; then it writes those in their order. All of it is read once for every expert, from L2: for 65536 slots and 256
 * experts a thousandth of the time of the layers. */
__global__ void __launch_bounds__(threads) plan(const __grid_constant__ struct plan_job job)
{
    __shared__ int earlier_of[warps], own_of[warps];
    const int64_t part = (job.num_slots + threads - 1) / threads * warp;
    const int64_t begin = min(warp_index() * part, job.num_slots), end = min(begin + part, job.num_slots);
    for (int expert = static_cast<int>(blockIdx.x); expert < job.num_experts; expert += static_cast<int>(gridDim.x)) {
        int earlier = 0, own = 0;
#pragma unroll 4
        for (int64_t slot = begin + lane_index(); slot < end; slot += warp) {
            const int64_t chosen = __ldg(job.topk_idx + slot);
            earlier += chosen >= 0 && chosen < expert;
            own += chosen == expert;
        }
        earlier = sum_of_warp(earlier);
        own = sum_of_warp(own);
        if (lane_index() == 0) {
            earlier_of[warp_index()] = earlier;
            own_of[warp_index()] = own;
        }
        __syncthreads();
        int row = 0, rows = 0; /* the first row of this warp's slots; rows of this expert */
#pragma unroll
        for (int i = 0; i < warps; ++i) {
            row += earlier_of[i] + (i < warp_index() ? own_of[i] : 0);
            rows += own_of[i];
        }
        if (threadIdx.x == 0) {
            job.row_ends[expert] = row + rows; /* warp 0 begins where the expert does */
            if (job.recv_stats) {
                job.recv_stats[expert] += static_cast<uint32_t>(rows);
            }
        }
#pragma unroll 4
        for (int64_t first = begin; first < end; first += warp) {
            const int64_t slot = first + lane_index();
            const bool is_own = slot < end && __ldg(job.topk_idx + slot) == expert;
            const unsigned found = __ballot_sync(0xffffffffu, is_own);
            if (is_own) {
                job.row_slots[row + __popc(found & ((1u << lane_index()) - 1))] = static_cast<int32_t>(slot);
            }
            row += __popc(found);
        }
        __syncthreads(); /* before the next expert's counts */
    }
}

/* ---- dispatch ------------------------------------------------------------------------------------------------ */

struct dispatch_job {
    const uint8_t *x;
    const uint32_t *x_sf;
    const float *topk_weights;
    uint8_t *acts;
    uint32_t *acts_sf;
    float *weights;
    int64_t sf_ring;
    int row_vectors; /* of 16 bytes */
    int words;       /* of scales, per row */
    int topk;
    const int32_t *row_ends, *row_slots;
    int num_experts;
    int64_t first, rows; /* of the wave: the first one, and the most */
};

/* A warp copies a row; then the block the scales of its rows, neighbours of which lie beside one another in the ring. */
__global__ void __launch_bounds__(threads) dispatch(const __grid_constant__ struct dispatch_job job)
{
    const int64_t rows = min(__ldg(job.row_ends + job.num_experts - 1) - job.first, job.rows);
    for (int64_t row0 = static_cast<int64_t>(blockIdx.x) * dispatch_rows; row0 < rows; row0 += static_cast<int64_t>(gridDim.x) * dispatch_rows) {
        const int64_t row = row0 + warp_index();
        if (row < rows) {
            const int slot = __ldg(job.row_slots + job.first + row);
            const uint4 *from = reinterpret_cast<const uint4 *>(job.x) + static_cast<int64_t>(slot / job.topk) * job.row_vectors;
            uint4 *to = reinterpret_cast<uint4 *>(job.acts) + row * job.row_vectors;
#pragma unroll 4
            for (int i = lane_index(); i < job.row_vectors; i += warp) {
                to[i] = __ldg(from + i);
            }
            if (lane_index() == 0) {
                job.weights[row] = __ldg(job.topk_weights + slot);
            }
        }
        const int64_t scale_row = row0 + static_cast<int64_t>(threadIdx.x) % dispatch_rows;
        if (scale_row < rows) {
            const int64_t token = __ldg(job.row_slots + job.first + scale_row) / job.topk;
            for (int q = static_cast<int>(threadIdx.x) / dispatch_rows; q < job.words; q += threads / dispatch_rows) {
                job.acts_sf[q * job.sf_ring + scale_row] = __ldg(job.x_sf + token * job.words + q);
            }
        }
    }
}

/* ---- the tiles of the layers --------------------------------------------------------------------------------- */

/* Eight neighbours of a tile in shared memory. */
template <class Config>
__device__ __forceinline__ void read_eight(float (&to)[eight], const float *staging, int row, int col)
{
    const float4 *from = reinterpret_cast<const float4 *>(staging + sum_index<Config>(row, col));
    const float4 low = from[0], high = from[1];
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

/* To bf16 values of neighbouring addresses, the first a multiple of 16. */
__device__ __forceinline__ void store_bf16(void *to, const float (&values)[eight])
{
    __nv_bfloat162 pairs[eight / 2];
#pragma unroll
    for (int e = 0; e < eight / 2; ++e) {
        pairs[e] = __floats2bfloat162_rn(values[2 * e], values[2 * e + 1]);
    }
    *static_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(pairs);
}

/* weight * silu(gate) * up, of gate and up cut to `clamp`; NaN stays. The exponential is at most 1, so nothing overflows on the way to silu. */
__device__ __forceinline__ float activated(float gate, float up, float clamp, float weight)
{
    gate = gate > clamp ? clamp : gate;
    up = up > clamp ? clamp : up;
    up = up < -clamp ? -clamp : up;
    const float decay = expf(-fabsf(gate));
    const float silu = __fdiv_rn(gate < 0 ? gate * decay : gate, 1.0f + decay);
    return silu * up * weight;
}

/* L1: a Store of compute_tile() that makes h. */
struct store_activated {
    static constexpr enum scale_order order_b = scales_interleaved;
    uint8_t *acts;
    uint32_t *acts_sf;
    int64_t sf_ring;
    const float *weights; /* of the rows of the ring */
    int64_t intermediate;
    float clamp;

    template <class Config>
    __device__ __forceinline__ void store(const struct problem &p, int64_t m0, int64_t n0, const float *staging) const
    {
        constexpr int row_eights = Config::tile_n / (2 * eight); /* of h */
        constexpr int lanes = DG_MEGA_MOE_GRAN / eight; /* that have a block of columns with one scale */
        static_assert(row_eights % lanes == 0 && Config::tile_m * row_eights % shape<Config>::threads == 0, "blocks are whole, and so are warps");
        const int64_t rows = p.side[0].rows - m0;
        for (int i = static_cast<int>(threadIdx.x); i < Config::tile_m * row_eights; i += shape<Config>::threads) {
            const int row = i / row_eights, group = i % row_eights;
            const bool is_there = row < rows;
            const int64_t ring_row = m0 + row, j = n0 / 2 + group * eight;
            float gate[eight], up[eight], h[eight];
            read_eight<Config>(gate, staging, row, group * 2 * eight);
            read_eight<Config>(up, staging, row, group * 2 * eight + eight);
            const float weight = is_there ? weights[ring_row] : 0.0f;
#pragma unroll
            for (int e = 0; e < eight; ++e) {
                h[e] = activated(gate[e], up[e], clamp, weight);
            }
            if constexpr (Config::is_bf16) {
                if (is_there) {
                    store_bf16(reinterpret_cast<uint16_t *>(acts) + ring_row * intermediate + j, h);
                }
            } else {
                quantise<lanes>(h, ring_row, j, is_there);
            }
        }
    }

    /* As the casts do it. `lanes` neighbours, all of which are there or none, have a block of columns. */
    template <int lanes>
    __device__ __forceinline__ void quantise(const float (&h)[eight], int64_t row, int64_t j, bool is_there) const
    {
        uint32_t largest = 0;
#pragma unroll
        for (int e = 0; e < eight; ++e) {
            largest = max(largest, magnitude_bits(h[e]));
        }
#pragma unroll
        for (int distance = 1; distance < lanes; distance *= 2) {
            largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
        }
        const struct scale scale = scale_of_block<true>(largest, DG_CAST_SCALE_PACKED);
        uint32_t words[2] = {0, 0};
#pragma unroll
        for (int e = 0; e < eight; e += 2) {
            words[e / 4] |= fp8_codes(__fmul_rn(h[e], scale.inverse), __fmul_rn(h[e + 1], scale.inverse)) << (8 * (e % 4));
        }
        if (!is_there) {
            return;
        }
        *reinterpret_cast<uint2 *>(acts + row * intermediate + j) = make_uint2(words[0], words[1]);
        if (lane_index() % lanes == 0) {
            const int64_t block = j / DG_MEGA_MOE_GRAN;
            uint8_t *word = reinterpret_cast<uint8_t *>(acts_sf + block / 4 * sf_ring + row);
            word[block % 4] = static_cast<uint8_t>(__float_as_uint(scale.sf) >> 23);
        }
    }
};

/* L2: a Store of compute_tile() that puts each row into the slot [k][token] of its term. */
struct store_scattered {
    static constexpr enum scale_order order_b = scales_interleaved;
    const int32_t *slots; /* of the rows of the ring */
    uint16_t *combine;
    int64_t max_tokens;
    int topk;

    template <class Config>
    __device__ __forceinline__ void store(const struct problem &p, int64_t m0, int64_t n0, const float *staging) const
    {
        constexpr int row_eights = Config::tile_n / eight;
        const int rows = static_cast<int>(min(p.side[0].rows - m0, static_cast<int64_t>(Config::tile_m)));
        const int64_t hidden = p.side[1].rows;
        for (int i = static_cast<int>(threadIdx.x); i < rows * row_eights; i += shape<Config>::threads) {
            const int row = i / row_eights, col = i % row_eights * eight;
            const int slot = __ldg(slots + m0 + row), token = slot / topk, k = slot - token * topk;
            float values[eight];
            read_eight<Config>(values, staging, row, col);
            store_bf16(combine + (k * max_tokens + token) * hidden + n0 + col, values);
        }
    }
};

/* ---- combine ------------------------------------------------------------------------------------------------- */

struct combine_job {
    const int64_t *topk_idx;
    const uint16_t *terms;
    uint16_t *y;
    int64_t y_stride;
    int64_t num_tokens, max_tokens;
    int topk, num_experts;
    int row_eights;
    bool has_vectors; /* eight neighbours of y at a time */
};

/* A thread adds up eight columns of a token, in the order of its experts. */
__global__ void __launch_bounds__(threads) combine(const __grid_constant__ struct combine_job job)
{
    const int64_t items = job.num_tokens * job.row_eights;
    for (int64_t item = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x; item < items; item += static_cast<int64_t>(gridDim.x) * threads) {
        const int64_t token = item / job.row_eights, j = item - token * job.row_eights;
        float sums[eight] = {};
#pragma unroll 4
        for (int k = 0; k < job.topk; ++k) {
            const int64_t chosen = __ldg(job.topk_idx + token * job.topk + k);
            if (chosen < 0 || chosen >= job.num_experts) {
                continue;
            }
            const uint4 term = __ldg(reinterpret_cast<const uint4 *>(job.terms) + (k * job.max_tokens + token) * job.row_eights + j);
            const uint32_t words[4] = {term.x, term.y, term.z, term.w};
#pragma unroll
            for (int e = 0; e < eight; ++e) {
                sums[e] += __uint_as_float(e % 2 == 0 ? words[e / 2] << 16 : words[e / 2] & 0xffff0000u);
            }
        }
        uint16_t *y = job.y + token * job.y_stride + j * eight;
        if (job.has_vectors) {
            store_bf16(y, sums);
        } else {
#pragma unroll
            for (int e = 0; e < eight; ++e) {
                y[e] = __bfloat16_as_ushort(__float2bfloat16_rn(sums[e]));
            }
        }
    }
}

/* ---- launches ------------------------------------------------------------------------------------------------ */

template <class Job>
cudaError_t launch(void (*kernel)(Job), Job job, int64_t blocks, const struct dg_exec *exec)
{
    const int64_t most = exec->num_sms > 0 ? exec->num_sms : INT_MAX;
    void *arguments[] = {&job};
    return cudaLaunchKernel(reinterpret_cast<const void *>(kernel), dim3(static_cast<unsigned>(min(blocks, most))), dim3(threads), arguments, 0,
                            static_cast<cudaStream_t>(exec->stream));
}

cudaError_t launch_plan(const struct dg_mega_moe_layer_args *args)
{
    const struct dg_mega_moe_args &steps = args->steps;
    struct plan_job job;
    job.topk_idx = steps.topk_idx;
    job.num_slots = steps.num_tokens * steps.topk;
    job.num_experts = static_cast<int>(args->num_experts);
    job.row_ends = args->row_ends;
    job.row_slots = args->row_slots;
    job.recv_stats = args->recv_stats;
    return launch(&plan, job, job.num_experts, &steps.exec);
}

cudaError_t launch_dispatch(const struct dg_mega_moe_layer_args *args, int64_t first, int64_t rows)
{
    const struct dg_mega_moe_args &steps = args->steps;
    struct dispatch_job job;
    job.x = steps.x;
    job.x_sf = steps.x_sf;
    job.topk_weights = steps.topk_weights;
    job.acts = steps.l1_acts;
    job.acts_sf = steps.l1_acts_sf;
    job.weights = steps.l1_weights;
    job.sf_ring = steps.sf_ring;
    job.row_vectors = static_cast<int>(steps.hidden * (steps.with_sf ? 1 : 2) / 16);
    job.words = steps.with_sf ? static_cast<int>(steps.hidden / 128) : 0;
    job.topk = static_cast<int>(steps.topk);
    job.row_ends = args->row_ends;
    job.row_slots = args->row_slots;
    job.num_experts = static_cast<int>(args->num_experts);
    job.first = first;
    job.rows = rows;
    return launch(&dispatch, job, ceil_div(rows, static_cast<int64_t>(dispatch_rows)), &steps.exec);
}

/* A layer of the rows [first, first + rows), which lie in a ring from its begin on: n columns, each a sum over k. */
template <class Store>
cudaError_t launch_layer(const struct dg_mega_moe_layer_args *args, const struct dg_mega_moe_weights *weights, const void *acts,
                         const uint32_t *acts_sf, int64_t n, int64_t k, int64_t first, int64_t rows, const Store &store,
                         const struct dg_cuda_device *device)
{
    const struct dg_mega_moe_args &steps = args->steps;
    const enum dg_gemm_scale_type scale_type = steps.with_sf ? DG_SCALE_UE8M0 : DG_SCALE_NONE;
    struct dg_gemm_args gemm = {};
    gemm.m = rows;
    gemm.n = n;
    gemm.k = k;
    gemm.a = {acts, steps.with_sf ? DG_GEMM_F8E4M3 : DG_GEMM_BF16, k, 1};
    gemm.b = {weights->data, steps.with_sf ? DG_GEMM_F4E2M1 : DG_GEMM_BF16, k, 1};
    gemm.sfa = {acts_sf, scale_type, 1, DG_MEGA_MOE_GRAN, 1, steps.sf_ring};
    gemm.sfb = {weights->sf, scale_type, 1, DG_MEGA_MOE_GRAN, weights->sf_stride_row, weights->sf_stride_word};
    gemm.groups.kind = DG_GROUPS_PSUM;
    gemm.groups.count = args->num_experts;
    gemm.groups.layout = args->row_ends;
    gemm.groups.layout_stride = 1;
    gemm.groups.layout_base = first;
    gemm.groups.alignment = 1;
    gemm.groups.b_stride = n * k;
    gemm.groups.sfb_stride = weights->sf_stride_expert;
    gemm.exec = steps.exec;
    return launch_grouped(&gemm, store, device);
}

cudaError_t launch_l1(const struct dg_mega_moe_layer_args *args, int64_t first, int64_t rows, const struct dg_cuda_device *device)
{
    const struct dg_mega_moe_args &steps = args->steps;
    const struct store_activated store = {steps.l2_acts, steps.l2_acts_sf, steps.sf_ring, steps.l1_weights, steps.intermediate, steps.clamp};
    return launch_layer(args, &args->l1_weights, steps.l1_acts, steps.l1_acts_sf, 2 * steps.intermediate, steps.hidden, first, rows, store, device);
}

cudaError_t launch_l2(const struct dg_mega_moe_layer_args *args, int64_t first, int64_t rows, const struct dg_cuda_device *device)
{
    const struct dg_mega_moe_args &steps = args->steps;
    const struct store_scattered store = {args->row_slots + first, steps.combine, steps.max_tokens, static_cast<int>(steps.topk)};
    return launch_layer(args, &args->l2_weights, steps.l2_acts, steps.l2_acts_sf, steps.hidden, steps.intermediate, first, rows, store, device);
}

cudaError_t launch_combine(const struct dg_mega_moe_layer_args *args)
{
    const struct dg_mega_moe_args &steps = args->steps;
    struct combine_job job;
    job.topk_idx = steps.topk_idx;
    job.terms = steps.combine;
    job.y = steps.y;
    job.y_stride = steps.y_stride;
    job.num_tokens = steps.num_tokens;
    job.max_tokens = steps.max_tokens;
    job.topk = static_cast<int>(steps.topk);
    job.num_experts = static_cast<int>(args->num_experts);
    job.row_eights = static_cast<int>(steps.hidden / eight);
    job.has_vectors = is_multiple(steps.y, 16) && steps.y_stride % eight == 0;
    return launch(&combine, job, ceil_div(steps.num_tokens * job.row_eights, static_cast<int64_t>(threads)), &steps.exec);
}

/* Without columns between the layers there is no L1, and without hidden ones no L2 and no y. */
cudaError_t launch_all(const struct dg_mega_moe_layer_args *args, const struct dg_cuda_device *device)
{
    const struct dg_mega_moe_args &steps = args->steps;
    const int64_t num_slots = steps.num_tokens * steps.topk;
    cudaError_t error = launch_plan(args);
    for (int64_t first = 0; first < num_slots && error == cudaSuccess; first += args->ring) {
        const int64_t rows = min(args->ring, num_slots - first);
        error = launch_dispatch(args, first, rows);
        if (error == cudaSuccess && steps.intermediate > 0) {
            error = launch_l1(args, first, rows, device);
        }
        if (error == cudaSuccess && steps.hidden > 0) {
            error = launch_l2(args, first, rows, device);
        }
    }
    return error == cudaSuccess && steps.hidden > 0 ? launch_combine(args) : error;
}

} // namespace

extern "C" dg_kernel_result dg_mega_moe_sm80(const struct dg_mega_moe_layer_args *args)
{
    const struct dg_cuda_device *device = dg_cuda_find_device(args->steps.exec.device_id);
    return device ? launched(launch_all(args, device)) : cudaErrorInvalidDevice;
}
