/* The casts on CUDA. ops/cast.h has the formulas, kernels/cpu/cast_element.h is their meaning; the bits are the same, those of a NaN
 * scale included.
 *
 * A group of threads has a block of x that shares a scale in registers: 16 bytes per access, one read of x, no shared memory beyond that
 * of a sum over warps. What does not lie that way (odd granularities, strides or addresses, blocks of more than 16384 elements) goes
 * through `cast_any`, which reads x twice; blocks of one column through `cast_columns`, in which neighbouring threads have neighbouring
 * columns.
 */
#include "cast_device.cuh"
#include "device.h"

#include <cuda_fp16.h>

namespace {

enum { threads = 256, warp = 32 };

/* ---- elements ------------------------------------------------------------------------------------------------ */

template <bool is_fp8>
__device__ __forceinline__ uint32_t code_of(float value)
{
    return is_fp8 ? fp8_codes(value, value) & 0xffu : fp4_code(value);
}

struct bf16 {
    uint16_t bits;
    static __device__ __forceinline__ float widened(struct bf16 x)
    {
        return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
    }
};

struct f16 {
    uint16_t bits;
    /* NaN keeps its payload, and is not made quiet. */
    static __device__ __forceinline__ float widened(struct f16 x)
    {
        if ((x.bits & 0x7c00u) == 0x7c00u) {
            return __uint_as_float(static_cast<uint32_t>(x.bits & 0x8000u) << 16 | 0x7f800000u | static_cast<uint32_t>(x.bits & 0x03ffu) << 13);
        }
        return __half2float(__ushort_as_half(x.bits));
    }
};

struct f32 {
    float value;
    static __device__ __forceinline__ float widened(struct f32 x)
    {
        return x.value;
    }
};

struct job {
    int64_t m, n;
    const void *x;
    int64_t stride_m, stride_n;
    int64_t gran_m, gran_n;
    int64_t rows, blocks; /* of scales */
    uint8_t *codes;
    enum dg_cast_scale scale_type;
    void *sf;
};

template <class Element>
__device__ __forceinline__ float element(const struct job &job, int64_t i, int64_t j)
{
    return Element::widened(static_cast<const Element *>(job.x)[i * job.stride_m + j * job.stride_n]);
}

/* Whoever has the last scale of a packed row fills up its last word with ones. */
__device__ __forceinline__ void store_scale(const struct job &job, int64_t row, int64_t block, float sf)
{
    if (job.scale_type != DG_CAST_SCALE_PACKED) {
        static_cast<float *>(job.sf)[row * job.blocks + block] = sf;
        return;
    }
    int64_t row_bytes = (job.blocks + 3) / 4 * 4;
    uint8_t *bytes = static_cast<uint8_t *>(job.sf) + row * row_bytes;
    bytes[block] = static_cast<uint8_t>(__float_as_uint(sf) >> 23);
    if (block + 1 == job.blocks) {
        for (int64_t q = job.blocks; q < row_bytes; ++q) {
            bytes[q] = 127;
        }
    }
}

/* ---- blocks in registers ------------------------------------------------------------------------------------- */

template <class Element>
struct vector { /* 16 bytes */
    static constexpr int size = 16 / static_cast<int>(sizeof(Element));
    union {
        uint4 raw;
        Element elements[size];
    };
};

/* Stores the codes of one vector. */
template <class Element, bool is_fp8>
__device__ __forceinline__ void store_codes(uint8_t *codes, int64_t index, const vector<Element> &v, float inverse)
{
    constexpr int size = vector<Element>::size;
    constexpr int bits = is_fp8 ? 8 : 4;
    uint32_t words[2] = {0, 0};
#pragma unroll
    for (int e = 0; e < size; e += 2) {
        const float first = __fmul_rn(Element::widened(v.elements[e]), inverse), second = __fmul_rn(Element::widened(v.elements[e + 1]), inverse);
        const uint32_t pair = is_fp8 ? fp8_codes(first, second) : fp4_code(first) | fp4_code(second) << 4;
        words[e * bits / 32] |= pair << (e * bits % 32);
    }
    if (size * bits == 64) {
        *reinterpret_cast<uint2 *>(codes + index) = make_uint2(words[0], words[1]);
    } else if (size * bits == 32) {
        *reinterpret_cast<uint32_t *>(codes + (is_fp8 ? index : index / 2)) = words[0];
    } else {
        *reinterpret_cast<uint16_t *>(codes + index / 2) = static_cast<uint16_t>(words[0]);
    }
}

/* The largest over a group of neighbouring threads, for all of them. */
template <int group>
__device__ __forceinline__ uint32_t largest_of_group(uint32_t largest, uint32_t *shared)
{
#pragma unroll
    for (int distance = 1; distance < min(group, static_cast<int>(warp)); distance *= 2) {
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
    }
    if constexpr (group > warp) {
        if (threadIdx.x % warp == 0) {
            shared[threadIdx.x / warp] = largest;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < group / warp; ++i) {
            largest = max(largest, shared[i]);
        }
        __syncthreads(); /* before the next block's */
    }
    return largest;
}

/* Where a thread's vector is. */
struct place {
    int64_t i, j;
    bool is_there;
};

/* `group` threads have a block, each up to `count` vectors of it, those that lie a whole group apart; and `together` blocks at a time, so
 * that enough loads are under way. */
template <class Element, bool is_fp8, int group, int count, int together>
__global__ void __launch_bounds__(threads) cast_vectors(const __grid_constant__ struct job job)
{
    constexpr int size = vector<Element>::size;
    constexpr unsigned groups = threads / group;
    __shared__ uint32_t shared[threads / warp];
    const unsigned items = static_cast<unsigned>(job.rows * job.blocks), blocks = static_cast<unsigned>(job.blocks);
    const int vectors_per_row = static_cast<int>(job.gran_n) / size, rows_per_block = static_cast<int>(job.gran_m);
    const int lane = static_cast<int>(threadIdx.x) % group;
    const auto place_of = [&](unsigned item, int c) {
        const unsigned row = item / blocks, block = item - row * blocks;
        const int at = lane + c * group, i = rows_per_block == 1 ? 0 : at / vectors_per_row, j = at - i * vectors_per_row;
        struct place place = {row * job.gran_m + i, block * job.gran_n + j * size, false};
        place.is_there = item < items && i < rows_per_block && j < vectors_per_row && place.i < job.m && place.j < job.n;
        return place;
    };
    for (unsigned first = blockIdx.x * groups * together; first < items; first += gridDim.x * groups * together) {
        const unsigned own = first + threadIdx.x / group;
        vector<Element> v[together][count];
#pragma unroll
        for (int t = 0; t < together; ++t) {
#pragma unroll
            for (int c = 0; c < count; ++c) {
                const struct place place = place_of(own + t * groups, c);
                v[t][c].raw = place.is_there ? __ldg(reinterpret_cast<const uint4 *>(static_cast<const Element *>(job.x) + place.i * job.stride_m + place.j))
                                             : make_uint4(0, 0, 0, 0);
            }
        }
#pragma unroll
        for (int t = 0; t < together; ++t) {
            const unsigned item = own + t * groups;
            uint32_t largest = 0;
#pragma unroll
            for (int c = 0; c < count; ++c) {
#pragma unroll
                for (int e = 0; e < size; ++e) {
                    largest = max(largest, magnitude_bits(Element::widened(v[t][c].elements[e])));
                }
            }
            const struct scale scale = scale_of_block<is_fp8>(largest_of_group<group>(largest, shared), job.scale_type);
            if (item < items && lane == 0) {
                store_scale(job, item / blocks, item % blocks, scale.sf);
            }
#pragma unroll
            for (int c = 0; c < count; ++c) {
                const struct place place = place_of(item, c);
                if (place.is_there) {
                    store_codes<Element, is_fp8>(job.codes, place.i * job.n + place.j, v[t][c], scale.inverse);
                }
            }
        }
    }
}

/* ---- blocks of one column ------------------------------------------------------------------------------------ */

/* A thread has a column of gran_m rows; the second read finds most of it in a cache. FP8 only. */
template <class Element>
__global__ void __launch_bounds__(threads) cast_columns(const __grid_constant__ struct job job)
{
    const int64_t items = job.rows * job.n;
    for (int64_t item = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x; item < items; item += static_cast<int64_t>(gridDim.x) * threads) {
        const int64_t row = item / job.n, j = item % job.n;
        const int64_t begin = row * job.gran_m, end = min(begin + job.gran_m, job.m);
        uint32_t largest = 0;
#pragma unroll 8
        for (int64_t i = begin; i < end; ++i) {
            largest = max(largest, magnitude_bits(element<Element>(job, i, j)));
        }
        const struct scale scale = scale_of_block<true>(largest, job.scale_type);
        store_scale(job, row, j, scale.sf);
#pragma unroll 8
        for (int64_t i = begin; i < end; ++i) {
            job.codes[i * job.n + j] = static_cast<uint8_t>(code_of<true>(__fmul_rn(element<Element>(job, i, j), scale.inverse)));
        }
    }
}

/* The same for columns in vectors of 16 bytes and gran_m <= 128, in registers: a block of threads has 8 vectors beside one another, and
 * each thread every 32nd row of one of them. FP8 only. */
template <class Element>
__global__ void __launch_bounds__(threads) cast_column_vectors(const __grid_constant__ struct job job)
{
    constexpr int size = vector<Element>::size, across = 8, down = threads / across, most_rows = 128 / down;
    __shared__ uint32_t shared[threads / warp][across * size];
    const int64_t tiles = (job.n + across * size - 1) / (across * size), items = job.rows * tiles;
    const int column = static_cast<int>(threadIdx.x) % across, first_row = static_cast<int>(threadIdx.x) / across;
    const int warp_index = static_cast<int>(threadIdx.x) / warp;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const int64_t row = item / tiles, j = (item % tiles * across + column) * size;
        const int64_t begin = row * job.gran_m, end = min(begin + job.gran_m, job.m);
        vector<Element> v[most_rows];
#pragma unroll
        for (int r = 0; r < most_rows; ++r) {
            const int64_t i = begin + first_row + r * down;
            v[r].raw = i < end && j < job.n ? __ldg(reinterpret_cast<const uint4 *>(static_cast<const Element *>(job.x) + i * job.stride_m + j))
                                            : make_uint4(0, 0, 0, 0);
        }
        uint32_t largest[size];
#pragma unroll
        for (int e = 0; e < size; ++e) {
            largest[e] = 0;
#pragma unroll
            for (int r = 0; r < most_rows; ++r) {
                largest[e] = max(largest[e], magnitude_bits(Element::widened(v[r].elements[e])));
            }
            largest[e] = max(largest[e], __shfl_xor_sync(0xffffffffu, largest[e], across));
            largest[e] = max(largest[e], __shfl_xor_sync(0xffffffffu, largest[e], 2 * across));
            if (threadIdx.x % warp < across) {
                shared[warp_index][column * size + e] = largest[e];
            }
        }
        __syncthreads();
        float inverse[size];
#pragma unroll
        for (int e = 0; e < size; ++e) {
#pragma unroll
            for (int w = 0; w < threads / warp; ++w) {
                largest[e] = max(largest[e], shared[w][column * size + e]);
            }
            const struct scale scale = scale_of_block<true>(largest[e], job.scale_type);
            inverse[e] = scale.inverse;
            if (first_row == 0 && j < job.n) {
                store_scale(job, row, j + e, scale.sf);
            }
        }
        __syncthreads(); /* before the next item's */
#pragma unroll
        for (int r = 0; r < most_rows; ++r) {
            const int64_t i = begin + first_row + r * down;
            uint32_t words[2] = {0, 0};
#pragma unroll
            for (int e = 0; e < size; e += 2) {
                const float first = __fmul_rn(Element::widened(v[r].elements[e]), inverse[e]);
                const float second = __fmul_rn(Element::widened(v[r].elements[e + 1]), inverse[e + 1]);
                words[e / 4] |= fp8_codes(first, second) << (e % 4 * 8);
            }
            if (i < end && j < job.n) {
                if (size == 8) {
                    *reinterpret_cast<uint2 *>(job.codes + i * job.n + j) = make_uint2(words[0], words[1]);
                } else {
                    *reinterpret_cast<uint32_t *>(job.codes + i * job.n + j) = words[0];
                }
            }
        }
    }
}

