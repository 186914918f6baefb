/* Malformed calls from C: each is refused with exactly the text in its row, and touches no memory.
 *
 * A row takes the valid call of its table, edits up to three fields of its arguments, and says what must come of it. The tables stand
 * first; how a call is built and judged follows. Run it under the address and undefined-behaviour sanitizers too: inputs have no spare
 * byte around them, and d stands between guard words. The same from Python: tests/torch/test_misuse.py.
 */
#include "deep_gemm/deep_gemm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What an edit changes: a tensor of the call, or one of its other arguments. */
enum target { A, SFA, B, SFB, D, C, TENSORS, ARG = TENSORS, SF = A, PSUM_LAYOUT = SFA, GROUPED_LAYOUT = SFA, OUT = D };

/* Of a tensor. */
enum field {
    NO_EDIT,
    IS_NULL, /* the pointer to the tensor */
    DATA_IS_NULL,
    SHAPE_IS_NULL,
    STRIDES_IS_NULL,
    NDIM,
    SIZE_0,
    SIZE_1,
    SIZE_2,
    STRIDE_0,
    STRIDE_1,
    STRIDE_2,
    DTYPE,
    DEVICE_TYPE,
    DEVICE_ID,
    BYTE_OFFSET,
    MEMORY_OF /* the tensor whose data this one's data becomes */
};

/* Of the other arguments. */
enum argument {
    STRUCT_SIZE, /* what is added to that of the options */
    HAS_RECIPE,
    RECIPE_0,
    RECIPE_1,
    RECIPE_2,
    HAS_RECIPE_A,
    RECIPE_A_0,
    RECIPE_A_1,
    HAS_RECIPE_B,
    RECIPE_B_0,
    RECIPE_B_1,
    LEFT,
    MID,
    RIGHT,
    MN,
    K,
    RECIPE_LENGTH,
    RECIPE_IS_NULL,
    HAS_NUM_GROUPS,
    NUM_GROUPS,
    HAS_KS,
    KS_0,
    KS_1,
    KS_LENGTH,
    KS_IS_NULL,
    GRAN_K,
    K_ALIGNMENT,
    USE_PSUM_LAYOUT,
    VALUE_0,
    VALUE_1,
    RESULT_IS_NULL,
    ARGUMENTS
};

enum dtype { BF16, F32, F16, F64, F8E4M3, F8E5M2, F4E2M1, F4E2M1X2, I64, I32, U8, BOOL, F32X2, UNKNOWN };

struct edit {
    enum target target;
    int field; /* enum field, or enum argument for ARG */
    int64_t value;
};

struct misuse {
    struct edit edits[3];
    dg_status status;
    const char *text; /* what follows "<op>: " */
};

#define INVALID DG_ERR_INVALID_ARGUMENT
#define WRONG_DTYPE DG_ERR_INVALID_DTYPE
#define NO_KERNEL DG_ERR_NOT_SUPPORTED

/* The contracts of the scales, which several texts quote. */
#define SFA_CONTRACT "f32 [ceil(m / gran_mn_a), ceil(k / gran_k_a)] | i32 [ceil(m / gran_mn_a), ceil(k / (gran_k_a * 4))]"
#define SFB_CONTRACT "f32 [ceil(n / gran_mn_b), ceil(k / gran_k_b)] | i32 [ceil(n / gran_mn_b), ceil(k / (gran_k_b * 4))]"

/* ---- fp8_fp4_gemm_nt: a [4, 256], sfa [4, 2], b [6, 256], sfb [1, 2], d and c bf16 [4, 6] ----------------------- */

