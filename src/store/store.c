/* store.c: the registry of stores, and functions that all of them share. */
#include "store/store.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/text.h"

#define KINDS_MAX 8
#define LIST_MAX 300

extern const struct store_ops store_sqlite, store_postgres, store_postgresql;
#ifdef OUTBOX_MARIADB
extern const struct store_ops store_mariadb;
#endif

const struct store_ops *const store_kinds[] = {&store_sqlite, &store_postgres, &store_postgresql,
#ifdef OUTBOX_MARIADB
                                               &store_mariadb,
#endif
                                               NULL};

const char *const delivery_state_names[STATE_COUNT + 1] = {"pending", "in-flight",    "delivered",
                                                           "failed",  "expired",      "skipped",
                                                           "dropped", "before-start", NULL};

const char *const finding_level_names[FINDING_LEVELS + 1] = {"ok", "note", "warning", "problem",
                                                             NULL};

const struct store_ops *store_kind(const char *url)
{
    for (size_t i = 0; store_kinds[i]; i++) {
        size_t n = strlen(store_kinds[i]->scheme);
        if (strncmp(url, store_kinds[i]->scheme, n) == 0 && url[n] == ':')
            return store_kinds[i];
    }
    return NULL;
}

bool store_is(const struct store *st, const char *scheme)
{
    return strcmp(st->ops->scheme, scheme) == 0;
}

/* Writes "sqlite:PATH or sqlite::memory:, postgres://...", each kind once. */
static void list_kinds(char out[LIST_MAX])
{
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = 0; store_kinds[i] && n < LIST_MAX; i++) {
        bool again = i > 0 && strcmp(store_kinds[i]->synopsis, store_kinds[i - 1]->synopsis) == 0;
        if (!again)
            n += (size_t)snprintf(out + n, LIST_MAX - n, "%s%s", n ? ", " : "",
                                  store_kinds[i]->synopsis);
    }
}

int store_url_check(const char *url, struct error *err)
{
    if (store_kind(url))
        return 0;
    const char *colon = strchr(url, ':');
    if (!colon)
        return err_set(err, ERR_CONFIG,
                       "store \"%.100s\" is not a URL: for a SQLite file write sqlite:%.100s", url,
                       url);

    const char *names[KINDS_MAX] = {NULL};
    for (size_t i = 0; store_kinds[i]; i++)
        names[i] = store_kinds[i]->scheme;
    char scheme[32], hint[TEXT_HINT], have[LIST_MAX];
    snprintf(scheme, sizeof scheme, "%.*s", (int)(colon - url), url);
    list_kinds(have);
    if (strcmp(scheme, "mariadb") == 0)
        return err_set(err, ERR_CONFIG,
                       "the mariadb store is not part of this build, which found no "
                       "libmariadb-dev; it has: %s",
                       have);
    text_hint(scheme, names, (struct text_hint){.after = ":"}, hint);
    return err_set(err, ERR_CONFIG, "store \"%s:\" is not known%s; this build has: %s", scheme,
                   hint, have);
}

int store_open(const char *url, const struct store_options *opt, struct store **ret,
               struct error *err)
{
    const struct store_ops *kind = store_kind(url);
    if (!kind)
        return store_url_check(url, err); /* reports what is wrong with it */
    return kind->open(url, opt, ret, err);
}

void store_close(struct store *st)
{
    if (st)
        st->ops->close(st);
}

int store_name_check(const char *name, struct error *err)
{
    size_t n = strlen(name);
    size_t ok = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-");
    if (n == 0)
        return err_set(err, ERR_CONFIG, "a consumer needs a name");
    if (n > STORE_NAME_MAX)
        return err_set(err, ERR_CONFIG, "consumer name \"%.70s...\" is longer than %d characters",
                       name, STORE_NAME_MAX);
    if (ok < n)
        return err_set(err, ERR_CONFIG,
                       "consumer name \"%s\": character %zu is not one of A-Z a-z 0-9 _ . -", name,
                       ok + 1);
    return 0;
}

int store_spec_check(const struct consumer_spec *c, struct error *err)
{
    if (store_name_check(c->name, err) != 0)
        return -1;
    if (c->lanes < 1 || c->lanes > STORE_LANES_MAX)
        return err_set(err, ERR_CONFIG, "consumer \"%s\": lanes must be 1 to %d", c->name,
                       STORE_LANES_MAX);
    if (c->order == ORDER_GLOBAL && c->lanes > 1)
        return err_set(err, ERR_CONFIG,
                       "consumer \"%s\": order = global has one lane; remove lanes, or use order = "
                       "key",
                       c->name);
    return 0;
}

