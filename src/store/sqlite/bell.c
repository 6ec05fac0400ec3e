/* bell.c: being woken when another process has written. */
#include <stdio.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "store/sqlite/sqlite.h"
#include "store_sql.h"

#define PATH_SIZE 4096

/* watch_log watches the write-ahead log and its index. IN_ATTRIB tells that a file we have open was
 * deleted. */
static int watch_log(const struct sqlite_store *st, const char *db)
{
    char path[PATH_SIZE];
    int n = snprintf(path, sizeof path, "%s-wal", db);
    bool fits = n >= 0 && (size_t)n < sizeof path;
    if (!fits)
        return -1;
    if (inotify_add_watch(st->bell, path, IN_MODIFY | IN_ATTRIB) < 0)
        return -1;
    memcpy(path + n - 3, "shm", 3);
    inotify_add_watch(st->bell, path, IN_ATTRIB);
    return 0;
}

/* watch_place rings when the file is deleted, or when another file or folder takes its place. */
static void watch_place(const struct sqlite_store *st, const char *db)
{
    char folder[PATH_SIZE];
    struct stat s;
    inotify_add_watch(st->bell, db, IN_ATTRIB | IN_MOVE_SELF);

    snprintf(folder, sizeof folder, "%s", st->path);
    char *slash = strrchr(folder, '/');
    if (!slash)
        return;
    slash[slash == folder] = '\0'; /* "/" itself keeps its slash */

    uint32_t mask = IN_MOVE_SELF | IN_DELETE_SELF | IN_ONLYDIR;
    bool link = lstat(st->path, &s) == 0 && S_ISLNK(s.st_mode);
    if (link)
        mask |= IN_MOVED_TO | IN_CREATE;
    inotify_add_watch(st->bell, folder, mask);
}

/* sqlite_bell_fd watches the write-ahead log. A write to it comes before the commit is visible, so
 * whoever is woken must look under the write lock, which the committer holds until it is done.
 * sqlite_turn does. */
int sqlite_bell_fd(struct store *base)
{
    struct sqlite_store *st = sqlite_of(base);
    if (st->memory)
        return -1;
    if (st->bell >= 0)
        return st->bell;

    int64_t ignored = 0; /* once we have read, nobody deletes the log while we are connected */
    sqlite_value(st, NULL, &ignored, SQL(touch_log));
    const char *db = sqlite3_db_filename(st->db, "main");
    st->bell = fd_above_stdio(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
    if (st->bell < 0)
        return -1;
    if (watch_log(st, db) != 0) {
        close(st->bell);
        st->bell = -1;
        return -1;
    }
    watch_place(st, db);
    sqlite_home_settle(st);
    return st->bell;
}

void sqlite_bell_clear(struct store *base)
{
    struct sqlite_store *st = sqlite_of(base);
    char events[4096];
    if (st->bell < 0)
        return;
    while (read(st->bell, events, sizeof events) > 0)
        continue;
}
