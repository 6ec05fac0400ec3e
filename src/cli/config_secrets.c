/* config_secrets.c: secrets in the settings: masking them, and warning if other users can see them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"

#define VALUE_MAX ((size_t)1 << 20)
#define PATH_SIZE 4096

/* ---- masking ---- */

/* Returns how far into s, which follows "://", the password may reach. A password should be
 * percent-encoded. If it is not, / and # count as part of it, so does ? if no path precedes it, and
 * so does a space if the URL is the whole value: it is better to mask too much than too little. */
static size_t password_end(const char *s, size_t user, bool alone)
{
    size_t word = strlen(s), path = strcspn(s, "?");
    if (!alone)
        word = strcspn(s, " \t");
    bool query_in_password = s[user] == ':' && s[user + strcspn(s + user, "/?")] == '?';
    if (query_in_password || word < path)
        return word;
    return path;
}

/* Appends user:*** if s, which follows "://", starts with user:password@. Returns the number of
 * bytes this replaces, 0 if there is no password. */
static size_t mask_url(struct buf *b, const char *s, bool alone)
{
    size_t user = strcspn(s, ":/?# \t");
    const char *at = memrchr(s, '@', password_end(s, user, alone));
    bool has_password = at && s[user] == ':' && s + user < at;
    if (!has_password)
        return 0;

    buf_add(b, s, user + 1);
    buf_adds(b, "***");
    return (size_t)(at - s);
}

static bool ends_with(const char *start, const char *at, const char *word)
{
    size_t n = strlen(word);
    return (size_t)(at - start) >= n && strncmp(at - n, word, n) == 0;
}

/* Whether the scheme before "://" is http or https. The query of such a URL belongs to the endpoint
 * and may hold its token. */
static bool is_web(const char *start, const char *at)
{
    return ends_with(start, at, "http") || ends_with(start, at, "https");
}

/* How much of a web address to hide. Besides its query, the path of a webhook may be a token. */
enum hidden { HIDE_PASSWORDS, HIDE_PATHS };

/* A value that is being masked. (1) alone: the whole value is one URL. (2) web: we are past the
 * scheme of such a URL, which is http or https. */
struct masking {
    const char *start;
    enum hidden how;
    bool alone, web;
};

/* Appends the mark and *** for the rest of a web address, from its path, query or fragment on.
 * Returns the number of bytes replaced; 0: the address continues. */
static size_t mask_rest(const struct masking *m, struct buf *b, const char *value)
{
    bool path = m->how == HIDE_PATHS && *value == '/' && !strchr("?#", value[1]);
    bool query = *value == '?' || *value == '#';
    if (!m->web || (!path && !query))
        return 0;
    buf_addf(b, "%c***", *value);
    return strlen(value);
}

/* Appends the next piece of the value, masked if need be, and returns its length. */
static size_t mask_next(struct masking *m, struct buf *b, const char *value)
{
    static const char parameter[] = "password=";
    size_t n = sizeof(parameter) - 1;
    if (strncmp(value, parameter, n) == 0) {
        buf_adds(b, "password=***");
        return n + strcspn(value + n, "& \t");
    }
    if (strncmp(value, "://", 3) == 0) {
        m->web = m->web || (m->alone && is_web(m->start, value));
        buf_adds(b, "://");
        return 3 + mask_url(b, value + 3, m->alone);
    }

    size_t rest = mask_rest(m, b, value);
    if (rest)
        return rest;
    buf_addc(b, *value);
    return 1;
}

static void mask_value(struct buf *b, const char *value, enum hidden how)
{
    struct masking m = {.start = value, .how = how};
    m.alone = strncmp(value + strcspn(value, ": \t"), "://", 3) == 0;
    while (*value)
        value += mask_next(&m, b, value);
}

void config_mask(struct buf *b, const char *value)
{
    mask_value(b, value, HIDE_PATHS);
}

static bool is_masked(struct buf *b, const char *value)
{
    mask_value(b, value, HIDE_PASSWORDS);
    size_t n = strlen(value);
    return b->failed || b->n != n || memcmp(b->p, value, n) != 0;
}

bool config_secret(const char *value)
{
    char text[4096];
    struct buf small = {.p = text, .cap = sizeof(text), .max = sizeof(text)}, large;
    bool secret = is_masked(&small, value);
    explicit_bzero(text, sizeof(text));
    if (!small.full)
        return secret;

    buf_init(&large, VALUE_MAX);
    secret = is_masked(&large, value);
    buf_release(&large);
    return secret;
}

void config_hide(char *value)
{
    struct buf b;
    size_t n = strlen(value);
    if (!config_secret(value))
        return;

    buf_init(&b, VALUE_MAX);
    config_mask(&b, value);
    explicit_bzero(value, n);
    if (!b.failed)
        memcpy(value, b.p, b.n < n ? b.n : n);
    buf_release(&b);
}

/* ---- exposed secrets ---- */

/* Returns the problem with the permissions of a file, or NULL. Group permissions are not checked:
 * they are set deliberately. */
static const char *exposure_of(const char *path, bool secret)
{
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return NULL;
    if (st.st_mode & S_IWOTH)
        return "any user of this machine can write it; run chmod o-rwx on it";
    if (secret && st.st_mode & S_IROTH)
        return "any user of this machine can read it; run chmod o-rwx on it";
    if (st.st_uid != 0 && st.st_uid != geteuid())
        return "it belongs to another user, who can change it; run chown on it";
    return NULL;
}