/* ---- any blocks ---------------------------------------------------------------------------------------------- */

/* A warp has two neighbouring blocks of a row of blocks, which begin at an even column, so that pairs of FP4 codes are its own. */
template <class Element, bool is_fp8>
__global__ void __launch_bounds__(threads) cast_any(const __grid_constant__ struct job job)
{
    const int64_t pairs = (job.blocks + 1) / 2, items = job.rows * pairs;
    const int lane = static_cast<int>(threadIdx.x) % warp;
    for (int64_t item = (static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x) / warp; item < items;
         item += static_cast<int64_t>(gridDim.x) * (threads / warp)) {
        const int64_t row = item / pairs, block = item % pairs * 2;
        const int64_t first_i = row * job.gran_m, first_j = block * job.gran_n;
        const int64_t i_count = min(job.gran_m, job.m - first_i), j_count = min(2 * job.gran_n, job.n - first_j);
        uint32_t largest[2] = {0, 0};
        for (int64_t at = lane; at < i_count * j_count; at += warp) {
            const int64_t j = at % j_count;
            const uint32_t magnitude = magnitude_bits(element<Element>(job, first_i + at / j_count, first_j + j));
            largest[0] = max(largest[0], j < job.gran_n ? magnitude : 0u);
            largest[1] = max(largest[1], j < job.gran_n ? 0u : magnitude);
        }
        struct scale scales[2];
#pragma unroll
        for (int q = 0; q < 2; ++q) {
            scales[q] = scale_of_block<is_fp8>(largest_of_group<warp>(largest[q], nullptr), job.scale_type);
            if (lane == 0 && block + q < job.blocks) {
                store_scale(job, row, block + q, scales[q].sf);
            }
        }
        constexpr int step = is_fp8 ? 1 : 2; /* n is even for FP4, and so is j_count */
        for (int64_t at = lane; at < i_count * (j_count / step); at += warp) {
            const int64_t i = first_i + at / (j_count / step), j = at % (j_count / step) * step;
            uint32_t byte = 0;
#pragma unroll
            for (int e = 0; e < step; ++e) {
                const float inverse = j + e < job.gran_n ? scales[0].inverse : scales[1].inverse;
                byte |= code_of<is_fp8>(__fmul_rn(element<Element>(job, i, first_j + j + e), inverse)) << (4 * e);
            }
            job.codes[(i * job.n + first_j + j) / step] = static_cast<uint8_t>(byte);
        }
    }
}

