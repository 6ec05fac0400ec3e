/* gen.c: `migrate gen`, which prints the SQL of the outbox in the format of a migration tool, with
 * the files for a new service. A tool can run the output unchanged: all text that is not SQL is in
 * comments. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"
#include "extra/gen/skeleton.h"

struct gen_args {
    int tool; /* index into the tools of gen.c */
    const char *service, *out_dir;
};

#define PG_NAME_MAX 63
#define SQL_MAX ((size_t)4 << 20)

#define URL_MAX ((size_t)1 << 16)
#define START_MAX ((size_t)1 << 17)

/* (1) schema is empty if the store has no schemas. (2) out is the output for the tool. */
struct texts {
    struct buf up, down, schema, out;
};

/* ---- the formats of the tools ---- */

/* Appends a string in triple quotes. SQLAlchemy interprets a colon before a word as a parameter
 * unless a backslash escapes it. */
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

static const char *const gen_tools[] = {"plain",   "flyway", "golang-migrate",
                                        "alembic", "rails",  NULL};

/* The tools, in the order of gen_tools. In the templates, @version@ stands for the version of
 * outbox, @up@ and @down@ for the SQL, @UP@ and @DOWN@ for the SQL as a Python string. */
static const struct tool {
    const char *text;
    const char *comment;
    bool one_statement; /* its driver for SQLite runs only one statement at a time */
    const char *file;   /* file name with --out-dir */
    const char *down;   /* name of the file that reverts it; NULL if none */
} tools[] = {
    {"-- The tables and functions of outbox @version@.\n"
     "BEGIN;\n"
     "@up@COMMIT;\n",
     "-- ", false, "0001_outbox.sql", NULL},
    /* Flyway wraps each migration in a transaction. */
    {"-- V1__outbox.sql\n"
     "-- The tables and functions of outbox @version@.\n"
     "@up@",
     "-- ", false, "V1__outbox.sql", NULL},
    {"-- ==== 000001_outbox.up.sql ====\n"
     "-- The tables and functions of outbox @version@.\n"
     "BEGIN;\n"
     "@up@COMMIT;\n"
     "\n"
     "-- ==== 000001_outbox.down.sql ====\n"
     "BEGIN;\n"
     "@down@COMMIT;\n",
     "-- ", false, "000001_outbox.up.sql", "000001_outbox.down.sql"},
    {"\"\"\"The tables and functions of outbox @version@.\n"
     "\n"
     "Revision ID: outbox_0001\n"
     "Revises:\n"
     "\"\"\"\n"
     "from alembic import op\n"
     "\n"
     "revision = \"outbox_0001\"\n"
     "down_revision = None\n"
     "branch_labels = None\n"
     "depends_on = None\n"
     "\n"
     "UP = @UP@\n"
     "DOWN = @DOWN@\n"
     "\n"
     "def upgrade():\n"
     "    op.execute(UP)\n"
     "\n"
     "\n"
     "def downgrade():\n"
     "    op.execute(DOWN)\n",
     "# ", true, "outbox_0001.py", NULL},
    {"# db/migrate/20000101000001_create_outbox.rb\n"
     "# The tables and functions of outbox @version@.\n"
     "class CreateOutbox < ActiveRecord::Migration[6.1]\n"
     "  def up\n"
     "    execute <<~'SQL'\n"
     "@up@    SQL\n"
     "  end\n"
     "\n"
     "  def down\n"
     "    execute <<~'SQL'\n"
     "@down@    SQL\n"
     "  end\n"
     "end\n",
     "# ", true, "20000101000001_create_outbox.rb", NULL},
};

static void print_tool(const struct tool *tool, struct texts *t)
{
    struct buf *b = &t->out;
    const char *text = tool->text;
    for (;;) {
        size_t n = strcspn(text, "@");
        buf_add(b, text, n);
        if (text[n] == '\0')
            return;
        struct str name = {text + n + 1, strcspn(text + n + 1, "@")};
        if (str_is(name, "version"))
            buf_adds(b, outbox_version());
        else if (str_is(name, "up"))
            buf_add(b, t->up.p, t->up.n);
        else if (str_is(name, "down"))
            buf_add(b, t->down.p, t->down.n);
        else
            python_text(b, str_is(name, "UP") ? &t->up : &t->down);
        text = name.p + name.n + 1;
    }
}

static const struct gen_args *args_of(const struct cli *cli)
{
    return cli_own(cli);
}

static const struct tool *tool_of(const struct cli *cli)
{
    return &tools[args_of(cli)->tool];
}

/* ---- the files of a service ---- */

