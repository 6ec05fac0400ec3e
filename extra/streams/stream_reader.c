#include "extra/streams/stream_reader.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "extra/streams/envelope.h"
#include "redis/conn.h"

#define STREAMS_MAX 64
#define ID_TEXT 48
#define COUNT_TEXT "100"  /* entries per read */
#define BLOCK_MS 1000     /* maximum wait for new entries */
#define BLOCK_SHORT_MS 50 /* the same, if reading ends with the last entry */
#define ANSWER_MS 10000   /* longer than any BLOCK */
#define OUT_MAX ((size_t)1 << 20)
#define IN_MAX \
    (SIZE_MAX / 2 < UINT64_C(8) << 30 ? SIZE_MAX / 2 \
                                      : (size_t)(UINT64_C(8) << 30)) /* a hundred large entries */
#define TEXT_MAX ((size_t)2 << 30)
#define WAIT_MIN_MS 100
#define WAIT_MAX_MS 5000
#define CLAIM_MS 60000

/* (1) stream[0..n) point into names. (2) cursor[i] is the progress through our own pending entries
 * of stream[i], which this member has read but not acknowledged; "": all are handled, so new
 * entries are read. */
struct member {
    const struct stream_reader_config *cfg;
    struct stream_reader_stats *stats;
    struct redis_url url;
    struct redis_conn conn;
    char name[128];
    char *names;
    const char *stream[STREAMS_MAX];
    char cursor[STREAMS_MAX][ID_TEXT];
    size_t n;
    int64_t claim_ms; /* see the config */
    int64_t claim_at; /* when to look for idle entries of other members again, monotonic */
    int64_t wait_ms;  /* the pause after the last failure; 0 after a success */
    bool failing;     /* the last event failed; a repeated failure is logged only once */
    struct buf text;
};

/* ---- waiting ---- */

static bool told_to_stop(const struct member *m)
{
    struct pollfd fd = {.fd = m->cfg->wake, .events = POLLIN};
    if (m->cfg->wake < 0)
        return false;
    return poll(&fd, 1, 0) == 1;
}

/* Doubles the pause with each consecutive failure. */
static void back_off(struct member *m)
{
    struct pollfd fd = {.fd = m->cfg->wake, .events = POLLIN};
    m->wait_ms *= 2;
    if (m->wait_ms == 0)
        m->wait_ms = WAIT_MIN_MS;
    if (m->wait_ms > WAIT_MAX_MS)
        m->wait_ms = WAIT_MAX_MS;
    poll(&fd, 1, (int)m->wait_ms);
}

/* ---- commands ---- */

/* Runs a command and returns the reply, which the caller frees. An error reply is an error:
 * CLASS_FATAL if waiting does not help. */
static int call(struct member *m, int argc, const char **argv, redisReply **ret, struct error *err)
{
    redisReply *r = NULL;
    if (redis_conn_call(&m->conn, argc, argv, ANSWER_MS, m->cfg->wake, &r, err) != 0)
        return -1;
    if (r->type != REDIS_REPLY_ERROR) {
        *ret = r;
        return 0;
    }

    char said[REDIS_TEXT];
    const struct redis_error *e = redis_error_of(r->str);
    redis_conn_text(&m->conn, r, said);
    err_class(err, ERR_UNAVAILABLE, e->fault == REDIS_FAULT_SETUP ? CLASS_FATAL : CLASS_DOWN, 0,
              "%s: %s", m->url.label, said);
    if (e->reconnect)
        redis_conn_close(&m->conn);
    freeReplyObject(r);
    return -1;
}

/* Reports a reply that Redis never sends: the peer may be another server. */
static int unknown_answer(const struct member *m, const char *command, struct error *err)
{
    return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s sent an invalid reply to %s",
                     m->url.label, command);
}

/* Returns the number of elements of a list; 0 for any other reply. */
static size_t count_of(const redisReply *r)
{
    if (r->type != REDIS_REPLY_ARRAY)
        return 0;
    return r->elements;
}

/* Returns whether r is a string followed by a list: an id and its fields, or a stream and its
 * entries. */
static bool is_pair(const redisReply *r)
{
    if (count_of(r) != 2)
        return false;
    return r->element[0]->type == REDIS_REPLY_STRING;
}

/* Returns the text that follows a name in a list of names and values; NULL if the list lacks the
 * name. */
