#include "sink.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct peer {
    char dir[SINK_PATH_SIZE], out[SINK_PATH_SIZE + 16], script[SINK_PATH_SIZE + 16],
        away[SINK_PATH_SIZE + 16];
    char url[2 * SINK_PATH_SIZE];
    const char *env; /* of ours, for commands */
    struct sink_rig rig;
};

static void *peer_setup(void)
{
    struct peer *p = calloc(1, sizeof *p);
    char text[2 * SINK_PATH_SIZE];
    sink_tmp_new(p->dir);
    snprintf(p->out, sizeof p->out, "%s/out", p->dir);
    snprintf(p->script, sizeof p->script, "%s/deliver", p->dir);
    snprintf(p->away, sizeof p->away, "%s/away", p->dir);
    snprintf(p->url, sizeof p->url, "exec:%s", p->script);
    snprintf(text, sizeof text, "#!/bin/sh\ncat > '%s'/$OUTBOX_ID\n", p->out);
    sink_tmp_write(p->script, text);
    assert_int_equal(chmod(p->script, 0755), 0);
    assert_int_equal(mkdir(p->out, 0755), 0);
    return p;
}

static void peer_teardown(void *peer)
{
    sink_tmp_remove(((struct peer *)peer)->dir);
    free(peer);
}

static const char *peer_url(void *peer)
{
    return ((struct peer *)peer)->url;
}

static void peer_arrived(void *peer, struct sink_arrivals *got)
{
    struct peer *p = peer;
    DIR *dir = opendir(p->out);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char path[2 * SINK_PATH_SIZE];
        size_t n;
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", p->out, e->d_name);
        char *text = sink_tmp_read(path, &n);
        sink_arrivals_lines(got, text, n);
        free(text);
    }
    closedir(dir);
}

static void peer_break(void *peer)
{
    struct peer *p = peer;
    assert_int_equal(rename(p->script, p->away), 0);
}

static void peer_heal(void *peer)
{
    struct peer *p = peer;
    assert_int_equal(rename(p->away, p->script), 0);
}

static char large[200 * 1024];

static const char *peer_spoil(void *peer, struct sink_item *it, size_t way)
{
    (void)peer;
    memset(large, 'k', sizeof large);
    switch (way) {
    case 0: it->ev.aggregate_id = (struct str){large, sizeof large}; return "OUTBOX_AGGREGATE_ID";
    case 1: it->ev.tenant = (struct str){large, 128 * 1024}; return "OUTBOX_TENANT";
    case 2: it->ev.type = STR("a\0LD_PRELOAD=/tmp/evil.so"); return "OUTBOX_TYPE has a NUL";
    case 3: it->ev.aggregate_id = STR("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"); return "NUL";
    default: return NULL;
    }
}

/* What only exec: promises. Commands run in the test's own folder, $dir to them. */

static int setup(void **state)
{
    struct peer *p = peer_setup();
    setenv("dir", p->dir, 1);
    p->env = "dir";
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

static void open_command(struct peer *p, const char *command, int64_t timeout_ms, int concurrency)
{
    snprintf(p->url, sizeof p->url, "exec:%s", command);
    sink_rig_open(&p->rig, (struct sink_config){.url = p->url,
                                                .timeout_ms = timeout_ms,
                                                .concurrency = concurrency,
                                                .exec_env = p->env});
}

static struct sink_item *run_one(struct peer *p, const char *command)
{
    open_command(p, command, 0, 1);
    struct sink_item *it = sink_rig_add(&p->rig, "{}", 0);
    sink_rig_run(&p->rig);
    return it;
}

static char *read_in(struct peer *p, const char *name)
{
    char path[2 * SINK_PATH_SIZE];
    snprintf(path, sizeof path, "%s/%s", p->dir, name);
    return sink_tmp_read(path, NULL);
}

/* A FIFO tells us when the command has come to a certain point: `echo > $dir/fifo`. */
static void make_fifo(struct peer *p)
{
    char path[2 * SINK_PATH_SIZE];
    snprintf(path, sizeof path, "%s/fifo", p->dir);
    assert_int_equal(mkfifo(path, 0644), 0);
}

static long read_fifo(struct peer *p)
{
    char path[2 * SINK_PATH_SIZE], text[64];
    snprintf(path, sizeof path, "%s/fifo", p->dir);
    /* Open for both, there is no end of file when the writer before this one closes late. */
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    ssize_t n = read(fd, text, sizeof text - 1);
    assert_true(n > 0);
    text[n] = '\0';
    close(fd);
    return atol(text);
}

static void exit_status_decides(void **state)
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
        setup(&own);
        struct sink_item *it = run_one(own, cases[i].command);
        assert_int_equal(it->status, cases[i].status);
        assert_int_equal(it->native, cases[i].native);
        assert_string_equal(it->text, cases[i].text);
        teardown(&own);
    }
}

