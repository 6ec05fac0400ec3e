/* adopt.c: tables of the application whose rows become events. A trigger makes an event of each row
 * that is inserted, in the same transaction. MariaDB commits by itself when a trigger is made, so
 * this one makes nothing of rows until a row of outbox_adopted says so; that, and the events of the
 * rows that are there, come in one transaction. Broken off at any point, it is done or not, and can
 * be done again. */
#include "store/mariadb/adopt.h"
#include "store_sql.h"

static int look_back(const struct source *s, struct adopted *ret, struct error *err)
{
    char trigger[MDB_TRIGGER_TEXT];
    mdb_adopt_trigger_name(s, trigger);
    return db_adopt_look(s, trigger, ret, err);
}

/* What to do once the table is still. */
struct switching {
    bool active; /* rows become events from now on */
    bool copies; /* so do those that are there */
};

/* turn_over does it, inside a transaction. Whoever has inserted into the table is waited for, and
 * whoever is about to waits: what is read afterwards is all that no trigger sees. */
static int turn_over(const struct source *s, struct switching to, int64_t *ret_copied,
                     struct error *err)
{
    int64_t ignored = 0;
    if (db_value(s->st, err, &ignored, SQL(lock_adopted, .source = s->name)) != 0)
        return -1;
    if (mdb_mark_forget(s, err) != 0)
        return -1;
    if (to.copies && mdb_adopt_copy(s, s->req->mark != NULL, ret_copied, err) != 0)
        return -1;
    if (to.active && s->req->mark && mdb_mark_put(s, err) != 0)
        return -1;
    return db_run(s->st, err,
                  SQL(set_adopted, .source = s->name, .active = to.active, .now = db_now(s->st)));
}

static int turn_over_once(const struct source *s, struct switching to, int64_t *ret_copied,
                          struct error *err)
{
    if (mdb_begin(s->st, err) != 0)
        return -1;
    if (turn_over(s, to, ret_copied, err) != 0) {
        mdb_rollback(s->st);
        return -1;
    }
    return mdb_commit(s->st, err);
}

/* undo drops the trigger in any case: one that broke off may have left it. */
static int undo(struct source *s, struct adopt_result *ret, struct error *err)
{
    struct adopted was;
    int64_t ignored = 0;
    buf_adds(&s->mapping, "");
    if (look_back(s, &was, err) != 0)
        return -1;
    ret->changed = was.there;
    if (s->req->dry_run)
        return 0;
    if (was.there && turn_over_once(s, (struct switching){0}, &ignored, err) != 0)
        return -1;
    return mdb_adopt_untrigger(s, err);
}

/* begin_with adopts a table that is not adopted. */
static int begin_with(const struct source *s, bool copies, struct adopt_result *ret,
                      struct error *err)
{
    struct switching to = {.active = true, .copies = copies};
    if (db_run(s->st, err, SQL(prepare_adopted, .source = s->name, .mapping = s->mapping.p)) != 0)
        return -1;
    if (mdb_adopt_trigger(s, s->req->mark != NULL, err) != 0)
        return -1;
    return turn_over_once(s, to, &ret->copied, err);
}

/* write_down records what changed, inside a transaction. */
static int write_down(const struct source *s, struct error *err)
{
    if (s->req->mark && mdb_mark_put(s, err) != 0)
        return -1;
    return db_run(s->st, err, SQL(set_mapping, .source = s->name, .mapping = s->mapping.p));
}

/* go_on_with reads rows to come with other columns, or marks them otherwise. The trigger comes
 * first: what it notes for a mark that is not there yet does no harm. */
static int go_on_with(const struct source *s, struct error *err)
{
    bool marked;
    if (mdb_mark_is(s, &marked, err) != 0)
        return -1;
    if (mdb_adopt_trigger(s, marked || s->req->mark, err) != 0)
        return -1;
    if (mdb_begin(s->st, err) != 0)
        return -1;
    if (write_down(s, err) != 0) {
        mdb_rollback(s->st);
        return -1;
    }
    return mdb_commit(s->st, err);
}

/* drop_mark ends marking. Broken off in between, the table still counts as marked, so that it can
 * be done again. */
