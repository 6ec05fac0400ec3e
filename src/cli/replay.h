/* replay.h: which webhooks a receiver has accepted, for as long as their timestamp would let them
 * in again. */
#ifndef CLI_REPLAY_H
#define CLI_REPLAY_H

#include "sink/signature.h"

#define REPLAY_MAX ((size_t)128 * 1024) /* notes that are kept: two for each webhook */

/* What is known of a webhook whose signature is good. */
enum replay {
    REPLAY_NEW,
    REPLAY_REPEAT, /* its id was accepted before, with another timestamp: the sender tries again */
    REPLAY_REPLAY, /* this very message was accepted before */
};

struct replay_memory;

/* replay_new makes an empty memory of a fixed size; NULL: out of memory. */
struct replay_memory *replay_new(void);
void replay_free(struct replay_memory *r);
/* replay_known says what a message is. replay_accept takes note of it, and may forget the one that
 * is the first to be too old. now_s is the time. */
enum replay replay_known(const struct replay_memory *r, const struct signature_message *m,
                         int64_t now_s);
void replay_accept(struct replay_memory *r, const struct signature_message *m, int64_t now_s);

#endif
