/* metrics.c: one function per metric, and a table of them. */
#include "admin/metrics.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"

/* ---- the format ---- */

/* A label of a series. */
struct label {
    const char *name, *value;
};

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

/* Appends `name{label="value",...} `; the number follows. labels end with name == NULL, and may be
 * NULL. */
static void add_series(struct buf *b, const char *name, const char *suffix,
                       const struct label *labels)
{
    buf_adds(b, name);
    buf_adds(b, suffix);
    if (labels) {
        buf_addc(b, '{');
        for (size_t i = 0; labels[i].name; i++) {
            if (i > 0)
                buf_addc(b, ',');
            buf_addf(b, "%s=\"", labels[i].name);
            add_escaped(b, labels[i].value);
            buf_addc(b, '"');
        }
        buf_addc(b, '}');
    }
    buf_addc(b, ' ');
}

static void add_int(struct buf *b, const char *name, const struct label *labels, int64_t value)
{
    add_series(b, name, "", labels);
    buf_addi64(b, value);
    buf_addc(b, '\n');
}

static void add_seconds(struct buf *b, const char *name, const struct label *labels, double seconds)
{
    add_series(b, name, "", labels);
    buf_addf(b, "%.15g\n", seconds);
}

/* Appends the buckets, which are cumulative in the text format, then sum and count. */
static void add_histogram(struct buf *b, const char *name, const char *consumer,
                          const struct histogram *h, const int64_t *bounds)
{
    char bound[32] = "";
    int64_t n = 0;
    struct label le[] = {{"consumer", consumer}, {"le", bound}, {NULL, NULL}};
    struct label plain[] = {{"consumer", consumer}, {NULL, NULL}};
    for (size_t i = 0; i <= METER_BUCKETS; i++) {
        n += h->bucket[i];
        if (i < METER_BUCKETS)
            snprintf(bound, sizeof bound, "%.15g", (double)bounds[i] / 1e9);
        else
            snprintf(bound, sizeof bound, "+Inf");
        add_series(b, name, "_bucket", le);
        buf_addf(b, "%lld\n", (long long)n);
    }
    add_series(b, name, "_sum", plain);
    buf_addf(b, "%.15g\n", (double)h->sum_ns / 1e9);
    add_series(b, name, "_count", plain);
    buf_addf(b, "%lld\n", (long long)n);
}

/* ---- events that are not delivered, by type ---- */

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

/* ---- the metrics ---- */

/* An add_fn appends the series of one metric. */
typedef void add_fn(struct buf *b, const char *name, const struct metrics *m);

/* EACH loops over the consumers. LABELS are the labels of a consumer; LABELS2 adds one more. */
#define EACH(m, c) \
    for (const struct metrics_consumer *c = (m)->consumer; c < (m)->consumer + (m)->n_consumers; \
         c++)
#define LABELS(c) ((struct label[]){{"consumer", (c)->view.consumer}, {NULL, NULL}})
#define LABELS2(c, name, value) \
    ((struct label[]){{"consumer", (c)->view.consumer}, {name, value}, {NULL, NULL}})

static void build_info(struct buf *b, const char *name, const struct metrics *m)
{
    add_int(b, name,
            (struct label[]){{"version", OUTBOX_VERSION}, {"store", m->store}, {NULL, NULL}}, 1);
}

static void is_ready(struct buf *b, const char *name, const struct metrics *m)
{
    add_int(b, name, NULL, m->ready);
}

static void store_up(struct buf *b, const char *name, const struct metrics *m)
{
    add_int(b, name, NULL, m->store_up);
}

static void reloads(struct buf *b, const char *name, const struct metrics *m)
{
    add_int(b, name, (struct label[]){{"result", "ok"}, {NULL, NULL}}, m->reloads[0]);
    add_int(b, name, (struct label[]){{"result", "error"}, {NULL, NULL}}, m->reloads[1]);
}

/* Every status has a series from the start, so that a rate is right from the first refusal on. */
const unsigned metrics_refusals[METRICS_REFUSALS] = {400, 401, 403, 405, 413};

static void refused(struct buf *b, const char *name, const struct metrics *m)
{
    for (size_t i = 0; i < METRICS_REFUSALS; i++) {
        char status[12];
        snprintf(status, sizeof status, "%u", metrics_refusals[i]);
        add_int(b, name, (struct label[]){{"status", status}, {NULL, NULL}}, m->refused[i]);
    }
}

/* Read from the store, so it is left out while the store does not answer. */
static void depth(struct buf *b, const char *name, const struct metrics *m)
{
    struct by_types t;
    EACH(m, c)
    {
        if (!c->has_gauge)
            continue;
        types_of(c, &t);
        for (size_t i = 0; i <= METER_TYPES; i++)
            if (t.type[i].name)
                add_int(b, name, LABELS2(c, "topic", t.type[i].name), t.type[i].depth);
    }
}

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

