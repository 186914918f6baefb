/* The logits family on CUDA: any GPU since Ampere, any shape. ops/mqa_logits.h has the formula, kernels/cpu/mqa_logits_ref.c is its meaning.
 *
 * A block has 256 keys, 32 to a warp, in registers as the A operand of mma.sync; the queries of up to 32 tokens pass by in shared memory, 64
 * heads at a time, the next ones being fetched while tensor cores work. So a score lives in registers only: relu, weight and the sum over
 * heads follow at once, and one value per key and token is written.
 *
 * Codes are multiplied as f16, where e4m3 is exact times 2^-8, or, with MX scales, as bf16 with the scale multiplied in, exact too. Which k a
 * thread has is free as long as it is the same for keys and queries: a thread of a quad takes neighbours, so that it reads whole vectors.
 *
 * On an H200 this reaches 110 to 280 TFLOP/s of the 640 that mma.sync has there; decoding the queries of every block again, waiting for them, and
 * relu and weights on the other units are the rest.
 *
 * f32 has not the range of the reference. Where scales or weights leave the limits below, and for heads of more than 128 elements, logits are
 * computed in double, one by one: slow, right, and rare. NaN needs no care: decoders and relu keep it.
 */
#include "common.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" {
#include "device.h"
#include "ops/mqa_logits.h"
}

