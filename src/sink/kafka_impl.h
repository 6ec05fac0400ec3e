/* kafka_impl.h: what the files of the Kafka sink share: kafka.c (what is in flight),
 * kafka_settings.c (its URL), kafka_message.c (what is sent), kafka_producer.c (the library and its
 * threads), kafka_answer.c (the table of answers, and what they mean for the events), kafka_topic.c
 * (whether the topic is there, is safe, and who leads it) and kafka_tail.c (whether an event is
 * there already). */
#ifndef SINK_KAFKA_IMPL_H
#define SINK_KAFKA_IMPL_H

#include <librdkafka/rdkafka.h>
#include <pthread.h>
#include <stdatomic.h>

#include "event/template.h"
#include "sink/broker.h"
#include "sink/broker_url.h"
#include "sink/kafka_tail.h"

#define KAFKA_WINDOW 8192 /* deliveries in flight */
#define KAFKA_TEXT 400    /* what the library says, on one line */
#define KAFKA_TOPIC_MAX 249

/* A property that is passed on to the library. Strings are owned. */
struct kafka_property {
    char *name, *value;
};

struct kafka_properties {
    struct kafka_property *list;
    size_t n;
};

enum kafka_sasl { KAFKA_SASL_DEFAULT, KAFKA_SASL_PLAIN, KAFKA_SASL_256, KAFKA_SASL_512 };

/* What the URL says besides where the brokers are. Strings are owned. */
struct kafka_settings {
    enum message_format format;
    char *source;         /* of CloudEvents; NULL: made of the consumer's name */
    enum kafka_sasl sasl; /* how to log in; counts only with a user */
    bool create;          /* make topics that are not there */
    bool dedupe;          /* look for what may be there already */
    int partitions, replicas;
    struct kafka_properties properties;
};

/* kafka_settings_read reads a URL into *s and *u, which the caller releases, also after an error.
 * Errors: ERR_CONFIG, ERR_NOMEM. */
int kafka_settings_read(const char *url, struct kafka_settings *s, struct broker_url *u,
                        struct error *err);
void kafka_settings_release(struct kafka_settings *s);
/* kafka_settings_topic returns the template of the topic. */
const char *kafka_settings_topic(const struct kafka_settings *s, const struct broker_url *u);

/* What an answer of the library or of a broker means. */
enum kafka_meaning {
    KAFKA_STORED,
    KAFKA_AWAY,    /* nothing speaks against the event: the sink is down */
    KAFKA_WITH,    /* it came back because another one did, which has the reason */
    KAFKA_REFUSED, /* one of those that were sent together can never pass */
    KAFKA_TOPIC,   /* the brokers work, and its topic takes nothing: an attempt counts */
    KAFKA_SETUP,   /* no waiting can help */
};

/* A row of the table that docs/brokers.md has for people. */
struct kafka_answer {
    rd_kafka_resp_err_t code;
    enum kafka_meaning meaning;
    const char *advice; /* NULL: none */
};

extern const struct kafka_answer kafka_answers[];
extern const size_t kafka_answer_rows;

/* kafka_answer_of looks an answer up. One that is not in the table means KAFKA_AWAY: no event is
 * buried for an unforeseen reason. */
const struct kafka_answer *kafka_answer_of(rd_kafka_resp_err_t code);
/* kafka_answer_text writes what an answer says: its name, its meaning, and the advice. */
void kafka_answer_text(rd_kafka_resp_err_t code, char out[KAFKA_TEXT]);

#define KAFKA_LED 64   /* partitions whose leader is remembered */
#define KAFKA_NAMED 16 /* brokers whose address is */

/* Who leads the partitions of the topic. (1) leader[i] is the id of the broker that leads partition
 * i; -1: not known. (2) name[0..n_named) are addresses of brokers. */
struct kafka_leaders {
    int32_t leader[KAFKA_LED];
    struct kafka_named {
        int32_t id;
        char host[100], port[8];
    } name[KAFKA_NAMED];
    size_t n_named;
};

/* kafka_topic_leaders_init knows nothing; kafka_topic_read_leaders takes what a broker says about
 * all of it, and kafka_topic_led that the leader of a partition has confirmed a message.
 * kafka_topic_list_leaders writes the addresses of the leaders, or "#ID" for one without. */
