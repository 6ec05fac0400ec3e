/* wakeup.c: learning of commits, and polling for new events on behalf of many consumers. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/num.h"
#include "store/postgres/postgres.h"

/* After events were found, more may follow: for this long, producers need not notify. */
#define SLEEP_AFTER (2 * MS_NS)
/* If a worker finds no more events than this at once, it keeps the lock, and producers notify: that
 * costs less than releasing it, finding nothing else, and requesting it again. */
#define FEW_EVENTS 8
#define BACKOFF_MAX 50 /* ms, while a transaction that has emitted stays open */
/* ms; an unrelated session may hold the lock indefinitely, and producers do not notify until it
 * releases it */
#define FOREIGN_WAIT 1000
#define LISTENER_WAIT 10000 /* ms; if the holder's process dies, listeners are not notified */

void pg_wakeup_release(struct pg_wakeup *w)
{
    if (w->readable_fd >= 0)
        close(w->readable_fd);
    free(w->snapshot);
}

void pg_wakeup_disconnected(struct pg_wakeup *w)
{
    if (w->state == WAKEUP_HOLDER)
        w->lock_lost = true;
    w->state = WAKEUP_AWAKE;
    w->listening = false;
    w->holder_moved = false;
    w->pending = (struct pg_notices){0};
}

const char *pg_wakeup_blocker(const struct pg_store *st)
{
    const char *holder = st->wakeup.foreign_lock_holder;
    return *holder ? holder : NULL;
}

/* ---- notifications ---- */

/* Collects notifications from libpq. It may have read one along with a result; then the socket does
 * not become readable. */
static void collect_notices(struct pg_store *st)
{
    struct pg_wakeup *w = &st->wakeup;
    for (PGnotify *n; (n = PQnotifies(st->db));) {
        w->pending.n++;
        if (*n->extra)
            w->pending.for_all = true;
        if (w->state == WAKEUP_LISTENER)
            w->holder_moved = true;
        PQfreemem(n);
    }
}

int pg_wake_fd(struct store *base)
{
    struct pg_store *st = pg_of(base);
    struct pg_wakeup *w = &st->wakeup;
    if (!st->db || !w->listening || !w->possible)
        return -1;
    collect_notices(st);
    if (w->pending.n > 0 && w->readable_fd < 0)
        w->readable_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (w->pending.n > 0 && w->readable_fd >= 0)
        return w->readable_fd;
    return PQsocket(st->db);
}

void pg_wake_clear(struct store *base)
{
    struct pg_store *st = pg_of(base);
    struct pg_wakeup *w = &st->wakeup;
    if (st->db && PQconsumeInput(st->db))
        collect_notices(st);
    w->taken = w->pending;
    w->pending = (struct pg_notices){0};
}

/* Begins to listen, once per connection. If the previous connection broke while it held the lock,
 * its listeners are notified now. */
static int listen_once(struct pg_store *st, struct error *err)
{
    struct pg_wakeup *w = &st->wakeup;
    if (w->listening || st->pooled)
        return 0;
    PGresult *r = pg_query(st, err, "SELECT @schema@.wakeup_works(), @schema@.wakeup_channel()",
                           "");
    if (!r)
        return -1;
    char text[128];
    const char *channel = PQgetvalue(r, 0, 1); /* outbox_ and hexadecimal digits */
    w->possible = pg_true(r, 0, 0);
    if (w->lock_lost)
        snprintf(text, sizeof text, "LISTEN %s; NOTIFY %s", channel, channel);
    else
        snprintf(text, sizeof text, "LISTEN %s", channel);
    PQclear(r);
    if (w->possible && pg_simple(st, text, err) != 0)
        return -1;
    w->listening = true;
    w->lock_lost = false;
    return 0;
}

/* ---- sleeping and waking up ---- */

/* Requests the lock. A relay with a long sweep polls once more when it starts, when it reconnects,
 * and whenever another relay that holds the lock wakes up. A listener that was notified, or whose
 * wait has ended, requests the lock again, because the holder may have woken up. */
