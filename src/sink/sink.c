#include "sink/sink.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
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
    &redis_sentinel_ops,
    &redis_sentinel_tls_ops,
    &redis_cluster_ops,
    &redis_cluster_tls_ops,
#endif
#ifdef OUTBOX_RABBITMQ
    &rabbitmq_ops,
    &rabbitmq_tls_ops,
#endif
#ifdef OUTBOX_KAFKA
    &kafka_ops,
    &kafka_tls_ops,
#endif
#ifdef OUTBOX_NATS
    &nats_ops,
    &nats_tls_ops,
#endif
#ifdef OUTBOX_HTTP
    &https_ops,
    &http_ops,
#endif
    NULL,
};

#define KINDS (sizeof sink_kinds / sizeof sink_kinds[0])

/* Known schemes: these are not typos, even if this build lacks their sink. */
static const struct {
    const char *scheme, *sink;
    const char *package; /* packages needed to build it */
} absent[] = {
    {"redis", "redis", "libhiredis-dev and libssl-dev"},
    {"rediss", "redis", "libhiredis-dev and libssl-dev"},
    {"redis-sentinel", "redis", "libhiredis-dev and libssl-dev"},
    {"rediss-sentinel", "redis", "libhiredis-dev and libssl-dev"},
    {"redis-cluster", "redis", "libhiredis-dev and libssl-dev"},
    {"rediss-cluster", "redis", "libhiredis-dev and libssl-dev"},
    {"redis+unix", "redis", "libhiredis-dev and libssl-dev"},
    {"unix", "redis", "libhiredis-dev and libssl-dev"},
    {"http", "http", "libcurl4-openssl-dev and libssl-dev"},
    {"https", "http", "libcurl4-openssl-dev and libssl-dev"},
    {"kafka", "kafka", "librdkafka-dev"},
    {"kafka+ssl", "kafka", "librdkafka-dev"},
    {"nats", "nats", "libnats-dev"},
    {"nats+tls", "nats", "libnats-dev"},
    {"amqp", "rabbitmq", "librabbitmq-dev and libssl-dev"},
    {"amqps", "rabbitmq", "librabbitmq-dev and libssl-dev"},
};

#define ABSENT (sizeof absent / sizeof absent[0])

/* Returns the index of a scheme in `absent`; ABSENT if it is not a broker's. */
static size_t find_absent(const char *scheme)
{
    size_t i = 0;
    while (i < ABSENT && strcmp(scheme, absent[i].scheme) != 0)
        i++;
    return i;
}

/* Formats the kinds as "stdout:, file:, exec:". */
static void list_kinds(char *out, size_t size)
{
    const char *between = "";
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = 0; sink_kinds[i] && n < size; i++) {
        n += (size_t)snprintf(out + n, size - n, "%s%s:", between, sink_kinds[i]->scheme);
        between = ", ";
    }
}

static int unknown(const char *scheme, const char *list, struct error *err)
{
    size_t i = find_absent(scheme);
    if (i < ABSENT)
        return err_set(err, ERR_CONFIG,
                       "the %s sink is not part of this build, which found no %s; it has %s",
                       absent[i].sink, absent[i].package, list);

    const char *names[KINDS] = {NULL};
    for (i = 0; sink_kinds[i]; i++)
        names[i] = sink_kinds[i]->scheme;
    char hint[TEXT_HINT], all[TEXT_HINT];
    snprintf(all, sizeof all, "known sinks are %s", list);
    text_hint(scheme, names, (struct text_hint){"'", ":'", all}, hint);
    return err_set(err, ERR_CONFIG, "unknown sink '%s:'%s", scheme, hint);
}

static const struct sink_ops *find_in(const struct sink_ops *const *kinds, const char *scheme)
{
    for (size_t i = 0; kinds[i]; i++)
        if (strcmp(scheme, kinds[i]->scheme) == 0)
            return kinds[i];
    return NULL;
}

#ifdef OUTBOX_SINKS_ON_DEMAND
/* The module is loaded from the directory of liboutbox, regardless of the environment. */

#define MODULE_FILE "liboutbox-sinks.so.0"
#define INSTALL_IT "install it next to liboutbox, from the same package"

static struct {
    pthread_once_t once;
    const struct sink_module *module;
    struct error why; /* why the module is missing */
} loaded = {.once = PTHREAD_ONCE_INIT};

