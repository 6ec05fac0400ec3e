#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "cli/cli.h"

#define CLOCK_MS 1000                        /* how far clocks may be apart */
#define ABANDONED_MS (INT64_C(24) * 3600000) /* nobody has looked at it for as long */

static const struct option_def options[] = {
    {"patience", "DURATION", "5m",
     "warn about transactions, waiting events and lost claims older than this", option_span,
     ARG(doctor.patience_ms), .env = true},
    OPTION_JSON,
    OPTION_END,
};

/* A look at one store. */
struct visit {
    struct cli *cli;
    struct store *st;
    struct report report;
    int64_t patience_ms;
    struct store_info info;
    struct arena arena;
    struct consumer_info *list;
    size_t n;
};

/* ---- what is the same in every store ---- */

static void clocks(struct visit *v, int64_t before, int64_t after)
{
    char text[OUTPUT_AGE];
    int64_t apart = v->info.now_ms < before  ? before - v->info.now_ms
                    : v->info.now_ms > after ? clock_since(v->info.now_ms, after)
                                             : 0;
    if (apart <= CLOCK_MS)
        report_say(&v->report, FINDING_OK, "clock", NULL, "the store's clock and this one agree");
    else
        report_say(&v->report, FINDING_WARNING, "clock", "have both machines keep the time (NTP)",
                   "the store's clock is %s %s this one: leases, delays and ages go by the store's",
                   output_age(apart, text), v->info.now_ms > after ? "ahead of" : "behind");
}

/* waiting gives how long the oldest event has waited for somebody to take it; -1: none does. */
static int64_t waiting(const struct visit *v, const struct consumer_info *c)
{
    int64_t since = c->oldest_at;
    if (c->next_due && (!since || c->next_due < since))
        since = c->next_due;
    return since && since < v->info.now_ms ? clock_since(v->info.now_ms, since) : -1;
}

/* down: its sink is; that is the first thing to mend, whatever waits. */
static void down(struct visit *v, const struct consumer_info *c, const char *wait)
{
    char since[CLOCK_RFC3339_SIZE], age[OUTPUT_AGE];
    bool somebody = c->claims > 0;
    output_time(c->report_at, since);
    output_age(clock_since(v->info.now_ms, c->report_at), age);
    report_say(&v->report, FINDING_PROBLEM, "consumer",
               somebody ? "mend the sink: its relay goes on by itself"
                        : "start a relay that runs it: it asks the sink again",
               "consumer \"%s\" is down since %s (%s): %.300s; %s%s", c->spec.name, since, age,
               c->report, wait,
               somebody ? "" : "; that is what its relay said last, and none has a claim now");
}

static void delivery(struct visit *v, const struct consumer_info *c)
{
    char age[OUTPUT_AGE], advice[200], wait[OUTPUT_COUNT];
    int64_t ms = waiting(v, c);
    const char *name = c->spec.name;
    output_age(ms, age);
    output_events_wait(c->behind + c->parked, c->behind_exact, wait);
    if (c->paused)
        report_say(&v->report, FINDING_NOTE, "consumer", "go on with `outbox consumers resume`",
                   "consumer \"%s\" is paused; %s", name, wait);
    else if (c->down)
        down(v, c, wait);
    else if (ms <= v->patience_ms)
        report_say(&v->report, FINDING_OK, "consumer", NULL, "consumer \"%s\" is %s", name,
                   output_consumer_state(c));
    else if (c->claims > 0)
        report_say(&v->report, FINDING_WARNING, "consumer",
                   "see why in the relay's log; more concurrency or lanes may help",
                   "consumer \"%s\" is behind: %s, the oldest for %s; %s has a claim", name, wait,
                   age, c->owner ? c->owner : "somebody");
    else {
        bool long_ago = ms > ABANDONED_MS;
        snprintf(advice, sizeof(advice),
                 long_ago ? "start a relay that runs it, or `outbox consumers remove %s`"
                          : "start a relay that runs %s",
                 name);
        report_say(&v->report, FINDING_PROBLEM, "consumer", advice,
                   "consumer \"%s\" is %s: %s, the oldest for %s, and nobody has a claim", name,
                   long_ago ? "abandoned" : "stuck", wait, age);
    }
}

static void trouble(struct visit *v, const struct consumer_info *c)
{
    char advice[200], n[OUTPUT_COUNT];
    if (c->dead > 0) {
        snprintf(advice, sizeof(advice),
                 "`outbox dead list --consumer %s` says why; then retry or drop %s", c->spec.name,
                 c->dead == 1 ? "it" : "them");
        report_say(&v->report, FINDING_WARNING, "dead-letter", advice, "consumer \"%s\" has %s",
                   c->spec.name, output_count(c->dead, "dead letter", n));
    }
    if (c->last_error && !c->down)
        report_say(&v->report, FINDING_NOTE, "retry", NULL,
                   "consumer \"%s\": %s, last error: %.300s", c->spec.name,
                   output_events_wait(c->parked, true, n), c->last_error);
}

