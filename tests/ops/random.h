/* Random numbers of the tests of kernels/ops and kernels/cpu: xorshift64*, from a fixed seed. */
#ifndef TESTS_OPS_RANDOM_H
#define TESTS_OPS_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

static uint64_t random_state = 88172645463325252u;

static inline uint64_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state * 2685821657736338717u >> 16;
}

static inline int64_t random_below(int64_t end)
{
    return (int64_t)(random_bits() % (uint64_t)end);
}

static inline bool one_in(int64_t count)
{
    return random_below(count) == 0;
}

/* About normal: the sum of four uniform numbers. */
static inline float random_normal(void)
{
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        sum += (float)random_below(1 << 20) / (1 << 20) - 0.5f;
    }
    return sum * 1.7f;
}

#endif
