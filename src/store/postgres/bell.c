/* bell.c: sleeping without missing a commit, and without making commits wait.
 * sql/postgres/functions/bell.sql tells how. Nothing of this works through a transaction pooler,
 * nor where transactions are prepared for two-phase commit: there the engine polls. */
#include <fcntl.h>
#include <stdio.h>

#include "base/clock.h"
#include "store/postgres/postgres.h"

/* Events were found this recently: more may be coming, so producers need not ring yet. */
#define NAP_AFTER (2 * MS_NS)
/* Up to this many events at once, a worker lets producers ring: it costs less than to get up, find
 * nothing else, and go to sleep again. */
#define FEW_EVENTS 8
#define NAP_MAX 50 /* ms, while a transaction that has emitted stays open */
/* ms; a stranger is in the way for as long as he likes, and nobody rings meanwhile */
#define SQUATTED_WAIT 1000
#define LISTENER_WAIT 10000 /* ms; if the process that holds the lock dies, nobody tells us */

/* listen_now begins to listen, once per connection. If the former connection broke while it held
 * the lock, the listeners beside it were not told that it got up: they are now. */
static int listen_now(struct pg_store *st, struct error *err)
{
    if (st->listening || st->pooled)
        return 0;
    PGresult *r = pg_query(st, err, "SELECT @schema@.bell_works(), @schema@.bell_channel()", "");
    if (!r)
        return -1;
    char text[128];
    const char *channel = PQgetvalue(r, 0, 1); /* outbox_ and hexadecimal digits */
    st->bell_works = pg_true(r, 0, 0);
    if (st->vacated)
        snprintf(text, sizeof text, "LISTEN %s; NOTIFY %s", channel, channel);
    else
        snprintf(text, sizeof text, "LISTEN %s", channel);
    PQclear(r);
    if (st->bell_works && pg_simple(st, text, err) != 0)
        return -1;
    st->listening = true;
    st->vacated = false;
    return 0;
}

/* heard takes notifications out of libpq's hands. libpq may have read one along with an answer;
 * then the socket does not become readable. */
static void heard(struct pg_store *st)
{
    for (PGnotify *n; (n = PQnotifies(st->db));) {
        st->called_since = st->called_since || *n->extra;
        PQfreemem(n);
        st->rang = true;
        st->rings_since++;
        st->told = st->told || st->bell == BELL_LISTENER;
    }
}

/* squatted notes who is in the way, and how long to wait until the next look. */
static int squatted(struct pg_store *st, int64_t *poll_in_ms, struct error *err)
{
    PGresult *r = pg_query(st, err, "SELECT @schema@._bell_squatters()", "");
    if (!r)
        return -1;
    snprintf(st->squatter, sizeof st->squatter, "%s", PQgetvalue(r, 0, 0));
    PQclear(r);
    *poll_in_ms = SQUATTED_WAIT;
    return 0;
}

/* fell_asleep notes that producers will ring, or that the holder will tell. Returns whether to look
 * once more. */
static int fell_asleep(struct pg_store *st, enum bell_state was, int64_t *poll_in_ms)
{
    bool look = st->bell != was || st->told;
    st->poll_in_ms = 0;
    st->told = false;
    if (st->bell == BELL_LISTENER)
        *poll_in_ms = LISTENER_WAIT;
    return look;
}

/* nap waits for a transaction that has emitted and not committed yet: twice as long each time. */
static void nap(struct pg_store *st, int64_t *poll_in_ms)
{
    if (st->poll_in_ms == 0)
        st->poll_in_ms = 1;
    else
        st->poll_in_ms *= 2;
    if (st->poll_in_ms > NAP_MAX)
        st->poll_in_ms = NAP_MAX;
    *poll_in_ms = st->poll_in_ms;
}

/* ask_to_sleep asks for the lock; returns the first letter of the answer: holder, listener, busy,
 * squatted. '\0': it failed. */
