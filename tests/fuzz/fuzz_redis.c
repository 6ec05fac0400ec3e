/* Replies of Redis to the sink. The first byte of the input selects the sink's settings, the rest
 * is sent by the server. Every event gets one answer; it is delivered if and only if the reply in
 * its place is the id of an entry (and enough replicas have it); a lease is held only if the server
 * said so; and whatever was sent, the next connection works. */
#include "fuzz.h"
#include "peer.h"
#include "redis/conn.h"
#include "resp.h"
#include "sink/sink.h"

#define EVENTS 4
#define REPLIES 64
#define REPLICAS 2

enum {
    WITH_REPLICAS = 1,
    WITH_LEASE = 2,
    WITH_TEMPLATE = 4,
    IN_PIECES = 8,
    GOES_AWAY = 16,
    COUNT_SHIFT = 5
};

struct fuzzed {
    struct event ev[EVENTS];
    struct delivery d[EVENTS];
    int answers[EVENTS];
    enum sink_status status[EVENTS];
    char receipt[EVENTS][48];
    size_t n;
};

/* The server's replies, read by hiredis alone. */
struct said {
    redisReply *reply[REPLIES];
    size_t n;
};

static int64_t now_ns = MS_NS;

static int64_t mono(void *ctx)
{
    (void)ctx;
    return now_ns;
}

static int64_t wall(void *ctx)
{
    (void)ctx;
    return INT64_C(1700000000000) + now_ns / MS_NS;
}

static const struct clock manual = {.mono_ns = mono, .wall_ms = wall};

static void done(void *ctx, struct delivery *d, const struct sink_result *r)
{
    struct fuzzed *f = ctx;
    size_t i = (size_t)(d - f->d);
    MUST(i < f->n && f->answers[i]++ == 0);
    MUST(r->status == SINK_DELIVERED ? r->receipt != NULL
                                     : r->text && r->text[0] && !strpbrk(r->text, "\r\n\x1b"));
    f->status[i] = r->status;
    snprintf(f->receipt[i], sizeof f->receipt[i], "%s", r->receipt ? r->receipt : "");
}

static void fill(struct fuzzed *f)
{
    for (size_t i = 0; i < f->n; i++) {
        f->ev[i] = (struct event){.seq = (int64_t)i + 1,
                                  .id = STR("01890a5d-ac96-774b-bcce-b302099a8057"),
                                  .type = i & 1 ? STR("order.paid") : STR("order.placed"),
                                  .payload = STR("{\"n\":1}")};
        f->d[i] = (struct delivery){.ev = &f->ev[i], .attempt = 1};
    }
}

static void submit(struct sink *sk, struct fuzzed *f)
{
    struct delivery *d[EVENTS];
    memset(f->answers, 0, sizeof f->answers);
    for (size_t i = 0; i < f->n; i++)
        d[i] = &f->d[i];
    MUST(sk->ops->submit(sk, d, f->n) == f->n);
    sk->ops->drive(sk);
}

static void speak(struct sink *sk, const char *p, size_t n, bool in_pieces)
{
    size_t step = in_pieces ? 7 : n;
    for (size_t at = 0; at < n; at += step) {
        peer_say(p + at, n - at < step ? n - at : step);
        sk->ops->drive(sk);
    }
    sk->ops->drive(sk);
}

static void listen_to(struct said *s, const char *p, size_t n)
{
    redisReader *reader = resp_reader();
    void *r = NULL;
    if (redisReaderFeed(reader, p, n) != REDIS_OK)
        abort();
    for (s->n = 0; s->n < REPLIES && redisReaderGetReply(reader, &r) == REDIS_OK && r; r = NULL)
        s->reply[s->n++] = r;
    redisReaderFree(reader);
}

/* is_id tells whether a string is an entry's id, independently of the sink's parser. */
static bool is_id(const redisReply *r)
{
    if (r->type != REDIS_REPLY_STRING)
        return false;
    size_t hi = strspn(r->str, "0123456789"),
           lo = r->str[hi] == '-' ? strspn(r->str + hi + 1, "0123456789") : 0;
    if (hi == 0 || lo == 0 || r->str[hi + 1 + lo])
        return false;
    return hi <= 20 && lo <= 20;
}

/* The requests were, in this order: the name of the connection, an entry for each event, WAIT. */
static void compare(const struct fuzzed *f, const struct said *s, bool replicas)
{
    bool enough = !replicas ||
                  (s->n > f->n + 1 && s->reply[f->n + 1]->type == REDIS_REPLY_INTEGER &&
                   s->reply[f->n + 1]->integer >= REPLICAS);
    bool welcome = s->n > 0 && s->reply[0]->type == REDIS_REPLY_STATUS;
    for (size_t i = 0; i < f->n; i++) {
        bool added = s->n > i + 1 && is_id(s->reply[i + 1]);
        MUST(f->answers[i] == 1);
        if (f->status[i] != SINK_DELIVERED) {
            MUST(!(welcome && added && enough));
            continue;
        }
        MUST(added && enough);
        MUST(strcmp(f->receipt[i], s->reply[i + 1]->str) == 0);
    }
}