/* ---- back ---------------------------------------------------------------------------------------------------- */

struct back_job {
    int64_t m, n;
    const uint8_t *codes;
    int64_t stride_m, stride_n;
    int64_t gran_n;
    const void *sf;
    bool is_packed;
    int64_t sf_stride_m, sf_stride_n;
    float *values;
    bool has_pairs; /* four neighbours in two bytes, at an even address */
    bool has_fours; /* rows of values begin at multiples of 16 bytes */
};

/* The value of a code: sign, and a magnitude of twice 0 0.5 1 1.5 2 3 4 6. */
__device__ __forceinline__ float fp4_value(uint32_t code)
{
    const float magnitude = static_cast<float>(0xc8643210u >> (4 * (code & 7u)) & 15u) * 0.5f;
    return code & 8u ? -magnitude : magnitude;
}

__device__ __forceinline__ float back_scale(const struct back_job &job, int64_t i, int64_t q)
{
    if (!job.is_packed) {
        return static_cast<const float *>(job.sf)[i * job.sf_stride_m + q * job.sf_stride_n];
    }
    const uint32_t word = static_cast<const uint32_t *>(job.sf)[i * job.sf_stride_m + q / 4 * job.sf_stride_n];
    const uint32_t code = word >> (8 * (q % 4)) & 0xffu;
    return __uint_as_float(code == 0 ? 0x00400000u : code == 0xffu ? 0x7fc00000u : code << 23);
}

