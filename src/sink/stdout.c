/* stdout.c: the sink that writes one line of JSON per event to standard output, and never blocks on
 * its reader. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/num.h"
#include "base/text.h"
#include "sink/kinds.h"
#include "sink/line_queue.h"

#define REST_MAX ((size_t)2 << 30) /* limit on one line */

/* (1) `off` bytes of lines.text are written. (2) `rest` is the unwritten part of a line whose
 * result was already reported; it is written before any other data. */
struct stdout_sink {
    struct sink base;
    struct line_queue lines;
    size_t off;
    struct buf rest;
    bool regular;     /* a file, not a pipe or a terminal */
    bool blocked;     /* standard output is full until its reader reads */
    int64_t moved_at; /* when standard output last accepted data, or should have */
};

/* Writes as much as it can of b from *off on. Returns -1 with errno if a write failed. Sets
 * `blocked` if the reader is not reading. */
static int write_some(struct stdout_sink *s, const struct buf *b, size_t *off)
{
    while (*off < b->n) {
        struct pollfd out = {STDOUT_FILENO, POLLOUT, 0};
        int ready;
        do
            ready = poll(&out, 1, 0);
        while (ready < 0 && errno == EINTR);
        s->blocked = ready == 0; /* if poll fails, write will report the error */
        if (s->blocked)
            return 0;

        /* Write at most PIPE_BUF bytes, which a pipe that polls as writable accepts without
         * blocking. A stalled reader thus delays the deliveries, but not the relay's shutdown. */
        size_t n = s->regular ? b->n - *off : min_size(b->n - *off, PIPE_BUF);
        ssize_t k = fd_write(STDOUT_FILENO, b->p + *off, n);
        if (k > 0) {
            *off += (size_t)k;
            s->moved_at = clock_mono(s->base.cfg.clock);
        }
        if (k >= 0 || errno == EINTR)
            continue;
        s->blocked = errno == EAGAIN;
        if (!s->blocked)
            return -1;
        return 0;
    }
    return 0;
}

/* Writes the rest of a partially written line. */
static int write_rest(struct stdout_sink *s)
{
    size_t off = 0;
    int rc = write_some(s, &s->rest, &off);
    int saved = errno;
    memmove(s->rest.p, s->rest.p + off, s->rest.n - off);
    buf_truncate(&s->rest, s->rest.n - off);
    errno = saved;
    return rc;
}

static void forget(struct stdout_sink *s)
{
    line_queue_clear(&s->lines);
    s->off = 0;
    s->blocked = false;
}

static void answer_all(struct stdout_sink *s, enum sink_status status, const struct error *err)
{
    line_queue_answer(&s->lines, 0, s->lines.count, status, err);
    forget(s);
}

/* Ends all deliveries in flight: complete lines as delivered, the others with `status`. Keeps the
 * rest of a partially written line, which is written before any other data. Its event is delivered
 * again, so a reader sees it twice, but never a torn line. If memory for the rest runs out, the
 * sink fails permanently. */
static void stop_here(struct stdout_sink *s, enum sink_status status, const struct error *err)
{
    const struct line_queue *q = &s->lines;
    size_t whole = 0, at = 0; /* complete lines and their bytes */
    while (whole < q->count && at + q->line[whole].n <= s->off)
        at += q->line[whole++].n;
    size_t half = s->off - at;
    if (half > 0) {
        buf_add(&s->rest, q->text.p + s->off, q->line[whole].n - half);
        if (s->rest.failed)
            status = SINK_FATAL;
    }
    line_queue_answer(q, 0, whole, SINK_DELIVERED, NULL);
    line_queue_answer(q, whole, q->count, status, err);
    forget(s);
}

static void write_failed(struct stdout_sink *s)
{
    struct error err;
    bool gone = errno == EPIPE || errno == EBADF || errno == ECONNRESET;
    if (gone) {
        /* The content of the pipe is lost with its reader, so no line counts as delivered. */
        err_class(&err, ERR_UNAVAILABLE, CLASS_FATAL, errno, "standard output was closed");
        answer_all(s, SINK_FATAL, &err);
        return;
    }
    err_errno(&err, ERR_UNAVAILABLE, errno, "could not write to standard output");
    stop_here(s, SINK_DOWN, &err);
}