static const struct misuse fp8_gemm_nt[] = {
    /* a tensor that is not there */
    {{{A, IS_NULL, 1}}, INVALID, "a is NULL, expected f8e4m3 | f4e2m1 [m, k]"},
    {{{SFA, IS_NULL, 1}}, INVALID, "sfa is NULL, expected " SFA_CONTRACT},
    {{{B, IS_NULL, 1}}, INVALID, "b is NULL, expected f8e4m3 | f4e2m1 [n, k]"},
    {{{SFB, IS_NULL, 1}}, INVALID, "sfb is NULL, expected " SFB_CONTRACT},
    {{{D, IS_NULL, 1}}, INVALID, "d is NULL, expected bf16 | f32 [m, n] rows"},
    {{{A, DATA_IS_NULL, 1}}, INVALID, "a has data NULL, expected memory for shape [4, 256]"},
    {{{SFB, DATA_IS_NULL, 1}}, INVALID, "sfb has data NULL, expected memory for shape [1, 2]"},
    {{{D, DATA_IS_NULL, 1}}, INVALID, "d has data NULL, expected memory for shape [4, 6]"},
    {{{C, DATA_IS_NULL, 1}}, INVALID, "c has data NULL, expected memory for shape [4, 6]"},
    {{{B, SHAPE_IS_NULL, 1}}, INVALID, "b has shape NULL, expected 2 sizes"},
    /* ranks and sizes */
    {{{A, NDIM, -1}}, INVALID, "a has ndim = -1, expected 0 to 8"},
    {{{A, NDIM, 9}}, INVALID, "a has ndim = 9, expected 0 to 8"},
    {{{A, NDIM, 1}}, INVALID, "a has shape [4], expected f8e4m3 | f4e2m1 [m, k]"},
    {{{A, NDIM, 3}}, INVALID, "a has shape [4, 256, 0], expected f8e4m3 | f4e2m1 [m, k]"},
    {{{SFA, NDIM, 1}}, INVALID, "sfa has shape [4], expected [4, 2] = [ceil(m / gran_mn_a), ceil(k / gran_k_a)]"},
    {{{SFB, NDIM, 3}}, INVALID, "sfb has shape [1, 2, 0], expected [1, 2] = [ceil(n / gran_mn_b), ceil(k / gran_k_b)]"},
    {{{D, NDIM, 0}}, INVALID, "d has shape [], expected bf16 | f32 [m, n] rows"},
    {{{D, NDIM, 3}}, INVALID, "d has shape [4, 6, 0], expected bf16 | f32 [m, n] rows"},
    {{{C, NDIM, 1}}, INVALID, "c has shape [4], expected bf16 | f32 [m, n] rows"},
    {{{A, SIZE_0, -4}}, INVALID, "a has shape [-4, 256], expected no negative size"},
    {{{D, SIZE_1, INT64_MIN}}, INVALID, "d has shape [4, -9223372036854775808], expected no negative size"},
    {{{B, SIZE_1, 128}}, INVALID, "b has k = 128, expected 256 to match a"},
    {{{B, SIZE_1, 0}}, INVALID, "b has k = 0, expected 256 to match a"},
    {{{A, SIZE_1, 255}}, INVALID, "b has k = 256, expected 255 to match a"},
    {{{B, SIZE_0, 5}}, INVALID, "d has n = 6, expected 5 to match b"},
    {{{D, SIZE_0, 3}}, INVALID, "d has m = 3, expected 4 to match a"},
    {{{D, SIZE_0, 6}, {D, SIZE_1, 4}, {D, STRIDES_IS_NULL, 1}}, INVALID, "d has m = 6, expected 4 to match a"},
    {{{C, SIZE_0, 3}}, INVALID, "c has shape [3, 6], expected [4, 6] to match d"},
    {{{SFA, SIZE_0, 3}}, INVALID, "sfa has shape [3, 2], expected [4, 2] = [ceil(m / gran_mn_a), ceil(k / gran_k_a)]"},
    {{{SFA, SIZE_1, 1}}, INVALID, "sfa has shape [4, 1], expected [4, 2] = [ceil(m / gran_mn_a), ceil(k / gran_k_a)]"},
    {{{SFA, SIZE_1, 3}}, INVALID, "sfa has shape [4, 3], expected [4, 2] = [ceil(m / gran_mn_a), ceil(k / gran_k_a)]"},
    {{{SFB, SIZE_0, 6}}, INVALID, "sfb has shape [6, 2], expected [1, 2] = [ceil(n / gran_mn_b), ceil(k / gran_k_b)]"},
    {{{SFB, SIZE_0, 2}, {SFB, SIZE_1, 1}}, INVALID,
     "sfb has shape [2, 1], expected [1, 2] = [ceil(n / gran_mn_b), ceil(k / gran_k_b)]"},
    {{{A, SIZE_0, INT64_MAX}}, INVALID,
     "a has shape [9223372036854775807, 256] and strides [256, 1], too large for 64-bit offsets"},
    {{{A, SIZE_0, INT64_MAX / 256}, {A, SIZE_1, INT64_MAX / 256}}, INVALID,
     "a has shape [36028797018963967, 36028797018963967] and strides [256, 1], too large for 64-bit offsets"},
    /* strides */
    {{{A, STRIDE_0, INT64_MIN}}, INVALID,
     "a has shape [4, 256] and strides [-9223372036854775808, 1], too large for 64-bit offsets"},
    {{{B, STRIDE_0, INT64_MAX / 4}}, INVALID,
     "b has shape [6, 256] and strides [2305843009213693951, 1], too large for 64-bit offsets"},
    {{{D, STRIDE_1, 2}}, INVALID, "d has strides [6, 2], expected stride 1 in the last dimension"},
    {{{D, STRIDE_0, 1}, {D, STRIDE_1, 4}}, INVALID, "d has strides [1, 4], expected stride 1 in the last dimension"},
    {{{D, STRIDE_0, 0}}, INVALID, "d has shape [4, 6] and strides [0, 1], expected elements that do not overlap"},
    {{{D, STRIDE_0, 5}}, INVALID, "d has shape [4, 6] and strides [5, 1], expected elements that do not overlap"},
    {{{D, STRIDE_0, -3}}, INVALID, "d has shape [4, 6] and strides [-3, 1], expected elements that do not overlap"},
    /* dtypes */
    {{{A, DTYPE, BF16}}, WRONG_DTYPE, "a has dtype bf16, expected f8e4m3 | f4e2m1 [m, k]"},
    {{{A, DTYPE, F8E5M2}}, WRONG_DTYPE, "a has dtype f8e5m2, expected f8e4m3 | f4e2m1 [m, k]"},
    {{{A, DTYPE, UNKNOWN}}, WRONG_DTYPE, "a has dtype {code 99, bits 8, lanes 1}, expected f8e4m3 | f4e2m1 [m, k]"},
    {{{B, DTYPE, F32X2}}, WRONG_DTYPE, "b has dtype {code 2, bits 32, lanes 2}, expected f8e4m3 | f4e2m1 [n, k]"},
    {{{SFA, DTYPE, F64}}, WRONG_DTYPE, "sfa has dtype f64, expected " SFA_CONTRACT},
    {{{SFB, DTYPE, U8}}, WRONG_DTYPE, "sfb has dtype u8, expected " SFB_CONTRACT},
    {{{D, DTYPE, F16}}, WRONG_DTYPE, "d has dtype f16, expected bf16 | f32 [m, n] rows"},
    {{{D, DTYPE, I32}}, WRONG_DTYPE, "d has dtype i32, expected bf16 | f32 [m, n] rows"},
    {{{C, DTYPE, F32}}, WRONG_DTYPE, "c has dtype f32, expected bf16 to match d"},
    {{{SFB, DTYPE, I32}}, INVALID, "sfb has shape [1, 2], expected [6, 1] = [ceil(n / gran_mn_b), ceil(k / (gran_k_b * 4))]"},
    {{{SFA, DTYPE, I32}}, INVALID, "sfa has shape [4, 2], expected [4, 1] = [ceil(m / gran_mn_a), ceil(k / (gran_k_a * 4))]"},
    {{{A, DTYPE, F4E2M1X2}}, INVALID, "b has k = 256, expected 512 to match a"},
    {{{A, DTYPE, U8}, {A, STRIDE_0, 512}, {A, STRIDE_1, 2}}, INVALID,
     "a has strides [512, 2], expected 1 along the dimension that holds the pairs of f4e2m1"},
    /* devices and addresses */
    {{{A, DEVICE_TYPE, 7}}, INVALID, "a is on a device of type 7, expected the CPU or a CUDA device"},
    {{{D, DEVICE_TYPE, 0}}, INVALID, "d is on a device of type 0, expected the CPU or a CUDA device"},
    {{{SFA, BYTE_OFFSET, 2}}, INVALID, "sfa has data at <address> + 2, expected an address that is a multiple of 4"},
    {{{D, BYTE_OFFSET, 1}}, INVALID, "d has data at <address> + 1, expected an address that is a multiple of 2"},
    /* memory that is written and used otherwise */
    {{{D, MEMORY_OF, A}}, INVALID, "d overlaps a, expected separate memory"},
    {{{D, MEMORY_OF, SFA}}, INVALID, "d overlaps sfa, expected separate memory"},
    {{{D, MEMORY_OF, B}, {D, BYTE_OFFSET, 1488}}, INVALID, "d overlaps b, expected separate memory"},
    {{{C, MEMORY_OF, D}, {C, BYTE_OFFSET, 2}}, INVALID, "d overlaps c, expected separate memory or exactly the same tensor"},
    {{{C, MEMORY_OF, D}, {C, STRIDE_0, 1}, {C, STRIDE_1, 4}}, INVALID,
     "d overlaps c, expected separate memory or exactly the same tensor"},
    /* recipes */
    {{{ARG, HAS_RECIPE, 1}, {ARG, RECIPE_0, 0}}, INVALID, "recipe[0] is 0, expected 1 .. 1073741824"},
    {{{ARG, HAS_RECIPE, 1}, {ARG, RECIPE_1, -128}}, INVALID, "recipe[1] is -128, expected 1 .. 1073741824"},
    {{{ARG, HAS_RECIPE, 1}, {ARG, RECIPE_2, 0}}, INVALID, "recipe[2] is 0, expected 1 .. 1073741824"},
    {{{ARG, HAS_RECIPE, 1}, {ARG, RECIPE_2, INT64_MAX}}, INVALID, "recipe[2] is 9223372036854775807, expected 1 .. 1073741824"},
    {{{ARG, HAS_RECIPE, 1}, {ARG, RECIPE_1, 1}}, INVALID,
     "sfb has shape [1, 2], expected [6, 2] = [ceil(n / gran_mn_b), ceil(k / gran_k_b)]"},
    {{{ARG, HAS_RECIPE, 1}, {ARG, RECIPE_2, 32}}, INVALID,
     "sfa has shape [4, 2], expected [4, 8] = [ceil(m / gran_mn_a), ceil(k / gran_k_a)]"},
    {{{ARG, HAS_RECIPE_A, 1}, {ARG, RECIPE_A_1, 0}}, INVALID, "recipe_a[1] is 0, expected 1 .. 1073741824"},
    {{{ARG, HAS_RECIPE_A, 1}, {ARG, RECIPE_A_0, 2}}, INVALID,
     "sfa has shape [4, 2], expected [2, 2] = [ceil(m / gran_mn_a), ceil(k / gran_k_a)]"},
    {{{ARG, HAS_RECIPE_B, 1}, {ARG, RECIPE_B_0, 4}}, INVALID,
     "sfb has shape [1, 2], expected [2, 2] = [ceil(n / gran_mn_b), ceil(k / gran_k_b)]"},
    {{{ARG, HAS_RECIPE_B, 1}, {ARG, RECIPE_B_1, -1}}, INVALID, "recipe_b[1] is -1, expected 1 .. 1073741824"},
    /* options */
    {{{ARG, STRUCT_SIZE, 8}}, INVALID,
     "options->struct_size is 121, expected at most 120 as DG_FP8_FP4_GEMM_NT_OPTIONS_INIT sets it"},
    {{{ARG, STRUCT_SIZE, -113}}, INVALID,
     "options->struct_size is 0, expected at most 120 as DG_FP8_FP4_GEMM_NT_OPTIONS_INIT sets it"},
};