/* code * scale with the bits that CPUs give: a NaN scale keeps its payload, and 0 times infinity is the NaN of x86. */
__device__ __forceinline__ float back_value(uint32_t code, float scale)
{
    const float value = __fmul_rn(fp4_value(code), scale);
    if (!is_nan(value)) {
        return value;
    }
    return __uint_as_float(is_nan(scale) ? __float_as_uint(scale) | 0x00400000u : 0xffc00000u);
}

/* A thread has four neighbours of a row. Index: of 32 bits where they are enough, since divisions of 64 take as long as all else. */
template <class Index>
__global__ void __launch_bounds__(threads) cast_back(const __grid_constant__ struct back_job job)
{
    const Index fours = static_cast<Index>((job.n + 3) / 4), gran_n = static_cast<Index>(job.gran_n);
    const int64_t items = job.m * fours;
    for (int64_t item = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x; item < items; item += static_cast<int64_t>(gridDim.x) * threads) {
        const int64_t i = static_cast<Index>(item) / fours, j = static_cast<int64_t>(static_cast<Index>(item) % fours) * 4;
        const int count = static_cast<int>(min(job.n - j, static_cast<int64_t>(4)));
        uint32_t codes = 0;
        if (job.has_pairs && count == 4) {
            codes = *reinterpret_cast<const uint16_t *>(job.codes + (i * job.stride_m + j) / 2);
        } else {
            for (int e = 0; e < count; ++e) {
                const int64_t index = i * job.stride_m + (j + e) * job.stride_n;
                codes |= (job.codes[index / 2] >> (index % 2 * 4) & 15u) << (4 * e);
            }
        }
        float values[4];
        int64_t q = static_cast<Index>(j) / gran_n, next = (q + 1) * job.gran_n;
        float scale = back_scale(job, i, q);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            if (e < count && j + e >= next) {
                ++q;
                next += job.gran_n;
                scale = back_scale(job, i, q);
            }
            values[e] = back_value(codes >> (4 * e) & 15u, scale);
        }
        float *to = job.values + i * job.n + j;
        if (job.has_fours && count == 4) {
            *reinterpret_cast<float4 *>(to) = make_float4(values[0], values[1], values[2], values[3]);
        } else {
            for (int e = 0; e < count; ++e) {
                to[e] = values[e];
            }
        }
    }
}

