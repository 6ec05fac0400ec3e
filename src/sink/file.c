#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "event/ndjson.h"
#include "sink/kinds.h"

#define LINES_MAX ((size_t)1 << 20)  /* bytes gathered for one drive; a longer line travels alone */
#define BUFFER_MAX ((size_t)2 << 30) /* ceiling of the buffer, that is, of one line */
#define PENDING_MIN 1024             /* there from the start, so that an idle sink can always take one */
#define TRIES_MAX 8

/* Both sinks: lines gathered by submit, written by drive.
 * (1) lines holds one line for each of pending[0..count), in order. (2) off bytes of lines are written already; only
 * stdout: stops half-way. (3) fd < 0: not open. (4) size is that of the file after our last append; -1: not known. */
struct file {
    struct sink base;
    struct str consumer;
    struct buf lines;
    struct delivery **pending;
    size_t count, cap;
    size_t off;
    bool blocked; /* stdout's reader must read before we can go on */
    bool regular; /* as opposed to a device, which can neither be cut nor synced */
    const char *path;
    int fd;
    off_t size;
};

/* answer tells the end of the deliveries from `from` on and forgets all of them. */
static void answer(struct file *f, size_t from, enum sink_status status, const struct error *err)
{
    struct sink_result r = {.status = status};
    if (err) {
        r.native = err->native;
        r.text = err->text;
    }
    for (size_t i = from; i < f->count; i++) sink_done(&f->base, f->pending[i], &r);
    f->count = 0;
    f->off = 0;
    f->blocked = false;
    buf_clear(&f->lines);
}

static bool make_room(struct file *f)
{
    if (f->count < f->cap) return true;
    struct delivery **p = realloc(f->pending, 2 * f->cap * sizeof(struct delivery *));
    if (!p) return false;
    f->pending = p;
    f->cap *= 2;
    return true;
}

static bool add(struct file *f, struct delivery *d)
{
    size_t before = f->lines.n;
    if (before >= LINES_MAX || !make_room(f)) return false;
    ndjson_write(&f->lines, d->ev, f->consumer, d->attempt);
    if (f->lines.failed || (f->count && f->lines.n > LINES_MAX)) {
        buf_truncate(&f->lines, before);
        return false;
    }
    f->pending[f->count++] = d;
    return true;
}

static size_t submit(struct sink *sk, struct delivery *const *d, size_t n)
{
    struct file *f = (struct file *)sk;
    size_t i = 0;
    while (i < n && add(f, d[i])) i++;
    if (i || f->count || !n) return i;
    /* Not even one fits into memory. An idle sink takes one all the same, and says why it went wrong. */
    struct error err;
    err_nomem(&err);
    f->pending[f->count++] = d[0];
    answer(f, 0, SINK_DOWN, &err);
    return 1;
}

static int64_t deadline(struct sink *sk)
{
    struct file *f = (struct file *)sk;
    return f->count && !f->blocked ? 0 : CLOCK_NEVER;
}

static int new_file(const struct sink_config *cfg, const struct sink_ops *ops, struct file **ret, struct error *err)
{
    struct file *f = calloc(1, sizeof *f);
    struct delivery **pending = malloc(PENDING_MIN * sizeof(struct delivery *));
    if (!f || !pending) {
        free(f);
        free(pending);
        return err_nomem(err);
    }
    f->base = (struct sink){ops, *cfg};
    f->consumer = str_of(cfg->consumer);
    f->pending = pending;
    f->cap = PENDING_MIN;
    f->fd = -1;
    f->size = -1;
    buf_init(&f->lines, BUFFER_MAX);
    *ret = f;
    return 0;
}

static void drop_fd(struct file *f)
{
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
    f->size = -1;
}

static void close_file(struct sink *sk)
{
    struct file *f = (struct file *)sk;
    drop_fd(f);
    buf_release(&f->lines);
    free(f->pending);
    free(f);
}

/* file: */

static int failed(const struct file *f, const char *what, struct error *err)
{
    return err_errno(err, ERR_UNAVAILABLE, errno, "could not %s %s", what, f->path);
}

static bool usable(const struct stat *st)
{
    return S_ISREG(st->st_mode) || S_ISCHR(st->st_mode);
}

/* sync_directory makes the file's name as durable as its content. */
static int sync_directory(const char *path)
{
    char copy[PATH_MAX];
    if ((size_t)snprintf(copy, sizeof copy, "%s", path) >= sizeof copy) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* A directory may be closed to readers and open to writers; then there is nothing we could do. */
    if (fd < 0) return errno == EACCES ? 0 : -1;
    int rc = fsync(fd);
    int saved = errno;
    close(fd);
    errno = saved;
    return rc;
}

static int open_fd(struct file *f, struct error *err)
{
    struct stat st;
    /* O_NONBLOCK means nothing to a file; it keeps us from hanging on a FIFO that has taken its place. */
    f->fd = open(f->path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0644);
    if (f->fd < 0) return failed(f, "open", err);
    if (fstat(f->fd, &st) != 0) return failed(f, "look at", err);
    if (!usable(&st)) return err_set(err, ERR_UNAVAILABLE, "%s is not a file any more", f->path);
    f->regular = S_ISREG(st.st_mode);
    if (f->regular && sync_directory(f->path) != 0) return failed(f, "sync the directory of", err);
    return 0;
}

