#include "http_peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "sink/http_options.h"
#include "sink/signature.h"

#define SECOND (1000 * MS_NS)

/* ---- the suite's peer ---- */

static void *peer_setup(void)
{
    return http_peer_new();
}

static void peer_teardown(void *peer)
{
    http_peer_free(peer);
}

static const char *peer_url(void *peer)
{
    return http_peer_url(peer, "127.0.0.1");
}

static void peer_arrived(void *peer, struct sink_arrivals *got)
{
    http_peer_arrived(peer, got);
}

static void peer_break(void *peer)
{
    http_peer_stop(peer);
}

static void peer_heal(void *peer)
{
    http_peer_start(peer);
}

static char large[200 * 1024], many[4096];

static const char *peer_spoil(void *peer, struct sink_item *it, size_t way)
{
    (void)peer;
    memset(large, way ? 'k' : 1, sizeof large);
    switch (way) {
    case 0: /* a key that takes three times its size in a header */
    case 1:
        it->ev.aggregate_id = (struct str){large, sizeof large};
        return "aggregate_id has 204800 bytes";
    case 2: it->ev.tenant = (struct str){large, 2000}; return "tenant has 2000 bytes";
    case 3: it->ev.type = (struct str){large, 300}; return "type has 300 bytes";
    case 4: it->ev.id = STR("1\r\nX-Evil: 1"); return "its id cannot stand";
    case 5:
        strcpy(many, "{");
        for (int i = 0; i < 70; i++)
            sprintf(many + strlen(many), "%s\"h%d\":\"v\"", i ? "," : "", i);
        strcat(many, "}");
        it->ev.headers = str_of(many);
        return "more headers than the 64";
    default: return NULL;
    }
}

static const struct sink_case webhooks = {
    .name = "http",
    .many = 2000,
    .concurrency = 32,
    .setup = peer_setup,
    .teardown = peer_teardown,
    .url = peer_url,
    .arrived = peer_arrived,
    .break_peer = peer_break,
    .heal_peer = peer_heal,
    .spoil = peer_spoil,
};

/* ---- a fixture for what only webhooks promise ---- */

struct fixture {
    struct http_peer *peer;
    struct sink_rig rig;
    struct http_options o;
    char dir[SINK_PATH_SIZE];
    char secrets[SINK_PATH_SIZE + 16];
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    f->peer = http_peer_new();
    sink_rig_init(&f->rig);
    sink_tmp_new(f->dir);
    snprintf(f->secrets, sizeof f->secrets, "%s/secrets", f->dir);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    sink_rig_release(&f->rig);
    http_peer_free(f->peer);
    sink_tmp_remove(f->dir);
    http_options_release(&f->o);
    free(f);
    return 0;
}

static void open_at(struct fixture *f, const char *host)
{
    sink_rig_open(&f->rig, (struct sink_config){.url = http_peer_url(f->peer, host),
                                                .timeout_ms = 30000,
                                                .concurrency = 8,
                                                .http = &f->o});
}

static void open_here(struct fixture *f)
{
    open_at(f, "127.0.0.1");
}

/* deliver sends one more event and gives what came of it. */
static struct sink_item *deliver(struct fixture *f, const char *payload)
{
    struct sink_item *it = sink_rig_add(&f->rig, payload, 0);
    sink_rig_run(&f->rig);
    return it;
}

