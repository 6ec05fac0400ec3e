/* schema.c: the version of the tables in the database, and checks of the outbox. */
#include <stdarg.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/text.h"
#include "store/db/db.h"
#include "store_sql.h"

int db_schema_version(struct store *st, int64_t *ret, struct error *err)
{
    const char *schema = db_of(st)->schema;
    int64_t event = 0, meta = 0;
    *ret = 0;
    if (DB_VALUES(st, err, {&event, SQL(has_table, .schema = schema, .name = "outbox_event")},
                  {&meta, SQL(has_table, .schema = schema, .name = "outbox_meta")}) != 0)
        return -1;
    if (event && !meta)
        return err_set(err, ERR_NOTOURS,
                       "%s: the table outbox_event exists, but does not belong to an outbox%s",
                       db_of(st)->shown, st->ops->driver->not_ours);
    return meta ? db_value(st, err, ret, SQL(schema_version)) : 0;
}

int db_schema_known(struct store *st, int64_t *ret, struct error *err)
{
    int known = st->ops->driver->schema_version;
    if (db_schema_version(st, ret, err) != 0)
        return -1;
    if (*ret > known)
        return err_set(err, ERR_NEWER,
                       "%s: the outbox in it has version %lld, but this program knows only "
                       "versions up to %d; use a newer outbox",
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
                       "%s: no outbox in this database; create one with `outbox init`",
                       db_of(st)->shown);
    if (version < st->ops->driver->schema_version)
        return err_set(
            err, ERR_NOTOURS,
            "%s: the outbox in it has the older version %lld; upgrade it with `outbox init`",
            db_of(st)->shown, (long long)version);
    return 0;
}

void db_schema_drops(const char *script, const char *mark, const char *kind, struct buf *to)
{
    static const char unless[] = "IF NOT EXISTS ";
    const char *p = script;
    while ((p = strstr(p, mark))) {
        p += strlen(mark);
        if (strncmp(p, unless, strlen(unless)) == 0)
            p += strlen(unless);
        buf_addf(to, "DROP %s IF EXISTS %.*s;\n", kind, (int)strcspn(p, " (\n"), p);
    }
}

/* ---- doctor ---- */

void db_doctor_say(const struct doctor_request *req, enum finding_level level, const char *name,
                   const char *advice, const char *fmt, ...)
{
    char text[1500];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    struct finding f = {.level = level, .name = name, .text = text, .advice = advice};
    req->visit(req->ctx, &f);
}

int db_doctor_lost(struct store *st, const struct doctor_request *req, struct error *err)
{
    int r;
    struct db_rows q = db_rows(st, err, SQL(lost_parked, .max = DOCTOR_ROWS));
    while ((r = db_step(&q, err)) == 1) {
        db_doctor_say(
            req, FINDING_PROBLEM, "lost", "restore them from a backup, or emit them again",
            "consumer \"%.63s\": %lld events that wait for it were deleted, the first is %lld",
            db_text(&q, 0).p, (long long)db_int(&q, 1), (long long)db_int(&q, 2));
    }
    return r;
}

/* Reports consumers that have lost their position; see db_fresh_find. */
static int lost_places(struct store *st, const struct doctor_request *req, struct error *err)
{
    int r;
    struct db_rows q = db_rows(st, err, SQL(lost_places));
    while ((r = db_step(&q, err)) == 1) {
        char advice[200];
        const char *name = db_text(&q, 0).p;
        snprintf(advice, sizeof advice,
                 "restore them, or run `outbox consumers remove %.63s` and start it again where "
                 "you want it",
                 name);
        db_doctor_say(req, FINDING_PROBLEM, "position", advice,
                      "consumer \"%.63s\" has lost its place, and gets nothing: rows of it in "
                      "outbox_lane are gone",
                      name);
    }
    return r;
}

int db_doctor_consumers(struct store *st, const struct doctor_request *req, struct error *err)
{
    bool fine = true;
    int r;
    if (lost_places(st, req, err) != 0)
        return -1;
    int64_t now = db_now(st), before = now - req->patience_ms - 1;
    struct db_rows q = db_rows(st, err, SQL(vanished_claims, .before = before));
    while ((r = db_step(&q, err)) == 1) {
        char age[32];
        text_duration_show(clock_since(now, db_int(&q, 2)) / 1000 * 1000, age);
        db_doctor_say(
            req, FINDING_WARNING, "claim",
            "start a relay that runs this consumer: it takes them over",
            "consumer \"%.63s\": %d claims of workers that vanished, the oldest ran out %s ago "
            "(%.100s), and no relay takes them over",
            db_text(&q, 0).p, (int)db_int(&q, 1), age, db_text(&q, 3).p);
        fine = false;
    }
    if (r == 0 && fine)
        db_doctor_say(req, FINDING_OK, "claim", NULL, "none is left behind");
    return r;
}
