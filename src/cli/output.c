/* output.c: everything printed for people and as JSON: tables, durations and counts, events,
 * consumers, errors, progress. */
#include <errno.h>
#include <langinfo.h>
#include <libsmartcols/libsmartcols.h>
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/cli.h"

void output_locale(void)
{
    setlocale(LC_CTYPE, "");
    /* Keys and payloads are UTF-8 whatever LANG says. In the C locale, tables would show them as
     * \xNN. */
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

bool output_color(const struct settings *s)
{
    const char *term = getenv("TERM");
    if (s->color != COLOR_AUTO)
        return s->color == COLOR_ALWAYS;

    bool dumb = term && strcmp(term, "dumb") == 0;
    if (dumb || config_getenv("NO_COLOR"))
        return false;
    return isatty(STDOUT_FILENO);
}

/* ---- tables ---- */

static int flags_of(const struct output_column *c)
{
    int flags = 0;
    if (c->right)
        flags |= SCOLS_FL_RIGHT;
    if (c->trunc)
        flags |= SCOLS_FL_TRUNC;
    return flags;
}

int output_table(const struct output_column *columns, bool headings, bool color,
                 struct libscols_table **ret, struct error *err)
{
    struct libscols_table *tb = scols_new_table();
    if (!tb)
        return err_nomem(err);
    scols_table_enable_colors(tb, color);
    scols_table_enable_noheadings(tb, !headings);
    scols_table_enable_noencoding(tb, true); /* output_row has done so */
    for (const struct output_column *c = columns; c->name; c++) {
        if (!scols_table_new_column(tb, c->name, 0, flags_of(c))) {
            scols_unref_table(tb);
            return err_nomem(err);
        }
    }
    *ret = tb;
    return 0;
}

/* set_cell fills a cell with text that is safe to show. */
static int set_cell(struct libscols_line *ln, size_t column, const char *text)
{
    struct buf shown;
    buf_init(&shown, 6 * OUTPUT_MAX); /* a character becomes six at most */
    output_clean(&shown, text);
    int r = -1;
    if (buf_cstr(&shown))
        r = scols_line_set_data(ln, column, shown.p);
    buf_release(&shown);
    return r;
}

static int table_error(int r, struct error *err)
{
    if (r == -ENOMEM)
        return err_nomem(err);
    if (r != 0)
        return err_errno(err, ERR_UNAVAILABLE, -r, "could not print the table");
    return 0;
}

/* Lines of a table held in memory. A listing may have any number of them. */
#define PAGE_LINES 1000

/* print_page prints the lines so far and forgets them. The pages that follow have no headings, and
 * no column of theirs is narrower. */
static int print_page(struct libscols_table *tb, struct error *err)
{
    int r = scols_print_table(tb);
    scols_table_enable_noheadings(tb, 1);
    for (size_t i = 0; i < scols_table_get_ncols(tb); i++) {
        struct libscols_column *column = scols_table_get_column(tb, i);
        scols_column_set_whint(column, (double)scols_column_get_width(column));
    }
    scols_table_remove_lines(tb);
    return table_error(r, err);
}

int output_row(struct libscols_table *tb, const char *const *cells, struct error *err)
{
    if (scols_table_get_nlines(tb) >= PAGE_LINES && print_page(tb, err) != 0)
        return -1;

    struct libscols_line *ln = scols_table_new_line(tb, NULL);
    if (!ln)
        return err_nomem(err);
    size_t n = scols_table_get_ncols(tb);
    for (size_t i = 0; i < n; i++) {
        /* NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Branch): there are as many cells as
         * columns. */
        if (cells[i] && set_cell(ln, i, cells[i]) != 0)
            return err_nomem(err);
    }
    return 0;
}

void output_paint(struct libscols_table *tb, size_t column, const char *color)
{
    struct libscols_line *ln = scols_table_get_line(tb, scols_table_get_nlines(tb) - 1);
    if (!ln)
        return;
    struct libscols_cell *ce = scols_line_get_cell(ln, column);
    if (ce)
        scols_cell_set_color(ce, color);
}

int output_print(struct libscols_table *tb, struct error *err)
{
    int r = 0;
    if (!scols_table_is_empty(tb))
        r = scols_print_table(tb);
    scols_unref_table(tb);
    return table_error(r, err);
}

void output_discard(struct libscols_table *tb)
{
    if (tb)
        scols_unref_table(tb);
}

int output_pairs(struct libscols_table **ret, struct error *err)
{
    static const struct output_column columns[] = {
        {"NAME", false, false}, {"VALUE", false, false}, {NULL, false, false}};
    return output_table(columns, false, false, ret, err);
}

int output_pair(struct libscols_table *tb, const char *name, const char *value, struct error *err)
{
    const char *cells[] = {name, value};
    if (!value || !*value)
        return 0;
    return output_row(tb, cells, err);
}

/* ---- for people ---- */

const char *output_age(int64_t ms, char out[OUTPUT_AGE])
{
    static const struct {
        int64_t ms;
        const char *unit;
    } units[] = {{86400000, "d"}, {3600000, "h"}, {60000, "m"}, {1000, "s"}};
    size_t last = sizeof(units) / sizeof(*units) - 1, i = 0;
    if (ms < 0)
        ms = 0;
    if (ms < units[last].ms) {
        snprintf(out, OUTPUT_AGE, "%lldms", (long long)ms);
        return out;
    }

    while (ms < units[i].ms)
        i++;
    int n = snprintf(out, OUTPUT_AGE, "%lld%s", (long long)(ms / units[i].ms), units[i].unit);
    if (i == last)
        return out;
    int64_t rest = ms % units[i].ms / units[i + 1].ms;
    if (rest)
        snprintf(out + n, (size_t)(OUTPUT_AGE - n), "%lld%s", (long long)rest, units[i + 1].unit);
    return out;
}

const char *output_time(int64_t wall_ms, char out[CLOCK_RFC3339_SIZE])
{
    out[0] = 0;
    if (wall_ms)
        clock_rfc3339(wall_ms, out);
    return out;
}

const char *output_int(int64_t n, char out[OUTPUT_INT])
{
    snprintf(out, OUTPUT_INT, "%lld", (long long)n);
    return out;
}

const char *output_about(int64_t n, bool exact, char out[OUTPUT_INT])
{
    snprintf(out, OUTPUT_INT, "%s%lld", exact ? "" : "~", (long long)n);
    return out;
}

const char *output_count(int64_t n, const char *noun, char out[OUTPUT_COUNT])
{
    snprintf(out, OUTPUT_COUNT, "%lld %s%s", (long long)n, noun, n == 1 ? "" : "s");
    return out;
}

const char *output_events_wait(int64_t n, bool exact, char out[OUTPUT_COUNT])
{
    snprintf(out, OUTPUT_COUNT, "%s%lld %s", exact ? "" : "about ", (long long)n,
             n == 1 ? "event waits" : "events wait");
    return out;
}

void output_clean(struct buf *b, const char *text)
{
    text_show(b, str_of(text), "");
}

/* add_formatted is output_addf with the arguments as a va_list. */
static void add_formatted(struct buf *b, const char *fmt, va_list ap)
{
    char *text;
    int n = vasprintf(&text, fmt, ap);
    if (n < 0) {
        b->failed = true;
        return;
    }

    bool ends_line = fmt[strlen(fmt) - 1] == '\n';
    text_show(b, (struct str){text, (size_t)n - ends_line}, "");
    if (ends_line)
        buf_addc(b, '\n');
    free(text);
}

void output_addf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    add_formatted(b, fmt, ap);
    va_end(ap);
}

