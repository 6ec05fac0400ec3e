/* open.c: handles on an outbox in MariaDB: connecting and reconnecting, the session's settings, the
 * server's clock, and the table of operations. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/url.h"
#include "store/mariadb/mariadb.h"
#include "store_sql.h"

#define CONNECT_SECONDS 10
#define TURN_IDLE_SECONDS 3        /* less than others wait for a lock */
#define CLOCK_EVERY (1000 * MS_NS) /* how long a reading of the server's clock is extrapolated */

/* Settings for our own statements, overriding those of the server and the account. */
static const char settings_sql[] =
    "SET SESSION autocommit = 1, "
    "sql_mode = 'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION', "
    "time_zone = '+00:00', tx_isolation = 'READ-COMMITTED', tx_read_only = 0, "
    "max_statement_time = 0, foreign_key_checks = 1, unique_checks = 1, timestamp = DEFAULT, "
    "sql_select_limit = DEFAULT, sql_safe_updates = 0, "
    "innodb_lock_wait_timeout = %d, wait_timeout = 2147483, idle_transaction_timeout = %d, "
    "max_error_count = 64, in_predicate_conversion_threshold = 0";

static pthread_once_t library_once = PTHREAD_ONCE_INIT;

/* The first mysql_init of a process would do this, but not thread-safely. */
static void start_library(void)
{
    mysql_library_init(0, NULL, NULL);
}

/* ---- options ---- */

static bool is_here(const struct mdb_url *u)
{
    if (!u->host || strcmp(u->host, "localhost") == 0 || strcmp(u->host, "::1") == 0)
        return true;
    struct in_addr a;
    return inet_pton(AF_INET, u->host, &a) == 1 && ntohl(a.s_addr) >> 24 == 127;
}

static void set_tls(MYSQL *db, const struct mdb_url *u)
{
    enum mdb_tls tls = u->tls;
    bool named = u->ca || u->cert || u->key;
    if (tls == MDB_TLS_DEFAULT)
        tls = is_here(u) && !named ? MDB_TLS_OFF : MDB_TLS_VERIFY;
    my_bool on = tls != MDB_TLS_OFF, verify = tls == MDB_TLS_VERIFY;
    if (!on)
        return;
    mysql_ssl_set(db, u->key, u->cert, u->ca, NULL, NULL);
    mysql_optionsv(db, MYSQL_OPT_SSL_ENFORCE, &on);
    mysql_optionsv(db, MYSQL_OPT_SSL_VERIFY_SERVER_CERT, &verify);
}

int64_t mdb_answer_seconds(const struct mdb_store *st)
{
    return (st->url.answer_ms + 999) / 1000;
}

static void set_options(struct mdb_store *st, MYSQL *db)
{
    unsigned answer = (unsigned)mdb_answer_seconds(st);
    unsigned connect = CONNECT_SECONDS;
    if (answer > 0 && answer < connect)
        connect = answer;
    my_bool no = 0;
    unsigned long packet = 1024UL * 1024 * 1024;
    unsigned tcp = MYSQL_PROTOCOL_TCP;

    /* ~/.my.cnf may have a user and a password, for a URL without them. */
    char path[4096];
    const char *home = getenv("HOME");
    snprintf(path, sizeof path, "%s/.my.cnf", home ? home : "");
    if (home && access(path, R_OK) == 0) {
        mysql_optionsv(db, MYSQL_READ_DEFAULT_FILE, path);
        mysql_optionsv(db, MYSQL_READ_DEFAULT_GROUP, "client");
    }
    mysql_optionsv(db, MYSQL_OPT_CONNECT_TIMEOUT, &connect);
    mysql_optionsv(db, MYSQL_OPT_READ_TIMEOUT, &answer);
    mysql_optionsv(db, MYSQL_OPT_WRITE_TIMEOUT, &answer);
    mysql_optionsv(db, MYSQL_OPT_RECONNECT, &no);
    if (st->url.host) /* otherwise localhost would mean a socket */
        mysql_optionsv(db, MYSQL_OPT_PROTOCOL, &tcp);
    mysql_optionsv(db, MYSQL_OPT_MAX_ALLOWED_PACKET, &packet);
    mysql_optionsv(db, MYSQL_SET_CHARSET_NAME, "utf8mb4");
    mysql_optionsv(db, MYSQL_OPT_CONNECT_ATTR_ADD, "program_name", "outbox");
    /* A server must not be able to request files from the client. */
    unsigned local_infile = 0;
    mysql_optionsv(db, MYSQL_OPT_LOCAL_INFILE, &local_infile);
    set_tls(db, &st->url);
}

/* ---- connecting ---- */

/* How long a transaction may idle before the server ends it, so that its locks do not block other
 * sessions forever. A turn never idles, unless its process hangs. */
static int idle_seconds(const struct mdb_store *st)
{
    if (!st->base.lent)
        return TURN_IDLE_SECONDS;
    return (int)((st->idle_ms + 999) / 1000);
}