namespace {

enum {
    warp = 32,
    warps = 8,
    threads = warp * warps,
    warp_keys = 32, /* two tiles of 16 */
    block_keys = warps * warp_keys,
    block_tokens = 32, /* one for each lane */
    stage_heads = 64,
    mx_group = 32,
    split_keys = 256,
    most_depth = 128
};

const uint32_t all_lanes = 0xffffffffu;

/* Pieces, of a block of keys and a group of tokens of one sequence each, that the blocks of the grid take in turn. */
struct job {
    struct dg_mqa_logits_args args;
    int64_t pieces, key_blocks, token_groups;
    int group_tokens;
};

/* What a kernel is compiled for: head_dim filled up to 16 * steps, the codes, and whether they can be read as vectors. */
template <int steps_, enum dg_mqa_type type_, bool is_mx_, bool is_aligned_>
struct form {
    static constexpr int steps = steps_;
    static constexpr enum dg_mqa_type type = type_;
    static constexpr bool is_mx = is_mx_, is_aligned = is_aligned_;
    static constexpr int depth = 16 * steps;
    static constexpr int run = steps == 2 ? 8 : 16; /* neighbours in k that a thread has */
    static constexpr int blocks = steps == 2 ? 3 : 2; /* on a multiprocessor at once, for which there are registers */
    static constexpr int pitch = depth + (steps == 2 ? 0 : 8); /* of a head in shared memory: reads of 16 bytes meet all banks */
};

/* ---- keys of a token ----------------------------------------------------------------------------------------- */

/* As dg_mqa_range_of(); numbers of keys fit an int32_t. */
__device__ __forceinline__ int2 range_of(const struct dg_mqa_logits_args &args, int64_t s, int64_t t)
{
    const struct dg_mqa_ranges &x = args.ranges;
    int64_t begin = x.begin != NULL ? x.begin[t * x.begin_stride_token] : 0;
    int64_t end = x.end[s * x.end_stride_sequence + t * x.end_stride_token];
    if (x.end_is_of_last_token) {
        end -= args.tokens - 1 - t;
    }
    begin = min(max(begin, int64_t{0}), x.num_keys);
    end = min(max(end, begin), x.num_keys);
    return make_int2(static_cast<int>(begin), static_cast<int>(end));
}

/* Where a key lies: bytes from the first page, and its number on the page. page < 0: there is no such key. */
struct place {
    int64_t page, number;
};

__device__ __forceinline__ struct place place_of(const struct dg_mqa_keys &keys, int64_t s, int j)
{
    struct place place = {0, j};
    if (keys.table != NULL) {
        const uint32_t size = static_cast<uint32_t>(keys.page_keys), index = static_cast<uint32_t>(j) / size;
        place.number = static_cast<uint32_t>(j) % size;
        const int page = __ldg(keys.table + s * keys.table_stride_sequence + index * keys.table_stride_page);
        place.page = page < 0 ? -1 : page * keys.page_bytes;
    }
    return place;
}

/* No alignment is assumed. */
__device__ __forceinline__ uint32_t word_of_key(const struct dg_mqa_keys &keys, struct place place)
{
    const uint8_t *bytes = keys.sf + place.page + place.number * keys.sf_stride_key * 4;
    if (reinterpret_cast<uintptr_t>(bytes) % 4 == 0) {
        return __ldg(reinterpret_cast<const uint32_t *>(bytes));
    }
    return bytes[0] | static_cast<uint32_t>(bytes[1]) << 8 | static_cast<uint32_t>(bytes[2]) << 16 | static_cast<uint32_t>(bytes[3]) << 24;
}

__device__ __forceinline__ float weight_of(const struct dg_mqa_queries &q, int64_t row, int64_t head)
{
    const int64_t index = row * q.weights_stride_row + head * q.weights_stride_head;
    return q.has_bf16_weights ? __uint_as_float(static_cast<uint32_t>(static_cast<const uint16_t *>(q.weights)[index]) << 16)
                              : static_cast<const float *>(q.weights)[index];
}

__device__ __forceinline__ float mx_scale(uint32_t word, int64_t group)
{
    const uint32_t code = word >> (8 * group) & 0xffu;
    return __uint_as_float(code == 0 ? 0x00400000u : code == 0xffu ? 0x7fc00000u : code << 23);
}

/* ---- limits of f32 --------------------------------------------------------------------------------------------- */

/* As kernels/cpu/mqa_logits_fast.h: with codes of 0 or 2^-9 to 2^9, MX scales of 2^-30 to 2^20 and a largest weight of 0 or 2^-24 to 2^40 all
 * products and sums are in the range of f32. NaN is nowhere in need of range. */
__device__ __forceinline__ bool has_range(uint32_t word, int64_t head_dim)
{
    bool is_inside = true;
    for (int g = 0; g * mx_group < head_dim; ++g) {
        const uint32_t code = word >> (8 * g) & 0xffu;
        is_inside = is_inside && ((code >= 127 - 30 && code <= 127 + 20) || code == 0xffu);
    }
    return is_inside;
}

/* A whole warp asks this of one query. */
__device__ __forceinline__ bool query_has_range(const struct dg_mqa_logits_args &args, int64_t s, int64_t t, int lane)
{
    const struct dg_mqa_queries &q = args.q;
    float largest = 0;
    bool is_inside = true;
    for (int64_t h = lane; h < args.heads; h += warp) {
        largest = fmaxf(largest, fabsf(weight_of(q, s * args.tokens + t, h)));
        if (q.sf != NULL) {
            is_inside = is_inside && has_range(__ldg(q.sf + s * q.sf_stride_sequence + t * q.sf_stride_token + h * q.sf_stride_head), args.head_dim);
        }
    }
    const uint32_t bits = __reduce_max_sync(all_lanes, __float_as_uint(largest)); /* of magnitudes: ordered as they are */
    largest = __uint_as_float(bits);
    return __all_sync(all_lanes, is_inside) && (largest == 0 || (largest >= 0x1p-24f && largest <= 0x1p40f));
}

/* ---- codes ------------------------------------------------------------------------------------------------------ */

__device__ __forceinline__ uint32_t code_at(enum dg_mqa_type type, const uint8_t *codes, int64_t index)
{
    return type == DG_MQA_F8E4M3 ? codes[index] : codes[index >> 1] >> (4 * (index & 1)) & 0xfu;
}

/* Two e4m3 in the upper bytes of both halves, as f16 times 2^-8. */
__device__ __forceinline__ uint32_t f16_of_f8(uint32_t codes)
{
    const uint32_t magnitude = (codes & 0x7f007f00u) >> 1;
    const uint32_t of_nan = (magnitude + 0x00800080u) & 0x40004000u; /* fills up the exponent of NaN */
    return (codes & 0x80008000u) | magnitude | of_nan;
}

/* Two e2m1 in the lower bits of both halves, as f16 times 2^-14. */
__device__ __forceinline__ uint32_t f16_of_f4(uint32_t codes)
{
    return (codes & 0x00080008u) << 12 | (codes & 0x00070007u) << 9;
}

__device__ __forceinline__ uint32_t scaled_bf16(uint32_t pair, float scale)
{
    const float2 values = __half22float2(*reinterpret_cast<const __half2 *>(&pair));
    const __nv_bfloat162 scaled = __floats2bfloat162_rn(values.x * scale, values.y * scale);
    return *reinterpret_cast<const uint32_t *>(&scaled);
}

/* Eight neighbours: e4m3 in x and y, e2m1 in x. */
template <class Form>
__device__ __forceinline__ uint2 load_eight(const uint8_t *codes, int64_t index, int64_t stride, int64_t count)
{
    constexpr bool is_fp8 = Form::type == DG_MQA_F8E4M3;
    if (Form::is_aligned) {
        if (is_fp8) {
            return __ldg(reinterpret_cast<const uint2 *>(codes + index));
        }
        return make_uint2(__ldg(reinterpret_cast<const uint32_t *>(codes + index / 2)), 0);
    }
    uint32_t words[2] = {0, 0};
    for (int e = 0; e < 8; ++e) {
        if (e < count) {
            const uint32_t code = code_at(Form::type, codes, index + e * stride);
            words[is_fp8 ? e / 4 : 0] |= code << (is_fp8 ? 8 * (e % 4) : 4 * e);
        }
    }
    return make_uint2(words[0], words[1]);
}

/* Those eight as four pairs, ready to be multiplied. */
template <class Form>
__device__ __forceinline__ void decode_eight(uint32_t (&pairs)[4], uint2 codes, float scale)
{
    if (Form::type == DG_MQA_F8E4M3) {
        pairs[0] = f16_of_f8(__byte_perm(codes.x, 0, 0x1404));
        pairs[1] = f16_of_f8(__byte_perm(codes.x, 0, 0x3424));
        pairs[2] = f16_of_f8(__byte_perm(codes.y, 0, 0x1404));
        pairs[3] = f16_of_f8(__byte_perm(codes.y, 0, 0x3424));
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t pair = codes.x >> (8 * i);
            pairs[i] = f16_of_f4((pair & 0xfu) | (pair & 0xf0u) << 12);
        }
    }
    if (Form::is_mx) {
        scale *= Form::type == DG_MQA_F8E4M3 ? 0x1p8f : 0x1p14f;
#pragma unroll
        for (uint32_t &pair : pairs) {
            pair = scaled_bf16(pair, scale);
        }
    }
}

