/* rabbitmq_channel.c: the channel and its setup: confirms, an exchange, perhaps a queue. They are
 * checked whenever a channel is opened, and created only if the URL says so. */
#include <stdio.h>
#include <string.h>

#include "sink/rabbitmq_impl.h"

/* A step of the setup: `send` queues the request, unless it can be skipped, and `answer` is the
 * method of a positive reply. */
struct step {
    int (*send)(struct rabbitmq_sink *r, bool *ret_asked);
    amqp_method_number_t answer;
    const char *what;
};

static int send_question(struct rabbitmq_sink *r, amqp_method_number_t id, void *m, bool *ret_asked)
{
    *ret_asked = true;
    return rabbit_conn_send(&r->conn, RABBITMQ_CHANNEL, id, m);
}

static int open_channel(struct rabbitmq_sink *r, bool *ret_asked)
{
    amqp_channel_open_t m = {.out_of_band = amqp_empty_bytes};
    return send_question(r, AMQP_CHANNEL_OPEN_METHOD, &m, ret_asked);
}

static int want_confirms(struct rabbitmq_sink *r, bool *ret_asked)
{
    amqp_confirm_select_t m = {.nowait = 0};
    return send_question(r, AMQP_CONFIRM_SELECT_METHOD, &m, ret_asked);
}

static bool creates(const struct rabbitmq_sink *r)
{
    return r->set.create && !r->passive;
}

/* Skips the default exchange, which always exists and may not be declared. */
static int look_at_exchange(struct rabbitmq_sink *r, bool *ret_asked)
{
    amqp_exchange_declare_t m = {
        .exchange = rabbit_bytes(str_of(r->set.exchange)),
        .type = rabbit_bytes(str_of(r->set.exchange_type)),
        .passive = !creates(r),
        .durable = 1,
    };
    if (r->set.exchange[0] == '\0')
        return 0;
    return send_question(r, AMQP_EXCHANGE_DECLARE_METHOD, &m, ret_asked);
}

/* Returns the queue that must exist; NULL: none that we know of. */
static const char *queue_of(const struct rabbitmq_sink *r)
{
    bool names_queue = r->set.exchange[0] == '\0' && r->fixed;
    return names_queue ? r->set.routing_key : r->set.queue;
}

static int look_at_queue(struct rabbitmq_sink *r, bool *ret_asked)
{
    amqp_table_entry_t type = {
        .key = rabbit_bytes(STR("x-queue-type")),
        .value = {.kind = AMQP_FIELD_KIND_UTF8,
                  .value.bytes = rabbit_bytes(str_of(r->set.queue_type))},
    };
    amqp_queue_declare_t m = {
        .queue = rabbit_bytes(str_of(queue_of(r))),
        .passive = !creates(r),
        .durable = 1,
        .arguments = {.num_entries = 1, .entries = &type},
    };
    if (!queue_of(r))
        return 0;
    return send_question(r, AMQP_QUEUE_DECLARE_METHOD, &m, ret_asked);
}

static int bind_queue(struct rabbitmq_sink *r, bool *ret_asked)
{
    amqp_queue_bind_t m = {
        .queue = rabbit_bytes(str_of(r->set.queue)),
        .exchange = rabbit_bytes(str_of(r->set.exchange)),
        .routing_key = rabbit_bytes(str_of(r->set.binding)),
    };
    bool bindable = r->set.create && r->set.queue;
    if (!bindable)
        return 0;
    return send_question(r, AMQP_QUEUE_BIND_METHOD, &m, ret_asked);
}

static const struct step steps[] = {
    {open_channel, AMQP_CHANNEL_OPEN_OK_METHOD, "a channel"},
    {want_confirms, AMQP_CONFIRM_SELECT_OK_METHOD, "confirms"},
    {look_at_exchange, AMQP_EXCHANGE_DECLARE_OK_METHOD, "the exchange"},
    {look_at_queue, AMQP_QUEUE_DECLARE_OK_METHOD, "the queue"},
    {bind_queue, AMQP_QUEUE_BIND_OK_METHOD, "the binding"},
};

#define STEPS (sizeof steps / sizeof steps[0])

/* Continues until a step awaits a reply; after the last the channel is ready. */
static int take_steps(struct rabbitmq_sink *r, struct error *err)
{
    while (r->step < STEPS) {
        bool asked = false;
        if (steps[r->step].send(r, &asked) != 0)
            return err_nomem(err);
        if (asked)
            return 0;
        r->step++;
    }
    r->channel = CHANNEL_READY;
    r->first_tag = r->next_tag = 1; /* the first message on a channel has tag 1 */
    return 0;
}

int rabbitmq_channel_open(struct rabbitmq_sink *r, struct error *err)
{
    r->channel = CHANNEL_SETUP;
    r->step = 0;
    r->nacked = 0;
    r->returning = (struct rabbitmq_returning){0};
    return take_steps(r, err);
}

int rabbitmq_channel_reply(struct rabbitmq_sink *r, const amqp_method_t *m, struct error *err)
{
    if (m->id != steps[r->step].answer)
        return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s sent an unexpected %s",
                         rabbit_conn_label(&r->conn), amqp_method_name(m->id));
    r->step++;
    return take_steps(r, err);
}

int rabbitmq_channel_refused(struct rabbitmq_sink *r, const amqp_channel_close_t *m,
                             struct error *err)
{
    char said[RABBIT_TEXT];
    int code = m->reply_code;
    const char *what = steps[r->step].what, *advice = "";
    rabbit_conn_text(m->reply_text, said);
    if (code == AMQP_PRECONDITION_FAILED && creates(r)) {
        /* It exists with other properties than we would create, perhaps not durable, or a classic
         * queue. Use it as it is: repeat the setup without creating. */
        r->passive = true;
        broker_set_caution(&r->b,
                           "%s has %s in another form than create=on would give it, and it is "
                           "used as it is: %s",
                           rabbit_conn_label(&r->conn), what, said);
        return rabbitmq_channel_open(r, err);
    }

    if (code == AMQP_NOT_FOUND && !r->set.create)
        advice = "; declare it, or add create=on to the URL";
    if (code == AMQP_ACCESS_REFUSED && creates(r))
        advice = "; give the user the right to configure, or declare it and drop create=on";
    enum retry_class class = CLASS_DOWN;
    enum sink_status status = rabbitmq_answer_meaning(SAID_SETUP, code, said)->status;
    if (status == SINK_FATAL)
        class = CLASS_FATAL;
    if (status == SINK_REFUSED)
        class = CLASS_RETRY;
    return err_class(err, ERR_UNAVAILABLE, class, code, "%s, %s: %s%s", rabbit_conn_label(&r->conn),
                     what, said, advice);
}
