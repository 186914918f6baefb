/* The checks that generated/c/checks.c is written in. See check.h for what each one claims. */
#include "check.h"

#include "context.h"
#include "status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct dg_checker dg_checker_begin(const char *op, const dg_context *ctx)
{
    struct dg_checker chk = {.op = op, .status = DG_OK};
    if (ctx != NULL) {
        chk.has_context = true;
        chk.has_device = true;
        chk.device = ctx->device;
        chk.device_of = "the context";
    }
    return chk;
}

bool dg_check_fail(struct dg_checker *chk, dg_status status, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    chk->status = dg_fail_op(status, chk->op, format, values);
    va_end(values);
    return false;
}

/* ---- words for messages ----------------------------------------------------------------------------------- */

struct words {
    char text[640];
    size_t len;
};

__attribute__((format(printf, 2, 3))) static void add(struct words *words, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    const size_t space = sizeof(words->text) - words->len;
    const int len = vsnprintf(words->text + words->len, space, format, values);
    va_end(values);
    if (len > 0) {
        words->len += (size_t)len < space ? (size_t)len : space - 1;
    }
}

/* "[4, 3]" */
static struct words list_words(const int64_t *values, int32_t count)
{
    struct words words = {.len = 0};
    add(&words, "[");
    for (int32_t i = 0; i < count; i++) {
        add(&words, i == 0 ? "%lld" : ", %lld", (long long)values[i]);
    }
    add(&words, "]");
    return words;
}

/* "cuda:1", "cpu" */
static struct words device_words(dg_device device)
{
    struct words words = {.len = 0};
    if (device.type == DG_CPU) {
        add(&words, "the CPU");
    } else if (device.type == DG_CUDA) {
        add(&words, "cuda:%d", (int)device.id);
    } else {
        add(&words, "a device of type %d", (int)device.type);
    }
    return words;
}

static struct words dtype_words(dg_dtype dtype)
{
    struct words words = {.len = 0};
    const enum dg_type type = dg_type_of(dtype);
    if (type != DG_TYPE_NONE) {
        add(&words, "%s", dg_type_name(type));
    } else {
        add(&words, "{code %d, bits %d, lanes %d}", dtype.code, dtype.bits, dtype.lanes);
    }
    return words;
}

/* "bf16 [m, k] | f32 [m, k]" */
static struct words alternative_words(const struct dg_alternative *alternatives, int32_t count, uint32_t enabled)
{
    struct words words = {.len = 0};
    for (int32_t i = 0; i < count; i++) {
        if (enabled >> i & 1u) {
            add(&words, words.len == 0 ? "%s" : " | %s", alternatives[i].text);
        }
    }
    if (words.len == 0) {
        add(&words, "no tensor with these other arguments");
    }
    return words;
}

/* "recipe[1]", "k" */
static struct words value_name(const char *name, int64_t index)
{
    struct words words = {.len = 0};
    if (index < 0) {
        add(&words, "%s", name);
    } else {
        add(&words, "%s[%lld]", name, (long long)index);
    }
    return words;
}

/* ---- tensors ---------------------------------------------------------------------------------------------- */

static bool check_device(struct dg_checker *chk, const char *name, const dg_tensor *tensor, bool is_cpu, dg_device *device)
{
    *device = tensor->device;
    if (device->type != DG_CPU && device->type != DG_CUDA) {
        return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s is on %s, expected the CPU or a CUDA device", name,
                             device_words(*device).text);
    }
    if (device->type == DG_CPU) {
        device->id = 0;
    } else if (!dg_has_cuda()) {
        return dg_check_fail(chk, DG_ERR_NOT_SUPPORTED, "%s is on %s, but this library was built without CUDA", name,
                             device_words(*device).text);
    }
    if (is_cpu) {
        if (device->type != DG_CPU) {
            return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s is on %s, expected the CPU", name, device_words(*device).text);
        }
        return true;
    }
    if (!chk->has_device) {
        chk->has_device = true;
        chk->device = *device;
        chk->device_of = name;
    }
    if (device->type != chk->device.type || device->id != chk->device.id) {
        return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s is on %s, expected %s to match %s", name,
                             device_words(*device).text, device_words(chk->device).text, chk->device_of);
    }
    return true;
}

/* ndim, shape, strides and dtype are sane on their own: no negative size, no overflow of any offset. Fills the view's
 * shape and strides as the caller counts them. */
