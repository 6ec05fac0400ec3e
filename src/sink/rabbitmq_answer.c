/* rabbitmq_answer.c: sets up the channel, and maps the broker's replies, and missing replies, to
 * the results of events. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "sink/rabbitmq_impl.h"

#define LATER_MS 2000 /* delay for an event whose queue accepts nothing */
#define KEY_SHOWN 201
#define ABSENT "NOT_FOUND - no " /* "... exchange 'orders' in vhost '/'" */

/* The meaning of every reply. docs/brokers.md has the same table, and a test compares them. The
 * first matching row applies. "Refused" concerns the event's routing key, the exchange or the
 * queue; the broker works. "Down" concerns the broker: it is unavailable, or refuses the login, or
 * a queue has no leader or no room, which the broker does not distinguish. */
static const struct rabbitmq_meaning meanings[] = {
    {REPLY_ACK, 0, NULL, SINK_DELIVERED, true,
     "stored by every queue it was routed to: on disk, or by most nodes of a quorum queue"},
    {REPLY_NACK, 0, NULL, SINK_DOWN, true, "a queue is full, or could not store it"},
    {REPLY_RETURN, 0, NULL, SINK_REFUSED, true, "no queue is bound for the routing key"},
    {REPLY_SETUP, AMQP_ACCESS_REFUSED, NULL, SINK_FATAL, false,
     "the user lacks a permission that the sink's setup requires"},
    {REPLY_SETUP, AMQP_NOT_FOUND, ABSENT, SINK_REFUSED, false,
     "the exchange or the queue does not exist"},
    {REPLY_SETUP, AMQP_RESOURCE_LOCKED, NULL, SINK_REFUSED, false,
     "another connection has exclusive access to the queue"},
    {REPLY_SETUP, AMQP_PRECONDITION_FAILED, NULL, SINK_FATAL, false,
     "the existing exchange or queue differs from the requested one"},
    {REPLY_SETUP, 0, NULL, SINK_DOWN, false, "the channel could not be set up"},
    {REPLY_PUBLISH, AMQP_ACCESS_REFUSED, "access to topic", SINK_REFUSED, true,
     "the user may not write to the event's topic"},
    {REPLY_PUBLISH, AMQP_ACCESS_REFUSED, NULL, SINK_REFUSED, false,
     "the user may not write to the exchange"},
    {REPLY_PUBLISH, AMQP_NOT_FOUND, ABSENT, SINK_REFUSED, false, "the exchange was deleted"},
    {REPLY_PUBLISH, AMQP_PRECONDITION_FAILED, NULL, SINK_REJECT, true,
     "the broker can never accept this message, for example because it is too large"},
    {REPLY_PUBLISH, 0, NULL, SINK_DOWN, false, "the channel was closed"},
    {REPLY_CONNECTION, AMQP_CONNECTION_FORCED, NULL, SINK_DOWN, false,
     "the broker is shutting down"},
    {REPLY_CONNECTION, AMQP_ACCESS_REFUSED, NULL, SINK_DOWN, false, "the login was refused"},
    {REPLY_CONNECTION, AMQP_NOT_ALLOWED, NULL, SINK_DOWN, false,
     "the virtual host does not exist, or the user has no access to it"},
    {REPLY_CONNECTION, 0, NULL, SINK_DOWN, false, "the broker closed the connection"},
};

const struct rabbitmq_meaning *rabbitmq_answer_meaning(enum rabbitmq_reply reply, int code,
                                                       const char *words)
{
    const struct rabbitmq_meaning *m = meanings;
    for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++) {
        m = &meanings[i];
        bool matches = m->reply == reply && (m->code == code || m->code == 0);
        if (matches && (!m->says || strstr(words, m->says)))
            break;
    }
    return m;
}

void rabbitmq_answer_waiting(struct rabbitmq_sink *r, const struct sink_result *res)
{
    while (r->waiting) {
        struct rabbitmq_item *it = r->waiting;
        r->waiting = (struct rabbitmq_item *)it->f.next;
        window_end(&r->b.window, &it->f, res);
    }
}

