/* turn.c: a turn of a worker, in one transaction: it takes over what expired, settles what the
 * worker has delivered, and claims what comes next. */
#include <stdio.h>

#include "sqlite_sql.h"
#include "store/sqlite/claim.h"

/* ---- what may have changed since the last turn ---- */

/* check_version notices a migration that ran meanwhile. What the worker has in hand is still
 * settled then, so that nothing is delivered again, but nothing is claimed. With nothing to settle
 * it is an error, which ends the worker. */
static int check_version(struct claiming *k, bool settling, bool *ret_other, struct error *err)
{
    int64_t there = 0;
    if (sqlite_value(k->st, err, &there, SQL(schema_version)) != 0)
        return -1;
    *ret_other = there != SQLITE_SCHEMA_VERSION;
    if (!*ret_other || settling)
        return 0;
    if (there > SQLITE_SCHEMA_VERSION)
        return err_fate(
            err, ERR_NEWER, FATE_FATAL, 0,
            "%s: this outbox was brought up to version %lld; this program knows %d: update it",
            k->st->shown, (long long)there, SQLITE_SCHEMA_VERSION);
    return err_fate(
        err, ERR_NEWER, FATE_FATAL, 0,
        "%s: this outbox has version %lld; this program wants %d: run `outbox migrate up`",
        k->st->shown, (long long)there, SQLITE_SCHEMA_VERSION);
}

/* is_registered says whether the consumer is the one that was registered through this handle, about
 * which the handle remembers things. */
static bool is_registered(const struct claiming *k)
{
    return k->st->spec.name && strcmp(k->st->spec.name, k->req->consumer) == 0;
}

/* move_in makes the outbox that was restored into the file the one we know, and fails, so that the
 * caller drops what it has in hand. */
static int move_in(struct sqlite_store *st, struct error *err)
{
    sqlite3_stmt *q;
    int r = sqlite_row(st, &q, err, SQL(identity));
    if (r < 0)
        return -1;
    st->identity[0] = '\0';
    if (r == 1)
        snprintf(st->identity, sizeof st->identity, "%s", sqlite3_column_text(q, 0));
    sqlite3_reset(q);
    st->home.unknown = true;
    st->epoch_seen = 0;
    return err_fate(err, ERR_UNAVAILABLE, FATE_RETRY, 0,
                    "%s: another outbox was put into this file; going on with that one, and what "
                    "was claimed in the former is dropped",
                    st->shown);
}

static int say_set_back(struct sqlite_store *st, struct error *err)
{
    st->epoch_seen = 0;
    return err_fate(err, ERR_UNAVAILABLE, FATE_RETRY, 0,
                    "%s: an older copy of this outbox was restored into the file; going on with "
                    "that one: what was claimed since it was made is dropped, and may come again",
                    st->shown);
}

/* not_registered finds out why the consumer is missing: it was removed, or the file holds another
 * outbox now. */
static int not_registered(struct claiming *k, struct error *err)
{
    sqlite3_stmt *q;
    int r = sqlite_row(k->st, &q, err, SQL(identity));
    if (r < 0)
        return -1;
    bool other = r == 1 && k->st->identity[0] && !str_is(sqlite_text(q, 0), k->st->identity);
    sqlite3_reset(q);
    if (other && is_registered(k))
        return move_in(k->st, err);
    return err_fate(err, ERR_NOTFOUND, FATE_FATAL, 0,
                    "consumer \"%s\" is not registered; it may have been removed",
                    k->req->consumer);
}

/* same_settings compares the row of consumer_state with the request. */
static bool same_settings(sqlite3_stmt *q, const struct claim_request *req)
{
    const char *events = req->events ? req->events : "";
    const char *where = req->where ? req->where : "";
    if (!str_is(sqlite_text(q, 2), store_order_names[req->order]))
        return false;
    if (sqlite3_column_int(q, 3) != req->lanes)
        return false;
    return str_is(sqlite_text(q, 4), events) && str_is(sqlite_text(q, 5), where);
}

