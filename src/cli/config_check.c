/* config_check.c: whether a relay could run with the settings. `config check` and the relay itself
 * look the same way, so that the one says what the other would. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "admin/admin.h"
#include "admin/token.h"
#include "base/clock.h"
#include "cli/config.h"
#include "sink/sink.h"

#define PROBE_MS 10000 /* how long a peer may take to answer */

/* One look at all consumers. */
struct checking {
    const struct config *c;
    bool connect;
    config_visit *visit;
    void *ctx;
};

static void tell(const struct checking *k, const char *where, const char *text, bool warning)
{
    /* The visitor copies what it keeps: the casts only take const away. */
    struct problem p = {(char *)(uintptr_t)where, (char *)(uintptr_t)text, warning};
    k->visit(k->ctx, &p);
}

static const char *where_of(const struct checking *k, const char *consumer, const char *option)
{
    const struct given *g = config_get(k->c, consumer, option_find(consumer_options, option));
    return g ? g->where : config_where(k->c, consumer);
}

static const char *value_of(const struct checking *k, const char *consumer, const char *name)
{
    const struct option_def *def = option_find(consumer_options, name);
    const struct given *g = config_get(k->c, consumer, def);
    return g ? g->value : def->def;
}

/* culprit is the option that an error speaks of: by its name, or by the file that it names. NULL:
 * none, so it is the sink. */
static const struct given *culprit(const struct checking *k, const char *consumer, const char *text)
{
    for (const struct option_def *o = consumer_options; o->name; o++) {
        const struct given *g = config_get(k->c, consumer, o);
        if (!g || strcmp(o->name, "sink") == 0)
            continue;
        bool file = o->arg && strcmp(o->arg, "FILE") == 0;
        bool named = strchr(o->name, '-') && strstr(text, o->name);
        if (named || (file && strstr(text, g->value)))
            return g;
    }
    return NULL;
}

#define WITHOUT_MAX 32

/* A consumer as it would be, were it not for the problems that were told of already: without some
 * of its options, and with another URL of its sink. */
struct trial {
    const char *name;
    const struct given *without[WITHOUT_MAX];
    size_t n;
    char *url;   /* NULL: as it was given */
    bool mended; /* the URL is not the one that was given: there is nobody to connect to */
};

static bool left_out(const struct trial *t, const struct given *g)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->without[i] == g)
            return true;
    return false;
}

/* fill makes the consumer as the relay would. */
static int fill(const struct checking *k, const struct trial *t, struct consumer *ret,
                struct error *err)
{
    if (consumer_init(ret, t->name, err) != 0)
        return -1;
    for (const struct option_def *o = consumer_options; o->name; o++) {
        const struct given *g = config_get(k->c, t->name, o);
        if (!g || left_out(t, g))
            continue;
        const char *value = t->url && strcmp(o->name, "sink") == 0 ? t->url : g->value;
        if (option_apply(o, ret, value, err) == 0)
            continue;
        consumer_release(ret);
        return -1;
    }
    return 0;
}

static void ignore(void *ctx, struct delivery *d, const struct sink_result *r)
{
    (void)ctx;
    (void)d;
    (void)r;
}

/* try_sink opens the sink, and with k->connect asks its other side for an answer. */
static int try_sink(const struct consumer *c, bool connect, struct error *err)
{
    struct sink_config cfg = consumer_sink_config(c);
    const struct sink_ops *kind;
    struct sink *sk;
    cfg.clock = &clock_system;
    cfg.done = ignore;
    if (sink_find(cfg.url, &kind, err) != 0 || kind->open(&cfg, &sk, err) != 0)
        return -1;
    int r = connect && kind->probe ? kind->probe(sk, PROBE_MS, err) : 0;
    kind->close(sk);
    return r;
}

static int try_consumer(const struct checking *k, const struct trial *t, struct error *err)
{
    struct consumer c;
    *err = (struct error){0};
    if (fill(k, t, &c, err) != 0)
        return -1;
    int r = try_sink(&c, k->connect && !t->mended, err);
    consumer_release(&c);
    return r;
}

/* replaced is the URL with n of its bytes, from `at` on, replaced. */
static char *replaced(const char *url, size_t at, size_t n, const char *by)
{
    char *made = NULL;
    if (asprintf(&made, "%.*s%s%s", (int)at, url, by, url + at + n) < 0)
        return NULL;
    return made;
}

/* fits says whether the problem is gone with this URL; then the trial goes on with it, and url is
 * its. */
static bool fits(const struct checking *k, struct trial *t, char *url, const char *problem)
{
    struct error err;
    struct trial with = *t;
    if (!url)
        return false;
    with.url = url;
    with.mended = true;
    if (try_consumer(k, &with, &err) != 0 && strcmp(err.text, problem) == 0) {
        free(url);
        return false;
    }
    free(t->url);
    *t = with;
    return true;
}

/* mend_url looks which part of the sink's URL a problem is about: the one without which it is gone.
 * What else is wrong with the URL can be told then, too. */
