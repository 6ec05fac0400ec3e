#include "engine/consume.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "event/envelope.h"
#include "redis/conn.h"
#include "redis/reply.h"

#define STREAMS_MAX 64
#define COUNT_TEXT "100"
#define BLOCK_MS 1000
#define BLOCK_SHORT_MS 50
#define ANSWER_MS 10000 /* longer than any BLOCK */
#define OUT_MAX ((size_t)1 << 20)
#define IN_MAX \
    (SIZE_MAX / 2 < UINT64_C(8) << 30 ? SIZE_MAX / 2 \
                                      : (size_t)(UINT64_C(8) << 30)) /* a hundred large entries */
#define TEXT_MAX ((size_t)2 << 30)
#define WAIT_MIN_MS 100
#define WAIT_MAX_MS 5000
#define CLAIM_MS 60000

/* (1) stream[0..n) point into names. (2) cursor[i]: own entries of stream[i] that were read before
 *   and not acknowledged are
 * looked through from here; "" once they are done, and new ones are read. */
struct member {
    const struct consume_config *cfg;
    struct consume_stats *stats;
    struct redis_url url;
    struct redis_conn conn;
    char name[128];
    char *names;
    const char *stream[STREAMS_MAX];
    char cursor[STREAMS_MAX][48];
    size_t n;
    int64_t claim_ms, claim_at;
    int64_t wait_ms; /* of the last failure; 0: none */
    bool failing;    /* the last event failed: said once */
    struct buf text;
};

/* ---- waiting ---- */

static bool told_to_stop(const struct member *m)
{
    struct pollfd fd = {.fd = m->cfg->wake, .events = POLLIN};
    return m->cfg->wake >= 0 && poll(&fd, 1, 0) == 1;
}

/* pause_for waits longer with each failure in a row. */
static void pause_for(struct member *m)
{
    struct pollfd fd = {.fd = m->cfg->wake, .events = POLLIN};
    m->wait_ms = m->wait_ms ? m->wait_ms * 2 : WAIT_MIN_MS;
    if (m->wait_ms > WAIT_MAX_MS)
        m->wait_ms = WAIT_MAX_MS;
    poll(&fd, 1, (int)m->wait_ms);
}

/* ---- asking ---- */

/* ask runs a command. An error reply is an error here: *err has the text, and FATE_FATAL where no
 * waiting helps. */
static int ask(struct member *m, int argc, const char **argv, redisReply **ret, struct error *err)
{
    char said[REDIS_TEXT];
    if (redis_conn_call(&m->conn, argc, argv, NULL, ANSWER_MS, m->cfg->wake, ret, err) != 0)
        return -1;
    if ((*ret)->type != REDIS_REPLY_ERROR)
        return 0;
    redis_conn_text(&m->conn, *ret, said);
    enum redis_fault fault = redis_fault_of((*ret)->str);
    if (redis_reconnects((*ret)->str))
        redis_conn_close(&m->conn);
    freeReplyObject(*ret);
    *ret = NULL;
    return err_fate(err, ERR_UNAVAILABLE, fault == REDIS_FAULT_SETUP ? FATE_FATAL : FATE_DOWN, 0,
                    "%s: %s", m->url.label, said);
}

/* odd: an answer of another shape than that of Redis, from whatever it is that we are connected
 * to. */
static int odd(const struct member *m, const char *command, struct error *err)
{
    return err_fate(err, ERR_UNAVAILABLE, FATE_DOWN, 0,
                    "%s gave no such answer to %s as Redis gives", m->url.label, command);
}

/* is_pair: a text and something that goes with it: an id and fields, a stream and entries. */
static bool is_pair(const redisReply *r)
{
    return r->type == REDIS_REPLY_ARRAY && r->elements == 2 &&
           r->element[0]->type == REDIS_REPLY_STRING;
}

/* find gives the text behind a name in a list of names and values; NULL: not there. */
static const redisReply *find(const redisReply *list, const char *name)
{
    for (size_t i = 0; list->type == REDIS_REPLY_ARRAY && i + 1 < list->elements; i += 2) {
        const redisReply *value = list->element[i + 1];
        if (!list->element[i]->str || strcmp(list->element[i]->str, name) != 0)
            continue;
        return value->type == REDIS_REPLY_STRING ? value : NULL;
    }
    return NULL;
}

