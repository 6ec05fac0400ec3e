/* file_identity.c: is the file at our path still the one we have open? When a backup is moved onto
 * the path, a folder is swapped or the file is deleted, SQLite continues with a file that no other
 * process can see. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "store/sqlite/sqlite.h"
#include "store_sql.h"

static void registration_free(struct sqlite_registration *m)
{
    arena_release(&m->a);
    free(m);
}

static struct sqlite_registration *registration_new(const struct consumer_spec *c)
{
    struct sqlite_registration *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->spec = *c;
    m->spec.by = NULL;
    const char **text[] = {&m->spec.name, &m->spec.events, &m->spec.where, &m->spec.retry};
    bool whole = true;
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        *text[i] = arena_bytes(&m->a, *text[i], strlen(*text[i]));
        whole = whole && *text[i];
    }
    if (whole)
        return m;
    registration_free(m);
    return NULL;
}

struct sqlite_registration *sqlite_registration(struct store *st, const char *name)
{
    struct sqlite_registration *m = sqlite_of(st)->registrations;
    while (m && strcmp(m->spec.name, name) != 0)
        m = m->next;
    return m;
}

void sqlite_registrations_moved(struct sqlite_store *st)
{
    for (struct sqlite_registration *m = st->registrations; m; m = m->next)
        m->epoch_seen = 0;
    sqlite_window_forget(st); /* it was read from the former file, as were the keys */
    held_keys_release(&st->base.store);
}

void sqlite_consumer_forget(struct store *base, const char *name)
{
    struct sqlite_store *st = sqlite_of(base);
    struct sqlite_registration **at = &st->registrations;
    while (*at && strcmp((*at)->spec.name, name) != 0)
        at = &(*at)->next;
    struct sqlite_registration *m = *at;
    if (!m)
        return;
    *at = m->next;
    atomic_fetch_sub(&st->family->registrations, 1);
    registration_free(m);
}

void sqlite_registrations_forget(struct sqlite_store *st)
{
    while (st->registrations)
        sqlite_consumer_forget(&st->base.store, st->registrations->spec.name);
}

/* Remembers the registration, because the next file at this path may not have the consumer. If
 * memory runs out, the consumer is not remembered, and not registered again. */
int sqlite_consumer_put(struct store *base, const struct consumer_spec *c, bool *ret_created,
                        struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    if (db_consumer_put(base, c, ret_created, err) != 0)
        return -1;
    if (st->file.moving)
        return 0; /* remembered already */
    struct sqlite_registration *m = registration_new(c);
    sqlite_consumer_forget(base, c->name);
    if (!m)
        return 0;
    m->next = st->registrations;
    st->registrations = m;
    atomic_fetch_add(&st->family->registrations, 1);
    return 0;
}

#define PATH_SIZE 4200
#define LOCKS_MAX 32 /* processes examined at most */
#define SECOND 1000000000LL
/* File systems keep change times in kernel ticks of at most 10 ms, in seconds, or in steps of two
 * seconds. */
#define FINE (SECOND / 10)
#define COARSE (3 * SECOND)

static const char *db_file(const struct sqlite_store *st)
{
    return sqlite3_db_filename(st->db, "main");
}

/* The path of a file that SQLite keeps beside the database: "-wal" or "-shm". */
static bool beside(const char *db, const char *suffix, char out[PATH_SIZE])
{
    int n = snprintf(out, PATH_SIZE, "%s%s", db, suffix);
    return n > 0 && n < PATH_SIZE;
}

/* Stats such a file; false if it does not exist. */
static bool look_beside(const char *db, const char *suffix, struct stat *ret)
{
    char path[PATH_SIZE];
    return beside(db, suffix, path) && stat(path, ret) == 0;
}

/* ---- other processes that have a file open ---- */

/* Reads the process that holds a lock on the file from a line of /proc/locks; 0: the line is for
 * another file, or our own lock. */
static pid_t locker(const char *line, const struct stat *file)
{
    unsigned long long ino;
    unsigned major_of, minor_of;
    long pid;
    /* NOLINTNEXTLINE(cert-err34-c): the kernel writes numbers that fit. */
    if (sscanf(line, "%*d: %*s %*s %*s %ld %x:%x:%llu", &pid, &major_of, &minor_of, &ino) != 4)
        return 0;
    bool same = ino == file->st_ino && makedev(major_of, minor_of) == file->st_dev;
    bool other_process = pid > 0 && pid != getpid();
    if (!same || !other_process)
        return 0;
    return (pid_t)pid;
}

