/* stream_reader.h: a reader of Redis streams: a member of a consumer group that passes each event
 * to a function.
 *
 * An entry is acknowledged (XACK) only after it has taken effect. After a crash entries are
 * redelivered, so the function must remember event ids in its own transaction (handle_once).
 * Entries are handled in the order of the stream, and a failed entry is retried before the next
 * one. With a single active member, the order of a key is kept from end to end. */
#ifndef EXTRA_STREAMS_STREAM_READER_H
#define EXTRA_STREAMS_STREAM_READER_H

#include "base/log.h"
#include "event/event.h"

struct stream_reader_config {
    const char *url;   /* like the sink's; stream=NAME, or several names with commas in between */
    const char *group; /* created if it does not exist */
    const char *name; /* name of this member, must be stable across restarts; NULL: the host name */
    const char *from; /* where a new group starts: "$": the end; an id: after it; NULL: "0" */
    int64_t claim_ms; /* entries idle at another member for this long are taken over; 0: 60 s */
    bool until_through; /* end when no entries are left to read */
    int wake;           /* a descriptor that becomes readable when the reader must stop; or -1 */
    const struct log *log;
    /* handle makes one event take effect and commits. 0: it has taken effect, now or earlier. -1:
     * it failed and will be retried. */
    int (*handle)(void *ctx, const struct event *ev, struct error *err);
    /* snapshot is called before a new group is created; NULL: none. Its reads of the source's rows
     * include every event in the stream up to `hwm`, and the group starts after `hwm`. -1 ends the
     * run. */
    int (*snapshot)(void *ctx, const char *stream, const char *hwm, struct error *err);
    void *ctx;
};

struct stream_reader_stats {
    int64_t handled, failed;
    int64_t skipped; /* entries that contain no event */
    int64_t claimed; /* entries taken over from other members */
};

/* stream_reader_run reads until it is told to stop or, with until_through, until no entries are
 * left. While Redis is down, the reader waits. Returns -1 if it cannot continue, for example with
 * ERR_CONFIG. *stats (may be NULL) is filled in either way. */
int stream_reader_run(const struct stream_reader_config *cfg, struct stream_reader_stats *stats,
                      struct error *err);

#endif