/* Restarts the channel's tag window at its next message. */
static void forget_tags(struct rabbitmq_sink *r)
{
    memset(r->by_tag, 0, RABBITMQ_WINDOW * sizeof *r->by_tag);
    r->first_tag = r->next_tag;
    r->published = 0;
}

void rabbitmq_answer_all(struct rabbitmq_sink *r, const struct sink_result *res)
{
    forget_tags(r);
    r->waiting = NULL;
    r->one_by_one = 0;
    window_end_all(&r->b.window, res);
}

/* Confirms */

/* Formats an event's routing key for messages. */
static const char *show_key(struct rabbitmq_sink *r, const struct event *ev, char out[KEY_SHOWN])
{
    struct error ignored;
    struct str key = broker_name(&r->b, ev, &ignored);
    if (!key.p)
        return "?";
    text_clean(out, KEY_SHOWN, key.p, key.n);
    return out;
}

/* Handles the confirm of one message. The event may have been cancelled while the broker blocked
 * publishers. */
static void end_confirmed(struct rabbitmq_sink *r, uint64_t tag, bool stored)
{
    char key[KEY_SHOWN], text[RABBITMQ_TEXT];
    struct rabbitmq_item *it = *rabbitmq_tag(r, tag);
    if (!it)
        return;
    *rabbitmq_tag(r, tag) = NULL;
    r->published--;

    const struct event *ev = it->f.d->ev;
    enum rabbitmq_reply reply = stored ? REPLY_ACK : REPLY_NACK;
    if (it->returned)
        reply = REPLY_RETURN;
    const struct rabbitmq_meaning *m = rabbitmq_answer_meaning(reply, it->returned, "");
    struct sink_result res = {.status = m->status, .native = it->returned, .text = text};
    switch (reply) {
    case REPLY_RETURN:
        snprintf(text, sizeof text,
                 "%s: no queue is bound to exchange \"%.120s\" for routing key %s", r->conn.label,
                 r->set.exchange, show_key(r, ev, key));
        if (r->set.unroutable == UNROUTABLE_REJECT)
            res.status = SINK_REJECT;
        break;
    case REPLY_NACK:
        if (!r->nacked)
            r->nacked = broker_now(&r->b);
        snprintf(text, sizeof text, "%s refused the message (basic.nack), routing key %s: %s",
                 r->conn.label, show_key(r, ev, key), m->meaning);
        /* If all events have one routing key, the queue will refuse them all; otherwise events for
         * other queues continue. */
        if (!r->b.fixed) {
            res.status = SINK_LATER;
            res.retry_after_ms = LATER_MS;
        }
        break;
    default:
        window_marks_advance(&r->b.marks, it->f.mark, ev->seq, 0);
        res.text = NULL;
        break;
    }
    window_end(&r->b.window, &it->f, &res);
}

/* Handles an ack or a nack: for one tag or, with `multiple`, for all tags up to this one, where 0
 * means all outstanding. Tags arrive in any order. */
static int handle_confirm(struct rabbitmq_sink *r, uint64_t tag, bool multiple, bool stored,
                          struct error *err)
{
    bool all = tag == 0 && multiple;
    if (all)
        tag = r->next_tag - 1;
    bool sent = all || (tag > 0 && tag < r->next_tag);
    if (!sent)
        return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0,
                         "%s confirmed message %llu, which was never sent", r->conn.label,
                         (unsigned long long)tag);

    uint64_t from = multiple ? r->first_tag : tag;
    for (uint64_t t = from; t <= tag; t++) {
        if (t >= r->first_tag)
            end_confirmed(r, t, stored);
    }
    while (r->first_tag < r->next_tag && !*rabbitmq_tag(r, r->first_tag))
        r->first_tag++;
    return 0;
}

/* Handles the content after basic.return: the header and the body of the message. The message's
 * confirm follows. */
