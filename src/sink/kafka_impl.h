/* kafka_impl.h: private to the Kafka sink: kafka.c (deliveries in flight), kafka_settings.c (its
 * URL), kafka_producer.c (the library and its threads; the topic and its leaders), kafka_answer.c
 * (error codes and their meaning for events) and kafka_tail.c (whether an event was already
 * written). */
#ifndef SINK_KAFKA_IMPL_H
#define SINK_KAFKA_IMPL_H

#include <librdkafka/rdkafka.h>
#include <pthread.h>
#include <stdatomic.h>

#include "sink/broker.h"

#define KAFKA_WINDOW 8192 /* deliveries in flight */
#define KAFKA_TEXT 400    /* a message of the library, on one line */
#define KAFKA_TOPIC_MAX 249

/* A property passed on to the library. Strings are owned. */
struct kafka_property {
    char *name, *value;
};

struct kafka_properties {
    struct kafka_property *list;
    size_t n;
};

enum kafka_sasl { KAFKA_SASL_DEFAULT, KAFKA_SASL_PLAIN, KAFKA_SASL_256, KAFKA_SASL_512 };

/* The URL's settings besides the brokers. Strings are owned. */
struct kafka_settings {
    enum message_format format;
    char *source;         /* of CloudEvents; NULL: the default */
    enum kafka_sasl sasl; /* login mechanism; ignored without a user */
    bool create;          /* create missing topics */
    bool dedupe;          /* look up events that may already be written */
    int partitions, replicas;
    struct kafka_properties properties;
};

/* kafka_settings_read parses a URL into *s, which the caller has zeroed, and *u; u->path is the
 * template of the topic's name. The caller releases both, even after an error. Errors: ERR_CONFIG,
 * ERR_NOMEM. */
int kafka_settings_read(const char *url, struct kafka_settings *s, struct url *u,
                        struct error *err);
void kafka_settings_release(struct kafka_settings *s);

/* The meaning of an error code of the library or of a broker. */
enum kafka_meaning {
    KAFKA_STORED,
    KAFKA_UNAVAILABLE, /* the event is not at fault: the sink is down */
    KAFKA_CONSEQUENCE, /* returned because of another event, whose error is the reason */
    KAFKA_REFUSED,     /* one event of the batch can never be accepted */
    KAFKA_TOPIC,       /* the brokers work, but the topic accepts nothing: counts as an attempt */
    KAFKA_SETUP,       /* waiting cannot help */
};

/* A row of the table documented in docs/brokers.md. */
struct kafka_answer {
    rd_kafka_resp_err_t code;
    enum kafka_meaning meaning;
    const char *advice; /* NULL: none */
};

extern const struct kafka_answer kafka_answers[];
extern const size_t kafka_answer_rows;

/* kafka_answer_of looks up an error code. A code missing from the table means KAFKA_UNAVAILABLE: an
 * unforeseen error turns no event into a dead letter. */
const struct kafka_answer *kafka_answer_of(rd_kafka_resp_err_t code);
/* kafka_answer_text writes the name of a code, its meaning, and advice. */
void kafka_answer_text(rd_kafka_resp_err_t code, char out[KAFKA_TEXT]);

#define KAFKA_LEADERS 64   /* partitions whose leader is remembered */
#define KAFKA_ADDRESSES 16 /* brokers whose address is remembered */

/* The leaders of the topic's partitions: leader[i] - 1 is the id of the broker that leads partition
 * i; 0 if unknown. */
struct kafka_leaders {
    int32_t leader[KAFKA_LEADERS];
    struct kafka_broker_address {
        int32_t id;
        char host[100], port[8];
    } address[KAFKA_ADDRESSES];
    size_t n_addresses;
};

/* The topic check reports the leaders once; from then on, the broker that confirms a message is the
 * leader of its partition, so no further query is needed. kafka_producer_list_leaders writes the
 * addresses of the leaders, or "#ID" for a leader without an address. */
void kafka_producer_read_leaders(struct kafka_leaders *l, const rd_kafka_metadata_t *md);
void kafka_producer_set_leader(struct kafka_leaders *l, int32_t partition, int32_t broker);
void kafka_producer_list_leaders(const struct kafka_leaders *l, char out[SINK_PEERS]);

