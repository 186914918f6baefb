/* Tensors from Python objects: whose memory a call borrows, and where the call runs.
 *
 * A type of the exchange API (torch's) or of NumPy's array interface is read at once. Others have `__dlpack__()`, which on CUDA wants to know
 * the stream; so they wait until all arguments are known, and the stream is that of the exchange API's library if one takes part, else the
 * legacy default stream.
 */
#include "state.h"

/* ---- types --------------------------------------------------------------------------------------------------- */

/* The exchange API that the type has, of a version that we know; NULL when there is none. */
static const struct dlpack_exchange_api *find_exchange_api(PyObject *type)
{
    PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
    const struct dlpack_exchange_api *api = NULL;
    if (capsule != NULL && PyCapsule_CheckExact(capsule))
        api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api"); /* static memory of the library */
    while (api != NULL && api->version.major != DLPACK_MAJOR)
        api = api->version.major > DLPACK_MAJOR ? api->previous : NULL;
    Py_XDECREF(capsule);
    PyErr_Clear();
    return api;
}

/* Whether a type's tensors have memory as those of its base do that brought the exchange API. A subclass of torch.Tensor that dispatches by
 * itself has none of its own: a fake tensor, a distributed one. */
static bool has_own_memory(PyObject *type)
{
    static const char dispatch[] = "__torch_dispatch__";
    PyObject *bases = PyObject_GetAttrString(type, "__mro__");
    PyObject *base = NULL;
    for (Py_ssize_t i = 0; bases != NULL && base == NULL && i < PyTuple_Size(bases); i++) {
        PyObject *members = PyObject_GetAttrString(PyTuple_GetItem(bases, i), "__dict__");
        if (members != NULL && PyMapping_HasKeyString(members, "__dlpack_c_exchange_api__"))
            base = PyTuple_GetItem(bases, i);
        Py_XDECREF(members);
    }
    PyObject *ours = base != NULL && base != type ? PyObject_GetAttrString(type, dispatch) : NULL;
    PyObject *theirs = ours != NULL ? PyObject_GetAttrString(base, dispatch) : NULL;
    const bool is_same = ours == theirs; /* both absent, too */
    Py_XDECREF(ours);
    Py_XDECREF(theirs);
    Py_XDECREF(bases);
    PyErr_Clear();
    return is_same;
}

static bool has_attribute(PyObject *type, PyObject *name)
{
    PyObject *found = PyObject_GetAttr(type, name);
    PyErr_Clear();
    Py_XDECREF(found);
    return found != NULL;
}

static struct glue_type describe(struct glue_state *state, PyObject *type)
{
    struct glue_type found = {.type = type, .source = GLUE_NO_TENSOR, .takes_version = true};
    found.api = find_exchange_api(type);
    if (found.api != NULL && !has_own_memory(type))
        found.api = NULL;
    if (found.api != NULL)
        found.source = GLUE_EXCHANGE;
    else if (has_attribute(type, state->objects.array_struct))
        found.source = GLUE_NUMPY;
    else if (has_attribute(type, state->objects.dlpack))
        found.source = GLUE_DLPACK;
    return found;
}

static struct glue_type *type_of(struct glue_state *state, PyObject *object)
{
    PyObject *type = (PyObject *)Py_TYPE(object);
    for (size_t i = 0; i < GLUE_NUM_TYPES; i++)
        if (state->types[i].type == type)
            return &state->types[i];
    const struct glue_type found = describe(state, type);
    struct glue_type *entry = &state->types[state->next_type++ % GLUE_NUM_TYPES];
    PyObject *replaced = entry->type;
    *entry = found;
    Py_INCREF(type);
    Py_XDECREF(replaced);
    return entry;
}

/* ---- failures ------------------------------------------------------------------------------------------------ */

/* Turns what a library says of its own tensor into a ValueError that names the argument; that error is its cause. What says nothing of the
 * tensor, such as KeyboardInterrupt, stays as it is. */
