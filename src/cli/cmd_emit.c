/* cmd_emit.c: outbox emit, which stores one event, or one for each line of a file. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/json.h"
#include "cli/cli.h"
#include "event/event_json.h"

struct emit_args {
    struct key_arg key;
    const char *payload, *idempotency_key, *tenant;
    struct pairs_arg headers;
    struct number_arg version;
    int64_t delay_ms;
    bool ndjson, atomic;
};

#define LINES_PER_TRANSACTION 1000
/* Room in a line besides the payload: headers, keys, names. */
#define LINE_EXTRA ((size_t)128 * 1024)
#define ATTRIBUTES_MAX ((size_t)4 * 1024 * 1024) /* unescaped strings of one line */

static const struct option_def options[] = {
    {"key", "AGGTYPE/AGGID", NULL,
     "what the event is about; events with the same key stay in order", commands_key,
     OWN(emit_args, key)},
    {"version", "N", NULL, "version of the aggregate", commands_number, OWN(emit_args, version),
     .min = INT64_MIN},
    {"payload", "JSON|@FILE|-", NULL,
     "the payload: JSON, @FILE to read it from a file, - for stdin; null if not given", option_text,
     OWN(emit_args, payload)},
    {"header", "NAME=VALUE", NULL, "a header; may be repeated", commands_pair,
     OWN(emit_args, headers), .max = EVENT_HEADERS_COUNT},
    {"idempotency-key", "KEY", NULL,
     "store only one event with this key, for as long as that event is kept", option_text,
     OWN(emit_args, idempotency_key)},
    {"tenant", "NAME", NULL, "tenant the event belongs to", option_text, OWN(emit_args, tenant)},
    {"delay", "DURATION", "0s", "do not deliver before this much time has passed", option_span,
     OWN(emit_args, delay_ms)},
    {"ndjson", NULL, "no", "read events from a file or stdin, one JSON object per line",
     option_bool, OWN(emit_args, ndjson)},
    {"atomic", NULL, "no",
     "with --ndjson: store all lines in one transaction instead of one per 1,000 lines",
     option_bool, OWN(emit_args, atomic), .env = true},
    OPTION_JSON,
    OPTION_END,
};

/* ---- one event ---- */

/* Writes the headers as a JSON object. Arguments may hold any bytes, so UTF-8 is checked here. */
static int headers_json(const struct emit_args *a, struct buf *b, struct error *err)
{
    buf_addc(b, '{');
    for (size_t i = 0; i < a->headers.n; i++) {
        const char *equals = strchr(a->headers.pair[i], '=');
        struct str name = {a->headers.pair[i], (size_t)(equals - a->headers.pair[i])};
        if (!utf8_valid(str_of(a->headers.pair[i]), NULL)) {
            return err_set(err, ERR_INVALID, "header %zu is not valid UTF-8; nothing is stored",
                           i + 1);
        }
        if (i)
            buf_addc(b, ',');
        json_quote(b, name);
        buf_addc(b, ':');
        json_quote(b, str_of(equals + 1));
    }
    buf_addc(b, '}');
    if (!buf_cstr(b))
        return err_set(err, ERR_INVALID,
                       "the headers are over the limit of %d bytes; nothing is stored",
                       (int)EVENT_HEADERS_MAX);
    return 0;
}

/* Sets *ret to the text of the payload. If it comes from a file, b holds it. One byte more than the
 * limit is read, which is enough to see that the payload is too long. */
static int payload_read(const struct cli *cli, struct buf *b, struct str *ret, struct error *err)
{
    const char *p = ((const struct emit_args *)cli_own(cli))->payload;
    *ret = str_of(p);
    if (!p)
        return 0;
    bool from_file = p[0] == '@', from_stdin = strcmp(p, "-") == 0;
    if (!from_file && !from_stdin)
        return 0;

    size_t max = (size_t)cli->settings.payload_max + 1;
    const char *path = from_file ? p + 1 : p;
    int e = fd_slurp(path, max, b);
    if (e)
        return err_errno(err, ERR_INVALID, e, "could not read the payload from %s",
                         from_stdin ? "stdin" : path);
    if (b->n == max)
        return err_set(err, ERR_INVALID,
                       "the payload is over the limit of %zu bytes; --max-payload sets the limit",
                       max - 1);
    *ret = (struct str){"", 0};
    if (b->p)
        *ret = (struct str){b->p, b->n};
    return 0;
}

