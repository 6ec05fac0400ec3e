/* adopt.h: what SQLite and MariaDB share that turn rows of an application's table into events:
 * adopt_source.c and adopt.c. */
#ifndef STORE_DB_ADOPT_H
#define STORE_DB_ADOPT_H

#include "base/buf.h"
#include "store/db/db.h"

/* What a column of the table can be for an event. */
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
extern const char *const db_source_fields[FIELDS]; /* as --column and the mapping name them */

/* The table, and which of its columns is what. (1) of[f] is a column's name, a text in single
 * quotes, or NULL: none. (2) mapping is of[] as JSON, once db_source_map succeeded. */
struct source {
    struct store *st;
    const char *schema; /* the database it is in, where there are several */
    const struct adopt_request *req;
    struct arena a; /* the strings below live there */
    const char *name;
    const char **column, **type; /* in the order of the table */
    size_t n;
    const char *of[FIELDS];
    struct buf mapping;
};

/* ---- adopt_source.c ---- */

/* db_source_find finds the table and its columns. ERR_NOTFOUND: there is none; ERR_CONFIG: it
 * cannot be adopted. */
int db_source_find(struct source *s, struct error *err);
/* db_source_map finds out which column is what, by the request and the table's shape. */
int db_source_map(struct source *s, struct error *err);
/* db_source_column finds a column, whatever its case; -1: there is none. */
int db_source_column(const struct source *s, const char *name);
/* db_source_literal says whether a text stands in single quotes. */
bool db_source_literal(const char *text);

/* ---- adopt.c ---- */

/* What is known of a table. */
struct adopted {
    bool there; /* it is adopted now */
    bool once;  /* it was adopted before */
    bool alike; /* with the columns, and the mark, of this request */
};

#define ADOPT_TRIGGER_TEXT 512

/* What a database does in its own way. */
struct adopt_driver {
    bool one_transaction; /* all of it is; else each of these has its own */
    /* trigger_name names the trigger that makes events of the table's rows. */
    void (*trigger_name)(const struct source *s, char ret[ADOPT_TRIGGER_TEXT]);
    /* check refuses columns of which nothing can be made, or that cannot be marked. */
    int (*check)(const struct source *s, struct error *err);
    /* count counts the rows that are not processed. */
    int (*count)(const struct source *s, int64_t *ret, struct error *err);
    /* adopt makes the trigger and, if `copies`, events of the rows that are not processed, which
     * ret->copied counts. */
    int (*adopt)(const struct source *s, const struct adopted *was, bool copies,
                 struct adopt_result *ret, struct error *err);
    int (*drop_mark)(const struct source *s, struct error *err);
    /* undo gives the table up; there: it is adopted. */
    int (*undo)(const struct source *s, bool there, struct error *err);
};

/* db_adopt_is_marked says whether rows of the table are marked. */
int db_adopt_is_marked(const struct source *s, bool *ret, struct error *err);
/* db_adopt_forget_mark forgets the mark, and which row became which event. */
int db_adopt_forget_mark(const struct source *s, struct error *err);
/* db_mark_check refuses a mark that cannot be: its column is missing, or rows cannot be told
 * apart. */
int db_mark_check(const struct source *s, struct error *err);
/* db_delivered_ids appends the ids of the events that were delivered, as a JSON array, and returns
 * how many there are. */
size_t db_delivered_ids(const struct settlement *s, struct buf *b);

#endif
