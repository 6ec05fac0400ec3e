/* open.c: connecting, the tables, transactions, and the bell. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/place.h"
#include "store/sqlite/handle.h"
#include "store/sqlite/sqlite.h"

extern const struct store_ops store_sqlite;
extern const char *const sqlite_schema[];

#define FILE_MODE 0640            /* of a database that we make, less the umask */
#define INIT_TELL (10000 * MS_NS) /* how often init says that it waits */

/* on_busy waits a little longer each time, first in steps short enough for a commit on a fast disk:
 * a relay that was woken by a commit's first write waits here for that commit to finish. */
static int on_busy(void *ctx, int count)
{
    struct sqlite_store *st = ctx;
    static const int64_t step_us[] = {50, 50, 100, 100, 200, 200, 300, 1000};
    static const int64_t sum_us[] = {50, 100, 200, 300, 500, 700, 1000, 2000};
    int last = (int)(sizeof step_us / sizeof *step_us) - 1;
    int i = count < last ? count : last;
    if (sum_us[i] + (int64_t)(count - i) * step_us[last] > st->opt.busy_ms * 1000)
        return 0;
    struct timespec ts = {0, step_us[i] * 1000};
    nanosleep(&ts, NULL);
    return 1;
}

static int simple(struct sqlite_store *st, const char *sql, struct error *err)
{
    int rc = sqlite3_exec(st->db, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? 0 : sqlite_fail(st, st->db, rc, err);
}

/* read_version reads the schema version: 0 when there is no outbox in the database. */
static int read_version(struct sqlite_store *st, int64_t *ret, struct error *err)
{
    int64_t tables = 0, meta = 0;
    *ret = 0;
    if (sqlite_number(st, err, &tables,
                      "SELECT count(*) FROM sqlite_master WHERE name = 'outbox_event'", "") != 0)
        return -1;
    if (sqlite_number(st, err, &meta,
                      "SELECT count(*) FROM sqlite_master WHERE name = 'outbox_meta'", "") != 0)
        return -1;
    if (tables && !meta)
        return err_set(err, ERR_NOTOURS,
                       "%s: has a table outbox_event that is not ours (no outbox_meta beside it); "
                       "use another file",
                       st->shown);
    if (!meta)
        return 0;
    return sqlite_number(
        st, err, ret,
        "SELECT CAST(value AS INTEGER) FROM outbox_meta WHERE name = 'schema_version'", "");
}

/* version_of is read_version that refuses one from a newer program. */
static int version_of(struct sqlite_store *st, int64_t *ret, struct error *err)
{
    if (read_version(st, ret, err) != 0)
        return -1;
    if (*ret > SQLITE_SCHEMA_VERSION)
        return err_set(err, ERR_NEWER,
                       "%s: the outbox in it has version %lld, this program knows up to %d; use a "
                       "newer outbox",
                       st->shown, (long long)*ret, SQLITE_SCHEMA_VERSION);
    return 0;
}

static int sqlite_schema_status(struct store *base, struct schema_status *ret, struct error *err)
{
    int64_t there;
    if (read_version(sqlite_of(base), &there, err) != 0)
        return -1;
    *ret = (struct schema_status){.there = there, .known = SQLITE_SCHEMA_VERSION};
    return 0;
}

/* drop_made appends a DROP for each thing of a kind that the migrations make; whatever they renamed
 * or dropped again is not there. */
static void drop_made(const char *kind, struct buf *to)
{
    static const char unless[] = "IF NOT EXISTS ";
    char mark[32];
    int n_mark = snprintf(mark, sizeof mark, "\nCREATE %s ", kind);
    for (int i = 0; i < SQLITE_SCHEMA_VERSION; i++)
        for (const char *p = sqlite_schema[i]; (p = strstr(p, mark));) {
            p += n_mark;
            if (strncmp(p, unless, strlen(unless)) == 0)
                p += strlen(unless);
            buf_addf(to, "DROP %s IF EXISTS %.*s;\n", kind, (int)strcspn(p, " (\n"), p);
        }
}

/* names_file also refuses what is a parameter of PostgreSQL's URLs: taken for part of the file's
 * name, a tenant would be set apart from nobody. */
static int names_file(const char *url, struct error *err)
{
    static const char *const others[] = {"?tenant=", "?schema="};
    const char *path = url + strlen("sqlite:");
    if (!*path)
        return err_set(err, ERR_CONFIG, "store \"sqlite:\" names no file: write sqlite:PATH");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strstr(path, others[i]))
            return err_set(err, ERR_CONFIG,
                           "store \"%.100s\": %.7s is for PostgreSQL; a SQLite file has neither "
                           "tenants nor schemas: "
                           "take a file for each",
                           url, others[i] + 1);
    return 0;
}

