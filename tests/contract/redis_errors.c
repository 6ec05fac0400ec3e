/* redis_errors.c: the outcome of an event when Redis answers with an error. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "redis/conn.h"
#include "redis/url.h"
#include "redis_peer.h"
#include "redis_scripted.h"

static void every_error_has_the_expected_outcome(void **state)
{
    static const struct {
        const char *text;
        enum sink_status status; /* with one stream for all events, and with several */
    } errors[] = {
        {"NOAUTH Authentication required.", SINK_DOWN},
        {"WRONGPASS invalid username-password pair or user is disabled.", SINK_DOWN},
        {"NOPERM this user has no permissions to run the 'xadd' command", SINK_DOWN},
        {"NOPERM User relay has no permissions to run the 'xadd' command", SINK_DOWN},
        {"NOPERM No permissions to access a key", SINK_REFUSED},
        {"NOPERM this user has no permissions to access one of the keys used as arguments",
         SINK_REFUSED},
        {"DENIED Redis is running in protected mode because protected mode is enabled", SINK_DOWN},
        {"BUSY Redis is busy running a script.", SINK_DOWN},
        {"UNKILLABLE Sorry the script already executed write commands", SINK_DOWN},
        {"LOADING Redis is loading the dataset in memory", SINK_DOWN},
        {"MISCONF Redis is configured to save RDB snapshots", SINK_DOWN},
        {"OOM command not allowed when used memory > 'maxmemory'.", SINK_DOWN},
        {"READONLY You can't write against a read only replica.", SINK_DOWN},
        {"MASTERDOWN Link with MASTER is down", SINK_DOWN},
        {"NOREPLICAS Not enough good replicas to write.", SINK_DOWN},
        {"CLUSTERDOWN The cluster is down", SINK_DOWN},
        {"MOVED 3999 127.0.0.1:6381", SINK_DOWN},
        {"ASK 3999 127.0.0.1:6381", SINK_DOWN},
        {"TRYAGAIN Multiple keys request during rehashing of slot", SINK_DOWN},
        {"CROSSSLOT Keys in request don't hash to the same slot", SINK_DOWN},
        {"EXECABORT Transaction discarded because of previous errors.", SINK_DOWN},
        {"ERR max number of clients reached", SINK_DOWN},
        {"ERR max number of clients + cluster connections reached", SINK_DOWN},
        {"ERR operation not permitted", SINK_DOWN},
        {"ERR unknown command 'XADD', with args beginning with:", SINK_DOWN},
        {"ERR syntax error", SINK_DOWN},
        {"ERR Invalid stream ID specified as stream command argument", SINK_DOWN},
        {"WRONGTYPE Operation against a key holding the wrong kind of value", SINK_REFUSED},
        {"ERR The stream has exhausted the last possible ID, unable to add more items",
         SINK_REFUSED},
        {"ERR The ID specified in XADD is equal or smaller than the target stream top item",
         SINK_REFUSED},
        {"ERR The ID specified in XADD must be greater than 0-0", SINK_REFUSED},
        {"ERR Protocol error: invalid bulk length", SINK_REJECT},
        {"ERR Protocol error: expected '$', got ' '", SINK_DOWN},
        {"NEWCODE that nobody has heard of", SINK_DOWN},
        {"ERR something that nobody has heard of", SINK_RETRY},
        {"upstream failure", SINK_RETRY},
        {"ERR", SINK_RETRY},
        {"", SINK_RETRY},
    };
    struct peer *p = *state;
    char dir[SINK_PATH_SIZE], path[SINK_PATH_SIZE + 8];
    sink_tmp_new(dir);
    snprintf(path, sizeof path, "%s/s", dir);
    struct redis_scripted *scripted = redis_scripted_new(path);
    for (size_t i = 0; i < 2 * COUNT(errors); i++) {
        snprintf(p->url, sizeof p->url, "unix:%s?stream=%s", path, i % 2 ? "{type}" : "s");
        sink_rig_open(&p->rig, (struct sink_config){.url = p->url, .timeout_ms = 10000});
        redis_scripted_say(scripted, errors[i / 2].text);
        struct sink_item *it = run_one(p, "1");
        enum sink_status want = errors[i / 2].status;
        if (it->status != want)
            fail_msg("%s: outcome %d, expected %d", errors[i / 2].text, it->status, want);
        sink_assert_says(it, errors[i / 2].text);
        redis_scripted_say(scripted, NULL);
        sink_rig_passes_again(&p->rig);
        sink_rig_release(&p->rig);
    }
    redis_scripted_free(scripted);
    sink_tmp_remove(dir);
}

