/* The helpers of generated checks: what each one refuses, in which words, and what a view looks like. */
#include "check.h"
#include "core/check.h"

#include <math.h>

static const struct dg_alternative any_float[] = {
    {DG_TYPE_BIT(DG_TYPE_BF16) | DG_TYPE_BIT(DG_TYPE_F32), 2, "bf16 | f32 [m, k]"},
    {DG_TYPE_BIT(DG_TYPE_F4E2M1), 2, "f4e2m1 [m, k]"},
    {DG_TYPE_BIT(DG_TYPE_I8), 3, "i8 [g, m, k]"},
};

static uint8_t memory[4096];

static dg_tensor tensor_of(dg_dtype dtype, int32_t ndim, int64_t *shape, int64_t *strides)
{
    return (dg_tensor){memory, {DG_CPU, 0}, ndim, dtype, shape, strides, 0};
}

/* Takes a tensor as the argument x, and gives the error text, "" when there is none. */
static const char *take(const dg_tensor *tensor, unsigned rules, uint32_t enabled, struct dg_view *view)
{
    struct dg_checker chk = dg_checker_begin("op", NULL);
    const bool holds = dg_check_tensor(&chk, "x", tensor, rules, any_float, 3, enabled, view);
    CHECK_INT(holds, chk.status == DG_OK);
    return holds ? "" : dg_last_error();
}

static void check_views(void)
{
    struct dg_view view;
    int64_t shape[3] = {4, 6, 2};
    int64_t strides[3] = {10, 1, 7};

    dg_tensor x = tensor_of((dg_dtype){DG_F32}, 2, shape, NULL);
    x.byte_offset = 8;
    CHECK_TEXT(take(&x, DG_REQUIRED, UINT32_MAX, &view), "");
    CHECK(view.is_given && view.data == memory + 8 && view.type == DG_TYPE_F32 && view.alternative == 0);
    CHECK(view.ndim == 2 && view.shape[0] == 4 && view.shape[1] == 6 && view.strides[0] == 6 && view.strides[1] == 1);

    x.strides = strides;
    CHECK_TEXT(take(&x, DG_REQUIRED, UINT32_MAX, &view), "");
    CHECK(view.strides[0] == 10 && view.strides[1] == 1);

    CHECK_TEXT(take(NULL, DG_OPTIONAL, UINT32_MAX, &view), "");
    CHECK(!view.is_given && view.data == NULL && view.ndim == 0);
}

static void check_fp4_views(void)
{
    struct dg_view view;
    int64_t shape[3] = {4, 6, 2};

    /* bytes, and pairs: 4 x 6 of them are 4 x 12 elements */
    const dg_dtype pair_types[] = {{DG_U8}, {DG_I8}, {DG_F4E2M1X2}};
    for (int i = 0; i < 3; i++) {
        dg_tensor x = tensor_of(pair_types[i], 2, shape, NULL);
        CHECK_TEXT(take(&x, DG_REQUIRED, UINT32_MAX, &view), "");
        CHECK(view.type == DG_TYPE_F4E2M1 && view.alternative == 1);
        CHECK(view.shape[0] == 4 && view.shape[1] == 12 && view.strides[0] == 12 && view.strides[1] == 1);
    }
    /* elements */
    dg_tensor x = tensor_of((dg_dtype){DG_F4E2M1}, 2, shape, NULL);
    CHECK_TEXT(take(&x, DG_REQUIRED, UINT32_MAX, &view), "");
    CHECK(view.shape[0] == 4 && view.shape[1] == 6 && view.strides[0] == 6 && view.strides[1] == 1);

    /* packed along the first dimension */
    int64_t transposed[2] = {1, 8};
    x = tensor_of((dg_dtype){DG_U8}, 2, shape, transposed);
    CHECK_TEXT(take(&x, DG_REQUIRED, UINT32_MAX, &view), "");
    CHECK(view.shape[0] == 8 && view.shape[1] == 6 && view.strides[0] == 1 && view.strides[1] == 16);

    /* of two dimensions of stride 1, the last; one of size 1 stands in when there is none */
    int64_t ones[2] = {1, 1};
    int64_t column[2] = {4, 1};
    x = tensor_of((dg_dtype){DG_U8}, 2, column, ones);
    CHECK_TEXT(take(&x, DG_REQUIRED, UINT32_MAX, &view), "");
    CHECK(view.shape[0] == 4 && view.shape[1] == 2 && view.strides[0] == 2 && view.strides[1] == 1);
    int64_t odd[2] = {3, 7};
    x = tensor_of((dg_dtype){DG_U8}, 2, column, odd);
    CHECK_TEXT(take(&x, DG_REQUIRED, UINT32_MAX, &view), "");
    CHECK(view.shape[1] == 2 && view.strides[0] == 6 && view.strides[1] == 1);

    int64_t spread[2] = {12, 2};
    x = tensor_of((dg_dtype){DG_U8}, 2, shape, spread);
    CHECK_TEXT(take(&x, DG_REQUIRED, UINT32_MAX, &view),
               "op: x has strides [12, 2], expected 1 along the dimension that holds the pairs of f4e2m1");
    int64_t uneven[2] = {7, 1};
    x = tensor_of((dg_dtype){DG_F4E2M1}, 2, shape, uneven);
    CHECK_TEXT(take(&x, DG_REQUIRED, UINT32_MAX, &view),
               "op: x has strides [7, 1], expected even ones except along the dimension that holds the pairs of f4e2m1");

    /* plain bytes where the contract has them */
    x = tensor_of((dg_dtype){DG_I8}, 3, shape, NULL);
    CHECK_TEXT(take(&x, DG_REQUIRED, UINT32_MAX, &view), "");
    CHECK(view.type == DG_TYPE_I8 && view.alternative == 2 && view.shape[2] == 2);
}

