/* exec_end.c: how commands end: side by side, at the time limit, and when they are cancelled. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "exec_peer.h"

/* Each of three commands waits for the other two, so a sequential run would never end. */
static void commands_run_in_parallel_up_to_the_limit(void **state)
{
    struct peer *p = *state;
    open_command(p,
                 ": > $dir/out/$OUTBOX_SEQ; n=$(( (OUTBOX_SEQ + 2) / 3 * 3 ));"
                 "until set -- $dir/out/*; [ $# -ge $n ]; do sleep 0.01; done",
                 0, 3);
    sink_rig_add_many(&p->rig, 9, 64);
    assert_int_equal(sink_rig_submit(&p->rig), 3);
    assert_int_equal(sink_rig_submit(&p->rig), 0);
    while (p->rig.answered < 9) {
        sink_rig_wait(&p->rig);
        p->rig.sk->ops->drive(p->rig.sk);
        sink_rig_submit(&p->rig);
        assert_true(p->rig.accepted - p->rig.answered <= 3);
    }
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
}

/* As the reaper of orphans we can see how a grandchild ended. */
static int end_of_orphan(long pid)
{
    int status = 0;
    assert_int_equal(waitpid((pid_t)pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : -1;
}

/* The shell may have added a line about its exit. */
static void assert_starts_with(const char *text, const char *start)
{
    if (strncmp(text, start, strlen(start)) != 0)
        fail_msg("'%s' does not start with '%s'", text, start);
}

static void time_limit_kills_the_whole_process_group(void **state)
{
    struct peer *p = *state;
    make_fifo(p);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    open_command(p, "sleep 1000 & echo $! > $dir/fifo; echo still waiting >&2; wait", 30000, 1);
    struct sink_item *it = sink_rig_add(&p->rig, "{}", 0);
    sink_rig_submit(&p->rig);
    long grandchild = read_fifo(p);
    p->rig.sk->ops->drive(p->rig.sk);
    assert_int_equal(p->rig.answered, 0);
    p->rig.ahead_ns = 30001 * MS_NS;
    sink_rig_run(&p->rig);
    assert_int_equal(it->status, SINK_RETRY);
    assert_starts_with(it->text, "timed out after 30s");
    assert_int_equal(end_of_orphan(grandchild), SIGTERM);
}

static void command_ignoring_sigterm_is_killed_after_two_seconds(void **state)
{
    struct peer *p = *state;
    struct sink *sk;
    make_fifo(p);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    open_command(p, "trap '' TERM; sleep 1000 & echo $! > $dir/fifo; wait", 30000, 1);
    sk = p->rig.sk;
    struct sink_item *it = sink_rig_add(&p->rig, "{}", 0);
    sink_rig_submit(&p->rig);
    long grandchild = read_fifo(p);
    sink_rig_freeze(&p->rig);
    p->rig.ahead_ns = 30001 * MS_NS;
    sk->ops->drive(sk);
    int64_t left = sk->ops->deadline(sk) - clock_mono(&p->rig.clock);
    assert_in_range(left, 1, 2000 * MS_NS);
    sk->ops->drive(sk);
    assert_int_equal(p->rig.answered, 0);
    p->rig.ahead_ns += 2001 * MS_NS;
    sink_rig_run(&p->rig);
    assert_int_equal(it->status, SINK_RETRY);
    assert_starts_with(it->text, "timed out after 30s");
    assert_int_equal(end_of_orphan(grandchild), SIGKILL);
}

/* The shell dies of SIGTERM at once, but its child needs a moment to tidy up. */
static void process_group_may_clean_up_after_the_shell_exits(void **state)
{
    struct peer *p = *state;
    make_fifo(p);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    open_command(p,
                 "sh -c 'trap \"sleep 0.2; : > $dir/tidy; exit 0\" TERM; echo $$ > $dir/fifo;"
                 "while :; do sleep 0.01; done' & wait",
                 30000, 1);
    struct sink_item *it = sink_rig_add(&p->rig, "{}", 0);
    sink_rig_submit(&p->rig);
    long grandchild = read_fifo(p);
    p->rig.ahead_ns = 30001 * MS_NS;
    sink_rig_run(&p->rig);
    assert_int_equal(it->status, SINK_RETRY);
    char path[2 * SINK_PATH_SIZE];
    snprintf(path, sizeof path, "%s/tidy", p->dir);
    assert_int_equal(access(path, F_OK), 0);
    end_of_orphan(grandchild);
}

static void exit_0_after_the_time_limit_still_counts_as_a_failure(void **state)
{
    struct peer *p = *state;
    make_fifo(p);
    open_command(p, "trap 'exit 0' TERM; echo 1 > $dir/fifo; while :; do sleep 0.01; done", 1500,
                 1);
    struct sink_item *it = sink_rig_add(&p->rig, "{}", 0);
    sink_rig_submit(&p->rig);
    read_fifo(p);
    p->rig.ahead_ns = 1501 * MS_NS;
    sink_rig_run(&p->rig);
    assert_int_equal(it->status, SINK_RETRY);
    assert_starts_with(it->text, "timed out after 1s500ms");
}

static void grandchild_holding_stderr_does_not_delay_the_result(void **state)
{
    struct peer *p = *state;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    struct sink_item *it = run_one(p, "sleep 1000 & echo $! > $dir/pid; echo gone >&2; exit 3");
    assert_int_equal(it->status, SINK_RETRY);
    assert_string_equal(it->text, "exit status 3: gone");
    char *pid = read_in(p, "pid");
    long grandchild = atol(pid);
    free(pid);
    assert_int_equal(kill((pid_t)grandchild, 0), 0); /* left alone */
    kill((pid_t)grandchild, SIGKILL);
    end_of_orphan(grandchild);
}

static void cancel_kills_running_commands_and_ignores_results(void **state)
{
    struct peer *p = *state;
    make_fifo(p);
    open_command(p,
                 "test $OUTBOX_SEQ = 1 && trap 'exit 0' TERM; test $OUTBOX_SEQ = 2 && trap '' TERM;"
                 "echo $$ > $dir/fifo; while :; do sleep 0.01; done",
                 0, 3);
    long pids[3];
    sink_rig_add_many(&p->rig, 3, 64);
    for (size_t i = 0; i < 3; i++) {
        p->rig.n = i + 1;
        assert_int_equal(sink_rig_submit(&p->rig), 1);
        pids[i] = read_fifo(p);
    }
    p->rig.sk->ops->cancel(p->rig.sk);
    sink_rig_check(&p->rig);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(p->rig.items[i]->status, SINK_CANCELLED);
    /* reaped */
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(waitpid((pid_t)pids[i], NULL, WNOHANG), -1);
}

static const struct CMUnitTest tests[] = {
    ON_A_COMMAND(commands_run_in_parallel_up_to_the_limit),
    ON_A_COMMAND(time_limit_kills_the_whole_process_group),
    ON_A_COMMAND(command_ignoring_sigterm_is_killed_after_two_seconds),
    ON_A_COMMAND(process_group_may_clean_up_after_the_shell_exits),
    ON_A_COMMAND(exit_0_after_the_time_limit_still_counts_as_a_failure),
    ON_A_COMMAND(grandchild_holding_stderr_does_not_delay_the_result),
    ON_A_COMMAND(cancel_kills_running_commands_and_ignores_results),
};

const struct suite_part exec_end_tests = SUITE_PART(tests);
