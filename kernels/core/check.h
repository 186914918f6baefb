/* Argument checks: the vocabulary in which generated/c/checks.c is written.
 *
 * A generated check fills one struct dg_<op>_call with views and values that are known to be right; kernels/ops/<op>.c gets
 * nothing else. Every helper returns true when its claim holds; otherwise it has set chk->status and the
 * text of dg_last_error(), "<op>: <argument> ...", and the caller returns. Nothing here writes to a tensor.
 */
#ifndef DG_CORE_CHECK_H
#define DG_CORE_CHECK_H

#include "deep_gemm/deep_gemm.h"

/* Element types as kernels know them. FP4 is always two per byte, whatever form the tensor came in. */
enum dg_type {
    DG_TYPE_NONE = 0,
    DG_TYPE_F64, DG_TYPE_F32, DG_TYPE_F16, DG_TYPE_BF16, DG_TYPE_F8E4M3, DG_TYPE_F8E5M2, DG_TYPE_UE8M0, DG_TYPE_F4E2M1,
    DG_TYPE_I64, DG_TYPE_I32, DG_TYPE_I16, DG_TYPE_I8, DG_TYPE_U8, DG_TYPE_BOOL,
    DG_TYPE_COUNT
};

#define DG_TYPE_BIT(type) (1u << (type))

/* A checked tensor. data has byte_offset added. shape and strides count elements; of an FP4 tensor too, whose
 * strides along the packed dimension is 1 and along the others is twice the byte stride. */
struct dg_view {
    void *data;
    bool is_given;      /* false: an optional tensor that was not given; all else is 0 */
    enum dg_type type;
    int32_t ndim;
    dg_device device;
    int32_t alternative; /* index of the contract's alternative that holds */
    int64_t shape[DG_MAX_NDIM];
    int64_t strides[DG_MAX_NDIM];
};

/* One alternative of a tensor's contract. */
struct dg_alternative {
    uint32_t types;     /* DG_TYPE_BIT set */
    int32_t ndim;       /* -1: any */
    const char *text;   /* "bf16 | f32 [m, n]", for messages */
};

struct dg_checker {
    const char *op;
    dg_status status;
    bool has_context;    /* false: the device is that of the first tensor */
    bool has_device;
    dg_device device;    /* of the call */
    const char *device_of; /* the argument that determined it, or "the context" */
};

/* Begins the check of one call. */
struct dg_checker dg_checker_begin(const char *op, const dg_context *ctx);

