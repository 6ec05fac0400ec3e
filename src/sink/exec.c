/* exec.c: the sink that runs a shell command per event, many in parallel. */
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
#include "base/num.h"
#include "base/text.h"
#include "event/event_json.h"
#include "sink/exec_env.h"
#include "sink/kinds.h"
#include "sink/sink.h"

#define WORD_MAX 256                      /* bytes of a command's first word that are compared */
#define BUFFER_MAX ((size_t)2 << 30)      /* limit on one line */
#define READS_MAX 16                      /* reads of 4 KiB per visit: a full pipe */
#define GRACE_NS (INT64_C(2000) * MS_NS)  /* from SIGTERM to SIGKILL at the time limit */
#define CANCEL_NS (INT64_C(1000) * MS_NS) /* the same on cancel */
/* Upper bound on an event's environment, given the limits of an event. */
#define FACTS_MAX 8192

#define TAIL_MAX 512 /* bytes kept of a command's stderr */
#define WHY_MAX 64
#define TEXT_MAX (WHY_MAX + TAIL_MAX + 4)
#define BLANKS " \t\r\n"

/* Signals sent to a command so far. */
enum told {
    TOLD_NOTHING,
    TOLD_TO_END, /* SIGTERM */
    KILLED,      /* SIGKILL */
};

/* A running command, the leader of its own process group. (1) d == NULL: the slot is free. (2)
 * exited: the shell has ended but is not reaped yet, so its process group id cannot be reused. (3)
 * `told` never decreases. (4) errfd < 0: the other end is closed. */
struct run {
    struct delivery *d;
    pid_t pid;
    int pidfd, errfd;
    bool exited;
    enum told told;
    int64_t due; /* when the next signal is due */
    char tail[TAIL_MAX];
    size_t tail_n;
};

/* (1) runs has `slots` entries, `running` of them in use. (2) epfd watches pidfd and errfd of every
 * run; its event data is slot * 2, plus 1 for errfd. */
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

/* ---- results ---- */

/* Results by exit status; any other status is SINK_RETRY. */
static const struct {
    int code;
    enum sink_status status;
} exit_codes[] = {
    {0, SINK_DELIVERED}, {65, SINK_REJECT}, {75, SINK_RETRY}, {126, SINK_DOWN}, {127, SINK_DOWN},
};

/* Copies the last line of stderr, cleaned for printing. */
static void last_words(const struct run *r, char out[TAIL_MAX + 1])
{
    size_t n = r->tail_n;
    while (n && (unsigned char)r->tail[n - 1] <= ' ')
        n--;

    const char *line = r->tail, *end = r->tail + n;
    const char *lf = memrchr(r->tail, '\n', n);
    if (lf)
        line = lf + 1;
    text_clean(out, TAIL_MAX + 1, line, (size_t)(end - line));
}

/* Returns whether the shell reported, with exit status 126 or 127, that the command is missing or
 * not executable. A program may exit with these statuses too, for a single event, and so may a
 * later part of the command that only some events reach. The message must therefore originate from
 * the shell and name the first word of the command, which is the same for every event. */
static bool is_missing(const struct exec *x, const char *words)
{
    static const char *const complaints[] = {"not found", "Permission denied",
                                             "No such file or directory"};
    const char *word = x->command + strspn(x->command, BLANKS), *ends = BLANKS;
    if (*word == '"')
        ends = "\"";
    else if (*word == '\'')
        ends = "'";
    if (*word == *ends)
        word++;

    char about[WORD_MAX + 8];
    size_t n = min_size(strcspn(word, ends), WORD_MAX);
    snprintf(about, sizeof about, ": %.*s: ", (int)n, word);
    bool from_shell = strncmp(words, "sh: ", 4) == 0 && strstr(words, about);
    if (!from_shell)
        return false;
    for (size_t i = 0; i < sizeof complaints / sizeof complaints[0]; i++) {
        size_t end = strlen(complaints[i]);
        if (strlen(words) >= end && strcmp(words + strlen(words) - end, complaints[i]) == 0)
            return true;
    }
    return false;
}

