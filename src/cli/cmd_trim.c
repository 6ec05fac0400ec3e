/* cmd_trim.c: outbox trim, which deletes old events that no consumer needs. */
#include <string.h>
#include <time.h>

#include "base/text.h"
#include "cli/cli.h"

struct trim_args {
    struct number_arg older_than;
};

static const struct option_def options[] = {
    {"older-than", "DURATION", NULL,
     "minimum time since the last consumer received an event; retention if not given",
     commands_span, OWN(trim_args, older_than), .env = true},
    {"dry-run", NULL, "no", "only report what would be deleted", option_bool, ARG(dry_run),
     .env = true},
    OPTION_YES,
    OPTION_JSON,
    OPTION_END,
};

/* Trims until nothing is left to do, or with --dry-run counts what would be deleted. Each step is a
 * short transaction; the last step reports what is kept, and why. */
static int trim_all(struct store *st, const struct trim_request *req, struct trim_result *sum,
                    struct error *err)
{
    struct trimming pace = {0};
    struct trim_result one;
    if (req->dry_run)
        return st->ops->trim(st, req, sum, err);
    *sum = (struct trim_result){0};
    do {
        struct timespec pause = {pace.pause_ns / 1000000000, pace.pause_ns % 1000000000};
        if (pace.pause_ns > 0)
            nanosleep(&pause, NULL); /* yields to other transactions */
        one = (struct trim_result){0};
        if (store_trim_step(&pace, st, &clock_system, req, &one, err) != 0)
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

/* Returns "about " if the number of events is an estimate, as it is above 100,000. */
static const char *about(const struct trim_result *t)
{
    return t->events_about ? "about " : "";
}

static const char *at_least(bool more)
{
    return more ? "at least " : "";
}

/* The result of a trim, or with --dry-run the result it would have. */
struct trimmed {
    struct trim_request req;
    struct trim_result did;
    const char *age;
};

/* Idempotency keys, inbox rows and receipts are named only if there were any. */
static void trimmed_text(struct buf *b, const void *row)
{
    const struct trimmed *r = row;
    const struct trim_result *t = &r->did;
    const struct {
        int64_t n;
        bool more;
        const char *noun;
    } others[] = {{t->keys, t->keys_more, "idempotency key"},
                  {t->inbox, t->inbox_more, "inbox row"},
                  {t->receipts, t->receipts_more, "receipt"}};

    const char *deleted = "deleted", *kept = "kept";
    if (r->req.dry_run) {
        deleted = "would delete";
        kept = "would keep";
    }

    buf_addf(b, "%s %s%s", deleted, about(t), human_count(t->events, "event"));
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
        if (others[i].n)
            buf_addf(b, ", %s%s", at_least(others[i].more),
                     human_count(others[i].n, others[i].noun));
    }
    buf_addf(b, " older than %s\n", r->age);
    if (t->pin[0])
        output_addf(b, "%s %s%s: %s\n", kept, at_least(t->kept_more),
                    human_count(t->kept_for_pin, "more event"), t->pin);
}

#define AT(member) .at = offsetof(struct trimmed, member)
static const struct listing_field fields_trimmed[] = {
    {"dry_run", LISTING_BOOL, AT(req.dry_run), "true: nothing was deleted"},
    {"older_than", LISTING_TEXT, AT(age), "how old events had to be"},
    {"events", LISTING_INT, AT(did.events), "events that were deleted"},
    {"events_exact", LISTING_NOT, AT(did.events_about), "false: events is an estimate"},
    {"keys", LISTING_INT, AT(did.keys), "idempotency keys that were deleted"},
    {"keys_exact", LISTING_NOT, AT(did.keys_more), "false: there are more"},
    {"inbox_rows", LISTING_INT, AT(did.inbox), "inbox rows that were deleted"},
    {"inbox_rows_exact", LISTING_NOT, AT(did.inbox_more), "false: there are more"},
    {"receipts", LISTING_INT, AT(did.receipts), "receipts that were deleted"},
    {"receipts_exact", LISTING_NOT, AT(did.receipts_more), "false: there are more"},
    {"kept_for_pin", LISTING_INT, AT(did.kept_for_pin), "events old enough but still needed"},
    {"kept_exact", LISTING_NOT, AT(did.kept_more), "false: there are more"},
    {"pin", LISTING_CHARS, AT(did.pin), "the consumer that needs them, or null"},
    {NULL},
};
#undef AT

/* Asks before deleting events that retention would keep. */
static int ask_first(const struct cli *cli, const struct trim_request *req, struct error *err)
{
    int64_t retention_ms = cli->settings.retention_ms;
    bool as_retention = retention_ms > 0 && req->older_than_ms >= retention_ms;
    if (req->dry_run || as_retention || cli->args.yes)
        return 0;

    struct trim_request look = *req;
    struct trim_result would;
    look.dry_run = true;
    if (trim_all(cli->st, &look, &would, err) != 0)
        return -1;
    if (would.events == 0)
        return 0;

    char age[32];
    text_duration_show(req->older_than_ms, age);
    return output_confirm(cli, err, "delete %s%s older than %s, which retention keeps for longer",
                          about(&would), human_count(would.events, "event"), age);
}

/* With retention off, --older-than is required. */
static int trim_check(struct cli *cli, struct error *err)
{
    const struct trim_args *a = cli_own(cli);
    if (a->older_than.given || cli->settings.retention_ms > 0)
        return 0;
    return commands_usage(
        err, "retention is 0s, so events are kept forever; --older-than deletes them anyway");
}

/* Trims by --older-than or, without it, by retention. */
static int trim_run(struct cli *cli, struct error *err)
{
    const struct trim_args *a = cli_own(cli);
    struct trim_request req = {.older_than_ms = a->older_than.value,
                               .inbox_ms = cli->settings.inbox_ms,
                               .dry_run = cli->args.dry_run};
    if (!a->older_than.given)
        req.older_than_ms = cli->settings.retention_ms;
    if (ask_first(cli, &req, err) != 0)
        return -1;
    struct trimmed done = {.req = req};
    if (trim_all(cli->st, &req, &done.did, err) != 0)
        return -1;
    char age[32];
    text_duration_show(req.older_than_ms, age);
    done.age = age;
    return output_result(cli, fields_trimmed, &done, trimmed_text, err);
}

const struct command cmd_trim[] = {
    {"trim", NULL, NULL, "delete old events that every consumer has received", .options = options,
     .opens = OPENS_STORE, .json = JSON_OBJECT(fields_trimmed), .check = trim_check,
     .run = trim_run},
    {NULL},
};
