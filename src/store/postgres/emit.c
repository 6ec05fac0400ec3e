/* emit.c: inserting events and inbox rows, on our connection or inside the caller's transaction. */
#include <stdio.h>

#include "store/postgres/postgres.h"

static const char insert_sql[] =
    "INSERT INTO @schema@.event (id, type, aggregate_type, aggregate_id, version, payload, headers, tenant, not_before) "
    "VALUES ($1::uuid, $2, $3, $4, $5::bigint, $6, $7, $8, "
    "timestamptz 'epoch' + $9::bigint * interval '1 millisecond')";
static const char once_sql[] = "SELECT id, duplicate FROM @schema@.emit_once($1, $2, $3, $4, $5, $6, $7::bigint, "
                               "timestamptz 'epoch' + $8::bigint * interval '1 millisecond', $9)";

/* in_transaction: the caller's connection must have one open, or the event would not be part of anything. */
static int in_transaction(PGconn *db, struct error *err)
{
    PGTransactionStatusType s = PQtransactionStatus(db);
    if (s == PQTRANS_INTRANS) return 0;
    if (s == PQTRANS_INERROR)
        return err_set(err, ERR_MISUSE,
                       "an earlier statement of this transaction failed: roll it back and begin again");
    if (s == PQTRANS_IDLE)
        return err_set(
            err, ERR_MISUSE,
            "no transaction is open on this connection: BEGIN first, so that event and data commit together");
    return err_set(err, ERR_MISUSE, "this connection is busy with another command, or was lost");
}

static const char *number(bool there, int64_t v, char out[24])
{
    if (!there) return NULL;
    snprintf(out, 24, "%lld", (long long)v);
    return out;
}

int pg_emit(struct store *base, void *foreign, const struct new_event *ev, char ret_id[UUID_TEXT + 1],
            bool *ret_duplicate, struct error *err)
{
    struct pg_store *st = pg_of(base);
    char id[UUID_TEXT + 1], version[24], not_before[24];
    const char *v = number(ev->has_version, ev->version, version);
    const char *at = number(ev->not_before != 0, ev->not_before, not_before);
    struct str payload = ev->payload.p ? ev->payload : STR("null");
    struct str tenant = ev->tenant.p ? ev->tenant : str_of(st->tenant);
    PGresult *r;
    if (event_check(ev, st->opt.payload_max, err) != 0) return -1;
    if (foreign && in_transaction(foreign, err) != 0) return -1;
    if (!ev->idempotency_key.p) {
        uuid7_next(&st->uuid, clock_wall(st->opt.clock), &st->rng, id);
        r = foreign ? pg_query_on(st, foreign, err, insert_sql, "stttsttts", id, ev->type, ev->aggregate_type,
                                  ev->aggregate_id, v, payload, ev->headers, tenant, at)
                    : pg_query(st, err, insert_sql, "stttsttts", id, ev->type, ev->aggregate_type, ev->aggregate_id, v,
                               payload, ev->headers, tenant, at);
        *ret_duplicate = false;
    } else {
        r = foreign ? pg_query_on(st, foreign, err, once_sql, "ttttttsst", ev->type, ev->aggregate_type,
                                  ev->aggregate_id, payload, ev->headers, ev->idempotency_key, v, at, tenant)
                    : pg_query(st, err, once_sql, "ttttttsst", ev->type, ev->aggregate_type, ev->aggregate_id, payload,
                               ev->headers, ev->idempotency_key, v, at, tenant);
        if (r) {
            snprintf(id, sizeof id, "%s", PQgetvalue(r, 0, 0));
            *ret_duplicate = pg_true(r, 0, 1);
        }
    }
    if (!r) return -1;
    PQclear(r);
    memcpy(ret_id, id, sizeof id);
    return 0;
}

int pg_handle_once(struct store *base, void *foreign, struct str handler, struct str key, struct str payload,
                   bool *ret_first, struct error *err)
{
    static const char sql[] = "SELECT @schema@.handle_once($1, $2, $3)";
    struct pg_store *st = pg_of(base);
    if (!foreign && !st->in_tx)
        return err_set(err, ERR_MISUSE, "no transaction is open: the record must commit together with the effect");
    if (foreign && in_transaction(foreign, err) != 0) return -1;
    PGresult *r = foreign ? pg_query_on(st, foreign, err, sql, "ttt", handler, key, payload)
                          : pg_query(st, err, sql, "ttt", handler, key, payload);
    if (!r) return -1;
    *ret_first = pg_true(r, 0, 0);
    PQclear(r);
    return 0;
}
