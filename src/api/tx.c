/* tx.c: the interface for handlers. An outbox_event is a struct delivery, an outbox_tx a struct
 * handler_call. */
#include <stdio.h>

#include "api/api_impl.h"
#include "store/store.h"

/* Returns the event. Its strings end with a NUL, and an absent one is NULL. */
static const struct event *event_of(const outbox_event *ev)
{
    return ((const struct delivery *)ev)->ev;
}

/* clang-format off */
#define GETTER(type, name, value) \
    OUTBOX_API type outbox_event_##name(const outbox_event *ev) \
    { \
        return value; \
    }
GETTER(const char *, id, event_of(ev)->id.p)
GETTER(const char *, inbox_key, event_inbox_key(event_of(ev)).p)
GETTER(int64_t, seq, event_of(ev)->seq)
GETTER(const char *, type, event_of(ev)->type.p)
GETTER(const char *, aggregate_type, event_of(ev)->aggregate_type.p)
GETTER(const char *, aggregate_id, event_of(ev)->aggregate_id.p)
GETTER(const char *, headers, event_of(ev)->headers.p)
GETTER(const char *, tenant, event_of(ev)->tenant.p)
GETTER(int64_t, created_at, event_of(ev)->created_at)
GETTER(int, attempt, ((const struct delivery *)ev)->attempt)
/* clang-format on */

OUTBOX_API const char *outbox_event_payload(const outbox_event *ev, size_t *ret_size)
{
    if (ret_size)
        *ret_size = event_of(ev)->payload.n;
    return event_of(ev)->payload.p;
}

OUTBOX_API int outbox_event_version(const outbox_event *ev, int64_t *ret_version)
{
    if (!event_of(ev)->has_version)
        return 0;
    if (ret_version)
        *ret_version = event_of(ev)->version;
    return 1;
}

OUTBOX_API outbox_verdict outbox_fail(outbox_tx *tx, outbox_verdict verdict, const char *text)
{
    struct handler_call *call = (struct handler_call *)tx;
    snprintf(call->text, sizeof call->text, "%s", text ? text : "");
    return verdict;
}

OUTBOX_API outbox_verdict outbox_retry_in(outbox_tx *tx, int64_t ms, const char *text)
{
    ((struct handler_call *)tx)->delay_ms = ms;
    return outbox_fail(tx, OUTBOX_RETRY, text);
}

/* ---- the transaction ---- */

/* Returns the store of the handler's transaction; NULL: it has none. */
static struct store *store_of(outbox_tx *tx)
{
    return ((struct handler_call *)tx)->tx;
}

OUTBOX_API struct sqlite3 *outbox_tx_sqlite(outbox_tx *tx)
{
    struct store *st = store_of(tx);
    return st ? sqlite_handle(st) : NULL;
}

OUTBOX_API struct pg_conn *outbox_tx_pg(outbox_tx *tx)
{
    struct store *st = store_of(tx);
    return st ? pg_handle(st) : NULL;
}

OUTBOX_API struct st_mysql *outbox_tx_mariadb(outbox_tx *tx)
{
    struct store *st = store_of(tx);
    return st ? mdb_handle(st) : NULL;
}

/* The error of a handler that runs outside a transaction. */
static int has_none(struct error *err)
{
    return err_set(err, ERR_MISUSE,
                   "this handler has no transaction; register it with a name and without "
                   "OUTBOX_EXTERNAL (outbox_add_handler)");
}

OUTBOX_API int outbox_tx_emit(outbox_tx *tx, const outbox_message *m, outbox_receipt *ret,
                              outbox_error *err)
{
    struct store *st = store_of(tx);
    if (!st)
        return has_none(err_of(err));
    return api_emit(st, NULL, m, ret, err_of(err));
}

/* ---- the inbox ---- */

/* The payload has `size` bytes, or ends with a NUL if size is 0. NULL counts as empty. */
static int handle_once(struct store *st, void *foreign, const char *handler, const char *key,
                       const char *payload, size_t size, int *ret_first, struct error *err)
{
    bool first;
    bool has_handler = handler && *handler, has_key = key && *key;
    if (!has_handler || !has_key)
        return err_set(err, ERR_INVALID, "outbox_handle_once needs a handler's name and a key");
    struct str content = STR("");
    if (payload && size == 0)
        content = str_of(payload);
    else if (payload)
        content = (struct str){payload, size};
    if (st->ops->handle_once(st, foreign, str_of(handler), str_of(key), content, &first, err) != 0)
        return -1;
    *ret_first = first;
    return 0;
}

OUTBOX_API int outbox_handle_once(outbox_tx *tx, const char *handler, const char *key,
                                  const char *payload, size_t size, int *ret_first,
                                  outbox_error *err)
{
    if (!store_of(tx))
        return has_none(err_of(err));
    return handle_once(store_of(tx), NULL, handler, key, payload, size, ret_first, err_of(err));
}

OUTBOX_API int outbox_handle_once_sqlite(outbox *ob, struct sqlite3 *db, const char *handler,
                                         const char *key, const char *payload, size_t size,
                                         int *ret_first, outbox_error *err)
{
    if (!db || !outbox_sqlite(ob))
        return err_set(err_of(err), ERR_MISUSE,
                       "outbox_handle_once_sqlite needs a connection, and an outbox in SQLite");
    return handle_once(ob->st, db, handler, key, payload, size, ret_first, err_of(err));
}

OUTBOX_API int outbox_handle_once_pg(outbox *ob, struct pg_conn *db, const char *handler,
                                     const char *key, const char *payload, size_t size,
                                     int *ret_first, outbox_error *err)
{
    if (!db || !pg_is(ob->st))
        return err_set(err_of(err), ERR_MISUSE,
                       "outbox_handle_once_pg needs a connection, and an outbox in PostgreSQL");
    return handle_once(ob->st, db, handler, key, payload, size, ret_first, err_of(err));
}

OUTBOX_API int outbox_handle_once_mariadb(outbox *ob, struct st_mysql *db, const char *handler,
                                          const char *key, const char *payload, size_t size,
                                          int *ret_first, outbox_error *err)
{
    if (!db || !store_is(ob->st, "mariadb"))
        return err_set(err_of(err), ERR_MISUSE,
                       "outbox_handle_once_mariadb needs a connection, and an outbox in MariaDB");
    return handle_once(ob->st, db, handler, key, payload, size, ret_first, err_of(err));
}
