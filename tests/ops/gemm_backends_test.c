/* Every GEMM kernel of the CPU that this machine can run, against the formula of ops/gemm.h in double.
 *
 * Cases are drawn from a fixed seed: ragged shapes, every type and scale format in any mix, row, column and broken strides,
 * c, gaps between columns of d, and values at the edges: NaN codes, subnormal codes, infinities, scales from 2^-127 to 2^127. Each
 * case also checks that nothing but d is written, and that threads and their number do not show in a single bit.
 */
#include "core/dtype.h"
#include "ops/gemm.h"
#include "random.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- checks ------------------------------------------------------------------------------------------------ */

static int failures;
static char case_text[512];

static void fail(const char *row, const char *format, double x, double y)
{
    if (failures++ < 20) {
        fprintf(stderr, "%s: ", row);
        fprintf(stderr, format, x, y);
        fprintf(stderr, "\n    in %s\n", case_text);
    }
}

/* ---- random numbers ---------------------------------------------------------------------------------------- */

static int64_t one_of(const int64_t *values, size_t count)
{
    return values[random_below((int64_t)count)];
}

/* ---- memory with guards ------------------------------------------------------------------------------------ */

enum { GUARD = 256 };

struct memory {
    uint8_t *base;
    uint8_t *data; /* base + GUARD */
    size_t size;
};

static struct memory memory_of(int64_t size, int64_t misalignment)
{
    struct memory memory;
    memory.size = (size_t)size;
    memory.base = aligned_alloc(64, (memory.size + (size_t)misalignment + 2 * GUARD + 63) / 64 * 64);
    if (memory.base == NULL) {
        fprintf(stderr, "no memory\n");
        exit(1);
    }
    memory.data = memory.base + GUARD + misalignment;
    memset(memory.base, 0xa5, memory.size + (size_t)misalignment + 2 * GUARD);
    return memory;
}

static bool guards_hold(const struct memory *memory)
{
    for (const uint8_t *p = memory->base; p < memory->data; p++) {
        if (*p != 0xa5) {
            return false;
        }
    }
    for (size_t i = 0; i < GUARD; i++) {
        if (memory->data[memory->size + i] != 0xa5) {
            return false;
        }
    }
    return true;
}

static uint64_t checksum(const struct memory *memory)
{
    uint64_t sum = 14695981039346656037u;
    for (size_t i = 0; i < memory->size; i++) {
        sum = (sum ^ memory->data[i]) * 1099511628211u;
    }
    return sum;
}

/* ---- ways to run tasks ------------------------------------------------------------------------------------- */

typedef void (*task)(void *arg, int64_t begin, int64_t end);

static void run_whole(void *user, int64_t count, int64_t grain, task f, void *arg)
{
    (void)user;
    (void)grain;
    f(arg, 0, count);
}

static void run_backwards(void *user, int64_t count, int64_t grain, task f, void *arg)
{
    (void)user;
    (void)grain;
    for (int64_t i = count; i-- > 0;) {
        f(arg, i, i + 1);
    }
}

struct thread_job {
    task f;
    void *arg;
    int64_t begin, end;
};

static void *thread_main(void *arg)
{
    const struct thread_job *job = arg;
    job->f(job->arg, job->begin, job->end);
    return NULL;
}

static void run_threads(void *user, int64_t count, int64_t grain, task f, void *arg)
{
    enum { THREADS = 3 };
    (void)user;
    (void)grain;
    pthread_t threads[THREADS];
    struct thread_job jobs[THREADS];
    for (int64_t t = 0; t < THREADS; t++) {
        jobs[t] = (struct thread_job){f, arg, count * t / THREADS, count * (t + 1) / THREADS};
        if (pthread_create(&threads[t], NULL, thread_main, &jobs[t]) != 0) {
            fprintf(stderr, "no thread\n");
            exit(1);
        }
    }
    for (int64_t t = 0; t < THREADS; t++) {
        pthread_join(threads[t], NULL);
    }
}

