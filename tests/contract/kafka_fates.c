/* kafka_fates.c: the table of answers, tested with answers from the mock cluster. */
#include <stdio.h>
#include <stdlib.h>

#include "kafka_peer.h"
#include "sink/kafka_impl.h"

/* tried tells whether a broker can answer a produce request so and the library passes the answer
 * on. It handles some itself (by asking for the leader, or waiting) until our time limit. */
static bool is_final(rd_kafka_resp_err_t code)
{
    switch (code) {
    case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
    case RD_KAFKA_RESP_ERR_INVALID_RECORD:
    case RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP:
    case RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE:
    case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR_UNSUPPORTED_FOR_MESSAGE_FORMAT:
    case RD_KAFKA_RESP_ERR_UNSUPPORTED_COMPRESSION_TYPE:
    case RD_KAFKA_RESP_ERR_POLICY_VIOLATION: return true;
    default: return false;
    }
}

static enum sink_status status_of(enum kafka_meaning meaning)
{
    switch (meaning) {
    case KAFKA_REFUSED: return SINK_REJECT;
    case KAFKA_SETUP: return SINK_FATAL;
    case KAFKA_STORED: return SINK_DELIVERED;
    case KAFKA_TOPIC: return SINK_REFUSED;
    case KAFKA_UNAVAILABLE:
    case KAFKA_CONSEQUENCE: break;
    }
    return SINK_DOWN;
}

static void every_error_code_has_the_documented_outcome(void **state)
{
    struct peer *p = *state;
    size_t tried = 0;
    open_topic(p, p->topic);
    assert_int_equal(run_one(p, "\"first\"")->status, SINK_DELIVERED);
    for (size_t i = 0; i < kafka_answer_rows; i++) {
        const struct kafka_answer *a = &kafka_answers[i];
        if (!is_final(a->code))
            continue;
        /* A refusal counts only against an event that is refused alone, so it arrives twice. */
        tell("errors %d %d %d", API_PRODUCE, a->code, a->code);
        struct sink_item *it = run_one(p, "1");
        tell("clear %d", API_PRODUCE);
        if (it->status != status_of(a->meaning))
            fail_msg("%s: %d, %s", rd_kafka_err2name(a->code), it->status, it->text);
        sink_assert_says(it, rd_kafka_err2name(a->code));
        tried++;
    }
    assert_int_equal(tried, 9);
    assert_int_equal(run_one(p, "\"last\"")->status, SINK_DELIVERED);
}

/* No event is buried for an unforeseen error. */
static void unknown_error_code_is_down(void **state)
{
    struct peer *p = *state;
    open_topic(p, p->topic);
    assert_int_equal(run_one(p, "\"first\"")->status, SINK_DELIVERED);
    tell("errors %d %d", API_PRODUCE, RD_KAFKA_RESP_ERR_INVALID_SESSION_TIMEOUT);
    assert_int_equal(run_one(p, "1")->status, SINK_DOWN);
    sink_rig_passes_again(&p->rig);
}

static const struct CMUnitTest tests[] = {
    OWN(every_error_code_has_the_documented_outcome),
    OWN(unknown_error_code_is_down),
};

const struct suite_part kafka_fates_tests = SUITE_PART(tests);
