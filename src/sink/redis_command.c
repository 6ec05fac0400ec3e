/* redis_command.c: writes the commands that append events directly into the connection's buffer,
 * because hiredis would copy every payload once more. */
#include <stdio.h>

#include "event/event_json.h"
#include "sink/redis_impl.h"

/* A script appends a run, and stops at the first entry that Redis refuses: no later event of the
 * key may overtake it. It returns the ids, followed by the error if one occurred. EVAL sends the
 * text each time. Hashing it costs Redis about a microsecond, and spares us handling EVALSHA's
 * NOSCRIPT after a restart or a failover. */
#define APPEND(before, limit) \
    "local call,key,args,ids=redis.pcall,KEYS[1],ARGV,{} " \
    "for i=1,#args-" before " do " \
    "local id=call('XADD',key," limit "'*','event',args[i+" before "]) " \
    "ids[i]=id " \
    "if type(id)~='string' then break end " \
    "end " \
    "return ids"
/* The same for entries with several fields. The number of its arguments precedes each entry. */
#define APPEND_FIELDS(before, limit) \
    "local call,key,args,ids=redis.pcall,KEYS[1],ARGV,{} " \
    "local at=1+" before " " \
    "while at<=#args do " \
    "local last=at+tonumber(args[at]) " \
    "local id=call('XADD',key," limit "'*',unpack(args,at+1,last)) " \
    "ids[#ids+1]=id " \
    "if type(id)~='string' then break end " \
    "at=last+1 " \
    "end " \
    "return ids"
#define LIMIT "args[1],'~',args[2],"
/* The same with dedupe, which remembers ids. KEYS[2] is a hash from event ids to entry ids. An
 * event found in this hash is not appended again; its existing entry id is returned. Before the
 * entries, the arguments have the hash's time to live and a time; ids older than that time are
 * deleted, two per call, because a relay that crashed cannot report that they are settled. The
 * event's id precedes each entry's number of arguments. */
#define APPEND_ONCE(before, limit) \
    "local call,key,seen,args,ids=redis.pcall,KEYS[1],KEYS[2],ARGV,{} " \
    "local at=3+" before " " \
    "while at<=#args do " \
    "local last=at+1+tonumber(args[at+1]) " \
    "local id=call('HGET',seen,args[at]) " \
    "if not id then " \
    "id=call('XADD',key," limit "'*',unpack(args,at+2,last)) " \
    "if type(id)=='string' then call('HSET',seen,args[at],id) end " \
    "end " \
    "ids[#ids+1]=id " \
    "if type(id)~='string' then break end " \
    "at=last+1 " \
    "end " \
    "local some=call('HRANDFIELD',seen,2,'WITHVALUES') " \
    "for i=2,#some,2 do " \
    "if tonumber(string.match(some[i],'^%d+'))<tonumber(args[2+" before "]) then " \
    "call('HDEL',seen,some[i-1]) end " \
    "end " \
    "call('PEXPIRE',seen,args[1+" before "]) " \
    "return ids"

/* The entries that a script appends: envelopes, entries with several fields, or the latter with
 * dedupe. */
enum script { SCRIPT_ENVELOPES, SCRIPT_FIELDS, SCRIPT_ONCE };

/* The scripts, by kind and by whether the length of the stream is limited. */
static const char *const append[3][2] = {
    [SCRIPT_ENVELOPES] = {APPEND("0", ""), APPEND("2", LIMIT)},
    [SCRIPT_FIELDS] = {APPEND_FIELDS("0", ""), APPEND_FIELDS("2", LIMIT)},
    [SCRIPT_ONCE] = {APPEND_ONCE("0", ""), APPEND_ONCE("2", LIMIT)},
};

static enum script script_of(const struct redis_sink *r)
{
    if (r->set.dedupe)
        return SCRIPT_ONCE;
    if (r->b.style.format != MESSAGE_CONTRACT)
        return SCRIPT_FIELDS;
    return SCRIPT_ENVELOPES;
}

#define ADD(b, literal) buf_add(b, literal, sizeof(literal) - 1)

/* Begins a command with this number of arguments. */
static void add_head(struct buf *b, size_t args)
{
    ADD(b, "*");
    buf_addi64(b, (int64_t)args);
    ADD(b, "\r\n");
}

