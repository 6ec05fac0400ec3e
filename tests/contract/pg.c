#include "pg.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store.h"

#define COMMAND_MAX 4096

static char url[512], schema[64], clock_path[64];

const char *pg_url(void)
{
    return url;
}

const char *pg_schema(void)
{
    return schema;
}

/* server is the URL of the server's database "postgres". */
static const char *server(void)
{
    static char text[400];
    const char *base = getenv("OUTBOX_TEST_PG");
    if (!base) {
        print_error("OUTBOX_TEST_PG is not set: run this through ./test\n");
        exit(2);
    }
    snprintf(text, sizeof text, "%s&dbname=postgres", base);
    return text;
}

PGconn *pg_connect(void)
{
    PGconn *db = PQconnectdb(server());
    if (PQstatus(db) != CONNECTION_OK)
        fail_msg("%s", PQerrorMessage(db));
    pg_do(db, "SET search_path = %s; SET client_min_messages = error", schema);
    return db;
}

/* run runs commands. It leaves them in `text`, for messages. */
__attribute__((format(printf, 3, 0))) static PGresult *run(PGconn *db, char text[COMMAND_MAX],
                                                           const char *fmt, va_list ap)
{
    vsnprintf(text, COMMAND_MAX, fmt, ap);
    return PQexec(db, text);
}

void pg_do(PGconn *db, const char *fmt, ...)
{
    char text[COMMAND_MAX];
    va_list ap;
    va_start(ap, fmt);
    PGresult *r = run(db, text, fmt, ap);
    va_end(ap);
    ExecStatusType s = PQresultStatus(r);
    if (s != PGRES_COMMAND_OK && s != PGRES_TUPLES_OK)
        fail_msg("%s: %s", text, PQerrorMessage(db));
    PQclear(r);
}

int64_t pg_number(PGconn *db, const char *fmt, ...)
{
    char text[COMMAND_MAX];
    va_list ap;
    va_start(ap, fmt);
    PGresult *r = run(db, text, fmt, ap);
    va_end(ap);
    if (PQresultStatus(r) != PGRES_TUPLES_OK || PQntuples(r) < 1)
        fail_msg("%s: %s", text, PQerrorMessage(db));
    int64_t n = strtoll(PQgetvalue(r, 0, 0), NULL, 10);
    PQclear(r);
    return n;
}

static void forget_clock(void)
{
    unlink(clock_path);
}

/* share_clock moves the suite's clock into a file, and makes the database read it there. */
static void share_clock(PGconn *db)
{
    if (!*clock_path) {
        strcpy(clock_path, "/tmp/outbox-clock-XXXXXX");
        int fd = mkstemp(clock_path);
        assert_true(fd >= 0);
        assert_int_equal(ftruncate(fd, sizeof(struct test_clock)) | fchmod(fd, 0644), 0);
        struct test_clock *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED,
                                         fd, 0);
        assert_true(shared != MAP_FAILED);
        close(fd);
        *shared = store_now;
        store_now_at = shared;
        atexit(forget_clock);
    }
    pg_do(
        db,
        "CREATE OR REPLACE FUNCTION _clock() RETURNS timestamptz LANGUAGE sql STABLE AS $$SELECT "
        "timestamptz 'epoch' + "
        "(SELECT sum(get_byte(b, %d + i)::bigint << (8 * i)) FROM generate_series(0, 7) i, (SELECT "
        "pg_read_binary_file('%s') AS b) f)::bigint * interval '1 millisecond'$$",
        (int)offsetof(struct test_clock, wall), clock_path);
}

struct store *pg_fresh(const struct store_options *opt, bool clock)
{
    static int n;
    struct store *st;
    struct error err;
    bool created;
    snprintf(schema, sizeof schema, "ob_%d_%d", (int)getpid(), ++n);
    snprintf(url, sizeof url, "%s&schema=%s", server(), schema);
    if (store_open(url, opt, &st, &err) != 0) {
        print_error("%s\n", err.text);
        return NULL;
    }
    if (st->ops->init(st, &created, &err) != 0) {
        print_error("%s\n", err.text);
        return NULL;
    }
    if (clock) {
        PGconn *db = pg_connect();
        share_clock(db);
        PQfinish(db);
    }
    return st;
}

struct store *pg_again(const struct store_options *opt, bool clock)
{
    struct store *st;
    struct error err;
    if (!*schema) {
        struct store_options create = *opt;
        create.create = true;
        return pg_fresh(&create, clock);
    }
    PGconn *db = pg_connect();
    pg_do(db, "TRUNCATE event, idempotency, consumer, lane, claim, parked, dead, handled, receipt, "
              "passed RESTART IDENTITY");
    PQfinish(db);
    if (store_open(url, opt, &st, &err) != 0) {
        print_error("%s\n", err.text);
        return NULL;
    }
    return st;
}

void pg_clean(void)
{
    PGconn *db = pg_connect();
    pg_do(db, "SET lock_timeout = '20s'; DROP SCHEMA %s CASCADE", schema);
    PQfinish(db);
}