int pg_wakeup_sleep(struct pg_store *st, bool *ret_again, int64_t *poll_in_ms, struct error *err)
{
    struct pg_wakeup *w = &st->wakeup;
    *ret_again = false;
    if (listen_once(st, err) != 0)
        return -1;
    if (!w->possible || st->pooled)
        return 0;
    *poll_in_ms = 0;
    if (w->state == WAKEUP_HOLDER)
        return 0;
    bool just_found = clock_mono(st->opt.clock) - w->found_at < SLEEP_AFTER;
    if (w->state == WAKEUP_AWAKE && just_found) {
        *poll_in_ms = 1;
        return 0;
    }

    bool listener = w->state == WAKEUP_LISTENER;
    PGresult *r = pg_query(st, err, "SELECT @schema@.wakeup_sleep($1)", "b", listener);
    if (!r)
        return -1;
    char answer = *PQgetvalue(r, 0, 0); /* holder, listener, busy, foreign */
    PQclear(r);

    w->state = WAKEUP_AWAKE;
    if (answer == 'f') {
        *poll_in_ms = FOREIGN_WAIT;
        r = pg_query(st, err, "SELECT @schema@._wakeup_foreign_holders()", "");
        if (!r)
            return -1;
        snprintf(w->foreign_lock_holder, sizeof w->foreign_lock_holder, "%s", PQgetvalue(r, 0, 0));
        PQclear(r);
        return 0;
    }
    w->foreign_lock_holder[0] = '\0';
    bool holder = answer == 'h';
    if (holder || answer == 'l') {
        /* Producers, or the holder, notify from now on. Poll once more if the lock is new to this
         * session, so that an emit which committed just before did not notify; or if the holder
         * woke up, and its sweep may have found events for which no producer sent a
         * notification. */
        *ret_again = holder || !listener || w->holder_moved;
        *poll_in_ms = holder ? 0 : LISTENER_WAIT;
        w->state = holder ? WAKEUP_HOLDER : WAKEUP_LISTENER;
        w->backoff_ms = 0;
        w->holder_moved = false;
        return 0;
    }
    /* A transaction has emitted and not committed yet: back off. */
    w->backoff_ms = min_i64(max_i64(2 * w->backoff_ms, 1), BACKOFF_MAX);
    *poll_in_ms = w->backoff_ms;
    return 0;
}

/* The worker keeps the lock only if it held it before it polled, and was notified: then producers
 * notify for all later commits. Listeners do not know of events for which no producer sent a
 * notification: releasing the lock notifies them. */
int pg_wakeup_found(struct pg_store *st, size_t n, bool all, bool *ret_quiet, struct error *err)
{
    struct pg_wakeup *w = &st->wakeup;
    bool few = all && n <= FEW_EVENTS;
    *ret_quiet = w->state == WAKEUP_HOLDER && w->taken.n > 0 && few;
    w->found_at = clock_mono(st->opt.clock);
    w->backoff_ms = 0;
    if (*ret_quiet || w->state == WAKEUP_AWAKE)
        return 0;

    bool holder = w->state == WAKEUP_HOLDER;
    int result = pg_exec(st, err, "SELECT @schema@.wakeup_release($1)", "b", holder);
    w->state = WAKEUP_AWAKE;
    return result;
}

/* ---- polling for new events, on behalf of many consumers ----
 *
 * One poll finds out which consumers want the events of a commit; only those take a turn. It writes
 * nothing and takes no lock. It returns the events that its snapshot shows and the previous poll's
 * did not, so each commit is in exactly one poll. That depends neither on seqs nor on positions, so
 * it holds even while those are repaired. */

#define POLL_EVENTS 64 /* if more are new at once, all consumers are woken */
/* ms between polls while producers need not notify: polling is cheaper than waiting for a
 * notification at this rate */
#define POLL_AWAKE 2
/* the same while more than BUSY_PER_MS events arrive per ms: each poll leads to a turn, and both
 * take server time that producers need */
#define POLL_BUSY 6
#define BUSY_PER_MS 4
/* If a poll finds nothing while producers need not notify, they may just be waiting for the disk. A
 * refused request for the lock, because one of them shares it, costs more than a few polls. */
#define STAY_AWAKE (10 * MS_NS)
/* Notifications are counted over this time, to decide whether a worker releases the lock. */
#define COUNT_TOGETHER (10 * MS_NS)
/* ms between polls where producers cannot notify, and after IDLE_AFTER without events. On average a
 * commit waits for half of it */
#define POLL_ALONE 12
#define POLL_ALONE_IDLE 40
#define IDLE_AFTER (1000 * MS_NS)

/* The events of transactions that had not begun at the last poll, and of those running then. Large
 * payloads are left out, and count as wanted by every consumer. The size is compared twice, because
 * the stored one may be compressed. */
#define POLL_COLUMNS \
    "e.type, CASE WHEN $2 AND pg_column_size(e.payload) < 2000 " \
    "THEN CASE WHEN octet_length(e.payload::text) < 8192 THEN e.payload END END AS payload"
static const char poll_sql[] =
    "SELECT pg_current_snapshot()::text, n.type, n.payload "
    "FROM (SELECT 1) AS one LEFT JOIN LATERAL ("
    "(SELECT " POLL_COLUMNS " FROM @schema@.event e "
    "WHERE e.xid >= pg_snapshot_xmax($1::pg_snapshot) ORDER BY e.xid, e.seq LIMIT $3) "
    "UNION ALL "
    "(SELECT " POLL_COLUMNS " FROM pg_snapshot_xip($1::pg_snapshot) AS late (xid), "
    "LATERAL (SELECT i.type, i.payload FROM @schema@.event i WHERE i.xid = late.xid "
    "ORDER BY i.seq LIMIT $3) AS e LIMIT $3)) AS n ON true";