/* Returns the result of a command and writes the reason, without the command's last line. A command
 * that received SIGTERM has not delivered, even with exit status 0: many programs exit with 0 on
 * SIGTERM without finishing their work. A second delivery is safe; trusting that status is not. */
static struct sink_result judge(const struct exec *x, const struct run *r, const siginfo_t *si,
                                const char *words, char why[WHY_MAX])
{
    struct sink_result res = {.status = SINK_RETRY, .native = si->si_status};
    bool exited = si->si_code == CLD_EXITED;
    bool succeeded = exited && si->si_status == 0 && r->told == TOLD_NOTHING;

    if (si->si_code == 0) {
        /* Retries would deliver the event repeatedly, without a known result. */
        res.status = SINK_FATAL;
        snprintf(why, WHY_MAX, "exit statuses are lost because this process ignores SIGCHLD");
    } else if (succeeded) {
        res.status = SINK_DELIVERED;
    } else if (x->cancelling) {
        res.status = SINK_CANCELLED;
        snprintf(why, WHY_MAX, "cancelled");
    } else if (r->told != TOLD_NOTHING) {
        char limit[32];
        text_duration_show(x->base.cfg.timeout_ms, limit);
        snprintf(why, WHY_MAX, "timed out after %s", limit);
    } else if (exited) {
        for (size_t i = 0; i < sizeof exit_codes / sizeof exit_codes[0]; i++) {
            if (exit_codes[i].code == si->si_status)
                res.status = exit_codes[i].status;
        }
        if (res.status == SINK_DOWN && !is_missing(x, words))
            res.status = SINK_RETRY;
        snprintf(why, WHY_MAX, "exit status %d", si->si_status);
    } else {
        snprintf(why, WHY_MAX, "killed by signal %d", si->si_status);
    }
    return res;
}

/* Returns the result of a command from the siginfo of waitid. The result borrows the reason, which
 * is written to text. */
static struct sink_result judge_exit(const struct exec *x, const struct run *r, const siginfo_t *si,
                                     char text[TEXT_MAX])
{
    char why[WHY_MAX] = "", words[TAIL_MAX + 1];
    last_words(r, words);
    struct sink_result res = judge(x, r, si, words, why);
    if (res.status == SINK_DELIVERED)
        return res;
    snprintf(text, TEXT_MAX, "%s%s%s", why, words[0] ? ": " : "", words);
    res.text = text;
    return res;
}

/* ---- starting ---- */

/* Reports, with errno, why a command could not start. The event is not at fault. */
static int not_started(struct error *err, const char *what)
{
    return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, errno, "could not start the command: %s: %s",
                     what, strerror(errno));
}

/* Writes the line to fd and rewinds it. The file size limit applies even to an unnamed file: a
 * longer line can never be delivered. */
static int write_line(const struct exec *x, int fd, struct error *err)
{
    struct str rest = {x->line.p, x->line.n};
    while (rest.n > 0) {
        ssize_t k = fd_write(fd, rest.p, rest.n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k > 0) {
            rest.p += k;
            rest.n -= (size_t)k;
            continue;
        }

        struct rlimit limit;
        bool limited = errno == EFBIG && getrlimit(RLIMIT_FSIZE, &limit) == 0;
        if (limited && x->line.n > limit.rlim_cur)
            return err_class(err, ERR_INVALID, CLASS_REJECT, EFBIG,
                             "the event's line of %zu bytes exceeds the file size limit of this "
                             "process: %llu (ulimit -f)",
                             x->line.n, (unsigned long long)limit.rlim_cur);
        return not_started(err, "could not write its input");
    }
    if (lseek(fd, 0, SEEK_SET) != 0)
        return not_started(err, "could not rewind its input");
    return 0;
}

/* Writes the line to an unnamed file. Unlike a pipe, the file never blocks us, and the command may
 * leave it unread. */
static int make_stdin(struct exec *x, const struct delivery *d, int *ret, struct error *err)
{
    buf_clear(&x->line);
    event_line_write(&x->line, d->ev, str_of(x->base.cfg.consumer), d->attempt);
    if (x->line.failed)
        return err_nomem(err);

    int fd = fd_above_stdio(memfd_create("outbox-event", MFD_CLOEXEC));
    if (fd < 0)
        return not_started(err, "no file descriptor left for its input");
    if (write_line(x, fd, err) != 0) {
        close(fd);
        return -1;
    }
    *ret = fd;
    return 0;
}

