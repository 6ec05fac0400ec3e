#include "rabbit/conn.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/num.h"

#define HEAD 7 /* type, channel, size */
#define AROUND (HEAD + 1)
#define FRAME_END 0xCE
#define CONTENT_HEAD 12 /* size of class, weight and body size in a header frame */
#define BASIC_CLASS 60
#define ENTRY_ROOM 16 /* bytes of a table entry besides its strings; enough for any number */

/* Reading */

/* The unread rest of a frame. After a read past the end, `bad` stays set, and all further values
 * are zero or empty. */
struct cursor {
    struct str rest;
    bool bad;
};

/* Consumes n bytes. */
static struct str take(struct cursor *c, size_t n)
{
    if (c->bad || c->rest.n < n) {
        c->bad = true;
        return (struct str){0};
    }
    struct str s = {c->rest.p, n};
    c->rest.p += n;
    c->rest.n -= n;
    return s;
}

/* Reads an unsigned big-endian number of up to 8 bytes. */
static uint64_t number(struct cursor *c, size_t bytes)
{
    struct str s = take(c, bytes);
    uint64_t v = 0;
    for (size_t i = 0; i < s.n; i++)
        v = v << 8 | (unsigned char)s.p[i];
    return v;
}

/* Reads a string preceded by its length, a number of `bytes` bytes. */
static struct str text(struct cursor *c, size_t bytes)
{
    return take(c, (size_t)number(c, bytes));
}

ssize_t rabbit_frame_next(struct str in, size_t max, struct rabbit_frame *ret, struct error *err)
{
    struct cursor c = {.rest = in};
    if (in.n == 0)
        return 0;
    uint64_t type = (unsigned char)in.p[0];
    if (type == 'A')
        return err_set(err, ERR_INVALID, "the broker speaks a version of AMQP other than 0-9-1");
    bool known = type == RABBIT_METHOD || type == RABBIT_HEADER || type == RABBIT_BODY ||
                 type == RABBIT_HEARTBEAT;
    if (!known)
        return err_set(err, ERR_INVALID, "the server does not speak AMQP 0-9-1");
    if (in.n < HEAD)
        return 0;

    number(&c, 1);
    uint16_t channel = (uint16_t)number(&c, 2);
    size_t size = (size_t)number(&c, 4);
    if (size + AROUND > max)
        return err_set(err, ERR_INVALID,
                       "the broker sent a frame of %zu bytes; the negotiated limit is %zu",
                       size + AROUND, max);
    if (in.n < size + AROUND)
        return 0;
    if ((unsigned char)in.p[HEAD + size] != FRAME_END)
        return err_set(err, ERR_INVALID, "the broker sent a frame without an end marker");
    *ret = (struct rabbit_frame){(enum rabbit_frame_type)type, channel, {in.p + HEAD, size}};
    return (ssize_t)(size + AROUND);
}

/* Returns whether a server may send this method to a client that publishes or consumes. Only
 * connection.start contains a table, in a small frame, so nesting cannot become deep enough to harm
 * the decoder. */
static bool is_expected(amqp_method_number_t id)
{
    static const amqp_method_number_t expected[] = {
        AMQP_CONNECTION_START_METHOD,     AMQP_CONNECTION_TUNE_METHOD,
        AMQP_CONNECTION_OPEN_OK_METHOD,   AMQP_CONNECTION_CLOSE_METHOD,
        AMQP_CONNECTION_CLOSE_OK_METHOD,  AMQP_CONNECTION_BLOCKED_METHOD,
        AMQP_CONNECTION_UNBLOCKED_METHOD, AMQP_CHANNEL_OPEN_OK_METHOD,
        AMQP_CHANNEL_CLOSE_METHOD,        AMQP_CHANNEL_CLOSE_OK_METHOD,
        AMQP_CHANNEL_FLOW_METHOD,         AMQP_CONFIRM_SELECT_OK_METHOD,
        AMQP_EXCHANGE_DECLARE_OK_METHOD,  AMQP_QUEUE_DECLARE_OK_METHOD,
        AMQP_QUEUE_BIND_OK_METHOD,        AMQP_BASIC_ACK_METHOD,
        AMQP_BASIC_NACK_METHOD,           AMQP_BASIC_RETURN_METHOD,
        AMQP_BASIC_QOS_OK_METHOD,         AMQP_BASIC_CONSUME_OK_METHOD,
        AMQP_BASIC_CANCEL_METHOD,         AMQP_BASIC_DELIVER_METHOD,
    };
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        if (id == expected[i])
            return true;
    }
    return false;
}

