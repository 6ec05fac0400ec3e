/* The sink contract on files, and promises that only file: makes. */
#include "sink.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* No disk fails on demand. The library is linked statically, so this is the fsync it calls. */
static bool fsync_fails;
static int fsync_failed_fd = -1;
static int fsync_calls;
int fsync(int fd)
{
    struct stat st;
    fsync_calls++;
    if (!fsync_fails || fstat(fd, &st) != 0 || S_ISDIR(st.st_mode))
        return (int)syscall(SYS_fsync, fd);
    fsync_failed_fd = fd;
    errno = EIO;
    return -1;
}

struct peer {
    char dir[SINK_PATH_SIZE], sub[SINK_PATH_SIZE + 8], away[SINK_PATH_SIZE + 8];
    char url[SINK_PATH_SIZE + 32];
    const char *path; /* in url */
    struct sink_rig rig;
};

static void *peer_setup(void)
{
    struct peer *p = calloc(1, sizeof *p);
    sink_tmp_new(p->dir);
    snprintf(p->sub, sizeof p->sub, "%s/sub", p->dir);
    snprintf(p->away, sizeof p->away, "%s/away", p->dir);
    snprintf(p->url, sizeof p->url, "file:%s/events", p->sub);
    p->path = p->url + strlen("file:");
    assert_int_equal(mkdir(p->sub, 0755), 0);
    sink_rig_init(&p->rig);
    return p;
}

static void peer_teardown(void *peer)
{
    struct peer *p = peer;
    sink_rig_release(&p->rig);
    sink_limit_files(0);
    sink_tmp_remove(p->dir);
    free(p);
}

static const char *peer_url(void *peer)
{
    return ((struct peer *)peer)->url;
}

static void peer_arrived(void *peer, struct sink_arrivals *got)
{
    size_t n;
    char *text = sink_tmp_read(((struct peer *)peer)->path, &n);
    sink_arrivals_lines(got, text, n);
    free(text);
}

static void peer_break(void *peer)
{
    struct peer *p = peer;
    assert_int_equal(rename(p->sub, p->away), 0);
}

static void peer_heal(void *peer)
{
    struct peer *p = peer;
    assert_int_equal(rename(p->away, p->sub), 0);
}

static const char *peer_spoil(void *peer, struct sink_item *it, size_t way)
{
    (void)peer;
    if (way >= 3)
        return NULL;
    sink_limit_files(1 << 20);
    sink_item_enlarge(it, 2 << 20);
    return "ulimit -f";
}

static int setup(void **state)
{
    struct peer *p = peer_setup();
    fsync_fails = false;
    sink_rig_open(&p->rig, (struct sink_config){.url = p->url});
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    peer_teardown(*state);
    return 0;
}

static void deliver(struct peer *p, size_t count, size_t payload_size)
{
    sink_rig_add_many(&p->rig, count, payload_size);
    sink_rig_run(&p->rig);
}

/* assert_file checks that the file consists of `before` and then of all events that were queued. */
static void assert_file(struct peer *p, const char *path, const char *before)
{
    size_t n, skip = strlen(before);
    struct sink_arrivals got = {0};
    char *text = sink_tmp_read(path, &n);
    assert_true(n >= skip);
    assert_memory_equal(text, before, skip);
    sink_arrivals_lines(&got, text + skip, n - skip);
    sink_rig_assert_arrived(&p->rig, &got, true, true);
    sink_arrivals_release(&got);
    free(text);
}

