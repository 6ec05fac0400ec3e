/* relay.c: the tasks of a running relay besides delivery: it keeps the settings of its consumers,
 * reloads the config, and watches the process. */
#include "cli/relay.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "admin/access.h"
#include "base/arena.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/num.h"

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
    ssize_t written = write(r->wake_fd, &one, sizeof one);
    (void)written; /* it only fails if the thread is awake already */
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

/* Returns the value of a consumer's option in a config; NULL if it is not set. */
static const char *given_in(const struct config *config, const char *name, size_t option)
{
    const struct given *g = config_get(config, name, &consumer_options[option]);
    return g ? g->value : NULL;
}

static int note_settings(struct relay_consumer *c, const struct config *config, const char *name,
                         struct error *err)
{
    *c = (struct relay_consumer){0};
    arena_init(&c->arena, 0);
    c->name = arena_bytes(&c->arena, name, strlen(name));
    c->values = arena_zalloc(&c->arena, n_options(), sizeof *c->values);
    bool copied = c->name && c->values;
    for (size_t i = 0; copied && i < n_options(); i++) {
        const char *value = given_in(config, name, i);
        if (value)
            c->values[i] = arena_bytes(&c->arena, value, strlen(value));
        copied = !value || c->values[i];
    }
    if (copied)
        return 0;
    arena_release(&c->arena);
    return err_nomem(err);
}

/* Creates the consumer in the outbox, with the settings noted. */
static int make_consumer(struct relay *r, struct relay_consumer *c, struct error *err)
{
    if (outbox_consumer_new(r->ob, c->name, &c->c, relay_error(err)) != 0)
        return -1;
    for (size_t i = 0; i < n_options(); i++) {
        const char *value = c->values[i];
        if (value &&
            outbox_consumer_set(c->c, consumer_options[i].name, value, relay_error(err)) != 0)
            return err_prefix(err, "consumer \"%s\"", c->name);
    }
    return 0;
}

int relay_consumer_add(struct relay *r, const struct config *config, const char *name,
                       struct error *err)
{
    struct relay_consumer *grown = array_grow(r->consumer, r->n_consumers, sizeof *grown);
    if (!grown)
        return err_nomem(err);
    r->consumer = grown;

    struct relay_consumer *c = &grown[r->n_consumers];
    if (note_settings(c, config, name, err) != 0)
        return -1;
    r->n_consumers++;
    return make_consumer(r, c, err);
}

static void drop_consumer(struct relay *r, size_t i)
{
    arena_release(&r->consumer[i].arena);
    r->n_consumers--;
    for (; i < r->n_consumers; i++)
        r->consumer[i] = r->consumer[i + 1];
}

void relay_release(struct relay *r)
{
    while (r->n_consumers > 0)
        drop_consumer(r, r->n_consumers - 1);
    free(r->consumer);
    r->consumer = NULL;
}

/* ---- checking ---- */

/* The first of several problems, and their number. */
struct refusal {
    size_t n;
    struct error *err;
};

/* Keeps the first problem and counts the others. Warnings do not keep a relay from running. */
static void note_refusal(void *ctx, const struct problem *p)
{
    struct refusal *f = ctx;
    if (p->warning)
        return;
    f->n++;
    if (f->n > 1)
        return;

    err_set(f->err, ERR_CONFIG, "%s", p->text);
    if (p->where)
        err_prefix(f->err, "%s", p->where);
}

int relay_check(const struct config *config, struct error *err)
{
    struct refusal f = {.err = err};
    config_check(config, false, note_refusal, &f);
    if (f.n == 0)
        return 0;
    if (f.n > 1) {
        size_t at = strlen(err->text);
        snprintf(err->text + at, sizeof(err->text) - at,
                 " (one of %zu problems; `outbox config check` lists all)", f.n);
    }
    return -1;
}

int relay_tokens(const struct cli *cli, struct tokens **ret, struct error *err)
{
    const char *file = cli->settings.listen_token_file;
    const char *variable = cli->settings.listen_token_env;
    *ret = NULL;
    if (!file && !variable)
        return 0;
    if (access_tokens_load(file, variable, ret, err) == 0)
        return 0;
    return err_prefix(err, "%s", file ? "listen-token-file" : "listen-token-env");
}

/* ---- reloading the config ---- */

/* The result of a reload. */
struct changes {
    size_t added, removed, changed, failed;
};

/* Whether a consumer runs with the settings that the config has for it. */
static bool same_settings(const struct relay_consumer *c, const struct config *config)
{
    for (size_t i = 0; i < n_options(); i++) {
        const char *is = given_in(config, c->name, i), *was = c->values[i];
        bool same = is && was ? strcmp(is, was) == 0 : is == was;
        if (!same)
            return false;
    }
    return true;
}

/* Whether a consumer stopped on its own, or is standing by. */
static bool is_idle(const struct relay *r, const char *name)
{
    struct worker_view *v;
    size_t n;
    bool idle = false;
    if (supervisor_views(&r->ob->sv, &v, &n, NULL) != 0)
        return false;
    for (size_t i = 0; i < n; i++) {
        bool works = v[i].state < PIPELINE_STOPPED && !v[i].stats.standby_why.code;
        if (!works && strcmp(v[i].consumer, name) == 0)
            idle = true;
    }
    free(v);
    return idle;
}