int rabbit_frame_method(const struct rabbit_frame *f, amqp_pool_t *pool, amqp_method_t *ret,
                        struct error *err)
{
    struct cursor c = {.rest = f->payload};
    amqp_method_number_t id = (amqp_method_number_t)number(&c, 4);
    bool fits = !c.bad && f->payload.n + AROUND <= RABBIT_FRAME_MIN;
    if (!fits || !is_expected(id))
        return err_set(err, ERR_INVALID, "the broker sent an unexpected method");

    void *decoded = NULL;
    if (amqp_decode_method(id, pool, rabbit_bytes(c.rest), &decoded) < 0 || !decoded)
        return err_set(err, ERR_INVALID, "the broker sent an invalid method");
    *ret = (amqp_method_t){.id = id, .decoded = decoded};
    return 0;
}

/* Reads the properties in the order of their flags. */
int rabbit_frame_header(const struct rabbit_frame *f, struct rabbit_header *ret, struct error *err)
{
    struct cursor c = {.rest = f->payload};
    struct rabbit_header h = {0};
    uint64_t class = number(&c, 2);
    number(&c, 2); /* weight: unused */
    h.body_size = number(&c, 8);
    uint64_t flags = number(&c, 2);
    bool more_flags = flags & 1;

    if (flags & AMQP_BASIC_CONTENT_TYPE_FLAG)
        h.content_type = text(&c, 1);
    if (flags & AMQP_BASIC_CONTENT_ENCODING_FLAG)
        text(&c, 1);
    if (flags & AMQP_BASIC_HEADERS_FLAG)
        h.table = text(&c, 4);
    if (flags & AMQP_BASIC_DELIVERY_MODE_FLAG)
        number(&c, 1);
    if (flags & AMQP_BASIC_PRIORITY_FLAG)
        number(&c, 1);
    if (flags & AMQP_BASIC_CORRELATION_ID_FLAG)
        text(&c, 1);
    if (flags & AMQP_BASIC_REPLY_TO_FLAG)
        text(&c, 1);
    if (flags & AMQP_BASIC_EXPIRATION_FLAG)
        text(&c, 1);
    if (flags & AMQP_BASIC_MESSAGE_ID_FLAG)
        h.message_id = text(&c, 1);
    if (flags & AMQP_BASIC_TIMESTAMP_FLAG)
        number(&c, 8);
    if (flags & AMQP_BASIC_TYPE_FLAG)
        h.type = text(&c, 1);

    if (c.bad || class != BASIC_CLASS || more_flags)
        return err_set(err, ERR_INVALID, "the broker sent a message with an invalid header frame");
    *ret = h;
    return 0;
}