static const redisReply *find_text(const redisReply *list, const char *name)
{
    for (size_t i = 0; i + 1 < count_of(list); i += 2) {
        const redisReply *value = list->element[i + 1];
        const char *is = list->element[i]->str;
        bool found = is && strcmp(is, name) == 0;
        if (found && value->type == REDIS_REPLY_STRING)
            return value;
        if (found)
            return NULL;
    }
    return NULL;
}

/* ---- the group ---- */

/* Returns whether the stream has our group. A missing stream has no group. */
static int has_group(struct member *m, const char *stream, bool *ret, struct error *err)
{
    redisReply *r = NULL;
    bool there = false;
    const char *argv[] = {"XINFO", "GROUPS", stream};
    if (redis_conn_call(&m->conn, 3, argv, ANSWER_MS, m->cfg->wake, &r, err) != 0)
        return -1; /* an error reply means that the stream is missing */
    for (size_t i = 0; i < count_of(r); i++) {
        const redisReply *name = find_text(r->element[i], "name");
        if (name && strcmp(name->str, m->cfg->group) == 0)
            there = true;
    }
    freeReplyObject(r);
    *ret = there;
    return 0;
}

/* Returns the last id of the stream. Every entry up to it was committed in the source before it was
 * added, so its effect is visible to any later read of the source's rows. */
static int last_id(struct member *m, const char *stream, char id[ID_TEXT], struct error *err)
{
    redisReply *r = NULL;
    int64_t hi, lo;
    const char *argv[] = {"XINFO", "STREAM", stream};
    if (redis_conn_call(&m->conn, 3, argv, ANSWER_MS, m->cfg->wake, &r, err) != 0)
        return -1;
    const char *text = "0-0";
    const redisReply *last = find_text(r, "last-generated-id");
    if (last)
        text = last->str;
    int rc = 0;
    if (!redis_id(text, &hi, &lo))
        rc = unknown_answer(m, "XINFO STREAM", err);
    snprintf(id, ID_TEXT, "%s", text);
    freeReplyObject(r);
    return rc;
}

/* Creates the group of a stream unless it exists; another member may create it concurrently. With a
 * snapshot, the group starts where the snapshot ends. */
static int make_group(struct member *m, const char *stream, struct error *err)
{
    char from[ID_TEXT];
    bool there;
    if (has_group(m, stream, &there, err) != 0)
        return -1;
    if (there)
        return 0;

    snprintf(from, ID_TEXT, "%s", m->cfg->from ? m->cfg->from : "0");
    if (m->cfg->snapshot) {
        if (last_id(m, stream, from, err) != 0)
            return -1;
        if (m->cfg->snapshot(m->cfg->ctx, stream, from, err) != 0) {
            err->retry_class = CLASS_FATAL;
            return -1;
        }
    }

    char said[REDIS_TEXT];
    redisReply *r = NULL;
    const char *argv[] = {"XGROUP", "CREATE", stream, m->cfg->group, from, "MKSTREAM"};
    if (redis_conn_call(&m->conn, 6, argv, ANSWER_MS, m->cfg->wake, &r, err) != 0)
        return -1;
    bool created = r->type != REDIS_REPLY_ERROR || strncmp(r->str, "BUSYGROUP", 9) == 0;
    redis_conn_text(&m->conn, r, said);
    freeReplyObject(r);
    if (created)
        return 0;
    return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s, stream %.100s: %s", m->url.label,
                     stream, said);
}

/* ---- entries ---- */

static int acknowledge(struct member *m, const char *stream, const char *id, struct error *err)
{
    redisReply *r = NULL;
    if (call(m, 4, (const char *[]){"XACK", stream, m->cfg->group, id}, &r, err) != 0)
        return -1;
    freeReplyObject(r);
    return 0;
}

/* Handles one entry, and retries until it succeeds or the reader must stop. Later entries wait, so
 * that none overtakes it. */
static int handle_entry(struct member *m, const char *stream, const redisReply *entry,
                        struct error *err)
{
    struct event ev;
    struct error why;
    const char *id = entry->element[0]->str;
    const redisReply *fields = entry->element[1], *value = find_text(fields, "event");
    int rc;
    if (fields->type != REDIS_REPLY_ARRAY)
        rc = err_set(&why, ERR_INVALID, "the entry was trimmed before it was read");
    else if (!value)
        rc = err_set(&why, ERR_INVALID, "the entry has no field named event");
    else
        rc = envelope_read((struct str){value->str, value->len}, &m->text, &ev, &why);
    if (rc != 0) {
        m->stats->skipped++;
        log_at(m->cfg->log, LOG_WARN_, m->cfg->group, "entry %s of %s is skipped: %s", id, stream,
               why.text);
        return acknowledge(m, stream, id, err);
    }

