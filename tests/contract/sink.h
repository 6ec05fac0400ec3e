/* sink.h: the suite that every sink must pass, and the rig it runs on.
 *
 * A sink's test program describes how to start and inspect its peer (struct sink_case), adds tests
 * of promises that only this sink makes, and calls sink_suite_run. The rig is in sink_rig.c, the
 * suite in sink_suite.c. */
#ifndef TESTS_CONTRACT_SINK_H
#define TESTS_CONTRACT_SINK_H

#include <stdbool.h>
#include <sys/types.h>

#include "../suite.h"
#include "sink/sink.h"

/* What the peer has received so far, in order of arrival. */
struct sink_arrivals {
    struct sink_arrival {
        char id[UUID_TEXT + 1];
        char *payload;
        size_t n;
    } * a;
    size_t n;
};

void sink_arrivals_add(struct sink_arrivals *got, struct str id, struct str payload);
/* sink_arrivals_lines adds every line of NDJSON; a line that is not whole fails the test. */
void sink_arrivals_lines(struct sink_arrivals *got, const char *text, size_t n);
void sink_arrivals_release(struct sink_arrivals *got);

struct sink_item;

struct sink_case {
    const char *name;
    /* how many events the sink delivers in a second or so */
    size_t many;
    int concurrency; /* handed to open */
    bool flat;       /* line breaks between the tokens of a payload arrive as spaces */

    /* setup starts the peer, reachable and empty. teardown ends it. */
    void *(*setup)(void);
    void (*teardown)(void *peer);
    /* url is the URL to open. A sink without a URL has open instead; one of the two is NULL. */
    const char *(*url)(void *peer);
    int (*open)(void *peer, const struct sink_config *cfg, struct sink **ret, struct error *err);
    /* arrived adds the received payloads only, since the sink's own tests check how it wraps
     * them. */
    void (*arrived)(void *peer, struct sink_arrivals *got);
    /* break_peer makes deliveries fail as if the peer were down; heal_peer undoes it. Both may be
     * NULL. */
    void (*break_peer)(void *peer);
    void (*heal_peer)(void *peer);
    /* spoil changes an event into one that this sink can never express, in one of several ways, and
     * returns words that the reason must have; NULL if there are not more than `way` ways. May be
     * NULL. */
    const char *(*spoil)(void *peer, struct sink_item *it, size_t way);
    bool peer_rejects; /* the peer refuses spoiled events, not the sink itself */
};

/* The functions of a sink_case, in a file that uses these names. */
#define SINK_PEER \
    .setup = peer_setup, .teardown = peer_teardown, .url = peer_url, .arrived = peer_arrived
#define SINK_PEER_BREAKS .break_peer = peer_break, .heal_peer = peer_heal

/* sink_suite_run runs the suite and then the parts that only this sink has, as one group. It
 * returns the number of failures. */
int sink_suite_run(const struct sink_case *c, const struct suite_part *own, size_t n_own);

/* One event and everything known about its delivery. d comes first, so that done finds the item by
 * it. */
struct sink_item {
    struct delivery d;
    struct event ev;
    char id[UUID_TEXT + 1], key[48];
    char *payload;
    int answers;
    size_t order; /* among the answers */
    enum sink_status status;
    int native;
    bool has_text, unasked;
    int64_t retry_after_ms;
    char text[768], receipt[64];
};

/* A sink driven by an engine that does exactly what the contract says. (1) items[0..accepted) were
 * accepted. (2) answered counts calls of done. */
struct sink_rig {
    struct sink *sk;
    struct clock clock; /* the system's, or frozen_ns if that is set, plus ahead_ns */
    int64_t ahead_ns, frozen_ns;
    struct sink_item **items;
    size_t n, cap, accepted, answered;
};

void sink_rig_init(struct sink_rig *rig);
/* sink_rig_open opens a sink by its URL. It fills in cfg's clock, consumer and done, which
 * sink_rig_complete does for a sink that has no URL. */
void sink_rig_open(struct sink_rig *rig, struct sink_config cfg);
struct sink_config sink_rig_complete(struct sink_rig *rig, struct sink_config cfg);
/* sink_rig_freeze stops the clock, so that only ahead_ns moves it. A test that looks at deadlines
 * needs that, or a slow machine makes it fail. */
void sink_rig_freeze(struct sink_rig *rig);
/* sink_rig_add queues an event with this payload of n bytes; 0 means strlen. */
struct sink_item *sink_rig_add(struct sink_rig *rig, const char *payload, size_t n);
void sink_rig_add_many(struct sink_rig *rig, size_t count, size_t payload_size);
/* sink_rig_submit offers the queued events, checks that the sink accepted a prefix, and returns its
 * length. */
size_t sink_rig_submit(struct sink_rig *rig);
/* sink_rig_wait sleeps as an engine would, and fails the test if nothing happens for 20 s. */
void sink_rig_wait(struct sink_rig *rig);
/* sink_rig_run submits and drives until everything queued is answered, then checks that each was
 * answered once. */
void sink_rig_run(struct sink_rig *rig);
void sink_rig_check(struct sink_rig *rig);
/* sink_rig_deliver queues one more event, runs, and returns it with its answer. */
struct sink_item *sink_rig_deliver(struct sink_rig *rig, const char *payload);
/* sink_rig_send queues one more event as well, and stops driving once that one is answered. */
struct sink_item *sink_rig_send(struct sink_rig *rig, const char *payload);
/* sink_rig_again queues again, in order, the events that were not delivered. sink_rig_passes_again
 * also runs it, and all of them must be delivered this time. */
void sink_rig_again(struct sink_rig *rig);
void sink_rig_passes_again(struct sink_rig *rig);
void sink_rig_assert_all(struct sink_rig *rig, enum sink_status status);
/* sink_rig_assert_arrived compares what the peer has received with what was queued, in this order
 * if `ordered` is set. */
void sink_rig_assert_arrived(struct sink_rig *rig, const struct sink_arrivals *got, bool flat,
                             bool ordered);
void sink_rig_release(struct sink_rig *rig);

/* sink_assert_says checks that the text of an answer contains these words. */
void sink_assert_says(const struct sink_item *it, const char *words);
/* sink_assert_refused checks that these settings do not open, and that the message has `words` and
 * does not have `secret`; either may be NULL. */
void sink_assert_refused(struct sink_config cfg, const char *words, const char *secret);
/* sink_item_enlarge makes the payload a string of `size` bytes, quotes included. */
void sink_item_enlarge(struct sink_item *it, size_t size);

/* sink_limit_files lets this process write no file beyond `size` bytes; 0 lifts the limit. */
void sink_limit_files(off_t size);

/* Temporary folders, and files in them. */
#define SINK_PATH_SIZE 512
void sink_tmp_new(char dir[SINK_PATH_SIZE]);
void sink_tmp_remove(const char *dir);
/* sink_tmp_read returns the whole file, which the caller frees, ended with a NUL that *ret_n does
 * not count. An absent file reads as empty. ret_n may be NULL. */
char *sink_tmp_read(const char *path, size_t *ret_n);
void sink_tmp_write(const char *path, const char *text);

#endif