/* Writes the path of the module, which is in the directory of the library that contains this
 * code. */
static bool module_path(char *path, size_t size)
{
    static const char here; /* an address in the library */
    Dl_info of;
    if (dladdr(&here, &of) == 0)
        return false;
    const char *slash = strrchr(of.dli_fname, '/');
    int folder = slash ? (int)(slash + 1 - of.dli_fname) : 0;
    int n = snprintf(path, size, "%.*s%s", folder, of.dli_fname, MODULE_FILE);
    return n > 0 && (size_t)n < size;
}

static void load(void)
{
    char path[PATH_MAX];
    if (!module_path(path, sizeof path)) {
        err_set(&loaded.why, ERR_CONFIG, "could not find the directory of liboutbox");
        return;
    }

    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        err_set(&loaded.why, ERR_CONFIG,
                "broker sinks are in %s, which could not be loaded: %s; %s", MODULE_FILE, dlerror(),
                INSTALL_IT);
        return;
    }
    const struct sink_module *m = dlsym(library, SINK_MODULE_SYMBOL);
    if (!m || strcmp(m->version, OUTBOX_VERSION) != 0) {
        err_set(&loaded.why, ERR_CONFIG, "%s has version %s, but liboutbox has version %s; %s",
                path, m ? m->version : "unknown", OUTBOX_VERSION, INSTALL_IT);
        dlclose(library);
        return;
    }
    loaded.module = m;
}

const struct sink_module *sink_module_load(struct error *err)
{
    pthread_once(&loaded.once, load);
    if (!loaded.module)
        *err = loaded.why;
    return loaded.module;
}
#endif

int sink_find(const char *url, const struct sink_ops **ret, struct error *err)
{
    char scheme[32], list[400];
    list_kinds(list, sizeof list);
    /* Repeat no more than the scheme: the rest of a URL may contain a password. */
    const char *colon = strchr(url, ':');
    if (!colon || colon == url)
        return err_set(err, ERR_CONFIG, "a sink's URL starts with its kind: %s", list);

    snprintf(scheme, sizeof scheme, "%.*s", (int)(colon - url), url);
    const struct sink_ops *found = find_in(sink_kinds, scheme);
#ifdef OUTBOX_SINKS_ON_DEMAND
    if (!found && find_absent(scheme) < ABSENT) {
        const struct sink_module *m = sink_module_load(err);
        if (!m)
            return -1;
        found = find_in(m->sinks, scheme);
    }
#endif
    if (!found)
        return unknown(scheme, list, err);
    *ret = found;
    return 0;
}

struct sink_result sink_unsent(const struct error *err)
{
    struct sink_result r = {.status = SINK_DOWN, .native = err->native, .text = err->text};
    if (err->code == ERR_INVALID) {
        r.status = SINK_REJECT;
        r.unasked = true;
    }
    return r;
}

struct sink_broker sink_broker_of(struct sink *sk)
{
    struct sink_broker b = {0};
    if (sk->ops->broker)
        sk->ops->broker(sk, &b);
    return b;
}

/* Returns whether a comma-separated list contains an entry. */
static bool is_listed(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; *at;) {
        size_t entry = strcspn(at, ",");
        if (entry == n && memcmp(at, name, n) == 0)
            return true;
        at += entry;
        at += strspn(at, ",");
    }
    return false;
}

void sink_peer_add(char list[SINK_PEERS], const char *host, const char *port)
{
    char name[SINK_PEERS], clean[SINK_PEERS];
    bool is_v6 = port && strchr(host, ':');
    if (is_v6)
        snprintf(name, sizeof name, "[%s]:%s", host, port);
    else if (port)
        snprintf(name, sizeof name, "%s:%s", host, port);
    else
        snprintf(name, sizeof name, "%s", host);
    text_clean(clean, sizeof clean, name, strlen(name));
    if (is_listed(list, clean))
        return;

    static const char more[] = ",...";
    size_t n = strlen(list), needed = strlen(clean) + sizeof more;
    bool full = n >= sizeof more && strcmp(list + n + 1 - sizeof more, more) == 0;
    if (full)
        return;
    bool fits = n + 1 + needed < SINK_PEERS;
    if (!fits && n > 0)
        snprintf(list + n, SINK_PEERS - n, "%s", more);
    else
        snprintf(list + n, SINK_PEERS - n, "%s%s", n > 0 ? "," : "", clean);
}
