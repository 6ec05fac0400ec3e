/* nats_reply.h: what comes back from JetStream, read without trust. */
#ifndef SINK_NATS_REPLY_H
#define SINK_NATS_REPLY_H

#include "base/json.h"
#include "sink/nats_link.h"

/* nats_reply_ack reads the answer to a message that was published: {"stream":"S","seq":1} or
 * {"error":{"err_code":10071,"description":"..."}}. Anything else is NATS_NOT_ANSWERED. The token
 * is not set. */
struct nats_answer nats_reply_ack(struct str json);

/* nats_reply_error finds the error in the answer to a question. False if there is none. *text is
 * cleaned. */
bool nats_reply_error(struct json o, int *ret_code, char *text, size_t size);

/* nats_reply_token reads what stands after the inbox in the subject of an answer; 0 if it is no
 * token. */
uint64_t nats_reply_token(const char *text);

/* nats_reply_place reads the subject on which a message of a stream would be acknowledged:
 * $JS.ACK.STREAM.CONSUMER.DELIVERED.SEQ.CONSUMER-SEQ.TIME.PENDING, or the longer one with domain
 * and account in front. False if it is none. */
bool nats_reply_place(const char *text, uint64_t *ret_seq, uint64_t *ret_pending);

/* nats_reply_subject finds the subject in a complaint such as: Permissions Violation for Publish to
 * "orders.1". NULL if there is none, or no memory. The caller frees it. */
char *nats_reply_subject(const char *said);

#endif
