/* receive_rabbitmq.c: reads a queue without removing messages, or the messages that an exchange
 * routes from now on. While a queue is being read, its messages are unavailable to other consumers;
 * they are requeued in their place afterwards. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/num.h"
#include "base/text.h"
#include "extra/receive/receive.h"
#include "sink/rabbitmq_impl.h"

#define BODY_MAX ((uint64_t)512 << 20)
#define WAIT_MS 60000    /* of one poll */
#define STREAM_AHEAD 200 /* prefetch of a stream */

/* A message: its header frame, followed by its body. It is complete once `rest` is 0. */
struct arrival {
    struct arrival *next;
    uint64_t tag, rest;
    size_t n_header, n;
    char data[];
};

/* Setup steps: each waits for the broker's reply. */
enum reading { READ_OPEN, READ_QOS, READ_DECLARE, READ_BIND, READ_CONSUME, READ_RUNS };

/* (1) first..last are complete, in order; `partial` is the message whose body is arriving.
 * (2) `returned` is the last message returned; it lives until the next call. */
struct rabbitmq_receiver {
    struct receiver base;
    struct rabbitmq_settings set;
    struct url url;
    struct rabbit_conn conn;
    enum reading reading;
    bool temporary; /* the queue is exclusive to this connection, and deleted with it */
    bool stream;
    char queue[RABBIT_SHORT_MAX + 1];
    struct arrival *first, *last, *partial, *returned;
    uint64_t tag; /* delivery tag of the message whose header is arriving; 0: none */
    struct arena text;
};

static int send_method(struct rabbitmq_receiver *rc, amqp_method_number_t id, void *m,
                       struct error *err)
{
    if (rabbit_conn_send(&rc->conn, RABBITMQ_CHANNEL, id, m) != 0)
        return err_nomem(err);
    return 0;
}

/* Returns the x-stream-offset from which to read a stream. */
static amqp_field_value_t offset_of(const char *from)
{
    if (strcmp(from, "beginning") == 0)
        from = "first";
    if (strcmp(from, "end") == 0)
        from = "next";
    int64_t n;
    struct error no;
    if (text_int(from, 0, INT64_MAX, &n, &no) == 0)
        return (amqp_field_value_t){.kind = AMQP_FIELD_KIND_I64, .value.i64 = n};
    return (amqp_field_value_t){.kind = AMQP_FIELD_KIND_UTF8,
                                .value.bytes = rabbit_bytes(str_of(from))};
}

static int unexpected_method(const struct rabbitmq_receiver *rc, const amqp_method_t *m,
                             struct error *err)
{
    return err_set(err, ERR_UNAVAILABLE, "%s sent an unexpected %s", rc->conn.label,
                   amqp_method_name(m->id));
}

/* Sends the request of the current step. */
static int send_step(struct rabbitmq_receiver *rc, struct error *err)
{
    amqp_bytes_t queue = rabbit_bytes(str_of(rc->queue));
    amqp_channel_open_t open = {.out_of_band = amqp_empty_bytes};
    amqp_basic_qos_t qos = {.prefetch_count = rc->stream ? STREAM_AHEAD : 0};
    /* Declare our own queue, or check that the named queue exists. */
    amqp_queue_declare_t declare = {
        .queue = queue,
        .passive = !rc->temporary,
        .exclusive = rc->temporary,
        .auto_delete = rc->temporary,
    };
    amqp_queue_bind_t bind = {
        .queue = queue,
        .exchange = rabbit_bytes(str_of(rc->set.exchange)),
        .routing_key = rabbit_bytes(str_of(rc->set.binding)),
    };
    amqp_table_entry_t from = {.key = rabbit_bytes(STR("x-stream-offset")),
                               .value = offset_of(rc->base.cfg.from)};
    amqp_basic_consume_t consume = {
        .queue = queue,
        .no_ack = rc->temporary,
        .arguments = {.num_entries = rc->stream ? 1 : 0, .entries = &from},
    };
    switch (rc->reading) {
    case READ_OPEN: return send_method(rc, AMQP_CHANNEL_OPEN_METHOD, &open, err);
    case READ_QOS: return send_method(rc, AMQP_BASIC_QOS_METHOD, &qos, err);
    case READ_DECLARE: return send_method(rc, AMQP_QUEUE_DECLARE_METHOD, &declare, err);
    case READ_BIND: return send_method(rc, AMQP_QUEUE_BIND_METHOD, &bind, err);
    case READ_CONSUME: return send_method(rc, AMQP_BASIC_CONSUME_METHOD, &consume, err);
    case READ_RUNS: break;
    }
    return 0;
}

