#include "sink.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "redis/reply.h"
#include "redis/url.h"
#include "redis_moody.h"
#include "redis_server.h"

/* One server for all tests; each starts with it empty and as it was configured. */
static struct redis_server server;
static bool secured; /* the suite runs with TLS */

static void clean(void)
{
    static const char *const settings[][2] = {
        {"maxmemory", "0"}, {"client-query-buffer-limit", "1gb"}, {"proto-max-bulk-len", "512mb"}};
    if (!server.pid)
        redis_server_start(&server, true);
    redis_set(&server, "REPLICAOF NO ONE");
    for (size_t i = 0; i < COUNT(settings); i++)
        redis_set(&server, "CONFIG SET %s %s", settings[i][0], settings[i][1]);
    redis_set(&server, "ACL SETUSER default on nopass ~* &* +@all");
    redis_set(&server, "FLUSHALL");
    unsetenv(REDIS_PASSWORD_ENV);
}

struct peer {
    char url[512];
    struct sink_rig rig;
};

static void set_url(struct peer *p, const char *query)
{
    if (secured)
        snprintf(p->url, sizeof p->url, "rediss://127.0.0.1:%d/0?ca=%s/ca.crt&%s", server.port,
                 server.dir, query);
    else
        snprintf(p->url, sizeof p->url, "unix:%s?%s", server.socket, query);
}

static void *peer_setup(void)
{
    struct peer *p = calloc(1, sizeof *p);
    clean();
    set_url(p, "stream=s");
    return p;
}

static void peer_teardown(void *peer)
{
    free(peer);
}

static const char *peer_url(void *peer)
{
    return ((struct peer *)peer)->url;
}

static void add_entries(struct sink_arrivals *got, const redisReply *r)
{
    for (size_t i = 0; i < r->elements; i++) {
        const redisReply *fields = r->element[i]->element[1];
        struct json o, id, payload;
        assert_int_equal(fields->elements, 2);
        assert_string_equal(fields->element[0]->str, "event");
        struct str text = {fields->element[1]->str, fields->element[1]->len};
        assert_int_equal(json_parse(text, &o, NULL, NULL), 0);
        assert_true(json_get(o, STR("event_id"), &id) && json_get(o, STR("payload"), &payload));
        sink_arrivals_add(got, (struct str){id.raw.p + 1, id.raw.n - 2}, payload.raw);
    }
}

static void peer_arrived(void *peer, struct sink_arrivals *got)
{
    (void)peer;
    redisReply *r = redis_do(&server, "XRANGE s - +");
    add_entries(got, r);
    freeReplyObject(r);
}

static void peer_break(void *peer)
{
    (void)peer;
    redis_server_kill(&server);
}

static void peer_heal(void *peer)
{
    (void)peer;
    redis_server_start(&server, true);
}

static char large[3 << 20];

static const char *peer_spoil(void *peer, struct sink_item *it, size_t way)
{
    (void)peer;
    if (way >= 3)
        return NULL;
    redis_set(&server, "CONFIG SET proto-max-bulk-len 1mb");
    memset(large, 'x', sizeof large);
    large[0] = large[sizeof large - 1] = '"';
    it->ev.payload = (struct str){large, sizeof large};
    return "proto-max-bulk-len";
}

/* What only Redis promises */

static int setup(void **state)
{
    struct peer *p = peer_setup();
    sink_rig_init(&p->rig);
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    struct peer *p = *state;
    sink_rig_release(&p->rig);
    peer_teardown(p);
    return 0;
}

static void open_with(struct peer *p, const char *query)
{
    set_url(p, query);
    sink_rig_open(&p->rig,
                  (struct sink_config){.url = p->url, .timeout_ms = 10000, .concurrency = 4});
}

static struct sink_item *run_one(struct peer *p, const char *payload)
{
    struct sink_item *it = sink_rig_add(&p->rig, payload, 0);
    while (!it->answers) {
        sink_rig_submit(&p->rig);
        p->rig.sk->ops->drive(p->rig.sk);
        if (!it->answers)
            sink_rig_wait(&p->rig);
    }
    return it;
}

static void assert_text(const struct sink_item *it, const char *words)
{
    if (!strstr(it->text, words))
        fail_msg("\"%s\" is not in \"%s\"", words, it->text);
}

static size_t entries(const char *stream)
{
    redisReply *r = redis_do(&server, "XLEN %s", stream);
    size_t n = (size_t)r->integer;
    freeReplyObject(r);
    return n;
}