/* The result of the topic check. */
struct kafka_topic_facts {
    rd_kafka_resp_err_t err;
    int replicas; /* the minimum of all partitions */
    int brokers;
    int min_insync; /* 0: unknown */
    bool unclean;   /* unclean leader election is enabled */
    struct kafka_leaders leaders;
};

/* A producer and the topic check that started with it. (1) `check` is joined before the producer is
 * destroyed. (2) `facts` may be read once `checked` is set. (3) A retired producer is destroyed by
 * a thread, `closer`, because that may take long; `gone` is the last field that this thread
 * sets. */
struct kafka_producer {
    rd_kafka_t *rk;
    rd_kafka_queue_t *queue;
    rd_kafka_topic_t *topic; /* NULL: the name is a template */
    int fd;                  /* an eventfd: the queue is not empty, or `checked` was set */
    bool one_by_one;         /* sends each message separately and at once */
    bool checking;
    pthread_t check;
    atomic_bool checked;
    atomic_bool quit; /* tells the check to end */
    pthread_t closer;
    atomic_bool gone;
    struct kafka_topic_facts facts;
    /* input of the topic check */
    const struct kafka_settings *set;
    char topic_name[KAFKA_TOPIC_MAX + 1];
    int64_t patience_ms;
};

#define KAFKA_RETIRED 16 /* producers being destroyed at the same time */

/* State of an event. From ITEM_STORED on, its result is known. */
enum kafka_state {
    ITEM_WAITING,  /* not passed to the producer yet */
    ITEM_LOOKUP,   /* being looked up: it may already be in the topic */
    ITEM_SENT,     /* with the producer */
    ITEM_REFUSED,  /* refused, individually or in a batch */
    ITEM_RETURNED, /* returned without being at fault */
    ITEM_STORED,   /* stored by the brokers */
    ITEM_REJECTED, /* can never be accepted */
    ITEM_NO_TOPIC, /* its topic accepts nothing */
    ITEM_CUT,      /* an earlier event of its chain was not delivered */
};

/* An event in flight. */
struct kafka_item {
    struct in_flight f;
    uint64_t number; /* sequence number, in order of acceptance */
    uint64_t chain;  /* number of its chain's first event */
    enum kafka_state state;
    bool unasked;       /* ITEM_REJECTED: decided without asking the brokers */
    bool may_be_stored; /* possibly in the topic already, and not looked up yet */
    uint64_t lookup;    /* ITEM_LOOKUP: number of the lookup */
    rd_kafka_resp_err_t err;
    int32_t partition;
    int64_t offset;
    char *topic; /* its topic, owned, if the name is a template; NULL: the only topic */
    char *why;   /* ITEM_REJECTED: the reason, owned; NULL: see `err` */
};

/* (1) `waiting` and all later events in the window were not passed to the producer yet; NULL: all
 * events were. `next_number` is the number of the next event. (2) `n_sent` events are ITEM_SENT.
 * (3) While `breaking`, the sink passes no events on: a delivery has failed, so the producer
 * returns all later events, and is replaced after that, or at break_by. (4) Events with a number
 * below `one_by_one_to` are sent one at a time: one of them was refused, and the others are not at
 * fault. */
struct kafka_sink {
    struct broker b;
    struct kafka_settings set;
    struct url url;
    char topic[KAFKA_TOPIC_MAX + 1]; /* of the last event, or of all events */
    struct kafka_producer *p;        /* NULL if none exists at present */
    struct kafka_tail *tail;         /* NULL before the first lookup */
    int tail_fd;                     /* an eventfd, signalled after a lookup; -1 without dedupe */
    struct kafka_producer *retired[KAFKA_RETIRED];
    struct kafka_item *waiting;
    uint64_t next_number, one_by_one_to;
    size_t n_sent;
    bool breaking;
    int64_t break_by;
    rd_kafka_resp_err_t break_code;
    int64_t unreachable_since;   /* since when no broker is reachable; 0 if one is */
    char last_error[KAFKA_TEXT]; /* the library's last connection error */
    int64_t batch_bytes;         /* size of a request; reduced after one was refused as too large */
    bool facts_reported, partial_reported;
    bool answered; /* a broker has responded to this producer */
    struct kafka_leaders leaders;
};

/* kafka_one_by_one returns whether events are sent one at a time. */
static inline bool kafka_one_by_one(const struct kafka_sink *k)
{
    return (k->waiting ? k->waiting->number : k->next_number) < k->one_by_one_to;
}

