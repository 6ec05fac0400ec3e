/* wakeup.h: how a handle learns that events were committed, without polling and without making
 * commits wait. See sql/postgres/functions/wakeup.sql: a sleeping session holds an advisory lock,
 * and producers notify while it is held. Other sleeping sessions are the holder's listeners. None
 * of this works through a transaction pooler, nor where transactions are prepared for two-phase
 * commit: there the engine polls. */
#ifndef STORE_POSTGRES_WAKEUP_H
#define STORE_POSTGRES_WAKEUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/store.h"

struct pg_store;

/* Notifications that came. for_all: one of them was for every consumer, not for an event (see
 * _wakeup_notify_all). */
struct pg_notices {
    size_t n;
    bool for_all;
};

/* Private to wakeup.c. All zeros at the start, except readable_fd. */
struct pg_wakeup {
    enum { WAKEUP_AWAKE, WAKEUP_HOLDER, WAKEUP_LISTENER } state;
    bool possible;  /* producers of this database notify */
    bool listening; /* this connection listens */
    bool lock_lost; /* the connection broke while it was the holder: listeners were not notified */
    bool holder_moved;  /* a listener was notified: the holder may have woken up */
    int64_t found_at;   /* when events were last found, monotonic */
    int64_t backoff_ms; /* how long to wait while a producer is about to commit; 0: not at all */
    char foreign_lock_holder[200]; /* the unrelated session that holds the lock; "": none */

    struct pg_notices pending; /* arrived since wake_clear */
    struct pg_notices taken;   /* arrived before the last wake_clear */
    int readable_fd;           /* always readable; -1: not opened yet */

    /* Of poll_new. */
    char *snapshot;       /* of the last poll; NULL: there was none */
    unsigned generation;  /* of the snapshot's connection; see pg_store */
    bool unchanged;       /* nothing was written between the last two polls */
    int64_t counted_from; /* since when notifications are counted together, monotonic */
    size_t counted;
};

void pg_wakeup_init(struct pg_wakeup *w);
void pg_wakeup_release(struct pg_wakeup *w);
/* pg_wakeup_disconnected notes that the main connection is gone, and its lock with it. */
void pg_wakeup_disconnected(struct pg_wakeup *w);

/* pg_wakeup_sleep is called when nothing was found. *ret_again: look once more before waiting.
 * Otherwise *poll_in_ms says how soon to look in any case; 0: a notification will come. It stays as
 * it is where producers do not notify. */
int pg_wakeup_sleep(struct pg_store *st, bool *ret_again, int64_t *poll_in_ms, struct error *err);
/* pg_wakeup_found notes that n events were found; `all`: nothing else is left. It gives up the
 * lock, so that producers need not notify, unless the events are few: then *ret_quiet is set, and
 * producers go on notifying. */
int pg_wakeup_found(struct pg_store *st, size_t n, bool all, bool *ret_quiet, struct error *err);
/* pg_wakeup_blocker is for claim_hint.wake_blocker. */
const char *pg_wakeup_blocker(const struct pg_store *st);

/* ---- as in struct store_ops ---- */

int pg_wake_fd(struct store *st);
void pg_wake_clear(struct store *st);
int pg_poll_new(struct store *st, bool skip_query, bool payloads, new_event_visit *visit, void *ctx,
                struct watch_result *ret, struct error *err);

#endif