/* retention: who keeps events that are old enough to go. */
static void retention(struct visit *v)
{
    char age[OUTPUT_AGE], kept[OUTPUT_COUNT];
    const struct consumer_info *pin = NULL;
    int64_t keep = v->cli->settings.retention_ms,
            old = v->info.tail ? clock_since(v->info.now_ms, v->info.oldest_at) : 0;
    for (size_t i = 0; i < v->n; i++)
        if (!pin || v->list[i].floor < pin->floor)
            pin = &v->list[i];
    output_age(old, age);
    /* A relay trims every hour, and counts from when the last consumer was done with an event. */
    int64_t late = keep + 2 * INT64_C(3600000);
    bool young = !v->info.tail || old <= late;
    bool just_delivered = v->info.passed_at >= 0 &&
                          clock_since(v->info.now_ms, v->info.passed_at) <= late;
    if (keep == 0 || young || just_delivered)
        report_say(&v->report, FINDING_OK, "retention", NULL, "%s%s %s kept",
                   v->info.events_exact ? "" : "about ",
                   output_count(v->info.events, "event", kept), v->info.events == 1 ? "is" : "are");
    else if (pin && pin->floor < v->info.tail)
        report_say(&v->report, FINDING_WARNING, "retention",
                   "have it delivered, or remove the consumer",
                   "the oldest event is %s old and is kept for consumer \"%s\" (%s at %lld%s)", age,
                   pin->spec.name, pin->floor_pin ? pin->floor_pin : "position",
                   (long long)pin->floor, pin->paused ? ", paused" : "");
    else
        report_say(&v->report, FINDING_WARNING, "retention",
                   "run a relay, which trims every hour, or `outbox trim`",
                   "the oldest event is %s old and nobody needs it, but nobody deletes it", age);
}

static int consumers(struct visit *v, struct error *err)
{
    int64_t before = clock_wall(&clock_system);
    if (v->st->ops->info(v->st, &v->info, err) != 0)
        return -1;
    clocks(v, before, clock_wall(&clock_system));
    if (v->st->ops->consumer_list(v->st, NULL, &v->arena, &v->list, &v->n, err) != 0)
        return -1;
    if (v->n == 0)
        report_say(&v->report, FINDING_NOTE, "consumer", "a relay registers the consumers it runs",
                   "there is none yet");
    for (size_t i = 0; i < v->n; i++) {
        delivery(v, &v->list[i]);
        trouble(v, &v->list[i]);
    }
    retention(v);
    return 0;
}

/* ---- all of it ---- */

/* functions of another build work with this program, or their version would differ; they lack what
 * was mended since. */
static void functions(struct visit *v, enum functions_status there)
{
    if (there == FUNCTIONS_OLDER)
        report_say(&v->report, FINDING_WARNING, "functions", "run `outbox migrate up`",
                   "the functions in the database are those of an earlier build than this program");
    if (there == FUNCTIONS_NEWER)
        report_say(&v->report, FINDING_NOTE, "functions", NULL,
                   "the functions in the database are those of a later build than this program: "
                   "update it some time");
}

/* version says whether what is there can be read by the rest. */
static int version(struct visit *v, bool *ret_known, struct error *err)
{
    struct schema_status s;
    struct error why = {0};
    *ret_known = false;
    if (v->st->ops->schema_status(v->st, &s, &why) != 0) {
        if (why.code == ERR_UNAVAILABLE) {
            *err = why;
            return -1;
        }
        report_say(&v->report, FINDING_PROBLEM, "version", NULL, "%s", why.text);
        return 0;
    }
    *ret_known = s.there == s.known;
    long long there = (long long)s.there, known = (long long)s.known;
    if (*ret_known)
        report_say(&v->report, FINDING_OK, "version", NULL, "%lld, as this program makes it",
                   known);
    else if (s.there == 0)
        report_say(&v->report, FINDING_PROBLEM, "version", "make one: `outbox init`",
                   "there is no outbox");
    else if (s.there < s.known)
        report_say(&v->report, FINDING_PROBLEM, "version", "run `outbox migrate up`",
                   "the outbox has version %lld, this program works with %lld", there, known);
    else
        report_say(&v->report, FINDING_PROBLEM, "version", "use a newer outbox",
                   "the outbox has version %lld, this program knows up to %lld", there, known);
    if (*ret_known)
        functions(v, s.functions);
    return 0;
}

static int look(struct visit *v, struct error *err)
{
    struct doctor_request req = {
        .patience_ms = v->patience_ms, .visit = report_visit, .ctx = &v->report};
    struct error why = {0};
    bool known;
    if (version(v, &known, err) != 0)
        return -1;
    if (v->st->ops->doctor && v->st->ops->doctor(v->st, &req, err) != 0)
        return -1;
    if (!known || consumers(v, &why) == 0)
        return 0;
    if (why.code == ERR_UNAVAILABLE) {
        *err = why;
        return -1;
    }
    report_say(&v->report, FINDING_WARNING, "consumer", NULL, "cannot be looked at: %s", why.text);
    return 0;
}

static int run(struct cli *cli, struct error *err)
{
    struct visit v = {.cli = cli, .patience_ms = cli->args.doctor.patience_ms};
    if (commands_look(cli, &v.st, err) != 0)
        return -1;
    arena_init(&v.arena, 0);
    report_init(&v.report, cli);
    int r = look(&v, err);
    store_close(v.st);
    if (r == 0)
        r = report_end(&v.report, err);
    report_release(&v.report);
    arena_release(&v.arena);
    return r;
}

const struct command cmd_doctor[] = {
    {.name = "doctor",
     .help = "report problems and how to fix them; exit status 1 if there are any",
     .options = options,
     .run = run},
    {.name = NULL},
};
