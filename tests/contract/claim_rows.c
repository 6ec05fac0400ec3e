/* claim_rows.c: the rigs. */
#include "claim_rows.h"

#ifdef OUTBOX_MARIADB
#include <mysql.h>
#endif

static int rig_new(void **state, bool portable)
{
    struct rig *g = calloc(1, sizeof *g);
    *state = g;
    if (g)
        g->portable = portable;
    return g ? 0 : -1;
}

/* ---- SQLite ---- */

static sqlite3 *open_sqlite(const char *path)
{
    sqlite3 *db;
    assert_int_equal(sqlite3_open_v2(path, &db,
                                     SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_URI,
                                     NULL),
                     0);
    sqlite3_busy_timeout(db, 60000);
    return db;
}

static void path_of(const struct rig *g, const char *suffix, char out[64])
{
    if (*g->dir)
        snprintf(out, 64, "%s/t.db%s", g->dir, suffix);
    else
        snprintf(out, 64, "file:/claim-rows?vfs=memdb");
}

static int rig_file(void **state, bool portable)
{
    char path[64];
    if (rig_new(state, portable) != 0)
        return -1;
    struct rig *g = *state;
    strcpy(g->dir, "/tmp/outbox-XXXXXX");
    if (!mkdtemp(g->dir))
        return -1;
    path_of(g, "", path);
    g->db = open_sqlite(path);
    rig_exec(g, "PRAGMA journal_mode = WAL");
    return 0;
}

int rig_sqlite(void **state)
{
    return rig_file(state, false);
}

int rig_sqlite_portable(void **state)
{
    return rig_file(state, true);
}

int rig_memory(void **state)
{
    char path[64];
    if (rig_new(state, false) != 0)
        return -1;
    struct rig *g = *state;
    path_of(g, "", path);
    g->db = open_sqlite(path);
    return 0;
}

static void remove_files(const struct rig *g)
{
    static const char *const suffixes[] = {"", "-wal", "-shm"};
    char path[64];
    for (size_t i = 0; *g->dir && i < COUNT(suffixes); i++) {
        path_of(g, suffixes[i], path);
        unlink(path);
    }
    if (*g->dir)
        rmdir(g->dir);
}

/* ---- PostgreSQL ---- */

static PGconn *open_postgres(const char *dbname)
{
    /* A lock left behind by a failed test makes the next one fail instead of hanging. */
    static const char options[] = "-c%20lock_timeout%3D30s%20-c%20client_min_messages%3Dwarning";
    char url[512];
    snprintf(url, sizeof url, "%s&dbname=%s&options=%s", getenv("OUTBOX_TEST_PG"), dbname, options);
    PGconn *pg = PQconnectdb(url);
    if (PQstatus(pg) != CONNECTION_OK)
        fail_msg("%s", PQerrorMessage(pg));
    return pg;
}

/* own_database names a database for this process and its children, since tests run side by side. */
static const char *own_database(void)
{
    static char name[64];
    if (!*name)
        snprintf(name, sizeof name, "claim_rows_%d", (int)getpid());
    return name;
}

static void on_server(const char *what, const char *how)
{
    char sql[128];
    struct rig server = {.pg = open_postgres("postgres")};
    snprintf(sql, sizeof sql, "%s %s%s", what, own_database(), how);
    rig_exec(&server, sql);
    PQfinish(server.pg);
}

static int rig_server(void **state, bool portable)
{
    if (rig_new(state, portable) != 0)
        return -1;
    if (!getenv("OUTBOX_TEST_PG"))
        return 0;
    on_server("DROP DATABASE IF EXISTS", " WITH (FORCE)");
    on_server("CREATE DATABASE", "");
    ((struct rig *)*state)->pg = open_postgres(own_database());
    return 0;
}

int rig_postgres(void **state)
{
    return rig_server(state, false);
}

int rig_postgres_portable(void **state)
{
    return rig_server(state, true);
}

/* ---- MariaDB ---- */

#ifdef OUTBOX_MARIADB
static MYSQL *open_mariadb(const char *dbname)
{
    const char *path = strstr(getenv("OUTBOX_TEST_MARIADB"), "socket=") + strlen("socket=");
    MYSQL *my = mysql_init(NULL);
    if (!mysql_real_connect(my, NULL, "root", NULL, dbname, 0, path, 0))
        fail_msg("%s", mysql_error(my));
    mysql_query(my, "SET SESSION sql_mode = 'ANSI_QUOTES', innodb_lock_wait_timeout = 30");
    return my;
}

static int64_t my_number(MYSQL *my, const char *sql)
{
    int64_t number = 0;
    if (mysql_query(my, sql) != 0)
        fail_msg("%s\n%s", sql, mysql_error(my));
    MYSQL_RES *res = mysql_store_result(my);
    MYSQL_ROW row = res ? mysql_fetch_row(res) : NULL;
    if (row && row[0])
        number = strtoll(row[0], NULL, 10);
    mysql_free_result(res);
    return number;
}

static void on_mariadb(const char *what)
{
    char sql[128];
    MYSQL *my = open_mariadb(NULL);
    snprintf(sql, sizeof sql, "%s %s", what, own_database());
    my_number(my, sql);
    mysql_close(my);
}

static int rig_my(void **state, bool portable)
{
    if (rig_new(state, portable) != 0)
        return -1;
    if (!getenv("OUTBOX_TEST_MARIADB"))
        return 0;
    on_mariadb("CREATE DATABASE");
    ((struct rig *)*state)->my = open_mariadb(own_database());
    return 0;
}

static bool my_idle(MYSQL *my)
{
    unsigned status = 0;
    mariadb_get_infov(my, MARIADB_CONNECTION_SERVER_STATUS, &status);
    return (status & SERVER_STATUS_IN_TRANS) == 0;
}
#else
static struct st_mysql *open_mariadb(const char *dbname)
{
    (void)dbname;
    return NULL;
}

