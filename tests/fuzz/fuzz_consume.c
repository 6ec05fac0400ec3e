/* Replies of Redis to a member of a consumer group. The first byte of the input selects how the
 * member works, the rest is sent by the server on one connection. Whatever the server sends, the
 * member ends. It acknowledges only entries that it received, as many as it handled or skipped, and
 * none whose handling failed. */
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "extra/streams/stream_reader.h"
#include "fuzz.h"
#include "peer.h"
#include "resp.h"

#define HEARD_MAX (1 << 20)
#define PAUSES 2

enum { WITH_SNAPSHOT = 1, FAILS = 2, FAILS_ONCE = 4, SEVERAL_STREAMS = 8 };

static struct {
    int wake, pauses;
    uint8_t how;
    const char *next; /* the rest of the server's answers */
    size_t left;
    int64_t handled, failed;
} run;

int __real_poll(struct pollfd *fds, nfds_t n, int timeout);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout);
int __wrap___poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t size);

/* answer sends the next reply, or the rest of the input if that is incomplete. At the end the
 * server closes the connection. */
static void answer(void)
{
    size_t n = 0;
    void *r = NULL;
    redisReader *reader = resp_reader();
    while (n < run.left && !r && redisReaderFeed(reader, run.next + n, 1) == REDIS_OK) {
        n++;
        if (redisReaderGetReply(reader, &r) != REDIS_OK)
            n = run.left;
    }
    if (r)
        freeReplyObject(r);
    redisReaderFree(reader);
    peer_say(run.next, n);
    if (n == run.left)
        peer_end();
    run.next += n;
    run.left -= n;
}

/* Waiting for the server makes it answer. A pause between two attempts ends at once; after some
 * pauses the member is told to stop. */
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout)
{
    uint64_t one = 1;
    if (n == 2)
        answer();
    bool pause = n == 1 && fds[0].fd == run.wake && timeout > 0;
    if (pause && ++run.pauses > PAUSES && write(run.wake, &one, sizeof one) < 0)
        abort();
    return __real_poll(fds, n, pause ? 0 : timeout);
}

/* The name of poll where the compiler knows the size of the array. */
int __wrap___poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t size)
{
    MUST(n <= size / sizeof *fds);
    return __wrap_poll(fds, n, timeout);
}

static int handle(void *ctx, const struct event *ev, struct error *err)
{
    (void)ctx;
    MUST(ev->id.p && ev->type.p && ev->payload.p && strlen(ev->payload.p) == ev->payload.n);
    if (run.how & FAILS || (run.how & FAILS_ONCE && run.failed == 0)) {
        run.failed++;
        return err_set(err, ERR_UNAVAILABLE, "not now");
    }
    run.handled++;
    return 0;
}

static int snapshot(void *ctx, const char *stream, const char *hwm, struct error *err)
{
    (void)ctx, (void)err;
    MUST(stream[0] && hwm[0]);
    return 0;
}

static void said(void *ctx, enum log_level level, const char *consumer, const char *text)
{
    (void)ctx, (void)level, (void)consumer;
    MUST(text[0]);
}

/* was_given tells whether the reply contains an entry with that id. */
static bool was_given(const redisReply *r, const char *id)
{
    if (r->type != REDIS_REPLY_ARRAY)
        return false;
    if (r->elements == 2 && r->element[0]->type == REDIS_REPLY_STRING &&
        strcmp(r->element[0]->str, id) == 0)
        return true;
    for (size_t i = 0; i < r->elements; i++)
        if (was_given(r->element[i], id))
            return true;
    return false;
}

static bool ever_given(const char *p, size_t n, const char *id)
{
    bool found = false;
    void *r = NULL;
    redisReader *reader = resp_reader();
    if (redisReaderFeed(reader, p, n) != REDIS_OK)
        abort();
    for (; !found && redisReaderGetReply(reader, &r) == REDIS_OK && r; r = NULL) {
        found = was_given(r, id);
        freeReplyObject(r);
    }
    redisReaderFree(reader);
    return found;
}

/* acknowledged counts the acknowledgements that were sent, and checks each. */
static int64_t acknowledged(const char *p, size_t n)
{
    static char heard[HEARD_MAX];
    int64_t count = 0;
    void *r = NULL;
    redisReader *reader = resp_reader();
    if (redisReaderFeed(reader, heard, peer_heard(heard, sizeof heard)) != REDIS_OK)
        abort();
    for (; redisReaderGetReply(reader, &r) == REDIS_OK && r; r = NULL) {
        const redisReply *c = r;
        MUST(c->type == REDIS_REPLY_ARRAY && c->elements > 0); /* we speak the protocol, too */
        if (strcmp(c->element[0]->str, "XACK") == 0) {
            MUST(c->elements == 4 && ever_given(p, n, c->element[3]->str));
            count++;
        }
        freeReplyObject(r);
    }
    MUST(!reader->err);
    redisReaderFree(reader);
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct log log = {.write = said, .least = LOG_DEBUG_};
    struct stream_reader_stats stats;
    struct error err = {0};
    if (n == 0)
        return 0;
    run.how = data[0];
    run.handled = run.failed = run.pauses = 0;
    run.wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    const char *p = (const char *)data + 1;
    struct stream_reader_config cfg = {.url = run.how & SEVERAL_STREAMS
                                                  ? "redis://127.0.0.1?stream=a,b"
                                                  : "redis://127.0.0.1?stream=a",
                                       .group = "g",
                                       .name = "m",
                                       .until_through = true,
                                       .wake = run.wake,
                                       .log = &log,
                                       .handle = handle,
                                       .snapshot = run.how & WITH_SNAPSHOT ? snapshot : NULL};
    run.next = p;
    run.left = n - 1;
    peer_expect(&(struct peer_script){.connections = 1});
    if (stream_reader_run(&cfg, &stats, &err) != 0)
        MUST(err.text[0]);
    int64_t acks = acknowledged(p, n - 1), ended = stats.handled + stats.skipped;
    MUST(stats.handled == run.handled && stats.failed == run.failed);
    MUST(acks <= ended && acks >= ended - 1); /* the last acknowledgement may not have been sent */
    peer_hang_up();
    close(run.wake);
    return 0;
}