/* check_consumer reads the consumer's row, which somebody may have paused, removed or changed
 * meanwhile. With other settings than the registered ones nothing may be claimed or taken over:
 * events that only the new filter wants would be skipped for good. */
static int check_consumer(struct claiming *k, struct error *err)
{
    sqlite3_stmt *q;
    int r = sqlite_row(k->st, &q, err, SQL(consumer_state, .consumer = k->req->consumer));
    if (r < 0)
        return -1;
    if (r == 0)
        return not_registered(k, err);

    bool same_outbox = !k->st->identity[0] || str_is(sqlite_text(q, 6), k->st->identity);
    int64_t last = sqlite3_column_int64(q, 1);
    k->hint->paused = sqlite3_column_int(q, 0) != 0;
    k->hint->changed = !same_settings(q, k->req);
    sqlite3_reset(q);
    k->epoch = sqlite_claim_next_epoch(k->st, last);

    if (!same_outbox)
        return move_in(k->st, err);
    bool set_back = is_registered(k) && last < k->st->epoch_seen;
    if (set_back)
        return say_set_back(k->st, err);
    return 0;
}

/* check_numbers makes sure that what is handed out has numbers that nobody has passed. A repair
 * commits by itself, and the turn fails, so that it is reported. */
static int check_numbers(struct claiming *k, struct error *err)
{
    bool broken;
    int64_t events, from;
    if (sqlite_numbers_broken(k->st, k->req->consumer, &broken, err) != 0)
        return -1;
    if (!broken)
        return 0;
    if (sqlite_numbers_repair(k->st, &events, &from, err) != 0)
        return -1;
    if (sqlite_commit(&k->st->base, err) != 0)
        return -1;
    return err_fate(err, ERR_CONFLICT, FATE_RETRY, 0,
                    "%s: the numbers of events began again below what consumers have had (was the "
                    "table emptied, or sqlite_sequence set back?): %lld events got new numbers, "
                    "from %lld on; nothing is lost, and some may come again",
                    k->st->shown, (long long)events, (long long)from);
}

/* ---- claiming ---- */

/* await_claims notes when claims run out that can be taken over then: those of others, and our own
 * that we don't know of, because the answer got lost. */
static int await_claims(struct claiming *k, struct error *err)
{
    int r;
    sqlite3_stmt *q = sqlite_rows(
        k->st, err, SQL(list_claims, .consumer = k->req->consumer, .owner = k->req->owner));
    while ((r = sqlite_step(k->st, q, err)) == 1) {
        int64_t epoch = sqlite3_column_int64(q, 0), until = sqlite3_column_int64(q, 1);
        bool others = sqlite3_column_int(q, 2) != 0;
        bool forgotten = until > k->now && !sqlite_claim_known(k->req, epoch);
        if (others || forgotten)
            sqlite_claim_wait(k, until);
    }
    return r;
}

/* look_through finds out whether anything is left for this consumer at all, after no fresh event
 * was found. */
static int look_through(struct claiming *k, struct error *err)
{
    int64_t left = 0;
    if (sqlite_value(k->st, err, &left,
                     SQL(anything_left, .consumer = k->req->consumer, .now = k->now)) != 0)
        return -1;
    k->hint->through = !left && k->hint->skipped == 0;
    return await_claims(k, err);
}

/* claim_fresh claims fresh events, unless a careful one waits until nothing is being delivered. */
static int claim_fresh(struct claiming *k, struct error *err)
{
    bool careful_waits = k->hint->careful && k->req->careful == CAREFUL_WAIT;
    if (careful_waits)
        return 0;
    return sqlite_fresh_claim(k, err);
}