/* ---- launches ------------------------------------------------------------------------------------------------ */

/* Enough blocks of threads for `items` of which each does `per_block` at a time; or, where the multiprocessors are limited, for each of those. */
template <class Job>
dg_kernel_result launch(void (*kernel)(Job), Job *job, int64_t items, int64_t per_block, const struct dg_exec *exec)
{
    const int64_t most = exec->num_sms > 0 ? exec->num_sms : int64_t{1} << 30;
    const int64_t needed = ceil_div(items, per_block);
    void *arguments[] = {job};
    cudaError_t error = cudaLaunchKernel(reinterpret_cast<const void *>(kernel), dim3(static_cast<unsigned>(needed < most ? needed : most)),
                                         dim3(threads), arguments, 0, static_cast<cudaStream_t>(exec->stream));
    return launched(error);
}

template <class Element, bool is_fp8, int group, int count>
dg_kernel_result launch_vectors(struct job *job, const struct dg_exec *exec)
{
    constexpr int together = count == 1 ? 4 : 1;
    return launch(&cast_vectors<Element, is_fp8, group, count, together>, job, job->rows * job->blocks, together * threads / group, exec);
}

template <class Element, bool is_fp8>
dg_kernel_result cast(struct job *job, const struct dg_exec *exec)
{
    constexpr int size = vector<Element>::size;
    constexpr int code_bytes = is_fp8 ? size : size / 2;
    const bool has_vectors = job->stride_n == 1 && job->n % size == 0 && (job->m == 1 || job->stride_m % size == 0) && is_multiple(job->x, 16) &&
                             is_multiple(job->codes, code_bytes);
    const int64_t per_row = job->gran_n / size; /* vectors of a block */
    if (has_vectors && job->gran_n % size == 0 && per_row <= 4096 && job->gran_m <= 4096 && job->rows <= (int64_t{1} << 31) / job->blocks) {
        const int64_t vectors = per_row * job->gran_m;
        if (vectors <= 4) {
            return launch_vectors<Element, is_fp8, 4, 1>(job, exec);
        }
        if (vectors <= 8) {
            return launch_vectors<Element, is_fp8, 8, 1>(job, exec);
        }
        if (vectors <= 16) {
            return launch_vectors<Element, is_fp8, 16, 1>(job, exec);
        }
        if (vectors <= 32) {
            return launch_vectors<Element, is_fp8, 32, 1>(job, exec);
        }
        if (vectors <= 4 * warp) {
            return launch_vectors<Element, is_fp8, 32, 4>(job, exec);
        }
        if (vectors <= threads * 8) {
            return launch_vectors<Element, is_fp8, threads, 8>(job, exec);
        }
        if (vectors <= threads * 16) {
            return launch_vectors<Element, is_fp8, threads, 16>(job, exec);
        }
    }
    if (is_fp8 && has_vectors && job->gran_n == 1 && job->gran_m <= 128) {
        return launch(&cast_column_vectors<Element>, job, job->rows * ceil_div(job->n, 8 * size), 1, exec);
    }
    if (is_fp8 && job->gran_n == 1) {
        return launch(&cast_columns<Element>, job, job->rows * job->n, threads, exec);
    }
    return launch(&cast_any<Element, is_fp8>, job, job->rows * ((job->blocks + 1) / 2), threads / warp, exec);
}

