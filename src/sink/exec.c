#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/text.h"
#include "event/ndjson.h"
#include "sink/exec_env.h"
#include "sink/kinds.h"

#define BUFFER_MAX ((size_t)2 << 30)      /* ceiling of one line */
#define TAIL_SIZE 512                     /* how much of a command's stderr is kept */
#define READS_MAX 16                      /* per visit, of 4 KiB: what a pipe can hold */
#define GRACE_NS (INT64_C(2000) * MS_NS)  /* from SIGTERM to SIGKILL at the time limit */
#define CANCEL_NS (INT64_C(1000) * MS_NS) /* the same on cancel */
/* what we tell about an event takes less, if it is within its limits */
#define FACTS_MAX 8192

static const struct {
    int code;
    enum sink_status status;
} exit_codes[] = {
    {0, SINK_DELIVERED}, {65, SINK_REJECT}, {75, SINK_RETRY}, {126, SINK_DOWN}, {127, SINK_DOWN},
};

/* One command at work, the leader of a process group of its own.
 * (1) d == NULL: the slot is free. (2) exited: the shell has ended but is not reaped, so that the
 *   number of its group
 * stays ours. (3) killed implies signalled. (4) errfd < 0: nobody holds the other end any more. */
struct run {
    struct delivery *d;
    pid_t pid;
    int pidfd, errfd;
    bool exited, signalled, killed;
    int64_t due; /* when to send the next signal */
    char tail[TAIL_SIZE];
    size_t tail_n;
};

/* (1) runs has `slots` entries, `running` of them not free. (2) epfd watches pidfd and errfd of
 *   every run; data is slot * 2, plus 1
 * for errfd. */
struct exec {
    struct sink base;
    const char *command;
    struct run *runs;
    size_t slots, running;
    int epfd;
    bool cancelling;
    struct buf line;
    struct exec_env *env;
};

/* Starting */

static int not_started(struct error *err, const char *what)
{
    return err_fate(err, ERR_UNAVAILABLE, FATE_DOWN, errno, "could not start the command: %s: %s",
                    what, strerror(errno));
}

/* line_failed: a file without a name, too, must keep within what the process may write. */
static int line_failed(const struct exec *x, struct error *err)
{
    struct rlimit limit;
    bool too_large = errno == EFBIG && getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
                     x->line.n > limit.rlim_cur;
    if (!too_large)
        return not_started(err, "could not write its input");
    return err_fate(
        err, ERR_INVALID, FATE_REJECT, EFBIG,
        "its line of %zu bytes is more than this process may write to a file: %llu (ulimit -f)",
        x->line.n, (unsigned long long)limit.rlim_cur);
}

/* make_stdin puts the line into a file without a name: unlike a pipe, it never blocks us, and it
 * does not matter whether the command reads it. */
static int make_stdin(struct exec *x, const struct delivery *d, int *ret, struct error *err)
{
    buf_clear(&x->line);
    ndjson_write(&x->line, d->ev, str_of(x->base.cfg.consumer), d->attempt);
    if (x->line.failed)
        return err_nomem(err);
    int fd = fd_above_stdio(memfd_create("outbox-event", MFD_CLOEXEC));
    if (fd < 0)
        return not_started(err, "no descriptor for its input");
    for (size_t off = 0; off < x->line.n;) {
        ssize_t k = fd_write(fd, x->line.p + off, x->line.n - off);
        if (k > 0)
            off += (size_t)k;
        if (k > 0 || (k < 0 && errno == EINTR))
            continue;
        line_failed(x, err);
        close(fd);
        return -1;
    }
    if (lseek(fd, 0, SEEK_SET) != 0) {
        not_started(err, "could not rewind its input");
        close(fd);
        return -1;
    }
    *ret = fd;
    return 0;
}

/* make_pipe: our end must not block, the command's must. */
static int make_pipe(int ends[2])
{
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    ends[0] = fd_above_stdio(ends[0]);
    ends[1] = fd_above_stdio(ends[1]);
    if (ends[0] >= 0 && ends[1] >= 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0)
        return 0;
    if (ends[0] >= 0)
        close(ends[0]);
    if (ends[1] >= 0)
        close(ends[1]);
    return -1;
}