/* has_group: a stream that is not there has none. */
static int has_group(struct member *m, const char *stream, bool *ret, struct error *err)
{
    redisReply *r = NULL;
    *ret = false;
    if (redis_conn_call(&m->conn, 3, (const char *[]){"XINFO", "GROUPS", stream}, NULL, ANSWER_MS,
                        m->cfg->wake, &r, err) != 0)
        return -1;
    for (size_t i = 0; r->type == REDIS_REPLY_ARRAY && i < r->elements; i++) {
        const redisReply *name = find(r->element[i], "name");
        if (name && strcmp(name->str, m->cfg->group) == 0)
            *ret = true;
    }
    freeReplyObject(r);
    return 0;
}

/* last_id: what is in the stream up to it was committed in the source before it was added, so
 * whoever reads the source's rows from now on finds it there. */
static int last_id(struct member *m, const char *stream, char id[48], struct error *err)
{
    redisReply *r = NULL;
    if (redis_conn_call(&m->conn, 3, (const char *[]){"XINFO", "STREAM", stream}, NULL, ANSWER_MS,
                        m->cfg->wake, &r, err) != 0)
        return -1;
    const redisReply *last = find(r, "last-generated-id");
    int64_t hi, lo;
    int rc = last && !redis_id(last->str, &hi, &lo) ? odd(m, "XINFO STREAM", err) : 0;
    snprintf(id, 48, "%s", last ? last->str : "0-0");
    freeReplyObject(r);
    return rc;
}

/* make_group: that it is there already is what we want. */
static int make_group(struct member *m, const char *stream, struct error *err)
{
    char from[48] = "0", said[REDIS_TEXT];
    bool there;
    redisReply *r = NULL;
    if (has_group(m, stream, &there, err) != 0)
        return -1;
    if (there)
        return 0;
    if (m->cfg->from)
        snprintf(from, sizeof from, "%s", m->cfg->from);
    if (m->cfg->snapshot) {
        if (last_id(m, stream, from, err) != 0)
            return -1;
        if (m->cfg->snapshot(m->cfg->ctx, stream, from, err) != 0) {
            err->fate = FATE_FATAL;
            return -1;
        }
    }
    const char *argv[] = {"XGROUP", "CREATE", stream, m->cfg->group, from, "MKSTREAM"};
    if (redis_conn_call(&m->conn, 6, argv, NULL, ANSWER_MS, m->cfg->wake, &r, err) != 0)
        return -1;
    there = r->type != REDIS_REPLY_ERROR || strncmp(r->str, "BUSYGROUP", 9) == 0;
    redis_conn_text(&m->conn, r, said);
    freeReplyObject(r);
    if (there)
        return 0;
    return err_fate(err, ERR_UNAVAILABLE, FATE_DOWN, 0, "%s, stream %.100s: %s", m->url.label,
                    stream, said);
}

static int acknowledge(struct member *m, const char *stream, const char *id, struct error *err)
{
    redisReply *r = NULL;
    if (ask(m, 4, (const char *[]){"XACK", stream, m->cfg->group, id}, &r, err) != 0)
        return -1;
    freeReplyObject(r);
    return 0;
}

/* ---- entries ---- */

/* event_of finds the field `event` of an entry and reads it. */
static int event_of(struct member *m, const redisReply *fields, struct event *ev, struct error *err)
{
    if (fields->type != REDIS_REPLY_ARRAY)
        return err_set(err, ERR_INVALID, "it was trimmed away before it was read");
    const redisReply *value = find(fields, "event");
    if (!value)
        return err_set(err, ERR_INVALID, "it has no field named event");
    return envelope_read((struct str){value->str, value->len}, &m->text, ev, err);
}

/* take handles one entry until it is done, or until it is time to stop: those behind it wait, lest
 * they overtake it. */
static int take(struct member *m, const char *stream, const redisReply *entry, struct error *err)
{
    struct event ev;
    struct error why;
    const char *id = entry->element[0]->str;
    if (event_of(m, entry->element[1], &ev, &why) != 0) {
        m->stats->skipped++;
        log_at(m->cfg->log, LOG_WARN_, m->cfg->group, "entry %s of %s is skipped: %s", id, stream,
               why.text);
        return acknowledge(m, stream, id, err);
    }
    while (m->cfg->handle(m->cfg->ctx, &ev, &why) != 0) {
        m->stats->failed++;
        log_at(m->cfg->log, m->failing ? LOG_DEBUG_ : LOG_WARN_, m->cfg->group,
               "event %s (%s) failed: %s; it will be tried again, and what is behind it waits",
               ev.id.p, ev.type.p, why.text);
        m->failing = true;
        pause_for(m);
        if (told_to_stop(m))
            return err_set(err, ERR_BUSY, "told to stop");
    }
    m->stats->handled++;
    m->failing = false;
    m->wait_ms = 0;
    return acknowledge(m, stream, id, err);
}

