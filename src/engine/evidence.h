/* evidence.h: whose fault is a failure: the event's, or the sink's?
 *
 * A sink that fails everything is out, whatever it answers; an event that fails while others get
 * through has itself to blame. So a failure is held against an event only if something else, sent
 * within EVIDENCE_NEAR after it, got through. What was sent before proves nothing: the sink may
 * have gone since. Nor does what gets through at the end of an outage: that is the sink's return.
 * An event that was proven guilty once is taken to be guilty again, unless the sink is down by
 * then; and what it does is no evidence against the sink: the failures of a broken kind of event
 * come in bunches when they are tried again.
 *
 * How many failures in a row mean an outage depends on what is usual: 20 where all went well, more
 * where many fail anyway, so that a sink which takes one kind of event and not another goes on with
 * what it takes.
 *
 * It belongs to one pipeline, and knows what that one has seen; a relay that starts knows nothing.
 * All times are monotonic. */
#ifndef ENGINE_EVIDENCE_H
#define ENGINE_EVIDENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"

#define EVIDENCE_NEAR (1000 * MS_NS)
#define EVIDENCE_SLOT (EVIDENCE_NEAR / 2)
/* so a delivery may take a minute to fail, and it is still known what got through beside it */
#define EVIDENCE_SLOTS 128
#define EVIDENCE_SUSPECTS 64 /* failures for which it is not known yet */
/* different events that failed, and nothing got through: there is no doubt about the sink */
#define EVIDENCE_CERTAIN 20
#define EVIDENCE_FAILING 200 /* so many at most, however many fail usually */
/* with fewer, it is said to be down after this long, and three failures */
#define EVIDENCE_PATIENCE (2000 * MS_NS)

/* What got through of the deliveries that were sent in one slot of time. */
struct evidence_slot {
    int64_t number; /* time / EVIDENCE_SLOT */
    int64_t first, last;
};

/* A failure that may yet turn out to be the event's own fault. seq 0: none. */
struct evidence_suspect {
    int64_t seq, sent_at;
    bool proven;
};

/* (1) failing_since != 0 if and only if failures > 0: what failed since anything got through. (2)
 *   failing[0..n_failing) are
 * the different events among them, as far as there is room. (3) The last outage that is over: what
 * was sent from out_from on, and before out_to, failed. */
struct evidence {
    struct evidence_slot slot[EVIDENCE_SLOTS];
    struct evidence_suspect suspect[EVIDENCE_SUSPECTS];
    size_t next_suspect;
    /* when the first of them failed, and when it had been sent */
    int64_t failing_since, first_sent;
    int64_t out_from, out_to;
    size_t failures, n_failing;
    bool any_passed; /* something got through, ever */
    int64_t failing[EVIDENCE_FAILING];
    double usual_passes, usual_fails; /* while the sink was not out */
};

void evidence_init(struct evidence *e);

/* evidence_passed notes a delivery, sent at that time, that got through: the sink took it, or said
 * what is wrong with it. */
void evidence_passed(struct evidence *e, int64_t sent_at);
/* evidence_failed notes one that did not, of event seq, which was not proven guilty before. */
void evidence_failed(struct evidence *e, int64_t seq, int64_t sent_at, int64_t now);

/* evidence_near says whether something else that was sent soon after got through. */
bool evidence_near(const struct evidence *e, int64_t sent_at);
/* evidence_found says whether that became known of the event's last failure only after it had been
 * recorded. evidence_late says it once. */
bool evidence_found(struct evidence *e, int64_t seq);
bool evidence_late(struct evidence *e, int64_t seq);
/* evidence_down: the sink counts as down. evidence_many: and it is not just one event that says so.
 * evidence_certain: beyond any doubt, so that no event is given up for it, however long it
 * takes. */
bool evidence_down(const struct evidence *e, int64_t now);
bool evidence_many(const struct evidence *e);
bool evidence_certain(const struct evidence *e);
/* evidence_tried: nothing got through since it was sent, and each of the events that fail has been
 * tried several times. */
bool evidence_tried(const struct evidence *e, int64_t sent_at);
/* evidence_between: nothing got through since it was sent, but before: none of those that fail has
 * failed twice since. */
bool evidence_between(const struct evidence *e, int64_t sent_at);

#endif
