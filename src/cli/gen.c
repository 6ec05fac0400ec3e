/* gen.c: the outbox's SQL in the form other tools want it, and what to start a service with. What
 * is printed can be run by the tool as it is: what is no SQL stands in comments. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/skeleton.h"

#define PG_NAME_MAX 63
#define SQL_MAX ((size_t)4 << 20)

struct texts {
    struct buf up, down, schema, out;
};

/* ---- one for each tool ---- */

static void plain(struct texts *t)
{
    buf_addf(&t->out, "-- The tables and functions of outbox %s.\nBEGIN;\n", outbox_version());
    buf_add(&t->out, t->up.p, t->up.n);
    buf_adds(&t->out, "COMMIT;\n");
}

/* Flyway brings its own transaction. */
static void flyway(struct texts *t)
{
    buf_addf(&t->out, "-- V1__outbox.sql\n-- The tables and functions of outbox %s.\n",
             outbox_version());
    buf_add(&t->out, t->up.p, t->up.n);
}

static void golang_migrate(struct texts *t)
{
    buf_addf(
        &t->out,
        "-- ==== 000001_outbox.up.sql ====\n-- The tables and functions of outbox %s.\nBEGIN;\n",
        outbox_version());
    buf_add(&t->out, t->up.p, t->up.n);
    buf_adds(&t->out, "COMMIT;\n\n-- ==== 000001_outbox.down.sql ====\nBEGIN;\n");
    buf_add(&t->out, t->down.p, t->down.n);
    buf_adds(&t->out, "COMMIT;\n");
}

/* python_text writes a string between triple quotes. A colon before a word is a parameter to
 * SQLAlchemy, unless there is a backslash before it. */
static void python_text(struct buf *b, const struct buf *sql)
{
    buf_adds(b, "\"\"\"\n");
    for (size_t i = 0; i < sql->n; i++) {
        char c = sql->p[i];
        if (c == '\\')
            buf_adds(b, "\\\\");
        else if (c == ':')
            buf_adds(b, "\\\\:");
        else if (c == '"' && i + 1 < sql->n && sql->p[i + 1] == '"')
            buf_adds(b, "\\\"");
        else
            buf_addc(b, c);
    }
    buf_adds(b, "\"\"\"\n");
}

static void alembic(struct texts *t)
{
    buf_addf(&t->out,
             "\"\"\"The tables and functions of outbox %s.\n\nRevision ID: "
             "outbox_0001\nRevises:\n\"\"\"\n"
             "from alembic import op\n\nrevision = \"outbox_0001\"\ndown_revision = "
             "None\nbranch_labels = None\n"
             "depends_on = None\n\nUP = ",
             outbox_version());
    python_text(&t->out, &t->up);
    buf_adds(&t->out, "\nDOWN = ");
    python_text(&t->out, &t->down);
    buf_adds(
        &t->out,
        "\n\ndef upgrade():\n    op.execute(UP)\n\n\ndef downgrade():\n    op.execute(DOWN)\n");
}

static void rails(struct texts *t)
{
    buf_addf(
        &t->out,
        "# db/migrate/20000101000001_create_outbox.rb\n# The tables and functions of outbox %s.\n"
        "class CreateOutbox < ActiveRecord::Migration[6.1]\n  def up\n    execute <<~'SQL'\n",
        outbox_version());
    buf_add(&t->out, t->up.p, t->up.n);
    buf_adds(&t->out, "    SQL\n  end\n\n  def down\n    execute <<~'SQL'\n");
    buf_add(&t->out, t->down.p, t->down.n);
    buf_adds(&t->out, "    SQL\n  end\nend\n");
}

const char *const gen_tools[] = {"plain", "flyway", "golang-migrate", "alembic", "rails", NULL};

static const struct {
    void (*print)(struct texts *t);
    const char *comment;
    bool one_statement; /* its driver for SQLite runs only one at a time */
    /* with --out-dir; NULL: the one file goes both ways, or there is no way back */
    const char *file, *way_back;
} tools[] = {
    {plain, "-- ", false, "0001_outbox.sql", NULL},
    {flyway, "-- ", false, "V1__outbox.sql", NULL},
    {golang_migrate, "-- ", false, "000001_outbox.up.sql", "000001_outbox.down.sql"},
    {alembic, "# ", true, "outbox_0001.py", NULL},
    {rails, "# ", true, "20000101000001_create_outbox.rb", NULL},
};

/* ---- to start a service with ---- */

/* without_password copies a URL without the password before its host, and without parameters of
 * that name. */
