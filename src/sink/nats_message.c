/* nats_message.c: an event as a NATS message, with the headers that JetStream uses. */
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "sink/nats_impl.h"
#include "sink/nats_subject.h"

#define HEADERS_MAX 65535 /* bytes, as counted by the server */
#define LINE_EXTRA 4      /* ": " and the line's end */
#define HEAD_EXTRA 12     /* "NATS/1.0", its line's end, and that of the last line */

/* State of building a message. (1) `bytes` is the size of its headers on the wire. */
struct nats_making {
    struct nats_sink *n;
    natsMsg *msg;
    size_t bytes;
};

/* Appends a header's name. Characters not allowed in one are percent-encoded, and so is the N of
 * Nats-: an event must not be able to control the server. */
static void add_name(struct buf *b, struct str name)
{
    bool steers = name.n >= 5 && strncasecmp(name.p, "nats-", 5) == 0;
    for (size_t i = 0; i < name.n; i++) {
        unsigned char c = (unsigned char)name.p[i];
        bool fits = c > ' ' && c < 0x7f && c != ':' && c != '%';
        if (fits && !(steers && i == 0))
            buf_addc(b, (char)c);
        else
            buf_addf(b, "%%%02X", c);
    }
}

/* Appends a header's value. A CloudEvents attribute is percent-encoded as its binding requires;
 * other values only where a character would end the line or be trimmed. */
static void add_value(struct buf *b, struct str v, bool attribute)
{
    for (size_t i = 0; i < v.n; i++) {
        unsigned char c = (unsigned char)v.p[i];
        bool cut_off = c == ' ' && (i == 0 || i + 1 == v.n);
        bool unfit = c < ' ' || c == 0x7f || cut_off;
        if (attribute)
            unfit = c <= ' ' || c >= 0x7f || c == '"' || c == '%';
        if (unfit)
            buf_addf(b, "%%%02X", c);
        else
            buf_addc(b, (char)c);
    }
}

static int set_header(struct nats_making *m, const char *name, const char *value, struct error *err)
{
    m->bytes += strlen(name) + strlen(value) + LINE_EXTRA;
    if (natsMsgHeader_Set(m->msg, name, value) != NATS_OK)
        return err_nomem(err);
    return 0;
}

/* Adds a header of the event. One without a value is left out: libnats would parse the next header
 * as its value. */
static int add_header(struct nats_making *m, const struct message_header *h, struct error *err)
{
    struct buf *b = &m->n->header;
    if (h->name.n == 0 || h->value.n == 0)
        return 0;
    buf_clear(b);
    add_name(b, h->name);
    buf_addc(b, '\0');
    size_t at = b->n;
    add_value(b, h->value, m->n->style.format == MESSAGE_CLOUDEVENTS);
    buf_addc(b, '\0');
    if (b->full)
        return err_set(err, ERR_INVALID, "its header %.*s is too long", (int)h->name.n, h->name.p);
    if (b->failed)
        return err_nomem(err);
    return set_header(m, b->p, b->p + at, err);
}

struct str nats_message_id(struct nats_sink *n, const struct event *ev)
{
    struct buf *b = &n->header;
    buf_clear(b);
    buf_addstr(b, ev->id);
    if (n->set.msg_id == NATS_ID_CONSUMER) {
        buf_addc(b, ':');
        add_value(b, str_of(n->b.base.cfg.consumer), false);
    }
    const char *text = buf_cstr(b);
    return (struct str){text ? text : "", text ? b->n : 0};
}

/* Adds the header that states which message must be the stream's last for this one to be stored.
 * The size counts the longer of the two possible headers, so that whether an event fits does not
 * depend on what came before it. */
static int add_chain(struct nats_making *m, size_t id_length, struct error *err)
{
    static const char by_id[] = "Nats-Expected-Last-Msg-Id";
    struct nats_sink *n = m->n;
    char seq[24];
    natsStatus s;
    if (!n->set.exclusive)
        return 0;
    m->bytes += sizeof by_id + id_length + LINE_EXTRA;
    snprintf(seq, sizeof seq, "%llu", (unsigned long long)n->chain.seq);
    if (n->chain.anchored)
        s = natsMsgHeader_Set(m->msg, by_id, n->chain.id);
    else
        s = natsMsgHeader_Set(m->msg, "Nats-Expected-Last-Sequence", seq);
    return s == NATS_OK ? 0 : err_nomem(err);
}

