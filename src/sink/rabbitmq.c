/* rabbitmq.c: the sink that publishes to RabbitMQ: one message per event, hundreds in flight, each
 * delivered once the broker confirms it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "sink/kinds.h"
#include "sink/rabbitmq_impl.h"

#define OUT_ENOUGH ((size_t)4 << 20) /* take no more events until some of it is written */
#define WORN_NS (2000 * MS_NS)       /* of nacks, before a channel is replaced */
#define RENEW_NS (20000 * MS_NS)     /* between replacements */
#define KEY_MAX ((size_t)16 << 10)   /* of a routing key before it is refused */
#define TEXT_MAX ((size_t)512 << 20) /* of what message_make writes */

/* Sending */

/* refuse answers for an event that cannot be published. */
static void refuse(struct rabbitmq_sink *r, struct rabbitmq_item *it, const struct error *err)
{
    struct sink_result res = {.status = SINK_DOWN, .text = err->text, .native = err->native};
    if (err->code == ERR_INVALID) {
        res.status = SINK_REJECT;
        res.unasked = true;
    }
    rabbitmq_answer_one(r, it, &res);
}

/* is_worn says whether a channel has to be replaced. RabbitMQ 3.10 remembers in a channel who leads
 * a quorum queue: if that node dies, the channel gets a nack for every message to the queue, ever
 * after. A queue that is full looks the same, so this is not done often. */
static bool is_worn(const struct rabbitmq_sink *r)
{
    int64_t now = rabbitmq_now(r);
    return r->nacked && now >= r->nacked + WORN_NS && now >= r->renewed + RENEW_NS;
}

/* renew drops the connection of a channel that is worn, once nothing is in flight. */
static void renew(struct rabbitmq_sink *r)
{
    if (r->flying > 0 || !is_worn(r))
        return;
    rabbit_conn_close(&r->conn);
    r->channel = CHANNEL_NONE;
    r->nacked = 0;
    r->renewed = rabbitmq_now(r);
}

static bool may_publish(const struct rabbitmq_sink *r)
{
    bool open = r->channel == CHANNEL_READY && !r->conn.blocked;
    if (!open || rabbit_conn_queued(&r->conn) >= OUT_ENOUGH || is_worn(r))
        return false;
    if (r->solo > 0)
        return r->flying == 0;
    /* A tag that was not confirmed keeps its place in the window. */
    return r->next - r->first < RABBITMQ_WINDOW;
}

/* pump publishes what waits, as far as the channel takes it. */
static void pump(struct rabbitmq_sink *r)
{
    while (r->head < r->tail && may_publish(r)) {
        struct error err;
        struct rabbitmq_item *it = rabbitmq_waiting(r, r->head++);
        if (r->solo > 0)
            r->solo--;
        if (rabbitmq_publish(r, it, &err) != 0) {
            refuse(r, it, &err);
            continue;
        }
        *rabbitmq_flying(r, r->next++) = *it;
        r->flying++;
    }
}

/* connect_if_need_be connects, and opens the channel, if there is none. */
static int connect_if_need_be(struct rabbitmq_sink *r, struct error *err)
{
    r->begun = true;
    renew(r);
    if (r->conn.state == RABBIT_CLOSED) {
        r->channel = CHANNEL_NONE;
        if (rabbit_conn_open(&r->conn, err) != 0)
            return -1;
    }
    if (r->channel != CHANNEL_NONE)
        return 0;
    if (rabbitmq_setup_begin(r, err) == 0)
        return 0;
    rabbit_conn_close(&r->conn);
    return -1;
}

static bool has_room(const struct rabbitmq_sink *r)
{
    size_t held = rabbitmq_held(r);
    if (held == 0)
        return true;
    if (r->solo > 0 || r->next - r->first >= RABBITMQ_WINDOW)
        return false;
    return held + 1 < RABBITMQ_WINDOW && rabbit_conn_queued(&r->conn) < OUT_ENOUGH;
}