static bool check_geometry(struct dg_checker *chk, const char *name, const dg_tensor *tensor, struct dg_view *view)
{
    if (tensor->ndim < 0 || tensor->ndim > DG_MAX_NDIM) {
        return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s has ndim = %d, expected 0 to %d", name, (int)tensor->ndim,
                             (int)DG_MAX_NDIM);
    }
    view->ndim = tensor->ndim;
    if (tensor->ndim > 0 && tensor->shape == NULL) {
        return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s has shape NULL, expected %d sizes", name, (int)tensor->ndim);
    }

    const int64_t most_elements = INT64_MAX / 128; /* offsets in bits fit too, and FP4 counts twice what its tensor does */
    int64_t compact = 1;
    int64_t reach = 0; /* distance of the two elements that lie furthest apart */
    for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
        const int64_t size = tensor->shape[i];
        if (size < 0) {
            return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s has shape %s, expected no negative size", name,
                                 list_words(tensor->shape, tensor->ndim).text);
        }
        int64_t stride = tensor->strides != NULL ? tensor->strides[i] : compact;
        const bool is_far = stride < -most_elements || stride > most_elements;
        if (is_far && size <= 1) {
            stride = 0; /* never taken */
        }
        view->shape[i] = size;
        view->strides[i] = stride;

        int64_t along = 0;
        const bool is_too_large = __builtin_mul_overflow(compact, size > 1 ? size : 1, &compact) || compact > most_elements ||
                                  (is_far && size > 1) ||
                                  (size > 1 && __builtin_mul_overflow(size - 1, stride < 0 ? -stride : stride, &along)) ||
                                  __builtin_add_overflow(reach, along, &reach) || reach > most_elements;
        if (is_too_large) {
            const struct words strides = tensor->strides != NULL ? list_words(tensor->strides, tensor->ndim) : value_name("NULL", -1);
            return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s has shape %s and strides %s, too large for 64-bit offsets", name,
                                 list_words(tensor->shape, tensor->ndim).text, strides.text);
        }
    }
    return true;
}

/* Which dimension holds the pairs of FP4: that of stride 1, the last one if there are several. A dimension of size 1 may have any
 * stride, so it stands in when no other qualifies. -1: none. */
static int32_t packed_dimension(const struct dg_view *view)
{
    for (int32_t i = view->ndim - 1; i >= 0; i--) {
        if (view->strides[i] == 1) {
            return i;
        }
    }
    for (int32_t i = view->ndim - 1; i >= 0; i--) {
        if (view->shape[i] <= 1) {
            return i;
        }
    }
    return -1;
}

/* Turns the geometry of an FP4 tensor into elements. is_pairs: it counts bytes. */
static bool check_fp4(struct dg_checker *chk, const char *name, bool is_pairs, struct dg_view *view)
{
    const int32_t packed = packed_dimension(view);
    if (packed < 0) {
        return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s has strides %s, expected 1 along the dimension that holds the pairs of f4e2m1",
                             name, list_words(view->strides, view->ndim).text);
    }
    for (int32_t i = 0; i < view->ndim; i++) {
        if (is_pairs) {
            view->shape[i] *= i == packed ? 2 : 1;
            view->strides[i] *= 2;
        } else if (i != packed && view->strides[i] % 2 != 0) {
            if (view->shape[i] > 1) {
                return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT,
                                     "%s has strides %s, expected even ones except along the dimension that holds the pairs of f4e2m1", name,
                                     list_words(view->strides, view->ndim).text);
            }
            view->strides[i] = 0;
        }
    }
    view->strides[packed] = 1;
    return true;
}

static bool is_empty(const struct dg_view *view)
{
    for (int32_t i = 0; i < view->ndim; i++) {
        if (view->shape[i] == 0) {
            return true;
        }
    }
    return false;
}

