#include "sink.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"

#define WAIT_MAX_MS 20000
#define FDS_MAX 64

/* Arrivals */

void sink_arrivals_add(struct sink_arrivals *got, struct str id, struct str payload)
{
    assert_int_equal(id.n, UUID_TEXT);
    got->a = realloc(got->a, (got->n + 1) * sizeof *got->a);
    struct sink_arrival *a = &got->a[got->n++];
    *a = (struct sink_arrival){.payload = malloc(payload.n + 1), .n = payload.n};
    memcpy(a->id, id.p, id.n);
    memcpy(a->payload, payload.p, payload.n);
}

static void add_line(struct sink_arrivals *got, struct str line)
{
    struct json object, id, payload;
    assert_int_equal(json_parse(line, &object, NULL, NULL), 0);
    assert_true(json_get(object, STR("id"), &id));
    assert_true(json_get(object, STR("payload"), &payload));
    sink_arrivals_add(got, (struct str){id.raw.p + 1, id.raw.n - 2}, payload.raw);
}

void sink_arrivals_lines(struct sink_arrivals *got, const char *text, size_t n)
{
    while (n) {
        const char *lf = memchr(text, '\n', n);
        assert_non_null(lf);
        size_t len = (size_t)(lf - text);
        add_line(got, (struct str){text, len});
        text += len + 1;
        n -= len + 1;
    }
}

void sink_arrivals_release(struct sink_arrivals *got)
{
    for (size_t i = 0; i < got->n; i++)
        free(got->a[i].payload);
    free(got->a);
    *got = (struct sink_arrivals){0};
}

/* The rig */

static int64_t rig_mono(void *ctx)
{
    const struct sink_rig *rig = ctx;
    int64_t now = rig->frozen_ns ? rig->frozen_ns : clock_mono(&clock_system);
    return now + rig->ahead_ns;
}

void sink_rig_freeze(struct sink_rig *rig)
{
    rig->frozen_ns = clock_mono(&clock_system);
}

static int64_t rig_wall(void *ctx)
{
    (void)ctx;
    return clock_wall(&clock_system);
}

static void rig_done(void *ctx, struct delivery *d, const struct sink_result *r)
{
    struct sink_rig *rig = ctx;
    struct sink_item *it = (struct sink_item *)d;
    it->answers++;
    it->order = rig->answered++;
    it->status = r->status;
    it->native = r->native;
    it->retry_after_ms = r->retry_after_ms;
    it->has_text = r->text != NULL;
    it->unasked = r->unasked;
    snprintf(it->text, sizeof it->text, "%s", r->text ? r->text : "");
    snprintf(it->receipt, sizeof it->receipt, "%s", r->receipt ? r->receipt : "");
}

void sink_rig_init(struct sink_rig *rig)
{
    *rig = (struct sink_rig){.clock = {rig_mono, rig_wall, rig}};
}

struct sink_config sink_rig_complete(struct sink_rig *rig, struct sink_config cfg)
{
    cfg.consumer = "search";
    cfg.clock = &rig->clock;
    cfg.done = rig_done;
    cfg.done_ctx = rig;
    return cfg;
}

void sink_rig_open(struct sink_rig *rig, struct sink_config cfg)
{
    const struct sink_ops *ops;
    struct error err = {0};
    cfg = sink_rig_complete(rig, cfg);
    if (sink_find(cfg.url, &ops, &err) != 0 || ops->open(&cfg, &rig->sk, &err) != 0)
        fail_msg("%s", err.text);
}

struct sink_item *sink_rig_add(struct sink_rig *rig, const char *payload, size_t n)
{
    if (rig->n == rig->cap) {
        rig->cap = rig->cap ? rig->cap * 2 : 64;
        rig->items = realloc(rig->items, rig->cap * sizeof(struct sink_item *));
    }
    struct sink_item *it = calloc(1, sizeof *it);
    size_t seq = rig->n + 1;
    rig->items[rig->n++] = it;
    if (!n)
        n = strlen(payload);
    it->payload = malloc(n + 1);
    memcpy(it->payload, payload, n);
    it->payload[n] = '\0';
    snprintf(it->id, sizeof it->id, "00000000-0000-7000-8000-%012zx", seq);
    snprintf(it->key, sizeof it->key, "o'Brien \"\xe2\x98\x83\" %zu", seq);
    it->ev = (struct event){
        .seq = (int64_t)seq,
        .id = {it->id, UUID_TEXT},
        .type = STR("order.created"),
        .aggregate_type = STR("order"),
        .aggregate_id = str_of(it->key),
        .payload = {it->payload, n},
        .created_at = INT64_C(1767323045678),
        .key = event_key(STR("order"), str_of(it->key)),
    };
    it->d = (struct delivery){.ev = &it->ev, .attempt = 1};
    return it;
}