static void stop_consumer(struct relay_consumer *c)
{
    if (c->c)
        api_consumer_stop(c->c);
    c->c = NULL;
}

/* Creates and starts a consumer. With `strict` it fails instead of standing by. */
static int start_consumer(struct relay *r, struct relay_consumer *c, bool strict, struct error *err)
{
    c->c = NULL;
    int result = make_consumer(r, c, err);
    if (result == 0)
        result = api_consumer_start(c->c, strict, err);
    if (result != 0)
        stop_consumer(c);
    return result;
}

static void remove_unwanted(struct relay *r, const struct config *config, struct changes *did)
{
    size_t n;
    const struct named *names = config_consumers(config, &n);
    for (size_t i = r->n_consumers; i-- > 0;) {
        struct relay_consumer *c = &r->consumer[i];
        size_t at = 0;
        while (at < n && strcmp(names[at].name, c->name) != 0)
            at++;
        if (at < n)
            continue;
        stop_consumer(c);
        relay_log(r, LOG_INFO_, c->name,
                  "stopped: no longer in the config; the store keeps the consumer's position and "
                  "events until you run `outbox consumers remove`");
        drop_consumer(r, i);
        did->removed++;
    }
}

/* Replaces a running consumer with one that has the settings in the config. If a consumer that was
 * working would stand by with the new settings, that is a failure. On failure c->c is NULL if the
 * old one was stopped. */
static int restart_consumer(struct relay *r, struct relay_consumer *c, const struct config *config,
                            struct error *err)
{
    struct relay_consumer next;
    bool worked = !is_idle(r, c->name);
    if (note_settings(&next, config, c->name, err) != 0)
        return -1;

    stop_consumer(c);
    if (start_consumer(r, &next, worked, err) != 0) {
        arena_release(&next.arena);
        return -1;
    }
    arena_release(&c->arena);
    *c = next;
    return 0;
}

/* Applies the new settings of a consumer or, if that fails, keeps the old ones. */
static void change_consumer(struct relay *r, size_t i, const struct config *config,
                            struct changes *did)
{
    struct relay_consumer *c = &r->consumer[i];
    struct error err;
    if (restart_consumer(r, c, config, &err) == 0) {
        did->changed++;
        relay_log(r, LOG_INFO_, c->name, "restarted with new settings");
        return;
    }

    did->failed++;
    relay_log(r, LOG_ERROR_, c->name, "could not apply the new settings: %s; keeping the old ones",
              err.text);
    if (c->c)
        return;
    if (start_consumer(r, c, false, &err) == 0)
        return;
    relay_log(r, LOG_ERROR_, c->name, "could not be restarted: %s; it is not running", err.text);
    drop_consumer(r, i);
}

/* Starts a consumer that is new in the config; on failure it removes the consumer again. */
static void add_consumer(struct relay *r, const struct config *config, const char *name,
                         struct changes *did)
{
    struct error err;
    size_t before = r->n_consumers;
    int result = relay_consumer_add(r, config, name, &err);
    if (result == 0)
        result = api_consumer_start(r->consumer[before].c, false, &err);
    if (result == 0) {
        did->added++;
        relay_log(r, LOG_INFO_, name, "started: new in the config");
        return;
    }

    if (r->n_consumers > before) {
        stop_consumer(&r->consumer[before]);
        drop_consumer(r, before);
    }
    did->failed++;
    relay_log(r, LOG_ERROR_, name, "new in the config, but could not be started: %s", err.text);
}

/* Makes the running consumers match the config. One that stopped on its own is restarted, even with
 * the same settings. */
static void apply_config(struct relay *r, const struct config *config, struct changes *did)
{
    size_t n;
    const struct named *names = config_consumers(config, &n);
    remove_unwanted(r, config, did);
    for (size_t i = 0; i < n; i++) {
        size_t at = 0;
        while (at < r->n_consumers && strcmp(r->consumer[at].name, names[i].name) != 0)
            at++;
        if (at == r->n_consumers)
            add_consumer(r, config, names[i].name, did);
        else if (!same_settings(&r->consumer[at], config) || is_idle(r, names[i].name))
            change_consumer(r, at, config, did);
    }
    r->abandoned = r->n_consumers == 0;
}

/* Logs the names of changed settings that only take effect at the next start, but not their values:
 * one may be a password. */
static void say_fixed(struct relay *r, const struct config *config)
{
    for (const struct option_def *o = config_options; o->name; o++) {
        const char *was = config_value(&r->cli->config, NULL, o);
        const char *is = config_value(config, NULL, o);
        bool same = strcmp(was ? was : "", is ? is : "") == 0;
        bool reloads = strcmp(o->name, "log-level") == 0;
        bool unused = strcmp(o->name, "color") == 0; /* a relay prints no tables */
        if (same || reloads || unused)
            continue;
        relay_log(r, LOG_WARN_, NULL,
                  "%s cannot change while a relay runs; the old value stays in effect until the "
                  "relay is restarted",
                  o->name);
    }
}

