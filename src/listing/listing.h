/* listing.h: prints rows as a table for people or as JSON, from one table of fields.
 *
 * A struct listing_field describes one field of a row: its names, the location of its value, how it
 * is shown, and what it means. An array of them yields the columns of a table, the list of names
 * and values of a single row, the JSON object, and its documentation. Where the rows come from is
 * up to the caller. */
#ifndef LISTING_LISTING_H
#define LISTING_LISTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/str.h"

#define LISTING_MAX ((size_t)256 << 20) /* ceiling of a buffer: an event with every byte escaped */

/* How the value of a field is stored in its row, and its type in JSON. */
enum listing_type {
    LISTING_TEXT,  /* const char *, NULL: none; a string */
    LISTING_CHARS, /* char[], "": none; a string */
    LISTING_STR,   /* struct str, p == NULL: none; a string */
    LISTING_INT,   /* int64_t */
    LISTING_SMALL, /* int; an integer */
    LISTING_ABOUT, /* int64_t, and at `also` a bool: whether it is exact; for people 30 or ~30 */
    LISTING_NAME,  /* an enum, shown by its name in `names`; a string */
    LISTING_BOOL,
    LISTING_NOT,    /* bool, the opposite of the value */
    LISTING_TIME,   /* int64_t, wall clock in ms, 0: none; a string in RFC 3339 */
    LISTING_AGE,    /* int64_t, the same, and at `also` the time now; milliseconds, 0 for none */
    LISTING_JSON,   /* struct str with JSON; that value itself */
    LISTING_OBJECT, /* a struct with the fields in `sub`; an object */
    LISTING_LIST,   /* a pointer to such structs of `size` bytes, at `also` their number (size_t) */
    LISTING_STRINGS, /* a pointer to const char *, at `also` their number (size_t); an array */
    LISTING_PART,    /* a struct with the fields in `sub`, which are members of the row itself */
    LISTING_OWN,     /* `json` appends it; `kind` is its type */
};

/* The color of a cell with this text; NULL: with any other. */
struct listing_color {
    const char *text, *color;
};

/* A field of a row. An array of them ends with name == NULL. */
struct listing_field {
    const char *name; /* of the JSON member; also names the column */
    enum listing_type type;
    size_t at;           /* where in the row the value is */
    const char *help;    /* one line of documentation */
    const char *heading; /* over the column; NULL: the name in capitals */
    const char *label;   /* in a list of names and values; NULL: the name */
    size_t also;
    const char *const *names; /* of a bool: for people, instead of no and yes */
    bool maybe;               /* at `also` is a bool: whether there is a value */
    /* the JSON member is left out without a value; so is a false bool, unless it is `maybe` */
    bool optional;
    const char *none;                             /* JSON for no value, instead of null */
    const char *empty;                            /* for people, instead of nothing */
    void (*text)(struct buf *b, const void *row); /* for people, if that differs */
    void (*json)(struct buf *b, const void *row);
    const char *kind;
    const struct listing_color *colors; /* ends with text == NULL */
    const struct listing_field *sub;
    size_t size;
    bool people_only; /* no JSON member */
};

/* ---- one row ---- */

/* listing_members appends the members of a row, listing_object with its braces. */
void listing_members(struct buf *b, const struct listing_field *fields, const void *row);
void listing_object(struct buf *b, const struct listing_field *fields, const void *row);
/* listing_pairs prints the named fields of a row, one per line, and omits empty ones. */
int listing_pairs(FILE *out, const struct listing_field *fields, const char *names, const void *row,
                  struct error *err);
/* listing_flush writes the buffer and empties it. Unsafe characters except line feeds are escaped
 * as by text_show. */
int listing_flush(struct buf *b, FILE *out, struct error *err);

/* ---- rows ---- */

/* How to list rows. `columns` are names of fields, separated by spaces, in the order of the table;
 * "name~" may be cut to fit the terminal, "name~~" is cut before others, and "name-" shows a dash
 * if it is empty. */
struct listing_form {
    const struct listing_field *fields;
    const char *columns;
    FILE *out;
    bool json;
    bool color;
};

#define LISTING_COLUMNS 16

/* A listing being printed. It buffers a bounded number of rows, however many there are. (1) tb is
 * NULL with form.json. */
struct listing {
    struct listing_form form;
    struct listing_column {
        const struct listing_field *field;
        size_t at; /* where in the row the struct of the field is */
        bool dash;
    } column[LISTING_COLUMNS];
    size_t n_columns;
    struct libscols_table *tb;
    struct buf b;
    int64_t n;           /* rows so far */
    struct error failed; /* code 0: it has not */
};

/* After listing_start has succeeded, the caller ends the listing with listing_end. */
int listing_start(struct listing *l, const struct listing_form *form, struct error *err);
/* listing_add adds a row. After a failure it returns -1 and does nothing; listing_end reports
 * it. */
int listing_add(struct listing *l, const void *row);
/* listing_remark adds an object with other fields after the rows. Only for JSON. */
int listing_remark(struct listing *l, const struct listing_field *fields, const void *row);
/* listing_rows prints a whole listing, of n rows of `size` bytes each. */
int listing_rows(const struct listing_form *form, const void *rows, size_t n, size_t size,
                 struct error *err);
/* listing_end prints the remaining rows and releases the listing. After a failure, of the listing
 * or of the source of its rows (r != 0), it only releases it. It returns -1 after a failure, or if
 * it fails itself. */
int listing_end(struct listing *l, int r, struct error *err);

/* ---- documentation ---- */

/* listing_visit is called with a member's path ("deliveries[].state"), its type and its help. */
typedef void listing_visit(void *ctx, const char *path, const char *type, const char *help);
/* listing_document visits every JSON member that an object of these fields may have. */
void listing_document(const struct listing_field *fields, listing_visit *visit, void *ctx);

/* ---- text for people ---- */

/* Each returns a text that lives as long as the block with the call. */
#define HUMAN_SIZE 64
#define HUMAN(function, ...) human_##function(__VA_ARGS__, (char[HUMAN_SIZE]){""})
/* human_age writes a duration in two units at most: 350ms, 12s, 3m10s, 2h, 4d6h. */
#define human_age(ms) HUMAN(write_age, ms)
/* human_time writes a time in RFC 3339, or "" for 0. */
#define human_time(wall_ms) HUMAN(write_time, wall_ms)
/* human_count writes a number and its noun, in the plural unless n is 1. */
#define human_count(n, noun) HUMAN(write_count, n, noun)
/* human_events_wait writes "1 event waits" or "about 30 events wait". */
#define human_events_wait(n, exact) HUMAN(write_events_wait, n, exact)
const char *human_write_age(int64_t ms, char out[HUMAN_SIZE]);
const char *human_write_time(int64_t wall_ms, char out[HUMAN_SIZE]);
const char *human_write_count(int64_t n, const char *noun, char out[HUMAN_SIZE]);
const char *human_write_events_wait(int64_t n, bool exact, char out[HUMAN_SIZE]);

/* ---- members of a JSON object ---- */

/* Each function appends `"name":value`, with a comma before all but the first. An absent string is
 * null, and so is a string that is not UTF-8, which this library cannot have stored. */
void listing_member_text(struct buf *b, const char *name, const char *value);
void listing_member_int(struct buf *b, const char *name, int64_t value);

#endif