/* down_until expects that events come back as down, and pass once `cure` (a command) was given. */
static void down_until(struct peer *p, const char *words, const char *cure)
{
    struct sink_item *it = run_one(p, "{\"n\":1}");
    assert_int_equal(it->status, SINK_DOWN);
    assert_text(it, words);
    redis_set(&server, cure);
    sink_rig_again(&p->rig);
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
}

static void entry_has_one_field_with_the_envelope(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=tenant.{type[1]}");
    struct sink_item *it = sink_rig_add(&p->rig, "{ \"a\": 1 }", 0);
    it->ev.headers = STR("{\"traceparent\":\"00-ab\"}");
    it->ev.has_version = true;
    it->ev.version = 7;
    it->ev.aggregate_id = STR("4\r\n2\"\xc3\xab");
    sink_rig_run(&p->rig);
    assert_int_equal(it->status, SINK_DELIVERED);
    redisReply *r = redis_do(&server, "XRANGE tenant.created - +");
    assert_int_equal(r->elements, 1);
    assert_string_equal(r->element[0]->element[0]->str, it->receipt);
    assert_string_equal(
        r->element[0]->element[1]->element[1]->str,
        "{\"event_id\":\"00000000-0000-7000-8000-000000000001\",\"topic\":\"order.created\","
        "\"aggregate_kind\":\"order\","
        "\"aggregate_id\":\"4\\r\\n2\\\"\xc3\xab\",\"entity_version\":7,\"payload\":{ \"a\": 1 "
        ",\"_telemetry\":{\"traceparent\":\"00-ab\"}},\"stream_id\":\"tenant.created\","
        "\"committed_at\":\"2026-01-02T03:04:05.678Z\"}");
    freeReplyObject(r);
}

/* assert_one_stream_waits: of every three events the second goes to `bad`, which takes nothing. */
static void assert_one_stream_waits(struct peer *p, const char *words)
{
    open_with(p, "stream={aggregate_type}");
    sink_rig_add_many(&p->rig, 300, 64);
    for (size_t i = 0; i < 300; i += 3)
        p->rig.items[i + 1]->ev.aggregate_type = STR("bad");
    sink_rig_run(&p->rig);
    for (size_t i = 0; i < 300; i++) {
        struct sink_item *it = p->rig.items[i];
        assert_int_equal(it->status, i % 3 == 1 ? SINK_LATER : SINK_DELIVERED);
        if (i % 3 != 1)
            continue;
        assert_text(it, words);
        assert_in_range(it->retry_after_ms, 1000, 60000);
    }
    assert_int_equal(entries("order"), 200);

    /* The longer it lasts, the rarer they ask. */
    p->rig.ahead_ns += INT64_C(20000) * MS_NS;
    sink_rig_again(&p->rig);
    sink_rig_run(&p->rig);
    assert_in_range(p->rig.items[299]->retry_after_ms, 20000, 60000);
    redis_set(&server, "DEL bad");
    sink_rig_again(&p->rig);
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
    assert_int_equal(entries("bad"), 100);
}

static void stream_that_is_none_keeps_only_its_own_events(void **state)
{
    redis_set(&server, "SET bad x");
    assert_one_stream_waits(*state, "rename one of them");
}

static void stream_without_ids_keeps_only_its_own_events(void **state)
{
    redis_set(&server, "XADD bad 18446744073709551615-18446744073709551615 event {}");
    assert_one_stream_waits(*state, "XSETID");
}

static void only_stream_without_ids_is_down(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s");
    redis_set(&server, "XADD s 18446744073709551615-18446744073709551615 event {}");
    down_until(p, "no id is left", "DEL s");
}

/* What is in the stream is delivered, however odd its id. */
static void id_beyond_all_clocks_is_a_receipt(void **state)
{
    struct peer *p = *state;
    const struct hwm *m;
    open_with(p, "stream=s");
    redis_set(&server, "XADD s 18446744073709551610-3 event {}");
    struct sink_item *it = run_one(p, "1");
    assert_int_equal(it->status, SINK_DELIVERED);
    assert_string_equal(it->receipt, "18446744073709551610-4");
    assert_int_equal(p->rig.sk->ops->marks(p->rig.sk, &m), 0);
    assert_int_equal(entries("s"), 2);
}

static void stream_with_too_long_a_name_rejects_its_event_alone(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream={aggregate_id}");
    sink_rig_add_many(&p->rig, 3, 64);
    memset(large, 'k', sizeof large);
    p->rig.items[1]->ev.aggregate_id = (struct str){large, 200 * 1024};
    sink_rig_run(&p->rig);
    assert_int_equal(p->rig.items[0]->status, SINK_DELIVERED);
    assert_int_equal(p->rig.items[1]->status, SINK_REJECT);
    assert_text(p->rig.items[1], "204800 bytes");
    assert_int_equal(p->rig.items[2]->status, SINK_DELIVERED);
}

