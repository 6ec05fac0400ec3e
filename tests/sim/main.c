/* main.c: sim [--seed N] [--seeds N] [--steps N] [--trace] [--bug NAME]: runs seeds, and says which one failed, and how.
 * --bug, where it is built with deliberate bugs, turns one of them on. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/bug.h"
#include "sim.h"

#define STEPS 600

static struct sim world;
static const char *bug = "";

#ifdef OUTBOX_BUGS
bool bug_is(const char *name)
{
    return strcmp(bug, name) == 0;
}
#endif

struct run {
    uint64_t first, n;
    int steps;
};

static double seconds(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void tell(const struct totals *t, double took)
{
    printf("# %llu seeds, %llu steps, %.0f steps/s\n", (unsigned long long)t->seeds, (unsigned long long)t->steps,
           (double)t->steps / took);
    printf(
        "# %llu events, %llu claims (%llu lost), %llu settled, %llu arrivals (%llu repeats), %llu dead letters, %llu "
        "effects\n# faults:",
        (unsigned long long)t->events, (unsigned long long)t->claims, (unsigned long long)t->lost_claims,
        (unsigned long long)t->settled, (unsigned long long)t->arrivals, (unsigned long long)t->repeats,
        (unsigned long long)t->dead, (unsigned long long)t->effects);
    for (int i = 0; i < FAULTS; i++) printf("%s %llu %s", i ? "," : "", (unsigned long long)t->fault[i], sim_faults[i]);
    printf("\n");
}

static int run(const struct run *o)
{
    struct totals totals = {0};
    double start = seconds();
    for (uint64_t s = o->first; s < o->first + o->n; s++) {
        if (sim_run(&world, s, o->steps, &totals)) continue;
        printf("not ok 1 - sim\n# at step %d: %s\n# replay: ./test --sim --seed %llu --steps %d%s%s\n", world.tick,
               world.why, (unsigned long long)s, o->steps, *bug ? " --bug " : "", bug);
        return 1;
    }
    tell(&totals, seconds() - start);
    printf("ok 1 - %llu histories break no guarantee\n", (unsigned long long)o->n);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"seed", 1, NULL, 's'},  {"seeds", 1, NULL, 'n'}, {"steps", 1, NULL, 't'},
                                            {"trace", 0, NULL, 'v'}, {"bug", 1, NULL, 'b'},   {NULL, 0, NULL, 0}};
    struct run o = {1, getenv("OUTBOX_SOAK") ? 100000 : 1000, STEPS};
    int c;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) switch (c) {
        case 's': o.first = strtoull(optarg, NULL, 10), o.n = 1; break;
        case 'n': o.n = strtoull(optarg, NULL, 10); break;
        case 't': o.steps = atoi(optarg); break;
        case 'b': bug = optarg; break;
        case 'v': world.trace = true; break;
        default: return 2;
        }
    printf("1..1\n");
    return run(&o);
}