static int watch(struct exec *x, const struct run *r)
{
    uint64_t slot = (uint64_t)(r - x->runs);
    struct epoll_event pid = {.events = EPOLLIN, .data.u64 = slot * 2};
    struct epoll_event err = {.events = EPOLLIN, .data.u64 = slot * 2 + 1};
    if (epoll_ctl(x->epfd, EPOLL_CTL_ADD, r->pidfd, &pid) != 0)
        return -1;
    return epoll_ctl(x->epfd, EPOLL_CTL_ADD, r->errfd, &err);
}

/* not_spawned: what is too much may be the event's, or have been there before it. */
static int not_spawned(const struct exec *x, struct error *err)
{
    if (errno != E2BIG)
        return not_started(err, "/bin/sh");
    size_t facts = exec_env_bytes(x->env);
    if (facts > FACTS_MAX)
        return err_fate(
            err, ERR_INVALID, FATE_REJECT, E2BIG,
            "it takes %zu bytes of environment, more than the system lets a command have", facts);
    return err_fate(err, ERR_UNAVAILABLE, FATE_DOWN, E2BIG,
                    "could not start the command: the environment of this process takes all the "
                    "room that the system lets "
                    "a command have");
}

/* launch starts the shell and gets hold of it; a shell that we could not watch is ended again. */
static int launch(struct exec *x, struct run *r, int in, int errput, struct error *err)
{
    struct exec_start s = {x->command, exec_env_list(x->env), in, errput, .group = true};
    int rc = s.env ? exec_start(&s, &r->pid) : ENOMEM;
    if (rc != 0) {
        errno = rc;
        return not_spawned(x, err);
    }
    r->pidfd = pidfd_open(r->pid, 0);
    if (r->pidfd >= 0 && watch(x, r) == 0)
        return 0;
    not_started(err, "could not watch it");
    kill(-r->pid, SIGKILL);
    while (waitpid(r->pid, NULL, 0) < 0 && errno == EINTR) {}
    if (r->pidfd >= 0)
        close(r->pidfd);
    return -1;
}

static struct run *free_slot(struct exec *x)
{
    for (size_t i = 0; i < x->slots; i++)
        if (!x->runs[i].d)
            return &x->runs[i];
    return NULL;
}

static int start(struct exec *x, struct delivery *d, struct error *err)
{
    struct run *r = free_slot(x);
    int in = -1, ends[2];
    if (exec_env_event(x->env, d->ev, d->attempt, x->base.cfg.consumer, err) != 0)
        return -1;
    if (make_stdin(x, d, &in, err) != 0)
        return -1;
    if (make_pipe(ends) != 0) {
        not_started(err, "no pipe for its errors");
        close(in);
        return -1;
    }

    *r = (struct run){.errfd = ends[0], .due = CLOCK_NEVER};
    int rc = launch(x, r, in, ends[1], err);
    close(ends[1]);
    close(in);
    if (rc != 0) {
        close(ends[0]);
        return -1;
    }

    if (x->base.cfg.timeout_ms > 0)
        r->due = clock_mono(x->base.cfg.clock) + x->base.cfg.timeout_ms * MS_NS;
    r->d = d;
    x->running++;
    return 0;
}

static void answer_not_started(struct exec *x, struct delivery *d, const struct error *err)
{
    struct sink_result res = {.status = SINK_DOWN, .native = err->native, .text = err->text};
    if (err->fate == FATE_REJECT) {
        res.status = SINK_REJECT;
        res.unasked = true;
    }
    sink_done(&x->base, d, &res);
}

static size_t exec_submit(struct sink *sk, struct delivery *const *d, size_t n)
{
    struct exec *x = (struct exec *)sk;
    for (size_t i = 0; i < n; i++) {
        struct error err;
        if (x->running == x->slots)
            return i;
        if (start(x, d[i], &err) == 0)
            continue;
        bool alone = err.fate == FATE_REJECT;
        /* With commands at work, the shortage may be their doing: wait for one to end. */
        if (!alone && x->running)
            return i;
        answer_not_started(x, d[i], &err);
        if (!alone)
            return i + 1;
    }
    return n;
}