static bool check_data(struct dg_checker *chk, const char *name, const dg_tensor *tensor, struct dg_view *view)
{
    if (is_empty(view)) {
        view->data = tensor->data;
        return true;
    }
    if (tensor->data == NULL) {
        return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s has data NULL, expected memory for shape %s", name,
                             list_words(tensor->shape, tensor->ndim).text);
    }
    const uintptr_t address = (uintptr_t)tensor->data + tensor->byte_offset;
    const int32_t bytes = dg_type_bits(view->type) / 8; /* 0 for FP4, which lies anywhere */
    if (bytes > 1 && address % (uintptr_t)bytes != 0) {
        return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s has data at %p + %llu, expected an address that is a multiple of %d", name,
                             tensor->data, (unsigned long long)tensor->byte_offset, (int)bytes);
    }
    view->data = (char *)tensor->data + tensor->byte_offset;
    return true;
}

/* The element type under which the alternative takes a tensor of this type: FP4 also comes as bytes. DG_TYPE_NONE: it does not. */
static enum dg_type type_in(uint32_t types, enum dg_type type)
{
    if (types & DG_TYPE_BIT(type)) {
        return type;
    }
    const bool is_byte = type == DG_TYPE_I8 || type == DG_TYPE_U8;
    return is_byte && (types & DG_TYPE_BIT(DG_TYPE_F4E2M1)) ? DG_TYPE_F4E2M1 : DG_TYPE_NONE;
}

/* Sets the view's alternative and type. */
static bool choose_alternative(struct dg_checker *chk, const char *name, dg_dtype dtype, bool is_rank_later,
                               const struct dg_alternative *alternatives, int32_t count, uint32_t enabled, struct dg_view *view)
{
    const enum dg_type type = dg_type_of(dtype);
    int32_t type_fits = 0;
    for (int32_t i = 0; i < count && type != DG_TYPE_NONE; i++) {
        const enum dg_type taken = enabled >> i & 1u ? type_in(alternatives[i].types, type) : DG_TYPE_NONE;
        if (taken == DG_TYPE_NONE) {
            continue;
        }
        type_fits++;
        view->alternative = i;
        view->type = taken;
        if (alternatives[i].ndim < 0 || alternatives[i].ndim == view->ndim) {
            return true;
        }
    }
    if (type_fits == 1 && is_rank_later) {
        return true;
    }
    const struct words expected = alternative_words(alternatives, count, enabled);
    if (type_fits > 0) {
        return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s has shape %s, expected %s", name,
                             list_words(view->shape, view->ndim).text, expected.text);
    }
    return dg_check_fail(chk, DG_ERR_INVALID_DTYPE, "%s has dtype %s, expected %s", name, dtype_words(dtype).text, expected.text);
}

/* Dimensions of size 1 may have any stride, and so may all of a tensor without elements. */
static bool has_strides(const struct dg_view *view, const int64_t *expected)
{
    for (int32_t i = 0; i < view->ndim && !is_empty(view); i++) {
        if (view->shape[i] > 1 && view->strides[i] != expected[i]) {
            return false;
        }
    }
    return true;
}

/* Device, FP4 geometry and memory of a tensor whose type is chosen. */
static bool finish_view(struct dg_checker *chk, const char *name, const dg_tensor *tensor, bool is_on_cpu, struct dg_view *view)
{
    const bool is_pairs = tensor->dtype.code != DG_CODE_F4E2M1FN || tensor->dtype.lanes == 2;
    if (!check_device(chk, name, tensor, is_on_cpu, &view->device) ||
        (view->type == DG_TYPE_F4E2M1 && !check_fp4(chk, name, is_pairs, view)) || !check_data(chk, name, tensor, view)) {
        return false;
    }
    view->is_given = true;
    return true;
}

/* In three pieces: compilers clear so much as a whole with `rep stos`, which takes as long as all else in the check of a tensor. */
static void clear(struct dg_view *view)
{
    memset(view->shape, 0, sizeof(view->shape));
    memset(view->strides, 0, sizeof(view->strides));
    view->data = NULL;
    view->is_given = false;
    view->type = DG_TYPE_NONE;
    view->ndim = 0;
    view->device = (dg_device){0, 0};
    view->alternative = 0;
}

bool dg_check_tensor(struct dg_checker *chk, const char *name, const dg_tensor *tensor, unsigned rules,
                     const struct dg_alternative *alternatives, int32_t count, uint32_t enabled, struct dg_view *view)
{
    clear(view);
    if (tensor == NULL) {
        if (rules & DG_OPTIONAL) {
            return true;
        }
        return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s is NULL, expected %s", name,
                             alternative_words(alternatives, count, enabled).text);
    }
    return check_geometry(chk, name, tensor, view) &&
           choose_alternative(chk, name, tensor->dtype, (rules & DG_RANK_LATER) != 0, alternatives, count, enabled, view) &&
           finish_view(chk, name, tensor, (rules & DG_ON_CPU) != 0, view);
}