static inline struct kafka_item *kafka_next(const struct kafka_item *it)
{
    return (struct kafka_item *)it->f.next;
}

/* kafka_chained returns whether an event belongs to a chain and is not its first event. */
static inline bool kafka_chained(const struct kafka_item *it)
{
    return it->number != it->chain;
}

/* kafka_topic_name returns the topic of an event, borrowed until the next call. Returns NULL with
 * ERR_INVALID if the name is not valid, or with ERR_NOMEM. */
const char *kafka_topic_name(struct kafka_sink *k, const struct event *ev, struct error *err);
/* kafka_producer_new creates a producer, which connects in its own threads. It rereads the
 * password, which may have been rotated. Errors: ERR_CONFIG, ERR_UNAVAILABLE, ERR_NOMEM. */
int kafka_producer_new(struct kafka_sink *k, struct kafka_producer **ret, struct error *err);
/* kafka_producer_retire detaches the producer from the sink. Unsent messages are discarded, and
 * later reports are ignored. */
void kafka_producer_retire(struct kafka_sink *k);
/* kafka_producer_can_retire returns whether another producer can be retired. */
bool kafka_producer_can_retire(struct kafka_sink *k);
/* kafka_producer_join waits until all retired producers are destroyed. */
void kafka_producer_join(struct kafka_sink *k);
/* kafka_producer_conf sets all properties that a connection needs. */
int kafka_producer_conf(const struct kafka_sink *k, rd_kafka_conf_t *conf, struct error *err);
/* kafka_producer_patience_ms returns how long the library waits for a reply: much less than a
 * delivery's time limit, so that it can try another broker. */
int64_t kafka_producer_patience_ms(const struct kafka_sink *k);

/* kafka_answer_poll handles the producer's delivery reports and errors. */
void kafka_answer_poll(struct kafka_sink *k);
/* kafka_answer_failed records that the delivery of an event failed with this code. */
void kafka_answer_failed(struct kafka_sink *k, struct kafka_item *it, rd_kafka_resp_err_t code);
/* kafka_answer_reject records, without asking the brokers, that an event can never be accepted. */
void kafka_answer_reject(struct kafka_sink *k, struct kafka_item *it, const char *why);
/* kafka_answer_all ends all deliveries in flight, in order: stored events as delivered, the rest
 * with this status. It then retires the producer. */
void kafka_answer_all(struct kafka_sink *k, enum sink_status status, const char *why);
/* kafka_answer_recover decides about the returned events once a broken producer has returned all of
 * them, and then retires the producer. kafka_answer_known reports known results. */
void kafka_answer_recover(struct kafka_sink *k);
void kafka_answer_known(struct kafka_sink *k);

/* kafka_tail.c: reads the end of a topic to find out which events it already contains.
 *
 * With dedupe=on, every message has a header, outbox-id: CONSUMER/ID. A relay may vanish after
 * writing an event and before reporting it. Such an event is looked up in the messages written
 * since the event was created, and is not written again if found.
 *
 * Reads block on brokers, so a lookup has its own thread, with a library consumer that joins no
 * group and commits nothing. */

#define KAFKA_TAIL_HEADER "outbox-id"

struct kafka_tail;

/* The position of an event in the topic. */
struct kafka_place {
    int32_t partition;
    int64_t offset;
};

/* kafka_tail_new takes ownership of conf, a configuration with all properties that a connection
 * needs. `fd`, an eventfd of the caller, is signalled whenever a result is ready. Strings are
 * copied. */
int kafka_tail_new(rd_kafka_conf_t *conf, const char *topic, const char *consumer, int fd,
                   struct kafka_tail **ret, struct error *err);
/* kafka_tail_free ends the thread and waits briefly for it; NULL is fine. */
void kafka_tail_free(struct kafka_tail *t);

/* kafka_tail_request starts reading the messages written to the topic between since_ms, a wall
 * time, and now. Returns a number for kafka_tail_ready, which returns whether all of them have been
 * read. */
uint64_t kafka_tail_request(struct kafka_tail *t, int64_t since_ms);
bool kafka_tail_ready(struct kafka_tail *t, uint64_t number);
/* kafka_tail_find looks up an event in the messages read so far. */
bool kafka_tail_find(struct kafka_tail *t, struct str id, struct kafka_place *ret);
/* kafka_tail_partial returns whether the messages were too many to read them all. */
bool kafka_tail_partial(struct kafka_tail *t);

#endif
