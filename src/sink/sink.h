/* sink.h: the contract of a sink, the place a consumer delivers to. docs/extending.md is the
 * tutorial.
 *
 * A sink belongs to one pipeline and is called from its thread only. It knows nothing about
 * retries, order or claims: it accepts deliveries, makes progress when driven, and reports how
 * each one ended. */
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
    int attempt; /* 1 for the first */
    /* it may take effect only after the previous delivery in the same call of submit has; see
     * SINK_CHAINS */
    bool chained;
    /* it may already have taken effect: a worker vanished with it in flight, or a sink returned it
     * without knowing how it ended */
    bool again;
};

/* How a delivery ended. */
enum sink_status {
    SINK_DELIVERED, /* stored on the other side */
    SINK_RETRY,     /* this event failed; a retry may succeed */
    SINK_REJECT,    /* this event can never be delivered */
    /* the sink is unavailable; the event is not at fault; no attempt is counted */
    SINK_DOWN,
    /* a worker of a newer version may know what to do with it; no attempt is counted */
    SINK_NOT_MINE,
    /* not now, for a reason that affects more than this event but not all events (one of several
     * servers is unavailable): it waits for at least retry_after_ms, and its key with it; others
     * continue; no attempt is counted */
    SINK_LATER,
    /* the other side works, but refuses this event, or everything for the same destination (its
     * stream, topic, subject, queue): an attempt is counted even if nothing else gets through;
     * others continue */
    SINK_REFUSED,
    /* the sink's configuration is wrong or its peer is gone for good: the consumer must stop */
    SINK_FATAL,
    /* the other side wants no more events: the consumer is paused; this event is kept, without an
     * attempt */
    SINK_PAUSE,
    SINK_CANCELLED, /* given up because of sink_ops.cancel */
};

struct sink_result {
    enum sink_status status;
    int native;       /* exit status, errno, HTTP status */
    const char *text; /* why; NULL when delivered; borrowed for the call of done */
    /* the other side's id for it; may be NULL; borrowed for the call of done */
    const char *receipt;
    int64_t retry_after_ms; /* delay requested by the other side; 0: none */
    bool unasked; /* decided without asking the other side, so it says nothing about that */
};

enum {
    /* Deliveries take effect in the order of submission: an event is delivered, or it and
     * everything behind it come back SINK_DOWN, SINK_FATAL or SINK_CANCELLED, in submission
     * order. (For a peer that keeps order only within a key, as a topic with partitions does: it
     * and everything behind it of its key; events of other keys may still be delivered.) Then
     * the engine may have many events of one key in flight. Without this flag it sends the next
     * event of a key only after the previous one has ended.
     *
     * One more result is allowed: SINK_REJECT, for an event that this sink can never express. It
     * does not take effect, and the events around it, including those of its key behind it, end
     * as if it had not been there, as behind any dead letter. The result must be the same
     * whenever the event is offered again, because after a crash it may be offered again once
     * the others were delivered. SINK_REFUSED is allowed as well if no later event of the key in
     * flight takes effect: each of those comes back SINK_REFUSED, or as above. SINK_RETRY,
     * SINK_LATER and SINK_NOT_MINE are never returned: the event would be retried behind others
     * of its key. */
    SINK_FAILSTOP = 1,

    /* The sink supports chained deliveries, so an event may be submitted together with the events
     * of its key that wait for it. A chain ends in order: once a delivery in it is not delivered,
     * whatever its status, no later one takes effect, and they all come back SINK_DOWN, SINK_FATAL
     * or SINK_CANCELLED. If submit accepts only the beginning of a chain, the rest is offered again
     * after that has ended. Other sinks never see a chained delivery. */
    SINK_CHAINS = 2,

    /* Delivering runs application code in this process, so an event can crash it. */
    SINK_IN_PROCESS = 4,
};

struct sink;
struct http_options;

/* Settings of a sink. Strings live as long as the sink. */
struct sink_config {
    const char *url;                 /* whole: "exec:./notify.sh" */
    const char *consumer;            /* the consumer's name */
    int64_t timeout_ms;              /* per delivery */
    int concurrency;                 /* deliveries at once, for sinks without SINK_FAILSTOP */
    int lanes;                       /* of the consumer: how many such sinks may be active */
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

/* A lease on delivering, with counters for metrics. */
struct sink_lease {
    bool held;
    int64_t acquired, renewed, lost; /* it expired, or another holder has it */
    int64_t unanswered;              /* renewals without a reply */
};

/* Room for the addresses of a few servers, including the NUL. */
#define SINK_PEERS 200

/* What a sink knows about its broker, for operators. It is a copy and contains no secrets. (1)
 * since == 0 if and only if unconfirmed == 0. */
struct sink_broker {
    const char *kind; /* "kafka"; a literal */
    bool connected;   /* as far as we know */
    /* the servers we are connected to, or try to: "host:9092,host:9093" */
    char broker[SINK_PEERS];
    /* leader of what we write to, as last reported by the broker; "": unknown */
    char leader[SINK_PEERS];
    size_t unconfirmed; /* events accepted and not confirmed yet */
    int64_t since;      /* when the oldest of them was accepted, monotonic ns */
};

struct sink_ops {
    const char *scheme;   /* "exec": the part of the URL before the colon */
    const char *synopsis; /* "exec:COMMAND" */
    const char *help;     /* one line */
    unsigned caps;        /* common to all sinks of this kind; see sink_caps */

