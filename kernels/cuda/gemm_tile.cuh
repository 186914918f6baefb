/* The tile that the GEMM kernels of every GPU since Ampere compute: on every shape, stride and scale of struct dg_gemm_args.
 *
 * One block computes one tile of d at a time. It moves tiles of 128 bytes of k through a ring of shared memory, and its warps
 * multiply them with mma.sync.m16n8k16 (bf16, or f16 after decoding 8-bit codes in registers), with f32 accumulators. In flight: all
 * stages of the ring but one. FP4 operands are widened to e4m3 in shared memory, which is exact.
 *
 * An operand with k contiguous and aligned rows comes by cp.async; any other is gathered element by element, into the same
 * layout. Scales travel with the tile that they belong to; when their block of k ends, its partial sums are multiplied by sfa and by
 * sfb and added to the sums. So no chain of additions in the tensor cores, which truncate, is longer than 128 (of bf16: 64). Every
 * element of d is summed by one warp in a fixed order: the same arguments give the same bits.
 *
 * Read compute_tile() first, then copier and multiply_codes(). Meaning: kernels/cpu/gemm_ref.c.
 */
#ifndef DG_CUDA_GEMM_TILE_CUH
#define DG_CUDA_GEMM_TILE_CUH

#include "device.h"
#include "gemm_device.cuh"

#include <limits.h>

namespace {

/* ---- shapes -------------------------------------------------------------------------------------------------- */

enum {
    row_bytes = 128,  /* of k in one row of a tile: one line of all 32 banks */
    chunk_bytes = 16, /* what one cp.async moves and one row of an ldmatrix holds */
    row_chunks = row_bytes / chunk_bytes,
    step_bytes = 32, /* of k that one ldmatrix reads: k16 of bf16, k32 of 8-bit codes, where it also counts elements */
    row_steps = row_bytes / step_bytes,
    group_tiles_m = 8 /* tiles of d that share columns of b run together, so that L2 serves them */
};

/* The compile-time knobs of a kernel. A warp computes warp_m x warp_n of the tile. */
struct config_bf16_large {
    static constexpr bool is_bf16 = true;
    static constexpr int tile_m = 128, tile_n = 128, warp_m = 64, warp_n = 64;
    static constexpr int blocks_per_sm = 2, max_stages = 3;
};
struct config_bf16_small {
    static constexpr bool is_bf16 = true;
    static constexpr int tile_m = 32, tile_n = 64, warp_m = 16, warp_n = 32;
    static constexpr int blocks_per_sm = 2, max_stages = 8;
};
struct config_f8_large { /* twice the accumulators per element of d: half the elements per warp */
    static constexpr bool is_bf16 = false;
    static constexpr int tile_m = 128, tile_n = 128, warp_m = 64, warp_n = 32;
    static constexpr int blocks_per_sm = 1, max_stages = 4;
};
struct config_f8_small {
    static constexpr bool is_bf16 = false;
    static constexpr int tile_m = 32, tile_n = 64, warp_m = 16, warp_n = 32;
    static constexpr int blocks_per_sm = 2, max_stages = 8;
};

/* What follows from a config. */
template <class Config>
struct shape {
    static constexpr int warps_n = Config::tile_n / Config::warp_n;
    static constexpr int threads = 32 * warps_n * (Config::tile_m / Config::warp_m);
    static constexpr int rows_m = Config::warp_m / 16; /* mma tiles of a warp */
    static constexpr int cols_n = Config::warp_n / 8;
    static constexpr int element_bytes = Config::is_bf16 ? 2 : 1; /* in shared memory */
    static constexpr int row_elements = row_bytes / element_bytes;
    static constexpr int operand_a_bytes = Config::tile_m * row_bytes;
    static constexpr int operand_b_bytes = Config::tile_n * row_bytes;
    static constexpr int scale_rows = Config::is_bf16 ? 0 : Config::tile_m + Config::tile_n; /* a's rows, then b's */
    static constexpr int stage_bytes = operand_a_bytes + operand_b_bytes + scale_rows * row_steps * 4;
    static constexpr int copy_rows = threads / row_chunks; /* rows that the block copies at once; a multiple of 8 */
};

/* How an operand gets into shared memory. */
enum loader {
    load_copy,      /* k contiguous, rows 16-byte aligned: cp.async */
    load_fp4,       /* FP4, k contiguous, rows 8-byte aligned: cp.async, then widened in place */
    load_gather_k,  /* anything; lanes run along k */
    load_gather_mn  /* anything; lanes run along mn */
};

struct side { /* one operand and its scales */
    struct dg_gemm_operand operand;
    struct dg_gemm_scale scale;
    int64_t rows; /* m or n */
    int64_t copy_step_bytes; /* from a row to the one that the same thread copies next */
    enum loader loader;
};

struct problem {
    struct side side[2]; /* a, b */
    int64_t k;
    int64_t tiles_m, tiles_n;
    int stages;
    int scales_per_row;            /* of a tile: 1, or row_steps when a scale covers less than the tile */
    bool is_cut_at_scales;         /* a scale may end anywhere: tiles end there too */
    struct output out;
};

/* ---- PTX ----------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ uint32_t shared_address(const void *pointer)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/* 16 bytes from global memory; or, when that is not valid to read, 16 bytes of 0. */
__device__ __forceinline__ void copy_chunk(uint32_t target, const void *source, bool is_valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(is_valid ? 16 : 0) : "memory");
}

