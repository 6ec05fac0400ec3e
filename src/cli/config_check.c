/* config_check.c: checks whether a relay could run with the settings. `config check` and the relay
 * call the same function, so the check predicts the relay's result. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "admin/access.h"
#include "admin/admin.h"
#include "base/clock.h"
#include "base/num.h"
#include "cli/cli.h"

/* ---- a consumer and its sink ---- */

#define PROBE_MS 10000 /* how long a peer may take to answer, at most */

static void ignore_answer(void *ctx, struct delivery *d, const struct sink_result *r)
{
    (void)ctx;
    (void)d;
    (void)r;
}

int config_try_sink(const struct consumer *c, bool connect, struct sink_broker *ret,
                    struct error *err)
{
    struct sink_config cfg = consumer_sink_config(c);
    const struct sink_ops *kind;
    struct sink *sk;
    cfg.clock = &clock_system;
    cfg.done = ignore_answer;

    if (sink_find(cfg.url, &kind, err) != 0)
        return -1;
    if (kind->open(&cfg, &sk, err) != 0)
        return -1;
    int r = 0;
    if (connect && kind->probe) {
        int64_t ms = PROBE_MS; /* not longer than a delivery */
        if (c->timeout_ms > 0)
            ms = min_i64(ms, c->timeout_ms);
        r = kind->probe(sk, ms, err);
    }
    if (ret)
        *ret = sink_broker_of(sk);
    kind->close(sk);
    return r;
}

/* ---- checking ---- */

void config_tell(const struct config_checking *k, bool warning, const char *where, const char *fmt,
                 ...)
{
    char text[5000]; /* room for the path of a file */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    k->visit(k->ctx, &(struct problem){where, text, warning});
}

/* Returns where an option is set or, if it is not set, where its consumer is named. */
static const char *where_of(const struct config_checking *k, const char *consumer,
                            const char *option)
{
    const struct given *g = config_find(k->c, consumer, option);
    if (g)
        return g->where;
    return config_where_named(k->c, consumer);
}

static const char *value_of(const struct config_checking *k, const char *consumer,
                            const char *option)
{
    return config_value(k->c, consumer, option_find(consumer_options, option));
}

/* Whether the value of an option is the path of a file. */
static bool names_file(const struct option_def *o)
{
    return o->arg && strcmp(o->arg, "FILE") == 0;
}

/* Returns the option that an error mentions, by its name or by the file it names, or NULL: the
 * error is about the sink. */
static const struct given *culprit_of(const struct config_checking *k, const char *consumer,
                                      const char *text)
{
    for (const struct option_def *o = consumer_options; o->name; o++) {
        const struct given *g = config_get(k->c, consumer, o);
        if (!g || strcmp(o->name, "sink") == 0)
            continue;
        bool by_name = strchr(g->def->name, '-') && strstr(text, g->def->name);
        bool by_file = names_file(g->def) && strstr(text, g->value);
        if (by_name || by_file)
            return g;
    }
    return NULL;
}

/* ---- trials: find all problems of a consumer, not only the first ---- */

#define WITHOUT_MAX 32

/* A consumer as it would be without the problems already reported: some options are left out, and
 * its sink may have another URL. */
struct trial {
    const char *name;
    const struct given *without[WITHOUT_MAX];
    size_t n;
    char *url; /* replaces the configured URL, unless NULL */
};

static bool left_out(const struct trial *t, const struct given *g)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->without[i] == g)
            return true;
    return false;
}

/* Builds the consumer of a trial, as the relay would. The caller releases it. */
static int build_consumer(const struct config *c, const struct trial *t, struct consumer *ret,
                          struct error *err)
{
    if (consumer_init(ret, t->name, err) != 0)
        return -1;
    for (const struct option_def *o = consumer_options; o->name; o++) {
        const struct given *g = config_get(c, t->name, o);
        if (!g || left_out(t, g))
            continue;
        const char *value = g->value;
        if (t->url && strcmp(o->name, "sink") == 0)
            value = t->url;
        if (option_apply(o, ret, value, err) != 0) {
            consumer_release(ret);
            return -1;
        }
    }
    return 0;
}

