/* sqlite_work.c: how much work SQLite has. It is counted in the instructions of its virtual
 * machine, which are the same on any computer. */
#include "lite.h"
#include "sqlite_tests.h"

#define STEP 10 /* instructions from one count to the next */

static int count_step(void *ctx)
{
    ++*(int64_t *)ctx;
    return 0;
}

/* bury_all makes dead letters of n events of consumer c, each of another key. */
static void bury_all(struct store_rig *g, int n)
{
    struct outcome out[100];
    for (int i = 0; i < n; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i);
        emit(g->st, key);
    }
    while (claim(g, "c") > 0) {
        assert_true(g->b.n <= COUNT(out));
        for (size_t i = 0; i < g->b.n; i++)
            out[i] = dead(g, i, 1);
        assert_true(settle(g, "c", out, g->b.n));
    }
}

/* redelivered sends back n letters, delivers them, and returns what that took. */
static int64_t redelivered(struct store_rig *g, int n)
{
    int64_t steps = 0;
    int delivered = 0;
    bury_all(g, n);
    sqlite3_progress_handler(sqlite_handle(g->st), STEP, count_step, &steps);
    assert_int_equal(retry_dead(g, (struct dead_query){.consumer = "c"}), n);
    while (claim(g, "c") > 0) {
        delivered += (int)g->b.n;
        assert_true(settle(g, "c", NULL, 0));
    }
    sqlite3_progress_handler(sqlite_handle(g->st), 0, NULL, NULL);
    assert_int_equal(delivered, n);
    return steps;
}

static void letters_that_are_sent_back_cost_the_same_however_many_there_are(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    int64_t few = redelivered(g, 200), many = redelivered(g, 1600);
    if (many > 10 * few)
        fail_msg("200 letters take %lld steps, 1,600 take %lld", (long long)few, (long long)many);
}

static const struct CMUnitTest tests[] = {
    ON_A_STORE(letters_that_are_sent_back_cost_the_same_however_many_there_are),
};
const struct suite_part sqlite_work_tests = SUITE_PART(tests);
