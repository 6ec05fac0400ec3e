/* claim.c: handing out work. A turn is one transaction: it takes over what expired, settles, and
 * claims what comes next. The statements are in sql/sqlite/statements. */
#include <stdio.h>

#include "sqlite_sql.h"
#include "store/sqlite/sqlite.h"

#define EPOCH_RANDOM 20 /* bits */
/* events looked at per claim, so that a filter that matches rarely still gets on */
#define SCAN_MIN 10000

struct claiming {
    struct sqlite_store *st;
    const struct claim_request *req;
    struct arena *a;
    struct batch *b;
    struct claim_hint *hint;
    int64_t now;
    int64_t epoch; /* of the claim that is being made */
};

/* A chunk of fresh events: what was read, from where, and up to which seq was looked. */
struct chunk {
    struct event *ev;
    size_t n, scanned;
    int64_t from, to;
};

/* wanted looks at the row in place: most of what is skipped is never copied. */
static bool wanted(sqlite3_stmt *q, const struct claim_request *req, int lane)
{
    if (req->lanes > 1) {
        uint64_t key = event_key(sqlite_text(q, 3), sqlite_text(q, 4));
        if (event_lane(key, sqlite3_column_int64(q, 0), req->lanes) != lane)
            return false;
    }
    if (!filter_type(req->filter, sqlite_text(q, 2)))
        return false;
    return !filter_has_where(req->filter) || filter_payload(req->filter, sqlite_text(q, 6));
}

/* read_rows reads the wanted events of q into c until `max` of them, max_bytes, or the end. The
 * arena may have grown even when it fails. */
static int read_rows(struct claiming *k, sqlite3_stmt *q, int lane, size_t max, struct chunk *c,
                     struct error *err)
{
    size_t bytes = 0;
    int r;
    c->ev = arena_alloc(k->a, max * sizeof *c->ev);
    if (!c->ev) {
        sqlite3_reset(q);
        return err_nomem(err);
    }
    while (c->n < max && bytes < k->req->max_bytes && (r = sqlite_step(k->st, q, err)) != 0) {
        if (r < 0)
            return -1;
        c->to = sqlite3_column_int64(q, 0);
        c->scanned++;
        if (!wanted(q, k->req, lane))
            continue;
        if (!sqlite_event_row(q, k->a, &c->ev[c->n])) {
            sqlite3_reset(q);
            return err_nomem(err);
        }
        bytes += event_bytes(&c->ev[c->n++]);
    }
    sqlite3_reset(q);
    return 0;
}

static int read_fresh(struct claiming *k, int lane, int64_t from, struct chunk *c,
                      struct error *err)
{
    size_t scan = k->req->max_events > SCAN_MIN ? k->req->max_events : SCAN_MIN;
    *c = (struct chunk){.from = from, .to = from};
    sqlite3_stmt *q = sqlite_rows(k->st, err,
                                  SQL(fresh_events, .position = from, .max = (int64_t)scan));
    return q ? read_rows(k, q, lane, k->req->max_events, c, err) : -1;
}

static int lane_position(struct claiming *k, int lane, int64_t *ret, struct error *err)
{
    *ret = -1;
    return sqlite_value(k->st, err, ret,
                        SQL(lane_position, .consumer = k->req->consumer, .lane = lane));
}

/* prefetch reads before the write lock is taken, so that producers don't wait for it. Events never
 * change and seq is commit order: what was read is still right if the position is still the same
 * under the lock. */
static int prefetch(struct claiming *k, struct chunk *c, struct error *err)
{
    int64_t position;
    *c = (struct chunk){.from = -1};
    if (lane_position(k, k->req->lane_hint, &position, err) != 0)
        return -1;
    return position < 0 ? 0 : read_fresh(k, k->req->lane_hint, position, c, err);
}

/* next_epoch grows with every claim. The lower bits are random: a file that was set back to an
 * older copy counts the same numbers again, but a claim from before that is not taken for one made
 * after it. */
