#include "redis/reply.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

/* By the first words of the text; the first that fits counts. */
static const struct {
    const char *words;
    enum redis_fault fault;
    bool reconnect;
    const char *advice;
} faults[] = {
    {"LOADING", REDIS_FAULT_AWAY, false, NULL},
    {"BUSY ", REDIS_FAULT_AWAY, false, NULL},
    {"BUSYKEY", REDIS_FAULT_EVENT, false, NULL},
    {"OOM", REDIS_FAULT_AWAY, false, "raise maxmemory, or trim what is old"},
    {"MISCONF", REDIS_FAULT_AWAY, false, "redis cannot save to its disk"},
    {"READONLY", REDIS_FAULT_AWAY, true, "this is a replica: name its master"},
    {"MASTERDOWN", REDIS_FAULT_AWAY, true, NULL},
    {"NOREPLICAS", REDIS_FAULT_AWAY, false, "min-replicas-to-write is not met"},
    {"CLUSTERDOWN", REDIS_FAULT_AWAY, false, NULL},
    {"TRYAGAIN", REDIS_FAULT_AWAY, false, NULL},
    {"MOVED", REDIS_FAULT_SETUP, false, "this is a cluster, whose streams are on several servers: not supported"},
    {"ASK", REDIS_FAULT_SETUP, false, "this is a cluster, whose streams are on several servers: not supported"},
    {"CROSSSLOT", REDIS_FAULT_SETUP, false, "this is a cluster: not supported"},
    {"NOAUTH", REDIS_FAULT_LOGIN, true, "set password-file=FILE or OUTBOX_REDIS_PASSWORD"},
    {"WRONGPASS", REDIS_FAULT_LOGIN, true, NULL},
    {"DENIED", REDIS_FAULT_LOGIN, true, NULL},
    {"NOPERM this user has no permissions to access one of the keys", REDIS_FAULT_KEY, false, "see ACL GETUSER"},
    {"NOPERM No permissions to access a key", REDIS_FAULT_KEY, false, "see ACL GETUSER"},
    {"NOPERM", REDIS_FAULT_LOGIN, true, "see ACL GETUSER"},
    {"WRONGTYPE", REDIS_FAULT_KEY, false, "the stream's name is that of something else"},
    {"NOSCRIPT", REDIS_FAULT_SCRIPT, false, NULL},
    {"ERR max number of clients", REDIS_FAULT_AWAY, true, NULL},
    {"ERR Protocol error", REDIS_FAULT_PROTOCOL, true, "see proto-max-bulk-len and the limit of payloads"},
    {"ERR unknown command", REDIS_FAULT_SETUP, false, "streams need Redis 5 or later"},
};
#define FAULTS (sizeof faults / sizeof faults[0])

static size_t find(const char *text)
{
    size_t i = 0;
    while (i < FAULTS && strncmp(text, faults[i].words, strlen(faults[i].words)) != 0) i++;
    return i;
}

enum redis_fault redis_fault_of(const char *text)
{
    size_t i = find(text);
    return i < FAULTS ? faults[i].fault : REDIS_FAULT_EVENT;
}

const char *redis_advice_of(const char *text)
{
    size_t i = find(text);
    return i < FAULTS ? faults[i].advice : NULL;
}

bool redis_reconnects(const char *text)
{
    size_t i = find(text);
    return i < FAULTS && faults[i].reconnect;
}

void redis_text(const redisReply *r, char out[REDIS_TEXT])
{
    size_t n = 0, at = 0;
    if (r->str) n = r->len < REDIS_TEXT - 1 ? r->len : REDIS_TEXT - 1;
    if (n) memcpy(out, r->str, n);
    out[n] = '\0';
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)out[i] < ' ' || out[i] == 0x7f) out[i] = ' ';
    while (!utf8_valid((struct str){out, n}, &at)) out[at] = '?';
}

static bool number(const char *s, char **end, int64_t *ret)
{
    if (*s < '0' || *s > '9') return false;
    errno = 0;
    long long v = strtoll(s, end, 10);
    *ret = v;
    return errno == 0;
}

bool redis_id(const char *s, int64_t *hi, int64_t *lo)
{
    char *end;
    return number(s, &end, hi) && *end == '-' && number(end + 1, &end, lo) && *end == '\0';
}