static int sqlite_ddl(const struct ddl_request *req, struct error *err)
{
    if (req->url && names_file(req->url, err) != 0)
        return -1;
    for (int i = 0; i < SQLITE_SCHEMA_VERSION; i++)
        buf_adds(req->up, sqlite_schema[i]);
    drop_made("VIEW", req->down);
    drop_made("TABLE", req->down);
    return req->up->failed || req->down->failed ? err_nomem(err) : 0;
}

static int check_version(struct sqlite_store *st, struct error *err)
{
    int64_t version;
    if (version_of(st, &version, err) != 0)
        return -1;
    if (version == 0)
        return err_set(err, ERR_NOTOURS,
                       "%s: no outbox in this database; make one with `outbox init`", st->shown);
    if (version < SQLITE_SCHEMA_VERSION)
        return err_set(
            err, ERR_NOTOURS,
            "%s: the outbox in it has the older version %lld; upgrade it with `outbox init`",
            st->shown, (long long)version);
    return 0;
}

static const char begin_sql[] = "BEGIN IMMEDIATE", commit_sql[] = "COMMIT",
                  rollback_sql[] = "ROLLBACK";

/* prepare_tx: with these at hand, getting out of a transaction needs no memory. */
static int prepare_tx(struct sqlite_store *st, struct error *err)
{
    return sqlite_query(st, err, begin_sql, "") && sqlite_query(st, err, commit_sql, "") &&
                   sqlite_query(st, err, rollback_sql, "")
               ? 0
               : -1;
}

/* set_up: nothing depends on how SQLite was compiled, nor on what the process has set for all its
 * connections. */
static const char set_up[] = "PRAGMA synchronous = FULL; PRAGMA foreign_keys = OFF; PRAGMA "
                             "recursive_triggers = OFF; PRAGMA locking_mode = NORMAL; "
                             "PRAGMA wal_autocheckpoint = 1000; PRAGMA query_only = OFF; PRAGMA "
                             "trusted_schema = ON; PRAGMA count_changes = OFF";

/* make_file: SQLite would make a file that everybody can read, and follow a link to where it goes.
 * What it keeps beside the file (-wal, -shm) gets the permissions of the file. */
static int make_file(const struct sqlite_store *st, const struct place *at, struct error *err)
{
    struct stat s;
    int fd = openat(at->dir, at->name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                    FILE_MODE);
    if (fd >= 0)
        close(fd);
    bool nowhere = fd < 0 && errno == EEXIST && fstatat(at->dir, at->name, &s, 0) != 0 &&
                   errno == ENOENT;
    if (!nowhere)
        return 0;
    return err_set(err, ERR_UNAVAILABLE,
                   "%s is a symbolic link to a file that is not there; name that file itself to "
                   "make an outbox there",
                   st->shown);
}

/* look_at_place refuses a file that somebody else has put where everybody can put one. Where there
 * is no folder SQLite says so. */
static int look_at_place(const struct sqlite_store *st, bool create, struct error *err)
{
    static const char *const beside[] = {"", "-wal", "-shm", "-journal"};
    struct place at;
    struct error why;
    int r = 0;
    if (st->memory)
        return 0;
    if (place_find(st->path, &at, &why) != 0) {
        if (why.native != ELOOP)
            return 0;
        if (err)
            *err = why;
        return -1;
    }
    for (size_t i = 0; i < sizeof beside / sizeof *beside && r == 0; i++) {
        char name[NAME_MAX + 16];
        snprintf(name, sizeof name, "%.*s%s", NAME_MAX, at.name, beside[i]);
        r = place_look(&at, name, err);
    }
    if (r == 0 && create)
        r = make_file(st, &at, err);
    place_release(&at);
    return r;
}

