#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "sink/exec_env.h"

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

static const struct event plain = {
    .seq = 42,
    .id = STR("0197c9a2-5b1e-7c3a-9f00-1234567890ab"),
    .type = STR("order.created"),
    .aggregate_type = STR("order"),
    .aggregate_id = STR("17"),
    .tenant = STR("acme"),
    .payload = STR("{}"),
    .version = 3,
    .has_version = true,
    .created_at = INT64_C(1767323045678),
};

static struct exec_env *env;
static char **former; /* the host's environment */

static int setup(void **state)
{
    (void)state;
    former = environ;
    environ = NULL;
    setenv("PATH", "/bin", 1);
    assert_int_equal(exec_env_new(NULL, &env, NULL), 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    exec_env_free(env);
    env = NULL;
    clearenv();
    environ = former;
    return 0;
}

static size_t length(char **list)
{
    size_t n = 0;
    while (list[n])
        n++;
    return n;
}

static const char *value_of(const char *name)
{
    size_t n = strlen(name);
    for (char **p = exec_env_list(env); *p; p++)
        if (strncmp(*p, name, n) == 0 && (*p)[n] == '=')
            return *p + n + 1;
    return NULL;
}

static void environment_has_every_event_field(void **state)
{
    (void)state;
    assert_int_equal(exec_env_event(env, &plain, 2, "mail", NULL), 0);
    assert_int_equal(length(exec_env_list(env)), 11);
    assert_string_equal(value_of("PATH"), "/bin");
    assert_string_equal(value_of("OUTBOX_AGGREGATE_ID"), "17");
    assert_string_equal(value_of("OUTBOX_CREATED_AT"), "2026-01-02T03:04:05.678Z");
    assert_string_equal(value_of("OUTBOX_ATTEMPT"), "2");

    struct event bare = {.id = plain.id, .type = plain.type};
    assert_int_equal(exec_env_event(env, &bare, 1, "mail", NULL), 0);
    assert_int_equal(length(exec_env_list(env)), 7);
    assert_null(value_of("OUTBOX_TENANT"));
    assert_null(value_of("OUTBOX_VERSION"));
}

/* A NUL ends a variable and starts another. Hundreds of them would start hundreds. */
static void nul_in_any_field_is_refused(void **state)
{
    (void)state;
    static const size_t fields[] = {offsetof(struct event, id), offsetof(struct event, type),
                                    offsetof(struct event, aggregate_type),
                                    offsetof(struct event, aggregate_id),
                                    offsetof(struct event, tenant)};
    static const char nuls[4096];
    const struct str values[] = {
        STR("42\0LD_PRELOAD=/x.so"), STR("\0"), STR("a\0"), STR("\0a"), {nuls, sizeof nuls}};
    for (size_t f = 0; f < COUNT(fields); f++) {
        for (size_t v = 0; v < COUNT(values); v++) {
            struct event ev = plain;
            struct error err = {0};
            memcpy((char *)&ev + fields[f], &values[v], sizeof values[v]);
            assert_int_equal(exec_env_event(env, &ev, 1, "mail", &err), -1);
            assert_int_equal(err.retry_class, CLASS_REJECT);
            assert_non_null(strstr(err.text, "NUL"));
            assert_null(value_of("LD_PRELOAD"));
            assert_true(length(exec_env_list(env)) <= 11);
        }
    }
}

static void value_cannot_become_a_variable(void **state)
{
    (void)state;
    struct event ev = plain;
    ev.type = STR("=LD_PRELOAD=/x.so");
    ev.tenant = STR("a\nPATH=/evil");
    assert_int_equal(exec_env_event(env, &ev, 1, "mail", NULL), 0);
    assert_int_equal(length(exec_env_list(env)), 11);
    assert_string_equal(value_of("OUTBOX_TYPE"), "=LD_PRELOAD=/x.so");
    assert_string_equal(value_of("PATH"), "/bin");
    assert_null(value_of("LD_PRELOAD"));
}

static void value_too_large_for_an_environment_is_refused(void **state)
{
    (void)state;
    size_t n = exec_env_string_max() - sizeof "OUTBOX_TENANT=";
    char *large = malloc(n + 1);
    struct event ev = plain;
    struct error err = {0};
    memset(large, 'x', n + 1);
    ev.tenant = (struct str){large, n + 1};
    assert_int_equal(exec_env_event(env, &ev, 1, "mail", &err), -1);
    assert_int_equal(err.retry_class, CLASS_REJECT);
    ev.tenant = STR("");
    assert_int_equal(exec_env_event(env, &ev, 1, "mail", &err), 0);
    ev.tenant = (struct str){large, n};
    assert_int_equal(exec_env_event(env, &ev, 1, "mail", &err), 0);
    assert_int_equal(strlen(value_of("OUTBOX_TENANT")), n);
    free(large);
}

static void list_is_bounded_by_its_capacity(void **state)
{
    (void)state;
    char name[16];
    struct error err = {0};
    for (int i = 0; i < EXEC_ENV_FACTS_MAX; i++) {
        snprintf(name, sizeof name, "FACT_%d", i);
        assert_int_equal(exec_env_text(env, name, STR("x"), &err), 0);
    }
    assert_int_equal(exec_env_text(env, "ONE_MORE", STR("x"), &err), -1);
    assert_int_equal(length(exec_env_list(env)), EXEC_ENV_FACTS_MAX + 1);
    exec_env_clear(env);
    assert_int_equal(length(exec_env_list(env)), 1);
}

static void only_listed_variables_are_passed_on(void **state)
{
    static const char *const secrets[] = {
        "OUTBOX_STORE",
        "OUTBOX_REDIS_PASSWORD",
        "OUTBOX_CONSUMERS",
        "OUTBOX_CONSUMER_A_SINK",
        "PGPASSWORD",
        "PGHOST",
        "HOOK_SECRET",
        "AWS_SECRET_ACCESS_KEY",
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "http_proxy",
        "CREDENTIALS_DIRECTORY",
        "PATHS",
        "LC",
        "BASH_ENV",
        "ENV",
    };
    static const char *const kept[] = {"PATH", "HOME",   "USER",   "LOGNAME",  "SHELL",  "LANG",
                                       "TZ",   "LC_ALL", "TMPDIR", "LANGUAGE", "LC_TIME"};
    (void)state;
    for (size_t i = 0; i < COUNT(secrets); i++)
        setenv(secrets[i], "geheim", 1);
    for (size_t i = 0; i < COUNT(kept); i++)
        setenv(kept[i], "kept", 1);
    exec_env_free(env);
    assert_int_equal(exec_env_new("", &env, NULL), 0);
    assert_int_equal(length(exec_env_list(env)), COUNT(kept));
    for (size_t i = 0; i < COUNT(kept); i++)
        assert_string_equal(value_of(kept[i]), "kept");

    exec_env_free(env);
    assert_int_equal(exec_env_new("PGHOST , OUTBOX_STORE,HOOK_SECRET  NOT_SET", &env, NULL), 0);
    assert_int_equal(length(exec_env_list(env)), COUNT(kept) + 3);
    assert_string_equal(value_of("PGHOST"), "geheim");
    assert_string_equal(value_of("OUTBOX_STORE"), "geheim");
}

static void variable_names_are_validated(void **state)
{
    static const char *const bad[] = {
        "A=b", "1A", "A,B-C", "whsec_abc+/=", "*", "A;B", "OUTBOX_ID", "A, OUTBOX_TENANT"};
    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct error err = {0};
        assert_int_equal(exec_env_check(bad[i], &err), -1);
        assert_int_equal(err.code, ERR_CONFIG);
        assert_null(strstr(err.text, "whsec"));
    }
    assert_int_equal(exec_env_check("A_1, _b  c", NULL), 0);
}

#define WITH_ENV(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_ENV(environment_has_every_event_field),
        WITH_ENV(nul_in_any_field_is_refused),
        WITH_ENV(value_cannot_become_a_variable),
        WITH_ENV(value_too_large_for_an_environment_is_refused),
        WITH_ENV(list_is_bounded_by_its_capacity),
        WITH_ENV(only_listed_variables_are_passed_on),
        WITH_ENV(variable_names_are_validated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