static const struct dg_exec ways[] = {
    {.parallel_for = run_whole, .num_threads = 1},
    {.parallel_for = run_backwards, .num_threads = 5},
    {.parallel_for = run_threads, .num_threads = 3},
    {.parallel_for = run_threads, .num_threads = 64},
};

/* ---- one case ---------------------------------------------------------------------------------------------- */

/* What values and scales a case has. */
enum content {
    CONTENT_USUAL,     /* normal values, scales around 2^-8 */
    CONTENT_ALL_CODES, /* every bit pattern, NaN too */
    CONTENT_EXTREME,   /* scales over the whole range of f32, huge and tiny values, some infinities and NaN */
    CONTENT_COUNT
};

struct operand_case {
    struct memory data;
    struct memory scales;
    struct dg_gemm_operand operand;
    struct dg_gemm_scale scale;
    double *values; /* [mn, k], scale included */
};

static float random_value(enum content content)
{
    if (content == CONTENT_EXTREME) {
        switch (random_below(12)) {
        case 0: return ldexpf(random_normal(), (int)random_below(250) - 125);
        case 1: return one_in(8) ? INFINITY : 0;
        case 2: return ldexpf(random_normal(), -130);
        default: break;
        }
    }
    return random_normal();
}

static void store_code(const struct dg_gemm_operand *x, int64_t index, enum content content)
{
    const bool is_any = content == CONTENT_ALL_CODES || (content == CONTENT_EXTREME && one_in(16));
    switch (x->type) {
    case DG_GEMM_BF16:
        ((uint16_t *)(uintptr_t)x->data)[index] = content == CONTENT_ALL_CODES && one_in(64) ? (uint16_t)random_bits() : dg_bf16_from_f32(random_value(content));
        break;
    case DG_GEMM_F8E4M3: {
        uint8_t code = is_any ? (uint8_t)random_bits() : dg_f8e4m3_from_f32(100 * random_normal());
        if ((code & 0x7f) == 0x7f && !one_in(content == CONTENT_ALL_CODES ? 16 : 2)) {
            code = 0x05; /* fewer NaN, or nothing else would be seen */
        }
        ((uint8_t *)(uintptr_t)x->data)[index] = code;
        break;
    }
    case DG_GEMM_F4E2M1: {
        uint8_t *pair = &((uint8_t *)(uintptr_t)x->data)[index >> 1];
        const uint8_t code = (uint8_t)(random_bits() & 15);
        const int is_odd = (int)(index & 1);
        *pair = (uint8_t)((*pair & (is_odd ? 0x0f : 0xf0)) | code << (4 * is_odd));
        break;
    }
    case DG_GEMM_F32: ((float *)(uintptr_t)x->data)[index] = random_value(content); break;
    }
}

static float random_scale(enum content content, bool is_power)
{
    int exponent = (int)random_below(6) - 10;
    float mantissa = is_power ? 1 : 1 + (float)random_below(1 << 20) / (1 << 20);
    if (content == CONTENT_EXTREME) {
        switch (random_below(40)) {
        case 0: exponent = (int)random_below(255) - 127; break;
        case 1: exponent = one_in(2) ? 127 : -127; break;
        case 2: return is_power ? NAN : one_in(4) ? NAN : one_in(2) ? 0 : -1.5f;
        case 3: return is_power ? 1 : one_in(4) ? INFINITY : 1.25e-3f;
        default: break;
        }
    }
    return ldexpf(mantissa, exponent);
}

/* Element sizes in bits. */
static int64_t bits_of(enum dg_gemm_type type)
{
    return type == DG_GEMM_F32 ? 32 : type == DG_GEMM_BF16 ? 16 : type == DG_GEMM_F8E4M3 ? 8 : 4;
}

static double value_at(const struct dg_gemm_operand *x, int64_t index)
{
    switch (x->type) {
    case DG_GEMM_BF16: return (double)dg_f32_from_bf16(((const uint16_t *)x->data)[index]);
    case DG_GEMM_F8E4M3: return (double)dg_f32_from_f8e4m3(((const uint8_t *)x->data)[index]);
    case DG_GEMM_F4E2M1: return (double)dg_f32_from_f4e2m1(dg_f4e2m1_at(x->data, index));
    case DG_GEMM_F32: return (double)((const float *)x->data)[index];
    }
    return 0;
}