static void append_raw(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static void torn_last_line_is_removed(void **state)
{
    static const char *const torn[] = {"{", "{\"id\":\"0000", "{\"id\":\"0000\",\"seq\":1}"};
    (void)state;
    for (size_t i = 0; i < COUNT(torn); i++) {
        struct peer *p = peer_setup();
        char text[128];
        snprintf(text, sizeof text, "{\"old\":1}\n%s", torn[i]);
        sink_tmp_write(p->path, text);
        sink_rig_open(&p->rig, (struct sink_config){.url = p->url});
        deliver(p, 2, 64);
        assert_file(p, p->path, "{\"old\":1}\n");
        peer_teardown(p);
    }
}

static void torn_line_longer_than_a_block_is_removed(void **state)
{
    struct peer *p = *state;
    char *text = malloc(10001);
    memset(text, 'x', 10000);
    memcpy(text, "{}\n{\"id\":\"", 10);
    text[10000] = '\0';
    sink_tmp_write(p->path, text);
    deliver(p, 2, 64);
    assert_file(p, p->path, "{}\n");
    free(text);
}

static void torn_line_of_another_relay_is_removed_while_open(void **state)
{
    struct peer *p = *state;
    deliver(p, 3, 64);
    append_raw(p->path, "{\"id\":\"0000");
    deliver(p, 3, 64);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
    assert_file(p, p->path, "");
}

static void unterminated_foreign_line_is_terminated_and_kept(void **state)
{
    struct peer *p = *state;
    sink_tmp_write(p->path, "dear diary");
    deliver(p, 2, 64);
    assert_file(p, p->path, "dear diary\n");
}

static void failed_write_leaves_no_trace_and_succeeds_later(void **state)
{
    struct peer *p = *state;
    struct stat before, after;
    deliver(p, 2, 64);
    assert_int_equal(stat(p->path, &before), 0);
    sink_limit_files(before.st_size + 1000);
    deliver(p, 50, 64);
    sink_limit_files(0);
    for (size_t i = 2; i < 52; i++) {
        assert_int_equal(p->rig.items[i]->status, SINK_DOWN);
        assert_int_equal(p->rig.items[i]->native, EFBIG);
        assert_int_equal(p->rig.items[i]->order, i);
    }
    assert_int_equal(stat(p->path, &after), 0);
    assert_int_equal(after.st_size, before.st_size);
    sink_rig_again(&p->rig);
    sink_rig_run(&p->rig);
    assert_file(p, p->path, "");
}

static void full_device_is_down(void **state)
{
    struct peer *p = *state;
    p->rig.sk->ops->close(p->rig.sk);
    sink_rig_open(&p->rig, (struct sink_config){.url = "file:/dev/full"});
    deliver(p, 5, 64);
    sink_rig_assert_all(&p->rig, SINK_DOWN);
    assert_int_equal(p->rig.items[0]->native, ENOSPC);
    sink_assert_says(p->rig.items[0], "/dev/full");
}

static void failed_fsync_is_an_outage_and_retires_its_descriptor(void **state)
{
    struct peer *p = *state;
    fsync_fails = true;
    deliver(p, 3, 64);
    sink_rig_assert_all(&p->rig, SINK_DOWN);
    assert_int_equal(p->rig.items[0]->native, EIO);
    assert_int_equal(fcntl(fsync_failed_fd, F_GETFD), -1);
    fsync_fails = false;
    sink_rig_passes_again(&p->rig);
}

static void one_fsync_covers_a_whole_call_of_drive(void **state)
{
    struct peer *p = *state;
    deliver(p, 1, 64);
    int before = fsync_calls;
    deliver(p, 1000, 64);
    assert_int_equal(fsync_calls, before + 1);
}

/* lock_file holds the lock as another process would; a lock belongs to an open file, not to a
 * process. */
static int lock_file(struct peer *p)
{
    int fd = open(p->path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    return fd;
}

/* drive would hang here, and the test with it, if it waited for the lock. */
static void lock_held_by_another_process_is_down_and_never_hangs(void **state)
{
    struct peer *p = *state;
    struct sink *sk = p->rig.sk;
    int fd = lock_file(p);
    sink_rig_freeze(&p->rig);
    sink_rig_add_many(&p->rig, 3, 64);
    sink_rig_submit(&p->rig);
    sk->ops->drive(sk);
    assert_int_equal(p->rig.answered, 0); /* another relay may hold it for a moment */
    assert_in_range(sk->ops->deadline(sk) - clock_mono(&p->rig.clock), 0, 100 * MS_NS);
    p->rig.ahead_ns += 2000 * MS_NS;
    sk->ops->drive(sk);
    sink_rig_check(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DOWN);
    sink_assert_says(p->rig.items[0], "another process has");
    sink_assert_says(p->rig.items[0], p->path);
    assert_int_equal(sk->ops->deadline(sk), CLOCK_NEVER);
    close(fd);
    sink_rig_again(&p->rig);
    sink_rig_run(&p->rig);
    assert_file(p, p->path, "");
}

static void brief_lock_has_no_effect(void **state)
{
    struct peer *p = *state;
    int fd = lock_file(p);
    sink_rig_add_many(&p->rig, 3, 64);
    sink_rig_submit(&p->rig);
    for (int i = 0; i < 5; i++) {
        p->rig.sk->ops->drive(p->rig.sk);
        sink_rig_wait(&p->rig);
    }
    assert_int_equal(p->rig.answered, 0);
    close(fd);
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
    assert_file(p, p->path, "");
}

static void cancel_does_not_wait_for_a_lock(void **state)
{
    struct peer *p = *state;
    int fd = lock_file(p);
    sink_rig_add_many(&p->rig, 3, 64);
    sink_rig_submit(&p->rig);
    p->rig.sk->ops->drive(p->rig.sk);
    p->rig.sk->ops->cancel(p->rig.sk);
    sink_rig_check(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_CANCELLED);
    close(fd);
}

/* While another kind of file is at the path, the sink is down and names it. It recovers when that
 * is removed. */
static void path_that_is_no_longer_a_file_is_down(void **state)
{
    struct peer *p = *state;
    for (int way = 0; way < 3; way++) {
        unlink(p->path);
        /* opening it to write would wait for a reader */
        if (way == 0)
            assert_int_equal(mkfifo(p->path, 0644), 0);
        else if (way == 1)
            assert_int_equal(mkdir(p->path, 0755), 0);
        else
            assert_int_equal(symlink(p->path, p->path), 0);
        struct sink_item *it = sink_rig_deliver(&p->rig, "{}");
        assert_int_equal(it->status, SINK_DOWN);
        sink_assert_says(it, p->path);
        assert_int_equal(remove(p->path), 0);
        sink_rig_again(&p->rig);
        sink_rig_run(&p->rig);
        assert_int_equal(it->status, SINK_DELIVERED);
    }
}

static void rotated_file_is_reopened(void **state)
{
    struct peer *p = *state;
    char moved[SINK_PATH_SIZE + 32];
    size_t n;
    snprintf(moved, sizeof moved, "%s.1", p->path);
    deliver(p, 3, 64);
    assert_int_equal(rename(p->path, moved), 0);
    struct sink_item *it = sink_rig_deliver(&p->rig, "\"after\"");
    char *text = sink_tmp_read(p->path, &n);
    assert_non_null(strstr(text, it->id));
    struct sink_arrivals got = {0};
    sink_arrivals_lines(&got, text, n);
    assert_int_equal(got.n, 1);
    sink_arrivals_release(&got);
    free(text);
    text = sink_tmp_read(moved, &n);
    assert_null(strstr(text, it->id));
    free(text);
}

static void deleted_file_is_recreated(void **state)
{
    struct peer *p = *state;
    deliver(p, 3, 64);
    assert_int_equal(unlink(p->path), 0);
    struct sink_item *it = sink_rig_deliver(&p->rig, "\"after\"");
    char *text = sink_tmp_read(p->path, NULL);
    assert_non_null(strstr(text, it->id));
    free(text);
}

/* append_in_child drives a sink `rounds` times in another process, with lines that are longer than
 * a page. */
static pid_t append_in_child(struct peer *p, int rounds)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    struct sink_rig rig;
    sink_rig_init(&rig);
    sink_rig_open(&rig, (struct sink_config){.url = p->url});
    for (int i = 0; i < rounds; i++) {
        sink_rig_add_many(&rig, 5, 5000);
        sink_rig_run(&rig);
    }
    for (size_t i = 0; i < rig.n; i++)
        if (rig.items[i]->status != SINK_DELIVERED)
            _exit(1);
    _exit(0);
}

static void relays_sharing_a_file_never_mix_lines(void **state)
{
    struct peer *p = *state;
    enum { CHILDREN = 3, ROUNDS = 50 };
    pid_t pids[CHILDREN];
    int status;
    for (int i = 0; i < CHILDREN; i++)
        pids[i] = append_in_child(p, ROUNDS);
    for (int i = 0; i < CHILDREN; i++) {
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
    struct sink_arrivals got = {0};
    peer_arrived(p, &got);
    assert_int_equal(got.n, CHILDREN * ROUNDS * 5);
    for (size_t i = 0; i < got.n; i++)
        assert_int_equal(got.a[i].n, 5000);
    sink_arrivals_release(&got);
}

/* A relay that is killed at any moment must not cost another one a line. */
static void killed_relay_never_tears_a_line_of_another(void **state)
{
    struct peer *p = *state;
    for (int i = 0; i < 20; i++) {
        pid_t pid = append_in_child(p, 1000000);
        struct stat st = {0};
        off_t start = stat(p->path, &st) == 0 ? st.st_size : 0;
        while (stat(p->path, &st) != 0 || st.st_size == start) {}
        kill(pid, SIGKILL);
        deliver(p, 1, 64);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
    }
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
    struct sink_arrivals got = {0};
    peer_arrived(p, &got);
    size_t ours = 0;
    for (size_t i = 0; i < got.n; i++)
        ours += got.a[i].n == 64;
    assert_int_equal(ours, 20);
    sink_arrivals_release(&got);
}

static void missing_directory_does_not_prevent_opening(void **state)
{
    struct peer *p = *state;
    struct sink_rig rig;
    char url[SINK_PATH_SIZE + 32];
    snprintf(url, sizeof url, "file:%s/nowhere/events", p->dir);
    sink_rig_init(&rig);
    sink_rig_open(&rig, (struct sink_config){.url = url});
    sink_rig_deliver(&rig, "{}");
    sink_rig_assert_all(&rig, SINK_DOWN);
    assert_int_equal(rig.items[0]->native, ENOENT);
    sink_rig_release(&rig);
}

static void paths_that_can_never_be_files_are_refused(void **state)
{
    struct peer *p = *state;
    char dir[SINK_PATH_SIZE + 16], slash[SINK_PATH_SIZE + 16], fifo[SINK_PATH_SIZE + 16];
    snprintf(dir, sizeof dir, "file:%s", p->dir);
    snprintf(slash, sizeof slash, "file:%s/x/", p->dir);
    snprintf(fifo, sizeof fifo, "file:%s/fifo", p->dir);
    assert_int_equal(mkfifo(fifo + strlen("file:"), 0644), 0);
    const char *const urls[] = {"file:", dir, slash, fifo, "file://host/x"};
    for (size_t i = 0; i < COUNT(urls); i++)
        sink_assert_refused((struct sink_config){.url = urls[i]}, NULL, NULL);
}

static void unknown_sink_kind_is_explained(void **state)
{
    static const struct {
        const char *url, *says;
    } cases[] = {
        {"fiel:/x", "did you mean 'file:'?"},
        {"gopher://x", "exec:"},
        {"events.ndjson", "stdout:, file:, exec:"},
        {"", "stdout:, file:, exec:"},
        {":x", "stdout:, file:, exec:"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct sink_ops *ops = NULL;
        struct error err = {0};
        assert_int_equal(sink_find(cases[i].url, &ops, &err), -1);
        assert_int_equal(err.code, ERR_CONFIG);
        if (!strstr(err.text, cases[i].says))
            fail_msg("%s: %s", cases[i].url, err.text);
        assert_null(strstr(err.text, "secret"));
        assert_null(ops);
    }
}

#define ON_A_FILE(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    static const struct sink_case file = {
        .name = "file",
        .many = 5000,
        .flat = true,
        SINK_PEER,
        SINK_PEER_BREAKS,
        .spoil = peer_spoil,
    };
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(torn_last_line_is_removed),
        ON_A_FILE(torn_line_longer_than_a_block_is_removed),
        ON_A_FILE(torn_line_of_another_relay_is_removed_while_open),
        ON_A_FILE(unterminated_foreign_line_is_terminated_and_kept),
        ON_A_FILE(failed_write_leaves_no_trace_and_succeeds_later),
        ON_A_FILE(full_device_is_down),
        ON_A_FILE(failed_fsync_is_an_outage_and_retires_its_descriptor),
        ON_A_FILE(one_fsync_covers_a_whole_call_of_drive),
        ON_A_FILE(lock_held_by_another_process_is_down_and_never_hangs),
        ON_A_FILE(brief_lock_has_no_effect),
        ON_A_FILE(cancel_does_not_wait_for_a_lock),
        ON_A_FILE(path_that_is_no_longer_a_file_is_down),
        ON_A_FILE(rotated_file_is_reopened),
        ON_A_FILE(deleted_file_is_recreated),
        ON_A_FILE(relays_sharing_a_file_never_mix_lines),
        ON_A_FILE(killed_relay_never_tears_a_line_of_another),
        ON_A_FILE(missing_directory_does_not_prevent_opening),
        ON_A_FILE(paths_that_can_never_be_files_are_refused),
        cmocka_unit_test(unknown_sink_kind_is_explained),
    };
    return sink_suite_run(&file, &(struct suite_part)SUITE_PART(tests), 1);
}
