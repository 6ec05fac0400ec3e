/* home.c: is the file at our path still the one we have open? A backup that is moved onto the path,
 * a folder that is swapped, a file that is deleted: SQLite goes on with the file that nobody else
 * can see any more. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "sqlite_sql.h"
#include "store/sqlite/sqlite.h"

#define PATH_SIZE 4200
#define LOCKS_MAX 32 /* processes looked at */
#define SECOND 1000000000LL
/* The time of a change is kept in ticks of the kernel's, 10 ms at most, or in seconds, or two of
 * them. */
#define FINE (SECOND / 10)
#define COARSE (3 * SECOND)

/* ---- who else has a file open ---- */

/* add_lockers goes through /proc/locks once. */
static void add_lockers(FILE *f, const struct stat *file, pid_t out[LOCKS_MAX], size_t *n)
{
    unsigned long long ino;
    unsigned major_of, minor_of;
    long pid;
    char line[256];
    while (*n < LOCKS_MAX && fgets(line, sizeof line, f)) {
        /* NOLINTNEXTLINE(cert-err34-c): the kernel writes numbers that fit. */
        if (sscanf(line, "%*d: %*s %*s %*s %ld %x:%x:%llu", &pid, &major_of, &minor_of, &ino) != 4)
            continue;
        bool same = ino == file->st_ino && major_of == major(file->st_dev) &&
                    minor_of == minor(file->st_dev);
        if (same && pid > 0 && pid != getpid())
            out[(*n)++] = (pid_t)pid;
    }
}

/* lockers lists the processes that hold a lock on a file: by /proc/locks, because a descriptor of
 * our own would take our locks with it when it is closed. While others lock and unlock a pass may
 * miss a line, so there are some; where the list is not to be had it is empty. */
static size_t lockers(const struct stat *file, pid_t out[LOCKS_MAX])
{
    size_t n = 0;
    for (int pass = 0; pass < 4 && n == 0; pass++) {
        FILE *f = fopen("/proc/locks", "re");
        if (!f)
            return 0;
        add_lockers(f, file, out, &n);
        fclose(f);
    }
    return n;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev;
}

/* lacks says whether a process surely does not have a file open. */
static bool lacks(pid_t pid, const struct stat *file)
{
    char path[64];
    struct stat s;
    const struct dirent *e;
    bool lacks_it = true;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    if (!dir)
        return false;
    while (lacks_it && (e = readdir(dir)))
        if (fstatat(dirfd(dir), e->d_name, &s, 0) == 0 && same_file(&s, file))
            lacks_it = false;
    closedir(dir);
    return lacks_it;
}

/* beside names a file that SQLite keeps beside the database: "-wal", "-shm". */
static bool beside(const char *db, const char *suffix, char out[PATH_SIZE])
{
    int n = snprintf(out, PATH_SIZE, "%s%s", db, suffix);
    return n > 0 && n < PATH_SIZE;
}

/* former_user gives a process that uses the log beside this database without having the database
 * open: it has the one that was there before, and would mix the two up. 0: there is none. */
static pid_t former_user(const char *db)
{
    char shm[PATH_SIZE];
    struct stat file, index;
    pid_t pid[LOCKS_MAX];
    if (!beside(db, "-shm", shm) || stat(shm, &index) != 0 || stat(db, &file) != 0)
        return 0;
    size_t n = lockers(&index, pid);
    for (size_t i = 0; i < n; i++)
        if (lacks(pid[i], &file))
            return pid[i];
    return 0;
}

int sqlite_home_paired(struct sqlite_store *st, struct error *err)
{
    static const struct timespec little = {0, 10000000};
    const char *db = sqlite3_db_filename(st->db, "main");
    pid_t pid = 0;
    if (st->memory || !db)
        return 0;
    for (int64_t waited = 0; waited <= st->opt.busy_ms; waited += 10) {
        pid = former_user(db);
        if (pid == 0)
            return 0;
        nanosleep(&little, NULL); /* a relay notices at once, and makes way */
    }
    return err_fate(err, ERR_UNAVAILABLE, FATE_RETRY, SQLITE_CANTOPEN,
                    "%s: process %d still uses the file that was here before, and its write-ahead "
                    "log is in the way; end "
                    "that process, delete %s-wal and %s-shm, and try again",
                    st->shown, (int)pid, st->shown, st->shown);
}

