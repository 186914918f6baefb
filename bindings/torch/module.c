/* The Python module _C_extension. Loading it loads libdeep_gemm_torch, which registers the operators with torch; all that is left
 * to do here is to say what went wrong there, as an ImportError, and which library was loaded. _C.py imports it.
 */
#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "module.h"

static PyObject *version(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyUnicode_FromString(dg_version());
}

static PyObject *schemas(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    size_t count = 0;
    const dg_operator *operators = dg_operators(&count);
    PyObject *list = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *schema = PyUnicode_FromString(operators[i].schema);
        if (schema == NULL || PyTuple_SetItem(list, (Py_ssize_t)i, schema) != 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyMethodDef methods[] = {
    {"version", version, METH_NOARGS, "version() -> str\n--\n\nThe release of the C library that was loaded."},
    {"schemas", schemas, METH_NOARGS, "schemas() -> tuple[str, ...]\n--\n\nThe schema strings of its operators, in order."},
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module)
{
    (void)module;
    const char *error = dg_torch_registration_error();
    if (error == NULL)
        return 0;
    PyErr_Format(PyExc_ImportError, "deep_gemm could not register its operators with torch: %s", error);
    return -1;
}

/* The slot holds a function as a void *, which POSIX allows and ISO C does not know; a union says it without a cast. */
static union {
    int (*function)(PyObject *);
    void *pointer;
} execute_slot = {execute};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, NULL}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_C_extension", "The C library behind deep_gemm._C.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__C_extension(void);

PyMODINIT_FUNC PyInit__C_extension(void)
{
    slots[0].value = execute_slot.pointer;
    return PyModuleDef_Init(&definition);
}
