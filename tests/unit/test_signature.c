#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base64.h"
#include "sink/signature.h"

/* The example of the Standard Webhooks specification. */
#define SECRET "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
#define SIGNED "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
#define TIME 1614265330
static const struct signature_message example = {
    {"msg_p5jXN8AQM9LWM0D4loKWxJek", 28}, TIME, {"{\"test\": 2432232314}", 20}};

static struct signature_keys *keys_of(const char *words)
{
    struct signature_keys *keys;
    struct error err;
    setenv("TEST_SECRETS", words, 1);
    if (signature_keys_load(NULL, "TEST_SECRETS", &keys, &err) != 0) fail_msg("%s", err.text);
    return keys;
}

static void signs_as_the_specification_does(void **state)
{
    struct buf b;
    (void)state;
    buf_init(&b, 1024);
    struct signature_keys *keys = keys_of(SECRET);
    for (int i = 0; i < 3; i++) { /* a key is used again and again */
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

static void believes_what_is_genuine_and_nothing_else(void **state)
{
    struct signature_keys *keys = keys_of(SECRET), *others = keys_of("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
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
    assert_non_null(signature_check(keys, &m, STR("v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="), TIME));
    assert_non_null(signature_check(keys, &m, STR("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OF="), TIME));
    m.body = STR("{\"test\": 2432232315}");
    assert_non_null(signature_check(keys, &m, STR(SIGNED), TIME));
    m = example, m.id = STR("msg_other");
    assert_non_null(signature_check(keys, &m, STR(SIGNED), TIME));
    m = example, m.timestamp++;
    assert_non_null(signature_check(keys, &m, STR(SIGNED), TIME));
    signature_keys_free(keys);
    signature_keys_free(others);
}

static void refuses_bad_secrets_without_repeating_them(void **state)
{
    static const char *const bad[] = {
        "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec_",
        "whsec_MfKQ9r8GKYqrTwjU",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS!",
        SECRET " whsec_MfKQ",
        "whsec_MfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQMfKQ",
    };
    struct signature_keys *keys;
    struct error err;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        setenv("TEST_SECRETS", bad[i], 1);
        if (signature_keys_load(NULL, "TEST_SECRETS", &keys, &err) == 0) fail_msg("%s was taken", bad[i]);
        assert_int_equal(err.code, ERR_CONFIG);
        assert_null(strstr(err.text, "MfKQ"));
    }
    unsetenv("TEST_SECRETS");
    assert_int_equal(signature_keys_load(NULL, "TEST_SECRETS", &keys, &err), -1);
    assert_int_equal(signature_keys_load("/nonexistent/file", NULL, &keys, &err), -1);
    assert_non_null(strstr(err.text, "/nonexistent/file"));
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

static void base64_goes_there_and_back(void **state)
{
    static const char *const pairs[][2] = {{"", ""},
                                           {"f", "Zg=="},
                                           {"fo", "Zm8="},
                                           {"foo", "Zm9v"},
                                           {"foob", "Zm9vYg=="},
                                           {"fooba", "Zm9vYmE="},
                                           {"foobar", "Zm9vYmFy"}};
    static const char *const bad[] = {"Z", "Zg=", "Zh==", "Zm9v!", "Zm9=", "====", "Zg==Zg==", "Z g="};
    struct buf b;
    (void)state;
    buf_init(&b, 256);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        buf_clear(&b);
        base64_add(&b, pairs[i][0], strlen(pairs[i][0]));
        assert_string_equal(buf_cstr(&b), pairs[i][1]);
        buf_clear(&b);
        assert_true(base64_decode(&b, str_of(pairs[i][1])));
        assert_string_equal(buf_cstr(&b), pairs[i][0]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (base64_decode(&b, str_of(bad[i]))) fail_msg("%s was taken", bad[i]);
    buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signs_as_the_specification_does),
        cmocka_unit_test(believes_what_is_genuine_and_nothing_else),
        cmocka_unit_test(refuses_bad_secrets_without_repeating_them),
        cmocka_unit_test(new_secrets_work_and_differ),
        cmocka_unit_test(base64_goes_there_and_back),
    };
    return cmocka_run_group_tests_name("signature", tests, NULL, NULL);
}
