/* exec_environment.c: what a command inherits: variables, descriptors and signals. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "exec_peer.h"

static void assert_env(const char *env, const char *entry)
{
    char line[256];
    snprintf(line, sizeof line, "\n%s\n", entry);
    if (!strstr(env, line))
        fail_msg("%s is missing from%s", entry, env);
}

/* A relay's environment holds passwords, and other private settings. */
static void command_gets_only_the_listed_variables(void **state)
{
    static const char *const names[] = {
        "OUTBOX_STORE",     "OUTBOX_REDIS_PASSWORD",
        "OUTBOX_CONSUMERS", "OUTBOX_CONSUMER_A_SINK",
        "OUTBOX_ID",        "PGPASSWORD",
        "PGUSER",           "HOOK_SECRETS",
        "AWS_SECRET_KEY",   "LD_LIBRARY_PATH",
    };
    struct peer *p = *state;
    for (size_t i = 0; i < COUNT(names); i++)
        setenv(names[i], "geheim", 1);
    open_command(p, "{ echo; tr '\\0' '\\n' </proc/self/environ; } > $dir/env", 0, 1);
    for (size_t i = 0; i < COUNT(names); i++)
        unsetenv(names[i]);
    sink_rig_deliver(&p->rig, "{}");
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
    char *env = read_in(p, "env");
    if (strstr(env, "geheim"))
        fail_msg("a secret is in%s", env);
    assert_non_null(strstr(env, "\nOUTBOX_SEQ=1\n"));
    free(env);
}

static void command_gets_the_variables_listed_in_env(void **state)
{
    struct peer *p = *state;
    setenv("SHOP_URL", "https://shop.example", 1);
    setenv("OUTBOX_STORE", "sqlite:shop.db", 1);
    p->env = "dir,SHOP_URL, OUTBOX_STORE";
    open_command(p, "{ echo; env; } > $dir/env", 0, 1);
    unsetenv("SHOP_URL");
    unsetenv("OUTBOX_STORE");
    sink_rig_deliver(&p->rig, "{}");
    char *env = read_in(p, "env");
    assert_env(env, "SHOP_URL=https://shop.example");
    assert_env(env, "OUTBOX_STORE=sqlite:shop.db");
    free(env);
}

static void event_fields_are_in_the_environment(void **state)
{
    struct peer *p = *state;
    open_command(p, "{ echo; env; } > $dir/env", 0, 1);
    struct sink_item *it = sink_rig_add(&p->rig, "{}", 0);
    it->d.attempt = 3;
    it->ev.has_version = true;
    it->ev.version = -7;
    it->ev.tenant = STR("acme = co");
    sink_rig_run(&p->rig);
    char *env = read_in(p, "env");
    assert_env(env, "OUTBOX_ID=00000000-0000-7000-8000-000000000001");
    assert_env(env, "OUTBOX_SEQ=1");
    assert_env(env, "OUTBOX_TYPE=order.created");
    assert_env(env, "OUTBOX_AGGREGATE_TYPE=order");
    assert_env(env, "OUTBOX_AGGREGATE_ID=o'Brien \"\xe2\x98\x83\" 1");
    assert_env(env, "OUTBOX_VERSION=-7");
    assert_env(env, "OUTBOX_TENANT=acme = co");
    assert_env(env, "OUTBOX_CREATED_AT=2026-01-02T03:04:05.678Z");
    assert_env(env, "OUTBOX_CONSUMER=search");
    assert_env(env, "OUTBOX_ATTEMPT=3");
    free(env);
}

static void field_cannot_add_a_variable(void **state)
{
    struct peer *p = *state;
    open_command(p, "{ echo; tr '\\0' '\\n' </proc/self/environ; } >$dir/env", 0, 1);
    struct sink_item *it = sink_rig_add(&p->rig, "{}", 0);
    it->ev.type = STR("a=b=c");
    it->ev.tenant = STR("=LD_PRELOAD=x");
    it->ev.aggregate_id = STR("k\nPATH=/evil");
    sink_rig_run(&p->rig);
    assert_int_equal(it->status, SINK_DELIVERED);
    it = sink_rig_add(&p->rig, "{}", 0);
    it->ev.aggregate_id = STR("k\0PATH=/evil");
    sink_rig_run(&p->rig);
    assert_int_equal(it->status, SINK_REJECT);
    char *env = read_in(p, "env");
    assert_env(env, "OUTBOX_TYPE=a=b=c");
    assert_env(env, "OUTBOX_TENANT==LD_PRELOAD=x");
    free(env);
}