bool dg_check_result(struct dg_checker *chk, const char *name, const dg_tensor *tensor, const dg_tensor_spec *spec, struct dg_view *view)
{
    clear(view);
    const struct words shape = list_words(spec->shape, spec->ndim);
    const char *expected_type = dg_type_name(dg_type_of(spec->dtype));
    if (tensor == NULL) {
        return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s is NULL, expected %s %s, as dg_%s_out() says", name, expected_type,
                             shape.text, chk->op);
    }
    if (!check_geometry(chk, name, tensor, view)) {
        return false;
    }
    const enum dg_type type = dg_type_of(tensor->dtype);
    view->type = type == DG_TYPE_NONE ? type : type_in(DG_TYPE_BIT(dg_type_of(spec->dtype)), type);
    if (view->type == DG_TYPE_NONE) {
        return dg_check_fail(chk, DG_ERR_INVALID_DTYPE, "%s has dtype %s, expected %s, as dg_%s_out() says", name,
                             dtype_words(tensor->dtype).text, expected_type, chk->op);
    }
    if (!finish_view(chk, name, tensor, false, view)) {
        return false;
    }
    if (view->ndim != spec->ndim || memcmp(view->shape, spec->shape, sizeof(*view->shape) * (size_t)view->ndim) != 0) {
        return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s has shape %s, expected %s, as dg_%s_out() says", name,
                             list_words(view->shape, view->ndim).text, shape.text, chk->op);
    }
    if (!has_strides(view, spec->strides)) {
        return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s has strides %s, expected %s, as dg_%s_out() says", name,
                             list_words(view->strides, view->ndim).text, list_words(spec->strides, spec->ndim).text, chk->op);
    }
    return true;
}

bool dg_check_dim(struct dg_checker *chk, const char *name, const char *dim, int64_t got, int64_t expected, const char *defined_by)
{
    if (got == expected) {
        return true;
    }
    return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s has %s = %lld, expected %lld to match %s", name, dim, (long long)got,
                         (long long)expected, defined_by);
}

bool dg_check_shape(struct dg_checker *chk, const char *name, const struct dg_view *view, int32_t ndim, const int64_t *expected,
                    const char *text)
{
    bool is_equal = view->ndim == ndim;
    for (int32_t i = 0; i < ndim && is_equal; i++) {
        is_equal = view->shape[i] == expected[i];
    }
    return is_equal || dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s has shape %s, expected %s = %s", name,
                                     list_words(view->shape, view->ndim).text, list_words(expected, ndim).text, text);
}

/* ---- layouts ---------------------------------------------------------------------------------------------- */

bool dg_check_rows(struct dg_checker *chk, const char *name, const struct dg_view *view)
{
    const int32_t last = view->ndim - 1;
    if (last < 0 || view->shape[last] <= 1 || view->strides[last] == 1 || is_empty(view)) {
        return true;
    }
    return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s has strides %s, expected stride 1 in the last dimension", name,
                         list_words(view->strides, view->ndim).text);
}

bool dg_check_contiguous(struct dg_checker *chk, const char *name, const struct dg_view *view)
{
    int64_t expected[DG_MAX_NDIM];
    int64_t compact = 1;
    for (int32_t i = view->ndim - 1; i >= 0; i--) {
        expected[i] = compact;
        compact *= view->shape[i] > 1 ? view->shape[i] : 1;
    }
    return dg_check_strides(chk, name, view, expected, "contiguous");
}

bool dg_check_strides(struct dg_checker *chk, const char *name, const struct dg_view *view, const int64_t *expected, const char *text)
{
    if (has_strides(view, expected)) {
        return true;
    }
    return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s has strides %s, expected %s = %s", name,
                         list_words(view->strides, view->ndim).text, list_words(expected, view->ndim).text, text);
}