static void without_password(struct buf *b, const char *url, bool *removed)
{
    const char *start = strstr(url, "://"), *user = start ? start + 3 : url;
    const char *at = user + strcspn(user, "@/"); /* a password may hold a question mark */
    const char *colon = *at == '@' ? memchr(user, ':', (size_t)(at - user)) : NULL;
    const char *rest = colon ? at : url;
    char glue = '?';
    if (colon)
        buf_add(b, url, (size_t)(colon - url));
    *removed = colon != NULL;
    const char *query = strchr(*at == '@' ? at : url, '?');
    buf_add(b, rest, query ? (size_t)(query - rest) : strlen(rest));
    for (const char *p = query ? query + 1 : ""; *p;) {
        size_t n = strcspn(p, "&");
        if (memmem(p, strcspn(p, "=&"), "password", 8))
            *removed = true;
        else {
            buf_addc(b, glue);
            buf_add(b, p, n);
            glue = '&';
        }
        p += n + (p[n] == '&');
    }
}

/* add_url appends the store's URL as it may stand in a file: without its password, and with the
 * service's schema. */
static void add_url(struct buf *b, const struct cli *cli, const struct texts *t, bool *removed)
{
    size_t start = b->n;
    if (cli->settings.store)
        without_password(b, cli->settings.store, removed);
    else
        buf_addf(b, "postgres:///%s", cli->args.gen.service);
    const char *given = buf_cstr(b);
    if (!given)
        return;
    given += start;
    /* A name of ours needs no encoding; any other stands in the URL already. */
    bool named = strstr(given, "?schema=") || strstr(given, "&schema=");
    if (t->schema.n && !named)
        buf_addf(b, "%cschema=%s_outbox", strchr(given, '?') ? '&' : '?', cli->args.gen.service);
}

static void add_ini(struct buf *b, const struct cli *cli, const struct texts *t)
{
    struct buf url;
    bool removed = false;
    const char *service = cli->args.gen.service;
    buf_init(&url, 1 << 16);
    add_url(&url, cli, t, &removed);
    buf_adds(b, "[outbox]\n");
    if (removed)
        buf_adds(b, "# the password belongs into ~/.pgpass or PGPASSWORD\n");
    buf_addf(b, "store = %s\n", buf_cstr(&url) ? url.p : "");
    buf_addf(
        b,
        "\n[consumer %s]\n# batch 50, poll 500ms, 8 attempts, lease 30s, receipts; what is set "
        "here wins\n"
        "preset = dispatcher\n# where to deliver: `outbox help relay` lists the sinks\nsink = "
        "stdout:\n"
        "#sink = redis://127.0.0.1:6379/0?stream={type}&lease=lock:outbox:%s\n"
        "# which events: patterns such as order.*; all of them if left out\n#events = order.*\n",
        service, service);
    if (url.failed)
        b->failed = true;
    buf_release(&url);
}

/* start_up appends the skeleton, line by line in comments. */
static void start_up(const struct cli *cli, struct texts *t, const char *comment)
{
    struct buf b;
    buf_init(&b, 1 << 17);
    buf_adds(&b, "==== outbox.ini ====\n");
    add_ini(&b, cli, t);
    buf_addf(&b,
             "==== to start %s ====\n"
             "outbox -c outbox.ini init      # does nothing where the SQL above was run\n"
             "outbox -c outbox.ini doctor    # says whether all is well\n"
             "outbox -c outbox.ini relay     # delivers, until it is told to stop\n",
             cli->args.gen.service);
    buf_addc(&t->out, '\n');
    for (const char *p = buf_cstr(&b); p && *p;) {
        size_t n = strcspn(p, "\n");
        size_t mark = n ? strlen(comment) : strcspn(comment, " ");
        buf_add(&t->out, comment, mark);
        buf_add(&t->out, p, n);
        buf_addc(&t->out, '\n');
        p += n + (p[n] == '\n');
    }
    if (b.failed)
        t->out.failed = true;
    buf_release(&b);
}

/* ---- into files ---- */

#define FILES 5

/* add_sql splits what a tool's printer wrote into the files it stands for. */
static size_t add_sql(const struct cli *cli, const struct texts *t, struct skeleton_file *f)
{
    const char *back = tools[cli->args.gen.tool].way_back, *text = t->out.p;
    size_t n = t->out.n;
    char mark[64];
    f[0].name = tools[cli->args.gen.tool].file;
    if (!back) {
        buf_add(&f[0].text, text, n);
        return 1;
    }
    snprintf(mark, sizeof(mark), "-- ==== %s ====\n", back);
    const char *first = memchr(text, '\n', n);
    const char *second = memmem(text, n, mark, strlen(mark));
    buf_add(&f[0].text, first + 1, (size_t)(second - first - 1));
    f[1].name = back;
    second += strlen(mark);
    buf_add(&f[1].text, second, n - (size_t)(second - text));
    return 2;
}

static void add_program(const struct cli *cli, const struct texts *t, struct buf *b)
{
    struct buf url;
    bool removed = false;
    buf_init(&url, 1 << 16);
    add_url(&url, cli, t, &removed);
    skeleton_program(b, cli->args.gen.service, buf_cstr(&url) ? url.p : "");
    if (url.failed)
        b->failed = true;
    buf_release(&url);
}

