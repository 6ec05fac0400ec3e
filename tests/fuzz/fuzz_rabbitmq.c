/* Frames of an AMQP broker to the sink. The first byte of the input selects the sink's settings and
 * how far a well-behaved broker gets before the rest of the input is sent. Every event gets one
 * answer; it is delivered only if an ack for it was sent; and whatever was sent, the next
 * connection works. The frames are also parsed as the receiver does. */
#include <amqp.h>

#include "fuzz.h"
#include "peer.h"
#include "rabbit/conn.h"
#include "sink/sink.h"

#define EVENTS 4

enum {
    LOGGED_IN = 1,
    SET_UP = 2,
    IN_PIECES = 4,
    GOES_AWAY = 8,
    WITH_TEMPLATE = 16,
    COUNT_SHIFT = 6
};

struct fuzzed {
    struct event ev[EVENTS];
    struct delivery d[EVENTS];
    char id[EVENTS][40];
    int answers[EVENTS];
    enum sink_status status[EVENTS];
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
    MUST(r->status == SINK_DELIVERED || (r->text && r->text[0] && !strpbrk(r->text, "\r\n\x1b")));
    f->status[i] = r->status;
}

static void fill(struct fuzzed *f)
{
    for (size_t i = 0; i < f->n; i++) {
        snprintf(f->id[i], sizeof f->id[i], "01890a5d-ac96-774b-bcce-b302099a805%zu", i);
        f->ev[i] = (struct event){.seq = (int64_t)i + 1,
                                  .id = str_of(f->id[i]),
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

/* A broker that behaves. */

static void add(struct buf *b, uint16_t channel, amqp_method_number_t id, void *m)
{
    rabbit_frame_put_method(b, channel, id, m);
}

static void add_login(struct buf *b)
{
    amqp_connection_start_t start = {.version_minor = 9,
                                     .mechanisms = rabbit_bytes(STR("AMQPLAIN PLAIN")),
                                     .locales = rabbit_bytes(STR("en_US"))};
    amqp_connection_tune_t tune = {.channel_max = 2047, .frame_max = 131072, .heartbeat = 0};
    amqp_connection_open_ok_t ok = {.known_hosts = amqp_empty_bytes};
    add(b, 0, AMQP_CONNECTION_START_METHOD, &start);
    add(b, 0, AMQP_CONNECTION_TUNE_METHOD, &tune);
    add(b, 0, AMQP_CONNECTION_OPEN_OK_METHOD, &ok);
}

/* say_setup answers each step separately: an early answer is out of turn. */
static void say_setup(struct sink *sk)
{
    struct buf b;
    amqp_channel_open_ok_t open = {.channel_id = amqp_empty_bytes};
    amqp_confirm_select_ok_t confirm = {0};
    amqp_exchange_declare_ok_t declare = {0};
    buf_init(&b, 1 << 16);
    add(&b, 1, AMQP_CHANNEL_OPEN_OK_METHOD, &open);
    add(&b, 1, AMQP_CONFIRM_SELECT_OK_METHOD, &confirm);
    add(&b, 1, AMQP_EXCHANGE_DECLARE_OK_METHOD, &declare);
    speak(sk, b.p, b.n, false);
    buf_release(&b);
}

static void say_login(struct sink *sk)
{
    struct buf b;
    buf_init(&b, 1 << 16);
    add_login(&b);
    speak(sk, b.p, b.n, false);
    buf_release(&b);
}

/* The verdict sent about each event, found independently of the sink's parser: any ack of its tag,
 * at any offset. */
struct said {
    bool acked[EVENTS + 1];
};

static uint64_t big(const uint8_t *p, size_t n)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++)
        v = v << 8 | p[i];
    return v;
}

static void listen_to(struct said *s, const uint8_t *p, size_t n)
{
    static const uint8_t ack[] = {0, 60, 0, 80};
    *s = (struct said){0};
    for (size_t i = 0; i + 13 <= n; i++) {
        if (memcmp(p + i, ack, 4) != 0)
            continue;
        uint64_t tag = big(p + i + 4, 8);
        bool multiple = p[i + 12] & 1;
        for (size_t t = 1; t <= EVENTS; t++)
            if (t == tag || (multiple && (tag == 0 || t < tag)))
                s->acked[t] = true;
    }
}

static void compare(const struct fuzzed *f, const struct said *s)
{
    for (size_t i = 0; i < f->n; i++) {
        MUST(f->answers[i] == 1);
        MUST(f->status[i] != SINK_DELIVERED || s->acked[i + 1]);
    }
}

/* Afterwards a well-behaved broker gets everything. */
static void healed(struct sink *sk, struct fuzzed *f)
{
    struct buf b;
    amqp_basic_ack_t ack = {.delivery_tag = f->n, .multiple = 1};
    peer_expect(&(struct peer_script){.connections = 2});
    now_ns += 3600 * 1000 * MS_NS;
    for (int i = 0; i < 3; i++) /* the first may only notice the closed connection */
        sk->ops->drive(sk);
    submit(sk, f);
    say_login(sk);
    say_setup(sk);
    buf_init(&b, 1 << 16);
    add(&b, 1, AMQP_BASIC_ACK_METHOD, &ack);
    speak(sk, b.p, b.n, false);
    buf_release(&b);
    for (size_t i = 0; i < f->n; i++)
        MUST(f->answers[i] == 1 && f->status[i] == SINK_DELIVERED);
}

/* Reading alone */

static void field(void *ctx, struct str name, struct str value)
{
    size_t *bytes = ctx;
    *bytes += name.n + value.n;
}

static void read_frames(const char *p, size_t n)
{
    struct error err;
    amqp_pool_t pool;
    init_amqp_pool(&pool, 4096);
    struct str rest = {p, n};
    for (;;) {
        struct rabbit_frame f;
        struct rabbit_header h;
        amqp_method_t m;
        size_t bytes = 0;
        ssize_t k = rabbit_frame_next(rest, 131072, &f, &err);
        if (k <= 0)
            break;
        MUST((size_t)k <= rest.n && f.payload.n + 8 == (size_t)k);
        if (f.type == RABBIT_METHOD)
            (void)rabbit_frame_method(&f, &pool, &m, &err);
        if (rabbit_frame_header(&f, &h, &err) == 0 &&
            rabbit_frame_fields(h.table, field, &bytes, &err) == 0)
            MUST(bytes <= 32 * h.table.n); /* a number is longer as text */
        rest.p += k;
        rest.n -= (size_t)k;
    }
    empty_amqp_pool(&pool);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char url[200];
    const struct sink_ops *ops;
    struct fuzzed f = {.n = 0};
    struct said s;
    struct sink *sk;
    struct error err = {0};
    if (n == 0)
        return 0;
    const char *p = (const char *)data + 1;
    uint8_t how = data[0];
    read_frames(p, n - 1);
    listen_to(&s, data + 1, n - 1);

    f.n = 1 + (how >> COUNT_SHIFT) % EVENTS;
    fill(&f);
    snprintf(url, sizeof url, "amqp://127.0.0.1/%%2F/x?heartbeat=0s&routing-key=%s",
             how & WITH_TEMPLATE ? "{type}" : "k");
    struct sink_config cfg = {.url = url,
                              .consumer = "c",
                              .timeout_ms = 1000000000,
                              .clock = &manual,
                              .done = done,
                              .done_ctx = &f};
    if (sink_find(url, &ops, &err) != 0 || ops->open(&cfg, &sk, &err) != 0)
        abort();
    peer_expect(&(struct peer_script){.connections = 1});
    submit(sk, &f);
    if (how & LOGGED_IN)
        say_login(sk);
    if ((how & LOGGED_IN) && (how & SET_UP))
        say_setup(sk);
    speak(sk, p, n - 1, how & IN_PIECES);
    if (how & GOES_AWAY) {
        peer_hang_up();
        sk->ops->drive(sk);
    }
    sk->ops->cancel(sk);
    compare(&f, &s);
    healed(sk, &f);
    peer_expect(&(struct peer_script){0});
    sk->ops->close(sk);
    return 0;
}