static int take_all(struct member *m, const char *stream, const redisReply *entries,
                    struct error *err)
{
    for (size_t i = 0; entries->type == REDIS_REPLY_ARRAY && i < entries->elements; i++) {
        if (told_to_stop(m))
            return err_set(err, ERR_BUSY, "told to stop");
        /* deleted, as Redis 6 says it */
        if (entries->element[i]->type == REDIS_REPLY_NIL)
            continue;
        if (!is_pair(entries->element[i]))
            return odd(m, "a question for entries", err);
        if (take(m, stream, entries->element[i], err) != 0)
            return -1;
    }
    return 0;
}

/* claim_stranded takes over what other members have left lying, a hundred at a time. */
static int claim_stranded(struct member *m, const char *stream, struct error *err)
{
    char idle[24], cursor[48] = "0-0";
    snprintf(idle, sizeof idle, "%lld", (long long)m->claim_ms);
    do {
        redisReply *r = NULL;
        const char *argv[] = {"XAUTOCLAIM", stream, m->cfg->group, m->name,
                              idle,         cursor, "COUNT",       COUNT_TEXT};
        if (ask(m, 8, argv, &r, err) != 0)
            return -1;
        if (r->type != REDIS_REPLY_ARRAY || r->elements < 2 ||
            r->element[0]->type != REDIS_REPLY_STRING) {
            freeReplyObject(r);
            return err_fate(err, ERR_UNAVAILABLE, FATE_FATAL, 0,
                            "%s: XAUTOCLAIM needs Redis 6.2 or later", m->url.label);
        }
        snprintf(cursor, sizeof cursor, "%s", r->element[0]->str);
        m->stats->claimed += (int64_t)r->element[1]->elements;
        int rc = take_all(m, stream, r->element[1], err);
        freeReplyObject(r);
        if (rc != 0)
            return -1;
    } while (strcmp(cursor, "0-0") != 0);
    return 0;
}

/* read_own goes through what this member had read and not acknowledged when it last stopped. */
static int read_own(struct member *m, size_t i, struct error *err)
{
    while (m->cursor[i][0]) {
        redisReply *r = NULL;
        const char *argv[] = {"XREADGROUP", "GROUP",   m->cfg->group, m->name,     "COUNT",
                              COUNT_TEXT,   "STREAMS", m->stream[i],  m->cursor[i]};
        if (ask(m, 9, argv, &r, err) != 0)
            return -1;
        bool any = r->type == REDIS_REPLY_ARRAY && r->elements > 0;
        const redisReply *entries = any && is_pair(r->element[0]) ? r->element[0]->element[1]
                                                                  : NULL;
        size_t n = entries && entries->type == REDIS_REPLY_ARRAY ? entries->elements : 0;
        int rc = any && !entries ? odd(m, "XREADGROUP", err) : 0;
        if (n)
            rc = take_all(m, m->stream[i], entries, err);
        if (n && rc == 0 && !is_pair(entries->element[n - 1]))
            rc = odd(m, "XREADGROUP", err);
        if (n == 0)
            m->cursor[i][0] = '\0';
        else if (rc == 0)
            snprintf(m->cursor[i], sizeof m->cursor[i], "%s",
                     entries->element[n - 1]->element[0]->str);
        freeReplyObject(r);
        if (rc != 0)
            return -1;
    }
    return 0;
}

/* read_new waits a little for new entries of all streams; *ret_any: there were some. */
static int read_new(struct member *m, bool *ret_any, struct error *err)
{
    char block[24];
    const char *argv[9 + 2 * STREAMS_MAX] = {"XREADGROUP", "GROUP", m->cfg->group,
                                             m->name,      "COUNT", COUNT_TEXT,
                                             "BLOCK",      block,   "STREAMS"};
    snprintf(block, sizeof block, "%d", m->cfg->until_through ? BLOCK_SHORT_MS : BLOCK_MS);
    for (size_t i = 0; i < m->n; i++) {
        argv[9 + i] = m->stream[i];
        argv[9 + m->n + i] = ">";
    }
    redisReply *r = NULL;
    if (ask(m, (int)(9 + 2 * m->n), argv, &r, err) != 0)
        return -1;
    int rc = 0;
    *ret_any = r->type == REDIS_REPLY_ARRAY && r->elements > 0;
    for (size_t i = 0; *ret_any && rc == 0 && i < r->elements; i++) {
        if (!is_pair(r->element[i]))
            rc = odd(m, "XREADGROUP", err);
        else
            rc = take_all(m, r->element[i]->element[0]->str, r->element[i]->element[1], err);
    }
    freeReplyObject(r);
    return rc;
}