template <class Element>
dg_kernel_result cast_to(enum dg_cast_code code_type, struct job *job, const struct dg_exec *exec)
{
    return code_type == DG_CAST_F8E4M3 ? cast<Element, true>(job, exec) : cast<Element, false>(job, exec);
}

} // namespace

extern "C" dg_kernel_result dg_cast_sm80(const struct dg_cast_args *args)
{
    struct job job;
    job.m = args->m;
    job.n = args->n;
    job.x = args->x;
    job.stride_m = args->stride_m;
    job.stride_n = args->stride_n;
    job.gran_m = args->gran_m;
    job.gran_n = args->gran_n;
    job.rows = ceil_div(args->m, args->gran_m);
    job.blocks = ceil_div(args->n, args->gran_n);
    job.codes = args->codes;
    job.scale_type = args->scale_type;
    job.sf = args->sf;
    switch (args->type) {
    case DG_CAST_BF16: return cast_to<bf16>(args->code_type, &job, &args->exec);
    case DG_CAST_F16: return cast_to<f16>(args->code_type, &job, &args->exec);
    default: return cast_to<f32>(args->code_type, &job, &args->exec);
    }
}

extern "C" dg_kernel_result dg_cast_back_sm80(const struct dg_cast_back_args *args)
{
    struct back_job job;
    job.m = args->m;
    job.n = args->n;
    job.codes = args->codes;
    job.stride_m = args->stride_m;
    job.stride_n = args->stride_n;
    job.gran_n = args->gran_n;
    job.sf = args->sf;
    job.is_packed = args->is_packed;
    job.sf_stride_m = args->sf_stride_m;
    job.sf_stride_n = args->sf_stride_n;
    job.values = args->values;
    job.has_pairs = args->stride_n == 1 && args->stride_m % 4 == 0 && is_multiple(args->codes, 2);
    job.has_fours = args->n % 4 == 0 && is_multiple(args->values, 16);
    const int64_t items = args->m * ceil_div(args->n, 4), most = UINT32_MAX / 4;
    return items <= most && args->gran_n <= most ? launch(&cast_back<uint32_t>, &job, items, threads, &args->exec)
                                                 : launch(&cast_back<uint64_t>, &job, items, threads, &args->exec);
}