/* ---- in double ---------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ double code_value(enum dg_mqa_type type, const uint8_t *codes, int64_t index)
{
    const uint32_t code = code_at(type, codes, index);
    const uint32_t bits = type == DG_MQA_F8E4M3 ? f16_of_f8(code << 8) : f16_of_f4(code);
    const float value = __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
    return value * (type == DG_MQA_F8E4M3 ? 0x1p8f : 0x1p14f);
}

/* One logit, as dg_mqa_logit(). */
__device__ __noinline__ float exact_logit(const struct dg_mqa_logits_args &args, int64_t s, int64_t t, int j)
{
    const struct dg_mqa_queries &q = args.q;
    const struct dg_mqa_keys &keys = args.keys;
    const struct place place = place_of(keys, s, j);
    const uint32_t key_word = word_of_key(keys, place);
    double sum = 0;
    for (int64_t h = 0; h < args.heads; ++h) {
        const int64_t q_index = s * q.stride_sequence + t * q.stride_token + h * q.stride_head;
        uint32_t q_word = 0;
        if (q.sf != NULL) {
            q_word = q.sf[s * q.sf_stride_sequence + t * q.sf_stride_token + h * q.sf_stride_head];
        }
        double dot = 0;
        for (int64_t x = 0; x < args.head_dim; ++x) {
            double q_value = code_value(args.type, q.codes, q_index + x * q.stride_dim);
            double key_value = code_value(args.type, keys.codes + place.page, place.number * keys.stride_key + x * keys.stride_dim);
            if (q.sf != NULL) {
                q_value *= mx_scale(q_word, x / mx_group);
                key_value *= mx_scale(key_word, x / mx_group);
            }
            dot += q_value * key_value;
        }
        sum += weight_of(q, s * args.tokens + t, h) * (dot < 0 ? 0 : dot);
    }
    return static_cast<float>(q.sf != NULL ? sum : static_cast<double>(__uint_as_float(key_word)) * sum);
}

__device__ __forceinline__ void store(const struct dg_mqa_logits_args &args, int64_t row, int64_t column, float value)
{
    const int64_t index = row * args.stride_row + column;
    if (args.has_bf16_logits) {
        static_cast<__nv_bfloat16 *>(args.logits)[index] = __float2bfloat16_rn(value);
    } else {
        static_cast<float *>(args.logits)[index] = value;
    }
}

