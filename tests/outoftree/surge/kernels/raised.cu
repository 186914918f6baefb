#include "raised.h"

__global__ void raise_elements(const float *x, float *y, int64_t n, float amount)
{
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
        y[i] = x[i] + amount;
    }
}

extern "C" int surge_raise_on_gpu(const float *x, float *y, int64_t n, float amount, void *stream)
{
    if (n == 0) {
        return 0;
    }
    const int64_t blocks = (n + 255) / 256;
    raise_elements<<<static_cast<unsigned>(blocks < 4096 ? blocks : 4096), 256, 0, static_cast<cudaStream_t>(stream)>>>(x, y, n, amount);
    return static_cast<int>(cudaGetLastError());
}