void output_note(const char *fmt, ...)
{
    struct buf b;
    va_list ap;
    buf_init(&b, OUTPUT_NOTE_MAX);
    va_start(ap, fmt);
    add_formatted(&b, fmt, ap);
    va_end(ap);
    fflush(stdout); /* so that a note comes last where both go to one terminal */
    fputs(buf_cstr(&b) ? b.p : "outbox: out of memory\n", stderr);
    buf_release(&b);
}

void output_error(const char *text)
{
    output_note("outbox: %s\n", text);
}

/* ---- JSON ---- */

void output_member(struct buf *b, const char *name)
{
    bool first = b->n == 0 || strchr("{[", b->p[b->n - 1]);
    if (!first)
        buf_addc(b, ',');
    json_quote(b, str_of(name));
    buf_addc(b, ':');
}

void output_str(struct buf *b, const char *name, struct str value)
{
    output_member(b, name);
    /* A value that did not come into the database through us may not be UTF-8. */
    if (value.p && utf8_valid(value, NULL))
        json_quote(b, value);
    else
        buf_adds(b, "null");
}

void output_string(struct buf *b, const char *name, const char *value)
{
    output_str(b, name, str_of(value));
}

void output_number(struct buf *b, const char *name, int64_t value)
{
    output_member(b, name);
    buf_addi64(b, value);
}

void output_bool(struct buf *b, const char *name, bool value)
{
    output_member(b, name);
    buf_adds(b, value ? "true" : "false");
}

void output_stamp(struct buf *b, const char *name, int64_t wall_ms)
{
    char text[CLOCK_RFC3339_SIZE];
    const char *value = NULL;
    if (wall_ms)
        value = output_time(wall_ms, text);
    output_string(b, name, value);
}

