/* config_secrets.c: what of the settings is nobody's business: how it is shown, who can see it, and
 * what is said about that. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/config.h"

#define VALUE_MAX ((size_t)1 << 20)

/* ---- showing ---- */

/* mask_url copies what stands behind "://" up to the end of its user:password@, if it has one.
 * Returns how far. A password with / ? or # in it that nobody encoded is masked as well, or with a
 * space if the URL is all there is: rather too much than too little. */
static size_t mask_url(struct buf *b, const char *s, bool alone)
{
    size_t user = strcspn(s, ":/?# \t"), word = alone ? strlen(s) : strcspn(s, " \t"),
           path = strcspn(s, "?");
    /* part of the password, if it is one */
    bool query = s[user] == ':' && s[user + strcspn(s + user, "/?")] == '?';
    const char *at = memrchr(s, '@', query || word < path ? word : path);
    const char *colon = at && s[user] == ':' && s + user < at ? s + user : NULL;
    if (!colon)
        return 0;
    buf_add(b, s, (size_t)(colon - s) + 1);
    buf_adds(b, "***");
    return (size_t)(at - s);
}

/* is_web says whether what stands before "://" is http or https: their queries are the endpoint's,
 * and hold its tokens. */
static bool is_web(const char *start, const char *at)
{
    return (at - start >= 4 && strncmp(at - 4, "http", 4) == 0) ||
           (at - start >= 5 && strncmp(at - 5, "https", 5) == 0);
}

/* What of a web address is not shown. The query of a webhook is the endpoint's, and so is its path:
 * both hold tokens. */
enum hidden { HIDE_PASSWORDS, HIDE_PATHS };

static void mask(struct buf *b, const char *value, enum hidden how)
{
    static const char parameter[] = "password=";
    const char *start = value;
    bool web = false;
    bool alone = strncmp(value + strcspn(value, ": \t"), "://", 3) == 0;
    while (*value) {
        size_t n = 0;
        if (strncmp(value, "://", 3) == 0) {
            if (alone && is_web(start, value))
                web = true;
            buf_adds(b, "://");
            value += 3;
            n = mask_url(b, value, alone);
        } else if (strncmp(value, parameter, sizeof(parameter) - 1) == 0) {
            buf_adds(b, "password=***");
            n = sizeof(parameter) - 1 + strcspn(value + sizeof(parameter) - 1, "& \t");
        } else if (web && how == HIDE_PATHS && *value == '/' && !strchr("?#", value[1])) {
            buf_adds(b, "/***");
            n = strlen(value);
        } else if (web && (*value == '?' || *value == '#')) {
            buf_addf(b, "%c***", *value);
            n = strlen(value);
        } else {
            buf_addc(b, *value++);
        }
        value += n;
    }
}

void config_mask(struct buf *b, const char *value)
{
    mask(b, value, HIDE_PATHS);
}

/* differs: the value is not shown as it is. */
static bool differs(struct buf *b, const char *value)
{
    mask(b, value, HIDE_PASSWORDS);
    size_t n = strlen(value);
    return b->failed || b->n != n || memcmp(b->p, value, n) != 0;
}

