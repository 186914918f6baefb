/* How fast the GEMM kernels of the CPU are, against what the machine can do at all.
 *
 *     gemm_cpu [--json FILE] [--rows avx512,amx] [--types f8,bf16,mx] [--m 1,16,512] [--nk 2112x7168,7168x2048] [--seconds S]
 *
 * First the limits, measured here and now: read bandwidth of memory, and the peak of multiply-adds of each instruction set.
 * Then for each shape and row of the table the median time, and the fraction of the limit
 * max(bytes / bandwidth, flops / peak of that row) that it reaches. Weights rotate over 160 MiB, so they come from memory. Rows
 * alternate, so that a busy machine slows all of them; on a noisy one trust ratios within a run only.
 */
#define _POSIX_C_SOURCE 200809L
#include "core/cpu.h"
#include "core/dtype.h"
#include "core/parallel.h"
#include "ops/gemm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <immintrin.h>

enum { MAX_ROWS = 8, MAX_TIMES = 400, MAX_WEIGHTS = 512 };

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *x, const void *y)
{
    const double a = *(const double *)x;
    const double b = *(const double *)y;
    return (a > b) - (a < b);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(*values), by_value);
    return values[count / 2];
}

static void *allocate(size_t size)
{
    void *memory = aligned_alloc(64, (size + 63) / 64 * 64);
    if (memory == NULL) {
        fprintf(stderr, "gemm_cpu: no memory for %zu bytes\n", size);
        exit(1);
    }
    return memory;
}

/* ---- limits of the machine --------------------------------------------------------------------------------- */

enum { READ_BYTES = 512 << 20, PEAK_ROUNDS = 2000000 };

struct limit_job {
    const uint8_t *memory;
    int64_t threads;
    uint64_t sum[64];
};

static void read_task(void *arg, int64_t begin, int64_t end)
{
    struct limit_job *job = arg;
    for (int64_t t = begin; t < end; t++) {
        const int64_t share = READ_BYTES / job->threads / 256 * 256;
        const uint8_t *p = job->memory + t * share;
        __m128i sum = _mm_setzero_si128();
        for (int64_t i = 0; i < share; i += 64) {
            for (int64_t x = 0; x < 64; x += 16) {
                sum = _mm_add_epi64(sum, _mm_load_si128((const __m128i *)(p + i + x)));
            }
        }
        job->sum[t % 64] += (uint64_t)_mm_cvtsi128_si64(sum);
    }
}