/* Over the limit of a server that says so: itself only, with hundreds before and behind it. */
static void event_larger_than_the_server_takes_is_rejected_alone(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s");
    redis_set(&server, "CONFIG SET proto-max-bulk-len 1mb");
    sink_rig_add_many(&p->rig, 200, 64);
    sink_rig_add_many(&p->rig, 1, 4 << 20);
    sink_rig_add_many(&p->rig, 200, 64);
    sink_rig_run(&p->rig);
    for (size_t i = 0; i < p->rig.n; i++)
        assert_int_equal(p->rig.items[i]->status, i == 200 ? SINK_REJECT : SINK_DELIVERED);
    assert_text(p->rig.items[200], "proto-max-bulk-len");
    assert_int_equal(entries("s"), 400);
}

static void every_error_has_its_fate(void **state)
{
    static const struct {
        const char *text;
        enum sink_status fixed, by_event; /* with one stream for all, and with one for each event */
    } errors[] = {
        {"NOAUTH Authentication required.", SINK_DOWN, SINK_DOWN},
        {"WRONGPASS invalid username-password pair or user is disabled.", SINK_DOWN, SINK_DOWN},
        {"NOPERM this user has no permissions to run the 'xadd' command", SINK_DOWN, SINK_DOWN},
        {"NOPERM User relay has no permissions to run the 'xadd' command", SINK_DOWN, SINK_DOWN},
        {"NOPERM No permissions to access a key", SINK_DOWN, SINK_LATER},
        {"NOPERM this user has no permissions to access one of the keys used as arguments",
         SINK_DOWN, SINK_LATER},
        {"DENIED Redis is running in protected mode because protected mode is enabled", SINK_DOWN,
         SINK_DOWN},
        {"BUSY Redis is busy running a script.", SINK_DOWN, SINK_DOWN},
        {"UNKILLABLE Sorry the script already executed write commands", SINK_DOWN, SINK_DOWN},
        {"LOADING Redis is loading the dataset in memory", SINK_DOWN, SINK_DOWN},
        {"MISCONF Redis is configured to save RDB snapshots", SINK_DOWN, SINK_DOWN},
        {"OOM command not allowed when used memory > 'maxmemory'.", SINK_DOWN, SINK_DOWN},
        {"READONLY You can't write against a read only replica.", SINK_DOWN, SINK_DOWN},
        {"MASTERDOWN Link with MASTER is down", SINK_DOWN, SINK_DOWN},
        {"NOREPLICAS Not enough good replicas to write.", SINK_DOWN, SINK_DOWN},
        {"CLUSTERDOWN The cluster is down", SINK_DOWN, SINK_DOWN},
        {"MOVED 3999 127.0.0.1:6381", SINK_DOWN, SINK_DOWN},
        {"ASK 3999 127.0.0.1:6381", SINK_DOWN, SINK_DOWN},
        {"TRYAGAIN Multiple keys request during rehashing of slot", SINK_DOWN, SINK_DOWN},
        {"CROSSSLOT Keys in request don't hash to the same slot", SINK_DOWN, SINK_DOWN},
        {"EXECABORT Transaction discarded because of previous errors.", SINK_DOWN, SINK_DOWN},
        {"ERR max number of clients reached", SINK_DOWN, SINK_DOWN},
        {"ERR max number of clients + cluster connections reached", SINK_DOWN, SINK_DOWN},
        {"ERR operation not permitted", SINK_DOWN, SINK_DOWN},
        {"ERR unknown command 'XADD', with args beginning with:", SINK_DOWN, SINK_DOWN},
        {"ERR syntax error", SINK_DOWN, SINK_DOWN},
        {"ERR Invalid stream ID specified as stream command argument", SINK_DOWN, SINK_DOWN},
        {"WRONGTYPE Operation against a key holding the wrong kind of value", SINK_DOWN,
         SINK_LATER},
        {"ERR The stream has exhausted the last possible ID, unable to add more items", SINK_DOWN,
         SINK_LATER},
        {"ERR The ID specified in XADD is equal or smaller than the target stream top item",
         SINK_DOWN, SINK_LATER},
        {"ERR The ID specified in XADD must be greater than 0-0", SINK_DOWN, SINK_LATER},
        {"ERR Protocol error: invalid bulk length", SINK_REJECT, SINK_REJECT},
        {"ERR Protocol error: expected '$', got ' '", SINK_DOWN, SINK_DOWN},
        {"NEWCODE that nobody has heard of", SINK_DOWN, SINK_DOWN},
        {"ERR something that nobody has heard of", SINK_RETRY, SINK_RETRY},
        {"upstream failure", SINK_RETRY, SINK_RETRY},
        {"ERR", SINK_RETRY, SINK_RETRY},
        {"", SINK_RETRY, SINK_RETRY},
    };
    struct peer *p = *state;
    char dir[SINK_PATH_SIZE], path[SINK_PATH_SIZE + 8];
    sink_tmp_new(dir);
    snprintf(path, sizeof path, "%s/s", dir);
    struct redis_moody *moody = redis_moody_new(path);
    for (size_t i = 0; i < 2 * COUNT(errors); i++) {
        snprintf(p->url, sizeof p->url, "unix:%s?stream=%s", path, i % 2 ? "{type}" : "s");
        sink_rig_open(&p->rig, (struct sink_config){.url = p->url, .timeout_ms = 10000});
        redis_moody_say(moody, errors[i / 2].text);
        struct sink_item *it = run_one(p, "1");
        enum sink_status want = i % 2 ? errors[i / 2].by_event : errors[i / 2].fixed;
        if (it->status != want)
            fail_msg("%s: %d, not %d", errors[i / 2].text, it->status, want);
        assert_text(it, errors[i / 2].text);
        redis_moody_say(moody, NULL);
        sink_rig_again(&p->rig);
        sink_rig_run(&p->rig);
        sink_rig_assert_all(&p->rig, SINK_DELIVERED);
        sink_rig_release(&p->rig);
    }
    redis_moody_free(moody);
    sink_tmp_remove(dir);
}

