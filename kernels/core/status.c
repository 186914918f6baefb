/* Status names and the error text of a thread.
 *
 * The text lives in a fixed thread-local buffer: reporting a failure allocates nothing, so it cannot itself fail, and a
 * thread that ends leaves nothing behind.
 */
#include "status.h"

#include <stdio.h>
#include <string.h>

enum { ERROR_TEXT_SIZE = 2048 }; /* a contract with several alternatives and two shapes takes about 400 bytes */

static _Thread_local char error_text[ERROR_TEXT_SIZE];

/* Cuts text at size - 1 bytes, not inside a UTF-8 sequence, and marks the cut with "...". */
static void mark_cut(char *text, size_t size)
{
    const char mark[] = "...";
    size_t end = size - sizeof(mark);
    while (end > 0 && ((unsigned char)text[end] & 0xc0u) == 0x80u) {
        end--; /* text[end] continues a character that began before it */
    }
    memcpy(text + end, mark, sizeof(mark));
}

/* The bytes of the UTF-8 sequence that text begins with; 0: it begins with none. Overlong forms, surrogates and what lies beyond
 * U+10FFFF are none. */
static size_t sequence_length(const unsigned char *text)
{
    const unsigned char first = text[0];
    const size_t length = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
    for (size_t i = 1; i < length; i++) {
        const unsigned char least = i > 1 ? 0x80 : first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
        const unsigned char greatest = i > 1 ? 0xbf : first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
        if (text[i] < least || text[i] > greatest) { /* the terminator, too */
            return 0;
        }
    }
    return length;
}

/* Callers read UTF-8, whatever bytes a string argument or an environment variable had, or where a message cut them. */
static void replace_invalid(char *text)
{
    while (*text != '\0') {
        const size_t length = sequence_length((const unsigned char *)text);
        if (length == 0) {
            *text = '?';
        }
        text += length == 0 ? 1 : length;
    }
}

static void set_text(const char *op, const char *format, va_list values)
{
    /* Formatted aside first: a value may be the text of dg_last_error() itself. */
    char text[ERROR_TEXT_SIZE];
    int prefix = 0;
    if (op != NULL) {
        prefix = snprintf(text, sizeof(text), "%s: ", op);
    }
    const size_t used = prefix > 0 && (size_t)prefix < sizeof(text) ? (size_t)prefix : 0;
    const int len = vsnprintf(text + used, sizeof(text) - used, format, values);
    if (len >= 0 && (size_t)len >= sizeof(text) - used) {
        mark_cut(text, sizeof(text));
    }
    replace_invalid(text);
    memcpy(error_text, text, strlen(text) + 1);
}

dg_status dg_fail(dg_status status, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    set_text(NULL, format, values);
    va_end(values);
    return status;
}

dg_status dg_fail_op(dg_status status, const char *op, const char *format, va_list values)
{
    set_text(op, format, values);
    return status;
}

const char *dg_last_error(void)
{
    return error_text;
}

size_t dg_last_error_copy(char *buffer, size_t size)
{
    const size_t len = strlen(error_text);
    if (size > 0) {
        const size_t copied = len < size ? len : size - 1;
        memcpy(buffer, error_text, copied);
        buffer[copied] = '\0';
    }
    return len;
}

const char *dg_status_name(dg_status status)
{
    switch (status) {
    case DG_OK: return "DG_OK";
    case DG_ERR_INVALID_ARGUMENT: return "DG_ERR_INVALID_ARGUMENT";
    case DG_ERR_INVALID_DTYPE: return "DG_ERR_INVALID_DTYPE";
    case DG_ERR_NOT_SUPPORTED: return "DG_ERR_NOT_SUPPORTED";
    case DG_ERR_OUT_OF_MEMORY: return "DG_ERR_OUT_OF_MEMORY";
    case DG_ERR_CUDA: return "DG_ERR_CUDA";
    case DG_ERR_INTERNAL: return "DG_ERR_INTERNAL";
    }
    return "unknown";
}