const char *const store_order_names[] = {"none", "key", "global", NULL};

enum order store_order_of(struct str name)
{
    if (str_is(name, "none"))
        return ORDER_NONE;
    if (str_is(name, "global"))
        return ORDER_GLOBAL;
    return ORDER_KEY;
}

uint64_t store_order_key(enum order order, uint64_t key)
{
    switch (order) {
    case ORDER_NONE: return 0;
    case ORDER_GLOBAL: return 1;
    case ORDER_KEY: break;
    }
    return key;
}

int64_t store_seq_of(const char *id)
{
    char *end;
    if (!id || !*id)
        return 0;
    long long seq = strtoll(id, &end, 10);
    return *end ? 0 : (int64_t)seq;
}

int store_no_consumer(const char *name, struct error *err)
{
    return err_set(err, ERR_NOTFOUND,
                   "there is no consumer \"%s\"; `outbox consumers list` lists all consumers",
                   name);
}

/* Appends a setting in force if it differs from the one replaced. */
static void add_difference(struct buf *b, const char *name, const char *now, const char *old)
{
    if (strcmp(now, old) == 0)
        return;
    if (b->n)
        buf_adds(b, ", ");
    buf_addf(b, "%s \"%.60s\"", name, now);
}

static const char *shown_events(const char *events)
{
    return *events ? events : "*";
}

int store_replaced(const char *name, const struct consumer_settings *now,
                   const struct consumer_settings *old, struct error *err)
{
    char at[CLOCK_RFC3339_SIZE], lanes_now[16], lanes_old[16];
    struct buf b;
    buf_init(&b, 1024);
    snprintf(lanes_now, sizeof lanes_now, "%d", now->lanes);
    snprintf(lanes_old, sizeof lanes_old, "%d", old->lanes);
    add_difference(&b, "events", shown_events(now->events), shown_events(old->events));
    add_difference(&b, "where", now->where, old->where);
    add_difference(&b, "order", store_order_names[now->order], store_order_names[old->order]);
    add_difference(&b, "lanes", lanes_now, lanes_old);
    clock_rfc3339(now->since, at);

    const char *by = now->by ? now->by : "an unknown user";
    err_set(err, ERR_CONFLICT,
            "consumer \"%s\" was given other settings at %.19sZ by %.60s: %s; these replaced the "
            "settings requested here; to restore those: outbox consumers revert %s --to %d",
            name, at, by, b.n ? buf_cstr(&b) : "", name, old->generation);
    buf_release(&b);
    return -1;
}

int store_removable(const char *name, int64_t dead, int64_t parked, int64_t live, struct error *err)
{
    bool nothing = !dead && !parked && !live;
    if (nothing)
        return 0;
    return err_set(err, ERR_CONFLICT,
                   "consumer \"%s\" has %lld dead letters, %lld parked events and %lld live "
                   "claims, which would be lost; --force removes it anyway",
                   name, (long long)dead, (long long)parked, (long long)live);
}

bool store_in_state(const struct event_query *q, const struct delivery_info *d, int64_t now_ms)
{
    if (q->unprocessed) {
        bool due_again = d->state == STATE_FAILED && d->due_at > 0 && d->due_at <= now_ms;
        return d->state == STATE_PENDING || due_again;
    }
    return !q->state || (int)d->state == q->state - 1;
}

bool store_says_down(const char *report)
{
    return report && strncmp(report, "sink is down", strlen("sink is down")) == 0;
}

/* ---- counts by type ---- */

struct topic {
    const char *type;
    int64_t n[TOPIC_PLACES];
    int64_t oldest_at;
};

/* Finds the entry of a type, or appends it; NULL: out of memory. */
static struct topic *topic_of(struct topics *t, const struct topic_find *f, struct error *err)
{
    for (size_t i = 0; i < t->n; i++)
        if (str_is(f->type, t->list[i].type))
            return &t->list[i];

