/* The CUDA GEMM dg_gemm_sm80 against the formula of ops/gemm.h in double, over random shapes, strides, types and scales; then what a
 * caller may rely on: graph capture, streams, the current context, errors, the same bits every time.
 *
 * Every element is held to |error| <= 2e-6 * sum of |terms| + rounding of d, which one wrong, missing or doubled term breaks. Memory around
 * d must stay as it was. Buffers have the exact size that the strides need, so compute-sanitizer sees any read beyond.
 */
#include "check.h"
#include "gemm_test.h"

#include <dlfcn.h>
#include <pthread.h>

/* ---- the formula ------------------------------------------------------------------------------------------------- */

static double *scaled_operand(const struct dg_gemm_operand *x, const struct dg_gemm_scale *s, int64_t rows, int64_t k)
{
    double *out = malloc((size_t)(rows * k + 1) * sizeof *out);
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < k; ++j) {
            out[i * k + j] = operand_at(x, i, j) * scale_at(s, i, j);
        }
    }
    return out;
}

static int64_t stored_column(const struct dg_gemm_args *args, int64_t j)
{
    if (args->head_mid == 0) {
        return j;
    }
    return j + (j + args->head_right) / (args->head_left + args->head_right) * args->head_mid;
}

/* ---- one problem ------------------------------------------------------------------------------------------------- */

enum layout { rows_aligned, rows_odd, columns, columns_odd, spread, upwards, backwards, same_row, same_k, layouts };
static const char *const layout_names[layouts] = {"rows_aligned", "rows_odd", "columns",  "columns_odd", "spread",
                                                  "upwards",      "backwards", "same_row", "same_k"};

struct setup {
    int64_t m, n, k;
    enum dg_gemm_type type[2];
    enum layout layout[2];
    enum dg_gemm_scale_type scale[2];
    int64_t gran_mn[2], gran_k[2];
    bool is_scale_mn_major[2];
    enum dg_gemm_type d_type;
    bool has_c, is_c_d, is_c_transposed, is_d_odd, has_gap, has_specials;
    int32_t num_sms;
};

struct instance {
    struct setup setup;
    struct dg_gemm_args host, device; /* the same problem on either side */
    struct buffer operand[2], scale[2], c, d;
    int64_t d_offset; /* bytes of guard before d */
};

static void describe(const struct setup *s)
{
    static const char *const types[] = {"bf16", "f8", "f4", "f32"};
    static const char *const scales[] = {"none", "f32", "ue8m0"};
    printf("  m=%lld n=%lld k=%lld num_sms=%d d=%s d_odd=%d gap=%d specials=%d\n", (long long)s->m, (long long)s->n, (long long)s->k,
           s->num_sms, types[s->d_type], s->is_d_odd, s->has_gap, s->has_specials);
    printf("  c=%d is_d=%d transposed=%d\n", s->has_c, s->is_c_d, s->is_c_transposed);
    for (int x = 0; x < 2; ++x) {
        printf("  %c: %s %s, scale %s gran (%lld, %lld) mn_major=%d\n", "ab"[x], types[s->type[x]], layout_names[s->layout[x]],
               scales[s->scale[x]], (long long)s->gran_mn[x], (long long)s->gran_k[x], s->is_scale_mn_major[x]);
    }
}

