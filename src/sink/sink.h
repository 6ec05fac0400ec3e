/* sink.h: the contract of a sink, the place a consumer delivers to. docs/extending.md is the
 * tutorial.
 *
 * A sink belongs to one pipeline and is called from its thread only. It knows nothing about
 * retries, order or claims: it takes deliveries, makes progress when driven, and says how each one
 * ended. */
#ifndef SINK_SINK_H
#define SINK_SINK_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/err.h"
#include "event/event.h"
#include "event/hwm.h"

/* One event on its way. The engine owns it; the sink may keep the pointer until it has called
 * done. */
struct delivery {
    const struct event *ev;
    int attempt; /* 1 for the first */
    /* it may only take effect after the delivery before it in the same call of submit did; see
     * SINK_CHAINS */
    bool chained;
    /* it may have taken effect already: a worker vanished with it, or a sink gave it back without
     * having heard how it ended */
    bool again;
};

/* How one delivery ended. */
enum sink_status {
    SINK_DELIVERED, /* it is safe on the other side */
    SINK_RETRY,     /* this event failed; another attempt may pass */
    SINK_REJECT,    /* this event can never pass */
    /* the sink is away; nothing speaks against the event; no attempt is counted */
    SINK_DOWN,
    /* another worker, of a newer version, may know what to do with it; no attempt is counted */
    SINK_NOT_MINE,
    /* not now, for a reason that concerns neither this event alone nor all events (one server of
     * several is away): it waits for at least retry_after_ms, and its key with it; others go on; no
     * attempt is counted */
    SINK_LATER,
    /* the other side works, and refuses this event, or everything that goes where it goes (its
     * stream, topic, subject, queue): an attempt is counted even if nothing else gets through;
     * others go on */
    SINK_REFUSED,
    /* the sink's configuration is wrong or its peer is gone for good: the consumer must stop */
    SINK_FATAL,
    /* the other side wants no more events: the consumer is paused; this one stays, untried */
    SINK_PAUSE,
    SINK_CANCELLED, /* given up because of sink_ops.cancel */
};

struct sink_result {
    enum sink_status status;
    int native;       /* exit status, errno, HTTP status */
    const char *text; /* why; NULL when delivered; borrowed for the call of done */
    /* the other side's own id; may be NULL; borrowed for the call of done */
    const char *receipt;
    int64_t retry_after_ms; /* what the other side asked for; 0: nothing */
    bool unasked;           /* known without asking the other side, so it says nothing about it */
};

enum {
    /* Deliveries take effect in the order of submission: an event is delivered, or it and
     * everything behind it come back SINK_DOWN, SINK_FATAL or SINK_CANCELLED, in submission order.
     * (A peer that keeps order only within a key, as a topic with partitions does: or it and
     * everything behind it of its key; what is of other keys may be delivered.) Then the engine may
     * have many events of one key in flight. Without this flag it sends the
     * next event of a key only after the previous one has ended.
     *
     * One more answer is allowed: SINK_REJECT, for an event that this sink can never express.
     * Nothing of it takes effect, and the events around it end as if it had not been there, those
     * of its key behind it included, as behind any dead letter. The answer must be the same
     * whenever the event comes again, because a crash may bring it again after the others were
     * delivered. SINK_REFUSED is allowed, too, where no later event of the key in flight takes
     * effect: each of those comes back SINK_REFUSED, or as above. SINK_RETRY, SINK_LATER and
     * SINK_NOT_MINE are never said: the event would be tried again behind others of its key. */
    SINK_FAILSTOP = 1,

    /* The sink understands chained deliveries, so an event may be submitted together with the
     * events of its key that wait for it. A chain ends in order: once a delivery of it is not
     * delivered, whatever its status, no later one takes effect, and they all come back
     * SINK_DOWN, SINK_FATAL or SINK_CANCELLED. If submit takes only the beginning of a chain, the
     * rest is offered again after that has ended. Other sinks never see a chained delivery. */
    SINK_CHAINS = 2,

    /* Delivering runs code of the application in this process, so an event can kill it. */
    SINK_IN_PROCESS = 4,
};

struct sink;
struct http_options;

/* What a sink is opened with. Strings live as long as the sink. */
struct sink_config {
    const char *url;                 /* whole: "exec:./notify.sh" */
    const char *consumer;            /* the consumer's name */
    int64_t timeout_ms;              /* per delivery */
    int concurrency;                 /* deliveries at once, for sinks without SINK_FAILSTOP */
    int lanes;                       /* of the consumer: how many such sinks may be at work */
    const struct http_options *http; /* of webhooks; NULL: the defaults */
    /* permissions of a file that is made; 0: 0640 less the umask */
    int file_mode;
    /* names of variables that commands get besides the usual ones; NULL: none */
    const char *exec_env;
    const struct clock *clock;
    /* done is called exactly once per accepted delivery, from submit, drive or cancel. */
    void (*done)(void *ctx, struct delivery *d, const struct sink_result *r);
    void *done_ctx;
};

/* A lease on delivering, and what a sink counts about it, for metrics. */
struct sink_lease {
    bool held;
    int64_t acquired, renewed, lost; /* lost: it ran out, or another holder has it */
    int64_t unanswered;              /* renewals that got no answer */
};

/* Room for the addresses of a few servers, with the NUL. */
#define SINK_PEERS 200

/* What a sink knows of the broker it delivers to, for operators. It is a copy, and has no secrets.
 * (1) since == 0 if and only if unconfirmed == 0. */
