/* poison.c: an application whose handler dies of certain events, and the whole process with it.
 *
 *     fault_poison STORE-URL FILE
 *
 * It runs two consumers until no work is left. Their handlers append "SEQ KEY ATTEMPT" of each
 * event to a file and sync it: that of "audit" to FILE.audit, and that of "mail" to FILE, except
 * that an event of the type "poison" kills the process instead. */
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

static outbox_verdict note(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    char line[128];
    const int *fd = ctx;
    const char *key = outbox_event_aggregate_id(ev);
    int n = snprintf(line, sizeof line, "%lld %s %d\n", (long long)outbox_event_seq(ev),
                     key ? key : "-", outbox_event_attempt(ev));
    if (write(*fd, line, (size_t)n) != n || fdatasync(*fd) != 0)
        return outbox_fail(tx, OUTBOX_DOWN, "cannot write");
    return OUTBOX_DONE;
}

static outbox_verdict eat(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    if (strcmp(outbox_event_type(ev), "poison") == 0)
        raise(SIGKILL);
    return note(ev, tx, ctx);
}

static int open_file(const char *path)
{
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        die("open", path);
    return fd;
}

static void set(outbox_consumer *c, const char *option, const char *value)
{
    outbox_error err;
    if (outbox_consumer_set(c, option, value, &err) != 0)
        die(option, err.text);
}

static void add(outbox *ob, const char *name, outbox_handler handler, int *fd)
{
    outbox_consumer *c;
    outbox_error err;
    if (outbox_consumer_new(ob, name, &c, &err) != 0)
        die(name, err.text);
    if (outbox_on(c, "*", handler, fd, &err) != 0)
        die(name, err.text);
    set(c, "lease", "150ms");
    set(c, "retry", "base=10ms,attempts=3,jitter=none,outage=0s");
}

int main(int argc, char **argv)
{
    outbox *ob;
    outbox_error err;
    char audit_path[4096];
    if (argc != 3)
        die("usage", "fault_poison STORE-URL FILE");
    snprintf(audit_path, sizeof audit_path, "%s.audit", argv[2]);
    int mail = open_file(argv[2]), audit = open_file(audit_path);
    if (outbox_open(argv[1], NULL, &ob, &err) != 0)
        die(argv[1], err.text);
    add(ob, "mail", eat, &mail);
    add(ob, "audit", note, &audit);
    if (outbox_run(ob, OUTBOX_UNTIL_THROUGH, &err) != 0)
        die("run", err.text);
    outbox_close(ob);
    close(mail);
    close(audit);
    return 0;
}
