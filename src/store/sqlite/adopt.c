/* adopt.c: tables of the application whose rows become events. A trigger makes an event of each row
 * that is inserted, in the same transaction. If asked to, the row is marked as processed once a
 * consumer has had it, in the transaction that settles the delivery. */
#include <stdio.h>

#include "store/sqlite/adopt.h"
#include "store_sql.h"

/* look_back finds out what was done with the table before. */
static int look_back(const struct source *s, struct adopted *ret, struct error *err)
{
    char trigger[512];
    snprintf(trigger, sizeof(trigger), ADOPT_TRIGGER "%s", s->name);
    return db_adopt_look(s, trigger, ret, err);
}

/* ---- what is recorded ---- */

/* record notes how the table was adopted. */
static int record(const struct source *s, struct error *err)
{
    const struct adopt_request *req = s->req;
    const char *stamp = NULL;
    if (req->mark && sqlite_mark_stamp(s, req->mark, &stamp, err) != 0)
        return -1;
    struct sql_put_adopted row = {
        .source = s->name,
        .mapping = s->mapping.p,
        .mark = req->mark,
        .consumer = req->consumer,
        .key = s->of[F_ID],
        .stamp = stamp,
        .now = db_now(s->st),
    };
    return db_run(s->st, err, &sql_put_adopted, &row);
}

static int is_marked(const struct source *s, bool *ret, struct error *err)
{
    int64_t marked = 0;
    if (db_value(s->st, err, &marked, SQL(is_marked, .source = s->name)) != 0)
        return -1;
    *ret = marked != 0;
    return 0;
}

static int forget_mark(const struct source *s, struct error *err)
{
    if (db_run(s->st, err, SQL(forget_rows, .source = s->name)) != 0)
        return -1;
    return db_run(s->st, err, SQL(forget_mark, .source = s->name));
}

/* make_trigger makes the trigger as the record now says. */
static int make_trigger(const struct source *s, struct error *err)
{
    bool marked;
    if (is_marked(s, &marked, err) != 0)
        return -1;
    return sqlite_adopt_trigger(s, marked, err);
}

/* ---- all of it, inside a transaction ---- */

static int undo(struct source *s, struct adopt_result *ret, struct error *err)
{
    struct adopted was;
    buf_adds(&s->mapping, "");
    if (look_back(s, &was, err) != 0)
        return -1;
    ret->changed = was.there;
    if (s->req->dry_run || !was.there)
        return 0;
    if (forget_mark(s, err) != 0)
        return -1;
    return sqlite_adopt_untrigger(s, err);
}

static int drop_mark(struct source *s, struct adopt_result *ret, struct error *err)
{
    if (is_marked(s, &ret->changed, err) != 0)
        return -1;
    if (s->req->dry_run || !ret->changed)
        return 0;
    if (forget_mark(s, err) != 0)
        return -1;
    return make_trigger(s, err);
}

/* adopt_rows makes the trigger for rows to come and, if `copies`, events of the existing ones. */
static int adopt_rows(struct source *s, bool copies, struct adopt_result *ret, struct error *err)
{
    bool marked = s->req->mark != NULL;
    if (!ret->changed)
        return 0;
    if (record(s, err) != 0)
        return -1;
    if (copies && sqlite_adopt_copy(s, marked, &ret->copied, err) != 0)
        return -1;
    return make_trigger(s, err);
}

/* adopt adopts the table, or says in ret what that would do. Whatever can be refused is refused
 * before anything is changed. */
static int adopt(struct source *s, struct adopt_result *ret, struct error *err)
{
    struct adopted was;
    if (db_source_map(s, err) != 0)
        return -1;
    if (db_mark_check(s, err) != 0)
        return -1;
    if (s->req->drop_mark)
        return drop_mark(s, ret, err);
    if (look_back(s, &was, err) != 0)
        return -1;
    bool copies;
    if (db_adopt_plan(s, &was, ret, &copies, err) != 0)
        return -1;
    if (!s->req->dry_run)
        return adopt_rows(s, copies, ret, err);
    if (copies)
        return sqlite_adopt_count(s, &ret->copied, err);
    return 0;
}

static int serve(struct source *s, struct adopt_result *ret, struct error *err)
{
    if (db_source_find(s, err) != 0)
        return -1;
    if (s->req->undo)
        return undo(s, ret, err);
    return adopt(s, ret, err);
}

/* serve_once serves the request in a transaction, which a dry run never commits. */
static int serve_once(struct source *s, struct adopt_result *ret, struct error *err)
{
    struct store *base = s->st;
    if (sqlite_begin(base, err) != 0)
        return -1;
    int r = serve(s, ret, err);
    if (r == 0 && !s->req->dry_run)
        return sqlite_commit(base, err);
    sqlite_rollback(base);
    return r;
}

int sqlite_adopt(struct store *base, const struct adopt_request *req, struct adopt_result *ret,
                 struct error *err)
{
    struct source s = {.st = base, .req = req};
    struct adopt_result res = {0};
    arena_init(&s.a, 0);
    buf_init(&s.mapping, 1 << 20);
    int r = serve_once(&s, &res, err);
    buf_release(&s.mapping);
    arena_release(&s.a);
    if (r == 0)
        *ret = res;
    return r;
}