/* add_flat appends valid JSON without any control character, as output_flush needs it. */
static void add_flat(struct buf *b, struct str json)
{
    size_t start = b->n;
    json_flat(b, json);
    for (size_t i = start; i < b->n; i++)
        if (b->p[i] == '\t')
            b->p[i] = ' ';
}

/* embed adds a member whose value is JSON already. If it is not valid JSON, it becomes a string. */
static void embed(struct buf *b, const char *name, struct str json)
{
    bool valid = json.p && json_parse(json, NULL, NULL, NULL) == 0;
    if (!valid) {
        output_str(b, name, json);
        return;
    }
    output_member(b, name);
    add_flat(b, json);
}

void output_event(struct buf *b, const struct event *ev)
{
    output_str(b, "id", ev->id);
    output_number(b, "seq", ev->seq);
    output_str(b, "type", ev->type);
    output_str(b, "aggregate_type", ev->aggregate_type);
    output_str(b, "aggregate_id", ev->aggregate_id);
    if (ev->has_version)
        output_number(b, "version", ev->version);
    else
        output_string(b, "version", NULL);
    embed(b, "payload", ev->payload);
    embed(b, "headers", ev->headers.p ? ev->headers : STR("{}"));
    output_str(b, "idempotency_key", ev->idempotency_key);
    output_str(b, "tenant", ev->tenant);
    output_stamp(b, "created_at", ev->created_at);
    output_stamp(b, "not_before", ev->not_before);
}

void output_key(struct buf *b, const struct event *ev)
{
    if (!ev->aggregate_id.p)
        return;
    buf_addstr(b, ev->aggregate_type);
    buf_addc(b, '/');
    buf_addstr(b, ev->aggregate_id);
}

/* flat_pair adds JSON text on one line. */
static int flat_pair(struct libscols_table *tb, const char *name, struct str json,
                     struct error *err)
{
    struct buf b;
    if (!json.p)
        return 0;
    buf_init(&b, OUTPUT_MAX);
    add_flat(&b, json);
    int r;
    if (buf_cstr(&b))
        r = output_pair(tb, name, b.p, err);
    else
        r = err_nomem(err);
    buf_release(&b);
    return r;
}

int output_event_pairs(struct libscols_table *tb, const struct event *ev, struct error *err)
{
    char seq[OUTPUT_INT], version[OUTPUT_INT] = "";
    char created[CLOCK_RFC3339_SIZE], due[CLOCK_RFC3339_SIZE];
    struct buf key;
    buf_init(&key, OUTPUT_MAX);
    output_key(&key, ev);
    if (ev->has_version)
        output_int(ev->version, version);
    const char *const pairs[][2] = {
        {"id", ev->id.p},
        {"seq", output_int(ev->seq, seq)},
        {"type", ev->type.p},
        {"key", buf_cstr(&key)},
        {"version", version},
        {"idempotency key", ev->idempotency_key.p},
        {"tenant", ev->tenant.p},
        {"created", output_time(ev->created_at, created)},
        {"not before", output_time(ev->not_before, due)},
    };
    int r = 0;
    if (key.failed)
        r = err_nomem(err);
    for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs) && r == 0; i++)
        r = output_pair(tb, pairs[i][0], pairs[i][1], err);
    buf_release(&key);

    if (r == 0)
        r = flat_pair(tb, "headers", ev->headers, err);
    if (r == 0)
        r = flat_pair(tb, "payload", ev->payload, err);
    return r;
}

int output_flush_painted(struct buf *b, struct error *err)
{
    if (b->failed)
        return err_nomem(err);
    if (b->n && fwrite(b->p, 1, b->n, stdout) != b->n)
        return err_errno(err, ERR_UNAVAILABLE, errno, "could not write to stdout");
    buf_clear(b);
    return 0;
}

int output_flush(struct buf *b, struct error *err)
{
    struct str all = {b->p, b->n};
    if (text_shown(all, "\n"))
        return output_flush_painted(b, err);

    struct buf shown;
    buf_init(&shown, 6 * OUTPUT_MAX);
    text_show(&shown, all, "\n");
    shown.failed |= b->failed;
    int r = output_flush_painted(&shown, err);
    buf_release(&shown);
    if (r == 0)
        buf_clear(b);
    return r;
}

int output_end(struct error *err)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    return err_errno(err, ERR_UNAVAILABLE, errno, "could not write to stdout");
}

/* ---- consumers ---- */

/* output_consumer_state names the first that applies. The order is what an operator asks first:
 * does it run, can it deliver, what is it doing, what is left. */
