/* kafka_tail.c: finds events that a topic already contains. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/num.h"
#include "base/rng.h"
#include "base/str.h"
#include "base/text.h"
#include "sink/kafka_impl.h"

#define SLICE_MS 100
#define PARTITIONS_MAX 1024
#define IDS_MAX ((size_t)1 << 18) /* number of events: 14 MiB; older events are forgotten */
#define SKEW_MS 300000            /* maximum clock difference between database, relay and broker */

/* An event found in the topic. An empty entry has no id. */
struct entry {
    char id[UUID_TEXT];
    struct kafka_place at;
};

/* (1) The lock guards asked, answered, since_ms, quit and the entries. (2) All other fields belong
 * to the thread. (3) answered <= asked. (4) Partition i was read up to pos[i]. */
struct kafka_tail {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t news;
    int fd;
    uint64_t asked, answered;
    int64_t since_ms;
    atomic_bool quit;
    bool partial;
    struct entry *entries; /* open addressing */
    size_t n, cap;

    rd_kafka_t *rk;
    char *topic, *prefix; /* "CONSUMER/" */
    int partitions;
    /* assigned partitions are read from this time on; INT64_MAX: none are assigned */
    int64_t from_ms;
    int64_t pos[PARTITIONS_MAX];
};

/* The events read */

static struct entry *slot_of(struct entry *all, size_t cap, const char id[UUID_TEXT])
{
    size_t i = (size_t)hash_end(hash_add(HASH_INIT, (struct str){id, UUID_TEXT}));
    for (;; i++) {
        struct entry *e = &all[i & (cap - 1)];
        bool ours = e->id[0] == '\0' || memcmp(e->id, id, UUID_TEXT) == 0;
        if (ours)
            return e;
    }
}

static void keep_id(struct kafka_tail *t, struct str id, const rd_kafka_message_t *m)
{
    pthread_mutex_lock(&t->lock);
    if (t->n * 2 >= t->cap) { /* double the capacity */
        size_t cap = t->cap ? t->cap * 2 : 1024;
        struct entry *more = t->n < IDS_MAX ? calloc(cap, sizeof *more) : NULL;
        for (size_t i = 0; more && i < t->cap; i++)
            if (t->entries[i].id[0] != '\0')
                *slot_of(more, cap, t->entries[i].id) = t->entries[i];
        t->partial = t->partial || !more;
        if (more) {
            free(t->entries);
            t->entries = more;
            t->cap = cap;
        }
    }
    if (t->n * 2 < t->cap) {
        struct entry *e = slot_of(t->entries, t->cap, id.p);
        if (e->id[0] == '\0')
            t->n++;
        memcpy(e->id, id.p, UUID_TEXT);
        e->at = (struct kafka_place){m->partition, m->offset};
    }
    pthread_mutex_unlock(&t->lock);
}

/* Records the id of a message written for our consumer. */
static void note_message(struct kafka_tail *t, const rd_kafka_message_t *m)
{
    rd_kafka_headers_t *headers;
    const void *value;
    size_t n, skip = strlen(t->prefix);
    if (rd_kafka_message_headers(m, &headers) != RD_KAFKA_RESP_ERR_NO_ERROR)
        return;
    if (rd_kafka_header_get_last(headers, KAFKA_TAIL_HEADER, &value, &n) !=
        RD_KAFKA_RESP_ERR_NO_ERROR)
        return;
    bool ours = n == skip + UUID_TEXT && memcmp(value, t->prefix, skip) == 0;
    if (ours && ((const char *)value)[skip] != '\0')
        keep_id(t, (struct str){(const char *)value + skip, UUID_TEXT}, m);
}

/* Reading, in the lookup thread */