static int64_t next_epoch(struct sqlite_store *st, int64_t last)
{
    return (((last >> EPOCH_RANDOM) + 1) << EPOCH_RANDOM) |
           (int64_t)(rng_next(&st->rng) & ((1 << EPOCH_RANDOM) - 1));
}

/* record_claim writes the lease and its new epoch, the fence. */
static int record_claim(struct claiming *k, struct error *err)
{
    k->b->epoch = k->epoch;
    if (sqlite_run(k->st, err, SQL(set_epoch, .consumer = k->req->consumer, .epoch = k->epoch)) !=
        0)
        return -1;
    struct sql_put_claim claim = {
        .consumer = k->req->consumer,
        .epoch = k->epoch,
        .lane = k->b->lane,
        .parked = k->b->parked,
        .from_seq = k->b->from,
        .to_seq = k->b->to,
        .owner = k->req->owner,
        .now = k->now,
        .lease = k->req->lease_ms,
        .knows = SQLITE_SCHEMA_VERSION,
    };
    return sqlite_run(k->st, err, &sql_put_claim, &claim);
}

static void hint_wait(struct claiming *k, int64_t at)
{
    int64_t wait = at > k->now ? at - k->now : 0;
    if (k->hint->wait_ms < 0 || wait < k->hint->wait_ms)
        k->hint->wait_ms = wait;
}

/* ---- taking over ---- */

/* park_range turns the events of an expired fresh claim into careful parked ones. */
static int park_range(struct claiming *k, int lane, int64_t from, int64_t to, struct error *err)
{
    struct arena a;
    arena_init(&a, 0);
    struct claiming sub = *k;
    struct claim_request req = *k->req;
    int r = 0;
    req.max_bytes = 1 << 20;
    sub.a = &a;
    sub.req = &req;
    while (r == 0 && from < to) {
        struct chunk c = {.from = from, .to = from};
        sqlite3_stmt *q = sqlite_rows(k->st, err,
                                      SQL(range_events, .from_seq = from, .to_seq = to));
        r = q ? read_rows(&sub, q, lane, 256, &c, err) : -1;
        for (size_t i = 0; r == 0 && i < c.n; i++, k->hint->crashed++)
            r = sqlite_park(
                k->st,
                &(struct parking){.consumer = req.consumer,
                                  .order = req.order,
                                  .ev = &c.ev[i],
                                  .due_at = c.ev[i].not_before > k->now ? c.ev[i].not_before : 0,
                                  .delayed = c.ev[i].not_before > k->now,
                                  .careful = true},
                err);
        from = c.scanned ? c.to : to;
        arena_reset(&a);
    }
    arena_release(&a);
    return r;
}

/* bury_poison: a careful event whose last allowed attempt ended in a crash has killed its process
 * too often. */
static int bury_poison(struct claiming *k, int64_t epoch, struct error *err)
{
    int64_t seq = 0, attempts = 0, key = 0;
    sqlite3_stmt *q = sqlite_rows(k->st, err,
                                  SQL(poison_of, .consumer = k->req->consumer, .epoch = epoch,
                                      .max_attempts = k->req->max_attempts));
    if (!q)
        return -1;
    int r = sqlite_step(k->st, q, err);
    if (r <= 0)
        return r;
    seq = sqlite3_column_int64(q, 0);
    attempts = sqlite3_column_int64(q, 1);
    key = sqlite3_column_int64(q, 2);
    sqlite3_reset(q);
    k->hint->buried++;
    if (sqlite_bury(k->st, k->req->consumer, seq, (int)attempts,
                    "the process died, or lost its lease, while delivering this event", err) != 0)
        return -1;
    return sqlite_promote(k->st, k->req->consumer, key, err);
}

static int unpark_claim(struct claiming *k, int64_t epoch, struct error *err)
{
    if (bury_poison(k, epoch, err) != 0)
        return -1;
    if (sqlite_run(k->st, err, SQL(unpark_claim, .consumer = k->req->consumer, .epoch = epoch)) !=
        0)
        return -1;
    k->hint->crashed += (size_t)sqlite3_changes(k->st->db);
    return 0;
}

