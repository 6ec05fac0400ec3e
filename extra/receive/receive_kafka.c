/* receive_kafka.c: reads topics from a given position, outside any consumer group. */
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"
#include "extra/receive/receive.h"
#include "sink/kafka_impl.h"

#define PATTERN_MAX ((size_t)4 << 10)
#define SEARCH_MS 50             /* maximum interruption of reading by a search for topics */
#define FIRST_MS 10000           /* the same for the first search */
#define SEARCH_NS (1000 * MS_NS) /* between searches for new topics and partitions */

/* (1) `list` has the partitions being read; sink.set and sink.url identify their topics. (2)
 * `message` is the last message returned. */
struct kafka_receiver {
    struct receiver base;
    struct kafka_sink sink; /* only the fields that kafka_producer_conf uses */
    rd_kafka_t *rk;
    rd_kafka_topic_partition_list_t *list;
    rd_kafka_message_t *message;
    bool fixed;
    struct buf pattern;
    int64_t search_at; /* monotonic */
    char place[KAFKA_TOPIC_MAX + 16], position[24];
};

/* Adds the partitions of matching topics, starting at this offset. Partitions already being read
 * keep their position. */
static int search_topics(struct kafka_receiver *rc, int64_t offset, int64_t patience_ms,
                         struct error *err)
{
    const rd_kafka_metadata_t *md;
    char said[KAFKA_TEXT];
    rc->search_at = clock_mono(&clock_system) + SEARCH_NS;
    rd_kafka_resp_err_t code = rd_kafka_metadata(rc->rk, 1, NULL, &md, (int)patience_ms);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR) {
        kafka_answer_text(code, said);
        return err_set(err, ERR_UNAVAILABLE, "%s: %s", rc->sink.url.label, said);
    }

    bool added = false;
    rd_kafka_position(rc->rk, rc->list);
    for (int i = 0; i < md->topic_cnt; i++) {
        const rd_kafka_metadata_topic_t *t = &md->topics[i];
        bool fits = strcmp(t->topic, rc->pattern.p) == 0;
        if (!rc->fixed)
            fits = fnmatch(rc->pattern.p, t->topic, 0) == 0;
        for (int k = 0; fits && k < t->partition_cnt; k++) {
            int32_t id = t->partitions[k].id;
            if (rd_kafka_topic_partition_list_find(rc->list, t->topic, id))
                continue;
            rd_kafka_topic_partition_list_add(rc->list, t->topic, id)->offset = offset;
            added = true;
        }
    }
    rd_kafka_metadata_destroy(md);
    if (added)
        rd_kafka_assign(rc->rk, rc->list);
    return 0;
}

static void take_message(struct kafka_receiver *rc, struct received *ret)
{
    const rd_kafka_message_t *from = rc->message;
    snprintf(rc->place, sizeof rc->place, "%s/%d", rd_kafka_topic_name(from->rkt), from->partition);
    snprintf(rc->position, sizeof rc->position, "%lld", (long long)from->offset);
    ret->place = str_of(rc->place);
    ret->position = str_of(rc->position);

    struct message *m = &ret->m;
    m->key = (struct str){from->key, from->key_len};
    m->value = (struct str){from->payload ? from->payload : "", from->len};
    m->content_type = (struct str){0};
    m->n = 0;

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

/* An unavailable broker is not an error: the library resumes at its last position. */
static int kafka_step(struct receiver *base, int64_t wait_ms, struct received *ret, bool *ret_got,
                      struct error *err)
{
    struct kafka_receiver *rc = (struct kafka_receiver *)base;
    if (clock_mono(&clock_system) >= rc->search_at)
        (void)search_topics(rc, RD_KAFKA_OFFSET_BEGINNING, SEARCH_MS, err);
    if (rc->message)
        rd_kafka_message_destroy(rc->message);
    rc->message = rd_kafka_consumer_poll(rc->rk, (int)wait_ms);
    *ret_got = rc->message && rc->message->err == RD_KAFKA_RESP_ERR_NO_ERROR;
    if (*ret_got)
        take_message(rc, ret);
    return 0;
}

static void kafka_end(struct receiver *base)
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
    url_release(&rc->sink.url);
}

static int read_offset(const char *from, int64_t *ret, struct error *err)
{
    *ret = RD_KAFKA_OFFSET_BEGINNING;
    if (strcmp(from, "beginning") == 0)
        return 0;
    *ret = RD_KAFKA_OFFSET_END;
    if (strcmp(from, "end") == 0)
        return 0;
    if (text_int(from, 0, INT64_MAX, ret, err) != 0)
        return err_set(err, ERR_CONFIG, "\"%.60s\" is not beginning, end or a numeric offset",
                       from);
    return 0;
}

static int set_pattern(struct kafka_receiver *rc, struct error *err)
{
    struct template *name;
    buf_init(&rc->pattern, PATTERN_MAX);
    if (template_new(rc->sink.url.path, &name, err) != 0)
        return err_prefix(err, "kafka: topic");
    rc->fixed = template_fixed(name);
    int failed = template_pattern(name, rc->fixed ? "" : "\\*?[]", &rc->pattern, err);
    template_free(name);
    if (failed)
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
        return err_set(err, ERR_CONFIG, "kafka: librdkafka: %s", said);
    }
    rd_kafka_poll_set_consumer(rc->rk);
    rc->list = rd_kafka_topic_partition_list_new(8);
    return rc->list ? 0 : err_nomem(err);
}

static int kafka_begin(struct receiver *base, struct error *err)
{
    struct kafka_receiver *rc = (struct kafka_receiver *)base;
    int64_t offset;
    rc->sink.b.base.cfg = (struct sink_config){.consumer = "receive"};
    if (read_offset(base->cfg.from, &offset, err) != 0)
        return -1;
    if (kafka_settings_read(base->cfg.url, &rc->sink.set, &rc->sink.url, err) != 0)
        return -1;
    if (set_pattern(rc, err) != 0)
        return -1;
    if (connect_reader(rc, err) != 0)
        return -1;
    return search_topics(rc, offset, FIRST_MS, err);
}

const struct receiver_ops receive_kafka = {
    .schemes = (const char *const[]){"kafka", "kafka+ssl", NULL},
    .size = sizeof(struct kafka_receiver),
    .begin = kafka_begin,
    .step = kafka_step,
    .end = kafka_end,
};
