/* deep_gemm: deep-learning kernels with block scales, callable from C.
 *
 * This header has the types; deep_gemm/ops.h, which it includes at its end, has one function per operator and is
 * generated from schema/ops.schema.
 *
 * Rules that hold for every operator:
 *  - Tensors are borrowed for the call; nothing keeps a pointer to them afterwards. Exception: a CUDA call enqueues its
 *    work on the context's stream and returns, so device memory must stay valid until that work has run.
 *  - Inputs (const dg_tensor *) are never written. Outputs (dg_tensor *) have their data written, never the struct.
 *  - strides count elements; strides == NULL is compact row-major. byte_offset is honoured. No alignment is
 *    assumed beyond that of the element.
 *  - A tensor with a dimension of size 0 is valid; an operator with nothing to write does nothing.
 *  - An output overlaps neither itself nor an input, except where the operator's contract says so.
 *  - Every check happens before anything is written. On failure the status says the kind, and dg_last_error() names
 *    the operator, the argument, what it got, and what it expected.
 *  - The library never prints, never exits and never throws. Any number of threads may call it at once.
 */
#ifndef DEEP_GEMM_DEEP_GEMM_H
#define DEEP_GEMM_DEEP_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(DG_STATIC) || !(defined(__GNUC__) || defined(__clang__))
#define DG_API
#else
#define DG_API __attribute__((visibility("default")))
#endif

#if defined(__GNUC__) || defined(__clang__)
#define DG_MUST_USE __attribute__((warn_unused_result))
#else
#define DG_MUST_USE
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status ---------------------------------------------------------------------------------------------- */

/* What every operator returns. Values are only ever added. */
typedef enum dg_status {
    DG_OK = 0,
    DG_ERR_INVALID_ARGUMENT = 1, /* a shape, stride, value, device or pointer that the contract does not allow */
    DG_ERR_INVALID_DTYPE = 2,    /* a tensor or dtype argument of a dtype that the contract does not allow */
    DG_ERR_NOT_SUPPORTED = 3,    /* valid, but this build or this machine has no kernel for it */
    DG_ERR_OUT_OF_MEMORY = 4,    /* the context's allocator returned NULL */
    DG_ERR_CUDA = 5,             /* the CUDA driver or runtime reported an error */
    DG_ERR_INTERNAL = 6          /* a fault of this library */
} dg_status;

/* The text of the last failure on this thread, UTF-8, "" when nothing has failed yet. The pointer stays valid until
 * the next call into the library on the same thread. A success leaves the text as it was. */
DG_API const char *dg_last_error(void);

/* Copies dg_last_error() into buffer, cut to size - 1 bytes and always terminated when size > 0. buffer may be NULL
 * when size is 0. Returns the length of the whole text without its terminator. */
DG_API size_t dg_last_error_copy(char *buffer, size_t size);

/* The name of a status, "DG_ERR_INVALID_ARGUMENT"; "unknown" for a value that is none. */
DG_API const char *dg_status_name(dg_status status);

/* ---- tensors --------------------------------------------------------------------------------------------- */

/* Layout of DLPack's DLDevice. */
typedef struct dg_device {
    int32_t type; /* DG_CPU or DG_CUDA */
    int32_t id;   /* index of the device; 0 on the CPU */
} dg_device;

enum { DG_CPU = 1, DG_CUDA = 2 };

/* Layout of DLPack's DLDataType. */
typedef struct dg_dtype {
    uint8_t code;   /* DG_CODE_* */
    uint8_t bits;   /* of one lane */
    uint16_t lanes; /* 1, or 2 for FP4 pairs */
} dg_dtype;

enum {
    DG_CODE_INT = 0,
    DG_CODE_UINT = 1,
    DG_CODE_FLOAT = 2,
    DG_CODE_BFLOAT = 4,
    DG_CODE_BOOL = 6,
    DG_CODE_F8E4M3FN = 10,
    DG_CODE_F8E5M2 = 12,
    DG_CODE_F8E8M0FNU = 14,
    DG_CODE_F4E2M1FN = 17
};

