/* kafka_answer.c: maps delivery reports, and missing reports, to the results of events.
 *
 * The producer is fail-stop: after a message of a partition fails, the producer sends no later
 * message of that partition. Any failure therefore breaks the producer: the sink waits until the
 * producer has returned all its events, and then replaces it. If a broker refused a batch, a single
 * event may be at fault: the sink resends the returned events one by one until the broker refuses
 * the faulty one individually. After any other failure, the events return to the engine, which
 * waits. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/num.h"
#include "base/text.h"
#include "sink/kafka_impl.h"

#define BREAK_NS (2000 * MS_NS) /* maximum wait for a broken producer to return its events */
#define BATCH_MIN 4096
#define REPORTS_MAX 20000 /* per poll, for fairness */

/* The table of error codes, documented in docs/brokers.md; a test compares the two. */

/* An error code, its meaning, and advice for the operator. */
#define ROW(name, meaning, advice) \
    { \
        RD_KAFKA_RESP_ERR_##name, meaning, advice \
    }

#define LOG_IN "check USER@, password-file and sasl"
#define RIGHTS "the user needs WRITE and DESCRIBE on the topic"
#define REPLICAS_AWAY "too few replicas are in sync; see min.insync.replicas"

const struct kafka_answer kafka_answers[] = {
    /* The brokers, the network, or a partition is unavailable; temporary. */
    ROW(_TRANSPORT, KAFKA_UNAVAILABLE, NULL),
    ROW(_ALL_BROKERS_DOWN, KAFKA_UNAVAILABLE, NULL),
    ROW(_RESOLVE, KAFKA_UNAVAILABLE, NULL),
    ROW(_TIMED_OUT, KAFKA_UNAVAILABLE, NULL),
    ROW(_TIMED_OUT_QUEUE, KAFKA_UNAVAILABLE, NULL),
    ROW(_MSG_TIMED_OUT, KAFKA_UNAVAILABLE, NULL),
    ROW(_WAIT_COORD, KAFKA_UNAVAILABLE, NULL),
    ROW(LEADER_NOT_AVAILABLE, KAFKA_UNAVAILABLE, NULL),
    ROW(NOT_LEADER_FOR_PARTITION, KAFKA_UNAVAILABLE, NULL),
    ROW(REQUEST_TIMED_OUT, KAFKA_UNAVAILABLE, NULL),
    ROW(BROKER_NOT_AVAILABLE, KAFKA_UNAVAILABLE, NULL),
    ROW(NETWORK_EXCEPTION, KAFKA_UNAVAILABLE, NULL),
    ROW(COORDINATOR_LOAD_IN_PROGRESS, KAFKA_UNAVAILABLE, NULL),
    ROW(COORDINATOR_NOT_AVAILABLE, KAFKA_UNAVAILABLE, NULL),
    ROW(NOT_COORDINATOR, KAFKA_UNAVAILABLE, NULL),
    ROW(KAFKA_STORAGE_ERROR, KAFKA_UNAVAILABLE, "the broker's disk is full or broken"),
    ROW(THROTTLING_QUOTA_EXCEEDED, KAFKA_UNAVAILABLE, NULL),
    ROW(NOT_ENOUGH_REPLICAS, KAFKA_UNAVAILABLE, REPLICAS_AWAY),
    ROW(NOT_ENOUGH_REPLICAS_AFTER_APPEND, KAFKA_UNAVAILABLE, REPLICAS_AWAY),
    ROW(_ISR_INSUFF, KAFKA_UNAVAILABLE, REPLICAS_AWAY),

    /* Authentication and authorization. These may be temporary too, for instance while a password
     * is being rotated. */
    ROW(_AUTHENTICATION, KAFKA_UNAVAILABLE, LOG_IN),
    ROW(SASL_AUTHENTICATION_FAILED, KAFKA_UNAVAILABLE, LOG_IN),
    ROW(UNSUPPORTED_SASL_MECHANISM, KAFKA_UNAVAILABLE, LOG_IN),
    ROW(ILLEGAL_SASL_STATE, KAFKA_UNAVAILABLE, LOG_IN),
    ROW(_SSL, KAFKA_UNAVAILABLE, "check ca, cert and key"),
    ROW(CLUSTER_AUTHORIZATION_FAILED, KAFKA_UNAVAILABLE,
        "the user needs IDEMPOTENT_WRITE on the cluster, or WRITE on a topic"),
    ROW(TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KAFKA_UNAVAILABLE,
        "the user needs WRITE and DESCRIBE on the transactional id"),
    ROW(GROUP_AUTHORIZATION_FAILED, KAFKA_UNAVAILABLE, NULL),

    /* The topic. This includes missing permissions on it. */
    ROW(TOPIC_AUTHORIZATION_FAILED, KAFKA_TOPIC, RIGHTS),
    ROW(UNKNOWN_TOPIC_OR_PART, KAFKA_TOPIC, "create the topic, or set create=on"),
    ROW(_UNKNOWN_TOPIC, KAFKA_TOPIC, "create the topic, or set create=on"),
    ROW(_UNKNOWN_PARTITION, KAFKA_TOPIC, "the topic has lost partitions"),
    ROW(TOPIC_EXCEPTION, KAFKA_TOPIC,
        "the topic's name is invalid, or reserved for an internal topic"),
    ROW(POLICY_VIOLATION, KAFKA_TOPIC, "a cluster policy forbids it"),
    ROW(UNSUPPORTED_FOR_MESSAGE_FORMAT, KAFKA_TOPIC,
        "the topic stores messages in a format older than 0.11, which lacks headers"),
    ROW(INVALID_REQUIRED_ACKS, KAFKA_TOPIC, NULL),

    /* The event, or another event in its batch. */
    ROW(MSG_SIZE_TOO_LARGE, KAFKA_REFUSED, "see max.message.bytes of the topic"),
    ROW(INVALID_MSG_SIZE, KAFKA_REFUSED, NULL),
    ROW(RECORD_LIST_TOO_LARGE, KAFKA_REFUSED, "see segment.bytes of the topic"),
    ROW(INVALID_RECORD, KAFKA_REFUSED, "a compacted topic accepts only events with a key"),
    ROW(INVALID_TIMESTAMP, KAFKA_REFUSED, "see message.timestamp.after.max.ms of the topic"),

    /* Consequences of another event's failure, or of the producer's shutdown. */
    ROW(_GAPLESS_GUARANTEE, KAFKA_CONSEQUENCE, NULL),
    ROW(_FATAL, KAFKA_CONSEQUENCE, NULL),
    ROW(_PURGE_QUEUE, KAFKA_CONSEQUENCE, NULL),
    ROW(_PURGE_INFLIGHT, KAFKA_CONSEQUENCE, NULL),
    ROW(_DESTROY, KAFKA_CONSEQUENCE, NULL),
    ROW(_STATE, KAFKA_CONSEQUENCE, NULL),
    ROW(_INCONSISTENT, KAFKA_CONSEQUENCE, NULL),
    ROW(OUT_OF_ORDER_SEQUENCE_NUMBER, KAFKA_CONSEQUENCE, NULL),
    ROW(DUPLICATE_SEQUENCE_NUMBER, KAFKA_CONSEQUENCE, NULL),
    ROW(UNKNOWN_PRODUCER_ID, KAFKA_CONSEQUENCE, NULL),
    ROW(INVALID_PRODUCER_EPOCH, KAFKA_CONSEQUENCE, NULL),
    ROW(INVALID_PRODUCER_ID_MAPPING, KAFKA_CONSEQUENCE, NULL),
    ROW(INVALID_TXN_STATE, KAFKA_CONSEQUENCE, NULL),
    ROW(CONCURRENT_TRANSACTIONS, KAFKA_CONSEQUENCE, NULL),
    ROW(_FENCED, KAFKA_CONSEQUENCE, "another relay has replaced this producer"),
    ROW(PRODUCER_FENCED, KAFKA_CONSEQUENCE, "another relay has replaced this producer"),
    ROW(TRANSACTION_COORDINATOR_FENCED, KAFKA_CONSEQUENCE, NULL),

    /* Setup. */
    ROW(_UNSUPPORTED_FEATURE, KAFKA_SETUP, "the brokers must be Kafka 0.11 or newer"),
    ROW(UNSUPPORTED_VERSION, KAFKA_SETUP, "the brokers must be Kafka 0.11 or newer"),
    ROW(UNSUPPORTED_COMPRESSION_TYPE, KAFKA_SETUP, "the brokers do not support this compression"),
    ROW(SECURITY_DISABLED, KAFKA_SETUP, NULL),
};

