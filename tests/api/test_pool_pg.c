/* Named handlers of many consumers on PostgreSQL: they share a few connections, see no session
 * state of each other, and do not delay each other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "../contract/pg.h"
#include "../contract/store.h"
#include "ok.h"
#include "outbox.h"

#define MANY 50
#define EVENTS 5
#define CONNECTIONS 4

static struct test_clock own_clock;
struct test_clock *store_now_at = &own_clock;
static outbox_error err;

static int fresh(void **state)
{
    outbox *ob;
    struct store *st = pg_fresh(&(struct store_options){.create = true}, false);
    if (!st)
        return -1;
    store_close(st);
    if (outbox_open(pg_url(), NULL, &ob, &err) != 0) {
        print_error("%s\n", err.text);
        return -1;
    }
    *state = ob;
    return 0;
}

static int done(void **state)
{
    outbox_close(*state);
    pg_clean();
    return 0;
}

/* sessions counts the server's sessions in this database. */
static int sessions(PGconn *db)
{
    return (int)pg_number(db,
                          "SELECT count(*) FROM pg_stat_activity "
                          "WHERE datname = current_database() AND backend_type = 'client backend'");
}

/* Shared by all handlers of a test. */
struct party {
    atomic_int most;    /* connections that were seen at once */
    atomic_int calls;   /* that went well */
    atomic_int strange; /* handlers that found something another had left in the session */
    atomic_int late;    /* that waited in vain */
};

struct guest {
    struct party *party;
    int number;
    char name[16];
};

/* leaves_something leaves a mark in its session, and looks for the marks of others. */
static outbox_verdict leaves_something(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    struct guest *g = ctx;
    struct party *p = g->party;
    PGconn *db = outbox_tx_pg(tx);
    (void)ev;
    PGresult *r = PQexec(db, "SELECT coalesce(current_setting('party.mark', true), '')");
    const char *mark = PQgetvalue(r, 0, 0);
    if (*mark && strcmp(mark, g->name) != 0)
        atomic_fetch_add(&p->strange, 1);
    PQclear(r);

    char sql[80];
    snprintf(sql, sizeof sql, "SET party.mark = '%s'", g->name);
    PQclear(PQexec(db, sql));
    int now = sessions(db);
    int most = atomic_load(&p->most);
    while (now > most && !atomic_compare_exchange_weak(&p->most, &most, now))
        continue;
    atomic_fetch_add(&p->calls, 1);
    return OUTBOX_DONE;
}

/* stands_still blocks until all others are done. */
static outbox_verdict stands_still(const outbox_event *ev, outbox_tx *tx, void *ctx)
{
    struct guest *g = ctx;
    struct party *p = g->party;
    if (g->number > 0)
        return leaves_something(ev, tx, ctx);
    for (int i = 0; i < 3000 && atomic_load(&p->calls) < 5 * EVENTS; i++)
        usleep(10000);
    if (atomic_load(&p->calls) < 5 * EVENTS)
        atomic_fetch_add(&p->late, 1);
    return OUTBOX_DONE;
}

static void invite(outbox *ob, struct guest *g, int n, struct party *p, outbox_handler fn)
{
    for (int i = 0; i < n; i++) {
        outbox_consumer *c;
        g[i] = (struct guest){.party = p, .number = i};
        snprintf(g[i].name, sizeof g[i].name, "c%d", i);
        OK(outbox_consumer_new(ob, g[i].name, &c, &err));
        OK(outbox_add_handler(c, "h", "*", fn, &g[i], 0, &err));
    }
}

static void emit(outbox *ob)
{
    for (int i = 0; i < EVENTS; i++) {
        outbox_message m = OUTBOX_MESSAGE_INIT;
        m.type = "e";
        OK(outbox_emit(ob, &m, NULL, &err));
    }
}

static void fifty_handlers_share_four_connections_without_leaks(void **state)
{
    struct party p = {0};
    struct guest g[MANY];
    invite(*state, g, MANY, &p, leaves_something);
    emit(*state);
    OK(outbox_run(*state, OUTBOX_UNTIL_THROUGH, &err));
    assert_int_equal(p.calls, MANY * EVENTS);
    assert_int_equal(p.strange, 0);
    assert_in_range(p.most, 2, CONNECTIONS);
    PGconn *db = pg_connect();
    assert_int_equal(pg_number(db, "SELECT count(*) FROM handled"), MANY * EVENTS);
    PQfinish(db);
}

static void stalled_handler_does_not_block_others(void **state)
{
    struct party p = {0};
    struct guest g[6];
    invite(*state, g, 6, &p, stands_still);
    emit(*state);
    OK(outbox_run(*state, OUTBOX_UNTIL_THROUGH, &err));
    assert_int_equal(p.calls, 5 * EVENTS);
    assert_int_equal(p.late, 0);
    assert_in_range(p.most, 2, CONNECTIONS + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(fifty_handlers_share_four_connections_without_leaks, fresh,
                                        done),
        cmocka_unit_test_setup_teardown(stalled_handler_does_not_block_others, fresh, done),
    };
    return cmocka_run_group_tests_name("pool_pg", tests, NULL, NULL);
}
