/* What the tests of kernels/cuda share. */
#ifndef TESTS_CUDA_DEVICE_TEST_H
#define TESTS_CUDA_DEVICE_TEST_H

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { watchdog_seconds = 300 };

/* Ends the test when what it stands on fails. */
static inline void must(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        printf("%s: %s\n", what, cudaGetErrorString(error));
        exit(1);
    }
}

/* The parallel_for of the references on the host. */
static inline void run_serially(void *user, int64_t count, int64_t grain, void (*task)(void *arg, int64_t begin, int64_t end), void *arg)
{
    (void)user;
    (void)grain;
    task(arg, 0, count);
}

#endif
