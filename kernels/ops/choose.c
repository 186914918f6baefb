/* The choice of a row: forced by name, or the first that can run. */
#include "choose.h"

#include "core/context.h"
#include "core/status.h"

#include <stdio.h>
#include <string.h>

/* "amx, avx512, avx2, ref": the rows for this type of device, all that fit. */
static void list_rows(char *text, size_t size, const struct dg_row *rows, size_t count, int32_t device_type)
{
    size_t len = 0;
    text[0] = '\0';
    for (size_t i = 0; i < count && len < size; i++) {
        if (rows[i].device_type == device_type) {
            len += (size_t)snprintf(text + len, size - len, len == 0 ? "%s" : ", %s", rows[i].name);
        }
    }
    if (len == 0) {
        snprintf(text, size, "none");
    }
}

static const char *device_name(int32_t device_type)
{
    return device_type == DG_CPU ? "CPU" : "CUDA";
}

static dg_status choose_forced(const char *op, const char *forced, const char *source, dg_device device, const struct dg_row *rows,
                               size_t count, size_t *chosen)
{
    char names[128];
    list_rows(names, sizeof(names), rows, count, device.type);
    for (size_t i = 0; i < count; i++) {
        if (rows[i].device_type != device.type || strcmp(rows[i].name, forced) != 0) {
            continue;
        }
        if (rows[i].can_run) {
            *chosen = i;
            return DG_OK;
        }
        const bool is_available = dg_backend_available(forced, device);
        const char *reason = is_available ? "does not take these arguments" : "cannot run on this machine";
        const char *takes = is_available && rows[i].takes != NULL ? rows[i].takes : "";
        return dg_fail(DG_ERR_NOT_SUPPORTED, "%s: the row \"%s\" that %s asks for %s%s%s; the %s rows are %s", op, forced, source, reason,
                       takes[0] != '\0' ? ", only " : "", takes, device_name(device.type), names);
    }
    return dg_fail(DG_ERR_NOT_SUPPORTED, "%s: has no %s row \"%s\", which %s asks for; the %s rows are %s", op,
                   device_name(device.type), forced, source, device_name(device.type), names);
}

dg_status dg_choose_row(const char *op, const dg_context *ctx, dg_device device, const struct dg_row *rows, size_t count,
                        size_t *chosen)
{
    const char *source;
    const char *forced = dg_forced_backend(ctx, &source);
    if (forced != NULL) {
        return choose_forced(op, forced, source, device, rows, count, chosen);
    }
    for (size_t i = 0; i < count; i++) {
        if (rows[i].device_type == device.type && rows[i].can_run) {
            *chosen = i;
            return DG_OK;
        }
    }
    char names[128];
    list_rows(names, sizeof(names), rows, count, device.type);
    return dg_fail(DG_ERR_NOT_SUPPORTED, "%s: no kernel for device %d of this machine; the %s rows are %s", op, (int)device.id,
                   device_name(device.type), names);
}
