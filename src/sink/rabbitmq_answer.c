/* rabbitmq_answer.c: what a broker says, or its silence, and the events that it ends. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "sink/rabbitmq_impl.h"

#define CUTS_MAX 3    /* how many connections an event may cost before it is blamed */
#define LATER_MS 2000 /* how long an event waits whose queue takes nothing */
#define KEY_SHOWN 201

void rabbitmq_answer_one(struct rabbitmq_sink *r, struct rabbitmq_item *it,
                         const struct sink_result *res)
{
    struct delivery *d = it->d;
    it->d = NULL;
    it->mark->flying--;
    if (d->ev->seq == r->suspect.seq)
        r->suspect = (struct rabbitmq_suspect){0};
    sink_done(&r->base, d, res);
}

void rabbitmq_answer_waiting(struct rabbitmq_sink *r, const struct sink_result *res)
{
    while (r->head < r->tail)
        rabbitmq_answer_one(r, rabbitmq_waiting(r, r->head++), res);
}

/* answer_flying ends what was published; forgets is for a channel that goes on. */
static void answer_flying(struct rabbitmq_sink *r, const struct sink_result *res)
{
    uint64_t first = r->first, next = r->next;
    r->first = r->next; /* before the answers: done may look at it */
    r->flying = 0;
    for (uint64_t tag = first; tag < next; tag++) {
        struct rabbitmq_item *it = rabbitmq_flying(r, tag);
        if (it->d)
            rabbitmq_answer_one(r, it, res);
    }
}

void rabbitmq_answer_all(struct rabbitmq_sink *r, const struct sink_result *res)
{
    answer_flying(r, res);
    rabbitmq_answer_waiting(r, res);
    r->solo = 0;
}

/* Confirms */

/* routing_key_of shows the routing key of an event, for messages. */
static const char *routing_key_of(struct rabbitmq_sink *r, const struct event *ev,
                                  char out[KEY_SHOWN])
{
    struct error ignored;
    buf_clear(&r->name);
    if (template_write(r->key, ev, &r->name, &ignored) != 0)
        return "?";
    text_clean(out, KEY_SHOWN, r->name.p, r->name.n);
    return out;
}

static enum sink_status unroutable_status(const struct rabbitmq_sink *r, int code)
{
    if (r->set.unroutable == UNROUTABLE_REJECT)
        return SINK_REJECT;
    return rabbitmq_fate_of(SAID_RETURN, code, "")->status;
}

static void answer_returned(struct rabbitmq_sink *r, struct rabbitmq_item *it)
{
    char key[KEY_SHOWN], text[RABBITMQ_SAID];
    snprintf(text, sizeof text, "%s: no queue is bound to exchange \"%.120s\" for routing key %s",
             rabbit_conn_label(&r->conn), r->set.exchange, routing_key_of(r, it->d->ev, key));
    struct sink_result res = {
        .status = unroutable_status(r, it->returned), .native = it->returned, .text = text};
    rabbitmq_answer_one(r, it, &res);
}

/* answer_refused answers for an event that a queue refused. If all events have one routing key,
 * the queue will refuse them all; if not, the events for other queues go on. */
static void answer_refused(struct rabbitmq_sink *r, struct rabbitmq_item *it)
{
    char key[KEY_SHOWN], text[RABBITMQ_SAID];
    const struct rabbitmq_fate *fate = rabbitmq_fate_of(SAID_NACK, 0, "");
    if (!r->nacked)
        r->nacked = rabbitmq_now(r);
    snprintf(text, sizeof text, "%s refused it (basic.nack), routing key %s: %s",
             rabbit_conn_label(&r->conn), routing_key_of(r, it->d->ev, key), fate->meaning);
    struct sink_result res = {.status = fate->status, .text = text};
    if (!r->fixed) {
        res.status = SINK_LATER;
        res.retry_after_ms = LATER_MS;
    }
    rabbitmq_answer_one(r, it, &res);
}

static void answer_confirmed(struct rabbitmq_sink *r, struct rabbitmq_item *it)
{
    streams_note(&r->marks, it->mark, it->d->ev->seq, 0);
    struct sink_result res = {.status = rabbitmq_fate_of(SAID_ACK, 0, "")->status};
    rabbitmq_answer_one(r, it, &res);
}

/* answer_tag takes the broker's word on one message. It may come for one that was given up while
 * the broker blocked us; that one has been answered for. */
static void answer_tag(struct rabbitmq_sink *r, uint64_t tag, bool stored)
{
    struct rabbitmq_item *it = rabbitmq_flying(r, tag);
    if (!it->d)
        return;
    r->flying--;
    if (it->returned)
        answer_returned(r, it);
    else if (stored)
        answer_confirmed(r, it);
    else
        answer_refused(r, it);
}