int config_consumer(const struct config *c, const char *name, struct consumer *ret,
                    struct error *err)
{
    struct trial as_given = {.name = name};
    return build_consumer(c, &as_given, ret, err);
}

static int try_consumer(const struct config_checking *k, const struct trial *t, struct error *err)
{
    struct consumer c;
    *err = (struct error){0};
    if (build_consumer(k->c, t, &c, err) != 0)
        return -1;

    bool real_url = !t->url; /* a replaced URL leads nowhere */
    int r = config_try_sink(&c, k->connect && real_url, NULL, err);
    consumer_release(&c);
    return r;
}

/* A change to a URL: n bytes from `at` on are replaced by `by`. */
struct patch {
    size_t at, n;
    const char *by;
};

/* Tries the URL with one change. If the problem disappears, the trial keeps the new URL and
 * mends_url returns true. */
static bool mends_url(const struct config_checking *k, struct trial *t, const char *url,
                      struct patch p, const char *problem)
{
    struct trial with = *t;
    struct error err;
    if (asprintf(&with.url, "%.*s%s%s", (int)p.at, url, p.by, url + p.at + p.n) < 0)
        return false;

    bool persists = try_consumer(k, &with, &err) != 0 && strcmp(err.text, problem) == 0;
    if (persists) {
        free(with.url);
        return false;
    }
    free(t->url);
    *t = with;
    return true;
}

#define PATCHES 32

/* Lists changes that may remove a problem: leave out one parameter after the other; a stream is
 * required, so rename it, or add it in case it is missing; leave out the user and password, replace
 * the host, then the path. */
static size_t patches_of(const char *url, struct patch out[PATCHES])
{
    size_t query = strcspn(url, "?"), n = 0;
    for (size_t at = query; url[at] && n < PATCHES - 4;) {
        struct patch p = {.at = at + 1, .n = strcspn(url + at + 1, "&"), .by = ""};
        const char *parameter = url + p.at;
        if (strncmp(parameter, "stream=", 7) == 0)
            p.by = "stream=x";
        if (p.n > 0 && strncmp(parameter, "stream=x", p.n) != 0)
            out[n++] = p;
        at = p.at + p.n;
    }
    if (!strstr(url + query, "stream="))
        out[n++] = (struct patch){strlen(url), 0, url[query] ? "&stream=x" : "?stream=x"};

    const char *scheme_end = strstr(url, "://");
    if (!scheme_end || (size_t)(scheme_end - url) > query)
        return n;
    size_t from = (size_t)(scheme_end - url) + 3, host = strcspn(url + from, "/?");
    const char *at = memrchr(url + from, '@', host);
    if (at)
        out[n++] = (struct patch){from, (size_t)(at + 1 - url) - from, ""};
    out[n++] = (struct patch){from, host, "127.0.0.1"};
    if (query > from + host)
        out[n++] = (struct patch){from + host, query - from - host, "/"};
    return n;
}

/* Changes the part of the URL that causes a problem, so that the next trial can find others; false
 * if none does. */
static bool mend_url(const struct config_checking *k, struct trial *t, const char *problem)
{
    struct patch patches[PATCHES];
    const char *url = t->url ? t->url : value_of(k, t->name, "sink");
    size_t n = patches_of(url, patches);
    for (size_t i = 0; i < n; i++) {
        if (mends_url(k, t, url, patches[i], problem))
            return true;
    }
    return false;
}

/* Reports unreadable files that the trials did not reach. */
static void check_files(const struct config_checking *k, const struct trial *t)
{
    for (const struct option_def *o = consumer_options; o->name; o++) {
        const struct given *g = config_get(k->c, t->name, o);
        if (!g || !names_file(o) || left_out(t, g))
            continue;
        if (access(g->value, R_OK) != 0)
            config_tell(k, false, g->where, "consumer \"%s\": could not read %s: %s", t->name,
                        g->value, strerror(errno));
    }
}