/* Fails with DG_ERR_<status>: "<op>: " and the formatted text. Returns false. */
bool dg_check_fail(struct dg_checker *chk, dg_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* What the contract of a tensor argument says beside its alternatives; a set of bits. */
enum dg_tensor_rules {
    DG_REQUIRED = 0,
    DG_OPTIONAL = 1, /* NULL is allowed and gives a view with is_given = false, all else 0 */
    DG_ON_CPU = 2,   /* on the CPU whatever the device of the call */
    DG_RANK_LATER = 4 /* if one alternative has the type, its rank is left to dg_check_shape, which can say what sizes it expects */
};

/* tensor is not NULL; ndim, shape, data (unless it has no elements), strides, dtype and element alignment are sane; its device is that
 * of the call (DG_ON_CPU: the CPU). Chooses the alternative: the first whose bit is set in `enabled` (evaluated `when`s),
 * and whose types and rank fit. Fills all of view. */
bool dg_check_tensor(struct dg_checker *chk, const char *name, const dg_tensor *tensor, unsigned rules,
                     const struct dg_alternative *alternatives, int32_t count, uint32_t enabled, struct dg_view *view);

/* The caller's tensor for a result: not NULL and sane, and of the device, dtype, shape and strides (dimensions of size 0 or 1: any)
 * of spec. "<op>: out has shape [4, 3], expected [4, 2], as dg_<op>_out() says". Fills all of view. */
bool dg_check_result(struct dg_checker *chk, const char *name, const dg_tensor *tensor, const dg_tensor_spec *spec,
                     struct dg_view *view);

/* A dimension that another argument has defined. "<op>: b has k = 4096, expected 4160 to match a". */
bool dg_check_dim(struct dg_checker *chk, const char *name, const char *dim, int64_t got, int64_t expected, const char *defined_by);

/* A computed shape, rank and all axes at once. "<op>: sfa has shape [4, 3], expected [4, 2] = [m, ceil(k / 128)]". */
bool dg_check_shape(struct dg_checker *chk, const char *name, const struct dg_view *view, int32_t ndim, const int64_t *expected,
                    const char *text);

/* Layouts. Dimensions of size 0 or 1 may have any stride. */
bool dg_check_rows(struct dg_checker *chk, const char *name, const struct dg_view *view);
bool dg_check_contiguous(struct dg_checker *chk, const char *name, const struct dg_view *view);
bool dg_check_strides(struct dg_checker *chk, const char *name, const struct dg_view *view, const int64_t *expected, const char *text);

/* A tensor that is `like` another: same type and shape. */
bool dg_check_like(struct dg_checker *chk, const char *name, const struct dg_view *view, const char *other_name, const struct dg_view *other);

/* A written tensor does not overlap itself. */
bool dg_check_no_self_overlap(struct dg_checker *chk, const char *name, const struct dg_view *view);

/* A written tensor and another argument share no memory. A view that is not given, or has no elements, shares none. */
bool dg_check_no_overlap(struct dg_checker *chk, const char *name, const struct dg_view *written, const char *other_name,
                         const struct dg_view *other);

/* The same where the contract says `may alias`: exactly the same view (data, type, shape, strides) is allowed too. */
bool dg_check_same_or_no_overlap(struct dg_checker *chk, const char *name, const struct dg_view *written, const char *other_name,
                                 const struct dg_view *other);

/* Values. expected is the contract's text: ">= 1", "\"nk\" or \"mn\"". index >= 0: a member of a list. */
bool dg_check_int(struct dg_checker *chk, const char *name, int64_t index, int64_t got, bool holds, const char *expected);
bool dg_check_float(struct dg_checker *chk, const char *name, int64_t index, double got, bool holds, const char *expected);
bool dg_check_str(struct dg_checker *chk, const char *name, dg_str got, bool holds, const char *expected);
bool dg_check_len(struct dg_checker *chk, const char *name, size_t got, bool holds, const char *expected);
bool dg_check_pointer(struct dg_checker *chk, const char *name, const void *pointer); /* out parameters, lists of length > 0 */

/* A dtype argument: one of the types in the set. Gives its dg_type. */
bool dg_check_dtype(struct dg_checker *chk, const char *name, dg_dtype got, uint32_t types, const char *expected, enum dg_type *type);

/* Options, a struct that begins with struct_size: copies the caller's members over the defaults that stand in merged (size bytes).
 * struct_size is where one of the members ends (ends[count], ascending) or size: what a caller compiled against an older header
 * does not have keeps its default. Any other struct_size fails, and the text names the initialiser. options == NULL: all defaults. */
bool dg_check_options(struct dg_checker *chk, const void *options, const size_t *ends, size_t count, void *merged, size_t size,
                      const char *initialiser);

/* Strings with the length made explicit; comparison with a literal. */
dg_str dg_str_resolve(dg_str s);
bool dg_str_equal(dg_str s, const char *literal);

/* Integer arithmetic of contracts. A result beyond 64 bits is the nearest value that fits, so that it equals no size of a tensor.
 * Divisors are positive: a generated check has made sure. */
static inline int64_t dg_add(int64_t x, int64_t y)
{
    int64_t sum;
    return __builtin_add_overflow(x, y, &sum) ? (x < 0 ? INT64_MIN : INT64_MAX) : sum;
}
static inline int64_t dg_sub(int64_t x, int64_t y)
{
    int64_t difference;
    return __builtin_sub_overflow(x, y, &difference) ? (x < 0 ? INT64_MIN : INT64_MAX) : difference;
}
static inline int64_t dg_mul(int64_t x, int64_t y)
{
    int64_t product;
    return __builtin_mul_overflow(x, y, &product) ? ((x < 0) != (y < 0) ? INT64_MIN : INT64_MAX) : product;
}
static inline int64_t dg_ceil_div(int64_t x, int64_t y) { return x / y + (x % y > 0); }
static inline int64_t dg_floor_div(int64_t x, int64_t y) { return x / y - (x % y < 0); }
static inline int64_t dg_floor_mod(int64_t x, int64_t y) { return x % y + (x % y < 0 ? y : 0); }
static inline int64_t dg_align(int64_t x, int64_t y) { return dg_mul(dg_ceil_div(x, y), y); }
static inline int64_t dg_min(int64_t x, int64_t y) { return x < y ? x : y; }
static inline int64_t dg_max(int64_t x, int64_t y) { return x > y ? x : y; }

/* Reads of contracts that another part of the expression makes conditional. What is not there reads as 0. */
static inline int64_t dg_int_at(const dg_ints *list, size_t i) { return list != NULL && i < list->len ? list->data[i] : 0; }
static inline int64_t dg_len_of(const dg_ints *list) { return list != NULL ? (int64_t)list->len : 0; }
static inline int64_t dg_sum_ceil(const dg_ints *list, int64_t y)
{
    int64_t sum = 0;
    for (size_t i = 0; list != NULL && y > 0 && i < list->len; ++i) {
        sum = dg_add(sum, dg_ceil_div(list->data[i], y));
    }
    return sum;
}
static inline int64_t dg_view_dim(const struct dg_view *view, int32_t axis)
{
    const int32_t i = axis < 0 ? axis + view->ndim : axis;
    return i >= 0 && i < view->ndim ? view->shape[i] : 0;
}
static inline int64_t dg_view_stride(const struct dg_view *view, int32_t axis)
{
    const int32_t i = axis < 0 ? axis + view->ndim : axis;
    return i >= 0 && i < view->ndim ? view->strides[i] : 0;
}

/* Conversions between the public dtype and dg_type. DG_TYPE_NONE: not one of ours. */
enum dg_type dg_type_of(dg_dtype dtype);
dg_dtype dg_dtype_of(enum dg_type type);
const char *dg_type_name(enum dg_type type); /* "bf16" */
int32_t dg_type_bits(enum dg_type type);

/* Result specifications: the device of the call, compact strides when strides == NULL, and the size; false when a size is negative or
 * the whole does not fit the address space. */
bool dg_spec_fill(struct dg_checker *chk, dg_tensor_spec *spec, enum dg_type type, int32_t ndim, const int64_t *shape, const int64_t *strides);

#endif
