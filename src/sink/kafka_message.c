/* kafka_message.c: an event as a Kafka message: topic, key, value and headers. */
#include <stdio.h>
#include <stdlib.h>

#include "sink/kafka_impl.h"

/* Copies a name, with bytes that Kafka does not allow in a topic as _XX. Returns false if it is too
 * long. */
static bool escape_name(struct str from, char to[KAFKA_TOPIC_MAX + 1])
{
    size_t n = 0;
    for (size_t i = 0; i < from.n; i++) {
        char c = from.p[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        bool digit = c >= '0' && c <= '9';
        bool legal = letter || digit || c == '.' || c == '_' || c == '-';
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

const char *kafka_message_topic(struct kafka_sink *k, const struct event *ev, struct error *err)
{
    if (k->fixed && k->topic[0] != '\0')
        return k->topic;
    buf_clear(&k->topic_name);
    if (template_write(k->name, ev, &k->topic_name, err) != 0)
        return NULL;
    bool fits = escape_name((struct str){k->topic_name.p, k->topic_name.n}, k->topic);
    bool reserved = fits && (strcmp(k->topic, ".") == 0 || strcmp(k->topic, "..") == 0);
    if (fits && !reserved)
        return k->topic;
    if (reserved)
        err_set(err, ERR_INVALID, "its topic would be called %s", k->topic);
    else
        err_set(err, ERR_INVALID, "the name of its topic would have more than %d characters",
                KAFKA_TOPIC_MAX);
    k->topic[0] = '\0';
    return NULL;
}

/* Copies the headers of a message; NULL if out of memory. The producer takes ownership. */
static rd_kafka_headers_t *make_headers(const struct kafka_sink *k, const struct message *m,
                                        struct str id)
{
    rd_kafka_headers_t *all = rd_kafka_headers_new(m->n + 2);
    if (!all)
        return NULL;
    for (size_t i = 0; i < m->n; i++) {
        const struct message_header *h = &m->headers[i];
        rd_kafka_header_add(all, h->name.p, (ssize_t)h->name.n, h->value.p, (ssize_t)h->value.n);
    }
    if (m->content_type.p)
        rd_kafka_header_add(all, "content-type", -1, m->content_type.p, (ssize_t)m->content_type.n);
    if (k->set.dedupe) { /* used by kafka_tail.c to find the event again */
        char name[512];
        int n = snprintf(name, sizeof name, "%s/%.*s", k->b.base.cfg.consumer, (int)id.n, id.p);
        rd_kafka_header_add(all, KAFKA_TAIL_HEADER, -1, name, n);
    }
    return all;
}

/* The library copies key and value: they belong to the event, which may be freed before the
 * producer. A message without a key has none at all: an empty key would put all of them into one
 * partition. */
int kafka_message_produce(struct kafka_sink *k, struct kafka_item *it, struct error *err)
{
    struct message m;
    const struct delivery *d = it->f.d;
    const char *topic = it->topic ? it->topic : k->topic;
    if (message_make(&k->style, d->ev, str_of(topic), str_of(k->b.base.cfg.consumer), d->attempt,
                     &k->text, &m, err) != 0)
        return -1;
    rd_kafka_headers_t *headers = make_headers(k, &m, d->ev->id);
    if (!headers)
        return err_nomem(err);

    rd_kafka_vu_t v[6] = {
        {.vtype = RD_KAFKA_VTYPE_OPAQUE, .u.ptr = it},
        {.vtype = RD_KAFKA_VTYPE_MSGFLAGS, .u.i = RD_KAFKA_MSG_F_COPY},
        {.vtype = RD_KAFKA_VTYPE_VALUE,
         .u.mem = {.ptr = (void *)(uintptr_t)m.value.p, .size = m.value.n}},
        {.vtype = RD_KAFKA_VTYPE_HEADERS, .u.headers = headers},
        {.vtype = RD_KAFKA_VTYPE_RKT, .u.rkt = k->p->topic},
        {.vtype = RD_KAFKA_VTYPE_KEY,
         .u.mem = {.ptr = (void *)(uintptr_t)m.key.p, .size = m.key.n}},
    };
    if (it->topic)
        v[4] = (rd_kafka_vu_t){.vtype = RD_KAFKA_VTYPE_TOPIC, .u.cstr = it->topic};
    rd_kafka_error_t *error = rd_kafka_produceva(k->p->rk, v, m.key.p ? 6 : 5);
    if (!error)
        return 0;
    rd_kafka_resp_err_t code = rd_kafka_error_code(error);
    rd_kafka_error_destroy(error);
    rd_kafka_headers_destroy(headers);
    char text[KAFKA_TEXT];
    kafka_answer_text(code, text);
    return err_class(err, ERR_UNAVAILABLE, CLASS_NONE, code, "%s", text);
}