/* Tensors on another device than the first one; what is said first depends on whether the library could use that device. */
static const struct misuse other_device[] = {
    {{{SFA, DEVICE_TYPE, DG_CUDA}}, INVALID, "sfa is on cuda:0, expected the CPU to match a"},
    {{{D, DEVICE_TYPE, DG_CUDA}, {D, DEVICE_ID, 1}}, INVALID, "d is on cuda:1, expected the CPU to match a"},
};

static const struct misuse other_device_without_cuda[] = {
    {{{SFA, DEVICE_TYPE, DG_CUDA}}, NO_KERNEL, "sfa is on cuda:0, but this library was built without CUDA"},
    {{{D, DEVICE_TYPE, DG_CUDA}, {D, DEVICE_ID, 1}}, NO_KERNEL, "d is on cuda:1, but this library was built without CUDA"},
};

/* ---- the transposed layouts: the operands that are transposed are [256, 4] and [256, 6], their scales [2, 4] and [2, 1] --- */

static const struct misuse fp8_gemm_nn[] = {
    {{{B, SIZE_0, 128}}, INVALID, "b has k = 128, expected 256 to match a"},
    {{{SFB, SIZE_0, 1}, {SFB, SIZE_1, 2}}, INVALID,
     "sfb has shape [1, 2], expected [2, 1] = [ceil(k / gran_k_b), ceil(n / gran_mn_b)]"},
    {{{D, SIZE_1, 5}}, INVALID, "d has n = 5, expected 6 to match b"},
};

static const struct misuse fp8_gemm_tn[] = {
    {{{A, SIZE_0, 128}}, INVALID, "b has k = 256, expected 128 to match a"},
    {{{SFA, SIZE_0, 4}, {SFA, SIZE_1, 2}}, INVALID,
     "sfa has shape [4, 2], expected [2, 4] = [ceil(k / gran_k_a), ceil(m / gran_mn_a)]"},
    {{{B, NDIM, 1}}, INVALID, "b has shape [256], expected f8e4m3 | f4e2m1 [k, n]"},
};

static const struct misuse fp8_gemm_tt[] = {
    {{{SFA, SIZE_1, 3}}, INVALID, "sfa has shape [2, 3], expected [2, 4] = [ceil(k / gran_k_a), ceil(m / gran_mn_a)]"},
    {{{B, SIZE_1, 255}}, INVALID, "b has k = 255, expected 256 to match a"},
};

/* ---- bf16_gemm_nt: a [4, 256], b [6, 256], d and c f32 [4, 6] ------------------------------------------------------- */

static const struct misuse bf16_gemm_nt[] = {
    {{{A, IS_NULL, 1}}, INVALID, "a is NULL, expected bf16 [m, k]"},
    {{{D, IS_NULL, 1}}, INVALID, "d is NULL, expected bf16 | f32 [m, n] rows"},
    {{{A, NDIM, 1}}, INVALID, "a has shape [4], expected bf16 [m, k]"},
    {{{B, SIZE_1, 192}}, INVALID, "b has k = 192, expected 256 to match a"},
    {{{D, SIZE_1, 7}}, INVALID, "d has n = 7, expected 6 to match b"},
    {{{A, DTYPE, F32}}, WRONG_DTYPE, "a has dtype f32, expected bf16 [m, k]"},
    {{{B, DTYPE, F16}}, WRONG_DTYPE, "b has dtype f16, expected bf16 [n, k]"},
    {{{D, DTYPE, F64}}, WRONG_DTYPE, "d has dtype f64, expected bf16 | f32 [m, n] rows"},
    {{{C, DTYPE, BF16}}, WRONG_DTYPE, "c has dtype bf16, expected f32 to match d"},
    {{{D, STRIDE_1, -1}}, INVALID, "d has strides [6, -1], expected stride 1 in the last dimension"},
    {{{D, MEMORY_OF, B}}, INVALID, "d overlaps b, expected separate memory"},
    {{{C, MEMORY_OF, D}, {C, BYTE_OFFSET, 4}}, INVALID, "d overlaps c, expected separate memory or exactly the same tensor"},
    {{{A, BYTE_OFFSET, 1}}, INVALID, "a has data at <address> + 1, expected an address that is a multiple of 2"},
    {{{ARG, STRUCT_SIZE, -32}}, INVALID, "options->struct_size is 0, expected at most 32 as DG_BF16_GEMM_NT_OPTIONS_INIT sets it"},
};

static const struct misuse bf16_gemm_nn[] = {
    {{{B, SIZE_0, 255}}, INVALID, "b has k = 255, expected 256 to match a"},
};

static const struct misuse bf16_gemm_tn[] = {
    {{{A, SIZE_0, 255}}, INVALID, "b has k = 256, expected 255 to match a"},
};

static const struct misuse bf16_gemm_tt[] = {
    {{{D, SIZE_0, 5}}, INVALID, "d has m = 5, expected 4 to match a"},
};

/* ---- fp8_gemm_nt_skip_head_mid: the operands of fp8_gemm_nt, heads of 2 + 1 columns, gaps of 1: d [4, 8] ------------- */

static const struct misuse fp8_gemm_nt_skip_head_mid[] = {
    {{{A, DTYPE, F4E2M1X2}}, WRONG_DTYPE, "a has dtype f4e2m1, expected f8e4m3 [m, k]"},
    {{{D, SIZE_1, 6}}, INVALID, "d has shape [4, 6], expected [4, 8] = [m, n + n // head * head_splits[1]]"},
    {{{ARG, MID, 2}}, INVALID, "d has shape [4, 8], expected [4, 10] = [m, n + n // head * head_splits[1]]"},
    {{{ARG, LEFT, -1}}, INVALID, "head_splits[0] is -1, expected 0 .. 1048576"},
    {{{ARG, MID, -1}}, INVALID, "head_splits[1] is -1, expected 0 .. 1048576"},
    {{{ARG, RIGHT, INT64_MAX}}, INVALID, "head_splits[2] is 9223372036854775807, expected 0 .. 1048576"},
    {{{ARG, LEFT, 0}, {ARG, RIGHT, 0}}, INVALID, "head_splits needs left + right >= 1, got head_splits[0] = 0, head_splits[2] = 0"},
    {{{ARG, LEFT, 4}}, INVALID, "n must be a multiple of left + right of head_splits, got n = 6, head = 5"},
    {{{D, MEMORY_OF, A}}, INVALID, "d overlaps a, expected separate memory"},
    {{{ARG, HAS_RECIPE, 1}, {ARG, RECIPE_2, 0}}, INVALID, "recipe[2] is 0, expected 1 .. 1073741824"},
};