static int connect_db(struct sqlite_store *st, bool create, struct error *err)
{
    if (look_at_place(st, create, err) != 0)
        return -1;
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_URI |
                SQLITE_OPEN_PRIVATECACHE;
    if (create)
        flags |= SQLITE_OPEN_CREATE;
    int rc = sqlite3_open_v2(st->path, &st->db, flags, NULL);
    if (rc == SQLITE_CANTOPEN && !create && access(st->path, F_OK) != 0 && errno == ENOENT)
        return err_set(err, ERR_NOTOURS,
                       "%s: no such file; make an outbox there with `outbox init`", st->shown);
    if (rc != SQLITE_OK)
        return sqlite_fail(st, st->db, rc, err);
    sqlite3_extended_result_codes(st->db, 1);
    sqlite3_busy_handler(st->db, on_busy, st);
    if (sqlite_home_paired(st, err) != 0)
        return -1;
    if (simple(st, set_up, err) != 0)
        return -1;
    if (st->lent && sqlite_lend(&st->base, 0, err) != 0)
        return -1;
    return prepare_tx(st, err);
}

/* read_identity: an outbox of another version may have none. */
static void read_identity(struct sqlite_store *st)
{
    sqlite3_stmt *q;
    st->identity[0] = '\0';
    if (sqlite3_prepare_v2(st->db, "SELECT value FROM outbox_meta WHERE name = 'identity'", -1, &q,
                           NULL) != SQLITE_OK)
        return;
    if (sqlite3_step(q) == SQLITE_ROW)
        snprintf(st->identity, sizeof st->identity, "%s", sqlite3_column_text(q, 0));
    sqlite3_finalize(q);
}

int sqlite_connect(struct sqlite_store *st, struct error *err)
{
    if (connect_db(st, false, err) != 0)
        return -1;
    if (!st->opt.create && !st->opt.any_version) {
        if (check_version(st, err) != 0)
            return -1;
        simple(st, "PRAGMA journal_mode = WAL", NULL); /* a file we may not write stays as it is */
    }
    read_identity(st);
    sqlite_home_settle(st);
    return 0;
}

void sqlite_disconnect(struct sqlite_store *st)
{
    for (size_t i = 0; i < st->n_cached; i++)
        sqlite3_finalize(st->cached[i].stmt);
    st->n_cached = 0;
    sqlite3_close_v2(st->db); /* also if the host left a statement of its own on it */
    st->db = NULL;
    if (st->bell >= 0)
        close(st->bell);
    st->bell = -1;
    sqlite_home_leave(st);
}

static struct sqlite_store *store_new(const struct store_options *opt)
{
    struct sqlite_store *st = calloc(1, sizeof *st);
    if (!st)
        return NULL;
    st->base.ops = &store_sqlite;
    st->bell = -1;
    st->home.pin = -1;
    st->opt = *opt;
    if (!st->opt.clock)
        st->opt.clock = &clock_system;
    if (!st->opt.busy_ms)
        st->opt.busy_ms = 5000;
    if (!st->opt.payload_max)
        st->opt.payload_max = EVENT_PAYLOAD_MAX;
    rng_seed_os(&st->rng);
    return st;
}

static void sqlite_close_store(struct store *base)
{
    struct sqlite_store *st = sqlite_of(base);
    sqlite_disconnect(st);
    sqlite_spec_forget(st);
    free(st->path);
    free(st->shown);
    free(st);
}

/* check_encoding: in a database of UTF-16 the table's own checks would not mean what they say. */
static int check_encoding(struct sqlite_store *st, struct error *err)
{
    sqlite3_stmt *q = sqlite_query(st, err, "PRAGMA encoding", "");
    if (!q || sqlite_step(st, q, err) < 0)
        return -1;
    bool utf8 = str_is(sqlite_text(q, 0), "UTF-8");
    sqlite3_reset(q);
    if (utf8)
        return 0;
    return err_set(err, ERR_CONFIG,
                   "%s: the texts in this database are UTF-16, and an outbox needs UTF-8; that is "
                   "chosen when a database is "
                   "made (PRAGMA encoding): copy it into one that has UTF-8, or use another file",
                   st->shown);
}

