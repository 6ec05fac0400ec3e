#include "redis/cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