/* Strides, and the element that data points to; the buffer gets exactly what they reach. */
static struct buffer make_operand(struct dg_gemm_operand *x, enum dg_gemm_type type, enum layout layout, int64_t rows, int64_t k)
{
    bool is_f4 = type == DG_GEMM_F4E2M1;
    int64_t start = 0, columns_step = is_f4 ? round_up(rows, 2) : rows;
    x->type = type;
    x->stride_k = 1;
    switch (layout) {
    case rows_aligned: x->stride_mn = round_up(k, 32); break;
    case rows_odd:
        x->stride_mn = is_f4 ? round_up(k, 2) + 2 : k + 1;
        start = is_f4 ? 2 : 1;
        break;
    case columns:
        x->stride_mn = 1;
        x->stride_k = round_up(rows, 32);
        break;
    case columns_odd:
        x->stride_mn = 1;
        x->stride_k = is_f4 ? columns_step + 2 : columns_step + 1;
        start = is_f4 ? 2 : 1;
        break;
    case spread:
        x->stride_k = is_f4 ? 1 : 3;
        x->stride_mn = is_f4 ? round_up(k, 2) * 2 : 3 * k + 2;
        break;
    case upwards: /* the first row is the last in memory */
        x->stride_mn = -round_up(k, 32);
        start = (rows - 1) * -x->stride_mn;
        break;
    case backwards: /* the first k is the last in memory */
        x->stride_mn = is_f4 ? 1 : k;
        x->stride_k = is_f4 ? -columns_step : -1;
        start = is_f4 ? (k - 1) * columns_step : k - 1;
        break;
    case same_row: x->stride_mn = 0; break;
    default: /* same_k */
        x->stride_mn = is_f4 ? 1 : 2;
        x->stride_k = 0;
        break;
    }
    if (k == 0) {
        start = 0;
    }
    int64_t last = start;
    if (k > 0) {
        last += x->stride_mn > 0 ? (rows - 1) * x->stride_mn : 0;
        last += x->stride_k > 0 ? (k - 1) * x->stride_k : 0;
    }
    struct buffer b = make_buffer(type == DG_GEMM_BF16 ? 2 * (last + 1) : type == DG_GEMM_F8E4M3 ? last + 1 : last / 2 + 1);
    x->data = (const void *)(uintptr_t)(type == DG_GEMM_BF16 ? 2 * start : type == DG_GEMM_F8E4M3 ? start : start / 2);
    return b;
}

static struct buffer make_scale(struct dg_gemm_scale *s, const struct setup *setup, int x, int64_t rows)
{
    s->type = setup->scale[x];
    s->gran_mn = setup->gran_mn[x];
    s->gran_k = setup->gran_k[x];
    int64_t blocks_mn = (rows + s->gran_mn - 1) / s->gran_mn, blocks_k = (setup->k + s->gran_k - 1) / s->gran_k;
    int64_t words = s->type == DG_SCALE_UE8M0 ? (blocks_k + 3) / 4 : blocks_k;
    s->stride_mn = setup->is_scale_mn_major[x] ? 1 : words;
    s->stride_k = setup->is_scale_mn_major[x] ? round_up(blocks_mn, 4) : 1;
    s->data = NULL;
    return make_buffer(s->type == DG_SCALE_NONE || words == 0 ? 0 : ((blocks_mn - 1) * s->stride_mn + (words - 1) * s->stride_k + 1) * 4);
}

static void fill_inputs(struct instance *t)
{
    for (int x = 0; x < 2; ++x) {
        fill_operand(&t->operand[x], t->setup.type[x], t->setup.has_specials);
        fill_scale(&t->scale[x], t->setup.scale[x], t->setup.has_specials);
    }
    memset(t->d.host, guard_byte, t->d.bytes);
    struct buffer *c = t->setup.is_c_d ? &t->d : &t->c;
    size_t begin = t->setup.is_c_d ? (size_t)t->d_offset : 0, end = c->bytes - begin;
    if (t->setup.has_c) {
        for (size_t i = begin; i + 3 < end; i += 4) {
            uint32_t bits = t->setup.d_type == DG_GEMM_F32 ? 0x42000000u + random_bits() % 0x1000000u
                                                           : (0x4200u + random_bits() % 0x100u) * 0x10001u;
            memcpy(c->host + i, &bits, 4);
        }
    }
}

static void place_args(struct dg_gemm_args *args, const struct instance *t, bool is_device)
{
    struct dg_gemm_operand *operands[2] = {&args->a, &args->b};
    struct dg_gemm_scale *scales[2] = {&args->sfa, &args->sfb};
    for (int x = 0; x < 2; ++x) {
        operands[x]->data = (is_device ? t->operand[x].device : t->operand[x].host) + (uintptr_t)operands[x]->data;
        scales[x]->data = is_device ? t->scale[x].device : t->scale[x].host;
    }
    args->d = (is_device ? t->d.device : t->d.host) + t->d_offset;
    if (t->setup.has_c) {
        args->c = t->setup.is_c_d ? args->d : is_device ? t->c.device : t->c.host;
    }
}