/* theirs lists the triggers and indexes that the application has made on our table of events: a
 * migration that makes the table anew would take them away. */
static int theirs(struct sqlite_store *st, struct buf *ret, struct error *err)
{
    int r;
    sqlite3_stmt *q = sqlite_query(st, err,
                                   "SELECT sql FROM sqlite_master WHERE tbl_name = 'outbox_event' "
                                   "AND type IN ('trigger', 'index') AND sql <> '' AND "
                                   "name NOT IN ('outbox_event_idempotency')", /* ours */
                                   "");
    if (!q)
        return -1;
    while ((r = sqlite_step(st, q, err)) == 1)
        buf_addf(ret, "%s;\n", (const char *)sqlite3_column_text(q, 0));
    return r;
}

/* bring_up runs what is missing, inside a transaction. */
static int bring_up(struct sqlite_store *st, int64_t version, struct error *err)
{
    struct buf kept;
    buf_init(&kept, 16 << 20);
    int bad = theirs(st, &kept, err);
    for (; !bad && version < SQLITE_SCHEMA_VERSION; version++)
        bad = simple(st, sqlite_schema[version], err);
    if (!bad && kept.n) {
        struct buf made;
        buf_init(&made, 16 << 20);
        bad = theirs(st, &made, err);
        if (!bad && made.n == 0)
            bad = buf_cstr(&kept) ? simple(st, kept.p, err) : err_nomem(err);
        if (bad)
            err_prefix(err, "a trigger or index on outbox_event that is not ours: drop it, and "
                            "make it anew afterwards");
        buf_release(&made);
    }
    buf_release(&kept);
    return bad;
}

static int init_once(struct store *base, bool *ret_created, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    int64_t version;
    if (version_of(st, &version, err) != 0)
        return -1;
    *ret_created = version < SQLITE_SCHEMA_VERSION;
    if (!*ret_created) {
        read_identity(st);
        return 0;
    }
    if (version == 0 && check_encoding(st, err) != 0)
        return -1;
    if (!st->memory && simple(st, "PRAGMA journal_mode = WAL", err) != 0)
        return -1;
    if (sqlite_begin(base, err) != 0)
        return -1;
    /* again: another process may have been first */
    if (version_of(st, &version, err) != 0)
        goto fail;
    *ret_created = version < SQLITE_SCHEMA_VERSION;
    if (bring_up(st, version, err) != 0)
        goto fail;
    if (sqlite_commit(base, err) != 0)
        return -1;
    read_identity(st);
    return 0;
fail:
    sqlite_rollback(base);
    return -1;
}

/* sqlite_init goes on for opt.lock_ms, if that was given, where others write all the time: a switch
 * to WAL is not waited for like other locks. */
static int sqlite_init(struct store *base, bool *ret_created, struct error *err)
{
    const struct store_options *opt = &sqlite_of(base)->opt;
    int64_t began = clock_mono(&clock_system), told = 0;
    for (;;) {
        struct error why;
        if (init_once(base, ret_created, &why) == 0)
            return 0;
        int64_t now = clock_mono(&clock_system);
        if (why.code != ERR_BUSY || now - began >= opt->lock_ms * MS_NS) {
            if (err)
                *err = why;
            return -1;
        }
        if (opt->progress && now - told >= INIT_TELL) {
            opt->progress(
                opt->progress_ctx,
                "the database is written to all the time; nothing is changed yet, trying again");
            told = now;
        }
        nanosleep(&(struct timespec){.tv_nsec = 20 * MS_NS}, NULL);
    }
}

/* finish_open takes st in every case. */
static int finish_open(struct sqlite_store *st, struct store **ret, struct error *err)
{
    bool created;
    if (!st->path || !st->shown) {
        err_nomem(err);
        goto fail;
    }
    st->base.caps = st->memory ? STORE_ONE_WRITER : store_sqlite.caps;
    if (st->memory || st->opt.create) {
        if (connect_db(st, true, err) != 0)
            goto fail;
        if (st->memory && sqlite_init(&st->base, &created, err) != 0)
            goto fail;
        read_identity(st);
        sqlite_home_settle(st);
    } else if (sqlite_connect(st, err) != 0) {
        goto fail;
    }
    *ret = &st->base;
    return 0;
fail:
    sqlite_close_store(&st->base);
    return -1;
}