/* With a lease: nothing is submitted before it is held, and it is held only if the server said so.
 * */
static void leased(struct sink *sk, struct fuzzed *f, const struct said *s, const char *p, size_t n,
                   bool in_pieces)
{
    bool granted = false;
    size_t ids = 0, delivered = 0;
    sk->ops->drive(sk);
    speak(sk, p, n, in_pieces);
    for (size_t i = 0; i < s->n; i++) {
        granted = granted || s->reply[i]->type == REDIS_REPLY_STATUS ||
                  s->reply[i]->type == REDIS_REPLY_INTEGER;
        ids += is_id(s->reply[i]);
    }
    MUST(!sk->ops->lease(sk)->held || granted);
    submit(sk, f);
    speak(sk, p, n, in_pieces);
    sk->ops->cancel(sk);
    for (size_t i = 0; i < f->n; i++)
        delivered += f->status[i] == SINK_DELIVERED;
    MUST(delivered <= 2 * ids); /* everything was sent twice */
}

/* Afterwards a well-behaved server gets everything. */
static void healed(struct sink *sk, struct fuzzed *f, bool lease)
{
    static const char good[] = "$3\r\n1-1\r\n$3\r\n1-2\r\n$3\r\n1-3\r\n$3\r\n1-4\r\n";
    peer_expect(&(struct peer_script){.connections = 2});
    now_ns += 3600 * 1000 * MS_NS;
    for (int i = 0; i < 3; i++) { /* the first may only notice the closed connection */
        now_ns += 1000 * MS_NS;
        sk->ops->drive(sk);
    }
    if (lease) {
        speak(sk, "+OK\r\n:0\r\n+OK\r\n", 14, false);
        MUST(sk->ops->lease(sk)->held);
    }
    submit(sk, f);
    if (!lease)
        speak(sk, "+OK\r\n", 5, false);
    peer_say(good, f->n * 9);
    speak(sk, ":2\r\n", 4, false); /* WAIT, or one too many */
    for (size_t i = 0; i < f->n; i++)
        MUST(f->answers[i] == 1 && f->status[i] == SINK_DELIVERED);
}

/* endless checks that the sink abandons an endless reply before it uses much memory. */
static void endless(void)
{
    static char junk[1 << 16];
    struct fuzzed f = {.n = 1};
    struct sink_config cfg = {.url = "redis://127.0.0.1?stream=s",
                              .consumer = "c",
                              .timeout_ms = 1000000000,
                              .clock = &manual,
                              .done = done,
                              .done_ctx = &f};
    struct sink *sk;
    struct error err = {0};
    const struct sink_ops *ops;
    if (sink_find(cfg.url, &ops, &err) != 0 || ops->open(&cfg, &sk, &err) != 0)
        abort();
    peer_expect(&(struct peer_script){.connections = 1});
    fill(&f);
    submit(sk, &f);
    speak(sk, "+OK\r\n$2000000000\r\n", 19, false);
    for (int i = 0; i < 128 && !f.answers[0]; i++)
        speak(sk, junk, sizeof junk, false);
    MUST(f.answers[0] == 1 && f.status[0] == SINK_DOWN);
    sk->ops->close(sk);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char url[200];
    const struct sink_ops *ops;
    struct fuzzed f = {.n = 0};
    struct said s;
    struct sink *sk;
    struct error err = {0};
    static bool looked;
    if (!looked)
        endless();
    looked = true;
    if (n == 0)
        return 0;
    const char *p = (const char *)data + 1;
    uint8_t how = data[0];
    f.n = 1 + (how >> COUNT_SHIFT) % EVENTS;
    fill(&f);
    snprintf(url, sizeof url, "redis://127.0.0.1/0?stream=%s%s%s",
             how & WITH_TEMPLATE ? "{type}" : "orders", how & WITH_REPLICAS ? "&replicas=2" : "",
             how & WITH_LEASE ? "&lease=lock" : "");
    struct sink_config cfg = {.url = url,
                              .consumer = "c",
                              .timeout_ms = 1000000000,
                              .clock = &manual,
                              .done = done,
                              .done_ctx = &f};
    if (sink_find(url, &ops, &err) != 0 || ops->open(&cfg, &sk, &err) != 0)
        abort();
    peer_expect(&(struct peer_script){.connections = 1});
    listen_to(&s, p, n - 1);
    if (how & WITH_LEASE) {
        leased(sk, &f, &s, p, n - 1, how & IN_PIECES);
    } else {
        submit(sk, &f);
        speak(sk, p, n - 1, how & IN_PIECES);
        if (how & GOES_AWAY) {
            peer_hang_up();
            sk->ops->drive(sk);
        }
        sk->ops->cancel(sk);
        compare(&f, &s, how & WITH_REPLICAS);
    }
    healed(sk, &f, how & WITH_LEASE);
    for (size_t i = 0; i < s.n; i++)
        freeReplyObject(s.reply[i]);
    /* The sink's requests at close get no answer. */
    peer_expect(&(struct peer_script){0});
    sk->ops->close(sk);
    return 0;
}
