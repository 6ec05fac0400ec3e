/* doctor.c: checks on the consumers of an outbox, for SQLite and MariaDB. */
#include <stdio.h>

#include "base/text.h"
#include "store/db/db.h"
#include "store_sql.h"

#define LOOK_ROWS 10000 /* how many of a table's rows are looked at */

void db_doctor_say(const struct doctor_request *req, enum finding_level level, const char *name,
                   const char *text, const char *advice)
{
    struct finding f = {.level = level, .name = name, .text = text, .advice = advice};
    req->visit(req->ctx, &f);
}

int db_doctor_lost(struct store *st, const struct doctor_request *req, struct error *err)
{
    char text[300];
    int r;
    struct db_rows q = db_rows(st, err, SQL(lost_parked, .max = LOOK_ROWS));
    while ((r = db_step(&q, err)) == 1) {
        snprintf(text, sizeof text,
                 "consumer \"%.63s\": %lld events that wait for it were deleted, the first is %lld",
                 db_text(&q, 0).p, (long long)db_int(&q, 1), (long long)db_int(&q, 2));
        db_doctor_say(req, FINDING_PROBLEM, "lost", text,
                      "bring them back from a backup, or emit them again");
    }
    return r;
}

/* Reports consumers that have lost their position; see db_fresh_find. */
static int lost_places(struct store *st, const struct doctor_request *req, struct error *err)
{
    int r;
    struct db_rows q = db_rows(st, err, SQL(lost_places));
    while ((r = db_step(&q, err)) == 1) {
        char text[200], advice[200];
        const char *name = db_text(&q, 0).p;
        snprintf(text, sizeof text,
                 "consumer \"%.63s\" has lost its place, and gets nothing: rows of it in "
                 "outbox_lane are gone",
                 name);
        snprintf(advice, sizeof advice,
                 "restore them, or run `outbox consumers remove %.63s` and start it again where "
                 "you want it",
                 name);
        db_doctor_say(req, FINDING_PROBLEM, "position", text, advice);
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
        char age[32], text[400];
        text_duration_show(clock_since(now, db_int(&q, 2)) / 1000 * 1000, age);
        snprintf(
            text, sizeof text,
            "consumer \"%.63s\": %d claims of workers that vanished, the oldest ran out %s ago "
            "(%.100s), and no relay takes them over",
            db_text(&q, 0).p, (int)db_int(&q, 1), age, db_text(&q, 3).p);
        db_doctor_say(req, FINDING_WARNING, "claim", text,
                      "start a relay that runs this consumer: it takes them over");
        fine = false;
    }
    if (r == 0 && fine)
        db_doctor_say(req, FINDING_OK, "claim", "none is left behind", NULL);
    return r;
}
