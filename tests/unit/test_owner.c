/* test_owner.c: whether a worker's process has ended. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/owner.h"

/* Starts a process that prints its owner name and then waits for the end of its input. Closing
 * *ret_fd ends it at once. */
static pid_t child(char owner[OWNER_TEXT], int *ret_fd)
{
    int name[2], wait[2];
    assert_int_equal(pipe(name), 0);
    assert_int_equal(pipe(wait), 0);
    pid_t pid = fork();
    if (pid == 0) {
        char made[OWNER_TEXT] = "", c;
        close(wait[1]);
        owner_make(made, 0x12345678);
        if (write(name[1], made, sizeof made) != sizeof made)
            _exit(1);
        _exit(read(wait[0], &c, 1) == 0 ? 0 : 1);
    }
    assert_true(pid > 0);
    assert_int_equal(read(name[0], owner, OWNER_TEXT), OWNER_TEXT);
    close(name[0]);
    close(name[1]);
    close(wait[0]);
    *ret_fd = wait[1];
    return pid;
}

static void running_process_is_alive(void **state)
{
    (void)state;
    char owner[OWNER_TEXT], pid[32];
    owner_make(owner, 1);
    snprintf(pid, sizeof pid, ":%ld:00000001:", (long)getpid());
    assert_non_null(strstr(owner, pid));
    assert_false(owner_gone(owner));
}

static void zombie_process_counts_as_dead(void **state)
{
    (void)state;
    char owner[OWNER_TEXT];
    int fd, status;
    pid_t pid = child(owner, &fd);
    assert_false(owner_gone(owner));
    close(fd);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    assert_true(owner_gone(owner)); /* a zombie */
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(owner_gone(owner));
}

static void reused_pid_is_another_process(void **state)
{
    (void)state;
    char owner[OWNER_TEXT];
    owner_make(owner, 1);
    char *start = strrchr(owner, '-') + 1;
    unsigned long long ticks = strtoull(start, NULL, 16);
    snprintf(start, 20, "%llx", ticks - 1);
    assert_true(owner_gone(owner));
}

static void process_that_cannot_be_queried_counts_as_alive(void **state)
{
    (void)state;
    static const char *const unknown[] = {
        "",
        "me",
        "host:1:2",
        "host:4194304:00000001",
        "host:4194304:00000001:00000000-1", /* another machine, or before the last boot */
        "host:x:1:2-3",
        "::::",
        ":-",
    };
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++)
        assert_false(owner_gone(unknown[i]));

    char owner[OWNER_TEXT], elsewhere[OWNER_TEXT];
    int fd;
    pid_t pid = child(owner, &fd);
    close(fd);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    snprintf(elsewhere, sizeof elsewhere, "%s", owner);
    char *machine = strrchr(elsewhere, ':') + 1;
    *machine = *machine == '0' ? '1' : '0';
    assert_true(owner_gone(owner));
    assert_false(owner_gone(elsewhere));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(running_process_is_alive),
        cmocka_unit_test(zombie_process_counts_as_dead),
        cmocka_unit_test(reused_pid_is_another_process),
        cmocka_unit_test(process_that_cannot_be_queried_counts_as_alive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
