/* redis_node.c: sends events to one server, and tracks what is in flight there. */
#include <stdio.h>
#include <stdlib.h>

#include "base/num.h"
#include "sink/redis_impl.h"

#define OUT_MAX ((size_t)2 << 30)    /* limit on queued bytes: one event may be large */
#define IN_MAX ((size_t)1 << 20)     /* ids, numbers, errors */
#define OUT_ENOUGH ((size_t)4 << 20) /* back-pressure until some of it is written */
/* larger events are sent alone: limits of a server are at least 1 MiB */
#define ALONE_BYTES ((size_t)960 << 10)
#define RESERVED 4 /* slots in the window for a WAIT and the lease */

/* A run is one script, and Redis does nothing else meanwhile: about half a millisecond for a full
 * one. */
#define RUN_EVENTS REDIS_RUN
#define RUN_BYTES ((size_t)256 << 10)
/* A script costs Redis twice as much per event as XADD, but saves us round trips. It does not pay
 * for very short chains if other keys use the time. */
#define RUN_MIN 4

int redis_node_new(struct redis_sink *r, struct redis_url *url, struct redis_node **ret,
                   struct error *err)
{
    struct redis_node *n = calloc(1, sizeof *n);
    if (!n) {
        redis_url_release(url);
        return err_nomem(err);
    }
    n->sink = r;
    n->url = *url;
    *url = (struct redis_url){0};
    redis_conn_init(&n->conn, &n->url, r->client, OUT_MAX, IN_MAX);
    if (window_init(&n->window, &r->b.base, REDIS_WINDOW, sizeof(struct redis_request), err) != 0) {
        redis_node_free(n);
        return -1;
    }
    *ret = n;
    return 0;
}

void redis_node_free(struct redis_node *n)
{
    if (!n)
        return;
    redis_conn_release(&n->conn);
    redis_url_release(&n->url);
    window_release(&n->window);
    free(n);
}

struct redis_request *redis_node_push(struct redis_node *n, enum request_kind kind,
                                      struct delivery *d, struct stream *st)
{
    struct redis_request *q = (struct redis_request *)window_add(&n->window, d, st);
    q->kind = kind;
    q->added = false;
    q->run = 0;
    q->hops = 0;
    if (!n->awaited)
        n->awaited = q;
    return q;
}

/* Connecting */

/* Closes a connection due for replacement, once nothing is in flight. */
static void drop_stale(struct redis_node *n)
{
    if (!n->stale || n->window.count > 0)
        return;
    redis_conn_close(&n->conn);
    n->stale = false;
}

/* An idle connection that the server has closed does not count as a failure. */
int redis_node_connect(struct redis_node *n, struct error *err)
{
    bool forgetting = n->window.events == 0 && n->window.count > 0;
    if (forgetting)
        redis_node_drive(n); /* pending replies have not been read yet */
    bool idle = n->conn.state != REDIS_CLOSED && n->window.count == 0;
    if (idle && redis_conn_idle_gone(&n->conn))
        n->stale = true;
    drop_stale(n);
    if (n->conn.state != REDIS_CLOSED)
        return 0;
    return redis_route_open(n, err);
}

/* Sending */

/* Whether an event must be sent alone: if it is more than the server accepts, it must not cost
 * other events their connection. */
static bool is_large(const struct event *ev)
{
    return event_bytes(ev) >= ALONE_BYTES;
}

bool redis_node_has_room(const struct redis_node *n, const struct event *ev)
{
    size_t busy = n->window.count;
    if (busy == 0)
        return true;
    bool lonely = n->alone || is_large(ev);
    if (lonely && n->window.events > 0)
        return false;
    if (redis_conn_queued(&n->conn) >= OUT_ENOUGH)
        return false;
    return busy + RESERVED < REDIS_WINDOW;
}

bool redis_node_goes_to(struct redis_sink *r, const struct event *ev, const struct stream *st)
{
    struct error err;
    if (r->fixed)
        return true;
    buf_clear(&r->stream_name);
    if (template_write(r->name, ev, &r->stream_name, &err) != 0)
        return false;
    return str_eq((struct str){r->stream_name.p, r->stream_name.n}, (struct str){st->name, st->n});
}

