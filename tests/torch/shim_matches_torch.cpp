/* Compiled, not run: our prototypes of torch's C shim after torch's own. A prototype that differs is an error here. */
#define USE_CUDA /* the CUDA part of torch's shim needs no CUDA header */
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include "shim.h"

/* Functions that torch's headers hide from us would pass unseen: use every prototype that may be missing there. */
static_assert(sizeof(&torch_delete_stable_ivalue) != 0 && sizeof(&torch_exception_get_what_without_backtrace) != 0);
