/* The rows of the cast and hyperconnection tables, called with their argument structs: casts give the bits of the reference, for any
 * granularity, strides and values, in any order of tasks; nothing is written but the results. The arithmetic of the reference itself is
 * checked against torch, in tests/torch.
 */
#include "check.h"
#include "core/dtype.h"
#include "deep_gemm/deep_gemm.h"
#include "ops/cast.h"
#include "ops/hc.h"
#include "random.h"

/* ---- memory with guards ------------------------------------------------------------------------------------ */

enum { GUARD = 128, FILL = 0xa5 };

struct memory {
    uint8_t *base;
    uint8_t *data; /* base + GUARD */
    size_t size;
};

static struct memory memory_of(int64_t size)
{
    struct memory memory = {NULL, NULL, (size_t)size};
    memory.base = aligned_alloc(64, (memory.size + 2 * GUARD + 63) / 64 * 64);
    memory.data = memory.base + GUARD;
    memset(memory.base, FILL, memory.size + 2 * GUARD);
    return memory;
}

static bool guards_hold(const struct memory *memory)
{
    bool hold = true;
    for (size_t i = 0; i < GUARD; i++) {
        hold = hold && memory->base[i] == FILL && memory->data[memory->size + i] == FILL;
    }
    return hold;
}

/* ---- ways to run tasks ------------------------------------------------------------------------------------- */

static void run_whole(void *user, int64_t count, int64_t grain, void (*task)(void *arg, int64_t begin, int64_t end), void *arg)
{
    (void)user;
    (void)grain;
    task(arg, 0, count);
}

static void run_backwards(void *user, int64_t count, int64_t grain, void (*task)(void *arg, int64_t begin, int64_t end), void *arg)
{
    (void)user;
    (void)grain;
    for (int64_t i = count; i-- > 0;) {
        task(arg, i, i + 1);
    }
}

static const struct dg_exec whole = {.parallel_for = run_whole, .num_threads = 1};
static const struct dg_exec backwards = {.parallel_for = run_backwards, .num_threads = 3};

/* ---- casts ------------------------------------------------------------------------------------------------- */

static int64_t ceil_div(int64_t x, int64_t y)
{
    return (x + y - 1) / y;
}

/* Any bits at all, now and then; else values whose magnitudes are some powers of two apart. */
static void fill(uint8_t *data, int64_t size, enum dg_cast_type type)
{
    const bool is_wild = one_in(4);
    for (int64_t i = 0; i + 4 <= size; i += type == DG_CAST_F32 ? 4 : 2) {
        const float value = ((float)random_below(2001) - 1000) * dg_f32_of_bits((uint32_t)(110 + random_below(20)) << 23);
        uint32_t bits = dg_bits_of_f32(value);
        if (type != DG_CAST_F32) {
            bits = type == DG_CAST_BF16 ? dg_bf16_from_f32(value) : dg_f16_from_f32(value);
        }
        if (is_wild && one_in(50)) {
            bits = (uint32_t)random_bits();
        }
        memcpy(data + i, &bits, type == DG_CAST_F32 ? 4 : 2);
    }
}

static int64_t random_gran(void)
{
    static const int64_t grans[] = {1, 2, 3, 16, 31, 32, 33, 64, 65, 100, 128, 129, 1000, 1024, 3000};
    return grans[random_below((int64_t)(sizeof(grans) / sizeof(grans[0])))];
}

