#include "sink/exec_env.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/text.h"

/* Linux limits each string of an environment to this many pages, including its NUL. */
#define STRING_PAGES 32
#define TEXT_MAX ((size_t)2 << 30)

extern char **environ;

/* Variables that nearly every program needs. They hold no secrets. */
static const char *const usual[] = {
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", NULL,
};

/* Variables that we set: they describe an event or a stream. */
static const char *const said_by_us[] = {
    "OUTBOX_ID",
    "OUTBOX_SEQ",
    "OUTBOX_TYPE",
    "OUTBOX_AGGREGATE_TYPE",
    "OUTBOX_AGGREGATE_ID",
    "OUTBOX_VERSION",
    "OUTBOX_TENANT",
    "OUTBOX_ATTEMPT",
    "OUTBOX_CONSUMER",
    "OUTBOX_CREATED_AT",
    "OUTBOX_STREAM",
    "OUTBOX_HWM",
    NULL,
};

/* (1) list[0..n_kept) is owned; the following entries, one for each of starts[0..n_facts), point
 * into text. (2) Each fact is NAME=VALUE and a NUL; the fact contains no other NUL. (3) list has
 * room for n_kept + EXEC_ENV_FACTS_MAX + 1 entries, and n_facts <= EXEC_ENV_FACTS_MAX. */
struct exec_env {
    char **list;
    size_t n_kept;
    struct buf text;
    size_t starts[EXEC_ENV_FACTS_MAX];
    size_t n_facts;
    size_t string_max;
};

/* ---- which variables ---- */

static bool among(const char *const *names, struct str name)
{
    for (; *names; names++) {
        if (str_is(name, *names))
            return true;
    }
    return false;
}

/* Reads the next name of a list. Returns false after the last one. */
static bool next_name(const char **p, struct str *ret)
{
    static const char between[] = ", \t";
    *p += strspn(*p, between);
    *ret = (struct str){*p, strcspn(*p, between)};
    *p += ret->n;
    return ret->n > 0;
}

int exec_env_check(const char *names, struct error *err)
{
    struct str one;
    while (names && next_name(&names, &one)) {
        /* A string that is not a valid name may be a value, perhaps a secret: do not repeat it. */
        if (!text_is_variable(one))
            return err_set(err, ERR_CONFIG,
                           "expected names of environment variables, separated by commas, such "
                           "as AWS_REGION, SHOP_URL");
        if (among(said_by_us, one))
            return err_set(err, ERR_CONFIG, "%.*s is set for each event and cannot be passed on",
                           (int)one.n, one.p);
    }
    return 0;
}

/* Returns whether to pass on an entry of our environment, NAME=VALUE. */
static bool is_kept(const char *entry, const char *names)
{
    const char *equals = strchr(entry, '=');
    if (!equals)
        return false;
    struct str name = {entry, (size_t)(equals - entry)}, one;
    if (among(said_by_us, name))
        return false;
    if (among(usual, name) || (name.n > 3 && memcmp(name.p, "LC_", 3) == 0))
        return true;
    while (names && next_name(&names, &one)) {
        if (str_eq(one, name))
            return true;
    }
    return false;
}

int exec_env_new(const char *names, struct exec_env **ret, struct error *err)
{
    if (exec_env_check(names, err) != 0)
        return -1;
    size_t n = 0;
    while (environ && environ[n])
        n++;
    struct exec_env *e = calloc(1, sizeof *e);
    if (!e)
        return err_nomem(err);
    buf_init(&e->text, TEXT_MAX);
    e->string_max = exec_env_string_max();
    e->list = calloc(n + EXEC_ENV_FACTS_MAX + 1, sizeof *e->list);
    bool whole = e->list != NULL;
    for (size_t i = 0; i < n && whole; i++) {
        if (!is_kept(environ[i], names))
            continue;
        e->list[e->n_kept] = strdup(environ[i]);
        whole = e->list[e->n_kept] != NULL;
        if (whole)
            e->n_kept++;
    }
    if (!whole) {
        exec_env_free(e);
        return err_nomem(err);
    }
    *ret = e;
    return 0;
}

void exec_env_free(struct exec_env *e)
{
    if (!e)
        return;
    for (size_t i = 0; i < e->n_kept; i++)
        free(e->list[i]);
    free(e->list);
    buf_release(&e->text);
    free(e);
}

/* ---- facts ---- */

void exec_env_clear(struct exec_env *e)
{
    buf_clear(&e->text);
    e->n_facts = 0;
}