static void fail_export(struct glue_call *call, int argument)
{
    call->is_failed = true;
    if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError))
        return;
    PyObject *kind = NULL;
    PyObject *cause = NULL;
    PyObject *trace = NULL;
    PyErr_Fetch(&kind, &cause, &trace);
    PyErr_NormalizeException(&kind, &cause, &trace);
    if (trace != NULL)
        PyException_SetTraceback(cause, trace);
    glue_fail(call, PyExc_ValueError, argument, "cannot be read through DLPack: %S", cause);
    PyObject *our_kind = NULL;
    PyObject *error = NULL;
    PyObject *our_trace = NULL;
    PyErr_Fetch(&our_kind, &error, &our_trace);
    PyErr_NormalizeException(&our_kind, &error, &our_trace);
    PyException_SetCause(error, cause); /* takes the reference over */
    PyErr_Restore(our_kind, error, our_trace);
    Py_XDECREF(kind);
    Py_XDECREF(trace);
}

static void fail_fp4(struct glue_call *call, int argument)
{
    glue_fail(call, PyExc_TypeError, argument, "has one FP4 element in each byte, expected pairs: pack two into each uint8");
}

static const char not_writable[] = "expected a tensor that can be written";

/* ---- the exchange API ---------------------------------------------------------------------------------------- */

/* torch can view a tensor's negative without writing it, as in `x.conj().imag`, and no protocol tells of it. Such views are parts of complex
 * tensors, whose elements have another one between them: a dimension of stride 1 is none of theirs. */
static void check_sign(struct glue_call *call, const struct glue_tensor *tensor, PyObject *object)
{
    const dg_tensor *view = &tensor->view;
    if (view->dtype.code != DG_CODE_FLOAT || view->strides == NULL)
        return;
    bool is_apart = true;
    for (int32_t i = 0; i < view->ndim; i++)
        is_apart = is_apart && (view->strides[i] != 1 || view->shape[i] <= 1);
    if (!is_apart || view->ndim == 0)
        return;
    PyObject *method = PyObject_GetAttr(object, call->state->objects.is_neg);
    PyObject *answer = method != NULL ? PyObject_CallNoArgs(method) : NULL;
    if (answer == Py_True)
        glue_fail(call, PyExc_ValueError, tensor->argument, "is a view of the negative of its memory, expected x.resolve_neg()");
    Py_XDECREF(answer);
    Py_XDECREF(method);
    if (answer == NULL)
        PyErr_Clear(); /* another library, which has no such views */
}

static void view_exchanged(struct glue_call *call, struct glue_tensor *tensor, PyObject *object, const struct dlpack_exchange_api *api)
{
    tensor->api = api;
    if (api->tensor_from_object != NULL) {
        if (api->tensor_from_object(object, &tensor->view) != 0)
            fail_export(call, tensor->argument);
    } else if (api->managed_from_object(object, &tensor->managed_versioned) != 0) {
        fail_export(call, tensor->argument);
    } else {
        tensor->view = tensor->managed_versioned->tensor;
    }
    if (!call->is_failed)
        check_sign(call, tensor, object);
}

/* ---- NumPy --------------------------------------------------------------------------------------------------- */

/* The types of NumPy's own. ml_dtypes uses other kinds, and `f` for one byte. */
static bool standard_dtype(char kind, int bytes, dg_dtype *dtype)
{
    const bool is_size = bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
    dtype->bits = (uint8_t)(8 * bytes);
    dtype->lanes = 1;
    if (kind == 'f' && bytes > 1)
        dtype->code = DG_CODE_FLOAT;
    else if (kind == 'i')
        dtype->code = DG_CODE_INT;
    else if (kind == 'u')
        dtype->code = DG_CODE_UINT;
    else if (kind == 'b')
        dtype->code = DG_CODE_BOOL;
    else
        return false;
    return is_size;
}

/* The dtype by its name, which takes Python a microsecond to make. */
static bool named_dtype(struct glue_call *call, int argument, PyObject *object, dg_dtype *dtype)
{
    PyObject *name = PyObject_GetAttr(object, call->state->objects.name);
    const char *word = name != NULL && PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    const struct glue_dtype_word *known = word != NULL ? glue_find_dtype(word) : NULL;
    if (known != NULL)
        *dtype = known->dtype;
    else if (word != NULL)
        glue_fail(call, PyExc_TypeError, argument, "has dtype %s, which no operator takes", word);
    else
        fail_export(call, argument);
    Py_XDECREF(name);
    return known != NULL;
}