/* An event that was stored. */
struct emitted {
    const char *id;
    bool duplicate;
};

static const struct listing_field fields_emitted[] = {
    {"id", LISTING_TEXT, .at = offsetof(struct emitted, id), "id of the event"},
    {"duplicate", LISTING_BOOL, .at = offsetof(struct emitted, duplicate),
     "true: the idempotency key was already in use, and no new event was stored"},
    {NULL},
};

static void emitted_text(struct buf *b, const void *row)
{
    buf_addf(b, "%s\n", ((const struct emitted *)row)->id);
}

/* Checks the event before it opens the store, so that a bad event costs no connection. If the id
 * cannot be printed, the error contains it: by then the event has been stored. */
static int emit_checked(struct cli *cli, const struct new_event *ev, struct error *err)
{
    char id[UUID_TEXT + 1];
    bool duplicate = false;
    struct event_limits limits = {cli->settings.payload_max, clock_wall(&clock_system)};
    if (event_check(ev, &limits, err) != 0)
        return -1;

    if (commands_open(cli, (struct store_options){0}, err) != 0)
        return -1;
    if (cli->st->ops->emit(cli->st, NULL, ev, id, &duplicate, err) != 0)
        return -1;

    struct emitted row = {id, duplicate};
    int r = output_result(cli, fields_emitted, &row, emitted_text, err);
    if (r == 0)
        r = output_end(err);
    if (duplicate)
        output_error("this idempotency key is already in use; no new event was stored");
    if (r != 0)
        return err_prefix(err, "the event is stored, with the id %s", id);
    return 0;
}

/* Reads, checks and stores one event. A delay counts from this machine's clock: the store's clock
 * would be better, but the event is checked before the store is opened. */
static int emit_one(struct cli *cli, struct error *err)
{
    const struct emit_args *a = cli_own(cli);
    struct buf payload, headers;
    buf_init(&payload, (size_t)cli->settings.payload_max + 1);
    buf_init(&headers, (size_t)2 * EVENT_HEADERS_MAX);
    struct new_event ev = {
        .type = str_of(cli->args.pos[0]),
        .aggregate_type = a->key.aggregate_type,
        .aggregate_id = a->key.aggregate_id,
        .idempotency_key = str_of(a->idempotency_key),
        .tenant = str_of(a->tenant),
        .has_version = a->version.given,
        .version = a->version.value,
    };
    if (a->delay_ms)
        ev.not_before = clock_wall(&clock_system) + a->delay_ms;

    int r = payload_read(cli, &payload, &ev.payload, err);
    if (r == 0 && a->headers.n) {
        r = headers_json(a, &headers, err);
        ev.headers = (struct str){headers.p, headers.n};
    }
    if (r == 0)
        r = emit_checked(cli, &ev, err);
    buf_release(&payload);
    buf_release(&headers);
    return r;
}

/* ---- lines ---- */

#define CHUNK ((size_t)64 * 1024)

/* A reader of lines of up to `max` bytes each. (1) b.p[at..b.n) has been read, but not returned. */
struct lines {
    int fd;
    struct buf b;
    size_t at, max;
    int64_t number; /* of the last line returned */
    int64_t bytes;  /* read so far */
    bool end;
};

/* Moves the unread bytes to the front and reads as many more as are available and fit into a chunk.
 * l->end is set at the end of the file. */
static int fill_buffer(struct lines *l, struct error *err)
{
    char *to = buf_reserve(&l->b, CHUNK);
    if (!to)
        return err_nomem(err);
    memmove(l->b.p, l->b.p + l->at, l->b.n - l->at);
    l->b.n -= l->at;
    l->at = 0;

    ssize_t got;
    do {
        got = read(l->fd, l->b.p + l->b.n, CHUNK);
    } while (got < 0 && errno == EINTR);
    if (got < 0)
        return err_errno(err, ERR_UNAVAILABLE, errno, "could not read the next lines");
    l->end = got == 0;
    l->b.n += (size_t)got;
    l->bytes += got;
    return 0;
}

/* Returns n bytes as a line and moves past them and the terminator. */
static struct str take_line(struct lines *l, size_t n, size_t terminator)
{
    struct str line = {l->b.p + l->at, n};
    l->at += n + terminator;
    l->number++;
    return line;
}

