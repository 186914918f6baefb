/* A library that uses deep_gemm inside and exports one function of its own. */
#include <deep_gemm/deep_gemm.h>

__attribute__((visibility("default"))) const char *consumer_version(void);

const char *consumer_version(void)
{
    size_t count = 0;
    const dg_operator *operators = dg_operators(&count);
    return count > 0 ? operators[0].name : dg_version();
}
