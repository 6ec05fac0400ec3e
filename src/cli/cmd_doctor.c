/* cmd_doctor.c: outbox doctor, which looks for problems common to all stores: clocks, consumers
 * that are behind, retention. The store itself looks for the problems of its kind. */
#include <stdio.h>

#include "base/clock.h"
#include "cli/cli.h"

struct doctor_args {
    int64_t patience_ms;
    bool connect;
};

#define HOUR_MS INT64_C(3600000)
#define CLOCK_MS 1000               /* how far clocks may differ */
#define ABANDONED_MS (24 * HOUR_MS) /* how long no relay may have run a consumer */

static const struct option_def options[] = {
    {"patience", "DURATION", "5m",
     "warn about transactions, waiting events and lost claims older than this", option_span,
     OWN(doctor_args, patience_ms), .env = true},
    {"connect", NULL, "no", "also connect to the sink of every consumer in the settings",
     option_bool, OWN(doctor_args, connect)},
    OPTION_JSON,
    OPTION_END,
};

/* An examination of a store. */
struct visit {
    struct cli *cli;
    struct store *st;
    struct report report;
    int64_t patience_ms;
    struct store_info info;
    struct consumer_info *list;
    size_t n;
};

/* Adds a finding: its level, the name of the check, advice or NULL, and a formatted text. */
#define SAY(level, ...) output_finding(&v->report, FINDING_##level, __VA_ARGS__)

/* ---- clocks ---- */

/* Compares the two clocks. The store's time was read between `before` and `after`, so any time in
 * between counts as equal; a difference of up to CLOCK_MS is not worth a warning. */
static void compare_clocks(struct visit *v, int64_t before, int64_t after)
{
    const char *where = "ahead of";
    int64_t now = v->info.now_ms, apart = 0;
    if (now > after)
        apart = clock_since(now, after);
    if (now < before) {
        apart = before - now;
        where = "behind";
    }
    if (apart <= CLOCK_MS) {
        SAY(OK, "clock", NULL, "the store's clock and this one agree");
        return;
    }
    SAY(WARNING, "clock", "synchronize both clocks (NTP)",
        "the store's clock is %s %s this one: leases, delays and ages follow the store's",
        human_age(apart), where);
}

/* ---- consumers ---- */

/* Returns the age of a time; -1: it is unset, or in the future. */
static int64_t age_of(const struct visit *v, int64_t at)
{
    bool was = at && at < v->info.now_ms;
    if (!was)
        return -1;
    return clock_since(v->info.now_ms, at);
}

/* Reports a consumer whose sink is down: the operator must fix that first. */
static void say_down(struct visit *v, const struct consumer_info *c, const char *wait)
{
    const char *advice = "fix the sink: the relay resumes on its own", *caveat = "";
    const char *since = human_time(c->report_at);
    const char *age = human_age(clock_since(v->info.now_ms, c->report_at));
    if (c->claims == 0) {
        advice = "start a relay that runs it, to try the sink again";
        caveat = "; this is the last report from its relay, and no relay holds a claim now";
    }
    SAY(PROBLEM, "consumer", advice, "consumer \"%s\" has been down since %s (%s): %.300s; %s%s",
        c->spec.name, since, age, c->report, wait, caveat);
}

/* Reports a consumer whose events have waited longer than they should. */
static void say_late(struct visit *v, const struct consumer_info *c, int64_t ms, const char *wait)
{
    char advice[200];
    const char *name = c->spec.name, *state = "stuck";
    const char *age = human_age(ms);
    if (c->claims > 0) {
        SAY(WARNING, "consumer", "check the relay's log; more concurrency or lanes may help",
            "consumer \"%s\" is behind: %s, the oldest for %s; %s holds a claim", name, wait, age,
            c->owner ? c->owner : "a worker");
        return;
    }

    snprintf(advice, sizeof(advice), "start a relay that runs %s", name);
    if (ms > ABANDONED_MS) {
        state = "abandoned";
        snprintf(advice, sizeof(advice),
                 "start a relay that runs it, or `outbox consumers remove %s`", name);
    }
    SAY(PROBLEM, "consumer", advice,
        "consumer \"%s\" is %s: %s, the oldest for %s, and no worker holds a claim", name, state,
        wait, age);
}