/* Returns the number of partitions; 0 if no broker responds. */
static int count_partitions(struct kafka_tail *t)
{
    const rd_kafka_metadata_t *md;
    rd_kafka_topic_t *topic = rd_kafka_topic_new(t->rk, t->topic, NULL);
    if (!topic)
        return 0;
    int n = 0;
    if (rd_kafka_metadata(t->rk, 0, topic, &md, SLICE_MS) == RD_KAFKA_RESP_ERR_NO_ERROR) {
        if (md->topic_cnt > 0)
            n = md->topics[0].partition_cnt;
        rd_kafka_metadata_destroy(md);
    }
    rd_kafka_topic_destroy(topic);
    return n;
}

/* Assigns all partitions, each from the first message no older than `since`. A partition without
 * one is read from its end. */
static bool assign_from(struct kafka_tail *t, int n, int64_t since)
{
    int64_t from = max_i64(0, since - SKEW_MS);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(n);
    for (int i = 0; i < n; i++)
        rd_kafka_topic_partition_list_add(list, t->topic, i)->offset = from;
    bool known = rd_kafka_offsets_for_times(t->rk, list, 10 * SLICE_MS) == 0;
    for (int i = 0; known && i < n; i++) {
        if (list->elems[i].err)
            known = false;
        t->pos[i] = list->elems[i].offset < 0 ? 0 : list->elems[i].offset;
    }
    if (known && rd_kafka_assign(t->rk, list) == RD_KAFKA_RESP_ERR_NO_ERROR) {
        t->partitions = n;
        t->from_ms = since;
        pthread_mutex_lock(&t->lock);
        free(t->entries);
        t->entries = NULL;
        t->n = t->cap = 0;
        t->partial = false;
        pthread_mutex_unlock(&t->lock);
    }
    rd_kafka_topic_partition_list_destroy(list);
    return known;
}

static void take_message(struct kafka_tail *t, const rd_kafka_message_t *m)
{
    bool end = m->err == RD_KAFKA_RESP_ERR__PARTITION_EOF;
    bool about_partition = m->partition >= 0 && m->partition < t->partitions;
    if ((m->err && !end) || !about_partition)
        return;
    int64_t pos = end ? m->offset : m->offset + 1;
    if (pos > t->pos[m->partition])
        t->pos[m->partition] = pos;
    if (!end)
        note_message(t, m);
}

/* Reads a partition up to its current end. Also records messages of other partitions that arrive
 * meanwhile. */
static bool read_to(struct kafka_tail *t, int partition)
{
    int64_t low, high;
    if (rd_kafka_query_watermark_offsets(t->rk, t->topic, partition, &low, &high, 10 * SLICE_MS) !=
        RD_KAFKA_RESP_ERR_NO_ERROR)
        return false;
    while (t->pos[partition] < high && low < high) {
        if (atomic_load(&t->quit))
            return false;
        rd_kafka_message_t *m = rd_kafka_consumer_poll(t->rk, SLICE_MS);
        if (!m)
            continue;
        take_message(t, m);
        rd_kafka_message_destroy(m);
    }
    return true;
}

/* Reads all messages written between `since` and now. */
static bool catch_up(struct kafka_tail *t, int64_t since)
{
    int n = count_partitions(t);
    if (n <= 0 || n > PARTITIONS_MAX)
        return false;
    bool assigned = n == t->partitions && t->from_ms <= since;
    if (!assigned && !assign_from(t, n, since))
        return false;
    for (int i = 0; i < t->partitions; i++) {
        if (!read_to(t, i))
            return false;
    }
    return true;
}

