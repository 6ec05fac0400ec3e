#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/place.h"
#include "base/text.h"
#include "event/ndjson.h"
#include "sink/kinds.h"

#define LINES_MAX ((size_t)1 << 20)  /* bytes gathered for one drive; a longer line travels alone */
#define BUFFER_MAX ((size_t)2 << 30) /* ceiling of the buffer, that is, of one line */
/* there from the start, so that an idle sink can always take one */
#define PENDING_MIN 1024
#define TRIES_MAX 8
/* of a file that we make, unless file-mode says otherwise */
#define MODE 0640
/* for another relay that writes; who holds it for longer keeps it */
#define LOCK_WAIT_NS (INT64_C(1000) * MS_NS)
#define LOCK_PAUSE_MIN_NS (1 * MS_NS)
#define LOCK_PAUSE_MAX_NS (20 * MS_NS)

/* One event and its line. n == 0: the line was taken out again, because no file could hold it. */
struct pending {
    struct delivery *d;
    size_t n;
};

/* Both sinks: lines gathered by submit, written by drive.
 * (1) lines holds the lines of pending[0..count), in order. (2) off bytes of lines are written
 *   already; only stdout: stops
 * half-way. (3) fd < 0: not open. (4) size is that of the file after our last append; -1: not
 * known. (5) rest is what is still to be written of a line whose event has been answered for; only
 * stdout:. */
struct file {
    struct sink base;
    struct str consumer;
    struct buf lines, rest;
    struct pending *pending;
    size_t count, cap;
    size_t off;
    bool blocked;     /* stdout's reader must read before we can go on */
    int64_t moved_at; /* when standard output last took something, or should have begun to */
    bool regular;     /* as opposed to a device, which can neither be cut nor synced */
    const char *path;
    int fd;
    off_t size;
    int64_t busy_since; /* another process has had the lock since then; 0: nobody */
    int64_t again_at;   /* when to try for it again */
    int64_t pause;
    char caution[400];
};

/* answer_too_long: whatever becomes of the others, this one can never pass. */
static void answer_too_long(struct file *f, struct delivery *d)
{
    struct rlimit limit = {0};
    struct error err;
    getrlimit(RLIMIT_FSIZE, &limit);
    err_set(&err, ERR_INVALID,
            "its line is longer than a file of this process may be: %llu bytes (ulimit -f)",
            (unsigned long long)limit.rlim_cur);
    sink_done(&f->base, d,
              &(struct sink_result){
                  .status = SINK_REJECT, .native = EFBIG, .text = err.text, .unasked = true});
}

/* answer_each answers for pending[from..to). */
static void answer_each(struct file *f, size_t from, size_t to, enum sink_status status,
                        const struct error *err)
{
    struct sink_result r = {.status = status};
    if (err) {
        r.native = err->native;
        r.text = err->text;
    }
    for (size_t i = from; i < to; i++) {
        if (f->pending[i].n > 0)
            sink_done(&f->base, f->pending[i].d, &r);
        else
            answer_too_long(f, f->pending[i].d);
    }
}

/* forget starts over with nothing pending. */
static void forget(struct file *f)
{
    f->count = 0;
    f->off = 0;
    f->blocked = false;
    f->busy_since = 0;
    buf_clear(&f->lines);
}

/* answer tells the end of all deliveries and forgets them. */
static void answer(struct file *f, enum sink_status status, const struct error *err)
{
    answer_each(f, 0, f->count, status, err);
    forget(f);
}

static bool make_room(struct file *f)
{
    if (f->count < f->cap)
        return true;
    struct pending *p = realloc(f->pending, 2 * f->cap * sizeof *p);
    if (!p)
        return false;
    f->pending = p;
    f->cap *= 2;
    return true;
}

static bool add(struct file *f, struct delivery *d)
{
    size_t before = f->lines.n;
    if (before >= LINES_MAX || !make_room(f))
        return false;
    ndjson_write(&f->lines, d->ev, f->consumer, d->attempt);
    if (f->lines.failed || (f->count && f->lines.n > LINES_MAX)) {
        buf_truncate(&f->lines, before);
        return false;
    }
    f->pending[f->count++] = (struct pending){d, f->lines.n - before};
    return true;
}

static size_t submit(struct sink *sk, struct delivery *const *d, size_t n)
{
    struct file *f = (struct file *)sk;
    size_t i = 0;
    while (i < n && add(f, d[i]))
        i++;
    if (i || f->count || !n)
        return i;
    /* Not even one fits into memory. An idle sink takes one all the same, and says why it went
     * wrong. */
    struct error err;
    err_nomem(&err);
    sink_done(sk, d[0], &(struct sink_result){.status = SINK_DOWN, .text = err.text});
    return 1;
}

