/* read.c: reading events in the order of their seq. To join each seq with its event takes the
 * server twice as long as to read events as they lie in their table. So where the numbers of a
 * chunk lie together, which is the rule, they are read as a range, and get their seq here. */
#include <string.h>

#include "store/mariadb/mariadb.h"
#include "store_sql.h"

#define FEW 32 /* so many events are joined: one question is less work than two */

bool mdb_are_together(const struct mdb_place *p, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (p[i].nr <= p[i - 1].nr)
            return false;
    uint64_t span = (uint64_t)(p[n - 1].nr - p[0].nr) + 1;
    return span <= n + n / 4;
}

int mdb_read_places(struct mdb_store *st, const struct mdb_after *after, struct mdb_place **ret,
                    size_t *ret_n, struct error *err)
{
    struct mdb_rows *q = mdb_rows(st, err,
                                  SQL(places, .position = after->position, .max = after->max));
    if (!q)
        return -1;
    size_t n = 0;
    struct mdb_place *p = calloc((size_t)mysql_num_rows(q->res) + 1, sizeof *p);
    if (!p) {
        mdb_done(q);
        return err_nomem(err);
    }
    while (mdb_step(&q) == 1)
        p[n++] = (struct mdb_place){.seq = mdb_int(q, 0), .nr = mdb_int(q, 1)};
    *ret = p;
    *ret_n = n;
    return 0;
}

static struct mdb_rows *joined(struct mdb_store *st, const struct mdb_after *after,
                               struct error *err)
{
    return mdb_rows(
        st, err,
        SQL(fresh_events, .position = after->position, .max = after->max, .most = after->most));
}

/* no_rows is the answer that there is nothing. */
static struct mdb_rows *no_rows(struct error *err)
{
    struct mdb_rows *q = calloc(1, sizeof *q);
    if (!q)
        err_nomem(err);
    return q;
}

struct mdb_rows *mdb_read_after(struct mdb_store *st, const struct mdb_after *after,
                                struct error *err)
{
    struct mdb_place *p = NULL;
    size_t n = 0;
    int64_t left = st->bell.next - 1 - after->position;
    if (left <= 0)
        return no_rows(err);
    struct mdb_rows *ahead = mdb_ahead_take(st, after);
    if (ahead)
        return ahead;
    if (left <= FEW || after->max <= FEW)
        return joined(st, after, err);
    if (mdb_read_places(st, after, &p, &n, err) != 0)
        return NULL;
    if (n == 0 || !mdb_are_together(p, n)) {
        free(p);
        return joined(st, after, err);
    }

    struct mdb_rows *q = mdb_rows(
        st, err, SQL(events_between, .first = p[0].nr, .last = p[n - 1].nr, .most = after->most));
    if (!q) {
        free(p);
        return NULL;
    }
    q->places = p;
    q->n_places = n;
    return q;
}
