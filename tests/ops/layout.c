/* The scale layout operators, called as a user calls them: results against loops over the formulas of schema/ops.schema, padding that
 * is not touched, and the errors that depend on data.
 */
#include "check.h"
#include "deep_gemm/deep_gemm.h"

#include <math.h>

enum { MOST_WORDS = 1 << 16 };
static const uint32_t untouched = 0xa5a5a5a5u;

/* A result as dg_<op>_out() wants it, in memory that is filled with `untouched`. */
struct result {
    dg_tensor_spec spec;
    dg_tensor tensor;
    uint32_t *words;
};

static void result_begin(struct result *result)
{
    result->words = malloc(result->spec.size_bytes + 64);
    for (size_t i = 0; i < result->spec.size_bytes / 4 + 16; i++) {
        result->words[i] = untouched;
    }
    result->tensor = dg_tensor_from_spec(&result->spec, result->words);
}

/* Element (g, i, q) of a result of two or three dimensions. */
static uint32_t result_at(const struct result *result, int64_t g, int64_t i, int64_t q)
{
    const int64_t *strides = result->spec.strides;
    const int32_t mn = result->spec.ndim - 2;
    return result->words[(mn > 0 ? g * strides[0] : 0) + i * strides[mn] + q * strides[mn + 1]];
}

/* How many words of the memory are not `untouched`: those of the elements, and no padding. */
static int64_t touched_words(const struct result *result)
{
    int64_t touched = 0;
    for (size_t i = 0; i < result->spec.size_bytes / 4 + 16; i++) {
        touched += result->words[i] != untouched;
    }
    return touched;
}

static float power_of_two(int64_t index)
{
    return ldexpf(1, (int)(index * 7 % 255) - 127);
}

static uint32_t code_of(float value)
{
    return value == 0 ? 0 : isnan(value) ? 255 : (uint32_t)(ilogbf(value) + 127);
}

static dg_tensor f32_tensor(float *data, int32_t ndim, int64_t *shape, int64_t *strides)
{
    return (dg_tensor){data, {DG_CPU, 0}, ndim, {DG_F32}, shape, strides, 0};
}

static dg_tensor i32_tensor(int32_t *data, int32_t ndim, int64_t *shape)
{
    return (dg_tensor){data, {DG_CPU, 0}, ndim, {DG_I32}, shape, NULL, 0};
}

/* ---- copy ------------------------------------------------------------------------------------------------- */

