/* replay.h: accepted webhooks, remembered for as long as their timestamps remain acceptable. */
#ifndef WEBHOOK_REPLAY_H
#define WEBHOOK_REPLAY_H

#include "sink/signature.h"

#define REPLAY_MAX ((size_t)128 * 1024) /* capacity in entries; a webhook takes two */

/* The history of a webhook whose signature is valid. */
enum replay {
    REPLAY_NEW,
    REPLAY_REPEAT, /* its id was accepted with another timestamp: a retry by the sender */
    REPLAY_REPLAY, /* this exact message was accepted before */
};

struct replay_memory;

/* replay_new returns an empty memory of a fixed size; NULL if out of memory. */
struct replay_memory *replay_new(void);
void replay_free(struct replay_memory *r);
/* replay_known looks up a message. now_s is the current time in seconds since 1970. */
enum replay replay_known(const struct replay_memory *r, const struct signature_message *m,
                         int64_t now_s);
/* replay_accept records a message. If its set is full, it forgets the message that expires
 * first. */
void replay_accept(struct replay_memory *r, const struct signature_message *m, int64_t now_s);

#endif
