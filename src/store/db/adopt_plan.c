/* adopt_plan.c: what adopting a table comes to, by what was done with it before. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
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

int db_mark_check(const struct source *s, struct error *err)
{
    const char *mark = s->req->mark, *id = s->of[F_ID];
    int64_t unique = 0;
    if (!mark)
        return 0;
    if (db_source_column(s, mark) < 0)
        return err_set(err, ERR_NOTFOUND,
                       "table %.100s has no column %.100s, which would be marked", s->name, mark);
    if (!id)
        return err_set(
            err, ERR_CONFIG,
            "rows of %.100s can be marked only by a column that tells them apart: --column id=NAME",
            s->name);
    if (db_value(s->st, err, &unique,
                 SQL(is_unique, .schema = s->schema, .source = s->name, .name = id)) != 0)
        return -1;
    if (!unique)
        return err_set(err, ERR_CONFIG,
                       "rows of %.100s cannot be marked: its column %.100s does not tell its rows "
                       "apart; name one that does, a primary key or a UNIQUE column: --column "
                       "id=NAME",
                       s->name, id);
    return store_name_check(s->req->consumer, err);
}

/* db_delivered_ids counts on it that outcomes stand in the order of the batch. */
size_t db_delivered_ids(const struct settlement *s, struct buf *b)
{
    size_t n = 0, k = 0;
    buf_addc(b, '[');
    for (size_t i = 0; i < s->b->n; i++) {
        const struct event *ev = &s->b->ev[i];
        bool named = k < s->n && s->out[k].ev->seq == ev->seq;
        bool failed = named && s->out[k].kind != OUTCOME_DELIVERED;
        bool given_back = s->release_from && ev->seq >= s->release_from;
        if (named)
            k++;
        if (failed || given_back)
            continue;
        if (n > 0)
            buf_addc(b, ',');
        json_quote(b, ev->id);
        n++;
    }
    buf_addc(b, ']');
    return n;
}
