/* A call from its Python arguments to its end: binding, errors, the state of the module. */
#include "state.h"

#include <stdarg.h>
#include <string.h>

/* ---- the module ---------------------------------------------------------------------------------------------- */

const Py_ssize_t glue_state_size = sizeof(struct glue_state);

enum { NUM_OBJECTS = sizeof(((struct glue_state *)NULL)->objects) / sizeof(PyObject *) };

int glue_traverse(PyObject *module, visitproc visit, void *arg)
{
    struct glue_state *state = PyModule_GetState(module);
    if (state == NULL)
        return 0; /* the exec slot has not run */
    PyObject **objects = (PyObject **)(void *)&state->objects;
    for (size_t i = 0; i < NUM_OBJECTS; i++)
        Py_VISIT(objects[i]);
    for (size_t i = 0; i < GLUE_NUM_TYPES; i++)
        Py_VISIT(state->types[i].type);
    for (size_t i = 0; i < GLUE_NUM_DTYPES; i++)
        Py_VISIT(state->dtypes[i].object);
    return 0;
}

int glue_clear(PyObject *module)
{
    struct glue_state *state = PyModule_GetState(module);
    if (state == NULL)
        return 0;
    PyObject **objects = (PyObject **)(void *)&state->objects;
    for (size_t i = 0; i < NUM_OBJECTS; i++)
        Py_CLEAR(objects[i]);
    for (size_t i = 0; i < GLUE_NUM_TYPES; i++)
        Py_CLEAR(state->types[i].type);
    for (size_t i = 0; i < GLUE_NUM_DTYPES; i++)
        Py_CLEAR(state->dtypes[i].object);
    while (state->num_contexts > 0)
        dg_context_destroy(state->contexts[--state->num_contexts]);
    return 0;
}

void glue_free(void *module)
{
    glue_clear(module);
}

PyObject *glue_import(const char *module, const char *attribute)
{
    PyObject *imported = PyImport_ImportModule(module);
    if (imported == NULL)
        return NULL;
    PyObject *found = PyObject_GetAttrString(imported, attribute);
    Py_DECREF(imported);
    return found;
}

static bool fill_objects(struct glue_state *state)
{
    struct {
        PyObject **object;
        const char *text;
    } const words[] = {
        {&state->objects.array_struct, "__array_struct__"}, {&state->objects.cuda_array_interface, "__cuda_array_interface__"},
        {&state->objects.dlpack, "__dlpack__"},             {&state->objects.dlpack_device, "__dlpack_device__"},
        {&state->objects.dtype, "dtype"},                   {&state->objects.is_neg, "is_neg"},
        {&state->objects.name, "name"},                     {&state->objects.stream, "stream"},
        {&state->objects.max_version, "max_version"},
    };
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        *words[i].object = PyUnicode_InternFromString(words[i].text);
        if (*words[i].object == NULL)
            return false;
    }
    state->objects.version = Py_BuildValue("(ii)", DLPACK_MAJOR, DLPACK_MINOR);
    state->objects.no_arguments = PyTuple_New(0);
    state->objects.with_version = PyDict_New();
    return state->objects.version != NULL && state->objects.no_arguments != NULL && state->objects.with_version != NULL &&
           PyDict_SetItem(state->objects.with_version, state->objects.max_version, state->objects.version) == 0;
}

static bool check_library(const struct glue_operator *const *operators, size_t num_operators)
{
    for (size_t i = 0; i < num_operators; i++) {
        const dg_operator *found = dg_find_operator(operators[i]->name);
        if (found == NULL || strcmp(found->schema, operators[i]->schema) != 0) {
            PyErr_Format(PyExc_ImportError, "the C library that was loaded, release %s, has %s as `%s`; this module, of release %s, needs `%s`",
                         dg_version(), operators[i]->name, found == NULL ? "nothing" : found->schema, DG_VERSION, operators[i]->schema);
            return false;
        }
    }
    return true;
}