/* take_confirm takes an ack or a nack: for one tag or, if it is multiple, for all up to that tag; 0
 * is all there are. They come in any order. */
static int take_confirm(struct rabbitmq_sink *r, uint64_t tag, bool multiple, bool stored,
                        struct error *err)
{
    bool all = tag == 0 && multiple;
    if (all)
        tag = r->next - 1;
    bool sent = all || (tag > 0 && tag < r->next);
    if (!sent)
        return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0,
                         "%s confirms message %llu, which was never sent",
                         rabbit_conn_label(&r->conn), (unsigned long long)tag);

    uint64_t from = multiple ? r->first : tag;
    for (uint64_t t = from; t <= tag; t++) {
        if (t >= r->first)
            answer_tag(r, t, stored);
    }
    while (r->first < r->next && !rabbitmq_flying(r, r->first)->d)
        r->first++;
    return 0;
}

/* Returned messages: basic.return, a header, a body; the confirm comes after them. */

static void note_returned(struct rabbitmq_sink *r, struct str id, int code)
{
    for (uint64_t tag = r->first; tag < r->next; tag++) {
        struct rabbitmq_item *it = rabbitmq_flying(r, tag);
        bool found = it->d && !it->returned && str_eq(it->d->ev->id, id);
        if (!found)
            continue;
        it->returned = code ? code : AMQP_NO_ROUTE;
        return;
    }
}

static int take_content(struct rabbitmq_sink *r, const struct rabbit_frame *f, struct error *err)
{
    struct rabbitmq_returning *ret = &r->returning;
    struct rabbit_header h;
    if (ret->what == RETURNING_HEADER && f->type == RABBIT_HEADER) {
        if (rabbit_frame_header(f, &h, err) != 0)
            return err_prefix(err, "%s", rabbit_conn_label(&r->conn));
        note_returned(r, h.message_id, ret->code);
        ret->rest = h.body_size;
        ret->what = h.body_size > 0 ? RETURNING_BODY : RETURNING_NOTHING;
        return 0;
    }
    bool fits = ret->what == RETURNING_BODY && f->type == RABBIT_BODY && f->payload.n <= ret->rest;
    if (!fits)
        return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s sends a message out of turn",
                         rabbit_conn_label(&r->conn));
    ret->rest -= f->payload.n;
    if (ret->rest == 0)
        ret->what = RETURNING_NOTHING;
    return 0;
}

/* The end of the channel */

/* fly_again puts what was published back in front of what waits, in its order. Whatever the broker
 * has stored of it arrives twice. */
static void fly_again(struct rabbitmq_sink *r)
{
    r->solo = rabbitmq_held(r);
    for (uint64_t tag = r->next; tag > r->first; tag--) {
        struct rabbitmq_item *it = rabbitmq_flying(r, tag - 1);
        if (!it->d)
            continue;
        it->returned = 0;
        *rabbitmq_waiting(r, --r->head) = *it;
        it->d = NULL;
    }
    r->first = r->next;
    r->flying = 0;
}

/* publish_refused takes the close of a channel over a message. The broker does not say which one:
 * if there are several, they go again one by one. */
static int publish_refused(struct rabbitmq_sink *r, const amqp_channel_close_t *m,
                           struct error *err)
{
    char said[RABBIT_TEXT], text[RABBITMQ_SAID];
    rabbit_conn_text(m->reply_text, said);
    const struct rabbitmq_fate *fate = rabbitmq_fate_of(SAID_PUBLISH, m->reply_code, said);
    if (fate->about_one && r->flying > 1) {
        fly_again(r);
        return rabbitmq_setup_begin(r, err);
    }

    snprintf(text, sizeof text, "%s: %s", rabbit_conn_label(&r->conn), said);
    struct sink_result res = {.status = fate->status, .native = m->reply_code, .text = text};
    if (!fate->about_one) {
        rabbitmq_answer_all(r, &res);
        return 0;
    }
    answer_flying(r, &res);
    if (r->head < r->tail)
        return rabbitmq_setup_begin(r, err);
    return 0;
}

/* setup_refused ends what waits for a channel that cannot be had. */
static int setup_refused(struct rabbitmq_sink *r, const amqp_channel_close_t *m)
{
    struct error err;
    if (rabbitmq_setup_refused(r, m, &err) == 0)
        return 0;
    struct sink_result res = {.status = SINK_DOWN, .native = err.native, .text = err.text};
    if (err.retry_class == CLASS_FATAL)
        res.status = SINK_FATAL;
    if (err.retry_class == CLASS_RETRY)
        res.status = SINK_REFUSED;
    rabbitmq_answer_all(r, &res);
    r->refused = err;
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
    return setup_refused(r, m);
}