static void check_copy(int64_t mn, int64_t k_blocks)
{
    float *data = malloc((size_t)(2 * mn * k_blocks + 1) * sizeof(float));
    for (int64_t i = 0; i < 2 * mn * k_blocks; i++) {
        data[i] = (float)i + 0.5f;
    }
    int64_t shape[3] = {2, mn, k_blocks};
    const dg_tensor sf = f32_tensor(data, 3, shape, NULL);
    struct result out;
    CHECK_INT(dg_get_mn_major_tma_aligned_tensor_out(NULL, &sf, &out.spec), DG_OK);
    CHECK_INT(out.spec.strides[1], 1);
    CHECK_INT(out.spec.strides[2], (mn + 3) / 4 * 4);
    result_begin(&out);
    CHECK_INT(dg_get_mn_major_tma_aligned_tensor(NULL, &sf, &out.tensor), DG_OK);
    int64_t wrong = 0;
    for (int64_t g = 0; g < 2; g++) {
        for (int64_t i = 0; i < mn; i++) {
            for (int64_t q = 0; q < k_blocks; q++) {
                uint32_t bits;
                memcpy(&bits, &data[(g * mn + i) * k_blocks + q], 4);
                wrong += result_at(&out, g, i, q) != bits;
            }
        }
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(touched_words(&out), 2 * mn * k_blocks);
    free(out.words);
    free(data);
}

/* ---- pack ------------------------------------------------------------------------------------------------- */

/* The word that (i, q) should have: four codes of row i, 0 beyond the last block. */
static uint32_t expected_word(const float *row, int64_t stride, int64_t k_blocks, int64_t q)
{
    uint32_t word = 0;
    for (int64_t j = 0; j < 4 && 4 * q + j < k_blocks; j++) {
        word |= code_of(row[(4 * q + j) * stride]) << (8 * j);
    }
    return word;
}

static void check_pack(int64_t mn, int64_t k_blocks)
{
    float *data = malloc((size_t)(mn * k_blocks + 1) * sizeof(float));
    for (int64_t i = 0; i < mn * k_blocks; i++) {
        data[i] = power_of_two(i);
    }
    /* the transpose of [k_blocks, mn]: any strides will do */
    int64_t shape[2] = {mn, k_blocks};
    int64_t strides[2] = {1, mn};
    const dg_tensor sf = f32_tensor(data, 2, shape, strides);
    struct result out;
    CHECK_INT(dg_get_mn_major_tma_aligned_packed_ue8m0_tensor_out(NULL, &sf, &out.spec, NULL), DG_OK);
    result_begin(&out);
    CHECK_INT(dg_get_mn_major_tma_aligned_packed_ue8m0_tensor(NULL, &sf, &out.tensor, NULL), DG_OK);
    int64_t wrong = 0;
    for (int64_t i = 0; i < mn; i++) {
        for (int64_t q = 0; q < (k_blocks + 3) / 4; q++) {
            wrong += result_at(&out, 0, i, q) != expected_word(data + i, mn, k_blocks, q);
        }
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(touched_words(&out), mn * ((k_blocks + 3) / 4));
    free(out.words);
    free(data);
}

/* Groups end at rows 3, 16 and 18; with an alignment of 8 they begin at 0, 8 and 16. What lies between is garbage. */
static void check_psum(void)
{
    enum { MN = 26, BLOCKS = 5 };
    float data[MN * BLOCKS];
    bool is_used[MN];
    for (int i = 0; i < MN; i++) {
        is_used[i] = i < 3 || (i >= 8 && i < 18);
        for (int q = 0; q < BLOCKS; q++) {
            data[i * BLOCKS + q] = is_used[i] ? power_of_two(i + q) : 0.3f;
        }
    }
    int64_t shape[2] = {MN, BLOCKS};
    int64_t groups[1] = {3};
    int32_t ends[3] = {3, 16, 18};
    const dg_tensor sf = f32_tensor(data, 2, shape, NULL);
    const dg_tensor psum_layout = i32_tensor(ends, 1, groups);
    dg_get_mn_major_tma_aligned_packed_ue8m0_tensor_options options = DG_GET_MN_MAJOR_TMA_ALIGNED_PACKED_UE8M0_TENSOR_OPTIONS_INIT;
    options.psum_layout = &psum_layout;

    dg_context *ctx;
    CHECK_INT(dg_context_create(NULL, &ctx), DG_OK);
    CHECK_INT(dg_set_mk_alignment_for_contiguous_layout(ctx, 8), DG_OK);
    struct result out;
    CHECK_INT(dg_get_mn_major_tma_aligned_packed_ue8m0_tensor_out(ctx, &sf, &out.spec, &options), DG_OK);
    result_begin(&out);
    CHECK_INT(dg_get_mn_major_tma_aligned_packed_ue8m0_tensor(ctx, &sf, &out.tensor, &options), DG_OK);
    for (int i = 0; i < MN; i++) {
        for (int q = 0; q < 2; q++) {
            CHECK_INT(result_at(&out, 0, i, q), is_used[i] ? expected_word(data + i * BLOCKS, 1, BLOCKS, q) : 0);
        }
    }
    /* ends that no grouped GEMM takes */
    const struct {
        int32_t ends[3];
        const char *words;
    } refused[] = {
        {{3, 2, 18}, "psum_layout[1] is 2, expected 3 .. 26"},
        {{-1, 2, 18}, "psum_layout[0] is -1, expected 0 .. 26"},
        {{3, 16, 27}, "psum_layout[2] is 27, expected 16 .. 26"},
    };
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        memcpy(ends, refused[i].ends, sizeof(ends));
        out.words[0] = untouched;
        CHECK_INT(dg_get_mn_major_tma_aligned_packed_ue8m0_tensor(ctx, &sf, &out.tensor, &options), DG_ERR_INVALID_ARGUMENT);
        CHECK_CONTAINS(dg_last_error(), refused[i].words);
        CHECK_INT(out.words[0], untouched);
    }
    /* no group at all: no row is in use */
    groups[0] = 0;
    CHECK_INT(dg_get_mn_major_tma_aligned_packed_ue8m0_tensor(ctx, &sf, &out.tensor, &options), DG_OK);
    CHECK_INT(result_at(&out, 0, 0, 0), 0);
    free(out.words);
    dg_context_destroy(ctx);
}

/* Which scales have a code, and what is said of those that have none. */
static void check_codes(void)
{
    float data[6] = {0, 0x1p-127f, 0x1p127f, NAN, 1, 0x1p-126f};
    int64_t shape[2] = {2, 3};
    const dg_tensor sf = f32_tensor(data, 2, shape, NULL);
    struct result out;
    CHECK_INT(dg_get_mn_major_tma_aligned_packed_ue8m0_tensor_out(NULL, &sf, &out.spec, NULL), DG_OK);
    result_begin(&out);
    CHECK_INT(dg_get_mn_major_tma_aligned_packed_ue8m0_tensor(NULL, &sf, &out.tensor, NULL), DG_OK);
    CHECK_INT(out.words[0], 254u << 16);
    CHECK_INT(out.words[1], 255u | 127u << 8 | 1u << 16);

    const float refused[] = {3, -1, 0.1f, INFINITY, -INFINITY, 0x1p-128f, 0x1.8p-127f, -0.0f, 1.0000001f};
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        data[4] = refused[i];
        out.words[0] = untouched;
        CHECK_INT(dg_get_mn_major_tma_aligned_packed_ue8m0_tensor(NULL, &sf, &out.tensor, NULL), DG_ERR_INVALID_ARGUMENT);
        CHECK_CONTAINS(dg_last_error(), "get_mn_major_tma_aligned_packed_ue8m0_tensor: sf[1, 1] is ");
        CHECK_INT(out.words[0], untouched);
    }
    data[4] = 3;
    CHECK(dg_get_mn_major_tma_aligned_packed_ue8m0_tensor(NULL, &sf, &out.tensor, NULL) != DG_OK);
    CHECK_TEXT(dg_last_error(),
               "get_mn_major_tma_aligned_packed_ue8m0_tensor: sf[1, 1] is 3, expected a power of two from 2^-127 to 2^127, or 0, or NaN: "
               "UE8M0 has no code for other scales");
    free(out.words);

    /* of several, the first, and with the group in front */
    enum { ROWS = 700 };
    static float many[2 * ROWS * 3];
    for (int i = 0; i < 2 * ROWS * 3; i++) {
        many[i] = i % 3 == 1 && i >= ROWS * 3 + 50 ? 5 : 1;
    }
    int64_t many_shape[3] = {2, ROWS, 3};
    const dg_tensor grouped = f32_tensor(many, 3, many_shape, NULL);
    CHECK_INT(dg_get_mn_major_tma_aligned_packed_ue8m0_tensor_out(NULL, &grouped, &out.spec, NULL), DG_OK);
    result_begin(&out);
    CHECK(dg_get_mn_major_tma_aligned_packed_ue8m0_tensor(NULL, &grouped, &out.tensor, NULL) != DG_OK);
    CHECK_CONTAINS(dg_last_error(), ": sf[1, 17, 1] is 5, expected");
    CHECK_INT(touched_words(&out), 0);
    free(out.words);
}

