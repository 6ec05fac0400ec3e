#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "extra/webhook/replay.h"
#include "sink/signature.h"

/* The example of the Standard Webhooks specification. */
#define SECRET "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
#define SIGNED "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
#define TIME 1614265330
/* The v1a scheme, with the keys of Svix's test. */
#define SEED "6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbc="
#define PRIVATE \
    "whsk_6Xb/dCcHpPea21PS1N9VY/" \
    "NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="
#define PUBLIC "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="
#define SIGNED_A \
    "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg=="
static const struct signature_message example = {
    {"msg_p5jXN8AQM9LWM0D4loKWxJek", 28}, TIME, {"{\"test\": 2432232314}", 20}};

static struct signature_keys *keys_of(const char *words)
{
    struct signature_keys *keys;
    struct error err;
    static const struct signature_source from = {NULL, "TEST_SECRETS", SIGNATURE_VERIFY};
    setenv("TEST_SECRETS", words, 1);
    if (signature_keys_load(&from, &keys, &err) != 0)
        fail_msg("%s", err.text);
    return keys;
}

static void signatures_match_the_specification(void **state)
{
    struct buf b;
    (void)state;
    buf_init(&b, 1024);
    struct signature_keys *keys = keys_of(SECRET);
    for (int i = 0; i < 3; i++) { /* a key can be reused */
        buf_clear(&b);
        signature_add(&b, keys, &example);
        assert_string_equal(buf_cstr(&b), SIGNED);
    }
    signature_keys_free(keys);
    keys = keys_of("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA " SECRET);
    buf_clear(&b);
    signature_add(&b, keys, &example);
    assert_non_null(strstr(buf_cstr(&b), " " SIGNED));
    signature_keys_free(keys);
    buf_release(&b);
}

static void only_genuine_signatures_are_accepted(void **state)
{
    struct signature_keys *keys = keys_of(SECRET),
                          *others = keys_of("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
    struct signature_message m = example;
    (void)state;
    assert_null(signature_check(keys, &m, STR(SIGNED), TIME));
    assert_null(signature_check(keys, &m, STR(SIGNED), 0));
    assert_null(signature_check(keys, &m, STR("v1a,xyz  v1,AAAA " SIGNED), TIME));
    assert_null(signature_check(keys, &m, STR(SIGNED), TIME + 300));
    assert_null(signature_check(keys, &m, STR(SIGNED), TIME - 300));
    assert_non_null(signature_check(keys, &m, STR(SIGNED), TIME + 301));
    assert_non_null(signature_check(keys, &m, STR(SIGNED), TIME - 301));
    assert_non_null(signature_check(others, &m, STR(SIGNED), TIME));
    assert_non_null(signature_check(keys, &m, STR(""), TIME));
    assert_non_null(signature_check(keys, &m, (struct str){0}, TIME));
    assert_non_null(signature_check(keys, &m, STR("v1,"), TIME));
    assert_non_null(
        signature_check(keys, &m, STR("v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="), TIME));
    assert_non_null(
        signature_check(keys, &m, STR("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OF="), TIME));
    m.body = STR("{\"test\": 2432232315}");
    assert_non_null(signature_check(keys, &m, STR(SIGNED), TIME));
    m = example, m.id = STR("msg_other");
    assert_non_null(signature_check(keys, &m, STR(SIGNED), TIME));
    m = example, m.timestamp++;
    assert_non_null(signature_check(keys, &m, STR(SIGNED), TIME));
    signature_keys_free(keys);
    signature_keys_free(others);
}

static void private_key_signatures_match_other_libraries(void **state)
{
    static const char *const forms[] = {PRIVATE, "whsk_" SEED};
    struct buf b;
    (void)state;
    buf_init(&b, 1024);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        struct signature_keys *keys = keys_of(forms[i]);
        buf_clear(&b);
        signature_add(&b, keys, &example);
        assert_string_equal(buf_cstr(&b), SIGNED_A);
        buf_clear(&b);
        assert_int_equal(signature_public(&b, keys, NULL), 0);
        assert_string_equal(buf_cstr(&b), PUBLIC "\n");
        signature_keys_free(keys);
    }
    struct signature_keys *keys = keys_of(SECRET " " PRIVATE);
    buf_clear(&b);
    signature_add(&b, keys, &example);
    assert_string_equal(buf_cstr(&b), SIGNED " " SIGNED_A);
    signature_keys_free(keys);
    buf_release(&b);
}

