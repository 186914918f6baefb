/* The scale layout kernels on CUDA. ops/layout.h has the formulas, kernels/cpu/layout_ref.c is their meaning.
 *
 * Inputs are mostly contiguous along k and results along mn, or both along mn. A block moves a tile through shared memory: its threads
 * run along the input's contiguous dimension while they read, four or eight accesses each before the first is used, and along that of
 * the result while they write; 16 bytes at a time where strides and addresses allow it. What differs between the kernels is where a word
 * comes from: struct copied, packed, packed_fours and packed_k_grouped.
 *
 * Distance from the limit, on an H200, on a GB of scales: copies at 0.8 to 0.97 of the rate of cudaMemcpy; packing at 0.9 and more where
 * input and result are both contiguous along mn, at 0.6 where it transposes.
 *
 * Nothing is checked on the device: a scale without a UE8M0 code packs as NaN, and sizes of groups that do not fit are cut off.
 */
#include "common.cuh"

#include <stdlib.h>

extern "C" {
#include "ops/layout.h"
}

namespace {

enum {
    threads = 256,
    most_tile_k = 32, /* words */
    tile_words = 128 * (most_tile_k + 1) /* of shared memory: rows of an odd number of words, so that neither direction meets a bank twice */
};

/* ---- tiles --------------------------------------------------------------------------------------------------- */

/* How [groups, mn, words of k] is cut up: tile_mn x tile_k words at a time, which fit in shared memory. */
struct tiling {
    int64_t groups, mn, k_words;
    unsigned tiles_mn, tiles_k, tiles; /* 2^32 tiles are more than any memory */
    int tile_mn, tile_k;
    bool reads_along_k, writes_along_k; /* neighbouring threads */
};

/* The words of one tile. */
struct tile {
    int64_t group, first_mn, first_k;
    int mn, k; /* words that it has */
};

/* Whether neighbours are nearer along k. */
bool is_along_k(const struct dg_scale_matrix &x)
{
    return llabs(x.stride_k) < llabs(x.stride_mn);
}

struct tiling make_tiling(int64_t groups, int64_t mn, int64_t k_words, bool reads_along_k, bool writes_along_k)
{
    struct tiling t;
    t.groups = groups;
    t.mn = mn;
    t.k_words = k_words;
    t.tiles_k = static_cast<unsigned>(ceil_div(k_words, most_tile_k));
    t.tile_k = static_cast<int>(t.tiles_k == 1 ? k_words : ceil_div(ceil_div(k_words, t.tiles_k), 4) * 4); /* each begins at a four */
    t.tile_mn = tile_words / (t.tile_k | 1) / 32 * 32; /* whole sectors of 32 bytes, where rows are aligned */
    t.tiles_mn = static_cast<unsigned>(ceil_div(mn, t.tile_mn));
    t.tiles = static_cast<unsigned>(groups) * t.tiles_mn * t.tiles_k;
    t.reads_along_k = reads_along_k;
    t.writes_along_k = writes_along_k;
    return t;
}

__device__ __forceinline__ struct tile find_tile(const struct tiling &t, unsigned index)
{
    struct tile tile;
    const unsigned of_mn = index / t.tiles_k;
    tile.group = of_mn / t.tiles_mn;
    tile.first_mn = static_cast<int64_t>(of_mn % t.tiles_mn) * t.tile_mn;
    tile.first_k = static_cast<int64_t>(index % t.tiles_k) * t.tile_k;
    tile.mn = static_cast<int>(min(t.mn - tile.first_mn, static_cast<int64_t>(t.tile_mn)));
    tile.k = static_cast<int>(min(t.k_words - tile.first_k, static_cast<int64_t>(t.tile_k)));
    return tile;
}

/* The places of a tile that a thread takes, one of every `threads`: where each is, and its offset in a matrix of these strides. A place
 * is a word, or four neighbours along the minor dimension, along which neighbouring threads run. */
template <class Offset>
struct walk {
    int minor, major;
    int minor_size, step_minor, step_major;
    Offset offset, step, wrap;

    __device__ __forceinline__ walk(int minor_places, Offset stride_minor, Offset stride_major)
    {
        const int thread = static_cast<int>(threadIdx.x);
        minor_size = minor_places;
        minor = thread % minor_size;
        major = thread / minor_size;
        step_minor = threads % minor_size;
        step_major = threads / minor_size;
        offset = minor * stride_minor + major * stride_major;
        step = step_minor * stride_minor + step_major * stride_major;
        wrap = stride_major - minor_size * stride_minor;
    }