/* absolute: where a relative path leads now, it shall lead later. The caller frees it; NULL: no
 * memory, or no such folder. */
static char *absolute(const char *path)
{
    if (*path == '/')
        return strdup(path);
    char *here = getcwd(NULL, 0), *out = NULL;
    if (here && asprintf(&out, "%s/%s", here, path) < 0)
        out = NULL;
    free(here);
    return out;
}

static int sqlite_open(const char *url, const struct store_options *opt, struct store **ret,
                       struct error *err)
{
    const char *path = url + strlen("sqlite:");
    if (names_file(url, err) != 0)
        return -1;
    struct sqlite_store *st = store_new(opt);
    if (!st)
        return err_nomem(err);
    st->memory = strcmp(path, ":memory:") == 0;
    st->shown = strdup(path);
    if (st->memory) {
        char name[64];
        snprintf(name, sizeof name, "file:/outbox-%016llx?vfs=memdb",
                 (unsigned long long)rng_next(&st->rng));
        st->path = strdup(name);
    } else {
        /* also what keeps a name like file:x from being taken for a URI */
        st->path = absolute(path);
    }
    return finish_open(st, ret, err);
}

static int sqlite_dup(struct store *base, struct store **ret, struct error *err)
{
    struct sqlite_store *from = sqlite_of(base), *st = store_new(&from->opt);
    if (!st)
        return err_nomem(err);
    st->memory = from->memory;
    st->path = strdup(from->path);
    st->shown = strdup(from->shown);
    return finish_open(st, ret, err);
}

int sqlite_unstick(struct sqlite_store *st, struct error *err)
{
    if (!st->stuck)
        return 0;
    int rc = sqlite3_get_autocommit(st->db) ? SQLITE_OK
                                            : sqlite3_exec(st->db, rollback_sql, NULL, NULL, NULL);
    if (rc != SQLITE_OK)
        return sqlite_fail(st, st->db, rc, err);
    st->stuck = false;
    return 0;
}

int sqlite_tx_gone(struct sqlite_store *st, struct error *err)
{
    if (sqlite_unstick(st, err) != 0)
        return -1;
    if (!st->in_tx || !sqlite3_get_autocommit(st->db))
        return 0;
    return err_set(
        err, ERR_MISUSE,
        "an earlier failure made the database roll this transaction back: begin it again");
}

int sqlite_begin(struct store *base, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    if (st->in_tx)
        return err_set(err, ERR_MISUSE, "a transaction is open already");
    if (sqlite_exec(st, err, begin_sql, "") != 0)
        return -1;
    st->in_tx = true;
    st->began = clock_wall(st->opt.clock);
    return 0;
}

int sqlite_commit(struct store *base, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    if (!st->in_tx)
        return err_set(err, ERR_MISUSE, "no transaction is open");
    st->committing = true;
    int bad = sqlite_tx_gone(st, err) != 0 || sqlite_exec(st, err, commit_sql, "") != 0;
    st->committing = false;
    if (bad) {
        sqlite_rollback(base);
        return -1;
    }
    st->in_tx = false;
    return sqlite_home_check(st, err); /* what is in a file that is gone was not committed */
}

void sqlite_rollback(struct store *base)
{
    struct sqlite_store *st = sqlite_of(base);
    for (size_t i = 0; i < st->n_cached; i++)
        sqlite3_reset(st->cached[i].stmt);
    if (!sqlite3_get_autocommit(st->db))
        sqlite_exec(st, NULL, rollback_sql, "");
    st->stuck = !sqlite3_get_autocommit(st->db);
    st->in_tx = false;
}