/* Frames */

static int take_return(struct rabbitmq_sink *r, const amqp_basic_return_t *m)
{
    r->returning = (struct rabbitmq_returning){.what = RETURNING_HEADER, .code = m->reply_code};
    return 0;
}

static int take_flow(struct rabbitmq_sink *r, const amqp_channel_flow_t *m, struct error *err)
{
    amqp_channel_flow_ok_t ok = {.active = m->active};
    if (rabbit_conn_send(&r->conn, RABBITMQ_CHANNEL, AMQP_CHANNEL_FLOW_OK_METHOD, &ok) != 0)
        return err_nomem(err);
    return 0;
}

static int take_method(struct rabbitmq_sink *r, const amqp_method_t *m, struct error *err)
{
    const amqp_basic_ack_t *ack = m->decoded;
    const amqp_basic_nack_t *nack = m->decoded;
    switch (m->id) {
    case AMQP_BASIC_ACK_METHOD: return take_confirm(r, ack->delivery_tag, ack->multiple, true, err);
    case AMQP_BASIC_NACK_METHOD:
        return take_confirm(r, nack->delivery_tag, nack->multiple, false, err);
    case AMQP_BASIC_RETURN_METHOD: return take_return(r, m->decoded);
    case AMQP_CHANNEL_FLOW_METHOD: return take_flow(r, m->decoded, err);
    default:
        return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s says %s out of turn",
                         rabbit_conn_label(&r->conn), amqp_method_name(m->id));
    }
}

int rabbitmq_answer_frame(void *sink, const struct rabbit_frame *f, const amqp_method_t *m,
                          struct error *err)
{
    struct rabbitmq_sink *r = sink;
    bool expected = f->channel == RABBITMQ_CHANNEL && r->channel != CHANNEL_NONE;
    if (!expected)
        return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0,
                         "%s speaks on channel %d, which is not open", rabbit_conn_label(&r->conn),
                         f->channel);
    if (!m)
        return take_content(r, f, err);
    if (m->id == AMQP_CHANNEL_CLOSE_METHOD)
        return channel_closed(r, m->decoded, err);
    if (r->channel == CHANNEL_SETUP)
        return rabbitmq_setup_reply(r, m, err);
    return take_method(r, m, err);
}

/* Failures */

/* is_suspect says whether an event is the likely reason that connections end: it was alone in
 * flight, again and again, when a broker that had just let us in hung up or fell silent. It does
 * get to be alone: after a failure the circuit lets single events through. */
static bool is_suspect(struct rabbitmq_sink *r)
{
    bool alone = r->channel == CHANNEL_READY && r->flying == 1 && r->head == r->tail;
    if (!alone || r->conn.blocked)
        return false;
    uint64_t tag = r->first;
    while (!rabbitmq_flying(r, tag)->d)
        tag++;
    const struct event *ev = rabbitmq_flying(r, tag)->d->ev;
    if (r->suspect.seq != ev->seq)
        r->suspect = (struct rabbitmq_suspect){.seq = ev->seq};
    r->suspect.cuts++;
    return r->suspect.cuts >= CUTS_MAX;
}

void rabbitmq_answer_lost(struct rabbitmq_sink *r, const struct error *err)
{
    struct sink_result res = {.status = SINK_DOWN, .native = err->native, .text = err->text};
    if (is_suspect(r))
        res.status = SINK_RETRY;
    if (err->retry_class == CLASS_FATAL)
        res.status = SINK_FATAL;

    struct rabbitmq_suspect suspect = r->suspect;
    rabbit_conn_close(&r->conn);
    r->channel = CHANNEL_NONE;
    r->refused = *err;
    rabbitmq_answer_all(r, &res);
    /* The event was not blamed, so the count continues. */
    if (res.status == SINK_DOWN)
        r->suspect = suspect;
}

const char *rabbitmq_answer_why_blocked(const struct rabbitmq_sink *r, char out[RABBITMQ_SAID])
{
    snprintf(out, RABBITMQ_SAID, "%s takes no messages: %s", rabbit_conn_label(&r->conn),
             r->conn.reason);
    return out;
}

void rabbitmq_answer_blocked(struct rabbitmq_sink *r)
{
    char text[RABBITMQ_SAID];
    struct sink_result res = {.status = SINK_DOWN, .text = rabbitmq_answer_why_blocked(r, text)};
    rabbitmq_answer_all(r, &res);
}
