/* failure.h: what happens when a delivery fails: whose fault it is, whether that uses up an
 * attempt, and when the event is tried again or becomes a dead letter.
 *
 * A sink that fails everything is down, whatever it answers. An event that fails while others get
 * through has itself to blame. So a failure counts against an event only if something else that was
 * sent within FAILURE_NEAR after it got through. A delivery that was sent before proves nothing,
 * because the sink may have gone down since. Nor does one that gets through at the end of an
 * outage: that is only the sink's return. An event that was once proven at fault is presumed at
 * fault again, unless the sink is down by then; and its failures are no evidence against the sink,
 * because events of a broken kind fail in bunches when they are tried again.
 *
 * How many failures in a row mean an outage depends on what is usual: 20 where everything went
 * well, more where many events fail anyway. So a sink that takes one kind of event and not another
 * goes on with what it takes. */
#ifndef ENGINE_FAILURE_H
#define ENGINE_FAILURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/inflight.h"
#include "engine/meter.h"

struct pipeline;

#define FAILURE_NEAR (1000 * MS_NS)
#define FAILURE_SLICE (FAILURE_NEAR / 2)
#define FAILURE_SLICES 128  /* a minute's worth: deliveries may take that long to fail */
#define FAILURE_OPEN 64     /* failures that may yet turn out to be the event's own fault */
#define FAILURE_CERTAIN 20  /* if this many events fail and none gets through, the sink is down */
#define FAILURE_FAILING 200 /* the most that are needed for that, however many usually fail */
/* With fewer, the sink counts as down after three failures and this time. */
#define FAILURE_PATIENCE (2000 * MS_NS)

/* Which of the deliveries sent in one slice of time got through. */
struct passed_slice {
    int64_t number;      /* time / FAILURE_SLICE */
    int64_t first, last; /* when the first and the last of them were sent */
};

/* A failure that may yet turn out to be the event's own fault. seq 0: none. */
struct open_failure {
    int64_t seq, sent_at;
    bool event_fault;
};

/* What the deliveries of one pipeline tell about its sink; a relay that starts knows nothing. All
 * times are monotonic.
 * (1) failures counts the failures since anything got through; failing_since != 0 if and only if it
 *     is above 0. They were sent after everything that got through before the first of them failed:
 *     first_sent > passed_sent then.
 * (2) failing[0..n_failing) are the different events among them, as far as there is room.
 * (3) What was sent from out_from on and before out_to failed in the last outage that is over: as
 *     far as is known, nothing of it got through.
 * (4) Only failure.c writes these. */
struct failure_detector {
    struct passed_slice passed[FAILURE_SLICES];
    struct open_failure open[FAILURE_OPEN];
    size_t next_open;
    int64_t open_until;    /* what is sent later says nothing new about open failures */
    int64_t passed_sent;   /* when the last that got through was sent; 0: nothing did, ever */
    int64_t failing_since; /* when the first of those failures was noted */
    int64_t first_sent;    /* when that delivery had been sent */
    int64_t out_from, out_to;
    int64_t out_least; /* if it lasted less than this, it was no outage */
    size_t failures, n_failing;
    int64_t failing[FAILURE_FAILING];
    double usual_passes, usual_fails; /* while the sink was up; older ones count less */
};

/* failure_passed notes that a delivery got through: the sink took the event, or said what is wrong
 * with it. failure_answered notes an answer about something other than the sink: it is there. How
 * it would treat other events is not known from that, so if all of those fail, it stays down. */
void failure_passed(struct pipeline *p, const struct slot *slot);
void failure_answered(struct pipeline *p);

/* failure_retry ends an event that failed, for now. Whether that counts as an attempt is decided by
 * failure_classify when its batch is settled, because by then it is known what became of the
 * others. */
void failure_retry(struct pipeline *p, struct slot *slot, const struct sink_result *r);
/* failure_refused ends an event that a working sink refuses: the attempt counts, whatever becomes
 * of others. */
void failure_refused(struct pipeline *p, struct slot *slot, const struct sink_result *r);
/* failure_rejected makes the event a dead letter at once. */
void failure_rejected(struct pipeline *p, struct slot *slot, const struct sink_result *r,
                      enum burial why);
/* failure_put_off ends an event that is to be tried again after delay_ms, without using up an
 * attempt. */
void failure_put_off(struct pipeline *p, struct slot *slot, int64_t delay_ms, const char *text);
/* failure_classify decides, for each failure in a batch that is about to be settled, whether it
 * counts as an attempt of the event, and when the event comes again. */
void failure_classify(struct pipeline *p, struct batch_state *b);
/* failure_forget forgets what failed of a lost claim: it would count when the event comes again,
 * perhaps to a consumer that was made anew. */
void failure_forget(struct pipeline *p, const struct batch_state *b);
/* failure_is_events says whether the last failure of the event became known as its own fault only
 * after it had been settled. */
bool failure_is_events(const struct failure_detector *d, int64_t seq);

/* failure_note remembers how an event failed, for pipeline_failure. */
void failure_note(struct pipeline *p, const struct slot *slot, const char *text);
/* failure_about describes the event for a log line; the result points to `key`. */
#define FAILURE_KEY 256
struct log_about failure_about(const struct event *ev, int attempt, char key[FAILURE_KEY]);
/* failure_text is the reason a sink gave, never NULL. */
static inline const char *failure_text(const struct sink_result *r)
{
    return r->text ? r->text : "no reason given";
}

#endif
