/* line_queue.h: deliveries gathered as lines of JSON, for the sinks that write just those: file:
 * and stdout:. */
#ifndef SINK_LINE_QUEUE_H
#define SINK_LINE_QUEUE_H

#include "base/buf.h"
#include "sink/sink.h"

/* One delivery and the bytes of its line; 0 if the line was taken out, because no file could hold
 * it. */
struct line {
    struct delivery *d;
    size_t n;
};

/* (1) text holds the lines of line[0..count), in order. (2) shown: they go to a terminal, so
 * characters that it does not show as themselves are escaped; the JSON has the same values. */
struct line_queue {
    struct sink *sk; /* whose deliveries they are; borrowed */
    struct buf text;
    struct line *line;
    size_t count, cap;
    bool shown;
};

/* line_queue_init returns -1 if there is no memory; line_queue_release may be called even then. */
int line_queue_init(struct line_queue *q, struct sink *sk);
void line_queue_release(struct line_queue *q);

/* line_queue_submit is the submit of such a sink: it gathers lines up to about 1 MiB, and returns
 * how many deliveries it took. */
size_t line_queue_submit(struct line_queue *q, struct delivery *const *d, size_t n);

/* line_queue_leave_out_too_long takes out the lines that are longer than any file of this process
 * may be (ulimit -f): they would stop everything after them forever. */
void line_queue_leave_out_too_long(struct line_queue *q);

/* line_queue_answer calls done for line[from..to), with the text of err, which may be NULL. A line
 * that was left out is rejected, whatever the status. The lines stay until line_queue_clear. */
void line_queue_answer(const struct line_queue *q, size_t from, size_t to, enum sink_status status,
                       const struct error *err);
/* line_queue_clear starts over with no line. */
void line_queue_clear(struct line_queue *q);

#endif
