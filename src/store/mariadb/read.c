/* read.c: reading events in seq order, and the parts of a turn before and after its transaction.
 * Joining each seq with its event takes the server twice as long as reading a range of the table.
 * So if the numbers of a chunk are close together, as is usual, they are read as a range, and their
 * seqs are added here.
 *
 * The next events are read ahead of their claim, on a separate connection: while a batch is
 * committed and delivered, the server reads the next one. An event with a seq never changes or
 * moves, so the claim would have read the same. If reading ahead fails, everything still works,
 * only more slowly. */
#include <string.h>

#include "base/num.h"
#include "store/mariadb/mariadb.h"
#include "store_sql.h"

#define AHEAD_MIN 100             /* events of a batch that are worth reading ahead */
#define PLACES_MAX 16000          /* that are read at once */
#define TRY_AGAIN (10000 * MS_NS) /* until another connection is tried */
#define CHUNK_MAX 2000            /* rows per answer */
#define UNLOOKED_MAX 8 /* consecutive turns that do not look for new events, during a backlog */
#define FEW 32         /* up to this many events are joined: one query is less work than two */

static struct mdb_after next_after(const struct claim_request *req, int64_t position)
{
    return (struct mdb_after){
        .position = position,
        .max = (int64_t)min_size(req->max_events, CHUNK_MAX),
        .most = db_fresh_inline(req),
    };
}

/* ---- the places of events ---- */

/* Returns whether the places are in the order of their numbers, with few other numbers between
 * them: of events not committed, of later ones, or unused. */
static bool are_together(const struct mdb_place *p, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (p[i].nr <= p[i - 1].nr)
            return false;
    uint64_t span = (uint64_t)(p[n - 1].nr - p[0].nr) + 1;
    return span <= n + n / 4;
}

/* Reads the places of the events after a position: *ret_n of them, into an array that the caller
 * frees. */
static int read_places(struct mdb_store *st, const struct mdb_after *after, struct mdb_place **ret,
                       size_t *ret_n, struct error *err)
{
    struct db_rows q = db_rows(&st->base.store, err,
                               SQL(places, .position = after->position, .max = after->max));
    if (!q.at)
        return -1;
    size_t n = 0;
    struct mdb_place *p = calloc((size_t)mdb_count(&q) + 1, sizeof *p);
    if (!p) {
        db_done(&q);
        return err_nomem(err);
    }
    while (db_step(&q, err) == 1)
        p[n++] = (struct mdb_place){.seq = db_int(&q, 0), .nr = db_int(&q, 1)};
    *ret = p;
    *ret_n = n;
    return 0;
}

/* ---- reading ahead ---- */

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
    mdb_rows_free(h->rows);
    h->rows = NULL;
    if (h->db)
        mysql_close(h->db);
    h->db = NULL;
    h->asked = false;
}

/* Stops reading ahead for a while, after a failure. */
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

/* Makes sure that the max places after the position are known, if there are that many. Inside a
 * transaction it sends no query: if it failed, so would the deferred statements. */
static bool find_places(struct mdb_store *st, const struct mdb_after *after)
{
    struct mdb_ahead *h = &st->ahead;
    size_t max = (size_t)after->max;
    while (h->at < h->n && h->places[h->at].seq <= after->position)
        h->at++;
    bool follows = h->at > 0 && h->places[h->at - 1].seq == after->position;
    if (follows && h->n - h->at >= max)
        return true;
    if (st->base.in_tx)
        return false;

    forget_places(h);
    struct mdb_after more = *after;
    struct error ignored;
    if (more.max < PLACES_MAX)
        more.max = PLACES_MAX;
    if (read_places(st, &more, &h->places, &h->n, &ignored) != 0)
        return false;
    return h->n >= max;
}

/* Starts reading these events, if there are many more; inside a transaction, only if their places
 * are known. */
static void ahead_start(struct mdb_store *st, const struct mdb_after *after)
{
    struct mdb_ahead *h = &st->ahead;
    size_t max = (size_t)after->max;
    int64_t left = st->wakeup.next - 1 - after->position;
    if (h->asked || after->max < AHEAD_MIN)
        return;
    if (st->base.in_tx && !h->db)
        return;
    if (left < 2 * after->max) {
        mdb_ahead_release(st);
        return;
    }
    if (!connect_ahead(st) || !find_places(st, after))
        return;
    const struct mdb_place *p = &h->places[h->at];
    if (!are_together(p, max))
        return;

    struct buf b;
    struct sql_events_between args = {.first = p[0].nr, .last = p[max - 1].nr, .most = after->most};
    buf_init(&b, 4096);
    mdb_write(st, MDB_QUOTED, &sql_events_between, &args, &b);
    h->asked = !b.failed && mysql_send_query(h->db, b.p, b.n) == 0;
    h->what = *after;
    buf_release(&b);
    if (!h->asked)
        give_up(st);
}

