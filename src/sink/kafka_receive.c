/* kafka_receive.c: reads topics from a position on, outside of any consumer group. */
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"
#include "sink/kafka_impl.h"
#include "sink/kinds.h"
#include "sink/receive.h"

#define PATTERN_MAX ((size_t)4 << 10)
#define SLICE_MS 50              /* of waiting: then it may be time to stop */
#define ASK_MS 10000             /* for the topics, at the start */
#define SEARCH_NS (1000 * MS_NS) /* between looks for topics and partitions that are new */

/* (1) `list` is what is being read; sink.set and sink.url say where. (2) message is what the last
 * call of next returned. */
struct kafka_receiver {
    struct receiver base;
    struct kafka_sink sink; /* only what kafka_producer_conf needs of one */
    rd_kafka_t *rk;
    rd_kafka_topic_partition_list_t *list;
    rd_kafka_message_t *message;
    bool fixed;
    struct buf pattern;
    int64_t search_at; /* monotonic */
    char place[KAFKA_TOPIC_MAX + 16], position[24];
};

/* ---- what to read ---- */

static bool fits(const struct kafka_receiver *rc, const char *topic)
{
    const char *pattern = rc->pattern.p;
    if (rc->fixed)
        return strcmp(topic, pattern) == 0;
    return fnmatch(pattern, topic, 0) == 0;
}

/* add_partitions begins to read the partitions of a topic that are not being read yet, from this
 * offset on. Returns how many those were. */
static int add_partitions(struct kafka_receiver *rc, const rd_kafka_metadata_topic_t *t,
                          int64_t offset)
{
    int added = 0;
    for (int i = 0; i < t->partition_cnt; i++) {
        int32_t id = t->partitions[i].id;
        if (rd_kafka_topic_partition_list_find(rc->list, t->topic, id))
            continue;
        rd_kafka_topic_partition_list_add(rc->list, t->topic, id)->offset = offset;
        added++;
    }
    return added;
}

/* search looks for topics that fit. What was read so far goes on where it was. */
static int search(struct kafka_receiver *rc, int64_t offset, int64_t patience_ms, struct error *err)
{
    const rd_kafka_metadata_t *md;
    char said[KAFKA_TEXT];
    int added = 0;
    rc->search_at = clock_mono(&clock_system) + SEARCH_NS;
    rd_kafka_resp_err_t code = rd_kafka_metadata(rc->rk, 1, NULL, &md, (int)patience_ms);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR) {
        kafka_fate_text(code, said);
        return err_set(err, ERR_UNAVAILABLE, "%s: %s", rc->sink.url.label, said);
    }
    rd_kafka_position(rc->rk, rc->list);
    for (int i = 0; i < md->topic_cnt; i++) {
        if (fits(rc, md->topics[i].topic))
            added += add_partitions(rc, &md->topics[i], offset);
    }
    rd_kafka_metadata_destroy(md);
    if (added > 0)
        rd_kafka_assign(rc->rk, rc->list);
    return 0;
}

/* offset_of reads a position. */
static int offset_of(const char *from, int64_t *ret, struct error *err)
{
    *ret = RD_KAFKA_OFFSET_BEGINNING;
    if (strcmp(from, "beginning") == 0)
        return 0;
    *ret = RD_KAFKA_OFFSET_END;
    if (strcmp(from, "end") == 0)
        return 0;
    if (text_int(from, 0, INT64_MAX, ret, err) != 0)
        return err_set(err, ERR_CONFIG, "\"%.60s\" is not beginning, end or an offset, a number",
                       from);
    return 0;
}

/* ---- messages ---- */

static void take_headers(const rd_kafka_message_t *from, struct message *m)
{
    rd_kafka_headers_t *all;
    const char *name;
    const void *value;
    size_t n;
    if (rd_kafka_message_headers(from, &all) != RD_KAFKA_RESP_ERR_NO_ERROR)
        return;
    for (size_t i = 0; rd_kafka_header_get_all(all, i, &name, &value, &n) == 0; i++) {
        struct str v = {value ? value : "", n};
        if (strcmp(name, "content-type") == 0)
            m->content_type = v;
        else if (m->n < MESSAGE_HEADERS)
            m->headers[m->n++] = (struct message_header){str_of(name), v};
    }
}

static void take_message(struct kafka_receiver *rc, struct received *ret)
{
    const rd_kafka_message_t *m = rc->message;
    snprintf(rc->place, sizeof rc->place, "%s/%d", rd_kafka_topic_name(m->rkt), m->partition);
    snprintf(rc->position, sizeof rc->position, "%lld", (long long)m->offset);
    ret->place = str_of(rc->place);
    ret->position = str_of(rc->position);
    ret->m.key = (struct str){m->key, m->key_len};
    ret->m.value = (struct str){m->payload ? m->payload : "", m->len};
    ret->m.content_type = (struct str){0};
    ret->m.n = 0;
    take_headers(m, &ret->m);
}