static int handle_content(struct rabbitmq_sink *r, const struct rabbit_frame *f, struct error *err)
{
    struct rabbitmq_returning *ret = &r->returning;
    struct rabbit_header h;
    if (ret->what == RETURNING_HEADER && f->type == RABBIT_HEADER) {
        if (rabbit_frame_header(f, &h, err) != 0)
            return err_prefix(err, "%s", r->conn.label);
        for (uint64_t tag = r->first_tag; tag < r->next_tag; tag++) {
            struct rabbitmq_item *it = *rabbitmq_tag(r, tag);
            if (it && !it->returned && str_eq(it->f.d->ev->id, h.message_id)) {
                it->returned = ret->code ? ret->code : AMQP_NO_ROUTE;
                break;
            }
        }
        ret->rest = h.body_size;
        ret->what = h.body_size > 0 ? RETURNING_BODY : RETURNING_NOTHING;
        return 0;
    }
    bool fits = ret->what == RETURNING_BODY && f->type == RABBIT_BODY && f->payload.n <= ret->rest;
    if (!fits)
        return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s sent an unexpected message",
                         r->conn.label);
    ret->rest -= f->payload.n;
    if (ret->rest == 0)
        ret->what = RETURNING_NOTHING;
    return 0;
}

/* The setup of the channel: confirms, an exchange, perhaps a queue. Every new channel checks them;
 * it creates them only if the URL says so. */

/* The steps of the setup, with the method of a positive reply. */
static const struct {
    amqp_method_number_t request, reply;
    const char *what;
} steps[] = {
    {AMQP_CHANNEL_OPEN_METHOD, AMQP_CHANNEL_OPEN_OK_METHOD, "a channel"},
    {AMQP_CONFIRM_SELECT_METHOD, AMQP_CONFIRM_SELECT_OK_METHOD, "confirms"},
    {AMQP_EXCHANGE_DECLARE_METHOD, AMQP_EXCHANGE_DECLARE_OK_METHOD, "the exchange"},
    {AMQP_QUEUE_DECLARE_METHOD, AMQP_QUEUE_DECLARE_OK_METHOD, "the queue"},
    {AMQP_QUEUE_BIND_METHOD, AMQP_QUEUE_BIND_OK_METHOD, "the binding"},
};

#define STEPS (sizeof steps / sizeof steps[0])

/* Returns whether the setup creates the exchange and the queue instead of only checking them. */
static bool creates(const struct rabbitmq_sink *r)
{
    return r->set.create && !r->passive;
}

/* Queues the request of a step. Sets *ret_sent unless the step can be skipped. */
static int send_step(struct rabbitmq_sink *r, amqp_method_number_t request, bool *ret_sent)
{
    const struct rabbitmq_settings *set = &r->set;
    bool default_exchange = set->exchange[0] == '\0';
    amqp_bytes_t exchange = rabbit_bytes(str_of(set->exchange));
    /* The default exchange routes to the queue named by the routing key. */
    const char *queue = default_exchange && r->b.fixed ? set->routing_key : set->queue;
    amqp_channel_open_t open = {.out_of_band = amqp_empty_bytes};
    amqp_confirm_select_t confirms = {.nowait = 0};
    amqp_exchange_declare_t declare = {
        .exchange = exchange,
        .type = rabbit_bytes(str_of(set->exchange_type)),
        .passive = !creates(r),
        .durable = 1,
    };
    amqp_table_entry_t type = {
        .key = rabbit_bytes(STR("x-queue-type")),
        .value = {.kind = AMQP_FIELD_KIND_UTF8,
                  .value.bytes = rabbit_bytes(str_of(set->queue_type))},
    };
    amqp_queue_declare_t declare_queue = {
        .queue = rabbit_bytes(str_of(queue)),
        .passive = !creates(r),
        .durable = 1,
        .arguments = {.num_entries = 1, .entries = &type},
    };
    amqp_queue_bind_t bind = {
        .queue = rabbit_bytes(str_of(set->queue)),
        .exchange = exchange,
        .routing_key = rabbit_bytes(str_of(set->binding)),
    };

    void *m = NULL;
    switch (request) {
    case AMQP_CHANNEL_OPEN_METHOD: m = &open; break;
    case AMQP_CONFIRM_SELECT_METHOD: m = &confirms; break;
    case AMQP_EXCHANGE_DECLARE_METHOD:
        if (!default_exchange) /* which always exists, and must not be declared */
            m = &declare;
        break;
    case AMQP_QUEUE_DECLARE_METHOD:
        if (queue)
            m = &declare_queue;
        break;
    default:
        if (set->create && set->queue)
            m = &bind;
        break;
    }
    *ret_sent = m != NULL;
    return m ? rabbit_conn_send(&r->conn, RABBITMQ_CHANNEL, request, m) : 0;
}

