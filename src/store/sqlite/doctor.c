/* doctor.c: what can be wrong with a SQLite file and the outbox in it. Reads only. */
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/text.h"
#include "store/sqlite/sqlite.h"

#define SPACE_MIN (INT64_C(256) << 20) /* free bytes below which somebody should look */
/* of the write-ahead log, which is a few MiB where all is well */
#define LOG_MAX (INT64_C(256) << 20)

static void say(const struct doctor_request *req, enum finding_level level, const char *name,
                const char *text, const char *advice)
{
    struct finding f = {.level = level, .name = name, .text = text, .advice = advice};
    req->visit(req->ctx, &f);
}

static int journal(struct sqlite_store *st, const struct doctor_request *req, struct error *err)
{
    sqlite3_stmt *q = sqlite_query(st, err, "PRAGMA journal_mode", "");
    if (!q || sqlite_step(st, q, err) < 0)
        return -1;
    char text[160];
    struct str mode = sqlite_text(q, 0);
    bool wal = mode.p && strcmp(mode.p, "wal") == 0;
    snprintf(text, sizeof text, "journal mode is %s%s", mode.p ? mode.p : "unknown",
             wal ? "" : ": readers and writers wait for each other, and relays are not woken");
    sqlite3_reset(q);
    say(req, wal ? FINDING_OK : FINDING_WARNING, "journal", text,
        wal ? NULL
            : "run any command that writes, such as `outbox trim`: it switches to WAL where that "
              "is possible");
    return 0;
}

static void file(struct sqlite_store *st, const struct doctor_request *req)
{
    const char *path = sqlite3_db_filename(st->db, "main");
    char folder[4096], text[4400];
    snprintf(folder, sizeof folder, "%s", path ? path : "");
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = '\0';
    bool file_ok = sqlite3_db_readonly(st->db, "main") == 0;
    bool ok = file_ok && access(folder, W_OK) == 0;
    snprintf(text, sizeof text, "%s %s", file_ok && !ok ? folder : st->shown,
             ok ? "is writable"
                : "is not writable for this user: nothing can be emitted or delivered");
    say(req, ok ? FINDING_OK : FINDING_PROBLEM, "file", text,
        ok ? NULL : "give this user the right to write the file and its folder");
}

/* links: SQLite finds the write-ahead log by the file's name. Whoever opens it by another name does
 * not see what is in there, and ruins it. */
static void links(struct sqlite_store *st, const struct doctor_request *req)
{
    const char *path = sqlite3_db_filename(st->db, "main");
    struct stat s;
    if (!path || stat(path, &s) != 0 || s.st_nlink < 2)
        return;
    say(req, FINDING_WARNING, "file",
        "the file has more than one name (hard links); whoever opens it by another one ruins it",
        "make a copy in place of the link: with `sqlite3 FILE '.backup COPY'`, or VACUUM INTO");
}

/* positions: see claim_lane. */
static int positions(struct sqlite_store *st, const struct doctor_request *req, struct error *err)
{
    int r;
    sqlite3_stmt *q = sqlite_query(st, err,
                                   "SELECT name FROM outbox_consumer c WHERE lanes > (SELECT "
                                   "count(*) FROM outbox_lane l WHERE l.consumer = c.name AND "
                                   "l.lane < c.lanes) ORDER BY name",
                                   "");
    if (!q)
        return -1;
    while ((r = sqlite_step(st, q, err)) == 1) {
        char text[200], advice[200];
        const char *name = (const char *)sqlite3_column_text(q, 0);
        snprintf(text, sizeof text,
                 "consumer \"%.63s\" has lost its place, and gets nothing: rows of it in "
                 "outbox_lane are gone",
                 name);
        snprintf(advice, sizeof advice,
                 "restore them, or run `outbox consumers remove %.63s` and start it anew, where "
                 "you want it to",
                 name);
        say(req, FINDING_PROBLEM, "position", text, advice);
    }
    return r;
}