/* The obstacle is in our environment, not in the event. */
static void full_environment_takes_the_sink_down(void **state)
{
    struct peer *p = *state;
    struct rlimit old;
    char name[16], names[30 * sizeof name] = "", *value = malloc(100000);
    memset(value, 'x', 99999);
    value[99999] = '\0';
    for (int i = 0; i < 30; i++) {
        snprintf(name, sizeof name, "FULL%d", i);
        setenv(name, value, 1);
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s,", name);
    }
    p->env = names;
    open_command(p, "exit 0", 0, 1);
    assert_int_equal(getrlimit(RLIMIT_STACK, &old), 0);
    /* A quarter of it, 2 MiB, is for the environment. */
    setrlimit(RLIMIT_STACK, &(struct rlimit){8 << 20, old.rlim_max});
    sink_rig_add_many(&p->rig, 2, 64);
    sink_rig_run(&p->rig);
    setrlimit(RLIMIT_STACK, &old);
    for (int i = 0; i < 30; i++) {
        snprintf(name, sizeof name, "FULL%d", i);
        unsetenv(name);
    }
    free(value);
    sink_rig_assert_all(&p->rig, SINK_DOWN);
    assert_int_equal(p->rig.items[0]->native, E2BIG);
    sink_assert_says(p->rig.items[0], "environment");
}

static void absent_fields_are_unset_even_if_inherited(void **state)
{
    static const char *const names[] = {"OUTBOX_AGGREGATE_TYPE", "OUTBOX_AGGREGATE_ID",
                                        "OUTBOX_VERSION", "OUTBOX_TENANT"};
    struct peer *p = *state;
    for (size_t i = 0; i < COUNT(names); i++)
        setenv(names[i], "inherited", 1);
    open_command(p, "env > $dir/env", 0, 1);
    struct sink_item *it = sink_rig_add(&p->rig, "{}", 0);
    it->ev.aggregate_type = it->ev.aggregate_id = (struct str){0};
    sink_rig_run(&p->rig);
    char *env = read_in(p, "env");
    assert_non_null(strstr(env, "OUTBOX_ID="));
    for (size_t i = 0; i < COUNT(names); i++) {
        assert_null(strstr(env, names[i]));
        unsetenv(names[i]);
    }
    free(env);
}

static void command_does_not_inherit_descriptors(void **state)
{
    struct peer *p = *state;
    int leaky = open("/dev/null", O_RDONLY); /* without O_CLOEXEC, as in many a host program */
    assert_true(leaky > 2);
    open_command(p, "exec ls /proc/self/fd > $dir/fds", 0, 1);
    sink_rig_deliver(&p->rig, "{}");
    close(leaky);
    char *fds = read_in(p, "fds");
    assert_string_equal(fds, "0\n1\n2\n3\n"); /* 3 is the folder that ls is reading */
    free(fds);
}

static void command_gets_default_signals_and_an_empty_mask(void **state)
{
    struct peer *p = *state;
    sigset_t all, old;
    sigfillset(&all);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGUSR1, SIG_IGN);
    sigprocmask(SIG_SETMASK, &all, &old);
    struct sink_item *it = run_one(p,
                                   "exec grep -E '^Sig(Ign|Blk)' /proc/self/status > $dir/signals");
    sigprocmask(SIG_SETMASK, &old, NULL);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGUSR1, SIG_DFL);
    assert_int_equal(it->status, SINK_DELIVERED);
    char *text = read_in(p, "signals");
    unsigned long long blocked, ignored;
    assert_int_equal(sscanf(text, "SigBlk: %llx SigIgn: %llx", &blocked, &ignored), 2);
    assert_int_equal(blocked, 0);
    assert_int_equal(ignored & ~(3ull << 31), 0); /* 32 and 33 are the C library's own */
    free(text);
}

static const struct CMUnitTest tests[] = {
    ON_A_COMMAND(field_cannot_add_a_variable),
    ON_A_COMMAND(full_environment_takes_the_sink_down),
    ON_A_COMMAND(event_fields_are_in_the_environment),
    ON_A_COMMAND(command_gets_only_the_listed_variables),
    ON_A_COMMAND(command_gets_the_variables_listed_in_env),
    ON_A_COMMAND(absent_fields_are_unset_even_if_inherited),
    ON_A_COMMAND(command_does_not_inherit_descriptors),
    ON_A_COMMAND(command_gets_default_signals_and_an_empty_mask),
};

const struct suite_part exec_environment_tests = SUITE_PART(tests);