/* Runs steps until one awaits a reply. After the last step the channel is ready. */
static int run_steps(struct rabbitmq_sink *r, struct error *err)
{
    while (r->step < STEPS) {
        bool sent;
        if (send_step(r, steps[r->step].request, &sent) != 0)
            return err_nomem(err);
        if (sent)
            return 0;
        r->step++;
    }
    r->channel = CHANNEL_READY;
    r->first_tag = r->next_tag = 1; /* the first message on a channel has tag 1 */
    return 0;
}

int rabbitmq_answer_setup(struct rabbitmq_sink *r, struct error *err)
{
    r->channel = CHANNEL_SETUP;
    r->step = 0;
    r->nacked = 0;
    r->returning = (struct rabbitmq_returning){0};
    return run_steps(r, err);
}

static int handle_setup_reply(struct rabbitmq_sink *r, const amqp_method_t *m, struct error *err)
{
    if (m->id != steps[r->step].reply)
        return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s sent an unexpected %s",
                         r->conn.label, amqp_method_name(m->id));
    r->step++;
    return run_steps(r, err);
}

static int setup_refused(struct rabbitmq_sink *r, const amqp_channel_close_t *m, struct error *err)
{
    char said[RABBIT_TEXT];
    int code = m->reply_code;
    const char *what = steps[r->step].what, *advice = "";
    rabbit_conn_text(m->reply_text, said);
    if (code == AMQP_PRECONDITION_FAILED && creates(r)) {
        /* The exchange or queue exists with other properties; it may be transient, or a classic
         * queue. Use it unchanged: repeat the setup without creating. */
        r->passive = true;
        broker_set_caution(&r->b,
                           "%s: the properties of %s differ from those of create=on and are left "
                           "unchanged: %s",
                           r->conn.label, what, said);
        return rabbitmq_answer_setup(r, err);
    }

    if (code == AMQP_NOT_FOUND && !r->set.create)
        advice = "; declare it, or add create=on to the URL";
    if (code == AMQP_ACCESS_REFUSED && creates(r))
        advice = "; grant the user the configure permission, or declare it and drop create=on";
    enum retry_class class = CLASS_DOWN;
    enum sink_status status = rabbitmq_answer_meaning(REPLY_SETUP, code, said)->status;
    if (status == SINK_FATAL)
        class = CLASS_FATAL;
    if (status == SINK_REFUSED)
        class = CLASS_RETRY;
    return err_class(err, ERR_UNAVAILABLE, class, code, "%s, %s: %s%s", r->conn.label, what, said,
                     advice);
}

/* Closing the channel */

/* Handles the close of a channel because of a message. The broker does not identify the message: if
 * several are in flight, they are resent one by one. Messages that the broker had already stored
 * arrive twice. */
static int publish_refused(struct rabbitmq_sink *r, const amqp_channel_close_t *m,
                           struct error *err)
{
    char said[RABBIT_TEXT], text[RABBITMQ_TEXT];
    rabbit_conn_text(m->reply_text, said);
    const struct rabbitmq_meaning *means = rabbitmq_answer_meaning(REPLY_PUBLISH, m->reply_code,
                                                                   said);
    snprintf(text, sizeof text, "%s: %s", r->conn.label, said);
    struct sink_result res = {.status = means->status, .native = m->reply_code, .text = text};
    if (!means->about_one) {
        rabbitmq_answer_all(r, &res);
        return 0;
    }

    if (r->published > 1) {
        for (struct in_flight *f = r->b.window.first; f; f = f->next) {
            ((struct rabbitmq_item *)f)->tag = 0;
            ((struct rabbitmq_item *)f)->returned = 0;
        }
        r->waiting = (struct rabbitmq_item *)r->b.window.first;
        r->one_by_one = r->b.window.count;
        forget_tags(r);
        return rabbitmq_answer_setup(r, err);
    }
    struct rabbitmq_item *first = (struct rabbitmq_item *)r->b.window.first;
    bool is_published = first && first != r->waiting;
    forget_tags(r);
    if (is_published)
        window_end(&r->b.window, &first->f, &res);
    if (r->waiting)
        return rabbitmq_answer_setup(r, err);
    return 0;
}

