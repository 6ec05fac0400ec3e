#include "event/message_read.h"

#include "base/json.h"
#include "base/uuid7.h"

/* Prefixes that attributes of CloudEvents have in headers: of Kafka, of NATS, and of AMQP, which
 * has two. */
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

/* read_cloudevents reads attributes from headers. */
static bool read_cloudevents(const struct message *m, struct message_facts *ret)
{
    for (size_t i = 0; i < PREFIXES; i++) {
        struct str id = attribute(m, prefixes[i], STR("id"));
        if (!id.p)
            continue;
        *ret = (struct message_facts){
            .format = MESSAGE_CLOUDEVENTS,
            .id = id,
            .type = attribute(m, prefixes[i], STR("type")),
            .key = attribute(m, prefixes[i], STR("subject")),
        };
        return true;
    }
    return false;
}

/* read_headers reads what plain and debezium have in headers. */
static bool read_headers(const struct message *m, struct message_facts *ret)
{
    struct str id = message_header_of(m, STR("id"));
    if (!id.p)
        return false;
    *ret = (struct message_facts){
        .format = MESSAGE_DEBEZIUM,
        .id = id,
        .type = message_header_of(m, STR("type")),
        .key = message_header_of(m, STR("key")),
    };
    if (ret->type.p)
        ret->format = MESSAGE_PLAIN;
    return true;
}

/* text_of unescapes a member that is a string into the text, which has room for it. */
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

/* key_of joins the two halves of a key, which the formats have under various names. */
static struct str key_of(struct json o, const char *type, const char *id, struct buf *text)
{
    size_t at = text->n;
    struct str first = text_of(o, type, text);
    buf_addc(text, '/');
    struct str second = text_of(o, id, text);
    if (!first.p || !second.p)
        return (struct str){0};
    return (struct str){text->p + at, text->n - at};
}

/* read_object reads what the other formats have in one JSON object. */
static bool read_object(struct json o, struct buf *text, struct message_facts *ret)
{
    struct str version = text_of(o, "specversion", text);
    struct str event_id = text_of(o, "event_id", text);
    if (version.p) {
        *ret = (struct message_facts){.format = MESSAGE_STRUCTURED,
                                      .id = text_of(o, "id", text),
                                      .type = text_of(o, "type", text),
                                      .key = text_of(o, "subject", text)};
    } else if (event_id.p) {
        *ret = (struct message_facts){.format = MESSAGE_CONTRACT,
                                      .id = event_id,
                                      .type = text_of(o, "topic", text),
                                      .key = key_of(o, "aggregate_kind", "aggregate_id", text)};
    } else {
        *ret = (struct message_facts){.format = MESSAGE_JSON,
                                      .id = text_of(o, "id", text),
                                      .type = text_of(o, "type", text),
                                      .key = key_of(o, "aggregate_type", "aggregate_id", text)};
    }
    return ret->id.p != NULL;
}

static bool read_value(struct str value, struct buf *text, struct message_facts *ret)
{
    struct json o;
    bool is_object = json_parse(value, &o, NULL, NULL) == 0 && o.type == JSON_OBJECT;
    if (!is_object)
        return false;
    return read_object(o, text, ret);
}

int message_read(const struct message *m, struct buf *text, struct message_facts *ret,
                 struct error *err)
{
    buf_clear(text);
    /* No text below grows beyond this, so none of it moves. */
    if (!buf_reserve(text, 2 * m->value.n + 16))
        return err_nomem(err);

    struct message_facts facts;
    bool read = read_cloudevents(m, &facts);
    if (!read)
        read = read_headers(m, &facts);
    if (!read)
        read = read_value(m->value, text, &facts);
    bool ours = read && uuid7_valid(facts.id);
    if (!ours)
        return err_set(err, ERR_INVALID, "it has no event's id in any of the formats");
    *ret = facts;
    return 0;
}
