/* doctor.c: checks on a SQLite file and the outbox in it. It only reads. */
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/text.h"
#include "store/sqlite/sqlite.h"
#include "store_sql.h"

#define SPACE_MIN (INT64_C(256) << 20) /* free bytes that cause a warning */
#define LOG_MAX (INT64_C(256) << 20)   /* log size that causes a warning; a few MiB are normal */

/* ---- the file ---- */

static int journal(struct sqlite_store *st, const struct doctor_request *req, struct error *err)
{
    sqlite3_stmt *q = sqlite_plain(st, "PRAGMA journal_mode", err);
    if (sqlite_step(st, q, err) < 0)
        return -1;
    const char *mode = sqlite_text(q, 0).p;
    if (mode && strcmp(mode, "wal") == 0)
        db_doctor_say(req, FINDING_OK, "journal", NULL, "journal mode is wal");
    else
        db_doctor_say(
            req, FINDING_WARNING, "journal",
            "run any command that writes, such as `outbox trim`: it switches the file to WAL if "
            "possible",
            "journal mode is %s: readers and writers wait for each other, and relays are not woken",
            mode ? mode : "unknown");
    sqlite3_reset(q);
    return 0;
}

/* Reports a file that cannot be written, or has several names, a full disk, and a write-ahead log
 * that has grown too long. SQLite finds the log by the file's name: a process that opens the file
 * by another name does not see the content of the log, and corrupts the file. */
static void file(struct sqlite_store *st, const struct doctor_request *req)
{
    const char *path = sqlite3_db_filename(st->db, "main");
    char folder[4096], log[4096];
    struct statvfs disk;
    struct stat s;
    snprintf(folder, sizeof folder, "%s", path ? path : "");
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = '\0';

    bool file_ok = sqlite3_db_readonly(st->db, "main") == 0;
    if (file_ok && access(folder, W_OK) == 0)
        db_doctor_say(req, FINDING_OK, "file", NULL, "%s is writable", st->base.shown);
    else
        db_doctor_say(req, FINDING_PROBLEM, "file",
                      "give this user write permission for the file and its folder",
                      "%s is not writable by this user: nothing can be emitted or delivered",
                      file_ok ? folder : st->base.shown);
    if (path && stat(path, &s) == 0 && s.st_nlink > 1)
        db_doctor_say(
            req, FINDING_WARNING, "file",
            "replace the link with a copy, made by `sqlite3 FILE '.backup COPY'` or VACUUM INTO",
            "the file has more than one name (hard links); opening it under another name corrupts "
            "it");
    if (path && statvfs(path, &disk) == 0) {
        int64_t avail = (int64_t)disk.f_bavail * (int64_t)disk.f_frsize;
        bool enough = avail >= SPACE_MIN;
        db_doctor_say(req, enough ? FINDING_OK : FINDING_WARNING, "space",
                      enough ? NULL : "make room: on a full disk nothing can be emitted",
                      "%lld MiB are free on the disk", (long long)(avail >> 20));
    }
    snprintf(log, sizeof log, "%.4000s-wal", path ? path : "");
    if (path && stat(log, &s) == 0 && s.st_size > LOG_MAX)
        db_doctor_say(req, FINDING_WARNING, "space",
                      "find and stop the process that keeps a read transaction open on the file",
                      "the size of the write-ahead log is %lld MiB", (long long)(s.st_size >> 20));
}

/* ---- the outbox ---- */

#define GUARDS 3 /* triggers that keep events as they were inserted */

/* Reports that events can be changed, replaced or deleted, and events that were deleted too early,
 * as far as that can be detected. */
static int events(struct store *st, const struct doctor_request *req, struct error *err)
{
    int64_t there = 0, allowed = 0, keyed = 0;
    if (DB_VALUES(st, err, {&there, SQL(count_guards)}, {&allowed, SQL(changes_allowed)},
                  {&keyed, SQL(lost_keyed, .max = DOCTOR_ROWS)}) != 0)
        return -1;
    if (there < GUARDS)
        db_doctor_say(
            req, FINDING_PROBLEM, "insert-only",
            "create it again with its statement from `outbox migrate gen`",
            "a trigger on outbox_event is missing: INSERT OR REPLACE, UPDATE or DELETE can lose "
            "events silently");
    if (allowed > 0)
        db_doctor_say(req, FINDING_PROBLEM, "insert-only",
                      "DELETE FROM outbox_meta WHERE name = 'change_events'",
                      "events may be changed and deleted: outbox_meta has the row change_events");
    if (keyed > 0)
        db_doctor_say(
            req, FINDING_WARNING, "lost", "restore them from a backup, or emit them again",
            "%lld events with an idempotency key were deleted, but not by trim, which would have "
            "deleted the keys as well",
            (long long)keyed);
    return db_doctor_lost(st, req, err);
}

/* Reports event numbers that restarted, now or earlier; see turn.c. */
static int numbers(struct store *st, const struct doctor_request *req, struct error *err)
{
    int64_t broken = 0, at = 0;
    if (DB_VALUES(st, err, {&broken, SQL(numbers_broken)}, {&at, SQL(renumbered_at)}) != 0)
        return -1;
    if (broken) {
        db_doctor_say(
            req, FINDING_WARNING, "numbers",
            "start a relay: it renumbers those events and delivers them; events still stored may "
            "be delivered again",
            "event numbers restarted below those that consumers have received: the table was "
            "emptied, or sqlite_sequence was reset");
    } else if (at > 0) {
        char when[CLOCK_RFC3339_SIZE];
        clock_rfc3339(at, when);
        db_doctor_say(
            req, FINDING_NOTE, "numbers",
            "never empty sqlite_sequence: `trim` removes delivered events",
            "event numbers had restarted when the events were renumbered at %s; some may have "
            "been delivered twice",
            when);
    }
    return 0;
}

int sqlite_doctor(struct store *base, const struct doctor_request *req, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    struct schema_status s;
    if (st->memory)
        return 0;
    file(st, req);
    if (base->ops->schema_status(base, &s, NULL) != 0)
        return 0; /* the caller has already reported it */
    if (journal(st, req, err) != 0)
        return -1;
    if (s.there != s.known)
        return 0;
    if (numbers(base, req, err) != 0 || events(base, req, err) != 0)
        return -1;
    return db_doctor_consumers(base, req, err);
}
