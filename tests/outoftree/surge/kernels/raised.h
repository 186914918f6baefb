/* The launch of the GPU kernel: plain C on both sides. */
#ifndef SURGE_RAISED_H
#define SURGE_RAISED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* y = x + amount for n elements, enqueued on the stream. Returns a cudaError_t. */
int surge_raise_on_gpu(const float *x, float *y, int64_t n, float amount, void *stream);

#ifdef __cplusplus
}
#endif

#endif
