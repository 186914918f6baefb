/* A small pool of threads.
 *
 * A call puts one job, which lives on its stack, into a list; the calling thread and the idle workers cut pieces off the jobs
 * until nothing is left. One mutex guards everything: a piece is worth microseconds at least (the caller says so by its
 * grain), so taking one need not be faster than a lock.
 */
#define _GNU_SOURCE
#include "parallel.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    MAX_WORKERS = 1023,
    PIECES_PER_THREAD = 4 /* evens out threads that the machine runs at different speeds */
};

struct job {
    dg_task task;
    void *arg;
    int64_t count;
    int64_t piece;   /* items per piece */
    int64_t begin;   /* of the next piece; count when all are taken */
    int32_t threads; /* that are on this job, its caller always among them */
    int32_t limit;   /* of threads */
    pthread_cond_t done; /* signalled when only the caller is left */
    struct job *next;
};

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t has_work;
    struct job *jobs; /* those with pieces left, oldest first */
    pthread_t *workers;
    int32_t num_workers;
    bool is_closing;
    bool has_fork_handlers;
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .has_work = PTHREAD_COND_INITIALIZER};

/* Whether this thread runs a task right now: then an inner loop must not wait for other threads. */
static _Thread_local bool is_in_task;

int32_t dg_usable_threads(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0) {
        return CPU_COUNT(&set);
    }
    const long online = sysconf(_SC_NPROCESSORS_ONLN); /* more CPUs than a cpu_set_t can hold */
    return online >= 1 && online <= INT32_MAX ? (int32_t)online : 1;
}

/* ---- jobs; the mutex is held ------------------------------------------------------------------------------ */

static void append_job(struct job *job)
{
    struct job **end = &pool.jobs;
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = job;
}

static void remove_job(const struct job *job)
{
    struct job **link = &pool.jobs;
    while (*link != job) {
        link = &(*link)->next;
    }
    *link = job->next;
}

/* Takes one piece of a job that has some left, runs it without the mutex, and takes the mutex again. */
static void run_piece(struct job *job)
{
    const int64_t begin = job->begin;
    const int64_t end = job->count - begin > job->piece ? begin + job->piece : job->count;
    job->begin = end;
    if (end == job->count) {
        remove_job(job);
    }
    pthread_mutex_unlock(&pool.mutex);
    job->task(job->arg, begin, end);
    pthread_mutex_lock(&pool.mutex);
}

static struct job *find_job(void)
{
    struct job *job = pool.jobs;
    while (job != NULL && job->threads >= job->limit) {
        job = job->next;
    }
    return job;
}

/* ---- threads ---------------------------------------------------------------------------------------------- */

static void *worker_main(void *unused)
{
    (void)unused;
    is_in_task = true;
    pthread_mutex_lock(&pool.mutex);
    while (!pool.is_closing) {
        struct job *job = find_job();
        if (job == NULL) {
            pthread_cond_wait(&pool.has_work, &pool.mutex);
            continue;
        }
        job->threads++;
        while (job->begin < job->count) {
            run_piece(job);
        }
        job->threads--;
        if (job->threads == 1) {
            pthread_cond_signal(&job->done); /* under the mutex: the job ends as soon as its caller has it */
        }
    }
    pthread_mutex_unlock(&pool.mutex);
    return NULL;
}

static void lock_before_fork(void)
{
    pthread_mutex_lock(&pool.mutex);
}

static void unlock_in_parent(void)
{
    pthread_mutex_unlock(&pool.mutex);
}

/* Only the forking thread exists in the child. What the others held, waited for or worked on is gone. */
static void begin_anew_in_child(void)
{
    free(pool.workers);
    pool.workers = NULL;
    pool.num_workers = 0;
    pool.jobs = NULL;
    pthread_mutex_init(&pool.mutex, NULL);
    pthread_cond_init(&pool.has_work, NULL);
}

/* Starts workers until there are `wanted`, or as many as the system gives. The mutex is held. */
static void start_workers(int32_t wanted)
{
    wanted = wanted < MAX_WORKERS ? wanted : MAX_WORKERS;
    if (pool.num_workers >= wanted || pool.is_closing) {
        return;
    }
    if (!pool.has_fork_handlers) {
        if (pthread_atfork(lock_before_fork, unlock_in_parent, begin_anew_in_child) != 0) {
            return;
        }
        pool.has_fork_handlers = true;
    }
    pthread_t *workers = realloc(pool.workers, (size_t)wanted * sizeof(*workers));
    if (workers == NULL) {
        return;
    }
    pool.workers = workers;

    /* The host's signal handlers are for the host's threads. */
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool.num_workers < wanted && pthread_create(&pool.workers[pool.num_workers], NULL, worker_main, NULL) == 0) {
        pool.num_workers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

__attribute__((destructor)) static void join_workers(void)
{
    pthread_mutex_lock(&pool.mutex);
    pool.is_closing = true; /* later calls, from other destructors, run on their own thread */
    pthread_cond_broadcast(&pool.has_work);
    pthread_t *workers = pool.workers;
    const int32_t num_workers = pool.num_workers;
    pool.workers = NULL;
    pool.num_workers = 0;
    pthread_mutex_unlock(&pool.mutex);

    for (int32_t i = 0; i < num_workers; i++) {
        pthread_join(workers[i], NULL);
    }
    free(workers);
}

/* ---- the call --------------------------------------------------------------------------------------------- */

static int64_t min_i64(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

static int64_t ceil_div(int64_t x, int64_t y)
{
    return x / y + (x % y > 0);
}

static void run_alone(int64_t count, dg_task task, void *arg)
{
    const bool was_in_task = is_in_task;
    is_in_task = true;
    task(arg, 0, count);
    is_in_task = was_in_task;
}

void dg_pool_parallel_for(void *limit, int64_t count, int64_t grain, dg_task task, void *arg)
{
    if (count <= 0) {
        return;
    }
    const int32_t asked = limit == NULL ? 0 : *(const int32_t *)limit;
    const int64_t most_threads = asked >= 1 ? asked : dg_usable_threads();
    const int64_t most_pieces = ceil_div(count, grain > 1 ? grain : 1);
    const int64_t threads = min_i64(most_threads, most_pieces);
    if (threads == 1 || is_in_task) {
        run_alone(count, task, arg);
        return;
    }

    struct job job = {.task = task, .arg = arg, .count = count, .threads = 1, .limit = (int32_t)threads};
    job.piece = ceil_div(count, min_i64(most_pieces, threads * PIECES_PER_THREAD));
    pthread_cond_init(&job.done, NULL);
    is_in_task = true;

    pthread_mutex_lock(&pool.mutex);
    start_workers((int32_t)threads - 1);
    append_job(&job);
    pthread_cond_broadcast(&pool.has_work);
    while (job.begin < job.count) {
        run_piece(&job);
    }
    while (job.threads > 1) {
        pthread_cond_wait(&job.done, &pool.mutex);
    }
    pthread_mutex_unlock(&pool.mutex);

    is_in_task = false;
    pthread_cond_destroy(&job.done);
}
