/* file.c: the sink that appends one line of JSON per event to a file. Several relays may write to
 * the same file, and log rotation may move it at any time. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/place.h"
#include "sink/kinds.h"
#include "sink/line_queue.h"

#define TRIES_MAX 8
#define MODE 0640 /* of a file that we create, unless file-mode is set */
/* A relay holds the lock for less than this while appending; whoever holds it longer is another
 * program. */
#define LOCK_WAIT_NS (INT64_C(1000) * MS_NS)
#define LOCK_PAUSE_MIN_NS (1 * MS_NS)
#define LOCK_PAUSE_MAX_NS (20 * MS_NS)

/* The wait for a lock that another process holds. */
struct lock_wait {
    int64_t since; /* 0: not waiting */
    int64_t again; /* time of the next try */
    int64_t pause; /* pause before that try */
};

/* (1) fd < 0: not open. (2) `size` is the file's size after our last append; -1: unknown. */
struct file {
    struct sink base;
    struct line_queue lines;
    const char *path;
    int fd;
    bool regular; /* a regular file, not a device: a device cannot be truncated or synced */
    off_t size;
    struct lock_wait lock;
    char caution[400];
};

static int failed(const struct file *f, const char *what, struct error *err)
{
    return err_errno(err, ERR_UNAVAILABLE, errno, "could not %s %s", what, f->path);
}

/* ---- opening the file ---- */

/* Returns whether lines can be appended to the file. */
static bool is_usable(const struct stat *st)
{
    return S_ISREG(st->st_mode) || S_ISCHR(st->st_mode);
}

static void drop_fd(struct file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    f->fd = -1;
    f->size = -1;
}

