/* failure.h: failed deliveries: which side is at fault, whether the failure uses up an attempt, and
 * when the event is retried or becomes a dead letter; and the sink as a whole, when it is down.
 *
 * A sink that fails everything is down, regardless of its answers. An event that fails while others
 * get through is at fault itself: a failure counts against it only if another delivery sent within
 * FAILURE_NEAR after it got through. One sent before proves nothing, because the sink may have gone
 * down since; nor does a success at the end of an outage. An event once proven at fault is presumed
 * at fault again, unless the sink is down by then, and its failures are no evidence against the
 * sink, because events of a broken kind fail in bunches.
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
#include "base/rng.h"
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

/* Evidence about a sink from the deliveries of one pipeline. All times are monotonic.
 * (1) failures counts the failures since a delivery last got through; if it is above 0, then
 *     failing_since != 0 and first_sent > passed_sent.
 * (2) failing[0..n_failing) are the different events among them, as far as there is room.
 * (3) Deliveries sent from out_from on and before out_to failed in the last completed outage.
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

/* ---- circuit.c: the sink as a whole ----
 *
 * The circuit breaker stops sending to a sink that is down, probes it occasionally, and ramps up
 * gently. The report is the line about it that is stored with the consumer (`last error`). */

/* (1) until != 0 if and only if the circuit is open.
 * (2) window is how many deliveries may be in flight. It is 1 or `probes` while probing and doubles
 *     with every success; from CIRCUIT_FULL on there is no limit.
 * (3) Only circuit.c writes these. */
struct circuit {
    int64_t until;    /* no delivery starts before this time, monotonic ns */
    int64_t delay_ms; /* the last wait, before jitter; 0: the sink has proved itself since */
    size_t window;
};

#define CIRCUIT_FULL 1024

void circuit_init(struct circuit *c);
/* circuit_room returns how many more deliveries may start now, while `inflight` are under way. */
size_t circuit_room(struct circuit *c, int64_t now, size_t inflight);
/* circuit_down notes that the sink is down. Returns whether a wait begins: false for one of many
 * deliveries in flight. Waits grow from 100 ms to 30 s; a longer wait requested by the sink is
 * honoured. While they are short, up to `probes` deliveries start when the next probe is due. */
bool circuit_down(struct circuit *c, int64_t now, int64_t retry_after_ms, size_t probes,
                  struct rng *r);
/* circuit_up notes that a delivery got through. */
void circuit_up(struct circuit *c);
static inline bool circuit_open(const struct circuit *c)
{
    return c->until != 0;
}

#define CIRCUIT_REPORT_TEXT 400

/* (1) Only circuit.c writes these. (2) Each line replaces the one before; circuit_report_write
 * writes it between transactions. (3) Once the sink answers, the line is cleared, even that of a
 * relay that has vanished; the reason for a pause stays until the consumer is resumed. */
struct circuit_report {
    bool answered;                  /* the sink has answered since the pipeline started */
    bool paused;                    /* text says why the consumer is paused */
    bool due;                       /* text has not been written yet */
    char text[CIRCUIT_REPORT_TEXT]; /* the line; "": all is well */
};

/* circuit_report_note notes a line; "": no problem. circuit_report_paused notes the sink's reason
 * for pausing the consumer. */
void circuit_report_note(struct circuit_report *r, const char *text);
void circuit_report_paused(struct circuit_report *r, const char *why);
/* circuit_report_answered notes that the sink has answered. was_down: it was down before; paused:
 * the consumer is still paused. */
void circuit_report_answered(struct circuit_report *r, bool was_down, bool paused);
/* circuit_report_take returns whether there is a line to write, once for each line. *ret_text is
 * NULL to clear the line. */
bool circuit_report_take(struct circuit_report *r, const char **ret_text);
/* circuit_report_write writes the line if it is new. No transaction may be open. */
void circuit_report_write(struct pipeline *p);

/* circuit_sink_down notes that the sink reported itself down. */
void circuit_sink_down(struct pipeline *p, const char *why, int64_t retry_after_ms);
/* circuit_sink_fails notes that every delivery fails, so the sink counts as down regardless of its
 * answers. The circuit opens only if several events fail. If only a single event is failing, its
 * own retries serve as probes, and no other event has to wait for them. */
void circuit_sink_fails(struct pipeline *p, const char *why, int64_t retry_after_ms, bool several);
/* circuit_sink_answered notes that the sink is reachable; whether it would accept other events is
 * not known. */
void circuit_sink_answered(struct pipeline *p);

#endif