static void make_scales(struct operand_case *x, int64_t mn, int64_t k, enum content content)
{
    static const int64_t grans_mn[] = {1, 128, 3, 1000000};
    static const int64_t grans_k[] = {128, 128, 32, 64, 96, 256, 1000000, 5, 100};
    struct dg_gemm_scale *s = &x->scale;
    s->type = (enum dg_gemm_scale_type)random_below(3);
    s->gran_mn = one_of(grans_mn, 4);
    s->gran_k = one_of(grans_k, 9);
    const int64_t rows = (mn + s->gran_mn - 1) / s->gran_mn;
    const int64_t blocks = (k + s->gran_k - 1) / s->gran_k;
    const int64_t words = s->type == DG_SCALE_UE8M0 ? (blocks + 3) / 4 : blocks;
    const bool is_mn_major = one_in(2);
    s->stride_mn = is_mn_major ? 1 : words + random_below(3);
    s->stride_k = is_mn_major ? rows + random_below(5) : 1;
    const int64_t size = (rows > 0 && words > 0 ? (rows - 1) * s->stride_mn + (words - 1) * s->stride_k + 1 : 0) * 4;
    x->scales = memory_of(size, 0);
    s->data = x->scales.data;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t q = 0; q < blocks; q++) {
            if (s->type == DG_SCALE_F32) {
                ((float *)(uintptr_t)x->scales.data)[r * s->stride_mn + q * s->stride_k] = random_scale(content, false);
            } else if (s->type == DG_SCALE_UE8M0) {
                const float scale = random_scale(content, true);
                uint32_t *word = &((uint32_t *)(uintptr_t)x->scales.data)[r * s->stride_mn + q / 4 * s->stride_k];
                const uint32_t byte = isnan(scale) ? 255 : (uint32_t)(ilogbf(scale) + 127);
                *word = (*word & ~(0xffu << (8 * (q % 4)))) | byte << (8 * (q % 4));
            }
        }
    }
}

static double scale_of(const struct dg_gemm_scale *s, int64_t mn, int64_t k)
{
    const int64_t r = mn / s->gran_mn;
    const int64_t q = k / s->gran_k;
    if (s->type == DG_SCALE_NONE) {
        return 1;
    }
    if (s->type == DG_SCALE_F32) {
        return (double)((const float *)s->data)[r * s->stride_mn + q * s->stride_k];
    }
    const uint32_t word = ((const uint32_t *)s->data)[r * s->stride_mn + q / 4 * s->stride_k];
    const uint32_t byte = word >> (8 * (q % 4)) & 255;
    return byte == 255 ? (double)NAN : ldexp(1, (int)byte - 127);
}

