#include "engine/consumer.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "event/normal.h"
#include "sink/exec_env.h"
#include "sink/sink.h"

#define LEASE_MIN_MS 100
#define TIME_MAX_MS (24 * INT64_C(3600000))
#define CONCURRENCY_MAX 1024
#define BATCH_MAX 10000
#define NORMAL_MAX (64 * 1024) /* of patterns or of a predicate, as filter_new has it */

/* What a preset sets, option by option. `none` puts the defaults back. */
static const struct preset {
    const char *name;
    const char *const (*values)[2]; /* ends with a name that is NULL */
} presets[] = {
    {"none", (const char *const[][2]){{NULL, NULL}}},
    /* The usual settings of a dispatcher to Redis Streams. Its drain deadline of 30 s is the default of every relay. */
    {"dispatcher", (const char *const[][2]){{"batch", "50"},
                                            {"poll", "500ms"},
                                            {"retry", "fast,attempts=8"},
                                            {"lease", "30s"},
                                            {"receipts", "yes"},
                                            {NULL, NULL}}},
};

const char *const order_names[] = {"none", "key", "global", NULL};

static int set_string(char **field, const char *value, struct error *err)
{
    char *copy = strdup(value);
    if (!copy) return err_nomem(err);
    free(*field);
    *field = copy;
    return 0;
}

static int set_int(int *field, const char *value, int max, struct error *err)
{
    int64_t n;
    if (text_int(value, 1, max, &n, err) != 0) return -1;
    *field = (int)n;
    return 0;
}

static int set_time(int64_t *field, const char *value, int64_t min_ms, struct error *err)
{
    int64_t ms;
    if (text_duration(value, &ms, err) != 0) return -1;
    if (ms < min_ms || ms > TIME_MAX_MS) {
        char least[32], most[32];
        text_duration_show(min_ms, least);
        text_duration_show(TIME_MAX_MS, most);
        return err_set(err, ERR_CONFIG, "\"%s\" is not between %s and %s", value, least, most);
    }
    *field = ms;
    return 0;
}

static const struct preset *preset_find(const char *name)
{
    for (size_t i = 0; i < sizeof(presets) / sizeof(*presets); i++)
        if (strcmp(presets[i].name, name) == 0) return &presets[i];
    return NULL;
}

static const char *preset_value(const struct preset *p, const char *option)
{
    for (size_t i = 0; p->values[i][0]; i++)
        if (strcmp(p->values[i][0], option) == 0) return p->values[i][1];
    return NULL;
}

const char *consumer_preset(const char *preset, const char *option)
{
    const struct preset *p = preset_find(preset);
    return p ? preset_value(p, option) : NULL;
}

/* some_preset_sets: then another preset, or none, has to put it back. */
static bool some_preset_sets(const char *option)
{
    for (size_t i = 0; i < sizeof(presets) / sizeof(*presets); i++)
        if (preset_value(&presets[i], option)) return true;
    return false;
}

static int set_preset(void *target, const char *value, struct error *err)
{
    struct consumer *c = target;
    const struct preset *p = preset_find(value);
    if (!p) return err_set(err, ERR_CONFIG, "\"%s\" is not dispatcher or none", value);

    for (size_t i = 0; consumer_options[i].name; i++) {
        const struct option_def *o = &consumer_options[i];
        bool ours = some_preset_sets(o->name) && !(c->given & UINT64_C(1) << i);
        if (!ours) continue;
        const char *preset = preset_value(p, o->name);
        if (o->set(c, preset ? preset : o->def, err) != 0) return err_prefix(err, "%s of preset %s", o->name, value);
    }
    return 0;
}

static int set_sink(void *target, const char *value, struct error *err)
{
    const struct sink_ops *kind;
    if (sink_find(value, &kind, err) != 0) return -1;
    return set_string(&((struct consumer *)target)->sink, value, err);
}