void sink_rig_add_many(struct sink_rig *rig, size_t count, size_t payload_size)
{
    char *payload = malloc(payload_size + 1);
    for (size_t i = 0; i < count; i++) {
        memset(payload, 'x', payload_size);
        int n = snprintf(payload, payload_size, "\"%zu", i);
        payload[n] = 'x';
        payload[payload_size - 1] = '"';
        sink_rig_add(rig, payload, payload_size);
    }
    free(payload);
}

size_t sink_rig_submit(struct sink_rig *rig)
{
    size_t n = rig->n - rig->accepted;
    if (!n)
        return 0;
    bool idle = rig->accepted == rig->answered;
    struct delivery **d = malloc(n * sizeof(struct delivery *));
    for (size_t i = 0; i < n; i++)
        d[i] = &rig->items[rig->accepted + i]->d;
    size_t k = rig->sk->ops->submit(rig->sk, d, n);
    free(d);
    assert_in_range(k, idle ? 1 : 0, n);
    rig->accepted += k;
    assert_true(rig->answered <= rig->accepted);
    for (size_t i = rig->accepted; i < rig->n; i++)
        assert_int_equal(rig->items[i]->answers, 0);
    return k;
}

void sink_rig_wait(struct sink_rig *rig)
{
    struct pollfd fds[FDS_MAX];
    size_t n = rig->sk->ops->fds(rig->sk, fds, FDS_MAX);
    int64_t deadline = rig->sk->ops->deadline(rig->sk), ms = WAIT_MAX_MS;
    assert_true(n <= FDS_MAX);
    if (deadline != CLOCK_NEVER)
        ms = (deadline - clock_mono(&rig->clock)) / MS_NS + 1;
    if (deadline == 0 || ms < 0)
        ms = 0;
    bool capped = ms >= WAIT_MAX_MS;
    if (poll(fds, (nfds_t)n, capped ? WAIT_MAX_MS : (int)ms) == 0 && capped)
        fail_msg("the sink made no progress for 20 s");
}

void sink_rig_run(struct sink_rig *rig)
{
    while (rig->answered < rig->n) {
        size_t before = rig->answered + sink_rig_submit(rig);
        rig->sk->ops->drive(rig->sk);
        if (rig->answered == before && rig->answered < rig->accepted)
            sink_rig_wait(rig);
    }
    rig->sk->ops->drive(rig->sk);
    sink_rig_check(rig);
}

void sink_rig_check(struct sink_rig *rig)
{
    for (size_t i = 0; i < rig->n; i++) {
        assert_int_equal(rig->items[i]->answers, 1);
        assert_int_equal(rig->items[i]->has_text, rig->items[i]->status != SINK_DELIVERED);
    }
}

void sink_rig_again(struct sink_rig *rig)
{
    struct sink_item **old = rig->items;
    rig->items = calloc(rig->cap, sizeof(struct sink_item *));
    size_t at = 0;
    for (size_t i = 0; i < rig->n; i++)
        if (old[i]->status == SINK_DELIVERED)
            rig->items[at++] = old[i];
    rig->accepted = rig->answered = at;
    for (size_t i = 0; i < rig->n; i++) {
        if (old[i]->status == SINK_DELIVERED)
            continue;
        old[i]->answers = 0;
        rig->items[at++] = old[i];
    }
    free(old);
}

void sink_rig_assert_all(struct sink_rig *rig, enum sink_status status)
{
    for (size_t i = 0; i < rig->n; i++)
        if (rig->items[i]->status != status)
            fail_msg("event %zu has outcome %d, expected %d: %s", i, rig->items[i]->status, status,
                     rig->items[i]->text);
}

static void assert_payload(const struct sink_item *it, const struct sink_arrival *a, bool flat)
{
    assert_int_equal(a->n, it->ev.payload.n);
    for (size_t i = 0; i < a->n; i++) {
        char want = it->payload[i];
        if (flat && (want == '\n' || want == '\r'))
            want = ' ';
        if (a->payload[i] != want)
            fail_msg("%s: byte %zu of the payload differs", a->id, i);
    }
}

