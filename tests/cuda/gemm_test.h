/* What the tests of the CUDA GEMMs share: the formula of ops/gemm.h in double, and buffers on both sides. */
#ifndef TESTS_CUDA_GEMM_TEST_H
#define TESTS_CUDA_GEMM_TEST_H

#include "cuda/device.h"
#include "device_test.h"
#include "ops/gemm.h"
#include "random.h"

#include <math.h>
#include <string.h>

enum { guard_bytes = 64, guard_byte = 0xa5 };

/* What kernels/ops does around a kernel. */
static inline int run(const struct dg_gemm_args *args)
{
    int32_t previous;
    int error = dg_cuda_enter_device(args->exec.device_id, &previous);
    if (error) {
        return error;
    }
    error = dg_gemm_sm80(args);
    dg_cuda_leave_device(previous);
    return error;
}

/* ---- number formats, by their definitions ------------------------------------------------------------------------ */

static inline double decode_bf16(uint16_t code)
{
    uint32_t bits = (uint32_t)code << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

static inline double decode_e4m3(uint8_t code)
{
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double magnitude = exponent == 15 && mantissa == 7 ? (double)NAN
                       : exponent == 0                ? ldexp(mantissa, -9)
                                                      : ldexp(8 + mantissa, exponent - 10);
    return code & 0x80 ? -magnitude : magnitude;
}

static inline double decode_e2m1(int code)
{
    static const double magnitudes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return code & 8 ? -magnitudes[code & 7] : magnitudes[code & 7];
}

/* ---- the formula ------------------------------------------------------------------------------------------------- */

static inline double operand_at(const struct dg_gemm_operand *x, int64_t i, int64_t k)
{
    int64_t index = i * x->stride_mn + k * x->stride_k;
    if (x->type == DG_GEMM_BF16) {
        return decode_bf16(((const uint16_t *)x->data)[index]);
    }
    if (x->type == DG_GEMM_F8E4M3) {
        return decode_e4m3(((const uint8_t *)x->data)[index]);
    }
    int64_t byte = index >= 0 ? index / 2 : (index - 1) / 2;
    return decode_e2m1(((const uint8_t *)x->data)[byte] >> (index - 2 * byte) * 4 & 15);
}

static inline double scale_at(const struct dg_gemm_scale *s, int64_t i, int64_t k)
{
    int64_t row = i / s->gran_mn * s->stride_mn, block = k / s->gran_k;
    if (s->type == DG_SCALE_F32) {
        return (double)((const float *)s->data)[row + block * s->stride_k];
    }
    if (s->type == DG_SCALE_UE8M0) {
        uint32_t exponent = ((const uint32_t *)s->data)[row + block / 4 * s->stride_k] >> block % 4 * 8 & 255;
        return exponent == 255 ? (double)NAN : ldexp(1, (int)exponent - 127);
    }
    return 1;
}

static inline double output_at(enum dg_gemm_type type, const void *data, int64_t index)
{
    return type == DG_GEMM_F32 ? (double)((const float *)data)[index] : decode_bf16(((const uint16_t *)data)[index]);
}

/* Whether an element of d is the sum of terms, the sum of the absolute values of the finite ones being `size`. */
static inline bool is_close(enum dg_gemm_type d_type, double got, double sum, double size)
{
    const double rounding = d_type == DG_GEMM_F32 ? 0x1p-23 : 0x1p-8, least = d_type == DG_GEMM_F32 ? 0x1p-145 : 0x1p-133;
    if (isnan(sum)) {
        return isnan(got);
    }
    if (size > 3e38 && !isfinite(got)) {
        return true; /* finite terms beyond the range of f32 may be infinite there, of either sign */
    }
    return isinf(sum) ? got == sum : fabs(got - sum) <= 2e-6 * size + rounding * fabs(sum) + least;
}

/* ---- buffers that exist on both sides ---------------------------------------------------------------------------- */

struct buffer {
    size_t bytes;
    unsigned char *host, *device;
};

static inline struct buffer make_buffer(int64_t bytes)
{
    struct buffer b = {bytes > 0 ? (size_t)bytes : 1, NULL, NULL};
    b.host = malloc(b.bytes);
    must(cudaMalloc((void **)&b.device, b.bytes), "cudaMalloc");
    return b;
}

static inline void free_buffer(struct buffer *b)
{
    free(b->host);
    cudaFree(b->device);
}

static inline void upload(const struct buffer *b, cudaStream_t stream)
{
    must(cudaMemcpyAsync(b->device, b->host, b->bytes, cudaMemcpyHostToDevice, stream), "upload");
}

/* ---- contents ---------------------------------------------------------------------------------------------------- */

static inline int64_t round_up(int64_t x, int64_t step)
{
    return (x + step - 1) / step * step;
}

static inline int64_t pick(const int64_t *from, int64_t count)
{
    return from[random_below(count)];
}

static inline void fill_operand(const struct buffer *b, enum dg_gemm_type type, bool has_specials)
{
    if (type == DG_GEMM_BF16) {
        for (size_t i = 0; i + 1 < b->bytes; i += 2) {
            uint16_t code = (uint16_t)((random_bits() & 0x8000) | (0x3e80 + random_bits() % 0x200)); /* 0.25 to 4 */
            if (has_specials && random_below(500) == 0) {
                code = (uint16_t[]){0x7f80, 0xff80, 0x7fc1, 0x0001, 0x8000, 0x7f7f}[random_below(6)];
            }
            memcpy(b->host + i, &code, 2);
        }
        return;
    }
    for (size_t i = 0; i < b->bytes; ++i) {
        b->host[i] = (unsigned char)random_bits();
        if (type == DG_GEMM_F8E4M3 && (b->host[i] & 0x7f) == 0x7f && !(has_specials && random_below(8) == 0)) {
            b->host[i] ^= 0x11; /* no NaN, or few */
        }
    }
}

static inline void fill_scale(const struct buffer *b, enum dg_gemm_scale_type type, bool has_specials)
{
    for (size_t i = 0; i + 3 < b->bytes; i += 4) {
        float value = ldexpf(1.0f + (float)random_below(1000) / 1000.0f, (int)random_below(8) - 4);
        unsigned char exponents[4];
        for (int e = 0; e < 4; ++e) {
            exponents[e] = has_specials && random_below(100) == 0 ? 255 : (unsigned char)(120 + random_below(14));
        }
        if (type == DG_SCALE_UE8M0) {
            memcpy(b->host + i, exponents, 4);
        } else {
            memcpy(b->host + i, &value, 4);
        }
    }
}

#endif
