/* sink.h: the contract of a sink, the destination of a consumer's events. docs/extending.md is the
 * tutorial.
 *
 * A sink belongs to one pipeline and is called only from its thread. It has no knowledge of
 * retries, order or claims: it accepts deliveries, makes progress when driven, and reports the
 * result of each delivery. */
#ifndef SINK_SINK_H
#define SINK_SINK_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/err.h"
#include "event/event.h"

/* One event in flight. The engine owns it; the sink may keep the pointer until it has called
 * done. */
struct delivery {
    const struct event *ev;
    int attempt; /* 1 for the first attempt */
    /* may take effect only after the previous delivery in the same call to submit has; see
     * SINK_CHAINS */
    bool chained;
    /* may already have taken effect: a worker vanished with it in flight, or a sink returned it
     * without knowing its result */
    bool again;
};

/* The result of a delivery. */
enum sink_status {
    SINK_DELIVERED, /* stored by the receiver */
    SINK_RETRY,     /* this event failed; a retry may succeed */
    SINK_REJECT,    /* this event can never be delivered */
    /* the sink is unavailable; the event is not at fault; no attempt is counted */
    SINK_DOWN,
    /* a worker of a newer version may be able to handle it; no attempt is counted */
    SINK_NOT_MINE,
    /* not now, for a reason that affects more than this event but not all events (one of several
     * servers is unavailable): the event and its key wait for at least retry_after_ms; others
     * continue; no attempt is counted */
    SINK_LATER,
    /* the receiver works, but refuses this event, or all events for its destination (its stream,
     * topic, subject, queue): an attempt is counted even if no other event is delivered; others
     * continue */
    SINK_REFUSED,
    /* the sink's configuration is wrong or its peer is permanently gone: the consumer must stop */
    SINK_FATAL,
    /* the receiver accepts no more events: the consumer is paused; this event is kept, without an
     * attempt */
    SINK_PAUSE,
    SINK_CANCELLED, /* ended by sink_ops.cancel */
};

struct sink_result {
    enum sink_status status;
    int native;       /* exit status, errno, HTTP status */
    const char *text; /* the reason; NULL when delivered; borrowed for the call to done */
    /* the receiver's id for the event; may be NULL; borrowed for the call to done */
    const char *receipt;
    int64_t retry_after_ms; /* delay requested by the receiver; 0: none */
    bool unasked; /* decided without asking the receiver, so it says nothing about the receiver */
};

enum {
    /* Deliveries take effect in the order of submission: an event is delivered, or it and all later
     * ones end as SINK_DOWN, SINK_FATAL or SINK_CANCELLED, in submission order. (A peer may keep
     * order only within a key, as a topic with partitions does. Then this holds for the events of
     * each key; events of other keys may still be delivered.) The engine may therefore have many
     * events of one key in flight. Without this flag it sends the next event of a key only after
     * the previous one has ended.
     *
     * SINK_REJECT is allowed too, for an event that this sink can never express. The event does not
     * take effect, and all others, including later ones of its key, end as if it had been absent,
     * as they do after any dead letter. The sink must reject the event whenever it is offered,
     * because after a crash it may be offered again after the others were delivered. SINK_REFUSED
     * is allowed as well if no later event of the key that is in flight takes effect: each of these
     * ends as SINK_REFUSED, or as above. SINK_RETRY, SINK_LATER and SINK_NOT_MINE are never
     * allowed: the event would be retried after later events of its key. */
    SINK_FAILSTOP = 1,

    /* The sink supports chained deliveries, so an event may be submitted together with the events
     * of its key that wait for it. A chain ends in order: after a delivery that was not delivered,
     * whatever its status, no later one takes effect, and all of these end as SINK_DOWN, SINK_FATAL
     * or SINK_CANCELLED. If submit accepts only the beginning of a chain, the rest is offered again
     * after the beginning has ended. Other sinks never receive a chained delivery. */
    SINK_CHAINS = 2,

    /* Delivery runs application code in this process, so an event can crash it. */
    SINK_IN_PROCESS = 4,
};

struct sink;
struct http_options;

/* Settings of a sink. Strings live as long as the sink. */
struct sink_config {
    const char *url;                 /* the whole URL: "exec:./notify.sh" */
    const char *consumer;            /* the consumer's name */
    int64_t timeout_ms;              /* time limit of a delivery */
    int concurrency;                 /* simultaneous deliveries, for sinks without SINK_FAILSTOP */
    int lanes;                       /* lanes of the consumer: how many such sinks may be active */
    const struct http_options *http; /* for webhooks; NULL: the defaults */
    /* permissions of a created file; 0: 0640 less the umask */
    int file_mode;
    /* names of extra variables for commands; NULL: none */
    const char *exec_env;
    const struct clock *clock;
    /* done is called exactly once per accepted delivery, from submit, drive or cancel. */
    void (*done)(void *ctx, struct delivery *d, const struct sink_result *r);
    void *done_ctx;
};

/* A lease on delivery, with counters for metrics. */
struct sink_lease {
    bool held;
    int64_t acquired, renewed, lost; /* it expired, or another relay holds it */
    int64_t unanswered;              /* renewals without a reply */
};

/* Length of a list of server addresses, including the NUL. */
#define SINK_PEERS 200

/* A sink's view of its broker, for operators: a copy without secrets. (1) since == 0 if and only if
 * unconfirmed == 0. */
