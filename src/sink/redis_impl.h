/* redis_impl.h: private to the Redis sink: redis.c (settings and sink methods), redis_route.c (the
 * choice of a server), redis_node.c (a server: sending and replies), redis_command.c (the commands)
 * and redis_lease.c. */
#ifndef SINK_REDIS_IMPL_H
#define SINK_REDIS_IMPL_H

#include "redis/conn.h"
#include "redis/locate.h"
#include "sink/broker.h"

#define REDIS_ID 48       /* an id, "18446744073709551615-18446744073709551615", and its NUL */
#define REDIS_WINDOW 4096 /* requests in flight at a server */
#define REDIS_RUN 256     /* events of one script */

/* How the server is located: by the URL, by Sentinels, or by the slot of the stream. */
enum redis_kind { REDIS_SINGLE, REDIS_SENTINEL, REDIS_CLUSTER };

/* The URL's settings. Strings are owned. (1) seed[0..n_seeds) are the Sentinels, or servers of the
 * cluster; none for a single server. (2) `url` has the login, and the address of a single
 * server. */
struct redis_settings {
    enum redis_kind kind;
    struct redis_url url;
    struct redis_url *seed;
    size_t n_seeds;
    char *master; /* the name by which Sentinels know the master */
    char *sentinel_user, *sentinel_password_file;
    char *stream;              /* template of the stream's name */
    int64_t maxlen, maxage_ms; /* 0: no limit; at most one of the two is set */
    int64_t replicas, replicas_wait_ms;
    char *lease; /* key of the lease; NULL: no lease */
    int64_t lease_ms;
    bool dedupe;
    int64_t dedupe_ms; /* maximum time that an id is remembered */
    enum message_format format;
    char *source; /* of CloudEvents; NULL: the default */
};

/* redis_settings_read parses the URL of a sink. The caller releases *s, even after an error.
 * Errors: ERR_CONFIG, ERR_NOMEM. */
int redis_settings_read(const char *url, struct redis_settings *s, struct error *err);
void redis_settings_release(struct redis_settings *s);

/* The subject of a request: an event, replicas, the lease, or a slot being migrated. */
enum request_kind {
    REQUEST_XADD,
    REQUEST_WAIT,
    REQUEST_EXTEND,
    REQUEST_TAKE,
    REQUEST_ASKING,
    REQUEST_FORGET, /* the reply is ignored */
};

/* A request in flight. (1) With replicas, an XADD that succeeded is `added`, and stays until the
 * following WAIT has a reply. (2) The events of one script are adjacent and share one reply. `run`
 * of the first one is their number, and 0 for the others. (3) f.mark is the stream of an XADD. */
struct redis_request {
    struct in_flight f;
    enum request_kind kind;
    bool added;
    size_t run;    /* number of events that share the reply; 1 without a script */
    unsigned hops; /* number of redirections so far */
    char id[REDIS_ID];
};

/* The outstanding request about the lease. */
enum lease_asking {
    LEASE_NOTHING,
    LEASE_EXTEND, /* an extension */
    LEASE_TAKE,   /* an extension, followed by a SET in case the key is free */
};

/* (1) The lease is held until `until`, counted from before its request. (2) `next` is when to
 * request it again; valid only while asking == LEASE_NOTHING. Times are monotonic. */
struct redis_lease {
    char token[33]; /* the value of the key while the lease is ours */
    int64_t until, asked, next;
    enum lease_asking asking;
    bool no_script; /* the server does not know the script: send its text */
    struct sink_lease counts;
};

/* One server: its connection, and its requests in flight. (1) `awaited` is the first request in the
 * window without a reply; NULL: none. Requests before it wait for a WAIT. (2) While the connection
 * is closed, no request is in flight. */
struct redis_node {
    struct redis_sink *sink;
    struct redis_url url;
    struct redis_conn conn;
    struct window window;
    struct redis_request *awaited;
    bool unwaited; /* an XADD was queued since the last WAIT */
    bool stale;    /* reconnect once no request is in flight */
    bool alone;    /* the last event sent is large: no other is sent while it is in flight */
    /* Cluster only. */
    int64_t good_at;  /* when it last worked; 0: never */
    int64_t retry_at; /* earliest time of the next reconnect */
    int64_t retry_ms; /* the last backoff; 0: the last connection worked */
    bool owns;        /* known to have slots */
    char why[300];    /* why it is unavailable */
};

/* The slots of a cluster, and the query for them. (1) owner[slot] - 1 is the index of a node; 0:
 * unknown. */
struct redis_map {
    uint16_t owner[REDIS_SLOTS];
    struct redis_conn conn; /* open while a server is being queried: node[at] */
    size_t at;
    bool wanted, asking, known;
    int64_t since, next; /* when the server was queried, and when to query again */
};

struct redis_sink {
    struct broker b;
    struct redis_settings set;
    struct redis_node **node; /* a single node, except for a cluster */
    size_t n_nodes;
    struct redis_sentinel sentinel; /* REDIS_SENTINEL only */
    int64_t watch_at;               /* when to resubscribe to a Sentinel */
    struct redis_map *map;          /* REDIS_CLUSTER only */
    char client[80];
    struct buf args;      /* of a script */
    struct buf seen;      /* name of the key that remembers event ids */
    int64_t scripts_from; /* no scripts before this time, because the server refused them */
    struct redis_lease lease;
};

