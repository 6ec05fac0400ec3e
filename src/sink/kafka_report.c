/* kafka_report.c: what the producer's reports, or their absence, mean for the events.
 *
 * The producer is fail-stop: once a message of a partition has failed, it sends none behind it. So
 * whatever fails breaks it, everything it still has comes back, and it is replaced. If a broker has
 * refused a batch, only one event of it need be at fault: what came back is sent again, one by one,
 * until the guilty one has been refused alone. For any other reason the events go back to the
 * engine, which waits. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/text.h"
#include "sink/kafka_impl.h"

#define BREAK_NS (2000 * MS_NS) /* how long to wait for what a broken producer still has */
#define BATCH_MIN 4096
#define HEARD_MAX 20000 /* reports at a time: then others have their turn */

/* ---- answers ---- */

static void end(struct kafka_sink *k, struct slot *s, const struct sink_result *res)
{
    struct delivery *d = s->d;
    char *why = s->why, *topic = s->topic;
    s->d = NULL;
    s->why = s->topic = NULL;
    k->bytes -= s->bytes;
    sink_done(&k->base, d, res);
    free(why);
    free(topic);
}

/* mark notes how far the partition has been written: the offset behind the last message, where a
 * reader would go on, as in all of Kafka. */
static void mark(struct kafka_sink *k, const struct slot *s)
{
    char name[KAFKA_TOPIC_MAX + 16];
    const char *topic = s->topic ? s->topic : k->topic;
    int n = snprintf(name, sizeof name, "%s/%d", topic, s->partition);
    struct stream *st = streams_get(&k->streams, (struct str){name, (size_t)n});
    if (st && s->offset >= 0)
        streams_note(&k->streams, st, s->offset + 1, 0);
}

static void end_stored(struct kafka_sink *k, struct slot *s)
{
    char receipt[KAFKA_TOPIC_MAX + 48];
    const char *topic = s->topic ? s->topic : k->topic;
    snprintf(receipt, sizeof receipt, "%s/%d/%lld", topic, s->partition, (long long)s->offset);
    mark(k, s);
    end(k, s, &(struct sink_result){.status = SINK_DELIVERED, .receipt = receipt});
}

static void end_unfit(struct kafka_sink *k, struct slot *s)
{
    char said[KAFKA_TEXT], text[2 * KAFKA_TEXT];
    if (s->why)
        snprintf(text, sizeof text, "%s", s->why);
    else {
        kafka_fate_text(s->err, said);
        snprintf(text, sizeof text, "%s, topic %s: %s", k->url.label,
                 s->topic ? s->topic : k->topic, said);
    }
    end(k, s,
        &(struct sink_result){
            .status = SINK_REJECT, .native = s->err, .text = text, .unasked = s->unasked});
}

/* end_without_topic answers for an event whose topic takes nothing, while the brokers work. Of a
 * chain, only the first is refused. */
static void end_without_topic(struct kafka_sink *k, struct slot *s)
{
    char said[KAFKA_TEXT], text[2 * KAFKA_TEXT];
    kafka_fate_text(s->err, said);
    snprintf(text, sizeof text, "%s, topic %s: %s", k->url.label, s->topic ? s->topic : k->topic,
             said);
    enum sink_status status = s->chained ? SINK_CANCELLED : SINK_REFUSED;
    end(k, s, &(struct sink_result){.status = status, .native = s->err, .text = text});
}

static void end_cut(struct kafka_sink *k, struct slot *s)
{
    end(k, s,
        &(struct sink_result){.status = SINK_CANCELLED,
                              .text = "one before it of its key was not delivered"});
}

static void answer(struct kafka_sink *k, struct slot *s)
{
    switch (s->state) {
    case SLOT_STORED: end_stored(k, s); break;
    case SLOT_UNFIT: end_unfit(k, s); break;
    case SLOT_NO_TOPIC: end_without_topic(k, s); break;
    case SLOT_CUT: end_cut(k, s); break;
    case SLOT_WAITING:
    case SLOT_LOOKING:
    case SLOT_SENT:
    case SLOT_REFUSED:
    case SLOT_BACK: break; /* not known yet */
    }
}

