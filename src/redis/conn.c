#include "redis/conn.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/text.h"
#include "base/url.h"
#include "base/utf8.h"

#define GREET_MAX 16384 /* bytes of the greeting, and of each reply to it */
/* A text that contains this many leading bytes of the password counts as repeating it. */
#define SECRET_TOLD 16
#define READ_SIZE 65536
#define READS_MAX 64           /* reads per call to redis_conn_drive */
#define ELEMENTS_MAX (1 << 20) /* elements of an array in a reply */
#define WAIT_MAX_MS 60000      /* of one poll */
#define HALF_MAX 20            /* digits of 64 bits */

void redis_conn_init(struct redis_conn *c, const struct redis_url *url, const char *name,
                     size_t out_max, size_t in_max)
{
    *c = (struct redis_conn){.url = url, .name = name, .in_max = in_max};
    wire_init(&c->wire, out_max, GREET_MAX);
}

void redis_conn_close(struct redis_conn *c)
{
    wire_close(&c->wire);
    url_password_free(c->secret);
    c->secret = NULL;
    if (c->reader)
        redisReaderFree(c->reader);
    c->reader = NULL;
    c->n_asked = c->greeted = c->coming = 0;
}

void redis_conn_release(struct redis_conn *c)
{
    redis_conn_close(c);
    wire_release(&c->wire);
}

/* Appends a command, and leaves no other copy in memory. */
static int add_command(struct buf *b, int argc, const char **argv)
{
    char *text = NULL;
    int n = redisFormatCommandArgv(&text, argc, argv, NULL);
    if (n < 0)
        return -1;
    buf_add(b, text, (size_t)n);
    explicit_bzero(text, (size_t)n); /* it may contain AUTH */
    redisFreeCommand(text);
    if (b->failed)
        return -1;
    return 0;
}

int redis_conn_add(struct redis_conn *c, int argc, const char **argv)
{
    return add_command(&c->wire.out, argc, argv);
}

/* ---- the greeting: AUTH, SELECT, CLIENT SETNAME and ROLE ---- */

/* Appends one command of the greeting. A failure marks the buffer as failed. */
static void greet(struct redis_conn *c, enum redis_greeting what, int argc, const char **argv)
{
    c->asked[c->n_asked++] = what;
    if (add_command(&c->wire.login, argc, argv) != 0)
        c->wire.login.failed = true;
}

/* Queues the commands, and keeps the password in c->secret. */
static int make_greeting(struct redis_conn *c, struct error *err)
{
    c->secret = url_password(c->url->password_file, c->url->password, err);
    bool unreadable = !c->secret && err->code;
    if (unreadable)
        return -1;

    const char *user = c->url->user;
    if (c->secret && user)
        greet(c, GREET_AUTH, 3, (const char *[]){"AUTH", user, c->secret});
    else if (c->secret)
        greet(c, GREET_AUTH, 2, (const char *[]){"AUTH", c->secret});
    char db[24];
    snprintf(db, sizeof db, "%lld", (long long)c->url->db);
    if (c->url->db)
        greet(c, GREET_SELECT, 2, (const char *[]){"SELECT", db});
    greet(c, GREET_NAME, 3, (const char *[]){"CLIENT", "SETNAME", c->name});
    if (c->master_only)
        greet(c, GREET_ROLE, 1, (const char *[]){"ROLE"});
    if (c->wire.login.failed)
        return err_nomem(err);
    return 0;
}

/* Returns whether a command of the greeting may fail: a connection works without a name, unless the
 * server would refuse every command in the same way. NOPERM concerns only CLIENT or ROLE, which no
 * delivery needs: a replica reveals itself on the first write. */
static bool is_harmless(enum redis_greeting what, const char *said)
{
    bool needed = what == GREET_AUTH || what == GREET_SELECT;
    if (needed)
        return false;
    if (strncmp(said, "NOPERM", 6) == 0)
        return true;
    enum redis_fault fault = redis_fault_of(said);
    return fault != REDIS_FAULT_AWAY && fault != REDIS_FAULT_LOGIN;
}

/* Handles the reply to the next command of the greeting. Fails if the server refuses a required
 * command, with CLASS_FATAL for a database that does not exist. Also fails if the server must be a
 * master but is not: a Sentinel's information may be outdated. */
