/* durable.c: what is handed out is on disk first.
 *
 * A producer may have set `PRAGMA synchronous = OFF`, so its commit may be in the kernel's memory
 * only. The commit of our claim syncs the write-ahead log, and with it everything before it in the
 * log. That is enough as long as the producer's commit still is in the log. If somebody who does
 * not sync has copied the log into the database and started it over, the commit is in the database,
 * unsynced. */
#include "store/sqlite/sqlite.h"

#define LIFE_AT 12 /* in the log's header: how often it was started over, and two salts */

static sqlite3_file *file_of(struct sqlite_store *st, int which)
{
    sqlite3_file *f = NULL;
    int rc = sqlite3_file_control(st->db, "main", which, &f);
    bool open = rc == SQLITE_OK && f && f->pMethods;
    return open ? f : NULL;
}

int sqlite_durable(struct sqlite_store *st, struct error *err)
{
    unsigned char life[SQLITE_LOG_LIFE] = {0};
    if (st->memory)
        return 0;
    sqlite3_file *log = file_of(st, SQLITE_FCNTL_JOURNAL_POINTER);
    sqlite3_file *db = file_of(st, SQLITE_FCNTL_FILE_POINTER);
    if (!log || !db)
        return 0; /* without a log each commit of ours syncs the database */
    if (log->pMethods->xRead(log, life, sizeof life, LIFE_AT) != SQLITE_OK)
        memset(life, 0, sizeof life);
    bool same_life = memcmp(life, st->log_life, sizeof life) == 0;
    if (st->synced && same_life)
        return 0;

    int rc = db->pMethods->xSync(db, SQLITE_SYNC_NORMAL);
    if (rc != SQLITE_OK)
        return err_class(
            err, ERR_UNAVAILABLE, CLASS_RETRY, rc,
            "%s: could not be synced to disk; events are delivered only once they are safely there",
            st->shown);
    memcpy(st->log_life, life, sizeof life);
    st->synced = true;
    return 0;
}
