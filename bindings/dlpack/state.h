/* What the files of the glue share and module.c does not see: the state of a module, and how a call fails. */
#ifndef DG_DLPACK_STATE_H
#define DG_DLPACK_STATE_H

#include "glue.h"

/* ---- the state of a module ----------------------------------------------------------------------------------- */

enum glue_source {
    GLUE_NO_TENSOR,
    GLUE_EXCHANGE, /* the C exchange API of DLPack: no object is made */
    GLUE_NUMPY,    /* `__array_struct__`: half the time of `__dlpack__`, and it has the types that NumPy does not export to DLPack */
    GLUE_DLPACK    /* `__dlpack__()` */
};

/* What is known of a Python type. */
struct glue_type {
    PyObject *type;
    enum glue_source source;
    const struct dlpack_exchange_api *api;
    bool takes_version; /* `__dlpack__()` has a `max_version` */
};

/* A NumPy dtype that was met before. */
struct glue_numpy_dtype {
    PyObject *object;
    dg_dtype dtype;
};

enum { GLUE_NUM_TYPES = 16, GLUE_NUM_DTYPES = 16, GLUE_NUM_CONTEXTS = 16, GLUE_NUM_WORDS = 16 };

/* The Python objects come first, as PyObject pointers alone: they are visited and cleared as an array. */
struct glue_state {
    struct {
        PyObject *array_struct; /* "__array_struct__" and so on, interned */
        PyObject *cuda_array_interface;
        PyObject *dlpack;
        PyObject *dlpack_device;
        PyObject *dtype;
        PyObject *is_neg;
        PyObject *name;
        PyObject *stream;
        PyObject *max_version;
        PyObject *version;        /* (1, 1), the value of max_version */
        PyObject *no_arguments;   /* () */
        PyObject *with_version;   /* {"max_version": (1, 1)} */
        PyObject *numpy_empty;    /* NULL until a result needs it, as all below */
        PyObject *numpy_ndarray;
        PyObject *result_dtypes[GLUE_NUM_WORDS]; /* by glue_dtype_words */
    } objects;
    struct glue_type types[GLUE_NUM_TYPES];
    struct glue_numpy_dtype dtypes[GLUE_NUM_DTYPES];
    unsigned next_type; /* to be replaced */
    unsigned next_dtype;
    dg_context *contexts[GLUE_NUM_CONTEXTS]; /* no call uses them now */
    int num_contexts;
};

/* ---- dtypes -------------------------------------------------------------------------------------------------- */

/* A dtype by the word that NumPy, ml_dtypes and torch have for it. */
struct glue_dtype_word {
    const char *word;
    dg_dtype dtype;
    const char *module; /* of NumPy's dtype; NULL: NumPy has none */
};
extern const struct glue_dtype_word glue_dtype_words[];
extern const size_t glue_num_dtype_words;

/* The entry of this word, or NULL. */
const struct glue_dtype_word *glue_find_dtype(const char *word);

/* ---- failures ------------------------------------------------------------------------------------------------ */

/* How the caller writes an argument: "a[1]". */
const char *glue_written(const struct glue_call *call, int argument);

/* Raises `op: written TEXT`. */
void glue_fail(struct glue_call *call, PyObject *kind, int argument, const char *format, ...);

/* TypeError: `op: written is VALUE (TYPE), expected EXPECTED`. It replaces the error of a failed conversion. */
void glue_fail_type(struct glue_call *call, int argument, const char *expected);

/* Raises what the C library says of call->status, with arguments as the caller writes them. */
void glue_fail_status(struct glue_call *call);

/* Keeps object, whose reference it takes over, until the end of the call. */
void glue_keep(struct glue_call *call, PyObject *object);

/* The value of an argument when it is given and the call has not failed, else NULL. */
static inline PyObject *glue_value(const struct glue_call *call, int argument)
{
    return call->is_failed ? NULL : call->values[argument];
}

/* `module.attribute`, a new reference. */
PyObject *glue_import(const char *module, const char *attribute);

/* ---- tensors ------------------------------------------------------------------------------------------------- */

/* Fills the pending tensors and says where the call runs. */
void glue_finish_tensors(struct glue_call *call, dg_device *device, void **stream);

/* The next of call->tensors, empty. */
struct glue_tensor *glue_new_tensor(struct glue_call *call);

/* Makes view the memory of a NumPy array. false: it is none, or cannot be read, and the call has failed. */
bool glue_view_numpy(struct glue_call *call, struct glue_tensor *tensor, PyObject *array);

void glue_release_tensor(struct glue_tensor *tensor);

/* The exchange API of the library that the first tensor argument comes from, or NULL. */
const struct dlpack_exchange_api *glue_allocator(const struct glue_call *call);

#endif