    while (m->cfg->handle(m->cfg->ctx, &ev, &why) != 0) {
        enum log_level level = m->failing ? LOG_DEBUG_ : LOG_WARN_;
        log_at(m->cfg->log, level, m->cfg->group,
               "event %s (%s) failed: %s; it will be retried, and later events wait", ev.id.p,
               ev.type.p, why.text);
        m->failing = true;
        m->stats->failed++;
        back_off(m);
        if (told_to_stop(m))
            return err_set(err, ERR_BUSY, "told to stop");
    }
    m->stats->handled++;
    m->failing = false;
    m->wait_ms = 0;
    return acknowledge(m, stream, id, err);
}

static int handle_entries(struct member *m, const char *stream, const redisReply *entries,
                          struct error *err)
{
    for (size_t i = 0; i < count_of(entries); i++) {
        const redisReply *entry = entries->element[i];
        if (told_to_stop(m))
            return err_set(err, ERR_BUSY, "told to stop");
        bool deleted = entry->type == REDIS_REPLY_NIL; /* as reported by Redis 6 */
        if (deleted)
            continue;
        if (!is_pair(entry))
            return unknown_answer(m, "a request for entries", err);
        if (handle_entry(m, stream, entry, err) != 0)
            return -1;
    }
    return 0;
}

/* Takes over all idle entries of other members, up to a hundred at a time. */
static int claim_stranded(struct member *m, const char *stream, struct error *err)
{
    char idle[24], cursor[ID_TEXT] = "0-0";
    snprintf(idle, sizeof idle, "%lld", (long long)m->claim_ms);
    const char *argv[] = {"XAUTOCLAIM", stream, m->cfg->group, m->name,
                          idle,         cursor, "COUNT",       COUNT_TEXT};
    do {
        redisReply *r = NULL;
        if (call(m, 8, argv, &r, err) != 0)
            return -1;
        int rc;
        bool known = count_of(r) >= 2 && r->element[0]->type == REDIS_REPLY_STRING;
        if (known) {
            snprintf(cursor, ID_TEXT, "%s", r->element[0]->str);
            m->stats->claimed += (int64_t)r->element[1]->elements;
            rc = handle_entries(m, stream, r->element[1], err);
        } else {
            rc = err_class(err, ERR_UNAVAILABLE, CLASS_FATAL, 0,
                           "%s: XAUTOCLAIM requires Redis 6.2 or later", m->url.label);
        }
        freeReplyObject(r);
        if (rc != 0)
            return -1;
    } while (strcmp(cursor, "0-0") != 0);
    return 0;
}

/* Handles the entries that this member had read but not acknowledged when it last stopped, and
 * moves the cursor past them. */
static int read_own(struct member *m, size_t i, struct error *err)
{
    char *cursor = m->cursor[i];
    const char *argv[] = {"XREADGROUP", "GROUP",   m->cfg->group, m->name, "COUNT",
                          COUNT_TEXT,   "STREAMS", m->stream[i],  cursor};
    int rc = 0;
    while (rc == 0 && *cursor) {
        redisReply *r = NULL;
        if (call(m, 9, argv, &r, err) != 0)
            return -1;
        const redisReply *entries = NULL, *last = NULL;
        if (count_of(r) > 0 && is_pair(r->element[0]))
            entries = r->element[0]->element[1];
        size_t n = entries ? count_of(entries) : 0;
        if (n > 0)
            last = entries->element[n - 1];

        if (count_of(r) == 0 || (entries && n == 0))
            *cursor = '\0';
        else if (!entries)
            rc = unknown_answer(m, "XREADGROUP", err);
        else
            rc = handle_entries(m, m->stream[i], entries, err);
        if (rc == 0 && last && is_pair(last))
            snprintf(cursor, ID_TEXT, "%s", last->element[0]->str);
        else if (rc == 0 && last)
            rc = unknown_answer(m, "XREADGROUP", err);
        freeReplyObject(r);
    }
    return rc;
}