static struct instance make_instance(const struct setup *setup)
{
    struct instance t;
    memset(&t, 0, sizeof t);
    t.setup = *setup;
    struct dg_gemm_args *args = &t.host;
    args->m = setup->m;
    args->n = setup->n;
    args->k = setup->k;
    t.operand[0] = make_operand(&args->a, setup->type[0], setup->layout[0], setup->m, setup->k);
    t.operand[1] = make_operand(&args->b, setup->type[1], setup->layout[1], setup->n, setup->k);
    t.scale[0] = make_scale(&args->sfa, setup, 0, setup->m);
    t.scale[1] = make_scale(&args->sfb, setup, 1, setup->n);

    args->d_type = setup->d_type;
    int64_t d_bytes = setup->d_type == DG_GEMM_F32 ? 4 : 2, width = setup->n;
    if (setup->has_gap) {
        args->head_left = 16;
        args->head_mid = 8;
        args->head_right = 5;
        width = stored_column(args, setup->n - 1) + 1;
    }
    args->d_stride_n = 1;
    args->d_stride_m = setup->is_d_odd ? width + 3 : round_up(width, 8);
    t.d_offset = guard_bytes + (setup->is_d_odd ? d_bytes : 0);
    t.d = make_buffer(2 * t.d_offset + round_up(setup->m * args->d_stride_m, 4) * d_bytes);
    args->c_stride_m = setup->is_c_d ? args->d_stride_m : setup->is_c_transposed ? 1 : setup->n;
    args->c_stride_n = setup->is_c_d ? 1 : setup->is_c_transposed ? setup->m : 1;
    t.c = make_buffer(round_up(setup->m * setup->n * d_bytes, 4));
    args->exec.num_threads = 1;
    args->exec.num_sms = setup->num_sms;

    t.device = t.host;
    place_args(&t.host, &t, false);
    place_args(&t.device, &t, true);
    fill_inputs(&t);
    return t;
}

static void free_instance(struct instance *t)
{
    for (int x = 0; x < 2; ++x) {
        free_buffer(&t->operand[x]);
        free_buffer(&t->scale[x]);
    }
    free_buffer(&t->c);
    free_buffer(&t->d);
}

static void upload_inputs(const struct instance *t, cudaStream_t stream)
{
    for (int x = 0; x < 2; ++x) {
        upload(&t->operand[x], stream);
        upload(&t->scale[x], stream);
    }
    upload(&t->c, stream);
    upload(&t->d, stream);
}

/* Compares what the device wrote, `result`, with the formula; t->d.host still has what was there before. */
static bool is_right(const struct instance *t, const unsigned char *result)
{
    const struct dg_gemm_args *args = &t->host;
    double *a = scaled_operand(&args->a, &args->sfa, args->m, args->k), *b = scaled_operand(&args->b, &args->sfb, args->n, args->k);
    unsigned char *untouched = malloc(t->d.bytes);
    memcpy(untouched, result, t->d.bytes);
    int64_t wrong = 0, d_bytes = args->d_type == DG_GEMM_F32 ? 4 : 2;
    for (int64_t i = 0; i < args->m; ++i) {
        for (int64_t j = 0; j < args->n; ++j) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < args->k; ++k) {
                double term = a[i * args->k + k] * b[j * args->k + k];
                sum += term;
                size += isfinite(term) ? fabs(term) : 0;
            }
            if (args->c) {
                double c = output_at(args->d_type, args->c, i * args->c_stride_m + j * args->c_stride_n);
                sum += c;
                size += fabs(c);
            }
            int64_t index = i * args->d_stride_m + stored_column(args, j);
            double got = output_at(args->d_type, result + t->d_offset, index);
            memcpy(untouched + t->d_offset + index * d_bytes, t->d.host + t->d_offset + index * d_bytes, (size_t)d_bytes);
            if (!is_close(args->d_type, got, sum, size) && wrong++ < 3) {
                printf("  d[%lld, %lld] = %.9g, expected %.9g (sum of |terms| %.9g)\n", (long long)i, (long long)j, got, sum, size);
            }
        }
    }
    bool is_guard_intact = memcmp(untouched, t->d.host, t->d.bytes) == 0;
    if (!is_guard_intact) {
        printf("  memory outside of d was written\n");
    }
    free(a);
    free(b);
    free(untouched);
    return wrong == 0 && is_guard_intact;
}