/* Ending */

static void keep_tail(struct run *r, const char *p, size_t n)
{
    if (n > TAIL_SIZE) {
        p += n - TAIL_SIZE;
        n = TAIL_SIZE;
    }
    size_t over = r->tail_n + n > TAIL_SIZE ? r->tail_n + n - TAIL_SIZE : 0;
    memmove(r->tail, r->tail + over, r->tail_n - over);
    memcpy(r->tail + r->tail_n - over, p, n);
    r->tail_n += n - over;
}

static void close_stderr(struct exec *x, struct run *r)
{
    if (r->errfd < 0)
        return;
    epoll_ctl(x->epfd, EPOLL_CTL_DEL, r->errfd, NULL);
    close(r->errfd);
    r->errfd = -1;
}

/* read_stderr takes what is there, and no more than a full pipe, lest one that never stops keeps us
 * here. */
static void read_stderr(struct exec *x, struct run *r)
{
    char chunk[4096];
    for (int i = 0; i < READS_MAX && r->errfd >= 0; i++) {
        ssize_t n = read(r->errfd, chunk, sizeof chunk);
        if (n > 0)
            keep_tail(r, chunk, (size_t)n);
        else if (n < 0 && errno == EAGAIN)
            return;
        else if (n == 0 || errno != EINTR)
            close_stderr(x, r);
    }
}