/* One thread for each logit. */
__global__ void __launch_bounds__(threads) exact_logits(const __grid_constant__ struct job job)
{
    const struct dg_mqa_logits_args &args = job.args;
    const int64_t count = args.sequences * args.tokens * args.columns;
    for (int64_t index = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x; index < count; index += static_cast<int64_t>(gridDim.x) * threads) {
        const int64_t row = index / args.columns, column = index % args.columns;
        const int64_t s = row / args.tokens, t = row % args.tokens;
        const int2 range = range_of(args, s, t);
        const int64_t j = args.is_compressed ? range.x + column : column;
        if (j >= range.x && j < range.y) {
            const int key = static_cast<int>(j);
            store(args, row, column, place_of(args.keys, s, key).page < 0 ? -INFINITY : exact_logit(args, s, t, key));
        } else if (args.fills_rest) {
            store(args, row, column, -INFINITY);
        }
    }
}

/* ---- tensor cores ------------------------------------------------------------------------------------------------- */

/* max(0, x), NaN for NaN */
__device__ __forceinline__ float relu(float x)
{
    float result;
    asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(result) : "f"(x));
    return result;
}

/* The queries of a token, heads [first_head, first_head + stage_heads). */
struct stage {
    int token;
    int64_t first_head;
};

/* One thread's part of the queries of a stage, on the way from memory to shared memory. */
template <class Form>
struct parcel {
    static constexpr int count = stage_heads * Form::depth / 8 / threads;
    uint2 codes[count];
    uint32_t words[count];
    float weight;
};

template <class Form>
__device__ __forceinline__ void fetch(struct parcel<Form> *parcel, const struct dg_mqa_logits_args &args, int64_t s, int64_t t, int64_t first_head)
{
    const struct dg_mqa_queries &q = args.q;
    constexpr int eights = Form::depth / 8;
#pragma unroll
    for (int i = 0; i < parcel->count; ++i) {
        const int unit = static_cast<int>(threadIdx.x) + i * threads;
        const int64_t h = first_head + unit / eights;
        const int64_t x = unit % eights * 8;
        parcel->codes[i] = make_uint2(0, 0);
        parcel->words[i] = 0;
        if (h < args.heads) {
            const int64_t index = s * q.stride_sequence + t * q.stride_token + h * q.stride_head + x * q.stride_dim;
            parcel->codes[i] = load_eight<Form>(q.codes, index, q.stride_dim, args.head_dim - x);
            if (Form::is_mx) {
                parcel->words[i] = __ldg(q.sf + s * q.sf_stride_sequence + t * q.sf_stride_token + h * q.sf_stride_head);
            }
        }
    }
    const int64_t h = first_head + threadIdx.x;
    parcel->weight = threadIdx.x < stage_heads && h < args.heads ? weight_of(q, s * args.tokens + t, h) : 0;
}

/* The next half of a double buffer. */
template <class Form>
struct shared_stage {
    uint16_t q[stage_heads * Form::pitch];
    float weights[stage_heads];
};

template <class Form>
__device__ __forceinline__ void deliver(struct shared_stage<Form> *to, const struct parcel<Form> &parcel, int64_t head_dim)
{
    constexpr int eights = Form::depth / 8;
#pragma unroll
    for (int i = 0; i < parcel.count; ++i) {
        const int unit = static_cast<int>(threadIdx.x) + i * threads;
        const int h = unit / eights, x = unit % eights * 8;
        uint32_t pairs[4];
        decode_eight<Form>(pairs, parcel.codes[i], x < head_dim ? mx_scale(parcel.words[i], x / mx_group) : 0);
        *reinterpret_cast<uint4 *>(to->q + h * Form::pitch + x) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
    if (threadIdx.x < stage_heads) {
        to->weights[threadIdx.x] = parcel.weight;
    }
}

/* The keys of a warp from `first` on as operand: thread lane has keys lane / 4 + 8 * half of each tile. Keys outside [begin, end) and those
 * without a page are zeros. */
template <class Form>
__device__ __forceinline__ void load_keys(uint32_t (&operand)[2][Form::steps][4], const struct dg_mqa_logits_args &args, int64_t s, int first, int begin,
                                          int end, int lane)
{
    const struct dg_mqa_keys &keys = args.keys;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
        const int tile = part / 2, half = part % 2;
        const int j = first + part * 8 + lane / 4;
        struct place place = {-1, 0};
        if (j >= begin && j < end) {
            place = place_of(keys, s, j);
        }
        const uint32_t word = Form::is_mx && place.page >= 0 ? word_of_key(keys, place) : 0;
#pragma unroll
        for (int eight = 0; eight < Form::depth / 32; ++eight) {
            constexpr int eights_of_run = Form::run / 8;
            const int x = eight / eights_of_run * (4 * Form::run) + lane % 4 * Form::run + eight % eights_of_run * 8;
            uint2 codes = make_uint2(0, 0);
            if (place.page >= 0) {
                codes = load_eight<Form>(keys.codes + place.page, place.number * keys.stride_key + x * keys.stride_dim, keys.stride_dim, args.head_dim - x);
            }
            uint32_t pairs[4];
            decode_eight<Form>(pairs, codes, x < args.head_dim ? mx_scale(word, x / mx_group) : 0);
            operand[tile][2 * eight][half] = pairs[0];
            operand[tile][2 * eight][half + 2] = pairs[1];
            operand[tile][2 * eight + 1][half] = pairs[2];
            operand[tile][2 * eight + 1][half + 2] = pairs[3];
        }
    }
}