/* 8 bytes, in the same way. */
__device__ __forceinline__ void copy_half_chunk(uint32_t target, const void *source, bool is_valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(target), "l"(source), "r"(is_valid ? 8 : 0) : "memory");
}

/* 16 bytes that are valid. */
__device__ __forceinline__ void copy_valid_chunk(uint32_t target, const void *source)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}

__device__ __forceinline__ void copy_word(uint32_t target, const void *source)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(target), "l"(source) : "memory");
}

__device__ __forceinline__ void commit_copies()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most `in_flight` groups of this thread's copies, of 0 to most, are unfinished. The instruction takes a constant; a row of
 * predicated ones costs less than a jump. */
template <int most>
__device__ __forceinline__ void wait_for_copies(int in_flight)
{
    if (in_flight == most) {
        asm volatile("cp.async.wait_group %0;" ::"n"(most) : "memory");
    }
    if constexpr (most > 0) {
        wait_for_copies<most - 1>(in_flight);
    }
}

__device__ __forceinline__ void load_matrices(uint32_t (&out)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address)
                 : "memory");
}

/* ---- number formats ------------------------------------------------------------------------------------------ */

/* Four e2m1 codes, in the low nibbles of 16 bits, to four e4m3 codes of the same values. */
__device__ __forceinline__ uint32_t widen_e2m1(uint32_t codes)
{
    const uint32_t magnitudes_0_to_3 = 0x3c383000u, magnitudes_4_to_7 = 0x4c484440u; /* 0 .5 1 1.5 and 2 3 4 6 */
    uint32_t signs = ((codes << 4) & 0x80u) | ((codes << 8) & 0x8000u) | ((codes << 12) & 0x800000u) | ((codes << 16) & 0x80000000u);
    return __byte_perm(magnitudes_0_to_3, magnitudes_4_to_7, codes & 0x7777u) | signs;
}

/* ---- shared memory ------------------------------------------------------------------------------------------- */

/* Byte offset of a chunk in a tile of rows of 128 bytes. Chunks of a row are permuted by the row, so that the eight rows of an
 * ldmatrix, and eight rows written by eight lanes, lie in different banks. */
__device__ __forceinline__ int chunk_offset(int row, int chunk)
{
    return row * row_bytes + ((chunk ^ (row & 7)) * chunk_bytes);
}

/* The scales of a stage, [row_steps][tile_m + tile_n]. */
template <class Config>
__device__ __forceinline__ uint32_t *scales_of(unsigned char *stage)
{
    return reinterpret_cast<uint32_t *>(stage + shape<Config>::operand_a_bytes + shape<Config>::operand_b_bytes);
}

/* ---- loading ------------------------------------------------------------------------------------------------- */

__host__ __device__ __forceinline__ bool is_copied(const struct side &side)
{
    return side.loader == load_copy || side.loader == load_fp4;
}

/* A tile of one operand: `rows` rows from row0 on, k from k0 to k_end; what lies outside is filled with 0. */
struct tile {
    int64_t row0;
    int64_t k0, k_end;
    int rows;
    int valid_rows; /* at most rows, at least 1 */
};

/* What a thread needs to copy its chunk of every copy_rows'th row, tile after tile along k. FP4 codes come as half a chunk, which the same
 * thread widens when it has arrived. */
template <class Config, int tile_rows>
struct copier {
    const char *source; /* of this thread's chunk in its first row, in the next tile */
    int offset;         /* of that chunk in shared memory */
    int rows;           /* that are valid, counted from its first row */

    static __device__ __forceinline__ bool has_fp4(const struct side &side)
    {
        return !Config::is_bf16 && side.loader == load_fp4;
    }

    __device__ __forceinline__ copier(const struct side &side, int64_t row0)
    {
        int row = static_cast<int>(threadIdx.x) / row_chunks, chunk = static_cast<int>(threadIdx.x) % row_chunks;
        int64_t begin = (row0 + row) * side.operand.stride_mn * shape<Config>::element_bytes + chunk * chunk_bytes;
        source = static_cast<const char *>(side.operand.data) + (has_fp4(side) ? begin / 2 : begin);
        offset = chunk_offset(row, chunk);
        rows = static_cast<int>(min(side.rows - row0, static_cast<int64_t>(tile_rows))) - row;
    }

    __device__ __forceinline__ void step(const struct side &side)
    {
        source += has_fp4(side) ? row_bytes / 2 : row_bytes;
    }