    /* open checks the URL and sets up the sink; a peer that is merely unavailable is not an error.
     * On success the caller owns *ret and releases it with close. Errors: ERR_CONFIG if it can
     * never work, ERR_UNAVAILABLE, ERR_NOMEM. */
    int (*open)(const struct sink_config *cfg, struct sink **ret, struct error *err);

    /* close frees everything. Nothing is in flight: the engine has cancelled or waited. */
    void (*close)(struct sink *sk);

    /* submit accepts the first k of n deliveries, 0 <= k <= n, and returns k. Fewer than n means
     * back-pressure: the rest is offered again after drive has made progress. A sink with nothing
     * in flight accepts at least one. */
    size_t (*submit)(struct sink *sk, struct delivery *const *d, size_t n);

    /* drive makes as much progress as it can without waiting for the peer (a local write and fsync
     * may block). */
    void (*drive)(struct sink *sk);

    /* fds lists what to poll for before the next drive: it fills in at most max entries and returns
     * how many. */
    size_t (*fds)(struct sink *sk, struct pollfd *out, size_t max);

    /* deadline returns the monotonic time at which drive must be called even if no fd is ready;
     * CLOCK_NEVER if none; 0 means at once. */
    int64_t (*deadline)(struct sink *sk);

    /* cancel ends everything in flight at once: done(SINK_CANCELLED) for each delivery, or its
     * actual result if known. */
    void (*cancel)(struct sink *sk);

    /* The rest may be NULL. */

    /* lease returns the lease by which several relays take turns, and whether we hold it; NULL:
     * always our turn. While it is not held nothing is claimed, and what was not submitted is
     * released. A sink with a lease is driven (drive, fds, deadline) even with nothing in
     * flight. */
    const struct sink_lease *(*lease)(struct sink *sk);
    /* attended returns whether the sink must be driven (drive, fds, deadline) although nothing is
     * in flight: it maintains a connection, or awaits a reply that it will have to report. NULL:
     * never. */
    bool (*attended)(struct sink *sk);
    /* marks lists the high-water marks that have moved since the last call of marks_recorded, which
     * confirms that the list is recorded. The list is borrowed until the next call on the sink. */
    size_t (*marks)(struct sink *sk, const struct hwm **ret);
    void (*marks_recorded)(struct sink *sk);
    /* settled reports that the delivery of these events is recorded permanently: they will not
     * be offered again by mistake. It may cover only part of a batch, and is not called after a
     * crash. */
    void (*settled)(struct sink *sk, const struct event *const *ev, size_t n);
    /* probe connects as a delivery would, waits up to timeout_ms for the other side to respond, and
     * delivers nothing. NULL: nothing to check. Only for a sink that has not been used yet. */
    int (*probe)(struct sink *sk, int64_t timeout_ms, struct error *err);
    /* caution returns a line for operators about a risk in the setup; NULL: none. It is called at
     * the start and after each drive. A new text has a new address. */
    const char *(*caution)(struct sink *sk);
    /* broker fills in what is known about the broker without querying it; *ret is zeroed. */
    void (*broker)(struct sink *sk, struct sink_broker *ret);
};

/* The base of every sink; it comes first in the backend's own struct. */
struct sink {
    const struct sink_ops *ops;
    struct sink_config cfg;
    unsigned caps; /* in addition to those of ops, depending on the URL; set by open */
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

/* sink_unsent returns the result for an event that could not be sent. Only ERR_INVALID, no message
 * can express it, rejects the event. Any other error, such as lack of memory, is not the event's
 * fault: the sink is down. The result borrows err. */
struct sink_result sink_unsent(const struct error *err);

/* sink_broker_of returns what a sink knows about its broker. Its kind is NULL if it has none. */
struct sink_broker sink_broker_of(struct sink *sk);
/* sink_peer_add adds a server to a list of struct sink_broker, unless it is already listed. It
 * cleans untrusted text. port may be NULL: there is none. A list that is full ends with dots. */
void sink_peer_add(char list[SINK_PEERS], const char *host, const char *port);

/* sink_kinds lists the sinks of this build and ends with NULL. In-process handlers are not
 * included: they have no URL. */
extern const struct sink_ops *const sink_kinds[];

/* sink_find returns the sink kind for a URL. It fails with ERR_CONFIG for an unknown scheme, and
 * suggests the nearest one, or the Debian packages to build with if the scheme is known but was
 * left out. */
int sink_find(const char *url, const struct sink_ops **ret, struct error *err);

#endif
