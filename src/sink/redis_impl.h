/* redis_impl.h: what the files of the Redis sink share: redis.c (the whole), redis_route.c and
 * redis_map.c (which server), redis_node.c (sending to one), redis_command.c (what is sent),
 * redis_answer.c (what replies mean), redis_lease.c and redis_settings.c. */
#ifndef SINK_REDIS_IMPL_H
#define SINK_REDIS_IMPL_H

#include "event/template.h"
#include "redis/cluster.h"
#include "redis/conn.h"
#include "redis/sentinel.h"
#include "sink/broker.h"

#define REDIS_ID 48       /* an id, "18446744073709551615-18446744073709551615", and its NUL */
#define REDIS_WINDOW 4096 /* requests in flight at a server */
#define REDIS_RUN 256     /* events of one script */

/* How to find the server: it is named, Sentinels know it, or the stream's name decides. */
enum redis_kind { REDIS_SINGLE, REDIS_SENTINEL, REDIS_CLUSTER };

/* What the URL says. Strings are owned. (1) seed[0..n_seeds) are the Sentinels, or servers of the
 * cluster; none for a single server. (2) url has the login, and the address of a single server. */
struct redis_settings {
    enum redis_kind kind;
    struct redis_url url;
    struct redis_url *seed;
    size_t n_seeds;
    char *master; /* its name at the Sentinels */
    int64_t db;
    char *sentinel_user, *sentinel_password_file;
    char *stream;              /* template of the stream's name */
    int64_t maxlen, maxage_ms; /* 0: no limit; at most one of them is set */
    int64_t replicas, replicas_wait_ms;
    char *lease; /* key; NULL: no lease */
    int64_t lease_ms;
    bool dedupe;
    int64_t dedupe_ms; /* how long an id is remembered at most */
    enum message_format format;
    char *source; /* of CloudEvents; NULL: the usual one */
};

/* redis_settings_read reads a URL into *s, which the caller releases, also after an error. Errors:
 * ERR_CONFIG, ERR_NOMEM. */
int redis_settings_read(const char *url, struct redis_settings *s, struct error *err);
void redis_settings_release(struct redis_settings *s);

/* What a reply will be about: an event, replicas, the lease, or that a slot is on its way. */
enum request_kind {
    REQUEST_XADD,
    REQUEST_WAIT,
    REQUEST_EXTEND,
    REQUEST_TAKE,
    REQUEST_ASKING,
    REQUEST_FORGET, /* the answer does not matter */
};

/* A request in flight. (1) With replicas, an XADD that succeeded is `added`, and stays until the
 * WAIT after it is answered. (2) The events of one script are adjacent and share one reply. The
 * first of them has their number in `run`, the others have 0. (3) f.mark is the stream of an
 * XADD. */
struct redis_request {
    struct flight f;
    enum request_kind kind;
    bool added;
    size_t run;    /* how many events the reply is for; 1 without a script */
    unsigned hops; /* how often a server of the cluster has sent it on to another */
    char id[REDIS_ID];
};

/* What we are asking about the lease. */
enum lease_asking {
    LEASE_NOTHING,
    LEASE_EXTEND, /* an extension */
    LEASE_TAKE,   /* an extension, followed by a SET if the key is free */
};

/* (1) The lease is held until `until`, which is counted from before it was asked for. (2) `next` is
 * when to ask again; it counts only while asking == LEASE_NOTHING. Times are monotonic. */
struct redis_lease {
    char token[33]; /* the value of the key while the lease is ours */
    int64_t until, asked, next;
    enum lease_asking asking;
    bool no_script; /* the server does not have the script: send its text */
    struct sink_lease counts;
};

/* One server: the connection to it, and what is in flight there. (1) `awaited` is the first
 * request in the window that was not replied to; NULL: all were. Those before it wait for a
 * WAIT. (2) Nothing is in flight while the connection is closed. */
struct redis_node {
    struct redis_sink *sink;
    struct redis_url url;
    struct redis_conn conn;
    struct window window;
    struct redis_request *awaited;
    bool unwaited; /* an XADD was queued since the last WAIT */
    bool stale;    /* reconnect once nothing is in flight */
    bool alone;    /* the last event sent is large: no other is sent while it is in flight */
    /* Of a cluster. */
    int64_t good_at;  /* monotonic: when it last did what it was asked; 0: never */
    int64_t retry_at; /* monotonic: no connection is tried before then */
    int64_t retry_ms; /* the last pause; 0: the last connection was good */
    bool owns;        /* it has slots, as far as we know */
    char why[300];    /* why it is away */
};

