/* open.c: connecting to a file or to memory, and the table of operations. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/place.h"
#include "store/sqlite/sqlite.h"

extern const struct store_ops store_sqlite;

#define FILE_MODE 0640 /* mode of a database that we create, less the umask */

/* Makes a connection independent of SQLite's compile-time options and of process-wide settings. */
static const char set_up[] = "PRAGMA synchronous = FULL;"
                             "PRAGMA foreign_keys = OFF;"
                             "PRAGMA recursive_triggers = OFF;"
                             "PRAGMA locking_mode = NORMAL;"
                             "PRAGMA wal_autocheckpoint = 1000;"
                             "PRAGMA query_only = OFF;"
                             "PRAGMA trusted_schema = ON;"
                             "PRAGMA count_changes = OFF";

/* Backs off. The first steps are short enough for a commit on a fast disk: a relay woken by a
 * commit's first write waits here for that commit to finish. */
static int on_busy(void *ctx, int count)
{
    struct sqlite_store *st = ctx;
    static const int64_t step_us[] = {50, 50, 100, 100, 200, 200, 300, 1000};
    static const int64_t sum_us[] = {50, 100, 200, 300, 500, 700, 1000, 2000};
    int last = (int)(sizeof step_us / sizeof *step_us) - 1;
    int i = count < last ? count : last;

    int64_t waited_us = sum_us[i] + (int64_t)(count - i) * step_us[last];
    if (waited_us > st->base.opt.busy_ms * 1000)
        return 0;
    struct timespec ts = {0, step_us[i] * 1000};
    nanosleep(&ts, NULL);
    return 1;
}

int sqlite_script(struct sqlite_store *st, const char *sql, struct error *err)
{
    int rc = sqlite3_exec(st->db, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? 0 : sqlite_fail(st, st->db, rc, err);
}

/* ---- the file ---- */

int sqlite_url_check(const char *url, struct error *err)
{
    static const char *const others[] = {"?tenant=", "?schema="};
    const char *path = url + strlen("sqlite:");
    if (!*path)
        return err_set(err, ERR_CONFIG, "store \"sqlite:\" names no file: write sqlite:PATH");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strstr(path, others[i]))
            return err_set(err, ERR_CONFIG,
                           "store \"%.100s\": %.7s is for PostgreSQL; a SQLite file has neither "
                           "tenants nor schemas: use one file for each",
                           url, others[i] + 1);
    return 0;
}

/* Creates the file before SQLite does, which would make it world-readable and follow any link.
 * SQLite's files beside it (-wal, -shm) inherit its permissions. */
static int make_file(const struct sqlite_store *st, const struct place *at, struct error *err)
{
    struct stat s;
    int fd = openat(at->dir, at->name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                    FILE_MODE);
    if (fd >= 0) {
        close(fd);
        return 0;
    }
    if (errno != EEXIST)
        return 0; /* SQLite will report why */

    bool nowhere = fstatat(at->dir, at->name, &s, 0) != 0 && errno == ENOENT;
    if (!nowhere)
        return 0;
    return err_set(err, ERR_UNAVAILABLE,
                   "%s is a symbolic link to a file that does not exist; name that file itself to "
                   "create an outbox there",
                   st->base.shown);
}

