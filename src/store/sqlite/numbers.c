/* numbers.c: event numbers that began again. Positions rely on each number being given once. A
 * table that was emptied together with sqlite_sequence, or copied by a tool that leaves that out,
 * gives numbers again that consumers have passed. Those events would never be handed out, or be
 * taken for others that are parked or dead under the same number. */
#include "store/sqlite/sqlite.h"
#include "store_sql.h"

int sqlite_numbers_broken(struct sqlite_store *st, const char *consumer, bool *ret,
                          struct error *err)
{
    int64_t found = 0;
    int r;
    if (consumer)
        r = sqlite_value(st, err, &found, SQL(numbers_broken_for, .consumer = consumer));
    else
        r = sqlite_value(st, err, &found, SQL(numbers_broken));
    if (r != 0)
        return -1;
    *ret = found != 0;
    return 0;
}

/* set_sequence makes new events get numbers beyond all that exist, and beyond base. */
static int set_sequence(struct sqlite_store *st, int64_t base, struct error *err)
{
    int64_t top = 0;
    if (sqlite_value(st, err, &top, SQL(last_event)) != 0)
        return -1;
    if (top < base)
        top = base;
    if (sqlite_run(st, err, SQL(forget_sequence)) != 0)
        return -1;
    return sqlite_run(st, err, SQL(set_sequence, .top = top));
}

int sqlite_numbers_repair(struct sqlite_store *st, int64_t *ret_events, int64_t *ret_from,
                          struct error *err)
{
    int64_t base = 0, now = sqlite_now(st);
    *ret_from = 0;
    if (sqlite_value(st, err, &base, SQL(highest_number)) != 0)
        return -1;
    if (sqlite_run(st, err, SQL(allow_changes)) != 0)
        return -1;
    if (sqlite_run(st, err, SQL(renumber, .base = base)) != 0)
        return -1;
    *ret_events = sqlite3_changes64(st->db);
    if (sqlite_run(st, err, SQL(refuse_changes)) != 0)
        return -1;
    if (sqlite_value(st, err, ret_from, SQL(first_event)) != 0)
        return -1;
    if (set_sequence(st, base, err) != 0)
        return -1;

    if (sqlite_run(st, err, SQL(unpark_nowhere)) != 0)
        return -1;
    if (sqlite_run(st, err, SQL(promote_all, .now = now)) != 0)
        return -1;
    return sqlite_run(st, err, SQL(note_renumbered, .now = now));
}

int sqlite_numbers_keep(struct sqlite_store *st, struct error *err)
{
    bool broken;
    int64_t events, from;
    if (sqlite_numbers_broken(st, NULL, &broken, err) != 0)
        return -1;
    if (!broken)
        return 0;
    return sqlite_numbers_repair(st, &events, &from, err);
}
