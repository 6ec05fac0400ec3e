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

/* Every case has its own database, with the outbox in this schema. */
static const char schema[] = "ob_test";

static char url[512], database[64], clock_path[64];

const char *pg_url(void)
{
    return url;
}

const char *pg_schema(void)
{
    return schema;
}

/* connect_to opens a connection to a database of the test run's server. */
static PGconn *connect_to(const char *name)
{
    char text[400];
    const char *server = getenv("OUTBOX_TEST_PG");
    if (!server) {
        print_error("OUTBOX_TEST_PG is not set: run this through ./test\n");
        exit(2);
    }
    snprintf(text, sizeof text, "%s&dbname=%s", server, name);
    PGconn *db = PQconnectdb(text);
    if (PQstatus(db) != CONNECTION_OK)
        fail_msg("%s", PQerrorMessage(db));
    return db;
}

PGconn *pg_connect(void)
{
    PGconn *db = connect_to(database);
    pg_do(db, "SET search_path = %s; SET client_min_messages = error", schema);
    return db;
}

/* on_server runs a command that concerns a whole database. */
__attribute__((format(printf, 1, 2))) static void on_server(const char *fmt, ...)
{
    char text[COMMAND_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    PGconn *db = connect_to("postgres");
    pg_do(db, "%s", text);
    PQfinish(db);
}

/* run runs commands, whose text it leaves in `text` for messages. */
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

/* share_clock moves the suite's clock into a file, and creates the database read it there. */
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

/* be_in directs pg_url and pg_connect to the database `name`. */
static void be_in(const char *name)
{
    snprintf(database, sizeof database, "%s", name);
    snprintf(url, sizeof url, "%s&dbname=%s&schema=%s", getenv("OUTBOX_TEST_PG"), name, schema);
}

/* open_there opens the outbox at pg_url; NULL on failure, which is printed. */
static struct store *open_there(const struct store_options *opt)
{
    struct store *st;
    struct error err;
    if (store_open(url, opt, &st, &err) == 0)
        return st;
    print_error("%s\n", err.text);
    return NULL;
}

/* The templates of this process: one outbox by the server's clock, and one by the suite's. */
static char templates[2][64];
static pid_t templates_of;

static void drop_templates(void)
{
    if (getpid() != templates_of)
        return; /* a child of ours that ends does not end the suite */
    for (size_t i = 0; i < 2; i++)
        if (*templates[i])
            on_server("DROP DATABASE %s WITH (FORCE)", templates[i]);
}

/* make_template creates an outbox for the cases to copy: a copy takes a fifth of the time. Returns
 * whether it succeeded. */
static bool make_template(const struct store_options *opt, bool clock)
{
    char name[64];
    struct error err;
    bool created;
    snprintf(name, sizeof name, "ob_%d_%s", (int)getpid(), clock ? "by_suite" : "by_server");
    on_server("CREATE DATABASE %s", name);
    be_in(name);

    struct store *st = open_there(opt);
    if (!st)
        return false;
    bool made = st->ops->init(st, &created, &err) == 0;
    store_close(st);
    if (!made) {
        print_error("%s\n", err.text);
        return false;
    }
    if (clock) {
        PGconn *db = pg_connect();
        share_clock(db);
        PQfinish(db);
    }

    /* A database in use cannot be copied, and our sessions may still be ending. */
    on_server("SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE datname = '%s'",
              name);
    if (templates_of == 0)
        atexit(drop_templates);
    templates_of = getpid();
    strcpy(templates[clock], name);
    return true;
}

struct store *pg_fresh(const struct store_options *opt, bool clock)
{
    static int n;
    char name[64];
    if (!*templates[clock] && !make_template(opt, clock))
        return NULL;
    snprintf(name, sizeof name, "ob_%d_%d", (int)getpid(), ++n);
    /* Copies files, because copying through the log takes twice the processor time. */
    on_server("CREATE DATABASE %s TEMPLATE %s STRATEGY file_copy", name, templates[clock]);
    be_in(name);
    return open_there(opt);
}

struct store *pg_again(const struct store_options *opt, bool clock)
{
    if (!*database) {
        struct store_options create = *opt;
        create.create = true;
        return pg_fresh(&create, clock);
    }
    PGconn *db = pg_connect();
    pg_do(db, "SET LOCAL outbox.change_events = 'on'; "
              "TRUNCATE event, idempotency, consumer, lane, claim, parked, dead, handled, receipt, "
              "passed RESTART IDENTITY");
    PQfinish(db);
    return open_there(opt);
}

/* pg_clean drops the database though clients may be connected to it, but not though one has a
 * transaction open: a case that leaves one behind fails here. */
void pg_clean(void)
{
    PGconn *db = pg_connect();
    pg_do(db, "SET lock_timeout = '20s'; "
              "LOCK TABLE event, idempotency, consumer, lane, claim, parked, dead, handled");
    PQfinish(db);
    on_server("DROP DATABASE %s WITH (FORCE)", database);
}