/* Handles the reply to a step, and starts the next one. */
static int take_answer(struct rabbitmq_receiver *rc, const amqp_method_t *m, struct error *err)
{
    static const amqp_method_number_t answers[] = {
        [READ_OPEN] = AMQP_CHANNEL_OPEN_OK_METHOD,     [READ_QOS] = AMQP_BASIC_QOS_OK_METHOD,
        [READ_DECLARE] = AMQP_QUEUE_DECLARE_OK_METHOD, [READ_BIND] = AMQP_QUEUE_BIND_OK_METHOD,
        [READ_CONSUME] = AMQP_BASIC_CONSUME_OK_METHOD,
    };
    if (m->id != answers[rc->reading])
        return unexpected_method(rc, m, err);

    if (rc->reading == READ_DECLARE) {
        const amqp_queue_declare_ok_t *ok = m->decoded;
        snprintf(rc->queue, sizeof rc->queue, "%.*s", (int)ok->queue.len,
                 ok->queue.len ? (const char *)ok->queue.bytes : "");
    }
    rc->reading++;
    if (rc->reading == READ_BIND && !rc->temporary)
        rc->reading++;
    return send_step(rc, err);
}

/* Messages */

static void finish_arrival(struct rabbitmq_receiver *rc)
{
    if (rc->last)
        rc->last->next = rc->partial;
    else
        rc->first = rc->partial;
    rc->last = rc->partial;
    rc->partial = NULL;
}

static int take_header(struct rabbitmq_receiver *rc, const struct rabbit_frame *f,
                       struct error *err)
{
    struct rabbit_header h;
    if (rabbit_frame_header(f, &h, err) != 0)
        return err_prefix(err, "%s", rc->conn.label);
    if (h.body_size > BODY_MAX)
        return err_set(err, ERR_UNAVAILABLE, "%s has a message of %llu bytes, which is too large",
                       rc->conn.label, (unsigned long long)h.body_size);
    struct arrival *p = malloc(sizeof *p + f->payload.n + h.body_size);
    if (!p)
        return err_nomem(err);
    *p = (struct arrival){
        .tag = rc->tag, .rest = h.body_size, .n_header = f->payload.n, .n = f->payload.n};
    memcpy(p->data, f->payload.p, f->payload.n);
    rc->partial = p;
    rc->tag = 0;
    if (p->rest == 0)
        finish_arrival(rc);
    return 0;
}

static int take_content(struct rabbitmq_receiver *rc, const struct rabbit_frame *f,
                        struct error *err)
{
    struct arrival *p = rc->partial;
    if (!p && rc->tag && f->type == RABBIT_HEADER)
        return take_header(rc, f, err);
    bool fits = p && f->type == RABBIT_BODY && f->payload.n <= p->rest;
    if (!fits)
        return err_set(err, ERR_UNAVAILABLE, "%s sent an unexpected message", rc->conn.label);
    memcpy(p->data + p->n, f->payload.p, f->payload.n);
    p->n += f->payload.n;
    p->rest -= f->payload.n;
    if (p->rest == 0)
        finish_arrival(rc);
    return 0;
}

static int take_frame(void *ctx, const struct rabbit_frame *f, const amqp_method_t *m,
                      struct error *err)
{
    struct rabbitmq_receiver *rc = ctx;
    if (!m)
        return take_content(rc, f, err);
    if (m->id == AMQP_CHANNEL_CLOSE_METHOD) {
        const amqp_channel_close_t *closed = m->decoded;
        char said[RABBIT_TEXT];
        return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, closed->reply_code, "%s: %s",
                         rc->conn.label, rabbit_conn_text(closed->reply_text, said));
    }
    if (rc->reading != READ_RUNS)
        return take_answer(rc, m, err);
    if (m->id == AMQP_BASIC_CANCEL_METHOD)
        return err_set(err, ERR_UNAVAILABLE, "%s: queue %s is gone", rc->conn.label, rc->queue);
    if (m->id != AMQP_BASIC_DELIVER_METHOD || rc->tag || rc->partial)
        return unexpected_method(rc, m, err);
    rc->tag = ((const amqp_basic_deliver_t *)m->decoded)->delivery_tag;
    return 0;
}

/* Returning messages */

/* The target of a message's headers. */
struct filling {
    struct rabbitmq_receiver *rc;
    struct received *to;
};

static void take_field(void *ctx, struct str name, struct str value)
{
    struct filling *f = ctx;
    struct message *m = &f->to->m;
    struct str copy = {arena_bytes(&f->rc->text, value.p, value.n), value.n};
    if (!copy.p)
        return;
    if (str_is(name, "x-stream-offset"))
        f->to->position = copy;
    bool of_broker = name.n > 2 && memcmp(name.p, "x-", 2) == 0;
    if (of_broker || m->n == MESSAGE_HEADERS)
        return;
    m->headers[m->n++] = (struct message_header){name, copy};
}

static int fill_received(struct rabbitmq_receiver *rc, const struct arrival *p,
                         struct received *ret, struct error *err)
{
    struct rabbit_frame f = {.type = RABBIT_HEADER, .payload = {p->data, p->n_header}};
    struct rabbit_header h;
    if (rabbit_frame_header(&f, &h, err) != 0)
        return -1;
    arena_reset(&rc->text);
    ret->place = str_of(rc->queue);
    ret->position = (struct str){0};
    ret->m.value = (struct str){p->data + p->n_header, p->n - p->n_header};
    ret->m.content_type = h.content_type;
    ret->m.n = 0;
    if (rabbit_frame_fields(h.table, take_field, &(struct filling){rc, ret}, err) != 0)
        return err_prefix(err, "%s", rc->conn.label);
    ret->m.key = message_header_of(&ret->m, STR("aggregate_id"));
    return 0;
}

