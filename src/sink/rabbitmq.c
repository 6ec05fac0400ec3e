/* rabbitmq.c: the sink that publishes to RabbitMQ: one message per event, hundreds in flight. An
 * event is delivered once the broker has confirmed its message. */
#include <stdio.h>
#include <stdlib.h>

#include "base/num.h"
#include "sink/kinds.h"
#include "sink/rabbitmq_impl.h"

#define OUT_ENOUGH ((size_t)4 << 20) /* queued bytes; above this, submit applies back-pressure */
#define NACKED_NS (2000 * MS_NS)     /* a channel with nacks for this long is replaced */
#define REPLACED_NS (20000 * MS_NS)  /* minimum time between replacements */
#define KEY_MAX ((size_t)16 << 10)   /* limit on a routing key before its length is checked */
#define TEXT_MAX ((size_t)512 << 20) /* limit on the output of message_make */

/* Messages */

/* Writes the routing key. A dot in a value starts another word of a topic: brokers allow any bytes,
 * so nothing is escaped. */
static int write_key(struct rabbitmq_sink *r, const struct event *ev, struct error *err)
{
    buf_clear(&r->name);
    if (template_write(r->key, ev, NULL, &r->name, err) != 0)
        return -1;
    if (r->name.n > RABBIT_SHORT_MAX)
        return err_set(err, ERR_INVALID, "its routing key has %zu bytes; the limit of AMQP is %d",
                       r->name.n, RABBIT_SHORT_MAX);
    return 0;
}

/* Returns the high-water mark of an exchange. The default exchange routes to the queue named by the
 * key, so it has one mark per queue. */
static struct stream *find_mark(struct rabbitmq_sink *r, const struct event *ev, struct error *err)
{
    struct str name = str_of(r->set.exchange);
    if (name.n == 0) {
        if (write_key(r, ev, err) != 0)
            return NULL;
        name = (struct str){r->name.p, r->name.n};
    }
    struct stream *st = window_marks_get(&r->b.marks, name);
    if (!st)
        err_nomem(err);
    return st;
}

static int fill_headers(const struct message *m, amqp_table_entry_t *to, int *ret_n,
                        struct error *err)
{
    int n = 0;
    for (size_t i = 0; i < m->n; i++) {
        struct str name = m->headers[i].name;
        if (name.n > RABBIT_SHORT_MAX)
            return err_set(err, ERR_INVALID,
                           "the name of a header has %zu bytes; the limit of AMQP is %d", name.n,
                           RABBIT_SHORT_MAX);
        /* RabbitMQ interprets these two headers: they name more queues to route to, and must be
         * arrays. An event must not be able to choose its destination or to close our channel. */
        if (str_is(name, "CC") || str_is(name, "BCC"))
            continue;
        to[n++] = (amqp_table_entry_t){
            .key = rabbit_bytes(name),
            .value = {.kind = AMQP_FIELD_KIND_UTF8,
                      .value.bytes = rabbit_bytes(m->headers[i].value)},
        };
    }
    *ret_n = n;
    return 0;
}

/* Writes the method, the header and the body. In every format the header contains the id, which
 * identifies the event in basic.return. */
static int put_frames(struct rabbitmq_sink *r, const struct event *ev, struct error *err)
{
    const struct message *m = &r->message;
    amqp_table_entry_t entries[MESSAGE_HEADERS];
    amqp_basic_properties_t p = {
        ._flags = AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_MESSAGE_ID_FLAG |
                  AMQP_BASIC_TIMESTAMP_FLAG | AMQP_BASIC_TYPE_FLAG | AMQP_BASIC_APP_ID_FLAG,
        .delivery_mode = AMQP_DELIVERY_PERSISTENT,
        .message_id = rabbit_bytes(ev->id),
        .timestamp = (uint64_t)(ev->created_at / 1000),
        .type = rabbit_bytes(ev->type),
        .app_id = rabbit_bytes(STR("outbox")),
        .headers = {.entries = entries},
    };
    if (fill_headers(m, entries, &p.headers.num_entries, err) != 0)
        return -1;
    if (p.headers.num_entries > 0)
        p._flags |= AMQP_BASIC_HEADERS_FLAG;
    if (m->content_type.p) {
        p._flags |= AMQP_BASIC_CONTENT_TYPE_FLAG;
        p.content_type = rabbit_bytes(m->content_type);
    }

    amqp_basic_publish_t publish = {
        .exchange = rabbit_bytes(str_of(r->set.exchange)),
        .routing_key = rabbit_bytes((struct str){r->name.p, r->name.n}),
        .mandatory = r->set.unroutable != UNROUTABLE_IGNORE,
    };
    rabbit_frame_put_method(&r->conn.out, RABBITMQ_CHANNEL, AMQP_BASIC_PUBLISH_METHOD, &publish);
    return rabbit_frame_put_content(&r->conn.out, RABBITMQ_CHANNEL, &p, m->value, r->conn.frame_max,
                                    err);
}