const size_t kafka_answer_rows = sizeof kafka_answers / sizeof kafka_answers[0];

const struct kafka_answer *kafka_answer_of(rd_kafka_resp_err_t code)
{
    static const struct kafka_answer other = {RD_KAFKA_RESP_ERR_UNKNOWN, KAFKA_UNAVAILABLE, NULL};
    static const struct kafka_answer none = {RD_KAFKA_RESP_ERR_NO_ERROR, KAFKA_STORED, NULL};
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR)
        return &none;
    for (size_t i = 0; i < kafka_answer_rows; i++) {
        if (kafka_answers[i].code == code)
            return &kafka_answers[i];
    }
    return &other;
}

void kafka_answer_text(rd_kafka_resp_err_t code, char out[KAFKA_TEXT])
{
    const char *advice = kafka_answer_of(code)->advice;
    if (advice)
        snprintf(out, KAFKA_TEXT, "%s: %s (%s)", rd_kafka_err2name(code), rd_kafka_err2str(code),
                 advice);
    else
        snprintf(out, KAFKA_TEXT, "%s: %s", rd_kafka_err2name(code), rd_kafka_err2str(code));
    text_clean(out, KAFKA_TEXT, out, strlen(out));
}

/* Ending events */

static enum kafka_meaning meaning_of(rd_kafka_resp_err_t code)
{
    return kafka_answer_of(code)->meaning;
}