static void close_if_open(int fd)
{
    if (fd >= 0)
        close(fd);
}

/* Creates a pipe. Our end, ends[0], is non-blocking; the command's end is blocking. Returns -1 with
 * errno on failure. */
static int make_pipe(int ends[2])
{
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    ends[0] = fd_above_stdio(ends[0]);
    ends[1] = fd_above_stdio(ends[1]);
    bool open = ends[0] >= 0 && ends[1] >= 0;
    if (open && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0)
        return 0;
    close_if_open(ends[0]);
    close_if_open(ends[1]);
    return -1;
}

static int watch_run(struct exec *x, const struct run *r)
{
    uint64_t slot = (uint64_t)(r - x->runs);
    struct epoll_event pid = {.events = EPOLLIN, .data.u64 = slot * 2};
    struct epoll_event err = {.events = EPOLLIN, .data.u64 = slot * 2 + 1};
    if (epoll_ctl(x->epfd, EPOLL_CTL_ADD, r->pidfd, &pid) != 0)
        return -1;
    return epoll_ctl(x->epfd, EPOLL_CTL_ADD, r->errfd, &err);
}

/* Starts the shell and watches it. A shell that cannot be watched is killed. If the environment is
 * too large, the cause is either the event or the variables passed on from this process. */
static int start_shell(struct exec *x, struct run *r, struct exec_start *s, struct error *err)
{
    s->command = x->command;
    s->group = true;
    s->env = exec_env_list(x->env);
    errno = ENOMEM;
    if (s->env)
        errno = exec_start(s, &r->pid);
    size_t facts = exec_env_bytes(x->env);
    if (errno == E2BIG && facts > FACTS_MAX)
        return err_class(err, ERR_INVALID, CLASS_REJECT, E2BIG,
                         "the event's environment takes %zu bytes, more than the system allows",
                         facts);
    if (errno == E2BIG)
        return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, E2BIG,
                         "could not start the command: the environment of this process uses all "
                         "the space that the system allows");
    if (errno != 0)
        return not_started(err, "/bin/sh");

    r->pidfd = pidfd_open(r->pid, 0);
    if (r->pidfd >= 0 && watch_run(x, r) == 0)
        return 0;
    not_started(err, "could not watch its process");
    kill(-r->pid, SIGKILL);
    while (waitpid(r->pid, NULL, 0) < 0 && errno == EINTR) {}
    close_if_open(r->pidfd);
    return -1;
}

/* Runs the command for an event. A slot must be free. Fails with ERR_INVALID and CLASS_REJECT if no
 * command can receive this event. */
