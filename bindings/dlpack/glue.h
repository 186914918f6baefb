/* What generated/dlpack/module.c is written in: one call of an operator, from Python objects to the C library and back.
 *
 * A function of the module binds its arguments, reads them into what the C function takes, and ends the call:
 *
 *     glue_bind(&call, module, args, nargs, kwnames);
 *     const dg_tensor *a = glue_read(&call, 0);
 *     glue_str(&call, 4, &options.compiled_dims);
 *     if (glue_ready(&call)) {
 *         Py_BEGIN_ALLOW_THREADS
 *         call.status = dg_bf16_gemm_nt(call.ctx, a, ..., &options);
 *         Py_END_ALLOW_THREADS
 *     }
 *     return glue_end(&call);
 *
 * The first failure sets the Python error; everything after it does nothing, and glue_end() returns NULL. Arguments are told by their
 * place in the schema. A reader leaves its target alone when the caller has not given the argument, so that it keeps its default.
 *
 * call.c binds arguments and speaks of errors, values.c reads numbers, strings and lists, tensors.c reads tensors, results.c makes results.
 */
#ifndef DG_DLPACK_GLUE_H
#define DG_DLPACK_GLUE_H

#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "protocols.h"

/* ---- operators --------------------------------------------------------------------------------------------- */

/* An argument of the operator, and how the caller writes it: "sfa" is "a[1]" when it is a member of the pair `a`. */
struct glue_argument {
    const char *name;
    const char *written;
};

enum glue_need {
    GLUE_REQUIRED,
    GLUE_RENAMED, /* required, by its name or by its old name */
    GLUE_DEFAULTED
};

/* A parameter of the Python function: one argument, or the pair of two. */
struct glue_parameter {
    const char *name;
    const char *old_name; /* a keyword of older callers, or NULL */
    enum glue_need need;
    int argument;
    int second; /* of a pair; -1: it is none */
};

enum { GLUE_MAX_ARGUMENTS = 64 }; /* torch registers no operator with more, and the generator refuses it */

struct glue_operator {
    const char *name;
    const char *schema;
    const struct glue_argument *arguments;
    int num_arguments;
    const struct glue_parameter *parameters; /* those with keywords only are last */
    int num_parameters;
    int num_positional;
};

/* ---- the module -------------------------------------------------------------------------------------------- */

struct glue_alias {
    const char *name;
    const char *of;
};

/* Of the exec slot: checks that the library has these operators, and adds aliases, of which the last has no name, and `__all__`. false: a
 * Python error is set. */
bool glue_start(PyObject *module, const struct glue_operator *const *operators, size_t num_operators, const struct glue_alias *aliases);

/* The members of a PyModuleDef that keep the state of a module. */
extern const Py_ssize_t glue_state_size;
int glue_traverse(PyObject *module, visitproc visit, void *arg);
int glue_clear(PyObject *module);
void glue_free(void *module);

/* ---- a call ------------------------------------------------------------------------------------------------ */

struct glue_state;

/* A tensor argument, and what has to be released behind the call. */
struct glue_tensor {
    dg_tensor view;
    int argument;
    bool is_written;
    bool is_pending;                                    /* view is filled by glue_ready() */
    const struct dlpack_exchange_api *api;              /* of its type, or NULL */
    PyObject *capsule;                                  /* owned */
    struct dlpack_managed *managed;                     /* owned */
    struct dlpack_managed_versioned *managed_versioned; /* owned */
    int64_t shape[DG_MAX_NDIM];                         /* of view, when its owner counts in another way */
    int64_t strides[DG_MAX_NDIM];
};

/* Begins as {.op = ..., .values = ...} with arrays of the caller: a value per argument, a tensor per argument and result that is one, a
 * result per return. Those that would be empty are NULL. */
struct glue_call {
    const struct glue_operator *op;
    PyObject **values; /* borrowed; NULL: not given */
    struct glue_tensor *tensors;
    PyObject **results; /* owned; NULL: not made */
    int num_results;
    int num_tensors; /* in use */
    struct glue_state *state;
    dg_context *ctx;
    dg_status status;
    bool is_failed;    /* a Python error is set */
    bool owns_context; /* ctx goes back to state at the end */
    PyObject *kept;    /* a list of what must live until the end, or NULL */
};