/* Waits briefly for new entries of all streams. *ret_any: some have arrived. */
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
    if (call(m, (int)(9 + 2 * m->n), argv, &r, err) != 0)
        return -1;
    *ret_any = count_of(r) > 0;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count_of(r); i++) {
        const redisReply *s = r->element[i];
        if (is_pair(s))
            rc = handle_entries(m, s->element[0]->str, s->element[1], err);
        else
            rc = unknown_answer(m, "XREADGROUP", err);
    }
    freeReplyObject(r);
    return rc;
}

/* ---- the loop ---- */

/* Reads every stream once: our own pending entries first, periodically idle entries of other
 * members, then new entries. *ret_any: new entries have arrived. */
static int read_round(struct member *m, bool *ret_any, struct error *err)
{
    int64_t now = clock_mono(&clock_system);

    /* Entries read over a lost connection may not have been handled, so our own entries are read
     * again from the start. */
    bool connected = m->conn.wire.state != WIRE_CLOSED;
    for (size_t i = 0; !connected && i < m->n; i++) {
        strcpy(m->cursor[i], "0");
        if (make_group(m, m->stream[i], err) != 0)
            return -1;
    }
    for (size_t i = 0; i < m->n; i++) {
        if (read_own(m, i, err) != 0)
            return -1;
    }
    if (now >= m->claim_at) {
        for (size_t i = 0; i < m->n; i++) {
            if (claim_stranded(m, m->stream[i], err) != 0)
                return -1;
        }
        m->claim_at = now + m->claim_ms / 2 * MS_NS;
    }
    if (read_new(m, ret_any, err) != 0)
        return -1;
    m->wait_ms = 0;
    return 0;
}

static int read_until_stopped(struct member *m, struct error *err)
{
    bool away = false;
    while (!told_to_stop(m)) {
        bool any = false;
        if (read_round(m, &any, err) == 0) {
            bool through = m->cfg->until_through && !any;
            if (through)
                return 0;
            if (away)
                log_at(m->cfg->log, LOG_INFO_, m->cfg->group, "%s is back", m->url.label);
            away = false;
            continue;
        }

        if (told_to_stop(m))
            return 0;
        if (err->retry_class == CLASS_FATAL)
            return -1;
        redis_conn_close(&m->conn);
        enum log_level level = away ? LOG_DEBUG_ : LOG_WARN_;
        log_at(m->cfg->log, level, m->cfg->group, "%s; trying again", err->text);
        away = true;
        back_off(m);
    }
    return 0;
}

/* ---- setting up ---- */

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
    if (m->n == 0)
        return err_set(err, ERR_CONFIG,
                       "expected one or more names of streams, separated by commas");
    return 0;
}

static const struct option_def options[] = {
    {"stream", "NAME,...", NULL, "streams to read", set_streams, .at = 0},
    REDIS_DB_OPTION(member, url),
    {NULL},
};

static int set_up_member(struct member *m, const struct stream_reader_config *cfg,
                         struct error *err)
{
    if (redis_url_parse(cfg->url, options, m, &m->url, err) != 0)
        return -1;
    if (m->n == 0)
        return err_set(err, ERR_CONFIG, "the URL names no stream: add ?stream=NAME");
    bool has_group_name = cfg->group && *cfg->group;
    if (!has_group_name)
        return err_set(err, ERR_CONFIG, "the name of the consumer group is missing");

    if (cfg->name)
        snprintf(m->name, sizeof m->name, "%s", cfg->name);
    else if (gethostname(m->name, sizeof m->name - 1) != 0)
        strcpy(m->name, "outbox");
    m->claim_ms = cfg->claim_ms > 0 ? cfg->claim_ms : CLAIM_MS;
    return 0;
}

int stream_reader_run(const struct stream_reader_config *cfg, struct stream_reader_stats *stats,
                      struct error *err)
{
    struct stream_reader_stats ignored = {0};
    struct member *m = calloc(1, sizeof *m);
    if (!m)
        return err_nomem(err);
    m->cfg = cfg;
    m->stats = stats ? stats : &ignored;
    *m->stats = (struct stream_reader_stats){0};
    buf_init(&m->text, TEXT_MAX);
    redis_conn_init(&m->conn, &m->url, "outbox:consume", OUT_MAX, IN_MAX);

    int rc = set_up_member(m, cfg, err);
    if (rc == 0)
        rc = read_until_stopped(m, err);

    redis_conn_release(&m->conn);
    redis_url_release(&m->url);
    buf_release(&m->text);
    free(m->names);
    free(m);
    return rc;
}
