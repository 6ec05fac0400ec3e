/* The store contract on MariaDB, and what only MariaDB promises. */
#include "maria.h"
#include "store_impl.h"

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
    return store_suite_run(&mariadb, NULL, 0);
}
