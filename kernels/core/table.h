/* The generated table of operators: generated/c/operators.c defines it, in schema order. */
#ifndef DG_CORE_TABLE_H
#define DG_CORE_TABLE_H

#include "deep_gemm/deep_gemm.h"

extern const dg_operator dg_operator_table[];
extern const size_t dg_operator_table_count;

#endif
