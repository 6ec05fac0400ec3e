/* member.c: members of a JSON object. */
#include "listing/listing.h"

#include <string.h>

#include "base/json.h"
#include "base/utf8.h"

void member_start(struct buf *b, const char *name)
{
    bool first = b->n == 0 || strchr("{[", b->p[b->n - 1]);
    if (!first)
        buf_addc(b, ',');
    json_quote(b, str_of(name));
    buf_addc(b, ':');
}

void member_value(struct buf *b, struct str value)
{
    if (value.p && utf8_valid(value, NULL))
        json_quote(b, value);
    else
        buf_adds(b, "null");
}

void member_flat(struct buf *b, struct str json)
{
    size_t start = b->n;
    json_flat(b, json);
    for (size_t i = start; i < b->n; i++)
        if (b->p[i] == '\t')
            b->p[i] = ' ';
}

void member_json(struct buf *b, struct str json)
{
    bool valid = json.p && json_parse(json, NULL, NULL, NULL) == 0;
    if (valid)
        member_flat(b, json);
    else
        member_value(b, json);
}

void member_str(struct buf *b, const char *name, struct str value)
{
    member_start(b, name);
    member_value(b, value);
}

void member_text(struct buf *b, const char *name, const char *value)
{
    member_str(b, name, str_of(value));
}

void member_int(struct buf *b, const char *name, int64_t value)
{
    member_start(b, name);
    buf_addi64(b, value);
}

void member_bool(struct buf *b, const char *name, bool value)
{
    member_start(b, name);
    buf_adds(b, value ? "true" : "false");
}

void member_time(struct buf *b, const char *name, int64_t wall_ms)
{
    char text[CLOCK_RFC3339_SIZE];
    member_text(b, name, wall_ms ? human_time(wall_ms, text) : NULL);
}