/* Reports a parked event that should have been delivered long ago. A worker retries it
 * occasionally, so the consumer may look healthy otherwise, but later events of its key wait. */
static void say_blocked(struct visit *v, const struct consumer_info *c, const char *wait)
{
    const struct parked_info *p = &c->first_parked;
    char advice[300];
    snprintf(advice, sizeof(advice),
             "see `outbox events show %lld`; once the cause is fixed, run `outbox events retry "
             "%lld --consumer %s`",
             (long long)p->seq, (long long)p->seq, c->spec.name);
    SAY(WARNING, "blocked", advice,
        "consumer \"%s\" has not delivered event %lld, which is overdue for %s, and the "
        "events behind it under its key: %s used, the next at %s%s%.300s; %s",
        c->spec.name, (long long)p->seq, human_age(age_of(v, p->since)),
        human_count(p->attempts, "attempt"), human_time(p->due_at), p->error ? ": " : "",
        p->error ? p->error : "", wait);
}

/* Checks whether a consumer receives its events. Reports only its first problem, which explains the
 * others; and a blocked event, if a worker is running. */
static void examine_delivery(struct visit *v, const struct consumer_info *c)
{
    int64_t since = c->unclaimed_at; /* the oldest event that waits for a worker; 0: none */
    bool retry_is_older = c->next_due && (!since || c->next_due < since);
    if (retry_is_older)
        since = c->next_due;
    int64_t ms = age_of(v, since), overdue_ms = age_of(v, c->overdue_at);
    bool is_late = ms > v->patience_ms;
    bool is_blocked = age_of(v, c->first_parked.since) > v->patience_ms;
    const char *wait = human_events_wait(c->behind, c->behind_exact);
    if (c->paused)
        SAY(NOTE, "consumer", "continue with `outbox consumers resume`",
            "consumer \"%s\" is paused; %s", c->spec.name, wait);
    else if (c->down)
        say_down(v, c, wait);
    else if (is_late)
        say_late(v, c, ms, wait);
    else if (!is_blocked && overdue_ms > v->patience_ms)
        say_late(v, c, overdue_ms, wait);
    else if (!is_blocked)
        SAY(OK, "consumer", NULL, "consumer \"%s\" is %s", c->spec.name, fields_consumer_state(c));

    bool goes_on = !c->paused && !c->down && (!is_late || c->claims > 0);
    if (is_blocked && goes_on)
        say_blocked(v, c, wait);
}

static void examine_failures(struct visit *v, const struct consumer_info *c)
{
    char advice[200];
    if (c->dead > 0) {
        snprintf(advice, sizeof(advice),
                 "`outbox dead list --consumer %s` lists the reasons; then retry or drop %s",
                 c->spec.name, c->dead == 1 ? "it" : "them");
        SAY(WARNING, "dead-letter", advice, "consumer \"%s\" has %s", c->spec.name,
            human_count(c->dead, "dead letter"));
    }
    if (c->last_error && !c->down)
        SAY(NOTE, "retry", NULL, "consumer \"%s\": %s, last error: %.300s", c->spec.name,
            human_events_wait(c->parked, c->parked_exact), c->last_error);
}

/* ---- retention ---- */

/* Whether the oldest event should have been deleted by now. A relay counts from the time when the
 * last consumer had completed an event, which it samples occasionally. */
static bool is_retention_overdue(const struct visit *v, int64_t age_ms)
{
    const struct store_info *i = &v->info;
    int64_t keep = v->cli->settings.retention_ms, limit = keep + 2 * HOUR_MS;
    if (keep == 0) /* forever */
        return false;
    if (age_ms <= limit)
        return false;
    bool just_delivered = i->passed_at >= 0 && clock_since(i->now_ms, i->passed_at) <= limit;
    return !just_delivered;
}

