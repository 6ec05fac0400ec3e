/* logger.c: writes the log of a relay. A line is one write, so that lines of several threads do not
 * mix; lines of one shape beyond a few are only counted. */
#include "cli/logger.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "base/text.h"
#include "cli/cli.h"

#define LINE_MAX_ ((size_t)256 * 1024)

/* ---- one line ---- */

static const char *level_name(int level)
{
    static const char *const names[] = {"debug", "info", "warning", "error"};
    if (level < LOG_DEBUG_)
        level = LOG_DEBUG_;
    if (level > LOG_ERROR_)
        level = LOG_ERROR_;
    return names[level];
}

/* One line. consumer and about may be NULL. repeated is the number of lines that this one stands
 * for, 0 if it stands for itself. */
struct line {
    int level;
    const char *consumer, *text;
    const outbox_log_about *about;
    int64_t repeated;
};

static void add_json(struct buf *b, const char *stamp, const struct line *l, const char *text)
{
    buf_addc(b, '{');
    listing_member_text(b, "time", stamp);
    listing_member_text(b, "level", level_name(l->level));
    if (l->consumer)
        listing_member_text(b, "consumer", l->consumer);
    if (l->about) {
        listing_member_text(b, "event_id", l->about->event_id);
        listing_member_text(b, "type", l->about->type);
        if (l->about->key[0])
            listing_member_text(b, "key", l->about->key);
        listing_member_int(b, "attempt", l->about->attempt);
    }
    listing_member_text(b, "message", text);
    if (l->repeated)
        listing_member_int(b, "repeated", l->repeated);
    buf_addc(b, '}');
}

/* Writes a complete line. A failure could not be reported anywhere else. */
static void write_line(const char *line, size_t n)
{
    ssize_t written = write(STDERR_FILENO, line, n);
    (void)written;
}

/* Whether text can be written as it is, into a log line or a JSON string. */
static bool is_simple(const char *text)
{
    for (const char *c = text; *c; c++) {
        bool printable = *c >= ' ' && *c <= '~';
        if (!printable || strchr("\"\\", *c))
            return false;
    }
    return strlen(text) < 256;
}

/* Logs a line, truncated if necessary, without allocating. */
static void put_short(enum log_format format, const char *stamp, const struct line *l)
{
    char text[512];
    const char *level = level_name(l->level), *said = l->text;
    int n;
    if (!is_simple(said))
        said = "out of memory";
    if (format == LOG_JSON)
        n = snprintf(text, sizeof text, "{\"time\":\"%s\",\"level\":\"%s\",\"message\":\"%s\"}\n",
                     stamp, level, said);
    else
        n = snprintf(text, sizeof text, "%s %s %s\n", stamp, level, said);
    write_line(text, (size_t)n);
}

/* Formats a line and writes it. Without memory it writes a short line. The message in JSON is safe
 * to display once decoded; the fields of an event keep their values. */
static void put_line(enum log_format format, const struct line *l)
{
    char stamp[CLOCK_RFC3339_SIZE];
    struct buf message, line, shown;
    buf_init(&message, LINE_MAX_);
    buf_init(&line, LINE_MAX_);
    buf_init(&shown, LINE_MAX_);
    clock_rfc3339(clock_wall(&clock_system), stamp);
    output_clean(&message, l->text);
    const char *text = buf_cstr(&message);
    if (format == LOG_JSON) {
        add_json(&line, stamp, l, text);
    } else {
        buf_addf(&line, "%s %s ", stamp, level_name(l->level));
        if (l->consumer)
            buf_addf(&line, "consumer=%s ", l->consumer);
        buf_adds(&line, text ? text : "");
    }
    text_show(&shown, (struct str){line.p, line.n}, "");
    buf_addc(&shown, '\n');

    if (message.failed || line.failed || shown.failed)
        put_short(format, stamp, l);
    else
        write_line(shown.p, shown.n);
    buf_release(&message);
    buf_release(&line);
    buf_release(&shown);
}

