/* nats_stream.c: parses JetStream's description of a stream, and its replies. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/num.h"
#include "base/str.h"
#include "base/text.h"
#include "sink/nats_impl.h"

#define SUBJECTS_MAX ((size_t)1 << 20)
#define TEXT_SIZE 200
#define ACK_TOKENS 9       /* $JS ACK stream consumer delivered seq cseq time pending */
#define ACK_TOKENS_LONG 12 /* two more after ACK, and one at the end */

/* The stream */

/* Returns the number with this name; 0 if it is absent. */
static int64_t number_of(struct json o, struct str name)
{
    struct json v;
    int64_t n;
    bool is_number = json_get(o, name, &v) && json_int(v, &n);
    return is_number ? n : 0;
}

/* Returns a limit; 0 for no limit, which the server writes as -1. */
static int64_t limit_of(struct json o, struct str name)
{
    int64_t n = number_of(o, name);
    return n > 0 ? n : 0;
}

static bool is_true(struct json o, struct str name)
{
    struct json v;
    return json_get(o, name, &v) && v.type == JSON_TRUE;
}

/* Copies the string with this name, cleaned; "" if there is none. */
static void text_of(struct json o, struct str name, char *out, size_t size)
{
    struct json v;
    struct buf b;
    buf_init(&b, 4096);
    if (json_get(o, name, &v) && v.type == JSON_STRING)
        json_unescape(v.raw, &b);
    text_clean(out, size, b.p ? b.p : "", b.n);
    buf_release(&b);
}

static bool text_is(struct json o, struct str name, const char *value)
{
    char text[32];
    text_of(o, name, text, sizeof text);
    return strcmp(text, value) == 0;
}

/* Returns the first token of a subject. */
static struct str first_token(struct str s)
{
    const char *dot = s.n ? memchr(s.p, '.', s.n) : NULL;
    return (struct str){s.p, dot ? (size_t)(dot - s.p) : s.n};
}

static struct str rest_after(struct str s, struct str token)
{
    if (token.n == s.n)
        return (struct str){s.p + s.n, 0};
    return (struct str){s.p + token.n + 1, s.n - token.n - 1};
}

bool nats_stream_covers(struct str pattern, struct str other)
{
    while (pattern.n > 0 && other.n > 0) {
        struct str p = first_token(pattern), o = first_token(other);
        if (str_is(p, ">"))
            return true;
        bool matches = str_eq(p, o) || (str_is(p, "*") && !str_is(o, ">"));
        if (!matches)
            return false;
        pattern = rest_after(pattern, p);
        other = rest_after(other, o);
    }
    return pattern.n == 0 && other.n == 0;
}

bool nats_stream_accepts(const struct nats_stream *st, struct str subject)
{
    const char *p = st->subjects;
    while (p && *p) {
        struct str pattern = {p, strcspn(p, " ")};
        if (nats_stream_covers(pattern, subject))
            return true;
        p += pattern.n;
        if (*p) /* after a NUL from the server no blank follows */
            p++;
    }
    return false;
}

/* Stores the subject patterns of a stream. A subject cannot contain a blank, so blanks separate
 * them. */
static int read_subjects(struct json config, struct nats_stream *st, struct error *err)
{
    struct json list, v;
    struct str name;
    struct buf b;
    buf_init(&b, SUBJECTS_MAX);
    bool has_list = json_get(config, STR("subjects"), &list) && list.type == JSON_ARRAY;
    for (size_t it = 0; has_list && json_each(list, &it, &name, &v);) {
        if (v.type == JSON_STRING) {
            json_unescape(v.raw, &b);
            buf_addc(&b, ' ');
        }
    }
    const char *all = buf_cstr(&b);
    free(st->subjects);
    st->subjects = all ? strdup(all) : NULL;
    buf_release(&b);
    return st->subjects ? 0 : err_nomem(err);
}

