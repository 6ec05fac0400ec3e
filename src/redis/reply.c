/* reply.c: interprets the replies of a Redis server: errors and entry ids. docs/brokers.md
 * documents the table of errors, and a test compares them. */
#include "redis/conn.h"

#include <stdio.h>
#include <string.h>

#define HALF_MAX 20 /* digits of 64 bits */

#define CLUSTER "this is a server of a cluster: use redis-cluster://HOST:PORT,.../?stream=NAME"
#define RIGHTS "see ACL GETUSER"
#define NO_ID "no id is left above the stream's last one: lower it by XSETID, or use another stream"

const struct redis_error redis_errors[] = {
    /* The state of the server; temporary. */
    {"LOADING", REDIS_FAULT_AWAY, false, NULL},
    {"BUSY ", REDIS_FAULT_AWAY, false,
     "a script has been running for too long: SCRIPT KILL ends it"},
    {"UNKILLABLE", REDIS_FAULT_AWAY, false, "a script has been running for too long"},
    {"OOM", REDIS_FAULT_AWAY, false, "raise maxmemory, or trim old data"},
    {"MISCONF", REDIS_FAULT_AWAY, false, "redis cannot save to its disk"},
    {"READONLY", REDIS_FAULT_AWAY, true, "this is a replica: use its master's address"},
    {"MASTERDOWN", REDIS_FAULT_AWAY, true, NULL},
    {"NOREPLICAS", REDIS_FAULT_AWAY, false, "min-replicas-to-write is not met"},
    {"CLUSTERDOWN", REDIS_FAULT_AWAY, false, NULL},
    {"TRYAGAIN", REDIS_FAULT_AWAY, false, NULL},
    {"EXECABORT", REDIS_FAULT_AWAY, true, NULL},
    {"ERR max number of clients", REDIS_FAULT_AWAY, true, "raise maxclients"},

    /* Login. */
    {"NOAUTH", REDIS_FAULT_LOGIN, true, "set password-file=FILE or OUTBOX_REDIS_PASSWORD"},
    {"WRONGPASS", REDIS_FAULT_LOGIN, true, NULL},
    {"DENIED", REDIS_FAULT_LOGIN, true, NULL},
    {"ERR operation not permitted", REDIS_FAULT_LOGIN, true,
     "set password-file=FILE or OUTBOX_REDIS_PASSWORD"},
    {"ERR invalid password", REDIS_FAULT_LOGIN, true, NULL},

    /* The permission may be missing for one key only, or for the command: then no key can be
     * written. */
    {"NOPERM this user has no permissions to access one of the keys", REDIS_FAULT_STREAM, false,
     RIGHTS},
    {"NOPERM No permissions to access a key", REDIS_FAULT_STREAM, false, RIGHTS},
    {"NOPERM ACL failure in script: No permissions to access a key", REDIS_FAULT_STREAM, false,
     RIGHTS},
    {"ERR The user executing the script can't access at least one of the keys", REDIS_FAULT_STREAM,
     false, RIGHTS},
    {"NOPERM", REDIS_FAULT_LOGIN, true, RIGHTS},
    {"ERR The user executing the script can't run this command", REDIS_FAULT_LOGIN, true, RIGHTS},

    /* The stream. */
    {"WRONGTYPE", REDIS_FAULT_STREAM, false,
     "a key of another type has the stream's name: rename one of them"},
    {"ERR The stream has exhausted", REDIS_FAULT_STREAM, false, NO_ID},
    {"ERR The ID specified in XADD", REDIS_FAULT_STREAM, false, NO_ID},

    /* The event is too large. */
    {"ERR Protocol error: invalid bulk length", REDIS_FAULT_SIZE, true,
     "it is larger than proto-max-bulk-len"},
    {"ERR Protocol error: too big", REDIS_FAULT_SIZE, true, "see the limits of the server"},
    {"ERR Protocol error", REDIS_FAULT_AWAY, true, NULL},

    /* The server's setup contradicts the URL, or the server is too old. */
    {"MOVED", REDIS_FAULT_SETUP, true, CLUSTER},
    {"ASK ", REDIS_FAULT_SETUP, true, CLUSTER},
    {"CROSSSLOT", REDIS_FAULT_SETUP, true, CLUSTER},
    {"ERR unknown command", REDIS_FAULT_SETUP, true,
     "streams require Redis 5 or later, with XADD not renamed"},
    {"ERR Unknown subcommand", REDIS_FAULT_SETUP, true, "streams require Redis 5 or later"},
    {"ERR syntax error", REDIS_FAULT_SETUP, true, "maxage requires Redis 6.2 or later"},
    {"ERR Invalid stream ID specified", REDIS_FAULT_SETUP, true,
     "maxage requires Redis 6.2 or later"},
    {"NOSCRIPT", REDIS_FAULT_SCRIPT, false, NULL},
};
const size_t redis_errors_n = sizeof redis_errors / sizeof redis_errors[0];

/* An error begins with a code in capitals. ERR covers all errors without a specific code. Every
 * other code concerns the state of the server; presumably, so do the codes of future versions. */
static const struct redis_error unknown_error = {.fault = REDIS_FAULT_UNKNOWN};
static const struct redis_error unknown_code = {.fault = REDIS_FAULT_AWAY, .reconnect = true};

/* Returns whether an error begins with a code other than ERR. */
static bool has_code(const char *text)
{
    size_t n = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    bool word = n > 1 && (text[n] == ' ' || text[n] == '\0');
    return word && strncmp(text, "ERR", n) != 0;
}

const struct redis_error *redis_error_of(const char *text)
{
    for (size_t i = 0; i < redis_errors_n; i++) {
        const char *words = redis_errors[i].words;
        if (strncmp(text, words, strlen(words)) == 0)
            return &redis_errors[i];
    }
    if (has_code(text))
        return &unknown_code;
    return &unknown_error;
}

enum redis_fault redis_fault_of(const char *text)
{
    return redis_error_of(text)->fault;
}

bool redis_refuses_command(const char *text)
{
    const struct redis_error *f = redis_error_of(text);
    bool denied = f->fault == REDIS_FAULT_LOGIN && strncmp(text, "NOPERM", 6) == 0;
    bool unknown = strncmp(text, "ERR unknown command", 19) == 0;
    return denied || unknown;
}

/* Parses digits; returns false if none are present, or if the number does not fit. */
static bool number(const char *s, const char **end, int64_t *ret)
{
    int64_t n = 0;
    const char *p = s;
    for (; *p >= '0' && *p <= '9'; p++) {
        int digit = *p - '0';
        if (n > (INT64_MAX - digit) / 10)
            return false;
        n = 10 * n + digit;
    }
    *end = p;
    *ret = n;
    return p > s;
}

bool redis_id(const char *s, int64_t *hi, int64_t *lo)
{
    const char *end;
    if (!number(s, &end, hi) || *end != '-')
        return false;
    return number(end + 1, &end, lo) && *end == '\0';
}

/* Counts the digits at s; returns 0 if they cannot be one half of an id. */
static size_t half_of(const char *s)
{
    size_t n = strspn(s, "0123456789");
    if (n > HALF_MAX)
        return 0;
    return n;
}

bool redis_is_id(const char *s)
{
    size_t high = half_of(s);
    if (high == 0 || s[high] != '-')
        return false;
    const char *behind = s + high + 1;
    size_t low = half_of(behind);
    return low > 0 && behind[low] == '\0';
}