static int publish_event(struct rabbitmq_sink *r, const struct delivery *d, struct error *err)
{
    struct message_style style = {
        .format = r->set.format, .source = str_of(r->set.source), .ce_prefix = r->set.ce_prefix};
    if (write_key(r, d->ev, err) != 0)
        return -1;
    struct str key = {r->name.p, r->name.n};
    if (message_make(&style, d->ev, key, str_of(r->b.base.cfg.consumer), d->attempt, &r->text,
                     &r->message, err) != 0)
        return -1;

    struct buf *out = &r->conn.out;
    size_t before = out->n;
    int rc = put_frames(r, d->ev, err);
    if (rc == 0 && out->failed)
        rc = err_nomem(err);
    if (rc != 0)
        buf_truncate(out, before);
    return rc;
}

/* Publishing */

/* Returns whether the channel must be replaced. RabbitMQ 3.10 caches the leader of a quorum queue
 * in the channel: if that node dies, the channel gets a nack for every later message to the queue.
 * A full queue looks the same, so replacements are rare. */
static bool must_replace_channel(const struct rabbitmq_sink *r)
{
    int64_t now = broker_now(&r->b);
    return r->nacked && now >= r->nacked + NACKED_NS && now >= r->renewed + REPLACED_NS;
}

static bool may_publish(const struct rabbitmq_sink *r)
{
    bool open = r->channel == CHANNEL_READY && !r->conn.blocked;
    if (!open || rabbit_conn_queued(&r->conn) >= OUT_ENOUGH || must_replace_channel(r))
        return false;
    if (r->one_by_one > 0)
        return r->published == 0;
    /* An unconfirmed tag keeps its slot. */
    return r->next_tag - r->first_tag < RABBITMQ_WINDOW;
}

/* Publishes waiting events as long as the channel accepts them. */
static void publish_waiting(struct rabbitmq_sink *r)
{
    while (r->waiting && may_publish(r)) {
        struct error err;
        struct rabbitmq_item *it = r->waiting;
        r->waiting = (struct rabbitmq_item *)it->f.next;
        if (r->one_by_one > 0)
            r->one_by_one--;
        if (publish_event(r, it->f.d, &err) != 0) {
            struct sink_result res = sink_unsent(&err);
            window_end(&r->window, &it->f, &res);
            continue;
        }
        it->tag = r->next_tag++;
        *rabbitmq_tag(r, it->tag) = it;
        r->published++;
    }
}

/* Connects and opens the channel if necessary. A channel due for replacement is closed once no
 * message is in flight on it. */
static int ensure_channel(struct rabbitmq_sink *r, struct error *err)
{
    r->has_connected = true;
    if (r->published == 0 && must_replace_channel(r)) {
        rabbit_conn_close(&r->conn);
        r->nacked = 0;
        r->renewed = broker_now(&r->b);
    }
    if (r->conn.state == RABBIT_CLOSED) {
        r->channel = CHANNEL_NONE;
        if (rabbit_conn_open(&r->conn, err) != 0)
            return -1;
    }
    if (r->channel != CHANNEL_NONE)
        return 0;
    if (rabbitmq_answer_setup(r, err) == 0)
        return 0;
    rabbit_conn_close(&r->conn);
    return -1;
}

static bool has_room(const struct rabbitmq_sink *r)
{
    if (r->window.count == 0)
        return true;
    if (r->one_by_one > 0 || r->next_tag - r->first_tag >= RABBITMQ_WINDOW)
        return false;
    return r->window.count + 1 < RABBITMQ_WINDOW && rabbit_conn_queued(&r->conn) < OUT_ENOUGH;
}