/* Warns of secrets in the arguments. ps shows them to every user; config_hide only shortens the
 * time to a moment. */
static void tell_arguments(const struct config_checking *k)
{
    for (size_t i = 0; i < k->c->n_given; i++) {
        const struct given *g = &k->c->given[i];
        if (g->origin != ORIGIN_FLAG || !config_secret(g->value))
            continue;

        const char *text = "it contains a secret, and any user of this machine can see arguments "
                           "(ps); use the environment or a config file instead";
        bool is_store = strcmp(g->def->name, "store") == 0;
        if (is_store && strncmp(g->value, "mariadb:", 8) == 0)
            text = "it contains a password, and any user of this machine can see arguments (ps); "
                   "use ~/.my.cnf or password-file=PATH, or give the URL in OUTBOX_STORE or a "
                   "config file";
        else if (is_store)
            text = "it contains a password, and any user of this machine can see arguments (ps); "
                   "use ~/.pgpass or a service file, or give the URL in OUTBOX_STORE or a config "
                   "file";
        config_tell(k, true, g->where, "%s", text);
    }
}

/* Warns of a config file that others can write, or read if it has a password in it. */
static void tell_config_file(const struct config_checking *k)
{
    const char *path = k->c->path;
    if (!path)
        return;

    bool secret = false;
    for (size_t i = 0; i < k->c->n_given && !secret; i++) {
        const struct given *g = &k->c->given[i];
        secret = g->origin == ORIGIN_FILE && config_secret(g->value);
    }
    const char *why = exposure_of(path, secret);
    if (!why)
        return;
    config_tell(k, true, path, "%s%s", secret ? "it contains a password, and " : "", why);
}

/* Parameters of a sink's URL that name a file with a secret. */
static const char *const secret_files[] = {
    "password-file=", "token-file=", "creds-file=", "nkey-file=", NULL};

/* Copies the path of one of them, such as password-file=PATH; false if the URL has none. A sink
 * uses one way to log in, so there is at most one. */
static bool secret_file(const char *url, char out[PATH_SIZE])
{
    for (size_t i = 0; secret_files[i]; i++) {
        const char *at = strstr(url, secret_files[i]);
        if (!at)
            continue;
        at += strlen(secret_files[i]);
        snprintf(out, PATH_SIZE, "%.*s", (int)strcspn(at, "& \t"), at);
        return true;
    }
    return false;
}

/* Warns of readable files with secrets, given in a consumer's options or in the URL of its sink. */
static void tell_secret_files(const struct config_checking *k, const char *consumer)
{
    static const char *const options[] = {"webhook-secret-file", "webhook-header-file", "sink"};
    for (size_t i = 0; i < sizeof(options) / sizeof(*options); i++) {
        const struct given *g = config_find(k->c, consumer, options[i]);
        char in_url[PATH_SIZE];
        if (!g)
            continue;
        const char *path = g->value;
        if (strcmp(options[i], "sink") == 0) {
            if (!secret_file(g->value, in_url))
                continue;
            path = in_url;
        }

        const char *why = exposure_of(path, true);
        if (why)
            config_tell(k, true, g->where, "consumer \"%s\": %s: %s", consumer, path, why);
    }
}

void config_cautions(const struct config *c, config_visit *visit, void *ctx)
{
    struct config_checking k = {c, false, visit, ctx};
    size_t n;
    const struct named *names = config_consumers(c, &n);
    tell_arguments(&k);
    tell_config_file(&k);
    for (size_t i = 0; i < n; i++)
        tell_secret_files(&k, names[i].name);
}

/* ---- in memory ---- */

/* Whether this process may hold a secret: from its settings, or found by libpq (~/.pgpass). */
static bool holds_secrets(const struct config *c, const struct settings *s)
{
    static const char *const variables[] = {"PGPASSWORD",
                                            "OUTBOX_REDIS_PASSWORD",
                                            "OUTBOX_NATS_PASSWORD",
                                            "OUTBOX_REDIS_SENTINEL_PASSWORD",
                                            "OUTBOX_RABBITMQ_PASSWORD",
                                            "OUTBOX_KAFKA_PASSWORD",
                                            "OUTBOX_NATS_TOKEN",
                                            "OUTBOX_MARIADB_PASSWORD",
                                            "MYSQL_PWD",
                                            NULL};
    bool uses_libpq = s->store && strncmp(s->store, "sqlite:", 7) != 0;
    if (uses_libpq)
        return true;

    for (size_t i = 0; variables[i]; i++)
        if (getenv(variables[i]))
            return true;
    for (size_t i = 0; i < c->n_given; i++) {
        const struct given *g = &c->given[i];
        char path[PATH_SIZE];
        bool by_name = strstr(g->def->name, "secret") || strstr(g->def->name, "token") ||
                       strstr(g->def->name, "header-file");
        if (by_name || config_secret(g->value) || secret_file(g->value, path))
            return true;
    }
    return false;
}

void config_guard(const struct config *c, const struct settings *s)
{
    if (!s->core_dumps && holds_secrets(c, s))
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}