static void only_the_matching_public_key_is_accepted(void **state)
{
    struct signature_keys *keys = keys_of(PUBLIC), *both = keys_of(PUBLIC " " SECRET),
                          *secret = keys_of(SECRET);
    struct signature_message m = example;
    char flood[SIGNATURES_MAX * sizeof SIGNED_A + sizeof SIGNED_A] = "";
    (void)state;
    assert_null(signature_check(keys, &m, STR(SIGNED_A), TIME));
    assert_null(signature_check(keys, &m, STR(SIGNED " " SIGNED_A), TIME));
    assert_null(signature_check(keys, &m, STR("v1a,AAAA v1a, v1a  " SIGNED_A), TIME));
    assert_null(signature_check(both, &m, STR(SIGNED), TIME));
    assert_null(signature_check(both, &m, STR(SIGNED_A), TIME));
    assert_non_null(signature_check(keys, &m, STR(SIGNED), TIME));
    assert_non_null(signature_check(secret, &m, STR(SIGNED_A), TIME));
    assert_non_null(signature_check(keys, &m, STR(SIGNED_A), TIME + 301));
    /* Neither kind of secret is accepted as the other. */
    assert_non_null(signature_check(keys, &m,
                                    STR("v1,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/"
                                        "enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg=="),
                                    TIME));
    assert_non_null(
        signature_check(secret, &m, STR("v1a,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="), TIME));
    assert_non_null(signature_check(keys, &m,
                                    STR("v1a,"
                                        "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
                                        "AAAAAAAAAAAAAAAAAAAAAAAAAAAA=="),
                                    TIME));
    m.body = STR("{\"test\": 2432232315}");
    assert_non_null(signature_check(keys, &m, STR(SIGNED_A), TIME));
    m = example, m.id = STR("msg_other");
    assert_non_null(signature_check(keys, &m, STR(SIGNED_A), TIME));
    m = example, m.timestamp++;
    assert_non_null(signature_check(keys, &m, STR(SIGNED_A), TIME));
    /* A long header must not cost unbounded time. */
    m = example;
    for (int i = 0; i < SIGNATURES_MAX; i++)
        strcat(flood, "v1a,"
                      "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
                      "AAAAAAAAAA== ");
    strcat(flood, SIGNED_A);
    assert_non_null(signature_check(keys, &m, str_of(flood), TIME));
    signature_keys_free(keys);
    signature_keys_free(both);
    signature_keys_free(secret);
}

static void signed_text_is_unambiguous(void **state)
{
    struct signature_keys *keys = keys_of(SECRET);
    struct signature_message m = {STR("x"), TIME, STR("1614265331.5")},
                             other = {STR("x.1614265330"), TIME + 1, STR("5")};
    struct buf b;
    (void)state;
    buf_init(&b, 1024);
    signature_add(&b, keys, &m);
    assert_null(signature_check(keys, &m, (struct str){b.p, b.n}, TIME));
    assert_non_null(signature_check(keys, &other, (struct str){b.p, b.n}, TIME));
    buf_release(&b);
    signature_keys_free(keys);
}

