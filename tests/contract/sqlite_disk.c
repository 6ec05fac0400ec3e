/* sqlite_disk.c: claimed events are on disk before they are delivered. */
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lite.h"
#include "sqlite_tests.h"

/* The files that SQLite has synced since a test set n to 0. SQLite calls the functions below
 * instead of the C library's. */
static struct {
    ino_t ino[64];
    size_t n;
} synced;

static void note_sync(int fd)
{
    struct stat s;
    if (fstat(fd, &s) == 0 && synced.n < COUNT(synced.ino))
        synced.ino[synced.n++] = s.st_ino;
}

__attribute__((visibility("default"))) int fdatasync(int fd)
{
    note_sync(fd);
    return (int)syscall(SYS_fdatasync, fd);
}

__attribute__((visibility("default"))) int fsync(int fd)
{
    note_sync(fd);
    return (int)syscall(SYS_fsync, fd);
}

static bool was_synced(const char *name)
{
    char path[LITE_PATH];
    struct stat s;
    lite_path(path, name);
    assert_int_equal(stat(path, &s), 0);
    for (size_t i = 0; i < synced.n; i++)
        if (synced.ino[i] == s.st_ino)
            return true;
    return false;
}

static void claimed_events_are_on_disk_under_any_synchronous_mode(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    sqlite3 *db = lite_connect();
    lite_do(db, "PRAGMA synchronous = OFF");
    for (int i = 0; i < 3; i++) {
        synced.n = 0;
        lite_do(db, "INSERT INTO outbox_event (type) VALUES ('a')");
        assert_int_equal(synced.n, 0); /* the producer's commit is not on the disk yet */
        assert_string_equal(lite_taken(g, NULL), "a");
        assert_true(was_synced("t.db-wal"));
        assert_true(settle(g, "c", NULL, 0));

        /* The producer copies the log into the database without syncing that. The next
         * writer restarts the log. */
        lite_do(db, "INSERT INTO outbox_event (type) VALUES ('b')");
        synced.n = 0;
        lite_do(db, "PRAGMA wal_checkpoint(RESTART)");
        if (i == 1)
            lite_do(db, "INSERT INTO outbox_event (type) VALUES ('c')");
        assert_int_equal(synced.n, 0);
        assert_string_equal(lite_taken(g, NULL), i == 1 ? "b c" : "b");
        assert_true(was_synced("t.db-wal"));
        assert_true(was_synced("t.db"));
        assert_true(settle(g, "c", NULL, 0));
    }
    synced.n = 0;
    lite_do(db, "INSERT INTO outbox_event (type) VALUES ('d')");
    assert_string_equal(lite_taken(g, NULL), "d");
    assert_true(was_synced("t.db-wal"));
    assert_false(was_synced("t.db")); /* without a checkpoint, one sync for a claim is enough */
    sqlite3_close(db);
}

static void claimed_events_are_also_on_disk_without_wal(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    put(g->st, "c");
    sqlite3 *db = lite_connect();
    static const char *const modes[] = {"DELETE", "TRUNCATE", "PERSIST", "MEMORY", "OFF"};
    for (size_t i = 0; i < COUNT(modes); i++) {
        char mode[64];
        store_close(g->st);
        snprintf(mode, sizeof mode, "PRAGMA journal_mode = %s; PRAGMA synchronous = OFF", modes[i]);
        /* No other process has the file open, so this takes effect, and lasts in those modes that
         * can. */
        lite_do(db, mode);
        lite_do(db, "INSERT INTO outbox_event (type) VALUES ('a')");
        lite_do(db, "BEGIN; SELECT * FROM outbox_meta"); /* keeps us from correcting the mode */
        char url[LITE_PATH + 8];
        lite_url(url);
        assert_int_equal(store_open(url,
                                    &(struct store_options){.clock = &store_clock, .busy_ms = 50},
                                    &g->st, &err),
                         0);
        lite_do(db, "COMMIT");
        synced.n = 0;
        assert_string_equal(lite_taken(g, NULL), "a");
        assert_true(was_synced("t.db"));
        assert_true(settle(g, "c", NULL, 0));
    }
    sqlite3_close(db);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(claimed_events_are_on_disk_under_any_synchronous_mode),
    ON_A_STORE(claimed_events_are_also_on_disk_without_wal),
};

const struct suite_part sqlite_disk_tests = SUITE_PART(tests);