static bool told_to_stop(const struct kafka_receiver *rc)
{
    struct pollfd fd = {.fd = rc->base.cfg.wake, .events = POLLIN};
    return poll(&fd, 1, 0) > 0;
}

/* poll_one waits a moment for a message. A broker that is away is no error: the library goes on
 * where it was. */
static bool poll_one(struct kafka_receiver *rc, int64_t ms)
{
    if (rc->message)
        rd_kafka_message_destroy(rc->message);
    rc->message = rd_kafka_consumer_poll(rc->rk, (int)ms);
    return rc->message && rc->message->err == RD_KAFKA_RESP_ERR_NO_ERROR;
}

static int kafka_next(struct receiver *base, int64_t timeout_ms, struct received *ret,
                      bool *ret_got, struct error *err)
{
    struct kafka_receiver *rc = (struct kafka_receiver *)base;
    int64_t deadline = clock_mono(&clock_system) + timeout_ms * MS_NS;
    *ret_got = false;
    for (;;) {
        int64_t now = clock_mono(&clock_system);
        if (now >= rc->search_at)
            (void)search(rc, RD_KAFKA_OFFSET_BEGINNING, SLICE_MS, err);
        if (poll_one(rc, SLICE_MS)) {
            take_message(rc, ret);
            *ret_got = true;
            return 0;
        }
        if (told_to_stop(rc) || now >= deadline)
            return 0;
    }
}

/* ---- opening ---- */

static void kafka_close(struct receiver *base)
{
    struct kafka_receiver *rc = (struct kafka_receiver *)base;
    if (rc->message)
        rd_kafka_message_destroy(rc->message);
    if (rc->list)
        rd_kafka_topic_partition_list_destroy(rc->list);
    if (rc->rk)
        rd_kafka_destroy_flags(rc->rk, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
    buf_release(&rc->pattern);
    kafka_settings_release(&rc->sink.set);
    broker_url_release(&rc->sink.url);
    free(rc);
}

static int set_pattern(struct kafka_receiver *rc, struct error *err)
{
    struct template *name;
    if (template_new(kafka_settings_topic(&rc->sink.set, &rc->sink.url), &name, err) != 0)
        return err_prefix(err, "kafka: topic");
    rc->fixed = template_fixed(name);
    int rc_pattern = template_pattern(name, rc->fixed ? "" : "\\*?[]", &rc->pattern, err);
    template_free(name);
    if (rc_pattern != 0)
        return -1;
    return buf_cstr(&rc->pattern) ? 0 : err_nomem(err);
}

static int connect_reader(struct kafka_receiver *rc, struct error *err)
{
    static const char *const settings[][2] = {
        {"group.id", "outbox-receive"},
        {"enable.auto.commit", "false"},
        {"auto.offset.reset", "earliest"},
        {"fetch.wait.max.ms", "100"},
    };
    char said[KAFKA_TEXT];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    if (kafka_producer_conf(&rc->sink, conf, err) != 0) {
        rd_kafka_conf_destroy(conf);
        return -1;
    }
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        rd_kafka_conf_set(conf, settings[i][0], settings[i][1], said, sizeof said);
    rc->rk = rd_kafka_new(RD_KAFKA_CONSUMER, conf, said, sizeof said);
    if (!rc->rk) {
        rd_kafka_conf_destroy(conf);
        return err_set(err, ERR_CONFIG, "kafka: librdkafka says: %s", said);
    }
    rd_kafka_poll_set_consumer(rc->rk);
    rc->list = rd_kafka_topic_partition_list_new(8);
    return rc->list ? 0 : err_nomem(err);
}

static int set_up(struct kafka_receiver *rc, struct error *err)
{
    int64_t offset;
    if (offset_of(rc->base.cfg.from, &offset, err) != 0)
        return -1;
    if (kafka_settings_read(rc->base.cfg.url, &rc->sink.set, &rc->sink.url, err) != 0)
        return -1;
    if (set_pattern(rc, err) != 0)
        return -1;
    if (connect_reader(rc, err) != 0)
        return -1;
    return search(rc, offset, ASK_MS, err);
}

static int kafka_open(const struct receiver_config *cfg, struct receiver **ret, struct error *err)
{
    const struct receiver_ops *ops;
    if (receive_find(cfg->url, &ops, err) != 0)
        return -1;
    struct kafka_receiver *rc = calloc(1, sizeof *rc);
    if (!rc)
        return err_nomem(err);
    rc->base = (struct receiver){ops, *cfg};
    rc->sink.base.cfg = (struct sink_config){.consumer = "receive"};
    buf_init(&rc->pattern, PATTERN_MAX);
    if (set_up(rc, err) != 0) {
        kafka_close(&rc->base);
        return -1;
    }
    *ret = &rc->base;
    return 0;
}

#define RECEIVER(name, scheme_) \
    const struct receiver_ops name = { \
        .scheme = scheme_, .open = kafka_open, .next = kafka_next, .close = kafka_close}

RECEIVER(kafka_receiver, "kafka");
RECEIVER(kafka_tls_receiver, "kafka+ssl");
