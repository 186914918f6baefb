/* The CUDA casts against the reference of kernels/cpu/cast_ref.c, to the bit, and the hyperconnection prenorm against hc_ref.c, over random
 * shapes, granularities, strides and values. Nothing around the results may change. Inputs have the exact size that their strides need, so
 * compute-sanitizer sees any read beyond.
 */
#include "check.h"
#include "core/dtype.h"
#include "cuda/device.h"
#include "ops/cast.h"
#include "ops/hc.h"
#include "device_test.h"
#include "random.h"

#include <math.h>

enum { GUARD = 64, FILL = 0xa5, on_cuda = 2 };

static const struct dg_exec on_host = {.parallel_for = run_serially, .num_threads = 1};

static bool one_in(int64_t count)
{
    return random_below(count) == 0;
}

static int64_t ceil_div(int64_t x, int64_t y)
{
    return (x + y - 1) / y;
}

/* ---- memory that exists on both sides ---------------------------------------------------------------------------- */

struct memory {
    size_t size;
    uint8_t *host, *device; /* between guards; host: what is expected of device */
};

static struct memory make_memory(int64_t size)
{
    struct memory x = {(size_t)size, malloc((size_t)size + 2 * GUARD), NULL};
    memset(x.host, FILL, x.size + 2 * GUARD);
    must(cudaMalloc((void **)&x.device, x.size + 2 * GUARD), "cudaMalloc");
    x.host += GUARD;
    x.device += GUARD;
    return x;
}

static void upload(const struct memory *x)
{
    must(cudaMemcpy(x->device - GUARD, x->host - GUARD, x->size + 2 * GUARD, cudaMemcpyHostToDevice), "upload");
    must(cudaDeviceSynchronize(), "upload"); /* the copy itself may return earlier */
}

static void free_memory(struct memory *x)
{
    free(x->host - GUARD);
    cudaFree(x->device - GUARD);
}

/* What the device has, guards included. */
static uint8_t *download(const struct memory *x)
{
    uint8_t *got = malloc(x->size + 2 * GUARD);
    must(cudaMemcpy(got, x->device - GUARD, x->size + 2 * GUARD, cudaMemcpyDeviceToHost), "download");
    return got;
}

static bool is_same(const struct memory *x, const char *what)
{
    uint8_t *got = download(x);
    size_t wrong = 0;
    for (size_t i = 0; i < x->size + 2 * GUARD; i++) {
        if (got[i] != x->host[(ptrdiff_t)i - GUARD] && wrong++ < 3) {
            printf("  byte %td of %zu of %s is %02x, expected %02x\n", (ptrdiff_t)i - GUARD, x->size, what, got[i], x->host[(ptrdiff_t)i - GUARD]);
        }
    }
    free(got);
    return wrong == 0;
}

/* ---- casts ------------------------------------------------------------------------------------------------------- */

/* Any bits at all, now and then; else values whose magnitudes are some powers of two apart. */
static void fill(const struct memory *x, enum dg_cast_type type)
{
    const bool is_wild = one_in(3);
    const size_t element = type == DG_CAST_F32 ? 4 : 2;
    for (size_t i = 0; i + element <= x->size; i += element) {
        const float value = ((float)random_below(2001) - 1000) * dg_f32_of_bits((uint32_t)(110 + random_below(20)) << 23);
        uint32_t bits = dg_bits_of_f32(value);
        if (type != DG_CAST_F32) {
            bits = type == DG_CAST_BF16 ? dg_bf16_from_f32(value) : dg_f16_from_f32(value);
        }
        if (is_wild && one_in(200)) {
            bits = random_bits();
        }
        memcpy(x->host + i, &bits, element);
    }
}

static int64_t random_gran(void)
{
    static const int64_t grans[] = {1, 2, 3, 8, 16, 31, 32, 33, 64, 65, 100, 128, 128, 128, 256, 1000, 1024, 3000};
    return grans[random_below((int64_t)(sizeof(grans) / sizeof(grans[0])))];
}

