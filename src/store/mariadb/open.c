/* open.c: handles on an outbox in MariaDB, and the table of operations. */
#include <stdio.h>
#include <string.h>

#include "store/db/held_keys.h"
#include "store/mariadb/handle.h"
#include "store/mariadb/mariadb.h"

#define STATEMENT_MAX (1 << 28) /* bytes */

static struct mdb_store *store_new(const struct store_options *opt)
{
    struct mdb_store *st = calloc(1, sizeof *st);
    if (!st)
        return NULL;
    db_store_init(&st->base, &store_mariadb, opt);
    st->looked = -1;
    buf_init(&st->text, STATEMENT_MAX);
    return st;
}

static void mdb_close_store(struct store *base)
{
    struct mdb_store *st = mdb_of(base);
    mdb_wakeup_release(st);
    mdb_ahead_release(st);
    mdb_disconnect(st);
    mdb_url_release(&st->url);
    if (st->url_text)
        explicit_bzero(st->url_text, strlen(st->url_text));
    free(st->url_text);
    free(st->base.shown);
    free(st->quoted);
    buf_release(&st->text);
    held_keys_release(base);
    free(st);
}

/* Makes the database's name for messages, and the one for statements. */
static int name_store(struct mdb_store *st, struct error *err)
{
    const char *host = st->url.host ? st->url.host : "";
    struct buf b;
    if (asprintf(&st->base.shown, "mariadb:%s%s%s", host, *host ? "/" : "", st->url.database) < 0)
        st->base.shown = NULL;
    buf_init(&b, 4096);
    buf_addc(&b, '`');
    for (const char *p = st->url.database; *p; p++) {
        if (*p == '`')
            buf_addc(&b, '`');
        buf_addc(&b, *p);
    }
    buf_adds(&b, "`.");
    const char *text = buf_cstr(&b);
    st->quoted = text ? strdup(text) : NULL;
    buf_release(&b);
    return st->base.shown && st->quoted ? 0 : err_nomem(err);
}

static int open_there(struct mdb_store *st, const char *url, struct error *err)
{
    bool as_it_is = st->base.opt.create || st->base.opt.any_version;
    st->url_text = strdup(url);
    if (!st->url_text)
        return err_nomem(err);
    if (mdb_url_read(url, &st->url, err) != 0)
        return -1;
    if (name_store(st, err) != 0)
        return -1;
    if (mdb_connect(st, err) != 0)
        return -1;
    return as_it_is ? 0 : db_schema_check(&st->base.store, err);
}

static int mdb_open(const char *url, const struct store_options *opt, struct store **ret,
                    struct error *err)
{
    struct mdb_store *st = store_new(opt);
    if (!st)
        return err_nomem(err);
    if (open_there(st, url, err) != 0) {
        mdb_close_store(&st->base.store);
        return -1;
    }
    *ret = &st->base.store;
    return 0;
}

static int mdb_dup(struct store *base, struct store **ret, struct error *err)
{
    const struct mdb_store *from = mdb_of(base);
    return mdb_open(from->url_text, &from->base.opt, ret, err);
}

const struct store_ops store_mariadb = {
    .scheme = "mariadb",
    .synopsis = "mariadb://USER@HOST/DB",
    .caps = STORE_WAKEUP | STORE_SHARED | STORE_FREE | STORE_REMOTE,
    .driver = &mdb_driver,
    DB_STORE_OPS,
    .open = mdb_open,
    .close = mdb_close_store,
    .dup = mdb_dup,
    .init = mdb_init,
    .schema_status = mdb_schema_status,
    .ddl = mdb_ddl,
    .doctor = mdb_doctor,
    .begin = mdb_begin_open,
    .commit = mdb_commit,
    .rollback = mdb_rollback,
    .consumer_put = db_consumer_put,
    .poll_new = mdb_poll_new,
    .expose_connection = mdb_lend,
    .savepoint = mdb_savepoint,
    .tx_state = mdb_tx_state,
    .wake_fd = mdb_wake_fd,
    .wake_clear = mdb_wake_clear,
    .grant = mdb_grant,
};

bool mdb_is(const struct store *st)
{
    return st->ops == &store_mariadb;
}

struct st_mysql *mdb_handle(struct store *base)
{
    if (!mdb_is(base))
        return NULL;
    struct mdb_store *st = mdb_of(base);
    if (st->grouped && mdb_group(st, false, NULL) != 0)
        return NULL;
    return st->db;
}
