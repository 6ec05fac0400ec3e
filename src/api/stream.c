/* stream.c: outbox_consume, which passes the events of a Redis stream to a handler. */
#include "api/api_impl.h"
#include "base/wake_fd.h"
#include "extra/streams/stream_reader.h"

/* What the reader passes to handle_event. */
struct reading {
    outbox *ob;
    struct store *st;
    const outbox_stream *s;
};

/* Calls the handler, unless the event was handled before. *ret_first: it was not. */
static int handle_in_tx(const struct reading *r, const struct event *ev, bool *ret_first,
                        struct error *err)
{
    struct delivery d = {.ev = ev, .attempt = 1};
    if (r->st->ops->handle_once(r->st, NULL, str_of(r->s->group), ev->id, ev->payload, ret_first,
                                err) != 0)
        return -1;
    if (!*ret_first)
        return 0;
    if (r->s->handler(r->ob, (const outbox_event *)&d, r->s->ctx) != 0)
        return err_set(err, ERR_INVALID, "the handler did not return 0");
    return 0;
}

/* Makes one event take effect. The record that it was handled and the handler's work are one
 * transaction. */
static int handle_event(void *ctx, const struct event *ev, struct error *err)
{
    const struct reading *r = ctx;
    bool first = false;
    if (outbox_begin(r->ob, (outbox_error *)err) != 0)
        return -1;
    int rc = handle_in_tx(r, ev, &first, err);
    if (rc == 0 && first)
        return outbox_commit(r->ob, (outbox_error *)err);
    outbox_rollback(r->ob);
    return rc;
}

/* outbox_consume can be stopped with outbox_stop, like outbox_run. It resets the stop at its end,
 * so that it can be called again. */
OUTBOX_API int outbox_consume(outbox *ob, const outbox_stream *s, outbox_error *err)
{
    struct reading r = {ob, ob->st, s};
    struct error *e = (struct error *)err;
    if (!s->url || !s->group || !s->handler)
        return err_set(e, ERR_MISUSE, "outbox_consume needs a url, a group and a handler");
    struct error own;
    struct stream_reader_config cfg = {
        .url = s->url,
        .group = s->group,
        .name = s->name,
        .from = s->from,
        .claim_ms = s->claim_ms,
        .until_through = (s->flags & OUTBOX_UNTIL_THROUGH) != 0,
        .wake = ob->sv.stop_fd,
        .log = &ob->log,
        .handle = handle_event,
        .ctx = &r,
    };
    int rc = stream_reader_run(&cfg, NULL, e ? e : &own);
    atomic_store(&ob->sv.stop, false);
    wake_fd_clear(ob->sv.stop_fd);
    return rc;
}