static void check_tensor_errors(void)
{
    struct dg_view view;
    int64_t shape[3] = {4, 6, 2};
    CHECK_TEXT(take(NULL, DG_REQUIRED, UINT32_MAX, &view),
               "op: x is NULL, expected bf16 | f32 [m, k] | f4e2m1 [m, k] | i8 [g, m, k]");

    dg_tensor x = tensor_of((dg_dtype){DG_F16}, 2, shape, NULL);
    CHECK_TEXT(take(&x, DG_REQUIRED, 1, &view), "op: x has dtype f16, expected bf16 | f32 [m, k]");
    x.dtype = (dg_dtype){99, 8, 1};
    CHECK_TEXT(take(&x, DG_REQUIRED, 1, &view), "op: x has dtype {code 99, bits 8, lanes 1}, expected bf16 | f32 [m, k]");
    x = tensor_of((dg_dtype){DG_F32}, 3, shape, NULL);
    CHECK_TEXT(take(&x, DG_REQUIRED, 1, &view), "op: x has shape [4, 6, 2], expected bf16 | f32 [m, k]");
    CHECK_TEXT(take(&x, DG_RANK_LATER, 1, &view), ""); /* one alternative is f32: dg_check_shape speaks of its rank */
    x.ndim = 9;
    CHECK_TEXT(take(&x, DG_REQUIRED, 1, &view), "op: x has ndim = 9, expected 0 to 8");
    x.ndim = 2;
    x.shape = NULL;
    CHECK_TEXT(take(&x, DG_REQUIRED, 1, &view), "op: x has shape NULL, expected 2 sizes");
    x.shape = shape;
    shape[1] = -6;
    CHECK_TEXT(take(&x, DG_REQUIRED, 1, &view), "op: x has shape [4, -6], expected no negative size");
    shape[1] = INT64_MAX / 2;
    CHECK_CONTAINS(take(&x, DG_REQUIRED, 1, &view), "too large for 64-bit offsets");
    shape[1] = 6;
    int64_t far[2] = {INT64_MIN, 1};
    x.strides = far;
    CHECK_CONTAINS(take(&x, DG_REQUIRED, 1, &view), "strides [-9223372036854775808, 1], too large for 64-bit offsets");
    shape[0] = 1; /* never taken */
    CHECK_TEXT(take(&x, DG_REQUIRED, 1, &view), "");
    shape[0] = 4;
    x.strides = NULL;
    x.byte_offset = 2;
    CHECK_CONTAINS(take(&x, DG_REQUIRED, 1, &view), "+ 2, expected an address that is a multiple of 4");
    x.byte_offset = 0;
    x.data = NULL;
    CHECK_TEXT(take(&x, DG_REQUIRED, 1, &view), "op: x has data NULL, expected memory for shape [4, 6]");
    shape[0] = 0;
    CHECK_TEXT(take(&x, DG_REQUIRED, 1, &view), "");
    shape[0] = 4;
    x.data = memory;
    x.device.type = 7;
    CHECK_TEXT(take(&x, DG_REQUIRED, 1, &view), "op: x is on a device of type 7, expected the CPU or a CUDA device");
    if (!dg_has_cuda()) {
        x.device = (dg_device){DG_CUDA, 1};
        CHECK_TEXT(take(&x, DG_REQUIRED, 1, &view), "op: x is on cuda:1, but this library was built without CUDA");
    }
}

