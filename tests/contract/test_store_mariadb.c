/* The store contract on MariaDB, and what only MariaDB promises. */
#include <mysqld_error.h>

#include "maria.h"
#include "store/mariadb/handle.h"
#include "store_impl.h"

/* A statement that an application puts together from what strangers sent it must not become two. */
static void connection_of_the_application_takes_one_statement_at_a_time(void **state)
{
    struct store_rig *g = *state;
    put(g->st, "c");
    for (int i = 0; i < 2; i++) {
        emit(g->st, "k");
        assert_int_equal(claim(g, "c"), 1);
        assert_int_equal(maria_try(mdb_handle(g->st), "SELECT 1; SELECT 2"), ER_PARSE_ERROR);
        assert_true(settle(g, "c", NULL, 0));
    }
}

int main(void)
{
    static const char *const unsettling[] = {
        "SET SESSION tx_isolation = 'SERIALIZABLE', autocommit = 0, tx_read_only = 1",
        "SET NAMES latin1",
        "SET SESSION sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'",
        "USE information_schema",
        NULL,
    };
    static const struct store_case mariadb = {"store_mariadb", maria_fresh, maria_clean,
                                              maria_sneak, unsettling};
    static const struct CMUnitTest tests[] = {
        ON_A_STORE(connection_of_the_application_takes_one_statement_at_a_time),
    };
    const struct suite_part own[] = {SUITE_PART(tests)};
    return store_suite_run(&mariadb, own, COUNT(own));
}