void mdb_ahead_fetch(struct mdb_store *st)
{
    struct mdb_ahead *h = &st->ahead;
    if (!h->asked || h->rows)
        return;
    h->rows = calloc(1, sizeof *h->rows);
    bool answered = h->rows && mysql_read_query_result(h->db) == 0;
    if (answered)
        h->rows->res = mysql_store_result(h->db);
    if (!answered || !h->rows->res)
        give_up(st);
}

/* Returns the events read ahead; NULL if these were not exactly the ones requested, or reading
 * failed. */
static struct mdb_rows *ahead_take(struct mdb_store *st, const struct mdb_after *after)
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
    size_t n = (size_t)h->what.max;
    if (wanted)
        q->places = calloc(n, sizeof *q->places);
    if (!q->places) {
        mdb_rows_free(q);
        return NULL;
    }
    memcpy(q->places, &h->places[h->at], n * sizeof *q->places);
    q->n_places = n;
    return q;
}

/* ---- for a claim ---- */

/* Reads the events after a position, in seq order: those that mdb_sequence has found, and possibly
 * more. */
static int read_chunk(struct mdb_store *st, const struct mdb_after *after, struct db_rows *ret,
                      struct error *err)
{
    struct store *base = &st->base.store;
    struct mdb_place *p = NULL;
    size_t n = 0;
    int64_t left = st->wakeup.next - 1 - after->position;
    struct mdb_rows *ahead = ahead_take(st, after);
    *ret = (struct db_rows){.st = base, .at = ahead};
    if (ahead)
        return 0;
    bool many = left > FEW && after->max > FEW;
    if (many && read_places(st, after, &p, &n, err) != 0)
        return -1;
    if (n == 0 || !are_together(p, n)) {
        free(p);
        *ret = db_rows(
            base, err,
            SQL(fresh_events, .position = after->position, .max = after->max, .most = after->most));
        return ret->at ? 0 : -1;
    }

    *ret = db_rows(base, err,
                   SQL(events_between, .first = p[0].nr, .last = p[n - 1].nr, .most = after->most));
    struct mdb_rows *q = ret->at;
    if (!q) {
        free(p);
        return -1;
    }
    q->places = p;
    q->n_places = n;
    return 0;
}

/* Reads in pages, until there are enough events, or enough were examined. */
int mdb_read_fresh(struct turn *t, int lane, int64_t position, struct chunk *ret, struct error *err)
{
    struct mdb_store *st = mdb_of(t->st);
    size_t most = t->req->max_events;
    size_t scan = most > FRESH_SCAN_MIN ? most : FRESH_SCAN_MIN;
    struct chunk c = {.lane = lane, .from = position, .to = position};
    c.ev = arena_alloc(t->a, most * sizeof *c.ev);
    if (!c.ev)
        return err_nomem(err);

    bool more = true;
    while (more && st->wakeup.next - 1 > c.to) {
        struct mdb_after after = next_after(t->req, c.to);
        size_t before = c.scanned, asked = min_size((size_t)after.max, scan - c.scanned);
        struct db_rows q;
        after.max = (int64_t)asked;
        if (read_chunk(st, &after, &q, err) != 0)
            return -1;
        if (db_fresh_add(t, &q, lane, most, &c, err) != 0)
            return -1;
        bool room = c.n < most && c.bytes < t->req->max_bytes && c.scanned < scan;
        more = room && c.scanned - before == asked;
    }
    *ret = c;
    return 0;
}

/* Starts reading the events that the next turn will claim, if this one claimed all it asked for. */
void mdb_read_on(struct turn *t)
{
    const struct claim_request *req = t->req;
    const struct batch *b = t->b;
    if (!req)
        return;
    bool fresh = b->n > 0 && !b->parked, all = b->n == req->max_events;
    bool in_a_row = req->lanes == 1 && b->to - b->from == (int64_t)b->n;
    if (!fresh || !all || !in_a_row)
        return;
    struct mdb_after next = next_after(req, b->to);
    ahead_start(mdb_of(t->st), &next);
}

/* ---- before and after a turn ---- */

/* A turn need not look for new events while its events are being read ahead. Now and then it does
 * so anyway, since other workers may wait for those events. */
int mdb_before_turns(struct turn *t, size_t n, struct error *err)
{
    struct mdb_store *st = mdb_of(t->st);
    (void)n; /* one */
    if (mdb_by_hand(st, err) != 0)
        return -1;
    bool claims = t->req && t->req->max_events > 0;
    if (claims) {
        bool enough = st->ahead.asked && st->unlooked < UNLOOKED_MAX;
        st->unlooked = enough ? st->unlooked + 1 : 0;
        if (!enough && mdb_sequence(&st->base.store, err) != 0)
            return -1;
    }
    st->beside = true;
    return 0;
}

int mdb_after_turns(struct turn *t, size_t n, struct error *err)
{
    (void)n; /* one */
    (void)err;
    mdb_read_on(t);
    return 0;
}
