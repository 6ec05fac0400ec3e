/* rabbitmq.c: the sink that publishes to RabbitMQ: one message per event, hundreds in flight. An
 * event is delivered once the broker has confirmed its message. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "sink/kinds.h"
#include "sink/rabbitmq_impl.h"

#define OUT_ENOUGH ((size_t)4 << 20) /* queued bytes; above this, submit applies back-pressure */
#define NACKED_NS (2000 * MS_NS)     /* a channel with nacks for this long is replaced */
#define REPLACED_NS (20000 * MS_NS)  /* minimum time between replacements */
#define KEY_MAX ((size_t)16 << 10)   /* limit on a routing key before its length is checked */
#define TEXT_MAX ((size_t)512 << 20) /* limit on the output of message_make */
#define OUT_MAX ((size_t)1 << 30)    /* limit on queued bytes: one event may be large */
#define BEAT_MIN_MS 1000
#define BEAT_MAX_MS 3600000

/* The URL */

static const char *const unroutable_names[] = {"retry", "reject", "ignore", NULL};
static const char *const auth_names[] = {"auto", "plain", "external", NULL};
static const char *const exchange_types[] = {"topic", "direct", "fanout", "headers", NULL};
static const char *const queue_types[] = {"quorum", "classic", "stream", NULL};

static const struct option_def options[] = {
    {"routing-key", "TEMPLATE", NULL,
     "routing key of an event, a template with " TEMPLATE_FIELDS "; default: {type}", option_copy,
     .at = offsetof(struct rabbitmq_settings, routing_key)},
    BROKER_OPTIONS(rabbitmq_settings, "plain"),
    {"ce-prefix", "TEXT", "cloudEvents:", "prefix of CloudEvents headers", option_copy,
     .at = offsetof(struct rabbitmq_settings, ce_prefix)},
    {"unroutable", "WHAT", "retry", "treatment of an event for which no queue is bound",
     option_choice, .at = offsetof(struct rabbitmq_settings, unroutable),
     .names = unroutable_names},
    {"auth", "HOW", "auto", "SASL mechanism: plain, or external for the client certificate",
     option_choice, .at = offsetof(struct rabbitmq_settings, auth), .names = auth_names},
    {"heartbeat", "DURATION", "30s", "heartbeat interval of both sides; 0s: none", option_span,
     .at = offsetof(struct rabbitmq_settings, heartbeat_ms), .max = BEAT_MAX_MS},
    {"create", "on|off", "off", "declare the exchange, and the queue if one is named", option_bool,
     .at = offsetof(struct rabbitmq_settings, create)},
    {"exchange-type", "TYPE", "topic", "type of the exchange that create declares", option_word,
     .at = offsetof(struct rabbitmq_settings, exchange_type), .names = exchange_types},
    {"queue", "NAME", NULL, "a queue that must exist, or that create declares and binds",
     option_file, .at = offsetof(struct rabbitmq_settings, queue)},
    {"queue-type", "TYPE", "quorum", "type of the queue that create declares", option_word,
     .at = offsetof(struct rabbitmq_settings, queue_type), .names = queue_types},
    {"binding", "KEY", "#", "binding key of that queue", option_copy,
     .at = offsetof(struct rabbitmq_settings, binding)},
    {NULL},
};

/* Splits VHOST/EXCHANGE at the last slash. An empty VHOST means the usual virtual host, which is
 * itself named by a slash. */
static int split_path(const char *path, struct rabbitmq_settings *s, struct error *err)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return err_set(err, ERR_CONFIG,
                       "write amqp://USER@HOST/VHOST/EXCHANGE, with the virtual host / written "
                       "as %%2F");
    if (slash == path)
        s->vhost = strdup("/");
    else
        s->vhost = strndup(path, (size_t)(slash - path));
    s->exchange = strdup(slash + 1);
    if (!s->vhost || !s->exchange)
        return err_nomem(err);
    bool too_long = strlen(s->vhost) > RABBIT_SHORT_MAX || strlen(s->exchange) > RABBIT_SHORT_MAX;
    if (too_long)
        return err_set(err, ERR_CONFIG, "a name in AMQP has at most %d bytes", RABBIT_SHORT_MAX);
    return 0;
}

