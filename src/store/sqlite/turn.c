/* turn.c: a turn of a worker, in one transaction: it takes over what expired, settles what the
 * worker has delivered, and claims what comes next. Turns of several workers may share the
 * transaction, and so wait for the disk once. */
#include <stdio.h>
#include <stdlib.h>

#include "store/sqlite/claim.h"
#include "store_sql.h"

#define BUSY_AGAIN 50 /* ms until a deaf worker looks again whether its lane is free */

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
        return err_class(
            err, ERR_NEWER, CLASS_FATAL, 0,
            "%s: this outbox was brought up to version %lld; this program knows %d: update it",
            k->st->shown, (long long)there, SQLITE_SCHEMA_VERSION);
    return err_class(
        err, ERR_NEWER, CLASS_FATAL, 0,
        "%s: this outbox has version %lld; this program wants %d: run `outbox migrate up`",
        k->st->shown, (long long)there, SQLITE_SCHEMA_VERSION);
}

/* member_of finds what the handle remembers of the consumer; NULL: it was registered through
 * another handle. */
static struct sqlite_member *member_of(const struct claiming *k)
{
    return sqlite_member(k->st, k->req->consumer);
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
    sqlite_members_moved(st);
    return err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, 0,
                     "%s: another outbox was put into this file; going on with that one, and what "
                     "was claimed in the former is dropped",
                     st->shown);
}

