/* JSON: accepted text can be walked, read and written again; refused text has a reason that points
 * into it. */
#include "base/json.h"
#include "fuzz.h"

#define WALK_MAX 20000

static void walk(struct json v, int depth, int *left)
{
    struct json member, found;
    struct str name;
    size_t it = 0;
    int64_t number;
    MUST(depth <= JSON_MAX_DEPTH);
    if (v.type == JSON_NUMBER)
        json_int(v, &number);
    if (v.type != JSON_ARRAY && v.type != JSON_OBJECT)
        MUST(json_equal(v, v));
    while (json_each(v, &it, &name, &member)) {
        if (--*left < 0)
            return;
        if (v.type == JSON_OBJECT) {
            struct buf b;
            buf_init(&b, 1 << 20);
            json_unescape(name, &b);
            MUST(!b.failed && utf8_valid((struct str){b.p ? b.p : "", b.n}, NULL));
            MUST(json_get(v, (struct str){b.p ? b.p : "", b.n}, &found));
            buf_release(&b);
        }
        walk(member, depth + 1, left);
    }
}

/* A string that is unescaped and quoted again means the same. */
static void again(struct json v)
{
    struct buf b, quoted;
    struct json back;
    if (v.type != JSON_STRING)
        return;
    buf_init(&b, 1 << 21);
    buf_init(&quoted, 1 << 23);
    json_unescape(v.raw, &b);
    json_quote(&quoted, (struct str){b.p ? b.p : "", b.n});
    MUST(!b.failed && !quoted.failed);
    MUST(json_parse((struct str){quoted.p, quoted.n}, &back, NULL, NULL) == 0);
    MUST(json_equal(v, back));
    buf_release(&b);
    buf_release(&quoted);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct str text = {(const char *)data, n};
    struct json v;
    struct buf flat;
    const char *why = NULL;
    size_t at = 0;
    int left = WALK_MAX;
    if (!data)
        return 0;
    if (json_parse(text, &v, &why, &at) != 0) {
        MUST(why && *why && at <= n);
        return 0;
    }
    MUST(utf8_valid(text, NULL));
    walk(v, 0, &left);
    again(v);
    buf_init(&flat, n + 1);
    json_flat(&flat, text);
    MUST(!flat.failed && flat.n == n && !memchr(flat.p, '\n', flat.n) &&
         !memchr(flat.p, '\r', flat.n));
    MUST(json_parse((struct str){flat.p, flat.n}, NULL, NULL, NULL) == 0);
    buf_release(&flat);
    return 0;
}