/* ---- scale layouts ------------------------------------------------------------------------------------------------- */

/* sf f32 [5, 3], out f32 [5, 3] with strides [1, 8] */
static const struct misuse mn_major[] = {
    {{{SF, IS_NULL, 1}}, INVALID, "sf is NULL, expected f32 [mn, sf_k] | f32 [groups, mn, sf_k]"},
    {{{SF, NDIM, 1}}, INVALID, "sf has shape [5], expected f32 [mn, sf_k] | f32 [groups, mn, sf_k]"},
    {{{SF, DTYPE, I32}}, WRONG_DTYPE, "sf has dtype i32, expected f32 [mn, sf_k] | f32 [groups, mn, sf_k]"},
    {{{SF, SIZE_1, -3}}, INVALID, "sf has shape [5, -3], expected no negative size"},
    {{{OUT, IS_NULL, 1}}, INVALID, "out is NULL, expected f32 [5, 3], as dg_get_mn_major_tma_aligned_tensor_out() says"},
    {{{OUT, DTYPE, I32}}, WRONG_DTYPE, "out has dtype i32, expected f32, as dg_get_mn_major_tma_aligned_tensor_out() says"},
    {{{OUT, SIZE_0, 4}}, INVALID, "out has shape [4, 3], expected [5, 3], as dg_get_mn_major_tma_aligned_tensor_out() says"},
    {{{OUT, STRIDE_0, 3}, {OUT, STRIDE_1, 1}}, INVALID,
     "out has strides [3, 1], expected [1, 8], as dg_get_mn_major_tma_aligned_tensor_out() says"},
    {{{OUT, STRIDE_1, 5}}, INVALID, "out has strides [1, 5], expected [1, 8], as dg_get_mn_major_tma_aligned_tensor_out() says"},
    {{{OUT, MEMORY_OF, SF}}, INVALID, "out overlaps sf, expected separate memory"},
    {{{OUT, DATA_IS_NULL, 1}}, INVALID, "out has data NULL, expected memory for shape [5, 3]"},
};

/* sf f32 [5, 6], psum_layout int32 [2] (absent), out int32 [5, 2] with strides [1, 8] */
static const struct misuse packed[] = {
    {{{SF, NDIM, 0}}, INVALID, "sf has shape [], expected f32 [mn, sf_k] | f32 [groups, mn, sf_k]"},
    {{{SF, DTYPE, BF16}}, WRONG_DTYPE, "sf has dtype bf16, expected f32 [mn, sf_k] | f32 [groups, mn, sf_k]"},
    {{{PSUM_LAYOUT, IS_NULL, 0}, {PSUM_LAYOUT, DTYPE, I64}}, WRONG_DTYPE,
     "psum_layout has dtype i64, expected i32 [dim(psum_layout, 0)]"},
    {{{PSUM_LAYOUT, IS_NULL, 0}, {PSUM_LAYOUT, NDIM, 2}}, INVALID,
     "psum_layout has shape [2, 0], expected i32 [dim(psum_layout, 0)]"},
    {{{PSUM_LAYOUT, IS_NULL, 0}, {SF, NDIM, 3}, {OUT, NDIM, 3}}, INVALID,
     "psum_layout needs sf of two dimensions, got given(psum_layout) = true, rank(sf) = 3"},
    {{{OUT, SIZE_1, 6}}, INVALID,
     "out has shape [5, 6], expected [5, 2], as dg_get_mn_major_tma_aligned_packed_ue8m0_tensor_out() says"},
    {{{OUT, DTYPE, F32}}, WRONG_DTYPE,
     "out has dtype f32, expected i32, as dg_get_mn_major_tma_aligned_packed_ue8m0_tensor_out() says"},
};

/* sf f32 [5, 8], grouped_layout int32 [2], ks [64, 96], gran_k 32, out int32 [2, 8] */
static const struct misuse k_grouped_packed[] = {
    {{{SF, SIZE_0, 4}}, INVALID,
     "sf needs ceil(k_g / gran_k) rows for each group of ks_cpu, got has_ks = 1, sum_ceil(ks_cpu / gran_k) = 5, sf_k = 4, use_psum_layout = false"},
    {{{GROUPED_LAYOUT, IS_NULL, 1}}, INVALID, "grouped_layout is NULL, expected i32 [groups]"},
    {{{GROUPED_LAYOUT, NDIM, 2}}, INVALID, "grouped_layout has shape [2, 0], expected i32 [groups]"},
    {{{GROUPED_LAYOUT, DTYPE, F32}}, WRONG_DTYPE, "grouped_layout has dtype f32, expected i32 [groups]"},
    {{{GROUPED_LAYOUT, SIZE_0, 3}}, INVALID, "ks_cpu needs one entry per group, got has_ks = 1, len(ks_cpu) = 2, groups = 3"},
    {{{ARG, HAS_KS, 0}}, INVALID,
     "ks_cpu may be absent or empty only with use_psum_layout, got has_ks = 0, use_psum_layout = false"},
    {{{ARG, KS_LENGTH, 0}}, INVALID,
     "ks_cpu may be absent or empty only with use_psum_layout, got has_ks = 0, use_psum_layout = false"},
    {{{ARG, KS_LENGTH, 1}}, INVALID, "ks_cpu needs one entry per group, got has_ks = 1, len(ks_cpu) = 1, groups = 2"},
    {{{ARG, KS_IS_NULL, 1}}, INVALID, "ks_cpu is NULL"},
    {{{ARG, KS_0, -64}}, INVALID, "ks_cpu[0] is -64, expected 0 .. 1099511627776"},
    {{{ARG, KS_1, INT64_MAX}}, INVALID, "ks_cpu[1] is 9223372036854775807, expected 0 .. 1099511627776"},
    {{{ARG, KS_1, 160}}, INVALID,
     "sf needs ceil(k_g / gran_k) rows for each group of ks_cpu, got has_ks = 1, sum_ceil(ks_cpu / gran_k) = 7, sf_k = 5, use_psum_layout = false"},
    {{{ARG, GRAN_K, 0}}, INVALID, "gran_k is 0, expected 32 or 128"},
    {{{ARG, GRAN_K, 64}}, INVALID, "gran_k is 64, expected 32 or 128"},
    {{{ARG, K_ALIGNMENT, 0}}, INVALID, "k_alignment is 0, expected 1 .. 1048576"},
    {{{OUT, SIZE_0, 3}}, INVALID,
     "out has shape [3, 8], expected [2, 8], as dg_get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor_out() says"},
};

