/* Element types, bit by bit: every conversion between a code and its value, one element at a time.
 *
 * A widening conversion is exact. A narrowing one rounds to nearest, ties to even, from the value it is given, once. These
 * functions are the meaning; the kernels of an instruction set do the same to many elements at a time.
 *
 *   type     bits             bias   largest   NaN                  infinity
 *   f16      1 + 5 + 10         15     65504   0x7c01 .. 0x7fff     0x7c00
 *   bf16     1 + 8 + 7         127   3.39e38   0x7f81 .. 0x7fff     0x7f80
 *   f8e4m3   1 + 4 + 3           7       448   0x7f, 0xff           none
 *   f8e5m2   1 + 5 + 2          15     57344   0x7d .. 0x7f         0x7c
 *   f4e2m1   1 + 2 + 1           1         6   none                 none
 *   ue8m0    0 + 8 + 0         127     2^127   0xff                 none; 0 is 2^-127, there is no zero
 */
#ifndef DG_CORE_DTYPE_H
#define DG_CORE_DTYPE_H

#include <stdint.h>
#include <string.h>

static inline uint32_t dg_bits_of_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float dg_f32_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* ---- to f32 ---------------------------------------------------------------------------------------------- */

static inline float dg_f32_from_bf16(uint16_t code)
{
    return dg_f32_of_bits((uint32_t)code << 16); /* bf16 is the upper half of an f32 */
}

/* A float of `exponent_bits` and `mantissa_bits` below its sign bit, IEEE style, without regard to NaN and infinity. */
static inline float dg_f32_from_minifloat(uint32_t code, int exponent_bits, int mantissa_bits)
{
    const uint32_t mantissa = code & ((1u << mantissa_bits) - 1u);
    const uint32_t exponent = (code >> mantissa_bits) & ((1u << exponent_bits) - 1u);
    const uint32_t is_negative = (code >> (mantissa_bits + exponent_bits)) & 1u;
    const int bias = (1 << (exponent_bits - 1)) - 1;

    /* normal: (1 + mantissa / 2^mantissa_bits) * 2^(exponent - bias); subnormal: the same without the 1, at exponent 1 */
    const uint32_t significand = exponent == 0 ? mantissa : mantissa | 1u << mantissa_bits;
    const int scale = (exponent == 0 ? 1 : (int)exponent) - bias - mantissa_bits;
    const float power = dg_f32_of_bits((uint32_t)(scale + 127) << 23); /* 2^scale, never subnormal for these types */
    const float magnitude = (float)significand * power;
    return is_negative ? -magnitude : magnitude;
}

static inline float dg_f32_from_f16(uint16_t code)
{
    if ((code & 0x7c00u) == 0x7c00u) { /* NaN and infinity keep their mantissa */
        return dg_f32_of_bits((uint32_t)(code & 0x8000u) << 16 | 0x7f800000u | (uint32_t)(code & 0x03ffu) << 13);
    }
    return dg_f32_from_minifloat(code, 5, 10);
}

static inline float dg_f32_from_f8e4m3(uint8_t code)
{
    if ((code & 0x7fu) == 0x7fu) {
        return dg_f32_of_bits((uint32_t)(code & 0x80u) << 24 | 0x7fc00000u);
    }
    return dg_f32_from_minifloat(code, 4, 3);
}

static inline float dg_f32_from_f8e5m2(uint8_t code)
{
    return dg_f32_from_f16((uint16_t)(code << 8)); /* f8e5m2 is the upper half of an f16 */
}

/* code: four bits; the upper four are ignored. */
static inline float dg_f32_from_f4e2m1(uint8_t code)
{
    return dg_f32_from_minifloat(code & 0x0fu, 2, 1);
}

static inline float dg_f32_from_ue8m0(uint8_t code)
{
    if (code == 0) {
        return dg_f32_of_bits(0x00400000u); /* 2^-127 is a subnormal f32 */
    }
    return code == 0xffu ? dg_f32_of_bits(0x7fc00000u) : dg_f32_of_bits((uint32_t)code << 23);
}

/* Nibble index of packed f4e2m1: the even index is in the low four bits. */
static inline uint8_t dg_f4e2m1_at(const uint8_t *packed, int64_t index)
{
    const uint8_t pair = packed[index >> 1];
    return index & 1 ? (uint8_t)(pair >> 4) : (uint8_t)(pair & 0x0fu);
}

/* ---- from f32 and f64 ------------------------------------------------------------------------------------ */

static inline uint16_t dg_bf16_from_f32(float value)
{
    const uint32_t bits = dg_bits_of_f32(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(bits >> 16 | 0x0040u); /* NaN, made quiet so that cutting its mantissa leaves no infinity */
    }
    const uint32_t is_odd = bits >> 16 & 1u;
    return (uint16_t)((bits + 0x7fffu + is_odd) >> 16); /* a carry into the exponent is right, up to infinity */
}

/* One rounding, not two. f32 lies between: rounded to odd (an inexact result gets an odd last bit), it never ends on a tie
 * of bf16, which has 16 bits less, so the second rounding decides as if it saw the f64. */
