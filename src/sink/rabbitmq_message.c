/* rabbitmq_message.c: an event as AMQP frames. */
#include "sink/rabbitmq_impl.h"

/* Writes the routing key. A dot in a value starts another word of a topic: brokers allow any bytes,
 * so nothing is escaped. */
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

/* One mark per exchange. The default exchange routes to the queue named by the key, so there it is
 * one per queue. */
struct stream *rabbitmq_message_mark(struct rabbitmq_sink *r, const struct event *ev,
                                     struct error *err)
{
    struct str name = str_of(r->set.exchange);
    if (name.n == 0) {
        if (make_key(r, ev, err) != 0)
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
                           "the name of a header has %zu bytes, and AMQP allows %d", name.n,
                           RABBIT_SHORT_MAX);
        /* RabbitMQ interprets these two: they name more queues to route to, and must be arrays. No
         * event may choose its destination, or close our channel. */
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

/* Writes the method, the header and the body. The header contains the id in every format: it
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

int rabbitmq_message_publish(struct rabbitmq_sink *r, const struct delivery *d, struct error *err)
{
    struct message_style style = {
        .format = r->set.format, .source = str_of(r->set.source), .ce_prefix = r->set.ce_prefix};
    if (make_key(r, d->ev, err) != 0)
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