/* sf f32 [5, 3], mn 5, k 384, recipe (1, 128), out f32 [5, 3] with strides [1, 8] */
static const struct misuse transform[] = {
    {{{ARG, MN, -5}}, INVALID, "mn is -5, expected 0 .. 2147483647"},
    {{{ARG, MN, INT64_MAX}}, INVALID, "mn is 9223372036854775807, expected 0 .. 2147483647"},
    {{{ARG, MN, 6}}, INVALID, "sf has shape [5, 3], expected [6, 3] = [ceil(mn / gran_mn), ceil(k / gran_k)]"},
    {{{ARG, K, 256}}, INVALID, "sf has shape [5, 3], expected [5, 2] = [ceil(mn / gran_mn), ceil(k / gran_k)]"},
    {{{ARG, RECIPE_LENGTH, 0}}, INVALID, "recipe has length 0, expected 2 or 3"},
    {{{ARG, RECIPE_LENGTH, 1}}, INVALID, "recipe has length 1, expected 2 or 3"},
    {{{ARG, RECIPE_LENGTH, 3}}, INVALID, "recipe[2] is 0, expected 1 .. 1073741824"},
    {{{ARG, RECIPE_LENGTH, 3}, {ARG, RECIPE_2, 128}}, INVALID,
     "a recipe of three needs is_sfa, got len(recipe) = 3, given(is_sfa) = false"},
    {{{ARG, RECIPE_IS_NULL, 1}}, INVALID, "recipe is NULL"},
    {{{ARG, RECIPE_0, 0}}, INVALID, "recipe[0] is 0, expected 1 .. 1073741824"},
    {{{ARG, RECIPE_1, -1}}, INVALID, "recipe[1] is -1, expected 1 .. 1073741824"},
    {{{ARG, RECIPE_1, 32}}, INVALID, "sf has shape [5, 3], expected [5, 12] = [ceil(mn / gran_mn), ceil(k / gran_k)]"},
    {{{ARG, HAS_NUM_GROUPS, 1}}, INVALID,
     "sf has shape [5, 3], expected [1, 5, 3] = [groups, ceil(mn / gran_mn), ceil(k / gran_k)]"},
    {{{ARG, HAS_NUM_GROUPS, 1}, {ARG, NUM_GROUPS, -1}}, INVALID, "num_groups is -1, expected >= 0"},
    {{{SF, DTYPE, U8}}, WRONG_DTYPE,
     "sf has dtype u8, expected f32 [ceil(mn / gran_mn), ceil(k / gran_k)] when not given(num_groups) | "
     "i32 [ceil(mn / gran_mn), ceil(k / (gran_k * 4))] when not given(num_groups)"},
    {{{SF, DTYPE, I32}}, INVALID, "sf has shape [5, 3], expected [5, 1] = [ceil(mn / gran_mn), ceil(k / (gran_k * 4))]"},
    {{{OUT, STRIDE_1, 5}}, INVALID, "out has strides [1, 5], expected [1, 8], as dg_transform_sf_into_required_layout_out() says"},
};

/* ---- numbers ------------------------------------------------------------------------------------------------------- */

static const struct misuse tma_aligned_size[] = {
    {{{ARG, VALUE_0, -1}}, INVALID, "x is -1, expected 0 .. 4611686018427387904"},
    {{{ARG, VALUE_0, INT64_MAX}}, INVALID, "x is 9223372036854775807, expected 0 .. 4611686018427387904"},
    {{{ARG, VALUE_1, 3}}, INVALID, "element_size is 3, expected 1, 2, 4, 8 or 16"},
    {{{ARG, VALUE_1, 0}}, INVALID, "element_size is 0, expected 1, 2, 4, 8 or 16"},
    {{{ARG, VALUE_1, 32}}, INVALID, "element_size is 32, expected 1, 2, 4, 8 or 16"},
    {{{ARG, RESULT_IS_NULL, 1}}, INVALID, "aligned is NULL"},
};

static const struct misuse num_sms[] = {
    {{{ARG, VALUE_0, 0}}, INVALID, "new_num_sms is 0, expected 1 .. 1024"},
    {{{ARG, VALUE_0, -1}}, INVALID, "new_num_sms is -1, expected 1 .. 1024"},
    {{{ARG, VALUE_0, 1000000000}}, INVALID, "new_num_sms is 1000000000, expected 1 .. 1024"},
};

static const struct misuse tc_util[] = {
    {{{ARG, VALUE_0, -1}}, INVALID, "new_tc_util is -1, expected 0 .. 100"},
    {{{ARG, VALUE_0, 101}}, INVALID, "new_tc_util is 101, expected 0 .. 100"},
};

static const struct misuse mk_alignment[] = {
    {{{ARG, VALUE_0, 0}}, INVALID, "new_value is 0, expected 1 .. 65536"},
    {{{ARG, VALUE_0, 65537}}, INVALID, "new_value is 65537, expected 1 .. 65536"},
};

static const struct misuse block_size_multiple_of[] = {
    {{{ARG, VALUE_0, 0}}, INVALID, "new_value[0] is 0, expected 1 .. 1024"},
    {{{ARG, VALUE_1, -64}}, INVALID, "new_value[1] is -64, expected 1 .. 1024"},
    {{{ARG, VALUE_1, 1025}}, INVALID, "new_value[1] is 1025, expected 1 .. 1024"},
};

/* ---- m_grouped_bf16_gemm_nt_contiguous: a [4, 256], b [2, 6, 256], d [4, 6], grouped_layout [4] ------------------------------- */

static const struct misuse m_grouped[] = {
    {{{GROUPED_LAYOUT, SIZE_0, 3}}, INVALID, "grouped_layout has m = 3, expected 4 to match a"},
    {{{GROUPED_LAYOUT, DTYPE, I64}}, WRONG_DTYPE, "grouped_layout has dtype i64, expected i32 [m] when not use_psum_layout"},
    {{{B, NDIM, 2}}, INVALID, "b has shape [2, 6], expected bf16 [groups, n, k]"},
    {{{ARG, USE_PSUM_LAYOUT, 1}}, INVALID, "grouped_layout has groups = 4, expected 2 to match b"},
};

/* ---- a call -------------------------------------------------------------------------------------------------------- */

enum { MAX_NDIM = 9, GUARD_BYTES = 64 };

/* A tensor with memory of its own. */
struct operand {
    dg_tensor tensor;
    int64_t shape[MAX_NDIM];
    int64_t strides[MAX_NDIM];
    unsigned char *memory; /* of `bytes` bytes */
    unsigned char *before; /* what it held before the call */
    size_t bytes;
    bool is_null; /* the call gets NULL for the tensor */
};

struct call {
    struct operand operands[TENSORS];
    int64_t arguments[ARGUMENTS];
};

static const dg_dtype dtypes[] = {
    [BF16] = {DG_BF16},     [F32] = {DG_F32},       [F16] = {DG_F16},         [F64] = {DG_F64}, [F8E4M3] = {DG_F8E4M3},
    [F8E5M2] = {DG_F8E5M2}, [F4E2M1] = {DG_F4E2M1}, [F4E2M1X2] = {DG_F4E2M1X2}, [I64] = {DG_I64}, [I32] = {DG_I32},
    [U8] = {DG_U8},         [BOOL] = {DG_BOOL},     [F32X2] = {2, 32, 2},     [UNKNOWN] = {99, 8, 1},
};

/* A compact tensor with memory of exactly its size, or for d with guard words on both sides. */
static void add_tensor(struct call *call, enum target target, enum dtype dtype, int ndim, const int64_t *shape)
{
    struct operand *operand = &call->operands[target];
    free(operand->memory); /* of a tensor that this one replaces */
    free(operand->before);
    int64_t elements = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        operand->shape[i] = shape[i];
        operand->strides[i] = elements;
        elements *= shape[i];
    }
    const bool is_written = target == D;
    const size_t bytes = (size_t)elements * dtypes[dtype].bits / 8;
    operand->bytes = bytes + (is_written ? 2 * GUARD_BYTES : 0);
    operand->memory = malloc(operand->bytes);
    operand->before = malloc(operand->bytes);
    static const unsigned char one[4] = {0x00, 0x00, 0x80, 0x3f}; /* 1 as f32: a scale that can be packed; finite in every dtype */
    for (size_t i = 0; i < operand->bytes; i++) {
        operand->memory[i] = one[i % 4];
    }
    operand->tensor = (dg_tensor){
        .data = operand->memory + (is_written ? GUARD_BYTES : 0),
        .device = {DG_CPU, 0},
        .ndim = ndim,
        .dtype = dtypes[dtype],
        .shape = operand->shape,
        .strides = operand->strides,
    };
}