void glue_bind(struct glue_call *call, PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

/* Where the call runs: on the device of its tensors, in the stream that the library of theirs works in. false: the call has failed. */
bool glue_ready(struct glue_call *call);

/* Turns a status that is no success into a Python error, releases all that was borrowed, and returns None, the result, or the tuple of
 * results; NULL when the call has failed. */
PyObject *glue_end(struct glue_call *call);

/* ---- reading arguments ------------------------------------------------------------------------------------- */

const dg_tensor *glue_read(struct glue_call *call, int argument);
dg_tensor *glue_write(struct glue_call *call, int argument);
const dg_tensor *glue_read_optional(struct glue_call *call, int argument); /* NULL: None, or not given */
dg_tensor *glue_write_optional(struct glue_call *call, int argument);

void glue_int(struct glue_call *call, int argument, int64_t *value);
void glue_float(struct glue_call *call, int argument, double *value);
void glue_bool(struct glue_call *call, int argument, bool *value);
void glue_str(struct glue_call *call, int argument, dg_str *value);
void glue_dtype(struct glue_call *call, int argument, dg_dtype *value);

void glue_optional_int(struct glue_call *call, int argument, dg_opt_int *value);
void glue_optional_float(struct glue_call *call, int argument, dg_opt_float *value);
void glue_optional_bool(struct glue_call *call, int argument, dg_opt_bool *value);
void glue_optional_dtype(struct glue_call *call, int argument, dg_opt_dtype *value);

/* Lists live until the end of the call. The optional ones return NULL for None, and list otherwise. */
void glue_ints(struct glue_call *call, int argument, dg_ints *list);
void glue_floats(struct glue_call *call, int argument, dg_floats *list);
void glue_bools(struct glue_call *call, int argument, dg_bools *list);
const dg_ints *glue_optional_ints(struct glue_call *call, int argument, dg_ints *list);
const dg_floats *glue_optional_floats(struct glue_call *call, int argument, dg_floats *list);
const dg_bools *glue_optional_bools(struct glue_call *call, int argument, dg_bools *list);

/* Lists of fixed length. A repeated one may also be given as one number. */
enum glue_repeat { GLUE_AS_GIVEN, GLUE_REPEATED };
void glue_int_array(struct glue_call *call, int argument, enum glue_repeat repeat, size_t len, int64_t *items);
void glue_float_array(struct glue_call *call, int argument, enum glue_repeat repeat, size_t len, double *items);
void glue_bool_array(struct glue_call *call, int argument, enum glue_repeat repeat, size_t len, bool *items);
void glue_optional_int_array(struct glue_call *call, int argument, enum glue_repeat repeat, size_t len, bool *has, int64_t *items);
void glue_optional_float_array(struct glue_call *call, int argument, enum glue_repeat repeat, size_t len, bool *has, double *items);
void glue_optional_bool_array(struct glue_call *call, int argument, enum glue_repeat repeat, size_t len, bool *has, bool *items);

/* ---- results ----------------------------------------------------------------------------------------------- */

/* The memory of a tensor that the operator returns; call->status is that of dg_<op>_out(), which has filled spec. The result is a tensor of
 * the library that the first tensor argument comes from when that one offers an allocator, as torch does; otherwise a NumPy array. */
dg_tensor *glue_allocate(struct glue_call *call, int result, dg_tensor_spec *spec);

void glue_return_int(struct glue_call *call, int result, int64_t value);
void glue_return_float(struct glue_call *call, int result, double value);
void glue_return_bool(struct glue_call *call, int result, bool value);

enum { GLUE_LIST_CAPACITY = 256 }; /* of a list that an operator returns; the library refuses one that is too short for its result */
void glue_return_ints(struct glue_call *call, int result, const int64_t *items, size_t len);
void glue_return_floats(struct glue_call *call, int result, const double *items, size_t len);
void glue_return_bools(struct glue_call *call, int result, const bool *items, size_t len);

#endif
