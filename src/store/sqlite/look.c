/* look.c: what is new, for a relay of many consumers. One look tells which of them a commit
 * concerns; only those make a turn.
 *
 * The bell rings before a commit is visible, so a look takes the write lock, which the committer
 * holds until it is done. seq is commit order: whatever is past the number of the last look is new.
 * A commit without an event may be anything, a consumer that was resumed or a letter that was sent
 * back, and concerns everybody; except what the relay does for its own consumers. To tell them
 * apart, commits are counted: SQLite counts all, at the beginning of the log's index (see
 * "WAL-index file format" in its manual), and the family its quiet ones, those of turns and of
 * handlers' transactions. */
#include "store/sqlite/sqlite.h"
#include "store_sql.h"

#define LOOK_EVENTS 64    /* more than that at once are everybody's business */
#define LOOK_PAYLOAD 8192 /* bytes: larger payloads are not read */
#define LOOK_UNRUNG 100   /* ms between looks where nobody can ring */
/* ms from one time that all are told of a doubt to the next, at least, and for each consumer */
#define DOUBT_WAIT 250
#define DOUBT_WAIT_EACH 1
#define INDEX_PART 32768 /* bytes: the log's index is mapped in parts of this size */
#define INDEX_COMMITS 2  /* in words of 32 bits: the counter of commits */

/* count_commits reads how often anybody has committed. Under the write lock. False: that is not
 * known, because there is no log. */
static bool count_commits(struct sqlite_store *st, uint32_t *ret)
{
    sqlite3_file *f = NULL;
    void volatile *part = NULL;
    if (sqlite_bell_fd(&st->base) < 0)
        return false; /* it watches the log */
    int rc = sqlite3_file_control(st->db, "main", SQLITE_FCNTL_FILE_POINTER, &f);
    bool mapped = rc == SQLITE_OK && f && f->pMethods && f->pMethods->iVersion >= 2;
    if (!mapped || f->pMethods->xShmMap(f, 0, INDEX_PART, 0, &part) != SQLITE_OK || !part)
        return false;
    *ret = ((const uint32_t volatile *)part)[INDEX_COMMITS];
    return true;
}

/* show_new shows the events after the last look, up to LOOK_EVENTS of them. *ret_n counts them, and
 * is greater than that if there are more. *seq becomes that of the last one. */
static int show_new(struct sqlite_store *st, bool payloads, new_event_visit *visit, void *ctx,
                    int64_t *seq, size_t *ret_n, struct error *err)
{
    int r;
    int64_t most = payloads ? LOOK_PAYLOAD : -1;
    sqlite3_stmt *q = sqlite_rows(
        st, err, SQL(new_events, .seq = *seq, .most = most, .max = LOOK_EVENTS + 1));
    *ret_n = 0;
    while ((r = sqlite_step(st, q, err)) == 1) {
        struct event ev = {.type = sqlite_text(q, 1), .payload = sqlite_text(q, 2)};
        *seq = sqlite3_column_int64(q, 0);
        if (++*ret_n <= LOOK_EVENTS)
            visit(ctx, &ev);
    }
    return r;
}

/* is_other says whether another outbox was restored into the file since this handle last looked. */
static int is_other(struct sqlite_store *st, bool *ret, struct error *err)
{
    sqlite3_stmt *q;
    int r = sqlite_row(st, &q, err, SQL(identity));
    if (r < 0)
        return -1;
    *ret = r == 0 || !str_is(sqlite_text(q, 0), st->identity);
    sqlite3_reset(q);
    if (*ret)
        sqlite_identity_read(st);
    return 0;
}

/* doubt_wait gives the time from one telling to the next, in ms. The more there are to tell, the
 * longer it is: a turn takes about a tenth of a millisecond. */
static int64_t doubt_wait(const struct sqlite_store *st)
{
    int64_t ms = (int64_t)atomic_load(&st->family->members) * DOUBT_WAIT_EACH;
    return ms > DOUBT_WAIT ? ms : DOUBT_WAIT;
}

/* tell_doubt has all told that a commit may have been anything, but not every time: where producers
 * are busy, nearly every look finds several commits, and a thousand turns take longer than the next
 * ones do to come. */
static void tell_doubt(const struct sqlite_store *st, struct sqlite_looked *now,
                       struct watch_result *ret)
{
    int64_t at = clock_mono(st->opt.clock);
    int64_t due = now->rung_at + doubt_wait(st) * MS_NS;
    bool early = now->rung_at > 0 && at < due;
    now->doubt = early;
    if (early) {
        ret->wait_ms = (due - at) / MS_NS + 1;
        return;
    }
    now->rung_at = at;
    ret->all = true;
}

/* look_here makes the look, under the write lock. */
static int look_here(struct sqlite_store *st, bool payloads, new_event_visit *visit, void *ctx,
                     struct watch_result *ret, struct error *err)
{
    struct sqlite_looked was = st->looked, now = {.seq = was.seq, .rung_at = was.rung_at};
    bool other;
    if (is_other(st, &other, err) != 0)
        return -1;
    now.known = count_commits(st, &now.commits);
    now.quiet_commits = atomic_load(&st->family->quiet_commits);

    bool from_here = !was.known || other;
    if (!from_here && show_new(st, payloads, visit, ctx, &now.seq, &ret->n, err) != 0)
        return -1;
    bool many = from_here || ret->n > LOOK_EVENTS;
    if (many && sqlite_value(st, err, &now.seq, SQL(last_event)) != 0)
        return -1;

    /* One commit with an event is that of a producer. Of several, one may be anything, and of more
     * than there are events one is. */
    uint32_t others = (now.commits - was.commits) - (now.quiet_commits - was.quiet_commits);
    ret->all = many || !now.known || others > ret->n;
    bool doubt = was.doubt || others > 1;
    if (doubt && !ret->all)
        tell_doubt(st, &now, ret);
    st->looked = now;
    return 0;
}

int sqlite_look(struct store *base, bool blind, bool payloads, new_event_visit *visit, void *ctx,
                struct watch_result *ret, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    struct watch_result found = {.wait_ms = -1};
    bool rings = sqlite_bell_fd(base) >= 0;
    if (!rings)
        found.wait_ms = LOOK_UNRUNG;
    if (blind && rings) {
        found.all = true;
        *ret = found;
        return sqlite_home_check(st, err);
    }

    if (sqlite_begin(base, err) != 0)
        return -1;
    int r = look_here(st, payloads, visit, ctx, &found, err);
    sqlite_rollback(base);
    if (r == 0)
        *ret = found;
    return r;
}