/* Reports old events that are still kept, and the consumer they are kept for. */
static void examine_retention(struct visit *v)
{
    int64_t age_ms = 0;
    if (v->info.tail)
        age_ms = clock_since(v->info.now_ms, v->info.oldest_at);
    if (!is_retention_overdue(v, age_ms)) {
        SAY(OK, "retention", NULL, "%s%s %s kept", v->info.events_exact ? "" : "about ",
            human_count(v->info.events, "event"), v->info.events == 1 ? "is" : "are");
        return;
    }
    const struct consumer_info *pin = NULL; /* the consumer that needs the oldest events */
    for (size_t i = 0; i < v->n; i++) {
        if (!pin || v->list[i].floor < pin->floor)
            pin = &v->list[i];
    }
    bool needed = pin && pin->floor < v->info.tail;
    const char *age = human_age(age_ms);
    if (needed)
        SAY(WARNING, "retention", "fix its delivery, or remove the consumer",
            "the oldest event is %s old and is kept for consumer \"%s\" (%s at %lld%s)", age,
            pin->spec.name, pin->floor_pin ? pin->floor_pin : "position", (long long)pin->floor,
            pin->paused ? ", paused" : "");
    else
        SAY(WARNING, "retention", "run a relay, which trims automatically, or `outbox trim`",
            "the oldest event is %s old; no consumer needs it, but nothing deletes it", age);
}

/* Examines consumers and retention. It needs a schema of this program's version. */
static int examine_consumers(struct visit *v, struct error *err)
{
    int64_t before = clock_wall(&clock_system);
    if (v->st->ops->info(v->st, &v->info, err) != 0)
        return -1;

    compare_clocks(v, before, clock_wall(&clock_system));
    if (v->st->ops->consumer_list(v->st, NULL, &v->cli->arena, &v->list, &v->n, err) != 0)
        return -1;
    if (v->n == 0)
        SAY(NOTE, "consumer", "a relay registers the consumers it runs",
            "there are no consumers yet");
    for (size_t i = 0; i < v->n; i++) {
        examine_delivery(v, &v->list[i]);
        examine_failures(v, &v->list[i]);
    }
    examine_retention(v);
    return 0;
}

/* ---- sinks, with --connect ---- */

/* Names the broker that answered and its leader, if there is a broker. */
static void say_answered(struct visit *v, const char *consumer, const struct sink_broker *b,
                         int64_t ms)
{
    const char *age = human_age(ms);
    if (!b->kind)
        SAY(OK, "sink", NULL, "consumer \"%s\": its sink is usable", consumer);
    else if (!b->leader[0])
        SAY(OK, "sink", NULL, "consumer \"%s\": %s at %s answered within %s", consumer, b->kind,
            b->broker, age);
    else
        SAY(OK, "sink", NULL, "consumer \"%s\": %s at %s answered within %s; leader: %s", consumer,
            b->kind, b->broker, age, b->leader);
}

static void try_consumer(struct visit *v, const char *name)
{
    struct error err = {0};
    struct consumer c;
    struct sink_broker b = {0};
    if (config_consumer(&v->cli->config, name, &c, &err) != 0) {
        SAY(PROBLEM, "sink", "`outbox config check` lists the problems", "consumer \"%s\": %s",
            name, err.text);
        return;
    }

    int64_t began = clock_mono(&clock_system);
    int rc = -1;
    if (c.sink)
        rc = config_try_sink(&c, true, &b, &err);
    else
        err_set(&err, ERR_CONFIG, "it has no sink");
    int64_t ms = (clock_mono(&clock_system) - began) / MS_NS;
    consumer_release(&c);

    if (rc == 0)
        say_answered(v, name, &b, ms);
    else
        SAY(PROBLEM, "sink", "fix the sink, or its settings", "consumer \"%s\": %s", name,
            err.text);
}