static int set_up(struct mdb_store *st, MYSQL *db, struct error *err)
{
    char text[sizeof settings_sql + 64];
    int64_t seconds = st->base.opt.busy_ms / 1000;
    snprintf(text, sizeof text, settings_sql, (int)(seconds > 0 ? seconds : 1), idle_seconds(st));
    if (mysql_query(db, text) != 0)
        return mdb_fail(st, db, err);
    if (mysql_set_character_set(db, "utf8mb4") != 0)
        return mdb_fail(st, db, err);
    return 0;
}

static MYSQL *real_connect(struct mdb_store *st, MYSQL *db, struct error *err)
{
    const struct mdb_url *u = &st->url;
    char *password = NULL;
    if (mdb_url_password(u, &password, err) != 0)
        return NULL;
    int64_t since = clock_mono(&clock_system);
    /* Matched rows count as changed, as in other databases. */
    MYSQL *made = mysql_real_connect(db, u->host, u->user, password, u->database, u->port,
                                     u->socket, CLIENT_FOUND_ROWS | CLIENT_MULTI_RESULTS);
    url_password_free(password);
    if (!made)
        mdb_fail_since(st, db, since, err);
    return made;
}

/* Called before any statement: another kind of server would not know our settings. */
static int check_kind(const struct mdb_store *st, MYSQL *db, struct error *err)
{
    const char *why = "";
    if (mariadb_connection(db) && mysql_get_server_version(db) >= 100600)
        return 0;
    if (!mariadb_connection(db))
        why = "; MySQL has neither INSERT ... RETURNING nor CREATE OR REPLACE TRIGGER, and its "
              "collations differ";
    return err_class(err, ERR_CONFIG, CLASS_FATAL, 0,
                     "%s: this server is %.60s; an outbox needs MariaDB 10.6 or later%s",
                     st->base.shown, mysql_get_server_info(db), why);
}

MYSQL *mdb_dial(struct mdb_store *st, struct error *err)
{
    pthread_once(&library_once, start_library);
    MYSQL *db = mysql_init(NULL);
    if (!db) {
        err_nomem(err);
        return NULL;
    }
    set_options(st, db);
    if (!real_connect(st, db, err) || check_kind(st, db, err) != 0 || set_up(st, db, err) != 0) {
        mysql_close(db);
        return NULL;
    }
    return db;
}

/* Refuses a server on which the outbox could not keep its guarantees. */
static int check_server(struct mdb_store *st, struct error *err)
{
    struct db_rows q;
    if (db_row(&st->base.store, &q, err, SQL(server)) != 1)
        return -1;
    bool logs = db_int(&q, 1) != 0 && str_is(db_text(&q, 2), "STATEMENT");
    st->packet_max = db_int(&q, 4);
    bool galera = str_is(db_text(&q, 3), "ON") || str_is(db_text(&q, 3), "1");
    db_done(&q);
    if (galera)
        return err_class(err, ERR_CONFIG, CLASS_FATAL, 0,
                         "%s: this server is a node of a Galera cluster, where numbers do not "
                         "ascend in commit order: an outbox could not keep the events of a key in "
                         "order, and is refused",
                         st->base.shown);
    if (logs)
        return err_class(err, ERR_CONFIG, CLASS_RETRY, 0,
                         "%s: this server logs statements (binlog_format=STATEMENT), which does "
                         "not allow writes at READ COMMITTED: set binlog_format to ROW or MIXED",
                         st->base.shown);
    return 0;
}

int mdb_hurry(struct mdb_store *st, bool hurry, struct error *err)
{
    char text[80];
    if (mdb_connect(st, err) != 0)
        return -1;
    if (st->base.lent || st->unhurried != hurry)
        return 0;
    snprintf(text, sizeof text, "SET SESSION idle_transaction_timeout = %d",
             hurry ? idle_seconds(st) : 0);
    if (mdb_exec(&st->base.store, text, err) != 0)
        return -1;
    st->unhurried = !hurry;
    return 0;
}

int mdb_connect(struct mdb_store *st, struct error *err)
{
    bool stale = st->db && st->dirty && !st->base.in_tx;
    if (st->db && !stale)
        return 0;
    if (stale) { /* handlers have used the session: reset it */
        if (set_up(st, st->db, err) != 0) {
            mdb_disconnect(st);
            return -1;
        }
        st->dirty = false;
        st->unhurried = false;
        return 0;
    }

    st->db = mdb_dial(st, err);
    if (!st->db)
        return -1;
    st->dirty = false;
    st->moved = false;
    st->unhurried = false;
    st->grouped = false;
    st->clock.mono = 0;
    if (check_server(st, err) != 0) {
        mdb_disconnect(st);
        return -1;
    }
    return 0;
}

