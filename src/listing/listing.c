/* listing.c: rows as tables and as JSON. */
#include "listing/listing.h"

#include <ctype.h>
#include <errno.h>
#include <libsmartcols/libsmartcols.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"
#include "base/utf8.h"

/* ---- values ---- */

static const void *at_offset(const void *row, size_t at)
{
    return (const char *)row + at;
}

static int64_t int_at(const void *row, size_t at)
{
    return *(const int64_t *)at_offset(row, at);
}

static size_t size_at(const void *row, size_t at)
{
    return *(const size_t *)at_offset(row, at);
}

/* A value: text for strings and JSON, n for all other types. */
struct value {
    struct str text;
    int64_t n;
};

/* Reads the value of a field; false: it has none. */
static bool value_of(const struct listing_field *f, const void *row, struct value *ret)
{
    const void *p = at_offset(row, f->at);
    *ret = (struct value){.n = 0};
    if (f->maybe && !*(const bool *)at_offset(row, f->also))
        return false;

    switch (f->type) {
    case LISTING_TEXT: ret->text = str_of(*(const char *const *)p); return ret->text.p;
    case LISTING_CHARS: ret->text = str_of(p); return ret->text.n > 0;
    case LISTING_STR:
    case LISTING_JSON: ret->text = *(const struct str *)p; return ret->text.p;
    case LISTING_NAME: ret->text = str_of(f->names[*(const unsigned *)p]); return true;
    case LISTING_SMALL: ret->n = *(const int *)p; return true;
    case LISTING_BOOL: ret->n = *(const bool *)p; return true;
    case LISTING_NOT: ret->n = !*(const bool *)p; return true;
    case LISTING_INT:
    case LISTING_ABOUT: ret->n = int_at(row, f->at); return true;
    case LISTING_TIME: ret->n = int_at(row, f->at); return ret->n != 0;
    case LISTING_AGE: {
        int64_t at = int_at(row, f->at), now = int_at(row, f->also);
        if (at && now > at)
            ret->n = clock_since(now, at);
        return at != 0;
    }
    case LISTING_STRINGS: return size_at(row, f->also) > 0;
    default: return true;
    }
}

/* Looks a field up by name, including the parts of a row, and adds to *at where in the row the
 * struct of the field is. */
static const struct listing_field *find_field(const struct listing_field *fields, struct str name,
                                              size_t *at)
{
    for (const struct listing_field *f = fields; f->name; f++) {
        if (f->type != LISTING_PART) {
            if (str_eq(str_of(f->name), name))
                return f;
            continue;
        }
        const struct listing_field *found = find_field(f->sub, name, at);
        if (found) {
            *at += f->at;
            return found;
        }
    }
    return NULL;
}

/* ---- JSON ---- */

static void add_string(struct buf *b, struct str value)
{
    if (value.p && utf8_valid(value, NULL))
        json_quote(b, value);
    else
        buf_adds(b, "null");
}

/* Appends valid JSON on one line, without any control character. */
static void add_flat(struct buf *b, struct str json)
{
    size_t start = b->n;
    json_flat(b, json);
    for (size_t i = start; i < b->n; i++)
        if (b->p[i] == '\t')
            b->p[i] = ' ';
}

static void start_member(struct buf *b, const char *name)
{
    bool first = b->n == 0 || strchr("{[", b->p[b->n - 1]);
    if (!first)
        buf_addc(b, ',');
    json_quote(b, str_of(name));
    buf_addc(b, ':');
}

void listing_member_text(struct buf *b, const char *name, const char *value)
{
    start_member(b, name);
    add_string(b, str_of(value));
}

void listing_member_int(struct buf *b, const char *name, int64_t value)
{
    start_member(b, name);
    buf_addi64(b, value);
}

static void add_list(struct buf *b, const struct listing_field *f, const void *row)
{
    const char *element = *(const char *const *)at_offset(row, f->at);
    size_t n = size_at(row, f->also);
    buf_addc(b, '[');
    for (size_t i = 0; i < n; i++) {
        if (i)
            buf_addc(b, ',');
        if (f->type == LISTING_STRINGS)
            add_string(b, str_of(((const char *const *)element)[i]));
        else
            listing_object(b, f->sub, element + i * f->size);
    }
    buf_addc(b, ']');
}

