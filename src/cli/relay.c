#include "cli/relay.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "admin/token.h"
#include "base/clock.h"
#include "base/log.h"

void relay_log(struct relay *r, int level, const char *consumer, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    if (level < atomic_load(&r->log_level))
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    logger_write(&r->logger, level, consumer, text);
}

void relay_wake(struct relay *r)
{
    uint64_t one = 1;
    int saved = errno;
    if (write(r->wake_fd, &one, sizeof one) < 0)
        errno = saved; /* it is awake */
    errno = saved;
}

/* ---- consumers ---- */

static size_t n_options(void)
{
    size_t n = 0;
    while (consumer_options[n].name)
        n++;
    return n;
}

static const char *value_in(const struct config *config, const char *name, size_t option)
{
    const struct given *g = config_get(config, name, &consumer_options[option]);
    return g ? g->value : NULL;
}

static void forget(struct relay_consumer *c)
{
    for (size_t i = 0; c->values && i < n_options(); i++)
        free(c->values[i]);
    free(c->values);
    free(c->name);
    *c = (struct relay_consumer){0};
}

static int note(struct relay_consumer *c, const struct config *config, const char *name,
                struct error *err)
{
    *c = (struct relay_consumer){.name = strdup(name),
                                 .values = calloc(n_options(), sizeof(char *))};
    bool ok = c->name && c->values;
    for (size_t i = 0; ok && i < n_options(); i++) {
        const char *value = value_in(config, name, i);
        if (value && !(c->values[i] = strdup(value)))
            ok = false;
    }
    if (ok)
        return 0;
    forget(c);
    return err_nomem(err);
}

/* make gives the outbox a consumer with the settings noted. */
static int make(struct relay *r, struct relay_consumer *c, struct error *err)
{
    outbox_error *e = (outbox_error *)err; /* one layout: see outbox.c */
    if (outbox_consumer_new(r->ob, c->name, &c->c, e) != 0)
        return -1;
    for (size_t i = 0; i < n_options(); i++)
        if (c->values[i] &&
            outbox_consumer_set(c->c, consumer_options[i].name, c->values[i], e) != 0)
            return err_prefix(err, "consumer \"%s\"", c->name);
    return 0;
}

int relay_consumer_add(struct relay *r, const struct config *config, const char *name,
                       struct error *err)
{
    struct relay_consumer *grown = realloc(r->consumer, (r->n_consumers + 1) * sizeof *grown);
    if (!grown)
        return err_nomem(err);
    r->consumer = grown;
    if (note(&grown[r->n_consumers], config, name, err) != 0)
        return -1;
    return make(r, &grown[r->n_consumers++], err);
}

static void drop(struct relay *r, size_t i)
{
    forget(&r->consumer[i]);
    r->n_consumers--;
    for (; i < r->n_consumers; i++)
        r->consumer[i] = r->consumer[i + 1];
}

void relay_release(struct relay *r)
{
    while (r->n_consumers > 0)
        drop(r, r->n_consumers - 1);
    free(r->consumer);
    r->consumer = NULL;
}

/* The first problem of several, and how many there are. */
struct refusal {
    size_t n;
    struct error *err;
};

static void note_refusal(void *ctx, const struct problem *p)
{
    struct refusal *f = ctx;
    if (p->warning || f->n++ > 0)
        return;
    if (p->where)
        err_set(f->err, ERR_CONFIG, "%s: %s", p->where, p->text);
    else
        err_set(f->err, ERR_CONFIG, "%s", p->text);
}

int relay_tokens(const struct cli *cli, struct tokens **ret, struct error *err)
{
    const struct settings *s = &cli->settings;
    *ret = NULL;
    if (!s->listen_token_file && !s->listen_token_env)
        return 0;
    if (token_load(s->listen_token_file, s->listen_token_env, ret, err) == 0)
        return 0;
    return err_prefix(err, "%s", s->listen_token_file ? "listen-token-file" : "listen-token-env");
}

int relay_check(const struct config *config, struct error *err)
{
    struct refusal f = {.err = err};
    config_check(config, false, note_refusal, &f);
    if (f.n == 0)
        return 0;
    size_t at = strlen(err->text);
    if (f.n > 1)
        snprintf(err->text + at, sizeof(err->text) - at,
                 " (one of %zu problems: outbox config check lists them)", f.n);
    return -1;
}

/* ---- reading the config again ---- */

/* What a reload did. */
struct changes {
    size_t added, removed, changed, failed;
};

static size_t index_of(const struct relay *r, const char *name)
{
    size_t i = 0;
    while (i < r->n_consumers && strcmp(r->consumer[i].name, name) != 0)
        i++;
    return i;
}

