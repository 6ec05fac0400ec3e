/* redis_settings.c: the parameters in the URL of a Redis sink. */
#include <stdlib.h>

#include "base/text.h"
#include "sink/redis_impl.h"

#define REPLICAS_MAX 64
#define LEASE_MIN_MS 1000
#define TIME_MAX_MS (INT64_C(10) * 365 * 24 * 3600000)

static int set_lease(void *field, const char *value, const struct option_def *o, struct error *err)
{
    if (!*value)
        return err_set(err, ERR_CONFIG, "this must be the name of a key, such as lock:outbox:shop");
    return option_copy(field, value, o, err);
}

static const struct option_def options[] = {
    {"stream", "TEMPLATE", NULL, "name of the stream an event goes to, made of " TEMPLATE_FIELDS,
     option_copy, .at = offsetof(struct redis_settings, stream)},
    {"format", "NAME", "contract", "how an event is put into an entry", option_choice,
     .at = offsetof(struct redis_settings, format), .names = message_formats},
    {"source", "TEXT", NULL, "source of CloudEvents; /outbox if not given", option_copy,
     .at = offsetof(struct redis_settings, source)},
    {"maxlen", "N", NULL, "let Redis drop entries of a stream beyond about this many, read or not",
     option_long, .at = offsetof(struct redis_settings, maxlen), .min = 1},
    {"maxage", "DURATION", NULL,
     "let Redis drop entries of a stream that are older than this, read or not", option_span,
     .at = offsetof(struct redis_settings, maxage_ms), .min = 1000, .max = TIME_MAX_MS},
    {"replicas", "N", "0", "an event is delivered once this many replicas have it", option_long,
     .at = offsetof(struct redis_settings, replicas), .max = REPLICAS_MAX},
    {"replicas-wait", "DURATION", "1s", "how long to wait for them", option_span,
     .at = offsetof(struct redis_settings, replicas_wait_ms), .min = 1, .max = TIME_MAX_MS},
    {"lease", "KEY", NULL,
     "deliver only while this key in Redis is ours; saves work, but safety does not depend on it",
     set_lease, .at = offsetof(struct redis_settings, lease)},
    {"lease-ttl", "DURATION", "30s", "how long that key lives unless renewed, at half of it",
     option_span, .at = offsetof(struct redis_settings, lease_ms), .min = LEASE_MIN_MS,
     .max = TIME_MAX_MS},
    {NULL},
};

int redis_settings_read(const char *url, struct redis_settings *s, struct redis_url *u,
                        struct error *err)
{
    *s = (struct redis_settings){0};
    if (option_defaults(options, s, err) != 0)
        return -1;
    if (redis_url_parse(url, options, s, u, err) != 0)
        return err_prefix(err, "redis sink");
    if (!s->stream)
        return err_set(
            err, ERR_CONFIG,
            "redis sink: which stream? add ?stream=NAME, where NAME may have " TEMPLATE_FIELDS
            ": ?stream=tenant.{type[1]}");
    if (s->maxlen && s->maxage_ms)
        return err_set(err, ERR_CONFIG,
                       "redis sink: use maxlen or maxage, not both; XADD takes only one of them");
    return 0;
}

void redis_settings_release(struct redis_settings *s)
{
    free(s->stream);
    free(s->lease);
    free(s->source);
    *s = (struct redis_settings){0};
}
