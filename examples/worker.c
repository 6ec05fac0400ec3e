/* worker.c: a program that delivers events itself, with claim, extend and settle.
 *
 *     worker STORE [CONSUMER]
 *
 * It registers the consumers "mail" and "audit" and delivers the events of CONSUMER, or of all
 * consumers: here, as lines on standard output. It fails payments on the first attempt. It ends
 * when nothing is due any more. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "outbox.h"

static outbox_error err;

static void must(int result, const char *what)
{
    if (result == 0)
        return;
    fprintf(stderr, "worker: %s: %s\n", what, err.text);
    exit(1);
}

static void add_consumer(outbox *ob, const char *name, const char *events)
{
    outbox_consumer *c;
    must(outbox_consumer_new(ob, name, &c, &err), name);
    must(outbox_consumer_set(c, "events", events, &err), name);
    must(outbox_consumer_set(c, "retry", "base=1ms,cap=1ms,attempts=3,jitter=none", &err), name);
    must(outbox_consumer_register(c, &err), name);
}

static outbox_verdict deliver(const char *consumer, const outbox_event *ev)
{
    int is_payment = strcmp(outbox_event_type(ev), "order.paid") == 0;
    if (is_payment && outbox_event_attempt(ev) == 1)
        return OUTBOX_RETRY;
    printf("%s %s %s\n", consumer, outbox_event_type(ev), outbox_event_payload(ev, NULL));
    return OUTBOX_DONE;
}

/* Claims a batch, delivers it and settles it. Returns its number of events. */
static size_t work(outbox *ob, const outbox_claim *claim, int64_t *ret_wait_ms)
{
    outbox_batch *batch;
    const outbox_event *ev;
    must(outbox_claim_batch(ob, claim, &batch, &err), "claim");
    size_t n = outbox_batch_count(batch);
    while ((ev = outbox_batch_next(batch)) != NULL) {
        outbox_verdict verdict = deliver(outbox_batch_consumer(batch, ev), ev);
        must(outbox_batch_verdict(batch, ev, verdict, 0, "refused", &err), "verdict");
        must(outbox_batch_extend(batch, claim->lease_ms, &err), "extend");
    }
    must(outbox_batch_settle(batch, &err), "settle");
    *ret_wait_ms = outbox_batch_wait(batch);
    outbox_batch_free(batch);
    return n;
}

int main(int argc, char **argv)
{
    outbox *ob;
    int64_t wait_ms = 0;
    char name[64];
    if (argc < 2) {
        fprintf(stderr, "usage: worker STORE [CONSUMER]\n");
        return 64;
    }
    must(outbox_open(argv[1], NULL, &ob, &err), "open");
    add_consumer(ob, "mail", "order.*");
    add_consumer(ob, "audit", "*");
    snprintf(name, sizeof name, "worker/%ld", (long)getpid());

    outbox_claim claim = OUTBOX_CLAIM_INIT;
    claim.worker = name;
    claim.limit = 50;
    claim.target = argc > 2 ? argv[2] : NULL;
    claim.lease_ms = 10000;
    while (wait_ms >= 0) {
        if (work(ob, &claim, &wait_ms) > 0)
            wait_ms = 0;
        else if (wait_ms > 0)
            usleep((useconds_t)wait_ms * 1000);
    }
    outbox_close(ob);
    return 0;
}
