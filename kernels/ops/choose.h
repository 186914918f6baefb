/* Which row of an operator's table runs. */
#ifndef DG_OPS_CHOOSE_H
#define DG_OPS_CHOOSE_H

#include "deep_gemm/deep_gemm.h"

/* A row of a family's table, as far as the choice sees it. */
struct dg_row {
    const char *name;
    int32_t device_type;
    bool can_run; /* these arguments on this machine */
    const char *takes; /* what it takes, where that is not everything; for messages */
};

enum { DG_MAX_ROWS = 8 }; /* of one table */

/* Sets *chosen to the first of the rows, best first, that is for the device and can run; where ctx or DG_BACKEND forces a name, to
 * the row of that name. Fails with DG_ERR_NOT_SUPPORTED, naming operator, row and the rows that there are. */
DG_MUST_USE dg_status dg_choose_row(const char *op, const dg_context *ctx, dg_device device, const struct dg_row *rows,
                                    size_t count, size_t *chosen);

#endif
