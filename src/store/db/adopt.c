/* adopt.c: application tables whose rows become events. A trigger turns each inserted row into an
 * event, in the same transaction. On request, rows are marked as processed once a consumer has
 * received them, in the transaction that settles the delivery. */
#include "store/db/adopt.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "store_sql.h"

/* ---- the mark ---- */

int db_adopt_is_marked(const struct source *s, bool *ret, struct error *err)
{
    int64_t marked = 0;
    if (db_value(s->st, err, &marked, SQL(is_marked, .source = s->name)) != 0)
        return -1;
    *ret = marked != 0;
    return 0;
}

int db_adopt_forget_mark(const struct source *s, struct error *err)
{
    if (db_run(s->st, err, SQL(forget_rows, .source = s->name)) != 0)
        return -1;
    return db_run(s->st, err, SQL(forget_mark, .source = s->name));
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

/* Relies on outcomes being in batch order. */
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

/* ---- planning ---- */

/* Reads the state of an earlier adoption of the table. */
static int look_back(const struct source *s, struct adopted *ret, struct error *err)
{
    char trigger[ADOPT_TRIGGER_TEXT];
    int64_t there = 0, once = 0, alike = 0;
    s->st->ops->driver->adopt->trigger_name(s, trigger);
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

/* Refuses a request that would copy existing rows twice, or that does not say what to do with
 * them. */
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

/* ---- adopting ---- */

static int undo(struct source *s, struct adopt_result *ret, struct error *err)
{
    struct adopted was;
    buf_adds(&s->mapping, "");
    if (look_back(s, &was, err) != 0)
        return -1;
    ret->changed = was.there;
    return s->req->dry_run ? 0 : s->st->ops->driver->adopt->undo(s, was.there, err);
}

/* Adopts the table, or only reports in ret what that would do. All checks come before the first
 * change. */
static int adopt(struct source *s, struct adopt_result *ret, struct error *err)
{
    const struct adopt_driver *d = s->st->ops->driver->adopt;
    struct adopted was;
    if (db_source_map(s, err) != 0)
        return -1;
    if (d->check(s, err) != 0)
        return -1;
    if (s->req->drop_mark) {
        if (db_adopt_is_marked(s, &ret->changed, err) != 0)
            return -1;
        return s->req->dry_run || !ret->changed ? 0 : d->drop_mark(s, err);
    }

    if (look_back(s, &was, err) != 0)
        return -1;
    if (check_existing(s, &was, err) != 0)
        return -1;
    bool skip = s->req->existing && strcmp(s->req->existing, "skip") == 0;
    bool copies = !was.there && !skip;
    snprintf(ret->mapping, sizeof ret->mapping, "%s", s->mapping.p);
    ret->changed = !was.there || !was.alike;
    ret->other_columns = was.there && !was.alike;

    if (s->req->dry_run)
        return copies ? d->count(s, &ret->copied, err) : 0;
    return ret->changed ? d->adopt(s, &was, copies, ret, err) : 0;
}

static int serve(struct source *s, struct adopt_result *ret, struct error *err)
{
    if (db_source_find(s, err) != 0)
        return -1;
    return s->req->undo ? undo(s, ret, err) : adopt(s, ret, err);
}

static int serve_at_once(struct source *s, struct adopt_result *ret, struct error *err)
{
    if (db_begin(s->st, err) != 0)
        return -1;
    int r = serve(s, ret, err);
    if (r == 0 && !s->req->dry_run)
        return db_commit(s->st, err);
    db_rollback(s->st);
    return r;
}

int db_adopt(struct store *st, const struct adopt_request *req, struct adopt_result *ret,
             struct error *err)
{
    const struct adopt_driver *d = st->ops->driver->adopt;
    struct source s = {.st = st, .req = req};
    struct adopt_result res = {0};
    if (st->ops->driver->schema)
        s.schema = st->ops->driver->schema(st);
    arena_init(&s.a, 0);
    buf_init(&s.mapping, 1 << 20);
    int r = d->one_transaction ? serve_at_once(&s, &res, err) : serve(&s, &res, err);
    buf_release(&s.mapping);
    arena_release(&s.a);
    if (r == 0)
        *ret = res;
    return r;
}
