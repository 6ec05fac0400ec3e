/* cmd_trim.c: outbox trim, which deletes old events that no consumer needs. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/text.h"
#include "cli/cli.h"
#include "store/trimming.h"

/* set_older_than takes any duration, 0s included, so it notes that one was given. */
static int set_older_than(void *field, const char *value, const struct option_def *o,
                          struct error *err)
{
    struct trim_args *a = field;
    (void)o;
    if (text_duration(value, &a->older_than_ms, err) != 0)
        return -1;
    a->older_than = true;
    return 0;
}

static const struct option_def options[] = {
    {"older-than", "DURATION", NULL,
     "minimum time since the last consumer received an event; retention if not given",
     set_older_than, ARG(trim), .env = true},
    {"dry-run", NULL, "no", "only say what would be deleted", option_bool, ARG(dry_run),
     .env = true},
    OPTION_YES,
    OPTION_JSON,
    OPTION_END,
};

/* rest lets others go first. */
static void rest(int64_t ns)
{
    struct timespec ts = {ns / 1000000000, ns % 1000000000};
    if (ns > 0)
        nanosleep(&ts, NULL);
}

/* trim_all trims until nothing is left to do, or says what that would delete. Each step is a short
 * transaction of its own; what is kept, and why, is what the last step says. */
static int trim_all(struct store *st, const struct trim_request *req, struct trim_result *sum,
                    struct error *err)
{
    struct trimming pace = {0};
    struct trim_result one;
    if (req->dry_run)
        return st->ops->trim(st, req, sum, err);
    *sum = (struct trim_result){0};
    do {
        rest(pace.pause_ns);
        one = (struct trim_result){0};
        if (trimming_step(&pace, st, &clock_system, req, &one, err) != 0)
            return -1;
        sum->events += one.events;
        sum->keys += one.keys;
        sum->inbox += one.inbox;
        sum->receipts += one.receipts;
    } while (one.more);
    sum->kept_for_pin = one.kept_for_pin;
    sum->kept_more = one.kept_more;
    memcpy(sum->pin, one.pin, sizeof(sum->pin));
    return 0;
}

/* about says whether the number of events is an estimate: no more than 100,000 are counted. */
static const char *about(const struct trim_result *t)
{
    return t->events_about ? "about " : "";
}

static const char *at_least(bool more)
{
    return more ? "at least " : "";
}

/* add_text says what was deleted, and which consumer keeps the rest. Idempotency keys, inbox rows
 * and receipts are named only if there were any. */
static void add_text(struct buf *b, const struct trim_request *req, const struct trim_result *t,
                     const char *age)
{
    char n[OUTPUT_COUNT];
    const struct {
        int64_t n;
        bool more;
        const char *noun;
    } rest[] = {{t->keys, t->keys_more, "idempotency key"},
                {t->inbox, t->inbox_more, "inbox row"},
                {t->receipts, t->receipts_more, "receipt"}};

    const char *deleted = "deleted", *kept = "kept";
    if (req->dry_run) {
        deleted = "would delete";
        kept = "would keep";
    }

    buf_addf(b, "%s %s%s", deleted, about(t), output_count(t->events, "event", n));
    for (size_t i = 0; i < sizeof(rest) / sizeof(*rest); i++) {
        if (rest[i].n)
            buf_addf(b, ", %s%s", at_least(rest[i].more), output_count(rest[i].n, rest[i].noun, n));
    }
    buf_addf(b, " older than %s\n", age);

    if (!t->pin[0])
        return;
    output_addf(b, "%s %s%s: %s\n", kept, at_least(t->kept_more),
                output_count(t->kept_for_pin, "more event", n), t->pin);
}

static int report(const struct cli *cli, const struct trim_request *req,
                  const struct trim_result *t, struct error *err)
{
    char age[32];
    struct buf b;
    buf_init(&b, 4096);
    text_duration_show(req->older_than_ms, age);
    if (cli->args.json) {
        buf_addc(&b, '{');
        output_bool(&b, "dry_run", req->dry_run);
        output_string(&b, "older_than", age);
        output_number(&b, "events", t->events);
        output_bool(&b, "events_exact", !t->events_about);
        output_number(&b, "keys", t->keys);
        output_bool(&b, "keys_exact", !t->keys_more);
        output_number(&b, "inbox_rows", t->inbox);
        output_bool(&b, "inbox_rows_exact", !t->inbox_more);
        output_number(&b, "receipts", t->receipts);
        output_bool(&b, "receipts_exact", !t->receipts_more);
        output_number(&b, "kept_for_pin", t->kept_for_pin);
        output_bool(&b, "kept_exact", !t->kept_more);
        output_string(&b, "pin", t->pin[0] ? t->pin : NULL);
        buf_adds(&b, "}\n");
    } else {
        add_text(&b, req, t, age);
    }
    int r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

/* ask_first asks before events are deleted that retention was meant to keep. */
static int ask_first(const struct cli *cli, struct store *st, const struct trim_request *req,
                     struct error *err)
{
    int64_t retention_ms = cli->settings.retention_ms;
    bool as_retention = retention_ms > 0 && req->older_than_ms >= retention_ms;
    if (req->dry_run || as_retention || cli->args.yes)
        return 0;

    struct trim_request look = *req;
    struct trim_result would;
    look.dry_run = true;
    if (trim_all(st, &look, &would, err) != 0)
        return -1;
    if (would.events == 0)
        return 0;

    char age[32], n[OUTPUT_COUNT];
    text_duration_show(req->older_than_ms, age);
    return confirm(cli, err, "delete %s%s older than %s, which retention keeps for longer",
                   about(&would), output_count(would.events, "event", n), age);
}

/* run trims by --older-than or, without it, by retention. With retention off, nobody has said what
 * is old, so the option is required. */
static int run(struct cli *cli, struct error *err)
{
    const struct trim_args *a = &cli->args.trim;
    struct trim_request req = {.older_than_ms = a->older_than_ms,
                               .inbox_ms = cli->settings.inbox_ms,
                               .dry_run = cli->args.dry_run};
    if (!a->older_than)
        req.older_than_ms = cli->settings.retention_ms;
    if (!a->older_than && req.older_than_ms == 0)
        return options_usage(
            err, "retention is 0s, so events are kept forever; --older-than deletes them anyway");

    struct trim_result sum;
    struct store *st;
    if (commands_store(cli, &st, err) != 0)
        return -1;
    int r = ask_first(cli, st, &req, err);
    if (r == 0)
        r = trim_all(st, &req, &sum, err);
    store_close(st);
    if (r != 0)
        return -1;
    return report(cli, &req, &sum, err);
}

const struct command cmd_trim[] = {
    {.name = "trim",
     .help = "delete old events that every consumer has received",
     .options = options,
     .run = run},
    {.name = NULL},
};
