/* adopt.c: why a table cannot be adopted here, and what to do instead. */
#include "store/mariadb/mariadb.h"

/* mdb_adopt refuses. A trigger cannot be made in one transaction with the events of the rows that
 * are there, since MariaDB commits by itself before and after; broken off in between, it would lose
 * rows or deliver them twice, and nobody could tell. */
int mdb_adopt(struct store *base, const struct adopt_request *req, struct adopt_result *ret,
              struct error *err)
{
    (void)ret;
    return err_set(
        err, ERR_CONFIG,
        "%s: table %.100s cannot be adopted: MariaDB commits by itself when a trigger is "
        "made, so this cannot be done in one step with the rows that are there; "
        "docs/mariadb.md, under \"A table of your own\", has statements that can be "
        "repeated until they are through",
        mdb_of(base)->shown, req->table);
}