static void what_redis_says_is_made_fit_to_print(void **state)
{
    struct peer *p = *state;
    char dir[SINK_PATH_SIZE], path[SINK_PATH_SIZE + 8], *endless = malloc(4000);
    sink_tmp_new(dir);
    snprintf(path, sizeof path, "%s/s", dir);
    struct redis_moody *moody = redis_moody_new(path);
    memset(endless, 'x', 3999);
    memcpy(endless, "ERR \x1b[2J\xff\xc2\x9b ", 12);
    endless[3999] = '\0';
    redis_moody_say(moody, endless);
    snprintf(p->url, sizeof p->url, "unix:%s?stream=s{aggregate_id}", path);
    sink_rig_open(&p->rig, (struct sink_config){.url = p->url, .timeout_ms = 10000});
    struct sink_item *it = sink_rig_add(&p->rig, "1", 0);
    struct sink_item *evil = sink_rig_add(&p->rig, "2", 0);
    it->ev.aggregate_id = STR("good");
    evil->ev.aggregate_id = STR("\x1b]0;evil\a\n");
    sink_rig_run(&p->rig);
    assert_int_equal(it->status, SINK_RETRY);
    assert_text(it, "stream sgood: ERR  [2J?? xxx");
    assert_int_equal(evil->status, SINK_REJECT);
    for (const char *c = evil->text; *c; c++)
        assert_true((unsigned char)*c >= ' ');
    assert_true(strlen(it->text) < 700);
    redis_moody_free(moody);
    sink_tmp_remove(dir);
    free(endless);
}

static void event_that_lacks_a_part_of_the_name_is_rejected(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream={tenant}");
    assert_int_equal(run_one(p, "1")->status, SINK_REJECT);
    assert_text(p->rig.items[0], "it has no tenant");
}

static void wrong_type_of_the_only_stream_is_down(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s");
    redis_set(&server, "SET s x");
    down_until(p, "WRONGTYPE", "DEL s");
}

static void out_of_memory_is_down(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s");
    redis_set(&server, "CONFIG SET maxmemory 1");
    down_until(p, "OOM", "CONFIG SET maxmemory 0");
}

/* connection_number is how Redis numbers the sink's connection. */
static long connection_number(void)
{
    redisReply *r = redis_do(&server, "CLIENT LIST");
    long number = 0;
    for (char *save, *line = strtok_r(r->str, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save))
        if (strstr(line, "name=outbox:search"))
            number = atol(line + strlen("id="));
    freeReplyObject(r);
    return number;
}

/* Whose name leads to another server by now is reached by connecting anew. */
static void replica_is_down_until_it_is_master(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s");
    run_one(p, "0");
    long before = connection_number();
    assert_true(before > 0);
    redis_set(&server, "REPLICAOF 127.0.0.1 1");
    down_until(p, "READONLY", "REPLICAOF NO ONE");
    assert_true(connection_number() > before);
}

