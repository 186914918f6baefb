/* Checks for test programs in C. A check that fails prints where, what it claimed and what it got; the program goes on.
 *
 *     int main(void)
 *     {
 *         CHECK_INT(1 + 1, 2);
 *         return check_report("arithmetic");
 *     }
 */
#ifndef DG_TESTS_CHECK_H
#define DG_TESTS_CHECK_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(claim) check_true((claim), #claim, __FILE__, __LINE__)
#define CHECK_INT(got, expected) check_int((int64_t)(got), (int64_t)(expected), #got, __FILE__, __LINE__)
#define CHECK_TEXT(got, expected) check_text((got), (expected), #got, __FILE__, __LINE__)
#define CHECK_CONTAINS(got, part) check_contains((got), (part), #got, __FILE__, __LINE__)

enum { CHECK_SKIPPED = 77, CHECK_MOST_PRINTED = 50 };

/* Shared by the translation units of one program only when that is one: each test is a single file. */
static long checks_made;
static long checks_failed;

/* Counts a check. Returns whether its failure is to be printed. */
static inline bool check_fails(bool holds, const char *file, int line)
{
    checks_made++;
    if (holds) {
        return false;
    }
    checks_failed++;
    if (checks_failed > CHECK_MOST_PRINTED) {
        return false;
    }
    fprintf(stderr, "%s:%d: ", file, line);
    return true;
}

static inline bool check_true(bool holds, const char *claim, const char *file, int line)
{
    if (check_fails(holds, file, line)) {
        fprintf(stderr, "does not hold: %s\n", claim);
    }
    return holds;
}

static inline bool check_int(int64_t got, int64_t expected, const char *what, const char *file, int line)
{
    if (check_fails(got == expected, file, line)) {
        fprintf(stderr, "%s is %" PRId64 " (0x%" PRIx64 "), expected %" PRId64 " (0x%" PRIx64 ")\n", what, got, (uint64_t)got, expected,
                (uint64_t)expected);
    }
    return got == expected;
}

static inline bool check_text(const char *got, const char *expected, const char *what, const char *file, int line)
{
    const bool holds = strcmp(got, expected) == 0;
    if (check_fails(holds, file, line)) {
        fprintf(stderr, "%s is\n    \"%s\", expected\n    \"%s\"\n", what, got, expected);
    }
    return holds;
}

static inline bool check_contains(const char *got, const char *part, const char *what, const char *file, int line)
{
    const bool holds = strstr(got, part) != NULL;
    if (check_fails(holds, file, line)) {
        fprintf(stderr, "%s is\n    \"%s\", expected it to contain\n    \"%s\"\n", what, got, part);
    }
    return holds;
}

/* The exit status of the program. */
static inline int check_report(const char *name)
{
    if (checks_failed > 0) {
        fprintf(stderr, "%s: %ld of %ld checks failed\n", name, checks_failed, checks_made);
        return EXIT_FAILURE;
    }
    if (checks_made == 0) {
        fprintf(stderr, "%s: no check was made\n", name);
        return EXIT_FAILURE;
    }
    printf("%s: %ld checks\n", name, checks_made);
    return EXIT_SUCCESS;
}

#endif
