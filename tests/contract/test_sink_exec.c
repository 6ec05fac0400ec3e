/* The sink contract on commands, and promises that only exec: makes. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "exec_peer.h"

static void exit_status_decides_the_outcome(void **state)
{
    static const struct {
        const char *command, *text;
        enum sink_status status;
        int native;
    } cases[] = {
        {"exit 0", "", SINK_DELIVERED, 0},
        {"echo fine >&2; exit 0", "", SINK_DELIVERED, 0},
        {"exit 75", "exit status 75", SINK_RETRY, 75},
        {"exit 65", "exit status 65", SINK_REJECT, 65},
        {"exit 3", "exit status 3", SINK_RETRY, 3},
        {"exit 1", "exit status 1", SINK_RETRY, 1},
        {"exit 126", "exit status 126", SINK_RETRY, 126},
        {"exit 127", "exit status 127", SINK_RETRY, 127},
        {"no-such-command", "exit status 127: sh: 1: no-such-command: not found", SINK_DOWN, 127},
        {"\"/opt/no such/handler\"", "exit status 127: sh: 1: /opt/no such/handler: not found",
         SINK_DOWN, 127},
        {"/tmp", "exit status 126: sh: 1: /tmp: Permission denied", SINK_DOWN, 126},
        {"exit 128", "exit status 128", SINK_RETRY, 128},
        {"kill -9 $$", "killed by signal 9", SINK_RETRY, 9},
        {"kill -15 $$", "killed by signal 15", SINK_RETRY, 15},
        {"echo one >&2; echo two >&2; exit 3", "exit status 3: two", SINK_RETRY, 3},
        {"printf 'tab\\there\\n\\n \\n' >&2; exit 3", "exit status 3: tab here", SINK_RETRY, 3},
        {"printf 'bad \\377 byte' >&2; exit 65", "exit status 65: bad ? byte", SINK_REJECT, 65},
        {"printf 'a\\0b \\033[2J \\302\\2332J' >&2; exit 65", "exit status 65: a b  [2J ?2J",
         SINK_REJECT, 65},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        void *own = NULL;
        exec_peer_setup(&own);
        struct sink_item *it = run_one(own, cases[i].command);
        assert_int_equal(it->status, cases[i].status);
        assert_int_equal(it->native, cases[i].native);
        assert_string_equal(it->text, cases[i].text);
        exec_peer_teardown(&own);
    }
}

static void existing_command_may_exit_with_127(void **state)
{
    struct sink_item *it = run_one(*state, "sh -c 'exit 127'");
    /* This is one event's fault, and no reason to think that the sink is down. */
    assert_int_equal(it->status, SINK_RETRY);
}

static void sink_refuses_to_open_if_exit_statuses_are_lost(void **state)
{
    (void)state;
    signal(SIGCHLD, SIG_IGN);
    struct sink_config cfg = {.url = "exec:true", .clock = &clock_system};
    const struct sink_ops *ops;
    struct sink *sk;
    struct error err;
    assert_int_equal(sink_find(cfg.url, &ops, &err), 0);
    int r = ops->open(&cfg, &sk, &err);
    signal(SIGCHLD, SIG_DFL);
    assert_int_equal(r, -1);
    assert_non_null(strstr(err.text, "SIGCHLD"));
}

/* The shell may miss a command that only some events need. That is their fault, not the sink's. */
static void missing_command_needed_by_some_events_causes_a_retry(void **state)
{
    struct sink_item *it = run_one(*state, "case $OUTBOX_SEQ in 1) no-such-command;; esac");
    assert_int_equal(it->status, SINK_RETRY);
    sink_assert_says(it, "no-such-command: not found");
}

static void command_not_found_is_down(void **state)
{
    struct sink_item *it = run_one(*state, "no-such-command-here");
    assert_int_equal(it->status, SINK_DOWN);
    sink_assert_says(it, "no-such-command-here");
}

static void only_the_end_of_a_long_stderr_is_kept(void **state)
{
    struct sink_item *it = run_one(
        *state, "head -c 300000 /dev/zero | tr '\\0' x >&2; printf end >&2; exit 9");
    assert_int_equal(it->status, SINK_RETRY);
    assert_int_equal(strlen(it->text), strlen("exit status 9: ") + 512);
    assert_string_equal(it->text + strlen(it->text) - 4, "xend");
}