static bool other_dtype(struct glue_call *call, int argument, PyObject *array, dg_dtype *dtype)
{
    struct glue_state *state = call->state;
    PyObject *object = PyObject_GetAttr(array, state->objects.dtype);
    if (object == NULL) {
        fail_export(call, argument);
        return false;
    }
    for (size_t i = 0; i < GLUE_NUM_DTYPES; i++) {
        if (state->dtypes[i].object == object) {
            *dtype = state->dtypes[i].dtype;
            Py_DECREF(object);
            return true;
        }
    }
    if (!named_dtype(call, argument, object, dtype)) {
        Py_DECREF(object);
        return false;
    }
    struct glue_numpy_dtype *entry = &state->dtypes[state->next_dtype++ % GLUE_NUM_DTYPES];
    PyObject *replaced = entry->object;
    *entry = (struct glue_numpy_dtype){object, *dtype};
    Py_XDECREF(replaced);
    return true;
}

/* shape and strides, which NumPy counts in bytes, and which are 0 in an array without elements. More dimensions than a tensor may have are
 * left to the library to refuse. */
static bool copy_geometry(struct glue_call *call, struct glue_tensor *tensor, const struct numpy_array *array)
{
    tensor->view.ndim = array->ndim;
    tensor->view.shape = tensor->shape;
    tensor->view.strides = tensor->strides;
    for (int i = 0; i < array->ndim && i < DG_MAX_NDIM; i++) {
        tensor->shape[i] = array->shape[i];
        tensor->strides[i] = array->byte_strides[i] / array->item_bytes;
        if (array->byte_strides[i] % array->item_bytes != 0 && array->shape[i] > 1) {
            glue_fail(call, PyExc_ValueError, tensor->argument, "has a stride of %zd bytes, expected a multiple of its element's %d",
                      (Py_ssize_t)array->byte_strides[i], array->item_bytes);
            return false;
        }
        if (array->shape[i] == 0)
            tensor->view.strides = NULL;
    }
    return true;
}

bool glue_view_numpy(struct glue_call *call, struct glue_tensor *tensor, PyObject *object)
{
    const int argument = tensor->argument;
    tensor->capsule = PyObject_GetAttr(object, call->state->objects.array_struct);
    const struct numpy_array *array = tensor->capsule != NULL ? PyCapsule_GetPointer(tensor->capsule, NULL) : NULL;
    if (array == NULL) {
        fail_export(call, argument);
        return false;
    }
    if (!standard_dtype(array->kind, array->item_bytes, &tensor->view.dtype) && !other_dtype(call, argument, object, &tensor->view.dtype))
        return false;
    if (tensor->view.dtype.code == DG_CODE_F4E2M1FN) {
        fail_fp4(call, argument);
        return false;
    }
    if ((array->flags & NUMPY_NATIVE_BYTE_ORDER) == 0) {
        glue_fail(call, PyExc_ValueError, argument, "is not in the byte order of this machine");
        return false;
    }
    if (tensor->is_written && (array->flags & NUMPY_WRITEABLE) == 0) {
        glue_fail(call, PyExc_ValueError, argument, "is read-only, %s", not_writable);
        return false;
    }
    tensor->view.data = array->data;
    tensor->view.device = (dg_device){DG_CPU, 0};
    return copy_geometry(call, tensor, array);
}

/* ---- __dlpack__() -------------------------------------------------------------------------------------------- */

/* Takes over what a capsule holds, as the protocol asks: the capsule is marked as used, and the deleter is ours to call. */
static void consume(struct glue_call *call, struct glue_tensor *tensor, PyObject *capsule)
{
    const int argument = tensor->argument;
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        tensor->managed_versioned = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        PyCapsule_SetName(capsule, "used_dltensor_versioned");
        if (tensor->managed_versioned->version.major == DLPACK_MAJOR)
            tensor->view = tensor->managed_versioned->tensor;
        else
            glue_fail(call, PyExc_ValueError, argument, "comes as DLPack %d.%d, expected version %d",
                      (int)tensor->managed_versioned->version.major, (int)tensor->managed_versioned->version.minor, (int)DLPACK_MAJOR);
    } else if (PyCapsule_IsValid(capsule, "dltensor")) {
        tensor->managed = PyCapsule_GetPointer(capsule, "dltensor");
        PyCapsule_SetName(capsule, "used_dltensor");
        tensor->view = tensor->managed->tensor;
    } else {
        glue_fail(call, PyExc_ValueError, argument, "cannot be read through DLPack: __dlpack__() returned %R, expected a fresh capsule", capsule);
    }
}

