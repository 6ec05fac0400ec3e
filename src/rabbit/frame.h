/* frame.h: AMQP 0-9-1 frames. librabbitmq encodes and decodes methods; the framing is our own, so
 * that a server cannot make us allocate more than one frame. */
#ifndef RABBIT_FRAME_H
#define RABBIT_FRAME_H

#include <amqp.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/err.h"

#define RABBIT_FRAME_MIN 4096 /* accepted by every peer, and the maximum for one method */
#define RABBIT_SHORT_MAX 255  /* maximum of a short string: names, routing keys, header names */

enum rabbit_frame_type {
    RABBIT_METHOD = 1,
    RABBIT_HEADER = 2,
    RABBIT_BODY = 3,
    RABBIT_HEARTBEAT = 8,
};

/* A received frame. The payload is borrowed from the read buffer. */
struct rabbit_frame {
    enum rabbit_frame_type type;
    uint16_t channel;
    struct str payload;
};

/* The contents of a header frame. Absent strings have p == NULL. */
struct rabbit_header {
    uint64_t body_size;
    struct str content_type, message_id, type;
    struct str table; /* the headers, still encoded */
};

/* rabbit_frame_next parses the first frame of `in`, of at most `max` bytes including its head and
 * end. Returns its size; 0 if it is incomplete; -1 with ERR_INVALID if it is malformed. */
ssize_t rabbit_frame_next(struct str in, size_t max, struct rabbit_frame *ret, struct error *err);

/* rabbit_frame_method decodes the method in a frame; data that it points to lives in the pool.
 * Fails with ERR_INVALID for methods that a client does not expect, or that do not decode. */
int rabbit_frame_method(const struct rabbit_frame *f, amqp_pool_t *pool, amqp_method_t *ret,
                        struct error *err);

/* rabbit_frame_header parses a header frame. Errors: ERR_INVALID. */
int rabbit_frame_header(const struct rabbit_frame *f, struct rabbit_header *ret, struct error *err);

/* A rabbit_field_fn receives one header of a message. The value is a string as received, or the
 * text of a number or boolean. */
typedef void rabbit_field_fn(void *ctx, struct str name, struct str value);

/* rabbit_frame_fields iterates over an encoded table. It skips values without a simple text, such
 * as tables and arrays. Errors: ERR_INVALID. */
int rabbit_frame_fields(struct str table, rabbit_field_fn *field, void *ctx, struct error *err);

/* rabbit_frame_put_* append one or more frames. A failure sets b->failed. */
void rabbit_frame_put_method(struct buf *b, uint16_t channel, amqp_method_number_t id, void *m);
void rabbit_frame_put_heartbeat(struct buf *b);
/* rabbit_frame_put_content appends the header of a message and its body, in frames of at most
 * frame_max bytes. If the properties do not fit into one frame, it appends nothing and returns -1
 * with ERR_INVALID. */
int rabbit_frame_put_content(struct buf *b, uint16_t channel, amqp_basic_properties_t *p,
                             struct str body, size_t frame_max, struct error *err);

static inline amqp_bytes_t rabbit_bytes(struct str s)
{
    return (amqp_bytes_t){.len = s.n, .bytes = (void *)s.p};
}

static inline struct str rabbit_str(amqp_bytes_t b)
{
    return (struct str){b.bytes, b.len};
}

#endif