/* Appends the name to `__all__`; as an alias, it is a second name of an attribute. */
static bool add_name(PyObject *module, PyObject *all, const char *name, const char *of)
{
    PyObject *word = PyUnicode_FromString(name);
    bool is_added = word != NULL && PyList_Append(all, word) == 0;
    Py_XDECREF(word);
    if (!is_added || of == NULL)
        return is_added;
    PyObject *function = PyObject_GetAttrString(module, of);
    is_added = function != NULL && PyModule_AddObjectRef(module, name, function) == 0;
    Py_XDECREF(function);
    return is_added;
}

bool glue_start(PyObject *module, const struct glue_operator *const *operators, size_t num_operators, const struct glue_alias *aliases)
{
    if (!check_library(operators, num_operators) || !fill_objects(PyModule_GetState(module)))
        return false;
    PyObject *all = PyList_New(0);
    bool is_added = all != NULL;
    for (size_t i = 0; is_added && i < num_operators; i++)
        is_added = add_name(module, all, operators[i]->name, NULL);
    for (const struct glue_alias *alias = aliases; is_added && alias->name != NULL; alias++)
        is_added = add_name(module, all, alias->name, alias->of);
    is_added = is_added && PyList_Sort(all) == 0 && PyModule_AddObjectRef(module, "__all__", all) == 0;
    Py_XDECREF(all);
    return is_added;
}

/* ---- failures ------------------------------------------------------------------------------------------------ */

const char *glue_written(const struct glue_call *call, int argument)
{
    return call->op->arguments[argument].written;
}

void glue_keep(struct glue_call *call, PyObject *object)
{
    if (call->kept == NULL)
        call->kept = PyList_New(0);
    if (object == NULL || call->kept == NULL || PyList_Append(call->kept, object) != 0)
        call->is_failed = true;
    Py_XDECREF(object);
}

/* These append to *text, unless it is NULL already; it becomes NULL, with an error set, when there is no memory. */

static void append_object(PyObject **text, PyObject *more)
{
    if (more == NULL)
        Py_CLEAR(*text);
    else if (*text != NULL)
        PyUnicode_Append(text, more);
    Py_XDECREF(more);
}

static void append(PyObject **text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    append_object(text, PyUnicode_FromFormatV(format, args));
    va_end(args);
}

static void append_bytes(PyObject **text, const char *bytes, size_t len)
{
    append_object(text, PyUnicode_DecodeUTF8(bytes, (Py_ssize_t)len, "replace"));
}

/* Raises a text, and takes over its reference. Without a text, what made it fail is raised. */
static void raise_text(struct glue_call *call, PyObject *kind, PyObject *text)
{
    if (text != NULL)
        PyErr_SetObject(kind, text);
    Py_XDECREF(text);
    call->is_failed = true;
}

void glue_fail(struct glue_call *call, PyObject *kind, int argument, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    PyObject *rest = PyUnicode_FromFormatV(format, args);
    va_end(args);
    PyObject *text = rest != NULL ? PyUnicode_FromFormat("%s: %s %U", call->op->name, glue_written(call, argument), rest) : NULL;
    Py_XDECREF(rest);
    raise_text(call, kind, text);
}

enum { LONGEST_VALUE = 60 }; /* characters of a value in a message */

/* A value as messages show it: its repr on one line, cut. */
static PyObject *shown(PyObject *value)
{
    PyObject *repr = PyObject_Repr(value);
    PyObject *blank = PyUnicode_FromString(" ");
    PyObject *words = repr != NULL && blank != NULL ? PyUnicode_Split(repr, NULL, -1) : NULL;
    PyObject *line = words != NULL ? PyUnicode_Join(blank, words) : NULL;
    if (line != NULL && PyUnicode_GetLength(line) > LONGEST_VALUE) {
        PyObject *start = PyUnicode_Substring(line, 0, LONGEST_VALUE - 3);
        Py_DECREF(line);
        line = start;
        append(&line, "...");
    }
    Py_XDECREF(words);
    Py_XDECREF(blank);
    Py_XDECREF(repr);
    return line;
}

/* The name of the type of a value. */
static PyObject *type_name(PyObject *value)
{
    return PyObject_GetAttrString((PyObject *)Py_TYPE(value), "__name__");
}