#define KNOWN_TEXT 256

/* known_list writes the epochs that the caller has in hand as JSON. */
static void known_list(const struct claim_request *req, char out[KNOWN_TEXT])
{
    size_t at = (size_t)snprintf(out, KNOWN_TEXT, "[");
    for (size_t i = 0; i < req->n_known && at < KNOWN_TEXT - 32; i++)
        at += (size_t)snprintf(out + at, KNOWN_TEXT - at, i ? ",%lld" : "%lld",
                               (long long)req->known[i]);
    snprintf(out + at, KNOWN_TEXT - at, "]");
}

/* take_over dissolves every claim whose lease ran out: its events become careful parked ones. Where
 * there is an order to keep, not before the earlier claims of the lane are over, too. What the
 * caller itself has in hand it may still settle, or extend, however late. */
static int take_over(struct claiming *k, struct error *err)
{
    char known[KNOWN_TEXT];
    known_list(k->req, known);
    bool unordered = k->req->order == ORDER_NONE;
    if (sqlite_run(k->st, err, SQL(shorten_leases, .consumer = k->req->consumer, .now = k->now)) !=
        0)
        return -1;
    for (;;) {
        sqlite3_stmt *q = sqlite_rows(k->st, err,
                                      SQL(expired_claim, .consumer = k->req->consumer,
                                          .now = k->now, .unordered = unordered, .known = known));
        if (!q)
            return -1;
        int r = sqlite_step(k->st, q, err);
        if (r <= 0)
            return r;
        int64_t epoch = sqlite3_column_int64(q, 0), from = sqlite3_column_int64(q, 3),
                to = sqlite3_column_int64(q, 4);
        int lane = sqlite3_column_int(q, 1);
        bool parked = sqlite3_column_int(q, 2) != 0;
        sqlite3_reset(q);
        if ((parked ? unpark_claim(k, epoch, err) : park_range(k, lane, from, to, err)) != 0)
            return -1;
        struct taken_over t = {.consumer = k->req->consumer,
                               .epoch = epoch,
                               .from = from,
                               .to = to,
                               .lane = lane,
                               .lanes = k->req->lanes,
                               .filter = k->req->filter};
        if (!parked && sqlite_former_taken_over(k->st, &t, err) != 0)
            return -1;
        if (sqlite_run(k->st, err, SQL(drop_claim, .consumer = k->req->consumer, .epoch = epoch)) !=
            0)
            return -1;
    }
}

/* ---- parked events ---- */

struct parked_row {
    int64_t seq, key, failing_since;
    int attempts;
    bool careful, proven;
};

/* take_parked reads the event of a row and marks it with the coming epoch. */
static int take_parked(struct claiming *k, const struct parked_row *p, size_t *bytes,
                       struct error *err)
{
    struct event *ev = &k->b->ev[k->b->n];
    sqlite3_stmt *q = sqlite_rows(k->st, err, SQL(one_event, .seq = p->seq));
    int r = q ? sqlite_step(k->st, q, err) : -1;
    if (r == 0) { /* trimmed: it was a dead letter, which is kept whole */
        q = sqlite_rows(k->st, err, SQL(one_letter, .consumer = k->req->consumer, .seq = p->seq));
        r = q ? sqlite_step(k->st, q, err) : -1;
    }
    if (r < 0)
        return -1;
    if (r == 0) { /* someone deleted it by hand */
        if (sqlite_run(k->st, err, SQL(unpark, .consumer = k->req->consumer, .seq = p->seq)) != 0)
            return -1;
        return sqlite_promote(k->st, k->req->consumer, p->key, err);
    }
    bool ok = sqlite_event_row(q, k->a, ev);
    sqlite3_reset(q);
    if (!ok)
        return err_nomem(err);
    ev->attempts = p->attempts;
    ev->proven = p->proven;
    if (p->failing_since && p->failing_since < k->now)
        ev->failing_ms = clock_since(k->now, p->failing_since);
    ev->delayed = ev->not_before > k->now; /* it waited behind another, and now for its time */
    *bytes += event_bytes(ev);
    k->b->n++;
    return sqlite_run(
        k->st, err,
        SQL(take_parked, .consumer = k->req->consumer, .seq = p->seq, .epoch = k->epoch));
}

