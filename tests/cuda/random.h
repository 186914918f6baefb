/* Random numbers of the tests of kernels/cuda: xorshift64*, 32 bits at a time, from a fixed seed. */
#ifndef TESTS_CUDA_RANDOM_H
#define TESTS_CUDA_RANDOM_H

#include <stdint.h>

static uint64_t random_state = 1;

static inline uint32_t random_bits(void)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (uint32_t)(random_state * 0x2545f4914f6cdd1du >> 32);
}

static inline int64_t random_below(int64_t limit)
{
    return (int64_t)(random_bits() % (uint64_t)limit);
}

#endif
