/* The sink contract on standard output, and promises that only stdout: makes. */
#include "sink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The test program's own standard output is kept aside while a test runs. */
struct peer {
    int own_stdout;
    int fd; /* its replacement, or the end to read from */
};

static struct peer *redirect(int to, int fd)
{
    struct peer *p = malloc(sizeof *p);
    fflush(stdout);
    *p = (struct peer){fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3), fd};
    assert_true(p->own_stdout > 2);
    assert_int_equal(dup2(to, STDOUT_FILENO), STDOUT_FILENO);
    return p;
}

static void *peer_setup(void)
{
    int fd = memfd_create("stdout", MFD_CLOEXEC);
    assert_true(fd >= 0);
    return redirect(fd, fd);
}

static void peer_teardown(void *peer)
{
    struct peer *p = peer;
    sink_limit_files(0);
    dup2(p->own_stdout, STDOUT_FILENO);
    close(p->own_stdout);
    if (p->fd >= 0)
        close(p->fd);
    free(p);
}

static const char *peer_url(void *peer)
{
    (void)peer;
    return "stdout:";
}

static void peer_arrived(void *peer, struct sink_arrivals *got)
{
    struct stat st;
    int fd = ((struct peer *)peer)->fd;
    assert_int_equal(fstat(fd, &st), 0);
    char *text = malloc((size_t)st.st_size + 1);
    assert_int_equal(pread(fd, text, (size_t)st.st_size, 0), st.st_size);
    sink_arrivals_lines(got, text, (size_t)st.st_size);
    free(text);
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

/* Standard output is a pipe, for tests of promises that only stdout: makes. */
struct piped {
    struct peer *peer;
    struct sink_rig rig;
};

static int pipe_setup(void **state)
{
    struct piped *p = calloc(1, sizeof *p);
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    p->peer = redirect(ends[1], ends[0]);
    close(ends[1]);
    sink_rig_init(&p->rig);
    sink_rig_open(&p->rig, (struct sink_config){.url = "stdout:"});
    *state = p;
    return 0;
}

static int pipe_teardown(void **state)
{
    struct piped *p = *state;
    sink_rig_release(&p->rig);
    peer_teardown(p->peer);
    free(p);
    return 0;
}

static size_t lines_in(const char *p, size_t n)
{
    size_t lines = 0;
    for (size_t i = 0; i < n; i++)
        lines += p[i] == '\n';
    return lines;
}

static void closed_reader_is_fatal(void **state)
{
    struct piped *p = *state;
    close(p->peer->fd);
    p->peer->fd = -1;
    sink_rig_add_many(&p->rig, 5, 64);
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_FATAL);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(p->rig.items[i]->order, i);
    assert_string_equal(p->rig.items[0]->text, "standard output was closed");
}

static void closed_standard_output_is_fatal(void **state)
{
    struct piped *p = *state;
    close(STDOUT_FILENO);
    sink_rig_add_many(&p->rig, 2, 64);
    sink_rig_run(&p->rig);
    sink_rig_assert_all(&p->rig, SINK_FATAL);
}

/* drive would hang here, and the test with it, if it waited for the reader. */
static void stalled_reader_does_not_block_drive(void **state)
{
    struct piped *p = *state;
    struct sink *sk = p->rig.sk;
    struct pollfd fds[4];
    sink_rig_add_many(&p->rig, 100, 4000);
    sink_rig_submit(&p->rig);
    sk->ops->drive(sk);
    assert_int_equal(p->rig.answered, 0);
    assert_int_equal(sk->ops->deadline(sk), CLOCK_NEVER);
    assert_int_equal(sk->ops->fds(sk, fds, 4), 1);
    assert_int_equal(poll(fds, 1, 0), 0);

    struct sink_arrivals got = {0};
    size_t n = 0, size = (size_t)1 << 20;
    char *text = malloc(size);
    while (p->rig.answered < 100) {
        ssize_t k = read(p->peer->fd, text + n, size - n);
        assert_true(k > 0);
        n += (size_t)k;
        sk->ops->drive(sk);
    }
    ssize_t k;
    fcntl(p->peer->fd, F_SETFL, O_NONBLOCK);
    while ((k = read(p->peer->fd, text + n, size - n)) > 0)
        n += (size_t)k;
    sink_arrivals_lines(&got, text, n);
    sink_rig_assert_arrived(&p->rig, &got, true, true);
    sink_rig_assert_all(&p->rig, SINK_DELIVERED);
    sink_arrivals_release(&got);
    free(text);
}

static void cancel_counts_whole_lines_as_delivered(void **state)
{
    struct piped *p = *state;
    struct sink *sk = p->rig.sk;
    sink_rig_add_many(&p->rig, 100, 4000);
    sink_rig_submit(&p->rig);
    sk->ops->drive(sk);
    sk->ops->cancel(sk);
    sink_rig_check(&p->rig);
    char *text = malloc(1 << 20);
    ssize_t n = read(p->peer->fd, text, 1 << 20);
    assert_true(n > 0);
    size_t whole = lines_in(text, (size_t)n);
    assert_in_range(whole, 1, 99);
    for (size_t i = 0; i < 100; i++)
        assert_int_equal(p->rig.items[i]->status, i < whole ? SINK_DELIVERED : SINK_CANCELLED);
    free(text);
}

static void nonblocking_standard_output_works(void **state)
{
    assert_int_equal(fcntl(STDOUT_FILENO, F_SETFL, O_NONBLOCK), 0);
    stalled_reader_does_not_block_drive(state);
}