/* Lists the processes that hold a lock on a file. It reads /proc/locks, because opening and closing
 * the file would release our own locks. A pass may miss a line while locks change, so there are
 * several; if /proc/locks cannot be read, the list is empty. */
static size_t lockers(const struct stat *file, pid_t out[LOCKS_MAX])
{
    size_t n = 0;
    for (int pass = 0; pass < 4 && n == 0; pass++) {
        char line[256];
        FILE *f = fopen("/proc/locks", "re");
        if (!f)
            return 0;
        while (n < LOCKS_MAX && fgets(line, sizeof line, f)) {
            pid_t pid = locker(line, file);
            if (pid)
                out[n++] = pid;
        }
        fclose(f);
    }
    return n;
}

/* Returns whether a process certainly does not have a file open. */
static bool lacks(pid_t pid, const struct stat *file)
{
    char path[64];
    struct stat s;
    const struct dirent *e;
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    if (!dir)
        return false;
    while (!found && (e = readdir(dir))) {
        bool exists = fstatat(dirfd(dir), e->d_name, &s, 0) == 0;
        found = exists && s.st_ino == file->st_ino && s.st_dev == file->st_dev;
    }
    closedir(dir);
    return !found;
}

/* Returns a process that uses the log beside this database but does not have the database open: it
 * has the previous file open, and would mix the two up. 0: no such process. */
static pid_t former_user(const char *db)
{
    struct stat file, index;
    pid_t pid[LOCKS_MAX];
    if (!look_beside(db, "-shm", &index))
        return 0;
    if (stat(db, &file) != 0)
        return 0;
    size_t n = lockers(&index, pid);
    for (size_t i = 0; i < n; i++)
        if (lacks(pid[i], &file))
            return pid[i];
    return 0;
}

int sqlite_file_paired(struct sqlite_store *st, struct error *err)
{
    static const struct timespec little = {0, 10000000};
    const char *db = db_file(st);
    pid_t pid = 0;
    if (st->memory || !db)
        return 0;
    for (int64_t waited = 0; waited <= st->base.opt.busy_ms; waited += 10) {
        pid = former_user(db);
        if (pid == 0)
            return 0;
        nanosleep(&little, NULL); /* a relay notices at once, and closes the former file */
    }
    return err_class(
        err, ERR_UNAVAILABLE, CLASS_RETRY, SQLITE_CANTOPEN,
        "%s: process %d still uses the previous file at this path, whose write-ahead log is in "
        "the way; end that process, delete %s-wal and %s-shm, and try again",
        st->base.shown, (int)pid, st->base.shown, st->base.shown);
}

/* ---- which file we have open ---- */

void sqlite_file_settle(struct sqlite_store *st)
{
    const char *db = db_file(st);
    struct stat s;
    if (st->memory)
        return;

    /* The descriptor pins the database file. Closing one with O_PATH releases no lock. */
    if (st->file.pin < 0) {
        st->file.pin = fd_above_stdio(open(st->path, O_PATH | O_CLOEXEC));
        if (st->file.pin >= 0 && fstat(st->file.pin, &s) == 0) {
            st->file.dev = s.st_dev;
            st->file.ino = s.st_ino;
        }
        /* The folder holds the database and its log. If the path is a symbolic link, they are in
         * another folder, and the link can be changed: then each file is checked separately, as it
         * is when memory runs out. */
        const char *slash = strrchr(st->path, '/');
        bool link = lstat(st->path, &s) != 0 || S_ISLNK(s.st_mode);
        if (!st->file.folder && !link && slash)
            st->file.folder = strndup(st->path, (size_t)(slash - st->path) + 1);
    }

    /* We have read, so the log and its index are open, and stay open while we are connected. */
    if (db && !st->file.log) {
        if (look_beside(db, "-wal", &s))
            st->file.log = s.st_ino;
        if (look_beside(db, "-shm", &s))
            st->file.index = s.st_ino;
    }
}

void sqlite_file_leave(struct sqlite_store *st)
{
    if (st->file.pin >= 0)
        close(st->file.pin);
    st->file.pin = -1;
    free(st->file.folder);
    st->file.folder = NULL;
    st->file.quiet.ino = 0;
    st->file.noisy = 0;
}

/* ---- whether the file is still at the path ---- */

/* Returns whether our database is at a path. */
static bool is_our_file(const struct sqlite_store *st, const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && s.st_ino == st->file.ino && s.st_dev == st->file.dev;
}