static void check_instance(struct instance *t, cudaStream_t stream)
{
    unsigned char *result = malloc(t->d.bytes), *again = malloc(t->d.bytes);
    t->device.exec.stream = stream;
    upload_inputs(t, stream);
    CHECK(dg_gemm_sm80_can_run(&t->device));
    int error = run(&t->device);
    if (error) {
        printf("  %s\n", dg_cuda_error_text(error));
    }
    must(cudaMemcpyAsync(result, t->d.device, t->d.bytes, cudaMemcpyDeviceToHost, stream), "download");
    upload(&t->d, stream); /* c may be d */
    error |= run(&t->device);
    must(cudaMemcpyAsync(again, t->d.device, t->d.bytes, cudaMemcpyDeviceToHost, stream), "download");
    must(cudaStreamSynchronize(stream), "run");

    CHECK_INT(error, 0);
    bool is_right_result = CHECK(is_right(t, result));
    bool is_same_again = CHECK(memcmp(result, again, t->d.bytes) == 0);
    if (error || !is_right_result || !is_same_again) {
        describe(&t->setup);
    }
    free(result);
    free(again);
}

static void check_setup(const struct setup *setup, cudaStream_t stream)
{
    struct instance t = make_instance(setup);
    check_instance(&t, stream);
    free_instance(&t);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static struct setup random_setup(void)
{
    static const int64_t sizes[] = {1, 2, 7, 16, 31, 33, 64, 100, 127, 128, 129, 200, 257};
    static const int64_t depths[] = {1, 2, 15, 16, 17, 31, 64, 96, 100, 127, 128, 129, 130, 256, 300, 512, 513};
    static const int64_t grans_mn[] = {1, 1, 2, 128, 100};
    static const int64_t grans_k[] = {128, 128, 32, 32, 256, 64, 96, 16, 100, 1};
    struct setup s;
    memset(&s, 0, sizeof s);
    s.m = pick(sizes, 13);
    s.n = pick(sizes, 13);
    s.k = pick(depths, 17);
    bool is_bf16 = random_below(3) == 0;
    for (int x = 0; x < 2; ++x) {
        s.type[x] = is_bf16 ? DG_GEMM_BF16 : random_below(3) ? DG_GEMM_F8E4M3 : DG_GEMM_F4E2M1;
        s.layout[x] = (enum layout)random_below(random_below(2) ? 4 : layouts);
        s.scale[x] = is_bf16 ? DG_SCALE_NONE : (enum dg_gemm_scale_type)random_below(3);
        s.gran_mn[x] = pick(grans_mn, 5);
        s.gran_k[x] = pick(grans_k, random_below(2) ? 4 : 10);
        s.is_scale_mn_major[x] = random_below(2);
    }
    s.d_type = random_below(2) ? DG_GEMM_F32 : DG_GEMM_BF16;
    s.has_gap = random_below(8) == 0;
    s.has_c = !s.has_gap && random_below(2);
    s.is_c_d = s.has_c && random_below(2);
    s.is_c_transposed = s.has_c && random_below(2);
    s.is_d_odd = random_below(3) == 0;
    s.has_specials = random_below(6) == 0;
    s.num_sms = (int32_t[]){0, 1, 3}[random_below(3)]; /* 1: large tiles, and several per block */
    return s;
}

static const struct setup plain_bf16 = {
    .m = 130, .n = 200, .k = 300, .type = {DG_GEMM_BF16, DG_GEMM_BF16}, .gran_mn = {1, 1}, .gran_k = {128, 128}, .d_type = DG_GEMM_F32};

static const struct setup plain_f8 = {.m = 130,
                                      .n = 200,
                                      .k = 300,
                                      .type = {DG_GEMM_F8E4M3, DG_GEMM_F8E4M3},
                                      .scale = {DG_SCALE_F32, DG_SCALE_F32},
                                      .gran_mn = {1, 128},
                                      .gran_k = {128, 128},
                                      .d_type = DG_GEMM_BF16};

/* The first launches of the process are captured, so loading the kernels is not in the way of it. A replay sees new data. */
static void test_graph_capture(cudaStream_t stream)
{
    const struct setup *setups[2] = {&plain_bf16, &plain_f8};
    for (int i = 0; i < 2; ++i) {
        struct instance t = make_instance(setups[i]);
        t.device.exec.stream = stream;
        cudaGraph_t graph;
        cudaGraphExec_t executable;
        must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin capture");
        int error = run(&t.device);
        cudaError_t end = cudaStreamEndCapture(stream, &graph);
        CHECK(error == 0);
        CHECK(end == cudaSuccess);
        if (error || end) {
            printf("  %s, %s\n", dg_cuda_error_text(error), dg_cuda_error_text((int)end));
            continue;
        }
        size_t nodes = 0;
        must(cudaGraphGetNodes(graph, NULL, &nodes), "nodes");
        CHECK(nodes == 1); /* one launch, nothing else */
        must(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
        unsigned char *result = malloc(t.d.bytes);
        for (int replay = 0; replay < 3; ++replay) {
            fill_inputs(&t);
            upload_inputs(&t, stream);
            must(cudaGraphLaunch(executable, stream), "replay");
            must(cudaMemcpyAsync(result, t.d.device, t.d.bytes, cudaMemcpyDeviceToHost, stream), "download");
            must(cudaStreamSynchronize(stream), "replay");
            CHECK(is_right(&t, result));
        }
        free(result);
        cudaGraphExecDestroy(executable);
        cudaGraphDestroy(graph);
        free_instance(&t);
    }
}

static void test_random(cudaStream_t stream, int count)
{
    for (int i = 0; i < count && checks_failed < 10; ++i) {
        struct setup s = random_setup();
        check_setup(&s, stream);
    }
}

/* What gemm_small_sm80.cu takes: few rows, whole chunks of 16 bytes. Narrow and wide d, one warp to sixteen along k, every number of
 * steps about the depth of the ring. */
static void test_few_rows(cudaStream_t stream, int count)
{
    static const int64_t widths[] = {1, 5, 8, 9, 24, 100, 1000, 2112, 3001};
    static const int64_t depths[] = {16, 32, 48, 112, 128, 144, 256, 400, 512, 640, 1024, 1552, 2048, 7168};
    for (int i = 0; i < count && checks_failed < 10; ++i) {
        struct setup s = random_setup();
        s.m = 1 + random_below(16);
        s.n = pick(widths, 9);
        s.k = pick(depths, s.n > 100 ? 8 : 14);
        for (int x = 0; x < 2; ++x) {
            s.type[x] = s.type[0] == DG_GEMM_BF16 ? DG_GEMM_BF16 : DG_GEMM_F8E4M3;
            s.layout[x] = (enum layout[]){rows_aligned, rows_aligned, upwards, same_row}[random_below(4)];
            s.gran_k[x] = (int64_t[]){128, 128, 256, 384, 1 << 20}[random_below(5)];
        }
        check_setup(&s, stream);
    }
}

/* Every pair of e4m3 codes, NaN codes among them: k = 1, so that each element of d is one product. */
static void test_every_code(cudaStream_t stream)
{
    struct setup s = {.m = 256, .n = 256, .k = 1, .type = {DG_GEMM_F8E4M3, DG_GEMM_F8E4M3}, .gran_mn = {1, 1}, .gran_k = {128, 128},
                      .layout = {rows_odd, columns}, .d_type = DG_GEMM_F32};
    for (s.num_sms = 0; s.num_sms < 2; ++s.num_sms) {
        struct instance t = make_instance(&s);
        for (int x = 0; x < 2; ++x) {
            const struct dg_gemm_operand *operand = x ? &t.host.b : &t.host.a;
            unsigned char *data = t.operand[x].host + ((const unsigned char *)operand->data - t.operand[x].host);
            for (int64_t code = 0; code < 256; ++code) {
                data[code * operand->stride_mn] = (unsigned char)code;
            }
        }
        check_instance(&t, stream);
        free_instance(&t);
    }
}

/* Scales whose product is beyond the range of f32, or has too few bits there, while the result is not; and a row of zeros, which stays zero
 * however large that product is. */
static void test_far_scales(cudaStream_t stream)
{
    struct setup s = plain_f8;
    s.d_type = DG_GEMM_F32;
    for (int variant = 0; variant < 8; ++variant) {
        s.m = variant & 1 ? 9 : 130;
        s.k = variant & 2 ? 128 : 384;
        s.gran_mn[1] = 1;
        s.scale[0] = s.scale[1] = variant & 4 ? DG_SCALE_UE8M0 : DG_SCALE_F32;
        struct instance t = make_instance(&s);
        for (int x = 0; x < 2; ++x) {
            for (size_t i = 0; i + 3 < t.scale[x].bytes; i += 4) {
                bool is_large = random_below(2);
                float value = ldexpf(1.5f, (int)(is_large ? 60 + random_below(40) : -60 - random_below(20)));
                unsigned char exponents[4];
                for (int e = 0; e < 4; ++e) {
                    exponents[e] = (unsigned char)(is_large ? 187 + random_below(40) : 67 - random_below(20));
                }
                memcpy(t.scale[x].host + i, s.scale[x] == DG_SCALE_F32 ? (void *)&value : exponents, 4);
            }
        }
        memset(t.operand[0].host, 0, (size_t)t.host.a.stride_mn);
        check_instance(&t, stream);
        free_instance(&t);
    }
}

static void test_empty_k(cudaStream_t stream)
{
    struct setup s = plain_f8;
    s.k = 0;
    check_setup(&s, stream);
    s.has_c = true;
    check_setup(&s, stream);
    s.is_c_d = true;
    check_setup(&s, stream);
}

/* Enough large tiles to fill a device, without a limit on its multiprocessors. */
static void test_large(cudaStream_t stream)
{
    struct setup s = plain_f8;
    s.m = 2000;
    s.n = 1400;
    check_setup(&s, stream);
    s = plain_bf16;
    s.m = 2000;
    s.n = 1400;
    check_setup(&s, stream);
}

/* Operands of more than 2^31 elements apart: offsets are 64-bit. */
static void test_far_rows(cudaStream_t stream)
{
    size_t free_bytes, total_bytes;
    must(cudaMemGetInfo(&free_bytes, &total_bytes), "memory");
    const int64_t stride = (int64_t)1 << 30; /* elements of two bytes: three rows are 4 GiB */
    if (free_bytes < (size_t)6 << 30) {
        printf("far rows: not run, less than 6 GiB are free\n");
        return;
    }
    struct setup s = plain_bf16;
    s.m = 3;
    s.k = 64;
    struct instance t = make_instance(&s);
    unsigned char *far;
    must(cudaMalloc((void **)&far, (size_t)(2 * (2 * stride + s.k))), "far rows");
    for (int i = 0; i < 3; ++i) {
        must(cudaMemcpy(far + 2 * stride * i, t.operand[0].host + 2 * t.host.a.stride_mn * i, (size_t)(2 * s.k), cudaMemcpyHostToDevice),
             "far rows");
    }
    t.device.a.data = far;
    t.device.a.stride_mn = stride;
    check_instance(&t, stream);
    cudaFree(far);
    free_instance(&t);
}

/* An error is returned, changes nothing, and the next call works; nobody else's error is taken or lost. */
static void test_errors(cudaStream_t stream)
{
    struct instance t = make_instance(&plain_f8);
    t.device.exec.device_id = 60;
    CHECK(!dg_gemm_sm80_can_run(&t.device));
    CHECK_INT(run(&t.device), cudaErrorInvalidDevice);
    CHECK_INT(dg_gemm_sm80(&t.device), cudaErrorInvalidDevice);
    t.device.exec.device_id = -1;
    CHECK_INT(run(&t.device), cudaErrorInvalidDevice);
    CHECK_INT(dg_gemm_sm80(&t.device), cudaErrorInvalidDevice);
    CHECK(cudaPeekAtLastError() == cudaSuccess);
    t.device.exec.device_id = 0;
    check_instance(&t, stream);
    CHECK_TEXT(dg_cuda_error_text(cudaErrorInvalidDevice), "cudaErrorInvalidDevice: invalid device ordinal");

    void *too_much = NULL;
    CHECK(cudaMalloc(&too_much, (size_t)1 << 60) == cudaErrorMemoryAllocation);
    CHECK_INT(run(&t.device), cudaSuccess);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
    must(cudaStreamSynchronize(stream), "after an error");

    t.device.a.type = DG_GEMM_F32;
    CHECK(!dg_gemm_sm80_can_run(&t.device));
    free_instance(&t);
}

static void test_device_functions(void)
{
    CHECK(dg_cuda_available(0));
    CHECK(dg_cuda_compute_capability(0) >= 80);
    CHECK(dg_cuda_num_sms(0) > 0);
    CHECK(!dg_cuda_available(60) && !dg_cuda_available(-1) && !dg_cuda_available(1 << 30));
    CHECK(dg_cuda_compute_capability(60) == 0 && dg_cuda_num_sms(60) == 0);
    int32_t previous;
    CHECK(dg_cuda_enter_device(60, &previous) == cudaErrorInvalidDevice);
    CHECK(cudaPeekAtLastError() == cudaSuccess);
}

static void *run_without_context(void *argument)
{
    struct instance *t = argument;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*current)(void **) = NULL;
    if (driver) {
        *(void **)&current = dlsym(driver, "cuCtxGetCurrent");
    }
    CHECK(current);
    if (current) {
        void *before = t, *after = t;
        current(&before);
        CHECK(before == NULL); /* a new thread has none */
        CHECK_INT(run(&t->device), cudaSuccess);
        current(&after);
        CHECK(after == NULL);
    }
    if (driver) {
        dlclose(driver);
    }
    return NULL;
}

/* A thread that never made a device current can call, and has none afterwards either. */
static void test_thread_without_context(cudaStream_t stream)
{
    struct instance t = make_instance(&plain_f8);
    t.device.exec.stream = stream;
    upload_inputs(&t, stream);
    pthread_t thread;
    CHECK_INT(pthread_create(&thread, NULL, run_without_context, &t), 0);
    CHECK_INT(pthread_join(thread, NULL), 0);
    unsigned char *result = malloc(t.d.bytes);
    must(cudaMemcpyAsync(result, t.d.device, t.d.bytes, cudaMemcpyDeviceToHost, stream), "download");
    must(cudaStreamSynchronize(stream), "thread");
    CHECK(is_right(&t, result));
    free(result);
    free_instance(&t);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(watchdog_seconds);
    if (!dg_cuda_available(0)) {
        int32_t previous;
        CHECK(dg_cuda_enter_device(0, &previous) != 0 || dg_cuda_compute_capability(0) > 0);
        printf("skipped: no CUDA device of compute capability 8.0 or newer\n");
        return checks_failed > 0 ? check_report("cuda.gemm_sm80") : CHECK_SKIPPED;
    }
    int count = argc > 1 ? atoi(argv[1]) : 400; /* of random problems */

    cudaStream_t stream;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    test_graph_capture(stream);
    test_device_functions();
    test_every_code(stream);
    test_far_scales(stream);
    test_empty_k(stream);
    test_errors(stream);
    test_thread_without_context(stream);
    check_setup(&plain_f8, NULL); /* the legacy default stream */
    test_far_rows(stream);
    test_large(stream);
    test_few_rows(stream, count);
    test_random(stream, count);
    must(cudaDeviceSynchronize(), "end");
    return check_report("cuda.gemm_sm80");
}
