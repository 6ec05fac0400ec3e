/* A NATS server's answers, and our subjects. The first byte of the input selects what the rest is:
 * an answer to a message, information on a stream, the position of a message, an error, or a
 * subject template with a value for its fields, after a line feed. */
#include "fuzz.h"
#include "sink/nats_impl.h"

/* Only an answer with a place in a stream, and without an error, means that an event is stored. */
static void ack(struct str text)
{
    struct nats_answer a = nats_reply_ack(text);
    struct json o, v;
    bool parsed = json_parse(text, &o, NULL, NULL) == 0;
    if (a.kind == NATS_STORED) {
        MUST(parsed && o.type == JSON_OBJECT && a.seq > 0);
        MUST(json_get(o, STR("stream"), &v) && json_get(o, STR("seq"), &v));
        MUST(!json_get(o, STR("error"), &v) || v.type != JSON_OBJECT);
    } else {
        MUST(a.kind == NATS_REFUSED || a.kind == NATS_NOT_ANSWERED);
        MUST(a.code >= 0 && a.code < 1000000);
    }
    free(a.text);
}

static void stream(struct str text)
{
    char name[] = "S", wanted[] = "s.a";
    struct nats_settings set = {.stream = name, .subject = wanted, .fixed = true};
    struct nats_stream st = {0};
    struct error err = {0};
    char said[900];
    bool fits = nats_stream_read(text, &set, &st, &err) == 0;
    MUST(fits || err.code != ERR_NONE);
    MUST(!fits || (nats_stream_accepts(&st, STR("s.a")) && !st.no_ack && !st.sealed));
    nats_stream_caution(&st, &set, 90000, said, sizeof said);
    MUST(strlen(said) < sizeof said && !strchr(said, '\n'));
    nats_stream_release(&st);
}

static void place(const char *text)
{
    uint64_t seq, pending;
    bool is_place = nats_reply_position(text, &seq, &pending);
    MUST(!is_place || strncmp(text, "$JS.ACK.", 8) == 0);
    char *subject = nats_reply_subject(text);
    MUST(!subject || strstr(text, subject));
    free(subject);
    (void)nats_reply_token(text);
}

/* is_subject tells whether it has no wildcards, no blanks, and no empty tokens. */
static bool is_subject(struct str s)
{
    char last = '.';
    for (size_t i = 0; i < s.n; i++) {
        bool odd = (unsigned char)s.p[i] <= ' ' || s.p[i] == '*' || s.p[i] == '>';
        if (odd || (s.p[i] == '.' && last == '.'))
            return false;
        last = s.p[i];
    }
    return last != '.';
}

/* A template that passes its check creates only subjects, whatever the event's fields contain, and
 * the stream that we would create accepts them all. */
static void subject(const char *text)
{
    char *copy = strdup(text), *value = strchr(copy, '\n');
    struct template *t = NULL;
    struct error err = {0};
    if (value)
        *value++ = '\0';
    if (!value || template_new(copy, &t, &err) != 0 || nats_subject_check(copy, &err) != 0) {
        template_free(t);
        free(copy);
        return;
    }
    struct str v = str_of(value);
    struct event ev = {.type = v, .aggregate_type = v, .aggregate_id = v, .tenant = v};
    struct buf name, pattern;
    buf_init(&name, NATS_SUBJECT_MAX);
    buf_init(&pattern, NATS_SUBJECT_MAX);
    nats_subject_pattern(copy, &pattern);
    bool made_one = template_write(t, &ev, nats_subject_escape, &name, &err) == 0;
    struct str made = {name.p, name.n};
    if (made_one && nats_subject_whole(made)) {
        MUST(is_subject(made));
        MUST(nats_stream_covers((struct str){pattern.p, pattern.n}, made));
    }
    buf_release(&name);
    buf_release(&pattern);
    template_free(t);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n == 0)
        return 0;
    char *text = fuzz_text(data + 1, n - 1);
    struct str s = {text, n - 1};
    switch (data[0]) {
    case 'a': ack(s); break;
    case 'i': stream(s); break;
    case 'p': place(text); break;
    case 's': subject(text); break;
    default: break;
    }
    free(text);
    return 0;
}