/* Reports one problem after the other, each time leaving out the option or the part of the URL that
 * caused the previous one. */
static void check_sink(const struct config_checking *k, const char *name)
{
    struct trial t = {.name = name};
    struct error err;
    for (size_t told = 0; told < WITHOUT_MAX && try_consumer(k, &t, &err) != 0; told++) {
        const struct given *g = culprit_of(k, name, err.text);
        config_tell(k, false, g ? g->where : where_of(k, name, "sink"), "consumer \"%s\": %s", name,
                    err.text);
        if (g && !left_out(&t, g)) {
            t.without[t.n++] = g;
            continue;
        }
        if (!g && err.code == ERR_CONFIG && mend_url(k, &t, err.text))
            continue;
        if (strncmp(value_of(k, name, "sink"), "http", 4) == 0)
            check_files(k, &t);
        break;
    }
    free(t.url);
}

/* ---- one consumer ---- */

static void check_consumer(const struct config_checking *k, const char *name)
{
    bool global = strcmp(value_of(k, name, "order"), "global") == 0;
    bool one_lane = strcmp(value_of(k, name, "lanes"), "1") == 0;
    if (global && !one_lane)
        config_tell(
            k, false, where_of(k, name, "lanes"),
            "consumer \"%s\": order = global has one lane; remove lanes, or use order = key", name);
    if (value_of(k, name, "sink"))
        check_sink(k, name);
    else
        config_tell(
            k, false, config_where_named(k->c, name),
            "consumer \"%s\" has no sink; add --sink URL after --consumer %s or sink = URL to "
            "its section, or set OUTBOX_CONSUMER_<NAME>_SINK",
            name, name);
}

/* ---- the HTTP server ---- */

/* Checks the tokens of the HTTP server, and warns of a file that other users can read. It returns
 * false if no token is set. */
static bool check_tokens(const struct config_checking *k)
{
    const struct given *file = config_find(k->c, NULL, "listen-token-file");
    const struct given *variable = config_find(k->c, NULL, "listen-token-env");
    struct tokens *tokens;
    struct error err;
    struct stat st;
    if (!file && !variable)
        return false;

    if (access_tokens_load(file ? file->value : NULL, variable ? variable->value : NULL, &tokens,
                           &err) == 0)
        access_tokens_free(tokens);
    else
        config_tell(k, false, (file ? file : variable)->where, "%s", err.text);

    bool is_open = file && stat(file->value, &st) == 0 && (st.st_mode & (S_IROTH | S_IWOTH));
    if (is_open)
        config_tell(k, true, file->where,
                    "any user of this machine can read or write %s; run chmod o-rwx on it",
                    file->value);
    return true;
}

/* Warns if others can reach the HTTP server and no token is required. */
static void check_listen(const struct config_checking *k)
{
    const struct given *listen = config_find(k->c, NULL, "listen");
    struct admin_address a;
    bool has_token = check_tokens(k);
    if (!listen || has_token)
        return;
    if (admin_address_parse(listen->value, &a, NULL) != 0 || admin_loopback(&a))
        return;
    config_tell(k, true, listen->where, CONFIG_OPEN_LISTEN);
}

void config_check(const struct config *c, bool connect, config_visit *visit, void *ctx)
{
    struct config_checking k = {c, connect, visit, ctx};
    size_t n;
    const struct named *names = config_consumers(c, &n);
    if (n == 0)
        config_tell(&k, false, c->path,
                    "no consumers to run; use --consumer NAME --sink URL, name them in "
                    "OUTBOX_CONSUMERS, or use -c with a config file that has a [consumer NAME] "
                    "section");
    for (size_t i = 0; i < n; i++)
        check_consumer(&k, names[i].name);
    check_listen(&k);
    config_cautions(c, visit, ctx);
}
