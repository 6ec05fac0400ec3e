/* doctor.c: what can be wrong with an outbox in MariaDB. */
#include "mdb_sql.h"
#include "store/mariadb/mariadb.h"

int mdb_doctor(struct store *base, const struct doctor_request *req, struct error *err)
{
    (void)base;
    (void)req;
    (void)err;
    return 0;
}
