/* redis_receive.c: reads Redis streams from a position on, without a consumer group. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "redis/reply.h"
#include "sink/kinds.h"
#include "sink/receive.h"
#include "sink/redis_peers.h"

#define PATTERN_MAX ((size_t)1 << 20)
#define COUNT_TEXT "200"         /* entries to read at once */
#define PAUSE_MS 20              /* between looks at streams that have nothing new */
#define SEARCH_NS (1000 * MS_NS) /* between looks for streams that are new */
#define AGAIN_MS 200             /* before another try, if the server is away */

/* A stream, and the id of the last entry that was handed out. */
struct source {
    char *name;
    char last[REDIS_ID];
};

/* (1) entries points into reply, and entries->element[at..) is still to be handed out, of
 * source[turn]. (2) fixed: there is one source, and no other is looked for. */
struct redis_receiver {
    struct receiver base;
    struct redis_settings set;
    struct redis_peers peers;
    bool fixed;
    struct buf pattern;
    struct source *source;
    size_t n, turn;
    int64_t search_at; /* monotonic */
    redisReply *reply;
    const redisReply *entries;
    size_t at;
};

static size_t count_of(const redisReply *r)
{
    return r->type == REDIS_REPLY_ARRAY ? r->elements : 0;
}

static bool is_pair(const redisReply *r)
{
    return count_of(r) == 2 && r->element[0]->type == REDIS_REPLY_STRING;
}

/* Streams */

/* last_of reads the id of the last entry of a stream, where "end" is now. */
static int last_of(struct redis_receiver *rc, const char *stream, char id[REDIS_ID],
                   struct error *err)
{
    redisReply *r = NULL;
    const char *argv[] = {"XREVRANGE", stream, "+", "-", "COUNT", "1"};
    if (redis_peers_ask(&rc->peers, stream, 6, argv, &r, err) != 0)
        return -1;
    snprintf(id, REDIS_ID, "0-0");
    if (count_of(r) == 1 && is_pair(r->element[0]))
        snprintf(id, REDIS_ID, "%s", r->element[0]->element[0]->str);
    freeReplyObject(r);
    return 0;
}

static bool is_known(const struct redis_receiver *rc, const char *name)
{
    for (size_t i = 0; i < rc->n; i++)
        if (strcmp(rc->source[i].name, name) == 0)
            return true;
    return false;
}

/* add_source begins to read a stream. One that is made after the start is read from its
 * beginning. */
static int add_source(struct redis_receiver *rc, const char *name, const char *from,
                      struct error *err)
{
    struct source s = {.last = "0-0"};
    if (strcmp(from, "end") == 0) {
        if (last_of(rc, name, s.last, err) != 0)
            return -1;
    } else if (strcmp(from, "beginning") != 0) {
        snprintf(s.last, sizeof s.last, "%s", from);
    }

    struct source *more = reallocarray(rc->source, rc->n + 1, sizeof *more);
    if (!more)
        return err_nomem(err);
    rc->source = more;
    s.name = strdup(name);
    if (!s.name)
        return err_nomem(err);
    rc->source[rc->n++] = s;
    return 0;
}

/* add_found adds those of a SCAN's names that are new. */
static int add_found(struct redis_receiver *rc, const redisReply *names, const char *from,
                     struct error *err)
{
    for (size_t i = 0; i < count_of(names); i++) {
        const redisReply *name = names->element[i];
        bool is_new = name->type == REDIS_REPLY_STRING && !is_known(rc, name->str);
        if (is_new && add_source(rc, name->str, from, err) != 0)
            return -1;
    }
    return 0;
}

