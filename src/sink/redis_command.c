/* redis_command.c: writes the commands that append events. hiredis would copy every payload once
 * more, so they are written straight into the connection's buffer. */
#include <stdio.h>

#include "event/envelope.h"
#include "sink/redis_impl.h"

/* A run is appended by a script, which stops at the first entry that Redis refuses: no later event
 * of the key may overtake it. It returns the ids, followed by the error if there was one. EVAL
 * sends the text each time. That costs Redis about a microsecond for the hash, and spares us
 * EVALSHA's NOSCRIPT after a restart or a failover. */
#define APPEND(before, limit) \
    "local call,key,args,ids=redis.pcall,KEYS[1],ARGV,{} " \
    "for i=1,#args-" before " do " \
    "local id=call('XADD',key," limit "'*','event',args[i+" before "]) " \
    "ids[i]=id " \
    "if type(id)~='string' then break end " \
    "end " \
    "return ids"
static const char append[] = APPEND("0", "");
static const char append_limited[] = APPEND("2", "args[1],'~',args[2],");

#define ADD(b, literal) buf_add(b, literal, sizeof(literal) - 1)

static void add_bulk(struct buf *b, struct str s)
{
    ADD(b, "$");
    buf_addi64(b, (int64_t)s.n);
    ADD(b, "\r\n");
    buf_addstr(b, s);
    ADD(b, "\r\n");
}

/* The argument of MAXLEN or MINID. It always goes with ~, which lets Redis keep a little more and
 * is much faster. */
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
        n = clock_wall(r->base.cfg.clock) - r->set.maxage_ms;
    }
    if (n < 0)
        n = 0;
    snprintf(l.value, sizeof l.value, "%lld", (long long)n);
    return l;
}

/* add_envelope writes the event as an argument. Without memory, nothing is written and the buffer
 * counts as failed. */
static void add_envelope(struct redis_sink *r, const struct event *ev, struct str stream)
{
    struct buf *b = &r->conn.out;
    buf_clear(&r->envelope);
    envelope_write(&r->envelope, ev, stream);
    if (r->envelope.failed)
        b->failed = true;
    else
        add_bulk(b, (struct str){r->envelope.p, r->envelope.n});
}

/* whole undoes a command that is only half written because memory ran out. */
static int whole(struct buf *b, size_t before)
{
    if (!b->failed)
        return 0;
    buf_truncate(b, before);
    return -1;
}

int redis_command_xadd(struct redis_sink *r, const struct event *ev, const struct stream *st)
{
    struct buf *b = &r->conn.out;
    struct str name = {st->name, st->n};
    size_t before = b->n;
    if (redis_limited(r)) {
        struct limit limit = limit_of(r);
        ADD(b, "*8\r\n$4\r\nXADD\r\n");
        add_bulk(b, name);
        add_bulk(b, limit.how);
        add_bulk(b, STR("~"));
        add_bulk(b, str_of(limit.value));
    } else {
        ADD(b, "*5\r\n$4\r\nXADD\r\n");
        add_bulk(b, name);
    }
    ADD(b, "$1\r\n*\r\n$5\r\nevent\r\n");
    add_envelope(r, ev, name);
    return whole(b, before);
}

static void add_head(struct buf *b, size_t args, const char *script, struct str stream)
{
    ADD(b, "*");
    buf_addi64(b, (int64_t)args);
    ADD(b, "\r\n$4\r\nEVAL\r\n");
    add_bulk(b, str_of(script));
    ADD(b, "$1\r\n1\r\n");
    add_bulk(b, stream);
}

int redis_command_run(struct redis_sink *r, struct delivery *const *d, size_t n,
                      const struct stream *st)
{
    struct buf *b = &r->conn.out;
    struct str name = {st->name, st->n};
    size_t before = b->n;
    if (redis_limited(r)) {
        struct limit limit = limit_of(r);
        add_head(b, 4 + 2 + n, append_limited, name);
        add_bulk(b, limit.how);
        add_bulk(b, str_of(limit.value));
    } else {
        add_head(b, 4 + n, append, name);
    }
    for (size_t i = 0; i < n; i++)
        add_envelope(r, d[i]->ev, name);
    return whole(b, before);
}
