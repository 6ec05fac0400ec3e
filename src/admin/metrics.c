/* metrics.c: the page of metrics: one row per metric in a table, the values behind them, and where
 * these come from: the relay, the store and this process. */
#include "admin/metrics.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"

/* ---- the format ---- */

/* Appends the value of a label. Types are untrusted input: if a type is not UTF-8, its bytes beyond
 * ASCII become question marks. */
static void add_escaped(struct buf *b, const char *value)
{
    bool valid = utf8_valid(str_of(value), NULL);
    for (; *value; value++) {
        bool invalid = !valid && (unsigned char)*value > 127;
        if (invalid)
            buf_addc(b, '?');
        else if (*value == '\n')
            buf_adds(b, "\\n");
        else if (*value == '\\' || *value == '"')
            buf_addf(b, "\\%c", *value);
        else
            buf_addc(b, *value);
    }
}

/* SERIES appends `name{label="value",...} `, of pairs of texts; the number follows. */
#define SERIES(b, ...) add_series(b, __VA_ARGS__, (const char *)NULL)
static void add_series(struct buf *b, const char *name, ...) __attribute__((sentinel));
static void add_series(struct buf *b, const char *name, ...)
{
    const char *label, *before = "{";
    va_list ap;
    buf_adds(b, name);
    va_start(ap, name);
    while ((label = va_arg(ap, const char *))) {
        buf_addf(b, "%s%s=\"", before, label);
        add_escaped(b, va_arg(ap, const char *));
        buf_addc(b, '"');
        before = ",";
    }
    va_end(ap);
    buf_adds(b, *before == ',' ? "} " : " ");
}

static void add_int(struct buf *b, int64_t value)
{
    buf_addi64(b, value);
    buf_addc(b, '\n');
}

static void add_double(struct buf *b, double value)
{
    buf_addf(b, "%.15g\n", value);
}

/* How a value is stored, and written. */
enum form {
    AS_INT, /* int64_t */
    AS_SIZE,
    AS_BOOL,
    AS_AGE, /* int64_t, a wall time of the store, 0: none; its age in seconds */
};

/* When a metric of consumers applies: always, only with an answer of the store, only for sinks that
 * take turns, only for sinks with a broker. */
enum when { ALWAYS, WITH_STORE, WITH_LEASE, WITH_BROKER };

/* A metric. (1) add appends its series. (2) The rest describes them for the functions below. */
struct family {
    const char *name, *type, *help;
    void (*add)(struct buf *b, const struct family *f, const struct metrics *m);
    size_t at; /* of the value: in the struct that the function goes through */
    enum form form;
    enum when when;
    double (*value)(const struct metrics *m, const struct metrics_consumer *c); /* instead */
    const char *const *reasons; /* of the elements of an array; ends with NULL */
    const int64_t *bounds;      /* of a histogram */
};

/* Returns the age of a wall time by the clock of the store; 0 for none. */
static double seconds_since(const struct metrics_consumer *c, int64_t wall_ms)
{
    if (!wall_ms)
        return 0;
    int64_t ms = clock_since(c->gauge.now_ms, wall_ms);
    if (ms < 0)
        return 0;
    return (double)ms / 1e3;
}

/* Appends the value that is f->at bytes into `from`. c may be NULL if it is not an age. */
static void add_value(struct buf *b, const struct family *f, const void *from,
                      const struct metrics_consumer *c)
{
    const void *p = (const char *)from + f->at;
    switch (f->form) {
    case AS_INT: add_int(b, *(const int64_t *)p); break;
    case AS_SIZE: add_int(b, (int64_t) * (const size_t *)p); break;
    case AS_BOOL: add_int(b, *(const bool *)p); break;
    case AS_AGE: add_double(b, seconds_since(c, *(const int64_t *)p)); break;
    }
}

/* ---- the relay ---- */

static void build_info(struct buf *b, const struct family *f, const struct metrics *m)
{
    SERIES(b, f->name, "version", OUTBOX_VERSION, "store", m->store);
    add_int(b, 1);
}

