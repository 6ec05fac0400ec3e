/* consume.h: the other end of a Redis stream: a member of a consumer group that hands each event on
 * once it has come.
 *
 * What was read is acknowledged (XACK) only after it has taken effect. So a crash makes entries
 * come again, which is why the one who takes them remembers event ids in his own transaction
 * (handle_once). Entries are taken in the order of the stream, and one that fails is tried again
 * before the next: with one member at work the order of a key is kept from end to end. */
#ifndef ENGINE_CONSUME_H
#define ENGINE_CONSUME_H

#include "base/log.h"
#include "event/event.h"

struct consume_config {
    const char *url;   /* as of the sink; stream=NAME, or several with commas between */
    const char *group; /* made if it is not there */
    const char *name;  /* of this member, the same after a restart; NULL: the host's name */
    /* where a new group starts: NULL or "0" the beginning, "$" the end, or after this id */
    const char *from;
    /* entries that a member has left lying for so long are taken over; 0: 60 s */
    int64_t claim_ms;
    bool until_through; /* end when nothing is left to read */
    int wake;           /* a descriptor that is readable when it is time to stop */
    const struct log *log;
    /* handle makes one event take effect and commits; 0: done, or done before; -1: failed, it will
     * be tried again. */
    int (*handle)(void *ctx, const struct event *ev, struct error *err);
    /* snapshot, if there is one, is called for a stream whose group is new, before that is made:
     * what it reads of the source's rows holds everything in the stream up to `hwm`, and the group
     * goes on behind it. -1: the run ends. */
    int (*snapshot)(void *ctx, const char *stream, const char *hwm, struct error *err);
    void *ctx;
};

struct consume_stats {
    int64_t handled, failed, skipped; /* skipped: entries that are none of ours */
    int64_t claimed;                  /* taken over from another member */
};

/* consume_run reads until told to stop, or until it is through. A Redis that is away is waited for.
 * Returns 0, or -1 when it cannot go on: ERR_CONFIG. *stats (may be NULL) is filled in in any
 * case. */
int consume_run(const struct consume_config *cfg, struct consume_stats *stats, struct error *err);

#endif