/* ---- where we are ---- */

/* find_folder notes the folder that the database and its log are in. Behind a link they are in
 * another one, and the link can be changed: then each is looked for by itself. */
static void find_folder(struct sqlite_store *st)
{
    struct stat s;
    const char *slash = strrchr(st->path, '/');
    bool link = lstat(st->path, &s) != 0 || S_ISLNK(s.st_mode);
    if (st->home.folder || link || !slash)
        return;
    char *folder = strdup(st->path);
    if (!folder)
        return; /* then each file is looked at */
    folder[slash - st->path + 1] = '\0';
    st->home.folder = folder;
}

void sqlite_home_settle(struct sqlite_store *st)
{
    struct stat s;
    char wal[PATH_SIZE];
    const char *db = sqlite3_db_filename(st->db, "main");
    if (st->memory)
        return;
    if (st->home.pin < 0) {
        /* closing such a one releases no lock */
        st->home.pin = fd_above_stdio(open(st->path, O_PATH | O_CLOEXEC));
        if (st->home.pin >= 0 && fstat(st->home.pin, &s) == 0) {
            st->home.dev = s.st_dev;
            st->home.ino = s.st_ino;
        }
        find_folder(st);
    }
    /* We have read from it, so these are open, and stay the same for as long as we are
     * connected. */
    if (!db || st->home.log)
        return;
    if (beside(db, "-wal", wal) && stat(wal, &s) == 0)
        st->home.log = s.st_ino;
    if (beside(db, "-shm", wal) && stat(wal, &s) == 0)
        st->home.index = s.st_ino;
}

void sqlite_home_leave(struct sqlite_store *st)
{
    if (st->home.pin >= 0)
        close(st->home.pin);
    st->home.pin = -1;
    free(st->home.folder);
    st->home.folder = NULL;
    st->home.quiet.ino = 0;
    st->home.noisy = 0;
}

static bool file_at_home(const struct sqlite_store *st)
{
    struct stat s;
    return stat(st->path, &s) == 0 && s.st_ino == st->home.ino && s.st_dev == st->home.dev;
}

/* log_at_home: nobody deletes the log of a database that is in use, or its index, but people and
 * their scripts. Whoever opens the database then begins new ones, and neither side sees any more
 * what the other commits. */
static bool log_at_home(const struct sqlite_store *st)
{
    char path[PATH_SIZE];
    struct stat s;
    const char *db = sqlite3_db_filename(st->db, "main");
    if (!st->home.log || !st->home.index || !db)
        return true;
    if (!beside(db, "-wal", path) || stat(path, &s) != 0 || s.st_ino != st->home.log)
        return false;
    return beside(db, "-shm", path) && stat(path, &s) == 0 && s.st_ino == st->home.index;
}

static int64_t in_ns(const struct timespec *t)
{
    return (int64_t)t->tv_sec * SECOND + t->tv_nsec;
}

/* file_clock is the one that file systems take the time of a change from. */
static int64_t file_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    return in_ns(&now);
}

/* folder_look: whether the folder could be looked at, and as what. */
static bool folder_look(const struct sqlite_store *st, struct sqlite_folder *ret)
{
    struct stat s;
    if (!st->home.folder || stat(st->home.folder, &s) != 0)
        return false;
    *ret = (struct sqlite_folder){s.st_dev, s.st_ino, in_ns(&s.st_ctim)};
    return true;
}

/* folder_unchanged: whatever is made, deleted or renamed in a folder changes its time, which nobody
 * can set back. So if it has the time that it had when all our files were there, they still are. */
static bool folder_unchanged(const struct sqlite_home *h, const struct sqlite_folder *now)
{
    return h->quiet.ino && now->ino == h->quiet.ino && now->dev == h->quiet.dev &&
           now->changed == h->quiet.changed;
}