    /* A tile that lies inside of the operand. Most do, and what a block does between two stages costs as much as the tensor cores do. */
    __device__ __forceinline__ void copy_whole(const struct side &side, unsigned char *target)
    {
        const char *from = source;
        uint32_t address = shared_address(target) + offset;
        if (has_fp4(side)) {
#pragma unroll
            for (int pass = 0; pass < tile_rows / shape<Config>::copy_rows; ++pass) {
                copy_half_chunk(address + pass * shape<Config>::copy_rows * row_bytes, from, true);
                from += side.copy_step_bytes;
            }
        } else {
#pragma unroll
            for (int pass = 0; pass < tile_rows / shape<Config>::copy_rows; ++pass) {
                copy_valid_chunk(address + pass * shape<Config>::copy_rows * row_bytes, from);
                from += side.copy_step_bytes;
            }
        }
        step(side);
    }

    /* valid_bytes: of each row of the tile, the others are filled with 0. */
    __device__ __forceinline__ void copy(const struct side &side, int valid_bytes, unsigned char *target)
    {
        int left = valid_bytes - static_cast<int>(threadIdx.x) % row_chunks * chunk_bytes;
        if (left > 0 && left < chunk_bytes) {
            copy_end(side, left, target);
        } else {
            const char *from = source;
            uint32_t address = shared_address(target) + offset;
#pragma unroll
            for (int pass = 0; pass < tile_rows / shape<Config>::copy_rows; ++pass) {
                bool is_valid = left > 0 && pass * shape<Config>::copy_rows < rows;
                if (has_fp4(side)) {
                    copy_half_chunk(address + pass * shape<Config>::copy_rows * row_bytes, from, is_valid);
                } else {
                    copy_chunk(address + pass * shape<Config>::copy_rows * row_bytes, from, is_valid);
                }
                from += side.copy_step_bytes;
            }
        }
        step(side);
    }

    /* The chunk in which k ends: nothing beyond is read. */
    __device__ __forceinline__ void copy_end(const struct side &side, int left, unsigned char *target)
    {
        const char *from = source;
        const int bytes = has_fp4(side) ? (left + 1) / 2 : left;
#pragma unroll 1
        for (int row = 0; row < tile_rows; row += shape<Config>::copy_rows) {
            unsigned char *to = target + offset + row * row_bytes;
            *reinterpret_cast<uint4 *>(to) = make_uint4(0, 0, 0, 0);
#pragma unroll 1
            for (int e = 0; e < bytes && row < rows; ++e) {
                to[e] = static_cast<unsigned char>(from[e]);
            }
            if (has_fp4(side) && left % 2 != 0) {
                to[bytes - 1] &= 0xf; /* the other code of the pair is beyond k */
            }
            from += side.copy_step_bytes;
        }
    }

    /* FP4 codes of a stage to e4m3, each thread those that it has copied. */
    __device__ __forceinline__ void widen(const struct side &side, unsigned char *stage) const
    {
        if (!has_fp4(side)) {
            return;
        }
#pragma unroll
        for (int pass = 0; pass < tile_rows / shape<Config>::copy_rows; ++pass) {
            unsigned char *chunk = stage + offset + pass * shape<Config>::copy_rows * row_bytes;
            const uint2 codes = *reinterpret_cast<const uint2 *>(chunk);
            *reinterpret_cast<uint4 *>(chunk) = make_uint4(widen_e2m1(codes.x & 0xffffu), widen_e2m1(codes.x >> 16),
                                                           widen_e2m1(codes.y & 0xffffu), widen_e2m1(codes.y >> 16));
        }
    }
};

/* One element as it lies in shared memory; index counts elements from data. */
template <class Config>
__device__ __forceinline__ uint32_t load_element(const struct dg_gemm_operand &operand, int64_t index)
{
    if constexpr (Config::is_bf16) {
        return static_cast<const uint16_t *>(operand.data)[index];
    } else {
        const unsigned char *bytes = static_cast<const unsigned char *>(operand.data);
        if (operand.type == DG_GEMM_F8E4M3) {
            return bytes[index];
        }
        uint32_t pair = bytes[index >> 1]; /* also for negative indices: rounds down, and the even nibble is the low one */
        return widen_e2m1((pair >> (4 * (index & 1))) & 0xfu) & 0xffu;
    }
}

