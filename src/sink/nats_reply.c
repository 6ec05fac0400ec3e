#include "sink/nats_reply.h"

#include <stdlib.h>

#include "base/text.h"

#define TEXT_SIZE 200
#define ACK_TOKENS 9       /* $JS ACK stream consumer delivered seq cseq time pending */
#define ACK_TOKENS_LONG 12 /* two more after ACK, and one at the end */

/* Copies a string, cleaned; "" if it is not one. */
static void string_of(struct json v, char *out, size_t size)
{
    struct buf b;
    buf_init(&b, 4096);
    if (v.type == JSON_STRING)
        json_unescape(v.raw, &b);
    text_clean(out, size, b.p ? b.p : "", b.n);
    buf_release(&b);
}

bool nats_reply_error(struct json o, int *ret_code, char *text, size_t size)
{
    struct json e, code, description;
    if (!json_get(o, STR("error"), &e) || e.type != JSON_OBJECT)
        return false;
    *ret_code = 0;
    int64_t n;
    bool has_code = json_get(e, STR("err_code"), &code) || json_get(e, STR("code"), &code);
    if (has_code && json_int(code, &n) && n > 0 && n < 1000000)
        *ret_code = (int)n;
    text[0] = '\0';
    if (json_get(e, STR("description"), &description))
        string_of(description, text, size);
    return true;
}

struct nats_answer nats_reply_ack(struct str text)
{
    struct nats_answer a = {.kind = NATS_NOT_ANSWERED};
    struct json o, v;
    int64_t seq;
    char said[TEXT_SIZE];
    if (json_parse(text, &o, NULL, NULL) != 0)
        return a;
    if (nats_reply_error(o, &a.code, said, sizeof said)) {
        a.kind = NATS_REFUSED;
        a.text = strdup(said);
        return a;
    }

    bool stored = json_get(o, STR("seq"), &v) && json_int(v, &seq) && seq > 0;
    stored = stored && json_get(o, STR("stream"), &v) && v.type == JSON_STRING;
    if (!stored)
        return a;
    a.kind = NATS_STORED;
    a.seq = (uint64_t)seq;
    a.duplicate = json_get(o, STR("duplicate"), &v) && v.type == JSON_TRUE;
    return a;
}

/* Parses a decimal number of at most 19 digits. */
static bool number(const char *p, size_t n, uint64_t *ret)
{
    uint64_t v = 0;
    if (n == 0 || n > 19)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (p[i] < '0' || p[i] > '9')
            return false;
        v = v * 10 + (uint64_t)(p[i] - '0');
    }
    *ret = v;
    return true;
}

uint64_t nats_reply_token(const char *text)
{
    uint64_t token;
    if (!number(text, strlen(text), &token))
        return 0;
    return token;
}

bool nats_reply_place(const char *text, uint64_t *ret_seq, uint64_t *ret_pending)
{
    struct str token[ACK_TOKENS_LONG];
    size_t n = 0;
    for (const char *p = text; n < ACK_TOKENS_LONG; p++) {
        size_t len = strcspn(p, ".");
        token[n++] = (struct str){p, len};
        p += len;
        if (*p == '\0')
            break;
    }
    if (n < ACK_TOKENS || !str_is(token[0], "$JS") || !str_is(token[1], "ACK"))
        return false;
    size_t skip = n > ACK_TOKENS ? 2 : 0;
    struct str seq = token[5 + skip], pending = token[8 + skip];
    return n >= ACK_TOKENS + skip && number(seq.p, seq.n, ret_seq) &&
           number(pending.p, pending.n, ret_pending);
}

char *nats_reply_subject(const char *said)
{
    const char *open = strchr(said, '"');
    const char *close = open ? strchr(open + 1, '"') : NULL;
    if (!close || !strcasestr(said, "publish"))
        return NULL;
    return strndup(open + 1, (size_t)(close - open - 1));
}