/* ---- pack, k-grouped -------------------------------------------------------------------------------------- */

static void check_k_grouped(bool has_ks, bool is_psum)
{
    /* groups of 5, 0, 1 and 8 blocks of 32, not all full; with psum they begin at multiples of 64 */
    enum { GROUPS = 4, MN = 70, ROWS = 14 };
    const int64_t blocks[GROUPS] = {5, 0, 1, 8};
    const int64_t sizes[GROUPS] = {150, 0, 32, 250};
    int64_t rounded[GROUPS] = {192, 0, 64, 256}; /* with psum, ks_cpu may be rounded up */
    int32_t layout[GROUPS];
    int64_t end = 0;
    for (int g = 0; g < GROUPS; g++) {
        end = (end + 63) / 64 * 64 + sizes[g];
        layout[g] = (int32_t)(is_psum ? end : sizes[g]);
    }
    static float data[ROWS * MN];
    for (int i = 0; i < ROWS * MN; i++) {
        data[i] = power_of_two(i);
    }
    int64_t shape[2] = {ROWS, MN};
    int64_t groups[1] = {GROUPS};
    const dg_tensor sf = f32_tensor(data, 2, shape, NULL);
    const dg_tensor grouped_layout = i32_tensor(layout, 1, groups);
    const dg_ints ks = {is_psum ? rounded : sizes, GROUPS};
    const dg_ints *ks_cpu = has_ks ? &ks : NULL;
    dg_get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor_options options =
        DG_GET_K_GROUPED_MN_MAJOR_TMA_ALIGNED_PACKED_UE8M0_TENSOR_OPTIONS_INIT;
    options.use_psum_layout = is_psum;

    struct result out;
    CHECK_INT(dg_get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor_out(NULL, &sf, &grouped_layout, ks_cpu, 32, 64, &out.spec,
                                                                            &options),
              DG_OK);
    CHECK_INT(out.spec.shape[0], has_ks ? 2 + 0 + 1 + 2 : (ROWS + 3 * GROUPS) / 4);
    result_begin(&out);
    CHECK_INT(dg_get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(NULL, &sf, &grouped_layout, ks_cpu, 32, 64, &out.tensor, &options),
              DG_OK);
    int64_t from_row = 0;
    int64_t to_row = 0;
    int64_t wrong = 0;
    for (int g = 0; g < GROUPS; g++) {
        for (int64_t q = 0; 4 * q < blocks[g]; q++) {
            for (int64_t i = 0; i < MN; i++) {
                wrong += result_at(&out, 0, to_row, i) != expected_word(data + from_row * MN + i, MN, blocks[g], q);
            }
            to_row++;
        }
        from_row += blocks[g];
    }
    for (; to_row < out.spec.shape[0]; to_row++) {
        for (int64_t i = 0; i < MN; i++) {
            wrong += result_at(&out, 0, to_row, i) != 0;
        }
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(touched_words(&out), out.spec.shape[0] * MN);

    if (is_psum) {
        layout[3] += 32; /* one row of scales more than there are */
        CHECK(dg_get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(NULL, &sf, &grouped_layout, ks_cpu, 32, 64, &out.tensor,
                                                                        &options) == DG_ERR_INVALID_ARGUMENT);
        CHECK_CONTAINS(dg_last_error(), "grouped_layout needs 15 rows of sf up to group 3, but sf has 14");
        layout[3] = 0;
        CHECK(dg_get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(NULL, &sf, &grouped_layout, ks_cpu, 32, 64, &out.tensor,
                                                                        &options) == DG_ERR_INVALID_ARGUMENT);
        CHECK_CONTAINS(dg_last_error(), "grouped_layout[3] is 0, expected >= 224: the ends of groups do not decrease");
        layout[3] = layout[2]; /* an end that repeats the one before, which is not a multiple of 64: a group without k */
        CHECK_INT(dg_get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(NULL, &sf, &grouped_layout, ks_cpu, 32, 64, &out.tensor,
                                                                            &options),
                  DG_OK);
        CHECK_INT(result_at(&out, 0, 0, 5), expected_word(data + 5, MN, blocks[0], 0));
        layout[3] = (int32_t)end;
        free(out.words);
        CHECK_INT(dg_get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor_out(NULL, &sf, &grouped_layout, ks_cpu, 32, 64, &out.spec,
                                                                                &options),
                  DG_OK);
        result_begin(&out);
        rounded[0] = 512; /* enough blocks, but all in one group: four words where the layout needs five */
        rounded[2] = 0;
        rounded[3] = 0;
        CHECK_INT(dg_get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor_out(NULL, &sf, &grouped_layout, &ks, 32, 64, &out.spec, &options),
                  DG_OK);
        free(out.words);
        result_begin(&out);
        CHECK(dg_get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(NULL, &sf, &grouped_layout, &ks, 32, 64, &out.tensor, &options) ==
              DG_ERR_INVALID_ARGUMENT);
        CHECK_CONTAINS(dg_last_error(), "grouped_layout needs 5 rows of the result up to group 3, but with this ks_cpu it has 4");
        CHECK_INT(touched_words(&out), 0);
        free(out.words);
        return;
    }
    data[13 * MN + 2] = 7;
    CHECK(dg_get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(NULL, &sf, &grouped_layout, ks_cpu, 32, 64, &out.tensor, &options) ==
          DG_ERR_INVALID_ARGUMENT);
    CHECK_CONTAINS(dg_last_error(), ": sf[13, 2] is 7, expected");
    free(out.words);
}

/* ---- transform -------------------------------------------------------------------------------------------- */

static dg_status transform(const dg_tensor *sf, int64_t mn, int64_t k, dg_ints recipe,
                           const dg_transform_sf_into_required_layout_options *options, struct result *out)
{
    const dg_status status = dg_transform_sf_into_required_layout_out(NULL, sf, mn, k, recipe, &out->spec, options);
    CHECK_INT(status, DG_OK);
    result_begin(out);
    return dg_transform_sf_into_required_layout(NULL, sf, mn, k, recipe, &out->tensor, options);
}

static void check_transform(void)
{
    float data[60];
    for (int i = 0; i < 60; i++) {
        data[i] = power_of_two(i);
    }
    struct result out;

    /* f32, a scale per row and 128: MN-major */
    int64_t rows_shape[2] = {10, 6};
    dg_tensor sf = f32_tensor(data, 2, rows_shape, NULL);
    const int64_t per_row[2] = {1, 128};
    CHECK_INT(transform(&sf, 10, 700, (dg_ints){per_row, 2}, NULL, &out), DG_OK);
    CHECK(out.spec.strides[0] == 1 && out.spec.strides[1] == 12 && out.spec.dtype.code == DG_CODE_FLOAT);
    CHECK(result_at(&out, 0, 7, 5) != untouched && memcmp(&out.words[7 + 5 * 12], &data[7 * 6 + 5], 4) == 0);
    free(out.words);

    /* f32 by 128 x 128: the same values, compact. As sfb of a recipe of three. */
    const int64_t blocks[3] = {1, 128, 128};
    dg_transform_sf_into_required_layout_options options = DG_TRANSFORM_SF_INTO_REQUIRED_LAYOUT_OPTIONS_INIT;
    options.is_sfa = (dg_opt_bool){true, false};
    CHECK_INT(transform(&sf, 1200, 700, (dg_ints){blocks, 3}, &options, &out), DG_OK);
    CHECK(out.spec.strides[0] == 6 && out.spec.strides[1] == 1);
    CHECK(memcmp(out.words, data, sizeof(data)) == 0);
    free(out.words);

    /* f32 of granularity 32: packed, also when rows share a scale; or f32 when asked */
    const int64_t shared[2] = {4, 32};
    CHECK_INT(transform(&sf, 39, 190, (dg_ints){shared, 2}, NULL, &out), DG_OK);
    CHECK(out.spec.shape[0] == 39 && out.spec.shape[1] == 2 && out.spec.strides[1] == 40 && out.spec.dtype.code == DG_CODE_INT);
    for (int64_t i = 0; i < 39; i++) {
        for (int64_t q = 0; q < 2; q++) {
            CHECK_INT(result_at(&out, 0, i, q), expected_word(data + i / 4 * 6, 1, 6, q));
        }
    }
    free(out.words);
    const int64_t fine[2] = {1, 32};
    options = (dg_transform_sf_into_required_layout_options)DG_TRANSFORM_SF_INTO_REQUIRED_LAYOUT_OPTIONS_INIT;
    options.disable_ue8m0_cast = true;
    CHECK_INT(transform(&sf, 10, 190, (dg_ints){fine, 2}, &options, &out), DG_OK);
    CHECK_INT(out.spec.dtype.code, DG_CODE_FLOAT);
    free(out.words);

    /* packed already, in groups: the same words, MN-major */
    int32_t words[2 * 5 * 3];
    for (int i = 0; i < 30; i++) {
        words[i] = i * 1000 - 7;
    }
    int64_t grouped_shape[3] = {2, 5, 3};
    sf = i32_tensor(words, 3, grouped_shape);
    options = (dg_transform_sf_into_required_layout_options)DG_TRANSFORM_SF_INTO_REQUIRED_LAYOUT_OPTIONS_INIT;
    options.num_groups = (dg_opt_int){true, 2};
    CHECK_INT(transform(&sf, 5, 1400, (dg_ints){per_row, 2}, &options, &out), DG_OK);
    CHECK(out.spec.strides[0] == 24 && out.spec.strides[1] == 1 && out.spec.strides[2] == 8);
    for (int64_t i = 0; i < 30; i++) {
        CHECK_INT((int32_t)result_at(&out, i / 15, i / 3 % 5, i % 3), words[i]);
    }
    free(out.words);

    /* nothing to do */
    int64_t empty_shape[2] = {0, 6};
    sf = f32_tensor(NULL, 2, empty_shape, NULL);
    CHECK_INT(transform(&sf, 0, 190, (dg_ints){fine, 2}, NULL, &out), DG_OK);
    CHECK_INT(touched_words(&out), 0);
    free(out.words);
}

static void check_aligned_size(void)
{
    int64_t aligned;
    CHECK(dg_get_tma_aligned_size(NULL, 5, 4, &aligned) == DG_OK && aligned == 8);
    CHECK(dg_get_tma_aligned_size(NULL, 16, 1, &aligned) == DG_OK && aligned == 16);
    CHECK(dg_get_tma_aligned_size(NULL, 17, 2, &aligned) == DG_OK && aligned == 24);
    CHECK(dg_get_tma_aligned_size(NULL, 0, 4, &aligned) == DG_OK && aligned == 0);
}

int main(void)
{
    const int64_t sizes[] = {1, 3, 4, 63, 64, 65, 300};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (int64_t k_blocks = 1; k_blocks <= 9; k_blocks += 4) {
            check_copy(sizes[i], k_blocks);
            check_pack(sizes[i], k_blocks);
            check_pack(sizes[i], k_blocks + 1);
        }
    }
    check_psum();
    check_codes();
    check_k_grouped(true, false);
    check_k_grouped(true, true);
    check_k_grouped(false, true);
    check_transform();
    check_aligned_size();
    return check_report("ops.layout");
}