/* Which server of a cluster has which slot, and how we find out. (1) owner[slot] - 1 is an index of
 * a node; 0: not known. */
struct redis_map {
    uint16_t owner[REDIS_SLOTS];
    struct redis_conn conn; /* open while a server is asked: node[at] */
    size_t at;
    bool wanted, asking, known;
    int64_t since, next; /* monotonic: when it was asked, and when to ask again */
};

struct redis_sink {
    struct broker b;
    struct redis_settings set;
    struct template *name;
    bool fixed;               /* every event goes to the same stream */
    struct redis_node **node; /* one, unless it is a cluster */
    size_t n_nodes;
    struct redis_sentinel sentinel; /* REDIS_SENTINEL only */
    int64_t changes;                /* of the master that we have followed */
    int64_t watch_at;               /* monotonic: when to ask a Sentinel again to tell us */
    struct redis_map *map;          /* REDIS_CLUSTER only */
    char client[80];
    struct message_style style;
    struct buf stream_name, envelope;
    struct buf args;      /* of a script */
    struct buf seen;      /* name of the key that remembers ids */
    int64_t scripts_from; /* monotonic: no scripts before then, because the server refuses them */
    struct redis_lease lease;
};

static inline int64_t redis_now(const struct redis_sink *r)
{
    return broker_now(&r->b);
}

/* redis_waited is how long the oldest request at a server has been in flight. */
static inline int64_t redis_waited(const struct redis_node *n)
{
    return n->window.first ? redis_now(n->sink) - n->window.first->since : 0;
}

static inline bool redis_limited(const struct redis_sink *r)
{
    return r->set.maxlen || r->set.maxage_ms;
}

/* redis_node_new makes a node for a server, whose URL it takes over, also on failure: ERR_NOMEM. */
int redis_node_new(struct redis_sink *r, struct redis_url *url, struct redis_node **ret,
                   struct error *err);
void redis_node_free(struct redis_node *n);

/* redis_node_goes_to says whether an event goes to a stream. */
bool redis_node_goes_to(struct redis_sink *r, const struct event *ev, const struct stream *st);

/* redis_node_connect connects if there is no connection, or the server has closed an idle one. */
int redis_node_connect(struct redis_node *n, struct error *err);
/* redis_node_has_room says whether an event may be sent now. */
bool redis_node_has_room(const struct redis_node *n, const struct event *ev);
/* redis_node_send queues the first of `count` deliveries, with as many of its chain as go into one
 * script. *ret is their number. On failure nothing is queued: ERR_UNAVAILABLE, ERR_NOMEM, or
 * ERR_INVALID if the first cannot be expressed. */
int redis_node_send(struct redis_node *n, struct delivery *const *d, size_t count,
                    struct stream *st, size_t *ret, struct error *err);
/* redis_node_forget asks a server to forget events, if it can be asked now: it will in time. */
void redis_node_forget(struct redis_node *n, const struct event *const *ev, size_t count,
                       struct str stream);
/* redis_node_drive writes, reads, and gives up what has waited for too long. */
void redis_node_drive(struct redis_node *n);
/* redis_node_deadline returns when redis_node_drive wants to be called. */
int64_t redis_node_deadline(const struct redis_node *n);
/* redis_node_cancel ends everything in flight. */
void redis_node_cancel(struct redis_node *n);

/* redis_route_add makes a node with that address and our login. */
int redis_route_add(struct redis_sink *r, const char *host, const char *port, struct error *err);
/* redis_route_init makes the nodes that are known from the URL. */
int redis_route_init(struct redis_sink *r, struct error *err);
void redis_route_release(struct redis_sink *r);
/* redis_route_of returns the node that a key belongs to, as far as we know. */
struct redis_node *redis_route_of(struct redis_sink *r, struct str key);
/* redis_route_open opens the connection of a node, or holds it until a Sentinel has said where. */
int redis_route_open(struct redis_node *n, struct error *err);
/* redis_route_drive follows what Sentinels and the cluster say about who is where. */
void redis_route_drive(struct redis_sink *r);
/* redis_route_busy says whether anything is in flight. */
bool redis_route_busy(const struct redis_sink *r);
size_t redis_route_fds(const struct redis_sink *r, struct pollfd *out, size_t max);
int64_t redis_route_deadline(const struct redis_sink *r);
/* redis_route_lost notes that the connection of a node has failed. */
void redis_route_lost(struct redis_node *n, const struct error *err);
/* redis_route_broker says where the servers are, and which of them take our events. */
void redis_route_broker(const struct redis_sink *r, struct sink_broker *ret);
/* redis_route_probe asks whoever has to be asked before the first event, and waits for it. */
int redis_route_probe(struct redis_sink *r, int64_t timeout_ms, struct error *err);