/* is_known says whether a slot can be answered for. What has come back is decided about when the
 * producer is replaced. */
static bool is_known(const struct slot *s)
{
    switch (s->state) {
    case SLOT_STORED:
    case SLOT_UNFIT:
    case SLOT_NO_TOPIC:
    case SLOT_CUT: return true;
    case SLOT_WAITING:
    case SLOT_LOOKING:
    case SLOT_SENT:
    case SLOT_REFUSED:
    case SLOT_BACK: break;
    }
    return false;
}

/* answer_any answers for whatever is known: the engine has one event, or one chain, of a key with
 * us, and chains come back in order. */
static void answer_any(struct kafka_sink *k)
{
    for (size_t i = k->first; i < k->next; i++) {
        struct slot *s = kafka_slot(k, i);
        if (s->d && is_known(s))
            answer(k, s);
    }
    while (k->first < k->next && !kafka_slot(k, k->first)->d)
        k->first++;
}

/* answer_in_order answers as far as everything before is known, too: see SINK_FAILSTOP. */
static void answer_in_order(struct kafka_sink *k)
{
    while (k->first < k->next) {
        struct slot *s = kafka_slot(k, k->first);
        if (!is_known(s))
            return;
        k->first++;
        answer(k, s);
    }
}

void kafka_report_answer(struct kafka_sink *k)
{
    if (k->fixed)
        answer_in_order(k);
    else
        answer_any(k);
    if (k->sent < k->first)
        k->sent = k->first;
}

/* ---- reports ---- */

/* break_off stops sending: everything behind what failed has to come back first. */
static void break_off(struct kafka_sink *k, rd_kafka_resp_err_t code)
{
    bool has_reason = k->breaking && kafka_fate_of(k->broken_by)->fate != KAFKA_WITH;
    if (!has_reason)
        k->broken_by = code;
    if (k->breaking)
        return;
    k->breaking = true;
    k->break_by = kafka_now(k) + BREAK_NS;
    /* What waits for a topic that takes nothing would not come back by itself in that time. */
    bool nothing_goes_out = k->fixed && k->p && kafka_fate_of(code)->fate == KAFKA_TOPIC;
    if (nothing_goes_out)
        rd_kafka_purge(k->p->rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_NON_BLOCKING);
}

/* cut_chain ends the rest of a chain whose delivery at index i is not delivered. If a part of the
 * rest is with the producer, it must not be sent any more. */
static void cut_chain(struct kafka_sink *k, size_t i)
{
    if (k->fixed)
        return;
    for (size_t j = i + 1; j < k->next && kafka_slot(k, j)->chained; j++) {
        struct slot *s = kafka_slot(k, j);
        if (s->state == SLOT_SENT)
            break_off(k, RD_KAFKA_RESP_ERR__PURGE_QUEUE);
        else if (s->state != SLOT_STORED)
            s->state = SLOT_CUT;
    }
}

void kafka_report_unfit(struct kafka_sink *k, size_t i, const char *why)
{
    struct slot *s = kafka_slot(k, i);
    s->state = SLOT_UNFIT;
    s->unasked = true;
    s->why = strdup(why);
    cut_chain(k, i);
}

void kafka_report_back(struct kafka_sink *k, struct slot *s, rd_kafka_resp_err_t code)
{
    s->err = code;
    switch (kafka_fate_of(code)->fate) {
    case KAFKA_REFUSED:
        s->state = SLOT_REFUSED;
        break_off(k, code);
        return;
    case KAFKA_TOPIC:
        s->state = SLOT_NO_TOPIC;
        if (k->fixed) /* nothing of its key behind it may be stored */
            break_off(k, code);
        return;
    case KAFKA_STORED:
    case KAFKA_AWAY:
    case KAFKA_WITH:
    case KAFKA_SETUP: break;
    }
    s->state = SLOT_BACK;
    break_off(k, code);
}

