/* failure.h: handles failed deliveries: which side is at fault, whether the failure uses up an
 * attempt, and when the event is retried or becomes a dead letter.
 *
 * A sink that fails everything is down, regardless of its answers. An event that fails while others
 * get through is at fault itself. So a failure counts against an event only if another delivery
 * sent within FAILURE_NEAR after it got through. A delivery sent before proves nothing, because the
 * sink may have gone down since. Nor does a success at the end of an outage: it only shows that the
 * sink is back. An event once proven at fault is presumed at fault again, unless the sink is down
 * by then; and its failures are no evidence against the sink, because events of a broken kind fail
 * in bunches when retried.
 *
 * How many failures in a row mean an outage depends on the usual failure rate: 20 if everything
 * went well, more if many events fail anyway. So a sink that accepts one kind of event but not
 * another keeps receiving the kind it accepts. */
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
#define FAILURE_SLICES 128  /* one minute: deliveries may take that long to fail */
#define FAILURE_OPEN 64     /* failures that may still prove to be the event's own fault */
#define FAILURE_CERTAIN 20  /* if this many events fail and none gets through, the sink is down */
#define FAILURE_FAILING 200 /* upper bound, however high the usual failure rate */
/* With fewer, the sink counts as down after three failures and this time. */
#define FAILURE_PATIENCE (2000 * MS_NS)

/* Deliveries sent in one slice of time that got through. */
struct passed_slice {
    int64_t number;      /* time / FAILURE_SLICE */
    int64_t first, last; /* when the first and the last of these deliveries were sent */
};

/* A failure that may still prove to be the event's own fault. seq 0: none. */
struct open_failure {
    int64_t seq, sent_at;
    bool event_fault;
};

/* Evidence about a sink from the deliveries of one pipeline; empty when a relay starts. All times
 * are monotonic.
 * (1) failures counts the failures since a delivery last got through; failing_since != 0 if and
 * only if it is above 0. They were sent after every delivery that got through before the first of
 * them failed: first_sent > passed_sent then.
 * (2) failing[0..n_failing) are the different events among them, as far as there is room.
 * (3) Deliveries sent from out_from on and before out_to failed in the last completed outage: as
 * far as is known, none of them got through.
 * (4) Only failure.c writes these. */
struct failure_detector {
    struct passed_slice passed[FAILURE_SLICES];
    struct open_failure open[FAILURE_OPEN];
    size_t next_open;
    int64_t open_until;    /* later deliveries are no evidence about open failures */
    int64_t passed_sent;   /* when the last successful delivery was sent; 0: there was none */
    int64_t failing_since; /* when the first of the current failures was noted */
    int64_t first_sent;    /* when that delivery was sent */
    int64_t out_from, out_to;
    int64_t out_least; /* a shorter series of failures is no outage */
    size_t failures, n_failing;
    int64_t failing[FAILURE_FAILING];
    double usual_passes, usual_fails; /* while the sink was up; older ones count less */
};

/* failure_passed notes that a delivery got through: the sink accepted the event, or reported what
 * is wrong with it. failure_answered notes an answer that shows only that the sink is reachable,
 * not how it treats other events: if all of those fail, it stays down. */
void failure_passed(struct pipeline *p, const struct slot *slot);
void failure_answered(struct pipeline *p);

/* failure_retry ends a failed event for now. failure_classify decides whether that counts as an
 * attempt when the batch is settled, because by then the outcomes of the others are known. */
void failure_retry(struct pipeline *p, struct slot *slot, const struct sink_result *r);
/* failure_refused ends an event that a working sink refuses: the attempt counts, regardless
 * of the others. */
void failure_refused(struct pipeline *p, struct slot *slot, const struct sink_result *r);
/* failure_rejected makes the event a dead letter at once. */
void failure_rejected(struct pipeline *p, struct slot *slot, const struct sink_result *r,
                      enum burial why);
/* failure_put_off ends an event for now. It is tried again after delay_ms, and no attempt is
 * counted. */
void failure_put_off(struct pipeline *p, struct slot *slot, int64_t delay_ms, const char *text);
/* failure_classify decides, for each failure in a batch that is about to be settled, whether it
 * counts as an attempt of the event, and when the event is retried. */
void failure_classify(struct pipeline *p, struct batch_state *b);
/* failure_forget forgets the failures of a lost claim. Otherwise they would count against the event
 * when it is claimed again, perhaps for a consumer that was dropped and recreated. */
void failure_forget(struct pipeline *p, const struct batch_state *b);
/* failure_is_events returns whether the event's last failure proved to be its own fault only after
 * it was settled. */
bool failure_is_events(const struct failure_detector *d, int64_t seq);

/* failure_note remembers how an event failed, for pipeline_failure. */
void failure_note(struct pipeline *p, const struct slot *slot, const char *text);
/* failure_log logs "event ID (TYPE) " and what fmt says about it. */
void failure_log(const struct pipeline *p, enum log_level level, const struct event *ev,
                 int attempt, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* failure_text is the reason a sink gave, never NULL. */
static inline const char *failure_text(const struct sink_result *r)
{
    return r->text ? r->text : "no reason given";
}

#endif