static void missing_and_wrong_passwords_are_down(void **state)
{
    struct peer *p = *state;
    char path[128], query[256];
    redis_set(&server, "ACL SETUSER default >s3cret resetpass >s3cret");
    open_with(p, "stream=s");
    assert_int_equal(run_one(p, "1")->status, SINK_DOWN);
    assert_text(p->rig.items[0], "NOAUTH");
    sink_rig_release(&p->rig);

    /* A file is read at each connection, so a rotated password needs no restart. */
    snprintf(path, sizeof path, "%s/password", server.dir);
    snprintf(query, sizeof query, "stream=s&password-file=%s", path);
    sink_tmp_write(path, "wr0ng\n");
    open_with(p, query);
    assert_int_equal(run_one(p, "1")->status, SINK_DOWN);
    assert_text(p->rig.items[0], "refused AUTH: WRONGPASS");
    assert_null(strstr(p->rig.items[0]->text, "wr0ng"));
    sink_tmp_write(path, "s3cret\n");
    sink_rig_again(&p->rig);
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
    sink_rig_release(&p->rig);

    setenv(REDIS_PASSWORD_ENV, "s3cret", 1);
    open_with(p, "stream=s");
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
}

/* What the server says to all is no sign that this event ends connections, however often it says
 * so: also if it refuses the last thing it is told before it is ready. */
static void refused_greeting_is_never_held_against_an_event(void **state)
{
    struct peer *p = *state;
    redis_set(&server, "ACL SETUSER default >s3cret resetpass >s3cret");
    open_with(p, "stream=s");
    run_one(p, "1");
    for (int i = 0; i < 5; i++) {
        assert_int_equal(p->rig.items[0]->status, SINK_DOWN);
        assert_text(p->rig.items[0], "refused CLIENT SETNAME: NOAUTH");
        sink_rig_again(&p->rig);
        sink_rig_run(&p->rig);
    }
}

static void acl_on_keys_is_about_a_stream_and_on_commands_about_all(void **state)
{
    struct peer *p = *state;
    setenv(REDIS_PASSWORD_ENV, "pw", 1);
    /* not even CLIENT, for the connection's name */
    redis_set(&server, "ACL SETUSER relay on >pw ~order +xadd");
    open_with(p, "user=relay&stream={aggregate_type}");
    sink_rig_add_many(&p->rig, 3, 64);
    p->rig.items[1]->ev.aggregate_type = STR("secret");
    sink_rig_run(&p->rig);
    assert_int_equal(p->rig.items[0]->status, SINK_DELIVERED);
    assert_int_equal(p->rig.items[1]->status, SINK_LATER);
    assert_text(p->rig.items[1], "NOPERM");
    assert_int_equal(p->rig.items[2]->status, SINK_DELIVERED);
    sink_rig_release(&p->rig);
    redis_set(&server, "ACL SETUSER relay -xadd");
    open_with(p, "user=relay&stream={aggregate_type}");
    down_until(p, "NOPERM", "ACL SETUSER relay +xadd");
    redis_set(&server, "ACL DELUSER relay");
}

static void paused_server_is_down_after_the_time_limit(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s");
    run_one(p, "0");
    kill(server.pid, SIGSTOP);
    sink_rig_add_many(&p->rig, 100, 64);
    sink_rig_submit(&p->rig);
    p->rig.sk->ops->drive(p->rig.sk);
    assert_int_equal(p->rig.answered, 1);
    p->rig.ahead_ns += INT64_C(11000) * MS_NS;
    p->rig.sk->ops->drive(p->rig.sk);
    assert_int_equal(p->rig.answered, 101);
    for (size_t i = 1; i < 101; i++)
        assert_int_equal(p->rig.items[i]->status, SINK_DOWN);
    assert_text(p->rig.items[1], "has not answered");
    kill(server.pid, SIGCONT);
    sink_rig_again(&p->rig);
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
}

static void idle_connection_closed_by_the_server_costs_nothing(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s");
    run_one(p, "0");
    redis_set(&server, "CLIENT KILL TYPE normal SKIPME yes");
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
}

/* A server that ends the connection at an event must not be taken for one that is away, for
 * ever. */
static void assert_held_against_it(struct peer *p, const char *query)
{
    open_with(p, query);
    redis_set(&server, "CONFIG SET client-query-buffer-limit 1mb");
    sink_rig_add_many(&p->rig, 1, 4 << 20);
    enum sink_status seen[4];
    for (int i = 0; i < 3; i++) {
        sink_rig_run(&p->rig);
        seen[i] = p->rig.items[0]->status;
        sink_rig_again(&p->rig);
    }
    assert_int_equal(seen[0], SINK_DOWN);
    assert_int_equal(seen[1], SINK_DOWN);
    assert_int_equal(seen[2], SINK_RETRY);
    redis_set(&server, "CONFIG SET client-query-buffer-limit 1gb");
}

