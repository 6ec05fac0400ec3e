/* The store contract on PostgreSQL, and what only PostgreSQL promises. */
#include "pg.h"
#include "pg_tests.h"

static struct store *fresh(const struct store_options *opt)
{
    return pg_fresh(opt, true);
}

int main(void)
{
    static const struct store_case postgres = {"store_postgres", fresh, pg_clean};
    const struct store_tests parts[] = {pg_random_tests, pg_bell_tests};
    struct CMUnitTest own[32];
    size_t n = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (size_t j = 0; j < parts[i].n; j++) own[n++] = parts[i].tests[j];
    return store_suite_run(&postgres, own, n);
}