static void check_shapes(void)
{
    struct dg_checker chk = dg_checker_begin("op", NULL);
    const struct dg_view x = {memory, true, DG_TYPE_F32, 2, {DG_CPU, 0}, 0, {4, 3}, {3, 1}};
    CHECK(!dg_check_dim(&chk, "b", "k", 4096, 4160, "a"));
    CHECK_TEXT(dg_last_error(), "op: b has k = 4096, expected 4160 to match a");
    CHECK(dg_check_dim(&chk, "b", "k", 1, 1, "a"));
    CHECK(!dg_check_shape(&chk, "sfa", &x, 2, (const int64_t[]){4, 2}, "[m, ceil(k / 128)]"));
    CHECK_TEXT(dg_last_error(), "op: sfa has shape [4, 3], expected [4, 2] = [m, ceil(k / 128)]");
    CHECK(!dg_check_shape(&chk, "sfa", &x, 1, (const int64_t[]){4}, "[m]"));
    CHECK_TEXT(dg_last_error(), "op: sfa has shape [4, 3], expected [4] = [m]");
    CHECK(dg_check_contiguous(&chk, "x", &x));
    CHECK(dg_check_rows(&chk, "x", &x));
    CHECK(!dg_check_strides(&chk, "x", &x, (const int64_t[]){1, 4}, "[1, m]"));
    CHECK_TEXT(dg_last_error(), "op: x has strides [3, 1], expected [1, 4] = [1, m]");

    const struct dg_view columns = {memory, true, DG_TYPE_F32, 2, {DG_CPU, 0}, 0, {4, 3}, {1, 4}};
    CHECK(!dg_check_rows(&chk, "x", &columns));
    CHECK_TEXT(dg_last_error(), "op: x has strides [1, 4], expected stride 1 in the last dimension");
    CHECK(!dg_check_contiguous(&chk, "x", &columns));
    CHECK(dg_check_like(&chk, "c", &columns, "d", &x));
    const struct dg_view other = {memory, true, DG_TYPE_BF16, 2, {DG_CPU, 0}, 0, {4, 2}, {2, 1}};
    CHECK(!dg_check_like(&chk, "c", &other, "d", &x));
    CHECK_TEXT(dg_last_error(), "op: c has dtype bf16, expected f32 to match d");
    CHECK_INT(chk.status, DG_ERR_INVALID_DTYPE);
    const struct dg_view single = {memory, true, DG_TYPE_F32, 2, {DG_CPU, 0}, 0, {4, 1}, {1, 99}};
    CHECK(dg_check_contiguous(&chk, "x", &single) && dg_check_rows(&chk, "x", &single));
    const struct dg_view empty = {NULL, true, DG_TYPE_F32, 2, {DG_CPU, 0}, 0, {0, 8}, {0, 0}};
    CHECK(dg_check_contiguous(&chk, "x", &empty) && dg_check_rows(&chk, "x", &empty));
}

/* A f32 view of [rows, columns] at an offset of elements into memory. */
static struct dg_view f32_view(int64_t offset, int64_t rows, int64_t columns, int64_t stride_row, int64_t stride_column)
{
    return (struct dg_view){(float *)(void *)memory + offset, true, DG_TYPE_F32, 2, {DG_CPU, 0}, 0, {rows, columns},
                            {stride_row, stride_column}};
}