static void add_json(struct buf *b, const struct listing_field *f, const void *row)
{
    struct value v;
    bool some = value_of(f, row, &v);
    if (!some && f->type != LISTING_AGE) {
        buf_adds(b, f->none ? f->none : "null");
        return;
    }
    switch (f->type) {
    case LISTING_NOT:
    case LISTING_BOOL: buf_adds(b, v.n ? "true" : "false"); break;
    case LISTING_TIME: add_string(b, str_of(human_time(v.n))); break;
    case LISTING_JSON:
        /* Text that is not valid JSON becomes a string. */
        if (json_parse(v.text, NULL, NULL, NULL) == 0)
            add_flat(b, v.text);
        else
            add_string(b, v.text);
        break;
    case LISTING_TEXT:
    case LISTING_CHARS:
    case LISTING_NAME:
    case LISTING_STR: add_string(b, v.text); break;
    case LISTING_OBJECT: listing_object(b, f->sub, at_offset(row, f->at)); break;
    case LISTING_STRINGS:
    case LISTING_LIST: add_list(b, f, row); break;
    case LISTING_OWN: f->json(b, row); break;
    default: buf_addi64(b, v.n);
    }
}

static bool is_left_out(const struct listing_field *f, const void *row)
{
    struct value v;
    if (f->people_only || !f->optional)
        return f->people_only;
    if (!value_of(f, row, &v))
        return true;
    return f->type == LISTING_BOOL && !f->maybe && !v.n;
}

void listing_members(struct buf *b, const struct listing_field *fields, const void *row)
{
    for (const struct listing_field *f = fields; f->name; f++) {
        if (is_left_out(f, row))
            continue;
        if (f->type == LISTING_PART) {
            listing_members(b, f->sub, at_offset(row, f->at));
            continue;
        }
        start_member(b, f->name);
        add_json(b, f, row);
    }
}

void listing_object(struct buf *b, const struct listing_field *fields, const void *row)
{
    buf_addc(b, '{');
    listing_members(b, fields, row);
    buf_addc(b, '}');
}

int listing_flush(struct buf *b, FILE *out, struct error *err)
{
    struct str all = {b->p, b->n};
    struct buf shown;
    buf_init(&shown, 6 * LISTING_MAX);
    bool safe = text_shown(all, "\n");
    if (!safe) {
        text_show(&shown, all, "\n");
        all = (struct str){shown.p, shown.n};
    }

    int r = 0;
    if (b->failed || shown.failed)
        r = err_nomem(err);
    else if (all.n && fwrite(all.p, 1, all.n, out) != all.n)
        r = err_errno(err, ERR_UNAVAILABLE, errno, "could not write to stdout");
    else
        buf_clear(b);
    buf_release(&shown);
    return r;
}

/* ---- tables ---- */

static int table_error(int r, struct error *err)
{
    if (r == -ENOMEM)
        return err_nomem(err);
    if (r != 0)
        return err_errno(err, ERR_UNAVAILABLE, -r, "could not print the table");
    return 0;
}

static struct libscols_table *table_new(FILE *out, bool headings, bool color)
{
    struct libscols_table *tb = scols_new_table();
    if (!tb)
        return NULL;
    scols_table_enable_colors(tb, color);
    scols_table_enable_noheadings(tb, !headings);
    scols_table_enable_noencoding(tb, true); /* set_cell has done so */
    scols_table_set_stream(tb, out);
    return tb;
}

/* Fills a cell with text that is safe to show. */
static int set_cell(struct libscols_line *ln, size_t column, const struct buf *text)
{
    struct buf shown;
    buf_init(&shown, 6 * LISTING_MAX); /* a character becomes six at most */
    text_show(&shown, (struct str){text->p, text->n}, "");
    int r = -1;
    if (!text->failed && buf_cstr(&shown))
        r = scols_line_set_data(ln, column, shown.p);
    buf_release(&shown);
    return r;
}

static void add_value_text(struct buf *b, const struct listing_field *f, const void *row)
{
    static const char *const answers[] = {"no", "yes"};
    struct value v;
    if (!value_of(f, row, &v))
        return;

    switch (f->type) {
    case LISTING_NOT:
    case LISTING_BOOL: buf_adds(b, (f->names ? f->names : answers)[v.n]); break;
    case LISTING_TIME: buf_adds(b, human_time(v.n)); break;
    case LISTING_AGE: buf_adds(b, human_age(v.n)); break;
    case LISTING_JSON: add_flat(b, v.text); break;
    case LISTING_TEXT:
    case LISTING_CHARS:
    case LISTING_NAME:
    case LISTING_STR: buf_addstr(b, v.text); break;
    default:
        if (f->type == LISTING_ABOUT && !*(const bool *)at_offset(row, f->also))
            buf_addc(b, '~');
        buf_addi64(b, v.n);
    }
}

