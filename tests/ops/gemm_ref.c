/* The reference GEMM on examples whose result is known without it. Everything else is compared with the reference, so this is
 * where the formats themselves are pinned down: nibble order, byte order of packed scales, blocks, strides, gaps, NaN, rounding.
 */
#include "check.h"
#include "core/dtype.h"
#include "ops/gemm.h"

#include <math.h>

static void run_alone(void *user, int64_t count, int64_t grain, void (*task)(void *arg, int64_t begin, int64_t end), void *arg)
{
    (void)user;
    (void)grain;
    task(arg, 0, count);
}

/* k products into one f32, no scales: operands are [1, k] and [1, k]. */
static struct dg_gemm_args dot(const void *a, enum dg_gemm_type a_type, const void *b, enum dg_gemm_type b_type, int64_t k, float *d)
{
    return (struct dg_gemm_args){
        .m = 1,
        .n = 1,
        .k = k,
        .a = {a, a_type, k, 1},
        .b = {b, b_type, k, 1},
        .sfa = {.type = DG_SCALE_NONE, .gran_mn = 1, .gran_k = 1},
        .sfb = {.type = DG_SCALE_NONE, .gran_mn = 1, .gran_k = 1},
        .d = d,
        .d_type = DG_GEMM_F32,
        .d_stride_m = 1,
        .d_stride_n = 1,
        .exec = {.parallel_for = run_alone, .num_threads = 1},
    };
}

/* Codes of small numbers: sign, exponent with bias 7, three bits of mantissa. */
enum { ONE = 0x38, TWO = 0x40, THREE = 0x44, MINUS_ONE = 0xb8, NAN_CODE = 0x7f, SMALLEST = 0x01 };

static void check_types(void)
{
    float d;
    const uint8_t fp8[4] = {ONE, TWO, THREE, SMALLEST};
    const uint8_t ones[4] = {ONE, ONE, ONE, ONE};
    struct dg_gemm_args args = dot(fp8, DG_GEMM_F8E4M3, ones, DG_GEMM_F8E4M3, 4, &d);
    dg_gemm_ref(&args);
    CHECK(d == 6 + 0x1p-9f);

    const uint16_t bf16[4] = {0x3f80, 0x4000, 0xc040, 0x0001}; /* 1, 2, -3, 2^-133 */
    args = dot(bf16, DG_GEMM_BF16, ones, DG_GEMM_F8E4M3, 3, &d);
    dg_gemm_ref(&args);
    CHECK(d == 0);
    args = dot(bf16 + 3, DG_GEMM_BF16, ones, DG_GEMM_F8E4M3, 1, &d);
    dg_gemm_ref(&args);
    CHECK(d == 0x1p-133f);

    const float f32[4] = {0.1f, 0, 0, 0};
    args = dot(f32, DG_GEMM_F32, ones, DG_GEMM_F8E4M3, 4, &d);
    dg_gemm_ref(&args);
    CHECK(d == 0.1f);

    /* Codes 0 to 7 of FP4 are 0, 0.5, 1, 1.5, 2, 3, 4, 6; 8 more is minus. The even index is in the low nibble. */
    const uint8_t fp4[4] = {0x21, 0x43, 0x65, 0xf7}; /* 0.5 1 1.5 2 3 4 6 -6 */
    const float weights[8] = {1, 10, 100, 1000, 1e4f, 1e5f, 1e6f, 1e7f};
    args = dot(fp4, DG_GEMM_F4E2M1, weights, DG_GEMM_F32, 8, &d);
    dg_gemm_ref(&args);
    CHECK(d == 0.5f + 10 + 150 + 2000 + 3e4f + 4e5f + 6e6f - 6e7f);
}

static void check_scales(void)
{
    enum { K = 10 };
    uint8_t ones[K];
    memset(ones, ONE, sizeof(ones));
    float d;
    struct dg_gemm_args args = dot(ones, DG_GEMM_F8E4M3, ones, DG_GEMM_F8E4M3, K, &d);

    /* Blocks of two along k: five of a, each of its own scale; the last byte of the first word is block 3. */
    const float plain[5] = {1, 10, 100, 1000, 10000};
    args.sfa = (struct dg_gemm_scale){plain, DG_SCALE_F32, 1, 2, 5, 1};
    dg_gemm_ref(&args);
    CHECK(d == 22222);

    const uint32_t words[2] = {127u | 128u << 8 | 129u << 16 | 140u << 24, 120u | 0xffffff00u}; /* 1, 2, 4, 2^13, 2^-7 */
    args.sfb = (struct dg_gemm_scale){words, DG_SCALE_UE8M0, 1, 2, 2, 1};
    args.sfa.type = DG_SCALE_NONE;
    dg_gemm_ref(&args);
    CHECK(d == 2 * (1 + 2 + 4 + 8192 + 0x1p-7f));

    /* Both, of different granularity: a by 4 along k, b by 2. */
    args.sfa = (struct dg_gemm_scale){plain, DG_SCALE_F32, 1, 4, 5, 1};
    dg_gemm_ref(&args);
    CHECK(d == 2 * (1 + 2) + 2 * (4 + 8192) * 10.0f + 2 * 0x1p-7f * 100);

    /* The ends of the range cancel: 2^-127 and 2^127. */
    const uint32_t least = 0;
    const uint32_t most = 254;
    args.sfa = (struct dg_gemm_scale){&least, DG_SCALE_UE8M0, 1, 128, 1, 1};
    args.sfb = (struct dg_gemm_scale){&most, DG_SCALE_UE8M0, 1, 128, 1, 1};
    dg_gemm_ref(&args);
    CHECK(d == K);

    const uint32_t nan = 255;
    args.sfb.data = &nan;
    dg_gemm_ref(&args);
    CHECK(isnan(d));
}