struct sink_broker {
    const char *kind; /* "kafka"; a literal */
    bool connected;   /* as far as we have noticed */
    /* the servers we talk to, or try to: "host:9092,host:9093" */
    char broker[SINK_PEERS];
    /* who leads what we write to, as the broker last told us; "": it does not tell */
    char leader[SINK_PEERS];
    size_t unconfirmed; /* events that were taken, and not answered for */
    int64_t since;      /* when the oldest of them was taken, monotonic ns */
};

struct sink_ops {
    const char *scheme;   /* "exec": what stands before the colon of the URL */
    const char *synopsis; /* "exec:COMMAND" */
    const char *help;     /* one line */
    unsigned caps;        /* of every sink of this kind; see sink_caps */

    /* open checks the URL and gets ready; a peer that is merely away is no error here. On success
     * the caller owns *ret and releases it with close. Errors: ERR_CONFIG if it can never work,
     * ERR_UNAVAILABLE, ERR_NOMEM. */
    int (*open)(const struct sink_config *cfg, struct sink **ret, struct error *err);

    /* close frees everything. Nothing is in flight: the engine has cancelled or waited. */
    void (*close)(struct sink *sk);

    /* submit takes the first k of n deliveries, 0 <= k <= n, and returns k. Fewer than n means
     * back-pressure: the rest will be offered again after drive has made progress. A sink with
     * nothing in flight takes at least one. */
    size_t (*submit)(struct sink *sk, struct delivery *const *d, size_t n);

    /* drive makes as much progress as it can without waiting for the peer (a local write and fsync
     * may take their time). */
    void (*drive)(struct sink *sk);

    /* fds says what to poll for before the next drive: at most max entries, returns how many. */
    size_t (*fds)(struct sink *sk, struct pollfd *out, size_t max);

    /* deadline is the monotonic time at which drive wants to be called even if no fd is ready;
     * CLOCK_NEVER if none; 0 means at once. */
    int64_t (*deadline)(struct sink *sk);

    /* cancel ends everything in flight at once: done(SINK_CANCELLED) for each delivery, or its real
     * end if that is known. */
    void (*cancel)(struct sink *sk);

    /* The rest may be NULL. */

    /* lease says whether it is our turn, where several relays take turns; NULL: it always is. While
     * the lease is not held nothing is claimed, and what was not submitted is given back. A sink
     * with a lease is driven (drive, fds, deadline) even with nothing in flight. */
    const struct sink_lease *(*lease)(struct sink *sk);
    /* attended says whether the sink is to be driven (drive, fds, deadline) although nothing is in
     * flight: it keeps a connection that needs looking after, or has asked the other side something
     * and will have to tell the answer. NULL: it never is. */
    bool (*attended)(struct sink *sk);
    /* marks lists the high-water marks that have moved since marks_kept, which says that the list
     * is recorded. The list is borrowed until the next call of the sink. */
    size_t (*marks)(struct sink *sk, const struct hwm **ret);
    void (*marks_kept)(struct sink *sk);
    /* settled says that the delivery of these events is recorded for good: they will not be offered
     * again by mistake. It is called at least for a part of a batch, and not after a crash. */
    void (*settled)(struct sink *sk, const struct event *const *ev, size_t n);
    /* probe connects as a delivery would, waits up to timeout_ms for the other side to answer, and
     * delivers nothing. NULL: there is nothing to ask. Only for a sink that was not used yet. */
    int (*probe)(struct sink *sk, int64_t timeout_ms, struct error *err);
    /* caution is a line for operators about a risk in the setup; NULL: there is none. It is asked
     * for at the start and after each drive. A new text has a new address. */
    const char *(*caution)(struct sink *sk);
    /* broker fills in what is known about the broker without asking it; *ret is zeroed. */
    void (*broker)(struct sink *sk, struct sink_broker *ret);
};

/* The base of every sink; it comes first in the backend's own struct. */
struct sink {
    const struct sink_ops *ops;
    struct sink_config cfg;
    unsigned caps; /* besides those of ops: what this one can do because of its URL; set by open */
};

/* sink_caps returns what a sink can do, as it was opened. */
static inline unsigned sink_caps(const struct sink *sk)
{
    return sk->ops->caps | sk->caps;
}

static inline void sink_done(struct sink *sk, struct delivery *d, const struct sink_result *r)
{
    sk->cfg.done(sk->cfg.done_ctx, d, r);
}

/* sink_unsent says what it means that an event could not be sent. Only ERR_INVALID, that no message
 * can express it, rejects the event. Anything else, as a lack of memory, is no fault of the event:
 * the sink is down. The result borrows err. */
struct sink_result sink_unsent(const struct error *err);

/* sink_broker_of returns what a sink knows of its broker. Its kind is NULL if it has none. */
struct sink_broker sink_broker_of(struct sink *sk);
/* sink_peer_add adds a server to a list of struct sink_broker, unless it is in it. It cleans what
 * strangers may have said. port may be NULL: there is none. A list that is full ends with dots. */
void sink_peer_add(char list[SINK_PEERS], const char *host, const char *port);

/* sink_kinds lists the sinks of this build and ends with NULL. In-process handlers are not in it:
 * they have no URL. */
extern const struct sink_ops *const sink_kinds[];

/* sink_find finds the kind of a URL. It fails with ERR_CONFIG for an unknown scheme, and names the
 * nearest one, or the Debian packages to build with if the scheme is known but was left out. */
int sink_find(const char *url, const struct sink_ops **ret, struct error *err);

#endif