/* sums[2 * tile + half] += what `heads` heads in shared memory, filled up to eight with zeros, give to a thread's part of the columns */
template <class Form>
__device__ __forceinline__ void add_heads(float (&sums)[4], const uint32_t (&keys)[2][Form::steps][4], const struct shared_stage<Form> &from, int heads,
                                          int lane)
{
#pragma unroll(Form::steps == 8 ? 1 : 2) /* as many registers as there are */
    for (int h = 0; h < heads; h += 8) {
        uint32_t q[Form::steps * 2];
        const uint16_t *row = from.q + (h + lane / 4) * Form::pitch + lane % 4 * Form::run;
#pragma unroll
        for (int eight = 0; eight < Form::depth / 32; ++eight) {
            constexpr int eights_of_run = Form::run / 8;
            const uint4 four = *reinterpret_cast<const uint4 *>(row + eight / eights_of_run * (4 * Form::run) + eight % eights_of_run * 8);
            q[4 * eight] = four.x, q[4 * eight + 1] = four.y, q[4 * eight + 2] = four.z, q[4 * eight + 3] = four.w;
        }
        float dots[2][4] = {};
#pragma unroll
        for (int step = 0; step < Form::steps; ++step) {
            multiply<Form::is_mx>(dots[0], keys[0][step], q + 2 * step);
            multiply<Form::is_mx>(dots[1], keys[1][step], q + 2 * step);
        }
        const float2 weights = *reinterpret_cast<const float2 *>(from.weights + h + lane % 4 * 2);
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            sums[part] = fmaf(weights.x, relu(dots[part / 2][part % 2 * 2]), sums[part]);
            sums[part] = fmaf(weights.y, relu(dots[part / 2][part % 2 * 2 + 1]), sums[part]);
        }
    }
}

/* The sum over a quad of its thread lane % 4's part: that of key 8 * (lane % 4) + lane / 4 of the warp. */
__device__ __forceinline__ float own_sum(float (&sums)[4], int lane)
{
#pragma unroll
    for (float &sum : sums) {
        sum += __shfl_xor_sync(all_lanes, sum, 1);
        sum += __shfl_xor_sync(all_lanes, sum, 2);
    }
    const float low = lane % 2 == 0 ? sums[0] : sums[1], high = lane % 2 == 0 ? sums[2] : sums[3];
    return lane % 4 < 2 ? low : high;
}