/* The age of the oldest event that is not delivered, by type. */
static void lag(struct buf *b, const char *name, const struct metrics *m)
{
    struct by_types t;
    EACH(m, c)
    {
        if (!c->has_gauge)
            continue;
        types_of(c, &t);
        for (size_t i = 0; i <= METER_TYPES; i++)
            if (t.type[i].name)
                add_seconds(b, name, LABELS2(c, "topic", t.type[i].name),
                            seconds_since(c, t.type[i].oldest_at));
    }
}

/* Returns the name of the i-th counter of a meter; NULL if it is not in use. The last counter
 * counts all other types. */
static const char *counted_name(const struct meter *t, size_t i)
{
    if (i == METER_TYPES)
        return "other";
    if (i < t->n_types)
        return t->type[i].name;
    return NULL;
}

static void dispatched(struct buf *b, const char *name, const struct metrics *m)
{
    EACH(m, c)
    {
        const struct meter *t = &c->view.stats.meter;
        for (size_t i = 0; i <= METER_TYPES; i++) {
            const char *topic = counted_name(t, i);
            if (topic)
                add_int(b, name, LABELS2(c, "topic", topic), t->type[i].ends[SINK_DELIVERED]);
        }
    }
}

static void add_reason(struct buf *b, const char *name, const struct metrics_consumer *c,
                       const char *topic, const char *reason, int64_t n)
{
    struct label labels[] = {
        {"consumer", c->view.consumer}, {"topic", topic}, {"reason", reason}, {NULL, NULL}};
    add_int(b, name, labels, n);
}

static void failures(struct buf *b, const char *name, const struct metrics *m)
{
    static const char *const reasons[] = {
        [SINK_RETRY] = "retry",       [SINK_REJECT] = "reject", [SINK_DOWN] = "down",
        [SINK_NOT_MINE] = "not-mine", [SINK_LATER] = "later",   [SINK_REFUSED] = "refused",
        [SINK_FATAL] = "fatal"};
    EACH(m, c)
    {
        const struct meter *t = &c->view.stats.meter;
        for (size_t i = 0; i <= METER_TYPES; i++) {
            const char *topic = counted_name(t, i);
            for (size_t k = SINK_RETRY; topic && k <= SINK_FATAL; k++)
                add_reason(b, name, c, topic, reasons[k], t->type[i].ends[k]);
        }
    }
}

static void delivery_seconds(struct buf *b, const char *name, const struct metrics *m)
{
    EACH(m, c)
    add_histogram(b, name, c->view.consumer, &c->view.stats.meter.delivery, meter_delivery_bounds);
}

static void call_seconds(struct buf *b, const char *name, const struct metrics *m)
{
    EACH(m, c)
    add_histogram(b, name, c->view.consumer, &c->view.stats.meter.call, meter_call_bounds);
}

/* Appends a count of one kind of lease: on a claim in the database, or on a key in Redis. */
static void add_renewal(struct buf *b, const char *name, const struct metrics_consumer *c,
                        const char *kind, const char *result, int64_t n)
{
    struct label labels[] = {
        {"consumer", c->view.consumer}, {"kind", kind}, {"result", result}, {NULL, NULL}};
    add_int(b, name, labels, n);
}

static void renewals(struct buf *b, const char *name, const struct metrics *m)
{
    static const char *const results[RENEWALS] = {"ok", "lost", "error"};
    EACH(m, c)
    {
        const struct sink_lease *l = &c->view.lease;
        for (size_t i = 0; i < RENEWALS; i++)
            add_renewal(b, name, c, "database", results[i], c->view.stats.meter.renewals[i]);
        if (!c->view.leased)
            continue;
        add_renewal(b, name, c, "redis", "acquired", l->acquired);
        add_renewal(b, name, c, "redis", "ok", l->renewed);
        add_renewal(b, name, c, "redis", "lost", l->lost);
        add_renewal(b, name, c, "redis", "error", l->unanswered);
    }
}

static void broker_info(struct buf *b, const char *name, const struct metrics *m)
{
    EACH(m, c)
    {
        const struct sink_broker *k = &c->view.broker;
        if (!k->kind)
            continue;
        struct label labels[] = {{"consumer", c->view.consumer},
                                 {"kind", k->kind},
                                 {"broker", k->broker},
                                 {"leader", k->leader},
                                 {NULL, NULL}};
        add_int(b, name, labels, 1);
    }
}