/* Refuses another user's file in a world-writable folder. SQLite reports a missing folder. */
static int check_place(const struct sqlite_store *st, bool create, struct error *err)
{
    static const char *const beside[] = {"", "-wal", "-shm", "-journal"};
    struct place at;
    struct error why;
    if (st->memory)
        return 0;
    if (place_find(st->path, &at, &why) != 0) {
        if (why.native != ELOOP)
            return 0;
        return err_copy(err, &why);
    }

    int r = 0;
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

/* ---- connecting ---- */

static int open_db(struct sqlite_store *st, bool create, struct error *err)
{
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_URI |
                SQLITE_OPEN_PRIVATECACHE;
    if (create)
        flags |= SQLITE_OPEN_CREATE;
    int rc = sqlite3_open_v2(st->path, &st->db, flags, NULL);
    if (rc == SQLITE_OK)
        return 0;

    bool missing = rc == SQLITE_CANTOPEN && !create && access(st->path, F_OK) != 0 &&
                   errno == ENOENT;
    if (missing)
        return err_set(err, ERR_NOTOURS, "%s: no such file; create an outbox with `outbox init`",
                       st->base.shown);
    return sqlite_fail(st, st->db, rc, err);
}

/* Opens the database and sets the connection up; does not check its content. */
static int connect_db(struct sqlite_store *st, bool create, struct error *err)
{
    if (check_place(st, create, err) != 0)
        return -1;
    if (open_db(st, create, err) != 0)
        return -1;
    sqlite3_extended_result_codes(st->db, 1);
    sqlite3_busy_handler(st->db, on_busy, st);

    if (sqlite_file_paired(st, err) != 0)
        return -1;
    if (sqlite_script(st, set_up, err) != 0)
        return -1;
    if (st->base.lent && sqlite_expose(&st->base.store, 0, err) != 0)
        return -1;
    return sqlite_tx_prepare(st, err);
}

int sqlite_connect(struct sqlite_store *st, struct error *err)
{
    bool as_it_is = st->base.opt.create || st->base.opt.any_version;
    if (connect_db(st, false, err) != 0)
        return -1;
    if (!as_it_is) {
        if (db_schema_check(&st->base.store, err) != 0)
            return -1;
        sqlite_script(st, "PRAGMA journal_mode = WAL",
                      NULL); /* fails if the file is read-only for us */
    }
    sqlite_identity_read(st);
    sqlite_file_settle(st);
    return 0;
}

void sqlite_disconnect(struct sqlite_store *st)
{
    for (size_t i = 0; i < st->n_cached; i++)
        sqlite3_finalize(st->cached[i].stmt);
    st->n_cached = 0;
    sqlite3_close_v2(st->db); /* the application may have left a statement on it */
    st->db = NULL;
    if (st->wake >= 0)
        close(st->wake);
    st->wake = -1;
    sqlite_file_leave(st);
}

/* ---- handles ---- */

static struct sqlite_store *store_new(const struct store_options *opt)
{
    struct sqlite_store *st = calloc(1, sizeof *st);
    if (!st)
        return NULL;
    db_store_init(&st->base, &store_sqlite, opt);
    st->base.boot = clock_boot(st->base.opt.clock);
    st->wake = -1;
    st->file.pin = -1;
    return st;
}

static void sqlite_close_store(struct store *base)
{
    struct sqlite_store *st = sqlite_of(base);
    sqlite_disconnect(st);
    sqlite_registrations_forget(st);
    sqlite_window_forget(st);
    held_keys_release(base);
    if (st->family && atomic_fetch_sub(&st->family->handles, 1) == 1)
        free(st->family);
    free(st->path);
    free(st->base.shown);
    free(st);
}

/* Connects st, which joins the family of `from`, or starts one if that is NULL. */
static int join(struct sqlite_store *st, const struct sqlite_store *from, struct error *err)
{
    st->family = from ? from->family : calloc(1, sizeof *st->family);
    if (!st->family)
        return err_nomem(err);
    atomic_fetch_add(&st->family->handles, 1);
    if (!st->path || !st->base.shown)
        return err_nomem(err);
    if (st->memory)
        st->base.store.caps = STORE_ONE_WRITER;
    if (!st->memory && !st->base.opt.create)
        return sqlite_connect(st, err);

    /* The database may have to be created. In memory, its tables are created at once: no other
     * process could create them. */
    bool created;
    if (connect_db(st, true, err) != 0)
        return -1;
    if (st->memory && sqlite_init(&st->base.store, &created, err) != 0)
        return -1;
    sqlite_identity_read(st);
    sqlite_file_settle(st);
    return 0;
}

/* Connects st and returns it; on failure closes it. */
static int finish_open(struct sqlite_store *st, const struct sqlite_store *from, struct store **ret,
                       struct error *err)
{
    if (join(st, from, err) != 0) {
        sqlite_close_store(&st->base.store);
        return -1;
    }
    *ret = &st->base.store;
    return 0;
}

/* An absolute path leads to the same file after a chdir, and file:x is not taken for a URI. */
static int sqlite_open(const char *url, const struct store_options *opt, struct store **ret,
                       struct error *err)
{
    const char *path = url + strlen("sqlite:");
    if (sqlite_url_check(url, err) != 0)
        return -1;
    struct sqlite_store *st = store_new(opt);
    if (!st)
        return err_nomem(err);

    int n = 0;
    st->memory = strcmp(path, ":memory:") == 0;
    st->base.shown = strdup(path);
    if (st->memory) {
        n = asprintf(&st->path, "file:/outbox-%016llx?vfs=memdb",
                     (unsigned long long)rng_next(&st->base.rng));
    } else if (*path == '/') {
        st->path = strdup(path);
    } else {
        char *here = getcwd(NULL, 0); /* NULL also if the working directory was deleted */
        if (here)
            n = asprintf(&st->path, "%s/%s", here, path);
        free(here);
    }
    if (n < 0)
        st->path = NULL;
    return finish_open(st, NULL, ret, err);
}

static int sqlite_dup(struct store *base, struct store **ret, struct error *err)
{
    struct sqlite_store *from = sqlite_of(base), *st = store_new(&from->base.opt);
    if (!st)
        return err_nomem(err);
    st->memory = from->memory;
    st->path = strdup(from->path);
    st->base.shown = strdup(from->base.shown);
    return finish_open(st, from, ret, err);
}

const struct store_ops store_sqlite = {
    .scheme = "sqlite",
    .synopsis = "sqlite:PATH or sqlite::memory:",
    .caps = STORE_WAKEUP | STORE_SHARED | STORE_ONE_WRITER,
    .driver = &sqlite_driver,
    DB_STORE_OPS,
    .open = sqlite_open,
    .close = sqlite_close_store,
    .dup = sqlite_dup,
    .init = sqlite_init,
    .schema_status = sqlite_schema_status,
    .ddl = sqlite_ddl,
    .doctor = sqlite_doctor,
    .consumer_put = sqlite_consumer_put,
    .consumer_forget = sqlite_consumer_forget,
    .turn_many = db_turn_many,
    .poll_new = sqlite_poll_new,
    .expose_connection = sqlite_expose,
    .tx_state = sqlite_tx_state,
    .wake_fd = sqlite_wake_fd,
    .wake_clear = sqlite_wake_clear,
};

struct sqlite3 *sqlite_handle(struct store *st)
{
    return st->ops == &store_sqlite ? sqlite_of(st)->db : NULL;
}