static void add_bulk(struct buf *b, struct str s)
{
    ADD(b, "$");
    buf_addi64(b, (int64_t)s.n);
    ADD(b, "\r\n");
    buf_addstr(b, s);
    ADD(b, "\r\n");
}

/* The argument of MAXLEN or MINID. It always has ~, which lets Redis keep a little more and is much
 * faster. */
struct limit {
    struct str how;
    char value[24];
};

static struct limit limit_of(const struct redis_sink *r)
{
    struct limit l = {.how = STR("MAXLEN")};
    int64_t n = r->set.maxlen;
    if (!r->set.maxlen) {
        l.how = STR("MINID");
        n = clock_wall(r->b.base.cfg.clock) - r->set.maxage_ms;
    }
    if (n < 0)
        n = 0;
    snprintf(l.value, sizeof l.value, "%lld", (long long)n);
    return l;
}

/* A stream entry under construction. (1) n is the number of arguments for its fields. */
struct entry {
    struct str stream;
    struct message m; /* in every format but the contract's */
    size_t n;
};

/* Returns whether a header has the name of a reserved field. Such a header is omitted. */
static bool is_taken(struct str name)
{
    return str_is(name, "value") || str_is(name, "content-type");
}

/* Builds the message of an entry; add_entry writes the contract's envelope. */
static int prepare(struct redis_sink *r, const struct delivery *d, struct str stream,
                   struct entry *ret, struct error *err)
{
    ret->stream = stream;
    ret->n = 2;
    if (r->b.style.format == MESSAGE_CONTRACT)
        return 0;
    if (broker_message(&r->b, d, stream, &ret->m, err) != 0)
        return -1;
    if (ret->m.content_type.p)
        ret->n += 2;
    for (size_t i = 0; i < ret->m.n; i++)
        if (!is_taken(ret->m.headers[i].name))
            ret->n += 2;
    return 0;
}

/* Writes the event as an argument. If out of memory, writes nothing and marks the buffer as
 * failed. */
static void add_envelope(struct redis_sink *r, const struct event *ev, struct str stream,
                         struct buf *b)
{
    buf_clear(&r->b.text);
    event_envelope_write(&r->b.text, ev, stream);
    if (r->b.text.failed)
        b->failed = true;
    else
        add_bulk(b, (struct str){r->b.text.p, r->b.text.n});
}

/* Writes the fields of an entry: the envelope, or the value, the content type and the headers of a
 * message. */
static void add_entry(struct redis_sink *r, const struct event *ev, const struct entry *e,
                      struct buf *b)
{
    const struct message *m = &e->m;
    if (r->b.style.format == MESSAGE_CONTRACT) {
        ADD(b, "$5\r\nevent\r\n");
        add_envelope(r, ev, e->stream, b);
        return;
    }
    ADD(b, "$5\r\nvalue\r\n");
    add_bulk(b, m->value);
    if (m->content_type.p) {
        ADD(b, "$12\r\ncontent-type\r\n");
        add_bulk(b, m->content_type);
    }
    for (size_t i = 0; i < m->n; i++) {
        if (is_taken(m->headers[i].name))
            continue;
        add_bulk(b, m->headers[i].name);
        add_bulk(b, m->headers[i].value);
    }
}

static void add_number(struct buf *b, int64_t n)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)n);
    add_bulk(b, str_of(text));
}

/* Removes a partially written command if memory ran out. */
static int whole(struct buf *b, size_t before, struct error *err)
{
    if (!b->failed)
        return 0;
    buf_truncate(b, before);
    return err_nomem(err);
}

int redis_command_xadd(struct redis_node *n, const struct delivery *d, const struct stream *st,
                       struct error *err)
{
    struct redis_sink *r = n->sink;
    struct buf *b = &n->conn.wire.out;
    struct str name = {st->name, st->n};
    struct entry e;
    size_t before = b->n;
    if (prepare(r, d, name, &e, err) != 0)
        return -1;

    bool limited = redis_limited(r);
    add_head(b, 3 + (limited ? 3u : 0u) + e.n);
    ADD(b, "$4\r\nXADD\r\n");
    add_bulk(b, name);
    if (limited) {
        struct limit limit = limit_of(r);
        add_bulk(b, limit.how);
        add_bulk(b, STR("~"));
        add_bulk(b, str_of(limit.value));
    }
    ADD(b, "$1\r\n*\r\n");
    add_entry(r, d->ev, &e, b);
    return whole(b, before, err);
}

