/* cmd_migrate.c: outbox init, which creates the outbox or upgrades it, and outbox migrate, which
 * does the same, compares the schema with this program's, and generates it for other tools. */
#include "cli/cli.h"

/* For `init` and `migrate up`. */
struct init_args {
    bool replace;
    int64_t lock_ms;
};

static const struct option_def json_options[] = {OPTION_JSON, OPTION_END};
static const struct option_def up_options[] = {
    {"wait", "DURATION", "10m", "how long to keep trying while a long transaction uses the outbox",
     option_span, OWN(init_args, lock_ms)},
    {"replace", NULL, "no",
     "install this version's functions even if a later build has replaced them", option_bool,
     OWN(init_args, replace)},
    OPTION_JSON,
    OPTION_END,
};

/* ---- init, up and status ---- */

/* An outbox and its version. (1) changed and from are about `init` and `migrate up`. */
struct migrated {
    const char *store;
    struct schema_status s;
    const char *functions; /* NULL: the versions differ */
    int64_t from;
    bool changed;
};

/* by enum functions_status */
static const char *const functions_names[] = {"same", "older", "newer"};

static void add_pending(struct buf *b, const void *row)
{
    const struct schema_status *s = &((const struct migrated *)row)->s;
    buf_addc(b, '[');
    for (int64_t v = s->there + 1; v <= s->known; v++) {
        if (v > s->there + 1)
            buf_addc(b, ',');
        buf_addi64(b, v);
    }
    buf_addc(b, ']');
}

#define AT(member) .at = offsetof(struct migrated, member)
#define STORE \
    { \
        "store", LISTING_TEXT, AT(store), "URL of the store, without the password" \
    }
static const struct listing_field fields_inited[] = {
    STORE,
    {"created", LISTING_BOOL, AT(changed), "whether anything was changed"},
    {NULL},
};
static const struct listing_field fields_up[] = {
    STORE,
    {"from", LISTING_INT, AT(from), "the version before"},
    {"to", LISTING_INT, AT(s.known), "the version now"},
    {"changed", LISTING_BOOL, AT(changed), "whether anything was changed"},
    {NULL},
};
static const struct listing_field fields_migration[] = {
    STORE,
    {"version", LISTING_INT, AT(s.there), "the installed version; 0: there is no outbox"},
    {"known", LISTING_INT, AT(s.known), "the version this program installs"},
    {"pending", LISTING_OWN, .json = add_pending, .kind = "array of integers",
     .help = "versions to upgrade through"},
    {"functions", LISTING_TEXT, AT(functions),
     "the installed functions: same, older or newer than this program's", .optional = true},
    {NULL},
};
#undef STORE
#undef AT

/* Describes the result; `from` is the schema version before. */
static void up_text(struct buf *b, const void *row)
{
    const struct migrated *m = row;
    const struct schema_status *s = &m->s;
    bool changed = m->changed;
    long long there = (long long)s->there, known = (long long)s->known;
    output_addf(b, "%s: ", m->store);
    if (!changed && s->functions == FUNCTIONS_NEWER)
        buf_addf(b, "already at version %lld; the functions are from a later build and are kept",
                 known);
    else if (!changed)
        buf_addf(b, "already at version %lld; nothing to do", known);
    else if (there == known)
        buf_addf(b, "already at version %lld; the functions were updated", known);
    else if (there == 0)
        buf_addf(b, "created an outbox of version %lld", known);
    else
        buf_addf(b, "upgraded from version %lld to %lld", there, known);
    buf_addc(b, '\n');
}

static void inited_text(struct buf *b, const void *row)
{
    const struct migrated *m = row;
    if (m->changed)
        output_addf(b, "%s: the outbox is ready\n", m->store);
    else
        output_addf(b, "%s: already has an outbox of this version; nothing to do\n", m->store);
}