const char *output_consumer_state(const struct consumer_info *c)
{
    if (c->paused)
        return "paused";
    if (c->down)
        return "down";
    if (c->claims > 0)
        return "in-flight";
    if (c->parked > 0 && c->last_error)
        return "retrying";
    if (c->parked > 0)
        return "waiting"; /* for a delay to end */
    if (c->behind > 0 || !c->behind_exact)
        return "behind";
    return "idle";
}

const char *output_last_error(const struct consumer_info *c, int64_t now_ms, struct buf *to)
{
    char age[OUTPUT_AGE];
    if (!c->last_error)
        return NULL;
    if (!c->down)
        return c->last_error;
    buf_clear(to);
    buf_addf(to, "since %s: ", output_age(clock_since(now_ms, c->report_at), age));
    buf_adds(to, c->report);
    if (c->claims == 0)
        buf_adds(to, " (last report of its relay; none has a claim now)");
    return buf_cstr(to);
}

/* age_of returns how long ago a time was; 0: it is none, or still to come. */
static int64_t age_of(int64_t at, int64_t now_ms)
{
    bool was = at && now_ms > at;
    if (!was)
        return 0;
    return clock_since(now_ms, at);
}

/* add_first_parked adds the parked event that the consumer has owed for longest; null: none. */
static void add_first_parked(struct buf *b, const struct parked_info *p, int64_t now_ms)
{
    if (!p->seq) {
        output_string(b, "first_parked", NULL);
        return;
    }
    output_member(b, "first_parked");
    buf_addc(b, '{');
    output_number(b, "seq", p->seq);
    output_number(b, "overdue_ms", age_of(p->since, now_ms));
    output_number(b, "attempts", p->attempts);
    output_stamp(b, "due_at", p->due_at);
    output_string(b, "error", p->error);
    buf_addc(b, '}');
}

void output_consumer(struct buf *b, const struct consumer_info *c, int64_t now_ms)
{
    output_string(b, "name", c->spec.name);
    output_string(b, "state", output_consumer_state(c));
    output_bool(b, "paused", c->paused);
    output_string(b, "events", c->spec.events);
    output_string(b, "where", c->spec.where);
    output_string(b, "order", store_order_names[c->spec.order]);
    output_number(b, "lanes", c->spec.lanes);
    output_string(b, "retry", c->spec.retry);
    output_number(b, "position", c->position);
    output_number(b, "behind", c->behind);
    output_bool(b, "behind_exact", c->behind_exact);
    output_number(b, "lag_ms", age_of(c->oldest_at, now_ms));
    output_number(b, "overdue_ms", age_of(c->overdue_at, now_ms));
    output_number(b, "delivered", c->delivered);
    output_number(b, "in_flight", c->inflight);
    output_bool(b, "in_flight_exact", c->inflight_exact);
    output_number(b, "claims", c->claims);
    output_string(b, "owner", c->owner);
    output_number(b, "parked", c->parked);
    output_bool(b, "parked_exact", c->parked_exact);
    add_first_parked(b, &c->first_parked, now_ms);
    output_number(b, "dead", c->dead);
    output_stamp(b, "next_due", c->next_due);
    output_stamp(b, "down_since", c->down ? c->report_at : 0);
    output_string(b, "last_error", c->last_error);
    output_stamp(b, "last_error_at", c->last_error_at);
    output_number(b, "floor", c->floor);
    output_string(b, "floor_pin", c->floor_pin);
    output_stamp(b, "created_at", c->created_at);
}

/* ---- progress ---- */

#define BAR 30
#define REDRAW_NS (50 * MS_NS)

void output_progress_start(struct output_progress *p, int64_t total)
{
    *p = (struct output_progress){.on = isatty(STDERR_FILENO), .total = total};
}

/* output_progress_step redraws at most twenty times a second: drawing must not slow the work
 * down. */
void output_progress_step(struct output_progress *p, int64_t done, int64_t events)
{
    int64_t now = clock_mono(&clock_system);
    if (!p->on || now - p->shown_at < REDRAW_NS)
        return;
    p->shown_at = now;

    char count[OUTPUT_COUNT];
    output_count(events, "event", count);
    if (p->total <= 0) {
        fprintf(stderr, "\r%s\033[K", count);
        return;
    }

    int64_t part = done < p->total ? done * BAR / p->total : BAR;
    fprintf(stderr, "\r[%.*s%*s] %3lld%%  %s\033[K", (int)part, "##############################",
            BAR - (int)part, "", (long long)(part * 100 / BAR), count);
}

void output_progress_end(struct output_progress *p)
{
    if (p->on && p->shown_at)
        fputs("\r\033[K", stderr);
    p->on = false;
}