static int64_t my_number(struct st_mysql *my, const char *sql)
{
    (void)my;
    (void)sql;
    return 0;
}

static void on_mariadb(const char *what)
{
    (void)what;
}

static int rig_my(void **state, bool portable)
{
    return rig_new(state, portable);
}

static bool my_idle(struct st_mysql *my)
{
    return my == NULL;
}

static void mysql_close(struct st_mysql *my)
{
    (void)my;
}
#endif

int rig_mariadb(void **state)
{
    return rig_my(state, false);
}

int rig_mariadb_portable(void **state)
{
    return rig_my(state, true);
}

/* ---- all ---- */

const char *rig_database(void)
{
    return own_database();
}

const struct rows_dialect *rig_dialect(const struct rig *g)
{
#ifdef OUTBOX_MARIADB
    if (g->my)
        return &rows_mariadb;
#endif
    return g->pg ? &rows_postgres : &rows_sqlite;
}

bool rig_idle(const struct rig *g)
{
    if (g->my)
        return my_idle(g->my);
    if (g->pg)
        return PQtransactionStatus(g->pg) == PQTRANS_IDLE;
    return sqlite3_get_autocommit(g->db) != 0;
}

struct rig rig_again(const struct rig *g)
{
    char path[64];
    struct rig other = {.portable = g->portable};
    memcpy(other.dir, g->dir, sizeof other.dir);
    path_of(g, "", path);
    if (g->my)
        other.my = open_mariadb(own_database());
    else if (g->pg)
        other.pg = open_postgres(own_database());
    else
        other.db = open_sqlite(path);
    return other;
}

void rig_close(struct rig *g)
{
    if (g->my)
        mysql_close(g->my);
    PQfinish(g->pg);
    sqlite3_close(g->db);
}

int rig_end(void **state)
{
    struct rig *g = *state;
    bool server = g->pg != NULL;
    rig_close(g);
    if (g->my)
        on_mariadb("DROP DATABASE");
    if (server)
        on_server("DROP DATABASE", " WITH (FORCE)");
    remove_files(g);
    free(g);
    return 0;
}

static int64_t pg_number(PGconn *pg, const char *sql)
{
    PGresult *res = PQexec(pg, sql);
    ExecStatusType status = PQresultStatus(res);
    if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
        fail_msg("%s\n%s", sql, PQerrorMessage(pg));
    int64_t number = PQntuples(res) > 0 ? strtoll(PQgetvalue(res, 0, 0), NULL, 10) : 0;
    PQclear(res);
    return number;
}

int64_t rig_number(const struct rig *g, const char *sql)
{
    sqlite3_stmt *q;
    if (g->my)
        return my_number(g->my, sql);
    if (g->pg)
        return pg_number(g->pg, sql);
    if (sqlite3_prepare_v2(g->db, sql, -1, &q, NULL) != SQLITE_OK)
        fail_msg("%s\n%s", sql, sqlite3_errmsg(g->db));
    int rc = sqlite3_step(q);
    int64_t number = rc == SQLITE_ROW ? sqlite3_column_int64(q, 0) : 0;
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        fail_msg("%s\n%s", sql, sqlite3_errmsg(g->db));
    sqlite3_finalize(q);
    return number;
}

void rig_exec(const struct rig *g, const char *sql)
{
    if (g->my)
        my_number(g->my, sql);
    else if (g->pg)
        pg_number(g->pg, sql);
    else if (sqlite3_exec(g->db, sql, NULL, NULL, NULL) != 0)
        fail_msg("%s\n%s", sql, sqlite3_errmsg(g->db));
}

struct rig *rig_of(void **state)
{
    struct rig *g = *state;
    if (!g->db && !g->pg && !g->my) {
        print_message("no server: OUTBOX_TEST_PG or OUTBOX_TEST_MARIADB is not set\n");
        skip();
    }
    return g;
}

int rig_jobs(void **state)
{
    struct rig *g = *state;
    if (!g->db && !g->pg && !g->my)
        return 0;
    rig_exec(g, "DROP TABLE IF EXISTS jobs");
    rig_exec(g, "CREATE TABLE jobs (id bigint PRIMARY KEY, status text, owner text, priority int, "
                "attempts int, "
                "ratio float, locked_until bigint CHECK (id <> 4 OR locked_until IS NULL))");
    for (int i = 1; i <= 9; i++) {
        char sql[160];
        snprintf(sql, sizeof sql,
                 "INSERT INTO jobs VALUES (%d, 'open', NULL, %d, NULL, %d.5, NULL)", i, i % 3, i);
        rig_exec(g, sql);
    }
    return 0;
}

int rig_claim(const struct rig *g, outbox_row_claim c, outbox_rows **ret, outbox_error *err)
{
    if (g->portable)
        c.flags |= OUTBOX_CLAIM_PORTABLE;
    if (g->my)
        return outbox_claim_rows_mariadb(g->my, &c, ret, err);
    return g->pg ? outbox_claim_rows_pg(g->pg, &c, ret, err)
                 : outbox_claim_rows_sqlite(g->db, &c, ret, err);
}

outbox_rows *rig_expect(const struct rig *g, outbox_row_claim c, const char *ids)
{
    char got[256] = "";
    size_t n = 0;
    outbox_rows *rows;
    outbox_error err;
    if (rig_claim(g, c, &rows, &err) != 0)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < outbox_rows_count(rows) && n < sizeof got - 8; i++)
        n += (size_t)snprintf(got + n, 8, "%s%.4s", i ? " " : "",
                              outbox_rows_text(rows, i, 0, NULL));
    assert_string_equal(got, ids);
    return rows;
}