/* Computed at the time of the scrape, since it keeps growing while the consumer sleeps. */
static double confirm_age(const struct metrics *m, const struct metrics_consumer *c)
{
    int64_t since = c->view.broker.since;
    if (!since || since >= m->now_ns)
        return 0;
    return (double)(m->now_ns - since) / 1e9;
}

#define MARK_LABELS(k) \
    ((struct label[]){{"consumer", (k)->consumer}, {"stream", (k)->stream}, {NULL, NULL}})

static void mark_times(struct buf *b, const char *name, const struct metrics *m)
{
    for (size_t i = 0; i < m->n_marks; i++)
        add_int(b, name, MARK_LABELS(&m->mark[i]), m->mark[i].ms);
}

static void mark_sequences(struct buf *b, const char *name, const struct metrics *m)
{
    for (size_t i = 0; i < m->n_marks; i++)
        add_int(b, name, MARK_LABELS(&m->mark[i]), m->mark[i].sequence);
}

static void buried(struct buf *b, const char *name, const struct metrics *m)
{
    static const char *const reasons[BURIALS] = {[BURIAL_ATTEMPTS] = "attempts",
                                                 [BURIAL_REJECTED] = "rejected",
                                                 [BURIAL_OUTAGE] = "outage",
                                                 [BURIAL_MALFORMED] = "malformed",
                                                 [BURIAL_CRASHED] = "crashed"};
    EACH(m, c)
    {
        const struct meter *t = &c->view.stats.meter;
        for (size_t i = 0; i <= METER_TYPES; i++) {
            const char *topic = counted_name(t, i);
            for (size_t k = 0; topic && k < BURIALS; k++)
                add_reason(b, name, c, topic, reasons[k], t->type[i].buried[k]);
        }
    }
}

/* m and c are the names that EACH declares. `when` is false if the metric does not apply: values
 * from the store are left out while the store does not answer, and broker metrics exist only for
 * sinks with a broker. */
#define PER_CONSUMER(fn, add, when, value) \
    static void fn(struct buf *b, const char *name, const struct metrics *m) \
    { \
        EACH(m, c) if (when) add(b, name, LABELS(c), value); \
    }
/* 0 for a consumer that stopped on its own: it failed, or the relay is stopping */
PER_CONSUMER(up, add_int, true, c->view.state == PIPELINE_RUNNING)
/* from the store, if it answers: the consumer may not have noticed yet */
PER_CONSUMER(paused, add_int, true, c->has_gauge ? c->gauge.paused : c->view.stats.paused)
PER_CONSUMER(stalled, add_seconds, true, (double)health_stalled(&c->view, m->now_ns) / 1e9)
/* without events that are not due yet */
PER_CONSUMER(overdue, add_seconds, c->has_gauge, seconds_since(c, c->gauge.overdue_at))
PER_CONSUMER(parked, add_int, c->has_gauge, c->gauge.parked)
PER_CONSUMER(dead, add_int, c->has_gauge, c->gauge.dead)
/* how long this relay, or another, has been reporting the sink down */
PER_CONSUMER(down, add_seconds, c->has_gauge, seconds_since(c, c->gauge.down_since))
/* this relay's own view of it */
PER_CONSUMER(circuit, add_int, true, c->view.stats.down)
PER_CONSUMER(in_flight, add_int, true, c->view.held)
PER_CONSUMER(held_bytes, add_int, true, c->view.stats.held_bytes)
PER_CONSUMER(sink_lease_held, add_int, c->view.leased, c->view.lease.held)
PER_CONSUMER(broker_connected, add_int, c->view.broker.kind, c->view.broker.connected)
PER_CONSUMER(unconfirmed, add_int, c->view.broker.kind, (int64_t)c->view.broker.unconfirmed)
PER_CONSUMER(confirm_lag, add_seconds, c->view.broker.kind, confirm_age(m, c))
PER_CONSUMER(openings, add_int, true, c->view.stats.meter.openings)
PER_CONSUMER(claims, add_int, true, c->view.stats.claims)
PER_CONSUMER(lost, add_int, true, c->view.stats.lost)
PER_CONSUMER(crashed, add_int, true, c->view.stats.crashed)
PER_CONSUMER(retried, add_int, true, c->view.stats.retried)
PER_CONSUMER(store_errors, add_int, true, c->view.stats.meter.store_errors)
#undef PER_CONSUMER

static void memory_peak(struct buf *b, const char *name, const struct metrics *m)
{
    add_int(b, name, NULL, m->memory_peak);
}

static void memory_limit(struct buf *b, const char *name, const struct metrics *m)
{
    add_int(b, name, NULL, m->memory_limit);
}