/* Returns how many of the deliveries, which start a chain, to send as one script: those that go to
 * the same stream, within bounds. A single event needs no script. With dedupe every event does, so
 * the script may include others that are not of its chain. */
static size_t run_length(const struct redis_node *n, struct delivery *const *d, size_t count,
                         const struct stream *st)
{
    struct redis_sink *r = n->sink;
    bool scripts = redis_now(r) >= r->scripts_from && st->plain == 0;
    bool once = r->set.dedupe;
    if (!scripts || is_large(d[0]->ev))
        return 1;

    size_t most = min_size(REDIS_WINDOW - RESERVED - n->window.count, min_size(count, RUN_EVENTS));

    size_t run = 1;
    size_t bytes = event_bytes(d[0]->ev);
    while (run < most && (d[run]->chained || once) && redis_node_goes_to(r, d[run]->ev, st)) {
        bytes += event_bytes(d[run]->ev);
        if (bytes > RUN_BYTES)
            break;
        run++;
    }
    if (run < RUN_MIN && !once)
        return 1;
    return run;
}

int redis_node_send(struct redis_node *n, struct delivery *const *d, size_t count,
                    struct stream *st, size_t *ret, struct error *err)
{
    size_t run = run_length(n, d, count, st);
    int rc;
    if (run == 1 && !n->sink->set.dedupe)
        rc = redis_command_xadd(n, d[0], st, err);
    else
        rc = redis_command_run(n, d, &run, st, err);
    if (rc != 0)
        return -1;
    for (size_t i = 0; i < run; i++) {
        struct redis_request *q = redis_node_push(n, REQUEST_XADD, d[i], st);
        q->run = i == 0 ? run : 0;
    }
    n->unwaited = n->sink->set.replicas > 0;
    n->alone = is_large(d[0]->ev);
    *ret = run;
    return 0;
}

void redis_node_forget(struct redis_node *n, const struct event *const *ev, size_t count,
                       struct str stream)
{
    bool possible = n->conn.state == REDIS_READY && n->window.count + RESERVED < REDIS_WINDOW;
    if (possible)
        redis_command_forget(n, ev, count, stream);
}

/* Queues a WAIT: no event before it counts as delivered until it has a reply. If out of memory, the
 * next drive tries again. */
static void add_wait(struct redis_node *n)
{
    const struct redis_settings *set = &n->sink->set;
    char replicas[24], ms[24];
    snprintf(replicas, sizeof replicas, "%lld", (long long)set->replicas);
    snprintf(ms, sizeof ms, "%lld", (long long)set->replicas_wait_ms);
    if (redis_conn_add(&n->conn, 3, (const char *[]){"WAIT", replicas, ms}, NULL) != 0)
        return;
    redis_node_push(n, REQUEST_WAIT, NULL, NULL);
    n->unwaited = false;
}

/* Time */

int64_t redis_node_deadline(const struct redis_node *n)
{
    if (n->unwaited)
        return 0;
    return window_due(&n->window);
}

void redis_node_drive(struct redis_node *n)
{
    struct error err;
    if (n->conn.state == REDIS_CLOSED)
        return;
    if (n->unwaited)
        add_wait(n);
    if (redis_conn_drive(&n->conn, redis_answer_reply, n, &err) != 0)
        redis_answer_lost(n, &err);
    if (redis_now(n->sink) >= window_due(&n->window)) {
        err_set(&err, ERR_UNAVAILABLE, "%s has not answered for %lld ms; %zu requests were waiting",
                n->url.label, (long long)n->sink->b.base.cfg.timeout_ms, n->window.count);
        redis_answer_lost(n, &err);
    }
    drop_stale(n);
}

/* Checks for replies once more: an event known to be delivered need not be retried. */
void redis_node_cancel(struct redis_node *n)
{
    struct error err;
    if (n->conn.state == REDIS_CLOSED)
        return;
    if (redis_conn_drive(&n->conn, redis_answer_reply, n, &err) != 0)
        redis_answer_all(n, SINK_CANCELLED, err.text);
    if (n->window.count > 0)
        redis_answer_all(n, SINK_CANCELLED, "cancelled");
}