/* Returns the next message. A stream's message is acknowledged, which grants credit for another one
 * and removes no message. */
static int next_arrival(struct rabbitmq_receiver *rc, struct received *ret, struct error *err)
{
    free(rc->returned);
    rc->returned = rc->first;
    rc->first = rc->returned->next;
    if (!rc->first)
        rc->last = NULL;
    amqp_basic_ack_t ack = {.delivery_tag = rc->returned->tag};
    if (rc->stream && send_method(rc, AMQP_BASIC_ACK_METHOD, &ack, err) != 0)
        return -1;
    return fill_received(rc, rc->returned, ret, err);
}

/* Drives the connection after waiting up to wait_ms for the broker. */
static int drive_for(struct rabbitmq_receiver *rc, int64_t wait_ms, struct error *err)
{
    int64_t beat_ms = (rabbit_conn_deadline(&rc->conn) - clock_mono(&clock_system)) / MS_NS + 1;
    struct pollfd fds[] = {wire_poll(&rc->conn.wire), {.fd = rc->base.cfg.wake, .events = POLLIN}};
    poll(fds, 2, (int)max_i64(0, min_i64(wait_ms, beat_ms)));
    return rabbit_conn_drive(&rc->conn, take_frame, rc, err);
}

static int rabbitmq_step(struct receiver *base, int64_t wait_ms, struct received *ret,
                         bool *ret_got, struct error *err)
{
    struct rabbitmq_receiver *rc = (struct rabbitmq_receiver *)base;
    if (!rc->first && drive_for(rc, wait_ms, err) != 0)
        return -1;
    if (!rc->first)
        return 0;
    if (next_arrival(rc, ret, err) != 0)
        return -1;
    *ret_got = true;
    return 0;
}

/* Opening */

static void rabbitmq_end(struct receiver *base)
{
    struct rabbitmq_receiver *rc = (struct rabbitmq_receiver *)base;
    rabbit_conn_release(&rc->conn);
    free(rc->returned);
    free(rc->partial);
    while (rc->first) {
        struct arrival *p = rc->first;
        rc->first = p->next;
        free(p);
    }
    arena_release(&rc->text);
    rabbitmq_settings_release(&rc->set);
    url_release(&rc->url);
}

/* Decides what to read. Only queues store messages: an exchange has only those published from now
 * on. */
static int choose_queue(struct rabbitmq_receiver *rc, struct error *err)
{
    const char *from = rc->base.cfg.from, *queue = rc->set.queue;
    if (rc->set.exchange[0] == '\0')
        queue = rc->set.routing_key;
    rc->temporary = !queue;
    rc->stream = queue && strcmp(rc->set.queue_type, "stream") == 0;
    if (queue)
        snprintf(rc->queue, sizeof rc->queue, "%s", queue);

    bool begins = strcmp(from, "beginning") == 0, ends = strcmp(from, "end") == 0;
    if (rc->temporary && !ends)
        return err_set(err, ERR_CONFIG,
                       "rabbitmq: an exchange stores no messages; add queue=NAME to the URL, or "
                       "--from end for new messages");
    if (queue && !rc->stream && !begins)
        return err_set(err, ERR_CONFIG,
                       "rabbitmq: a queue can only be read from its beginning; positions are for "
                       "streams (queue-type=stream)");
    return 0;
}

/* Waits until consumption has started, so that no message published later is missed. */
static int rabbitmq_begin(struct receiver *base, struct error *err)
{
    struct rabbitmq_receiver *rc = (struct rabbitmq_receiver *)base;
    arena_init(&rc->text, 0);
    rabbit_conn_init(&rc->conn, &(struct rabbit_config){0}); /* for end */
    if (rabbitmq_settings_read(base->cfg.url, &rc->set, &rc->url, err) != 0)
        return -1;
    if (choose_queue(rc, err) != 0)
        return -1;
    struct rabbit_config conn = rabbitmq_settings_conn(&rc->set, &rc->url, "receive",
                                                       &clock_system);
    rabbit_conn_init(&rc->conn, &conn);
    if (rabbit_conn_open(&rc->conn, err) != 0)
        return -1;
    if (send_step(rc, err) != 0)
        return -1;
    while (rc->reading != READ_RUNS) {
        if (receive_stop(base, 0))
            return err_set(err, ERR_BUSY, "asked to stop");
        if (drive_for(rc, WAIT_MS, err) != 0)
            return -1;
    }
    return 0;
}

const struct receiver_ops receive_rabbitmq = {
    .schemes = (const char *const[]){"amqp", "amqps", NULL},
    .size = sizeof(struct rabbitmq_receiver),
    .begin = rabbitmq_begin,
    .step = rabbitmq_step,
    .end = rabbitmq_end,
};