static void test_cast(cudaStream_t stream)
{
    struct dg_cast_args args = {
        .m = 1 + random_below(one_in(2) ? 4 : 300),
        .n = one_in(2) ? 8 * (1 + random_below(300)) : 1 + random_below(one_in(2) ? 100 : 2500),
        .type = (enum dg_cast_type)random_below(3),
        .gran_m = one_in(2) ? 1 : random_gran(),
        .code_type = (enum dg_cast_code)random_below(2),
        .scale_type = (enum dg_cast_scale)random_below(3),
    };
    args.gran_n = args.gran_m > 1 && one_in(2) ? args.gran_m : one_in(4) ? 1 : random_gran();
    args.n += args.code_type == DG_CAST_F4E2M1 ? args.n % 2 : 0;
    const bool is_plain = one_in(2);
    const int64_t gap = 1 + random_below(3);
    const bool is_transposed = !is_plain && one_in(3);
    args.stride_m = is_transposed ? gap : is_plain ? args.n : args.n * gap + random_below(5);
    args.stride_n = is_transposed ? args.m * gap : !is_plain && one_in(3) ? gap : 1;
    const int64_t element = args.type == DG_CAST_F32 ? 4 : 2;
    const int64_t offset = is_plain ? 0 : element * random_below(4); /* not always at a multiple of 16 bytes */
    struct memory x = make_memory(((args.m - 1) * args.stride_m + (args.n - 1) * args.stride_n + 1) * element + offset);
    fill(&x, args.type);
    upload(&x);

    const int64_t blocks = ceil_div(args.n, args.gran_n);
    struct memory codes = make_memory(args.m * args.n / (args.code_type == DG_CAST_F8E4M3 ? 1 : 2));
    struct memory sf = make_memory(ceil_div(args.m, args.gran_m) * (args.scale_type == DG_CAST_SCALE_PACKED ? ceil_div(blocks, 4) * 4 : blocks * 4));
    upload(&codes);
    upload(&sf);
    args.x = x.host + offset;
    args.codes = codes.host;
    args.sf = sf.host;
    args.exec = on_host;
    CHECK_INT(dg_cast_ref(&args), 0);
    args.x = x.device + offset;
    args.codes = codes.device;
    args.sf = sf.device;
    args.exec = (struct dg_exec){.stream = stream, .num_sms = one_in(4) ? 3 : 0};
    CHECK_INT(dg_cast_sm80(&args), 0);
    must(cudaStreamSynchronize(stream), "cast");
    const bool are_codes = is_same(&codes, "codes");
    const bool are_scales = is_same(&sf, "sf");
    if (!CHECK(are_codes && are_scales && is_same(&x, "x"))) {
        printf("    m %lld, n %lld, type %d, blocks %lld x %lld, codes %d, scales %d, strides %lld %lld, offset %lld\n", (long long)args.m,
               (long long)args.n, (int)args.type, (long long)args.gran_m, (long long)args.gran_n, (int)args.code_type, (int)args.scale_type,
               (long long)args.stride_m, (long long)args.stride_n, (long long)offset);
    }
    free_memory(&x);
    free_memory(&codes);
    free_memory(&sf);
}

static void test_cast_back(cudaStream_t stream)
{
    struct dg_cast_back_args args = {.m = 1 + random_below(40), .n = 2 * (1 + random_below(400)), .gran_n = random_gran(), .is_packed = one_in(2)};
    const bool is_transposed = one_in(3);
    args.stride_m = is_transposed ? 1 : args.n + 2 * random_below(4);
    args.stride_n = is_transposed ? args.m + args.m % 2 : 1;
    struct memory packed = make_memory(((args.m - 1) * args.stride_m + (args.n - 1) * args.stride_n) / 2 + 1);
    const int64_t words = ceil_div(args.n, args.gran_n * (args.is_packed ? 4 : 1));
    struct memory sf = make_memory(args.m * words * 4), values = make_memory(args.m * args.n * 4);
    for (size_t i = 0; i < packed.size; i++) {
        packed.host[i] = (uint8_t)random_bits();
    }
    static const uint32_t specials[] = {0x7f800000u, 0x7fc12345u, 0, 0x00000001u, 0xff800000u, 0x00400000u};
    for (int64_t i = 0; i < args.m * words; i++) {
        const uint32_t any = one_in(20) ? specials[random_below(6)] : dg_bits_of_f32((float)random_below(1000) * 0.01f);
        const uint32_t word = args.is_packed ? random_bits() : any;
        memcpy(sf.host + 4 * i, &word, 4);
    }
    upload(&packed);
    upload(&sf);
    upload(&values);
    args.codes = packed.host;
    args.sf = sf.host;
    args.sf_stride_m = words;
    args.sf_stride_n = 1;
    args.values = (float *)(void *)values.host;
    args.exec = on_host;
    CHECK_INT(dg_cast_back_ref(&args), 0);
    args.codes = packed.device;
    args.sf = sf.device;
    args.values = (float *)(void *)values.device;
    args.exec = (struct dg_exec){.stream = stream};
    CHECK_INT(dg_cast_back_sm80(&args), 0);
    must(cudaStreamSynchronize(stream), "cast back");
    if (!CHECK(is_same(&values, "values"))) {
        printf("    m %lld, n %lld, gran %lld, packed %d, strides %lld %lld\n", (long long)args.m, (long long)args.n, (long long)args.gran_n,
               args.is_packed, (long long)args.stride_m, (long long)args.stride_n);
    }
    free_memory(&packed);
    free_memory(&sf);
    free_memory(&values);
}