/* Fails because the broker blocks publishers. */
static int fail_blocked(const struct rabbitmq_sink *r, struct error *err)
{
    return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s is blocking publishers: %s",
                     rabbit_conn_label(&r->conn), r->conn.reason);
}

/* Accepts one delivery. Returns whether submit may accept the deliveries after it. */
static bool submit_one(struct rabbitmq_sink *r, struct delivery *d)
{
    struct error err;
    struct stream *mark = find_mark(r, d->ev, &err);
    if (!mark)
        return broker_unsent(&r->b, d, &err);

    int rc;
    if (r->conn.blocked)
        rc = fail_blocked(r, &err);
    else
        rc = ensure_channel(r, &err);
    if (rc != 0) {
        broker_unsent(&r->b, d, &err);
        if (r->conn.state == RABBIT_CLOSED)
            rabbitmq_answer_lost(r, &err); /* the events that waited for the failed connection */
        return false;
    }
    struct rabbitmq_item *it = (struct rabbitmq_item *)window_add(&r->window, d, mark);
    it->tag = 0;
    it->returned = 0;
    if (!r->waiting)
        r->waiting = it;
    publish_waiting(r);
    return true;
}

static void rabbitmq_drive(struct sink *sk);

/* If no event is in flight, reads pending input first: an idle connection closed by the broker must
 * not count against an event. */
static size_t rabbitmq_submit(struct sink *sk, struct delivery *const *d, size_t n)
{
    struct rabbitmq_sink *r = (struct rabbitmq_sink *)sk;
    if (r->window.count == 0 && wire_stirs(&r->conn.wire))
        rabbitmq_drive(sk);
    for (size_t i = 0; i < n; i++) {
        if (!has_room(r))
            return i;
        if (!submit_one(r, d[i]))
            return i + 1;
    }
    return n;
}

/* The first call connects, so that a missing exchange is reported before the first event. */
static void rabbitmq_drive(struct sink *sk)
{
    struct rabbitmq_sink *r = (struct rabbitmq_sink *)sk;
    struct error err;
    if (!r->has_connected && ensure_channel(r, &err) != 0)
        return;
    if (r->conn.state == RABBIT_CLOSED)
        return;
    int rc = rabbit_conn_drive(&r->conn, rabbitmq_answer_frame, r, &err);
    if (rc == 0 && must_replace_channel(r) && r->window.count > 0)
        rc = ensure_channel(r, &err);
    if (rc != 0) {
        rabbitmq_answer_lost(r, &err);
        return;
    }

    publish_waiting(r);
    if (r->conn.blocked && r->waiting) {
        fail_blocked(r, &err);
        rabbitmq_answer_waiting(r, &(struct sink_result){.status = SINK_DOWN, .text = err.text});
    }
    if (broker_now(&r->b) < window_due(&r->window))
        return;
    if (r->conn.blocked) {
        /* Keep the connection: a new one would publish messages already written twice. */
        fail_blocked(r, &err);
        rabbitmq_answer_all(r, &(struct sink_result){.status = SINK_DOWN, .text = err.text});
        return;
    }
    err_set(&err, ERR_UNAVAILABLE, "%s has not confirmed for %lld ms; %zu events were waiting",
            rabbit_conn_label(&r->conn), (long long)r->b.base.cfg.timeout_ms, r->window.count);
    rabbitmq_answer_lost(r, &err);
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
    return min_i64(window_due(&r->window), rabbit_conn_deadline(&r->conn));
}

/* Checks for confirms once more: an event known to be delivered need not be retried. */
static void rabbitmq_cancel(struct sink *sk)
{
    struct rabbitmq_sink *r = (struct rabbitmq_sink *)sk;
    struct error err;
    const char *why = "cancelled";
    if (r->window.count == 0)
        return;
    if (rabbit_conn_drive(&r->conn, rabbitmq_answer_frame, r, &err) != 0)
        why = err.text;
    rabbit_conn_close(&r->conn);
    r->channel = CHANNEL_NONE;
    rabbitmq_answer_all(r, &(struct sink_result){.status = SINK_CANCELLED, .text = why});
}

