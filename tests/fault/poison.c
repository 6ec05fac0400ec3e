/* poison.c: an application whose handler dies of certain events, and the whole process with it.
 *
 *     fault_poison DATABASE FILE
 *
 * It runs the consumer "mail" until it is through. The handler appends "SEQ KEY ATTEMPT" of each event to FILE and syncs
 * it; an event of the type "poison" kills the process instead. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "outbox.h"

static _Noreturn void die(const char *what, const char *why)
{
    fprintf(stderr, "poison: %s: %s\n", what, why);
    exit(1);
}

static outbox_verdict handle(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    char line[128];
    const int *fd = ctx;
    if (strcmp(outbox_event_type(ev), "poison") == 0) raise(SIGKILL);
    const char *key = outbox_event_aggregate_id(ev);
    int n = snprintf(line, sizeof line, "%lld %s %d\n", (long long)outbox_event_seq(ev), key ? key : "-",
                     outbox_event_attempt(ev));
    if (write(*fd, line, (size_t)n) != n || fdatasync(*fd) != 0) return outbox_fail(tx, OUTBOX_DOWN, "cannot write");
    return OUTBOX_DONE;
}

static void set(outbox_consumer *c, const char *option, const char *value)
{
    outbox_error err;
    if (outbox_consumer_set(c, option, value, &err) != 0) die(option, err.text);
}

int main(int argc, char **argv)
{
    outbox *ob;
    outbox_consumer *c;
    outbox_error err;
    char url[4096];
    if (argc != 3) die("usage", "fault_poison DATABASE FILE");
    int fd = open(argv[2], O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) die("open", argv[2]);
    snprintf(url, sizeof url, "sqlite:%s", argv[1]);
    if (outbox_open(url, NULL, &ob, &err) != 0) die(argv[1], err.text);
    if (outbox_consumer_new(ob, "mail", &c, &err) != 0) die("consumer", err.text);
    if (outbox_on(c, "*", handle, &fd, &err) != 0) die("handler", err.text);
    set(c, "lease", "150ms");
    set(c, "retry", "base=10ms,attempts=3,jitter=none");
    if (outbox_run(ob, OUTBOX_UNTIL_THROUGH, &err) != 0) die("run", err.text);
    outbox_close(ob);
    close(fd);
    return 0;
}
