/* The GEMM operators of the public C API on CUDA tensors: each result is compared with that of the same call on CPU tensors by the
 * reference row. Then contexts, streams, capture, and errors that leave everything usable. The program has a CUDA runtime of its own
 * beside that inside the library, as a program with torch in it has. */
#include "check.h"

#include <cuda_runtime_api.h>
#include <deep_gemm/deep_gemm.h>
#include <math.h>
#include <unistd.h>

enum { watchdog_seconds = 120, m = 150, n = 200, k = 320 };

static void must(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        printf("%s: %s\n", what, cudaGetErrorString(error));
        exit(1);
    }
}

/* ---- tensors on both sides --------------------------------------------------------------------------------------- */

struct twin {
    int64_t shape[2], strides[2];
    size_t bytes;
    dg_tensor cpu, cuda;
};

static size_t bytes_of(dg_dtype dtype, int64_t elements)
{
    return (size_t)((elements * dtype.bits * dtype.lanes + 7) / 8);
}

/* A compact matrix, by columns if is_by_columns, filled with bytes from a fixed sequence. */
static void make_twin(struct twin *t, dg_dtype dtype, int64_t rows, int64_t cols, bool is_by_columns)
{
    t->shape[0] = rows;
    t->shape[1] = cols;
    t->strides[0] = is_by_columns ? 1 : cols;
    t->strides[1] = is_by_columns ? rows : 1;
    t->bytes = bytes_of(dtype, rows * cols);
    t->cpu = (dg_tensor){malloc(t->bytes), {DG_CPU, 0}, 2, dtype, t->shape, t->strides, 0};
    t->cuda = t->cpu;
    t->cuda.device = (dg_device){DG_CUDA, 0};
    must(cudaMalloc(&t->cuda.data, t->bytes), "cudaMalloc");
}

static void free_twin(struct twin *t)
{
    free(t->cpu.data);
    cudaFree(t->cuda.data);
}

static uint32_t random_bits(void)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 16);
}

/* Random finite values of moderate size in any of the types used here. */
static void fill(struct twin *t, cudaStream_t stream)
{
    unsigned char *data = t->cpu.data;
    for (size_t i = 0; i < t->bytes; ++i) {
        data[i] = (unsigned char)random_bits();
        if (t->cpu.dtype.code == DG_CODE_F8E4M3FN) {
            data[i] &= 0xbf; /* below 2 */
        }
    }
    if (t->cpu.dtype.code == DG_CODE_FLOAT) {
        for (size_t i = 0; i < t->bytes / 4; ++i) {
            ((float *)t->cpu.data)[i] = 0.5f + (float)(random_bits() % 1000) / 1000.0f;
        }
    }
    if (t->cpu.dtype.code == DG_CODE_BFLOAT) {
        for (size_t i = 0; i < t->bytes / 2; ++i) {
            ((uint16_t *)t->cpu.data)[i] = (uint16_t)(0x3f00 | (random_bits() & 0x80ff)); /* 0.5 to 2 */
        }
    }
    if (t->cpu.dtype.code == DG_CODE_INT) { /* four UE8M0 exponents */
        for (size_t i = 0; i < t->bytes; ++i) {
            data[i] = (unsigned char)(124 + random_bits() % 6);
        }
    }
    must(cudaMemcpyAsync(t->cuda.data, t->cpu.data, t->bytes, cudaMemcpyHostToDevice, stream), "upload");
}

