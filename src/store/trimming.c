#include "store/trimming.h"

/* Target duration of a call. After a call that takes half as long again, the next is half as large;
 * but never below STORE_TRIM_ROWS on a server, where smaller calls would cost more than they
 * save. */
#define SERVER_NS (20 * MS_NS)
#define WRITER_NS (2 * MS_NS)
#define ROWS_MOST 16000
#define ROWS_LEAST_WRITER 200

/* A call that begins with the first event walks over the index entries of deleted ones if a
 * transaction stays open. Such calls may take 1/ALL_SHARE of the time. */
#define ALL_SHARE 100

static size_t rows_least(bool one_writer)
{
    return one_writer ? ROWS_LEAST_WRITER : STORE_TRIM_ROWS;
}

void trimming_took(struct trimming *t, bool one_writer, int64_t now_ns, int64_t took_ns,
                   const struct trim_result *res)
{
    /* The next call begins where this one ended, as long as there is more to do or it is too early
     * to start over at the first event. */
    bool was_all = t->after == 0;
    if (was_all)
        t->all_at = now_ns + took_ns * ALL_SHARE;
    bool due = now_ns >= t->all_at;
    t->after = res->upto;
    if (!res->more && due)
        t->after = 0;

    int64_t target = one_writer ? WRITER_NS : SERVER_NS;
    bool quick = took_ns < target / 2;
    bool slow = took_ns > target + target / 2;
    if (quick && t->rows <= ROWS_MOST / 2)
        t->rows *= 2;
    if (slow && t->rows / 2 >= rows_least(one_writer))
        t->rows /= 2;

    t->pause_ns = one_writer ? took_ns : took_ns / 4;
}

int trimming_step(struct trimming *t, struct store *st, const struct clock *clock,
                  const struct trim_request *req, struct trim_result *ret, struct error *err)
{
    bool one_writer = (st->caps & STORE_ONE_WRITER) != 0;
    if (t->rows == 0)
        t->rows = rows_least(one_writer);
    struct trim_request step = *req;
    step.max_rows = t->rows;
    step.after = t->after;

    int64_t began = clock_mono(clock);
    if (st->ops->trim(st, &step, ret, err) != 0)
        return -1;
    int64_t now = clock_mono(clock);
    trimming_took(t, one_writer, now, now - began, ret);
    return 0;
}