static void of_relay(struct buf *b, const struct family *f, const struct metrics *m)
{
    SERIES(b, f->name);
    add_value(b, f, m, NULL);
}

static void reloads(struct buf *b, const struct family *f, const struct metrics *m)
{
    static const char *const results[] = {"ok", "error"};
    for (size_t i = 0; i < 2; i++) {
        SERIES(b, f->name, "result", results[i]);
        add_int(b, m->reloads[i]);
    }
}

/* Every status has a series from the start, so that a rate is right from the first refusal on. */
const unsigned metrics_refusals[METRICS_REFUSALS] = {400, 401, 403, 405, 413};

static void refused(struct buf *b, const struct family *f, const struct metrics *m)
{
    for (size_t i = 0; i < METRICS_REFUSALS; i++) {
        char status[12];
        snprintf(status, sizeof status, "%u", metrics_refusals[i]);
        SERIES(b, f->name, "status", status);
        add_int(b, m->refused[i]);
    }
}

static void of_mark(struct buf *b, const struct family *f, const struct metrics *m)
{
    for (size_t i = 0; i < m->n_marks; i++) {
        const struct metrics_mark *k = &m->mark[i];
        SERIES(b, f->name, "consumer", k->consumer, "stream", k->stream);
        add_value(b, f, k, NULL);
    }
}

/* ---- consumers ---- */

#define EACH(m, c) \
    for (const struct metrics_consumer *c = (m)->consumer; c < (m)->consumer + (m)->n_consumers; \
         c++)

static bool applies(enum when when, const struct metrics_consumer *c)
{
    switch (when) {
    case WITH_STORE: return c->has_gauge;
    case WITH_LEASE: return c->view.leased;
    case WITH_BROKER: return c->view.broker.kind;
    default: return true;
    }
}

static void of_consumer(struct buf *b, const struct family *f, const struct metrics *m)
{
    EACH(m, c)
    {
        if (!applies(f->when, c))
            continue;
        SERIES(b, f->name, "consumer", c->view.consumer);
        if (f->value)
            add_double(b, f->value(m, c));
        else
            add_value(b, f, c, c);
    }
}

/* 0 for a consumer that stopped on its own: it failed, or the relay is stopping. */
static double up(const struct metrics *m, const struct metrics_consumer *c)
{
    (void)m;
    return c->view.state == PIPELINE_RUNNING;
}

/* The store's answer, if there is one: the consumer may not have noticed yet. */
static double paused(const struct metrics *m, const struct metrics_consumer *c)
{
    (void)m;
    return c->has_gauge ? c->gauge.paused : c->view.stats.paused;
}

static double stalled(const struct metrics *m, const struct metrics_consumer *c)
{
    return (double)health_stalled(&c->view, m->now_ns) / 1e9;
}

/* Computed at the time of the scrape, since it keeps growing while the consumer sleeps. */
static double confirm_lag(const struct metrics *m, const struct metrics_consumer *c)
{
    int64_t since = c->view.broker.since;
    if (!since || since >= m->now_ns)
        return 0;
    return (double)(m->now_ns - since) / 1e9;
}

/* Appends the buckets, which are cumulative in the text format, then sum and count. */
static void of_histogram(struct buf *b, const struct family *f, const struct metrics *m)
{
    char bucket[64], sum[64], count[64], bound[32];
    snprintf(bucket, sizeof bucket, "%s_bucket", f->name);
    snprintf(sum, sizeof sum, "%s_sum", f->name);
    snprintf(count, sizeof count, "%s_count", f->name);
    EACH(m, c)
    {
        const struct histogram *h = (const void *)((const char *)&c->view.stats.meter + f->at);
        const char *consumer = c->view.consumer;
        int64_t n = 0;
        for (size_t i = 0; i < METER_BUCKETS; i++) {
            n += h->bucket[i];
            snprintf(bound, sizeof bound, "%.15g", (double)f->bounds[i] / 1e9);
            SERIES(b, bucket, "consumer", consumer, "le", bound);
            add_int(b, n);
        }
        n += h->bucket[METER_BUCKETS];
        SERIES(b, bucket, "consumer", consumer, "le", "+Inf");
        add_int(b, n);
        SERIES(b, sum, "consumer", consumer);
        add_double(b, (double)h->sum_ns / 1e9);
        SERIES(b, count, "consumer", consumer);
        add_int(b, n);
    }
}