static struct operand_case make_operand(int64_t mn, int64_t k, enum dg_gemm_type type, enum content content, bool has_scale)
{
    struct operand_case x = {.operand = {.type = type}};
    const int64_t pad = 2 * random_below(4);
    const int64_t even = type == DG_GEMM_F4E2M1 ? 2 : 1;
    switch (random_below(type == DG_GEMM_F4E2M1 ? 6 : 8)) {
    case 0: case 1: /* mn-major */
        x.operand.stride_mn = 1;
        x.operand.stride_k = (mn + even - 1) / even * even + pad;
        break;
    case 6: /* neither */
        x.operand.stride_mn = 3 * k + 1;
        x.operand.stride_k = 3;
        break;
    case 7: /* every row the same */
        x.operand.stride_mn = 0;
        x.operand.stride_k = 1;
        break;
    default:
        x.operand.stride_mn = (k + even - 1) / even * even + pad;
        x.operand.stride_k = 1;
        break;
    }
    const int64_t elements = mn > 0 && k > 0 ? (mn - 1) * x.operand.stride_mn + (k - 1) * x.operand.stride_k + 1 : 0;
    const int64_t misalignment = random_below(3) * ((bits_of(type) + 7) / 8);
    x.data = memory_of((elements * bits_of(type) + 7) / 8, misalignment);
    x.operand.data = x.data.data;
    for (int64_t i = 0; i < elements; i++) {
        store_code(&x.operand, i, content);
    }
    if (elements > 0 && x.operand.stride_k == 1 && x.operand.stride_mn > 0 && one_in(4)) { /* from the last row to the first */
        x.operand.data = x.data.data + (mn - 1) * x.operand.stride_mn * bits_of(type) / 8;
        x.operand.stride_mn = -x.operand.stride_mn;
    }
    if (has_scale) {
        make_scales(&x, mn, k, content);
    } else {
        x.scale = (struct dg_gemm_scale){.type = DG_SCALE_NONE, .gran_mn = 1, .gran_k = 1};
        x.scales = memory_of(0, 0);
    }
    x.values = malloc((size_t)(mn * k + 1) * sizeof(double));
    for (int64_t i = 0; i < mn; i++) {
        for (int64_t j = 0; j < k; j++) {
            x.values[i * k + j] = value_at(&x.operand, i * x.operand.stride_mn + j * x.operand.stride_k) * scale_of(&x.scale, i, j);
        }
    }
    return x;
}

static void free_operand(struct operand_case *x)
{
    free(x->data.base);
    free(x->scales.base);
    free(x->values);
}

static int64_t column_of(const struct dg_gemm_args *args, int64_t j)
{
    return args->head_mid == 0 ? j : j + (j + args->head_right) / (args->head_left + args->head_right) * args->head_mid;
}

static double load(const void *data, enum dg_gemm_type type, int64_t index)
{
    return (double)(type == DG_GEMM_F32 ? ((const float *)data)[index] : dg_f32_from_bf16(((const uint16_t *)data)[index]));
}

struct expectation {
    double *sum;       /* [m, n], c included */
    double *magnitude; /* sum of magnitudes: what rounding errors are relative to */
    double *flushed;   /* what taking bf16 values and products below 2^-126 for 0 may cost: kernels/cpu/gemm_operand.h */
};

static void check_d(const char *row, const struct dg_gemm_args *args, const struct memory *d, const struct memory *d_before, const struct expectation *expected,
                    enum content content)
{
    const int64_t size = args->d_type == DG_GEMM_F32 ? 4 : 2;
    uint8_t *is_output = calloc(d->size + 1, 1);
    double error = 0;
    double norm = 0;
    for (int64_t i = 0; i < args->m; i++) {
        for (int64_t j = 0; j < args->n; j++) {
            const int64_t index = i * args->d_stride_m + column_of(args, j);
            memset(is_output + index * size, 1, (size_t)size);
            const double x = load(d->data, args->d_type, index);
            double y = expected->sum[i * args->n + j];
            /* A chain of up to 512 additions in f32 may round every one the same way: the bound is 3e-5. Usual values do not. */
            const double relative = content == CONTENT_USUAL ? 3e-6 : 3e-5;
            /* VDPBF16PS and TDPBF16PS take sums below 2^-126 for 0. */
            double tolerance = relative * expected->magnitude[i * args->n + j] + 0x1p-126 * (double)(args->k / 32 + 2);
            if (strcmp(row, "amx") == 0 || strcmp(row, "avx512_bf16") == 0) { /* and values below 2^-126, beside others up to 2^48 */
                tolerance += 0x1p-78 * (double)args->k;
            }
            if (args->d_type == DG_GEMM_BF16) {
                tolerance += 0x1p-8 * fabs(y) + 0x1p-134;
            }
            if (isfinite(y) && fabs(y) > 3.38e38) {
                continue; /* rounds to infinity or just not */
            }
            if (isnan(y) ? !isnan(x) : isinf(y) ? x != y : !(fabs(x - y) <= tolerance)) {
                fail(row, "d is %.9g, expected %.9g", x, y);
                free(is_output);
                return;
            }
            if (isfinite(y)) {
                error += (x - y) * (x - y);
                norm += y * y;
            }
        }
    }
    if (args->d_type == DG_GEMM_F32 && content == CONTENT_USUAL && args->c == NULL && error > 1e-12 * norm) {
        fail(row, "norm-wise relative error %.3g, expected at most %.3g", sqrt(error / norm), 1e-6);
    }
    for (size_t i = 0; i < d->size; i++) {
        if (!is_output[i] && d->data[i] != d_before->data[i]) {
            fail(row, "byte %.0f of d, between its elements, was written", (double)i, 0);
            break;
        }
    }
    free(is_output);
}