    __device__ __forceinline__ void advance()
    {
        minor += step_minor;
        major += step_major;
        offset += step;
        if (minor >= minor_size) {
            minor -= minor_size;
            ++major;
            offset += wrap;
        }
    }
};

/* Four words at an address that allows one access. */
__device__ __forceinline__ void load_four(uint32_t (&words)[4], const uint32_t *from)
{
    uint4 four = __ldg(reinterpret_cast<const uint4 *>(from));
    words[0] = four.x;
    words[1] = four.y;
    words[2] = four.z;
    words[3] = four.w;
}

/* The first `count` of words, to neighbours. */
template <int size>
__device__ __forceinline__ void store_words(uint32_t *to, const uint32_t (&words)[size], int count)
{
    if constexpr (size == 4) {
        if (count >= 4) {
            *reinterpret_cast<uint4 *>(to) = make_uint4(words[0], words[1], words[2], words[3]);
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < size; ++i) {
        if (i < count) {
            to[i] = words[i];
        }
    }
}

__device__ __forceinline__ uint32_t *word_at(const struct dg_scale_matrix &x, int64_t g, int64_t i, int64_t q)
{
    return static_cast<uint32_t *>(x.data) + (g * x.stride_group + i * x.stride_mn + q * x.stride_k);
}

/* Whether four neighbours along the contiguous dimension are one access, wherever a tile begins. */
bool has_fours(const struct dg_scale_matrix &x, bool along_k)
{
    const int64_t stride_minor = along_k ? x.stride_k : x.stride_mn, stride_major = along_k ? x.stride_mn : x.stride_k;
    return stride_minor == 1 && stride_major % 4 == 0 && x.stride_group % 4 == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
}

/* ---- UE8M0 --------------------------------------------------------------------------------------------------- */

/* The UE8M0 code of the f32 with these bits. */
__device__ __forceinline__ uint32_t ue8m0_code(uint32_t bits)
{
    const uint32_t is_nan = 0xffu;
    if ((bits & 0x007fffffu) == 0 && bits < 0x7f800000u) {
        return bits >> 23; /* a power of two from 2^-126 up, or 0 */
    }
    return bits == 0x00400000u ? 0 : is_nan; /* 2^-127 is a subnormal f32 */
}

__device__ __forceinline__ uint32_t pack_four(const uint32_t (&scales)[4])
{
    /* Without sign and mantissa the code is the exponent: powers of two from 2^-126 up, 0, and infinity, whose exponent is NaN's code. */
    if (((scales[0] | scales[1] | scales[2] | scales[3]) & 0x807fffffu) == 0) {
        return scales[0] >> 23 | scales[1] >> 15 | scales[2] >> 7 | scales[3] << 1;
    }
    return ue8m0_code(scales[0]) | ue8m0_code(scales[1]) << 8 | ue8m0_code(scales[2]) << 16 | ue8m0_code(scales[3]) << 24;
}

/* One word: the codes of up to four consecutive blocks of a row, stride_k apart. */
__device__ __forceinline__ uint32_t pack_word(const uint32_t *from, int64_t stride_k, int64_t blocks)
{
    uint32_t scales[4] = {0, 0, 0, 0};
    if (stride_k == 1 && blocks >= 4 && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
        load_four(scales, from);
    } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (j < blocks) {
                scales[j] = __ldg(from + j * stride_k);
            }
        }
    }
    return pack_four(scales);
}

/* Words of four neighbouring rows, at addresses that allow one access for each block. */
__device__ __forceinline__ void pack_four_rows(uint32_t (&words)[4], const uint32_t *from, int64_t stride_k, int64_t blocks)
{
    uint32_t rows[4][4] = {}; /* [block][row] */
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        if (j < blocks) {
            load_four(rows[j], from + j * stride_k);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t scales[4] = {rows[0][i], rows[1][i], rows[2][i], rows[3][i]};
        words[i] = pack_four(scales);
    }
}

/* ---- where words come from ----------------------------------------------------------------------------------- */

