/* adopt.c: tables of the application whose rows become events. A trigger makes an event of each row
 * that is inserted, in the same transaction. If asked to, the row is marked as processed once a
 * consumer has had it, in the transaction that settles the delivery. */
#include <stdio.h>
#include <string.h>

#include "store/sqlite/adopt.h"
#include "store_sql.h"

/* ---- what was done before ---- */

/* What is known of a table. */
struct former {
    bool there; /* it is adopted now */
    bool once;  /* it was adopted before */
    bool alike; /* with the columns, and the mark, of this request */
};

/* look_back finds out what was done with the table before. */
static int look_back(struct source *s, struct former *ret, struct error *err)
{
    int64_t there = 0, once = 0, alike = 0;
    char trigger[512];
    snprintf(trigger, sizeof(trigger), ADOPT_TRIGGER "%s", s->name);
    const struct db_number wanted[] = {
        {&there, SQL(has_trigger, .name = trigger)},
        {&once, SQL(was_adopted, .source = s->name)},
        {&alike, SQL(adopted_alike, .source = s->name, .mapping = s->mapping.p,
                     .mark = s->req->mark, .consumer = s->req->consumer)},
    };
    if (db_values(&s->st->base, err, wanted, sizeof wanted / sizeof *wanted) != 0)
        return -1;
    *ret = (struct former){.there = there != 0, .once = once != 0, .alike = alike != 0};
    return 0;
}

/* check_existing refuses a request that would copy existing rows twice, or that leaves open what to
 * do with them. */
static int check_existing(const struct source *s, const struct former *was, struct error *err)
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
        .now = sqlite_now(s->st),
    };
    return sqlite_run(s->st, err, &sql_put_adopted, &row);
}

static int is_marked(const struct source *s, bool *ret, struct error *err)
{
    int64_t marked = 0;
    if (sqlite_value(s->st, err, &marked, SQL(is_marked, .source = s->name)) != 0)
        return -1;
    *ret = marked != 0;
    return 0;
}

static int forget_mark(const struct source *s, struct error *err)
{
    if (sqlite_run(s->st, err, SQL(forget_rows, .source = s->name)) != 0)
        return -1;
    return sqlite_run(s->st, err, SQL(forget_mark, .source = s->name));
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
    struct former was;
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
    struct former was;
    if (sqlite_source_map(s, err) != 0)
        return -1;
    if (sqlite_mark_check(s, err) != 0)
        return -1;
    if (s->req->drop_mark)
        return drop_mark(s, ret, err);
    if (look_back(s, &was, err) != 0)
        return -1;
    if (check_existing(s, &was, err) != 0)
        return -1;

    snprintf(ret->mapping, sizeof(ret->mapping), "%s", s->mapping.p);
    ret->changed = !was.there || !was.alike;
    ret->other_columns = was.there && !was.alike;
    bool skip = s->req->existing && strcmp(s->req->existing, "skip") == 0;
    bool copies = !was.there && !skip;
    if (!s->req->dry_run)
        return adopt_rows(s, copies, ret, err);
    if (copies)
        return sqlite_adopt_count(s, &ret->copied, err);
    return 0;
}

static int serve(struct source *s, struct adopt_result *ret, struct error *err)
{
    if (sqlite_source_find(s, err) != 0)
        return -1;
    if (s->req->undo)
        return undo(s, ret, err);
    return adopt(s, ret, err);
}

/* serve_once serves the request in a transaction, which a dry run never commits. */
static int serve_once(struct source *s, struct adopt_result *ret, struct error *err)
{
    struct store *base = &s->st->base;
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
    struct source s = {.st = sqlite_of(base), .req = req};
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