static void read_config(struct json config, struct nats_stream *st)
{
    st->max_msgs = limit_of(config, STR("max_msgs"));
    st->max_bytes = limit_of(config, STR("max_bytes"));
    st->max_age_ms = limit_of(config, STR("max_age")) / MS_NS;
    st->max_per_subject = limit_of(config, STR("max_msgs_per_subject"));
    st->max_msg_size = limit_of(config, STR("max_msg_size"));
    st->replicas = number_of(config, STR("num_replicas"));
    st->duplicate_ms = number_of(config, STR("duplicate_window")) / MS_NS;
    st->discards_old = !text_is(config, STR("discard"), "new");
    st->in_memory = text_is(config, STR("storage"), "memory");
    st->no_ack = is_true(config, STR("no_ack"));
    st->sealed = is_true(config, STR("sealed"));
    text_of(config, STR("retention"), st->retention, sizeof st->retention);
}

static void read_state(struct json o, struct nats_stream *st)
{
    struct json state, cluster;
    if (json_get(o, STR("state"), &state)) {
        st->first_seq = (uint64_t)limit_of(state, STR("first_seq"));
        st->last_seq = (uint64_t)limit_of(state, STR("last_seq"));
    }
    st->leader[0] = '\0';
    if (json_get(o, STR("cluster"), &cluster))
        text_of(cluster, STR("leader"), st->leader, sizeof st->leader);
}

int nats_stream_read(struct str text, const struct nats_settings *set, struct nats_stream *ret,
                     struct error *err)
{
    struct json o, config;
    bool understood = json_parse(text, &o, NULL, NULL) == 0 &&
                      json_get(o, STR("config"), &config) && config.type == JSON_OBJECT;
    if (!understood)
        return err_set(err, ERR_UNAVAILABLE,
                       "the server returned no valid description of the stream");
    read_config(config, ret);
    read_state(o, ret);
    if (read_subjects(config, ret, err) != 0)
        return -1;

    if (ret->no_ack)
        return err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, 0,
                         "no_ack is set, so the stream never confirms a stored event");
    if (ret->sealed)
        return err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, 0,
                         "the stream is sealed and accepts no more messages");
    if (!set->fixed || nats_stream_accepts(ret, str_of(set->subject)))
        return 0;
    char accepts[200];
    text_clean(accepts, sizeof accepts, ret->subjects, strlen(ret->subjects));
    return err_class(err, ERR_UNAVAILABLE, CLASS_RETRY, 0,
                     "the stream accepts %s; the events go to %s",
                     accepts[0] ? accepts : "no subjects", set->subject);
}

void nats_stream_release(struct nats_stream *st)
{
    free(st->subjects);
    st->subjects = NULL;
    nats_tail_release(&st->tail);
}

void nats_stream_request(struct buf *b, const struct nats_settings *set)
{
    buf_adds(b, "{\"name\":");
    json_quote(b, str_of(set->stream));
    buf_adds(b, ",\"subjects\":[");
    json_quote(b, str_of(set->subject));
    buf_adds(b, "],\"retention\":\"limits\",\"storage\":\"file\",\"discard\":\"new\","
                "\"num_replicas\":");
    buf_addi64(b, set->replicas);
    buf_adds(b, "}");
}

static void add_risk(struct buf *b, const char *risk)
{
    if (b->n > 0)
        buf_adds(b, "; ");
    buf_adds(b, risk);
}

/* Returns the limit by which the stream drops old messages; NULL if it has no limit. */
static const char *drop_limit(const struct nats_stream *st)
{
    if (st->max_age_ms)
        return "max_age";
    if (st->max_per_subject)
        return "max_msgs_per_subject";
    if (!st->discards_old)
        return NULL;
    if (st->max_msgs)
        return "max_msgs";
    if (st->max_bytes)
        return "max_bytes";
    return NULL;
}