static void full_device_is_down_if_no_line_is_torn(void **state)
{
    struct sink_rig rig;
    (void)state;
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    assert_true(full >= 0);
    struct peer *p = redirect(full, full);
    sink_rig_init(&rig);
    sink_rig_open(&rig, (struct sink_config){.url = "stdout:"});
    sink_rig_add_many(&rig, 3, 64);
    sink_rig_run(&rig);
    peer_teardown(p);
    sink_rig_assert_all(&rig, SINK_DOWN);
    sink_assert_says(rig.items[0], strerror(ENOSPC));
    sink_rig_release(&rig);
}

/* A disk that is full in the middle of a line is a sink that is down, not a fatal error. The torn
 * line is ended before the next one. */
static void partial_line_is_completed_before_the_next(void **state)
{
    struct peer *peer = peer_setup();
    struct sink_rig rig;
    struct stat st;
    (void)state;
    sink_rig_init(&rig);
    sink_rig_open(&rig, (struct sink_config){.url = "stdout:"});
    sink_rig_add_many(&rig, 1, 200);
    sink_rig_run(&rig);
    assert_int_equal(fstat(peer->fd, &st), 0);
    sink_limit_files(st.st_size * 5 / 2);
    sink_rig_add_many(&rig, 4, 200);
    sink_rig_run(&rig);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(rig.items[i]->status, i < 2 ? SINK_DELIVERED : SINK_DOWN);
    assert_int_equal(rig.items[2]->native, EFBIG);
    sink_limit_files(0);
    sink_rig_passes_again(&rig);
    struct sink_arrivals got = {0};
    peer_arrived(peer, &got); /* fails at a line that is not whole */
    peer_teardown(peer);
    assert_int_equal(got.n, 6);
    assert_string_equal(got.a[2].id, got.a[3].id); /* the event is repeated */
    sink_arrivals_release(&got);
    sink_rig_release(&rig);
}

static char *read_all(struct piped *p, size_t *n)
{
    char *text = malloc(1 << 20);
    fcntl(p->peer->fd, F_SETFL, O_NONBLOCK);
    *n = 0;
    for (ssize_t k; (k = read(p->peer->fd, text + *n, (1 << 20) - *n)) > 0;)
        *n += (size_t)k;
    return text;
}

static void reader_stalled_past_the_time_limit_is_an_outage(void **state)
{
    struct piped *p = *state;
    size_t n, more;
    sink_rig_release(&p->rig);
    sink_rig_open(&p->rig, (struct sink_config){.url = "stdout:", .timeout_ms = 30000});
    struct sink *sk = p->rig.sk;
    sink_rig_freeze(&p->rig);
    sink_rig_add_many(&p->rig, 100, 4000);
    sink_rig_submit(&p->rig);
    sk->ops->drive(sk);
    assert_int_equal(p->rig.answered, 0);
    assert_in_range(sk->ops->deadline(sk) - clock_mono(&p->rig.clock), 29000 * MS_NS,
                    30000 * MS_NS);
    p->rig.ahead_ns += 30001 * MS_NS;
    sk->ops->drive(sk);
    sink_rig_check(&p->rig);
    assert_int_equal(p->rig.items[0]->status, SINK_DELIVERED);
    assert_int_equal(p->rig.items[99]->status, SINK_DOWN);
    assert_string_equal(p->rig.items[99]->text, "standard output was not read for 30s");

    /* Then the reader resumes. The half-written line is completed, and written once more. */
    char *first = read_all(p, &n);
    size_t whole = lines_in(first, n);
    sink_rig_again(&p->rig);
    sink_rig_submit(&p->rig);
    sk->ops->drive(sk);
    char *second = read_all(p, &more);
    first = realloc(first, n + more);
    memcpy(first + n, second, more);
    size_t end = n + more;
    while (first[end - 1] != '\n')
        end--;
    struct sink_arrivals got = {0};
    sink_arrivals_lines(&got, first, end);
    assert_true(got.n > whole + 1);
    assert_string_equal(got.a[whole].id, got.a[whole + 1].id);
    sink_arrivals_release(&got);
    free(first);
    free(second);
}

static void text_after_the_colon_is_refused(void **state)
{
    (void)state;
    sink_assert_refused((struct sink_config){.url = "stdout:x"}, NULL, NULL);
}

#define ON_A_PIPE(fn) cmocka_unit_test_setup_teardown(fn, pipe_setup, pipe_teardown)

int main(void)
{
    static const struct sink_case standard_output = {
        .name = "stdout",
        .many = 5000,
        .flat = true,
        SINK_PEER,
        .spoil = peer_spoil,
    };
    static const struct CMUnitTest tests[] = {
        ON_A_PIPE(closed_reader_is_fatal),
        ON_A_PIPE(closed_standard_output_is_fatal),
        ON_A_PIPE(stalled_reader_does_not_block_drive),
        ON_A_PIPE(cancel_counts_whole_lines_as_delivered),
        ON_A_PIPE(nonblocking_standard_output_works),
        cmocka_unit_test(full_device_is_down_if_no_line_is_torn),
        cmocka_unit_test(partial_line_is_completed_before_the_next),
        ON_A_PIPE(reader_stalled_past_the_time_limit_is_an_outage),
        cmocka_unit_test(text_after_the_colon_is_refused),
    };
    return sink_suite_run(&standard_output, &(struct suite_part)SUITE_PART(tests), 1);
}