static int lock_fd(int fd)
{
    int rc;
    do rc = flock(fd, LOCK_EX);
    while (rc != 0 && errno == EINTR);
    return rc;
}

/* enter opens the file if need be and locks it, and makes sure, with the lock held, that the path still means this
 * file: a log rotation may have moved it away since the last drive, or while we waited. */
static int enter(struct file *f, struct stat *st, struct error *err)
{
    struct stat now;
    for (int i = 0; i < TRIES_MAX; i++) {
        if (f->fd < 0 && open_fd(f, err) != 0) return -1;
        if (f->regular && lock_fd(f->fd) != 0) return failed(f, "lock", err);
        if (fstat(f->fd, st) != 0) return failed(f, "look at", err);
        if (stat(f->path, &now) == 0 && now.st_dev == st->st_dev && now.st_ino == st->st_ino) return 0;
        drop_fd(f);
    }
    return err_set(err, ERR_UNAVAILABLE, "%s is being replaced again and again", f->path);
}

/* last_line finds where the last line starts: behind the last line feed before `size`. */
static int last_line(int fd, off_t size, off_t *ret)
{
    char chunk[4096];
    while (size > 0) {
        size_t n = size < (off_t)sizeof chunk ? (size_t)size : sizeof chunk;
        if (pread(fd, chunk, n, size - (off_t)n) != (ssize_t)n) return -1;
        const char *lf = memrchr(chunk, '\n', n);
        size -= (off_t)n;
        if (!lf) continue;
        *ret = size + (lf - chunk) + 1;
        return 0;
    }
    *ret = 0;
    return 0;
}

/* find_torn says whether what stands at `start` is the beginning of a line of ours, or the zeros that some filesystems
 * leave after a power cut, rather than the last line of somebody who does not end lines. */
static int find_torn(int fd, off_t start, bool *ret)
{
    static const char head[] = "{\"id\":\"";
    char got[sizeof head - 1];
    ssize_t n = pread(fd, got, sizeof got, start);
    if (n < 0) return -1;
    *ret = n > 0 && (got[0] == '\0' || memcmp(got, head, (size_t)n) == 0);
    return 0;
}

/* mend makes the file end with a line feed, so that our first line does not grow onto a torn one. The torn one is cut
 * off: whoever wrote it died before he could call it delivered, and it is going to come again. */
static int mend(struct file *f, off_t *size)
{
    off_t start;
    bool torn;
    if (last_line(f->fd, *size, &start) != 0) return -1;
    if (start == *size) return 0;
    if (find_torn(f->fd, start, &torn) != 0) return -1;
    if (torn) {
        if (ftruncate(f->fd, start) != 0) return -1;
        *size = start;
        return 0;
    }
    if (write(f->fd, "\n", 1) != 1) return -1;
    *size += 1;
    return 0;
}

static int write_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) {
            if (k == 0) errno = EIO;
            return -1;
        }
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

static int append(struct file *f, struct error *err)
{
    struct stat st;
    if (enter(f, &st, err) != 0) return -1;
    off_t size = st.st_size;
    /* Another relay may have died in the middle of a line at any time: look whenever the file is not as we left it. */
    if (f->regular && size != f->size && mend(f, &size) != 0) return failed(f, "repair the end of", err);
    if (write_all(f->fd, f->lines.p, f->lines.n) != 0) {
        failed(f, "write to", err);
        /* Should the cut fail, too, the next one to append mends it. */
        if (f->regular && ftruncate(f->fd, size) != 0) f->size = -1;
        return -1;
    }
    if (!f->regular) return 0;
    f->size = size + (off_t)f->lines.n;
    flock(f->fd, LOCK_UN);
    return fsync(f->fd) == 0 ? 0 : failed(f, "sync", err);
}

static void file_drive(struct sink *sk)
{
    struct file *f = (struct file *)sk;
    struct error err;
    if (!f->count) return;
    if (append(f, &err) == 0) {
        answer(f, 0, SINK_DELIVERED, NULL);
        return;
    }
    /* Closing gives back the lock. After a failed fsync it is also the only safe thing: the kernel has dropped the
     * pages, and the next fsync on this descriptor would call it a success. */
    drop_fd(f);
    answer(f, 0, SINK_DOWN, &err);
}

static size_t file_fds(struct sink *sk, struct pollfd *out, size_t max)
{
    (void)sk, (void)out, (void)max;
    return 0;
}

static void file_cancel(struct sink *sk)
{
    struct error err;
    err_set(&err, ERR_UNAVAILABLE, "cancelled before it was written");
    answer((struct file *)sk, 0, SINK_CANCELLED, &err);
}