/* Filters are kept in their normal form: two that mean the same are the same to the store, too. */
static int set_normal(char **field, const char *value, void (*normal)(const char *, struct buf *), struct error *err)
{
    struct buf b;
    buf_init(&b, NORMAL_MAX);
    normal(value, &b);
    const char *text = buf_cstr(&b);
    int r = -1;
    if (text) r = set_string(field, text, err);
    else if (b.full)
        err_set(err, ERR_CONFIG, "is too long, the limit is %d bytes with a blank behind each comma", NORMAL_MAX);
    else err_nomem(err);
    buf_release(&b);
    return r;
}

static int set_events(void *target, const char *value, struct error *err)
{
    struct filter *f;
    if (filter_new(value, NULL, &f, err) != 0) return -1;
    filter_free(f);
    return set_normal(&((struct consumer *)target)->events, value, normal_events, err);
}

static int set_where(void *target, const char *value, struct error *err)
{
    struct filter *f;
    if (filter_new(NULL, value, &f, err) != 0) return -1;
    filter_free(f);
    return set_normal(&((struct consumer *)target)->where, value, normal_where, err);
}

static int set_order(void *target, const char *value, struct error *err)
{
    for (int i = 0; order_names[i]; i++) {
        if (strcmp(value, order_names[i]) != 0) continue;
        ((struct consumer *)target)->order = (enum order)i;
        return 0;
    }
    const char *near = text_nearest(value, order_names);
    return err_set(err, ERR_CONFIG, "\"%s\" is not none, key or global%s%s%s", value, near ? "; did you mean " : "",
                   near ? near : "", near ? "?" : "");
}

static int set_lanes(void *target, const char *value, struct error *err)
{
    return set_int(&((struct consumer *)target)->lanes, value, STORE_LANES_MAX, err);
}