static int take_greeting(struct redis_conn *c, const redisReply *r, struct error *err)
{
    static const char *const names[] = {[GREET_AUTH] = "AUTH",
                                        [GREET_SELECT] = "SELECT",
                                        [GREET_NAME] = "CLIENT SETNAME",
                                        [GREET_ROLE] = "ROLE"};
    enum redis_greeting what = c->asked[c->greeted++];
    if (r->type == REDIS_REPLY_ERROR) {
        if (is_harmless(what, r->str))
            return 0;
        char text[REDIS_TEXT];
        redis_conn_text(c, r, text);
        bool no_such_db = what == GREET_SELECT && redis_fault_of(r->str) == REDIS_FAULT_UNKNOWN;
        return err_class(err, ERR_UNAVAILABLE, no_such_db ? CLASS_FATAL : CLASS_DOWN, 0,
                         "%s refused %s: %s", c->url->label, names[what], text);
    }
    if (what != GREET_ROLE)
        return 0;
    bool told = r->type == REDIS_REPLY_ARRAY && r->elements > 0 &&
                r->element[0]->type == REDIS_REPLY_STRING;
    if (told && strcmp(r->element[0]->str, "master") == 0)
        return 0;
    return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s is not a master", c->url->label);
}

/* Like hiredis' own function, but with a limit: that one allocates all announced elements of a
 * reply before any of them has arrived. */
#if HIREDIS_MAJOR >= 1
static void *make_array(const redisReadTask *task, size_t n)
#else
static void *make_array(const redisReadTask *task, int n)
#endif
{
    const redisReplyObjectFunctions *theirs = task->privdata;
    if (n > ELEMENTS_MAX)
        return NULL;
    return theirs->createArray(task, n);
}

void redis_conn_hold(struct redis_conn *c)
{
    redis_conn_close(c);
    wire_hold(&c->wire);
}

int redis_conn_open(struct redis_conn *c, struct error *err)
{
    const struct redis_url *u = c->url;
    struct wire_peer peer = {
        .label = u->label,
        .path = u->path,
        .host = u->host,
        .port = u->port,
        .tls = u->tls,
        .files = {.ca = u->ca, .cert = u->cert, .key = u->key},
    };
    if (c->wire.state != WIRE_HELD)
        redis_conn_close(c);

    int rc = 0;
    c->reader = redisReaderCreate();
    if (c->reader) {
        c->reader->privdata = c->reader->fn;
        c->objects = *c->reader->fn;
        c->objects.createArray = make_array;
        c->reader->fn = &c->objects;
    } else {
        rc = err_nomem(err);
    }
    if (rc == 0)
        rc = make_greeting(c, err);
    if (rc == 0)
        rc = wire_open(&c->wire, &peer, err);
    if (rc != 0) {
        if (!err->retry_class)
            err->retry_class = CLASS_DOWN;
        redis_conn_close(c);
    }
    return rc;
}

/* ---- reading and writing ---- */

void redis_conn_text(const struct redis_conn *c, const redisReply *r, char out[REDIS_TEXT])
{
    struct str said = STR("");
    if (r->str)
        said = (struct str){r->str, r->len};
    /* Compare only the beginning of the password: Redis truncates long arguments when it repeats
     * them. */
    struct str secret = str_of(c->secret);
    bool repeats = secret.n > 0 &&
                   memmem(said.p, said.n, secret.p, min_size(secret.n, SECRET_TOLD));
    if (repeats)
        snprintf(out, REDIS_TEXT, "an error that repeats our password (not shown)");
    else
        text_clean(out, REDIS_TEXT, said.p, said.n);
}

/* Dispatches the complete replies. The connection becomes ready only after the server has accepted
 * all commands of the greeting, because a sink may blame its event when a ready connection ends. */
static int take_replies(struct redis_conn *c, redis_reply_fn *reply, void *ctx, struct error *err)
{
    for (;;) {
        void *r = NULL;
        if (redisReaderGetReply(c->reader, &r) != REDIS_OK)
            return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0,
                             "%s does not speak the Redis protocol: %s", c->url->label,
                             c->reader->errstr);
        bool greeting = c->wire.state == WIRE_LOGIN;
        if (!r) {
            /* The reply is longer than any reply to our commands. */
            if (c->coming > (greeting ? GREET_MAX : c->in_max))
                return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0,
                                 "%s sent a reply that is too long", c->url->label);
            return 0;
        }
        c->coming = 0;
        if (!greeting) {
            reply(ctx, r);
            continue;
        }
        int rc = take_greeting(c, r, err);
        freeReplyObject(r);
        if (rc != 0)
            return -1;
        if (c->greeted == c->n_asked)
            wire_accepted(&c->wire);
    }
}