static bool is_known(const struct kafka_item *it)
{
    return it->state >= ITEM_STORED;
}

/* Reports an event's result and frees what it owns. */
static void end_item(struct kafka_sink *k, struct kafka_item *it, const struct sink_result *res)
{
    char *why = it->why, *topic = it->topic;
    if (k->waiting == it)
        k->waiting = kafka_next(it);
    it->why = it->topic = NULL;
    window_end(&k->b.window, &it->f, res);
    free(why);
    free(topic);
}

/* Reports a stored event. The partition's high-water mark is the offset after its last message,
 * where a reader would continue: the usual meaning in Kafka. */
static void end_stored(struct kafka_sink *k, struct kafka_item *it, const char *topic)
{
    char name[KAFKA_TOPIC_MAX + 16], receipt[KAFKA_TOPIC_MAX + 48];
    int n = snprintf(name, sizeof name, "%s/%d", topic, it->partition);
    snprintf(receipt, sizeof receipt, "%s/%lld", name, (long long)it->offset);
    struct stream *st = window_marks_get(&k->b.marks, (struct str){name, (size_t)n});
    if (st && it->offset >= 0)
        window_marks_advance(&k->b.marks, st, it->offset + 1, 0);
    end_item(k, it, &(struct sink_result){.status = SINK_DELIVERED, .receipt = receipt});
}

/* Reports the result of an event whose outcome is known. */
static void end_known(struct kafka_sink *k, struct kafka_item *it)
{
    char said[KAFKA_TEXT], text[2 * KAFKA_TEXT];
    const char *topic = it->topic ? it->topic : k->topic;
    if (it->state == ITEM_STORED) {
        end_stored(k, it, topic);
        return;
    }
    kafka_answer_text(it->err, said);
    snprintf(text, sizeof text, "%s, topic %s: %s", k->url.label, topic, said);
    struct sink_result res = {.status = SINK_CANCELLED, .native = it->err, .text = text};
    if (it->state == ITEM_REJECTED) {
        res.status = SINK_REJECT;
        res.unasked = it->unasked;
        if (it->why)
            snprintf(text, sizeof text, "%s", it->why);
    } else if (it->state == ITEM_NO_TOPIC && !kafka_chained(it)) {
        res.status = SINK_REFUSED; /* in a chain, only the first is refused */
    } else if (it->state == ITEM_CUT) {
        snprintf(text, sizeof text, "an earlier event with the same key was not delivered");
    }
    end_item(k, it, &res);
}

/* Reports known results. A fail-stop sink reports in order, and stops at the first event whose
 * result is unknown. Any other sink reports in any order: the engine has only one event or chain
 * per key in flight, and the events of a chain are returned in order. */
void kafka_answer_known(struct kafka_sink *k)
{
    struct in_flight *next;
    for (struct in_flight *f = k->b.window.first; f; f = next) {
        struct kafka_item *it = (struct kafka_item *)f;
        next = f->next;
        if (is_known(it))
            end_known(k, it);
        else if (k->b.fixed)
            return;
    }
}

/* Reports */

/* Stops sending: the producer must first return every event after the failed one. */
static void break_off(struct kafka_sink *k, rd_kafka_resp_err_t code)
{
    bool has_reason = k->breaking && meaning_of(k->break_code) != KAFKA_CONSEQUENCE;
    if (!has_reason)
        k->break_code = code;
    if (k->breaking)
        return;
    k->breaking = true;
    k->break_by = broker_now(&k->b) + BREAK_NS;
    /* If the topic accepts nothing, the producer would return queued events too late: purge
     * them. */
    bool nothing_goes_out = k->b.fixed && k->p && meaning_of(code) == KAFKA_TOPIC;
    if (nothing_goes_out)
        rd_kafka_purge(k->p->rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_NON_BLOCKING);
}

