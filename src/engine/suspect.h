/* suspect.h: events that may have killed a process.
 *
 * An event that was in flight when a worker vanished is a suspect if its sink runs code of the
 * application in this process. A pipeline has nothing else in flight while it delivers one. If the
 * process dies while exactly one suspect is in flight, that one is to blame. Consumers do not wait
 * for each other, so several may be in flight; then none is blamed for a crash, and after several
 * crashes the store hands them out at different times (see STORE_APART_MS). */
#ifndef ENGINE_SUSPECT_H
#define ENGINE_SUSPECT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/owner.h"
#include "store/store.h"

/* A claim whose blame is cleared. A copy, because its pipeline may end in the meantime. */
struct suspect_claim {
    char consumer[STORE_NAME_MAX + 1];
    char owner[OWNER_TEXT];
    int64_t epoch;
    int64_t lease_ms;
};

struct suspect;

/* The suspects of all pipelines of a process; any thread. (1) in_flight and blamed are protected by
 * lock. (2) blamed != NULL implies in_flight == 1. (3) The pipeline that claims an event that may
 * be blamed holds `asking` until its delivery begins. No other suspect begins meanwhile: it could
 * kill the process before the store knows that the claim is not to be blamed. */
struct suspects {
    pthread_mutex_t lock;
    pthread_mutex_t asking;
    size_t in_flight;
    struct suspect *blamed;
};

/* The suspect of one pipeline; only its thread uses it. */
struct suspect {
    struct suspects *all; /* NULL: the only pipeline of its process */
    bool in_flight;
    struct suspect_claim claim; /* valid if it is in flight */
    bool due;                   /* the store has reported a suspect */
    bool asking;                /* it holds all->asking */
};

void suspect_all_init(struct suspects *all);
void suspect_all_release(struct suspects *all);

/* suspect_ask returns how the next claim treats suspects, while `others` batches are in flight.
 * suspect_begin or suspect_withdraw follows, after the claim and in the same thread. */
enum suspect_policy suspect_ask(struct suspect *s, size_t others);
/* suspect_withdraw notes that there was no suspect in the claim, or no claim. */
void suspect_withdraw(struct suspect *s);

/* suspect_begin notes that the delivery of a suspect is about to begin. Returns how many claims are
 * no longer to be blamed: ret has them, and the caller tells the store first. */
size_t suspect_begin(struct suspect *s, const struct claim_lease *c, bool blamed,
                     struct suspect_claim ret[2]);
/* suspect_end notes that the sink no longer has a suspect of this pipeline. */
void suspect_end(struct suspect *s);

/* suspect_all_absolve finds the claim that would be blamed if the process died now, and clears the
 * blame: the process is being stopped. Returns whether there is one. */
bool suspect_all_absolve(struct suspects *all, struct suspect_claim *ret);

/* suspect_lease returns the lease that identifies the claim to the store. It borrows from c. */
struct claim_lease suspect_lease(const struct suspect_claim *c);

#endif
