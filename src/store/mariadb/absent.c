/* absent.c: stubs for a build without the MariaDB store. */
#include "store/handle.h"

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