int exec_env_text(struct exec_env *e, const char *name, struct str value, struct error *err)
{
    if (!value.p)
        return 0;
    size_t rest = strlen(name) + 2; /* including the equals sign and the NUL */
    if (value.n && memchr(value.p, '\0', value.n))
        return err_class(err, ERR_INVALID, CLASS_REJECT, 0,
                         "%s contains a NUL, which an environment cannot hold", name);
    if (value.n > e->string_max - rest)
        return err_class(err, ERR_INVALID, CLASS_REJECT, E2BIG,
                         "%s takes %zu bytes; the limit for one variable is %zu", name,
                         value.n + rest, e->string_max);
    if (e->n_facts == EXEC_ENV_FACTS_MAX)
        return err_class(err, ERR_INVALID, CLASS_REJECT, E2BIG,
                         "%s exceeds the limit on the number of variables", name);

    e->starts[e->n_facts++] = e->text.n;
    buf_adds(&e->text, name);
    buf_addc(&e->text, '=');
    buf_addstr(&e->text, value);
    buf_addc(&e->text, '\0');
    if (e->text.failed)
        return err_nomem(err);
    return 0;
}

int exec_env_number(struct exec_env *e, const char *name, int64_t value, struct error *err)
{
    char digits[24];
    struct buf b = {.p = digits, .cap = sizeof digits, .max = sizeof digits};
    buf_addi64(&b, value);
    return exec_env_text(e, name, (struct str){digits, b.n}, err);
}

int exec_env_event(struct exec_env *e, const struct event *ev, int attempt, const char *consumer,
                   struct error *err)
{
    char created[CLOCK_RFC3339_SIZE];
    clock_rfc3339(ev->created_at, created);
    const struct {
        const char *name;
        struct str value;
    } texts[] = {
        {"OUTBOX_ID", ev->id},
        {"OUTBOX_TYPE", ev->type},
        {"OUTBOX_AGGREGATE_TYPE", ev->aggregate_type},
        {"OUTBOX_AGGREGATE_ID", ev->aggregate_id},
        {"OUTBOX_TENANT", ev->tenant},
        {"OUTBOX_CREATED_AT", str_of(created)},
        {"OUTBOX_CONSUMER", str_of(consumer)},
    };

    exec_env_clear(e);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (exec_env_text(e, texts[i].name, texts[i].value, err) != 0)
            return -1;
    }
    if (exec_env_number(e, "OUTBOX_SEQ", ev->seq, err) != 0)
        return -1;
    if (ev->has_version && exec_env_number(e, "OUTBOX_VERSION", ev->version, err) != 0)
        return -1;
    return exec_env_number(e, "OUTBOX_ATTEMPT", attempt, err);
}

char **exec_env_list(struct exec_env *e)
{
    if (e->text.failed)
        return NULL;
    for (size_t i = 0; i < e->n_facts; i++)
        e->list[e->n_kept + i] = e->text.p + e->starts[i];
    e->list[e->n_kept + e->n_facts] = NULL;
    return e->list;
}

size_t exec_env_bytes(const struct exec_env *e)
{
    return e->text.n;
}

size_t exec_env_string_max(void)
{
    return STRING_PAGES * (size_t)sysconf(_SC_PAGESIZE);
}

/* Starting */

int exec_start(const struct exec_start *s, pid_t *ret)
{
    char sh[] = "sh", c[] = "-c";
    char *argv[] = {sh, c, (char *)(uintptr_t)s->command, NULL};
    short flags = POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK;
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t at;
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);

    if (s->group)
        flags |= POSIX_SPAWN_SETPGROUP;
    posix_spawnattr_init(&at);
    posix_spawnattr_setflags(&at, flags);
    posix_spawnattr_setpgroup(&at, 0);
    posix_spawnattr_setsigdefault(&at, &all);
    posix_spawnattr_setsigmask(&at, &none);

    posix_spawn_file_actions_init(&fa);
    int rc = 0;
    if (s->in >= 0)
        rc = posix_spawn_file_actions_adddup2(&fa, s->in, STDIN_FILENO);
    if (rc == 0 && s->err >= 0)
        rc = posix_spawn_file_actions_adddup2(&fa, s->err, STDERR_FILENO);
    if (rc == 0)
        rc = posix_spawn_file_actions_addclosefrom_np(&fa, 3);
    if (rc == 0)
        rc = posix_spawn(ret, "/bin/sh", &fa, &at, argv, s->env);
    posix_spawn_file_actions_destroy(&fa);
    posix_spawnattr_destroy(&at);
    return rc;
}