/* Leaves the event's id in n->header, for nats_message_sent. */
static int add_headers(struct nats_making *m, const struct event *ev, const struct message *msg,
                       struct error *err)
{
    for (size_t i = 0; i < msg->n; i++)
        if (add_header(m, &msg->headers[i], err) != 0)
            return -1;
    if (msg->content_type.p) {
        char type[80];
        snprintf(type, sizeof type, "%.*s", (int)msg->content_type.n, msg->content_type.p);
        bool attribute = m->n->style.format == MESSAGE_CLOUDEVENTS;
        if (attribute && set_header(m, "ce-datacontenttype", type, err) != 0)
            return -1;
        if (set_header(m, "content-type", type, err) != 0)
            return -1;
    }
    if (set_header(m, "Nats-Expected-Stream", m->n->set.stream, err) != 0)
        return -1;

    struct str id = nats_message_id(m->n, ev);
    if (id.n == 0)
        return err_nomem(err); /* without it, a resent event would be stored twice */
    if (add_chain(m, id.n, err) != 0)
        return -1;
    return set_header(m, "Nats-Msg-Id", id.p, err);
}

/* Refuses what the server would refuse: after its refusal, a chain would have to be sent again. */
static int check_size(const struct nats_making *m, size_t payload, struct error *err)
{
    const struct nats_sink *n = m->n;
    size_t whole = HEAD_EXTRA + m->bytes + payload;
    int64_t most = n->max_payload;
    const char *whose = "the server's max_payload";
    if (n->stream->max_msg_size && n->stream->max_msg_size < most) {
        most = n->stream->max_msg_size;
        whose = "the stream's max_msg_size";
    }
    if (HEAD_EXTRA + m->bytes > HEADERS_MAX)
        return err_set(err, ERR_INVALID, "its headers take %zu bytes; NATS allows %d",
                       HEAD_EXTRA + m->bytes, HEADERS_MAX);
    if (most > 0 && (int64_t)whole > most)
        return err_set(err, ERR_INVALID, "it takes %zu bytes; %s is %lld", whole, whose,
                       (long long)most);
    return 0;
}

int nats_message_make(struct nats_sink *n, const struct delivery *d, uint64_t token, natsMsg **ret,
                      struct error *err)
{
    struct message msg;
    char reply[NATS_REPLY_MAX];
    buf_clear(&n->name);
    if (template_write_escaped(n->subject, d->ev, nats_subject_escape, &n->name, err) != 0)
        return -1;
    const char *subject = buf_cstr(&n->name);
    if (!subject)
        return err_nomem(err);
    if (!nats_subject_whole(str_of(subject)))
        return err_set(err, ERR_INVALID,
                       "a value that its subject is made of is empty, which leaves \"%.200s\"",
                       subject);
    if (message_make(&n->style, d->ev, str_of(subject), str_of(n->b.base.cfg.consumer), d->attempt,
                     &n->text, &msg, err) != 0)
        return -1;

    struct nats_making m = {.n = n};
    nats_link_reply(n->link, token, reply);
    natsStatus s = natsMsg_Create(&m.msg, subject, reply, msg.value.p, (int)msg.value.n);
    if (s != NATS_OK)
        return err_nomem(err);
    bool made = add_headers(&m, d->ev, &msg, err) == 0 && check_size(&m, msg.value.n, err) == 0;
    if (!made) {
        natsMsg_Destroy(m.msg);
        return -1;
    }
    *ret = m.msg;
    return 0;
}

int nats_message_sent(struct nats_sink *n)
{
    if (!n->set.exclusive)
        return 0;
    char *id = strdup(n->header.p);
    if (!id)
        return -1;
    free(n->chain.id);
    n->chain.id = id;
    n->chain.anchored = true;
    return 0;
}
