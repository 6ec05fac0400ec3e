/* expand.c: the marks in our SQL, and what they stand for. */
#include "base/buf.h"
#include "store/postgres/postgres.h"

/* put_mark writes what the mark at p stands for, and returns the length of the mark; 0: there is
 * none. */
static size_t put_mark(const struct pg_store *st, const char *p, bool in_literal, struct buf *b)
{
    static const char schema[] = "@schema@", version[] = "@version@";
    if (strncmp(p, schema, sizeof schema - 1) == 0) {
        buf_adds(b, in_literal ? st->literal : st->quoted);
        return sizeof schema - 1;
    }
    if (strncmp(p, version, sizeof version - 1) == 0) {
        buf_addf(b, "%d", PG_SCHEMA_VERSION);
        return sizeof version - 1;
    }
    return 0;
}

/* pg_expand doubles the single quotes of the schema's name inside a literal. A literal begins and
 * ends with a single quote, so the two that stand for one inside it make no difference. In a
 * comment quotes mean nothing. */
char *pg_expand(const struct pg_store *st, const char *sql)
{
    struct buf b;
    bool literal = false;
    buf_init(&b, 1 << 20);
    for (const char *p = sql; *p;) {
        if (*p == '@') {
            size_t mark = put_mark(st, p, literal, &b);
            p += mark;
            if (mark > 0)
                continue;
        }
        bool comment = !literal && strncmp(p, "--", 2) == 0;
        size_t n = comment ? strcspn(p, "\n") : 1;
        if (*p == '\'')
            literal = !literal;
        buf_add(&b, p, n);
        p += n;
    }
    const char *whole = buf_cstr(&b);
    char *text = whole ? strdup(whole) : NULL;
    buf_release(&b);
    return text;
}
