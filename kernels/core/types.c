/* The element types by name, by public dtype and by size, and the specifications of results. */
#include "check.h"

struct type_info {
    const char *name;
    int32_t bits;
    dg_dtype dtype;
};

static const struct type_info types[DG_TYPE_COUNT] = {
    [DG_TYPE_NONE] = {"none", 0, {0, 0, 0}},
    [DG_TYPE_F64] = {"f64", 64, {DG_F64}},
    [DG_TYPE_F32] = {"f32", 32, {DG_F32}},
    [DG_TYPE_F16] = {"f16", 16, {DG_F16}},
    [DG_TYPE_BF16] = {"bf16", 16, {DG_BF16}},
    [DG_TYPE_F8E4M3] = {"f8e4m3", 8, {DG_F8E4M3}},
    [DG_TYPE_F8E5M2] = {"f8e5m2", 8, {DG_F8E5M2}},
    [DG_TYPE_UE8M0] = {"ue8m0", 8, {DG_UE8M0}},
    [DG_TYPE_F4E2M1] = {"f4e2m1", 4, {DG_F4E2M1}},
    [DG_TYPE_I64] = {"i64", 64, {DG_I64}},
    [DG_TYPE_I32] = {"i32", 32, {DG_I32}},
    [DG_TYPE_I16] = {"i16", 16, {DG_I16}},
    [DG_TYPE_I8] = {"i8", 8, {DG_I8}},
    [DG_TYPE_U8] = {"u8", 8, {DG_U8}},
    [DG_TYPE_BOOL] = {"bool", 8, {DG_BOOL}},
};

enum dg_type dg_type_of(dg_dtype dtype)
{
    /* FP4 pairs are FP4: dg_check_tensor() turns the shape into elements. */
    const uint16_t lanes = dtype.code == DG_CODE_F4E2M1FN && dtype.lanes == 2 ? 1 : dtype.lanes;
    for (int type = DG_TYPE_F64; type < DG_TYPE_COUNT; type++) {
        const dg_dtype ours = types[type].dtype;
        if (ours.code == dtype.code && ours.bits == dtype.bits && ours.lanes == lanes) {
            return (enum dg_type)type;
        }
    }
    return DG_TYPE_NONE;
}

dg_dtype dg_dtype_of(enum dg_type type)
{
    return types[type].dtype;
}

const char *dg_type_name(enum dg_type type)
{
    return types[type].name;
}

int32_t dg_type_bits(enum dg_type type)
{
    return types[type].bits;
}

/* ---- result specifications -------------------------------------------------------------------------------- */

/* The largest size in bytes that a tensor may have: offsets inside it are differences of pointers. */
static const int64_t most_bytes = PTRDIFF_MAX;

bool dg_spec_fill(struct dg_checker *chk, dg_tensor_spec *spec, enum dg_type type, int32_t ndim, const int64_t *shape,
                  const int64_t *strides)
{
    const dg_device cpu = {DG_CPU, 0};
    const int64_t most_elements = most_bytes / 8; /* of any type */
    spec->device = chk->has_device ? chk->device : cpu;
    spec->dtype = dg_dtype_of(type);
    spec->ndim = ndim;

    bool is_empty = false;
    for (int32_t i = 0; i < ndim; i++) {
        if (shape[i] < 0) {
            return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "the result would have size %lld in dimension %d",
                                 (long long)shape[i], (int)i);
        }
        is_empty = is_empty || shape[i] == 0;
    }

    int64_t compact = 1; /* stride of the dimension at hand */
    int64_t last = 0;    /* index in memory of the last element */
    for (int32_t i = ndim - 1; i >= 0; i--) {
        spec->shape[i] = shape[i];
        spec->strides[i] = strides != NULL ? strides[i] : compact;
        const int64_t size = shape[i] > 1 ? shape[i] : 1;
        int64_t reach;
        if (__builtin_mul_overflow(compact, size, &compact) || __builtin_mul_overflow(size - 1, spec->strides[i], &reach) ||
            __builtin_add_overflow(last, reach, &last) || last >= most_elements || compact > most_elements) {
            return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "the result would have more than 2^60 elements");
        }
    }
    spec->size_bytes = is_empty ? 0 : ((size_t)last + 1) * (size_t)dg_type_bits(type) / 8;
    if (!is_empty && type == DG_TYPE_F4E2M1) {
        spec->size_bytes = ((size_t)last + 2) / 2;
    }
    return true;
}

dg_tensor dg_tensor_from_spec(dg_tensor_spec *spec, void *data)
{
    const dg_tensor tensor = {data, spec->device, spec->ndim, spec->dtype, spec->shape, spec->strides, 0};
    return tensor;
}
