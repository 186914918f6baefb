/* What the library says of itself: its release, its operators, and the hash by which a host checks that both were
 * generated from the same schema. */
#include "table.h"

#include <string.h>

const char *dg_version(void)
{
    return DG_VERSION;
}

const dg_operator *dg_operators(size_t *count)
{
    if (count != NULL) {
        *count = dg_operator_table_count;
    }
    return dg_operator_table;
}

const dg_operator *dg_find_operator(const char *name)
{
    if (name == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < dg_operator_table_count; i++) {
        if (strcmp(dg_operator_table[i].name, name) == 0) {
            return &dg_operator_table[i];
        }
    }
    return NULL;
}

/* FNV-1a, 64 bits. Any host can compute it in a few lines. */
static const uint64_t hash_start = 0xcbf29ce484222325u;

static uint64_t hash_schema(uint64_t hash, const char *schema)
{
    const uint64_t prime = 0x100000001b3u;
    for (; *schema != '\0'; schema++) {
        hash = (hash ^ (unsigned char)*schema) * prime;
    }
    return hash * prime; /* the terminator, a zero byte, keeps "ab", "c" and "a", "bc" apart */
}

uint64_t dg_schema_hash(void)
{
    uint64_t hash = hash_start;
    for (size_t i = 0; i < dg_operator_table_count; i++) {
        hash = hash_schema(hash, dg_operator_table[i].schema);
    }
    return hash;
}

uint64_t dg_schema_hash_of(const char *const *schemas, size_t count)
{
    uint64_t hash = hash_start;
    for (size_t i = 0; i < count; i++) {
        hash = hash_schema(hash, schemas[i]);
    }
    return hash;
}
