/* nats_stream.h: what a link learns about its stream before the first event. */
#ifndef SINK_NATS_STREAM_H
#define SINK_NATS_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"

/* A stream as requested by the URL. Strings are owned. */
struct nats_wanted {
    char *name;
    char *subject; /* pattern of the events' subjects: "orders.>" */
    bool fixed;    /* all events have that one subject */
    bool create;   /* if it does not exist */
    int64_t replicas;
    bool exclusive;   /* no other client writes to it */
    int64_t lookback; /* how many of its last messages to check */
};

/* The Nats-Msg-Ids of the last messages of a stream, by hash. (1) The table has `cap` slots, a
 * power of two, or none; a slot with seq 0 is free. */
struct nats_tail {
    struct nats_tail_entry {
        uint64_t hash[2];
        uint64_t seq;
    } * at;
    size_t cap, n;
};

/* A stream as it exists. */
struct nats_stream {
    uint64_t first_seq, last_seq;
    int64_t max_msgs, max_bytes, max_age_ms, max_per_subject, max_msg_size; /* 0: no limit */
    int64_t replicas, duplicate_ms;
    bool discards_old, in_memory, no_ack, sealed;
    char retention[16];
    char leader[64]; /* name of the server; "" without a cluster */
    char *subjects;  /* its patterns, each followed by a blank; owned */
    struct nats_tail tail;
    char blind[160]; /* why the last messages could not be read; "" if they were */
};

/* nats_stream_read parses the server's description of a stream into *ret, which the caller
 * releases. ERR_UNAVAILABLE if it makes no sense; with CLASS_RETRY if the stream accepts no events,
 * or if all events go to one subject and the stream does not accept that. */
int nats_stream_read(struct str json, const struct nats_wanted *want, struct nats_stream *ret,
                     struct error *err);
/* nats_stream_request writes the body of the request that creates the stream. */
void nats_stream_request(struct buf *b, const struct nats_wanted *want);
/* nats_stream_caution writes which of its settings may lose or repeat events, as one line; "" if
 * none. resend_ms is how much later an event may be sent again. */
void nats_stream_caution(const struct nats_stream *st, const struct nats_wanted *want,
                         int64_t resend_ms, char *out, size_t size);

void nats_stream_release(struct nats_stream *st);
/* nats_stream_takes returns whether one of its patterns matches the subject. */
bool nats_stream_takes(const struct nats_stream *st, struct str subject);

/* nats_stream_covers returns whether a pattern, such as orders.*.created or orders.>, matches
 * everything that another one does. */
bool nats_stream_covers(struct str pattern, struct str other);

/* A tail is initialised for at most n ids, filled, searched, and released. nats_tail_init returns
 * -1 if out of memory. nats_tail_find returns the sequence of the message with that id, or 0. */
int nats_tail_init(struct nats_tail *t, size_t n);
void nats_tail_add(struct nats_tail *t, struct str id, uint64_t seq);
uint64_t nats_tail_find(const struct nats_tail *t, struct str id);
void nats_tail_release(struct nats_tail *t);

#endif