static int by_id(const void *a, const void *b)
{
    return strcmp(((const struct sink_arrival *)a)->id, ((const struct sink_arrival *)b)->id);
}

void sink_rig_assert_arrived(struct sink_rig *rig, const struct sink_arrivals *got, bool flat,
                             bool ordered)
{
    assert_int_equal(got->n, rig->n);
    /* Ids grow in the order of queueing, so sorting restores it for a sink that keeps none. */
    if (!ordered)
        qsort(got->a, got->n, sizeof *got->a, by_id);
    for (size_t i = 0; i < rig->n; i++) {
        assert_string_equal(got->a[i].id, rig->items[i]->id);
        assert_payload(rig->items[i], &got->a[i], flat);
    }
}

void sink_rig_release(struct sink_rig *rig)
{
    if (rig->sk) {
        /* After a failed assertion there may be something in flight. */
        if (rig->answered < rig->accepted)
            rig->sk->ops->cancel(rig->sk);
        rig->sk->ops->close(rig->sk);
    }
    for (size_t i = 0; i < rig->n; i++) {
        free(rig->items[i]->payload);
        free(rig->items[i]);
    }
    free(rig->items);
    sink_rig_init(rig);
}

struct sink_item *sink_rig_deliver(struct sink_rig *rig, const char *payload)
{
    struct sink_item *it = sink_rig_add(rig, payload, 0);
    sink_rig_run(rig);
    return it;
}

struct sink_item *sink_rig_send(struct sink_rig *rig, const char *payload)
{
    struct sink_item *it = sink_rig_add(rig, payload, 0);
    while (!it->answers) {
        sink_rig_submit(rig);
        rig->sk->ops->drive(rig->sk);
        if (!it->answers)
            sink_rig_wait(rig);
    }
    return it;
}

void sink_rig_passes_again(struct sink_rig *rig)
{
    sink_rig_again(rig);
    sink_rig_run(rig);
    sink_rig_assert_all(rig, SINK_DELIVERED);
}

void sink_assert_says(const struct sink_item *it, const char *words)
{
    if (!strstr(it->text, words))
        fail_msg("\"%s\" is not in \"%s\"", words, it->text);
}

void sink_assert_refused(struct sink_config cfg, const char *words, const char *secret)
{
    const struct sink_ops *ops;
    struct sink *sk = NULL;
    struct error err = {0};
    cfg.consumer = "c";
    cfg.clock = &clock_system;
    assert_int_equal(sink_find(cfg.url, &ops, &err), 0);
    assert_int_equal(ops->open(&cfg, &sk, &err), -1);
    assert_int_equal(err.code, ERR_CONFIG);
    assert_null(sk);
    if (words && !strstr(err.text, words))
        fail_msg("\"%s\" is not in \"%s\"", words, err.text);
    if (secret && strstr(err.text, secret))
        fail_msg("\"%s\" reveals \"%s\"", err.text, secret);
}

void sink_item_enlarge(struct sink_item *it, size_t size)
{
    free(it->payload);
    it->payload = malloc(size);
    memset(it->payload, 'x', size);
    it->payload[0] = it->payload[size - 1] = '"';
    it->ev.payload = (struct str){it->payload, size};
}

/* Files */

void sink_limit_files(off_t size)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = size ? (rlim_t)size : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

void sink_tmp_new(char dir[SINK_PATH_SIZE])
{
    const char *base = getenv("TMPDIR");
    snprintf(dir, SINK_PATH_SIZE, "%s/outbox-sink-XXXXXX", base ? base : "/tmp");
    assert_non_null(mkdtemp(dir));
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

void sink_tmp_remove(const char *dir)
{
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

char *sink_tmp_read(const char *path, size_t *ret_n)
{
    struct stat st = {0};
    size_t n = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        assert_int_equal(errno, ENOENT);
    if (fd >= 0)
        assert_int_equal(fstat(fd, &st), 0);
    char *text = malloc((size_t)st.st_size + 1);
    for (ssize_t k = 1; fd >= 0 && k > 0; n += (size_t)k) {
        k = read(fd, text + n, (size_t)st.st_size - n);
        assert_true(k >= 0);
    }
    text[n] = '\0';
    if (fd >= 0)
        close(fd);
    if (ret_n)
        *ret_n = n;
    return text;
}

void sink_tmp_write(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}
