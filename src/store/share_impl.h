/* share_impl.h: what the files of a share have in common. They are share.c (seats), share_lend.c
 * (who gets a handle), group.c (turns that are made together) and lookout.c (who is rung). */
#ifndef STORE_SHARE_IMPL_H
#define STORE_SHARE_IMPL_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "store/share.h"

#define SHARE_HANDLES 64 /* at most */
#define SHARE_WHO 200

/* A handle that seats borrow. (1) st is NULL until it is first needed. (2) Only who borrowed it
 * touches st. */
struct share_handle {
    struct store *st;
    bool opened; /* it has st */
    bool lent;
    bool failing; /* to a seat that failed last time */
    int64_t
        bad_until; /* the store could not be reached by it: others are taken before, till then */
};

/* Those that wait for a handle, in the order in which they get one. (1) A group goes before seats,
 * because many wait for it. (2) *end is the last next. */
struct share_queue {
    struct share_waiter *first, **end;
};

/* A turn that waits to be made together with others; it is on the stack of who waits for it. (1)
 * While it waits, whoever leads is the only one to touch it; `over` gives it back. */
struct group_turn {
    struct batched_turn turn;
    struct error *err; /* of who waits: why the store could not be asked */
    bool failed;       /* it could not be */
    enum { GROUP_WAITS, GROUP_LEADS, GROUP_OVER } state;
    sem_t over; /* state is no longer GROUP_WAITS */
    struct group_turn *next;
};

/* The turns that are asked for. (1) At most one thread leads at a time. It makes the turns of all
 * that waited when it began. */
struct group {
    struct group_turn *first, **end;
    bool led;
};

struct share_seat_store {
    struct store base;
    struct share *share;
    struct share_seat_store *next;
    struct filter *filter; /* NULL: never rung */
    char *consumer;        /* that was registered through it; NULL: none */
    int bell;              /* eventfd; -1: none */
    size_t last;           /* the handle that it borrowed last */
    /* Turns to make alone before the next one is tried with others, and how many they were last
     * time. What makes a turn difficult seldom passes at once. */
    unsigned alone, alone_last;
    bool failed; /* the last operation did */
    struct turn_cache cache;
    char wake_blocker[SHARE_WHO]; /* what the last turn said */
};

struct lookout {
    struct store *st;
    pthread_t thread;
    int stop_fd; /* eventfd: readable once it is to stop */
    bool runs;
    struct error why; /* the last look failed: what was told. Its thread's own */
};

/* Everything below `lock` is protected by it. */
struct share {
    struct store *origin;
    struct share_config cfg;
    struct store_ops seat_ops;
    struct lookout lookout;

    pthread_mutex_t lock;
    struct share_handle handle[SHARE_HANDLES];
    size_t n_handles;
    size_t n_failing; /* handles lent to seats that failed last time: all but one at most */
    struct share_queue queue;
    struct group group;
    struct share_seat_store *seats;
    size_t n_seats;
    char wake_blocker[SHARE_WHO]; /* who keeps the bell from ringing, as the lookout found; "" */
};

/* share_borrow waits for a handle, and opens it if that was not done yet. `seat` says who wants it;
 * NULL: a group. share_return gives it back. why: the operation failed, for this reason. */
int share_borrow(struct share *sh, struct share_seat_store *seat, size_t *ret, struct error *err);
void share_return(struct share *sh, size_t i, const struct error *why);

/* group_turn makes a turn together with those that others ask for meanwhile. If t->made is false
 * afterwards, it has to be made by itself. ERR_UNAVAILABLE: the store could not be asked. */
int group_turn(struct share *sh, struct batched_turn *t, struct error *err);

/* lookout_start starts the thread of the lookout, lookout_stop ends it. */
int lookout_start(struct share *sh, struct error *err);
void lookout_stop(struct share *sh);

#endif