    struct topic *list = arena_grow(t->a, t->list, t->n, sizeof *list);
    const char *name = arena_bytes(t->a, f->type.p, f->type.n);
    if (!list || !name) {
        err_nomem(err);
        return NULL;
    }
    t->list = list;
    t->list[t->n] = (struct topic){.type = name, .oldest_at = f->oldest_at};
    return &t->list[t->n++];
}

int store_topics_add(struct topics *t, const struct topic_find *f, struct error *err)
{
    struct topic *to = topic_of(t, f, err);
    if (!to)
        return -1;
    to->n[f->place] += f->n;
    bool older = f->oldest_at && (!to->oldest_at || f->oldest_at < to->oldest_at);
    if (older)
        to->oldest_at = f->oldest_at;
    return 0;
}

static int most_first(const void *a, const void *b)
{
    const struct gauge_type *x = a, *y = b;
    if (x->n != y->n)
        return x->n < y->n ? 1 : -1;
    return strcmp(x->type, y->type);
}

int store_topics_end(struct topics *t, const int64_t all[TOPIC_PLACES], struct consumer_gauge *g,
                     struct error *err)
{
    int64_t sample[TOPIC_PLACES] = {0};
    for (size_t i = 0; i < t->n; i++)
        for (size_t place = 0; place < TOPIC_PLACES; place++)
            sample[place] += t->list[i].n[place];

    struct gauge_type *list = arena_zalloc(t->a, t->n + 1, sizeof *list);
    if (!list)
        return err_nomem(err);
    for (size_t i = 0; i < t->n; i++) {
        const struct topic *from = &t->list[i];
        list[i] = (struct gauge_type){.type = from->type, .oldest_at = from->oldest_at};
        for (size_t place = 0; place < TOPIC_PLACES; place++) {
            double n = (double)from->n[place];
            if (all[place] > sample[place] && sample[place] > 0)
                n = n * (double)all[place] / (double)sample[place];
            list[i].n += (int64_t)(n + 0.5);
        }
    }
    if (t->n)
        qsort(list, t->n, sizeof *list, most_first);
    g->type = list;
    g->n_types = t->n;
    return 0;
}

/* ---- trimming ---- */

/* Target duration of a call. After a call that takes 1.5 times as long, the next one is half as
 * large. On a server it is never below STORE_TRIM_ROWS, because smaller calls would cost more than
 * they save. */
#define SERVER_NS (20 * MS_NS)
#define WRITER_NS (2 * MS_NS)
#define ROWS_MOST 16000
#define ROWS_LEAST_WRITER 200

/* While a transaction stays open, a call that begins at the first event walks over the index
 * entries of deleted events. Such calls may take 1/ALL_SHARE of the time. */
#define ALL_SHARE 100

static size_t rows_least(bool one_writer)
{
    return one_writer ? ROWS_LEAST_WRITER : STORE_TRIM_ROWS;
}

void store_trim_took(struct trimming *t, bool one_writer, int64_t now_ns, int64_t took_ns,
                     const struct trim_result *res)
{
    /* The next call begins where this one ended, as long as there is more to do or it is too early
     * to start over at the first event. */
    bool was_all = t->after == 0;
    if (was_all)
        t->all_at = now_ns + took_ns * ALL_SHARE;
    bool due = now_ns >= t->all_at;
    t->after = res->upto;
    if (!res->more && due)
        t->after = 0;

    int64_t target = one_writer ? WRITER_NS : SERVER_NS;
    bool quick = took_ns < target / 2;
    bool slow = took_ns > target + target / 2;
    if (quick && t->rows <= ROWS_MOST / 2)
        t->rows *= 2;
    if (slow && t->rows / 2 >= rows_least(one_writer))
        t->rows /= 2;

    t->pause_ns = one_writer ? took_ns : took_ns / 4;
}

int store_trim_step(struct trimming *t, struct store *st, const struct clock *clock,
                    const struct trim_request *req, struct trim_result *ret, struct error *err)
{
    bool one_writer = (st->caps & STORE_ONE_WRITER) != 0;
    if (t->rows == 0)
        t->rows = rows_least(one_writer);
    struct trim_request step = *req;
    step.max_rows = t->rows;
    step.after = t->after;

    int64_t began = clock_mono(clock);
    if (st->ops->trim(st, &step, ret, err) != 0)
        return -1;
    int64_t now = clock_mono(clock);
    store_trim_took(t, one_writer, now, now - began, ret);
    return 0;
}