static void event_that_costs_the_connection_again_and_again_is_held_against_it(void **state)
{
    struct peer *p = *state;
    assert_held_against_it(p, "stream=s");
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
}

/* What goes along with it makes it no less alone. */
static void event_that_costs_the_connection_is_found_with_replicas_too(void **state)
{
    assert_held_against_it(*state, "stream=s&replicas=1&replicas-wait=10ms");
}

/* A server that greets us and falls silent at one event. */
static void event_that_silences_the_server_is_held_against_it(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s");
    redis_set(&server, "CLIENT PAUSE 600000 WRITE");
    sink_rig_add_many(&p->rig, 1, 64);
    for (int i = 0; i < 3; i++) {
        while (p->rig.answered < 1) {
            sink_rig_submit(&p->rig);
            p->rig.sk->ops->drive(p->rig.sk);
            if (p->rig.answered == 1)
                break;
            if (connection_number() > 0)
                p->rig.ahead_ns += INT64_C(11000) * MS_NS;
            usleep(10000);
        }
        if (i == 2)
            redis_set(&server, "CLIENT UNPAUSE");
        assert_int_equal(p->rig.items[0]->status, i < 2 ? SINK_DOWN : SINK_RETRY);
        sink_rig_again(&p->rig);
    }
}

static void replicas_are_waited_for(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s&replicas=1&replicas-wait=10ms");
    sink_rig_add_many(&p->rig, 10, 64);
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DOWN);
    assert_text(p->rig.items[0], "0 of 1 replicas");

    struct redis_server replica = {0};
    redis_server_start(&replica, false);
    /* Replication goes over TLS, as the master has no other port. */
    redis_set(&replica, "CONFIG SET tls-ca-cert-file %s/ca.crt", server.dir);
    redis_set(&replica, "CONFIG SET tls-cert-file %s/server.crt", server.dir);
    redis_set(&replica, "CONFIG SET tls-key-file %s/server.key", server.dir);
    redis_set(&replica, "CONFIG SET tls-replication yes");
    redis_set(&server, "CONFIG SET repl-diskless-sync-delay 0");
    redis_set(&replica, "REPLICAOF 127.0.0.1 %d", server.port);
    do {
        sink_rig_again(&p->rig);
        sink_rig_run(&p->rig);
    } while (p->rig.items[0]->status != SINK_DELIVERED);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
    redisReply *r = redis_do(&replica, "XLEN s");
    assert_true(r->integer >= 10);
    freeReplyObject(r);
    redis_server_remove(&replica);
}

static void maxlen_and_maxage_trim_and_warn(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s");
    assert_null(p->rig.sk->ops->caution(p->rig.sk));
    sink_rig_release(&p->rig);
    open_with(p, "stream=s&maxlen=100");
    assert_non_null(p->rig.sk->ops->caution(p->rig.sk));
    sink_rig_add_many(&p->rig, 1000, 64);
    sink_rig_run(&p->rig);
    assert_in_range(entries("s"), 100, 300);
    sink_rig_release(&p->rig);
    open_with(p, "stream=s&maxage=1h");
    assert_non_null(p->rig.sk->ops->caution(p->rig.sk));
    redis_set(&server, "DEL s");
    for (int i = 0; i < 300; i++)
        redis_set(&server, "XADD s 1000-%d event {}", i + 1);
    run_one(p, "1");
    assert_in_range(entries("s"), 1, 150);
}

static void marks_say_how_far_each_stream_has_come(void **state)
{
    struct peer *p = *state;
    const struct hwm *m;
    char id[64];
    open_with(p, "stream={aggregate_type}");
    assert_int_equal(p->rig.sk->ops->marks(p->rig.sk, &m), 0);
    sink_rig_add_many(&p->rig, 500, 64);
    p->rig.items[100]->ev.aggregate_type = STR("other");
    sink_rig_run(&p->rig);
    assert_int_equal(p->rig.sk->ops->marks(p->rig.sk, &m), 2);
    if (!str_is(m[0].stream, "other"))
        m++;
    snprintf(id, sizeof id, "%lld-%lld", (long long)m->hi, (long long)m->lo);
    assert_string_equal(id, p->rig.items[100]->receipt);
    p->rig.sk->ops->marks_kept(p->rig.sk);
    assert_int_equal(p->rig.sk->ops->marks(p->rig.sk, &m), 0);
    struct sink_item *it = run_one(p, "1");
    assert_int_equal(p->rig.sk->ops->marks(p->rig.sk, &m), 1);
    snprintf(id, sizeof id, "%lld-%lld", (long long)m->hi, (long long)m->lo);
    assert_string_equal(id, it->receipt);
}