bool dg_check_like(struct dg_checker *chk, const char *name, const struct dg_view *view, const char *other_name,
                   const struct dg_view *other)
{
    if (view->type != other->type) {
        return dg_check_fail(chk, DG_ERR_INVALID_DTYPE, "%s has dtype %s, expected %s to match %s", name, dg_type_name(view->type),
                             dg_type_name(other->type), other_name);
    }
    if (view->ndim != other->ndim || memcmp(view->shape, other->shape, sizeof(view->shape)) != 0) {
        return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s has shape %s, expected %s to match %s", name,
                             list_words(view->shape, view->ndim).text, list_words(other->shape, other->ndim).text, other_name);
    }
    return true;
}

/* ---- overlap ---------------------------------------------------------------------------------------------- */

static int64_t magnitude(int64_t x)
{
    return x < 0 ? -x : x;
}

/* Walking the dimensions from the smallest stride up, each must step over all that the smaller ones cover. This also refuses a
 * few interleaved layouts that do not overlap; nobody writes results into those. */
bool dg_check_no_self_overlap(struct dg_checker *chk, const char *name, const struct dg_view *view)
{
    if (is_empty(view)) {
        return true;
    }
    bool is_walked[DG_MAX_NDIM] = {false};
    int64_t covered = 1; /* elements from the first to the last one that the walked dimensions reach */
    for (int32_t step = 0; step < view->ndim; step++) {
        int32_t next = -1;
        for (int32_t i = 0; i < view->ndim; i++) {
            if (!is_walked[i] && (next < 0 || magnitude(view->strides[i]) < magnitude(view->strides[next]))) {
                next = i;
            }
        }
        is_walked[next] = true;
        if (view->shape[next] > 1) {
            const int64_t stride = magnitude(view->strides[next]);
            if (stride < covered) {
                return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s has shape %s and strides %s, expected elements that do not overlap",
                                     name, list_words(view->shape, view->ndim).text, list_words(view->strides, view->ndim).text);
            }
            covered += (view->shape[next] - 1) * stride;
        }
    }
    return true;
}

/* The bytes [begin, end) that lie between the first and the last byte of the dimensions whose stride is not a multiple of
 * pitch bytes; pitch 0: of all dimensions. Addresses are those of the elements at index 0 of the other dimensions. */
struct range {
    uintptr_t begin;
    uintptr_t end;
};

static struct range range_of(const struct dg_view *view, int64_t pitch)
{
    const int64_t bits = dg_type_bits(view->type);
    int64_t below = 0; /* bits, not positive */
    int64_t above = bits;
    for (int32_t i = 0; i < view->ndim; i++) {
        const int64_t stride = view->strides[i] * bits;
        if (view->shape[i] <= 1 || (pitch != 0 && stride % (8 * pitch) == 0)) {
            continue;
        }
        const int64_t reach = (view->shape[i] - 1) * stride;
        below += reach < 0 ? reach : 0;
        above += reach > 0 ? reach : 0;
    }
    const uintptr_t base = (uintptr_t)view->data;
    const struct range range = {base - (uintptr_t)(-below / 8), base + (uintptr_t)((above + 7) / 8)};
    return range;
}

/* Two blocks of columns of one buffer: with rows `pitch` bytes apart, both stay inside windows of a row that do not meet. */
static bool are_other_columns(const struct dg_view *x, const struct dg_view *y, int64_t pitch)
{
    const struct range a = range_of(x, pitch);
    const struct range b = range_of(y, pitch);
    const uintptr_t row = (uintptr_t)pitch;
    if (a.end - a.begin > row || b.end - b.begin > row) {
        return false;
    }
    /* Round the row, from the begin of a: b begins after a's end, and ends before a begins again. */
    const uintptr_t distance = b.begin >= a.begin ? (b.begin - a.begin) % row : row - 1 - (a.begin - b.begin - 1) % row;
    return distance >= a.end - a.begin && distance + (b.end - b.begin) <= row;
}

/* The same with the rows of x. */
static bool are_apart_by_rows(const struct dg_view *x, const struct dg_view *y)
{
    for (int32_t i = 0; i < x->ndim; i++) {
        const int64_t pitch = magnitude(x->strides[i]) * dg_type_bits(x->type) / 8;
        if (x->shape[i] > 1 && pitch > 0 && are_other_columns(x, y, pitch)) {
            return true;
        }
    }
    return false;
}

static bool is_same_view(const struct dg_view *x, const struct dg_view *y)
{
    if (x->data != y->data || x->type != y->type || x->ndim != y->ndim) {
        return false;
    }
    for (int32_t i = 0; i < x->ndim; i++) {
        if (x->shape[i] != y->shape[i] || (x->shape[i] > 1 && x->strides[i] != y->strides[i])) {
            return false;
        }
    }
    return true;
}