/* Returns whether the log and its index are still ours. Only people and their scripts delete those
 * of a database in use. The next process to open the database then creates new ones, and neither
 * side sees what the other commits. */
static bool log_at_home(const struct sqlite_store *st)
{
    struct stat s;
    const char *db = db_file(st);
    if (!st->file.log || !st->file.index || !db)
        return true;
    if (!look_beside(db, "-wal", &s) || s.st_ino != st->file.log)
        return false;
    return look_beside(db, "-shm", &s) && s.st_ino == st->file.index;
}

static int64_t in_ns(const struct timespec *t)
{
    return (int64_t)t->tv_sec * SECOND + t->tv_nsec;
}

/* Every transaction pays for this: one system call as long as nothing changes in the folder,
 * otherwise three, and sometimes four. The folder is checked before the files, so a change in
 * between is seen the next time. */
static bool at_home(struct sqlite_store *st)
{
    struct sqlite_file *h = &st->file;
    struct sqlite_folder folder = {0};
    struct timespec coarse;
    struct stat s;
    if (st->memory || h->pin < 0)
        return true;

    /* Creating, deleting or renaming a file changes the folder's ctime, which cannot be set back.
     * So if it is the same as when all our files were seen there, they still are. */
    clock_gettime(CLOCK_REALTIME_COARSE, &coarse); /* which file systems use for change times */
    int64_t now = in_ns(&coarse);
    bool wait = now < h->noisy && h->noisy <= now + COARSE;
    bool seen = !wait && h->folder && stat(h->folder, &s) == 0;
    if (seen)
        folder = (struct sqlite_folder){s.st_dev, s.st_ino, in_ns(&s.st_ctim)};
    bool same = seen && folder.ino == h->quiet.ino && folder.dev == h->quiet.dev;
    if (same && h->quiet.ino && folder.changed == h->quiet.changed)
        return true;

    /* The folder's time is relied on only once the next change would have a different one. */
    bool here = is_our_file(st, st->path) && log_at_home(st);
    bool all_known = h->log && h->index;
    h->quiet.ino = 0;
    if (here && all_known && seen) {
        bool fine = folder.changed % SECOND != 0;
        h->noisy = folder.changed + (fine ? FINE : COARSE);
        if (h->noisy <= now)
            h->quiet = folder;
    }
    return here;
}

/* ---- moving ---- */

static bool checkpoint(struct sqlite_store *st)
{
    return sqlite3_wal_checkpoint_v2(st->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL) ==
           SQLITE_OK;
}

/* Removes the log of the former file, the one we have open, if that log is still beside the path:
 * SQLite would use it for the new file, and mix the two. */
static int clear_log(struct sqlite_store *st, struct error *err)
{
    char wal[PATH_SIZE], shm[PATH_SIZE];
    struct stat log, now, former;
    pid_t pid[LOCKS_MAX];
    const char *db = db_file(st);
    if (!db || !st->file.log || !look_beside(db, "-wal", &log))
        return 0;
    bool log_is_ours = log.st_ino == st->file.log && log.st_dev == st->file.dev;
    if (!log_is_ours || is_our_file(st, db))
        return 0;
    if (!beside(db, "-wal", wal) || !beside(db, "-shm", shm))
        return 0;

    if (stat(db, &now) == 0 && lockers(&now, pid) > 0)
        return err_class(
            err, ERR_UNAVAILABLE, CLASS_RETRY, 0,
            "%s was replaced, and process %d has opened the new file with the write-ahead log of "
            "the former one: stop the processes that use the file, restore it again, and delete "
            "%s-wal and %s-shm before anything starts",
            st->base.shown, (int)pid[0], st->base.shown, st->base.shown);

    /* The log is checkpointed into the former file, if that still has a name. */
    bool kept = fstat(st->file.pin, &former) == 0 && former.st_nlink > 0;
    if (kept && !checkpoint(st))
        return err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, sqlite3_extended_errcode(st->db),
                         "%s was replaced, and another process still uses the former file, whose "
                         "write-ahead log is in the way: end that process",
                         st->base.shown);
    unlink(shm);
    unlink(wal);
    return 0;
}

/* Returns whether a file beside the database exists, or may exist. */
static bool may_exist(const char *db, const char *suffix)
{
    char path[PATH_SIZE];
    return !db || !beside(db, suffix, path) || access(path, F_OK) == 0;
}

/* Handles a log that was deleted while in use. Connections of this process share its index, so no
 * new connection can be made while the others exist: the process has to be restarted. If no new log
 * exists yet, ours is first copied into the file; otherwise nothing more is written, not even on
 * close. */
