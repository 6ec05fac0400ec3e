/* kinds.h: the sinks of this build. Only they and sink.c include it: everything else uses
 * sink_find. */
#ifndef SINK_KINDS_H
#define SINK_KINDS_H

#include "sink/sink.h"

/* In liboutbox, broker sinks are left to liboutbox-sinks (sink_module.h). */
#ifdef OUTBOX_SINKS_ON_DEMAND
#undef OUTBOX_REDIS
#undef OUTBOX_NATS
#undef OUTBOX_KAFKA
#undef OUTBOX_RABBITMQ
#undef OUTBOX_HTTP
#endif

extern const struct sink_ops exec_ops, file_ops, stdout_ops;
#ifdef OUTBOX_REDIS
extern const struct sink_ops redis_ops, redis_tls_ops, redis_unix_ops, redis_plus_unix_ops;
extern const struct sink_ops redis_sentinel_ops, redis_sentinel_tls_ops, redis_cluster_ops,
    redis_cluster_tls_ops;
#endif
#ifdef OUTBOX_NATS
extern const struct sink_ops nats_ops, nats_tls_ops;
#endif
#ifdef OUTBOX_KAFKA
extern const struct sink_ops kafka_ops, kafka_tls_ops;
#endif
#ifdef OUTBOX_RABBITMQ
extern const struct sink_ops rabbitmq_ops, rabbitmq_tls_ops;
#endif
extern const struct sink_ops http_ops, https_ops;

#endif