static void timestamp_has_only_digits(void **state)
{
    static const char *const bad[] = {"",
                                      "123xyz",
                                      " 123",
                                      "123 ",
                                      "+123",
                                      "-123",
                                      "0x12",
                                      "1e9",
                                      "0",
                                      "0123",
                                      "12.3",
                                      "1614265330\n",
                                      "9999999999999999",
                                      "99999999999999999999999999"};
    int64_t t = 0;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (signature_timestamp(str_of(bad[i]), &t))
            fail_msg("%s was accepted", bad[i]);
    assert_true(signature_timestamp(STR("1614265330"), &t));
    assert_int_equal(t, TIME);
    assert_true(signature_timestamp(STR("999999999999999"), &t));
    assert_false(signature_timestamp((struct str){"12\0003", 4}, &t));
}

static void replays_and_repeats_are_distinguished(void **state)
{
    struct replay_memory *r = replay_new();
    struct signature_message m = example;
    int64_t now = TIME + 10;
    (void)state;
    assert_int_equal(replay_known(r, &m, now), REPLAY_NEW);
    replay_accept(r, &m, now);
    assert_int_equal(replay_known(r, &m, now), REPLAY_REPLAY);
    assert_int_equal(replay_known(r, &m, TIME + SIGNATURE_TOLERANCE_S), REPLAY_REPLAY);
    m.timestamp += 7;
    assert_int_equal(replay_known(r, &m, now), REPLAY_REPEAT);
    replay_accept(r, &m, now + 7);
    assert_int_equal(replay_known(r, &m, now + 7), REPLAY_REPLAY);
    assert_int_equal(replay_known(r, &example, now + 7), REPLAY_REPLAY);
    m.id = STR("another");
    assert_int_equal(replay_known(r, &m, now), REPLAY_NEW);
    /* A message dated in the future can be replayed for longer. */
    m.timestamp = now + SIGNATURE_TOLERANCE_S;
    replay_accept(r, &m, now);
    assert_int_equal(replay_known(r, &m, now + 2 * SIGNATURE_TOLERANCE_S), REPLAY_REPLAY);
    replay_free(r);
}

static void replay_memory_is_bounded_and_keeps_the_newest(void **state)
{
    struct replay_memory *r = replay_new();
    char id[32];
    size_t lost = 0;
    (void)state;
    for (int i = 0; i < 100000; i++) {
        snprintf(id, sizeof id, "msg_%d", i);
        struct signature_message m = {str_of(id), TIME + i / 100, {"", 0}};
        replay_accept(r, &m, m.timestamp);
    }
    for (int i = 80000; i < 100000; i++) {
        snprintf(id, sizeof id, "msg_%d", i);
        struct signature_message m = {str_of(id), TIME + i / 100, {"", 0}};
        if (replay_known(r, &m, TIME + 1000) != REPLAY_REPLAY)
            lost++;
    }
    if (lost > 20)
        fail_msg("%zu of 20000 were forgotten", lost);
    replay_free(r);
}

static void bad_secrets_are_refused_without_being_echoed(void **state)
{
    static const char *const bad[] = {
        "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec_",
        "whsec_MfKQ9r8GKYqrTwjU",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS!",
        SECRET " whsec_MfKQ",
        PUBLIC,
        "whsk_",
        "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMQ==",
        "whsk_6Xb/dCcHpPea21PS1N9VY/"
        "NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvw==",
        "whsk_6Xb/dCcHpPea21PS1N9VY/"
        "NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6KvgAA",
        "whsk_6Xb/dCcHpPea21PS1N9VY/"
        "NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kv",
        "whsec_"
        "MfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMf"
        "KQ",
    };
    static const struct signature_source variable = {NULL, "TEST_SECRETS", SIGNATURE_SIGN},
                                         file = {"/nonexistent/file", NULL, SIGNATURE_SIGN};
    struct signature_keys *keys;
    struct error err;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        setenv("TEST_SECRETS", bad[i], 1);
        if (signature_keys_load(&variable, &keys, &err) == 0)
            fail_msg("%s was accepted", bad[i]);
        assert_int_equal(err.code, ERR_CONFIG);
        assert_null(strstr(err.text, "MfKQ"));
        assert_null(strstr(err.text, "6Xb/"));
    }
    unsetenv("TEST_SECRETS");
    assert_int_equal(signature_keys_load(&variable, &keys, &err), -1);
    assert_int_equal(signature_keys_load(&file, &keys, &err), -1);
    assert_non_null(strstr(err.text, "/nonexistent/file"));
}

