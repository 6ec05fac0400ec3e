/* evidence.h: whose fault is a failure: the event's, or the sink's?
 *
 * A sink that fails everything is down, whatever it answers. An event that fails while others get
 * through has itself to blame. So a failure is held against an event only if something else that
 * was sent within EVIDENCE_NEAR after it got through. A delivery that was sent before proves
 * nothing, because the sink may have gone down since. Nor does one that gets through at the end of
 * an outage: that is only the sink's return. An event that was once proven guilty is presumed
 * guilty again, unless the sink is down by then; and its failures are no evidence against the sink,
 * because events of a broken kind fail in bunches when they are tried again.
 *
 * How many failures in a row mean an outage depends on what is usual: 20 where everything went
 * well, more where many events fail anyway. So a sink that takes one kind of event and not another
 * goes on with what it takes.
 *
 * Evidence belongs to one pipeline and knows what that pipeline has seen. A relay that starts knows
 * nothing. All times are monotonic. */
#ifndef ENGINE_EVIDENCE_H
#define ENGINE_EVIDENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"

#define EVIDENCE_NEAR (1000 * MS_NS)
#define EVIDENCE_SLOT (EVIDENCE_NEAR / 2)
#define EVIDENCE_SLOTS 128   /* a minute's worth: deliveries may take that long to fail */
#define EVIDENCE_SUSPECTS 64 /* failures that may yet turn out to be the event's own fault */
#define EVIDENCE_CERTAIN 20  /* if this many events fail and none gets through, the sink is down */
#define EVIDENCE_FAILING 200 /* the most that are needed for that, however many usually fail */
/* With fewer, the sink counts as down after three failures and this time. */
#define EVIDENCE_PATIENCE (2000 * MS_NS)

/* Which of the deliveries sent in one slot of time got through. */
struct evidence_slot {
    int64_t number;      /* time / EVIDENCE_SLOT */
    int64_t first, last; /* when the first and the last of them were sent */
};

/* A failure that may yet turn out to be the event's own fault. seq 0: none. */
struct evidence_suspect {
    int64_t seq, sent_at;
    bool proven;
};

/* (1) failures counts the failures since anything got through; failing_since != 0 if and only if it
 *     is above 0. They were sent after everything that got through before the first of them failed:
 *     first_sent > passed_sent then.
 * (2) failing[0..n_failing) are the different events among them, as far as there is room.
 * (3) What was sent from out_from on and before out_to failed in the last outage that is over: as
 *     far as is known, nothing of it got through. */
struct evidence {
    struct evidence_slot slot[EVIDENCE_SLOTS];
    struct evidence_suspect suspect[EVIDENCE_SUSPECTS];
    size_t next_suspect;
    int64_t open_until;    /* what is sent later proves no suspect guilty that is not yet */
    int64_t passed_sent;   /* when the last that got through was sent; 0: nothing did, ever */
    int64_t failing_since; /* when the first of those failures was noted */
    int64_t first_sent;    /* when that delivery had been sent */
    int64_t out_from, out_to;
    int64_t out_least; /* if it lasted less than this, it was no outage */
    size_t failures, n_failing;
    int64_t failing[EVIDENCE_FAILING];
    double usual_passes, usual_fails; /* while the sink was up; older ones count less */
};

void evidence_init(struct evidence *e);

/* evidence_passed notes that a delivery sent at that time got through: the sink took the event, or
 * said what is wrong with it. */
void evidence_passed(struct evidence *e, int64_t sent_at);
/* evidence_failed notes that a delivery of the event seq failed. The event must not have been
 * proven guilty before. If something that was sent later has got through by now, this says nothing
 * about the sink. */
void evidence_failed(struct evidence *e, int64_t seq, int64_t sent_at, int64_t now);

/* evidence_forget forgets that a delivery of the event seq failed: it was one of a claim that is
 * lost, and what becomes of the event is another's to record. */
void evidence_forget(struct evidence *e, int64_t seq);

/* evidence_near says whether something else that was sent soon after sent_at got through. */
bool evidence_near(const struct evidence *e, int64_t sent_at);
/* evidence_found says whether that became known about the event's last failure only after it had
 * been settled. evidence_late says the same, once. */
bool evidence_found(struct evidence *e, int64_t seq);
bool evidence_late(struct evidence *e, int64_t seq);
/* evidence_down says whether the sink counts as down. evidence_many says whether more than one
 * event fails. evidence_certain says whether the sink is down beyond doubt: then no event is given
 * up, however long that takes. */
bool evidence_down(const struct evidence *e, int64_t now);
bool evidence_many(const struct evidence *e);
bool evidence_certain(const struct evidence *e);
/* evidence_tried says whether nothing got through since sent_at, and the failing events have been
 * tried several times each. */
bool evidence_tried(const struct evidence *e, int64_t sent_at);
/* evidence_between says whether others get through in between: something that was sent after
 * sent_at did; or nothing yet, but something did before, and none of the failing events has failed
 * twice since then. */
bool evidence_between(const struct evidence *e, int64_t sent_at);

#endif