/* A part of the row avx512 that some machines never use for some shapes. The symbols are missing where it was not compiled. */
__attribute__((weak)) bool dg_gemm_avx512_bf16_can_run(const struct dg_gemm_args *args);
__attribute__((weak)) size_t dg_gemm_avx512_bf16_workspace(const struct dg_gemm_args *args);
__attribute__((weak)) dg_kernel_result dg_gemm_avx512_bf16(const struct dg_gemm_args *args);

static struct dg_gemm_backend avx512_bf16;

static const char *type_name(enum dg_gemm_type type)
{
    return type == DG_GEMM_F32 ? "f32" : type == DG_GEMM_BF16 ? "bf16" : type == DG_GEMM_F8E4M3 ? "f8e4m3" : "f4e2m1";
}

struct shape {
    int64_t m, n, k;
};

static int64_t runs;

static void check_case(struct shape shape, enum dg_gemm_type a_type, enum dg_gemm_type b_type, enum content content)
{
    struct dg_gemm_args args = {.m = shape.m, .n = shape.n, .k = shape.k};
    struct operand_case a = make_operand(args.m, args.k, a_type, content, !one_in(4));
    struct operand_case b = make_operand(args.n, args.k, b_type, content, !one_in(4));
    args.a = a.operand;
    args.b = b.operand;
    args.sfa = a.scale;
    args.sfb = b.scale;
    args.d_type = one_in(2) ? DG_GEMM_F32 : DG_GEMM_BF16;
    args.d_stride_n = 1;

    int64_t columns = args.n;
    const bool has_gap = one_in(6);
    if (has_gap) { /* (left + right) divides n */
        const int64_t both = args.n % 2 == 0 ? args.n / 2 : args.n;
        args.head_left = random_below(both);
        args.head_right = both - args.head_left;
        args.head_mid = 1 + random_below(20);
        columns += args.n / both * args.head_mid;
    }
    args.d_stride_m = columns + random_below(5);
    const int64_t size = args.d_type == DG_GEMM_F32 ? 4 : 2;
    const int64_t d_bytes = ((args.m - 1) * args.d_stride_m + columns) * size;
    struct memory d = memory_of(d_bytes, random_below(4) * size);
    struct memory d_before = memory_of(d_bytes, 0);
    struct memory first = memory_of(d_bytes, 0);
    for (int64_t i = 0; i < d_bytes / size; i++) {
        if (size == 4) {
            ((float *)(uintptr_t)d_before.data)[i] = random_normal();
        } else {
            ((uint16_t *)(uintptr_t)d_before.data)[i] = dg_bf16_from_f32(random_normal());
        }
    }

    struct memory c = memory_of(0, 0);
    const bool has_c = one_in(3);
    const bool is_in_place = has_c && !has_gap && one_in(2);
    if (has_c && !is_in_place) {
        free(c.base);
        args.c_stride_m = one_in(2) ? args.n + 3 : 1;
        args.c_stride_n = args.c_stride_m == 1 ? args.m : 1;
        const int64_t elements = (args.m - 1) * args.c_stride_m + (args.n - 1) * args.c_stride_n + 1;
        c = memory_of(elements * size, 0);
        for (int64_t i = 0; i < elements; i++) {
            if (size == 4) {
                ((float *)(uintptr_t)c.data)[i] = random_normal();
            } else {
                ((uint16_t *)(uintptr_t)c.data)[i] = dg_bf16_from_f32(random_normal());
            }
        }
        args.c = c.data;
    } else if (is_in_place) {
        args.c = d.data;
        args.c_stride_m = args.d_stride_m;
        args.c_stride_n = 1;
    }

    const size_t d_doubles = (size_t)(args.m * args.n) * sizeof(double);
    struct expectation expected = {malloc(d_doubles), malloc(d_doubles), malloc(d_doubles)};
    const bool may_flush = content != CONTENT_USUAL && (a_type == DG_GEMM_BF16 || b_type == DG_GEMM_BF16);
    for (int64_t i = 0; i < args.m; i++) {
        for (int64_t j = 0; j < args.n; j++) {
            double sum = 0;
            if (has_c) {
                sum = load(is_in_place ? d_before.data : c.data, args.d_type, i * args.c_stride_m + j * args.c_stride_n);
            }
            double magnitude = fabs(sum);
            double flushed = 0;
            for (int64_t k = 0; k < args.k; k++) {
                const double product = a.values[i * args.k + k] * b.values[j * args.k + k];
                sum += product;
                magnitude += fabs(product);
                if (may_flush) {
                    const double sfa = fabs(scale_of(&a.scale, i, k));
                    const double sfb = fabs(scale_of(&b.scale, j, k));
                    flushed += 0x1p-126 * (fabs(a.values[i * args.k + k]) * sfb + fabs(b.values[j * args.k + k]) * sfa + sfa * sfb);
                }
            }
            expected.flushed[i * args.n + j] = flushed;
            expected.sum[i * args.n + j] = sum;
            expected.magnitude[i * args.n + j] = magnitude;
        }
    }

    snprintf(case_text, sizeof(case_text),
             "m=%lld n=%lld k=%lld a=%s (%lld, %lld) b=%s (%lld, %lld) sfa=%d (%lld, %lld) sfb=%d (%lld, %lld) d=%s c=%d gap=%lld content=%d",
             (long long)args.m, (long long)args.n, (long long)args.k, type_name(a_type), (long long)args.a.stride_mn,
             (long long)args.a.stride_k, type_name(b_type), (long long)args.b.stride_mn, (long long)args.b.stride_k, (int)args.sfa.type,
             (long long)args.sfa.gran_mn, (long long)args.sfa.gran_k, (int)args.sfb.type, (long long)args.sfb.gran_mn,
             (long long)args.sfb.gran_k, type_name(args.d_type), has_c + is_in_place, (long long)args.head_mid, (int)content);

    const uint64_t sums[] = {checksum(&a.data), checksum(&a.scales), checksum(&b.data), checksum(&b.scales), checksum(&c)};
    for (size_t row = 0; row <= dg_gemm_backends_count; row++) {
        const struct dg_gemm_backend *backend = row < dg_gemm_backends_count ? &dg_gemm_backends[row] : &avx512_bf16;
        if (backend->device_type != 1 || backend->run == NULL) {
            continue;
        }
        args.d = d.data;
        for (size_t way = 0; way < sizeof(ways) / sizeof(ways[0]); way++) {
            args.exec = ways[way];
            if (!backend->can_run(&args) || (way > 0 && backend->workspace == NULL)) { /* the reference is slow, once is enough */
                continue;
            }
            const size_t workspace_bytes = backend->workspace != NULL ? backend->workspace(&args) : 0;
            struct memory workspace = memory_of((int64_t)workspace_bytes, 0);
            memset(workspace.data, 0xff, workspace.size);
            args.exec.workspace = workspace.data;
            memcpy(d.data, d_before.data, d.size);
            if (backend->run(&args) != 0) {
                fail(backend->name, "failed", 0, 0);
            }
            if (!guards_hold(&d) || !guards_hold(&workspace)) {
                fail(backend->name, "wrote outside d or the workspace", 0, 0);
            }
            if (way == 0) {
                memcpy(first.data, d.data, d.size);
                check_d(backend->name, &args, &d, &d_before, &expected, content);
            } else if (memcmp(first.data, d.data, d.size) != 0) {
                fail(backend->name, "other bits with way %.0f to run tasks than with way %.0f", (double)way, 0);
            }
            free(workspace.base);
            runs++;
        }
    }
    const uint64_t sums_after[] = {checksum(&a.data), checksum(&a.scales), checksum(&b.data), checksum(&b.scales), checksum(&c)};
    if (memcmp(sums, sums_after, sizeof(sums)) != 0) {
        fail("some row", "wrote to an input", 0, 0);
    }

    free_operand(&a);
    free_operand(&b);
    free(c.base);
    free(d.base);
    free(d_before.base);
    free(first.base);
    free(expected.sum);
    free(expected.magnitude);
    free(expected.flushed);
}

