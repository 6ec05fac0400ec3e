/* watch.c: polling for new events on behalf of many consumers. One poll determines which of them
 * want the events of a commit; only those take a turn.
 *
 * A wake-up arrives before the commit is visible, so a poll takes the write lock, which the
 * committer holds until it is done. seq is commit order: everything past the last seq of the
 * previous poll is new. A commit without an event may be anything, such as a resumed consumer or a
 * retried dead letter, and wakes all consumers, except for the relay's own commits. To tell them
 * apart, commits are counted: SQLite counts all of them, at the beginning of the log's index (see
 * "WAL-index file format" in its manual); the family counts its quiet ones, those of turns and of
 * handlers' transactions. */
#include <stdio.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/num.h"
#include "store/sqlite/sqlite.h"
#include "store_sql.h"

#define PATH_SIZE 4096

/* minimum ms between waking all consumers because of a doubt, plus ms per consumer */
#define DOUBT_WAIT 250
#define DOUBT_WAIT_EACH 1
#define INDEX_PART 32768 /* bytes: the log's index is mapped in parts of this size */
#define INDEX_COMMITS 2  /* in words of 32 bits: the counter of commits */

/* ---- wake-ups ---- */

/* Watches the log and its index. IN_ATTRIB reports the deletion of a file that we have open. */
static int watch_log(const struct sqlite_store *st, const char *db)
{
    char path[PATH_SIZE];
    int n = snprintf(path, sizeof path, "%s-wal", db);
    bool fits = n >= 0 && (size_t)n < sizeof path;
    if (!fits)
        return -1;
    if (inotify_add_watch(st->wake, path, IN_MODIFY | IN_ATTRIB) < 0)
        return -1;
    memcpy(path + n - 3, "shm", 3);
    inotify_add_watch(st->wake, path, IN_ATTRIB);
    return 0;
}

/* Watches for the file being deleted, or replaced by another file or folder. */
static void watch_place(const struct sqlite_store *st, const char *db)
{
    char folder[PATH_SIZE];
    struct stat s;
    inotify_add_watch(st->wake, db, IN_ATTRIB | IN_MOVE_SELF);

    snprintf(folder, sizeof folder, "%s", st->path);
    char *slash = strrchr(folder, '/');
    if (!slash)
        return;
    slash[slash == folder] = '\0'; /* "/" keeps its slash */

    uint32_t mask = IN_MOVE_SELF | IN_DELETE_SELF | IN_ONLYDIR;
    bool link = lstat(st->path, &s) == 0 && S_ISLNK(s.st_mode);
    if (link)
        mask |= IN_MOVED_TO | IN_CREATE;
    inotify_add_watch(st->wake, folder, mask);
}

/* Watches the write-ahead log. A write to it happens before the commit is visible, so a woken
 * worker must read under the write lock, which the committer holds until it is done. db_turn
 * does. */