/* Fills in defaults that depend on the rest of the URL: the routing key, and SASL EXTERNAL if only
 * a certificate is given. */
static int choose_defaults(struct rabbitmq_settings *s, const struct url *u, struct error *err)
{
    bool only_cert = u->cert && !u->user && !u->password_file;
    if (s->auth == AUTH_AUTO)
        s->auth = only_cert ? AUTH_EXTERNAL : AUTH_PLAIN;
    if (s->routing_key)
        return 0;
    bool names_queue = s->exchange[0] == '\0';
    if (names_queue)
        return err_set(err, ERR_CONFIG,
                       "the URL names no queue: without an exchange, add ?routing-key=QUEUE, or "
                       "name an exchange: amqp://USER@HOST/VHOST/EXCHANGE");
    const char *usual = s->format == MESSAGE_DEBEZIUM ? BROKER_DEBEZIUM_ROUTE : "{type}";
    return option_copy(&s->routing_key, usual, NULL, err);
}

static int check_settings(const struct rabbitmq_settings *s, const struct url *u, struct error *err)
{
    bool external = s->auth == AUTH_EXTERNAL;
    if (external && strcmp(u->scheme, "amqps") != 0)
        return err_set(err, ERR_CONFIG, "auth=external requires amqps://");
    if (external && !u->cert)
        return err_set(err, ERR_CONFIG, "auth=external requires cert=FILE and key=FILE");
    if (s->heartbeat_ms > 0 && s->heartbeat_ms < BEAT_MIN_MS)
        return err_set(err, ERR_CONFIG, "heartbeat must be 0s or at least 1s");

    bool long_queue = s->queue && strlen(s->queue) > RABBIT_SHORT_MAX;
    bool long_binding = strlen(s->binding) > RABBIT_SHORT_MAX;
    if (long_queue || long_binding)
        return err_set(err, ERR_CONFIG, "a name in AMQP has at most %d bytes", RABBIT_SHORT_MAX);
    if (s->queue && s->exchange[0] == '\0')
        return err_set(err, ERR_CONFIG, "queue requires an exchange to bind it to");
    return broker_check_url(u, "amqps", err);
}

int rabbitmq_settings_read(const char *url, struct rabbitmq_settings *s, struct url *u,
                           struct error *err)
{
    const char *port = strncmp(url, "amqps:", 6) == 0 ? "5671" : "5672";
    int rc = url_parse(url, port, RABBITMQ_PASSWORD_ENV, options, s, u, err);
    if (rc == 0)
        rc = split_path(u->path, s, err);
    if (rc == 0)
        rc = choose_defaults(s, u, err);
    if (rc == 0)
        rc = check_settings(s, u, err);
    if (rc != 0)
        return err_prefix(err, "rabbitmq sink");
    return 0;
}

void rabbitmq_settings_release(struct rabbitmq_settings *s)
{
    free(s->vhost);
    free(s->exchange);
    s->vhost = s->exchange = NULL;
    broker_settings_release(options, s);
}

struct rabbit_config rabbitmq_settings_conn(const struct rabbitmq_settings *s, const struct url *u,
                                            const char *who, const struct clock *clock)
{
    struct rabbit_config c = {
        .url = u,
        .tls = strcmp(u->scheme, "amqps") == 0,
        .vhost = s->vhost,
        .external = s->auth == AUTH_EXTERNAL,
        .heartbeat_s = (int)(s->heartbeat_ms / 1000),
        .clock = clock,
        .out_max = OUT_MAX,
    };
    snprintf(c.name, sizeof c.name, "outbox:%s", who);
    return c;
}

/* Messages */

/* Returns the routing key; p == NULL on failure. A dot in a value starts another word of a topic:
 * brokers allow any bytes, so nothing is escaped. */
static struct str key_of(struct rabbitmq_sink *r, const struct event *ev, struct error *err)
{
    struct str key = broker_name(&r->b, ev, err);
    if (key.n > RABBIT_SHORT_MAX) {
        err_set(err, ERR_INVALID, "the event's routing key has %zu bytes; AMQP's limit is %d",
                key.n, RABBIT_SHORT_MAX);
        key.p = NULL;
    }
    return key;
}