/* Each source has prepare(), which the whole block calls for a tile, and two steps that give the words of a place: one, or `size`
 * neighbours along the dimension that is read along, of which `count` exist. fetch() starts the loads, finish() makes words of what it
 * gave, once the loads of other places are under way too. mn and k are those of the first word in the tile; `word` is where it begins in
 * `from`, if rows of from are rows of the result. A word has k_per_word elements of k of from. */

/* finish() of a source whose fetch() gives words. */
struct source_of_words {
    template <int size>
    static constexpr int fetched_words = size;

    template <int size>
    __device__ __forceinline__ void finish(uint32_t (&words)[size], const uint32_t (&fetched)[size]) const
    {
#pragma unroll
        for (int i = 0; i < size; ++i) {
            words[i] = fetched[i];
        }
    }
};

struct copied : source_of_words {
    static constexpr int k_per_word = 1;
    struct dg_scale_matrix from;

    struct row_facts {
    };

    bool can_read_fours(bool along_k) const
    {
        return has_fours(from, along_k);
    }

    __device__ __forceinline__ void prepare(const struct tile &, struct row_facts &) const
    {
    }

    template <int size>
    __device__ __forceinline__ void fetch(uint32_t (&words)[size], const struct tile &, const struct row_facts &, const uint32_t *word, int,
                                         int, int count) const
    {
        if constexpr (size == 4) {
            if (count >= 4) {
                load_four(words, word);
                return;
            }
        }
#pragma unroll
        for (int i = 0; i < size; ++i) { /* the last words of a row */
            words[i] = i < count ? __ldg(word + (size == 1 ? 0 : i)) : 0;
        }
    }
};

struct packed : source_of_words {
    static constexpr int k_per_word = 4;
    struct dg_scale_matrix from;
    int64_t k_blocks, gran_mn;
    const int32_t *ends; /* NULL: every row is in use */
    int64_t num_ends, ends_stride, alignment;

    struct row_facts {
        int64_t first_from;      /* the row of from that the first row of the tile has, if gran_mn > 1 */
        unsigned first_beyond;   /* rows of the result before the first one that have it too */
        bool is_used[tile_words]; /* rows of the tile, with ends */
    };

    bool can_read_fours(bool along_k) const
    {
        return !along_k && gran_mn == 1 && has_fours(from, along_k);
    }

    __device__ __forceinline__ void prepare(const struct tile &tile, struct row_facts &facts) const
    {
        if (gran_mn > 1) { /* at most 2^30 */
            if (threadIdx.x == 0) {
                facts.first_from = tile.first_mn / gran_mn;
                facts.first_beyond = static_cast<unsigned>(tile.first_mn % gran_mn);
            }
            __syncthreads();
        }
        if (!ends) {
            return;
        }
        for (int i = static_cast<int>(threadIdx.x); i < tile.mn; i += threads) {
            facts.is_used[i] = false;
        }
        __syncthreads();
        for (int64_t p = threadIdx.x; p < num_ends; p += threads) {
            int64_t end_before = p > 0 ? __ldg(ends + (p - 1) * ends_stride) : 0;
            int64_t begin = (end_before + alignment - 1) / alignment * alignment;
            int64_t end = __ldg(ends + p * ends_stride);
            for (int64_t i = max(begin - tile.first_mn, int64_t{0}); i < min(end - tile.first_mn, static_cast<int64_t>(tile.mn)); ++i) {
                facts.is_used[i] = true;
            }
        }
        __syncthreads();
    }

    /* The first of the scales of a place. */
    __device__ __forceinline__ const uint32_t *scales_of(const struct tile &tile, const struct row_facts &facts, const uint32_t *word,
                                                         int mn, int k) const
    {
        if (gran_mn == 1) {
            return word;
        }
        unsigned row = (facts.first_beyond + static_cast<unsigned>(mn)) / static_cast<unsigned>(gran_mn);
        return word_at(from, tile.group, facts.first_from + row, 4 * (tile.first_k + k));
    }

    __device__ __forceinline__ bool is_used(const struct row_facts &facts, int mn) const
    {
        return !ends || facts.is_used[mn];
    }