/* status_of returns what a row of the table means for an event. */
static enum sink_status status_of(enum redis_fault fault)
{
    switch (fault) {
    case REDIS_FAULT_SIZE: return SINK_REJECT;
    case REDIS_FAULT_UNKNOWN:
    case REDIS_FAULT_SCRIPT: return SINK_RETRY;
    case REDIS_FAULT_STREAM: return SINK_REFUSED;
    case REDIS_FAULT_AWAY:
    case REDIS_FAULT_LOGIN:
    case REDIS_FAULT_SETUP: break;
    }
    return SINK_DOWN;
}

static void every_documented_error_has_its_documented_outcome(void **state)
{
    struct peer *p = *state;
    char dir[SINK_PATH_SIZE], path[SINK_PATH_SIZE + 8], said[200];
    sink_tmp_new(dir);
    snprintf(path, sizeof path, "%s/s", dir);
    struct redis_scripted *scripted = redis_scripted_new(path);
    snprintf(p->url, sizeof p->url, "unix:%s?stream=s", path);
    for (size_t i = 0; i < redis_errors_n; i++) {
        const struct redis_error *f = &redis_errors[i];
        snprintf(said, sizeof said, "%s and so on", f->words);
        assert_ptr_equal(redis_error_of(said), f);
        sink_rig_open(&p->rig, (struct sink_config){.url = p->url, .timeout_ms = 10000});
        redis_scripted_say(scripted, said);
        struct sink_item *it = run_one(p, "1");
        if (it->status != status_of(f->fault))
            fail_msg("%s: %d", said, it->status);
        if (f->advice)
            sink_assert_says(it, f->advice);
        redis_scripted_say(scripted, NULL);
        sink_rig_passes_again(&p->rig);
        sink_rig_release(&p->rig);
    }
    redis_scripted_free(scripted);
    sink_tmp_remove(dir);
}

static void redis_error_text_is_sanitized(void **state)
{
    struct peer *p = *state;
    char dir[SINK_PATH_SIZE], path[SINK_PATH_SIZE + 8], *endless = malloc(4000);
    sink_tmp_new(dir);
    snprintf(path, sizeof path, "%s/s", dir);
    struct redis_scripted *scripted = redis_scripted_new(path);
    memset(endless, 'x', 3999);
    memcpy(endless, "ERR \x1b[2J\xff\xc2\x9b ", 12);
    endless[3999] = '\0';
    redis_scripted_say(scripted, endless);
    snprintf(p->url, sizeof p->url, "unix:%s?stream=s{aggregate_id}", path);
    sink_rig_open(&p->rig, (struct sink_config){.url = p->url, .timeout_ms = 10000});
    struct sink_item *it = sink_rig_add(&p->rig, "1", 0);
    struct sink_item *evil = sink_rig_add(&p->rig, "2", 0);
    it->ev.aggregate_id = STR("good");
    evil->ev.aggregate_id = STR("\x1b]0;evil\a\n");
    sink_rig_run(&p->rig);
    assert_int_equal(it->status, SINK_RETRY);
    sink_assert_says(it, "stream sgood: ERR  [2J?? xxx");
    assert_int_equal(evil->status, SINK_REJECT);
    for (const char *c = evil->text; *c; c++)
        assert_true((unsigned char)*c >= ' ');
    assert_true(strlen(it->text) < 700);
    redis_scripted_free(scripted);
    sink_tmp_remove(dir);
    free(endless);
}

static void key_of_the_wrong_type_as_the_only_stream_is_refused(void **state)
{
    struct peer *p = *state;
    static const char *const queries[] = {"stream=s", "stream=s&dedupe=on"};
    for (size_t i = 0; i < COUNT(queries); i++) {
        open_with(p, queries[i]);
        redis_set(&server, "SET s x");
        assert_int_equal(run_one(p, "1")->status, SINK_REFUSED);
        sink_assert_says(p->rig.items[0], "WRONGTYPE");
        redis_set(&server, "DEL s");
        sink_rig_passes_again(&p->rig);
        sink_rig_release(&p->rig);
    }
    open_with(p, "stream=s");
}