template <class Form>
__global__ void __launch_bounds__(threads, Form::blocks) logits(const __grid_constant__ struct job job)
{
    __shared__ __align__(16) struct shared_stage<Form> stages[2];
    __shared__ uint8_t is_out_of_range[block_tokens];

    const struct dg_mqa_logits_args &args = job.args;
    const int lane = static_cast<int>(threadIdx.x) % warp, warp_index = static_cast<int>(threadIdx.x) / warp;
    for (int64_t piece = blockIdx.x; piece < job.pieces; piece += gridDim.x) {
        const int first_key = static_cast<int>(piece % job.key_blocks) * block_keys;
        const int64_t group = piece / job.key_blocks;
        const int64_t s = group / job.token_groups, first_token = group % job.token_groups * job.group_tokens;
        const int tokens = static_cast<int>(min(static_cast<int64_t>(job.group_tokens), args.tokens - first_token));

        /* Lane t knows token t of the group. */
        int2 range = make_int2(0, 0);
        if (lane < tokens) {
            range = range_of(args, s, first_token + lane);
        }
        const bool is_active = range.x < range.y && range.x - first_key < block_keys && range.y > first_key;
        const uint32_t active = __ballot_sync(all_lanes, is_active);
        const int begin = __reduce_min_sync(all_lanes, is_active ? range.x : INT32_MAX), end = __reduce_max_sync(all_lanes, is_active ? range.y : 0);

        /* The key whose logits this thread writes. */
        const int own_key = first_key + warp_index * warp_keys + lane % 4 * 8 + lane / 4;
        if (args.fills_rest && own_key < args.ranges.num_keys) {
            for (int t = 0; t < tokens; ++t) {
                if (!(active >> t & 1u)) {
                    store(args, s * args.tokens + first_token + t, own_key, -INFINITY);
                }
            }
        }
        if (active == 0) {
            continue; /* the whole block does */
        }

        for (int t = warp_index; t < tokens; t += warps) {
            const bool has = query_has_range(args, s, first_token + t, lane);
            if (lane == 0) {
                is_out_of_range[t] = !has;
            }
        }
        bool is_missing = false, is_exact = false;
        float key_scale = 1;
        if (own_key >= begin && own_key < end) {
            const struct place place = place_of(args.keys, s, own_key);
            is_missing = place.page < 0;
            if (!is_missing) {
                const uint32_t word = word_of_key(args.keys, place);
                is_exact = Form::is_mx && !has_range(word, args.head_dim);
                key_scale = Form::is_mx ? 1 : __uint_as_float(word); /* of any value: the last multiplication is as good in f32 */
            }
        }
        uint32_t keys[2][Form::steps][4];
        load_keys<Form>(keys, args, s, first_key + warp_index * warp_keys, begin, end, lane);

        uint32_t left = active;
        struct stage now = {__ffs(static_cast<int>(left)) - 1, 0};
        struct parcel<Form> parcel;
        fetch<Form>(&parcel, args, s, first_token + now.token, now.first_head);
        deliver<Form>(&stages[0], parcel, args.head_dim);
        float sums[4] = {};
        for (int half = 0;; half ^= 1) {
            __syncthreads();
            const bool ends_token = now.first_head + stage_heads >= args.heads;
            left = ends_token ? left & (left - 1) : left;
            const struct stage next = {__ffs(static_cast<int>(left)) - 1, ends_token ? 0 : now.first_head + stage_heads};
            if (left != 0) {
                fetch<Form>(&parcel, args, s, first_token + next.token, next.first_head);
            }
            add_heads<Form>(sums, keys, stages[half], static_cast<int>(min(args.heads - now.first_head, static_cast<int64_t>(stage_heads))), lane);
            if (ends_token) {
                const float sum = own_sum(sums, lane);
                const int from = __shfl_sync(all_lanes, range.x, now.token), to = __shfl_sync(all_lanes, range.y, now.token);
                const int64_t t = first_token + now.token, row = s * args.tokens + t;
                if (own_key >= from && own_key < to) {
                    const int64_t column = args.is_compressed ? own_key - from : own_key;
                    if (column < args.columns) {
                        float logit = Form::is_mx ? sum : key_scale * (0x1p16f * sum);
                        if (is_missing) {
                            logit = -INFINITY;
                        } else if (is_exact || is_out_of_range[now.token]) {
                            logit = exact_logit(args, s, t, own_key);
                        }
                        store(args, row, column, logit);
                    }
                } else if (args.fills_rest && own_key < args.ranges.num_keys) {
                    store(args, row, own_key, -INFINITY);
                }
#pragma unroll
                for (float &x : sums) {
                    x = 0;
                }
            }
            if (left == 0) {
                break;
            }
            deliver<Form>(&stages[half ^ 1], parcel, args.head_dim);
            now = next;
        }
        __syncthreads(); /* shared memory is read before the next piece writes it */
    }
}

/* ---- launch -------------------------------------------------------------------------------------------------------- */

