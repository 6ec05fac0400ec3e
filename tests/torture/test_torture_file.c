/* The file sink behind a whole pipeline, with every call on its file failing in turn. In the end
 * every event is in the file as a whole line, in order by first appearance, and earlier content is
 * untouched. */
#include "../engine/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fail.h"
#include "io.h"

#define EVENTS 30
#define BEFORE "somebody else's line\n"
#define TORN "{\"id\":\"0192"

static char dir[] = "/tmp/outbox-XXXXXX", path[64];

static int make_dir(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/out.ndjson", dir);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(dir);
}

/* begin_file leaves a file as a relay would that died in the middle of a line. */
static void begin_file(void)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(BEFORE TORN, f);
    fclose(f);
}

struct run {
    struct rig *g;
    struct sink *sk;
};

static bool start(struct run *r, struct error *err)
{
    struct worker *w = &r->g->w[0];
    struct sink_config cfg = {
        .consumer = "c", .clock = &r->g->clock, .done = pipeline_done, .done_ctx = w->p};
    const struct sink_ops *ops;
    static char url[80];
    snprintf(url, sizeof url, "file:%s", path);
    cfg.url = url;
    if (sink_find(url, &ops, err) != 0 || ops->open(&cfg, &r->sk, err) != 0)
        return false;
    pipeline_attach(w->p, r->sk);
    return true;
}

/* whole_lines counts our lines and returns the seq of each. A line that is not whole fails the
 * test. */
static size_t whole_lines(int64_t *seq, size_t max, const char *where)
{
    char line[4096];
    size_t n = 0;
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    if (!fgets(line, sizeof line, f) || strcmp(line, BEFORE) != 0)
        fail_msg("%s: the preceding line was lost", where);
    while (fgets(line, sizeof line, f)) {
        const char *at = strstr(line, "\"seq\":");
        size_t len = strlen(line);
        if (strncmp(line, "{\"id\":\"", 7) != 0 || !at || strcmp(line + len - 2, "}\n") != 0)
            fail_msg("%s: torn line: %s", where, line);
        assert_true(n < max);
        seq[n++] = strtoll(at + 6, NULL, 10);
    }
    fclose(f);
    return n;
}

static void check_file(const char *where)
{
    int64_t seq[EVENTS * 20], last = 0;
    size_t n = whole_lines(seq, EVENTS * 20, where);
    for (size_t i = 0; i < n; i++) {
        if (seq[i] > last + 1)
            fail_msg("%s: event %lld was written too early", where, (long long)seq[i]);
        if (seq[i] == last + 1)
            last++;
    }
    if (last != EVENTS)
        fail_msg("%s: event %lld was lost", where, (long long)last + 1);
}

/* work emits in three portions, so that the sink appends to its own lines as well. */
static void work(struct run *r)
{
    for (int i = 0; i < EVENTS; i++) {
        rig_emit(r->g, i % 2 ? "a" : "b");
        if (i % 10 == 9)
            rig_run(r->g, 0, 1000);
    }
}

static void finish(struct run *r, const char *where)
{
    if (!rig_run(r->g, 0, 600000))
        fail_msg("%s: not idle after ten minutes", where);
    rig_crash(r->g, 0);
    r->sk->ops->close(r->sk);
}

static struct run prepare(void **made)
{
    begin_file();
    assert_int_equal(rig_setup(made), 0);
    struct rig *g = *made;
    struct worker *w = rig_worker(g, 0, "retry=base=1s,attempts=3,jitter=none,outage=0s", NULL);
    free(w->sk); /* a real sink replaces the model */
    w->sk = NULL;
    return (struct run){.g = g};
}

static void every_failed_call(enum io_fault fault, bool lasting)
{
    bool hit = true;
    long at = 0;
    while (hit) {
        void *made;
        char where[80];
        struct error err;
        struct run r = prepare(&made);
        snprintf(where, sizeof where, "%s at call %ld%s", io_fault_names[fault], ++at,
                 lasting ? " and two more" : "");
        if (!start(&r, &err))
            fail_msg("%s", err.text);
        io_arm(at, fault, lasting);
        work(&r);
        hit = io_disarm();
        finish(&r, where);
        check_file(where);
        rig_teardown(&made);
    }
    print_message("# file: %ld calls failed in turn with %s%s\n", at - 1, io_fault_names[fault],
                  lasting ? ", three in a row" : "");
}

#define FAULT(name, fault) \
    static void name(void **state) \
    { \
        (void)state; \
        every_failed_call(fault, false); \
        every_failed_call(fault, true); \
    }
FAULT(every_call_may_fail_with_eio, IO_EIO)
FAULT(every_call_may_find_the_disk_full, IO_ENOSPC)
FAULT(every_call_may_be_interrupted, IO_EINTR)
FAULT(every_write_may_be_short, IO_SHORT)

static void file_sink_survives_every_failed_allocation(void **state)
{
    (void)state;
    for (enum fail_mode mode = FAIL_ONCE; mode <= FAIL_LASTING; mode++) {
        bool hit = true;
        long at = 0;
        while (hit) {
            void *made;
            char where[80];
            struct error err = {0};
            struct run r = prepare(&made);
            snprintf(where, sizeof where, "allocation %ld", ++at);
            fail_arm(FAIL_OURS, at, mode);
            bool started = start(&r, &err);
            if (started) {
                rig_emit(r.g, "a");
                rig_run(r.g, 0, 1000);
            }
            hit = fail_disarm();
            if (!started && err.code != ERR_NOMEM)
                fail_msg("%s: %s", where, err.text);
            if (!started)
                assert_true(start(&r, &err));
            for (int i = started ? 1 : 0; i < EVENTS; i++)
                rig_emit(r.g, "a");
            finish(&r, where);
            check_file(where);
            rig_teardown(&made);
        }
        print_message("# file: %ld allocations failed in turn\n", at - 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_may_fail_with_eio),
        cmocka_unit_test(every_call_may_find_the_disk_full),
        cmocka_unit_test(every_call_may_be_interrupted),
        cmocka_unit_test(every_write_may_be_short),
        cmocka_unit_test(file_sink_survives_every_failed_allocation),
    };
    fail_setup();
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