static void refuses(struct http_options *o, const char *url, const char *why, const char *never)
{
    const struct sink_ops *ops;
    struct error err = {0};
    struct sink *sk;
    struct sink_config cfg = {
        .url = url, .timeout_ms = 1000, .concurrency = 1, .http = o, .clock = &clock_system};
    assert_int_equal(sink_find(url, &ops, &err), 0);
    assert_int_equal(ops->open(&cfg, &sk, &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    if (!strstr(err.text, why))
        fail_msg("\"%s\" does not say \"%s\"", err.text, why);
    if (never && strstr(err.text, never))
        fail_msg("\"%s\" gives away \"%s\"", err.text, never);
}

static void assert_head_has(struct fixture *f, size_t i, const char *line)
{
    char *head = http_peer_head(f->peer, i);
    if (!strstr(head, line))
        fail_msg("no \"%s\" in\n%s", line, head);
    free(head);
}

static void assert_head_lacks(struct fixture *f, size_t i, const char *text)
{
    char *head = http_peer_head(f->peer, i);
    if (strstr(head, text))
        fail_msg("\"%s\" in\n%s", text, head);
    free(head);
}

/* ---- statuses ---- */

static void every_status_has_its_fate(void **state)
{
    static const struct {
        unsigned code;
        enum sink_status retry, reject; /* with webhook-client-errors = retry, and = reject */
    } cases[] = {
        {200, SINK_DELIVERED, SINK_DELIVERED}, {201, SINK_DELIVERED, SINK_DELIVERED},
        {202, SINK_DELIVERED, SINK_DELIVERED}, {204, SINK_DELIVERED, SINK_DELIVERED},
        {206, SINK_DELIVERED, SINK_DELIVERED}, {299, SINK_DELIVERED, SINK_DELIVERED},
        {300, SINK_RETRY, SINK_RETRY},         {301, SINK_RETRY, SINK_RETRY},
        {302, SINK_RETRY, SINK_RETRY},         {303, SINK_RETRY, SINK_RETRY},
        {304, SINK_RETRY, SINK_RETRY},         {307, SINK_RETRY, SINK_RETRY},
        {308, SINK_RETRY, SINK_RETRY},         {400, SINK_RETRY, SINK_REJECT},
        {401, SINK_RETRY, SINK_RETRY},         {402, SINK_RETRY, SINK_RETRY},
        {403, SINK_RETRY, SINK_RETRY},         {404, SINK_RETRY, SINK_RETRY},
        {405, SINK_RETRY, SINK_RETRY},         {406, SINK_RETRY, SINK_REJECT},
        {407, SINK_RETRY, SINK_RETRY},         {408, SINK_RETRY, SINK_RETRY},
        {409, SINK_RETRY, SINK_REJECT},        {410, SINK_PAUSE, SINK_PAUSE},
        {411, SINK_RETRY, SINK_REJECT},        {412, SINK_RETRY, SINK_REJECT},
        {413, SINK_RETRY, SINK_REJECT},        {414, SINK_RETRY, SINK_REJECT},
        {415, SINK_RETRY, SINK_REJECT},        {416, SINK_RETRY, SINK_REJECT},
        {417, SINK_RETRY, SINK_RETRY},         {418, SINK_RETRY, SINK_RETRY},
        {421, SINK_RETRY, SINK_RETRY},         {422, SINK_RETRY, SINK_REJECT},
        {423, SINK_RETRY, SINK_RETRY},         {424, SINK_RETRY, SINK_RETRY},
        {425, SINK_RETRY, SINK_RETRY},         {426, SINK_RETRY, SINK_RETRY},
        {428, SINK_RETRY, SINK_RETRY},         {429, SINK_DOWN, SINK_DOWN},
        {431, SINK_RETRY, SINK_REJECT},        {451, SINK_RETRY, SINK_RETRY},
        {498, SINK_RETRY, SINK_RETRY},         {499, SINK_RETRY, SINK_RETRY},
        {500, SINK_RETRY, SINK_RETRY},         {501, SINK_RETRY, SINK_RETRY},
        {502, SINK_RETRY, SINK_RETRY},         {503, SINK_DOWN, SINK_DOWN},
        {504, SINK_RETRY, SINK_RETRY},         {505, SINK_RETRY, SINK_RETRY},
        {507, SINK_RETRY, SINK_RETRY},         {511, SINK_RETRY, SINK_RETRY},
        {520, SINK_RETRY, SINK_RETRY},         {599, SINK_RETRY, SINK_RETRY},
    };
    struct fixture *f = *state;
    open_here(f);
    for (size_t i = 0; i < 2 * COUNT(cases); i++) {
        f->o.reject_4xx = i % 2;
        http_peer_reply(f->peer, (struct http_reply){.status = cases[i / 2].code});
        struct sink_item *it = deliver(f, "{}");
        enum sink_status want = i % 2 ? cases[i / 2].reject : cases[i / 2].retry;
        if (it->status != want)
            fail_msg("HTTP %u came back %d, not %d", cases[i / 2].code, it->status, want);
        assert_int_equal(it->native, want == SINK_DELIVERED ? it->native : (int)cases[i / 2].code);
    }
}

static void retry_after_is_honoured(void **state)
{
    char date[64];
    struct fixture *f = *state;
    time_t later = time(NULL) + 100;
    struct tm tm;
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&later, &tm));
    const struct {
        const char *value;
        int64_t least, most;
    } cases[] = {{"7", 7000, 7000}, {date, 90000, 100000}, {"999999999", 3600000, 3600000},
                 {"0", 0, 0},       {"soon", 0, 0},        {"-5", 0, 0}};
    open_here(f);
    for (size_t i = 0; i < COUNT(cases); i++) {
        http_peer_reply(f->peer, (struct http_reply){.status = i % 2 ? 503 : 429,
                                                     .name = "Retry-After",
                                                     .value = cases[i].value});
        struct sink_item *it = deliver(f, "{}");
        assert_int_equal(it->status, SINK_DOWN);
        assert_in_range(it->retry_after_ms, cases[i].least, cases[i].most);
        f->rig.ahead_ns += 3601 * SECOND;
    }
}