/* A URL that is safe to write to a file. */
struct shown_url {
    struct buf text;
    bool removed; /* the URL had a password */
};

/* Copies the URL up to its query, without the password before the host. Returns the query with its
 * question mark, or "". */
static const char *add_authority(struct shown_url *u, const char *url)
{
    const char *scheme_end = strstr(url, "://");
    const char *user = scheme_end ? scheme_end + 3 : url;
    const char *at = user + strcspn(user, "@/"); /* a password may contain a question mark */
    const char *from = url, *colon = NULL;
    if (*at == '@') {
        from = at;
        colon = memchr(user, ':', (size_t)(at - user));
    }

    const char *query = from + strcspn(from, "?");
    if (colon) {
        u->removed = true;
        buf_add(&u->text, url, (size_t)(colon - url));
        url = at;
    }
    buf_add(&u->text, url, (size_t)(query - url));
    return query;
}

/* Copies the parameters whose names do not contain "password". */
static void add_query(struct shown_url *u, const char *query)
{
    char glue = '?';
    while (*query) {
        const char *parameter = query + 1; /* after ? or & */
        size_t n = strcspn(parameter, "&");
        bool password = memmem(parameter, strcspn(parameter, "=&"), "password", 8);
        if (password) {
            u->removed = true;
        } else if (n > 0 || parameter[n]) {
            buf_addc(&u->text, glue);
            buf_add(&u->text, parameter, n);
            glue = '&';
        }
        query = parameter + n;
    }
}

/* Appends the schema of the service, unless the URL names a schema. Our names need no encoding. */
static void add_schema(struct shown_url *u, const char *service)
{
    const char *url = buf_cstr(&u->text);
    if (!url)
        return;
    bool named = strstr(url, "?schema=") || strstr(url, "&schema=");
    if (!named)
        buf_addf(&u->text, "%cschema=%s_outbox", strchr(url, '?') ? '&' : '?', service);
}

/* Prepares the URL of the store for a file: without its password, and with the schema of the
 * service. The caller releases its text. */
static void show_url(struct shown_url *u, const struct cli *cli, const struct texts *t)
{
    *u = (struct shown_url){.removed = false};
    buf_init(&u->text, URL_MAX);
    if (cli->settings.store) {
        const char *query = add_authority(u, cli->settings.store);
        add_query(u, query);
    } else {
        buf_addf(&u->text, "postgres:///%s", args_of(cli)->service);
    }
    if (t->schema.n)
        add_schema(u, args_of(cli)->service);
}

/* Returns the text of a URL; "" if out of memory, which the caller checks. */
static const char *shown_text(struct shown_url *u)
{
    const char *text = buf_cstr(&u->text);
    return text ? text : "";
}

/* Appends a config file for the service. */
static void add_ini(struct buf *b, const struct cli *cli, const struct texts *t)
{
    struct shown_url url;
    const char *service = args_of(cli)->service;
    show_url(&url, cli, t);

    buf_adds(b, "[outbox]\n");
    if (url.removed)
        buf_adds(b, "# the password belongs in ~/.pgpass or PGPASSWORD\n");
    buf_addf(b, "store = %s\n", shown_text(&url));
    buf_addf(b,
             "\n"
             "[consumer %s]\n"
             "# batch 50, poll 500ms, 8 attempts, lease 30s, receipts; options set here "
             "take precedence\n"
             "preset = dispatcher\n"
             "# where to deliver: `outbox help relay` lists the sinks\n"
             "sink = stdout:\n"
             "#sink = redis://127.0.0.1:6379/0?stream={type}&lease=lock:outbox:%s\n"
             "# which events: patterns such as order.*; the default is all of them\n"
             "#events = order.*\n",
             service, service);
    if (url.text.failed)
        b->failed = true;
    buf_release(&url.text);
}

/* Appends the lines of a text as comments; an empty line gets no trailing blank. */
static void add_commented(struct buf *b, const char *text, const char *comment)
{
    while (*text) {
        size_t n = strcspn(text, "\n");
        size_t mark = strlen(comment);
        if (n == 0)
            mark = strcspn(comment, " ");
        buf_add(b, comment, mark);
        buf_add(b, text, n);
        buf_addc(b, '\n');
        text += n;
        if (*text)
            text++;
    }
}

