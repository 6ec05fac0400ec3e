/* emit.c: inserting events and inbox rows, on our connection or inside the caller's transaction. */
#include "base/str.h"
#include "store/db/db.h"
#include "store_sql.h"

#define SHOWN 100 /* bytes of a key that a message shows */

int db_target_row(const struct db_target *t, struct db_rows *ret, struct error *err,
                  const struct sql *sql, const void *args)
{
    *ret = t->st->ops->driver->target_rows(t, sql, args, err);
    return db_step(ret, err);
}

/* ---- events ---- */

struct str db_emit_payload(const struct new_event *ev)
{
    return ev->payload.p ? ev->payload : STR("null");
}

int db_emit_find(const struct db_target *t, const struct new_event *ev, int64_t hash,
                 char id[UUID_TEXT + 1], struct error *err)
{
    struct str key = ev->idempotency_key;
    struct db_rows q;
    int r = db_target_row(
        t, &q, err,
        SQL(find_key, .key = key, .type = ev->type, .aggregate_type = ev->aggregate_type,
            .aggregate_id = ev->aggregate_id, .payload = db_emit_payload(ev), .hash = hash));
    if (r <= 0)
        return r;
    struct str first = db_text(&q, 0);
    if (first.n == UUID_TEXT)
        memcpy(id, first.p, UUID_TEXT + 1);
    bool same = db_int(&q, 1) != 0;
    db_done(&q);
    if (same)
        return 1;
    int shown = key.n < SHOWN ? (int)key.n : SHOWN;
    return err_set(err, ERR_CONFLICT,
                   "idempotency key \"%.*s\" was used before with another type, aggregate or "
                   "payload (event %s)",
                   shown, key.p, id);
}

int db_emit(struct store *st, void *foreign, const struct new_event *ev, char ret_id[UUID_TEXT + 1],
            bool *ret_duplicate, struct error *err)
{
    const struct db_driver *d = st->ops->driver;
    const struct store_options *opt = &db_of(st)->opt;
    struct event_limits limits = {opt->payload_max, clock_wall(opt->clock)};
    struct db_target t;
    char id[UUID_TEXT + 1] = "";
    bool duplicate = false;
    if (event_check(ev, &limits, err) != 0)
        return -1;
    if (d->target(st, foreign, &t, err) != 0)
        return -1;
    if (d->insert(&t, ev, id, &duplicate, err) != 0)
        return -1;
    memcpy(ret_id, id, sizeof id);
    *ret_duplicate = duplicate;
    return 0;
}

/* ---- the inbox of applications ---- */

/* Records the key; *ret_first is false if the inbox already has the key. */
static int put_handled(const struct db_target *t, const struct sql_put_handled *row,
                       bool *ret_first, struct error *err)
{
    const struct db_driver *d = t->st->ops->driver;
    struct error why;
    struct db_rows q = d->target_rows(t, &sql_put_handled, row, &why);
    if (db_finish(&q, &why) == 0) {
        *ret_first = d->target_changed(t) > 0;
        return 0;
    }
    if (d->duplicate && why.native == d->duplicate) {
        *ret_first = false;
        return 0;
    }
    return err_copy(err, &why);
}

/* Checks whether the key is recorded, and with the same payload. */
static int find_handled(const struct db_target *t, const struct sql_put_handled *row,
                        bool *ret_known, bool *ret_same, struct error *err)
{
    struct db_rows q;
    int r = db_target_row(t, &q, err, SQL(handled_hash, .handler = row->handler, .key = row->key));
    if (r < 0)
        return -1;
    *ret_known = r == 1;
    *ret_same = r == 1 && db_int(&q, 0) == row->hash;
    db_done(&q);
    return 0;
}

/* With one writer at a time, a duplicate must not wait for the write lock, so the key is looked up
 * first. */
int db_handle_once(struct store *st, void *foreign, struct str handler, struct str key,
                   struct str payload, bool *ret_first, struct error *err)
{
    struct db_target t;
    if (!foreign && !db_of(st)->in_tx)
        return err_set(err, ERR_MISUSE,
                       "no transaction is open: the record must commit together with the effect");
    if (event_check_inbox(handler, key, err) != 0)
        return -1;
    if (st->ops->driver->target(st, foreign, &t, err) != 0)
        return -1;

    struct sql_put_handled row = {
        .handler = handler,
        .key = key,
        .hash = (int64_t)hash_end(hash_add(HASH_INIT, payload)),
        .now = foreign ? clock_wall(db_of(st)->opt.clock) : db_now(st),
    };
    bool one_writer = (st->caps & STORE_ONE_WRITER) != 0;
    bool known = false, same = false, first = false;
    if (one_writer && find_handled(&t, &row, &known, &same, err) != 0)
        return -1;
    if (!known && put_handled(&t, &row, &first, err) != 0)
        return -1;
    if (!known && !first && find_handled(&t, &row, &known, &same, err) != 0)
        return -1;
    int shown = key.n < SHOWN ? (int)key.n : SHOWN;
    if (!first && !same)
        return err_set(err, ERR_CONFLICT,
                       "handler \"%.*s\" has handled key \"%.*s\" before with another payload",
                       (int)handler.n, handler.p, shown, key.p);
    *ret_first = first;
    return 0;
}

/* ---- the inbox of handlers of this process ---- */

int db_handled(struct store *st, const struct inbox_key *k, size_t n, bool *ret, struct error *err)
{
    for (size_t i = 0; i < n; i++) {
        struct db_rows q;
        int r = db_row(st, &q, err, SQL(handled_hash, .handler = k[i].handler, .key = k[i].key));
        if (r < 0)
            return -1;
        ret[i] = r == 1;
        db_done(&q);
    }
    return 0;
}

int db_handled_put(struct store *st, const struct inbox_key *k, const bool *skip, size_t n,
                   bool *ret_all, struct error *err)
{
    int64_t hash = (int64_t)hash_end(hash_add(HASH_INIT, STR("")));
    *ret_all = true;
    for (size_t i = 0; i < n; i++) {
        bool new;
        if (skip[i])
            continue;
        if (db_insert_new(st, &new, err,
                          SQL(put_handled, .handler = k[i].handler, .key = k[i].key, .hash = hash,
                              .now = db_now(st))) != 0)
            return -1;
        *ret_all = *ret_all && new;
    }
    return 0;
}