struct sink_broker {
    const char *kind; /* "kafka"; a literal */
    bool connected;   /* last known state */
    /* the servers that we are connected to, or trying to reach: "host:9092,host:9093" */
    char broker[SINK_PEERS];
    /* leader of our destination, as last reported by the broker; "": unknown */
    char leader[SINK_PEERS];
    size_t unconfirmed; /* events accepted but not confirmed yet */
    int64_t since;      /* when the oldest of these was accepted, monotonic ns */
};

struct sink_ops {
    const char *scheme;   /* "exec": the part of the URL before the colon */
    const char *synopsis; /* "exec:COMMAND" */
    const char *help;     /* one line */
    unsigned caps;        /* capabilities common to all sinks of this kind; see sink_caps */

    /* open checks the URL and initializes the sink; an unavailable peer is not an error. On success
     * the caller owns *ret and releases it with close. Errors: ERR_CONFIG if the sink can never
     * work, ERR_UNAVAILABLE, ERR_NOMEM. */
    int (*open)(const struct sink_config *cfg, struct sink **ret, struct error *err);

    /* close frees the sink. No delivery is in flight: the engine has cancelled or awaited all. */
    void (*close)(struct sink *sk);

    /* submit accepts the first k of n deliveries, 0 <= k <= n, and returns k. A k below n means
     * back-pressure: the rest is offered again after drive has made progress. An idle sink accepts
     * at least one. */
    size_t (*submit)(struct sink *sk, struct delivery *const *d, size_t n);

    /* drive makes as much progress as it can without waiting for the peer (a local write and fsync
     * may block). */
    void (*drive)(struct sink *sk);

    /* fds fills in at most `max` descriptors to poll before the next drive, and returns their
     * number. */
    size_t (*fds)(struct sink *sk, struct pollfd *out, size_t max);

    /* deadline returns the monotonic time at which drive must be called even if no fd is ready; 0:
     * at once; CLOCK_NEVER: none. */
    int64_t (*deadline)(struct sink *sk);

    /* cancel ends all deliveries in flight at once: done(SINK_CANCELLED) for each, or its actual
     * result if known. */
    void (*cancel)(struct sink *sk);

    /* The remaining methods may be NULL. */

    /* lease returns the lease by which several relays take turns, and whether we hold it; NULL:
     * always our turn. Without the lease, the engine claims nothing, and releases events that were
     * not submitted. It drives a sink with a lease (drive, fds, deadline) even if no delivery is in
     * flight. */
    const struct sink_lease *(*lease)(struct sink *sk);
    /* attended returns whether the sink must be driven (drive, fds, deadline) although no delivery
     * is in flight: it maintains a connection, or awaits a reply that it will report. NULL:
     * never. */
    bool (*attended)(struct sink *sk);
    /* marks lists the high-water marks that have moved since the last call to marks_recorded, which
     * confirms that the listed marks are recorded. The list is borrowed until the next call on the
     * sink. */
    size_t (*marks)(struct sink *sk, const struct hwm **ret);
    void (*marks_recorded)(struct sink *sk);
    /* settled reports that the delivery of these events is recorded permanently: they will not be
     * offered again by mistake. A call may cover only part of a batch; after a crash there is
     * none. */
    void (*settled)(struct sink *sk, const struct event *const *ev, size_t n);
    /* probe connects as for a delivery, waits up to timeout_ms for a response, and delivers
     * nothing. NULL: nothing to check. Callable only on a sink that has not been used yet. */
    int (*probe)(struct sink *sk, int64_t timeout_ms, struct error *err);
    /* caution returns a line for operators about a risk in the setup; NULL: none. Called at the
     * start and after each drive. A new text has a new address. */
    const char *(*caution)(struct sink *sk);
    /* broker fills in the known state of the broker without querying it; *ret is zeroed. */
    void (*broker)(struct sink *sk, struct sink_broker *ret);
};

/* The base of every sink; it comes first in the backend's own struct. */
struct sink {
    const struct sink_ops *ops;
    struct sink_config cfg;
    unsigned caps; /* capabilities besides those of ops, depending on the URL; set by open */
};

/* sink_caps returns the capabilities of an open sink. */
static inline unsigned sink_caps(const struct sink *sk)
{
    return sk->ops->caps | sk->caps;
}

static inline void sink_done(struct sink *sk, struct delivery *d, const struct sink_result *r)
{
    sk->cfg.done(sk->cfg.done_ctx, d, r);
}

/* sink_unsent returns the result for an event that could not be sent. Only ERR_INVALID, which means
 * that no message can express the event, rejects it. Any other error, such as lack of memory, is
 * not the event's fault: the sink is down. The result borrows err. */
struct sink_result sink_unsent(const struct error *err);

/* sink_broker_of returns a sink's view of its broker. Without a broker, its kind is NULL. */
struct sink_broker sink_broker_of(struct sink *sk);
/* sink_peer_add adds a server to a list of struct sink_broker, unless it is already listed. It
 * cleans untrusted text. port may be NULL. A full list ends with dots. */
void sink_peer_add(char list[SINK_PEERS], const char *host, const char *port);

/* sink_kinds lists the sinks of this build and ends with NULL. In-process handlers are not
 * included: they have no URL. */
extern const struct sink_ops *const sink_kinds[];

/* sink_find returns the sink kind for a URL. For an unknown scheme it fails with ERR_CONFIG and
 * suggests the nearest scheme, or the Debian packages to build with if this build lacks the
 * sink. */
int sink_find(const char *url, const struct sink_ops **ret, struct error *err);

#endif
