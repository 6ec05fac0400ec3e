/* A file left by another process; the input is its content before the sink appends. Whole lines
 * stay as they are, byte for byte. The rest is cut off if it is the beginning of one of our lines
 * or zeros; otherwise it is another writer's last line and is terminated. Our two lines follow
 * whole and in order. */
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "fuzz.h"
#include "sink/kinds.h"

#define HEAD "{\"id\":\""

static char url[64];
static int delivered;

static void done(void *ctx, struct delivery *d, const struct sink_result *r)
{
    (void)ctx, (void)d;
    MUST(r->status == SINK_DELIVERED);
    delivered++;
}

/* kept returns how much of the input must remain, and whether a line feed must follow. */
static size_t kept(const char *p, size_t n, bool *ret_open)
{
    const char *lf = n ? memrchr(p, '\n', n) : NULL;
    size_t start = lf ? (size_t)(lf - p) + 1 : 0, tail = n - start;
    bool ours = tail && (p[start] == '\0' ||
                         memcmp(p + start, HEAD, tail < strlen(HEAD) ? tail : strlen(HEAD)) == 0);
    *ret_open = tail && !ours;
    return ours ? start : n;
}

static void deliver(struct sink *sk)
{
    static const struct event ev = {.seq = 1,
                                    .id = STR("01890a5d-ac96-774b-bcce-b302099a8057"),
                                    .type = STR("t"),
                                    .payload = STR("{\"n\":1}")};
    struct delivery d = {.ev = &ev, .attempt = 1}, *list[] = {&d};
    delivered = 0;
    MUST(sk->ops->submit(sk, list, 1) == 1);
    sk->ops->drive(sk);
    MUST(delivered == 1);
}

/* line removes one line of ours from the front. */
static struct str line(struct str *rest)
{
    const char *lf = memchr(rest->p, '\n', rest->n);
    MUST(lf);
    struct str one = {rest->p, (size_t)(lf - rest->p)};
    MUST(one.n > strlen(HEAD) && memcmp(one.p, HEAD, strlen(HEAD)) == 0 &&
         json_parse(one, NULL, NULL, NULL) == 0);
    *rest = (struct str){lf + 1, rest->n - one.n - 1};
    return one;
}

static void look(int fd, const char *p, size_t n)
{
    bool open;
    struct stat st;
    size_t whole = kept(p, n, &open);
    if (fstat(fd, &st) != 0)
        abort();
    size_t size = (size_t)st.st_size;
    char *now = malloc(size);
    if (!now || pread(fd, now, size, 0) != (ssize_t)size)
        abort();
    MUST(size > whole + open && memcmp(now, p, whole) == 0 && (!open || now[whole] == '\n'));
    struct str rest = {now + whole + open, size - whole - open};
    struct str first = line(&rest);
    MUST(str_eq(first, line(&rest)) && rest.n == 0);
    free(now);
}

static void remove_file(void)
{
    unlink(url + strlen("file:"));
}

/* In memory where possible, since a sync is slow. */
static int make_file(void)
{
    int fd = mkstemp(strcpy(url, "file:/dev/shm/outbox-fuzz-XXXXXX") + strlen("file:"));
    if (fd < 0)
        fd = mkstemp(strcpy(url, "file:/tmp/outbox-fuzz-XXXXXX") + strlen("file:"));
    atexit(remove_file);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static int fd = -1;
    struct error err = {0};
    struct sink *sk;
    if (fd < 0)
        fd = make_file();
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, n, 0) != (ssize_t)n)
        abort();
    struct sink_config cfg = {
        .url = url, .consumer = "c", .timeout_ms = 1000, .clock = &clock_system, .done = done};
    if (file_ops.open(&cfg, &sk, &err) != 0)
        abort();
    deliver(sk);
    deliver(sk);
    sk->ops->close(sk);
    look(fd, data ? (const char *)data : "", n);
    return 0;
}
