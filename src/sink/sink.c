#include "sink/sink.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "sink/kinds.h"

const struct sink_ops *const sink_kinds[] = {
    &stdout_ops,
    &file_ops,
    &exec_ops,
#ifdef OUTBOX_REDIS
    &redis_ops,
    &redis_tls_ops,
    &redis_unix_ops,
    &redis_plus_unix_ops,
#endif
#ifdef OUTBOX_HTTP
    &https_ops,
    &http_ops,
#endif
    NULL,
};

#define KINDS (sizeof sink_kinds / sizeof sink_kinds[0])

/* Schemes that are no typing mistake, and the sink each belongs to. */
static const struct {
    const char *scheme, *sink, *package; /* what it needs to be built; NULL: there is none yet */
} absent[] = {
    {"redis", "redis", "libhiredis-dev and libssl-dev"},
    {"rediss", "redis", "libhiredis-dev and libssl-dev"},
    {"redis+unix", "redis", "libhiredis-dev and libssl-dev"},
    {"unix", "redis", "libhiredis-dev and libssl-dev"},
    {"http", "http", "libcurl4-openssl-dev and libssl-dev"},
    {"kafka", "kafka", NULL},
    {"nats", "nats", NULL},
    {"https", "http", "libcurl4-openssl-dev and libssl-dev"},
    {"amqp", "rabbitmq", NULL},
};

/* list_kinds writes "stdout:, file:PATH, exec:COMMAND". */
static void list_kinds(char *out, size_t size)
{
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = 0; sink_kinds[i] && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%s", i ? ", " : "", sink_kinds[i]->synopsis);
}

static int unknown(const char *scheme, const char *list, struct error *err)
{
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
        if (strcmp(scheme, absent[i].scheme) == 0)
            return err_set(err, ERR_CONFIG, "the %s sink is not part of this build%s%s; it has %s",
                           absent[i].sink, absent[i].package ? ", which found no " : "",
                           absent[i].package ? absent[i].package : "", list);

    const char *names[KINDS] = {NULL};
    for (size_t i = 0; sink_kinds[i]; i++)
        names[i] = sink_kinds[i]->scheme;
    char hint[TEXT_HINT], all[TEXT_HINT];
    snprintf(all, sizeof all, "there are %s", list);
    text_hint(scheme, names, (struct text_hint){"'", ":'", all}, hint);
    return err_set(err, ERR_CONFIG, "unknown sink '%s:'%s", scheme, hint);
}

int sink_find(const char *url, const struct sink_ops **ret, struct error *err)
{
    char scheme[32], list[400];
    list_kinds(list, sizeof list);
    const char *colon = strchr(url, ':');
    /* Only what stands before the colon is ever repeated: the rest of a URL may hold a password. */
    if (!colon || colon == url)
        return err_set(err, ERR_CONFIG, "a sink starts with its kind: %s", list);
    snprintf(scheme, sizeof scheme, "%.*s", (int)(colon - url), url);
    for (size_t i = 0; sink_kinds[i]; i++) {
        if (strcmp(scheme, sink_kinds[i]->scheme) != 0)
            continue;
        *ret = sink_kinds[i];
        return 0;
    }
    return unknown(scheme, list, err);
}