/* Appends counts of one kind of lease: on a claim in the database, or on a key in Redis. */
static void renewals(struct buf *b, const struct family *f, const struct metrics *m)
{
    EACH(m, c)
    {
        const int64_t *database = c->view.stats.meter.renewals;
        const struct sink_lease *l = &c->view.lease;
        const struct {
            const char *kind, *result;
            int64_t n;
        } counts[] = {
            {"database", "ok", database[RENEWAL_OK]},
            {"database", "lost", database[RENEWAL_LOST]},
            {"database", "error", database[RENEWAL_ERROR]},
            {"redis", "acquired", l->acquired},
            {"redis", "ok", l->renewed},
            {"redis", "lost", l->lost},
            {"redis", "error", l->unanswered},
        };
        size_t n = c->view.leased ? sizeof counts / sizeof *counts : RENEWALS;
        for (size_t i = 0; i < n; i++) {
            SERIES(b, f->name, "consumer", c->view.consumer, "kind", counts[i].kind, "result",
                   counts[i].result);
            add_int(b, counts[i].n);
        }
    }
}

static void broker_info(struct buf *b, const struct family *f, const struct metrics *m)
{
    EACH(m, c)
    {
        const struct sink_broker *k = &c->view.broker;
        if (!k->kind)
            continue;
        SERIES(b, f->name, "consumer", c->view.consumer, "kind", k->kind, "broker", k->broker,
               "leader", k->leader);
        add_int(b, 1);
    }
}

/* ---- events by type ---- */

/* Goes through the counters of a consumer, one for each type that it has delivered; the last is for
 * all other types. With reasons, each counts several things, the first of them f->at bytes into
 * it. */
static void of_type(struct buf *b, const struct family *f, const struct metrics *m)
{
    EACH(m, c)
    {
        const struct meter *t = &c->view.stats.meter;
        for (size_t i = 0; i <= METER_TYPES; i++) {
            const int64_t *n = (const void *)((const char *)&t->type[i] + f->at);
            const char *topic = i < METER_TYPES ? t->type[i].name : "other";
            if (i >= t->n_types && i < METER_TYPES)
                continue;
            if (!f->reasons) {
                SERIES(b, f->name, "consumer", c->view.consumer, "topic", topic);
                add_int(b, *n);
            }
            for (size_t k = 0; f->reasons && f->reasons[k]; k++) {
                SERIES(b, f->name, "consumer", c->view.consumer, "topic", topic, "reason",
                       f->reasons[k]);
                add_int(b, n[k]);
            }
        }
    }
}

/* by enum sink_status, from SINK_RETRY on */
static const char *const failure_reasons[] = {"retry", "reject",  "down",  "not-mine",
                                              "later", "refused", "fatal", NULL};
static const char *const burial_reasons[] = {
    [BURIAL_ATTEMPTS] = "attempts",   [BURIAL_REJECTED] = "rejected", [BURIAL_OUTAGE] = "outage",
    [BURIAL_MALFORMED] = "malformed", [BURIAL_CRASHED] = "crashed",   [BURIALS] = NULL};

/* The events of a type that are not delivered. (1) oldest_at == 0: there are no such events. */
struct by_type {
    const char *name;
    int64_t depth, oldest_at;
};

/* The types of a consumer: those that it has delivered, then the others that are not delivered. (1)
 * The first n have their own names; the last entry of the array is for all others. */
struct by_types {
    struct by_type type[METER_TYPES + 1];
    size_t n;
};

/* Returns the entry of a type, adding it if there is room, else the one for all others. */
static struct by_type *type_of(struct by_types *t, const char *name)
{
    for (size_t i = 0; i < t->n; i++)
        if (strcmp(t->type[i].name, name) == 0)
            return &t->type[i];

