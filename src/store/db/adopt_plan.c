/* adopt_plan.c: what adopting a table comes to, by what was done with it before. */
#include <stdio.h>
#include <string.h>

#include "store/db/adopt.h"
#include "store_sql.h"

int db_adopt_look(const struct source *s, const char *trigger, struct adopted *ret,
                  struct error *err)
{
    int64_t there = 0, once = 0, alike = 0;
    const struct db_number wanted[] = {
        {&there, SQL(is_adopted, .source = s->name, .trigger = trigger, .schema = s->schema)},
        {&once, SQL(was_adopted, .source = s->name)},
        {&alike, SQL(adopted_alike, .source = s->name, .mapping = s->mapping.p,
                     .mark = s->req->mark, .consumer = s->req->consumer)},
    };
    if (db_values(s->st, err, wanted, sizeof wanted / sizeof *wanted) != 0)
        return -1;
    *ret = (struct adopted){.there = there != 0, .once = once != 0, .alike = alike != 0};
    return 0;
}

/* check_existing refuses a request that would copy existing rows twice, or that leaves open what to
 * do with them. */
static int check_existing(const struct source *s, const struct adopted *was, struct error *err)
{
    const char *existing = s->req->existing;
    bool copy = existing && strcmp(existing, "copy") == 0;
    if (was->there && copy)
        return err_set(err, ERR_CONFLICT,
                       "table %.100s is adopted: its rows became events when it was, and copied "
                       "again they would be delivered twice; leave existing out, or undo "
                       "the adoption first",
                       s->name);
    if (!was->there && was->once && !existing)
        return err_set(err, ERR_CONFLICT,
                       "table %.100s was adopted before, and which of its rows became events then "
                       "cannot be told; existing copy makes events of all that are not processed, "
                       "existing skip begins with new ones",
                       s->name);
    return 0;
}

int db_adopt_plan(const struct source *s, const struct adopted *was, struct adopt_result *ret,
                  bool *ret_copies, struct error *err)
{
    if (check_existing(s, was, err) != 0)
        return -1;
    snprintf(ret->mapping, sizeof(ret->mapping), "%s", s->mapping.p);
    ret->changed = !was->there || !was->alike;
    ret->other_columns = was->there && !was->alike;
    bool skip = s->req->existing && strcmp(s->req->existing, "skip") == 0;
    *ret_copies = !was->there && !skip;
    return 0;
}
