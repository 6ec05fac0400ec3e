#include "redis/sentinel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ASK_NS (1000 * MS_NS) /* time limit for the reply of one Sentinel */
#define OUT_MAX 4096
#define IN_MAX ((size_t)1 << 20)

void redis_sentinel_init(struct redis_sentinel *s, const struct redis_url *url, size_t n,
                         const char *master, const char *name)
{
    *s = (struct redis_sentinel){.url = url, .n = n, .master = master};
    redis_conn_init(&s->conn, url, name, OUT_MAX, IN_MAX);
}

void redis_sentinel_release(struct redis_sentinel *s)
{
    redis_conn_release(&s->conn);
}

/* The only function that sets the state. A Sentinel that we neither query nor subscribe to has no
 * connection. */
static void change_state(struct redis_sentinel *s, enum sentinel_state to)
{
    bool open = to == SENTINEL_ASKING || to == SENTINEL_TOLD;
    if (!open)
        redis_conn_close(&s->conn);
    s->state = to;
}

static void ask_next(struct redis_sentinel *s, int64_t now);

/* Queries the next Sentinel: this one is unreachable or does not know the master. */
static void failed(struct redis_sentinel *s, int64_t now)
{
    redis_conn_close(&s->conn);
    s->at = (s->at + 1) % s->n;
    if (s->asked >= s->n)
        change_state(s, SENTINEL_NOBODY);
    else
        ask_next(s, now);
}

/* Queries url[at]. If the master changes between the two commands, the greeting detects it, because
 * it asks the server for its role. */
static void ask_next(struct redis_sentinel *s, int64_t now)
{
    const char *subscribe[] = {"SUBSCRIBE", "+switch-master"};
    const char *get[] = {"SENTINEL", "GET-MASTER-ADDR-BY-NAME", s->master};
    s->asked++;
    s->since = now;
    s->answered = false;
    s->conn.url = &s->url[s->at];
    change_state(s, SENTINEL_ASKING);
    if (redis_conn_open(&s->conn, &s->why) != 0) {
        failed(s, now);
        return;
    }
    bool queued = redis_conn_add(&s->conn, 3, get) == 0 &&
                  redis_conn_add(&s->conn, 2, subscribe) == 0;
    if (!queued) {
        err_nomem(&s->why);
        failed(s, now);
    }
}

void redis_sentinel_ask(struct redis_sentinel *s, int64_t now)
{
    bool busy = s->state == SENTINEL_ASKING || s->state == SENTINEL_TOLD;
    if (busy)
        return;
    s->asked = 0;
    ask_next(s, now);
}

void redis_sentinel_doubt(struct redis_sentinel *s)
{
    s->at = (s->at + 1) % s->n;
    change_state(s, SENTINEL_SILENT);
}

/* ---- replies ---- */

static bool is_text(const redisReply *r)
{
    return r->type == REDIS_REPLY_STRING;
}

/* Handles the reply about the master: a host and a port, or nil. */
static void take_address(struct redis_sentinel *s, const redisReply *r)
{
    const struct redis_url *u = s->conn.url;
    bool pair = r->type == REDIS_REPLY_ARRAY && r->elements == 2 && is_text(r->element[0]) &&
                is_text(r->element[1]);
    s->answered = true;
    if (pair && redis_address_set(&s->told, str_of(r->element[0]->str), r->element[1]->str)) {
        change_state(s, SENTINEL_TOLD);
    } else if (r->type == REDIS_REPLY_ERROR) {
        char said[REDIS_TEXT];
        redis_conn_text(&s->conn, r, said);
        err_class(&s->why, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s: %s", u->label, said);
    } else {
        err_class(&s->why, ERR_UNAVAILABLE, CLASS_DOWN, 0,
                  "%s does not know a master \"%.100s\": is this the name that it monitors?",
                  u->label, s->master);
    }
}

/* The words of a switch-master message: "NAME OLD-HOST OLD-PORT HOST PORT". */
enum { NEWS_NAME, NEWS_OLD_HOST, NEWS_OLD_PORT, NEWS_HOST, NEWS_PORT, NEWS_WORDS };

/* Handles a published message: "message", the channel and the text. Missing words of the text are
 * empty, which is not a valid address. */
static void take_news(struct redis_sentinel *s, const redisReply *r)
{
    bool published = r->type == REDIS_REPLY_ARRAY && r->elements == 3 && is_text(r->element[0]) &&
                     is_text(r->element[2]) && strcmp(r->element[0]->str, "message") == 0;
    if (!published)
        return;

    char text[4 * REDIS_HOST_MAX], *rest = text;
    const char *word[NEWS_WORDS] = {"", "", "", "", ""};
    snprintf(text, sizeof text, "%s", r->element[2]->str);
    for (size_t i = 0; i < NEWS_WORDS && rest; i++)
        word[i] = strsep(&rest, " ");
    if (strcmp(word[NEWS_NAME], s->master) == 0)
        redis_address_set(&s->told, str_of(word[NEWS_HOST]), word[NEWS_PORT]);
}

static void take_reply(void *ctx, redisReply *r)
{
    struct redis_sentinel *s = ctx;
    if (!s->answered)
        take_address(s, r);
    else
        take_news(s, r);
    freeReplyObject(r);
}

void redis_sentinel_drive(struct redis_sentinel *s, int64_t now)
{
    bool open = s->state == SENTINEL_ASKING || s->state == SENTINEL_TOLD;
    if (!open)
        return;
    bool lost = redis_conn_drive(&s->conn, take_reply, s, &s->why) != 0;
    if (s->state == SENTINEL_TOLD) {
        /* Without the subscription, later changes are missed, but the last known address still
         * stands. */
        if (lost)
            redis_sentinel_doubt(s);
        return;
    }

    bool unknown = s->answered; /* the Sentinel does not know the master */
    bool late = now - s->since >= ASK_NS;
    if (!lost && !unknown && late)
        err_class(&s->why, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s has not answered",
                  s->conn.url->label);
    if (lost || unknown || late)
        failed(s, now);
}

int64_t redis_sentinel_deadline(const struct redis_sentinel *s)
{
    if (s->state != SENTINEL_ASKING)
        return CLOCK_NEVER;
    return s->since + ASK_NS;
}