/* last_words copies the last line of stderr, made fit to print. */
static void last_words(struct run *r, char out[TAIL_SIZE + 1])
{
    size_t n = r->tail_n;
    while (n && (unsigned char)r->tail[n - 1] <= ' ')
        n--;
    const char *lf = memrchr(r->tail, '\n', n);
    size_t start = lf ? (size_t)(lf + 1 - r->tail) : 0;
    text_clean(out, TAIL_SIZE + 1, r->tail + start, n - start);
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* first_word finds what the command begins with, without the quotes around it. */
static struct str first_word(const char *command)
{
    command += strspn(command, " \t\r\n");
    const char *ends = " \t\r\n";
    if (*command == '"')
        ends = "\"";
    else if (*command == '\'')
        ends = "'";
    if (*command == *ends)
        command++;
    return (struct str){command, strcspn(command, ends)};
}

/* not_there: 126 and 127 are what the shell says of a command that is not there or may not be run.
 * A program may leave with them, too, on one event, and so may a part of the command that only some
 * events get to. So the shell must complain with it, and about what every event begins with. */
static bool not_there(const struct exec *x, const char *words)
{
    char complaint[TAIL_SIZE + 1];
    struct str word = first_word(x->command);
    snprintf(complaint, sizeof complaint, ": %.*s: ", (int)(word.n < 256 ? word.n : 256), word.p);
    bool shell = strncmp(words, "sh: ", 4) == 0 && strstr(words, complaint);
    return shell && (ends_with(words, "not found") || ends_with(words, "Permission denied") ||
                     ends_with(words, "No such file or directory"));
}

/* judge says what the end of a command means, and writes why without its last words. */
static struct sink_result judge(const struct exec *x, const struct run *r, const siginfo_t *si,
                                const char *words, char why[64])
{
    struct sink_result res = {.status = SINK_RETRY, .native = si->si_status};
    bool left = si->si_code == CLD_EXITED;
    if (left)
        snprintf(why, 64, "exit status %d", si->si_status);
    else if (si->si_code)
        snprintf(why, 64, "killed by signal %d", si->si_status);
    if (si->si_code == 0) {
        /* retrying would deliver it again and again, and believe none of it */
        res.status = SINK_FATAL;
        snprintf(why, 64, "exit statuses are lost: this process ignores SIGCHLD");
        return res;
    }
    if (left && si->si_status == 0 && !r->signalled) {
        res.status = SINK_DELIVERED;
    } else if (x->cancelling) {
        /* even with exit status 0, as below: delivering again is safe, believing is not */
        res.status = SINK_CANCELLED;
        snprintf(why, 64, "cancelled");
    } else if (r->signalled) {
        /* Many programs leave with exit status 0 on SIGTERM, their work undone. */
        char limit[32];
        text_duration_show(x->base.cfg.timeout_ms, limit);
        snprintf(why, 64, "timed out after %s", limit);
    } else if (left) {
        for (size_t i = 0; i < sizeof exit_codes / sizeof exit_codes[0]; i++)
            if (exit_codes[i].code == si->si_status)
                res.status = exit_codes[i].status;
        if (res.status == SINK_DOWN && !not_there(x, words))
            res.status = SINK_RETRY;
    }
    return res;
}

/* finish reaps, frees the slot and answers. It waits for the shell, so call it when that has exited
 * or was killed. */
static void finish(struct exec *x, struct run *r)
{
    char why[64], words[TAIL_SIZE + 1], text[sizeof why + sizeof words + 2];
    siginfo_t si = {0};
    /* Whatever is left of a group that was told to end, ends before the event can be tried
     * again. */
    if (r->signalled)
        kill(-r->pid, SIGKILL);
    while (waitid(P_PIDFD, (id_t)r->pidfd, &si, WEXITED) != 0 && errno == EINTR) {}
    read_stderr(x, r);
    last_words(r, words);
    struct sink_result res = judge(x, r, &si, words, why);
    snprintf(text, sizeof text, "%s%s%s", why, words[0] ? ": " : "", words);
    if (res.status != SINK_DELIVERED)
        res.text = text;
    close_stderr(x, r);
    if (!r->exited)
        epoll_ctl(x->epfd, EPOLL_CTL_DEL, r->pidfd, NULL);
    close(r->pidfd);
    struct delivery *d = r->d;
    r->d = NULL;
    x->running--;
    sink_done(&x->base, d, &res);
}

/* check finishes a run that is over. A group that got SIGTERM is over when nobody holds its stderr
 * any more: until SIGKILL, its processes may tidy up even if the shell went first. Otherwise the
 * shell's end is all that counts, and what it left in the background is none of our business. */
static void check(struct exec *x, struct run *r)
{
    if (!r->exited)
        return;
    if (r->signalled && !r->killed && r->errfd >= 0)
        return;
    finish(x, r);
}

static void shell_exited(struct exec *x, struct run *r)
{
    r->exited = true;
    epoll_ctl(x->epfd, EPOLL_CTL_DEL, r->pidfd, NULL);
    read_stderr(x, r);
    check(x, r);
}

/* collect handles what epoll has, waiting for it at most wait_ms. Returns whether there was
 * anything. */
static bool collect(struct exec *x, int wait_ms)
{
    struct epoll_event evs[64];
    int n = epoll_wait(x->epfd, evs, sizeof evs / sizeof evs[0], wait_ms);
    if (n < 0)
        return errno == EINTR;
    for (int i = 0; i < n; i++) {
        struct run *r = &x->runs[evs[i].data.u64 / 2];
        if (!r->d)
            continue; /* ended a moment ago, by its other descriptor */
        if (evs[i].data.u64 % 2 == 0) {
            shell_exited(x, r);
        } else {
            read_stderr(x, r);
            check(x, r);
        }
    }
    return n > 0;
}

static void send_term(struct run *r)
{
    kill(-r->pid, SIGTERM);
    r->signalled = true;
}

static void send_kill(struct run *r)
{
    kill(-r->pid, SIGKILL);
    r->signalled = r->killed = true;
    r->due = CLOCK_NEVER;
}

static void exec_drive(struct sink *sk)
{
    struct exec *x = (struct exec *)sk;
    if (!x->running)
        return;
    collect(x, 0);
    int64_t now = clock_mono(sk->cfg.clock);
    for (size_t i = 0; i < x->slots; i++) {
        struct run *r = &x->runs[i];
        if (!r->d || r->due > now)
            continue;
        if (r->signalled) {
            send_kill(r);
        } else {
            send_term(r);
            r->due = now + GRACE_NS;
        }
        check(x, r);
    }
}

static void exec_cancel(struct sink *sk)
{
    struct exec *x = (struct exec *)sk;
    collect(x, 0);
    x->cancelling = true;
    for (size_t i = 0; i < x->slots; i++)
        if (x->runs[i].d && !x->runs[i].signalled)
            send_term(&x->runs[i]);
    int64_t end = clock_mono(sk->cfg.clock) + CANCEL_NS, left = CANCEL_NS;
    while (x->running && left > 0 && collect(x, (int)(left / MS_NS)))
        left = end - clock_mono(sk->cfg.clock);
    for (size_t i = 0; i < x->slots; i++) {
        if (!x->runs[i].d)
            continue;
        send_kill(&x->runs[i]);
        finish(x, &x->runs[i]);
    }
    x->cancelling = false;
}

static size_t exec_fds(struct sink *sk, struct pollfd *out, size_t max)
{
    struct exec *x = (struct exec *)sk;
    if (!x->running || !max)
        return 0;
    out[0] = (struct pollfd){x->epfd, POLLIN, 0};
    return 1;
}

static int64_t exec_deadline(struct sink *sk)
{
    struct exec *x = (struct exec *)sk;
    int64_t first = CLOCK_NEVER;
    for (size_t i = 0; i < x->slots; i++)
        if (x->runs[i].d && x->runs[i].due < first)
            first = x->runs[i].due;
    return first;
}

static void exec_close(struct sink *sk)
{
    struct exec *x = (struct exec *)sk;
    exec_env_free(x->env);
    buf_release(&x->line);
    if (x->epfd >= 0)
        close(x->epfd);
    free(x->runs);
    free(x);
}

static int exec_open(const struct sink_config *cfg, struct sink **ret, struct error *err)
{
    const char *command = cfg->url + strlen("exec:");
    struct sigaction child;
    if (sigaction(SIGCHLD, NULL, &child) == 0 &&
        (child.sa_handler == SIG_IGN || (child.sa_flags & SA_NOCLDWAIT)))
        return err_set(err, ERR_CONFIG,
                       "exec: this process ignores SIGCHLD, so exit statuses would be lost");
    if (!command[strspn(command, " \t\r\n")])
        return err_set(err, ERR_CONFIG, "exec: needs a command: exec:COMMAND");
    struct exec *x = calloc(1, sizeof *x);
    if (!x)
        return err_nomem(err);
    x->base = (struct sink){&exec_ops, *cfg};
    x->command = command;
    x->slots = cfg->concurrency > 1 ? (size_t)cfg->concurrency : 1;
    x->epfd = fd_above_stdio(epoll_create1(EPOLL_CLOEXEC));
    buf_init(&x->line, BUFFER_MAX);
    int rc = 0;
    if (strlen(command) >= exec_env_string_max())
        rc = err_set(
            err, ERR_CONFIG,
            "exec: a command of %zu bytes is too long: the limit is %zu; put it into a file",
            strlen(command), exec_env_string_max() - 1);
    else if (x->epfd < 0)
        rc = err_errno(err, ERR_UNAVAILABLE, errno, "could not get ready to run commands");
    else if (!(x->runs = calloc(x->slots, sizeof *x->runs)))
        rc = err_nomem(err);
    else if (exec_env_new(cfg->exec_env, &x->env, err) != 0)
        rc = err_prefix(err, "exec-env");
    if (rc != 0)
        exec_close(&x->base);
    else
        *ret = &x->base;
    return rc;
}

const struct sink_ops exec_ops = {
    .scheme = "exec",
    .synopsis = "exec:COMMAND",
    .help = "runs a shell command per event: the event on stdin, exit status 0 means delivered",
    .open = exec_open,
    .close = exec_close,
    .submit = exec_submit,
    .drive = exec_drive,
    .fds = exec_fds,
    .deadline = exec_deadline,
    .cancel = exec_cancel,
};