static bool overlap(struct dg_view x, struct dg_view y)
{
    struct dg_checker chk = dg_checker_begin("op", NULL);
    const bool there = !dg_check_no_overlap(&chk, "d", &x, "a", &y);
    const bool back = !dg_check_no_overlap(&chk, "a", &y, "d", &x);
    CHECK_INT(there, back);
    return there;
}

static void check_overlap(void)
{
    struct dg_checker chk = dg_checker_begin("op", NULL);
    const struct dg_view d = f32_view(0, 4, 8, 8, 1);
    CHECK(dg_check_no_self_overlap(&chk, "d", &d));
    const struct dg_view crossed = f32_view(0, 4, 8, 5, 1);
    CHECK(!dg_check_no_self_overlap(&chk, "d", &crossed));
    CHECK_TEXT(dg_last_error(), "op: d has shape [4, 8] and strides [5, 1], expected elements that do not overlap");
    const struct dg_view broadcast = f32_view(0, 4, 8, 0, 1);
    CHECK(!dg_check_no_self_overlap(&chk, "d", &broadcast));
    const struct dg_view backwards = f32_view(31, 4, 8, -8, -1);
    CHECK(dg_check_no_self_overlap(&chk, "d", &backwards));
    const struct dg_view one_row = f32_view(0, 1, 8, 0, 1);
    CHECK(dg_check_no_self_overlap(&chk, "d", &one_row));

    CHECK(overlap(d, d));
    CHECK(overlap(d, backwards));
    CHECK(overlap(d, f32_view(31, 1, 1, 1, 1)));
    CHECK(!overlap(d, f32_view(32, 4, 8, 8, 1)));
    CHECK(!overlap(d, f32_view(0, 0, 8, 8, 1)));
    /* columns of one buffer of 16 */
    CHECK(!overlap(f32_view(0, 4, 8, 16, 1), f32_view(8, 4, 8, 16, 1)));
    CHECK(overlap(f32_view(0, 4, 9, 16, 1), f32_view(8, 4, 8, 16, 1)));
    CHECK(!overlap(f32_view(0, 4, 3, 16, 1), f32_view(13, 4, 3, 16, 1)));
    CHECK(overlap(f32_view(1, 4, 3, 16, 1), f32_view(15, 4, 3, 16, 1)));
    CHECK(!overlap(f32_view(48, 4, 3, -16, 1), f32_view(8, 4, 8, 16, 1)));
    CHECK(!overlap(f32_view(0, 4, 8, 16, 1), f32_view(8, 2, 8, 32, 1)));

    CHECK(dg_check_same_or_no_overlap(&chk, "d", &d, "c", &d));
    const struct dg_view shifted = f32_view(1, 4, 7, 8, 1);
    CHECK(!dg_check_same_or_no_overlap(&chk, "d", &d, "c", &shifted));
    CHECK_TEXT(dg_last_error(), "op: d overlaps c, expected separate memory or exactly the same tensor");
}

static void check_values(void)
{
    struct dg_checker chk = dg_checker_begin("op", NULL);
    CHECK(!dg_check_int(&chk, "recipe", 1, 0, false, ">= 1"));
    CHECK_TEXT(dg_last_error(), "op: recipe[1] is 0, expected >= 1");
    CHECK(!dg_check_int(&chk, "k", -1, -7, false, ">= 0"));
    CHECK_TEXT(dg_last_error(), "op: k is -7, expected >= 0");
    CHECK(!dg_check_float(&chk, "clamp", -1, 0.5, false, "> 1"));
    CHECK_TEXT(dg_last_error(), "op: clamp is 0.5, expected > 1");
    CHECK(!dg_check_str(&chk, "dims", (dg_str){"xyz", 2}, false, "\"nk\" or \"mn\""));
    CHECK_TEXT(dg_last_error(), "op: dims is \"xy\", expected \"nk\" or \"mn\"");
    CHECK(!dg_check_len(&chk, "recipe", 4, false, "2 or 3"));
    CHECK_TEXT(dg_last_error(), "op: recipe has length 4, expected 2 or 3");
    CHECK(!dg_check_pointer(&chk, "out", NULL));
    CHECK_TEXT(dg_last_error(), "op: out is NULL");
    enum dg_type type;
    CHECK(dg_check_dtype(&chk, "t", (dg_dtype){DG_F32}, DG_TYPE_BIT(DG_TYPE_F32), "f32", &type) && type == DG_TYPE_F32);
    CHECK(!dg_check_dtype(&chk, "t", (dg_dtype){DG_F16}, DG_TYPE_BIT(DG_TYPE_F32), "f32", &type));
    CHECK_TEXT(dg_last_error(), "op: t is f16, expected f32");

    CHECK_INT(dg_str_resolve(dg_str_from("four")).len, 4);
    CHECK(dg_str_equal(dg_str_resolve(dg_str_from("nk")), "nk") && !dg_str_equal((dg_str){"nkx", 3}, "nk"));
    CHECK(dg_str_equal((dg_str){NULL, 0}, ""));
}

