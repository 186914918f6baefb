/* The CUDA layout kernels against the reference of kernels/cpu/layout_ref.c, over random shapes and strides: every word must be the same,
 * and memory around and between the words of the result must stay as it was. Inputs have the exact size that their strides need, so
 * compute-sanitizer sees any read beyond.
 */
#include "check.h"
#include "cuda/device.h"
#include "ops/layout.h"
#include "device_test.h"
#include "random.h"


enum { guard_words = 16 };

static const uint32_t guard_word = 0xa5a5a5a5u;

/* Mostly powers of two, as scales are; all the numbers that pack in a way of their own; and anything. */
static uint32_t random_scale(void)
{
    static const uint32_t specials[] = {0,           0x80000000u, 0x00400000u, 0x00800000u, 0x7f000000u, 0x7f800000u,
                                        0x7fc00000u, 0xbf800000u, 0x00000001u, 0x3fc00000u, 0x00200000u, 0xff800000u};
    switch (random_below(8)) {
    case 0: return specials[random_below(12)];
    case 1: return random_bits();
    default: return (uint32_t)(1 + random_below(254)) << 23;
    }
}

/* ---- matrices that exist on both sides --------------------------------------------------------------------------- */

struct matrix {
    int64_t words;
    uint32_t *host, *device;
    struct dg_scale_matrix on_host, on_device;
};

enum order { along_k, along_mn, orders };

/* [groups, mn, k], with the strides of a contiguous tensor or with `gap` more. The words lie between guards. */
static struct matrix make_matrix(int64_t groups, int64_t mn, int64_t k, enum order order, int64_t gap)
{
    struct matrix x;
    int64_t row = (order == along_k ? k : mn) + gap, group = row * (order == along_k ? mn : k) + gap;
    int64_t step = gap == 3 ? 2 : 1; /* not contiguous in any direction */
    x.on_host.stride_k = order == along_k ? step : row * step;
    x.on_host.stride_mn = order == along_k ? row * step : step;
    x.on_host.stride_group = group * step;
    x.words = 2 * guard_words + (groups - 1) * x.on_host.stride_group + (mn - 1) * x.on_host.stride_mn + (k - 1) * x.on_host.stride_k + 1;
    x.host = malloc((size_t)x.words * 4);
    must(cudaMalloc((void **)&x.device, (size_t)x.words * 4), "cudaMalloc");
    for (int64_t i = 0; i < x.words; ++i) {
        x.host[i] = guard_word;
    }
    x.on_device = x.on_host;
    x.on_host.data = x.host + guard_words;
    x.on_device.data = x.device + guard_words;
    return x;
}

static void fill(const struct matrix *x)
{
    for (int64_t i = 0; i < x->words; ++i) {
        x->host[i] = random_scale();
    }
}

static void upload(const struct matrix *x)
{
    must(cudaMemcpy(x->device, x->host, (size_t)x->words * 4, cudaMemcpyHostToDevice), "upload");
    must(cudaDeviceSynchronize(), "upload"); /* the copy itself may return earlier */
}

static void free_matrix(struct matrix *x)
{
    free(x->host);
    cudaFree(x->device);
}

/* Whether the device has what the reference wrote on the host; else says where not. */
static bool is_same(const struct matrix *x)
{
    uint32_t *got = malloc((size_t)x->words * 4);
    must(cudaMemcpy(got, x->device, (size_t)x->words * 4, cudaMemcpyDeviceToHost), "download");
    int64_t wrong = 0;
    for (int64_t i = 0; i < x->words; ++i) {
        if (got[i] != x->host[i] && wrong++ < 3) {
            printf("  word %lld of %lld is %08x, expected %08x\n", (long long)(i - guard_words), (long long)(x->words - 2 * guard_words),
                   got[i], x->host[i]);
        }
    }
    free(got);
    return wrong == 0;
}

static int32_t *device_copy(const int32_t *values, int64_t count)
{
    int32_t *copy;
    must(cudaMalloc((void **)&copy, (size_t)(count + 1) * 4), "cudaMalloc");
    must(cudaMemcpy(copy, values, (size_t)count * 4, cudaMemcpyHostToDevice), "upload");
    must(cudaDeviceSynchronize(), "upload");
    return copy;
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static int64_t random_size(void)
{
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 12, 31, 32, 33, 56, 63, 64, 65, 100, 127, 128, 130, 300, 600, 1025, 2100};
    return sizes[random_below(23)];
}

static const struct dg_exec on_cpu = {.parallel_for = run_serially, .num_threads = 1};