    /* Several words are those of rows below each other. */
    template <int size>
    __device__ __forceinline__ void fetch(uint32_t (&words)[size], const struct tile &tile, const struct row_facts &facts,
                                          const uint32_t *word, int mn, int k, int count) const
    {
        const int64_t block = 4 * (tile.first_k + k);
        const uint32_t *first = scales_of(tile, facts, word, mn, k);
        if constexpr (size == 4) {
            if (count >= 4 && !ends) {
                pack_four_rows(words, first, from.stride_k, k_blocks - block);
                return;
            }
        }
#pragma unroll
        for (int i = 0; i < size; ++i) {
            bool exists = i < count && is_used(facts, mn + i);
            words[i] = exists ? pack_word(first + i * from.stride_mn, from.stride_k, k_blocks - block) : 0;
        }
    }
};

/* The same where every row is in use and every word comes from four whole neighbours along k, one access, which four rows may share. */
struct packed_fours : packed {
    template <int size>
    static constexpr int fetched_words = 4;

    bool can_read_fours(bool along_k) const
    {
        return !along_k && gran_mn % 4 == 0;
    }

    template <int size>
    __device__ __forceinline__ void fetch(uint32_t (&scales)[4], const struct tile &tile, const struct row_facts &facts,
                                          const uint32_t *word, int mn, int k, int) const
    {
        load_four(scales, scales_of(tile, facts, word, mn, k));
    }

    template <int size>
    __device__ __forceinline__ void finish(uint32_t (&words)[size], const uint32_t (&scales)[4]) const
    {
        const uint32_t packed = pack_four(scales);
#pragma unroll
        for (int i = 0; i < size; ++i) {
            words[i] = packed;
        }
    }
};

/* Rows of to are `k` here: each has the blocks of one group only. */
struct packed_k_grouped : source_of_words {
    static constexpr int k_per_word = 4;
    struct dg_scale_matrix from;
    int64_t groups, from_rows;
    const int32_t *layout;
    int64_t layout_stride;
    bool is_psum;
    int64_t gran_k, k_alignment;

    struct row_facts { /* for each row of the tile */
        int64_t from_row[most_tile_k];
        int blocks[most_tile_k]; /* 0: the row belongs to no group */
    };

    bool can_read_fours(bool along_k) const
    {
        return !along_k && has_fours(from, along_k);
    }

    /* Blocks of k of a group. */
    __device__ __forceinline__ int64_t blocks_of(int64_t group) const
    {
        int64_t size = __ldg(layout + group * layout_stride);
        if (is_psum && group > 0) {
            int64_t end_before = __ldg(layout + (group - 1) * layout_stride);
            size -= (end_before + k_alignment - 1) / k_alignment * k_alignment;
        }
        return size > 0 ? (size + gran_k - 1) / gran_k : 0;
    }

    /* The first warp goes through the groups, 32 at a time; sums over the groups before give the rows where one begins. */
    __device__ __forceinline__ void prepare(const struct tile &tile, struct row_facts &facts) const
    {
        if (threadIdx.x < 32) {
            const int lane = static_cast<int>(threadIdx.x);
            facts.blocks[lane] = 0;
            __syncwarp();
            int64_t blocks_before = 0, rows_before = 0;
            for (int64_t first = 0; first < groups && rows_before < tile.first_k + tile.k; first += 32) {
                int64_t blocks = first + lane < groups ? blocks_of(first + lane) : 0, rows = (blocks + 3) / 4;
                int64_t block_end = blocks, row_end = rows;
#pragma unroll
                for (int step = 1; step < 32; step *= 2) {
                    int64_t block_sum = __shfl_up_sync(0xffffffffu, block_end, step), row_sum = __shfl_up_sync(0xffffffffu, row_end, step);
                    block_end += lane >= step ? block_sum : 0;
                    row_end += lane >= step ? row_sum : 0;
                }
                int64_t row_begin = rows_before + row_end - rows, block_begin = blocks_before + block_end - blocks;
                int64_t last = min(row_begin + rows, tile.first_k + tile.k);
                for (int64_t row = max(row_begin, tile.first_k); row < last; ++row) {
                    int64_t block = 4 * (row - row_begin), from_row = block_begin + block;
                    int64_t most_blocks = min(from_rows - from_row, int64_t{4});
                    facts.from_row[row - tile.first_k] = from_row;
                    facts.blocks[row - tile.first_k] = static_cast<int>(max(min(blocks - block, most_blocks), int64_t{0}));
                }
                blocks_before += __shfl_sync(0xffffffffu, block_end, 31);
                rows_before += __shfl_sync(0xffffffffu, row_end, 31);
            }
        }
        __syncthreads();
    }

