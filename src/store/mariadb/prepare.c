/* prepare.c: the INSERT of an event, prepared by the server. A program that emits sends the same
 * statement over and over, and its text takes the server longer to read than to carry out. Only on
 * a connection that nobody else works on: what is prepared stays behind, and its values are in the
 * session's character set. */
#include <errmsg.h>
#include <mysqld_error.h>

#include "store/mariadb/mariadb.h"

#define PARAMETERS_MAX 16
#define BOUND_MAX (64 * 1024) /* bytes of a text: a larger one is sent in the statement */

void mdb_prepared_release(struct mdb_prepared *p)
{
    if (p->q)
        mysql_stmt_close(p->q);
    *p = (struct mdb_prepared){0};
}

/* prepare prepares the statement, with the places for its values left open. */
static bool prepare(struct mdb_store *st, struct mdb_prepared *p, const struct sql *sql)
{
    struct buf b;
    buf_init(&b, 4096);
    mdb_write(st, MDB_OPEN, sql, NULL, &b);
    p->q = mysql_stmt_init(st->db);
    bool done = !b.failed && p->q && mysql_stmt_prepare(p->q, b.p, b.n) == 0;
    buf_release(&b);
    if (done)
        return true;
    mdb_prepared_release(p);
    p->refused = true;
    return false;
}

static void bind_text(MYSQL_BIND *to, struct str s)
{
    to->buffer_type = MYSQL_TYPE_STRING;
    if (!s.p)
        to->buffer_type = MYSQL_TYPE_NULL;
    to->buffer = (void *)s.p;
    to->buffer_length = s.n;
}

static void bind_number(MYSQL_BIND *to, const int64_t *number)
{
    to->buffer_type = MYSQL_TYPE_LONGLONG;
    if (!number)
        to->buffer_type = MYSQL_TYPE_NULL;
    to->buffer = (void *)number;
}

/* bind_values binds the arguments; false if one is of a size or kind that is not meant to be. */
static bool bind_values(MYSQL_BIND *to, const struct sql_text *sql, const void *args)
{
    for (size_t i = 0; i < sql->n; i++) {
        const char *arg = (const char *)args + sql->parameter[i].at;
        switch (sql->parameter[i].type) {
        case 'i': bind_number(&to[i], (const int64_t *)arg); break;
        case 'o': bind_number(&to[i], *(const int64_t *const *)arg); break;
        case 't': bind_text(&to[i], *(const struct str *)arg); break;
        default: return false;
        }
        if (to[i].buffer_length > BOUND_MAX)
            return false;
    }
    return true;
}

/* take_text reads the text of the row, which is empty if there is no row. */
static int take_text(MYSQL_STMT *q, struct mdb_room *ret)
{
    unsigned long size = 0;
    MYSQL_BIND to = {
        .buffer_type = MYSQL_TYPE_STRING,
        .buffer = ret->p,
        .buffer_length = ret->size - 1,
        .length = &size,
    };
    ret->p[0] = '\0';
    if (mysql_stmt_bind_result(q, &to) != 0 || mysql_stmt_store_result(q) != 0)
        return -1;
    bool got = mysql_stmt_fetch(q) == 0 && size < ret->size;
    if (got)
        ret->p[size] = '\0';
    mysql_stmt_free_result(q);
    return 0;
}

/* release_closed forgets a statement that is gone since somebody has reset the connection. */
static void release_closed(struct mdb_prepared *p)
{
    if (p->q && mysql_stmt_errno(p->q) == CR_STMT_CLOSED)
        mdb_prepared_release(p);
}

int mdb_run_prepared(struct mdb_store *st, struct mdb_prepared *p, const struct sql *sql,
                     const void *args, struct mdb_room *ret, struct error *err)
{
    const struct sql_text *text = &sql->in[SQL_MARIADB];
    MYSQL_BIND values[PARAMETERS_MAX] = {0};
    release_closed(p);
    if (p->refused || text->n > PARAMETERS_MAX || !bind_values(values, text, args))
        return 0;
    if (!p->q && !prepare(st, p, sql))
        return 0;

    int64_t since = clock_mono(&clock_system);
    bool ran = mysql_stmt_bind_param(p->q, values) == 0 && mysql_stmt_execute(p->q) == 0;
    if (!ran && mysql_stmt_errno(p->q) == ER_UNKNOWN_STMT_HANDLER) {
        mdb_prepared_release(p);
        return 0;
    }
    if (!ran || take_text(p->q, ret) != 0)
        return mdb_fail_since(st, st->db, since, err);
    return 1;
}