/* The members of a dg_dtype initialiser: dg_dtype t = {DG_BF16}; */
#define DG_F64 DG_CODE_FLOAT, 64, 1
#define DG_F32 DG_CODE_FLOAT, 32, 1
#define DG_F16 DG_CODE_FLOAT, 16, 1
#define DG_BF16 DG_CODE_BFLOAT, 16, 1
#define DG_F8E4M3 DG_CODE_F8E4M3FN, 8, 1
#define DG_F8E5M2 DG_CODE_F8E5M2, 8, 1
#define DG_UE8M0 DG_CODE_F8E8M0FNU, 8, 1
#define DG_F4E2M1 DG_CODE_F4E2M1FN, 4, 1   /* shape counts elements, two per byte, even index in the low bits */
#define DG_F4E2M1X2 DG_CODE_F4E2M1FN, 4, 2 /* shape counts pairs: bytes */
#define DG_I64 DG_CODE_INT, 64, 1
#define DG_I32 DG_CODE_INT, 32, 1
#define DG_I16 DG_CODE_INT, 16, 1
#define DG_I8 DG_CODE_INT, 8, 1
#define DG_U8 DG_CODE_UINT, 8, 1
#define DG_BOOL DG_CODE_BOOL, 8, 1

/* Layout of DLPack's DLTensor: a DLTensor * can be passed where a dg_tensor * is asked for. */
typedef struct dg_tensor {
    void *data;
    dg_device device;
    int32_t ndim;
    dg_dtype dtype;
    int64_t *shape;       /* [ndim] */
    int64_t *strides;     /* [ndim] in elements, or NULL: compact row-major */
    uint64_t byte_offset; /* added to data */
} dg_tensor;

enum { DG_MAX_NDIM = 8 }; /* a tensor of more dimensions is refused */

/* What dg_<op>_out() says of a result, so that the caller can allocate it. */
typedef struct dg_tensor_spec {
    dg_device device;
    dg_dtype dtype;
    int32_t ndim;
    int64_t shape[DG_MAX_NDIM];
    int64_t strides[DG_MAX_NDIM]; /* in elements */
    size_t size_bytes;            /* of the memory that data must point to */
} dg_tensor_spec;

/* A tensor of this spec over the caller's memory of spec->size_bytes bytes. It borrows the arrays of spec. */
DG_API dg_tensor dg_tensor_from_spec(dg_tensor_spec *spec, void *data);

/* ---- argument types -------------------------------------------------------------------------------------- */

/* A string: pointer and length, no terminator needed. len == DG_NUL_TERMINATED: up to the first NUL. */
typedef struct dg_str {
    const char *data;
    size_t len;
} dg_str;

#define DG_NUL_TERMINATED ((size_t)-1)
#define DG_STR_INIT(literal) {literal, sizeof(literal) - 1}

/* A string over NUL-terminated text. */
static inline dg_str dg_str_from(const char *text)
{
    dg_str s;
    s.data = text;
    s.len = DG_NUL_TERMINATED;
    return s;
}

/* Lists. {NULL, 0} is the empty list, never a default. */
typedef struct dg_ints {
    const int64_t *data;
    size_t len;
} dg_ints;
typedef struct dg_floats {
    const double *data;
    size_t len;
} dg_floats;
typedef struct dg_bools {
    const bool *data;
    size_t len;
} dg_bools;

/* Optional values: {false, 0} is none. */
typedef struct dg_opt_int {
    bool has;
    int64_t value;
} dg_opt_int;
typedef struct dg_opt_float {
    bool has;
    double value;
} dg_opt_float;
typedef struct dg_opt_bool {
    bool has;
    bool value;
} dg_opt_bool;
typedef struct dg_opt_dtype {
    bool has;
    dg_dtype value;
} dg_opt_dtype;

