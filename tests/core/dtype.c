/* Conversions between codes and values: every code of every small type against its definition by powers of two, and every
 * rounding against a search for the nearest value. */
#include "check.h"
#include "core/dtype.h"

#include <math.h>

/* The value of a code by definition: sign, exponent, mantissa, no NaN and no infinity. */
static double defined_value(uint32_t code, int exponent_bits, int mantissa_bits)
{
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (int)(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const double fraction = ldexp(code & ((1u << mantissa_bits) - 1u), -mantissa_bits);
    const double magnitude = exponent == 0 ? ldexp(fraction, 1 - bias) : ldexp(1 + fraction, exponent - bias);
    return code >> (exponent_bits + mantissa_bits) & 1u ? -magnitude : magnitude;
}

static void check_widening(void)
{
    for (uint32_t code = 0; code < 256; code++) {
        const bool is_nan = (code & 0x7f) == 0x7f;
        const float e4m3 = dg_f32_from_f8e4m3((uint8_t)code);
        CHECK(is_nan ? isnan(e4m3) : (double)e4m3 == defined_value(code, 4, 3));
        CHECK_INT(signbit(e4m3) != 0, code >> 7);

        const float e5m2 = dg_f32_from_f8e5m2((uint8_t)code);
        const uint32_t magnitude = code & 0x7f;
        CHECK(magnitude > 0x7c    ? isnan(e5m2)
              : magnitude == 0x7c ? isinf(e5m2)
                                  : (double)e5m2 == defined_value(code, 5, 2));

        const float scale = dg_f32_from_ue8m0((uint8_t)code);
        CHECK(code == 255 ? isnan(scale) : (double)scale == ldexp(1, (int)code - 127));

        CHECK((double)dg_f32_from_f4e2m1((uint8_t)code) == defined_value(code & 15, 2, 1));
    }
    for (uint32_t code = 0; code < 65536; code++) {
        const uint32_t magnitude = code & 0x7fff;
        const float f16 = dg_f32_from_f16((uint16_t)code);
        CHECK(magnitude > 0x7c00    ? isnan(f16)
              : magnitude == 0x7c00 ? isinf(f16)
                                    : (double)f16 == defined_value(code, 5, 10));
        const float bf16 = dg_f32_from_bf16((uint16_t)code);
        CHECK(magnitude > 0x7f80    ? isnan(bf16)
              : magnitude == 0x7f80 ? isinf(bf16)
                                    : (double)bf16 == defined_value(code, 8, 7));
    }
}

/* Every finite code survives the round trip. */
static void check_round_trips(void)
{
    for (uint32_t code = 0; code < 65536; code++) {
        if ((code & 0x7c00) != 0x7c00) {
            CHECK_INT(dg_f16_from_f32(dg_f32_from_f16((uint16_t)code)), code);
        }
        if ((code & 0x7f80) != 0x7f80) {
            CHECK_INT(dg_bf16_from_f32(dg_f32_from_bf16((uint16_t)code)), code);
            CHECK_INT(dg_bf16_from_f64((double)dg_f32_from_bf16((uint16_t)code)), code);
        }
    }
    for (uint32_t code = 0; code < 256; code++) {
        if ((code & 0x7f) != 0x7f) {
            CHECK_INT(dg_f8e4m3_from_f32(dg_f32_from_f8e4m3((uint8_t)code)), code);
        }
        if ((code & 0x7c) != 0x7c) {
            CHECK_INT(dg_f8e5m2_from_f32(dg_f32_from_f8e5m2((uint8_t)code)), code);
        }
    }
    for (uint32_t code = 0; code < 16; code++) {
        CHECK_INT(dg_f4e2m1_from_f32(dg_f32_from_f4e2m1((uint8_t)code)), code == 8 ? 0 : code);
    }
}

/* Between two neighbouring values: the middle goes to the even code, everything else to the nearer one. */
static void check_rounding(void)
{
    for (uint32_t code = 0; code < 0x7e; code++) {
        const float low = dg_f32_from_f8e4m3((uint8_t)code);
        const float high = dg_f32_from_f8e4m3((uint8_t)(code + 1));
        const float middle = (low + high) / 2;
        CHECK_INT(dg_f8e4m3_from_f32(middle), code + (code & 1));
        CHECK_INT(dg_f8e4m3_from_f32(nextafterf(middle, 0)), code);
        CHECK_INT(dg_f8e4m3_from_f32(nextafterf(middle, 1000)), code + 1);
        CHECK_INT(dg_f8e4m3_from_f32(-middle), 0x80 | (code + (code & 1)));
    }
    for (uint32_t code = 0; code < 0x7b; code++) {
        const float low = dg_f32_from_f8e5m2((uint8_t)code);
        const float middle = (low + dg_f32_from_f8e5m2((uint8_t)(code + 1))) / 2;
        CHECK_INT(dg_f8e5m2_from_f32(middle), code + (code & 1));
        CHECK_INT(dg_f8e5m2_from_f32(nextafterf(middle, 0)), code);
        CHECK_INT(dg_f8e5m2_from_f32(nextafterf(middle, 1e6f)), code + 1);
    }
    for (uint32_t code = 0; code < 0x7bff; code++) {
        const float low = dg_f32_from_f16((uint16_t)code);
        const float middle = (low + dg_f32_from_f16((uint16_t)(code + 1))) / 2;
        CHECK_INT(dg_f16_from_f32(middle), code + (code & 1));
        CHECK_INT(dg_f16_from_f32(nextafterf(middle, 0)), code);
        CHECK_INT(dg_f16_from_f32(nextafterf(middle, 1e6f)), code + 1);
    }
    for (uint32_t code = 0; code < 0x7f7f; code++) {
        const double low = (double)dg_f32_from_bf16((uint16_t)code);
        const double middle = (low + (double)dg_f32_from_bf16((uint16_t)(code + 1))) / 2;
        CHECK_INT(dg_bf16_from_f32((float)middle), code + (code & 1));
        CHECK_INT(dg_bf16_from_f64(middle), code + (code & 1));
        /* A hair off the middle, far below the last bit of an f32: rounding twice would get one of each pair wrong. */
        CHECK_INT(dg_bf16_from_f64(middle * (1 - 0x1p-50)), code);
        CHECK_INT(dg_bf16_from_f64(middle * (1 + 0x1p-50)), code + 1);
        CHECK_INT(dg_bf16_from_f64(-middle * (1 + 0x1p-50)), 0x8000 | (code + 1));
    }
}

static void check_edges(void)
{
    CHECK_INT(dg_f8e4m3_from_f32(448), 0x7e);
    CHECK_INT(dg_f8e4m3_from_f32(1e30f), 0x7e);
    CHECK_INT(dg_f8e4m3_from_f32(-INFINITY), 0xfe);
    CHECK_INT(dg_f8e4m3_from_f32(NAN) & 0x7f, 0x7f);
    CHECK_INT(dg_f8e4m3_from_f32(0x1p-10f), 0);   /* half of the smallest subnormal: to even, which is 0 */
    CHECK_INT(dg_f8e4m3_from_f32(-0x1p-140f), 0x80);
    CHECK_INT(dg_f8e5m2_from_f32(INFINITY), 0x7b);
    CHECK_INT(dg_f8e5m2_from_f32(60000), 0x7b);
    CHECK_INT(dg_f16_from_f32(65504), 0x7bff);
    CHECK_INT(dg_f16_from_f32(65519.996f), 0x7bff);
    CHECK_INT(dg_f16_from_f32(65520), 0x7c00);
    CHECK_INT(dg_f16_from_f32(-INFINITY), 0xfc00);
    CHECK((dg_f16_from_f32(NAN) & 0x7fff) > 0x7c00);

    CHECK_INT(dg_bf16_from_f32(3.4e38f), 0x7f80);
    CHECK_INT(dg_bf16_from_f64(1e300), 0x7f80);
    CHECK_INT(dg_bf16_from_f64(-1e300), 0xff80);
    CHECK_INT(dg_bf16_from_f64((double)INFINITY), 0x7f80);
    CHECK_INT(dg_bf16_from_f64(1e-300), 0);
    CHECK((dg_bf16_from_f64((double)NAN) & 0x7fff) > 0x7f80);
    CHECK((dg_bf16_from_f32(dg_f32_of_bits(0x7f800001u)) & 0x7fff) > 0x7f80);

    CHECK_INT(dg_f4e2m1_from_f32(0.25f), 0);
    CHECK_INT(dg_f4e2m1_from_f32(-0.25f), 0);
    CHECK_INT(dg_f4e2m1_from_f32(-0.3f), 9);
    CHECK_INT(dg_f4e2m1_from_f32(5.0f), 6);
    CHECK_INT(dg_f4e2m1_from_f32(5.1f), 7);
    CHECK_INT(dg_f4e2m1_from_f32(-1e9f), 15);
    CHECK_INT(dg_f4e2m1_from_f32(NAN), 7);
    CHECK_INT(dg_f4e2m1_from_f32(-NAN), 7);

    CHECK_INT(dg_ue8m0_above_f32(1), 127);
    CHECK_INT(dg_ue8m0_above_f32(1.0000001f), 128);
    CHECK_INT(dg_ue8m0_above_f32(0), 1);
    CHECK_INT(dg_ue8m0_above_f32(3.4e38f), 254);

    const uint8_t packed[2] = {0x21, 0x43};
    for (int i = 0; i < 4; i++) {
        CHECK_INT(dg_f4e2m1_at(packed, i), i + 1);
    }
}

int main(void)
{
    check_widening();
    check_round_trips();
    check_rounding();
    check_edges();
    return check_report("core.dtype");
}