dg_kernel_result launch(void (*kernel)(const struct job), const struct job *job, int64_t blocks)
{
    int64_t most = INT32_MAX;
    if (job->args.exec.num_sms > 0) {
        most = 2 * static_cast<int64_t>(job->args.exec.num_sms); /* two blocks fill a multiprocessor, about */
    }
    void *arguments[] = {const_cast<struct job *>(job)};
    const cudaError_t error = cudaLaunchKernel(reinterpret_cast<const void *>(kernel), dim3(static_cast<unsigned>(blocks < most ? blocks : most)),
                                               dim3(threads), arguments, 0, static_cast<cudaStream_t>(job->args.exec.stream));
    return launched(error);
}

template <int steps, bool is_aligned>
dg_kernel_result launch_logits(const struct job *job)
{
    if (job->args.q.sf == NULL) {
        return launch(&logits<form<steps, DG_MQA_F8E4M3, false, is_aligned>>, job, job->pieces);
    }
    if (job->args.type == DG_MQA_F8E4M3) {
        return launch(&logits<form<steps, DG_MQA_F8E4M3, true, is_aligned>>, job, job->pieces);
    }
    return launch(&logits<form<steps, DG_MQA_F4E2M1, true, is_aligned>>, job, job->pieces);
}

template <int steps>
dg_kernel_result choose_alignment(const struct job *job, bool is_aligned)
{
    return is_aligned ? launch_logits<steps, true>(job) : launch_logits<steps, false>(job);
}

/* Whether eight codes lie together, aligned to their size, wherever a head or a key begins. */
bool can_read_vectors(const struct dg_mqa_logits_args *args)
{
    const struct dg_mqa_queries *q = &args->q;
    const struct dg_mqa_keys *keys = &args->keys;
    const uintptr_t size = args->type == DG_MQA_F8E4M3 ? 8 : 4;
    const int64_t strides = q->stride_sequence | q->stride_token | q->stride_head | keys->stride_key; /* the last bits of all */
    return q->stride_dim == 1 && keys->stride_dim == 1 && strides % 8 == 0 && keys->page_bytes % static_cast<int64_t>(size) == 0 &&
           reinterpret_cast<uintptr_t>(q->codes) % size == 0 && reinterpret_cast<uintptr_t>(keys->codes) % size == 0;
}

/* ---- schedule ------------------------------------------------------------------------------------------------------ */

enum { scan_threads = 1024 };

/* Of thread i: what threads 0 .. i have together. `parts` has a place for each warp. */
template <class Value, class Combine>
__device__ __forceinline__ Value scan(Value value, Value *parts, Combine combine)
{
    const int lane = static_cast<int>(threadIdx.x) % warp, warp_index = static_cast<int>(threadIdx.x) / warp;
#pragma unroll
    for (int distance = 1; distance < warp; distance *= 2) {
        const Value before = __shfl_up_sync(all_lanes, value, static_cast<unsigned>(distance));
        value = lane >= distance ? combine(before, value) : value;
    }
    if (lane == warp - 1) {
        parts[warp_index] = value;
    }
    __syncthreads();
    for (int w = 0; w < warp_index; ++w) {
        value = combine(parts[w], value);
    }
    __syncthreads();
    return value;
}

/* Of the pass that begins at entry i: its splits, and how often they count. None where no pass begins. */
struct pass {
    int64_t splits, repeats;
};

__device__ __forceinline__ struct pass pass_at(const struct dg_mqa_schedule_args &args, int64_t i, int64_t run_begin)
{
    struct pass pass = {0, 1};
    int64_t last = i;
    if (args.indices == NULL) {
        pass.repeats = (args.next_n + 1) / 2;
    } else {
        if ((i - run_begin) % 2 != 0) {
            return pass; /* the second entry of a pair */
        }
        last += i + 1 < args.batch && args.indices[i * args.indices_stride] == args.indices[(i + 1) * args.indices_stride];
    }
    const int64_t keys = args.lens[last * args.lens_stride];
    pass.splits = keys > 0 ? (keys + split_keys - 1) / split_keys : 0;
    return pass;
}