void glue_fail_type(struct glue_call *call, int argument, const char *expected)
{
    PyErr_Clear();
    PyObject *value = shown(call->values[argument]);
    PyObject *type = value != NULL ? type_name(call->values[argument]) : NULL;
    if (type != NULL)
        glue_fail(call, PyExc_TypeError, argument, "is %U (%U), expected %s", value, type, expected);
    else
        call->is_failed = true;
    Py_XDECREF(type);
    Py_XDECREF(value);
}

static bool is_word(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' || (unsigned char)c >= 0x80;
}

/* What the caller writes for a word of the library's message. Only at its beginning is a pair's own name a member of it: elsewhere, `a` is a
 * word of English too. */
static const char *written_for(const struct glue_operator *op, const char *word, size_t len, bool is_subject)
{
    for (int i = 0; i < op->num_arguments; i++) {
        const struct glue_argument *argument = &op->arguments[i];
        if (strlen(argument->name) == len && memcmp(argument->name, word, len) == 0) {
            const bool is_own_pair = strncmp(argument->written, word, len) == 0 && argument->written[len] == '[';
            return is_own_pair && !is_subject ? NULL : argument->written;
        }
    }
    return NULL;
}

/* The message of the library, `op: subject ...`, with arguments as the caller writes them. */
static PyObject *translated(const struct glue_operator *op, const char *message)
{
    PyObject *text = PyUnicode_FromString("");
    const char *rest = strstr(message, ": ");
    rest = rest != NULL ? rest + 2 : message;
    append_bytes(&text, message, (size_t)(rest - message));
    for (bool is_subject = true; text != NULL && *rest != '\0';) {
        size_t len = 0;
        while (rest[len] != '\0' && is_word(rest[len]))
            len++;
        const char *written = len > 0 ? written_for(op, rest, len, is_subject) : NULL;
        is_subject = false;
        if (written == NULL) {
            while (rest[len] != '\0' && !is_word(rest[len]))
                len++;
            append_bytes(&text, rest, len);
        } else {
            append(&text, "%s", written);
        }
        rest += len;
    }
    return text;
}

void glue_fail_status(struct glue_call *call)
{
    PyObject *kind = call->status == DG_ERR_INVALID_ARGUMENT ? PyExc_ValueError
                     : call->status == DG_ERR_INVALID_DTYPE  ? PyExc_TypeError
                     : call->status == DG_ERR_NOT_SUPPORTED  ? PyExc_NotImplementedError
                     : call->status == DG_ERR_OUT_OF_MEMORY  ? PyExc_MemoryError
                                                             : PyExc_RuntimeError;
    raise_text(call, kind, translated(call->op, dg_last_error()));
}

/* ---- binding ------------------------------------------------------------------------------------------------- */

/* These four say what Python says of its own functions. */

static void fail_unexpected(struct glue_call *call, PyObject *keyword)
{
    raise_text(call, PyExc_TypeError, PyUnicode_FromFormat("%s() got an unexpected keyword argument '%U'", call->op->name, keyword));
}

static void fail_twice(struct glue_call *call, const char *name)
{
    raise_text(call, PyExc_TypeError, PyUnicode_FromFormat("%s() got multiple values for argument '%s'", call->op->name, name));
}

static void fail_too_many(struct glue_call *call, Py_ssize_t nargs, PyObject *kwnames)
{
    const struct glue_operator *op = call->op;
    int least = 0;
    for (int i = 0; i < op->num_positional; i++)
        least += op->parameters[i].need == GLUE_REQUIRED;
    PyObject *text = PyUnicode_FromFormat("%s() takes ", op->name);
    if (least < op->num_positional)
        append(&text, "from %d to ", least);
    append(&text, "%d positional argument%s but %zd", op->num_positional,
           op->num_positional == 1 && least == op->num_positional ? "" : "s", nargs);
    Py_ssize_t keywords_only = 0;
    for (Py_ssize_t n = 0; kwnames != NULL && n < PyTuple_Size(kwnames); n++) {
        bool is_positional = false;
        for (int i = 0; i < op->num_positional; i++)
            is_positional |= PyUnicode_CompareWithASCIIString(PyTuple_GetItem(kwnames, n), op->parameters[i].name) == 0;
        keywords_only += !is_positional;
    }
    if (keywords_only > 0)
        append(&text, " positional argument%s (and %zd keyword-only argument%s)", nargs == 1 ? "" : "s", keywords_only,
               keywords_only == 1 ? "" : "s");
    append(&text, " %s given", nargs == 1 && keywords_only == 0 ? "was" : "were");
    raise_text(call, PyExc_TypeError, text);
}