int sqlite_wake_fd(struct store *base)
{
    struct sqlite_store *st = sqlite_of(base);
    if (st->memory)
        return -1;
    if (st->wake >= 0)
        return st->wake;

    int64_t ignored =
        0; /* once we have read, SQLite does not delete the log while we are connected */
    db_value(&st->base.store, NULL, &ignored, SQL(touch_log));
    const char *db = sqlite3_db_filename(st->db, "main");
    st->wake = fd_above_stdio(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
    if (st->wake < 0)
        return -1;
    if (watch_log(st, db) != 0) {
        close(st->wake);
        st->wake = -1;
        return -1;
    }
    watch_place(st, db);
    sqlite_file_settle(st);
    return st->wake;
}

void sqlite_wake_clear(struct store *base)
{
    struct sqlite_store *st = sqlite_of(base);
    char events[4096];
    if (st->wake < 0)
        return;
    while (read(st->wake, events, sizeof events) > 0)
        continue;
}

/* ---- polling ---- */

/* Reads the number of commits by all processes. False: unknown, because there is no log. */
static bool count_commits(struct sqlite_store *st, uint32_t *ret)
{
    sqlite3_file *f = NULL;
    void volatile *part = NULL;
    if (sqlite_wake_fd(&st->base.store) < 0)
        return false; /* watches the log */
    int rc = sqlite3_file_control(st->db, "main", SQLITE_FCNTL_FILE_POINTER, &f);
    bool mapped = rc == SQLITE_OK && f && f->pMethods && f->pMethods->iVersion >= 2;
    if (!mapped || f->pMethods->xShmMap(f, 0, INDEX_PART, 0, &part) != SQLITE_OK || !part)
        return false;
    *ret = ((const uint32_t volatile *)part)[INDEX_COMMITS];
    return true;
}

/* Wakes all consumers because of a commit of unknown content, but not every time: with busy
 * producers nearly every poll finds several commits, and a thousand turns take longer than the next
 * commits take to arrive. The time between grows with the number of consumers. */
static void tell_doubt(const struct sqlite_store *st, struct sqlite_watch *now,
                       struct watch_result *ret)
{
    int64_t at = clock_mono(st->base.opt.clock);
    int64_t wait = (int64_t)atomic_load(&st->family->registrations) * DOUBT_WAIT_EACH;
    int64_t due = now->told_at + max_i64(wait, DOUBT_WAIT) * MS_NS;
    bool early = now->told_at > 0 && at < due;
    now->doubt = early;
    if (early) {
        ret->wait_ms = (due - at) / MS_NS + 1;
        return;
    }
    now->told_at = at;
    ret->all = true;
}

/* Polls, under the write lock. */
static int look_here(struct sqlite_store *st, bool payloads, new_event_visit *visit, void *ctx,
                     struct watch_result *ret, struct error *err)
{
    struct sqlite_watch was = st->watch, now = {.seq = was.seq, .told_at = was.told_at};
    struct db_rows q;
    int r = db_row(&st->base.store, &q, err, SQL(identity));
    if (r < 0)
        return -1;
    bool other = r == 0 || !str_is(db_text(&q, 0), st->identity);
    db_done(&q);
    if (other) /* another outbox was restored into the file since the last poll */
        sqlite_identity_read(st);
    now.known = count_commits(st, &now.commits);
    now.quiet_commits = atomic_load(&st->family->quiet_commits);

    bool from_here = !was.known || other;
    if (!from_here &&
        db_new_events(&st->base.store, &now.seq, payloads, visit, ctx, &ret->n, err) != 0)
        return -1;
    bool many = from_here || ret->n > DB_NEW_EVENTS;
    if (many && db_value(&st->base.store, err, &now.seq, SQL(last_event)) != 0)
        return -1;

    /* A single commit with an event is a producer's. Of several commits, one may have unknown
     * content; if there are more commits than events, one certainly has. */
    uint32_t others = (now.commits - was.commits) - (now.quiet_commits - was.quiet_commits);
    ret->all = many || !now.known || others > ret->n;
    bool doubt = was.doubt || others > 1;
    if (doubt && !ret->all)
        tell_doubt(st, &now, ret);
    st->watch = now;
    return 0;
}

int sqlite_poll_new(struct store *base, bool skip_query, bool payloads, new_event_visit *visit,
                    void *ctx, struct watch_result *ret, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    struct watch_result found = {.wait_ms = -1};
    bool wakes = sqlite_wake_fd(base) >= 0;
    if (!wakes)
        found.wait_ms = DB_POLL_UNWOKEN;
    if (skip_query && wakes) {
        found.all = true;
        *ret = found;
        return sqlite_file_check(st, err);
    }

    if (db_begin(base, err) != 0)
        return -1;
    int r = look_here(st, payloads, visit, ctx, &found, err);
    db_rollback(base);
    if (r == 0)
        *ret = found;
    return r;
}
