/* emit.c: inserting events and inbox rows, on our connection or inside the caller's transaction. */
#include <mysqld_error.h>
#include <string.h>

#include "base/hash.h"
#include "store/mariadb/mariadb.h"
#include "store_sql.h"

#define SHOWN 100               /* bytes of a key that a message shows */
#define STATEMENT_MAX (1 << 28) /* a payload of 64 MiB in hexadecimal digits, and the rest */
#define TRIES 3

/* A connection to work on: ours, or the caller's, on which nothing is left behind. */
struct target {
    struct mdb_store *st;
    MYSQL *db;
    enum mdb_literals how;
};

/* target_init picks the connection. On the caller's a transaction must be open. */
static int target_init(struct target *t, struct mdb_store *st, void *foreign, struct error *err)
{
    *t = (struct target){.st = st, .db = foreign, .how = MDB_HEX};
    if (foreign) {
        if (mdb_is_open(foreign))
            return 0;
        return err_set(err, ERR_MISUSE,
                       "no transaction is open on this connection: START TRANSACTION first, so "
                       "that event and data commit together");
    }
    if (mdb_connect(st, err) != 0)
        return -1;
    if (!st->base.lent)
        t->how = MDB_QUOTED;
    t->db = st->db;
    return mdb_tx_gone(&st->base.store, err);
}

/* target_failed hands on why a statement failed, and forgets our connection if it broke. */
static int target_failed(const struct target *t, const struct error *why, struct error *err)
{
    bool ours = t->db == t->st->db && !t->st->base.in_tx;
    if (ours && mdb_is_lost((unsigned)why->native))
        mdb_disconnect(t->st);
    if (err)
        *err = *why;
    return -1;
}

/* target_rows runs a statement on a target. It touches nothing of the handle if the connection is
 * the caller's: that may be another thread. */
static int target_rows(const struct target *t, struct db_rows *ret, struct error *err,
                       const struct sql *sql, const void *args)
{
    struct buf b;
    struct error why;
    buf_init(&b, STATEMENT_MAX);
    mdb_write(t->st, t->how, sql, args, &b);
    int r;
    if (b.failed)
        r = err_nomem(&why);
    else
        r = mdb_ask(t->st, t->db, b.p, b.n, ret, &why);
    buf_release(&b);
    if (r == 0)
        return 0;

    return target_failed(t, &why, err);
}

/* target_row is target_rows up to the first row; it returns as mdb_row does. */
static int target_row(const struct target *t, struct db_rows *ret, struct error *err,
                      const struct sql *sql, const void *args)
{
    if (target_rows(t, ret, err, sql, args) != 0)
        return -1;
    return db_step(ret, err);
}

/* ---- the event ---- */

static struct str payload_of(const struct new_event *ev)
{
    return ev->payload.p ? ev->payload : STR("null");
}

static int say_not_stored(const struct target *t, struct error *err)
{
    return err_set(err, ERR_CONFLICT, "%s: the event was not stored", t->st->base.shown);
}

/* run_text sends an INSERT as a text, and gives the id of the event. */
static int run_text(const struct target *t, char id[UUID_TEXT + 1], struct error *err,
                    const struct sql *sql, const void *args)
{
    struct db_rows q;
    int r = target_row(t, &q, err, sql, args);
    if (r < 0)
        return -1;
    if (r == 0)
        return say_not_stored(t, err);
    struct str made = db_text(&q, 0);
    if (made.n == UUID_TEXT)
        memcpy(id, made.p, UUID_TEXT + 1);
    db_done(&q);
    return 0;
}

/* run_insert runs an INSERT. On a connection that nobody else works on, it is prepared. */
static int run_insert(const struct target *t, struct mdb_prepared *p, char id[UUID_TEXT + 1],
                      struct error *err, const struct sql *sql, const void *args)
{
    struct mdb_room room = {id, UUID_TEXT + 1};
    struct error why;
    int r = 0;
    if (t->how == MDB_QUOTED)
        r = mdb_run_prepared(t->st, p, sql, args, &room, &why);
    if (r < 0)
        return target_failed(t, &why, err);
    if (r > 0)
        return id[0] ? 0 : say_not_stored(t, err);
    return run_text(t, id, err, sql, args);
}

/* is_plain says whether an event has nothing but what every event has. */
static bool is_plain(const struct new_event *ev)
{
    bool more = ev->has_version || ev->headers.p || ev->tenant.p || ev->not_before;
    return !more && !ev->idempotency_key.p;
}

static int insert_plain(const struct target *t, const struct new_event *ev, char id[UUID_TEXT + 1],
                        struct error *err)
{
    struct sql_insert_plain row = {
        .type = ev->type,
        .aggregate_type = ev->aggregate_type,
        .aggregate_id = ev->aggregate_id,
        .payload = payload_of(ev),
    };
    return run_insert(t, &t->st->insert_plain, id, err, &sql_insert_plain, &row);
}

/* insert_event inserts the event and gives its id. A clock that is not the server's is a test's. */
static int insert_event(const struct target *t, const struct new_event *ev, char id[UUID_TEXT + 1],
                        struct error *err)
{
    bool by_server = mdb_by_server(t->st);
    if (by_server && is_plain(ev))
        return insert_plain(t, ev, id, err);