/* Each task multiplies and adds in registers only: 12 independent chains of zeros, or 4 tiles of them. */
__attribute__((target("avx2,fma"))) static void avx2_task(void *arg, int64_t begin, int64_t end)
{
    (void)arg;
    __asm__ volatile("vzeroall" : : : "xmm0", "xmm1");
    for (int64_t i = 0; i < (end - begin) * PEAK_ROUNDS; i++) {
        __asm__ volatile("vfmadd231ps %%ymm0, %%ymm1, %%ymm4\n\tvfmadd231ps %%ymm0, %%ymm1, %%ymm5\n\t"
                         "vfmadd231ps %%ymm0, %%ymm1, %%ymm6\n\tvfmadd231ps %%ymm0, %%ymm1, %%ymm7\n\t"
                         "vfmadd231ps %%ymm0, %%ymm1, %%ymm8\n\tvfmadd231ps %%ymm0, %%ymm1, %%ymm9\n\t"
                         "vfmadd231ps %%ymm0, %%ymm1, %%ymm10\n\tvfmadd231ps %%ymm0, %%ymm1, %%ymm11\n\t"
                         "vfmadd231ps %%ymm0, %%ymm1, %%ymm12\n\tvfmadd231ps %%ymm0, %%ymm1, %%ymm13\n\t"
                         "vfmadd231ps %%ymm0, %%ymm1, %%ymm14\n\tvfmadd231ps %%ymm0, %%ymm1, %%ymm15"
                         :
                         :
                         : "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
    }
}

__attribute__((target("avx512f"))) static void avx512_task(void *arg, int64_t begin, int64_t end)
{
    (void)arg;
    __asm__ volatile("vzeroall" : : : "xmm0", "xmm1");
    for (int64_t i = 0; i < (end - begin) * PEAK_ROUNDS; i++) {
        __asm__ volatile("vfmadd231ps %%zmm0, %%zmm1, %%zmm4\n\tvfmadd231ps %%zmm0, %%zmm1, %%zmm5\n\t"
                         "vfmadd231ps %%zmm0, %%zmm1, %%zmm6\n\tvfmadd231ps %%zmm0, %%zmm1, %%zmm7\n\t"
                         "vfmadd231ps %%zmm0, %%zmm1, %%zmm8\n\tvfmadd231ps %%zmm0, %%zmm1, %%zmm9\n\t"
                         "vfmadd231ps %%zmm0, %%zmm1, %%zmm10\n\tvfmadd231ps %%zmm0, %%zmm1, %%zmm11\n\t"
                         "vfmadd231ps %%zmm0, %%zmm1, %%zmm12\n\tvfmadd231ps %%zmm0, %%zmm1, %%zmm13\n\t"
                         "vfmadd231ps %%zmm0, %%zmm1, %%zmm14\n\tvfmadd231ps %%zmm0, %%zmm1, %%zmm15"
                         :
                         :
                         : "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
    }
}

static void amx_task(void *arg, int64_t begin, int64_t end)
{
    (void)arg;
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        config.row_bytes[tile] = 64;
        config.rows[tile] = 16;
    }
    /* Tiles begin as zeros. */
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
    for (int64_t i = 0; i < (end - begin) * PEAK_ROUNDS / 8; i++) {
        __asm__ volatile("tdpbf16ps %tmm6, %tmm4, %tmm0\n\ttdpbf16ps %tmm7, %tmm4, %tmm1\n\t"
                         "tdpbf16ps %tmm6, %tmm5, %tmm2\n\ttdpbf16ps %tmm7, %tmm5, %tmm3");
    }
    __asm__ volatile("tilerelease");
}

/* Best of five: a limit is what the machine can do undisturbed. */
static double best_seconds(dg_task task, void *arg, int32_t *threads)
{
    double best = 1e30;
    for (int i = 0; i < 5; i++) {
        const double start = seconds_now();
        dg_pool_parallel_for(threads, *threads, 1, task, arg);
        const double elapsed = seconds_now() - start;
        best = elapsed < best ? elapsed : best;
    }
    return best;
}

struct limits {
    double bytes_per_second;
    double avx2, avx512, amx; /* flops per second */
};

static struct limits measure_limits(int32_t *threads)
{
    struct limits limits = {0};
    struct limit_job job = {.threads = *threads};
    uint8_t *memory = allocate(READ_BYTES);
    memset(memory, 1, READ_BYTES);
    job.memory = memory;
    limits.bytes_per_second = READ_BYTES / best_seconds(read_task, &job, threads);
    free(memory);
    if (dg_cpu()->has_avx2) {
        limits.avx2 = *threads * 12.0 * 16 * PEAK_ROUNDS / best_seconds(avx2_task, NULL, threads);
    }
    if (dg_cpu()->has_avx512) {
        limits.avx512 = *threads * 12.0 * 32 * PEAK_ROUNDS / best_seconds(avx512_task, NULL, threads);
    }
    if (dg_cpu()->has_amx_bf16) {
        limits.amx = *threads * 4.0 * 2 * 16 * 16 * 32 * (PEAK_ROUNDS / 8) / best_seconds(amx_task, NULL, threads);
    }
    return limits;
}

static double peak_of(const struct limits *limits, const char *row)
{
    return strcmp(row, "amx") == 0 ? limits->amx : strcmp(row, "avx512") == 0 ? limits->avx512 : limits->avx2;
}

/* ---- inputs ------------------------------------------------------------------------------------------------ */

static uint64_t random_state = 88172645463325252u;

static uint64_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state * 2685821657736338717u >> 16;
}

/* About normal, with deviation 1. */
static float random_normal(void)
{
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        sum += (float)(random_bits() & 0xfffff) * 0x1p-20f - 0.5f;
    }
    return sum * 1.73f;
}

/* Quantised normal values, as real weights are: their largest magnitude near 448. Random bytes would be 6 % subnormal. */
static void fill_codes(void *data, enum dg_gemm_type type, int64_t count)
{
    enum { PERIOD = 65521 }; /* prime */
    float *values = allocate(PERIOD * sizeof(float));
    for (int64_t i = 0; i < PERIOD; i++) {
        values[i] = random_normal();
    }
    for (int64_t i = 0; i < count; i++) {
        if (type == DG_GEMM_BF16) {
            ((uint16_t *)data)[i] = dg_bf16_from_f32(values[i % PERIOD]);
        } else if (type == DG_GEMM_F8E4M3) {
            ((uint8_t *)data)[i] = dg_f8e4m3_from_f32(100 * values[i % PERIOD]);
        } else if (i % 2 == 0) {
            ((uint8_t *)data)[i / 2] = (uint8_t)(dg_f4e2m1_from_f32(2 * values[i % PERIOD]) | dg_f4e2m1_from_f32(2 * values[(i + 1) % PERIOD]) << 4);
        }
    }
    free(values);
}

/* What the operands are: a name, their types and blocks of scales. */
struct format {
    const char *name;
    enum dg_gemm_type a_type, b_type;
    enum dg_gemm_scale_type scale;
    int64_t b_gran_mn, gran_k;
};