static void nothing_is_sent_before_retry_after_is_over(void **state)
{
    struct fixture *f = *state;
    open_here(f);
    http_peer_reply(f->peer,
                    (struct http_reply){.status = 429, .name = "Retry-After", .value = "60"});
    assert_int_equal(deliver(f, "{}")->status, SINK_DOWN);
    http_peer_reply(f->peer, (struct http_reply){0});
    struct sink_item *early = deliver(f, "{}");
    assert_int_equal(early->status, SINK_DOWN);
    assert_in_range(early->retry_after_ms, 1, 60001);
    assert_int_equal(http_peer_requests(f->peer), 1);
    f->rig.ahead_ns += 61 * SECOND;
    assert_int_equal(deliver(f, "{}")->status, SINK_DELIVERED);
}

static void redirect_is_not_followed(void **state)
{
    struct fixture *f = *state;
    open_here(f);
    http_peer_reply(f->peer,
                    (struct http_reply){.status = 307, .name = "Location", .value = "/elsewhere"});
    struct sink_item *it = deliver(f, "{}");
    assert_int_equal(it->status, SINK_RETRY);
    assert_non_null(strstr(it->text, "redirects are not followed"));
    assert_int_equal(http_peer_requests(f->peer), 1);
}

static void huge_answer_is_cut_and_never_repeated(void **state)
{
    struct fixture *f = *state;
    open_here(f);
    http_peer_reply(f->peer, (struct http_reply){.status = 200, .size = 8 << 20});
    assert_int_equal(deliver(f, "{}")->status, SINK_DELIVERED);
    http_peer_reply(f->peer, (struct http_reply){.status = 500, .size = 8 << 20});
    struct sink_item *it = deliver(f, "{}");
    assert_int_equal(it->status, SINK_RETRY);
    assert_in_range(strlen(it->text), 20, 300);
    http_peer_reply(f->peer,
                    (struct http_reply){.status = 500, .body = "no\r\n\x1b[31mway \xff\xfe"});
    it = deliver(f, "{}");
    assert_non_null(strstr(it->text, "HTTP 500: no   [31mway ??"));
}

static void silence_ends_at_the_time_limit(void **state)
{
    struct fixture *f = *state;
    open_here(f);
    http_peer_reply(f->peer, (struct http_reply){.hang = true});
    struct sink_item *it = sink_rig_add(&f->rig, "{}", 0);
    sink_rig_submit(&f->rig);
    while (http_peer_requests(f->peer) == 0) {
        f->rig.sk->ops->drive(f->rig.sk);
        sink_rig_wait(&f->rig);
    }
    f->rig.ahead_ns += 29 * SECOND;
    f->rig.sk->ops->drive(f->rig.sk);
    assert_int_equal(it->answers, 0);
    f->rig.ahead_ns += 2 * SECOND;
    sink_rig_run(&f->rig);
    assert_int_equal(it->status, SINK_RETRY);
    assert_non_null(strstr(it->text, "no whole answer within 30s"));
}

static void as_many_at_once_as_set_and_no_more(void **state)
{
    struct fixture *f = *state;
    open_here(f);
    http_peer_reply(f->peer, (struct http_reply){.hang = true});
    sink_rig_add_many(&f->rig, 20, 16);
    assert_int_equal(sink_rig_submit(&f->rig), 8);
    while (http_peer_requests(f->peer) < 8) {
        f->rig.sk->ops->drive(f->rig.sk);
        sink_rig_wait(&f->rig);
    }
    assert_int_equal(sink_rig_submit(&f->rig), 0);
    f->rig.sk->ops->cancel(f->rig.sk);
    assert_int_equal(f->rig.answered, 8);
}

static void connections_are_used_again(void **state)
{
    struct fixture *f = *state;
    open_here(f);
    sink_rig_add_many(&f->rig, 500, 16);
    sink_rig_run(&f->rig);
    sink_rig_assert_all(&f->rig, SINK_DELIVERED);
    assert_in_range(http_peer_connections(f->peer), 1, 8);
}

static void connection_closed_while_idle_harms_nobody(void **state)
{
    struct fixture *f = *state;
    open_here(f);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(deliver(f, "{}")->status, SINK_DELIVERED);
        http_peer_stop(f->peer);
        http_peer_start(f->peer);
    }
    assert_int_equal(http_peer_connections(f->peer), 5);
}

