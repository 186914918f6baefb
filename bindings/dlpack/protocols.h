/* The memory layouts that arrays are exchanged in: DLPack 1.3, whose DLTensor is a dg_tensor, and NumPy's array interface. Our own
 * declarations of what their specifications lay down; tests/abi/dlpack_layout.c compares those of DLPack with a real dlpack.h.
 */
#ifndef DG_DLPACK_PROTOCOLS_H
#define DG_DLPACK_PROTOCOLS_H

#include "deep_gemm/deep_gemm.h"

#include <stdint.h>

/* ---- DLPack ------------------------------------------------------------------------------------------------ */

struct dlpack_version {
    uint32_t major; /* a difference here is another layout */
    uint32_t minor;
};

enum { DLPACK_MAJOR = 1, DLPACK_MINOR = 1 }; /* what is asked for: 1.1 has the FP8 and FP4 types */

/* In a capsule named "dltensor". */
struct dlpack_managed {
    dg_tensor tensor;
    void *manager;
    void (*deleter)(struct dlpack_managed *self); /* may be NULL */
};

/* In a capsule named "dltensor_versioned". Up to flags it is the same in every major version. */
struct dlpack_managed_versioned {
    struct dlpack_version version;
    void *manager;
    void (*deleter)(struct dlpack_managed_versioned *self); /* may be NULL */
    uint64_t flags;
    dg_tensor tensor;
};

enum { DLPACK_READ_ONLY = 1, DLPACK_IS_COPIED = 2, DLPACK_IS_PADDED = 4 /* a sub-byte element takes a whole byte */ };

/* What the capsule in `type(x).__dlpack_c_exchange_api__`, named "dlpack_exchange_api", points to. Functions that return an int
 * return 0, or a negative number with a Python error set; all of them are called with the GIL held. */
struct dlpack_exchange_api {
    struct dlpack_version version;
    struct dlpack_exchange_api *previous; /* an older layout, or NULL */
    int (*allocate)(dg_tensor *prototype, struct dlpack_managed_versioned **out, void *error,
                    void (*set_error)(void *error, const char *kind, const char *message));
    int (*managed_from_object)(void *object, struct dlpack_managed_versioned **out);
    int (*object_from_managed)(struct dlpack_managed_versioned *managed, void **out_object); /* takes managed over */
    int (*tensor_from_object)(void *object, dg_tensor *out);                                 /* may be NULL; borrows from object */
    int (*current_stream)(int32_t device_type, int32_t device_id, void **out_stream);
};

/* ---- NumPy ------------------------------------------------------------------------------------------------- */

/* In the capsule of `x.__array_struct__`, which has no name. */
struct numpy_array {
    int two; /* always 2 */
    int ndim;
    char kind;
    int item_bytes;
    int flags;
    intptr_t *shape;
    intptr_t *byte_strides;
    void *data;
    void *description;
};

enum { NUMPY_NATIVE_BYTE_ORDER = 0x200, NUMPY_WRITEABLE = 0x400 };

#endif