/* Appends, in comments, a config file and commands to start a service. */
static void add_start(const struct cli *cli, struct texts *t)
{
    struct buf b;
    buf_init(&b, START_MAX);
    buf_adds(&b, "==== outbox.ini ====\n");
    add_ini(&b, cli, t);
    buf_addf(&b,
             "==== to start %s ====\n"
             "outbox -c outbox.ini init      # does nothing if the SQL above was run\n"
             "outbox -c outbox.ini doctor    # reports problems\n"
             "outbox -c outbox.ini relay     # delivers until stopped\n",
             args_of(cli)->service);

    buf_addc(&t->out, '\n');
    if (buf_cstr(&b))
        add_commented(&t->out, b.p, tool_of(cli)->comment);
    if (b.failed)
        t->out.failed = true;
    buf_release(&b);
}

/* ---- writing files ---- */

#define FILES 5

/* The files to write. (1) The first n have a name. */
struct files {
    const char *dir;
    struct skeleton_file file[FILES];
    const struct skeleton_file *list; /* file */
    size_t n;
};

/* Adds a file and returns its text, which the caller fills in. */
static struct buf *files_add(struct files *f, const char *name)
{
    struct skeleton_file *one = &f->file[f->n++];
    one->name = name;
    return &one->text;
}

/* Splits the output for a tool into its files. */
static void add_sql(struct files *f, const struct cli *cli, const struct texts *t)
{
    const struct tool *tool = tool_of(cli);
    const char *text = t->out.p, *end = t->out.p + t->out.n;
    struct buf *up = files_add(f, tool->file);
    if (!tool->down) {
        buf_add(up, text, t->out.n);
        return;
    }

    char mark[64];
    snprintf(mark, sizeof(mark), "-- ==== %s ====\n", tool->down);
    const char *first = (char *)memchr(text, '\n', t->out.n) + 1;
    const char *second = memmem(text, t->out.n, mark, strlen(mark));
    buf_add(up, first, (size_t)(second - first));
    second += strlen(mark);
    buf_add(files_add(f, tool->down), second, (size_t)(end - second));
}

static const struct listing_field fields_file[] = {
    {"name", LISTING_TEXT, .at = offsetof(struct skeleton_file, name), "name of the file"},
    {"written", LISTING_BOOL, .at = offsetof(struct skeleton_file, is_new),
     "false: it already existed with this content"},
    {NULL},
};

const struct listing_field fields_gen[] = {
    {"dir", LISTING_TEXT, .at = offsetof(struct files, dir), "the directory"},
    {"files", LISTING_LIST, .at = offsetof(struct files, list), "files in the directory",
     .sub = fields_file, .also = offsetof(struct files, n), .size = sizeof(struct skeleton_file)},
    {NULL},
};

static void files_text(struct buf *b, const void *row)
{
    const struct files *f = row;
    for (size_t i = 0; i < f->n; i++) {
        output_addf(b, "%s/%s", f->dir, f->file[i].name);
        if (!f->file[i].is_new)
            buf_adds(b, ": unchanged");
        buf_addc(b, '\n');
    }
}

static int write_files(const struct cli *cli, const struct texts *t, struct error *err)
{
    struct files f;
    if (t->out.failed)
        return err_nomem(err);

    f = (struct files){.dir = args_of(cli)->out_dir, .list = f.file};
    for (size_t i = 0; i < FILES; i++)
        buf_init(&f.file[i].text, SQL_MAX);
    add_sql(&f, cli, t);
    if (args_of(cli)->service) {
        add_ini(files_add(&f, "outbox.ini"), cli, t);
        struct shown_url url;
        struct buf *program = files_add(&f, "boot.c");
        show_url(&url, cli, t);
        skeleton_program(program, args_of(cli)->service, shown_text(&url));
        if (url.text.failed)
            program->failed = true;
        buf_release(&url.text);
        skeleton_makefile(files_add(&f, "Makefile"));
    }
    int r = skeleton_write(args_of(cli)->out_dir, f.file, f.n, err);
    if (r == 0)
        r = output_result(cli, fields_gen, &f, files_text, err);
    for (size_t i = 0; i < FILES; i++)
        buf_release(&f.file[i].text);
    return r;
}

/* ---- options ---- */

/* The maximum length of a service's name, with its NUL: followed by "_outbox_dlq", the name must
 * still fit into a PostgreSQL identifier. */
#define SERVICE_SIZE (STORE_NAME_MAX + 1 - (sizeof "_outbox_dlq" - 1))

/* Suggests a valid name: each run of invalid characters becomes a dash, except at either end. */
static void suggest_service(const char *value, char out[SERVICE_SIZE])
{
    size_t n = 0;
    bool gap = false;
    for (const char *p = value; *p && n + 1 < SERVICE_SIZE; p++) {
        bool good = isalnum((unsigned char)*p) || strchr("_.-", *p);
        if (good && gap && n > 0)
            out[n++] = '-';
        if (good && n + 1 < SERVICE_SIZE)
            out[n++] = *p;
        gap = !good;
    }
    out[n] = '\0';
}

