/* nats_message.c: an event as a NATS message: its subject, and the headers that JetStream uses. */
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "sink/nats_impl.h"

#define HEADERS_MAX 65535 /* bytes, as counted by the server */
#define LINE_EXTRA 4      /* ": " and the line's end */
#define HEAD_EXTRA 12     /* "NATS/1.0", its line end, and that of the last line */

/* The subject */

/* Consumes one part of a well-formed template: a field, a doubled brace, or literal text. */
static struct str next_part(const char **p)
{
    const char *from = *p;
    size_t n = strcspn(from, "{}");
    if (n == 0 && from[0] == from[1])
        n = 2;
    else if (n == 0)
        n = strcspn(from, "}") + 1;
    *p = from + n;
    return (struct str){from, n};
}

static bool is_field(struct str part)
{
    return part.n > 2 && part.p[0] == '{' && part.p[1] != '{';
}

int nats_subject_check(const char *text, struct error *err)
{
    char room[NATS_SUBJECT_MAX + 1]; /* the subject with an x in place of each field */
    struct buf b;
    buf_init(&b, NATS_SUBJECT_MAX);
    while (*text) {
        struct str part = next_part(&text);
        if (is_field(part))
            buf_addc(&b, 'x');
        else if (part.p[0] == '{' || part.p[0] == '}')
            buf_addc(&b, part.p[0]);
        else
            buf_addstr(&b, part);
    }
    snprintf(room, sizeof room, "%.*s", (int)b.n, b.p ? b.p : "");
    bool too_long = b.failed;
    buf_release(&b);

    if (too_long)
        return err_set(err, ERR_CONFIG, "the subject is too long");
    if (room[0] == '\0')
        return err_set(err, ERR_CONFIG,
                       "the URL names no subject: write nats://HOST/SUBJECT?stream=NAME, where "
                       "SUBJECT may have " TEMPLATE_FIELDS);
    if (strpbrk(room, " \t*>"))
        return err_set(err, ERR_CONFIG,
                       "the subject \"%s\" contains a blank, * or >; an event needs a single "
                       "literal subject",
                       room);
    bool empty_token = room[0] == '.' || room[strlen(room) - 1] == '.' || strstr(room, "..");
    if (empty_token)
        return err_set(err, ERR_CONFIG, "the subject \"%s\" has an empty token between its dots",
                       room);
    if (room[0] == '$')
        return err_set(err, ERR_CONFIG, "subjects that begin with $ are reserved for the server");
    return 0;
}

/* Works token by token: a token that contains a field becomes *. A token that contains a whole
 * type, which may have any number of levels, becomes > and ends the pattern. */
void nats_subject_pattern(const char *text, struct buf *b)
{
    size_t token = b->n; /* start of the current token */
    bool any = false;    /* the token contains a field */
    while (*text) {
        struct str part = next_part(&text);
        if (str_is(part, "{type}")) {
            buf_truncate(b, token);
            buf_addc(b, '>');
            return;
        }
        if (is_field(part)) {
            any = true;
            continue;
        }
        for (size_t i = 0; i < part.n; i++) {
            bool doubled = i == 1 && (part.p[0] == '{' || part.p[0] == '}');
            if (doubled)
                continue;
            if (part.p[i] != '.') {
                buf_addc(b, part.p[i]);
                continue;
            }
            if (any) {
                buf_truncate(b, token);
                buf_addc(b, '*');
            }
            buf_addc(b, '.');
            token = b->n;
            any = false;
        }
    }
    if (any) {
        buf_truncate(b, token);
        buf_addc(b, '*');
    }
}

void nats_subject_escape(struct buf *b, struct str value, bool levels)
{
    for (size_t i = 0; i < value.n; i++) {
        unsigned char c = (unsigned char)value.p[i];
        bool inside = i > 0 && i + 1 < value.n;
        bool separates = inside && c == '.' && value.p[i - 1] != '.' && value.p[i + 1] != '.';
        bool illegal = c <= ' ' || c == 0x7f || strchr("*>%.", c);
        if (!illegal || (levels && separates))
            buf_addc(b, (char)c);
        else
            buf_addf(b, "%%%02X", c);
    }
}

bool nats_subject_whole(struct str subject)
{
    char last = '.';
    for (size_t i = 0; i < subject.n; i++) {
        bool empty = subject.p[i] == '.' && last == '.';
        if (empty)
            return false;
        last = subject.p[i];
    }
    return last != '.';
}

/* The message */

/* A message being built. `bytes` is the size of its headers on the wire. */
struct builder {
    struct nats_sink *n;
    natsMsg *msg;
    size_t bytes;
};

/* Appends a header's name. Percent-encodes characters that are not allowed in a name, and the N of
 * Nats-, because an event must not be able to control the server. */
static void add_name(struct buf *b, struct str name)
{
    bool is_servers = name.n >= 5 && strncasecmp(name.p, "nats-", 5) == 0;
    for (size_t i = 0; i < name.n; i++) {
        unsigned char c = (unsigned char)name.p[i];
        bool legal = c > ' ' && c < 0x7f && c != ':' && c != '%';
        if (legal && !(is_servers && i == 0))
            buf_addc(b, (char)c);
        else
            buf_addf(b, "%%%02X", c);
    }
}

/* Appends a header's value. A CloudEvents attribute is percent-encoded as its binding requires; in
 * any other value, only characters that would end the line or be trimmed. */
static void add_value(struct buf *b, struct str v, bool attribute)
{
    for (size_t i = 0; i < v.n; i++) {
        unsigned char c = (unsigned char)v.p[i];
        bool trimmed = c == ' ' && (i == 0 || i + 1 == v.n);
        bool illegal = c < ' ' || c == 0x7f || trimmed;
        if (attribute)
            illegal = c <= ' ' || c >= 0x7f || c == '"' || c == '%';
        if (illegal)
            buf_addf(b, "%%%02X", c);
        else
            buf_addc(b, (char)c);
    }
}

