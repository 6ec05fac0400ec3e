/* receive.c: opens a receiver, and waits for its next message. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/num.h"
#include "extra/receive/receive.h"

#define STEP_MS 50 /* polling interval of the stop descriptor */

static const struct receiver_ops *const kinds[] = {
#ifdef OUTBOX_REDIS
    &receive_redis,
#endif
#ifdef OUTBOX_NATS
    &receive_nats,
#endif
#ifdef OUTBOX_RABBITMQ
    &receive_rabbitmq,
#endif
#ifdef OUTBOX_KAFKA
    &receive_kafka,
#endif
    NULL,
};

int receive_find(const char *url, const struct receiver_ops **ret, struct error *err)
{
    char list[200] = "";
    size_t n = 0, length = strcspn(url, ":");
    for (size_t i = 0; kinds[i]; i++) {
        for (const char *const *scheme = kinds[i]->schemes; *scheme; scheme++) {
            bool same = strlen(*scheme) == length && strncmp(url, *scheme, length) == 0;
            if (same && url[length] == ':') {
                *ret = kinds[i];
                return 0;
            }
            if (n < sizeof list)
                n += (size_t)snprintf(list + n, sizeof list - n, "%s%s:", n ? ", " : "", *scheme);
        }
    }
    /* Repeat no more than the scheme: the rest of a URL may contain a password. */
    return err_set(err, ERR_CONFIG, "\"%.*s:\" cannot be received from; supported are %s",
                   url[length] ? (int)min_size(length, 30) : 0, url,
                   n ? list : "none in this build");
}

int receive_open(const struct receiver_config *cfg, struct receiver **ret, struct error *err)
{
    const struct receiver_ops *ops;
    if (receive_find(cfg->url, &ops, err) != 0)
        return -1;
    struct receiver *rc = calloc(1, ops->size);
    if (!rc)
        return err_nomem(err);
    *rc = (struct receiver){ops, *cfg};
    if (ops->begin(rc, err) != 0) {
        receive_close(rc);
        return -1;
    }
    *ret = rc;
    return 0;
}

void receive_close(struct receiver *rc)
{
    if (!rc)
        return;
    rc->ops->end(rc);
    free(rc);
}

bool receive_stop(const struct receiver *rc, int64_t wait_ms)
{
    struct pollfd fd = {.fd = rc->cfg.wake, .events = POLLIN};
    return poll(&fd, 1, (int)wait_ms) > 0;
}

int receive_next(struct receiver *rc, int64_t timeout_ms, struct received *ret, bool *ret_got,
                 struct error *err)
{
    int64_t deadline = clock_mono(&clock_system) + timeout_ms * MS_NS;
    *ret_got = false;
    for (;;) {
        int64_t left_ms = (deadline - clock_mono(&clock_system)) / MS_NS;
        int failed = rc->ops->step(rc, max_i64(0, min_i64(left_ms, STEP_MS)), ret, ret_got, err);
        if (*ret_got)
            return 0;

        bool stop = receive_stop(rc, 0);
        bool over = stop || clock_mono(&clock_system) >= deadline;
        bool again = rc->ops->patient && (!over || err->code == ERR_BUSY); /* BUSY: asked to stop */
        if (failed && !again)
            return -1;
        if (over)
            return 0;
    }
}
