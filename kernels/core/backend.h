/* The names that rows of operator tables can have, and whether this build on this machine can run them at all. */
#ifndef DG_CORE_BACKEND_H
#define DG_CORE_BACKEND_H

#include "deep_gemm/deep_gemm.h"

/* Whether some row of some device has this name. */
bool dg_backend_exists(const char *name);

/* "ref, avx2, avx512 ...", for messages. */
extern const char *const dg_backend_names;

#endif