/* Appends the value of a field in human-readable form to an empty buffer. */
static void add_text(struct buf *b, const struct listing_field *f, const void *row)
{
    if (f->text)
        f->text(b, row);
    else
        add_value_text(b, f, row);
    if (b->n == 0 && f->empty)
        buf_adds(b, f->empty);
}

/* Cuts the next word off a list of names. p == NULL: there is none. */
static struct str next_word(const char **list)
{
    *list += strspn(*list, " ");
    struct str word = {*list, strcspn(*list, " ")};
    *list += word.n;
    return word.n ? word : (struct str){NULL, 0};
}

#define CUT_TO 0.15 /* part of the terminal that remains for a column that is cut first */

static int add_column(struct listing *l, struct str word, struct error *err)
{
    double width = 0;
    bool cut = word.p[word.n - 1] == '~';
    word.n -= cut;
    bool cut_first = cut && word.p[word.n - 1] == '~';
    word.n -= cut_first;
    if (cut_first)
        width = CUT_TO; /* libsmartcols cuts columns with such a hint before others */
    bool dash = word.p[word.n - 1] == '-';
    word.n -= dash;
    struct listing_column *column = &l->column[l->n_columns];
    *column = (struct listing_column){.dash = dash};
    const struct listing_field *f = find_field(l->form.fields, word, &column->at);
    column->field = f;

    char heading[32];
    snprintf(heading, sizeof heading, "%s", f->heading ? f->heading : f->name);
    for (char *c = heading; *c && !f->heading; c++)
        *c = *c == '_' ? '-' : (char)toupper((unsigned char)*c);

    bool number = f->type == LISTING_INT || f->type == LISTING_SMALL || f->type == LISTING_ABOUT;
    bool right = number || f->type == LISTING_AGE;
    int flags = (right ? SCOLS_FL_RIGHT : 0) | (cut ? SCOLS_FL_TRUNC : 0);
    if (!scols_table_new_column(l->tb, heading, width, flags))
        return err_nomem(err);
    l->n_columns++;
    return 0;
}

#define PAGE_LINES 1000 /* rows held in memory; a listing may have any number */

/* Prints the lines so far and drops them. Later pages have no headings, and no narrower columns. */
static int print_page(struct libscols_table *tb, struct error *err)
{
    int r = scols_print_table(tb);
    scols_table_enable_noheadings(tb, 1);
    for (size_t i = 0; i < scols_table_get_ncols(tb); i++) {
        struct libscols_column *column = scols_table_get_column(tb, i);
        scols_column_set_whint(column, (double)scols_column_get_width(column));
    }
    scols_table_remove_lines(tb);
    return table_error(r, err);
}

static int add_cell(struct listing *l, struct libscols_line *ln, size_t i, const void *row)
{
    const struct listing_field *f = l->column[i].field;
    struct buf text;
    buf_init(&text, LISTING_MAX);
    add_text(&text, f, at_offset(row, l->column[i].at));
    if (text.n == 0 && l->column[i].dash)
        buf_addc(&text, '-');
    int r = set_cell(ln, i, &text);

    const struct listing_color *k = f->colors;
    while (k && k->text && !str_is((struct str){text.p, text.n}, k->text))
        k++;
    const char *color = k ? k->color : NULL;
    buf_release(&text);
    struct libscols_cell *cell = scols_line_get_cell(ln, i);
    if (r == 0 && color && cell)
        r = scols_cell_set_color(cell, color);
    return r;
}

/* ---- listings ---- */

int listing_start(struct listing *l, const struct listing_form *form, struct error *err)
{
    *l = (struct listing){.form = *form};
    if (form->json) {
        buf_init(&l->b, LISTING_MAX);
        buf_addc(&l->b, '[');
        return 0;
    }

    l->tb = table_new(form->out, true, form->color);
    if (!l->tb)
        return err_nomem(err);
    const char *list = form->columns;
    struct str word;
    int r = 0;
    while (r == 0 && (word = next_word(&list)).p)
        r = add_column(l, word, err);
    if (r != 0)
        scols_unref_table(l->tb);
    return r;
}

int listing_remark(struct listing *l, const struct listing_field *fields, const void *row)
{
    if (l->failed.code)
        return -1;
    buf_adds(&l->b, l->n ? ",\n" : "\n");
    listing_object(&l->b, fields, row);
    l->n++;
    return listing_flush(&l->b, l->form.out, &l->failed);
}