static int start_run(struct exec *x, struct delivery *d, struct error *err)
{
    struct run *r = x->runs;
    int in = -1;
    int ends[2];
    while (r->d)
        r++; /* find a free slot */
    if (exec_env_event(x->env, d->ev, d->attempt, x->base.cfg.consumer, err) != 0)
        return -1;
    if (make_stdin(x, d, &in, err) != 0)
        return -1;
    if (make_pipe(ends) != 0) {
        not_started(err, "no pipe for its standard error");
        close(in);
        return -1;
    }

    *r = (struct run){.errfd = ends[0], .due = CLOCK_NEVER};
    struct exec_start s = {.in = in, .err = ends[1]};
    int rc = start_shell(x, r, &s, err);
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

static size_t exec_submit(struct sink *sk, struct delivery *const *d, size_t n)
{
    struct exec *x = (struct exec *)sk;
    for (size_t i = 0; i < n; i++) {
        struct error err;
        if (x->running == x->slots)
            return i;
        if (start_run(x, d[i], &err) == 0)
            continue;

        bool event_to_blame = err.retry_class == CLASS_REJECT;
        /* Running commands may have caused the shortage: wait until one of them ends. */
        if (!event_to_blame && x->running)
            return i;
        struct sink_result res = {.status = SINK_DOWN, .native = err.native, .text = err.text};
        if (event_to_blame) {
            res.status = SINK_REJECT;
            res.unasked = true;
        }
        sink_done(sk, d[i], &res);
        if (!event_to_blame)
            return i + 1;
    }
    return n;
}

/* Ending */

/* Appends to the tail, which keeps only the last TAIL_MAX bytes. */
static void keep_tail(struct run *r, const char *p, size_t n)
{
    if (n > TAIL_MAX) {
        p += n - TAIL_MAX;
        n = TAIL_MAX;
    }
    size_t over = 0;
    if (r->tail_n + n > TAIL_MAX)
        over = r->tail_n + n - TAIL_MAX;
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

/* Reads the available data, but at most a full pipe: a command that never stops writing must not
 * block us. */
static void read_stderr(struct exec *x, struct run *r)
{
    char chunk[4096];
    for (int i = 0; i < READS_MAX && r->errfd >= 0; i++) {
        ssize_t n = read(r->errfd, chunk, sizeof chunk);
        if (n > 0) {
            keep_tail(r, chunk, (size_t)n);
            continue;
        }
        if (n < 0 && errno == EAGAIN)
            return;
        if (n == 0 || errno != EINTR)
            close_stderr(x, r);
    }
}

/* Reaps the shell, frees the slot and reports the result. Blocks unless the shell has exited or
 * been killed. */
static void finish_run(struct exec *x, struct run *r)
{
    char text[TEXT_MAX];
    siginfo_t si = {0};
    struct delivery *d = r->d;
    /* The processes left in a signalled group must end before the event is retried. */
    if (r->told != TOLD_NOTHING)
        kill(-r->pid, SIGKILL);
    while (waitid(P_PIDFD, (id_t)r->pidfd, &si, WEXITED) != 0 && errno == EINTR) {}
    read_stderr(x, r);

    struct sink_result res = judge_exit(x, r, &si, text);
    close_stderr(x, r);
    if (!r->exited)
        epoll_ctl(x->epfd, EPOLL_CTL_DEL, r->pidfd, NULL);
    close(r->pidfd);
    r->d = NULL;
    x->running--;
    sink_done(&x->base, d, &res);
}

/* Finishes a run that is over. A group that received SIGTERM is over once none of its processes
 * holds its stderr: until SIGKILL they may clean up, even if the shell has already exited.
 * Otherwise only the shell's exit counts; background processes that it started are ignored. */
static void finish_if_over(struct exec *x, struct run *r)
{
    bool tidying_up = r->told == TOLD_TO_END && r->errfd >= 0;
    if (r->exited && !tidying_up)
        finish_run(x, r);
}

/* Handles epoll events after waiting at most wait_ms. Returns whether any occurred. */
static bool collect_runs(struct exec *x, int wait_ms)
{
    struct epoll_event evs[64];
    int n = epoll_wait(x->epfd, evs, sizeof evs / sizeof evs[0], wait_ms);
    if (n < 0)
        return errno == EINTR;
    for (int i = 0; i < n; i++) {
        struct run *r = &x->runs[evs[i].data.u64 / 2];
        bool about_stderr = evs[i].data.u64 % 2 == 1;
        if (!r->d)
            continue; /* the run's other descriptor just ended it */
        if (!about_stderr) {
            r->exited = true;
            epoll_ctl(x->epfd, EPOLL_CTL_DEL, r->pidfd, NULL);
        }
        read_stderr(x, r);
        finish_if_over(x, r);
    }
    return n > 0;
}

static void tell_to_end(struct run *r)
{
    kill(-r->pid, SIGTERM);
    r->told = TOLD_TO_END;
}

static void kill_run(struct run *r)
{
    kill(-r->pid, SIGKILL);
    r->told = KILLED;
    r->due = CLOCK_NEVER;
}

static void exec_drive(struct sink *sk)
{
    struct exec *x = (struct exec *)sk;
    if (!x->running)
        return;
    collect_runs(x, 0);

    int64_t now = clock_mono(sk->cfg.clock);
    for (size_t i = 0; i < x->slots; i++) {
        struct run *r = &x->runs[i];
        if (!r->d || r->due > now)
            continue;
        if (r->told == TOLD_NOTHING) {
            tell_to_end(r);
            r->due = now + GRACE_NS;
        } else {
            kill_run(r);
        }
        finish_if_over(x, r);
    }
}

/* Sends SIGTERM to all commands, waits briefly, and kills the rest. */
static void exec_cancel(struct sink *sk)
{
    struct exec *x = (struct exec *)sk;
    collect_runs(x, 0);
    x->cancelling = true;
    for (size_t i = 0; i < x->slots; i++) {
        struct run *r = &x->runs[i];
        if (r->d && r->told == TOLD_NOTHING)
            tell_to_end(r);
    }

    int64_t end = clock_mono(sk->cfg.clock) + CANCEL_NS, left = CANCEL_NS;
    while (x->running && left > 0 && collect_runs(x, (int)(left / MS_NS)))
        left = end - clock_mono(sk->cfg.clock);

    for (size_t i = 0; i < x->slots; i++) {
        struct run *r = &x->runs[i];
        if (!r->d)
            continue;
        kill_run(r);
        finish_run(x, r);
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
    const struct exec *x = (const struct exec *)sk;
    int64_t first = CLOCK_NEVER;
    for (size_t i = 0; i < x->slots; i++) {
        const struct run *r = &x->runs[i];
        if (r->d && r->due < first)
            first = r->due;
    }
    return first;
}

static void exec_close(struct sink *sk)
{
    struct exec *x = (struct exec *)sk;
    exec_env_free(x->env);
    buf_release(&x->line);
    close_if_open(x->epfd);
    free(x->runs);
    free(x);
}

static int check_command(const char *command, struct error *err)
{
    size_t n = strlen(command), max = exec_env_string_max() - 1;
    bool empty = command[strspn(command, BLANKS)] == '\0';
    /* If SIGCHLD is ignored, the kernel reaps children and discards their exit statuses. */
    struct sigaction child;
    bool asked = sigaction(SIGCHLD, NULL, &child) == 0;
    if (asked && (child.sa_handler == SIG_IGN || (child.sa_flags & SA_NOCLDWAIT)))
        return err_set(err, ERR_CONFIG,
                       "exec: this process ignores SIGCHLD, which would lose exit statuses");
    if (empty)
        return err_set(err, ERR_CONFIG, "exec: the command is missing: write exec:COMMAND");
    if (n > max)
        return err_set(err, ERR_CONFIG,
                       "exec: the command has %zu bytes; the limit is %zu: move it into a file", n,
                       max);
    return 0;
}

static int exec_open(const struct sink_config *cfg, struct sink **ret, struct error *err)
{
    const char *command = cfg->url + strlen("exec:");
    if (check_command(command, err) != 0)
        return -1;
    struct exec *x = calloc(1, sizeof *x);
    if (!x)
        return err_nomem(err);
    x->base = (struct sink){.ops = &exec_ops, .cfg = *cfg};
    x->command = command;
    x->slots = cfg->concurrency > 1 ? (size_t)cfg->concurrency : 1;

    buf_init(&x->line, BUFFER_MAX);
    x->epfd = fd_above_stdio(epoll_create1(EPOLL_CLOEXEC));
    x->runs = calloc(x->slots, sizeof *x->runs);
    int rc = 0;
    if (x->epfd < 0)
        rc = err_errno(err, ERR_UNAVAILABLE, errno, "could not prepare to run commands");
    else if (!x->runs)
        rc = err_nomem(err);
    else if (exec_env_new(cfg->exec_env, &x->env, err) != 0)
        rc = err_prefix(err, "exec-env");
    if (rc != 0) {
        exec_close(&x->base);
        return -1;
    }
    *ret = &x->base;
    return 0;
}

const struct sink_ops exec_ops = {
    .scheme = "exec",
    .synopsis = "exec:COMMAND",
    .help = "runs a shell command per event, which is on stdin; exit status 0 means delivered",
    .open = exec_open,
    .close = exec_close,
    .submit = exec_submit,
    .drive = exec_drive,
    .fds = exec_fds,
    .deadline = exec_deadline,
    .cancel = exec_cancel,
};