/* Accepts a name that is valid inside a schema's name, which is quoted, and inside a consumer's
 * name. */
static int set_service(void *field, const char *value, const struct option_def *o,
                       struct error *err)
{
    if (store_name_check(value, NULL) == 0)
        return option_text(field, value, o, err);
    if (!*value)
        return err_set(err, ERR_CONFIG, "the service's name is empty");

    char other[SERVICE_SIZE], hint[SERVICE_SIZE + 20] = "";
    suggest_service(value, other);
    if (*other)
        snprintf(hint, sizeof(hint), "; use \"%s\"", other);
    return err_set(err, ERR_CONFIG,
                   "\"%.100s\": a service's name has up to %d characters of A-Z a-z 0-9 _ . -%s",
                   value, STORE_NAME_MAX, hint);
}

const struct option_def gen_options[] = {
    {"tool", "plain|flyway|golang-migrate|alembic|rails", "plain",
     "migration tool to write files for", option_choice, OWN(gen_args, tool), .names = gen_tools},
    {"service", "NAME", NULL,
     "generate for this service: the schema NAME_outbox, and a starter program", set_service,
     OWN(gen_args, service)},
    {"out-dir", "DIR", NULL,
     "write files to DIR: the SQL and, for a service, outbox.ini, boot.c and a Makefile; "
     "existing files are never overwritten",
     option_name, OWN(gen_args, out_dir)},
    {"json", NULL, "no", "with --out-dir: print the names of the files as JSON", option_bool,
     ARG(json), .env = true},
    OPTION_END,
};

/* ---- the command ---- */

/* Checks whether PostgreSQL allows the schema NAME_outbox and its view NAME_outbox_dlq. Both are
 * quoted, so any other name is fine. */
static int check_service(const char *service, struct error *err)
{
    size_t n = strlen(service), room = PG_NAME_MAX - strlen("_outbox_dlq");
    if (n > room)
        return commands_usage(err,
                              "--service: \"%s\" is %zu bytes too long; followed by _outbox_dlq, a "
                              "name may have at most %d",
                              service, n - room, PG_NAME_MAX);
    if (strncmp(service, "pg_", 3) == 0)
        return commands_usage(err,
                              "--service: \"%s\": PostgreSQL reserves names that begin with pg_; "
                              "use another",
                              service);
    return 0;
}

/* Reads the SQL from the store, after checking that store and tool support the request. */
static int read_ddl(const struct cli *cli, struct texts *t, struct error *err)
{
    char schema[STORE_NAME_MAX + 16];
    const char *url = cli->settings.store ? cli->settings.store : "postgres:///";
    const char *service = args_of(cli)->service;
    const struct store_ops *kind = store_kind(url);
    struct ddl_request req = {.url = url, .up = &t->up, .down = &t->down, .ret_schema = &t->schema};
    if (service) {
        snprintf(schema, sizeof(schema), "%s_outbox", service);
        req.schema = schema;
    }

    if (!kind || !kind->ddl)
        return err_set(err, ERR_CONFIG, "migrate gen has no SQL for this store");
    if (cli->args.json && !args_of(cli)->out_dir)
        return commands_usage(err, "--json requires --out-dir");
    bool has_schemas = kind->caps & STORE_REMOTE;
    if (has_schemas && service && check_service(service, err) != 0)
        return -1;
    if (kind->ddl(&req, err) != 0)
        return -1;

    if (t->schema.n == 0 && tool_of(cli)->one_statement)
        return err_set(err, ERR_CONFIG,
                       "%s runs one statement at a time on SQLite; use --tool plain, flyway or "
                       "golang-migrate, or run `outbox init`",
                       gen_tools[args_of(cli)->tool]);
    return 0;
}

/* Prints the SQL, or writes it and the files of a service with --out-dir. */
static int emit_texts(const struct cli *cli, struct texts *t, struct error *err)
{
    print_tool(tool_of(cli), t);
    if (args_of(cli)->out_dir)
        return write_files(cli, t, err);
    if (args_of(cli)->service)
        add_start(cli, t);
    /* An escaped name would be a different name. */
    if (!text_shown((struct str){t->out.p, t->out.n}, "\n"))
        return err_set(err, ERR_CONFIG,
                       "a name in the SQL has an unprintable character; --out-dir DIR "
                       "writes the SQL to a file");
    return output_flush(&t->out, err);
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
        r = emit_texts(cli, &t, err);
    buf_release(&t.out);
    buf_release(&t.schema);
    buf_release(&t.down);
    buf_release(&t.up);
    return r;
}