static void fail_missing(struct glue_call *call, PyObject *const *given)
{
    const struct glue_operator *op = call->op;
    const char *missing[GLUE_MAX_ARGUMENTS];
    int count = 0;
    int i = 0;
    for (; i < op->num_positional; i++)
        if (given[i] == NULL && op->parameters[i].need == GLUE_REQUIRED)
            missing[count++] = op->parameters[i].name;
    const bool is_positional = count > 0;
    for (; !is_positional && i < op->num_parameters; i++)
        if (given[i] == NULL && op->parameters[i].need == GLUE_REQUIRED)
            missing[count++] = op->parameters[i].name;
    PyObject *text = PyUnicode_FromFormat("%s() missing %d required %s argument%s: ", op->name, count,
                                          is_positional ? "positional" : "keyword-only", count == 1 ? "" : "s");
    for (int n = 0; n < count; n++)
        append(&text, "%s%s'%s'", n > 0 && count > 2 ? ", " : n > 0 ? " " : "", n > 0 && n == count - 1 ? "and " : "", missing[n]);
    raise_text(call, PyExc_TypeError, text);
}

static void fail_renamed(struct glue_call *call, const struct glue_parameter *parameter)
{
    raise_text(call, PyExc_TypeError, PyUnicode_FromFormat("%s() got '%s' and '%s', which are the same argument", call->op->name,
                                                           parameter->name, parameter->old_name));
}

/* A parameter with an old name may be given by either: None there is as good as nothing. Returns one that is given by both, or NULL. */
static const struct glue_parameter *bind_keyword(struct glue_call *call, PyObject **given, Py_ssize_t nargs, PyObject *keyword,
                                                 PyObject *value)
{
    for (int i = 0; i < call->op->num_parameters; i++) {
        const struct glue_parameter *parameter = &call->op->parameters[i];
        const bool is_name = PyUnicode_CompareWithASCIIString(keyword, parameter->name) == 0;
        if (!is_name && (parameter->old_name == NULL || PyUnicode_CompareWithASCIIString(keyword, parameter->old_name) != 0))
            continue;
        if (is_name && i < nargs && i < call->op->num_positional) {
            fail_twice(call, parameter->name);
        } else if (parameter->old_name == NULL) {
            given[i] = value;
        } else if (value != Py_None && given[i] != NULL) {
            return parameter;
        } else if (value != Py_None) {
            given[i] = value;
        }
        return NULL;
    }
    fail_unexpected(call, keyword);
    return NULL;
}

static void unpack_pair(struct glue_call *call, const struct glue_parameter *parameter, PyObject *pair)
{
    if (PyList_Check(pair)) { /* somebody may change it while the call runs */
        pair = PyList_AsTuple(pair);
        glue_keep(call, pair);
        if (call->is_failed)
            return;
    }
    if (PyTuple_Check(pair) && PyTuple_Size(pair) == 2) {
        call->values[parameter->argument] = PyTuple_GetItem(pair, 0);
        call->values[parameter->second] = PyTuple_GetItem(pair, 1);
        return;
    }
    PyObject *got = PyTuple_Check(pair) ? PyUnicode_FromFormat("%zd values", PyTuple_Size(pair)) : type_name(pair);
    PyObject *text = NULL;
    if (got != NULL)
        text = PyUnicode_FromFormat("%s: %s must be the pair (%s, %s), got %U", call->op->name, parameter->name,
                                    call->op->arguments[parameter->argument].name, call->op->arguments[parameter->second].name, got);
    Py_XDECREF(got);
    raise_text(call, PyExc_TypeError, text);
}

