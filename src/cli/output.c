/* output.c: prints listings and results, notes and errors, findings, progress. For the layout of
 * listings see src/listing. */
#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "cli/cli.h"

void output_locale(void)
{
    setlocale(LC_CTYPE, "");
    /* Keys and payloads are UTF-8 regardless of LANG. In the C locale, tables would show them as
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

/* ---- rows and results ---- */

static struct listing_form form_of(const struct cli *cli, const struct listing_field *fields,
                                   const char *columns)
{
    return (struct listing_form){
        .fields = fields,
        .columns = columns,
        .out = stdout,
        .json = cli->args.json,
        .color = output_color(&cli->settings),
    };
}

int output_listing(const struct cli *cli, struct listing *l, const struct listing_field *fields,
                   const char *columns, struct error *err)
{
    struct listing_form form = form_of(cli, fields, columns);
    return listing_start(l, &form, err);
}

int output_rows(const struct cli *cli, const struct listing_field *fields, const char *columns,
                const void *rows, size_t n, size_t size, struct error *err)
{
    struct listing_form form = form_of(cli, fields, columns);
    return listing_rows(&form, rows, n, size, err);
}

int output_pairs(const struct cli *cli, const struct listing_field *fields, const char *names,
                 const void *row, struct error *err)
{
    if (cli->args.json)
        return output_result(cli, fields, row, NULL, err);
    return listing_pairs(stdout, fields, names, row, err);
}

int output_result(const struct cli *cli, const struct listing_field *fields, const void *row,
                  output_say *say, struct error *err)
{
    struct buf b;
    buf_init(&b, OUTPUT_MAX);
    if (cli->args.json) {
        listing_object(&b, fields, row);
        buf_addc(&b, '\n');
    } else {
        say(&b, row);
    }
    int r = output_flush(&b, err);
    buf_release(&b);
    return r;
}

int output_masked(struct cli *cli, const char *value, const char **ret, struct error *err)
{
    struct buf b;
    buf_init(&b, (size_t)1 << 20);
    config_mask(&b, value);
    const char *copy = b.failed ? NULL : arena_bytes(&cli->arena, b.p, b.n);
    buf_release(&b);
    if (!copy)
        return err_nomem(err);
    *ret = copy;
    return 0;
}

/* ---- text ---- */

void output_clean(struct buf *b, const char *text)
{
    text_show(b, str_of(text), "");
}

/* output_addf with a va_list. */
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
    fflush(stdout); /* so that a note follows the output if both go to one terminal */
    fputs(buf_cstr(&b) ? b.p : "outbox: out of memory\n", stderr);
    buf_release(&b);
}

void output_error(const char *text)
{
    output_note("outbox: %s\n", text);
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
    return listing_flush(b, stdout, err);
}

int output_end(struct error *err)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    return err_errno(err, ERR_UNAVAILABLE, errno, "could not write to stdout");
}

/* ---- findings ---- */

void output_report_start(struct report *r, const struct cli *cli)
{
    *r = (struct report){.json = cli->args.json, .color = output_color(&cli->settings)};
    buf_init(&r->b, (size_t)4 << 20);
    if (r->json)
        buf_adds(&r->b, "{\"findings\":[");
}

void output_report_release(struct report *r)
{
    buf_release(&r->b);
}

static void as_line(const struct report *r, struct buf *b, const struct finding *f)
{
    static const char *const colors[FINDING_LEVELS] = {"\033[32m", "\033[36m", "\033[33m",
                                                       "\033[31m"};
    if (r->color)
        buf_adds(b, colors[f->level]);
    buf_addf(b, "%-8s", finding_level_names[f->level]);
    if (r->color)
        buf_adds(b, "\033[0m");
    buf_addf(b, "%-21s", f->name);
    output_clean(b, f->text); /* the text may quote untrusted names */
    if (f->advice) {
        buf_adds(b, "; ");
        output_clean(b, f->advice);
    }
    buf_addc(b, '\n');
}

