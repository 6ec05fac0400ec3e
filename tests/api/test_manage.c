/* The functions that a relay uses beyond outbox.h: it watches a running outbox, and adds and
 * removes consumers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/api_impl.h"

#define EVENTS 400
#define ROUNDS 20

/* (1) Only the thread of outbox_run touches guest. */
struct rig {
    outbox *ob;
    char dir[64];
    outbox_consumer *guest; /* comes and goes */
    atomic_int started, reloads, got_host, got_guest, failures;
    atomic_bool done;
};

static outbox_error err;

static void must(int r)
{
    if (r != 0)
        fail_msg("%s", err.text);
}

static outbox_verdict count_event(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    (void)ev;
    (void)tx;
    atomic_fetch_add((atomic_int *)ctx, 1);
    return OUTBOX_DONE;
}

static void on_started(void *ctx)
{
    struct rig *g = ctx;
    atomic_store(&g->started, 1);
}

/* on_reload adds or removes the guest. It does not run in the test's thread, so it only counts
 * errors. */
static void on_reload(void *ctx)
{
    struct rig *g = ctx;
    outbox_error e;
    if (g->guest) {
        api_consumer_stop(g->guest);
        g->guest = NULL;
    } else if (outbox_consumer_new(g->ob, "guest", &g->guest, &e) != 0 ||
               outbox_on(g->guest, "*", count_event, &g->got_guest, &e) != 0 ||
               api_consumer_start(g->guest, true, (struct error *)&e) != 0) {
        atomic_fetch_add(&g->failures, 1);
    }
    atomic_fetch_add(&g->reloads, 1);
}

static void *run(void *ctx)
{
    struct rig *g = ctx;
    outbox_error e;
    if (outbox_run(g->ob, 0, &e) != 0)
        atomic_fetch_add(&g->failures, 1);
    return NULL;
}

/* watch polls all the time, and counts impossible readings: numbers that decrease. */
static void *watch(void *ctx)
{
    struct rig *g = ctx;
    int64_t last = 0;
    while (!atomic_load(&g->done)) {
        struct worker_view *v;
        size_t n;
        if (supervisor_views(&g->ob->sv, &v, &n, NULL) != 0)
            continue;
        if (n > 0 && (strcmp(v[0].consumer, "host") != 0 || v[0].stats.delivered < last))
            atomic_fetch_add(&g->failures, 1);
        if (n > 0)
            last = v[0].stats.delivered;
        free(v);
        usleep(200);
    }
    return NULL;
}

static void wait_for(atomic_int *what, int least)
{
    for (int i = 0; atomic_load(what) < least; i++) {
        if (i > 60000)
            fail_msg("the count is still %d, expected %d", atomic_load(what), least);
        usleep(1000);
    }
}

static int setup(void **state)
{
    struct rig *g = calloc(1, sizeof *g);
    char url[128];
    outbox_options o = OUTBOX_OPTIONS_INIT;
    outbox_consumer *host;
    o.create = 1;
    strcpy(g->dir, "/tmp/outbox-XXXXXX");
    if (!mkdtemp(g->dir))
        return -1;
    snprintf(url, sizeof url, "sqlite:%s/t.db", g->dir);
    if (outbox_open(url, &o, &g->ob, &err) != 0 ||
        outbox_consumer_new(g->ob, "host", &host, &err) != 0 ||
        outbox_on(host, "*", count_event, &g->got_host, &err) != 0)
        return -1;
    g->ob->sv.started = on_started;
    g->ob->sv.reload = on_reload;
    g->ob->sv.hook_ctx = g;
    *state = g;
    return 0;
}

static int teardown(void **state)
{
    static const char *const names[] = {"t.db", "t.db-wal", "t.db-shm"};
    struct rig *g = *state;
    char path[128];
    outbox_close(g->ob);
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", g->dir, names[i]);
        unlink(path);
    }
    rmdir(g->dir);
    free(g);
    return 0;
}

static void consumers_are_added_and_removed_during_delivery(void **state)
{
    struct rig *g = *state;
    pthread_t runner, watcher;
    struct worker_view *v;
    size_t n;
    assert_int_equal(pthread_create(&runner, NULL, run, g), 0);
    assert_int_equal(pthread_create(&watcher, NULL, watch, g), 0);
    wait_for(&g->started, 1);
    outbox_message m = OUTBOX_MESSAGE_INIT;
    m.type = "order.paid";
    for (int i = 0; i < EVENTS; i++) {
        must(outbox_emit(g->ob, &m, NULL, &err));
        if (i % (EVENTS / ROUNDS) != 0)
            continue;
        int before = atomic_load(&g->reloads);
        supervisor_reload(&g->ob->sv);
        wait_for(&g->reloads, before + 1);
    }
    int before = atomic_load(&g->reloads);
    supervisor_reload(&g->ob->sv); /* an odd number of times, so it stays */
    wait_for(&g->reloads, before + 1);
    wait_for(&g->got_host, EVENTS);
    wait_for(&g->got_guest, EVENTS);
    do { /* the last word may arrive a moment later */
        must(supervisor_views(&g->ob->sv, &v, &n, (struct error *)&err));
        assert_int_equal(n, 2);
        n = (size_t)v[0].stats.delivered;
        assert_int_equal(v[0].stats.meter.n_types, 1);
        free(v);
    } while (n < EVENTS);
    outbox_stop(g->ob);
    pthread_join(runner, NULL);
    atomic_store(&g->done, true);
    pthread_join(watcher, NULL);
    assert_int_equal(atomic_load(&g->failures), 0);
    assert_int_equal(atomic_load(&g->got_host), EVENTS);
    assert_int_equal(atomic_load(&g->got_guest), EVENTS);
    must(supervisor_views(&g->ob->sv, &v, &n, (struct error *)&err));
    assert_int_equal(n, 0);
    free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(consumers_are_added_and_removed_during_delivery, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
