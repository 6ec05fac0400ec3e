/* cmd_events_retry.c: outbox events retry, which makes failed events and dead letters due
 * at once. */
#include "cli/cmd_events.h"

#include <string.h>

#include "base/arena.h"

/* What `events retry` does about one event. */
struct again {
    struct store *st;
    const char *consumer;   /* for this one only; NULL: for all */
    bool known;             /* there is such an event, or a dead letter of it */
    int64_t waited, buried; /* consumers for which it waited for a retry, or was a dead letter */
};

/* The consumers for which an event waits for a retry. They are collected first, because the listing
 * has the connection until it ends. (1) nomem: the list is incomplete. */
struct waiting {
    struct arena arena;
    int64_t seq;
    const char **consumer;
    size_t n;
    bool known, nomem;
};

static void add_waiting(struct waiting *w, const char *consumer)
{
    const char **list = arena_alloc(&w->arena, (w->n + 1) * sizeof *list);
    const char *name = arena_bytes(&w->arena, consumer, strlen(consumer));
    if (!list || !name)
        w->nomem = true;
    if (w->nomem)
        return;

    if (w->n)
        memcpy(list, w->consumer, w->n * sizeof *list);
    list[w->n++] = name;
    w->consumer = list;
}

static int collect_waiting(void *ctx, const struct event *ev, const struct delivery_info *d,
                           size_t n)
{
    struct waiting *w = ctx;
    w->known = true;
    w->seq = ev->seq;
    for (size_t i = 0; i < n; i++) {
        if (d[i].state == STATE_FAILED)
            add_waiting(w, d[i].consumer);
    }
    return 1;
}

/* collect_sent_back finds a dead letter that was sent back and waits for a retry. It holds the
 * whole event, and can be retried even if the event itself was trimmed. */
static int collect_sent_back(void *ctx, const struct dead_letter *d)
{
    struct waiting *w = ctx;
    w->known = true;
    w->seq = d->ev.seq;
    if (d->retrying)
        add_waiting(w, d->consumer);
    return w->nomem;
}

/* collect finds the consumers for which the event waits for a retry. */
static int collect(const struct again *g, const char *id, struct waiting *w, struct error *err)
{
    struct event_query q = {.id = id, .consumer = g->consumer, .limit = 1};
    struct dead_query dead = {.id = id, .consumer = g->consumer};
    if (g->st->ops->events(g->st, &q, collect_waiting, w, err) != 0)
        return -1;
    if (!w->known && g->st->ops->dead(g->st, &dead, collect_sent_back, w, err) != 0)
        return -1;
    if (w->nomem)
        return err_nomem(err);
    return 0;
}

static int retry_waiting(struct again *g, const struct waiting *w, struct error *err)
{
    for (size_t i = 0; i < w->n; i++) {
        bool waited = false;
        if (g->st->ops->retry_now(g->st, w->consumer[i], w->seq, &waited, err) != 0)
            return -1;
        if (waited)
            g->waited++;
    }
    return 0;
}

/* retry_event retries an event for every consumer for which it waits for a retry or is a dead
 * letter, and notes in g what was done. */
static int retry_event(struct again *g, const char *id, struct error *err)
{
    struct dead_query dead = {.id = id, .consumer = g->consumer};
    struct waiting w = {0};
    arena_init(&w.arena, 0);
    int r = collect(g, id, &w, err);
    if (r == 0)
        r = retry_waiting(g, &w, err);
    if (r == 0)
        r = g->st->ops->dead_retry(g->st, &dead, &g->buried, err);
    g->known = w.known || g->buried > 0;
    arena_release(&w.arena);
    return r;
}

/* not_retried says why there was nothing to retry. */
static int not_retried(const struct again *g, const char *id, struct error *err)
{
    if (!g->known)
        return cmd_events_unknown(id, err);
    if (g->consumer)
        return err_set(err, ERR_NOTFOUND,
                       "event \"%s\" neither waits for a retry nor is a dead letter of consumer "
                       "\"%s\"; `outbox events show %s` shows its state",
                       id, g->consumer, id);
    return err_set(err, ERR_NOTFOUND,
                   "event \"%s\" neither waits for a retry nor is a dead letter; `outbox events "
                   "show %s` shows its state",
                   id, id);
}

static void add_text(struct buf *b, const char *id, const struct again *g)
{
    char n[OUTPUT_COUNT];
    output_addf(b, "%s: retrying now for %s", id,
                output_count(g->waited + g->buried, "consumer", n));
    if (g->buried)
        buf_addf(b, " (a dead letter of %lld)", (long long)g->buried);
    buf_addc(b, '\n');
}

static void add_json(struct buf *b, const char *id, const struct again *g)
{
    bool first = b->n == 1; /* right after the bracket */
    buf_adds(b, first ? "\n{" : ",\n{");
    output_string(b, "event", id);
    output_number(b, "waited", g->waited);
    output_number(b, "dead", g->buried);
    buf_addc(b, '}');
}

/* The events named in the arguments. (1) failed: err holds the first failure. */
struct round {
    const struct cli *cli;
    struct store *st;
    struct buf b;
    bool failed;
    struct error *err;
};

static void note_failure(struct round *r, const struct error *why)
{
    if (!r->failed)
        *r->err = *why;
    r->failed = true;
}

/* retry_one retries one event. False: the store failed, and the rest need not be tried. */
static bool retry_one(struct round *r, const char *id)
{
    struct again g = {.st = r->st, .consumer = r->cli->args.events.consumer};
    struct error why;
    if (retry_event(&g, id, &why) != 0) {
        note_failure(r, &why);
        return false;
    }

    if (g.waited + g.buried == 0) {
        not_retried(&g, id, &why);
        note_failure(r, &why);
    } else if (r->cli->args.json) {
        add_json(&r->b, id, &g);
    } else {
        add_text(&r->b, id, &g);
    }
    return true;
}

/* cmd_events_retry tries every event, also after one that cannot be retried, and prints what was
 * done even if it fails. */
int cmd_events_retry(struct cli *cli, struct error *err)
{
    const struct args *a = &cli->args;
    struct round r = {.cli = cli, .err = err};
    if (commands_store(cli, &r.st, err) != 0)
        return -1;

    buf_init(&r.b, OUTPUT_MAX);
    if (a->json)
        buf_addc(&r.b, '[');
    for (int i = 0; i < a->n_pos; i++) {
        if (!retry_one(&r, a->pos[i]))
            break;
    }
    if (a->json)
        buf_adds(&r.b, "\n]\n");

    struct error unprinted;
    if (output_flush(&r.b, &unprinted) != 0)
        note_failure(&r, &unprinted);
    buf_release(&r.b);
    store_close(r.st);
    return r.failed ? -1 : 0;
}