/* Puts the tokens now in the file into effect, or keeps the current ones if the file is invalid. */
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
    relay_log(r, LOG_ERROR_, NULL, "%s; keeping the previous tokens", err.text);
}

/* Reads the config and, if a relay could run with all of it, applies it. Otherwise nothing
 * changes. */
static void reload_config(struct relay *r, struct changes *did)
{
    struct config config;
    struct settings s;
    struct error err;
    bool usable = config_again(&r->cli->config, &config, &err) == 0;
    usable = usable && config_settings(&config, &s, &err) == 0;
    usable = usable && relay_check(&config, &err) == 0;
    if (!usable) {
        relay_log(r, LOG_ERROR_, NULL, "could not reload the config: %s; keeping the old one",
                  err.text);
        did->failed++;
        config_release(&config);
        return;
    }

    /* The engine and the relay filter log lines separately. */
    atomic_store_explicit(&r->ob->log.least, s.log_level, memory_order_relaxed);
    atomic_store(&r->log_level, s.log_level);
    say_fixed(r, &config);
    apply_config(r, &config, did);
    read_tokens(r, did);
    relay_log(r, LOG_INFO_, NULL,
              "reloaded the config: %zu consumers added, %zu removed, %zu changed, %zu failed",
              did->added, did->removed, did->changed, did->failed);
    config_release(&config);
}

static void say_ready(struct relay *r)
{
    notify_send(&r->notify, "READY=1\nSTATUS=consumers: %zu", r->n_consumers);
}

void relay_reload(void *relay)
{
    struct relay *r = relay;
    struct changes did = {0};
    notify_send(&r->notify, "RELOADING=1\nMONOTONIC_USEC=%lld\nSTATUS=reloading the config",
                (long long)(clock_mono(&clock_system) / 1000));
    reload_config(r, &did);
    atomic_fetch_add(&r->admin_cfg.reloads[did.failed ? 1 : 0], 1);
    say_ready(r);
}

/* ---- watching ---- */

void relay_waits(struct relay *r, const char *why)
{
    pthread_mutex_lock(&r->admin_cfg.lock);
    if (why)
        snprintf(r->admin_cfg.waits, sizeof r->admin_cfg.waits, "waiting for the store: %s", why);
    else
        r->admin_cfg.waits[0] = '\0';
    pthread_mutex_unlock(&r->admin_cfg.lock);
}

void relay_started(void *relay)
{
    struct relay *r = relay;
    atomic_store(&r->started, true);
    relay_waits(r, NULL);
    say_ready(r);
}

/* Waits for the eventfd or a time, and resets the eventfd. */
static void sleep_until(struct relay *r, int64_t until)
{
    struct pollfd fd = {.fd = r->wake_fd, .events = POLLIN};
    struct timespec ts = {0}, *timeout = NULL;
    if (until != CLOCK_NEVER) {
        int64_t left = until - clock_mono(&clock_system);
        if (left > 0)
            ts = (struct timespec){left / 1000000000, left % 1000000000};
        timeout = &ts;
    }
    ppoll(&fd, 1, timeout, NULL);

    uint64_t count;
    ssize_t got = read(r->wake_fd, &count, sizeof count);
    (void)got; /* it only fails if the time has passed */
}

/* Tells the service manager once that a signal has ended the run. */
static void say_stopping(struct relay *r, bool *said)
{
    if (*said || !atomic_load(&r->signal))
        return;

    *said = true;
    notify_send(&r->notify, "STOPPING=1\nSTATUS=finishing deliveries in flight");
}

/* Sleeps until the nearest of its deadlines, or until relay_wake. While the relay is alive, it
 * feeds the watchdog twice per interval. */
void *relay_watch(void *relay)
{
    struct relay *r = relay;
    bool said_stopping = false;
    char said[HEALTH_TEXT] = "";
    int64_t feed_at = r->notify.watchdog_ns ? 0 : CLOCK_NEVER;
    while (!atomic_load(&r->done)) {
        /* A reload requested before the outbox is open waits until it is. */
        if (atomic_load(&r->open) && atomic_exchange(&r->reload, false))
            supervisor_reload(&r->ob->sv);
        say_stopping(r, &said_stopping);

        int64_t now = clock_mono(&clock_system);
        if (now >= feed_at) {
            struct health h = admin_health(&r->admin_cfg, NULL, NULL);
            if (h.alive)
                notify_send(&r->notify, "WATCHDOG=1");
            if (strcmp(said, h.text) != 0) {
                snprintf(said, sizeof said, "%s", h.text);
                notify_send(&r->notify, "STATUS=%s", said[0] ? said : "all consumers are working");
            }
            feed_at = now + r->notify.watchdog_ns / 2;
        }
        int64_t next = min_i64(logger_tell(&r->logger, now), admin_tick(r->admin, now));
        sleep_until(r, min_i64(next, feed_at));
    }
    say_stopping(r, &said_stopping); /* a stop may be over before this thread runs */
    return NULL;
}
