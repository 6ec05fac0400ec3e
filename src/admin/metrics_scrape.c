/* metrics_scrape.c: collects the values for a page of metrics from the relay, the store and this
 * process. */
#include "admin/metrics.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* ---- the relay and the store ---- */

/* Stores a high-water mark. Returns 1, which ends the walk, if the array is full. */
static int keep_mark(void *ctx, const char *consumer, const struct hwm *m, int64_t at)
{
    struct scrape *l = ctx;
    char *name = arena_bytes(&l->arena, consumer, strlen(consumer));
    char *stream = arena_bytes(&l->arena, m->stream.p, m->stream.n);
    (void)at;
    if (!name || !stream)
        return 1;
    l->m.mark[l->m.n_marks++] = (struct metrics_mark){name, stream, m->hi, m->lo};
    return l->m.n_marks == METRICS_MARKS;
}

int metrics_scrape(struct scrape *l, const struct admin_config *cfg, struct store *st,
                   struct error *err)
{
    struct worker_view *v = NULL;
    size_t n = 0;
    outbox *ob = atomic_load(&cfg->ob);
    *l = (struct scrape){
        .m = {.store = cfg->store, .store_up = st != NULL, .now_ns = clock_mono(&clock_system)}};
    for (size_t i = 0; i < 2; i++)
        l->m.reloads[i] = atomic_load(&cfg->reloads[i]);
    if (ob) {
        l->m.memory_limit = ob->sv.memory;
        l->m.memory_peak = (int64_t)atomic_load(&ob->sv.budget.peak);
    }
    if (ob && supervisor_views(&ob->sv, &v, &n, err) != 0)
        return -1;

    l->consumer = calloc(n + 1, sizeof *l->consumer);
    if (!l->consumer) {
        free(v);
        return err_nomem(err);
    }
    arena_init(&l->arena, 0);
    l->m.consumer = l->consumer;
    l->m.n_consumers = n;
    l->m.ready = n > 0;
    for (size_t i = 0; i < n; i++) {
        struct metrics_consumer *c = &l->consumer[i];
        struct error why = {0};
        c->view = v[i];
        if (st)
            c->has_gauge = st->ops->consumer_gauge(st, c->view.consumer, &l->arena, &c->gauge,
                                                   &why) == 0;
        /* The store counts as down, unless only the consumer is missing. */
        if (why.code && why.code != ERR_NOTFOUND)
            l->m.store_up = false;

        bool paused = c->has_gauge && c->gauge.paused;
        c->health = health_of(&c->view, l->m.now_ns, cfg->patience_ms * MS_NS, paused);
        l->m.ready = l->m.ready && c->health.ready;
    }
    free(v);

    /* The page is still useful without the marks; the store counts as down. */
    if (st && st->ops->marks(st, NULL, keep_mark, l, err) != 0)
        l->m.store_up = false;
    return 0;
}

void metrics_release(struct scrape *l)
{
    free(l->consumer);
    arena_release(&l->arena);
}

/* ---- this process ---- */

static int open_files(void)
{
    int n = -1; /* do not count the directory we read */
    DIR *d = opendir("/proc/self/fd");
    if (!d)
        return 0;
    const struct dirent *e;
    while ((e = readdir(d)))
        if (e->d_name[0] != '.')
            n++;
    closedir(d);
    return n;
}

/* Fields of /proc/self/stat. */
struct stat_fields {
    double start; /* seconds since 1970 */
    double virtual_bytes, resident_bytes;
};

/* Reads fields 22 to 24: start in clock ticks after boot, virtual bytes, resident pages. */
static bool read_stat(struct stat_fields *ret)
{
    char line[1024];
    unsigned long long start, bytes;
    long long pages;
    FILE *f = fopen("/proc/self/stat", "re");
    if (!f)
        return false;
    bool got = fgets(line, sizeof line, f);
    fclose(f);
    if (!got)
        return false;

    /* The name of the program may contain anything, so count the fields from its closing
     * parenthesis. */
    const char *p = strrchr(line, ')');
    for (int i = 0; p && i < 20; i++)
        p = strchr(p + 1, ' ');
    if (!p)
        return false;
    /* NOLINTNEXTLINE(cert-err34-c): the kernel writes numbers that fit. */
    if (sscanf(p, " %llu %llu %lld", &start, &bytes, &pages) != 3)
        return false;

    /* Compute the time of booting from two clocks: /proc/stat may be hidden from us. */
    struct timespec up = {0}, now = {0};
    clock_gettime(CLOCK_BOOTTIME, &up);
    clock_gettime(CLOCK_REALTIME, &now);
    double booted = (double)(now.tv_sec - up.tv_sec) + (double)(now.tv_nsec - up.tv_nsec) / 1e9;
    ret->start = booted + (double)start / (double)sysconf(_SC_CLK_TCK);
    ret->virtual_bytes = (double)bytes;
    ret->resident_bytes = (double)pages * (double)sysconf(_SC_PAGESIZE);
    return true;
}

size_t metrics_process(struct process_sample out[PROCESS_SAMPLES])
{
    size_t n = 0;
    struct stat_fields stat;
    struct rlimit files = {0};
    struct rusage u = {0};
    getrlimit(RLIMIT_NOFILE, &files);
    getrusage(RUSAGE_SELF, &u);
    double cpu_seconds = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                         (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
    out[n++] = (struct process_sample){"process_cpu_seconds_total",
                                       "User and system CPU time spent.", true, cpu_seconds};
    out[n++] = (struct process_sample){"process_open_fds", "Open file descriptors.", false,
                                       open_files()};
    out[n++] = (struct process_sample){"process_max_fds", "Limit on open file descriptors.", false,
                                       (double)files.rlim_cur};
    if (!read_stat(&stat))
        return n;

    out[n++] = (struct process_sample){"process_start_time_seconds", "When the process started.",
                                       false, stat.start};
    out[n++] = (struct process_sample){"process_virtual_memory_bytes", "Virtual memory.", false,
                                       stat.virtual_bytes};
    out[n++] = (struct process_sample){"process_resident_memory_bytes", "Resident memory.", false,
                                       stat.resident_bytes};
    return n;
}