static void full_redis_memory_is_down(void **state)
{
    struct peer *p = *state;
    open_with(p, "stream=s");
    redis_set(&server, "CONFIG SET maxmemory 1");
    down_until(p, "OOM", "CONFIG SET maxmemory 0");
}

/* After a failover the name leads to another server, which is reached only by reconnecting. */
static void replica_is_down_until_it_becomes_the_master(void **state)
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

/* An error sent to every client does not prove that this event breaks connections, however often it
 * is repeated, even if the server refuses the last command of the handshake. */
static void refused_handshake_does_not_fail_events(void **state)
{
    struct peer *p = *state;
    redis_set(&server, "ACL SETUSER default >s3cret resetpass >s3cret");
    open_with(p, "stream=s");
    run_one(p, "1");
    for (int i = 0; i < 5; i++) {
        assert_int_equal(p->rig.items[0]->status, SINK_DOWN);
        sink_assert_says(p->rig.items[0], "refused CLIENT SETNAME: NOAUTH");
        sink_rig_again(&p->rig);
        sink_rig_run(&p->rig);
    }
}

static void missing_and_wrong_passwords_are_down(void **state)
{
    struct peer *p = *state;
    char path[128], query[256];
    redis_set(&server, "ACL SETUSER default >s3cret resetpass >s3cret");
    open_with(p, "stream=s");
    assert_int_equal(run_one(p, "1")->status, SINK_DOWN);
    sink_assert_says(p->rig.items[0], "NOAUTH");
    sink_rig_release(&p->rig);

    /* A file is read at each connection, so a rotated password needs no restart. */
    snprintf(path, sizeof path, "%s/password", server.dir);
    snprintf(query, sizeof query, "stream=s&password-file=%s", path);
    sink_tmp_write(path, "wr0ng\n");
    open_with(p, query);
    assert_int_equal(run_one(p, "1")->status, SINK_DOWN);
    sink_assert_says(p->rig.items[0], "refused AUTH: WRONGPASS");
    assert_null(strstr(p->rig.items[0]->text, "wr0ng"));
    sink_tmp_write(path, "s3cret\n");
    sink_rig_passes_again(&p->rig);
    sink_rig_release(&p->rig);

    setenv(REDIS_PASSWORD_ENV, "s3cret", 1);
    open_with(p, "stream=s");
    assert_int_equal(run_one(p, "1")->status, SINK_DELIVERED);
}

static void key_acl_fails_one_stream_and_command_acl_fails_all(void **state)
{
    struct peer *p = *state;
    setenv(REDIS_PASSWORD_ENV, "pw", 1);
    /* The user may not even use CLIENT to name the connection. */
    redis_set(&server, "ACL SETUSER relay on >pw ~order +xadd");
    open_with(p, "user=relay&stream={aggregate_type}");
    sink_rig_add_many(&p->rig, 3, 64);
    p->rig.items[1]->ev.aggregate_type = STR("secret");
    sink_rig_run(&p->rig);
    assert_int_equal(p->rig.items[0]->status, SINK_DELIVERED);
    assert_int_equal(p->rig.items[1]->status, SINK_REFUSED);
    sink_assert_says(p->rig.items[1], "NOPERM");
    assert_int_equal(p->rig.items[2]->status, SINK_DELIVERED);
    sink_rig_release(&p->rig);
    redis_set(&server, "ACL SETUSER relay -xadd");
    open_with(p, "user=relay&stream={aggregate_type}");
    down_until(p, "NOPERM", "ACL SETUSER relay +xadd");
    redis_set(&server, "ACL DELUSER relay");
}

static const struct CMUnitTest tests[] = {
    OWN(every_error_has_the_expected_outcome),
    OWN(every_documented_error_has_its_documented_outcome),
    OWN(redis_error_text_is_sanitized),
    OWN(key_of_the_wrong_type_as_the_only_stream_is_refused),
    OWN(full_redis_memory_is_down),
    OWN(replica_is_down_until_it_becomes_the_master),
    OWN(missing_and_wrong_passwords_are_down),
    OWN(refused_handshake_does_not_fail_events),
    OWN(key_acl_fails_one_stream_and_command_acl_fails_all),
};

const struct suite_part redis_errors_tests = SUITE_PART(tests);