static void no_descriptors_left_is_down_and_said(void **state)
{
    struct fixture *f = *state;
    struct rlimit old, few;
    open_here(f);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    int next = dup(0);
    close(next);
    few = (struct rlimit){(rlim_t)next, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    struct sink_item *it = deliver(f, "{}");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(it->status, SINK_DOWN);
    assert_non_null(strstr(it->text, "Too many open files"));
    sink_rig_again(&f->rig);
    sink_rig_run(&f->rig);
    sink_rig_assert_all(&f->rig, SINK_DELIVERED);
}

static void rate_is_kept(void **state)
{
    struct fixture *f = *state;
    f->o.rate = 100;
    open_here(f);
    int64_t start = clock_mono(&clock_system);
    sink_rig_add_many(&f->rig, 40, 16);
    sink_rig_run(&f->rig);
    int64_t took = (clock_mono(&clock_system) - start) / MS_NS;
    sink_rig_assert_all(&f->rig, SINK_DELIVERED);
    assert_in_range(took, 290, 60000); /* ten at once, then one every 10 ms */
}

static void event_alone_waits_for_its_turn(void **state)
{
    struct fixture *f = *state;
    f->o.rate = 1;
    sink_rig_freeze(&f->rig);
    open_here(f);
    assert_int_equal(deliver(f, "1")->status, SINK_DELIVERED);
    struct sink_item *it = sink_rig_add(&f->rig, "2", 0);
    assert_int_equal(sink_rig_submit(&f->rig), 1);
    f->rig.sk->ops->drive(f->rig.sk);
    assert_int_equal(http_peer_requests(f->peer), 1);
    assert_in_range(f->rig.sk->ops->deadline(f->rig.sk) - clock_mono(&f->rig.clock), 1, SECOND);
    f->rig.ahead_ns += SECOND;
    sink_rig_run(&f->rig);
    assert_int_equal(it->status, SINK_DELIVERED);
}

/* ---- what is sent ---- */

static struct sink_item *odd_event(struct fixture *f)
{
    struct sink_item *it = sink_rig_add(&f->rig, "{\"total\": 99}", 0);
    it->ev.type = STR("a\r\nx-evil: 1");
    it->ev.aggregate_type = STR("\"q\" %");
    it->ev.aggregate_id = STR("\xc3\xa9\0\n");
    it->ev.tenant = STR("t\r\n\r\nx-evil: 2");
    it->ev.has_version = true;
    it->ev.version = -7;
    it->ev.headers = STR(
        "{\"corr\":\"1\\r\\nx-evil: 3\",\"x-Evil: "
        "4\\r\\n\":\"v\",\"id\":\"mine\",\"content-length\":\"0\","
        "\"traceparent\":\"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\","
        "\"tracestate\":\"a=1\\r\\nx-evil: 5\"}");
    sink_rig_run(&f->rig);
    return it;
}

static void attributes_go_as_headers_and_cannot_break_out(void **state)
{
    struct fixture *f = *state;
    open_here(f);
    struct sink_item *it = odd_event(f);
    assert_int_equal(it->status, SINK_DELIVERED);
    assert_head_has(f, 0, "POST /hook\n");
    assert_head_has(f, 0, "?token=t0ken\n");
    assert_head_has(f, 0, "\ncontent-type: application/json\n");
    assert_head_has(f, 0, "\nce-specversion: 1.0\n");
    assert_head_has(f, 0, "\nce-source: /outbox\n");
    assert_head_has(f, 0, "\nce-id: 00000000-0000-7000-8000-000000000001\n");
    assert_head_has(f, 0, "\nce-type: a%0D%0Ax-evil:%201\n");
    assert_head_has(f, 0, "\nce-subject: %22q%22%20%25/%C3%A9%00%0A\n");
    assert_head_has(f, 0, "\nce-tenant: t%0D%0A%0D%0Ax-evil:%202\n");
    assert_head_has(f, 0, "\nce-time: 2026-01-02T03:04:05.678Z\n");
    assert_head_has(f, 0, "\nce-aggregateversion: -7\n");
    assert_head_has(f, 0, "\nce-corr: 1%0D%0Ax-evil:%203\n");
    assert_head_has(f, 0,
                    "\ntraceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\n");
    assert_head_has(f, 0, "\noutbox-attempt: 1\n");
    assert_head_has(f, 0, "\ncontent-length: 13\n");
    assert_head_lacks(f, 0, "\nx-evil");
    assert_head_lacks(f, 0, "tracestate");
    assert_head_lacks(f, 0, "mine");
    char *body = http_peer_body(f->peer, 0, NULL);
    assert_string_equal(body, "{\"total\": 99}");
    free(body);
}

static void structured_mode_puts_all_into_the_body(void **state)
{
    struct fixture *f = *state;
    f->o.mode = HTTP_STRUCTURED;
    assert_int_equal(http_options_source(&f->o.source, "https://shop.example/orders", NULL, NULL),
                     0);
    open_here(f);
    assert_int_equal(odd_event(f)->status, SINK_DELIVERED);
    assert_head_has(f, 0, "\ncontent-type: application/cloudevents+json\n");
    assert_head_has(f, 0, "\ntraceparent: 00-4bf92f");
    assert_head_lacks(f, 0, "\nce-");
    assert_head_lacks(f, 0, "\nx-evil");
    size_t n;
    char *body = http_peer_body(f->peer, 0, &n);
    static const struct {
        const char *name, *raw;
    } want[] = {
        {"specversion", "\"1.0\""},
        {"id", "\"00000000-0000-7000-8000-000000000001\""},
        {"source", "\"https://shop.example/orders\""},
        {"type", "\"a\\r\\nx-evil: 1\""},
        {"datacontenttype", "\"application/json\""},
        {"corr", "\"1\\r\\nx-evil: 3\""},
        {"data", "{\"total\": 99}"},
    };
    struct json all, v;
    assert_int_equal(json_parse((struct str){body, n}, &all, NULL, NULL), 0);
    for (size_t i = 0; i < COUNT(want); i++) {
        assert_true(json_get(all, str_of(want[i].name), &v));
        if (!str_is(v.raw, want[i].raw))
            fail_msg("%s is %.*s", want[i].name, (int)v.raw.n, v.raw.p);
    }
    free(body);
}

static void event_with_too_many_headers_is_rejected_alone(void **state)
{
    char headers[4096] = "{";
    struct fixture *f = *state;
    open_here(f);
    for (int i = 0; i < 100; i++) {
        size_t n = strlen(headers);
        snprintf(headers + n, sizeof headers - n, "%s\"h%d\":\"v\"", i ? "," : "", i);
    }
    strcat(headers, "}");
    struct sink_item *bad = sink_rig_add(&f->rig, "1", 0), *good = sink_rig_add(&f->rig, "2", 0);
    bad->ev.headers = str_of(headers);
    sink_rig_run(&f->rig);
    assert_int_equal(bad->status, SINK_REJECT);
    assert_int_equal(good->status, SINK_DELIVERED);
}

static char *value_of(struct fixture *f, size_t i, const char *name)
{
    char *head = http_peer_head(f->peer, i), *at = strstr(head, name);
    assert_non_null(at);
    at += strlen(name);
    char *value = strndup(at, strcspn(at, "\n"));
    free(head);
    return value;
}

#define OLD "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
#define NEW "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="

#define PRIVATE \
    "whsk_6Xb/dCcHpPea21PS1N9VY/" \
    "NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="
#define PUBLIC "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="

static void every_secret_signs_and_each_verifies(void **state)
{
    struct fixture *f = *state;
    char one[SINK_PATH_SIZE + 16];
    sink_tmp_write(f->secrets, "# being rotated\n" NEW "\n\n" OLD "\n" PRIVATE "\n");
    assert_int_equal(option_copy(&f->o.secret_file, f->secrets, NULL, NULL), 0);
    open_here(f);
    assert_int_equal(deliver(f, "{\"a\": 1}")->status, SINK_DELIVERED);
    char *id = value_of(f, 0, "\nwebhook-id: "), *stamp = value_of(f, 0, "\nwebhook-timestamp: ");
    char *signature = value_of(f, 0, "\nwebhook-signature: ");
    assert_string_equal(id, f->rig.items[0]->id);
    struct signature_message m = {str_of(id), strtoll(stamp, NULL, 10), STR("{\"a\": 1}")};
    assert_in_range(m.timestamp, time(NULL) - 100, time(NULL) + 1);
    snprintf(one, sizeof one, "%s/one", f->dir);
    const char *each[] = {NEW, OLD, PUBLIC};
    for (size_t i = 0; i < 3; i++) {
        struct signature_keys *keys;
        struct signature_source from = {one, NULL, SIGNATURE_VERIFY};
        sink_tmp_write(one, each[i]);
        assert_int_equal(signature_keys_load(&from, &keys, NULL), 0);
        assert_null(signature_check(keys, &m, str_of(signature), time(NULL)));
        m.body = STR("{\"a\": 2}");
        assert_non_null(signature_check(keys, &m, str_of(signature), time(NULL)));
        m.body = STR("{\"a\": 1}");
        signature_keys_free(keys);
    }
    free(id), free(stamp), free(signature);
}

static void secret_headers_are_sent_and_never_repeated(void **state)
{
    struct fixture *f = *state;
    sink_tmp_write(f->secrets, "Authorization: Bearer s3cr3t-t0k3n\nX-Tenant:  blue \n");
    assert_int_equal(option_copy(&f->o.header_file, f->secrets, NULL, NULL), 0);
    open_here(f);
    http_peer_reply(f->peer, (struct http_reply){.status = 500, .body = "you said s3cr3t-t0k3n"});
    struct sink_item *it = deliver(f, "{}");
    assert_head_has(f, 0, "\nauthorization: Bearer s3cr3t-t0k3n\n");
    assert_head_has(f, 0, "\nx-tenant: blue\n");
    assert_null(strstr(it->text, "s3cr3t"));
    assert_null(strstr(it->text, "t0ken")); /* of the URL */
}

/* An answer that repeats what stands behind the host: endpoints have their tokens there. */
static void what_stands_behind_the_host_is_never_repeated(void **state)
{
    static const char *const bodies[] = {"no such token: t0ken", "Cannot POST /hook",
                                         "/hook?token=t0ken is not ours"};
    struct fixture *f = *state;
    open_here(f);
    for (size_t i = 0; i < COUNT(bodies); i++) {
        http_peer_reply(f->peer, (struct http_reply){.status = 404, .body = bodies[i]});
        struct sink_item *it = deliver(f, "{}");
        assert_int_equal(it->status, SINK_RETRY);
        if (strstr(it->text, "t0ken") || strstr(it->text, "hook"))
            fail_msg("%s", it->text);
        assert_non_null(strstr(it->text, "HTTP 404"));
    }
    http_peer_reply(f->peer, (struct http_reply){.status = 404, .body = "gone fishing"});
    assert_non_null(strstr(deliver(f, "{}")->text, "HTTP 404: gone fishing"));
}

/* What is cut off at the end of an excerpt may be the beginning of a secret. */
static void half_a_secret_is_not_repeated_either(void **state)
{
    struct fixture *f = *state;
    char body[400];
    sink_tmp_write(f->secrets,
                   "Authorization: Bearer s3cr3t-t0k3n-that-is-long-enough-to-be-cut\n");
    assert_int_equal(option_copy(&f->o.header_file, f->secrets, NULL, NULL), 0);
    open_here(f);
    memset(body, '.', sizeof body);
    strcpy(body + 140, "s3cr3t-t0k3n-that-is-long-enough-to-be-cut");
    http_peer_reply(f->peer, (struct http_reply){.status = 500, .body = body});
    struct sink_item *it = deliver(f, "{}");
    assert_int_equal(it->status, SINK_RETRY);
    assert_null(strstr(it->text, "s3cr3t"));
}

static void answer_is_made_fit_to_print(void **state)
{
    struct fixture *f = *state;
    open_here(f);
    http_peer_reply(
        f->peer,
        (struct http_reply){.status = 500, .body = "a\x1b[2J \xc2\x9b \xff\r\nb \xe2\x80\xae"});
    struct sink_item *it = deliver(f, "{}");
    assert_non_null(strstr(it->text, "HTTP 500: a [2J ? ?  b ?"));
}

/* What a header cannot say may well stand in JSON. */
static void long_key_is_whole_in_structured_mode(void **state)
{
    struct fixture *f = *state;
    size_t n;
    f->o.mode = HTTP_STRUCTURED;
    open_here(f);
    memset(large, 'k', sizeof large);
    struct sink_item *it = sink_rig_add(&f->rig, "{}", 0);
    it->ev.aggregate_id = (struct str){large, sizeof large};
    sink_rig_run(&f->rig);
    assert_int_equal(it->status, SINK_DELIVERED);
    char *body = http_peer_body(f->peer, 0, &n);
    char *subject = strstr(body, "\"subject\":\"order/kkk");
    assert_non_null(subject);
    assert_true(n > sizeof large);
    free(body);
}

static void text_that_is_no_utf_8_is_rejected_in_structured_mode(void **state)
{
    struct fixture *f = *state;
    f->o.mode = HTTP_STRUCTURED;
    open_here(f);
    sink_rig_add_many(&f->rig, 3, 64);
    f->rig.items[1]->ev.aggregate_id = STR("k\xff");
    sink_rig_run(&f->rig);
    assert_int_equal(f->rig.items[0]->status, SINK_DELIVERED);
    assert_int_equal(f->rig.items[1]->status, SINK_REJECT);
    assert_non_null(strstr(f->rig.items[1]->text, "aggregate_id is not UTF-8"));
    assert_int_equal(f->rig.items[2]->status, SINK_DELIVERED);
}

/* As large as events may be, and everything percent-encoded: the endpoint decides. */
static void headers_of_an_event_within_its_limits_are_sent(void **state)
{
    struct fixture *f = *state;
    char *headers = malloc(EVENT_HEADERS_MAX + 1), key[EVENT_KEY_MAX];
    memset(headers, 0x7f, EVENT_HEADERS_MAX);
    memcpy(headers, "{\"h\":\"", 6);
    memcpy(headers + EVENT_HEADERS_MAX - 2, "\"}", 3);
    memset(key, 0x7f, sizeof key);
    open_here(f);
    struct sink_item *it = sink_rig_add(&f->rig, "{}", 0);
    it->ev.headers = str_of(headers);
    it->ev.aggregate_id = it->ev.aggregate_type = it->ev.tenant = (struct str){key, sizeof key};
    sink_rig_run(&f->rig);
    /* The server of this test has 32 KiB for a head, and says so; another may have more. */
    if (it->status != SINK_DELIVERED && it->status != SINK_RETRY)
        fail_msg("%d %s", it->status, it->text);
    free(headers);
}

static void changed_secrets_and_headers_count_without_a_restart(void **state)
{
    struct fixture *f = *state;
    char headers[SINK_PATH_SIZE + 16];
    snprintf(headers, sizeof headers, "%s/headers", f->dir);
    sink_tmp_write(f->secrets, OLD "\n");
    sink_tmp_write(headers, "Authorization: Bearer first\n");
    assert_int_equal(option_copy(&f->o.secret_file, f->secrets, NULL, NULL), 0);
    assert_int_equal(option_copy(&f->o.header_file, headers, NULL, NULL), 0);
    open_here(f);
    assert_int_equal(deliver(f, "1")->status, SINK_DELIVERED);
    sink_tmp_write(f->secrets, NEW "\n" OLD "\n");
    sink_tmp_write(headers, "Authorization: Bearer another\n");
    f->rig.ahead_ns += 2 * SECOND;
    assert_int_equal(deliver(f, "2")->status, SINK_DELIVERED);
    assert_head_has(f, 0, "Bearer first\n");
    assert_head_has(f, 1, "Bearer another\n");
    char *before = value_of(f, 0, "\nwebhook-signature: "),
         *after = value_of(f, 1, "\nwebhook-signature: ");
    assert_null(strchr(before, ' '));
    assert_non_null(strchr(after, ' '));
    free(before), free(after);
    sink_tmp_write(f->secrets, "s3cr3t");
    f->rig.ahead_ns += 2 * SECOND;
    for (int i = 0; i < 2; i++) { /* also when it is looked at again, unchanged */
        struct sink_item *it = deliver(f, "3");
        assert_int_equal(it->status, SINK_DOWN);
        assert_non_null(strstr(it->text, "secret 1 does not start with whsec_"));
        assert_null(strstr(it->text, "s3cr3t"));
    }
    sink_tmp_write(f->secrets, NEW);
    assert_int_equal(deliver(f, "4")->status, SINK_DELIVERED);
    assert_int_equal(http_peer_requests(f->peer), 3);
}

static void bad_header_files_are_refused_without_their_values(void **state)
{
    static const char *const bad[] = {
        "s3cr3t\n",      "a b: s3cr3t\n",        "Host: s3cr3t\n", "ce-id: s3cr3t\n",
        "x: s3c\rr3t\n", "Webhook-Id: s3cr3t\n", "x:\n",           ": s3cr3t\n"};
    struct fixture *f = *state;
    assert_int_equal(option_copy(&f->o.header_file, f->secrets, NULL, NULL), 0);
    for (size_t i = 0; i < COUNT(bad); i++) {
        sink_tmp_write(f->secrets, bad[i]);
        refuses(&f->o, http_peer_url(f->peer, "127.0.0.1"), "line 1", "s3c");
    }
    sink_tmp_remove(f->dir);
    refuses(&f->o, http_peer_url(f->peer, "127.0.0.1"), "could not read the headers", NULL);
}

/* ---- where it connects to ---- */

static void name_that_leads_here_is_not_connected_to(void **state)
{
    struct fixture *f = *state;
    open_at(f, "inside.localhost"); /* which curl resolves to 127.0.0.1 by itself */
    struct sink_item *it = deliver(f, "{}");
    assert_int_equal(it->status, SINK_DOWN);
    assert_non_null(strstr(it->text, "will not connect to"));
    assert_non_null(strstr(it->text, "loopback"));
    assert_int_equal(http_peer_connections(f->peer), 0);
}

static void allow_list_permits_it(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(http_options_allow(&f->o, "10.0.0.0/8, 127.0.0.1", NULL, NULL), 0);
    open_at(f, "inside.localhost");
    assert_int_equal(deliver(f, "{}")->status, SINK_DELIVERED);
}

static void loopback_named_as_such_is_meant(void **state)
{
    struct fixture *f = *state;
    open_at(f, "localhost");
    assert_int_equal(deliver(f, "{}")->status, SINK_DELIVERED);
}

static void addresses_inside_are_refused_at_once(void **state)
{
    static const char *const urls[] = {"http://10.0.0.1/",
                                       "https://192.168.1.1/t0ken",
                                       "http://169.254.169.254/latest/t0ken",
                                       "http://0.0.0.0/",
                                       "http://[fe80::1]/",
                                       "http://[::ffff:10.0.0.1]/?t0ken",
                                       "http://[fd00::1]/",
                                       "https://[64:ff9b::169.254.1.1]/x",
                                       "http://0x0a000001/",
                                       "http://100.64.0.1:1/"};
    struct fixture *f = *state;
    for (size_t i = 0; i < COUNT(urls); i++)
        refuses(&f->o, urls[i], "address; if it is what you mean", "t0ken");
}

static void bad_urls_are_refused_without_their_secrets(void **state)
{
    struct fixture *f = *state;
    refuses(&f->o, "https://user:s3cr3t@example.com/", "holds no user or password", "s3cr3t");
    refuses(&f->o, "https://s3cr3t@example.com/", "holds no user or password", "s3cr3t");
    refuses(&f->o, "https://", "this is no URL", NULL);
    refuses(&f->o, "https://exa mple.com/s3cr3t", "this is no URL", "s3cr3t");
}

static void environment_names_no_proxy_unless_asked(void **state)
{
    struct fixture *f = *state;
    setenv("http_proxy", "http://127.0.0.1:1/", 1);
    setenv("all_proxy", "http://127.0.0.1:1/", 1);
    open_here(f);
    struct sink_item *it = deliver(f, "{}");
    assert_int_equal(it->status, SINK_DELIVERED);
    f->rig.sk->ops->close(f->rig.sk);
    assert_int_equal(http_options_proxy(&f->o.proxy, "env", NULL, NULL), 0);
    open_here(f);
    it = deliver(f, "{}");
    unsetenv("http_proxy");
    unsetenv("all_proxy");
    assert_int_equal(it->status, SINK_DOWN);
    assert_int_equal(http_peer_requests(f->peer), 1);
}

#define ON_A_PEER(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest own[] = {
        ON_A_PEER(every_status_has_its_fate),
        ON_A_PEER(retry_after_is_honoured),
        ON_A_PEER(nothing_is_sent_before_retry_after_is_over),
        ON_A_PEER(redirect_is_not_followed),
        ON_A_PEER(huge_answer_is_cut_and_never_repeated),
        ON_A_PEER(silence_ends_at_the_time_limit),
        ON_A_PEER(as_many_at_once_as_set_and_no_more),
        ON_A_PEER(connections_are_used_again),
        ON_A_PEER(connection_closed_while_idle_harms_nobody),
        ON_A_PEER(no_descriptors_left_is_down_and_said),
        ON_A_PEER(rate_is_kept),
        ON_A_PEER(event_alone_waits_for_its_turn),
        ON_A_PEER(attributes_go_as_headers_and_cannot_break_out),
        ON_A_PEER(structured_mode_puts_all_into_the_body),
        ON_A_PEER(event_with_too_many_headers_is_rejected_alone),
        ON_A_PEER(every_secret_signs_and_each_verifies),
        ON_A_PEER(secret_headers_are_sent_and_never_repeated),
        ON_A_PEER(what_stands_behind_the_host_is_never_repeated),
        ON_A_PEER(half_a_secret_is_not_repeated_either),
        ON_A_PEER(answer_is_made_fit_to_print),
        ON_A_PEER(long_key_is_whole_in_structured_mode),
        ON_A_PEER(text_that_is_no_utf_8_is_rejected_in_structured_mode),
        ON_A_PEER(headers_of_an_event_within_its_limits_are_sent),
        ON_A_PEER(changed_secrets_and_headers_count_without_a_restart),
        ON_A_PEER(bad_header_files_are_refused_without_their_values),
        ON_A_PEER(name_that_leads_here_is_not_connected_to),
        ON_A_PEER(allow_list_permits_it),
        ON_A_PEER(loopback_named_as_such_is_meant),
        ON_A_PEER(addresses_inside_are_refused_at_once),
        ON_A_PEER(bad_urls_are_refused_without_their_secrets),
        ON_A_PEER(environment_names_no_proxy_unless_asked),
    };
    return sink_suite_run(&webhooks, own, COUNT(own));
}