    bool nameable = *name && strlen(name) < METER_NAME;
    if (t->n == METER_TYPES || !nameable)
        return &t->type[METER_TYPES];
    t->type[t->n].name = name;
    return &t->type[t->n++];
}

/* Lists the delivered types first, so that a type with new undelivered events does not push an
 * existing series out. */
static void types_of(const struct metrics_consumer *c, struct by_types *t)
{
    *t = (struct by_types){.type[METER_TYPES].name = "other"};
    for (size_t i = 0; i < c->view.stats.meter.n_types; i++)
        type_of(t, c->view.stats.meter.type[i].name);
    if (!c->has_gauge)
        return;
    for (size_t i = 0; i < c->gauge.n_types; i++) {
        const struct gauge_type *from = &c->gauge.type[i];
        struct by_type *to = type_of(t, from->type);
        to->depth += from->n;
        bool is_older = from->oldest_at && (!to->oldest_at || from->oldest_at < to->oldest_at);
        if (is_older)
            to->oldest_at = from->oldest_at;
    }
}

/* Read from the store, so it is left out while the store does not answer. */
static void of_waiting(struct buf *b, const struct family *f, const struct metrics *m)
{
    struct by_types t;
    EACH(m, c)
    {
        if (!c->has_gauge)
            continue;
        types_of(c, &t);
        for (size_t i = 0; i <= METER_TYPES; i++) {
            if (!t.type[i].name)
                continue;
            SERIES(b, f->name, "consumer", c->view.consumer, "topic", t.type[i].name);
            add_value(b, f, &t.type[i], c);
        }
    }
}

/* ---- the metrics ---- */

#define RELAY(member, as) of_relay, .at = offsetof(struct metrics, member), .form = as
#define CONSUMER(member, as) \
    of_consumer, .at = offsetof(struct metrics_consumer, member), .form = as
#define WAITING(member, as) of_waiting, .at = offsetof(struct by_type, member), .form = as
#define TYPE(member) of_type, .at = offsetof(struct meter_type, member)
#define HISTOGRAM(member) of_histogram, .at = offsetof(struct meter, member)
#define MARK(member) of_mark, .at = offsetof(struct metrics_mark, member)