static int set_from(void *target, const char *value, struct error *err)
{
    static const char *const words[] = {"beginning", "end", NULL};
    struct consumer *c = target;
    int64_t seq = 0;
    enum start start = START_SEQ;
    if (strcmp(value, "beginning") == 0) {
        start = START_BEGINNING;
    } else if (strcmp(value, "end") == 0) {
        start = START_END;
    } else if (text_int(value, 0, INT64_MAX, &seq, NULL) != 0) {
        const char *near = text_nearest(value, words);
        return err_set(err, ERR_CONFIG, "\"%s\" is not beginning, end or a sequence number%s%s%s", value,
                       near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    }
    c->start = start;
    c->start_seq = seq;
    return 0;
}

static int set_retry(void *target, const char *value, struct error *err)
{
    return retry_parse(value, &((struct consumer *)target)->retry, err);
}

static int set_lease(void *target, const char *value, struct error *err)
{
    return set_time(&((struct consumer *)target)->lease_ms, value, LEASE_MIN_MS, err);
}

static int set_timeout(void *target, const char *value, struct error *err)
{
    return set_time(&((struct consumer *)target)->timeout_ms, value, 1, err);
}

/* set_poll: 0s leaves it to the relay. */
static int set_poll(void *target, const char *value, struct error *err)
{
    int64_t ms;
    if (text_duration(value, &ms, err) != 0) return -1;
    if (ms > TIME_MAX_MS) return err_set(err, ERR_CONFIG, "\"%s\" is more than a day", value);
    ((struct consumer *)target)->poll_ms = ms;
    return 0;
}

static int set_concurrency(void *target, const char *value, struct error *err)
{
    return set_int(&((struct consumer *)target)->concurrency, value, CONCURRENCY_MAX, err);
}

static int set_batch(void *target, const char *value, struct error *err)
{
    return set_int(&((struct consumer *)target)->batch, value, BATCH_MAX, err);
}

static int set_receipts(void *target, const char *value, struct error *err)
{
    return text_bool(value, &((struct consumer *)target)->receipts, err);
}

static int set_file_mode(void *target, const char *value, struct error *err)
{
    size_t n = strlen(value);
    bool octal = n >= 3 && n <= 4 && strspn(value, "01234567") == n;
    long mode = octal ? strtol(value, NULL, 8) : 0;
    bool usable = (mode & 0600) == 0600 && mode <= 0777 && !(mode & 0002);
    if (!usable)
        return err_set(err, ERR_CONFIG,
                       "\"%s\" is not a mode such as 0640: we need to read and write, and others must not write",
                       value);
    ((struct consumer *)target)->file_mode = (int)mode;
    return 0;
}

static int set_exec_env(void *target, const char *value, struct error *err)
{
    if (exec_env_check(value, err) != 0) return -1;
    return set_string(&((struct consumer *)target)->exec_env, value, err);
}

/* What webhooks are told. */
#define HTTP_SETTER(name) \
    static int set_http_##name(void *target, const char *value, struct error *err) \
    { \
        return http_options_##name(&((struct consumer *)target)->http, value, err); \
    }
HTTP_SETTER(secret_file)
HTTP_SETTER(secret_env)
HTTP_SETTER(mode)
HTTP_SETTER(source)
HTTP_SETTER(header_file)
HTTP_SETTER(client_errors)
HTTP_SETTER(rate)
HTTP_SETTER(connect)
HTTP_SETTER(idle)
HTTP_SETTER(version)
HTTP_SETTER(ca_file)
HTTP_SETTER(allow)
HTTP_SETTER(proxy)

const struct option_def consumer_options[] = {
    {"preset", "none|dispatcher", "none",
     "dispatcher: batch 50, poll 500ms, retry fast,attempts=8, lease 30s, receipts; what is set beside it wins",
     set_preset},
    {"sink", "URL", NULL,
     "where to deliver: stdout:, file:PATH, exec:COMMAND, redis://HOST/DB?stream=NAME or https://HOST/PATH", set_sink},
    {"events", "PATTERN,...", NULL, "types of events to deliver, * standing for anything; all if not given",
     set_events},
    {"where", "EXPR", NULL, "predicate on the payload, such as authorType = \"user\" and not (draft exists)",
     set_where},
    {"order", "none|key|global", "key", "which events keep their order: none, those of the same key, or all",
     set_order},
    {"lanes", "N", "1", "shares of the keys that may be delivered at the same time, 1 to 64", set_lanes},
    {"from", "beginning|end|SEQ", "beginning",
     "where a consumer that is new to the store starts; SEQ is the first it gets", set_from},
    {"retry", "POLICY", "patient",
     "patient, fast, slow, or base=1s,cap=5m,attempts=5|forever,jitter=full|none,outage=24h", set_retry},
    {"lease", "DURATION", "30s", "how long events stay with a relay that vanished, at least 100ms", set_lease},
    {"timeout", "DURATION", "30s", "how long one delivery may take", set_timeout},
    {"poll", "DURATION", "0s", "how often to look even if nothing woke it; 0s: as sweep says", set_poll},
    {"concurrency", "N", "4", "deliveries at once, for a sink that takes one event at a time, 1 to 1024",
     set_concurrency},
    {"batch", "N", "1000", "most events to claim at once, 1 to 10000", set_batch},
    {"receipts", NULL, "no", "keep a record of every delivery", set_receipts},
    {"file-mode", "MODE", NULL, "permissions of a file that file: makes; if not given 0640, less the umask",
     set_file_mode},
    {"exec-env", "NAME,...", NULL,
     "environment variables that a command of exec: gets beside PATH, HOME, LANG and the like", set_exec_env},
    {"webhook-secret-file", "FILE", NULL,
     "sign webhooks with the secrets in this file, whsec_... or whsk_..., one to a line", set_http_secret_file},
    {"webhook-secret-env", "NAME", NULL, "sign webhooks with the secrets in this environment variable",
     set_http_secret_env},
    {"webhook-mode", "binary|structured", "binary",
     "CloudEvents over HTTP: attributes as headers, or all in one JSON object", set_http_mode},
    {"webhook-source", "URI", "/outbox", "the source that CloudEvents name", set_http_source},
    {"webhook-header-file", "FILE", NULL, "send the headers in this file along, Name: value one to a line",
     set_http_header_file},
    {"webhook-client-errors", "retry|reject", "retry",
     "whether an event is tried again that the endpoint finds fault with (400, 413, 422, ...)", set_http_client_errors},
    {"webhook-rate", "N", "0", "most requests a second; 0: no limit", set_http_rate},
    {"webhook-connect-timeout", "DURATION", "10s", "how long connecting may take; 0s: only timeout counts",
     set_http_connect},
    {"webhook-idle-timeout", "DURATION", "0s", "how long nothing may move, in whole seconds; 0s: only timeout counts",
     set_http_idle},
    {"webhook-http", "auto|1.1|2", "auto", "version of HTTP; auto: 2 over TLS if the endpoint has it",
     set_http_version},
    {"webhook-ca-file", "FILE", NULL, "trust the certificates in this file instead of the system's", set_http_ca_file},
    {"webhook-allow", "NET,...", NULL, "networks beside the public internet that webhooks may connect to",
     set_http_allow},
    {"webhook-proxy", "URL|env", NULL, "go through this proxy; env: through the one that https_proxy names",
     set_http_proxy},
    {NULL, NULL, NULL, NULL, NULL},
};

/* The defaults are set through the table, so that help and sample cannot say anything else. */
static int set_defaults(struct consumer *c, struct error *err)
{
    for (const struct option_def *o = consumer_options; o->name; o++) {
        if (o->def && o->set(c, o->def, err) != 0) return err_prefix(err, "default of %s", o->name);
    }
    return 0;
}

int consumer_set(struct consumer *c, const char *name, const char *value, struct error *err)
{
    if (option_set(consumer_options, c, name, value, err) != 0) return -1;
    const struct option_def *o = option_find(consumer_options, name);
    c->given |= UINT64_C(1) << (o - consumer_options);
    return 0;
}

int consumer_init(struct consumer *c, const char *name, struct error *err)
{
    struct consumer made = {0};
    if (store_name_check(name, err) != 0) return -1;
    if (set_string(&made.name, name, err) != 0 || set_string(&made.events, "", err) != 0 ||
        set_string(&made.where, "", err) != 0 || set_defaults(&made, err) != 0) {
        consumer_release(&made);
        return -1;
    }
    *c = made;
    return 0;
}

void consumer_release(struct consumer *c)
{
    free(c->name);
    free(c->sink);
    free(c->events);
    free(c->where);
    free(c->exec_env);
    http_options_release(&c->http);
    *c = (struct consumer){0};
}

int consumer_copy(const struct consumer *from, const char *name, const char *events, struct consumer *ret,
                  struct error *err)
{
    struct consumer made = *from;
    made.name = made.sink = made.events = made.where = made.exec_env = NULL;
    if (http_options_copy(&from->http, &made.http, err) != 0 || set_string(&made.name, name, err) != 0 ||
        set_normal(&made.events, events, normal_events, err) != 0 || set_string(&made.where, from->where, err) != 0 ||
        (from->sink && set_string(&made.sink, from->sink, err) != 0) ||
        (from->exec_env && set_string(&made.exec_env, from->exec_env, err) != 0)) {
        consumer_release(&made);
        return -1;
    }
    *ret = made;
    return 0;
}

struct consumer_spec consumer_spec_of(const struct consumer *c, char retry_text[RETRY_TEXT])
{
    retry_show(&c->retry, retry_text);
    return (struct consumer_spec){
        .name = c->name,
        .events = c->events,
        .where = c->where,
        .retry = retry_text,
        .order = c->order,
        .lanes = c->lanes,
        .start = c->start,
        .start_seq = c->start_seq,
    };
}

struct sink_config consumer_sink_config(const struct consumer *c)
{
    return (struct sink_config){
        .url = c->sink,
        .consumer = c->name,
        .timeout_ms = c->timeout_ms,
        .concurrency = c->concurrency,
        .http = &c->http,
        .file_mode = c->file_mode,
        .exec_env = c->exec_env,
    };
}
