/* listen_print.c: what `webhook listen` prints about a request, as text or as JSON. Everything in a
 * request comes from strangers, so none of it reaches the terminal as it is. */
#include <string.h>

#include "base/text.h"
#include "base/utf8.h"
#include "extra/webhook/listen.h"

const char *listen_header(struct visit *v, const char *name)
{
    return MHD_lookup_connection_value(v->conn, MHD_HEADER_KIND, name);
}

/* clean_body appends the body as one line that is safe for a terminal. It works in place and in one
 * pass, since a hostile body may have 64 MiB. */
static void clean_body(struct buf *b, const struct visit *v)
{
    size_t start = b->n;
    buf_add(b, v->body.p, v->body.n);
    buf_addc(b, '\0'); /* text_clean ends its output with a NUL */
    if (b->failed)
        return;
    b->n = start + text_clean(b->p + start, v->body.n + 1, b->p + start, v->body.n);
}

/* print_text prints a line about the request and one with its body. All of it comes from
 * strangers. */
static void print_text(struct listener *l, struct visit *v, const char *what, const char *verdict)
{
    static const char *const names[] = {"ce-type", "ce-subject", "webhook-id"};
    char now[CLOCK_RFC3339_SIZE];
    clock_rfc3339(clock_wall(&clock_system), now);
    buf_addf(&l->line, "%s ", now);
    output_clean(&l->line, what);
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        const char *value = listen_header(v, names[i]);
        if (!value)
            continue;
        buf_addc(&l->line, ' ');
        output_clean(&l->line, value);
    }
    buf_addf(&l->line, " -> %u", v->status);
    if (l->keys)
        buf_addf(&l->line, ", %s", verdict);
    buf_adds(&l->line, "\n  ");
    clean_body(&l->line, v);
    buf_addc(&l->line, '\n');
}

/* add_header adds a header to the JSON object b. A name that is not UTF-8 is made so. */
static enum MHD_Result add_header(void *b, enum MHD_ValueKind kind, const char *name,
                                  const char *value)
{
    char clean[256];
    (void)kind;
    if (!utf8_valid(str_of(name), NULL)) {
        text_clean(clean, sizeof clean, name, strlen(name));
        name = clean;
    }
    output_string(b, name, value ? value : "");
    return MHD_YES;
}

static void print_json(struct listener *l, struct visit *v, const char *what, const char *verdict)
{
    buf_adds(&l->line, "{");
    output_string(&l->line, "request", what);
    output_number(&l->line, "status", v->status);
    output_string(&l->line, "verdict", l->keys ? verdict : NULL);
    output_member(&l->line, "headers");
    buf_addc(&l->line, '{');
    MHD_get_connection_values(v->conn, MHD_HEADER_KIND, add_header, &l->line);
    buf_addc(&l->line, '}');
    output_str(&l->line, "body", (struct str){v->body.p ? v->body.p : "", v->body.n});
    buf_adds(&l->line, "}\n");
}

void listen_print(struct listener *l, struct visit *v, const char *what, const char *verdict)
{
    if (l->w->quiet || l->err.code)
        return;
    if (l->cli->args.json)
        print_json(l, v, what, verdict);
    else
        print_text(l, v, what, verdict);
    if (l->line.failed) { /* too large to print: half of it would mislead */
        buf_clear(&l->line);
        buf_addf(&l->line, "(%zu bytes)\n", v->body.n);
    }
    if (output_flush(&l->line, &l->err) == 0)
        output_end(&l->err);
}