static void take_report(struct kafka_sink *k, const rd_kafka_message_t *m)
{
    struct slot *s = kafka_slot(k, (size_t)(uintptr_t)m->_private);
    if (s->state != SLOT_SENT)
        return;
    k->out--;
    if (m->err) {
        kafka_report_back(k, s, m->err);
        return;
    }
    s->state = SLOT_STORED;
    s->partition = m->partition;
    s->offset = m->offset;
    k->away_since = 0;
    k->answered = true;
    k->trouble[0] = '\0';
    if (k->fixed)
        kafka_leaders_confirmed(&k->leaders, m->partition, rd_kafka_message_broker_id(m));
}

/* take_trouble notes what the library says about its connections, and whether it has any. */
static void take_trouble(struct kafka_sink *k, rd_kafka_event_t *ev)
{
    rd_kafka_resp_err_t code = rd_kafka_event_error(ev);
    if (code == RD_KAFKA_RESP_ERR__FATAL) {
        char said[KAFKA_TEXT];
        break_off(k, rd_kafka_fatal_error(k->p->rk, said, sizeof said));
        return;
    }
    if (code == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN) {
        if (!k->away_since)
            k->away_since = kafka_now(k);
        return;
    }
    const char *text = rd_kafka_event_error_string(ev);
    if (text)
        text_clean(k->trouble, sizeof k->trouble, text, strlen(text));
}

static size_t take(struct kafka_sink *k, rd_kafka_event_t *ev)
{
    const rd_kafka_message_t *m;
    size_t n = 0;
    if (rd_kafka_event_type(ev) == RD_KAFKA_EVENT_ERROR) {
        take_trouble(k, ev);
        return 1;
    }
    while ((m = rd_kafka_event_message_next(ev))) {
        take_report(k, m);
        n++;
    }
    return n;
}

/* take_facts notes what the look at the topic has found. */
static void take_facts(struct kafka_sink *k)
{
    if (k->told_facts || !atomic_load(&k->p->checked))
        return;
    k->told_facts = true;
    const struct kafka_topic_facts *f = &k->p->facts;
    if (kafka_fate_of(f->err)->fate == KAFKA_TOPIC && kafka_inflight(k) > 0)
        break_off(k, f->err);
    if (f->err != RD_KAFKA_RESP_ERR_NO_ERROR)
        return;
    k->leaders = f->leaders;
    k->answered = true;
    char *out = k->caution[k->n_caution % 3];
    char text[sizeof k->caution[0]];
    kafka_topic_caution(k, f, text, sizeof text);
    bool news = k->n_caution == 0 || strcmp(text, k->caution[(k->n_caution - 1) % 3]) != 0;
    if (!news)
        return;
    memcpy(out, text, sizeof text);
    k->n_caution++;
}

/* cut_chains ends the chains that begin with an event whose topic takes nothing. */
static void cut_chains(struct kafka_sink *k)
{
    if (k->fixed)
        return;
    for (size_t i = k->first; i < k->next; i++) {
        if (kafka_slot(k, i)->state == SLOT_NO_TOPIC)
            cut_chain(k, i);
    }
}

void kafka_report_hear(struct kafka_sink *k)
{
    uint64_t rings;
    size_t heard = 0;
    rd_kafka_event_t *ev;
    if (!k->p)
        return;
    (void)!read(k->p->fd, &rings, sizeof rings);
    while (heard < HEARD_MAX && (ev = rd_kafka_queue_poll(k->p->queue, 0))) {
        heard += take(k, ev);
        rd_kafka_event_destroy(ev);
    }
    if (heard >= HEARD_MAX)
        kafka_producer_ring(k->p);
    cut_chains(k);
    take_facts(k);
}