/* list_parked reads rows of PARKED_COLUMNS, and then whether one is careful. */
static size_t list_parked(sqlite3_stmt *q, struct sqlite_store *st, struct parked_row *rows,
                          size_t max, int *r, struct error *err)
{
    size_t n = 0;
    *r = q ? 0 : -1;
    while (q && n < max && (*r = sqlite_step(st, q, err)) == 1)
        rows[n++] = (struct parked_row){.failing_since = sqlite3_column_int64(q, 0),
                                        .proven = sqlite3_column_int(q, 1) != 0,
                                        .attempts = sqlite3_column_int(q, 2),
                                        .key = sqlite3_column_int64(q, 3),
                                        .seq = sqlite3_column_int64(q, 4),
                                        .careful = sqlite3_column_int(q, 5) != 0};
    if (q)
        sqlite3_reset(q);
    if (*r > 0)
        *r = 0;
    return n;
}

/* take_followers takes the events that wait behind this one, in order, so that a key catches up in
 * one go. */
static int take_followers(struct claiming *k, const struct parked_row *head,
                          struct parked_row *rows, size_t *bytes, struct error *err)
{
    int r;
    size_t room = k->req->max_events - k->b->n;
    if (head->key == 0 || room == 0)
        return 0;
    sqlite3_stmt *q = sqlite_rows(k->st, err,
                                  SQL(followers, .consumer = k->req->consumer, .key = head->key,
                                      .seq = head->seq, .max = (int64_t)room));
    size_t n = list_parked(q, k->st, rows, room, &r, err);
    for (size_t i = 0; r == 0 && i < n && !rows[i].careful && *bytes < k->req->max_bytes; i++)
        r = take_parked(k, &rows[i], bytes, err);
    return r;
}

/* pull_in: a clock that was ahead when events were parked must not make them wait for longer than
 * they were told to. */
static int pull_in(struct claiming *k, bool *ret_any, struct error *err)
{
    struct pull *p = &k->st->pull;
    int64_t mono = clock_mono(k->st->opt.clock);
    if (!pull_due(p, mono)) {
        hint_wait(k, k->now + pull_left_ms(p, mono));
        return 0;
    }
    pull_done(p, mono);
    if (sqlite_run(k->st, err, SQL(pull_in, .consumer = k->req->consumer, .now = k->now)) != 0)
        return -1;
    *ret_any = sqlite3_changes(k->st->db) > 0;
    return 0;
}

/* next_due: when the next parked event may go; 0: none waits for a time. */
static int next_due(struct claiming *k, int64_t *ret, struct error *err)
{
    bool again, careful = k->req->careful != CAREFUL_SKIP;
    do {
        again = false;
        *ret = 0;
        if (sqlite_value(k->st, err, ret,
                         SQL(next_due, .consumer = k->req->consumer, .careful = careful)) != 0)
            return -1;
        if (*ret > k->now && pull_in(k, &again, err) != 0)
            return -1;
    } while (again);
    return 0;
}

/* careful_due notes that a careful event is due, for one who may not have it now. */
static int careful_due(struct claiming *k, struct error *err)
{
    int64_t due = 0;
    if (sqlite_value(k->st, err, &due,
                     SQL(careful_due, .consumer = k->req->consumer, .now = k->now)) != 0)
        return -1;
    k->hint->careful = due != 0;
    return 0;
}

/* list_heads lists what is due and the first of its key. One that is due but has another of its key
 * before it (parked later, by someone who took over) goes behind that. */