static const struct format formats[] = {
    {"f8", DG_GEMM_F8E4M3, DG_GEMM_F8E4M3, DG_SCALE_F32, 128, 128},
    {"bf16", DG_GEMM_BF16, DG_GEMM_BF16, DG_SCALE_NONE, 1, 1},
    {"mx", DG_GEMM_F8E4M3, DG_GEMM_F8E4M3, DG_SCALE_UE8M0, 1, 32},
    {"f8f4", DG_GEMM_F8E4M3, DG_GEMM_F4E2M1, DG_SCALE_UE8M0, 1, 32},
};

static int64_t bytes_of(enum dg_gemm_type type, int64_t count)
{
    return type == DG_GEMM_BF16 ? 2 * count : type == DG_GEMM_F8E4M3 ? count : count / 2;
}

static struct dg_gemm_scale make_scale(enum dg_gemm_scale_type type, int64_t mn, int64_t k, int64_t gran_mn, int64_t gran_k, int64_t *bytes)
{
    struct dg_gemm_scale s = {.type = type, .gran_mn = gran_mn, .gran_k = gran_k, .stride_k = 1};
    *bytes = 0;
    if (type == DG_SCALE_NONE) {
        return s;
    }
    const int64_t blocks = (k + gran_k - 1) / gran_k;
    const int64_t words = type == DG_SCALE_F32 ? blocks : (blocks + 3) / 4;
    const int64_t count = (mn + gran_mn - 1) / gran_mn * words;
    uint32_t *data = allocate((size_t)count * 4);
    for (int64_t i = 0; i < count; i++) {
        data[i] = type == DG_SCALE_F32 ? dg_bits_of_f32(0x1p-8f * (1 + (float)(random_bits() & 0xff) / 256)) : 0x77767778u;
    }
    s.data = data;
    s.stride_mn = words;
    *bytes = 4 * count;
    return s;
}

/* ---- one shape --------------------------------------------------------------------------------------------- */

struct options {
    const char *rows, *types, *ms, *nks;
    double seconds;
    FILE *json;
    int32_t threads;
};

/* Whether a comma-separated list has the word; NULL has all. */
static bool list_has(const char *list, const char *word)
{
    const size_t length = strlen(word);
    while (list != NULL && *list != 0) {
        const size_t item = strcspn(list, ",");
        if (item == length && strncmp(list, word, length) == 0) {
            return true;
        }
        list += item + (list[item] == ',');
    }
    return list == NULL;
}