/* check_path refuses what no waiting can heal. */
static int check_path(const char *path, struct error *err)
{
    struct stat st;
    size_t n = strlen(path);
    if (!n) return err_set(err, ERR_CONFIG, "file: needs a path: file:PATH");
    if (strncmp(path, "//", 2) == 0 && path[2] != '/')
        return err_set(err, ERR_CONFIG, "file: takes a path, not a host: write file:PATH or file:///PATH");
    if (path[n - 1] == '/') return err_set(err, ERR_CONFIG, "%s names a directory, not a file", path);
    if (stat(path, &st) != 0)
        return errno == ENAMETOOLONG ? err_errno(err, ERR_CONFIG, errno, "cannot write to %s", path) : 0;
    if (S_ISDIR(st.st_mode)) return err_set(err, ERR_CONFIG, "%s is a directory, not a file", path);
    if (!usable(&st)) return err_set(err, ERR_CONFIG, "%s is not a file; for a pipe, redirect stdout:", path);
    return 0;
}

static int file_open(const struct sink_config *cfg, struct sink **ret, struct error *err)
{
    const char *path = cfg->url + strlen("file:");
    struct file *f;
    if (check_path(path, err) != 0) return -1;
    if (new_file(cfg, &file_ops, &f, err) != 0) return -1;
    f->path = path;
    *ret = &f->base;
    return 0;
}

const struct sink_ops file_ops = {
    .scheme = "file",
    .synopsis = "file:PATH",
    .help = "appends one line of JSON per event, synced to disk",
    .caps = SINK_FAILSTOP,
    .open = file_open,
    .close = close_file,
    .submit = submit,
    .drive = file_drive,
    .fds = file_fds,
    .deadline = deadline,
    .cancel = file_cancel,
};

/* stdout: */

/* write_some writes what standard output takes without waiting: a pipe that polls as writable has room for PIPE_BUF
 * bytes. So a reader that stands still holds up the deliveries, but not the relay's shutdown. */
static int write_some(struct file *f)
{
    struct pollfd out = {STDOUT_FILENO, POLLOUT, 0};
    while (f->off < f->lines.n) {
        int ready = poll(&out, 1, 0);
        if (ready < 0 && errno == EINTR) continue;
        f->blocked = ready == 0;
        if (f->blocked) return 0;
        size_t n = f->lines.n - f->off;
        if (!f->regular && n > PIPE_BUF) n = PIPE_BUF;
        ssize_t k = write(STDOUT_FILENO, f->lines.p + f->off, n);
        if (k > 0) f->off += (size_t)k;
        if (k >= 0 || errno == EINTR) continue;
        f->blocked = errno == EAGAIN;
        return f->blocked ? 0 : -1;
    }
    return 0;
}

/* gave_up: with a line half out, nobody can make the stream whole again, so that is the end. */
static void gave_up(struct file *f)
{
    struct error err;
    bool gone = errno == EPIPE || errno == EBADF;
    if (gone) err_fate(&err, ERR_UNAVAILABLE, FATE_FATAL, errno, "standard output was closed");
    else err_errno(&err, ERR_UNAVAILABLE, errno, "could not write to standard output");
    answer(f, 0, gone || f->off ? SINK_FATAL : SINK_DOWN, &err);
}

static void stdout_drive(struct sink *sk)
{
    struct file *f = (struct file *)sk;
    if (!f->count) return;
    if (write_some(f) != 0) gave_up(f);
    else if (f->off == f->lines.n) answer(f, 0, SINK_DELIVERED, NULL);
}

static size_t stdout_fds(struct sink *sk, struct pollfd *out, size_t max)
{
    struct file *f = (struct file *)sk;
    if (!f->blocked || !max) return 0;
    out[0] = (struct pollfd){STDOUT_FILENO, POLLOUT, 0};
    return 1;
}

/* stdout_cancel: the lines that went out whole count as delivered. */
static void stdout_cancel(struct sink *sk)
{
    struct file *f = (struct file *)sk;
    struct sink_result delivered = {.status = SINK_DELIVERED};
    struct error err;
    size_t whole = 0;
    for (size_t i = 0; i < f->off; i++) whole += f->lines.p[i] == '\n';
    for (size_t i = 0; i < whole; i++) sink_done(sk, f->pending[i], &delivered);
    err_set(&err, ERR_UNAVAILABLE, "cancelled before standard output took it");
    answer(f, whole, SINK_CANCELLED, &err);
}

static int stdout_open(const struct sink_config *cfg, struct sink **ret, struct error *err)
{
    struct stat st;
    struct file *f;
    if (strcmp(cfg->url, "stdout:") != 0)
        return err_set(err, ERR_CONFIG, "stdout: takes nothing behind the colon; file:PATH writes to a file");
    if (new_file(cfg, &file_stdout_ops, &f, err) != 0) return -1;
    f->regular = fstat(STDOUT_FILENO, &st) == 0 && S_ISREG(st.st_mode);
    *ret = &f->base;
    return 0;
}

const struct sink_ops file_stdout_ops = {
    .scheme = "stdout",
    .synopsis = "stdout:",
    .help = "writes one line of JSON per event to standard output",
    .caps = SINK_FAILSTOP,
    .open = stdout_open,
    .close = close_file,
    .submit = submit,
    .drive = stdout_drive,
    .fds = stdout_fds,
    .deadline = deadline,
    .cancel = stdout_cancel,
};
