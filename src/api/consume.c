/* consume.c: outbox_consume, the reading end of a stream. */
#include "engine/consume.h"
#include <unistd.h>

#include "api/handle.h"

struct reading {
    outbox *ob;
    struct store *st;
    const outbox_stream *s;
};

static int failed(struct error *err)
{
    return err_set(err, ERR_INVALID, "the handler did not return 0");
}

/* handle: the record that it was handled and what the handler does commit together, or not at
 * all. */
static int handle(void *ctx, const struct event *ev, struct error *err)
{
    const struct reading *r = ctx;
    struct delivery d = {ev, 1};
    bool first;
    if (outbox_begin(r->ob, (outbox_error *)err) != 0)
        return -1;
    if (r->st->ops->handle_once(r->st, NULL, str_of(r->s->group), ev->id, ev->payload, &first,
                                err) != 0)
        goto fail;
    if (first && r->s->handler(r->ob, (const outbox_event *)&d, r->s->ctx) != 0) {
        failed(err);
        goto fail;
    }
    if (first)
        return outbox_commit(r->ob, (outbox_error *)err);
    outbox_rollback(r->ob);
    return 0;
fail:
    outbox_rollback(r->ob);
    return -1;
}

OUTBOX_API int outbox_consume(outbox *ob, const outbox_stream *s, outbox_error *err)
{
    struct reading r = {ob, ob->st, s};
    uint64_t count;
    struct error *e = (struct error *)err;
    if (!s->url || !s->group || !s->handler)
        return err_set(e, ERR_MISUSE, "url, group and handler are needed");
    struct error own;
    struct consume_config cfg = {
        .url = s->url,
        .group = s->group,
        .name = s->name,
        .from = s->from,
        .claim_ms = s->claim_ms,
        .until_through = (s->flags & OUTBOX_UNTIL_THROUGH) != 0,
        .wake = ob->crew.stop_fd,
        .log = &ob->log,
        .handle = handle,
        .ctx = &r,
    };
    int rc = consume_run(&cfg, NULL, e ? e : &own);
    atomic_store(&ob->crew.stop, false); /* it has been heeded, if there was one */
    if (read(ob->crew.stop_fd, &count, sizeof count) < 0)
        return rc;
    return rc;
}