/* A new metric needs a row here, a function above, and a row in docs/metrics.md. */
static const struct {
    const char *name, *type, *help;
    add_fn *add;
} families[] = {
    {"outbox_build_info", "gauge", "Always 1; labelled with the version and the kind of the store.",
     build_info},
    {"outbox_ready", "gauge", "Whether /readyz returns 200.", is_ready},
    {"outbox_store_up", "gauge", "Whether the store answered this scrape.", store_up},
    {"outbox_config_reloads_total", "counter", "Reloads of the config, by result.", reloads},
    {"outbox_http_refused_total", "counter", "Requests to this server that it refused, by status.",
     refused},
    {"outbox_consumer_up", "gauge", "Whether the consumer is running in this relay.", up},
    {"outbox_consumer_paused", "gauge", "Whether an operator has paused the consumer.", paused},
    {"outbox_consumer_stalled_seconds", "gauge",
     "How long the consumer has had work without completing any.", stalled},
    {"outbox_depth", "gauge", "Undelivered events: waiting to be claimed, in flight, or parked.",
     depth},
    {"outbox_lag_seconds", "gauge", "Age of the oldest undelivered event.", lag},
    {"outbox_overdue_seconds", "gauge",
     "How long the oldest undelivered event has been due, counted from its not_before.", overdue},
    {"outbox_in_flight", "gauge", "Events that this relay has claimed and not completed.",
     in_flight},
    {"outbox_memory_held_bytes", "gauge", "Memory for the events that this relay holds.",
     held_bytes},
    {"outbox_memory_peak_bytes", "gauge",
     "Peak memory for the events of all consumers since the start.", memory_peak},
    {"outbox_memory_limit_bytes", "gauge",
     "Limit on memory for the events of all consumers: the option memory.", memory_limit},
    {"outbox_parked", "gauge", "Events that wait for a retry, or behind another of their key.",
     parked},
    {"outbox_dead_letters", "gauge", "Current dead letters.", dead},
    {"outbox_dispatched_total", "counter", "Events delivered.", dispatched},
    {"outbox_publish_failures_total", "counter", "Deliveries that failed, by reason.", failures},
    {"outbox_retries_total", "counter", "Failed deliveries that were parked for a retry.", retried},
    {"outbox_buried_total", "counter", "Events that became dead letters, by reason.", buried},
    {"outbox_delivery_seconds", "histogram", "Time from an event's created_at to its delivery.",
     delivery_seconds},
    {"outbox_sink_call_seconds", "histogram",
     "Time from submitting an event to the sink to its answer.", call_seconds},
    {"outbox_claims_total", "counter", "Batches of events claimed.", claims},
    {"outbox_claims_lost_total", "counter", "Claims that expired and went to another worker.",
     lost},
    {"outbox_taken_over_total", "counter", "Events taken over from vanished workers.", crashed},
    {"outbox_lease_renewals_total", "counter",
     "Lease renewals, in the database and in Redis, by result.", renewals},
    {"outbox_sink_lease_held", "gauge",
     "Whether this relay holds the lease that lets one relay deliver at a time.", sink_lease_held},
    {"outbox_sink_broker_info", "gauge",
     "Always 1; labelled with the sink's broker and its leader.", broker_info},
    {"outbox_sink_connected", "gauge", "Whether the sink has a connection to its broker.",
     broker_connected},
    {"outbox_sink_unconfirmed", "gauge", "Events sent to the broker and not confirmed.",
     unconfirmed},
    {"outbox_sink_confirm_lag_seconds", "gauge",
     "How long the oldest unconfirmed event has waited for its confirmation.", confirm_lag},
    {"outbox_hwm", "gauge",
     "High-water mark: the id of the last entry sent to a stream, before the dash.", mark_times},
    {"outbox_hwm_sequence", "gauge", "The part of that id after the dash.", mark_sequences},
    {"outbox_circuit_open", "gauge", "Whether the sink is considered down.", circuit},
    {"outbox_sink_down_seconds", "gauge",
     "How long the sink has been down, as reported to the store.", down},
    {"outbox_circuit_openings_total", "counter", "Times the sink went down.", openings},
    {"outbox_store_errors_total", "counter", "Turns with the store that failed.", store_errors},
};

static void add_family(struct buf *b, const char *name, const char *type, const char *help)
{
    buf_addf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void metrics_add(struct buf *b, const struct metrics *m)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        add_family(b, families[i].name, families[i].type, families[i].help);
        families[i].add(b, families[i].name, m);
    }

    struct process_sample list[PROCESS_SAMPLES];
    size_t n = metrics_process(list);
    for (size_t i = 0; i < n; i++) {
        add_family(b, list[i].name, list[i].counter ? "counter" : "gauge", list[i].help);
        add_seconds(b, list[i].name, NULL, list[i].value);
    }
}