/* Lease */

static bool held(struct peer *p)
{
    return p->rig.sk->ops->lease(p->rig.sk)->held;
}

static void drive_until(struct peer *p, bool want)
{
    for (int i = 0; i < 2000 && held(p) != want; i++) {
        p->rig.sk->ops->drive(p->rig.sk);
        if (held(p) != want)
            sink_rig_wait(&p->rig);
    }
    assert_int_equal(held(p), want);
}

static void lease_is_taken_renewed_at_half_and_released_by_its_holder(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s&lease=lock:outbox&lease-ttl=30s");
    assert_false(held(p));
    drive_until(p, true);
    redisReply *r = redis_do(&server, "PTTL lock:outbox");
    assert_in_range(r->integer, 20001, 30000); /* it goes on while we are not scheduled */
    freeReplyObject(r);
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);

    redis_set(&server, "PEXPIRE lock:outbox 20000"); /* as if time had passed there, too */
    sink_rig_freeze(&p->rig);
    p->rig.ahead_ns += INT64_C(10000) * MS_NS;
    p->rig.sk->ops->drive(p->rig.sk);
    assert_int_equal(p->rig.sk->ops->lease(p->rig.sk)->renewed, 0);
    p->rig.ahead_ns += INT64_C(6000) * MS_NS;
    for (;;) {
        p->rig.sk->ops->drive(p->rig.sk);
        if (p->rig.sk->ops->lease(p->rig.sk)->renewed > 0)
            break;
        sink_rig_wait(&p->rig);
    }
    r = redis_do(&server, "PTTL lock:outbox");
    assert_in_range(r->integer, 20001, 30000);
    freeReplyObject(r);

    sink_rig_release(&p->rig);
    r = redis_do(&server, "EXISTS lock:outbox");
    assert_int_equal(r->integer, 0);
    freeReplyObject(r);
}

static void lost_lease_stops_new_work_at_once_and_is_left_to_its_new_holder(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s&lease=lock:outbox&lease-ttl=30s");
    drive_until(p, true);
    int64_t taken = clock_mono(&p->rig.clock);
    redis_set(&server, "SET lock:outbox another");
    p->rig.ahead_ns += INT64_C(16000) * MS_NS;
    drive_until(p, false);
    /* not only when its time is over */
    assert_true(clock_mono(&p->rig.clock) < taken + INT64_C(25000) * MS_NS);
    assert_int_equal(p->rig.sk->ops->lease(p->rig.sk)->lost, 1);
    assert_int_equal(run_one(p, "1")->status, SINK_CANCELLED);
    assert_int_equal(entries("s"), 0);
    sink_rig_release(&p->rig);
    redisReply *r = redis_do(&server, "GET lock:outbox");
    assert_string_equal(r->str, "another");
    freeReplyObject(r);
}

/* The time of a lease is over when it is, whether or not Redis can be asked. */
static void lease_ends_by_itself_while_the_server_hangs(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s&lease=lock:outbox&lease-ttl=30s");
    drive_until(p, true);
    kill(server.pid, SIGSTOP);
    p->rig.ahead_ns += INT64_C(16000) * MS_NS;
    p->rig.sk->ops->drive(p->rig.sk);
    assert_true(held(p));
    p->rig.ahead_ns += INT64_C(15000) * MS_NS;
    assert_false(held(p));
    kill(server.pid, SIGCONT);
    drive_until(p, true); /* it was ours all the time: extended, by its token */
}

/* Settings */

