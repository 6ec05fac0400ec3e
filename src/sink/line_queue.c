#include "sink/line_queue.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/text.h"
#include "event/event_json.h"

#define GATHER_MAX ((size_t)1 << 20) /* bytes gathered; a longer line is written alone */
#define TEXT_MAX ((size_t)2 << 30)   /* limit on the buffer, and thereby on a line */
/* Allocated at the start, so that an idle sink can always accept one delivery. */
#define COUNT_MIN 1024

int line_queue_init(struct line_queue *q, struct sink *sk)
{
    *q = (struct line_queue){.sk = sk};
    buf_init(&q->text, TEXT_MAX);
    q->line = malloc(COUNT_MIN * sizeof *q->line);
    if (!q->line)
        return -1;
    q->cap = COUNT_MIN;
    return 0;
}

void line_queue_release(struct line_queue *q)
{
    buf_release(&q->text);
    free(q->line);
    *q = (struct line_queue){0};
}

static bool make_room(struct line_queue *q)
{
    if (q->count < q->cap)
        return true;
    struct line *grown = realloc(q->line, 2 * q->cap * sizeof *grown);
    if (!grown)
        return false;
    q->line = grown;
    q->cap *= 2;
    return true;
}

/* Replaces the line at `start` with a form that is safe for a terminal. */
static void make_showable(struct buf *text, size_t start)
{
    struct buf line;
    buf_init(&line, TEXT_MAX);
    text_show(&line, (struct str){text->p + start, text->n - start}, "\n\t");
    text->n = start;
    buf_add(text, line.p, line.n);
    if (line.failed)
        text->failed = true;
    buf_release(&line);
}

static bool add(struct line_queue *q, struct delivery *d)
{
    size_t before = q->text.n;
    if (before >= GATHER_MAX || !make_room(q))
        return false;

    event_line_write(&q->text, d->ev, str_of(q->sk->cfg.consumer), d->attempt);
    if (q->shown && !q->text.failed)
        make_showable(&q->text, before);
    bool too_much = q->count > 0 && q->text.n > GATHER_MAX;
    if (q->text.failed || too_much) {
        buf_truncate(&q->text, before);
        return false;
    }
    q->line[q->count++] = (struct line){d, q->text.n - before};
    return true;
}

size_t line_queue_submit(struct line_queue *q, struct delivery *const *d, size_t n)
{
    size_t taken = 0;
    while (taken < n && add(q, d[taken]))
        taken++;
    bool stuck = n > 0 && taken == 0 && q->count == 0;
    if (!stuck)
        return taken;

    /* Memory does not suffice even for one line. An idle sink must accept a delivery anyway, and
     * reports the failure. */
    struct error err;
    err_nomem(&err);
    sink_done(q->sk, d[0], &(struct sink_result){.status = SINK_DOWN, .text = err.text});
    return 1;
}

void line_queue_leave_out_too_long(struct line_queue *q)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0)
        return;
    if (q->text.n <= limit.rlim_cur)
        return;

    size_t from = 0, to = 0;
    for (size_t i = 0; i < q->count; i++) {
        size_t n = q->line[i].n;
        if (n > limit.rlim_cur) {
            q->line[i].n = 0;
        } else {
            memmove(q->text.p + to, q->text.p + from, n);
            to += n;
        }
        from += n;
    }
    buf_truncate(&q->text, to);
}

static void answer_too_long(const struct line_queue *q, struct delivery *d)
{
    struct rlimit limit = {0};
    struct error err;
    getrlimit(RLIMIT_FSIZE, &limit);
    err_set(&err, ERR_INVALID,
            "the event's line exceeds the file size limit of this process: %llu bytes (ulimit -f)",
            (unsigned long long)limit.rlim_cur);
    struct sink_result res = {
        .status = SINK_REJECT, .native = EFBIG, .text = err.text, .unasked = true};
    sink_done(q->sk, d, &res);
}

void line_queue_answer(const struct line_queue *q, size_t from, size_t to, enum sink_status status,
                       const struct error *err)
{
    struct sink_result res = {.status = status};
    if (err) {
        res.native = err->native;
        res.text = err->text;
    }
    for (size_t i = from; i < to; i++) {
        if (q->line[i].n > 0)
            sink_done(q->sk, q->line[i].d, &res);
        else
            answer_too_long(q, q->line[i].d);
    }
}

void line_queue_clear(struct line_queue *q)
{
    q->count = 0;
    buf_clear(&q->text);
}