/* Returns the size of a value of this kind; 0 if its length precedes it; -1 for an unknown kind. */
static int fixed_size(char kind)
{
    static const struct {
        const char *kinds;
        int size;
    } sizes[] = {
        {"tbB", 1},  /* boolean, integers */
        {"su", 2},   /* integers */
        {"Iif", 4},  /* integers, float */
        {"D", 5},    /* decimal: a scale, and four bytes */
        {"lLdT", 8}, /* integers, double, time */
        {"SxAF", 0}, /* text, bytes, array, table */
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (memchr(sizes[i].kinds, kind, strlen(sizes[i].kinds)))
            return sizes[i].size;
    return -1;
}

/* Formats a value of fixed size; returns false if it has no textual form. */
static bool show_number(struct cursor *c, char kind, int size, char out[32])
{
    if (kind == 'D') {
        take(c, 5);
        return false;
    }
    uint64_t v = number(c, (size_t)size);
    int unused = 64 - size * 8;
    switch (kind) {
    case 't': snprintf(out, 32, "%s", v ? "true" : "false"); return true;
    case 'b':
    case 's':
    case 'I':
    case 'l': snprintf(out, 32, "%" PRId64, (int64_t)(v << unused) >> unused); return true;
    case 'f':
    case 'd': return false;
    default: snprintf(out, 32, "%" PRIu64, v); return true;
    }
}

static void read_field(struct cursor *c, rabbit_field_fn *field, void *ctx)
{
    char shown[32];
    struct str name = text(c, 1);
    char kind = (char)number(c, 1);
    if (c->bad || kind == 'V')
        return;

    int size = fixed_size(kind);
    if (size < 0) {
        c->bad = true;
        return;
    }
    if (size > 0) {
        bool has_text = show_number(c, kind, size, shown);
        if (has_text && !c->bad)
            field(ctx, name, str_of(shown));
        return;
    }
    struct str value = text(c, 4);
    bool is_text = kind == 'S' || kind == 'x';
    if (is_text && !c->bad)
        field(ctx, name, value);
}

int rabbit_frame_fields(struct str table, rabbit_field_fn *field, void *ctx, struct error *err)
{
    struct cursor c = {.rest = table};
    while (c.rest.n > 0 && !c.bad)
        read_field(&c, field, ctx);
    if (c.bad)
        return err_set(err, ERR_INVALID, "the broker sent invalid headers");
    return 0;
}

/* Writing */

static void put_number(char *to, uint64_t v, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        to[i] = (char)(v >> 8 * (bytes - 1 - i));
}

/* Writes the head of a frame before its payload of n bytes, which is already in place, and the end
 * marker after it. */
static void put_frame(struct buf *b, enum rabbit_frame_type type, uint16_t channel, size_t n)
{
    char *to = b->p + b->n;
    put_number(to, type, 1);
    put_number(to + 1, channel, 2);
    put_number(to + 3, n, 4);
    to[HEAD + n] = (char)FRAME_END;
    b->n += n + AROUND;
}

void rabbit_frame_put_method(struct buf *b, uint16_t channel, amqp_method_number_t id, void *m)
{
    char *to = buf_reserve(b, RABBIT_FRAME_MIN);
    if (!to)
        return;
    amqp_bytes_t room = {.len = RABBIT_FRAME_MIN - AROUND - 4, .bytes = to + HEAD + 4};
    int n = amqp_encode_method(id, m, room);
    if (n < 0) {
        b->failed = true;
        return;
    }
    put_number(to + HEAD, id, 4);
    put_frame(b, RABBIT_METHOD, channel, (size_t)n + 4);
}

void rabbit_frame_put_heartbeat(struct buf *b)
{
    if (buf_reserve(b, AROUND))
        put_frame(b, RABBIT_HEARTBEAT, 0, 0);
}

/* Returns an upper bound on the size of the properties. */
static size_t properties_room(const amqp_basic_properties_t *p)
{
    size_t n = 64 + 8 * RABBIT_SHORT_MAX;
    for (int i = 0; i < p->headers.num_entries; i++) {
        const amqp_table_entry_t *e = &p->headers.entries[i];
        n += e->key.len + ENTRY_ROOM;
        if (e->value.kind == AMQP_FIELD_KIND_UTF8)
            n += e->value.value.bytes.len;
    }
    return n;
}

static void put_body(struct buf *b, uint16_t channel, struct str body, size_t frame_max)
{
    size_t most = frame_max - AROUND;
    while (body.n > 0) {
        size_t n = min_size(body.n, most);
        char *to = buf_reserve(b, n + AROUND);
        if (!to)
            return;
        memcpy(to + HEAD, body.p, n);
        put_frame(b, RABBIT_BODY, channel, n);
        body.p += n;
        body.n -= n;
    }
}

int rabbit_frame_put_content(struct buf *b, uint16_t channel, amqp_basic_properties_t *p,
                             struct str body, size_t frame_max, struct error *err)
{
    size_t room = properties_room(p);
    char *to = buf_reserve(b, room + CONTENT_HEAD + AROUND);
    if (!to)
        return 0;
    amqp_bytes_t at = {.len = room, .bytes = to + HEAD + CONTENT_HEAD};
    int n = amqp_encode_properties(BASIC_CLASS, p, at);
    size_t whole = (size_t)n + CONTENT_HEAD + AROUND;
    if (n < 0 || whole > frame_max)
        return err_set(
            err, ERR_INVALID,
            "the message's headers take %zu bytes; the broker's limit for a frame is %zu",
            n < 0 ? room : whole, frame_max);

    put_number(to + HEAD, BASIC_CLASS, 2);
    put_number(to + HEAD + 2, 0, 2);
    put_number(to + HEAD + 4, body.n, 8);
    put_frame(b, RABBIT_HEADER, channel, (size_t)n + CONTENT_HEAD);
    put_body(b, channel, body, frame_max);
    return 0;
}