/* take takes one delivery. -1: it was refused because nothing can be published now. */
static int take(struct rabbitmq_sink *r, struct delivery *d)
{
    struct error err;
    char text[RABBITMQ_SAID];
    struct rabbitmq_item one = {.d = d, .since = rabbitmq_now(r)};
    one.mark = rabbitmq_publish_mark(r, d->ev, &err);
    if (!one.mark) {
        sink_done(&r->base, d,
                  &(struct sink_result){.status = SINK_REJECT, .text = err.text, .unasked = true});
        return 0;
    }
    one.mark->flying++;
    int rc = 0;
    if (r->conn.blocked)
        rc = err_set(&err, ERR_UNAVAILABLE, "%s", rabbitmq_answer_why_blocked(r, text));
    else
        rc = connect_if_need_be(r, &err);
    if (rc != 0) {
        refuse(r, &one, &err);
        if (r->conn.state == RABBIT_CLOSED)
            rabbitmq_answer_lost(r, &err); /* what waited for a connection that is not to be had */
        return -1;
    }
    *rabbitmq_waiting(r, r->tail++) = one;
    pump(r);
    return 0;
}

static void rabbitmq_drive(struct sink *sk);

/* rabbitmq_submit first hears a broker that has something to say while nothing is in flight: that
 * it has closed an idle connection does not count against an event. */
static size_t rabbitmq_submit(struct sink *sk, struct delivery *const *d, size_t n)
{
    struct rabbitmq_sink *r = (struct rabbitmq_sink *)sk;
    if (rabbitmq_held(r) == 0 && wire_stirs(&r->conn.wire))
        rabbitmq_drive(sk);
    for (size_t i = 0; i < n; i++) {
        if (!has_room(r))
            return i;
        if (take(r, d[i]) != 0)
            return i + 1;
    }
    return n;
}

/* oldest_since returns when the oldest event in the sink was taken; there must be one. */
static int64_t oldest_since(const struct rabbitmq_sink *r)
{
    int64_t since = INT64_MAX;
    if (r->flying > 0)
        since = rabbitmq_flying(r, r->first)->since;
    if (r->head < r->tail && rabbitmq_waiting(r, r->head)->since < since)
        since = rabbitmq_waiting(r, r->head)->since;
    return since;
}

/* oldest_due returns when the oldest event will have waited for too long. */
static int64_t oldest_due(const struct rabbitmq_sink *r)
{
    int64_t limit = r->base.cfg.timeout_ms;
    if (limit <= 0 || rabbitmq_held(r) == 0)
        return CLOCK_NEVER;
    return oldest_since(r) + limit * MS_NS;
}

static void check_time(struct rabbitmq_sink *r)
{
    struct error err;
    if (rabbitmq_now(r) < oldest_due(r))
        return;
    if (r->conn.blocked) {
        rabbitmq_answer_blocked(r);
        return;
    }
    err_set(&err, ERR_UNAVAILABLE, "%s has not confirmed for %lld ms; %zu events were waiting",
            rabbit_conn_label(&r->conn), (long long)r->base.cfg.timeout_ms, rabbitmq_held(r));
    rabbitmq_answer_lost(r, &err);
}

/* hear_blocked hands back what was not published to a broker that has just blocked us. */
static void hear_blocked(struct rabbitmq_sink *r)
{
    char text[RABBITMQ_SAID];
    if (!r->conn.blocked || r->head == r->tail)
        return;
    struct sink_result res = {.status = SINK_DOWN, .text = rabbitmq_answer_why_blocked(r, text)};
    rabbitmq_answer_waiting(r, &res);
}

/* rabbitmq_drive connects at its first call, so that a missing exchange shows before the first
 * event comes. */
static void rabbitmq_drive(struct sink *sk)
{
    struct rabbitmq_sink *r = (struct rabbitmq_sink *)sk;
    struct error err;
    if (!r->begun && connect_if_need_be(r, &err) != 0)
        return;
    if (r->conn.state == RABBIT_CLOSED)
        return;
    if (rabbit_conn_drive(&r->conn, rabbitmq_answer_frame, r, &err) != 0) {
        rabbitmq_answer_lost(r, &err);
        return;
    }
    if (is_worn(r) && rabbitmq_held(r) > 0 && connect_if_need_be(r, &err) != 0) {
        rabbitmq_answer_lost(r, &err);
        return;
    }
    pump(r);
    hear_blocked(r);
    check_time(r);
}

