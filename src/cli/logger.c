#include "cli/logger.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/cli.h"

#define LINE_MAX_ ((size_t)64 * 1024)

/* ---- one line ---- */

static const char *level_name(int level)
{
    static const char *const names[] = {"debug", "info", "warning", "error"};
    return names[level < 0 ? 0 : level > 3 ? 3 : level];
}

/* What one line says. about may be NULL; repeated is 0 for a line of its own. */
struct line {
    int level;
    const char *consumer, *text;
    const outbox_log_about *about;
    int64_t repeated;
};

static void add_about(struct buf *b, const outbox_log_about *about)
{
    output_string(b, "event_id", about->event_id);
    output_string(b, "type", about->type);
    if (about->key[0])
        output_string(b, "key", about->key);
    output_number(b, "attempt", about->attempt);
}

static void add_json(struct buf *b, const char *stamp, const struct line *l, const char *text)
{
    buf_addc(b, '{');
    output_string(b, "time", stamp);
    output_string(b, "level", level_name(l->level));
    if (l->consumer)
        output_string(b, "consumer", l->consumer);
    if (l->about)
        add_about(b, l->about);
    output_string(b, "message", text);
    if (l->repeated)
        output_number(b, "repeated", l->repeated);
    buf_addc(b, '}');
}

static void add_text(struct buf *b, const char *stamp, int level, const char *consumer,
                     const char *text)
{
    buf_addf(b, "%s %s ", stamp, level_name(level));
    if (consumer)
        buf_addf(b, "consumer=%s ", consumer);
    buf_adds(b, text);
}

/* plain makes text fit for a log: no control characters, and UTF-8 only. */
static const char *plain(struct buf *b, const char *text)
{
    output_clean(b, text);
    if (!buf_cstr(b))
        return "";
    return b->p;
}

/* is_simple: it can be written as it is, into a line of text or a string of JSON. */
static bool is_simple(const char *text)
{
    for (const char *c = text; *c; c++) {
        bool odd = (unsigned char)*c < 32 || (unsigned char)*c > 126 || *c == '"' || *c == '\\';
        if (odd)
            return false;
    }
    return strlen(text) < 256;
}

/* put_short is a line for which there is no memory: what can be said without. */
static void put_short(enum log_format format, const char *stamp, const struct line *l)
{
    char text[512];
    const char *level = level_name(l->level), *said = l->text;
    if (!is_simple(said))
        said = "out of memory";
    int n = format == LOG_JSON ? snprintf(text, sizeof text,
                                          "{\"time\":\"%s\",\"level\":\"%s\",\"message\":\"%s\"}\n",
                                          stamp, level, said)
                               : snprintf(text, sizeof text, "%s %s %s\n", stamp, level, said);
    ssize_t written = write(STDERR_FILENO, text, (size_t)n);
    (void)written;
}

static void put_line(enum log_format format, const struct line *l)
{
    char stamp[CLOCK_RFC3339_SIZE];
    struct buf b, clean;
    buf_init(&b, LINE_MAX_);
    buf_init(&clean, LINE_MAX_ / 8);
    clock_rfc3339(clock_wall(&clock_system), stamp);
    if (format == LOG_JSON)
        add_json(&b, stamp, l, plain(&clean, l->text));
    else
        add_text(&b, stamp, l->level, l->consumer, plain(&clean, l->text));
    buf_addc(&b, '\n');
    if (b.failed || clean.failed) {
        put_short(format, stamp, l);
    } else {
        /* one write, so that lines of several threads don't mix */
        ssize_t written = write(STDERR_FILENO, b.p, b.n);
        (void)written; /* nobody is left to tell */
    }
    buf_release(&b);
    buf_release(&clean);
}

void logger_line(enum log_format format, int level, const char *consumer, const char *text,
                 int64_t repeated)
{
    put_line(format, &(struct line){
                         .level = level, .consumer = consumer, .text = text, .repeated = repeated});
}

/* ---- repeats ---- */

