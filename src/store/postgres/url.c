/* url.c: parsing a postgres: URL. Three parameters of its query part are ours (schema, tenant,
 * answer_timeout); everything else is libpq's. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/num.h"
#include "base/text.h"
#include "base/url.h"
#include "store/postgres/postgres.h"

#define ANSWER_MS 60000
#define NAME_MAX_BYTES 63             /* of an identifier; PostgreSQL truncates longer ones */
#define NOWHERE "/nonexistent/outbox" /* a socket that does not exist */

/* ---- splitting ---- */

static int not_understood(struct error *err)
{
    return err_set(err, ERR_CONFIG,
                   "the postgres: URL cannot be understood: write "
                   "postgres://USER@HOST:PORT/DB?schema=NAME, with special characters as %%XX "
                   "(even in a password), and libpq's options as parameters");
}

/* Finds the URL's query part; *ret is NULL if it has none. A password may contain a question mark,
 * but no bare @ or /: libpq would split it there, and a message could quote a part of it. */
static int find_query(const char *url, const char **ret, struct error *err)
{
    const char *rest = url;
    const char *start = strstr(url, "://");
    if (start)
        rest = start + 3;
    const char *user_end = rest + strcspn(rest, "@/");
    if (*user_end == '@')
        rest = user_end + 1;

    const char *query = strchr(rest, '?');
    const char *second_at = strchr(rest, '@');
    if (second_at && (!query || second_at < query))
        return not_understood(err);
    *ret = query;
    return 0;
}

/* Copies the content of b; NULL if anything was lost. */
static char *copy_of(struct buf *b)
{
    const char *text = buf_cstr(b);
    return text ? strdup(text) : NULL;
}

/* Reads our parameters and appends the others to b. False: a value of ours is empty or malformed.
 */
static bool split_query(struct pg_store *st, char **answer, const char *query, struct buf *b)
{
    static const char *const names[] = {"schema=", "tenant=", "answer_timeout="};
    char **to[] = {&st->schema, &st->tenant, answer};
    bool ok = true;
    char glue = '?';
    for (const char *p = query; *p;) {
        size_t n = strcspn(p, "&");
        int i = 0;
        while (i < 3 && strncmp(p, names[i], strlen(names[i])) != 0)
            i++;
        if (i < 3) {
            size_t name = strlen(names[i]);
            free(*to[i]);
            *to[i] = url_decoded((struct str){p + name, n - name});
            ok = ok && *to[i] && **to[i];
        } else {
            buf_addc(b, glue);
            buf_add(b, p, n);
            glue = '&';
        }
        p += n;
        if (*p == '&')
            p++;
    }
    return ok;
}

/* Separates our parameters from libpq's. */
static int split_url(struct pg_store *st, struct error *err)
{
    const char *url = st->url;
    struct buf b;
    const char *query = NULL;
    char *answer = NULL; /* the value of answer_timeout */
    bool ok = true;
    if (find_query(url, &query, err) != 0)
        return -1;

    buf_init(&b, 1 << 16);
    if (query) {
        buf_add(&b, url, (size_t)(query - url));
        ok = split_query(st, &answer, query + 1, &b);
    } else {
        buf_adds(&b, url);
    }
    st->conninfo = copy_of(&b);
    buf_release(&b);

    int result = 0;
    st->answer_ms = ANSWER_MS;
    if (!ok)
        result = err_set(err, ERR_CONFIG,
                         "the store's schema, tenant or answer_timeout is empty or not properly "
                         "percent-encoded");
    else if (answer && text_duration(answer, &st->answer_ms, err) != 0)
        result = err_prefix(err, "answer_timeout in the store's URL");
    else if (!st->conninfo)
        result = err_nomem(err);
    free(answer);
    return result;
}

/* ---- libpq's part ---- */

static bool names_host(const PQconninfoOption *o)
{
    return strcmp(o->keyword, "host") == 0 || strcmp(o->keyword, "hostaddr") == 0;
}

/* Has libpq check its own options, which it does before it connects. So the hosts are replaced by
 * nonexistent ones, and any error that does not name these is a mistake in the URL, which a retry
 * would not solve. The list of hosts must be as long as the list of ports. */
