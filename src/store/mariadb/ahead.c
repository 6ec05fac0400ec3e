/* ahead.c: reading ahead of the claims, on a connection of its own. While a batch is committed and
 * delivered, the server reads the next one. An event that has its seq stays what and where it is,
 * so what was read ahead is what the claim would have read itself. Without it everything goes on,
 * only slower. */
#include <string.h>

#include "store/mariadb/mariadb.h"
#include "store_sql.h"

#define AHEAD_MIN 100             /* events of a batch that are worth it */
#define PLACES_MAX 16000          /* that are read at once */
#define TRY_AGAIN (10000 * MS_NS) /* until another connection is tried */

static void forget_places(struct mdb_ahead *h)
{
    free(h->places);
    h->places = NULL;
    h->n = 0;
    h->at = 0;
}

void mdb_ahead_release(struct mdb_store *st)
{
    struct mdb_ahead *h = &st->ahead;
    forget_places(h);
    mdb_done(h->rows);
    h->rows = NULL;
    if (h->db)
        mysql_close(h->db);
    h->db = NULL;
    h->asked = false;
}

/* give_up ends reading ahead for a while, after something failed. */
static void give_up(struct mdb_store *st)
{
    mdb_ahead_release(st);
    st->ahead.again = clock_mono(&clock_system) + TRY_AGAIN;
}

static bool connect_ahead(struct mdb_store *st)
{
    struct mdb_ahead *h = &st->ahead;
    struct error ignored;
    if (h->db)
        return true;
    if (clock_mono(&clock_system) < h->again)
        return false;
    h->db = mdb_dial(st, &ignored);
    if (h->db)
        return true;
    give_up(st);
    return false;
}

/* find_places sees to it that the max places after the position are known, if there are as many.
 * Inside a transaction it asks for none: a question that fails takes with it what waits to be
 * written. */
static bool find_places(struct mdb_store *st, const struct mdb_after *after)
{
    struct mdb_ahead *h = &st->ahead;
    size_t max = (size_t)after->max;
    while (h->at < h->n && h->places[h->at].seq <= after->position)
        h->at++;
    bool follows = h->at > 0 && h->places[h->at - 1].seq == after->position;
    if (follows && h->n - h->at >= max)
        return true;
    if (st->in_tx)
        return false;

    forget_places(h);
    struct mdb_after more = *after;
    struct error ignored;
    if (more.max < PLACES_MAX)
        more.max = PLACES_MAX;
    if (mdb_read_places(st, &more, &h->places, &h->n, &ignored) != 0)
        return false;
    return h->n >= max;
}

/* ask sends the question for the max events at h->at, and does not wait for the answer. */
static bool ask(struct mdb_store *st, const struct mdb_after *after)
{
    struct mdb_ahead *h = &st->ahead;
    size_t max = (size_t)after->max;
    const struct mdb_place *p = &h->places[h->at];
    struct buf b;
    struct sql_events_between args = {.first = p[0].nr, .last = p[max - 1].nr, .most = after->most};
    buf_init(&b, 4096);
    mdb_write(st, MDB_QUOTED, &sql_events_between, &args, &b);
    bool sent = !b.failed && mysql_send_query(h->db, b.p, b.n) == 0;
    buf_release(&b);
    return sent;
}

void mdb_ahead_start(struct mdb_store *st, const struct mdb_after *after)
{
    struct mdb_ahead *h = &st->ahead;
    int64_t left = st->bell.next - 1 - after->position;
    if (h->asked || after->max < AHEAD_MIN)
        return;
    if (st->in_tx && !h->db)
        return;
    if (left < 2 * after->max) {
        mdb_ahead_release(st);
        return;
    }
    if (!connect_ahead(st) || !find_places(st, after))
        return;
    if (!mdb_are_together(&h->places[h->at], (size_t)after->max))
        return;
    if (!ask(st, after)) {
        give_up(st);
        return;
    }
    h->asked = true;
    h->what = *after;
}

/* take_answer waits for the answer. */
static struct mdb_rows *take_answer(struct mdb_store *st)
{
    struct mdb_ahead *h = &st->ahead;
    struct mdb_rows *q = calloc(1, sizeof *q);
    if (!q || mysql_read_query_result(h->db) != 0)
        goto fail;
    q->res = mysql_store_result(h->db);
    if (!q->res)
        goto fail;
    return q;

fail:
    free(q);
    return NULL;
}

/* keep_places gives the rows the places they were asked for by. */
static bool keep_places(struct mdb_ahead *h, struct mdb_rows *q)
{
    size_t n = (size_t)h->what.max;
    q->places = calloc(n, sizeof *q->places);
    if (!q->places)
        return false;
    memcpy(q->places, &h->places[h->at], n * sizeof *q->places);
    q->n_places = n;
    return true;
}

void mdb_ahead_fetch(struct mdb_store *st)
{
    struct mdb_ahead *h = &st->ahead;
    if (!h->asked || h->rows)
        return;
    h->rows = take_answer(st);
    if (!h->rows)
        give_up(st);
}

struct mdb_rows *mdb_ahead_take(struct mdb_store *st, const struct mdb_after *after)
{
    struct mdb_ahead *h = &st->ahead;
    mdb_ahead_fetch(st);
    if (!h->asked)
        return NULL;
    struct mdb_rows *q = h->rows;
    h->asked = false;
    h->rows = NULL;
    bool wanted = h->what.position == after->position && h->what.max == after->max &&
                  h->what.most == after->most;
    if (wanted && keep_places(h, q))
        return q;
    mdb_done(q);
    return NULL;
}