static int log_gone(struct sqlite_store *st, struct error *err)
{
    static const char saved_text[] = "everything committed is in the file";
    static const char lost_text[] =
        "commits that were only in the deleted log may be lost: check the file with PRAGMA "
        "integrity_check";
    const char *db = db_file(st);
    bool begun = may_exist(db, "-wal") || may_exist(db, "-shm");
    bool saved = !begun && checkpoint(st);
    if (!saved)
        sqlite3_db_config(st->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    return err_class(err, ERR_UNAVAILABLE, CLASS_FATAL, 0,
                     "%s: its write-ahead log (%s-wal) or the log's index (-shm) was deleted while "
                     "in use; %s; restart this process",
                     st->base.shown, st->base.shown, saved ? saved_text : lost_text);
}

/* Connects to the file that is at the path now. If that fails, the former connection stays. */
static int go_over(struct sqlite_store *st, struct error *err)
{
    struct sqlite_store former = *st;
    st->db = NULL;
    st->n_cached = 0;
    st->file = (struct sqlite_file){.pin = -1};
    st->wake = -1;
    if (sqlite_connect(st, err) != 0) {
        sqlite_disconnect(st);
        *st = former;
        if (err)
            err->retry_class = CLASS_RETRY; /* the right file may still be put there */
        return err_prefix(err, "the file was replaced");
    }
    sqlite_disconnect(&former);
    st->base.repair.at = 0;
    sqlite_registrations_moved(st);
    st->watch.known = false;
    st->synced = false;
    return 0;
}

/* Registers our consumers in an older copy, as a restarted relay would. */
static int register_again(struct sqlite_store *st, struct error *err)
{
    for (const struct sqlite_registration *m = st->registrations; m; m = m->next) {
        struct consumer_spec spec = m->spec;
        int64_t there = 0;
        spec.how = PUT_START;
        if (db_value(&st->base.store, err, &there, SQL(is_registered, .consumer = spec.name)) != 0)
            return -1;
        if (!there && sqlite_consumer_put(&st->base.store, &spec, NULL, err) != 0)
            return -1;
    }
    return 0;
}

/* Switches to the file that is at the path now, and always fails. */
static int move(struct sqlite_store *st, struct error *err)
{
    struct stat s;
    char before[SQLITE_IDENTITY];
    memcpy(before, st->identity, sizeof before);
    if (stat(st->path, &s) != 0 && (errno == ENOENT || errno == ENOTDIR))
        return err_class(
            err, ERR_UNAVAILABLE, CLASS_RETRY, errno,
            "%s: the file was deleted or moved away; put the outbox back: until then, nothing can "
            "be emitted or delivered",
            st->base.shown);
    if (stat(st->path, &s) != 0)
        return err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, errno, "%s: could not be examined: %s",
                         st->base.shown, strerror(errno));
    if (is_our_file(st, st->path))
        return log_gone(st, err);

    if (clear_log(st, err) != 0)
        return -1;
    if (go_over(st, err) != 0)
        return -1;
    if (register_again(st, err) != 0)
        return -1;
    bool same = strcmp(before, st->identity) == 0;
    return err_class(
        err, ERR_UNAVAILABLE, CLASS_RETRY, 0,
        "%s was replaced by %s: connected to the new file; claims and transactions of the former "
        "one are dropped, and their events may be delivered again",
        st->base.shown, same ? "a copy of the same outbox" : "another outbox");
}

/* Handles of this process switch one after the other: while one removes the former file's log,
 * another must not yet have created the new file's log under the same name. */
static pthread_mutex_t one_moves = PTHREAD_MUTEX_INITIALIZER;

int sqlite_file_check(struct sqlite_store *st, struct error *err)
{
    if (st->file.moving || st->base.in_tx)
        return 0;
    if (at_home(st))
        return 0;
    /* A statement that is being stepped would lose its connection. */
    for (size_t i = 0; i < st->n_cached; i++)
        if (sqlite3_stmt_busy(st->cached[i].stmt))
            return 0;
    st->file.moving = true;
    pthread_mutex_lock(&one_moves);
    int r = move(st, err);
    pthread_mutex_unlock(&one_moves);
    st->file.moving = false;
    return r;
}

int sqlite_file_adopt(struct sqlite_store *st, struct error *err)
{
    if (!st->file.unknown)
        return 0;
    st->file.moving = true;
    int r = register_again(st, err);
    st->file.moving = false;
    if (r == 0)
        st->file.unknown = false;
    return r;
}