static void refuses(const char *url, const char *words)
{
    const struct sink_ops *ops;
    struct sink *sk = NULL;
    struct error err = {0};
    struct sink_config cfg = {.url = url, .consumer = "c", .clock = &clock_system};
    assert_int_equal(sink_find(url, &ops, &err), 0);
    assert_int_equal(ops->open(&cfg, &sk, &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    if (!strstr(err.text, words))
        fail_msg("\"%s\" is not in \"%s\"", words, err.text);
    assert_null(strstr(err.text, "s3cret"));
}

static void bad_settings_are_refused_with_advice(void **state)
{
    (void)state;
    refuses("redis://localhost", "which stream?");
    refuses("redis://u:s3cret@localhost?stream=s", "password-file=FILE");
    refuses("redis://:s3cret@localhost?stream=s", "password-file=FILE");
    refuses("redis://localhost?stream=s&password=s3cret", "password-file=FILE");
    refuses("redis://localhost?steam=s", "stream");
    refuses("redis://localhost:99999?stream=s", "port");
    refuses("redis://localhost/x?stream=s", "database number");
    refuses("redis:localhost?stream=s", "redis://");
    refuses("redis://localhost?stream={typ}", "did you mean {type}?");
    refuses("redis://localhost?stream=a{type", "without its }");
    refuses("redis://localhost?stream=s&ca=x", "rediss://");
    refuses("redis://localhost?stream=s&maxlen=1&maxage=1h", "not both");
    refuses("redis://localhost?stream=%0d%0a", "control character");
    refuses("unix:sock?stream=s", "unix:/PATH");
}

/* TLS */

static void certificate_must_be_good(void **state)
{
    struct peer *p = *state;
    snprintf(p->url, sizeof p->url, "rediss://127.0.0.1:%d?stream=s", server.port);
    sink_rig_open(&p->rig, (struct sink_config){.url = p->url, .timeout_ms = 10000});
    assert_int_equal(run_one(p, "1")->status, SINK_DOWN);
    assert_text(p->rig.items[0], "its certificate is not good");
    sink_rig_release(&p->rig);
    snprintf(p->url, sizeof p->url, "rediss://127.0.0.2:%d?stream=s&ca=%s/ca.crt", server.port,
             server.dir);
    redis_set(&server, "CONFIG SET bind %s", "127.0.0.1 127.0.0.2");
    sink_rig_open(&p->rig, (struct sink_config){.url = p->url, .timeout_ms = 10000});
    assert_int_equal(run_one(p, "1")->status, SINK_DOWN);
    assert_text(p->rig.items[0], "IP address mismatch");
    assert_int_equal(entries("s"), 0);
}

#define OWN(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

/* With the argument `tls` the same suite runs over TLS. */
int main(int argc, char **argv)
{
    const struct sink_case redis = {
        .name = "redis",
        .many = 5000,
        .concurrency = 4,
        .setup = peer_setup,
        .teardown = peer_teardown,
        .url = peer_url,
        .arrived = peer_arrived,
        .break_peer = peer_break,
        .heal_peer = peer_heal,
        .spoil = peer_spoil,
        .peer_rejects = true,
    };
    const struct CMUnitTest own[] = {
        OWN(entry_has_one_field_with_the_envelope),
        OWN(stream_that_is_none_keeps_only_its_own_events),
        OWN(stream_without_ids_keeps_only_its_own_events),
        OWN(only_stream_without_ids_is_down),
        OWN(id_beyond_all_clocks_is_a_receipt),
        OWN(stream_with_too_long_a_name_rejects_its_event_alone),
        OWN(event_larger_than_the_server_takes_is_rejected_alone),
        OWN(every_error_has_its_fate),
        OWN(what_redis_says_is_made_fit_to_print),
        OWN(event_that_lacks_a_part_of_the_name_is_rejected),
        OWN(wrong_type_of_the_only_stream_is_down),
        OWN(out_of_memory_is_down),
        OWN(replica_is_down_until_it_is_master),
        OWN(missing_and_wrong_passwords_are_down),
        OWN(refused_greeting_is_never_held_against_an_event),
        OWN(acl_on_keys_is_about_a_stream_and_on_commands_about_all),
        OWN(paused_server_is_down_after_the_time_limit),
        OWN(idle_connection_closed_by_the_server_costs_nothing),
        OWN(event_that_costs_the_connection_again_and_again_is_held_against_it),
        OWN(event_that_costs_the_connection_is_found_with_replicas_too),
        OWN(event_that_silences_the_server_is_held_against_it),
        OWN(replicas_are_waited_for),
        OWN(maxlen_and_maxage_trim_and_warn),
        OWN(marks_say_how_far_each_stream_has_come),
        OWN(lease_is_taken_renewed_at_half_and_released_by_its_holder),
        OWN(lost_lease_stops_new_work_at_once_and_is_left_to_its_new_holder),
        OWN(lease_ends_by_itself_while_the_server_hangs),
        cmocka_unit_test(bad_settings_are_refused_with_advice),
    };
    const struct CMUnitTest tls[] = {OWN(certificate_must_be_good)};
    secured = argc > 1 && strcmp(argv[1], "tls") == 0;
    int failures = secured ? sink_suite_run(&redis, tls, COUNT(tls))
                           : sink_suite_run(&redis, own, COUNT(own));
    redis_server_remove(&server);
    return failures;
}