/* Returns the next line without its line feed, borrowed until the next call; after the last one
 * *ret_more is false. Searches each byte only once: a long line that arrives in small pieces is
 * still read in linear time. */
static int lines_next(struct lines *l, struct str *ret, bool *ret_more, struct error *err)
{
    size_t seen = 0; /* unread bytes known to hold no line feed */
    for (;;) {
        char *from = l->b.p + l->at + seen;
        size_t left = l->b.n - l->at - seen;
        char *lf = memchr(from, '\n', left);
        if (lf)
            left = (size_t)(lf - from);
        seen += left;
        if (seen > l->max) {
            l->number++; /* the error is about this line */
            return err_set(err, ERR_INVALID,
                           "the line is longer than %zu bytes; max-payload sets the limit", l->max);
        }

        if (lf) {
            *ret = take_line(l, seen, 1);
            *ret_more = true;
            return 0;
        }
        if (l->end) {
            *ret_more = seen > 0;
            if (*ret_more)
                *ret = take_line(l, seen, 0);
            return 0;
        }
        if (fill_buffer(l, err) != 0)
            return -1;
    }
}

/* ---- many ---- */

/* A file of events being stored. (1) events, duplicates and stored_line count committed lines,
 * batch_* those of the open transaction. */
struct bulk {
    struct cli *cli;
    struct store *st;
    const char *name; /* of the file, in messages */
    struct lines lines;
    struct arena arena; /* of one line */
    struct output_progress progress;
    bool atomic; /* all lines in one transaction */
    bool open;   /* a transaction is open */
    int64_t events, duplicates, stored_line;
    int64_t batch_lines, batch_events, batch_duplicates;
};

/* Ends the transaction, if one is open, and counts its lines as stored. */
static int bulk_commit(struct bulk *k, struct error *err)
{
    bool open = k->open;
    k->open = false; /* a commit that fails ends the transaction, too */
    if (open && k->st->ops->commit(k->st, err) != 0)
        return -1;

    k->events += k->batch_events;
    k->duplicates += k->batch_duplicates;
    k->stored_line = k->lines.number;
    k->batch_lines = 0;
    k->batch_events = 0;
    k->batch_duplicates = 0;
    return 0;
}

/* Stores the event of a line, in a transaction that it opens if none is open. */
static int bulk_line(struct bulk *k, struct str line, struct error *err)
{
    struct new_event ev;
    char id[UUID_TEXT + 1];
    bool duplicate = false;
    arena_reset(&k->arena);
    struct event_limits limits = {k->cli->settings.payload_max, clock_wall(&clock_system)};
    if (event_line_read(line, limits.now, &k->arena, &ev, err) != 0)
        return -1;
    if (event_check(&ev, &limits, err) != 0)
        return -1;

    if (!k->open && k->st->ops->begin(k->st, err) != 0)
        return -1;
    k->open = true;
    if (k->st->ops->emit(k->st, NULL, &ev, id, &duplicate, err) != 0)
        return -1;
    if (duplicate) {
        k->batch_duplicates++;
    } else {
        k->batch_events++;
    }
    return 0;
}

static bool is_blank(struct str line)
{
    for (size_t i = 0; i < line.n; i++) {
        char c = line.p[i];
        bool blank = c == ' ' || c == '\t' || c == '\r';
        if (!blank)
            return false;
    }
    return true;
}

/* Stores the lines in transactions of LINES_PER_TRANSACTION each, or with --atomic in one. */
static int bulk_lines(struct bulk *k, struct error *err)
{
    struct str line;
    bool more;
    for (;;) {
        if (lines_next(&k->lines, &line, &more, err) != 0)
            return -1;
        if (!more)
            return bulk_commit(k, err);

        k->batch_lines++;
        if (!is_blank(line) && bulk_line(k, line, err) != 0)
            return -1;
        output_progress_step(&k->progress, k->lines.bytes, k->events + k->batch_events);
        bool full = k->batch_lines >= LINES_PER_TRANSACTION && !k->atomic;
        if (full && bulk_commit(k, err) != 0)
            return -1;
    }
}

/* bulk_counts writes the counts: "3 events, 1 duplicate". */
#define COUNTS (2 * HUMAN_SIZE)
static const char *bulk_counts(const struct bulk *k, char out[COUNTS])
{
    snprintf(out, COUNTS, "%s, %s", human_count(k->events, "event"),
             human_count(k->duplicates, "duplicate"));
    return out;
}