    struct sql_insert_event row = {
        .type = ev->type,
        .aggregate_type = ev->aggregate_type,
        .aggregate_id = ev->aggregate_id,
        .version = ev->has_version ? &ev->version : NULL,
        .payload = payload_of(ev),
        .headers = ev->headers,
        .tenant = ev->tenant,
        .not_before = ev->not_before ? &ev->not_before : NULL,
        .idempotency_key = ev->idempotency_key,
    };
    if (by_server)
        return run_insert(t, &t->st->insert, id, err, &sql_insert_event, &row);
    struct sql_insert_event_at timed = {
        row.type,    row.aggregate_type, row.aggregate_id, row.version,         row.payload,
        row.headers, row.tenant,         row.not_before,   row.idempotency_key, 0};
    timed.now = clock_wall(t->st->base.opt.clock);
    return run_text(t, id, err, &sql_insert_event_at, &timed);
}

/* ---- idempotency keys ---- */

/* find_key returns 1 with the id of the event that has the key, and whether its content is the
 * same; 0 if there is none. */
static int find_key(const struct target *t, const struct new_event *ev, char id[UUID_TEXT + 1],
                    bool *ret_same, struct error *err)
{
    struct sql_find_key args = {
        .key = ev->idempotency_key,
        .type = ev->type,
        .aggregate_type = ev->aggregate_type,
        .aggregate_id = ev->aggregate_id,
        .payload = payload_of(ev),
    };
    struct db_rows q;
    int r = target_row(t, &q, err, &sql_find_key, &args);
    if (r != 1)
        return r;
    struct str found = db_text(&q, 0);
    if (found.n == UUID_TEXT)
        memcpy(id, found.p, UUID_TEXT + 1);
    *ret_same = db_int(&q, 1) != 0;
    db_done(&q);
    return 1;
}

static int say_used(const struct new_event *ev, const char *id, struct error *err)
{
    struct str key = ev->idempotency_key;
    int shown = key.n < SHOWN ? (int)key.n : SHOWN;
    return err_set(err, ERR_CONFLICT,
                   "idempotency key \"%.*s\" was used before with another type, aggregate or "
                   "payload (event %s)",
                   shown, key.p, id);
}

/* insert inserts the event, or finds the one that has its key. The server undoes a statement that
 * fails, and nothing else of the transaction. */
static int insert(const struct target *t, const struct new_event *ev, char id[UUID_TEXT + 1],
                  bool *ret_duplicate, struct error *err)
{
    struct error why;
    for (int i = 0; i < TRIES; i++) {
        if (insert_event(t, ev, id, &why) == 0)
            return 0;
        bool known = why.native == ER_DUP_ENTRY && ev->idempotency_key.p;
        if (!known)
            break;
        bool same = false;
        int found = find_key(t, ev, id, &same, err);
        if (found < 0)
            return -1;
        if (found == 1) {
            *ret_duplicate = same;
            return same ? 0 : say_used(ev, id, err);
        }
        /* It was trimmed in between, or its transaction was rolled back. */
    }
    if (err)
        *err = why;
    return -1;
}

int mdb_emit(struct store *base, void *foreign, const struct new_event *ev,
             char ret_id[UUID_TEXT + 1], bool *ret_duplicate, struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    struct target t;
    char id[UUID_TEXT + 1] = "";
    bool duplicate = false;
    struct event_limits limits = {st->base.opt.payload_max, clock_wall(st->base.opt.clock)};
    if (event_check(ev, &limits, err) != 0)
        return -1;
    if (target_init(&t, st, foreign, err) != 0)
        return -1;
    if (insert(&t, ev, id, &duplicate, err) != 0)
        return -1;
    memcpy(ret_id, id, sizeof id);
    *ret_duplicate = duplicate;
    return 0;
}

/* ---- the inbox ---- */

static int say_other_payload(struct str handler, struct str key, struct error *err)
{
    int shown = key.n < SHOWN ? (int)key.n : SHOWN;
    return err_set(err, ERR_CONFLICT,
                   "handler \"%.*s\" has handled key \"%.*s\" before with another payload",
                   (int)handler.n, handler.p, shown, key.p);
}

/* put_handled records the key; *ret_first is false if it was there. */
static int put_handled(const struct target *t, const struct sql_put_handled *row, bool *ret_first,
                       struct error *err)
{
    struct db_rows q;
    struct error why;
    *ret_first = true;
    if (target_rows(t, &q, &why, &sql_put_handled, row) == 0) {
        db_done(&q);
        return 0;
    }
    *ret_first = false;
    if (why.native == ER_DUP_ENTRY)
        return 0;
    if (err)
        *err = why;
    return -1;
}

int mdb_handle_once(struct store *base, void *foreign, struct str handler, struct str key,
                    struct str payload, bool *ret_first, struct error *err)
{
    struct mdb_store *st = mdb_of(base);
    struct target t;
    bool first;
    if (!foreign && !st->base.in_tx)
        return err_set(err, ERR_MISUSE,
                       "no transaction is open: the record must commit together with the effect");
    if (event_check_inbox(handler, key, err) != 0)
        return -1;
    if (target_init(&t, st, foreign, err) != 0)
        return -1;

    struct sql_put_handled row = {
        .handler = handler,
        .key = key,
        .hash = (int64_t)hash_end(hash_add(HASH_INIT, payload)),
        .now = foreign ? clock_wall(st->base.opt.clock) : mdb_now(base),
    };
    if (put_handled(&t, &row, &first, err) != 0)
        return -1;
    if (first) {
        *ret_first = true;
        return 0;
    }

    struct db_rows q;
    int r = target_row(&t, &q, err, SQL(handled_hash, .handler = handler, .key = key));
    if (r < 0)
        return -1;
    bool same = r == 1 && db_int(&q, 0) == row.hash;
    if (r == 1)
        db_done(&q);
    if (!same)
        return say_other_payload(handler, key, err);
    *ret_first = false;
    return 0;
}