void output_finding_visit(void *report, const struct finding *f)
{
    struct report *r = report;
    if (r->json) {
        buf_adds(&r->b, r->n++ ? ",\n" : "\n");
        listing_object(&r->b, fields_finding, f);
    } else {
        as_line(r, &r->b, f);
    }
    r->count[f->level]++;
}

void output_finding(struct report *r, enum finding_level level, const char *name,
                    const char *advice, const char *fmt, ...)
{
    char text[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    struct finding f = {.level = level, .name = name, .text = text, .advice = advice};
    output_finding_visit(r, &f);
}

#define AT(member) .at = offsetof(struct report, member)
const struct listing_field fields_report[] = {
    {"findings", LISTING_LIST, .sub = fields_finding, .help = "the findings"},
    {"problems", LISTING_INT, AT(count[FINDING_PROBLEM]), "number of problems"},
    {"warnings", LISTING_INT, AT(count[FINDING_WARNING]), "number of warnings"},
    {"notes", LISTING_INT, AT(count[FINDING_NOTE]), "number of notes"},
    {"ok", LISTING_BOOL, AT(ok), "whether there is neither a problem nor a warning"},
    {NULL},
};
#undef AT

/* Counts a warning as a failure, so that a script notices; a note is only a remark. */
int output_report_end(struct report *r, struct error *err)
{
    const int64_t *n = r->count;
    r->ok = n[FINDING_PROBLEM] + n[FINDING_WARNING] == 0;
    if (r->json) {
        buf_addc(&r->b, ']');
        listing_members(&r->b, &fields_report[1], r);
        buf_adds(&r->b, "}\n");
    } else {
        buf_addf(&r->b, "%s: %s, %s, %s\n", r->ok ? "all is well" : "needs attention",
                 human_count(n[FINDING_PROBLEM], "problem"),
                 human_count(n[FINDING_WARNING], "warning"), human_count(n[FINDING_NOTE], "note"));
    }

    int (*flush)(struct buf *, struct error *) = output_flush;
    if (r->color)
        flush = output_flush_painted;
    if (flush(&r->b, err) != 0)
        return -1;
    if (r->ok)
        return 0;

    /* The findings are printed: main prints nothing for CLI_FOUND. */
    err_set(err, ERR_NONE, "needs attention");
    if (err)
        err->code = CLI_FOUND;
    return -1;
}

/* ---- confirmation ---- */

int output_confirm(const struct cli *cli, struct error *err, const char *fmt, ...)
{
    char what[700];
    va_list ap;
    if (cli->args.yes)
        return 0;
    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);

    if (!isatty(STDIN_FILENO)) {
        const struct option_def *options = cli->cmd->options;
        bool has_dry_run = options && option_find(options, "dry-run");
        return commands_usage(err, "this would %s; use --yes to do it%s", what,
                              has_dry_run ? ", or --dry-run for a preview" : "");
    }

    output_note("This will %s. Continue? [y/N] ", what);
    char answer[64] = "";
    bool read = fgets(answer, sizeof(answer), stdin) != NULL;
    answer[strcspn(answer, "\r\n")] = '\0';
    bool yes = strcasecmp(answer, "y") == 0 || strcasecmp(answer, "yes") == 0;
    if (read && yes)
        return 0;
    fputs("outbox: nothing was done\n", stderr);
    err->code = CLI_DECLINED;
    return -1;
}

/* ---- progress ---- */

#define BAR 30
#define REDRAW_NS (50 * MS_NS)

void output_progress_start(struct output_progress *p, int64_t total)
{
    *p = (struct output_progress){.on = isatty(STDERR_FILENO), .total = total};
}

/* Redraws at most twenty times a second: drawing must not slow the work down. */
void output_progress_step(struct output_progress *p, int64_t done, int64_t events)
{
    int64_t now = clock_mono(&clock_system);
    if (!p->on || now - p->shown_at < REDRAW_NS)
        return;
    p->shown_at = now;
    const char *count = human_count(events, "event");
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
