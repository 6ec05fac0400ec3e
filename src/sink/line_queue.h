/* line_queue.h: deliveries gathered as lines of JSON, for the sinks that write lines: file: and
 * stdout:. */
#ifndef SINK_LINE_QUEUE_H
#define SINK_LINE_QUEUE_H

#include "base/buf.h"
#include "sink/sink.h"

/* A delivery and the length of its line; 0 if the line was removed because it exceeds the file size
 * limit. */
struct line {
    struct delivery *d;
    size_t n;
};

/* (1) `text` holds the lines of line[0..count), in order. (2) `shown`: the lines go to a terminal,
 * so unprintable characters are escaped; the JSON values stay the same. */
struct line_queue {
    struct sink *sk; /* owner of the deliveries */
    struct buf text;
    struct line *line;
    size_t count, cap;
    bool shown;
};

/* line_queue_init returns -1 if out of memory; line_queue_release is valid even then. */
int line_queue_init(struct line_queue *q, struct sink *sk);
void line_queue_release(struct line_queue *q);

/* line_queue_submit implements submit: it gathers up to about 1 MiB of lines and returns how many
 * deliveries it accepted. */
size_t line_queue_submit(struct line_queue *q, struct delivery *const *d, size_t n);

/* line_queue_leave_out_too_long removes lines that exceed this process's file size limit
 * (ulimit -f): they would block all later lines forever. */
void line_queue_leave_out_too_long(struct line_queue *q);

/* line_queue_answer calls done for line[from..to), with the text of err, which may be NULL. A
 * removed line is rejected, whatever the status. The lines stay until line_queue_clear. */
void line_queue_answer(const struct line_queue *q, size_t from, size_t to, enum sink_status status,
                       const struct error *err);
/* line_queue_clear empties the queue. */
void line_queue_clear(struct line_queue *q);

#endif