static void *tail_thread(void *tail)
{
    struct kafka_tail *t = tail;
    pthread_mutex_lock(&t->lock);
    while (!atomic_load(&t->quit)) {
        uint64_t number = t->asked;
        int64_t since = t->since_ms;
        if (number == t->answered) {
            pthread_cond_wait(&t->news, &t->lock);
            continue;
        }
        pthread_mutex_unlock(&t->lock);
        bool done = catch_up(t, since);
        if (!done)
            usleep(SLICE_MS * 1000 / 2); /* brokers are unavailable; the sink has a time limit */
        pthread_mutex_lock(&t->lock);
        if (done) {
            t->answered = number;
            wake_fd_signal(t->fd);
        }
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* For the sink */

static int connect_reader(struct kafka_tail *t, rd_kafka_conf_t *conf, struct error *err)
{
    static const char *const settings[][2] = {
        {"group.id", "outbox-tail"},
        {"enable.auto.commit", "false"},
        {"enable.partition.eof", "true"},
        {"auto.offset.reset", "earliest"},
        {"fetch.wait.max.ms", "10"},
        {"queued.min.messages", "1000"},
        {"queued.max.messages.kbytes", "4096"},
    };
    char said[256];
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        if (rd_kafka_conf_set(conf, settings[i][0], settings[i][1], said, sizeof said) !=
            RD_KAFKA_CONF_OK) {
            rd_kafka_conf_destroy(conf);
            return err_set(err, ERR_CONFIG, "librdkafka: %s", said);
        }
    }
    t->rk = rd_kafka_new(RD_KAFKA_CONSUMER, conf, said, sizeof said);
    if (!t->rk) {
        rd_kafka_conf_destroy(conf);
        return err_set(err, ERR_UNAVAILABLE, "librdkafka: %s", said);
    }
    rd_kafka_poll_set_consumer(t->rk);
    return 0;
}

int kafka_tail_new(rd_kafka_conf_t *conf, const char *topic, const char *consumer, int fd,
                   struct kafka_tail **ret, struct error *err)
{
    struct kafka_tail *t = calloc(1, sizeof *t);
    if (!t) {
        rd_kafka_conf_destroy(conf);
        return err_nomem(err);
    }
    t->fd = fd;
    t->from_ms = INT64_MAX;
    t->since_ms = INT64_MAX;
    t->topic = strdup(topic);
    if (asprintf(&t->prefix, "%s/", consumer) < 0)
        t->prefix = NULL;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->news, NULL);
    if (connect_reader(t, conf, err) != 0)
        goto fail;
    if (!t->topic || !t->prefix || pthread_create(&t->thread, NULL, tail_thread, t) != 0) {
        err_nomem(err);
        goto fail;
    }
    *ret = t;
    return 0;
fail:
    if (t->rk)
        rd_kafka_destroy(t->rk);
    free(t->topic);
    free(t->prefix);
    free(t);
    return -1;
}

void kafka_tail_free(struct kafka_tail *t)
{
    if (!t)
        return;
    pthread_mutex_lock(&t->lock);
    atomic_store(&t->quit, true);
    pthread_cond_signal(&t->news);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
    rd_kafka_destroy_flags(t->rk, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
    pthread_cond_destroy(&t->news);
    pthread_mutex_destroy(&t->lock);
    free(t->entries);
    free(t->topic);
    free(t->prefix);
    free(t);
}

uint64_t kafka_tail_request(struct kafka_tail *t, int64_t since_ms)
{
    pthread_mutex_lock(&t->lock);
    uint64_t number = ++t->asked;
    if (since_ms < t->since_ms)
        t->since_ms = since_ms;
    pthread_cond_signal(&t->news);
    pthread_mutex_unlock(&t->lock);
    return number;
}

bool kafka_tail_ready(struct kafka_tail *t, uint64_t number)
{
    pthread_mutex_lock(&t->lock);
    bool ready = t->answered >= number;
    pthread_mutex_unlock(&t->lock);
    return ready;
}

bool kafka_tail_find(struct kafka_tail *t, struct str id, struct kafka_place *ret)
{
    bool found = false;
    if (id.n != UUID_TEXT)
        return false;
    pthread_mutex_lock(&t->lock);
    if (t->cap > 0) {
        const struct entry *e = slot_of(t->entries, t->cap, id.p);
        found = e->id[0] != '\0';
        if (found)
            *ret = e->at;
    }
    pthread_mutex_unlock(&t->lock);
    return found;
}

bool kafka_tail_partial(struct kafka_tail *t)
{
    pthread_mutex_lock(&t->lock);
    bool partial = t->partial;
    pthread_mutex_unlock(&t->lock);
    return partial;
}