/* One block. As dg_mqa_schedule_ref(): once over the entries for the sum of all splits, once more to say where slots begin. */
__global__ void __launch_bounds__(scan_threads) schedule(const __grid_constant__ struct dg_mqa_schedule_args args)
{
    __shared__ int64_t parts[scan_threads / warp];
    __shared__ int64_t carry_splits, carry_run;
    const auto sum_of = [](int64_t x, int64_t y) { return x + y; };
    const auto last_of = [](int64_t x, int64_t y) { return x > y ? x : y; };
    const int64_t step = args.indices == NULL ? (args.next_n + 1) / 2 : 1; /* atoms from entry to entry */

    int64_t total = 0;
    for (int round = 0; round < 2; ++round) {
        const int64_t share = total / args.num_slots;
        const int64_t first_larger = args.num_slots - total % args.num_slots;
        const auto start_of = [&](int64_t slot) { return slot * share + (slot > first_larger ? slot - first_larger : 0); };
        if (threadIdx.x == 0) {
            carry_splits = 0;
            carry_run = 0;
        }
        __syncthreads();
        for (int64_t first = 0; first < args.batch; first += scan_threads) {
            const int64_t i = first + threadIdx.x;
            int64_t run_begin = 0;
            if (args.indices != NULL) {
                const bool begins = i > 0 && i < args.batch && args.indices[i * args.indices_stride] != args.indices[(i - 1) * args.indices_stride];
                run_begin = last_of(carry_run, scan<int64_t>(begins ? i : 0, parts, last_of));
            }
            struct pass pass = {0, 1};
            if (i < args.batch) {
                pass = pass_at(args, i, run_begin);
            }
            const int64_t after = carry_splits + scan<int64_t>(pass.splits * pass.repeats, parts, sum_of);
            if (round == 1 && pass.splits > 0) {
                const int64_t before = after - pass.splits * pass.repeats;
                int64_t slot = 0; /* the first that begins at `before` or later */
                for (int64_t size = args.num_slots; size > 0;) {
                    const int64_t half = size / 2;
                    const bool is_less = start_of(slot + half) < before;
                    slot = is_less ? slot + half + 1 : slot;
                    size = is_less ? size - half - 1 : half;
                }
                for (; slot < args.num_slots && start_of(slot) < after; ++slot) {
                    args.schedule[2 * slot] = static_cast<int32_t>(i * step + (start_of(slot) - before) / pass.splits);
                    args.schedule[2 * slot + 1] = static_cast<int32_t>((start_of(slot) - before) % pass.splits);
                }
            }
            if (threadIdx.x == scan_threads - 1) {
                carry_splits = after;
                carry_run = run_begin;
            }
            __syncthreads();
        }
        total = carry_splits;
        __syncthreads();
    }
    for (int64_t slot = (total > 0 ? args.num_slots : 0) + threadIdx.x; slot <= args.num_slots; slot += scan_threads) {
        args.schedule[2 * slot] = static_cast<int32_t>(args.batch * step);
        args.schedule[2 * slot + 1] = 0;
    }
}

} // namespace

extern "C" dg_kernel_result dg_mqa_logits_sm80(const struct dg_mqa_logits_args *args)
{
    struct job job;
    job.args = *args;
    if (args->heads == 0 || args->head_dim > most_depth || args->ranges.num_keys > INT32_MAX - block_keys) {
        return launch(&exact_logits, &job, ceil_div(args->sequences * args->tokens * args->columns, threads));
    }
    const struct dg_cuda_device *device = dg_cuda_find_device(args->exec.device_id);
    job.key_blocks = ceil_div(args->ranges.num_keys, block_keys);
    job.group_tokens = block_tokens;
    while (job.group_tokens > 1 && args->sequences * ceil_div(args->tokens, job.group_tokens) * job.key_blocks < 4 * device->num_sms) {
        job.group_tokens /= 2; /* more blocks, each of which decodes its keys again */
    }
    job.token_groups = ceil_div(args->tokens, job.group_tokens);
    job.pieces = args->sequences * job.token_groups * job.key_blocks;
    const int64_t depth = args->head_dim <= 32 ? 32 : args->head_dim <= 64 ? 64 : 128;
    const bool is_aligned = args->head_dim == depth && can_read_vectors(args);
    switch (depth) {
    case 32: return choose_alignment<2>(&job, is_aligned);
    case 64: return choose_alignment<4>(&job, is_aligned);
    default: return choose_alignment<8>(&job, is_aligned);
    }
}

extern "C" dg_kernel_result dg_mqa_schedule_sm80(const struct dg_mqa_schedule_args *args)
{
    void *arguments[] = {const_cast<struct dg_mqa_schedule_args *>(args)};
    const cudaError_t error = cudaLaunchKernel(reinterpret_cast<const void *>(&schedule), dim3(1), dim3(scan_threads), arguments, 0,
                                               static_cast<cudaStream_t>(args->exec.stream));
    return launched(error);
}
