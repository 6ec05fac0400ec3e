/* look.c: what is new, for a relay of many consumers. One look tells which of them a commit
 * concerns; only those make a turn. It writes nothing and takes no lock.
 *
 * A look covers what its snapshot shows and that of the look before did not, so each commit is in
 * exactly one. That needs neither numbers nor positions: it holds whatever becomes of those. */
#include <stdlib.h>
#include <string.h>

#include "store/postgres/postgres.h"

#define LOOK_EVENTS 64 /* more than that at once are everybody's business */
/* ms between looks while producers need not ring: events come faster than one would get up for */
#define LOOK_AWAKE 2
/* the same while more than so many events come in a millisecond: each look leads to a turn, and
 * both take time of the server that producers need */
#define LOOK_BUSY 6
#define BUSY_PER_MS 4
/* Where producers need not ring, and a look finds nothing, they may just be waiting for the disk.
 * To ask for the lock in vain, because one of them shares it, costs more than a few looks. */
#define STAY_AWAKE (10 * MS_NS)
/* rings within this time are many if there are more than a worker gets up for */
#define RINGS_TOGETHER (10 * MS_NS)
/* ms between looks where nobody can ring. Half of it is what a commit waits on average. The longer
 * time is for when nothing has come for a while */
#define LOOK_UNRUNG 12
#define LOOK_UNRUNG_IDLE 40
#define IDLE_AFTER (1000 * MS_NS)

/* The events of transactions that had not begun when the last look was made, and of those that were
 * running then. A payload that is left out counts as one that everybody may want. Its size is
 * looked at twice, because a small one may be compressed. */
#define LOOK_COLUMNS \
    "e.type, CASE WHEN $2 AND pg_column_size(e.payload) < 2000 " \
    "THEN CASE WHEN octet_length(e.payload::text) < 8192 THEN e.payload END END AS payload"
static const char look_sql[] =
    "SELECT pg_current_snapshot()::text, n.type, n.payload "
    "FROM (SELECT 1) AS one LEFT JOIN LATERAL ("
    "(SELECT " LOOK_COLUMNS " FROM @schema@.event e "
    "WHERE e.xid >= pg_snapshot_xmax($1::pg_snapshot) ORDER BY e.xid, e.seq LIMIT $3) "
    "UNION ALL "
    "(SELECT " LOOK_COLUMNS " FROM pg_snapshot_xip($1::pg_snapshot) AS late (xid), "
    "LATERAL (SELECT i.type, i.payload FROM @schema@.event i WHERE i.xid = late.xid "
    "ORDER BY i.seq LIMIT $3) AS e LIMIT $3)) AS n ON true";

/* While the snapshot stays the same, no transaction has ended that wrote anything. */
static const char snapshot_sql[] = PG_NAMED
    "SELECT pg_catalog.pg_current_snapshot()::pg_catalog.text";

/* take_rows shows the events of a look. */
static void take_rows(const PGresult *r, new_event_visit *visit, void *ctx,
                      struct watch_result *ret)
{
    int rows = PQntuples(r);
    if (PQgetisnull(r, 0, 1))
        rows = 0; /* there is always one row, for the snapshot */
    ret->n = (size_t)rows;
    if (rows > LOOK_EVENTS) {
        ret->all = true;
        return;
    }
    for (int i = 0; i < rows; i++) {
        struct event ev = {.type = str_of(PQgetvalue(r, i, 1))};
        if (!PQgetisnull(r, i, 2))
            ev.payload = str_of(PQgetvalue(r, i, 2));
        visit(ctx, &ev);
    }
}

/* ask makes the look, and remembers where it ended. */
static int ask(struct pg_store *st, bool payloads, new_event_visit *visit, void *ctx,
               struct watch_result *ret, struct error *err)
{
    bool first = st->looked == NULL;
    PGresult *r = pg_query(st, err, look_sql, "sbi", st->looked, (int)payloads,
                           (int64_t)LOOK_EVENTS + 1);
    if (!r)
        return -1;
    char *now = strdup(PQgetvalue(r, 0, 0));
    if (now) {
        take_rows(r, visit, ctx, ret);
        st->still = !first && strcmp(now, st->looked) == 0;
        free(st->looked);
        st->looked = now;
    }
    PQclear(r);
    ret->all = ret->all || first;
    return now ? 0 : err_nomem(err);
}

