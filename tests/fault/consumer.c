/* consumer.c: a reader of a stream, which tests kill repeatedly.
 *
 *     fault_consumer DATABASE URL GROUP [through]
 *
 * Each event adds a row to its table entry, and one to the total of its account: a second effect
 * would show in both. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sqlite3.h>

#include "outbox.h"

static outbox *ob;

static void on_signal(int number)
{
    (void)number;
    outbox_stop(ob);
}

static _Noreturn void die(const char *what, const char *why)
{
    fprintf(stderr, "consumer: %s: %s\n", what, why);
    exit(1);
}

static int run(sqlite3 *db, const char *text, const outbox_event *ev)
{
    sqlite3_stmt *q;
    if (sqlite3_prepare_v2(db, text, -1, &q, NULL) != SQLITE_OK)
        return -1;
    sqlite3_bind_text(q, 1, outbox_event_aggregate_id(ev), -1, SQLITE_STATIC);
    sqlite3_bind_text(q, 2, outbox_event_payload(ev, NULL), -1, SQLITE_STATIC);
    int rc = sqlite3_step(q);
    sqlite3_finalize(q);
    return rc == SQLITE_DONE ? 0 : -1;
}

static int handle(outbox *handle, const outbox_event *ev, void *ctx)
{
    sqlite3 *db = outbox_sqlite(handle);
    (void)ctx;
    if (run(db, "INSERT INTO entry (key, payload) VALUES (?1, ?2)", ev) != 0)
        return -1;
    return run(db,
               "INSERT INTO account (key, total) VALUES (?1, 1) ON CONFLICT (key) DO UPDATE SET "
               "total = total + 1, "
               "last = ?2",
               ev);
}

static void write_log(void *ctx, int level, const char *group, const char *text)
{
    (void)ctx, (void)level;
    fprintf(stderr, "%s: %s\n", group, text);
}

int main(int argc, char **argv)
{
    outbox_error err;
    outbox_options options = OUTBOX_OPTIONS_INIT;
    outbox_stream s = OUTBOX_STREAM_INIT;
    char url[4096];
    if (argc < 4)
        die("usage", "fault_consumer DATABASE URL GROUP [through]");
    snprintf(url, sizeof url, "sqlite:%s", argv[1]);
    options.log = write_log;
    if (outbox_open(url, &options, &ob, &err) != 0)
        die(argv[1], err.text);
    signal(SIGTERM, on_signal);
    s.url = argv[2];
    s.group = argv[3];
    s.claim_ms = 200;
    s.handler = handle;
    s.flags = argc > 4 ? OUTBOX_UNTIL_THROUGH : 0;
    if (outbox_consume(ob, &s, &err) != 0)
        die(argv[2], err.text);
    outbox_close(ob);
    return 0;
}