static int channel_closed(struct rabbitmq_sink *r, const amqp_channel_close_t *m, struct error *err)
{
    amqp_channel_close_ok_t ok = {0};
    bool was_ready = r->channel == CHANNEL_READY;
    r->channel = CHANNEL_NONE;
    r->returning = (struct rabbitmq_returning){0};
    if (rabbit_conn_send(&r->conn, RABBITMQ_CHANNEL, AMQP_CHANNEL_CLOSE_OK_METHOD, &ok) != 0)
        return err_nomem(err);
    if (was_ready)
        return publish_refused(r, m, err);

    struct error why;
    if (setup_refused(r, m, &why) == 0)
        return 0;
    struct sink_result res = {.status = SINK_DOWN, .native = why.native, .text = why.text};
    if (why.retry_class == CLASS_FATAL)
        res.status = SINK_FATAL;
    if (why.retry_class == CLASS_RETRY)
        res.status = SINK_REFUSED;
    rabbitmq_answer_all(r, &res);
    r->refused = why;
    return 0;
}

/* Frames */

static int handle_method(struct rabbitmq_sink *r, const amqp_method_t *m, struct error *err)
{
    const amqp_basic_ack_t *ack = m->decoded;
    const amqp_basic_nack_t *nack = m->decoded;
    const amqp_basic_return_t *returned = m->decoded;
    const amqp_channel_flow_t *flow = m->decoded;
    switch (m->id) {
    case AMQP_BASIC_ACK_METHOD:
        return handle_confirm(r, ack->delivery_tag, ack->multiple, true, err);
    case AMQP_BASIC_NACK_METHOD:
        return handle_confirm(r, nack->delivery_tag, nack->multiple, false, err);
    case AMQP_BASIC_RETURN_METHOD:
        r->returning = (struct rabbitmq_returning){.what = RETURNING_HEADER,
                                                   .code = returned->reply_code};
        return 0;
    case AMQP_CHANNEL_FLOW_METHOD: {
        amqp_channel_flow_ok_t ok = {.active = flow->active};
        if (rabbit_conn_send(&r->conn, RABBITMQ_CHANNEL, AMQP_CHANNEL_FLOW_OK_METHOD, &ok) != 0)
            return err_nomem(err);
        return 0;
    }
    default:
        return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s sent an unexpected %s",
                         r->conn.label, amqp_method_name(m->id));
    }
}

int rabbitmq_answer_frame(void *sink, const struct rabbit_frame *f, const amqp_method_t *m,
                          struct error *err)
{
    struct rabbitmq_sink *r = sink;
    bool expected = f->channel == RABBITMQ_CHANNEL && r->channel != CHANNEL_NONE;
    if (!expected)
        return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0,
                         "%s sent a frame on channel %d, which is not open", r->conn.label,
                         f->channel);
    if (!m)
        return handle_content(r, f, err);
    if (m->id == AMQP_CHANNEL_CLOSE_METHOD)
        return channel_closed(r, m->decoded, err);
    if (r->channel == CHANNEL_SETUP)
        return handle_setup_reply(r, m, err);
    return handle_method(r, m, err);
}

void rabbitmq_answer_lost(struct rabbitmq_sink *r, const struct error *err)
{
    struct sink_result res = {.status = SINK_DOWN, .native = err->native, .text = err->text};
    bool alone = r->channel == CHANNEL_READY && r->published == 1 && !r->waiting;
    if (alone && !r->conn.blocked && window_blame(&r->b.window, r->b.window.first->d->ev))
        res.status = SINK_RETRY;
    if (err->retry_class == CLASS_FATAL)
        res.status = SINK_FATAL;
    rabbit_conn_close(&r->conn);
    r->channel = CHANNEL_NONE;
    r->refused = *err;
    rabbitmq_answer_all(r, &res);
}