static int list_heads(struct claiming *k, struct parked_row *heads, size_t max, size_t *ret_n,
                      struct error *err)
{
    int r;
    bool careful = k->req->careful != CAREFUL_SKIP;
    sqlite3_stmt *q = sqlite_rows(k->st, err,
                                  SQL(due_heads, .consumer = k->req->consumer, .now = k->now,
                                      .careful = careful, .max = (int64_t)max));
    size_t n = list_parked(q, k->st, heads, max, &r, err), kept = 0;
    for (size_t i = 0; r == 0 && i < n; i++) {
        bool before = false;
        r = sqlite_waits_behind(k->st, k->req->consumer, heads[i].key, heads[i].seq, &before, err);
        if (r == 0 && before)
            r = sqlite_run(k->st, err,
                           SQL(go_behind, .consumer = k->req->consumer, .seq = heads[i].seq));
        else
            heads[kept++] = heads[i];
    }
    *ret_n = kept;
    return r;
}

static int claim_parked(struct claiming *k, struct error *err)
{
    size_t max = k->req->max_events, bytes = 0, n;
    int64_t due;
    if (k->req->careful == CAREFUL_SKIP && careful_due(k, err) != 0)
        return -1;
    if (next_due(k, &due, err) != 0)
        return -1;
    if (due)
        hint_wait(k, due);
    if (!due || due > k->now)
        return 0;
    struct parked_row *heads = arena_alloc(k->a, max * sizeof *heads),
                      *behind = arena_alloc(k->a, max * sizeof *behind);
    k->b->ev = arena_alloc(k->a, max * sizeof *k->b->ev);
    if (!heads || !behind || !k->b->ev)
        return err_nomem(err);
    if (list_heads(k, heads, max, &n, err) != 0)
        return -1;
    k->b->parked = true;
    k->b->careful = n > 0 && heads[0].careful;
    if (k->b->careful && k->req->careful == CAREFUL_WAIT) {
        k->hint->careful = true;
        n = 0;
    }
    if (k->b->careful && n > 1)
        n = 1;
    int r = 0;
    for (size_t i = 0; r == 0 && i < n && k->b->n < max && bytes < k->req->max_bytes; i++) {
        if (i > 0 && heads[i].careful)
            break;
        r = take_parked(k, &heads[i], &bytes, err);
        if (r == 0 && !heads[i].careful)
            r = take_followers(k, &heads[i], behind, &bytes, err);
    }
    if (r != 0 || k->b->n == 0)
        return r;
    return record_claim(k, err);
}

/* ---- fresh events ---- */

/* mark_held flags the events that may not be delivered now. */
static int mark_held(struct claiming *k, struct error *err)
{
    int64_t any = 0;
    for (size_t i = 0; i < k->b->n; i++)
        k->b->ev[i].delayed = k->b->ev[i].not_before > k->now;
    if (k->req->order != ORDER_KEY)
        return 0;
    if (sqlite_value(k->st, err, &any, SQL(any_parked, .consumer = k->req->consumer)) != 0)
        return -1;
    for (size_t i = 0; any && i < k->b->n; i++) {
        int64_t held = 0, key = (int64_t)k->b->ev[i].key;
        if (key && sqlite_value(k->st, err, &held,
                                SQL(key_parked, .consumer = k->req->consumer, .key = key)) != 0)
            return -1;
        k->b->ev[i].behind = held != 0;
    }
    return 0;
}

static bool is_known(const struct claim_request *req, int64_t epoch)
{
    for (size_t i = 0; i < req->n_known; i++)
        if (req->known[i] == epoch)
            return true;
    return false;
}

/* lane_free says whether the caller may take fresh events of the lane now. With an order to keep, a
 * lane belongs to one worker at a time, which may hold several claims of it, as long as it knows of
 * all of them: one whose answer got lost, or that ran out and could not be taken over yet, holds
 * events that must go first. */