/* A new metric needs a row here, and one in docs/metrics.md. */
static const struct family families[] = {
    {"outbox_build_info", "gauge", "Always 1; labelled with the version and the kind of the store.",
     .add = build_info},
    {"outbox_ready", "gauge", "Whether /readyz returns 200.", RELAY(ready, AS_BOOL)},
    {"outbox_store_up", "gauge", "Whether the store answered this scrape.",
     RELAY(store_up, AS_BOOL)},
    {"outbox_config_reloads_total", "counter", "Reloads of the config, by result.", .add = reloads},
    {"outbox_http_refused_total", "counter", "Refused requests to this server, by status.",
     .add = refused},
    {"outbox_consumer_up", "gauge", "Whether the consumer is running in this relay.", of_consumer,
     .value = up},
    {"outbox_consumer_paused", "gauge", "Whether an operator has paused the consumer.", of_consumer,
     .value = paused},
    {"outbox_consumer_stalled_seconds", "gauge",
     "How long the consumer has had work without completing any.", .add = of_consumer,
     .value = stalled},
    {"outbox_depth", "gauge", "Undelivered events: waiting to be claimed, in flight, or parked.",
     WAITING(depth, AS_INT)},
    {"outbox_lag_seconds", "gauge", "Age of the oldest undelivered event.",
     WAITING(oldest_at, AS_AGE)},
    {"outbox_overdue_seconds", "gauge",
     "How long the oldest undelivered event has been due, counted from its not_before.",
     CONSUMER(gauge.overdue_at, AS_AGE), .when = WITH_STORE},
    {"outbox_in_flight", "gauge", "Events that this relay has claimed and not completed.",
     CONSUMER(view.held, AS_INT)},
    {"outbox_memory_held_bytes", "gauge", "Memory for the events that this relay holds.",
     CONSUMER(view.stats.held_bytes, AS_INT)},
    {"outbox_memory_peak_bytes", "gauge",
     "Peak memory for the events of all consumers since the start.", RELAY(memory_peak, AS_INT)},
    {"outbox_memory_limit_bytes", "gauge",
     "Limit on memory for the events of all consumers: the option memory.",
     RELAY(memory_limit, AS_INT)},
    {"outbox_parked", "gauge",
     "Events waiting for a retry, or behind another event of the same key.",
     CONSUMER(gauge.parked, AS_INT), .when = WITH_STORE},
    {"outbox_dead_letters", "gauge", "Current dead letters.", CONSUMER(gauge.dead, AS_INT),
     .when = WITH_STORE},
    {"outbox_dispatched_total", "counter", "Events delivered.", TYPE(ends[SINK_DELIVERED])},
    {"outbox_publish_failures_total", "counter", "Deliveries that failed, by reason.",
     TYPE(ends[SINK_RETRY]), .reasons = failure_reasons},
    {"outbox_retries_total", "counter", "Failed deliveries that were parked for a retry.",
     CONSUMER(view.stats.retried, AS_INT)},
    {"outbox_buried_total", "counter", "Events that became dead letters, by reason.", TYPE(buried),
     .reasons = burial_reasons},
    {"outbox_delivery_seconds", "histogram", "Time from an event's created_at to its delivery.",
     HISTOGRAM(delivery), .bounds = meter_delivery_bounds},
    {"outbox_sink_call_seconds", "histogram", "Time from submitting an event to the sink's answer.",
     HISTOGRAM(call), .bounds = meter_call_bounds},
    {"outbox_claims_total", "counter", "Batches of events claimed.",
     CONSUMER(view.stats.claims, AS_INT)},
    {"outbox_claims_lost_total", "counter", "Claims that expired and went to another worker.",
     CONSUMER(view.stats.lost, AS_INT)},
    {"outbox_taken_over_total", "counter", "Events taken over from vanished workers.",
     CONSUMER(view.stats.crashed, AS_INT)},
    {"outbox_lease_renewals_total", "counter",
     "Lease renewals, in the database and in Redis, by result.", .add = renewals},
    {"outbox_sink_lease_held", "gauge",
     "Whether this relay holds the lease that lets one relay deliver at a time.",
     CONSUMER(view.lease.held, AS_BOOL), .when = WITH_LEASE},
    {"outbox_sink_broker_info", "gauge",
     "Always 1; labelled with the sink's broker and its leader.", .add = broker_info},
    {"outbox_sink_connected", "gauge", "Whether the sink has a connection to its broker.",
     CONSUMER(view.broker.connected, AS_BOOL), .when = WITH_BROKER},
    {"outbox_sink_unconfirmed", "gauge", "Events sent to the broker and not confirmed.",
     CONSUMER(view.broker.unconfirmed, AS_SIZE), .when = WITH_BROKER},
    {"outbox_sink_confirm_lag_seconds", "gauge",
     "How long the oldest unconfirmed event has waited for its confirmation.", of_consumer,
     .value = confirm_lag, .when = WITH_BROKER},
    {"outbox_hwm", "gauge",
     "High-water mark: the id of the last entry sent to a stream, before the dash.", MARK(ms)},
    {"outbox_hwm_sequence", "gauge", "The part of that id after the dash.", MARK(sequence)},
    {"outbox_circuit_open", "gauge", "Whether the sink is considered down.",
     CONSUMER(view.stats.down, AS_BOOL)},
    {"outbox_sink_down_seconds", "gauge",
     "How long the sink has been down, as reported to the store.",
     CONSUMER(gauge.down_since, AS_AGE), .when = WITH_STORE},
    {"outbox_circuit_openings_total", "counter", "Times the sink went down.",
     CONSUMER(view.stats.meter.openings, AS_INT)},
    {"outbox_store_errors_total", "counter", "Failed turns with the store.",
     CONSUMER(view.stats.meter.store_errors, AS_INT)},
};