static void a_command_that_is_there_may_leave_with_127_of_its_own(void **state)
{
    struct sink_item *it = run_one(*state, "sh -c 'exit 127'");
    /* one event's fault: no reason to take the sink for down */
    assert_int_equal(it->status, SINK_RETRY);
}

static void is_refused_where_exit_statuses_are_lost(void **state)
{
    struct sink *sk;
    struct error err;
    (void)state;
    signal(SIGCHLD, SIG_IGN);
    const struct sink_ops *kind;
    assert_int_equal(sink_find("exec:true", &kind, &err), 0);
    int r = kind->open(&(struct sink_config){.url = "exec:true", .clock = &clock_system}, &sk,
                       &err);
    signal(SIGCHLD, SIG_DFL);
    assert_int_equal(r, -1);
    assert_non_null(strstr(err.text, "SIGCHLD"));
}

/* The shell may miss a command that only some events need: that is about those. */
static void command_that_only_some_events_need_is_a_retry(void **state)
{
    struct sink_item *it = run_one(*state, "case $OUTBOX_SEQ in 1) no-such-command;; esac");
    assert_int_equal(it->status, SINK_RETRY);
    assert_non_null(strstr(it->text, "no-such-command: not found"));
}

static void command_not_found_is_down(void **state)
{
    struct sink_item *it = run_one(*state, "no-such-command-here");
    assert_int_equal(it->status, SINK_DOWN);
    assert_non_null(strstr(it->text, "no-such-command-here"));
}

static void only_the_end_of_a_long_stderr_is_kept(void **state)
{
    struct sink_item *it = run_one(
        *state, "head -c 300000 /dev/zero | tr '\\0' x >&2; printf end >&2; exit 9");
    assert_int_equal(it->status, SINK_RETRY);
    assert_int_equal(strlen(it->text), strlen("exit status 9: ") + 512);
    assert_string_equal(it->text + strlen(it->text) - 4, "xend");
}

static void stdin_is_the_line_and_need_not_be_read(void **state)
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

static void assert_env(const char *env, const char *entry)
{
    char line[256];
    snprintf(line, sizeof line, "\n%s\n", entry);
    if (!strstr(env, line))
        fail_msg("%s is missing in%s", entry, env);
}

/* A relay's environment holds passwords, and whatever else somebody put there for it alone. */
static void command_gets_no_variable_that_nobody_named(void **state)
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
    sink_rig_add(&p->rig, "{}", 0);
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
    char *env = read_in(p, "env");
    if (strstr(env, "geheim"))
        fail_msg("a secret is in%s", env);
    assert_non_null(strstr(env, "\nOUTBOX_SEQ=1\n"));
    free(env);
}

static void command_gets_variables_that_were_named(void **state)
{
    struct peer *p = *state;
    setenv("SHOP_URL", "https://shop.example", 1);
    setenv("OUTBOX_STORE", "sqlite:shop.db", 1);
    p->env = "dir,SHOP_URL, OUTBOX_STORE";
    open_command(p, "{ echo; env; } > $dir/env", 0, 1);
    unsetenv("SHOP_URL");
    unsetenv("OUTBOX_STORE");
    sink_rig_add(&p->rig, "{}", 0);
    sink_rig_run(&p->rig);
    char *env = read_in(p, "env");
    assert_env(env, "SHOP_URL=https://shop.example");
    assert_env(env, "OUTBOX_STORE=sqlite:shop.db");
    free(env);
}

static void facts_are_in_the_environment(void **state)
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

/* What stands in the way is ours, not the event's. */
static void environment_that_is_full_already_is_down(void **state)
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
    setrlimit(RLIMIT_STACK, &(struct rlimit){8 << 20, old.rlim_max}); /* a quarter of it: 2 MiB */
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
    assert_non_null(strstr(p->rig.items[0]->text, "environment"));
}

static void line_over_the_size_limit_of_files_is_rejected_alone(void **state)
{
    struct peer *p = *state;
    struct rlimit old;
    open_command(p, "exit 0", 0, 1);
    sink_rig_add_many(&p->rig, 1, 64);
    sink_rig_add_many(&p->rig, 1, 300000);
    sink_rig_add_many(&p->rig, 1, 64);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){100000, old.rlim_max});
    sink_rig_run(&p->rig);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(p->rig.items[0]->status, SINK_DELIVERED);
    assert_int_equal(p->rig.items[1]->status, SINK_REJECT);
    assert_non_null(strstr(p->rig.items[1]->text, "ulimit -f"));
    assert_int_equal(p->rig.items[2]->status, SINK_DELIVERED);
}

static void absent_facts_are_unset_even_if_inherited(void **state)
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