static int lane_free(struct claiming *k, int lane, bool *ret, struct error *err)
{
    int64_t parked = 0;
    int r;
    *ret = true;
    if (k->req->order == ORDER_NONE)
        return 0;
    sqlite3_stmt *q = sqlite_rows(k->st, err,
                                  SQL(lane_claims, .consumer = k->req->consumer, .lane = lane));
    if (!q)
        return -1;
    while ((r = sqlite_step(k->st, q, err)) == 1) {
        int64_t until = sqlite3_column_int64(q, 1);
        if (is_known(k->req, sqlite3_column_int64(q, 0)))
            continue;
        k->hint->busy = true;
        hint_wait(k, until);
        *ret = false;
    }
    if (r < 0)
        return -1;
    if (k->req->order != ORDER_GLOBAL)
        return 0;
    if (sqlite_value(k->st, err, &parked, SQL(any_parked, .consumer = k->req->consumer)) != 0)
        return -1;
    if (parked)
        *ret = false;
    return 0;
}

static int claim_lane(struct claiming *k, int lane, struct chunk *ahead, struct error *err)
{
    int64_t position;
    struct chunk c;
    bool ours;
    if (lane_free(k, lane, &ours, err) != 0)
        return -1;
    if (!ours)
        return 0;
    if (lane_position(k, lane, &position, err) != 0)
        return -1;
    if (position < 0)
        return err_fate(
            err, ERR_CONFIG, FATE_RETRY, 0,
            "%s: consumer \"%s\" has lost its place: its row for lane %d in table outbox_lane is "
            "gone; restore it, or run "
            "`outbox consumers remove %s`: it is then made anew, and starts where you tell it to",
            k->st->shown, k->req->consumer, lane, k->req->consumer);
    if (ahead && ahead->scanned && ahead->from == position)
        c = *ahead;
    else if (read_fresh(k, lane, position, &c, err) != 0)
        return -1;
    if (c.scanned == 0)
        return 0;
    if (sqlite_run(
            k->st, err,
            SQL(move_position, .consumer = k->req->consumer, .lane = lane, .position = c.to)) != 0)
        return -1;
    k->hint->skipped += c.scanned - c.n;
    if (c.n == 0)
        return 0;
    *k->b = (struct batch){.ev = c.ev, .n = c.n, .lane = lane, .from = position, .to = c.to};
    if (mark_held(k, err) != 0)
        return -1;
    return record_claim(k, err);
}

static int claim_fresh(struct claiming *k, struct chunk *ahead, struct error *err)
{
    for (int i = 0; i < k->req->lanes && k->b->n == 0; i++) {
        int lane = (k->req->lane_hint + i) % k->req->lanes;
        if (claim_lane(k, lane, i == 0 ? ahead : NULL, err) != 0)
            return -1;
    }
    return 0;
}

/* await_claims: claims of others may be taken over when they run out, and so may one of our own
 * that we don't know, because the answer got lost. */
static int await_claims(struct claiming *k, struct error *err)
{
    int r;
    sqlite3_stmt *q = sqlite_rows(
        k->st, err, SQL(list_claims, .consumer = k->req->consumer, .owner = k->req->owner));
    if (!q)
        return -1;
    while ((r = sqlite_step(k->st, q, err)) == 1) {
        int64_t until = sqlite3_column_int64(q, 1);
        bool forgotten = until > k->now && !is_known(k->req, sqlite3_column_int64(q, 0));
        if (sqlite3_column_int(q, 2) || forgotten)
            hint_wait(k, until);
    }
    return r;
}

/* look_through finds out whether anything at all is left for this consumer. Fresh events were just
 * looked for. */
static int look_through(struct claiming *k, struct error *err)
{
    int64_t left = 0;
    if (sqlite_value(k->st, err, &left,
                     SQL(anything_left, .consumer = k->req->consumer, .now = k->now)) != 0)
        return -1;
    k->hint->through = !left && k->hint->skipped == 0;
    return await_claims(k, err);
}

/* check_version: the outbox may have been brought up while we run. Then what is in hand is settled,
 * so that nothing is delivered again, and nothing more is claimed: with nothing to settle it is an
 * error, which ends us. */
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

