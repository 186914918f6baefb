/* What an operator returns, as Python objects. */
#include "state.h"

#include <string.h>

/* ---- tensors ------------------------------------------------------------------------------------------------- */

static bool is_compact(const dg_tensor_spec *spec)
{
    int64_t compact = 1;
    bool is_same = true;
    for (int32_t i = spec->ndim - 1; i >= 0; i--) {
        is_same = is_same && (spec->shape[i] <= 1 || spec->strides[i] == compact);
        compact *= spec->shape[i];
    }
    return is_same || compact == 0;
}

/* sizes, each times factor, as a tuple */
static PyObject *tuple_of(const int64_t *sizes, int32_t count, int64_t factor)
{
    PyObject *tuple = PyTuple_New(count);
    for (int32_t i = 0; tuple != NULL && i < count; i++) {
        PyObject *size = PyLong_FromLongLong(sizes[i] * factor);
        if (size == NULL)
            Py_CLEAR(tuple);
        else
            PyTuple_SetItem(tuple, i, size);
    }
    return tuple;
}

static void set_allocation_error(void *unused, const char *kind, const char *message)
{
    (void)unused;
    PyErr_SetString(strcmp(kind, "MemoryError") == 0 ? PyExc_MemoryError : PyExc_RuntimeError, message);
}

/* A tensor of the exchange API's library. It allocates compact tensors; one of other strides is a view of as many elements in a row. */
static PyObject *allocate_exchanged(const struct dlpack_exchange_api *api, dg_tensor_spec *spec, void **data)
{
    const bool is_plain = is_compact(spec);
    int64_t num_elements = (int64_t)(spec->size_bytes * 8) / (spec->dtype.bits * spec->dtype.lanes);
    dg_tensor prototype = dg_tensor_from_spec(spec, NULL);
    if (!is_plain) {
        prototype.ndim = 1;
        prototype.shape = &num_elements;
    }
    prototype.strides = NULL;
    struct dlpack_managed_versioned *managed = NULL;
    void *object = NULL;
    if (api->allocate(&prototype, &managed, NULL, set_allocation_error) != 0 || managed == NULL)
        return NULL;
    *data = (char *)managed->tensor.data + managed->tensor.byte_offset;
    if (api->object_from_managed(managed, &object) != 0 || is_plain)
        return object;
    PyObject *shape = tuple_of(spec->shape, spec->ndim, 1);
    PyObject *strides = tuple_of(spec->strides, spec->ndim, 1);
    PyObject *strided = shape != NULL && strides != NULL ? PyObject_CallMethod(object, "as_strided", "OO", shape, strides) : NULL;
    Py_XDECREF(strides);
    Py_XDECREF(shape);
    Py_DECREF((PyObject *)object);
    return strided;
}

/* NumPy's dtype for a result, borrowed from the state. */
static PyObject *numpy_dtype(struct glue_call *call, dg_dtype dtype)
{
    for (size_t i = 0; i < glue_num_dtype_words; i++) {
        const struct glue_dtype_word *word = &glue_dtype_words[i];
        if (memcmp(&word->dtype, &dtype, sizeof(dtype)) != 0 || word->module == NULL)
            continue;
        PyObject **known = &call->state->objects.result_dtypes[i];
        if (*known == NULL) {
            PyObject *type = glue_import(word->module, strcmp(word->word, "bool") == 0 ? "bool_" : word->word);
            PyObject *make = type != NULL ? glue_import("numpy", "dtype") : NULL;
            *known = make != NULL ? PyObject_CallFunctionObjArgs(make, type, NULL) : NULL;
            Py_XDECREF(make);
            Py_XDECREF(type);
        }
        return *known;
    }
    PyErr_Format(PyExc_NotImplementedError, "%s: NumPy has no dtype for the FP4 pairs of a result; with torch tensors it is one of torch's",
                 call->op->name);
    return NULL;
}

static bool find_numpy(struct glue_state *state)
{
    if (state->objects.numpy_empty == NULL)
        state->objects.numpy_empty = glue_import("numpy", "empty");
    if (state->objects.numpy_ndarray == NULL)
        state->objects.numpy_ndarray = glue_import("numpy", "ndarray");
    return state->objects.numpy_empty != NULL && state->objects.numpy_ndarray != NULL;
}

