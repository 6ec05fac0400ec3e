/* Metrics. Names of consumers, types and streams are untrusted. Whatever they are, each line of the
 * page is in Prometheus' text format, and each label has the given name. The input is three names
 * separated by NULs. */
#include <ctype.h>

#include "admin/metrics.h"
#include "base/json.h"
#include "fuzz.h"

#define PAGE_MAX (1 << 20)

/* seen counts how often each of the names was on the page. */
struct names {
    const char *consumer, *type, *stream;
    int consumers, types, streams;
};

/* unescaped reads a label's value, up to its closing quote. */
static const char *unescaped(const char *p, struct buf *b)
{
    buf_clear(b);
    for (; *p != '"'; p++) {
        MUST(*p && *p != '\n');
        if (*p == '\\') {
            p++;
            MUST(*p == '\\' || *p == '"' || *p == 'n');
            buf_addc(b, *p == 'n' ? '\n' : *p);
        } else {
            buf_addc(b, *p);
        }
    }
    return p + 1;
}

/* same compares a label with the name; bytes that are not UTF-8 are shown as question marks. */
static bool same(const char *shown, const char *given)
{
    bool valid = utf8_valid(str_of(given), NULL);
    for (; *shown && *given; shown++, given++)
        if (*shown != (!valid && (unsigned char)*given > 127 ? '?' : *given))
            return false;
    return *shown == *given;
}

static const char *label(const char *p, struct buf *b, struct names *n)
{
    size_t k = strspn(p, "abcdefghijklmnopqrstuvwxyz_");
    const char *name = p;
    MUST(k > 0 && p[k] == '=' && p[k + 1] == '"');
    p = unescaped(p + k + 2, b);
    const char *value = buf_cstr(b);
    MUST(value && utf8_valid(str_of(value), NULL));
    if (strncmp(name, "consumer=", 9) == 0) {
        MUST(same(value, n->consumer));
        n->consumers++;
    }
    if (strncmp(name, "topic=", 6) == 0 && same(value, n->type))
        n->types++;
    if (strncmp(name, "stream=", 7) == 0) {
        MUST(same(value, n->stream));
        n->streams++;
    }
    return p;
}

static const char *sample(const char *p, struct buf *b, struct names *n)
{
    char *end;
    p += strspn(p, "abcdefghijklmnopqrstuvwxyz_");
    if (*p == '{') {
        do
            p = label(p + 1, b, n);
        while (*p == ',');
        MUST(*p++ == '}');
    }
    MUST(*p == ' ' && !isspace((unsigned char)p[1]));
    strtod(p + 1, &end);
    MUST(end > p + 1 && *end == '\n');
    return end + 1;
}

static void read_page(const char *p, struct names *n)
{
    struct buf b;
    buf_init(&b, PAGE_MAX);
    while (*p) {
        const char *lf = strchr(p, '\n');
        MUST(lf);
        if (*p != '#') {
            p = sample(p, &b, n);
            continue;
        }
        MUST(strncmp(p, "# HELP outbox_", 14) == 0 || strncmp(p, "# TYPE outbox_", 14) == 0 ||
             strncmp(p, "# HELP process_", 15) == 0 || strncmp(p, "# TYPE process_", 15) == 0);
        p = lf + 1;
    }
    buf_release(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct metrics m;
    static struct metrics_consumer c;
    char *text = fuzz_text(data, n);
    size_t first = strlen(text), second = first < n ? strlen(text + first + 1) : 0;
    char *type = first < n ? text + first + 1 : text + n,
         *stream = first + 1 + second < n ? type + second + 1 : text + n;
    struct gauge_type waiting = {.type = type, .n = 3, .oldest_at = 1};
    struct buf b;
    buf_init(&b, PAGE_MAX);
    memset(&c, 0, sizeof c);
    if (first > STORE_NAME_MAX)
        text[STORE_NAME_MAX] = '\0';
    memcpy(c.view.consumer, text, strlen(text) + 1);
    c.view.leased = true;
    c.view.held = 1;
    meter_ended(&c.view.stats.meter, &(struct meter_end){str_of(type), SINK_DELIVERED, 1000, 5});
    c.has_gauge = true;
    c.gauge = (struct consumer_gauge){.type = &waiting, .n_types = 1, .now_ms = 9};
    m = (struct metrics){.store = "sqlite", .consumer = &c, .n_consumers = 1, .n_marks = 1};
    m.mark[0] = (struct metrics_mark){c.view.consumer, stream, INT64_MAX, 3};
    metrics_add(&b, &m);
    MUST(buf_cstr(&b));
    struct names names = {.consumer = c.view.consumer, .type = type, .stream = stream};
    read_page(b.p, &names);
    MUST(names.consumers > 20 && names.streams == 2);
    MUST(names.types >= 2 || !type[0] || strlen(type) >= METER_NAME); /* delivered, and waiting */
    buf_release(&b);
    free(text);
    return 0;
}
