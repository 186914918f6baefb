/* Host time of the C API on CUDA tensors, beside a bare launch of an empty kernel with arguments of the usual size in the same run.
 *
 *     host_cuda
 *
 * Prints nanoseconds for each call, the least and the median of batches of 200 calls into a stream that is never full, what a call takes on top
 * of a bare launch, and, first of all, what the first call of the process takes once there is a CUDA context.
 */
#include <cuda_runtime.h>
#include <deep_gemm/deep_gemm.h>
#include <deep_gemm/ops.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

namespace {

enum { watchdog_seconds = 120, batch = 200, batches = 60, m = 16, n = 128, k = 256 };

struct arguments {
    char bytes[224]; /* as much as those of a GEMM */
};

__global__ void empty(const __grid_constant__ struct arguments arguments)
{
    (void)arguments;
}

void must(int error, const char *what)
{
    if (error != 0) {
        printf("%s: error %d, %s\n", what, error, dg_last_error());
        exit(1);
    }
}

double now_ns()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

int by_value(const void *a, const void *b)
{
    const double x = *static_cast<const double *>(a), y = *static_cast<const double *>(b);
    return (x > y) - (x < y);
}

template <class Call>
void measure(const char *name, double *bare, Call call)
{
    double ns[batches];
    for (double &each : ns) {
        const double begin = now_ns();
        for (int i = 0; i < batch; ++i) {
            call();
        }
        each = (now_ns() - begin) / batch;
        must(cudaDeviceSynchronize(), name);
    }
    qsort(ns, batches, sizeof(ns[0]), by_value);
    const double least = ns[0], median = ns[batches / 2];
    if (*bare == 0) {
        *bare = median;
    }
    printf("%-40s %8.0f %8.0f %+8.0f\n", name, least, median, median - *bare);
}

struct matrix {
    int64_t shape[2], strides[2];
    dg_tensor tensor;

    matrix(dg_dtype dtype, int64_t rows, int64_t columns) : shape{rows, columns}, strides{columns, 1}, tensor{}
    {
        tensor = dg_tensor{NULL, {DG_CUDA, 0}, columns > 0 ? 2 : 1, dtype, shape, strides, 0};
        if (columns == 0) {
            strides[0] = 1;
        }
        const size_t bytes = static_cast<size_t>(rows * (columns > 0 ? columns : 1)) * dtype.bits / 8;
        must(cudaMalloc(&tensor.data, bytes), "cudaMalloc");
        must(cudaMemset(tensor.data, 0, bytes), "cudaMemset");
    }
};

} // namespace

int main()
{
    alarm(watchdog_seconds);
    if (!dg_backend_available("sm80", dg_device{DG_CUDA, 0})) {
        printf("no CUDA device of compute capability 8.0 or newer\n");
        return 77;
    }
    must(cudaFree(NULL), "context");
    cudaStream_t stream;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.device = {DG_CUDA, 0};
    options.stream = stream;
    dg_context *ctx = NULL;
    must(dg_context_create(&options, &ctx), "context");

    matrix a({DG_BF16}, m, k), b({DG_BF16}, n, k), d({DG_BF16}, m, n);
    matrix a8({DG_F8E4M3}, m, k), b8({DG_F8E4M3}, n, k), sfa({DG_F32}, m, k / 128), sfb({DG_F32}, n / 128, k / 128);
    matrix hc_b({DG_F32}, 24, k), hc_d({DG_F32}, m, 24), squares({DG_F32}, m, 0);
    must(cudaDeviceSynchronize(), "inputs");

    double begin = now_ns();
    must(dg_fp8_fp4_gemm_nt(ctx, &a8.tensor, &sfa.tensor, &b8.tensor, &sfb.tensor, &d.tensor, NULL), "first call");
    must(cudaDeviceSynchronize(), "first call");
    printf("first call of the process, fp8_fp4_gemm_nt: %.1f ms\n\n%-40s %8s %8s %8s\n", (now_ns() - begin) * 1e-6, "ns per call", "least", "median", "- bare");

    double bare = 0;
    struct arguments arguments = {};
    measure("bare launch, 224 bytes of arguments", &bare, [&] {
        void *list[] = {&arguments};
        must(cudaLaunchKernel(reinterpret_cast<const void *>(&empty), dim3(132), dim3(256), list, 0, stream), "launch");
    });
    measure("bf16_gemm_nt", &bare, [&] { must(dg_bf16_gemm_nt(ctx, &a.tensor, &b.tensor, &d.tensor, NULL), "bf16_gemm_nt"); });
    measure("fp8_fp4_gemm_nt", &bare,
            [&] { must(dg_fp8_fp4_gemm_nt(ctx, &a8.tensor, &sfa.tensor, &b8.tensor, &sfb.tensor, &d.tensor, NULL), "fp8_fp4_gemm_nt"); });
    measure("tf32_hc_prenorm_gemm", &bare,
            [&] { must(dg_tf32_hc_prenorm_gemm(ctx, &a.tensor, &hc_b.tensor, &hc_d.tensor, &squares.tensor, NULL), "tf32_hc_prenorm_gemm"); });
    measure("bare launch again", &bare, [&] {
        void *list[] = {&arguments};
        must(cudaLaunchKernel(reinterpret_cast<const void *>(&empty), dim3(132), dim3(256), list, 0, stream), "launch");
    });
    dg_context_destroy(ctx);
    return 0;
}
