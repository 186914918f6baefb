/* raised on the CPU, and on a GPU where there is one; without one the test is skipped, status 77. */
#include "surge/surge.h"

#include <cstdio>
#include <vector>

int main()
{
    constexpr int64_t n = 1000;
    std::vector<float> x(n), y(n, -1.0F);
    for (int64_t i = 0; i < n; i++) {
        x[i] = static_cast<float>(i);
    }
    int64_t shape[] = {n};
    sg_tensor tx = {x.data(), {SG_CPU, 0}, 1, {SG_F32}, shape, nullptr, 0};
    sg_tensor ty = {y.data(), {SG_CPU, 0}, 1, {SG_F32}, shape, nullptr, 0};
    if (!sg_has_cuda() || sg_raised(nullptr, &tx, &ty, nullptr) != SG_OK || y[999] != 1000.0F) {
        std::fprintf(stderr, "on the CPU: %s\n", sg_last_error());
        return 1;
    }
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        std::puts("skipped: no CUDA device; the CPU part passed");
        return 77;
    }
    float *on_gpu = nullptr;
    if (cudaMalloc(&on_gpu, 2 * n * sizeof(float)) != cudaSuccess ||
        cudaMemcpy(on_gpu, x.data(), n * sizeof(float), cudaMemcpyHostToDevice) != cudaSuccess) {
        return 1;
    }
    tx.data = on_gpu;
    ty.data = on_gpu + n;
    tx.device = ty.device = {SG_CUDA, 0};
    sg_raised_options options = SG_RAISED_OPTIONS_INIT;
    options.amount = 2.0;
    if (sg_raised(nullptr, &tx, &ty, &options) != SG_OK ||
        cudaMemcpy(y.data(), on_gpu + n, n * sizeof(float), cudaMemcpyDeviceToHost) != cudaSuccess || y[999] != 1001.0F) {
        std::fprintf(stderr, "on the GPU: %s\n", sg_last_error());
        return 1;
    }
    return 0;
}
