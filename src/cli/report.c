/* report.c: prints the findings of `doctor` and `migrate validate`, as lines or as JSON. */
#include <stdarg.h>
#include <stdio.h>

#include "cli/cli.h"

void report_init(struct report *r, const struct cli *cli)
{
    *r = (struct report){.json = cli->args.json, .color = output_color(&cli->settings)};
    buf_init(&r->b, (size_t)4 << 20);
    if (r->json)
        buf_adds(&r->b, "{\"findings\":[");
}

void report_release(struct report *r)
{
    buf_release(&r->b);
}

static void as_json(struct buf *b, const struct finding *f, bool first)
{
    buf_adds(b, first ? "\n{" : ",\n{");
    output_string(b, "level", finding_level_names[f->level]);
    output_string(b, "name", f->name);
    output_string(b, "text", f->text);
    output_string(b, "advice", f->advice);
    buf_addc(b, '}');
}

/* as_line appends a finding as a line: level, name, text and advice. */
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
    output_clean(b, f->text); /* it may quote names from outside */
    if (f->advice) {
        buf_adds(b, "; ");
        output_clean(b, f->advice);
    }
    buf_addc(b, '\n');
}

void report_visit(void *report, const struct finding *f)
{
    struct report *r = report;
    size_t before = 0;
    for (int i = 0; i < FINDING_LEVELS; i++)
        before += r->count[i];
    if (r->json)
        as_json(&r->b, f, before == 0);
    else
        as_line(r, &r->b, f);
    r->count[f->level]++;
}

void report_say(struct report *r, enum finding_level level, const char *name, const char *advice,
                const char *fmt, ...)
{
    char text[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    struct finding f = {.level = level, .name = name, .text = text, .advice = advice};
    report_visit(r, &f);
}

/* count appends the number of findings of a level. */
static void count(struct report *r, enum finding_level level, const char *noun)
{
    char text[OUTPUT_COUNT];
    buf_adds(&r->b, output_count((int64_t)r->count[level], noun, text));
}

static void summary_json(struct report *r, bool ok)
{
    buf_adds(&r->b, "]");
    output_number(&r->b, "problems", (int64_t)r->count[FINDING_PROBLEM]);
    output_number(&r->b, "warnings", (int64_t)r->count[FINDING_WARNING]);
    output_number(&r->b, "notes", (int64_t)r->count[FINDING_NOTE]);
    output_bool(&r->b, "ok", ok);
    buf_adds(&r->b, "}\n");
}

static void summary_line(struct report *r, bool ok)
{
    buf_adds(&r->b, ok ? "all is well: " : "needs attention: ");
    count(r, FINDING_PROBLEM, "problem");
    buf_adds(&r->b, ", ");
    count(r, FINDING_WARNING, "warning");
    buf_adds(&r->b, ", ");
    count(r, FINDING_NOTE, "note");
    buf_addc(&r->b, '\n');
}

/* report_end counts a warning as a failure, so that a script notices; a note is only a remark. */
int report_end(struct report *r, struct error *err)
{
    bool ok = r->count[FINDING_PROBLEM] + r->count[FINDING_WARNING] == 0;
    if (r->json)
        summary_json(r, ok);
    else
        summary_line(r, ok);
    int (*flush)(struct buf *, struct error *) = output_flush;
    if (r->color)
        flush = output_flush_painted;
    if (flush(&r->b, err) != 0)
        return -1;
    if (ok)
        return 0;

    /* The findings are printed: main prints nothing for CLI_FOUND. */
    err_set(err, ERR_NONE, "needs attention");
    if (err)
        err->code = CLI_FOUND;
    return -1;
}
