#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "redis/locate.h"

/* The slots that a server returns for CLUSTER KEYSLOT. */
static void slots_match_those_of_redis(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        unsigned slot;
    } known[] = {
        {"", 0},         {"123456789", 0x31c3}, {"foo", 12182},
        {"bar", 5061},   {"{foo}.x", 12182},    {"a{foo}b{bar}", 12182},
        {"{}foo", 9500}, {"foo{", 7673},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (redis_cluster_slot(str_of(known[i].key)) != known[i].slot)
            fail_msg("%s has slot %u", known[i].key, redis_cluster_slot(str_of(known[i].key)));
}

static void redirected(const char *text, bool ask, unsigned slot, const char *host,
                       const char *port)
{
    struct redis_redirect r;
    if (!redis_cluster_redirect(text, "asked", &r))
        fail_msg("%s", text);
    assert_int_equal(r.ask, ask);
    assert_int_equal(r.slot, slot);
    assert_string_equal(r.to.host, host);
    assert_string_equal(r.to.port, port);
}

static void redirections_are_parsed(void **state)
{
    (void)state;
    redirected("MOVED 3999 127.0.0.1:6381", false, 3999, "127.0.0.1", "6381");
    redirected("ASK 0 r2.example:6381", true, 0, "r2.example", "6381");
    redirected("MOVED 16383 2001:db8::1:6381", false, 16383, "2001:db8::1", "6381");
    redirected("MOVED 1 :6381", false, 1, "asked", "6381");
    redirected("MOVED 1 ?:6381", false, 1, "asked", "6381");
}

static void other_errors_are_not_redirections(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "MOVED",
        "MOVED 1",
        "MOVED 16384 a:1",
        "MOVED -1 a:1",
        "MOVED x a:1",
        "MOVED 1 a",
        "MOVED 1 a:",
        "MOVED 1 a:0",
        "MOVED 1 a:70000",
        "ASK 1 a:x",
        "MOVEDX 1 a:1",
        "MOVED 1 a\n:1",
        "ERR MOVED 1 a:1",
    };
    struct redis_redirect r;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (redis_cluster_redirect(bad[i], "asked", &r))
            fail_msg("%s", bad[i]);
}

static int note(void *ctx, unsigned first, unsigned last, const struct redis_address *master,
                struct error *err)
{
    char *text = ctx;
    (void)err;
    size_t n = strlen(text);
    snprintf(text + n, 200 - n, "%u-%u %s:%s;", first, last, master->host, master->port);
    return 0;
}

static int read_slots(const char *resp, char text[200])
{
    struct error err;
    void *reply = NULL;
    redisReader *reader = redisReaderCreate();
    redisReaderFeed(reader, resp, strlen(resp));
    assert_int_equal(redisReaderGetReply(reader, &reply), REDIS_OK);
    text[0] = '\0';
    int rc = redis_cluster_slots(reply, "asked", note, text, &err);
    freeReplyObject(reply);
    redisReaderFree(reader);
    return rc;
}

static void slot_ranges_are_parsed(void **state)
{
    (void)state;
    char text[200];
    const char *good = "*2\r\n"
                       "*3\r\n:0\r\n:5460\r\n*3\r\n$1\r\na\r\n:1\r\n$2\r\nid\r\n"
                       "*4\r\n:5461\r\n:16383\r\n*2\r\n$-1\r\n:2\r\n*2\r\n$1\r\nc\r\n:3\r\n";
    assert_int_equal(read_slots(good, text), 0);
    assert_string_equal(text, "0-5460 a:1;5461-16383 asked:2;");
    static const char *const bad[] = {
        "+OK\r\n",
        ":1\r\n",
        "*1\r\n:1\r\n",
        "*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\na\r\n:1\r\n",
        "*1\r\n*3\r\n:-1\r\n:1\r\n*2\r\n$1\r\na\r\n:1\r\n",
        "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\na\r\n:0\r\n",
        "*1\r\n*3\r\n:0\r\n:1\r\n*1\r\n$1\r\na\r\n",
        "*1\r\n*2\r\n:0\r\n:1\r\n",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (read_slots(bad[i], text) == 0)
            fail_msg("%s", bad[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_match_those_of_redis),
        cmocka_unit_test(redirections_are_parsed),
        cmocka_unit_test(other_errors_are_not_redirections),
        cmocka_unit_test(slot_ranges_are_parsed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