/* search_at looks at one server for streams whose names fit the template. */
static int search_at(struct redis_receiver *rc, size_t peer, const char *from, struct error *err)
{
    char cursor[32] = "0";
    do {
        redisReply *r = NULL;
        const char *argv[] = {"SCAN",  cursor, "MATCH", buf_cstr(&rc->pattern),
                              "COUNT", "1000", "TYPE",  "stream"};
        if (redis_peers_ask_at(&rc->peers, peer, 8, argv, &r, err) != 0)
            return -1;
        int failed = err_set(err, ERR_UNAVAILABLE, "%s gave no such answer to SCAN as Redis gives",
                             rc->peers.peer[peer]->url.label);
        snprintf(cursor, sizeof cursor, "0");
        if (is_pair(r)) {
            snprintf(cursor, sizeof cursor, "%s", r->element[0]->str);
            failed = add_found(rc, r->element[1], from, err);
        }
        freeReplyObject(r);
        if (failed)
            return -1;
    } while (strcmp(cursor, "0") != 0);
    return 0;
}

static int search(struct redis_receiver *rc, const char *from, struct error *err)
{
    if (redis_peers_locate(&rc->peers, err) != 0)
        return -1;
    for (size_t i = 0; i < rc->peers.n; i++)
        if (rc->peers.peer[i]->owns && search_at(rc, i, from, err) != 0)
            return -1;
    rc->search_at = clock_mono(&clock_system) + SEARCH_NS;
    return 0;
}

/* Reading */

/* read_source asks for the next entries of source[turn]. */
static int read_source(struct redis_receiver *rc, struct error *err)
{
    const struct source *s = &rc->source[rc->turn];
    const char *argv[] = {"XREAD", "COUNT", COUNT_TEXT, "STREAMS", s->name, s->last};
    if (rc->reply)
        freeReplyObject(rc->reply);
    rc->reply = NULL;
    rc->entries = NULL;
    rc->at = 0;
    if (redis_peers_ask(&rc->peers, s->name, 6, argv, &rc->reply, err) != 0)
        return -1;
    bool some = count_of(rc->reply) == 1 && is_pair(rc->reply->element[0]);
    if (some)
        rc->entries = rc->reply->element[0]->element[1];
    return 0;
}

static bool has_entry(const struct redis_receiver *rc)
{
    return rc->entries && rc->at < count_of(rc->entries);
}

static struct str str_of_reply(const redisReply *r)
{
    if (r->type != REDIS_REPLY_STRING)
        return STR("");
    return (struct str){r->str, r->len};
}

/* take_field puts one field into the message. An entry of the contract's format has one, event. */
static void take_field(struct message *m, struct str name, struct str value)
{
    if (str_is(name, "event") || str_is(name, "value"))
        m->value = value;
    else if (str_is(name, "content-type"))
        m->content_type = value;
    else if (m->n < MESSAGE_HEADERS)
        m->headers[m->n++] = (struct message_header){name, value};
}

/* take_entry fills in the next entry, and moves behind it. */
static bool take_entry(struct redis_receiver *rc, struct received *ret)
{
    struct source *s = &rc->source[rc->turn];
    const redisReply *entry = rc->entries->element[rc->at++];
    if (!is_pair(entry))
        return false;
    snprintf(s->last, sizeof s->last, "%s", entry->element[0]->str);

    const redisReply *fields = entry->element[1];
    ret->place = str_of(s->name);
    ret->position = str_of_reply(entry->element[0]);
    ret->m.value = STR("");
    ret->m.content_type = ret->m.key = (struct str){0};
    ret->m.n = 0;
    for (size_t i = 0; i + 1 < count_of(fields); i += 2)
        take_field(&ret->m, str_of_reply(fields->element[i]), str_of_reply(fields->element[i + 1]));
    ret->m.key = message_header_of(&ret->m, STR("aggregate_id"));
    return true;
}

/* look asks each stream once, beginning behind the one that was asked last, until one has
 * something. */
static int look(struct redis_receiver *rc, struct error *err)
{
    bool due = !rc->fixed && clock_mono(&clock_system) >= rc->search_at;
    if (due && search(rc, "beginning", err) != 0)
        return -1;
    for (size_t i = 0; i < rc->n; i++) {
        rc->turn = (rc->turn + 1) % rc->n;
        if (read_source(rc, err) != 0)
            return -1;
        if (has_entry(rc))
            return 0;
    }
    return 0;
}