/* ---- hyperconnection --------------------------------------------------------------------------------------------- */

/* Runs a row twice; `d` and `squares` hold what is expected. The norm of a whole result is the measure of its error. */
static void check_hc_row(const struct dg_hc_backend *row, const struct dg_hc_args *args, const struct memory *d, const struct memory *squares)
{
    const struct memory *results[2] = {d, squares};
    const char *names[2] = {"d", "sqr_sum"};
    uint8_t *got[2];
    for (int time = 0; time < 2; time++) {
        for (int r = 0; r < 2; r++) {
            must(cudaMemset(results[r]->device, FILL, results[r]->size), "fill");
        }
        must(cudaDeviceSynchronize(), "fill");
        CHECK_INT(row->run(args), 0);
        must(cudaStreamSynchronize((cudaStream_t)args->exec.stream), row->name);
        for (int r = 0; r < 2; r++) {
            uint8_t *now = download(results[r]);
            if (time == 0) {
                got[r] = now;
            } else {
                CHECK(memcmp(now, got[r], results[r]->size + 2 * GUARD) == 0); /* the same bits again */
                free(now);
            }
        }
    }
    for (int r = 0; r < 2; r++) {
        const uint32_t *words = (const uint32_t *)(const void *)(got[r] + GUARD);
        const uint32_t *expected = (const uint32_t *)(const void *)results[r]->host;
        CHECK(memcmp(got[r], results[r]->host - GUARD, GUARD) == 0);
        CHECK(memcmp(got[r] + GUARD + results[r]->size, results[r]->host + results[r]->size, GUARD) == 0);
        double error = 0, norm = 0;
        int64_t wrong = 0;
        for (size_t i = 0; i < results[r]->size / 4; i++) {
            const float x = dg_f32_of_bits(words[i]), y = dg_f32_of_bits(expected[i]);
            if (expected[i] == 0xa5a5a5a5u || words[i] == 0xa5a5a5a5u) { /* a gap between rows */
                wrong += words[i] != expected[i];
            } else if (!isfinite(y)) {
                wrong += isnan(y) ? !isnan(x) : x != y;
            } else {
                error += ((double)x - y) * ((double)x - y);
                norm += (double)y * y;
            }
        }
        if (!CHECK(wrong == 0 && sqrt(error) <= 4e-6 * sqrt(norm) + 1e-30)) {
            printf("    %s %s: m %lld, n %lld, k %lld, splits %lld, strides %lld %lld, %lld %lld: %lld wrong, relative error %.3g\n", row->name, names[r],
                   (long long)args->m, (long long)args->n, (long long)args->k, (long long)args->num_splits, (long long)args->a_stride_m,
                   (long long)args->a_stride_k, (long long)args->b_stride_n, (long long)args->b_stride_k, (long long)wrong, sqrt(error / (norm + 1e-300)));
        }
        free(got[r]);
    }
}

