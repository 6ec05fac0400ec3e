/* wakeup URL OUT N [LEAST MOST]: the wake-up latency of an idle relay that delivers to OUT. A
 * separate process commits N events, LEAST to MOST microseconds apart (2,000 to 20,000); this one
 * watches OUT and records when each line can be read. */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "outbox.h"

/* Times of one event. The committing process writes the first two. */
struct times {
    int64_t started, returned, seen;
};

/* Emits at times fixed in advance: a slow emit does not delay the next. */
static void emit_all(const char *url, struct times *t, size_t n, const int64_t apart_us[2])
{
    char payload[64];
    outbox *ob;
    outbox_error err;
    if (outbox_open(url, NULL, &ob, &err) != 0)
        bench_die("%s", err.text);
    srandom(1);
    int64_t due = bench_now();
    for (size_t i = 0; i < n; i++) {
        outbox_message m = OUTBOX_MESSAGE_INIT;
        m.type = "wake.up";
        m.payload = payload;
        due += 1000 * (apart_us[0] + random() % (apart_us[1] - apart_us[0] + 1));
        bench_sleep_until(due);
        t[i].started = bench_now();
        snprintf(payload, sizeof payload, "{\"started\":%lld,\"wake\":%zu}",
                 (long long)t[i].started, i);
        if (outbox_emit(ob, &m, NULL, &err) != 0)
            bench_die("%s", err.text);
        t[i].returned = bench_now();
    }
    outbox_close(ob);
}

struct watch {
    int fd, log;
    char text[65536];
    size_t n;
};

static void open_watch(struct watch *w, const char *path)
{
    w->fd = open(path, O_RDONLY | O_CREAT | O_CLOEXEC, 0644);
    w->log = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (w->fd < 0 || w->log < 0 || inotify_add_watch(w->log, path, IN_MODIFY) < 0)
        bench_die("%s: %m", path);
    lseek(w->fd, 0, SEEK_END);
    w->n = 0;
}

/* Blocks until the file has grown; ends the program if it does not within 10 s. */
static void wait_for_more(struct watch *w)
{
    char events[4096];
    struct pollfd fd = {.fd = w->log, .events = POLLIN};
    if (poll(&fd, 1, 10000) <= 0)
        bench_die("no line arrived within 10 s: is the relay running?");
    while (read(w->log, events, sizeof events) > 0)
        continue;
}

/* Records the events of the complete lines read so far; returns how many were new. */
static size_t take_lines(struct watch *w, struct times *t, size_t n, int64_t now)
{
    size_t fresh = 0;
    char *line = w->text, *end;
    while ((end = memchr(line, '\n', w->n - (size_t)(line - w->text))) != NULL) {
        *end = '\0';
        const char *wake = strstr(line, "\"wake\":");
        size_t i = wake ? strtoull(wake + 7, NULL, 10) : n;
        if (i < n && !t[i].seen) {
            t[i].seen = now;
            fresh++;
        }
        line = end + 1;
    }
    w->n -= (size_t)(line - w->text);
    memmove(w->text, line, w->n);
    return fresh;
}

static void watch_all(struct watch *w, struct times *t, size_t n)
{
    for (size_t seen = 0; seen < n;) {
        ssize_t k = read(w->fd, w->text + w->n, sizeof w->text - w->n);
        if (k < 0)
            bench_die("read: %m");
        if (k == 0) {
            wait_for_more(w);
            continue;
        }
        w->n += (size_t)k;
        seen += take_lines(w, t, n, bench_now());
    }
}

int main(int argc, char **argv)
{
    if (argc != 4 && argc != 6)
        bench_die("usage: %s URL OUT N [LEAST MOST]", argv[0]);
    size_t n = strtoull(argv[3], NULL, 10);
    int64_t apart_us[] = {2000, 20000};
    if (argc == 6) {
        apart_us[0] = atoll(argv[4]);
        apart_us[1] = atoll(argv[5]);
    }
    if (apart_us[0] < 0 || apart_us[1] < apart_us[0])
        bench_die("LEAST and MOST are microseconds");
    struct times *t = mmap(NULL, n * sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                           -1, 0);
    int64_t *ns = calloc(n, sizeof *ns);
    static struct watch w;
    if (t == MAP_FAILED || !ns)
        bench_die("out of memory");
    open_watch(&w, argv[2]);
    pid_t child = fork();
    if (child == 0) {
        emit_all(argv[1], t, n, apart_us);
        _exit(0);
    }
    int status;
    watch_all(&w, t, n);
    if (waitpid(child, &status, 0) != child || status != 0)
        bench_die("the committing process failed");
    printf("{\"events\":%zu,", n);
    for (size_t i = 0; i < n; i++)
        ns[i] = t[i].seen - t[i].returned;
    bench_print("returned", ns, n);
    for (size_t i = 0; i < n; i++)
        ns[i] = t[i].seen - t[i].started;
    printf(",");
    bench_print("started", ns, n);
    printf("}\n");
    free(ns);
    return 0;
}