/* `init` and `migrate up`, which also reports the versions before and after. */
static int create_run(struct cli *cli, struct error *err)
{
    const struct init_args *a = cli_own(cli);
    struct store_options opt = {.create = true, .replace = a->replace, .lock_ms = a->lock_ms};
    struct migrated m = {.changed = false};
    bool up = cli->cmd != cmd_init;
    if (opt.lock_ms == 0)
        opt.lock_ms = 1; /* --wait 0s tries once; to the store, 0 means its default */
    if (commands_open(cli, opt, err) != 0)
        return -1;
    if (up && cli->st->ops->schema_status(cli->st, &m.s, err) != 0)
        return -1;
    if (cli->st->ops->init(cli->st, &m.changed, err) != 0)
        return -1;
    if (output_masked(cli, cli->settings.store, &m.store, err) != 0)
        return -1;
    m.from = m.changed ? m.s.there : m.s.known;
    return output_result(cli, up ? fields_up : fields_inited, &m, up ? up_text : inited_text, err);
}

/* Compares versions first, and functions only if the versions agree. */
static void status_text(struct buf *b, const void *row)
{
    const struct migrated *m = row;
    const struct schema_status *s = &m->s;
    int64_t pending = s->known - s->there;
    output_addf(b, "%s: ", m->store);
    if (s->there == 0)
        buf_adds(b, "no outbox");
    else
        buf_addf(b, "version %lld", (long long)s->there);
    buf_addf(b, "; this program needs %lld: ", (long long)s->known);

    if (pending > 0)
        buf_addf(b, "%s pending; run `outbox migrate up`", human_count(pending, "step"));
    else if (pending < 0)
        buf_adds(b, "the installed version is newer than this program; use a newer outbox");
    else if (s->functions == FUNCTIONS_OLDER)
        buf_adds(b, "the functions are from an earlier build; run `outbox migrate up`");
    else if (s->functions == FUNCTIONS_NEWER)
        buf_adds(b,
                 "the functions are from a later build, which replaced this program's; nothing is "
                 "pending");
    else
        buf_adds(b, "nothing is pending");
    buf_addc(b, '\n');
}

static int migrate_status(struct cli *cli, struct error *err)
{
    struct migrated m = {.changed = false};
    if (cli->st->ops->schema_status(cli->st, &m.s, err) != 0)
        return -1;
    if (output_masked(cli, cli->settings.store, &m.store, err) != 0)
        return -1;
    if (m.s.there == m.s.known)
        m.functions = functions_names[m.s.functions];
    return output_result(cli, fields_migration, &m, status_text, err);
}

/* ---- validate ---- */

/* Reports how the schema differs from this version's. A newer schema cannot be compared. */
static int compare_schema(struct store *st, struct report *r, struct error *err)
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
            "the outbox has version %lld, but this program knows only versions up to %lld; use a "
            "newer outbox",
            there, known);
    if (there < known)
        output_finding(r, FINDING_PROBLEM, "version", "run `outbox migrate up`",
                       "the outbox has version %lld; this program needs %lld", there, known);
    return st->ops->validate(st, output_finding_visit, r, err);
}

static int migrate_validate(struct cli *cli, struct error *err)
{
    struct report r;
    output_report_start(&r, cli);
    int bad = compare_schema(cli->st, &r, err);
    if (bad == 0)
        bad = output_report_end(&r, err);
    output_report_release(&r);
    return bad;
}

const struct command cmd_init[] = {
    {"init", NULL, NULL, "create the outbox tables, or upgrade them", .options = up_options,
     .json = JSON_OBJECT(fields_inited), .run = create_run},
    {NULL},
};

const struct command cmd_migrate[] = {
    {"migrate", "up", NULL, "create or upgrade the tables, like init", .options = up_options,
     .json = JSON_OBJECT(fields_up), .run = create_run},
    {"migrate", "status", NULL, "show the installed version and pending migrations",
     .options = json_options, .opens = OPENS_ANY_VERSION, .json = JSON_OBJECT(fields_migration),
     .run = migrate_status},
    {"migrate", "validate", NULL,
     "compare the installed schema with this version's; exit status 1 if they differ",
     .options = json_options, .opens = OPENS_ANY_VERSION, .json = JSON_OBJECT(fields_report),
     .run = migrate_validate},
    {"migrate", "gen", NULL,
     "print the SQL, or write it to files for a migration tool or a service; needs no database",
     .options = gen_options, .json = JSON_OBJECT(fields_gen), .run = gen},
    {NULL},
};