static inline uint16_t dg_bf16_from_f64(double value)
{
    const float nearest = (float)value;
    if (value != value || (double)nearest == value) {
        return dg_bf16_from_f32(nearest);
    }
    const double magnitude = value < 0 ? -value : value;
    const double nearest_magnitude = nearest < 0 ? -(double)nearest : (double)nearest;
    uint32_t bits = dg_bits_of_f32(nearest);
    if (nearest_magnitude > magnitude) {
        bits -= 1; /* towards zero; from infinity to the largest finite f32 */
    }
    return dg_bf16_from_f32(dg_f32_of_bits(bits | 1u));
}

/* Rounds a finite magnitude to `mantissa_bits` below the exponent field, which counts from bias; the result is the code
 * without sign. It may exceed the largest code of the type: the caller saturates. */
static inline uint32_t dg_minifloat_magnitude(float magnitude, int bias, int mantissa_bits)
{
    const uint32_t bits = dg_bits_of_f32(magnitude);
    const int exponent = (int)(bits >> 23) - 127 + bias; /* of the result, when it is normal */
    uint32_t significand = (bits & 0x007fffffu) | 0x00800000u;
    int dropped = 23 - mantissa_bits;
    if (exponent < 1) {
        dropped += 1 - exponent; /* a subnormal result: its last bit is worth as much as that of exponent 1 */
    }
    if (bits < 0x00800000u || dropped > 24) {
        return 0; /* below half of the smallest subnormal; every type here is coarser than a subnormal f32 */
    }
    const uint32_t half = 1u << (dropped - 1);
    const uint32_t rest = significand & ((half << 1) - 1u);
    significand >>= dropped;
    if (rest > half || (rest == half && (significand & 1u) != 0)) {
        significand += 1;
    }
    /* The leading 1 of a normal significand adds one to the exponent field, and so does a carry. */
    return exponent < 1 ? significand : ((uint32_t)(exponent - 1) << mantissa_bits) + significand;
}

static inline uint16_t dg_f16_from_f32(float value)
{
    const uint32_t bits = dg_bits_of_f32(value);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x03ffu));
    }
    if (magnitude >= 0x47800000u) { /* 65536 */
        return (uint16_t)(sign | 0x7c00u);
    }
    return (uint16_t)(sign | dg_minifloat_magnitude(dg_f32_of_bits(magnitude), 15, 10)); /* rounds to infinity itself */
}

/* Saturates: what is beyond 448, infinity too, becomes 448. */
static inline uint8_t dg_f8e4m3_from_f32(float value)
{
    const uint32_t bits = dg_bits_of_f32(value);
    const uint32_t sign = bits >> 24 & 0x80u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint8_t)(sign | 0x7fu);
    }
    if (magnitude >= 0x43e00000u) { /* 448 */
        return (uint8_t)(sign | 0x7eu);
    }
    return (uint8_t)(sign | dg_minifloat_magnitude(dg_f32_of_bits(magnitude), 7, 3));
}

/* Saturates: what is beyond 57344, infinity too, becomes 57344. */
static inline uint8_t dg_f8e5m2_from_f32(float value)
{
    const uint32_t bits = dg_bits_of_f32(value);
    const uint32_t sign = bits >> 24 & 0x80u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint8_t)(sign | 0x7fu);
    }
    if (magnitude >= 0x47600000u) { /* 57344 */
        return (uint8_t)(sign | 0x7bu);
    }
    return (uint8_t)(sign | dg_minifloat_magnitude(dg_f32_of_bits(magnitude), 15, 2));
}

/* TF32 is f32 with a mantissa of 10 bits, in the place of an f32. NaN stays NaN. */
static inline float dg_tf32_from_f32(float value)
{
    const uint32_t bits = dg_bits_of_f32(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return dg_f32_of_bits((bits | 0x00400000u) & ~0x1fffu);
    }
    const uint32_t is_odd = bits >> 13 & 1u;
    return dg_f32_of_bits((bits + 0x0fffu + is_odd) & ~0x1fffu); /* a carry into the exponent is right, up to infinity */
}

/* Quantisers round FP4 by thresholds, ties to the smaller magnitude, and never give a negative zero. NaN gives 6. */
static inline uint8_t dg_f4e2m1_from_f32(float value)
{
    static const float thresholds[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    const float magnitude = value < 0 ? -value : value;
    uint8_t code = 0;
    for (int i = 0; i < 7; i++) {
        if (!(magnitude <= thresholds[i])) {
            code = (uint8_t)(i + 1);
        }
    }
    return value < 0 && code != 0 ? (uint8_t)(code | 0x08u) : code;
}

/* Quantisers round a scale up to a power of two, so that no code saturates: the exponent field, plus one if the
 * mantissa is not zero, at least 1 and at most 254. value is finite and not negative. */
static inline uint8_t dg_ue8m0_above_f32(float value)
{
    const uint32_t bits = dg_bits_of_f32(value);
    const uint32_t exponent = (bits >> 23 & 0xffu) + ((bits & 0x007fffffu) != 0);
    return (uint8_t)(exponent < 1 ? 1 : exponent > 254 ? 254 : exponent);
}

#endif