/* shape_of hashes what lines that say the same have in common: all words without a digit. */
static uint64_t shape_of(int level, const char *consumer, const char *text)
{
    uint64_t h = hash_add(HASH_INIT, str_of(consumer));
    h = hash_add(h, str_of(level_name(level)));
    while (*text) {
        size_t n = strcspn(text, " "), digits = strcspn(text, "0123456789");
        h = hash_add(h, digits < n ? STR("#") : (struct str){text, n});
        text += n + (text[n] == ' ');
    }
    return hash_end(h);
}

static void tell(struct logger *l, struct logger_shape *s, int64_t now)
{
    char text[sizeof s->text + 64];
    if (s->held) {
        snprintf(text, sizeof text, "%s ... repeated %lld times in %lld s", s->text,
                 (long long)s->held, (long long)((now - s->since + 500 * MS_NS) / (1000 * MS_NS)));
        logger_line(l->format, s->level, s->consumer[0] ? s->consumer : NULL, text, s->held);
    }
    s->since = s->shown = s->held = 0;
}

/* place_of finds the shape, or gives it the place of the oldest. */
static struct logger_shape *place_of(struct logger *l, uint64_t hash, int64_t now)
{
    struct logger_shape *oldest = &l->shape[0];
    for (size_t i = 0; i < LOGGER_SHAPES; i++) {
        struct logger_shape *s = &l->shape[i];
        if (s->since && now - s->since >= l->hold_ns)
            tell(l, s, now);
        if (s->since && s->hash == hash)
            return s;
        if (s->since < oldest->since)
            oldest = s;
    }
    if (oldest->since)
        tell(l, oldest, now);
    *oldest = (struct logger_shape){.hash = hash, .since = now};
    return oldest;
}

static void hold(struct logger *l, struct logger_shape *s, int level, const char *consumer,
                 const char *text)
{
    uint64_t one = 1;
    s->level = level;
    snprintf(s->consumer, sizeof s->consumer, "%s", consumer ? consumer : "");
    snprintf(s->text, sizeof s->text, "%s", text);
    /* it is awake */
    if (s->held++ == 0 && l->wake_fd >= 0 && write(l->wake_fd, &one, sizeof one) < 0)
        return;
}

void logger_write(void *logger, int level, const char *consumer, const char *text)
{
    logger_write_about(logger, level, consumer, text, NULL);
}

void logger_write_about(void *logger, int level, const char *consumer, const char *text,
                        const outbox_log_about *about)
{
    struct logger *l = logger;
    struct line line = {.level = level, .consumer = consumer, .text = text, .about = about};
    pthread_mutex_lock(&l->lock);
    struct logger_shape *s = NULL;
    if (l->hold_ns)
        s = place_of(l, shape_of(level, consumer, text), clock_mono(&clock_system));
    if (!s || s->shown++ < LOGGER_BURST)
        put_line(l->format, &line);
    else
        hold(l, s, level, consumer, text);
    pthread_mutex_unlock(&l->lock);
}

int64_t logger_tell(struct logger *l, int64_t now)
{
    int64_t next = CLOCK_NEVER;
    pthread_mutex_lock(&l->lock);
    for (size_t i = 0; i < LOGGER_SHAPES; i++) {
        struct logger_shape *s = &l->shape[i];
        if (s->since && now - s->since >= l->hold_ns)
            tell(l, s, now);
        if (s->held && s->since + l->hold_ns < next)
            next = s->since + l->hold_ns;
    }
    pthread_mutex_unlock(&l->lock);
    return next;
}

void logger_init(struct logger *l, enum log_format format, int64_t hold_ms, int wake_fd)
{
    *l = (struct logger){.format = format, .hold_ns = hold_ms * MS_NS, .wake_fd = wake_fd};
    pthread_mutex_init(&l->lock, NULL);
}

void logger_flush(struct logger *l)
{
    int64_t now = clock_mono(&clock_system);
    pthread_mutex_lock(&l->lock);
    for (size_t i = 0; i < LOGGER_SHAPES; i++)
        if (l->shape[i].since)
            tell(l, &l->shape[i], now);
    pthread_mutex_unlock(&l->lock);
}

void logger_release(struct logger *l)
{
    pthread_mutex_destroy(&l->lock);
}