/* leave_out_too_long takes out the lines that are longer than any file of this process may be:
 * written, they would stop everything behind them for ever. */
static void leave_out_too_long(struct file *f)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || f->lines.n <= limit.rlim_cur)
        return;
    size_t from = 0, to = 0;
    for (size_t i = 0; i < f->count; i++) {
        size_t n = f->pending[i].n;
        if (n > limit.rlim_cur) {
            f->pending[i].n = 0;
        } else {
            memmove(f->lines.p + to, f->lines.p + from, n);
            to += n;
        }
        from += n;
    }
    buf_truncate(&f->lines, to);
}

static struct file *new_file(const struct sink_config *cfg, const struct sink_ops *ops,
                             struct error *err)
{
    struct file *f = calloc(1, sizeof *f);
    struct pending *pending = malloc(PENDING_MIN * sizeof *pending);
    if (!f || !pending) {
        free(f);
        free(pending);
        err_nomem(err);
        return NULL;
    }
    f->base = (struct sink){ops, *cfg};
    f->consumer = str_of(cfg->consumer);
    f->pending = pending;
    f->cap = PENDING_MIN;
    f->fd = -1;
    f->size = -1;
    buf_init(&f->lines, BUFFER_MAX);
    buf_init(&f->rest, BUFFER_MAX);
    return f;
}

static void drop_fd(struct file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    f->fd = -1;
    f->size = -1;
}