static int drop_mark(const struct source *s, struct adopt_result *ret, struct error *err)
{
    if (mdb_mark_is(s, &ret->changed, err) != 0)
        return -1;
    if (s->req->dry_run || !ret->changed)
        return 0;
    if (db_run(s->st, err, SQL(end_mark, .source = s->name)) != 0)
        return -1;
    if (mdb_adopt_trigger(s, false, err) != 0)
        return -1;
    return mdb_mark_forget(s, err);
}

/* adopt adopts the table, or says in ret what that would do. Whatever can be refused is refused
 * before anything is changed. */
static int adopt(struct source *s, struct adopt_result *ret, struct error *err)
{
    struct adopted was;
    bool copies;
    if (db_source_map(s, err) != 0)
        return -1;
    if (mdb_adopt_check(s, err) != 0 || mdb_mark_check(s, err) != 0)
        return -1;
    if (s->req->drop_mark)
        return drop_mark(s, ret, err);
    if (look_back(s, &was, err) != 0)
        return -1;
    if (db_adopt_plan(s, &was, ret, &copies, err) != 0)
        return -1;

    if (s->req->dry_run)
        return copies ? mdb_adopt_count(s, &ret->copied, err) : 0;
    if (!ret->changed)
        return 0;
    return was.there ? go_on_with(s, err) : begin_with(s, copies, ret, err);
}

static int serve(struct source *s, struct adopt_result *ret, struct error *err)
{
    if (db_source_find(s, err) != 0)
        return -1;
    if (s->req->undo)
        return undo(s, ret, err);
    return adopt(s, ret, err);
}

int mdb_adopt(struct store *base, const struct adopt_request *req, struct adopt_result *ret,
              struct error *err)
{
    struct source s = {.st = base, .schema = mdb_of(base)->url.database, .req = req};
    struct adopt_result res = {0};
    arena_init(&s.a, 0);
    buf_init(&s.mapping, 1 << 20);
    int r = serve(&s, &res, err);
    buf_release(&s.mapping);
    arena_release(&s.a);
    if (r == 0)
        *ret = res;
    return r;
}

/* ---- triggers that run as nobody ---- */

/* recall gives the fields their columns again, by the rows of lost_adopted. */
static int recall(struct source *s, const struct db_rows *q, struct error *err)
{
    bool ok = true;
    for (int f = 0; f < FIELDS; f++) {
        s->of[f] = db_copy(q, 1 + f, &s->a, &ok).p;
        if (!ok)
            return err_nomem(err);
        bool column = s->of[f] && !db_source_literal(s->of[f]);
        if (column && db_source_column(s, s->of[f]) < 0)
            return err_set(err, ERR_NOTFOUND, "it has no column %.100s any more", s->of[f]);
    }
    return 0;
}

/* renew makes the trigger of one table anew. */
static int renew(struct source *s, const struct db_rows *q, struct error *err)
{
    bool marked;
    if (db_source_find(s, err) != 0)
        return -1;
    if (recall(s, q, err) != 0)
        return -1;
    if (mdb_mark_is(s, &marked, err) != 0)
        return -1;
    return mdb_adopt_trigger(s, marked, err);
}

static int renew_table(struct mdb_store *st, const struct db_rows *q, struct error *err)
{
    struct buf name;
    buf_init(&name, 1 << 10);
    mdb_adopt_add_name(&name, db_text(q, 0).p);
    struct adopt_request req = {.table = buf_cstr(&name)};
    struct source s = {.st = &st->base.store, .schema = st->url.database, .req = &req};
    arena_init(&s.a, 0);
    int r = req.table ? renew(&s, q, err) : err_nomem(err);
    arena_release(&s.a);
    buf_release(&name);
    if (r != 0)
        return err_prefix(err,
                          "could not make the trigger of table %.64s anew, which runs as an "
                          "account that is gone",
                          db_text(q, 0).p);
    return 0;
}

int mdb_adopt_renew(struct mdb_store *st, struct error *err)
{
    struct error ignored;
    struct db_rows q = db_rows(&st->base.store, &ignored,
                               SQL(lost_adopted, .schema = st->url.database));
    while (db_step(&q, &ignored) == 1) {
        if (renew_table(st, &q, err) == 0)
            continue;
        db_done(&q);
        return -1;
    }
    return 0;
}