static double value_at(const dg_tensor *t, const void *data, int64_t i)
{
    if (t->dtype.code == DG_CODE_FLOAT) {
        return (double)((const float *)data)[i];
    }
    uint32_t bits = (uint32_t)((const uint16_t *)data)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* ||cuda - cpu|| / ||cpu|| of a result; NaN where one is NaN. */
static double difference(const struct twin *d, cudaStream_t stream)
{
    void *got = malloc(d->bytes);
    must(cudaMemcpyAsync(got, d->cuda.data, d->bytes, cudaMemcpyDeviceToHost, stream), "download");
    must(cudaStreamSynchronize(stream), "run");
    double square = 0, norm = 0;
    for (int64_t i = 0; i < d->shape[0] * d->shape[1]; ++i) {
        double expected = value_at(&d->cpu, d->cpu.data, i), error = value_at(&d->cpu, got, i) - expected;
        square += error * error;
        norm += expected * expected;
    }
    free(got);
    return sqrt(square / norm);
}

/* ---- the operators ----------------------------------------------------------------------------------------------- */

typedef dg_status bf16_operator(dg_context *, const dg_tensor *, const dg_tensor *, dg_tensor *, const dg_bf16_gemm_nt_options *);

/* bf16_gemm_nn, tn and tt have options of the same members. */
static dg_status bf16_nt(dg_context *ctx, const dg_tensor *a, const dg_tensor *b, dg_tensor *d, const dg_bf16_gemm_nt_options *options)
{
    return dg_bf16_gemm_nt(ctx, a, b, d, options);
}

static dg_status bf16_nn(dg_context *ctx, const dg_tensor *a, const dg_tensor *b, dg_tensor *d, const dg_bf16_gemm_nt_options *options)
{
    dg_bf16_gemm_nn_options o = DG_BF16_GEMM_NN_OPTIONS_INIT;
    o.c = options->c;
    return dg_bf16_gemm_nn(ctx, a, b, d, &o);
}

static dg_status bf16_tn(dg_context *ctx, const dg_tensor *a, const dg_tensor *b, dg_tensor *d, const dg_bf16_gemm_nt_options *options)
{
    dg_bf16_gemm_tn_options o = DG_BF16_GEMM_TN_OPTIONS_INIT;
    o.c = options->c;
    return dg_bf16_gemm_tn(ctx, a, b, d, &o);
}

static dg_status bf16_tt(dg_context *ctx, const dg_tensor *a, const dg_tensor *b, dg_tensor *d, const dg_bf16_gemm_nt_options *options)
{
    dg_bf16_gemm_tt_options o = DG_BF16_GEMM_TT_OPTIONS_INIT;
    o.c = options->c;
    return dg_bf16_gemm_tt(ctx, a, b, d, &o);
}

static void check_bf16(dg_context *cpu, dg_context *cuda, cudaStream_t stream, bf16_operator *run, bool is_a_transposed,
                       bool is_b_transposed)
{
    for (int variant = 0; variant < 4; ++variant) {
        bool has_c = variant & 1;
        dg_dtype type = variant & 2 ? (dg_dtype){DG_F32} : (dg_dtype){DG_BF16};
        struct twin a, b, c, d;
        make_twin(&a, (dg_dtype){DG_BF16}, is_a_transposed ? k : m, is_a_transposed ? m : k, false);
        make_twin(&b, (dg_dtype){DG_BF16}, is_b_transposed ? k : n, is_b_transposed ? n : k, false);
        make_twin(&c, type, m, n, true);
        make_twin(&d, type, m, n, false);
        fill(&a, stream);
        fill(&b, stream);
        fill(&c, stream);
        dg_bf16_gemm_nt_options options = DG_BF16_GEMM_NT_OPTIONS_INIT;
        options.c = has_c ? &c.cpu : NULL;
        CHECK_INT(run(cpu, &a.cpu, &b.cpu, &d.cpu, &options), DG_OK);
        options.c = has_c ? &c.cuda : NULL;
        CHECK_INT(run(cuda, &a.cuda, &b.cuda, &d.cuda, &options), DG_OK);
        CHECK(difference(&d, stream) < (variant & 2 ? 1e-6 : 1e-3));
        free_twin(&a);
        free_twin(&b);
        free_twin(&c);
        free_twin(&d);
    }
}

/* One call of fp8_fp4_gemm_nt: types of a and b, and how their scales are given. */
struct scaled_case {
    const char *text;
    dg_dtype a, b, sf;
    int64_t recipe[3];
    bool is_sf_by_columns;
};

static void check_scaled(dg_context *cpu, dg_context *cuda, cudaStream_t stream, const struct scaled_case *s)
{
    struct twin a, b, sfa, sfb, d;
    int64_t per_word = s->sf.code == DG_CODE_INT ? 4 : 1;
    int64_t words = ((k + s->recipe[2] - 1) / s->recipe[2] + per_word - 1) / per_word;
    make_twin(&a, s->a, m, k / s->a.lanes, false);
    make_twin(&b, s->b, n, k / s->b.lanes, false);
    make_twin(&sfa, s->sf, (m + s->recipe[0] - 1) / s->recipe[0], words, s->is_sf_by_columns);
    make_twin(&sfb, s->sf, (n + s->recipe[1] - 1) / s->recipe[1], words, s->is_sf_by_columns);
    make_twin(&d, (dg_dtype){DG_F32}, m, n, false);
    struct twin *inputs[] = {&a, &b, &sfa, &sfb};
    for (int i = 0; i < 4; ++i) {
        fill(inputs[i], stream);
    }
    dg_fp8_fp4_gemm_nt_options options = DG_FP8_FP4_GEMM_NT_OPTIONS_INIT;
    options.recipe.has = true;
    memcpy(options.recipe.value, s->recipe, sizeof options.recipe.value);
    bool is_right = CHECK_INT(dg_fp8_fp4_gemm_nt(cpu, &a.cpu, &sfa.cpu, &b.cpu, &sfb.cpu, &d.cpu, &options), DG_OK);
    is_right &= CHECK_INT(dg_fp8_fp4_gemm_nt(cuda, &a.cuda, &sfa.cuda, &b.cuda, &sfb.cuda, &d.cuda, &options), DG_OK);
    is_right = is_right && CHECK(difference(&d, stream) < 1e-6);
    if (!is_right) {
        fprintf(stderr, "    in %s: %s\n", s->text, dg_last_error());
    }
    for (int i = 0; i < 4; ++i) {
        free_twin(inputs[i]);
    }
    free_twin(&d);
}

static void test_results(dg_context *cpu, dg_context *cuda, cudaStream_t stream)
{
    static const struct scaled_case cases[] = {
        {"fp8, f32 scales (1, 128, 128)", {DG_F8E4M3}, {DG_F8E4M3}, {DG_F32}, {1, 128, 128}, false},
        {"fp8, f32 scales per row, by columns", {DG_F8E4M3}, {DG_F8E4M3}, {DG_F32}, {1, 1, 128}, true},
        {"fp8, packed scales", {DG_F8E4M3}, {DG_F8E4M3}, {DG_I32}, {1, 1, 128}, true},
        {"fp8 and fp4, packed scales of 32", {DG_F8E4M3}, {DG_F4E2M1X2}, {DG_I32}, {1, 1, 32}, true},
        {"fp4, packed scales of 32", {DG_F4E2M1X2}, {DG_F4E2M1X2}, {DG_I32}, {1, 1, 32}, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        check_scaled(cpu, cuda, stream, &cases[i]);
    }
    check_bf16(cpu, cuda, stream, bf16_nt, false, false);
    check_bf16(cpu, cuda, stream, bf16_nn, false, true);
    check_bf16(cpu, cuda, stream, bf16_tn, true, true);
    check_bf16(cpu, cuda, stream, bf16_tt, true, false);
}

/* ---- contexts, streams and errors -------------------------------------------------------------------------------- */

static void test_rest(dg_context *cpu, dg_context *cuda, cudaStream_t stream)
{
    struct twin a, b, d;
    make_twin(&a, (dg_dtype){DG_BF16}, m, k, false);
    make_twin(&b, (dg_dtype){DG_BF16}, n, k, false);
    make_twin(&d, (dg_dtype){DG_F32}, m, n, false);
    fill(&a, stream);
    fill(&b, stream);
    CHECK_INT(dg_bf16_gemm_nt(cpu, &a.cpu, &b.cpu, &d.cpu, NULL), DG_OK);

    /* Captured, and replayed on other data. */
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin capture");
    CHECK_INT(dg_bf16_gemm_nt(cuda, &a.cuda, &b.cuda, &d.cuda, NULL), DG_OK);
    must(cudaStreamEndCapture(stream, &graph), "end capture");
    must(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    for (int replay = 0; replay < 2; ++replay) {
        fill(&a, stream);
        CHECK_INT(dg_bf16_gemm_nt(cpu, &a.cpu, &b.cpu, &d.cpu, NULL), DG_OK);
        must(cudaGraphLaunch(executable, stream), "replay");
        CHECK(difference(&d, stream) < 1e-6);
    }
    must(cudaGraphExecDestroy(executable), "destroy");
    must(cudaGraphDestroy(graph), "destroy");

    /* NULL: the tensors' device and the legacy default stream. */
    must(cudaMemset(d.cuda.data, 0, d.bytes), "clear");
    CHECK_INT(dg_bf16_gemm_nt(NULL, &a.cuda, &b.cuda, &d.cuda, NULL), DG_OK);
    CHECK(difference(&d, NULL) < 1e-6);

    /* A limit on multiprocessors changes no bit. */
    void *before = malloc(d.bytes), *after = malloc(d.bytes);
    must(cudaMemcpy(before, d.cuda.data, d.bytes, cudaMemcpyDeviceToHost), "download");
    CHECK_INT(dg_set_num_sms(cuda, 7), DG_OK);
    CHECK_INT(dg_bf16_gemm_nt(cuda, &a.cuda, &b.cuda, &d.cuda, NULL), DG_OK);
    must(cudaStreamSynchronize(stream), "run");
    must(cudaMemcpy(after, d.cuda.data, d.bytes, cudaMemcpyDeviceToHost), "download");
    CHECK(memcmp(before, after, d.bytes) == 0);
    free(before);
    free(after);

    /* Errors: said clearly, and the next call works. */
    dg_tensor wrong = b.cuda;
    wrong.device.id = 60;
    CHECK(dg_bf16_gemm_nt(NULL, &a.cuda, &wrong, &d.cuda, NULL) != DG_OK);
    CHECK_CONTAINS(dg_last_error(), "bf16_gemm_nt: b");
    CHECK(dg_bf16_gemm_nt(NULL, &a.cuda, &b.cpu, &d.cuda, NULL) != DG_OK);
    CHECK_CONTAINS(dg_last_error(), "bf16_gemm_nt: b");
    CHECK(dg_bf16_gemm_nt(cpu, &a.cuda, &b.cuda, &d.cuda, NULL) != DG_OK);
    CHECK_CONTAINS(dg_last_error(), "bf16_gemm_nt: a");
    dg_tensor a60 = a.cuda, b60 = b.cuda, d60 = d.cuda; /* a device that is not there */
    a60.device.id = b60.device.id = d60.device.id = 60;
    CHECK_INT(dg_bf16_gemm_nt(NULL, &a60, &b60, &d60, NULL), DG_ERR_NOT_SUPPORTED);
    CHECK_CONTAINS(dg_last_error(), "60");
    CHECK_INT(cudaGetLastError(), cudaSuccess);
    must(cudaMemset(d.cuda.data, 0, d.bytes), "clear");
    CHECK_INT(dg_bf16_gemm_nt(NULL, &a.cuda, &b.cuda, &d.cuda, NULL), DG_OK);
    CHECK(difference(&d, NULL) < 1e-6);

    free_twin(&a);
    free_twin(&b);
    free_twin(&d);
}

static dg_context *make_context(dg_device device, void *stream, const char *backend)
{
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.device = device;
    options.stream = stream;
    options.backend = backend;
    dg_context *ctx = NULL;
    CHECK_INT(dg_context_create(&options, &ctx), DG_OK);
    return ctx;
}

int main(void)
{
    alarm(watchdog_seconds);
    CHECK(dg_has_cuda());
    if (!dg_backend_available("sm80", (dg_device){DG_CUDA, 0})) {
        printf("skipped: no CUDA device of compute capability 8.0 or newer\n");
        return CHECK_SKIPPED;
    }
    cudaStream_t stream;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    dg_context *cpu = make_context((dg_device){DG_CPU, 0}, NULL, "ref");
    dg_context *cuda = make_context((dg_device){DG_CUDA, 0}, stream, "sm80");
    test_results(cpu, cuda, stream);
    test_rest(cpu, cuda, stream);
    dg_context_destroy(cpu);
    dg_context_destroy(cuda);
    must(cudaDeviceSynchronize(), "end");
    return check_report("cuda.gemm_api");
}
