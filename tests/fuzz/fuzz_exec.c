/* The environment of a command, for any event fields. The input is fields separated by 0xff and, as
 * an envelope from a stream, an event. Each entry is one of ours, with the field behind its name,
 * or the event is refused. */
#include "event/event_json.h"
#include "extra/streams/envelope.h"
#include "fuzz.h"
#include "sink/exec_env.h"

static const struct {
    const char *name;
    size_t offset;
} fields[] = {
    {"OUTBOX_ID=", offsetof(struct event, id)},
    {"OUTBOX_TYPE=", offsetof(struct event, type)},
    {"OUTBOX_AGGREGATE_TYPE=", offsetof(struct event, aggregate_type)},
    {"OUTBOX_AGGREGATE_ID=", offsetof(struct event, aggregate_id)},
    {"OUTBOX_TENANT=", offsetof(struct event, tenant)},
};
#define FIELDS (sizeof fields / sizeof fields[0])

static struct str field_of(const struct event *ev, size_t i)
{
    struct str s;
    memcpy(&s, (const char *)ev + fields[i].offset, sizeof s);
    return s;
}

/* is_said tells whether an entry holds the complete field of the event, or is a variable that the
 * sink adds. */
static bool is_said(const struct event *ev, const char *entry)
{
    static const char *const made[] = {"OUTBOX_CREATED_AT=", "OUTBOX_CONSUMER=mail",
                                       "OUTBOX_SEQ=", "OUTBOX_VERSION=", "OUTBOX_ATTEMPT=1"};
    for (size_t i = 0; i < FIELDS; i++) {
        size_t n = strlen(fields[i].name);
        if (strncmp(entry, fields[i].name, n) == 0)
            return str_is(field_of(ev, i), entry + n);
    }
    for (size_t i = 0; i < sizeof made / sizeof made[0]; i++)
        if (strncmp(entry, made[i], strlen(made[i])) == 0)
            return true;
    return false;
}

static void try_event(const struct event *ev)
{
    struct exec_env *env = NULL;
    struct error err = {0};
    size_t there = 0, n = 0;
    clearenv();
    setenv("PATH", "/bin", 1);
    setenv("PGPASSWORD", "secret", 1);
    MUST(exec_env_new(NULL, &env, &err) == 0);
    if (exec_env_event(env, ev, 1, "mail", &err) != 0) {
        MUST(err.code == ERR_INVALID && err.retry_class == CLASS_REJECT);
        exec_env_free(env);
        return;
    }
    char **list = exec_env_list(env);
    MUST(list && strcmp(list[0], "PATH=/bin") == 0);
    for (n = 1; list[n]; n++)
        MUST(is_said(ev, list[n]));
    for (size_t i = 0; i < FIELDS; i++)
        if (field_of(ev, i).p)
            there++;
    MUST(n == 1 + there + 4 + (ev->has_version ? 1 : 0));
    exec_env_free(env);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct event ev = {.seq = (int64_t)n, .has_version = n % 2 == 0, .created_at = INT64_MIN};
    struct event read = {0};
    struct error err = {0};
    struct buf text;
    const char *p = data ? (const char *)data : "", *end = p + n;
    for (size_t i = 0; i < FIELDS && p <= end; i++) {
        const char *stop = p < end ? memchr(p, 0xff, (size_t)(end - p)) : NULL;
        struct str s = {p, (size_t)((stop ? stop : end) - p)};
        memcpy((char *)&ev + fields[i].offset, &s, sizeof s);
        p += s.n + 1;
    }
    try_event(&ev);

    buf_init(&text, 1 << 24);
    if (envelope_read((struct str){data ? (const char *)data : "", n}, &text, &read, &err) == 0)
        try_event(&read);
    buf_release(&text);
    return 0;
}