template <class Config>
__device__ __forceinline__ void gather_tile(const struct side &side, const struct tile &tile, unsigned char *target)
{
    constexpr int element_bytes = shape<Config>::element_bytes;
    constexpr int chunk_elements = chunk_bytes / element_bytes;
    constexpr int word_elements = 4 / element_bytes;
    for (int i = static_cast<int>(threadIdx.x); i < tile.rows * row_chunks; i += shape<Config>::threads) {
        bool is_along_k = side.loader == load_gather_k;
        int row = is_along_k ? i / row_chunks : i % tile.rows;
        int chunk = is_along_k ? i % row_chunks : i / tile.rows;
        int64_t k = tile.k0 + chunk * chunk_elements;
        int64_t left = row < tile.valid_rows ? tile.k_end - k : 0;
        int64_t index = (tile.row0 + row) * side.operand.stride_mn + k * side.operand.stride_k;
        uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
        for (int e = 0; e < chunk_elements; ++e) {
            if (e < left) {
                words[e / word_elements] |= load_element<Config>(side.operand, index) << (8 * element_bytes * (e % word_elements));
            }
            index += side.operand.stride_k;
        }
        *reinterpret_cast<uint4 *>(target + chunk_offset(row, chunk)) = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

/* In which order the scales of the rows of an operand stand. */
enum scale_order {
    scales_in_order,
    scales_interleaved /* of each 128 rows: 0, 32, 64, 96, 1, 33, ..., as the tensor cores of Blackwell take them */
};

__device__ __forceinline__ int64_t place_of_scale(int64_t row, enum scale_order order)
{
    return order == scales_in_order ? row : row / 128 * 128 + row % 32 * 4 + row % 128 / 32;
}

/* What a thread needs to copy the scale words of one row of a or b, tile after tile along k. */
template <class Config>
struct scale_copier {
    const uint32_t *words; /* of this row; NULL: no scale for this thread */
    int64_t block;         /* of k, the last one that was copied */
    int64_t block_end;

    __device__ __forceinline__ scale_copier(const struct problem &p, int64_t m0, int64_t n0, enum scale_order order_b)
    {
        static_assert(shape<Config>::scale_rows <= shape<Config>::threads, "a thread for every row");
        int i = static_cast<int>(threadIdx.x);
        const struct side &side = p.side[i >= Config::tile_m];
        int64_t row = i >= Config::tile_m ? n0 + i - Config::tile_m : m0 + i;
        bool has_scale = i < shape<Config>::scale_rows && row < side.rows && side.scale.type != DG_SCALE_NONE;
        const int64_t place = place_of_scale(row / side.scale.gran_mn, i >= Config::tile_m ? order_b : scales_in_order);
        words = has_scale ? static_cast<const uint32_t *>(side.scale.data) + place * side.scale.stride_mn : nullptr;
        block = 0;
        block_end = side.scale.gran_k;
    }

    /* target: [row_steps][tile_m + tile_n]. A step, and a tile that has one scale, never go beyond the next block. */
    __device__ __forceinline__ void copy(const struct problem &p, int64_t k0, int64_t k_end, uint32_t *target)
    {
        if (!words) {
            return;
        }
        const struct dg_gemm_scale &scale = p.side[threadIdx.x >= Config::tile_m].scale;
        for (int s = 0; s < p.scales_per_row && k0 + s * step_bytes < k_end; ++s) {
            if (k0 + s * step_bytes >= block_end) {
                ++block;
                block_end += scale.gran_k;
            }
            int64_t word = scale.type == DG_SCALE_UE8M0 ? block / 4 : block;
            copy_word(shared_address(target + s * shape<Config>::scale_rows + threadIdx.x), words + word * scale.stride_k);
        }
    }
};

/* Loads those operands of a stage that no copier can. */
template <class Config>
__device__ __forceinline__ void load_by_elements(const struct problem &p, int64_t m0, int64_t n0, int64_t k0, int64_t k_end,
                                                 unsigned char *stage)
{
#pragma unroll 1
    for (int which = 0; which < 2; ++which) {
        const struct side &side = p.side[which];
        if (is_copied(side)) {
            continue;
        }
        struct tile tile;
        tile.row0 = which ? n0 : m0;
        tile.k0 = k0;
        tile.k_end = k_end;
        tile.rows = which ? Config::tile_n : Config::tile_m;
        tile.valid_rows = static_cast<int>(min(side.rows - tile.row0, static_cast<int64_t>(tile.rows)));
        gather_tile<Config>(side, tile, stage + (which ? shape<Config>::operand_a_bytes : 0));
    }
}

/* Where the tile of k that begins at k0 ends. */
template <class Config>
__device__ __forceinline__ int64_t end_of_tile(const struct problem &p, int64_t k0)
{
    int64_t end = min(k0 + shape<Config>::row_elements, p.k);
    if (!Config::is_bf16 && p.is_cut_at_scales) {
        for (int which = 0; which < 2; ++which) {
            if (p.side[which].scale.type != DG_SCALE_NONE) {
                end = min(end - k0, p.side[which].scale.gran_k - k0 % p.side[which].scale.gran_k) + k0;
            }
        }
    }
    return end;
}

/* ---- computing ----------------------------------------------------------------------------------------------- */

/* Where this thread works in the block's tile. An mma tile's accumulators 0 and 1 are row `row`, columns `col` and col + 1; 2 and 3 are
 * row + 8. */
template <class Config>
struct place {
    int warp_row, warp_col;
    int row, col;
    int offset_a, offset_b; /* in a stage: the row of a matrix that this lane gives to ldmatrix, in the first step */

    __device__ __forceinline__ place()
    {
        int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
        warp_row = warp / shape<Config>::warps_n * Config::warp_m;
        warp_col = warp % shape<Config>::warps_n * Config::warp_n;
        row = warp_row + lane / 4;
        col = warp_col + lane % 4 * 2;
        offset_a = chunk_offset(warp_row + lane % 16, lane / 16);
        offset_b = shape<Config>::operand_a_bytes + chunk_offset(warp_col + lane % 8 + lane / 16 * 8, lane / 8 % 2);
    }
};

/* The accumulators of a warp. */
template <class Config>
struct accumulators {
    float at[shape<Config>::rows_m][shape<Config>::cols_n][4];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < shape<Config>::rows_m; ++i) {
#pragma unroll
            for (int j = 0; j < shape<Config>::cols_n; ++j) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    at[i][j][e] = 0.0f;
                }
            }
        }
    }
};

