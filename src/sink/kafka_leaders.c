/* kafka_leaders.c: who leads the partitions of a topic. A look at the topic tells it once; after
 * that, the broker that confirms a message is the one that leads, so no question is needed. */
#include <stdio.h>

#include "base/text.h"
#include "sink/kafka_impl.h"

void kafka_leaders_init(struct kafka_leaders *l)
{
    l->n_named = 0;
    for (size_t i = 0; i < KAFKA_LED; i++)
        l->leader[i] = -1;
}

static void read_names(struct kafka_leaders *l, const rd_kafka_metadata_t *md)
{
    l->n_named = 0;
    for (int i = 0; i < md->broker_cnt && l->n_named < KAFKA_NAMED; i++) {
        struct kafka_named *to = &l->name[l->n_named++];
        const char *host = md->brokers[i].host;
        to->id = md->brokers[i].id;
        text_clean(to->host, sizeof to->host, host, strlen(host));
        snprintf(to->port, sizeof to->port, "%d", md->brokers[i].port % 65536);
    }
}

void kafka_leaders_confirmed(struct kafka_leaders *l, int32_t partition, int32_t broker)
{
    bool is_kept = partition >= 0 && partition < KAFKA_LED;
    if (is_kept)
        l->leader[partition] = broker;
}

void kafka_leaders_read(struct kafka_leaders *l, const rd_kafka_metadata_t *md)
{
    read_names(l, md);
    if (md->topic_cnt == 0)
        return;
    const rd_kafka_metadata_topic_t *t = &md->topics[0];
    for (int i = 0; i < t->partition_cnt; i++)
        kafka_leaders_confirmed(l, t->partitions[i].id, t->partitions[i].leader);
}

static void add_leader(const struct kafka_leaders *l, int32_t id, char out[SINK_PEERS])
{
    for (size_t i = 0; i < l->n_named; i++) {
        if (l->name[i].id != id)
            continue;
        sink_peer_add(out, l->name[i].host, l->name[i].port);
        return;
    }
    char text[16];
    snprintf(text, sizeof text, "#%d", (int)id);
    sink_peer_add(out, text, NULL);
}

void kafka_leaders_list(const struct kafka_leaders *l, char out[SINK_PEERS])
{
    out[0] = '\0';
    for (size_t i = 0; i < KAFKA_LED; i++)
        if (l->leader[i] >= 0)
            add_leader(l, l->leader[i], out);
}