/* Ends the rest of a chain after event `it` failed. The producer must not send the events it
 * already has. The events that follow in the window may belong to another chain, whose first events
 * are already reported. */
static void cut_chain(struct kafka_sink *k, const struct kafka_item *it)
{
    if (k->b.fixed)
        return;
    struct kafka_item *rest = kafka_next(it);
    for (; rest && rest->chain == it->chain; rest = kafka_next(rest)) {
        if (rest->state == ITEM_SENT)
            break_off(k, RD_KAFKA_RESP_ERR__PURGE_QUEUE);
        else if (rest->state != ITEM_STORED)
            rest->state = ITEM_CUT;
    }
}

void kafka_answer_reject(struct kafka_sink *k, struct kafka_item *it, const char *why)
{
    it->state = ITEM_REJECTED;
    it->unasked = true;
    it->why = strdup(why);
    cut_chain(k, it);
}

void kafka_answer_failed(struct kafka_sink *k, struct kafka_item *it, rd_kafka_resp_err_t code)
{
    bool breaks = true;
    it->err = code;
    switch (meaning_of(code)) {
    case KAFKA_REFUSED: it->state = ITEM_REFUSED; break;
    case KAFKA_TOPIC:
        it->state = ITEM_NO_TOPIC;
        breaks = k->b.fixed; /* later events must not be stored */
        break;
    case KAFKA_STORED:
    case KAFKA_UNAVAILABLE:
    case KAFKA_CONSEQUENCE:
    case KAFKA_SETUP: it->state = ITEM_RETURNED; break;
    }
    if (breaks)
        break_off(k, code);
}

static void handle_report(struct kafka_sink *k, const rd_kafka_message_t *m)
{
    struct kafka_item *it = m->_private;
    if (it->state != ITEM_SENT)
        return;
    k->n_sent--;
    if (m->err) {
        kafka_answer_failed(k, it, m->err);
        return;
    }
    it->state = ITEM_STORED;
    it->partition = m->partition;
    it->offset = m->offset;
    k->unreachable_since = 0;
    k->answered = true;
    k->last_error[0] = '\0';
    if (k->b.fixed)
        kafka_producer_set_leader(&k->leaders, m->partition, rd_kafka_message_broker_id(m));
}

/* Records connection errors of the library, and whether any broker is reachable. */
static void handle_error(struct kafka_sink *k, rd_kafka_event_t *ev)
{
    char said[KAFKA_TEXT];
    const char *text = rd_kafka_event_error_string(ev);
    rd_kafka_resp_err_t code = rd_kafka_event_error(ev);
    if (code == RD_KAFKA_RESP_ERR__FATAL)
        break_off(k, rd_kafka_fatal_error(k->p->rk, said, sizeof said));
    else if (code != RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN && text)
        text_clean(k->last_error, sizeof k->last_error, text, strlen(text));
    else if (code == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN && !k->unreachable_since)
        k->unreachable_since = broker_now(&k->b);
}

/* Writes which setting of the topic may lose events; "" if none does. */
static void write_caution(const char *topic, const struct kafka_topic_facts *f,
                          char out[BROKER_CAUTION])
{
    out[0] = '\0';
    if (f->replicas == 1 && f->brokers > 1)
        snprintf(out, BROKER_CAUTION,
                 "topic %s has a partition with a single replica: if the broker's disk fails, "
                 "its events are lost (raise the replication factor)",
                 topic);
    else if (f->replicas > 1 && f->min_insync == 1)
        snprintf(out, BROKER_CAUTION,
                 "topic %s has min.insync.replicas=1: an event stored only by the leader counts "
                 "as delivered, and is lost if the leader fails (set 2)",
                 topic);
    else if (f->unclean)
        snprintf(out, BROKER_CAUTION,
                 "topic %s has unclean.leader.election.enable=true: a lagging replica may become "
                 "the leader, which loses delivered events (set false)",
                 topic);
}

/* Handles the result of the topic check. */
static void handle_facts(struct kafka_sink *k)
{
    char text[BROKER_CAUTION];
    if (k->facts_reported || !atomic_load(&k->p->checked))
        return;
    k->facts_reported = true;
    const struct kafka_topic_facts *f = &k->p->facts;
    if (meaning_of(f->err) == KAFKA_TOPIC && k->b.window.count > 0)
        break_off(k, f->err);
    if (f->err != RD_KAFKA_RESP_ERR_NO_ERROR)
        return;
    k->leaders = f->leaders;
    k->answered = true;
    write_caution(k->topic, f, text);
    broker_set_caution(&k->b, "%s", text);
}

