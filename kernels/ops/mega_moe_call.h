/* What the operators of mega MoE share. */
#ifndef DG_OPS_MEGA_MOE_CALL_H
#define DG_OPS_MEGA_MOE_CALL_H

#include "core/check.h"
#include "mega_moe.h"

/* Token counts are aligned, the ring is within its limits, and the whole has a size. Fills layout. */
DG_MUST_USE dg_status dg_mega_moe_check_sizes(const char *op, const struct dg_mega_moe_sizes *sizes, struct dg_mega_moe_layout *layout);

#endif
