/* absent.c: what the API asks of the MariaDB store, in a build that has none. */
#include "store/mariadb/handle.h"

bool mdb_is(const struct store *st)
{
    (void)st;
    return false;
}

struct st_mysql *mdb_handle(struct store *st)
{
    (void)st;
    return NULL;
}