/* Fragments of one step, 32 bytes of k, as ldmatrix gives them: four 8 x 8 matrices, of which a lane has 4 bytes of k of one row. For 16
 * rows of a, the i'th of this warp: rows 0 to 7, rows 8 to 15, and both again in the upper half of k. */
template <class Config>
__device__ __forceinline__ void load_a(uint32_t (&out)[4], const place<Config> &at, uint32_t stage, int step, int i)
{
    load_matrices(out, ((stage + at.offset_a) ^ (step * step_bytes)) + 16 * i * row_bytes);
}

/* For 16 columns of b, the j'th of this warp: the lower and the upper half of k of the first 8, then of the second. */
template <class Config>
__device__ __forceinline__ void load_b(uint32_t (&out)[4], const place<Config> &at, uint32_t stage, int step, int j)
{
    load_matrices(out, ((stage + at.offset_b) ^ (step * step_bytes)) + 16 * j * row_bytes);
}

/* sums += the product of a stage of bf16. Tensor cores cut off what does not fit when they add, always towards zero; so they add
 * only the products of one stage, and that sum is added to the others by an ordinary f32 addition: with f32 d the norm-wise error is
 * 4e-7 at k = 32768, where one chain has 1e-6 at k = 1000. A warp of many columns takes them in two parts, which halves the registers
 * that this needs. */
template <class Config>
__device__ __forceinline__ void multiply_bf16(struct accumulators<Config> &sums, const place<Config> &at, uint32_t stage)
{
    constexpr int rows_m = shape<Config>::rows_m;
    constexpr int part_n = shape<Config>::cols_n < 4 ? shape<Config>::cols_n : 4; /* mma tiles */
#pragma unroll
    for (int first_j = 0; first_j < shape<Config>::cols_n; first_j += part_n) {
        float partial[rows_m][part_n][4] = {};
#pragma unroll
        for (int step = 0; step < row_steps; ++step) {
            uint32_t b[part_n / 2][4];
#pragma unroll
            for (int j = 0; j < part_n / 2; ++j) {
                load_b(b[j], at, stage, step, first_j / 2 + j);
            }
#pragma unroll
            for (int i = 0; i < rows_m; ++i) {
                uint32_t a[4];
                load_a(a, at, stage, step, i);
#pragma unroll
                for (int j = 0; j < part_n; ++j) {
                    multiply<Config::is_bf16>(partial[i][j], a, &b[j / 2][j % 2 * 2]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < rows_m; ++i) {
#pragma unroll
            for (int j = 0; j < part_n; ++j) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    sums.at[i][first_j + j][e] += partial[i][j][e];
                }
            }
        }
    }
}

/* partial += the product of one step of 8-bit codes. The four codes that a lane has of a row are neighbours in k; they serve as the pair of
 * the lower and the pair of the upper half of a k16 of mma: a permutation of k, the same in a and b. */
template <class Config>
__device__ __forceinline__ void multiply_codes(struct accumulators<Config> &partial, const place<Config> &at, uint32_t stage, int step)
{
    uint32_t codes_a[shape<Config>::rows_m][4], codes_b[shape<Config>::cols_n / 2][4];
#pragma unroll
    for (int j = 0; j < shape<Config>::cols_n / 2; ++j) {
        load_b(codes_b[j], at, stage, step, j);
    }
#pragma unroll
    for (int i = 0; i < shape<Config>::rows_m; ++i) {
        load_a(codes_a[i], at, stage, step, i);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) { /* 16 of the 32 codes: one chunk */
        uint32_t b[shape<Config>::cols_n][2];
#pragma unroll
        for (int j = 0; j < shape<Config>::cols_n; ++j) {
            decode_e4m3(codes_b[j / 2][j % 2 * 2 + half], &b[j][0], &b[j][1]);
        }
#pragma unroll
        for (int i = 0; i < shape<Config>::rows_m; ++i) {
            uint32_t a[4];
            decode_e4m3(codes_a[i][2 * half], &a[0], &a[2]);
            decode_e4m3(codes_a[i][2 * half + 1], &a[1], &a[3]);
#pragma unroll
            for (int j = 0; j < shape<Config>::cols_n; ++j) {
                multiply<Config::is_bf16>(partial.at[i][j], a, b[j]);
            }
        }
    }
}

/* sums += partial * sfa * sfb, with the scales of element k of the problem; then clears partial. */
template <class Config>
__device__ __forceinline__ void promote(struct accumulators<Config> &sums, struct accumulators<Config> &partial, const place<Config> &at,
                                        const struct problem &p, const uint32_t *scales, int64_t k)
{
    constexpr int rows_m = shape<Config>::rows_m, cols_n = shape<Config>::cols_n;
    enum dg_gemm_scale_type type_a = p.side[0].scale.type, type_b = p.side[1].scale.type;
    int byte_a = type_a == DG_SCALE_UE8M0 ? static_cast<int>(k / p.side[0].scale.gran_k % 4) : 0;
    int byte_b = type_b == DG_SCALE_UE8M0 ? static_cast<int>(k / p.side[1].scale.gran_k % 4) : 0;
    float scale_b[cols_n][2];
#pragma unroll
    for (int j = 0; j < cols_n; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            scale_b[j][e] = decode_scale(type_b, scales[Config::tile_m + at.col + 8 * j + e], byte_b);
        }
    }
#pragma unroll
    for (int i = 0; i < rows_m; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float scale_a = decode_scale(type_a, scales[at.row + 16 * i + 8 * h], byte_a);
#pragma unroll
            for (int j = 0; j < cols_n; ++j) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    sums.at[i][j][2 * h + e] = add_scaled(sums.at[i][j][2 * h + e], partial.at[i][j][2 * h + e], scale_a, scale_b[j][e]);
                }
            }
        }
    }
    partial.clear();
}

