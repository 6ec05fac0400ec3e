/* adopt.h: turning rows of an application's table into events, in SQLite and MariaDB. */
#ifndef ADOPT_ADOPT_H
#define ADOPT_ADOPT_H

#include "base/buf.h"
#include "store/db/db.h"

/* The fields of an event that a column of the table can provide. */
enum field {
    F_ID,
    F_TYPE,
    F_PAYLOAD,
    F_CREATED,
    F_PROCESSED,
    F_AGG_TYPE,
    F_AGG_ID,
    F_TENANT,
    FIELDS
};
#define ADOPT_STATEMENT_MAX ((size_t)1 << 24) /* bytes */

/* The table, and which column provides which field. (1) of[f] is a column's name, a text in single
 * quotes, or NULL: none. (2) mapping is of[] as JSON, once map_columns has succeeded. */
struct source {
    struct store *st;
    const char *schema; /* the table's database, where there are several */
    const struct adopt_request *req;
    struct arena a; /* owns the strings below */
    const char *name;
    struct source_column {
        const char *name, *type;
    } * column; /* n of them, in the table's order */
    size_t n;
    const char *of[FIELDS];
    struct buf mapping;
};

/* adopt_source_find finds the table and its columns. ERR_NOTFOUND: there is none; ERR_CONFIG: it
 * cannot be adopted. */
int adopt_source_find(struct source *s, struct error *err);
/* adopt_source_column finds a column, ignoring case; -1: there is none. */
int adopt_source_column(const struct source *s, const char *name);
/* adopt_source_literal returns whether a text is in single quotes. */
bool adopt_source_literal(const char *text);

/* The state of a table's adoption. */
struct adopted {
    bool there; /* the table is adopted now */
    bool once;  /* the table was adopted at some time */
    bool alike; /* with the same columns and mark as this request */
};

/* The part that each database implements itself. `r` is a row: NEW in a trigger, s in a query. */
struct adopt_driver {
    bool one_transaction; /* everything runs in one; else each call has its own */
    size_t trigger_max;   /* bytes of a trigger's name */
    const char *drop;     /* the statement that drops the trigger, see adopt_write */
    /* query starts a statement, as db_driver.rows does. */
    void *(*query)(struct store *st, const char *text, struct error *err);
    /* name appends a name, literal a text with any content. */
    void (*name)(struct buf *b, struct str name);
    void (*literal)(struct buf *b, struct str text);
    /* value appends a column's value; open, the condition that a flag, a time or a boolean, is not
     * set. */
    void (*value)(struct buf *b, const struct source *s, const char *r, const char *column);
    void (*open)(struct buf *b, const struct source *s, const char *r, const char *column);
    /* part appends any other part of a statement. */
    void (*part)(struct buf *b, const struct source *s, const char *r, struct str part);
    /* check refuses columns that cannot be converted, or that cannot be marked. */
    int (*check)(const struct source *s, struct error *err);
    /* adopt creates the trigger and, if `copies`, turns the unprocessed rows into events, counted
     * in ret->copied. */
    int (*adopt)(const struct source *s, const struct adopted *was, bool copies,
                 struct adopt_result *ret, struct error *err);
    int (*drop_mark)(const struct source *s, struct error *err);
    /* undo ends the adoption; `there`: the table is adopted. */
    int (*undo)(const struct source *s, bool there, struct error *err);
};

/* adopt_write appends a statement about the table, and its row r, in which {table}, {trigger}
 * and {mark} stand for names, {source} for the table's name as a text, {key} for the column F_ID,
 * {open} for the condition that the row is unprocessed, the name of a field for its value, and any
 * others for what the driver's part writes. */
void adopt_write(struct buf *b, const struct source *s, const char *r, const char *sql);
/* adopt_column appends a column of row r. */
void adopt_column(struct buf *b, const struct source *s, const char *r, const char *column);
/* adopt_start runs the statement in b, which it releases; its rows are read with db_step.
 * adopt_finish runs it to its end, adopt_run also writes it. */
struct db_rows adopt_start(const struct source *s, struct buf *b, struct error *err);
int adopt_finish(const struct source *s, struct buf *b, struct error *err);
int adopt_run(const struct source *s, const char *r, const char *sql, struct error *err);
/* adopt_drop drops the trigger, if it exists. */
int adopt_drop(const struct source *s, struct error *err);

/* adopt_is_marked returns whether rows of the table are marked. */
int adopt_is_marked(const struct source *s, bool *ret, struct error *err);
/* adopt_forget_mark deletes the mark, and the record of which row became which event. */
int adopt_forget_mark(struct store *st, const char *table, struct error *err);
/* adopt_mark_allowed refuses an impossible mark: its column is missing, or rows cannot be told
 * apart. */
int adopt_mark_allowed(const struct source *s, struct error *err);
/* adopt_delivered_ids appends the ids of the delivered events, as a JSON array, and returns their
 * number. */
size_t adopt_delivered_ids(const struct settlement *s, struct buf *b);

/* ---- MariaDB ---- */

/* The kinds of columns, by their data types. */
enum adopt_kind { ADOPT_KIND_TEXT, ADOPT_KIND_BYTES, ADOPT_KIND_NUMBER, ADOPT_KIND_TIME };

enum adopt_kind adopt_mariadb_kind(const struct source *s, const char *column);
/* adopt_mark_put records that rows are to be marked from now on, as requested; inside a
 * transaction. */
int adopt_mark_put(const struct source *s, struct error *err);
/* adopt_mark_check refuses a column that cannot be set, and a change of the column by which rows
 * are found. */
int adopt_mark_check(const struct source *s, struct error *err);

#endif