void kafka_topic_leaders_init(struct kafka_leaders *l);
void kafka_topic_read_leaders(struct kafka_leaders *l, const rd_kafka_metadata_t *md);
void kafka_topic_led(struct kafka_leaders *l, int32_t partition, int32_t broker);
void kafka_topic_list_leaders(const struct kafka_leaders *l, char out[SINK_PEERS]);

/* What is known of the topic. */
struct kafka_topic_facts {
    rd_kafka_resp_err_t err;
    int partitions, replicas; /* the fewest replicas that a partition has */
    int brokers;
    int min_insync; /* 0: not known */
    bool unclean;   /* a replica that is behind may become the leader */
    struct kafka_leaders leaders;
};

/* A producer, and the check of the topic that began with it. (1) `check` is joined before the
 * producer is destroyed. (2) `facts` may be read once `checked` is set. */
struct kafka_producer {
    rd_kafka_t *rk;
    rd_kafka_queue_t *queue;
    rd_kafka_topic_t *topic; /* NULL: the name is a template */
    int fd;                  /* an eventfd: there is something in the queue, or `checked` */
    bool single;             /* it sends each message separately, at once */
    bool checking;
    pthread_t check;
    atomic_bool checked;
    atomic_bool quit; /* the check is to end */
    struct kafka_topic_facts facts;
    /* what kafka_topic_check goes by */
    const struct kafka_settings *set;
    char topic_name[KAFKA_TOPIC_MAX + 1];
    int64_t patience_ms;
};

/* Producers that are being destroyed, each by a thread, because that may take its time. */
#define KAFKA_RETIRED 16
struct kafka_retired {
    pthread_t thread;
    atomic_bool gone;
    bool used;
    struct kafka_producer *p;
};

/* What is known of an event. From ITEM_STORED on it can be answered for. */
enum kafka_state {
    ITEM_WAITING,  /* to be handed to the producer */
    ITEM_LOOKUP,   /* it may be in the topic already: that is being found out */
    ITEM_SENT,     /* with the producer */
    ITEM_REFUSED,  /* it was refused, alone or with others */
    ITEM_BACK,     /* it came back; nothing speaks against it */
    ITEM_STORED,   /* the brokers have it */
    ITEM_UNFIT,    /* it can never pass */
    ITEM_NO_TOPIC, /* its topic takes nothing */
    ITEM_CUT,      /* one before it in its chain was not delivered */
};

/* An event in flight. */
struct kafka_item {
    struct flight f;
    uint64_t number; /* they are numbered as they are taken */
    uint64_t chain;  /* the number of the first of its chain */
    enum kafka_state state;
    bool unasked;    /* ITEM_UNFIT: known without the brokers */
    bool doubtful;   /* it may be in the topic already, and was not looked for yet */
    uint64_t lookup; /* of ITEM_LOOKUP: its number */
    rd_kafka_resp_err_t err;
    int32_t partition;
    int64_t offset;
    char *topic; /* of a template, owned; NULL: the one topic there is */
    char *why;   /* of ITEM_UNFIT, owned; NULL: `err` says it */
};

/* (1) `waiting` and what follows it in the window is to be handed to the producer; NULL: all was.
 * `taken` is the number of the next event. (2) `out` of them are ITEM_SENT. (3) While `breaking`,
 * nothing is handed over: a delivery has failed, so everything behind it comes back, and the
 * producer is replaced once it has, or at break_by. (4) Below the number `singly_to`, one is handed
 * over at a time: one of those is known to be refused, and the others are innocent. */
