#include "engine/consumer.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "event/filter.h"
#include "sink/exec_env.h"
#include "sink/sink.h"

#define LEASE_MIN_MS 100
#define TIME_MAX_MS (24 * INT64_C(3600000))
#define CONCURRENCY_MAX 1024
#define BATCH_MAX 10000
#define NORMAL_MAX (64 * 1024) /* limit on patterns or a predicate, as in filter_new */

/* What a preset sets, option by option. `none` restores the defaults. */
static const struct preset {
    const char *name;
    const char *const (*values)[2]; /* ends with name == NULL */
} presets[] = {
    {"none", (const char *const[][2]){{NULL, NULL}}},
    /* The usual settings of a dispatcher to Redis Streams. Its drain deadline of 30 s is the
     * default of every relay. */
    {"dispatcher", (const char *const[][2]){{"batch", "50"},
                                            {"poll", "500ms"},
                                            {"retry", "fast,attempts=8"},
                                            {"lease", "30s"},
                                            {"receipts", "yes"},
                                            {NULL, NULL}}},
};

#define PRESETS (sizeof presets / sizeof *presets)

static const struct preset *preset_find(const char *name)
{
    for (size_t i = 0; i < PRESETS; i++) {
        if (strcmp(presets[i].name, name) == 0)
            return &presets[i];
    }
    return NULL;
}

static const char *preset_value(const struct preset *p, const char *option)
{
    for (size_t i = 0; p->values[i][0]; i++) {
        if (strcmp(p->values[i][0], option) == 0)
            return p->values[i][1];
    }
    return NULL;
}

const char *consumer_preset(const char *preset, const char *option)
{
    const struct preset *p = preset_find(preset);
    return p ? preset_value(p, option) : NULL;
}

/* Whether any preset sets the option, so that choosing another preset has to restore its
 * default. */
static bool some_preset_sets(const char *option)
{
    for (size_t i = 0; i < PRESETS; i++) {
        if (preset_value(&presets[i], option))
            return true;
    }
    return false;
}

/* Applies a preset to all options that were not given explicitly. */
static int set_preset(void *target, const char *value, const struct option_def *row,
                      struct error *err)
{
    struct consumer *c = target;
    (void)row;
    const struct preset *p = preset_find(value);
    if (!p)
        return err_set(err, ERR_CONFIG, "\"%s\" is neither dispatcher nor none", value);

    for (size_t i = 0; consumer_options[i].name; i++) {
        const struct option_def *o = &consumer_options[i];
        bool given = (c->given & UINT64_C(1) << i) != 0;
        if (given || !some_preset_sets(o->name))
            continue;

        const char *text = preset_value(p, o->name);
        if (!text)
            text = o->def;
        if (option_apply(o, c, text, err) != 0)
            return err_prefix(err, "%s of preset %s", o->name, value);
    }
    return 0;
}

static int set_sink(void *field, const char *value, const struct option_def *o, struct error *err)
{
    const struct sink_ops *kind;
    if (sink_find(value, &kind, err) != 0)
        return -1;
    return option_copy(field, value, o, err);
}

/* Sets a filter in its normal form, so that the store treats two filters that differ only in
 * spelling as equal. */
static int set_normal(char **field, const char *value, void (*normal)(const char *, struct buf *),
                      struct error *err)
{
    struct buf b;
    buf_init(&b, NORMAL_MAX);
    normal(value, &b);
    const char *text = buf_cstr(&b);
    int r;
    if (text)
        r = option_copy(field, text, NULL, err);
    else if (b.full)
        r = err_set(err, ERR_CONFIG,
                    "is too long; the limit is %d bytes with a blank after each comma", NORMAL_MAX);
    else
        r = err_nomem(err);
    buf_release(&b);
    return r;
}

/* Sets the patterns or the predicate: the option table has a row for each. */
static int set_filter(void *field, const char *value, const struct option_def *o, struct error *err)
{
    struct filter *f;
    bool where = o->at == offsetof(struct consumer, where);
    int r;
    if (where)
        r = filter_new(NULL, value, &f, err);
    else
        r = filter_new(value, NULL, &f, err);
    if (r != 0)
        return -1;
    filter_free(f);
    return set_normal(field, value, where ? filter_normal_where : filter_normal_events, err);
}

