/* Answers to webhooks. The first byte of the input selects the sink's settings; if that byte
 * selects one, a file of headers up to a NUL follows; the endpoint sends the rest. Every event gets
 * one answer; it is delivered only if the endpoint answered 2xx; no endpoint can silence us for
 * more than an hour; the reason is one line of text without our token; and the request is one
 * request, in which no header ends another. */
#include <sys/mman.h>
#include <unistd.h>

#include "base/json.h"
#include "fuzz.h"
#include "peer.h"
#include "sink/http_options.h"
#include "sink/sink.h"

#define TOKEN "hunter2hunter2"
#define HOUR_MS (INT64_C(3600) * 1000)
#define ROUNDS 1000
#define HEARD_MAX (1 << 18)

enum { STRUCTURED = 1, REJECTS = 2, FUZZED_HEADERS = 4, TWICE = 8 };

static struct {
    int answers;
    struct sink_result result;
    char text[1024];
} got;

static int64_t now_ns = MS_NS;

static int64_t mono(void *ctx)
{
    (void)ctx;
    return now_ns;
}

static int64_t wall(void *ctx)
{
    (void)ctx;
    return INT64_C(1700000000000);
}

static const struct clock manual = {.mono_ns = mono, .wall_ms = wall};

static void done(void *ctx, struct delivery *d, const struct sink_result *r)
{
    (void)ctx, (void)d;
    got.answers++;
    got.result = *r;
    snprintf(got.text, sizeof got.text, "%s", r->text ? r->text : "");
}

/* says tells whether the input contains a status line with that status. */
static bool says(const char *p, size_t n, int status)
{
    char number[16];
    snprintf(number, sizeof number, " %d", status);
    const char *at = n ? memmem(p, n, "HTTP/", 5) : NULL;
    return at && memmem(at, n - (size_t)(at - p), number, strlen(number));
}

static void judge(const char *said, size_t n, bool token)
{
    size_t bad;
    const struct sink_result *r = &got.result;
    /* rounded up */
    MUST(got.answers == 1 && r->retry_after_ms >= 0 && r->retry_after_ms <= HOUR_MS + 1);
    if (r->status == SINK_DELIVERED) {
        MUST(r->native >= 200 && r->native <= 299 && says(said, n, r->native));
        return;
    }
    MUST(got.text[0] && utf8_valid(str_of(got.text), &bad));
    for (const char *p = got.text; *p; p++)
        MUST((unsigned char)*p >= ' ' && *p != 0x7f);
    MUST(!token || !strstr(got.text, TOKEN));
    MUST(r->status == SINK_RETRY || r->status == SINK_DOWN || r->status == SINK_REJECT ||
         r->status == SINK_PAUSE);
}

/* one_request checks that a request is lines up to the first empty one, each a header, ours once
 * each, and then as much of a body as was announced. */
static void one_request(void)
{
    static char heard[HEARD_MAX];
    size_t n = peer_heard(heard, sizeof heard - 1), ids = 0, length = 0, lines = 0;
    heard[n] = '\0';
    char *end = strstr(heard, "\r\n\r\n");
    if (n == 0)
        return; /* the endpoint disconnected before the request was sent */
    MUST(end && strncmp(heard, "POST /hook HTTP/1.1\r\n", 21) == 0);
    end[2] = '\0';
    for (char *p = strstr(heard, "\r\n") + 2; *p; p = strstr(p, "\r\n") + 2, lines++) {
        MUST(strcspn(p, ":") < strcspn(p, "\r\n"));
        ids += strncasecmp(p, "webhook-id:", 11) == 0;
        if (strncasecmp(p, "content-length:", 15) == 0)
            length = strtoul(p + 15, NULL, 10);
    }
    MUST(ids == 1 && lines < 100 && n == (size_t)(end + 4 - heard) + length);
}

static void deliver(struct sink *sk, const char *said, size_t n, bool token)
{
    static const struct event ev = {
        .seq = 1,
        .id = STR("01890a5d-ac96-774b-bcce-b302099a8057"),
        .type = STR("order.placed"),
        .aggregate_type = STR("order"),
        .aggregate_id = STR("a\"b\xc3\xa4"),
        .payload = STR("{\"n\":1}"),
        .headers = STR(
            "{\"traceparent\":\"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\"}")};
    struct delivery d = {.ev = &ev, .attempt = 1}, *list[] = {&d};
    got.answers = 0;
    MUST(sk->ops->submit(sk, list, 1) == 1);
    for (int i = 0; i < ROUNDS && !got.answers; i++) {
        now_ns += MS_NS;
        sk->ops->drive(sk);
    }
    MUST(got.answers == 1); /* the endpoint has sent everything */
    judge(said, n, token);
}

static int header_file(const char *text, size_t n, char path[64])
{
    int fd = memfd_create("headers", MFD_CLOEXEC);
    if (fd < 0 || write(fd, text, n) != (ssize_t)n)
        abort();
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

static void run(const char *said, size_t n, uint8_t how, struct http_options *o)
{
    const struct sink_ops *ops;
    struct error err = {0};
    struct sink *sk;
    struct sink_config cfg = {.url = "http://127.0.0.1:8080/hook",
                              .consumer = "c",
                              .timeout_ms = 100000,
                              .concurrency = 1,
                              .http = o,
                              .clock = &manual,
                              .done = done};
    if (sink_find(cfg.url, &ops, &err) != 0)
        abort();
    if (ops->open(&cfg, &sk, &err) != 0) {
        MUST(how & FUZZED_HEADERS && err.code == ERR_CONFIG && err.text[0] &&
             !strchr(err.text, '\n'));
        return;
    }
    peer_expect(
        &(struct peer_script){.connections = how & TWICE ? 2 : 1, .say = said, .n = n, .only = 1});
    deliver(sk, said, n, !(how & FUZZED_HEADERS));
    one_request();
    if (how & TWICE)
        deliver(sk, said, n, !(how & FUZZED_HEADERS));
    sk->ops->cancel(sk);
    sk->ops->close(sk);
    peer_hang_up();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char token[] = "Authorization: Bearer " TOKEN "\n";
    char path[64], env[] = "OUTBOX_FUZZ_SECRET";
    if (n == 0)
        return 0;
    setenv(env, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", 1);
    uint8_t how = data[0];
    const char *p = (const char *)data + 1;
    n--;
    size_t headers = how & FUZZED_HEADERS ? strnlen(p, n) : 0,
           skip = how & FUZZED_HEADERS && headers < n ? headers + 1 : headers;
    int fd = how & FUZZED_HEADERS ? header_file(p, headers, path)
                                  : header_file(token, strlen(token), path);
    struct http_options o = {.secret_env = env,
                             .header_file = path,
                             .mode = how & STRUCTURED ? HTTP_STRUCTURED : HTTP_BINARY,
                             .version = HTTP_1_1,
                             .reject_4xx = how & REJECTS};
    run(p + skip, n - skip, how, &o);
    close(fd);
    return 0;
}