/* Adds the line to the error, and states exactly which lines are stored. */
static void bulk_failed(struct bulk *k, struct error *err)
{
    if (k->open)
        k->st->ops->rollback(k->st);

    char told[160 + COUNTS] = "nothing is stored", counts[COUNTS];
    if (k->stored_line > 0)
        snprintf(told, sizeof(told),
                 "lines 1 to %" PRId64 " are stored (%s), nothing from line %" PRId64 " on",
                 k->stored_line, bulk_counts(k, counts), k->stored_line + 1);

    /* Truncate the reason, not the consequence. */
    char why[sizeof(err->text)];
    snprintf(why, sizeof(why), "%.280s", err->text);
    int code = err->code;
    err_set(err, ERR_INVALID, "%.60s:%" PRId64 ": %s; %s", k->name, k->lines.number, why, told);
    err->code = code;
}

#define AT(member) .at = offsetof(struct bulk, member)
static const struct listing_field fields_bulk[] = {
    {"events", LISTING_INT, AT(events), "events that were stored"},
    {"duplicates", LISTING_INT, AT(duplicates), "lines whose idempotency key was in use"},
    {NULL},
};
#undef AT

static void bulk_text(struct buf *b, const void *row)
{
    char counts[COUNTS];
    buf_addf(b, "%s\n", bulk_counts(row, counts));
}

/* Stores a file and prints the counts. If they cannot be printed, the error contains them: by then
 * the lines have been stored. */
static int bulk_run(struct bulk *k, int fd, struct error *err)
{
    char counts[COUNTS];
    size_t max = (size_t)k->cli->settings.payload_max + LINE_EXTRA;
    k->lines = (struct lines){.fd = fd, .max = max};
    buf_init(&k->lines.b, 2 * max + 3 * CHUNK);
    if (!buf_reserve(&k->lines.b, CHUNK))
        return err_nomem(err);
    arena_init(&k->arena, ATTRIBUTES_MAX);
    struct stat sb;
    bool known = fstat(fd, &sb) == 0 && S_ISREG(sb.st_mode);
    output_progress_start(&k->progress, known ? sb.st_size : 0);
    int r = bulk_lines(k, err);
    output_progress_end(&k->progress);

    if (r != 0) {
        bulk_failed(k, err);
    } else {
        r = output_result(k->cli, fields_bulk, k, bulk_text, err);
        if (r == 0)
            r = output_end(err);
        if (r != 0)
            err_prefix(err, "stored %s", bulk_counts(k, counts));
    }
    arena_release(&k->arena);
    buf_release(&k->lines.b);
    return r;
}

static int emit_many(struct cli *cli, struct error *err)
{
    const char *path = cli->args.n_pos ? cli->args.pos[0] : "-";
    bool is_stdin = strcmp(path, "-") == 0;
    const struct emit_args *a = cli_own(cli);
    struct bulk k = {.cli = cli, .name = path, .atomic = a->atomic};
    int fd = STDIN_FILENO;
    if (is_stdin)
        k.name = "stdin";
    else
        fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, ERR_INVALID, errno, "%s: could not open", path);

    int r = commands_open(cli, (struct store_options){0}, err);
    k.st = cli->st;
    if (r == 0)
        r = bulk_run(&k, fd, err);
    if (!is_stdin)
        close(fd);
    return r;
}

static int emit_run(struct cli *cli, struct error *err)
{
    const struct emit_args *a = cli_own(cli);
    if (!a->ndjson) {
        if (cli->args.n_pos == 0)
            return commands_usage(err, "emit needs a TYPE, such as order.paid, or --ndjson FILE");
        return emit_one(cli, err);
    }

    bool describes_one = a->payload || a->headers.n || a->key.aggregate_id.p || a->version.given ||
                         a->idempotency_key || a->tenant || a->delay_ms;
    if (describes_one)
        return commands_usage(
            err, "--ndjson cannot be combined with options for a single event; each line sets its "
                 "own");
    return emit_many(cli, err);
}

static const struct command_json emit_json[] = {
    {fields_emitted, "an object", NULL},
    {fields_bulk, "an object", "with --ndjson"},
    {NULL},
};

const struct command cmd_emit[] = {
    {"emit", NULL, "TYPE | --ndjson [FILE|-]", "store one event and print its id, or store many",
     .options = options, .max = 1, .json = emit_json, .run = emit_run},
    {NULL},
};