static bool share_memory(const struct dg_view *written, const struct dg_view *other)
{
    if (!written->is_given || !other->is_given || is_empty(written) || is_empty(other) ||
        written->device.type != other->device.type) {
        return false;
    }
    const struct range a = range_of(written, 0);
    const struct range b = range_of(other, 0);
    if (a.end <= b.begin || b.end <= a.begin) {
        return false;
    }
    return !are_apart_by_rows(written, other) && !are_apart_by_rows(other, written);
}

bool dg_check_no_overlap(struct dg_checker *chk, const char *name, const struct dg_view *written, const char *other_name,
                         const struct dg_view *other)
{
    if (!share_memory(written, other)) {
        return true;
    }
    return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s overlaps %s, expected separate memory", name, other_name);
}

bool dg_check_same_or_no_overlap(struct dg_checker *chk, const char *name, const struct dg_view *written, const char *other_name,
                                 const struct dg_view *other)
{
    if (!share_memory(written, other) || is_same_view(written, other)) {
        return true;
    }
    return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s overlaps %s, expected separate memory or exactly the same tensor", name,
                         other_name);
}

/* ---- values ----------------------------------------------------------------------------------------------- */

bool dg_check_int(struct dg_checker *chk, const char *name, int64_t index, int64_t got, bool holds, const char *expected)
{
    if (holds) {
        return true;
    }
    return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s is %lld, expected %s", value_name(name, index).text, (long long)got, expected);
}

bool dg_check_float(struct dg_checker *chk, const char *name, int64_t index, double got, bool holds, const char *expected)
{
    if (holds) {
        return true;
    }
    return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s is %g, expected %s", value_name(name, index).text, got, expected);
}

bool dg_check_str(struct dg_checker *chk, const char *name, dg_str got, bool holds, const char *expected)
{
    if (holds) {
        return true;
    }
    const int shown = got.len < 64 ? (int)got.len : 64;
    return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s is \"%.*s%s\", expected %s", name, shown, got.data == NULL ? "" : got.data,
                         got.len > 64 ? "..." : "", expected);
}

bool dg_check_len(struct dg_checker *chk, const char *name, size_t got, bool holds, const char *expected)
{
    if (holds) {
        return true;
    }
    return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s has length %zu, expected %s", name, got, expected);
}

bool dg_check_pointer(struct dg_checker *chk, const char *name, const void *pointer)
{
    if (pointer != NULL) {
        return true;
    }
    return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "%s is NULL", name);
}

bool dg_check_dtype(struct dg_checker *chk, const char *name, dg_dtype got, uint32_t types, const char *expected, enum dg_type *type)
{
    *type = dg_type_of(got);
    if (*type != DG_TYPE_NONE && (types & DG_TYPE_BIT(*type))) {
        return true;
    }
    return dg_check_fail(chk, DG_ERR_INVALID_DTYPE, "%s is %s, expected %s", name, dtype_words(got).text, expected);
}

bool dg_check_options(struct dg_checker *chk, const void *options, const size_t *ends, size_t count, void *merged, size_t size,
                      const char *initialiser)
{
    if (options == NULL) {
        return true;
    }
    size_t struct_size;
    memcpy(&struct_size, options, sizeof(struct_size));
    bool is_known = struct_size == size;
    for (size_t i = 0; i < count && !is_known; i++) {
        is_known = struct_size == ends[i];
    }
    if (!is_known) {
        return dg_check_fail(chk, DG_ERR_INVALID_ARGUMENT, "options->struct_size is %zu, expected at most %zu as %s sets it", struct_size,
                             size, initialiser);
    }
    memcpy(merged, options, struct_size);
    return true;
}

/* ---- strings ---------------------------------------------------------------------------------------------- */

dg_str dg_str_resolve(dg_str s)
{
    if (s.data == NULL) {
        s.len = 0;
    } else if (s.len == DG_NUL_TERMINATED) {
        s.len = strlen(s.data);
    }
    return s;
}

bool dg_str_equal(dg_str s, const char *literal)
{
    return s.len == strlen(literal) && (s.len == 0 || memcmp(s.data, literal, s.len) == 0);
}