static void bench_shape(const struct options *options, const struct limits *limits, const struct format *format, int64_t m, int64_t n, int64_t k)
{
    const int64_t weight_bytes = bytes_of(format->b_type, n * k);
    const int64_t weights_wanted = ((int64_t)160 << 20) / weight_bytes + 2;
    const int64_t weights = weights_wanted < MAX_WEIGHTS ? weights_wanted : MAX_WEIGHTS;
    uint8_t *b = allocate((size_t)(weights * weight_bytes));
    fill_codes(b, format->b_type, n * k);
    for (int64_t w = 1; w < weights; w++) {
        memcpy(b + w * weight_bytes, b, (size_t)weight_bytes);
    }
    void *a = allocate((size_t)bytes_of(format->a_type, m * k));
    fill_codes(a, format->a_type, m * k);
    void *d = allocate((size_t)(2 * m * n));
    memset(d, 0, (size_t)(2 * m * n));
    int64_t sfa_bytes;
    int64_t sfb_bytes;
    int32_t threads = options->threads;
    struct dg_gemm_args args = {
        .m = m,
        .n = n,
        .k = k,
        .a = {a, format->a_type, k, 1},
        .b = {b, format->b_type, k, 1},
        .sfa = make_scale(format->scale, m, k, 1, format->gran_k, &sfa_bytes),
        .sfb = make_scale(format->scale, n, k, format->b_gran_mn, format->gran_k, &sfb_bytes),
        .d = d,
        .d_type = DG_GEMM_BF16,
        .d_stride_m = n,
        .d_stride_n = 1,
        .exec = {.parallel_for = dg_pool_parallel_for, .parallel_for_user = &threads, .num_threads = threads},
    };
    const double flops = 2.0 * (double)m * (double)n * (double)k;
    const double bytes = (double)(weight_bytes + bytes_of(format->a_type, m * k) + 2 * m * n + sfa_bytes + sfb_bytes);

    const struct dg_gemm_backend *rows[MAX_ROWS];
    void *workspaces[MAX_ROWS];
    static double times[MAX_ROWS][MAX_TIMES];
    int count = 0;
    for (size_t i = 0; i < dg_gemm_backends_count; i++) {
        const struct dg_gemm_backend *row = &dg_gemm_backends[i];
        if (row->device_type == DG_CPU && strcmp(row->name, "ref") != 0 && list_has(options->rows, row->name) && row->can_run(&args)) {
            rows[count] = row;
            workspaces[count++] = allocate(row->workspace(&args));
        }
    }
    int rounds = 0;
    int64_t weight = 0;
    const double start = seconds_now();
    while (rounds < MAX_TIMES && (rounds < 5 || seconds_now() - start < options->seconds * count)) {
        for (int r = 0; r < count; r++) {
            for (int warm = 1; warm >= 0; warm--) { /* the first call wakes the threads and brings a into the cache */
                weight = (weight + 1) % weights;
                args.b.data = b + weight * weight_bytes;
                args.exec.workspace = workspaces[r];
                const double begin = seconds_now();
                if (rows[r]->run(&args) != 0) {
                    fprintf(stderr, "gemm_cpu: %s failed\n", rows[r]->name);
                    exit(1);
                }
                times[r][rounds] = seconds_now() - begin;
            }
        }
        rounds++;
    }
    for (int r = 0; r < count; r++) {
        const double seconds = median(times[r], rounds);
        const double read_limit = bytes / limits->bytes_per_second;
        const double flop_limit = flops / peak_of(limits, rows[r]->name);
        const bool is_read_bound = read_limit > flop_limit;
        const double fraction = (is_read_bound ? read_limit : flop_limit) / seconds;
        printf("%-5s %4lld x %5lld x %5lld  %-7s %9.3f ms %8.1f GFLOP/s %6.1f GB/s  %.2f of the limit (%s)\n", format->name, (long long)m,
               (long long)n, (long long)k, rows[r]->name, seconds * 1e3, flops / seconds * 1e-9, bytes / seconds * 1e-9, fraction,
               is_read_bound ? "memory" : "arithmetic");
        fflush(stdout);
        if (options->json != NULL) {
            fprintf(options->json, "{\"format\": \"%s\", \"m\": %lld, \"n\": %lld, \"k\": %lld, \"row\": \"%s\", \"seconds\": %.6g, \"limit\": %.4g}\n",
                    format->name, (long long)m, (long long)n, (long long)k, rows[r]->name, seconds, fraction);
        }
        free(workspaces[r]);
    }
    free((void *)(uintptr_t)args.sfa.data);
    free((void *)(uintptr_t)args.sfb.data);
    free(a);
    free(b);
    free(d);
}

/* The next number of "1,16,512" or the like. */
static bool next_number(const char **text, int64_t *number)
{
    char *end;
    *number = strtoll(*text, &end, 10);
    const bool has_number = end != *text;
    *text = *end == 0 ? end : end + 1; /* behind its comma or x */
    return has_number;
}

int main(int argc, char **argv)
{
    struct options options = {
        .types = "f8,bf16", .ms = "1,4,16,64,128,512", .nks = "2112x7168,576x7168,4096x7168,7168x2048", .seconds = 0.3, .threads = dg_usable_threads()};
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (strcmp(argv[i], "--rows") == 0) {
            options.rows = value;
        } else if (strcmp(argv[i], "--types") == 0) {
            options.types = value;
        } else if (strcmp(argv[i], "--m") == 0) {
            options.ms = value;
        } else if (strcmp(argv[i], "--nk") == 0) {
            options.nks = value;
        } else if (strcmp(argv[i], "--seconds") == 0) {
            options.seconds = atof(value);
        } else if (strcmp(argv[i], "--threads") == 0) {
            options.threads = atoi(value);
        } else if (strcmp(argv[i], "--json") == 0) {
            options.json = fopen(value, "w");
        } else {
            fprintf(stderr, "gemm_cpu: unknown option %s; see the head of gemm_cpu.c\n", argv[i]);
            return 2;
        }
    }

    const struct limits limits = measure_limits(&options.threads);
    printf("%d threads: read %.1f GB/s; GFLOP/s: avx2 %.0f, avx512 %.0f, amx %.0f\n", options.threads, limits.bytes_per_second * 1e-9, limits.avx2 * 1e-9,
           limits.avx512 * 1e-9, limits.amx * 1e-9);
    for (size_t f = 0; f < sizeof(formats) / sizeof(formats[0]); f++) {
        const char *nks = options.nks;
        int64_t n;
        int64_t k;
        while (list_has(options.types, formats[f].name) && next_number(&nks, &n) && next_number(&nks, &k)) {
            const char *ms = options.ms;
            int64_t m;
            while (next_number(&ms, &m)) {
                bench_shape(&options, &limits, &formats[f], m, n, k);
            }
        }
    }
    if (options.json != NULL) {
        fclose(options.json);
    }
    return 0;
}