static char ask_to_sleep(struct pg_store *st, struct error *err)
{
    bool listens = st->bell == BELL_LISTENER;
    PGresult *r = pg_query(st, err, "SELECT @schema@.bell_sleep($1)", "b", listens);
    if (!r)
        return '\0';
    char said = *PQgetvalue(r, 0, 0);
    PQclear(r);
    return said;
}

/* pg_bell_sleep puts a worker to sleep. Returns 1 if it must look once more: the lock is new to it,
 * so an emit that committed just before did not ring; or it was told that the holder got up, who
 * may have found by its sweep what nobody rang for. So a relay with a long sweep looks when it
 * starts, when it reconnects, and whenever the holder beside it gets up. A listener that was told,
 * or has waited for its time, asks again: whoever held the lock may have got up. */
int pg_bell_sleep(struct pg_store *st, int64_t *poll_in_ms, struct error *err)
{
    enum bell_state was = st->bell;
    if (listen_now(st, err) != 0)
        return -1;
    if (!st->bell_works || st->pooled)
        return 0;
    *poll_in_ms = 0;
    if (was == BELL_HOLDER)
        return 0;
    bool just_found = clock_mono(st->opt.clock) - st->found_at < NAP_AFTER;
    if (was == BELL_AWAKE && just_found) {
        *poll_in_ms = 1;
        return 0;
    }

    char said = ask_to_sleep(st, err);
    if (said == '\0')
        return -1;
    st->bell = BELL_AWAKE;
    if (said == 's')
        return squatted(st, poll_in_ms, err);
    st->squatter[0] = '\0';
    if (said == 'h') {
        st->bell = BELL_HOLDER;
        return fell_asleep(st, was, poll_in_ms);
    }
    if (said == 'l') {
        st->bell = BELL_LISTENER;
        return fell_asleep(st, was, poll_in_ms);
    }
    nap(st, poll_in_ms);
    return 0;
}

/* get_up lets go of the lock: nobody needs to ring. */
static int get_up(struct pg_store *st, struct error *err)
{
    if (st->bell == BELL_AWAKE)
        return 0;
    PGresult *r = pg_query(st, err, "SELECT @schema@.bell_wake($1)", "b", st->bell == BELL_HOLDER);
    st->bell = BELL_AWAKE;
    if (!r)
        return -1;
    PQclear(r);
    return 0;
}

/* pg_bell_found notes that n events were found, and gets up, unless they are few, all there was,
 * and somebody rang for them. *ret_quiet: it holds the lock still, as it did before it looked, so
 * that producers ring for whatever they have committed since. What nobody rang for the listeners
 * beside it do not know of either: it tells them by getting up. */
int pg_bell_found(struct pg_store *st, size_t n, bool all, bool *ret_quiet, struct error *err)
{
    bool few = all && n <= FEW_EVENTS;
    *ret_quiet = st->bell == BELL_HOLDER && st->woken && few;
    st->found_at = clock_mono(st->opt.clock);
    st->poll_in_ms = 0;
    return *ret_quiet ? 0 : get_up(st, err);
}

/* pg_bell_fd returns what to poll. If libpq has read a notification already, that is a descriptor
 * that is always readable. */
int pg_bell_fd(struct store *base)
{
    struct pg_store *st = pg_of(base);
    if (!st->db || !st->listening || !st->bell_works)
        return -1;
    heard(st);
    if (st->rang && st->rang_fd < 0)
        st->rang_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (st->rang && st->rang_fd >= 0)
        return st->rang_fd;
    return PQsocket(st->db);
}

void pg_bell_clear(struct store *base)
{
    struct pg_store *st = pg_of(base);
    if (st->db && PQconsumeInput(st->db))
        heard(st);
    st->woken = st->rang;
    st->rang = false;
    st->rings = st->rings_since;
    st->called = st->called_since;
    st->rings_since = 0;
    st->called_since = false;
}