/* ask_whether finds out whether anything was written since the last look, which takes the server a
 * fraction of a look. */
static int ask_whether(struct pg_store *st, struct error *err)
{
    PGresult *r = pg_query(st, err, snapshot_sql, "");
    if (!r)
        return -1;
    st->still = strcmp(PQgetvalue(r, 0, 0), st->looked) == 0;
    PQclear(r);
    return 0;
}

/* ask_on makes a look. While nobody writes, the snapshot is all that it asks for: where nobody can
 * ring, an idle relay does nothing else. */
static int ask_on(struct pg_store *st, bool payloads, new_event_visit *visit, void *ctx,
                  struct watch_result *ret, struct error *err)
{
    bool was_still = st->still && !st->woken;
    if (was_still && ask_whether(st, err) != 0)
        return -1;
    if (was_still && st->still)
        return 0;
    return ask(st, payloads, visit, ctx, ret, err);
}

/* ask_nothing takes rings for news. Those that come within a moment are counted together: producers
 * that are so busy should not have to ring. */
static void ask_nothing(struct pg_store *st, struct watch_result *ret)
{
    int64_t now = clock_mono(st->opt.clock);
    if (now - st->rung_from > RINGS_TOGETHER) {
        st->rung_from = now;
        st->rung = 0;
    }
    st->rung += st->rings;
    ret->all = true;
    ret->n = st->woken ? st->rung : 0;
}

/* unrung_wait returns how long to wait where nobody can ring, in ms. */
static int64_t unrung_wait(const struct pg_store *st)
{
    bool idle = clock_mono(st->opt.clock) - st->found_at > IDLE_AFTER;
    return idle ? LOOK_UNRUNG_IDLE : LOOK_UNRUNG;
}

/* awake_wait returns how long to wait after a look that found n events, in ms. It goes by the time
 * since events were found before: what came together after a pause is not many. */
static int64_t awake_wait(const struct pg_store *st, size_t n)
{
    int64_t since = clock_mono(st->opt.clock) - st->found_at;
    bool busy = (int64_t)n * MS_NS > BUSY_PER_MS * since;
    return busy ? LOOK_BUSY : LOOK_AWAKE;
}

/* stays_awake says whether to look again before asking to sleep. */
static bool stays_awake(const struct pg_store *st)
{
    bool unrung = st->bell == BELL_AWAKE && st->listening && st->bell_works && !st->pooled;
    return unrung && clock_mono(st->opt.clock) - st->found_at < STAY_AWAKE;
}

/* rest decides when the next look is due. */
static int rest(struct pg_store *st, struct watch_result *ret, struct error *err)
{
    bool quiet = false;
    if (ret->n > 0) {
        int64_t wait_ms = awake_wait(st, ret->n);
        if (pg_bell_found(st, ret->n, true, &quiet, err) != 0)
            return -1;
        ret->wait_ms = quiet ? -1 : wait_ms;
        return 0;
    }
    if (stays_awake(st)) {
        ret->wait_ms = LOOK_AWAKE;
        return 0;
    }

    int64_t poll_in_ms = unrung_wait(st);
    int slept = pg_bell_sleep(st, &poll_in_ms, err);
    if (slept < 0)
        return -1;
    ret->again = slept == 1;
    ret->wait_ms = poll_in_ms > 0 ? poll_in_ms : -1;
    ret->wake_blocker = *st->squatter ? st->squatter : NULL;
    return 0;
}

int pg_look(struct store *base, bool blind, bool payloads, new_event_visit *visit, void *ctx,
            struct watch_result *ret, struct error *err)
{
    struct pg_store *st = pg_of(base);
    struct watch_result look = {.wait_ms = -1};
    unsigned before = st->generation[PG_MAIN];
    if (pg_ready(st, err) != 0)
        return -1;
    if (st->generation[PG_MAIN] != before) {
        /* Another server, perhaps, to which the snapshot means nothing. */
        free(st->looked);
        st->looked = NULL;
        st->still = false;
    }

    bool rung_for_all = st->bell_works && st->bell != BELL_AWAKE; /* so rings are all there is */
    if (blind && rung_for_all)
        ask_nothing(st, &look);
    else if (ask_on(st, payloads, visit, ctx, &look, err) != 0)
        return -1;
    look.all = look.all || st->called;
    if (rest(st, &look, err) != 0)
        return -1;
    *ret = look;
    return 0;
}