/* claim_next claims parked or fresh events. It tries first what the request wants first. */
static int claim_next(struct claiming *k, struct error *err)
{
    typedef int claim_kind(struct claiming *, struct error *);
    static claim_kind *const parked_first[] = {sqlite_parked_claim, claim_fresh};
    static claim_kind *const fresh_first[] = {claim_fresh, sqlite_parked_claim};
    if (k->hint->paused)
        return 0;

    claim_kind *const *kinds = k->req->parked_first ? parked_first : fresh_first;
    for (int i = 0; i < 2 && k->b->n == 0; i++)
        if (kinds[i](k, err) != 0)
            return -1;
    if (k->b->n > 0)
        return 0;
    return look_through(k, err);
}

/* ---- the turn ---- */

/* What a turn works on: a settlement, a claim, or both. */
struct turn {
    struct claiming k;
    const struct settlement *s; /* NULL: nothing to settle */
    bool lost;                  /* the claim that s settles was no longer ours */
};

static bool is_claiming(const struct claim_request *req)
{
    return req && req->max_events > 0;
}

/* prepare checks what may have changed since the last turn, and takes over what expired. *ret_fit:
 * the request still fits the consumer and the schema, so it may be served. */
static int prepare(struct turn *t, bool *ret_fit, struct error *err)
{
    struct claiming *k = &t->k;
    bool other_version;
    *ret_fit = false;
    if (!k->req)
        return 0;
    if (check_version(k, t->s != NULL, &other_version, err) != 0)
        return -1;
    if (check_consumer(k, err) != 0)
        return -1;
    if (k->hint->changed || other_version)
        return 0;
    if (is_claiming(k->req) && check_numbers(k, err) != 0)
        return -1;
    *ret_fit = true;
    return sqlite_take_over(k, err);
}

/* steps takes the steps of a turn. Their order matters: what an expired claim held must be parked
 * before what waits behind it. */
static int steps(struct turn *t, struct error *err)
{
    bool fit;
    if (prepare(t, &fit, err) != 0)
        return -1;
    if (t->s && sqlite_settle(t->k.st, t->s, &t->lost, err) != 0)
        return -1;
    if (!fit || !is_claiming(t->k.req))
        return 0;
    return claim_next(&t->k, err);
}

/* run_steps runs them in a transaction, which is committed only if anything was written: then there
 * is something to sync. */
static int run_steps(struct turn *t, struct error *err)
{
    struct sqlite_store *st = t->k.st;
    if (sqlite_begin(&st->base, err) != 0)
        return -1;
    sqlite3_int64 before = sqlite3_total_changes64(st->db);

    st->turn_now = sqlite_now(st); /* one for all: a claim is alive for all steps, or for none */
    t->k.now = st->turn_now;
    int r = steps(t, err);
    st->turn_now = 0;

    bool wrote = sqlite3_total_changes64(st->db) != before;
    if (r == 0 && wrote)
        return sqlite_commit(&st->base, err);
    sqlite_rollback(&st->base);
    return r;
}

int sqlite_turn(struct store *base, const struct settlement *s, bool *ret_lost,
                const struct claim_request *req, struct arena *a, struct batch *ret_batch,
                struct claim_hint *ret_hint, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    struct batch b = {0};
    struct claim_hint hint = {.wait_ms = -1};
    struct turn t = {.k = {.st = st, .req = req, .a = a, .b = &b, .hint = &hint}, .s = s};
    bool by_hand = !sqlite3_get_autocommit(st->db);
    if (st->in_tx || by_hand)
        return err_set(err, ERR_MISUSE,
                       "a claim inside an open transaction would not be durable: refused");

    if (sqlite_home_adopt(st, err) != 0)
        return -1;
    if (is_claiming(req) && sqlite_fresh_prefetch(&t.k, err) != 0)
        return -1;
    if (run_steps(&t, err) != 0)
        return -1;
    if (b.n > 0 && sqlite_durable(st, err) != 0)
        return -1;

    if (b.n > 0 && is_registered(&t.k))
        st->epoch_seen = b.epoch;
    if (ret_lost)
        *ret_lost = t.lost;
    if (req) {
        *ret_batch = b;
        *ret_hint = hint;
    }
    return 0;
}