static struct dg_exec random_exec(cudaStream_t stream)
{
    struct dg_exec exec = {.num_threads = 1, .stream = stream};
    exec.num_sms = random_below(4) == 0 ? 2 : 0; /* several tiles for each block */
    return exec;
}

static void test_copy(cudaStream_t stream)
{
    struct dg_scale_copy_args args = {.groups = 1 + random_below(3), .mn = random_size(), .k_blocks = random_size()};
    struct matrix from = make_matrix(args.groups, args.mn, args.k_blocks, (enum order)random_below(orders), random_below(5));
    struct matrix to = make_matrix(args.groups, args.mn, args.k_blocks, (enum order)random_below(orders), random_below(5));
    fill(&from);
    upload(&from);
    upload(&to);
    args.from = from.on_device;
    args.to = to.on_device;
    args.exec = random_exec(stream);
    CHECK_INT(dg_scale_copy_sm80(&args), 0);
    must(cudaStreamSynchronize(stream), "copy");
    args.from = from.on_host;
    args.to = to.on_host;
    args.exec = on_cpu;
    dg_scale_copy_ref(&args);
    if (!CHECK(is_same(&to))) {
        printf("  copy [%lld, %lld, %lld]\n", (long long)args.groups, (long long)args.mn, (long long)args.k_blocks);
    }
    free_matrix(&from);
    free_matrix(&to);
}

static void test_pack(cudaStream_t stream)
{
    static const int64_t grans[] = {1, 1, 2, 128, 100, 1 << 30};
    struct dg_scale_pack_args args = {.groups = 1 + random_below(3), .mn = random_size(), .k_blocks = random_size()};
    args.gran_mn = grans[random_below(6)];
    args.alignment = random_below(2) ? 128 : 1;
    int64_t from_rows = (args.mn + args.gran_mn - 1) / args.gran_mn;
    struct matrix from = make_matrix(args.groups, from_rows, args.k_blocks, (enum order)random_below(orders), random_below(5));
    struct matrix to = make_matrix(args.groups, args.mn, (args.k_blocks + 3) / 4, (enum order)random_below(orders), random_below(5));
    fill(&from);
    upload(&from);
    upload(&to);
    int32_t ends[100], *ends_on_device = NULL;
    if (random_below(2)) {
        args.num_ends = random_below(50);
        args.ends_stride = 1 + random_below(2);
        int64_t end = 0;
        for (int64_t p = 0; p < args.num_ends; ++p) {
            end = (end + args.alignment - 1) / args.alignment * args.alignment + random_below(2) * random_below(args.mn + 1);
            ends[p * args.ends_stride] = (int32_t)end;
        }
        ends_on_device = device_copy(ends, 100);
        args.ends = ends_on_device;
    }
    args.from = from.on_device;
    args.to = to.on_device;
    args.exec = random_exec(stream);
    CHECK_INT(dg_scale_pack_sm80(&args), 0);
    must(cudaStreamSynchronize(stream), "pack");
    args.from = from.on_host;
    args.to = to.on_host;
    args.ends = args.ends ? ends : NULL;
    args.exec = on_cpu;
    dg_scale_pack_ref(&args);
    if (!CHECK(is_same(&to))) {
        printf("  pack [%lld, %lld, %lld], gran_mn %lld, %lld ends\n", (long long)args.groups, (long long)args.mn,
               (long long)args.k_blocks, (long long)args.gran_mn, args.ends ? (long long)args.num_ends : -1);
    }
    cudaFree(ends_on_device);
    free_matrix(&from);
    free_matrix(&to);
}