static void add_matrix(struct call *call, enum target target, enum dtype dtype, int64_t rows, int64_t columns)
{
    add_tensor(call, target, dtype, 2, (const int64_t[]){rows, columns});
}

/* out, MN-major: [rows, columns] with strides [1, pitch]. */
static void add_mn_major(struct call *call, enum dtype dtype, int64_t rows, int64_t columns, int64_t pitch)
{
    add_matrix(call, OUT, dtype, pitch, columns); /* memory for all columns */
    call->operands[OUT].shape[0] = rows;
    call->operands[OUT].strides[0] = 1;
    call->operands[OUT].strides[1] = pitch;
}

static void edit_call(struct call *call, const struct edit *edit)
{
    if (edit->target == ARG) {
        call->arguments[edit->field] = edit->value;
        return;
    }
    struct operand *operand = &call->operands[edit->target];
    dg_tensor *tensor = &operand->tensor;
    switch ((enum field)edit->field) {
    case NO_EDIT: break;
    case IS_NULL: operand->is_null = edit->value != 0; break;
    case DATA_IS_NULL: tensor->data = NULL; break;
    case SHAPE_IS_NULL: tensor->shape = NULL; break;
    case STRIDES_IS_NULL: tensor->strides = NULL; break;
    case NDIM: tensor->ndim = (int32_t)edit->value; break;
    case SIZE_0:
    case SIZE_1:
    case SIZE_2: operand->shape[edit->field - SIZE_0] = edit->value; break;
    case STRIDE_0:
    case STRIDE_1:
    case STRIDE_2: operand->strides[edit->field - STRIDE_0] = edit->value; break;
    case DTYPE: tensor->dtype = dtypes[edit->value]; break;
    case DEVICE_TYPE: tensor->device.type = (int32_t)edit->value; break;
    case DEVICE_ID: tensor->device.id = (int32_t)edit->value; break;
    case BYTE_OFFSET: tensor->byte_offset = (uint64_t)edit->value; break;
    case MEMORY_OF: tensor->data = call->operands[edit->value].tensor.data; break;
    }
}

static dg_tensor *tensor_of(struct call *call, enum target target)
{
    struct operand *operand = &call->operands[target];
    return operand->is_null || operand->memory == NULL ? NULL : &operand->tensor;
}

static size_t struct_size(const struct call *call, size_t size)
{
    return (size_t)((int64_t)size + call->arguments[STRUCT_SIZE]);
}

/* ---- the operators -------------------------------------------------------------------------------------------------- */

typedef void prepare_function(struct call *call);
typedef dg_status run_function(struct call *call);

static void prepare_recipes(struct call *call)
{
    const int64_t arguments[ARGUMENTS] = {[RECIPE_0] = 1,     [RECIPE_1] = 128,   [RECIPE_2] = 128,  [RECIPE_A_0] = 1,
                                          [RECIPE_A_1] = 128, [RECIPE_B_0] = 128, [RECIPE_B_1] = 128};
    memcpy(call->arguments, arguments, sizeof(arguments));
}

static void prepare_fp8_gemm_nt(struct call *call)
{
    add_matrix(call, A, F8E4M3, 4, 256);
    add_matrix(call, SFA, F32, 4, 2);
    add_matrix(call, B, F8E4M3, 6, 256);
    add_matrix(call, SFB, F32, 1, 2);
    add_matrix(call, D, BF16, 4, 6);
    add_matrix(call, C, BF16, 4, 6);
    prepare_recipes(call);
}

static void prepare_fp8_gemm_nn(struct call *call)
{
    prepare_fp8_gemm_nt(call);
    add_matrix(call, B, F8E4M3, 256, 6);
    add_matrix(call, SFB, F32, 2, 1);
}

static void prepare_fp8_gemm_tn(struct call *call)
{
    prepare_fp8_gemm_nn(call);
    add_matrix(call, A, F8E4M3, 256, 4);
    add_matrix(call, SFA, F32, 2, 4);
}

static void prepare_fp8_gemm_tt(struct call *call)
{
    prepare_fp8_gemm_nt(call);
    add_matrix(call, A, F8E4M3, 256, 4);
    add_matrix(call, SFA, F32, 2, 4);
}

static dg_status run_fp8_gemm_nt(struct call *call)
{
    const int64_t *arg = call->arguments;
    dg_fp8_fp4_gemm_nt_options options = DG_FP8_FP4_GEMM_NT_OPTIONS_INIT;
    options.struct_size = struct_size(call, options.struct_size);
    options.c = tensor_of(call, C);
    options.recipe.has = arg[HAS_RECIPE] != 0;
    memcpy(options.recipe.value, &arg[RECIPE_0], sizeof(options.recipe.value));
    options.recipe_a.has = arg[HAS_RECIPE_A] != 0;
    memcpy(options.recipe_a.value, &arg[RECIPE_A_0], sizeof(options.recipe_a.value));
    options.recipe_b.has = arg[HAS_RECIPE_B] != 0;
    memcpy(options.recipe_b.value, &arg[RECIPE_B_0], sizeof(options.recipe_b.value));
    return dg_fp8_fp4_gemm_nt(NULL, tensor_of(call, A), tensor_of(call, SFA), tensor_of(call, B), tensor_of(call, SFB),
                              tensor_of(call, D), &options);
}

static dg_status run_fp8_gemm_nn(struct call *call)
{
    return dg_fp8_fp4_gemm_nn(NULL, tensor_of(call, A), tensor_of(call, SFA), tensor_of(call, B), tensor_of(call, SFB),
                              tensor_of(call, D), NULL);
}

static dg_status run_fp8_gemm_tn(struct call *call)
{
    return dg_fp8_fp4_gemm_tn(NULL, tensor_of(call, A), tensor_of(call, SFA), tensor_of(call, B), tensor_of(call, SFB),
                              tensor_of(call, D), NULL);
}

static dg_status run_fp8_gemm_tt(struct call *call)
{
    return dg_fp8_fp4_gemm_tt(NULL, tensor_of(call, A), tensor_of(call, SFA), tensor_of(call, B), tensor_of(call, SFB),
                              tensor_of(call, D), NULL);
}

static void prepare_bf16_gemm_nt(struct call *call)
{
    add_matrix(call, A, BF16, 4, 256);
    add_matrix(call, B, BF16, 6, 256);
    add_matrix(call, D, F32, 4, 6);
    add_matrix(call, C, F32, 4, 6);
}

static void prepare_bf16_gemm_nn(struct call *call)
{
    prepare_bf16_gemm_nt(call);
    add_matrix(call, B, BF16, 256, 6);
}

static void prepare_bf16_gemm_tn(struct call *call)
{
    prepare_bf16_gemm_nn(call);
    add_matrix(call, A, BF16, 256, 4);
}

static void prepare_bf16_gemm_tt(struct call *call)
{
    prepare_bf16_gemm_nt(call);
    add_matrix(call, A, BF16, 256, 4);
}