static int set_from(void *target, const char *value, const struct option_def *o, struct error *err)
{
    static const char *const words[] = {"beginning", "end", NULL};
    struct consumer *c = target;
    (void)o;
    int64_t seq = 0;
    enum start start = START_SEQ;
    if (strcmp(value, "beginning") == 0) {
        start = START_BEGINNING;
    } else if (strcmp(value, "end") == 0) {
        start = START_END;
    } else if (text_int(value, 0, INT64_MAX, &seq, NULL) != 0) {
        char hint[TEXT_HINT];
        text_hint(value, words, (struct text_hint){0}, hint);
        return err_set(err, ERR_CONFIG, "\"%s\" is not beginning, end or a sequence number%s",
                       value, hint);
    }
    c->start = start;
    c->start_seq = seq;
    return 0;
}

static int set_retry(void *field, const char *value, const struct option_def *o, struct error *err)
{
    (void)o;
    return retry_parse(value, field, err);
}

static int set_file_mode(void *field, const char *value, const struct option_def *o,
                         struct error *err)
{
    (void)o;
    size_t digits = strspn(value, "01234567");
    bool octal = (digits == 3 || digits == 4) && value[digits] == '\0';
    long mode = octal ? strtol(value, NULL, 8) : 0;
    bool ours_to_use = (mode & 0600) == 0600;
    bool others_write = (mode & 0002) != 0;
    bool usable = ours_to_use && !others_write && mode <= 0777;
    if (!usable)
        return err_set(
            err, ERR_CONFIG,
            "\"%s\" is not a mode such as 0640: the owner must have read and write access, and "
            "others must not write",
            value);
    *(int *)field = (int)mode;
    return 0;
}

static int set_exec_env(void *field, const char *value, const struct option_def *o,
                        struct error *err)
{
    if (exec_env_check(value, err) != 0)
        return -1;
    return option_copy(field, value, o, err);
}

#define AT(field) .at = offsetof(struct consumer, field)