void nats_stream_caution(const struct nats_stream *st, const struct nats_settings *set,
                         int64_t resend_ms, char *out, size_t size)
{
    struct buf b;
    const char *limit = drop_limit(st);
    buf_init(&b, 4096);
    if (st->in_memory)
        add_risk(&b, "storage=memory: the stream's messages are lost when the server restarts");
    if (st->replicas == 1)
        add_risk(&b, "one replica: the stream's messages are lost if a disk fails");
    if (limit) {
        add_risk(&b, limit);
        buf_adds(&b, " drops events, read or unread");
    }
    if (strcmp(st->retention, "interest") == 0)
        add_risk(&b, "retention=interest drops an event that no consumer of the stream is "
                     "interested in");
    if (strcmp(st->retention, "workqueue") == 0)
        add_risk(&b, "retention=workqueue drops an event once it is read, so an event settled "
                     "late cannot be found again");
    if (!set->exclusive && st->duplicate_ms < resend_ms) {
        char window[32], resend[32];
        text_duration_show(st->duplicate_ms, window);
        text_duration_show(resend_ms, resend);
        add_risk(&b, "");
        buf_addf(&b,
                 "duplicate_window is %s, but an event may be resent after %s; it is then stored "
                 "twice unless it is among the last messages checked",
                 window, resend);
    }
    if (st->tail_error[0] != '\0') {
        add_risk(&b, "");
        buf_addf(&b, "the last messages cannot be read (%s)", st->tail_error);
    }

    out[0] = '\0';
    if (b.n > 0)
        snprintf(out, size, "stream %s: %s", set->stream, buf_cstr(&b));
    buf_release(&b);
}

/* The last messages */

int nats_tail_init(struct nats_tail *t, size_t n)
{
    size_t cap = 64;
    while (cap < n * 2)
        cap *= 2;
    *t = (struct nats_tail){.at = calloc(cap, sizeof *t->at)};
    if (!t->at)
        return -1;
    t->cap = cap;
    return 0;
}

/* Returns the slot of an id, or a free slot for it. A free slot always exists. */
static struct nats_tail_entry *place_of(const struct nats_tail *t, struct str id, uint64_t hash[2])
{
    hash[0] = hash_end(hash_add(HASH_INIT, id));
    hash[1] = hash_end(hash_add(HASH_INIT ^ UINT64_C(0x9e3779b97f4a7c15), id));
    size_t i = hash[0] & (t->cap - 1);
    while (t->at[i].seq) {
        bool same = t->at[i].hash[0] == hash[0] && t->at[i].hash[1] == hash[1];
        if (same)
            break;
        i = (i + 1) & (t->cap - 1);
    }
    return &t->at[i];
}

void nats_tail_add(struct nats_tail *t, struct str id, uint64_t seq)
{
    uint64_t hash[2];
    if (t->n * 2 >= t->cap || seq == 0)
        return;
    struct nats_tail_entry *e = place_of(t, id, hash);
    if (!e->seq)
        t->n++;
    *e = (struct nats_tail_entry){{hash[0], hash[1]}, seq};
}

uint64_t nats_tail_find(const struct nats_tail *t, struct str id)
{
    uint64_t hash[2];
    if (t->n == 0)
        return 0;
    return place_of(t, id, hash)->seq;
}

void nats_tail_release(struct nats_tail *t)
{
    free(t->at);
    *t = (struct nats_tail){0};
}

/* Replies */

bool nats_reply_error(struct json o, int *ret_code, char *text, size_t size)
{
    struct json e, code;
    if (!json_get(o, STR("error"), &e) || e.type != JSON_OBJECT)
        return false;
    *ret_code = 0;
    int64_t n;
    bool has_code = json_get(e, STR("err_code"), &code) || json_get(e, STR("code"), &code);
    if (has_code && json_int(code, &n) && n > 0 && n < 1000000)
        *ret_code = (int)n;
    text_of(e, STR("description"), text, size);
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
    return a;
}

/* Parses a decimal number of up to 63 bits. */
static bool parse_number(const char *p, size_t n, uint64_t *ret)
{
    int64_t v = 0;
    for (size_t i = 0; i < n; i++)
        if (!char_is_digit(p[i]) || !num_push(&v, p[i] - '0'))
            return false;
    *ret = (uint64_t)v;
    return n > 0;
}

uint64_t nats_reply_token(const char *text)
{
    uint64_t token = 0;
    (void)parse_number(text, strlen(text), &token);
    return token;
}

bool nats_reply_position(const char *text, uint64_t *ret_seq, uint64_t *ret_pending)
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
    return n >= ACK_TOKENS + skip && parse_number(seq.p, seq.n, ret_seq) &&
           parse_number(pending.p, pending.n, ret_pending);
}

char *nats_reply_subject(const char *said)
{
    const char *open = strchr(said, '"');
    const char *close = open ? strchr(open + 1, '"') : NULL;
    if (!close || !strcasestr(said, "publish"))
        return NULL;
    return strndup(open + 1, (size_t)(close - open - 1));
}