static bool mend_url(const struct checking *k, struct trial *t, const char *url,
                     const char *problem)
{
    const char *host = strstr(url, "://");
    size_t query = strcspn(url, "?");
    for (size_t at = query; url[at];) {
        size_t from = at + 1, n = strcspn(url + from, "&");
        const char *by = strncmp(url + from, "stream=", 7) == 0 ? "stream=x" : "";
        if (n > 0 && strncmp(url + from, "stream=x", n) != 0 &&
            fits(k, t, replaced(url, from, n, by), problem))
            return true;
        at = from + n;
    }
    const char *glue = url[query] ? "&stream=x" : "?stream=x"; /* perhaps it is what is missing */
    if (!strstr(url + query, "stream=") && fits(k, t, replaced(url, strlen(url), 0, glue), problem))
        return true;
    if (!host || (size_t)(host - url) > query)
        return false;
    size_t from = (size_t)(host - url) + 3, n = strcspn(url + from, "/?");
    const char *at = memrchr(url + from, '@', n);
    if (at && fits(k, t, replaced(url, from, (size_t)(at + 1 - url) - from, ""), problem))
        return true;
    if (fits(k, t, replaced(url, from, n, "127.0.0.1"), problem))
        return true;
    from += n;
    return query > from && fits(k, t, replaced(url, from, query - from, "/"), problem);
}

/* check_files tells of files that cannot be read and that check_sink did not get to. */
static void check_files(const struct checking *k, const struct trial *t)
{
    char text[600];
    for (const struct option_def *o = consumer_options; o->name; o++) {
        const struct given *g = config_get(k->c, t->name, o);
        bool file = g && o->arg && strcmp(o->arg, "FILE") == 0;
        if (!file || left_out(t, g) || access(g->value, R_OK) == 0)
            continue;
        snprintf(text, sizeof(text), "consumer \"%s\": %s: could not read it: %s", t->name,
                 g->value, strerror(errno));
        tell(k, g->where, text, false);
    }
}

/* check_sink finds one problem after the other, leaving out the option, or the part of the URL,
 * that the last was about. */
static void check_sink(const struct checking *k, const char *name)
{
    struct trial t = {.name = name};
    const char *given = value_of(k, name, "sink");
    char text[sizeof(((struct error *)0)->text) + STORE_NAME_MAX + 32];
    for (size_t told = 0; told < WITHOUT_MAX; told++) {
        struct error err;
        if (try_consumer(k, &t, &err) == 0)
            break;
        const struct given *g = culprit(k, name, err.text);
        snprintf(text, sizeof(text), "consumer \"%s\": %s", name, err.text);
        tell(k, g ? g->where : where_of(k, name, "sink"), text, false);
        if (g && !left_out(&t, g)) {
            t.without[t.n++] = g;
            continue;
        }
        bool of_url = !g && err.code == ERR_CONFIG;
        if (of_url && mend_url(k, &t, t.url ? t.url : given, err.text))
            continue;
        if (strncmp(given, "http", 4) == 0)
            check_files(k, &t);
        break;
    }
    free(t.url);
}

static void check_consumer(const struct checking *k, const char *name)
{
    char text[2 * STORE_NAME_MAX + 200];
    if (strcmp(value_of(k, name, "order"), "global") == 0 &&
        strcmp(value_of(k, name, "lanes"), "1") != 0) {
        snprintf(text, sizeof(text),
                 "consumer \"%s\": order = global has one lane; drop lanes, or use order = key",
                 name);
        tell(k, where_of(k, name, "lanes"), text, false);
    }
    if (value_of(k, name, "sink")) {
        check_sink(k, name);
        return;
    }
    snprintf(text, sizeof(text),
             "consumer \"%s\" has no sink; say --sink URL behind --consumer %s, sink = URL in its "
             "section, or "
             "OUTBOX_CONSUMER_<NAME>_SINK",
             name, name);
    tell(k, config_where(k->c, name), text, false);
}

static const struct given *given_for(const struct checking *k, const char *option)
{
    return config_get(k->c, NULL, option_find(config_options, option));
}

/* check_tokens looks at what the HTTP server asks for. False: nothing. */
static bool check_tokens(const struct checking *k)
{
    const struct given *file = given_for(k, "listen-token-file"),
                       *variable = given_for(k, "listen-token-env");
    struct tokens *tokens;
    struct error err;
    struct stat st;
    char text[600];
    if (!file && !variable)
        return false;
    if (token_load(file ? file->value : NULL, variable ? variable->value : NULL, &tokens, &err) ==
        0)
        token_free(tokens);
    else
        tell(k, file ? file->where : variable->where, err.text, false);
    bool open_to_all = file && stat(file->value, &st) == 0 && (st.st_mode & (S_IROTH | S_IWOTH));
    if (open_to_all) {
        snprintf(text, sizeof(text),
                 "everybody on this machine can read or write %s; chmod o-rwx it", file->value);
        tell(k, file->where, text, true);
    }
    return true;
}

static void check_listen(const struct checking *k)
{
    const struct given *listen = given_for(k, "listen");
    struct admin_address a;
    bool asks = check_tokens(k);
    if (!listen || asks || admin_address_parse(listen->value, &a, NULL) != 0 || admin_loopback(&a))
        return;
    tell(k, listen->where,
         "other machines may reach it, and there is no token to ask them for: only /livez and "
         "/readyz are served; set "
         "listen-token-file, or listen at 127.0.0.1 or unix:PATH",
         true);
}

void config_check(const struct config *c, bool connect, config_visit *visit, void *ctx)
{
    struct checking k = {c, connect, visit, ctx};
    size_t n;
    char *const *names = config_consumers(c, &n);
    if (n == 0)
        tell(&k, c->path,
             "no consumers to run; say --consumer NAME --sink URL, name them in OUTBOX_CONSUMERS, "
             "or name with -c a config "
             "file that has a [consumer NAME] section",
             false);
    for (size_t i = 0; i < n; i++)
        check_consumer(&k, names[i]);
    check_listen(&k);
    config_cautions(c, visit, ctx);
}
