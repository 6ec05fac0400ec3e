/* test.c: functions for the tests of applications (include/outbox_test.h). */
#include "outbox_test.h"

#include "api/api_impl.h"

/* Rounds without a delivery before outbox_test_deliver gives up: an event that every worker leaves
 * to others would be delivered again forever. */
#define IDLE_MAX 1000

OUTBOX_API int outbox_test_open(outbox **ret, outbox_error *err)
{
    return api_open("sqlite::memory:", NULL, true, ret, err_of(err));
}

OUTBOX_API void outbox_test_advance(outbox *ob, int64_t ms)
{
    if (ms > 0)
        atomic_fetch_add(&ob->clock_offset, ms * MS_NS);
}

/* ---- deliver everything ---- */

/* Finds out when the next retry or delay of any consumer is due; *ret == 0: none. A paused consumer
 * does not count: waiting would not deliver its events. */
static int next_due(outbox *ob, int64_t *ret, struct error *err)
{
    struct arena a;
    struct consumer_info *list;
    size_t n;
    *ret = 0;
    arena_init(&a, 0);
    int result = ob->st->ops->consumer_list(ob->st, NULL, &a, &list, &n, err);
    for (size_t i = 0; result == 0 && i < n; i++) {
        int64_t due = list[i].next_due;
        bool counts = due > 0 && !list[i].paused;
        if (counts && (*ret == 0 || due < *ret))
            *ret = due;
    }
    arena_release(&a);
    return result;
}

/* outbox_test_deliver steps, moves the clock to the next retry or delay, and steps again, until
 * nothing is left to wait for. A failed event does not end it: its retries follow. */
OUTBOX_API int outbox_test_deliver(outbox *ob, size_t *ret_delivered, outbox_error *public_err)
{
    size_t total = 0;
    int idle = 0;
    int result = 0;
    while (idle < IDLE_MAX) {
        size_t n;
        outbox_error why;
        if (outbox_step(ob, &n, &why) != 0) {
            result = -1;
            if (public_err)
                *public_err = why;
            if (why.retry_class != OUTBOX_CLASS_RETRY)
                break;
        }
        total += n;
        idle++;
        if (n > 0)
            idle = 0;

        /* An event's failure is more useful to the caller than the failure to find the next
         * event. */
        int64_t due;
        struct error *err = result == 0 ? err_of(public_err) : NULL;
        if (next_due(ob, &due, err) != 0)
            result = -1;
        if (due == 0)
            break;
        outbox_test_advance(ob, due - clock_wall(&ob->clock) + 1);
    }
    if (ret_delivered)
        *ret_delivered = total;
    return result;
}

/* ---- the emitted events ---- */

/* A walk over all events, in pages of 1,000. (1) visit == NULL: the callback asked to stop. (2)
 * last is the seq of the event visited last, seen the number visited in this page. */
struct visiting {
    int (*visit)(void *ctx, const outbox_event *ev);
    void *ctx;
    int64_t last;
    size_t seen;
};

static int visit_event(void *ctx, const struct event *ev, const struct delivery_info *info,
                       size_t n)
{
    struct visiting *v = ctx;
    struct delivery d = {.ev = ev, .attempt = 0};
    (void)info;
    (void)n;
    v->last = ev->seq;
    v->seen++;
    int stop = v->visit(v->ctx, (const outbox_event *)&d);
    if (stop)
        v->visit = NULL;
    return stop;
}

OUTBOX_API int outbox_test_each(outbox *ob, int (*visit)(void *ctx, const outbox_event *ev),
                                void *ctx, outbox_error *err)
{
    struct visiting v = {.visit = visit, .ctx = ctx};
    do {
        struct event_query q = {.after = v.last, .limit = 1000};
        v.seen = 0;
        pthread_mutex_lock(&ob->lock);
        int r = ob->st->ops->events(ob->st, &q, visit_event, &v, err_of(err));
        pthread_mutex_unlock(&ob->lock);
        if (r != 0)
            return -1;
    } while (v.seen > 0 && v.visit);
    return 0;
}

/* The criteria of outbox_test_count, and the number of events that match. */
struct counting {
    const char *type, *aggregate_id, *part; /* NULL: any */
    int n;
};

static int count_matching(void *ctx, const outbox_event *ev)
{
    struct counting *c = ctx;
    const char *id = outbox_event_aggregate_id(ev);
    const char *payload = outbox_event_payload(ev, NULL);
    bool has_type = !c->type || filter_matches(str_of(c->type), str_of(outbox_event_type(ev)));
    bool has_id = !c->aggregate_id || (id && strcmp(id, c->aggregate_id) == 0);
    bool has_part = !c->part || strstr(payload, c->part);
    if (has_type && has_id && has_part)
        c->n++;
    return 0;
}

OUTBOX_API int outbox_test_count(outbox *ob, const char *type, const char *aggregate_id,
                                 const char *payload_part, outbox_error *err)
{
    struct counting c = {.type = type, .aggregate_id = aggregate_id, .part = payload_part};
    if (outbox_test_each(ob, count_matching, &c, err) != 0)
        return -1;
    return c.n;
}