static inline int64_t redis_now(const struct redis_sink *r)
{
    return broker_now(&r->b);
}

static inline bool redis_limited(const struct redis_sink *r)
{
    return r->set.maxlen || r->set.maxage_ms;
}

/* redis_node_new creates a node for a server. It takes ownership of the URL, even on failure.
 * Errors: ERR_NOMEM. */
int redis_node_new(struct redis_sink *r, struct redis_url *url, struct redis_node **ret,
                   struct error *err);
void redis_node_free(struct redis_node *n);

bool redis_node_goes_to(struct redis_sink *r, const struct event *ev, const struct stream *st);
/* redis_node_connect connects if the connection is closed, or replaces an idle one closed by the
 * server. */
int redis_node_connect(struct redis_node *n, struct error *err);
bool redis_node_has_room(const struct redis_node *n, const struct event *ev);
/* redis_node_send queues the first of `count` deliveries, with as much of its chain as fits into
 * one script. *ret is the number of queued deliveries. On failure it queues nothing:
 * ERR_UNAVAILABLE, ERR_NOMEM, or ERR_INVALID if the first one cannot be expressed. */
int redis_node_send(struct redis_node *n, struct delivery *const *d, size_t count,
                    struct stream *st, size_t *ret, struct error *err);
/* redis_node_forget tells a server to forget event ids. If the server is unreachable now, the ids
 * expire later. */
void redis_node_forget(struct redis_node *n, const struct event *const *ev, size_t count,
                       struct str stream);
/* redis_node_drive writes and reads, and ends requests that have timed out. */
void redis_node_drive(struct redis_node *n);
int64_t redis_node_deadline(const struct redis_node *n); /* of redis_node_drive */
void redis_node_cancel(struct redis_node *n);

/* redis_route_init adds the nodes known from the URL. */
int redis_route_init(struct redis_sink *r, struct error *err);
void redis_route_release(struct redis_sink *r);
/* redis_route_of returns the node that, as far as known, owns a key. */
struct redis_node *redis_route_of(struct redis_sink *r, struct str key);
/* redis_route_open opens the connection to a node, or postpones that until a Sentinel has named the
 * address. */
int redis_route_open(struct redis_node *n, struct error *err);
/* redis_route_drive follows changes reported by Sentinels and the cluster. */
void redis_route_drive(struct redis_sink *r);
int64_t redis_route_deadline(const struct redis_sink *r);
void redis_route_lost(struct redis_node *n, const struct error *err);
/* Two methods of the sink. */
size_t redis_fds(struct sink *sk, struct pollfd *out, size_t max);
void redis_broker(struct sink *sk, struct sink_broker *ret);
/* redis_route_probe sends the queries that locate the servers, as before the first event, and waits
 * for the replies. */
int redis_route_probe(struct redis_sink *r, int64_t timeout_ms, struct error *err);

#define REDIS_AWAY_MS 250 /* delay for an event whose server is unavailable while others work */

void redis_route_good(struct redis_node *n);
/* redis_route_away returns the status for events whose server is unavailable: they wait for the
 * sink, or only for this server (SINK_LATER). */
enum sink_status redis_route_away(const struct redis_node *n);
/* redis_route_is_probed returns whether a server that was unavailable is being retried. */
bool redis_route_is_probed(const struct redis_node *n);
/* redis_route_redirect resends the `count` events from `first` on to the server of the cluster
 * named by an error; returns false if the error names none. */
bool redis_route_redirect(struct redis_node *n, struct redis_request *first, size_t count,
                          const char *said);

/* redis_command_xadd queues the XADD of one event. redis_command_run queues a script that appends
 * the first *count events to one stream, and reduces *count if one of them cannot be expressed. On
 * failure they queue nothing: ERR_NOMEM, or ERR_INVALID if the first event cannot be expressed. */
int redis_command_xadd(struct redis_node *n, const struct delivery *d, const struct stream *st,
                       struct error *err);
int redis_command_run(struct redis_node *n, struct delivery *const *d, size_t *count,
                      const struct stream *st, struct error *err);

void redis_command_forget(struct redis_node *n, const struct event *const *ev, size_t count,
                          struct str stream);

/* redis_node_lost ends all requests in flight because the connection failed, and closes the
 * connection. */
void redis_node_lost(struct redis_node *n, const struct error *err);
/* redis_node_push adds a request to the window, which must have room. d and st belong to an XADD,
 * and are otherwise NULL. */
struct redis_request *redis_node_push(struct redis_node *n, enum request_kind kind,
                                      struct delivery *d, struct stream *st);

/* redis_lease_init generates the token. Without a lease in the settings, all these functions do
 * nothing, and the lease counts as held. */
int redis_lease_init(struct redis_sink *r, struct error *err);
/* redis_lease_drive requests the lease, or its extension, when due. */
void redis_lease_drive(struct redis_sink *r);
/* redis_lease_answer handles the reply to such a request; NULL means that the connection was lost
 * first. */
void redis_lease_answer(struct redis_sink *r, enum request_kind kind, const redisReply *reply);
/* redis_lease_held returns whether we hold the lease now. It counts a lease that has expired as
 * lost. */
bool redis_lease_held(struct redis_sink *r);
int64_t redis_lease_deadline(const struct redis_sink *r); /* of redis_lease_drive */
/* redis_lease_release releases the lease, if we hold it and the server is reachable. */
void redis_lease_release(struct redis_sink *r);

#endif