static size_t rabbitmq_fds(struct sink *sk, struct pollfd *out, size_t max)
{
    const struct rabbitmq_sink *r = (const struct rabbitmq_sink *)sk;
    if (r->conn.state == RABBIT_CLOSED || max == 0)
        return 0;
    out[0] = rabbit_conn_poll(&r->conn);
    return 1;
}

static int64_t rabbitmq_deadline(struct sink *sk)
{
    const struct rabbitmq_sink *r = (const struct rabbitmq_sink *)sk;
    int64_t due = oldest_due(r), beat = rabbit_conn_deadline(&r->conn);
    return beat < due ? beat : due;
}

/* rabbitmq_cancel looks for confirms once more: an event that is known to be delivered need not
 * come again. */
static void rabbitmq_cancel(struct sink *sk)
{
    struct rabbitmq_sink *r = (struct rabbitmq_sink *)sk;
    struct error err;
    const char *why = "cancelled";
    if (rabbitmq_held(r) == 0)
        return;
    if (rabbit_conn_drive(&r->conn, rabbitmq_answer_frame, r, &err) != 0)
        why = err.text;
    rabbit_conn_close(&r->conn);
    r->channel = CHANNEL_NONE;
    rabbitmq_answer_all(r, &(struct sink_result){.status = SINK_CANCELLED, .text = why});
}

static size_t rabbitmq_marks(struct sink *sk, const struct hwm **ret)
{
    return streams_dirty(&((struct rabbitmq_sink *)sk)->marks, ret);
}

static void rabbitmq_marks_kept(struct sink *sk)
{
    streams_kept(&((struct rabbitmq_sink *)sk)->marks);
}

/* rabbitmq_attended is always true: there are heartbeats, and a broker says by itself that it takes
 * no more. */
static bool rabbitmq_attended(struct sink *sk)
{
    (void)sk;
    return true;
}

static const char *rabbitmq_caution_line(struct sink *sk)
{
    const struct rabbitmq_sink *r = (const struct rabbitmq_sink *)sk;
    if (r->cautions == 0)
        return NULL;
    return r->caution[r->cautions & 1];
}

/* rabbitmq_broker names the node that we are at. Who leads a queue is nothing that AMQP tells. */
static void rabbitmq_broker(struct sink *sk, struct sink_broker *ret)
{
    const struct rabbitmq_sink *r = (const struct rabbitmq_sink *)sk;
    const struct wire_peer *at = &r->conn.cfg.peers[r->conn.peer];
    ret->kind = "rabbitmq";
    ret->connected = r->channel == CHANNEL_READY;
    sink_peer_add(ret->broker, at->host, at->port);
    ret->unconfirmed = rabbitmq_held(r);
    if (ret->unconfirmed > 0)
        ret->since = oldest_since(r);
}

/* Opening */

static void rabbitmq_close(struct sink *sk)
{
    struct rabbitmq_sink *r = (struct rabbitmq_sink *)sk;
    rabbit_conn_release(&r->conn);
    streams_release(&r->marks);
    template_free(r->key);
    buf_release(&r->name);
    buf_release(&r->text);
    rabbitmq_settings_release(&r->set);
    broker_url_release(&r->url);
    rabbitmq_login_release(&r->login);
    free(r->fly);
    free(r->wait);
    free(r);
}

/* check_files checks that the files which each connection will read are there: one that is missing
 * at the start is a mistake. */
static int check_files(const struct broker_url *u, struct error *err)
{
    const char *const files[] = {u->password_file, u->ca, u->cert, u->key};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        if (files[i] && access(files[i], R_OK) != 0)
            return err_errno(err, ERR_CONFIG, errno, "rabbitmq sink: could not read %s", files[i]);
    }
    return 0;
}

static void first_caution(struct rabbitmq_sink *r)
{
    bool creates_classic = r->set.create && r->set.queue &&
                           strcmp(r->set.queue_type, "classic") == 0;
    if (r->set.unroutable == UNROUTABLE_IGNORE)
        rabbitmq_caution(r, "unroutable=ignore counts an event as delivered although no queue was "
                            "bound for it: the broker drops it");
    else if (creates_classic)
        rabbitmq_caution(r, "queue-type=classic keeps a queue on one node: if that is lost, so are "
                            "its events; quorum keeps them on several");
}