static int set_header(struct builder *m, const char *name, const char *value, struct error *err)
{
    m->bytes += strlen(name) + strlen(value) + LINE_EXTRA;
    if (natsMsgHeader_Set(m->msg, name, value) != NATS_OK)
        return err_nomem(err);
    return 0;
}

/* Adds a header of the event. Omits a header without a value: libnats would parse the next header
 * as its value. */
static int add_header(struct builder *m, const struct message_header *h, struct error *err)
{
    struct buf *b = &m->n->header;
    if (h->name.n == 0 || h->value.n == 0)
        return 0;
    buf_clear(b);
    add_name(b, h->name);
    buf_addc(b, '\0');
    size_t at = b->n;
    add_value(b, h->value, m->n->b.style.format == MESSAGE_CLOUDEVENTS);
    buf_addc(b, '\0');
    if (b->full)
        return err_set(err, ERR_INVALID, "the event's header %.*s is too long", (int)h->name.n,
                       h->name.p);
    if (b->failed)
        return err_nomem(err);
    return set_header(m, b->p, b->p + at, err);
}

struct str nats_message_id(struct nats_sink *n, const struct event *ev)
{
    struct buf *b = &n->header;
    buf_clear(b);
    buf_addstr(b, ev->id);
    if (n->plan->set.msg_id == NATS_ID_CONSUMER) {
        buf_addc(b, ':');
        add_value(b, str_of(n->b.base.cfg.consumer), false);
    }
    const char *text = buf_cstr(b);
    return (struct str){text ? text : "", text ? b->n : 0};
}

/* Adds the header that names the message that must be the stream's last when this one is stored.
 * The size counts the longer of the two possible headers, so that whether an event fits does not
 * depend on its predecessor. */
static int add_chain(struct builder *m, size_t id_length, struct error *err)
{
    static const char by_id[] = "Nats-Expected-Last-Msg-Id";
    struct nats_sink *n = m->n;
    char seq[24];
    natsStatus s;
    if (!n->plan->set.exclusive)
        return 0;
    m->bytes += sizeof by_id + id_length + LINE_EXTRA;
    snprintf(seq, sizeof seq, "%llu", (unsigned long long)n->chain.seq);
    if (n->chain.by_id)
        s = natsMsgHeader_Set(m->msg, by_id, n->chain.id);
    else
        s = natsMsgHeader_Set(m->msg, "Nats-Expected-Last-Sequence", seq);
    return s == NATS_OK ? 0 : err_nomem(err);
}

/* Adds all headers, and leaves the event's id in n->header for nats_message_sent. */
static int add_headers(struct builder *m, const struct event *ev, const struct message *msg,
                       struct error *err)
{
    for (size_t i = 0; i < msg->n; i++)
        if (add_header(m, &msg->headers[i], err) != 0)
            return -1;
    if (msg->content_type.p) {
        char type[80];
        snprintf(type, sizeof type, "%.*s", (int)msg->content_type.n, msg->content_type.p);
        bool attribute = m->n->b.style.format == MESSAGE_CLOUDEVENTS;
        if (attribute && set_header(m, "ce-datacontenttype", type, err) != 0)
            return -1;
        if (set_header(m, "content-type", type, err) != 0)
            return -1;
    }
    if (set_header(m, "Nats-Expected-Stream", m->n->plan->set.stream, err) != 0)
        return -1;

    struct str id = nats_message_id(m->n, ev);
    if (id.n == 0)
        return err_nomem(err); /* without it, a resent event would be stored twice */
    if (add_chain(m, id.n, err) != 0)
        return -1;
    return set_header(m, "Nats-Msg-Id", id.p, err);
}

/* Rejects a message that the server would refuse: after a refusal by the server, a chain would have
 * to be resent. */
static int check_size(const struct builder *m, size_t payload, struct error *err)
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
        return err_set(err, ERR_INVALID, "the message's headers take %zu bytes; NATS allows %d",
                       HEAD_EXTRA + m->bytes, HEADERS_MAX);
    if (most > 0 && (int64_t)whole > most)
        return err_set(err, ERR_INVALID, "the message takes %zu bytes; %s is %lld", whole, whose,
                       (long long)most);
    return 0;
}

const char *nats_message_subject(struct nats_sink *n, const struct event *ev, struct error *err)
{
    if (!broker_name(&n->b, ev, err).p)
        return NULL;
    const char *subject = buf_cstr(&n->b.destination);
    if (!subject)
        err_nomem(err);
    return subject;
}

int nats_message_make(struct nats_sink *n, const struct delivery *d, uint64_t token, natsMsg **ret,
                      struct error *err)
{
    struct message msg;
    char reply[sizeof n->link->inbox + 32];
    const char *subject = nats_message_subject(n, d->ev, err);
    if (!subject)
        return -1;
    if (!nats_subject_whole(str_of(subject)))
        return err_set(err, ERR_INVALID,
                       "an empty value leaves the event's subject incomplete: \"%.200s\"", subject);
    if (broker_message(&n->b, d, str_of(subject), &msg, err) != 0)
        return -1;

    struct builder m = {.n = n};
    snprintf(reply, sizeof reply, "%s.%llu", n->link->inbox, (unsigned long long)token);
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
    if (!n->plan->set.exclusive)
        return 0;
    char *id = strdup(n->header.p);
    if (!id)
        return -1;
    free(n->chain.id);
    n->chain.id = id;
    n->chain.by_id = true;
    return 0;
}
