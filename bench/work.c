/* work [-p PROCESSES] [-u MICROSECONDS] [-f FAILURE] [-q PERCENT] [-k KEYS] [-x SECONDS]
 *      URL CONSUMER EVENTS [OPTION=VALUE]...
 * Processes work for one consumer, through the library, until they have handled EVENTS events
 * together, or the time is over (60 s). The handler takes that many microseconds, and fails for
 * some of the events, chosen by their number:
 *   once    the first attempt fails
 *   parked  it is postponed for an hour; later events of its key are held back, and the program
 *           does not wait for them
 *   reject  it becomes a dead letter
 * Options are those of the consumer. Time is counted from the first call of a handler to the
 * last. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "outbox.h"

/* State shared by the processes. */
struct shared {
    atomic_size_t handled, calls;
    _Atomic int64_t first, last; /* ns */
};

struct work {
    const char *url, *consumer, *failure;
    char **options;
    size_t processes, events, keys, wanted;
    unsigned micros, percent;
    int64_t seconds;
    struct shared *all;
    outbox *ob;
};

static void check(int rc, const outbox_error *err)
{
    if (rc != 0)
        bench_die("%s", err->text);
}

/* Whether an event must fail. */
static bool fails(const struct work *w, int64_t seq)
{
    uint32_t mixed = (uint32_t)seq * UINT32_C(2654435761);
    return w->failure && (mixed >> 8) % 100 < w->percent;
}

/* Counts the events that the handler will see: all but those behind a parked one. */
static size_t wanted(const struct work *w)
{
    size_t n = 0;
    if (!w->failure || strcmp(w->failure, "parked") != 0)
        return w->events;
    bool *held = calloc(w->keys, sizeof *held);
    if (!held)
        bench_die("out of memory");
    for (size_t i = 0; i < w->events; i++) {
        bool *key = &held[i % w->keys];
        n += !*key;
        *key = *key || fails(w, (int64_t)i + 1);
    }
    free(held);
    return n;
}

/* ---- the handler ---- */

static outbox_verdict verdict(const struct work *w, const outbox_event *ev, outbox_tx *tx)
{
    if (!fails(w, outbox_event_seq(ev)))
        return OUTBOX_DONE;
    if (strcmp(w->failure, "reject") == 0)
        return OUTBOX_REJECT;
    if (strcmp(w->failure, "parked") == 0)
        return outbox_retry_in(tx, 3600 * 1000, "not now");
    return outbox_event_attempt(ev) == 1 ? OUTBOX_RETRY : OUTBOX_DONE;
}

static outbox_verdict handle(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    struct work *w = ctx;
    int64_t none = 0, now = bench_now();
    if (atomic_load_explicit(&w->all->first, memory_order_relaxed) == 0)
        atomic_compare_exchange_strong(&w->all->first, &none, now);
    if (w->micros)
        usleep(w->micros);

    outbox_verdict v = verdict(w, ev, tx);
    atomic_fetch_add(&w->all->calls, 1);
    bool again = v == OUTBOX_RETRY && strcmp(w->failure, "once") == 0;
    if (again)
        return v;
    if (atomic_fetch_add(&w->all->handled, 1) + 1 == w->wanted)
        atomic_store(&w->all->last, bench_now());
    return v;
}

/* ---- the processes ---- */

/* watch stops this process when all is handled, or the time is over. */
static void *watch(void *arg)
{
    struct work *w = arg;
    int64_t end = bench_now() + w->seconds * 1000000000;
    while (atomic_load(&w->all->handled) < w->wanted && bench_now() < end)
        usleep(500);
    int64_t none = 0;
    atomic_compare_exchange_strong(&w->all->last, &none, bench_now());
    outbox_stop(w->ob);
    return NULL;
}

static void set_option(outbox_consumer *c, const char *option)
{
    outbox_error err;
    char name[64];
    const char *equals = strchr(option, '=');
    if (!equals || (size_t)(equals - option) >= sizeof name)
        bench_die("%s is not OPTION=VALUE", option);
    snprintf(name, sizeof name, "%.*s", (int)(equals - option), option);
    check(outbox_consumer_set(c, name, equals + 1, &err), &err);
}

static void work(struct work *w)
{
    outbox_consumer *c;
    outbox_error err;
    outbox_options options = OUTBOX_OPTIONS_INIT;
    pthread_t watcher;
    options.payload_max = 64 << 20;
    check(outbox_open(w->url, &options, &w->ob, &err), &err);
    check(outbox_consumer_new(w->ob, w->consumer, &c, &err), &err);
    for (char **option = w->options; *option; option++)
        set_option(c, *option);
    check(outbox_on(c, "*", handle, w, &err), &err);
    if (pthread_create(&watcher, NULL, watch, w) != 0)
        bench_die("no thread");
    check(outbox_run(w->ob, 0, &err), &err);
    pthread_join(watcher, NULL);
    outbox_close(w->ob);
}

static void start_all(struct work *w)
{
    bool failed = false;
    for (size_t i = 0; i < w->processes; i++) {
        pid_t child = fork();
        if (child < 0)
            bench_die("fork: %m");
        if (child == 0) {
            work(w);
            _exit(0);
        }
    }
    for (size_t i = 0; i < w->processes; i++) {
        int status = 0;
        wait(&status);
        failed = failed || status != 0;
    }
    if (failed)
        exit(1);
}

static void report(const struct work *w)
{
    struct rusage use;
    const struct shared *all = w->all;
    getrusage(RUSAGE_CHILDREN, &use);
    double cpu = (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
                 (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
    printf("{\"events\":%zu,\"wanted\":%zu,\"calls\":%zu,\"seconds\":%.6f,\"cpu\":%.6f}\n",
           atomic_load(&all->handled), w->wanted, atomic_load(&all->calls),
           (double)(atomic_load(&all->last) - atomic_load(&all->first)) / 1e9, cpu);
}

static void read_options(struct work *w, int argc, char **argv)
{
    for (int c; (c = getopt(argc, argv, "+p:u:f:q:k:x:")) != -1;) {
        switch (c) {
        case 'p': w->processes = strtoull(optarg, NULL, 10); break;
        case 'u': w->micros = (unsigned)atoi(optarg); break;
        case 'f': w->failure = optarg; break;
        case 'q': w->percent = (unsigned)atoi(optarg); break;
        case 'k': w->keys = strtoull(optarg, NULL, 10); break;
        case 'x': w->seconds = atoi(optarg); break;
        default: exit(64);
        }
    }
    if (argc - optind < 3 || w->keys == 0)
        bench_die("usage: %s [-p PROCESSES] [-u MICROSECONDS] [-f FAILURE] [-q PERCENT] [-k KEYS] "
                  "[-x SECONDS] URL CONSUMER EVENTS [OPTION=VALUE]...",
                  argv[0]);
    w->url = argv[optind];
    w->consumer = argv[optind + 1];
    w->events = strtoull(argv[optind + 2], NULL, 10);
    w->options = argv + optind + 3;
}

int main(int argc, char **argv)
{
    struct work w = {.processes = 1, .percent = 1, .keys = 10000, .seconds = 60};
    read_options(&w, argc, argv);
    w.wanted = wanted(&w);
    w.all = mmap(NULL, sizeof *w.all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (w.all == MAP_FAILED)
        bench_die("out of memory");
    start_all(&w);
    report(&w);
    return 0;
}
