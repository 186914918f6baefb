/* The error text of the calling thread, behind dg_last_error(). */
#ifndef DG_CORE_STATUS_H
#define DG_CORE_STATUS_H

#include "deep_gemm/deep_gemm.h"

#include <stdarg.h>

/* Sets the text of dg_last_error() and returns status, so that a failure is one statement: return dg_fail(...). */
dg_status dg_fail(dg_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same for "<op>: <text>", from a va_list. */
dg_status dg_fail_op(dg_status status, const char *op, const char *format, va_list values)
    __attribute__((format(printf, 3, 0)));

#endif