static int say_set_back(struct sqlite_store *st, struct error *err)
{
    sqlite_members_moved(st);
    return err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, 0,
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
    if (other && member_of(k))
        return move_in(k->st, err);
    return err_class(err, ERR_NOTFOUND, CLASS_FATAL, 0,
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
    const struct sqlite_member *m = member_of(k);
    bool set_back = m && last < m->epoch_seen;
    if (set_back)
        return say_set_back(k->st, err);
    return 0;
}

/* check_numbers makes sure that what is handed out has numbers that nobody has passed. A repair
 * commits by itself, and the turn fails, so that it is reported. In company nothing is repaired:
 * that would commit the turns of others. */
static int check_numbers(struct claiming *k, bool in_company, struct error *err)
{
    bool broken;
    int64_t events, from;
    if (sqlite_numbers_broken(k->st, k->req->consumer, &broken, err) != 0)
        return -1;
    if (!broken)
        return 0;
    if (in_company)
        return err_set(err, ERR_CONFLICT, "%s: the numbers of events began again", k->st->shown);
    if (sqlite_numbers_repair(k->st, &events, &from, err) != 0)
        return -1;
    if (sqlite_commit(&k->st->base, err) != 0)
        return -1;
    return err_class(err, ERR_CONFLICT, CLASS_RETRY, 0,
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
    bool careful_waits = k->hint->suspect && k->req->suspect == SUSPECT_WAIT;
    if (careful_waits)
        return 0;
    return sqlite_fresh_claim(k, err);
}

/* ask_or_not asks for a lane if others have them all. */
static int ask_or_not(struct claiming *k, struct error *err)
{
    if (k->hint->busy)
        return sqlite_lanes_ask(k, err);
    return sqlite_lanes_asked(k, err);
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
        return sqlite_lanes_asked(k, err);
    if (ask_or_not(k, err) != 0)
        return -1;
    return look_through(k, err);
}

/* ---- the turn ---- */

/* What a turn works on: a settlement, a claim, or both. */
struct turn {
    struct claiming k;
    const struct settlement *s; /* NULL: nothing to settle */
    bool lost;                  /* the claim that s settles was no longer ours */
    bool in_company;            /* the transaction is not its own */
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
    if (is_claiming(k->req) && check_numbers(k, t->in_company, err) != 0)
        return -1;
    *ret_fit = true;
    return sqlite_take_over(k, err);
}

/* note_quiet has the hint say that there is nothing beside the batch: it has the last event of all,
 * nothing is parked, and the worker is rung by others, who look again after every commit. Where it
 * listens itself, it is rung by its own commit as well. */
static int note_quiet(struct claiming *k, struct error *err)
{
    int64_t last = 0, parked = 0;
    bool rung = k->req->no_listen && !k->req->one_shot;
    bool whole = k->b->n > 0 && !k->b->parked && k->req->lanes == 1 && k->req->order != ORDER_NONE;
    if (!rung || !whole)
        return 0;
    if (sqlite_value(k->st, err, &last, SQL(last_event)) != 0)
        return -1;
    if (sqlite_value(k->st, err, &parked, SQL(any_parked, .consumer = k->req->consumer)) != 0)
        return -1;
    k->hint->quiet = last == k->b->to && !parked;
    return 0;
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
    if (claim_next(&t->k, err) != 0)
        return -1;
    if (note_quiet(&t->k, err) != 0)
        return -1;

    /* Nobody rings a deaf worker when another one of its relay settles. */
    bool unrung = t->k.req->no_listen && t->k.hint->busy;
    if (unrung)
        sqlite_claim_wait(&t->k, t->k.now + BUSY_AGAIN);
    return 0;
}

/* run_steps runs those of n turns in a transaction, which is committed only if anything was
 * written: then there is something to sync. */
static int run_steps(struct sqlite_store *st, struct turn *t, size_t n, struct error *err)
{
    int r = 0;
    if (sqlite_begin(&st->base, err) != 0)
        return -1;
    sqlite3_int64 before = sqlite3_total_changes64(st->db);

    int64_t now = sqlite_now(st);
    st->turn_ahead = sqlite_ahead(st, now);
    st->turn_now = now; /* one for all: a claim is alive for all steps, or for none */
    for (size_t i = 0; i < n && r == 0; i++) {
        t[i].k.now = st->turn_now;
        r = steps(&t[i], err);
    }
    st->turn_now = 0;

    bool wrote = sqlite3_total_changes64(st->db) != before;
    bool deaf = t->k.req && t->k.req->no_listen;
    st->for_deaf = st->for_deaf || deaf;
    if (r == 0 && wrote) {
        st->quiet = deaf;
        return sqlite_commit(&st->base, err);
    }
    sqlite_rollback(&st->base);
    return r;
}

/* fresh_next says whether the turn will probably claim fresh events: it wants to, and no parked one
 * comes first. */
static int fresh_next(struct turn *t, bool *ret, struct error *err)
{
    bool parked_due = false;
    *ret = is_claiming(t->k.req);
    if (!*ret || !t->k.req->parked_first)
        return 0;
    if (sqlite_parked_due(&t->k, &parked_due, err) != 0)
        return -1;
    *ret = !parked_due;
    return 0;
}

/* prefetch reads what will probably be claimed. */
static int prefetch(struct sqlite_store *st, struct turn *t, size_t n, struct error *err)
{
    bool own = false, fresh;
    int r = 0;
    if (n > 1 && sqlite_snapshot_begin(st, &own, err) != 0)
        return -1;
    for (size_t i = 0; i < n && r == 0; i++) {
        r = fresh_next(&t[i], &fresh, err);
        if (r == 0 && fresh)
            r = sqlite_fresh_prefetch(&t[i].k, err);
    }
    sqlite_snapshot_end(st, own);
    return r;
}

/* make makes n turns: all of them, or none. */
static int make(struct sqlite_store *st, struct turn *t, size_t n, struct error *err)
{
    bool by_hand = !sqlite3_get_autocommit(st->db), any = false;
    if (st->in_tx || by_hand)
        return err_set(err, ERR_MISUSE,
                       "a claim inside an open transaction would not be durable: refused");

    if (sqlite_home_adopt(st, err) != 0)
        return -1;
    if (prefetch(st, t, n, err) != 0)
        return -1;
    if (run_steps(st, t, n, err) != 0)
        return -1;
    for (size_t i = 0; i < n; i++)
        any = any || t[i].k.b->n > 0;
    if (any && sqlite_durable(st, err) != 0)
        return -1;

    for (size_t i = 0; i < n; i++) {
        struct sqlite_member *m = t[i].k.b->n > 0 ? member_of(&t[i].k) : NULL;
        if (m)
            m->epoch_seen = t[i].k.b->epoch;
    }
    return 0;
}

int sqlite_turn(struct store *base, const struct settlement *s, bool *ret_lost,
                const struct claim_request *req, struct arena *a, struct batch *ret_batch,
                struct claim_hint *ret_hint, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    struct batch b = {0};
    struct claim_hint hint = {.wait_ms = -1};
    struct turn t = {.k = {.st = st, .req = req, .a = a, .b = &b, .hint = &hint}, .s = s};
    if (make(st, &t, 1, err) != 0)
        return -1;

    if (ret_lost)
        *ret_lost = t.lost;
    if (req) {
        *ret_batch = b;
        *ret_hint = hint;
    }
    return 0;
}

/* take_part prepares one of several turns. Its answer goes where it is wanted at once. */
static struct turn take_part(struct sqlite_store *st, struct batched_turn *t)
{
    t->batch = (struct batch){0};
    t->hint = (struct claim_hint){.wait_ms = -1};
    return (struct turn){
        .k = {.st = st, .req = t->req, .a = t->a, .b = &t->batch, .hint = &t->hint},
        .s = t->s,
        .in_company = true,
    };
}

int sqlite_turns(struct store *base, struct batched_turn *t, size_t n, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    struct turn *all = calloc(n, sizeof *all);
    if (!all)
        return err_nomem(err);
    for (size_t i = 0; i < n; i++)
        all[i] = take_part(st, &t[i]);

    int r = make(st, all, n, err);
    for (size_t i = 0; i < n; i++) {
        t[i].made = r == 0;
        t[i].lost = all[i].lost;
    }
    free(all);
    return r;
}