/* a [2, 3] and b [2, 3] with values i * 3 + k + 1 and strides of every kind; blocks of 2 rows. */
static void check_strides(void)
{
    const float a[6] = {1, 2, 3, 4, 5, 6};
    const float expected[4] = {14, 32, 32, 77}; /* a @ a.T */
    const float transposed[6] = {1, 4, 2, 5, 3, 6};
    const float backwards[6] = {6, 5, 4, 3, 2, 1};
    const struct dg_gemm_operand forms[] = {
        {a, DG_GEMM_F32, 3, 1},
        {transposed, DG_GEMM_F32, 1, 2},
        {backwards + 5, DG_GEMM_F32, -3, -1},
    };
    float d[6];
    struct dg_gemm_args args = dot(a, DG_GEMM_F32, a, DG_GEMM_F32, 3, d);
    args.m = 2;
    args.n = 2;
    args.d_stride_m = 3;
    for (int x = 0; x < 3; x++) {
        for (int y = 0; y < 3; y++) {
            args.a = forms[x];
            args.b = forms[y];
            for (int i = 0; i < 6; i++) {
                d[i] = -1;
            }
            dg_gemm_ref(&args);
            CHECK(d[0] == expected[0] && d[1] == expected[1] && d[2] == -1);
            CHECK(d[3] == expected[2] && d[4] == expected[3] && d[5] == -1);
        }
    }

    /* One row for all: stride 0. Scales by blocks of two rows of b: one for both. */
    args.a = (struct dg_gemm_operand){a, DG_GEMM_F32, 0, 1};
    const float scales[2] = {2, 1000};
    args.sfb = (struct dg_gemm_scale){scales, DG_SCALE_F32, 2, 128, 1, 1};
    args.b = forms[0];
    dg_gemm_ref(&args);
    CHECK(d[0] == 28 && d[1] == 64 && d[3] == 28 && d[4] == 64);
}

static void check_gaps(void)
{
    /* Six columns in heads of 2 + 1 with a gap of 2: stored at 0 1 _ _ 4 | 5 6 _ _ 9. */
    const float row[6] = {1, 2, 3, 4, 5, 6};
    const float one = 1;
    float d[10];
    for (int i = 0; i < 10; i++) {
        d[i] = -1;
    }
    struct dg_gemm_args args = dot(&one, DG_GEMM_F32, row, DG_GEMM_F32, 1, d);
    args.n = 6;
    args.b.stride_mn = 1;
    args.d_stride_m = 10;
    args.head_left = 2;
    args.head_mid = 2;
    args.head_right = 1;
    dg_gemm_ref(&args);
    const float expected[10] = {1, 2, -1, -1, 3, 4, 5, -1, -1, 6};
    for (int i = 0; i < 10; i++) {
        CHECK(d[i] == expected[i]);
    }
}

static void check_nan(void)
{
    const uint8_t zeros[2] = {0, 0};
    const uint8_t nan[2] = {ONE, NAN_CODE};
    const uint16_t infinity[2] = {0x7f80, 0};
    float d;
    struct dg_gemm_args args = dot(zeros, DG_GEMM_F8E4M3, nan, DG_GEMM_F8E4M3, 2, &d);
    dg_gemm_ref(&args);
    CHECK(isnan(d)); /* zero times NaN is not skipped */
    args = dot(zeros, DG_GEMM_F8E4M3, infinity, DG_GEMM_BF16, 2, &d);
    dg_gemm_ref(&args);
    CHECK(isnan(d));
    const uint8_t minus[2] = {MINUS_ONE, 0};
    args = dot(minus, DG_GEMM_F8E4M3, infinity, DG_GEMM_BF16, 2, &d);
    dg_gemm_ref(&args);
    CHECK(d == -INFINITY);
}

static void check_c_and_rounding(void)
{
    /* c + product = 1 + 2^-8 + 2^-40: just above the middle of two bf16. Rounded to f32 first, it would be the middle, and go to even. */
    const float a = 0x1p-40f;
    const float one = 1;
    uint16_t c = 0x3f80;
    uint16_t d = 0;
    struct dg_gemm_args args = dot(&a, DG_GEMM_F32, &one, DG_GEMM_F32, 1, NULL);
    args.c = &c;
    args.d = &d;
    args.d_type = DG_GEMM_BF16;
    const float terms[2] = {0x1p-40f, 0x1p-8f};
    const float ones[2] = {1, 1};
    args.k = 2;
    args.a.data = terms;
    args.b.data = ones;
    dg_gemm_ref(&args);
    CHECK_INT(d, 0x3f81);

    /* k = 0: d is c, to the bit, or 0. */
    args.k = 0;
    c = 0x8000;
    dg_gemm_ref(&args);
    CHECK_INT(d, 0x8000);
    args.c = NULL;
    dg_gemm_ref(&args);
    CHECK_INT(d, 0);

    /* c may be d; a c of its own may have any strides. */
    float sum[2] = {100, 200};
    args = dot(ones, DG_GEMM_F32, ones, DG_GEMM_F32, 1, sum);
    args.n = 2;
    args.c = sum;
    args.c_stride_m = 2;
    args.c_stride_n = 1;
    dg_gemm_ref(&args);
    CHECK(sum[0] == 101 && sum[1] == 201);
    const float other[3] = {5, 6, 7};
    args.c = other + 2;
    args.c_stride_n = -2;
    dg_gemm_ref(&args);
    CHECK(sum[0] == 8 && sum[1] == 6);
}

int main(void)
{
    check_types();
    check_scales();
    check_strides();
    check_gaps();
    check_nan();
    check_c_and_rounding();
    return check_report("ops.gemm_ref");
}