/* Returns the high-water mark of an exchange. The default exchange routes to the queue named by the
 * key, so it has one mark per queue. */
static struct stream *find_mark(struct rabbitmq_sink *r, const struct event *ev, struct error *err)
{
    struct str name = str_of(r->set.exchange);
    if (name.n == 0) {
        name = key_of(r, ev, err);
        if (!name.p)
            return NULL;
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
                           "the name of a header has %zu bytes; AMQP's limit is %d", name.n,
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
static int put_frames(struct rabbitmq_sink *r, const struct event *ev, struct str key,
                      struct error *err)
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
        .routing_key = rabbit_bytes(key),
        .mandatory = r->set.unroutable != UNROUTABLE_IGNORE,
    };
    rabbit_frame_put_method(&r->conn.wire.out, RABBITMQ_CHANNEL, AMQP_BASIC_PUBLISH_METHOD,
                            &publish);
    return rabbit_frame_put_content(&r->conn.wire.out, RABBITMQ_CHANNEL, &p, m->value,
                                    r->conn.frame_max, err);
}

static int publish_event(struct rabbitmq_sink *r, const struct delivery *d, struct error *err)
{
    struct str key = key_of(r, d->ev, err);
    if (!key.p || broker_message(&r->b, d, key, &r->message, err) != 0)
        return -1;

    struct buf *out = &r->conn.wire.out;
    size_t before = out->n;
    int rc = put_frames(r, d->ev, key, err);
    if (rc == 0 && out->failed)
        rc = err_nomem(err);
    if (rc != 0)
        buf_truncate(out, before);
    return rc;
}

/* Publishing */

/* Returns whether the channel must be replaced. RabbitMQ 3.10 caches the leader of a quorum queue
 * in the channel: if that node dies, the broker nacks every later message to the queue on this
 * channel. A full queue looks the same, so replacements are rare. */
static bool must_replace_channel(const struct rabbitmq_sink *r)
{
    int64_t now = broker_now(&r->b);
    return r->nacked && now >= r->nacked + NACKED_NS && now >= r->renewed + REPLACED_NS;
}

static bool may_publish(const struct rabbitmq_sink *r)
{
    bool open = r->channel == CHANNEL_READY && !r->conn.blocked;
    if (!open || wire_queued(&r->conn.wire) >= OUT_ENOUGH || must_replace_channel(r))
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
            window_end(&r->b.window, &it->f, &res);
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
    if (r->conn.wire.state == WIRE_CLOSED) {
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
    if (r->b.window.count == 0)
        return true;
    if (r->one_by_one > 0 || r->next_tag - r->first_tag >= RABBITMQ_WINDOW)
        return false;
    return r->b.window.count + 1 < RABBITMQ_WINDOW && wire_queued(&r->conn.wire) < OUT_ENOUGH;
}

/* Fails because the broker blocks publishers. */
static int fail_blocked(const struct rabbitmq_sink *r, struct error *err)
{
    return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s is blocking publishers: %s",
                     r->conn.label, r->conn.reason);
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
        if (r->conn.wire.state == WIRE_CLOSED)
            rabbitmq_answer_lost(r, &err); /* the events that waited for the failed connection */
        return false;
    }
    struct rabbitmq_item *it = (struct rabbitmq_item *)window_add(&r->b.window, d, mark);
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
    if (r->b.window.count == 0 && wire_stirs(&r->conn.wire))
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
    if (r->conn.wire.state == WIRE_CLOSED)
        return;
    int rc = rabbit_conn_drive(&r->conn, rabbitmq_answer_frame, r, &err);
    if (rc == 0 && must_replace_channel(r) && r->b.window.count > 0)
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
    if (broker_now(&r->b) < window_due(&r->b.window))
        return;
    if (r->conn.blocked) {
        /* Keep the connection: a new one would publish messages already written twice. */
        fail_blocked(r, &err);
        rabbitmq_answer_all(r, &(struct sink_result){.status = SINK_DOWN, .text = err.text});
        return;
    }
    err_set(&err, ERR_UNAVAILABLE, "%s has not confirmed for %lld ms; %zu events were waiting",
            r->conn.label, (long long)r->b.base.cfg.timeout_ms, r->b.window.count);
    rabbitmq_answer_lost(r, &err);
}

