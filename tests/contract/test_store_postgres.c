/* The store contract on PostgreSQL, and what only PostgreSQL promises. */
#include "pg.h"
#include "store.h"

static struct store *fresh(const struct store_options *opt)
{
    return pg_fresh(opt, true);
}

int main(void)
{
    static const struct store_case postgres = {"store_postgres", fresh, pg_clean};
    return store_suite_run(&postgres, NULL, 0);
}