/* watch_place rings when the file is deleted, or another takes its name, or its folder's. */
static void watch_place(const struct sqlite_store *st, const char *db)
{
    char folder[4096];
    struct stat s;
    inotify_add_watch(st->bell, db, IN_ATTRIB | IN_MOVE_SELF);
    snprintf(folder, sizeof folder, "%s", st->path);
    char *slash = strrchr(folder, '/');
    if (!slash)
        return;
    slash[slash == folder] = '\0';
    bool link = lstat(st->path, &s) == 0 && S_ISLNK(s.st_mode);
    uint32_t changes = link ? IN_MOVED_TO | IN_CREATE : 0;
    inotify_add_watch(st->bell, folder, IN_MOVE_SELF | IN_DELETE_SELF | IN_ONLYDIR | changes);
}

/* sqlite_bell_fd watches the write-ahead log. A write to it comes before the commit is visible, so
 * whoever is woken must look under the write lock, which the committer holds until it is done: turn
 * does. */
static int sqlite_bell_fd(struct store *base)
{
    struct sqlite_store *st = sqlite_of(base);
    if (st->memory)
        return -1;
    if (st->bell >= 0)
        return st->bell;
    int64_t ignored = 0; /* a first read makes the file; while we are connected nobody deletes it */
    sqlite_number(st, NULL, &ignored, "SELECT 1 FROM outbox_meta LIMIT 1", "");
    char wal[4096];
    int n = snprintf(wal, sizeof wal, "%s-wal", sqlite3_db_filename(st->db, "main"));
    st->bell = fd_above_stdio(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
    if (st->bell < 0)
        return -1;
    /* IN_ATTRIB: it was deleted, and we have it open. */
    if (n < 0 || (size_t)n >= sizeof wal ||
        inotify_add_watch(st->bell, wal, IN_MODIFY | IN_ATTRIB) < 0) {
        close(st->bell);
        st->bell = -1;
        return -1;
    }
    memcpy(wal + n - 3, "shm", 3);
    inotify_add_watch(st->bell, wal, IN_ATTRIB);
    watch_place(st, sqlite3_db_filename(st->db, "main"));
    sqlite_home_settle(st);
    return st->bell;
}

static void sqlite_bell_clear(struct store *base)
{
    struct sqlite_store *st = sqlite_of(base);
    char events[4096];
    if (st->bell < 0)
        return;
    while (read(st->bell, events, sizeof events) > 0)
        continue;
}

const struct store_ops store_sqlite = {
    .scheme = "sqlite",
    .synopsis = "sqlite:PATH or sqlite::memory:",
    .caps = STORE_DOORBELL | STORE_SHARED | STORE_ONE_WRITER,
    .open = sqlite_open,
    .close = sqlite_close_store,
    .dup = sqlite_dup,
    .init = sqlite_init,
    .schema_status = sqlite_schema_status,
    .ddl = sqlite_ddl,
    .doctor = sqlite_doctor,
    .begin = sqlite_begin,
    .commit = sqlite_commit,
    .rollback = sqlite_rollback,
    .emit = sqlite_emit,
    .consumer_put = sqlite_consumer_put,
    .consumer_list = sqlite_consumer_list,
    .consumer_history = sqlite_consumer_history,
    .consumer_gauge = sqlite_consumer_gauge,
    .consumer_specs = sqlite_consumer_specs,
    .consumer_pause = sqlite_consumer_pause,
    .consumer_remove = sqlite_consumer_remove,
    .consumer_report = sqlite_consumer_report,
    .turn = sqlite_turn,
    .extend = sqlite_extend,
    .lend = sqlite_lend,
    .savepoint = sqlite_savepoint,
    .tx_state = sqlite_tx_state,
    .settle = sqlite_settle_here,
    .handled = sqlite_handled,
    .handled_put = sqlite_handled_put,
    .bell_fd = sqlite_bell_fd,
    .bell_clear = sqlite_bell_clear,
    .handle_once = sqlite_handle_once,
    .info = sqlite_info,
    .events = sqlite_events,
    .dead = sqlite_dead,
    .dead_retry = sqlite_dead_retry,
    .retry_now = sqlite_retry_now,
    .dead_drop = sqlite_dead_drop,
    .trim = sqlite_trim,
    .marks = sqlite_marks,
    .adopt = sqlite_adopt,
};

struct sqlite3 *sqlite_handle(struct store *st)
{
    return st->ops == &store_sqlite ? sqlite_of(st)->db : NULL;
}