/* Whether an object that exports no versioned capsule may be written: its `__cuda_array_interface__` says so, if it has one. */
static bool is_writable_on_cuda(struct glue_call *call, PyObject *object)
{
    PyObject *interface = PyObject_GetAttr(object, call->state->objects.cuda_array_interface);
    PyObject *data = interface != NULL ? PyMapping_GetItemString(interface, "data") : NULL;
    PyObject *is_read_only = data != NULL ? PySequence_GetItem(data, 1) : NULL;
    const bool is_writable = is_read_only == Py_False;
    Py_XDECREF(is_read_only);
    Py_XDECREF(data);
    Py_XDECREF(interface);
    PyErr_Clear();
    return is_writable;
}

static void check_export(struct glue_call *call, const struct glue_tensor *tensor, PyObject *object)
{
    const int argument = tensor->argument;
    const uint64_t flags = tensor->managed_versioned != NULL ? tensor->managed_versioned->flags : 0;
    if ((flags & DLPACK_IS_PADDED) != 0)
        fail_fp4(call, argument);
    else if (!tensor->is_written)
        return;
    else if ((flags & DLPACK_READ_ONLY) != 0)
        glue_fail(call, PyExc_ValueError, argument, "is read-only, %s", not_writable);
    else if ((flags & DLPACK_IS_COPIED) != 0)
        glue_fail(call, PyExc_ValueError, argument, "comes as a copy, %s", not_writable);
    else if (tensor->managed != NULL && !is_writable_on_cuda(call, object))
        glue_fail(call, PyExc_ValueError, argument, "does not say whether it is read-only, %s", not_writable);
}

/* The device of an object that has `__dlpack__()`; the CPU when it does not say. */
static dg_device device_of(struct glue_call *call, int argument, PyObject *object)
{
    dg_device device = {DG_CPU, 0};
    PyObject *method = PyObject_GetAttr(object, call->state->objects.dlpack_device);
    if (method == NULL) {
        PyErr_Clear();
        return device;
    }
    PyObject *answer = PyObject_CallNoArgs(method);
    PyObject *pair = answer != NULL ? PySequence_Tuple(answer) : NULL; /* the type may be an enum */
    if (pair == NULL || !PyArg_ParseTuple(pair, "ii", &device.type, &device.id))
        fail_export(call, argument);
    Py_XDECREF(pair);
    Py_XDECREF(answer);
    Py_DECREF(method);
    return device;
}

/* Calls `__dlpack__(stream=..., max_version=(1, 1))`. A library that knows no version takes no such keyword. */
static PyObject *export(struct glue_call *call, struct glue_type *type, PyObject *object, PyObject *stream)
{
    struct glue_state *state = call->state;
    PyObject *capsule = NULL;
    PyObject *method = PyObject_GetAttr(object, state->objects.dlpack);
    PyObject *keywords = method == NULL ? NULL : stream == NULL ? state->objects.with_version : PyDict_Copy(state->objects.with_version);
    if (stream == NULL)
        Py_XINCREF(keywords);
    else if (keywords != NULL && PyDict_SetItem(keywords, state->objects.stream, stream) != 0)
        Py_CLEAR(keywords);
    if (keywords != NULL && type->takes_version) {
        capsule = PyObject_Call(method, state->objects.no_arguments, keywords);
        type->takes_version = capsule != NULL || !PyErr_ExceptionMatches(PyExc_TypeError);
    }
    if (keywords != NULL && !type->takes_version) {
        PyErr_Clear();
        PyObject *rest = PyDict_New();
        if (rest != NULL && (stream == NULL || PyDict_SetItem(rest, state->objects.stream, stream) == 0))
            capsule = PyObject_Call(method, state->objects.no_arguments, rest);
        Py_XDECREF(rest);
    }
    Py_XDECREF(keywords);
    Py_XDECREF(method);
    return capsule;
}