struct kafka_sink {
    struct broker b;
    struct kafka_settings set;
    struct broker_url url;
    struct template *name;
    bool fixed; /* every event goes to the same topic */
    char topic[KAFKA_TOPIC_MAX + 1];
    struct message_style style;
    struct kafka_producer *p; /* NULL: there is none now */
    struct kafka_tail *tail;  /* NULL: nothing had to be looked for yet */
    int tail_fd;              /* an eventfd: a lookup is done; -1: without dedupe */
    struct kafka_retired retired[KAFKA_RETIRED];
    struct window window;
    struct kafka_item *waiting;
    uint64_t taken, singly_to;
    size_t out;
    bool breaking;
    int64_t break_by;
    rd_kafka_resp_err_t broken_by;
    int64_t away_since;       /* monotonic: since when no broker has been reached; 0: one is */
    char trouble[KAFKA_TEXT]; /* what the library said last about a connection */
    int64_t batch_bytes;      /* of a request; smaller once a broker refused one as too large */
    bool told_facts, told_partial;
    bool answered; /* a broker has answered since the producer was made */
    struct kafka_leaders leaders;
    struct buf topic_name, text;
};

/* kafka_singly says whether one is handed over at a time. */
static inline bool kafka_singly(const struct kafka_sink *k)
{
    return (k->waiting ? k->waiting->number : k->taken) < k->singly_to;
}

static inline struct kafka_item *kafka_next(const struct kafka_item *it)
{
    return (struct kafka_item *)it->f.next;
}

/* Says whether an event is one of a chain, and not the first. */
static inline bool kafka_chained(const struct kafka_item *it)
{
    return it->number != it->chain;
}

/* kafka_message_topic returns the topic that an event goes to, borrowed until the next call; NULL
 * with ERR_INVALID if no name can be made for it, or ERR_NOMEM. */
const char *kafka_message_topic(struct kafka_sink *k, const struct event *ev, struct error *err);
/* kafka_message_produce hands an event to the producer. ERR_INVALID if it cannot be expressed; else
 * `native` is the library's code. */
int kafka_message_produce(struct kafka_sink *k, struct kafka_item *it, struct error *err);

/* kafka_producer_new makes a producer, which connects in its own threads. It reads the password, so
 * that one can be rotated. Errors: ERR_CONFIG, ERR_UNAVAILABLE, ERR_NOMEM. */
int kafka_producer_new(struct kafka_sink *k, struct kafka_producer **ret, struct error *err);
/* kafka_producer_retire takes the producer from the sink. What it has not sent it will not send,
 * and what comes back from it is not heard. */
void kafka_producer_retire(struct kafka_sink *k);
/* kafka_producer_room says whether one more can be retired. */
bool kafka_producer_room(struct kafka_sink *k);
/* kafka_producer_join waits until all retired ones are gone. */
void kafka_producer_join(struct kafka_sink *k);
/* kafka_producer_conf fills a configuration with all that a connection needs. */
int kafka_producer_conf(const struct kafka_sink *k, rd_kafka_conf_t *conf, struct error *err);
/* kafka_producer_patience_ms returns when the library gives up on a request: long before a
 * delivery's own time is up, so that it can try another broker. */
int64_t kafka_producer_patience_ms(const struct kafka_sink *k);
/* kafka_producer_wake makes the producer's descriptor readable. Any thread. */
void kafka_producer_wake(const struct kafka_producer *p);

/* kafka_topic_check asks about the topic, makes it if it should, and fills p->facts. It waits, so
 * it has a thread. */
void kafka_topic_check(struct kafka_producer *p);
/* kafka_topic_caution writes what in the facts may lose events; "": nothing. */
void kafka_topic_caution(const char *topic, const struct kafka_topic_facts *f,
                         char out[BROKER_CAUTION]);

/* kafka_answer_hear takes what the producer has to say. */
void kafka_answer_hear(struct kafka_sink *k);
/* kafka_answer_back notes that an event came back with this code. */
void kafka_answer_back(struct kafka_sink *k, struct kafka_item *it, rd_kafka_resp_err_t code);
/* kafka_answer_unfit notes that an event can never pass, known without asking. */
void kafka_answer_unfit(struct kafka_sink *k, struct kafka_item *it, const char *why);
/* kafka_answer_down ends everything in flight, in order: what is stored as delivered, the rest with
 * this status; and retires the producer. */
void kafka_answer_down(struct kafka_sink *k, enum sink_status status, const char *why);
/* kafka_answer_broken replaces a producer that broke, and decides what becomes of what came back.
 * kafka_answer_known answers for what is known. */
void kafka_answer_broken(struct kafka_sink *k);
void kafka_answer_known(struct kafka_sink *k);

#endif