/* wait_ms waits, and says whether it was told to stop meanwhile. */
static bool wait_ms(const struct redis_receiver *rc, int64_t ms)
{
    struct pollfd fd = {.fd = rc->base.cfg.wake, .events = POLLIN};
    poll(&fd, 1, (int)ms);
    return fd.revents != 0;
}

static int redis_next(struct receiver *base, int64_t timeout_ms, struct received *ret,
                      bool *ret_got, struct error *err)
{
    struct redis_receiver *rc = (struct redis_receiver *)base;
    int64_t deadline = clock_mono(&clock_system) + timeout_ms * MS_NS;
    *ret_got = false;
    for (;;) {
        while (has_entry(rc)) {
            *ret_got = take_entry(rc, ret);
            if (*ret_got)
                return 0;
        }

        int64_t pause = PAUSE_MS;
        bool failed = look(rc, err) != 0;
        if (has_entry(rc))
            continue;
        if (failed)
            pause = AGAIN_MS;
        bool over = wait_ms(rc, pause) || clock_mono(&clock_system) >= deadline;
        if (over && failed && err->code != ERR_BUSY)
            return -1;
        if (over)
            return 0;
    }
}

/* Opening */

static void redis_close(struct receiver *base)
{
    struct redis_receiver *rc = (struct redis_receiver *)base;
    if (rc->reply)
        freeReplyObject(rc->reply);
    for (size_t i = 0; i < rc->n; i++)
        free(rc->source[i].name);
    free(rc->source);
    buf_release(&rc->pattern);
    redis_peers_release(&rc->peers);
    redis_settings_release(&rc->set);
    free(rc);
}

/* check_from refuses a position that is none of Redis. */
static int check_from(const char *from, struct error *err)
{
    bool word = strcmp(from, "beginning") == 0 || strcmp(from, "end") == 0;
    if (word || redis_is_id(from))
        return 0;
    return err_set(err, ERR_CONFIG,
                   "\"%.60s\" is not beginning, end or an id such as 1748100000000-0", from);
}

static int set_up(struct redis_receiver *rc, struct error *err)
{
    struct template *name;
    if (check_from(rc->base.cfg.from, err) != 0)
        return -1;
    if (redis_settings_read(rc->base.cfg.url, &rc->set, err) != 0)
        return -1;
    if (template_new(rc->set.stream, &name, err) != 0)
        return err_prefix(err, "redis: stream");
    rc->fixed = template_fixed(name);
    int r = template_pattern(name, rc->fixed ? "" : "\\*?[]", &rc->pattern, err);
    template_free(name);
    if (r != 0)
        return -1;
    if (rc->fixed)
        return add_source(rc, buf_cstr(&rc->pattern), rc->base.cfg.from, err);
    return search(rc, rc->base.cfg.from, err);
}

static int redis_open(const struct receiver_config *cfg, struct receiver **ret, struct error *err)
{
    const struct receiver_ops *ops;
    if (receive_find(cfg->url, &ops, err) != 0)
        return -1;
    struct redis_receiver *rc = calloc(1, sizeof *rc);
    if (!rc)
        return err_nomem(err);
    rc->base = (struct receiver){ops, *cfg};
    buf_init(&rc->pattern, PATTERN_MAX);
    redis_peers_init(&rc->peers, &rc->set, cfg->wake);
    if (set_up(rc, err) != 0) {
        redis_close(&rc->base);
        return -1;
    }
    *ret = &rc->base;
    return 0;
}

#define RECEIVER(name, scheme_) \
    const struct receiver_ops name = { \
        .scheme = scheme_, .open = redis_open, .next = redis_next, .close = redis_close}

RECEIVER(redis_receiver, "redis");
RECEIVER(redis_tls_receiver, "rediss");
RECEIVER(redis_unix_receiver, "unix");
RECEIVER(redis_plus_unix_receiver, "redis+unix");
RECEIVER(redis_sentinel_receiver, "redis-sentinel");
RECEIVER(redis_sentinel_tls_receiver, "rediss-sentinel");
RECEIVER(redis_cluster_receiver, "redis-cluster");
RECEIVER(redis_cluster_tls_receiver, "rediss-cluster");