int main(int argc, char **argv)
{
    static const int64_t ms[] = {1, 1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 33, 48, 70};
    static const int64_t ns[] = {1, 2, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 130, 200};
    static const int64_t ks[] = {0, 1, 2, 3, 7, 16, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 200, 256, 300, 384, 512, 513, 640, 700, 1100};
    static const enum dg_gemm_type types[] = {DG_GEMM_F8E4M3, DG_GEMM_F8E4M3, DG_GEMM_BF16, DG_GEMM_F4E2M1, DG_GEMM_F32};
    const int64_t count = argc > 1 ? atoll(argv[1]) : 400;
    const int64_t only = argc > 2 ? atoll(argv[2]) : -1;
    avx512_bf16 = (struct dg_gemm_backend){"avx512_bf16", 1, dg_gemm_avx512_bf16_can_run, dg_gemm_avx512_bf16_workspace, dg_gemm_avx512_bf16, NULL};

    for (int64_t index = 0; index < count; index++) {
        random_state = 88172645463325252u + (uint64_t)index * 7919u;
        for (int i = 0; i < 4; i++) {
            random_bits();
        }
        if (only >= 0 && index != only) {
            continue;
        }
        const struct shape shape = {one_of(ms, sizeof(ms) / sizeof(*ms)), one_of(ns, sizeof(ns) / sizeof(*ns)),
                                    one_of(ks, sizeof(ks) / sizeof(*ks))};
        const enum dg_gemm_type a_type = types[random_below(5)];
        const enum dg_gemm_type b_type = one_in(2) ? a_type : types[random_below(5)];
        const int failures_before = failures;
        check_case(shape, a_type, b_type, one_in(2) ? CONTENT_USUAL : (enum content)random_below(CONTENT_COUNT));
        if (failures != failures_before) {
            fprintf(stderr, "    case %lld\n", (long long)index);
        }
    }
    /* Long sums, where one chain of f32 additions would show, and shapes of several parts and blocks. */
    static const struct shape large[] = {{1, 33, 16384}, {4, 40, 16384}, {16, 40, 16384}, {35, 40, 16384}, {600, 40, 200}, {150, 530, 400}, {20, 20, 9000}};
    for (size_t i = 0; i < sizeof(large) / sizeof(large[0]) && only < 0; i++) {
        for (int type = 0; type < 4; type++) {
            check_case(large[i], types[type + 1], types[type + 1], CONTENT_USUAL);
        }
    }

    for (size_t row = 0; row <= dg_gemm_backends_count; row++) {
        const struct dg_gemm_args small = {.m = 1, .n = 1, .k = 1, .a = {.type = DG_GEMM_BF16}, .b = {.type = DG_GEMM_BF16},
                                           .sfa = {.gran_mn = 1, .gran_k = 1}, .sfb = {.gran_mn = 1, .gran_k = 1}, .d_type = DG_GEMM_F32, .d_stride_n = 1};
        const struct dg_gemm_backend *backend = row < dg_gemm_backends_count ? &dg_gemm_backends[row] : &avx512_bf16;
        if (backend->device_type == 1 && backend->run != NULL) {
            printf("%-12s %s\n", backend->name, backend->can_run(&small) ? "tested" : "SKIPPED: not on this machine");
        }
    }
    printf("%lld runs, %d failures\n", (long long)runs, failures);
    return failures != 0;
}