static void stdin_holds_the_line_and_may_stay_unread(void **state)
{
    struct peer *p = *state;
    open_command(p, "test $OUTBOX_SEQ = 1 || cat > $dir/line", 0, 1);
    sink_rig_add_many(&p->rig, 1, 500000);
    sink_rig_add(&p->rig, "{\"a\":\n1}", 0)->d.attempt = 4;
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
    char *line = read_in(p, "line");
    assert_string_equal(
        line,
        "{\"id\":\"00000000-0000-7000-8000-000000000002\",\"seq\":2,\"type\":\"order.created\","
        "\"aggregate_type\":\"order\",\"aggregate_id\":\"o'Brien \\\"\xe2\x98\x83\\\" 2\","
        "\"version\":null,\"payload\":{\"a\": 1},\"headers\":{},"
        "\"created_at\":\"2026-01-02T03:04:05.678Z\",\"consumer\":\"search\",\"attempt\":4}\n");
    free(line);
}

static void only_the_line_over_the_file_size_limit_is_rejected(void **state)
{
    struct peer *p = *state;
    open_command(p, "exit 0", 0, 1);
    sink_rig_add_many(&p->rig, 1, 64);
    sink_rig_add_many(&p->rig, 1, 300000);
    sink_rig_add_many(&p->rig, 1, 64);
    sink_limit_files(100000);
    sink_rig_run(&p->rig);
    sink_limit_files(0);
    assert_int_equal(p->rig.items[0]->status, SINK_DELIVERED);
    assert_int_equal(p->rig.items[1]->status, SINK_REJECT);
    sink_assert_says(p->rig.items[1], "ulimit -f");
    assert_int_equal(p->rig.items[2]->status, SINK_DELIVERED);
}

static void running_out_of_descriptors_is_down_and_leaks_nothing(void **state)
{
    struct peer *p = *state;
    struct rlimit old, tight;
    open_command(p, "exit 0", 0, 1);
    int next = dup(0);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    /* One more descriptor each time, so that every call that creates one fails once. */
    for (int more = 0; more < 4; more++) {
        tight = (struct rlimit){(rlim_t)(next + more), old.rlim_max};
        setrlimit(RLIMIT_NOFILE, &tight);
        struct sink_item *it = sink_rig_deliver(&p->rig, "{}");
        setrlimit(RLIMIT_NOFILE, &old);
        assert_int_equal(it->status, SINK_DOWN);
        assert_int_equal(it->native, EMFILE);
    }
    assert_int_equal(dup(0), next);
    close(next);
    struct sink_item *it = sink_rig_deliver(&p->rig, "{}");
    assert_int_equal(it->status, SINK_DELIVERED);
}

static void empty_command_is_refused(void **state)
{
    static const char *const urls[] = {"exec:", "exec: \t"};
    (void)state;
    for (size_t i = 0; i < COUNT(urls); i++) {
        sink_assert_refused((struct sink_config){.url = urls[i]}, NULL, NULL);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(exit_status_decides_the_outcome),
        ON_A_COMMAND(command_not_found_is_down),
        ON_A_COMMAND(missing_command_needed_by_some_events_causes_a_retry),
        ON_A_COMMAND(only_the_line_over_the_file_size_limit_is_rejected),
        ON_A_COMMAND(existing_command_may_exit_with_127),
        cmocka_unit_test(sink_refuses_to_open_if_exit_statuses_are_lost),
        ON_A_COMMAND(only_the_end_of_a_long_stderr_is_kept),
        ON_A_COMMAND(stdin_holds_the_line_and_may_stay_unread),
        ON_A_COMMAND(running_out_of_descriptors_is_down_and_leaks_nothing),
        cmocka_unit_test(empty_command_is_refused),
    };
    const struct suite_part own[] = {SUITE_PART(tests), exec_environment_tests, exec_end_tests};
    return sink_suite_run(&exec_case, own, COUNT(own));
}
