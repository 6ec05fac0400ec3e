/* bell.c: sleeping without missing a commit, and without making commits wait. sql/postgres/functions/bell.sql tells how.
 * Nothing of this works through a transaction pooler, nor where transactions are prepared for two-phase commit: there the
 * engine polls. */
#include <stdio.h>

#include "base/clock.h"
#include "store/postgres/postgres.h"

#define NAP_AFTER \
    (2 * MS_NS)             /* events were found this recently: more may be coming, so don't make producers ring yet */
#define NAP_MAX 50          /* ms, while a transaction that has emitted stays open */
#define LISTENER_WAIT 10000 /* ms; if the one that holds the lock dies, nobody tells */

static int listen_now(struct pg_store *st, struct error *err)
{
    if (st->listening || st->pooled) return 0;
    PGresult *r = pg_query(st, err, "SELECT @schema@.bell_works(), @schema@.bell_channel()", "");
    if (!r) return -1;
    char text[128];
    st->bell_works = pg_true(r, 0, 0);
    snprintf(text, sizeof text, "LISTEN %s", PQgetvalue(r, 0, 1)); /* outbox_ and hexadecimal digits */
    PQclear(r);
    st->listening = true;
    return st->bell_works ? pg_simple(st, text, err) : 0;
}

int pg_bell_sleep(struct pg_store *st, int64_t *nap_ms, struct error *err)
{
    if (listen_now(st, err) != 0) return -1;
    if (!st->bell_works || st->pooled) return 0;
    *nap_ms = st->bell == BELL_LISTENER ? LISTENER_WAIT : 0;
    if (st->bell != BELL_AWAKE) return 0;
    if (clock_mono(st->opt.clock) - st->found_at < NAP_AFTER) {
        *nap_ms = 1;
        return 0;
    }
    PGresult *r = pg_query(st, err, "SELECT @schema@.bell_sleep()", "");
    if (!r) return -1;
    char said = *PQgetvalue(r, 0, 0);
    PQclear(r);
    st->bell = said == 'h' ? BELL_HOLDER : said == 'l' ? BELL_LISTENER : BELL_AWAKE;
    if (st->bell != BELL_AWAKE) {
        st->nap_ms = 0;
        return 1;
    }
    st->nap_ms = st->nap_ms ? st->nap_ms * 2 : 1; /* somebody has emitted and not committed yet */
    if (st->nap_ms > NAP_MAX) st->nap_ms = NAP_MAX;
    *nap_ms = st->nap_ms;
    return 0;
}

int pg_bell_wake(struct pg_store *st, struct error *err)
{
    st->found_at = clock_mono(st->opt.clock);
    st->nap_ms = 0;
    if (st->bell == BELL_AWAKE) return 0;
    PGresult *r = pg_query(st, err, "SELECT @schema@.bell_wake($1)", "b", st->bell == BELL_HOLDER);
    st->bell = BELL_AWAKE;
    if (!r) return -1;
    PQclear(r);
    return 0;
}

int pg_bell_fd(struct store *base)
{
    struct pg_store *st = pg_of(base);
    return st->db && st->listening && st->bell_works ? PQsocket(st->db) : -1;
}

void pg_bell_clear(struct store *base)
{
    struct pg_store *st = pg_of(base);
    if (!st->db || st->ahead.sent || !PQconsumeInput(st->db)) return;
    for (PGnotify *n; (n = PQnotifies(st->db));) PQfreemem(n);
}
