#include "redis/sentinel.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

#define ASK_NS (1000 * MS_NS) /* how long one sentinel may take to answer */
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

/* Moves on to the next Sentinel, after one that is unreachable or does not know the master. */
static void failed(struct redis_sentinel *s, int64_t now)
{
    redis_conn_close(&s->conn);
    s->at = (s->at + 1) % s->n;
    if (s->asked >= s->n)
        change_state(s, SENTINEL_NOBODY);
    else
        ask_next(s, now);
}

/* Queries url[at]. A change of master between the two commands is caught by the greeting, which
 * asks the server for its role. */
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
    bool queued = redis_conn_add(&s->conn, 3, get, NULL) == 0 &&
                  redis_conn_add(&s->conn, 2, subscribe, NULL) == 0;
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

/* Replies */

static bool is_text(const redisReply *r)
{
    return r->type == REDIS_REPLY_STRING;
}

/* Records the master's address; false if it is not an address. */
static bool set_told(struct redis_sentinel *s, const char *host, const char *port)
{
    struct error err;
    int64_t number;
    bool sound = *host && strlen(host) < sizeof s->told.host && text_plain(str_of(host)) &&
                 text_int(port, 1, 65535, &number, &err) == 0;
    if (!sound)
        return false;
    snprintf(s->told.host, sizeof s->told.host, "%s", host);
    snprintf(s->told.port, sizeof s->told.port, "%d", (int)number);
    return true;
}

/* Handles the reply about the master: a host and a port, or nothing. */
static void take_address(struct redis_sentinel *s, const redisReply *r)
{
    char said[REDIS_TEXT];
    const struct redis_url *u = s->conn.url;
    bool pair = r->type == REDIS_REPLY_ARRAY && r->elements == 2 && is_text(r->element[0]) &&
                is_text(r->element[1]);
    s->answered = true;
    if (pair && set_told(s, r->element[0]->str, r->element[1]->str)) {
        change_state(s, SENTINEL_TOLD);
        return;
    }
    if (r->type == REDIS_REPLY_ERROR) {
        redis_conn_text(&s->conn, r, said);
        err_class(&s->why, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s: %s", u->label, said);
    } else {
        err_class(&s->why, ERR_UNAVAILABLE, CLASS_DOWN, 0,
                  "%s does not know a master \"%.100s\": is that the name that it monitors?",
                  u->label, s->master);
    }
}

/* Returns the text of a published message; NULL for any other reply. It is an array of "message",
 * the channel and the text. */
static const char *published(const redisReply *r)
{
    if (r->type != REDIS_REPLY_ARRAY || r->elements != 3)
        return NULL;
    const redisReply *kind = r->element[0], *text = r->element[2];
    if (!is_text(kind) || !is_text(text))
        return NULL;
    if (strcmp(kind->str, "message") != 0)
        return NULL;
    return text->str;
}

/* The words of a switch-master message: "NAME OLD-HOST OLD-PORT HOST PORT". */
enum { NEWS_NAME, NEWS_OLD_HOST, NEWS_OLD_PORT, NEWS_HOST, NEWS_PORT, NEWS_WORDS };

/* Handles a published message. Missing words are empty, which is not a valid address. */
static void take_news(struct redis_sentinel *s, const redisReply *r)
{
    const char *news = published(r);
    if (!news)
        return;

    char text[4 * REDIS_HOST_MAX], *rest = text;
    const char *word[NEWS_WORDS] = {"", "", "", "", ""};
    snprintf(text, sizeof text, "%s", news);
    for (size_t i = 0; i < NEWS_WORDS && rest; i++)
        word[i] = strsep(&rest, " ");

    bool ours = strcmp(word[NEWS_NAME], s->master) == 0;
    if (!ours)
        return;
    if (set_told(s, word[NEWS_HOST], word[NEWS_PORT]))
        s->changes++;
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

/* Handles a lost connection. If we were subscribed, changes are missed from now on, but the last
 * known address still stands. */
static void connection_lost(struct redis_sentinel *s, int64_t now)
{
    if (s->state == SENTINEL_TOLD) {
        s->at = (s->at + 1) % s->n;
        change_state(s, SENTINEL_SILENT);
    } else {
        failed(s, now);
    }
}

void redis_sentinel_drive(struct redis_sentinel *s, int64_t now)
{
    bool open = s->state == SENTINEL_ASKING || s->state == SENTINEL_TOLD;
    if (!open)
        return;
    if (redis_conn_drive(&s->conn, take_reply, s, &s->why) != 0) {
        connection_lost(s, now);
        return;
    }
    if (s->state != SENTINEL_ASKING)
        return;
    if (s->answered) {
        failed(s, now); /* it does not know the master */
        return;
    }
    if (now - s->since < ASK_NS)
        return;
    err_class(&s->why, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s has not answered", s->conn.url->label);
    failed(s, now);
}

int64_t redis_sentinel_deadline(const struct redis_sentinel *s)
{
    if (s->state != SENTINEL_ASKING)
        return CLOCK_NEVER;
    return s->since + ASK_NS;
}
