/* The store contract on PostgreSQL, and what only PostgreSQL promises. */
#include "pg.h"
#include "pg_tests.h"
#include "store_impl.h"

/* Once there may be no memory for it for a moment; an event there never is any for must not hold up all the others. */
static void event_there_is_never_memory_for_is_left_to_run_out(void **state)
{
    struct store_rig *g = *state;
    struct error err;
    struct arena small;
    struct claim_request req = request("c", "me");
    put(g->st, "c");
    emit(g->st, "1");
    for (int i = 0; look(g, "c").inflight == 0; i++) {
        assert_in_range(i, 0, 9);
        arena_init(&small, 64);
        assert_int_equal(g->st->ops->turn(g->st, NULL, NULL, &req, &small, &g->b, &g->hint, &err), -1);
        arena_release(&small);
    }
    emit(g->st, "2");
    pass(LEASE);
    assert_int_equal(claim(g, "c"), 1);
    assert_string_equal(g->b.ev[0].aggregate_id.p, "2");
    assert_true(settle(g, "c", NULL, 0));
    assert_int_equal(claim(g, "c"), 1);
    assert_string_equal(g->b.ev[0].aggregate_id.p, "1"); /* alone, and its attempt counts */
    assert_true(g->b.careful);
}

static struct store *fresh(const struct store_options *opt)
{
    return pg_fresh(opt, true);
}

int main(void)
{
    static const struct store_case postgres = {"store_postgres", fresh, pg_clean};
    const struct store_tests parts[] = {pg_random_tests, pg_bell_tests};
    struct CMUnitTest own[32] = {ON_A_STORE(event_there_is_never_memory_for_is_left_to_run_out)};
    size_t n = 1;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (size_t j = 0; j < parts[i].n; j++) own[n++] = parts[i].tests[j];
    return store_suite_run(&postgres, own, n);
}