/* ---- context --------------------------------------------------------------------------------------------- */

/* Runs task(arg, begin, end) over a partition of [0, count), in any order and on any threads, and returns when all of
 * it has run. grain: the least number of items worth a thread of their own. Results never depend on the partition. */
typedef void (*dg_task)(void *arg, int64_t begin, int64_t end);
typedef void (*dg_parallel_for)(void *user, int64_t count, int64_t grain, dg_task task, void *arg);

/* Host workspace, 64-byte aligned. alloc returns NULL when there is none. CUDA kernels never allocate. */
typedef void *(*dg_alloc)(void *user, size_t size_bytes);
typedef void (*dg_free)(void *user, void *memory, size_t size_bytes);

/* Where and how operators run. Immutable after creation apart from the setters below, so threads may share it. Where an
 * operator takes a context, NULL is the process default: the device of the call's tensors, the legacy default stream
 * on CUDA, the library's own threads on the CPU, and the process settings. */
typedef struct dg_context dg_context;

typedef struct dg_context_options {
    size_t struct_size;            /* sizeof(dg_context_options) */
    dg_device device;              /* tensors of every call must be there */
    void *stream;                  /* CUDA: a cudaStream_t; NULL: the legacy default stream */
    const char *backend;           /* force this row of every operator's table ("ref", "avx2", ...); NULL: DG_BACKEND or the best */
    int32_t num_threads;           /* of the library's own pool on the CPU; 0: as many as the process may use */
    bool use_process_settings;     /* true: set_num_sms() and friends act on the process; false: on this context */
    dg_parallel_for parallel_for;  /* NULL: the library's own pool */
    void *parallel_for_user;
    dg_alloc alloc;                /* NULL: the C library's; given together with free */
    dg_free free;
    void *alloc_user;
} dg_context_options;

/* clang-format off */
#define DG_CONTEXT_OPTIONS_INIT {sizeof(dg_context_options), {DG_CPU, 0}, NULL, NULL, 0, false, NULL, NULL, NULL, NULL, NULL}
/* clang-format on */

/* Creates a context. options may be NULL: the CPU with all defaults. *out is NULL on failure. */
DG_API DG_MUST_USE dg_status dg_context_create(const dg_context_options *options, dg_context **out);

/* Destroys a context; NULL is allowed. No call may be using it. */
DG_API void dg_context_destroy(dg_context *ctx);

/* Setter: device and stream of the calls that follow. Not while another thread uses the context. Allocates nothing. */
DG_API void dg_context_set_stream(dg_context *ctx, dg_device device, void *stream);

/* ---- library --------------------------------------------------------------------------------------------- */

/* The release of the library that is loaded, "0.1.0". DG_VERSION in ops.h is that of the headers. */
DG_API const char *dg_version(void);

/* A hash of all schema strings, in order: equal exactly when library and host were generated from the same operators. */
DG_API uint64_t dg_schema_hash(void);

/* The same hash over a host's own list of schema strings. */
DG_API uint64_t dg_schema_hash_of(const char *const *schemas, size_t count);

/* One row of the operator table. All strings are static. */
typedef struct dg_operator {
    const char *name;              /* "bf16_gemm_nt" */
    const char *schema;            /* as m.def takes it */
    const char *const *backends;   /* names, NULL-terminated; empty: declared, not implemented */
} dg_operator;

/* The operators in schema order; *count gets their number. */
DG_API const dg_operator *dg_operators(size_t *count);

/* The operator of this name, or NULL. */
DG_API const dg_operator *dg_find_operator(const char *name);

/* Whether this machine and build can run the row `backend` ("ref", "avx2", "sm80", ...) on the given device. */
DG_API bool dg_backend_available(const char *backend, dg_device device);

/* True when the library was built with its CUDA kernels. Says nothing of the machine. */
DG_API bool dg_has_cuda(void);

#ifdef __cplusplus
}
#endif

#include "deep_gemm/ops.h"

#endif