/* ---- storing ------------------------------------------------------------------------------------------------- */

/* Index of an element of the block's tile in shared memory, in f32. Eights of columns are permuted by the row, so that the
 * eight rows that a warp writes at once lie in different banks. */
template <class Config>
__device__ __forceinline__ int sum_index(int row, int col)
{
    return row * Config::tile_n + (col ^ (row & 7) * 8);
}

/* Puts the sums of the block's tile into shared memory. */
template <class Config>
__device__ __forceinline__ void stage_sums(const struct accumulators<Config> &sums, const place<Config> &at, float *staging)
{
    static_assert(Config::tile_m * Config::tile_n * 4 <= 2 * shape<Config>::stage_bytes, "the tile fits in the least ring");
#pragma unroll
    for (int i = 0; i < shape<Config>::rows_m; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int j = 0; j < shape<Config>::cols_n; ++j) {
                *reinterpret_cast<float2 *>(staging + sum_index<Config>(at.row + 16 * i + 8 * h, at.col + 8 * j)) =
                    make_float2(sums.at[i][j][2 * h], sums.at[i][j][2 * h + 1]);
            }
        }
    }
}

/* What becomes of a tile, and how the scales of b stand: a Store of compute_tile(). This one writes the tile to d; it comes from shared
 * memory, so that a warp writes whole lines. */
struct store_output {
    static constexpr enum scale_order order_b = scales_in_order;

    template <class Config>
    __device__ __forceinline__ void store(const struct problem &p, int64_t m0, int64_t n0, const float *staging) const
    {
        constexpr int row_fours = Config::tile_n / 4;
        int64_t n = p.side[1].rows;
        int64_t rows = min(p.side[0].rows - m0, static_cast<int64_t>(Config::tile_m));
#pragma unroll 2
        for (int i = static_cast<int>(threadIdx.x); i < rows * row_fours; i += shape<Config>::threads) {
            int row = i / row_fours, col = i % row_fours * 4;
            float4 value = *reinterpret_cast<const float4 *>(staging + sum_index<Config>(row, col));
            if (p.out.can_store_four && n0 + col + 3 < n) {
                store_four(p.out, m0 + row, n0 + col, value);
            } else {
                const float values[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    if (n0 + col + e < n) {
                        store_element(p.out, m0 + row, n0 + col + e, values[e]);
                    }
                }
            }
        }
    }
};

/* ---- a tile -------------------------------------------------------------------------------------------------- */

struct tile_index {
    int64_t m, n;
};

/* Tiles that share columns of b are numbered, and so run, one after the other, group_tiles_m at a time. */
__device__ __forceinline__ struct tile_index place_tile(int64_t tile, int64_t tiles_m, int64_t tiles_n)
{
    int64_t first = tile / (group_tiles_m * tiles_n) * group_tiles_m, within = tile % (group_tiles_m * tiles_n);
    int64_t height = min(tiles_m - first, static_cast<int64_t>(group_tiles_m));
    return {first + within % height, within / height};
}

/* Computes the tile of d whose first element is d[m0, n0], and has it stored. All threads of a block call it, and all have left `ring`,
 * [stages][stage_bytes], when it returns. p is in memory that does not change meanwhile. */
