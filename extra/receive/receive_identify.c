/* receive_identify.c: which event a message contains, and in which format. */
#include "base/json.h"
#include "extra/receive/receive.h"

/* Prefixes of CloudEvents attributes in headers: those of Kafka, NATS, and AMQP, which has two. */
static const char *const prefixes[] = {"ce_", "ce-", "cloudEvents:", "cloudEvents_"};
#define PREFIXES (sizeof prefixes / sizeof prefixes[0])
#define NAME_MAX_BYTES 64

static struct str attribute(const struct message *m, const char *prefix, struct str name)
{
    char text[NAME_MAX_BYTES];
    struct buf b = {.p = text, .cap = sizeof text, .max = sizeof text};
    buf_adds(&b, prefix);
    buf_addstr(&b, name);
    return message_header_of(m, (struct str){text, b.n});
}

/* Reads the headers of the plain, debezium and binary CloudEvents formats. */
static bool read_headers(const struct message *m, struct receive_facts *ret)
{
    for (size_t i = 0; i < PREFIXES; i++) {
        struct str id = attribute(m, prefixes[i], STR("id"));
        if (!id.p)
            continue;
        *ret = (struct receive_facts){
            .format = MESSAGE_CLOUDEVENTS,
            .id = id,
            .type = attribute(m, prefixes[i], STR("type")),
            .key = attribute(m, prefixes[i], STR("subject")),
        };
        return true;
    }
    *ret = (struct receive_facts){
        .format = MESSAGE_DEBEZIUM,
        .id = message_header_of(m, STR("id")),
        .type = message_header_of(m, STR("type")),
        .key = message_header_of(m, STR("key")),
    };
    if (ret->type.p)
        ret->format = MESSAGE_PLAIN;
    return ret->id.p != NULL;
}

/* The formats that are one JSON object: the first format whose member `mark` is present applies.
 * The key is one member, or two members joined by a slash. */
static const struct object_form {
    const char *mark;
    enum message_format format;
    const char *id, *type, *key, *key_end;
} object_forms[] = {
    {"specversion", MESSAGE_STRUCTURED, "id", "type", "subject", NULL},
    {"event_id", MESSAGE_CONTRACT, "event_id", "topic", "aggregate_kind", "aggregate_id"},
    {"id", MESSAGE_JSON, "id", "type", "aggregate_type", "aggregate_id"},
};

/* Unescapes a string member into the text, which has room for it. */
static struct str text_of(struct json o, const char *name, struct buf *text)
{
    struct json v;
    bool found = json_get(o, str_of(name), &v) && v.type == JSON_STRING;
    if (!found)
        return (struct str){0};
    size_t at = text->n;
    json_unescape(v.raw, text);
    return (struct str){text->p + at, text->n - at};
}

static bool read_object(struct json o, struct buf *text, struct receive_facts *ret)
{
    const struct object_form *form = object_forms;
    const struct object_form *end = form + sizeof object_forms / sizeof object_forms[0];
    while (form < end && !text_of(o, form->mark, text).p)
        form++;
    if (form == end)
        return false;

    *ret = (struct receive_facts){.format = form->format,
                                  .id = text_of(o, form->id, text),
                                  .type = text_of(o, form->type, text)};
    size_t at = text->n;
    ret->key = text_of(o, form->key, text);
    if (form->key_end && ret->key.p) {
        buf_addc(text, '/');
        struct str last = text_of(o, form->key_end, text);
        ret->key = (struct str){last.p ? text->p + at : NULL, text->n - at};
    }
    return ret->id.p != NULL;
}

int receive_identify(const struct message *m, struct buf *text, struct receive_facts *ret,
                     struct error *err)
{
    buf_clear(text);
    /* The text does not outgrow this size, so it is never reallocated. */
    if (!buf_reserve(text, 2 * m->value.n + 16))
        return err_nomem(err);

    struct receive_facts facts;
    bool read = read_headers(m, &facts);
    struct json o;
    bool look_inside = !read && json_parse(m->value, &o, NULL, NULL) == 0;
    if (look_inside && o.type == JSON_OBJECT)
        read = read_object(o, text, &facts);
    bool found = read && rng_uuid_valid(facts.id);
    if (!found)
        return err_set(err, ERR_INVALID, "the message contains no event id in any of the formats");
    *ret = facts;
    return 0;
}