static void check_cast(void)
{
    struct dg_cast_args args = {
        .m = 1 + random_below(one_in(2) ? 4 : 150),
        .n = 1 + random_below(one_in(2) ? 100 : 2500),
        .type = (enum dg_cast_type)random_below(3),
        .gran_m = one_in(2) ? 1 : random_gran(),
        .gran_n = random_gran(),
        .code_type = (enum dg_cast_code)random_below(2),
        .scale_type = (enum dg_cast_scale)random_below(3),
    };
    args.n += args.code_type == DG_CAST_F4E2M1 ? args.n % 2 : 0;
    const int64_t gap = 1 + random_below(3);
    const bool is_transposed = one_in(3);
    args.stride_m = is_transposed ? gap : args.n * gap + random_below(5);
    args.stride_n = is_transposed ? args.m * gap : one_in(3) ? gap : 1;
    const int64_t element = args.type == DG_CAST_F32 ? 4 : 2;
    struct memory x = memory_of(((args.m - 1) * args.stride_m + (args.n - 1) * args.stride_n + 3) * element);
    fill(x.data, (int64_t)x.size, args.type);
    args.x = x.data;

    const int64_t blocks = ceil_div(args.n, args.gran_n);
    const int64_t code_bytes = args.m * args.n / (args.code_type == DG_CAST_F8E4M3 ? 1 : 2);
    const int64_t sf_bytes = ceil_div(args.m, args.gran_m) * (args.scale_type == DG_CAST_SCALE_PACKED ? ceil_div(blocks, 4) * 4 : blocks * 4);
    struct memory expected_codes = memory_of(code_bytes);
    struct memory expected_sf = memory_of(sf_bytes);
    args.codes = expected_codes.data;
    args.sf = expected_sf.data;
    args.exec = whole;
    CHECK_INT(dg_cast_ref(&args), 0);
    CHECK(guards_hold(&expected_codes) && guards_hold(&expected_sf));

    for (size_t i = 0; i < dg_cast_backends_count; i++) {
        const struct dg_cast_backend *row = &dg_cast_backends[i];
        if (row->device_type != DG_CPU || !row->can_run()) {
            continue;
        }
        for (int way = 0; way < 2; way++) {
            struct memory codes = memory_of(code_bytes);
            struct memory sf = memory_of(sf_bytes);
            args.codes = codes.data;
            args.sf = sf.data;
            args.exec = way == 0 ? whole : backwards;
            CHECK_INT(row->cast(&args), 0);
            const bool is_same = memcmp(codes.base, expected_codes.base, codes.size + 2 * GUARD) == 0 &&
                                 memcmp(sf.base, expected_sf.base, sf.size + 2 * GUARD) == 0;
            if (!CHECK(is_same)) {
                fprintf(stderr, "    %s: m %lld, n %lld, type %d, blocks %lld x %lld, codes %d, scales %d, strides %lld %lld\n", row->name,
                        (long long)args.m, (long long)args.n, (int)args.type, (long long)args.gran_m, (long long)args.gran_n,
                        (int)args.code_type, (int)args.scale_type, (long long)args.stride_m, (long long)args.stride_n);
            }
            free(codes.base);
            free(sf.base);
        }
    }
    free(expected_codes.base);
    free(expected_sf.base);
    free(x.base);
}

static void check_cast_back(void)
{
    struct dg_cast_back_args args = {.m = 1 + random_below(20), .n = 2 * (1 + random_below(300)), .gran_n = random_gran(), .is_packed = one_in(2)};
    const bool is_transposed = one_in(3);
    args.stride_m = is_transposed ? 1 : args.n + 2 * random_below(4);
    args.stride_n = is_transposed ? args.m + args.m % 2 : 1;
    struct memory packed = memory_of(((args.m - 1) * args.stride_m + (args.n - 1) * args.stride_n) / 2 + 1);
    const int64_t words = ceil_div(args.n, args.gran_n * (args.is_packed ? 4 : 1));
    struct memory sf = memory_of(args.m * words * 4);
    for (size_t i = 0; i < packed.size; i++) {
        packed.data[i] = (uint8_t)random_bits();
    }
    for (int64_t i = 0; i < args.m * words; i++) {
        const uint32_t word = args.is_packed ? (uint32_t)random_bits() : dg_bits_of_f32((float)random_below(1000) * 0.01f);
        memcpy(sf.data + 4 * i, &word, 4);
    }
    args.codes = packed.data;
    args.sf = sf.data;
    args.sf_stride_m = words;
    args.sf_stride_n = 1;
    args.exec = whole;
    struct memory expected = memory_of(args.m * args.n * 4);
    args.values = (float *)(void *)expected.data;
    CHECK_INT(dg_cast_back_ref(&args), 0);
    CHECK(guards_hold(&expected));
    for (size_t i = 0; i < dg_cast_backends_count; i++) {
        const struct dg_cast_backend *row = &dg_cast_backends[i];
        if (row->device_type != DG_CPU || !row->can_run()) {
            continue;
        }
        struct memory values = memory_of(args.m * args.n * 4);
        args.values = (float *)(void *)values.data;
        args.exec = backwards;
        CHECK_INT(row->cast_back(&args), 0);
        CHECK(memcmp(values.base, expected.base, values.size + 2 * GUARD) == 0);
        free(values.base);
    }
    free(expected.base);
    free(packed.base);
    free(sf.base);
}

/* ---- hyperconnection --------------------------------------------------------------------------------------- */