/* Long texts are cut between characters, and say so. */
static void check_long_text(void)
{
    char name[4000];
    for (size_t i = 0; i + 2 < sizeof(name); i += 2) {
        memcpy(name + i, "\xc3\xa9", 3); /* e with an acute accent, two bytes */
    }
    struct dg_checker chk = dg_checker_begin("x", NULL);
    for (int shift = 0; shift < 2; shift++) {
        dg_check_fail(&chk, DG_ERR_INVALID_ARGUMENT, "%s%s", shift ? "y" : "", name);
        const char *text = dg_last_error();
        const size_t len = strlen(text);
        CHECK(len > 1000 && strcmp(text + len - 3, "...") == 0);
        CHECK((unsigned char)text[len - 4] == 0xa9);
    }
    char small[8];
    CHECK_INT(dg_last_error_copy(small, sizeof(small)), (int64_t)strlen(dg_last_error()));
    CHECK_INT(strlen(small), 7);
    CHECK_INT(dg_last_error_copy(NULL, 0), (int64_t)strlen(dg_last_error()));
}

/* Whatever bytes a value has, the text is UTF-8. */
static void check_invalid_text(void)
{
    static const char *const texts[][2] = {
        {"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"}, /* of two, three and four bytes */
        {"a\xff", "a?"},
        {"\xc3", "?"},                         /* cut */
        {"\xf0\x9f\x98 b", "??? b"},           /* cut */
        {"\xc0\xaf \xe0\x80\xaf", "?? ???"},  /* overlong */
        {"\xed\xa0\x80", "???"},               /* a surrogate */
        {"\xf4\x90\x80\x80 \xf5", "???? ?"},  /* beyond U+10FFFF */
    };
    struct dg_checker chk = dg_checker_begin("x", NULL);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        char expected[64] = "x: ";
        strcat(expected, texts[i][1]);
        dg_check_fail(&chk, DG_ERR_INVALID_ARGUMENT, "%s", texts[i][0]);
        CHECK_TEXT(dg_last_error(), expected);
    }
}

