/* result.c: waiting for results, and the values in them. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "store/postgres/postgres.h"
#include "store/postgres/statement.h"

#define TLS_LOOK_MS 50 /* how often to ask libpq on a connection with TLS; see wait_for */
#define LOOK_MS 60000  /* and without */
#define READER_MS 5000 /* for reading ahead: we can do without it, and leases run out meanwhile */

/* ---- waiting ---- */

/* answer_limit returns for how many milliseconds the server may be silent; 0: no limit. */
static int64_t answer_limit(const struct pg_store *st, const PGconn *db)
{
    if (st->patient || st->opt.any_version)
        return 0;
    if (db == st->reader && st->answer_ms > READER_MS)
        return READER_MS;
    return st->answer_ms;
}

/* wait_for waits until a result can be had without waiting. Returns false if nothing came for too
 * long: a connection whose other end vanished never says anything, and TCP does not notice.
 *
 * It goes by the machine's own clock, whatever clock the store is given, because the socket is
 * real. With TLS it asks libpq now and then: what TLS has read already no longer shows on the
 * socket. */
static bool wait_for(const struct pg_store *st, PGconn *db)
{
    int64_t limit = answer_limit(st, db);
    int64_t since = clock_mono(&clock_system);
    int64_t most = PQsslInUse(db) ? TLS_LOOK_MS : LOOK_MS;
    while (PQisBusy(db)) {
        int64_t wait = most;
        if (limit > 0) {
            int64_t left = limit - (clock_mono(&clock_system) - since) / MS_NS;
            if (left <= 0)
                return false;
            if (left < most)
                wait = left;
        }

        struct pollfd fd = {.fd = PQsocket(db), .events = POLLIN};
        int n = poll(&fd, 1, (int)wait);
        bool broken = n < 0 && errno != EINTR;
        if (broken || !PQconsumeInput(db))
            return true; /* PQgetResult knows what to say */
        if (n > 0)
            since = clock_mono(&clock_system);
    }
    return true;
}

PGresult *pg_next_result(struct pg_store *st, PGconn *db)
{
    if (!wait_for(st, db)) {
        st->silent = true;
        shutdown(PQsocket(db), SHUT_RDWR); /* to libpq it looks as if the server had gone */
    }
    return PQgetResult(db);
}

/* pg_result also ends the pipeline that send_with_path in statement.c began. After the rows comes
 * the mark that ends it, or first an error, if the commit failed. */
PGresult *pg_result(struct pg_store *st, PGconn *db)
{
    PGresult *r = pg_next_result(st, db);
    if (r || PQpipelineStatus(db) == PQ_PIPELINE_OFF)
        return r;
    r = pg_next_result(st, db);
    if (r && PQresultStatus(r) != PGRES_PIPELINE_SYNC)
        return r;
    PQclear(r);
    PQexitPipelineMode(db);
    return NULL;
}

PGresult *pg_last_result(struct pg_store *st, PGconn *db)
{
    PGresult *last = NULL;
    for (PGresult *r; (r = pg_result(st, db));) {
        PQclear(last);
        last = r;
        if (PQstatus(db) == CONNECTION_BAD)
            break;
    }
    return last;
}

void pg_clear_results(PGconn *db)
{
    if (PQtransactionStatus(db) == PQTRANS_ACTIVE)
        PQclear(PQexec(db, ""));
}

bool pg_went_well(const PGresult *r)
{
    ExecStatusType s = PQresultStatus(r);
    return s == PGRES_TUPLES_OK || s == PGRES_COMMAND_OK || s == PGRES_SINGLE_TUPLE;
}

/* ---- values ---- */

int64_t pg_int(const PGresult *r, int row, int col)
{
    if (PQgetisnull(r, row, col))
        return 0;
    return strtoll(PQgetvalue(r, row, col), NULL, 10);
}

bool pg_true(const PGresult *r, int row, int col)
{
    return *PQgetvalue(r, row, col) == 't';
}

const char *pg_str(const PGresult *r, int row, int col)
{
    if (PQgetisnull(r, row, col))
        return NULL;
    return PQgetvalue(r, row, col);
}

const char *pg_copy(const PGresult *r, int row, int col, struct arena *a, bool *ok)
{
    if (PQgetisnull(r, row, col))
        return NULL;
    const char *s = arena_bytes(a, PQgetvalue(r, row, col), (size_t)PQgetlength(r, row, col));
    if (!s)
        *ok = false;
    return s;
}
