/* rabbitmq_publish.c: an event as the frames of a message. */
#include "sink/rabbitmq_impl.h"

/* make_key writes the routing key. A dot in a value begins another word of a topic: a broker allows
 * any bytes, so nothing is escaped. */
static int make_key(struct rabbitmq_sink *r, const struct event *ev, struct error *err)
{
    buf_clear(&r->name);
    if (template_write(r->key, ev, &r->name, err) != 0)
        return -1;
    if (r->name.n > RABBIT_SHORT_MAX)
        return err_set(err, ERR_INVALID, "its routing key would have %zu bytes, and AMQP allows %d",
                       r->name.n, RABBIT_SHORT_MAX);
    return 0;
}

/* rabbitmq_publish_mark gives one mark for an exchange. The default exchange routes to the queue
 * that the key names, so there it is one for each queue. */
struct stream *rabbitmq_publish_mark(struct rabbitmq_sink *r, const struct event *ev,
                                     struct error *err)
{
    struct str name = str_of(r->set.exchange);
    if (name.n == 0) {
        if (make_key(r, ev, err) != 0)
            return NULL;
        name = (struct str){r->name.p, r->name.n};
    }
    struct stream *st = streams_get(&r->marks, name);
    if (!st)
        err_nomem(err);
    return st;
}

/* means_something says whether RabbitMQ would act on a header: CC and BCC name more queues to route
 * to, and must be arrays. No event may choose where it goes, or close our channel: these two are
 * left out. */
static bool means_something(struct str name)
{
    return str_is(name, "CC") || str_is(name, "BCC");
}

static int fill_headers(const struct message *m, amqp_table_entry_t *to, int *ret_n,
                        struct error *err)
{
    int n = 0;
    for (size_t i = 0; i < m->n; i++) {
        struct str name = m->headers[i].name;
        if (name.n > RABBIT_SHORT_MAX)
            return err_set(err, ERR_INVALID,
                           "the name of a header has %zu bytes, and AMQP allows %d", name.n,
                           RABBIT_SHORT_MAX);
        if (means_something(name))
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

/* properties_of has the id in each format: it is what basic.return is recognized by. */
static amqp_basic_properties_t properties_of(const struct event *ev, const struct message *m,
                                             amqp_table_t headers)
{
    amqp_basic_properties_t p = {
        ._flags = AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_MESSAGE_ID_FLAG |
                  AMQP_BASIC_TIMESTAMP_FLAG | AMQP_BASIC_TYPE_FLAG | AMQP_BASIC_APP_ID_FLAG,
        .delivery_mode = AMQP_DELIVERY_PERSISTENT,
        .message_id = rabbit_bytes(ev->id),
        .timestamp = (uint64_t)(ev->created_at / 1000),
        .type = rabbit_bytes(ev->type),
        .app_id = rabbit_bytes(STR("outbox")),
    };
    if (headers.num_entries > 0) {
        p._flags |= AMQP_BASIC_HEADERS_FLAG;
        p.headers = headers;
    }
    if (m->content_type.p) {
        p._flags |= AMQP_BASIC_CONTENT_TYPE_FLAG;
        p.content_type = rabbit_bytes(m->content_type);
    }
    return p;
}

static int put_frames(struct rabbitmq_sink *r, const struct event *ev, struct error *err)
{
    amqp_table_entry_t entries[MESSAGE_HEADERS];
    amqp_table_t headers = {.entries = entries};
    if (fill_headers(&r->message, entries, &headers.num_entries, err) != 0)
        return -1;

    amqp_basic_properties_t p = properties_of(ev, &r->message, headers);
    amqp_basic_publish_t m = {
        .exchange = rabbit_bytes(str_of(r->set.exchange)),
        .routing_key = rabbit_bytes((struct str){r->name.p, r->name.n}),
        .mandatory = r->set.unroutable != UNROUTABLE_IGNORE,
    };
    rabbit_frame_put_method(&r->conn.out, RABBITMQ_CHANNEL, AMQP_BASIC_PUBLISH_METHOD, &m);
    return rabbit_frame_put_content(&r->conn.out, RABBITMQ_CHANNEL, &p, r->message.value,
                                    r->conn.frame_max, err);
}

int rabbitmq_publish(struct rabbitmq_sink *r, const struct rabbitmq_item *it, struct error *err)
{
    const struct event *ev = it->d->ev;
    struct message_style style = {
        .format = r->set.format, .source = str_of(r->set.source), .ce_prefix = r->set.ce_prefix};
    if (make_key(r, ev, err) != 0)
        return -1;
    struct str key = {r->name.p, r->name.n};
    if (message_make(&style, ev, key, str_of(r->base.cfg.consumer), it->d->attempt, &r->text,
                     &r->message, err) != 0)
        return -1;

    struct buf *out = &r->conn.out;
    size_t before = out->n;
    int rc = put_frames(r, ev, err);
    if (rc == 0 && out->failed)
        rc = err_nomem(err);
    if (rc != 0)
        buf_truncate(out, before);
    return rc;
}
