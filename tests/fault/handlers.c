/* handlers.c: an application whose handlers die, each at a different step.
 *
 *     fault_handlers STORE-URL FILE STEP
 *
 * It runs one consumer, "c", until no work is left. A handler that has a transaction inserts (its
 * name, the payload) into the table effect; one that acts outside appends the same to FILE. The
 * process is killed at the event whose payload is 5, but only once; FILE.died records that:
 *
 *     before, after            handler "h" dies before or after its INSERT
 *     always                   it dies after its INSERT each time, by abort
 *     out-before, out-after    handler "mail", outside, dies before or after it acted
 *     between                  "mail" and "stock" share their fate with "last", which dies after
 *                              both have ended, and before the event has */
#include <fcntl.h>
#include <libpq-fe.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef WITH_MARIADB
#include <mysql.h>
#endif

#include "outbox.h"

static const char *step, *file;

static _Noreturn void give_up(const char *what, const char *why)
{
    fprintf(stderr, "handlers: %s: %s\n", what, why);
    exit(1);
}

/* die_if kills the process if this is the step to die at, and no process has before. */
static void die_if(const char *here, const outbox_event *ev)
{
    char mark[4096];
    if (strcmp(step, here) != 0 || strcmp(outbox_event_payload(ev, NULL), "5") != 0)
        return;
    if (strcmp(step, "always") == 0)
        abort();
    snprintf(mark, sizeof mark, "%s.died", file);
    int fd = open(mark, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd >= 0)
        raise(SIGKILL);
}

static int insert(outbox_tx *tx, const char *handler, const outbox_event *ev)
{
    char sql[200];
    snprintf(sql, sizeof sql, "INSERT INTO effect VALUES ('%s', %s)", handler,
             outbox_event_payload(ev, NULL));
#ifdef WITH_MARIADB
    if (outbox_tx_mariadb(tx))
        return mysql_query(outbox_tx_mariadb(tx), sql) == 0;
#endif
    if (outbox_tx_sqlite(tx))
        return sqlite3_exec(outbox_tx_sqlite(tx), sql, NULL, NULL, NULL) == SQLITE_OK;
    PGresult *r = PQexec(outbox_tx_pg(tx), sql);
    int ok = PQresultStatus(r) == PGRES_COMMAND_OK;
    PQclear(r);
    return ok;
}

/* inside and last have a transaction; ctx is the handler's name. */
static outbox_verdict inside(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    die_if("before", ev);
    if (!insert(tx, ctx, ev))
        return outbox_fail(tx, OUTBOX_RETRY, "no effect");
    die_if("after", ev);
    die_if("always", ev);
    return OUTBOX_DONE;
}

static outbox_verdict last(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    die_if("between", ev);
    return inside(ev, tx, ctx);
}

static outbox_verdict outside(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    char line[64];
    die_if("out-before", ev);
    int fd = open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    int n = snprintf(line, sizeof line, "%s %s\n", (const char *)ctx,
                     outbox_event_payload(ev, NULL));
    int ok = fd >= 0 && write(fd, line, (size_t)n) == n;
    if (fd >= 0)
        close(fd);
    die_if("out-after", ev);
    return ok ? OUTBOX_DONE : outbox_fail(tx, OUTBOX_RETRY, "could not write");
}

static void set(outbox_consumer *c, const char *option, const char *value)
{
    outbox_error err;
    if (outbox_consumer_set(c, option, value, &err) != 0)
        give_up(option, err.text);
}

static void add(outbox_consumer *c, char *name, outbox_handler handler, int flags)
{
    outbox_error err;
    if (outbox_add_handler(c, name, "*", handler, name, flags, &err) != 0)
        give_up(name, err.text);
}

int main(int argc, char **argv)
{
    static char h[] = "h", mail[] = "mail", stock[] = "stock", third[] = "last";
    outbox *ob;
    outbox_consumer *c;
    outbox_error err;
    if (argc != 4)
        give_up("usage", "fault_handlers STORE-URL FILE STEP");
    file = argv[2];
    step = argv[3];
    if (outbox_open(argv[1], NULL, &ob, &err) != 0)
        give_up(argv[1], err.text);
    if (outbox_consumer_new(ob, "c", &c, &err) != 0)
        give_up("c", err.text);
    set(c, "lease", "150ms");
    set(c, "retry", "base=10ms,attempts=3,jitter=none,outage=0s");
    if (strcmp(step, "between") == 0) {
        set(c, "fate", "shared");
        add(c, mail, outside, OUTBOX_EXTERNAL);
        add(c, stock, inside, 0);
        add(c, third, last, 0);
    } else if (strncmp(step, "out", 3) == 0) {
        add(c, mail, outside, OUTBOX_EXTERNAL);
    } else {
        add(c, h, inside, 0);
    }
    if (outbox_run(ob, OUTBOX_UNTIL_THROUGH, &err) != 0)
        give_up("run", err.text);
    outbox_close(ob);
    return 0;
}