void kafka_answer_poll(struct kafka_sink *k)
{
    size_t n = 0;
    rd_kafka_event_t *ev;
    const rd_kafka_message_t *m;
    if (!k->p)
        return;
    wake_fd_clear(k->p->fd);
    while (n < REPORTS_MAX && (ev = rd_kafka_queue_poll(k->p->queue, 0))) {
        if (rd_kafka_event_type(ev) == RD_KAFKA_EVENT_ERROR) {
            handle_error(k, ev);
            n++;
        }
        while ((m = rd_kafka_event_message_next(ev))) {
            handle_report(k, m);
            n++;
        }
        rd_kafka_event_destroy(ev);
    }
    if (n >= REPORTS_MAX)
        wake_fd_signal(k->p->fd);

    for (struct in_flight *f = k->b.window.first; f && !k->b.fixed; f = f->next)
        if (((struct kafka_item *)f)->state == ITEM_NO_TOPIC)
            cut_chain(k, (struct kafka_item *)f);
    handle_facts(k);
}

/* Ending a producer */

void kafka_answer_all(struct kafka_sink *k, enum sink_status status, const char *why)
{
    kafka_producer_retire(k);
    k->breaking = false;
    k->n_sent = 0;
    k->unreachable_since = 0;
    k->one_by_one_to = 0;
    while (k->b.window.first) {
        struct kafka_item *it = (struct kafka_item *)k->b.window.first;
        struct sink_result res = {.status = status, .native = it->err, .text = why};
        bool later_of_chain = kafka_chained(it) && status != SINK_DOWN && status != SINK_FATAL;
        if (later_of_chain)
            res.status = SINK_CANCELLED;
        if (is_known(it))
            end_known(k, it);
        else
            end_item(k, it, &res);
    }
}

/* Decides about `n` refused events of `bytes` bytes in total. A single refused event is at fault.
 * Several events are resent one by one to find the faulty one; if the request as a whole was too
 * large, the next request is smaller. Undecided events are resent by another producer. */
static void blame_refused(struct kafka_sink *k, size_t n, struct kafka_item *last, size_t bytes)
{
    bool alone = n == 1 && last->number < k->one_by_one_to;
    if (alone) {
        last->state = ITEM_REJECTED;
        cut_chain(k, last);
    } else {
        k->one_by_one_to = last->number + 1;
        if (n > 1 && k->break_code == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE)
            k->batch_bytes = (int64_t)max_size(bytes / 2, BATCH_MIN);
    }

    kafka_producer_retire(k);
    k->breaking = false;
    k->n_sent = 0;
    k->waiting = (struct kafka_item *)k->b.window.first;
    for (struct kafka_item *it = k->waiting; it; it = kafka_next(it))
        if (!is_known(it))
            it->state = ITEM_WAITING;
}

/* Ends the returned events: as refused if the only topic accepts nothing, otherwise as
 * cancelled. */
static void give_up(struct kafka_sink *k)
{
    char said[KAFKA_TEXT], text[2 * KAFKA_TEXT + 300];
    enum sink_status status = SINK_DOWN;
    kafka_answer_text(k->break_code, said);
    snprintf(text, sizeof text, "%s: %s", k->url.label, said);
    if (meaning_of(k->break_code) == KAFKA_SETUP)
        status = SINK_FATAL;
    if (meaning_of(k->break_code) == KAFKA_TOPIC) {
        status = SINK_REFUSED;
        snprintf(text, sizeof text, "%s, topic %s: %s", k->url.label, k->topic, said);
    }
    kafka_answer_all(k, status, text);
}

void kafka_answer_recover(struct kafka_sink *k)
{
    bool all_back = k->n_sent == 0 || broker_now(&k->b) >= k->break_by;
    if (!k->breaking || !all_back)
        return;
    struct kafka_item *last = NULL;
    size_t n = 0, bytes = 0;
    for (struct in_flight *f = k->b.window.first; f; f = f->next) {
        struct kafka_item *it = (struct kafka_item *)f;
        if (it->state != ITEM_REFUSED)
            continue;
        n++;
        last = it;
        bytes += f->bytes;
    }
    if (n > 0)
        blame_refused(k, n, last, bytes);
    else
        give_up(k);
}
