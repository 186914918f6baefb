/* Numbers, strings, dtypes and lists from Python objects. */
#include "state.h"

#include <string.h>

/* ---- dtypes -------------------------------------------------------------------------------------------------- */

const struct glue_dtype_word glue_dtype_words[] = {
    {"float32", {DG_F32}, "numpy"},
    {"bfloat16", {DG_BF16}, "ml_dtypes"},
    {"float8_e4m3fn", {DG_F8E4M3}, "ml_dtypes"},
    {"float8_e5m2", {DG_F8E5M2}, "ml_dtypes"},
    {"float8_e8m0fnu", {DG_UE8M0}, "ml_dtypes"},
    {"float4_e2m1fn", {DG_F4E2M1}, NULL}, /* ml_dtypes has one byte for each element */
    {"float4_e2m1fn_x2", {DG_F4E2M1X2}, NULL},
    {"float16", {DG_F16}, "numpy"},
    {"float64", {DG_F64}, "numpy"},
    {"int8", {DG_I8}, "numpy"},
    {"int16", {DG_I16}, "numpy"},
    {"int32", {DG_I32}, "numpy"},
    {"int64", {DG_I64}, "numpy"},
    {"uint8", {DG_U8}, "numpy"},
    {"bool", {DG_BOOL}, "numpy"},
};
const size_t glue_num_dtype_words = sizeof(glue_dtype_words) / sizeof(glue_dtype_words[0]);
_Static_assert(sizeof(glue_dtype_words) / sizeof(glue_dtype_words[0]) <= GLUE_NUM_WORDS, "GLUE_NUM_WORDS");

const struct glue_dtype_word *glue_find_dtype(const char *word)
{
    for (size_t i = 0; i < glue_num_dtype_words; i++)
        if (strcmp(glue_dtype_words[i].word, word) == 0)
            return &glue_dtype_words[i];
    return NULL;
}

/* The dtype that a value names: a string, NumPy's dtype or scalar type, torch's dtype, whose word has `torch.` in front. */
static const struct glue_dtype_word *read_dtype(PyObject *value)
{
    PyObject *text = PyType_Check(value) ? PyObject_GetAttrString(value, "__name__") : PyObject_Str(value);
    const char *word = text != NULL && PyUnicode_Check(text) ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    const bool is_of_torch = word != NULL && strncmp(word, "torch.", 6) == 0;
    const struct glue_dtype_word *found = word != NULL ? glue_find_dtype(is_of_torch ? word + 6 : word) : NULL;
    Py_XDECREF(text);
    return found;
}

/* ---- one value ----------------------------------------------------------------------------------------------- */

/* These return false when the value is of another type, perhaps with an error set. */

static bool read_int(PyObject *value, int64_t *result)
{
    PyObject *index = PyNumber_Index(value);
    if (index == NULL)
        return false;
    *result = PyLong_AsLongLong(index);
    Py_DECREF(index);
    return *result != -1 || PyErr_Occurred() == NULL;
}

static bool read_float(PyObject *value, double *result)
{
    *result = PyFloat_AsDouble(value);
    return *result != -1.0 || PyErr_Occurred() == NULL;
}

/* A bool, NumPy's, a number, a tensor of one element; not what is true because it is not empty, nor None. */
static bool read_bool(PyObject *value, bool *result)
{
    const bool is_number = PyBool_Check(value) || (value != Py_None && PyType_GetSlot(Py_TYPE(value), Py_nb_bool) != NULL);
    const int is_true = is_number ? PyObject_IsTrue(value) : -1;
    *result = is_true > 0;
    return is_true >= 0;
}

static void fail_int(struct glue_call *call, int argument, const char *expected)
{
    const bool is_too_large = PyErr_Occurred() != NULL && PyErr_ExceptionMatches(PyExc_OverflowError);
    PyObject *text = PyUnicode_FromFormat("%s%s", expected, is_too_large ? " that fits 64 bits" : "");
    const char *bytes = text != NULL ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    glue_fail_type(call, argument, bytes != NULL ? bytes : expected);
    Py_XDECREF(text);
}

void glue_int(struct glue_call *call, int argument, int64_t *value)
{
    PyObject *given = glue_value(call, argument);
    if (given != NULL && !read_int(given, value))
        fail_int(call, argument, "int");
}

void glue_float(struct glue_call *call, int argument, double *value)
{
    PyObject *given = glue_value(call, argument);
    if (given != NULL && !read_float(given, value))
        glue_fail_type(call, argument, "float");
}

