/* schema.c: the version of the tables in the database. */
#include "store/db/db.h"
#include "store_sql.h"

int db_schema_version(struct store *st, int64_t *ret, struct error *err)
{
    const struct db_driver *d = st->ops->driver;
    const char *schema = d->schema ? d->schema(st) : NULL;
    int64_t event = 0, meta = 0;
    *ret = 0;
    if (db_value(st, err, &event, SQL(has_table, .schema = schema, .name = "outbox_event")) != 0)
        return -1;
    if (db_value(st, err, &meta, SQL(has_table, .schema = schema, .name = "outbox_meta")) != 0)
        return -1;
    if (event && !meta)
        return err_set(err, ERR_NOTOURS, "%s: has a table outbox_event that is not ours%s",
                       db_of(st)->shown, d->not_ours);
    return meta ? db_value(st, err, ret, SQL(schema_version)) : 0;
}

int db_schema_known(struct store *st, int64_t *ret, struct error *err)
{
    int known = st->ops->driver->schema_version;
    if (db_schema_version(st, ret, err) != 0)
        return -1;
    if (*ret > known)
        return err_set(err, ERR_NEWER,
                       "%s: the outbox in it has version %lld, this program knows up to %d; use a "
                       "newer outbox",
                       db_of(st)->shown, (long long)*ret, known);
    return 0;
}

int db_schema_check(struct store *st, struct error *err)
{
    int64_t version;
    if (db_schema_known(st, &version, err) != 0)
        return -1;
    if (version == 0)
        return err_set(err, ERR_NOTOURS,
                       "%s: no outbox in this database; make one with `outbox init`",
                       db_of(st)->shown);
    if (version < st->ops->driver->schema_version)
        return err_set(
            err, ERR_NOTOURS,
            "%s: the outbox in it has the older version %lld; upgrade it with `outbox init`",
            db_of(st)->shown, (long long)version);
    return 0;
}