const struct option_def consumer_options[] = {
    {"preset", "none|dispatcher", "none",
     "dispatcher: batch 50, poll 500ms, retry fast,attempts=8, lease 30s, receipts; explicit "
     "options override it",
     set_preset, .at = 0},
    {"sink", "URL", NULL,
     "where to deliver: stdout:, file:PATH, exec:COMMAND, redis://HOST/DB?stream=NAME, "
     "kafka://HOST/TOPIC, nats://HOST/SUBJECT?stream=NAME, amqp://HOST/VHOST/EXCHANGE or "
     "https://HOST/PATH",
     set_sink, AT(sink)},
    {"events", "PATTERN,...", NULL, "event types to deliver; * matches anything; all if not given",
     set_filter, AT(events)},
    {"where", "EXPR", NULL,
     "predicate on the payload, such as authorType = \"user\" and not (draft exists)", set_filter,
     AT(where)},
    {"order", "none|key|global", "key",
     "which events stay in order: none, those with the same key, or all", option_choice, AT(order),
     .names = store_order_names},
    {"lanes", "N", "1",
     "number of lanes that keys are divided into, to deliver in parallel, 1 to 64", option_int,
     AT(lanes), .min = 1, .max = STORE_LANES_MAX},
    {"from", "beginning|end|SEQ", "beginning",
     "where a new consumer starts; SEQ is the first event it receives", set_from, .at = 0},
    {"retry", "POLICY", "patient",
     "patient, fast, slow, or base=1s,cap=5m,attempts=5|forever,jitter=full|none,outage=24h",
     set_retry, AT(retry)},
    {"lease", "DURATION", "30s",
     "how long a vanished relay keeps its claim on events, at least 100ms", option_span,
     AT(lease_ms), .min = LEASE_MIN_MS, .max = TIME_MAX_MS},
    {"timeout", "DURATION", "30s", "maximum time of one delivery", option_span, AT(timeout_ms),
     .min = 1, .max = TIME_MAX_MS},
    {"poll", "DURATION", "0s",
     "how often to look for work without a wake-up; 0s: as often as sweep", option_span,
     AT(poll_ms), .max = TIME_MAX_MS},
    {"concurrency", "N", "4",
     "parallel deliveries to a sink that takes one event at a time, 1 to 1024", option_int,
     AT(concurrency), .min = 1, .max = CONCURRENCY_MAX},
    {"batch", "N", "1000", "maximum number of events per claim, 1 to 10000", option_int, AT(batch),
     .min = 1, .max = BATCH_MAX},
    {"receipts", NULL, "no", "keep a record of every delivery", option_bool, AT(receipts)},
    {"file-mode", "MODE", NULL,
     "permissions of files that file: creates; 0640 less the umask if not given", set_file_mode,
     AT(file_mode)},
    {"exec-env", "NAME,...", NULL,
     "environment variables to pass to exec: commands, besides PATH, HOME, LANG and the like",
     set_exec_env, AT(exec_env)},
    {"webhook-secret-file", "FILE", NULL,
     "sign webhooks with the secrets in this file (whsec_... or whsk_...), one per line",
     option_file, AT(http.secret_file)},
    {"webhook-secret-env", "NAME", NULL,
     "sign webhooks with the secrets in this environment variable", http_options_secret_env,
     AT(http.secret_env)},
    {"webhook-mode", "binary|structured", "binary",
     "CloudEvents mode: attributes as headers, or everything in one JSON object", option_choice,
     AT(http.mode), .names = http_mode_names},
    {"webhook-source", "URI", "/outbox", "source attribute of the CloudEvents", http_options_source,
     AT(http.source)},
    {"webhook-header-file", "FILE", NULL,
     "send the headers in this file, one \"Name: value\" per line", option_file,
     AT(http.header_file)},
    {"webhook-client-errors", "retry|reject", "retry",
     "what to do with an event that the endpoint refuses (400, 413, 422, ...)", option_either,
     AT(http.reject_4xx), .names = http_client_errors_names},
    {"webhook-rate", "N", "0", "maximum requests per second; 0: no limit", option_int,
     AT(http.rate), .max = HTTP_RATE_MAX},
    {"webhook-connect-timeout", "DURATION", "10s",
     "maximum time to connect; 0s: only timeout applies", option_span, AT(http.connect_ms),
     .max = HTTP_TIME_MAX_MS},
    {"webhook-idle-timeout", "DURATION", "0s",
     "maximum time without any progress, in whole seconds; 0s: only timeout applies", option_span,
     AT(http.idle_ms), .max = HTTP_TIME_MAX_MS},
    {"webhook-http", "auto|1.1|2", "auto",
     "HTTP version; auto: 2 over TLS if the endpoint supports it", option_choice, AT(http.version),
     .names = http_version_names},
    {"webhook-ca-file", "FILE", NULL,
     "trust the CA certificates in this file instead of the system's", option_file,
     AT(http.ca_file)},
    {"webhook-allow", "NET,...", NULL,
     "private networks that webhooks may connect to, besides the public internet",
     http_options_allow, AT(http)},
    {"webhook-proxy", "URL|env", NULL, "use this proxy; env: the proxy that https_proxy names",
     http_options_proxy, AT(http.proxy)},
    {NULL},
};

int consumer_set(struct consumer *c, const char *name, const char *value, struct error *err)
{
    if (option_set(consumer_options, c, name, value, err) != 0)
        return -1;
    const struct option_def *o = option_find(consumer_options, name);
    c->given |= UINT64_C(1) << (o - consumer_options);
    return 0;
}

int consumer_init(struct consumer *c, const char *name, struct error *err)
{
    struct consumer made = {0};
    if (store_name_check(name, err) != 0)
        return -1;
    bool made_all = option_copy(&made.name, name, NULL, err) == 0 &&
                    option_copy(&made.events, "", NULL, err) == 0 &&
                    option_copy(&made.where, "", NULL, err) == 0 &&
                    option_defaults(consumer_options, &made, err) == 0;
    if (!made_all) {
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

int consumer_copy(const struct consumer *from, const char *name, const char *events,
                  struct consumer *ret, struct error *err)
{
    struct consumer made = *from;
    char **const fields[] = {&made.name, &made.sink, &made.where, &made.exec_env};
    const char *const texts[] = {name, from->sink, from->where, from->exec_env};
    int r = http_options_copy(&from->http, &made.http, err);
    made.events = NULL;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        *fields[i] = NULL; /* owned by `from` */
        if (r == 0)
            r = option_copy_maybe(fields[i], texts[i], err);
    }
    if (r == 0)
        r = set_normal(&made.events, events, filter_normal_events, err);
    if (r == 0)
        *ret = made;
    else
        consumer_release(&made);
    return r;
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
        .lanes = c->lanes,
        .http = &c->http,
        .file_mode = c->file_mode,
        .exec_env = c->exec_env,
    };
}