int listing_add(struct listing *l, const void *row)
{
    if (l->form.json)
        return listing_remark(l, l->form.fields, row);
    if (l->failed.code)
        return -1;

    l->n++;
    if (scols_table_get_nlines(l->tb) >= PAGE_LINES && print_page(l->tb, &l->failed) != 0)
        return -1;
    struct libscols_line *ln = scols_table_new_line(l->tb, NULL);
    for (size_t i = 0; ln && i < l->n_columns; i++) {
        if (add_cell(l, ln, i, row) != 0)
            ln = NULL;
    }
    return ln ? 0 : err_nomem(&l->failed);
}

int listing_end(struct listing *l, int r, struct error *err)
{
    if (r == 0 && l->failed.code) {
        *err = l->failed;
        r = -1;
    }
    if (r == 0 && l->tb && !scols_table_is_empty(l->tb))
        r = table_error(scols_print_table(l->tb), err);
    if (r == 0 && !l->tb) {
        buf_adds(&l->b, l->n ? "\n]\n" : "]\n");
        r = listing_flush(&l->b, l->form.out, err);
    }
    if (l->tb)
        scols_unref_table(l->tb);
    buf_release(&l->b);
    return r;
}

int listing_rows(const struct listing_form *form, const void *rows, size_t n, size_t size,
                 struct error *err)
{
    struct listing l;
    if (listing_start(&l, form, err) != 0)
        return -1;
    for (size_t i = 0; i < n; i++)
        listing_add(&l, (const char *)rows + i * size);
    return listing_end(&l, 0, err);
}

/* Adds a line with a name and a value, unless the value is empty. */
static int add_pair(struct libscols_table *tb, const struct listing_field *f, const void *row)
{
    char label[64];
    struct buf value;
    struct libscols_line *ln = NULL;
    snprintf(label, sizeof label, "%s", f->label ? f->label : f->name);
    for (char *c = label; (c = strchr(c, '_'));)
        *c = ' ';
    buf_init(&value, LISTING_MAX);
    add_text(&value, f, row);

    int r = value.failed ? -1 : 0;
    if (r == 0 && value.n) {
        ln = scols_table_new_line(tb, NULL);
        r = ln && scols_line_set_data(ln, 0, label) == 0 ? set_cell(ln, 1, &value) : -1;
    }
    buf_release(&value);
    return r;
}

int listing_pairs(FILE *out, const struct listing_field *fields, const char *names, const void *row,
                  struct error *err)
{
    struct libscols_table *tb = table_new(out, false, false);
    if (!tb)
        return err_nomem(err);
    bool made = scols_table_new_column(tb, "NAME", 0, 0) &&
                scols_table_new_column(tb, "VALUE", 0, 0);
    int r = made ? 0 : err_nomem(err);

    struct str word;
    while (r == 0 && (word = next_word(&names)).p) {
        size_t at = 0;
        const struct listing_field *f = find_field(fields, word, &at);
        if (add_pair(tb, f, at_offset(row, at)) != 0)
            r = err_nomem(err);
    }
    if (r == 0)
        r = table_error(scols_print_table(tb), err);
    scols_unref_table(tb);
    return r;
}

/* ---- documentation ---- */

static const char *type_name(const struct listing_field *f)
{
    switch (f->type) {
    case LISTING_TEXT:
    case LISTING_CHARS:
    case LISTING_NAME:
    case LISTING_STR: return "string";
    case LISTING_NOT:
    case LISTING_BOOL: return "boolean";
    case LISTING_TIME: return "time";
    case LISTING_AGE: return "milliseconds";
    case LISTING_JSON: return "JSON";
    case LISTING_OBJECT: return "object";
    case LISTING_LIST: return "array";
    case LISTING_STRINGS: return "array of strings";
    case LISTING_OWN: return f->kind;
    default: return "integer";
    }
}

static void document_fields(const struct listing_field *fields, const char *before,
                            listing_visit *visit, void *ctx)
{
    for (const struct listing_field *f = fields; f->name; f++) {
        char path[96];
        if (f->people_only)
            continue;
        if (f->type == LISTING_PART) {
            document_fields(f->sub, before, visit, ctx);
            continue;
        }
        snprintf(path, sizeof path, "%s%s", before, f->name);
        visit(ctx, path, type_name(f), f->help);
        if (!f->sub)
            continue;
        snprintf(path, sizeof path, "%s%s%s.", before, f->name,
                 f->type == LISTING_LIST ? "[]" : "");
        document_fields(f->sub, path, visit, ctx);
    }
}

void listing_document(const struct listing_field *fields, listing_visit *visit, void *ctx)
{
    document_fields(fields, "", visit, ctx);
}
