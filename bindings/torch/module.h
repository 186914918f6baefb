/* What libdeep_gemm_torch offers beside the operators that it registers with torch when it is loaded. */
#ifndef DG_TORCH_MODULE_H
#define DG_TORCH_MODULE_H

#include "deep_gemm/deep_gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Why the operators could not be registered, UTF-8; NULL when they were. */
DG_API const char *dg_torch_registration_error(void);

#ifdef __cplusplus
}
#endif

#endif