/* Heartbeats may become due at any time, and the broker may block publishers. */
static bool rabbitmq_attended(struct sink *sk)
{
    (void)sk;
    return true;
}

/* Reports the node that we are connected to. AMQP does not reveal a queue's leader. */
static void rabbitmq_broker(struct sink *sk, struct sink_broker *ret)
{
    const struct rabbitmq_sink *r = (const struct rabbitmq_sink *)sk;
    const struct wire_peer *at = &r->conn.cfg.peers[r->conn.peer];
    ret->kind = "rabbitmq";
    ret->connected = r->channel == CHANNEL_READY;
    sink_peer_add(ret->broker, at->host, at->port);
    window_describe(&r->window, ret);
}

/* Opening */

static void rabbitmq_close(struct sink *sk)
{
    struct rabbitmq_sink *r = (struct rabbitmq_sink *)sk;
    rabbit_conn_release(&r->conn);
    template_free(r->key);
    buf_release(&r->name);
    buf_release(&r->text);
    rabbitmq_settings_release(&r->set);
    broker_url_release(&r->url);
    rabbitmq_login_release(&r->login);
    free(r->by_tag);
    window_release(&r->window);
    broker_close(sk);
}

static int rabbitmq_set_up(struct sink *sk, struct error *err)
{
    struct rabbitmq_sink *r = (struct rabbitmq_sink *)sk;
    buf_init(&r->name, KEY_MAX);
    buf_init(&r->text, TEXT_MAX);
    wire_init(&r->conn.wire);
    if (rabbitmq_settings_read(sk->cfg.url, &r->set, &r->url, err) != 0)
        return -1;
    if (template_new(r->set.routing_key, &r->key, err) != 0)
        return err_prefix(err, "rabbitmq sink: routing-key");
    r->fixed = template_fixed(r->key);

    bool classic = r->set.create && r->set.queue && strcmp(r->set.queue_type, "classic") == 0;
    if (r->set.unroutable == UNROUTABLE_IGNORE)
        broker_set_caution(&r->b, "unroutable=ignore counts an event as delivered even if no "
                                  "queue is bound for it and the broker drops it");
    else if (classic)
        broker_set_caution(&r->b, "queue-type=classic keeps a queue on a single node: if the "
                                  "node is lost, so are the queue's events; quorum replicates "
                                  "them");

    if (window_init(&r->window, sk, RABBITMQ_WINDOW, sizeof(struct rabbitmq_item), err) != 0)
        return -1;
    r->by_tag = calloc(RABBITMQ_WINDOW, sizeof *r->by_tag);
    if (!r->by_tag)
        return err_nomem(err);

    struct rabbit_config conn;
    if (rabbitmq_login_make(&r->login, &r->set, &r->url, sk->cfg.consumer, &conn, err) != 0)
        return -1;
    conn.clock = sk->cfg.clock;
    rabbit_conn_init(&r->conn, &conn);
    return 0;
}

static int rabbitmq_open(const struct sink_config *cfg, struct sink **ret, struct error *err)
{
    return broker_open(cfg, sizeof(struct rabbitmq_sink), rabbitmq_set_up, ret, err);
}

/* Waits until the channel is ready: logged in, with exchange and queue verified. */
static int rabbitmq_probe(struct sink *sk, int64_t timeout_ms, struct error *err)
{
    struct rabbitmq_sink *r = (struct rabbitmq_sink *)sk;
    int64_t deadline = clock_mono(&clock_system) + timeout_ms * MS_NS;
    r->refused.code = ERR_NONE;
    if (ensure_channel(r, err) != 0)
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
        poll(&fd, 1, (int)min_i64(left + 1, 1000));
    }
}

#define RABBITMQ_OPS(name, scheme_, synopsis_, help_) \
    const struct sink_ops name = { \
        .scheme = scheme_, \
        .synopsis = synopsis_, \
        .help = help_, \
        .attended = rabbitmq_attended, \
        BROKER_OPS(rabbitmq), \
    }

RABBITMQ_OPS(rabbitmq_ops, "amqp", "amqp://USER@HOST/VHOST/EXCHANGE",
             "publish to RabbitMQ; see docs/brokers.md");
RABBITMQ_OPS(rabbitmq_tls_ops, "amqps", "amqps://USER@HOST/VHOST/EXCHANGE", "the same with TLS");