static size_t rabbitmq_fds(struct sink *sk, struct pollfd *out, size_t max)
{
    const struct rabbitmq_sink *r = (const struct rabbitmq_sink *)sk;
    if (r->conn.wire.state == WIRE_CLOSED || max == 0)
        return 0;
    out[0] = wire_poll(&r->conn.wire);
    return 1;
}

static int64_t rabbitmq_deadline(struct sink *sk)
{
    const struct rabbitmq_sink *r = (const struct rabbitmq_sink *)sk;
    return min_i64(window_due(&r->b.window), rabbit_conn_deadline(&r->conn));
}

/* Checks for confirms once more: an event known to be delivered need not be retried. */
static void rabbitmq_cancel(struct sink *sk)
{
    struct rabbitmq_sink *r = (struct rabbitmq_sink *)sk;
    struct error err;
    const char *why = "cancelled";
    if (r->b.window.count == 0)
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
    const struct url_host *at = &r->url.hosts[r->conn.peer];
    ret->kind = "rabbitmq";
    ret->connected = r->channel == CHANNEL_READY;
    sink_peer_add(ret->broker, at->host, at->port);
    window_describe(&r->b.window, ret);
}

/* Opening */

static void rabbitmq_close(struct sink *sk)
{
    struct rabbitmq_sink *r = (struct rabbitmq_sink *)sk;
    rabbit_conn_release(&r->conn);
    rabbitmq_settings_release(&r->set);
    url_release(&r->url);
    free(r->by_tag);
    broker_close(sk);
}

static int rabbitmq_set_up(struct sink *sk, struct error *err)
{
    struct rabbitmq_sink *r = (struct rabbitmq_sink *)sk;
    rabbit_conn_init(&r->conn, &(struct rabbit_config){0}); /* for close */
    if (rabbitmq_settings_read(sk->cfg.url, &r->set, &r->url, err) != 0)
        return -1;
    struct message_style style = {r->set.format, str_of(r->set.source), r->set.ce_prefix};
    if (broker_route(&r->b, r->set.routing_key, style, err) != 0)
        return -1;

    bool classic = r->set.create && r->set.queue && strcmp(r->set.queue_type, "classic") == 0;
    if (r->set.unroutable == UNROUTABLE_IGNORE)
        broker_set_caution(&r->b, "unroutable=ignore counts an event as delivered even if no "
                                  "queue is bound for it and the broker drops it");
    else if (classic)
        broker_set_caution(&r->b, "queue-type=classic keeps a queue on a single node: if the "
                                  "node is lost, so are the queue's events; quorum replicates "
                                  "them");

    r->by_tag = calloc(RABBITMQ_WINDOW, sizeof *r->by_tag);
    if (!r->by_tag)
        return err_nomem(err);

    struct rabbit_config conn = rabbitmq_settings_conn(&r->set, &r->url, sk->cfg.consumer,
                                                       sk->cfg.clock);
    rabbit_conn_init(&r->conn, &conn);
    return 0;
}

static const struct broker_kind rabbitmq_kind = {
    .name = "rabbitmq",
    .destination = "routing-key",
    .size = sizeof(struct rabbitmq_sink),
    .in_flight = RABBITMQ_WINDOW,
    .item_size = sizeof(struct rabbitmq_item),
    .name_max = KEY_MAX,
    .message_max = TEXT_MAX,
    .set_up = rabbitmq_set_up,
};
BROKER_OPEN(rabbitmq)

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
                           r->conn.label);
        struct pollfd fd = wire_poll(&r->conn.wire);
        poll(&fd, 1, (int)min_i64(left + 1, 1000));
    }
}

const struct sink_ops rabbitmq_ops = {BROKER_OPS(rabbitmq, "amqp",
                                                 "amqp://USER@HOST/VHOST/EXCHANGE",
                                                 "publish to RabbitMQ; see docs/brokers.md"),
                                      .attended = rabbitmq_attended};
const struct sink_ops rabbitmq_tls_ops = {
    BROKER_OPS(rabbitmq, "amqps", "amqps://USER@HOST/VHOST/EXCHANGE", "the same with TLS"),
    .attended = rabbitmq_attended};
