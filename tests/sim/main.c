/* main.c: sim [--seed N] [--seeds N] [--steps N] [--share N] [--trace] [--postgres | --mariadb]:
 * runs seeds, and prints the failing one and its error. --share N: N seeds, fewer in a short run
 * (../lib/rounds.h). */
#include <getopt.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../lib/rounds.h"
#include "../suite.h"
#include "sim.h"

#define STEPS 600
#define SEEDS 1000
/* Engine and stores have separate suites under sanitizers; here a few histories suffice. */
#define SANITIZED_PART (ROUNDS_SANITIZED ? 4 : 1)

static struct sim world;

/* The kinds of stores that this program was built with. */
static const struct backend *const backends[] = {
    &backend_sqlite,
    &backend_postgres,
#ifdef SIM_MARIADB
    &backend_mariadb,
#endif
};

static const struct backend *backend_named(const char *name)
{
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
        if (backends[i]->name && strcmp(backends[i]->name, name) == 0)
            return backends[i];
    fprintf(stderr, "this simulator was built without %s\n", name);
    exit(2);
}

static struct {
    uint64_t first, n;
    int steps;
} asked;

static double seconds(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void tell(const struct totals *t, double took)
{
    printf("# %llu seeds, %llu steps, %.0f steps/s\n", (unsigned long long)t->seeds,
           (unsigned long long)t->steps, (double)t->steps / took);
    printf(
        "# %llu claims (%llu lost), %llu settled, %llu arrivals, %llu dead letters, %llu effects\n",
        (unsigned long long)t->claims, (unsigned long long)t->lost_claims,
        (unsigned long long)t->settled, (unsigned long long)t->arrivals,
        (unsigned long long)t->dead, (unsigned long long)t->effects);
    /* The first loss, phantom or event out of order would have ended the run, so there are none to
     * count. */
    printf("# figures: {\"scenario\": \"sim: %llu histories%s\", \"events\": %llu, \"lost\": 0, "
           "\"phantoms\": 0, "
           "\"misordered\": 0, \"duplicates\": %llu, \"faults\": {",
           (unsigned long long)t->seeds, world.on->shown, (unsigned long long)t->events,
           (unsigned long long)t->repeats);
    for (int i = 0; i < FAULTS; i++)
        printf("%s\"%s\": %llu", i ? ", " : "", sim_faults[i], (unsigned long long)t->fault[i]);
    printf("}}\n");
}

/* The history of a seed has faults of every kind, then all of them end. A failure prints the
 * command that replays it. */
static void random_histories_never_break_a_guarantee(void **state)
{
    struct totals totals = {0};
    double start = seconds();
    (void)state;
    for (uint64_t s = asked.first; s < asked.first + asked.n; s++) {
        if (sim_run(&world, s, asked.steps, &totals))
            continue;
        printf("# at step %d: %s\n# replay: ./test --sim --seed %llu --steps %d%s%s\n", world.tick,
               world.why, (unsigned long long)s, asked.steps, world.on->name ? " --" : "",
               world.on->name ? world.on->name : "");
        fail();
    }
    tell(&totals, seconds() - start);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"seed", 1, NULL, 's'},     {"seeds", 1, NULL, 'n'},
                                            {"steps", 1, NULL, 't'},    {"trace", 0, NULL, 'v'},
                                            {"postgres", 0, NULL, 'p'}, {"mariadb", 0, NULL, 'm'},
                                            {"share", 1, NULL, 'h'},    {NULL, 0, NULL, 0}};
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_histories_never_break_a_guarantee)};
    uint64_t seeds = 0, part = SEEDS;
    int c;
    asked.first = asked.n = 1;
    asked.steps = STEPS;
    world.on = &backend_sqlite;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1)
        switch (c) {
        case 's': asked.first = strtoull(optarg, NULL, 10), seeds = seeds ? seeds : 1; break;
        case 'n': seeds = strtoull(optarg, NULL, 10); break;
        case 'h': part = (uint64_t)rounds_count(atol(optarg) / SANITIZED_PART, SEEDS); break;
        case 't': asked.steps = atoi(optarg); break;
        case 'v': world.trace = true; break;
        case 'p': world.on = backend_named("postgres"); break;
        case 'm': world.on = backend_named("mariadb"); break;
        default: return 2;
        }
    asked.n = seeds ? seeds : part;
    sqlite3_config(
        /* The simulator has one thread; locks and counters took a seventh of its time. */
        SQLITE_CONFIG_SINGLETHREAD);
    sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
    int failed = cmocka_run_group_tests_name("sim", tests, NULL, NULL);
    if (world.on->clean)
        world.on->clean();
    return failed;
}