static void test_hc(cudaStream_t stream, bool is_large)
{
    struct dg_hc_args args = {.m = 1 + random_below(is_large ? 9000 : 150), .n = random_below(one_in(3) ? 70 : 25),
                              .k = random_below(one_in(3) ? 9000 : 400), .num_splits = 1 + random_below(5)};
    if (is_large) {
        args.n = 24;
        args.k = 64 * (1 + random_below(20));
        args.num_splits = 1 + random_below(2);
    }
    const bool is_plain = is_large || one_in(2);
    args.a_stride_k = is_plain || one_in(2) ? 1 : args.m;
    args.a_stride_m = args.a_stride_k != 1 ? 1 : is_plain ? (args.k + 7) / 8 * 8 : args.k + random_below(3);
    args.b_stride_k = is_plain || one_in(2) ? 1 : args.n;
    args.b_stride_n = args.b_stride_k != 1 ? 1 : is_plain ? (args.k + 3) / 4 * 4 : args.k + random_below(3);
    struct memory a = make_memory(2 * (args.k > 0 ? (args.m - 1) * args.a_stride_m + (args.k - 1) * args.a_stride_k + 1 : 1));
    struct memory b = make_memory(4 * (args.k > 0 && args.n > 0 ? (args.n - 1) * args.b_stride_n + (args.k - 1) * args.b_stride_k + 1 : 1));
    for (size_t i = 0; i < a.size / 2; i++) {
        ((uint16_t *)(void *)a.host)[i] = dg_bf16_from_f32((float)random_below(2001) * 0.001f - 1);
    }
    for (size_t i = 0; i < b.size / 4; i++) {
        ((float *)(void *)b.host)[i] = (float)random_below(2001) * 0.001f - 1;
    }
    if (!is_large && args.k > 0 && args.n > 0 && one_in(4)) { /* one infinite or NaN b: its column, and nothing else */
        ((float *)(void *)b.host)[random_below((int64_t)(b.size / 4))] = one_in(2) ? INFINITY : NAN;
    }
    if (!is_large && args.k > 0 && one_in(4)) { /* the same of a row */
        ((uint16_t *)(void *)a.host)[random_below((int64_t)(a.size / 2))] = dg_bf16_from_f32(one_in(3) ? NAN : one_in(2) ? INFINITY : -INFINITY);
    }
    upload(&a);
    upload(&b);
    args.d_stride_m = args.n + 3;
    args.d_stride_split = args.m * args.d_stride_m;
    args.sqr_sum_stride_m = 2;
    args.sqr_sum_stride_split = 2 * args.m;
    struct memory d = make_memory(args.num_splits * args.d_stride_split * 4), squares = make_memory(args.num_splits * args.sqr_sum_stride_split * 4);
    upload(&d);
    upload(&squares);
    args.a = (const uint16_t *)(const void *)a.host;
    args.b = (const float *)(const void *)b.host;
    args.d = (float *)(void *)d.host;
    args.sqr_sum = (float *)(void *)squares.host;
    args.exec = on_host;
    CHECK_INT(dg_hc_ref(&args), 0);

    args.a = (const uint16_t *)(const void *)a.device;
    args.b = (const float *)(const void *)b.device;
    args.d = (float *)(void *)d.device;
    args.sqr_sum = (float *)(void *)squares.device;
    args.exec = (struct dg_exec){.stream = stream, .num_sms = one_in(4) ? 20 : 0};
    for (size_t row = 0; row < dg_hc_backends_count; row++) {
        if (dg_hc_backends[row].device_type == on_cuda && dg_hc_backends[row].can_run(&args)) {
            check_hc_row(&dg_hc_backends[row], &args, &d, &squares);
        }
    }
    free_memory(&a);
    free_memory(&b);
    free_memory(&d);
    free_memory(&squares);
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

static void test_graph_capture(cudaStream_t stream)
{
    struct memory x = make_memory(16 * 1024 * 2), codes = make_memory(16 * 1024), sf = make_memory(16 * 8 * 4), b = make_memory(24 * 1024 * 4),
                  d = make_memory(16 * 24 * 4), squares = make_memory(16 * 4);
    struct dg_cast_args cast = {.m = 16, .n = 1024, .x = x.device, .stride_m = 1024, .stride_n = 1, .gran_m = 1, .gran_n = 128, .codes = codes.device, .sf = sf.device, .exec = {.stream = stream}};
    struct dg_hc_args hc = {.m = 16, .n = 24, .k = 1024, .a = (const uint16_t *)(const void *)x.device, .a_stride_m = 1024, .a_stride_k = 1, .b = (const float *)(const void *)b.device, .b_stride_n = 1024, .b_stride_k = 1, .num_splits = 1, .d = (float *)(void *)d.device, .d_stride_m = 24, .sqr_sum = (float *)(void *)squares.device, .sqr_sum_stride_m = 1, .exec = {.stream = stream}};
    cudaGraph_t graph;
    size_t nodes = 0;
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin capture");
    CHECK_INT(dg_cast_sm80(&cast), 0);
    size_t launches = 1;
    for (size_t row = 0; row < dg_hc_backends_count; row++) {
        if (dg_hc_backends[row].device_type == on_cuda && dg_hc_backends[row].can_run(&hc)) {
            CHECK_INT(dg_hc_backends[row].run(&hc), 0);
            launches++;
        }
    }
    CHECK_INT(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    must(cudaGraphGetNodes(graph, NULL, &nodes), "nodes");
    CHECK(nodes == launches); /* one each, nothing else */
    cudaGraphDestroy(graph);
    struct memory *all[] = {&x, &codes, &sf, &b, &d, &squares};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        free_memory(all[i]);
    }
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(watchdog_seconds);
    if (!dg_cuda_available(0)) {
        printf("skipped: no CUDA device of compute capability 8.0 or newer\n");
        return CHECK_SKIPPED;
    }
    const int count = argc > 1 ? atoi(argv[1]) : 300; /* of random problems of each kind */
    cudaStream_t stream;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    test_graph_capture(stream);
    for (int i = 0; i < count && checks_failed < 10; ++i) {
        test_cast(stream);
        test_cast_back(stream);
        test_hc(stream, i % 30 == 0);
    }
    must(cudaDeviceSynchronize(), "end");
    return check_report("cuda.cast_hc");
}