static void view_exported(struct glue_call *call, struct glue_tensor *tensor, void *cuda_stream)
{
    PyObject *object = call->values[tensor->argument];
    PyObject *stream = NULL;
    if (tensor->view.device.type == DG_CUDA) /* 1 is the legacy default stream, which is NULL to CUDA */
        stream = cuda_stream != NULL ? PyLong_FromVoidPtr(cuda_stream) : PyLong_FromLong(1);
    PyObject *capsule = PyErr_Occurred() == NULL ? export(call, type_of(call->state, object), object, stream) : NULL;
    Py_XDECREF(stream);
    if (capsule == NULL) {
        fail_export(call, tensor->argument);
        return;
    }
    consume(call, tensor, capsule);
    Py_DECREF(capsule);
    if (!call->is_failed)
        check_export(call, tensor, object);
}

/* ---- arguments ----------------------------------------------------------------------------------------------- */

struct glue_tensor *glue_new_tensor(struct glue_call *call)
{
    struct glue_tensor *tensor = &call->tensors[call->num_tensors++];
    tensor->view = (dg_tensor){0}; /* member by member: shape and strides stay as they are, and memset would cost more than all of this */
    tensor->argument = 0;
    tensor->is_written = false;
    tensor->is_pending = false;
    tensor->api = NULL;
    tensor->capsule = NULL;
    tensor->managed = NULL;
    tensor->managed_versioned = NULL;
    return tensor;
}

static dg_tensor *view(struct glue_call *call, int argument, bool is_written, const char *expected)
{
    PyObject *object = call->values[argument];
    struct glue_tensor *tensor = glue_new_tensor(call);
    tensor->argument = argument;
    tensor->is_written = is_written;
    const struct glue_type *type = type_of(call->state, object);
    switch (type->source) {
    case GLUE_EXCHANGE:
        view_exchanged(call, tensor, object, type->api);
        break;
    case GLUE_NUMPY:
        glue_view_numpy(call, tensor, object);
        break;
    case GLUE_DLPACK:
        tensor->is_pending = true;
        tensor->view.device = device_of(call, argument, object);
        break;
    case GLUE_NO_TENSOR:
        glue_fail_type(call, argument, expected);
        break;
    }
    return &tensor->view;
}

static dg_tensor *view_required(struct glue_call *call, int argument, bool is_written)
{
    PyObject *object = glue_value(call, argument);
    if (object == NULL)
        return NULL;
    if (object == Py_None) {
        glue_fail(call, PyExc_TypeError, argument, "is None, expected a tensor");
        return NULL;
    }
    return view(call, argument, is_written, "Tensor");
}

static dg_tensor *view_optional(struct glue_call *call, int argument, bool is_written)
{
    PyObject *object = glue_value(call, argument);
    return object == NULL || object == Py_None ? NULL : view(call, argument, is_written, "Tensor or None");
}

const dg_tensor *glue_read(struct glue_call *call, int argument) { return view_required(call, argument, false); }
dg_tensor *glue_write(struct glue_call *call, int argument) { return view_required(call, argument, true); }
const dg_tensor *glue_read_optional(struct glue_call *call, int argument) { return view_optional(call, argument, false); }
dg_tensor *glue_write_optional(struct glue_call *call, int argument) { return view_optional(call, argument, true); }

/* ---- where a call runs --------------------------------------------------------------------------------------- */

void glue_finish_tensors(struct glue_call *call, dg_device *device, void **stream)
{
    bool is_asked = false;
    for (int i = 0; i < call->num_tensors && !call->is_failed; i++) {
        const struct glue_tensor *tensor = &call->tensors[i];
        if (tensor->view.device.type != DG_CUDA || is_asked)
            continue;
        *device = tensor->view.device;
        if (tensor->api != NULL) {
            is_asked = true;
            if (tensor->api->current_stream(device->type, device->id, stream) != 0)
                fail_export(call, tensor->argument);
        }
    }
    for (int i = 0; i < call->num_tensors && !call->is_failed; i++)
        if (call->tensors[i].is_pending)
            view_exported(call, &call->tensors[i], *stream);
}

void glue_release_tensor(struct glue_tensor *tensor)
{
    if (tensor->managed != NULL && tensor->managed->deleter != NULL)
        tensor->managed->deleter(tensor->managed);
    if (tensor->managed_versioned != NULL && tensor->managed_versioned->deleter != NULL)
        tensor->managed_versioned->deleter(tensor->managed_versioned);
    Py_XDECREF(tensor->capsule);
}

const struct dlpack_exchange_api *glue_allocator(const struct glue_call *call)
{
    return call->num_tensors > 0 ? call->tensors[0].api : NULL;
}
