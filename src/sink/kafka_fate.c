/* kafka_fate.c: what each answer of the library, or of a broker, means for the events.
 * docs/brokers.md has the same table for people, and a test compares them. */
#include <stdio.h>

#include "base/text.h"
#include "sink/kafka_impl.h"

/* The name of a code, its fate, and what to do about it. */
#define ROW(name, fate, advice) \
    { \
        RD_KAFKA_RESP_ERR_##name, fate, advice \
    }

#define LOG_IN "look at USER@, password-file and sasl"
#define RIGHTS "the user needs the rights WRITE and DESCRIBE on the topic"
#define REPLICAS_AWAY "too few replicas are in sync: see min.insync.replicas"

const struct kafka_answer kafka_fate_table[] = {
    /* Of the server: the brokers, the way to them, or the state of a partition, which passes by
     * itself. */
    ROW(_TRANSPORT, KAFKA_AWAY, NULL),
    ROW(_ALL_BROKERS_DOWN, KAFKA_AWAY, NULL),
    ROW(_RESOLVE, KAFKA_AWAY, NULL),
    ROW(_TIMED_OUT, KAFKA_AWAY, NULL),
    ROW(_TIMED_OUT_QUEUE, KAFKA_AWAY, NULL),
    ROW(_MSG_TIMED_OUT, KAFKA_AWAY, NULL),
    ROW(_WAIT_COORD, KAFKA_AWAY, NULL),
    ROW(LEADER_NOT_AVAILABLE, KAFKA_AWAY, NULL),
    ROW(NOT_LEADER_FOR_PARTITION, KAFKA_AWAY, NULL),
    ROW(REQUEST_TIMED_OUT, KAFKA_AWAY, NULL),
    ROW(BROKER_NOT_AVAILABLE, KAFKA_AWAY, NULL),
    ROW(NETWORK_EXCEPTION, KAFKA_AWAY, NULL),
    ROW(COORDINATOR_LOAD_IN_PROGRESS, KAFKA_AWAY, NULL),
    ROW(COORDINATOR_NOT_AVAILABLE, KAFKA_AWAY, NULL),
    ROW(NOT_COORDINATOR, KAFKA_AWAY, NULL),
    ROW(KAFKA_STORAGE_ERROR, KAFKA_AWAY, "the broker's disk is full or broken"),
    ROW(THROTTLING_QUOTA_EXCEEDED, KAFKA_AWAY, NULL),
    ROW(NOT_ENOUGH_REPLICAS, KAFKA_AWAY, REPLICAS_AWAY),
    ROW(NOT_ENOUGH_REPLICAS_AFTER_APPEND, KAFKA_AWAY, REPLICAS_AWAY),
    ROW(_ISR_INSUFF, KAFKA_AWAY, REPLICAS_AWAY),

    /* Of the server: who we are to it. As with a password that is being rotated, waiting may
     * help. */
    ROW(_AUTHENTICATION, KAFKA_AWAY, LOG_IN),
    ROW(SASL_AUTHENTICATION_FAILED, KAFKA_AWAY, LOG_IN),
    ROW(UNSUPPORTED_SASL_MECHANISM, KAFKA_AWAY, LOG_IN),
    ROW(ILLEGAL_SASL_STATE, KAFKA_AWAY, LOG_IN),
    ROW(_SSL, KAFKA_AWAY, "look at ca, cert and key"),
    ROW(CLUSTER_AUTHORIZATION_FAILED, KAFKA_AWAY,
        "the user needs the right IDEMPOTENT_WRITE on the cluster, or WRITE on a topic"),
    ROW(TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KAFKA_AWAY,
        "the user needs the rights WRITE and DESCRIBE on the transactional id"),
    ROW(GROUP_AUTHORIZATION_FAILED, KAFKA_AWAY, NULL),

    /* Of the topic. A right that is missing for it is one of these. */
    ROW(TOPIC_AUTHORIZATION_FAILED, KAFKA_TOPIC, RIGHTS),
    ROW(UNKNOWN_TOPIC_OR_PART, KAFKA_TOPIC, "make the topic, or set create=on"),
    ROW(_UNKNOWN_TOPIC, KAFKA_TOPIC, "make the topic, or set create=on"),
    ROW(_UNKNOWN_PARTITION, KAFKA_TOPIC, "the topic has lost partitions"),
    ROW(TOPIC_EXCEPTION, KAFKA_TOPIC, "the topic's name is not valid, or it is internal"),
    ROW(POLICY_VIOLATION, KAFKA_TOPIC, "a policy of the cluster forbids it"),
    ROW(UNSUPPORTED_FOR_MESSAGE_FORMAT, KAFKA_TOPIC,
        "the topic keeps messages in a format older than 0.11, which has no headers"),
    ROW(INVALID_REQUIRED_ACKS, KAFKA_TOPIC, NULL),

    /* Of the event, or one that travelled with it. */
    ROW(MSG_SIZE_TOO_LARGE, KAFKA_REFUSED, "see max.message.bytes of the topic"),
    ROW(INVALID_MSG_SIZE, KAFKA_REFUSED, NULL),
    ROW(RECORD_LIST_TOO_LARGE, KAFKA_REFUSED, "see segment.bytes of the topic"),
    ROW(INVALID_RECORD, KAFKA_REFUSED, "a compacted topic takes only events with a key"),
    ROW(INVALID_TIMESTAMP, KAFKA_REFUSED, "see message.timestamp.after.max.ms of the topic"),

    /* What follows from another one's end, or from the end of a producer. */
    ROW(_GAPLESS_GUARANTEE, KAFKA_WITH, NULL),
    ROW(_FATAL, KAFKA_WITH, NULL),
    ROW(_PURGE_QUEUE, KAFKA_WITH, NULL),
    ROW(_PURGE_INFLIGHT, KAFKA_WITH, NULL),
    ROW(_DESTROY, KAFKA_WITH, NULL),
    ROW(_STATE, KAFKA_WITH, NULL),
    ROW(_INCONSISTENT, KAFKA_WITH, NULL),
    ROW(OUT_OF_ORDER_SEQUENCE_NUMBER, KAFKA_WITH, NULL),
    ROW(DUPLICATE_SEQUENCE_NUMBER, KAFKA_WITH, NULL),
    ROW(UNKNOWN_PRODUCER_ID, KAFKA_WITH, NULL),
    ROW(INVALID_PRODUCER_EPOCH, KAFKA_WITH, NULL),
    ROW(INVALID_PRODUCER_ID_MAPPING, KAFKA_WITH, NULL),
    ROW(INVALID_TXN_STATE, KAFKA_WITH, NULL),
    ROW(CONCURRENT_TRANSACTIONS, KAFKA_WITH, NULL),
    ROW(_FENCED, KAFKA_WITH, "another relay has taken over"),
    ROW(PRODUCER_FENCED, KAFKA_WITH, "another relay has taken over"),
    ROW(TRANSACTION_COORDINATOR_FENCED, KAFKA_WITH, NULL),

    /* Of the set-up. */
    ROW(_UNSUPPORTED_FEATURE, KAFKA_SETUP, "the brokers must be Kafka 0.11 or newer"),
    ROW(UNSUPPORTED_VERSION, KAFKA_SETUP, "the brokers must be Kafka 0.11 or newer"),
    ROW(UNSUPPORTED_COMPRESSION_TYPE, KAFKA_SETUP, "the brokers do not know this compression"),
    ROW(SECURITY_DISABLED, KAFKA_SETUP, NULL),
};

const size_t kafka_fate_rows = sizeof kafka_fate_table / sizeof kafka_fate_table[0];

const struct kafka_answer *kafka_fate_of(rd_kafka_resp_err_t code)
{
    static const struct kafka_answer other = {RD_KAFKA_RESP_ERR_UNKNOWN, KAFKA_AWAY, NULL};
    static const struct kafka_answer none = {RD_KAFKA_RESP_ERR_NO_ERROR, KAFKA_STORED, NULL};
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR)
        return &none;
    for (size_t i = 0; i < kafka_fate_rows; i++) {
        if (kafka_fate_table[i].code == code)
            return &kafka_fate_table[i];
    }
    return &other;
}

void kafka_fate_text(rd_kafka_resp_err_t code, char out[KAFKA_TEXT])
{
    const char *advice = kafka_fate_of(code)->advice;
    if (advice)
        snprintf(out, KAFKA_TEXT, "%s: %s (%s)", rd_kafka_err2name(code), rd_kafka_err2str(code),
                 advice);
    else
        snprintf(out, KAFKA_TEXT, "%s: %s", rd_kafka_err2name(code), rd_kafka_err2str(code));
    text_clean(out, KAFKA_TEXT, out, strlen(out));
}