static void test_pack_k_grouped(cudaStream_t stream)
{
    enum { most_groups = 100 };
    struct dg_scale_pack_k_grouped_args args = {.groups = 1 + random_below(most_groups), .mn = random_size()};
    args.gran_k = random_below(2) ? 128 : 32;
    args.k_alignment = 128;
    args.is_psum = random_below(2);
    args.layout_stride = 1 + random_below(2);
    int64_t sizes[most_groups], end = 0;
    int32_t layout[2 * most_groups] = {0};
    for (int64_t g = 0; g < args.groups; ++g) {
        int64_t begin = (end + args.k_alignment - 1) / args.k_alignment * args.k_alignment;
        sizes[g] = random_below(4) == 0 ? 0 : random_below(2) ? random_below(10) * 128 : random_below(3000);
        end = begin + sizes[g];
        layout[g * args.layout_stride] = (int32_t)(args.is_psum ? end : sizes[g]);
        int64_t blocks = (sizes[g] + args.gran_k - 1) / args.gran_k;
        args.from_rows += blocks;
        args.to_rows += (blocks + 3) / 4;
    }
    args.from_rows += 1 + random_below(2);
    args.to_rows += 1 + random_below(40);
    args.sizes = args.is_psum ? NULL : sizes;
    struct matrix from = make_matrix(1, args.mn, args.from_rows, (enum order)random_below(orders), random_below(5));
    struct matrix to = make_matrix(1, args.mn, args.to_rows, (enum order)random_below(orders), random_below(5));
    fill(&from);
    upload(&from);
    upload(&to);
    int32_t *layout_on_device = device_copy(layout, 2 * most_groups);
    args.layout = layout_on_device;
    args.from = from.on_device;
    args.to = to.on_device;
    args.exec = random_exec(stream);
    CHECK_INT(dg_scale_pack_k_grouped_sm80(&args), 0);
    must(cudaStreamSynchronize(stream), "pack k-grouped");
    args.layout = layout;
    args.from = from.on_host;
    args.to = to.on_host;
    args.exec = on_cpu;
    dg_scale_pack_k_grouped_ref(&args);
    if (!CHECK(is_same(&to))) {
        printf("  pack k-grouped, %lld groups, mn %lld, %lld to %lld rows, psum %d\n", (long long)args.groups, (long long)args.mn,
               (long long)args.from_rows, (long long)args.to_rows, args.is_psum);
    }
    cudaFree(layout_on_device);
    free_matrix(&from);
    free_matrix(&to);
}

/* Sizes on the device that do not fit the matrices: nothing beyond them is read or written. */
static void test_sizes_that_do_not_fit(cudaStream_t stream)
{
    static const int32_t layouts[3][2] = {{1 << 30, 1 << 30}, {-5, 1 << 30}, {INT32_MIN, INT32_MAX}};
    for (int i = 0; i < 3; ++i) {
        struct dg_scale_pack_k_grouped_args args = {.groups = 2, .mn = 70, .from_rows = 9, .to_rows = 5, .layout_stride = 1};
        struct matrix from = make_matrix(1, args.mn, args.from_rows, along_mn, 0), to = make_matrix(1, args.mn, args.to_rows, along_mn, 0);
        upload(&from);
        upload(&to);
        int32_t *layout = device_copy(layouts[i], 2);
        args.layout = layout;
        args.is_psum = i == 2;
        args.gran_k = 128;
        args.k_alignment = 128;
        args.from = from.on_device;
        args.to = to.on_device;
        args.exec.stream = stream;
        CHECK_INT(dg_scale_pack_k_grouped_sm80(&args), 0);
        must(cudaStreamSynchronize(stream), "sizes that do not fit");
        uint32_t *got = malloc((size_t)to.words * 4);
        must(cudaMemcpy(got, to.device, (size_t)to.words * 4, cudaMemcpyDeviceToHost), "download");
        for (int64_t w = 0; w < guard_words; ++w) {
            CHECK(got[w] == guard_word && got[to.words - 1 - w] == guard_word);
        }
        free(got);
        cudaFree(layout);
        free_matrix(&from);
        free_matrix(&to);
    }
}

static void test_graph_capture(cudaStream_t stream)
{
    struct dg_scale_copy_args args = {.groups = 1, .mn = 130, .k_blocks = 56};
    struct matrix from = make_matrix(1, 130, 56, along_k, 0), to = make_matrix(1, 130, 56, along_mn, 0);
    args.from = from.on_device;
    args.to = to.on_device;
    args.exec.stream = stream;
    cudaGraph_t graph;
    size_t nodes = 0;
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin capture");
    CHECK_INT(dg_scale_copy_sm80(&args), 0);
    CHECK_INT(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    must(cudaGraphGetNodes(graph, NULL, &nodes), "nodes");
    CHECK(nodes == 1); /* one launch, nothing else */
    cudaGraphDestroy(graph);
    free_matrix(&from);
    free_matrix(&to);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(watchdog_seconds);
    if (!dg_cuda_available(0)) {
        printf("skipped: no CUDA device of compute capability 8.0 or newer\n");
        return CHECK_SKIPPED;
    }
    int count = argc > 1 ? atoi(argv[1]) : 200; /* of random problems of each kind */

    cudaStream_t stream;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    test_graph_capture(stream);
    for (int i = 0; i < count && checks_failed < 10; ++i) {
        test_copy(stream);
        test_pack(stream);
        test_pack_k_grouped(stream);
    }
    test_sizes_that_do_not_fit(stream);
    must(cudaDeviceSynchronize(), "end");
    return check_report("cuda.layout_sm80");
}