static dg_status run_bf16_gemm_nt(struct call *call)
{
    dg_bf16_gemm_nt_options options = DG_BF16_GEMM_NT_OPTIONS_INIT;
    options.struct_size = struct_size(call, options.struct_size);
    options.c = tensor_of(call, C);
    return dg_bf16_gemm_nt(NULL, tensor_of(call, A), tensor_of(call, B), tensor_of(call, D), &options);
}

static dg_status run_bf16_gemm_nn(struct call *call)
{
    return dg_bf16_gemm_nn(NULL, tensor_of(call, A), tensor_of(call, B), tensor_of(call, D), NULL);
}

static dg_status run_bf16_gemm_tn(struct call *call)
{
    return dg_bf16_gemm_tn(NULL, tensor_of(call, A), tensor_of(call, B), tensor_of(call, D), NULL);
}

static dg_status run_bf16_gemm_tt(struct call *call)
{
    return dg_bf16_gemm_tt(NULL, tensor_of(call, A), tensor_of(call, B), tensor_of(call, D), NULL);
}

static void prepare_skip_head_mid(struct call *call)
{
    prepare_fp8_gemm_nt(call);
    add_matrix(call, D, BF16, 4, 8);
    call->arguments[LEFT] = 2;
    call->arguments[MID] = 1;
    call->arguments[RIGHT] = 1;
}

static dg_status run_skip_head_mid(struct call *call)
{
    const int64_t *arg = call->arguments;
    dg_fp8_gemm_nt_skip_head_mid_options options = DG_FP8_GEMM_NT_SKIP_HEAD_MID_OPTIONS_INIT;
    options.recipe.has = arg[HAS_RECIPE] != 0;
    memcpy(options.recipe.value, &arg[RECIPE_0], sizeof(options.recipe.value));
    return dg_fp8_gemm_nt_skip_head_mid(NULL, tensor_of(call, A), tensor_of(call, SFA), tensor_of(call, B), tensor_of(call, SFB),
                                        tensor_of(call, D), &arg[LEFT], &options);
}

static void prepare_mn_major(struct call *call)
{
    add_matrix(call, SF, F32, 5, 3);
    add_mn_major(call, F32, 5, 3, 8);
}

static dg_status run_mn_major(struct call *call)
{
    return dg_get_mn_major_tma_aligned_tensor(NULL, tensor_of(call, SF), tensor_of(call, OUT));
}

static void prepare_packed(struct call *call)
{
    add_matrix(call, SF, F32, 5, 6);
    add_tensor(call, PSUM_LAYOUT, I32, 1, (const int64_t[]){2});
    call->operands[PSUM_LAYOUT].is_null = true;
    add_mn_major(call, I32, 5, 2, 8);
}

static dg_status run_packed(struct call *call)
{
    dg_get_mn_major_tma_aligned_packed_ue8m0_tensor_options options = DG_GET_MN_MAJOR_TMA_ALIGNED_PACKED_UE8M0_TENSOR_OPTIONS_INIT;
    options.psum_layout = tensor_of(call, PSUM_LAYOUT);
    return dg_get_mn_major_tma_aligned_packed_ue8m0_tensor(NULL, tensor_of(call, SF), tensor_of(call, OUT), &options);
}

static void prepare_k_grouped_packed(struct call *call)
{
    add_matrix(call, SF, F32, 5, 8);
    add_tensor(call, GROUPED_LAYOUT, I32, 1, (const int64_t[]){2});
    add_matrix(call, OUT, I32, 2, 8);
    const int64_t arguments[ARGUMENTS] = {[HAS_KS] = 1, [KS_0] = 64, [KS_1] = 96, [KS_LENGTH] = 2, [GRAN_K] = 32, [K_ALIGNMENT] = 128};
    memcpy(call->arguments, arguments, sizeof(arguments));
}

static dg_status run_k_grouped_packed(struct call *call)
{
    const int64_t *arg = call->arguments;
    const dg_ints ks = {arg[KS_IS_NULL] ? NULL : &arg[KS_0], (size_t)arg[KS_LENGTH]};
    return dg_get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(NULL, tensor_of(call, SF), tensor_of(call, GROUPED_LAYOUT),
                                                                     arg[HAS_KS] ? &ks : NULL, arg[GRAN_K], arg[K_ALIGNMENT],
                                                                     tensor_of(call, OUT), NULL);
}

static void prepare_transform(struct call *call)
{
    add_matrix(call, SF, F32, 5, 3);
    add_mn_major(call, F32, 5, 3, 8);
    const int64_t arguments[ARGUMENTS] = {[MN] = 5, [K] = 384, [RECIPE_0] = 1, [RECIPE_1] = 128, [RECIPE_LENGTH] = 2, [NUM_GROUPS] = 1};
    memcpy(call->arguments, arguments, sizeof(arguments));
}

static dg_status run_transform(struct call *call)
{
    const int64_t *arg = call->arguments;
    const dg_ints recipe = {arg[RECIPE_IS_NULL] ? NULL : &arg[RECIPE_0], (size_t)arg[RECIPE_LENGTH]};
    dg_transform_sf_into_required_layout_options options = DG_TRANSFORM_SF_INTO_REQUIRED_LAYOUT_OPTIONS_INIT;
    options.num_groups.has = arg[HAS_NUM_GROUPS] != 0;
    options.num_groups.value = arg[NUM_GROUPS];
    return dg_transform_sf_into_required_layout(NULL, tensor_of(call, SF), arg[MN], arg[K], recipe, tensor_of(call, OUT), &options);
}

static void prepare_tma_aligned_size(struct call *call)
{
    call->arguments[VALUE_0] = 5;
    call->arguments[VALUE_1] = 4;
}

static dg_status run_tma_aligned_size(struct call *call)
{
    int64_t aligned = 0;
    return dg_get_tma_aligned_size(NULL, call->arguments[VALUE_0], call->arguments[VALUE_1],
                                   call->arguments[RESULT_IS_NULL] ? NULL : &aligned);
}

static void prepare_setting(struct call *call)
{
    call->arguments[VALUE_0] = 64;
    call->arguments[VALUE_1] = 128;
}

static dg_status run_set_num_sms(struct call *call)
{
    return dg_set_num_sms(NULL, call->arguments[VALUE_0]);
}

static dg_status run_set_tc_util(struct call *call)
{
    return dg_set_tc_util(NULL, call->arguments[VALUE_0]);
}

static dg_status run_set_mk_alignment(struct call *call)
{
    return dg_set_mk_alignment_for_contiguous_layout(NULL, call->arguments[VALUE_0]);
}

static dg_status run_set_block_size_multiple_of(struct call *call)
{
    return dg_set_block_size_multiple_of(NULL, &call->arguments[VALUE_0]);
}

static void prepare_m_grouped(struct call *call)
{
    add_matrix(call, A, BF16, 4, 256);
    add_tensor(call, B, BF16, 3, (const int64_t[]){2, 6, 256});
    add_matrix(call, D, BF16, 4, 6);
    add_tensor(call, GROUPED_LAYOUT, I32, 1, (const int64_t[]){4});
    memset(call->operands[GROUPED_LAYOUT].memory, 0, call->operands[GROUPED_LAYOUT].bytes); /* all rows are of group 0 */
}

