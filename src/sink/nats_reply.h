/* nats_reply.h: parses JetStream's replies without trusting them. */
#ifndef SINK_NATS_REPLY_H
#define SINK_NATS_REPLY_H

#include "base/json.h"
#include "sink/nats_link.h"

/* nats_reply_ack parses the reply to a published message: {"stream":"S","seq":1} or
 * {"error":{"err_code":10071,"description":"..."}}. Anything else is NATS_NOT_ANSWERED. The token
 * is not set. */
struct nats_answer nats_reply_ack(struct str json);

/* nats_reply_error extracts the error from the reply to a request. False if there is none. *text is
 * cleaned. */
bool nats_reply_error(struct json o, int *ret_code, char *text, size_t size);

/* nats_reply_token parses the part after the inbox in the subject of a reply; 0 if it is not a
 * token. */
uint64_t nats_reply_token(const char *text);

/* nats_reply_place parses the subject on which a message of a stream would be acknowledged:
 * $JS.ACK.STREAM.CONSUMER.DELIVERED.SEQ.CONSUMER-SEQ.TIME.PENDING, or the longer form with domain
 * and account in front. False for anything else. */
bool nats_reply_place(const char *text, uint64_t *ret_seq, uint64_t *ret_pending);

/* nats_reply_subject extracts the subject from an error such as: Permissions Violation for Publish
 * to "orders.1". NULL if there is none, or if out of memory. The caller frees it. */
char *nats_reply_subject(const char *said);

#endif