static int say_files(const struct cli *cli, const struct skeleton_file *f, size_t n,
                     struct error *err)
{
    struct buf b;
    buf_init(&b, OUTPUT_MAX);
    if (cli->args.json) {
        buf_addc(&b, '{');
        output_string(&b, "dir", cli->args.gen.out_dir);
        output_member(&b, "files");
        buf_addc(&b, '[');
    }
    for (size_t i = 0; i < n; i++) {
        if (!cli->args.json) {
            buf_addf(&b, "%s/%s%s\n", cli->args.gen.out_dir, f[i].name,
                     f[i].there ? ": as it was" : "");
            continue;
        }
        buf_adds(&b, i ? ",{" : "{");
        output_string(&b, "name", f[i].name);
        output_bool(&b, "written", !f[i].there);
        buf_addc(&b, '}');
    }
    if (cli->args.json)
        buf_adds(&b, "]}\n");
    int r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

static int write_files(const struct cli *cli, const struct texts *t, struct error *err)
{
    struct skeleton_file f[FILES] = {{0}};
    for (size_t i = 0; i < FILES; i++)
        buf_init(&f[i].text, SQL_MAX);
    if (t->out.failed)
        return err_nomem(err);

    size_t n = add_sql(cli, t, f);
    if (cli->args.gen.service) {
        f[n].name = "outbox.ini";
        add_ini(&f[n++].text, cli, t);
        f[n].name = "boot.c";
        add_program(cli, t, &f[n++].text);
        f[n].name = "Makefile";
        skeleton_makefile(&f[n++].text);
    }
    int r = skeleton_write(cli->args.gen.out_dir, f, n, err);
    if (r == 0)
        r = say_files(cli, f, n, err);
    for (size_t i = 0; i < FILES; i++)
        buf_release(&f[i].text);
    return r;
}

/* ---- all of it ---- */

/* check_schema: the schema is NAME_outbox, and has a view NAME_outbox_dlq. Quotes make everything
 * else a name. */
static int check_schema(const struct cli *cli, struct error *err)
{
    const char *service = cli->args.gen.service;
    if (!service)
        return 0;
    size_t room = PG_NAME_MAX - strlen("_outbox_dlq");
    if (strlen(service) > room)
        return options_usage(err,
                             "--service: \"%s\" is too long by %zu: with _outbox_dlq behind it a "
                             "name has at most %d bytes",
                             service, strlen(service) - room, PG_NAME_MAX);
    if (strncmp(service, "pg_", 3) == 0)
        return options_usage(
            err, "--service: \"%s\": names that begin with pg_ are PostgreSQL's own; take another",
            service);
    return 0;
}

static int read_ddl(const struct cli *cli, struct texts *t, struct error *err)
{
    char schema[STORE_NAME_MAX + 16];
    const char *url = cli->settings.store ? cli->settings.store : "postgres:///";
    const struct store_ops *kind = store_kind(url);
    if (cli->args.gen.service)
        snprintf(schema, sizeof(schema), "%s_outbox", cli->args.gen.service);
    struct ddl_request req = {.url = url,
                              .schema = cli->args.gen.service ? schema : NULL,
                              .up = &t->up,
                              .down = &t->down,
                              .ret_schema = &t->schema};
    if (!kind || !kind->ddl)
        return err_set(err, ERR_CONFIG, "migrate gen has no SQL for this store");
    if (cli->args.json && !cli->args.gen.out_dir)
        return options_usage(err, "--json is for --out-dir, which writes files");
    bool has_schema = kind->caps & STORE_REMOTE;
    if (has_schema && check_schema(cli, err) != 0)
        return -1;
    if (kind->ddl(&req, err) != 0)
        return -1;
    if (t->schema.n == 0 && tools[cli->args.gen.tool].one_statement)
        return err_set(err, ERR_CONFIG,
                       "%s runs one statement at a time on SQLite; take --tool plain, flyway or "
                       "golang-migrate, or run `outbox init`",
                       gen_tools[cli->args.gen.tool]);
    return 0;
}

int gen(struct cli *cli, struct error *err)
{
    struct texts t;
    buf_init(&t.up, SQL_MAX);
    buf_init(&t.down, SQL_MAX);
    buf_init(&t.schema, 1024);
    buf_init(&t.out, 2 * SQL_MAX);
    int r = read_ddl(cli, &t, err);
    if (r == 0)
        tools[cli->args.gen.tool].print(&t);
    if (r == 0 && cli->args.gen.out_dir) {
        r = write_files(cli, &t, err);
    } else if (r == 0) {
        if (cli->args.gen.service)
            start_up(cli, &t, tools[cli->args.gen.tool].comment);
        r = output_flush(&t.out, err);
    }
    buf_release(&t.out);
    buf_release(&t.schema);
    buf_release(&t.down);
    buf_release(&t.up);
    return r;
}
