/* numbers.c: events whose numbers began again. Positions rest on it that a number is given once. A table that was emptied
 * together with sqlite_sequence, or copied by a tool that leaves that out, gives numbers again that consumers have passed: the
 * events would never be handed out, or be taken for others that are parked or dead under their number. */
#include "store/sqlite/sqlite.h"

/* A lane remembers the highest number it was handed, and the id of that event. If no number that high was ever given, or it
 * belongs to another event now, they have begun again. An event that is not there any more says nothing: it was trimmed. */
#define BEGAN_AGAIN \
    "(e.id <> l.high_id OR l.high > max(coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outbox_event'), 0), " \
    "coalesce((SELECT max(seq) FROM outbox_event), 0)))"

int sqlite_numbers_broken(struct sqlite_store *st, const char *consumer, bool *ret, struct error *err)
{
    int64_t found = 0;
    int r;
    if (consumer)
        r = sqlite_number(
            st, err, &found,
            "SELECT 1 FROM (SELECT high, high_id FROM outbox_lane WHERE consumer = ? ORDER BY high DESC LIMIT "
            "1) l LEFT JOIN outbox_event e ON e.seq = l.high WHERE " BEGAN_AGAIN,
            "s", consumer);
    else
        r = sqlite_number(
            st, err, &found,
            "SELECT 1 FROM outbox_lane l LEFT JOIN outbox_event e ON e.seq = l.high WHERE " BEGAN_AGAIN " LIMIT 1", "");
    if (r != 0) return -1;
    *ret = found != 0;
    return 0;
}

/* highest gives the highest number that anybody knows an event by. A position is not one: a consumer may be told to start
 * further ahead than events have come. */
static int highest(struct sqlite_store *st, int64_t *ret, struct error *err)
{
    *ret = 0;
    return sqlite_number(
        st, err, ret,
        "SELECT max(n) FROM (SELECT max(high) AS n FROM outbox_lane UNION ALL SELECT max(to_seq) FROM outbox_claim UNION "
        "ALL SELECT max(seq) FROM outbox_parked UNION ALL SELECT max(seq) FROM outbox_dead UNION ALL SELECT max(seq) FROM "
        "outbox_receipt UNION ALL SELECT max(seq) FROM outbox_ended UNION ALL SELECT max(seq) FROM outbox_event UNION ALL SELECT max(seq) FROM sqlite_sequence WHERE "
        "name = 'outbox_event')",
        "");
}

/* unpark forgets what is parked under numbers that lead nowhere now. What is with a worker is left to that one, and a dead
 * letter that was sent back has a copy of its own. */
static int unpark(struct sqlite_store *st, struct error *err)
{
    if (sqlite_exec(st, err,
                    "DELETE FROM outbox_parked WHERE claim IS NULL AND NOT EXISTS (SELECT 1 FROM outbox_dead d WHERE "
                    "d.consumer = outbox_parked.consumer AND d.seq = outbox_parked.seq AND d.retrying = 1)",
                    "") != 0)
        return -1;
    return sqlite_exec(st, err, "UPDATE outbox_parked SET due_at = ? WHERE claim IS NULL AND due_at IS NULL", "i",
                       sqlite_now(st));
}

/* Which of the events are new cannot be told, so all get numbers past everything known, in their order. */
int sqlite_numbers_repair(struct sqlite_store *st, int64_t *ret_events, int64_t *ret_from, struct error *err)
{
    int64_t base, top = 0;
    *ret_from = 0;
    if (highest(st, &base, err) != 0) return -1;
    if (sqlite_exec(st, err, "UPDATE outbox_event SET seq = seq + ?", "i", base) != 0) return -1;
    *ret_events = sqlite3_changes64(st->db);
    if (sqlite_number(st, err, ret_from, "SELECT min(seq) FROM outbox_event", "") != 0) return -1;
    if (sqlite_number(st, err, &top, "SELECT max(seq) FROM outbox_event", "") != 0) return -1;
    if (top < base) top = base;
    if (sqlite_exec(st, err, "DELETE FROM sqlite_sequence WHERE name = 'outbox_event'", "") != 0) return -1;
    if (sqlite_exec(st, err, "INSERT INTO sqlite_sequence (name, seq) VALUES ('outbox_event', ?)", "i", top) != 0)
        return -1;
    if (unpark(st, err) != 0) return -1;
    return sqlite_exec(st, err, "INSERT OR REPLACE INTO outbox_meta (name, value) VALUES ('renumbered_at', ?)", "i",
                       sqlite_now(st));
}

int sqlite_numbers_keep(struct sqlite_store *st, struct error *err)
{
    bool broken;
    int64_t events, from;
    if (sqlite_numbers_broken(st, NULL, &broken, err) != 0) return -1;
    return broken ? sqlite_numbers_repair(st, &events, &from, err) : 0;
}