static void space(struct sqlite_store *st, const struct doctor_request *req)
{
    const char *path = sqlite3_db_filename(st->db, "main");
    char text[160], wal[4096];
    struct statvfs disk;
    struct stat log;
    if (!path || statvfs(path, &disk) != 0)
        return;
    int64_t avail = (int64_t)disk.f_bavail * (int64_t)disk.f_frsize;
    snprintf(text, sizeof text, "%lld MiB are free on the disk", (long long)(avail >> 20));
    say(req, avail < SPACE_MIN ? FINDING_WARNING : FINDING_OK, "space", text,
        avail < SPACE_MIN ? "make room: on a full disk nothing can be emitted" : NULL);
    snprintf(wal, sizeof wal, "%.4000s-wal", path);
    if (stat(wal, &log) != 0 || log.st_size <= LOG_MAX)
        return;
    snprintf(text, sizeof text, "the write-ahead log has %lld MiB", (long long)(log.st_size >> 20));
    say(req, FINDING_WARNING, "space", text,
        "find and end the process that keeps a read transaction open on the file");
}

static int claims(struct sqlite_store *st, const struct doctor_request *req, struct error *err)
{
    bool fine = true;
    int r;
    int64_t now = sqlite_now(st);
    sqlite3_stmt *q = sqlite_query(
        st, err,
        "SELECT consumer, count(*), min(locked_until), owner FROM outbox_claim WHERE "
        "locked_until <= ? GROUP BY consumer ORDER BY consumer",
        "i", now - req->patience_ms - 1);
    if (!q)
        return -1;
    while ((r = sqlite_step(st, q, err)) == 1) {
        char age[32], text[400];
        text_duration_show(clock_since(now, sqlite3_column_int64(q, 2)) / 1000 * 1000, age);
        snprintf(text, sizeof text,
                 "consumer \"%s\": %d claims of workers that vanished, the oldest ran out %s ago "
                 "(%s), and nobody takes over",
                 sqlite3_column_text(q, 0), sqlite3_column_int(q, 1), age,
                 sqlite3_column_text(q, 3));
        say(req, FINDING_WARNING, "claim", text,
            "start a relay that runs this consumer: it takes them over");
        fine = false;
    }
    if (r == 0 && fine)
        say(req, FINDING_OK, "claim", "none is left behind", NULL);
    return r;
}

/* numbers: see numbers.c. */
static int numbers(struct sqlite_store *st, const struct doctor_request *req, struct error *err)
{
    bool broken;
    int64_t at = 0;
    char when[CLOCK_RFC3339_SIZE], text[200];
    if (sqlite_numbers_broken(st, NULL, &broken, err) != 0)
        return -1;
    if (broken) {
        say(req, FINDING_WARNING, "numbers",
            "the numbers of events began again below what consumers have had: the table was "
            "emptied, or sqlite_sequence set "
            "back",
            "start a relay: it gives those events new numbers and delivers them; events that are "
            "kept may come again");
        return 0;
    }
    if (sqlite_number(st, err, &at,
                      "SELECT CAST(value AS INTEGER) FROM outbox_meta WHERE name = 'renumbered_at'",
                      "") != 0)
        return -1;
    if (at == 0)
        return 0;
    clock_rfc3339(at, when);
    snprintf(text, sizeof text,
             "at %s the numbers of events had begun again; events got new ones then, and some may "
             "have come twice",
             when);
    say(req, FINDING_NOTE, "numbers", text,
        "never empty sqlite_sequence: events that are delivered are removed by `trim`");
    return 0;
}

int sqlite_doctor(struct store *base, const struct doctor_request *req, struct error *err)
{
    struct sqlite_store *st = sqlite_of(base);
    struct schema_status s;
    if (st->memory)
        return 0;
    file(st, req);
    links(st, req);
    space(st, req);
    if (base->ops->schema_status(base, &s, NULL) != 0)
        return 0; /* who called has seen it, too */
    if (journal(st, req, err) != 0)
        return -1;
    if (s.there != s.known)
        return 0;
    if (numbers(st, req, err) != 0 || positions(st, req, err) != 0)
        return -1;
    return claims(st, req, err);
}