/* A NumPy array; one of strides that are not compact is a view of an array of bytes. */
static PyObject *allocate_numpy(struct glue_call *call, const dg_tensor_spec *spec)
{
    struct glue_state *state = call->state;
    PyObject *dtype = find_numpy(state) ? numpy_dtype(call, spec->dtype) : NULL;
    PyObject *shape = dtype != NULL ? tuple_of(spec->shape, spec->ndim, 1) : NULL;
    PyObject *array = NULL;
    if (shape == NULL)
        return NULL;
    if (is_compact(spec)) {
        array = PyObject_CallFunctionObjArgs(state->objects.numpy_empty, shape, dtype, NULL);
    } else {
        PyObject *bytes = PyObject_CallFunction(state->objects.numpy_empty, "ns", (Py_ssize_t)spec->size_bytes, "u1");
        PyObject *strides = tuple_of(spec->strides, spec->ndim, spec->dtype.bits / 8);
        if (bytes != NULL && strides != NULL) /* ndarray(shape, dtype, buffer, offset, strides) */
            array = PyObject_CallFunction(state->objects.numpy_ndarray, "OOOiO", shape, dtype, bytes, 0, strides);
        Py_XDECREF(strides);
        Py_XDECREF(bytes);
    }
    Py_DECREF(shape);
    return array;
}

dg_tensor *glue_allocate(struct glue_call *call, int result, dg_tensor_spec *spec)
{
    if (!call->is_failed && call->status != DG_OK)
        glue_fail_status(call);
    if (call->is_failed)
        return NULL;
    struct glue_tensor *tensor = glue_new_tensor(call);
    const struct dlpack_exchange_api *api = glue_allocator(call);
    if (api != NULL) {
        void *data = NULL;
        call->results[result] = allocate_exchanged(api, spec, &data);
        tensor->view = dg_tensor_from_spec(spec, data);
    } else if (spec->device.type != DG_CPU) {
        PyErr_Format(PyExc_NotImplementedError, "%s: a result on a GPU is a tensor of the library that its first tensor comes from, and that one "
                     "offers no allocator through DLPack; torch does", call->op->name);
    } else {
        call->results[result] = allocate_numpy(call, spec);
        if (call->results[result] != NULL)
            glue_view_numpy(call, tensor, call->results[result]);
    }
    if (call->results[result] == NULL)
        call->is_failed = true;
    return &tensor->view;
}

/* ---- numbers and lists --------------------------------------------------------------------------------------- */

static bool is_done(const struct glue_call *call)
{
    return !call->is_failed && call->status == DG_OK;
}

static void set_result(struct glue_call *call, int result, PyObject *object)
{
    call->results[result] = object;
    if (object == NULL)
        call->is_failed = true;
}

void glue_return_int(struct glue_call *call, int result, int64_t value)
{
    if (is_done(call))
        set_result(call, result, PyLong_FromLongLong(value));
}

void glue_return_float(struct glue_call *call, int result, double value)
{
    if (is_done(call))
        set_result(call, result, PyFloat_FromDouble(value));
}

void glue_return_bool(struct glue_call *call, int result, bool value)
{
    if (is_done(call))
        set_result(call, result, PyBool_FromLong(value));
}

/* Puts a new object at its place in a new list, which becomes NULL when there is none. */
static void fill(PyObject **list, size_t index, PyObject *item)
{
    if (item == NULL)
        Py_CLEAR(*list);
    else
        PyList_SetItem(*list, (Py_ssize_t)index, item);
}

void glue_return_ints(struct glue_call *call, int result, const int64_t *items, size_t len)
{
    PyObject *list = is_done(call) ? PyList_New((Py_ssize_t)len) : NULL;
    for (size_t i = 0; list != NULL && i < len; i++)
        fill(&list, i, PyLong_FromLongLong(items[i]));
    if (is_done(call))
        set_result(call, result, list);
}

void glue_return_floats(struct glue_call *call, int result, const double *items, size_t len)
{
    PyObject *list = is_done(call) ? PyList_New((Py_ssize_t)len) : NULL;
    for (size_t i = 0; list != NULL && i < len; i++)
        fill(&list, i, PyFloat_FromDouble(items[i]));
    if (is_done(call))
        set_result(call, result, list);
}

void glue_return_bools(struct glue_call *call, int result, const bool *items, size_t len)
{
    PyObject *list = is_done(call) ? PyList_New((Py_ssize_t)len) : NULL;
    for (size_t i = 0; list != NULL && i < len; i++)
        fill(&list, i, PyBool_FromLong(items[i]));
    if (is_done(call))
        set_result(call, result, list);
}
