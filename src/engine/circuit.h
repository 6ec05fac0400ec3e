/* circuit.h: the sink as a whole. The circuit breaker stops sending to a sink that is down, probes
 * it occasionally, and ramps up gently. The sink report is the line about it that is stored with
 * the consumer for operators (`last error`). */
#ifndef ENGINE_CIRCUIT_H
#define ENGINE_CIRCUIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rng.h"

struct pipeline;

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

/* ---- the line for operators ---- */

#define CIRCUIT_REPORT_TEXT 400

/* (1) Only circuit.c writes these. (2) Each line replaces the one before. It is only noted here,
 * and written between transactions by circuit_report_write. (3) Once the sink answers, the line is
 * cleared, even if it was written by another relay that has since vanished. A line that gives the
 * reason for a pause stays until the consumer is resumed. */
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

/* ---- the sink of a pipeline ---- */

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