/* folder_note: the files were all there after the folder was looked at. It is relied on only if its
 * last change lies so far back that the next one will have another time. */
static void folder_note(struct sqlite_home *h, const struct sqlite_folder *folder, int64_t now)
{
    int64_t tick = folder->changed % SECOND != 0 ? FINE : COARSE;
    h->quiet.ino = 0;
    h->noisy = folder->changed + tick;
    if (h->noisy <= now)
        h->quiet = *folder;
}

/* at_home is what every transaction pays for: one system call for as long as nothing changes in the
 * folder, otherwise three, and now and then four. The folder is looked at before the files: what
 * changes in between is seen the next time. */
static bool at_home(struct sqlite_store *st)
{
    struct sqlite_home *h = &st->home;
    struct sqlite_folder folder;
    if (st->memory || h->pin < 0)
        return true;

    int64_t now = file_clock();
    bool wait = now < h->noisy && h->noisy <= now + COARSE;
    bool seen = !wait && folder_look(st, &folder);
    if (seen && folder_unchanged(h, &folder))
        return true;

    bool here = file_at_home(st) && log_at_home(st);
    bool all_known = h->log && h->index;
    if (here && all_known && seen)
        folder_note(h, &folder, now);
    else
        h->quiet.ino = 0;
    return here;
}

static bool reading(const struct sqlite_store *st)
{
    for (size_t i = 0; i < st->n_cached; i++)
        if (sqlite3_stmt_busy(st->cached[i].stmt))
            return true;
    return false;
}

/* ---- moving ---- */

static int say_gone(const struct sqlite_store *st, int why, struct error *err)
{
    if (why == ENOENT || why == ENOTDIR)
        return err_fate(err, ERR_UNAVAILABLE, FATE_RETRY, why,
                        "%s: the file was deleted or moved away, and nothing is there now; put the "
                        "outbox back: until then "
                        "nothing is emitted or delivered",
                        st->shown);
    err_errno(err, ERR_UNAVAILABLE, why, "%s: cannot be looked at", st->shown);
    if (err)
        err->fate = FATE_RETRY;
    return -1;
}

/* log_is_former: the log beside the path is that of the file we have open, which is at this path no
 * more. */
static bool log_is_former(const struct sqlite_store *st, const char *db, char wal[PATH_SIZE])
{
    struct stat log, file;
    if (!st->home.log || !beside(db, "-wal", wal) || stat(wal, &log) != 0)
        return false;
    bool ours = log.st_ino == st->home.log && log.st_dev == st->home.dev;
    bool at_its_place = stat(db, &file) == 0 && file.st_ino == st->home.ino &&
                        file.st_dev == st->home.dev;
    return ours && !at_its_place;
}

/* clear_log takes the former file's log out of the new one's way: SQLite would take it for its own,
 * and mix the two. If the former file has another name now, it gets what is in the log first. */
static int clear_log(struct sqlite_store *st, struct error *err)
{
    char wal[PATH_SIZE], shm[PATH_SIZE];
    struct stat former, now;
    pid_t pid[LOCKS_MAX];
    const char *db = sqlite3_db_filename(st->db, "main");
    if (!db || !log_is_former(st, db, wal) || !beside(db, "-shm", shm))
        return 0;

    if (stat(db, &now) == 0 && lockers(&now, pid) > 0)
        return err_fate(err, ERR_UNAVAILABLE, FATE_RETRY, 0,
                        "%s was replaced, and process %d has taken the write-ahead log of the "
                        "former file for that of the "
                        "new one: stop what uses it, restore it again, and delete %s-wal and "
                        "%s-shm before anything starts",
                        st->shown, (int)pid[0], st->shown, st->shown);
    bool kept = fstat(st->home.pin, &former) == 0 && former.st_nlink > 0;
    if (kept && sqlite3_wal_checkpoint_v2(st->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL) !=
                    SQLITE_OK)
        return err_fate(err, ERR_UNAVAILABLE, FATE_RETRY, sqlite3_extended_errcode(st->db),
                        "%s was replaced, and another process is at work in the former file, whose "
                        "write-ahead log is in "
                        "the way: end that process",
                        st->shown);
    unlink(shm);
    unlink(wal);
    return 0;
}

