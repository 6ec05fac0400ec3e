/* redis_config.c: what stands in the URL of a Redis sink. */
#include <stdlib.h>

#include "base/text.h"
#include "sink/redis_impl.h"

#define REPLICAS_MAX 64
#define LEASE_MIN_MS 1000
#define TIME_MAX_MS (INT64_C(10) * 365 * 24 * 3600000)

static int set_copy(char **field, const char *value, struct error *err)
{
    char *copy = strdup(value);
    if (!copy) return err_nomem(err);
    free(*field);
    *field = copy;
    return 0;
}

static int set_time(int64_t *field, const char *value, int64_t min_ms, struct error *err)
{
    char least[32];
    int64_t ms;
    if (text_duration(value, &ms, err) != 0) return -1;
    text_duration_show(min_ms, least);
    if (ms < min_ms || ms > TIME_MAX_MS) return err_set(err, ERR_CONFIG, "\"%s\" is not %s or more", value, least);
    *field = ms;
    return 0;
}

static int set_stream(void *s, const char *value, struct error *err)
{
    return set_copy(&((struct redis_settings *)s)->stream, value, err);
}

static int set_maxlen(void *s, const char *value, struct error *err)
{
    return text_int(value, 1, INT64_MAX, &((struct redis_settings *)s)->maxlen, err);
}

static int set_maxage(void *s, const char *value, struct error *err)
{
    return set_time(&((struct redis_settings *)s)->maxage_ms, value, 1000, err);
}

static int set_replicas(void *s, const char *value, struct error *err)
{
    return text_int(value, 0, REPLICAS_MAX, &((struct redis_settings *)s)->replicas, err);
}

static int set_replicas_wait(void *s, const char *value, struct error *err)
{
    return set_time(&((struct redis_settings *)s)->replicas_wait_ms, value, 1, err);
}

static int set_lease(void *s, const char *value, struct error *err)
{
    if (!*value) return err_set(err, ERR_CONFIG, "the name of a key, such as lock:outbox:shop");
    return set_copy(&((struct redis_settings *)s)->lease, value, err);
}

static int set_lease_ttl(void *s, const char *value, struct error *err)
{
    return set_time(&((struct redis_settings *)s)->lease_ms, value, LEASE_MIN_MS, err);
}

const struct option_def redis_options[] = {
    {"stream", "TEMPLATE", NULL, "name of the stream an event goes to, made of " TEMPLATE_FIELDS, set_stream},
    {"maxlen", "N", NULL, "let Redis drop entries of a stream beyond about this many, read or not", set_maxlen},
    {"maxage", "DURATION", NULL, "let Redis drop entries of a stream that are older, read or not", set_maxage},
    {"replicas", "N", "0", "an event is delivered once so many replicas have it, too", set_replicas},
    {"replicas-wait", "DURATION", "1s", "how long to wait for them", set_replicas_wait},
    {"lease", "KEY", NULL, "deliver only while this key of Redis is ours; saves work, safety does not rest on it",
     set_lease},
    {"lease-ttl", "DURATION", "30s", "how long that key lives unless renewed, at half of it", set_lease_ttl},
    {NULL, NULL, NULL, NULL, NULL},
};

int redis_settings_read(const char *url, struct redis_settings *s, struct redis_url *u, struct error *err)
{
    *s = (struct redis_settings){0};
    for (const struct option_def *o = redis_options; o->name; o++)
        if (o->def && o->set(s, o->def, err) != 0) return -1;
    if (redis_url_parse(url, redis_options, s, u, err) != 0) return err_prefix(err, "redis sink");
    if (!s->stream)
        return err_set(err, ERR_CONFIG,
                       "redis sink: which stream? add ?stream=NAME, where NAME may have " TEMPLATE_FIELDS
                       ": ?stream=tenant.{type[1]}");
    if (s->maxlen && s->maxage_ms)
        return err_set(err, ERR_CONFIG, "redis sink: maxlen or maxage, not both: XADD takes one of them");
    return 0;
}

void redis_settings_release(struct redis_settings *s)
{
    free(s->stream);
    free(s->lease);
    *s = (struct redis_settings){0};
}
