#include "redis/locate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ASK_NS (1000 * MS_NS) /* time limit for the reply of one Sentinel */
#define OUT_MAX 4096
#define IN_MAX ((size_t)1 << 20)

/* ---- Redis Cluster ---- */

/* CRC16 XMODEM (polynomial 0x1021): contribution of the upper four bits as they are shifted out. */
static const uint16_t crc_of[16] = {0x0000, 0x1021, 0x2042, 0x3063, 0x4084, 0x50a5, 0x60c6, 0x70e7,
                                    0x8108, 0x9129, 0xa14a, 0xb16b, 0xc18c, 0xd1ad, 0xe1ce, 0xf1ef};

/* Processes four bits at a time, because it runs for every event. */
static unsigned crc16(struct str s)
{
    unsigned crc = 0;
    for (size_t i = 0; i < s.n; i++) {
        unsigned byte = (unsigned char)s.p[i];
        crc = (crc << 4 & 0xffff) ^ crc_of[crc >> 12 ^ byte >> 4];
        crc = (crc << 4 & 0xffff) ^ crc_of[crc >> 12 ^ (byte & 15)];
    }
    return crc;
}

struct str redis_cluster_tag(struct str key)
{
    const char *open = key.n ? memchr(key.p, '{', key.n) : NULL;
    if (!open)
        return key;
    struct str rest = {open + 1, key.n - (size_t)(open + 1 - key.p)};
    const char *close = rest.n ? memchr(rest.p, '}', rest.n) : NULL;
    bool empty = !close || close == rest.p;
    if (empty)
        return key;
    return (struct str){rest.p, (size_t)(close - rest.p)};
}

unsigned redis_cluster_slot(struct str key)
{
    return crc16(redis_cluster_tag(key)) % REDIS_SLOTS;
}

/* The address is HOST:PORT. An IPv6 address has no brackets; @BUS-PORT may follow. */
bool redis_cluster_redirect(const char *text, const char *asked_host, struct redis_redirect *ret)
{
    bool moved = strncmp(text, "MOVED ", 6) == 0;
    bool ask = strncmp(text, "ASK ", 4) == 0;
    if (!moved && !ask)
        return false;

    const char *rest = text + (moved ? 6 : 4);
    char *end;
    unsigned long slot = strtoul(rest, &end, 10);
    bool has_slot = end != rest && *end == ' ' && slot < REDIS_SLOTS;
    if (!has_slot)
        return false;

    const char *address = end + 1, *colon = strrchr(address, ':');
    if (!colon)
        return false;
    struct str host = {address, (size_t)(colon - address)};
    bool unknown = host.n == 0 || str_is(host, "?");
    if (unknown)
        host = str_of(asked_host);

    char port[8] = "";
    size_t digits = strspn(colon + 1, "0123456789");
    if (digits == 0 || digits >= sizeof port)
        return false;
    memcpy(port, colon + 1, digits);
    struct redis_redirect how = {.ask = ask, .slot = (unsigned)slot};
    if (!redis_address_set(&how.to, host, port))
        return false;
    *ret = how;
    return true;
}

static const char invalid[] = "invalid reply to CLUSTER SLOTS";

static bool is_slot(const redisReply *r)
{
    return r->type == REDIS_REPLY_INTEGER && r->integer >= 0 && r->integer < REDIS_SLOTS;
}

/* Parses the first server of a range: [host or nil, port, ...]. */
static bool read_master(const redisReply *r, const char *asked_host, struct redis_address *ret)
{
    char port[24];
    bool server = r->type == REDIS_REPLY_ARRAY && r->elements >= 2 &&
                  r->element[1]->type == REDIS_REPLY_INTEGER;
    if (!server)
        return false;
    struct str host = str_of(asked_host);
    const redisReply *named = r->element[0];
    bool known = named->type == REDIS_REPLY_STRING && named->len > 0 &&
                 strcmp(named->str, "?") != 0;
    if (known)
        host = (struct str){named->str, named->len};
    snprintf(port, sizeof port, "%lld", r->element[1]->integer);
    return redis_address_set(ret, host, port);
}

int redis_cluster_slots(const redisReply *reply, const char *asked_host, redis_slots_fn *take,
                        void *ctx, struct error *err)
{
    if (reply->type != REDIS_REPLY_ARRAY)
        return err_set(err, ERR_UNAVAILABLE, "%s", invalid);
    for (size_t i = 0; i < reply->elements; i++) {
        const redisReply *range = reply->element[i];
        struct redis_address master;
        bool sound = range->type == REDIS_REPLY_ARRAY && range->elements >= 3 &&
                     is_slot(range->element[0]) && is_slot(range->element[1]) &&
                     read_master(range->element[2], asked_host, &master);
        if (!sound)
            return err_set(err, ERR_UNAVAILABLE, "%s", invalid);
        int rc = take(ctx, (unsigned)range->element[0]->integer,
                      (unsigned)range->element[1]->integer, &master, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* ---- Sentinels ---- */

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