void glue_bind(struct glue_call *call, PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    const struct glue_operator *op = call->op;
    PyObject *given[GLUE_MAX_ARGUMENTS]; /* by parameter */
    call->state = PyModule_GetState(module);
    for (int i = 0; i < op->num_parameters; i++) {
        const bool is_given = i < nargs && i < op->num_positional;
        given[i] = !is_given || (op->parameters[i].old_name != NULL && args[i] == Py_None) ? NULL : args[i];
    }
    const Py_ssize_t num_keywords = kwnames != NULL ? PyTuple_Size(kwnames) : 0;
    const struct glue_parameter *twice = NULL;
    for (Py_ssize_t n = 0; n < num_keywords && !call->is_failed; n++) {
        const struct glue_parameter *found = bind_keyword(call, given, nargs, PyTuple_GetItem(kwnames, n), args[nargs + n]);
        twice = found != NULL ? found : twice;
    }
    if (!call->is_failed && nargs > op->num_positional)
        fail_too_many(call, nargs, kwnames);
    if (!call->is_failed && twice != NULL)
        fail_renamed(call, twice);
    for (int i = 0; i < op->num_parameters && !call->is_failed; i++)
        if (given[i] == NULL && op->parameters[i].need == GLUE_REQUIRED)
            fail_missing(call, given);
    for (int i = 0; i < op->num_parameters && !call->is_failed; i++) {
        const struct glue_parameter *parameter = &op->parameters[i];
        if (given[i] == NULL && parameter->need == GLUE_RENAMED)
            raise_text(call, PyExc_TypeError, PyUnicode_FromFormat("%s() is missing the argument '%s'", op->name, parameter->name));
        else if (given[i] != NULL && parameter->second >= 0)
            unpack_pair(call, parameter, given[i]);
        else
            call->values[parameter->argument] = given[i];
    }
}

/* ---- running ------------------------------------------------------------------------------------------------- */

/* On the CPU, and in the default stream, no context is the right one. For another stream a call takes one for itself, since only one call
 * may use a context whose stream changes. */
bool glue_ready(struct glue_call *call)
{
    dg_device device = {DG_CPU, 0};
    void *stream = NULL;
    if (!call->is_failed)
        glue_finish_tensors(call, &device, &stream);
    if (call->is_failed || stream == NULL || !dg_has_cuda())
        return !call->is_failed;
    struct glue_state *state = call->state;
    if (state->num_contexts > 0) {
        call->ctx = state->contexts[--state->num_contexts];
    } else {
        dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
        options.use_process_settings = true;
        call->status = dg_context_create(&options, &call->ctx);
        if (call->status != DG_OK) {
            glue_fail_status(call);
            return false;
        }
    }
    call->owns_context = true;
    dg_context_set_stream(call->ctx, device, stream);
    return true;
}

static void give_back_context(struct glue_call *call)
{
    struct glue_state *state = call->state;
    if (call->owns_context && state->num_contexts < GLUE_NUM_CONTEXTS)
        state->contexts[state->num_contexts++] = call->ctx;
    else if (call->owns_context)
        dg_context_destroy(call->ctx);
}

/* What has been borrowed is released by code of its owners, which must not see our error. */
static void release(struct glue_call *call)
{
    PyObject *kind = NULL;
    PyObject *value = NULL;
    PyObject *trace = NULL;
    if (call->is_failed)
        PyErr_Fetch(&kind, &value, &trace);
    for (int i = 0; i < call->num_tensors; i++)
        glue_release_tensor(&call->tensors[i]);
    Py_CLEAR(call->kept);
    if (call->is_failed)
        PyErr_Restore(kind, value, trace);
}

static PyObject *take_results(struct glue_call *call)
{
    if (call->num_results == 0)
        Py_RETURN_NONE;
    if (call->num_results == 1) {
        PyObject *result = call->results[0];
        call->results[0] = NULL;
        return result;
    }
    PyObject *tuple = PyTuple_New(call->num_results);
    for (int i = 0; tuple != NULL && i < call->num_results; i++) {
        PyTuple_SetItem(tuple, i, call->results[i]);
        call->results[i] = NULL;
    }
    return tuple;
}

PyObject *glue_end(struct glue_call *call)
{
    if (!call->is_failed && call->status != DG_OK)
        glue_fail_status(call);
    give_back_context(call);
    release(call);
    PyObject *result = call->is_failed ? NULL : take_results(call);
    for (int i = 0; i < call->num_results; i++)
        Py_CLEAR(call->results[i]);
    return result;
}
