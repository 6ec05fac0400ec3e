/* adopt.h: turning rows of an application's table into events, the part that SQLite and MariaDB
 * have in common. */
#ifndef STORE_DB_ADOPT_H
#define STORE_DB_ADOPT_H

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
extern const char *const db_source_fields[FIELDS]; /* their names in --column and in the mapping */

/* The table, and which column provides which field. (1) of[f] is a column's name, a text in single
 * quotes, or NULL: none. (2) mapping is of[] as JSON, once map_columns has succeeded. */
struct source {
    struct store *st;
    const char *schema; /* the table's database, where there are several */
    const struct adopt_request *req;
    struct arena a; /* owns the strings below */
    const char *name;
    const char **column, **type; /* in the table's order */
    size_t n;
    const char *of[FIELDS];
    struct buf mapping;
};

/* db_source_find finds the table and its columns. ERR_NOTFOUND: there is none; ERR_CONFIG: it
 * cannot be adopted. */
int db_source_find(struct source *s, struct error *err);
/* db_source_column finds a column, ignoring case; -1: there is none. */
int db_source_column(const struct source *s, const char *name);
/* db_source_literal returns whether a text is in single quotes. */
bool db_source_literal(const char *text);

/* The state of a table's adoption. */
struct adopted {
    bool there; /* the table is adopted now */
    bool once;  /* the table was adopted at some time */
    bool alike; /* with the same columns and mark as this request */
};

#define ADOPT_TRIGGER_TEXT 512

/* The part that each database implements itself. */
struct adopt_driver {
    bool one_transaction; /* everything runs in one; else each call has its own */
    /* trigger_name names the trigger that turns the table's rows into events. */
    void (*trigger_name)(const struct source *s, char ret[ADOPT_TRIGGER_TEXT]);
    /* check refuses columns that cannot be converted, or that cannot be marked. */
    int (*check)(const struct source *s, struct error *err);
    /* count counts the unprocessed rows. */
    int (*count)(const struct source *s, int64_t *ret, struct error *err);
    /* adopt creates the trigger and, if `copies`, turns the unprocessed rows into events, counted
     * in ret->copied. */
    int (*adopt)(const struct source *s, const struct adopted *was, bool copies,
                 struct adopt_result *ret, struct error *err);
    int (*drop_mark)(const struct source *s, struct error *err);
    /* undo ends the adoption; `there`: the table is adopted. */
    int (*undo)(const struct source *s, bool there, struct error *err);
};

/* db_adopt_is_marked returns whether rows of the table are marked. */
int db_adopt_is_marked(const struct source *s, bool *ret, struct error *err);
/* db_adopt_forget_mark deletes the mark, and the record of which row became which event. */
int db_adopt_forget_mark(struct store *st, const char *table, struct error *err);
/* db_mark_check refuses an impossible mark: its column is missing, or rows cannot be told apart. */
int db_mark_check(const struct source *s, struct error *err);
/* db_delivered_ids appends the ids of the delivered events, as a JSON array, and returns their
 * number. */
size_t db_delivered_ids(const struct settlement *s, struct buf *b);

#endif
