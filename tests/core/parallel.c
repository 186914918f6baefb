/* The thread pool: every item exactly once, whatever the count, the grain and the number of threads; many callers at once; calls
 * inside calls; after fork(). */
#define _GNU_SOURCE
#include "check.h"
#include "core/parallel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_ITEMS = 5000 };

struct visits {
    atomic_int count[MOST_ITEMS];
    atomic_int ranges;
    atomic_int inside;      /* threads in a task now */
    atomic_int most_inside;
};

static void visit(void *arg, int64_t begin, int64_t end)
{
    struct visits *visits = arg;
    const int inside = atomic_fetch_add(&visits->inside, 1) + 1;
    int most = visits->most_inside;
    while (most < inside && !atomic_compare_exchange_weak(&visits->most_inside, &most, inside)) {
    }
    visits->ranges++;
    for (int64_t i = begin; i < end; i++) {
        visits->count[i]++;
    }
    visits->inside--;
}

static void check_partition(int32_t threads, int64_t count, int64_t grain)
{
    struct visits *visits = calloc(1, sizeof(*visits));
    dg_pool_parallel_for(&threads, count, grain, visit, visits);
    int64_t wrong = 0;
    for (int64_t i = 0; i < MOST_ITEMS; i++) {
        wrong += visits->count[i] != (i < count);
    }
    CHECK_INT(wrong, 0);
    CHECK(visits->most_inside <= threads);
    const int64_t least_items = grain > 1 ? grain : 1;
    CHECK(visits->ranges <= count / least_items + 1);
    free(visits);
}

static void check_partitions(void)
{
    for (int32_t threads = 1; threads <= 9; threads += 2) {
        const int64_t counts[] = {0, 1, 2, 3, 7, 64, 1000, MOST_ITEMS};
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
            check_partition(threads, counts[i], 1);
            check_partition(threads, counts[i], 100);
            check_partition(threads, counts[i], INT64_MAX);
            check_partition(threads, counts[i], -5);
        }
    }
}

/* ---- nested calls and many callers ------------------------------------------------------------------------ */

struct sum {
    atomic_llong total;
    int32_t threads;
};

static void add_range(void *arg, int64_t begin, int64_t end)
{
    struct sum *sum = arg;
    for (int64_t i = begin; i < end; i++) {
        sum->total += i;
    }
}

static void add_in_inner_loop(void *arg, int64_t begin, int64_t end)
{
    struct sum *sum = arg;
    for (int64_t i = begin; i < end; i++) {
        dg_pool_parallel_for(&sum->threads, 100, 1, add_range, sum);
    }
}

static void *call_often(void *unused)
{
    (void)unused;
    long wrong = 0;
    for (int round = 0; round < 200; round++) {
        struct sum sum = {.threads = 4};
        dg_pool_parallel_for(&sum.threads, 50, 1, add_in_inner_loop, &sum);
        wrong += sum.total != 50 * 4950;
    }
    return (void *)wrong;
}

static void check_callers(void)
{
    pthread_t callers[6];
    for (int i = 0; i < 6; i++) {
        pthread_create(&callers[i], NULL, call_often, NULL);
    }
    for (int i = 0; i < 6; i++) {
        void *wrong;
        pthread_join(callers[i], &wrong);
        CHECK_INT((intptr_t)wrong, 0);
    }
}

/* ---- fork ------------------------------------------------------------------------------------------------- */

static void check_fork(void)
{
    struct sum before = {.threads = 4};
    dg_pool_parallel_for(&before.threads, 1000, 1, add_range, &before);
    CHECK_INT(before.total, 499500);

    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        struct sum sum = {.threads = 4};
        alarm(60); /* a lost thread would hang here */
        dg_pool_parallel_for(&sum.threads, 1000, 1, add_range, &sum);
        _exit(sum.total == 499500 ? 0 : 1);
    }
    int status;
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK_INT(status, 0);

    struct sum after = {.threads = 4};
    dg_pool_parallel_for(&after.threads, 1000, 1, add_range, &after);
    CHECK_INT(after.total, 499500);
}

int main(void)
{
    CHECK(dg_usable_threads() >= 1);
    check_partitions();
    check_callers();
    check_fork();
    struct sum all = {.threads = 0};
    dg_pool_parallel_for(NULL, 1000, 1, add_range, &all);
    CHECK_INT(all.total, 499500);
    return check_report("core.parallel");
}