/* ---- the end of a producer ---- */

static void end_down(struct kafka_sink *k, struct slot *s, enum sink_status status, const char *why)
{
    if (is_known(s)) {
        answer(k, s);
        return;
    }
    bool later_of_chain = s->chained && status != SINK_DOWN && status != SINK_FATAL;
    if (later_of_chain)
        status = SINK_CANCELLED;
    end(k, s, &(struct sink_result){.status = status, .native = s->err, .text = why});
}

void kafka_report_down(struct kafka_sink *k, enum sink_status status, const char *why)
{
    size_t first = k->first, next = k->next;
    kafka_producer_retire(k);
    k->breaking = false;
    k->out = 0;
    k->away_since = 0;
    k->singly_to = 0;
    k->first = k->sent = k->next; /* before the answers: done may look at it */
    for (size_t i = first; i < next; i++) {
        struct slot *s = kafka_slot(k, i);
        if (s->d)
            end_down(k, s, status, why);
    }
}

/* refused counts what was refused, and sums up its bytes. *ret_last is the index of the last. */
static size_t refused(const struct kafka_sink *k, size_t *ret_last, size_t *ret_bytes)
{
    size_t n = 0;
    *ret_last = *ret_bytes = 0;
    for (size_t i = k->first; i < k->next; i++) {
        const struct slot *s = kafka_slot(k, i);
        if (s->state != SLOT_REFUSED)
            continue;
        n++;
        *ret_last = i;
        *ret_bytes += s->bytes;
    }
    return n;
}

/* again makes everything that is not decided wait to be sent again, by another producer. */
static void again(struct kafka_sink *k)
{
    kafka_producer_retire(k);
    k->breaking = false;
    k->out = 0;
    k->sent = k->first;
    for (size_t i = k->first; i < k->next; i++) {
        struct slot *s = kafka_slot(k, i);
        bool undecided = s->d && !is_known(s);
        if (undecided)
            s->state = SLOT_WAITING;
    }
}

/* convict decides about what was refused. An event that was alone is guilty. Of several, the
 * guilty one is looked for; if the request as a whole was too large, the next will be smaller. */
static void convict(struct kafka_sink *k, size_t n, size_t last, size_t bytes)
{
    bool alone = n == 1 && last < k->singly_to;
    if (alone) {
        kafka_slot(k, last)->state = SLOT_UNFIT;
        cut_chain(k, last);
    } else {
        k->singly_to = last + 1;
        if (n > 1 && k->broken_by == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE)
            k->batch_bytes = (int64_t)(bytes / 2 < BATCH_MIN ? BATCH_MIN : bytes / 2);
    }
    again(k);
}

/* give_up ends what came back. If the one topic there is takes nothing, all of it is refused. */
static void give_up(struct kafka_sink *k)
{
    char said[KAFKA_TEXT], text[2 * KAFKA_TEXT + 300];
    enum kafka_fate fate = kafka_fate_of(k->broken_by)->fate;
    enum sink_status status = SINK_DOWN;
    kafka_fate_text(k->broken_by, said);
    snprintf(text, sizeof text, "%s: %s", k->url.label, said);
    if (fate == KAFKA_SETUP)
        status = SINK_FATAL;
    if (fate == KAFKA_TOPIC) {
        status = SINK_REFUSED;
        snprintf(text, sizeof text, "%s, topic %s: %s", k->url.label, k->topic, said);
    }
    kafka_report_down(k, status, text);
}

void kafka_report_settle(struct kafka_sink *k)
{
    size_t last, bytes;
    if (!k->breaking)
        return;
    bool all_back = k->out == 0 || kafka_now(k) >= k->break_by;
    if (!all_back)
        return;
    size_t n = refused(k, &last, &bytes);
    if (n > 0)
        convict(k, n, last, bytes);
    else
        give_up(k);
}