/* is_registered: the consumer is the one that was registered through this handle, and of which it
 * remembers things. */
static bool is_registered(const struct claiming *k)
{
    return k->st->spec.name && strcmp(k->st->spec.name, k->req->consumer) == 0;
}

/* note_identity: a restore into the same file can put another outbox in the place of the one we
 * knew. */
static int note_identity(struct sqlite_store *st, struct error *err)
{
    sqlite3_stmt *q = sqlite_rows(st, err, SQL(identity));
    int r = q ? sqlite_step(st, q, err) : -1;
    if (r < 0)
        return -1;
    snprintf(st->identity, sizeof st->identity, "%s",
             r == 1 ? (const char *)sqlite3_column_text(q, 0) : "");
    sqlite3_reset(q);
    st->home.unknown = true;
    st->epoch_seen = 0;
    return err_fate(err, ERR_UNAVAILABLE, FATE_RETRY, 0,
                    "%s: another outbox was put into this file; going on with that one, and what "
                    "was claimed in the former "
                    "is dropped",
                    st->shown);
}

static int say_set_back(struct sqlite_store *st, struct error *err)
{
    st->epoch_seen = 0;
    return err_fate(err, ERR_UNAVAILABLE, FATE_RETRY, 0,
                    "%s: an older copy of this outbox was restored into the file; going on with "
                    "that one: what was claimed "
                    "since it was made is dropped, and may come again",
                    st->shown);
}

static int not_registered(struct claiming *k, struct error *err)
{
    bool ours;
    sqlite3_stmt *q = sqlite_rows(k->st, err, SQL(identity));
    int r = q ? sqlite_step(k->st, q, err) : -1;
    if (r < 0)
        return -1;
    ours = r == 0 || !k->st->identity[0] || str_is(sqlite_text(q, 0), k->st->identity);
    sqlite3_reset(q);
    if (!ours && is_registered(k))
        return note_identity(k->st, err);
    return err_fate(err, ERR_NOTFOUND, FATE_FATAL, 0,
                    "consumer \"%s\" is not registered (any more)", k->req->consumer);
}

/* check_consumer reads the row; someone may have paused, removed or changed the consumer meanwhile.
 * With other settings than those registered nothing may be claimed or taken over: what their filter
 * passes over would be lost. */
static int check_consumer(struct claiming *k, struct error *err)
{
    sqlite3_stmt *q = sqlite_rows(k->st, err, SQL(consumer_state, .consumer = k->req->consumer));
    int r = q ? sqlite_step(k->st, q, err) : -1;
    if (r < 0)
        return -1;
    if (r == 0)
        return not_registered(k, err);
    bool same_outbox = !k->st->identity[0] || str_is(sqlite_text(q, 6), k->st->identity);
    int64_t last = sqlite3_column_int64(q, 1);
    k->hint->paused = sqlite3_column_int(q, 0) != 0;
    k->epoch = next_epoch(k->st, last);
    k->hint->changed = !str_is(sqlite_text(q, 2), store_order_names[k->req->order]) ||
                       sqlite3_column_int(q, 3) != k->req->lanes ||
                       !str_is(sqlite_text(q, 4), k->req->events ? k->req->events : "") ||
                       !str_is(sqlite_text(q, 5), k->req->where ? k->req->where : "");
    sqlite3_reset(q);
    if (!same_outbox)
        return note_identity(k->st, err);
    bool set_back = is_registered(k) && last < k->st->epoch_seen;
    return set_back ? say_set_back(k->st, err) : 0;
}

/* check_numbers: what is handed out must have numbers that nobody has passed. A repair is a
 * transaction of its own, and the turn fails, so that it is told. */