static void new_pairs_work_and_differ(void **state)
{
    struct buf a, b, public, header;
    (void)state;
    buf_init(&a, 256);
    buf_init(&b, 256);
    buf_init(&public, 256);
    buf_init(&header, 256);
    assert_int_equal(signature_new_pair(&b, &public, NULL), 0);
    buf_clear(&public);
    assert_int_equal(signature_new_pair(&a, &public, NULL), 0);
    assert_string_not_equal(buf_cstr(&a), buf_cstr(&b));
    struct signature_keys *mine = keys_of(a.p), *theirs = keys_of(buf_cstr(&public)),
                          *others = keys_of(b.p);
    signature_add(&header, mine, &example);
    assert_null(signature_check(theirs, &example, (struct str){header.p, header.n}, TIME));
    assert_non_null(signature_check(others, &example, (struct str){header.p, header.n}, TIME));
    signature_keys_free(mine);
    signature_keys_free(theirs);
    signature_keys_free(others);
    buf_release(&a);
    buf_release(&b);
    buf_release(&public);
    buf_release(&header);
}

static void new_secrets_work_and_differ(void **state)
{
    struct buf a, b;
    (void)state;
    buf_init(&a, 256);
    buf_init(&b, 256);
    assert_int_equal(signature_new_secret(&a, NULL), 0);
    assert_int_equal(signature_new_secret(&b, NULL), 0);
    assert_string_not_equal(buf_cstr(&a), buf_cstr(&b));
    signature_keys_free(keys_of(a.p));
    buf_release(&a);
    buf_release(&b);
}

static void base64_round_trips(void **state)
{
    static const char *const pairs[][2] = {{"", ""},
                                           {"f", "Zg=="},
                                           {"fo", "Zm8="},
                                           {"foo", "Zm9v"},
                                           {"foob", "Zm9vYg=="},
                                           {"fooba", "Zm9vYmE="},
                                           {"foobar", "Zm9vYmFy"}};
    static const char *const bad[] = {"Z",    "Zg=",  "Zh==",     "Zm9v!",
                                      "Zm9=", "====", "Zg==Zg==", "Z g="};
    unsigned char bytes[SIGNATURE_BYTES];
    struct buf b;
    (void)state;
    buf_init(&b, 256);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        buf_clear(&b);
        signature_encode(&b, pairs[i][0], strlen(pairs[i][0]));
        assert_string_equal(buf_cstr(&b), pairs[i][1]);
        assert_int_equal(signature_decode(str_of(pairs[i][1]), bytes), strlen(pairs[i][0]));
        assert_memory_equal(bytes, pairs[i][0], strlen(pairs[i][0]));
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (signature_decode(str_of(bad[i]), bytes) != 0)
            fail_msg("%s was accepted", bad[i]);
    buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signatures_match_the_specification),
        cmocka_unit_test(only_genuine_signatures_are_accepted),
        cmocka_unit_test(bad_secrets_are_refused_without_being_echoed),
        cmocka_unit_test(new_secrets_work_and_differ),
        cmocka_unit_test(new_pairs_work_and_differ),
        cmocka_unit_test(private_key_signatures_match_other_libraries),
        cmocka_unit_test(only_the_matching_public_key_is_accepted),
        cmocka_unit_test(signed_text_is_unambiguous),
        cmocka_unit_test(timestamp_has_only_digits),
        cmocka_unit_test(replays_and_repeats_are_distinguished),
        cmocka_unit_test(replay_memory_is_bounded_and_keeps_the_newest),
        cmocka_unit_test(base64_round_trips),
    };
    return cmocka_run_group_tests_name("signature", tests, NULL, NULL);
}