/* Makes the file's directory entry as durable as its content. */
static int sync_directory(const struct place *at)
{
    int fd = openat(at->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* A directory that is writable but not readable cannot be synced. */
    if (fd < 0 && errno == EACCES)
        return 0;
    if (fd < 0)
        return -1;
    int rc = fsync(fd);
    int saved = errno;
    close(fd);
    errno = saved;
    return rc;
}

/* Opens the file, or creates it with the permissions of file-mode; by default, MODE less the
 * umask. */
static int open_at(struct file *f, const struct place *at, struct error *err)
{
    /* O_NONBLOCK has no effect on a regular file; on a FIFO in its place it prevents us from
     * hanging. */
    int flags = O_RDWR | O_APPEND | O_NOCTTY | O_NONBLOCK;
    mode_t wanted = (mode_t)f->base.cfg.file_mode;
    bool made;
    f->fd = place_open(at, flags, wanted ? wanted : MODE, &made, err);
    if (f->fd < 0)
        return -1;
    if (made && wanted && fchmod(f->fd, wanted) != 0)
        return failed(f, "set the permissions of", err);

    struct stat st;
    if (fstat(f->fd, &st) != 0)
        return failed(f, "examine", err);
    if (!is_usable(&st))
        return err_set(err, ERR_UNAVAILABLE, "%s is no longer a file", f->path);
    f->regular = S_ISREG(st.st_mode);
    if (f->regular && sync_directory(at) != 0)
        return failed(f, "sync the directory of", err);
    return 0;
}

/* ---- locking the file ---- */

/* The result of opening and locking the file: locked, locked by another process, or failed. */
enum entry { ENTRY_IN, ENTRY_BUSY, ENTRY_FAILED };

/* Locks the file without ever blocking: a process may hold the lock for hours, and we must notice a
 * request to stop. Devices are not locked. */
static enum entry lock_fd(const struct file *f, struct error *err)
{
    int rc;
    if (!f->regular)
        return ENTRY_IN;
    do
        rc = flock(f->fd, LOCK_EX | LOCK_NB);
    while (rc != 0 && errno == EINTR);
    if (rc == 0)
        return ENTRY_IN;
    if (errno == EWOULDBLOCK)
        return ENTRY_BUSY;
    failed(f, "lock", err);
    return ENTRY_FAILED;
}

/* Opens the file if necessary and locks it. Checks the path while holding the lock, because log
 * rotation may have moved the file since the last drive, or while we waited. Sets *ret_st unless it
 * fails. */
static enum entry enter(struct file *f, struct stat *ret_st, struct error *err)
{
    for (int i = 0; i < TRIES_MAX; i++) {
        if (f->fd < 0) {
            struct place at;
            if (place_find(f->path, &at, err) != 0)
                return ENTRY_FAILED;
            int rc = open_at(f, &at, err);
            place_release(&at);
            if (rc != 0)
                return ENTRY_FAILED;
        }
        enum entry entry = lock_fd(f, err);
        if (entry == ENTRY_FAILED)
            return ENTRY_FAILED;
        if (fstat(f->fd, ret_st) != 0) {
            failed(f, "examine", err);
            return ENTRY_FAILED;
        }
        struct stat now;
        bool is_there = stat(f->path, &now) == 0 && now.st_dev == ret_st->st_dev &&
                        now.st_ino == ret_st->st_ino;
        if (is_there) /* the path still names the open file */
            return entry;
        drop_fd(f);
    }
    err_set(err, ERR_UNAVAILABLE, "%s keeps being replaced", f->path);
    return ENTRY_FAILED;
}

/* Schedules the next try for the lock. Another relay needs the lock only briefly, so we retry soon,
 * without blocking our thread. Returns false if another process holds the lock longer; the sink is
 * then down. */
static bool still_busy(struct file *f, struct error *err)
{
    struct lock_wait *w = &f->lock;
    int64_t now = clock_mono(f->base.cfg.clock);
    if (!w->since)
        *w = (struct lock_wait){.since = now, .pause = LOCK_PAUSE_MIN_NS};
    if (now - w->since >= LOCK_WAIT_NS) {
        err_class(err, ERR_BUSY, CLASS_DOWN, EWOULDBLOCK,
                  "another process has locked %s (flock); lslocks shows which one", f->path);
        return false;
    }
    w->again = now + w->pause;
    if (w->pause < LOCK_PAUSE_MAX_NS)
        w->pause *= 2;
    return true;
}

/* ---- appending ---- */

/* Finds the start of the last line, which follows the last line feed before `size`. */
static int last_line(int fd, off_t size, off_t *ret)
{
    char chunk[4096];
    while (size > 0) {
        size_t n = sizeof chunk;
        if (size < (off_t)n)
            n = (size_t)size;
        size -= (off_t)n;
        if (pread(fd, chunk, n, size) != (ssize_t)n)
            return -1;
        const char *lf = memrchr(chunk, '\n', n);
        if (lf) {
            *ret = size + (lf - chunk) + 1;
            return 0;
        }
    }
    *ret = 0;
    return 0;
}

/* Ensures that the file ends with a line feed, so that our first line does not continue another
 * line. Truncates a torn line, which begins like one of ours or with the zeros that some
 * filesystems leave after a power failure: its writer died before reporting it as delivered, so it
 * will be delivered again. Terminates any other unterminated line, which belongs to another
 * program. */
static int repair_end(const struct file *f, off_t *size)
{
    static const char head[] = "{\"id\":\"";
    char got[sizeof head - 1];
    off_t start;
    if (last_line(f->fd, *size, &start) != 0)
        return -1;
    if (start == *size)
        return 0;
    ssize_t n = pread(f->fd, got, sizeof got, start);
    if (n < 0)
        return -1;

    bool torn = n > 0 && (got[0] == '\0' || memcmp(got, head, (size_t)n) == 0);
    if (torn) {
        if (ftruncate(f->fd, start) != 0)
            return -1;
        *size = start;
        return 0;
    }
    if (fd_write(f->fd, "\n", 1) != 1)
        return -1;
    *size += 1;
    return 0;
}

static int write_lines(const struct file *f, struct error *err)
{
    struct str rest = {f->lines.text.p, f->lines.text.n};
    while (rest.n > 0) {
        ssize_t k = fd_write(f->fd, rest.p, rest.n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k == 0)
            errno = EIO;
        if (k <= 0)
            return failed(f, "write to", err);
        rest.p += k;
        rest.n -= (size_t)k;
    }
    return 0;
}

/* Appends the lines to a file of this size. Unlocks the file before the sync, because other relays
 * need not wait for the sync. */
static int append(struct file *f, off_t size, struct error *err)
{
    line_queue_leave_out_too_long(&f->lines);
    /* Another relay may have died in the middle of a line: check whenever the size has changed
     * since our last append. */
    if (size != f->size && repair_end(f, &size) != 0)
        return failed(f, "repair the end of", err);
    if (write_lines(f, err) != 0) {
        /* If truncation fails too, the next append repairs the file. */
        if (ftruncate(f->fd, size) != 0)
            f->size = -1;
        return -1;
    }
    f->size = size + (off_t)f->lines.text.n;

    flock(f->fd, LOCK_UN);
    if (fsync(f->fd) != 0)
        return failed(f, "sync", err);
    return 0;
}

/* ---- the sink ---- */

/* Reports the result of all deliveries. */
static void end_all(struct file *f, enum sink_status status, const struct error *err)
{
    line_queue_answer(&f->lines, 0, f->lines.count, status, err);
    line_queue_clear(&f->lines);
    f->lock.since = 0;
}

static size_t file_submit(struct sink *sk, struct delivery *const *d, size_t n)
{
    return line_queue_submit(&((struct file *)sk)->lines, d, n);
}

static void file_drive(struct sink *sk)
{
    struct file *f = (struct file *)sk;
    struct stat st;
    struct error err;
    if (!f->lines.count)
        return;
    if (f->lock.since && clock_mono(sk->cfg.clock) < f->lock.again)
        return;

    enum entry entry = enter(f, &st, &err);
    if (entry == ENTRY_BUSY && still_busy(f, &err))
        return;
    int rc = -1;
    if (entry == ENTRY_IN && f->regular)
        rc = append(f, st.st_size, &err);
    else if (entry == ENTRY_IN)
        rc = write_lines(f, &err);
    if (rc == 0) {
        end_all(f, SINK_DELIVERED, NULL);
        return;
    }
    /* Closing releases the lock. After a failed fsync, closing is also the only safe action: the
     * kernel has dropped the dirty pages, and the next fsync on this descriptor would succeed. */
    drop_fd(f);
    end_all(f, SINK_DOWN, &err);
}

static int64_t file_deadline(struct sink *sk)
{
    const struct file *f = (const struct file *)sk;
    if (!f->lines.count)
        return CLOCK_NEVER;
    if (f->lock.since)
        return f->lock.again;
    return 0;
}

static size_t file_fds(struct sink *sk, struct pollfd *out, size_t max)
{
    (void)sk, (void)out, (void)max;
    return 0;
}

static void file_cancel(struct sink *sk)
{
    struct error err;
    err_set(&err, ERR_UNAVAILABLE, "cancelled before the event was written");
    end_all((struct file *)sk, SINK_CANCELLED, &err);
}

static void file_close(struct sink *sk)
{
    struct file *f = (struct file *)sk;
    drop_fd(f);
    line_queue_release(&f->lines);
    free(f);
}

/* Rejects a path that can never work. */
static int check_path(const char *path, struct error *err)
{
    struct stat st;
    size_t n = strlen(path);
    if (!n)
        return err_set(err, ERR_CONFIG, "file: the path is missing: write file:PATH");
    bool host = strncmp(path, "//", 2) == 0 && path[2] != '/';
    if (host)
        return err_set(err, ERR_CONFIG,
                       "file: the URL names a host instead of a path: write file:PATH or "
                       "file:///PATH");
    if (path[n - 1] == '/')
        return err_set(err, ERR_CONFIG, "%s names a directory, not a file", path);

    if (lstat(path, &st) != 0) {
        if (errno == ENAMETOOLONG)
            return err_errno(err, ERR_CONFIG, errno, "cannot write to %s", path);
        return 0;
    }
    if (S_ISLNK(st.st_mode))
        return err_set(err, ERR_CONFIG,
                       "%s is a symbolic link, which this sink does not follow: name the file "
                       "itself",
                       path);
    if (S_ISDIR(st.st_mode))
        return err_set(err, ERR_CONFIG, "%s is a directory, not a file", path);
    if (!is_usable(&st))
        return err_set(err, ERR_CONFIG,
                       "%s is not a regular file; for a pipe, redirect stdout:", path);
    return 0;
}

static int file_open(const struct sink_config *cfg, struct sink **ret, struct error *err)
{
    const char *path = cfg->url + strlen("file:");
    if (check_path(path, err) != 0)
        return -1;
    struct file *f = calloc(1, sizeof *f);
    if (!f)
        return err_nomem(err);
    f->base = (struct sink){.ops = &file_ops, .cfg = *cfg};
    f->path = path;
    f->fd = -1;
    f->size = -1;
    if (line_queue_init(&f->lines, &f->base) != 0) {
        file_close(&f->base);
        return err_nomem(err);
    }
    /* Cautions about the directory. A directory that does not exist yet is checked on first use. */
    struct place at;
    char why[160];
    if (place_find(f->path, &at, NULL) == 0) {
        if (place_caution(&at, why, sizeof why))
            snprintf(f->caution, sizeof f->caution, "%.200s: %s", f->path, why);
        place_release(&at);
    }
    *ret = &f->base;
    return 0;
}

static const char *file_caution(struct sink *sk)
{
    const struct file *f = (const struct file *)sk;
    if (f->caution[0] == '\0')
        return NULL;
    return f->caution;
}

/* Checks the file without writing to it or creating it. */
static int file_probe(struct sink *sk, int64_t timeout_ms, struct error *err)
{
    const char *path = ((struct file *)sk)->path;
    char folder[PATH_MAX];
    (void)timeout_ms;
    if (access(path, F_OK) == 0) {
        if (access(path, W_OK) == 0)
            return 0;
        return err_errno(err, ERR_UNAVAILABLE, errno, "cannot write to %s", path);
    }
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 1,
             slash ? path : ".");
    if (access(folder, W_OK | X_OK) == 0)
        return 0;
    return err_errno(err, ERR_UNAVAILABLE, errno, "cannot create %s", path);
}

const struct sink_ops file_ops = {
    .scheme = "file",
    .synopsis = "file:PATH",
    .help = "appends one line of JSON per event, synced to disk",
    .caps = SINK_FAILSTOP,
    .open = file_open,
    .close = file_close,
    .submit = file_submit,
    .drive = file_drive,
    .fds = file_fds,
    .deadline = file_deadline,
    .cancel = file_cancel,
    .probe = file_probe,
    .caution = file_caution,
};