void mdb_disconnect(struct mdb_store *st)
{
    if (st->db)
        mysql_close(st->db);
    st->db = NULL;
    mdb_prepared_release(&st->insert);
    mdb_prepared_release(&st->insert_plain);
    mdb_forget_later(st);
}

/* ---- the clock ---- */

bool mdb_by_server(const struct mdb_store *st)
{
    return st->base.opt.clock->wall_ms == clock_system.wall_ms;
}

void mdb_heard(struct store *base, int64_t wall)
{
    struct mdb_store *st = mdb_of(base);
    st->clock.wall = wall;
    st->clock.mono = clock_mono(&clock_system);
}

/* Extrapolates from a recent reading of the server's clock by our monotonic clock, so that a change
 * of this machine's time has no effect. */
int64_t mdb_now(struct store *base)
{
    struct mdb_store *st = mdb_of(base);
    if (st->base.turn_now)
        return st->base.turn_now;
    if (!mdb_by_server(st))
        return clock_wall(st->base.opt.clock);

    int64_t mono = clock_mono(&clock_system), wall = 0;
    bool recent = st->clock.mono && mono - st->clock.mono < CLOCK_EVERY;
    if (!recent && db_value(&st->base.store, NULL, &wall, SQL(clock)) == 0 && wall)
        mdb_heard(base, wall);
    if (!st->clock.mono)
        return clock_wall(&clock_system);
    return st->clock.wall + (clock_mono(&clock_system) - st->clock.mono) / MS_NS;
}

#define STATEMENT_MAX (1 << 28) /* bytes */

static void mdb_close_store(struct store *base)
{
    struct mdb_store *st = mdb_of(base);
    mdb_wakeup_release(st);
    mdb_ahead_release(st);
    mdb_disconnect(st);
    mdb_url_release(&st->url);
    if (st->url_text)
        explicit_bzero(st->url_text, strlen(st->url_text));
    free(st->url_text);
    free(st->base.shown);
    free(st->quoted);
    buf_release(&st->text);
    held_keys_release(base);
    free(st);
}

/* Sets the database's names for messages and for statements. */
static int name_store(struct mdb_store *st, struct error *err)
{
    const char *host = st->url.host ? st->url.host : "";
    struct buf b;
    st->base.schema = st->url.database;
    if (asprintf(&st->base.shown, "mariadb:%s%s%s", host, *host ? "/" : "", st->url.database) < 0)
        st->base.shown = NULL;
    buf_init(&b, 4096);
    mdb_add_name(&b, str_of(st->url.database));
    buf_addc(&b, '.');
    const char *text = buf_cstr(&b);
    st->quoted = text ? strdup(text) : NULL;
    buf_release(&b);
    return st->base.shown && st->quoted ? 0 : err_nomem(err);
}

static int mdb_open(const char *url, const struct store_options *opt, struct store **ret,
                    struct error *err)
{
    struct mdb_store *st = calloc(1, sizeof *st);
    if (!st)
        return err_nomem(err);
    db_store_init(&st->base, &store_mariadb, opt);
    st->looked = -1;
    buf_init(&st->text, STATEMENT_MAX);
    bool any_version = st->base.opt.create || st->base.opt.any_version;
    st->url_text = strdup(url);
    int r = st->url_text ? mdb_url_read(url, &st->url, err) : err_nomem(err);
    if (r == 0)
        r = name_store(st, err);
    if (r == 0)
        r = mdb_connect(st, err);
    if (r == 0 && !any_version)
        r = db_schema_check(&st->base.store, err);
    if (r != 0) {
        mdb_close_store(&st->base.store);
        return -1;
    }
    *ret = &st->base.store;
    return 0;
}

static int mdb_dup(struct store *base, struct store **ret, struct error *err)
{
    const struct mdb_store *from = mdb_of(base);
    return mdb_open(from->url_text, &from->base.opt, ret, err);
}

const struct store_ops store_mariadb = {
    .scheme = "mariadb",
    .synopsis = "mariadb://USER@HOST/DB",
    .caps = STORE_WAKEUP | STORE_SHARED | STORE_FREE | STORE_REMOTE,
    .driver = &mdb_driver,
    DB_STORE_OPS,
    .open = mdb_open,
    .close = mdb_close_store,
    .dup = mdb_dup,
    .init = mdb_init,
    .schema_status = mdb_schema_status,
    .ddl = mdb_ddl,
    .doctor = mdb_doctor,
    .consumer_put = db_consumer_put,
    .poll_new = mdb_poll_new,
    .expose_connection = mdb_expose,
    .tx_state = mdb_tx_state,
    .wake_fd = mdb_wake_fd,
    .wake_clear = mdb_wake_clear,
    .grant = mdb_grant,
};

struct st_mysql *mdb_handle(struct store *base)
{
    if (base->ops != &store_mariadb)
        return NULL;
    struct mdb_store *st = mdb_of(base);
    if (st->grouped && mdb_group(st, false, NULL) != 0)
        return NULL;
    return st->db;
}