    template <int size>
    __device__ __forceinline__ void fetch(uint32_t (&words)[size], const struct tile &tile, const struct row_facts &facts, const uint32_t *,
                                         int mn, int k, int count) const
    {
        const int blocks = facts.blocks[k];
        const uint32_t *first = word_at(from, 0, tile.first_mn + mn, facts.from_row[k]);
        if constexpr (size == 4) {
            if (count >= 4) {
                pack_four_rows(words, first, from.stride_k, blocks);
                return;
            }
        }
#pragma unroll
        for (int i = 0; i < size; ++i) {
            words[i] = i < count && blocks > 0 ? pack_word(first + i * from.stride_mn, from.stride_k, blocks) : 0;
        }
    }
};

/* ---- the kernel ---------------------------------------------------------------------------------------------- */

template <class Source>
struct job {
    Source source;
    struct dg_scale_matrix to;
    struct tiling tiling;
};

/* read_size, write_size: words of a place, 1, or 4 where strides and addresses allow it. */
template <class Source, int read_size, int write_size>
__global__ void __launch_bounds__(threads, 4) move_tiles(const __grid_constant__ struct job<Source> job)
{
    __shared__ uint32_t tile_of_words[tile_words]; /* [mn][pitch] */
    __shared__ typename Source::row_facts facts;
    const struct tiling &tiling = job.tiling;
    const struct dg_scale_matrix &from = job.source.from, &to = job.to;
    const bool is_read_along_k = tiling.reads_along_k, is_written_along_k = tiling.writes_along_k;
    const bool is_transposed = is_read_along_k != is_written_along_k;
    constexpr int batch = read_size == 1 ? 8 : 4; /* places whose loads are in flight together */

    for (unsigned index = blockIdx.x; index < tiling.tiles; index += gridDim.x) {
        const struct tile tile = find_tile(tiling, index);
        job.source.prepare(tile, facts);
        const int pitch = tile.k | 1; /* odd: neither direction meets a bank twice */
        const uint32_t *first = word_at(from, tile.group, tile.first_mn, tile.first_k * Source::k_per_word);
        uint32_t *target = word_at(to, tile.group, tile.first_mn, tile.first_k);
        const int64_t from_stride_k = from.stride_k * Source::k_per_word;

        const int read_minor = is_read_along_k ? tile.k : tile.mn, read_major = is_read_along_k ? tile.mn : tile.k;
        const int read_places = (read_minor + read_size - 1) / read_size;
        walk<int64_t> read(read_places, read_size * (is_read_along_k ? from_stride_k : from.stride_mn),
                           is_read_along_k ? from.stride_mn : from_stride_k);
        const int write_minor = is_written_along_k ? tile.k : tile.mn, write_major = is_written_along_k ? tile.mn : tile.k;
        const int write_places = (write_minor + write_size - 1) / write_size;
        walk<int64_t> write(write_places, write_size * (is_written_along_k ? to.stride_k : to.stride_mn),
                            is_written_along_k ? to.stride_mn : to.stride_k);
#pragma unroll 1
        while (read.major < read_major) {
            constexpr int fetched_words = Source::template fetched_words<read_size>;
            uint32_t fetched[batch][fetched_words];
            struct walk<int64_t> kept = read;
#pragma unroll
            for (int i = 0; i < batch; ++i) {
                if (read.major < read_major) {
                    int minor = read.minor * read_size, mn = is_read_along_k ? read.major : minor, k = is_read_along_k ? minor : read.major;
                    job.source.template fetch<read_size>(fetched[i], tile, facts, first + read.offset, mn, k, read_minor - minor);
                }
                read.advance();
            }
#pragma unroll
            for (int i = 0; i < batch; ++i) {
                if (kept.major >= read_major) {
                    break;
                }
                int minor = kept.minor * read_size;
                uint32_t words[read_size];
                job.source.template finish<read_size>(words, fetched[i]);
                if (is_transposed) {
                    int place = is_read_along_k ? kept.major * pitch + minor : minor * pitch + kept.major;
#pragma unroll
                    for (int e = 0; e < read_size; ++e) {
                        if (minor + e < read_minor) {
                            tile_of_words[place + e * (is_read_along_k ? 1 : pitch)] = words[e];
                        }
                    }
                } else {
                    store_words(target + write.offset, words, read_minor - minor);
                    write.advance();
                }
                kept.advance();
            }
        }
        if (is_transposed) {
            __syncthreads();
#pragma unroll 2
            for (; write.major < write_major; write.advance()) {
                uint32_t words[write_size];
                int minor = write.minor * write_size;
                int place = is_written_along_k ? write.major * pitch + minor : minor * pitch + write.major;
#pragma unroll
                for (int e = 0; e < write_size; ++e) {
                    words[e] = minor + e < write_minor ? tile_of_words[place + e * (is_written_along_k ? 1 : pitch)] : 0;
                }
                store_words(target + write.offset, words, write_minor - minor);
            }
        }
        __syncthreads(); /* before the next tile's words */
    }
}