void glue_bool(struct glue_call *call, int argument, bool *value)
{
    PyObject *given = glue_value(call, argument);
    if (given != NULL && !read_bool(given, value))
        glue_fail_type(call, argument, "bool");
}

void glue_str(struct glue_call *call, int argument, dg_str *value)
{
    PyObject *given = glue_value(call, argument);
    if (given == NULL)
        return;
    Py_ssize_t len = 0;
    value->data = PyUnicode_Check(given) ? PyUnicode_AsUTF8AndSize(given, &len) : NULL;
    value->len = (size_t)len;
    if (value->data == NULL)
        glue_fail_type(call, argument, "str");
}

static const char dtype_words[] = "a dtype such as \"float32\"";

void glue_dtype(struct glue_call *call, int argument, dg_dtype *value)
{
    PyObject *given = glue_value(call, argument);
    if (given == NULL)
        return;
    const struct glue_dtype_word *word = read_dtype(given);
    if (word != NULL)
        *value = word->dtype;
    else
        glue_fail_type(call, argument, dtype_words);
}

void glue_optional_int(struct glue_call *call, int argument, dg_opt_int *value)
{
    PyObject *given = glue_value(call, argument);
    if (given == NULL)
        return;
    value->has = given != Py_None;
    if (value->has && !read_int(given, &value->value))
        fail_int(call, argument, "int or None");
}

void glue_optional_float(struct glue_call *call, int argument, dg_opt_float *value)
{
    PyObject *given = glue_value(call, argument);
    if (given == NULL)
        return;
    value->has = given != Py_None;
    if (value->has && !read_float(given, &value->value))
        glue_fail_type(call, argument, "float or None");
}

void glue_optional_bool(struct glue_call *call, int argument, dg_opt_bool *value)
{
    PyObject *given = glue_value(call, argument);
    if (given == NULL)
        return;
    value->has = given != Py_None;
    if (value->has && !read_bool(given, &value->value))
        glue_fail_type(call, argument, "bool or None");
}

void glue_optional_dtype(struct glue_call *call, int argument, dg_opt_dtype *value)
{
    PyObject *given = glue_value(call, argument);
    if (given == NULL)
        return;
    const struct glue_dtype_word *word = given != Py_None ? read_dtype(given) : NULL;
    value->has = given != Py_None;
    if (word != NULL)
        value->value = word->dtype;
    else if (value->has)
        glue_fail_type(call, argument, "a dtype or None");
}

/* ---- lists --------------------------------------------------------------------------------------------------- */

/* What the members of a list are. */
struct kind {
    size_t size;
    bool (*read)(PyObject *value, void *item);
    const char *expected;
    const char *expected_or_none;
    const char *plural;
};

static bool read_int_item(PyObject *value, void *item) { return read_int(value, item); }
static bool read_float_item(PyObject *value, void *item) { return read_float(value, item); }
static bool read_bool_item(PyObject *value, void *item) { return read_bool(value, item); }

static const struct kind ints = {sizeof(int64_t), read_int_item, "a sequence of int", "a sequence of int or None", "ints"};
static const struct kind floats = {sizeof(double), read_float_item, "a sequence of float", "a sequence of float or None", "floats"};
static const struct kind bools = {sizeof(bool), read_bool_item, "a sequence of bool", "a sequence of bool or None", "bools"};

/* The value as a tuple, a new reference. NULL: it is no sequence, or one of characters. */
static PyObject *members(PyObject *value)
{
    if (PyTuple_Check(value)) {
        Py_INCREF(value);
        return value;
    }
    const bool is_sequence = PySequence_Check(value) && !PyUnicode_Check(value) && !PyBytes_Check(value);
    return is_sequence ? PySequence_Tuple(value) : NULL;
}

/* Members that find no room are read, too, so that one of a wrong type is told before their number. */
static bool read_items(const struct kind *kind, PyObject *tuple, size_t room, char *items)
{
    int64_t beyond;
    for (size_t i = 0; i < (size_t)PyTuple_Size(tuple); i++)
        if (!kind->read(PyTuple_GetItem(tuple, (Py_ssize_t)i), i < room ? (void *)(items + i * kind->size) : &beyond))
            return false;
    return true;
}

/* The members of a list that is given, in memory of the call, and their number. */
static const void *read_list(struct glue_call *call, int argument, const struct kind *kind, const char *expected, size_t *len)
{
    PyObject *tuple = members(call->values[argument]);
    if (tuple == NULL) {
        glue_fail_type(call, argument, expected);
        return NULL;
    }
    const Py_ssize_t count = PyTuple_Size(tuple);
    PyObject *memory = PyByteArray_FromStringAndSize(NULL, count * (Py_ssize_t)kind->size);
    glue_keep(call, memory);
    char *items = call->is_failed ? NULL : PyByteArray_AsString(memory);
    if (items != NULL && !read_items(kind, tuple, (size_t)count, items))
        glue_fail_type(call, argument, expected);
    Py_DECREF(tuple);
    *len = (size_t)count;
    return items;
}