static bool wanted(const struct config *config, const char *name)
{
    size_t n;
    char *const *names = config_consumers(config, &n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

static bool same(const struct relay_consumer *c, const struct config *config)
{
    for (size_t i = 0; i < n_options(); i++) {
        const char *value = value_in(config, c->name, i);
        if ((value == NULL) != (c->values[i] == NULL) ||
            (value && strcmp(value, c->values[i]) != 0))
            return false;
    }
    return true;
}

/* idle_by_itself: it is there, but had to stop by itself, or stands by. */
static bool idle_by_itself(const struct relay *r, const char *name)
{
    struct runner_view *v;
    size_t n;
    bool found = false;
    if (manage_views(r->ob, &v, &n, NULL) != 0)
        return false;
    for (size_t i = 0; i < n; i++) {
        bool idle = v[i].state >= PIPELINE_STOPPED || v[i].stats.standby;
        found = found || (idle && strcmp(v[i].consumer, name) == 0);
    }
    free(v);
    return found;
}

static int start(struct relay *r, struct relay_consumer *c, bool strict, struct error *err)
{
    c->c = NULL;
    if (make(r, c, err) == 0 && manage_start(c->c, strict, err) == 0)
        return 0;
    if (c->c)
        manage_stop(c->c);
    c->c = NULL;
    return -1;
}

static void remove_unwanted(struct relay *r, const struct config *config, struct changes *did)
{
    for (size_t i = 0; i < r->n_consumers;) {
        struct relay_consumer *c = &r->consumer[i];
        if (wanted(config, c->name)) {
            i++;
            continue;
        }
        manage_stop(c->c);
        relay_log(r, LOG_INFO_, c->name,
                  "is not in the config any more: stopped; the store keeps its place, and its "
                  "events, until it is removed "
                  "with outbox consumers remove");
        drop(r, i);
        did->removed++;
    }
}

/* change starts a consumer anew with other settings; where that fails, with the old ones. Rather
 * than to stand by with the new ones it goes on with the old ones, unless it could not do so. */
static void change(struct relay *r, size_t i, const struct config *config, struct changes *did)
{
    struct relay_consumer *c = &r->consumer[i], next;
    struct error err;
    bool working = !idle_by_itself(r, c->name);
    if (note(&next, config, c->name, &err) == 0) {
        manage_stop(c->c);
        c->c = NULL;
        if (start(r, &next, working, &err) == 0) {
            forget(c);
            *c = next;
            did->changed++;
            relay_log(r, LOG_INFO_, c->name, "started again with other settings");
            return;
        }
        forget(&next);
    }
    did->failed++;
    relay_log(r, LOG_ERROR_, c->name,
              "could not be given its new settings: %s; going on with the old ones", err.text);
    if (c->c || start(r, c, false, &err) == 0)
        return;
    relay_log(r, LOG_ERROR_, c->name, "could not be started again: %s; it is not at work",
              err.text);
    drop(r, i);
}

static void add(struct relay *r, const struct config *config, const char *name, struct changes *did)
{
    struct error err;
    size_t before = r->n_consumers;
    int made = relay_consumer_add(r, config, name, &err);
    struct relay_consumer *c = r->n_consumers > before ? &r->consumer[before] : NULL;
    if (made == 0 && c && manage_start(c->c, false, &err) == 0) {
        did->added++;
        relay_log(r, LOG_INFO_, name, "is new in the config: started");
        return;
    }
    if (c && c->c)
        manage_stop(c->c);
    if (c)
        drop(r, before);
    did->failed++;
    relay_log(r, LOG_ERROR_, name, "is new in the config, but could not be started: %s", err.text);
}

static void apply(struct relay *r, const struct config *config, struct changes *did)
{
    size_t n;
    char *const *names = config_consumers(config, &n);
    remove_unwanted(r, config, did);
    for (size_t i = 0; i < n; i++) {
        size_t at = index_of(r, names[i]);
        if (at == r->n_consumers)
            add(r, config, names[i], did);
        else if (!same(&r->consumer[at], config) || idle_by_itself(r, names[i]))
            change(r, at, config, did);
    }
    r->abandoned = r->n_consumers == 0;
}

/* say_fixed names the settings that differ now, but count only from the next start on. Not their
 * values: there may be a password among them. */
static void say_fixed(struct relay *r, const struct config *config)
{
    for (const struct option_def *o = config_options; o->name; o++) {
        const struct given *was = config_get(&r->cli->config, NULL, o),
                           *is = config_get(config, NULL, o);
        const char *a = was ? was->value : o->def, *b = is ? is->value : o->def;
        if (strcmp(o->name, "log-level") == 0 || strcmp(o->name, "color") == 0)
            continue;
        if (strcmp(a ? a : "", b ? b : "") == 0)
            continue;
        relay_log(
            r, LOG_WARN_, NULL,
            "%s cannot change while a relay runs: going on with the old one until it is restarted",
            o->name);
    }
}

static int read_again(struct relay *r, struct config *config, struct settings *s, struct error *err)
{
    if (config_again(&r->cli->config, config, err) != 0)
        return -1;
    if (config_settings(config, s, err) != 0)
        return -1;
    return relay_check(config, err);
}

/* read_tokens: what is in the file counts from now on; a file that is no good leaves those of
 * before. */
static void read_tokens(struct relay *r, struct changes *did)
{
    struct tokens *tokens;
    struct error err;
    if (!r->admin || !r->cli->settings.listen_token_file)
        return;
    if (relay_tokens(r->cli, &tokens, &err) == 0) {
        admin_set_tokens(r->admin, tokens);
        return;
    }
    did->failed++;
    relay_log(r, LOG_ERROR_, NULL, "%s; going on with the token of before", err.text);
}

void relay_reload(void *relay)
{
    struct relay *r = relay;
    struct config config;
    struct settings s;
    struct error err;
    struct changes did = {0};
    notify_send(&r->notify, "RELOADING=1\nMONOTONIC_USEC=%lld\nSTATUS=reading the config again",
                (long long)(clock_mono(&clock_system) / 1000));
    if (read_again(r, &config, &s, &err) != 0) {
        relay_log(r, LOG_ERROR_, NULL, "the config was not read again: %s; going on as before",
                  err.text);
        did.failed++;
    } else {
        manage_log_level(r->ob, s.log_level);
        atomic_store(&r->log_level, s.log_level);
        say_fixed(r, &config);
        apply(r, &config, &did);
        read_tokens(r, &did);
        relay_log(
            r, LOG_INFO_, NULL,
            "read the config again: %zu consumers added, %zu removed, %zu changed, %zu failed",
            did.added, did.removed, did.changed, did.failed);
    }
    config_release(&config);
    atomic_fetch_add(&r->reloads[did.failed ? 1 : 0], 1);
    notify_send(&r->notify, "READY=1\nSTATUS=consumers: %zu", r->n_consumers);
}

/* ---- watching ---- */

void relay_waits(struct relay *r, const char *why)
{
    pthread_mutex_lock(&r->wait.lock);
    if (why)
        snprintf(r->wait.text, sizeof r->wait.text, "waiting for the store: %s", why);
    else
        r->wait.text[0] = '\0';
    pthread_mutex_unlock(&r->wait.lock);
}

void relay_started(void *relay)
{
    struct relay *r = relay;
    atomic_store(&r->started, true);
    relay_waits(r, NULL);
    notify_send(&r->notify, "READY=1\nSTATUS=consumers: %zu", r->n_consumers);
}

/* feed tells the service manager that we are alive, if that is so, and how we are, if that has
 * changed. */
static void feed(struct relay *r, char said[HEALTH_TEXT])
{
    struct health h = admin_health(&r->admin_cfg, NULL, NULL);
    if (h.alive)
        notify_send(&r->notify, "WATCHDOG=1");
    if (strcmp(said, h.text) == 0)
        return;
    snprintf(said, HEALTH_TEXT, "%s", h.text);
    notify_send(&r->notify, "STATUS=%s",
                h.text[0] ? h.text : "all consumers get on with their work");
}

static void sleep_until(struct relay *r, int64_t until)
{
    struct pollfd fd = {.fd = r->wake_fd, .events = POLLIN};
    int64_t left = until == CLOCK_NEVER ? 0 : until - clock_mono(&clock_system);
    struct timespec ts = {0};
    uint64_t count;
    if (left > 0)
        ts = (struct timespec){left / 1000000000, left % 1000000000};
    ppoll(&fd, 1, until == CLOCK_NEVER ? NULL : &ts, NULL);
    if (read(r->wake_fd, &count, sizeof count) < 0)
        return; /* time was up */
}

void *relay_watch(void *relay)
{
    struct relay *r = relay;
    bool stopping = false;
    char said[HEALTH_TEXT] = "";
    int64_t feed_at = r->notify.watchdog_ns ? 0 : CLOCK_NEVER;
    while (!atomic_load(&r->done)) {
        if (atomic_load(&r->open) && atomic_exchange(&r->reload, false))
            manage_reload(r->ob);
        if (atomic_load(&r->signal) && !stopping) {
            stopping = true;
            notify_send(&r->notify, "STOPPING=1\nSTATUS=finishing what is in flight");
        }
        int64_t now = clock_mono(&clock_system);
        if (now >= feed_at) {
            feed(r, said);
            feed_at = now + r->notify.watchdog_ns / 2;
        }
        int64_t tell = logger_tell(&r->logger, now), tick = admin_tick(r->admin, now);
        int64_t next = tell < tick ? tell : tick;
        sleep_until(r, next < feed_at ? next : feed_at);
    }
    return NULL;
}