static void check_specs(void)
{
    struct dg_checker chk = dg_checker_begin("op", NULL);
    dg_tensor_spec spec;
    CHECK(dg_spec_fill(&chk, &spec, DG_TYPE_F32, 2, (const int64_t[]){5, 3}, NULL));
    CHECK(spec.size_bytes == 60 && spec.strides[0] == 3 && spec.strides[1] == 1 && spec.device.type == DG_CPU);
    CHECK(dg_spec_fill(&chk, &spec, DG_TYPE_I32, 2, (const int64_t[]){5, 3}, (const int64_t[]){1, 8}));
    CHECK_INT(spec.size_bytes, 4 * (2 * 8 + 5));
    CHECK(dg_spec_fill(&chk, &spec, DG_TYPE_BF16, 3, (const int64_t[]){5, 0, 7}, NULL));
    CHECK_INT(spec.size_bytes, 0);
    CHECK(dg_spec_fill(&chk, &spec, DG_TYPE_F4E2M1, 1, (const int64_t[]){5}, NULL));
    CHECK_INT(spec.size_bytes, 3);
    CHECK(dg_spec_fill(&chk, &spec, DG_TYPE_F64, 0, NULL, NULL));
    CHECK_INT(spec.size_bytes, 8);
    CHECK(!dg_spec_fill(&chk, &spec, DG_TYPE_F32, 2, (const int64_t[]){INT64_MAX, 3}, NULL));
    CHECK(!dg_spec_fill(&chk, &spec, DG_TYPE_F32, 1, (const int64_t[]){-1}, NULL));
    CHECK_TEXT(dg_last_error(), "op: the result would have size -1 in dimension 0");

    CHECK(dg_spec_fill(&chk, &spec, DG_TYPE_F32, 2, (const int64_t[]){5, 3}, (const int64_t[]){1, 8}));
    dg_tensor x = dg_tensor_from_spec(&spec, memory);
    struct dg_view view;
    CHECK(dg_check_result(&chk, "out", &x, &spec, &view) && view.strides[1] == 8);
    CHECK(!dg_check_result(&chk, "out", NULL, &spec, &view));
    CHECK_TEXT(dg_last_error(), "op: out is NULL, expected f32 [5, 3], as dg_op_out() says");
    int64_t shape[2] = {4, 3};
    x.shape = shape;
    CHECK(!dg_check_result(&chk, "out", &x, &spec, &view));
    CHECK_TEXT(dg_last_error(), "op: out has shape [4, 3], expected [5, 3], as dg_op_out() says");
    shape[0] = 5;
    x.strides = NULL;
    CHECK(!dg_check_result(&chk, "out", &x, &spec, &view));
    CHECK_TEXT(dg_last_error(), "op: out has strides [3, 1], expected [1, 8], as dg_op_out() says");
    x.dtype = (dg_dtype){DG_I32};
    CHECK(!dg_check_result(&chk, "out", &x, &spec, &view));
    CHECK_TEXT(dg_last_error(), "op: out has dtype i32, expected f32, as dg_op_out() says");
}

/* Options grow: a caller's struct ends where its last member does. */
static void check_options(void)
{
    struct options {
        size_t struct_size;
        int64_t first;
        bool second;
        bool third;
    };
    const size_t ends[] = {16, 17, 18};
    const struct options defaults = {18, 1, true, true};
    struct dg_checker chk = dg_checker_begin("op", NULL);

    struct options merged = defaults;
    CHECK(dg_check_options(&chk, NULL, ends, 3, &merged, sizeof(merged), "INIT"));
    CHECK(merged.first == 1 && merged.second && merged.third);
    const struct options old = {17, 5, false, false};
    CHECK(dg_check_options(&chk, &old, ends, 3, &merged, sizeof(merged), "INIT"));
    CHECK(merged.first == 5 && !merged.second && merged.third);
    const size_t wrong[] = {0, 8, 15, 19, 25, SIZE_MAX};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        const struct options bad = {wrong[i], 0, false, false};
        CHECK(!dg_check_options(&chk, &bad, ends, 3, &merged, sizeof(merged), "INIT"));
        CHECK_CONTAINS(dg_last_error(), "op: options->struct_size is ");
        CHECK_CONTAINS(dg_last_error(), "INIT");
    }
}

static void check_devices(void)
{
    dg_context *ctx;
    CHECK_INT(dg_context_create(NULL, &ctx), DG_OK);
    struct dg_checker chk = dg_checker_begin("op", ctx);
    CHECK(chk.has_device && chk.device.type == DG_CPU);
    int64_t shape[2] = {1, 1};
    dg_tensor x = tensor_of((dg_dtype){DG_F32}, 2, shape, NULL);
    struct dg_view view;
    CHECK(dg_check_tensor(&chk, "x", &x, DG_REQUIRED, any_float, 3, UINT32_MAX, &view));
    x.device.id = 5; /* there is one CPU */
    CHECK(dg_check_tensor(&chk, "x", &x, DG_REQUIRED, any_float, 3, UINT32_MAX, &view) && view.device.id == 0);
    dg_context_destroy(ctx);
}

int main(void)
{
    check_views();
    check_fp4_views();
    check_tensor_errors();
    check_shapes();
    check_overlap();
    check_values();
    check_long_text();
    check_invalid_text();
    check_specs();
    check_options();
    check_devices();
    return check_report("core.check");
}