template <class Config, class Store>
__device__ __forceinline__ void compute_tile(const struct problem &p, int64_t m0, int64_t n0, unsigned char *ring, const Store &result)
{
    constexpr int stage_bytes = shape<Config>::stage_bytes;
    const place<Config> at;
    struct accumulators<Config> sums, partial; /* bf16 has no scales, and no partial sums */
    sums.clear();
    if constexpr (!Config::is_bf16) {
        partial.clear();
    }

    copier<Config, Config::tile_m> copier_a(p.side[0], m0);
    copier<Config, Config::tile_n> copier_b(p.side[1], n0);
    scale_copier<Config> scales(p, m0, n0, Store::order_b); /* unused for bf16 */

    const bool has_whole_rows = is_copied(p.side[0]) && is_copied(p.side[1]) && m0 + Config::tile_m <= p.side[0].rows &&
                                n0 + Config::tile_n <= p.side[1].rows;

    /* One loop, so that the loaders stand in the code once: its first rounds, while the ring fills, only load. */
    int64_t k = 0, k_load = 0; /* the first elements not yet multiplied, not yet being loaded */
    int stage = 0, load_stage = 0, rounds_to_fill = p.stages - 1;
    while (k < p.k) {
        if (rounds_to_fill == 0) {
            wait_for_copies<Config::max_stages - 2>(p.stages - 2);
            copier_a.widen(p.side[0], ring + stage * stage_bytes);
            copier_b.widen(p.side[1], ring + stage * stage_bytes + shape<Config>::operand_a_bytes);
            __syncthreads(); /* every thread's part of this stage has arrived, and the stage loaded next has been read */
        }
        if (k_load < p.k) {
            int64_t k_end = k_load + shape<Config>::row_elements;
            unsigned char *target = ring + load_stage * stage_bytes;
            if (has_whole_rows && k_end <= p.k) {
                copier_a.copy_whole(p.side[0], target);
                copier_b.copy_whole(p.side[1], target + shape<Config>::operand_a_bytes);
            } else {
                k_end = end_of_tile<Config>(p, k_load);
                int valid_bytes = static_cast<int>(k_end - k_load) * shape<Config>::element_bytes;
                if (is_copied(p.side[0])) {
                    copier_a.copy(p.side[0], valid_bytes, target);
                }
                if (is_copied(p.side[1])) {
                    copier_b.copy(p.side[1], valid_bytes, target + shape<Config>::operand_a_bytes);
                }
                if (!is_copied(p.side[0]) || !is_copied(p.side[1])) {
                    load_by_elements<Config>(p, m0, n0, k_load, k_end, target);
                }
            }
            if constexpr (!Config::is_bf16) {
                scales.copy(p, k_load, k_end, scales_of<Config>(target));
            }
            k_load = k_end;
            load_stage = load_stage + 1 == p.stages ? 0 : load_stage + 1;
        }
        commit_copies(); /* also when it is empty: one group per round */
        if (rounds_to_fill > 0) {
            --rounds_to_fill;
            continue;
        }

        int64_t k_end = end_of_tile<Config>(p, k);
        unsigned char *current = ring + stage * stage_bytes;
        const uint32_t address = shared_address(current);
        if constexpr (Config::is_bf16) {
            multiply_bf16<Config>(sums, at, address);
        } else if (p.scales_per_row == 1) {
#pragma unroll
            for (int step = 0; step < row_steps; ++step) {
                multiply_codes<Config>(partial, at, address, step);
            }
            promote<Config>(sums, partial, at, p, scales_of<Config>(current), k);
        } else {
#pragma unroll 1
            for (int step = 0; step < row_steps && k + step * step_bytes < k_end; ++step) {
                multiply_codes<Config>(partial, at, address, step);
                const uint32_t *scales_of_step = scales_of<Config>(current) + step * shape<Config>::scale_rows;
                promote<Config>(sums, partial, at, p, scales_of_step, k + step * step_bytes);
            }
        }
        k = k_end;
        stage = stage + 1 == p.stages ? 0 : stage + 1;
    }

    __syncthreads(); /* every stage has been read, and no copy is in flight: those of the last stages were empty */
    float *staging = reinterpret_cast<float *>(ring);
    stage_sums<Config>(sums, at, staging);
    __syncthreads();
    result.template store<Config>(p, m0, n0, staging);
    __syncthreads(); /* before the next tile's loads */
}

/* ---- problems ------------------------------------------------------------------------------------------------ */

inline bool is_8_bit(const struct dg_gemm_operand &operand)
{
    return operand.type == DG_GEMM_F8E4M3 || operand.type == DG_GEMM_F4E2M1;
}

/* Groups begin at multiples of `group_step` elements. */
inline enum loader choose_loader(const struct dg_gemm_operand &operand, int64_t group_step)
{
    if (operand.stride_k != 1) {
        return load_gather_mn;
    }
    const int64_t chunk_elements = operand.type == DG_GEMM_BF16 ? chunk_bytes / 2 : chunk_bytes; /* FP4: of what it is widened to */
    const bool is_fp4 = operand.type == DG_GEMM_F4E2M1;
    if (is_multiple(operand.data, is_fp4 ? chunk_bytes / 2 : chunk_bytes) && operand.stride_mn % chunk_elements == 0 &&
        group_step % chunk_elements == 0) {
        return is_fp4 ? load_fp4 : load_copy;
    }
    return load_gather_k;
}

inline struct side make_side(const struct dg_gemm_operand &operand, const struct dg_gemm_scale &scale, int64_t rows, int64_t k,
                             int64_t group_step)
{
    struct side side;
    side.operand = operand;
    /* A stride that no step is taken along may be anything; these keep the copying loaders usable. */
    if (rows == 1) {
        side.operand.stride_mn = 0;
    }
    if (k == 1) {
        side.operand.stride_k = 1;
    }
    side.scale = scale;
    side.rows = rows;
    side.loader = choose_loader(side.operand, group_step);
    return side;
}

