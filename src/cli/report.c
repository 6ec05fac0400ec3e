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

void report_visit(void *report, const struct finding *f)
{
    struct report *r = report;
    size_t before = 0;
    for (int i = 0; i < FINDING_LEVELS; i++)
        before += r->count[i];
    if (r->json) {
        buf_adds(&r->b, before ? ",\n" : "\n");
        listing_object(&r->b, fields_finding, f);
    } else {
        as_line(r, &r->b, f);
    }
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

/* The summary after the findings of a report. */
struct summary {
    int64_t problems, warnings, notes;
    bool ok;
};

#define AT(member) .at = offsetof(struct summary, member)
const struct listing_field fields_report[] = {
    {"findings", LISTING_LIST, .sub = fields_finding, .help = "what was found"},
    {"problems", LISTING_INT, AT(problems), "number of problems"},
    {"warnings", LISTING_INT, AT(warnings), "number of warnings"},
    {"notes", LISTING_INT, AT(notes), "number of notes"},
    {"ok", LISTING_BOOL, AT(ok), "whether there is neither a problem nor a warning"},
    {NULL},
};
#undef AT

/* Counts a warning as a failure, so that a script notices; a note is only a remark. */
int report_end(struct report *r, struct error *err)
{
    struct summary s = {.problems = (int64_t)r->count[FINDING_PROBLEM],
                        .warnings = (int64_t)r->count[FINDING_WARNING],
                        .notes = (int64_t)r->count[FINDING_NOTE]};
    s.ok = s.problems + s.warnings == 0;
    if (r->json) {
        buf_addc(&r->b, ']');
        listing_members(&r->b, &fields_report[1], &s);
        buf_adds(&r->b, "}\n");
    } else {
        char problems[HUMAN_COUNT], warnings[HUMAN_COUNT], notes[HUMAN_COUNT];
        buf_addf(&r->b, "%s: %s, %s, %s\n", s.ok ? "all is well" : "needs attention",
                 human_count(s.problems, "problem", problems),
                 human_count(s.warnings, "warning", warnings), human_count(s.notes, "note", notes));
    }

    int (*flush)(struct buf *, struct error *) = output_flush;
    if (r->color)
        flush = output_flush_painted;
    if (flush(&r->b, err) != 0)
        return -1;
    if (s.ok)
        return 0;

    /* The findings are printed: main prints nothing for CLI_FOUND. */
    err_set(err, ERR_NONE, "needs attention");
    if (err)
        err->code = CLI_FOUND;
    return -1;
}