/* Reads available data, up to READS_MAX times: a server that never pauses must not block us. */
static int read_replies(struct redis_conn *c, redis_reply_fn *reply, void *ctx, struct error *err)
{
    char chunk[READ_SIZE];
    for (int i = 0; i < READS_MAX; i++) {
        ssize_t k = wire_read(&c->wire, chunk, sizeof chunk, err);
        if (k < 0)
            return wire_lost(&c->wire, err);
        if (k == 0)
            return 0;
        if (redisReaderFeed(c->reader, chunk, (size_t)k) != REDIS_OK)
            return err_nomem(err);
        c->coming += (size_t)k;
        if (take_replies(c, reply, ctx, err) != 0)
            return -1;
        if (wire_drained(&c->wire, (size_t)k, sizeof chunk))
            return 0;
    }
    return 0;
}

/* Goes through the states in order, because each step may leave the connection ready for the next
 * one: with a fast peer, a single call completes them all. */
int redis_conn_drive(struct redis_conn *c, redis_reply_fn *reply, void *ctx, struct error *err)
{
    if (wire_advance(&c->wire, err) != 0)
        return -1;
    if (c->wire.state == WIRE_LOGIN) {
        if (wire_flush(&c->wire, err) != 0)
            return wire_lost(&c->wire, err);
        if (read_replies(c, reply, ctx, err) != 0)
            return -1;
    }
    if (c->wire.state != WIRE_READY)
        return 0;

    /* Read even after a failed write: replies sent before the failure still count. */
    struct error cut;
    int written = wire_flush(&c->wire, &cut);
    if (read_replies(c, reply, ctx, err) != 0)
        return -1;
    if (written == 0)
        return 0;
    *err = cut;
    return wire_lost(&c->wire, err);
}

void redis_conn_flush(struct redis_conn *c)
{
    struct error err;
    if (c->wire.state == WIRE_READY)
        (void)wire_flush(&c->wire, &err);
}

/* ---- calling ---- */

static void keep_first(void *ctx, redisReply *r)
{
    redisReply **answer = ctx;
    if (*answer)
        freeReplyObject(r); /* unsolicited */
    else
        *answer = r;
}

/* Waits until the connection can be driven again; returns -1 past the deadline, or if `wake` is
 * readable. */
static int wait_for(struct redis_conn *c, int64_t deadline, int wake, struct error *err)
{
    struct pollfd fds[2] = {wire_poll(&c->wire), {.fd = wake, .events = POLLIN}};
    int64_t left = (deadline - clock_mono(&clock_system)) / MS_NS;
    if (left <= 0)
        return err_class(err, ERR_UNAVAILABLE, CLASS_DOWN, 0, "%s has not answered in time",
                         c->url->label);

    int wait_ms = left < WAIT_MAX_MS ? (int)left + 1 : WAIT_MAX_MS;
    int rc = poll(fds, 2, wait_ms);
    if (rc < 0 && errno != EINTR)
        return err_errno(err, ERR_INTERNAL, errno, "poll");
    if (fds[1].revents)
        return err_set(err, ERR_BUSY, "asked to stop");
    return 0;
}

int redis_conn_call(struct redis_conn *c, int argc, const char **argv, int64_t timeout_ms, int wake,
                    redisReply **ret, struct error *err)
{
    redisReply *answer = NULL;
    int64_t deadline = clock_mono(&clock_system) + timeout_ms * MS_NS;
    if (c->wire.state == WIRE_CLOSED && redis_conn_open(c, err) != 0)
        return -1;
    if (redis_conn_add(c, argc, argv) != 0) {
        err_nomem(err);
        goto fail;
    }
    while (!answer) {
        if (redis_conn_drive(c, keep_first, &answer, err) != 0)
            goto fail;
        if (!answer && wait_for(c, deadline, wake, err) != 0)
            goto fail;
    }
    *ret = answer;
    return 0;
fail:
    if (answer)
        freeReplyObject(answer);
    redis_conn_close(c);
    return -1;
}

/* ---- errors and stream ids ---- */

/* docs/brokers.md documents this table, and a test compares them. */
#define CLUSTER "this is a server of a cluster: use redis-cluster://HOST:PORT,.../?stream=NAME"
#define RIGHTS "see ACL GETUSER"
#define NO_ID \
    "no id is left above the stream's last id: lower that with XSETID, or use another stream"

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

    /* The permission may be missing for one key only, or for the command, so that no key can be
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
     "the event is larger than proto-max-bulk-len"},
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
    for (; char_is_digit(*p); p++)
        if (!num_push(&n, *p - '0'))
            return false;
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