static dg_status run_m_grouped(struct call *call)
{
    dg_m_grouped_bf16_gemm_nt_contiguous_options options = DG_M_GROUPED_BF16_GEMM_NT_CONTIGUOUS_OPTIONS_INIT;
    options.use_psum_layout = call->arguments[USE_PSUM_LAYOUT] != 0;
    return dg_m_grouped_bf16_gemm_nt_contiguous(NULL, tensor_of(call, A), tensor_of(call, B), tensor_of(call, D),
                                                tensor_of(call, GROUPED_LAYOUT), &options);
}

/* ---- the tables, and how a row is judged ---------------------------------------------------------------------------- */

struct table {
    const char *op;
    prepare_function *prepare;
    run_function *run;
    dg_status valid; /* of the call without edits */
    const struct misuse *rows;
    size_t count;
};

#define ROWS(rows) rows, sizeof(rows) / sizeof((rows)[0])

static const struct table tables[] = {
    {"fp8_fp4_gemm_nt", prepare_fp8_gemm_nt, run_fp8_gemm_nt, DG_OK, ROWS(fp8_gemm_nt)},
    {"fp8_fp4_gemm_nn", prepare_fp8_gemm_nn, run_fp8_gemm_nn, DG_OK, ROWS(fp8_gemm_nn)},
    {"fp8_fp4_gemm_tn", prepare_fp8_gemm_tn, run_fp8_gemm_tn, DG_OK, ROWS(fp8_gemm_tn)},
    {"fp8_fp4_gemm_tt", prepare_fp8_gemm_tt, run_fp8_gemm_tt, DG_OK, ROWS(fp8_gemm_tt)},
    {"bf16_gemm_nt", prepare_bf16_gemm_nt, run_bf16_gemm_nt, DG_OK, ROWS(bf16_gemm_nt)},
    {"bf16_gemm_nn", prepare_bf16_gemm_nn, run_bf16_gemm_nn, DG_OK, ROWS(bf16_gemm_nn)},
    {"bf16_gemm_tn", prepare_bf16_gemm_tn, run_bf16_gemm_tn, DG_OK, ROWS(bf16_gemm_tn)},
    {"bf16_gemm_tt", prepare_bf16_gemm_tt, run_bf16_gemm_tt, DG_OK, ROWS(bf16_gemm_tt)},
    {"fp8_gemm_nt_skip_head_mid", prepare_skip_head_mid, run_skip_head_mid, DG_OK, ROWS(fp8_gemm_nt_skip_head_mid)},
    {"get_mn_major_tma_aligned_tensor", prepare_mn_major, run_mn_major, DG_OK, ROWS(mn_major)},
    {"get_mn_major_tma_aligned_packed_ue8m0_tensor", prepare_packed, run_packed, DG_OK, ROWS(packed)},
    {"get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor", prepare_k_grouped_packed, run_k_grouped_packed, DG_OK,
     ROWS(k_grouped_packed)},
    {"transform_sf_into_required_layout", prepare_transform, run_transform, DG_OK, ROWS(transform)},
    {"get_tma_aligned_size", prepare_tma_aligned_size, run_tma_aligned_size, DG_OK, ROWS(tma_aligned_size)},
    {"set_num_sms", prepare_setting, run_set_num_sms, DG_OK, ROWS(num_sms)},
    {"set_tc_util", prepare_setting, run_set_tc_util, DG_OK, ROWS(tc_util)},
    {"set_mk_alignment_for_contiguous_layout", prepare_setting, run_set_mk_alignment, DG_OK, ROWS(mk_alignment)},
    {"set_block_size_multiple_of", prepare_setting, run_set_block_size_multiple_of, DG_OK, ROWS(block_size_multiple_of)},
    {"m_grouped_bf16_gemm_nt_contiguous", prepare_m_grouped, run_m_grouped, DG_OK, ROWS(m_grouped)},
};

static const struct table with_cuda = {"fp8_fp4_gemm_nt", prepare_fp8_gemm_nt, run_fp8_gemm_nt, DG_OK, ROWS(other_device)};
static const struct table without_cuda = {"fp8_fp4_gemm_nt", prepare_fp8_gemm_nt, run_fp8_gemm_nt, DG_OK,
                                          ROWS(other_device_without_cuda)};

static void remember_memory(struct call *call)
{
    for (int i = 0; i < TENSORS; i++) {
        struct operand *operand = &call->operands[i];
        if (operand->memory != NULL) {
            memcpy(operand->before, operand->memory, operand->bytes);
        }
    }
}

static bool is_memory_untouched(const struct call *call)
{
    for (int i = 0; i < TENSORS; i++) {
        const struct operand *operand = &call->operands[i];
        if (operand->memory != NULL && memcmp(operand->before, operand->memory, operand->bytes) != 0) {
            return false;
        }
    }
    return true;
}

static void free_call(struct call *call)
{
    for (int i = 0; i < TENSORS; i++) {
        free(call->operands[i].memory);
        free(call->operands[i].before);
    }
}

/* The call of a table without edits does what the table says: the rows fail for the reason they give. */
static bool is_valid_call_accepted(const struct table *table)
{
    struct call call = {0};
    table->prepare(&call);
    const dg_status status = table->run(&call);
    free_call(&call);
    if (status == table->valid) {
        return true;
    }
    printf("%s: the valid call gives %s: %s\n", table->op, dg_status_name(status), dg_last_error());
    return false;
}

/* "<op>: <text>", in which the "<address>" of the tensor that the first edit changes is put in. */
static void expect_text(char *expected, size_t size, const char *op, const struct misuse *misuse, const struct call *call)
{
    static const char mark[] = "<address>";
    const char *found = strstr(misuse->text, mark);
    if (found == NULL) {
        snprintf(expected, size, "%s: %s", op, misuse->text);
    } else {
        snprintf(expected, size, "%s: %.*s%p%s", op, (int)(found - misuse->text), misuse->text,
                 call->operands[misuse->edits[0].target].tensor.data, found + strlen(mark));
    }
}

static bool is_misuse_refused(const struct table *table, size_t row)
{
    const struct misuse *misuse = &table->rows[row];
    struct call call = {0};
    table->prepare(&call);
    for (size_t i = 0; i < sizeof(misuse->edits) / sizeof(misuse->edits[0]); i++) {
        edit_call(&call, &misuse->edits[i]);
    }
    remember_memory(&call);
    const dg_status status = table->run(&call);
    const bool is_untouched = is_memory_untouched(&call);
    char expected[1024];
    expect_text(expected, sizeof(expected), table->op, misuse, &call);
    free_call(&call);
    if (status == misuse->status && strcmp(dg_last_error(), expected) == 0 && is_untouched) {
        return true;
    }
    printf("%s, row %zu%s\n  got      %s  %s\n  expected %s  %s\n", table->op, row, is_untouched ? "" : ": memory was written",
           dg_status_name(status), dg_last_error(), dg_status_name(misuse->status), expected);
    return false;
}

struct tally {
    size_t calls;
    size_t failures;
};

static void run_table(const struct table *table, struct tally *tally)
{
    tally->failures += !is_valid_call_accepted(table);
    for (size_t row = 0; row < table->count; row++) {
        tally->failures += !is_misuse_refused(table, row);
    }
    tally->calls += table->count;
}

int main(void)
{
    struct tally tally = {0, 0};
    for (size_t t = 0; t < sizeof(tables) / sizeof(tables[0]); t++) {
        run_table(&tables[t], &tally);
    }
    run_table(dg_has_cuda() ? &with_cuda : &without_cuda, &tally);
    printf("%zu malformed calls, %zu failures\n", tally.calls, tally.failures);
    return tally.failures == 0 ? 0 : 1;
}
