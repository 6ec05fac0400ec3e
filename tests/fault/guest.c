/* guest.c: an application that shares its connections with the library, in every supported way.
 *
 *     fault_guest STORE-URL CONNINFO
 *
 * It emits and keeps its inbox through a connection of its own (CONNINFO), works on the library's
 * between outbox_begin and outbox_commit, and handles what it emitted, which emits in turn. Its own
 * statements say `note` and mean the table that their search_path finds. */
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "outbox.h"

static _Noreturn void give_up(const char *what, const char *why)
{
    fprintf(stderr, "guest: %s: %s\n", what, why);
    exit(1);
}

static void sql(PGconn *db, const char *text)
{
    PGresult *r = PQexec(db, text);
    if (PQresultStatus(r) != PGRES_COMMAND_OK)
        give_up(text, PQerrorMessage(db));
    PQclear(r);
}

static outbox_message message(const char *type, const char *payload, const char *once)
{
    outbox_message m = OUTBOX_MESSAGE_INIT;
    m.type = type;
    m.aggregate_type = "guest";
    m.aggregate_id = "1";
    m.payload = payload;
    m.idempotency_key = once;
    return m;
}

/* on_ours: everything in a transaction of the application's own. */
static void on_ours(outbox *ob, PGconn *db)
{
    static char large[(2 << 20) + 3];
    outbox_error err;
    int first;
    memset(large, 'x', sizeof large - 1);
    large[0] = large[sizeof large - 2] = '"';
    outbox_message m[] = {message("first", "1", NULL), message("first", "2", "once"),
                          message("large", large, NULL)};
    sql(db, "BEGIN");
    sql(db, "INSERT INTO note VALUES (1)");
    for (size_t i = 0; i < sizeof m / sizeof *m; i++)
        if (outbox_emit_pg(ob, db, &m[i], NULL, &err) != 0)
            give_up("outbox_emit_pg", err.text);
    if (outbox_handle_once_pg(ob, db, "guest", "key", "payload", 7, &first, &err) != 0)
        give_up("outbox_handle_once_pg", err.text);
    sql(db, "INSERT INTO note VALUES (2)");
    sql(db, "COMMIT");
}

/* on_theirs: the same on the library's connection. */
static void on_theirs(outbox *ob)
{
    outbox_error err;
    outbox_message m[] = {message("second", "1", NULL), message("second", "2", "twice")};
    if (outbox_begin(ob, &err) != 0)
        give_up("outbox_begin", err.text);
    sql(outbox_pg(ob), "INSERT INTO note VALUES (3)");
    for (size_t i = 0; i < sizeof m / sizeof *m; i++)
        if (outbox_emit(ob, &m[i], NULL, &err) != 0)
            give_up("outbox_emit", err.text);
    sql(outbox_pg(ob), "INSERT INTO note VALUES (4)");
    if (outbox_commit(ob, &err) != 0)
        give_up("outbox_commit", err.text);
}

static outbox_verdict handle(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    outbox_error err;
    outbox_message m = message("third", "1", NULL);
    (void)ctx;
    sql(outbox_tx_pg(tx), "INSERT INTO note VALUES (5)");
    if (strcmp(outbox_event_type(ev), "third") != 0 && outbox_tx_emit(tx, &m, NULL, &err) != 0)
        return outbox_fail(tx, OUTBOX_REJECT, err.text);
    sql(outbox_tx_pg(tx), "INSERT INTO note VALUES (6)");
    return OUTBOX_DONE;
}

int main(int argc, char **argv)
{
    outbox *ob;
    outbox_consumer *c;
    outbox_error err;
    outbox_options options = OUTBOX_OPTIONS_INIT;
    if (argc != 3)
        give_up("usage", "fault_guest STORE-URL CONNINFO");
    options.payload_max = 4 << 20;
    PGconn *db = PQconnectdb(argv[2]);
    if (PQstatus(db) != CONNECTION_OK)
        give_up("connect", PQerrorMessage(db));
    if (outbox_open(argv[1], &options, &ob, &err) != 0)
        give_up(argv[1], err.text);
    if (outbox_consumer_new(ob, "guest", &c, &err) != 0)
        give_up("guest", err.text);
    if (outbox_add_handler(c, "guest", "*", handle, NULL, 0, &err) != 0)
        give_up("guest", err.text);
    on_ours(ob, db);
    on_theirs(ob);
    if (outbox_run(ob, OUTBOX_UNTIL_THROUGH, &err) != 0)
        give_up("run", err.text);
    outbox_close(ob);
    PQfinish(db);
    return 0;
}