#define REDIS_AWAY_MS 250 /* how long an event waits whose server is away, while others work */

/* The same for a cluster: redis_map_init makes the nodes of the URL, and so on. */
int redis_map_init(struct redis_sink *r, struct error *err);
void redis_map_release(struct redis_sink *r);
struct redis_node *redis_map_of(struct redis_sink *r, unsigned slot);
int redis_map_open(struct redis_node *n, struct error *err);
void redis_map_lost(struct redis_node *n, const struct error *err);
/* redis_map_good notes that a node does what it is asked. */
void redis_map_good(struct redis_node *n);
void redis_map_drive(struct redis_sink *r);
int64_t redis_map_deadline(const struct redis_sink *r);
int redis_map_probe(struct redis_sink *r, int64_t timeout_ms, struct error *err);
/* redis_map_away says what an event has to wait for whose server is away: for the sink, or only for
 * this server (SINK_LATER). */
enum sink_status redis_map_away(const struct redis_node *n);
/* redis_map_is_probed says whether a server that was away is being tried again. */
bool redis_map_is_probed(const struct redis_node *n);
/* redis_map_redirect sends the `count` events from `first` on to the server that an error names;
 * false if it names none. */
bool redis_map_redirect(struct redis_node *n, struct redis_request *first, size_t count,
                        const char *said);

/* redis_command_xadd queues the XADD of one event, redis_command_run a script that appends the
 * first *count events to one stream; it makes that smaller if it meets one that cannot be
 * expressed. On
 * failure they queue nothing: ERR_NOMEM, or ERR_INVALID if the first cannot be expressed. */
int redis_command_xadd(struct redis_node *n, const struct delivery *d, const struct stream *st,
                       struct error *err);
int redis_command_run(struct redis_node *n, struct delivery *const *d, size_t *count,
                      const struct stream *st, struct error *err);

/* redis_command_forget queues the removal of ids from what is remembered about a stream. */
void redis_command_forget(struct redis_node *n, const struct event *const *ev, size_t count,
                          struct str stream);

/* redis_node_push puts a request into the window, which must have room. d and st are those of an
 * XADD, else NULL. */
struct redis_request *redis_node_push(struct redis_node *n, enum request_kind kind,
                                      struct delivery *d, struct stream *st);

/* redis_answer_reply takes the next reply, and calls done for the events it decides. It is a
 * redis_reply_fn. */
void redis_answer_reply(void *node, redisReply *reply);
/* redis_answer_all ends everything in flight, and closes the connection. What was sent may have
 * been added; it will be sent again, with the same event id. */
void redis_answer_all(struct redis_node *n, enum sink_status status, const char *why);
/* redis_answer_lost does so because the connection failed. */
void redis_answer_lost(struct redis_node *n, const struct error *err);

/* redis_lease_init draws the token. Without a lease in the settings all of these do nothing, and
 * the lease is always held. */
int redis_lease_init(struct redis_sink *r, struct error *err);
/* redis_lease_drive asks for the lease, or for an extension, when that is due. */
void redis_lease_drive(struct redis_sink *r);
/* redis_lease_answer takes the reply to such a request; NULL if the connection was lost first. */
void redis_lease_answer(struct redis_sink *r, enum request_kind kind, const redisReply *reply);
/* redis_lease_held says whether the lease is ours now. It counts a lease that has run out. */
bool redis_lease_held(struct redis_sink *r);
/* redis_lease_deadline returns when redis_lease_drive wants to be called. */
int64_t redis_lease_deadline(const struct redis_sink *r);
/* redis_lease_release gives the lease back, if we hold it and the server is there. */
void redis_lease_release(struct redis_sink *r);

#endif
