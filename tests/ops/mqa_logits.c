/* Every logits kernel of the CPU that this machine can run, against the formula of ops/mqa_logits.h in double.
 *
 * Cases are drawn from a fixed seed: ragged shapes, all formats, contiguous, paged and broken layouts, ranges that are empty, inverted or
 * out of bounds, compressed results, missing pages, and values at the edges: NaN codes, infinities, scales from 2^-127 to 2^127. Each case
 * also checks that nothing but the logits of the ranges is written, that no byte is read that is not an element's (with the address
 * sanitizer: buffers end where elements end), and that threads and their number do not show in a single bit.
 *
 * Rows that this machine cannot run are skipped, and named.
 *
 *     test_ops_mqa_logits [number of cases] [the only case to run]
 */
#include "mqa_logits_cases.h"

#include <pthread.h>

/* ---- ways to run tasks ------------------------------------------------------------------------------------- */

typedef void (*task)(void *arg, int64_t begin, int64_t end);
typedef void (*way)(void *user, int64_t count, int64_t grain, task f, void *arg);

static void run_whole(void *user, int64_t count, int64_t grain, task f, void *arg)
{
    (void)user;
    (void)grain;
    f(arg, 0, count);
}

static void run_backwards(void *user, int64_t count, int64_t grain, task f, void *arg)
{
    (void)user;
    (void)grain;
    for (int64_t i = count; i-- > 0;) {
        f(arg, i, i + 1);
    }
}

struct thread_job {
    task f;
    void *arg;
    int64_t begin, end;
};

static void *thread_main(void *arg)
{
    const struct thread_job *job = arg;
    job->f(job->arg, job->begin, job->end);
    return NULL;
}

static void run_threads(void *user, int64_t count, int64_t grain, task f, void *arg)
{
    (void)user;
    (void)grain;
    enum { THREADS = 3 };
    pthread_t threads[THREADS];
    struct thread_job jobs[THREADS];
    for (int64_t t = 0; t < THREADS; t++) {
        jobs[t] = (struct thread_job){f, arg, count * t / THREADS, count * (t + 1) / THREADS};
        CHECK_INT(pthread_create(&threads[t], NULL, thread_main, &jobs[t]), 0);
    }
    for (int64_t t = 0; t < THREADS; t++) {
        pthread_join(threads[t], NULL);
    }
}

static const struct {
    way run;
    int32_t num_threads;
} ways[] = {{run_whole, 1}, {run_backwards, 2}, {run_threads, 3}, {run_backwards, 7}};

/* ---- one case ---------------------------------------------------------------------------------------------- */

static void run_row(const struct dg_mqa_logits_backend *backend, struct dg_mqa_logits_args *args, way run, int32_t num_threads)
{
    args->exec = (struct dg_exec){.parallel_for = run, .num_threads = num_threads};
    const size_t bytes = backend->workspace == NULL ? 0 : backend->workspace(args);
    args->exec.workspace = aligned_alloc(64, (bytes + 64) / 64 * 64);
    memset(args->exec.workspace, 0xff, bytes); /* NaN */
    CHECK_INT(backend->run(args), 0);
    free(args->exec.workspace);
}

static void check_row(const struct dg_mqa_logits_backend *backend, struct dg_mqa_logits_args *args, int64_t size)
{
    uint8_t *first = malloc((size_t)size);
    uint8_t *again = malloc((size_t)size);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]) && first != NULL && again != NULL; i++) {
        uint8_t *logits = i == 0 ? first : again;
        memset(logits, untouched, (size_t)size);
        args->logits = logits;
        run_row(backend, args, ways[i].run, ways[i].num_threads);
        CHECK(i == 0 || memcmp(first, again, (size_t)size) == 0);
    }
    check_logits(args, first, size);
    free(first);
    free(again);
}

static void check_case(void)
{
    struct dg_mqa_logits_args args = draw_case();
    remember_buffers();
    for (size_t row = 0; row < dg_mqa_logits_backends_count; row++) {
        const struct dg_mqa_logits_backend *backend = &dg_mqa_logits_backends[row];
        if (backend->device_type != 1 || !backend->can_run()) {
            continue;
        }
        const long failed_before = checks_failed;
        check_row(backend, &args, logits_size(&args));
        if (checks_failed != failed_before) {
            describe(backend->name, &args);
        }
    }
    free_buffers();
}

/* ---- the whole --------------------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    const int64_t count = argc > 1 ? atoll(argv[1]) : 100;
    const int64_t only = argc > 2 ? atoll(argv[2]) : -1;
    for (int64_t index = only < 0 ? 0 : only; index < (only < 0 ? count : only + 1); index++) {
        begin_case(index);
        const long failed_before = checks_failed;
        check_case();
        if (checks_failed != failed_before) {
            fprintf(stderr, "    case %lld\n", (long long)index);
        }
    }
    for (size_t row = 0; row < dg_mqa_logits_backends_count; row++) {
        const struct dg_mqa_logits_backend *backend = &dg_mqa_logits_backends[row];
        if (backend->device_type == 1 && !backend->can_run()) {
            printf("skipped: %s, which this machine cannot run\n", backend->name);
        }
    }
    return check_report("mqa_logits");
}
