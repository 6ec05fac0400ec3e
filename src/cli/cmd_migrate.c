/* cmd_migrate.c: outbox migrate, which upgrades the schema, compares it with this program's, and
 * generates it for other tools. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

static const struct option_def json_options[] = {OPTION_JSON, OPTION_END};
static const struct option_def up_options[] = {OPTION_WAIT, OPTION_REPLACE, OPTION_JSON,
                                               OPTION_END};

/* start begins the answer, a JSON object or a line, with the URL of the store, less its
 * password. */
static void start(struct buf *b, const struct cli *cli)
{
    struct buf url;
    buf_init(&url, 4096);
    buf_init(b, 8192);
    config_mask(&url, cli->settings.store);
    const char *name = buf_cstr(&url) ? url.p : "store";
    if (cli->args.json) {
        buf_addc(b, '{');
        output_string(b, "store", name);
    } else {
        output_addf(b, "%s: ", name);
    }
    buf_release(&url);
}

static int finish(struct buf *b, const struct cli *cli, struct error *err)
{
    buf_adds(b, cli->args.json ? "}\n" : "\n");
    int r = output_flush(b, err);
    buf_release(b);
    return r;
}

/* ---- up ---- */

/* add_upgrade says what `migrate up` did to an outbox that was as s says before. */
static void add_upgrade(struct buf *b, const struct schema_status *s, bool changed)
{
    long long there = (long long)s->there, known = (long long)s->known;
    if (!changed && s->functions == FUNCTIONS_NEWER)
        buf_addf(b, "already at version %lld; its functions are from a later build, and stay",
                 known);
    else if (!changed)
        buf_addf(b, "already at version %lld; nothing to do", known);
    else if (there == known)
        buf_addf(b, "already at version %lld; its functions were updated", known);
    else if (there == 0)
        buf_addf(b, "created an outbox of version %lld", known);
    else
        buf_addf(b, "upgraded from version %lld to %lld", there, known);
}

/* up does what init does, and says from which version to which. */
static int up(struct cli *cli, struct error *err)
{
    struct store *st;
    struct schema_status s;
    bool changed = false;
    if (commands_create(cli, &st, err) != 0)
        return -1;
    int r = st->ops->schema_status(st, &s, err);
    if (r == 0)
        r = st->ops->init(st, &changed, err);
    store_close(st);
    if (r != 0)
        return -1;

    struct buf b;
    start(&b, cli);
    if (cli->args.json) {
        output_number(&b, "from", changed ? s.there : s.known);
        output_number(&b, "to", s.known);
        output_bool(&b, "changed", changed);
    } else {
        add_upgrade(&b, &s, changed);
    }
    return finish(&b, cli, err);
}

/* ---- status ---- */

/* by enum functions_status */
static const char *const functions_names[] = {"same", "older", "newer"};

/* add_status compares versions first. Functions are worth a word only if those agree. */
static void add_status(struct buf *b, const struct schema_status *s)
{
    int64_t pending = s->known - s->there;
    char steps[OUTPUT_COUNT];
    if (s->there == 0)
        buf_adds(b, "no outbox");
    else
        buf_addf(b, "version %lld", (long long)s->there);
    buf_addf(b, ", this program needs %lld: ", (long long)s->known);

    if (pending > 0)
        buf_addf(b, "%s pending; run `outbox migrate up`", output_count(pending, "step", steps));
    else if (pending < 0)
        buf_adds(b, "it is newer than this program; use a newer outbox");
    else if (s->functions == FUNCTIONS_OLDER)
        buf_adds(b, "its functions are from an earlier build; run `outbox migrate up`");
    else if (s->functions == FUNCTIONS_NEWER)
        buf_adds(b,
                 "its functions are from a later build, which replaced this program's; nothing is "
                 "pending");
    else
        buf_adds(b, "nothing is pending");
}

static void add_status_json(struct buf *b, const struct schema_status *s)
{
    output_number(b, "version", s->there);
    output_number(b, "known", s->known);
    output_member(b, "pending");
    buf_addc(b, '[');
    for (int64_t v = s->there + 1; v <= s->known; v++) {
        if (v > s->there + 1)
            buf_addc(b, ',');
        buf_addi64(b, v);
    }
    buf_addc(b, ']');
    if (s->there == s->known)
        output_string(b, "functions", functions_names[s->functions]);
}

static int status(struct cli *cli, struct error *err)
{
    struct store *st;
    struct schema_status s;
    if (commands_look(cli, &st, err) != 0)
        return -1;
    int r = st->ops->schema_status(st, &s, err);
    store_close(st);
    if (r != 0)
        return -1;

    struct buf b;
    start(&b, cli);
    if (cli->args.json)
        add_status_json(&b, &s);
    else
        add_status(&b, &s);
    return finish(&b, cli, err);
}

/* ---- validate ---- */

/* compare reports how the schema differs from this version's. A newer one cannot be judged. */
static int compare(struct store *st, struct report *r, struct error *err)
{
    struct schema_status s;
    if (!st->ops->validate)
        return err_set(err, ERR_CONFIG, "migrate validate works on PostgreSQL only");
    if (st->ops->schema_status(st, &s, err) != 0)
        return -1;

    long long there = (long long)s.there, known = (long long)s.known;
    if (there == 0)
        return err_set(err, ERR_NOTOURS, "there is no outbox; create one with `outbox migrate up`");
    if (there > known)
        return err_set(
            err, ERR_NEWER,
            "the outbox has version %lld, this program knows up to %lld; use a newer outbox", there,
            known);
    if (there < known)
        report_say(r, FINDING_PROBLEM, "version", "run `outbox migrate up`",
                   "the outbox has version %lld, this program needs %lld", there, known);
    return st->ops->validate(st, report_visit, r, err);
}

static int validate(struct cli *cli, struct error *err)
{
    struct report r;
    struct store *st;
    if (commands_look(cli, &st, err) != 0)
        return -1;
    report_init(&r, cli);
    int bad = compare(st, &r, err);
    store_close(st);
    if (bad == 0)
        bad = report_end(&r, err);
    report_release(&r);
    return bad;
}

const struct command cmd_migrate[] = {
    {.name = "migrate",
     .sub = "up",
     .help = "create or upgrade the tables, like init",
     .options = up_options,
     .run = up},
    {.name = "migrate",
     .sub = "status",
     .help = "show the installed version and pending migrations",
     .options = json_options,
     .run = status},
    {.name = "migrate",
     .sub = "validate",
     .help = "compare the installed schema with this version's; exit status 1 if they differ",
     .options = json_options,
     .run = validate},
    {.name = "migrate",
     .sub = "gen",
     .help =
         "print the SQL, or write it to files for a migration tool or a service; needs no database",
     .options = gen_options,
     .run = gen},
    {.name = NULL},
};