static int check_options(const struct pg_store *st, const PQconninfoOption *opts, struct error *err)
{
    size_t hosts = 1;
    for (const PQconninfoOption *o = opts; o->keyword; o++) {
        if (!names_host(o) || !o->val)
            continue;
        size_t n = 1;
        for (const char *p = strchr(o->val, ','); p; p = strchr(p + 1, ','))
            n++;
        hosts = max_size(hosts, n);
    }

    struct buf b;
    buf_init(&b, 1 << 16);
    buf_adds(&b, NOWHERE);
    for (size_t i = 1; i < hosts; i++)
        buf_adds(&b, "," NOWHERE);
    const char *const names[] = {"dbname", "host", "hostaddr", NULL};
    const char *const values[] = {st->conninfo, buf_cstr(&b), "", NULL};
    if (!values[1]) {
        buf_release(&b);
        return err_nomem(err);
    }
    PGconn *conn = PQconnectStartParams(names, values, 1);
    buf_release(&b);

    int result = 0;
    const char *said = "";
    if (conn && PQstatus(conn) == CONNECTION_BAD)
        said = PQerrorMessage(conn);
    bool refused = *said && !strstr(said, NOWHERE);
    if (refused)
        result = err_set(err, ERR_CONFIG, "%s: %.*s", st->shown, (int)strcspn(said, "\n"), said);
    PQfinish(conn);
    return result;
}

/* Returns the database's name for messages, without the password; NULL: out of memory. */
static char *name_store(const PQconninfoOption *opts)
{
    const char *host = NULL;
    const char *db = "";
    for (const PQconninfoOption *o = opts; o->keyword; o++) {
        if (!o->val)
            continue;
        if (names_host(o))
            host = o->val;
        if (strcmp(o->keyword, "dbname") == 0)
            db = o->val;
    }

    char text[256];
    if (host)
        snprintf(text, sizeof text, "postgres:%s/%s", host, db);
    else
        snprintf(text, sizeof text, "postgres:%s", db);
    return strdup(text);
}

/* Has libpq parse its part, and names the store. */
static int read_conninfo(struct pg_store *st, struct error *err)
{
    char *why = NULL;
    PQconninfoOption *opts = PQconninfoParse(st->conninfo, &why);
    if (!opts) {
        PQfreemem(why); /* it may quote a part of the password */
        return not_understood(err);
    }
    int result;
    st->shown = name_store(opts);
    if (st->shown)
        result = check_options(st, opts, err);
    else
        result = err_nomem(err);
    PQconninfoFree(opts);
    return result;
}

/* ---- the schema's name ---- */

/* Appends a text with every `quote` in it doubled. */
static void add_doubled(struct buf *b, const char *text, char quote)
{
    for (const char *p = text; *p; p++) {
        if (*p == quote)
            buf_addc(b, quote);
        buf_addc(b, *p);
    }
}

/* Writes the schema's name in the two forms that statements use. Refuses names that are unsafe
 * there: a newline would end a comment, and the rest would be read as SQL. */
static int quote_schema(struct pg_store *st, struct error *err)
{
    bool usable = strlen(st->schema) <= NAME_MAX_BYTES && strncmp(st->schema, "pg_", 3) != 0 &&
                  !strstr(st->schema, "$outbox$");
    for (const char *p = st->schema; *p; p++) {
        if (iscntrl((unsigned char)*p))
            usable = false;
    }
    if (!usable)
        return err_set(err, ERR_CONFIG,
                       "schema \"%.70s\": a name has at most 63 bytes, no control characters, does "
                       "not begin with pg_ and does not contain $outbox$",
                       st->schema);
    struct buf b;
    buf_init(&b, 1024);
    buf_addc(&b, '"');
    add_doubled(&b, st->schema, '"');
    buf_addc(&b, '"');
    st->quoted = copy_of(&b);

    buf_clear(&b);
    if (st->quoted)
        add_doubled(&b, st->quoted, '\'');
    st->literal = copy_of(&b);
    buf_release(&b);
    return st->quoted && st->literal ? 0 : err_nomem(err);
}

int pg_url_read(struct pg_store *st, struct error *err)
{
    if (split_url(st, err) != 0)
        return -1;
    if (read_conninfo(st, err) != 0)
        return -1;
    return quote_schema(st, err);
}
