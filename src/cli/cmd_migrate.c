#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

static const struct option_def json_options[] = {OPTION_JSON, OPTION_END};
static const struct option_def up_options[] = {OPTION_WAIT, OPTION_REPLACE, OPTION_JSON,
                                               OPTION_END};

/* start begins a JSON object, or a line, with the store's name, without its password. */
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
    } else
        buf_addf(b, "%s: ", name);
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
    } else if (!changed && s.functions == FUNCTIONS_NEWER)
        buf_addf(&b, "version %lld already; its functions are those of a later build, and stay",
                 (long long)s.known);
    else if (!changed)
        buf_addf(&b, "version %lld already; nothing to do", (long long)s.known);
    else if (s.there == s.known)
        buf_addf(&b, "version %lld already; its functions were brought up to date",
                 (long long)s.known);
    else if (s.there == 0)
        buf_addf(&b, "made an outbox of version %lld", (long long)s.known);
    else
        buf_addf(&b, "brought from version %lld to %lld", (long long)s.there, (long long)s.known);
    return finish(&b, cli, err);
}

/* ---- status ---- */

static const char *const functions_names[] = {"same", "older", "newer"};

static void say_status(struct buf *b, const struct schema_status *s)
{
    if (s->there == 0)
        buf_adds(b, "no outbox");
    else
        buf_addf(b, "version %lld", (long long)s->there);
    buf_addf(b, ", this program makes %lld: ", (long long)s->known);
    bool same = s->there == s->known;
    if (same && s->functions == FUNCTIONS_OLDER)
        buf_adds(b, "its functions are those of an earlier build; run `outbox migrate up`");
    else if (same && s->functions == FUNCTIONS_NEWER)
        buf_adds(b, "its functions are those of a later build, which replaced this program's; "
                    "nothing is pending");
    else if (same)
        buf_adds(b, "nothing is pending");
    else if (s->there > s->known)
        buf_adds(b, "it is newer than this program; use a newer outbox");
    else
        buf_addf(b, "%lld step%s pending; run `outbox migrate up`",
                 (long long)(s->known - s->there), s->known - s->there == 1 ? "" : "s");
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
    if (cli->args.json) {
        output_number(&b, "version", s.there);
        output_number(&b, "known", s.known);
        output_member(&b, "pending");
        buf_addc(&b, '[');
        for (int64_t v = s.there + 1; v <= s.known; v++)
            buf_addf(&b, "%s%lld", v > s.there + 1 ? "," : "", (long long)v);
        buf_addc(&b, ']');
        if (s.there == s.known)
            output_string(&b, "functions", functions_names[s.functions]);
    } else
        say_status(&b, &s);
    return finish(&b, cli, err);
}

/* ---- validate ---- */

static int compare(struct store *st, struct report *r, struct error *err)
{
    struct schema_status s;
    if (!st->ops->validate)
        return err_set(err, ERR_CONFIG, "migrate validate is there for PostgreSQL only");
    if (st->ops->schema_status(st, &s, err) != 0)
        return -1;
    if (s.there == 0)
        return err_set(err, ERR_NOTOURS, "no outbox there; make one with `outbox migrate up`");
    if (s.there > s.known)
        return err_set(
            err, ERR_NEWER,
            "the outbox there has version %lld, this program knows up to %lld; use a newer outbox",
            (long long)s.there, (long long)s.known);
    if (s.there < s.known)
        report_say(r, FINDING_PROBLEM, "version", "run `outbox migrate up`",
                   "the outbox has version %lld, this program makes %lld", (long long)s.there,
                   (long long)s.known);
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

/* ---- gen ---- */

/* set_service: the name becomes part of a schema's, which is quoted, and the name of a consumer.
 * What could not be one is refused, with one that could, also with _outbox_dlq behind it, in
 * PostgreSQL. */
static int set_service(void *field, const char *value, const struct option_def *o,
                       struct error *err)
{
    char other[STORE_NAME_MAX + 1 - (sizeof "_outbox_dlq" - 1)];
    size_t n = 0;
    if (store_name_check(value, NULL) == 0)
        return option_text(field, value, o, err);
    if (!*value)
        return err_set(err, ERR_CONFIG, "the service's name is empty");
    bool gap = false;
    for (const char *p = value; *p && n + 1 < sizeof(other); p++) {
        bool good = isalnum((unsigned char)*p) || strchr("_.-", *p);
        if (good && gap && n > 0)
            other[n++] = '-';
        gap = !good;
        if (good && n + 1 < sizeof(other))
            other[n++] = *p;
    }
    other[n] = '\0';
    return err_set(err, ERR_CONFIG,
                   "\"%.100s\": a service's name has up to %d of A-Z a-z 0-9 _ . -%s%s%s", value,
                   STORE_NAME_MAX, n ? "; take \"" : "", other, n ? "\"" : "");
}

static const struct option_def gen_options[] = {
    {"tool", "plain|flyway|golang-migrate|alembic|rails", "plain",
     "migration tool to write files for", option_choice, ARG(gen.tool), .names = gen_tools},
    {"service", "NAME", NULL, "for this service: schema NAME_outbox, and a program to start from",
     set_service, ARG(gen.service)},
    {"out-dir", "DIR", NULL,
     "write files to DIR: the SQL and, for a service, outbox.ini, boot.c and a Makefile; existing "
     "files are kept",
     option_name, ARG(gen.out_dir)},
    {"json", NULL, "no", "with --out-dir: print the names of the files as JSON", option_bool,
     ARG(json), .env = true},
    OPTION_END,
};

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