static void check_hc(void)
{
    struct dg_hc_args args = {.m = 1 + random_below(80), .n = random_below(one_in(3) ? 60 : 25), .k = random_below(one_in(3) ? 5000 : 300), .num_splits = 1 + random_below(5)};
    args.a_stride_k = one_in(4) ? args.m : 1;
    args.a_stride_m = args.a_stride_k == 1 ? args.k + random_below(3) : 1;
    args.b_stride_k = one_in(4) ? args.n : 1;
    args.b_stride_n = args.b_stride_k == 1 ? args.k + random_below(3) : 1;
    struct memory a = memory_of((args.m * args.k + 2 * args.m + 1) * 2);
    struct memory b = memory_of((args.n * args.k + 2 * args.n + 1) * 4);
    for (size_t i = 0; i < a.size / 2; i++) {
        ((uint16_t *)(void *)a.data)[i] = dg_bf16_from_f32((float)random_below(2001) * 0.001f - 1);
    }
    for (size_t i = 0; i < b.size / 4; i++) {
        ((float *)(void *)b.data)[i] = (float)random_below(2001) * 0.001f - 1;
    }
    args.a = (const uint16_t *)(const void *)a.data;
    args.b = (const float *)(const void *)b.data;
    args.d_stride_m = args.n + 3;
    args.d_stride_split = args.m * args.d_stride_m;
    args.sqr_sum_stride_m = 2;
    args.sqr_sum_stride_split = 2 * args.m;
    const int64_t d_count = args.num_splits * args.d_stride_split;
    const int64_t squares_count = args.num_splits * args.sqr_sum_stride_split;

    struct memory expected_d = memory_of(d_count * 4);
    struct memory expected_squares = memory_of(squares_count * 4);
    args.d = (float *)(void *)expected_d.data;
    args.sqr_sum = (float *)(void *)expected_squares.data;
    args.exec = whole;
    CHECK_INT(dg_hc_ref(&args), 0);
    for (size_t i = 0; i < dg_hc_backends_count; i++) {
        const struct dg_hc_backend *row = &dg_hc_backends[i];
        if (row->device_type != DG_CPU || !row->can_run(&args)) {
            continue;
        }
        struct memory d[2];
        struct memory squares[2];
        for (int way = 0; way < 2; way++) {
            args.exec = way == 0 ? whole : backwards;
            struct memory workspace = memory_of(row->workspace != NULL ? (int64_t)row->workspace(&args) : 0);
            args.exec.workspace = workspace.data;
            d[way] = memory_of(d_count * 4);
            squares[way] = memory_of(squares_count * 4);
            args.d = (float *)(void *)d[way].data;
            args.sqr_sum = (float *)(void *)squares[way].data;
            CHECK_INT(row->run(&args), 0);
            CHECK(guards_hold(&workspace));
            free(workspace.base);
        }
        CHECK(memcmp(d[0].base, d[1].base, d[0].size + 2 * GUARD) == 0 && memcmp(squares[0].base, squares[1].base, squares[0].size + 2 * GUARD) == 0);
        /* Against double: magnitudes are at most 1 and 600 roundings of 2^-24 of the largest partial sum is generous. Gaps stay as they were. */
        const double bound = 600 * 0x1p-24 * (double)args.k;
        int64_t wrong = 0;
        for (int64_t x = 0; x < d_count; x++) {
            const float got = ((float *)(void *)d[0].data)[x];
            const float wanted = ((float *)(void *)expected_d.data)[x];
            wrong += x % args.d_stride_m < args.n ? !((double)got - (double)wanted <= bound && (double)wanted - (double)got <= bound)
                                                  : dg_bits_of_f32(got) != dg_bits_of_f32(wanted);
        }
        for (int64_t x = 0; x < squares_count; x++) {
            const float got = ((float *)(void *)squares[0].data)[x];
            const float wanted = ((float *)(void *)expected_squares.data)[x];
            wrong += x % 2 == 0 ? !((double)got - (double)wanted <= bound && (double)wanted - (double)got <= bound)
                                : dg_bits_of_f32(got) != dg_bits_of_f32(wanted);
        }
        CHECK_INT(wrong, 0);
        CHECK(guards_hold(&d[0]) && guards_hold(&squares[0]));
        for (int way = 0; way < 2; way++) {
            free(d[way].base);
            free(squares[way].base);
        }
    }
    free(expected_d.base);
    free(expected_squares.base);
    free(a.base);
    free(b.base);
}

int main(void)
{
    for (int i = 0; i < 300; i++) {
        check_cast();
        check_cast_back();
    }
    for (int i = 0; i < 60; i++) {
        check_hc();
    }
    return check_report("ops.cast_hc_rows");
}
