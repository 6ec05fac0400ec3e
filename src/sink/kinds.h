/* kinds.h: the sinks of this build, and the library with the broker sinks. Only the sinks and
 * sink.c include it; all other code uses sink_find. */
#ifndef SINK_KINDS_H
#define SINK_KINDS_H

#include "sink/sink.h"

/* liboutbox leaves the broker sinks to liboutbox-sinks; see struct sink_module. */
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

/* The broker sinks as a separate library, liboutbox-sinks, which liboutbox loads when a program
 * first uses a broker sink. A program that only emits events, or runs handlers, thus never loads a
 * broker's client library. The outbox binary contains all sinks. */
#define SINK_MODULE_SYMBOL "outbox_sink_module"

struct stream_reader_config;
struct stream_reader_stats;

/* The module's only symbol. Its layout, including all data it points to, is private: a module of
 * any other version is refused. */
struct sink_module {
    const char *version; /* first in every layout */
    const struct sink_ops *const *sinks;
    int (*read_streams)(const struct stream_reader_config *cfg, struct stream_reader_stats *stats,
                        struct error *err);
};

/* sink_module_load returns the module. The first call loads it; it is never unloaded. Returns NULL,
 * with ERR_CONFIG and installation advice, if the module is missing or has another version.
 * Thread-safe. */
const struct sink_module *sink_module_load(struct error *err);

#endif