/* Writes the entries of a run as arguments of the script into r->args and returns the number of
 * arguments. Returns 0 with an error if the first event cannot be expressed, or if out of memory.
 * Reduces *count to the events before the first one that cannot be expressed. */
static size_t add_entries(struct redis_sink *r, struct delivery *const *d, size_t *count,
                          struct str stream, struct error *err)
{
    enum script script = script_of(r);
    struct buf *b = &r->args;
    size_t args = 0;
    buf_clear(b);
    for (size_t i = 0; i < *count; i++) {
        const struct event *ev = d[i]->ev;
        struct entry e;
        if (prepare(r, d[i], stream, &e, err) != 0) {
            *count = i;
            break;
        }
        if (script == SCRIPT_ENVELOPES) {
            add_envelope(r, ev, stream, b);
            args++;
            continue;
        }
        if (script == SCRIPT_ONCE) {
            add_bulk(b, ev->id);
            args++;
        }
        add_number(b, (int64_t)e.n);
        add_entry(r, ev, &e, b);
        args += 1 + e.n;
    }
    if (!b->failed)
        return args;
    err_nomem(err);
    return 0;
}

/* Builds the name of the key that remembers a stream's event ids. It has the stream's hash tag,
 * because all keys of a script must be in one slot of a cluster. */
static int make_seen(struct redis_sink *r, struct str stream, struct error *err)
{
    struct str tag = redis_cluster_tag(stream);
    bool braces = memchr(tag.p, '}', tag.n) || memchr(tag.p, '{', tag.n);
    if (braces && r->map)
        return err_set(err, ERR_INVALID,
                       "the name of its stream has a brace outside a hash tag, which dedupe=on "
                       "does not support");
    buf_clear(&r->seen);
    buf_addf(&r->seen, "outbox:seen:{");
    buf_addstr(&r->seen, tag);
    buf_addf(&r->seen, "}:%s:", r->b.base.cfg.consumer);
    buf_addstr(&r->seen, stream);
    if (r->seen.failed)
        return err_nomem(err);
    return 0;
}

int redis_command_run(struct redis_node *n, struct delivery *const *d, size_t *count,
                      const struct stream *st, struct error *err)
{
    struct redis_sink *r = n->sink;
    struct buf *b = &n->conn.wire.out;
    struct str name = {st->name, st->n};
    bool once = script_of(r) == SCRIPT_ONCE, limited = redis_limited(r);
    size_t before = b->n;
    if (once && make_seen(r, name, err) != 0)
        return -1;
    size_t args = add_entries(r, d, count, name, err);
    if (args == 0)
        return -1;

    /* EVAL, the script, the number of keys, the keys, and the arguments before the entries */
    add_head(b, 4 + (once ? 3u : 0u) + (limited ? 2u : 0u) + args);
    ADD(b, "$4\r\nEVAL\r\n");
    add_bulk(b, str_of(append[script_of(r)][limited]));
    add_bulk(b, once ? STR("2") : STR("1"));
    add_bulk(b, name);
    if (once)
        add_bulk(b, (struct str){r->seen.p, r->seen.n});
    if (limited) {
        struct limit limit = limit_of(r);
        add_bulk(b, limit.how);
        add_bulk(b, str_of(limit.value));
    }
    if (once) {
        add_number(b, r->set.dedupe_ms);
        add_number(b, clock_wall(r->b.base.cfg.clock) - r->set.dedupe_ms);
    }
    buf_add(b, r->args.p, r->args.n);
    return whole(b, before, err);
}

void redis_command_forget(struct redis_node *n, const struct event *const *ev, size_t count,
                          struct str stream)
{
    struct error err;
    struct buf *b = &n->conn.wire.out;
    size_t before = b->n;
    if (make_seen(n->sink, stream, &err) != 0)
        return;
    add_head(b, 2 + count);
    ADD(b, "$4\r\nHDEL\r\n");
    add_bulk(b, (struct str){n->sink->seen.p, n->sink->seen.n});
    for (size_t i = 0; i < count; i++)
        add_bulk(b, ev[i]->id);
    if (whole(b, before, &err) == 0)
        redis_node_push(n, REQUEST_FORGET, NULL, NULL);
}