void glue_ints(struct glue_call *call, int argument, dg_ints *list)
{
    if (glue_value(call, argument) != NULL)
        list->data = read_list(call, argument, &ints, ints.expected, &list->len);
}

void glue_floats(struct glue_call *call, int argument, dg_floats *list)
{
    if (glue_value(call, argument) != NULL)
        list->data = read_list(call, argument, &floats, floats.expected, &list->len);
}

void glue_bools(struct glue_call *call, int argument, dg_bools *list)
{
    if (glue_value(call, argument) != NULL)
        list->data = read_list(call, argument, &bools, bools.expected, &list->len);
}

static bool is_given(const struct glue_call *call, int argument)
{
    PyObject *given = glue_value(call, argument);
    return given != NULL && given != Py_None;
}

const dg_ints *glue_optional_ints(struct glue_call *call, int argument, dg_ints *list)
{
    if (!is_given(call, argument))
        return NULL;
    list->data = read_list(call, argument, &ints, ints.expected_or_none, &list->len);
    return list;
}

const dg_floats *glue_optional_floats(struct glue_call *call, int argument, dg_floats *list)
{
    if (!is_given(call, argument))
        return NULL;
    list->data = read_list(call, argument, &floats, floats.expected_or_none, &list->len);
    return list;
}

const dg_bools *glue_optional_bools(struct glue_call *call, int argument, dg_bools *list)
{
    if (!is_given(call, argument))
        return NULL;
    list->data = read_list(call, argument, &bools, bools.expected_or_none, &list->len);
    return list;
}

/* ---- lists of fixed length ----------------------------------------------------------------------------------- */

static void read_array(struct glue_call *call, int argument, const struct kind *kind, const char *expected, enum glue_repeat repeat, size_t len,
                       void *items)
{
    PyObject *given = call->values[argument];
    if (repeat == GLUE_REPEATED && kind->read(given, items)) {
        for (size_t i = 1; i < len; i++)
            memcpy((char *)items + i * kind->size, items, kind->size);
        return;
    }
    PyErr_Clear();
    PyObject *tuple = members(given);
    if (tuple == NULL || !read_items(kind, tuple, len, items))
        glue_fail_type(call, argument, expected);
    else if (PyTuple_Size(tuple) != (Py_ssize_t)len)
        glue_fail(call, PyExc_ValueError, argument, "needs %zu %s, got %zd", len, kind->plural, PyTuple_Size(tuple));
    Py_XDECREF(tuple);
}

void glue_int_array(struct glue_call *call, int argument, enum glue_repeat repeat, size_t len, int64_t *items)
{
    if (glue_value(call, argument) != NULL)
        read_array(call, argument, &ints, ints.expected, repeat, len, items);
}

void glue_float_array(struct glue_call *call, int argument, enum glue_repeat repeat, size_t len, double *items)
{
    if (glue_value(call, argument) != NULL)
        read_array(call, argument, &floats, floats.expected, repeat, len, items);
}

void glue_bool_array(struct glue_call *call, int argument, enum glue_repeat repeat, size_t len, bool *items)
{
    if (glue_value(call, argument) != NULL)
        read_array(call, argument, &bools, bools.expected, repeat, len, items);
}

static void read_optional_array(struct glue_call *call, int argument, const struct kind *kind, enum glue_repeat repeat, size_t len, bool *has,
                                void *items)
{
    PyObject *given = glue_value(call, argument);
    if (given == NULL)
        return;
    *has = given != Py_None;
    if (*has)
        read_array(call, argument, kind, kind->expected_or_none, repeat, len, items);
}

void glue_optional_int_array(struct glue_call *call, int argument, enum glue_repeat repeat, size_t len, bool *has, int64_t *items)
{
    read_optional_array(call, argument, &ints, repeat, len, has, items);
}

void glue_optional_float_array(struct glue_call *call, int argument, enum glue_repeat repeat, size_t len, bool *has, double *items)
{
    read_optional_array(call, argument, &floats, repeat, len, has, items);
}

void glue_optional_bool_array(struct glue_call *call, int argument, enum glue_repeat repeat, size_t len, bool *has, bool *items)
{
    read_optional_array(call, argument, &bools, repeat, len, has, items);
}
