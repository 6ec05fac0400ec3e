/* URLs of Kafka sinks, and topic names. A URL opens, without contacting any broker, or is refused
 * with a reason; no parameter removes a guarantee. A topic's name is one that Kafka allows. */
#include "fuzz.h"
#include "sink/kafka_impl.h"

static void done(void *ctx, struct delivery *d, const struct sink_result *r)
{
    (void)ctx;
    (void)d;
    (void)r;
}

static bool is_legal(const char *name)
{
    static const char legal[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t n = strlen(name);
    return n > 0 && n <= KAFKA_TOPIC_MAX && strspn(name, legal) == n;
}

/* name_topics builds topic names from untrusted event fields. */
static void name_topics(struct kafka_sink *k, const char *text)
{
    struct error err = {0};
    struct event ev = {.type = str_of(text), .tenant = str_of(text)};
    ev.aggregate_type = ev.aggregate_id = str_of(text);
    const char *topic = kafka_topic_name(k, &ev, &err);
    if (topic)
        MUST(is_legal(topic));
    else
        MUST(err.code == ERR_INVALID && err.text[0]);
}

static void try_url(const char *url, const char *text)
{
    const struct sink_ops *ops;
    struct sink *sk;
    struct error err = {0};
    struct sink_config cfg = {.url = url, .consumer = "c", .clock = &clock_system, .done = done};
    MUST(sink_find(url, &ops, &err) == 0);
    if (ops->open(&cfg, &sk, &err) != 0) {
        MUST(err.code == ERR_CONFIG && err.text[0] && !strchr(err.text, '\n'));
        return;
    }
    struct kafka_sink *k = (struct kafka_sink *)sk;
    for (size_t i = 0; i < k->set.properties.n; i++) {
        const char *name = k->set.properties.list[i].name;
        MUST(strcmp(name, "acks") != 0 && strcmp(name, "enable.idempotence") != 0);
        MUST(strcmp(name, "message.timeout.ms") != 0 && !strstr(name, "password"));
    }
    name_topics(k, text);
    ops->close(sk);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *text = fuzz_text(data, n), url[4200];
    snprintf(url, sizeof url, "kafka://%.4000s", text);
    try_url(url, text);
    snprintf(url, sizeof url, "kafka://h/t?%.4000s", text);
    try_url(url, text);
    snprintf(url, sizeof url, "kafka://h/{type}.{tenant}?format=json");
    try_url(url, text);
    free(text);
    return 0;
}
