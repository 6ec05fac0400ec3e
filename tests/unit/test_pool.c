/* How a pool assigns connections while the server opens them slowly or refuses. A fake store counts
 * them. Tests with a real server are in test_pool_pg.c. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/err.h"
#include "pool/pool.h"

#define USERS 12
#define SHARED 3 /* of 8 connections */

static struct {
    atomic_int opened, opening, most; /* most: maximum number open or being opened at once */
    atomic_int tries;
    unsigned open_us;
    bool refuses; /* all but the first */
} server;

static void fake_close(struct store *st)
{
    atomic_fetch_sub(&server.opened, 1);
    free(st);
}

static int fake_dup(struct store *from, struct store **ret, struct error *err)
{
    bool first = atomic_fetch_add(&server.tries, 1) == 0;
    int now = atomic_fetch_add(&server.opening, 1) + 1 + atomic_load(&server.opened);
    for (int most = atomic_load(&server.most); now > most;)
        if (atomic_compare_exchange_weak(&server.most, &most, now))
            break;
    usleep(server.open_us);
    atomic_fetch_sub(&server.opening, 1);
    if (server.refuses && !first)
        return err_set(err, ERR_READONLY, "this server is a standby");
    struct store *st = malloc(sizeof *st);
    assert_non_null(st);
    *st = *from;
    atomic_fetch_add(&server.opened, 1);
    *ret = st;
    return 0;
}

static int fake_expose(struct store *st, int64_t idle_ms, struct error *err)
{
    (void)st;
    (void)idle_ms;
    (void)err;
    return 0;
}

static const struct store_ops ops = {
    .scheme = "fake", .dup = fake_dup, .close = fake_close, .expose_connection = fake_expose};
static struct store origin = {.ops = &ops};

/* Opens a pool whose handlers share SHARED connections. The watcher's connection is not counted. */
static struct pool *open_pool(void)
{
    struct pool *p;
    struct error err;
    struct pool_config cfg = {
        .clock = &clock_system, .tx_workers = USERS, .connections = 8, .sweep_ms = 1000};
    server.open_us = 0;
    server.refuses = false;
    assert_int_equal(pool_open(&origin, &cfg, &p, &err), 0);
    assert_true(pool_shares_tx(p));
    server.opened = server.most = server.tries = 0;
    return p;
}

struct user {
    pthread_t thread;
    struct pool *pool;
    unsigned keep_us;
    int result;
};

static void *use(void *arg)
{
    struct user *u = arg;
    struct pool_conn *c;
    struct store *st;
    struct error err;
    u->result = pool_tx_acquire(u->pool, u, 1000, &c, &st, &err);
    if (u->result != 0)
        return NULL;
    usleep(u->keep_us);
    pool_tx_release(u->pool, c);
    return NULL;
}

static void start(struct user *u, struct pool *p, unsigned keep_ms)
{
    *u = (struct user){.pool = p, .keep_us = keep_ms * 1000};
    assert_int_equal(pthread_create(&u->thread, NULL, use, u), 0);
}

/* A handler that holds its connection for long makes room for an extra one. But a server that is
 * slow to open connections must not be asked for more and more of them. */
static void pool_does_not_add_connections_to_a_slow_server(void **state)
{
    (void)state;
    struct user u[USERS];
    struct pool *p = open_pool();
    server.open_us = 1600 * 1000;
    for (int i = 0; i < USERS; i++)
        start(&u[i], p, 1);
    for (int i = 0; i < USERS; i++) {
        pthread_join(u[i].thread, NULL);
        assert_int_equal(u[i].result, 0);
    }
    assert_int_equal(server.most, SHARED);
    pool_close(p);
}

static void slow_handler_opens_a_connection_at_its_first_use(void **state)
{
    (void)state;
    struct user u[SHARED + 1];
    struct pool *p = open_pool();
    for (int i = 0; i < SHARED; i++)
        start(&u[i], p, 2500);
    usleep(100 * 1000);
    int64_t began = clock_mono(&clock_system);
    start(&u[SHARED], p, 1);
    pthread_join(u[SHARED].thread, NULL);
    assert_in_range((clock_mono(&clock_system) - began) / MS_NS, 700, 2000);
    assert_int_equal(server.most, SHARED + 1);
    for (int i = 0; i < SHARED; i++)
        pthread_join(u[i].thread, NULL);
    pool_close(p);
}

/* Another connection is in use and good, so the caller waits for it. */
static void refused_connection_is_retried_after_a_pause(void **state)
{
    (void)state;
    struct user u[2];
    struct pool *p = open_pool();
    server.refuses = true;
    start(&u[0], p, 0);
    pthread_join(u[0].thread, NULL);
    start(&u[0], p, 400);
    usleep(100 * 1000);
    start(&u[1], p, 1);
    for (int i = 0; i < 2; i++) {
        pthread_join(u[i].thread, NULL);
        assert_int_equal(u[i].result, 0);
    }
    assert_in_range(server.tries, 2, 1 + SHARED);
    pool_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pool_does_not_add_connections_to_a_slow_server),
        cmocka_unit_test(slow_handler_opens_a_connection_at_its_first_use),
        cmocka_unit_test(refused_connection_is_retried_after_a_pause),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