static int set_up(struct rabbitmq_sink *r, struct error *err)
{
    if (rabbitmq_settings_read(r->base.cfg.url, &r->set, &r->url, err) != 0)
        return -1;
    if (check_files(&r->url, err) != 0)
        return -1;
    if (template_new(r->set.routing_key, &r->key, err) != 0)
        return err_prefix(err, "rabbitmq sink: routing-key");
    r->fixed = template_fixed(r->key);
    first_caution(r);

    r->fly = calloc(RABBITMQ_WINDOW, sizeof *r->fly);
    r->wait = calloc(RABBITMQ_WINDOW, sizeof *r->wait);
    if (!r->fly || !r->wait)
        return err_nomem(err);
    if (streams_init(&r->marks) != 0)
        return err_nomem(err);

    struct rabbit_config conn;
    if (rabbitmq_login_make(&r->login, &r->set, &r->url, r->base.cfg.consumer, &conn, err) != 0)
        return -1;
    conn.clock = r->base.cfg.clock;
    rabbit_conn_init(&r->conn, &conn);
    return 0;
}

static int rabbitmq_open(const struct sink_config *cfg, struct sink **ret, struct error *err)
{
    const struct sink_ops *ops;
    if (sink_find(cfg->url, &ops, err) != 0)
        return -1;
    struct rabbitmq_sink *r = calloc(1, sizeof *r);
    if (!r)
        return err_nomem(err);
    r->base = (struct sink){.ops = ops, .cfg = *cfg};
    buf_init(&r->name, KEY_MAX);
    buf_init(&r->text, TEXT_MAX);
    wire_init(&r->conn.wire);

    if (set_up(r, err) != 0) {
        rabbitmq_close(&r->base);
        return -1;
    }
    *ret = &r->base;
    return 0;
}

/* rabbitmq_probe waits until the channel is ready: logged in, exchange and queue there. */
static int rabbitmq_probe(struct sink *sk, int64_t timeout_ms, struct error *err)
{
    struct rabbitmq_sink *r = (struct rabbitmq_sink *)sk;
    int64_t deadline = clock_mono(&clock_system) + timeout_ms * MS_NS;
    r->refused.code = ERR_NONE;
    if (connect_if_need_be(r, err) != 0)
        return -1;
    for (;;) {
        rabbitmq_drive(sk);
        if (r->channel == CHANNEL_READY)
            return 0;
        if (r->refused.code) {
            *err = r->refused;
            return err_prefix(err, "rabbitmq sink");
        }
        int64_t left = (deadline - clock_mono(&clock_system)) / MS_NS;
        if (left <= 0)
            return err_set(err, ERR_UNAVAILABLE, "rabbitmq sink: %s has not answered in time",
                           rabbit_conn_label(&r->conn));
        struct pollfd fd = rabbit_conn_poll(&r->conn);
        poll(&fd, 1, left < 1000 ? (int)left + 1 : 1000);
    }
}

#define RABBITMQ_OPS(name, scheme_, synopsis_, help_) \
    const struct sink_ops name = { \
        .scheme = scheme_, \
        .synopsis = synopsis_, \
        .help = help_, \
        .open = rabbitmq_open, \
        .close = rabbitmq_close, \
        .submit = rabbitmq_submit, \
        .drive = rabbitmq_drive, \
        .fds = rabbitmq_fds, \
        .deadline = rabbitmq_deadline, \
        .cancel = rabbitmq_cancel, \
        .attended = rabbitmq_attended, \
        .marks = rabbitmq_marks, \
        .marks_kept = rabbitmq_marks_kept, \
        .probe = rabbitmq_probe, \
        .caution = rabbitmq_caution_line, \
        .broker = rabbitmq_broker, \
    }

RABBITMQ_OPS(rabbitmq_ops, "amqp", "amqp://USER@HOST/VHOST/EXCHANGE",
             "publish to RabbitMQ; see docs/rabbitmq.md");
RABBITMQ_OPS(rabbitmq_tls_ops, "amqps", "amqps://USER@HOST/VHOST/EXCHANGE", "the same with TLS");