static void command_gets_no_descriptor_of_ours(void **state)
{
    struct peer *p = *state;
    int leaky = open("/dev/null", O_RDONLY); /* no O_CLOEXEC, as in many a host */
    assert_true(leaky > 2);
    open_command(p, "exec ls /proc/self/fd > $dir/fds", 0, 1);
    sink_rig_add(&p->rig, "{}", 0);
    sink_rig_run(&p->rig);
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

/* Each of three waits until all three are there, so one after the other would never end. */
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

/* Behind it may stand what the shell said of its own end. */
static void assert_starts_with(const char *text, const char *start)
{
    if (strncmp(text, start, strlen(start)) != 0)
        fail_msg("'%s' does not start with '%s'", text, start);
}

static void time_limit_ends_the_whole_group(void **state)
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

static void command_that_ignores_sigterm_is_killed_two_seconds_later(void **state)
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

/* The shell dies of SIGTERM at once, its child needs a moment to tidy up. */
static void group_may_tidy_up_after_the_shell_is_gone(void **state)
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

static void exit_0_after_the_time_limit_is_still_a_retry(void **state)
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

static void grandchild_with_our_stderr_does_not_hold_back_the_result(void **state)
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

static void cancel_ends_what_runs_and_believes_nobody(void **state)
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

static void no_descriptors_left_is_down_and_leaks_nothing(void **state)
{
    struct peer *p = *state;
    struct rlimit old, tight;
    open_command(p, "exit 0", 0, 1);
    int next = dup(0);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    /* One by one, so that every place where a descriptor is made fails once. */
    for (int more = 0; more < 4; more++) {
        tight = (struct rlimit){(rlim_t)(next + more), old.rlim_max};
        setrlimit(RLIMIT_NOFILE, &tight);
        struct sink_item *it = sink_rig_add(&p->rig, "{}", 0);
        sink_rig_run(&p->rig);
        setrlimit(RLIMIT_NOFILE, &old);
        assert_int_equal(it->status, SINK_DOWN);
        assert_int_equal(it->native, EMFILE);
    }
    assert_int_equal(dup(0), next);
    close(next);
    struct sink_item *it = sink_rig_add(&p->rig, "{}", 0);
    sink_rig_run(&p->rig);
    assert_int_equal(it->status, SINK_DELIVERED);
}

static void refuses_an_empty_command(void **state)
{
    static const char *const urls[] = {"exec:", "exec: \t"};
    (void)state;
    for (size_t i = 0; i < COUNT(urls); i++) {
        const struct sink_ops *ops;
        struct sink *sk = NULL;
        struct error err = {0};
        assert_int_equal(sink_find(urls[i], &ops, &err), 0);
        assert_int_equal(ops->open(&(struct sink_config){.url = urls[i]}, &sk, &err), -1);
        assert_int_equal(err.code, ERR_CONFIG);
        assert_null(sk);
    }
}

#define ON_A_COMMAND(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    static const struct sink_case commands = {
        .name = "exec",
        .many = 100,
        .concurrency = 4,
        .flat = true,
        .setup = peer_setup,
        .teardown = peer_teardown,
        .url = peer_url,
        .arrived = peer_arrived,
        .break_peer = peer_break,
        .heal_peer = peer_heal,
        .spoil = peer_spoil,
    };
    const struct CMUnitTest own[] = {
        cmocka_unit_test(exit_status_decides),
        ON_A_COMMAND(command_not_found_is_down),
        ON_A_COMMAND(command_that_only_some_events_need_is_a_retry),
        ON_A_COMMAND(field_cannot_add_a_variable),
        ON_A_COMMAND(environment_that_is_full_already_is_down),
        ON_A_COMMAND(line_over_the_size_limit_of_files_is_rejected_alone),
        ON_A_COMMAND(a_command_that_is_there_may_leave_with_127_of_its_own),
        cmocka_unit_test(is_refused_where_exit_statuses_are_lost),
        ON_A_COMMAND(only_the_end_of_a_long_stderr_is_kept),
        ON_A_COMMAND(stdin_is_the_line_and_need_not_be_read),
        ON_A_COMMAND(facts_are_in_the_environment),
        ON_A_COMMAND(command_gets_no_variable_that_nobody_named),
        ON_A_COMMAND(command_gets_variables_that_were_named),
        ON_A_COMMAND(absent_facts_are_unset_even_if_inherited),
        ON_A_COMMAND(command_gets_no_descriptor_of_ours),
        ON_A_COMMAND(command_gets_default_signals_and_an_empty_mask),
        ON_A_COMMAND(commands_run_in_parallel_up_to_the_limit),
        ON_A_COMMAND(time_limit_ends_the_whole_group),
        ON_A_COMMAND(command_that_ignores_sigterm_is_killed_two_seconds_later),
        ON_A_COMMAND(group_may_tidy_up_after_the_shell_is_gone),
        ON_A_COMMAND(exit_0_after_the_time_limit_is_still_a_retry),
        ON_A_COMMAND(grandchild_with_our_stderr_does_not_hold_back_the_result),
        ON_A_COMMAND(cancel_ends_what_runs_and_believes_nobody),
        ON_A_COMMAND(no_descriptors_left_is_down_and_leaks_nothing),
        cmocka_unit_test(refuses_an_empty_command),
    };
    return sink_suite_run(&commands, own, COUNT(own));
}