template <class Source, int read_size, int write_size>
cudaError_t launch_kernel(struct job<Source> *job, unsigned blocks, void *stream)
{
    void *arguments[] = {job};
    return cudaLaunchKernel(reinterpret_cast<const void *>(&move_tiles<Source, read_size, write_size>), dim3(blocks), dim3(threads),
                            arguments, 0, static_cast<cudaStream_t>(stream));
}

/* One block for each tile; or, where the multiprocessors are limited, for each of those. */
template <class Source>
dg_kernel_result launch(struct job<Source> *job, const struct dg_exec *exec)
{
    const struct tiling &t = job->tiling;
    const unsigned blocks = exec->num_sms > 0 ? min(t.tiles, static_cast<unsigned>(exec->num_sms)) : t.tiles;
    const bool reads_fours = job->source.can_read_fours(t.reads_along_k);
    const bool writes_fours = has_fours(job->to, t.writes_along_k);
    const bool is_transposed = t.reads_along_k != t.writes_along_k;
    cudaError_t error;
    if (writes_fours && reads_fours) {
        error = launch_kernel<Source, 4, 4>(job, blocks, exec->stream);
    } else if (writes_fours && is_transposed) {
        error = launch_kernel<Source, 1, 4>(job, blocks, exec->stream);
    } else {
        error = launch_kernel<Source, 1, 1>(job, blocks, exec->stream);
    }
    return launched(error);
}

template <class Source>
dg_kernel_result pack(const struct dg_scale_pack_args *args)
{
    struct job<Source> job;
    job.source.from = args->from;
    job.source.k_blocks = args->k_blocks;
    job.source.gran_mn = args->gran_mn;
    job.source.ends = args->ends;
    job.source.num_ends = args->num_ends;
    job.source.ends_stride = args->ends_stride;
    job.source.alignment = args->alignment;
    job.to = args->to;
    /* Rows that share scales are best read together: one load for all of them. */
    const bool reads_along_k = args->gran_mn == 1 && is_along_k(args->from);
    job.tiling = make_tiling(args->groups, args->mn, ceil_div(args->k_blocks, 4), reads_along_k, is_along_k(args->to));
    return launch(&job, &args->exec);
}

} // namespace

extern "C" dg_kernel_result dg_scale_copy_sm80(const struct dg_scale_copy_args *args)
{
    struct job<copied> job;
    job.source.from = args->from;
    job.to = args->to;
    job.tiling = make_tiling(args->groups, args->mn, args->k_blocks, is_along_k(args->from), is_along_k(args->to));
    return launch(&job, &args->exec);
}

extern "C" dg_kernel_result dg_scale_pack_sm80(const struct dg_scale_pack_args *args)
{
    if (!args->ends && has_fours(args->from, true) && args->k_blocks % 4 == 0) {
        return pack<packed_fours>(args);
    }
    return pack<packed>(args);
}

extern "C" dg_kernel_result dg_scale_pack_k_grouped_sm80(const struct dg_scale_pack_k_grouped_args *args)
{
    struct job<packed_k_grouped> job;
    job.source.from = args->from;
    job.source.groups = args->groups;
    job.source.from_rows = args->from_rows;
    job.source.layout = args->layout;
    job.source.layout_stride = args->layout_stride;
    job.source.is_psum = args->is_psum;
    job.source.gran_k = args->gran_k;
    job.source.k_alignment = args->k_alignment;
    job.to = args->to;
    job.tiling = make_tiling(1, args->mn, args->to_rows, is_along_k(args->from), is_along_k(args->to));
    return launch(&job, &args->exec);
}