void logger_line(enum log_format format, int level, const char *consumer, const char *text,
                 int64_t repeated)
{
    put_line(format, &(struct line){
                         .level = level, .consumer = consumer, .text = text, .repeated = repeated});
}

/* ---- repeats ---- */

/* Hashes the parts that lines of one shape share: the consumer, the level, and every word without a
 * digit. */
static uint64_t shape_of(int level, const char *consumer, const char *text)
{
    uint64_t h = hash_add(HASH_INIT, str_of(consumer));
    h = hash_add(h, str_of(level_name(level)));
    while (*text) {
        struct str word = {text, strcspn(text, " ")};
        bool has_digit = strcspn(text, "0123456789") < word.n;
        text += word.n;
        if (*text)
            text++;
        if (has_digit)
            word = STR("#");
        h = hash_add(h, word);
    }
    return hash_end(h);
}

/* Ends the span of a shape: logs how often the last line was repeated, if it was, and frees the
 * slot. */
static void end_span(struct logger *l, struct logger_shape *s, int64_t now)
{
    char text[sizeof s->text + 64];
    if (s->held) {
        int64_t seconds = (now - s->since + 500 * MS_NS) / (1000 * MS_NS);
        snprintf(text, sizeof text, "%s ... repeated %lld time%s in %lld s", s->text,
                 (long long)s->held, s->held == 1 ? "" : "s", (long long)seconds);
        logger_line(l->format, s->level, s->consumer[0] ? s->consumer : NULL, text, s->held);
    }
    s->since = 0;
    s->shown = 0;
    s->held = 0;
}

static bool is_over(const struct logger *l, const struct logger_shape *s, int64_t now)
{
    return s->since && now - s->since >= l->hold_ns;
}

/* Finds the slot of the shape, or assigns a free one, else that of the oldest. */
static struct logger_shape *slot_of(struct logger *l, uint64_t hash, int64_t now)
{
    struct logger_shape *oldest = &l->shape[0];
    for (size_t i = 0; i < LOGGER_SHAPES; i++) {
        struct logger_shape *s = &l->shape[i];
        if (is_over(l, s, now))
            end_span(l, s, now);
        if (s->since && s->hash == hash)
            return s;
        if (s->since < oldest->since)
            oldest = s;
    }
    if (oldest->since)
        end_span(l, oldest, now);
    *oldest = (struct logger_shape){.hash = hash, .since = now};
    return oldest;
}

/* Counts a line instead of logging it. The first held line wakes the watching thread, which then
 * schedules logger_tell. */
static void hold_line(struct logger *l, struct logger_shape *s, const struct line *line)
{
    s->level = line->level;
    snprintf(s->consumer, sizeof s->consumer, "%s", line->consumer ? line->consumer : "");
    snprintf(s->text, sizeof s->text, "%s", line->text);
    if (s->held == 0 && l->wake_fd >= 0) {
        uint64_t one = 1;
        ssize_t written = write(l->wake_fd, &one, sizeof one);
        (void)written; /* it only fails if the thread is awake already */
    }
    s->held++;
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
    struct logger_shape *s = NULL;
    pthread_mutex_lock(&l->lock);
    if (l->hold_ns)
        s = slot_of(l, shape_of(level, consumer, text), clock_mono(&clock_system));
    bool shows = !s || s->shown < LOGGER_BURST;
    if (s && shows)
        s->shown++;
    if (shows)
        put_line(l->format, &line);
    else
        hold_line(l, s, &line);
    pthread_mutex_unlock(&l->lock);
}

int64_t logger_tell(struct logger *l, int64_t now)
{
    int64_t next = CLOCK_NEVER;
    pthread_mutex_lock(&l->lock);
    for (size_t i = 0; i < LOGGER_SHAPES; i++) {
        struct logger_shape *s = &l->shape[i];
        if (is_over(l, s, now))
            end_span(l, s, now);
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
            end_span(l, &l->shape[i], now);
    pthread_mutex_unlock(&l->lock);
}

void logger_release(struct logger *l)
{
    pthread_mutex_destroy(&l->lock);
}
