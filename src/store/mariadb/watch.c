/* look.c: what is new, for a relay of many consumers. One look tells which of them a commit
 * concerns; only those make a turn. */
#include "store/mariadb/mariadb.h"
#include "store_sql.h"

#define LOOK_EVENTS 64    /* more than that at once are everybody's business */
#define LOOK_PAYLOAD 8192 /* bytes of a payload that a look reads */
#define LOOK_UNRUNG 100   /* ms between looks while the bell does not work */

/* show_new shows the events after the last look, up to LOOK_EVENTS of them. */
static int show_new(struct mdb_store *st, bool payloads, new_event_visit *visit, void *ctx,
                    struct watch_result *ret, struct error *err)
{
    int r;
    int64_t most = payloads ? LOOK_PAYLOAD : -1;
    struct db_rows q = db_rows(
        &st->base.store, err,
        SQL(new_events, .seq = st->looked, .most = most, .max = LOOK_EVENTS + 1));
    while ((r = db_step(&q, err)) == 1) {
        struct event ev = {.type = db_text(&q, 1), .payload = db_text(&q, 2)};
        if (++ret->n <= LOOK_EVENTS)
            visit(ctx, &ev);
    }
    ret->all = ret->n > LOOK_EVENTS;
    return r;
}

int mdb_look(struct store *base, bool blind, bool payloads, new_event_visit *visit, void *ctx,
             struct watch_result *ret, struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    struct watch_result found = {.wait_ms = -1};
    bool first = st->looked < 0;
    if (mdb_sequence(st, err) != 0)
        return -1;
    int64_t head = st->bell.next - 1;
    bool events = head != st->looked, changes = st->bell.news != st->looked_news;
    if (blind || first)
        found.all = first || events || changes;
    else if (events && show_new(st, payloads, visit, ctx, &found, err) != 0)
        return -1;
    found.all = found.all || changes;
    st->looked = head;
    st->looked_news = st->bell.news;
    if (mdb_bell_fd(base) < 0)
        found.wait_ms = LOOK_UNRUNG;
    *ret = found;
    return 0;
}