/* Elements of which the distance between two groups of an operand is a multiple. */
inline int64_t group_step_of(const struct dg_gemm_args *args, const struct dg_gemm_operand &operand, int64_t stride)
{
    if (args->groups.count <= 1) {
        return 0;
    }
    const bool are_of_k = args->groups.kind == DG_GROUPS_K || args->groups.kind == DG_GROUPS_PSUM_K;
    return are_of_k ? args->groups.alignment * operand.stride_k : stride;
}

inline struct problem make_problem(const struct dg_gemm_args *args)
{
    struct problem p;
    p.side[0] = make_side(args->a, args->sfa, args->m, args->k, group_step_of(args, args->a, args->groups.a_stride));
    p.side[1] = make_side(args->b, args->sfb, args->n, args->k, group_step_of(args, args->b, args->groups.b_stride));
    p.k = args->k;
    p.scales_per_row = 1;
    p.is_cut_at_scales = false;
    for (int which = 0; which < 2; ++which) {
        const struct dg_gemm_scale &scale = p.side[which].scale;
        if (scale.type == DG_SCALE_NONE || scale.gran_k >= args->k) {
            continue;
        }
        if (scale.gran_k % step_bytes != 0) {
            p.is_cut_at_scales = true;
        } else if (scale.gran_k % row_bytes != 0) {
            p.scales_per_row = row_steps;
        }
    }
    if (p.is_cut_at_scales) {
        p.scales_per_row = 1;
        /* Tiles begin anywhere, so no row of a tile is aligned. */
        for (int which = 0; which < 2; ++which) {
            if (is_copied(p.side[which])) {
                p.side[which].loader = load_gather_k;
            }
        }
    }
    p.out = make_output(args);
    return p;
}

/* ---- launching ----------------------------------------------------------------------------------------------- */

/* Whether tiles of 128 x 128 are faster than tiles of 32 x 64. Measured on an H200, for the same k: a multiprocessor that has many
 * takes 2.5 times as long for a large one; and it takes as long for fewer than 1.5 small ones, or 1.4 large ones, as for that many.
 * The rows of d are `parts` times `rows`, of which no tile has rows of two. */
inline bool wants_large_tiles(int64_t parts, int64_t rows, int64_t n, const struct dg_exec *exec, const struct dg_cuda_device *device)
{
    int64_t sms = exec->num_sms > 0 ? min(exec->num_sms, device->num_sms) : device->num_sms;
    int64_t small_tiles = parts * ceil_div(rows, config_bf16_small::tile_m) * ceil_div(n, config_bf16_small::tile_n);
    int64_t large_tiles = parts * ceil_div(rows, config_bf16_large::tile_m) * ceil_div(n, config_bf16_large::tile_n);
    return max(5 * large_tiles, 7 * sms) < max(2 * small_tiles, 3 * sms);
}

/* Completes a problem for this Config: its stages leave extra_bytes of a block's shared memory. */
template <class Config>
void prepare(struct problem *p, const struct dg_cuda_device *device, int extra_bytes)
{
    p->tiles_m = ceil_div(p->side[0].rows, Config::tile_m);
    p->tiles_n = ceil_div(p->side[1].rows, Config::tile_n);
    const int reserved_bytes = 1024; /* what the system keeps of each block's shared memory */
    int per_block = min(device->shared_per_block_bytes, device->shared_per_sm_bytes / Config::blocks_per_sm - reserved_bytes);
    p->stages = max(2, min(Config::max_stages, (per_block - extra_bytes) / shape<Config>::stage_bytes));
    for (int which = 0; which < 2; ++which) {
        const int64_t pass_bytes = shape<Config>::copy_rows * p->side[which].operand.stride_mn * shape<Config>::element_bytes;
        p->side[which].copy_step_bytes = p->side[which].loader == load_fp4 ? pass_bytes / 2 : pass_bytes;
    }
}

/* Launches a kernel that takes one struct. More dynamic shared memory than 48 KiB must be asked for once per kernel and device:
 * *prepared_devices, of this kernel and 0 at first, has a bit for each where that has been done. */
inline cudaError_t launch_blocks(const void *kernel, uint64_t *prepared_devices, int64_t blocks, int threads, int64_t shared_bytes,
                                 void *problem, const struct dg_exec *exec, const struct dg_cuda_device *device)
{
    const uint64_t bit = uint64_t{1} << exec->device_id;
    if (!(__atomic_load_n(prepared_devices, __ATOMIC_ACQUIRE) & bit)) {
        cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, device->shared_per_block_bytes);
        if (error != cudaSuccess) {
            return error;
        }
        __atomic_fetch_or(prepared_devices, bit, __ATOMIC_RELEASE);
    }
    void *arguments[] = {problem};
    return cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(min(blocks, static_cast<int64_t>(INT_MAX)))),
                            dim3(static_cast<unsigned>(threads)), arguments, static_cast<size_t>(shared_bytes),
                            static_cast<cudaStream_t>(exec->stream));
}

} // namespace

#endif
