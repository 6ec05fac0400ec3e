/* durable.c: what is handed out is on the disk first.
 *
 * A producer may have `PRAGMA synchronous = OFF`, and its commit may be in the kernel's memory
 * only. The commit of our claim syncs the write-ahead log, and with it whatever stands before it in
 * there: enough, as long as the producer's commit still is in the log. If somebody who does not
 * sync has copied the log into the database and begun it anew, it is in the database, unsynced. */
#include "store/sqlite/sqlite.h"

static sqlite3_file *file_of(struct sqlite_store *st, int which)
{
    sqlite3_file *f = NULL;
    int rc = sqlite3_file_control(st->db, "main", which, &f);
    return rc == SQLITE_OK && f && f->pMethods ? f : NULL;
}

int sqlite_durable(struct sqlite_store *st, struct error *err)
{
    /* Of the log's header: how often it was begun anew, and two numbers that change each time. */
    unsigned char life[SQLITE_LOG_LIFE] = {0};
    const int at = 12;
    if (st->memory)
        return 0;
    sqlite3_file *log = file_of(st, SQLITE_FCNTL_JOURNAL_POINTER),
                 *db = file_of(st, SQLITE_FCNTL_FILE_POINTER);
    if (!log || !db)
        return 0; /* without a log each commit of ours syncs the database */
    if (log->pMethods->xRead(log, life, sizeof life, at) != SQLITE_OK)
        memset(life, 0, sizeof life);
    if (st->synced && memcmp(life, st->log_life, sizeof life) == 0)
        return 0;

    int rc = db->pMethods->xSync(db, SQLITE_SYNC_NORMAL);
    if (rc != SQLITE_OK)
        return err_fate(
            err, ERR_UNAVAILABLE, FATE_RETRY, rc,
            "%s: could not be synced to its disk, and what is not there for sure is not delivered",
            st->shown);
    memcpy(st->log_life, life, sizeof life);
    st->synced = true;
    return 0;
}