static int check_numbers(struct claiming *k, struct error *err)
{
    bool broken;
    int64_t events, from;
    if (sqlite_numbers_broken(k->st, k->req->consumer, &broken, err) != 0)
        return -1;
    if (!broken)
        return 0;
    if (sqlite_numbers_repair(k->st, &events, &from, err) != 0 ||
        sqlite_commit(&k->st->base, err) != 0)
        return -1;
    return err_fate(err, ERR_CONFLICT, FATE_RETRY, 0,
                    "%s: the numbers of events began again below what consumers have had (was the "
                    "table emptied, or "
                    "sqlite_sequence set back?): %lld events got new numbers, from %lld on; "
                    "nothing is lost, and some may come "
                    "again",
                    k->st->shown, (long long)events, (long long)from);
}

static int claim_next(struct claiming *k, struct chunk *ahead, struct error *err)
{
    if (k->hint->paused)
        return 0;
    if (k->req->parked_first && claim_parked(k, err) != 0)
        return -1;
    bool wait = k->hint->careful && k->req->careful == CAREFUL_WAIT;
    if (k->b->n == 0 && !wait && claim_fresh(k, ahead, err) != 0)
        return -1;
    if (k->b->n == 0 && !k->req->parked_first && claim_parked(k, err) != 0)
        return -1;
    return k->b->n == 0 ? look_through(k, err) : 0;
}

int sqlite_turn(struct store *base, const struct settlement *s, bool *ret_lost,
                const struct claim_request *req, struct arena *a, struct batch *ret_batch,
                struct claim_hint *ret_hint, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    struct batch b = {0};
    struct claim_hint hint = {.wait_ms = -1};
    struct claiming k = {.st = st, .req = req, .a = a, .b = &b, .hint = &hint};
    struct chunk ahead = {0};
    bool lost = false, other_version = false;
    bool by_hand = !sqlite3_get_autocommit(st->db);
    if (st->in_tx || by_hand)
        return err_set(err, ERR_MISUSE,
                       "a claim inside an open transaction would not be durable: refused");
    bool claiming = req && req->max_events > 0;
    if (sqlite_home_adopt(st, err) != 0)
        return -1;
    if (claiming && prefetch(&k, &ahead, err) != 0)
        return -1;
    if (sqlite_begin(base, err) != 0)
        return -1;
    sqlite3_int64 before = sqlite3_total_changes64(st->db);
    /* one for all of it: a claim is alive for all its parts, or for none */
    k.now = st->turn_now = sqlite_now(st);
    if (req && check_version(&k, s != NULL, &other_version, err) != 0)
        goto fail;
    if (req && check_consumer(&k, err) != 0)
        goto fail;
    bool fit = !hint.changed && !other_version;
    if (claiming && fit && check_numbers(&k, err) != 0)
        goto fail;
    if (req && fit && take_over(&k, err) != 0)
        goto fail;
    if (s && sqlite_settle(st, s, &lost, err) != 0)
        goto fail;
    if (claiming && fit && claim_next(&k, &ahead, err) != 0)
        goto fail;
    st->turn_now = 0;
    /* nothing written: nothing to sync */
    if (sqlite3_total_changes64(st->db) == before)
        sqlite_rollback(base);
    else if (sqlite_commit(base, err) != 0)
        return -1;
    if (b.n > 0 && sqlite_durable(st, err) != 0)
        return -1;
    if (b.n > 0 && is_registered(&k))
        st->epoch_seen = b.epoch;
    if (ret_lost)
        *ret_lost = lost;
    if (req) {
        *ret_batch = b;
        *ret_hint = hint;
    }
    return 0;
fail:
    st->turn_now = 0;
    sqlite_rollback(base);
    return -1;
}

int sqlite_extend(struct store *base, const char *consumer, const char *owner,
                  const struct batch *b, int64_t lease_ms, bool *ret_lost, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    int64_t now = sqlite_now(st);
    if (sqlite_run(st, err,
                   SQL(extend_claim, .consumer = consumer, .epoch = b->epoch, .owner = owner,
                       .now = now, .lease = lease_ms)) != 0)
        return -1;
    *ret_lost = sqlite3_changes(st->db) == 0;
    return 0;
}