/* While the snapshot stays the same, no transaction has ended that wrote anything. */
static const char snapshot_sql[] = PG_NAMED
    "SELECT pg_catalog.pg_current_snapshot()::pg_catalog.text";

static void visit_rows(const PGresult *r, new_event_visit *visit, void *ctx,
                       struct watch_result *ret)
{
    int rows = PQntuples(r);
    if (PQgetisnull(r, 0, 1))
        rows = 0; /* the snapshot always has one row */
    ret->n = (size_t)rows;
    if (rows > POLL_EVENTS) {
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

/* Visits new events, and stores the poll's snapshot. */
static int poll_events(struct pg_store *st, bool payloads, new_event_visit *visit, void *ctx,
                       struct watch_result *ret, struct error *err)
{
    struct pg_wakeup *w = &st->wakeup;
    bool first = w->snapshot == NULL;
    PGresult *r = pg_query(st, err, poll_sql, "sbi", w->snapshot, (int)payloads,
                           (int64_t)POLL_EVENTS + 1);
    if (!r)
        return -1;
    char *now = strdup(PQgetvalue(r, 0, 0));
    if (now) {
        visit_rows(r, visit, ctx, ret);
        w->unchanged = !first && strcmp(now, w->snapshot) == 0;
        free(w->snapshot);
        w->snapshot = now;
    }
    PQclear(r);
    ret->all = ret->all || first;
    return now ? 0 : err_nomem(err);
}

/* Treats notifications as new events, without a query. Those within COUNT_TOGETHER are added up:
 * busy producers should not have to notify. */
static void count_notices(struct pg_store *st, struct watch_result *ret)
{
    struct pg_wakeup *w = &st->wakeup;
    int64_t now = clock_mono(st->opt.clock);
    if (now - w->counted_from > COUNT_TOGETHER) {
        w->counted_from = now;
        w->counted = 0;
    }
    w->counted += w->taken.n;
    ret->all = true;
    if (w->taken.n > 0)
        ret->n = w->counted;
}

/* Decides when the next poll is due, after one that found ret->n events. */
static int plan_next(struct pg_store *st, struct watch_result *ret, struct error *err)
{
    struct pg_wakeup *w = &st->wakeup;
    int64_t since_found = clock_mono(st->opt.clock) - w->found_at;
    if (ret->n > 0) {
        /* A burst after a pause does not make a busy producer. */
        bool busy = (int64_t)ret->n * MS_NS > BUSY_PER_MS * since_found;
        bool quiet;
        if (pg_wakeup_found(st, ret->n, true, &quiet, err) != 0)
            return -1;
        ret->wait_ms = busy ? POLL_BUSY : POLL_AWAKE;
        if (quiet)
            ret->wait_ms = -1;
        return 0;
    }

    bool can_sleep = w->listening && w->possible && !st->pooled;
    if (can_sleep && w->state == WAKEUP_AWAKE && since_found < STAY_AWAKE) {
        ret->wait_ms = POLL_AWAKE;
        return 0;
    }
    int64_t poll_in_ms = since_found > IDLE_AFTER ? POLL_ALONE_IDLE : POLL_ALONE;
    if (pg_wakeup_sleep(st, &ret->again, &poll_in_ms, err) != 0)
        return -1;
    ret->wait_ms = poll_in_ms > 0 ? poll_in_ms : -1;
    ret->wake_blocker = pg_wakeup_blocker(st);
    return 0;
}

int pg_poll_new(struct store *base, bool skip_query, bool payloads, new_event_visit *visit,
                void *ctx, struct watch_result *ret, struct error *err)
{
    struct pg_store *st = pg_of(base);
    struct pg_wakeup *w = &st->wakeup;
    struct watch_result found = {.wait_ms = -1};
    if (pg_ready(st, err) != 0)
        return -1;
    if (w->generation != st->generation[PG_MAIN]) {
        /* This may be another server, where the snapshot means nothing. */
        free(w->snapshot);
        w->snapshot = NULL;
        w->unchanged = false;
        w->generation = st->generation[PG_MAIN];
    }

    bool all_notify = w->possible && w->state != WAKEUP_AWAKE;
    if (skip_query && all_notify) {
        count_notices(st, &found);
    } else {
        /* While nothing is written, an idle relay queries only the snapshot, at a fraction of the
         * cost of a poll. */
        bool nothing_new = w->unchanged && w->taken.n == 0;
        if (nothing_new) {
            PGresult *r = pg_query(st, err, snapshot_sql, "");
            if (!r)
                return -1;
            nothing_new = strcmp(PQgetvalue(r, 0, 0), w->snapshot) == 0;
            w->unchanged = nothing_new;
            PQclear(r);
        }
        if (!nothing_new && poll_events(st, payloads, visit, ctx, &found, err) != 0)
            return -1;
    }
    found.all = found.all || w->taken.for_all;
    if (plan_next(st, &found, err) != 0)
        return -1;
    *ret = found;
    return 0;
}