/* ---- the loop ---- */

/* begin: after a connection was lost, entries that were read may not have been handled: they are
 * our own now. */
static int begin(struct member *m, struct error *err)
{
    for (size_t i = 0; i < m->n; i++) {
        strcpy(m->cursor[i], "0");
        if (make_group(m, m->stream[i], err) != 0)
            return -1;
    }
    return 0;
}

/* go_on does one round; returns 1 when it is through. */
static int go_on(struct member *m, struct error *err)
{
    bool any = false;
    int64_t now = clock_mono(&clock_system);
    if (m->conn.state == REDIS_CLOSED && begin(m, err) != 0)
        return -1;
    for (size_t i = 0; i < m->n; i++)
        if (read_own(m, i, err) != 0)
            return -1;
    if (now >= m->claim_at) {
        for (size_t i = 0; i < m->n; i++)
            if (claim_stranded(m, m->stream[i], err) != 0)
                return -1;
        m->claim_at = now + m->claim_ms / 2 * MS_NS;
    }
    if (read_new(m, &any, err) != 0)
        return -1;
    m->wait_ms = 0;
    return m->cfg->until_through && !any ? 1 : 0;
}

static int loop(struct member *m, struct error *err)
{
    bool away = false;
    while (!told_to_stop(m)) {
        int rc = go_on(m, err);
        if (rc == 1)
            return 0;
        if (rc == 0 && away)
            log_at(m->cfg->log, LOG_INFO_, m->cfg->group, "%s is back", m->url.label);
        if (rc == 0)
            away = false;
        if (rc == 0 || told_to_stop(m))
            continue;
        if (err->fate == FATE_FATAL)
            return -1;
        redis_conn_close(&m->conn);
        log_at(m->cfg->log, away ? LOG_DEBUG_ : LOG_WARN_, m->cfg->group, "%s; trying again",
               err->text);
        away = true;
        pause_for(m);
    }
    return 0;
}

static int set_streams(void *target, const char *value, const struct option_def *o,
                       struct error *err)
{
    struct member *m = target;
    (void)o;
    free(m->names);
    m->names = strdup(value);
    m->n = 0;
    if (!m->names)
        return err_nomem(err);
    for (char *save, *p = strtok_r(m->names, ",", &save); p; p = strtok_r(NULL, ",", &save)) {
        if (m->n == STREAMS_MAX)
            return err_set(err, ERR_CONFIG, "more than %d streams", STREAMS_MAX);
        m->stream[m->n++] = p;
    }
    return m->n ? 0
                : err_set(err, ERR_CONFIG, "the name of a stream, or several with commas between");
}

static const struct option_def options[] = {
    {"stream", "NAME,...", NULL, "streams to read", set_streams, .at = 0},
    {NULL},
};

static int setup(struct member *m, const struct consume_config *cfg, struct error *err)
{
    if (redis_url_parse(cfg->url, options, m, &m->url, err) != 0)
        return -1;
    if (m->n == 0)
        return err_set(err, ERR_CONFIG, "which stream? add ?stream=NAME");
    if (!cfg->group || !*cfg->group)
        return err_set(err, ERR_CONFIG, "which group?");
    if (cfg->name)
        snprintf(m->name, sizeof m->name, "%s", cfg->name);
    else if (gethostname(m->name, sizeof m->name - 1) != 0)
        strcpy(m->name, "outbox");
    m->claim_ms = cfg->claim_ms > 0 ? cfg->claim_ms : CLAIM_MS;
    return 0;
}

int consume_run(const struct consume_config *cfg, struct consume_stats *stats, struct error *err)
{
    struct consume_stats ignored = {0};
    struct member *m = calloc(1, sizeof *m);
    if (!m)
        return err_nomem(err);
    m->cfg = cfg;
    m->stats = stats ? stats : &ignored;
    *m->stats = (struct consume_stats){0};
    buf_init(&m->text, TEXT_MAX);
    redis_conn_init(&m->conn, &m->url, "outbox:consume", OUT_MAX, IN_MAX);
    int rc = setup(m, cfg, err) == 0 ? loop(m, err) : -1;
    redis_conn_release(&m->conn);
    redis_url_release(&m->url);
    buf_release(&m->text);
    free(m->names);
    free(m);
    return rc;
}