/* log_gone: the log was deleted under us. Connections of this process share its index, so none can
 * be made anew beside the others: the process has to end. If nobody has begun a new log yet, what
 * is in ours gets into the file first; otherwise not a byte more is written, also not when we
 * close. */
static int log_gone(struct sqlite_store *st, struct error *err)
{
    char path[PATH_SIZE];
    const char *db = sqlite3_db_filename(st->db, "main");
    bool begun = !db || !beside(db, "-wal", path) || access(path, F_OK) == 0;
    begun = begun || !beside(db, "-shm", path) || access(path, F_OK) == 0;
    bool saved = !begun && sqlite3_wal_checkpoint_v2(st->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL,
                                                     NULL) == SQLITE_OK;
    if (!saved)
        sqlite3_db_config(st->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    return err_fate(err, ERR_UNAVAILABLE, FATE_FATAL, 0,
                    "%s: its write-ahead log (%s-wal) or the log's index (-shm) was deleted while "
                    "in use; %s; start this process anew",
                    st->shown, st->shown,
                    saved ? "all that was committed is in the file"
                          : "what was committed to the deleted log only may be lost: look at the "
                            "file with PRAGMA integrity_check");
}

/* go_over connects to what is at the path now. The former connection stays as it is if that
 * fails. */
static int go_over(struct sqlite_store *st, struct error *err)
{
    struct sqlite_store former = *st;
    st->db = NULL;
    st->n_cached = 0;
    st->home = (struct sqlite_home){.pin = -1};
    st->bell = -1;
    if (sqlite_connect(st, err) != 0) {
        sqlite_disconnect(st);
        *st = former;
        if (err && err->fate != FATE_RETRY)
            err->fate = FATE_RETRY; /* what is right may come yet */
        return err_prefix(err, "the file was replaced");
    }
    sqlite_disconnect(&former);
    st->pull.at = 0;
    st->epoch_seen = 0;
    st->synced = false;
    return 0;
}

/* register_again: a copy from before the consumer was registered. A relay that is started anew
 * would do the same. */
static int register_again(struct sqlite_store *st, struct error *err)
{
    int64_t there = 0;
    if (!st->spec.name)
        return 0;
    if (sqlite_value(st, err, &there, SQL(is_registered, .consumer = st->spec.name)) != 0)
        return -1;
    struct consumer_spec spec = st->spec;
    spec.how = PUT_START;
    return there ? 0 : sqlite_consumer_put(&st->base, &spec, NULL, err);
}

static int move(struct sqlite_store *st, struct error *err)
{
    struct stat s;
    char before[SQLITE_IDENTITY];
    memcpy(before, st->identity, sizeof before);
    if (stat(st->path, &s) != 0)
        return say_gone(st, errno, err);
    if (file_at_home(st))
        return log_gone(st, err);
    if (clear_log(st, err) != 0 || go_over(st, err) != 0 || register_again(st, err) != 0)
        return -1;
    bool same = strcmp(before, st->identity) == 0;
    return err_fate(err, ERR_UNAVAILABLE, FATE_RETRY, 0,
                    "%s was replaced by %s: connected to the file that is there now; what was "
                    "claimed or begun in the former "
                    "one is dropped, and may come again",
                    st->shown, same ? "a copy of the same outbox" : "another outbox");
}

int sqlite_home_check(struct sqlite_store *st, struct error *err)
{
    if (st->home.moving || st->in_tx || at_home(st) || reading(st))
        return 0;
    st->home.moving = true;
    int r = move(st, err);
    st->home.moving = false;
    return r;
}

int sqlite_home_adopt(struct sqlite_store *st, struct error *err)
{
    if (!st->home.unknown)
        return 0;
    st->home.moving = true;
    int r = register_again(st, err);
    st->home.moving = false;
    if (r == 0)
        st->home.unknown = false;
    return r;
}
