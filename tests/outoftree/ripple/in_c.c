/* ripple from C: a result, an option, an error under the library's own names. */
#include "ripple/ripple.h"

#include <stdio.h>
#include <string.h>

int main(void)
{
    float x[6] = {1, 2, 3, 4, 5, 6}, y[6] = {0};
    int64_t shape[] = {6};
    rp_tensor tx = {x, {RP_CPU, 0}, 1, {RP_F32}, shape, NULL, 0};
    rp_tensor ty = {y, {RP_CPU, 0}, 1, {RP_F32}, shape, NULL, 0};
    rp_scaled_options options = RP_SCALED_OPTIONS_INIT;
    options.scale = -2.0;
    double largest = 0.0;
    if (rp_scaled(NULL, &tx, &ty, &options) != RP_OK || y[5] != -12.0f || rp_largest(NULL, &tx, &largest) != RP_OK || largest != 6.0) {
        fprintf(stderr, "wrong result: %s\n", rp_last_error());
        return 1;
    }
    int64_t shorter[] = {5};
    ty.shape = shorter;
    const rp_status status = rp_scaled(NULL, &tx, &ty, NULL);
    if (status != RP_ERR_INVALID_ARGUMENT || strncmp(rp_last_error(), "scaled: y has ", 14) != 0) {
        fprintf(stderr, "wrong error: %s: %s\n", rp_status_name(status), rp_last_error());
        return 1;
    }
    return 0;
}