bool config_secret(const char *value)
{
    char text[4096];
    struct buf small = {.p = text, .cap = sizeof(text), .max = sizeof(text)}, large;
    bool secret = differs(&small, value);
    explicit_bzero(text, sizeof(text));
    if (!small.full)
        return secret;
    buf_init(&large, VALUE_MAX);
    secret = differs(&large, value);
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

/* ---- who can see it ---- */

struct telling {
    const struct config *c;
    config_visit *visit;
    void *ctx;
};

static void tell(const struct telling *t, const char *where, const char *text)
{
    /* The visitor copies what it keeps: the casts only take const away. */
    struct problem p = {(char *)(uintptr_t)where, (char *)(uintptr_t)text, true};
    t->visit(t->ctx, &p);
}

/* What is wrong with who may get at a file; NULL: nothing. Whom its group lets in is the business
 * of who chose the group. */
static const char *opened(const char *path, bool secret)
{
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return NULL;
    if (st.st_mode & S_IWOTH)
        return "everybody on this machine can write it; chmod o-rwx it";
    if (secret && st.st_mode & S_IROTH)
        return "everybody on this machine can read it; chmod o-rwx it";
    if (st.st_uid != 0 && st.st_uid != geteuid())
        return "it belongs to another user, who can change it; chown it";
    return NULL;
}

/* tell_arguments: what is in our arguments everybody can see with ps; config_hide makes that a
 * moment, not more. */
static void tell_arguments(const struct telling *t)
{
    for (size_t i = 0; i < t->c->n_given; i++) {
        const struct given *g = &t->c->given[i];
        if (g->origin != ORIGIN_FLAG || !config_secret(g->value))
            continue;
        bool store = strcmp(g->def->name, "store") == 0;
        tell(t, g->where,
             store ? "there is a password in it, and everybody on this machine can see arguments "
                     "(ps); put it into "
                     "~/.pgpass or a service file, or give the URL in OUTBOX_STORE or a config file"
                   : "there is a secret in it, and everybody on this machine can see arguments "
                     "(ps); give it in the "
                     "environment or a config file");
    }
}

static void tell_config_file(const struct telling *t)
{
    char text[256];
    bool secret = false;
    if (!t->c->path)
        return;
    for (size_t i = 0; i < t->c->n_given; i++)
        secret = secret ||
                 (t->c->given[i].origin == ORIGIN_FILE && config_secret(t->c->given[i].value));
    const char *why = opened(t->c->path, secret);
    if (!why)
        return;
    snprintf(text, sizeof(text), "%s%s", secret ? "there is a password in it, and " : "", why);
    tell(t, t->c->path, text);
}

/* password_file finds password-file=PATH in a URL. False: there is none. */
static bool password_file(const char *url, char out[4096])
{
    static const char name[] = "password-file=";
    const char *at = strstr(url, name);
    if (!at)
        return false;
    at += sizeof(name) - 1;
    snprintf(out, 4096, "%.*s", (int)strcspn(at, "& \t"), at);
    return true;
}

static void tell_secret_file(const struct telling *t, const char *consumer, const char *where,
                             const char *path)
{
    char text[4600];
    const char *why = opened(path, true);
    if (!why)
        return;
    snprintf(text, sizeof(text), "consumer \"%s\": %s: %s", consumer, path, why);
    tell(t, where, text);
}

static void tell_secret_files(const struct telling *t, const char *consumer)
{
    static const char *const options[] = {"webhook-secret-file", "webhook-header-file"};
    char path[4096];
    for (size_t i = 0; i < sizeof(options) / sizeof(*options); i++) {
        const struct given *g = config_get(t->c, consumer,
                                           option_find(consumer_options, options[i]));
        if (g)
            tell_secret_file(t, consumer, g->where, g->value);
    }
    const struct given *sink = config_get(t->c, consumer, option_find(consumer_options, "sink"));
    if (sink && password_file(sink->value, path))
        tell_secret_file(t, consumer, sink->where, path);
}

void config_cautions(const struct config *c, config_visit *visit, void *ctx)
{
    struct telling t = {c, visit, ctx};
    size_t n;
    char *const *names = config_consumers(c, &n);
    tell_arguments(&t);
    tell_config_file(&t);
    for (size_t i = 0; i < n; i++)
        tell_secret_files(&t, names[i]);
}

/* ---- in memory ---- */

/* holds_secrets: what we were given, or libpq may have found (~/.pgpass). */
static bool holds_secrets(const struct config *c, const struct settings *s)
{
    static const char *const variables[] = {"PGPASSWORD", "OUTBOX_REDIS_PASSWORD", NULL};
    if (s->store && strncmp(s->store, "sqlite:", 7) != 0)
        return true;
    for (size_t i = 0; variables[i]; i++)
        if (getenv(variables[i]))
            return true;
    for (size_t i = 0; i < c->n_given; i++) {
        const struct given *g = &c->given[i];
        char path[4096];
        bool of_secrets = strstr(g->def->name, "secret") || strstr(g->def->name, "token") ||
                          strstr(g->def->name, "header-file");
        if (of_secrets || config_secret(g->value) || password_file(g->value, path))
            return true;
    }
    return false;
}

void config_guard(const struct config *c, const struct settings *s)
{
    if (!s->core_dumps && holds_secrets(c, s))
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}