static void add_head(struct buf *b, const char *name, const char *type, const char *help)
{
    buf_addf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
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

/* Appends a metric of this process, under the name that the Prometheus clients use. */
static void add_sample(struct buf *b, const char *name, const char *type, const char *help,
                       double value)
{
    add_head(b, name, type, help);
    SERIES(b, name);
    add_double(b, value);
}

static void add_process(struct buf *b)
{
    struct stat_fields stat;
    struct rlimit files = {0};
    struct rusage u = {0};
    getrlimit(RLIMIT_NOFILE, &files);
    getrusage(RUSAGE_SELF, &u);
    double cpu_seconds = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                         (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
    add_sample(b, "process_cpu_seconds_total", "counter", "User and system CPU time spent.",
               cpu_seconds);
    add_sample(b, "process_open_fds", "gauge", "Open file descriptors.", open_files());
    add_sample(b, "process_max_fds", "gauge", "Limit on open file descriptors.",
               (double)files.rlim_cur);
    if (!read_stat(&stat))
        return;

    add_sample(b, "process_start_time_seconds", "gauge", "When the process started.", stat.start);
    add_sample(b, "process_virtual_memory_bytes", "gauge", "Virtual memory.", stat.virtual_bytes);
    add_sample(b, "process_resident_memory_bytes", "gauge", "Resident memory.",
               stat.resident_bytes);
}

void metrics_add(struct buf *b, const struct metrics *m)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const struct family *f = &families[i];
        add_head(b, f->name, f->type, f->help);
        f->add(b, f, m);
    }
    add_process(b);
}

/* ---- collecting the values ---- */

/* Stores a high-water mark. Returns 1, which ends the walk, if the array is full. */
static int keep_mark(void *ctx, const char *consumer, const struct hwm *h, int64_t at)
{
    struct metrics *m = ctx;
    char *name = arena_bytes(&m->arena, consumer, strlen(consumer));
    char *stream = arena_bytes(&m->arena, h->stream.p, h->stream.n);
    (void)at;
    if (!name || !stream)
        return 1;
    m->mark[m->n_marks++] = (struct metrics_mark){name, stream, h->hi, h->lo};
    return m->n_marks == METRICS_MARKS;
}

int metrics_scrape(struct metrics *m, struct admin_config *cfg, struct store *st, struct error *err)
{
    struct worker_view *v = NULL;
    size_t n = 0;
    outbox *ob = atomic_load(&cfg->ob);
    *m = (struct metrics){
        .store = cfg->store, .store_up = st != NULL, .now_ns = clock_mono(&clock_system)};
    for (size_t i = 0; i < 2; i++)
        m->reloads[i] = atomic_load(&cfg->reloads[i]);
    if (ob) {
        m->memory_limit = ob->sv.memory;
        m->memory_peak = (int64_t)atomic_load(&ob->sv.budget.peak);
    }
    if (ob && supervisor_views(&ob->sv, &v, &n, err) != 0)
        return -1;

    arena_init(&m->arena, 0);
    struct metrics_consumer *list = arena_zalloc(&m->arena, n + 1, sizeof *list);
    if (!list) {
        free(v);
        return err_nomem(err);
    }
    m->consumer = list;
    m->n_consumers = n;
    m->ready = n > 0;
    for (size_t i = 0; i < n; i++) {
        struct metrics_consumer *c = &list[i];
        struct error why = {0};
        c->view = v[i];
        if (st)
            c->has_gauge = st->ops->consumer_gauge(st, c->view.consumer, &m->arena, &c->gauge,
                                                   &why) == 0;
        /* The store counts as down, unless only the consumer is missing. */
        if (why.code && why.code != ERR_NOTFOUND)
            m->store_up = false;

        bool paused = c->has_gauge && c->gauge.paused;
        if (!health_of(&c->view, m->now_ns, cfg->patience_ms * MS_NS, paused).ready)
            m->ready = false;
    }
    free(v);

    /* The page is still useful without the marks; the store counts as down. */
    if (st && st->ops->marks(st, NULL, keep_mark, m, err) != 0)
        m->store_up = false;
    return 0;
}

void metrics_release(struct metrics *m)
{
    arena_release(&m->arena);
}