static void close_file(struct sink *sk)
{
    struct file *f = (struct file *)sk;
    drop_fd(f);
    buf_release(&f->lines);
    buf_release(&f->rest);
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
static int sync_directory(const struct place *at)
{
    int fd = openat(at->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* A directory may be closed to readers and open to writers; then there is nothing we could
     * do. */
    if (fd < 0)
        return errno == EACCES ? 0 : -1;
    int rc = fsync(fd);
    int saved = errno;
    close(fd);
    errno = saved;
    return rc;
}

/* open_at: what a file that we make is open to is said, or 0640 less the umask. */
static int open_at(struct file *f, const struct place *at, struct error *err)
{
    struct stat st;
    bool made;
    mode_t said = (mode_t)f->base.cfg.file_mode;
    /* O_NONBLOCK means nothing to a file; it keeps us from hanging on a FIFO that has taken its
     * place. */
    f->fd = place_open(at, O_RDWR | O_APPEND | O_NOCTTY | O_NONBLOCK, said ? said : MODE, &made,
                       err);
    if (f->fd < 0)
        return -1;
    if (made && said && fchmod(f->fd, said) != 0)
        return failed(f, "set the permissions of", err);
    if (fstat(f->fd, &st) != 0)
        return failed(f, "look at", err);
    if (!usable(&st))
        return err_set(err, ERR_UNAVAILABLE, "%s is not a file any more", f->path);
    f->regular = S_ISREG(st.st_mode);
    if (f->regular && sync_directory(at) != 0)
        return failed(f, "sync the directory of", err);
    return 0;
}

static int open_fd(struct file *f, struct error *err)
{
    struct place at;
    if (place_find(f->path, &at, err) != 0)
        return -1;
    int r = open_at(f, &at, err);
    place_release(&at);
    return r;
}

/* How getting at the file went. */
enum entry { ENTRY_IN, ENTRY_BUSY, ENTRY_FAILED };

/* lock_fd never waits: whoever has the lock may keep it for hours, and we must hear when we are
 * told to stop. */
static enum entry lock_fd(struct file *f, struct error *err)
{
    int rc;
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

/* enter opens the file if need be and locks it, and makes sure, with the lock held, that the path
 * still means this file: a log rotation may have moved it away since the last drive, or while we
 * waited. */
static enum entry enter(struct file *f, struct stat *st, struct error *err)
{
    struct stat now;
    for (int i = 0; i < TRIES_MAX; i++) {
        if (f->fd < 0 && open_fd(f, err) != 0)
            return ENTRY_FAILED;
        enum entry lock = f->regular ? lock_fd(f, err) : ENTRY_IN;
        if (fstat(f->fd, st) != 0) {
            failed(f, "look at", err);
            return ENTRY_FAILED;
        }
        bool same = stat(f->path, &now) == 0 && now.st_dev == st->st_dev &&
                    now.st_ino == st->st_ino;
        if (same || lock == ENTRY_FAILED)
            return lock;
        drop_fd(f);
    }
    err_set(err, ERR_UNAVAILABLE, "%s is being replaced again and again", f->path);
    return ENTRY_FAILED;
}

/* still_busy: another relay needs the lock for a moment only, so we try again soon, without holding
 * up our thread. Who has it for longer makes the sink one that is down. */
static bool still_busy(struct file *f, struct error *err)
{
    int64_t now = clock_mono(f->base.cfg.clock);
    if (!f->busy_since) {
        f->busy_since = now;
        f->pause = LOCK_PAUSE_MIN_NS;
    }
    if (now - f->busy_since >= LOCK_WAIT_NS) {
        err_fate(err, ERR_BUSY, FATE_DOWN, EWOULDBLOCK,
                 "another process has %s locked (flock); who that is, lslocks says", f->path);
        return false;
    }
    f->again_at = now + f->pause;
    if (f->pause < LOCK_PAUSE_MAX_NS)
        f->pause *= 2;
    return true;
}

/* last_line finds where the last line starts: behind the last line feed before `size`. */
static int last_line(int fd, off_t size, off_t *ret)
{
    char chunk[4096];
    while (size > 0) {
        size_t n = size < (off_t)sizeof chunk ? (size_t)size : sizeof chunk;
        if (pread(fd, chunk, n, size - (off_t)n) != (ssize_t)n)
            return -1;
        const char *lf = memrchr(chunk, '\n', n);
        size -= (off_t)n;
        if (!lf)
            continue;
        *ret = size + (lf - chunk) + 1;
        return 0;
    }
    *ret = 0;
    return 0;
}

/* find_torn says whether what stands at `start` is the beginning of a line of ours, or the zeros
 * that some filesystems leave after a power cut, rather than the last line of somebody who does not
 * end lines. */
static int find_torn(int fd, off_t start, bool *ret)
{
    static const char head[] = "{\"id\":\"";
    char got[sizeof head - 1];
    ssize_t n = pread(fd, got, sizeof got, start);
    if (n < 0)
        return -1;
    *ret = n > 0 && (got[0] == '\0' || memcmp(got, head, (size_t)n) == 0);
    return 0;
}

/* mend makes the file end with a line feed, so that our first line does not grow onto a torn one.
 * The torn one is cut off: whoever wrote it died before he could call it delivered, and it is going
 * to come again. */
static int mend(struct file *f, off_t *size)
{
    off_t start;
    bool torn;
    if (last_line(f->fd, *size, &start) != 0)
        return -1;
    if (start == *size)
        return 0;
    if (find_torn(f->fd, start, &torn) != 0)
        return -1;
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

static int write_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t k = fd_write(fd, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0) {
            if (k == 0)
                errno = EIO;
            return -1;
        }
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

static int append(struct file *f, off_t size, struct error *err)
{
    off_t was = size;
    if (f->regular)
        leave_out_too_long(f);
    /* Another relay may have died in the middle of a line at any time: look whenever the file is
     * not as we left it. */
    if (f->regular && was != f->size && mend(f, &size) != 0)
        return failed(f, "repair the end of", err);
    if (write_all(f->fd, f->lines.p, f->lines.n) != 0) {
        failed(f, "write to", err);
        /* Should the cut fail, too, the next one to append mends it. */
        if (f->regular && ftruncate(f->fd, size) != 0)
            f->size = -1;
        return -1;
    }
    if (!f->regular)
        return 0;
    f->size = size + (off_t)f->lines.n;
    flock(f->fd, LOCK_UN);
    return fsync(f->fd) == 0 ? 0 : failed(f, "sync", err);
}

static void file_drive(struct sink *sk)
{
    struct file *f = (struct file *)sk;
    struct stat st;
    struct error err;
    if (!f->count)
        return;
    if (f->busy_since && clock_mono(sk->cfg.clock) < f->again_at)
        return;

    enum entry entry = enter(f, &st, &err);
    if (entry == ENTRY_BUSY && still_busy(f, &err))
        return;
    if (entry == ENTRY_IN && append(f, st.st_size, &err) == 0) {
        answer(f, SINK_DELIVERED, NULL);
        return;
    }
    /* Closing gives back the lock. After a failed fsync it is also the only safe thing: the kernel
     * has dropped the pages, and the next fsync on this descriptor would call it a success. */
    drop_fd(f);
    answer(f, SINK_DOWN, &err);
}

static int64_t file_deadline(struct sink *sk)
{
    struct file *f = (struct file *)sk;
    if (!f->count)
        return CLOCK_NEVER;
    return f->busy_since ? f->again_at : 0;
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
    answer((struct file *)sk, SINK_CANCELLED, &err);
}

/* check_path refuses what no waiting can heal. */
static int check_path(const char *path, struct error *err)
{
    struct stat st;
    size_t n = strlen(path);
    if (!n)
        return err_set(err, ERR_CONFIG, "file: needs a path: file:PATH");
    if (strncmp(path, "//", 2) == 0 && path[2] != '/')
        return err_set(err, ERR_CONFIG,
                       "file: takes a path, not a host: write file:PATH or file:///PATH");
    if (path[n - 1] == '/')
        return err_set(err, ERR_CONFIG, "%s names a directory, not a file", path);
    if (lstat(path, &st) != 0)
        return errno == ENAMETOOLONG ? err_errno(err, ERR_CONFIG, errno, "cannot write to %s", path)
                                     : 0;
    if (S_ISLNK(st.st_mode))
        return err_set(err, ERR_CONFIG,
                       "%s is a symbolic link, which is not followed: name the file itself", path);
    if (S_ISDIR(st.st_mode))
        return err_set(err, ERR_CONFIG, "%s is a directory, not a file", path);
    if (!usable(&st))
        return err_set(err, ERR_CONFIG, "%s is not a file; for a pipe, redirect stdout:", path);
    return 0;
}

/* look_around: a folder that is not there yet will be looked at when it is used. */
static void look_around(struct file *f)
{
    struct place at;
    char why[160];
    if (place_find(f->path, &at, NULL) != 0)
        return;
    if (place_caution(&at, why, sizeof why))
        snprintf(f->caution, sizeof f->caution, "%.200s: %s", f->path, why);
    place_release(&at);
}

static int file_open(const struct sink_config *cfg, struct sink **ret, struct error *err)
{
    const char *path = cfg->url + strlen("file:");
    if (check_path(path, err) != 0)
        return -1;
    struct file *f = new_file(cfg, &file_ops, err);
    if (!f)
        return -1;
    f->path = path;
    look_around(f);
    *ret = &f->base;
    return 0;
}

static const char *file_caution(struct sink *sk)
{
    const struct file *f = (struct file *)sk;
    return f->caution[0] ? f->caution : NULL;
}

/* file_probe: nothing is written, nor made. */
static int file_probe(struct sink *sk, int64_t timeout_ms, struct error *err)
{
    const char *path = ((struct file *)sk)->path;
    const char *slash = strrchr(path, '/');
    char folder[PATH_MAX] = ".";
    (void)timeout_ms;
    if (access(path, F_OK) == 0) {
        if (access(path, W_OK) == 0)
            return 0;
        return err_errno(err, ERR_UNAVAILABLE, errno, "cannot write to %s", path);
    }
    if (slash)
        snprintf(folder, sizeof folder, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    if (access(folder, W_OK | X_OK) == 0)
        return 0;
    return err_errno(err, ERR_UNAVAILABLE, errno, "cannot make %s", path);
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
    .deadline = file_deadline,
    .cancel = file_cancel,
    .probe = file_probe,
    .caution = file_caution,
};

/* stdout: */

/* write_some writes what standard output takes without waiting: a pipe that polls as writable has
 * room for PIPE_BUF bytes. So a reader that stands still holds up the deliveries, but not the
 * relay's shutdown. */
static int write_some(struct file *f, const struct buf *b, size_t *off)
{
    struct pollfd out = {STDOUT_FILENO, POLLOUT, 0};
    while (*off < b->n) {
        int ready = poll(&out, 1, 0);
        if (ready < 0 && errno == EINTR)
            continue;
        f->blocked = ready == 0;
        if (f->blocked)
            return 0;
        size_t n = b->n - *off;
        if (!f->regular && n > PIPE_BUF)
            n = PIPE_BUF;
        ssize_t k = fd_write(STDOUT_FILENO, b->p + *off, n);
        if (k > 0) {
            *off += (size_t)k;
            f->moved_at = clock_mono(f->base.cfg.clock);
        }
        if (k >= 0 || errno == EINTR)
            continue;
        f->blocked = errno == EAGAIN;
        return f->blocked ? 0 : -1;
    }
    return 0;
}

/* write_rest ends a line that was left half-way, before anything else is written. */
static int write_rest(struct file *f)
{
    size_t off = 0;
    int rc = write_some(f, &f->rest, &off);
    int saved = errno;
    memmove(f->rest.p, f->rest.p + off, f->rest.n - off);
    buf_truncate(&f->rest, f->rest.n - off);
    errno = saved;
    return rc;
}

/* whole_lines counts the events whose lines are out, and what of the next one is. */
static size_t whole_lines(const struct file *f, size_t *half)
{
    size_t i = 0, at = 0;
    while (i < f->count && at + f->pending[i].n <= f->off)
        at += f->pending[i++].n;
    *half = f->off - at;
    return i;
}

/* stop_here ends everything: what went out whole is delivered, the rest is not. Of a line that is
 * half out the other half is kept, to be written before anything else: its event comes again, and
 * so a reader sees it twice, but never a torn line. Without memory to keep it in, that is the
 * end. */
static void stop_here(struct file *f, enum sink_status status, const struct error *err)
{
    size_t half, whole = whole_lines(f, &half);
    bool kept = true;
    if (half > 0) {
        buf_add(&f->rest, f->lines.p + f->off, f->pending[whole].n - half);
        kept = !f->rest.failed;
    }
    answer_each(f, 0, whole, SINK_DELIVERED, NULL);
    answer_each(f, whole, f->count, kept ? status : SINK_FATAL, err);
    forget(f);
}

static void gave_up(struct file *f)
{
    struct error err;
    bool gone = errno == EPIPE || errno == EBADF || errno == ECONNRESET;
    if (gone) {
        /* What stood in the pipe went with its reader. */
        err_fate(&err, ERR_UNAVAILABLE, FATE_FATAL, errno, "standard output was closed");
        answer(f, SINK_FATAL, &err);
        return;
    }
    err_errno(&err, ERR_UNAVAILABLE, errno, "could not write to standard output");
    stop_here(f, SINK_DOWN, &err);
}

static int64_t stdout_due(const struct file *f)
{
    int64_t limit = f->base.cfg.timeout_ms;
    return limit > 0 ? f->moved_at + limit * MS_NS : CLOCK_NEVER;
}

/* check_reader: nobody has read for as long as a delivery may take. */
static void check_reader(struct file *f)
{
    struct error err;
    char limit[32];
    if (!f->blocked || clock_mono(f->base.cfg.clock) < stdout_due(f))
        return;
    text_duration_show(f->base.cfg.timeout_ms, limit);
    err_set(&err, ERR_UNAVAILABLE, "nobody has read standard output for %s", limit);
    stop_here(f, SINK_DOWN, &err);
}

static void stdout_drive(struct sink *sk)
{
    struct file *f = (struct file *)sk;
    if (!f->count)
        return;
    if (f->off == 0 && !f->blocked) { /* a first look at these lines */
        f->moved_at = clock_mono(sk->cfg.clock);
        if (f->regular)
            leave_out_too_long(f);
    }
    bool failed = f->rest.n > 0 && write_rest(f) != 0;
    if (!failed && f->rest.n == 0)
        failed = write_some(f, &f->lines, &f->off) != 0;
    if (failed)
        gave_up(f);
    else if (f->rest.n == 0 && f->off == f->lines.n)
        answer(f, SINK_DELIVERED, NULL);
    else
        check_reader(f);
}

static size_t stdout_fds(struct sink *sk, struct pollfd *out, size_t max)
{
    struct file *f = (struct file *)sk;
    if (!f->blocked || !max)
        return 0;
    out[0] = (struct pollfd){STDOUT_FILENO, POLLOUT, 0};
    return 1;
}

static int64_t stdout_deadline(struct sink *sk)
{
    struct file *f = (struct file *)sk;
    if (!f->count)
        return CLOCK_NEVER;
    return f->blocked ? stdout_due(f) : 0;
}

/* stdout_cancel: the lines that went out whole count as delivered. */
static void stdout_cancel(struct sink *sk)
{
    struct error err;
    err_set(&err, ERR_UNAVAILABLE, "cancelled before standard output took it");
    stop_here((struct file *)sk, SINK_CANCELLED, &err);
}

/* stdout_close does what it can for a line that is half out. */
static void stdout_close(struct sink *sk)
{
    struct file *f = (struct file *)sk;
    if (f->rest.n > 0)
        (void)write_rest(f);
    close_file(sk);
}

static int stdout_open(const struct sink_config *cfg, struct sink **ret, struct error *err)
{
    struct stat st;
    if (strcmp(cfg->url, "stdout:") != 0)
        return err_set(err, ERR_CONFIG,
                       "stdout: takes nothing behind the colon; file:PATH writes to a file");
    struct file *f = new_file(cfg, &file_stdout_ops, err);
    if (!f)
        return -1;
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
    .close = stdout_close,
    .submit = submit,
    .drive = stdout_drive,
    .fds = stdout_fds,
    .deadline = stdout_deadline,
    .cancel = stdout_cancel,
};
