#include "sink/receive.h"

#include <stdio.h>
#include <string.h>

#include "sink/kinds.h"

const struct receiver_ops *const receive_kinds[] = {
#ifdef OUTBOX_REDIS
    &redis_receiver,
    &redis_tls_receiver,
    &redis_unix_receiver,
    &redis_plus_unix_receiver,
    &redis_sentinel_receiver,
    &redis_sentinel_tls_receiver,
    &redis_cluster_receiver,
    &redis_cluster_tls_receiver,
#endif
#ifdef OUTBOX_NATS
    &nats_receiver,
    &nats_tls_receiver,
#endif
#ifdef OUTBOX_RABBITMQ
    &rabbitmq_receiver,
    &rabbitmq_tls_receiver,
#endif
#ifdef OUTBOX_KAFKA
    &kafka_receiver,
    &kafka_tls_receiver,
#endif
    NULL,
};

int receive_find(const char *url, const struct receiver_ops **ret, struct error *err)
{
    char list[200] = "";
    size_t n = 0;
    const char *colon = strchr(url, ':');
    size_t length = colon ? (size_t)(colon - url) : 0;
    for (size_t i = 0; receive_kinds[i]; i++) {
        const char *scheme = receive_kinds[i]->scheme;
        bool same = length > 0 && strlen(scheme) == length && strncmp(url, scheme, length) == 0;
        if (same) {
            *ret = receive_kinds[i];
            return 0;
        }
        if (n < sizeof list)
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%s:", i ? ", " : "", scheme);
    }
    /* Only what stands before the colon is ever repeated: the rest of a URL may hold a password. */
    return err_set(err, ERR_CONFIG, "\"%.*s:\" cannot be received from; there are %s",
                   (int)(length > 30 ? 30 : length), url, n ? list : "none in this build");
}