/* ---- the whole examination ---- */

/* Compares the installed version with this program's, and if they agree the functions. Functions of
 * another build work with this program, or the version would differ, but those of an earlier build
 * lack later fixes. */
static void say_version(struct visit *v, const struct schema_status *s)
{
    long long there = (long long)s->there, known = (long long)s->known;
    if (there == known)
        SAY(OK, "version", NULL, "%lld, which this program needs", known);
    else if (there == 0)
        SAY(PROBLEM, "version", "create one with `outbox init`", "there is no outbox");
    else if (there < known)
        SAY(PROBLEM, "version", "run `outbox migrate up`",
            "the outbox has version %lld; this program needs %lld", there, known);
    else
        SAY(PROBLEM, "version", "use a newer outbox",
            "the outbox has version %lld, but this program knows only versions up to %lld", there,
            known);

    if (there == known && s->functions == FUNCTIONS_OLDER)
        SAY(WARNING, "functions", "run `outbox migrate up`",
            "the functions in the database are from an earlier build than this program");
    if (there == known && s->functions == FUNCTIONS_NEWER)
        SAY(NOTE, "functions", NULL,
            "the functions in the database are from a later build than this program: update it "
            "when you can");
}

/* Reports the installed version. *ret_known: this program can read the rest. */
static int examine_version(struct visit *v, bool *ret_known, struct error *err)
{
    struct schema_status s;
    struct error why = {0};
    *ret_known = false;
    if (v->st->ops->schema_status(v->st, &s, &why) != 0) {
        if (why.code == ERR_UNAVAILABLE) {
            *err = why;
            return -1;
        }
        SAY(PROBLEM, "version", NULL, "%s", why.text);
        return 0;
    }

    say_version(v, &s);
    *ret_known = s.there == s.known;
    return 0;
}

/* Examines everything. Losing the store is an error; any other failure is a finding. */
static int examine(struct visit *v, struct error *err)
{
    struct doctor_request req = {
        .patience_ms = v->patience_ms, .visit = output_finding_visit, .ctx = &v->report};
    struct error why = {0};
    bool known;
    if (examine_version(v, &known, err) != 0)
        return -1;
    if (v->st->ops->doctor && v->st->ops->doctor(v->st, &req, err) != 0)
        return -1;
    if (!known)
        return 0;

    if (examine_consumers(v, &why) == 0)
        return 0;
    if (why.code == ERR_UNAVAILABLE) {
        *err = why;
        return -1;
    }
    SAY(WARNING, "consumer", NULL, "cannot be inspected: %s", why.text);
    return 0;
}

/* Tries the sink of every consumer in the settings. */
static void try_consumers(struct visit *v)
{
    size_t n;
    const struct named *names = config_consumers(&v->cli->config, &n);
    if (n == 0)
        SAY(NOTE, "sink", "use -c with the config file of the relay",
            "the settings define no consumers, so there is nothing to connect to");
    for (size_t i = 0; i < n; i++)
        try_consumer(v, names[i].name);
}

/* The store may have any version: a wrong one is a finding, not a failure. */
static int doctor_run(struct cli *cli, struct error *err)
{
    const struct doctor_args *a = cli_own(cli);
    struct visit v = {.cli = cli, .st = cli->st, .patience_ms = a->patience_ms};
    output_report_start(&v.report, cli);
    int r = examine(&v, err);
    if (r == 0 && a->connect)
        try_consumers(&v);
    if (r == 0)
        r = output_report_end(&v.report, err);
    output_report_release(&v.report);
    return r;
}

const struct command cmd_doctor[] = {
    {"doctor", NULL, NULL, "report problems and how to fix them; exit status 1 if there are any",
     .options = options, .consumers = true, .opens = OPENS_ANY_VERSION,
     .json = JSON_OBJECT(fields_report), .run = doctor_run},
    {NULL},
};
