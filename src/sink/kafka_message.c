/* kafka_message.c: an event as a message of Kafka: its topic, key, value and headers. */
#include <stdio.h>
#include <stdlib.h>

#include "sink/kafka_impl.h"

/* is_legal says whether Kafka allows the character in the name of a topic. */
static bool is_legal(char c)
{
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    bool digit = c >= '0' && c <= '9';
    return letter || digit || c == '.' || c == '_' || c == '-';
}

/* escape copies a name with every byte that Kafka does not allow in a topic as _XX. Returns false
 * if it is too long. */
static bool escape(struct str from, char to[KAFKA_TOPIC_MAX + 1])
{
    size_t n = 0;
    for (size_t i = 0; i < from.n; i++) {
        char c = from.p[i];
        bool legal = is_legal(c);
        size_t takes = legal ? 1 : 3;
        if (n + takes > KAFKA_TOPIC_MAX)
            return false;
        if (legal)
            to[n] = c;
        else
            snprintf(to + n, 4, "_%02X", (unsigned char)c);
        n += takes;
    }
    to[n] = '\0';
    return true;
}

static bool is_reserved(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

const char *kafka_message_topic(struct kafka_sink *k, const struct event *ev, struct error *err)
{
    if (k->fixed && k->topic[0] != '\0')
        return k->topic;
    buf_clear(&k->topic_name);
    if (template_write(k->name, ev, &k->topic_name, err) != 0)
        return NULL;
    struct str made = {k->topic_name.p, k->topic_name.n};
    if (!escape(made, k->topic)) {
        err_set(err, ERR_INVALID, "the name of its topic would have more than %d characters",
                KAFKA_TOPIC_MAX);
        k->topic[0] = '\0';
        return NULL;
    }
    if (is_reserved(k->topic)) {
        err_set(err, ERR_INVALID, "its topic would be called %s", k->topic);
        k->topic[0] = '\0';
        return NULL;
    }
    return k->topic;
}

/* headers_of copies the headers of a message; NULL without memory. The producer takes them over. */
static rd_kafka_headers_t *headers_of(const struct message *m)
{
    rd_kafka_headers_t *all = rd_kafka_headers_new(m->n + 1);
    if (!all)
        return NULL;
    for (size_t i = 0; i < m->n; i++) {
        const struct message_header *h = &m->headers[i];
        rd_kafka_header_add(all, h->name.p, (ssize_t)h->name.n, h->value.p, (ssize_t)h->value.n);
    }
    if (m->content_type.p)
        rd_kafka_header_add(all, "content-type", -1, m->content_type.p, (ssize_t)m->content_type.n);
    return all;
}

/* add_name adds the header by which kafka_tail.c finds an event again. */
static void add_name(rd_kafka_headers_t *headers, const char *consumer, struct str id)
{
    char name[512];
    int n = snprintf(name, sizeof name, "%s/%.*s", consumer, (int)id.n, id.p);
    rd_kafka_header_add(headers, KAFKA_TAIL_HEADER, -1, name, n);
}

/* produce hands a message over. The library copies key and value: they belong to the event, which
 * may be gone before a producer is. A message without a key has none at all: an empty one would
 * put all of them into one partition. */
static rd_kafka_resp_err_t produce(struct kafka_sink *k, const struct message *m, size_t i,
                                   rd_kafka_headers_t *headers)
{
    const struct slot *s = kafka_slot(k, i);
    rd_kafka_vu_t v[7] = {
        {.vtype = RD_KAFKA_VTYPE_OPAQUE, .u.ptr = (void *)(uintptr_t)i},
        {.vtype = RD_KAFKA_VTYPE_MSGFLAGS, .u.i = RD_KAFKA_MSG_F_COPY},
        {.vtype = RD_KAFKA_VTYPE_VALUE,
         .u.mem = {.ptr = (void *)(uintptr_t)m->value.p, .size = m->value.n}},
        {.vtype = RD_KAFKA_VTYPE_HEADERS, .u.headers = headers},
    };
    size_t n = 4;
    if (s->topic)
        v[n++] = (rd_kafka_vu_t){.vtype = RD_KAFKA_VTYPE_TOPIC, .u.cstr = s->topic};
    else
        v[n++] = (rd_kafka_vu_t){.vtype = RD_KAFKA_VTYPE_RKT, .u.rkt = k->p->topic};
    if (m->key.p)
        v[n++] = (rd_kafka_vu_t){
            .vtype = RD_KAFKA_VTYPE_KEY,
            .u.mem = {.ptr = (void *)(uintptr_t)m->key.p, .size = m->key.n},
        };

    rd_kafka_error_t *error = rd_kafka_produceva(k->p->rk, v, n);
    if (!error)
        return RD_KAFKA_RESP_ERR_NO_ERROR;
    rd_kafka_resp_err_t code = rd_kafka_error_code(error);
    rd_kafka_error_destroy(error);
    return code;
}

int kafka_message_produce(struct kafka_sink *k, size_t i, struct error *err)
{
    const struct slot *s = kafka_slot(k, i);
    struct message m;
    const char *topic = s->topic ? s->topic : k->topic;
    if (message_make(&k->style, s->d->ev, str_of(topic), str_of(k->base.cfg.consumer),
                     s->d->attempt, &k->text, &m, err) != 0)
        return -1;
    rd_kafka_headers_t *headers = headers_of(&m);
    if (!headers)
        return err_nomem(err);
    if (k->set.dedupe)
        add_name(headers, k->base.cfg.consumer, s->d->ev->id);

    rd_kafka_resp_err_t code = produce(k, &m, i, headers);
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR)
        return 0;
    rd_kafka_headers_destroy(headers);
    char text[KAFKA_TEXT];
    kafka_fate_text(code, text);
    return err_class(err, ERR_UNAVAILABLE, CLASS_NONE, code, "%s", text);
}