/* Returns the time by which the reader must read something. */
static int64_t reader_due(const struct stdout_sink *s)
{
    int64_t limit = s->base.cfg.timeout_ms;
    if (limit <= 0)
        return CLOCK_NEVER;
    return s->moved_at + limit * MS_NS;
}

static size_t stdout_submit(struct sink *sk, struct delivery *const *d, size_t n)
{
    return line_queue_submit(&((struct stdout_sink *)sk)->lines, d, n);
}

static void stdout_drive(struct sink *sk)
{
    struct stdout_sink *s = (struct stdout_sink *)sk;
    if (!s->lines.count)
        return;
    bool untouched = s->off == 0 && !s->blocked;
    if (untouched) {
        s->moved_at = clock_mono(sk->cfg.clock);
        if (s->regular)
            line_queue_leave_out_too_long(&s->lines);
    }

    int rc = 0;
    if (s->rest.n > 0)
        rc = write_rest(s);
    if (rc == 0 && s->rest.n == 0)
        rc = write_some(s, &s->lines.text, &s->off);
    if (rc != 0) {
        write_failed(s);
        return;
    }
    bool written = s->rest.n == 0 && s->off == s->lines.text.n;
    if (written) {
        answer_all(s, SINK_DELIVERED, NULL);
    } else if (s->blocked && clock_mono(sk->cfg.clock) >= reader_due(s)) {
        struct error err;
        char limit[32];
        text_duration_show(sk->cfg.timeout_ms, limit);
        err_set(&err, ERR_UNAVAILABLE, "standard output was not read for %s", limit);
        stop_here(s, SINK_DOWN, &err);
    }
}

static size_t stdout_fds(struct sink *sk, struct pollfd *out, size_t max)
{
    const struct stdout_sink *s = (const struct stdout_sink *)sk;
    if (!s->blocked || !max)
        return 0;
    out[0] = (struct pollfd){STDOUT_FILENO, POLLOUT, 0};
    return 1;
}

static int64_t stdout_deadline(struct sink *sk)
{
    const struct stdout_sink *s = (const struct stdout_sink *)sk;
    if (!s->lines.count)
        return CLOCK_NEVER;
    if (s->blocked)
        return reader_due(s);
    return 0;
}

static void stdout_cancel(struct sink *sk)
{
    struct error err;
    err_set(&err, ERR_UNAVAILABLE, "cancelled before standard output accepted the event");
    stop_here((struct stdout_sink *)sk, SINK_CANCELLED, &err);
}

/* Tries to complete a partially written line. */
static void stdout_close(struct sink *sk)
{
    struct stdout_sink *s = (struct stdout_sink *)sk;
    if (s->rest.n > 0)
        (void)write_rest(s);
    buf_release(&s->rest);
    line_queue_release(&s->lines);
    free(s);
}

static int stdout_open(const struct sink_config *cfg, struct sink **ret, struct error *err)
{
    struct stat st;
    if (strcmp(cfg->url, "stdout:") != 0)
        return err_set(err, ERR_CONFIG,
                       "stdout: accepts no parameters; file:PATH writes to a file");
    struct stdout_sink *s = calloc(1, sizeof *s);
    if (!s)
        return err_nomem(err);
    s->base = (struct sink){.ops = &stdout_ops, .cfg = *cfg};
    s->regular = fstat(STDOUT_FILENO, &st) == 0 && S_ISREG(st.st_mode);
    buf_init(&s->rest, REST_MAX);
    if (line_queue_init(&s->lines, &s->base) != 0) {
        stdout_close(&s->base);
        return err_nomem(err);
    }
    s->lines.shown = isatty(STDOUT_FILENO);
    *ret = &s->base;
    return 0;
}

const struct sink_ops stdout_ops = {
    .scheme = "stdout",
    .synopsis = "stdout:",
    .help = "writes one line of JSON per event to standard output",
    .caps = SINK_FAILSTOP,
    .open = stdout_open,
    .close = stdout_close,
    .submit = stdout_submit,
    .drive = stdout_drive,
    .fds = stdout_fds,
    .deadline = stdout_deadline,
    .cancel = stdout_cancel,
};
